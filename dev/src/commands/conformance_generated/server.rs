//! Drawn configurations, each by a Debezium Server of its own and by the relay, one after the other: a Kafka Connect worker has neither
//! profiles nor `.env`, and one environment for all of its connectors.
//!
//! In: groups with lines, variables and files. Out: each difference as a line, and what was counted.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, Result};
use walrelay_dev::conformance::beside;
use walrelay_dev::conformance::compare;
use walrelay_dev::conformance::data::{Group, Record};
use walrelay_dev::conformance::ground::{Ground, LONG, Site};
use walrelay_dev::consume;
use walrelay_dev::debezium::Debezium;
use walrelay_dev::kafka::{Kafka, Options};

use super::Arguments;
use super::places;
use crate::commands::conformance_debezium::{self, new_records, topics};
use crate::screen;

/// What became of one.
enum Outcome {
    /// The relay would not run it.
    Told(String),
    /// Debezium Server did not start.
    Ended(String),
    Compared {
        records: usize,
        /// Debezium Server has ended by itself: why.
        ended: Option<String>,
        differences: Vec<String>,
    },
}

/// Whether there is no difference.
pub(super) fn run(arguments: &Arguments, numbers: impl Iterator<Item = usize>) -> Result<bool> {
    let (binary, started) = (arguments.binary.path()?, Instant::now());
    let ground = Ground::start(arguments.postgres)?;
    let other = Kafka::start(&Options { partitions: 1, ..Options::default() })?;
    let (mut count, mut records, mut told, mut ended, mut differences) = (0, 0, 0, 0, 0);
    for number in numbers {
        let label = format!("--places --seed {} --from {number}", arguments.seed);
        count += 1;
        let outcome = compare(&places::group(arguments.seed, number), &ground, &other, &binary);
        let outcome = outcome.unwrap_or_else(|error| Outcome::Compared {
            records: 0,
            ended: None,
            differences: vec![format!("{error:#}")],
        });
        match outcome {
            Outcome::Told(why) => {
                told += 1;
                screen::line(&format!("{label}: refused: {why}"));
            }
            Outcome::Ended(why) => {
                ended += 1;
                screen::line(&format!("{label}: Debezium Server does not start: {why}"));
            }
            Outcome::Compared { records: compared, ended: why, differences: lines } => {
                records += compared;
                if let Some(why) = why {
                    ended += 1;
                    screen::line(&format!("{label}: Debezium Server ended after {compared} records: {why}"));
                }
                differences += lines.len();
                for line in lines {
                    screen::line(&format!("{label}: {line}"));
                }
            }
        }
    }
    screen::line(&format!(
        "places, seed {}, from {}: {count} configurations, {records} records compared, {told} refused before the first record, \
         Debezium Server ended by itself in {ended}, {differences} differences, {:.0} s",
        arguments.seed,
        arguments.from,
        started.elapsed().as_secs_f64()
    ));
    Ok(differences == 0)
}

fn compare(group: &Group, ground: &Ground, other: &Kafka, binary: &Path) -> Result<Outcome> {
    let site = ground.furnish(group)?;
    let theirs = format!("{}_debezium", site.name);
    site.make_slot(&site.name)?;
    site.make_slot(&theirs)?;
    let outcome = on_site(group, &site, &theirs, ground, other, binary);
    let cleared = ground.clear(&site, &[&site.name, &theirs]);
    outcome.and_then(|outcome| cleared.map(|()| outcome))
}

fn on_site(
    group: &Group,
    site: &Site<'_>,
    slot: &str,
    ground: &Ground,
    other: &Kafka,
    binary: &Path,
) -> Result<Outcome> {
    let before: [BTreeSet<String>; 2] = [topics(ground.kafka())?, topics(other)?];
    let mut relay = site.start_relay(ground, binary)?;
    if let Err(error) = relay.wait_streaming(LONG) {
        let words = beside::last_words(&relay.log());
        // A name of a column, a pattern: what Debezium would not start with either is told as well.
        return if relay.exited()?.is_some() && !words.is_empty() { Ok(Outcome::Told(words)) } else { Err(error) };
    }
    let properties = conformance_debezium::properties(site, ground, slot, other)?;
    let mut debezium = match Debezium::start_with(ground.folder(), &properties, &group.files, &group.variables) {
        Ok(debezium) => debezium,
        Err(error) => return Ok(Outcome::Ended(causes(&format!("{error:#}")))),
    };
    if let Err(error) = conformance_debezium::wait_active(site, slot, &mut debezium) {
        return Ok(Outcome::Ended(causes(&format!("{error:#}"))));
    }
    site.write(&mut || Ok(usize::MAX))?;
    let code = site.wait_confirmed(&site.name, || relay.exited()).with_context(|| relay.log())?;
    let ours = new_records(ground.kafka(), &before[0])?;
    let theirs = conformance_debezium::wait_for_records(&mut debezium, other, &before[1], ours.len())?;
    let ended = debezium.exited()?.map(|_| causes(&debezium.tail()));
    debezium.stop()?;
    if code.is_none() {
        relay.terminate(LONG)?;
    }
    let differences = differences(&theirs, &ours, ended.is_some(), code.map(|_| beside::last_words(&relay.log())));
    Ok(Outcome::Compared { records: theirs.len().min(ours.len()), ended, differences })
}

/// What Java names as such, on one line.
fn causes(text: &str) -> String {
    let causes = text.lines().filter(|line| line.contains("Caused by") || line.contains("ERROR"));
    causes.take(2).collect::<Vec<_>>().join(" / ")
}

/// `has_ended`: Debezium has, by itself; `stopped`: so has the relay, with these words.
fn differences(
    theirs: &[consume::Record],
    ours: &[consume::Record],
    has_ended: bool,
    stopped: Option<String>,
) -> Vec<String> {
    let expected: Vec<Record> = theirs.iter().map(compare::as_data).collect();
    let pairs: Vec<_> = expected.iter().map(|record| ("Debezium", record)).collect();
    let mut lines = compare::compare(&pairs, ours, &(i64::MIN..=i64::MAX));
    if has_ended {
        // What came before is compared: where Debezium stops, the relay may go on.
        lines.retain(|line| !line.contains("one more than expected"));
    } else {
        lines.extend(stopped);
    }
    lines
}
