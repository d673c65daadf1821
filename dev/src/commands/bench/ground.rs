//! The services, and a backlog behind a base slot that every run copies.
//!
//! A subject at a distance gets the addresses of taps in front of the brokers and of Postgres; any other subject gets their own
//! addresses. Writers, consumers and samples never go through the taps.
//!
//! Row `n` has the id `n` in hexadecimal, the key `order-<n modulo keys>` and, with several topics, the route `t<n modulo
//! topics>`: so what must arrive, and in which order, is known without keeping it.

use std::path::{Path, PathBuf};
use std::time::Instant;

use ::postgres::Client;
use anyhow::{Context as _, Result, bail};
use rdkafka::ClientConfig;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use std::time::Duration;
use walrelay_dev::arrivals::{Arrivals, Place};
use walrelay_dev::brokers;
use walrelay_dev::cluster::Cluster;
use walrelay_dev::kafka::{self, Kafka};
use walrelay_dev::postgres::{self, Postgres, TlsFiles};
use walrelay_dev::secure::Authority;
use walrelay_dev::servers::Servers;
use walrelay_dev::tap::Tap;
use walrelay_dev::tap::pace::{self, Between};
use walrelay_dev::{provision, versions};

use super::case::{Kind, Load, Reading, Way};
use crate::distance::Distance;
use crate::screen::{line, thousands};

/// What addresses begin with where topics are not created.
const PREFIX: &str = "bench";

/// The publication in each database.
pub(super) const PUBLICATION: &str = "bench";

/// The prefix of logical messages.
pub(super) const MESSAGE_PREFIX: &str = "outbox";

const TABLES: &str = "
CREATE TABLE outbox (
    id uuid NOT NULL,
    aggregate_type text NOT NULL,
    aggregate_id text NOT NULL,
    event_type text NOT NULL,
    payload {type} NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE PUBLICATION bench FOR TABLE outbox WITH (publish = 'insert');
";

/// Writes one transaction after the other. The note in a payload is a part of `pool`, a text that does not compress.
const FILL: &str = "
DO $$
DECLARE
    pool text := (SELECT string_agg(md5(i::text), '') FROM generate_series(1, {pool}) AS i);
BEGIN
    FOR n IN 0 .. {transactions} - 1 LOOP
        {insert}
        FROM generate_series(n * {batch}, n * {batch} + {batch} - 1) AS x;
        COMMIT;
    END LOOP;
END
$$";

/// How long the first writes to all partitions may take.
const OPEN_WITHIN: Duration = Duration::from_mins(5);

/// Bytes of a payload without its note.
const FRAME_BYTES: u64 = 90;

/// Postgres and what is published to, for all cases.
#[derive(Debug)]
pub(super) struct Ground {
    pub(super) postgres: Postgres,
    postgres_tap: Tap,
    pub(super) servers: Servers,
    /// A cluster of Redis, which is measured beside the one server.
    nodes: Option<brokers::Cluster>,
    pub(super) major: u32,
    tls: bool,
    /// Holds logs and what the subjects write.
    pub(super) folder: PathBuf,
}

/// A backlog that was written.
#[derive(Debug, Clone)]
pub(super) struct Loaded {
    pub(super) load: Load,
    pub(super) database: String,
    /// The position behind it.
    pub(super) end: String,
    /// Mean bytes of key and value.
    pub(super) row_bytes: f64,
    /// Of all payloads: the sum of the first 60 bits of their MD5; `None` where no table has them.
    pub(super) hash: Option<i128>,
}

/// What a subject reads, and where it writes.
#[derive(Debug)]
pub(super) struct Job<'a> {
    pub(super) ground: &'a Ground,
    pub(super) loaded: &'a Loaded,
    pub(super) reading: &'a Reading,
    pub(super) slot: &'a str,
    /// The topic; with several, `.t<n>` follows.
    pub(super) topic: &'a str,
    /// Empty, for what the subject writes besides.
    pub(super) folder: PathBuf,
}

impl Ground {
    pub(super) fn start(major: u32, tls: bool, brokers: u16, to: Option<brokers::Kind>) -> Result<Self> {
        let folder = provision::dev_dir().join("bench");
        std::fs::create_dir_all(&folder)?;
        let servers = match to {
            None => {
                let options = kafka::Options { for_benchmarks: true, ..kafka::Options::default() };
                Servers::Kafka(Cluster::start(brokers, &options)?)
            }
            Some(kind) => Servers::other(kind, PREFIX, faster(kind), false)?,
        };
        let nodes = match to {
            Some(kind @ brokers::Kind::Valkey) if brokers > 1 => {
                Some(brokers::Cluster::start(brokers.into(), 0, faster(kind))?)
            }
            Some(kind) if brokers > 1 => bail!("{} has one server here", kind.name()),
            Some(_) | None => None,
        };
        let settings = walrelay_dev::settings(&SETTINGS);
        let tls_files = if tls { Some(certified(&folder)?) } else { None };
        let options = postgres::Options { major, settings, tls: tls_files, ..postgres::Options::default() };
        let postgres = Postgres::start(&options)?;
        let postgres_tap = Tap::start(format!("127.0.0.1:{}", postgres.port()))?;
        Ok(Self { postgres, postgres_tap, servers, nodes, major, tls, folder })
    }

    /// How the services are set.
    pub(super) fn describe(&self) -> String {
        let settings: Vec<String> = SETTINGS.iter().map(|(name, value)| format!("{name} = {value}")).collect();
        let servers = match &self.servers {
            Servers::Kafka(cluster) if cluster.count() == 1 => {
                format!("Kafka {}, 1 GiB of heap", versions::KAFKA_VERSION)
            }
            Servers::Kafka(cluster) => format!(
                "Kafka {}, {} brokers with 512 MiB of heap each, a replica on each, two in sync at least",
                versions::KAFKA_VERSION,
                cluster.count()
            ),
            Servers::Other(_) => {
                let nodes =
                    self.nodes.as_ref().map(|nodes| format!("; a cluster of {} such servers", nodes.nodes.len()));
                format!("{}{}", self.kind().map_or("", durability), nodes.unwrap_or_default())
            }
        };
        format!("Postgres {} with {}; {servers}", self.major, settings.join(", "))
    }

    /// The broker that subjects publish to, if it is not Kafka.
    pub(super) fn kind(&self) -> Option<brokers::Kind> {
        self.servers.kind()
    }

    /// The first broker without its tap, for requests that any broker can answer.
    pub(super) fn kafka(&self) -> Result<&Kafka> {
        self.servers.first_kafka()
    }

    /// A client's configuration that reaches Kafka without the taps.
    pub(super) fn client_config(&self) -> Result<ClientConfig> {
        Ok(self.servers.kafka()?.client_config())
    }

    /// Where the published records are read, without the taps.
    pub(super) fn arrivals(&self, reading: &Reading) -> Arrivals {
        self.nodes(reading)
            .map_or_else(|| self.servers.arrivals(), |nodes| Arrivals::Other(Place::Redis(nodes.ports())))
    }

    fn nodes(&self, reading: &Reading) -> Option<&brokers::Cluster> {
        self.nodes.as_ref().filter(|_| reading.nodes > 1)
    }

    /// The topic of a run, with a name that no other run has.
    pub(super) fn topic(&self, what: &str, number: usize) -> String {
        let name = format!("{what}-{number}");
        if self.kind().is_some() { self.servers.arrivals().address(PREFIX, &name) } else { name }
    }

    /// Creates the topics of a run, where topics are created, with a record in each partition.
    pub(super) fn create_topics(&self, names: &[&str], partitions: u32, settings: &[(&str, &str)]) -> Result<()> {
        if self.kind().is_some() {
            return self.servers.arrivals().create(names);
        }
        self.kafka()?.create_topics(names, partitions, settings)?;
        self.open(names, partitions)
    }

    /// Removes the topics of a run with their records.
    pub(super) fn remove_topics(&self, names: &[&str], reading: &Reading) -> Result<()> {
        if let Some(nodes) = self.nodes(reading) {
            return names.iter().try_for_each(|name| nodes.of_key(name, &["UNLINK", name]).map(drop));
        }
        match &self.servers {
            Servers::Kafka(_) => self.kafka()?.delete_topics(names),
            Servers::Other(_) => self.servers.empty(names),
        }
    }

    /// The value of `--to` for a subject.
    pub(super) fn to(&self, reading: &Reading) -> String {
        match self.nodes(reading) {
            Some(nodes) => nodes.url(),
            None if reading.broker.is_none() => self.servers.plain_to(),
            None => self.servers.to(),
        }
    }

    /// `host:port` of the brokers for a subject, separated by commas.
    pub(super) fn brokers(&self, reading: &Reading) -> String {
        let to = self.to(reading);
        let authority =
            to.split_once("://").map_or(to.as_str(), |(_, rest)| rest).split('/').next().unwrap_or_default();
        authority.rsplit('@').next().unwrap_or_default().to_owned()
    }

    /// Postgres' port for a subject.
    pub(super) fn postgres_port(&self, reading: &Reading) -> u16 {
        if reading.postgres.is_none() { self.postgres.port() } else { self.postgres_tap.port() }
    }

    /// Moves the services as far away as the reading says.
    pub(super) fn move_away(&self, reading: &Reading) {
        self.servers.taps().iter().for_each(|tap| tap.set_distance(reading.broker.0));
        self.postgres_tap.set_distance(reading.postgres.0);
    }

    /// CPU time of all brokers.
    pub(super) fn broker_cpu(&self, reading: &Reading) -> Result<Duration> {
        self.nodes(reading).map_or_else(|| self.servers.cpu(), brokers::Cluster::cpu)
    }

    /// The URI of a database for a subject.
    pub(super) fn url(&self, database: &str, reading: &Reading) -> Result<String> {
        let tcp = || Ok(format!("postgres://postgres@127.0.0.1:{}/{database}", self.postgres_port(reading)));
        match reading.way {
            // By default, a client would use TLS if the server has it.
            Way::Tcp if self.tls => tcp().map(|url| format!("{url}?sslmode=disable")),
            Way::Tcp => tcp(),
            Way::Tls => tcp().map(|url| format!("{url}?sslmode=require")),
            Way::Socket => Ok(self.postgres.socket_url(database)),
        }
    }

    /// Writes a backlog.
    pub(super) fn load(&self, load: Load) -> Result<Loaded> {
        let started = Instant::now();
        let database = self.postgres.create_unique_database("bench")?;
        let mut client = self.postgres.connect(Some(&database))?;
        client.batch_execute(&tables(load.kind))?;
        // Not in the transaction that makes the table.
        client.batch_execute("SELECT pg_create_logical_replication_slot('base', 'pgoutput')")?;
        client.batch_execute(&fill(&load)).context("cannot write the backlog")?;
        let end: String = client.query_one("SELECT pg_current_wal_insert_lsn()::text", &[])?.get(0);
        let (row_bytes, hash) = sizes(&mut client, &load)?;
        line(&format!("{load}: {row_bytes:.0} B of key and value each, written in {:.0?}", started.elapsed()));
        Ok(Loaded { load, database, end, row_bytes, hash })
    }

    /// Drops a database with its slots.
    pub(super) fn drop_database(&self, name: &str) -> Result<()> {
        postgres::drop_database(&mut self.postgres.connect(None)?, name)
    }

    /// Writes one record without key, value and headers into each partition: a broker's first write to a partition makes its files
    /// and waits for the disk, which takes longer than all of a run's where there are a thousand.
    fn open(&self, topics: &[&str], partitions: u32) -> Result<()> {
        let producer: BaseProducer = self.client_config()?.create()?;
        for (topic, partition) in
            topics.iter().flat_map(|topic| (0..partitions).map(move |partition| (topic, partition)))
        {
            let record = BaseRecord::<(), ()>::to(topic).partition(i32::try_from(partition)?);
            producer.send(record).map_err(|(error, _)| error).with_context(|| format!("cannot write to {topic}"))?;
        }
        Ok(producer.flush(OPEN_WITHIN)?)
    }

    /// Writes records to Kafka, so that its Java compiles what it will need: a fresh one is slow.
    pub(super) fn warm_up(&self, records: u64) -> Result<()> {
        if records == 0 || self.kind().is_some() {
            return Ok(());
        }
        let started = Instant::now();
        self.kafka()?.create_topic("warm-up", 12, &[])?;
        let mut config = self.client_config()?;
        config.set("linger.ms", "5").set("enable.idempotence", "true").set("queue.buffering.max.messages", "200000");
        let producer: BaseProducer = config.create()?;
        let payload = "x".repeat(300);
        for number in 0..records {
            let key = (number % 1000).to_string();
            let mut record = BaseRecord::to("warm-up").key(&key).payload(&payload);
            while let Err((_, back)) = producer.send(record) {
                producer.poll(Duration::from_millis(10));
                record = back;
            }
            if number.is_multiple_of(1000) {
                producer.poll(Duration::ZERO);
            }
        }
        producer.flush(Duration::from_mins(1))?;
        self.kafka()?.delete_topics(&["warm-up"])?;
        line(&format!("Kafka warmed up with {} records in {:.0?}", thousands(records), started.elapsed()));
        Ok(())
    }
}

/// Further settings of a server: most have Redis sync its file each second.
fn faster(kind: brokers::Kind) -> &'static [&'static str] {
    if kind == brokers::Kind::Valkey { &["appendfsync everysec"] } else { &[] }
}

/// How other servers than Kafka are set, in words: see [`Servers::other`].
fn durability(kind: brokers::Kind) -> &'static str {
    match kind {
        brokers::Kind::Valkey => "Valkey 9.1.2, append-only file, fsync every second",
        brokers::Kind::Nats => "NATS 2.15.2, a stream in files, fsync every two minutes",
        brokers::Kind::RabbitMq => "RabbitMQ 4.0, one quorum queue",
        brokers::Kind::ElasticMq => "ElasticMQ",
    }
}

/// What a tap costs at each of the distances, and that it limits no rate.
pub(super) fn tap_words(distances: &[Distance]) -> Result<String> {
    let mut words = Vec::new();
    let ways =
        [("without a tap".to_owned(), Between::Nothing), ("through one".to_owned(), Between::Tap(Duration::ZERO))];
    let far = distances.iter().filter(|distance| !distance.is_none());
    for (name, between) in ways.into_iter().chain(far.map(|far| (format!("{far}"), Between::Tap(far.0)))) {
        let times = pace::round_trips(between)?;
        let middle = times.get(times.len() / 2).copied().unwrap_or_default().as_secs_f64() * 1000.0;
        words.push(format!("{name} {:.0} MB/s and {middle:.2} ms", pace::throughput(between)? / 1e6));
    }
    Ok(format!("one stream and its round trip on this machine: {}", words.join(", ")))
}

/// No crash is tried here, and no checkpoint shall fall into a run.
const SETTINGS: [(&str, &str); 4] = [
    ("max_wal_size", "16GB"),
    ("checkpoint_timeout", "1h"),
    ("synchronous_commit", "off"),
    ("max_replication_slots", "50"),
];

/// The outbox and its publication.
pub(super) fn tables(kind: Kind) -> String {
    TABLES.replace("{type}", kind.column())
}

fn fill(load: &Load) -> String {
    let note = load.payload.0.saturating_sub(FRAME_BYTES).max(1);
    let route = if load.topics == 1 { "'order'".to_owned() } else { format!("'t' || x % {}", load.topics) };
    let key = format!("'order-' || x % {}", load.keys);
    let id = "lpad(to_hex(x), 32, '0')::uuid";
    let text = format!(
        "'{{\"note\": \"' || substr(pool, (x % 1000)::int + 1, {note}) || '\", \"order\": ' || x || ', \"total\": \"29.99\", \"customer\": \"' || x % 977 || '\"}}'"
    );
    let insert = match load.kind {
        Kind::Message => format!(
            "PERFORM pg_logical_emit_message(true, '{MESSAGE_PREFIX}', json_build_object('id', {id}, 'aggregate_type', {route}, \
             'aggregate_id', {key}, 'event_type', 'OrderPlaced', 'payload', ({text}))::text)"
        ),
        Kind::Jsonb | Kind::Text | Kind::Bytea => {
            let payload = match load.kind {
                Kind::Jsonb => format!("({text})::jsonb"),
                Kind::Bytea => format!("convert_to({text}, 'UTF8')"),
                Kind::Text | Kind::Message => text,
            };
            format!(
                "INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, payload)
                 SELECT {id}, {route}, {key}, 'OrderPlaced', {payload}"
            )
        }
    };
    FILL.replace("{pool}", &((note + 1000) / 32 + 1).to_string())
        .replace("{transactions}", &(load.rows / load.batch).to_string())
        .replace("{insert}", &insert)
        .replace("{batch}", &load.batch.to_string())
}

/// Mean bytes of key and value, and the sum of the payloads' hashes.
fn sizes(client: &mut Client, load: &Load) -> Result<(f64, Option<i128>)> {
    let text = match load.kind {
        Kind::Message => return Ok((bytes_of(load), None)),
        Kind::Jsonb => "payload::text",
        Kind::Text | Kind::Bytea => "payload",
    };
    let sql = format!(
        "SELECT coalesce(avg(octet_length({text}) + octet_length(aggregate_id)), 0)::float8,
            coalesce(sum(('x' || substr(md5({text}), 1, 15))::bit(60)::bigint), 0)::text FROM outbox"
    );
    let row = client.query_one(&sql, &[])?;
    let hash: String = row.get(1);
    Ok((row.get(0), Some(hash.parse().context("the sum of hashes is no number")?)))
}

#[allow(clippy::cast_precision_loss, reason = "a size far below 2^52")]
fn bytes_of(load: &Load) -> f64 {
    load.payload.0 as f64
}

/// A certificate for this machine alone.
fn certified(folder: &Path) -> Result<TlsFiles> {
    Authority::new("bench")?.issue("127.0.0.1", &["127.0.0.1"])?.write(folder, "tls")?;
    let (certificate, key) = (folder.join("tls.crt"), folder.join("tls.key"));
    Ok(TlsFiles { certificate, key, client_authority: None })
}

#[cfg(test)]
mod tests {
    use super::super::case::Size;
    use super::*;

    #[test]
    fn the_statement_has_no_place_left_to_fill_in() {
        for kind in [Kind::Jsonb, Kind::Text, Kind::Bytea, Kind::Message] {
            for topics in [1, 1000] {
                let load = Load { rows: 100, batch: 10, payload: Size(300), kind, topics, keys: 7 };
                let sql = fill(&load);
                for place in ["{pool}", "{transactions}", "{insert}", "{batch}"] {
                    assert!(!sql.contains(place), "{place} in {sql}");
                }
            }
        }
    }
}
