//! Notes skipped rows in the world's server: late, and not at the first attempt.
//!
//! In: rows of the relay. Out: how many of them are noted, and the truth of which. An attempt is made when the relay looks and the time has
//! come. It fails while the server takes no new connections. What waits dies with its process.

use crate::lanes::Mutant;
use crate::machines::Shared;
use crate::world::World;
use std::time::Duration;
use walrelay::relay::NoteSkipped;
use walrelay::sink::{Failure, FailureClass};

/// The longest pause after a failed attempt.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

pub(crate) struct SimNoter {
    shared: Shared,
    /// The rows that wait.
    waiting: Vec<usize>,
    taken: u64,
    noted: u64,
    /// When the next attempt is made, and the pause if it fails.
    next: Duration,
    pause: Duration,
    has_failed: bool,
}

impl SimNoter {
    pub(crate) fn new(shared: &Shared) -> Self {
        let (next, pause) = (Duration::ZERO, Duration::from_millis(100));
        Self { shared: shared.clone(), waiting: Vec::new(), taken: 0, noted: 0, next, pause, has_failed: false }
    }

    fn attempt(&mut self) {
        let machine = self.shared.machine;
        let Self { shared, waiting, next, .. } = self;
        let noted = shared.with(|world| {
            if world.now < *next {
                return None;
            }
            let World { postgres, machines, .. } = &*world;
            let stops = postgres.sender.as_ref().is_some_and(|sender| sender.shutting_down);
            let no_server = world.now < postgres.down_until.max(machines[machine].no_server_until) || stops;
            let fails = world.calm_since.is_none() && world.dice.one_in(world.nature.no_note);
            if no_server || fails {
                world.counts.failed_notes += 1;
                return Some(false);
            }
            world.counts.notes += waiting.len() as u64;
            world.log(&format_args!("rows {waiting:?} are noted"));
            world.truth.noted.extend(waiting.drain(..));
            Some(true)
        });
        match noted {
            Some(true) => {
                (self.noted, self.has_failed, self.pause) = (self.taken, false, Duration::from_millis(100));
            }
            Some(false) => {
                (self.next, self.has_failed) = (self.shared.now() + self.pause, true);
                self.pause = (self.pause * 2).min(LONGEST_PAUSE);
            }
            None => {}
        }
    }
}

impl NoteSkipped for SimNoter {
    fn note(&mut self, id: Option<&str>) {
        let number = id.expect("an id").parse().expect("a row's number");
        if self.waiting.is_empty() {
            let after = self.shared.with(|world| world.dice.below(200));
            self.next = self.next.max(self.shared.now() + Duration::from_millis(after));
        }
        self.waiting.push(number);
        self.taken += 1;
    }

    fn noted(&mut self) -> u64 {
        if self.taken > self.noted {
            self.attempt();
        }
        if self.shared.with(|world| world.nature.mutant == Some(Mutant::NotedEarly)) { self.taken } else { self.noted }
    }

    fn failure(&mut self) -> Option<Failure> {
        let failure = || Failure::new(FailureClass::Environment, "note", "skipped rows cannot be noted");
        self.has_failed.then(failure)
    }
}
