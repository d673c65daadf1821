//! Looks at the outbox tables whose rows `prune` deletes.
//!
//! In: names, and the tables of the publication. Out: the facts that decide which rows may be deleted, or the reason why none may be. Reads
//! only.

use super::age::Age;
use crate::commands::carrier::{Carrier, publishing_again};
use crate::commands::error::CommandError;
use crate::outbox::{Role, TableName};
use crate::pg::shape::Shape;
use crate::pg::{Connection, server};
use crate::pgoutput::PublishedTable;
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
pub(super) fn published(connection: &mut Connection, carrier: &Carrier) -> Result<Vec<PublishedTable>, CommandError> {
    let publication = &carrier.publication;
    match server::publication(connection, publication)? {
        None => Err(RunError::no_publication(publication, &carrier.source.dbname).into()),
        Some(row) if !row.pubinsert => Err(RunError::no_inserts(publication).into()),
        Some(_) => Ok(server::published_tables(connection, publication)?),
    }
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

/// Finds the column of the id. `noted`: the one that the relay reads, if it has noted one.
pub(super) fn id_column(shape: &Shape, table: &TableName, noted: Option<&str>) -> Result<String, CommandError> {
    let has = |name: &str| shape.columns.iter().any(|column| column.name == name);
    let by_name = || Role::Id.names().iter().copied().find(|name| has(name)).map(str::to_owned);
    let missing = || CommandError::no_id_column(table, noted);
    match noted {
        Some(name) => Some(name.to_owned()).filter(|name| has(name)).ok_or_else(missing),
        None => by_name().ok_or_else(missing),
    }
}
