//! Records as data: cases that say what a table's rows become, held against the relay and against Debezium.
//!
//! In: the files of `tests/conformance`, whose format is in the README there; servers; the relay's binary. Out: what is
//! not as the files say. Expected bytes come from Postgres, by each case's oracle, or from Debezium; nothing here takes
//! one from the relay.
//!
//! ```text
//!  data ──▶ ground (Postgres, Kafka) ──▶ statements ──▶ relay ──▶ topics ──▶ compare
//!    ▲                    └──▶ oracle ──▶ expected bytes ─────────────────────┘
//!    └── printer (with --write)
//! ```

pub mod beside;
pub(crate) mod bytes;
pub mod compare;
pub mod data;
pub mod doors;
pub mod ground;
mod oracle;
pub mod printer;
pub mod suite;

pub use bytes::Bytes;
