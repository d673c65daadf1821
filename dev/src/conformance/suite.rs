//! All groups of all files, several at a time, on each major version of Postgres that is asked for.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::compare::{self, Expected};
use super::data::{self, File, Group, Record};
use super::ground::{Ground, Run};
use super::oracle;
use crate::background;

/// Groups that run at a time, on each server.
const AT_A_TIME: usize = 4;

/// Which cases run, and how.
#[derive(Debug, Clone)]
pub struct Options {
    /// The relay's binary.
    pub binary: PathBuf,
    /// Postgres' major versions.
    pub majors: Vec<u32>,
    /// Only groups whose names hold this.
    pub only: Option<String>,
    /// Take the oracles' answers for the expected records, and rewrite the files.
    pub write: bool,
}

/// The result of all cases.
#[derive(Debug, Default)]
pub struct Report {
    /// Cases that were run, over all servers.
    pub run: usize,
    /// Cases that were not, because the server lacks something.
    pub passed_over: Vec<String>,
    /// Records that were compared.
    pub records: usize,
    /// The differences, a line each.
    pub failures: Vec<String>,
    answers: Vec<Answer>,
}

/// Runs the cases.
///
/// # Errors
/// The files cannot be read, or a server does not start. What a group does is in the report.
pub fn run(options: &Options) -> Result<Report> {
    let files = data::load(&data::folder())?;
    let wanted = |group: &&Group| options.only.as_ref().is_none_or(|only| group.name.contains(only.as_str()));
    let groups: Vec<&Group> = files.iter().flat_map(|(_, file)| &file.groups).filter(wanted).collect();
    let mut report = Report::default();
    for part in background::each(&options.majors, options.majors.len(), |major| on_server(*major, &groups, options)) {
        report.add(part?);
    }
    if options.write {
        write(files, &report.answers)?;
    }
    Ok(report)
}

/// A group's name, and what the oracles of its cases said.
type Answer = (String, Vec<Option<Vec<Record>>>);

impl Report {
    fn add(&mut self, part: Self) {
        self.run += part.run;
        self.records += part.records;
        self.passed_over.extend(part.passed_over);
        self.failures.extend(part.failures);
        self.answers.extend(part.answers);
    }
}

fn on_server(major: u32, groups: &[&Group], options: &Options) -> Result<Report> {
    let ground = Ground::start(major)?;
    // The longest ones first, as far as that can be determined.
    let mut longest_first = groups.to_vec();
    longest_first.sort_by_key(|group| Reverse(group.topics().len()));
    let mut report = Report::default();
    for part in background::each(longest_first, AT_A_TIME, |group| on_ground(&ground, group, options)) {
        report.add(part);
    }
    let strays = strays(&ground, groups)?;
    report.failures.extend(strays.into_iter().map(|topic| format!("Postgres {major}: topic {topic} is in no case")));
    Ok(report)
}

/// Topics that no record was expected in.
fn strays(ground: &Ground, groups: &[&Group]) -> Result<Vec<String>> {
    let known: BTreeSet<&str> = groups.iter().flat_map(|group| group.topics().into_keys()).collect();
    Ok(ground.kafka().topics()?.into_iter().filter(|topic| !known.contains(topic.as_str())).collect())
}

fn on_ground(ground: &Ground, group: &Group, options: &Options) -> Report {
    let judged = ground.has(group).and_then(|has| {
        (has && !group.is_unwritten())
            .then(|| ground.run(group, &options.binary).and_then(|run| Ok((judge(group, &run)?, run))))
            .transpose()
    });
    let place = format!("Postgres {}: {}", ground.major, group.name);
    let mut report = Report::default();
    match judged {
        Ok(Some((failures, run))) => {
            (report.run, report.records) = (group.cases.len(), run.records.len());
            let said = || format!("{place}: the relay said: {}", run.ended.1);
            report.failures.extend((!failures.is_empty()).then(said));
            report.failures.extend(failures.into_iter().map(|failure| format!("{place}: {failure}")));
            report.answers.push((group.name.clone(), run.oracles));
        }
        Ok(None) => report.passed_over.extend(group.cases.iter().map(|case| format!("{place}: {}", case.name))),
        Err(error) => report.failures.push(format!("{place}: {error:#}")),
    }
    report
}

/// The differences from what the group says.
fn judge(group: &Group, run: &Run) -> Result<Vec<String>> {
    let mut failures = ending(group, run);
    let mut expected: Vec<Expected<'_>> = Vec::new();
    for (number, case) in group.cases.iter().enumerate() {
        let answer = run.oracles.get(number).and_then(Option::as_ref);
        if let Some(answer) = answer {
            let agrees = case.sum.as_ref().map_or_else(
                || Ok(*answer == case.records),
                |sum| Ok::<_, anyhow::Error>(oracle::sum(answer)? == *sum),
            );
            if !agrees.context(case.name.clone())? {
                failures.push(format!("{}: the oracle says {answer:?}", case.name));
            }
        }
        let many = case.sum.as_ref().and(answer);
        expected.extend(many.unwrap_or(&case.records).iter().map(|record| (case.name.as_str(), record)));
    }
    failures.extend(compare::compare(&expected, &run.records, &run.period));
    Ok(failures)
}

fn ending(group: &Group, run: &Run) -> Vec<String> {
    let (code, said) = &run.ended;
    let (wanted, words) = group.exit.as_ref().map_or((0, &[] as &[String]), |exit| (exit.code, &exit.words));
    let mut failures = Vec::new();
    if *code != wanted {
        failures.push(format!("it ended with {code}, not {wanted}: {said}"));
    }
    // Behind the log's lines; a regular expression's fault takes several.
    let last: Vec<&str> = said.lines().skip_while(|line| !line.starts_with("error: ")).collect();
    let last = last.join("\n");
    let unsaid = words.iter().filter(|word| !last.contains(word.as_str()));
    failures.extend(unsaid.map(|word| format!("{word:?} is not in {last:?}")));
    failures
}

/// The oracles' answers become the expected records.
fn write(files: Vec<(PathBuf, File)>, answers: &[Answer]) -> Result<()> {
    for (path, mut file) in files {
        let before = file.clone();
        for group in &mut file.groups {
            let Some((_, answers)) = answers.iter().find(|(name, _)| *name == group.name) else { continue };
            for (case, answer) in group.cases.iter_mut().zip(answers) {
                match answer {
                    Some(answer) if answer.len() > MANY => case.sum = Some(oracle::sum(answer)?),
                    Some(answer) => case.records.clone_from(answer),
                    None => {}
                }
            }
        }
        if file != before {
            data::save(&path, &file)?;
        }
    }
    Ok(())
}

/// From here on a file has only the sum of a case's records.
const MANY: usize = 200;

/// The number of cases in the files.
///
/// # Errors
/// They cannot be read.
pub fn count(folder: &Path) -> Result<usize> {
    let files = data::load(folder)?;
    Ok(files.iter().flat_map(|(_, file)| &file.groups).map(|group| group.cases.len()).sum())
}
