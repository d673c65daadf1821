//! Positions: which rows were already received, which records are in flight, which LSN may be confirmed and when.
//!
//! In: begins, rows, commits, reports, keepalives. Out: what of a transaction is new, the LSN to confirm, when to say so. Pure: reads
//! no clock, sends nothing.

mod feedback;
mod ledger;
mod position;
mod resume;
#[cfg(test)]
mod tests;

pub use feedback::{Due, Feedback, Reached};
pub use ledger::{Keep, Ledger, OutOfOrder, Settled};
pub use position::{ParsePositionError, Position};
pub use resume::{BeginVerdict, Missing};
