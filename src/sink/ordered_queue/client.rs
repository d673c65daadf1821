//! [`QueueSink`]: the sink of each destination that has the ordered queue in front of its client, which runs on a thread of its own.
//!
//! In: the client, as an async function of the hand-over's other side. Out: a [`Sink`]. The thread ends when the sink is dropped. Each
//! time the client begins, it gets a runtime of its own, which ends with it: see [`super`].

use super::receiver::Receiver;
use super::sender::Sender;
use crate::lsn::Lsn;
use crate::setting_text::SettingError;
use crate::sink::destination::CONNECTION;
use crate::sink::{
    Enqueue, Failure, FailureClass, InFlight, Reach, Record, RefusalId, Report, Resolution, Rows, Sink, Tag, TriedAlone,
};
use std::fmt;
use std::future::poll_fn;
use std::ops::ControlFlow;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often [`Sink::reach`] looks whether the client has reached the destination.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// A destination behind the [ordered queue](super).
pub struct QueueSink {
    /// The relay's side of the hand-over. Rust drops it before the thread, which ends because of that.
    sender: Sender,
    admit: Admit,
    _thread: ClientThread,
}

/// The thread of a client. Its drop waits for the thread's end.
struct ClientThread(Option<JoinHandle<()>>);

/// Whether the destination could ever take a record. The failure says why not.
type Admit = Box<dyn Fn(&Record<'_>) -> Result<(), Failure> + Send>;

impl fmt::Debug for QueueSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueueSink").field("sender", &self.sender).finish_non_exhaustive()
    }
}

impl QueueSink {
    /// Starts `client` on a thread called `name`. The client has to end soon after [`Receiver::next`] has returned `None`. The thread drops
    /// it at a restart and when the hold runs out, and then begins it again.
    /// `max_in_flight`: the most bytes in flight. `admit`: whether the destination could ever take a record, or why not.
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
        F: AsyncFn(&mut Receiver) + Send + 'static,
    {
        let (sender, receiver) = Sender::with_receiver(max_in_flight as u64);
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || run(&client, receiver));
        let thread = thread.map_err(|error| SettingError::new(no_thread(&error).text))?;
        Ok(Box::new(Self { sender, admit: Box::new(admit), _thread: ClientThread(Some(thread)) }))
    }
}

/// Runs the client again and again, until the relay has dropped the sink.
fn run(client: &impl AsyncFn(&mut Receiver), mut receiver: Receiver) {
    loop {
        let runtime = match tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build() {
            Ok(runtime) => runtime,
            Err(error) => return receiver.fail(no_thread(&error)),
        };
        let end = runtime.block_on(run_once(client, &mut receiver));
        // This does not wait for look-ups of names, nor for programs that print secrets.
        runtime.shutdown_background();
        receiver.client_ended();
        if end.is_break() {
            return;
        }
    }
}

/// Waits for a hold, and runs the client until the hold is over. Looks at the hold before each step of the client: a timer may come late,
/// as after the machine was suspended.
async fn run_once(client: &impl AsyncFn(&mut Receiver), receiver: &mut Receiver) -> ControlFlow<()> {
    let shared = Arc::clone(&receiver.shared);
    while shared.is_cut() {
        tokio::select! {
            work = receiver.next() => if work.is_none() {
                return ControlFlow::Break(());
            } else if receiver.is_restarted() {
                return ControlFlow::Continue(());
            },
            () = shared.changes() => {}
        }
    }
    let mut client = pin!(client(receiver));
    let mut watch = Box::pin(shared.may_be_cut());
    poll_fn(|context| {
        loop {
            if shared.is_cut() {
                return Poll::Ready(ControlFlow::Continue(()));
            }
            if watch.as_mut().poll(context).is_pending() {
                return client.as_mut().poll(context).map(ControlFlow::Break);
            }
            watch.set(shared.may_be_cut());
        }
    })
    .await
}

/// Runs a future to its end on this thread, for checks and dead letters, which have no client.
///
/// # Errors
/// The future's own, or the operating system's.
pub(in crate::sink) fn block_on<T>(asking: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build();
    let runtime = runtime.map_err(|error| no_thread(&error))?;
    let answer = runtime.block_on(asking);
    runtime.shutdown_background();
    answer
}

fn no_thread(error: &std::io::Error) -> Failure {
    Failure::new(FailureClass::Client, "client", format!("cannot start the client's thread: {error}"))
}

impl Sink for QueueSink {
    fn try_enqueue(&mut self, record: &Record<'_>, tag: Tag) -> Enqueue {
        match (self.admit)(record) {
            Ok(()) => self.sender.push(record, tag),
            Err(failure) => Enqueue::Bad(failure),
        }
    }

    fn poll(&mut self, each: &mut dyn FnMut(Report)) {
        self.sender.poll(each);
    }

    fn resolve(&mut self, refusal: RefusalId, resolution: Resolution<'_>) -> Enqueue {
        if let Resolution::ReplaceWith(record, _) = resolution
            && let Err(failure) = (self.admit)(record)
        {
            return Enqueue::Bad(failure);
        }
        self.sender.resolve(refusal, resolution);
        Enqueue::Taken
    }

    fn in_flight(&self) -> InFlight {
        self.sender.in_flight()
    }

    fn on_idle(&mut self, _rows: Rows) {
        self.sender.flush();
    }

    fn reach(&mut self, patience: Duration) -> Reach {
        let deadline = Instant::now() + patience;
        loop {
            match self.sender.reached() {
                Some(Ok(())) => return Reach::There(Vec::new()),
                Some(Err(failure)) if failure.class == FailureClass::LogIn => return Reach::Refused(failure),
                Some(Err(failure)) => return Reach::Silent(failure),
                None if Instant::now() >= deadline => {
                    let text = format!("no answer within {} s", patience.as_secs());
                    return Reach::Silent(Failure::new(FailureClass::Environment, CONNECTION, text));
                }
                None => std::thread::sleep(LOOK_EVERY),
            }
        }
    }

    fn restart(&mut self) -> Result<(), Failure> {
        self.sender.restart();
        self.hold_until(None);
        Ok(())
    }

    fn close(&mut self) {
        // Without a hold no client begins.
        self.hold_until(Some(Duration::ZERO));
        self.sender.restart();
    }

    /// Without a hold, the thread drops the client, and its records wait again. The thread looks at the hold by itself, so nothing has to be
    /// waited for.
    fn park(&mut self) {
        self.hold_until(Some(Duration::ZERO));
    }

    /// The next hold lets a client begin.
    fn unpark(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    fn alone_from(&mut self, lsn: Lsn) {
        self.sender.alone_from(lsn);
    }

    fn hold_until(&mut self, until: Option<Duration>) {
        self.sender.hold_until(until);
    }

    fn blocked(&self) -> Option<Failure> {
        self.sender.blocked()
    }

    fn tried_alone(&self) -> Option<TriedAlone> {
        self.sender.tried_alone()
    }

    fn problem(&self) -> Option<String> {
        self.sender.problem()
    }
}

impl Drop for ClientThread {
    fn drop(&mut self) {
        if let Some(thread) = self.0.take() {
            // In a release a panic aborts the process. In a test the panic was printed.
            drop(thread.join());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn a_sink_ends_though_a_name_or_a_program_has_not_answered_yet() {
        let (ends, until) = std::sync::mpsc::channel::<()>();
        let until = std::sync::Mutex::new(Some(until));
        let sink = QueueSink::start(
            "t",
            1,
            |_| Ok(()),
            async move |receiver: &mut Receiver| {
                let until = until.lock().unwrap().take().unwrap();
                let hangs = tokio::task::spawn_blocking(move || until.recv().is_ok());
                while receiver.next().await.is_some() {}
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

    const TAG: Tag = Tag {
        token: crate::sink::Token { transaction: 0, tick: 0, topic: 0 },
        origin: crate::sink::Origin {
            position: crate::lsn::Position { final_lsn: crate::lsn::Lsn::ZERO, ordinal: 0 },
            source: crate::sink::Source::Table(0),
        },
    };

    fn record() -> Record<'static> {
        Record {
            topic: "orders",
            key: Some(b"k"),
            value: None,
            headers: &[],
            timestamp_millis: 0,
            partition: None,
            content: crate::sink::Content::Unknown,
        }
    }

    /// The steps of a client that takes records and never settles one.
    #[derive(Debug, PartialEq, Eq)]
    enum Did {
        Began,
        Took(usize),
        Ended,
    }

    struct Says(std::sync::mpsc::Sender<Did>);

    impl Drop for Says {
        fn drop(&mut self) {
            drop(self.0.send(Did::Ended));
        }
    }

    fn sink() -> (Box<dyn Sink + Send>, std::sync::mpsc::Receiver<Did>) {
        let (says, did) = std::sync::mpsc::channel();
        let client = async move |receiver: &mut Receiver| {
            let says = Says(says.clone());
            drop(says.0.send(Did::Began));
            // A task of the client's runtime has to end with it.
            let task = Says(says.0.clone());
            tokio::spawn(async move {
                let _task = task;
                std::future::pending::<()>().await;
            });
            loop {
                let mut batch = Vec::new();
                receiver.take(&mut batch, 9, |_| crate::sink::ordered_queue::Fit::Takes);
                if !batch.is_empty() {
                    drop(says.0.send(Did::Took(batch.len())));
                }
                if receiver.next().await.is_none() {
                    return;
                }
            }
        };
        (QueueSink::start("t", 1 << 20, |_| Ok(()), client).unwrap(), did)
    }

    fn next(did: &std::sync::mpsc::Receiver<Did>) -> Did {
        did.recv_timeout(Duration::from_secs(30)).unwrap()
    }

    #[test]
    fn a_client_ends_with_its_tasks_when_the_hold_runs_out_and_sends_again_under_the_next() {
        use crate::sink::hold::since_boot;
        let (mut sink, did) = sink();
        assert_eq!(next(&did), Did::Began);
        sink.hold_until(Some(since_boot() + Duration::from_millis(300)));
        assert!(matches!(sink.try_enqueue(&record(), TAG), Enqueue::Taken));
        sink.on_idle(Rows::Live);
        assert_eq!([next(&did), next(&did), next(&did)], [Did::Took(1), Did::Ended, Did::Ended]);
        assert!(matches!(sink.try_enqueue(&record(), TAG), Enqueue::Taken));
        sink.on_idle(Rows::Live);
        assert!(did.recv_timeout(Duration::from_millis(300)).is_err(), "none begins without a hold");
        sink.hold_until(Some(since_boot() + Duration::from_mins(1)));
        assert_eq!([next(&did), next(&did)], [Did::Began, Did::Took(2)]);
        sink.hold_until(Some(since_boot() + Duration::from_mins(2)));
        assert!(did.recv_timeout(Duration::from_millis(300)).is_err(), "a longer hold ends nothing");
        assert_eq!(sink.in_flight().records, 2);
    }

    #[test]
    fn a_parked_sink_has_no_client_and_keeps_its_records() {
        use crate::sink::hold::since_boot;
        let (mut sink, did) = sink();
        assert_eq!(next(&did), Did::Began);
        assert!(matches!(sink.try_enqueue(&record(), TAG), Enqueue::Taken));
        sink.on_idle(Rows::Live);
        assert_eq!(next(&did), Did::Took(1));
        sink.park();
        assert_eq!([next(&did), next(&did)], [Did::Ended, Did::Ended]);
        assert!(did.recv_timeout(Duration::from_millis(300)).is_err(), "none begins");
        assert_eq!(sink.in_flight().records, 1);
        sink.unpark().unwrap();
        sink.hold_until(Some(since_boot() + Duration::from_mins(1)));
        assert_eq!([next(&did), next(&did)], [Did::Began, Did::Took(1)]);
    }

    #[test]
    fn a_restart_waits_for_the_end_of_the_client_and_forgets_what_it_had() {
        let (mut sink, did) = sink();
        assert_eq!(next(&did), Did::Began);
        assert!(matches!(sink.try_enqueue(&record(), TAG), Enqueue::Taken));
        sink.on_idle(Rows::Live);
        assert_eq!(next(&did), Did::Took(1));
        sink.restart().unwrap();
        assert_eq!([did.try_recv().unwrap(), did.try_recv().unwrap()], [Did::Ended, Did::Ended]);
        assert_eq!(next(&did), Did::Began);
        assert!(did.recv_timeout(Duration::from_millis(300)).is_err(), "nothing is sent again");
        assert_eq!(sink.in_flight().records, 0);
    }
}
