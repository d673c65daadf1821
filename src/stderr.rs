//! Standard error, written by a thread of its own.
//!
//! In: log lines and the lines `error:` and `hint:`. Out: the same bytes on stderr, in order.
//! A program that reads stderr may go away, or stop reading while the pipe is full. Neither may end or block the relay: a line waits in a
//! bounded queue, a line that does not fit is dropped and counted, and a failed write is ignored.
//! Invariant: no caller waits for stderr, except [`finish`], which waits for at most `FINISH_WITHIN`.
//! `tracing-appender` does the same with a bound in lines. This one bounds bytes, and never drops the last `error:` line.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// Bytes of lines that wait for the writer.
const QUEUE_BYTES: usize = 1 << 20;

/// How long [`finish`] waits for the writer.
const FINISH_WITHIN: Duration = Duration::from_secs(1);

/// Pause before the next write where stderr is non-blocking and full.
const RETRY_AFTER: Duration = Duration::from_millis(10);

static QUEUE: Queue = Queue::new(QUEUE_BYTES);

/// Starts the writer.
///
/// # Errors
/// The thread cannot be started.
pub fn start() -> io::Result<()> {
    let write = || QUEUE.write_to(&mut io::stderr(), report_dropped);
    thread::Builder::new().name("stderr".to_owned()).spawn(write).map(drop)
}

/// Writes `text`, also if the queue is full: for the few lines that say why the program ends.
pub fn say(text: &str) {
    QUEUE.push_always(text.as_bytes());
}

/// Waits until all lines are written, at most `FINISH_WITHIN`.
pub fn finish() {
    QUEUE.wait_written(FINISH_WITHIN);
}

fn report_dropped(lines: u64) {
    tracing::warn!(lines, "log lines were dropped, because nothing read stderr");
}

/// Takes log lines: one for each call of `write`.
#[derive(Debug, Clone, Copy)]
pub struct LogLines;

impl Write for LogLines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        QUEUE.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Lines that wait for their writer.
#[derive(Debug)]
struct Queue {
    state: Mutex<QueueState>,
    /// There is a line to write, or all lines are written.
    changed: Condvar,
    /// Bytes that may wait.
    limit: usize,
}

#[derive(Debug)]
struct QueueState {
    lines: VecDeque<Box<[u8]>>,
    /// Bytes of `lines`.
    bytes: usize,
    /// The writer has taken a line and has not written it yet.
    is_writing: bool,
    /// Lines that did not fit since the last report.
    dropped: u64,
}

impl Queue {
    const fn new(limit: usize) -> Self {
        let state = QueueState { lines: VecDeque::new(), bytes: 0, is_writing: false, dropped: 0 };
        Self { state: Mutex::new(state), changed: Condvar::new(), limit }
    }

    fn push(&self, line: &[u8]) {
        let mut state = self.lock();
        if state.bytes.saturating_add(line.len()) > self.limit {
            state.dropped += 1;
        } else {
            self.append(&mut state, line);
        }
    }

    fn push_always(&self, line: &[u8]) {
        self.append(&mut self.lock(), line);
    }

    fn append(&self, state: &mut QueueState, line: &[u8]) {
        state.bytes += line.len();
        state.lines.push_back(line.into());
        self.changed.notify_all();
    }

    /// Writes each line to `out`, without end. `report` gets the number of dropped lines as soon as a line was written after them.
    fn write_to(&self, out: &mut impl Write, report: impl Fn(u64)) -> ! {
        loop {
            let line = self.next_line();
            let is_written = write_line(out, &line);
            let dropped = self.written(is_written);
            if dropped > 0 {
                report(dropped);
            }
        }
    }

    fn next_line(&self) -> Box<[u8]> {
        let mut state = self.lock();
        loop {
            if let Some(line) = state.lines.pop_front() {
                state.bytes -= line.len();
                state.is_writing = true;
                return line;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// A line is written, or lost if `is_written` is false. Returns the number of lines to report as dropped.
    fn written(&self, is_written: bool) -> u64 {
        let mut state = self.lock();
        state.is_writing = false;
        self.changed.notify_all();
        if is_written { std::mem::take(&mut state.dropped) } else { 0 }
    }

    fn wait_written(&self, limit: Duration) {
        let is_busy = |state: &mut QueueState| state.is_writing || !state.lines.is_empty();
        drop(self.changed.wait_timeout_while(self.lock(), limit, is_busy));
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether the line was written. A reader that is gone, or a closed terminal, is no error of this program.
fn write_line(out: &mut impl Write, mut rest: &[u8]) -> bool {
    while !rest.is_empty() {
        match out.write(rest) {
            Ok(0) => return false,
            Ok(count) => rest = rest.get(count..).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::sleep(RETRY_AFTER),
            Err(_) => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::mpsc::{self, Receiver, Sender};

    const LONG: Duration = Duration::from_mins(1);

    /// A pipe whose reader takes one write at a time.
    struct Pipe(Sender<Vec<u8>>, Receiver<()>);

    impl Write for Pipe {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.1.recv().map_err(|_| io::ErrorKind::BrokenPipe)?;
            self.0.send(bytes.to_vec()).unwrap();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    struct Reader {
        queue: Arc<Queue>,
        written: Receiver<Vec<u8>>,
        take: Sender<()>,
        reported: Receiver<u64>,
    }

    impl Reader {
        /// Of a queue for 10 bytes.
        fn new() -> Self {
            let queue = Arc::new(Queue::new(10));
            let ((send, written), (take, taken), (report, reported)) =
                (mpsc::channel(), mpsc::channel(), mpsc::channel());
            let writer = Arc::clone(&queue);
            thread::spawn(move || writer.write_to(&mut Pipe(send, taken), move |lines| report.send(lines).unwrap()));
            Self { queue, written, take, reported }
        }

        fn read(&self) -> String {
            self.take.send(()).unwrap();
            String::from_utf8(self.written.recv_timeout(LONG).unwrap()).unwrap()
        }
    }

    #[test]
    fn what_does_not_fit_is_dropped_and_counted_and_the_last_words_are_not() {
        let reader = Reader::new();
        // It waits in the writer, or in the queue.
        reader.queue.push(b"first\n");
        for _ in 0..100 {
            reader.queue.push(b"more\n");
        }
        reader.queue.push_always(b"error: it is over\n");
        reader.queue.wait_written(Duration::from_millis(1));
        let mut lines = vec![reader.read()];
        while lines.last().is_some_and(|line| !line.starts_with("error")) {
            lines.push(reader.read());
        }
        assert_eq!(lines.first().map(String::as_str), Some("first\n"));
        assert!(lines.len() <= 4, "{lines:?}");
        let dropped = reader.reported.recv_timeout(LONG).unwrap();
        assert_eq!(dropped + lines.len() as u64, 102);
    }

    #[test]
    fn the_end_waits_for_what_is_written_soon() {
        let reader = Reader::new();
        reader.queue.push(b"a\n");
        reader.queue.push(b"b\n");
        let read = thread::spawn(move || (reader.read(), reader.read(), reader.queue));
        let (first, second, queue) = read.join().unwrap();
        assert_eq!((first.as_str(), second.as_str()), ("a\n", "b\n"));
        queue.wait_written(LONG);
        let state = queue.lock();
        assert_eq!((state.bytes, state.is_writing), (0, false));
    }

    #[test]
    fn a_reader_that_is_gone_takes_nothing_down_and_frees_the_queue() {
        let Reader { queue, take, .. } = Reader::new();
        drop(take);
        for _ in 0..100 {
            queue.push(b"line\n");
            queue.wait_written(LONG);
        }
        assert_eq!(queue.lock().dropped, 0);
    }

    #[test]
    fn a_full_non_blocking_stderr_is_tried_again() {
        struct Full(u32, Vec<u8>);
        impl Write for Full {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0 += 1;
                match self.0 {
                    1 => Err(io::ErrorKind::WouldBlock.into()),
                    2 => Err(io::ErrorKind::Interrupted.into()),
                    _ => self.1.write(bytes.get(..1).unwrap()),
                }
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut full = Full(0, Vec::new());
        assert!(write_line(&mut full, b"ab\n"));
        assert_eq!(full.1, b"ab\n");
    }
}
