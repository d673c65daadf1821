//! Publishes dead-letter records again, and settles those that arrive.
//!
//! In: records at the address, a sink. Out: the records that were meant; a line for each that cannot be published; the counts.
//! Invariants: what was handed over is kept until its report has come, so that a client that gave up is replaced and nothing is lost; a
//! record is marked only behind its report; before the first is known to be remembered, no second one is published.

use super::shown::{self, DeadLetterEntry};
use super::{Counts, DeadLettersRequest, left_out};
use crate::commands::error::{CommandCause, CommandError};
use crate::commands::output::counted;
use crate::commands::progress_bar::ProgressBar;
use crate::lsn::Position;
use crate::relay::{Clock, SystemClock};
use crate::sink::dead_letter::{said, with_original};
use crate::sink::destination::{DeadLetterId, DeadLetters, Delivery, KeptRecord, NextKept};
use crate::sink::{
    Enqueue, Failure, FailureClass, HeaderRoom, Origin, OwnedRecord, Record, Refused, Report, Resolution, Rows, Sink,
    Tag, Token,
};
use crate::supervise::REPUBLISH_PAGE;
use serde::Serialize;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io::{self, Write};
use std::thread;
use std::time::{Duration, Instant};

/// How many records are marked together, at most.
const TOGETHER: usize = 500;

/// How long a record that was delivered may wait to be marked: what a kill repeats.
const SETTLED_WITHIN: Duration = Duration::from_secs(1);

/// How long a topic may be missing or forbidden before its records stay.
const TOPIC_WITHIN: Duration = Duration::from_secs(10);

/// How long a stop waits for reports.
const STOP_WITHIN: Duration = Duration::from_secs(8);

/// Pause while nothing can be done but wait.
const PAUSE: Duration = Duration::from_millis(2);

/// How often it reports what it waits for.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// A record that was handed over, and not reported.
struct Flight {
    record: OwnedRecord,
    /// The record at the address that it was made of. `None`: it settles others.
    of: Option<KeptRecord>,
}

/// The result, in numbers of records.
#[derive(Debug, Default, Serialize)]
struct ReplayOutcome {
    replayed: u64,
    failed: u64,
}

/// A replay under way.
pub(super) struct Replay<'r> {
    request: &'r DeadLettersRequest,
    out: &'r mut dyn Write,
    stop: &'r dyn Fn() -> bool,
    /// When the end has begun: until when it may take.
    until: Option<Instant>,
    kept: Box<dyn DeadLetters>,
    sink: Box<dyn Sink + Send>,
    /// The records that the sink has not taken, in order.
    queue: VecDeque<Flight>,
    /// The records that the sink has taken, by their tokens.
    flights: BTreeMap<u64, Flight>,
    next: u64,
    /// Delivered, and not marked.
    delivered: Vec<DeadLetterId>,
    /// Since when the first of these waits.
    since: Instant,
    /// A first record was marked, and that has arrived.
    remembers: bool,
    /// Since when topics are missing or forbidden.
    failing: HashMap<String, Instant>,
    outcome: ReplayOutcome,
    counts: Counts,
    progress: ProgressBar,
    told: Option<Instant>,
    room: HeaderRoom,
}

impl<'r> Replay<'r> {
    pub(super) fn begin(
        request: &'r DeadLettersRequest,
        kept: Box<dyn DeadLetters>,
        client: &str,
        out: &'r mut dyn Write,
        stop: &'r dyn Fn() -> bool,
    ) -> Result<Self, CommandError> {
        let sink = request.destination.open(client, Delivery::AtLeastOnce)?;
        Ok(Self {
            request,
            out,
            stop,
            until: None,
            kept,
            sink,
            queue: VecDeque::new(),
            flights: BTreeMap::new(),
            next: 0,
            delivered: Vec::new(),
            since: Instant::now(),
            remembers: false,
            failing: HashMap::new(),
            outcome: ReplayOutcome::default(),
            counts: Counts::default(),
            progress: ProgressBar::new("replaying", 0),
            told: None,
            room: HeaderRoom::default(),
        })
    }

    /// Publishes everything that is chosen.
    pub(super) fn run(mut self) -> Result<(), CommandError> {
        let ended = self.publish();
        // What has arrived is marked whatever else went wrong.
        let marked = self.finish();
        self.sum_up()?;
        marked?;
        ended?;
        if self.outcome.failed > 0 {
            return Err(CommandError::dead_letters_stay(self.outcome.failed, &self.request.topic));
        }
        Ok(())
    }

    fn publish(&mut self) -> Result<(), CommandError> {
        loop {
            self.go_on()?;
            match self.kept.next().map_err(CommandError::dead_letters_failed)? {
                NextKept::Kept(kept) => self.take(kept)?,
                NextKept::Waiting => {}
                NextKept::End => return self.drain(),
            }
            self.serve()?;
            self.mark_delivered(false)?;
        }
    }

    /// # Errors
    /// It is to stop: on request, or when the end takes too long.
    fn go_on(&self) -> Result<(), CommandError> {
        let is_over = self.until.map_or_else(self.stop, |until| Instant::now() >= until);
        if is_over { Err(CommandError::interrupted()) } else { Ok(()) }
    }

    /// One record of the address.
    fn take(&mut self, kept: KeptRecord) -> Result<(), CommandError> {
        let Self { request, out, counts, outcome, room, .. } = self;
        let meant = kept.record.with_record(room, |record| -> io::Result<Option<OwnedRecord>> {
            let Some(entry) = counts.choose(request, &kept, record) else { return Ok(None) };
            match where_to(request, &entry).and_then(|topic| complete(request, record).map(|()| topic)) {
                Ok(topic) => Ok(meant(record, topic)),
                Err(why) => {
                    outcome.failed += 1;
                    entry.write_failed(*out, request.json, &why)?;
                    Ok(None)
                }
            }
        })?;
        let Some(record) = meant else { return Ok(()) };
        self.queue.push_back(Flight { record, of: Some(kept) });
        self.pump()?;
        if self.remembers {
            return Ok(());
        }
        // The first one that arrives shows whether it can be remembered.
        self.drain()?;
        self.mark_delivered(true)
    }

    /// Hands over whatever waits for it, in order.
    fn pump(&mut self) -> Result<(), CommandError> {
        while let Some(flight) = self.queue.pop_front() {
            let failure = match self.try_offer(&flight.record, self.next) {
                Enqueue::Taken => {
                    self.flights.insert(self.next, flight);
                    self.next += 1;
                    continue;
                }
                Enqueue::Bad(failure) => Some(failure),
                Enqueue::Blocked(failure) if failure.class == FailureClass::Topic => {
                    self.is_given_up(flight.record.topic()).then_some(failure)
                }
                Enqueue::Blocked(failure) if failure.class == FailureClass::LogIn => {
                    return Err(CommandError::dead_letters_failed(failure));
                }
                Enqueue::Blocked(failure) => {
                    self.tell(&failure);
                    None
                }
                Enqueue::Full => None,
            };
            if let Some(failure) = failure {
                self.fail(flight.of, &failure)?;
                continue;
            }
            self.queue.push_front(flight);
            self.go_on()?;
            // A client that gave up puts what was under way in front of it.
            self.serve()?;
            thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// A topic is missing, or forbidden. Returns whether it has been for so long that its records stay.
    fn is_given_up(&mut self, topic: &str) -> bool {
        let since = *self.failing.entry(topic.to_owned()).or_insert_with(Instant::now);
        since.elapsed() >= TOPIC_WITHIN
    }

    fn try_offer(&mut self, record: &OwnedRecord, token: u64) -> Enqueue {
        let Self { sink, room, .. } = self;
        record.with_record(room, |record| sink.try_enqueue(record, tag(token)))
    }

    /// A record will not be published: it stays. One that settles others has to be.
    fn fail(&mut self, of: Option<KeptRecord>, failure: &Failure) -> Result<(), CommandError> {
        let Some(of) = of else {
            return Err(self.not_remembered(failure.clone()));
        };
        self.outcome.failed += 1;
        let Self { request, out, room, .. } = self;
        of.record.with_record(room, |record| match said(record) {
            Some(said) => DeadLetterEntry::new(&of, record, said).write_failed(*out, request.json, &failure.text),
            None => Ok(()),
        })?;
        Ok(())
    }

    /// Takes the reports that have come.
    fn serve(&mut self) -> Result<(), CommandError> {
        let (mut refused, mut lost) = (Vec::new(), None);
        let Self { sink, flights, delivered, outcome, since, remembers, failing, .. } = self;
        sink.poll(&mut |report| match report {
            Report::Delivered(run) => {
                let Some(Flight { record, of }) = flights.remove(&run.token.pack()) else { return };
                failing.remove(record.topic());
                let Some(of) = of else {
                    *remembers = true;
                    return;
                };
                if delivered.is_empty() {
                    *since = Instant::now();
                }
                outcome.replayed += 1;
                delivered.push(of.id);
            }
            Report::Refused(it) => refused.push(it),
            Report::Failed(failure) => lost = Some(failure),
        });
        for it in refused {
            self.refused(*it)?;
        }
        if let Some(failure) = lost {
            self.begin_again(&failure)?;
        }
        if let Some(failure) = self.sink.blocked() {
            self.tell(&failure);
        }
        let seen = self.outcome.replayed + self.outcome.failed;
        self.progress.of(self.kept.count().saturating_sub(self.counts.replayed + self.counts.others));
        self.progress.at(seen);
        Ok(())
    }

    fn refused(&mut self, refused: Refused) -> Result<(), CommandError> {
        let Refused { id, tag, failure, record } = refused;
        match failure.class {
            FailureClass::Topic if !self.is_given_up(record.topic()) => {
                self.sink.resolve(id, Resolution::Retry);
                self.tell(&failure);
                Ok(())
            }
            FailureClass::Row | FailureClass::Topic => {
                self.sink.resolve(id, Resolution::Skip);
                match self.flights.remove(&tag.token.pack()) {
                    Some(flight) => self.fail(flight.of, &failure),
                    None => Ok(()),
                }
            }
            FailureClass::Environment | FailureClass::LogIn | FailureClass::Client | FailureClass::Unlisted => {
                self.sink.resolve(id, Resolution::Retry);
                self.tell(&failure);
                Ok(())
            }
        }
    }

    /// The client gave up: another one is to take everything that has not been reported, in the order that it had.
    fn begin_again(&mut self, failure: &Failure) -> Result<(), CommandError> {
        tracing::warn!(reason = %failure, "replacing the client; records in flight are sent again");
        self.sink.restart().map_err(CommandError::dead_letters_failed)?;
        for (_, flight) in std::mem::take(&mut self.flights).into_iter().rev() {
            self.queue.push_front(flight);
        }
        Ok(())
    }

    /// Settles what has arrived, once there is enough of it, it has waited for long, or `now`.
    fn mark_delivered(&mut self, now: bool) -> Result<(), CommandError> {
        let is_due = now || self.delivered.len() >= TOGETHER || self.since.elapsed() >= SETTLED_WITHIN;
        if self.delivered.is_empty() || !is_due {
            return Ok(());
        }
        let marks = self.kept.mark_replayed(&self.delivered).map_err(CommandError::dead_letters_failed)?;
        self.remembers |= marks.is_empty();
        self.delivered.clear();
        for record in marks {
            self.queue.push_back(Flight { record, of: None });
        }
        if now { self.drain() } else { self.pump() }
    }

    /// Waits until everything is reported.
    fn drain(&mut self) -> Result<(), CommandError> {
        loop {
            self.pump()?;
            self.serve()?;
            if self.flights.is_empty() && self.queue.is_empty() {
                return Ok(());
            }
            self.go_on()?;
            self.sink.on_idle(Rows::Live);
            thread::sleep(PAUSE);
        }
    }

    /// Waits for the records that are under way, and settles those that have arrived.
    fn finish(&mut self) -> Result<(), CommandError> {
        let in_time = |done| match done {
            Err(CommandError { cause: CommandCause::Interrupted, .. }) => Ok(false),
            done => done.map(|()| true),
        };
        self.until = Some(Instant::now() + STOP_WITHIN);
        let drained = in_time(self.drain())?;
        self.until = Some(Instant::now() + STOP_WITHIN);
        if in_time(self.mark_delivered(true))? && drained {
            return Ok(());
        }
        let failure = self.sink.blocked().unwrap_or_else(|| {
            let text = "there was no answer in time".to_owned();
            Failure::new(FailureClass::Environment, "timed_out", text)
        });
        Err(self.not_remembered(failure))
    }

    fn not_remembered(&self, failure: Failure) -> CommandError {
        CommandError::not_remembered(self.flights.len() as u64, &self.request.topic, failure)
    }

    /// Something is waited for that passes by itself.
    fn tell(&mut self, failure: &Failure) {
        if self.told.is_none_or(|told| told.elapsed() >= TELL_EVERY) {
            self.told = Some(Instant::now());
            tracing::warn!(reason = %failure, "waiting for the destination; no data lost");
        }
    }

    fn sum_up(&mut self) -> io::Result<()> {
        if self.request.json {
            return shown::write_json(self.out, &self.outcome);
        }
        let ReplayOutcome { replayed, failed } = &self.outcome;
        writeln!(
            self.out,
            "{} published again, {} failed again{}",
            counted(*replayed, "record"),
            counted(*failed, "record"),
            left_out(&self.counts)
        )
    }
}

fn tag(token: u64) -> Tag {
    Tag {
        token: Token::unpack(token),
        origin: Origin { position: Position { ordinal: token, ..Position::default() }, ..Origin::default() },
    }
}

/// The topic that a record goes to.
fn where_to<'a>(request: &'a DeadLettersRequest, entry: &DeadLetterEntry<'a>) -> Result<&'a str, String> {
    if let Some(form) = entry.unknown_form() {
        return Err(format!(
            "a newer walrelay has written it in form {form}, which this version would misread: replay it with that walrelay"
        ));
    }
    if let Some(bytes) = entry.left_out_bytes {
        return Err(format!(
            "its payload of {bytes} bytes was left out; once the limit is raised, the SQL statement in {REPUBLISH_PAGE} publishes its row"
        ));
    }
    let rule = request.destination.kind().topics;
    let own = entry.topic.filter(|topic| rule.check(topic).is_ok());
    match own.or(request.default_topic.as_deref()) {
        Some(topic) if topic == request.topic => Err("it was meant for the dead-letter topic itself".to_owned()),
        Some(topic) => Ok(topic),
        None => match entry.topic {
            Some(topic) => Err(format!("\"{topic}\" is not a topic name; --default-topic says where it goes instead")),
            None => Err("where it was meant for is not known; --default-topic says where it goes".to_owned()),
        },
    }
}

/// Sees that the number of its schema is not lacking: a row of which no record was made has its payload as it is in the table.
fn complete(request: &DeadLettersRequest, record: &Record<'_>) -> Result<(), String> {
    if request.has_schema_ids && record.value.is_some_and(|value| value.first() != Some(&0)) {
        return Err(
            "its payload has no schema id before it, since no record was made of its row; insert the row again"
                .to_owned(),
        );
    }
    Ok(())
}

fn meant(record: &Record<'_>, topic: &str) -> Option<OwnedRecord> {
    let said = said(record)?;
    Some(with_original(record, &said, topic, SystemClock.wall().unix_millis(), OwnedRecord::of))
}
