//! One run: processes that follow each other at one slot until everything that was committed is delivered and confirmed.

use crate::dice::Dice;
use crate::lanes::Mutant;
use crate::machines::{MACHINES, Shared};
use crate::nature::{Bounds, Nature};
use crate::process::{Outcome, Process};
use crate::world::{Counts, World};
use std::time::Duration;
use walrelay::relay::BadRowAction;
use walrelay::relay::BadRowAt;
use walrelay::sink::Sink as _;

/// Runs one seed to its end.
pub(crate) fn run_seed(seed: u64) -> (Counts, u64) {
    run_with(seed, None)
}

/// The same, with something wrong with the sink.
pub(crate) fn run_with(seed: u64, mutant: Option<Mutant>) -> (Counts, u64) {
    let mut dice = Dice::new(seed ^ 0x5EED);
    // By the seed itself, so that other draws stay as they are.
    let mut nature = Nature { mutant, no_note: seed % 3 * 3, ..Nature::random(&mut dice) };
    let of_the_hold =
        [Mutant::ClosedLate, Mutant::NotClosed, Mutant::ParkedSends, Mutant::NoSecond, Mutant::StoppedClock];
    if mutant.is_some_and(|mutant| of_the_hold.contains(&mutant)) {
        // It shows only beside another relay, and where nothing fences.
        (nature.standby, nature.exactly_once, nature.lanes) = (true, false, 0);
        if mutant == Some(Mutant::StoppedClock) {
            nature.pause = 200;
        }
    }
    if mutant == Some(Mutant::EndlessTurn) {
        nature.long_call = 2;
    }
    if mutant == Some(Mutant::NotHeld) {
        (nature.bad_row, nature.long_call) = (20, 0);
    }
    if matches!(mutant, Some(Mutant::Unproven | Mutant::NotHeld)) {
        // It shows only with Kafka's partitions, and another relay would only end runs early.
        (nature.standby, nature.exactly_once, nature.lanes) = (false, false, nature.lanes.max(1));
    }
    if mutant == Some(Mutant::NotedEarly) {
        (nature.bad_rows, nature.bad_route) = (BadRowAction::Skip, 10);
    }
    let bounds = Bounds::random(&mut dice);
    let mut world = World::new(seed, nature);
    world.broker.partitions = dice.between(1, 4);
    if dice.one_in(3) {
        // A topic's limit below a full batch, and sometimes below a row.
        world.broker.rules.limit = dice.pick(&[600, 2500, 17_000]);
    }
    if dice.one_in(3) {
        world.broker.rules.dead_letter = 200;
    }
    let shared = Shared::new(world);
    run(&shared, &bounds);
    shared.with(|world| (world.totals(), world.steps))
}

/// Lets processes follow each other until all is delivered and confirmed; the last are stopped.
pub(crate) fn run(shared: &Shared, bounds: &Bounds) {
    let count = shared.with(|world| {
        world.postgres.wal_sender_timeout = bounds.wal_sender_timeout;
        if world.nature.standby { MACHINES } else { 1 }
    });
    shared.run_on(count, |shared| processes(shared, bounds));
    shared.with(|world| {
        world.drain();
        world.look_for_stale_keys();
    });
    nothing_is_left(shared, bounds);
}

/// Those of one machine.
fn processes(shared: &Shared, bounds: &Bounds) {
    while shared.with(|world| !world.done && !world.failed) {
        let mut process = Process::start(shared, bounds);
        let outcome = loop {
            let outcome = process.connection();
            if !matches!(outcome, Outcome::Lost) {
                break outcome;
            }
        };
        ended(shared, &mut process, outcome);
    }
}

/// A process has ended: what it promises then must be true.
pub(crate) fn ended(shared: &Shared, process: &mut Process, outcome: Outcome) {
    shared.with(|world| world.log(&outcome));
    let producer = process.sink().producer();
    if !matches!(outcome, Outcome::Killed) {
        // As the supervisor does.
        process.sink().abandon();
    }
    match outcome {
        Outcome::Stopped => {
            let is_forgotten = process.is_forgotten();
            shared.with(|world| world.stopped(producer, is_forgotten));
        }
        Outcome::BadRow(row) => shared.with(|world| world.bad_row(&row)),
        Outcome::Failed { why } => shared.with(|world| world.failed(&why)),
        Outcome::Killed | Outcome::Lost => {}
    }
    shared.with(|world| {
        let machine = &mut world.machines[shared.machine];
        (machine.crashed, machine.stop) = (false, None);
        let World { broker, now, dice, .. } = world;
        broker.give_up(producer, *now, dice);
    });
    process.sink().give_up();
}

/// A process that starts where everything is done has nothing to do.
fn nothing_is_left(shared: &Shared, bounds: &Bounds) {
    let mut process = Process::start(shared, bounds);
    while matches!(process.connection(), Outcome::Lost) {}
    let producer = process.sink().producer();
    shared.with(|world| {
        assert_eq!(world.broker.producers[producer].taken.len(), 0, "rows came again after a graceful shutdown");
    });
}

impl World {
    /// Whatever is still on its way to the brokers arrives.
    fn drain(&mut self) {
        while !self.broker.is_empty() || !self.cluster.is_drained(self.now) {
            self.now += Duration::from_millis(100);
            self.deliver_batches();
        }
    }

    /// No relay has published behind another one's back.
    fn look_for_stale_keys(&self) {
        let stale = self.truth.stale_keys(&self.postgres.wal);
        assert!(stale.is_empty(), "STALE: an old record of {stale:?} was not followed by all newer ones");
    }

    /// After a graceful shutdown nothing that was taken comes again, unless the server has forgotten what it confirmed.
    fn stopped(&mut self, producer: usize, is_forgotten: bool) {
        self.counts.stops += 1;
        if is_forgotten {
            return;
        }
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

    fn failed(&mut self, why: &str) {
        assert!(!why.is_empty(), "an end that says nothing");
        self.counts.failures += 1;
    }

    /// The row that was named is one that is refused; everything before it is there, and nothing behind is confirmed.
    fn bad_row(&mut self, bad: &BadRowAt) {
        self.counts.bad_rows += 1;
        // A stop and its decision take a second, and with a low limit nearly every row may be bad.
        self.calm_since = self.calm_since.map(|_| self.now);
        let number: usize = bad.row.id.as_deref().expect("an id").parse().expect("a row's number");
        let local = self.is_local(number);
        let Self { broker, postgres, truth, dice, decided, nature, .. } = self;
        let row = &postgres.wal.rows[number];
        assert_eq!(bad.position, row.position, "row {number}");
        if broker.rules.fixed.contains(&number) {
            return;
        }
        assert!(local || broker.refuses(number, &postgres.wal), "row {number} is called bad, and nobody refuses it");
        assert!(bad.dead_letter_refused.is_none(), "a dead letter was refused: {bad:?}");
        assert!(!truth.has(number), "row {number} is called bad, and is in the broker");
        if !row.lost {
            // In transactions its own is left out whole.
            let wal = &postgres.wal;
            let whole =
                wal.transactions.iter().find(|it| truth.exactly_once && (it.rows.0..it.rows.1).contains(&number));
            let before = whole.map_or(number, |it| it.rows.0);
            // Other sequences may stand still for so long that it ends without them.
            let is_there = truth.first_missing(wal).is_none_or(|missing| missing >= before);
            let is_turn = is_there || !nature.exactly_once && truth.is_turn_of(number, wal);
            assert!(is_turn, "not everything before row {before} is there");
            assert!(bad.confirmed <= row.position.final_lsn);
            assert!(postgres.slot.confirmed <= row.position.final_lsn);
        }
        let position = row.position;
        if local || dice.one_in(3) {
            // As the hint says.
            let action = dice.pick(&[BadRowAction::DeadLetter, BadRowAction::Skip]);
            decided.push((position, action));
            if action == BadRowAction::Skip {
                truth.excused.insert(number);
            }
            return;
        }
        broker.fix(number, &postgres.wal);
    }

    pub(crate) fn totals(&self) -> Counts {
        Counts {
            rows: self.postgres.wal.rows.len() as u64,
            excused: self.truth.excused.len() as u64,
            repeats: self.truth.repeats,
            confirmations: self.truth.confirmations,
            searches: self.cluster.refused,
            ..self.counts
        }
    }
}
