//! `walrelay-dev`: the demo, the chaos rounds and the measurements, each one command.
//!
//! Every command brings what it needs, starts services of its own on free loopback ports and leaves nothing running.

mod binary;
mod chosen;
mod commands;
mod distance;
mod machine;
mod screen;
mod to;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use walrelay_dev::{brokers, kafka, provision, sdk, versions};

use commands::{
    backfill, bench, chaos, conformance, conformance_connect, conformance_debezium, conformance_generated, demo,
    migrations, screenshots, soak,
};

/// Runs walrelay on real Postgres and Kafka: to show it, to break it, to measure it.
#[derive(Debug, Parser)]
#[command(version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Bring Postgres and Kafka through Maven, and nothing else
    Provision {
        /// Postgres' major versions, 14 to 18
        #[arg(long, value_delimiter = ',', default_value = "17")]
        postgres: Vec<u32>,
        /// Other brokers as well: redis, nats, rabbitmq, sqs
        #[arg(long, value_delimiter = ',')]
        with: Vec<String>,
        /// CloudEvents' SDK for Python as well
        #[arg(long)]
        sdk: bool,
    },
    /// List the versions of each server that tests can run on, as "kind variable version"
    Versions {
        /// Only these: a kind, or KIND=VERSION
        only: Vec<String>,
        /// One old and one new version of each kind, chosen by this number
        #[arg(long, conflicts_with = "only")]
        drawn: Option<usize>,
    },
    /// Show the whole line from a committed row to a consumer, with a kill -9 in the middle
    Demo(demo::Arguments),
    /// Kill, freeze, cut and slow down relay, Postgres, brokers and network under load, then compare what was committed
    /// with what arrived
    Chaos(chaos::Arguments),
    /// Let the program of another revision and this one take turns under load, then compare what was committed with what arrived
    Upgrade(chaos::upgrade::Arguments),
    /// Measure walrelay beside others, end to end: backlogs and steady rates
    Bench(Box<bench::Arguments>),
    /// Hold the relay against the cases of tests/conformance
    Conformance(conformance::Arguments),
    /// Hold the relay against a real Debezium Server, on the same rows by the same properties
    ConformanceDebezium(conformance_debezium::Arguments),
    /// The same cases against Debezium in a Kafka Connect worker
    ConformanceConnect(conformance_connect::Arguments),
    /// Hold the relay against Debezium in a Kafka Connect worker, by configurations drawn from a seed
    ConformanceGenerated(conformance_generated::Arguments),
    /// Move ten configurations from Debezium to the relay and back, while rows are written
    Migrations(migrations::Arguments),
    /// Publish existing rows beside a relay and writers, kill either program, and look which side published each row
    Backfill(backfill::Arguments),
    /// Take the manual's pictures of the status page, with a headless Chromium
    Screenshots(screenshots::Arguments),
    /// Write for hours with a fault every few minutes, and look what grows: memory, file descriptors, the slot's lag
    Soak(soak::Arguments),
}

fn main() -> ExitCode {
    match run(Arguments::parse().command) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Whether what was to be shown is so.
fn run(command: Command) -> Result<bool> {
    match command {
        Command::Provision { postgres, with, sdk } => provision_all(&postgres, &with, sdk).map(|()| true),
        Command::Versions { only, drawn } => list_versions(&only, drawn).map(|()| true),
        Command::Demo(arguments) => demo::run(&arguments),
        Command::Chaos(arguments) => chaos::run(&arguments),
        Command::Upgrade(arguments) => chaos::upgrade::run(&arguments),
        Command::Bench(arguments) => bench::run(&arguments).map(|()| true),
        Command::Conformance(arguments) => conformance::run(&arguments),
        Command::ConformanceDebezium(arguments) => conformance_debezium::run(&arguments),
        Command::ConformanceConnect(arguments) => conformance_connect::run(&arguments),
        Command::Migrations(arguments) => migrations::run(&arguments),
        Command::ConformanceGenerated(arguments) => conformance_generated::run(&arguments),
        Command::Backfill(arguments) => backfill::run(&arguments),
        Command::Screenshots(arguments) => screenshots::run(&arguments).map(|()| true),
        Command::Soak(arguments) => soak::run(&arguments),
    }
}

fn provision_all(postgres: &[u32], with: &[String], sdk: bool) -> Result<()> {
    let with = with.iter().map(|name| brokers::Kind::of(name)).collect::<Result<Vec<_>>>()?;
    for major in postgres {
        let tools = provision::postgres(*major)?;
        screen::line(&format!("Postgres {} in {}", tools.version, tools.bin.display()));
    }
    let tools = provision::kafka()?;
    screen::line(&format!("Kafka {} in {}", versions::chosen("kafka")?, tools.libs.display()));
    kafka::archive_classes()?;
    for kind in with {
        screen::line(&format!("{} in {}", kind.name(), kind.provision()?.display()));
        kind.archive_classes()?;
    }
    if sdk {
        screen::line(&format!("CloudEvents' SDK in {}", sdk::provision()?.display()));
    }
    Ok(())
}

fn list_versions(only: &[String], drawn: Option<usize>) -> Result<()> {
    let mut lines = Vec::new();
    for known in versions::KNOWN {
        lines.extend(drawn.map(|number| known.drawn(number)).into_iter().flatten().map(|version| (known, version)));
        let all = drawn.is_none() && only.is_empty() || only.iter().any(|kind| kind == known.kind);
        lines.extend(known.versions.iter().filter(|_| all).map(|version| (known, *version)));
    }
    for (kind, version) in only.iter().filter_map(|one| one.split_once('=')) {
        let known = *versions::of(kind)?;
        lines.push((known, known.named(version)?));
    }
    only.iter().filter(|one| !one.contains('=')).try_for_each(|kind| versions::of(kind).map(drop))?;
    for (known, version) in lines {
        screen::line(&format!("{} {} {version}", known.kind, known.variable));
    }
    Ok(())
}
