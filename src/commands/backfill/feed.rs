//! Rows of tables, as if a slot sent them: the relay's loop publishes them with everything that it does for a slot's.
//!
//! ```text
//!  query ─► rows ─► Relation, Begin, Insert, Commit ─► buffer ─► the loop ─► sink
//!                        number n: final_lsn n, end_lsn n + 1
//!  note ◄─ key of the last row before which all are acknowledged ◄─ status update
//! ```
//!
//! In: parts with their pages, and from where. Out: frames, one transaction for each row, and the progress to be written down. The number
//! of a row, counted over all tables and runs, stands for a position in the WAL: it is below every position of the slot.
//! Knows no destination.
//!
//! Invariants: the key of each row is kept until the row is acknowledged, so that reading can be taken up again exactly behind what is;
//! rows are taken from the server only as the loop asks for them. After a failure of the connection reading resumes behind the last row
//! that was read, with another connection.

use super::keeper::Keeper;
use super::parts::{Key, PageSettings, Paging, Part, PartCursor, Start};
use super::reader::RowReader;
use crate::commands::error::CommandError;
use crate::lsn::Lsn;
use crate::pg::frame::ReadBuffer;
use crate::pg::replication::{StandbyStatusUpdate, push_xlog_data};
use crate::pg::rows::{NextRow, Values};
use crate::pg::{self, Recovery, Upstream};
use crate::pgoutput::{PgTime, encode};
use crate::relay::{Clock as _, SystemClock};
use crate::supervise::chain;
use crate::wire::DecodeError;
use std::collections::VecDeque;
use std::io::Read as _;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

/// So much is given to the loop at once, in bytes.
pub(super) const AT_ONCE: usize = 128 * 1024;

/// How long to wait before another connection is tried.
const RETRY: Duration = Duration::from_secs(1);

/// The longest sleep while nothing can be read.
pub(super) const NAP: Duration = Duration::from_millis(20);

/// How long the rest of a page may keep coming that nobody wants any more.
const REST: Duration = Duration::from_secs(30);

/// Every row on its way.
#[derive(Debug)]
struct Sent {
    number: u64,
    part: usize,
    key: Key,
}

/// The state of reading.
#[derive(Debug)]
enum State {
    /// The next page is to be asked for.
    Between(PartCursor),
    /// A page's rows are coming.
    Page {
        part: usize,
        /// Where it began.
        start: Start,
        /// Where the next one begins; `None`: behind the last row, if this one is full, else at the rest of the part.
        next: Option<Start>,
        rows: u32,
        /// Behind the last row that came.
        last: Option<Key>,
    },
    /// There is nothing more.
    Ended,
}

/// The rows that the reader fetches.
pub(super) struct Feed {
    parts: Vec<Part>,
    asked: PageSettings,
    reader: RowReader,
    buffer: ReadBuffer,
    out: Vec<u8>,
    /// Room for one row.
    row: Vec<u8>,
    state: State,
    /// The part that was announced last.
    announced: Option<usize>,
    /// The number of the next row.
    next: u64,
    sent: VecDeque<Sent>,
    /// The position up to which everything is acknowledged.
    confirmed: PartCursor,
    keeper: Keeper,
    pace: Option<Pace>,
    /// No connection is tried before.
    retry_at: Option<Instant>,
    /// That none can be had was said.
    failing: bool,
    /// Why it ended, where that is not the server's affair.
    failure: Option<CommandError>,
}

/// So many rows a second.
#[derive(Debug)]
struct Pace {
    rate: NonZeroU32,
    since: Instant,
    rows: u64,
}

impl Pace {
    /// How long to wait before the next row.
    fn wait(&mut self, now: Instant) -> Duration {
        let due = Duration::from_nanos(self.rows.saturating_mul(1_000_000_000) / u64::from(self.rate.get()));
        let elapsed = now.saturating_duration_since(self.since);
        if elapsed > due + Duration::from_secs(1) {
            // What was not used stays so: no burst after a pause.
            (self.since, self.rows) = (now, 0);
        }
        due.saturating_sub(elapsed)
    }
}

impl Feed {
    /// All rows of `parts`; `number`: of the first one.
    pub(super) fn new(
        parts: Vec<Part>,
        asked: PageSettings,
        reader: RowReader,
        keeper: Keeper,
        number: u64,
        rate: Option<NonZeroU32>,
    ) -> Self {
        let pace = rate.map(|rate| Pace { rate, since: Instant::now(), rows: 0 });
        let first = PartCursor { part: 0, start: begin_of(&parts, 0) };
        Self {
            parts,
            asked,
            reader,
            // Frames come from rows that were below the limit.
            buffer: ReadBuffer::new(usize::MAX),
            out: Vec::with_capacity(2 * AT_ONCE),
            row: Vec::new(),
            state: State::Between(first.clone()),
            announced: None,
            next: number,
            sent: VecDeque::new(),
            confirmed: first,
            keeper,
            pace,
            retry_at: None,
            failing: false,
            failure: None,
        }
    }

    /// The position before which everything is acknowledged at first: never `0/0`.
    pub(super) fn first_lsn(&self) -> Lsn {
        Lsn::new(self.next)
    }

    /// Whether all rows are acknowledged.
    pub(super) fn is_done(&self) -> bool {
        self.confirmed.part >= self.parts.len()
    }

    /// Why it ended, where that is not the server's affair.
    pub(super) fn take_failure(&mut self) -> Option<CommandError> {
        self.failure.take()
    }

    /// Nothing that is not acknowledged counts any more: reading begins again behind what is.
    pub(super) fn restart(&mut self, flush_lsn: Lsn) {
        self.acknowledged(flush_lsn);
        self.reader.finish(REST);
        self.buffer.clear();
        self.out.clear();
        self.sent.clear();
        self.announced = None;
        self.next = flush_lsn.bytes();
        self.state = State::Between(self.confirmed.clone());
    }

    /// Everything before `flush_lsn` is.
    pub(super) fn acknowledged(&mut self, flush_lsn: Lsn) {
        while let Some(front) = self.sent.pop_front_if(|front| front.number < flush_lsn.bytes()) {
            self.keeper.row(&self.parts, front.part);
            self.confirmed = PartCursor { part: front.part, start: Start::After(front.key) };
        }
        self.end_if_all();
        self.keeper.reached(&self.parts, &self.confirmed);
    }

    /// Nothing is read any more, and nothing is on its way.
    fn end_if_all(&mut self) {
        if matches!(self.state, State::Ended) && self.sent.is_empty() {
            self.confirmed = PartCursor { part: self.parts.len(), start: Start::First };
        }
    }

    /// Ends the feed, and returns its progress.
    pub(super) fn into_keeper(self) -> Keeper {
        self.keeper
    }

    /// Asks for the next page, if there is one.
    fn begin_page(&mut self, cursor: PartCursor) -> Result<(), CommandError> {
        let PartCursor { mut part, mut start } = cursor;
        loop {
            let Some(of) = self.parts.get(part) else {
                self.state = State::Ended;
                self.end_if_all();
                return Ok(());
            };
            if let Some(page) = of.page(&self.asked, &start) {
                self.reader.rows()?.begin(&page.sql)?;
                self.state = State::Page { part, start, next: page.next, rows: 0, last: None };
                return Ok(());
            }
            self.reader.check(of)?;
            part += 1;
            start = begin_of(&self.parts, part);
        }
    }

    /// Takes the next row, or gets nearer to it; `false`: there is nothing now.
    fn pull(&mut self, patience: Duration) -> Result<bool, CommandError> {
        let State::Page { part, rows, last, .. } = &mut self.state else {
            let State::Between(cursor) = &self.state else { return Ok(false) };
            let cursor = cursor.clone();
            self.begin_page(cursor)?;
            return Ok(true);
        };
        let Some(of) = self.parts.get(*part) else { return Ok(false) };
        let (out, row, number) = (&mut self.out, &mut self.row, self.next);
        let announce = self.announced != Some(*part);
        let now = SystemClock.wall();
        let reader = self.reader.rows()?;
        let next = reader.next(patience, |values| transaction((out, row), of, values, number, now, announce))?;
        match next {
            NextRow::Nothing => Ok(false),
            NextRow::Row(key) => {
                self.announced = Some(*part);
                self.sent.push_back(Sent { number, part: *part, key: key.clone() });
                *last = Some(key);
                *rows += 1;
                self.next += 1;
                if let Some(pace) = &mut self.pace {
                    pace.rows += 1;
                }
                Ok(true)
            }
            NextRow::End => {
                let cursor = self.behind_page()?;
                self.state = State::Between(cursor);
                Ok(true)
            }
        }
    }

    /// Where the next page begins. Nothing is taken out of the state: the connection may break here, and reading resumes behind the last row.
    fn behind_page(&mut self) -> Result<PartCursor, CommandError> {
        let State::Page { part, start, next, rows, last } = &self.state else {
            return Ok(self.confirmed.clone());
        };
        let part = *part;
        Ok(match (next, last) {
            (Some(start), _) => {
                if let Some(of) = self.parts.get(part) {
                    self.reader.check(of)?;
                }
                PartCursor { part, start: start.clone() }
            }
            (None, Some(key)) if *rows >= self.asked.chunk => PartCursor { part, start: Start::After(key.clone()) },
            (None, _) => {
                let Some(of) = self.parts.get(part) else { return Ok(self.confirmed.clone()) };
                self.reader.check(of)?;
                match of.rest(start) {
                    Some(start) => PartCursor { part, start },
                    None => PartCursor { part: part + 1, start: begin_of(&self.parts, part + 1) },
                }
            }
        })
    }

    /// The connection is gone: reading resumes behind the last row, with another one.
    fn lost(&mut self, error: &pg::Error) {
        if !std::mem::replace(&mut self.failing, true) {
            tracing::warn!(
                error = chain(error),
                retry_every = ?RETRY,
                "Postgres connection failed; nothing is lost; the backfill resumes after the last row that was read"
            );
        }
        self.retry_at = Some(Instant::now() + RETRY);
        self.reader.lost();
        if let State::Page { part, start, last, .. } = &mut self.state {
            let start = last.take().map_or_else(|| start.clone(), Start::After);
            self.state = State::Between(PartCursor { part: *part, start });
        }
    }

    /// Fills `out`, as far as rows come.
    fn fill(&mut self, patience: Duration) -> Result<(), CommandError> {
        let mut patience = patience;
        while self.out.len() < AT_ONCE {
            if let Some(pace) = &mut self.pace {
                let wait = pace.wait(Instant::now());
                if !wait.is_zero() {
                    if self.out.is_empty() {
                        std::thread::sleep(wait.min(patience).min(NAP));
                    }
                    return Ok(());
                }
            }
            if !self.pull(patience)? {
                break;
            }
            if !self.out.is_empty() {
                patience = Duration::ZERO;
            }
        }
        Ok(())
    }
}

impl Upstream for Feed {
    fn buffer(&self) -> &ReadBuffer {
        &self.buffer
    }

    fn buffer_mut(&mut self) -> &mut ReadBuffer {
        &mut self.buffer
    }

    fn read(&mut self, patience: Duration) -> Result<usize, pg::Error> {
        if self.is_done() {
            return Err(pg::Error::Ended);
        }
        self.keeper.tend();
        let waits = self.retry_at.is_some_and(|at| Instant::now() < at);
        if waits || matches!(self.state, State::Ended) {
            std::thread::sleep(patience.min(NAP));
            return Ok(0);
        }
        match self.reader.open(&self.parts).and_then(|()| self.fill(patience)) {
            Ok(()) => {
                self.retry_at = None;
                if std::mem::take(&mut self.failing) {
                    tracing::info!("Postgres connection recovered");
                }
            }
            Err(error) => match error.postgres() {
                Some(error) if error.recovery() == Recovery::Reconnect => self.lost(error),
                Some(_) | None => {
                    self.failure = Some(error);
                    return Err(pg::Error::Ended);
                }
            },
        }
        Ok(hand_over(&mut self.out, &mut self.buffer))
    }

    fn send(&mut self, message: &[u8]) -> Result<(), pg::Error> {
        if let Some(flush_lsn) = StandbyStatusUpdate::flush_lsn_of(message) {
            self.acknowledged(flush_lsn);
        }
        Ok(())
    }
}

/// Where reading of a part begins.
fn begin_of(parts: &[Part], part: usize) -> Start {
    parts.get(part).map_or(Start::First, |part| part.begin.clone())
}

/// The whole of `out` into the buffer; how many bytes.
pub(super) fn hand_over(out: &mut Vec<u8>, buffer: &mut ReadBuffer) -> usize {
    let mut rest = out.as_slice();
    // A slice can always be read, and the room is never empty.
    while let Ok(length @ 1..) = rest.read(buffer.space()) {
        buffer.filled(length);
    }
    let length = out.len();
    out.clear();
    out.shrink_to(2 * AT_ONCE);
    length
}

/// The row as a transaction of its own; its key. Nothing is added to `out` where it is malformed.
pub(super) fn transaction(
    (out, row): (&mut Vec<u8>, &mut Vec<u8>),
    part: &Part,
    values: &mut Values<'_>,
    number: u64,
    now: PgTime,
    announce: bool,
) -> Result<Key, DecodeError> {
    let (begins, ends) = (Lsn::new(number), Lsn::new(number + 1));
    let length = out.len();
    let (columns, relation) = (part.relation.columns.len(), &part.relation);
    if announce {
        push_xlog_data(out, begins, now, |out| encode::relation(out, relation));
    }
    row.clear();
    row.shrink_to(2 * AT_ONCE);
    encode::insert(row, relation.id, columns);
    let read = (0..columns).try_for_each(|_| values.value().map(|value| encode::value(row, value)));
    let rest = read.and_then(|()| {
        let committed = values.value()?.and_then(|text| std::str::from_utf8(text).ok()?.parse().ok());
        let keys = if let Paging::Keys(keys) = &part.paging { keys.len() } else { 1 };
        let text = |value: Option<&[u8]>| value.map(|text| String::from_utf8_lossy(text).into_owned());
        let key = (0..keys).map(|_| values.value().map(text)).collect::<Result<Key, _>>()?;
        Ok((committed.map_or(now, PgTime::from_unix_micros), key))
    });
    let (time, key) = match rest {
        Ok(rest) => rest,
        Err(error) => {
            out.truncate(length);
            return Err(error);
        }
    };
    push_xlog_data(out, begins, now, |out| encode::begin(out, begins, time));
    push_xlog_data(out, begins, now, |out| out.extend_from_slice(row));
    push_xlog_data(out, begins, now, |out| encode::commit(out, begins, ends, time));
    Ok(key)
}
