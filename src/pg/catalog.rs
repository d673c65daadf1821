//! Queries about tables, roles, sessions, and the comment on a publication.
//!
//! In: an open [`Connection`]. Out: plain values. This file only reads, and decides nothing. If the role may not see a value, it is
//! `None`.
//! Specification: PostgreSQL manual, chapter 53 "System Catalogs", 28.2.3 "pg_stat_activity", 54 "System Views".

use super::connection::{Connection, Row};
use super::error::Error;
use super::quoting::{identifier, literal};
use std::time::Duration;

/// A server, and the connection's database and role.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerRow {
    /// `server_version_num`: 170011 for 17.11.
    pub version: u32,
    /// `server_version`, for people.
    pub version_text: String,
    /// `wal_level`.
    pub wal_level: String,
    /// The database.
    pub database: String,
    /// The role that the connection has logged in as.
    pub user: String,
}

/// Since this version, a server with `wal_level = replica` writes what logical decoding needs once it has a logical slot, without a
/// restart. `effective_wal_level` is then `logical`.
const DECODES_AT_REPLICA: u32 = 190_000;

/// Since this version, a publication of all tables may leave some tables out. No catalog shows that a table was left out before.
const EXCEPTIONS: u32 = 190_000;

/// Whether logical slots can be created and read on a server of this version with this `wal_level`.
pub(crate) fn decodes(version: u32, wal_level: &str) -> bool {
    wal_level == "logical" || (wal_level == "replica" && version >= DECODES_AT_REPLICA)
}

impl ServerRow {
    /// Whether logical slots can be created and read.
    pub fn decodes(&self) -> bool {
        decodes(self.version, &self.wal_level)
    }

    /// Whether a table may have been left out of a publication of all tables before, which no catalog shows.
    pub const fn may_have_left_out(&self) -> bool {
        self.version >= EXCEPTIONS
    }
}

/// Reads the server's settings and the connection's role.
///
/// # Errors
/// The connection broke.
pub fn server(connection: &mut Connection) -> Result<ServerRow, Error> {
    let rows = connection.query_small(
        "SELECT current_setting('server_version_num'), current_setting('server_version'), current_setting('wal_level'),
                current_database(), current_user",
    )?;
    let row = rows.first();
    let text = |index| row.and_then(|row| row.text(index)).unwrap_or_default().to_owned();
    Ok(ServerRow {
        version: text(0).parse().unwrap_or_default(),
        version_text: text(1),
        wal_level: text(2),
        database: text(3),
        user: text(4),
    })
}

/// A table that exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableRow {
    /// `PARTITION BY`.
    pub partitioned: bool,
    /// Whether the publication names the table itself. A publication can also have it by its schema, by a partitioned table above it,
    /// or as one of all tables.
    pub member: bool,
}

/// Looks a table up, and whether `publication` names it. `None`: there is no such table.
///
/// # Errors
/// The connection broke.
pub fn table(
    connection: &mut Connection,
    schema: &str,
    name: &str,
    publication: &str,
) -> Result<Option<TableRow>, Error> {
    let rows = connection.query(&format!(
        "SELECT c.relkind = 'p', EXISTS (
                    SELECT FROM pg_catalog.pg_publication_rel AS m JOIN pg_catalog.pg_publication AS p ON p.oid = m.prpubid
                     WHERE m.prrelid = c.oid AND p.pubname = {} AND {NOT_LEFT_OUT})
           FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
          WHERE n.nspname = {} AND c.relname = {} AND c.relkind IN ('r', 'p')",
        literal(publication),
        literal(schema),
        literal(name)
    ))?;
    Ok(rows.first().map(|row| TableRow { partitioned: row.is_true(0), member: row.is_true(1) }))
}

/// As SQL, whether a row `m` of `pg_publication_rel` is of a published table. Since version 19, it may be of a table that `FOR ALL
/// TABLES EXCEPT` leaves out.
pub(crate) const NOT_LEFT_OUT: &str = "pg_catalog.to_jsonb(m) -> 'prexcept' IS DISTINCT FROM 'true'::jsonb";

/// The tables that a publication of all tables leaves out (since 19), by schema and name.
///
/// # Errors
/// The connection broke.
pub fn left_out(connection: &mut Connection, publication: &str) -> Result<Vec<(String, String)>, Error> {
    let rows = connection.query(&format!(
        "SELECT n.nspname, c.relname
           FROM pg_catalog.pg_publication_rel AS m JOIN pg_catalog.pg_publication AS p ON p.oid = m.prpubid
           JOIN pg_catalog.pg_class AS c ON c.oid = m.prrelid JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
          WHERE p.pubname = {} AND NOT ({NOT_LEFT_OUT}) ORDER BY 1, 2",
        literal(publication)
    ))?;
    let name = |row: &Row| Some((row.text(0)?.to_owned(), row.text(1)?.to_owned()));
    Ok(rows.iter().filter_map(name).collect())
}

/// Whether the publication has all tables of a schema.
///
/// # Errors
/// The connection broke.
pub fn has_schemas(connection: &mut Connection, publication: &str) -> Result<bool, Error> {
    // pg_publication_namespace came with version 15. Its rows depend on the schema.
    let rows = connection.query(&format!(
        "SELECT FROM pg_catalog.pg_publication AS p
           JOIN pg_catalog.pg_depend AS s ON s.refclassid = 'pg_catalog.pg_publication'::regclass AND s.refobjid = p.oid
           JOIN pg_catalog.pg_depend AS o ON o.classid = s.classid AND o.objid = s.objid
          WHERE p.pubname = {} AND o.refclassid = 'pg_catalog.pg_namespace'::regclass LIMIT 1",
        literal(publication)
    ))?;
    Ok(!rows.is_empty())
}

/// As SQL, publishes `table`, which a publication of all tables leaves out. The other tables stay out.
pub(crate) fn no_longer_left_out(publication: &str, left_out: &[(String, String)], table: (&str, &str)) -> String {
    let others = left_out.iter().filter(|(schema, name)| (schema.as_str(), name.as_str()) != table);
    let others: Vec<String> =
        others.map(|(schema, name)| format!("{}.{}", identifier(schema), identifier(name))).collect();
    let except = if others.is_empty() { String::new() } else { format!(" EXCEPT (TABLE {})", others.join(", ")) };
    format!("ALTER PUBLICATION {} SET ALL TABLES{except}", identifier(publication))
}

/// Counts a table's rows, up to `limit`.
///
/// # Errors
/// The role may not read the table, or the connection broke.
pub fn count_rows(connection: &mut Connection, schema: &str, name: &str, limit: u64) -> Result<u64, Error> {
    let count = connection.value(&format!(
        "SELECT count(*) FROM (SELECT FROM {}.{} LIMIT {limit}) AS counted",
        identifier(schema),
        identifier(name)
    ))?;
    Ok(count.unwrap_or_default())
}

/// Counts the rows of `table` (as SQL names it) that transactions before `xid` have written, up to `limit`. `xid` has 64 bits, with its
/// epoch. `None`: `xid` is so old that the 32 bits in a row cannot be compared with it.
///
/// # Errors
/// The role may not read the table, or the connection broke.
pub fn count_older(connection: &mut Connection, table: &str, xid: u64, limit: u64) -> Result<Option<u64>, Error> {
    if !next_transaction(connection)?.is_some_and(|next| is_comparable(xid, next)) {
        return Ok(None);
    }
    connection.value(&format!(
        "SELECT count(*) FROM (SELECT FROM {table} WHERE {} LIMIT {limit}) AS counted",
        older_than(xid)
    ))
}

/// The oldest running transaction, or the next one if none runs. All transactions before it have ended. It has 64 bits, with its epoch.
///
/// # Errors
/// The connection broke.
pub fn oldest_running(connection: &mut Connection) -> Result<Option<u64>, Error> {
    connection.value("SELECT pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot())::text")
}

/// The next transaction. All transactions before it have begun. It has 64 bits, with its epoch.
///
/// # Errors
/// The connection broke.
pub fn next_transaction(connection: &mut Connection) -> Result<Option<u64>, Error> {
    connection.value("SELECT pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::text")
}

/// As SQL, whether a transaction before `xid` has written the row. `xid` has 64 bits, with its epoch. The result is right only if
/// [`is_comparable`]. A row that is older than half of the range of 32 bits looks newer than `xid`.
pub(crate) fn older_than(xid: u64) -> String {
    format!("(age(xmin) > age('{}'::xid) OR age(xmin) < 0)", xid & 0xFFFF_FFFF)
}

/// Whether the 32 bits in a row are enough to compare it with `xid`. `next`: the next transaction.
pub(crate) const fn is_comparable(xid: u64, next: u64) -> bool {
    next.saturating_sub(xid) < 2_000_000_000
}

/// Returns the publication's definition as one word. Any change of the publication changes the word, except a change of its comment.
/// `None` if there is no such publication.
///
/// # Errors
/// The connection broke.
pub fn membership(connection: &mut Connection, publication: &str) -> Result<Option<String>, Error> {
    connection.value(&membership_sql(publication))
}

/// As SQL, the publication's definition as one word. The word changes if the publication is recreated or gets other parameters, and if
/// a table or a schema is added, removed, or gets another filter. It does not change with the comment.
pub(crate) fn membership_sql(publication: &str) -> String {
    // The catalog has a row for each table and schema that depends on the publication. pg_publication_namespace came with version 15.
    format!(
        "SELECT pg_catalog.encode(pg_catalog.sha256(pg_catalog.convert_to(p.oid::text || ' ' || p.xmin::text || COALESCE((
                    SELECT pg_catalog.string_agg(' ' || d.classid::text || ' ' || d.objid::text, '' ORDER BY d.classid, d.objid)
                      FROM pg_catalog.pg_depend AS d
                     WHERE d.refclassid = 'pg_catalog.pg_publication'::regclass AND d.refobjid = p.oid), ''), 'UTF8')), 'hex')
           FROM pg_catalog.pg_publication AS p WHERE p.pubname = {}",
        literal(publication)
    )
}

/// The comment on a publication, and whether the connection's role may change it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PublicationMark {
    /// `None`: there is no comment.
    pub comment: Option<String>,
    /// Whether the role owns the publication, or may act as its owner.
    pub owned: bool,
}

/// Reads the comment on a publication.
///
/// # Errors
/// The connection broke.
pub fn publication_mark(connection: &mut Connection, publication: &str) -> Result<PublicationMark, Error> {
    let rows = connection.query_small(&format!(
        "SELECT pg_catalog.obj_description(oid, 'pg_publication'), pg_catalog.pg_has_role(pubowner, 'USAGE')
           FROM pg_catalog.pg_publication WHERE pubname = {}",
        literal(publication)
    ))?;
    let mark = |row: &Row| PublicationMark { comment: row.text(0).map(str::to_owned), owned: row.is_true(1) };
    Ok(rows.first().map(mark).unwrap_or_default())
}

/// The rights of a role.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "each is a right of its own, as the catalog has them")]
pub struct RoleRow {
    /// Whether it has LOGIN.
    pub login: bool,
    /// Whether it has REPLICATION, SUPERUSER, or the role that a managed service has instead.
    pub replicates: bool,
    /// Whether it has CONNECT on the connection's database.
    pub connects: bool,
    /// Whether it may see the sessions of other roles.
    pub reads_stats: bool,
}

/// As SQL, whether a role `r` of `pg_roles` may replicate.
pub(super) const REPLICATES: &str = "(r.rolreplication OR r.rolsuper OR EXISTS (
    SELECT FROM pg_catalog.pg_roles AS g
     WHERE g.rolname = 'rds_replication' AND pg_catalog.pg_has_role(r.oid, g.oid, 'MEMBER')))";

/// Looks a role up. `None`: there is no role of that name.
///
/// # Errors
/// The connection broke.
pub fn role(connection: &mut Connection, name: &str) -> Result<Option<RoleRow>, Error> {
    let rows = connection.query(&format!(
        "SELECT r.rolcanlogin, {REPLICATES},
                pg_catalog.has_database_privilege(r.oid, current_database(), 'CONNECT'),
                pg_catalog.pg_has_role(r.oid, 'pg_read_all_stats', 'MEMBER')
           FROM pg_catalog.pg_roles AS r WHERE r.rolname = {}",
        literal(name)
    ))?;
    Ok(rows.first().map(|row| RoleRow {
        login: row.is_true(0),
        replicates: row.is_true(1),
        connects: row.is_true(2),
        reads_stats: row.is_true(3),
    }))
}

/// A table that a subscription writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubscribedTable {
    /// The subscription.
    pub subscription: String,
    /// The table's schema.
    pub schema: String,
    /// The table.
    pub table: String,
}

/// The tables among `oids` that subscriptions write.
///
/// # Errors
/// The role may not see them, or the connection broke.
pub fn subscriptions(connection: &mut Connection, oids: &[u32]) -> Result<Vec<SubscribedTable>, Error> {
    let oids: Vec<String> = oids.iter().map(u32::to_string).collect();
    let rows = connection.query(&format!(
        "SELECT s.subname, n.nspname, c.relname
           FROM pg_catalog.pg_subscription_rel AS m JOIN pg_catalog.pg_subscription AS s ON s.oid = m.srsubid
           JOIN pg_catalog.pg_class AS c ON c.oid = m.srrelid JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
          WHERE m.srrelid = ANY ('{{{}}}'::oid[]) ORDER BY 1, 2, 3",
        oids.join(",")
    ))?;
    let one = |row: &Row| {
        let text = |index| row.text(index).map(str::to_owned);
        Some(SubscribedTable { subscription: text(0)?, schema: text(1)?, table: text(2)? })
    };
    Ok(rows.iter().filter_map(one).collect())
}

/// Whether the server is Amazon's, where membership in a role gives REPLICATION.
///
/// # Errors
/// The connection broke.
pub fn grants_replication_by_role(connection: &mut Connection) -> Result<bool, Error> {
    let rows = connection.query("SELECT FROM pg_catalog.pg_roles WHERE rolname = 'rds_replication'")?;
    Ok(!rows.is_empty())
}

/// A session. A field is `None` if the connection's role may not see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerSession {
    /// The server process.
    pub pid: u32,
    /// Its role.
    pub user: Option<String>,
    /// Its `application_name`. `None`: it has none.
    pub application: Option<String>,
    /// Its address. `None`: a Unix socket.
    pub client: Option<String>,
    /// `active`, `idle in transaction`, …
    pub state: Option<String>,
    /// The time since its transaction began.
    pub transaction_age: Option<Duration>,
    /// The time since its latest statement began.
    pub statement_age: Option<Duration>,
}

const SESSION: &str = "a.pid, a.usename, nullif(a.application_name, ''), pg_catalog.host(a.client_addr), a.state,
    extract(epoch FROM pg_catalog.clock_timestamp() - a.xact_start)::bigint,
    extract(epoch FROM pg_catalog.clock_timestamp() - a.query_start)::bigint";

/// The session of a server process.
///
/// # Errors
/// The connection broke.
pub fn session(connection: &mut Connection, pid: Option<u32>) -> Result<Option<ServerSession>, Error> {
    let Some(pid) = pid else { return Ok(None) };
    let rows =
        connection.query(&format!("SELECT {SESSION} FROM pg_catalog.pg_stat_activity AS a WHERE a.pid = {pid}"))?;
    Ok(rows.first().and_then(parse_session))
}

/// The sessions that `pid` waits for.
///
/// # Errors
/// The connection broke.
pub fn blockers(connection: &mut Connection, pid: u32) -> Result<Vec<ServerSession>, Error> {
    let rows = connection.query(&format!(
        "SELECT {SESSION} FROM pg_catalog.pg_stat_activity AS a WHERE a.pid = ANY (pg_catalog.pg_blocking_pids({pid}))"
    ))?;
    Ok(rows.iter().filter_map(parse_session).collect())
}

/// The sessions whose transaction has written and has been open for longer than `age`, oldest first. A slot keeps the WAL since their
/// beginning.
///
/// # Errors
/// The connection broke.
pub fn writers_older_than(connection: &mut Connection, age: Duration) -> Result<Vec<ServerSession>, Error> {
    let rows = connection.query(&format!(
        "SELECT {SESSION} FROM pg_catalog.pg_stat_activity AS a
          WHERE a.backend_xid IS NOT NULL AND a.xact_start < pg_catalog.clock_timestamp() - interval '{} s'
          ORDER BY a.xact_start LIMIT 5",
        age.as_secs()
    ))?;
    Ok(rows.iter().filter_map(parse_session).collect())
}

fn parse_session(row: &Row) -> Option<ServerSession> {
    let text = |index| row.text(index).map(str::to_owned);
    let age = |index| row.parse::<i64>(index).map(|seconds| Duration::from_secs(seconds.try_into().unwrap_or(0)));
    Some(ServerSession {
        pid: row.parse(0)?,
        user: text(1),
        application: text(2),
        client: text(3),
        state: text(4),
        transaction_age: age(5),
        statement_age: age(6),
    })
}

/// A transaction that was prepared for two-phase commit, and that is not committed or rolled back yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PreparedTransaction {
    /// Its name.
    pub gid: String,
    /// The role that prepared it.
    pub owner: String,
    /// The database that it belongs to. It can be ended only there.
    pub database: String,
    /// The time since it was prepared.
    pub age: Duration,
}

/// The prepared transactions that `pid` waits for.
///
/// # Errors
/// The connection broke.
pub fn prepared_blockers(connection: &mut Connection, pid: u32) -> Result<Vec<PreparedTransaction>, Error> {
    let rows = connection.query(&format!(
        "SELECT x.gid, x.owner, x.database, extract(epoch FROM pg_catalog.clock_timestamp() - x.prepared)::bigint
           FROM pg_catalog.pg_prepared_xacts AS x
           JOIN pg_catalog.pg_locks AS l ON l.locktype = 'transactionid' AND l.transactionid = x.transaction
          WHERE l.pid = {pid} AND NOT l.granted"
    ))?;
    Ok(rows.iter().map(parse_prepared).collect())
}

/// The prepared transactions of the cluster, oldest first.
///
/// # Errors
/// The connection broke.
pub fn prepared(connection: &mut Connection) -> Result<Vec<PreparedTransaction>, Error> {
    let rows = connection.query(
        "SELECT gid, owner, database, extract(epoch FROM pg_catalog.clock_timestamp() - prepared)::bigint
           FROM pg_catalog.pg_prepared_xacts ORDER BY prepared LIMIT 5",
    )?;
    Ok(rows.iter().map(parse_prepared).collect())
}

fn parse_prepared(row: &Row) -> PreparedTransaction {
    let text = |index| row.text(index).unwrap_or_default().to_owned();
    PreparedTransaction {
        gid: text(0),
        owner: text(1),
        database: text(2),
        age: Duration::from_secs(row.parse::<i64>(3).and_then(|seconds| seconds.try_into().ok()).unwrap_or(0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_that_was_left_out_is_published_again_and_the_others_stay_out() {
        let name = |name: &str| ("public".to_owned(), name.to_owned());
        let sql = |left_out: &[(String, String)]| no_longer_left_out("p", left_out, ("public", "a"));
        assert_eq!(sql(&[name("a")]), "ALTER PUBLICATION \"p\" SET ALL TABLES");
        assert_eq!(
            sql(&[name("a"), name("b"), name("C")]),
            "ALTER PUBLICATION \"p\" SET ALL TABLES EXCEPT (TABLE \"public\".\"b\", \"public\".\"C\")"
        );
    }

    #[test]
    fn wal_level_replica_is_enough_from_19_on() {
        let server = |version, wal_level: &str| ServerRow {
            version,
            version_text: String::new(),
            wal_level: wal_level.to_owned(),
            database: String::new(),
            user: String::new(),
        };
        assert!(server(140_000, "logical").decodes() && server(190_000, "replica").decodes());
        assert!(!server(180_006, "replica").decodes() && !server(190_000, "minimal").decodes());
    }

    #[test]
    fn transactions_two_billion_apart_cannot_be_compared() {
        let next = 1 << 33;
        assert!(is_comparable(next, next) && is_comparable(next - 1_999_999_999, next));
        assert!(!is_comparable(next - 2_000_000_000, next));
    }
}
