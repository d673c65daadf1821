//! One partition: what of it is under way, what waits, and what may be handed over next.
//!
//! ```text
//!              ┌────────── success ──────────┐
//!  Unproven ───┘  one record under way       ▼
//!     ▲  ▲                                Proven   as many as there are
//!     │  └── a pause, another producer ──────┤
//!     │                                      │ failure
//!     │        nothing is under way          ▼
//!     ├── it was not to blame ◄────────── Draining ──► Resting ──► Isolating ──► Held ──► Replaced
//!     └── calm for a while ◄──────────────────────────────────────── │  ▲ one request under way │
//!                                                                    └──┴──────── resolved ◄───┘
//! ```
//!
//! librdkafka builds no request for a partition of which [`PIPELINED`] messages or more have left and are not answered. What is handed
//! over to it all the same waits there, and as soon as it should have left, by a flush or by `linger.ms`, librdkafka's thread looks at
//! it again and again without a pause, until the broker has answered (`rd_kafka_toppar_producer_serve`: the wake-up time has passed).
//! With a slow broker that takes a whole core. So once live records should have left, those that follow wait here until the answers
//! come, and leave together. Records of a backlog gather in librdkafka.
//!
//! Invariants: in `Unproven` at most one record is under way; in `Draining`, `Resting`, `Held` and `Replaced` nothing is handed over;
//! in `Isolating` at most one request is; what waits stands in the order in which it was taken, and behind what is under way.
//! Pure: reads no clock.

use super::entries::{Sequence, Ticket};
use crate::sink::{Failure, FailureClass, OwnedRecord};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// A proof holds so long without a further success. A broker forgets a producer after a day (`producer.id.expiration.ms`), or when
/// the topic is recreated; a proof costs one round trip.
pub(super) const PROOF_HOLDS: Duration = Duration::from_secs(10);

/// Where nothing was answered for so long while records are under way, the broker may soon have forgotten the producer: far below Kafka's
/// `producer.id.expiration.ms`, a day.
pub(super) const FORGOTTEN_AFTER: Duration = Duration::from_hours(6);

/// A partition of which a record was refused goes back to its producer when no other was for so long.
pub(super) const CALM: Duration = Duration::from_secs(2);

/// Batches are as large as settings allow again when none was refused for so long.
pub(super) const WINDOW_HOLDS: Duration = Duration::from_mins(30);

/// Pauses before what failed for the topic's or the environment's sake is tried again.
pub(super) const RETRY: Duration = Duration::from_secs(1);

/// So many messages of a partition, or more, that have left and are not answered: nothing else of it leaves. Librdkafka's
/// `RD_KAFKA_IDEMP_MAX_INFLIGHT`, which it compares with messages.
pub(super) const PIPELINED: u32 = 5;

/// Records that were handed over and not told to leave since.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Gathering {
    records: u32,
    /// The count of [`Partitions::told_to_leave`](super::Partitions::told_to_leave) at that time.
    told: u64,
}

/// Where it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// The topic's number with the [`Clients`](super::Clients).
    pub topic: u32,
    /// From 0.
    pub partition: i32,
    /// Whose producer takes its records.
    pub producer: u8,
}

/// A record that waits.
#[derive(Debug)]
pub(super) struct Queued {
    pub(super) ticket: Ticket,
    pub(super) record: OwnedRecord,
    /// Its bytes on the wire, nearly.
    pub(super) bytes: u64,
}

/// A record whose hand-over failed.
#[derive(Debug)]
pub(super) struct Returned {
    pub(super) sequence: Sequence,
    pub(super) queued: Queued,
    /// For a reason that may be its own.
    pub(super) refused: bool,
}

#[derive(Debug)]
pub(super) enum State {
    /// The broker may not know the partition's producer here.
    Unproven,
    /// The producer's producer was successful here.
    Proven,
    /// Something failed, or the producer has another producer: what is under way is waited for.
    Draining,
    /// Nothing is tried before `until`.
    Resting { until: Instant, failure: Failure },
    /// The isolating producer takes its records, one request at a time.
    Isolating,
    /// The record in front was refused.
    Held { failure: Failure },
    /// A dead-letter record is under way elsewhere, in place of the one that was in front.
    Replaced,
}

/// The search for the record that is refused.
#[derive(Debug, Clone, Copy)]
pub(super) struct Search {
    /// So many in front hold one that is refused, as far as is known; 0: none does.
    pub(super) suspects: usize,
    /// The one request under way holds so many; 0: there is none.
    pub(super) attempt: usize,
    /// And so many bytes.
    pub(super) attempt_bytes: u64,
    /// The smallest batch of several that was refused, in bytes; 0: none was.
    pub(super) refused_bytes: u64,
    /// When something was refused last.
    pub(super) since: Instant,
    /// A single record was found since the search began.
    pub(super) found: bool,
    /// The isolating producer was successful here, so that the broker knows it: until then its requests hold one record.
    pub(super) proven: bool,
    /// The request under way is an earlier isolating producer's: its success proves nothing of the one that is there now.
    pub(super) outdated: bool,
}

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
        }
    }

    /// How many records the next request should hold; `waiting`: how many there are. librdkafka may cut what it is given into several
    /// requests: a broker that knows the producer takes none behind one that it has refused.
    pub(super) fn next(&self, waiting: usize) -> usize {
        let next = match self.suspects {
            _ if !self.proven => 1,
            0 => waiting,
            1 => 1,
            suspects => suspects / 2,
        };
        next.min(waiting)
    }

    /// A request was refused, of which so many records in front may be to blame.
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
    pub(super) place: Place,
    pub(super) state: State,
    pub(super) under_way: u32,
    pub(super) under_way_bytes: u64,
    /// When something of it was delivered last, when the first of what is under way was sent, or when its producer was replaced, so that
    /// what is under way is answered or given up soon. The latest of these.
    pub(super) moved: Instant,
    /// The last of those under way.
    pub(super) gathering: Gathering,
    /// How many times records had been told to leave when the first of the queue began to wait; `None`: all of it should leave.
    pub(super) waits_since: Option<u64>,
    pub(super) queue: VecDeque<Queued>,
    /// What failed, until nothing is under way.
    pub(super) returned: Vec<Returned>,
    /// The failure among them that says most.
    pub(super) cause: Option<Failure>,
    /// Of the last record that was taken.
    pub(super) taken: Sequence,
    /// Of the last record that was delivered.
    pub(super) delivered: Sequence,
    /// Counts in `Isolating`, and in what comes between two requests of a search.
    pub(super) search: Search,
    /// So many bytes under way at most, and until when: a larger batch was refused though none of its records is by itself.
    pub(super) window: Option<(u64, Instant)>,
    /// In `Replaced`: the partition that goes on with this one.
    pub(super) passes_on: Option<u32>,
    /// Why the topic or the environment did not take what is in front, until something of the partition is delivered.
    pub(super) obstacle: Option<Failure>,
    /// It is listed to be looked at.
    pub(super) listed: bool,
}

impl Partition {
    pub(super) fn new(place: Place, now: Instant) -> Self {
        Self {
            place,
            state: State::Unproven,
            under_way: 0,
            under_way_bytes: 0,
            moved: now,
            gathering: Gathering::default(),
            waits_since: None,
            queue: VecDeque::new(),
            returned: Vec::new(),
            cause: None,
            taken: Sequence::default(),
            delivered: Sequence::default(),
            search: Search::of(0, 0, now),
            window: None,
            passes_on: None,
            obstacle: None,
            listed: false,
        }
    }

    /// Whether the partition's producer may be handed one more record, of so many bytes, that comes next.
    #[inline]
    pub(super) fn may_send(&mut self, bytes: u64, now: Instant, told: u64) -> bool {
        match &self.state {
            State::Unproven => self.under_way == 0,
            State::Proven => {
                if self.under_way == 0 && now.saturating_duration_since(self.moved) >= PROOF_HOLDS {
                    self.state = State::Unproven;
                    return true;
                }
                (self.under_way < PIPELINED || self.left(told) < PIPELINED)
                    && (self.window.is_none() || self.fits_window(bytes, now))
            }
            State::Draining | State::Resting { .. } | State::Isolating | State::Held { .. } | State::Replaced => false,
        }
    }

    /// How many of those under way have left, as far as is known.
    #[inline]
    fn left(&self, told: u64) -> u32 {
        self.under_way - if self.gathering.told == told { self.gathering.records } else { 0 }
    }

    #[cold]
    fn fits_window(&mut self, bytes: u64, now: Instant) -> bool {
        self.window = self.window.filter(|(_, until)| now < *until);
        self.under_way == 0 || self.window.is_none_or(|(most, _)| self.under_way_bytes + bytes <= most)
    }

    /// What is in front is tried again after a pause: the topic or the environment did not take it.
    pub(super) fn rest(&mut self, now: Instant, failure: Failure) {
        self.obstacle = Some(failure.clone());
        self.state = State::Resting { until: now + RETRY, failure };
    }

    /// Whether the broker may soon have forgotten the producer that has records under way here.
    pub(super) fn is_forgotten(&self, now: Instant) -> bool {
        self.under_way > 0 && now.saturating_duration_since(self.moved) >= FORGOTTEN_AFTER
    }

    /// One record is under way.
    #[inline]
    pub(super) fn sent(&mut self, bytes: u64, now: Instant, told: u64) {
        if self.under_way == 0 {
            self.moved = now;
        }
        if self.gathering.told != told {
            self.gathering = Gathering { records: 0, told };
        }
        self.gathering.records += 1;
        self.under_way += 1;
        self.under_way_bytes += bytes;
        assert!(
            !matches!(self.state, State::Unproven) || self.under_way == 1,
            "two records of a partition that may not know the producer"
        );
    }

    /// One that was under way is not any more.
    #[inline]
    pub(super) fn answered(&mut self, bytes: u64) {
        assert!(self.under_way > 0, "more reports than records of a partition");
        self.under_way -= 1;
        self.under_way_bytes -= bytes;
        // Those before them are answered first.
        self.gathering.records = self.gathering.records.min(self.under_way);
    }

    /// What failed waits again, in front and in order. How many in front may be to blame.
    pub(super) fn take_back(&mut self) -> usize {
        let delivered = self.delivered;
        self.returned.sort_unstable_by_key(|returned| returned.sequence.distance_from(delivered));
        let suspects = self.returned.iter().rposition(|returned| returned.refused).map_or(0, |last| last + 1);
        while let Some(Returned { queued, .. }) = self.returned.pop() {
            self.queue.push_front(queued);
        }
        suspects
    }

    /// The record in front is dealt with: the rest of what is suspected comes next.
    pub(super) fn resume_search(&mut self, now: Instant) {
        let Search { suspects, found, .. } = self.search;
        let rest = suspects.saturating_sub(1);
        self.search = Search { found, ..Search::of(rest, 0, now) };
        self.state = State::Isolating;
    }

    /// What failed, and why; the failure that says most counts.
    pub(super) fn failed(&mut self, returned: Returned, failure: Failure) {
        self.returned.push(returned);
        if self.cause.as_ref().is_none_or(|cause| rank(failure.class) > rank(cause.class)) {
            self.cause = Some(failure);
        }
    }
}

fn rank(class: FailureClass) -> u8 {
    match class {
        FailureClass::Row => 3,
        FailureClass::Topic => 2,
        FailureClass::Environment | FailureClass::LogIn => 1,
        FailureClass::Client => 0,
    }
}
