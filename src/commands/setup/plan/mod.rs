//! Plans what `setup` has to create, as SQL in the order in which it has to run.
//!
//! In: the request, and the state of the database. Out: steps, warnings, and a script for `psql`. Pure. Invariants: no step drops or
//! replaces an object that exists. An empty plan means that there is nothing to do.

use super::SetupRequest;
use crate::commands::error::CommandError;
use crate::commands::output::Told;
use crate::outbox::TableName;
use crate::pg::catalog::{PublicationMark, RoleRow, ServerRow, TableRow};
use crate::pg::marker;
use crate::pg::server::{Publication, Slot};
use crate::pg::slot_sighting::{self, Agreement, Sighting};
use crate::pg::{self, catalog, identifier, leaves, literal};
use crate::remedy::{Command, Remedy};
use crate::supervise::{REPUBLISH_PAGE, RunError, check_slot};
use serde_json::json;
use std::collections::BTreeSet;

/// The file with the outbox table, which users read as well.
const TABLE: &str = include_str!("../../../../sql/outbox.sql");

/// The table's name in that file.
const TABLE_NAME: &str = "public.outbox";

/// Makes `psql` stop at the first statement that fails.
pub(super) const STOP_ON_ERROR: &str = "\\set ON_ERROR_STOP on\n";

/// The first version whose slots standbys can keep.
const FAILOVER_SLOTS: u32 = 170_000;

/// The first version that skips changes that are older than the publication, instead of ending the stream.
const MISSING_PUBLICATION_PASSES: u32 = 180_000;

/// The state of the database.
#[derive(Debug, Clone)]
pub(super) struct SetupFacts {
    pub(super) server: ServerRow,
    pub(super) publication: Option<PublicationFacts>,
    /// The tables that are asked for, in the order of the request.
    pub(super) tables: Vec<TableFacts>,
    pub(super) slot: Option<Slot>,
    /// The slot, together with the server's state at that moment.
    pub(super) sighting: Option<Sighting>,
    /// The role that is asked for. `None`: it does not exist.
    pub(super) role: Option<RoleRow>,
    /// Whether the server gives the right of replication by membership in `rds_replication`.
    pub(super) grants_by_role: bool,
}

#[derive(Debug, Clone)]
pub(super) struct PublicationFacts {
    pub(super) row: Publication,
    pub(super) mark: PublicationMark,
    /// Whether its marker has a token, and was written in this database of this cluster.
    pub(super) has_token: bool,
    /// The tables that it leaves out, although it is FOR ALL TABLES.
    pub(super) left_out: Vec<(String, String)>,
}

#[derive(Debug, Clone)]
pub(super) struct TableFacts {
    pub(super) filter: TableName,
    /// `None`: there is no such table.
    pub(super) row: Option<TableRow>,
    /// Whether the publication has it: by its name, by its schema, or since it is FOR ALL TABLES.
    pub(super) covered: bool,
}

/// The kinds of steps, in the order in which they run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StepKind {
    /// Sets `wal_level`, which needs a restart of the server.
    WalLevel,
    Table,
    Publication,
    /// Adds a table to the publication.
    Member,
    Role,
    /// Records that the slot is to be created.
    Intent,
    Slot,
    Mark,
}

impl StepKind {
    /// Whether it runs in the one transaction of all such steps.
    pub(super) const fn is_transactional(self) -> bool {
        matches!(self, Self::Table | Self::Publication | Self::Member | Self::Role | Self::Intent)
    }

    /// The verb before the step is done, and after.
    const fn verbs(self) -> (&'static str, &'static str) {
        match self {
            Self::WalLevel => ("set", "set"),
            Self::Table | Self::Publication | Self::Slot => ("create", "created"),
            Self::Member => ("add", "added"),
            Self::Role => ("prepare", "prepared"),
            Self::Mark | Self::Intent => ("mark", "marked"),
        }
    }
}

/// A step of the plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) kind: StepKind,
    /// The object of the verb: `slot "walrelay"`.
    what: String,
    /// One statement, or several, without the last semicolon.
    pub(super) sql: String,
    /// The comment in the script.
    comment: String,
    /// The remedy if the role lacks a right. `None`: none is known.
    fix: Option<Remedy>,
}

impl Step {
    /// The step that creates the slot of the request. `user` runs it.
    pub(super) fn new_slot(request: &SetupRequest, user: &str) -> Self {
        let failover = if request.failover { ", failover => true" } else { "" };
        // `--apply` uses a replication command instead of this SQL, since that returns a snapshot: see `slot`.
        Self {
            kind: StepKind::Slot,
            what: format!("slot \"{}\"", request.slot),
            sql: format!(
                "SELECT lsn FROM pg_catalog.pg_create_logical_replication_slot({}, 'pgoutput'{failover})",
                literal(&request.slot)
            ),
            comment: "Rows committed from here on are published. Run this by itself, not inside a transaction. It waits until the transactions that are\nopen now have ended. A slot keeps WAL on disk until it is read: set max_slot_wal_keep_size to what the disk allows.".to_owned(),
            fix: Some(
                Remedy::sql(format!("ALTER ROLE {} REPLICATION;", identifier(user)))
                    .and(" (managed services: GRANT rds_replication TO …;, or their own role)"),
            ),
        }
    }

    /// Whether it is told to people. The intent is, as soon as the slot is there, a part of the mark.
    pub(super) fn is_told(&self) -> bool {
        self.kind != StepKind::Intent
    }

    /// Says what is to be done: `create slot "walrelay"`.
    pub(super) fn to_do(&self) -> String {
        format!("{} {}", self.kind.verbs().0, self.what)
    }

    /// Says what has been done: `created slot "walrelay"`.
    pub(super) fn done(&self) -> String {
        format!("{} {}", self.kind.verbs().1, self.what)
    }

    /// The error if the server refuses the step.
    pub(super) fn refused(&self, source: pg::Error) -> CommandError {
        if !matches!(source, pg::Error::Server { .. }) {
            return source.into();
        }
        CommandError::refused(self.to_do(), self.fix.clone(), source)
    }
}

/// The steps that are left, with warnings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) steps: Vec<Step>,
    pub(super) warnings: Vec<String>,
}

impl Plan {
    /// The first step of a kind.
    pub(super) fn step(&self, kind: StepKind) -> Option<&Step> {
        self.steps.iter().find(|step| step.kind == kind)
    }
}

/// Compares the request with the state of the database.
pub(super) fn plan(request: &SetupRequest, facts: &SetupFacts) -> Result<Plan, CommandError> {
    refuse(request, facts)?;
    let steps = [wal_level(facts), new_table(request, facts), publication(request, facts)]
        .into_iter()
        .flatten()
        .chain(members(request, facts))
        .chain(role(request, facts))
        .chain(intent(request, facts))
        .chain(facts.slot.is_none().then(|| Step::new_slot(request, &facts.server.user)))
        .chain(mark(request, facts))
        .collect();
    Ok(Plan { steps, warnings: warnings(request, facts) })
}

/// Refuses a request that no step can fulfil.
fn refuse(request: &SetupRequest, facts: &SetupFacts) -> Result<(), CommandError> {
    if request.failover && facts.server.version < FAILOVER_SLOTS {
        return Err(CommandError::no_failover_slots(&facts.server.version_text));
    }
    if let Some(slot) = &facts.slot {
        check_slot(&request.slot, &facts.server.database, slot)?;
    }
    is_not_lost(request, facts)?;
    // What would be written beside it may contradict it.
    let unknown = marker::unknown_line(comment(facts), &request.slot);
    if let Some(line) = unknown.filter(|_| intent(request, facts).is_some() || mark(request, facts).is_some()) {
        return Err(RunError::unknown_marker(&request.slot, &request.publication, line).into());
    }
    let marks = facts.slot.is_none() || request.after_loss;
    if let Some(found) = facts.publication.as_ref().filter(|found| !found.mark.owned && marks) {
        let (comment, user) = (found.mark.comment.as_deref(), &facts.server.user);
        return Err(CommandError::not_markable(
            &request.publication,
            user,
            &mark_sql(&request.publication, comment, &request.slot),
        ));
    }
    tables_are_named(request, facts)?;
    let missing = facts.tables.iter().skip(usize::from(request.create_table)).find(|table| table.row.is_none());
    if let Some(TableFacts { filter, .. }) = missing {
        return Err(CommandError::no_table(filter, &facts.server.database));
    }
    match &facts.publication {
        Some(found) if !found.row.pubinsert => Err(RunError::no_inserts(&request.publication).into()),
        Some(_) | None => Ok(()),
    }
}

/// A slot that was lost is not created again in silence, and another slot is not taken for it.
fn is_not_lost(request: &SetupRequest, facts: &SetupFacts) -> Result<(), CommandError> {
    if request.after_loss || !marker::is_set(comment(facts), &request.slot) {
        return Ok(());
    }
    let (Some(slot), Some(sighting)) = (&facts.slot, &facts.sighting) else {
        return Err(RunError::no_slot(&request.slot, true).into());
    };
    let Some(anchor) = marker::anchor(comment(facts), &request.slot) else { return Ok(()) };
    match anchor.agrees(sighting) {
        // An upgraded cluster has another identifier, and its slots. A promoted server has another timeline, and may have slots that somebody
        // has copied.
        Agreement::Fits | Agreement::OtherCluster | Agreement::OtherTimeline => Ok(()),
        Agreement::Refuted => {
            let confirmed = slot.confirmed_flush_lsn.unwrap_or_default();
            Err(RunError::slot_not_marked(&request.slot, &request.publication, anchor.written, confirmed).into())
        }
    }
}

fn tables_are_named(request: &SetupRequest, facts: &SetupFacts) -> Result<(), CommandError> {
    let why = match &facts.publication {
        _ if !request.tables.is_empty() => return Ok(()),
        None => {
            format!("publication \"{}\" does not exist, and which tables it is for has to be said", request.publication)
        }
        Some(_) if request.create_table => "--create-table creates the table that it names".to_owned(),
        Some(_) => return Ok(()),
    };
    let example = request.told().add_to(Command::new("setup")).set("--table", "public.outbox");
    Err(CommandError::flag_needed("--table", &why, example))
}

fn wal_level(facts: &SetupFacts) -> Option<Step> {
    let found = &facts.server.wal_level;
    (!facts.server.decodes()).then(|| Step {
        kind: StepKind::WalLevel,
        what: "wal_level".to_owned(),
        sql: "ALTER SYSTEM SET wal_level = logical".to_owned(),
        comment: format!("It is {found}. Then restart Postgres, before you run the rest. Managed services have a parameter for it\n(rds.logical_replication, cloudsql.logical_decoding, …)."),
        fix: None,
    })
}

fn new_table(request: &SetupRequest, facts: &SetupFacts) -> Option<Step> {
    let first = facts.tables.first().filter(|first| request.create_table && first.row.is_none())?;
    let statement = TABLE.find("CREATE TABLE").and_then(|start| TABLE.get(start..)).unwrap_or_default();
    Some(Step {
        kind: StepKind::Table,
        what: format!("table {}", first.filter),
        sql: statement.trim().trim_end_matches(';').replacen(TABLE_NAME, &first.filter.sql(), 1),
        comment: "The table that the application writes its events to, in the transaction that changes its own tables."
            .to_owned(),
        fix: Some(Remedy::sql(format!(
            "GRANT USAGE, CREATE ON SCHEMA {} TO {};",
            identifier(&first.filter.schema),
            identifier(&facts.server.user)
        ))),
    })
}

fn publication(request: &SetupRequest, facts: &SetupFacts) -> Option<Step> {
    if facts.publication.is_some() {
        return None;
    }
    let tables: Vec<String> = request.tables.iter().map(|table| added(request, table)).collect();
    let names: Vec<String> = request.tables.iter().map(ToString::to_string).collect();
    let name = identifier(&request.publication);
    let mut comment = "Which tables' inserts leave the database. To be created before the slot.".to_owned();
    for partitioned in facts.tables.iter().filter(|table| table.row.is_some_and(|row| row.partitioned)) {
        let advice = format!(
            "\n{} is partitioned. Its rows come as rows of the partitions; as rows of {} itself with\nALTER PUBLICATION {name} SET (publish_via_partition_root = true); walrelay reads both.",
            partitioned.filter, partitioned.filter
        );
        comment.push_str(&advice);
    }
    Some(Step {
        kind: StepKind::Publication,
        what: format!("publication \"{}\" for {}", request.publication, names.join(", ")),
        sql: format!("CREATE PUBLICATION {name} FOR TABLE {} WITH (publish = 'insert')", tables.join(", ")),
        comment,
        fix: Some(
            format!(
                "run it as the owner of the tables, with: GRANT CREATE ON DATABASE {} TO {};",
                identifier(&facts.server.database),
                identifier(&facts.server.user)
            )
            .into(),
        ),
    })
}

/// The tables that an existing publication lacks. A publication FOR ALL TABLES lacks only the tables that it leaves out.
pub(super) fn lacking(facts: &SetupFacts) -> impl Iterator<Item = &TableFacts> {
    let publication = facts.publication.as_ref();
    let is_left_out = move |table: &TableFacts| {
        let name = (table.filter.schema.clone(), table.filter.name.clone());
        publication.is_some_and(|found| !found.row.puballtables || found.left_out.contains(&name))
    };
    facts.tables.iter().filter(move |table| !table.covered && is_left_out(table))
}

/// A table as a publication names it: without `ONLY`, the tables that inherit from it are added, too.
fn added(request: &SetupRequest, table: &TableName) -> String {
    let only = if request.without_children.contains(table) { "ONLY " } else { "" };
    format!("{only}{}", table.sql())
}

fn members(request: &SetupRequest, facts: &SetupFacts) -> Vec<Step> {
    let mut left_out = facts.publication.as_ref().map(|found| found.left_out.clone()).unwrap_or_default();
    let is_of_all = facts.publication.as_ref().is_some_and(|found| found.row.puballtables);
    let mut sql = |table: &TableName| {
        if !is_of_all {
            return format!(
                "ALTER PUBLICATION {} ADD TABLE {}",
                identifier(&request.publication),
                added(request, table)
            );
        }
        let name = (table.schema.as_str(), table.name.as_str());
        let sql = catalog::no_longer_left_out(&request.publication, &left_out, name);
        left_out.retain(|(schema, table)| (schema.as_str(), table.as_str()) != name);
        sql
    };
    lacking(facts)
        .map(|missing| Step {
            kind: StepKind::Member,
            what: format!("table {} to publication \"{}\"", missing.filter, request.publication),
            sql: sql(&missing.filter),
            comment: "Rows committed from then on are published.".to_owned(),
            fix: Some("run it as the owner of publication and table".into()),
        })
        .collect()
}

fn role(request: &SetupRequest, facts: &SetupFacts) -> Option<Step> {
    let name = request.role.as_ref()?;
    let statements = role_statements(&identifier(name), facts);
    (!statements.is_empty()).then(|| Step {
        kind: StepKind::Role,
        what: format!("role \"{name}\""),
        sql: statements.join(";\n"),
        comment: "The role that walrelay connects as. Set its password by \\password in psql. It needs no right on the tables. A role with\nREPLICATION can read every slot's stream.".to_owned(),
        fix: Some("run it as a superuser; on managed services as the administrator that they give".into()),
    })
}

fn role_statements(name: &str, facts: &SetupFacts) -> Vec<String> {
    let none = RoleRow { login: false, replicates: false, connects: false, reads_stats: false };
    let role = facts.role.unwrap_or(none);
    let login = if role.login { "" } else { " LOGIN" };
    let replication = if role.replicates || facts.grants_by_role { "" } else { " REPLICATION" };
    let database = identifier(&facts.server.database);
    let all = [
        (facts.role.is_none(), format!("CREATE ROLE {name}")),
        (!(login.is_empty() && replication.is_empty()), format!("ALTER ROLE {name}{login}{replication}")),
        (!role.replicates && facts.grants_by_role, format!("GRANT rds_replication TO {name}")),
        (!role.connects, format!("GRANT CONNECT ON DATABASE {database} TO {name}")),
        (!role.reads_stats, format!("GRANT pg_read_all_stats TO {name}")),
    ];
    all.into_iter().filter_map(|(is_needed, statement)| is_needed.then_some(statement)).collect()
}

/// SQL that marks the publication: its slot was created.
pub(super) fn mark_sql(publication: &str, comment: Option<&str>, slot: &str) -> String {
    marker::comment_sql(publication, Some(&marker::set(comment, slot)))
}

/// The values that [`mark_now_sql`] takes beside the text.
#[derive(Debug, Clone)]
pub(super) struct Marked<'a> {
    pub(super) publication: &'a str,
    pub(super) slot: &'a str,
    /// The server's version.
    pub(super) version: u32,
    /// Whether the slot was created by the same command.
    pub(super) made: bool,
    /// The tables whose rows are published by the slots before.
    pub(super) carried: &'a BTreeSet<u32>,
}

/// SQL that writes `text` as the comment, and after it the lines of [`marker::since_format`], with the server's time, position and
/// next transaction at that moment, and the tables that are empty then.
pub(super) fn mark_now_sql(of: &Marked<'_>, text: &str) -> String {
    let Marked { publication, slot, version, made, carried } = of;
    let body = format!(
        "BEGIN
    IF NOT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = {slot} AND database = current_database()
                      AND confirmed_flush_lsn IS NOT NULL)
    THEN RAISE EXCEPTION 'there is no slot % in this database: it is not marked', {slot}; END IF; EXECUTE (
    SELECT pg_catalog.format('COMMENT ON PUBLICATION %I IS %L', {name}, {text}
               || pg_catalog.format({since}, xid, seconds, system, timeline, written, token, {empty}))
      FROM (SELECT pg_snapshot_xmax(pg_current_snapshot()) AS xid, ceil(extract(epoch FROM clock_timestamp()))::bigint AS seconds,
                   (SELECT system_identifier FROM pg_control_system()) AS system, {timeline} AS timeline,
                   pg_current_wal_insert_lsn() AS written, pg_catalog.gen_random_uuid() || {HERE} AS token) AS now); END",
        name = literal(publication),
        slot = literal(slot),
        timeline = slot_sighting::TIMELINE,
        text = literal(text),
        since = literal(&marker::since_format(slot)),
        empty = leaves::empty_list(publication, *version, *made, carried),
        HERE = marker::HERE
    );
    format!("DO {}", literal(&body))
}

/// The step that records, before the slot is created, that it is to be.
fn intent(request: &SetupRequest, facts: &SetupFacts) -> Option<Step> {
    let SetupRequest { publication, slot, .. } = request;
    if facts.slot.is_some() || marker::is_creating(comment(facts), slot) {
        return None;
    }
    Some(Step {
        kind: StepKind::Intent,
        what: format!("publication \"{publication}\": slot \"{slot}\" is to be created"),
        sql: marker::comment_sql(publication, Some(&marker::creating(comment(facts), slot))),
        comment: "No relay reads the slot before it is marked below.".to_owned(),
        fix: Some("run it as the owner of the publication".into()),
    })
}

/// The step that marks the slot.
fn mark(request: &SetupRequest, facts: &SetupFacts) -> Option<Step> {
    let comment = comment(facts);
    let SetupRequest { publication, slot, .. } = request;
    let owned = facts.publication.as_ref().is_none_or(|found| found.mark.owned);
    // A token of another database stays: it says that what was known is known there.
    let is_marked =
        marker::is_set(comment, slot) && (marker::token(comment, slot).is_some() || is_of_other_place(request, facts));
    if !owned || (is_marked && facts.slot.is_some() && !request.after_loss) {
        return None;
    }
    // The lines about an earlier slot of this name are not true of this one.
    let kept = marker::removed(comment, slot);
    let marked = Marked {
        publication,
        slot,
        version: facts.server.version,
        made: facts.slot.is_none(),
        carried: &BTreeSet::new(),
    };
    Some(Step {
        kind: StepKind::Mark,
        what: format!("publication \"{publication}\": slot \"{slot}\" was created"),
        sql: mark_now_sql(&marked, &marker::set(kept.as_deref(), slot)),
        comment: "Records that the slot was created: if it is lost, walrelay run --setup says so instead of creating a new one.\nAlso records which tables were empty: walrelay prune deletes rows of no other.".to_owned(),
        fix: Some("run it as the owner of the publication".into()),
    })
}

/// Whether the marker was written in another cluster, or on another timeline: before a copy, an upgrade or a promotion.
fn is_of_other_place(request: &SetupRequest, facts: &SetupFacts) -> bool {
    let anchor = marker::anchor(comment(facts), &request.slot);
    let agreement = anchor.zip(facts.sighting.as_ref()).map(|(anchor, now)| anchor.agrees(now));
    matches!(agreement, Some(Agreement::OtherCluster | Agreement::OtherTimeline))
}

fn comment(facts: &SetupFacts) -> Option<&str> {
    facts.publication.as_ref()?.mark.comment.as_deref()
}

fn warnings(request: &SetupRequest, facts: &SetupFacts) -> Vec<String> {
    let found = facts.slot.as_ref();
    [
        found.and_then(|slot| older_than_publication(request, facts, slot)),
        found.and_then(|slot| no_failover(request, slot)),
        no_password(request, facts),
        lost_before(request, facts),
        written_elsewhere(request, facts),
        cannot_mark(request, facts),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Warns of a slot that is older than its publication: `pgoutput` looks the publication up as of each change.
fn older_than_publication(request: &SetupRequest, facts: &SetupFacts, slot: &Slot) -> Option<String> {
    if facts.publication.is_some() {
        return None;
    }
    let (publication, name) = (&request.publication, &request.slot);
    let confirmed = slot.confirmed_flush_lsn.unwrap_or_default();
    let consequence = if facts.server.version < MISSING_PUBLICATION_PASSES {
        format!("a change from before it ends the stream with: publication \"{publication}\" does not exist")
    } else {
        "changes from before it are skipped".to_owned()
    };
    Some(format!(
        "warning: slot \"{name}\" (confirmed {confirmed}) is older than publication \"{publication}\": {consequence}. Rows committed before the publication cannot be published from this slot. A new slot begins behind them: drop this one, if nobody reads it, and run setup once more, with --after-loss; rows committed until then are in no slot, and the SQL statement in {REPUBLISH_PAGE} publishes them"
    ))
}

fn no_failover(request: &SetupRequest, slot: &Slot) -> Option<String> {
    (request.failover && !slot.row.failover).then(|| {
        format!(
            "warning: slot \"{}\" is there without failover. With its relay stopped, over a replication connection (psql 'replication=database …'): ALTER_REPLICATION_SLOT {} (FAILOVER true);",
            request.slot,
            identifier(&request.slot)
        )
    })
}

/// Says that the new role has no password, which most servers ask for.
fn no_password(request: &SetupRequest, facts: &SetupFacts) -> Option<String> {
    let role = request.role.as_ref().filter(|_| facts.role.is_none())?;
    Some(format!("role \"{role}\" has no password yet: in psql, \\password {}", identifier(role)))
}

fn lost_before(request: &SetupRequest, facts: &SetupFacts) -> Option<String> {
    (request.after_loss && marker::is_set(comment(facts), &request.slot)).then(|| {
        format!(
            "warning: an earlier slot \"{}\" was lost: rows that it had not sent, and rows committed until the new one, are in no slot; compare the table with the topic",
            request.slot
        )
    })
}

/// Says that the marker was copied, or that the cluster was upgraded or a standby promoted.
fn written_elsewhere(request: &SetupRequest, facts: &SetupFacts) -> Option<String> {
    let found = facts.publication.as_ref()?;
    let has_other = marker::token(comment(facts), &request.slot).is_some() && !found.has_token;
    ((has_other || is_of_other_place(request, facts)) && facts.slot.is_some() && !request.after_loss).then(|| {
        format!(
            "warning: the setup marker of slot \"{}\" was written in another cluster, database or timeline: nothing is known of its tables here, and walrelay prune deletes no row. After pg_upgrade or a promotion, or once you have compared the table with the topic: {}",
            request.slot,
            request.told().add_to(Command::new("setup").flag("--apply").flag("--after-loss"))
        )
    })
}

fn cannot_mark(request: &SetupRequest, facts: &SetupFacts) -> Option<String> {
    let found = facts.publication.as_ref()?;
    let comment = comment(facts);
    (!found.mark.owned && !marker::is_set(comment, &request.slot)).then(|| {
        format!(
            "warning: publication \"{}\" belongs to another role and could not be marked; its owner can: {};",
            request.publication,
            mark_sql(&request.publication, comment, &request.slot)
        )
    })
}

/// The plan as a script for `psql`. Warnings, and the counts in `rows`, are comments.
pub(super) fn script(request: &SetupRequest, facts: &SetupFacts, plan: &Plan, rows: &[String]) -> String {
    let mut text = if plan.steps.is_empty() {
        comment_lines(&super::nothing_to_do(request, facts))
    } else {
        let told = Told { tables: &request.tables, ..request.told() };
        let apply = with_own_flags(told.add_to(Command::new("setup").flag("--apply")), request);
        let head = format!("What database \"{}\" still needs. {apply} does it.", facts.server.database);
        STOP_ON_ERROR.to_owned() + &comment_lines(&head)
    };
    for step in &plan.steps {
        text.extend(["\n", &comment_lines(&step.comment), &step.sql, ";\n"]);
    }
    if !(rows.is_empty() && plan.warnings.is_empty()) {
        text.push('\n');
    }
    for line in rows.iter().chain(&plan.warnings) {
        text.push_str(&comment_lines(line));
    }
    text.push_str(&comment_lines(&format!("next: {}", request.next())));
    text
}

/// The plan for programs.
pub(super) fn json(request: &SetupRequest, plan: &Plan, rows: &[String]) -> String {
    let step = |step: &Step| json!({ "do": step.to_do(), "sql": step.sql, "about": step.comment });
    let steps: Vec<serde_json::Value> = plan.steps.iter().map(step).collect();
    let notes: Vec<&String> = rows.iter().chain(&plan.warnings).collect();
    format!("{:#}\n", json!({ "steps": steps, "notes": notes, "next": request.next() }))
}

/// The command with the flags that only `setup` has.
fn with_own_flags(command: Command, request: &SetupRequest) -> Command {
    let given = [
        ("--create-table", request.create_table),
        ("--failover", request.failover),
        ("--after-loss", request.after_loss),
    ];
    let given = given.into_iter().filter(|(_, is_given)| *is_given);
    let command = given.fold(command, |command, (flag, _)| command.flag(flag));
    request.role.iter().fold(command, |command, role| command.set("--role", role))
}

/// The text as comments for `psql`, where a carriage return ends a comment as well.
pub(super) fn comment_lines(text: &str) -> String {
    text.trim_end_matches(['\r', '\n']).split(['\r', '\n']).flat_map(|line| ["-- ", line, "\n"]).collect()
}

#[cfg(test)]
mod tests;
