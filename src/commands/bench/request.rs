//! The settings of a measurement.

use crate::commands::run::Limits;
use crate::pg::source::Source;
use crate::sink::destination::Destination;
use std::sync::Arc;

/// The settings of a measurement.
#[derive(Debug, Clone)]
pub struct BenchRequest {
    /// The database.
    pub source: Source,
    /// Bounds of time and memory.
    pub limits: Limits,
    /// Rows in the backlog; at least 1.
    pub rows: u64,
    /// The payload's size as text, nearly.
    pub payload_bytes: usize,
    /// The payload's type.
    pub payload_type: PayloadType,
    /// Rows to a transaction; at least 1.
    pub rows_per_transaction: u64,
    /// Partitions of the topic; at least 1.
    pub partitions: i32,
    /// Where records go; `None`: they are thrown away, for what Postgres and the relay can do alone.
    pub destination: Option<Arc<dyn Destination>>,
    /// Single-row transactions a second in the steady phase.
    pub rate: u32,
    /// How long the steady phase takes; 0: there is none.
    pub seconds: u32,
    /// Print JSON.
    pub json: bool,
}

/// The payload column's type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PayloadType {
    /// `jsonb`
    Jsonb,
    /// `json`
    Json,
    /// `text`
    Text,
    /// `bytea`
    Bytea,
}

impl PayloadType {
    /// Its name in SQL.
    pub const fn column(self) -> &'static str {
        match self {
            Self::Jsonb => "jsonb",
            Self::Json => "json",
            Self::Text => "text",
            Self::Bytea => "bytea",
        }
    }
}
