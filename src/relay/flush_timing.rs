//! Decides when the records that have gathered in the sink should leave.
//!
//! A sink gathers records into batches, and every batch costs both sides. Single rows now and then should leave at once; rows
//! of a live stream that never pauses, soon; rows of a backlog are old already, and gather for as long as the sink likes.
//! Live or backlog: the time from a transaction's commit to the walsender's sending tells, both by the server's clock.
//!
//! In: what came and when. Out: whether to tell the sink. Reads no clock, and costs a row two stores.

use crate::pgoutput::PgTime;
use crate::sink::Rows;
use std::time::{Duration, Instant};

/// The longest wait of a live stream's records, if the stream brings more all the time.
const GATHER: Duration = Duration::from_millis(2);

/// A row that the walsender sends so soon after its commit is live, in microseconds.
const LIVE_MICROS: i64 = 50_000;

/// A live stream, or one that has brought little, is idle once it has brought nothing for so long.
const DRY_AFTER: Duration = Duration::from_micros(200);

/// A backlog pauses when its server has to wait for a processor or a disk, and small batches would cost it more of these.
const DRY_AFTER_IN_BACKLOG: Duration = Duration::from_millis(2);

/// Records that wait so long in a full sink should leave, so that there is room again.
const STALE: Duration = Duration::from_millis(5);

/// So many records are no backlog, however old they are.
const FEW_RECORDS: u32 = 64;

/// Records enqueued since the sink was last asked to send them.
#[derive(Debug, Default)]
pub(super) struct FlushTiming {
    records: u32,
    /// When the first of them was seen.
    since: Option<Instant>,
    /// The commit time of the transaction that came last.
    commit_time: PgTime,
    /// The time at which the server sent the message that came last.
    sent_at: PgTime,
}

impl FlushTiming {
    /// A message came that the server sent at this time.
    #[inline]
    pub(super) fn sent(&mut self, at: PgTime) {
        self.sent_at = at;
    }

    /// A transaction began.
    #[inline]
    pub(super) fn began(&mut self, commit_time: PgTime) {
        self.commit_time = commit_time;
    }

    /// The sink has taken a record.
    #[inline]
    pub(super) fn enqueued(&mut self) {
        self.records = self.records.saturating_add(1);
    }

    /// Whether no record has gathered.
    pub(super) fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// Whether the records should leave although the stream is not idle.
    pub(super) fn is_due(&mut self, now: Instant) -> bool {
        if self.is_empty() {
            return false;
        }
        let since = *self.since.get_or_insert(now);
        self.is_live() && now.saturating_duration_since(since) >= GATHER
    }

    /// Whether the records should leave although they belong to a backlog: the sink is full, and may be small.
    pub(super) fn is_stale(&mut self, now: Instant) -> bool {
        !self.is_empty() && now.saturating_duration_since(*self.since.get_or_insert(now)) >= STALE
    }

    /// Returns after how long without bytes the stream counts as idle; zero if nothing has gathered.
    pub(super) fn dry_after(&self) -> Duration {
        match self.records {
            0 => Duration::ZERO,
            1..FEW_RECORDS => DRY_AFTER,
            _ if self.is_live() => DRY_AFTER,
            _ => DRY_AFTER_IN_BACKLOG,
        }
    }

    /// Returns the kind of rows that have gathered, if any, and begins again with none.
    pub(super) fn take(&mut self) -> Option<Rows> {
        self.since = None;
        let rows = if self.is_live() { Rows::Live } else { Rows::Backlog };
        Some(rows).filter(|_| std::mem::take(&mut self.records) > 0)
    }

    fn is_live(&self) -> bool {
        self.sent_at.0.saturating_sub(self.commit_time.0) < LIVE_MICROS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gathered(records: u32, age_micros: i64) -> FlushTiming {
        let mut timing = FlushTiming::default();
        timing.began(PgTime(1_000_000));
        timing.sent(PgTime(1_000_000 + age_micros));
        (0..records).for_each(|_| timing.enqueued());
        timing
    }

    /// Whether records are due so long after they were first seen.
    fn due(mut timing: FlushTiming, after: Duration) -> bool {
        let start = Instant::now();
        assert!(!timing.is_due(start));
        timing.is_due(start + after)
    }

    #[test]
    fn records_of_a_live_stream_that_never_pauses_leave_after_two_milliseconds() {
        assert!(!due(gathered(1, 300), GATHER.mul_f32(0.9)));
        assert!(due(gathered(1, 300), GATHER));
        assert!(due(gathered(1000, 300), GATHER));
    }

    #[test]
    fn a_backlog_gathers_as_long_as_the_sink_likes() {
        assert!(!due(gathered(1000, 60_000_000), Duration::from_secs(1)));
        assert_eq!(gathered(1000, 60_000_000).dry_after(), DRY_AFTER_IN_BACKLOG);
        assert_eq!(gathered(1000, 60_000_000).take(), Some(Rows::Backlog));
    }

    #[test]
    fn a_single_row_leaves_at_once_whatever_the_servers_clocks_say() {
        for age in [0, 60_000_000, -60_000_000, i64::MIN / 2, i64::MAX / 2] {
            assert_eq!(gathered(1, age).dry_after(), DRY_AFTER, "{age}");
        }
    }

    #[test]
    fn with_nothing_gathered_nothing_is_due_and_the_stream_need_not_be_idle() {
        let mut timing = gathered(0, 300);
        assert!(!due(FlushTiming::default(), Duration::from_secs(1)));
        assert_eq!(timing.dry_after(), Duration::ZERO);
        assert_eq!(timing.take(), None);
        timing.enqueued();
        assert_eq!(timing.take(), Some(Rows::Live));
        assert!(timing.is_empty());
    }

    #[test]
    fn in_a_full_sink_a_backlog_leaves_after_five_milliseconds() {
        let (mut timing, start) = (gathered(1000, 60_000_000), Instant::now());
        assert!(!timing.is_stale(start) && !timing.is_stale(start + STALE / 2));
        assert!(timing.is_stale(start + STALE));
        assert!(!FlushTiming::default().is_stale(start + STALE));
    }

    #[test]
    fn the_time_starts_over_once_the_sink_was_told() {
        let (mut timing, start) = (gathered(1, 300), Instant::now());
        assert!(!timing.is_due(start) && timing.is_due(start + GATHER));
        timing.take();
        timing.enqueued();
        assert!(!timing.is_due(start + GATHER * 2));
        assert!(timing.is_due(start + GATHER * 3));
    }
}
