//! Drawn tables, and their rows.

use walrelay_dev::conformance::beside::LAST;
use walrelay_dev::conformance::data::{Case, Statement};

use super::draw::{Draw, PARTITIONS, quoted};
use super::types::TYPES;
use super::{ddl, defaults};

/// A column that is not one of the router's own.
#[derive(Clone)]
pub(super) struct Extra {
    pub(super) name: String,
    pub(super) kind: usize,
    pub(super) must: bool,
    default: Option<String>,
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
    id: &'static str,
    key: usize,
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

    pub(super) fn case(&mut self, prefix: &str, table: &Table) -> Case {
        let [id, route, key, payload] = table.names();
        let kind = |at: usize| TYPES.get(at).map_or("text", |(name, _)| *name);
        let mut columns = vec![
            format!("{id} {} PRIMARY KEY", table.id),
            format!("{route} text NOT NULL"),
            format!("\"{key}\" {}", kind(table.key)),
            format!("{payload} {}", kind(table.payload)),
        ];
        columns.extend(table.at.map(|kind| format!("at {kind} NOT NULL")));
        columns.extend(table.has(Trait::Chosen).then(|| "part int NOT NULL".to_owned()));
        columns.extend(table.has(Trait::Version).then(|| "ver int NOT NULL".to_owned()));
        columns.extend(table.extras.iter().map(|extra| {
            let must = if extra.must { " NOT NULL" } else { "" };
            let default = extra.default.as_ref().map(|value| format!(" DEFAULT {value}")).unwrap_or_default();
            format!("{} {}{must}{default}", extra.name, kind(extra.kind))
        }));
        let mut setup = vec![format!("CREATE TABLE outbox ({})", columns.join(", "))];
        let like = |name: &str| format!("CREATE TABLE {name} (LIKE outbox INCLUDING DEFAULTS)");
        setup.extend(table.has(Trait::Second).then(|| like("events")));
        setup.extend(table.has(Trait::Other).then(|| like("other")));
        setup.extend(table.has(Trait::Cased).then(|| like("\"Outbox\"")));
        let lacks = table.extras.first().filter(|_| table.has(Trait::Cased) && self.is(3));
        setup.extend(lacks.map(|extra| format!("ALTER TABLE \"Outbox\" DROP COLUMN {}", extra.name)));
        let (count, lacks) = (self.number(3..9), usize::from(lacks.is_some()));
        let mut now = table.clone();
        let mut statements = Vec::new();
        for at in 0..=count {
            let is_alone = !table.has(Trait::Second) && !table.has(Trait::Cased) && !table.has(Trait::Other);
            if is_alone && at > 0 {
                statements.extend(ddl::draw(self, &mut now, at));
            }
            let to = match at {
                _ if at == count => "outbox",
                0 if table.has(Trait::Other) => "other",
                1 if table.has(Trait::Cased) => "\"Outbox\"",
                _ if table.has(Trait::Second) => self.one(&["outbox", "events"]),
                _ => "outbox",
            };
            let mut of = now.clone();
            if to.starts_with('"') {
                of.extras.drain(..lacks);
            }
            statements.push(Statement::Own(self.row(to, at, at == count, prefix, &of)));
        }
        Case { name: "rows".to_owned(), table: setup, statements, ..Case::default() }
    }

    fn row(&mut self, to: &str, at: usize, last: bool, prefix: &str, table: &Table) -> String {
        let id = if table.id == "uuid" { format!("0192c2f1-0000-7000-8000-{at:012}") } else { at.to_string() };
        let routes = ["order", "user", "order", "x-order"];
        // The others have one partition.
        let routes = routes.get(..if table.has(Trait::Chosen) { 1 } else { routes.len() }).unwrap_or_default();
        let route = if last { LAST } else { self.one(routes) };
        let route = if table.has(Trait::Whole) { format!("{prefix}{route}") } else { route.to_owned() };
        let mut values = vec![quoted(&id), quoted(&route)];
        values.push(self.value(table.key, table.has(Trait::Partitioned)));
        values.push(self.value(table.payload, false));
        let times = ["2025-11-21 09:08:07.654321", "1970-01-01 00:00:01", "1999-12-31 23:59:59.9996"];
        values.extend(table.at.map(|_| quoted(self.one(&times))));
        // The last row's topic has one.
        let partitions = if last { 1 } else { PARTITIONS as usize };
        values.extend(table.has(Trait::Chosen).then(|| self.number(0..partitions).to_string()));
        values.extend(table.has(Trait::Version).then(|| self.number(1..3).to_string()));
        for extra in &table.extras {
            let left = extra.has_default && !extra.must && self.is(3);
            values.push(if left { "DEFAULT".to_owned() } else { self.value(extra.kind, extra.must) });
        }
        format!("INSERT INTO {to} VALUES ({})", values.join(", "))
    }

    fn value(&mut self, kind: usize, must: bool) -> String {
        if !must && self.is(6) {
            return "NULL".to_owned();
        }
        let values = TYPES.get(kind).map_or(&[] as &[&str], |(_, values)| *values);
        quoted(self.one(values))
    }
}
