//! `conformance-connect`: the groups of `tests/conformance` that Debezium Server has written, in a Kafka Connect worker: the
//! same keys without the Server's prefixes, and Connect's own converters in place of its formats.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::Result;
use walrelay_dev::conformance::beside::{Beside, Pair, Topics};
use walrelay_dev::conformance::data::{self, Connect, Group};
use walrelay_dev::debezium;

use crate::chosen::Chosen;
use crate::screen;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    chosen: Chosen,
    /// How many run at the same time
    #[arg(long, default_value_t = 3)]
    at_once: usize,
}

/// Whether there is no difference.
pub(crate) fn run(arguments: &Arguments) -> Result<bool> {
    let started = Instant::now();
    let beside = Beside::start(arguments.chosen.postgres, arguments.chosen.binary.path()?)?;
    let wanted = |group: &Group| arguments.chosen.has(&group.name);
    let mut pairs = Vec::new();
    for group in data::load(&data::folder())?.into_iter().flat_map(|(_, file)| file.groups) {
        // Kafka Connect has one environment for all of its connectors.
        let of_server = !group.variables.is_empty() || !group.files.is_empty();
        if !group.debezium.is_empty() && group.exit.is_none() && !of_server && wanted(&group) && beside.has(&group)? {
            let connect = Some(of_connect(&group.debezium));
            let group = Group { debezium: Vec::new(), connect, ..group };
            pairs.push(Pair { label: group.name.clone(), group, topics: Topics::OfRecords });
        }
    }
    let count = beside.compare_all(pairs.into_iter(), arguments.at_once, screen::line)?;
    screen::line(&format!(
        "Debezium {} in a Kafka Connect worker: {count}, {:.0} s",
        debezium::connector_version()?,
        started.elapsed().as_secs_f64()
    ));
    Ok(count.differences == 0)
}

/// Debezium Server's lines as a connector's configuration.
pub(super) fn of_connect(lines: &[String]) -> Connect {
    let pairs = lines.iter().filter_map(|line| line.split_once('='));
    let keys: BTreeMap<&str, String> = pairs.map(|(key, value)| (key, unescaped(value))).collect();
    let mut config = BTreeMap::new();
    for (key, value) in &keys {
        let own = key.strip_prefix("debezium.source.").map(str::to_owned);
        let producer = key.strip_prefix("debezium.sink.kafka.producer.").filter(|name| !name.ends_with(".serializer"));
        let producer = producer.map(|name| format!("producer.override.{name}"));
        let router = key.strip_prefix("debezium.").filter(|name| name.starts_with("transforms")).map(str::to_owned);
        if let Some(name) = own.or(producer).or(router) {
            config.insert(name, value.clone());
        }
    }
    for part in ["key", "value", "header"] {
        let Some(format) = keys.get(format!("debezium.format.{part}").as_str()) else { continue };
        let given = keys.get(format!("debezium.format.{part}.class").as_str()).map(String::as_str);
        config.insert(format!("{part}.converter"), given.unwrap_or_else(|| class(format)).to_owned());
        let prefix = format!("debezium.format.{part}.");
        let options = keys.iter().filter_map(|(key, value)| Some((key.strip_prefix(&prefix)?, value)));
        let options = options.filter(|(option, _)| *option != "class");
        config.extend(options.map(|(option, value)| (format!("{part}.converter.{option}"), value.clone())));
    }
    let worker = ["key", "value"].map(|part| format!("{part}.converter={}", class("simplestring")));
    Connect { config, worker: worker.into() }
}

/// The converter that the Server uses for one of its formats.
fn class(format: &str) -> &'static str {
    match format {
        "json" => "org.apache.kafka.connect.json.JsonConverter",
        "binary" => "io.debezium.converters.BinaryDataConverter",
        _ => "org.apache.kafka.connect.storage.StringConverter",
    }
}

/// What a properties file and Quarkus make of a value: two backslashes are one, two dollars are one, a backslash before a dollar is none,
/// and an expression of a variable that is not set is its default.
fn unescaped(value: &str) -> String {
    let value = value.replace(r"\\", r"\").replace(r"\$", "$").replace("$$", "$");
    let default = value.strip_prefix("${NOT_SET_ANYWHERE:").and_then(|rest| rest.strip_suffix('}'));
    default.map_or_else(|| value.clone(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_servers_keys_and_formats_become_a_connectors() {
        let lines = [
            "debezium.sink.type=kafka",
            "debezium.sink.kafka.producer.linger.ms=5",
            "debezium.sink.kafka.producer.key.serializer=a.StringSerializer",
            "debezium.source.table.include.list=c\\\\d.outbox",
            "debezium.transforms=outbox",
            "debezium.transforms.outbox.route.topic.replacement=x.$$1",
            r"debezium.transforms.outbox.route.topic.regex=(X\\.User)\\$",
            "debezium.transforms.outbox.table.op.invalid.behavior=${NOT_SET_ANYWHERE:warn}",
            "debezium.format.value=json",
            "debezium.format.value.schemas.enable=false",
            "debezium.format.header=clientprovided",
            "debezium.format.header.class=a.Simple",
        ];
        let config = of_connect(&lines.map(str::to_owned)).config;
        let expected = [
            ("header.converter", "a.Simple"),
            ("producer.override.linger.ms", "5"),
            ("table.include.list", "c\\d.outbox"),
            ("transforms", "outbox"),
            ("transforms.outbox.route.topic.regex", "(X\\.User)$"),
            ("transforms.outbox.route.topic.replacement", "x.$1"),
            ("transforms.outbox.table.op.invalid.behavior", "warn"),
            ("value.converter", "org.apache.kafka.connect.json.JsonConverter"),
            ("value.converter.schemas.enable", "false"),
        ];
        assert_eq!(config, expected.map(|(key, value)| (key.to_owned(), value.to_owned())).into());
    }
}
