//! The flags of `dead-letters`.

use super::{CommonArgs, OfRunArgs};
use clap::Args;

pub(super) const HELP: &str = "\
Reads the dead-letter topic from its first record to the end that it has now. With --replay each record goes to the topic that it was \
meant for, with its key, payload, headers and time, and the partition that the key or --partition-column gave it; what fails again \
stays. What was published again is remembered in the dead-letter topic, and left out from then on. It can be stopped, killed and run \
again: nothing is lost, and a kill repeats a second's worth at most. One replay at a time. A replayed record comes after later \
records of its key.

  walrelay dead-letters
  walrelay dead-letters --show --id 4711
  walrelay dead-letters --replay";

/// Its exit codes.
pub(super) const CODES: [(u8, &str); 4] = [
    (0, ""),
    (1, "stopped or failed and another run continues it"),
    (2, "some failed again or an operator must act"),
    (64, ""),
];

/// The flags of `dead-letters`.
#[allow(clippy::struct_excessive_bools, reason = "each is a flag")]
#[derive(Args)]
pub(crate) struct DeadLettersArgs {
    /// Publish them again, each to the topic that it was meant for
    #[arg(long, conflicts_with = "show")]
    pub(crate) replay: bool,

    /// Show each record whole: key, headers and payload, too
    #[arg(long)]
    pub(crate) show: bool,

    /// Only records with this id; repeatable [default: all]
    #[arg(long, value_name = "ID")]
    id: Vec<String>,

    /// Also those that were published again before
    #[arg(long)]
    pub(crate) again: bool,

    /// Topic for records whose own topic is unknown or no valid name, with --replay [default: they stay]
    #[arg(long, value_name = "TOPIC", requires = "replay")]
    default_topic: Option<String>,

    /// Print JSON lines: at, time, id, table, position, topic, partition, error, left_out_bytes, replayed; with --show also
    /// key, headers, payload, base64; with --replay those that fail, with failure, and at the end replayed, failed
    #[arg(long)]
    pub(crate) json: bool,

    /// The dead-letter topic, as for run [default: SLOT.dead-letter]
    #[arg(long, value_name = "TOPIC", visible_alias = "topic")]
    dead_letter_topic: Option<String>,

    /// The relay's slot, after which the dead-letter topic is named [default: walrelay]
    #[arg(short = 'S', long, value_name = "NAME")]
    slot: Option<String>,

    #[command(flatten)]
    destination: OfRunArgs,

    /// Bytes in flight to the destination, as for run [default: 16MiB]
    #[arg(long, value_name = "SIZE", help_heading = "Operation")]
    max_in_flight: Option<String>,

    #[command(flatten)]
    common: CommonArgs,
}
