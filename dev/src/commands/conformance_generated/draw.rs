//! Configurations drawn from a seed: keys that are mapped with legal values, tables with columns of many types, odd rows.
//!
//! In: a seed and a number. Out: a [`Group`] as the files of `tests/conformance` have them, without records. The same seed and
//! number always give the same. Left out is what no two runs of Debezium write alike, and what `check` says it refuses.

use std::collections::BTreeMap;
use std::ops::Range;

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use walrelay_dev::conformance::beside::LAST;
use walrelay_dev::conformance::data::{Case, Connect, Group, Statement};

use super::{changes, ddl, defaults, doors, tuning};

/// Types with values that are legal, odd ones among them.
const TYPES: [(&str, &[&str]); 90] = [
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
    ("numeric(4,-2)", &["12300", "-100"]),
    ("text", &["", "ä\"\\", "a b", "😀", "{\"a\": 1}", "\t\n"]),
    ("varchar(20)", &["x", ""]),
    ("varchar", &["\u{1}x", "x"]),
    ("char(5)", &["ab", ""]),
    ("\"char\"", &["a"]),
    ("uuid", &["0192c2f1-0000-7000-8000-000000000001"]),
    ("json", &["{\"b\" : 1.50}", "[]", "\"x\"", "null"]),
    ("jsonb", &["{\"b\" : 1.50}", "[1]"]),
    ("xml", &["<a/>"]),
    ("date", &["2025-11-21", "infinity", "0044-03-15 BC", "5874897-12-31"]),
    ("time", &["13:51:30.123456", "24:00:00", "00:00:00"]),
    ("time(3)", &["13:51:30.123"]),
    ("time(0)", &["13:51:30", "24:00:00"]),
    ("timetz", &["13:51:30.5+02", "24:00:00+00", "00:00:00-15:59"]),
    ("timetz(3)", &["13:51:30.125+02:30"]),
    ("timestamp", &["2025-11-21 09:08:07.654321", "infinity", "1969-12-31 23:59:59.999999", "0044-03-15 00:00:00 BC"]),
    ("timestamp(0)", &["2025-11-21 09:08:07", "-infinity"]),
    ("timestamp(3)", &["2025-11-21 09:08:07.654", "1970-01-01 00:00:00"]),
    ("timestamp(6)", &["2025-11-21 09:08:07.654321"]),
    ("timestamptz", &["2025-11-21 09:08:07.65+00", "infinity", "12345-01-01 00:00:00+00"]),
    ("timestamptz(3)", &["2025-11-21 09:08:07.65+05:30"]),
    ("interval", &["1 year 2 mons 3 days 04:05:06.789", "-00:00:01.5", "0"]),
    ("interval(3)", &["-1 year 25:00:00.125", "infinity"]),
    ("bytea", &["\\x00ff", "\\x", "\\x666f6f"]),
    ("money", &["12.34", "-1234567.89"]),
    ("bit", &["1", "0"]),
    ("bit(12)", &["101100001111", "000000000000"]),
    ("varbit(5)", &["101", ""]),
    ("varbit", &["1011000011110000", "1"]),
    ("point", &["(1,2)", "(-0.5,1e100)"]),
    ("inet", &["10.0.0.1", "::1/64"]),
    ("cidr", &["10.0.0.0/8"]),
    ("macaddr", &["08:00:2b:01:02:03"]),
    ("macaddr8", &["08:00:2b:01:02:03:04:05"]),
    ("int4range", &["[1,5)", "empty"]),
    ("int8range", &["[1,)"]),
    ("numrange", &["(1.5,2]"]),
    ("tsrange", &["[\"2025-01-01 00:00:00\",)"]),
    ("tstzrange", &["[2025-01-01 00:00:00+00,)"]),
    ("daterange", &["[2025-01-01,2025-01-03)"]),
    ("tsvector", &["'a':1 'b':2"]),
    ("hstore", &["a=>1, b=>NULL", ""]),
    ("ltree", &["Top.Science"]),
    ("citext", &["Ab", ""]),
    ("int4[]", &["{1,NULL,3}", "{}", "{{1},{2}}"]),
    ("int8[]", &["{9007199254740993}", "{}"]),
    ("float8[]", &["{0.1,NULL}"]),
    ("numeric(10,2)[]", &["{1.5,-0.01}"]),
    ("text[]", &["{a,\"b \\\"c\",NULL}", "{}"]),
    ("varchar(5)[]", &["{a}"]),
    ("uuid[]", &["{0192c2f1-0000-7000-8000-000000000001}"]),
    ("date[]", &["{2025-11-21}", "{}", "{infinity,NULL}", "{1500-01-01,0044-03-15 BC}", "{{2025-11-21}}"]),
    ("time[]", &["{13:51:30.123456,NULL}", "{24:00:00}"]),
    ("timestamp[]", &["{2025-11-21 09:08:07.654321,infinity}", "{1500-01-01 00:00:00}"]),
    ("bool[]", &["{t,f}"]),
    ("timestamptz[]", &["{\"2025-01-02 03:04:05.5+00\"}"]),
    ("mood", &["sad", "glad"]),
    ("mood[]", &["{sad,glad}", "{}"]),
    ("tsvector[]", &["{\"'a':1 'b':2\"}", "{}", "{\"'a':1\",NULL}"]),
    ("int4range[]", &["{\"[1,5)\",NULL,empty}", "{}"]),
    ("tsrange[]", &["{\"[\\\"2025-01-01 00:00:00\\\",)\"}", "{NULL}"]),
    ("daterange[]", &["{\"[2025-01-01,2025-01-03)\"}"]),
    ("\"char\"[]", &["{a,NULL}", "{}"]),
    ("inet[]", &["{10.0.0.1,::1/64,NULL}"]),
    ("jsonb[]", &["{\"{\\\"b\\\": 1.50}\",\"[1]\",NULL}"]),
    ("citext[]", &["{Ab,\"c d\"}"]),
    ("hstore[]", &["{\"\\\"a\\\"=>\\\"1\\\"\",NULL}", "{}"]),
    ("small", &["7", "1"]),
    ("label", &["x"]),
    ("pair", &["(1,a)"]),
    ("pair[]", &["{\"(1,a)\"}"]),
    ("checked", &["(2,b)"]),
    ("small[]", &["{1}"]),
    ("xid8", &["5"]),
    ("pg_lsn", &["0/16"]),
    ("box", &["(1,1),(0,0)"]),
    ("tsquery", &["'a' & 'b'"]),
    ("jsonpath", &["$.a"]),
    ("int4multirange", &["{[1,5)}"]),
];

/// What the tables' types need.
const DATABASE: [&str; 8] = [
    "CREATE EXTENSION hstore",
    "CREATE EXTENSION ltree",
    "CREATE EXTENSION citext",
    "CREATE TYPE mood AS ENUM ('sad', 'glad')",
    "CREATE DOMAIN small AS int2 CHECK (VALUE > 0)",
    "CREATE DOMAIN label AS varchar(10)",
    "CREATE TYPE pair AS (a int, b text)",
    "CREATE DOMAIN checked AS pair",
];

const CLASS: &str = "org.apache.kafka.connect.";

/// What the names of all topics of a seed begin with.
pub(super) fn prefix_of_all(seed: u64) -> String {
    format!("g{seed}-")
}

/// What the names of a configuration's topics begin with.
pub(super) fn prefix(seed: u64, number: usize) -> String {
    format!("{}{number}.", prefix_of_all(seed))
}

/// The configuration of that number.
pub(super) fn group(seed: u64, number: usize) -> Group {
    let mut draw = Draw::new(seed, number);
    let prefix = prefix(seed, number);
    let table = draw.table();
    let mut config = draw.config(&prefix, &table);
    let mut worker = draw.converters(&table, &mut config);
    doors::add(&mut draw, &mut config, &mut worker);
    let mut partitions = BTreeMap::new();
    if table.has(Trait::Partitioned) {
        partitions.insert(format!("{prefix}order"), PARTITIONS);
    }
    let mut case = draw.case(&prefix, &table);
    tuning::add(&mut draw, &mut config);
    let [id, ..] = table.names();
    let publication = changes::add(&mut draw, id, &mut case);
    let settings = if is_accepted(&config) { vec![ACCEPT.to_owned()] } else { Vec::new() };
    Group {
        name: format!("generated {prefix}"),
        settings,
        connect: Some(Connect { config, worker }),
        database: DATABASE.map(str::to_owned).into(),
        publication,
        partitions,
        cases: vec![case],
        ..Group::default()
    }
}

/// Whether `check` wants a word of consent, although nothing differs.
fn is_accepted(config: &BTreeMap<String, String>) -> bool {
    config.contains_key(&format!("{ROUTER}{EXPAND}"))
}

/// Of the topic that has several.
const PARTITIONS: u32 = 6;

const ROUTER: &str = "transforms.outbox.";
const EXPAND: &str = "table.expand.json.payload";
const ACCEPT: &str = "--accept-differences";

/// A column that is not one of the router's own.
#[derive(Clone)]
pub(super) struct Extra {
    pub(super) name: String,
    kind: usize,
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
    payload: usize,
    pub(super) extras: Vec<Extra>,
    /// The type of a column that is the event's time.
    at: Option<&'static str>,
    traits: Vec<Trait>,
}

/// What a table may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trait {
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
    fn has(&self, one: Trait) -> bool {
        self.traits.contains(&one)
    }

    /// id, route, key, payload.
    fn names(&self) -> [&'static str; 4] {
        if self.has(Trait::Renamed) {
            ["event_id", "aggregate_type", "Aggregate Id", "data"]
        } else {
            ["id", "aggregatetype", "aggregateid", "payload"]
        }
    }
}

pub(super) struct Draw {
    random: StdRng,
}

impl Draw {
    /// The same seed and number always draw the same.
    pub(super) fn new(seed: u64, number: usize) -> Self {
        Self { random: StdRng::seed_from_u64(seed ^ (number as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15)) }
    }

    /// Once in so many times.
    pub(super) fn is(&mut self, times: u32) -> bool {
        self.random.random_ratio(1, times)
    }

    pub(super) fn number(&mut self, range: Range<usize>) -> usize {
        self.random.random_range(range)
    }

    pub(super) fn one<'a>(&mut self, of: &[&'a str]) -> &'a str {
        let at = self.number(0..of.len().max(1));
        of.get(at).copied().unwrap_or_default()
    }

    fn kind(&mut self, of: &[&str]) -> usize {
        let named = self.one(of);
        TYPES.iter().position(|(name, _)| *name == named).unwrap_or(0)
    }

    fn table(&mut self) -> Table {
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

    fn config(&mut self, prefix: &str, table: &Table) -> BTreeMap<String, String> {
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
    fn converters(&mut self, table: &Table, config: &mut BTreeMap<String, String>) -> Vec<String> {
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

    fn case(&mut self, prefix: &str, table: &Table) -> Case {
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

pub(super) fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}
