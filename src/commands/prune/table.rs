//! Looks at the outbox tables whose rows `prune` deletes.
//!
//! In: names, and the tables of the publication. Out: the facts that decide which rows may be deleted, or the reason why none may be. Reads
//! only.

use super::age::Age;
use super::attached_partitions::AttachedPartitions;
use crate::commands::error::CommandError;
use crate::commands::outbox_place::{OutboxPlace, publishing_again};
use crate::commands::output::with_tables;
use crate::outbox::{Mapping, Outbox, Role, TableName};
use crate::pg::shape::Shape;
use crate::pg::{self, Connection, literal, server};
use crate::pgoutput::PublishedTable;
use crate::remedy::Command;
use crate::supervise::RunError;

/// A table to prune.
pub(super) struct Table {
    pub(super) name: TableName,
    pub(super) shape: Shape,
    /// The id's column.
    pub(super) id: String,
    pub(super) age: Age,
    /// As SQL, whether a row is one of a shard's; `None`: there are no shards.
    pub(super) shared: Option<String>,
    /// The partitions that came to it later, with rows of their own.
    pub(super) attached: AttachedPartitions,
}

impl Table {
    /// Its rows, as SQL names them: those of tables that inherit from it in the plain way come through no slot with it.
    pub(super) fn rows(&self) -> String {
        if self.shape.partitioned { self.name.sql() } else { format!("ONLY {}", self.name.sql()) }
    }

    /// Returns the statement that publishes these rows, or names the page where the statement would do more than that.
    pub(super) fn publishing_again(&self, condition: &str) -> String {
        publishing_again(&self.shape, &self.name, condition, &self.id)
    }

    /// Returns the SQL that grants these rights on it.
    pub(super) fn grant(&self, rights: &str) -> String {
        format!("as its owner: GRANT {rights} ON {} TO the role that does it;", self.name.sql())
    }
}

/// The tables of the publication, which has to carry inserts.
pub(super) fn published(connection: &mut Connection, place: &OutboxPlace) -> Result<Vec<PublishedTable>, CommandError> {
    let publication = &place.publication;
    match server::publication(connection, publication)? {
        None => Err(RunError::no_publication(publication, &place.source.dbname).into()),
        Some(row) if !row.pubinsert => Err(RunError::no_inserts(publication).into()),
        Some(_) => Ok(server::published_tables(connection, publication)?),
    }
}

/// Checks that every table of the publication is an outbox, as a run without `--table` does. `id_column`: as the user named it.
pub(super) fn only_outboxes(
    connection: &mut Connection,
    publication: &str,
    id_column: Option<&str>,
) -> Result<(), CommandError> {
    let published = server::published_tables(connection, publication)?;
    let mapping = Mapping { id_column: id_column.map(str::to_owned), ..Mapping::default() };
    let mut outbox = Outbox::new(mapping, Vec::new())?;
    let (outboxes, others): (Vec<_>, Vec<_>) =
        published.into_iter().partition(|table| outbox.published(std::slice::from_ref(table)).is_ok());
    if others.is_empty() {
        return Ok(());
    }
    let (outboxes, prune) = (roots(&outboxes), Command::new("prune"));
    let others = roots(&others).iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let why = format!("publication \"{publication}\" also has {others}, with columns that are not an outbox's");
    let example =
        if outboxes.is_empty() { prune.set("--table", "SCHEMA.TABLE") } else { with_tables(prune, &outboxes) };
    Err(CommandError::flag_needed("--table", &why, example))
}

/// The tables of the publication; of partitions the table that they are a part of.
pub(super) fn roots(published: &[PublishedTable]) -> Vec<TableName> {
    let mut names = Vec::new();
    for table in published {
        let name = TableName::of_whole(table);
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// Finds the column of the id. `flag`: as the user named it.
pub(super) fn id_column(shape: &Shape, table: &TableName, flag: Option<&str>) -> Result<String, CommandError> {
    let has = |name: &&str| shape.columns.iter().any(|column| column.name == **name);
    let found = match flag {
        Some(name) => Some(name).filter(has),
        None => Role::Id.names().iter().copied().find(has),
    };
    found.map(str::to_owned).ok_or_else(|| {
        let why = format!("{table} has no column {}", flag.unwrap_or("id or event_id"));
        CommandError::flag_needed("--id-column", &why, "--id-column COLUMN")
    })
}

/// Whether a table has partitions with rows that neither themselves nor by a table above them are published. Those that are `UNLOGGED` never are.
pub(super) fn lacks_partitions(
    connection: &mut Connection,
    published: &[PublishedTable],
    table: u32,
) -> Result<bool, pg::Error> {
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

/// A subscription that writes a table or one of its partitions.
pub(super) fn subscription(connection: &mut Connection, table: u32) -> Result<Option<String>, pg::Error> {
    connection.value(&format!(
        "SELECT s.subname FROM pg_catalog.pg_subscription_rel AS m JOIN pg_catalog.pg_subscription AS s ON s.oid = m.srsubid
          WHERE m.srrelid IN (SELECT {table} UNION SELECT relid FROM pg_catalog.pg_partition_tree({table})) LIMIT 1"
    ))
}

/// Whether the publication leaves rows of a table out.
pub(super) fn has_filter(connection: &mut Connection, publication: &str, table: u32) -> Result<bool, pg::Error> {
    let rows = connection.query(&format!(
        "SELECT FROM pg_catalog.pg_publication_rel AS m JOIN pg_catalog.pg_publication AS p ON p.oid = m.prpubid
          WHERE p.pubname = {} AND pg_catalog.to_jsonb(m) ->> 'prqual' IS NOT NULL
            AND m.prrelid IN (SELECT {table} UNION SELECT relid FROM pg_catalog.pg_partition_tree({table}))",
        literal(publication)
    ))?;
    Ok(!rows.is_empty())
}
