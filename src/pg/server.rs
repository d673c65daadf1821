//! Queries about a server's identity, a slot and a publication.
//!
//! In: an open [`Connection`]. Out: plain values. This file decides nothing. Catalogs whose columns differ between the versions 14 to
//! 19 are read as JSON, so a column that a version lacks is simply absent.
//! Specification: PostgreSQL manual, sections 54.4, 52.20 "pg_replication_slots", 52.17 "pg_publication_tables".

use super::connection::{Connection, Purpose, Row};
use super::error::Error;
use super::locked;
use super::quoting::literal;
use super::source::Source;
use crate::lsn::Lsn;
use crate::pgoutput::{PublishedTable, Relation, RelationColumn};
use serde::Deserialize;
use std::time::Duration;

/// The cluster that a server belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SystemIdentity {
    /// The identifier that initdb gave the cluster. Standbys have the same one.
    pub system_identifier: String,
    /// The timeline, which rises with each promotion.
    pub timeline: u32,
    /// The end of the WAL that the server has flushed. On a standby: of the WAL that it has received.
    pub flushed: Lsn,
}

/// Runs IDENTIFY_SYSTEM on a replication connection.
///
/// # Errors
/// The connection broke, or is no replication connection.
pub fn identify_system(connection: &mut Connection) -> Result<SystemIdentity, Error> {
    let rows = connection.query_small("IDENTIFY_SYSTEM")?;
    let row = rows.first();
    Ok(SystemIdentity {
        system_identifier: row.and_then(|row| row.text(0)).unwrap_or_default().to_owned(),
        timeline: row.and_then(|row| row.parse(1)).unwrap_or_default(),
        flushed: row.and_then(|row| row.parse(2)).unwrap_or_default(),
    })
}

/// The time at which the server started, to the microsecond. It identifies the running server. While it runs, its system identifier
/// does not change, and any role may query the time, unlike the system identifier.
///
/// # Errors
/// The connection broke.
pub fn started_at(connection: &mut Connection) -> Result<String, Error> {
    Ok(connection.value("SELECT pg_catalog.pg_postmaster_start_time()")?.unwrap_or_default())
}

/// Opens a connection for queries beside a stream. `started_at`: the start of the server that the stream comes from.
///
/// # Errors
/// There is no connection, or it is to another server.
pub fn open_beside(source: &Source, purpose: Purpose, started_at: &str) -> Result<Connection, Error> {
    let mut connection = Connection::open(source, purpose)?;
    if self::started_at(&mut connection)? == started_at {
        return Ok(connection);
    }
    Err(Error::OtherServer { host: connection.host().to_owned() })
}

/// Whether the server is a standby.
///
/// # Errors
/// The connection broke.
pub fn is_in_recovery(connection: &mut Connection) -> Result<bool, Error> {
    let rows = connection.query_small("SELECT pg_catalog.pg_is_in_recovery()")?;
    Ok(rows.first().is_some_and(|row| row.is_true(0)))
}

/// The position at which `timeline`, or an ancestor of it, left `ancestor`. Positions behind it belong to other transactions now.
/// `None`: the history does not name `ancestor`.
///
/// # Errors
/// The connection broke, or the server does not have the history.
pub fn switch_point(connection: &mut Connection, timeline: u32, ancestor: u32) -> Result<Option<Lsn>, Error> {
    let history = history(connection, timeline)?;
    Ok(history.into_iter().find(|(found, _)| *found == ancestor).map(|(_, left)| left))
}

/// The ancestors of `timeline`, each with the position at which it was left.
///
/// # Errors
/// The connection broke, or the server does not have the history.
pub fn history(connection: &mut Connection, timeline: u32) -> Result<Vec<(u32, Lsn)>, Error> {
    let rows = connection.query_small(&format!("TIMELINE_HISTORY {timeline}"))?;
    Ok(parse_history(rows.first().and_then(|row| row.text(1)).unwrap_or_default()))
}

/// Parses a history file. Each line has a timeline, the position at which it was left, and the reason, with white space between them.
fn parse_history(history: &str) -> Vec<(u32, Lsn)> {
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
    };
    history.lines().filter_map(line).collect()
}

/// A row of `pg_replication_slots`. `None`: the value is null, or this version does not have the column.
#[allow(clippy::struct_excessive_bools, reason = "the catalog's columns")]
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct SlotRow {
    /// The output plugin. `None`: the slot is physical.
    pub plugin: Option<String>,
    /// The slot's database. `None`: the slot is physical.
    pub database: Option<String>,
    /// Whether the slot ends with the session that created it.
    #[serde(default)]
    pub temporary: bool,
    /// Whether a walsender reads it.
    #[serde(default)]
    pub active: bool,
    /// The process of that walsender.
    pub active_pid: Option<u32>,
    /// The position from which Postgres keeps WAL.
    restart_lsn: Option<String>,
    /// The confirmed position.
    confirmed_flush_lsn: Option<String>,
    /// `reserved`, `extended`, `unreserved`, `lost`.
    pub wal_status: Option<String>,
    /// The bytes of WAL until the slot may be lost. `None`: `max_slot_wal_keep_size` is not set, or the slot is lost.
    pub safe_wal_size: Option<i64>,
    /// Whether the slot sends prepared transactions (since 14).
    #[serde(default)]
    pub two_phase: bool,
    /// Whether the slot conflicts with recovery (since 16). Version 16 also sets it for other causes of invalidation.
    pub conflicting: Option<bool>,
    /// The reason for its invalidation (since 17).
    pub invalidation_reason: Option<String>,
    /// Whether the slot is also kept on standbys (since 17).
    #[serde(default)]
    pub failover: bool,
    /// Whether the slot is a copy of one on a primary (since 17).
    #[serde(default)]
    pub synced: bool,
    /// On a standby: the reason why the last copy of the slot was skipped (since 19).
    pub slotsync_skip_reason: Option<String>,
}

/// A slot, and its distance to the server's current position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    /// Its row.
    pub row: SlotRow,
    /// `confirmed_flush_lsn`.
    pub confirmed_flush_lsn: Option<Lsn>,
    /// `restart_lsn`.
    pub restart_lsn: Option<Lsn>,
    /// The bytes of WAL between `confirmed_flush_lsn` and now.
    pub lag_bytes: Option<u64>,
    /// The bytes of WAL between `restart_lsn` and now.
    pub retained_wal_bytes: Option<u64>,
}

/// Looks a slot up. `None`: the cluster has no slot of that name.
///
/// # Errors
/// The connection broke.
pub fn slot(connection: &mut Connection, name: &str) -> Result<Option<Slot>, Error> {
    let rows = connection.query_small(&format!(
        "SELECT pg_catalog.to_jsonb(s), pg_catalog.pg_wal_lsn_diff(w.now, s.confirmed_flush_lsn)::bigint,
                pg_catalog.pg_wal_lsn_diff(w.now, s.restart_lsn)::bigint
           FROM pg_catalog.pg_replication_slots AS s,
                (SELECT CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn()
                             ELSE pg_catalog.pg_current_wal_lsn() END) AS w (now)
          WHERE s.slot_name = {}",
        literal(name)
    ))?;
    Ok(rows.first().and_then(parse_slot))
}

fn parse_slot(row: &Row) -> Option<Slot> {
    let slot: SlotRow = serde_json::from_str(row.text(0)?).ok()?;
    let lsn = |text: &Option<String>| text.as_deref().and_then(|text| text.parse().ok());
    let bytes = |index| row.parse::<i64>(index).map(|bytes| u64::try_from(bytes).unwrap_or(0));
    Some(Slot {
        confirmed_flush_lsn: lsn(&slot.confirmed_flush_lsn),
        restart_lsn: lsn(&slot.restart_lsn),
        lag_bytes: bytes(1),
        retained_wal_bytes: bytes(2),
        row: slot,
    })
}

/// A row of `pg_publication`.
#[allow(clippy::struct_excessive_bools, reason = "the catalog's columns")]
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Publication {
    /// Whether it is FOR ALL TABLES.
    pub puballtables: bool,
    /// Whether it publishes inserts.
    pub pubinsert: bool,
    /// Whether it publishes updates.
    pub pubupdate: bool,
    /// Whether it publishes deletes.
    #[serde(default)]
    pub pubdelete: bool,
    /// Whether rows of partitions come as rows of the partitioned table (since 13).
    #[serde(default)]
    pub pubviaroot: bool,
}

/// Looks the publication up in the connection's database.
///
/// # Errors
/// The connection broke.
pub fn publication(connection: &mut Connection, name: &str) -> Result<Option<Publication>, Error> {
    let rows = connection.query_small(&format!(
        "SELECT pg_catalog.to_jsonb(p) FROM pg_catalog.pg_publication AS p WHERE p.pubname = {}",
        literal(name)
    ))?;
    Ok(rows.first().and_then(|row| serde_json::from_str(row.text(0)?).ok()))
}

/// The tables of a publication with their published columns, partitions as the server will announce them. Since version 18, generated
/// columns are sent if `publish_generated_columns` or a column list has them, and `attnames` has exactly these. Versions 15.0 and 15.1
/// have generated columns in `attnames` as well, but do not send them.
///
/// # Errors
/// A table is locked ([`Error::Locked`]), or the connection broke.
pub fn published_tables(connection: &mut Connection, publication: &str) -> Result<Vec<PublishedTable>, Error> {
    let sql = format!(
        "SELECT c.oid, p.schemaname, p.tablename, a.attname, a.atttypid, a.atttypmod,
                (SELECT pg_catalog.jsonb_agg(pg_catalog.jsonb_build_array(pn.nspname, pc.relname))
                   FROM pg_catalog.pg_partition_ancestors(c.oid) AS up (relid)
                   JOIN pg_catalog.pg_class AS pc ON pc.oid = up.relid AND pc.oid <> c.oid
                   JOIN pg_catalog.pg_namespace AS pn ON pn.oid = pc.relnamespace),
                CASE WHEN a.atttypid >= 16384 THEN (
                    WITH RECURSIVE below (oid, typbasetype) AS (
                        SELECT t.oid, t.typbasetype FROM pg_catalog.pg_type AS t WHERE t.oid = a.atttypid
                        UNION ALL
                        SELECT t.oid, t.typbasetype FROM below JOIN pg_catalog.pg_type AS t ON t.oid = below.typbasetype)
                    SELECT oid FROM below WHERE typbasetype = 0 AND oid <> a.atttypid) END
           FROM pg_catalog.pg_publication_tables AS p
           JOIN pg_catalog.pg_namespace AS n ON n.nspname = p.schemaname
           JOIN pg_catalog.pg_class AS c ON c.relnamespace = n.oid AND c.relname = p.tablename
           JOIN pg_catalog.pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
          WHERE p.pubname = {}
            AND (a.attgenerated = '' OR current_setting('server_version_num')::int >= 180000)
            AND COALESCE(pg_catalog.to_jsonb(p) -> 'attnames' ? a.attname::text, true)
          ORDER BY 2, 3, a.attnum",
        literal(publication)
    );
    Ok(tables(&locked::query(connection, publication, &sql)?))
}

/// Collects tables from a row for each column: oid, schema, name, the column's name, type and modifier, and perhaps the partitioned
/// tables above as JSON, and the type below a domain. The rows of a table come one after the other.
pub(super) fn tables(rows: &[Row]) -> Vec<PublishedTable> {
    let mut tables: Vec<PublishedTable> = Vec::new();
    for row in rows {
        let id = row.parse(0).unwrap_or_default();
        if tables.last().is_none_or(|table| table.relation.id != id) {
            tables.push(table(id, row));
        }
        if let Some(table) = tables.last_mut() {
            table.relation.columns.extend(column(row, 3));
            table.domains.extend(row.parse(4).zip(row.parse(7)));
        }
    }
    tables
}

/// Returns the end of the written WAL. On a standby: of the replayed WAL.
///
/// # Errors
/// The connection broke.
pub fn wal_end(connection: &mut Connection) -> Result<Lsn, Error> {
    let end = connection.value(
        "SELECT CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn()
                     ELSE pg_catalog.pg_current_wal_flush_lsn() END",
    )?;
    Ok(end.unwrap_or_default())
}

fn table(id: u32, row: &Row) -> PublishedTable {
    let text = |index| row.text(index).unwrap_or_default().to_owned();
    let relation = Relation { id, namespace: text(1), name: text(2), replica_identity: b'd', columns: Vec::new() };
    let ancestors = row.text(6).and_then(|json| serde_json::from_str(json).ok()).unwrap_or_default();
    PublishedTable { relation, ancestors, domains: Vec::new() }
}

/// The column whose name, type and modifier a row has from index `at` on.
pub(super) fn column(row: &Row, at: usize) -> Option<RelationColumn> {
    Some(RelationColumn { name: row.parse(at)?, type_id: row.parse(at + 1)?, type_modifier: row.parse(at + 2)? })
}

/// A setting's value in its base unit, as `pg_settings` has it.
///
/// # Errors
/// The connection broke.
pub fn setting(connection: &mut Connection, name: &str) -> Result<Option<String>, Error> {
    connection.value(&format!("SELECT setting FROM pg_catalog.pg_settings WHERE name = {}", literal(name)))
}

/// A setting that is a time, which `unit` makes of its number. `None`: it is 0, or the version does not have it.
fn time_setting(
    connection: &mut Connection,
    name: &str,
    unit: impl FnOnce(u64) -> Duration,
) -> Result<Option<Duration>, Error> {
    let number = setting(connection, name)?.and_then(|text| text.parse().ok());
    Ok(number.filter(|number| *number > 0).map(unit))
}

/// `wal_sender_timeout`. `None`: the server waits without limit.
///
/// # Errors
/// The connection broke.
pub fn wal_sender_timeout(connection: &mut Connection) -> Result<Option<Duration>, Error> {
    time_setting(connection, "wal_sender_timeout", Duration::from_millis)
}

/// A slot that no walsender reads.
#[derive(Debug, Clone, Copy, Default)]
pub struct FreeSlot {
    /// How long ago it was released. `None`: the server does not know, as before version 17.
    pub released_ago: Option<Duration>,
    /// The end of the server's WAL at the time of the query. `None`: the server is a standby.
    pub log_end: Option<Lsn>,
}

/// The slot, if no walsender reads it.
///
/// # Errors
/// The connection broke.
pub fn free_slot(connection: &mut Connection, slot: &str) -> Result<Option<FreeSlot>, Error> {
    let rows = connection.query(&format!(
        "SELECT floor(1000 * extract(epoch FROM pg_catalog.clock_timestamp()
                                          - (pg_catalog.to_jsonb(s) ->> 'inactive_since')::timestamptz))::bigint,
                CASE WHEN NOT pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_current_wal_insert_lsn() END
           FROM pg_catalog.pg_replication_slots AS s WHERE s.slot_name = {} AND s.active_pid IS NULL",
        literal(slot)
    ))?;
    Ok(rows.first().map(|row| {
        let millis = row.parse::<i64>(0).map(|millis| u64::try_from(millis).unwrap_or(0));
        FreeSlot { released_ago: millis.map(Duration::from_millis), log_end: row.parse(1) }
    }))
}

/// `idle_replication_slot_timeout` (since version 18). `None`: an unused slot is not invalidated.
///
/// # Errors
/// The connection broke.
pub fn idle_slot_timeout(connection: &mut Connection) -> Result<Option<Duration>, Error> {
    time_setting(connection, "idle_replication_slot_timeout", Duration::from_secs)
}

/// How long data that the server has sent may stay unacknowledged before it ends the connection. `None`: its operating system decides.
///
/// # Errors
/// The connection broke.
pub fn tcp_user_timeout(connection: &mut Connection) -> Result<Option<Duration>, Error> {
    time_setting(connection, "tcp_user_timeout", Duration::from_millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_history_says_where_each_ancestor_was_left() {
        let history = "1\t0/3000148\tno recovery target specified\n\n2\t0/5000A28\tno recovery target specified\n";
        assert_eq!(parse_history(history), [(1, Lsn::new(0x300_0148)), (2, Lsn::new(0x500_0A28))]);
        assert_eq!(parse_history(""), []);
    }

    #[test]
    fn a_slots_row_is_read_whatever_columns_the_version_has() {
        let row: SlotRow = serde_json::from_str(
            r#"{"plugin":"pgoutput","database":"shop","temporary":false,"active":true,"active_pid":7,
                "restart_lsn":"0/10","confirmed_flush_lsn":"0/20","wal_status":"reserved","safe_wal_size":null}"#,
        )
        .unwrap();
        assert!(row.active && !row.two_phase && row.invalidation_reason.is_none());
        let row: SlotRow = serde_json::from_str(r#"{"plugin":null,"invalidation_reason":"wal_removed"}"#).unwrap();
        assert_eq!(row.invalidation_reason.as_deref(), Some("wal_removed"));
    }
}
