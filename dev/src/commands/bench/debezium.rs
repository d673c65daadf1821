//! Debezium Server: where it is, and its configuration.
//!
//! The records in Kafka are byte for byte those of the usual Kafka Connect configuration with StringConverter. `Tuned` differs by the
//! settings that matter for the rate: the poll interval, the batches, and the sink's own (see `sinks`).
//! Specification: Debezium's documentation, "Debezium Server" and "PostgreSQL connector".

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use walrelay_dev::{provision, run_dir};

use super::case::{Load, Way};
use super::ground::{Job, PUBLICATION};
use super::sinks::Sink;

const VERSION: &str = "3.6.3.Final";

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

/// Which of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tuning {
    AsItComes,
    Tuned,
}

/// What it is, or why it cannot be had.
pub(super) fn look(folder: Option<&Path>, java: Option<&Path>) -> Result<String, String> {
    let home = home(folder);
    runner(&home).map_err(|error| format!("{error:#}"))?;
    let java = java_21(java).map_err(|error| format!("{error:#}"))?;
    let release = java.parent().and_then(Path::parent).and_then(release);
    let java = release.map_or_else(|| "a Java that was named".to_owned(), |release| format!("Java {release}"));
    Ok(format!("Debezium Server {VERSION} on {java}"))
}

/// Its command, in a folder of its own with its configuration.
pub(super) fn command(folder: Option<&Path>, java: Option<&Path>, job: &Job<'_>, tuning: Tuning) -> Result<Command> {
    let home = home(folder);
    let config = job.folder.join("config");
    fs::create_dir_all(&config)?;
    fs::write(config.join("application.properties"), settings(job, tuning)?)?;
    let mut command = Command::new(java_21(java)?);
    let class_path = format!("{}:{}/lib/*", runner(&home)?.display(), home.display());
    // Newer Javas fill the log with complaints of Quarkus' threads otherwise.
    command.current_dir(&job.folder).arg("--add-opens=java.base/java.lang=ALL-UNNAMED");
    command.args(["-cp", &class_path, "io.debezium.server.Main"]);
    // As the address of a server of one's own has them for the relay; other sinks than that of SQS do not look.
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
        ("{port}", job.ground.postgres_port(job.reading)?.to_string()),
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

fn home(folder: Option<&Path>) -> PathBuf {
    let brought = || provision::dev_dir().join("tools").join(format!("debezium-server-{VERSION}"));
    folder.map_or_else(brought, Path::to_owned)
}

fn runner(home: &Path) -> Result<PathBuf> {
    let files = fs::read_dir(home).with_context(|| format!("there is no {}", home.display()))?;
    let mut jars = files.flatten().map(|file| file.path());
    jars.find(|path| path.to_string_lossy().ends_with("-runner.jar"))
        .with_context(|| format!("no Debezium Server in {}", home.display()))
}

/// The newest Java there is; Debezium Server wants 21 at least.
fn java_21(given: Option<&Path>) -> Result<PathBuf> {
    if let Some(java) = given {
        return Ok(java.to_owned());
    }
    let homes = fs::read_dir("/usr/lib/jvm").into_iter().flatten().flatten();
    let javas = homes.filter_map(|home| Some((release(&home.path())?, home.path().join("bin/java"))));
    let newest = javas.filter(|(release, java)| *release >= 21 && java.is_file()).max();
    newest.map(|(_, java)| java).context("no Java 21 or newer in /usr/lib/jvm: name one with --java")
}

/// The feature release that a JDK's file `release` names.
fn release(home: &Path) -> Option<u32> {
    let text = fs::read_to_string(home.join("release")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("JAVA_VERSION=\""))?;
    line.split(['.', '"', '-', '+']).next()?.parse().ok()
}
