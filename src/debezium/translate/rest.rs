//! Keys that have no counterpart: what they would do, and what is done instead.
//!
//! Specification: Debezium's PostgreSQL connector and Server, Kafka Connect's worker properties.

use super::Translator;
use crate::debezium::Note;
use crate::debezium::Severity::{self, Differs, NotNeeded, Warning};
use crate::debezium::keys::Value;
use crate::given::nearest;

/// When a note is made.
#[derive(Clone, Copy, PartialEq, Eq)]
enum When {
    Always,
    /// Unless its value is false, none or empty.
    On,
    /// Unless its value is true.
    Off,
    /// Where a JsonConverter writes schemas, unless its value is false, none or empty: else it shows nowhere.
    InSchemas,
}

use When::{Always, InSchemas, Off, On};

const PACE: &str = "how Debezium paced itself";
const OFFSETS: &str = "the slot is the only memory: nothing is read from or written to Debezium's offsets";
const HEARTBEAT: &str =
    "not needed: an idle outbox confirms what the server's keepalives say, so that no WAL is held back";
const HEARTBEAT_TOPIC: &str = "records are not written to Debezium's heartbeat topic (whoever watches that topic has /readyz and metrics); \
                               no WAL is held back without them: an idle outbox confirms what the server's keepalives say";
const SIGNAL: &str = "not needed: there are no signals; rows are published once more by inserting them again";
const OLD_ROWS: &str = "not needed: the slot goes on where it is; rows older than the slot are not read, and are published by inserting them again";
const CONNECT: &str = "Kafka Connect's own affair";
const SERVER: &str = "Debezium Server's own affair";
const SCHEMA_NAMES: &str =
    "it changes the names of schemas that a JsonConverter writes: set schemas.enable=false, or leave it out";
const NAMES: &str = "the router names topics without it";
const SCHEMA: &str = "it changes the schemas that a JsonConverter writes, with keys their partitions: set schemas.enable=false, or leave it out";

/// Values that change nothing, of keys of all kinds: Debezium's defaults among them.
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

/// The connector's. One that ends with a dot stands for all that begin with it; the first that fits counts.
const CONNECTOR: [(&str, When, Severity, &str); 105] = [
    ("name", Always, NotNeeded, CONNECT),
    ("tasks.max", Always, NotNeeded, CONNECT),
    ("tasks.max.enforce", Always, NotNeeded, CONNECT),
    ("config.action.reload", Always, NotNeeded, CONNECT),
    ("exactly.once.support", Always, NotNeeded, CONNECT),
    ("transaction.boundary", Always, NotNeeded, CONNECT),
    ("transaction.boundary.interval.ms", Always, NotNeeded, CONNECT),
    ("offsets.storage.topic", Always, NotNeeded, OFFSETS),
    ("config.providers", Always, NotNeeded, "asked already"),
    ("config.providers.", Always, NotNeeded, "asked already"),
    ("topic.creation.", Always, Warning, "topics are not made here: make them, or let the broker do it"),
    ("errors.tolerance", Always, Warning, "a row that cannot be published stops the relay (--on-bad-row)"),
    ("errors.", Always, NotNeeded, CONNECT),
    ("snapshot.mode", Always, NotNeeded, OLD_ROWS),
    ("snapshot.", Always, NotNeeded, OLD_ROWS),
    ("incremental.snapshot.", Always, NotNeeded, OLD_ROWS),
    ("read.only", Always, NotNeeded, OLD_ROWS),
    ("streaming.delay.ms", Always, NotNeeded, PACE),
    ("heartbeat.interval.ms", On, Warning, HEARTBEAT_TOPIC),
    ("heartbeat.", Always, NotNeeded, HEARTBEAT),
    ("signal.", Always, NotNeeded, SIGNAL),
    ("notification.", Always, NotNeeded, "walrelay tells of itself in its log, /status and /metrics"),
    ("offset.", Always, NotNeeded, OFFSETS),
    ("internal.", Always, NotNeeded, "a setting of Debezium's inside"),
    (
        "flush.lsn.source",
        Off,
        Warning,
        "Debezium did not confirm to the slot itself: the slot may stand far behind, and all since then is published again",
    ),
    ("lsn.flush.mode", Always, Warning, "who confirms to the slot: walrelay does, what Kafka has acknowledged"),
    ("lsn.flush.timeout.", Always, NotNeeded, PACE),
    ("slot.stream.params", On, Warning, "options of the output plugin are walrelay's own"),
    ("slot.max.retries", Always, NotNeeded, PACE),
    ("slot.retry.delay.ms", Always, NotNeeded, PACE),
    (
        "slot.failover",
        Always,
        NotNeeded,
        "the slot is there already; walrelay setup --failover makes one that is kept through a failover",
    ),
    ("slot.seek.to.known.offset.on.start", Always, NotNeeded, OFFSETS),
    ("offset.mismatch.strategy", Always, NotNeeded, OFFSETS),
    ("create.slot.command.timeout", Always, NotNeeded, PACE),
    ("publication.autocreate.mode", Always, NotNeeded, "the publication is there already; it is not changed"),
    ("publish.via.partition.root", Always, NotNeeded, "the publication is there already; it is not changed"),
    ("replica.identity.autoset.values", On, Warning, "tables are not changed; inserts need no replica identity"),
    ("status.update.interval.ms", Always, NotNeeded, PACE),
    ("xmin.fetch.interval.ms", Always, NotNeeded, PACE),
    ("poll.interval.ms", Always, NotNeeded, PACE),
    ("max.batch.size", Always, NotNeeded, PACE),
    ("max.queue.size", Always, NotNeeded, "bytes in flight are bounded by --max-in-flight"),
    ("max.queue.size.in.bytes", Always, NotNeeded, "bytes in flight are bounded by --max-in-flight"),
    ("executor.shutdown.timeout.ms", Always, NotNeeded, PACE),
    ("connection.validation.timeout.ms", Always, NotNeeded, PACE),
    ("query.fetch.size", Always, NotNeeded, PACE),
    ("retriable.restart.connector.wait.ms", Always, NotNeeded, PACE),
    ("record.processing.", Always, NotNeeded, PACE),
    ("task.management.timeout.ms", Always, NotNeeded, PACE),
    ("database.initial.statements", On, Warning, "they ran on Debezium's other connections; walrelay runs none"),
    ("database.query.timeout.ms", Always, NotNeeded, PACE),
    ("database.tcpKeepAlive", Always, NotNeeded, "keepalives are on"),
    ("database.include.list", Always, NotNeeded, "a slot is of one database"),
    ("database.exclude.list", Always, NotNeeded, "a slot is of one database"),
    ("database.", Always, Warning, "no connection setting that is known here; -d takes libpq's"),
    ("driver.", Always, Warning, "a setting of the JDBC driver; -d takes libpq's"),
    ("errors.max.retries", Always, NotNeeded, PACE),
    (
        "event.processing.failure.handling.mode",
        Always,
        NotNeeded,
        "a row that cannot be read stops the relay (--on-bad-row)",
    ),
    (
        "event.deserialization.failure.handling.mode",
        Always,
        NotNeeded,
        "a row that cannot be read stops the relay (--on-bad-row)",
    ),
    ("guardrail.", Always, NotNeeded, PACE),
    ("skipped.operations", Always, NotNeeded, "updates and deletes of the outbox publish nothing anyway"),
    ("tombstones.on.delete", Always, NotNeeded, "deletes of the outbox publish nothing"),
    ("truncate.handling.mode", Always, NotNeeded, "truncating the outbox publishes nothing"),
    ("provide.transaction.metadata", On, Differs, "records of transactions' beginnings and ends are not written"),
    ("transaction.", Always, NotNeeded, "records of transactions' beginnings and ends are not written"),
    (
        "message.prefix.",
        Always,
        Warning,
        "logical messages become records of their own in Debezium; --message-prefix takes them as rows of an outbox",
    ),
    ("message.key.columns", Always, NotNeeded, "the router makes the key"),
    ("column.truncate.", Always, Differs, "values are not shortened"),
    ("column.mask.", Always, Differs, "values are not masked"),
    ("column.propagate.source.type", InSchemas, Differs, SCHEMA),
    ("datatype.propagate.source.type", InSchemas, Differs, SCHEMA),
    ("propagate.", InSchemas, Differs, SCHEMA),
    ("schema.name.adjustment.mode", InSchemas, Differs, SCHEMA),
    ("field.name.adjustment.mode", On, Differs, "names of columns are not changed"),
    ("sanitize.field.names", On, Differs, "names of columns are not changed"),
    ("schema.refresh.mode", Always, NotNeeded, "columns are as the stream says, at each place in it"),
    ("schema.history.", Always, NotNeeded, OFFSETS),
    ("include.schema.changes", Always, NotNeeded, "PostgreSQL sends none"),
    ("include.schema.comments", InSchemas, Differs, SCHEMA),
    (
        "include.unknown.datatypes",
        On,
        Warning,
        "a column of a type that Debezium does not know is refused where a record is made of it",
    ),
    ("unavailable.value.placeholder", Always, NotNeeded, "an inserted row has all its values"),
    ("converters", On, Differs, "custom converters may change values; none is applied"),
    ("post.processors", On, Differs, "post processors may change values; none is applied"),
    ("topic.delimiter", InSchemas, Differs, SCHEMA_NAMES),
    ("topic.cache.size", Always, NotNeeded, NAMES),
    ("topic.naming.strategy", InSchemas, Differs, SCHEMA_NAMES),
    ("topic.heartbeat.prefix", Always, NotNeeded, HEARTBEAT),
    ("topic.transaction", Always, NotNeeded, NAMES),
    ("custom.metric.tags", Always, NotNeeded, "walrelay has its own metrics"),
    ("advanced.metrics.enable", Always, NotNeeded, "walrelay has its own metrics"),
    ("openlineage.", Always, NotNeeded, "walrelay tells of itself in its log, /status and /metrics"),
    ("source.struct.version", Always, NotNeeded, "the router leaves the source out"),
    ("extended.headers.enabled", Always, NotNeeded, "Debezium's headers are left out"),
    ("predicates", Always, NotNeeded, "see the transforms that name one"),
    ("connector.plugin.version", Always, NotNeeded, CONNECT),
    ("custom.sanitize.pattern", On, Differs, "names of columns are not changed"),
    ("legacy.snapshot.max.threads", Always, NotNeeded, OLD_ROWS),
    ("memory.management.", Always, NotNeeded, PACE),
    ("queue.provider.type", Always, NotNeeded, PACE),
    ("skip.messages.without.change", Always, NotNeeded, "updates of the outbox publish nothing anyway"),
    ("sourceinfo.struct.maker", Always, NotNeeded, "the router leaves the source out"),
    ("statistics.metrics.enabled", Always, NotNeeded, "walrelay has its own metrics"),
    ("table.ignore.builtin", Always, NotNeeded, "a publication has no tables of PostgreSQL's own"),
    ("topic.heartbeat.name", Always, NotNeeded, HEARTBEAT),
    ("debezium.embedded.", Always, NotNeeded, PACE),
];

/// Debezium Server's.
const SERVER_KEYS: [(&str, When, Severity, &str); 12] = [
    ("debezium.sink.kafka.", Always, NotNeeded, PACE),
    ("debezium.sink.", Always, Warning, "another sink's setting, or one that is not known here"),
    ("debezium.api.", Always, NotNeeded, SERVER),
    ("debezium.termination.wait", Always, NotNeeded, "--shutdown-timeout bounds a clean stop"),
    ("debezium.engine.factory", Always, NotNeeded, SERVER),
    ("quarkus.profile", Always, NotNeeded, "honoured: keys of other profiles are left out"),
    ("smallrye.config.profile", Always, NotNeeded, "honoured: keys of other profiles are left out"),
    ("quarkus.config.", Always, Differs, "it changes which files and profiles Quarkus reads, and is not followed here"),
    (
        "smallrye.config.",
        Always,
        Differs,
        "it changes which files and profiles Quarkus reads, and is not followed here",
    ),
    ("quarkus.", Always, NotNeeded, "Quarkus' own affair: --log-level, --log-format and --http do the like"),
    ("mp.", Always, NotNeeded, "Quarkus' own affair"),
    ("debezium.", Always, Warning, "no setting that is known here"),
];

impl Translator {
    /// Names what is left over.
    pub(super) fn rest(&mut self) {
        self.sink();
        self.inserts();
        self.messages();
        self.converters_left();
        let connector = std::mem::take(&mut self.job.connector);
        for (key, value) in connector.iter() {
            match find(&CONNECTOR, key) {
                Some((when, severity, text)) => self.left(value, when, severity, text),
                None => self.unknown(key, value),
            }
        }
        let server = std::mem::take(&mut self.job.server);
        for (key, value) in server.iter() {
            match find(&SERVER_KEYS, key) {
                Some((when, severity, text)) => self.left(value, when, severity, text),
                None => self.not_needed(value, "no setting of Debezium's"),
            }
        }
        self.worker();
    }

    fn sink(&mut self) {
        let Some(sink) = self.job.server.take_filled("debezium.sink.type") else {
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

    /// `skipped.operations=c` would publish nothing at all.
    fn inserts(&mut self) {
        let Some(skipped) = self.job.connector.get("skipped.operations").cloned() else { return };
        if skipped.text.split(',').any(|operation| operation.trim() == "c") {
            self.job.connector.take("skipped.operations");
            self.differs(&skipped, "Debezium passed over inserts, and so published nothing");
        }
    }

    /// Without a list of prefixes Debezium takes all of them.
    fn messages(&mut self) {
        if self.job.connector.iter().any(|(key, _)| key.starts_with("message.prefix.")) {
            return;
        }
        self.out.notes.push(Note {
            severity: Warning,
            origin: "logical messages".to_owned(),
            text: "Debezium writes each pg_logical_emit_message to the topic PREFIX.message; walrelay publishes those that --message-prefix names, as rows of an outbox (message.prefix.exclude.list=.* says that there are none)".to_owned(),
        });
    }

    fn converters_left(&mut self) {
        for key in ["key.converter.", "value.converter.", "header.converter.", "converter."] {
            for (_, value) in self.job.connector.take_below(key).iter() {
                self.not_needed(value, "a converter's option that nothing looks at");
            }
        }
        let Some(names) = self.job.connector.get("converters").cloned() else { return };
        for name in names.text.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            for (_, option) in self.job.connector.take_below(&format!("{name}.")).iter() {
                self.not_needed(option, format!("an option of the custom converter {name}"));
            }
        }
    }

    fn left(&mut self, value: &Value, when: When, severity: Severity, text: &str) {
        let asks = !NOTHING.contains(&value.text.trim().to_ascii_lowercase().as_str());
        let (severity, text) = match when {
            InSchemas if asks && !self.out.connect.writes_schemas() => {
                (NotNeeded, "it shows only where a JsonConverter writes schemas")
            }
            On | InSchemas if !asks => (NotNeeded, "it asks for nothing"),
            Off if value.boolean() != Some(false) => (NotNeeded, "it asks for nothing"),
            Always | On | Off | InSchemas => (severity, text),
        };
        self.note(severity, &value.origin, text);
    }

    fn unknown(&mut self, key: &str, value: &Value) {
        let known = CONNECTOR.iter().map(|(name, ..)| *name).chain(KNOWN).filter(|name| !name.ends_with('.'));
        let meant = nearest(key, known).map(|meant| format!("; {meant} is")).unwrap_or_default();
        self.warn(
            value,
            format!("no key of Debezium's PostgreSQL connector that is known here{meant}; nothing is made of it"),
        );
    }

    /// A worker's other settings are its clients' and its cluster's. TLS among them looks like the producer's.
    fn worker(&mut self) {
        let worker = std::mem::take(&mut self.job.worker);
        for (key, value) in worker.iter() {
            if ["security.", "sasl.", "ssl."].iter().any(|prefix| key.starts_with(prefix)) {
                self.warn(value, "a worker's own clients use it, its connectors' producers do not: they have producer.* and producer.override.*");
            } else {
                self.not_needed(value, CONNECT);
            }
        }
    }
}

/// Keys that are carried over, to find what a misspelt one was meant as.
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

fn find(table: &[(&str, When, Severity, &'static str)], key: &str) -> Option<(When, Severity, &'static str)> {
    let fits = |name: &str| key == name || (name.ends_with('.') && key.starts_with(name));
    table.iter().find(|(name, ..)| fits(name)).map(|(_, when, severity, text)| (*when, *severity, *text))
}
