//! One relay process: the real [`Supervisor`] with its [`Relay`], between a scripted server and a scripted broker.
//!
//! What the real server's side asks of a catalogue before it takes a slot is left out here; its order of calls is the same.

use crate::ends::{Killed, SimClock, SimSink, SimStream, broken};
use crate::lanes::Mutant;
use crate::machines::{MACHINES, Shared};
use crate::nature::Bounds;
use crate::noter::SimNoter;
use crate::postgres::{BEGIN, Walsender};
use crate::truth::DEAD_LETTERS;
use crate::wal::{PREFIX, published};
use crate::world::World;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use walrelay::lsn::Lsn;
use walrelay::metrics::Metrics;
use walrelay::outbox::Outbox;
use walrelay::outbox::TableName;
use walrelay::outbox::{Mapping, Timestamp};
use walrelay::pg::Error;
use walrelay::relay::BadRows;
use walrelay::relay::{
    ASKS_EVERY, AskHolder, BELIEVED_FREE, BadRowAt, Clock, HeldSlot, Holder, HolderAnswer, Identity, Relay,
    SUCCESSOR_WAITS, StreamEnd,
};
use walrelay::sink::Sink;
use walrelay::supervise::{Acquired, NotAcquired, RunCause, RunError, Server, Supervisor};

/// How often a slot that another machine reads is asked for again.
const SLOT_RETRY: Duration = Duration::from_millis(500);

pub(crate) struct Process {
    supervisor: Supervisor<SimServer, SimSink, SimClock>,
    shared: Shared,
    stop: Arc<AtomicBool>,
}

/// What became of a connection, and of the process.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The next connection, please.
    Lost,
    /// A graceful shutdown: exit 0.
    Stopped,
    /// An end that may repeat records at the next start: exit 1.
    Failed { why: String },
    /// Exit 2: this row.
    BadRow(Box<BadRowAt>),
    /// Killed.
    Killed,
}

impl Process {
    pub(crate) fn start(shared: &Shared, bounds: &Bounds) -> Self {
        // With the commit's time, each part of a record is the row's.
        let prefixes = vec![PREFIX.to_owned()];
        let mapping = Mapping { message_prefixes: prefixes, timestamp: Timestamp::Commit, ..Mapping::default() };
        let tables = vec![TableName { schema: "shop".to_owned(), name: "outbox".to_owned() }];
        let outbox = Outbox::new(mapping, tables).expect("the default topic");
        let metrics = Arc::new(Metrics::new("walrelay", "walrelay", Instant::now()));
        let stop = Arc::new(AtomicBool::new(false));
        let sink = SimSink::new(shared);
        let bad_rows = shared.with(|world| BadRows {
            action: world.nature.bad_rows,
            at: world.decided.clone(),
            dead_letter_topic: DEAD_LETTERS.to_owned(),
            readable: true,
        });
        let clock = SimClock(shared.clone());
        let relay = Relay::new(outbox, sink, clock, Arc::clone(&metrics), Arc::clone(&stop), bounds.limits)
            .with_bad_rows(bad_rows)
            .with_notes(Box::new(SimNoter::new(shared)));
        let server = SimServer {
            shared: shared.clone(),
            timeline: None,
            wal_sender_timeout: bounds.wal_sender_timeout,
            has_heard: false,
            deaths: 0,
        };
        // Pauses come out as they are without chance.
        let dice = || 250;
        let supervisor = Supervisor::new(server, relay, metrics).with_dice(Box::new(dice));
        Self { supervisor, shared: shared.clone(), stop }
    }

    pub(crate) fn sink(&mut self) -> &mut SimSink {
        self.supervisor.relay_mut().sink_mut()
    }

    /// Whether the server has died since this process took the slot last.
    pub(crate) fn is_forgotten(&mut self) -> bool {
        let deaths = self.supervisor.server_mut().deaths;
        self.shared.with(|world| world.deaths != deaths)
    }

    /// One connection, from its beginning to its end and what follows from that.
    pub(crate) fn connection(&mut self) -> Outcome {
        let stop = Arc::clone(&self.stop);
        self.shared.with(|world| {
            world.machines[self.shared.machine].stop = Some(stop);
            world.counts.connections += 1;
        });
        let ended = match catch_unwind(AssertUnwindSafe(|| self.supervisor.connection())) {
            Ok(ended) => ended,
            Err(payload) if payload.is::<Killed>() => return Outcome::Killed,
            Err(payload) => resume_unwind(payload),
        };
        self.shared.with(|world| world.log(&ended));
        match ended {
            None => Outcome::Lost,
            Some(Ok(())) => Outcome::Stopped,
            Some(Err(RunError { cause: RunCause::BadRow { row }, .. })) => {
                self.said_where(&row);
                Outcome::BadRow(row)
            }
            Some(Err(error)) => {
                let is_expected = matches!(
                    error.cause,
                    RunCause::StopTimedOut { .. } | RunCause::StopUnconfirmed { .. } | RunCause::Sink(_)
                );
                assert!(is_expected, "{error}");
                Outcome::Failed { why: error.to_string() }
            }
        }
    }

    /// The slot stands where the bad row is said to be, unless nobody was there to hear it.
    fn said_where(&mut self, row: &BadRowAt) {
        let has_heard = self.supervisor.server_mut().has_heard;
        if has_heard && self.shared.with(|world| !world.nature.standby) {
            let slot = self.shared.with(|world| world.postgres.slot.confirmed);
            assert_eq!(row.confirmed, slot, "the slot is said to stand elsewhere");
        }
    }
}

/// The server, as the supervisor sees it.
struct SimServer {
    shared: Shared,
    /// The timeline that the relay's positions belong to; `None` before the first connection.
    timeline: Option<usize>,
    wal_sender_timeout: Option<Duration>,
    /// At the end of the last stream the server had heard everything.
    has_heard: bool,
    /// How often the server had died when this process took the slot last.
    deaths: u64,
}

impl Server for SimServer {
    type Stream = SimStream;

    fn acquire<S: Sink, C: Clock>(
        &mut self,
        relay: &mut Relay<S, C>,
        _metrics: &Metrics,
    ) -> Result<Acquired<SimStream>, NotAcquired> {
        self.has_heard = false;
        self.shared.step();
        self.wait_for_slot(relay)?;
        let machine = self.shared.machine;
        let (up, timeline, left) = self.shared.with(|world| {
            let left = self.timeline.and_then(|timeline| world.postgres.left.get(timeline - 1).copied());
            let down_until = world.postgres.down_until.max(world.machines[machine].no_server_until);
            (world.now >= down_until, world.postgres.timeline(), left)
        });
        if !up {
            return Err(broken("connecting").into());
        }
        if let Some(switch_point) = left {
            relay.timeline_left_at(switch_point).map_err(RunError::from)?;
        }
        self.timeline = Some(timeline);
        let binary = relay.outbox_mut().published(&published()).expect("tables that can be mapped");
        assert!(!binary, "no bytea here");
        let now = self.shared.since_boot();
        let (slot, released, deaths, mutant) = self.shared.with(|world| {
            let World { postgres, nature, deaths, now: true_now, .. } = world;
            postgres.look_at_holder(*true_now);
            // The server says how long ago that was.
            let released = postgres.released.map(|at| now.saturating_sub(true_now.saturating_sub(at)));
            (postgres.slot.confirmed, released, *deaths, nature.mutant)
        });
        if self.deaths != deaths {
            relay.server_started();
        }
        let waits = !relay.held_just_now(now, released) && mutant != Some(Mutant::NoSecond);
        let a_second_after = released.filter(|_| waits).map(|released| released + SUCCESSOR_WAITS);
        let sends_from = a_second_after.map_or(Duration::ZERO, |until| until.max(now + BELIEVED_FREE));
        relay.reads_from(slot);
        let asked = relay.flush_lsn();
        let (confirmed, deaths) = self.shared.with(|world| (world.take_slot(machine, asked), world.deaths));
        self.deaths = deaths;
        let Some(confirmed) = confirmed else { return Err(broken("asking").into()) };
        if relay.is_exactly_once() {
            relay.identified(self.identity());
        }
        self.shared.with(|world| {
            world.log(&format_args!("the slot is taken, released {released:?}, sends from {sends_from:?}"));
        });
        let stream = SimStream::new(&self.shared);
        let slot = HeldSlot {
            asks: Box::new(SimAsks::new(&self.shared, timeline)),
            walsender: u32::try_from(machine).unwrap(),
            since: now,
            patience: self.wal_sender_timeout,
            released,
            sends_from,
            log_end: None,
        };
        Ok(Acquired { stream, wal_sender_timeout: self.wal_sender_timeout, confirmed, slot: Some(slot) })
    }

    fn streams(&mut self, _stream: &SimStream, from: Lsn) {
        self.shared.with(|world| {
            let machine = &mut world.machines[self.shared.machine];
            (machine.told, machine.streaming) = (from, true);
        });
    }

    /// What has arrived is read, unless the server is frozen or gone.
    fn finish(&mut self, _stream: &mut SimStream, _within: Duration) -> bool {
        let machine = self.shared.machine;
        self.shared.with(|world| {
            world.machines[machine].streaming = false;
            world.postgres.read_inbox(world.now);
            let sender = world.postgres.sender.as_ref().filter(|sender| sender.machine == machine);
            self.has_heard = sender.is_some_and(Walsender::is_alive);
        });
        self.has_heard
    }

    fn has_confirmed(&mut self, lsn: Lsn) -> Result<bool, Error> {
        self.shared.with(|world| {
            world.postgres.read_inbox(world.now);
            if world.now < world.postgres.down_until {
                return Err(broken("asking"));
            }
            self.has_heard = world.postgres.slot.confirmed >= lsn;
            Ok(self.has_heard)
        })
    }

    fn system(&self) -> Option<&str> {
        self.timeline.map(|_| "7")
    }

    fn explain_missing_publication(&mut self, error: &Error) -> Option<RunError> {
        panic!("{error}");
    }
}

/// Asks the server again and again, which answers at once if it can be reached.
struct SimAsks {
    shared: Shared,
    /// Of the server that the stream came from.
    timeline: usize,
    /// When the next question is due, and until when there are more.
    next: Duration,
    until: Duration,
}

impl SimAsks {
    fn new(shared: &Shared, timeline: usize) -> Self {
        Self { shared: shared.clone(), timeline, next: Duration::MAX, until: Duration::ZERO }
    }

    /// `None`: nobody answers.
    fn holder(&self) -> Option<Holder> {
        let machine = self.shared.machine;
        self.shared.with(|world| {
            if world.now < world.postgres.down_until.max(world.machines[machine].no_server_until) {
                return None;
            }
            let holder = (0..MACHINES).find(|machine| world.postgres.is_held_by(*machine));
            Some(match holder {
                _ if world.postgres.timeline() != self.timeline => Holder::Unknown,
                Some(machine) => Holder::Walsender(u32::try_from(machine).unwrap()),
                None => Holder::Nobody(world.postgres.slot.confirmed),
            })
        })
    }
}

impl AskHolder for SimAsks {
    fn ask(&mut self, now: Duration) {
        (self.next, self.until) = (now, now + ASKS_EVERY * 8);
    }

    /// What is answered is what is true now, though it was asked before.
    fn answer(&mut self) -> Option<HolderAnswer> {
        let now = self.shared.since_boot();
        while self.next <= now.min(self.until) {
            let asked = self.next;
            self.next += ASKS_EVERY;
            if let Some(holder) = self.holder() {
                return Some(HolderAnswer { asked, holder, who: None });
            }
        }
        None
    }
}

impl SimServer {
    /// As a standby, while the other machine reads the slot.
    fn wait_for_slot<S: Sink, C: Clock>(&self, relay: &mut Relay<S, C>) -> Result<(), NotAcquired> {
        let other = MACHINES - 1 - self.shared.machine;
        let held_at = |world: &mut World| world.postgres.is_held_by(other).then_some(world.postgres.slot.confirmed);
        while let Some(confirmed) = self.shared.with(held_at) {
            if relay.is_held_by_another(u32::try_from(other).ok()) {
                relay.taken_over().map_err(RunError::from)?;
            }
            relay.reads_from(confirmed);
            if let Err(ended) = relay.idle(SLOT_RETRY) {
                let is_taken = matches!(*ended, StreamEnd::SlotTaken(_));
                if let StreamEnd::BadRow(row) = *ended {
                    return Err(RunError::from(row).into());
                }
                if is_taken { relay.taken_over() } else { relay.start_over() }.map_err(RunError::from)?;
            }
            if relay.may_stop() {
                return Err(NotAcquired::Stopped);
            }
            self.shared.step();
        }
        Ok(())
    }

    /// As it is asked for once the slot is ours.
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
                was_read: world.postgres.slot.confirmed > BEGIN,
                accepts_slot: false,
            }
        })
    }
}

impl World {
    /// START_REPLICATION from `asked`, and the slot's position, asked for over another connection; `None` when that breaks.
    fn take_slot(&mut self, machine: usize, asked: Lsn) -> Option<Lsn> {
        self.counts.takeovers += u64::from(std::mem::replace(&mut self.held_last, machine) != machine);
        let begin = self.postgres.start(machine, asked, self.now);
        let confirmed = self.postgres.slot.confirmed;
        self.machines[machine].began = (begin, confirmed);
        self.truth.name(begin);
        if self.calm_since.is_none() && self.dice.one_in(self.nature.no_control) {
            let Self { postgres, dice, now, .. } = self;
            postgres.disconnected(machine, dice, *now);
            return None;
        }
        Some(confirmed)
    }
}
