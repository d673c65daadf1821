//! Looks at the outbox tables whose rows `prune` deletes.
//!
//! In: names, and the tables of the publication. Out: the facts that decide which rows may be deleted, or the reason why none may be. Reads
//! only.

use super::AGE_COLUMNS;
use super::error::CommandError;
use super::output::with_tables;
use super::shards;
use crate::outbox::Mapping;
use crate::outbox::TableName;
use crate::outbox::{Outbox, Role};
use crate::pg::shape::{Shape, shape};
use crate::pg::shard::Shard;
use crate::pg::source::Source;
use crate::pg::{self, Connection, catalog, literal, marker, server};
use crate::pgoutput::PublishedTable;
use crate::remedy::Command;
use crate::supervise::{REPUBLISH_PAGE, RunError, check_slot};

/// The database, the publication and the slot of the tables.
#[derive(Debug, Clone)]
pub struct OutboxPlace {
    /// The database.
    pub source: Source,
    /// The publication that carries their rows.
    pub publication: String,
    /// The slot that carries their rows.
    pub slot: String,
    /// The shard that publication and slot are of. `None`: they are the common names of all shards, or there are no shards.
    pub shard: Option<Shard>,
    /// The column of the id. `None`: it is found by its name.
    pub id_column: Option<String>,
}

impl OutboxPlace {
    /// The slots that carry the rows: this slot, or those of a complete set of shards.
    pub(super) fn slot_places(&self, connection: &mut Connection) -> Result<Vec<Self>, CommandError> {
        let Some(set) = shards::settled(connection, (&self.publication, &self.slot))? else {
            return Ok(vec![self.clone()]);
        };
        let place = |member: shards::Member| Self {
            publication: member.publication,
            slot: member.slot,
            shard: member.shard,
            ..self.clone()
        };
        Ok(set.members.into_iter().map(place).collect())
    }

    /// Returns the command that runs the relay of the slot.
    pub(super) fn run_command(&self) -> Command {
        match self.shard {
            Some(shard) => Command::new("run").set("--shard", shard),
            None => Command::new("run").set("--slot", &self.slot),
        }
    }
}

/// A table.
#[derive(Debug, Clone)]
pub(super) struct Target {
    pub(super) name: TableName,
    pub(super) shape: Shape,
    /// The id's column.
    pub(super) id: String,
    /// Rows of it that the publication leaves out.
    pub(super) filtered: bool,
    /// Partitions of it that the publication leaves out.
    pub(super) partial: bool,
}

impl Target {
    /// As SQL names it.
    pub(super) fn sql_name(&self) -> String {
        self.name.sql()
    }

    /// Its rows, as SQL names them: those of tables that inherit from it in the plain way come through no slot with it.
    pub(super) fn rows(&self) -> String {
        if self.shape.partitioned { self.sql_name() } else { format!("ONLY {}", self.sql_name()) }
    }

    /// Returns the statement that publishes these rows, or names the page where the statement would do more than that.
    pub(super) fn publishing_again(&self, condition: &str) -> String {
        publishing_again(&self.shape, &self.name, condition, &self.id)
    }

    /// Returns the SQL that grants these rights on it.
    pub(super) fn grant(&self, rights: &str) -> String {
        format!("as its owner: GRANT {rights} ON {} TO the role that does it;", self.sql_name())
    }
}

/// Returns the statement that publishes rows of a table once more, in the order of their age and their ids, or names the page where the
/// statement would do more than that.
pub(super) fn publishing_again(shape: &Shape, table: &TableName, condition: &str, id: &str) -> String {
    let order: Vec<&str> = AGE_COLUMNS
        .into_iter()
        .find(|age| shape.columns.iter().any(|have| have.name == *age))
        .into_iter()
        .chain([id])
        .collect();
    shape.publishing_again(&table.sql(), condition, &order).unwrap_or_else(|| {
        format!("see {REPUBLISH_PAGE}, since triggers, rules, row security or foreign keys take part")
    })
}

/// The slot's position, if it is one that a relay on this database can read.
pub(super) fn confirmed(connection: &mut Connection, place: &OutboxPlace) -> Result<crate::lsn::Lsn, CommandError> {
    let Some(slot) = server::slot(connection, &place.slot)? else {
        if let Some(shard) = place.shard {
            return Err(CommandError::shard_incomplete(shard, &shards::no_slot(&place.slot)));
        }
        let mark = catalog::publication_mark(connection, &place.publication)?;
        let was_there = marker::is_set(mark.comment.as_deref(), &place.slot);
        return Err(RunError::no_slot(&place.slot, was_there).into());
    };
    Ok(check_slot(&place.slot, &place.source.dbname, &slot)?)
}

/// The tables that are named, or all of the publication.
pub(super) fn targets(
    connection: &mut Connection,
    place: &OutboxPlace,
    names: &[TableName],
) -> Result<Vec<Target>, CommandError> {
    let publication = &place.publication;
    match server::publication(connection, publication)? {
        None => return Err(RunError::no_publication(publication, &place.source.dbname).into()),
        Some(row) if !row.pubinsert => return Err(RunError::no_inserts(publication).into()),
        Some(_) => {}
    }
    let published = server::published_tables(connection, &place.publication)?;
    let names = if names.is_empty() { roots(&published) } else { names.to_vec() };
    names.into_iter().map(|name| target(connection, place, &published, name)).collect()
}

/// Checks that every table of the publication is an outbox, as a run without `--table` does.
pub(super) fn only_outboxes(connection: &mut Connection, place: &OutboxPlace) -> Result<(), CommandError> {
    let published = server::published_tables(connection, &place.publication)?;
    let mapping = Mapping { id_column: place.id_column.clone(), ..Mapping::default() };
    let mut outbox = Outbox::new(mapping, Vec::new())?;
    let (outboxes, others): (Vec<_>, Vec<_>) =
        published.into_iter().partition(|table| outbox.published(std::slice::from_ref(table)).is_ok());
    if others.is_empty() {
        return Ok(());
    }
    let (outboxes, prune) = (roots(&outboxes), Command::new("prune"));
    let others = roots(&others).iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let why = format!("publication \"{}\" also has {others}, with columns that are not an outbox's", place.publication);
    let example =
        if outboxes.is_empty() { prune.set("--table", "SCHEMA.TABLE") } else { with_tables(prune, &outboxes) };
    Err(CommandError::flag_needed("--table", &why, example))
}

/// The tables of the publication; of partitions the table that they are a part of.
fn roots(published: &[PublishedTable]) -> Vec<TableName> {
    let mut names = Vec::new();
    for table in published {
        let name = TableName::of_whole(table);
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

fn target(
    connection: &mut Connection,
    place: &OutboxPlace,
    published: &[PublishedTable],
    name: TableName,
) -> Result<Target, CommandError> {
    let Some(shape) = shape(connection, &name.schema, &name.name)? else {
        return Err(CommandError::no_table(&name, &place.source.dbname));
    };
    if !published.iter().any(|table| name.covers(table)) {
        let published = roots(published).iter().map(ToString::to_string).collect();
        return Err(RunError::table_not_published(name, &place.publication, published).into());
    }
    let filtered = has_filter(connection, &place.publication, shape.oid)?;
    let partial = lacks_partitions(connection, published, shape.oid)?;
    let id = id_column(&shape, place.id_column.as_deref()).ok_or_else(|| {
        let why = format!("{name} has no column {}", place.id_column.as_deref().unwrap_or("id or event_id"));
        CommandError::flag_needed("--id-column", &why, "--id-column COLUMN")
    })?;
    Ok(Target { name, shape, id, filtered, partial })
}

fn id_column(shape: &Shape, flag: Option<&str>) -> Option<String> {
    let has = |name: &&str| shape.columns.iter().any(|column| column.name == **name);
    match flag {
        Some(name) => Some(name).filter(has).map(str::to_owned),
        None => Role::Id.names().iter().copied().find(has).map(str::to_owned),
    }
}

/// Whether a table has partitions with rows that neither themselves nor by a table above them are published. Those that are `UNLOGGED` never are.
fn lacks_partitions(connection: &mut Connection, published: &[PublishedTable], table: u32) -> Result<bool, pg::Error> {
    let oids: Vec<String> = published.iter().map(|table| table.relation.id.to_string()).collect();
    let rows = connection.query(&format!(
        "SELECT FROM pg_catalog.pg_partition_tree({table}) AS t JOIN pg_catalog.pg_class AS c ON c.oid = t.relid
          WHERE t.isleaf AND (c.relpersistence <> 'p' OR NOT EXISTS (
                SELECT FROM pg_catalog.pg_partition_ancestors(t.relid) AS up (relid)
                 WHERE up.relid = ANY ('{{{}}}'::oid[]))) LIMIT 1",
        oids.join(",")
    ))?;
    Ok(!rows.is_empty())
}

/// Whether the publication leaves rows of a table out.
fn has_filter(connection: &mut Connection, publication: &str, table: u32) -> Result<bool, pg::Error> {
    let rows = connection.query(&format!(
        "SELECT FROM pg_catalog.pg_publication_rel AS m JOIN pg_catalog.pg_publication AS p ON p.oid = m.prpubid
          WHERE p.pubname = {} AND pg_catalog.to_jsonb(m) ->> 'prqual' IS NOT NULL
            AND m.prrelid IN (SELECT {table} UNION SELECT relid FROM pg_catalog.pg_partition_tree({table}))",
        literal(publication)
    ))?;
    Ok(!rows.is_empty())
}
