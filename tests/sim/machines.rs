//! The machines of a run, each with a thread of its own. Only one of them runs at a time.
//!
//! ```text
//!  machine 0 ── waits until 0.8 s ──► machine 1 runs from 0.5 s on, until it waits …
//! ```
//!
//! In: how long a relay waits. Out: the machine that wakes first runs next, and the world's time is then. So the same seed gives the
//! same run, as if there were no threads. Each machine has its own way to the server and to the brokers.

use crate::ends::Killed;
use crate::lanes::Mutant;
use crate::world::World;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use walrelay::lsn::Lsn;

/// A relay and its standby.
pub(crate) const MACHINES: usize = 2;

/// A relay that asks for the time so often without letting any pass is spinning.
const SPIN: u32 = 200_000;

/// One machine, and the process on it.
#[derive(Debug, Default)]
pub(crate) struct Machine {
    /// When it runs next; `None`: nothing runs on it.
    pub(crate) wakes: Option<Duration>,
    /// The process that runs was killed: nothing that it does counts any more.
    pub(crate) crashed: bool,
    /// Its stream is being read.
    pub(crate) streaming: bool,
    /// Asks the process that runs to stop.
    pub(crate) stop: Option<Arc<AtomicBool>>,
    /// The position that was confirmed last on this connection.
    pub(crate) told: Lsn,
    /// Where the connection's stream began, and what the slot had confirmed then.
    pub(crate) began: (Lsn, Lsn),
    /// Nothing reaches the brokers until then, and nothing comes back.
    pub(crate) cut_off_until: Duration,
    /// No connection to the server is possible until then.
    pub(crate) no_server_until: Duration,
    /// The machine stands still until then: the relay as well as the client's threads.
    pub(crate) paused_until: Duration,
    /// For how long it has stood still.
    pub(crate) paused: Duration,
    /// When the first long call of the present turn began: see [`Mutant::EndlessTurn`].
    pub(crate) called: Option<Duration>,
    /// How often the time was asked for since it passed.
    spins: u32,
}

impl Machine {
    /// Whether the client's threads reach the brokers. After a pause, they do so once the relay has had its turn.
    pub(crate) fn reaches_brokers(&self, now: Duration) -> bool {
        now >= self.cut_off_until && now > self.paused_until
    }
}

/// The world, as its parts on one machine share it.
#[derive(Clone)]
pub(crate) struct Shared {
    world: Arc<(Mutex<World>, Condvar)>,
    pub(crate) base: Instant,
    pub(crate) machine: usize,
}

impl Shared {
    pub(crate) fn new(world: World) -> Self {
        Self { world: Arc::new((Mutex::new(world), Condvar::new())), base: Instant::now(), machine: 0 }
    }

    /// As seen from another machine.
    pub(crate) fn on(&self, machine: usize) -> Self {
        Self { machine, ..self.clone() }
    }

    pub(crate) fn with<T>(&self, act: impl FnOnce(&mut World) -> T) -> T {
        act(&mut self.lock())
    }

    /// This machine.
    pub(crate) fn here<T>(&self, act: impl FnOnce(&mut Machine) -> T) -> T {
        self.with(|world| act(&mut world.machines[self.machine]))
    }

    fn lock(&self) -> MutexGuard<'_, World> {
        self.world.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something happens; a process that is killed by it does not come back from here.
    pub(crate) fn step(&self) {
        self.with(World::step);
        self.end_if_killed();
    }

    /// The time since the world began.
    pub(crate) fn now(&self) -> Duration {
        self.with(|world| {
            let spins = &mut world.machines[self.machine].spins;
            *spins += 1;
            assert!(*spins < SPIN, "SPIN: the time is asked for again and again, and nobody waits");
            world.now
        })
    }

    /// The same, as the relay sees it.
    pub(crate) fn seen_now(&self) -> Duration {
        let now = self.now();
        match self.with(|world| (world.nature.mutant, world.machines[self.machine].called)) {
            (Some(Mutant::EndlessTurn), Some(called)) => called,
            _ => now,
        }
    }

    /// The same by a clock that counts the time for which a machine stands still.
    pub(crate) fn since_boot(&self) -> Duration {
        self.with(|world| match world.nature.mutant {
            Some(Mutant::StoppedClock) => world.now.saturating_sub(world.machines[self.machine].paused),
            _ => world.now,
        })
    }

    /// The relay has got something to do.
    pub(crate) fn does_not_spin(&self) {
        self.here(|machine| machine.spins = 0);
    }

    /// Time passes, and the other machine may run.
    pub(crate) fn wait(&self, duration: Duration) {
        let mut world = self.lock();
        let until = world.until(duration, self.machine);
        let here = &mut world.machines[self.machine];
        (here.wakes, here.spins) = (Some(until), 0);
        world.next();
        self.wait_for_turn(world);
        self.end_if_killed();
    }

    fn wait_for_turn(&self, world: MutexGuard<'_, World>) {
        let is_others = |world: &mut World| world.turn != self.machine && !world.failed;
        self.world.1.notify_all();
        let world = self.world.1.wait_while(world, is_others).unwrap_or_else(PoisonError::into_inner);
        drop(world);
    }

    fn end_if_killed(&self) {
        if self.with(|world| world.failed || world.machines[self.machine].crashed) {
            std::panic::resume_unwind(Box::new(Killed));
        }
    }

    /// Runs `run` on each of the first `count` machines, to their ends. What fails on one of them fails here.
    pub(crate) fn run_on(&self, count: usize, run: impl Fn(&Self) + Sync) {
        let run = &run;
        self.with(|world| world.machines.iter_mut().take(count).for_each(|machine| machine.wakes = Some(world.now)));
        std::thread::scope(|scope| {
            for machine in 1..count {
                let there = self.on(machine);
                scope.spawn(move || {
                    let leaves = Leaves(&there);
                    there.wait_for_turn(there.lock());
                    run(&there);
                    drop(leaves);
                });
            }
            let leaves = Leaves(self);
            run(self);
            drop(leaves);
        });
    }
}

/// The machine runs nothing any more.
struct Leaves<'a>(&'a Shared);

impl Drop for Leaves<'_> {
    fn drop(&mut self) {
        let mut world = self.0.lock();
        world.machines[self.0.machine].wakes = None;
        world.failed |= std::thread::panicking();
        world.next();
        drop(world);
        self.0.world.1.notify_all();
    }
}

impl World {
    /// When a machine that wants to wait for so long runs again.
    fn until(&mut self, duration: Duration, machine: usize) -> Duration {
        // A machine may be busy: a wait takes longer than asked for; where there is nothing to see it may take much longer.
        let sender = self.postgres.sender_of(machine);
        let dull = self.now < self.broker.down_until
            || sender.is_some_and(|sender| sender.frozen || self.now < sender.quiet_until);
        let most = if dull { Duration::from_millis(300) } else { duration * 3 };
        let longer = most.saturating_sub(duration).as_micros();
        let until = self.now + duration + Duration::from_micros(self.dice.below(u64::try_from(longer).unwrap() + 1));
        if self.calm_since.is_some() || !self.dice.one_in(self.nature.pause) {
            return until;
        }
        self.counts.pauses += 1;
        let pause = Duration::from_millis(self.dice.below(30_000));
        let machine = &mut self.machines[machine];
        machine.paused += pause;
        machine.paused_until = until + pause;
        until + pause
    }

    /// The machine that wakes first is the next to run.
    fn next(&mut self) {
        self.postgres.look_at_holder(self.now);
        let wakes = self.machines.iter().enumerate().filter_map(|(machine, it)| Some((it.wakes?, machine)));
        if let Some((wakes, machine)) = wakes.min() {
            self.now = self.now.max(wakes);
            self.turn = machine;
        }
    }
}
