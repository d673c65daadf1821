//! Positions: which rows were already received, which records are in flight, which LSN may be confirmed and when.
//!
//! In: begins, rows, commits, reports, keepalives. Out: which rows of a transaction are new, which LSN to confirm, and when. Pure: this
//! folder reads no clock and sends nothing.

mod feedback;
mod ledger;
mod resume;
#[cfg(test)]
mod tests;

pub use feedback::{Due, Feedback, Reached};
pub use ledger::{Keep, Ledger, OutOfOrder, Settled};
pub use resume::{BeginVerdict, Missing};
