//! The facts about Postgres: gathered by queries, judged elsewhere.
//!
//! In: where to look. Out: plain values, each group by itself, so that what can be had is had when another group is refused. Reads
//! only; a question that might take long is bounded by the server.
//! Specification: PostgreSQL manual, chapters 53 "System Catalogs" and 54 "System Views".

use super::asking::{self, Asking};
use super::service::{MARKS, Service};
use crate::commands::AGE_COLUMNS;
use crate::commands::output::COUNT_LIMIT;
use crate::commands::run::{self, RunRequest};
use crate::outbox::{Outbox, TableName};
use crate::pg::catalog::{self, PreparedTransaction, PublicationMark, ServerRow, ServerSession, SubscribedTable};
use crate::pg::leaf_notes::Known;
use crate::pg::leaves::{self, Leaf};
use crate::pg::marker;
use crate::pg::server::{self, Publication, Slot};
use crate::pg::shape::{Shape, shape};
use crate::pg::slot_sighting::{self, Sighting};
use crate::pg::table_tree::TreeTable;
use crate::pg::{self, Connection, Purpose, identifier, literal};
use crate::pgoutput::{PublishedTable, RelationColumn};
use crate::relay::{Clock as _, SystemClock};
use crate::supervise::{self, RunError, Surroundings, agrees};
use std::collections::BTreeMap;
use std::time::Duration;

/// Row filters and column lists came with this version.
const FILTERS_SINCE: u32 = 150_000;

/// How many of a table's latest rows are looked at.
const SAMPLE_ROWS: u32 = 200;

/// How many of its last pages they are looked for in.
const SAMPLE_PAGES: i64 = 64;

/// How long a question about a table's rows may take.
const ROWS_PATIENCE: &str = "SET statement_timeout = '10s'";

/// Everything that is known.
#[derive(Debug)]
pub(super) struct Facts {
    /// Host and port that answered.
    pub(super) host: String,
    /// Why others on the network can read along: TCP without TLS beyond loopback. `None`: they cannot.
    pub(super) unencrypted: Option<String>,
    /// The server.
    pub(super) server: ServerFacts,
    /// Whether a replication connection can be had: then, the cluster's system identifier, and whether another one can be had beside it.
    pub(super) replication: Result<(String, Asking), pg::Error>,
    /// The publication; `None`: there is none.
    pub(super) publication: Option<PublicationFacts>,
    /// The slot; `None`: there is none.
    pub(super) slot: Option<SlotFacts>,
    /// Its tables.
    pub(super) tables: Vec<TableFacts>,
    /// The tables that are wanted, and those below them.
    pub(super) trees: Vec<TreeTable>,
    /// Why a start would end because of them.
    pub(super) refused: Vec<RunError>,
    /// The outbox tables that subscriptions write.
    pub(super) subscriptions: Vec<SubscribedTable>,
    /// Transactions that keep the slot back.
    pub(super) holders: Vec<ServerSession>,
    /// Prepared transactions.
    pub(super) prepared: Vec<PreparedTransaction>,
    /// The names that the database has beside those that the user gave.
    pub(super) around: Surroundings,
}

impl Facts {
    /// The comment on the publication.
    pub(super) fn comment(&self) -> Option<&str> {
        self.publication.as_ref()?.mark.comment.as_deref()
    }

    /// Whether a relay has read the slot.
    pub(super) fn was_read(&self, slot: &str) -> bool {
        let sighting = self.slot.as_ref().and_then(|found| found.sighting.as_ref());
        sighting.is_some_and(|seen| seen.was_read(marker::anchor(self.comment(), slot).as_ref()))
    }
}

/// The server as a whole.
#[derive(Debug, Clone, Default)]
pub(super) struct ServerFacts {
    /// The server's version, database and user.
    pub(super) row: Option<ServerRow>,
    /// The service that runs it.
    pub(super) service: Service,
    /// `pg_settings`, in base units.
    pub(super) settings: BTreeMap<String, String>,
    /// It is a standby.
    pub(super) in_recovery: bool,
    /// Slots in use.
    pub(super) slots: u64,
    /// The most WAL that a slot keeps, in bytes; 0: no slot keeps any. `None`: not known.
    pub(super) most_kept_bytes: Option<u64>,
    /// Walsenders at work, ours not counted.
    pub(super) walsenders: u64,
    /// Physical standbys that are connected.
    pub(super) standbys: u64,
    /// Their `application_name`s.
    pub(super) standby_names: Vec<String>,
    /// The roles and databases that commit asynchronously: `role app`, `database shop`.
    pub(super) asynchronous: Vec<AsyncCommit>,
    /// The lead of its clock over ours, in milliseconds, and the precision of that.
    pub(super) clock_ahead_ms: i64,
    /// Half the round trip.
    pub(super) clock_exact_to_ms: i64,
}

/// Where `synchronous_commit` is turned off.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AsyncCommit {
    /// `None`: for every role.
    pub(super) role: Option<String>,
    /// `None`: in every database.
    pub(super) database: Option<String>,
}

impl ServerFacts {
    /// A setting as a number.
    pub(super) fn number(&self, name: &str) -> Option<i64> {
        self.settings.get(name)?.parse().ok()
    }

    /// `max_slot_wal_keep_size`, in MiB; `None`: unlimited.
    pub(super) fn slot_wal_limit_mib(&self) -> Option<u64> {
        self.number("max_slot_wal_keep_size")?.try_into().ok()
    }

    /// 170011 for 17.11.
    pub(super) fn version(&self) -> u32 {
        self.row.as_ref().map_or(0, |row| row.version)
    }
}

/// The publication.
#[derive(Debug, Clone)]
pub(super) struct PublicationFacts {
    /// Its row.
    pub(super) row: Publication,
    /// The comment on it.
    pub(super) mark: PublicationMark,
}

/// The slot.
#[derive(Debug, Clone)]
pub(super) struct SlotFacts {
    /// Its row.
    pub(super) slot: Slot,
    /// Its reader.
    pub(super) reader: Option<ServerSession>,
    /// Beside the server's state at that moment.
    pub(super) sighting: Option<Sighting>,
    /// Bytes that decoding has written to disk for it, since its statistics began.
    pub(super) spilled_bytes: u64,
    /// How long nobody has read it; before version 17, how old its unread WAL is at least. `None`: somebody reads it, or it is not to be seen.
    pub(super) unread_for: Option<Duration>,
}

/// A table of the publication.
#[derive(Debug)]
pub(super) struct TableFacts {
    /// As it will be announced.
    pub(super) published: PublishedTable,
    /// All its columns that are not generated, published or not.
    pub(super) columns: Vec<ColumnFacts>,
    /// `PARTITION BY`.
    pub(super) partitioned: bool,
    /// `pg_class.relreplident` is of use for updates: there is a key, an index, or all columns.
    pub(super) has_identity: bool,
    /// The publication's row filter on it, as SQL.
    pub(super) filter: Option<String>,
    /// The publication lists columns.
    pub(super) column_list: bool,
    /// As SQL names it, what the publication names: the table, or the table that it is a partition of. `None`: it is in the publication by
    /// its schema, or with all tables.
    pub(super) member: Option<String>,
    /// The planner's estimate.
    pub(super) estimated_rows: i64,
    /// Rows deleted, since its statistics began.
    pub(super) deleted_rows: i64,
    /// The first columns of its indexes.
    pub(super) indexed: Vec<String>,
    /// Its columns, triggers and the like; `None`: it is gone.
    pub(super) shape: Option<Shape>,
    /// Its rows, or why they cannot be looked at.
    pub(super) rows: Result<RowFacts, String>,
}

impl TableFacts {
    /// `schema.table`.
    pub(super) fn name(&self) -> String {
        TableName::of(&self.published.relation).to_string()
    }

    /// As SQL names it.
    pub(super) fn sql_name(&self) -> String {
        TableName::of(&self.published.relation).sql()
    }
}

/// A column that is not generated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ColumnFacts {
    /// As a Relation message has it.
    pub(super) column: RelationColumn,
    /// `NOT NULL`.
    pub(super) not_null: bool,
}

/// The rows of a table.
#[derive(Debug, Clone, Default)]
pub(super) struct RowFacts {
    /// How many, counted up to [`COUNT_LIMIT`] + 1.
    pub(super) count: u64,
    /// How many of them are known to be older than the slot; `None`: not known.
    pub(super) before_slot: Option<u64>,
    /// Rows are older than the slot, and no record says that they are published.
    pub(super) backfill_is_due: bool,
    /// The latest, the last one at the end, in the order of the published columns, as text.
    pub(super) latest: Vec<Vec<Option<String>>>,
}

/// Looks at everything.
///
/// # Errors
/// No connection, or it broke. A question that the server refuses leaves its answer out.
pub(super) fn gather(config: &RunRequest, outbox: &Outbox) -> Result<Facts, pg::Error> {
    let mut connection = Connection::open(&config.source, Purpose::Control)?;
    let server = server_facts(&mut connection)?;
    let publication = match server::publication(&mut connection, &config.publication)? {
        Some(row) => {
            Some(PublicationFacts { row, mark: catalog::publication_mark(&mut connection, &config.publication)? })
        }
        None => None,
    };
    let slot = slot_facts(&mut connection, &config.slot)?;
    let is_read = slot.as_ref().is_some_and(|found| found.slot.row.active);
    let replication = asking::replication(&config.source, &config.slot, is_read);
    let comment = publication.as_ref().and_then(|found| found.mark.comment.as_deref());
    let sighting = slot.as_ref().and_then(|slot| slot.sighting.as_ref());
    let is_marked = sighting.is_some_and(|now| agrees(&config.publication, &config.slot, comment, now).is_ok());
    let since = marker::since(comment, &config.slot).filter(|_| is_marked);
    let mut tables = server::published_tables(&mut connection, &config.publication)?
        .into_iter()
        .map(|table| table_facts(&mut connection, table, &config.publication, server.version(), since))
        .collect::<Result<Vec<_>, _>>()?;
    mark_due(&mut connection, config, comment, &mut tables)?;
    let (refused, trees) = or_none(supervise::refusals(&mut connection, &run::target(config)))?;
    let oids: Vec<u32> = trees.iter().map(|table| table.oid).collect();
    let subscriptions = or_none(catalog::subscriptions(&mut connection, &oids))?;
    let holders = or_none(catalog::writers_older_than(&mut connection, Duration::from_secs(1)))?;
    let prepared = or_none(catalog::prepared(&mut connection))?;
    let around = or_none(Surroundings::gather(
        &mut connection,
        &config.source.user,
        (&config.publication, &config.slot, &config.tables),
        outbox,
    ))?;
    let host = connection.host().to_owned();
    let unencrypted = connection.unencrypted();
    Ok(Facts {
        host,
        unencrypted,
        server,
        replication,
        publication,
        slot,
        tables,
        trees,
        refused,
        subscriptions,
        holders,
        prepared,
        around,
    })
}

/// Marks the tables that a backfill is due for. What the notes say is left out where the role may not read them.
fn mark_due(
    connection: &mut Connection,
    config: &RunRequest,
    comment: Option<&str>,
    tables: &mut [TableFacts],
) -> Result<(), pg::Error> {
    let mut older = Vec::new();
    for table in tables {
        if let Ok(rows) = &mut table.rows
            && rows.before_slot > Some(0)
        {
            older.push((table.published.relation.id, rows));
        }
    }
    if older.is_empty() {
        return Ok(());
    }
    let known = or_none(Known::read(connection, &config.publication, &config.slot, comment))?;
    let leaves = or_none(leaves::look(connection, &config.publication))?;
    for (oid, rows) in older {
        let of_table = |leaf: &&Leaf| !leaf.is_partitioned && leaf.chain.contains(&oid);
        let is_known = |leaf: &Leaf| known.as_ref().is_some_and(|known| known.since(leaf, &leaves).is_some());
        rows.backfill_is_due = !leaves.values().filter(of_table).all(is_known);
    }
    Ok(())
}

/// A refusal by the server is no answer; anything else is the connection's end.
fn or_none<T: Default>(answer: Result<T, pg::Error>) -> Result<T, pg::Error> {
    match answer {
        Err(pg::Error::Server { .. }) => Ok(T::default()),
        answer => answer,
    }
}

fn server_facts(connection: &mut Connection) -> Result<ServerFacts, pg::Error> {
    let row = catalog::server(connection)?;
    let settings = connection.query("SELECT name, setting FROM pg_catalog.pg_settings")?;
    let text = |row: &pg::Row, at| row.text(at).unwrap_or_default().to_owned();
    let settings: BTreeMap<String, String> = settings.iter().map(|row| (text(row, 0), text(row, 1))).collect();
    let names: Vec<String> = MARKS.iter().map(|(name, _)| literal(name)).collect();
    let marks = connection.query(&format!(
        "SELECT name FROM pg_catalog.unnest(ARRAY[{}]) AS name
          WHERE current_setting(name, true) <> '' OR EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = name)",
        names.join(", ")
    ))?;
    let marks = marks.iter().filter_map(|row| row.text(0));
    let service = Service::recognise(marks.chain(settings.keys().map(String::as_str)));
    let counts = connection.query(
        "SELECT pg_catalog.pg_is_in_recovery(), (SELECT count(*) FROM pg_catalog.pg_replication_slots),
                (SELECT count(*) FROM pg_catalog.pg_stat_activity WHERE backend_type = 'walsender'),
                (SELECT count(*) FROM pg_catalog.pg_stat_get_wal_senders() AS s
                   LEFT JOIN pg_catalog.pg_replication_slots AS r ON r.active_pid = s.pid WHERE r.plugin IS NULL AND s.state = 'streaming'),
                (SELECT CASE WHEN count(*) = 0 THEN 0 ELSE max(pg_catalog.pg_wal_lsn_diff(w.now, k.restart_lsn)) END::bigint
                   FROM pg_catalog.pg_replication_slots AS k,
                        (SELECT CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn()
                                     ELSE pg_catalog.pg_current_wal_lsn() END) AS w (now)
                  WHERE k.restart_lsn IS NOT NULL)",
    )?;
    let names = connection.query(
        "SELECT DISTINCT s.application_name FROM pg_catalog.pg_stat_replication AS s
           LEFT JOIN pg_catalog.pg_replication_slots AS r ON r.active_pid = s.pid
          WHERE r.plugin IS NULL AND s.application_name <> '' ORDER BY 1",
    )?;
    let counts = counts.first();
    let count = |at| counts.and_then(|row| row.parse(at)).unwrap_or_default();
    let (clock_ahead_ms, clock_exact_to_ms) = clock(connection)?;
    Ok(ServerFacts {
        row: Some(row),
        service,
        settings,
        in_recovery: counts.is_some_and(|row| row.is_true(0)),
        slots: count(1),
        most_kept_bytes: counts.and_then(|row| row.parse::<i64>(4)).map(|kept| u64::try_from(kept).unwrap_or(0)),
        walsenders: count(2),
        standbys: count(3),
        standby_names: names.iter().filter_map(|row| row.text(0)).map(str::to_owned).collect(),
        asynchronous: asynchronous(connection)?,
        clock_ahead_ms,
        clock_exact_to_ms,
    })
}

/// Defaults of roles and databases; the server's own is in its settings.
fn asynchronous(connection: &mut Connection) -> Result<Vec<AsyncCommit>, pg::Error> {
    let rows = connection.query(
        "SELECT r.rolname, d.datname
           FROM pg_catalog.pg_db_role_setting AS s
           LEFT JOIN pg_catalog.pg_roles AS r ON r.oid = s.setrole
           LEFT JOIN pg_catalog.pg_database AS d ON d.oid = s.setdatabase
          WHERE 'synchronous_commit=off' = ANY (s.setconfig) AND (d.datname = current_database() OR s.setdatabase = 0)
          ORDER BY 1, 2",
    )?;
    let text = |row: &pg::Row, at| row.text(at).map(str::to_owned);
    Ok(rows.iter().map(|row| AsyncCommit { role: text(row, 0), database: text(row, 1) }).collect())
}

/// Returns the lead of the server's clock over ours, and half the round trip, in milliseconds.
fn clock(connection: &mut Connection) -> Result<(i64, i64), pg::Error> {
    let before = now_ms();
    let rows = connection.query("SELECT (extract(epoch FROM pg_catalog.clock_timestamp()) * 1000)::bigint")?;
    let after = now_ms();
    let there: i64 = rows.first().and_then(|row| row.parse(0)).unwrap_or(before);
    Ok((there - i64::midpoint(before, after), (after - before) / 2 + 1))
}

fn now_ms() -> i64 {
    SystemClock.wall().unix_micros() / 1000
}

fn slot_facts(connection: &mut Connection, name: &str) -> Result<Option<SlotFacts>, pg::Error> {
    let Some(slot) = server::slot(connection, name)? else { return Ok(None) };
    let reader = catalog::session(connection, slot.row.active_pid)?;
    let spilled = connection.query(&format!(
        "SELECT spill_bytes FROM pg_catalog.pg_stat_replication_slots WHERE slot_name = {}",
        literal(name)
    ));
    let spilled_bytes = or_none(spilled)?.first().and_then(|row| row.parse(0)).unwrap_or_default();
    let sighting = or_none(slot_sighting::sight(connection, name))?;
    let unread_for = match or_none(server::free_slot(connection, name))? {
        Some(free) if free.released_ago.is_none() => or_none(written_ago(connection, name))?,
        free => free.and_then(|free| free.released_ago),
    };
    Ok(Some(SlotFacts { slot, reader, sighting, spilled_bytes, unread_for }))
}

/// How long ago the WAL that the slot has not confirmed began to be written, at least: its file was changed last then. Servers before 17
/// do not know when a slot was released. `None`: the role may not list the files (`pg_monitor`), nothing was written since, or
/// the server is a standby.
fn written_ago(connection: &mut Connection, name: &str) -> Result<Option<Duration>, pg::Error> {
    let rows = connection.query(&format!(
        "SELECT floor(extract(epoch FROM pg_catalog.clock_timestamp() - f.modification))::bigint
           FROM pg_catalog.pg_replication_slots AS s
           JOIN pg_catalog.pg_ls_waldir() AS f ON f.name = pg_catalog.pg_walfile_name(s.confirmed_flush_lsn)
          WHERE s.slot_name = {} AND NOT pg_catalog.pg_is_in_recovery()
            AND s.confirmed_flush_lsn < pg_catalog.pg_current_wal_lsn()",
        literal(name)
    ))?;
    let seconds: Option<i64> = rows.first().and_then(|row| row.parse(0));
    Ok(seconds.map(|seconds| Duration::from_secs(u64::try_from(seconds).unwrap_or(0))))
}

fn table_facts(
    connection: &mut Connection,
    published: PublishedTable,
    publication: &str,
    version: u32,
    since: Option<u64>,
) -> Result<TableFacts, pg::Error> {
    let oid = published.relation.id;
    let (filter, list) = if version >= FILTERS_SINCE {
        ("pg_catalog.pg_get_expr(m.prqual, m.prrelid)", "m.prattrs IS NOT NULL")
    } else {
        ("NULL", "false")
    };
    let rows = connection.query(&format!(
        "SELECT c.relkind = 'p',
                c.relreplident = 'f' OR EXISTS (
                    SELECT FROM pg_catalog.pg_index AS i WHERE i.indrelid = c.oid
                       AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END),
                {filter}, COALESCE({list}, false),
                (SELECT pg_catalog.format('%I.%I', n.nspname, r.relname) FROM pg_catalog.pg_class AS r
                   JOIN pg_catalog.pg_namespace AS n ON n.oid = r.relnamespace WHERE r.oid = m.prrelid),
                c.reltuples::bigint,
                COALESCE(pg_catalog.pg_stat_get_tuples_deleted(c.oid), 0)
           FROM pg_catalog.pg_class AS c
           LEFT JOIN (pg_catalog.pg_publication_rel AS m
                      JOIN pg_catalog.pg_publication AS p ON p.oid = m.prpubid AND p.pubname = {})
             ON m.prrelid = c.oid OR m.prrelid IN (SELECT relid FROM pg_catalog.pg_partition_ancestors(c.oid))
          WHERE c.oid = {oid}
          ORDER BY m.prrelid = c.oid DESC LIMIT 1",
        literal(publication)
    ))?;
    let row = rows.first();
    let is = |at| row.is_some_and(|row| row.is_true(at));
    let number = |at| row.and_then(|row| row.parse::<i64>(at)).unwrap_or_default();
    let mut facts = TableFacts {
        columns: columns(connection, oid)?,
        partitioned: is(0),
        has_identity: is(1),
        filter: row.and_then(|row| row.text(2)).map(str::to_owned),
        column_list: is(3),
        member: row.and_then(|row| row.text(4)).map(str::to_owned),
        estimated_rows: number(5),
        deleted_rows: number(6),
        indexed: indexed(connection, oid)?,
        shape: shape(connection, &published.relation.namespace, &published.relation.name)?,
        rows: Err(String::new()),
        published,
    };
    facts.rows = match row_facts(connection, &facts, since) {
        Ok(rows) => Ok(rows),
        Err(pg::Error::Server { error, .. }) => Err(error.message.clone()),
        Err(error) => return Err(error),
    };
    Ok(facts)
}

fn columns(connection: &mut Connection, oid: u32) -> Result<Vec<ColumnFacts>, pg::Error> {
    let rows = connection.query(&format!(
        "SELECT attname, atttypid, atttypmod, attnotnull FROM pg_catalog.pg_attribute
          WHERE attrelid = {oid} AND attnum > 0 AND NOT attisdropped AND attgenerated = '' ORDER BY attnum"
    ))?;
    let column = |row: &pg::Row| {
        let column =
            RelationColumn { name: row.text(0)?.to_owned(), type_id: row.parse(1)?, type_modifier: row.parse(2)? };
        Some(ColumnFacts { column, not_null: row.is_true(3) })
    };
    Ok(rows.iter().filter_map(column).collect())
}

fn indexed(connection: &mut Connection, oid: u32) -> Result<Vec<String>, pg::Error> {
    let rows = connection.query(&format!(
        "SELECT DISTINCT a.attname FROM pg_catalog.pg_index AS i
           JOIN pg_catalog.pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
          WHERE i.indrelid = {oid} AND i.indisvalid AND i.indpred IS NULL"
    ))?;
    Ok(rows.iter().filter_map(|row| row.text(0).map(str::to_owned)).collect())
}

fn row_facts(connection: &mut Connection, table: &TableFacts, since: Option<u64>) -> Result<RowFacts, pg::Error> {
    connection.query(ROWS_PATIENCE)?;
    let found = bounded_row_facts(connection, table, since);
    connection.query("SET statement_timeout = 0")?;
    found
}

fn bounded_row_facts(
    connection: &mut Connection,
    table: &TableFacts,
    since: Option<u64>,
) -> Result<RowFacts, pg::Error> {
    let relation = &table.published.relation;
    let count = catalog::count_rows(connection, &relation.namespace, &relation.name, COUNT_LIMIT + 1)?;
    let latest = latest(connection, table, count)?;
    let before_slot = match since {
        Some(xid) if count > 0 => catalog::count_older(connection, &table.sql_name(), xid, COUNT_LIMIT + 1)?,
        Some(_) => Some(0),
        None => None,
    };
    Ok(RowFacts { count, before_slot, backfill_is_due: false, latest })
}

/// The rows that came last: by a column that says when they came, if an index has it; by their transactions, where there are few enough to
/// compare; else those that stand last in the table, which are mostly the latest, as long as no room in it is used again.
fn latest(connection: &mut Connection, table: &TableFacts, count: u64) -> Result<Vec<Vec<Option<String>>>, pg::Error> {
    let columns: Vec<String> = table.published.relation.columns.iter().map(|column| identifier(&column.name)).collect();
    let name = table.sql_name();
    let by_age = AGE_COLUMNS.iter().find(|age| table.indexed.iter().any(|indexed| indexed == *age));
    let is_ordered = by_age.is_some() || count <= COUNT_LIMIT;
    let which = match by_age {
        Some(age) => format!("ORDER BY {} DESC NULLS LAST", identifier(age)),
        None if count <= COUNT_LIMIT => "ORDER BY pg_catalog.age(xmin), ctid DESC".to_owned(),
        // A partitioned table has no pages of its own.
        None if table.partitioned => String::new(),
        None => format!(
            "WHERE ctid >= pg_catalog.format('(%s,0)', GREATEST(pg_catalog.pg_relation_size({}::regclass)
                           / current_setting('block_size')::bigint - {SAMPLE_PAGES}, 0))::tid",
            literal(&name)
        ),
    };
    let rows = connection.query(&format!("SELECT {} FROM {name} {which} LIMIT {SAMPLE_ROWS}", columns.join(", ")))?;
    let values = |row: &pg::Row| (0..columns.len()).map(|at| row.text(at).map(str::to_owned)).collect();
    let mut latest: Vec<_> = rows.iter().map(values).collect();
    if is_ordered {
        latest.reverse();
    }
    Ok(latest)
}
