//! What may be typed of the commands beside `run`. The doc comment of a field is its help text.

use super::{CommonArgs, PasswordArgs, RunArgs, SetupShardsArgs, SourceArgs};
use clap::Args;

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

    /// After --apply, publish the rows that are there already, by the settings of `run` in the environment and the file; with flags
    /// of `run`, use walrelay backfill --setup
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

    /// Rows a second at most: 500 or 500/s [default: no limit]
    #[arg(long, value_name = "N/s")]
    pub rate: Option<String>,

    /// Rows read by one statement [default: 2000]
    #[arg(long, value_name = "ROWS")]
    pub chunk: Option<String>,

    /// Begin with the first row, whatever was published before
    #[arg(long)]
    pub again: bool,

    /// Leave out rows that were updated after the slot was created, instead of refusing where there may be some
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
