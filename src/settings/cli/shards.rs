//! The flags about shards. The doc comment of a field is its help text.

use clap::Args;

/// How many shards `setup` makes.
#[derive(Args, Clone, Default)]
#[command(next_help_heading = "Shards")]
pub(crate) struct SetupShardsArgs {
    /// Publications, slots and marks for N relays that share the rows by a hash of the key, 1 to 16 (Postgres 15 and later)
    #[arg(long, value_name = "N", conflicts_with_all = ["reshard", "backfill", "create_table", "role"])]
    shards: Option<String>,

    /// Move the rows of the shards that are there, or of the one slot, over to N shards: the old relays publish what was committed
    /// before, then the new ones begin. The old slots and publications are dropped
    #[arg(long, value_name = "N", conflicts_with_all = ["backfill", "create_table", "role"])]
    reshard: Option<String>,

    /// With --reshard, a slot that may be read with an old publication as well; repeatable
    #[arg(long, value_name = "SLOT", requires = "reshard")]
    also_read_by: Vec<String>,

    /// Column of the key that is hashed, as for run; empty for records without keys [default: aggregateid, aggregate_id]
    #[arg(long, value_name = "COLUMN")]
    key_column: Option<String>,

    /// Column of the id that is hashed where the key is null, as for run [default: id, event_id]
    #[arg(long, value_name = "COLUMN")]
    id_column: Option<String>,
}
