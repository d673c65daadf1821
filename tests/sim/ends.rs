//! The relay's ends in the world: its clock, its way to the broker, its way to the server. What they see is judged on the spot.

use crate::lanes::{Lanes, Mutant};
use crate::machines::Shared;
use crate::postgres::{Delivery, Postgres, read_status};
use crate::transactions::Transaction;
use crate::truth::{Taken, identify};
use crate::world::World;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use walrelay::pg::frame::ReadBuffer;
use walrelay::pg::{Error, Upstream};
use walrelay::pgoutput::PgTime;
use walrelay::relay::Clock;
use walrelay::sink::{
    Enqueue, Failure, FailureClass, InFlight, Initialized, Owner, Record, RefusalId, Report, Resolution, Sink, Tag,
};

/// How long a transaction may be open.
const TRANSACTION: Duration = Duration::from_mins(10);

/// What a process that is killed unwinds with: nothing of it runs any more.
pub(crate) struct Killed;

/// The relay's clock.
pub(crate) struct SimClock(pub(crate) Shared);

impl Clock for SimClock {
    fn now(&self) -> Instant {
        self.0.base + self.0.seen_now()
    }

    fn since_boot(&self) -> Duration {
        self.0.since_boot()
    }

    fn wall(&self) -> PgTime {
        let micros = self.0.with(|world| world.now.as_micros());
        PgTime(i64::try_from(micros).unwrap())
    }

    fn pause(&self, duration: Duration) {
        self.0.here(|machine| machine.called = None);
        self.0.wait(duration);
        self.0.step();
    }
}

/// The relay's way to the broker.
pub(crate) struct SimSink {
    shared: Shared,
    producer: usize,
    /// In place of the broker's producer, but for what it has taken.
    lanes: Option<Lanes>,
    /// Topics that it has asked the cluster for.
    topics: BTreeSet<String>,
    parked: bool,
}

impl SimSink {
    pub(crate) fn new(shared: &Shared) -> Self {
        let (producer, lanes) = shared.with(|world| {
            let settings = world.nature.client.expect("a client's settings");
            let lanes = (world.nature.lanes > 0).then(|| Lanes::new(world, settings, shared.machine));
            let producer = world.broker.connect(settings, Taken::default(), shared.machine);
            world.broker.producers[producer].transaction = world.nature.exactly_once.then(Transaction::default);
            (producer, lanes)
        });
        Self { shared: shared.clone(), producer, lanes, topics: BTreeSet::new(), parked: false }
    }

    /// A call that waits for somebody, now and then for long. Meanwhile the client's threads go on, and so does the other machine.
    fn may_wait(&self) {
        let mut left = self.shared.with(World::call_takes);
        if !left.is_zero() {
            let now = self.shared.now();
            self.shared.here(|machine| *machine.called.get_or_insert(now));
        }
        while !left.is_zero() {
            let piece = left.min(Duration::from_millis(100));
            self.shared.wait(piece);
            self.shared.step();
            left -= piece;
        }
    }

    pub(crate) fn producer(&self) -> usize {
        self.producer
    }

    /// Its process has ended.
    pub(crate) fn give_up(&mut self) {
        let Self { shared, lanes, .. } = self;
        if let Some(lanes) = lanes {
            shared.with(|world| lanes.give_up(world));
        }
    }
}

impl Sink for SimSink {
    fn try_enqueue(&mut self, record: &Record<'_>, tag: Tag) -> Enqueue {
        let in_flight = self.in_flight().records;
        if self.topics.insert(record.topic.to_owned()) {
            // The first record of a topic asks the cluster for it.
            self.may_wait();
        }
        let Self { shared, producer, lanes, parked, .. } = self;
        let (producer, base) = (*producer, shared.base);
        if *parked {
            return Enqueue::Full;
        }
        shared.with(|world| {
            if in_flight > 0 && world.dice.one_in(30) {
                return Enqueue::Full;
            }
            let found = identify(record, &world.postgres.wal);
            assert!(world.broker.is_owner(producer), "a record comes before the transactions are taken over");
            let enqueue = match lanes {
                Some(lanes) => {
                    let now = base + world.now;
                    lanes.try_enqueue(record, tag, world, now)
                }
                None => world.broker.try_enqueue(producer, (record, tag), &world.postgres.wal, world.now),
            };
            if matches!(enqueue, Enqueue::Taken) {
                world.takes(shared.machine, producer, found.number);
                world.took(found, record);
                if found.dead_letter && !world.truth.exactly_once {
                    world.truth.set_aside.insert(found.number);
                }
                world.log(&format_args!("producer {producer} takes {found:?}"));
            }
            enqueue
        })
    }

    fn poll(&mut self, each: &mut dyn FnMut(Report)) {
        self.may_wait();
        let Self { shared, producer, lanes, .. } = self;
        let base = shared.base;
        let reports = shared.with(|world| {
            if let Some(lanes) = lanes {
                let now = base + world.now;
                return lanes.poll(world, now);
            }
            let World { broker, dice, now, .. } = world;
            broker.reports(*producer, *now, dice)
        });
        for report in reports.iter().filter(|report| !matches!(report, Report::Delivered(_))) {
            shared.with(|world| world.log(report));
        }
        // The world is free again: `each` asks for the time.
        reports.into_iter().for_each(each);
    }

    fn resolve(&mut self, refusal: RefusalId, resolution: Resolution<'_>) -> Enqueue {
        let Self { shared, lanes, producer, parked, .. } = self;
        let base = shared.base;
        if *parked && matches!(resolution, Resolution::ReplaceWith(..)) {
            return Enqueue::Full;
        }
        shared.with(|world| {
            let now = base + world.now;
            let enqueue = if let Some(lanes) = lanes {
                lanes.resolve(refusal, resolution, world, now)
            } else {
                let World { broker, postgres, now, .. } = world;
                broker.resolve(*producer, (refusal, resolution), &postgres.wal, *now)
            };
            world.log(&format_args!("{refusal:?} is resolved: {enqueue:?}, {resolution:?}"));
            if let (Enqueue::Taken, Resolution::ReplaceWith(record, _)) = (&enqueue, resolution) {
                let found = identify(record, &world.postgres.wal);
                world.took(found, record);
            }
            enqueue
        })
    }

    /// What has not arrived does not arrive any more; what has arrived and was not reported comes again.
    fn park(&mut self) {
        let Self { shared, producer, lanes, parked, .. } = self;
        let base = shared.base;
        *parked = true;
        shared.with(|world| {
            world.counts.parked += 1;
            if matches!(world.nature.mutant, Some(Mutant::ClosedLate | Mutant::NotClosed | Mutant::ParkedSends)) {
                return;
            }
            match lanes {
                Some(lanes) => {
                    let now = base + world.now;
                    lanes.park(world, now);
                }
                None => world.broker.park(*producer, &mut world.dice),
            }
        });
    }

    fn unpark(&mut self) -> Result<(), Failure> {
        let Self { shared, producer, lanes, parked, .. } = self;
        let base = shared.base;
        *parked = false;
        shared.with(|world| match lanes {
            Some(lanes) => {
                let now = base + world.now;
                lanes.unpark(world, now);
            }
            None => world.broker.unpark(*producer),
        });
        Ok(())
    }

    fn close(&mut self) {
        let Self { shared, producer, lanes, .. } = self;
        shared.with(|world| {
            if matches!(world.nature.mutant, Some(Mutant::ClosedLate | Mutant::NotClosed)) {
                return;
            }
            if world.nature.mutant == Some(Mutant::ForgottenFirst) {
                world.confirms_next_keepalive(shared.machine);
            }
            world.broker.close(*producer);
            if let Some(lanes) = lanes {
                lanes.close(world);
            }
        });
    }

    fn blocked(&self) -> Option<Failure> {
        self.lanes.as_ref().and_then(Lanes::blocked)
    }

    fn in_flight(&self) -> InFlight {
        if let Some(lanes) = &self.lanes {
            return lanes.in_flight();
        }
        self.shared.with(|world| world.broker.in_flight(self.producer))
    }

    fn restart(&mut self) -> Result<(), Failure> {
        self.topics.clear();
        let Self { shared, producer, lanes, parked, .. } = self;
        *parked = false;
        let base = shared.base;
        let mutant = shared.with(|world| world.nature.mutant);
        if mutant == Some(Mutant::ClosedLate) && shared.here(|machine| !machine.streaming) {
            shared.wait(Duration::from_secs(2));
        }
        shared.with(|world| {
            let mut settings = world.nature.client.expect("a client's settings");
            let old = &world.broker.producers[*producer];
            settings.batch = settings.batch.min(old.settings.batch).min(old.refused);
            if world.calm_since.is_none() && world.dice.one_in(world.nature.no_restart) {
                let text = "no memory".to_owned();
                return Err(Failure::new(FailureClass::Client, "client", text));
            }
            world.counts.restarts += 1;
            world.log(&format_args!("producer {producer} is replaced"));
            let streaming = world.machines[shared.machine].streaming;
            assert!(!streaming, "the sink starts over, and the stream goes on");
            if let Some(lanes) = lanes {
                let now = base + world.now;
                lanes.restart(world, now);
            }
            let World { broker, nature, now, dice, .. } = world;
            // The one before is closed first.
            if mutant == Some(Mutant::NotClosed) {
                broker.give_up(*producer, *now + Duration::from_mins(1), dice);
            } else {
                broker.close(*producer);
            }
            let suspects = std::mem::take(&mut broker.producers[*producer].suspects);
            *producer = broker.connect(settings, Taken::default(), shared.machine);
            broker.producers[*producer].suspects = suspects;
            broker.producers[*producer].transaction = nature.exactly_once.then(Transaction::default);
            Ok(())
        })
    }

    fn transaction_timeout(&self) -> Option<Duration> {
        self.shared.with(|world| world.nature.exactly_once.then_some(TRANSACTION))
    }

    fn init_transactions(&mut self, _owner: &Owner) -> Result<Initialized, Failure> {
        self.shared.with(|world| {
            let World { broker, postgres, truth, dice, now, .. } = world;
            Ok(broker.init_transactions(self.producer, *now, (&postgres.wal, truth), dice))
        })
    }

    fn commit(&mut self, key: &str, value: &str) -> Result<bool, Failure> {
        self.shared.with(|world| {
            let World { broker, postgres, truth, dice, now, nature, calm_since, .. } = world;
            assert_eq!(broker.in_flight(self.producer).records, 0, "committed before everything is reported");
            if *now < broker.down_until {
                return Ok(false);
            }
            let fails = calm_since.is_none() && dice.one_in(nature.no_commit);
            let committed = broker.commit(self.producer, (key, value), fails, (&postgres.wal, truth), dice);
            world.counts.commits += u64::from(matches!(committed, Ok(true)));
            committed
        })
    }

    fn abandon(&mut self) {
        let producer = self.producer;
        self.shared.with(|World { broker, dice, .. }| broker.abandon(producer, dice));
    }

    fn problem(&self) -> Option<String> {
        self.shared.with(|world| (world.now < world.broker.down_until).then(|| "no broker answers".to_owned()))
    }
}

impl World {
    /// What a relay does with a keepalive while it has no records in flight: it confirms all that was sent to it.
    fn confirms_next_keepalive(&mut self, machine: usize) {
        let Self { truth, postgres, machines, .. } = self;
        if let Some(sent) = postgres.all_read(machine).filter(|_| machines[machine].streaming) {
            truth.name(sent);
            truth.confirm(sent, &postgres.wal);
        }
    }
}

/// The relay's way to the server.
pub(crate) struct SimStream {
    shared: Shared,
    buffer: ReadBuffer,
}

impl SimStream {
    pub(crate) fn new(shared: &Shared) -> Self {
        Self { shared: shared.clone(), buffer: ReadBuffer::new(1 << 20) }
    }

    fn deliver(&mut self) -> Result<usize, Error> {
        let Self { shared, buffer } = self;
        shared.with(|world| {
            let World { postgres, dice, now, .. } = world;
            match postgres.deliver(shared.machine, buffer, *now, dice) {
                Delivery::Bytes(length) => Ok(length),
                Delivery::Broken => Err(broken("reading")),
            }
        })
    }
}

pub(crate) fn broken(doing: &'static str) -> Error {
    Error::Io { doing, source: std::io::ErrorKind::ConnectionReset.into() }
}

impl Drop for SimStream {
    fn drop(&mut self) {
        self.shared.with(|world| {
            world.machines[self.shared.machine].streaming = false;
            let World { postgres, dice, now, .. } = world;
            postgres.disconnected(self.shared.machine, dice, *now);
        });
    }
}

impl Upstream for SimStream {
    fn buffer(&self) -> &ReadBuffer {
        &self.buffer
    }

    fn buffer_mut(&mut self) -> &mut ReadBuffer {
        &mut self.buffer
    }

    fn read(&mut self, patience: Duration) -> Result<usize, Error> {
        self.shared.here(|machine| machine.called = None);
        self.shared.step();
        let length = self.deliver()?;
        if length > 0 {
            self.shared.does_not_spin();
        }
        if length > 0 || patience.is_zero() {
            return Ok(length);
        }
        self.shared.wait(patience);
        self.deliver()
    }

    fn send(&mut self, message: &[u8]) -> Result<(), Error> {
        self.shared.with(|world| {
            let (lsn, _) = read_status(message);
            let World { truth, postgres, machines, .. } = world;
            let Postgres { sender, wal, .. } = postgres;
            let told = &mut machines[self.shared.machine].told;
            let Some(sender) = sender.as_mut().filter(|sender| sender.machine == self.shared.machine) else {
                return Err(broken("sending"));
            };
            truth.confirm(lsn, wal);
            assert!(lsn >= *told, "the position went back from {told} to {lsn}");
            *told = lsn;
            sender.heard = world.now;
            if sender.cut && world.dice.one_in(2) {
                return Err(broken("sending"));
            }
            postgres.arrived(message);
            Ok(())
        })
    }
}
