//! The configurations that move: half of them Debezium Server's, half Kafka Connect's.
//!
//! In: nothing. Out: a [`Group`] for each, without records. Specification: the tutorials' outbox tables, both platforms'
//! manuals.

use std::fmt;

use walrelay_dev::conformance::data::{Case, Group, Statement};

use crate::commands::conformance_connect::of_connect;

/// Both kinds of files, without the addresses, the converters and the platform's own keys.
const CONNECTOR: [(&str, &str); 7] = [
    ("connector.class", "io.debezium.connector.postgresql.PostgresConnector"),
    ("plugin.name", "pgoutput"),
    ("topic.prefix", "app"),
    ("publication.autocreate.mode", "disabled"),
    ("snapshot.mode", "no_data"),
    ("transforms", "outbox"),
    ("transforms.outbox.type", "io.debezium.transforms.outbox.EventRouter"),
];

/// Of the router, with the columns below.
const PLACEMENT: &str = "transforms.outbox.table.fields.additional.placement";

const SIMPLE: &str = "org.apache.kafka.connect.storage.SimpleHeaderConverter";

/// Partitions of each topic.
const PARTITIONS: u32 = 6;

/// How keys, values and headers are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Texts,
    Json,
    Schemas,
}

/// What a shop's table is like, beside id, route and payload.
#[derive(Debug)]
struct Shop {
    tables: usize,
    form: Form,
    /// The key's type, and its expression of `key-N`.
    key: (&'static str, &'static str),
    /// Further columns, with defaults.
    columns: &'static str,
    placement: &'static str,
}

const SHOPS: [Shop; 5] = [
    // The tutorial's.
    Shop {
        tables: 1,
        form: Form::Texts,
        key: ("text", "{key}"),
        columns: "type text DEFAULT 'Moved'",
        placement: "type:header:eventType",
    },
    Shop {
        tables: 1,
        form: Form::Json,
        key: ("varchar(40) NOT NULL", "{key}"),
        columns: "type text DEFAULT 'Moved', tenant text DEFAULT 'acme', occurred_at timestamptz DEFAULT now()",
        placement: "type:header:eventType,tenant:header,occurred_at:header:occurredAt",
    },
    Shop {
        tables: 1,
        form: Form::Schemas,
        key: ("uuid", "md5({key})::uuid"),
        columns: "type text NOT NULL DEFAULT 'Moved', version int NOT NULL DEFAULT 1, amount numeric(10,2) DEFAULT 1.50",
        placement: "type:envelope:eventType,version:envelope,amount:header",
    },
    Shop {
        tables: 2,
        form: Form::Texts,
        key: ("uuid NOT NULL", "md5({key})::uuid"),
        columns: "type text, region text DEFAULT 'eu'",
        placement: "type:header:eventType,region:header",
    },
    Shop {
        tables: 2,
        form: Form::Schemas,
        key: ("text NOT NULL", "{key}"),
        columns: "type text DEFAULT 'Moved', at timestamp(3) DEFAULT now()",
        // No envelope: of two tables the first row names its schema, and each start has another first row.
        placement: "type:header:eventType,at:header:occurredAt",
    },
];

/// One configuration that moves.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scenario {
    number: usize,
    /// Kafka Connect's; else Debezium Server's.
    pub(super) connect: bool,
    shop: &'static Shop,
}

/// Ten of them, half on each platform.
pub(super) fn scenarios() -> Vec<Scenario> {
    let both = [false, true].into_iter().flat_map(|connect| SHOPS.iter().map(move |shop| (connect, shop)));
    both.enumerate().map(|(number, (connect, shop))| Scenario { number, connect, shop }).collect()
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let platform = if self.connect { "Kafka Connect" } else { "Debezium Server" };
        let tables = if self.shop.tables == 1 { "1 table" } else { "2 tables" };
        let form = match self.shop.form {
            Form::Texts => "texts",
            Form::Json => "JSON",
            Form::Schemas => "JSON with schemas",
        };
        write!(f, "{}. from {platform}, {tables}, {form}", self.number + 1)
    }
}

impl Scenario {
    /// Of the table's rows.
    fn route(self, at: usize) -> String {
        format!("moved{}{}", self.number, ["", "-events"].get(at).unwrap_or(&""))
    }

    pub(super) fn topics(self, prefix: &str) -> Vec<String> {
        (0..self.shop.tables).map(|at| format!("{prefix}.{}", self.route(at))).collect()
    }

    pub(super) fn group(self) -> Group {
        let table = |at| {
            format!(
                "CREATE TABLE {} (id bigint NOT NULL, aggregatetype text NOT NULL DEFAULT '{}', aggregateid {}, \
                 payload jsonb, {})",
                table_of(at),
                self.route(at),
                self.shop.key.0,
                self.shop.columns
            )
        };
        let case = Case {
            name: "tables that move".to_owned(),
            table: (0..self.shop.tables).map(table).collect(),
            statements: vec![Statement::Own("SELECT 1".to_owned())],
            ..Case::default()
        };
        let topics = self.topics("outbox.event").into_iter().chain(self.topics("shadow"));
        let partitions = topics.map(|topic| (topic, PARTITIONS)).collect();
        let lines = self.of_server();
        let (debezium, connect) = if self.connect { (Vec::new(), Some(of_connect(&lines))) } else { (lines, None) };
        Group {
            name: format!("migration {}", self.number),
            debezium,
            connect,
            partitions,
            cases: vec![case],
            ..Group::default()
        }
    }

    /// Writes the row of that number, in turn into each table; seven keys.
    pub(super) fn insert(self, n: i64) -> String {
        let at = usize::try_from(n).unwrap_or_default() % self.shop.tables;
        let key = self.shop.key.1.replace("{key}", &format!("'key-{}'", n % 7));
        let table = table_of(at);
        format!("INSERT INTO c1.{table} (id, aggregateid, payload) VALUES ({n}, {key}, '{{\"n\": {n}}}')")
    }

    fn included(self) -> &'static str {
        if self.shop.tables == 1 { "c1.outbox" } else { "c1.outbox,c1.events" }
    }

    fn of_server(self) -> Vec<String> {
        let mut lines = vec![
            "debezium.sink.type=kafka".to_owned(),
            "debezium.sink.kafka.producer.key.serializer=org.apache.kafka.common.serialization.StringSerializer"
                .to_owned(),
            "debezium.sink.kafka.producer.value.serializer=org.apache.kafka.common.serialization.StringSerializer"
                .to_owned(),
            format!("debezium.source.table.include.list={}", self.included()),
        ];
        let connector = CONNECTOR.iter().copied().chain([(PLACEMENT, self.shop.placement)]);
        lines.extend(connector.map(|(key, value)| match key.strip_prefix("transforms") {
            Some(rest) => format!("debezium.transforms{rest}={value}"),
            None => format!("debezium.source.{key}={value}"),
        }));
        let format = if self.shop.form == Form::Texts { "simplestring" } else { "json" };
        for part in ["key", "value"] {
            lines.push(format!("debezium.format.{part}={format}"));
            lines.push(format!("debezium.format.{part}.schemas.enable={}", self.shop.form == Form::Schemas));
        }
        match self.shop.form {
            Form::Texts => lines.extend([
                "debezium.format.header=clientprovided".to_owned(),
                format!("debezium.format.header.class={SIMPLE}"),
            ]),
            Form::Json | Form::Schemas => lines.extend([
                "debezium.format.header=json".to_owned(),
                format!("debezium.format.header.schemas.enable={}", self.shop.form == Form::Schemas),
            ]),
        }
        lines
    }
}

fn table_of(at: usize) -> &'static str {
    if at == 0 { "outbox" } else { "events" }
}
