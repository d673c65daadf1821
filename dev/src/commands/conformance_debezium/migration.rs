//! The way from Debezium to the relay and back, as somebody goes it who has its files and a running slot: a shadow run beside
//! it on a copy of the slot, the switch, the return. Rows are written all the time, also while neither runs; each must be in its
//! topic, in the order of its key, and on the partition that the key has had before.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use walrelay_dev::conformance::data::{Case, Connect, Group, Statement};
use walrelay_dev::conformance::ground::{Ground, LONG, Site};
use walrelay_dev::consume::{self, Record};
use walrelay_dev::debezium::{Debezium, State, Worker};
use walrelay_dev::process;
use walrelay_dev::relay::Relay;

use super::{CONTEXT, start_relay};
use crate::screen;

/// Both kinds of files, without the addresses, the converters and the platform's own keys.
const CONNECTOR: [(&str, &str); 8] = [
    ("connector.class", "io.debezium.connector.postgresql.PostgresConnector"),
    ("plugin.name", "pgoutput"),
    ("topic.prefix", "app"),
    ("publication.autocreate.mode", "disabled"),
    ("snapshot.mode", "no_data"),
    ("transforms", "outbox"),
    ("transforms.outbox.type", "io.debezium.transforms.outbox.EventRouter"),
    ("transforms.outbox.table.fields.additional.placement", "type:header:eventType"),
];

const STRINGS: &str = "org.apache.kafka.connect.storage.StringConverter";
const JSON: &str = "org.apache.kafka.connect.json.JsonConverter";
const SIMPLE: &str = "org.apache.kafka.connect.storage.SimpleHeaderConverter";

/// Partitions of each topic.
const PARTITIONS: u32 = 6;

/// How keys, values and headers are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Texts,
    Json,
    Schemas,
}

/// One set-up that moves.
#[derive(Debug, Clone, Copy)]
struct Scenario {
    number: usize,
    /// Kafka Connect's; else Debezium Server's.
    connect: bool,
    tables: usize,
    form: Form,
}

/// Ten of them, half on each platform.
fn scenarios() -> Vec<Scenario> {
    let kinds = [(1, Form::Texts), (1, Form::Json), (1, Form::Schemas), (2, Form::Texts), (2, Form::Schemas)];
    let both = [false, true].into_iter().flat_map(|connect| kinds.map(|(tables, form)| (connect, tables, form)));
    both.enumerate().map(|(number, (connect, tables, form))| Scenario { number, connect, tables, form }).collect()
}

/// Whether no row was lost, swapped or sent to another partition on any of the ways.
pub(super) fn run(ground: &Ground, binary: &Path) -> Result<bool> {
    let worker = Worker::start(ground.folder(), &ground.kafka().brokers())?;
    let mut good = true;
    for scenario in scenarios() {
        let Scenario { connect, tables, form, .. } = scenario;
        let platform = if connect { "Kafka Connect" } else { "Debezium Server" };
        screen::line(&format!("migration from {platform}, {tables} of tables, {form:?}:"));
        let group = scenario.group();
        let site = ground.furnish(&group)?;
        site.make_slot(&site.name)?;
        ground.make_topics(&group)?;
        let moving = Move { ground, binary, worker: &worker, group: &group, site: &site, scenario, written: 0 };
        good &= moving.go()?;
    }
    Ok(good)
}

impl Scenario {
    /// Of the table's rows.
    fn route(self, at: usize) -> String {
        format!("moved{}{}", self.number, ["", "-events"].get(at).unwrap_or(&""))
    }

    fn topics(self, prefix: &str) -> Vec<String> {
        (0..self.tables).map(|at| format!("{prefix}.{}", self.route(at))).collect()
    }

    fn group(self) -> Group {
        let table = |at| {
            format!(
                "CREATE TABLE {} (id bigint NOT NULL, aggregatetype text NOT NULL DEFAULT '{}', aggregateid text, \
                 type text DEFAULT 'Moved', payload jsonb)",
                table_of(at),
                self.route(at)
            )
        };
        let case = Case {
            name: "tables that move".to_owned(),
            table: (0..self.tables).map(table).collect(),
            statements: vec![Statement::Own("SELECT 1".to_owned())],
            oracle: None,
            records: Vec::new(),
            sum: None,
            differs: None,
            debezium: Vec::new(),
        };
        let topics = self.topics("outbox.event").into_iter().chain(self.topics("shadow"));
        let partitions = topics.map(|topic| (topic, PARTITIONS)).collect();
        let (debezium, connect) =
            if self.connect { (Vec::new(), Some(self.of_connect())) } else { (self.of_server(), None) };
        Group {
            name: format!("migration {}", self.number),
            debezium,
            connect,
            partitions,
            cases: vec![case],
            ..Group::default()
        }
    }

    fn included(self) -> &'static str {
        if self.tables == 1 { "c1.outbox" } else { "c1.outbox,c1.events" }
    }

    fn of_server(self) -> Vec<String> {
        let mut lines = vec![
            "debezium.sink.type=kafka".to_owned(),
            "debezium.sink.kafka.producer.key.serializer=org.apache.kafka.common.serialization.StringSerializer"
                .to_owned(),
            "debezium.sink.kafka.producer.value.serializer=org.apache.kafka.common.serialization.StringSerializer"
                .to_owned(),
            format!("debezium.source.table.include.list={}", self.included()),
        ];
        lines.extend(CONNECTOR.iter().map(|(key, value)| match key.strip_prefix("transforms") {
            Some(rest) => format!("debezium.transforms{rest}={value}"),
            None => format!("debezium.source.{key}={value}"),
        }));
        let format = if self.form == Form::Texts { "simplestring" } else { "json" };
        for part in ["key", "value"] {
            lines.push(format!("debezium.format.{part}={format}"));
            lines.push(format!("debezium.format.{part}.schemas.enable={}", self.form == Form::Schemas));
        }
        match self.form {
            Form::Texts => lines.extend([
                "debezium.format.header=clientprovided".to_owned(),
                format!("debezium.format.header.class={SIMPLE}"),
            ]),
            Form::Json | Form::Schemas => lines.extend([
                "debezium.format.header=json".to_owned(),
                format!("debezium.format.header.schemas.enable={}", self.form == Form::Schemas),
            ]),
        }
        lines
    }

    fn of_connect(self) -> Connect {
        let mut config: BTreeMap<String, String> =
            CONNECTOR.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        config.insert("table.include.list".to_owned(), self.included().to_owned());
        let parts = if self.form == Form::Texts { ["key", "value"].as_slice() } else { &["key", "value", "header"] };
        for part in parts {
            let class = if self.form == Form::Texts { STRINGS } else { JSON };
            config.insert(format!("{part}.converter"), class.to_owned());
            if class == JSON {
                let schemas = self.form == Form::Schemas;
                config.insert(format!("{part}.converter.schemas.enable"), schemas.to_string());
            }
        }
        Connect { config, worker: vec![format!("key.converter={STRINGS}"), format!("value.converter={STRINGS}")] }
    }
}

fn table_of(at: usize) -> &'static str {
    if at == 0 { "outbox" } else { "events" }
}

/// What ran before the relay.
enum Old<'w> {
    Server(Box<Debezium>),
    Connect { worker: &'w Worker, name: String },
}

impl Old<'_> {
    fn stop(&mut self) -> Result<()> {
        match self {
            Self::Server(debezium) => debezium.stop(),
            Self::Connect { worker, name } => worker.stop(name),
        }
    }

    /// From the slot's position, not from its own.
    fn start_again(&mut self) -> Result<()> {
        match self {
            Self::Server(debezium) => {
                debezium.forget()?;
                debezium.start_again()
            }
            Self::Connect { worker, name } => {
                worker.forget(name)?;
                worker.resume(name)
            }
        }
    }

    fn check(&mut self) -> Result<()> {
        match self {
            Self::Server(debezium) => match debezium.exited()? {
                Some(code) => bail!("Debezium ended with {code}: {}", debezium.tail()),
                None => Ok(()),
            },
            Self::Connect { worker, name } => match worker.state(name)? {
                State::Failed(why) => bail!("Debezium's task ended: {why}"),
                State::Running | State::Other => Ok(()),
            },
        }
    }
}

struct Move<'m> {
    ground: &'m Ground,
    binary: &'m Path,
    worker: &'m Worker,
    group: &'m Group,
    site: &'m Site<'m>,
    scenario: Scenario,
    written: i64,
}

impl<'m> Move<'m> {
    fn go(mut self) -> Result<bool> {
        let mut old = self.start()?;
        self.wait_active(true, &mut old)?;
        self.write(20)?;
        self.arrive(&mut old)?;
        let shadow = self.shadow(&mut old)?;
        old.stop()?;
        self.wait_active(false, &mut old)?;
        let switch = self.switch()?;
        let back = self.back(&mut old)?;
        old.stop()?;
        Ok(shadow && switch && back)
    }

    fn start(&self) -> Result<Old<'m>> {
        if self.scenario.connect {
            self.worker.add(&self.site.name, &self.site.connector(&self.site.name)?)?;
            return Ok(Old::Connect { worker: self.worker, name: self.site.name.clone() });
        }
        let files = self.files()?;
        let file = files.first().context("no properties")?;
        let debezium = Debezium::start(self.ground.folder(), &std::fs::read_to_string(file)?)?;
        Ok(Old::Server(Box::new(debezium)))
    }

    fn files(&self) -> Result<Vec<std::path::PathBuf>> {
        self.site.files(self.ground.folder(), &self.site.name, &self.ground.kafka().brokers())
    }

    /// Until somebody reads the slot, or nobody does.
    fn wait_active(&self, wanted: bool, old: &mut Old<'_>) -> Result<()> {
        let mut client = self.site.connect()?;
        let sql = "SELECT active FROM pg_replication_slots WHERE slot_name = $1";
        process::wait_until(LONG, "Debezium to stream, or to stop", || {
            std::thread::sleep(Duration::from_millis(50));
            if wanted {
                old.check()?;
            }
            Ok(client.query_one(sql, &[&self.site.name])?.get::<_, bool>(0) == wanted)
        })
    }

    /// Beside Debezium, on a copy of its slot, into topics of its own.
    fn shadow(&mut self, old: &mut Old<'_>) -> Result<bool> {
        let copy = format!("{}_shadow", self.site.name);
        let sql = format!("SELECT pg_copy_logical_replication_slot('{}', '{copy}')", self.site.name);
        self.site.connect()?.batch_execute(&sql)?;
        let mut arguments = vec!["run".to_owned()];
        arguments.extend(self.files()?.iter().map(|file| format!("--from-debezium={}", file.display())));
        arguments.extend([format!("--slot={copy}"), "--topic=shadow.{route}".to_owned()]);
        let mut relay = Relay::start(self.binary, &arguments, &[] as &[(&str, &str)])?;
        relay.wait_streaming(LONG)?;
        self.write(30)?;
        self.arrive(old)?;
        self.site.wait_confirmed(&copy, || relay.exited())?;
        relay.terminate(LONG)?;
        self.site.connect()?.batch_execute(&format!("SELECT pg_drop_replication_slot('{copy}')"))?;
        let (theirs, ours) = (self.records("outbox.event")?, self.records("shadow")?);
        let of_shadow: BTreeMap<i64, &Record> = ours.iter().map(|record| (number(record), record)).collect();
        let same = |their: &&Record| {
            of_shadow.get(&number(their)).is_none_or(|our| {
                (&their.key, &their.value, &their.headers, their.partition)
                    == (&our.key, &our.value, &our.headers, our.partition)
            })
        };
        let alike = ours.len() >= 30 && theirs.iter().all(|their| same(&their));
        let verdict = if alike { "identical, on the same partitions" } else { "DIFFERENT" };
        screen::line(&format!("  shadow run: {} records beside Debezium's: {verdict}", ours.len()));
        Ok(alike)
    }

    /// Debezium has stopped; rows are written; the relay starts on the same slot.
    fn switch(&mut self) -> Result<bool> {
        let before = self.records("outbox.event")?;
        self.write(10)?;
        let mut relay = start_relay(self.site, self.ground, self.group, self.binary)?;
        relay.wait_streaming(LONG)?;
        self.write(10)?;
        self.site.wait_confirmed(&self.site.name, || relay.exited())?;
        let exit = relay.terminate(LONG)?;
        if exit.code != 0 {
            bail!("the relay ended with {}: {}", exit.code, relay.log());
        }
        self.report("switch", &before)
    }

    /// The relay has stopped; rows are written; Debezium starts again, from the slot's position.
    fn back(&mut self, old: &mut Old<'_>) -> Result<bool> {
        let before = self.records("outbox.event")?;
        self.write(10)?;
        old.start_again()?;
        self.wait_active(true, old)?;
        self.write(10)?;
        self.arrive(old)?;
        self.report("return", &before)
    }

    /// In turn into each table.
    fn write(&mut self, rows: i64) -> Result<()> {
        let mut client = self.site.connect()?;
        for n in self.written + 1..=self.written + rows {
            let at = usize::try_from(n)? % self.scenario.tables;
            let sql = format!(
                "INSERT INTO c1.{} (id, aggregateid, payload) VALUES ({n}, 'key-{}', '{{\"n\": {n}}}')",
                table_of(at),
                n % 7
            );
            client.batch_execute(&sql)?;
        }
        self.written += rows;
        Ok(())
    }

    /// Waits until the last row is there.
    fn arrive(&self, old: &mut Old<'_>) -> Result<()> {
        let last = self.written;
        process::wait_until(LONG, &format!("row {last}"), || {
            std::thread::sleep(Duration::from_millis(100));
            old.check()?;
            Ok(self.records("outbox.event")?.iter().any(|record| number(record) == last))
        })
    }

    fn records(&self, prefix: &str) -> Result<Vec<Record>> {
        let topics = self.scenario.topics(prefix);
        let topics: Vec<&str> = topics.iter().map(String::as_str).collect();
        let mut records = consume::read_to_end(&self.ground.kafka().client_config(), &topics)?;
        for record in &mut records {
            record.headers.retain(|(name, _)| !name.starts_with(CONTEXT));
        }
        records.sort_by(|a, b| (&a.topic, a.partition, a.offset).cmp(&(&b.topic, b.partition, b.offset)));
        Ok(records)
    }

    /// Whether all are there, each key's in their order, on one partition.
    fn report(&self, what: &str, before: &[Record]) -> Result<bool> {
        let now = self.records("outbox.event")?;
        let seen: BTreeSet<i64> = now.iter().map(number).collect();
        let missing: Vec<i64> = (1..=self.written).filter(|n| !seen.contains(n)).collect();
        let mut keys: BTreeMap<(&str, String), Vec<&Record>> = BTreeMap::new();
        for record in &now {
            keys.entry((&record.topic, record.key_text())).or_default().push(record);
        }
        let stays = |records: &Vec<&Record>| {
            let partitions: BTreeSet<i32> = records.iter().map(|record| record.partition).collect();
            partitions.len() == 1
        };
        let (stay, in_order) = (keys.values().all(stays), keys.values().all(|records| first_times_in_order(records)));
        screen::line(&format!(
            "  {what}: {} of {} rows there, {} repeated, missing {missing:?}, {}, {}",
            seen.len(),
            self.written,
            (now.len() + before.iter().map(number).collect::<BTreeSet<_>>().len()) - (before.len() + seen.len()),
            if in_order { "in order" } else { "OUT OF ORDER" },
            if stay { "each key on its partition" } else { "KEYS ON OTHER PARTITIONS" }
        ));
        Ok(missing.is_empty() && in_order && stay)
    }
}

fn first_times_in_order(records: &[&Record]) -> bool {
    let mut seen = BTreeSet::new();
    let first: Vec<i64> = records.iter().map(|record| number(record)).filter(|n| seen.insert(*n)).collect();
    first.is_sorted()
}

/// The row's own number: the header's text, or what stands last in its JSON.
fn number(record: &Record) -> i64 {
    let text = record.header("id").unwrap_or_default().trim_end_matches('}');
    let digits = text.rfind(|c: char| !c.is_ascii_digit()).map_or(0, |at| at + 1);
    text.get(digits..).and_then(|digits| digits.parse().ok()).unwrap_or(-1)
}
