//! One relay process: the real [`Relay`], and around it what the supervisor does between two connections.
//!
//! The supervisor itself needs sockets; what it decides (start over, follow a timeline, wait, give up) is done here with the
//! same calls in the same order.

use crate::ends::{SimClock, SimSink, SimStream};
use crate::nature::Bounds;
use crate::postgres::Walsender;
use crate::truth::DEAD_LETTERS;
use crate::wal::{PREFIX, published};
use crate::world::{Shared, World};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use walrelay::lsn::Lsn;
use walrelay::metrics::Metrics;
use walrelay::outbox::Mapping;
use walrelay::outbox::Outbox;
use walrelay::outbox::TableName;
use walrelay::pg::Recovery;
use walrelay::relay::BadRows;
use walrelay::relay::{BadRowAt, Ended, Identity, Relay, Why};
use walrelay::sink::{Failure, FailureClass};

/// Pause before the next attempt to connect.
const BACKOFF: Duration = Duration::from_millis(200);

/// As the supervisor looks at a stalled sink.
const STALLED_LOOK: Duration = Duration::from_millis(500);

pub(crate) struct Process {
    pub(crate) relay: Relay<SimSink, SimClock>,
    shared: Shared,
    stop: Arc<AtomicBool>,
    /// The timeline that the relay's positions belong to; `None` before the first connection.
    timeline: Option<usize>,
    wal_sender_timeout: Option<Duration>,
}

/// What became of a connection, and of the process.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The next connection, please.
    Lost,
    /// A clean stop: exit 0.
    Stopped,
    /// An end that may repeat records at the next start: exit 1.
    Failed { why: &'static str },
    /// Exit 2: this row.
    BadRow(Box<BadRowAt>),
    /// Killed.
    Killed,
}

impl Process {
    pub(crate) fn start(shared: &Shared, bounds: &Bounds) -> Self {
        let mapping = Mapping { message_prefixes: vec![PREFIX.to_owned()], ..Mapping::default() };
        let tables = vec![TableName { schema: "shop".to_owned(), name: "outbox".to_owned() }];
        let outbox = Outbox::new(mapping, tables).expect("the default topic");
        let metrics = Arc::new(Metrics::new("walrelay", "walrelay", Instant::now()));
        let stop = Arc::new(AtomicBool::new(false));
        let sink = SimSink::new(shared);
        let bad_rows = shared.with(|world| BadRows {
            fate: world.nature.bad_rows,
            at: world.decided.clone(),
            dead_letter_topic: DEAD_LETTERS.to_owned(),
        });
        let relay = Relay::new(outbox, sink, SimClock(shared.clone()), metrics, Arc::clone(&stop), bounds.limits)
            .with_bad_rows(bad_rows);
        let wal_sender_timeout = bounds.wal_sender_timeout;
        Self { relay, shared: shared.clone(), stop, timeline: None, wal_sender_timeout }
    }

    /// One connection, from its beginning to its end and what follows from that.
    pub(crate) fn connection(&mut self) -> Outcome {
        let stop = Arc::clone(&self.stop);
        self.shared.with(|world| {
            world.stop = Some(stop);
            world.counts.connections += 1;
        });
        let outcome = self.connection_or_stop();
        self.shared.with(|world| {
            let World { postgres, dice, now, .. } = world;
            if postgres.sender.is_some() {
                postgres.disconnected(dice, *now);
            }
            if world.crashed { Outcome::Killed } else { outcome }
        })
    }

    fn connection_or_stop(&mut self) -> Outcome {
        if self.relay.may_stop() {
            return self.stop_without_stream();
        }
        match self.acquire() {
            Ok(Some(stream)) => self.stream(stream),
            Ok(None) => self.wait(BACKOFF),
            Err(failure) => failed(&failure),
        }
    }

    /// As the supervisor's `acquire`; `None` when the server cannot be reached.
    fn acquire(&mut self) -> Result<Option<SimStream>, Failure> {
        let (up, timeline, left) = self.shared.with(|world| {
            world.step();
            let Self { timeline, .. } = self;
            let left = timeline.and_then(|timeline| world.postgres.left.get(timeline - 1).copied());
            (world.now >= world.postgres.down_until, world.postgres.timeline(), left)
        });
        if !up {
            return Ok(None);
        }
        if let Some(switch_point) = left {
            self.relay.timeline_left_at(switch_point)?;
        }
        self.timeline = Some(timeline);
        let binary = self.relay.outbox_mut().published(&published()).expect("tables that can be mapped");
        assert!(!binary, "no bytea here");
        let asked = self.relay.flush_lsn();
        let confirmed = self.shared.with(|world| world.take_slot(asked));
        let Some(confirmed) = confirmed else { return Ok(None) };
        if self.relay.is_exactly_once() {
            self.relay.identified(self.identity());
        }
        self.relay.acquired(confirmed);
        let flush_lsn = self.relay.flush_lsn();
        self.shared.with(|world| world.told = flush_lsn);
        Ok(Some(SimStream::new(&self.shared)))
    }

    /// As the supervisor asks for it once the slot is its own.
    fn identity(&self) -> Identity {
        self.shared.with(|world| {
            let left = world.postgres.left.iter().enumerate();
            Identity {
                system_identifier: "7".to_owned(),
                slot: "walrelay".to_owned(),
                timeline: u32::try_from(world.postgres.timeline()).unwrap(),
                history: left.map(|(place, left)| (u32::try_from(place).unwrap() + 1, *left)).collect(),
                flushed: world.postgres.wal.end,
                is_standby: false,
                source: "db:5432/shop".to_owned(),
            }
        })
    }

    fn stream(&mut self, mut stream: SimStream) -> Outcome {
        self.shared.with(|world| world.streaming = true);
        let ended = self.relay.stream(&mut stream, self.wal_sender_timeout);
        let killed = self.shared.with(|world| {
            world.streaming = false;
            world.crashed
        });
        drop(stream);
        self.shared.with(|world| world.log(&ended));
        if killed { Outcome::Killed } else { self.ended(ended) }
    }

    fn ended(&mut self, ended: Ended) -> Outcome {
        match ended {
            Ended::Stopped => self.finish(Outcome::Stopped),
            Ended::StopTimedOut { in_flight } => {
                assert!(self.relay.stop_timed_out() && in_flight == self.relay.in_flight());
                Outcome::Failed { why: "the stop timed out" }
            }
            Ended::Disconnected(error) => {
                assert_eq!(error.recovery(), Recovery::Reconnect, "{error}");
                self.disconnect();
                self.wait(BACKOFF)
            }
            Ended::Stalled => {
                self.disconnect();
                self.wait_for_sink()
            }
            Ended::SinkFailed(failure) => {
                self.disconnect();
                self.start_over(&failure)
            }
            Ended::BadRow(row) => self.finish(Outcome::BadRow(row)),
            Ended::PublicationChanged => Outcome::Lost,
            Ended::Unmappable(error) => panic!("{error}"),
            Ended::Protocol(error) => panic!("{error}"),
            Ended::StartOver(why) => {
                self.disconnect();
                self.start_over_for(why)
            }
            ended @ (Ended::Misplaced(_) | Ended::TransactionTooLong { .. }) => panic!("{ended:?}"),
        }
    }

    fn disconnect(&self) {
        self.shared.with(|world| {
            let World { postgres, dice, now, .. } = world;
            postgres.disconnected(dice, *now);
        });
    }

    /// As the supervisor's `finish`: the server has read everything, or is asked by another connection.
    fn finish(&self, outcome: Outcome) -> Outcome {
        let lsn = self.relay.flush_lsn();
        let heard = self.shared.with(|world| {
            world.postgres.read_inbox(world.now);
            world.postgres.slot.confirmed >= lsn
        });
        match outcome {
            Outcome::Stopped if !heard => return Outcome::Failed { why: "the stop was not heard" },
            Outcome::BadRow(row) if heard => {
                let slot = self.shared.with(|world| world.postgres.slot.confirmed);
                assert_eq!(row.confirmed, slot, "the slot is said to stand elsewhere");
                return Outcome::BadRow(row);
            }
            Outcome::BadRow(_) => {
                let alive = |world: &mut World| world.postgres.sender.as_ref().is_some_and(Walsender::is_alive);
                assert!(!self.shared.with(alive), "the server was not told where the bad row stands");
            }
            Outcome::Lost | Outcome::Stopped | Outcome::Failed { .. } | Outcome::Killed => {}
        }
        outcome
    }

    fn stop_without_stream(&self) -> Outcome {
        if self.relay.is_unfinished() { Outcome::Failed { why: "stopped without a stream" } } else { Outcome::Stopped }
    }

    fn wait_for_sink(&mut self) -> Outcome {
        if !self.relay.awaits_sink() {
            return self.wait(BACKOFF);
        }
        while self.relay.awaits_sink() && !self.relay.may_stop() {
            match self.wait(STALLED_LOOK) {
                Outcome::Lost => {}
                outcome @ (Outcome::Stopped | Outcome::Failed { .. } | Outcome::BadRow(_) | Outcome::Killed) => {
                    return outcome;
                }
            }
        }
        Outcome::Lost
    }

    fn start_over(&mut self, failure: &Failure) -> Outcome {
        if let Err(failure) = self.relay.start_over() {
            return failed(&failure);
        }
        if failure.class == FailureClass::Row { Outcome::Lost } else { self.wait(BACKOFF) }
    }

    fn start_over_for(&mut self, why: Why) -> Outcome {
        if let Err(failure) = self.relay.start_over() {
            return failed(&failure);
        }
        match why {
            Why::WholeFirst => Outcome::Lost,
            Why::OutOfTime(_) => self.wait(BACKOFF),
        }
    }

    /// As the supervisor's `idle`.
    fn wait(&mut self, duration: Duration) -> Outcome {
        if self.shared.with(|world| world.crashed) {
            return Outcome::Killed;
        }
        let Err(ended) = self.relay.idle(duration) else { return Outcome::Lost };
        match *ended {
            Ended::SinkFailed(_) | Ended::StartOver(_) => match self.relay.start_over() {
                Ok(()) => Outcome::Lost,
                Err(failure) => failed(&failure),
            },
            Ended::BadRow(row) => Outcome::BadRow(row),
            ended @ (Ended::Stopped
            | Ended::StopTimedOut { .. }
            | Ended::Disconnected(_)
            | Ended::Stalled
            | Ended::Unmappable(_)
            | Ended::PublicationChanged
            | Ended::Protocol(_)
            | Ended::Misplaced(_)
            | Ended::TransactionTooLong { .. }) => panic!("{ended:?} while there was no stream"),
        }
    }
}

fn failed(_failure: &Failure) -> Outcome {
    Outcome::Failed { why: "the sink could not be made anew" }
}

impl World {
    /// START_REPLICATION from `asked`, and the slot's position, asked for over another connection; `None` when that breaks.
    fn take_slot(&mut self, asked: Lsn) -> Option<Lsn> {
        let begin = self.postgres.start(asked, self.now);
        let confirmed = self.postgres.slot.confirmed;
        self.began = (begin, confirmed);
        self.truth.name(begin);
        self.forgotten = false;
        if self.calm_since.is_none() && self.dice.one_in(self.nature.no_control) {
            let Self { postgres, dice, now, .. } = self;
            postgres.disconnected(dice, *now);
            return None;
        }
        Some(confirmed)
    }
}
