//! [`Partition`]: the state of one partition, its records under way, its waiting records, and which one may be handed over next.
//!
//! ```text
//!              ┌────────── success ──────────┐
//!  Unproven ───┘  one record under way       ▼
//!     ▲  ▲                                Proven   as many as there are
//!     │  └── a pause, another producer ──────┤
//!     │                                      │ failure
//!     │        nothing is under way          ▼
//!     ├── it was not to blame ◄────────── Draining ──► Resting ──► Searching ──► Held ──► Replaced
//!     └── calm for a while ◄──────────────────────────────────────── │  ▲ one request under way │
//!                                                                    └──┴──────── resolved ◄───┘
//! ```
//!
//! librdkafka builds no request for a partition while [`PIPELINED`] messages or more have left and are not answered. Further records wait
//! in librdkafka. Once these should have left, by a flush or by `linger.ms`, librdkafka's thread looks at them again and again without a
//! pause, until the broker has answered (`rd_kafka_toppar_producer_serve`: the wake-up time has passed). With a slow broker that takes a
//! whole core. So once live records should have left, later ones wait here until the answers come, and leave together. Records of a backlog
//! linger in librdkafka.
//!
//! Records whose partition is not chosen yet wait in a partition of their own, in the state `Unchosen`, from which they move to others.
//!
//! Invariants: in `Unproven` at most one record is under way; in `Unchosen`, `Draining`, `Resting`, `Held` and `Replaced` no record is handed over; in
//! `Searching` at most one request is under way; waiting records are in the order in which they were taken, behind those under way.
//! This file is pure and reads no clock.

use super::entries::{Sequence, Ticket};
use crate::sink::{Failure, OwnedRecord};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// How long a proof is valid without a further success. A broker forgets a producer after a day (`producer.id.expiration.ms`), or when the
/// topic is recreated. A new proof costs one round trip.
pub(super) const PROOF_HOLDS: Duration = Duration::from_secs(10);

/// If no record under way was answered for so long, the broker may soon forget the producer. This is far below Kafka's
/// `producer.id.expiration.ms`, a day.
pub(super) const FORGOTTEN_AFTER: Duration = Duration::from_hours(6);

/// A partition goes back to its own producer once no record of it was refused for so long.
pub(super) const CALM: Duration = Duration::from_secs(2);

/// After so long, batches may be as large as the settings allow again.
pub(super) const WINDOW_HOLDS: Duration = Duration::from_mins(30);

/// The pause before records are sent again after a failure of the topic or of the environment.
pub(super) const RETRY: Duration = Duration::from_secs(1);

/// The answer that made librdkafka take earlier records for delivered is reported right behind them, and so within this time.
pub(super) const IMPLIED_FOR: Duration = Duration::from_secs(1);

/// With so many unanswered messages of a partition, librdkafka sends no further request for it. This is its
/// `RD_KAFKA_IDEMP_MAX_INFLIGHT`, which it compares with the number of messages.
pub(super) const PIPELINED: u32 = 5;

/// The records that were handed over since the last flush: librdkafka lets them linger.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Lingering {
    records: u32,
    /// The count of [`Partitions::flushed`](super::Partitions::flushed) at that time.
    flushes: u64,
}

/// The number that stands for no partition: the topic's records wait there until their partitions are chosen.
pub const UNCHOSEN: i32 = -1;

/// The topic, number and producer of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PartitionTarget {
    /// The topic's number for the [`Clients`](super::Clients).
    pub topic: u32,
    /// The partition's number in the topic, from 0, or [`UNCHOSEN`].
    pub partition: i32,
    /// The number of the producer that takes its records.
    pub producer: u8,
}

/// A waiting record.
#[derive(Debug)]
pub(super) struct Queued {
    pub(super) ticket: Ticket,
    pub(super) record: OwnedRecord,
    /// An upper estimate of its bytes in a request.
    pub(super) bytes: u64,
}

/// A record that was under way and was not delivered.
#[derive(Debug)]
pub(super) struct Returned {
    pub(super) sequence: Sequence,
    pub(super) queued: Queued,
    /// The broker refused the record, and the record itself may be the cause.
    pub(super) refused: bool,
}

#[derive(Debug)]
pub(super) enum PartitionState {
    /// The records' partitions are not chosen yet: see `unchosen`. It is the state of [`UNCHOSEN`] alone.
    Unchosen,
    /// The broker may not know the producer in this partition.
    Unproven,
    /// The broker has accepted a record of the producer in this partition.
    Proven,
    /// A record failed, or the producer was replaced: the partition waits for the reports of all records under way.
    Draining,
    /// No record is sent before `until`.
    Resting { until: Instant },
    /// The search producer takes its records, one request at a time.
    Searching,
    /// The first record was refused, and waits for the relay's decision.
    Held { failure: Failure },
    /// A dead-letter record in another partition has replaced the first one, and waits for its report.
    Replaced,
}

/// The search for a refused record.
#[derive(Debug, Clone, Copy)]
pub(super) struct Search {
    /// Among the first so many records is a refused one, as far as is known. 0: there is none.
    pub(super) suspects: usize,
    /// How many records the request under way has. 0: there is none.
    pub(super) attempt: usize,
    /// The bytes of that request.
    pub(super) attempt_bytes: u64,
    /// The bytes of the smallest refused batch with several records. 0: none was refused.
    pub(super) refused_bytes: u64,
    /// When a record was last refused.
    pub(super) since: Instant,
    /// Whether the search has found a record that is refused alone.
    pub(super) found: bool,
    /// Whether the broker has accepted a request of the search producer in this partition. Until then its requests have one record.
    pub(super) proven: bool,
    /// Whether the request under way is of an earlier search producer. Its success proves nothing about the present one.
    pub(super) outdated: bool,
    /// The search divides the suspects into so many parts: halves; sixteenths after an answer that is in no list, since the broker may have
    /// appended what it did not accept.
    pub(super) parts: usize,
}

/// The parts of a search after an answer that is in no list.
pub(super) const UNLISTED_PARTS: usize = 16;

impl Search {
    pub(super) fn of(suspects: usize, refused_bytes: u64, since: Instant) -> Self {
        Self {
            suspects,
            attempt: 0,
            attempt_bytes: 0,
            refused_bytes,
            since,
            found: false,
            proven: false,
            outdated: false,
            parts: 2,
        }
    }

    /// How many of the `waiting` records the next request should have. librdkafka may split them into several requests: a broker that knows
    /// the producer accepts none behind a refused one.
    pub(super) fn next(&self, waiting: usize) -> usize {
        let next = match self.suspects {
            _ if !self.proven => 1,
            0 => waiting,
            1 => 1,
            suspects => (suspects / self.parts).max(1),
        };
        next.min(waiting)
    }

    /// Notes that a request was refused. One of its first `suspects` records is at fault.
    pub(super) fn refused(&mut self, suspects: usize, bytes: u64, now: Instant) {
        self.suspects = suspects;
        self.since = now;
        if suspects > 1 {
            self.refused_bytes = bytes;
        }
    }
}

#[derive(Debug)]
pub(super) struct Partition {
    pub(super) target: PartitionTarget,
    pub(super) state: PartitionState,
    pub(super) under_way: u32,
    pub(super) under_way_bytes: u64,
    /// The latest of these times: a record was delivered; the first record under way was sent; the producer was replaced, so that the
    /// records under way are soon reported or purged.
    pub(super) moved: Instant,
    /// The last ones of the records under way, which may still linger in librdkafka.
    pub(super) lingering: Lingering,
    /// The count of flushes when the first record of the queue began to wait. `None`: the whole queue should leave.
    pub(super) queued_at: Option<u64>,
    pub(super) queue: VecDeque<Queued>,
    /// The records that failed. They go back into the queue once no record is under way.
    pub(super) returned: Vec<Returned>,
    /// The most serious failure of `returned`.
    pub(super) cause: Option<Failure>,
    /// The number of the last record that was taken.
    pub(super) taken: Sequence,
    /// The number of the last record that was delivered.
    pub(super) delivered: Sequence,
    /// The offset of the last record that was delivered. -1: none was.
    pub(super) offset: i64,
    /// The records under way that librdkafka takes for delivered, and since when.
    pub(super) implied: Vec<(Ticket, Instant)>,
    /// The search. It counts in `Searching`, and in the states between two requests of a search.
    pub(super) search: Search,
    /// The most bytes under way, and until when: the broker refused a larger batch, and none of its records alone so far.
    pub(super) window: Option<(u64, Instant)>,
    /// The most bytes under way because of the suspects among the records under way. See `suspects`.
    pub(super) most: u64,
    /// The failure of the topic or of the environment for which the first record is sent again. It ends with the next delivery.
    pub(super) obstacle: Option<Failure>,
    /// Whether a search began that [`Event::Searching`](super::Event::Searching) has announced.
    pub(super) is_announced: bool,
    /// Whether the partition is in the list for `advance`.
    pub(super) listed: bool,
}

impl Partition {
    pub(super) fn new(target: PartitionTarget, now: Instant) -> Self {
        Self {
            target,
            state: if target.partition == UNCHOSEN { PartitionState::Unchosen } else { PartitionState::Unproven },
            under_way: 0,
            under_way_bytes: 0,
            moved: now,
            lingering: Lingering::default(),
            queued_at: None,
            queue: VecDeque::new(),
            returned: Vec::new(),
            cause: None,
            taken: Sequence::default(),
            delivered: Sequence::default(),
            offset: -1,
            implied: Vec::new(),
            search: Search::of(0, 0, now),
            window: None,
            most: u64::MAX,
            obstacle: None,
            is_announced: false,
            listed: false,
        }
    }

    /// Whether the next record, of so many bytes, may be handed to the partition's producer now.
    #[inline]
    pub(super) fn may_send(&mut self, bytes: u64, now: Instant, flushes: u64) -> bool {
        match &self.state {
            PartitionState::Unproven => self.under_way == 0,
            PartitionState::Proven => {
                if self.under_way == 0 && now.saturating_duration_since(self.moved) >= PROOF_HOLDS {
                    self.state = PartitionState::Unproven;
                    return true;
                }
                (self.under_way < PIPELINED || self.left(flushes) < PIPELINED)
                    && (self.window.is_none() || self.fits_window(bytes, now))
            }
            PartitionState::Unchosen
            | PartitionState::Draining
            | PartitionState::Resting { .. }
            | PartitionState::Searching
            | PartitionState::Held { .. }
            | PartitionState::Replaced => false,
        }
    }

    /// How many of the records under way have left, as far as is known.
    #[inline]
    fn left(&self, flushes: u64) -> u32 {
        self.under_way - if self.lingering.flushes == flushes { self.lingering.records } else { 0 }
    }

    #[cold]
    fn fits_window(&mut self, bytes: u64, now: Instant) -> bool {
        self.window = self.window.filter(|(_, until)| now < *until);
        self.under_way == 0 || self.window.is_none_or(|(most, _)| self.under_way_bytes + bytes <= most)
    }

    /// Whether a record may be handed over beside those under way, as far as suspects are concerned. `most`: the limit for the record itself.
    #[inline]
    pub(super) fn fits_search(&self, bytes: u64, most: u64) -> bool {
        self.under_way == 0 || self.under_way_bytes + bytes <= most.min(self.most)
    }

    /// Lets the partition rest: the topic or the environment did not take its first record.
    pub(super) fn rest(&mut self, now: Instant, failure: Failure) {
        self.obstacle = Some(failure);
        self.goes_on(PartitionState::Resting { until: now + RETRY });
    }

    /// Sets the state of a partition that goes on. Records without a partition go on waiting for one.
    pub(super) fn goes_on(&mut self, state: PartitionState) {
        self.state = if self.target.partition == UNCHOSEN { PartitionState::Unchosen } else { state };
    }

    /// Lets the partition rest for so long: its first record is refused alone, by an answer that is in no list.
    pub(super) fn rest_alone(&mut self, now: Instant, pause: Duration, failure: Failure) {
        self.obstacle = Some(failure);
        self.search.suspects = self.search.suspects.max(1);
        self.state = PartitionState::Resting { until: now + pause };
    }

    /// Whether the broker may soon forget the producer of the records under way.
    pub(super) fn is_forgotten(&self, now: Instant) -> bool {
        self.under_way > 0 && now.saturating_duration_since(self.moved) >= FORGOTTEN_AFTER
    }

    /// Notes that one more record is under way. `most`: as in [`Partition::fits_search`].
    #[inline]
    pub(super) fn sent(&mut self, bytes: u64, most: u64, now: Instant, flushes: u64) {
        if self.under_way == 0 {
            (self.moved, self.most) = (now, u64::MAX);
        }
        self.most = self.most.min(most);
        if self.lingering.flushes != flushes {
            self.lingering = Lingering { records: 0, flushes };
        }
        self.lingering.records += 1;
        self.under_way += 1;
        self.under_way_bytes += bytes;
        assert!(
            !matches!(self.state, PartitionState::Unproven) || self.under_way == 1,
            "two records of a partition that may not know the producer"
        );
    }

    /// Notes that a record is not under way any more.
    #[inline]
    pub(super) fn answered(&mut self, bytes: u64) {
        assert!(self.under_way > 0, "more reports than records of a partition");
        self.under_way -= 1;
        self.under_way_bytes -= bytes;
        // They are answered last.
        self.lingering.records = self.lingering.records.min(self.under_way);
    }

    /// Puts the failed records back into the queue, in front and in order. Returns how many of the first records may be at fault.
    pub(super) fn take_back(&mut self) -> usize {
        let delivered = self.delivered;
        self.returned.sort_unstable_by_key(|returned| returned.sequence.distance_from(delivered));
        let suspects = self.returned.iter().rposition(|returned| returned.refused).map_or(0, |last| last + 1);
        while let Some(Returned { queued, .. }) = self.returned.pop() {
            self.queue.push_front(queued);
        }
        suspects
    }

    /// Continues behind the first record, which is resolved, with the search for other suspects.
    pub(super) fn resume(&mut self, now: Instant) {
        let Search { suspects, found, .. } = self.search;
        let rest = suspects.saturating_sub(1);
        self.search = Search { found, ..Search::of(rest, 0, now) };
        self.goes_on(PartitionState::Searching);
    }

    /// Notes a failed record. The most serious failure counts.
    pub(super) fn failed(&mut self, returned: Returned, failure: Failure) {
        self.returned.push(returned);
        if self.cause.as_ref().is_none_or(|cause| failure.class.rank() > cause.class.rank()) {
            self.cause = Some(failure);
        }
    }
}
