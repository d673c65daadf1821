//! The way from Debezium to the relay and back, as somebody goes it who has its files and a running slot: a shadow run beside
//! it on a copy of the slot, the switch, the return. Rows are written all the time, also while neither runs; each must be in its
//! topic, in the order of its key, and on the partition that the key has had before.

mod scenario;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use walrelay_dev::background;
use walrelay_dev::conformance::ground::{Ground, LONG, Site};
use walrelay_dev::consume::{self, Record};
use walrelay_dev::debezium::{CONTEXT, Running, State, Worker};
use walrelay_dev::process;
use walrelay_dev::relay::Relay;

use crate::chosen::Chosen;
use crate::screen;
use scenario::{Scenario, scenarios};

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    chosen: Chosen,
    /// How many run at the same time
    #[arg(long, default_value_t = 3)]
    at_once: usize,
}

/// Returns whether no migration lost or swapped a row, or sent one to another partition.
pub(crate) fn run(arguments: &Arguments) -> Result<bool> {
    let binary = arguments.chosen.binary.path()?;
    let ground = Ground::start(arguments.chosen.postgres)?;
    let worker = Worker::start(ground.folder(), &ground.kafka().brokers())?;
    let chosen = scenarios().into_iter().filter(|scenario| arguments.chosen.has(&scenario.to_string()));
    let moved = background::each(chosen, arguments.at_once, |scenario| migrate(&ground, &worker, &binary, scenario));
    let (good, count) = (moved.iter().filter(|moved| **moved).count(), moved.len());
    screen::line(&format!("{good} of {count} migrations there and back without a difference"));
    Ok(good == count)
}

/// Moves one configuration, and prints its lines together at the end: several run at the same time.
fn migrate(ground: &Ground, worker: &Worker, binary: &Path, scenario: Scenario) -> bool {
    let (started, mut said) = (Instant::now(), Vec::new());
    let moved = move_all(ground, worker, binary, scenario, &mut said);
    let good = moved.as_ref().is_ok_and(|good| *good);
    if let Err(error) = moved {
        said.push(format!("failed: {error:#}"));
    }
    let lines = said.join("\n   ");
    screen::line(&format!("{scenario} ({:.0} s):\n   {lines}", started.elapsed().as_secs_f64()));
    good
}

fn move_all(
    ground: &Ground,
    worker: &Worker,
    binary: &Path,
    scenario: Scenario,
    said: &mut Vec<String>,
) -> Result<bool> {
    let group = scenario.group();
    let site = ground.furnish(&group)?;
    site.make_slot(&site.name)?;
    ground.make_topics(&group)?;
    Move { ground, binary, worker, site: &site, scenario, written: 0, said }.go()
}

struct Move<'m> {
    ground: &'m Ground,
    binary: &'m Path,
    worker: &'m Worker,
    site: &'m Site<'m>,
    scenario: Scenario,
    /// Rows, which are numbered from 1.
    written: i64,
    said: &'m mut Vec<String>,
}

impl Move<'_> {
    fn go(mut self) -> Result<bool> {
        let (name, brokers) = (&self.site.name, self.ground.kafka().brokers());
        let mut old = self.site.start_debezium(self.ground, name, &brokers, Some(self.worker))?;
        self.site.wait_streaming(name, &mut old)?;
        self.write(20)?;
        self.arrive(&mut old)?;
        let shadow = self.shadow(&mut old)?;
        old.stop()?;
        self.site.wait_released(name)?;
        let switch = self.switch()?;
        let back = self.back(&mut old)?;
        old.stop()?;
        Ok(shadow && switch && back)
    }

    fn files(&self) -> Result<Vec<PathBuf>> {
        self.site.files(self.ground.folder(), &self.site.name, &self.ground.kafka().brokers())
    }

    /// Beside Debezium, on a copy of its slot, into topics of its own.
    fn shadow(&mut self, old: &mut Running<'_>) -> Result<bool> {
        let copy = format!("{}_shadow", self.site.name);
        let sql = format!("SELECT pg_copy_logical_replication_slot('{}', '{copy}')", self.site.name);
        self.site.connect()?.batch_execute(&sql)?;
        let mut arguments = vec!["run".to_owned()];
        arguments.extend(self.files()?.iter().map(|file| format!("--from-debezium={}", file.display())));
        arguments.extend([format!("--slot={copy}"), "--topic=shadow.{route}".to_owned()]);
        let mut relay = Relay::start(self.binary, &arguments, &[] as &[(&str, &str)])?;
        relay.wait_streaming(LONG)?;
        self.write(30)?;
        self.arrive(old)?;
        self.site.wait_confirmed(&copy, || relay.exited())?;
        relay.terminate(LONG)?;
        self.site.connect()?.batch_execute(&format!("SELECT pg_drop_replication_slot('{copy}')"))?;
        let (theirs, ours) = (self.records("outbox.event")?, self.records("shadow")?);
        let of_shadow: BTreeMap<i64, &Record> = ours.iter().map(|record| (number(record), record)).collect();
        let same = |their: &&Record| {
            of_shadow.get(&number(their)).is_none_or(|our| {
                (&their.key, &their.value, &their.headers, their.partition)
                    == (&our.key, &our.value, &our.headers, our.partition)
            })
        };
        let alike = ours.len() >= 30 && theirs.iter().all(|their| same(&their));
        let verdict = if alike { "identical, on the same partitions" } else { "DIFFERENT" };
        self.said.push(format!("shadow run: {} records beside Debezium's: {verdict}", ours.len()));
        Ok(alike)
    }

    /// Debezium has stopped; rows are written; the relay starts on the same slot.
    fn switch(&mut self) -> Result<bool> {
        let before = self.records("outbox.event")?;
        self.write(10)?;
        let mut relay = self.site.start_relay(self.ground, self.binary)?;
        relay.wait_streaming(LONG)?;
        self.write(10)?;
        self.site.wait_confirmed(&self.site.name, || relay.exited())?;
        let exit = relay.terminate(LONG)?;
        if exit.code != 0 {
            bail!("the relay ended with {}: {}", exit.code, relay.log());
        }
        self.report("switch", &before)
    }

    /// The relay has stopped; rows are written; Debezium starts again, from the slot's position.
    fn back(&mut self, old: &mut Running<'_>) -> Result<bool> {
        let before = self.records("outbox.event")?;
        self.write(10)?;
        old.start_again()?;
        self.site.wait_streaming(&self.site.name, old)?;
        self.write(10)?;
        self.arrive(old)?;
        self.report("return", &before)
    }

    fn write(&mut self, rows: i64) -> Result<()> {
        let mut client = self.site.connect()?;
        for n in self.written + 1..=self.written + rows {
            client.batch_execute(&self.scenario.insert(n))?;
        }
        self.written += rows;
        Ok(())
    }

    /// Waits until the last row is there.
    fn arrive(&self, old: &mut Running<'_>) -> Result<()> {
        let last = self.written;
        process::wait_until(LONG, &format!("row {last}"), || {
            thread::sleep(Duration::from_millis(100));
            if let State::Failed(why) = old.state()? {
                bail!("Debezium has ended: {why}");
            }
            Ok(self.records("outbox.event")?.iter().any(|record| number(record) == last))
        })
    }

    fn records(&self, prefix: &str) -> Result<Vec<Record>> {
        let topics = self.scenario.topics(prefix);
        let topics: Vec<&str> = topics.iter().map(String::as_str).collect();
        let mut records = consume::read_to_end(&self.ground.kafka().client_config(), &topics)?;
        for record in &mut records {
            record.headers.retain(|(name, _)| !name.starts_with(CONTEXT));
        }
        records.sort_by(|a, b| (&a.topic, a.partition, a.offset).cmp(&(&b.topic, b.partition, b.offset)));
        Ok(records)
    }

    /// Whether all are there, each key's in their order, on one partition.
    fn report(&mut self, what: &str, before: &[Record]) -> Result<bool> {
        let now = self.records("outbox.event")?;
        let seen: BTreeSet<i64> = now.iter().map(number).collect();
        let missing: Vec<i64> = (1..=self.written).filter(|n| !seen.contains(n)).collect();
        let mut keys: BTreeMap<(&str, String), Vec<&Record>> = BTreeMap::new();
        for record in &now {
            keys.entry((&record.topic, record.key_text())).or_default().push(record);
        }
        let stays = |records: &Vec<&Record>| {
            let partitions: BTreeSet<i32> = records.iter().map(|record| record.partition).collect();
            partitions.len() == 1
        };
        let (stay, in_order) = (keys.values().all(stays), keys.values().all(|records| first_times_in_order(records)));
        self.said.push(format!(
            "{what}: {} of {} rows there, {} repeated, missing {missing:?}, {}, {}",
            seen.len(),
            self.written,
            (now.len() + before.iter().map(number).collect::<BTreeSet<_>>().len()) - (before.len() + seen.len()),
            if in_order { "in order" } else { "OUT OF ORDER" },
            if stay { "each key on its partition" } else { "KEYS ON OTHER PARTITIONS" }
        ));
        Ok(missing.is_empty() && in_order && stay)
    }
}

fn first_times_in_order(records: &[&Record]) -> bool {
    let mut seen = BTreeSet::new();
    let first: Vec<i64> = records.iter().map(|record| number(record)).filter(|n| seen.insert(*n)).collect();
    first.is_sorted()
}

/// The row's own number: the header's text, or what stands last in its JSON.
fn number(record: &Record) -> i64 {
    let text = record.header("id").unwrap_or_default().trim_end_matches('}');
    let digits = text.rfind(|c: char| !c.is_ascii_digit()).map_or(0, |at| at + 1);
    text.get(digits..).and_then(|digits| digits.parse().ok()).unwrap_or(-1)
}
