//! [`Conversation`]: a connection, and the batches under way on it.
//!
//! In: records from the ordered queue. Out: their outcomes. Several batches are under way at a time, and the server serves them one after the
//! other; no two of them have records of one key. A batch (a [`BatchStep`]) is one command that adds all entries or none, or several such
//! commands, no two of which have records of one key. This file sends nothing a second time by itself, and does not connect. The owner of
//! the connection decides which records go over it. A cluster's [`Routes`] decide what follows a redirect.

use super::cluster::routes::Routes;
use super::connection::{RedisConnection, Replies};
use super::errors::{self, Classified, NOT_WRITABLE, environment, said, with_fix};
use super::message::{BatchForm, batch};
use super::{KIND, RedisSettings, ReplicaWait};
use crate::sink::ordered_queue::{Receiver, RecordIndex, RecordOutcome, Size, TakenRecord};
use crate::sink::{Failure, FailureClass};
use redis::{Pipeline, RedisResult, Value, cmd, from_redis_value_ref};
use std::collections::VecDeque;
use std::ops::Range;
use std::slice::Iter;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::time::Instant;

/// How long a client sleeps if no time is due.
pub(super) const IDLE: Duration = Duration::from_mins(1);

/// The most records and bytes of a batch, unless it has one record.
pub(super) const BATCH: Size = Size { records: 500, bytes: 256 << 10 };

/// The most batches under way: enough to hide the round trip to the server. Batches are small if rows come one by one, so there may be more
/// of them than of full ones.
const BATCHES: usize = 64;

/// With so many records under way, or so many bytes, the client begins no other batch.
const WINDOW: Size = Size { records: 8 * BATCH.records, bytes: 8 * BATCH.bytes };

/// After a larger batch, which is one record, the connection ends once nothing is under way: the library keeps the memory for it.
const KEPT_BYTES: usize = 8 << 20;

/// The pause after the server had no memory, or could not write.
const LATER: Duration = Duration::from_millis(500);

/// A batch, from its commands to its replies.
#[derive(Default)]
pub(super) struct BatchStep {
    pub(super) taken: Vec<TakenRecord<RecordIndex>>,
    /// How many records and bytes were sent.
    size: Size,
    /// The commands that add entries, in order. None: the batch only waits again for replicas of added records.
    parts: Vec<BatchPart>,
    /// The outcome of each record, once the batch is classified. Its wait may not have ended by then.
    outcomes: Vec<RecordOutcome>,
    /// The commands to write. Empty once the library has them.
    commands: Pipeline,
    replies: Option<Replies>,
    /// The replies that have come, until they are classified.
    replied: Option<RedisResult<Vec<Value>>>,
}

/// A command that adds all of its records or none.
struct BatchPart {
    /// Whether ASKING is before the command.
    asking: bool,
    form: BatchForm,
    records: usize,
}

/// The routes of a cluster, and the number of a connection's node in them. `None`: the connection is to a single server.
pub(super) type NodeRoutes<'a> = Option<(&'a mut Routes, usize)>;

/// A connection, and the batches under way on it.
pub(super) struct Conversation<'a> {
    settings: &'a RedisSettings,
    connection: RedisConnection,
    /// Whether the command that waits for replicas is WAITAOF, which also waits for the append-only file. Otherwise it is WAIT.
    file: bool,
    steps: VecDeque<BatchStep>,
    under_way: Size,
    /// Empty batches, whose memory is used again.
    spare: Vec<BatchStep>,
    /// Since when replies are due.
    due: Instant,
    /// Nothing is sent before this time.
    later: Option<Instant>,
    /// Whether the server has answered a batch on this connection.
    answered: bool,
    /// Whether the library keeps the memory of a large record.
    is_bloated: bool,
    /// The failure that all records here wait for.
    blocked: Option<Failure>,
}

impl<'a> Conversation<'a> {
    pub(super) fn new(settings: &'a RedisSettings, connection: RedisConnection, file: bool) -> Self {
        Self {
            settings,
            connection,
            file,
            steps: VecDeque::new(),
            under_way: Size::default(),
            spare: Vec::new(),
            due: Instant::now(),
            later: None,
            answered: false,
            is_bloated: false,
            blocked: None,
        }
    }

    /// Whether the client may begin another batch.
    pub(super) fn has_room(&mut self) -> bool {
        if self.is_bloated || self.later.is_some_and(|later| Instant::now() < later) {
            return false;
        }
        self.later = None;
        let Size { records, bytes } = self.under_way;
        self.steps.len() < BATCHES && records < WINDOW.records && bytes < WINDOW.bytes
    }

    /// An empty batch.
    pub(super) fn step(&mut self) -> BatchStep {
        self.spare.pop().unwrap_or_default()
    }

    /// Takes records for as many batches as may be under way, and sends them.
    pub(super) fn fill(&mut self, receiver: &mut Receiver) {
        while self.has_room() && receiver.has_ready() {
            let mut step = self.step();
            let mut size = Size::default();
            receiver.take(&mut step.taken, u32::MAX, |record| size.fit(record, BATCH));
            // The hold has run out, or a record waits until it has the connection for itself: the queue gives nothing.
            if step.taken.is_empty() {
                return self.keep(step);
            }
            let all = 0..step.taken.len();
            self.write(&mut step, all, false, receiver);
            self.sent(step, size.bytes);
        }
    }

    /// Adds the command for those records of `step`, which follow the records of the command before.
    pub(super) fn write(&mut self, step: &mut BatchStep, records: Range<usize>, asking: bool, receiver: &Receiver) {
        if asking {
            step.commands.add_command(cmd("ASKING"));
        }
        let taken = step.taken.get(records).unwrap_or_default();
        let stored = taken.iter().filter_map(|taken| receiver.record(taken.item));
        let form = batch(&mut step.commands, self.settings.adding, stored);
        step.parts.push(BatchPart { asking, form, records: taken.len() });
    }

    /// Sends `step`, whose records have `bytes`.
    pub(super) fn sent(&mut self, mut step: BatchStep, bytes: usize) {
        step.size = Size { records: step.taken.len(), bytes };
        self.is_bloated |= bytes > KEPT_BYTES;
        self.under_way.records += step.size.records;
        self.under_way.bytes += bytes;
        self.hand_over(step);
    }

    /// Gives the library the commands, in one write with WAIT or WAITAOF.
    fn hand_over(&mut self, mut step: BatchStep) {
        if let Some(wait) = self.settings.wait {
            let mut question = cmd("WAIT");
            if self.file {
                question = cmd("WAITAOF");
                question.arg(1);
            }
            question.arg(wait.replicas).arg(wait.patience.as_millis().to_string());
            step.commands.add_command(question);
        }
        if self.steps.is_empty() {
            self.due = Instant::now();
        }
        step.replies = Some(self.connection.send(std::mem::take(&mut step.commands)));
        self.steps.push_back(step);
    }

    /// Writes and reads as much as the socket allows. Ready once there is something for [`Conversation::read`].
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let ended = self.connection.poll(context).is_ready() || self.connection.has_ended();
        let replied = self.steps.front_mut().is_some_and(|step| step.is_replied(context));
        if ended || replied { Poll::Ready(()) } else { Poll::Pending }
    }

    /// The latest of these times: bytes were read or written; replies began to be due.
    fn heard(&self) -> Instant {
        self.connection.heard().max(self.due)
    }

    /// When the owner has to look at this connection again even if nothing comes. `None`: no time is due.
    pub(super) fn wake(&self) -> Option<Instant> {
        self.later.into_iter().chain(self.silent_for(self.settings.timeout)).min()
    }

    /// The time of a wait: the server answers WAIT only when its condition holds or its time is over.
    fn waited_at_most(&self) -> Duration {
        self.settings.wait.map_or(Duration::ZERO, |wait| wait.patience)
    }

    /// When the connection will have been silent for `time`, beyond the time of a wait, while replies are due. `None`: no replies are due.
    pub(super) fn silent_for(&self, time: Duration) -> Option<Instant> {
        (!self.steps.is_empty()).then(|| self.heard() + time + self.waited_at_most())
    }

    /// The failure if the connection has been silent for too long while replies are due.
    pub(super) fn overdue(&self) -> Option<Failure> {
        self.silent_for(self.settings.timeout).filter(|time| *time <= Instant::now())?;
        let most = self.settings.timeout + self.waited_at_most();
        Some(KIND.broken(self.connection.address(), &format!("no reply for {} s", most.as_secs())))
    }

    /// Whether the next batch waits again for replicas, or for the file, that were missing before.
    pub(super) fn waits_again(&self) -> bool {
        self.steps.front().is_some_and(|step| step.parts.is_empty())
    }

    /// Whether no replies are due.
    pub(super) fn is_idle(&self) -> bool {
        self.steps.is_empty()
    }

    /// Whether the server has answered a batch on this connection.
    pub(super) fn has_answered(&self) -> bool {
        self.answered
    }

    /// The failure that all records here wait for.
    pub(super) fn blocked(&self) -> Option<&Failure> {
        self.blocked.as_ref()
    }

    /// Classifies all replies that have come.
    ///
    /// # Errors
    /// The connection has to be given up.
    pub(super) fn read(&mut self, receiver: &mut Receiver, mut routes: NodeRoutes<'_>) -> Result<(), Failure> {
        let (mut nobody, mut settled) = (Context::from_waker(Waker::noop()), Ok(()));
        while settled.is_ok()
            && let Some(mut step) = self.steps.pop_front_if(|step| step.is_replied(&mut nobody))
        {
            settled = if let Some(Ok(replies)) = step.replied.take() {
                self.under_way.records -= step.size.records;
                self.under_way.bytes -= step.size.bytes;
                self.connection.settled();
                self.classify(step, &replies, receiver, &mut routes)
            } else {
                self.steps.push_front(step);
                Err(self.lost(receiver))
            };
        }
        settled?;
        if self.connection.has_ended() {
            return Err(self.lost(receiver));
        }
        Ok(())
    }

    fn not_understood(&self) -> Failure {
        KIND.broken(self.connection.address(), "its reply does not fit what was sent")
    }

    /// Classifies the replies to a batch.
    fn classify(
        &mut self,
        mut step: BatchStep,
        replies: &[Value],
        receiver: &mut Receiver,
        routes: &mut NodeRoutes<'_>,
    ) -> Result<(), Failure> {
        let mut replies = replies.iter();
        let mut concluded = Concluded::default();
        let mut first = 0;
        for part in &step.parts {
            let BatchPart { asking, form, records } = *part;
            let taken = step.taken.get(first..first + records).unwrap_or_default();
            let asked = errors::AskedBatch { settings: self.settings, address: self.connection.address(), form };
            let answered = AnsweredPart { asked, asking, taken, receiver };
            if !answered.classify(&mut replies, &mut step.outcomes, &mut concluded, routes) {
                break;
            }
            first += records;
        }
        for (failure, records) in std::mem::take(&mut concluded.among) {
            receiver.search(step.taken.get(records).unwrap_or_default(), &failure);
        }
        let missing = match self.settings.wait {
            None => Ok(None),
            Some(_) if concluded.broken => Err(self.not_understood()),
            Some(wait) => waited(wait, self.file, self.settings, self.connection.address(), replies.next()),
        };
        let concluded = self.conclude(concluded);
        if step.parts.is_empty() && missing == Ok(None) && self.later.is_none() {
            self.blocked = None;
        }
        let any_added =
            step.outcomes.iter().any(|outcome| matches!(outcome, RecordOutcome::Delivered | RecordOutcome::Duplicate));
        match (concluded, missing) {
            (Ok(()), Ok(Some(missing))) if any_added => {
                self.blocked = Some(missing);
                self.settle_unadded(&mut step, receiver);
                step.parts.clear();
                step.size = Size::default();
                self.hand_over(step);
                Ok(())
            }
            (concluded, missing) => {
                if missing.is_err() || concluded.is_err() && missing != Ok(None) {
                    // Nobody knows whether replicas have the records: those that were added are sent again.
                    for outcome in &mut step.outcomes {
                        if matches!(outcome, RecordOutcome::Delivered | RecordOutcome::Duplicate) {
                            *outcome = RecordOutcome::Unanswered;
                        }
                    }
                }
                self.settle(step, receiver);
                concluded.and_then(|()| missing.map(drop))
            }
        }
    }

    /// Applies the conclusions from all replies to a batch.
    fn conclude(&mut self, concluded: Concluded) -> Result<(), Failure> {
        if concluded.broken {
            return Err(self.not_understood());
        }
        self.answered |= concluded.each;
        if let Some(failure) = concluded.elsewhere {
            return Err(failure);
        }
        if let Some(failure) = concluded.later {
            self.blocked = Some(failure);
            self.later = Some(Instant::now() + LATER);
        } else if concluded.each && self.later.is_none() {
            self.blocked = None;
        }
        Ok(())
    }

    fn settle(&mut self, mut step: BatchStep, receiver: &mut Receiver) {
        // If the replies have nothing about a record, nobody knows what became of it.
        let outcomes = step.outcomes.drain(..).chain(std::iter::repeat(RecordOutcome::Unanswered));
        let mut behind = Vec::new();
        for (taken, outcome) in step.taken.iter().zip(outcomes) {
            if !receiver.settle(*taken, &outcome) && matches!(outcome, RecordOutcome::Refused(_)) {
                // An earlier record of its key went back into the queue because of this one, which gets an answer of its own.
                behind.push(taken.key);
            }
        }
        if !behind.is_empty() {
            step.taken.retain(|taken| behind.contains(&taken.key) && receiver.has(taken));
            receiver.mark_each_alone(&step.taken);
        }
        step.taken.clear();
        self.keep(step);
    }

    /// Settles parts without an added record: they do not wait for replicas with the others.
    fn settle_unadded(&mut self, step: &mut BatchStep, receiver: &mut Receiver) {
        let mut unadded = self.step();
        let BatchStep { taken, parts, outcomes, .. } = step;
        let mut first = 0;
        for part in parts.iter() {
            let end = (first + part.records).min(taken.len()).min(outcomes.len());
            let own = outcomes.get(first..end).unwrap_or_default();
            if own.iter().any(|outcome| matches!(outcome, RecordOutcome::Delivered | RecordOutcome::Duplicate)) {
                first = end;
            } else {
                unadded.taken.extend(taken.drain(first..end));
                unadded.outcomes.extend(outcomes.drain(first..end));
            }
        }
        self.settle(unadded, receiver);
    }

    /// Keeps a batch, to use its memory again.
    fn keep(&mut self, mut step: BatchStep) {
        step.parts.clear();
        step.outcomes.clear();
        self.spare.push(step);
    }

    /// Gives back the records of all batches under way: nobody knows whether they were added.
    pub(super) fn give_back(&mut self) -> Vec<TakenRecord<RecordIndex>> {
        self.under_way = Size::default();
        self.steps.drain(..).flat_map(|step| step.taken).collect()
    }

    /// Whether the connection has to end, since nothing is under way and the library keeps much memory for it.
    pub(super) fn renews(&self) -> bool {
        self.is_bloated && self.steps.is_empty()
    }

    /// Handles a lost connection. A server that gets a command that it cannot take sends an error and closes the connection. If the error says
    /// that of a record, and a single one was under way, that one is refused. Otherwise the records under way go in smaller batches.
    fn lost(&mut self, receiver: &mut Receiver) -> Failure {
        if let Some(error) = self.connection.last_error().filter(|error| errors::may_be_of_record(error)) {
            let taken = self.give_back();
            let stream =
                taken.first().and_then(|taken| receiver.record(taken.item)).map_or("", |record| record.topic());
            let failure = errors::refused(stream, &error);
            match taken.as_slice() {
                [one] if failure.class == FailureClass::Row => {
                    receiver.settle(*one, &RecordOutcome::Refused(failure));
                }
                all => receiver.connection_lost(all, &failure, true),
            }
        }
        self.connection.lost()
    }
}

impl BatchStep {
    /// Whether its replies have come, or never will.
    fn is_replied(&mut self, context: &mut Context<'_>) -> bool {
        if let Some(replies) = &mut self.replies
            && let Poll::Ready(replied) = replies.as_mut().poll(context)
        {
            self.replied = Some(replied);
            self.replies = None;
        }
        self.replies.is_none()
    }
}

/// The conclusions from the replies to all parts of a batch.
#[derive(Default)]
struct Concluded {
    /// Whether some records have their outcomes.
    each: bool,
    later: Option<Failure>,
    elsewhere: Option<Failure>,
    /// Records of which one is the cause of a failure, by their indexes in the batch.
    among: Vec<(Failure, Range<usize>)>,
    broken: bool,
}

/// A part of a batch, whose replies are classified next.
struct AnsweredPart<'a> {
    asked: errors::AskedBatch<'a>,
    asking: bool,
    taken: &'a [TakenRecord<RecordIndex>],
    receiver: &'a Receiver,
}

impl AnsweredPart<'_> {
    /// Appends the outcomes of its records. Returns whether the replies behind can be classified.
    fn classify(
        &self,
        replies: &mut Iter<'_, Value>,
        outcomes: &mut Vec<RecordOutcome>,
        concluded: &mut Concluded,
        routes: &mut NodeRoutes<'_>,
    ) -> bool {
        let errors::AskedBatch { settings, address, .. } = self.asked;
        let may_not_ask = self
            .asking
            .then(|| replies.next())
            .flatten()
            .and_then(said)
            .map(|error| with_fix(environment(address, &error), || errors::allow(settings, &["+asking"])));
        let topic =
            |taken: &TakenRecord<RecordIndex>| self.receiver.record(taken.item).map_or("", |record| record.topic());
        let first = outcomes.len();
        let classified = errors::classify(self.asked, self.taken.iter().map(topic), replies, outcomes);
        let stream = || self.taken.first().map_or("", topic);
        let own = outcomes.get_mut(first..).unwrap_or_default();
        match classified {
            Classified::Each => {
                concluded.each = true;
                if let Some((routes, _)) = routes {
                    routes.classified(stream(), own);
                }
            }
            Classified::Later(failure) => concluded.later = Some(failure),
            Classified::Elsewhere(failure) => concluded.elsewhere = Some(failure),
            Classified::Among(failure) => concluded.among.push((failure, first..first + self.taken.len())),
            Classified::Broken => concluded.broken = true,
            Classified::Redirected(redirect, failure) => {
                let later = match (may_not_ask, routes) {
                    (Some(failure), _) => Some(failure),
                    (None, Some((routes, node))) => routes.redirected(*node, stream(), &redirect, failure),
                    // The server has become a node of a cluster. The next connection finds that.
                    (None, None) => {
                        concluded.elsewhere = Some(failure);
                        None
                    }
                };
                if let Some(failure) = later {
                    own.fill(RecordOutcome::Later(failure));
                }
            }
        }
        !concluded.broken
    }
}

/// Classifies the reply to WAIT or WAITAOF. `None`: enough replicas, and the file, have the records. Otherwise the failure says what is missing.
fn waited(
    wait: ReplicaWait,
    file: bool,
    settings: &RedisSettings,
    address: &str,
    reply: Option<&Value>,
) -> Result<Option<Failure>, Failure> {
    let reply = reply.unwrap_or(&Value::Nil);
    let has: Option<(i64, i64)> = if file {
        from_redis_value_ref(reply).ok()
    } else {
        from_redis_value_ref(reply).ok().map(|replicas| (1, replicas))
    };
    let Some((files, replicas)) = has else {
        let error = said(reply).unwrap_or_else(|| "ERR its reply to WAIT is none".to_owned());
        let rights = ["+wait", "+waitaof"];
        return Err(with_fix(environment(address, &error), || errors::allow(settings, &rights)));
    };
    if files >= 1 && replicas >= i64::from(wait.replicas) {
        return Ok(None);
    }
    let text = format!(
        "Redis at {address} has the records in {files} append-only file and {replicas} of {} replicas",
        wait.replicas
    );
    Ok(Some(Failure::new(FailureClass::Environment, NOT_WRITABLE, text)))
}
