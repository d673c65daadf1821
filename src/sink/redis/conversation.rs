//! One connection's work: batches that are sent, and judged when their replies come.
//!
//! In: records that were taken from lanes, replies. Out: commands, outcomes. Several batches are under way at a time on the connection,
//! whose server serves them one after the other; no two of them hold records of one lane. A batch is one command that takes all or none, or
//! several, none of which holds records of another's lanes. Nothing is sent a second time: what was under way when a connection is lost
//! goes back to its lanes. Which records go here, the owner decides.

use super::entry::{Form, batch};
use super::info;
use super::judge::{self, Judged, NOT_WRITABLE, environment};
use super::link::{Link, broken};
use super::redirect::Redirect;
use super::resp::{self, Token, Tokens, length, words};
use super::settings::{Settings, Wait};
use crate::sink::lanes::{Fit, Outcome, Place, Receiver, Taken};
use crate::sink::{Failure, FailureClass};
use std::collections::VecDeque;
use std::io;
use std::ops::Range;
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

/// How long nothing is sent after the server had no room, or could not write.
const LATER: Duration = Duration::from_millis(500);

/// A batch whose replies are due.
#[derive(Default)]
pub(super) struct Step {
    /// Emptied by a restart: then its replies are of no interest.
    pub(super) taken: Vec<Taken<Place>>,
    /// Records and bytes that were sent.
    size: Size,
    /// What was sent, in order; none: what waits for records that were added already.
    parts: Vec<Part>,
    /// Filled once the batch is judged, before its wait ends.
    outcomes: Vec<Outcome>,
}

/// One command that takes all of its records or none.
struct Part {
    /// Behind ASKING.
    asking: bool,
    form: Form,
    records: usize,
}

impl Part {
    fn replies(&self) -> usize {
        self.form.replies(self.records) + usize::from(self.asking)
    }
}

/// What a batch holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Size {
    pub(super) records: usize,
    pub(super) bytes: usize,
}

impl Size {
    /// Adds to it, where both together are no more than a batch may hold, or it is empty. Whether it did.
    pub(super) fn add(&mut self, more: Self) -> bool {
        let sum = Self { records: self.records + more.records, bytes: self.bytes + more.bytes };
        let fits = self.records == 0 || (sum.records <= BATCH_RECORDS && sum.bytes <= BATCH_BYTES);
        if fits {
            *self = sum;
        }
        fits
    }
}

/// How to ask for what is waited for.
#[derive(Clone, Copy)]
pub(super) struct Waiting {
    wait: Wait,
    /// WAITAOF; else WAIT.
    file: bool,
}

impl Waiting {
    /// As settings and the server at `address` have it; `info`: the reply to INFO.
    ///
    /// # Errors
    /// Something is to be waited for, and the server does not say what can be: nothing might be waited for.
    pub(super) fn of(settings: &Settings, address: &str, info: &[u8]) -> Result<Option<Self>, Failure> {
        match (settings.wait, Tokens::of(info).next()) {
            (None, _) => Ok(None),
            (Some(_), Some(Token::Error(error))) => Err(environment(address, error)),
            (Some(wait), _) => Ok(Some(Self { wait, file: info::has_file_to_wait_for(info) })),
        }
    }
}

/// Who decides where records go.
pub(super) trait Route {
    /// What becomes of records of `stream`, none of which was taken, as the redirect says.
    fn redirected(&mut self, stream: &str, redirect: &Redirect, failure: Failure) -> Next;

    /// What became of records that went to `stream`, in their order.
    fn judged(&mut self, stream: &str, outcomes: &[Outcome]);
}

/// What becomes of records that another node is to be asked for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// They are sent again at once.
    Again,
    /// After a pause.
    Later(Failure),
    /// Over another connection.
    Elsewhere(Failure),
}

/// A connection, and what is under way on it.
pub(super) struct Conversation<'a> {
    settings: &'a Settings,
    link: Link,
    waiting: Option<Waiting>,
    steps: VecDeque<Step>,
    under_way: Size,
    /// Emptied, to be used again.
    spare: Vec<Step>,
    /// When something was last read, or began to be due.
    heard: Instant,
    /// Nothing is sent before that.
    later: Option<Instant>,
    /// So many records are sent one by one: which of them is refused is to be found out.
    alone: usize,
    /// The server has taken something.
    answered: bool,
    /// What everything here waits for.
    blocked: Option<Failure>,
    /// That has changed.
    news: bool,
}

impl<'a> Conversation<'a> {
    pub(super) fn new(settings: &'a Settings, link: Link, waiting: Option<Waiting>, alone: usize) -> Self {
        Self {
            settings,
            link,
            waiting,
            steps: VecDeque::new(),
            under_way: Size::default(),
            spare: Vec::new(),
            heard: Instant::now(),
            later: None,
            alone,
            answered: false,
            blocked: None,
            news: true,
        }
    }

    /// Whether another batch may be begun.
    pub(super) fn has_room(&mut self) -> bool {
        if self.later.is_some_and(|later| Instant::now() < later) {
            return false;
        }
        self.later = None;
        let window = if self.alone > 0 { 1 } else { WINDOW };
        self.steps.len() < window && self.under_way.records < WINDOW_RECORDS && self.under_way.bytes < WINDOW_BYTES
    }

    /// An empty one.
    pub(super) fn step(&mut self) -> Step {
        self.spare.pop().unwrap_or_default()
    }

    /// Takes for `step` what fits, and sends it.
    pub(super) fn fill(&mut self, receiver: &mut Receiver) {
        while self.has_room() && receiver.has_ready() {
            let mut step = self.step();
            let (mut size, alone) = (Size::default(), self.alone > 0);
            receiver.take(&mut step.taken, u32::MAX, |record| {
                let one = Size { records: 1, bytes: record.held_bytes() };
                if (alone && size.records > 0) || !size.add(one) { Fit::Full } else { Fit::Takes }
            });
            let all = 0..step.taken.len();
            self.write(&mut step, all, false, receiver);
            self.sent(step, size.bytes);
        }
    }

    /// Writes those records of `step`, which follow the ones that were written, as one command that takes all or none.
    pub(super) fn write(&mut self, step: &mut Step, records: Range<usize>, asking: bool, receiver: &Receiver) {
        let out = self.link.output();
        if asking {
            words(out, &[b"ASKING"]);
        }
        let taken = step.taken.get(records).unwrap_or_default();
        let stored = taken.iter().filter_map(|taken| receiver.record(taken.item));
        let form = batch(out, self.settings.adding, stored);
        step.parts.push(Part { asking, form, records: taken.len() });
    }

    /// All of `step` is written, `bytes` of records.
    pub(super) fn sent(&mut self, mut step: Step, bytes: usize) {
        self.wait();
        if self.steps.is_empty() {
            self.heard = Instant::now();
        }
        step.size = Size { records: step.taken.len(), bytes };
        self.alone = self.alone.saturating_sub(step.size.records);
        self.under_way.records += step.size.records;
        self.under_way.bytes += bytes;
        self.steps.push_back(step);
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

    /// Writes or reads, whichever is possible first. Nothing is lost when it is dropped half-way.
    ///
    /// # Errors
    /// The connection is lost.
    pub(super) async fn turn(&mut self) -> io::Result<()> {
        self.link.turn().await?;
        self.heard = Instant::now();
        Ok(())
    }

    /// When it is to be looked at again, though nothing comes; `None`: nothing is due.
    pub(super) fn wake(&self) -> Option<Instant> {
        let silent = if self.steps.is_empty() { None } else { Some(self.heard + self.silent_at_most()) };
        self.later.into_iter().chain(silent).min()
    }

    /// What is waited for is answered only when it is there, or its time is over.
    fn silent_at_most(&self) -> Duration {
        self.settings.timeout + self.waited_at_most()
    }

    fn waited_at_most(&self) -> Duration {
        self.settings.wait.map_or(Duration::ZERO, |wait| wait.patience)
    }

    /// When replies will have been due for so long, beyond the time of a wait; `None`: none are.
    pub(super) fn silent_for(&self, time: Duration) -> Option<Instant> {
        if self.steps.is_empty() { None } else { Some(self.heard + time + self.waited_at_most()) }
    }

    /// Why it is given up: replies have been due for too long.
    pub(super) fn overdue(&self) -> Option<Failure> {
        let most = self.silent_at_most();
        let overdue = !self.steps.is_empty() && self.heard.elapsed() >= most;
        overdue.then(|| broken(self.link.address(), &format!("no reply for {} s", most.as_secs())))
    }

    /// Whether what is next waits for replicas, or for the file, that were missing already.
    pub(super) fn waits_again(&self) -> bool {
        self.steps.front().is_some_and(|step| step.parts.is_empty() && !step.taken.is_empty())
    }

    /// Whether no replies are due.
    pub(super) fn is_idle(&self) -> bool {
        self.steps.is_empty()
    }

    /// So many records are to be sent one by one.
    pub(super) fn alone(&self) -> usize {
        self.alone
    }

    /// Whether the server has taken something.
    pub(super) fn has_answered(&self) -> bool {
        self.answered
    }

    /// What everything here waits for.
    pub(super) fn blocked(&self) -> Option<&Failure> {
        self.blocked.as_ref()
    }

    /// Whether that has changed since it was asked last.
    pub(super) fn has_news(&mut self) -> bool {
        std::mem::take(&mut self.news)
    }

    fn set_blocked(&mut self, blocked: Option<Failure>) {
        self.news |= self.blocked != blocked;
        self.blocked = blocked;
    }

    /// Deals with all replies that are whole.
    ///
    /// # Errors
    /// The connection is to be given up.
    pub(super) fn read(&mut self, receiver: &mut Receiver, route: &mut impl Route) -> Result<(), Failure> {
        let mut settled = false;
        while let Some(step) = self.steps.front() {
            let replies: usize = step.parts.iter().map(Part::replies).sum();
            let whole = length(self.link.input(), replies + usize::from(self.waiting.is_some()));
            let Some(whole) = whole.map_err(|_| self.not_understood())? else { break };
            let Some(step) = self.steps.pop_front() else { break };
            self.under_way.records -= step.size.records;
            self.under_way.bytes -= step.size.bytes;
            let judged = self.judge(step, whole, receiver, route);
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
    fn judge(
        &mut self,
        mut step: Step,
        whole: usize,
        receiver: &mut Receiver,
        route: &mut impl Route,
    ) -> Result<(), Failure> {
        if step.taken.is_empty() {
            self.keep(step);
            return Ok(());
        }
        let mut replies = Tokens::of(self.link.input().get(..whole).unwrap_or_default());
        let mut concluded = Concluded::default();
        let mut first = 0;
        for part in &step.parts {
            let Part { asking, form, records } = *part;
            let taken = step.taken.get(first..first + records).unwrap_or_default();
            let judging = Judging { address: self.link.address(), form, asking, taken, receiver };
            if !judging.judge(&mut replies, &mut step.outcomes, &mut concluded, route) {
                break;
            }
            first += records;
        }
        let missing = match self.waiting {
            None => Ok(None),
            Some(_) if concluded.broken => Err(self.not_understood()),
            Some(waiting) => waited(waiting, self.link.address(), &mut replies),
        };
        let concluded = self.conclude(concluded);
        if step.parts.is_empty() && missing == Ok(None) && self.later.is_none() {
            self.set_blocked(None);
        }
        let any_added = step.outcomes.iter().any(|outcome| matches!(outcome, Outcome::Delivered));
        match (concluded, missing) {
            (Ok(()), Ok(Some(missing))) if any_added => {
                self.set_blocked(Some(missing));
                self.wait();
                self.settle_unadded(&mut step, receiver);
                step.parts.clear();
                step.size = Size::default();
                self.steps.push_back(step);
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

    /// What the whole of a step's replies asks for.
    fn conclude(&mut self, concluded: Concluded) -> Result<(), Failure> {
        if concluded.broken {
            return Err(self.not_understood());
        }
        self.alone += concluded.alone;
        self.answered |= concluded.each;
        if let Some(failure) = concluded.elsewhere {
            return Err(failure);
        }
        if let Some(failure) = concluded.later {
            self.set_blocked(Some(failure));
            self.later = Some(Instant::now() + LATER);
        } else if concluded.each && self.later.is_none() {
            self.set_blocked(None);
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
        self.keep(step);
    }

    /// Parts of which nothing was added do not wait with the others.
    fn settle_unadded(&mut self, step: &mut Step, receiver: &mut Receiver) {
        let mut unadded = self.step();
        let Step { taken, parts, outcomes, .. } = step;
        let mut first = 0;
        for part in parts.iter() {
            let end = (first + part.records).min(taken.len()).min(outcomes.len());
            let own = outcomes.get(first..end).unwrap_or_default();
            if own.iter().any(|outcome| matches!(outcome, Outcome::Delivered)) {
                first = end;
            } else {
                unadded.taken.extend(taken.drain(first..end));
                unadded.outcomes.extend(outcomes.drain(first..end));
            }
        }
        self.settle(unadded, receiver);
    }

    /// Its room is used again.
    fn keep(&mut self, mut step: Step) {
        step.parts.clear();
        step.outcomes.clear();
        self.spare.push(step);
    }

    /// What is under way goes back to its lanes: what became of it is not known.
    pub(super) fn give_back(&mut self, receiver: &mut Receiver) {
        while let Some(mut step) = self.steps.pop_back() {
            step.outcomes.clear();
            self.settle(step, receiver);
        }
        receiver.publish();
    }

    /// The connection is lost. A server that was sent what it cannot take says so and closes it: where one record alone was under
    /// way, that is refused; else each goes alone from now on.
    pub(super) fn lost(&mut self, receiver: &mut Receiver, error: &io::Error) -> Failure {
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

/// What the replies to all parts of a step ask for.
#[derive(Default)]
struct Concluded {
    /// Some records have their outcomes.
    each: bool,
    later: Option<Failure>,
    elsewhere: Option<Failure>,
    alone: usize,
    broken: bool,
}

/// One part, whose replies are next.
struct Judging<'a> {
    address: &'a str,
    form: Form,
    asking: bool,
    taken: &'a [Taken<Place>],
    receiver: &'a Receiver,
}

impl Judging<'_> {
    /// Appends its records' outcomes. Whether the replies behind it can be judged.
    fn judge(
        &self,
        replies: &mut Tokens<'_>,
        outcomes: &mut Vec<Outcome>,
        concluded: &mut Concluded,
        route: &mut impl Route,
    ) -> bool {
        let may_not_ask = match self.asking.then(|| replies.next()).flatten() {
            Some(Token::Error(error)) => Some(environment(self.address, error)),
            Some(_) | None => None,
        };
        let topic = |taken: &Taken<Place>| self.receiver.record(taken.item).map_or("", |record| record.topic());
        let first = outcomes.len();
        let judged = judge::judge(self.form, self.address, self.taken.iter().map(topic), replies, outcomes);
        let stream = || self.taken.first().map_or("", topic);
        let own = outcomes.get_mut(first..).unwrap_or_default();
        match judged {
            Judged::Each => {
                concluded.each = true;
                route.judged(stream(), own);
            }
            Judged::Later(failure) => concluded.later = Some(failure),
            Judged::Elsewhere(failure) => concluded.elsewhere = Some(failure),
            Judged::Alone => concluded.alone += self.taken.len(),
            Judged::Broken => concluded.broken = true,
            Judged::Redirected(redirect, failure) => {
                let next = match may_not_ask {
                    Some(failure) => Next::Later(failure),
                    None => route.redirected(stream(), &redirect, failure),
                };
                match next {
                    Next::Again => {}
                    Next::Later(failure) => own.fill(Outcome::Later(failure)),
                    Next::Elsewhere(failure) => concluded.elsewhere = Some(failure),
                }
            }
        }
        !concluded.broken
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
    Ok(Some(Failure { class: FailureClass::Environment, reason: NOT_WRITABLE, text }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::tests::read_in_test;

    #[test]
    fn where_it_is_not_known_what_can_be_waited_for_nothing_is_sent() {
        let of = |properties: &[(&str, &str)], info: &str| {
            let settings = read_in_test("redis", "h", properties, |asked| Settings::read(asked)).unwrap();
            Waiting::of(&settings, "h:1", info.as_bytes()).map(|waiting| waiting.is_some())
        };
        let refused = "-NOPERM no\r\n";
        assert_eq!(of(&[], refused), Ok(false));
        assert_eq!(of(&[("wait", "1,500")], "$2\r\nok\r\n"), Ok(true));
        assert_eq!(of(&[("wait", "1,500")], refused).unwrap_err().text, "Redis at h:1: NOPERM no");
    }
}
