//! `conformance-generated`: configurations drawn from a seed, each by Debezium's connector in a Kafka Connect worker and by the
//! relay, on the same rows, each with a slot and a Kafka of its own, record by record.
//!
//! What the relay refuses before the first record is told, and counts as such. Where Debezium's task ends, what came before is
//! compared. Anything else is a difference, named with the seed and number that repeat it.

mod draw;

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use walrelay_dev::conformance::compare;
use walrelay_dev::conformance::data::{Group, Record};
use walrelay_dev::conformance::ground::{self, Ground, LONG, Site};
use walrelay_dev::consume;
use walrelay_dev::debezium::{State, Worker};
use walrelay_dev::kafka::{Kafka, Options};
use walrelay_dev::relay::Relay;

use crate::binary::Binary;
use crate::screen;

/// Debezium's own, which are left out on purpose.
const CONTEXT: &str = "__debezium.context.";

/// How long Debezium may take for what the relay has written already.
const PATIENCE: Duration = Duration::from_secs(30);

/// A record too many would come within so long.
const GRACE: Duration = Duration::from_millis(300);

/// What may be said.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    binary: Binary,
    /// Postgres' major version, 14 to 18
    #[arg(long, default_value_t = 18)]
    postgres: u32,
    /// What the configurations are drawn from
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many
    #[arg(long, default_value_t = 300)]
    configurations: usize,
    /// The number of the first
    #[arg(long, default_value_t = 0)]
    from: usize,
    /// Begin no further one after so many minutes
    #[arg(long)]
    minutes: Option<u64>,
}

/// What was counted.
#[derive(Debug, Default)]
struct Count {
    configurations: usize,
    /// The relay would not run them, and said so before the first record.
    told: usize,
    /// Debezium's task ended.
    ended: usize,
    records: usize,
    differences: usize,
}

/// Whether there is no difference.
pub(crate) fn run(arguments: &Arguments) -> Result<bool> {
    let binary = arguments.binary.path()?;
    let ground = Ground::start(arguments.postgres)?;
    let other = Kafka::start(&Options { partitions: 1, ..Options::default() })?;
    let worker = Worker::start(ground.folder(), &other.brokers())?;
    let started = Instant::now();
    let limit = arguments.minutes.map(|minutes| Duration::from_secs(minutes * 60));
    let mut count = Count::default();
    for number in arguments.from..arguments.from + arguments.configurations {
        if limit.is_some_and(|limit| started.elapsed() > limit) {
            break;
        }
        let group = draw::group(arguments.seed, number);
        count.configurations += 1;
        let both = Both { group: &group, ground: &ground, other: &other, worker: &worker, binary: &binary };
        let differences = both.compare(&mut count).unwrap_or_else(|error| vec![format!("{error:#}")]);
        count.differences += differences.len();
        for difference in differences {
            screen::line(&format!("--seed {} --from {number}: {difference}", arguments.seed));
        }
    }
    let Count { configurations, told, ended, records, differences } = count;
    screen::line(&format!(
        "{configurations} configurations of seed {}: {records} records compared, {told} refused before the first record, Debezium's task ended in {ended}, {differences} differences",
        arguments.seed
    ));
    Ok(differences == 0)
}

/// One configuration, and where it runs.
struct Both<'a> {
    group: &'a Group,
    ground: &'a Ground,
    other: &'a Kafka,
    worker: &'a Worker,
    binary: &'a Path,
}

impl Both<'_> {
    fn compare(&self, count: &mut Count) -> Result<Vec<String>> {
        let (before, before_other) = (topics(self.ground.kafka())?, topics(self.other)?);
        let site = self.ground.furnish(self.group)?;
        let theirs = format!("{}_debezium", site.name);
        site.make_slot(&site.name)?;
        site.make_slot(&theirs)?;
        for kafka in [self.ground.kafka(), self.other] {
            ground::make_topics(kafka, &self.group.topics())?;
        }
        let mut relay = match self.start_relay(&site)? {
            ControlFlow::Continue(relay) => relay,
            ControlFlow::Break(log) => {
                count.told += 1;
                return Ok(if names_the_setting(&log) { Vec::new() } else { vec![format!("the relay ended: {log}")] });
            }
        };
        self.worker.add(&theirs, &site.connector(&theirs)?)?;
        let compared = self.on_both(&site, &theirs, &mut relay, (&before, &before_other), count);
        self.worker.remove(&theirs)?;
        if relay.exited()?.is_none() {
            relay.terminate(LONG)?;
        }
        compared
    }

    /// Until it streams; `Break`: it ended before, with these last words.
    fn start_relay(&self, site: &Site<'_>) -> Result<ControlFlow<String, Relay>> {
        let files = site.files(self.ground.folder(), &site.name, &self.ground.kafka().brokers())?;
        let mut arguments = vec!["run".to_owned()];
        arguments.extend(files.iter().map(|file| format!("--from-debezium={}", file.display())));
        arguments.extend(self.group.settings.iter().cloned());
        let mut relay = Relay::start(self.binary, &arguments, &[] as &[(&str, &str)])?;
        match relay.wait_streaming(LONG) {
            Ok(_) => Ok(ControlFlow::Continue(relay)),
            Err(_) if relay.exited()?.is_some() => Ok(ControlFlow::Break(relay.log())),
            Err(error) => Err(error),
        }
    }

    fn on_both(
        &self,
        site: &Site<'_>,
        theirs: &str,
        relay: &mut Relay,
        (before, before_other): (&BTreeSet<String>, &BTreeSet<String>),
        count: &mut Count,
    ) -> Result<Vec<String>> {
        self.wait_running(theirs)?;
        site.write()?;
        let code = site.wait_confirmed(&site.name, || relay.exited()).with_context(|| relay.log())?;
        let ours = new_records(self.ground.kafka(), before)?;
        if code.is_some() && ours.is_empty() && names_the_setting(&relay.log()) {
            count.told += 1;
            return Ok(Vec::new());
        }
        let deadline = Instant::now() + PATIENCE;
        let mut seen = new_records(self.other, before_other)?;
        let mut state = self.worker.state(theirs)?;
        let rows = self.group.cases.iter().map(|case| case.statements.len()).sum::<usize>();
        while seen.len() < rows && !matches!(state, State::Failed(_)) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(100));
            seen = new_records(self.other, before_other)?;
            state = self.worker.state(theirs)?;
        }
        std::thread::sleep(GRACE);
        seen = new_records(self.other, before_other)?;
        for record in &mut seen {
            record.headers.retain(|(name, _)| !name.starts_with(CONTEXT));
        }
        if let State::Failed(why) = &state {
            count.ended += 1;
            screen::line(&format!("{}: Debezium's task ended after {} records: {why}", self.group.name, seen.len()));
        }
        Ok(differences(&seen, &ours, &state, code, &relay.log(), count))
    }

    fn wait_running(&self, name: &str) -> Result<()> {
        let deadline = Instant::now() + LONG;
        while Instant::now() < deadline {
            match self.worker.state(name) {
                Ok(State::Failed(why)) => anyhow::bail!("Debezium does not start: {why}"),
                Ok(State::Running) if self.is_read(name)? => return Ok(()),
                _ => std::thread::sleep(Duration::from_millis(50)),
            }
        }
        anyhow::bail!("Debezium does not stream: {}", self.worker.tail())
    }

    fn is_read(&self, slot: &str) -> Result<bool> {
        let sql = "SELECT active FROM pg_replication_slots WHERE slot_name = $1";
        Ok(self.ground.postgres().connect(None)?.query_one(sql, &[&slot])?.get(0))
    }
}

/// In the order of each topic and partition.
fn differences(
    theirs: &[consume::Record],
    ours: &[consume::Record],
    state: &State,
    code: Option<i32>,
    log: &str,
    count: &mut Count,
) -> Vec<String> {
    let always = i64::MIN..=i64::MAX;
    let ended = matches!(state, State::Failed(_));
    let (theirs, ours) = (sorted(theirs), sorted(ours));
    let mut out = Vec::new();
    let topics: BTreeSet<&str> = theirs.iter().chain(&ours).map(|record| record.topic.as_str()).collect();
    for topic in topics {
        let of = |records: &[&consume::Record]| -> Vec<consume::Record> {
            records.iter().filter(|record| record.topic == topic).map(|record| (*record).clone()).collect()
        };
        let (theirs, ours) = (of(&theirs), of(&ours));
        count.records += theirs.len().min(ours.len());
        for (their, our) in theirs.iter().zip(&ours) {
            let expected = Record { partition: Some(their.partition), ..compare::as_data(their) };
            out.extend(
                compare::differences(&expected, our, &always).into_iter().map(|line| format!("{topic}: {line}")),
            );
        }
        if theirs.len() != ours.len() && !(ended && theirs.len() < ours.len()) && !(ended && code.is_some()) {
            out.push(format!("{topic}: Debezium wrote {} records, the relay {}: {log}", theirs.len(), ours.len()));
        }
    }
    out
}

/// Settings are refused by their keys, tables by their columns.
fn names_the_setting(log: &str) -> bool {
    log.contains("error: ") && (log.contains(", line ") || log.contains("column \""))
}

fn sorted(records: &[consume::Record]) -> Vec<&consume::Record> {
    let mut records: Vec<&consume::Record> = records.iter().collect();
    records.sort_by_key(|record| (&record.topic, record.partition, record.offset));
    records
}

fn topics(kafka: &Kafka) -> Result<BTreeSet<String>> {
    Ok(kafka.topics()?.into_iter().collect())
}

fn new_records(kafka: &Kafka, before: &BTreeSet<String>) -> Result<Vec<consume::Record>> {
    let now = topics(kafka)?;
    let new: Vec<&str> = now.difference(before).map(String::as_str).collect();
    consume::read_to_end(&kafka.client_config(), &new)
}
