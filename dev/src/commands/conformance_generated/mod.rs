//! `conformance-generated`: configurations drawn from a seed, each by Debezium's connector in a Kafka Connect worker and by the
//! relay, record by record; or settings in several places, each by a Debezium Server. A difference is named with the seed and number
//! that repeat it.

mod changes;
mod configuration;
mod connector;
mod ddl;
mod defaults;
mod doors;
mod draw;
mod places;
mod rows;
mod server;
mod table;
mod tuning;
mod types;

use std::time::{Duration, Instant};

use anyhow::Result;
use walrelay_dev::conformance::beside::{Beside, Pair, Topics};
use walrelay_dev::debezium;

use crate::binary::Binary;
use crate::screen;

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
    /// Settings in several places, each by a Debezium Server of its own
    #[arg(long)]
    places: bool,
    /// Show them as JSON, and run none
    #[arg(long)]
    show: bool,
    /// How many run at the same time
    #[arg(long, default_value_t = 6)]
    at_once: usize,
}

/// Whether there is no difference.
pub(crate) fn run(arguments: &Arguments) -> Result<bool> {
    let numbers = arguments.from..arguments.from + arguments.configurations;
    if arguments.show {
        for number in numbers {
            let group = if arguments.places { places::group } else { configuration::group }(arguments.seed, number);
            screen::line(&serde_json::to_string_pretty(&group)?);
        }
        return Ok(true);
    }
    let (seed, started) = (arguments.seed, Instant::now());
    let limit = arguments.minutes.map(|minutes| Duration::from_secs(minutes * 60));
    let numbers = numbers.take_while(|_| limit.is_none_or(|limit| started.elapsed() <= limit));
    if arguments.places {
        return server::run(arguments, numbers);
    }
    let beside =
        Beside::guarded(arguments.postgres, arguments.binary.path()?, &configuration::prefix_of_all(arguments.seed))?;
    let pairs = numbers.map(|number| Pair {
        label: format!("--seed {seed} --from {number}"),
        group: configuration::group(seed, number),
        topics: Topics::Below(configuration::prefix(seed, number)),
    });
    let count = beside.compare_all(pairs, arguments.at_once, screen::line)?;
    screen::line(&format!(
        "Debezium {}, seed {seed}, from {}: {count}, {:.0} s",
        debezium::connector_version()?,
        arguments.from,
        started.elapsed().as_secs_f64()
    ));
    Ok(count.differences == 0)
}
