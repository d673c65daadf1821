//! Runs queries that open the tables of a publication, and so wait for locks on them.
//!
//! From version 16 on, `pg_publication_tables` opens each table of the publication; `pg_get_expr` opens the table of a column's
//! default. ALTER TABLE, VACUUM FULL, CLUSTER and LOCK TABLE lock a table against that until their transaction ends.
//!
//! In: such a query. Out: its rows, or [`Error::Locked`], which names the table and the session that locks it. The wait is short, and
//! the caller may try again.
//! Specification: PostgreSQL manual, sections 13.3 "Explicit Locking", 54.12 "pg_locks".

use super::connection::{Connection, Row, shortened};
use super::error::{Error, sqlstate};
use super::lock_holder::LockHolder;
use super::quoting::literal;

/// How long the server waits for a lock, in milliseconds. So a relay that waits for one reports it within 5 s.
const LOCK_TIMEOUT_MS: u32 = 2000;

/// Runs a query that opens the tables of `publication`.
///
/// # Errors
/// A table is locked, the server refuses the query, or the connection broke.
pub(super) fn query(connection: &mut Connection, publication: &str, sql: &str) -> Result<Vec<Row>, Error> {
    // Both statements are one transaction, so the setting ends with it. The setting takes precedence over the role's.
    let asked = connection.query(&format!("SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}; {sql}"));
    match asked {
        Err(Error::Server { error, .. }) => {
            let locked = error.code == sqlstate::LOCK_NOT_AVAILABLE;
            // Within an explicit transaction, the error has ended it, and the holder cannot be queried. The server's own error then
            // says "lock timeout".
            let holder = if locked { holder(connection, publication).unwrap_or_default() } else { None };
            Err(holder.unwrap_or_else(|| Error::Server { doing: shortened(sql), error }))
        }
        answer => answer,
    }
}

/// Returns the session that locks a table of the publication, as [`Error::Locked`]. `None`: there is no lock any more.
///
/// A session that waits for such a lock makes the query wait, too. Then this returns the session that the waiting one waits for.
fn holder(connection: &mut Connection, publication: &str) -> Result<Option<Error>, Error> {
    let rows = connection.query(&format!(
        "SELECT n.nspname || '.' || c.relname, a.pid, x.gid, nullif(a.application_name, ''), a.state,
                extract(epoch FROM pg_catalog.clock_timestamp() - a.xact_start)::bigint
           FROM pg_catalog.pg_publication AS p, pg_catalog.pg_locks AS l
           JOIN pg_catalog.pg_database AS d ON d.oid = l.database AND d.datname = current_database()
           JOIN pg_catalog.pg_class AS c ON c.oid = l.relation AND c.relkind IN ('r', 'p')
           JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
           LEFT JOIN pg_catalog.pg_prepared_xacts AS x ON l.virtualtransaction = '-1/' || x.transaction::text
           LEFT JOIN pg_catalog.pg_stat_activity AS a ON a.pid = COALESCE(
                (SELECT b.pid FROM pg_catalog.unnest(pg_catalog.pg_blocking_pids(l.pid)) AS b (pid)
                  WHERE NOT l.granted AND b.pid <> 0 LIMIT 1), l.pid)
          WHERE p.pubname = {} AND l.locktype = 'relation' AND l.mode = 'AccessExclusiveLock'
            AND (p.puballtables
                 OR EXISTS (SELECT FROM pg_catalog.pg_publication_rel AS m
                             WHERE m.prpubid = p.oid AND m.prrelid IN (
                                   SELECT c.oid UNION SELECT t.relid FROM pg_catalog.pg_partition_ancestors(c.oid) AS t (relid)))
                 OR EXISTS (SELECT FROM pg_catalog.pg_depend AS s
                              JOIN pg_catalog.pg_depend AS o ON o.classid = s.classid AND o.objid = s.objid
                             WHERE s.refclassid = 'pg_catalog.pg_publication'::regclass AND s.refobjid = p.oid
                               AND o.refclassid = 'pg_catalog.pg_namespace'::regclass AND o.refobjid = n.oid))
          ORDER BY l.granted DESC, a.xact_start LIMIT 1",
        literal(publication)
    ))?;
    let text = |row: &Row, at| row.text(at).map(str::to_owned);
    let locked = |row: &Row| {
        Some(Error::Locked {
            table: text(row, 0)?,
            holder: Box::new(LockHolder {
                pid: row.parse(1),
                gid: text(row, 2),
                application: text(row, 3),
                state: text(row, 4),
                open_for_s: row.parse(5),
            }),
        })
    };
    Ok(rows.first().and_then(locked))
}
