//! Computes how long committed rows have waited, including those that Postgres has not sent.
//!
//! In: the end of the server's WAL at some moments, the confirmed position, and the commit time of the oldest transaction in flight.
//! Out: the age of the oldest committed row that may be unpublished.
//!
//! All rows that were committed before a moment are before the end of the WAL at that moment. So once that position is confirmed, all
//! of these rows are published. All rows that were committed before the oldest transaction in flight are published, too.
//! Invariant: the age may be too low by at most the time between two queries of the server. It may be too high if the unconfirmed WAL
//! has no rows of the outbox. This file queries no server and reads no clock.

use crate::lsn::Lsn;
use std::time::Duration;

/// The end of the server's WAL at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WalEnd {
    /// The position of the end.
    pub position: Lsn,
    /// A moment at which the WAL did not end behind that position, in microseconds since 1970.
    pub unix_micros: i64,
}

/// The figures about rows that wait to be published.
#[derive(Debug, Default)]
pub(super) struct Unpublished {
    /// All rows that were committed before this are published. Microseconds since 1970.
    published_until: Option<i64>,
    /// The oldest known end of the WAL that was not confirmed yet.
    oldest: Option<WalEnd>,
    /// The newest known end of the WAL.
    newest: Option<WalEnd>,
}

impl Unpublished {
    /// The server was queried.
    pub(super) fn wal_ends(&mut self, end: WalEnd, confirmed: Lsn) {
        self.drop_confirmed(confirmed);
        self.oldest.get_or_insert(end);
        self.newest = Some(end);
        self.drop_confirmed(confirmed);
    }

    /// The age of the oldest committed row that may be unpublished. Zero: there is none. `None`: not known. `oldest_commit`: the commit
    /// time of the oldest transaction in flight. `stream_time`: the latest that it has ever been.
    pub(super) fn age(
        &mut self,
        confirmed: Lsn,
        oldest_commit: Option<i64>,
        stream_time: Option<i64>,
        unix_micros: i64,
    ) -> Option<Duration> {
        self.drop_confirmed(confirmed);
        let since = match (oldest_commit, self.newest) {
            (Some(commit), _) => Some(commit),
            (None, Some(_)) if self.oldest.is_none() => Some(unix_micros),
            // The clock may have been set back since a transaction was committed.
            (None, Some(_)) => self.published_until.max(stream_time.filter(|time| *time <= unix_micros)),
            (None, None) => None,
        }?;
        Some(Duration::from_micros(u64::try_from(unix_micros.saturating_sub(since)).unwrap_or(0)))
    }

    fn drop_confirmed(&mut self, confirmed: Lsn) {
        let passed = |end: &WalEnd| end.position <= confirmed;
        if let Some(newest) = self.newest.filter(passed) {
            self.published_until = Some(newest.unix_micros);
            self.oldest = None;
        } else if let Some(oldest) = self.oldest.filter(passed) {
            self.published_until = Some(oldest.unix_micros);
            self.oldest = self.newest;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000;

    fn end(position: u64, second: i64) -> WalEnd {
        WalEnd { position: Lsn::new(position), unix_micros: second * SECOND }
    }

    /// Computes the age in seconds.
    #[track_caller]
    fn age(
        known: &mut Unpublished,
        confirmed: u64,
        in_flight: Option<i64>,
        stream: Option<i64>,
        now: i64,
    ) -> Option<u64> {
        let micros = |second: Option<i64>| second.map(|second| second * SECOND);
        known.age(Lsn::new(confirmed), micros(in_flight), micros(stream), now * SECOND).map(|age| age.as_secs())
    }

    #[test]
    fn nothing_is_known_before_the_first_look() {
        assert_eq!(age(&mut Unpublished::default(), 100, None, None, 50), None);
    }

    #[test]
    fn a_relay_that_has_confirmed_the_end_of_wal_has_no_row_waiting() {
        let mut known = Unpublished::default();
        known.wal_ends(end(100, 10), Lsn::new(100));
        assert_eq!(age(&mut known, 100, None, None, 19), Some(0));
        known.wal_ends(end(200, 20), Lsn::new(150));
        assert_eq!(
            age(&mut known, 150, None, None, 21),
            Some(11),
            "since the last moment that is known to be published"
        );
        assert_eq!(age(&mut known, 200, None, None, 22), Some(0));
    }

    #[test]
    fn a_backlog_ages_while_nothing_is_received() {
        let mut known = Unpublished::default();
        known.wal_ends(end(100, 10), Lsn::new(100));
        for second in [20, 30, 40] {
            known.wal_ends(end(100 + 10 * u64::try_from(second).unwrap(), second), Lsn::new(100));
        }
        assert_eq!(age(&mut known, 100, None, None, 3_610), Some(3_600));
    }

    #[test]
    fn a_backlog_shrinks_as_the_moments_of_its_looks_are_confirmed() {
        let mut known = Unpublished::default();
        known.wal_ends(end(100, 10), Lsn::new(100));
        known.wal_ends(end(200, 20), Lsn::new(100));
        known.wal_ends(end(300, 30), Lsn::new(100));
        assert_eq!(age(&mut known, 199, None, None, 31), Some(21));
        assert_eq!(age(&mut known, 200, None, None, 31), Some(11));
        known.wal_ends(end(400, 40), Lsn::new(250));
        assert_eq!(age(&mut known, 399, None, None, 41), Some(11));
        assert_eq!(age(&mut known, 400, None, None, 41), Some(0));
    }

    #[test]
    fn what_is_in_flight_is_older_than_what_waits_in_postgres() {
        let mut known = Unpublished::default();
        known.wal_ends(end(900, 100), Lsn::new(100));
        assert_eq!(age(&mut known, 100, Some(40), Some(40), 100), Some(60));
        assert_eq!(age(&mut known, 100, None, Some(70), 100), Some(30), "between two reads the stream's time says it");
        assert_eq!(age(&mut known, 100, None, None, 100), None, "a backlog of unknown age");
    }

    #[test]
    fn a_clock_that_was_put_back_hides_no_backlog() {
        let mut known = Unpublished::default();
        known.wal_ends(end(100, 10), Lsn::new(100));
        known.wal_ends(end(900, 90), Lsn::new(100));
        assert_eq!(age(&mut known, 100, None, Some(3_700), 100), Some(90));
    }

    #[test]
    fn a_server_whose_clock_is_ahead_has_no_row_waiting() {
        assert_eq!(age(&mut Unpublished::default(), 1, Some(50), None, 49), Some(0));
    }
}
