//! The progress of a backfill: written down now and then, and shown.
//!
//! In: rows that are acknowledged. Out: the note that a restart resumes from, a bar on a terminal, lines in the log elsewhere. Invariant: one
//! backfill of a slot at a time, by a lock that lasts as long as the connection that notes are written over.

use super::parts::{Part, PartCursor, Start};
use crate::commands::error::CommandError;
use crate::commands::output::duration;
use crate::commands::progress_bar::ProgressBar;
use crate::outbox::TableName;
use crate::pg::backfill_progress::{self, BackfillProgress};
use crate::pg::source::Source;
use crate::pg::{self, Connection, Purpose, Recovery, leaf_notes, leaves};
use crate::supervise::chain;
use std::time::{Duration, Instant};

/// Distance of two notes: what is acknowledged in between repeats after a kill.
const NOTE_EVERY: Duration = Duration::from_millis(500);

/// Distance of two lines in the log, where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// Keeps the progress.
pub(super) struct Keeper {
    source: Source,
    slot: String,
    connection: Option<Connection>,
    progress: BackfillProgress,
    /// In the order of the parts.
    tables: Vec<TableName>,
    /// Whether `progress` has more than what is written down.
    unwritten: bool,
    noted: Instant,
    /// That it cannot be written was said.
    failing: bool,
    /// Rows of this run.
    rows: u64,
    /// The rows that the planner expects.
    total: u64,
    bar: ProgressBar,
    /// When the last line was logged.
    line: Instant,
}

impl Keeper {
    /// Over this connection, which has the lock. `total`: how many rows are expected.
    pub(super) fn new(
        connection: Connection,
        source: &Source,
        slot: &str,
        progress: BackfillProgress,
        tables: Vec<TableName>,
        total: u64,
    ) -> Self {
        let now = Instant::now();
        Self {
            source: source.clone(),
            slot: slot.to_owned(),
            connection: Some(connection),
            progress,
            tables,
            unwritten: true,
            noted: now,
            failing: false,
            rows: 0,
            total,
            bar: ProgressBar::new("publishing", total),
            line: now,
        }
    }

    /// A row of this part is acknowledged.
    pub(super) fn row(&mut self, parts: &[Part], part: usize) {
        let Some(table) = parts.get(part).and_then(|part| self.tables.get(part.table)) else { return };
        if let Some(found) = self.progress.tables.get_mut(&table.to_string()) {
            found.rows += 1;
        }
        self.progress.rows += 1;
        self.rows += 1;
        self.unwritten = true;
    }

    /// Everything before `cursor` is acknowledged.
    pub(super) fn reached(&mut self, parts: &[Part], cursor: &PartCursor) {
        for (at, name) in self.tables.iter().enumerate() {
            let Some(table) = self.progress.tables.get_mut(&name.to_string()) else { continue };
            for part in parts.iter().take(cursor.part).filter(|part| part.table == at) {
                table.parts.entry(part.oid).or_default().done = true;
            }
            let done = parts.iter().rposition(|part| part.table == at).is_none_or(|last| last < cursor.part);
            if done && !table.done {
                tracing::info!(table = %name, rows = table.rows, "backfill of a table is done");
                (table.done, self.unwritten) = (true, true);
            }
        }
        if let (Some(part), Start::After(key)) = (parts.get(cursor.part), &cursor.start)
            && let Some(name) = self.tables.get(part.table)
            && let Some(table) = self.progress.tables.get_mut(&name.to_string())
        {
            table.parts.entry(part.oid).or_default().last = Some(key.to_vec());
        }
        self.show();
        self.tend();
    }

    /// Writes down what is due. What cannot be written now is written later.
    pub(super) fn tend(&mut self) {
        let now = Instant::now();
        if !self.unwritten || now.saturating_duration_since(self.noted) < NOTE_EVERY {
            return;
        }
        self.noted = now;
        match self.write() {
            Ok(()) => self.failing = false,
            Err(error) => {
                if !std::mem::replace(&mut self.failing, true) {
                    tracing::warn!(
                        error = chain(&error),
                        "backfill progress not recorded; retrying; after a kill, rows since the last note repeat"
                    );
                }
            }
        }
    }

    /// Writes it down.
    fn write(&mut self) -> Result<(), pg::Error> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.reconnect()?,
        };
        backfill_progress::write(&mut connection, &self.slot, &self.progress)?;
        self.connection = Some(connection);
        self.unwritten = false;
        Ok(())
    }

    /// The server may not have noticed yet that the connection with the lock is gone.
    fn reconnect(&self) -> Result<Connection, pg::Error> {
        let mut connection = Connection::open(&self.source, Purpose::Control)?;
        if backfill_progress::lock(&mut connection, &self.slot)? { Ok(connection) } else { Err(pg::Error::Ended) }
    }

    /// Writes it down for the last time; while Postgres is unavailable it is tried again until `stop`.
    pub(super) fn finish(&mut self, stop: &dyn Fn() -> bool) -> Result<(), CommandError> {
        while self.unwritten {
            match self.write() {
                Err(error) if error.recovery() == Recovery::Reconnect && !stop() => std::thread::sleep(NOTE_EVERY),
                written => written?,
            }
        }
        Ok(())
    }

    /// Notes, for `prune`, that all rows of the tables that are done are published. A role whose notes do not count is told so.
    pub(super) fn note_published(&mut self, publication: &str) -> Result<(), CommandError> {
        let Some(connection) = self.connection.as_mut().filter(|_| !self.progress.token.is_empty()) else {
            return Ok(());
        };
        let all = leaves::look(connection, publication)?;
        let token = self.progress.token.clone();
        let done = self.tables.iter().filter_map(|name| self.progress.tables.get(&name.to_string()));
        let mut published: Vec<u32> = Vec::new();
        for table in done.filter(|table| table.done && table.condition.is_none()) {
            let leaves: Vec<(u32, String)> =
                table.leaves.iter().filter_map(|(oid, print)| Some((*oid, print.clone()?))).collect();
            leaf_notes::note(connection, (&self.slot, &token), &leaves, table.at, &all)?;
            published.extend(leaves.iter().map(|(oid, _)| oid));
        }
        let known = leaf_notes::published(connection, publication, &self.slot)?;
        if !published.iter().all(|oid| known.contains(oid)) {
            tracing::warn!(
                "walrelay prune keeps these rows: the note that they are published does not count, since this role may neither replicate nor act as the owner of the publication; or the relay has not recorded that it has read these tables since then"
            );
        }
        Ok(())
    }

    /// Rows of this run.
    pub(super) fn rows(&self) -> u64 {
        self.rows
    }

    fn show(&mut self) {
        self.bar.at(self.rows);
        let now = Instant::now();
        if self.bar.is_shown() || now.saturating_duration_since(self.line) < LINE_EVERY {
            return;
        }
        self.line = now;
        let (rate, left) = self.bar.pace(self.rows);
        tracing::info!(
            rows = self.rows,
            of_about = self.total,
            rows_per_second = rate,
            seconds_left = left.map(|left| left.as_secs()),
            left = left.map(duration),
            "backfill"
        );
    }
}
