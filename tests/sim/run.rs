//! One run: processes that follow each other at one slot until everything that was committed is delivered and confirmed.

use crate::broker::Client;
use crate::dice::Dice;
use crate::postgres::Manner;
use crate::process::{Outcome, Process};
use crate::world::{Counts, Nature, Shared, World};
use std::time::Duration;
use walrelay::relay::{BadRowAt, Limits};

/// Seconds that a run may be made to wait for, in all: the bounds of the relay.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) limits: Limits,
    pub(crate) wal_sender_timeout: Option<Duration>,
}

impl Bounds {
    pub(crate) fn new() -> Self {
        Self {
            limits: Limits {
                coalesce: Duration::ZERO,
                shutdown_timeout: Duration::from_secs(8),
                disconnect_after: Duration::from_secs(10),
            },
            wal_sender_timeout: Some(Duration::from_secs(10)),
        }
    }

    fn random(dice: &mut Dice) -> Self {
        Self {
            limits: Limits {
                coalesce: Duration::from_micros(dice.pick(&[0, 200])),
                shutdown_timeout: Duration::from_millis(dice.between(500, 10_000)),
                disconnect_after: Duration::from_millis(dice.between(2000, 20_000)),
            },
            wal_sender_timeout: Some(Duration::from_millis(dice.between(5000, 20_000))),
        }
    }
}

impl Nature {
    /// Nothing goes wrong; the caller says what happens.
    pub(crate) fn peaceful() -> Self {
        Self {
            rows: 20,
            bytes: 100,
            manner: Manner { keepalive: 0, asking: 0, loose_message: 0, pipe: 1 << 16 },
            inbox: 2,
            batches: 1,
            client: Some(Client { batch: 1 << 20, room: 1 << 20, record: 1 << 20, report: 5, later: 0 }),
            ..Self::default()
        }
    }

    /// Any of everything, or none of it.
    pub(crate) fn random(dice: &mut Dice) -> Self {
        let sometimes = |most_often: u64, dice: &mut Dice| match dice.below(2) {
            0 => 0,
            _ => most_often * dice.between(1, 8),
        };
        Self {
            commit: dice.between(1, 12),
            transactions: dice.between(5, 60),
            rows: dice.pick(&[1, 3, 20]),
            bytes: dice.pick(&[20, 200, 2000]),
            migrate: sometimes(4, dice),
            manner: Manner {
                keepalive: dice.pick(&[0, 3, 30]),
                asking: dice.pick(&[0, 2, 10]),
                loose_message: sometimes(3, dice),
                pipe: dice.pick(&[64, 1000, 20_000]),
            },
            checkpoint: dice.between(1, 200),
            inbox: dice.between(1, 20),
            delay: sometimes(50, dice),
            cut: sometimes(30, dice),
            freeze: sometimes(200, dice),
            server_crash: sometimes(100, dice),
            promotion: sometimes(200, dice),
            batches: dice.between(1, 3),
            later: sometimes(5, dice),
            environment: sometimes(100, dice),
            fatal: sometimes(60, dice),
            outage: sometimes(200, dice),
            block: sometimes(100, dice),
            bad_row: sometimes(40, dice),
            crash: sometimes(100, dice),
            stop: sometimes(100, dice),
            no_restart: sometimes(5, dice),
            takeover: sometimes(1, dice),
            no_control: sometimes(3, dice),
            client: Some(Client {
                batch: dice.pick(&[500, 10_000, 1_000_000]),
                room: dice.pick(&[300, 3000, 1_000_000]),
                record: 1_000_000,
                report: dice.pick(&[0, 5, 50]),
                later: dice.pick(&[0, 10, 50]),
            }),
            steps: dice.between(100, 800),
        }
    }
}

/// Runs one seed to its end.
pub(crate) fn run_seed(seed: u64) -> (Counts, u64) {
    let mut dice = Dice::new(seed ^ 0x5EED);
    let nature = Nature::random(&mut dice);
    let bounds = Bounds::random(&mut dice);
    let mut world = World::new(seed, nature);
    world.broker.partitions = dice.between(1, 4);
    if dice.one_in(3) {
        // A topic's limit below a full batch, and sometimes below a row.
        world.broker.rules.limit = dice.pick(&[600, 2500, 17_000]);
    }
    let shared = Shared::new(world);
    run(&shared, &bounds);
    shared.with(|world| (world.totals(), world.steps))
}

/// Lets processes follow each other until all is delivered and confirmed; the last is stopped.
pub(crate) fn run(shared: &Shared, bounds: &Bounds) {
    // Two machines: where one loses the slot, the other may take it, with what it still has in hand from before.
    let mut machines: [Option<Process>; 2] = [None, None];
    let mut active = 0;
    loop {
        let process =
            machines[active].get_or_insert_with(|| Process::start(shared, bounds.limits, bounds.wal_sender_timeout));
        let outcome = process.connection();
        if !matches!(outcome, Outcome::Lost) {
            ended(shared, process, outcome);
            machines[active] = None;
            if shared.with(|world| world.done) {
                break;
            }
        }
        if shared.with(|world| world.calm_since.is_none() && world.dice.one_in(world.nature.takeover)) {
            active = 1 - active;
            shared.with(|world| world.counts.takeovers += 1);
        }
    }
    nothing_is_left(shared, bounds);
}

/// A process has ended: what it promises then must be true.
pub(crate) fn ended(shared: &Shared, process: &mut Process, outcome: Outcome) {
    shared.with(|world| world.log(&outcome));
    let producer = process.relay.sink_mut().producer();
    match outcome {
        Outcome::Stopped => shared.with(|world| world.stopped(producer)),
        Outcome::BadRow(row) => shared.with(|world| world.bad_row(&row)),
        Outcome::Failed(_) => shared.with(|world| world.counts.failures += 1),
        Outcome::Killed | Outcome::Lost => {}
    }
    shared.with(|world| {
        world.crashed = false;
        world.stop = None;
        let World { broker, dice, .. } = world;
        broker.give_up(producer, dice);
    });
}

/// A process that starts where everything is done has nothing to do.
fn nothing_is_left(shared: &Shared, bounds: &Bounds) {
    let mut process = Process::start(shared, bounds.limits, bounds.wal_sender_timeout);
    while matches!(process.connection(), Outcome::Lost) {}
    let producer = process.relay.sink_mut().producer();
    shared.with(|world| {
        assert_eq!(world.broker.producers[producer].taken.len(), 0, "rows came again after a clean stop")
    });
}

impl World {
    /// After a clean stop nothing that was taken comes again.
    fn stopped(&mut self, producer: usize) {
        self.counts.stops += 1;
        let Self { broker, postgres, .. } = self;
        let Some(last) = broker.producers[producer].taken.last() else { return };
        let row = &postgres.wal.rows[last];
        let confirmed = postgres.slot.confirmed;
        assert!(
            row.lost || row.position.final_lsn < confirmed,
            "stopped at {confirmed}, and row {last} at {} comes again",
            row.position
        );
    }

    /// The row that was named is one that is refused; everything before it is there, and nothing behind is confirmed.
    fn bad_row(&mut self, bad: &BadRowAt) {
        self.counts.bad_rows += 1;
        let number: usize = bad.row.id.as_deref().expect("an id").parse().expect("a row's number");
        let Self { broker, postgres, truth, .. } = self;
        let row = &postgres.wal.rows[number];
        assert_eq!(bad.position, row.position, "row {number}");
        if broker.rules.mended.contains(&number) {
            return;
        }
        assert!(broker.refuses(number, &postgres.wal), "row {number} is called bad, and nobody refuses it");
        assert!(!truth.has(number), "row {number} is called bad, and is in the broker");
        if !row.lost {
            assert!(truth.first_missing(&postgres.wal) >= Some(number), "not everything before row {number} is there");
            assert!(bad.confirmed <= row.position.final_lsn);
            assert!(postgres.slot.confirmed <= row.position.final_lsn);
        }
        broker.mend(number, &postgres.wal);
    }

    pub(crate) fn totals(&self) -> Counts {
        Counts {
            rows: self.postgres.wal.rows.len() as u64,
            repeats: self.truth.repeats,
            confirmations: self.truth.confirmations,
            ..self.counts
        }
    }
}
