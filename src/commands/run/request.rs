//! The settings of `walrelay run`, which `check` uses too.

use crate::commands::setup::SetupRequest;
use crate::http::HttpAddress;
use crate::lsn::Lsn;
use crate::outbox::{Mapping, TableName, TablePatterns};
use crate::pg::shard::Shard;
use crate::pg::source::Source;
use crate::relay::{self, BadRows};
use crate::sink::destination::{Delivery, Destination};
use crate::sink::registry::Registry;
use std::sync::Arc;
use std::time::Duration;

/// The settings of a run.
#[derive(Debug, Clone)]
pub struct RunRequest {
    /// The database.
    pub source: Source,
    /// The publication.
    pub publication: String,
    /// The slot: `[a-z0-9_]{1,63}`.
    pub slot: String,
    /// Which shard it is, whose publication and slot these are; `None`: there are no shards.
    pub shard: Option<Shard>,
    /// Whether to make publication and slot first.
    pub setup: bool,
    /// Only these tables; empty: every table of the publication. Distinct.
    pub tables: Vec<TableName>,
    /// Those of `tables` that were given as `ONLY table`: their children by `INHERITS` are left out.
    pub without_children: Vec<TableName>,
    /// Whether rows are left out that a subscription applied.
    pub only_local: bool,
    /// The patterns that capture tables; the default captures every table. Not beside `tables`.
    pub table_patterns: TablePatterns,
    /// The slot at this position is read though nothing proves that it is the one that was read before.
    pub accept_slot_at: Option<Lsn>,
    /// Print rows from a temporary slot instead of publishing them.
    pub dry_run: bool,
    /// Where records go.
    pub destination: Arc<dyn Destination>,
    /// The registry with the numbers of schemas that values begin with; `None`: there is none.
    pub registry: Option<Registry>,
    /// How rows become records.
    pub mapping: Mapping,
    /// The actions for rows that cannot be published.
    pub bad_rows: BadRows,
    /// The end of a run that an operator must fix.
    pub on_stop: OnStop,
    /// How often a record may appear.
    pub delivery: Delivery,
    /// Where to serve HTTP; `None`: nowhere.
    pub http: Option<HttpAddress>,
    /// Bounds of time and memory.
    pub limits: Limits,
}

impl RunRequest {
    /// Returns what the run needs: its publication and its slot.
    pub(in crate::commands) fn setup_request(&self) -> SetupRequest {
        SetupRequest {
            source: self.source.clone(),
            publication: self.publication.clone(),
            slot: self.slot.clone(),
            tables: self.tables.clone(),
            without_children: self.without_children.clone(),
            apply: true,
            failover: false,
            role: None,
            create_table: false,
            shards: None,
            after_loss: false,
            published: false,
            yes: false,
            json: false,
            also_read_by: Vec::new(),
            typed_source: None,
        }
    }
}

/// Bounds of time and memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// How long a graceful shutdown waits for acknowledgements; zero: not at all.
    pub shutdown_timeout: Duration,
    /// How old the oldest record in flight may grow before the replication connection is closed; at least 100 ms.
    pub disconnect_after: Duration,
    /// With records in flight and none acknowledged for so long, the relay is not ready; at least 1 s.
    pub unready_after: Duration,
    /// Pause after a short read; zero: none, at most 100 ms.
    pub coalesce: Duration,
    /// Bytes in flight: 64 KiB to 2^31 - 1 KiB.
    pub max_in_flight: usize,
    /// Bytes of the largest change message accepted: 1 KiB to 1 GiB.
    pub max_row: usize,
}

impl Limits {
    /// Returns the limits of the loop.
    pub(crate) fn of_relay(&self) -> relay::Limits {
        let Self { coalesce, shutdown_timeout, disconnect_after, .. } = *self;
        relay::Limits { coalesce, shutdown_timeout, disconnect_after }
    }
}

/// The end of a run that an operator must fix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnStop {
    /// The process ends with exit code 2.
    #[default]
    Exit,
    /// It disconnects from Postgres and stays up to say why, until a signal ends it.
    StayUp,
}
