//! What may keep rows of the outbox tables, or of tables below them, from the slot later, and who else writes them.
//!
//! In: [`Facts`] and the settings. Out: findings. Pure. What keeps rows from the slot now is among the findings about the publication.

use super::facts::Facts;
use super::tables::publication_change;
use crate::check_finding::{Finding, Fix, Side};
use crate::commands::run;
use crate::outbox::TableName;
use crate::pg::catalog::SubscribedTable;
use crate::pg::identifier;
use crate::pg::table_tree::{TableKind, TreeTable};
use crate::remedy::Command;
use crate::supervise::coverage::name;

/// The subject of the findings here.
const SIDE: Side = Side::Table;

/// The first version whose `pgoutput` leaves rows of other origins out.
const ORIGINS: u32 = 160_000;

/// The findings about all trees.
pub(super) fn findings(config: &run::RunRequest, facts: &Facts) -> Vec<Finding> {
    let tops = facts.trees.iter().filter(|table| table.parent.is_none());
    let of_partitions = tops.filter_map(|top| partitions(config, facts, top));
    let methods = facts.trees.iter().filter_map(access_method);
    methods.chain(of_partitions).chain(subscriptions(config, facts)).collect()
}

/// Extensions have access methods of their own. Some of these write WAL that can be decoded, and others do not.
fn access_method(table: &TreeTable) -> Option<Finding> {
    let method = table.access_method.as_deref().filter(|method| *method != "heap" && table.kind == TableKind::Plain)?;
    let finding = SIDE.warn("access_method", format!("its access method is {method}"));
    let finding = finding
        .why("whether its rows can be decoded depends on the extension: without that, they are in no slot, and nothing says so")
        .words("insert a row, and look whether its record arrives; if not, give a new outbox table the access method heap");
    Some(finding.of(&name(table).to_string()))
}

/// Partitions that are published one by one, and tables without partitions.
fn partitions(config: &run::RunRequest, facts: &Facts, top: &TreeTable) -> Option<Finding> {
    if top.kind != TableKind::Partitioned {
        return None;
    }
    let table = name(top);
    let found = if !facts.trees.iter().any(|below| below.parent == Some(top.oid)) {
        SIDE.ok("partitions", "it has no partition yet, and so no rows")
    } else if !top.published && facts.refused.is_empty() {
        let of_table = |one: &&super::facts::TableFacts| TableName::of_whole(&one.published) == table;
        let is_whole = facts.tables.iter().filter(of_table).all(|one| one.filter.is_none() && !one.column_list);
        let add = format!("ALTER PUBLICATION {} ADD TABLE {};", identifier(&config.publication), table.sql());
        SIDE.warn("partitions", "its partitions are published one by one")
            .why("rows of a new partition are in no slot until it is added: the relay is then not ready")
            .with_fix(if is_whole {
                Fix::safe(publication_change(config, facts.tables.iter().filter(of_table), add))
            } else {
                Fix::words(
                    "add each new partition to the publication, with the row filter and the columns of the others",
                )
            })
    } else {
        return None;
    };
    Some(found.of(&table.to_string()))
}

/// Rows that a subscription applied are published as any other.
fn subscriptions(config: &run::RunRequest, facts: &Facts) -> Vec<Finding> {
    let one = |written: &SubscribedTable| {
        let SubscribedTable { subscription, schema, table } = written;
        let written = format!("subscription {subscription} writes it");
        let finding = if config.only_local {
            SIDE.ok("subscription", format!("{written}: --origin local leaves out the rows that it applies"))
        } else {
            let finding = SIDE.warn("subscription", format!("{written}: rows that it applies are published here, too"));
            let finding =
                finding.why("if a relay publishes them where they were inserted, each event is published twice");
            if facts.server.version() >= ORIGINS {
                finding.bounded(Command::new("run").set("--origin", "local"))
            } else {
                finding.words("run a relay on one of the two servers alone; from Postgres 16 on, --origin local leaves such rows out")
            }
        };
        finding.of(&format!("{schema}.{table}"))
    };
    facts.subscriptions.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_access_method_than_heap_is_reported() {
        let table = |method: Option<&str>, kind| TreeTable {
            oid: 1,
            name: ("public".to_owned(), "outbox".to_owned()),
            kind,
            unlogged: false,
            is_partition: false,
            parent: None,
            published: true,
            comes_as: None,
            access_method: method.map(str::to_owned),
        };
        assert_eq!(access_method(&table(Some("heap"), TableKind::Plain)), None);
        assert_eq!(access_method(&table(Some("columnar"), TableKind::Partitioned)), None, "it has no rows");
        let found = access_method(&table(Some("columnar"), TableKind::Plain)).unwrap();
        assert!(found.finding.contains("columnar"), "{found:?}");
    }
}
