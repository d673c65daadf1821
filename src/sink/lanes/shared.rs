//! What both threads of the hand-over see: what has come back, and whether the client may send.

use super::chunk::Chunk;
use super::hand_over::Run;
use crate::sink::hold::Hold;
use crate::sink::{Failure, Refused};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// A timer that is set this late is as good as none.
const LONGEST: Duration = Duration::from_hours(1);

/// What comes back.
#[derive(Debug, Default)]
pub(super) struct Back {
    /// Of these restarts; what earlier ones bring is dropped.
    pub(super) generation: u64,
    pub(super) runs: VecDeque<Run>,
    pub(super) refused: Vec<Refused>,
    pub(super) failed: Option<Failure>,
    pub(super) chunks: Vec<(Chunk, usize)>,
    pub(super) held: u64,
    /// Whether it was ever said that the destination is reached, or why not.
    pub(super) reached: bool,
    pub(super) blocked: Option<Failure>,
    /// What a lane waits for whose refused record is tried again.
    pub(super) obstacle: Option<Failure>,
    pub(super) problem: Option<String>,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) back: Mutex<Back>,
    /// Something has come back that was not looked at.
    pub(super) news: AtomicBool,
    /// Until when the client may send.
    hold: Hold,
    /// How many restarts there were, and after how many of them the client has ended.
    restarts: AtomicU64,
    ended: AtomicU64,
    /// The hold or the number of restarts has changed.
    changed: Notify,
    /// Nobody else can have sent what is committed after this position.
    pub(super) alone_from: AtomicU64,
}

impl Default for Shared {
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

impl Shared {
    pub(super) fn back(&self) -> MutexGuard<'_, Back> {
        self.back.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The client may send until then.
    pub(super) fn hold_until(&self, until: Option<Duration>) {
        let left = || self.hold.left().unwrap_or(Duration::MAX);
        let before = left();
        self.hold.set(until);
        // A client that sends finds a longer time when its timer runs out.
        if before.is_zero() || left() < before {
            self.changed.notify_one();
        }
    }

    /// The client has to end, for this restart.
    pub(super) fn end_client(&self, generation: u64) {
        self.restarts.store(generation, Ordering::Release);
        self.changed.notify_one();
    }

    /// The client has ended after this restart; another may begin.
    pub(super) fn client_ended(&self, generation: u64) {
        self.ended.store(generation, Ordering::Release);
    }

    /// Whether the client may neither send nor keep what it has under way.
    pub(super) fn is_cut(&self) -> bool {
        self.restarts.load(Ordering::Acquire) != self.ended.load(Ordering::Acquire) || !self.hold.is_on()
    }

    /// Waits until that may be so.
    pub(super) async fn may_be_cut(&self) {
        let left = self.hold.left().unwrap_or(LONGEST).min(LONGEST);
        // The moment itself is still within the hold.
        drop(tokio::time::timeout(left + Duration::from_millis(1), self.changed.notified()).await);
    }

    /// Waits until the hold or the number of restarts has changed.
    pub(super) async fn changes(&self) {
        self.changed.notified().await;
    }
}
