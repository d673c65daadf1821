//! The commands, one file for each.
//!
//! In: a request, validated, and somewhere to write. Out: what was found or done as text, or an error with its exit code and
//! what fixes it. Everything goes over [`pg::Connection`](crate::pg::Connection), the client that the relay uses, so that
//! what a command sees is what a run gets. What is changed is said; each command can be run again.

pub mod backfill;
pub mod bench;
mod carrier;
pub mod check;
pub mod dead_letters;
mod dialogue;
mod error;
mod exit;
mod notify;
mod other_readers;
mod output;
mod progress_bar;
pub mod prune;
mod row_noter;
pub mod run;
pub mod setup;
mod shards;
mod signals;
pub mod status;
pub mod teardown;
pub mod verify;

pub use carrier::Carrier;
pub use dialogue::Dialogue;
pub use error::{CommandCause, CommandError};
pub use exit::{EXIT_CODES, ExitCode, exit_codes};
pub use signals::{end, stop_on_signal};

/// Columns that say how old a row is, in the order in which they are tried.
const AGE_COLUMNS: [&str; 4] = ["created_at", "createdat", "timestamp", "occurred_at"];

#[cfg(test)]
mod tests;
