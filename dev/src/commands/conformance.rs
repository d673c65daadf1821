//! `conformance`: the cases of `tests/conformance`, and `--write` to take down what Postgres says.

use std::time::Instant;

use anyhow::{Context as _, Result};
use walrelay_dev::conformance::suite::{self, Options};

use crate::binary::Binary;
use crate::screen;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    binary: Binary,
    /// Postgres' major versions, 14 to 18
    #[arg(long, value_delimiter = ',', default_value = "15,18")]
    postgres: Vec<u32>,
    /// Only groups whose names hold this
    #[arg(long)]
    only: Option<String>,
    /// Take the answers of the oracles for the expected records and write the files; asks the first version alone
    #[arg(long)]
    write: bool,
}

/// Whether everything is as the files say.
pub(crate) fn run(arguments: &Arguments) -> Result<bool> {
    let mut majors = arguments.postgres.clone();
    if arguments.write {
        majors = vec![*majors.iter().max().context("no version of Postgres")?];
    }
    let options =
        Options { binary: arguments.binary.path()?, majors, only: arguments.only.clone(), write: arguments.write };
    let started = Instant::now();
    let report = suite::run(&options)?;
    for failure in &report.failures {
        screen::line(failure);
    }
    for case in &report.passed_over {
        screen::line(&format!("skipped: {case}"));
    }
    let seconds = started.elapsed().as_secs_f64();
    screen::line(&format!(
        "{} cases run on Postgres {:?}, {} records, {} differences, {seconds:.0} s",
        report.run,
        options.majors,
        report.records,
        report.failures.len()
    ));
    Ok(report.failures.is_empty())
}
