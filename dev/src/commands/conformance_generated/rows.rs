//! Drawn rows: the case of a drawn table, with its statements.

use walrelay_dev::conformance::beside::LAST;
use walrelay_dev::conformance::data::{Case, Statement};

use super::ddl;
use super::draw::{Draw, quoted};
use super::table::{PARTITIONS, Table, Trait};
use super::types::TYPES;

impl Draw {
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
        // The topics of the other routes have one partition.
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
