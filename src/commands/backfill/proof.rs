//! Which rows no slot carries: what the setup mark proves.
//!
//! In: the mark that `setup --apply` left, the slot that is there now, and what the publication has. Out: a [`Proof`], or why there is none.
//!
//! Invariant: with a proof, a row of a table that passes [`Proof::not_carried`] is published by exactly one of both: a row that the snapshot
//! sees was committed before the slot's first position, and is the backfill's; any other one is decoded from the slot. That holds of rows
//! as they were inserted. An update gives a row of before a new transaction, so that it looks like a row of after, and no snapshot can
//! tell: [`Proof::may_be_updated`]. Nor of rows of a table that was written anew: [`Proof::not_rewritten`].

use super::COUNTING;
use crate::commands::error::CommandError;
use crate::commands::outbox_place::{OutboxPlace, objection};
use crate::pg::catalog::REWRITTEN;
use crate::pg::snapshot::Snapshot;
use crate::pg::{self, Connection, catalog, literal, marker, server, slot_sighting};

/// Since 19, `ALTER PUBLICATION … SET ALL TABLES EXCEPT` leaves a table out, and nothing shows that once it is published again.
const OF_ALL_TABLES: &str =
    "publication of all tables may have left it out for a while (EXCEPT), and Postgres keeps no trace of that";

/// The first version that publishes whole schemas.
const SCHEMAS: u32 = 150_000;

/// The proof that the mark gives.
#[derive(Debug, Clone)]
pub(super) struct Proof {
    /// The slot and the publication that it is about.
    pub(super) place: OutboxPlace,
    /// The snapshot as it was written down.
    pub(super) snapshot: String,
    /// As SQL, whether no slot carries a row.
    pub(super) not_carried: String,
    /// How many rows had been updated by then.
    updates: u64,
}

impl Proof {
    /// Reads the mark.
    pub(super) fn find(connection: &mut Connection, place: OutboxPlace) -> Result<Self, CommandError> {
        let missing = |why: &str| missing(&place, why);
        let mark = catalog::publication_mark(connection, &place.publication)?;
        let comment = mark.comment.as_deref();
        let taken = marker::snapshot(comment, &place.slot)
            .ok_or_else(|| missing("walrelay setup --apply did not create the slot, or an earlier version did"))?;
        let sighting = slot_sighting::sight(connection, &place.slot)?;
        if let Some(why) = objection(comment, &place.slot, sighting.as_ref()) {
            return Err(missing(why));
        }
        let snapshot: Snapshot = taken
            .snapshot
            .parse()
            .map_err(|_| missing(&format!("the snapshot that was written down is none: '{}'", taken.snapshot)))?;
        let next = catalog::next_transaction(connection)?.unwrap_or(u64::MAX);
        if !snapshot.is_comparable(next) {
            return Err(missing("two billion transactions have begun since the slot was created"));
        }
        Ok(Self { not_carried: snapshot.sees(), snapshot: taken.snapshot, updates: taken.updates, place })
    }

    /// Checks that the publication has had each of these tables, in the same way, since the slot was created.
    pub(super) fn covers(&self, connection: &mut Connection, tables: &[u32]) -> Result<(), CommandError> {
        let (place, server) = (&self.place, catalog::server(connection)?);
        let is_of_all = server::publication(connection, &place.publication)?.is_some_and(|found| found.puballtables);
        if is_of_all && server.may_have_left_out() {
            return Err(missing(place, OF_ALL_TABLES));
        }
        let rows = connection.query(&self.uncovered(tables, server.version >= SCHEMAS))?;
        let Some(table) = rows.first().and_then(|row| row.text(0)) else { return Ok(()) };
        let why = format!("the publication, or what it has of table {table}, was changed after the slot was created");
        Err(missing(place, &why))
    }

    fn uncovered(&self, tables: &[u32], schemas: bool) -> String {
        let sees = &self.not_carried;
        let oids: Vec<String> = tables.iter().map(u32::to_string).collect();
        let by_schema = if schemas {
            format!(
                "OR EXISTS (SELECT FROM pg_catalog.pg_publication_namespace
                             WHERE pnpubid = p.oid AND pnnspid = ANY (up.schemas) AND {sees})"
            )
        } else {
            String::new()
        };
        format!(
            "SELECT up.oid::regclass
               FROM (SELECT o.oid, ARRAY[o.oid] || ARRAY(SELECT relid::oid FROM pg_catalog.pg_partition_ancestors(o.oid) AS a (relid)) AS oids,
                            ARRAY(SELECT c.relnamespace FROM pg_catalog.pg_class AS c WHERE c.oid = o.oid OR c.oid IN
                                  (SELECT relid FROM pg_catalog.pg_partition_ancestors(o.oid) AS a (relid))) AS schemas
                       FROM pg_catalog.unnest('{{{}}}'::oid[]) AS o (oid)) AS up,
                    (SELECT oid, puballtables, {sees} AS same FROM pg_catalog.pg_publication WHERE pubname = {}) AS p
              WHERE NOT (p.same AND (p.puballtables OR EXISTS (
                        SELECT FROM pg_catalog.pg_publication_rel
                         WHERE prpubid = p.oid AND prrelid = ANY (up.oids) AND {sees}) {by_schema})) LIMIT 1",
            oids.join(","),
            literal(&self.place.publication)
        )
    }

    /// Checks that none of these tables, and no partition of one, has rows that were rewritten since the slot was created.
    pub(super) fn not_rewritten(&self, connection: &mut Connection, tables: &[u32]) -> Result<(), CommandError> {
        for table in connection.query(&self.rewritten(tables))? {
            let text = |at| table.text(at).unwrap_or_default();
            let (name, transaction) = (text(0), text(1));
            // Rows that came later are the slot's.
            let row = format!("SELECT FROM ONLY {name} WHERE xmin = '{transaction}'::xid LIMIT 1");
            if !connection.query_within(&row, COUNTING)?.is_empty() {
                let why = format!("table {name} was rewritten by ALTER TABLE after the slot was created");
                return Err(missing(&self.place, &why));
            }
        }
        Ok(())
    }

    fn rewritten(&self, tables: &[u32]) -> String {
        let oids: Vec<String> = tables.iter().map(u32::to_string).collect();
        format!(
            "SELECT name, xmin
               FROM (SELECT pg_catalog.format('%I.%I', n.nspname, c.relname), r.xmin
                       FROM (SELECT o.oid FROM pg_catalog.unnest('{{{}}}'::oid[]) AS o (oid)
                              UNION SELECT t.relid FROM pg_catalog.unnest('{{{}}}'::oid[]) AS o (oid), pg_catalog.pg_partition_tree(o.oid) AS t) AS o (oid)
                       JOIN pg_catalog.pg_class AS c ON c.oid = o.oid
                       JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace, {REWRITTEN}) AS found (name, xmin)
              WHERE NOT {} ORDER BY 1",
            oids.join(","),
            oids.join(","),
            self.not_carried
        )
    }

    /// Whether rows of a table may have been updated since the slot was made.
    pub(super) fn may_be_updated(&self, connection: &mut Connection, table: u32) -> Result<bool, pg::Error> {
        let updates = catalog::updates(connection, &self.place.publication)?;
        Ok(updates != self.updates && catalog::has_updates(connection, table)?)
    }
}

fn missing(place: &OutboxPlace, why: &str) -> CommandError {
    CommandError::no_snapshot(&place.slot, &place.publication, why)
}
