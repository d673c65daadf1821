//! Decides when a status update is due.
//!
//! In: the position that may be confirmed, the server's requests, the time. Out: the action that is due ([`Due`]). This file reads no
//! clock and sends nothing.
//! Invariants: an update is due at least every second, whatever the destination does, so a stalled broker never costs the replication
//! connection. An update never has a position whose records are not all acknowledged.
//! Specification: PostgreSQL manual, section 54.4, "Standby status update".

use crate::lsn::Lsn;
use std::time::{Duration, Instant};

/// The longest silence towards the server. The server ends the connection after `wal_sender_timeout`, 60 s by default.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// The least time between two updates if only the position moved.
const MOVED: Duration = Duration::from_millis(100);

/// The least time between two such updates if [`FAR`] or more records were acknowledged since the last one.
const MOVED_FAR: Duration = Duration::from_millis(10);

/// So many acknowledged records are worth an early update. If the relay crashes, the records that no update has reported repeat. An
/// update costs relay and walsender about as much as one row that comes alone. So at most one update for each 50 records costs two
/// hundredths more at most, and nothing at up to 500 rows a second.
const FAR: u64 = 50;

/// The progress up to which everything is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reached {
    /// The position to confirm.
    pub flush_lsn: Lsn,
    /// The number of records acknowledged since any fixed start. The records that no update has reported repeat after a crash.
    pub records: u64,
}

/// Decides when a status update is due, on one connection.
#[derive(Debug)]
pub struct Feedback {
    /// The progress that the last update reported, and its time. `None` before the first update.
    sent: Option<(Reached, Instant)>,
    /// The time between the last update and the one before it.
    last_gap: Duration,
    /// The server asked for an answer and has not had one.
    reply_requested: bool,
    /// When the relay last received bytes from the server.
    heard: Instant,
    /// How long the server may be silent. `None`: indefinitely.
    patience: Option<Duration>,
    /// The relay has asked the server for an answer, and has received nothing since.
    asked: bool,
}

/// The action that is due on the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// No action.
    Nothing,
    /// Send a status update.
    Status,
    /// Send a status update that asks for an answer, since the server has been silent for half of its time.
    StatusAsking,
    /// The server has been silent for all of its time. The connection counts as broken.
    GiveUp,
}

impl Feedback {
    /// Starts at `now`, on a new connection to a server that may be silent for `patience`.
    pub fn new(now: Instant, patience: Option<Duration>) -> Self {
        Self { sent: None, last_gap: Duration::ZERO, reply_requested: false, heard: now, patience, asked: false }
    }

    /// The server sent bytes, or may have sent some while the relay did not read the socket.
    pub fn heard(&mut self, now: Instant) {
        self.heard = now;
        self.asked = false;
    }

    /// The server wants an answer.
    pub fn requested(&mut self) {
        self.reply_requested = true;
    }

    /// Returns the action that is due.
    pub fn due(&self, now: Instant, reached: Reached) -> Due {
        match self.silence(now) {
            Due::Nothing if self.status_due(now, reached) => Due::Status,
            due @ (Due::Nothing | Due::Status | Due::StatusAsking | Due::GiveUp) => due,
        }
    }

    fn silence(&self, now: Instant) -> Due {
        let Some(patience) = self.patience else { return Due::Nothing };
        let silent = now.saturating_duration_since(self.heard);
        if silent >= patience {
            Due::GiveUp
        } else if silent >= patience / 2 && !self.asked {
            Due::StatusAsking
        } else {
            Due::Nothing
        }
    }

    fn status_due(&self, now: Instant, reached: Reached) -> bool {
        let Some((last, at)) = self.sent else { return true };
        let since = now.saturating_duration_since(at);
        let is_far = reached.records.saturating_sub(last.records) >= FAR;
        let moved = if is_far { MOVED_FAR } else { MOVED };
        self.reply_requested || since >= HEARTBEAT || (reached.flush_lsn > last.flush_lsn && since >= moved)
    }

    /// The relay sent an update that reports `reached`. With `asking`, it asks for an answer.
    pub fn sent(&mut self, now: Instant, reached: Reached, asking: bool) {
        self.last_gap = self.sent.map_or(Duration::ZERO, |(_, at)| now.saturating_duration_since(at));
        self.sent = Some((reached, now));
        self.reply_requested = false;
        self.asked |= asking;
    }

    /// How long the server heard nothing before the last update, or has heard nothing since. A relay that was frozen sends an update
    /// before it reads that the server has given up.
    pub fn unheard_for(&self, now: Instant) -> Duration {
        let since = self.sent.map_or(Duration::ZERO, |(_, at)| now.saturating_duration_since(at));
        since.max(self.last_gap)
    }

    /// The position that the last update confirmed.
    pub fn confirmed(&self) -> Option<Lsn> {
        self.sent.map(|(last, _)| last.flush_lsn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Option<Duration> = Some(Duration::from_mins(1));

    fn at(lsn: u64) -> Reached {
        Reached { flush_lsn: Lsn::new(lsn), records: 0 }
    }

    fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    #[test]
    fn the_first_update_goes_out_at_once_and_then_one_each_second() {
        let start = Instant::now();
        let mut feedback = Feedback::new(start, TIMEOUT);
        assert_eq!(feedback.due(start, at(1)), Due::Status);
        feedback.sent(start, at(1), false);
        assert_eq!(feedback.due(start + ms(999), at(1)), Due::Nothing);
        assert_eq!(feedback.due(start + ms(1000), at(1)), Due::Status);
    }

    #[test]
    fn a_moved_position_is_reported_after_a_tenth_of_a_second() {
        let start = Instant::now();
        let mut feedback = Feedback::new(start, TIMEOUT);
        feedback.sent(start, at(1), false);
        assert_eq!(feedback.due(start + ms(99), at(2)), Due::Nothing);
        assert_eq!(feedback.due(start + ms(100), at(2)), Due::Status);
    }

    #[test]
    fn fifty_records_are_worth_an_update_after_a_hundredth_of_a_second() {
        let start = Instant::now();
        let mut feedback = Feedback::new(start, TIMEOUT);
        let reached = |lsn, records| Reached { flush_lsn: Lsn::new(lsn), records };
        feedback.sent(start, reached(1, 1000), false);
        assert_eq!(feedback.due(start + ms(9), reached(2, 5000)), Due::Nothing, "however many");
        assert_eq!(feedback.due(start + ms(10), reached(2, 1049)), Due::Nothing);
        assert_eq!(feedback.due(start + ms(10), reached(2, 1050)), Due::Status);
        assert_eq!(feedback.due(start + ms(10), reached(1, 1050)), Due::Nothing, "nothing to confirm");
        feedback.sent(start + ms(10), reached(2, 1050), false);
        assert_eq!(feedback.due(start + ms(20), reached(3, 1051)), Due::Nothing);
    }

    #[test]
    fn a_servers_question_is_answered_at_once_and_once() {
        let start = Instant::now();
        let mut feedback = Feedback::new(start, TIMEOUT);
        feedback.sent(start, at(1), false);
        feedback.requested();
        assert_eq!(feedback.due(start, at(1)), Due::Status);
        feedback.sent(start, at(1), false);
        assert_eq!(feedback.due(start, at(1)), Due::Nothing);
    }

    #[test]
    fn a_silent_server_is_asked_after_half_its_timeout_and_given_up_after_the_whole() {
        let start = Instant::now();
        let mut feedback = Feedback::new(start, TIMEOUT);
        feedback.sent(start + ms(29_900), at(1), false);
        assert_eq!(feedback.due(start + ms(30_000), at(1)), Due::StatusAsking);
        feedback.sent(start + ms(30_000), at(1), true);
        assert_eq!(feedback.due(start + ms(30_001), at(1)), Due::Nothing);
        assert_eq!(feedback.due(start + ms(60_000), at(1)), Due::GiveUp);
        feedback.heard(start + ms(60_000));
        assert_eq!(feedback.due(start + ms(60_001), at(1)), Due::Status);
    }

    #[test]
    fn without_a_timeout_the_server_may_be_silent_indefinitely() {
        let start = Instant::now();
        let mut feedback = Feedback::new(start, None);
        feedback.sent(start + ms(999_999_900), at(1), false);
        assert_eq!(feedback.due(start + ms(1_000_000_000), at(1)), Due::Nothing);
    }

    #[test]
    fn the_time_in_which_the_server_heard_nothing_is_known_behind_the_update_that_ends_it() {
        let start = Instant::now();
        let mut feedback = Feedback::new(start, TIMEOUT);
        assert_eq!(feedback.unheard_for(start + ms(500)), Duration::ZERO);
        feedback.sent(start, at(1), false);
        assert_eq!(feedback.unheard_for(start + ms(500)), ms(500));
        feedback.sent(start + ms(70_000), at(1), false);
        assert_eq!(feedback.unheard_for(start + ms(70_001)), ms(70_000));
        feedback.sent(start + ms(71_000), at(1), false);
        assert_eq!(feedback.unheard_for(start + ms(71_001)), ms(1_000));
    }
}
