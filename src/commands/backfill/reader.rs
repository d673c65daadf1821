//! The connection that rows are read over: opened when it is needed, once more after a failure.
//!
//! In: queries. Out: rows. While the snapshot that a new slot came with is held, all queries see exactly that, in one transaction; without
//! it each sees what is there at its time. Invariants: it never writes, and no setting of role or database ends it early; what makes rows of
//! before the slot look like new ones is looked for before the first page, and behind the last one of each table.

use super::COUNTING;
use super::parts::{Paging, Part};
use super::proof::Proof;
use crate::commands::error::CommandError;
use crate::commands::setup::Held;
use crate::pg::rows::{NextRow, Rows};
use crate::pg::{self, Connection, Purpose};
use std::time::Duration;

/// The settings of a session: rows in the order of the file, an error where rows would be hidden, and nothing is written.
const SESSION: &str = "SET max_parallel_workers_per_gather = 0; SET synchronize_seqscans = off; SET row_security = off;
    SET default_transaction_read_only = on";

/// How late the server may count an update: a session tells of its own at the ends of transactions, at most once a second.
const COUNTED_WITHIN: Duration = Duration::from_millis(1500);

/// Reads rows.
pub(super) struct RowReader {
    proof: Proof,
    /// Bytes of the largest row.
    largest: usize,
    /// Rows that were updated after the slot was created may be left out.
    leaves_updated: bool,
    /// The snapshot that came with the slot, until it is in use.
    held: Option<Held>,
    /// It is in use.
    is_held: bool,
    rows: Option<Rows>,
}

impl RowReader {
    pub(super) fn new(proof: Proof, largest: usize, leaves_updated: bool, held: Option<Held>) -> Self {
        Self { proof, largest, leaves_updated, held, is_held: false, rows: None }
    }

    fn connect(&self) -> Result<Connection, pg::Error> {
        Connection::open(&self.proof.place.source, Purpose::Control)
    }

    /// Opens the connection, if there is none.
    pub(super) fn open(&mut self, parts: &[Part]) -> Result<(), CommandError> {
        if self.rows.is_some() {
            return Ok(());
        }
        let mut connection = self.connect()?;
        let held = self.held.take();
        self.is_held = held.is_some();
        if let Some(held) = held {
            connection.query(SESSION)?;
            connection.query(&held.begin())?;
            // The new file of a table that ALTER TABLE has written anew looks empty to a snapshot from before.
            let names: Vec<String> = parts.iter().map(Part::from).collect();
            connection.query_within(&format!("LOCK TABLE {} IN ACCESS SHARE MODE", names.join(", ")), COUNTING)?;
            // The snapshot shows the catalogue as it was.
            self.refuse_rewritten(&mut self.connect()?, parts)?;
        } else {
            self.refuse_changed(&mut connection, parts)?;
            connection.query(SESSION)?;
        }
        self.rows = Some(Rows::new(connection, self.largest));
        Ok(())
    }

    /// How long after its last page a table is to be looked at again; `None`: that is not needed.
    pub(super) fn look_again_after(&self) -> Option<Duration> {
        let wait = if self.leaves_updated { Duration::ZERO } else { COUNTED_WITHIN };
        (!self.is_held).then_some(wait)
    }

    /// Checks that all rows of these parts from before the slot were read.
    pub(super) fn look_again(&self, parts: &[Part]) -> Result<(), CommandError> {
        self.refuse_changed(&mut self.connect()?, parts)
    }

    /// A row that was updated, or written anew, looks like one that the slot carries, once it is not read under the snapshot itself.
    fn refuse_changed(&self, connection: &mut Connection, parts: &[Part]) -> Result<(), CommandError> {
        for part in parts.iter().filter(|_| !self.leaves_updated) {
            if self.proof.may_be_updated(connection, part.oid)? {
                return Err(CommandError::updated(&part.name, &self.proof.place.slot));
            }
        }
        self.refuse_rewritten(connection, parts)
    }

    fn refuse_rewritten(&self, connection: &mut Connection, parts: &[Part]) -> Result<(), CommandError> {
        let oids: Vec<u32> = parts.iter().map(|part| part.oid).collect();
        self.proof.not_rewritten(connection, &oids)
    }

    /// The rows of the open connection.
    ///
    /// # Errors
    /// There is no connection.
    pub(super) fn rows(&mut self) -> Result<&mut Rows, pg::Error> {
        self.rows.as_mut().ok_or(pg::Error::Ended)
    }

    /// Checks that the rows of a table that is read by place have not moved.
    pub(super) fn check_file(&mut self, part: &Part) -> Result<(), CommandError> {
        let (Paging::Places { file, .. }, Some(rows)) = (&part.paging, &mut self.rows) else { return Ok(()) };
        rows.begin(&format!("SELECT pg_catalog.pg_relation_filenode({})", part.oid))?;
        let mut found = None;
        while rows.is_running() {
            let next = rows.next(Duration::from_secs(30), |values| {
                Ok(values.value()?.and_then(|text| std::str::from_utf8(text).ok()?.parse::<u32>().ok()))
            })?;
            if let NextRow::Row(value) = next {
                found = value;
            }
        }
        if found == Some(*file) { Ok(()) } else { Err(CommandError::rewritten(&part.name.to_string())) }
    }

    /// Skips what is still to come of a page.
    pub(super) fn finish(&mut self, patience: Duration) {
        if self.rows.as_mut().is_some_and(|rows| rows.finish(patience).is_err()) {
            self.lost();
        }
    }

    /// The connection is gone.
    pub(super) fn lost(&mut self) {
        self.rows = None;
    }
}
