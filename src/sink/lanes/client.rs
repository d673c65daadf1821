//! A destination whose client runs on a thread of its own: what the relay's thread sees of it.
//!
//! In: a program for that thread, which is given the other side of the hand-over. Out: a [`Sink`]. The thread ends when the sink
//! is dropped.

use super::hand_over::{Receiver, hand_over};
use super::sender::Sender;
use crate::given::SettingError;
use crate::sink::{
    Enqueue, Failure, FailureClass, InFlight, Reach, Record, RefusalId, Report, Resolution, Rows, Sink, Tag,
};
use std::fmt;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often it is looked whether the destination was reached.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// A destination behind [lanes](super).
pub struct LaneSink {
    /// `None` once it is dropped: then the thread sees that nobody is left.
    sender: Option<Sender>,
    admit: Admit,
    thread: Option<JoinHandle<()>>,
}

/// Whether a record may be sent at all; else why it never will be.
type Admit = Box<dyn Fn(&Record<'_>) -> Result<(), Failure> + Send>;

impl fmt::Debug for LaneSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LaneSink").field("sender", &self.sender).finish_non_exhaustive()
    }
}

impl LaneSink {
    /// Starts `client` on a thread called `name`. It has to end soon after [`Event::Closed`](super::Event::Closed).
    /// `max_in_flight`: bytes at most. `admit`: whether a record may be sent at all, else why it never will be.
    ///
    /// # Errors
    /// The operating system gives no thread.
    pub fn start<A, F>(
        name: &str,
        max_in_flight: usize,
        admit: A,
        client: F,
    ) -> Result<Box<dyn Sink + Send>, SettingError>
    where
        A: Fn(&Record<'_>) -> Result<(), Failure> + Send + 'static,
        F: AsyncFnOnce(Receiver) + Send + 'static,
    {
        let (sender, receiver) = hand_over(max_in_flight as u64);
        let run = move || match tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build() {
            Ok(runtime) => {
                runtime.block_on(client(receiver));
                // Names that are being looked up, and programs that print secrets, are not waited for.
                runtime.shutdown_background();
            }
            Err(error) => receiver.fail(no_thread(&error)),
        };
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run);
        let thread = thread.map_err(|error| SettingError::Client { text: no_thread(&error).text, hint: None })?;
        Ok(Box::new(Self { sender: Some(sender), admit: Box::new(admit), thread: Some(thread) }))
    }

    fn with<T>(&mut self, otherwise: T, act: impl FnOnce(&mut Sender) -> T) -> T {
        self.sender.as_mut().map_or(otherwise, act)
    }
}

/// Waits for a question's answer, where there is no such thread.
///
/// # Errors
/// The question's own, or the operating system's.
pub(in crate::sink) fn block_on<T>(asking: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build();
    let runtime = runtime.map_err(|error| no_thread(&error))?;
    let answer = runtime.block_on(asking);
    runtime.shutdown_background();
    answer
}

fn no_thread(error: &std::io::Error) -> Failure {
    Failure {
        class: FailureClass::Client,
        reason: "client",
        text: format!("cannot start the client's thread: {error}"),
    }
}

impl Sink for LaneSink {
    fn try_enqueue(&mut self, record: &Record<'_>, tag: Tag) -> Enqueue {
        match (self.admit)(record) {
            Ok(()) => self.with(Enqueue::Full, |sender| sender.push(record, tag)),
            Err(failure) => Enqueue::Bad(failure),
        }
    }

    fn poll(&mut self, each: &mut dyn FnMut(Report)) {
        self.with((), |sender| sender.poll(each));
    }

    fn resolve(&mut self, refusal: RefusalId, resolution: Resolution<'_>) -> Enqueue {
        if let Resolution::Instead(record, _) = resolution
            && let Err(failure) = (self.admit)(record)
        {
            return Enqueue::Bad(failure);
        }
        self.with((), |sender| sender.resolve(refusal, resolution));
        Enqueue::Taken
    }

    fn in_flight(&self) -> InFlight {
        self.sender.as_ref().map_or_else(InFlight::default, Sender::in_flight)
    }

    fn on_idle(&mut self, _rows: Rows) {
        self.with((), Sender::flush);
    }

    fn reach(&mut self, patience: Duration) -> Reach {
        let deadline = Instant::now() + patience;
        loop {
            match self.sender.as_ref().and_then(Sender::reached) {
                Some(Ok(())) => return Reach::There(Vec::new()),
                Some(Err(failure)) if failure.class == FailureClass::LogIn => return Reach::Refused(failure),
                Some(Err(failure)) => return Reach::Silent(failure),
                None if Instant::now() >= deadline => {
                    let text = format!("no answer within {} s", patience.as_secs());
                    return Reach::Silent(Failure { class: FailureClass::Environment, reason: "connection", text });
                }
                None => std::thread::sleep(LOOK_EVERY),
            }
        }
    }

    fn restart(&mut self) -> Result<(), Failure> {
        self.with((), Sender::restart);
        Ok(())
    }

    fn blocked(&self) -> Option<Failure> {
        self.sender.as_ref()?.blocked()
    }

    fn problem(&self) -> Option<String> {
        self.sender.as_ref()?.problem()
    }
}

impl Drop for LaneSink {
    fn drop(&mut self) {
        self.sender = None;
        if let Some(thread) = self.thread.take() {
            // A panic there aborts the process in a release; in a test it has been printed.
            drop(thread.join());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::lanes::Event;

    #[test]
    fn a_sink_ends_though_a_name_or_a_program_has_not_answered_yet() {
        let (ends, until) = std::sync::mpsc::channel::<()>();
        let sink = LaneSink::start(
            "t",
            1,
            |_| Ok(()),
            async move |mut receiver| {
                let hangs = tokio::task::spawn_blocking(move || until.recv().is_ok());
                while receiver.next().await != Event::Closed {}
                drop(hangs);
            },
        );
        let (ended, sees) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            drop(sink);
            ended.send(()).unwrap();
        });
        sees.recv_timeout(Duration::from_secs(30)).expect("the sink ends");
        drop(ends);
    }
}
