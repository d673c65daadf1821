//! That the judge sees what it is there for: a Kafka sink that breaks the rule of its partitions is found by the rows it swaps, and a
//! relay that does not hold back what it has in flight by the old records that it writes behind newer ones; and a position or a progress that
//! passes a skipped row before its note.

use crate::lanes::Mutant;
use crate::run::run_with;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// So many runs are enough to find it.
const RUNS: u64 = 1000;

/// The first seed, from `first` on, with which the judge says `what`. With `first` itself it has said it: a seed that draws other
/// faults after a change is passed by.
fn found(mutant: Mutant, first: u64, what: &str) -> Option<(u64, String)> {
    (first..first + RUNS).find_map(|seed| {
        let panic = catch_unwind(AssertUnwindSafe(|| run_with(seed, Some(mutant)))).err()?;
        let said = panic.downcast::<String>().ok().filter(|said| said.contains(what))?;
        Some((seed, *said))
    })
}

#[test]
fn two_requests_of_an_unproven_partition_under_way_are_found() {
    println!("{:?}", found(Mutant::Unproven, 1018, " appears ").expect("rows are swapped"));
}

#[test]
fn a_keys_rows_in_two_lanes_are_found() {
    println!("{:?}", found(Mutant::TwoLanes, 5, " appears ").expect("rows are swapped"));
}

#[test]
fn a_queue_that_is_not_held_after_a_refusal_is_found() {
    println!("{:?}", found(Mutant::NotHeld, 2, " appears ").expect("rows are swapped"));
}

#[test]
fn clients_that_are_ended_once_the_slot_is_free_are_found() {
    println!("{:?}", found(Mutant::ClosedLate, 148, "STALE").expect("keys are stale"));
}

#[test]
fn a_client_that_is_replaced_and_goes_on_sending_is_found() {
    println!("{:?}", found(Mutant::NotClosed, 94, "STALE").expect("keys are stale"));
}

#[test]
fn records_that_are_forgotten_before_the_connection_is_closed_are_found() {
    println!("{:?}", found(Mutant::ForgottenFirst, 15, "LOSS").expect("a keepalive confirms them"));
}

#[test]
fn a_parked_sink_that_sends_is_found() {
    println!("{:?}", found(Mutant::ParkedSends, 666, "STALE").expect("keys are stale"));
}

#[test]
fn a_turn_without_end_is_found() {
    println!("{:?}", found(Mutant::EndlessTurn, 18, "SILENT").expect("no status update goes out"));
}

#[test]
fn a_successor_that_sends_at_once_is_found() {
    println!("{:?}", found(Mutant::NoSecond, 128, "STALE").expect("keys are stale"));
}

#[test]
fn a_clock_that_stops_while_the_machine_does_is_found() {
    println!("{:?}", found(Mutant::StoppedClock, 49, "STALE").expect("keys are stale"));
}

#[test]
fn a_position_that_passes_a_skipped_row_before_its_note_is_found() {
    println!("{:?}", found(Mutant::NotedEarly, 0, "LOSS").expect("prune would delete the row"));
}

#[test]
fn a_progress_that_passes_a_skipped_row_before_its_note_is_found() {
    println!("{:?}", found(Mutant::NotedEarly, 0, "UNNOTED").expect("prune would delete the row"));
}
