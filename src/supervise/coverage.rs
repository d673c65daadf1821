//! Decides whether every row of the outbox tables reaches the slot, as far as the catalog of now shows it.
//!
//! ```text
//!  --table, patterns ─┐
//!  trees of tables ───┴─► gaps ─► the first one as an error: a start ends with it, and a relay that streams is not ready
//! ```
//!
//! In: the tables that the settings want, and their trees. Out: [`Gap`]s. Pure. A gap is about a table, never about rows that a row filter,
//! a shard or `--origin local` leaves out.
//!
//! | table below one that is wanted | its rows |
//! |---|---|
//! | partition that the publication has | are sent |
//! | partition that it does not have while it has another one | are in no slot |
//! | partition, or the table itself, that is `UNLOGGED`; foreign partition | are in no WAL of this server |
//! | child by `INHERITS` | may be events, or copies in an archive: only a person knows, and says so by `--table` |
//!
//! Invariant: a partitioned table without a partition has no gap. It has no rows.

use crate::outbox::{TableName, TablePatterns};
use crate::pg::table_tree::{TableKind, TreeTable};
use std::collections::BTreeMap;

/// The tables that the settings want.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WantedTables<'a> {
    /// `--table`. Empty: every table of the publication that `patterns` capture.
    pub(crate) tables: &'a [TableName],
    /// The tables among `tables` that were given as `ONLY table`: their children by `INHERITS` are left out.
    pub(crate) without_children: &'a [TableName],
    /// The patterns that capture tables.
    pub(crate) patterns: &'a TablePatterns,
}

/// Rows of a wanted table that reach no slot, or of which nobody has said whether they are wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Gap {
    /// The publication does not have the table, or the table does not exist.
    NotPublished(TableName),
    /// The table is a partition, and its rows come as those of `root`.
    ComesAs {
        /// The partition.
        table: TableName,
        /// The partitioned table.
        root: TableName,
    },
    /// The tables are `UNLOGGED`.
    Unlogged(Vec<TableName>),
    /// The partition is a foreign table.
    Foreign {
        /// The partition.
        table: TableName,
        /// The table that it is a partition of.
        parent: TableName,
    },
    /// The publication has other partitions of the table, and not these.
    PartitionsNotPublished {
        /// The table.
        root: TableName,
        /// The partitions.
        partitions: Vec<TableName>,
        /// `pg_class.oid` of the tables below `root`, and its own.
        tree: Vec<u32>,
    },
    /// The tables inherit from a wanted one, and nothing says whether their rows are wanted.
    Children {
        /// The wanted table.
        parent: TableName,
        /// `pg_class.oid` of the wanted table.
        parent_oid: u32,
        /// The tables that inherit from it.
        children: Vec<Child>,
    },
}

impl Gap {
    /// Whether it is about a table below a wanted one. The wanted table's other rows reach the slot.
    pub(crate) const fn is_below(&self) -> bool {
        !matches!(self, Self::NotPublished(_) | Self::ComesAs { .. })
    }
}

/// A table that inherits from another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Child {
    /// Its name.
    pub(crate) table: TableName,
    /// Whether the publication has it.
    pub(crate) published: bool,
    /// Whether it is a foreign table, which no publication has.
    pub(crate) foreign: bool,
}

/// The gaps of the wanted tables, in the order of `--table`, or else by name. `trees`: those of `--table`, or else of the publication.
pub(crate) fn gaps(wanted: &WantedTables<'_>, trees: &[TreeTable]) -> Vec<Gap> {
    let mut below: BTreeMap<u32, Vec<&TreeTable>> = BTreeMap::new();
    for table in trees {
        below.entry(table.parent.unwrap_or_default()).or_default().push(table);
    }
    let look = Look { wanted, below };
    let tops = look.below(0);
    if wanted.tables.is_empty() {
        return tops.iter().flat_map(|top| look.of_tree(top)).collect();
    }
    let of_name = |table: &TableName| match tops.iter().find(|top| name(top) == *table) {
        Some(top) => look.of_tree(top),
        None => vec![Gap::NotPublished(table.clone())],
    };
    wanted.tables.iter().flat_map(of_name).collect()
}

/// The names of the tables at the top of `trees` of which the publication has any table.
pub(crate) fn published_names(trees: &[TreeTable]) -> Vec<TableName> {
    let has_published = |top: &TreeTable| {
        let of = |parent| trees.iter().filter(move |table| table.parent == Some(parent) && table.is_partition);
        let (mut open, mut at) = (vec![top], 0);
        while let Some(table) = open.get(at) {
            if table.published {
                return true;
            }
            open.extend(of(table.oid));
            at += 1;
        }
        false
    };
    trees.iter().filter(|table| table.parent.is_none() && has_published(table)).map(name).collect()
}

/// The name of a table of a tree.
pub(crate) fn name(table: &TreeTable) -> TableName {
    TableName { schema: table.name.0.clone(), name: table.name.1.clone() }
}

/// The trees by the tables above: those without one are below 0, which is no table.
struct Look<'a> {
    wanted: &'a WantedTables<'a>,
    below: BTreeMap<u32, Vec<&'a TreeTable>>,
}

impl<'a> Look<'a> {
    fn below(&self, parent: u32) -> &[&'a TreeTable] {
        self.below.get(&parent).map_or(&[], Vec::as_slice)
    }

    fn of_tree(&self, top: &TreeTable) -> Vec<Gap> {
        let table = name(top);
        if let Some((schema, name)) = top.comes_as.clone().filter(|_| !self.wanted.tables.is_empty()) {
            return vec![Gap::ComesAs { table, root: TableName { schema, name } }];
        }
        match top.kind {
            TableKind::View | TableKind::Foreign => vec![Gap::NotPublished(table)],
            TableKind::Partitioned => self.of_partitions(top),
            TableKind::Plain if !self.captures(top, top) => Vec::new(),
            TableKind::Plain => {
                let own = match (top.unlogged, top.published) {
                    (true, _) => Some(Gap::Unlogged(vec![table])),
                    (false, false) => Some(Gap::NotPublished(table)),
                    (false, true) => None,
                };
                own.into_iter().chain(self.of_children(top)).collect()
            }
        }
    }

    fn of_partitions(&self, top: &TreeTable) -> Vec<Gap> {
        let partitions = self.all_below(top, |_| true);
        if !top.published && !partitions.iter().any(|table| table.published) {
            return vec![Gap::NotPublished(name(top))];
        }
        let leaves = || {
            let wanted = |table: &&&TreeTable| table.kind != TableKind::Partitioned && self.captures(table, top);
            partitions.iter().filter(wanted)
        };
        let names = |is: fn(&TreeTable) -> bool| leaves().filter(|table| is(table)).map(|table| name(table)).collect();
        let unlogged: Vec<TableName> = names(|table| table.unlogged);
        let missing: Vec<TableName> =
            names(|table| table.kind == TableKind::Plain && !table.unlogged && !table.published);
        let parent = |table: &TreeTable| {
            let parent = partitions.iter().find(|above| Some(above.oid) == table.parent);
            name(parent.copied().unwrap_or(top))
        };
        let foreign = leaves().filter(|table| table.kind == TableKind::Foreign);
        let foreign = foreign.map(|table| Gap::Foreign { table: name(table), parent: parent(table) });
        let tree = std::iter::once(top.oid).chain(partitions.iter().map(|table| table.oid)).collect();
        let missing =
            (!missing.is_empty()).then(|| Gap::PartitionsNotPublished { root: name(top), partitions: missing, tree });
        let unlogged = (!unlogged.is_empty()).then_some(Gap::Unlogged(unlogged));
        unlogged.into_iter().chain(missing).chain(foreign).collect()
    }

    /// Children that nobody has named. A relay of every table of the publication reads those that the publication has.
    fn of_children(&self, top: &TreeTable) -> Option<Gap> {
        let WantedTables { tables, without_children, .. } = self.wanted;
        let parent = name(top);
        if without_children.contains(&parent) {
            return None;
        }
        let is_unsaid = |table: &TreeTable| {
            if tables.is_empty() {
                !table.published && self.captures(table, top)
            } else {
                !tables.contains(&name(table))
            }
        };
        let found = self.all_below(top, is_unsaid);
        let child = |table: &&TreeTable| Child {
            table: name(table),
            published: table.published,
            foreign: table.kind == TableKind::Foreign,
        };
        let children: Vec<Child> = found.iter().map(child).collect();
        (!children.is_empty()).then_some(Gap::Children { parent, parent_oid: top.oid, children })
    }

    /// The tables below `top` for which `counts` is true, and those below them. By name, and each once.
    fn all_below(&self, top: &TreeTable, counts: impl Fn(&TreeTable) -> bool) -> Vec<&'a TreeTable> {
        let mut found = BTreeMap::new();
        let mut open = vec![top.oid];
        while let Some(parent) = open.pop() {
            for table in self.below(parent).iter().filter(|table| counts(table)) {
                if found.insert(&table.name, *table).is_none() {
                    open.push(table.oid);
                }
            }
        }
        found.into_values().collect()
    }

    /// Whether the patterns capture the table, or the one at the top of its tree, as which its rows may come.
    fn captures(&self, table: &TreeTable, top: &TreeTable) -> bool {
        let is_captured = |table: &TreeTable| self.wanted.patterns.capture_name(&table.name.0, &table.name.1);
        !self.wanted.tables.is_empty() || is_captured(table) || is_captured(top)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outbox::List;

    fn table(text: &str) -> TableName {
        TableName::parse(text).unwrap()
    }

    fn plain(oid: u32, text: &str) -> TreeTable {
        let TableName { schema, name } = table(text);
        TreeTable {
            oid,
            name: (schema, name),
            kind: TableKind::Plain,
            unlogged: false,
            is_partition: false,
            parent: None,
            published: true,
            comes_as: None,
            access_method: Some("heap".to_owned()),
        }
    }

    fn partitioned(oid: u32, text: &str) -> TreeTable {
        TreeTable { kind: TableKind::Partitioned, access_method: None, ..plain(oid, text) }
    }

    fn partition(oid: u32, text: &str, parent: u32) -> TreeTable {
        TreeTable { is_partition: true, parent: Some(parent), ..plain(oid, text) }
    }

    fn child(oid: u32, text: &str, parent: u32) -> TreeTable {
        TreeTable { parent: Some(parent), ..plain(oid, text) }
    }

    fn unpublished(table: TreeTable) -> TreeTable {
        TreeTable { published: false, ..table }
    }

    /// The gaps with these values of `--table`.
    fn found(named: &[&str], trees: &[TreeTable]) -> Vec<Gap> {
        let is_only = |text: &&&str| text.starts_with("ONLY ");
        let without_children: Vec<TableName> = named.iter().filter(is_only).map(|text| table(&text[5..])).collect();
        let tables: Vec<TableName> = named.iter().map(|text| table(text.trim_start_matches("ONLY "))).collect();
        let patterns = TablePatterns::default();
        gaps(&WantedTables { tables: &tables, without_children: &without_children, patterns: &patterns }, trees)
    }

    #[test]
    fn partitions_that_are_all_sent_leave_no_gap_and_neither_does_a_table_without_one() {
        let trees = [partitioned(1, "outbox"), partition(2, "outbox_1", 1), partition(3, "outbox_2", 1)];
        assert_eq!((found(&["outbox"], &trees), found(&[], &trees)), (vec![], vec![]));
        let lone = [partitioned(1, "outbox")];
        assert_eq!((found(&["outbox"], &lone), found(&[], &lone)), (vec![], vec![]));
        assert_eq!(found(&["outbox"], &[unpublished(partitioned(1, "outbox"))]), [Gap::NotPublished(table("outbox"))]);
    }

    #[test]
    fn a_partition_whose_sibling_alone_is_published_is_a_gap_whether_or_not_the_table_is_named() {
        let trees = [
            unpublished(partitioned(1, "outbox")),
            partition(2, "outbox_1", 1),
            unpublished(partition(3, "outbox_2", 1)),
        ];
        let gap = Gap::PartitionsNotPublished {
            root: table("outbox"),
            partitions: vec![table("outbox_2")],
            tree: vec![1, 2, 3],
        };
        assert_eq!(found(&["outbox"], &trees), std::slice::from_ref(&gap));
        assert_eq!(found(&[], &trees), [gap]);
        let own = [TreeTable { is_partition: true, ..plain(2, "outbox_1") }];
        assert_eq!(found(&["outbox_1"], &own), [], "the other one is not wanted");
        let none = trees.map(unpublished);
        assert_eq!(found(&["outbox"], &none), [Gap::NotPublished(table("outbox"))]);
    }

    #[test]
    fn tables_whose_rows_are_in_no_wal_are_gaps() {
        let foreign = TreeTable { kind: TableKind::Foreign, ..partition(4, "outbox_4", 3) };
        let trees = [
            partitioned(1, "outbox"),
            TreeTable { unlogged: true, ..partition(2, "outbox_2", 1) },
            TreeTable { kind: TableKind::Partitioned, ..partition(3, "outbox_3", 1) },
            foreign,
        ];
        let gaps = [
            Gap::Unlogged(vec![table("outbox_2")]),
            Gap::Foreign { table: table("outbox_4"), parent: table("outbox_3") },
        ];
        assert_eq!(found(&["outbox"], &trees), gaps);
        let unlogged = TreeTable { unlogged: true, ..plain(1, "outbox") };
        assert_eq!(found(&["outbox"], &[unlogged]), [Gap::Unlogged(vec![table("outbox")])]);
    }

    #[test]
    fn a_child_wants_to_be_named_or_left_out_whether_or_not_the_publication_has_it() {
        for published in [true, false] {
            let trees = [plain(1, "outbox"), TreeTable { published, ..child(2, "outbox_2020", 1) }];
            let children = vec![Child { table: table("outbox_2020"), published, foreign: false }];
            let gap = Gap::Children { parent: table("outbox"), parent_oid: 1, children };
            assert_eq!(found(&["outbox"], &trees), std::slice::from_ref(&gap));
            assert_eq!(found(&["ONLY outbox"], &trees), []);
            // Without --table, the publication says what is read.
            assert_eq!(found(&[], &trees), if published { vec![] } else { vec![gap] });
            let both = [trees.to_vec(), vec![plain(2, "outbox_2020")]].concat();
            assert_eq!(found(&["outbox", "outbox_2020"], &both), []);
        }
    }

    #[test]
    fn a_child_of_a_child_is_said_once_with_the_nearest_table_that_is_named() {
        let trees = [plain(1, "a"), child(2, "b", 1), child(3, "c", 2), plain(2, "b")];
        let unsaid = |found: Vec<Gap>| match &found[..] {
            [Gap::Children { parent, children, .. }] => {
                (parent.clone(), children.iter().map(|child| child.table.clone()).collect::<Vec<_>>())
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(unsaid(found(&["a"], &trees)), (table("a"), vec![table("b"), table("c")]));
        assert_eq!(unsaid(found(&["a", "b"], &trees)), (table("b"), vec![table("c")]));
        assert_eq!(found(&["a", "ONLY b"], &trees), []);
    }

    #[test]
    fn a_partition_whose_rows_come_as_its_roots_names_the_root() {
        let root = Some(("public".to_owned(), "outbox".to_owned()));
        let trees = [TreeTable { is_partition: true, comes_as: root, ..plain(2, "outbox_1") }];
        assert_eq!(found(&["outbox_1"], &trees), [Gap::ComesAs { table: table("outbox_1"), root: table("outbox") }]);
    }

    #[test]
    fn tables_that_no_pattern_captures_leave_no_gap() {
        let mut patterns = TablePatterns::default();
        patterns.add(List::IncludeTables, "public.outbox").unwrap();
        let trees =
            [TreeTable { unlogged: true, ..plain(1, "other") }, TreeTable { unlogged: true, ..plain(2, "outbox") }];
        let wanted = WantedTables { tables: &[], without_children: &[], patterns: &patterns };
        assert_eq!(gaps(&wanted, &trees), [Gap::Unlogged(vec![table("outbox")])]);
    }

    #[test]
    fn the_tables_of_a_publication_are_named_by_their_roots() {
        let trees = [
            unpublished(partitioned(1, "outbox")),
            partition(2, "outbox_1", 1),
            unpublished(plain(3, "gone")),
            plain(4, "other"),
        ];
        assert_eq!(published_names(&trees), [table("outbox"), table("other")]);
    }
}
