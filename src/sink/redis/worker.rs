//! The client's thread: takes what may be under way, sends it, settles it, reconnects.
//!
//! In: records behind the hand-over's lanes. Out: their outcomes. Several batches are under way at a time on one connection, which
//! serves them one after the other; no two of them hold records of one lane. Nothing is sent a second time by itself: what was under
//! way when a connection was lost goes back to its lanes.

use super::entry::{Form, batch};
use super::judge::{self, Judged, environment};
use super::link::{Link, broken};
use super::resp::{self, Token, Tokens, length, words};
use super::settings::{Settings, Wait};
use crate::sink::lanes::{End, Event, Fit, Outcome, Place, Receiver, Reconnect, Taken};
use crate::sink::{Failure, FailureClass};
use std::collections::VecDeque;
use std::time::Duration;
use tokio::time::Instant;

/// The most records in a batch, and the most bytes unless it is one record.
const BATCH_RECORDS: usize = 500;
const BATCH_BYTES: usize = 256 << 10;

/// Batches under way at a time: as many as hide the way to the server and back. They are small where rows come one by one, so there
/// may be more of them than of full ones.
const WINDOW: usize = 64;

/// With so many records under way, or so many bytes, no other batch is begun.
const WINDOW_RECORDS: usize = 8 * BATCH_RECORDS;
const WINDOW_BYTES: usize = 8 * BATCH_BYTES;

/// How often it is looked round where nothing is due.
const IDLE: Duration = Duration::from_mins(1);

/// How long the server may take to say how it keeps what it has.
const ANSWERED_WITHIN: Duration = Duration::from_secs(10);

/// How long nothing is sent after the server had no room, or could not write.
const LATER: Duration = Duration::from_millis(500);

/// A batch whose replies are due.
struct Step {
    form: Sent,
    /// Emptied by a restart: then its replies are of no interest.
    taken: Vec<Taken<Place>>,
    /// Of its records.
    bytes: usize,
    /// Filled once the batch is judged, while its wait goes on.
    outcomes: Vec<Outcome>,
}

/// What was sent.
#[derive(Clone, Copy)]
enum Sent {
    /// So many records, and what waits for them.
    Batch(Form, usize),
    /// What waits for records that were added already.
    Wait,
}

/// How to ask for what is waited for.
#[derive(Clone, Copy)]
struct Waiting {
    wait: Wait,
    /// WAITAOF; else WAIT.
    file: bool,
}

/// Runs until the relay wants nothing more.
pub(super) async fn run(settings: Settings, mut receiver: Receiver) {
    let mut reconnect = Reconnect::default();
    let mut alone = 0;
    loop {
        let Some(opened) = receiver.while_listening(open(&settings)).await else { return };
        let failure = match opened {
            Err(failure) => failure,
            Ok((link, waiting)) => {
                let mut worker = Worker::new(&settings, link, waiting, alone);
                let end = worker.serve(&mut receiver).await;
                worker.give_back(&mut receiver);
                alone = worker.alone;
                if worker.answered {
                    reconnect = Reconnect::default();
                }
                match end {
                    End::Closed => return,
                    End::Lost(failure) => failure,
                }
            }
        };
        if reconnect.wait(&mut receiver, failure).await.is_none() {
            return;
        }
    }
}

/// A connection, and how to ask on it for what is waited for.
async fn open(settings: &Settings) -> Result<(Link, Option<Waiting>), Failure> {
    let mut link = Link::open(settings).await?;
    let Some(wait) = settings.wait else { return Ok((link, None)) };
    let asked = tokio::time::timeout(ANSWERED_WITHIN, link.call(&[b"INFO"])).await;
    let reply = asked.unwrap_or_else(|_late| {
        Err(broken(link.address(), &format!("no answer within {} s", ANSWERED_WITHIN.as_secs())))
    })?;
    // Without an answer, nothing might be waited for.
    if let Some(Token::Error(error)) = Tokens::of(&reply).next() {
        return Err(environment(link.address(), error));
    }
    Ok((link, Some(Waiting { wait, file: super::info::has_file_to_wait_for(&reply) })))
}

/// One connection's work.
struct Worker<'a> {
    settings: &'a Settings,
    link: Link,
    waiting: Option<Waiting>,
    steps: VecDeque<Step>,
    /// Emptied lists, to be used again.
    spare: Vec<Vec<Taken<Place>>>,
    /// When something was last read, or began to be due.
    heard: Instant,
    /// Nothing is sent before that.
    later: Option<Instant>,
    /// So many records are sent one by one: which of them is refused is to be found out.
    alone: usize,
    /// The server has taken something.
    answered: bool,
}

impl<'a> Worker<'a> {
    fn new(settings: &'a Settings, link: Link, waiting: Option<Waiting>, alone: usize) -> Self {
        Self {
            settings,
            link,
            waiting,
            steps: VecDeque::new(),
            spare: Vec::new(),
            heard: Instant::now(),
            later: None,
            alone,
            answered: false,
        }
    }

    async fn serve(&mut self, receiver: &mut Receiver) -> End {
        receiver.set_blocked(None);
        loop {
            self.fill(receiver);
            let wake = self.wake();
            tokio::select! {
                event = receiver.next() => match event {
                    Event::Work => {}
                    Event::Restarted => self.forget(receiver),
                    Event::Closed => return End::Closed,
                },
                turned = self.link.turn() => {
                    if let Err(error) = turned {
                        return End::Lost(self.lost(receiver, &error));
                    }
                    self.heard = Instant::now();
                    if let Err(failure) = self.read(receiver) {
                        return End::Lost(failure);
                    }
                }
                () = tokio::time::sleep_until(wake) => {
                    let most = self.silent_at_most();
                    if !self.steps.is_empty() && self.heard.elapsed() >= most {
                        let reason = format!("no reply for {} s", most.as_secs());
                        return End::Lost(broken(self.link.address(), &reason));
                    }
                }
            }
        }
    }

    fn wake(&self) -> Instant {
        let silent = if self.steps.is_empty() { None } else { Some(self.heard + self.silent_at_most()) };
        // With neither it need not wake up; it does once in a while.
        self.later.into_iter().chain(silent).min().unwrap_or_else(|| Instant::now() + IDLE)
    }

    /// What is waited for is answered only when it is there, or its time is over.
    fn silent_at_most(&self) -> Duration {
        self.settings.timeout + self.settings.wait.map_or(Duration::ZERO, |wait| wait.patience)
    }

    /// Sends what may be under way.
    fn fill(&mut self, receiver: &mut Receiver) {
        if self.later.is_some_and(|later| Instant::now() < later) {
            return;
        }
        self.later = None;
        let window = if self.alone > 0 { 1 } else { WINDOW };
        let (mut under_way, mut bytes_under_way) = self.under_way();
        while self.steps.len() < window
            && under_way < WINDOW_RECORDS
            && bytes_under_way < WINDOW_BYTES
            && receiver.has_ready()
        {
            let mut taken = self.spare.pop().unwrap_or_default();
            let most = if self.alone > 0 { 1 } else { BATCH_RECORDS };
            let (mut records, mut bytes) = (0, 0);
            receiver.take(&mut taken, u32::MAX, |record| {
                let size = record.held_bytes();
                if records > 0 && (records == most || bytes + size > BATCH_BYTES) {
                    return Fit::Full;
                }
                (records, bytes) = (records + 1, bytes + size);
                Fit::Takes
            });
            if self.steps.is_empty() {
                self.heard = Instant::now();
            }
            self.alone = self.alone.saturating_sub(taken.len());
            let stored = taken.iter().filter_map(|taken| receiver.record(taken.item));
            let form = batch(self.link.output(), self.settings.adding, stored);
            self.wait();
            (under_way, bytes_under_way) = (under_way + records, bytes_under_way + bytes);
            self.steps.push_back(Step { form: Sent::Batch(form, records), taken, bytes, outcomes: Vec::new() });
        }
    }

    /// Records whose replies are due, and their bytes.
    fn under_way(&self) -> (usize, usize) {
        self.steps.iter().fold((0, 0), |(records, bytes), step| match step.form {
            Sent::Batch(_, more) => (records + more, bytes + step.bytes),
            Sent::Wait => (records, bytes),
        })
    }

    /// Asks that what was written so far be safe.
    fn wait(&mut self) {
        let Some(Waiting { wait, file }) = self.waiting else { return };
        let (replicas, millis) = (wait.replicas.to_string(), wait.patience.as_millis().to_string());
        let (replicas, millis) = (replicas.as_bytes(), millis.as_bytes());
        let out = self.link.output();
        if file {
            words(out, &[b"WAITAOF", b"1", replicas, millis]);
        } else {
            words(out, &[b"WAIT", replicas, millis]);
        }
    }

    /// A restart: the replies still come, and are of no interest.
    fn forget(&mut self, receiver: &Receiver) {
        self.steps.iter_mut().for_each(|step| step.taken.clear());
        self.alone = 0;
        self.later = None;
        receiver.set_blocked(None);
    }

    /// Deals with all replies that are whole.
    fn read(&mut self, receiver: &mut Receiver) -> Result<(), Failure> {
        let mut settled = false;
        while let Some(step) = self.steps.front() {
            let records = match step.form {
                Sent::Batch(form, records) => form.replies(records),
                Sent::Wait => 0,
            };
            let replies = records + usize::from(self.waiting.is_some());
            let whole = length(self.link.input(), replies);
            let Some(whole) = whole.map_err(|_| self.not_understood())? else { break };
            let Some(step) = self.steps.pop_front() else { break };
            let judged = self.judge(step, whole, receiver);
            self.link.consume(whole);
            settled = true;
            judged?;
        }
        if settled {
            receiver.publish();
        }
        Ok(())
    }

    fn not_understood(&self) -> Failure {
        broken(self.link.address(), "its reply does not fit what was sent")
    }

    /// The replies of one step, which are the first `whole` bytes of what has come.
    fn judge(&mut self, mut step: Step, whole: usize, receiver: &mut Receiver) -> Result<(), Failure> {
        if step.taken.is_empty() {
            return Ok(());
        }
        let address = self.link.address().to_owned();
        let mut replies = Tokens::of(self.link.input().get(..whole).unwrap_or_default());
        let judged = match step.form {
            Sent::Wait => Judged::Each,
            Sent::Batch(form, _) => {
                let topic = |taken: &Taken<Place>| receiver.record(taken.item).map_or("", |record| record.topic());
                judge::judge(form, &address, step.taken.iter().map(topic), &mut replies, &mut step.outcomes)
            }
        };
        let missing = self.waiting.map_or(Ok(None), |waiting| waited(waiting, &address, &mut replies));
        let concluded = self.conclude(judged, step.taken.len(), receiver);
        let any_added = step.outcomes.iter().any(|outcome| matches!(outcome, Outcome::Delivered));
        match (concluded, missing) {
            (Ok(()), Ok(Some(missing))) if any_added => {
                receiver.set_blocked(Some(missing));
                self.wait();
                self.steps.push_back(Step { form: Sent::Wait, ..step });
                Ok(())
            }
            (concluded, missing) => {
                if missing.is_err() || concluded.is_err() && missing != Ok(None) {
                    // Whether it is safe is not known: what was added is sent again.
                    step.outcomes.clear();
                }
                self.settle(step, receiver);
                concluded.and_then(|()| missing.map(drop))
            }
        }
    }

    /// What the whole of a batch's replies asks for.
    fn conclude(&mut self, judged: Judged, records: usize, receiver: &Receiver) -> Result<(), Failure> {
        match judged {
            Judged::Each => {
                self.answered = true;
                if self.later.is_none() {
                    receiver.set_blocked(None);
                }
            }
            Judged::Later(failure) => {
                receiver.set_blocked(Some(failure));
                self.later = Some(Instant::now() + LATER);
            }
            Judged::Alone => self.alone += records,
            Judged::Elsewhere(failure) => return Err(failure),
            Judged::Broken => return Err(self.not_understood()),
        }
        Ok(())
    }

    fn settle(&mut self, mut step: Step, receiver: &mut Receiver) {
        let all = step.taken.len();
        // Where nothing was said of a record, nothing is known of it.
        let outcomes = step.outcomes.drain(..).chain(std::iter::repeat(Outcome::Unknown));
        for (taken, outcome) in step.taken.drain(..).zip(outcomes) {
            let settled = receiver.settle(taken, &outcome);
            if !settled && matches!(outcome, Outcome::Refused(_)) {
                // One before it in its lane went back for its sake.
                self.alone = self.alone.max(all);
            }
        }
        self.spare.push(step.taken);
    }

    /// What is under way goes back to its lanes: what became of it is not known.
    fn give_back(&mut self, receiver: &mut Receiver) {
        while let Some(mut step) = self.steps.pop_back() {
            step.outcomes.clear();
            self.settle(step, receiver);
        }
        receiver.publish();
    }

    /// The connection is lost. A server that was sent what it cannot take says so and closes it: where one record alone was under
    /// way, that is refused; else each goes alone from now on.
    fn lost(&mut self, receiver: &mut Receiver, error: &std::io::Error) -> Failure {
        let refusal = Tokens::of(self.link.input()).find_map(|token| match token {
            Token::Error(error) => (resp::code(error) == b"ERR").then(|| error.to_vec()),
            Token::Text(_) | Token::Integer(_) | Token::Bytes(_) | Token::Null | Token::Array(_) => None,
        });
        let records: usize = self.steps.iter().map(|step| step.taken.len()).sum();
        match refusal {
            Some(refusal) if records == 1 => {
                if let Some(step) = self.steps.front_mut()
                    && let Some(record) = step.taken.first().and_then(|taken| receiver.record(taken.item))
                {
                    let refused = Outcome::Refused(judge::refused(record.topic(), &refusal));
                    step.outcomes = vec![refused];
                }
                if let Some(step) = self.steps.pop_front() {
                    self.settle(step, receiver);
                }
            }
            Some(_) => self.alone = records,
            None => {}
        }
        broken(self.link.address(), &error.to_string())
    }
}

/// Whether what is waited for has come: `None`; else what is missing.
fn waited(waiting: Waiting, address: &str, replies: &mut Tokens<'_>) -> Result<Option<Failure>, Failure> {
    let mut reply = replies.next();
    if let Some(Token::Array(_)) = reply {
        reply = replies.next();
    }
    let number = |token: Option<Token<'_>>| match token {
        Some(Token::Integer(number)) => Ok(number),
        Some(Token::Error(error)) => Err(environment(address, error)),
        Some(Token::Text(_) | Token::Bytes(_) | Token::Null | Token::Array(_)) | None => {
            Err(environment(address, b"ERR its reply to WAIT is none"))
        }
    };
    let (files, replicas) = if waiting.file { (number(reply)?, number(replies.next())?) } else { (1, number(reply)?) };
    if files >= 1 && replicas >= i64::from(waiting.wait.replicas) {
        return Ok(None);
    }
    let text = format!(
        "Redis at {address} has the records in {files} append-only file and {replicas} of {} replicas",
        waiting.wait.replicas
    );
    Ok(Some(Failure { class: FailureClass::Environment, reason: "not_writable", text }))
}
