//! The hand-over between the relay's thread and the client's: chunks of records one way, reports and empty chunks the other. This file has what
//! passes between both, and the client's permission to send.
//!
//! ```text
//!   relay's thread                     │                client's thread
//!   Sender: record ─▶ chunk ───────────┼──▶ Receiver: queue ─▶ batch ─▶ destination
//!           reports ◀── one lock a poll┼──── outcome ◀────────────────────────┘
//! ```
//!
//! Invariants: the only work for a single row is its copy into a chunk that is used again; both sides together hold less than the bound,
//! unless one record alone is larger.

use super::chunk::Chunk;
use crate::sink::hold::Hold;
use crate::sink::{Delivered, Failure, RefusalId, Refused, TriedAlone};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// The most bytes of a chunk with several records. A larger record has a chunk of its own.
pub(super) const CHUNK_BYTES: usize = 64 << 10;

/// The room that an empty chunk keeps, at most. Only a single large record can have needed more.
pub(super) const KEPT_BYTES: usize = CHUNK_BYTES;

/// The memory of a record beyond its bytes: its entries in chunk and queue, and what a client keeps of it.
pub const RECORD_OVERHEAD_BYTES: u64 = 256;

/// The longest timer. The loop that waits on it sets it again.
const LONGEST: Duration = Duration::from_hours(1);

/// A message to the client's side.
#[derive(Debug)]
pub(super) enum Message {
    Records(Chunk),
    Resolve(RefusalId, Decision),
    /// The client has to end. `ended` hears when it has.
    Restart {
        generation: u64,
        ended: SyncSender<()>,
    },
}

#[derive(Debug)]
pub(super) enum Decision {
    Retry,
    Skip,
    /// A chunk with one record.
    ReplaceWith(Chunk),
}

/// Delivered records with equal tokens, one after the other.
#[derive(Debug, Clone, Copy)]
pub(super) struct DeliveredRun {
    pub(super) delivered: Delivered,
    pub(super) held_bytes: u64,
}

/// Reports and problems on their way back to the relay.
#[derive(Debug, Default)]
pub(super) struct Back {
    /// How many restarts there were. Reports from before the last one are dropped.
    pub(super) generation: u64,
    pub(super) runs: VecDeque<DeliveredRun>,
    pub(super) refused: Vec<Refused>,
    pub(super) failed: Option<Failure>,
    pub(super) chunks: Vec<(Chunk, usize)>,
    pub(super) held: u64,
    /// Whether the client has ever said that it reached the destination, or why it could not.
    pub(super) reached: bool,
    pub(super) blocked: Option<Failure>,
    /// The failure of a key whose refused or postponed record is tried again, if there is one.
    pub(super) obstacle: Option<Failure>,
    pub(super) problem: Option<String>,
    /// The record that is sent alone for an answer that is in no list.
    pub(super) tried_alone: Option<TriedAlone>,
}

/// The state that both threads share.
#[derive(Debug)]
pub(super) struct SharedState {
    pub(super) back: Mutex<Back>,
    /// Something has come back that the relay's side has not taken yet.
    pub(super) news: AtomicBool,
    /// Until when the client may send.
    hold: Hold,
    /// How many restarts the relay has asked for.
    restarts: AtomicU64,
    /// The last restart for which the client has ended.
    ended: AtomicU64,
    /// Signalled when the hold or the number of restarts changes.
    changed: Notify,
    /// No other relay can have sent a row that was committed after this position.
    pub(super) alone_from: AtomicU64,
}

impl Default for SharedState {
    fn default() -> Self {
        Self {
            back: Mutex::default(),
            news: AtomicBool::default(),
            hold: Hold::default(),
            restarts: AtomicU64::default(),
            ended: AtomicU64::default(),
            changed: Notify::default(),
            alone_from: AtomicU64::new(u64::MAX),
        }
    }
}

impl SharedState {
    pub(super) fn back(&self) -> MutexGuard<'_, Back> {
        self.back.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the client send until then.
    pub(super) fn hold_until(&self, until: Option<Duration>) {
        let left = || self.hold.left().unwrap_or(Duration::MAX);
        let before = left();
        self.hold.set(until);
        // A client that sends finds a longer time when its timer runs out.
        if before.is_zero() || left() < before {
            self.changed.notify_one();
        }
    }

    /// Asks the client to end for this restart.
    pub(super) fn end_client(&self, generation: u64) {
        self.restarts.store(generation, Ordering::Release);
        self.changed.notify_one();
    }

    /// The client has ended for this restart. Another may begin.
    pub(super) fn client_ended(&self, generation: u64) {
        self.ended.store(generation, Ordering::Release);
    }

    /// Whether the client has to be dropped, with the records that it has under way.
    pub(super) fn is_cut(&self) -> bool {
        self.restarts.load(Ordering::Acquire) != self.ended.load(Ordering::Acquire) || !self.hold.is_on()
    }

    /// Waits until [`SharedState::is_cut`] may have become true.
    pub(super) async fn may_be_cut(&self) {
        let left = self.hold.left().unwrap_or(LONGEST).min(LONGEST);
        // At the moment itself, the hold has not run out yet.
        drop(tokio::time::timeout(left + Duration::from_millis(1), self.changed.notified()).await);
    }

    /// Waits until the hold or the number of restarts changes.
    pub(super) async fn changes(&self) {
        self.changed.notified().await;
    }
}
