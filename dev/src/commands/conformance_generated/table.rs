//! Drawn tables.

use super::defaults;
use super::draw::Draw;
use super::types::TYPES;

/// Partitions of the topic that has several.
pub(super) const PARTITIONS: u32 = 6;

/// A column that is not one of the router's own.
#[derive(Clone)]
pub(super) struct Extra {
    pub(super) name: String,
    pub(super) kind: usize,
    pub(super) must: bool,
    pub(super) default: Option<String>,
    pub(super) has_default: bool,
}

impl Extra {
    /// The type, and its values.
    pub(super) fn kind(&self) -> (&'static str, &'static [&'static str]) {
        TYPES.get(self.kind).copied().unwrap_or(("text", &[]))
    }
}

#[derive(Clone)]
pub(super) struct Table {
    pub(super) id: &'static str,
    pub(super) key: usize,
    pub(super) payload: usize,
    pub(super) extras: Vec<Extra>,
    /// The type of a column that is the event's time.
    pub(super) at: Option<&'static str>,
    traits: Vec<Trait>,
}

/// What a table may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trait {
    /// Other names of the router's columns.
    Renamed,
    /// A topic has several partitions, and so no key is null: those go where a client likes.
    Partitioned,
    /// A column of the partition stands beside the key.
    Chosen,
    /// A column of the envelope's version.
    Version,
    /// There is a second table like it.
    Second,
    /// There is a second table whose name differs in its case alone, and which may lack a column.
    Cased,
    /// There is a table like it that is not captured.
    Other,
    /// Routes hold the topics' whole names.
    Whole,
}

impl Table {
    pub(super) fn has(&self, one: Trait) -> bool {
        self.traits.contains(&one)
    }

    /// id, route, key, payload.
    pub(super) fn names(&self) -> [&'static str; 4] {
        if self.has(Trait::Renamed) {
            ["event_id", "aggregate_type", "Aggregate Id", "data"]
        } else {
            ["id", "aggregatetype", "aggregateid", "payload"]
        }
    }
}

impl Draw {
    fn kind(&mut self, of: &[&str]) -> usize {
        let named = self.one(of);
        TYPES.iter().position(|(name, _)| *name == named).unwrap_or(0)
    }

    pub(super) fn table(&mut self) -> Table {
        let partitioned = self.is(5);
        let keys =
            ["text", "uuid", "int8", "varchar(20)", "int4", "mood", "bytea", "numeric(10,2)", "timestamp", "label"];
        let keys = keys.get(..if partitioned { 6 } else { keys.len() }).unwrap_or_default();
        let payloads = ["text", "json", "jsonb", "text", "jsonb", "bytea", "varchar(20)", "xml", "int8", "numeric"];
        let id = self.one(&["int", "bigint", "text", "uuid"]);
        let (key, payload) = (self.kind(keys), self.kind(&payloads));
        let extras = (0..self.number(0..7)).map(|at| self.extra(at)).collect();
        let at = self.is(5).then(|| self.one(&["timestamp", "timestamp(0)", "timestamp(3)"]));
        let drawn = [
            (Trait::Partitioned, partitioned),
            (Trait::Chosen, partitioned && self.is(2)),
            (Trait::Version, self.is(6)),
            (Trait::Second, self.is(6)),
            (Trait::Other, self.is(5)),
            (Trait::Cased, self.is(8)),
            (Trait::Renamed, self.is(4)),
            (Trait::Whole, !partitioned && self.is(4)),
        ];
        let traits = drawn.into_iter().filter(|(_, drawn)| *drawn).map(|(one, _)| one).collect();
        Table { id, key, payload, extras, at, traits }
    }

    fn extra(&mut self, at: usize) -> Extra {
        let kind = self.number(0..TYPES.len());
        let values = TYPES.get(kind).map_or(&[] as &[&str], |(_, values)| *values);
        let name = TYPES.get(kind).map_or("text", |(name, _)| *name);
        let (must, default) = (self.is(4), self.is(3).then(|| defaults::draw(self, name, values)));
        Extra { name: format!("x{at}"), kind, must, has_default: default.is_some(), default }
    }
}
