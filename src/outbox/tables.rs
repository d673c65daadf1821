//! Decides which tables are published, as far as the catalog shows it.
//!
//! A row comes with the name that its table had when the row was committed. `--table` may name the root of a partition. Only the
//! catalog knows partitions, and it knows only those of now. In: the tables that the publication has now, and the position of that
//! read; names in the stream. Out: a table's [`Standing`]. A table is *covered* if `--table` names it or a partitioned table above it,
//! or if `--table` names no table. This file knows no rows and no columns.
//!
//! Invariant: if a table may have been covered when its row was committed, its standing is never [`Standing::NotPublished`]. That is true for
//! a partition, too, that was detached before this process first read the publication, and that the publication has as a table of its
//! own: the catalog shows that it has lost a parent since the slot's position ([`Standing::LostParent`]).

use crate::lsn::Lsn;
use crate::outbox::{TableName, TablePatterns};
use crate::pgoutput::{PublishedTable, Relation, RelationId};
use std::collections::{BTreeMap, HashMap, HashSet};

/// The values of `--table`, and the known tables.
#[derive(Debug)]
pub(super) struct Tables {
    /// Empty: every table that `patterns` capture.
    named: Vec<TableName>,
    patterns: TablePatterns,
    /// The standing of each table that the publication has, or that was not found in it, by schema and name.
    published: HashMap<(String, String), Standing>,
    /// Every table that was once covered as a partition, by the name that it had then. It stays covered under that name, since its rows
    /// may come long after it was detached or dropped.
    partitions: HashSet<(RelationId, (String, String))>,
    /// The tables that were covered when the publication was last read. A table keeps its id when it is renamed.
    covered: HashSet<RelationId>,
    /// The position of the last read of the publication. The read counts for transactions that commit before it.
    read_position: Lsn,
    /// The tables whose rows made the relay read the publication again, and whether they have the shape of an outbox.
    requested: BTreeMap<(String, String), bool>,
    /// The tables that had lost their parent when the publication was first read, and the position of that read. Rows of earlier
    /// transactions may be those of a covered table.
    lost_parents: (HashSet<RelationId>, Lsn),
}

/// Whether a table is published, as far as the last read of the publication shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// The table is published.
    Published,
    /// The publication has the table under another name, and it is published under that name.
    Renamed,
    /// The table is not published, and cannot have become published.
    NotPublished,
    /// The table is not published, and it has lost a parent since the slot's position. Its rows from before the first read of the publication
    /// may have been those of a table that `--table` names.
    LostParent,
    /// The table was not published. But since then it may have become a partition of a table that `--table` names, or its parent may
    /// have been given such a name.
    MaybeAttached,
    /// The publication did not have the table. It may be a new partition of a table that `--table` names.
    Unknown,
    /// The relay has read the publication again for this table, and did not find it. It may have been a partition of a table that
    /// `--table` names.
    NotFound,
}

impl Tables {
    pub(super) fn new(named: Vec<TableName>) -> Self {
        Self {
            named,
            patterns: TablePatterns::default(),
            published: HashMap::new(),
            partitions: HashSet::new(),
            covered: HashSet::new(),
            read_position: Lsn::ZERO,
            requested: BTreeMap::new(),
            lost_parents: (HashSet::new(), Lsn::ZERO),
        }
    }

    /// Takes the tables that have lost a parent since the slot's position, before the publication's tables are first taken.
    pub(super) fn lost_parents(&mut self, tables: impl IntoIterator<Item = RelationId>) {
        self.lost_parents = (tables.into_iter().collect(), self.read_position);
    }

    /// Whether a transaction that commits at `position` came before the first read, which found tables that had lost their parent.
    pub(super) fn may_have_had_parent(&self, position: Lsn) -> bool {
        position < self.lost_parents.1
    }

    pub(super) fn restrict(&mut self, patterns: TablePatterns) {
        self.patterns = patterns;
    }

    /// Sets the position of the next read: it happens there, or later.
    pub(super) fn set_read_position(&mut self, position: Lsn) {
        self.read_position = position;
    }

    /// The position of the last read.
    pub(super) fn read_position(&self) -> Lsn {
        self.read_position
    }

    /// Whether the last read shows all changes of a transaction that commits at `position`.
    pub(super) fn is_decided_by_read(&self, position: Lsn) -> bool {
        position < self.read_position
    }

    /// Takes the tables that the publication has now.
    pub(super) fn published(&mut self, tables: &[PublishedTable]) {
        // If `--table` has a name that no published table has, it is the name of a partitioned table of which the publication has the
        // partitions.
        let by_parts = self.named.iter().any(|name| !tables.iter().any(|table| name.names(&table.relation)));
        let standing = |table: &PublishedTable| match self.covers(table) {
            true => Standing::Published,
            false if self.lost_parents.0.contains(&table.relation.id) => Standing::LostParent,
            // Its parent may have been renamed since, to a name of `--table`.
            false if by_parts || !table.ancestors.is_empty() => Standing::MaybeAttached,
            false => Standing::NotPublished,
        };
        let found = tables.iter().map(|table| (table.relation.full_name(), standing(table))).collect();
        let parts = tables.iter().filter(|table| !self.names(&table.relation) && self.covers(table));
        let parts: Vec<_> = parts.map(|table| (table.relation.id, table.relation.full_name())).collect();
        self.covered = tables.iter().filter(|table| self.covers(table)).map(|table| table.relation.id).collect();
        self.published = found;
        self.partitions.extend(parts);
    }

    /// Whether a table of the publication is published.
    pub(super) fn covers(&self, table: &PublishedTable) -> bool {
        if self.named.is_empty() {
            return self.patterns.capture(&table.relation);
        }
        self.named.iter().any(|name| name.covers(table))
    }

    fn names(&self, relation: &Relation) -> bool {
        self.named.iter().any(|name| name.names(relation))
    }

    /// Whether any table of the publication is published.
    pub(super) fn covers_any(&self) -> bool {
        self.published.values().any(|standing| *standing == Standing::Published)
    }

    /// The standing of a table that the stream announces.
    pub(super) fn standing(&self, relation: &Relation) -> Standing {
        let part = (relation.id, relation.full_name());
        let by_name = if self.named.is_empty() {
            self.patterns.capture(relation)
        } else {
            self.names(relation) || self.partitions.contains(&part)
        };
        if by_name {
            return Standing::Published;
        }
        let listed = self.published.get(&part.1).copied();
        if self.covered.contains(&relation.id) && listed != Some(Standing::Published) {
            return Standing::Renamed;
        }
        if self.named.is_empty() {
            return Standing::NotPublished;
        }
        listed.unwrap_or(Standing::Unknown)
    }

    /// Notes that the relay has to read the publication again because of this table.
    pub(super) fn request_read(&mut self, name: (String, String), mappable: bool) {
        self.requested.insert(name, mappable);
    }

    /// Whether the relay has to read the publication again because of a table.
    pub(super) fn wants_read(&self) -> bool {
        !self.requested.is_empty()
    }

    /// Counts the tables as gone for which the publication was read again and that were not found. Returns those that do not have the
    /// shape of an outbox.
    pub(super) fn take_not_found(&mut self) -> Vec<(String, String)> {
        let mut not_found = std::mem::take(&mut self.requested);
        not_found.retain(|name, _| !self.published.contains_key(name));
        self.published.extend(not_found.keys().map(|name| (name.clone(), Standing::NotFound)));
        not_found.into_iter().filter(|(_, mappable)| !mappable).map(|(name, _)| name).collect()
    }
}
