//! Settings of Debezium Server in several places at once: the file, its profiles, files of profiles, variables in whatever case, `.env`,
//! expressions, empty values.
//!
//! In: a seed and a number. Out: a [`Group`] with lines, variables and files, and without records. Each key that is drawn decides what
//! records look like, and so shows which of its places counted.

use std::collections::BTreeMap;

use walrelay_dev::conformance::data::{Case, Group, Statement};

use super::draw::Draw;

/// What every configuration has in its file.
const BASE: [&str; 15] = [
    "debezium.sink.type=kafka",
    "debezium.source.connector.class=io.debezium.connector.postgresql.PostgresConnector",
    "debezium.source.plugin.name=pgoutput",
    "debezium.source.topic.prefix=app",
    "debezium.source.publication.autocreate.mode=disabled",
    "debezium.source.snapshot.mode=no_data",
    "debezium.source.poll.interval.ms=10",
    "debezium.transforms=outbox",
    "debezium.transforms.outbox.type=io.debezium.transforms.outbox.EventRouter",
    "debezium.sink.kafka.producer.key.serializer=org.apache.kafka.common.serialization.StringSerializer",
    "debezium.sink.kafka.producer.value.serializer=org.apache.kafka.common.serialization.StringSerializer",
    "debezium.format.key=simplestring",
    "debezium.format.value=simplestring",
    "debezium.format.header=clientprovided",
    "debezium.format.header.class=org.apache.kafka.connect.storage.SimpleHeaderConverter",
];

/// Keys whose values show in records.
const KEYS: [(&str, &[&str]); 14] = [
    ("debezium.source.table.include.list", &["c1.outbox", "c1.events", "c1\\\\.(outbox|events)"]),
    ("debezium.source.table.exclude.list", &["c1.outbox", "c1.events", "c9.x"]),
    ("debezium.source.column.exclude.list", &["c1.outbox.other", "c1\\\\.[a-z]+\\\\.h1"]),
    ("debezium.source.decimal.handling.mode", &["double", "string"]),
    ("debezium.source.time.precision.mode", &["isostring", "microseconds", "nanoseconds"]),
    ("debezium.transforms.outbox.table.field.event.key", &["other", "h1", "aggregateid"]),
    ("debezium.transforms.outbox.table.field.event.payload", &["other", "h1", "payload"]),
    (
        "debezium.transforms.outbox.table.fields.additional.placement",
        &["h1:header", "num:header:Num", "h1:header,at:header"],
    ),
    ("debezium.transforms.outbox.table.field.additional.missing", &["ignore", "error"]),
    ("debezium.transforms.outbox.route.by.field", &["aggregatetype", "other"]),
    ("debezium.transforms.outbox.route.topic.replacement", &["a.$1", "b.$1", "c-$$1"]),
    ("debezium.transforms.outbox.route.topic.regex", &["(.*)", "([a-z]+[0-9]+).*"]),
    ("debezium.format.value", &["json", "simplestring"]),
    ("debezium.format.key.schemas.enable", &["true", "false"]),
];

/// Kinds of places.
const PLACES: usize = 6;

/// Names of profiles, active or not.
const PROFILES: [&str; 3] = ["prod", "blue", "red"];

/// The configuration of that number.
pub(super) fn group(seed: u64, number: usize) -> Group {
    let mut draw = Draw::new(seed, number);
    let mut made = Made::default();
    made.profile(&mut draw);
    // Debezium starts with one of the lists of tables.
    let spared = draw.number(0..2);
    for (at, (key, values)) in KEYS.into_iter().enumerate() {
        if at != spared && draw.is(3) {
            // Each in another kind of place: two spellings of one key in one place are refused.
            let first = draw.number(0..PLACES);
            for at in 0..draw.number(1..4) {
                made.key(&mut draw, key, values, (first + at * 2) % PLACES);
            }
        }
    }
    let lines = BASE.iter().map(|line| (*line).to_owned()).chain(made.lines).collect();
    Group {
        name: format!("generated places {seed} {number}"),
        debezium: lines,
        variables: made.variables,
        files: made.files,
        cases: vec![rows(number)],
        ..Group::default()
    }
}

/// What was drawn until now.
#[derive(Default)]
struct Made {
    lines: Vec<String>,
    variables: BTreeMap<String, String>,
    files: BTreeMap<String, String>,
}

impl Made {
    /// Which profiles are active, in none, one or two places.
    fn profile(&mut self, draw: &mut Draw) {
        for _ in 0..draw.number(0..3) {
            let value = draw.one(&["blue", "red", "blue,red", "red , blue", "prod", ""]).to_owned();
            match draw.number(0..6) {
                0 => self.variable("QUARKUS_PROFILE", &value),
                1 => self.variable("MP_CONFIG_PROFILE", &value),
                2 => self.variable("smallrye_config_profile", &value),
                3 => self.lines.push(format!("quarkus.profile={value}")),
                4 => self.lines.push(format!("mp.config.profile={value}")),
                _ => self.line_of(".env", &format!("QUARKUS_PROFILE={value}")),
            }
        }
    }

    /// One value of a key, in a place of that number.
    fn key(&mut self, draw: &mut Draw, key: &str, values: &[&str], place: usize) {
        let drawn = draw.one(values).to_owned();
        // An empty one, or an expression.
        let written = match draw.number(0..10) {
            0 => String::new(),
            1 => format!("${{NOWHERE:{drawn}}}"),
            2 => {
                let name = format!("SOME_{}", draw.number(0..100));
                self.variable(&name, &drawn.replace("\\\\", "\\"));
                format!("${{{}}}", draw.one(&[&name, &name.to_lowercase(), &name.to_lowercase().replace('_', ".")]))
            }
            _ => drawn,
        };
        // A variable has no escapes.
        let plain = written.replace("\\\\", "\\");
        let (profile, underscored) = (draw.one(&PROFILES), key.replace('.', "_"));
        let form = draw.one(&["upper", "upper", "lower", "mixed", "dots"]);
        let variable = match form {
            "lower" => underscored.clone(),
            "mixed" => in_mixed_case(&underscored),
            "dots" => key.to_owned(),
            _ => underscored.to_uppercase(),
        };
        match place {
            0 if draw.is(6) => self.lines.push(format!("{underscored}={written}")),
            0 | 1 => self.lines.push(format!("{key}={written}")),
            2 => self.lines.push(format!("%{profile}.{key}={written}")),
            3 => self.line_of(&format!("config/application-{profile}.properties"), &format!("{key}={written}")),
            4 if draw.is(4) => self.variable(&format!("_{}_{variable}", profile.to_uppercase()), &plain),
            4 => self.variable(&variable, &plain),
            _ => self.line_of(".env", &format!("{variable}={written}")),
        }
    }

    fn variable(&mut self, name: &str, value: &str) {
        self.variables.insert(name.to_owned(), value.to_owned());
    }

    fn line_of(&mut self, file: &str, line: &str) {
        let text = self.files.entry(file.to_owned()).or_default();
        text.push_str(line);
        text.push('\n');
    }
}

/// `Debezium_Source_Slot`.
fn in_mixed_case(name: &str) -> String {
    let words = name.split('_').map(|word| {
        let (first, rest) = word.split_at_checked(1).unwrap_or((word, ""));
        first.to_uppercase() + rest
    });
    words.collect::<Vec<_>>().join("_")
}

/// Two tables, and rows in both, whose topics are this configuration's alone.
fn rows(number: usize) -> Case {
    let own = |sql: &str| Statement::Own(sql.replace('#', &number.to_string()));
    Case {
        name: "rows".to_owned(),
        table: vec![
            "CREATE TABLE outbox (n int PRIMARY KEY, id text, aggregatetype text, aggregateid text, other text, payload text, h1 text, num numeric(5,2), at timestamp)".to_owned(),
            "CREATE TABLE events (LIKE outbox)".to_owned(),
        ],
        statements: vec![
            own("INSERT INTO outbox VALUES (1, 'i', 'user#', 'k', 'o#', 'p', 'h', 1.5, '2025-11-21 09:08:07.5')"),
            own("INSERT INTO events VALUES (2, 'j', 'order#.x', 'ek', 'eo#', 'ep', 'eh', -2, '2025-11-21 09:08:07')"),
            own("INSERT INTO outbox VALUES (3, 'l', 'user#', NULL, 'o#', NULL, NULL, NULL, NULL)"),
        ],
        ..Case::default()
    }
}
