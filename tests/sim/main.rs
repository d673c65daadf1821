//! A seeded simulation: the real relay between a scripted Postgres and a scripted broker, without sockets or sleep.
//!
//! ```text
//!  dice ──► world: commits, batches, cuts, crashes, outages, pauses ──► relay, standby ──► truth judges every record and position
//! ```
//!
//! One seed is one run, the same on every machine. A failure prints its seed and how to run it again. The sink is one of three: one
//! client that fails as a whole, one with transactions, and the real rule of Kafka's partitions over a scripted cluster; that the judge
//! notices a sink that breaks this rule, [`mutants`] shows.

#![allow(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "what is missing here is a mistake of the test, and the panic says where"
)]

mod broker;
mod bytes;
mod cluster;
mod dice;
mod ends;
mod lanes;
mod machines;
mod mutants;
mod nature;
mod noter;
mod postgres;
mod process;
mod run;
mod scenarios;
mod transactions;
mod truth;
mod wal;
mod world;

/// Steps of all runs together: some twenty-five seconds of an unoptimised build.
const STEPS: u64 = 500_000;

/// Where the seeds begin when none is asked for.
const FIRST_SEED: u64 = 1;

/// Says which seed it was.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("seed {0} failed; to run it again: WALRELAY_SEED={0} cargo test --test sim any_faults", self.0);
        }
    }
}

#[test]
fn any_faults_lose_nothing_swap_nothing_and_repeat_only_what_a_crash_repeats() {
    if let Ok(seed) = std::env::var("WALRELAY_SEED") {
        let seed = Seed(seed.parse().expect("WALRELAY_SEED is a number"));
        println!("{:?}", run::run_seed(seed.0));
        return;
    }
    let budget = std::env::var("WALRELAY_STEPS").map_or(STEPS, |steps| steps.parse().expect("WALRELAY_STEPS"));
    let (mut steps, mut runs) = (0, FIRST_SEED);
    let mut totals = world::Counts::default();
    while steps < budget {
        let seed = Seed(runs);
        let (counts, taken) = run::run_seed(seed.0);
        totals.add(&counts);
        steps += taken;
        runs += 1;
    }
    println!("{} seeds, {steps} steps: {totals:?}", runs - FIRST_SEED);
    totals.each_happened();
}
