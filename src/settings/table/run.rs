//! The settings of `run`. Those of which other commands have some stand first in their group. The doc comment of a row is its help text.

use super::form::{ANY_DURATION, Filter, Words, any, duration, http, lsn, name, name_or_empty, not_blank, size, slot};
use super::{Setting, SettingGroup, many, one, settings, switch};
use crate::commands::run::OnStop;
use crate::http::HttpAddress;
use crate::lsn::Lsn;
use crate::outbox::OnUpdate;
use crate::relay::BadRowAction;
use crate::setting_text::Given;
use crate::settings::LogFormat;
use crate::sink::destination::Delivery;
use std::time::Duration;

/// The largest limit of librdkafka's queue, which takes KiB in 31 bits.
const LARGEST_IN_FLIGHT: usize = 0x7FFF_FFFF << 10;

/// The actions for a row that cannot be published.
pub(crate) const BAD_ROW_ACTIONS: &[(&str, BadRowAction)] =
    &[("stop", BadRowAction::Stop), ("dead-letter", BadRowAction::DeadLetter), ("skip", BadRowAction::Skip)];

/// All settings of `run`, in the order of `--help`.
pub(super) const ALL: &[SettingGroup] =
    &[SOURCES, SLOTS, POSTGRES, DESTINATION, ROUTING, COLUMNS, RECORDS, BAD_ROWS, OPERATION, DEBEZIUM, FILE, LOGGING];

settings! { SOURCES "Postgres":
    /// Connection URI or keyword string, as for psql: postgres://user@host:5432/dbname?sslmode=verify-full
    SOURCE: Given = one("source", "URI", &any).short('d').aliases(&["dsn", "database-url"])
        .or("DATABASE_URL, then libpq's PG* variables, also for what a URI leaves out");

    /// Read the password from this file, again at each connection; it comes before any other
    SOURCE_PASSWORD_FILE: Given = one("source-password-file", "FILE", &any).or("none").seldom();

    /// Run this program, without a shell, for at most 10 s; the first line that it prints is the password, such as a cloud's token; at
    /// each connection, at most once a minute
    SOURCE_PASSWORD_COMMAND: Given = one("source-password-command", "COMMAND", &any).or("none").seldom()
        .excludes(&["source-password-file"]);
}

settings! { SLOTS "Postgres":
    /// The publication to read
    PUBLICATION: String = one("publication", "NAME", &name).short('p').or("walrelay");

    /// The replication slot, also this relay's name in logs, metrics and Kafka's client.id
    SLOT: String = one("slot", "NAME", &slot).short('S').or("walrelay");
}

settings! { POSTGRES "Postgres":
    /// Run one of the N shards of `setup --shards N`: I/N, with I from 0. A name and a dash may come first, as in a pod's name:
    /// walrelay-2/3. Publication and slot then have the shard's number after their names: walrelay_2_of_3
    SHARD: Given = one("shard", "I/N", &any).or("none");

    /// Create publication and slot first, once, as `walrelay setup --apply` does
    SETUP: bool = switch("setup");

    /// Only this table, SCHEMA.TABLE or a TABLE of schema public, with its partitions; 'ONLY TABLE' leaves out tables that inherit from
    /// it; needed if the publication is of all tables or of a schema; repeatable
    TABLE: Given = many("table", "TABLE").short('t').or("every table of the publication");

    /// any, or local: rows that a subscription applied are not published (Postgres 16 and later)
    ORIGIN: bool = one("origin", "WHICH", &Words(&[("any", false), ("local", true)])).or("any").seldom();

    /// Read the slot although nothing proves that it is the one that was read before; LSN is its confirmed_flush_lsn, as the error names
    /// it, so that this works once
    ACCEPT_SLOT_AT: Lsn = one("accept-slot-at", "LSN", &lsn).or("none").seldom();

    /// Publish and confirm nothing, only show what would be published: new rows as JSON lines on stdout, from a temporary slot, without
    /// a broker; for backfill, their number
    DRY_RUN: bool = switch("dry-run");
}

settings! { DESTINATION "Destination":
    /// Where records are published, such as kafka://HOST:PORT, nats://, amqp://, redis://, sqs://, sns:// or stdout://; several hosts with
    /// commas between them; stdout:// prints JSON lines
    TO: Given = one("to", "URL", &any).or("--brokers");

    /// Kafka's bootstrap servers, HOST:PORT with commas between them: short for --to kafka://HOST:PORT
    BROKERS: Given = many("brokers", "HOSTS").short('b').or("localhost:9092");

    /// A property of the destination, for Kafka any of librdkafka; KEY=@FILE reads the value from a file, KEY=@@… begins it with an @;
    /// repeatable. As a variable: WALRELAY_KAFKA_SASL_PASSWORD for Kafka's sasl.password; in the file: the table `kafka`
    PROPERTY: Given = many("property", "KEY=VALUE").short_only('X');

    /// at-least-once, or exactly-once: in Kafka transactions, for consumers with isolation.level=read_committed
    DELIVERY: Delivery = one("delivery", "HOW", &Words(&[
        ("at-least-once", Delivery::AtLeastOnce),
        ("exactly-once", Delivery::ExactlyOnce { one_replica: false }),
    ])).or("at-least-once");

    /// With exactly-once: topics may have one replica, as on one broker; if it crashes, rows may stay hidden, or appear twice
    ACCEPT_ONE_REPLICA: bool = switch("accept-one-replica").seldom();
}

settings! { ROUTING "Routing":
    /// Topic of a record: text and {name}, {name|lower} or {name|kebab}, where name is a column or one of id, route, key, type
    TOPIC: Given = one("topic", "TEMPLATE", &not_blank).or("outbox.event.{route}");

    /// Instead of --topic: what the route column's value must match as a whole to become --topic-replacement
    TOPIC_REGEX: Given = one("topic-regex", "REGEX", &not_blank).seldom();

    /// With --topic-regex: the topic, with $1 and ${name} for groups
    TOPIC_REPLACEMENT: Given = one("topic-replacement", "TEXT", &not_blank).seldom();
}

settings! { COLUMNS "Rows":
    /// Column of the event's id
    ID_COLUMN: String = one("id-column", "COLUMN", &name).or("id, event_id");

    /// Column of the record's key, empty for none
    KEY_COLUMN: String = one("key-column", "COLUMN", &name_or_empty).or("aggregateid, aggregate_id, else no key");

    /// Column of the record's value
    PAYLOAD_COLUMN: String = one("payload-column", "COLUMN", &name).or("payload, event_data, data");

    /// Column of the event's type, empty for none
    TYPE_COLUMN: String = one("type-column", "COLUMN", &name_or_empty).or("type, event_type, task_type");

    /// Column that {route} stands for
    ROUTE_COLUMN: String = one("route-column", "COLUMN", &name).or("aggregatetype, aggregate_type, else the type's").seldom();

    /// Column with a JSON object of headers, empty for none
    HEADERS_COLUMN: String = one("headers-column", "COLUMN", &name_or_empty).or("headers, if the table has it").seldom();

    /// Integer column of the record's partition, empty for none
    PARTITION_COLUMN: String = one("partition-column", "COLUMN", &name_or_empty)
        .or("by the key, as Java clients choose").seldom();

    /// What is done with an updated row: warn (count, log, skip), skip or stop
    ON_UPDATE: OnUpdate = one("on-update", "WHAT", &Words(&[
        ("warn", OnUpdate::Warn), ("skip", OnUpdate::Skip), ("stop", OnUpdate::Stop),
    ])).or("warn").seldom();

    /// Also publish transactional pg_logical_emit_message messages with this prefix; repeatable
    MESSAGE_PREFIX: Given = many("message-prefix", "PREFIX").or("none").seldom();
}

settings! { RECORDS "Records":
    /// Add a header, from a column, or with == the same text in each record: NAME==VALUE; repeatable
    HEADER: Given = many("header", "NAME=COLUMN").seldom();

    /// Begin the value as consumers with a schema registry expect it (Confluent's format: a zero, the schema's id in four bytes); the id
    /// from an integer column, or the same for all rows
    SCHEMA_ID: Given = one("schema-id", "COLUMN|NUMBER", &any).or("none").seldom();

    /// Make each record a CloudEvent 1.0: binary (attributes as headers, the value is the payload) or structured (one JSON object); id
    /// and type are the columns', the subject is the key
    CLOUDEVENTS: bool = one("cloudevents", "MODE", &Words(&[("binary", true), ("structured", false)])).or("none").seldom();

    /// With --cloudevents: the events' source, a URI or a path such as /shop/orders
    CLOUDEVENTS_SOURCE: Given = one("cloudevents-source", "URI", &any).or("none").seldom();

    /// Wrap the value as {"payload": …, "NAME": …}, with a column's value; repeatable
    ENVELOPE: Given = many("envelope", "NAME=COLUMN").seldom();

    /// Timestamp: `send` for the time at which the relay sends the record, `commit` for the transaction's, or a timestamp, timestamptz or
    /// bigint (milliseconds) column
    TIMESTAMP: String = one("timestamp", "COLUMN", &name).or("send").seldom();

    /// Make an empty or blank payload a null value
    TOMBSTONE_ON_EMPTY_PAYLOAD: bool = switch("tombstone-on-empty-payload").seldom();

    /// Add the header content-type, by the payload column's type: application/json, application/octet-stream for bytea, else text/plain;
    /// charset=UTF-8
    CONTENT_TYPE_HEADER: bool = switch("content-type-header").seldom();

    /// Add the header walrelay-position, commit LSN and row number, for exact deduplication
    POSITION_HEADER: bool = switch("position-header").seldom();

    /// Begin the value as --schema-id does, with the id of its subject's latest schema, which this registry knows (Confluent's API):
    /// http://HOST:PORT or https://HOST/PATH
    SCHEMA_REGISTRY: Given = one("schema-registry", "URL", &any).or("none").seldom();

    /// With --schema-registry: the subject, of {topic} and {type}
    SCHEMA_SUBJECT: Given = one("schema-subject", "TEMPLATE", &any).or("{topic}-value").seldom();

    /// With --schema-registry: the user, or the API key
    SCHEMA_REGISTRY_USER: Given = one("schema-registry-user", "USER", &any).or("none").seldom();

    /// With --schema-registry-user: the password; @FILE reads it from a file, again at each request
    SCHEMA_REGISTRY_PASSWORD: Given = one("schema-registry-password", "PASSWORD", &any).or("none").seldom();

    /// With --schema-registry: a PEM file with certificate authorities
    SCHEMA_REGISTRY_CA: Given = one("schema-registry-ca", "FILE", &any).or("the system's").seldom();
}

settings! { BAD_ROWS "Bad rows":
    /// What is done with a row that cannot be published: stop, dead-letter or skip (count it and continue)
    ON_BAD_ROW: BadRowAction = one("on-bad-row", "WHAT", &Words(BAD_ROW_ACTIONS)).or("stop");

    /// What is done with one row, whether or not it is bad: LSN:N=dead-letter or LSN:N=skip, with the position that a hint names;
    /// repeatable
    BAD_ROW_AT: Given = many("bad-row-at", "ROW=WHAT").seldom();

    /// Topic of dead-letter records; it must exist, or be created on demand
    DEAD_LETTER_TOPIC: Given = one("dead-letter-topic", "TOPIC", &any).or("SLOT.dead-letter");
}

settings! { OPERATION "Operation":
    /// Serve /metrics, /livez, /readyz and /status at HOST:PORT; :PORT is every address, off is none
    HTTP: Option<HttpAddress> = one("http", "ADDRESS", &http).or("127.0.0.1:9464");

    /// When an operator must act (exit code 2): exit, or hold: disconnect from Postgres, stay up to say why, and wait for a signal
    ON_STOP: OnStop = one("on-stop", "WHAT", &Words(&[("exit", OnStop::Exit), ("hold", OnStop::StayUp)])).or("exit").seldom();

    /// How long a graceful shutdown waits for acknowledgements (units us, ms, s, min, h, d)
    SHUTDOWN_TIMEOUT: Duration = one("shutdown-timeout", "DURATION", &ANY_DURATION).or("8s").seldom();

    /// Disconnect from Postgres, and keep the slot's position, when a record is not acknowledged for this long; at least 100ms. Postgres
    /// can then restart or fail over while the destination is unavailable
    DISCONNECT_AFTER: Duration = one("disconnect-after", "DURATION",
        &duration(Duration::from_millis(100), Duration::MAX, ", at least 100ms")).or("30s").seldom();

    /// /readyz says 503 when records are in flight and none was acknowledged for this long; at least 1s
    UNREADY_AFTER: Duration = one("unready-after", "DURATION",
        &duration(Duration::from_secs(1), Duration::MAX, ", at least 1s")).or("30s").seldom();

    /// Pause after a short read before the next; 0 for the lowest latency; at most 100ms
    COALESCE: Duration = one("coalesce", "DURATION",
        &duration(Duration::ZERO, Duration::from_millis(100), ", at most 100ms")).or("200us").seldom();

    /// Bytes enqueued and not acknowledged, at least 64KiB: keys, values and headers, and what the client adds for each record (units
    /// kB, MB, GB by 1000, KiB, MiB, GiB by 1024)
    MAX_IN_FLIGHT: usize = one("max-in-flight", "SIZE", &size(64 << 10, LARGEST_IN_FLIGHT, ", at least 64KiB")).or("16MiB");

    /// Largest change message that is accepted, 1KiB to 1GiB
    MAX_ROW: usize = one("max-row", "SIZE",
        &size(1 << 10, 1 << 30, ", from 1KiB to 1GiB, Postgres' own limit")).or("256MiB").seldom();
}

settings! { DEBEZIUM "Migrating from Debezium":
    /// Read the settings of this Debezium Server application.properties or Kafka Connect connector JSON, and write the same records;
    /// repeatable: a Connect worker's properties go along. Explicit settings win
    FROM_DEBEZIUM: Given = many("from-debezium", "FILE").or("none");

    /// Run even where records would differ from Debezium's
    ACCEPT_DIFFERENCES: bool = switch("accept-differences").seldom();
}

settings! { FILE "":
    /// Read settings from this TOML file; keys are the names of flags
    CONFIG: Given = one("config", "FILE", &any).short('c').or("none");
}

settings! { LOGGING "Logging":
    /// Log lines as `text` or `json`
    LOG_FORMAT: LogFormat = one("log-format", "FORMAT", &Words(&[("text", LogFormat::Text), ("json", LogFormat::Json)]))
        .or("text on a terminal, else json").seldom();

    /// What is logged: error, warn, info, debug, trace, or a filter such as walrelay=debug
    LOG_LEVEL: String = one("log-level", "FILTER", &Filter).or("info");
}
