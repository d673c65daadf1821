//! `conformance-debezium`: a real Debezium Server and the relay on the same rows by the same properties, each with a slot
//! and a Kafka of its own, record by record.
//!
//! `--write` takes down Debezium's records as the expected ones of `tests/conformance`.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use anyhow::{Result, bail};
use walrelay_dev::conformance::beside::{Beside, Both, Topics};
use walrelay_dev::conformance::compare;
use walrelay_dev::conformance::data::{self, Case, File, Group, Record, Statement};
use walrelay_dev::consume;
use walrelay_dev::debezium;

use crate::chosen::Chosen;
use crate::screen;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    chosen: Chosen,
    /// Take Debezium's records for the expected ones and write the files
    #[arg(long)]
    write: bool,
}

/// The counts of all groups.
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
    let beside = Beside::of_servers(arguments.chosen.postgres, binary)?;
    let mut files = data::load(&data::folder())?;
    let mut count = Count::default();
    for (path, file) in &mut files {
        in_file(path, file, &beside, arguments, &mut count)?;
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

fn in_file(path: &Path, file: &mut File, beside: &Beside, arguments: &Arguments, count: &mut Count) -> Result<()> {
    let wanted = |group: &Group| arguments.chosen.has(&group.name);
    for number in 0..file.groups.len() {
        let Some(group) = file.groups.get_mut(number) else { continue };
        if group.debezium.is_empty() || group.exit.is_some() || !wanted(group) || !beside.has(group)? {
            continue;
        }
        let started = Instant::now();
        let both = match beside.both(group, &Topics::New).and_then(both_started) {
            Ok(both) => both,
            Err(error) => {
                count.failures += 1;
                screen::line(&format!("{}: {error:#}", group.name));
                continue;
            }
        };
        if let Some(said) = &both.behind {
            screen::line(&format!("Debezium said:\n{said}"));
        }
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

/// Fails unless Debezium and the relay both started.
fn both_started(both: Both) -> Result<Both> {
    match both.told.as_ref().or(both.unstarted.as_ref()) {
        Some(why) => bail!("{why}"),
        None => Ok(both),
    }
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
