//! A table of the keys without a counterpart: their effect, and what walrelay does instead.
//!
//! A name that ends with a dot stands for all keys that begin with it. If several names fit a key, the longest one counts.
//! Specification: Debezium's PostgreSQL connector and Server, Kafka Connect's worker properties.

use crate::debezium::Severity::{self, Differs, NotNeeded, Warning};

/// When a note on the key is made.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum When {
    Always,
    /// If its value is not false, none or empty.
    On,
    /// If its value is not true.
    Off,
    /// If a JsonConverter writes schemas, and its value is not false, none or empty. Without schemas it has no effect.
    InSchemas,
}

use When::{Always, InSchemas, Off, On};

const PACE: &str = "how Debezium paced itself";
const OFFSETS: &str = "the slot is the only memory: nothing is read from or written to Debezium's offsets";
const HEARTBEAT: &str =
    "not needed: an idle outbox confirms what the server's keepalives say, so that no WAL is held back";
const HEARTBEAT_TOPIC: &str = "records are not written to Debezium's heartbeat topic (whoever watches that topic has /readyz and metrics); \
                               no WAL is held back without them: an idle outbox confirms what the server's keepalives say";
const SIGNAL: &str = "not needed: there are no signals; walrelay backfill publishes rows once more";
const OLD_ROWS: &str =
    "not needed: the slot resumes where it is; rows older than the slot are not read; walrelay backfill publishes them";
pub(super) const CONNECT: &str = "Kafka Connect's own affair";
const OF_SERVER: &str = "Debezium Server's own affair";
const SCHEMA_NAMES: &str =
    "it changes the names of schemas that a JsonConverter writes: set schemas.enable=false, or leave it out";
const JAVA_PROPERTIES: &str =
    "it holds system properties of Debezium Server's, which count more than files and variables, and are not read here";
const NAMES: &str = "the router names topics without it";
const SCHEMA: &str = "it changes the schemas that a JsonConverter writes, with keys their partitions: set schemas.enable=false, or leave it out";

/// The keys of one kind, by their notes.
pub(super) struct KeysWithoutCounterpart {
    /// Keys without which nothing is lost, for any value: the reason, and their names.
    not_needed: &'static [(&'static str, &'static [&'static str])],
    others: &'static [(&'static str, When, Severity, &'static str)],
}

/// The keys of the connector.
pub(super) const CONNECTOR: KeysWithoutCounterpart = KeysWithoutCounterpart {
    not_needed: &[
        (
            CONNECT,
            &[
                "name",
                "tasks.max",
                "tasks.max.enforce",
                "config.action.reload",
                "exactly.once.support",
                "transaction.boundary",
                "transaction.boundary.interval.ms",
                "errors.",
                "connector.plugin.version",
            ],
        ),
        (OFFSETS, &["offsets.storage.topic", "offset.", "slot.seek.to.known.offset.on.start", "schema.history."]),
        ("asked already", &["config.providers", "config.providers."]),
        (
            OLD_ROWS,
            &["snapshot.mode", "snapshot.", "incremental.snapshot.", "read.only", "legacy.snapshot.max.threads"],
        ),
        (
            PACE,
            &[
                "streaming.delay.ms",
                "lsn.flush.timeout.",
                "slot.max.retries",
                "slot.retry.delay.ms",
                "create.slot.command.timeout",
                "status.update.interval.ms",
                "xmin.fetch.interval.ms",
                "poll.interval.ms",
                "max.batch.size",
                "executor.shutdown.timeout.ms",
                "connection.validation.timeout.ms",
                "query.fetch.size",
                "retriable.restart.connector.wait.ms",
                "record.processing.",
                "task.management.timeout.ms",
                "database.query.timeout.ms",
                "errors.max.retries",
                "guardrail.",
                "memory.management.",
                "queue.provider.type",
                "debezium.embedded.",
            ],
        ),
        (HEARTBEAT, &["heartbeat.", "topic.heartbeat.prefix", "topic.heartbeat.name"]),
        (SIGNAL, &["signal."]),
        ("walrelay tells of itself in its log, /status and /metrics", &["notification.", "openlineage."]),
        ("a setting of Debezium's inside", &["internal."]),
        (
            "the slot is there already; walrelay setup --failover creates one that is kept through a failover",
            &["slot.failover"],
        ),
        (
            "the publication is there already; it is not changed",
            &["publication.autocreate.mode", "publish.via.partition.root"],
        ),
        ("bytes in flight are bounded by --max-in-flight", &["max.queue.size", "max.queue.size.in.bytes"]),
        ("keepalives are on", &["database.tcpKeepAlive"]),
        ("a slot is of one database", &["database.include.list", "database.exclude.list"]),
        (
            "a row that cannot be read stops the relay (--on-bad-row)",
            &["event.processing.failure.handling.mode", "event.deserialization.failure.handling.mode"],
        ),
        ("updates and deletes of the outbox publish nothing anyway", &["skipped.operations"]),
        ("deletes of the outbox publish nothing", &["tombstones.on.delete"]),
        ("truncating the outbox publishes nothing", &["truncate.handling.mode"]),
        ("records of transactions' beginnings and ends are not written", &["transaction."]),
        ("the router makes the key", &["message.key.columns"]),
        ("columns are as the stream says, at each place in it", &["schema.refresh.mode"]),
        ("PostgreSQL sends none", &["include.schema.changes"]),
        ("an inserted row has all its values", &["unavailable.value.placeholder"]),
        (NAMES, &["topic.cache.size", "topic.transaction"]),
        (
            "walrelay has its own metrics",
            &["custom.metric.tags", "advanced.metrics.enable", "statistics.metrics.enabled"],
        ),
        ("the router leaves the source out", &["source.struct.version", "sourceinfo.struct.maker"]),
        ("Debezium's headers are left out", &["extended.headers.enabled"]),
        ("see the transforms that name one", &["predicates"]),
        ("updates of the outbox publish nothing anyway", &["skip.messages.without.change"]),
        ("a publication has no tables of PostgreSQL's own", &["table.ignore.builtin"]),
    ],
    others: &[
        ("topic.creation.", Always, Warning, "topics are not created here: create them, or let the broker do it"),
        ("errors.tolerance", Always, Warning, "a row that cannot be published stops the relay (--on-bad-row)"),
        ("heartbeat.interval.ms", On, Warning, HEARTBEAT_TOPIC),
        (
            "flush.lsn.source",
            Off,
            Warning,
            "Debezium did not confirm to the slot itself: the slot's position may be far behind, and everything since then is published again",
        ),
        ("lsn.flush.mode", Always, Warning, "who confirms to the slot: walrelay does, what Kafka has acknowledged"),
        ("slot.stream.params", On, Warning, "options of the output plugin are walrelay's own"),
        ("replica.identity.autoset.values", On, Warning, "tables are not changed; inserts need no replica identity"),
        ("database.initial.statements", On, Warning, "they ran on Debezium's other connections; walrelay runs none"),
        ("database.", Always, Warning, "no connection setting that is known here; -d takes libpq's"),
        ("driver.", Always, Warning, "a setting of the JDBC driver; -d takes libpq's"),
        ("provide.transaction.metadata", On, Differs, "records of transactions' beginnings and ends are not written"),
        (
            "message.prefix.",
            Always,
            Warning,
            "logical messages become records of their own in Debezium; --message-prefix takes them as rows of an outbox",
        ),
        ("column.truncate.", Always, Differs, "values are not shortened"),
        ("column.mask.", Always, Differs, "values are not masked"),
        ("column.propagate.source.type", InSchemas, Differs, SCHEMA),
        ("datatype.propagate.source.type", InSchemas, Differs, SCHEMA),
        ("propagate.", InSchemas, Differs, SCHEMA),
        ("schema.name.adjustment.mode", InSchemas, Differs, SCHEMA),
        ("field.name.adjustment.mode", On, Differs, "names of columns are not changed"),
        ("sanitize.field.names", On, Differs, "names of columns are not changed"),
        ("include.schema.comments", InSchemas, Differs, SCHEMA),
        (
            "include.unknown.datatypes",
            On,
            Warning,
            "a column of a type that Debezium does not know is refused where a record is made of it",
        ),
        ("converters", On, Differs, "custom converters may change values; none is applied"),
        ("post.processors", On, Differs, "post processors may change values; none is applied"),
        ("topic.delimiter", InSchemas, Differs, SCHEMA_NAMES),
        ("topic.naming.strategy", InSchemas, Differs, SCHEMA_NAMES),
        ("custom.sanitize.pattern", On, Differs, "names of columns are not changed"),
    ],
};

/// The keys of Debezium Server.
pub(super) const SERVER: KeysWithoutCounterpart = KeysWithoutCounterpart {
    not_needed: &[
        (PACE, &["debezium.sink.kafka."]),
        (OF_SERVER, &["debezium.api.", "debezium.engine.factory"]),
        ("--shutdown-timeout bounds a graceful shutdown", &["debezium.termination.wait"]),
        (
            "honoured: keys of other profiles are left out",
            &["quarkus.profile", "smallrye.config.profile", "mp.config.profile"],
        ),
        ("Quarkus' own affair: --log-level, --log-format and --http do the like", &["quarkus."]),
        ("Quarkus' own affair", &["mp."]),
    ],
    others: &[
        ("debezium.sink.", Always, Warning, "another sink's setting, or one that is not known here"),
        ("quarkus.config.", On, Differs, "it changes which files and profiles Quarkus reads, and is not followed here"),
        (
            "smallrye.config.",
            On,
            Differs,
            "it changes which files and profiles Quarkus reads, and is not followed here",
        ),
        ("JAVA_TOOL_OPTIONS", Always, Differs, JAVA_PROPERTIES),
        ("JDK_JAVA_OPTIONS", Always, Differs, JAVA_PROPERTIES),
        ("JAVA_OPTS", Always, Differs, JAVA_PROPERTIES),
        ("DEBEZIUM_OPTS", Always, Differs, JAVA_PROPERTIES),
        ("debezium.", Always, Warning, "no setting that is known here"),
    ],
};

impl KeysWithoutCounterpart {
    /// The note for a key, and when it is made. If several names fit, the longest one counts.
    pub(super) fn find(&self, key: &str) -> Option<(When, Severity, &'static str)> {
        let fits = |name: &str| key == name || (name.ends_with('.') && key.starts_with(name));
        let not_needed = self.not_needed.iter().flat_map(|(text, names)| names.iter().map(move |name| (*name, *text)));
        let not_needed = not_needed.map(|(name, text)| (name, Always, NotNeeded, text));
        let fitting = not_needed.chain(self.others.iter().copied()).filter(|(name, ..)| fits(name));
        fitting.max_by_key(|(name, ..)| name.len()).map(|(_, when, severity, text)| (when, severity, text))
    }

    /// The names that do not end with a dot.
    pub(super) fn names(&self) -> impl Iterator<Item = &'static str> {
        let not_needed = self.not_needed.iter().flat_map(|(_, names)| names.iter().copied());
        not_needed.chain(self.others.iter().map(|(name, ..)| *name)).filter(|name| !name.ends_with('.'))
    }
}
