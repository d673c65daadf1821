//! Groups by Debezium and by the relay, on the same rows, each with a slot and a Kafka of its own, record by record. Debezium is a
//! connector in a Kafka Connect worker, or a Server for each group.
//!
//! In: groups, none of which writes to another's topics: with a worker, several run at the same time. Out: each difference
//! as a line, and what was counted. What the relay refuses before the first record is shown, and counts as refused. Where
//! Debezium's task ends, what came before is compared.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use super::compare;
use super::data::{Group, Record};
use super::doors::Broker;
use super::ground::{self, Ground, LONG, Site};
use crate::debezium::{CONTEXT, Running, State, Worker};
use crate::kafka::Kafka;
use crate::relay::Relay;
use crate::{background, consume};

/// How long Debezium may take for what the relay has written already: on a machine that has much else to do, a minute.
const PATIENCE: Duration = Duration::from_mins(2);

/// A record too many would come within so long.
const GRACE: Duration = Duration::from_millis(300);

/// The same for a Debezium Server, which polls less often.
const GRACE_OF_SERVER: Duration = Duration::from_secs(2);

/// How often Debezium is asked how far it is.
const POLL: Duration = Duration::from_millis(100);

/// Where both run.
#[derive(Debug)]
pub struct Beside {
    ground: Ground,
    other: Broker,
    /// For groups of Kafka Connect's; others have a Debezium Server each.
    worker: Option<Worker>,
    binary: PathBuf,
}

/// Which topics are a group's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Topics {
    /// Those of its records.
    OfRecords,
    /// Those whose names begin so. The last row is alone in the one whose name ends with [`LAST`] after that.
    Below(String),
    /// Those that come while it runs, alone.
    New,
}

/// The end of the name of the last row's topic.
pub const LAST: &str = "end";

/// One comparison.
#[derive(Debug)]
pub struct Pair {
    /// The arguments that repeat it.
    pub label: String,
    /// Has a connector.
    pub group: Group,
    /// Both write there.
    pub topics: Topics,
}

/// The counts of all groups.
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

/// What both have written of a group, and how either ended before its time.
#[derive(Debug, Default)]
pub struct Both {
    /// Debezium's records, less the headers that are its own.
    pub debezium: Vec<consume::Record>,
    /// The relay's.
    pub walrelay: Vec<consume::Record>,
    /// The relay ended before it streamed, with these words.
    pub told: Option<String>,
    /// Debezium did not start, for this reason.
    pub unstarted: Option<String>,
    /// Debezium ended by itself, for this reason.
    pub ended: Option<String>,
    /// The relay ended by itself, with these words.
    pub stopped: Option<String>,
    /// What Debezium said last, where it has written less than the relay and runs.
    pub behind: Option<String>,
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
    /// Starts Postgres, two Kafkas and a Kafka Connect worker.
    ///
    /// # Errors
    /// One of them does not start.
    pub fn start(major: u32, binary: PathBuf) -> Result<Self> {
        Self::with(Broker::open()?, Broker::open()?, major, binary, true)
    }

    /// The same, where configurations can name guarded doors: see [`super::doors`]. Behind those, topics begin with `prefix`.
    ///
    /// # Errors
    /// As there.
    pub fn guarded(major: u32, binary: PathBuf, prefix: &str) -> Result<Self> {
        Self::with(Broker::guarded(prefix)?, Broker::guarded(prefix)?, major, binary, true)
    }

    /// The same without a worker: each group has a Debezium Server.
    ///
    /// # Errors
    /// As there.
    pub fn of_servers(major: u32, binary: PathBuf) -> Result<Self> {
        Self::with(Broker::open()?, Broker::open()?, major, binary, false)
    }

    fn with(own: Broker, other: Broker, major: u32, binary: PathBuf, connect: bool) -> Result<Self> {
        let ground = Ground::beside(major, own)?;
        let worker = connect.then(|| Worker::start(ground.folder(), &other.kafka().brokers())).transpose()?;
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
        let compared = background::each(pairs, at_once, |pair| {
            let outcome = self.compare(&pair).unwrap_or_else(|error| Outcome::failed(&error));
            outcome.say(&pair.label, &say);
            let named = pair.group.topics().into_keys().map(str::to_owned).collect();
            (outcome, (pair.topics, named))
        });
        let (outcomes, topics): (Vec<_>, Vec<_>) = compared.into_iter().unzip();
        let mut count = Count::of(&outcomes);
        for stray in self.strays(&topics)? {
            count.differences += 1;
            say(&format!("topic {stray} is no group's"));
        }
        Ok(count)
    }

    /// Topics that no group should have written to.
    fn strays(&self, known: &[(Topics, BTreeSet<String>)]) -> Result<BTreeSet<String>> {
        let is_known = |topic: &String| {
            known.iter().any(|(topics, named)| match topics {
                Topics::OfRecords | Topics::New => named.contains(topic),
                Topics::Below(prefix) => topic.starts_with(prefix),
            })
        };
        let all = [self.ground.kafka().topics()?, self.other.kafka().topics()?].concat();
        Ok(all.into_iter().filter(|topic| !is_known(topic)).collect())
    }

    fn compare(&self, pair: &Pair) -> Result<Outcome> {
        let both = self.both(&pair.group, &pair.topics)?;
        // A table is refused where it begins, if the slot lies before that.
        let refused = both.told.as_ref().or_else(|| both.stopped.as_ref().filter(|_| both.walrelay.is_empty()));
        if let Some(words) = refused.filter(|words| names_the_setting(words)) {
            return Ok(Outcome { told: Some(words.clone()), ..Outcome::default() });
        }
        if let Some(words) = &both.told {
            bail!("the relay ended: {words}");
        }
        if let Some(why) = &both.unstarted {
            bail!("{why}");
        }
        Ok(differences(pair, &both))
    }

    /// Lets Debezium and the relay publish the rows of a group, each to its own Kafka, and clears up.
    ///
    /// # Errors
    /// A server, the relay or Debezium fails, so that there is nothing to compare.
    pub fn both(&self, group: &Group, topics: &Topics) -> Result<Both> {
        let kafkas = [self.ground.kafka(), self.other.kafka()];
        let before = if *topics == Topics::New { kafkas.map(Kafka::topics) } else { [Ok(Vec::new()), Ok(Vec::new())] };
        let [ours, others] = before;
        let read = Read { group, topics, before: [ours?, others?] };
        let site = self.ground.furnish(group)?;
        let theirs = format!("{}_debezium", site.name);
        site.make_slot(&site.name)?;
        site.make_slot(&theirs)?;
        for kafka in kafkas {
            ground::make_topics(kafka, &group.topics())?;
        }
        let both = self.on_site(&site, &theirs, &read);
        let cleared = self.ground.clear(&site);
        both.and_then(|both| cleared.map(|()| both))
    }

    fn on_site(&self, site: &Site<'_>, theirs: &str, read: &Read<'_>) -> Result<Both> {
        let ours = self.ground.filled(read.group, None)?;
        let mut relay = site.with(&ours).start_relay(&self.ground, &self.binary)?;
        if let Err(error) = relay.wait_streaming(LONG) {
            let words = last_words(&relay.log());
            // The relay refused its settings, which Debezium would refuse as well: its words are the result.
            ensure!(relay.exited()?.is_some() && !words.is_empty(), error.context(relay.log()));
            return Ok(Both { told: Some(words), ..Both::default() });
        }
        let group = self.ground.filled(read.group, Some(&self.other))?;
        let (its, brokers) = (site.with(&group), self.other.kafka().brokers());
        let mut debezium = match its.start_debezium(&self.ground, theirs, &brokers, self.worker.as_ref()) {
            Ok(debezium) => debezium,
            Err(error) => return Ok(Both { unstarted: Some(format!("{error:#}")), ..Both::default() }),
        };
        let both = match its.wait_streaming(theirs, &mut debezium) {
            Ok(()) => self.of_both(site, read, &mut relay, &mut debezium),
            Err(error) => Ok(Both { unstarted: Some(format!("{error:#}")), ..Both::default() }),
        };
        debezium.remove()?;
        if relay.exited()?.is_none() {
            relay.terminate(LONG)?;
        }
        both
    }

    fn of_both(&self, site: &Site<'_>, read: &Read<'_>, relay: &mut Relay, debezium: &mut Running<'_>) -> Result<Both> {
        let (own, other) = (self.ground.kafka(), self.other.kafka());
        let mut come = [0; 2];
        let written = site.write(&mut || {
            if relay.exited()?.is_some() || matches!(debezium.state()?, State::Failed(_)) {
                return Ok(usize::MAX);
            }
            come = [read.ours(own)?.len(), read.theirs(other)?.len()];
            Ok(come[0].min(come[1]))
        });
        written.with_context(|| {
            let ([ours, others], state) = (come, debezium.state());
            format!("the relay wrote {ours}, Debezium, which is {state:?}, {others}: {}", relay.log())
        })?;
        let code = site.wait_confirmed(&site.name, || relay.exited()).with_context(|| relay.log())?;
        let walrelay = read.ours(own)?;
        let state = self.wait_for_records(read, debezium, walrelay.len())?;
        let mut seen = read.theirs(other)?;
        for record in &mut seen {
            record.headers.retain(|(name, _)| !name.starts_with(CONTEXT));
        }
        let ended = match state {
            State::Failed(why) => Some(why),
            State::Running | State::Other => None,
        };
        let behind = (ended.is_none() && seen.len() < walrelay.len()).then(|| debezium.tail());
        let stopped = code.map(|_| last_words(&relay.log()));
        Ok(Both { debezium: seen, walrelay, ended, stopped, behind, ..Both::default() })
    }

    /// Until Debezium has written its last record, has ended, or time is up: how it is then.
    fn wait_for_records(&self, read: &Read<'_>, debezium: &mut Running<'_>, wanted: usize) -> Result<State> {
        let other = self.other.kafka();
        let deadline = Instant::now() + PATIENCE;
        loop {
            let there = match read.topics {
                Topics::OfRecords | Topics::New => read.theirs(other)?.len() >= wanted,
                Topics::Below(prefix) => consume::count(&other.client_config(), &format!("{prefix}{LAST}"))? > 0,
            };
            let state = debezium.state()?;
            if there || matches!(state, State::Failed(_)) || Instant::now() >= deadline {
                thread::sleep(if self.worker.is_some() { GRACE } else { GRACE_OF_SERVER });
                return debezium.state();
            }
            thread::sleep(POLL);
        }
    }
}

/// What is read of a group.
struct Read<'g> {
    group: &'g Group,
    topics: &'g Topics,
    /// Topics of the relay's Kafka and of Debezium's that were there before.
    before: [Vec<String>; 2],
}

impl Read<'_> {
    fn ours(&self, kafka: &Kafka) -> Result<Vec<consume::Record>> {
        let [before, _] = &self.before;
        self.read(kafka, before)
    }

    fn theirs(&self, kafka: &Kafka) -> Result<Vec<consume::Record>> {
        let [_, before] = &self.before;
        self.read(kafka, before)
    }

    fn read(&self, kafka: &Kafka, before: &[String]) -> Result<Vec<consume::Record>> {
        let all: Vec<String> = match self.topics {
            Topics::OfRecords => self.group.topics().into_keys().map(str::to_owned).collect(),
            Topics::Below(prefix) => kafka.topics()?.into_iter().filter(|topic| topic.starts_with(prefix)).collect(),
            Topics::New => kafka.topics()?.into_iter().filter(|topic| !before.contains(topic)).collect(),
        };
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        let mut config = kafka.client_config();
        // Nobody opens a transaction here, so that there is no marker to wait for.
        config.set("isolation.level", "read_uncommitted");
        consume::read_to_end(&config, &all)
    }
}

impl Outcome {
    /// Says what came of a configuration.
    pub fn say(&self, label: &str, say: impl Fn(&str)) {
        let told = self.told.iter().map(|why| format!("refused: {why}"));
        let ended = self.ended.iter().map(|why| format!("Debezium ended: {why}"));
        told.chain(ended).chain(self.differences.iter().cloned()).for_each(|line| say(&format!("{label}: {line}")));
    }
}

impl Count {
    /// Of all of these.
    pub fn of(outcomes: &[Outcome]) -> Self {
        Self {
            groups: outcomes.len(),
            told: outcomes.iter().filter(|outcome| outcome.told.is_some()).count(),
            ended: outcomes.iter().filter(|outcome| outcome.ended.is_some()).count(),
            records: outcomes.iter().map(|outcome| outcome.records).sum(),
            differences: outcomes.iter().map(|outcome| outcome.differences.len()).sum(),
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

/// In the order of each partition.
fn differences(pair: &Pair, both: &Both) -> Outcome {
    let always = i64::MIN..=i64::MAX;
    let ended = both.ended.as_ref().map(|why| format!("after {} records: {why}", both.debezium.len()));
    let mut outcome = Outcome { ended, ..Outcome::default() };
    let partitions: BTreeSet<(&str, i32)> =
        both.debezium.iter().chain(&both.walrelay).map(|record| (record.topic.as_str(), record.partition)).collect();
    for (topic, partition) in partitions {
        let [theirs, ours] = [&both.debezium, &both.walrelay].map(|records| of_partition(records, topic, partition));
        outcome.records += theirs.len().min(ours.len());
        for (their, our) in theirs.iter().zip(&ours) {
            let timestamp = has_timestamp(&pair.group).then_some(their.timestamp).flatten();
            let expected = Record { timestamp, ..compare::as_data(their) };
            let lines = compare::differences(&expected, our, &always);
            outcome.differences.extend(lines.into_iter().map(|line| format!("{topic}: {line}")));
        }
        let may_lack = outcome.ended.is_some() && (theirs.len() < ours.len() || both.stopped.is_some());
        if theirs.len() != ours.len() && !may_lack {
            let line = format!(
                "partition {partition} of {topic}: Debezium wrote {} records, the relay {}: {}",
                theirs.len(),
                ours.len(),
                both.stopped.as_deref().unwrap_or("it runs")
            );
            outcome.differences.push(line);
        }
    }
    outcome
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
fn last_words(log: &str) -> String {
    log.lines().skip_while(|line| !line.starts_with("error: ")).collect::<Vec<_>>().join(" ").trim().to_owned()
}

/// Settings are refused by their keys, tables by their columns, several tables by their envelopes.
fn names_the_setting(words: &str) -> bool {
    [", line ", "the records would not be Debezium's", " has no column \"", "envelopes of tables differ: "]
        .iter()
        .any(|part| words.contains(part))
}
