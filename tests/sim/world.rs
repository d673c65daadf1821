//! The world around the relays: a server, a broker, the time, and chance. Everything happens when a relay calls.
//!
//! ```text
//!  relay ── read, send ──► SimStream ─┐
//!        ── try_enqueue … ► SimSink ──┼──► World::step: rows commit, batches arrive, something breaks
//!        ── now, pause ──► SimClock ──┘
//! ```
//!
//! No socket, no sleep: the time moves only when all relays wait. So the same seed gives the same run.

use crate::broker::{Action, Broker, bytes_of};
use crate::cluster::Cluster;
use crate::dice::Dice;
use crate::machines::{MACHINES, Machine};
use crate::nature::Nature;
use crate::postgres::{BEGIN, Postgres};
use crate::truth::{Found, Truth};
use crate::wal::{BAD_ROUTE, Piece};
use std::sync::atomic::Ordering;
use std::time::Duration;
use walrelay::lsn::{Lsn, Position};
use walrelay::relay::BadRowAction as RowAction;
use walrelay::sink::Record;

/// With nothing broken any more, everything is delivered and confirmed within this time.
const PATIENCE: Duration = Duration::from_mins(3);

/// No run lasts longer, whatever goes wrong in it.
const LONGEST: Duration = Duration::from_hours(2);

/// Longest time between two status updates: the relay's second, and what waits may take here.
const SILENCE: Duration = Duration::from_secs(4);

/// The same where calls take up to [`LONG_CALL`]: a turn ends behind one of them, and may have one more before and after its frames.
const SILENCE_OF_LONG_CALLS: Duration = Duration::from_secs(14);

/// How long a call of the sink may take, in milliseconds.
const LONG_CALL: (u64, u64) = (50, 3000);

/// A machine that stood still goes on this soon once nothing is broken any more.
const SOON: Duration = Duration::from_millis(10);

/// What a test does at each step.
pub(crate) type Script = Box<dyn FnMut(&mut World) + Send>;

pub(crate) struct World {
    pub(crate) dice: Dice,
    pub(crate) nature: Nature,
    pub(crate) postgres: Postgres,
    pub(crate) broker: Broker,
    /// What the Kafka sink sends to, under the broker's rules.
    pub(crate) cluster: Cluster,
    pub(crate) truth: Truth,
    pub(crate) steps: u64,
    pub(crate) now: Duration,
    pub(crate) machines: [Machine; MACHINES],
    /// Which of them had the slot last.
    pub(crate) held_last: usize,
    /// The machine that runs.
    pub(crate) turn: usize,
    /// A promise is broken: the other machines end.
    pub(crate) failed: bool,
    /// Since when nothing goes wrong.
    pub(crate) calm_since: Option<Duration>,
    /// Everything is delivered and confirmed.
    pub(crate) done: bool,
    /// How often the server has died: what it had confirmed before it may not know any more.
    pub(crate) deaths: u64,
    /// What the operator has said of single rows.
    pub(crate) decided: Vec<(Position, RowAction)>,
    /// Something to be done at a step, for single scenarios.
    pub(crate) script: Option<Script>,
    pub(crate) counts: Counts,
    trace: bool,
}

/// What has gone wrong, so that a test can see that it did.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Counts {
    pub(crate) connections: u64,
    pub(crate) cuts: u64,
    pub(crate) crashes: u64,
    pub(crate) stops: u64,
    pub(crate) failures: u64,
    pub(crate) takeovers: u64,
    /// Pauses of a machine, and ways to the brokers that were cut.
    pub(crate) pauses: u64,
    pub(crate) cut_offs: u64,
    pub(crate) promotions: u64,
    pub(crate) server_crashes: u64,
    pub(crate) restarts: u64,
    pub(crate) bad_rows: u64,
    /// Dead letters taken, and those without their payload.
    pub(crate) dead_letters: u64,
    pub(crate) bare_dead_letters: u64,
    /// Bad rows that may be skipped.
    pub(crate) excused: u64,
    pub(crate) rows: u64,
    pub(crate) repeats: u64,
    pub(crate) confirmations: u64,
    /// Transactions of the broker's.
    pub(crate) commits: u64,
    /// Notes of skipped rows, and failed attempts.
    pub(crate) notes: u64,
    pub(crate) failed_notes: u64,
    /// Refused requests of several records, each of which was searched for what is to blame.
    pub(crate) searches: u64,
    /// Sinks that were parked, since nobody said who holds the slot, and calls that took long.
    pub(crate) parked: u64,
    pub(crate) long_calls: u64,
}

impl World {
    pub(crate) fn new(seed: u64, nature: Nature) -> Self {
        let mut world = Self {
            dice: Dice::new(seed),
            nature,
            postgres: Postgres::new(),
            broker: Broker::new(),
            cluster: Cluster::default(),
            truth: Truth::default(),
            steps: 0,
            now: Duration::ZERO,
            machines: std::array::from_fn(|_| Machine::default()),
            held_last: 0,
            turn: 0,
            failed: false,
            calm_since: None,
            done: false,
            deaths: 0,
            decided: Vec::new(),
            script: None,
            counts: Counts::default(),
            trace: std::env::var_os("WALRELAY_TRACE").is_some(),
        };
        world.truth.exactly_once = world.nature.exactly_once;
        world.truth.name(BEGIN);
        world
    }

    /// Something happens.
    pub(crate) fn step(&mut self) {
        self.steps += 1;
        if let Some(mut script) = self.script.take() {
            script(self);
            self.script = Some(script);
        }
        if self.calm_since.is_none() && self.steps >= self.nature.steps {
            self.calm_down();
        }
        self.write();
        self.server();
        self.deliver_batches();
        if self.calm_since.is_none() {
            self.break_something();
        }
        self.wake();
        self.look();
    }

    /// Whoever waits for a connection is woken when it breaks, unless the machine stands still.
    fn wake(&mut self) {
        for machine in self.postgres.broken() {
            let machine = &mut self.machines[machine];
            if machine.paused_until <= self.now {
                machine.wakes = machine.wakes.map(|wakes| wakes.min(self.now));
            }
        }
    }

    /// Nothing goes wrong from here on, and what is broken is fixed.
    pub(crate) fn calm_down(&mut self) {
        self.calm_since = Some(self.now);
        self.postgres.down_until = self.now;
        self.broker.down_until = self.now;
        self.broker.blocked.clear();
        self.broker.missing.clear();
        self.broker.hurry();
        self.cluster.hurry();
        self.nature.client.iter_mut().for_each(|client| client.later = 0);
        for machine in &mut self.machines {
            (machine.cut_off_until, machine.no_server_until) = (self.now, self.now);
            machine.paused_until = machine.paused_until.min(self.now);
            machine.wakes = machine.wakes.map(|wakes| wakes.min(self.now + SOON));
        }
        if let Some(sender) = &mut self.postgres.sender {
            sender.quiet_until = self.now;
            if sender.frozen || sender.shutting_down {
                self.postgres.cut(&mut self.dice);
            }
        }
    }

    fn write(&mut self) {
        let committed = self.postgres.wal.transactions.len() as u64;
        if self.postgres.sender.as_ref().is_some_and(|sender| sender.shutting_down) {
            return;
        }
        if committed >= self.nature.transactions || !self.dice.one_in(self.nature.commit) {
            return;
        }
        if self.dice.one_in(self.nature.migrate) {
            self.postgres.wal.migrate();
        }
        // Otherwise the commit records are neighbours.
        if !self.dice.one_in(3) {
            let bytes = 8 * self.dice.between(1, 1000);
            self.postgres.wal.write(bytes);
        }
        let pieces = self.transaction();
        self.commit(pieces);
    }

    pub(crate) fn commit(&mut self, pieces: Vec<Piece>) -> (Lsn, Lsn) {
        let transaction = self.postgres.wal.commit(pieces);
        let ends = (transaction.final_lsn, transaction.end_lsn);
        for number in transaction.rows.0..transaction.rows.1 {
            if self.calm_since.is_none() && self.dice.one_in(self.nature.bad_row) {
                self.broker.rules.refused.insert(number);
            }
        }
        let (first, end) = transaction.rows;
        for number in (first..end).filter(|_| self.nature.bad_rows == RowAction::Skip) {
            if self.is_bad(number) {
                self.truth.excused.insert(number);
            }
        }
        self.truth.name(ends.1);
        ends
    }

    /// Whether no record can be made of the row, the client never takes it, or the broker refuses it.
    pub(crate) fn is_bad(&self, number: usize) -> bool {
        self.is_local(number) || self.broker.refuses(number, &self.postgres.wal)
    }

    /// Whether no record can be made of the row, or the client never takes it.
    pub(crate) fn is_local(&self, number: usize) -> bool {
        let wal = &self.postgres.wal;
        let most = self.nature.client.map_or(u64::MAX, |client| client.record);
        wal.rows[number].route == BAD_ROUTE || bytes_of(number, wal) > most
    }

    /// A relay's sink takes a row.
    pub(crate) fn takes(&mut self, machine: usize, producer: usize, number: usize) {
        let Self { broker, postgres, machines, truth, .. } = self;
        let began = machines[machine].began;
        broker.producers[producer].taken.take(number, (&postgres.wal, truth), began.0, began.1);
    }

    /// The relay hands a record over.
    pub(crate) fn took(&mut self, Found { number, dead_letter, .. }: Found, record: &Record<'_>) {
        if !dead_letter {
            return;
        }
        self.counts.dead_letters += 1;
        self.counts.bare_dead_letters += u64::from(record.value.is_none());
        match record.value {
            Some(_) => self.truth.bare.remove(&number),
            None => self.truth.bare.insert(number),
        };
        let topics_fail = self.nature.missing + self.nature.forbidden > 0;
        let fixed = self.broker.rules.fixed.contains(&number);
        assert!(
            topics_fail || fixed || self.is_bad(number),
            "row {number} becomes a dead letter, and nothing is wrong with it"
        );
    }

    fn transaction(&mut self) -> Vec<Piece> {
        let length = if self.dice.one_in(5) { 0 } else { self.dice.between(1, self.nature.rows) };
        (0..length).map(|_| self.piece()).collect()
    }

    fn piece(&mut self) -> Piece {
        let bad = self.calm_since.is_none() && self.dice.one_in(self.nature.bad_route);
        let dice = &mut self.dice;
        let route = if bad { BAD_ROUTE } else { dice.pick(&["order", "order", "invoice"]) };
        let key = (!dice.one_in(12)).then(|| format!("k{}", dice.below(6)));
        let bytes = dice.index(usize::try_from(self.nature.bytes).unwrap());
        match dice.below(24) {
            0 => Piece::OtherRow,
            1 => Piece::OtherMessage,
            2 => Piece::Update,
            3 => Piece::Delete,
            4 => match dice.below(4) {
                0 => Piece::Truncate,
                1 => Piece::Origin,
                2 => Piece::Type,
                _ => Piece::StrayStreamAbort,
            },
            5 | 6 => Piece::Message { route, key, bytes },
            _ => Piece::Row { route, key, bytes },
        }
    }

    fn server(&mut self) {
        let Self { postgres, truth, dice, nature, now, .. } = self;
        postgres.work(&nature.manner, *now, dice, &mut |lsn| truth.name(lsn));
        if self.calm_since.is_some() || self.dice.one_in(self.nature.inbox) {
            self.postgres.read_inbox(self.now);
        }
        self.postgres.leave_silent(self.now);
        if self.dice.one_in(self.nature.checkpoint) {
            self.postgres.checkpoint();
        }
    }

    pub(crate) fn deliver_batches(&mut self) {
        for _ in 0..self.nature.batches {
            let action = self.action();
            let Self { broker, postgres, machines, truth, dice, now, .. } = self;
            broker.work(action, *now, machines, (&postgres.wal, truth), dice);
        }
        for _ in 0..2 * self.nature.batches * self.nature.lanes.min(1) {
            let action = self.action();
            let Self { broker, cluster, postgres, machines, truth, dice, now, .. } = self;
            cluster.work(action, *now, (broker, machines), (&postgres.wal, truth), dice);
        }
    }

    fn action(&mut self) -> Action {
        if self.calm_since.is_some() {
            return Action::Judged;
        }
        if self.dice.one_in(self.nature.later) {
            Action::Later
        } else if self.dice.one_in(self.nature.forbidden) {
            Action::Forbidden
        } else if self.dice.one_in(self.nature.environment) {
            Action::Environment
        } else if self.dice.one_in(self.nature.fatal) {
            Action::Fatal
        } else {
            Action::Judged
        }
    }

    fn break_something(&mut self) {
        if self.dice.one_in(self.nature.delay) {
            let until = self.now + Duration::from_millis(self.dice.below(3000));
            if let Some(sender) = &mut self.postgres.sender {
                sender.quiet_until = until;
            }
        }
        if self.dice.one_in(self.nature.cut) {
            self.cut();
        }
        if self.dice.one_in(self.nature.terminate) {
            self.counts.cuts += u64::from(self.postgres.sender.is_some());
            self.postgres.terminate(&mut self.dice);
        }
        if self.dice.one_in(self.nature.shutdown)
            && let Some(sender) = &mut self.postgres.sender
        {
            sender.shutting_down = true;
        }
        if self.dice.one_in(self.nature.freeze)
            && let Some(sender) = &mut self.postgres.sender
        {
            sender.frozen = true;
        }
        if self.dice.one_in(self.nature.server_crash) {
            self.server_crash();
        }
        if self.dice.one_in(self.nature.promotion) {
            let lag = self.dice.below(4);
            self.promote(lag);
        }
        self.break_broker();
        self.break_ways();
        if self.dice.one_in(self.nature.crash) {
            self.crash();
        }
        if self.dice.one_in(self.nature.stop) {
            self.stop();
        }
    }

    fn break_broker(&mut self) {
        if self.dice.one_in(self.nature.outage) {
            self.broker.down_until = self.now + Duration::from_millis(self.dice.below(40_000));
        }
        if self.dice.one_in(self.nature.block) {
            let topic = self.dice.pick(&["outbox.event.order", "outbox.event.invoice"]).to_owned();
            let until = self.now + Duration::from_millis(self.dice.below(40_000));
            self.broker.blocked.insert(topic, until);
        }
        if self.dice.one_in(self.nature.broker_restart) {
            let Self { cluster, dice, now, .. } = self;
            cluster.restart(*now, dice);
        }
        if self.dice.one_in(self.nature.missing) {
            let topic = self.dice.pick(&["outbox.event.order", "outbox.event.invoice"]).to_owned();
            let until = self.now + Duration::from_millis(self.dice.below(60_000));
            self.broker.missing.insert(topic, until);
        }
    }

    /// One machine's way to the brokers is cut for a while, or its way to the server.
    fn break_ways(&mut self) {
        if self.dice.one_in(self.nature.cut_off) {
            let machine = self.dice.index(MACHINES);
            self.counts.cut_offs += u64::from(self.machines[machine].stop.is_some());
            self.machines[machine].cut_off_until = self.now + Duration::from_millis(self.dice.below(40_000));
        }
        if self.dice.one_in(self.nature.no_server) {
            let machine = self.dice.index(MACHINES);
            self.machines[machine].no_server_until = self.now + Duration::from_millis(self.dice.below(20_000));
        }
    }

    pub(crate) fn cut(&mut self) {
        self.counts.cuts += u64::from(self.postgres.sender.is_some());
        self.postgres.cut(&mut self.dice);
    }

    pub(crate) fn server_crash(&mut self) {
        self.counts.server_crashes += 1;
        self.deaths += 1;
        let until = self.now + Duration::from_millis(self.dice.below(8000));
        self.postgres.crash(&mut self.dice, until);
    }

    /// A standby takes over that lacks the last `lag` transactions.
    pub(crate) fn promote(&mut self, lag: u64) {
        let wal = &self.postgres.wal;
        let began = self.postgres.left.last().copied().unwrap_or(BEGIN);
        let kept = wal.transactions.len().saturating_sub(usize::try_from(lag).unwrap());
        let least = kept.checked_sub(1).map_or(began, |last| wal.transactions[last].end_lsn).max(began);
        let most = wal.transactions.get(kept).map_or(wal.end, |next| next.final_lsn).max(least);
        let at = Lsn::new(self.dice.between(least.bytes() / 8, most.bytes() / 8) * 8);
        self.counts.promotions += 1;
        self.deaths += 1;
        self.postgres.promote(at, &mut self.dice);
        self.truth.cut(at);
    }

    /// One of the processes is killed.
    pub(crate) fn crash(&mut self) {
        let Some(machine) = self.any_that_runs() else { return };
        let Self { machines, now, counts, .. } = self;
        let machine = &mut machines[machine];
        machine.crashed = true;
        machine.paused_until = machine.paused_until.min(*now);
        machine.wakes = machine.wakes.map(|wakes| wakes.min(*now));
        counts.crashes += 1;
    }

    /// One of the processes is asked to stop.
    pub(crate) fn stop(&mut self) {
        let Some(machine) = self.any_that_runs() else { return };
        self.machines[machine].stop.iter().for_each(|stop| stop.store(true, Ordering::Relaxed));
    }

    fn any_that_runs(&mut self) -> Option<usize> {
        let run: Vec<usize> = (0..MACHINES).filter(|machine| self.machines[*machine].stop.is_some()).collect();
        (!run.is_empty()).then(|| run[self.dice.index(run.len())])
    }

    /// How long a call of a sink takes that waits for somebody.
    pub(crate) fn call_takes(&mut self) -> Duration {
        if self.calm_since.is_some() || !self.dice.one_in(self.nature.long_call) {
            return Duration::ZERO;
        }
        self.counts.long_calls += 1;
        Duration::from_millis(self.dice.between(LONG_CALL.0, LONG_CALL.1))
    }

    /// What must hold at every step.
    fn look(&mut self) {
        if let Some(sender) = self.postgres.sender.as_ref().filter(|sender| sender.is_alive())
            && let machine = &self.machines[sender.machine]
            && machine.streaming
            && !machine.crashed
        {
            // What has arrived counts, whether or not it was read. A machine that stands still says nothing.
            let silent = self.now.saturating_sub(sender.heard.max(machine.paused_until));
            let most = if self.nature.long_call > 0 { SILENCE_OF_LONG_CALLS } else { SILENCE };
            assert!(silent < most, "SILENT: no status update for {silent:?}");
        }
        assert!(self.now < LONGEST, "STALL: it does not come to an end: {self}");
        let Some(calm) = self.calm_since else { return };
        let Self { truth, postgres, .. } = self;
        let committed = postgres.wal.transactions.len() as u64 >= self.nature.transactions;
        if committed && postgres.is_done() && truth.first_missing(&postgres.wal).is_none() {
            self.done = true;
            let stops = self.machines.iter().filter_map(|machine| machine.stop.as_ref());
            stops.for_each(|stop| stop.store(true, Ordering::Relaxed));
        } else {
            let waited = self.now.saturating_sub(calm);
            assert!(
                waited < PATIENCE,
                "STALL: nothing is broken for {waited:?}, and not everything is delivered: {self}"
            );
        }
    }

    /// With `WALRELAY_TRACE` set, tells the story of a run.
    pub(crate) fn log(&self, what: &dyn std::fmt::Debug) {
        if self.trace {
            println!("machine {}, {self}: {what:?}", self.turn);
        }
    }
}

impl std::fmt::Display for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Postgres { slot, wal, sender, .. } = &self.postgres;
        let appended = self.truth.appended.iter().filter(|times| **times > 0).count();
        write!(
            f,
            "step {}, {:?}, slot {}, log to {}, {} rows, {appended} in the broker, connected: {}",
            self.steps,
            self.now,
            slot.confirmed,
            wal.end,
            wal.rows.len(),
            sender.is_some(),
        )
    }
}

impl Counts {
    fn each(&mut self) -> [&mut u64; 24] {
        let Self {
            connections,
            cuts,
            crashes,
            stops,
            failures,
            takeovers,
            pauses,
            cut_offs,
            promotions,
            server_crashes,
            restarts,
            bad_rows,
            dead_letters,
            bare_dead_letters,
            excused,
            rows,
            repeats,
            confirmations,
            commits,
            notes,
            failed_notes,
            searches,
            parked,
            long_calls,
        } = self;
        [
            connections,
            cuts,
            crashes,
            stops,
            failures,
            takeovers,
            pauses,
            cut_offs,
            promotions,
            server_crashes,
            restarts,
            bad_rows,
            dead_letters,
            bare_dead_letters,
            excused,
            rows,
            repeats,
            confirmations,
            commits,
            notes,
            failed_notes,
            searches,
            parked,
            long_calls,
        ]
    }

    pub(crate) fn add(&mut self, other: &Self) {
        let mut other = *other;
        for (sum, count) in self.each().into_iter().zip(other.each()) {
            *sum += *count;
        }
    }

    /// A run in which something never went wrong shows nothing about it.
    pub(crate) fn each_happened(&self) {
        let mut counts = *self;
        assert!(counts.each().into_iter().all(|count| *count > 0), "something never happened: {self:?}");
    }
}
