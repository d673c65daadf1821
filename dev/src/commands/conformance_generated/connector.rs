//! Drawn configurations of a connector: its tables, its router, its converters.

use std::collections::BTreeMap;

use super::draw::Draw;
use super::table::{Table, Trait};
use super::types::TYPES;

/// What the router's keys begin with.
pub(super) const ROUTER: &str = "transforms.outbox.";

/// The router's option that turns a JSON payload into fields.
pub(super) const EXPAND: &str = "table.expand.json.payload";

const CLASS: &str = "org.apache.kafka.connect.";

impl Draw {
    pub(super) fn config(&mut self, prefix: &str, table: &Table) -> BTreeMap<String, String> {
        let mut config = BTreeMap::new();
        let mut set = |key: &str, value: &str| config.insert(key.to_owned(), value.to_owned());
        set("connector.class", "io.debezium.connector.postgresql.PostgresConnector");
        set("plugin.name", "pgoutput");
        set("publication.autocreate.mode", "disabled");
        set("snapshot.mode", "no_data");
        set("poll.interval.ms", "10");
        set("tasks.max", "1");
        set("topic.prefix", self.one(&["app", "a.b", "shop_1"]));
        if let Some((key, value)) = self.tables(table) {
            set(key, value);
        }
        set("message.prefix.exclude.list", ".*");
        let optional: [(&str, &[&str]); 10] = [
            (
                "time.precision.mode",
                &["adaptive", "adaptive_time_microseconds", "connect", "microseconds", "nanoseconds", "isostring"],
            ),
            ("decimal.handling.mode", &["precise", "double", "string"]),
            ("binary.handling.mode", &["bytes", "base64", "base64-url-safe", "hex"]),
            ("interval.handling.mode", &["numeric", "string"]),
            ("hstore.handling.mode", &["json", "map"]),
            ("money.fraction.digits", &["0", "2", "5"]),
            ("event.converting.failure.handling.mode", &["warn", "skip"]),
            ("tombstones.on.delete", &["true", "false"]),
            ("skipped.operations", &["none", "t", "u,d,t"]),
            ("producer.override.compression.type", &["none", "gzip", "lz4", "zstd"]),
        ];
        for (key, values) in optional {
            if self.is(2) {
                set(key, self.one(values));
            }
        }
        if let Some(hidden) = table.extras.first().filter(|_| self.is(6)) {
            set("column.exclude.list", &format!("c1\\.outbox\\.{}", hidden.name));
        } else if self.is(8) {
            set("column.include.list", &format!("c1\\.[a-z]+\\.({})", self.included(table).join("|")));
        }
        set("transforms", "outbox");
        for (option, value) in self.router(prefix, table) {
            set(&format!("{ROUTER}{option}"), &value);
        }
        config
    }

    /// Which tables are captured.
    fn tables(&mut self, table: &Table) -> Option<(&'static str, &'static str)> {
        let (one, both) = (
            ["c1.outbox", "c1\\.out.*", "c\\d+\\.outbox", "c1.o.tbox", "C1\\.OUTBOX"],
            ["c1.outbox,c1.events", "c1\\.(outbox|events)", "c1.events , C1.OUTBOX"],
        );
        match self.number(0..5) {
            0 => Some(("table.exclude.list", self.one(&["c1.other", "c1\\.ot.*,c9.outbox"]))),
            1 if !table.has(Trait::Other) => Some(("schema.include.list", self.one(&["c1", "c\\d", "public,c1"]))),
            2 if !table.has(Trait::Other) => Some(("schema.exclude.list", self.one(&["c2", "public,c"]))),
            3 if !table.has(Trait::Other) => None,
            _ => Some(("table.include.list", self.one(if table.has(Trait::Second) { &both } else { &one }))),
        }
    }

    /// The router's columns, and most of the others.
    fn included(&mut self, table: &Table) -> Vec<String> {
        let own = table.names().map(str::to_owned).into_iter().chain(["ver", "part", "at"].map(str::to_owned));
        let mut columns: Vec<String> = own.collect();
        columns.extend(table.extras.iter().filter(|_| !self.is(3)).map(|extra| extra.name.clone()));
        columns
    }

    fn router(&mut self, prefix: &str, table: &Table) -> Vec<(&'static str, String)> {
        let mut options = vec![("type", "io.debezium.transforms.outbox.EventRouter".to_owned())];
        options.extend(self.routing(prefix, table));
        let [id, route, key, payload] = table.names();
        if table.has(Trait::Renamed) {
            options.push(("table.field.event.id", id.to_owned()));
            options.push(("route.by.field", route.to_owned()));
            options.push(("table.field.event.payload", payload.to_owned()));
        }
        if table.has(Trait::Renamed) || self.is(5) {
            options.push(("table.field.event.key", key.to_owned()));
        }
        if table.at.is_some() {
            options.push(("table.field.event.timestamp", "at".to_owned()));
        }
        if table.has(Trait::Version) {
            options.push(("table.field.event.schema.version", "ver".to_owned()));
        }
        let mut placements = Vec::new();
        for extra in &table.extras {
            let alias = self.one(&["", ":Alias", ":a b", ":ä"]);
            let alias = if alias.is_empty() { String::new() } else { format!("{alias}{}", extra.name) };
            placements.push(format!("{}:{}{alias}", extra.name, self.one(&["header", "header", "envelope", "HEADER"])));
        }
        if table.has(Trait::Chosen) {
            placements.push("part:partition".to_owned());
        }
        if self.is(5) {
            placements.push("missing:header".to_owned());
        }
        if !placements.is_empty() {
            options.push(("table.fields.additional.placement", placements.join(self.one(&[",", " , "]))));
        }
        let missing = placements.iter().any(|placement| placement.starts_with("missing"));
        if missing || self.is(2) {
            options.push(("table.field.additional.missing", "ignore".to_owned()));
        }
        if self.is(3) {
            options.push(("route.tombstone.on.empty.payload", self.one(&["true", "false", "TRUE"]).to_owned()));
        }
        if self.is(4) {
            options.push(("table.op.invalid.behavior", self.one(&["warn", "error", "fatal"]).to_owned()));
        }
        if self.is(6) {
            options.push((EXPAND, "true".to_owned()));
            options.push(("table.json.payload.null.behavior", self.one(&["ignore", "optional_bytes"]).to_owned()));
        }
        options
    }

    fn routing(&mut self, prefix: &str, table: &Table) -> Vec<(&'static str, String)> {
        let (regex, replacement) = match (table.has(Trait::Whole), self.number(0..3)) {
            (true, 0) => ("(.*)", "$1".to_owned()),
            (true, 1) => ("(.*)\\.ord(e)r", "$1.ord$2red".to_owned()),
            (true, _) => ("", "x.$1".to_owned()),
            (false, 0) => return vec![("route.topic.replacement", format!("{prefix}${{routedByValue}}"))],
            (false, _) => (self.one(&["(.*)", "([a-z-]+)", "(?:x-)?(.*)"]), format!("{prefix}$1")),
        };
        vec![("route.topic.regex", regex.to_owned()), ("route.topic.replacement", replacement)]
    }

    /// Those of the connector, or of the worker.
    pub(super) fn converters(&mut self, table: &Table, config: &mut BTreeMap<String, String>) -> Vec<String> {
        let expands = config.contains_key(&format!("{ROUTER}{EXPAND}"));
        let mut worker = Vec::new();
        for part in ["key", "value", "header"] {
            if part == "header" && self.is(4) {
                continue;
            }
            let options = self.converter(part, table, expands);
            if part != "header" && self.is(3) {
                worker.extend(options.iter().map(|(key, value)| format!("{key}={value}")));
                continue;
            }
            if part != "header" {
                // Nobody looks at it, nor at its options.
                worker.push(format!("{part}.converter={CLASS}json.JsonConverter"));
                worker.push(format!("{part}.converter.schemas.enable={}", self.one(&["true", "false"])));
            }
            config.extend(options);
        }
        worker
    }

    fn converter(&mut self, part: &str, table: &Table, expands: bool) -> Vec<(String, String)> {
        let (text, json, simple) = ("storage.StringConverter", "json.JsonConverter", "storage.SimpleHeaderConverter");
        let binary = table.payload == TYPES.iter().position(|(name, _)| *name == "bytea").unwrap_or(0);
        let key = format!("{part}.converter");
        let class = match part {
            "header" => self.one(&[simple, json, text]),
            "value" if expands => json,
            "value" if binary && self.is(2) => {
                let delegate = format!("{key}.delegate.converter.type");
                let schemas = format!("{delegate}.schemas.enable");
                return vec![
                    (key, "io.debezium.converters.BinaryDataConverter".to_owned()),
                    (delegate, format!("{CLASS}{json}")),
                    (schemas, self.one(&["true", "false"]).to_owned()),
                ];
            }
            _ => self.one(&[text, json, json]),
        };
        let mut options = vec![(key.clone(), format!("{CLASS}{class}"))];
        if class == json {
            let schemas = if expands && part == "value" { "false" } else { self.one(&["true", "false"]) };
            options.push((format!("{key}.schemas.enable"), schemas.to_owned()));
            if self.is(3) {
                options.push((format!("{key}.decimal.format"), self.one(&["BASE64", "NUMERIC"]).to_owned()));
            }
        }
        options
    }
}
