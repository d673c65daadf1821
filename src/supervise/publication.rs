//! Reads the publication's tables at each connection, checks them, and gives them to the outbox.
//!
//! In: a control connection, the target, and the tables that were read last. Out: an outbox that knows its tables, or why no stream can
//! begin. This file takes no slot and handles no rows.

use super::StreamTarget;
use super::error::{RunCause, RunError};
use crate::lsn::Lsn;
use crate::outbox::{Details, Outbox, PlanError, TableName};
use crate::pg::{Connection, Error, Purpose, sqlstate};
use crate::pg::{details, server};
use crate::pgoutput::PublishedTable;

/// As [`read_publication`], at `flushed`. If a lock prevents that, the tables that were read last count, at the position of that
/// read. But if the stream has announced a table that is not among them, the relay waits for the lock.
pub(super) fn read_publication_again(
    control: &mut Connection,
    target: &StreamTarget,
    (flushed, last): (Lsn, &mut Option<Vec<PublishedTable>>),
    outbox: &mut Outbox,
) -> Result<(bool, Option<PlanError>), RunError> {
    let looked = read_publication(control, target, Some(flushed), outbox);
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
        let place = names(known).iter().position(|name| *name == wanted)?;
        let same = now.iter().find(|table| table.relation.id == known.relation.id)?;
        let (schema, name) = names(same).get(place)?.clone();
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
    let (_, _, unmappable) = read_publication(connection, target, None, outbox)?;
    unmappable.map_or(Ok(()), |error| Err(Box::new(error).into()))
}

/// Why no start would succeed now because of the publication. An open stream does not show it: if a table was removed, the server only
/// sends no more of its rows.
///
/// # Errors
/// The server cannot be queried.
pub(crate) fn unpublished(connection: &mut Connection, target: &StreamTarget) -> Result<Option<RunError>, Error> {
    match published(connection, target) {
        Ok(_) => Ok(None),
        Err(RunError { cause: RunCause::Postgres(error), .. }) => Err(error),
        Err(refusal) => Ok(Some(refusal)),
    }
}

/// The publication's tables, if they are those that the settings want.
fn published(connection: &mut Connection, target: &StreamTarget) -> Result<Vec<PublishedTable>, RunError> {
    let publication = &target.publication;
    let missing = || RunError::no_publication(publication, &target.source.dbname);
    match server::publication(connection, publication)? {
        None => return Err(missing()),
        Some(found) if !found.pubinsert => return Err(RunError::no_inserts(publication)),
        Some(_) => {}
    }
    // The publication may have been dropped between the two queries.
    let tables = server::published_tables(connection, publication).map_err(|error| match error.code() {
        Some(sqlstate::UNDEFINED_OBJECT) => missing(),
        _ => error.into(),
    })?;
    if tables.is_empty() && !target.messages {
        return Err(RunError::no_tables(publication));
    }
    if let Some(missing) = target.tables.iter().find(|wanted| !tables.iter().any(|table| wanted.covers(table))) {
        let published = tables.iter().map(|t| format!("{}.{}", t.relation.namespace, t.relation.name)).collect();
        return Err(RunError::table_not_published(missing.clone(), publication, published));
    }
    Ok(tables)
}

/// Checks that the publication has the tables that the settings want, and gives them to the outbox, as read at position `at`. Returns
/// the tables, whether values should come in binary form, and the error of a table as it is now.
fn read_publication(
    connection: &mut Connection,
    target: &StreamTarget,
    at: Option<Lsn>,
    outbox: &mut Outbox,
) -> Result<(Vec<PublishedTable>, bool, Option<PlanError>), RunError> {
    let publication = &target.publication;
    let tables = published(connection, target)?;
    if outbox.wants_details() {
        outbox.details(details::read(connection, publication)?);
    }
    if let Some(position) = at {
        outbox.set_read_position(position);
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
