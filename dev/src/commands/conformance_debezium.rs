//! `conformance-debezium`: a real Debezium Server and the relay on the same rows by the same properties, each with a slot
//! and a Kafka of its own, record by record.
//!
//! `--write` takes down Debezium's records as the expected ones of `tests/conformance`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use walrelay_dev::conformance::data::{self, Case, File, Group, Record, Statement};
use walrelay_dev::conformance::ground::{self, Ground, LONG, Site};
use walrelay_dev::conformance::{beside, compare};
use walrelay_dev::consume;
use walrelay_dev::debezium::{self, CONTEXT, Debezium};
use walrelay_dev::kafka::{Kafka, Options};
use walrelay_dev::process;

use crate::chosen::Chosen;
use crate::screen;

/// How long Debezium may take for what the relay has written already: on a machine that has much else to do, a minute.
const PATIENCE: Duration = Duration::from_mins(2);

/// What may come after that is waited for so long.
const GRACE: Duration = Duration::from_secs(2);

/// What may be said.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    chosen: Chosen,
    /// Take Debezium's records for the expected ones and write the files
    #[arg(long)]
    write: bool,
}

/// What was counted.
#[derive(Debug, Default)]
struct Count {
    compared: usize,
    identical: usize,
    on_purpose: usize,
    failures: usize,
}

/// Whether there is no difference but those on purpose.
pub(crate) fn run(arguments: &Arguments) -> Result<bool> {
    let binary = arguments.chosen.binary.path()?;
    debezium::debezium()?;
    let known = keys(arguments.write)?;
    let ground = Ground::start(arguments.chosen.postgres)?;
    let other = Kafka::start(&Options { partitions: 1, ..Options::default() })?;
    let mut files = data::load(&data::folder())?;
    let mut count = Count::default();
    for (path, file) in &mut files {
        in_file(path, file, &ground, &other, &binary, arguments, &mut count)?;
    }
    let Count { compared, identical, on_purpose, failures } = count;
    screen::line(&format!(
        "{compared} records compared with Debezium Server {}: {identical} identical, {on_purpose} different on purpose, {failures} different",
        debezium::VERSION
    ));
    Ok(failures == 0 && known)
}

/// The list that the relay's own test sorts.
const DECLARED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../src/debezium/declared.txt");

/// Whether the list of declared keys is what the jars declare.
fn keys(write: bool) -> Result<bool> {
    let declared = debezium::declared_keys()?;
    if write {
        std::fs::write(DECLARED, &declared)?;
    }
    let same = std::fs::read_to_string(DECLARED)? == declared;
    if !same {
        screen::line("src/debezium/declared.txt is not what the jars declare: --write takes it down");
    }
    Ok(same)
}

fn in_file(
    path: &Path,
    file: &mut File,
    ground: &Ground,
    other: &Kafka,
    binary: &Path,
    arguments: &Arguments,
    count: &mut Count,
) -> Result<()> {
    let wanted = |group: &Group| arguments.chosen.has(&group.name);
    for number in 0..file.groups.len() {
        let Some(group) = file.groups.get_mut(number) else { continue };
        if group.debezium.is_empty() || group.exit.is_some() || !wanted(group) || !ground.has(group)? {
            continue;
        }
        let started = Instant::now();
        let both = match both(group, ground, other, binary).and_then(Both::started) {
            Ok(both) => both,
            Err(error) => {
                count.failures += 1;
                screen::line(&format!("{}: {error:#}", group.name));
                continue;
            }
        };
        if arguments.write {
            take_down(group, &both.debezium);
        }
        judge(group, &both, count);
        screen::line(&format!("{}: {:.0} s", group.name, started.elapsed().as_secs_f64()));
        if arguments.write {
            // At once: what comes later may fail.
            data::save(path, file)?;
        }
    }
    Ok(())
}

/// The records of both, and how either ended before its time.
#[derive(Default)]
pub(crate) struct Both {
    pub(crate) debezium: Vec<consume::Record>,
    pub(crate) walrelay: Vec<consume::Record>,
    /// The relay ended before it streamed, with these words.
    pub(crate) told: Option<String>,
    /// Debezium Server did not start, or ended by itself, for this reason.
    pub(crate) ended: Option<String>,
    /// The relay ended by itself, with these words.
    pub(crate) stopped: Option<String>,
}

impl Both {
    /// Both of them started.
    fn started(self) -> Result<Self> {
        let is_empty = self.debezium.is_empty() && self.walrelay.is_empty();
        match self.told.as_ref().or(self.ended.as_ref()).filter(|_| is_empty) {
            Some(why) => bail!("{why}"),
            None => Ok(self),
        }
    }
}

/// Lets a Debezium Server and the relay publish the rows of a group, each to its own Kafka, and clears up.
pub(crate) fn both(group: &Group, ground: &Ground, other: &Kafka, binary: &Path) -> Result<Both> {
    let before = [topics(ground.kafka())?, topics(other)?];
    let site = ground.furnish(group)?;
    let theirs = format!("{}_debezium", site.name);
    site.make_slot(&site.name)?;
    site.make_slot(&theirs)?;
    for kafka in [ground.kafka(), other] {
        ground::make_topics(kafka, &group.topics())?;
    }
    let both = on_site(&site, &theirs, group, (ground, other), &before, binary);
    let cleared = ground.clear(&site, &[&site.name, &theirs]);
    both.and_then(|both| cleared.map(|()| both))
}

fn on_site(
    site: &Site<'_>,
    slot: &str,
    group: &Group,
    (ground, other): (&Ground, &Kafka),
    [before, before_other]: &[BTreeSet<String>; 2],
    binary: &Path,
) -> Result<Both> {
    let mut relay = site.start_relay(ground, binary)?;
    if let Err(error) = relay.wait_streaming(LONG) {
        let words = beside::last_words(&relay.log());
        // A name of a column, a pattern: what Debezium would not start with either is told as well.
        anyhow::ensure!(relay.exited()?.is_some() && !words.is_empty(), error);
        return Ok(Both { told: Some(words), ..Both::default() });
    }
    let files = site.files(ground.folder(), slot, &other.brokers())?;
    let properties = std::fs::read_to_string(files.first().context("no properties")?)?;
    let started = Debezium::start_with(ground.folder(), &properties, &group.files, &group.variables);
    let mut debezium = match started.and_then(|mut debezium| wait_active(site, slot, &mut debezium).map(|()| debezium))
    {
        Ok(debezium) => debezium,
        Err(error) => return Ok(Both { ended: Some(format!("{error:#}")), ..Both::default() }),
    };
    site.write(&mut || {
        let (ours, theirs) = (new_records(ground.kafka(), before)?, new_records(other, before_other)?);
        Ok(ours.len().min(theirs.len()))
    })?;
    let code = site.wait_confirmed(&site.name, || relay.exited()).with_context(|| relay.log())?;
    let walrelay = new_records(ground.kafka(), before)?;
    let seen = wait_for_records(&mut debezium, other, before_other, walrelay.len())?;
    let ended = debezium.exited()?.map(|_| debezium.tail());
    if seen.len() < walrelay.len() && ended.is_none() {
        screen::line(&format!("Debezium said:\n{}", debezium.tail()));
    }
    debezium.stop()?;
    let stopped = code.map(|_| beside::last_words(&relay.log()));
    if stopped.is_none() {
        relay.terminate(LONG)?;
    }
    Ok(Both { debezium: seen, walrelay, told: None, ended, stopped })
}

/// What Debezium has written, less its own headers, once so many are there or it has ended or time is up.
fn wait_for_records(
    debezium: &mut Debezium,
    kafka: &Kafka,
    before: &BTreeSet<String>,
    wanted: usize,
) -> Result<Vec<consume::Record>> {
    let deadline = Instant::now() + PATIENCE;
    while new_records(kafka, before)?.len() < wanted && Instant::now() < deadline && debezium.exited()?.is_none() {
        std::thread::sleep(Duration::from_millis(200));
    }
    std::thread::sleep(GRACE);
    let mut seen = new_records(kafka, before)?;
    let own = |record: &mut consume::Record| record.headers.retain(|(name, _)| !name.starts_with(CONTEXT));
    seen.iter_mut().for_each(own);
    Ok(seen)
}

/// Waits until somebody reads the slot.
fn wait_active(site: &Site<'_>, slot: &str, debezium: &mut Debezium) -> Result<()> {
    let mut client = site.connect()?;
    let sql = "SELECT active FROM pg_replication_slots WHERE slot_name = $1";
    let active = process::wait_until(LONG, "Debezium to stream", || {
        std::thread::sleep(Duration::from_millis(50));
        Ok(client.query_one(sql, &[&slot])?.get(0))
    });
    active.with_context(|| debezium.tail())
}

fn topics(kafka: &Kafka) -> Result<BTreeSet<String>> {
    Ok(kafka.topics()?.into_iter().collect())
}

fn new_records(kafka: &Kafka, before: &BTreeSet<String>) -> Result<Vec<consume::Record>> {
    let now = topics(kafka)?;
    let new: Vec<&str> = now.difference(before).map(String::as_str).collect();
    consume::read_to_end(&kafka.client_config(), &new)
}

/// Debezium's records become the expected ones, or stand beside them where the difference is on purpose.
fn take_down(group: &mut Group, records: &[consume::Record]) {
    let mut by_case: BTreeMap<usize, Vec<Record>> = BTreeMap::new();
    let mut records: Vec<&consume::Record> = records.iter().collect();
    records.sort_by_key(|record| (&record.topic, record.partition, record.offset));
    for record in records {
        let partition = group.partitions.contains_key(&record.topic).then_some(record.partition);
        if let Some(case) = case_of(&group.cases, &record.topic) {
            by_case.entry(case).or_default().push(Record { partition, ..compare::as_data(record) });
        }
    }
    for (number, case) in group.cases.iter_mut().enumerate() {
        let records = by_case.remove(&number).unwrap_or_default();
        if case.differs.is_some() {
            case.debezium = records;
        } else {
            case.records = records;
        }
    }
}

/// Each case has topics of its own, whose names hold a text of its statements: the longest one tells. A case that is alone
/// has them all.
fn case_of(cases: &[Case], topic: &str) -> Option<usize> {
    if cases.len() == 1 {
        return Some(0);
    }
    let longest = |case: &Case| {
        let texts = case.statements.iter().flat_map(|statement| match statement {
            Statement::Own(sql) | Statement::Other { sql, .. } => sql.split('\''),
            Statement::Await { .. } => "".split('\''),
        });
        texts.filter(|text| text.len() > 2 && topic.contains(text)).map(str::len).max()
    };
    let best = cases.iter().enumerate().filter_map(|(number, case)| Some((longest(case)?, number)));
    best.max_by_key(|(length, number)| (*length, std::cmp::Reverse(*number))).map(|(_, number)| number)
}

/// Debezium against the file, and the relay against the file.
fn judge(group: &Group, both: &Both, count: &mut Count) {
    let always = i64::MIN..=i64::MAX;
    let theirs: Vec<_> = group
        .cases
        .iter()
        .flat_map(|case| {
            let records = if case.differs.is_some() { &case.debezium } else { &case.records };
            records.iter().map(|record| (case.name.as_str(), record))
        })
        .collect();
    let ours: Vec<_> =
        group.cases.iter().flat_map(|case| case.records.iter().map(|record| (case.name.as_str(), record))).collect();
    let mut failures: Vec<String> = Vec::new();
    let of = |who: &str, lines: Vec<String>| lines.into_iter().map(|line| format!("{who}: {line}")).collect::<Vec<_>>();
    failures.extend(of("Debezium", compare::compare(&theirs, &both.debezium, &always)));
    let mine = of("walrelay", compare::compare(&ours, &both.walrelay, &always));
    let on_purpose: usize =
        group.cases.iter().filter(|case| case.differs.is_some()).map(|case| case.debezium.len()).sum();
    count.compared += both.debezium.len();
    count.on_purpose += on_purpose;
    count.identical += both.debezium.len().saturating_sub(on_purpose).saturating_sub(mine.len());
    failures.extend(mine);
    count.failures += failures.len();
    for failure in failures {
        screen::line(&format!("{}: {failure}", group.name));
    }
}
