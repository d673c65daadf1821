//! What may be typed. The doc comment of a field is its help text.
//!
//! In: the arguments of the process. Out: [`Typed`], every value still as text, or what to print instead ([`Refused`]).
//! Nothing here is validated but that a flag exists and has its value; what values mean, and where else they may come
//! from, is [`config`](crate::config)'s. So that it can tell "not given" from a default, no flag has a default here.
//!
//! Invariant: no message quotes an argument that may hold a password. No type here has `Debug`, for the same reason.

mod brief;
mod completions;
mod flags;
mod parse;

#[cfg(test)]
pub(crate) use completions::VALUES;
pub use completions::completions;
pub use parse::{Refused, actions, parse, setting_of_alias, settings, write_manual};

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;

mod dead_letters;
mod registry;
mod shards;

pub use dead_letters::DeadLettersArgs;
pub use registry::RegistryArgs;
pub use shards::{SetupShardsArgs, ShardArgs};

const AFTER_HELP: &str = "\
Every setting of `run` is a flag, a variable WALRELAY_<FLAG> (--max-row: WALRELAY_MAX_ROW; lists with commas) \
and a key of the TOML file given by --config. A flag beats a variable, a variable beats the file.

Exit codes: 0 stopped on request, 1 failed and a restart may cure it, 2 an operator must act, \
64 the settings are wrong.";

const CHECK_HELP: &str = "\
Takes the flags of `run`, checks everything that run needs and what would fail later, and changes nothing. Each line is ok, warn or \
fail, with why it matters and how to fix it. If one side is unavailable, the other is checked. With --from-debezium it contacts \
nothing and shows what that configuration means here: as flags, as TOML, and what has no counterpart.

Exit codes: 0 nothing fails (warnings are no failure), 2 something fails, 64 the settings are wrong.";

const REPUBLISH_HELP: &str = "\
For rows that the slot never saw (older than it, lost with one before) and for corrected ones. The rows keep all values, their \
ids too, and pass through the slot in the given order, one transaction for each chunk. Consumers that have seen an id drop it. \
Needs SELECT, INSERT, UPDATE (to lock) and DELETE on the table.

  walrelay republish --where \"status = 'PENDING'\" --apply

Exit codes: 0 done or shown, 1 failed and a restart may cure it, 2 an operator must act, 64 the settings are wrong.";

const PRUNE_HELP: &str = "\
Lists the old rows in one snapshot, commits a logical message behind them, waits until the slot has confirmed it, and deletes \
in short transactions what is still as it was listed. While the relay is stopped, it waits. It refuses to run without the slot. \
Needs SELECT, UPDATE (to lock) and DELETE on the table; with --partitions its owner.

  walrelay prune --older-than 7d --every 1h

Exit codes: 0 done, 1 failed and a restart may cure it, 2 an operator must act, 64 the settings are wrong.";

const BACKFILL_HELP: &str = "\
For rows that are in the table and were never in the slot: they become the records that the relay would have made of them, and are \
not rewritten. Needs SELECT on the table, and a slot that setup --apply made, since that writes down which rows are older. The relay \
may run meanwhile: a row is published by exactly one of both. Takes the flags of `run`; without --bad-row-at and the like a row that \
cannot be published stops it. The same command resumes after a stop or a crash behind what was acknowledged.

  walrelay backfill --table outbox --dry-run
  walrelay backfill --setup --table outbox --then-run

Exit codes: 0 all rows are published, 1 stopped or failed and a restart may cure it, 2 an operator must act, 64 the settings are wrong.";

/// Relay rows of a Postgres outbox table to Kafka: from the WAL, in order, at least once.
#[derive(Parser)]
#[command(name = "walrelay", version, propagate_version = true, after_help = AFTER_HELP, max_term_width = 100)]
#[command(args_override_self = true, subcommand_required = true)]
struct Cli {
    #[command(subcommand)]
    command: Typed,
}

/// A command as it was typed.
#[derive(Subcommand)]
pub enum Typed {
    /// Read the slot, publish each row, confirm what was acknowledged.
    #[command(after_help = AFTER_HELP)]
    Run(Box<RunArgs>),
    /// Print the SQL that the database needs: publication and slot.
    Setup(SetupArgs),
    /// Check Postgres and the destination; print what is wrong and how to fix it.
    #[command(after_help = CHECK_HELP)]
    Check(CheckArgs),
    /// Show the slot: who reads it, what it has confirmed, what it holds back.
    Status(StatusArgs),
    /// Drop the slot; asks first.
    Teardown(TeardownArgs),
    /// Publish rows once more, or rows older than the slot, by deleting and inserting them; shows, unless --apply.
    #[command(after_help = REPUBLISH_HELP)]
    Republish(RepublishArgs),
    /// List the records of rows that could not be published, and publish them again to where they were meant for.
    #[command(after_help = dead_letters::HELP)]
    DeadLetters(DeadLettersArgs),
    /// Publish rows that are older than the slot, once each, without rewriting them.
    #[command(after_help = BACKFILL_HELP)]
    Backfill(BackfillArgs),
    /// Delete outbox rows that are old and proven to be delivered.
    #[command(after_help = PRUNE_HELP)]
    Prune(PruneArgs),
    /// Measure drain rate and latency on your own servers, in a schema, slot and topic created for it and removed afterwards.
    Bench(Box<BenchArgs>),
    /// Print a shell's completions.
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Write the manual's pages, for packages.
    #[command(hide = true)]
    Man {
        /// The folder that gets them.
        folder: PathBuf,
    },
}

/// Settings that every command has.
#[derive(Args, Clone, Default)]
pub struct CommonArgs {
    /// Read settings from this TOML file; keys are the names of flags [default: none]
    #[arg(short, long, value_name = "FILE", help_heading = None)]
    pub config: Option<String>,

    /// Log lines as `text` or `json` [default: text on a terminal, else json]
    #[arg(long, value_name = "FORMAT", help_heading = "Logging")]
    pub log_format: Option<String>,

    /// What is logged: error, warn, info, debug, trace, or a filter such as walrelay=debug [default: info]
    #[arg(long, value_name = "FILTER", help_heading = "Logging")]
    pub log_level: Option<String>,
}

/// Which database, and what in it.
#[derive(Args, Clone, Default)]
#[command(next_help_heading = "Postgres")]
pub struct SourceArgs {
    /// Connection URI or keyword string, as for psql: postgres://user@host:5432/dbname?sslmode=verify-full
    /// [default: DATABASE_URL, then libpq's PG* variables, also for what a URI leaves out]
    #[arg(short = 'd', long, value_name = "URI", visible_aliases = ["dsn", "database-url"])]
    pub source: Option<String>,

    /// Where the password stands.
    #[command(flatten)]
    pub password: PasswordArgs,

    /// The publication to read [default: walrelay]
    #[arg(short, long, value_name = "NAME")]
    pub publication: Option<String>,

    /// The replication slot, also this relay's name in logs, metrics and Kafka's client.id [default: walrelay]
    #[arg(short = 'S', long, value_name = "NAME")]
    pub slot: Option<String>,
}

/// Where the password of the source stands, if not where libpq has it.
#[derive(Args, Clone, Default)]
#[command(next_help_heading = "Postgres")]
pub struct PasswordArgs {
    /// Read the password from this file, again at each connection; it comes before any other [default: none]
    #[arg(long, value_name = "FILE")]
    pub source_password_file: Option<String>,

    /// Run this program, without a shell, for at most 10 s; the first line that it prints is the password, as tokens of clouds
    /// need it; at each connection, but not twice a minute [default: none]
    #[arg(long, value_name = "COMMAND", conflicts_with = "source_password_file")]
    pub source_password_command: Option<String>,
}

/// What `run` takes.
#[derive(Args, Default)]
pub struct RunArgs {
    /// Which database, and what in it.
    #[command(flatten)]
    pub source: SourceArgs,

    /// Which shard it is.
    #[command(flatten)]
    pub shard: ShardArgs,

    /// Create publication and slot first, once, as `walrelay setup --apply` does [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    #[arg(help_heading = "Postgres")]
    pub setup: Option<String>,

    /// Only this table, SCHEMA.TABLE or a TABLE of schema public; repeatable [default: every table of the publication]
    #[arg(short, long, value_name = "TABLE", help_heading = "Postgres")]
    pub table: Vec<String>,

    /// Read the slot though nothing proves that it is the one that was read before; LSN is its confirmed_flush_lsn, as the
    /// error names it, so that this serves once [default: none]
    #[arg(long, value_name = "LSN", help_heading = "Postgres")]
    pub accept_slot_at: Option<String>,

    /// Print new rows as JSON lines on stdout, from a temporary slot: no Kafka, nothing confirmed; for backfill: only count
    /// the rows [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    #[arg(help_heading = "Postgres")]
    pub dry_run: Option<String>,

    /// Where records go.
    #[command(flatten)]
    pub destination: DestinationArgs,

    /// Which topic a record gets.
    #[command(flatten)]
    pub routing: RoutingArgs,

    /// Which column is which.
    #[command(flatten)]
    pub rows: RowArgs,

    /// What a record is made of.
    #[command(flatten)]
    pub records: RecordArgs,

    /// Which registry knows their schemas.
    #[command(flatten)]
    pub registry: RegistryArgs,

    /// What becomes of rows that cannot be published.
    #[command(flatten)]
    pub bad_rows: BadRowArgs,

    /// How it runs.
    #[command(flatten)]
    pub operation: OperationArgs,

    /// A Debezium configuration.
    #[command(flatten)]
    pub debezium: DebeziumArgs,

    /// Settings that every command has.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// A Debezium configuration.
#[derive(Args, Default)]
#[command(next_help_heading = "Moving from Debezium")]
pub struct DebeziumArgs {
    /// Read the settings of this Debezium Server application.properties or Kafka Connect connector JSON, and write the same records;
    /// repeatable: a Connect worker's properties go along. Explicit settings win [default: none]
    #[arg(long, value_name = "FILE")]
    pub from_debezium: Vec<String>,

    /// Run even where records would differ from Debezium's [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub accept_differences: Option<String>,
}

/// What `check` takes: what `run` takes, since that is what it looks after.
#[derive(Args)]
pub struct CheckArgs {
    /// Print JSON: `verdict`, `findings` (side, check, level, finding, why, fix), `tables`
    #[arg(long)]
    pub json: bool,

    /// The run that is looked after.
    #[command(flatten)]
    pub run: Box<RunArgs>,
}

/// Where records go.
#[derive(Args, Default)]
#[command(next_help_heading = "Destination")]
pub struct DestinationArgs {
    /// Where records go: kafka://HOST:PORT,HOST:PORT, or stdout:// for JSON lines [default: --brokers]
    #[arg(long, value_name = "URL")]
    pub to: Option<String>,

    /// Kafka's bootstrap servers, HOST:PORT with commas between them: short for --to kafka://HOST:PORT
    /// [default: localhost:9092]
    #[arg(short, long, value_name = "HOSTS")]
    pub brokers: Vec<String>,

    /// A property of the destination, for Kafka any of librdkafka; KEY=@FILE reads the value from a file, KEY=@@… begins
    /// it with an @; repeatable. As a variable: WALRELAY_KAFKA_SASL_PASSWORD for Kafka's sasl.password; in the file: the
    /// table `kafka`
    #[arg(short = 'X', value_name = "KEY=VALUE")]
    pub property: Vec<String>,

    /// at-least-once, or exactly-once: in Kafka transactions, for consumers with isolation.level=read_committed
    /// [default: at-least-once]
    #[arg(long, value_name = "HOW")]
    pub delivery: Option<String>,
}

/// Which topic a record gets.
#[derive(Args, Default)]
#[command(next_help_heading = "Routing")]
pub struct RoutingArgs {
    /// Topic of a record: text and {name}, {name|lower} or {name|kebab}, where name is a column or one of
    /// id, route, key, type [default: outbox.event.{route}]
    #[arg(long, value_name = "TEMPLATE")]
    pub topic: Option<String>,

    /// Instead of --topic: what the routed-by value must match as a whole to become --topic-replacement
    #[arg(long, value_name = "REGEX")]
    pub topic_regex: Option<String>,

    /// With --topic-regex: the topic, with $1 and ${name} for groups
    #[arg(long, value_name = "TEXT")]
    pub topic_replacement: Option<String>,
}

/// Which column is which.
#[derive(Args, Default)]
#[command(next_help_heading = "Rows")]
pub struct RowArgs {
    /// Column of the event's id [default: id, event_id]
    #[arg(long, value_name = "COLUMN")]
    pub id_column: Option<String>,

    /// Column of the record's key, empty for none [default: aggregateid, aggregate_id, else no key]
    #[arg(long, value_name = "COLUMN")]
    pub key_column: Option<String>,

    /// Column of the record's value [default: payload, event_data, data]
    #[arg(long, value_name = "COLUMN")]
    pub payload_column: Option<String>,

    /// Column of the event's type, empty for none [default: type, event_type, task_type]
    #[arg(long, value_name = "COLUMN")]
    pub type_column: Option<String>,

    /// Column that {route} stands for [default: aggregatetype, aggregate_type, else the type's]
    #[arg(long, value_name = "COLUMN")]
    pub route_column: Option<String>,

    /// Column with a JSON object of headers, empty for none [default: headers, if the table has it]
    #[arg(long, value_name = "COLUMN")]
    pub headers_column: Option<String>,

    /// Integer column of the record's partition, empty for none [default: by the key, as Java clients choose]
    #[arg(long, value_name = "COLUMN")]
    pub partition_column: Option<String>,

    /// What an updated row does: warn (count, log, skip), skip or stop [default: warn]
    #[arg(long, value_name = "WHAT")]
    pub on_update: Option<String>,

    /// Also publish transactional pg_logical_emit_message messages with this prefix; repeatable [default: none]
    #[arg(long, value_name = "PREFIX")]
    pub message_prefix: Vec<String>,
}

/// What becomes of rows that cannot be published.
#[derive(Args, Default)]
#[command(next_help_heading = "Bad rows")]
pub struct BadRowArgs {
    /// What a row does that cannot be published: stop, dead-letter or skip (count it and continue) [default: stop]
    #[arg(long, value_name = "WHAT")]
    pub on_bad_row: Option<String>,

    /// What to do with one bad row, at the position that the stop's hint names: LSN:N=dead-letter or LSN:N=skip; repeatable
    #[arg(long, value_name = "ROW=WHAT")]
    pub bad_row_at: Vec<String>,

    /// Topic of dead-letter records; it must exist, or be created on demand [default: SLOT.dead-letter]
    #[arg(long, value_name = "TOPIC")]
    pub dead_letter_topic: Option<String>,
}

/// What a record is made of.
#[derive(Args, Default)]
#[command(next_help_heading = "Records")]
pub struct RecordArgs {
    /// One more header, from a column, or with == the same text in each record: NAME==VALUE; repeatable
    #[arg(long, value_name = "NAME=COLUMN")]
    pub header: Vec<String>,

    /// Begin the value as consumers with a schema registry expect it (Confluent's format: a zero, the schema's id in four
    /// bytes); the id from an integer column, or the same for all rows [default: none]
    #[arg(long, value_name = "COLUMN|NUMBER")]
    pub schema_id: Option<String>,

    /// Make each record a CloudEvent 1.0: binary (attributes as headers, the value is the payload) or structured (one JSON
    /// object); id and type are the columns', the subject is the key [default: none]
    #[arg(long, value_name = "MODE")]
    pub cloudevents: Option<String>,

    /// With --cloudevents: the events' source, a URI or a path such as /shop/orders [default: none]
    #[arg(long, value_name = "URI")]
    pub cloudevents_source: Option<String>,

    /// Wrap the value as {"payload": …, "NAME": …}, with a column's value; repeatable
    #[arg(long, value_name = "NAME=COLUMN")]
    pub envelope: Vec<String>,

    /// Timestamp: `commit` for the transaction's, or a timestamp, timestamptz or bigint (milliseconds) column
    /// [default: commit]
    #[arg(long, value_name = "COLUMN")]
    pub timestamp: Option<String>,

    /// Make an empty or blank payload a null value [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub tombstone_on_empty_payload: Option<String>,

    /// Add the header content-type, by the payload column's type: application/json, application/octet-stream for bytea, else
    /// text/plain; charset=UTF-8 [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub content_type_header: Option<String>,

    /// Add the header walrelay-position, commit LSN and row number, for exact deduplication [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub position_header: Option<String>,
}

/// How it runs.
#[derive(Args, Default)]
#[command(next_help_heading = "Operation")]
pub struct OperationArgs {
    /// Serve /metrics, /livez, /readyz and /status at HOST:PORT; :PORT is every address, off is none
    /// [default: 127.0.0.1:9464]
    #[arg(long, value_name = "ADDRESS")]
    pub http: Option<String>,

    /// When an operator must act (exit code 2): exit, or hold: disconnect from Postgres, stay up to say why, and wait for
    /// a signal [default: exit]
    #[arg(long, value_name = "WHAT")]
    pub on_stop: Option<String>,

    /// How long a clean stop waits for acknowledgements (units us, ms, s, min, h, d) [default: 8s]
    #[arg(long, value_name = "DURATION")]
    pub shutdown_timeout: Option<String>,

    /// Disconnect from Postgres, keeping the slot's place, when a record is unacknowledged for so long [default: 30s]
    #[arg(long, value_name = "DURATION")]
    pub disconnect_after: Option<String>,

    /// /readyz says 503 when records are in flight and none was acknowledged for so long [default: 30s]
    #[arg(long, value_name = "DURATION")]
    pub unready_after: Option<String>,

    /// Pause after a short read before the next; 0 for the lowest latency, at most 100ms [default: 200us]
    #[arg(long, value_name = "DURATION")]
    pub coalesce: Option<String>,

    /// Bytes in flight to the destination, at least 64KiB (units kB, MB, GB by 1000, KiB, MiB, GiB by 1024) [default: 16MiB]
    #[arg(long, value_name = "SIZE")]
    pub max_in_flight: Option<String>,

    /// Largest change message accepted, 1KiB to 1GiB [default: 256MiB]
    #[arg(long, value_name = "SIZE")]
    pub max_row: Option<String>,
}

/// What `setup` takes.
#[allow(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
#[derive(Args)]
pub struct SetupArgs {
    /// Run the SQL instead of printing it
    #[arg(long)]
    pub apply: bool,

    /// Create the slot so that it survives a failover (Postgres 17 and later)
    #[arg(long)]
    pub failover: bool,

    /// Also create a role with this name that has the rights to run the relay and no others
    #[arg(long, value_name = "NAME")]
    pub role: Option<String>,

    /// Also create the table named by the first --table, if it does not exist
    #[arg(long)]
    pub create_table: bool,

    /// With --apply: then publish the rows that are there already, by the settings of `run` in the environment and the file; with
    /// flags of `run`: walrelay backfill --setup
    #[arg(long, requires = "apply")]
    pub backfill: bool,

    /// How many relays share the rows.
    #[command(flatten)]
    pub shards: SetupShardsArgs,

    /// Which database, and what in it.
    #[command(flatten)]
    pub source: SourceArgs,

    /// An outbox table, SCHEMA.TABLE or a TABLE of schema public; needed to create the publication; repeatable
    #[arg(short, long, value_name = "TABLE", help_heading = "Postgres")]
    pub table: Vec<String>,

    /// Settings that every command has.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// What `status` takes.
#[allow(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
#[derive(Args)]
pub struct StatusArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,

    /// Print again every two seconds
    #[arg(long)]
    pub watch: bool,

    /// Show every shard, and the slot without shards if it is there
    #[arg(long, conflicts_with = "watch")]
    pub all: bool,

    /// Ask only whether the relay on this machine is ready (/readyz): exit 0 or 1
    #[arg(long, conflicts_with_all = ["json", "watch", "all"])]
    pub ready: bool,

    /// Which database, and what in it.
    #[command(flatten)]
    pub source: SourceArgs,

    /// Where the relay on this machine serves HTTP [default: 127.0.0.1:9464]
    #[arg(long, value_name = "ADDRESS", help_heading = "Operation")]
    pub http: Option<String>,

    /// Settings that every command has.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// What `teardown` takes.
#[derive(Args)]
pub struct TeardownArgs {
    /// Also drop the publication
    #[arg(long)]
    pub publication_too: bool,

    /// Drop the slots and publications of the N shards
    #[arg(long, value_name = "N")]
    pub shards: Option<String>,

    /// Do not ask
    #[arg(long)]
    pub yes: bool,

    /// Which database, and what in it.
    #[command(flatten)]
    pub source: SourceArgs,

    /// Settings that every command has.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// What `bench` takes.
#[derive(Args)]
pub struct BenchArgs {
    /// Rows in the backlog [default: 200000]
    #[arg(long, value_name = "N")]
    pub rows: Option<String>,

    /// Size of a payload as text [default: 300]
    #[arg(long, value_name = "SIZE")]
    pub payload_bytes: Option<String>,

    /// Type of the payload's column: jsonb, json, text or bytea [default: jsonb]
    #[arg(long, value_name = "TYPE")]
    pub payload_type: Option<String>,

    /// Rows to a transaction [default: 10]
    #[arg(long, value_name = "N")]
    pub rows_per_transaction: Option<String>,

    /// Partitions of the topic [default: 12]
    #[arg(long, value_name = "N")]
    pub partitions: Option<String>,

    /// Where records end: kafka for the destination, or null to discard them [default: kafka]
    #[arg(long, value_name = "WHERE")]
    pub sink: Option<String>,

    /// Single-row transactions a second in the steady phase [default: 200]
    #[arg(long, value_name = "N")]
    pub rate: Option<String>,

    /// How many seconds the steady phase takes; 0 for none [default: 10]
    #[arg(long, value_name = "N")]
    pub seconds: Option<String>,

    /// Print JSON
    #[arg(long)]
    pub json: bool,

    /// Connection URI or keyword string, as for run
    #[arg(short = 'd', long, value_name = "URI", visible_aliases = ["dsn", "database-url"], help_heading = "Postgres")]
    pub source: Option<String>,

    /// Where the password stands.
    #[command(flatten)]
    pub password: PasswordArgs,

    /// Where records go, as for run [default: --brokers]
    #[arg(long, value_name = "URL", help_heading = "Destination")]
    pub to: Option<String>,

    /// Kafka's bootstrap servers, HOST:PORT with commas between them [default: localhost:9092]
    #[arg(short, long, value_name = "HOSTS", help_heading = "Destination")]
    pub brokers: Vec<String>,

    /// A property of the destination, as for run; repeatable
    #[arg(short = 'X', value_name = "KEY=VALUE", help_heading = "Destination")]
    pub property: Vec<String>,

    /// Pause after a short read before the next, as for run [default: 200us]
    #[arg(long, value_name = "DURATION", help_heading = "Operation")]
    pub coalesce: Option<String>,

    /// Bytes in flight to the destination, as for run [default: 16MiB]
    #[arg(long, value_name = "SIZE", help_heading = "Operation")]
    pub max_in_flight: Option<String>,

    /// Settings that every command has.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// What `republish` takes.
#[derive(Args)]
pub struct RepublishArgs {
    /// Do it instead of showing it
    #[arg(long)]
    pub apply: bool,

    /// Also where triggers, rules or foreign keys fire, or rows may move between partitions
    #[arg(long)]
    pub force: bool,

    /// Which rows, as SQL: "status = 'PENDING'" [default: all]
    #[arg(long = "where", value_name = "SQL")]
    pub condition: Option<String>,

    /// In which order, as SQL [default: created_at or its like, then the id]
    #[arg(long, value_name = "SQL")]
    pub order_by: Option<String>,

    /// Rows moved in one transaction [default: 2000]
    #[arg(long, value_name = "ROWS")]
    pub chunk: Option<String>,

    /// Which database, and what in it.
    #[command(flatten)]
    pub source: SourceArgs,

    /// The outbox table, SCHEMA.TABLE or a TABLE of schema public
    #[arg(short, long, value_name = "TABLE", help_heading = "Postgres")]
    pub table: Vec<String>,

    /// Column of the event's id [default: id, event_id]
    #[arg(long, value_name = "COLUMN", help_heading = "Rows")]
    pub id_column: Option<String>,

    /// Settings that every command has.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// What `backfill` takes: what `run` takes, since its records are the run's.
#[derive(Args, Default)]
pub struct BackfillArgs {
    /// Which rows, as SQL: "status = 'PENDING'" [default: all]
    #[arg(long = "where", value_name = "SQL")]
    pub condition: Option<String>,

    /// Column that rows are ordered by before their key; an index that begins with it spares sorting [default: the key]
    #[arg(long, value_name = "COLUMN")]
    pub order_by: Option<String>,

    /// Rows a second at most: 500 or 500/s [default: no bound]
    #[arg(long, value_name = "N/s")]
    pub rate: Option<String>,

    /// Rows read by one statement [default: 2000]
    #[arg(long, value_name = "ROWS")]
    pub chunk: Option<String>,

    /// Begin with the first row, whatever was published before
    #[arg(long)]
    pub again: bool,

    /// Leave out rows that were updated after the slot was made, instead of refusing where there may be some
    #[arg(long)]
    pub leave_updated: bool,

    /// Run the relay once all rows are published, so that existing rows of a key come before new ones
    #[arg(long)]
    pub then_run: bool,

    /// The run whose records they become.
    #[command(flatten)]
    pub run: Box<RunArgs>,
}

/// What `prune` takes.
#[derive(Args)]
pub struct PruneArgs {
    /// How old a row has to be, at least a minute: 7d, 12h (units us, ms, s, min, h, d)
    #[arg(long, value_name = "DURATION")]
    pub older_than: Option<String>,

    /// Only say how many rows would be deleted
    #[arg(long)]
    pub dry_run: bool,

    /// Keep running, with this pause between two rounds
    #[arg(long, value_name = "DURATION")]
    pub every: Option<String>,

    /// Column that says how old a row is [default: created_at, createdat, timestamp, occurred_at, else the commit's time
    /// if the server tracks it]
    #[arg(long, value_name = "COLUMN")]
    pub age_column: Option<String>,

    /// Rows deleted in one transaction [default: 2000]
    #[arg(long, value_name = "ROWS")]
    pub chunk: Option<String>,

    /// Put rows into this table before they are deleted; it has all columns of the outbox table
    #[arg(long, value_name = "TABLE", conflicts_with = "partitions")]
    pub archive_to: Option<String>,

    /// How long to wait for the slot to confirm, while its relay is stopped [default: indefinitely]
    #[arg(long, value_name = "DURATION")]
    pub timeout: Option<String>,

    /// Create daily partitions ahead, and drop old ones as a whole
    #[arg(long)]
    pub partitions: bool,

    /// Also rows younger than a minute, and rows that the slot does not carry: from before it, or left out by a row filter
    #[arg(long)]
    pub force: bool,

    /// Which database, and what in it.
    #[command(flatten)]
    pub source: SourceArgs,

    /// Only this table, SCHEMA.TABLE or a TABLE of schema public; repeatable [default: every table of the publication]
    #[arg(short, long, value_name = "TABLE", help_heading = "Postgres")]
    pub table: Vec<String>,

    /// Column of the event's id [default: id, event_id]
    #[arg(long, value_name = "COLUMN", help_heading = "Rows")]
    pub id_column: Option<String>,

    /// Settings that every command has.
    #[command(flatten)]
    pub common: CommonArgs,
}
