//! Reads the publication's tables at each connection, checks them, and gives them to the outbox.
//!
//! In: a control connection, the target, and the tables that were read last. Out: an outbox that knows its tables, or why no stream can
//! begin; and beside a stream, whether rows that are committed now reach it. This file takes no slot and handles no rows.

use super::StreamTarget;
use super::coverage::{self, Child, Gap};
use super::error::{RunCause, RunError};
use crate::lsn::Lsn;
use crate::outbox::{Details, Outbox, PlanError, TableName};
use crate::pg::server::Publication;
use crate::pg::table_tree::{self, Restriction, Roots, TreeTable};
use crate::pg::{Connection, Error, Purpose, catalog, identifier, marker, sqlstate};
use crate::pg::{details, server};
use crate::pgoutput::PublishedTable;
use crate::remedy::{Command, Remedy};
use std::collections::BTreeSet;

/// As [`read_publication`], at `flushed`. If a lock prevents that, the tables that were read last count, at the position of that
/// read. But if the stream has announced a table that is not among them, the relay waits for the lock.
pub(super) fn read_publication_again(
    control: &mut Connection,
    target: &StreamTarget,
    (flushed, last): (Lsn, &mut Option<Vec<PublishedTable>>),
    outbox: &mut Outbox,
) -> Result<(bool, Option<PlanError>), RunError> {
    let is_first = last.is_none();
    let looked = read_publication(control, target, (Some(flushed), is_first), outbox);
    match (looked, &*last) {
        (Ok((tables, binary, unmappable)), _) => {
            *last = Some(tables);
            Ok((binary, unmappable))
        }
        (Err(RunError { cause: RunCause::Postgres(error @ Error::Locked { .. }), .. }), Some(tables))
            if !outbox.wants_read() =>
        {
            tracing::warn!(%error, "the publication's tables cannot be listed; reading those of the last connection");
            Ok(take_tables(tables, outbox))
        }
        (Err(error), Some(before)) => {
            let RunCause::TableNotPublished { table, publication, .. } = &error.cause else { return Err(error) };
            let now = server::published_tables(control, publication)?;
            let Some(name) = renamed(table, before, &now) else { return Err(error) };
            let with_name = |named: &TableName| if *named == **table { name.clone() } else { named.clone() };
            let tables: Vec<TableName> = target.tables.iter().map(with_name).collect();
            Err(RunError::table_renamed(table, &name, &tables))
        }
        (Err(error), None) => Err(error),
    }
}

/// The present name of `table`, by the ids of the tables `before` and `now`. It may be a table with rows, or a partitioned table above
/// it. `None`: it was not renamed.
fn renamed(table: &TableName, before: &[PublishedTable], now: &[PublishedTable]) -> Option<TableName> {
    let names = |table: &PublishedTable| -> Vec<(String, String)> {
        std::iter::once(table.relation.full_name()).chain(table.ancestors.iter().cloned()).collect()
    };
    let wanted = (table.schema.clone(), table.name.clone());
    let known = before.iter().filter(|known| table.covers(known));
    let mut found = known.filter_map(|known| {
        let index = names(known).iter().position(|name| *name == wanted)?;
        let same = now.iter().find(|table| table.relation.id == known.relation.id)?;
        let (schema, name) = names(same).get(index)?.clone();
        Some(TableName { schema, name }).filter(|name| name != table)
    });
    found.next()
}

/// As [`read_publication`], but a table that cannot be mapped now is an error.
pub(crate) fn read_tables(
    connection: &mut Connection,
    target: &StreamTarget,
    outbox: &mut Outbox,
) -> Result<(), RunError> {
    let (_, _, unmappable) = read_publication(connection, target, (None, false), outbox)?;
    unmappable.map_or(Ok(()), |error| Err(Box::new(error).into()))
}

/// The tables that a relay without `--table` has found in its publication, by `pg_class.oid`.
#[derive(Debug, Default)]
pub(crate) struct SeenTables(BTreeSet<u32>);

/// Why rows of the wanted tables that are committed now reach no slot, or might not. An open stream does not show it: the server only sends
/// no such rows. `seen`: the tables of earlier looks.
///
/// # Errors
/// The server cannot be queried.
pub(crate) fn uncovered(
    connection: &mut Connection,
    target: &StreamTarget,
    seen: &mut SeenTables,
) -> Result<Option<RunError>, Error> {
    let comment = catalog::publication_mark(connection, &target.publication)?.comment;
    // While rows move between sets of shards, `setup` takes the tables out of publications and drops them. Relays find that out by themselves.
    if marker::moving(comment.as_deref()).is_some() {
        return Ok(None);
    }
    let publication = match usable(connection, target) {
        Err(RunError { cause: RunCause::NoPublication { .. }, .. }) if target.shard.is_some() => return Ok(None),
        Err(RunError { cause: RunCause::Postgres(error), .. }) => return Err(error),
        Err(refusal) => return Ok(Some(refusal)),
        Ok(publication) => publication,
    };
    let trees = trees(connection, target, seen)?;
    let is_top = |table: &&TreeTable| table.parent.is_none() && table.published;
    seen.0.extend(trees.iter().filter(is_top).map(|table| table.oid));
    if trees.is_empty() && target.tables.is_empty() && !target.messages {
        return Ok(Some(RunError::no_tables(&target.publication)));
    }
    match coverage::gaps(&target.wanted(), &trees).first() {
        Some(gap) => refusal(connection, target, (&publication, &trees), gap).map(Some),
        None => Ok(None),
    }
}

/// Everything about the wanted tables that would end a start, for `check`.
///
/// # Errors
/// The server cannot be queried.
pub(crate) fn refusals(
    connection: &mut Connection,
    target: &StreamTarget,
) -> Result<(Vec<RunError>, Vec<TreeTable>), Error> {
    let publication = match usable(connection, target) {
        Err(RunError { cause: RunCause::Postgres(error), .. }) => return Err(error),
        Err(refusal) => return Ok((vec![refusal], Vec::new())),
        Ok(publication) => publication,
    };
    let trees = trees(connection, target, &SeenTables::default())?;
    let gaps = coverage::gaps(&target.wanted(), &trees);
    let refused = gaps.iter().map(|gap| refusal(connection, target, (&publication, &trees), gap));
    Ok((refused.collect::<Result<_, _>>()?, trees))
}

/// The publication, if it publishes inserts, and if it is clear which of its tables are wanted.
fn usable(connection: &mut Connection, target: &StreamTarget) -> Result<Publication, RunError> {
    let name = &target.publication;
    let Some(found) = server::publication(connection, name)? else {
        return Err(RunError::no_publication(name, &target.source.dbname));
    };
    if !found.pubinsert {
        return Err(RunError::no_inserts(name));
    }
    let are_chosen = !target.tables.is_empty() || target.patterns.include_some();
    if !are_chosen && (found.puballtables || catalog::has_schemas(connection, name)?) {
        return Err(RunError::grows(name, found.puballtables, target.messages));
    }
    Ok(found)
}

/// The trees of the wanted tables.
fn trees(connection: &mut Connection, target: &StreamTarget, seen: &SeenTables) -> Result<Vec<TreeTable>, Error> {
    let names: Vec<(String, String)> =
        target.tables.iter().map(|table| (table.schema.clone(), table.name.clone())).collect();
    let also: Vec<u32> = seen.0.iter().copied().collect();
    let roots = if names.is_empty() { Roots::Published { also: &also } } else { Roots::Named(&names) };
    table_tree::tables(connection, &target.publication, roots)
}

/// The error for a gap, with what closes it.
fn refusal(
    connection: &mut Connection,
    target: &StreamTarget,
    (found, trees): (&Publication, &[TreeTable]),
    gap: &Gap,
) -> Result<RunError, Error> {
    let publication = &target.publication;
    Ok(match gap {
        Gap::NotPublished(table) => {
            let all = table_tree::tables(connection, publication, Roots::Published { also: &[] })?;
            let names: Vec<String> = coverage::published_names(&all).iter().map(ToString::to_string).collect();
            if names.is_empty() && !target.messages {
                return Ok(RunError::no_tables(publication));
            }
            RunError::table_not_published(table.clone(), publication, names)
        }
        Gap::ComesAs { table, root } => {
            let with_root = |named: &TableName| if named == table { root.clone() } else { named.clone() };
            let mut tables: Vec<TableName> = target.tables.iter().map(with_root).collect();
            let mut known = BTreeSet::new();
            tables.retain(|table| known.insert(table.clone()));
            RunError::comes_as_root(table, root, publication, &tables)
        }
        Gap::Unlogged(tables) => RunError::unlogged(tables),
        Gap::Foreign { table, parent } => RunError::foreign_partition(table, parent),
        Gap::PartitionsNotPublished { root, partitions, tree } => {
            let sql = if found.puballtables {
                let left_out = catalog::left_out(connection, publication)?;
                let of = |table: &&TableName| left_out.contains(&(table.schema.clone(), table.name.clone()));
                partitions.iter().find(of).map(|table| {
                    catalog::no_longer_left_out(publication, &left_out, (&table.schema, &table.name)) + ";"
                })
            } else {
                let alike = alike(connection, publication, tree)?;
                alike.map(|like| add_partitions(publication, found.pubviaroot, (root, partitions), &like))
            };
            RunError::partitions_not_published(root, partitions, publication, sql)
        }
        Gap::Children { parent, parent_oid, children } => {
            let like = alike(connection, publication, &[*parent_oid])?;
            children_unsaid(target, (parent, children), like.as_ref(), trees)
        }
    })
}

/// The part that the publication sends of each of these tables that it names, if it is the same for all. If it names none of them, it sends all.
fn alike(connection: &mut Connection, publication: &str, oids: &[u32]) -> Result<Option<Restriction>, Error> {
    let found = match table_tree::restrictions(connection, publication, oids) {
        // Whoever has the lock may be changing the publication.
        Err(Error::Locked { .. }) => return Ok(None),
        found => found?,
    };
    let Some(first) = found.first() else { return Ok(Some(Restriction::default())) };
    let is_alike = |one: &Restriction| (&one.filter, &one.columns) == (&first.filter, &first.columns);
    Ok(found.iter().all(is_alike).then(|| first.clone()))
}

/// The statement that publishes partitions as their siblings are published. The table itself brings all partitions, also those of tomorrow.
/// But if rows come as those of partitions, Postgres takes a filter or columns of partitions alone.
fn add_partitions(
    publication: &str,
    via_root: bool,
    (root, partitions): (&TableName, &[TableName]),
    like: &Restriction,
) -> String {
    let is_whole = like.filter.is_none() && like.columns.is_empty();
    let added = if is_whole || via_root { std::slice::from_ref(root) } else { partitions };
    add_tables(publication, added, like)
}

fn add_tables(publication: &str, tables: &[TableName], like: &Restriction) -> String {
    let columns: Vec<String> = like.columns.iter().map(|column| identifier(column)).collect();
    let columns = if columns.is_empty() { String::new() } else { format!(" ({})", columns.join(", ")) };
    let filter = like.filter.as_ref().map_or_else(String::new, |filter| format!(" WHERE ({filter})"));
    let tables: Vec<String> = tables.iter().map(|table| format!("{}{columns}{filter}", table.sql())).collect();
    format!("ALTER PUBLICATION {} ADD TABLE {};", identifier(publication), tables.join(", "))
}

/// The error for children that nobody has named, with the commands that name them and that leave them out.
fn children_unsaid(
    target: &StreamTarget,
    (parent, children): (&TableName, &[Child]),
    like: Option<&Restriction>,
    trees: &[TreeTable],
) -> RunError {
    let names: Vec<TableName> = children.iter().map(|child| child.table.clone()).collect();
    let wanted = if target.tables.is_empty() { coverage::published_names(trees) } else { target.tables.clone() };
    let run = |only_parent: bool| {
        wanted.iter().fold(Command::new("run"), |run, table| {
            let only = target.without_children.contains(table) || (only_parent && table == parent);
            run.set("--table", table.as_typed_only(only))
        })
    };
    let missing: Vec<TableName> =
        children.iter().filter(|child| !child.published).map(|child| child.table.clone()).collect();
    let naming_them = names.iter().fold(run(false), |run, table| run.set("--table", table.as_typed()));
    let publish = match (target.shard, like) {
        _ if children.iter().any(|child| child.foreign) => None,
        (None, Some(like)) if !missing.is_empty() => Some(
            Remedy::sql(add_tables(&target.publication, &missing, like))
                .and(" (rows committed before that are not sent), then ")
                .and(naming_them),
        ),
        (Some(shard), _) if !missing.is_empty() => Some(
            Remedy::from(
                "a set of shards keeps the tables that it was created with, so they need a set of their own: ",
            )
            .and(
                missing.iter().fold(
                    Command::new("setup")
                        .set("--shards", shard.count())
                        .flag("--apply")
                        .set("--publication", "NAME")
                        .set("--slot", "NAME"),
                    |setup, table| setup.set("--table", table.as_typed()),
                ),
            ),
        ),
        (None, None) if !missing.is_empty() => Some(
            Remedy::from(format!(
                "ALTER PUBLICATION {} ADD TABLE …, with the row filter and the columns that they need, then ",
                identifier(&target.publication)
            ))
            .and(naming_them),
        ),
        (_, _) => Some(naming_them.into()),
    };
    RunError::children_unsaid(parent, &names, publish, run(true))
}

/// The publication's tables, if they are those that the settings want. `is_first`: nothing was published yet, so a gap below a wanted
/// table ends the start. Later, the other tables go on, and the relay is not ready ([`uncovered`]).
fn published(
    connection: &mut Connection,
    target: &StreamTarget,
    is_first: bool,
) -> Result<Vec<PublishedTable>, RunError> {
    let publication = &target.publication;
    let missing = || RunError::no_publication(publication, &target.source.dbname);
    let found = usable(connection, target)?;
    let trees = trees(connection, target, &SeenTables::default())?;
    let gaps = coverage::gaps(&target.wanted(), &trees);
    if let Some(gap) = gaps.iter().find(|gap| is_first || !gap.is_below()) {
        return Err(refusal(connection, target, (&found, &trees), gap)?);
    }
    // The publication may have been dropped between the two queries.
    let tables = server::published_tables(connection, publication).map_err(|error| match error.code() {
        Some(sqlstate::UNDEFINED_OBJECT) => missing(),
        _ => error.into(),
    })?;
    if tables.is_empty() && trees.is_empty() && !target.messages {
        return Err(RunError::no_tables(publication));
    }
    let is_without_rows = |table: &&TableName| !tables.iter().any(|published| table.covers(published));
    for table in target.tables.iter().filter(is_without_rows) {
        tracing::info!(%table, "the table has no partition yet: waiting for its rows");
    }
    Ok(tables)
}

/// Checks that the publication has the tables that the settings want, and gives them to the outbox, as read at position `at`. Returns
/// the tables, whether values should come in binary form, and the error of a table as it is now.
fn read_publication(
    connection: &mut Connection,
    target: &StreamTarget,
    (at, is_first): (Option<Lsn>, bool),
    outbox: &mut Outbox,
) -> Result<(Vec<PublishedTable>, bool, Option<PlanError>), RunError> {
    let publication = &target.publication;
    let tables = published(connection, target, is_first)?;
    if outbox.wants_details() {
        outbox.details(details::read(connection, publication)?);
    }
    if let Some(position) = at {
        outbox.set_read_position(position);
    }
    if is_first && target.temporary_slot.is_none() {
        let with_children = target.tables.iter().filter(|table| !target.without_children.contains(table));
        let names: Vec<(String, String)> =
            with_children.map(|table| (table.schema.clone(), table.name.clone())).collect();
        outbox.lost_parents(table_tree::lost_parents(connection, (publication, &target.slot), &names)?);
    }
    let (binary, unmappable) = take_tables(&tables, outbox);
    for table in outbox.take_not_found() {
        tracing::warn!(table, "table skipped: it is no longer in the publication, and --table does not name it");
    }
    if !target.patterns.is_empty() && !tables.is_empty() && !outbox.covers_any() {
        let published: Vec<String> =
            tables.iter().map(|t| format!("{}.{}", t.relation.namespace, t.relation.name)).collect();
        return Err(RunError::nothing_captured(&target.patterns.to_string(), publication, &published));
    }
    Ok((tables, binary, unmappable))
}

/// Gives the publication's tables to the outbox. Returns whether values should come in binary form, and the error of a table.
fn take_tables(tables: &[PublishedTable], outbox: &mut Outbox) -> (bool, Option<PlanError>) {
    match outbox.published(tables) {
        Ok(binary) => (binary, None),
        Err(error) => (false, Some(error)),
    }
}

/// Reads details of types and columns from the catalog, and the end of the WAL before that.
pub(crate) fn details_now(target: &StreamTarget) -> Result<(Details, Lsn), Error> {
    let connection = &mut Connection::open(&target.source, Purpose::Control)?;
    let as_of = server::wal_end(connection)?;
    Ok((details::read(connection, &target.publication)?, as_of))
}
