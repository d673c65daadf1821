//! Computes the answers of `/livez` and `/readyz` from the figures and the time.
//!
//! The relay is live if its loop turns: a restart would not help. It is ready if a row that is committed now would arrive: it reads the
//! slot, sends status updates, and its records in flight are being acknowledged. An open connection alone does not make it ready.

use super::cells::lock;
use super::{Metrics, State};
use crate::pg::lookup;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// If the loop has not turned for so long, it hangs. It never waits for more than a second.
const TURN_WITHIN: Duration = Duration::from_secs(10);

/// That limit while the relay connects to Postgres. Each host may take its connect timeout (10 s by default), and each query up to
/// 30 s. A restart would not make the server answer.
const CONNECTED_WITHIN: Duration = Duration::from_mins(2);

/// If the last status update is older than this, three of them are missing, since one is due each second.
const STATUS_WITHIN: Duration = Duration::from_secs(3);

impl Metrics {
    /// Whether the loop turns. A relay that has stopped for good has no loop any more. It stays up to report why, and counts as live.
    ///
    /// # Errors
    /// The time for which the loop has not turned.
    pub fn live(&self, now: Instant) -> Result<(), String> {
        let within = match self.state() {
            State::Stopped => return Ok(()),
            State::Connecting | State::WaitingForSlot => CONNECTED_WITHIN,
            State::Streaming | State::Searching | State::Blocked | State::Stopping => TURN_WITHIN,
        };
        let silent = self.age(&self.turned, now).unwrap_or_else(|| self.since_start(now));
        if silent > within {
            return Err(format!("the main loop has not run for {} s", silent.as_secs()));
        }
        Ok(())
    }

    /// Whether a row that is committed now would arrive.
    ///
    /// # Errors
    /// The reason why it might not, for people.
    pub fn ready(&self, now: Instant) -> Result<(), String> {
        self.streaming(now)?;
        lock(&self.publication_gap).clone().map_or(Ok(()), Err)?;
        self.heard(now)?;
        self.acknowledging(now)
    }

    fn streaming(&self, now: Instant) -> Result<(), String> {
        let state = self.state();
        // During a search (state `careful`), rows are published slowly. If records are not acknowledged, the checks below show that.
        let is_silent = state == State::Blocked && self.only_silent.load(Relaxed);
        if is_silent || matches!(state, State::Streaming | State::Searching) {
            let obstacle = lock(&self.blocked_on).clone().or_else(|| lock(&self.unsent_row).clone());
            return obstacle.map_or(Ok(()), Err);
        }
        // An obstacle tells most. Unacknowledged records tell more than an error that may be over.
        let waits = || self.acknowledging(now).err().filter(|_| state == State::Blocked);
        let obstacle = lock(&self.blocked_on).clone().or_else(|| lock(&self.unsent_row).clone()).or_else(waits);
        // A look-up that lasts is what the relay waits for now.
        let obstacle = obstacle.or_else(|| lookup::silent(now));
        let reason = obstacle.or_else(|| self.problem_with_hint()).unwrap_or_else(|| state.sentence().to_owned());
        Err(format!("{}: {reason}", state.name()))
    }

    fn heard(&self, now: Instant) -> Result<(), String> {
        match self.age(&self.status_sent, now) {
            None => Err("no status update was sent to Postgres yet".to_owned()),
            Some(age) if age > STATUS_WITHIN => {
                Err(format!("the last status update was sent to Postgres {} s ago", age.as_secs()))
            }
            Some(_) => Ok(()),
        }
    }

    fn acknowledging(&self, now: Instant) -> Result<(), String> {
        let patience = self.unready_after;
        let within = |age: Option<Duration>| age.is_some_and(|age| age <= patience);
        let records = self.in_flight_records.load(Relaxed);
        let oldest = self.age(&self.oldest_in_flight, now);
        // Records that were sent just now, after an idle hour, could not be acknowledged yet.
        if records == 0 || within(self.age(&self.last_ack, now)) || oldest.is_none_or(|age| age <= patience) {
            return Ok(());
        }
        let waited = oldest.unwrap_or_default().as_secs();
        Err(format!(
            "{records} records in flight, none acknowledged in the last {} s, the oldest enqueued {waited} s ago",
            patience.as_secs()
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A relay that streams at second 100, and that moment.
    fn streaming() -> (Metrics, Instant) {
        let start = Instant::now();
        let metrics = Metrics::new("orders", "outbox_pub", start);
        let now = start + Duration::from_secs(100);
        metrics.set_state(State::Streaming);
        metrics.turned(now);
        metrics.status_sent(now);
        (metrics, now)
    }

    #[test]
    fn nothing_in_flight_and_nothing_ever_acknowledged_is_ready() {
        let (metrics, now) = streaming();
        assert_eq!(metrics.ready(now), Ok(()));
    }

    #[test]
    fn no_state_is_ready_in_which_no_rows_flow() {
        let (metrics, now) = streaming();
        for state in State::ALL {
            metrics.set_state(state);
            if matches!(state, State::Streaming | State::Searching) {
                assert_eq!(metrics.ready(now), Ok(()));
                continue;
            }
            let reason = metrics.ready(now).unwrap_err();
            assert!(reason.starts_with(state.name()), "{reason}");
        }
    }

    #[test]
    fn rows_that_reach_no_slot_are_the_reason_as_long_as_it_is_so() {
        let (metrics, now) = streaming();
        metrics.set_publication_gap(Some("table public.outbox is UNLOGGED".to_owned()));
        assert_eq!(metrics.ready(now), Err("table public.outbox is UNLOGGED".to_owned()));
        metrics.set_publication_gap(None);
        assert_eq!(metrics.ready(now), Ok(()));
    }

    #[test]
    fn the_obstacle_is_the_reason_before_the_last_error() {
        let (metrics, now) = streaming();
        metrics.set_state(State::Blocked);
        metrics.set_last_error(Some("an older problem".to_owned()));
        assert_eq!(metrics.ready(now), Err("blocked: an older problem".to_owned()));
        metrics.set_blocked_on(Some("topic orders does not exist".to_owned()));
        assert_eq!(metrics.ready(now), Err("blocked: topic orders does not exist".to_owned()));
    }

    #[test]
    fn what_is_blocked_by_no_known_obstacle_tells_of_what_is_in_flight() {
        let (metrics, now) = streaming();
        metrics.set_state(State::Blocked);
        metrics.set_last_error(Some("an older problem".to_owned()));
        metrics.set_in_flight(7, 700);
        metrics.set_oldest_in_flight(now.checked_sub(Duration::from_secs(31)));
        let reason = metrics.ready(now).unwrap_err();
        assert!(reason.starts_with("blocked: 7 records in flight, none acknowledged in the last 30 s"), "{reason}");
        metrics.set_blocked_on(Some("topic orders does not exist".to_owned()));
        assert_eq!(metrics.ready(now), Err("blocked: topic orders does not exist".to_owned()));
    }

    #[test]
    fn a_missing_status_update_is_not_ready() {
        let (metrics, now) = streaming();
        metrics.status_sent.clear();
        assert_eq!(metrics.ready(now), Err("no status update was sent to Postgres yet".to_owned()));
        metrics.status_sent(now);
        assert_eq!(metrics.ready(now + STATUS_WITHIN), Ok(()));
        let late = now + Duration::from_secs(4);
        assert_eq!(metrics.ready(late), Err("the last status update was sent to Postgres 4 s ago".to_owned()));
    }

    #[test]
    fn records_in_flight_need_an_acknowledgement_or_time_for_one() {
        let (metrics, now) = streaming();
        let seconds_ago = |n| now.checked_sub(Duration::from_secs(n)).unwrap();
        metrics.set_in_flight(7, 700);
        metrics.set_oldest_in_flight(Some(seconds_ago(30)));
        assert_eq!(metrics.ready(now), Ok(()));
        metrics.set_oldest_in_flight(Some(seconds_ago(31)));
        let reason = metrics.ready(now).unwrap_err();
        assert!(reason.starts_with("7 records in flight"), "{reason}");
        metrics.acknowledged(metrics.topic("a"), 1, 1, seconds_ago(30));
        assert_eq!(metrics.ready(now), Ok(()));
        metrics.acknowledged(metrics.topic("a"), 1, 1, seconds_ago(31));
        assert!(metrics.ready(now).is_err());
        metrics.set_in_flight(0, 0);
        assert_eq!(metrics.ready(now), Ok(()));
    }

    #[test]
    fn a_loop_that_hangs_is_not_live_in_any_state_that_has_a_loop() {
        let (metrics, now) = streaming();
        let late = now + Duration::from_secs(11);
        let much_later = now + Duration::from_secs(121);
        for state in State::ALL {
            metrics.set_state(state);
            let waits = matches!(state, State::Connecting | State::WaitingForSlot | State::Stopped);
            assert_eq!(metrics.live(now + TURN_WITHIN), Ok(()));
            assert_eq!(metrics.live(late).is_ok(), waits, "{state:?}");
            assert_eq!(metrics.live(much_later).is_ok(), state == State::Stopped, "{state:?}");
        }
    }

    #[test]
    fn a_loop_that_never_began_is_not_live_for_long() {
        let start = Instant::now();
        let metrics = Metrics::new("orders", "outbox_pub", start);
        assert_eq!(metrics.live(start), Ok(()));
        assert!(metrics.live(start + Duration::from_secs(121)).is_err());
    }
}
