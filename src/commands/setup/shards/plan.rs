//! The state of both sets, and whether rows may move between them.
//!
//! In: names, how many shards there are to be. Out: a [`Plan`], or why there is none. Reads only.

use super::Shards;
use crate::commands::error::CommandError;
use crate::commands::output::{setup_shards, teardown_shards};
use crate::commands::setup::SetupRequest;
use crate::commands::setup::plan::Step;
use crate::commands::shards::{Member, NamedTable, Set, named_tables, sets, unfinished};
use crate::outbox::{Role, TableName};
use crate::pg::backfill_progress;
use crate::pg::marker::{self, MoveState};
use crate::pg::shape::{Shape, shape};
use crate::pg::shard::{self, Hashed, Shard};
use crate::pg::{Connection, catalog, identifier, literal, server};
use crate::remedy::{Command, Remedy};
use crate::supervise::{RunError, check_owner};

/// The move of rows from a set to another one.
#[derive(Debug)]
pub(super) struct Plan {
    /// How many shards there are to be.
    pub(super) count: u8,
    pub(super) database: String,
    pub(super) user: String,
    /// Where the rows are now; `None`: nowhere.
    pub(super) source: Option<Set>,
    /// The part of the new set that exists.
    pub(super) target: Set,
    pub(super) tables: Vec<Table>,
    /// Standbys keep the new slots, as they keep the old ones.
    pub(super) failover: bool,
    /// The rows have gone over.
    pub(super) is_cut: bool,
}

/// A table, and what of its rows is hashed.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) name: TableName,
    pub(super) hashed: Hashed,
}

impl Plan {
    /// Nothing is left to do.
    pub(super) fn is_done(&self) -> bool {
        self.target.is_done()
    }

    pub(super) fn missing_publications(&self) -> impl Iterator<Item = Shard> + '_ {
        Shard::all(self.count).filter(|shard| !self.target.members.iter().any(|member| member.shard == Some(*shard)))
    }

    /// The publications and slots that have the rows now.
    pub(super) fn old(&self) -> &[Member] {
        self.source.as_ref().map_or(&[], |source| &source.members)
    }

    /// Creates the slot of a shard: the request for it, and the step.
    pub(super) fn slot_step(&self, request: &SetupRequest, shard: Shard) -> (SetupRequest, Step) {
        let slot = shard.name(&request.slot);
        let of_shard = SetupRequest { slot, failover: self.failover, ..request.clone() };
        let step = Step::new_slot(&of_shard, &self.user);
        (of_shard, step)
    }

    /// For people: `3 shards`.
    pub(super) fn shown(&self) -> String {
        self.target.shown()
    }
}

/// Looks at both sets.
pub(super) fn look(connection: &mut Connection, request: &SetupRequest, shards: &Shards) -> Result<Plan, CommandError> {
    let server = catalog::server(connection)?;
    if !server.decodes() {
        return Err(RunError::wal_level(&server.wal_level).into());
    }
    if server.version < shard::SINCE {
        return Err(CommandError::no_row_filters(&server.version_text));
    }
    let (mut target, mut others) = (Set { count: Some(shards.count), members: Vec::new() }, Vec::new());
    let found = sets(connection, &request.publication, &request.slot)?;
    // A copy of a database has its publications with their comments, and none of its slots.
    for member in found.iter().flat_map(|set| &set.members) {
        member.found.as_ref().map_or(Ok(()), |slot| check_owner(&member.slot, &server.database, slot))?;
    }
    is_finished(request, shards, &found)?;
    for set in found {
        if set.count == target.count {
            target = set;
        } else {
            others.push(set);
        }
    }
    let is_cut = match target.members.first() {
        Some(first) => !named_tables(connection, &first.publication)?.is_empty(),
        None => false,
    };
    if is_cut || target.is_done() {
        target.is_whole(&request.publication)?;
    }
    let on_standbys = |member: &Member| member.found.as_ref().is_some_and(|slot| slot.row.failover);
    let plan = |source: Option<Set>, target, tables| Plan {
        failover: request.failover || source.iter().flat_map(|set| &set.members).any(on_standbys),
        count: shards.count,
        database: server.database.clone(),
        user: server.user.clone(),
        source,
        target,
        tables,
        is_cut,
    };
    if target.is_done() {
        is_as_asked(connection, request, &target)?;
        return Ok(plan(None, target, Vec::new()));
    }
    let source = source(request, shards, others)?;
    let named = if let Some(source) = &source {
        source.is_whole(&request.publication)?;
        source.members.iter().chain(&target.members).try_for_each(is_ours)?;
        source_tables(connection, source, is_cut)?
    } else {
        target.members.iter().try_for_each(is_ours)?;
        if request.tables.is_empty() && !is_cut {
            let example = request.told().add_to(Command::new("setup").set("--shards", shards.count));
            let why = "which tables the shards are for has to be said";
            return Err(CommandError::flag_needed("--table", why, example.set("--table", "public.outbox")));
        }
        request.tables.clone()
    };
    let tables = named.into_iter().map(|name| table(connection, shards, name, &server.database));
    let tables = tables.collect::<Result<_, _>>()?;
    Ok(plan(source, target, tables))
}

/// Sees that no other set is half made: rows may be under way to it. The set that they come from has publications, slots and relays, and
/// publishes none of the rows from behind the cut.
fn is_finished(request: &SetupRequest, shards: &Shards, sets: &[Set]) -> Result<(), CommandError> {
    if let Some((set, resume)) = unfinished(sets).filter(|(set, _)| set.count != Some(shards.count)) {
        return Err(CommandError::unfinished(&set.shown(), request.told().add_to(resume)));
    }
    let is_left = |set: &&Set| set.is(MoveState::Drains) || set.is(MoveState::Drained);
    match sets.iter().find(|set| set.count == Some(shards.count)).filter(is_left) {
        Some(set) => {
            let publication = set.members.first().map_or("", |member| &member.publication);
            let again = request.told().add_to(setup_shards("--shards", shards.count));
            let fix = Remedy::from("once its relays have published what waits in its slots, stop them: ")
                .and(teardown_shards(shards.count))
                .and(", then ")
                .and(again.set("--table", "SCHEMA.TABLE"))
                .and("; compare the table with the topics");
            Err(CommandError::unfit(publication, "its rows were moved to a set that is gone", fix))
        }
        None => Ok(()),
    }
}

/// Sees that a set that is there has its slots, and in each publication the same tables, with those that are asked for.
fn is_as_asked(connection: &mut Connection, request: &SetupRequest, target: &Set) -> Result<(), CommandError> {
    let mut found: Vec<(&Member, Vec<TableName>)> = Vec::new();
    for member in &target.members {
        if let Some(shard) = member.shard.filter(|_| member.found.is_none()) {
            return Err(CommandError::shard_lacks(shard, "replication slot", &member.slot));
        }
        let named = named_tables(connection, &member.publication)?;
        found.push((member, named.into_iter().map(|table| table.name).collect()));
    }
    for table in request.tables.iter().chain(found.iter().flat_map(|(_, named)| named)) {
        if let Some((member, _)) = found.iter().find(|(_, named)| !named.contains(table)) {
            let count = target.count.unwrap_or_default();
            return Err(CommandError::table_not_shared(table, &member.publication, count));
        }
    }
    Ok(())
}

/// The set that has the rows, of those that are not to be made.
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

fn is_ours(member: &Member) -> Result<(), CommandError> {
    if member.owned {
        return Ok(());
    }
    let fix = "run it as the owner of the publications and their tables";
    Err(CommandError::unfit(&member.publication, "it belongs to another role", fix))
}

/// The tables that go over. Each publication of a set has the same.
fn source_tables(connection: &mut Connection, source: &Set, is_cut: bool) -> Result<Vec<TableName>, CommandError> {
    let Some(first) = source.members.first() else { return Ok(Vec::new()) };
    let tables = named_tables(connection, &first.publication)?;
    if first.shard.is_none() && !is_cut {
        is_plain(connection, first, &tables)?;
    }
    if tables.is_empty() {
        return Err(RunError::no_tables(&first.publication).into());
    }
    Ok(tables.into_iter().map(|table| table.name).collect())
}

/// Sees that a publication without shards is one whose tables can be given a filter, and nobody else's.
fn is_plain(connection: &mut Connection, member: &Member, tables: &[NamedTable]) -> Result<(), CommandError> {
    let name = identifier(&member.publication);
    let unfit = |why: &str, fix: Remedy| Err(CommandError::unfit(&member.publication, why, fix));
    let other = marker::slots(member.comment.as_deref()).find(|slot| *slot != member.slot);
    if let Some(other) = other {
        let fix = Remedy::from("drop that slot first, if nobody needs it: ")
            .and(Command::new("teardown").set("--slot", other));
        return unfit(&format!("slot \"{other}\" is read with it, too"), fix);
    }
    let taken = marker::snapshot(member.comment.as_deref(), &member.slot);
    let unfinished =
        taken.map(|taken| backfill_progress::unfinished(connection, &member.slot, &taken.snapshot)).transpose()?;
    if let Some(place) = unfinished.flatten() {
        let why = "its existing rows are not all published, and no backfill can resume once they are shared out";
        let fix = Remedy::from(Command::new("backfill")).and(format!(
            ", to its end; then the same command again. To leave the others out: SELECT lo_unlink({place});"
        ));
        return unfit(why, fix);
    }
    if member.all_tables || has_schemas(connection, &member.publication)? {
        let why = "it names no tables, but all, or all of a schema";
        return unfit(why, "a publication FOR TABLE …, and a slot for it; then move its rows".into());
    }
    if let Some(table) = tables.iter().find(|table| table.restricted) {
        let why = format!("it has a row filter or a column list on {}, which shards would not have", table.name);
        return unfit(&why, "leave rows out by another table, or take the filter off".into());
    }
    let via_root = server::publication(connection, &member.publication)?.is_some_and(|found| found.pubviaroot);
    match tables.iter().find(|table| table.partitioned && !via_root) {
        Some(table) => unfit(
            &format!(
                "{} is partitioned, and its rows come as those of its partitions; a row filter needs them as its own",
                table.name
            ),
            Remedy::sql(format!("ALTER PUBLICATION {name} SET (publish_via_partition_root = true);")),
        ),
        None => Ok(()),
    }
}

fn has_schemas(connection: &mut Connection, publication: &str) -> Result<bool, CommandError> {
    let rows = connection.query(&format!(
        "SELECT FROM pg_catalog.pg_publication_namespace AS m JOIN pg_catalog.pg_publication AS p ON p.oid = m.pnpubid
          WHERE p.pubname = {}",
        literal(publication)
    ))?;
    Ok(!rows.is_empty())
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

/// The column that a record's part comes from, as `run` finds it.
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
