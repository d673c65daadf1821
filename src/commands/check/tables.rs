//! The outbox tables: which column is which, and what the rows that are there say.
//!
//! In: [`TableFacts`] and the settings. Out: findings and a report for each table. Pure.

use super::facts::{Facts, TableFacts};
use super::report::TableReport;
use super::sample::{Sample, sample};
use crate::check_finding::{Finding, Fix, Side};
use crate::commands::AGE_COLUMNS;
use crate::commands::carrier::publishing_again;
use crate::commands::output::{bytes, counted_rows};
use crate::commands::run;
use crate::outbox::TableName;
use crate::outbox::{Outbox, PlanError, Role, TablePlan};
use crate::pg::{catalog, identifier, marker, names};
use crate::relay::BadRowAction;
use crate::remedy::{Command, Remedy};
use crate::route::TopicSetting;
use crate::supervise::REPUBLISH_PAGE;
use std::collections::BTreeSet;

/// The subject of the findings here.
const SIDE: Side = Side::Table;

/// jsonb's `pg_type.oid`.
const JSONB: u32 = 3802;

/// Columns by which polling workers put rows off.
const SCHEDULE_COLUMNS: [&str; 14] = [
    "execute_at",
    "next_retry_at",
    "scheduled_at",
    "scheduled_for",
    "available_at",
    "process_after",
    "visible_at",
    "deliver_at",
    "run_at",
    "not_before",
    "send_at",
    "publish_at",
    "due_at",
    "retry_at",
];

/// From how many rows on a prune without an index is felt.
const MANY_ROWS: i64 = 10_000;

/// The limit of a change of the publication.
const OLDER_ROWS: &str =
    "a change counts for rows committed after it: the slot sends older ones with the publication as it was then";

/// The findings of all tables.
#[derive(Debug, Default)]
pub(super) struct Tables {
    pub(super) findings: Vec<Finding>,
    pub(super) reports: Vec<TableReport>,
    /// The topics of the latest rows.
    pub(super) topics: BTreeSet<String>,
    /// Bytes of the largest record.
    pub(super) largest_bytes: usize,
    /// Records without a key are among them, or all are.
    pub(super) without_key: bool,
}

/// Looks at each table that `run` would publish from. `outbox` has the settings.
pub(super) fn tables(config: &run::RunRequest, facts: &Facts, outbox: &mut Outbox) -> Tables {
    let mut all = Tables::default();
    for table in &facts.tables {
        let mut report = TableReport { table: table.name(), roles: Vec::new(), sample_topic: None };
        let found = match sample(outbox, table) {
            Ok(Some(sample)) => {
                let found = mapped(config, table, &sample, outbox, &mut report);
                all.take(sample);
                [found, publication(config, facts, table), rows(config, facts, table)].concat()
            }
            Ok(None) => vec![SIDE.ok("covered", "not named by --table: its rows are not published")],
            Err(error) => {
                let found = unmappable(config, table, outbox, &error);
                [vec![found], publication(config, facts, table), rows(config, facts, table)].concat()
            }
        };
        all.findings.extend(found.into_iter().map(|finding| finding.of(&report.table)));
        all.reports.push(report);
    }
    all
}

impl Tables {
    fn take(&mut self, sample: Sample) {
        self.without_key |= sample.without_key > 0;
        self.largest_bytes = self.largest_bytes.max(sample.largest_bytes);
        self.topics.extend(sample.topics);
    }
}

/// The findings about columns and the latest rows.
fn mapped(
    config: &run::RunRequest,
    table: &TableFacts,
    sample: &Sample,
    outbox: &Outbox,
    report: &mut TableReport,
) -> Vec<Finding> {
    let Some(plan) = outbox.plan(table.published.relation.id) else { return Vec::new() };
    report.roles = plan.roles();
    report.sample_topic = Some(sample.last_topic.clone().unwrap_or_else(|| outbox.topic_example(plan)));
    let mut found = vec![SIDE.ok("columns", "every role that is needed has its column")];
    if plan.column(Role::Key).is_none() {
        let (finding, fix) = without_key(config, table, plan);
        found.push(
            SIDE.warn("key", finding)
                .why("records have null keys: they spread over the partitions, and consumers see them in no order")
                .with_fix(fix),
        );
    }
    found.extend(nullable(table, plan));
    found.extend(shared_out(config, table, plan));
    found.extend(payload(table, plan));
    found.extend(scheduled(table));
    found.extend(bad_rows(config, table, sample));
    found
}

/// Why records have no key, and what gives them one.
fn without_key(config: &run::RunRequest, table: &TableFacts, plan: &TablePlan) -> (String, Fix) {
    let published: Vec<&str> = table.published.relation.columns.iter().map(|column| column.name.as_str()).collect();
    let is_there = |name: &str| table.columns.iter().any(|have| have.column.name == name);
    let hidden = Role::Key.names().iter().copied().find(|name| is_there(name) && !published.contains(name));
    if let Some(hidden) = hidden
        && let columns = [published.as_slice(), &[hidden]].concat()
        && let Some(sql) = in_publication(config, table, &columns, table.filter.as_deref())
    {
        let text = format!("the publication's column list hides {hidden}, the column of the key");
        return (text, Fix::bounded(publication_change(config, [table], sql)));
    }
    let likely = |name: &&&str| name.ends_with("id") && Some(**name) != plan.column(Role::Id);
    let fix = match published.iter().find(likely) {
        Some(name) => Fix::bounded(Command::new("run").set("--key-column", name)),
        None => Fix::safe(format!(
            "ALTER TABLE {} ADD COLUMN aggregateid text; -- and have the application write the key there",
            table.sql_name()
        )),
    };
    ("no column for the key: aggregateid, aggregate_id".to_owned(), fix)
}

/// Columns that the topic is made of and that may be null.
fn nullable(table: &TableFacts, plan: &TablePlan) -> Option<Finding> {
    let may_be_null = |name: &str| table.columns.iter().any(|have| have.column.name == name && !have.not_null);
    let mut names: Vec<&str> = plan.topic_columns().filter(|name| may_be_null(name)).collect();
    names.extend(plan.column(Role::Id).filter(|name| may_be_null(name)));
    names.dedup();
    if names.is_empty() {
        return None;
    }
    Some(
        SIDE.warn("nulls", format!("may be null: {}", names.join(", ")))
            .why("a row with a null there has no topic, or no id: it stops the relay")
            .words("have the application always write a value there; NOT NULL on a table in use refuses its inserts with a null, and is set under a lock while the whole table is read"),
    )
}

fn payload(table: &TableFacts, plan: &TablePlan) -> Option<Finding> {
    let name = plan.column(Role::Payload)?;
    let column = table.columns.iter().find(|have| have.column.name == name)?;
    (column.column.type_id == JSONB).then(|| {
        SIDE.ok("payload_type", format!("{name} is jsonb"))
            .why("the server turns each back into text, with keys reordered: text or json is decoded 1.5 times as fast")
            .words("nothing has to be done; a new outbox table can have it as text or json. Another type for this one rewrites the table under a lock, and no record of what was published holds for it then")
    })
}

/// Rows of one key must be in one shard.
fn shared_out(config: &run::RunRequest, table: &TableFacts, plan: &TablePlan) -> Option<Finding> {
    let shard = config.shard?;
    let Some(filter) = &table.filter else {
        let finding = SIDE.fail("shard_key", format!("publication \"{}\" has all of its rows", config.publication));
        let setup = Command::new("setup").set("--shards", "N").flag("--apply");
        let fix = Remedy::from(setup).and(" creates publications with filters");
        return Some(finding.why("each shard publishes them").bounded(fix));
    };
    let key = plan.column(Role::Key).filter(|key| !filter.contains(*key))?;
    let finding = SIDE.fail("shard_key", format!("its rows are shared out by another column than the key, \"{key}\""));
    let fix = Remedy::from("the same --key-column as setup --shards had; or ")
        .and(Command::new("setup").set("--reshard", "N").set("--key-column", key).flag("--apply"))
        .and(format!(", with N other than {}", shard.count()));
    Some(finding.why("rows of a key may be in several shards, which publish them in no order").bounded(fix))
}

/// A row filter that names the column has dealt with it.
fn scheduled(table: &TableFacts) -> Vec<Finding> {
    let filtered = |name: &str| table.filter.as_ref().is_some_and(|filter| filter.contains(name));
    let columns = table.columns.iter().map(|have| have.column.name.as_str());
    let columns = columns.filter(|name| SCHEDULE_COLUMNS.contains(name) && !filtered(name));
    columns
        .map(|name| {
            SIDE.warn("schedule", format!("column {name}: rows meant for later are published at once"))
                .why("walrelay publishes a row when it is committed: this column neither delays it nor retries it")
                .words("insert such rows when they are due; a row filter would keep them out for good")
        })
        .collect()
}

fn bad_rows(config: &run::RunRequest, table: &TableFacts, sample: &Sample) -> Option<Finding> {
    let reason = sample.bad.first()?;
    let looked_at = table.rows.as_ref().map_or(0, |rows| rows.latest.len());
    let text = format!("{} of the latest {looked_at} rows cannot be published: {}", sample.bad.len(), reason.text);
    let fix = match &config.mapping.topic {
        crate::route::TopicSetting::Template(text) if reason.name_is_invalid && !text.contains("kebab") => {
            Fix::bounded(Command::new("run").set("--topic", text.replace('}', "|kebab}")))
        }
        TopicSetting::Template(_) | TopicSetting::Regex { .. } => {
            Fix::words("in one transaction, delete the row and insert it again with correct values")
        }
    };
    Some(match config.bad_rows.action {
        BadRowAction::Stop => SIDE.fail("rows", text).why("the relay stops before the first of them").with_fix(fix),
        BadRowAction::DeadLetter => SIDE
            .warn("rows", text)
            .why("they go to the dead-letter topic: walrelay dead-letters lists them")
            .with_fix(fix),
        BadRowAction::Skip => SIDE.warn("rows", text).why("they are counted, and published nowhere").with_fix(fix),
    })
}

/// A column that is there, and that the publication's list leaves out.
fn unmappable(config: &run::RunRequest, table: &TableFacts, outbox: &mut Outbox, error: &PlanError) -> Finding {
    let mut whole = table.published.clone();
    whole.relation.columns = table.columns.iter().map(|have| have.column.clone()).collect();
    let of_all = if table.column_list { outbox.published(&[whole]) } else { Err(error.clone()) };
    match of_all {
        Ok(_) => SIDE
            .fail("columns", format!("the publication's column list hides what is needed: {error}"))
            .why(format!("the server does not send the column; {OLDER_ROWS}"))
            .bounded(
                // No backfill goes first: it lacks the column as well.
                in_publication(config, table, &[], table.filter.as_deref()).map_or_else(|| error.hint(), Remedy::sql),
            ),
        // What was meant may be among the columns that are hidden.
        Err(of_all) => {
            SIDE.fail("columns", error.to_string()).why("the relay ends before its first row").bounded(of_all.hint())
        }
    }
}

/// A statement that changes the publication, or these tables in it. What `setup` and `backfill` have recorded of the tables is true for the
/// publication as it was: where rows from before the slot are still to be published, `backfill` goes first.
pub(super) fn publication_change<'t>(
    config: &run::RunRequest,
    tables: impl IntoIterator<Item = &'t TableFacts>,
    sql: String,
) -> Remedy {
    let due: BTreeSet<String> = tables
        .into_iter()
        .filter(|table| table.rows.as_ref().is_ok_and(|rows| rows.backfill_is_due))
        .map(|table| TableName::of_whole(&table.published).as_typed())
        .collect();
    if due.is_empty() {
        return Remedy::sql(sql);
    }
    let backfill = Command::new("backfill").set("--slot", &config.slot).set("--publication", &config.publication);
    let backfill = due.iter().fold(backfill, |backfill, table| backfill.set("--table", table));
    Remedy::from("after ").and(backfill).and(": ").and(Remedy::sql(sql))
}

/// The columns that the publication lists; none: all.
fn listed(table: &TableFacts) -> Vec<&str> {
    let columns = table.published.relation.columns.iter().filter(|_| table.column_list);
    columns.map(|column| column.name.as_str()).collect()
}

/// The statement that puts the table into the publication again, with these columns (none: all) and this filter. `None`: the publication does
/// not name it.
fn in_publication(
    config: &run::RunRequest,
    table: &TableFacts,
    columns: &[&str],
    filter: Option<&str>,
) -> Option<String> {
    Some(names::with_columns(&config.publication, table.member.as_deref()?, columns, filter))
}

/// How the publication has it.
fn publication(config: &run::RunRequest, facts: &Facts, table: &TableFacts) -> Vec<Finding> {
    let Some(publication) = &facts.publication else { return Vec::new() };
    let name = identifier(&config.publication);
    let mut found = Vec::new();
    if let Some(filter) = table.filter.as_ref().filter(|_| config.shard.is_none()) {
        let found_filter = SIDE
            .warn("row_filter", format!("only rows where {filter}"))
            .why(format!("other rows are never published, without any message; {OLDER_ROWS}"));
        found.push(match in_publication(config, table, &listed(table), None) {
            Some(sql) => found_filter.bounded(publication_change(config, [table], sql)),
            None => found_filter,
        });
    }
    if (publication.row.pubupdate || publication.row.pubdelete) && !table.has_identity {
        found.push(
            SIDE.warn("identity", "the publication carries updates or deletes, and the table has no replica identity")
                .why("Postgres refuses UPDATE and DELETE on it, the application's and those of walrelay prune")
                .bounded(publication_change(
                    config,
                    &facts.tables,
                    format!("ALTER PUBLICATION {name} SET (publish = 'insert');"),
                )),
        );
    }
    if table.partitioned {
        found.push(SIDE.ok("partitions", "its partitions' rows come as its own (publish_via_partition_root)"));
    } else if let Some((schema, root)) = table.published.ancestors.last() {
        found.push(
            SIDE.ok("partitions", format!("a partition of {schema}.{root}, announced as itself"))
                .why("fine for walrelay; other readers of the publication see each partition as a table")
                .bounded(publication_change(
                    config,
                    &facts.tables,
                    format!("ALTER PUBLICATION {name} SET (publish_via_partition_root = true);"),
                )),
        );
    }
    found
}

/// Findings about the table's rows.
fn rows(config: &run::RunRequest, facts: &Facts, table: &TableFacts) -> Vec<Finding> {
    let mut found: Vec<Finding> = pruned_without_index(table).into_iter().collect();
    match &table.rows {
        Err(refusal) => found.push(
            SIDE.ok("rows_seen", format!("its rows were not checked: {refusal}"))
                .why("run needs no right on the table; with it check sees topics, sizes, and rows from before the slot")
                .safe(format!("GRANT SELECT ON {} TO {};", table.sql_name(), identifier(&config.source.user))),
        ),
        Ok(rows) if facts.slot.is_none() && rows.count > 0 => found.push(
            SIDE.warn("before_slot", format!("{} there already, from before the slot is created", counted(rows.count)))
                .why("a slot publishes what is committed after it was created; check then names the command that publishes what is older")
                .bounded(set_up(config, table)),
        ),
        Ok(rows) => found.extend(rows.before_slot.and_then(|count| before_slot(config, facts, table, count))),
    }
    found
}

fn before_slot(config: &run::RunRequest, facts: &Facts, table: &TableFacts, count: u64) -> Option<Finding> {
    if count == 0 {
        return Some(SIDE.ok("before_slot", "no row is older than the slot"));
    }
    let xid = marker::since(facts.comment(), &config.slot)?;
    let has = |name: &&str| table.columns.iter().any(|have| have.column.name == **name);
    let id =
        config.mapping.id_column.as_deref().or_else(|| Role::Id.names().iter().copied().find(has)).unwrap_or_default();
    Some(
        SIDE.warn("before_slot", format!("{} older than the slot: never published by it", counted(count)))
            .why("a slot publishes what is committed after it was created; the statement deletes these rows and inserts them again, through the slot")
            .bounded(match &table.shape {
                Some(shape) => publishing_again(shape, &TableName::of(&table.published.relation), &catalog::older_than(xid), id) + ";",
                None => format!("see {REPUBLISH_PAGE}"),
            }),
    )
}

fn set_up(config: &run::RunRequest, table: &TableFacts) -> Command {
    Command::new("setup")
        .flag("--apply")
        .set("--slot", &config.slot)
        .set("--publication", &config.publication)
        .set("--table", TableName::of(&table.published.relation).as_typed())
}

fn counted(count: u64) -> String {
    format!("{} {}", counted_rows(count), if count == 1 { "is" } else { "are" })
}

/// Deleting by age reads the whole table each time.
fn pruned_without_index(table: &TableFacts) -> Option<Finding> {
    let age = AGE_COLUMNS.iter().find(|name| table.columns.iter().any(|have| have.column.name == **name))?;
    let indexed = table.indexed.iter().any(|first| first == age);
    (!indexed && table.deleted_rows > 0 && table.estimated_rows >= MANY_ROWS).then(|| {
        SIDE.warn("age_index", format!("rows are deleted from it, and {age} has no index"))
            .why("deleting old rows reads the whole table each time")
            .safe(format!("CREATE INDEX CONCURRENTLY ON {} ({});", table.sql_name(), identifier(age)))
    })
}

/// A row that is larger than what is accepted.
pub(super) fn largest(config: &run::RunRequest, bytes_seen: usize) -> Option<Finding> {
    (bytes_seen > config.limits.max_row).then(|| {
        Side::Postgres
            .fail(
                "largest_row",
                format!("the largest record has {}, --max-row is {}", size(bytes_seen), size(config.limits.max_row)),
            )
            .why("the relay stops before it")
            .bounded(Command::new("run").set("--max-row", format_args!("{}KiB", bytes_seen.next_power_of_two() >> 10)))
    })
}

pub(super) fn size(count: usize) -> String {
    bytes(u64::try_from(count).unwrap_or(u64::MAX))
}
