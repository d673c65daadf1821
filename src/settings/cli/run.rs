//! The flags of `run`, in their groups. The doc comment of a field is its help text.

use super::{CommonArgs, SourceArgs};
use clap::Args;

/// The flags of `run`.
#[derive(Args, Default)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    source: SourceArgs,

    /// Run one of the N shards of `setup --shards N`: I/N, with I from 0. A name and a dash may come first, as in a pod's name:
    /// walrelay-2/3. Publication and slot then have the shard's number after their names: walrelay_2_of_3 [default: none]
    #[arg(long, value_name = "I/N", help_heading = "Postgres")]
    shard: Option<String>,

    /// Create publication and slot first, once, as `walrelay setup --apply` does [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    #[arg(help_heading = "Postgres")]
    setup: Option<String>,

    /// Only this table, SCHEMA.TABLE or a TABLE of schema public, with its partitions; 'ONLY TABLE' leaves out tables that inherit
    /// from it; needed if the publication is of all tables or of a schema; repeatable [default: every table of the publication]
    #[arg(short, long, value_name = "TABLE", help_heading = "Postgres")]
    table: Vec<String>,

    /// any, or local: rows that a subscription applied are not published (Postgres 16 and later) [default: any]
    #[arg(long, value_name = "WHICH", help_heading = "Postgres")]
    origin: Option<String>,

    /// Read the slot although nothing proves that it is the one that was read before; LSN is its confirmed_flush_lsn, as the
    /// error names it, so that this works once [default: none]
    #[arg(long, value_name = "LSN", help_heading = "Postgres")]
    accept_slot_at: Option<String>,

    /// Publish and confirm nothing, only show what would be published: new rows as JSON lines on stdout, from a temporary slot,
    /// without a broker; for backfill, their number [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    #[arg(help_heading = "Postgres")]
    dry_run: Option<String>,

    #[command(flatten)]
    destination: DestinationArgs,

    #[command(flatten)]
    routing: RoutingArgs,

    #[command(flatten)]
    rows: RowArgs,

    #[command(flatten)]
    records: RecordArgs,

    #[command(flatten)]
    bad_rows: BadRowArgs,

    #[command(flatten)]
    operation: OperationArgs,

    #[command(flatten)]
    debezium: DebeziumArgs,

    #[command(flatten)]
    common: CommonArgs,
}

/// A Debezium configuration.
#[derive(Args, Default)]
#[command(next_help_heading = "Migrating from Debezium")]
pub(crate) struct DebeziumArgs {
    /// Read the settings of this Debezium Server application.properties or Kafka Connect connector JSON, and write the same records;
    /// repeatable: a Connect worker's properties go along. Explicit settings win [default: none]
    #[arg(long, value_name = "FILE")]
    from_debezium: Vec<String>,

    /// Run even where records would differ from Debezium's [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    accept_differences: Option<String>,
}

/// Where records are published.
#[derive(Args, Default)]
#[command(next_help_heading = "Destination")]
pub(crate) struct DestinationArgs {
    /// Where records are published, such as kafka://HOST:PORT, nats://, amqp://, redis://, sqs://, sns:// or stdout://; several hosts
    /// with commas between them; stdout:// prints JSON lines [default: --brokers]
    #[arg(long, value_name = "URL")]
    to: Option<String>,

    /// Kafka's bootstrap servers, HOST:PORT with commas between them: short for --to kafka://HOST:PORT
    /// [default: localhost:9092]
    #[arg(short, long, value_name = "HOSTS")]
    brokers: Vec<String>,

    /// A property of the destination, for Kafka any of librdkafka; KEY=@FILE reads the value from a file, KEY=@@… begins
    /// it with an @; repeatable. As a variable: WALRELAY_KAFKA_SASL_PASSWORD for Kafka's sasl.password; in the file: the
    /// table `kafka`
    #[arg(short = 'X', value_name = "KEY=VALUE")]
    property: Vec<String>,

    /// at-least-once, or exactly-once: in Kafka transactions, for consumers with isolation.level=read_committed
    /// [default: at-least-once]
    #[arg(long, value_name = "HOW")]
    delivery: Option<String>,

    /// With exactly-once: topics may have one replica, as on one broker; if it crashes, rows may stay hidden, or appear twice
    /// [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    accept_one_replica: Option<String>,
}

/// The destination of commands that publish something else than a run's rows.
#[derive(Args)]
#[command(next_help_heading = "Destination")]
pub(crate) struct OfRunArgs {
    /// Where records go, as for run [default: --brokers]
    #[arg(long, value_name = "URL")]
    to: Option<String>,

    /// Kafka's bootstrap servers, HOST:PORT with commas between them [default: localhost:9092]
    #[arg(short, long, value_name = "HOSTS")]
    brokers: Vec<String>,

    /// A property of the destination, as for run; repeatable
    #[arg(short = 'X', value_name = "KEY=VALUE")]
    property: Vec<String>,
}

/// Which topic a record gets.
#[derive(Args, Default)]
#[command(next_help_heading = "Routing")]
pub(crate) struct RoutingArgs {
    /// Topic of a record: text and {name}, {name|lower} or {name|kebab}, where name is a column or one of
    /// id, route, key, type [default: outbox.event.{route}]
    #[arg(long, value_name = "TEMPLATE")]
    topic: Option<String>,

    /// Instead of --topic: what the route column's value must match as a whole to become --topic-replacement
    #[arg(long, value_name = "REGEX")]
    topic_regex: Option<String>,

    /// With --topic-regex: the topic, with $1 and ${name} for groups
    #[arg(long, value_name = "TEXT")]
    topic_replacement: Option<String>,
}

/// Which column is which.
#[derive(Args, Default)]
#[command(next_help_heading = "Rows")]
pub(crate) struct RowArgs {
    /// Column of the event's id [default: id, event_id]
    #[arg(long, value_name = "COLUMN")]
    id_column: Option<String>,

    /// Column of the record's key, empty for none [default: aggregateid, aggregate_id, else no key]
    #[arg(long, value_name = "COLUMN")]
    key_column: Option<String>,

    /// Column of the record's value [default: payload, event_data, data]
    #[arg(long, value_name = "COLUMN")]
    payload_column: Option<String>,

    /// Column of the event's type, empty for none [default: type, event_type, task_type]
    #[arg(long, value_name = "COLUMN")]
    type_column: Option<String>,

    /// Column that {route} stands for [default: aggregatetype, aggregate_type, else the type's]
    #[arg(long, value_name = "COLUMN")]
    route_column: Option<String>,

    /// Column with a JSON object of headers, empty for none [default: headers, if the table has it]
    #[arg(long, value_name = "COLUMN")]
    headers_column: Option<String>,

    /// Integer column of the record's partition, empty for none [default: by the key, as Java clients choose]
    #[arg(long, value_name = "COLUMN")]
    partition_column: Option<String>,

    /// What is done with an updated row: warn (count, log, skip), skip or stop [default: warn]
    #[arg(long, value_name = "WHAT")]
    on_update: Option<String>,

    /// Also publish transactional pg_logical_emit_message messages with this prefix; repeatable [default: none]
    #[arg(long, value_name = "PREFIX")]
    message_prefix: Vec<String>,
}

/// The flags that decide what happens to rows that cannot be published.
#[derive(Args, Default)]
#[command(next_help_heading = "Bad rows")]
pub(crate) struct BadRowArgs {
    /// What is done with a row that cannot be published: stop, dead-letter or skip (count it and continue) [default: stop]
    #[arg(long, value_name = "WHAT")]
    on_bad_row: Option<String>,

    /// What is done with one row, whether or not it is bad: LSN:N=dead-letter or LSN:N=skip, with the position that a hint names; repeatable
    #[arg(long, value_name = "ROW=WHAT")]
    bad_row_at: Vec<String>,

    /// Topic of dead-letter records; it must exist, or be created on demand [default: SLOT.dead-letter]
    #[arg(long, value_name = "TOPIC")]
    dead_letter_topic: Option<String>,
}

/// The flags that decide how a row becomes a record.
#[derive(Args, Default)]
#[command(next_help_heading = "Records")]
pub(crate) struct RecordArgs {
    /// Add a header, from a column, or with == the same text in each record: NAME==VALUE; repeatable
    #[arg(long, value_name = "NAME=COLUMN")]
    header: Vec<String>,

    /// Begin the value as consumers with a schema registry expect it (Confluent's format: a zero, the schema's id in four
    /// bytes); the id from an integer column, or the same for all rows [default: none]
    #[arg(long, value_name = "COLUMN|NUMBER")]
    schema_id: Option<String>,

    /// Make each record a CloudEvent 1.0: binary (attributes as headers, the value is the payload) or structured (one JSON
    /// object); id and type are the columns', the subject is the key [default: none]
    #[arg(long, value_name = "MODE")]
    cloudevents: Option<String>,

    /// With --cloudevents: the events' source, a URI or a path such as /shop/orders [default: none]
    #[arg(long, value_name = "URI")]
    cloudevents_source: Option<String>,

    /// Wrap the value as {"payload": …, "NAME": …}, with a column's value; repeatable
    #[arg(long, value_name = "NAME=COLUMN")]
    envelope: Vec<String>,

    /// Timestamp: `send` for the time at which the relay sends the record, `commit` for the transaction's, or a timestamp,
    /// timestamptz or bigint (milliseconds) column [default: send]
    #[arg(long, value_name = "COLUMN")]
    timestamp: Option<String>,

    /// Make an empty or blank payload a null value [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    tombstone_on_empty_payload: Option<String>,

    /// Add the header content-type, by the payload column's type: application/json, application/octet-stream for bytea, else
    /// text/plain; charset=UTF-8 [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    content_type_header: Option<String>,

    /// Add the header walrelay-position, commit LSN and row number, for exact deduplication [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    position_header: Option<String>,

    /// Begin the value as --schema-id does, with the id of its subject's latest schema, which this registry knows (Confluent's
    /// API): http://HOST:PORT or https://HOST/PATH [default: none]
    #[arg(long, value_name = "URL")]
    schema_registry: Option<String>,

    /// With --schema-registry: the subject, of {topic} and {type} [default: {topic}-value]
    #[arg(long, value_name = "TEMPLATE")]
    schema_subject: Option<String>,

    /// With --schema-registry: the user, or the API key [default: none]
    #[arg(long, value_name = "USER")]
    schema_registry_user: Option<String>,

    /// With --schema-registry-user: the password; @FILE reads it from a file, again at each request [default: none]
    #[arg(long, value_name = "PASSWORD")]
    schema_registry_password: Option<String>,

    /// With --schema-registry: a PEM file with certificate authorities [default: the system's]
    #[arg(long, value_name = "FILE")]
    schema_registry_ca: Option<String>,
}

/// How it runs.
#[derive(Args, Default)]
#[command(next_help_heading = "Operation")]
pub(crate) struct OperationArgs {
    /// Serve /metrics, /livez, /readyz and /status at HOST:PORT; :PORT is every address, off is none
    /// [default: 127.0.0.1:9464]
    #[arg(long, value_name = "ADDRESS")]
    http: Option<String>,

    /// When an operator must act (exit code 2): exit, or hold: disconnect from Postgres, stay up to say why, and wait for
    /// a signal [default: exit]
    #[arg(long, value_name = "WHAT")]
    on_stop: Option<String>,

    /// How long a graceful shutdown waits for acknowledgements (units us, ms, s, min, h, d) [default: 8s]
    #[arg(long, value_name = "DURATION")]
    shutdown_timeout: Option<String>,

    /// Disconnect from Postgres, and keep the slot's position, when a record is not acknowledged for this long; at least 100ms. Postgres
    /// can then restart or fail over while the destination is unavailable [default: 30s]
    #[arg(long, value_name = "DURATION")]
    disconnect_after: Option<String>,

    /// /readyz says 503 when records are in flight and none was acknowledged for this long; at least 1s [default: 30s]
    #[arg(long, value_name = "DURATION")]
    unready_after: Option<String>,

    /// Pause after a short read before the next; 0 for the lowest latency; at most 100ms [default: 200us]
    #[arg(long, value_name = "DURATION")]
    coalesce: Option<String>,

    /// Bytes enqueued and not acknowledged, at least 64KiB: keys, values and headers, and what the client adds for each record (units
    /// kB, MB, GB by 1000, KiB, MiB, GiB by 1024) [default: 16MiB]
    #[arg(long, value_name = "SIZE")]
    max_in_flight: Option<String>,

    /// Largest change message that is accepted, 1KiB to 1GiB [default: 256MiB]
    #[arg(long, value_name = "SIZE")]
    max_row: Option<String>,
}
