//! The rows of `--since`: here the table is the witness, since no slot brings again what a slot has lost.
//!
//! ```text
//!  ACCESS SHARE ─► snapshot ─► position L, behind each commit that the snapshot sees
//!  each pass:  rows ─► row set ◄─ records, from an hour before the time of `--since` on, or from the first one
//!              rows without a record: wait until the judged slot has confirmed L, read on to the ends, then read back to the first records
//!              rows without a record, or with another one: the rows are read again, for their names and the reasons
//! ```
//!
//! In: the settings of a run, which rows, a destination's readers. Out: an [`Outcome`], as that of a window, without an order: a table has none.
//! It writes nothing, and takes no slot.
//!
//! Invariants: a row is missing only if the slot has confirmed it, the topic was read from its first record, and nothing else explains it:
//! deleted or compacted records, a skipped row, or that the row is from before the slot. Memory: 32 bytes a row. If that is more than
//! `--memory`, the rows are split by the hash of their ids, and rows and records are read once for each part.

use super::collector::{Collector, TopicNumbers, rows};
use super::comparison::differences;
use super::faults::{Fault, Faults, RecordAt, Verdict};
use super::fingerprints::Fingerprints;
use super::matcher::{Counts, Expected, Explanation, Outcome};
use super::records::{Records, Taken, compares_time};
use super::row_set::{Match, Misplaced, ROW_BYTES, RowSet, RowState};
use super::skips::Skips;
use super::tails::{Advance, behind, held_back, unread_records};
use super::window::{Beginning, LOOK_EVERY, Questions, SLICE, Seen, UNDER_WAY, bad_rows};
use super::{TableWindow, VerifyRequest};
use crate::commands::backfill::{Reading, TableRows, WantedRows};
use crate::commands::error::CommandError;
use crate::commands::output::{duration, number};
use crate::commands::progress_bar::ProgressBar;
use crate::commands::prune::age::Age;
use crate::commands::run;
use crate::lsn::Lsn;
use crate::metrics::Metrics;
use crate::outbox::{Mapping, OnUpdate, Outbox, TableName, Timestamp};
use crate::pg::shape::shape;
use crate::pg::{self, Connection, Purpose, server};
use crate::relay::{self, Relay, StreamEnd, SystemClock};
use crate::sink::reading::{ReadRecord, RecordReader, TopicOffsets};
use crate::sink::{HeaderRoom, OwnedRecord, Record, Source as RowSource};
use crate::supervise::{self, RunError};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hasher as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Records are read from so much before the time in front of which no row counts: clocks may differ.
const SLACK: Duration = Duration::from_hours(1);

/// The reason for which rows were not judged that came only once.
const NOT_AGAIN: &str =
    "the table did not give them again for a second look: --where may not choose the same rows each time";

/// Opens a reader.
type OpenReader<'a> = dyn Fn() -> Result<Box<dyn RecordReader>, CommandError> + 'a;

/// Compares the rows of the tables.
pub(super) fn since(
    request: &VerifyRequest,
    rows: &TableWindow,
    reader: &OpenReader<'_>,
    stop: &Arc<AtomicBool>,
) -> Result<Seen, CommandError> {
    // Before a table is locked.
    drop(reader()?);
    let begun = Instant::now();
    let mut comparison = Comparison::open(request, rows, reader, stop)?;
    let outcome = comparison.run()?;
    let Comparison { names, table, notes, topics, .. } = comparison;
    Ok(Seen {
        outcome,
        from: Beginning::Time(duration(rows.age)),
        to: table.wal_end(),
        lasted: begun.elapsed(),
        notes: notes.into_iter().collect(),
        topics: topics.len(),
        names,
        tables: table.tables(),
    })
}

struct Comparison<'a> {
    request: &'a VerifyRequest,
    reader: &'a OpenReader<'a>,
    stop: &'a Arc<AtomicBool>,
    questions: Questions,
    table: TableRows,
    tables: BTreeMap<u32, String>,
    mapping: Mapping,
    names: TopicNumbers,
    /// The topics of all rows.
    topics: BTreeSet<String>,
    /// The time from which records are read, in milliseconds since 1970. `None`: their times are those of a column, so all are read.
    from_millis: Option<i64>,
    /// Whether the judged slot has confirmed each row. `None`: it was not asked yet.
    is_confirmed: Option<bool>,
    /// The hashes of tables and ids of dead letters.
    dead_letters: Fingerprints,
    /// The time of the oldest row with a record.
    oldest: Option<i64>,
    /// The rows of the passes so far.
    compared: u64,
    /// The topics that were not read as they ought to be, each with the reason.
    unread: BTreeMap<String, String>,
    notes: BTreeSet<String>,
    progress: ProgressBar,
}

/// A part of the rows, and what was read for it.
struct Pass {
    rows: RowSet,
    /// Which rows: those whose hash of the id has this remainder, of so many.
    part: u64,
    parts: u64,
    counts: Counts,
    faults: Faults,
    /// The reasons for which rows were not judged, with their numbers.
    reasons: BTreeMap<String, u64>,
    /// The time of the newest row that was not judged because no row that is as old has a record.
    too_old: Option<i64>,
    /// By the number of a row: a record with its id. Those that may be shown.
    candidates: HashMap<usize, (RecordAt, Box<OwnedRecord>)>,
    /// By the number of a row: where its record lies, and what differs. Those that may be shown.
    misplaced: HashMap<usize, (RecordAt, Misplaced)>,
    /// Topics whose end could not be read in time.
    unread: BTreeMap<String, String>,
}

/// The verdicts on a part of the rows.
struct Judged {
    counts: Counts,
    faults: Faults,
    reasons: BTreeMap<String, u64>,
    too_old: Option<i64>,
}

impl Judged {
    /// Whether a row counts as too old, although a row that is as old has its record.
    fn is_outdated(&self, oldest: Option<i64>) -> bool {
        self.too_old.zip(oldest).is_some_and(|(too_old, oldest)| too_old >= oldest)
    }
}

impl Pass {
    const fn has(&self, id: u64) -> bool {
        id % self.parts == self.part
    }
}

impl<'a> Comparison<'a> {
    fn open(
        request: &'a VerifyRequest,
        rows: &TableWindow,
        reader: &'a OpenReader<'a>,
        stop: &'a Arc<AtomicBool>,
    ) -> Result<Self, CommandError> {
        let run = &request.run;
        let mut run_here = run.clone();
        run_here.source.application_name.get_or_insert_with(|| format!("walrelay/verify/{}", run.slot));
        let mut questions = Questions { source: run_here.source.clone(), connection: None };
        if questions.ask(|connection| server::slot(connection, &run.slot))?.is_none() {
            return Err(RunError::no_slot(&run.slot, false).into());
        }
        let has_own_times = matches!(run.mapping.timestamp, Timestamp::Column(_)) && run.mapping.connect.is_none();
        let tracks = questions.ask(|connection| server::setting(connection, "track_commit_timestamp"))?;
        let tracks = tracks.as_deref() == Some("on");
        let table = TableRows::open(&run_here, stop, |connection, table, now| {
            let age = age(connection, table, rows, tracks)?;
            let limit = format!("({now} - interval '{} ms')", rows.age.as_millis());
            let asked = rows.condition.iter().map(|condition| format!(" AND (\n{condition}\n)"));
            let condition = age.since(&limit) + &asked.collect::<String>();
            // A record's time may be that of a column. It is the commit's only where that column has none, which no table has.
            let micros = if has_own_times { "-1000".to_owned() } else { format!("COALESCE({}, 0)", age.micros()) };
            Ok(WantedRows { condition, micros })
        })?;
        let from = i64::try_from((rows.age + SLACK).as_millis()).unwrap_or(i64::MAX);
        let from_millis = (!has_own_times).then(|| table.now_millis().saturating_sub(from));
        // Where it is not compared, the time of a row's record is the row's age.
        let timestamp = if has_own_times { run.mapping.timestamp.clone() } else { Timestamp::Commit };
        let mapping = Mapping { on_update: OnUpdate::Skip, position_header: false, timestamp, ..run.mapping.clone() };
        let mut notes = BTreeSet::from(["the order of records is not judged: a table does not have it".to_owned()]);
        if !run.mapping.message_prefixes.is_empty() {
            notes.insert("logical messages are not judged: they are in no table".to_owned());
        }
        if compares_time(&run.mapping) && !has_own_times {
            notes.insert("the time of records is not compared: it is the commit's, which is in no table".to_owned());
        }
        Ok(Self {
            request,
            reader,
            stop,
            questions,
            tables: table.tables(),
            table,
            mapping,
            names: TopicNumbers::default(),
            topics: BTreeSet::new(),
            from_millis,
            is_confirmed: None,
            dead_letters: Fingerprints::default(),
            oldest: None,
            compared: 0,
            unread: BTreeMap::new(),
            notes,
            progress: ProgressBar::new("comparing", 0),
        })
    }

    fn run(&mut self) -> Result<Outcome, CommandError> {
        let total = self.table.count(self.stop)?;
        let most = (self.request.memory / ROW_BYTES).max(1);
        let parts = total.div_ceil(most).max(1);
        tracing::info!(
            rows = total,
            passes = parts,
            up_to = %self.table.wal_end(),
            "comparing the rows of the table with records; vacuum keeps rows that were deleted meanwhile"
        );
        let mut passes = Vec::new();
        for part in 0..parts {
            let judged = self.pass(part, parts, total)?;
            self.compared += judged.counts.rows;
            passes.push(judged);
        }
        // A later pass may have found an older row with its record.
        for (part, judged) in (0..).zip(&mut passes) {
            if judged.is_outdated(self.oldest) {
                *judged = self.pass(part, parts, total)?;
            }
        }
        let (mut outcome, mut faults) = (Outcome::default(), Faults::new(self.request.show));
        for judged in passes {
            outcome.counts += judged.counts;
            faults.append(judged.faults);
            for (reason, count) in judged.reasons {
                *outcome.reasons.entry(reason).or_default() += count;
            }
        }
        let unread = std::mem::take(&mut self.unread);
        if self.is_once() {
            outcome.topics = unread;
        } else {
            // A record that repeats is all that it may have.
            let note = |(topic, why)| format!("topic {topic} was not read to its end: {why}");
            self.notes.extend(unread.into_iter().map(note));
        }
        Ok(Outcome { faults: faults.shown(), ..outcome })
    }

    fn pass(&mut self, part: u64, parts: u64, total: u64) -> Result<Judged, CommandError> {
        let room = usize::try_from(total / parts + total / parts / 50 + 64).unwrap_or_default();
        let run = &self.request.run;
        let mut pass = Pass {
            rows: RowSet::new(room, self.from_millis.is_none() && compares_time(&run.mapping)),
            part,
            parts,
            counts: Counts::default(),
            faults: Faults::new(self.request.show),
            reasons: BTreeMap::new(),
            too_old: None,
            candidates: HashMap::new(),
            misplaced: HashMap::new(),
            unread: BTreeMap::new(),
        };
        let mut records = Records::new(run, &self.names, true);
        let mut numbers = BTreeSet::new();
        self.read_rows(false, &mut |row| {
            numbers.insert(row.topic);
            if pass.has(row.hashes.id) {
                pass.rows.push(&row);
            }
        })?;
        pass.rows.sort();
        pass.counts.rows = pass.rows.len() as u64;
        let dead_letter_topic = run.bad_rows.dead_letter_topic.clone();
        self.topics.extend(numbers.into_iter().map(|number| self.names.name(number)));
        self.topics.remove(&dead_letter_topic);
        let mut topics = self.topics.clone();
        topics.insert(dead_letter_topic.clone());
        let mut reader = (self.reader)()?;
        let firsts = self.follow(reader.as_mut(), &topics)?;
        self.read_on(reader.as_mut(), &topics, &mut pass, &mut records)?;
        if pass.rows.open() > 0 {
            self.wait_for_slot()?;
            // A topic may have been created meanwhile.
            let ends = reader.ends(None, &topics).map_err(CommandError::records_unreadable)?;
            for (topic, ends) in ends.iter().filter(|(topic, _)| !firsts.contains_key(*topic)) {
                reader.follow(topic, &vec![Some(0); ends.len()]);
            }
            self.read_on(reader.as_mut(), &topics, &mut pass, &mut records)?;
        }
        let open = self.open_topics(&pass);
        if !open.is_empty() {
            self.read_back(&open, &firsts, &mut pass, &mut records)?;
        }
        self.oldest = self.oldest.into_iter().chain(pass.rows.oldest_found()).min();
        // A topic may have been created again while it was read.
        reader.ends(None, &topics).map_err(CommandError::records_unreadable)?;
        let Pass { counts, faults, .. } = &mut pass;
        faults
            .withdraw(|topic| reader.ended(&self.names.name(topic)).is_some(), |_, _, count| counts.repeated -= count);
        let ended = self.topics.iter().filter_map(|topic| Some((topic.clone(), reader.ended(topic)?)));
        self.unread.extend(ended);
        if pass.rows.open() > 0 || pass.counts.altered > 0 {
            // Each question about a topic takes time, so only those are asked about whose rows are to be explained.
            let mut asked = self.open_topics(&pass);
            asked.insert(dead_letter_topic);
            let explained = Explained::find(self, reader, &asked, &pass)?;
            self.name(&mut pass, &explained)?;
            count_unnamed(&mut pass);
        }
        pass.unread.remove(&run.bad_rows.dead_letter_topic);
        self.unread.extend(pass.unread);
        self.notes.extend(records.notes());
        let Pass { counts, faults, reasons, too_old, .. } = pass;
        Ok(Judged { counts, faults, reasons, too_old })
    }

    /// The topics of rows without a record, bad ones apart.
    fn open_topics(&self, pass: &Pass) -> BTreeSet<String> {
        pass.rows.open_topics().into_iter().map(|number| self.names.name(number)).collect()
    }

    /// Gives `each` the records of all rows, made by the code of `run`.
    fn read_rows(&mut self, with_copies: bool, each: &mut dyn FnMut(Expected)) -> Result<(), CommandError> {
        let run = &self.request.run;
        let mut outbox =
            Outbox::new(self.mapping.clone(), run.tables.clone())?.with_patterns(run.table_patterns.clone());
        let mut connection = Connection::open(&self.questions.source, Purpose::Control)?;
        supervise::read_tables(&mut connection, &run::target(run), &mut outbox)?;
        drop(connection);
        let (sender, receiver) = rows(self.request.memory / UNDER_WAY);
        let dead_letter_topic = run.bad_rows.dead_letter_topic.clone();
        let with_copies = Arc::new(AtomicBool::new(with_copies));
        let collector = Collector::new(sender, &self.names, run, true, &with_copies);
        let metrics = Arc::new(Metrics::new(&run.slot, &run.publication, Instant::now()));
        let limits =
            relay::Limits { disconnect_after: Duration::MAX, coalesce: Duration::ZERO, ..run.limits.of_relay() };
        let mut relay = Relay::new(outbox, collector, SystemClock, metrics, Arc::clone(self.stop), limits)
            .with_bad_rows(bad_rows(dead_letter_topic));
        let mut reading = self.table.read();
        let mut count = 0;
        let (progress, total) = (&mut self.progress, self.compared);
        let joined = thread::scope(|scope| {
            let thread = scope.spawn(move || {
                relay.acquired(Reading::first_lsn());
                let ended = relay.stream(&mut reading, None);
                (ended, reading.is_done())
            });
            while let Some(rows) = receiver.wait() {
                count += rows.len() as u64;
                progress.note(&format!("{} rows read, {} compared before", number(count), number(total)));
                rows.into_iter().for_each(&mut *each);
            }
            thread.join()
        });
        match joined.map_err(|_| CommandError::vanished())? {
            (StreamEnd::Disconnected(pg::Error::Ended), true) => Ok(()),
            (StreamEnd::Disconnected(error), _) => Err(CommandError::window_broken(&supervise::chain(&error))),
            (StreamEnd::Stopped, _) => Err(CommandError::interrupted()),
            (StreamEnd::Unmappable(error), _) => Err(RunError::from(error).into()),
            (other, _) => Err(CommandError::window_broken(&format!("{other:?}"))),
        }
    }

    /// Begins to read the topics. Returns the offsets from which they are read.
    fn follow(&self, reader: &mut dyn RecordReader, topics: &BTreeSet<String>) -> Result<TopicOffsets, CommandError> {
        let firsts = match self.from_millis {
            Some(millis) => reader.offsets_at(millis, topics),
            None => reader.starts(topics),
        };
        let firsts = firsts.map_err(CommandError::records_unreadable)?;
        for (topic, offsets) in &firsts {
            reader.follow(topic, offsets);
        }
        Ok(firsts)
    }

    /// Reads the topics to the ends that they have now.
    fn read_on(
        &mut self,
        reader: &mut dyn RecordReader,
        topics: &BTreeSet<String>,
        pass: &mut Pass,
        records: &mut Records,
    ) -> Result<(), CommandError> {
        let ends = reader.ends(None, topics).map_err(CommandError::records_unreadable)?;
        let show = self.request.show;
        self.read_to(reader, &ends, pass, records, &mut |comparison, pass, taken| match taken {
            Taken::DeadLetter(said) => {
                comparison.dead_letters.insert(row_hash(said.table, said.id.unwrap_or_default()));
            }
            Taken::Record(found, hashes, record) if pass.has(hashes.id) => {
                let how = pass.rows.found(&found, hashes);
                count(pass, show, found.at, how, &record);
                if how == Match::Repeated && comparison.is_once() {
                    let verdict = Verdict::Repeated;
                    let id = super::comparison::id_of(&record).unwrap_or_default().into();
                    let why = "the row's record was there before".to_owned();
                    let topic = found.at.topic;
                    let fault = Fault { verdict, position: None, source: None, id, topic, at: Some(found.at), why };
                    pass.faults.add(fault);
                }
            }
            Taken::Record(..) => {}
        })
    }

    /// Reads what lies in front of the records that were read, for rows that have none. Records that are no such row's do not count.
    fn read_back(
        &mut self,
        topics: &BTreeSet<String>,
        firsts: &TopicOffsets,
        pass: &mut Pass,
        records: &mut Records,
    ) -> Result<(), CommandError> {
        let mut reader = (self.reader)()?;
        let begins = reader.starts(topics).map_err(CommandError::records_unreadable)?;
        let mut ends = TopicOffsets::new();
        for topic in topics {
            let (Some(begins), Some(firsts)) = (begins.get(topic), firsts.get(topic)) else { continue };
            if begins != firsts {
                reader.follow(topic, begins);
                ends.insert(topic.clone(), firsts.clone());
            }
        }
        if ends.is_empty() {
            return Ok(());
        }
        let numbers: HashMap<u32, &Vec<Option<i64>>> =
            ends.iter().map(|(topic, ends)| (self.names.number(topic), ends)).collect();
        let show = self.request.show;
        self.read_to(reader.as_mut(), &ends, pass, records, &mut |_, pass, taken| {
            let Taken::Record(found, hashes, record) = taken else { return };
            let end = numbers.get(&found.at.topic).and_then(|ends| ends.get(usize::try_from(found.at.partition).ok()?));
            let is_before = end.copied().flatten().is_some_and(|end| found.at.offset < end);
            if is_before && pass.has(hashes.id) && pass.rows.lacks(hashes) {
                let how = pass.rows.found(&found, hashes);
                if !matches!(how, Match::Repeated | Match::Other) {
                    count(pass, show, found.at, how, &record);
                }
            }
        })
    }

    fn read_to(
        &mut self,
        reader: &mut dyn RecordReader,
        ends: &TopicOffsets,
        pass: &mut Pass,
        records: &mut Records,
        each: &mut dyn FnMut(&mut Self, &mut Pass, Taken<'_>),
    ) -> Result<(), CommandError> {
        let (mut advance, mut read) = (Advance::begin(), 0);
        loop {
            if self.stop.load(Ordering::Relaxed) {
                return Err(CommandError::interrupted());
            }
            let mut take = |record: &ReadRecord<'_>| records.take(record, |taken| each(self, pass, taken));
            read += reader.read(SLICE, &mut take).map_err(CommandError::records_unreadable)? as u64;
            let open = pass.rows.len() as u64 - pass.counts.right.min(pass.rows.len() as u64);
            self.progress.note(&format!("{} records read, {} rows open", number(read), number(open)));
            let positions = reader.positions().map_err(CommandError::records_unreadable)?;
            let behind = behind(&positions, ends);
            if behind.is_empty() {
                return Ok(());
            }
            if advance.is_over(&behind, Lsn::new(0), self.request.wait.max(LOOK_EVERY)) {
                pass.unread.extend(held_back(&behind));
                return Ok(());
            }
        }
    }

    /// Waits until the judged slot has confirmed each row.
    fn wait_for_slot(&mut self) -> Result<(), CommandError> {
        if self.is_confirmed.is_some() {
            return Ok(());
        }
        let (begun, slot, end) = (Instant::now(), &self.request.run.slot, self.table.wal_end());
        let is_confirmed = loop {
            let found = self.questions.ask(|connection| server::slot(connection, slot))?;
            let confirmed = found.and_then(|slot| slot.confirmed_flush_lsn).unwrap_or_default();
            if confirmed >= end || begun.elapsed() >= self.request.wait {
                break confirmed >= end;
            }
            if self.stop.load(Ordering::Relaxed) {
                return Err(CommandError::interrupted());
            }
            self.progress.note(&format!("slot {slot} is at {confirmed}, {end} is awaited"));
            thread::sleep(LOOK_EVERY);
        };
        self.is_confirmed = Some(is_confirmed);
        Ok(())
    }

    /// Reads the rows again, and names those that are not right.
    fn name(&mut self, pass: &mut Pass, explained: &Explained) -> Result<(), CommandError> {
        // What is asked of `self` meanwhile.
        let judge = Judge {
            is_confirmed: self.is_confirmed.unwrap_or(true),
            up_to: self.table.wal_end(),
            oldest: self.oldest,
            request: self.request,
            tables: self.tables.clone(),
            dead_letters: std::mem::take(&mut self.dead_letters),
            names: self.names.clone(),
        };
        let read = self.read_rows(true, &mut |row| {
            if !pass.has(row.hashes.id) {
                return;
            }
            let Some((at, state)) = pass.rows.state_of(&row) else { return };
            if let Some(fault) = judge.verdict(&row, at, state, pass, explained) {
                pass.faults.add(fault);
            }
        });
        self.dead_letters = judge.dead_letters;
        read
    }

    const fn is_once(&self) -> bool {
        matches!(self.request.run.delivery, crate::sink::destination::Delivery::ExactlyOnce { .. })
    }
}

/// Counts rows without a record that the second look did not give again, so that nobody has judged them.
fn count_unnamed(pass: &mut Pass) {
    let unnamed = pass.rows.unnamed() as u64;
    if unnamed > 0 {
        pass.counts.not_judged += unnamed;
        *pass.reasons.entry(NOT_AGAIN.to_owned()).or_default() += unnamed;
    }
}

/// Counts what a record is.
fn count(pass: &mut Pass, show: usize, at: RecordAt, how: Match, record: &Record<'_>) {
    match how {
        Match::Right(number) | Match::Misplaced(number, _) => {
            // Another record had only the id.
            pass.counts.other += u64::from(pass.candidates.remove(&number).is_some());
            if let Match::Misplaced(_, difference) = how {
                pass.counts.altered += 1;
                if pass.misplaced.len() < show {
                    pass.misplaced.insert(number, (at, difference));
                }
            } else {
                pass.counts.right += 1;
            }
        }
        Match::Candidate(number) => {
            if pass.candidates.len() < show {
                pass.candidates.insert(number, (at, Box::new(OwnedRecord::of(record))));
            }
        }
        Match::Repeated => pass.counts.repeated += 1,
        Match::Other => pass.counts.other += 1,
    }
}

/// Reasons for which rows have no record.
struct Explained {
    skips: Skips,
    /// By topic. A topic without a reason has none here.
    topics: BTreeMap<String, String>,
    /// Why the dead letters may not have been read to their end.
    dead_letters: Option<String>,
}

impl Explained {
    fn find(
        of: &mut Comparison<'_>,
        mut reader: Box<dyn RecordReader>,
        topics: &BTreeSet<String>,
        pass: &Pass,
    ) -> Result<Self, CommandError> {
        let run = &of.request.run;
        let skips = of.questions.ask(|connection| Skips::read(connection, run))?;
        let begins = reader.starts(topics).map_err(CommandError::records_unreadable)?;
        let kept_from = match of.from_millis {
            Some(millis) => Some(reader.offsets_at(millis, topics).map_err(CommandError::records_unreadable)?),
            None => None,
        };
        let mut found = BTreeMap::new();
        for topic in topics {
            let why = match begins.get(topic) {
                None => Some(reader.ended(topic).unwrap_or_else(|| "it does not exist".to_owned())),
                Some(begins) => {
                    let kept_from = kept_from.as_ref().and_then(|all| all.get(topic));
                    pass.unread
                        .get(topic)
                        .cloned()
                        .or_else(|| reader.unread(topic).into_iter().next())
                        .or_else(|| lost_front(begins, kept_from.map(Vec::as_slice)))
                }
            };
            found.extend(why.map(|why| (topic.clone(), why)));
        }
        let topic = &run.bad_rows.dead_letter_topic;
        let unread = reader.ended(topic).or_else(|| pass.unread.get(topic).cloned());
        Ok(Self { skips, topics: found, dead_letters: unread.map(|why| unread_records(topic, &why)) })
    }
}

/// Why records of rows may have been deleted from the front of a topic. `kept_from`: the offsets of the time in front of which no row is. A
/// record in front of that which is still there says that none behind it was deleted.
fn lost_front(begins: &[Option<i64>], kept_from: Option<&[Option<i64>]>) -> Option<String> {
    let lost = begins.iter().enumerate().find(|(partition, begin)| {
        let kept_from = kept_from.and_then(|all| all.get(*partition).copied().flatten());
        begin.is_some_and(|begin| begin > 0 && kept_from.is_none_or(|kept_from| kept_from <= begin))
    });
    let (partition, begin) = lost?;
    let begin = begin.unwrap_or_default();
    Some(format!(
        "partition {partition} begins at offset {begin}: retention or kafka-delete-records.sh may have deleted records of these rows"
    ))
}

/// Decides on rows that are not right.
struct Judge<'a> {
    request: &'a VerifyRequest,
    /// Whether the slot has confirmed each row.
    is_confirmed: bool,
    up_to: Lsn,
    oldest: Option<i64>,
    tables: BTreeMap<u32, String>,
    dead_letters: Fingerprints,
    names: TopicNumbers,
}

impl Judge<'_> {
    /// Counts a row that comes a second time. Returns its fault, if it is wrong.
    fn verdict(
        &self,
        row: &Expected,
        number: usize,
        state: RowState,
        pass: &mut Pass,
        explained: &Explained,
    ) -> Option<Fault> {
        let Pass { counts, reasons, too_old, candidates, misplaced, .. } = pass;
        let candidate = candidates.get(&number);
        if state == RowState::Misplaced {
            let (at, difference) = misplaced.get(&number)?;
            let why = match difference {
                Misplaced::Partition(found, expected) => format!("partition: {found}, expected {expected}"),
                Misplaced::Time(found, expected) => format!("time: {found} ms, expected {expected} ms"),
            };
            return Some(fault(Verdict::Altered, row, Some(*at), why));
        }
        if state == RowState::Right {
            return None;
        }
        if self.has_dead_letter(row) {
            counts.dead_lettered += 1;
            return None;
        }
        let is_candidate = state == RowState::Candidate;
        match self.explanation(row, is_candidate, explained, too_old) {
            Explanation::Skipped => {
                counts.skipped += 1;
                None
            }
            Explanation::NotJudged(reason) => {
                counts.not_judged += 1;
                *reasons.entry(reason).or_default() += 1;
                None
            }
            Explanation::Unexplained if is_candidate => {
                counts.altered += 1;
                let why = match candidate {
                    Some((_, found)) => self.difference(row, found),
                    None => "a record has its id and other bytes".to_owned(),
                };
                let why = format!("{why} (the row may have been updated since)");
                Some(fault(Verdict::Altered, row, candidate.map(|(at, _)| *at), why))
            }
            Explanation::Unexplained => {
                counts.missing += 1;
                let why = if row.is_bad { "no dead letter, and not noted as skipped" } else { "no record" };
                Some(fault(Verdict::Missing, row, None, why.to_owned()))
            }
        }
    }

    /// `too_old`: becomes the row's time if it is later, and the row counts as too old.
    fn explanation(
        &self,
        row: &Expected,
        is_candidate: bool,
        explained: &Explained,
        too_old: &mut Option<i64>,
    ) -> Explanation {
        let slot = &self.request.run.slot;
        if let Some(explanation) = explained.skips.explanation(row, is_candidate) {
            return explanation;
        }
        if !self.is_confirmed {
            return Explanation::NotJudged(format!(
                "slot \"{slot}\" has not confirmed {} after {}: its relay is behind, or does not run",
                self.up_to,
                duration(self.request.wait)
            ));
        }
        let topic = self.names.name(row.topic);
        if let Some(why) = explained.topics.get(&topic) {
            return Explanation::NotJudged(unread_records(&topic, why));
        }
        // Any row may have a dead letter instead.
        if let Some(why) = &explained.dead_letters {
            return Explanation::NotJudged(why.clone());
        }
        let time = row.time.unwrap_or_default();
        if !is_candidate && time <= 0 {
            return Explanation::NotJudged(
                "they have no time and no record: they may be from before the slot, and not backfilled".to_owned(),
            );
        }
        if !is_candidate && self.oldest.is_none_or(|oldest| time < oldest) {
            *too_old = (*too_old).max(Some(time));
            return Explanation::NotJudged(
                "no row that is as old has a record: they may be from before the slot, and not backfilled".to_owned(),
            );
        }
        Explanation::Unexplained
    }

    fn has_dead_letter(&self, row: &Expected) -> bool {
        let RowSource::Table(relation) = row.source else { return false };
        let table = self.tables.get(&relation).map_or("", String::as_str);
        self.dead_letters.contains(row_hash(table, &row.id))
    }

    fn difference(&self, row: &Expected, found: &OwnedRecord) -> String {
        let mut room = [HeaderRoom::default(), HeaderRoom::default()];
        let [one, other] = &mut room;
        let Some(expected) = &row.copy else { return "a record has its id and other bytes".to_owned() };
        let with_values = self.request.show_values;
        expected
            .with_record(one, |expected| found.with_record(other, |found| differences(expected, found, with_values)))
            .join("; ")
    }
}

fn fault(verdict: Verdict, row: &Expected, at: Option<RecordAt>, why: String) -> Fault {
    Fault { verdict, position: None, source: Some(row.source), id: row.id.clone(), topic: row.topic, at, why }
}

/// The hash of a row's table and id.
fn row_hash(table: &str, id: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(table.as_bytes());
    hasher.write_u8(0xFF);
    hasher.write(id);
    hasher.finish()
}

/// How old a row of this table is.
fn age(connection: &mut Connection, table: &TableName, rows: &TableWindow, tracks: bool) -> Result<Age, CommandError> {
    let shape = shape(connection, &table.schema, &table.name)?.unwrap_or_default();
    Age::find(rows.age_column.as_deref(), table, &shape, tracks).map_err(|error| CommandError {
        remedy: Some("walrelay verify --since 2h --age-column COLUMN".into()),
        ..error
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_is_made_again_if_a_later_one_shows_that_its_rows_were_not_too_old() {
        let check = |too_old, oldest, expected| {
            let (counts, faults, reasons) = (Counts::default(), Faults::default(), BTreeMap::new());
            assert_eq!(Judged { counts, faults, reasons, too_old }.is_outdated(oldest), expected);
        };
        check(Some(5), Some(4), true);
        check(Some(5), Some(5), true);
        check(Some(5), Some(6), false);
        check(None, Some(4), false);
        check(Some(5), None, false);
    }

    #[test]
    fn a_record_that_is_older_than_the_rows_and_still_there_says_that_theirs_were_not_deleted() {
        let check = |begins: &[Option<i64>], kept_from: Option<&[Option<i64>]>, is_lost: bool| {
            assert_eq!(lost_front(begins, kept_from).is_some(), is_lost, "{begins:?} {kept_from:?}");
        };
        check(&[Some(0), Some(0)], None, false);
        check(&[Some(0), Some(7)], None, true);
        check(&[Some(0), Some(7)], Some(&[Some(0), Some(7)]), true);
        check(&[Some(0), Some(7)], Some(&[Some(0), Some(8)]), false);
        check(&[Some(7), Some(7)], Some(&[Some(8), Some(7)]), true);
        check(&[Some(7)], Some(&[None]), true);
    }
}
