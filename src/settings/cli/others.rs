//! The flags of the commands beside `run`. The doc comment of a field is its help text.

use super::{CommonArgs, OfRunArgs, PasswordArgs, RunArgs, SetupShardsArgs, SourceArgs};
use clap::Args;

/// The flags of `check`. It takes those of `run`, since it checks what `run` needs.
#[derive(Args)]
pub(crate) struct CheckArgs {
    /// Print JSON: `verdict`, `findings` (side, check, level, finding, why, fix), `tables`
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    run: Box<RunArgs>,
}

/// The flags of `setup`.
#[allow(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
#[derive(Args)]
pub(crate) struct SetupArgs {
    /// Run the SQL instead of printing it
    #[arg(long)]
    pub(crate) apply: bool,

    /// Create the slot so that it survives a failover (Postgres 17 and later)
    #[arg(long)]
    pub(crate) failover: bool,

    /// Also create a role with this name that has the rights to run the relay and no others
    #[arg(long, value_name = "NAME")]
    role: Option<String>,

    /// Also create the table named by the first --table, if it does not exist
    #[arg(long)]
    pub(crate) create_table: bool,

    /// With --apply, go on although the slot was lost: create it again, or mark the one that is there. No table is known then
    #[arg(long)]
    pub(crate) after_loss: bool,

    /// With --apply, only record that all rows of the tables that --table names are published, so that prune may delete them
    #[arg(long, requires = "apply", conflicts_with_all = ["shards", "reshard", "backfill", "after_loss"])]
    pub(crate) published: bool,

    /// With --published or --backfill, do not ask
    #[arg(long)]
    pub(crate) yes: bool,

    /// After --apply, publish the rows that are there already, by the settings of `run` in the environment and the file; with flags
    /// of `run`, use walrelay backfill --setup
    #[arg(long, requires = "apply")]
    pub(crate) backfill: bool,

    /// Print JSON: with --apply a line for each step, else one object with `steps` (do, sql, about), `notes`, `next`, or the `script` of
    /// shards
    #[arg(long, conflicts_with = "backfill")]
    pub(crate) json: bool,

    #[command(flatten)]
    shards: SetupShardsArgs,

    #[command(flatten)]
    source: SourceArgs,

    /// An outbox table, SCHEMA.TABLE or a TABLE of schema public; needed to create the publication; repeatable
    #[arg(short, long, value_name = "TABLE", help_heading = "Postgres")]
    table: Vec<String>,

    #[command(flatten)]
    common: CommonArgs,
}

/// The flags of `status`.
#[allow(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
#[derive(Args)]
pub(crate) struct StatusArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// Print again every two seconds
    #[arg(long)]
    pub(crate) watch: bool,

    /// Show every shard, and the slot without shards if it is there
    #[arg(long, conflicts_with = "watch")]
    pub(crate) all: bool,

    /// Ask only whether the relay on this machine is ready (/readyz): exit 0 or 1
    #[arg(long, conflicts_with_all = ["json", "watch", "all"])]
    pub(crate) ready: bool,

    #[command(flatten)]
    source: SourceArgs,

    /// Where the relay on this machine serves HTTP [default: 127.0.0.1:9464]
    #[arg(long, value_name = "ADDRESS", help_heading = "Operation")]
    http: Option<String>,

    #[command(flatten)]
    common: CommonArgs,
}

/// The flags of `teardown`.
#[derive(Args)]
pub(crate) struct TeardownArgs {
    /// Also drop the publication
    #[arg(long)]
    pub(crate) publication_too: bool,

    /// Drop the slots and publications of the N shards
    #[arg(long, value_name = "N")]
    shards: Option<String>,

    /// Also drop a slot that no setup marker of the database names: another program may read it
    #[arg(long)]
    pub(crate) unmarked: bool,

    /// With --publication-too, a slot that may be read with the publication as well; repeatable
    #[arg(long, value_name = "SLOT")]
    also_read_by: Vec<String>,

    /// Do not ask
    #[arg(long)]
    pub(crate) yes: bool,

    #[command(flatten)]
    source: SourceArgs,

    #[command(flatten)]
    common: CommonArgs,
}

/// The flags of `bench`.
#[derive(Args)]
pub(crate) struct BenchArgs {
    /// Rows in the backlog [default: 200000]
    #[arg(long, value_name = "N")]
    rows: Option<String>,

    /// Size of a payload as text [default: 300]
    #[arg(long, value_name = "SIZE")]
    payload_bytes: Option<String>,

    /// Type of the payload's column: jsonb, json, text or bytea [default: jsonb]
    #[arg(long, value_name = "TYPE")]
    payload_type: Option<String>,

    /// Rows to a transaction [default: 10]
    #[arg(long, value_name = "N")]
    rows_per_transaction: Option<String>,

    /// Partitions of the topic [default: 12]
    #[arg(long, value_name = "N")]
    partitions: Option<String>,

    /// Where records end: kafka for the destination, or null to discard them [default: kafka]
    #[arg(long, value_name = "WHERE")]
    sink: Option<String>,

    /// Single-row transactions a second in the steady phase [default: 200]
    #[arg(long, value_name = "N")]
    rate: Option<String>,

    /// How many seconds the steady phase takes; 0 for none [default: 10]
    #[arg(long, value_name = "N")]
    seconds: Option<String>,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// Connection URI or keyword string, as for run
    #[arg(short = 'd', long, value_name = "URI", visible_aliases = ["dsn", "database-url"], help_heading = "Postgres")]
    source: Option<String>,

    #[command(flatten)]
    password: PasswordArgs,

    #[command(flatten)]
    destination: OfRunArgs,

    /// Pause after a short read before the next, as for run [default: 200us]
    #[arg(long, value_name = "DURATION", help_heading = "Operation")]
    coalesce: Option<String>,

    /// Bytes in flight to the destination, as for run [default: 16MiB]
    #[arg(long, value_name = "SIZE", help_heading = "Operation")]
    max_in_flight: Option<String>,

    #[command(flatten)]
    common: CommonArgs,
}

/// The flags of `backfill`. It takes those of `run`, since it publishes the same records.
#[derive(Args, Default)]
pub(crate) struct BackfillArgs {
    /// Which rows, as SQL: "status = 'PENDING'" [default: all]
    #[arg(long = "where", value_name = "SQL")]
    condition: Option<String>,

    /// Column that rows are ordered by before their key; an index that begins with it spares sorting [default: the key]
    #[arg(long, value_name = "COLUMN")]
    order_by: Option<String>,

    /// Rows a second at most: 500 or 500/s [default: no limit]
    #[arg(long, value_name = "N/s")]
    rate: Option<String>,

    /// Rows read by one statement [default: 2000]
    #[arg(long, value_name = "ROWS")]
    chunk: Option<String>,

    /// Begin with the first row, whatever was published before
    #[arg(long)]
    pub(crate) again: bool,

    /// Do not ask whether rows may come a second time
    #[arg(long)]
    pub(crate) yes: bool,

    /// Run the relay once all rows are published, so that existing rows of a key come before new ones
    #[arg(long)]
    pub(crate) then_run: bool,

    #[command(flatten)]
    run: Box<RunArgs>,
}

impl BackfillArgs {
    /// Those of `setup --backfill`.
    pub(crate) fn after_setup(yes: bool) -> Self {
        Self { yes, ..Self::default() }
    }
}

/// The flags of `prune`.
#[derive(Args)]
pub(crate) struct PruneArgs {
    /// How old a row has to be, at least a minute: 7d, 12h (units us, ms, s, min, h, d)
    #[arg(long, value_name = "DURATION")]
    older_than: Option<String>,

    /// Only say how many rows would be deleted
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// Keep running, with this pause between two rounds
    #[arg(long, value_name = "DURATION")]
    every: Option<String>,

    /// Column that says how old a row is [default: created_at, createdat, timestamp, occurred_at, else the commit's time
    /// if the server tracks it]
    #[arg(long, value_name = "COLUMN")]
    age_column: Option<String>,

    /// Rows deleted in one transaction [default: 2000]
    #[arg(long, value_name = "ROWS")]
    chunk: Option<String>,

    /// Put rows into this table before they are deleted; it has all columns of the outbox table
    #[arg(long, value_name = "TABLE", conflicts_with = "partitions")]
    archive_to: Option<String>,

    /// How long to wait for the slot to confirm, while its relay is stopped [default: indefinitely]
    #[arg(long, value_name = "DURATION")]
    timeout: Option<String>,

    /// Detach and drop partitions that are old as a whole, once they are delivered
    #[arg(long)]
    pub(crate) partitions: bool,

    /// Print JSON lines: for each table its rows that were `deleted` and those that were `left`, or are `old`; rows that the relay
    /// `skipped`; for each partition the `result`
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    source: SourceArgs,

    /// Only this table, SCHEMA.TABLE or a TABLE of schema public; repeatable [default: every table that the relay
    /// reads]
    #[arg(short, long, value_name = "TABLE", help_heading = "Postgres")]
    table: Vec<String>,

    #[command(flatten)]
    common: CommonArgs,
}
