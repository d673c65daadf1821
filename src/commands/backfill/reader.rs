//! The connection that rows are read over: opened when it is needed, once more after a failure.
//!
//! In: queries. Out: rows. Under the snapshot that a new slot came with, all queries see exactly that, in one transaction; without
//! it each sees what is there at its time. Invariants: it never writes, and no setting of role or database ends it early; a table that was
//! rewritten since before the slot was created is not read under the snapshot, to which it looks empty; no rows are taken for those of a table
//! that had their table's name before.

use super::COUNTING;
use super::parts::{Paging, Part};
use crate::commands::error::CommandError;
use crate::commands::setup::ExportedSnapshot;
use crate::pg::rows::{NextRow, Rows};
use crate::pg::source::Source;
use crate::pg::{self, Connection, Purpose, leaves};
use std::time::Duration;

/// The settings of a session: rows in the order of the file, an error where rows would be hidden, and nothing is written.
const SESSION: &str = "SET max_parallel_workers_per_gather = 0; SET synchronize_seqscans = off; SET row_security = off;
    SET default_transaction_read_only = on";

/// Reads rows.
pub(super) struct RowReader {
    source: Source,
    /// Bytes of the largest row.
    largest: usize,
    /// The snapshot that came with the slot, until it is in use.
    exported: Option<ExportedSnapshot>,
    /// It is in use, or was.
    is_imported: bool,
    rows: Option<Rows>,
}

impl RowReader {
    pub(super) fn new(source: &Source, largest: usize, exported: Option<ExportedSnapshot>) -> Self {
        Self { source: source.clone(), largest, exported, is_imported: false, rows: None }
    }

    fn connect(&self) -> Result<Connection, pg::Error> {
        Connection::open(&self.source, Purpose::Control)
    }

    /// Opens the connection, if there is none.
    ///
    /// # Errors
    /// The snapshot was lost with the connection; a table was rewritten; the server cannot be reached.
    pub(super) fn open(&mut self, parts: &[Part]) -> Result<(), CommandError> {
        if self.rows.is_some() {
            return Ok(());
        }
        if self.is_imported {
            return Err(CommandError::snapshot_lost());
        }
        let mut connection = self.connect()?;
        connection.query(SESSION)?;
        if let Some(exported) = self.exported.take() {
            self.is_imported = true;
            connection.query(&exported.begin())?;
            let names: Vec<String> = parts.iter().map(Part::from).collect();
            connection.query_within(&format!("LOCK TABLE {} IN ACCESS SHARE MODE", names.join(", ")), COUNTING)?;
            // From here on no table can be rewritten. The snapshot shows the catalogue as it was.
            let oids: Vec<u32> = parts.iter().map(|part| part.oid).collect();
            if !exported.are_as_before(&leaves::files(&mut self.connect()?, &oids)?) {
                return Err(CommandError::snapshot_lost());
            }
        }
        self.rows = Some(Rows::new(connection, self.largest));
        Ok(())
    }

    /// The rows of the open connection.
    ///
    /// # Errors
    /// There is no connection.
    pub(super) fn rows(&mut self) -> Result<&mut Rows, pg::Error> {
        self.rows.as_mut().ok_or(pg::Error::Ended)
    }

    /// Checks that the table that was read still has its name, and that its rows have not moved if they were read by ctid.
    pub(super) fn check(&mut self, part: &Part) -> Result<(), CommandError> {
        let Some(rows) = &mut self.rows else { return Ok(()) };
        let (is_named, oid) = (part.is_named(), part.oid);
        rows.begin(&format!(
            "SELECT CASE WHEN {is_named} THEN COALESCE(pg_catalog.pg_relation_filenode({oid}), 0) END"
        ))?;
        let mut found = None;
        while rows.is_running() {
            let next = rows.next(Duration::from_secs(30), |values| {
                Ok(values.value()?.and_then(|text| std::str::from_utf8(text).ok()?.parse::<u32>().ok()))
            })?;
            if let NextRow::Row(value) = next {
                found = value;
            }
        }
        match (found, &part.paging) {
            (None, _) => Err(CommandError::replaced(&part.name.to_string())),
            (Some(found), Paging::Ctids { file, .. }) if found != *file => Err(CommandError::snapshot_lost()),
            (Some(_), Paging::Keys(_) | Paging::Ctids { .. }) => Ok(()),
        }
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
