//! Groups by Debezium's connector in a Kafka Connect worker and by the relay, on the same rows, each with a slot and a Kafka of
//! its own, record by record.
//!
//! In: groups with a connector, none of which writes to another's topics: several run at the same time. Out: each difference
//! as a line, and what was counted. What the relay refuses before the first record is shown, and counts as refused. Where
//! Debezium's task ends, what came before is compared.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use super::compare;
use super::data::{Group, Record};
use super::doors::Broker;
use super::ground::{self, Ground, LONG, Site};
use crate::consume;
use crate::debezium::{CONTEXT, State, Worker};
use crate::kafka::Kafka;
use crate::relay::Relay;

/// How long Debezium may take for what the relay has written already: on a machine that has much else to do, a minute.
const PATIENCE: Duration = Duration::from_mins(2);

/// A record too many would come within so long.
const GRACE: Duration = Duration::from_millis(300);

/// How often Debezium is asked how far it is.
const POLL: Duration = Duration::from_millis(100);

/// Where both run.
#[derive(Debug)]
pub struct Beside {
    ground: Ground,
    other: Broker,
    worker: Worker,
    binary: PathBuf,
}

/// Which topics are a group's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Topics {
    /// Those of its records.
    OfRecords,
    /// Those whose names begin so. The last row is alone in the one whose name ends with [`LAST`] after that.
    Below(String),
}

/// The end of the last row's topic.
pub const LAST: &str = "end";

/// One comparison.
#[derive(Debug)]
pub struct Pair {
    /// What repeats it.
    pub label: String,
    /// Has a connector.
    pub group: Group,
    /// Both write there.
    pub topics: Topics,
}

/// What was counted.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Count {
    /// Groups that were begun.
    pub groups: usize,
    /// The relay would not run them, and said so before the first record.
    pub told: usize,
    /// Debezium's task ended.
    pub ended: usize,
    /// Pairs of records.
    pub records: usize,
    /// Lines.
    pub differences: usize,
}

/// The outcome of one configuration.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The relay refused it before the first record, with these words.
    pub told: Option<String>,
    /// Debezium ended by itself, for this reason.
    pub ended: Option<String>,
    /// Records that were compared.
    pub records: usize,
    /// Lines.
    pub differences: Vec<String>,
}

impl Outcome {
    /// The comparison itself failed, which counts as a difference.
    pub fn failed(error: &anyhow::Error) -> Self {
        Self { differences: vec![format!("{error:#}")], ..Self::default() }
    }
}

impl Beside {
    /// Starts Postgres, two Kafkas and the worker.
    ///
    /// # Errors
    /// One of them does not start.
    pub fn start(major: u32, binary: PathBuf) -> Result<Self> {
        Self::with(Broker::open()?, Broker::open()?, major, binary)
    }

    /// The same, where configurations can name guarded doors: see [`super::doors`]. Behind those, topics begin with `prefix`.
    ///
    /// # Errors
    /// As there.
    pub fn guarded(major: u32, binary: PathBuf, prefix: &str) -> Result<Self> {
        Self::with(Broker::guarded(prefix)?, Broker::guarded(prefix)?, major, binary)
    }

    fn with(own: Broker, other: Broker, major: u32, binary: PathBuf) -> Result<Self> {
        let ground = Ground::beside(major, own)?;
        let worker = Worker::start(ground.folder(), &other.kafka().brokers())?;
        Ok(Self { ground, other, worker, binary })
    }

    /// Whether the server has what the group wants.
    ///
    /// # Errors
    /// The server does not answer.
    pub fn has(&self, group: &Group) -> Result<bool> {
        self.ground.has(group)
    }

    /// Compares all, so many at once; `say` gets what is to be shown.
    ///
    /// # Errors
    /// A Kafka does not say which topics it has.
    pub fn compare_all(
        &self,
        pairs: impl Iterator<Item = Pair> + Send,
        at_once: usize,
        say: impl Fn(&str) + Sync,
    ) -> Result<Count> {
        let pairs = Mutex::new(pairs);
        let count = Mutex::new(Count::default());
        let topics = Mutex::new(Vec::new());
        let next = || pairs.lock().ok().and_then(|mut pairs| pairs.next());
        thread::scope(|scope| {
            for _ in 0..at_once.max(1) {
                scope.spawn(|| {
                    while let Some(pair) = next() {
                        let outcome = self.compare(&pair).unwrap_or_else(|error| Outcome::failed(&error));
                        if let (Ok(mut count), Ok(mut topics)) = (count.lock(), topics.lock()) {
                            count.take(&pair.label, outcome, &say);
                            topics.push((
                                pair.topics.clone(),
                                pair.group.topics().into_keys().map(str::to_owned).collect(),
                            ));
                        }
                    }
                });
            }
        });
        let mut count = count.into_inner().unwrap_or_default();
        for stray in self.strays(&topics.into_inner().unwrap_or_default())? {
            count.differences += 1;
            say(&format!("topic {stray} is no group's"));
        }
        Ok(count)
    }

    /// Topics that no group should have written to.
    fn strays(&self, known: &[(Topics, BTreeSet<String>)]) -> Result<BTreeSet<String>> {
        let is_known = |topic: &String| {
            known.iter().any(|(topics, named)| match topics {
                Topics::OfRecords => named.contains(topic),
                Topics::Below(prefix) => topic.starts_with(prefix),
            })
        };
        let all = [self.ground.kafka().topics()?, self.other.kafka().topics()?].concat();
        Ok(all.into_iter().filter(|topic| !is_known(topic)).collect())
    }

    fn compare(&self, pair: &Pair) -> Result<Outcome> {
        let site = self.ground.furnish(&pair.group)?;
        let theirs = format!("{}_debezium", site.name);
        site.make_slot(&site.name)?;
        site.make_slot(&theirs)?;
        for kafka in [self.ground.kafka(), self.other.kafka()] {
            ground::make_topics(kafka, &pair.group.topics())?;
        }
        let outcome = self.on_site(pair, &site, &theirs);
        let cleared = self.ground.clear(&site, &[&site.name, &theirs]);
        outcome.and_then(|outcome| cleared.map(|()| outcome))
    }

    fn on_site(&self, pair: &Pair, site: &Site<'_>, theirs: &str) -> Result<Outcome> {
        let ours = self.ground.filled(&pair.group, None)?;
        let mut relay = match self.start_relay(&site.with(&ours))? {
            ControlFlow::Continue(relay) => relay,
            ControlFlow::Break(words) if names_the_setting(&words) => {
                return Ok(Outcome { told: Some(words), ..Outcome::default() });
            }
            ControlFlow::Break(words) => bail!("the relay ended: {words}"),
        };
        let group = self.ground.filled(&pair.group, Some(&self.other))?;
        self.worker.add(theirs, &site.with(&group).connector(theirs)?)?;
        let compared = self.on_both(pair, site, theirs, &mut relay);
        self.worker.remove(theirs)?;
        if relay.exited()?.is_none() {
            relay.terminate(LONG)?;
        }
        compared
    }

    /// Until it streams; `Break`: it ended before, with these last words.
    fn start_relay(&self, site: &Site<'_>) -> Result<ControlFlow<String, Relay>> {
        let mut relay = site.start_relay(&self.ground, &self.binary)?;
        match relay.wait_streaming(LONG) {
            Ok(_) => Ok(ControlFlow::Continue(relay)),
            Err(_) if relay.exited()?.is_some() => Ok(ControlFlow::Break(last_words(&relay.log()))),
            Err(error) => Err(error.context(relay.log())),
        }
    }

    fn on_both(&self, pair: &Pair, site: &Site<'_>, theirs: &str, relay: &mut Relay) -> Result<Outcome> {
        self.wait_streaming(site, theirs)?;
        let mut come = [0; 2];
        let written = site.write(&mut || {
            if relay.exited()?.is_some() || matches!(self.worker.state(theirs)?, State::Failed(_)) {
                return Ok(usize::MAX);
            }
            come = [read(self.ground.kafka(), pair)?.len(), read(self.other.kafka(), pair)?.len()];
            Ok(come[0].min(come[1]))
        });
        written.with_context(|| {
            let ([ours, others], state) = (come, self.worker.state(theirs));
            format!("the relay wrote {ours}, Debezium, which is {state:?}, {others}: {}", relay.log())
        })?;
        let code = site.wait_confirmed(&site.name, || relay.exited()).with_context(|| relay.log())?;
        let ours = read(self.ground.kafka(), pair)?;
        let ended = code.map(|_| last_words(&relay.log()));
        if let Some(words) = ended.as_ref().filter(|words| ours.is_empty() && names_the_setting(words)) {
            // A table is refused where it begins, if the slot lies before that.
            return Ok(Outcome { told: Some(words.clone()), ..Outcome::default() });
        }
        let state = self.wait_for_records(pair, theirs, ours.len())?;
        let mut seen = read(self.other.kafka(), pair)?;
        for record in &mut seen {
            record.headers.retain(|(name, _)| !name.starts_with(CONTEXT));
        }
        let mut outcome = Outcome::default();
        if let State::Failed(why) = state {
            outcome.ended = Some(format!("after {} records: {why}", seen.len()));
        }
        differences(pair, &seen, &ours, ended.as_deref(), &mut outcome);
        Ok(outcome)
    }

    fn wait_streaming(&self, site: &Site<'_>, slot: &str) -> Result<()> {
        let mut client = site.connect()?;
        let sql = "SELECT active FROM pg_replication_slots WHERE slot_name = $1";
        let deadline = Instant::now() + LONG;
        while Instant::now() < deadline {
            if client.query_one(sql, &[&slot])?.get(0) {
                return Ok(());
            }
            if let Ok(State::Failed(why)) = self.worker.state(slot) {
                bail!("Debezium does not start: {why}");
            }
            thread::sleep(POLL);
        }
        bail!("Debezium does not stream: {}", self.worker.tail())
    }

    /// Until the last row is there, the task has ended, or time is up: how it is then.
    fn wait_for_records(&self, pair: &Pair, name: &str, wanted: usize) -> Result<State> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let there = match &pair.topics {
                Topics::OfRecords => read(self.other.kafka(), pair)?.len() >= wanted,
                Topics::Below(prefix) => {
                    consume::count(&self.other.kafka().client_config(), &format!("{prefix}{LAST}"))? > 0
                }
            };
            let state = self.worker.state(name)?;
            if there || matches!(state, State::Failed(_)) || Instant::now() >= deadline {
                thread::sleep(GRACE);
                return Ok(state);
            }
            thread::sleep(POLL);
        }
    }
}

impl Count {
    /// Says what came of one configuration, and counts it.
    pub fn take(&mut self, label: &str, outcome: Outcome, say: impl Fn(&str)) {
        self.groups += 1;
        self.records += outcome.records;
        if let Some(why) = outcome.told {
            self.told += 1;
            say(&format!("{label}: refused: {why}"));
        }
        if let Some(why) = outcome.ended {
            self.ended += 1;
            say(&format!("{label}: Debezium ended: {why}"));
        }
        for difference in outcome.differences {
            self.differences += 1;
            say(&format!("{label}: {difference}"));
        }
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { groups, told, ended, records, differences } = self;
        write!(
            f,
            "{groups} configurations, {records} records compared, {told} refused before the first record, \
             Debezium ended by itself in {ended}, {differences} differences"
        )
    }
}

fn read(kafka: &Kafka, pair: &Pair) -> Result<Vec<consume::Record>> {
    let all = match &pair.topics {
        Topics::OfRecords => pair.group.topics().into_keys().map(str::to_owned).collect(),
        Topics::Below(prefix) => {
            kafka.topics()?.into_iter().filter(|topic| topic.starts_with(prefix)).collect::<Vec<_>>()
        }
    };
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let mut config = kafka.client_config();
    // Nobody opens a transaction here, so that there is no marker to wait for.
    config.set("isolation.level", "read_uncommitted");
    consume::read_to_end(&config, &all)
}

/// In the order of each partition. `stopped`: the relay has ended by itself, with these words.
fn differences(
    pair: &Pair,
    theirs: &[consume::Record],
    ours: &[consume::Record],
    stopped: Option<&str>,
    outcome: &mut Outcome,
) {
    let always = i64::MIN..=i64::MAX;
    let partitions: BTreeSet<(&str, i32)> =
        theirs.iter().chain(ours).map(|record| (record.topic.as_str(), record.partition)).collect();
    for (topic, partition) in partitions {
        let (theirs, ours) = (of_partition(theirs, topic, partition), of_partition(ours, topic, partition));
        outcome.records += theirs.len().min(ours.len());
        for (their, our) in theirs.iter().zip(&ours) {
            let timestamp = has_timestamp(&pair.group).then_some(their.timestamp).flatten();
            let expected = Record { timestamp, ..compare::as_data(their) };
            let lines = compare::differences(&expected, our, &always);
            outcome.differences.extend(lines.into_iter().map(|line| format!("{topic}: {line}")));
        }
        let ended = outcome.ended.is_some();
        if theirs.len() != ours.len() && !(ended && (theirs.len() < ours.len() || stopped.is_some())) {
            let line = format!(
                "partition {partition} of {topic}: Debezium wrote {} records, the relay {}: {}",
                theirs.len(),
                ours.len(),
                stopped.unwrap_or("it runs")
            );
            outcome.differences.push(line);
        }
    }
}

/// Whether the records' timestamps are a column's; else each has its own clock's.
fn has_timestamp(group: &Group) -> bool {
    let keys = group.connect.iter().flat_map(|connect| connect.config.keys());
    keys.into_iter().any(|key| key.ends_with("table.field.event.timestamp"))
}

fn of_partition<'r>(records: &'r [consume::Record], topic: &str, partition: i32) -> Vec<&'r consume::Record> {
    let of_both = |record: &&consume::Record| record.topic == topic && record.partition == partition;
    let mut records: Vec<&consume::Record> = records.iter().filter(of_both).collect();
    records.sort_by_key(|record| record.offset);
    records
}

/// What a relay that has ended by itself said behind its log's lines.
pub fn last_words(log: &str) -> String {
    log.lines().skip_while(|line| !line.starts_with("error: ")).collect::<Vec<_>>().join(" ").trim().to_owned()
}

/// Settings are refused by their keys, tables by their columns, several tables by their envelopes.
fn names_the_setting(words: &str) -> bool {
    [", line ", "the records would not be Debezium's", " has no column \"", "envelopes of tables differ: "]
        .iter()
        .any(|part| words.contains(part))
}
