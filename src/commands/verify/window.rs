//! The window of `--follow`: from the consistent point of a temporary slot to the end of the flushed WAL when the time is over.
//!
//! ```text
//!  ends of topics, then flushed WAL ── each second ──► L0: the slot begins    L1: the window ends          L2: all that was read is known
//!        (the last sample at or before L0)             ├───── rows that count ─────┤── known, do not count ──┤
//!  records:          ├── read from there ──────────────────────────────────────────────── to the ends ──┤
//! ```
//!
//! In: the settings of a run, a destination's reader. Out: an [`Outcome`], the window, what it cannot say. It writes nothing: the slot is
//! temporary, and its reader acknowledges to that slot alone.
//!
//! Why it is exact. A transaction that commits behind L0 is decoded whole. When the ends were asked for, its commit was not flushed, so
//! nobody had published it: its records lie behind these ends. At the end, the wait is for rows that are still open: once the judged slot has
//! confirmed them, their records are in front of the ends that are asked for then. What was read by then belongs to rows in front of the
//! flushed WAL of that moment, which the temporary slot reads as well. So a record without a row has none.
//!
//! Invariant: a lost connection ends the window with an error. A new temporary slot would leave a hole.

use super::VerifyRequest;
use super::collector::{Collector, RowReceiver, TopicNumbers, rows};
use super::matcher::{Expected, Explanation, Matcher, Outcome, Rules, Witness};
use super::records::{Records, Taken, compares_time};
use super::skips::Skips;
use super::tails::{Advance, behind, held_back, unread_records};
use crate::commands::error::{CommandCause, CommandError};
use crate::commands::output::{duration, number};
use crate::commands::progress_bar::ProgressBar;
use crate::commands::{run, setup};
use crate::lsn::{Lsn, Position};
use crate::metrics::Metrics;
use crate::outbox::{Mapping, OnUpdate, Outbox};
use crate::pg::source::Source;
use crate::pg::{self, Connection, Purpose, server};
use crate::relay::{self, BadRowAction, BadRows, Relay, StreamEnd, SystemClock};
use crate::sink::Source as RowSource;
use crate::sink::dead_letter::DeadLetterHeaders;
use crate::sink::destination::Delivery;
use crate::sink::reading::{ReadRecord, RecordReader, TopicOffsets};
use crate::supervise::{self, Acquired, NotAcquired, PgServer, RunError, Server as _, StreamTarget};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The time between two samples of the topics' ends while the slot is made.
const SAMPLE_EVERY: Duration = Duration::from_secs(1);

/// The time between two looks at the end of the WAL and, at the end, at the judged slot.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(250);

/// The time between two looks at the topics.
const TOPICS_EVERY: Duration = Duration::from_secs(1);

/// How long a read waits for a record.
pub(super) const SLICE: Duration = Duration::from_millis(20);

/// The part of the memory that is for rows between the two threads.
pub(super) const UNDER_WAY: u64 = 8;

/// The walsenders that stay free: one for the relay that is judged if it connects again, and one for its question who holds the slot.
const LEFT_FREE: i64 = 2;

/// Where a comparison began.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Beginning {
    /// At the consistent point of a slot.
    Slot(Lsn),
    /// At a time, for people: it has read a table.
    Time(String),
}

/// The result of a comparison.
pub(super) struct Seen {
    pub(super) outcome: Outcome,
    pub(super) from: Beginning,
    /// The end of the WAL behind the last row that counts.
    pub(super) to: Lsn,
    pub(super) lasted: Duration,
    /// The reasons for which something was not compared, or the window ended early.
    pub(super) notes: Vec<String>,
    /// The topics that were read.
    pub(super) topics: usize,
    pub(super) names: TopicNumbers,
    /// The names of tables, for faults.
    pub(super) tables: BTreeMap<u32, String>,
}

/// Compares until the time is over, or `stop`.
pub(super) fn follow(
    request: &VerifyRequest,
    reader: Box<dyn RecordReader>,
    stop: &Arc<AtomicBool>,
) -> Result<Seen, CommandError> {
    let mut window = Window::open(request, reader, stop)?;
    let seen = window.run();
    window.relay_stop.store(true, Ordering::Relaxed);
    seen
}

/// A connection for questions, which is opened again once if it breaks.
pub(super) struct Questions {
    pub(super) source: Source,
    pub(super) connection: Option<Connection>,
}

impl Questions {
    pub(super) fn ask<T>(
        &mut self,
        question: impl Fn(&mut Connection) -> Result<T, pg::Error>,
    ) -> Result<T, pg::Error> {
        if let Some(mut connection) = self.connection.take()
            && let Ok(answer) = question(&mut connection)
        {
            self.connection = Some(connection);
            return Ok(answer);
        }
        let mut connection = Connection::open(&self.source, Purpose::Control)?;
        let answer = question(&mut connection)?;
        self.connection = Some(connection);
        Ok(answer)
    }

    pub(super) fn wal_end(&mut self) -> Result<Lsn, pg::Error> {
        self.ask(server::wal_end)
    }
}

/// The relay of the temporary slot, and how its stream ended.
type Streamed = (Relay<Collector, SystemClock>, Result<StreamEnd, NotAcquired>);

struct Window<'a> {
    request: &'a VerifyRequest,
    stop: &'a AtomicBool,
    /// Whether a stop of the user has ended the window.
    stopped_early: bool,
    reader: Box<dyn RecordReader>,
    questions: Questions,
    matcher: Matcher,
    names: TopicNumbers,
    records: Records,
    metrics: Arc<Metrics>,
    with_copies: Arc<AtomicBool>,
    rows: RowReceiver,
    /// The position from which the slot reads, once it is made.
    began: Receiver<Lsn>,
    relay_stop: Arc<AtomicBool>,
    relay: Option<JoinHandle<Streamed>>,
    /// Ends of topics, each with the end of the flushed WAL behind it.
    samples: VecDeque<(Lsn, TopicOffsets)>,
    /// The ends of topics before the window.
    starts: TopicOffsets,
    /// The topics that are read.
    followed: BTreeSet<String>,
    /// The topics that are to be read once they exist.
    awaited: BTreeSet<String>,
    named: HashSet<u32>,
    /// Numbers of unknown records, each with a position in front of which all of their rows lie.
    marks: VecDeque<(u64, Lsn)>,
    looked: Instant,
    looked_at_topics: Instant,
    progress: ProgressBar,
    /// Topics whose end could not be read in time.
    unread: BTreeMap<String, String>,
}

impl<'a> Window<'a> {
    fn open(
        request: &'a VerifyRequest,
        mut reader: Box<dyn RecordReader>,
        stop: &'a Arc<AtomicBool>,
    ) -> Result<Self, CommandError> {
        let run = &request.run;
        let mut source = run.source.clone();
        source.application_name.get_or_insert_with(|| format!("walrelay/verify/{}", run.slot));
        let mapping = Mapping { on_update: OnUpdate::Skip, ..run.mapping.clone() };
        let outbox = Outbox::new(mapping, run.tables.clone())?.with_patterns(run.table_patterns.clone());
        let mut questions = Questions { source: source.clone(), connection: None };
        let free = questions.ask(free_walsenders)?;
        if free <= LEFT_FREE {
            return Err(CommandError::no_free_walsender(free));
        }
        let found = questions.ask(|connection| server::slot(connection, &run.slot))?;
        let Some(judged) = found else { return Err(RunError::no_slot(&run.slot, false).into()) };
        // On a server that was promoted, the column says what the slot was before.
        if judged.row.synced && questions.ask(server::is_in_recovery)? {
            return Err(CommandError::synchronized_slot(&run.slot));
        }
        // Before the slot is begun, so that this sample is in front of it in any case.
        let sample = sample(reader.as_mut(), &mut questions, run)?;
        let names = TopicNumbers::default();
        let (sender, rows) = rows(request.memory / UNDER_WAY);
        let (metrics, with_copies) =
            (Arc::new(Metrics::new(&run.slot, &run.publication, Instant::now())), Arc::new(AtomicBool::new(true)));
        let with_time = compares_time(&run.mapping);
        let collector = Collector::new(sender, &names, run, with_time, &with_copies);
        let target = StreamTarget {
            temporary_slot: Some(format!("walrelay_verify_{:016x}", RandomState::new().build_hasher().finish())),
            source,
            ..run::target(run)
        };
        let relay_stop = Arc::<AtomicBool>::default();
        let (begins, began) = channel();
        let parts = (outbox, collector, Arc::clone(&metrics), Arc::clone(&relay_stop));
        let (limits, user_stop) = (run.limits.of_relay(), Arc::clone(stop));
        let relay = thread::Builder::new()
            .name("rows".to_owned())
            .spawn(move || stream(target, parts, limits, user_stop, &begins))
            .map_err(|error| CommandError::not_begun("start a thread", error))?;
        let rules = Rules {
            exclusive: request.exclusive,
            once: matches!(run.delivery, Delivery::ExactlyOnce { .. }),
            asks_for_partitions: run.mapping.partition_column.is_some(),
            with_values: request.show_values,
            show: request.show,
            memory: request.memory,
        };
        let now = Instant::now();
        Ok(Self {
            request,
            stop,
            stopped_early: false,
            reader,
            questions,
            matcher: Matcher::new(rules),
            records: Records::new(run, &names, false),
            names,
            metrics,
            with_copies,
            rows,
            began,
            relay_stop,
            relay: Some(relay),
            samples: VecDeque::from([sample]),
            starts: TopicOffsets::new(),
            followed: BTreeSet::new(),
            awaited: BTreeSet::from([run.bad_rows.dead_letter_topic.clone()]),
            named: HashSet::new(),
            marks: VecDeque::new(),
            looked: now,
            looked_at_topics: now,
            progress: ProgressBar::new("comparing", 0),
            unread: BTreeMap::new(),
        })
    }

    fn run(&mut self) -> Result<Seen, CommandError> {
        let from = self.begin()?;
        let begun = Instant::now();
        tracing::info!(%from, slot = self.request.run.slot, "comparing rows with records from here on");
        let mut notes = Vec::new();
        while self.request.follow.is_none_or(|time| begun.elapsed() < time) && !self.stop.load(Ordering::Relaxed) {
            self.turn()?;
            if self.memory() >= self.request.memory {
                notes.push("--memory is reached, so the window ended early".to_owned());
                break;
            }
        }
        self.stopped_early = self.stop.load(Ordering::Relaxed);
        // Where memory is short, no rows are taken beyond those that are there, and those of their transaction.
        let to = if notes.is_empty() {
            self.questions.wal_end()?
        } else {
            self.own_position().max(self.matcher.behind_rows())
        };
        self.matcher.end_at(to);
        let lasted = begun.elapsed();
        while self.own_position() < to {
            self.turn()?;
        }
        self.take_rows()?;
        let confirmed = self.wait_and_read_to_the_end()?;
        let (outcome, tables) = self.finish(confirmed)?;
        notes.extend(self.records.notes());
        let topics = self.followed.iter().filter(|name| **name != self.request.run.bad_rows.dead_letter_topic).count();
        Ok(Seen { outcome, from: Beginning::Slot(from), to, lasted, notes, topics, names: self.names.clone(), tables })
    }

    /// Samples the topics' ends until the slot is made.
    fn begin(&mut self) -> Result<Lsn, CommandError> {
        loop {
            let sampled = Instant::now();
            while sampled.elapsed() < SAMPLE_EVERY {
                if let Ok(from) = self.began.recv_timeout(Duration::from_millis(50)) {
                    while self.samples.get(1).is_some_and(|(at, _)| *at <= from) {
                        self.samples.pop_front();
                    }
                    self.starts =
                        std::mem::take(&mut self.samples).pop_front().map(|(_, ends)| ends).unwrap_or_default();
                    self.follow_first_topics()?;
                    return Ok(from);
                }
                if self.relay.as_ref().is_none_or(JoinHandle::is_finished) {
                    return Err(self.ended());
                }
            }
            let sample = sample(self.reader.as_mut(), &mut self.questions, &self.request.run)?;
            self.samples.push_back(sample);
            // The first one stays: a later one counts only if the slot begins behind it.
            if self.samples.len() > MOST_SAMPLES {
                self.samples.remove(1);
            }
        }
    }

    fn follow_first_topics(&mut self) -> Result<(), CommandError> {
        let all = if self.request.exclusive { self.starts.keys().cloned().collect() } else { self.awaited.clone() };
        all.iter().try_for_each(|topic| self.follow_topic(topic))
    }

    /// Reads a topic from where it ended before the window, or waits until it exists.
    fn follow_topic(&mut self, topic: &str) -> Result<(), CommandError> {
        if self.followed.contains(topic) {
            return Ok(());
        }
        match self.reader.start_at(&self.starts, topic).map_err(CommandError::records_unreadable)? {
            Some(from) => {
                if let Some(partition) = from.iter().position(Option::is_none) {
                    return Err(CommandError::window_broken(&format!(
                        "partition {partition} of topic {topic} had no leader at the beginning, so that nobody knows where its records of this window begin"
                    )));
                }
                self.reader.follow(topic, &from);
                self.awaited.remove(topic);
                self.followed.insert(topic.to_owned());
            }
            None => drop(self.awaited.insert(topic.to_owned())),
        }
        Ok(())
    }

    /// The memory that rows and records take, in bytes.
    fn memory(&self) -> u64 {
        self.matcher.bytes() + self.rows.under_way()
    }

    /// The position up to which all rows have come.
    fn own_position(&self) -> Lsn {
        self.metrics.confirmed()
    }

    /// Takes rows and records that have come, and settles records whose rows must have come.
    ///
    /// # Errors
    /// Beside those of its parts: the end of the window takes as much memory again as the window was allowed to take.
    fn turn(&mut self) -> Result<(), CommandError> {
        // The position is read first: rows in front of it are in the channel by now.
        let own = self.own_position();
        self.take_rows()?;
        while let Some((before, _)) = self.marks.pop_front_if(|(_, position)| *position <= own) {
            self.matcher.settle(before);
        }
        if self.memory() >= self.request.memory.saturating_mul(2) {
            return Err(CommandError::no_memory(self.request.memory));
        }
        if self.is_reading() {
            self.read()?;
        } else {
            thread::sleep(SLICE);
        }
        self.with_copies.store(self.matcher.wants_copies(), Ordering::Relaxed);
        if self.looked.elapsed() >= LOOK_EVERY {
            self.looked = Instant::now();
            let mark = self.matcher.next_unknown();
            self.marks.push_back((mark, self.questions.wal_end()?));
            self.show();
        }
        if self.looked_at_topics.elapsed() >= TOPICS_EVERY {
            self.looked_at_topics = Instant::now();
            self.look_at_topics()?;
        }
        Ok(())
    }

    /// Whether records are read. Those without a row take memory until the slot is past them.
    fn is_reading(&self) -> bool {
        self.matcher.unknown_bytes() < self.request.memory / 4
    }

    fn take_rows(&mut self) -> Result<(), CommandError> {
        loop {
            match self.rows.now() {
                Ok(rows) => {
                    for row in rows {
                        if self.named.insert(row.topic) {
                            let name = self.names.name(row.topic);
                            self.follow_topic(&name)?;
                        }
                        self.matcher.expect(row);
                    }
                }
                Err(TryRecvError::Empty) if self.relay.as_ref().is_some_and(JoinHandle::is_finished) => {
                    return Err(self.ended());
                }
                Err(TryRecvError::Empty) => return Ok(()),
                Err(TryRecvError::Disconnected) => return Err(self.ended()),
            }
        }
    }

    fn read(&mut self) -> Result<(), CommandError> {
        let Self { reader, matcher, records, .. } = self;
        let mut take = |read: &ReadRecord<'_>| {
            records.take(read, |taken| match taken {
                Taken::DeadLetter(said) => take_dead_letter(matcher, &said),
                Taken::Record(found, hashes, record) => matcher.found(found, hashes, &record),
            });
        };
        reader.read(SLICE, &mut take).map(drop).map_err(CommandError::records_unreadable)
    }

    /// Finds topics that have appeared, and partitions that were added.
    fn look_at_topics(&mut self) -> Result<(), CommandError> {
        let prefix = self.request.exclusive.then(|| self.request.run.mapping.topic.begins());
        let all: BTreeSet<String> = self.followed.union(&self.awaited).cloned().collect();
        let ends = self.reader.ends(prefix, &all).map_err(CommandError::records_unreadable)?;
        for (topic, partitions) in ends {
            if !self.followed.contains(&topic) {
                // It was not there before the window.
                self.starts.insert(topic.clone(), vec![Some(0); partitions.len()]);
                self.follow_topic(&topic)?;
            }
        }
        Ok(())
    }

    /// Waits until the judged slot has confirmed what is open, and reads the topics to their ends. Returns the position that the slot had
    /// confirmed before the ends were asked for.
    fn wait_and_read_to_the_end(&mut self) -> Result<Lsn, CommandError> {
        let begun = Instant::now();
        loop {
            let confirmed = self.wait_for_open(begun)?;
            self.read_to_the_end()?;
            if self.is_impatient(begun) || self.matcher.last_open().is_none_or(|last| last < confirmed) {
                return Ok(confirmed);
            }
        }
    }

    /// Whether the wait for the slot that began then is over: the time has run out, or the user has stopped it. A stop before it ended the window.
    fn is_impatient(&self, begun: Instant) -> bool {
        self.is_stopped() || begun.elapsed() >= self.request.wait
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed) && !self.stopped_early
    }

    fn wait_for_open(&mut self, begun: Instant) -> Result<Lsn, CommandError> {
        let slot = &self.request.run.slot;
        loop {
            let found = self.questions.ask(|connection| server::slot(connection, slot))?;
            let confirmed = found.and_then(|slot| slot.confirmed_flush_lsn).unwrap_or_default();
            let is_open = self.matcher.last_open().is_some_and(|last| last >= confirmed);
            if !is_open || self.is_impatient(begun) {
                return Ok(confirmed);
            }
            let looked = Instant::now();
            while looked.elapsed() < LOOK_EVERY {
                self.turn()?;
            }
        }
    }

    /// Reads the topics to the ends that they have now, and rows to the end of the WAL behind that. It gives up if for so long no partition has come
    /// nearer to its end.
    fn read_to_the_end(&mut self) -> Result<(), CommandError> {
        // A topic that the last rows have named may be new. It is there by now, unless nobody has written their records.
        self.look_at_topics()?;
        let ends = self.reader.ends(None, &self.followed).map_err(CommandError::records_unreadable)?;
        let mut advance = Advance::begin();
        self.unread.clear();
        loop {
            self.turn()?;
            let positions = self.reader.positions().map_err(CommandError::records_unreadable)?;
            let behind = behind(&positions, &ends);
            if behind.is_empty() {
                break;
            }
            // While the rows have to come first, they are what advances.
            let rows = if self.is_reading() { Lsn::new(0) } else { self.own_position() };
            if advance.is_over(&behind, rows, self.request.wait.max(SAMPLE_EVERY)) || self.is_stopped() {
                self.unread.extend(held_back(&behind));
                break;
            }
        }
        // A topic may have been created again while it was read.
        self.reader.ends(None, &self.followed).map_err(CommandError::records_unreadable)?;
        let read = self.matcher.next_unknown();
        let known = self.questions.wal_end()?;
        while self.own_position() < known {
            self.turn()?;
        }
        self.take_rows()?;
        self.matcher.settle(read);
        Ok(())
    }

    /// The verdict, and the names of the tables.
    fn finish(&mut self, confirmed: Lsn) -> Result<(Outcome, BTreeMap<u32, String>), CommandError> {
        self.relay_stop.store(true, Ordering::Relaxed);
        let thread = self.relay.take().ok_or_else(CommandError::vanished)?;
        while !thread.is_finished() {
            // It may wait for room in the channel. These rows are behind the end.
            drop(self.rows.within(SLICE));
        }
        let (mut relay, _) = thread.join().map_err(|_| CommandError::vanished())?;
        let run = &self.request.run;
        let skips = match self.matcher.last_open() {
            Some(_) => self.questions.ask(|connection| Skips::read(connection, run))?,
            None => Skips::default(),
        };
        let dead_letters = run.bad_rows.dead_letter_topic.clone();
        let matcher = std::mem::replace(&mut self.matcher, Matcher::new(Rules::default()));
        let mut known = Known {
            slot: &run.slot,
            wait: self.request.wait,
            confirmed,
            skips,
            reader: self.reader.as_mut(),
            names: &self.names,
            tails: &self.unread,
            dead_letters: dead_letters.clone(),
            lost: HashMap::new(),
        };
        let mut outcome = matcher.finish(&mut known);
        let judged = self.followed.union(&self.awaited).filter(|topic| **topic != dead_letters);
        outcome.topics = judged.filter_map(|topic| Some((topic.clone(), known.why_unread(topic)?))).collect();
        let tables = outcome.faults.iter().filter_map(|fault| match fault.source {
            Some(RowSource::Table(relation)) => Some((relation, relay.outbox_mut().table(relation).to_owned())),
            Some(RowSource::Message(_)) | None => None,
        });
        let tables = tables.collect();
        Ok((outcome, tables))
    }

    fn show(&mut self) {
        let counts = self.matcher.counts();
        let open = self.matcher.open_rows();
        let text = format!(
            "{} rows, {} right, {} open, at {}",
            number(counts.rows),
            number(counts.right),
            number(open),
            self.own_position()
        );
        self.progress.note(&text);
    }

    /// The reason for which the rows have ended.
    fn ended(&mut self) -> CommandError {
        let Some(Ok((_, end))) = self.relay.take().map(JoinHandle::join) else { return CommandError::vanished() };
        match end {
            Err(NotAcquired::Stopped) => CommandError::interrupted(),
            Err(NotAcquired::Failed(error)) => error.into(),
            Ok(StreamEnd::Unmappable(error)) => RunError::from(error).into(),
            Ok(StreamEnd::Disconnected(error)) => CommandError::window_broken(&supervise::chain(&error)),
            Ok(StreamEnd::PublicationChanged { reason, .. }) => CommandError::window_broken(&reason),
            Ok(other) => CommandError::window_broken(&format!("{other:?}")),
        }
    }
}

/// The facts that are known when the window is over.
struct Known<'a> {
    slot: &'a str,
    wait: Duration,
    /// The position that the slot had confirmed before the topics were read to their ends.
    confirmed: Lsn,
    skips: Skips,
    reader: &'a mut dyn RecordReader,
    names: &'a TopicNumbers,
    /// The topics that were not read to their ends.
    tails: &'a BTreeMap<String, String>,
    dead_letters: String,
    /// What was asked for already.
    lost: HashMap<u32, Option<String>>,
}

impl Known<'_> {
    /// Why not all of a topic was read that lies in front of its end.
    fn why_unread(&self, topic: &str) -> Option<String> {
        self.reader.ended(topic).or_else(|| self.tails.get(topic).cloned())
    }

    fn why_unconfirmed(&self, position: Position) -> Option<String> {
        (position.final_lsn >= self.confirmed).then(|| {
            format!(
                "slot \"{}\" has not confirmed them after {}: its relay is behind, or does not run",
                self.slot,
                duration(self.wait)
            )
        })
    }

    fn why_topic_unread(&self, topic: &str) -> Option<String> {
        self.why_unread(topic).map(|why| unread_records(topic, &why))
    }
}

impl Witness for Known<'_> {
    fn explanation(&mut self, row: &Expected, has_candidate: bool) -> Explanation {
        if let Some(why) = self.why_unconfirmed(row.position) {
            return Explanation::NotJudged(why);
        }
        if let Some(explanation) = self.skips.explanation(row, has_candidate) {
            return explanation;
        }
        let topic = self.names.name(row.topic);
        let why = self.why_topic_unread(&topic).or_else(|| self.why_lost(row.topic));
        // Any row may have a dead letter instead.
        why.or_else(|| self.why_topic_unread(&self.dead_letters))
            .map_or(Explanation::Unexplained, Explanation::NotJudged)
    }

    fn why_unknown(&mut self, topic: u32, newest: Position) -> Option<String> {
        self.why_unconfirmed(newest).or_else(|| self.why_topic_unread(&self.names.name(topic)))
    }

    fn why_lost(&mut self, topic: u32) -> Option<String> {
        let Self { lost, reader, names, .. } = self;
        let found = lost.entry(topic).or_insert_with(|| {
            let name = names.name(topic);
            Some(unread_records(&name, reader.unread(&name).first()?))
        });
        found.clone()
    }

    fn is_void(&mut self, topic: u32) -> bool {
        self.reader.ended(&self.names.name(topic)).is_some()
    }
}

/// The ends of the topics, and then the end of the flushed WAL: what is committed behind that has its records behind those ends.
fn sample(
    reader: &mut dyn RecordReader,
    questions: &mut Questions,
    run: &run::RunRequest,
) -> Result<(Lsn, TopicOffsets), CommandError> {
    let dead_letters = BTreeSet::from([run.bad_rows.dead_letter_topic.clone()]);
    let ends = reader.mark(run.mapping.topic.begins(), &dead_letters);
    let ends = ends.map_err(CommandError::records_unreadable)?;
    Ok((questions.wal_end()?, ends))
}

/// The most samples that are kept while the slot is made.
const MOST_SAMPLES: usize = 60;

/// The rows' thread: takes a temporary slot, says where it begins, and reads it.
fn stream(
    target: StreamTarget,
    (outbox, collector, metrics, stop): (Outbox, Collector, Arc<Metrics>, Arc<AtomicBool>),
    limits: relay::Limits,
    user_stop: Arc<AtomicBool>,
    begins: &std::sync::mpsc::Sender<Lsn>,
) -> Streamed {
    // The channel may be full for as long as the topics are not read.
    let limits = relay::Limits { disconnect_after: Duration::MAX, ..limits };
    let dead_letter_topic = collector.dead_letter_topic().to_owned();
    let bad_rows = bad_rows(dead_letter_topic);
    let (asked, source) = (target.clone(), target.source.clone());
    let mut relay = Relay::new(outbox, collector, SystemClock, Arc::clone(&metrics), stop, limits)
        .with_bad_rows(bad_rows)
        .with_catalogue(Box::new(move || supervise::details_now(&asked)));
    let make_slot = Box::new(move |connection, slot: &str| {
        let mut wait = |line: &str| tracing::warn!("{line}");
        let made = setup::make_temporary(connection, &source, slot, &mut wait, &|| user_stop.load(Ordering::Relaxed));
        made.map_err(|error| {
            // Else it was stopped.
            let CommandCause::Run(cause) = error.cause else { return NotAcquired::Stopped };
            NotAcquired::Failed(RunError { kind: error.kind, cause: *cause, remedy: error.remedy })
        })
    });
    let mut postgres = PgServer::new(target).with_make_slot(make_slot);
    let Acquired { mut stream, wal_sender_timeout, confirmed, .. } = match postgres.acquire(&mut relay, &metrics) {
        Ok(acquired) => acquired,
        Err(error) => return (relay, Err(error)),
    };
    relay.acquired(confirmed);
    // Nobody listens any more if the window was given up.
    let _given_up = begins.send(confirmed).is_err();
    let patience = wal_sender_timeout.unwrap_or(Duration::from_mins(1));
    let ended = relay.stream(&mut stream, Some(patience));
    (relay, Ok(ended))
}

/// Bad rows come as dead letters, whatever the relay does with them, so that each has its position.
pub(super) fn bad_rows(dead_letter_topic: String) -> BadRows {
    BadRows { action: BadRowAction::DeadLetter, at: Vec::new(), dead_letter_topic, readable: true }
}

fn take_dead_letter(matcher: &mut Matcher, said: &DeadLetterHeaders<'_>) {
    let position: Result<Position, _> = said.position.parse();
    if let Ok(position) = position {
        matcher.found_dead_letter(position, said.id.unwrap_or_default());
    }
}

/// How many walsenders may still be started.
fn free_walsenders(connection: &mut Connection) -> Result<i64, pg::Error> {
    let free = connection.value(
        "SELECT pg_catalog.current_setting('max_wal_senders')::int
                - (SELECT count(*) FROM pg_catalog.pg_stat_get_wal_senders())",
    )?;
    Ok(free.unwrap_or_default())
}
