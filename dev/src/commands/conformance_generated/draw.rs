//! Configurations drawn from a seed: keys that are mapped with legal values, tables with columns of many types, odd rows.
//!
//! In: a seed and a number. Out: a [`Group`] as the files of `tests/conformance` have them, without records. The same seed and
//! number always give the same. Left out is what no two runs of Debezium write alike, and what `check` says it refuses.

use std::collections::BTreeMap;
use std::ops::Range;

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use walrelay_dev::conformance::data::{Case, Connect, Group, Statement};

/// Types with values that are legal, odd ones among them.
const TYPES: [(&str, &[&str]); 44] = [
    ("bool", &["t", "f"]),
    ("int2", &["-32768", "7"]),
    ("int4", &["0", "-2147483648"]),
    ("int8", &["9223372036854775807", "-1"]),
    ("oid", &["4294967295", "0"]),
    ("float4", &["0.1", "NaN", "1e-20", "16777216"]),
    ("float8", &["1e300", "-Infinity", "0.1", "123456789"]),
    ("numeric", &["1.50", "0", "NaN", "-1e30", "0.0000000001"]),
    ("numeric(10,2)", &["1.5", "-0.01", "NaN"]),
    ("numeric(5)", &["12345", "-1"]),
    ("text", &["", "ä\"\\", "a b", "😀", "{\"a\": 1}", "\t\n"]),
    ("varchar(20)", &["x", ""]),
    ("char(5)", &["ab", ""]),
    ("uuid", &["0192c2f1-0000-7000-8000-000000000001"]),
    ("json", &["{\"b\" : 1.50}", "[]", "\"x\"", "null"]),
    ("jsonb", &["{\"b\" : 1.50}", "[1]"]),
    ("xml", &["<a/>"]),
    ("date", &["2025-11-21", "infinity", "0044-03-15 BC", "5874897-12-31"]),
    ("time", &["13:51:30.123456", "24:00:00", "00:00:00"]),
    ("time(3)", &["13:51:30.123"]),
    ("timetz", &["13:51:30.5+02", "24:00:00+00", "00:00:00-15:59"]),
    ("timestamp", &["2025-11-21 09:08:07.654321", "infinity", "1969-12-31 23:59:59.999999", "0044-03-15 00:00:00 BC"]),
    ("timestamp(0)", &["2025-11-21 09:08:07", "-infinity"]),
    ("timestamp(3)", &["2025-11-21 09:08:07.654", "1970-01-01 00:00:00"]),
    ("timestamptz", &["2025-11-21 09:08:07.65+00", "infinity", "12345-01-01 00:00:00+00"]),
    ("timestamptz(3)", &["2025-11-21 09:08:07.65+05:30"]),
    ("interval", &["1 year 2 mons 3 days 04:05:06.789", "-00:00:01.5", "0"]),
    ("bytea", &["\\x00ff", "\\x", "\\x666f6f"]),
    ("money", &["12.34", "-1234567.89"]),
    ("bit", &["1", "0"]),
    ("bit(12)", &["101100001111", "000000000000"]),
    ("varbit(5)", &["101", ""]),
    ("point", &["(1,2)", "(-0.5,1e100)"]),
    ("inet", &["10.0.0.1", "::1/64"]),
    ("cidr", &["10.0.0.0/8"]),
    ("macaddr", &["08:00:2b:01:02:03"]),
    ("int4range", &["[1,5)", "empty"]),
    ("tstzrange", &["[2025-01-01 00:00:00+00,)"]),
    ("tsvector", &["'a':1 'b':2"]),
    ("int4[]", &["{1,NULL,3}", "{}", "{{1},{2}}"]),
    ("text[]", &["{a,\"b \\\"c\",NULL}", "{}"]),
    ("bool[]", &["{t,f}"]),
    ("timestamptz[]", &["{\"2025-01-02 03:04:05.5+00\"}"]),
    ("mood", &["sad", "glad"]),
];

const CLASS: &str = "org.apache.kafka.connect.";

/// The configuration of that number.
pub(super) fn group(seed: u64, number: usize) -> Group {
    let mut draw = Draw { random: StdRng::seed_from_u64(seed ^ (number as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15)) };
    let name = format!("g{seed}-{number}");
    let table = draw.table();
    let mut config = draw.config(&name, &table);
    let worker = draw.converters(&mut config);
    let mut partitions = BTreeMap::new();
    if table.partitioned {
        partitions.insert(format!("{name}.order"), 6);
    }
    Group {
        name: format!("generated {name}"),
        settings: vec!["--accept-differences".to_owned()],
        connect: Some(Connect { config, worker }),
        partitions,
        cases: vec![draw.case(&table)],
        ..Group::default()
    }
}

/// A column that is not one of the router's own.
struct Extra {
    name: String,
    kind: usize,
    constraint: &'static str,
}

struct Table {
    key: usize,
    payload: usize,
    extras: Vec<Extra>,
    /// Other names of the router's columns.
    renamed: bool,
    /// A topic has several partitions, and so no key is null: those go where a client likes.
    partitioned: bool,
}

impl Table {
    /// id, route, key, payload.
    fn names(&self) -> [&'static str; 4] {
        if self.renamed {
            ["event_id", "aggregate_type", "Aggregate Id", "data"]
        } else {
            ["id", "aggregatetype", "aggregateid", "payload"]
        }
    }
}

struct Draw {
    random: StdRng,
}

impl Draw {
    /// Once in so many times.
    fn is(&mut self, times: u32) -> bool {
        self.random.random_ratio(1, times)
    }

    fn number(&mut self, range: Range<usize>) -> usize {
        self.random.random_range(range)
    }

    fn one<'a>(&mut self, of: &[&'a str]) -> &'a str {
        let at = self.number(0..of.len().max(1));
        of.get(at).copied().unwrap_or_default()
    }

    fn kind(&mut self, of: &[&str]) -> usize {
        let named = self.one(of);
        TYPES.iter().position(|(name, _)| *name == named).unwrap_or(0)
    }

    fn table(&mut self) -> Table {
        let partitioned = self.is(5);
        let keys = ["text", "uuid", "int8", "varchar(20)", "int4", "mood", "bytea", "numeric(10,2)", "timestamp"];
        let keys = keys.get(..if partitioned { 6 } else { keys.len() }).unwrap_or_default();
        let payloads = ["text", "json", "jsonb", "text", "jsonb", "bytea"];
        let (key, payload) = (self.kind(keys), self.kind(&payloads));
        let extras = (0..self.number(0..7)).map(|at| Extra {
            name: format!("x{at}"),
            kind: self.number(0..TYPES.len()),
            constraint: if self.is(4) { " NOT NULL" } else { "" },
        });
        let extras = extras.collect();
        Table { key, payload, extras, renamed: self.is(4), partitioned }
    }

    fn config(&mut self, name: &str, table: &Table) -> BTreeMap<String, String> {
        let mut config = BTreeMap::new();
        let mut set = |key: &str, value: &str| config.insert(key.to_owned(), value.to_owned());
        set("connector.class", "io.debezium.connector.postgresql.PostgresConnector");
        set("plugin.name", "pgoutput");
        set("publication.autocreate.mode", "disabled");
        set("snapshot.mode", "no_data");
        set("poll.interval.ms", "10");
        set("tasks.max", "1");
        set("topic.prefix", self.one(&["app", "a.b", "shop_1"]));
        set("table.include.list", self.one(&["c1.outbox", "c1\\.out.*", "c\\d+\\.outbox"]));
        set("message.prefix.exclude.list", ".*");
        let optional: [(&str, &[&str]); 9] = [
            (
                "time.precision.mode",
                &["adaptive", "adaptive_time_microseconds", "connect", "microseconds", "nanoseconds"],
            ),
            ("decimal.handling.mode", &["precise", "double", "string"]),
            ("binary.handling.mode", &["bytes", "base64", "base64-url-safe", "hex"]),
            ("interval.handling.mode", &["numeric", "string"]),
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
        }
        set("transforms", "outbox");
        for (option, value) in self.router(name, table) {
            set(&format!("transforms.outbox.{option}"), &value);
        }
        config
    }

    fn router(&mut self, name: &str, table: &Table) -> Vec<(&'static str, String)> {
        let mut options = vec![
            ("type", "io.debezium.transforms.outbox.EventRouter".to_owned()),
            ("route.topic.replacement", format!("{name}.$1")),
            ("route.topic.regex", self.one(&["(.*)", "([a-z-]+)", "(?:x-)?(.*)"]).to_owned()),
        ];
        if self.is(3) {
            options.retain(|(option, _)| *option != "route.topic.regex");
            options.retain(|(option, _)| *option != "route.topic.replacement");
            options.push(("route.topic.replacement", format!("{name}.${{routedByValue}}")));
        }
        let [id, route, key, payload] = table.names();
        if table.renamed {
            options.push(("table.field.event.id", id.to_owned()));
            options.push(("route.by.field", route.to_owned()));
            options.push(("table.field.event.payload", payload.to_owned()));
        }
        if table.renamed || self.is(5) {
            options.push(("table.field.event.key", key.to_owned()));
        }
        let mut placements = Vec::new();
        for extra in &table.extras {
            let alias = self.one(&["", ":Alias", ":a b", ":ä"]);
            let alias = if alias.is_empty() { String::new() } else { format!("{alias}{}", extra.name) };
            placements.push(format!("{}:{}{alias}", extra.name, self.one(&["header", "header", "envelope", "HEADER"])));
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
        if self.is(6) {
            options.push(("table.expand.json.payload", "true".to_owned()));
            options.push(("table.json.payload.null.behavior", self.one(&["ignore", "optional_bytes"]).to_owned()));
        }
        options
    }

    /// Those of the connector, or of the worker.
    fn converters(&mut self, config: &mut BTreeMap<String, String>) -> Vec<String> {
        let expands = config.contains_key("transforms.outbox.table.expand.json.payload");
        for part in ["key", "value", "header"] {
            let converter = match part {
                "header" => {
                    self.one(&["storage.SimpleHeaderConverter", "json.JsonConverter", "storage.StringConverter"])
                }
                "value" if expands => "json.JsonConverter",
                _ => self.one(&["storage.StringConverter", "json.JsonConverter", "json.JsonConverter"]),
            };
            if part == "header" && self.is(4) {
                continue;
            }
            let key = format!("{part}.converter");
            config.insert(key.clone(), format!("{CLASS}{converter}"));
            if converter == "json.JsonConverter" {
                let schemas = if expands { "false" } else { self.one(&["true", "false"]) };
                config.insert(format!("{key}.schemas.enable"), schemas.to_owned());
                if self.is(3) {
                    config.insert(format!("{key}.decimal.format"), self.one(&["BASE64", "NUMERIC"]).to_owned());
                }
            }
        }
        vec![
            format!("key.converter={CLASS}storage.StringConverter"),
            format!("value.converter={CLASS}storage.StringConverter"),
        ]
    }

    fn case(&mut self, table: &Table) -> Case {
        let [id, route, key, payload] = table.names();
        let kind = |at: usize| TYPES.get(at).map_or("text", |(name, _)| *name);
        let mut columns = vec![
            format!("{id} int PRIMARY KEY"),
            format!("{route} text NOT NULL"),
            format!("\"{key}\" {}", kind(table.key)),
            format!("{payload} {}", kind(table.payload)),
        ];
        columns.extend(
            table.extras.iter().map(|extra| format!("{} {}{}", extra.name, kind(extra.kind), extra.constraint)),
        );
        let setup = vec![
            "CREATE TYPE mood AS ENUM ('sad', 'glad')".to_owned(),
            format!("CREATE TABLE outbox ({})", columns.join(", ")),
        ];
        let count = self.number(3..9);
        let rows = (0..count).map(|at| {
            let mut values = vec![at.to_string(), self.one(&["'order'", "'user'", "'order'", "'x-order'"]).to_owned()];
            values.push(self.value(table.key, table.partitioned));
            values.push(self.value(table.payload, false));
            values.extend(table.extras.iter().map(|extra| self.value(extra.kind, !extra.constraint.is_empty())));
            Statement::Own(format!("INSERT INTO outbox VALUES ({})", values.join(", ")))
        });
        let statements = rows.collect();
        Case {
            name: "rows".to_owned(),
            table: setup,
            statements,
            oracle: None,
            records: Vec::new(),
            sum: None,
            differs: None,
            debezium: Vec::new(),
        }
    }

    fn value(&mut self, kind: usize, must: bool) -> String {
        if !must && self.is(6) {
            return "NULL".to_owned();
        }
        let values = TYPES.get(kind).map_or(&[] as &[&str], |(_, values)| *values);
        format!("'{}'", self.one(values).replace('\'', "''"))
    }
}
