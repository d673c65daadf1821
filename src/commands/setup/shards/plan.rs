//! Plans the move: looks at both sets, and decides whether rows may move between them.
//!
//! In: names, and the number of shards. Out: a [`Plan`], or why there is none. Reads only.

use super::Shards;
use crate::commands::error::CommandError;
use crate::commands::output::setup_shards;
use crate::commands::setup::SetupRequest;
use crate::commands::setup::plan::Step;
use crate::commands::shards::{Member, Set, sets, unfinished};
use crate::outbox::{Role, TableName};
use crate::pg::backfill_progress;
use crate::pg::marker;
use crate::pg::shape::{Shape, shape};
use crate::pg::shard::{self, Hashed, Shard};
use crate::pg::{self, Connection, Row, catalog, identifier, literal};
use crate::remedy::{Command, Remedy};
use crate::supervise::{RunError, check_owner};

/// The move of rows from a set to another one.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) database: String,
    pub(super) user: String,
    /// The server's version.
    pub(super) version: u32,
    /// The set that has the rows now. `None`: there is none.
    pub(super) source: Option<Set>,
    /// The new set. Not all of it needs to exist.
    pub(super) target: Set,
    /// The tables whose rows move at the cut. After the cut there are none.
    pub(super) tables: Vec<Table>,
    /// Whether standbys keep the new slots, as they keep the old ones.
    pub(super) failover: bool,
    /// Whether the cut is done.
    pub(super) is_cut: bool,
}

/// A table, and the value of its rows that is hashed.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) name: TableName,
    pub(super) hashed: Hashed,
}

/// A table that a publication names.
#[derive(Debug)]
struct NamedTable {
    name: TableName,
    partitioned: bool,
    /// The publication leaves out rows or columns of it.
    restricted: bool,
}

impl Plan {
    pub(super) fn missing_publications(&self) -> impl Iterator<Item = (Shard, &Member)> {
        self.target.shards().filter(|(_, member)| !member.exists)
    }

    /// The publications and slots that have the rows now.
    pub(super) fn old(&self) -> &[Member] {
        self.source.as_ref().map_or(&[], |source| &source.members)
    }

    /// The request for one slot of the new set, and the step that creates it.
    pub(super) fn slot_step(&self, request: &SetupRequest, slot: &str) -> (SetupRequest, Step) {
        let request = SetupRequest { slot: slot.to_owned(), failover: self.failover, ..request.clone() };
        let step = Step::new_slot(&request, &self.user);
        (request, step)
    }
}

/// Looks at all sets, and plans the move.
pub(super) fn look(connection: &mut Connection, request: &SetupRequest, shards: &Shards) -> Result<Plan, CommandError> {
    let server = catalog::server(connection)?;
    if !server.decodes() {
        return Err(RunError::wal_level(&server.wal_level).into());
    }
    if server.version < shard::SINCE {
        return Err(CommandError::no_row_filters(&server.version_text));
    }
    let (count, whole) = (Some(shards.count), (request.publication.as_str(), request.slot.as_str()));
    let mut others = sets(connection, whole)?;
    // What would be written beside it may contradict it.
    others.iter().flat_map(|set| &set.members).try_for_each(Member::is_known)?;
    // A copy of a database has its publications with their comments, and none of its slots.
    for member in others.iter().flat_map(|set| &set.members) {
        member.found.as_ref().map_or(Ok(()), |slot| check_owner(&member.slot, &server.database, slot))?;
    }
    // Rows may be under way to another set.
    if let Some((set, resume)) = unfinished(&others).filter(|(set, _)| set.count != count) {
        return Err(CommandError::unfinished(&set.shown(), request.told().add_to(resume)));
    }
    let at = others.iter().position(|set| set.count == count);
    let target = at.map_or_else(|| Set::of(count, &[], whole), |at| others.remove(at));
    let (database, user, version, failover) = (server.database, server.user, server.version, request.failover);
    let mut plan = Plan { database, user, version, failover, source: None, target, tables: Vec::new(), is_cut: false };
    if plan.target.is_done() {
        plan.target.is_whole()?;
        has_tables(connection, request, &plan.target)?;
        return Ok(plan);
    }
    plan.source = source(request, shards, others)?;
    plan.failover |= plan.old().iter().filter_map(|member| member.found.as_ref()).any(|slot| slot.row.failover);
    if let Some(member) = plan.old().iter().chain(&plan.target.members).find(|member| !member.owned) {
        let fix = "run it as the owner of the publications and their tables";
        return Err(CommandError::unfit(&member.publication, "it belongs to another role", fix));
    }
    plan.source.iter().try_for_each(Set::has_publications)?;
    for member in &plan.target.members {
        plan.is_cut |= !named_tables(connection, &member.publication)?.is_empty();
    }
    if plan.is_cut {
        plan.target.has_publications()?;
        return Ok(plan);
    }
    let names = match plan.old().first() {
        Some(first) => source_tables(connection, first)?,
        None if request.tables.is_empty() => {
            let example = request.told().add_to(Command::new("setup").set("--shards", shards.count));
            let why = "which tables the shards are for has to be said";
            return Err(CommandError::flag_needed("--table", why, example.set("--table", "public.outbox")));
        }
        None => request.tables.clone(),
    };
    let tables = names.into_iter().map(|name| table(connection, shards, name, &plan.database));
    plan.tables = tables.collect::<Result<_, _>>()?;
    Ok(plan)
}

/// Checks that each publication of a set that exists has the same tables, among them those that are asked for.
fn has_tables(connection: &mut Connection, request: &SetupRequest, target: &Set) -> Result<(), CommandError> {
    let mut found: Vec<(Shard, &Member, Vec<TableName>)> = Vec::new();
    for (shard, member) in target.shards() {
        let named = named_tables(connection, &member.publication)?;
        found.push((shard, member, named.into_iter().map(|table| table.name).collect()));
    }
    for table in request.tables.iter().chain(found.iter().flat_map(|(_, _, named)| named)) {
        if let Some((shard, member, _)) = found.iter().find(|(_, _, named)| !named.contains(table)) {
            return Err(CommandError::table_not_shared(table, &member.publication, shard.count()));
        }
    }
    Ok(())
}

/// Finds the set whose rows move. `others`: the sets that exist, except for the new one.
fn source(request: &SetupRequest, shards: &Shards, others: Vec<Set>) -> Result<Option<Set>, CommandError> {
    let command = |verb| request.told().add_to(setup_shards(verb, shards.count));
    let found = others.iter().map(Set::shown).collect::<Vec<_>>();
    match (others.len(), shards.moves) {
        (0, false) => Ok(None),
        (0, true) => {
            let make = command("--shards").set("--table", "public.outbox");
            Err(CommandError::nothing_to_move(&request.publication, make))
        }
        (_, false) => {
            let reshard = Remedy::from("to move its rows over: ").and(command("--reshard"));
            Err(CommandError::shards_exist(&found.join(" and "), reshard))
        }
        (1, true) => Ok(others.into_iter().next()),
        (_, true) => Err(CommandError::several_sets(&found)),
    }
}

/// The tables whose rows move. Each publication of a set has the same ones, so the `first` is asked.
fn source_tables(connection: &mut Connection, first: &Member) -> Result<Vec<TableName>, CommandError> {
    let tables = named_tables(connection, &first.publication)?;
    if first.shard.is_none() {
        is_plain(connection, first, &tables)?;
    }
    if tables.is_empty() {
        return Err(RunError::no_tables(&first.publication).into());
    }
    Ok(tables.into_iter().map(|table| table.name).collect())
}

/// Checks that the tables of a publication without shards can get a row filter, and that no other slot is read with it.
fn is_plain(connection: &mut Connection, member: &Member, tables: &[NamedTable]) -> Result<(), CommandError> {
    let unfit = |why: &str, fix: Remedy| Err(CommandError::unfit(&member.publication, why, fix));
    let other = marker::slots(member.comment.as_deref()).find(|slot| *slot != member.slot);
    if let Some(other) = other {
        let fix = Remedy::from("drop that slot first, if nobody needs it: ")
            .and(Command::new("teardown").set("--slot", other));
        return unfit(&format!("slot \"{other}\" is read with it, too"), fix);
    }
    let token = marker::token(member.comment.as_deref(), &member.slot).unwrap_or_default();
    if let Some(large_object) = backfill_progress::unfinished(connection, &member.slot, token)? {
        let why = "its existing rows are not all published, and no backfill can resume once they are shared out";
        let fix = Remedy::from(Command::new("backfill")).and(format!(
            ", to its end; then the same command again. To leave the others out: SELECT lo_unlink({large_object});"
        ));
        return unfit(why, fix);
    }
    let rows = connection.query(&format!(
        "SELECT puballtables OR EXISTS (SELECT FROM pg_catalog.pg_publication_namespace WHERE pnpubid = p.oid), pubviaroot
           FROM pg_catalog.pg_publication AS p WHERE pubname = {}",
        literal(&member.publication)
    ))?;
    let is = |at| rows.first().is_some_and(|row| row.is_true(at));
    let (all_of_something, via_root) = (is(0), is(1));
    if all_of_something {
        let why = "it names no tables, but all, or all of a schema";
        return unfit(why, "a publication FOR TABLE …, and a slot for it; then move its rows".into());
    }
    if let Some(table) = tables.iter().find(|table| table.restricted) {
        let why = format!("it has a row filter or a column list on {}, which shards would not have", table.name);
        return unfit(&why, "leave rows out by another table, or take the filter off".into());
    }
    if let Some(table) = tables.iter().find(|table| table.partitioned && !via_root) {
        let why = format!(
            "{} is partitioned, and its rows come as those of its partitions; a row filter needs them as its own",
            table.name
        );
        let name = identifier(&member.publication);
        let fix = format!("ALTER PUBLICATION {name} SET (publish_via_partition_root = true);");
        return unfit(&why, Remedy::sql(fix));
    }
    Ok(())
}

/// Names the tables of a publication, partitioned tables by their own name.
fn named_tables(connection: &mut Connection, publication: &str) -> Result<Vec<NamedTable>, pg::Error> {
    let rows = connection.query(&format!(
        "SELECT n.nspname, c.relname, c.relkind = 'p', m.prqual IS NOT NULL OR m.prattrs IS NOT NULL
           FROM pg_catalog.pg_publication_rel AS m JOIN pg_catalog.pg_publication AS p ON p.oid = m.prpubid
           JOIN pg_catalog.pg_class AS c ON c.oid = m.prrelid JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
          WHERE p.pubname = {} AND {} ORDER BY 1, 2",
        literal(publication),
        catalog::NOT_LEFT_OUT
    ))?;
    let table = |row: &Row| {
        let name = TableName { schema: row.text(0)?.to_owned(), name: row.text(1)?.to_owned() };
        Some(NamedTable { name, partitioned: row.is_true(2), restricted: row.is_true(3) })
    };
    Ok(rows.iter().filter_map(table).collect())
}

fn table(connection: &mut Connection, shards: &Shards, name: TableName, database: &str) -> Result<Table, CommandError> {
    let Some(shape) = shape(connection, &name.schema, &name.name)? else {
        return Err(CommandError::no_table(&name, database));
    };
    let key = column(&shape, &name, shards.key_column.as_deref(), Role::Key)?;
    let id = column(&shape, &name, shards.id_column.as_deref(), Role::Id)?;
    if let Some(hashed) = Hashed::new(key, id) {
        return Ok(Table { name, hashed });
    }
    let (column, type_id) = key.unwrap_or_default();
    let rows = connection.query(&format!("SELECT pg_catalog.format_type({type_id}, NULL)"))?;
    let type_name = rows.first().and_then(|row| row.text(0)).unwrap_or_default();
    Err(CommandError::no_hash(&name, column, type_name))
}

/// Finds the column that a record's key or id comes from, as `run` does.
fn column<'a>(
    shape: &'a Shape,
    table: &TableName,
    wanted: Option<&str>,
    role: Role,
) -> Result<Option<(&'a str, u32)>, CommandError> {
    let find = |name: &str| {
        let column = shape.columns.iter().find(|column| column.name == name)?;
        Some((column.name.as_str(), column.type_id))
    };
    match wanted {
        Some("") => Ok(None),
        Some(name) => find(name).map(Some).ok_or_else(|| CommandError::no_column(table, name)),
        None => Ok(role.names().iter().find_map(|name| find(name))),
    }
}
