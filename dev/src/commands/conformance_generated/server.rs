//! Drawn configurations, each by a Debezium Server of its own and by the relay, one after the other: a Kafka Connect worker has neither
//! profiles nor `.env`, and one environment for all of its connectors.
//!
//! In: groups with lines, variables and files. Out: each difference as a line, and what was counted.

use std::time::Instant;

use anyhow::Result;
use walrelay_dev::conformance::beside::{Beside, Both, Count, Outcome, Topics};
use walrelay_dev::conformance::compare;
use walrelay_dev::conformance::data::Record;

use super::{Arguments, places};
use crate::screen;

/// Whether there is no difference.
pub(super) fn run(arguments: &Arguments, numbers: impl Iterator<Item = usize>) -> Result<bool> {
    let (seed, started) = (arguments.seed, Instant::now());
    let beside = Beside::of_servers(arguments.postgres, arguments.binary.path()?)?;
    let outcomes: Vec<Outcome> = numbers
        .map(|number| {
            let both = beside.both(&places::group(seed, number), &Topics::New);
            let outcome = both.map_or_else(|error| Outcome::failed(&error), compared);
            outcome.say(&format!("--places --seed {seed} --from {number}"), screen::line);
            outcome
        })
        .collect();
    let count = Count::of(&outcomes);
    let seconds = started.elapsed().as_secs_f64();
    screen::line(&format!("places, seed {seed}, from {}: {count}, {seconds:.0} s", arguments.from));
    Ok(count.differences == 0)
}

/// What Java names as such, on one line.
fn causes(text: &str) -> String {
    let causes = text.lines().filter(|line| line.contains("Caused by") || line.contains("ERROR"));
    causes.take(2).collect::<Vec<_>>().join(" / ")
}

/// Compares the records of both, up to the one where either ended by itself.
fn compared(both: Both) -> Outcome {
    let expected: Vec<Record> = both.debezium.iter().map(compare::as_data).collect();
    let pairs: Vec<_> = expected.iter().map(|record| ("Debezium", record)).collect();
    let mut differences = compare::compare(&pairs, &both.walrelay, &(i64::MIN..=i64::MAX));
    let ended = both.unstarted.or(both.ended);
    if ended.is_some() {
        // What came before is compared: where Debezium stops, the relay may go on.
        differences.retain(|line| !line.contains("one more than expected"));
    } else {
        differences.extend(both.stopped);
    }
    let records = both.debezium.len().min(both.walrelay.len());
    Outcome { told: both.told, ended: ended.map(|text| causes(&text)), records, differences }
}
