//! The client of Postgres: connections, frames, the stream of a slot, and queries.
//!
//! This folder does not know what a row means. Only this folder uses the sockets and TLS of Postgres.

pub mod backfill_progress;
pub mod catalog;
pub mod connection;
pub mod copy_both;
pub mod details;
pub mod error;
pub mod frame;
mod large_object_state;
pub mod leaf_notes;
pub(crate) mod leaves;
mod lock_holder;
mod locked;
mod login;
pub mod lookup;
pub mod marker;
pub mod names;
pub(crate) mod pooler;
mod quoting;
pub mod relay_note;
pub mod replication;
pub mod rows;
mod scram;
pub mod server;
pub mod shape;
pub mod shard;
pub mod skipped_rows;
pub mod slot_sighting;
mod socket;
pub mod source;
mod stream;
pub mod table_tree;
mod tls;
mod window;

pub use connection::{Connection, Purpose, Row};
pub use copy_both::{PluginOptions, ReplicationStream, Upstream};
pub use error::{Error, Recovery, ServerError, sqlstate};
pub(crate) use large_object_state::right_to_note;
pub use lock_holder::LockHolder;
pub use quoting::{identifier, literal};
pub use stream::wait_for_session_ends;
