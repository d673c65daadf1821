//! `walrelay-dev`: the demo, the chaos rounds and the measurements, each one command.
//!
//! Every command brings what it needs, starts services of its own on free loopback ports and leaves nothing running.

mod commands;
mod screen;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::{Parser, Subcommand};
use walrelay_dev::{brokers, provision, relay};

use commands::{bench, chaos, conformance, conformance_debezium, demo, outage, prune_chaos, prune_load};

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
    },
    /// Show the whole line from a committed row to a consumer, with a kill -9 in the middle
    Demo(demo::Arguments),
    /// Kill, freeze, cut and slow down relay, Postgres, brokers and network under load, then compare what was committed
    /// with what arrived
    Chaos(chaos::Arguments),
    /// Take the broker away for minutes, or the relay, and see what memory it takes and whether anything is lost
    Outage(outage::Arguments),
    /// Measure walrelay beside others, end to end: backlogs and steady rates
    Bench(Box<bench::Arguments>),
    /// Hold the relay against the cases of tests/conformance
    Conformance(conformance::Arguments),
    /// Hold the relay against a real Debezium Server, on the same rows by the same properties; then move there and back
    ConformanceDebezium(conformance_debezium::Arguments),
    /// Let `walrelay prune` delete all the time while the relay is killed and slowed, and look for rows deleted undelivered
    PruneChaos(prune_chaos::Arguments),
    /// Measure what pruning many rows costs writers and the relay, and what the table looks like then
    PruneLoad(prune_load::Arguments),
}

/// Where the relay's binary is.
#[derive(Debug, Clone, clap::Args)]
struct Binary {
    /// The relay's binary [default: `WALRELAY_BIN`, or `walrelay` beside this program]
    #[arg(long)]
    binary: Option<PathBuf>,
}

impl Binary {
    fn path(&self) -> Result<PathBuf> {
        let beside = std::env::current_exe().context("cannot find this program's folder")?.with_file_name("walrelay");
        let path = self.binary.clone().unwrap_or_else(|| relay::binary(beside));
        std::path::absolute(&path).ok().filter(|path| path.is_file()).with_context(|| {
            format!("there is no {}: build it (cargo build -p walrelay) or give --binary", path.display())
        })
    }
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
        Command::Provision { postgres, with } => provision_all(&postgres, &with).map(|()| true),
        Command::Demo(arguments) => demo::run(&arguments),
        Command::Chaos(arguments) => chaos::run(&arguments),
        Command::Outage(arguments) => outage::run(&arguments),
        Command::Bench(arguments) => bench::run(&arguments).map(|()| true),
        Command::Conformance(arguments) => conformance::run(&arguments),
        Command::ConformanceDebezium(arguments) => conformance_debezium::run(&arguments),
        Command::PruneChaos(arguments) => prune_chaos::run(&arguments),
        Command::PruneLoad(arguments) => prune_load::run(&arguments).map(|()| true),
    }
}

fn provision_all(postgres: &[u32], with: &[String]) -> Result<()> {
    let with = with.iter().map(|name| brokers::Kind::of(name)).collect::<Result<Vec<_>>>()?;
    for major in postgres {
        let tools = provision::postgres(*major)?;
        screen::line(&format!("Postgres {} in {}", tools.version, tools.bin.display()));
    }
    let kafka = provision::kafka()?;
    screen::line(&format!("Kafka {} in {}", provision::KAFKA_VERSION, kafka.libs.display()));
    for kind in with {
        screen::line(&format!("{} in {}", kind.name(), kind.provision()?.display()));
    }
    Ok(())
}
