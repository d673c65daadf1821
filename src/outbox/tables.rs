//! Decides which tables are published, as far as the catalog shows it.
//!
//! Rows come with the names of their time, and `--table` may name what they were a partition of: only the catalogue knows that,
//! and it knows the present only. In: what the publication holds now, and as of which position; names in the stream. Out: where a
//! table stands. Knows no row and no column.
//!
//! Invariant: of a table that may have been covered when a row of it was committed, it is never said that it is not. One case
//! cannot be determined, and is left out: a partition that was detached before this process looked for the first time, and that the
//! publication holds as a table of its own.

use crate::lsn::Lsn;
use crate::outbox::{TableName, TablePatterns};
use crate::pgoutput::{PublishedTable, Relation, RelationId};
use std::collections::{BTreeMap, HashMap, HashSet};

/// The setting `--table`, and the knowledge about tables.
#[derive(Debug)]
pub(super) struct Tables {
    /// Empty: every table that `patterns` capture.
    named: Vec<TableName>,
    patterns: TablePatterns,
    /// The standing of each table that the publication holds, or was found not to hold, by schema and name.
    published: HashMap<(String, String), Standing>,
    /// Every table that was covered as a partition at some look, by the name that it had. It stays covered under that name,
    /// since its rows may come long after it was detached or dropped.
    partitions: HashSet<(RelationId, (String, String))>,
    /// The tables that the last look found covered. A rename leaves a table its id.
    covered: HashSet<RelationId>,
    /// The last look holds for transactions that commit before this position.
    looked_at: Lsn,
    /// The tables whose rows made the publication be looked at again, and whether they have an outbox's shape.
    asked: BTreeMap<(String, String), bool>,
}

/// The standing of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// The table is published.
    Covered,
    /// The last look knows the table by another name, under which it is published.
    Renamed,
    /// The table is not published, and cannot become published.
    Beside,
    /// The table was not published at the last look. It may have been attached since to a table that `--table` names, or its parent
    /// may have got such a name.
    Apart,
    /// The last look did not find the table. It may be a new partition of a table that `--table` names.
    Unknown,
    /// A look for this table did not find it. It may have been a partition of a table that `--table` names.
    Gone,
}

impl Tables {
    pub(super) fn new(named: Vec<TableName>) -> Self {
        Self {
            named,
            patterns: TablePatterns::default(),
            published: HashMap::new(),
            partitions: HashSet::new(),
            covered: HashSet::new(),
            looked_at: Lsn::ZERO,
            asked: BTreeMap::new(),
        }
    }

    pub(super) fn restrict(&mut self, patterns: TablePatterns) {
        self.patterns = patterns;
    }

    /// Sets the position of the next look: it was read there, or later.
    pub(super) fn looks_at(&mut self, position: Lsn) {
        self.looked_at = position;
    }

    /// The position of the last look.
    pub(super) fn looked_at(&self) -> Lsn {
        self.looked_at
    }

    /// Whether the last look shows every change of a transaction that commits at `position`.
    pub(super) fn is_older(&self, position: Lsn) -> bool {
        position < self.looked_at
    }

    /// Takes what the publication holds now.
    pub(super) fn published(&mut self, tables: &[PublishedTable]) {
        // If no published table has a name, it is the name of a partitioned table of which the publication shows the partitions.
        let by_parts = self.named.iter().any(|name| !tables.iter().any(|table| name.names(&table.relation)));
        let standing = |table: &PublishedTable| match self.covers(table) {
            true => Standing::Covered,
            // Its parent may have been renamed since, to a name that `--table` has.
            false if by_parts || !table.ancestors.is_empty() => Standing::Apart,
            false => Standing::Beside,
        };
        let found = tables.iter().map(|table| (table.relation.full_name(), standing(table))).collect();
        let parts = tables.iter().filter(|table| !self.names(&table.relation) && self.covers(table));
        let parts: Vec<_> = parts.map(|table| (table.relation.id, table.relation.full_name())).collect();
        self.covered = tables.iter().filter(|table| self.covers(table)).map(|table| table.relation.id).collect();
        self.published = found;
        self.partitions.extend(parts);
    }

    /// Whether a table of the publication is published from.
    pub(super) fn covers(&self, table: &PublishedTable) -> bool {
        if self.named.is_empty() {
            return self.patterns.capture(&table.relation);
        }
        self.named.iter().any(|name| name.covers(table))
    }

    fn names(&self, relation: &Relation) -> bool {
        self.named.iter().any(|name| name.names(relation))
    }

    /// Whether any table of the publication is published from.
    pub(super) fn covers_any(&self) -> bool {
        self.published.values().any(|standing| *standing == Standing::Covered)
    }

    /// Returns the standing of a table that the stream announces.
    pub(super) fn standing(&self, relation: &Relation) -> Standing {
        let part = (relation.id, relation.full_name());
        let by_name = if self.named.is_empty() {
            self.patterns.capture(relation)
        } else {
            self.names(relation) || self.partitions.contains(&part)
        };
        if by_name {
            return Standing::Covered;
        }
        let listed = self.published.get(&part.1).copied();
        if self.covered.contains(&relation.id) && listed != Some(Standing::Covered) {
            return Standing::Renamed;
        }
        if self.named.is_empty() {
            return Standing::Beside;
        }
        listed.unwrap_or(Standing::Unknown)
    }

    /// Notes that the relay has to look at the publication again because of this table.
    pub(super) fn ask(&mut self, name: (String, String), mappable: bool) {
        self.asked.insert(name, mappable);
    }

    /// Whether the relay has to look at the publication again because of a table.
    pub(super) fn asks(&self) -> bool {
        !self.asked.is_empty()
    }

    /// Takes the tables that the look made for them did not find: they count as gone. Returns those without an outbox's shape.
    pub(super) fn take_gone(&mut self) -> Vec<(String, String)> {
        let mut gone = std::mem::take(&mut self.asked);
        gone.retain(|name, _| !self.published.contains_key(name));
        self.published.extend(gone.keys().map(|name| (name.clone(), Standing::Gone)));
        gone.into_iter().filter(|(_, mappable)| !mappable).map(|(name, _)| name).collect()
    }
}
