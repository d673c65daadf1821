//! Debezium Server's configuration.
//!
//! The records in Kafka are byte for byte those of the usual Kafka Connect configuration with StringConverter. `Tuned` differs by the
//! settings that matter for the rate: the poll interval, the batches, and the sink's own (see `sinks`).
//! Specification: Debezium's documentation, "Debezium Server" and "PostgreSQL connector".

use std::fs;
use std::process::Command;

use anyhow::{Context as _, Result};
use walrelay_dev::{debezium, run_dir};

use super::case::{Load, Way};
use super::ground::{Job, PUBLICATION};
use super::sinks::{Sink, Tuning};

const SETTINGS: &str = "
quarkus.http.port={http}
quarkus.log.console.json=false
debezium.format.key=simplestring
debezium.source.connector.class=io.debezium.connector.postgresql.PostgresConnector
debezium.source.plugin.name=pgoutput
debezium.source.database.hostname=127.0.0.1
debezium.source.database.port={port}
debezium.source.database.user=postgres
debezium.source.database.password=x
debezium.source.database.dbname={database}
debezium.source.database.sslmode={sslmode}
debezium.source.topic.prefix=app
debezium.source.table.include.list=public.outbox
debezium.source.slot.name={slot}
debezium.source.publication.name={publication}
debezium.source.publication.autocreate.mode=disabled
debezium.source.snapshot.mode=no_data
debezium.source.offset.storage.file.filename=offsets.dat
debezium.source.offset.flush.interval.ms=0
debezium.transforms=outbox
debezium.transforms.outbox.type=io.debezium.transforms.outbox.EventRouter
debezium.transforms.outbox.table.field.event.key=aggregate_id
debezium.transforms.outbox.route.by.field=aggregate_type
debezium.transforms.outbox.route.topic.replacement={topic}
";

const TUNED: &str = "
debezium.source.poll.interval.ms=10
debezium.source.max.batch.size=32768
debezium.source.max.queue.size=131072
";

/// The version of Debezium and its Java, or why it is not available.
pub(super) fn look() -> Result<String, String> {
    let tools = debezium::debezium().map_err(|error| format!("{error:#}"))?;
    Ok(format!("Debezium Server {} on Java {}", debezium::VERSION, tools.release))
}

/// The command that starts it in the job's folder, where its configuration is written.
pub(super) fn command(job: &Job<'_>, tuning: Tuning) -> Result<Command> {
    let config = job.folder.join("config");
    fs::create_dir_all(&config)?;
    fs::write(config.join("application.properties"), settings(job, tuning)?)?;
    let mut command = debezium::debezium()?.command(&job.folder, &[]);
    // The relay gets the same keys in the address of the queues. Only Debezium's sink for SQS reads these.
    command.env("AWS_ACCESS_KEY_ID", "test").env("AWS_SECRET_ACCESS_KEY", "test");
    Ok(command)
}

fn settings(job: &Job<'_>, tuning: Tuning) -> Result<String> {
    let address = job.ground.brokers(job.reading);
    let (host, port) = address.rsplit_once(':').context("a broker's address has no port")?;
    let values = [
        ("{http}", run_dir::free_port()?.to_string()),
        ("{host}", host.to_owned()),
        ("{port_of_broker}", port.to_owned()),
        ("{address}", address.clone()),
        ("{compression}", job.reading.compression.clone()),
        ("{port}", job.ground.postgres_port(job.reading).to_string()),
        ("{database}", job.loaded.database.clone()),
        ("{sslmode}", if job.reading.way == Way::Tls { "require" } else { "disable" }.to_owned()),
        ("{slot}", job.slot.to_owned()),
        ("{publication}", PUBLICATION.to_owned()),
        ("{topic}", topic(&job.loaded.load, job.topic)),
    ];
    let more = match tuning {
        Tuning::AsItComes => "",
        Tuning::Tuned => TUNED,
    };
    let sink = Sink::to(job.ground.kind()).settings(tuning);
    let text = [SETTINGS.trim_start(), &sink, more].concat();
    Ok(values.iter().fold(text, |text, (place, value)| text.replace(place, value)))
}

/// Not `${routedByValue}`, the name of the first group: Quarkus would look for a setting of that name.
fn topic(load: &Load, topic: &str) -> String {
    if load.topics > 1 { format!("{topic}.$1") } else { topic.to_owned() }
}
