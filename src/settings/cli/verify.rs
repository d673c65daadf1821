//! The flags of `verify`. The doc comment of a field is its help text.

use super::RunArgs;
use clap::Args;

pub(super) const HELP: &str = "\
Takes the flags of `run`: give it those of the relay that it looks at, which runs meanwhile. Reads new rows over a temporary slot, makes \
their records by the code of `run`, and finds each in its topic. Then waits until the relay's slot has confirmed the rows that are still \
open. --since reads the rows from the table instead: it also finds those that no slot will bring. With --from-debezium it expects what Debezium writes, from Debezium's slot: a dry run of the migration. Kafka, NATS and Redis can be read. Needs \
a walsender, and leaves two to the relay; the slot keeps WAL only while the command runs.

  walrelay verify --follow 10min
  walrelay verify --since 2h
  walrelay verify --from-debezium application.properties";

/// Its exit codes.
pub(super) const CODES: [(u8, &str); 4] = [
    (0, "each row has its record; new rows in order"),
    (1, "not finished, rows that could not be judged, or no new row"),
    (2, "a row is missing, altered or out of order"),
    (64, ""),
];

/// The flags of `verify`. It takes those of `run`, since it makes the same records.
#[derive(Args)]
pub(crate) struct VerifyArgs {
    /// How long new rows are compared; 0: until Ctrl-C [default: 1min]
    #[arg(long, value_name = "DURATION")]
    follow: Option<String>,

    /// Compare the rows that are in the table and younger than this, instead of new ones
    #[arg(long, value_name = "DURATION", conflicts_with = "follow")]
    since: Option<String>,

    /// With --since: only rows for which this holds
    #[arg(long = "where", value_name = "SQL")]
    condition: Option<String>,

    /// With --since: column that says how old a row is [default: created_at, createdat, timestamp, occurred_at, else the
    /// commit's time if the server tracks it]
    #[arg(long, value_name = "COLUMN")]
    age_column: Option<String>,

    /// How long the relay's slot may take to confirm rows that are open at the end [default: 1min]
    #[arg(long, value_name = "DURATION")]
    wait: Option<String>,

    /// The topics are this slot's alone: a record without a row is an error (Kafka). --topic has to begin with a fixed text
    #[arg(long)]
    pub(crate) exclusive: bool,

    /// The most errors that are shown one by one [default: 20]
    #[arg(long, value_name = "N")]
    show: Option<String>,

    /// Show keys, values and headers of records that differ
    #[arg(long)]
    pub(crate) show_values: bool,

    /// Memory for rows and records, at least 1MiB; if it is reached, the comparison ends early; --since reads more than once
    /// [default: 256MiB]
    #[arg(long, value_name = "SIZE")]
    memory: Option<String>,

    /// Print JSON: verified, mode, from_lsn, to_lsn, seconds, rows, right, missing, altered, out_of_order, stale_keys, other, repeated,
    /// dead_lettered, skipped, not_judged, reasons, faults (verdict, table, id, position, topic, partition, offset, why), hint
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    run: Box<RunArgs>,
}
