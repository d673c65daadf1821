//! That the judge sees what it is there for: a Kafka sink that breaks the rule of its partitions is found by the rows it swaps.

use crate::lanes::Mutant;
use crate::run::run_with;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// So many runs are enough to find it.
const RUNS: u64 = 400;

/// The first seed with which rows are swapped.
fn found(mutant: Mutant) -> Option<(u64, String)> {
    (1..=RUNS).find_map(|seed| {
        let panic = catch_unwind(AssertUnwindSafe(|| run_with(seed, Some(mutant)))).err()?;
        let said = panic.downcast::<String>().ok().filter(|said| said.contains(" appears "))?;
        Some((seed, *said))
    })
}

#[test]
fn two_requests_of_an_unproven_partition_under_way_are_found() {
    println!("{:?}", found(Mutant::Unproven).expect("rows are swapped"));
}

#[test]
fn a_keys_rows_in_two_lanes_are_found() {
    println!("{:?}", found(Mutant::TwoLanes).expect("rows are swapped"));
}

#[test]
fn a_queue_that_is_not_held_after_a_refusal_is_found() {
    println!("{:?}", found(Mutant::NotHeld).expect("rows are swapped"));
}
