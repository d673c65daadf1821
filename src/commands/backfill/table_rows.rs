//! [`TableRows`]: the rows of tables under one snapshot, as if a slot sent them, for a command that publishes nothing.
//!
//! In: the settings of a run, which rows. Out: their number, and the rows themselves, as often as asked. Nothing is written, and nothing is
//! noted: a broken connection ends it, since another one would see other rows.
//!
//! Invariant: ACCESS SHARE on the tables comes before the snapshot, and both last as long as the value. A table that was rewritten behind the
//! snapshot would look empty to it.

use super::feed::{AT_ONCE, NAP, hand_over, transaction};
use super::parts::{Paging, Part};
use super::select;
use crate::commands::error::CommandError;
use crate::commands::run::RunRequest;
use crate::commands::setup::notices_our_end;
use crate::lsn::Lsn;
use crate::outbox::TableName;
use crate::pg::frame::ReadBuffer;
use crate::pg::replication::StandbyStatusUpdate;
use crate::pg::rows::{NextRow, Rows};
use crate::pg::{self, Connection, Purpose, identifier};
use crate::relay::{Clock as _, SystemClock};
use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The settings of the session. An error instead of rows that are hidden.
const SESSION: &str = "SET row_security = off; SET default_transaction_read_only = on";

/// How often a long statement looks whether it is to stop.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// How long a lock may take before the log names the tables.
const FIRST_WORD: Duration = Duration::from_secs(2);

/// Which rows of a table are wanted, and their time.
pub(in crate::commands) struct WantedRows {
    /// As SQL, a condition.
    pub(in crate::commands) condition: String,
    /// As SQL, the time of a row in microseconds since 1970, instead of the commit's. Null: the present.
    pub(in crate::commands) micros: String,
}

/// The rows.
pub(in crate::commands) struct TableRows {
    parts: Vec<Part>,
    wanted: Vec<WantedRows>,
    rows: Rows,
    /// The time of the snapshot, in microseconds since 1970.
    now: i64,
    /// The end of the WAL behind each commit that the snapshot sees.
    wal_end: Lsn,
}

impl TableRows {
    /// Locks the tables, and takes the snapshot. `wanted`: is called with each table or partition, and the time of the snapshot as SQL.
    ///
    /// # Errors
    /// A table may not be read, or has changed meanwhile; what `wanted` returns; the connection broke; `stop` became true.
    pub(in crate::commands) fn open(
        run: &RunRequest,
        stop: &AtomicBool,
        mut wanted: impl FnMut(&mut Connection, &TableName, &str) -> Result<WantedRows, CommandError>,
    ) -> Result<Self, CommandError> {
        let mut control = Connection::open(&run.source, Purpose::Control)?;
        let (_, before) = select(&mut control, run, None)?;
        let mut connection = Connection::open(&run.source, Purpose::Control)?;
        notices_our_end(&mut connection)?;
        connection.query(SESSION)?;
        connection.query("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")?;
        let mut rows = Rows::new(connection, run.limits.max_row);
        if !before.is_empty() {
            let names: Vec<String> = before.iter().map(Part::from).collect();
            let lock = format!("LOCK TABLE {} IN ACCESS SHARE MODE", names.join(", "));
            let waited = &|| tracing::warn!(tables = names.join(", "), "waiting for a lock on the tables");
            if let Err(error) = value::<i64>(&mut rows, &lock, stop, waited)? {
                let fix =
                    format!("as the tables' owner: GRANT SELECT ON {} TO the role that does it;", names.join(", "));
                return Err(CommandError::from(error).with_fix("read the tables".to_owned(), fix));
            }
        }
        let mut ask = |sql: &str| value::<String>(&mut rows, sql, stop, &|| {});
        let now = ask("SELECT (extract(epoch FROM pg_catalog.now()) * 1000000)::bigint")??;
        let now = now.and_then(|now| now.parse().ok()).unwrap_or_default();
        // The snapshot is there. A commit that it sees has its record in the WAL, though perhaps not flushed.
        let wal_end = ask("SELECT CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn()
                         ELSE pg_catalog.pg_current_wal_insert_lsn() END")??;
        let wal_end: Lsn = wal_end.and_then(|lsn| lsn.parse().ok()).unwrap_or_default();
        let page = ask("SELECT pg_catalog.current_setting('wal_block_size')")??;
        let page: Option<u64> = page.and_then(|page| page.parse().ok());
        let wal_end = without_page_header(wal_end, page.unwrap_or(WAL_PAGE));
        let (_, parts) = select(&mut control, run, None)?;
        if parts.iter().map(|part| part.oid).ne(before.iter().map(|part| part.oid)) {
            return Err(CommandError::window_broken("tables were added or dropped at the beginning"));
        }
        let time = format!("('epoch'::timestamptz + interval '{now} us')");
        let wanted = parts.iter().map(|part| {
            let WantedRows { condition, micros } = wanted(&mut control, &part.name, &time)?;
            // On lines of its own: it may end with a comment.
            let filter = part.filter.iter().map(|filter| format!(" AND (\n{filter}\n)"));
            Ok(WantedRows { condition: format!("(\n{condition}\n){}", filter.collect::<String>()), micros })
        });
        let wanted = wanted.collect::<Result<_, CommandError>>()?;
        Ok(Self { parts, wanted, rows, now, wal_end })
    }

    /// The end of the WAL behind each commit that the snapshot sees.
    pub(in crate::commands) const fn wal_end(&self) -> Lsn {
        self.wal_end
    }

    /// The time of the snapshot, in milliseconds since 1970, by the server's clock.
    pub(in crate::commands) const fn now_millis(&self) -> i64 {
        self.now.div_euclid(1000)
    }

    /// The names of the tables as which rows are published, by their relations.
    pub(in crate::commands) fn tables(&self) -> BTreeMap<u32, String> {
        let name = |part: &Part| (part.relation.id, format!("{}.{}", part.relation.namespace, part.relation.name));
        self.parts.iter().map(name).collect()
    }

    /// How many rows are wanted.
    ///
    /// # Errors
    /// The server refuses the condition, the connection broke, or `stop` became true.
    pub(in crate::commands) fn count(&mut self, stop: &AtomicBool) -> Result<u64, CommandError> {
        let mut total = 0;
        for (part, wanted) in self.parts.iter().zip(&self.wanted) {
            let sql = format!("SELECT count(*) FROM {} WHERE {}", part.from(), wanted.condition);
            total += value::<u64>(&mut self.rows, &sql, stop, &|| {})??.unwrap_or_default();
        }
        Ok(total)
    }

    /// All rows, from the first one on, for the relay's loop.
    pub(in crate::commands) fn read(&mut self) -> Reading<'_> {
        Reading {
            of: self,
            part: 0,
            is_announced: false,
            next: FIRST,
            flushed: Lsn::new(FIRST),
            buffer: ReadBuffer::new(usize::MAX),
            out: Vec::with_capacity(2 * AT_ONCE),
            row: Vec::new(),
        }
    }
}

/// Runs a statement for as long as it takes, and returns the one value of its one row. `None`: it has none. `waited`: is called once, after
/// [`FIRST_WORD`]. The inner error is that of the statement.
///
/// # Errors
/// `stop` became true.
fn value<T: FromStr>(
    rows: &mut Rows,
    sql: &str,
    stop: &AtomicBool,
    waited: &dyn Fn(),
) -> Result<Result<Option<T>, pg::Error>, CommandError> {
    let mut found = None;
    let mut word = Some(Instant::now() + FIRST_WORD);
    if let Err(error) = rows.begin(sql) {
        return Ok(Err(error));
    }
    while rows.is_running() {
        if stop.load(Ordering::Relaxed) {
            return Err(CommandError::interrupted());
        }
        if word.take_if(|word| Instant::now() >= *word).is_some() {
            waited();
        }
        let next = rows.next(LOOK_EVERY, |values| {
            Ok(values.value()?.and_then(|text| std::str::from_utf8(text).ok()?.parse().ok()))
        });
        match next {
            Ok(NextRow::Row(value)) => found = value,
            Ok(NextRow::Nothing | NextRow::End) => {}
            Err(error) => return Ok(Err(error)),
        }
    }
    Ok(Ok(found))
}

/// The bytes of a page of the WAL, unless the server was built otherwise.
const WAL_PAGE: u64 = 8192;

/// The bytes of the longest header of a page of the WAL (`SizeOfXLogLongPHD`).
const PAGE_HEADER: u64 = 40;

/// The position in front of a page's header. If the WAL ends with a full page, the position for the next record lies behind the header of a
/// page that nobody has written: no slot would confirm it before something else is written.
const fn without_page_header(lsn: Lsn, page: u64) -> Lsn {
    let within = lsn.bytes() % page;
    if within <= PAGE_HEADER { Lsn::new(lsn.bytes() - within) } else { lsn }
}

/// The number of the first row. It stands for a position in the WAL, which is never 0.
const FIRST: u64 = 1;

/// The rows, as frames of a slot's stream: each is a transaction of its own.
pub(in crate::commands) struct Reading<'a> {
    of: &'a mut TableRows,
    /// The part that is read. Beyond the last one: all were read.
    part: usize,
    /// Whether the part's relation was sent.
    is_announced: bool,
    /// The number of the next row.
    next: u64,
    /// Rows in front of this number are acknowledged.
    flushed: Lsn,
    buffer: ReadBuffer,
    out: Vec<u8>,
    /// Room for one row.
    row: Vec<u8>,
}

impl Reading<'_> {
    /// The position before the first row.
    pub(in crate::commands) const fn first_lsn() -> Lsn {
        Lsn::new(FIRST)
    }

    /// Whether all rows were read and acknowledged.
    pub(in crate::commands) fn is_done(&self) -> bool {
        self.part >= self.of.parts.len() && self.flushed.bytes() >= self.next
    }

    /// Takes the next row, or gets nearer to it. Returns whether it did.
    fn pull(&mut self, patience: Duration) -> Result<bool, pg::Error> {
        let Some((part, wanted)) = self.of.parts.get(self.part).zip(self.of.wanted.get(self.part)) else {
            return Ok(false);
        };
        if !self.of.rows.is_running() {
            self.of.rows.begin(&query(part, wanted))?;
            self.is_announced = false;
        }
        let (out, row, number, announces) = (&mut self.out, &mut self.row, self.next, !self.is_announced);
        let now = SystemClock.wall();
        let taken = self.of.rows.next(patience, |values| transaction((out, row), part, values, number, now, announces));
        match taken? {
            NextRow::Nothing => return Ok(false),
            NextRow::Row(_) => {
                self.is_announced = true;
                self.next += 1;
            }
            NextRow::End => self.part += 1,
        }
        Ok(true)
    }
}

impl pg::Upstream for Reading<'_> {
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
        let mut patience = patience;
        while self.out.len() < AT_ONCE && self.pull(patience)? {
            if !self.out.is_empty() {
                patience = Duration::ZERO;
            }
        }
        if self.out.is_empty() && self.part >= self.of.parts.len() {
            std::thread::sleep(patience.min(NAP));
        }
        Ok(hand_over(&mut self.out, &mut self.buffer))
    }

    fn send(&mut self, message: &[u8]) -> Result<(), pg::Error> {
        self.flushed = StandbyStatusUpdate::flush_lsn_of(message).unwrap_or(self.flushed);
        Ok(())
    }
}

/// The published columns, the time, and nulls where a page has its key.
fn query(part: &Part, wanted: &WantedRows) -> String {
    let columns = part.relation.columns.iter().map(|column| identifier(&column.name));
    let keys = if let Paging::Keys(keys) = &part.paging { keys.len() } else { 1 };
    let others = [wanted.micros.clone()].into_iter().chain(std::iter::repeat_n("NULL".to_owned(), keys));
    let columns: Vec<String> = columns.chain(others).collect();
    format!("SELECT {} FROM {} WHERE {}", columns.join(", "), part.from(), wanted.condition)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_full_page_is_its_end_and_not_behind_the_next_ones_header() {
        let check = |at, expected| assert_eq!(without_page_header(Lsn::new(at), WAL_PAGE), Lsn::new(expected));
        check(0x400_2000, 0x400_2000);
        check(0x400_2018, 0x400_2000);
        check(0x400_0028, 0x400_0000);
        check(0x400_2030, 0x400_2030);
        check(0x400_3FF8, 0x400_3FF8);
    }
}
