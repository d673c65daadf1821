//! What walrelay's tests, demo, chaos rounds and benchmarks stand on.
//!
//! Real Postgres and Kafka on a bare machine, without root and without containers; the relay as a process; load that
//! knows its own truth; and the comparison of that truth with what a consumer reads. It runs the relay's binary by
//! path and never links it.
//!
//! ```text
//!  provision ─▶ postgres, kafka ─▶ shop writes ──▶ relay ──▶ consume ─▶ truth
//!                     ▲                                ▲
//!                     └─────────────── tap ────────────┘   (cuts, delays, stalls)
//! ```

pub mod account;
pub mod apart;
pub mod arrivals;
pub mod background;
pub mod brokers;
pub mod cluster;
pub mod conformance;
pub mod consume;
pub mod debezium;
pub mod gate;
pub mod http;
pub mod kafka;
mod listener;
pub mod objector;
pub mod pgbouncer;
pub mod postgres;
pub mod process;
pub mod provision;
pub mod refuser;
pub mod relay;
pub mod run_dir;
pub mod sdk;
pub mod secure;
pub mod servers;
pub mod service;
pub mod shop;
pub mod stage;
pub mod tap;
pub mod tokens;
pub mod truth;
pub mod versions;
pub mod witness;

/// The top of the repository.
pub fn repository() -> std::path::PathBuf {
    let dev = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    dev.parent().unwrap_or(dev).to_owned()
}

/// Settings of a server, as its options have them.
pub fn settings(given: &[(&str, &str)]) -> Vec<(String, String)> {
    given.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}
