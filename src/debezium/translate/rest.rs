//! Makes notes on the keys without a counterpart.
//!
//! Specification: Debezium's PostgreSQL connector and Server, Kafka Connect's worker properties.

use super::without_counterpart::When::{Always, InSchemas, Off, On};
use super::without_counterpart::{self, CONNECT, When};
use super::{NO_EFFECT, Translator};
use crate::debezium::Note;
use crate::debezium::Severity::{self, NotNeeded, Warning};
use crate::debezium::document::Configuration;
use crate::debezium::keys::{Keys, says};
use crate::setting_text::{Given, nearest};

/// Values without an effect, for keys of all kinds. Debezium's defaults are among them.
const NOTHING: [&str; 8] = [
    "",
    "0",
    "false",
    "none",
    "disabled",
    ".",
    "io.debezium.schema.schematopicnamingstrategy",
    "io.debezium.schema.defaulttopicnamingstrategy",
];

impl Translator {
    /// Makes a note on each key that is left.
    pub(super) fn rest(&mut self) {
        self.sink();
        self.inserts();
        self.messages();
        self.transactions();
        self.converters_left();
        let connector = std::mem::take(&mut self.configuration.connector);
        for (key, value) in connector.iter() {
            match without_counterpart::CONNECTOR.find(key) {
                Some((when, severity, text)) => self.left(value, when, severity, text),
                None => self.unknown(key, value),
            }
        }
        let server = std::mem::take(&mut self.configuration.server);
        for (key, value) in server.iter() {
            match without_counterpart::SERVER.find(key) {
                Some((when, severity, text)) => self.left(value, when, severity, text),
                None => self.not_needed(value, "no setting of Debezium's"),
            }
        }
        self.worker();
    }

    fn sink(&mut self) {
        let Some(sink) = self.configuration.server.take_filled("debezium.sink.type") else {
            if self.is_server() {
                self.refuse_missing("debezium.sink.type", "it is missing: Debezium Server would not start");
            }
            return;
        };
        if sink.text.trim() == "kafka" {
            self.not_needed(&sink, "the same");
        } else {
            self.refuse(&sink, "walrelay writes to Kafka alone");
        }
    }

    /// Refuses `skipped.operations=c`, which would publish nothing.
    fn inserts(&mut self) {
        if self.skips("c") {
            let skipped = self.configuration.connector.take("skipped.operations");
            self.differs(&skipped, "Debezium skipped inserts, and so published nothing");
        }
    }

    /// Whether changes of that kind do not reach the router.
    pub(super) fn skips(&self, operation: &str) -> bool {
        let skipped = self.configuration.connector.get("skipped.operations");
        skipped.is_some_and(|skipped| {
            skipped.text.split(',').any(|skipped| skipped.trim().eq_ignore_ascii_case(operation))
        })
    }

    /// Makes a note on logical messages. Without a list of prefixes, Debezium takes all of them.
    fn messages(&mut self) {
        if self.configuration.connector.iter().any(|(key, _)| key.starts_with("message.prefix.")) {
            return;
        }
        self.out.notes.push(Note::new(Warning, "logical messages".to_owned(), MESSAGES));
    }

    /// Makes a note on transactions. If its worker is set up for it, Kafka Connect writes in one transaction all that a connector has
    /// read between two commits of its offsets.
    fn transactions(&mut self) {
        let asked = |keys: &mut Keys, key: &str, word: &str| {
            let is_asked = keys.get(key).is_some_and(|value| says(value, word));
            is_asked.then(|| keys.take(key)).flatten()
        };
        let Configuration { worker, connector, .. } = &mut self.configuration;
        let asked = asked(worker, "exactly.once.source.support", "enabled")
            .or_else(|| asked(connector, "exactly.once.support", "required"));
        let Some(asked) = asked else { return };
        let text = "Kafka Connect wrote each record once, in transactions; walrelay does with --delivery exactly-once, and else may repeat records after a crash";
        self.warn(&asked, text);
    }

    fn converters_left(&mut self) {
        for key in ["key.converter.", "value.converter.", "header.converter.", "converter."] {
            for (_, value) in self.configuration.connector.take_below(key).iter() {
                self.not_needed(value, "a converter's option that nothing looks at");
            }
        }
        let Some(names) = self.configuration.connector.get("converters").cloned() else { return };
        for name in names.text.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            for (_, option) in self.configuration.connector.take_below(&format!("{name}.")).iter() {
                self.not_needed(option, format!("an option of the custom converter {name}"));
            }
        }
    }

    fn left(&mut self, value: &Given, when: When, severity: Severity, text: &str) {
        let asks = !NOTHING.contains(&value.text.trim().to_ascii_lowercase().as_str());
        let (severity, text) = match when {
            InSchemas if asks && !self.out.connect.writes_schemas() => {
                (NotNeeded, "it shows only where a JsonConverter writes schemas")
            }
            On | InSchemas if !asks => (NotNeeded, NO_EFFECT),
            Off if !says(value, "false") => (NotNeeded, NO_EFFECT),
            Always | On | Off | InSchemas => (severity, text),
        };
        self.note(severity, &value.origin, text);
    }

    fn unknown(&mut self, key: &str, value: &Given) {
        let known = without_counterpart::CONNECTOR.names().chain(KNOWN);
        let meant = nearest(key, known).map(|meant| format!("; {meant} is")).unwrap_or_default();
        self.warn(
            value,
            format!("no key of Debezium's PostgreSQL connector that is known here{meant}; nothing is made of it"),
        );
    }

    /// Makes notes on a worker's other settings, which are for its clients and its cluster. Those for TLS look like the producer's.
    fn worker(&mut self) {
        let worker = std::mem::take(&mut self.configuration.worker);
        for (key, value) in worker.iter() {
            if ["security.", "sasl.", "ssl."].iter().any(|prefix| key.starts_with(prefix)) {
                self.warn(value, "a worker's own clients use it, its connectors' producers do not: they have producer.* and producer.override.*");
            } else {
                self.not_needed(value, CONNECT);
            }
        }
    }
}

const MESSAGES: &str = "Debezium writes each pg_logical_emit_message to the topic PREFIX.message; walrelay publishes those that --message-prefix names, as rows of an outbox (message.prefix.exclude.list=.* says that there are none)";

/// Keys that are carried over, to find the one that a misspelt key was meant to be.
const KNOWN: [&str; 16] = [
    "database.hostname",
    "database.port",
    "database.user",
    "database.password",
    "database.dbname",
    "database.sslmode",
    "slot.name",
    "slot.drop.on.stop",
    "publication.name",
    "plugin.name",
    "table.include.list",
    "table.exclude.list",
    "schema.include.list",
    "transforms",
    "binary.handling.mode",
    "decimal.handling.mode",
];
