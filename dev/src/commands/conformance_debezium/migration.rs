//! The way from Debezium to the relay and back, as somebody goes it who has an `application.properties` and a running
//! slot: a shadow run beside it on a copy of the slot, the switch, the return. Rows are written all the time, also while
//! neither runs; each must be in the topic, in its order.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use walrelay_dev::conformance::data::{Case, Group, Statement};
use walrelay_dev::conformance::ground::{Ground, LONG, Site};
use walrelay_dev::consume::{self, Record};
use walrelay_dev::debezium::Debezium;
use walrelay_dev::process;
use walrelay_dev::relay::Relay;

use super::{CONTEXT, start_relay, wait_active};
use crate::screen;

/// The usual file, without the addresses.
const PROPERTIES: &[&str] = &[
    "debezium.sink.type=kafka",
    "debezium.sink.kafka.producer.key.serializer=org.apache.kafka.common.serialization.StringSerializer",
    "debezium.sink.kafka.producer.value.serializer=org.apache.kafka.common.serialization.StringSerializer",
    "debezium.source.connector.class=io.debezium.connector.postgresql.PostgresConnector",
    "debezium.source.plugin.name=pgoutput",
    "debezium.source.topic.prefix=app",
    "debezium.source.table.include.list=c1.outbox",
    "debezium.source.publication.autocreate.mode=disabled",
    "debezium.source.snapshot.mode=no_data",
    "debezium.format.key=simplestring",
    "debezium.format.value=simplestring",
    "debezium.format.header=clientprovided",
    "debezium.format.header.class=org.apache.kafka.connect.storage.SimpleHeaderConverter",
    "debezium.transforms=outbox",
    "debezium.transforms.outbox.type=io.debezium.transforms.outbox.EventRouter",
    "debezium.transforms.outbox.table.fields.additional.placement=type:header:eventType",
];

const TOPIC: &str = "outbox.event.moved";
const SHADOW: &str = "shadow.moved";

/// Whether no row was lost or swapped on any of the ways.
pub(super) fn run(ground: &Ground, binary: &Path) -> Result<bool> {
    let table = "CREATE TABLE outbox (id bigint GENERATED ALWAYS AS IDENTITY, aggregatetype text DEFAULT 'moved', \
                 aggregateid text, type text DEFAULT 'Moved', payload jsonb)";
    let case = Case {
        name: "a table that moves".to_owned(),
        table: vec![table.to_owned()],
        statements: vec![Statement::Own("SELECT 1".to_owned())],
        oracle: None,
        records: Vec::new(),
        sum: None,
        differs: None,
        debezium: Vec::new(),
    };
    let debezium = PROPERTIES.iter().map(|line| (*line).to_owned()).collect();
    let group = Group { name: "migration".to_owned(), debezium, cases: vec![case], ..Group::default() };
    let site = ground.furnish(&group)?;
    site.make_slot(&site.name)?;
    Move { ground, binary, group: &group, site: &site, written: 0 }.go()
}

struct Move<'m> {
    ground: &'m Ground,
    binary: &'m Path,
    group: &'m Group,
    site: &'m Site<'m>,
    written: i64,
}

impl Move<'_> {
    fn go(mut self) -> Result<bool> {
        let files = self.site.files(self.ground.folder(), &self.site.name, &self.ground.kafka().brokers())?;
        let file = files.first().context("no properties")?;
        let mut debezium = Debezium::start(self.ground.folder(), &std::fs::read_to_string(file)?)?;
        wait_active(self.site, &self.site.name, &mut debezium)?;
        self.write(20)?;
        self.arrive(TOPIC, &debezium)?;
        let shadow = self.shadow(file, &debezium)?;
        debezium.stop()?;
        let switch = self.switch()?;
        let back = self.back(&mut debezium)?;
        Ok(shadow && switch && back)
    }

    /// Beside Debezium, on a copy of its slot, into topics of its own.
    fn shadow(&mut self, file: &Path, debezium: &Debezium) -> Result<bool> {
        let copy = format!("{}_shadow", self.site.name);
        let sql = format!("SELECT pg_copy_logical_replication_slot('{}', '{copy}')", self.site.name);
        self.site.connect()?.batch_execute(&sql)?;
        let arguments = [
            "run".to_owned(),
            format!("--from-debezium={}", file.display()),
            format!("--slot={copy}"),
            "--topic=shadow.{route}".to_owned(),
        ];
        let mut relay = Relay::start(self.binary, &arguments, &[] as &[(&str, &str)])?;
        relay.wait_streaming(LONG)?;
        self.write(30)?;
        self.arrive(TOPIC, debezium)?;
        self.site.wait_confirmed(&copy, || relay.exited())?;
        relay.terminate(LONG)?;
        self.site.connect()?.batch_execute(&format!("SELECT pg_drop_replication_slot('{copy}')"))?;
        let (theirs, ours) = (self.records(TOPIC)?, self.records(SHADOW)?);
        let tail = theirs.get(theirs.len().saturating_sub(ours.len())..).unwrap_or_default();
        let same = |(a, b): (&Record, &Record)| (&a.key, &a.value, &a.headers) == (&b.key, &b.value, &b.headers);
        let alike = ours.len() >= 30 && tail.iter().zip(&ours).all(same);
        screen::line(&format!(
            "shadow run: {} records beside Debezium's last {}: {}",
            ours.len(),
            tail.len(),
            if alike { "identical" } else { "DIFFERENT" }
        ));
        Ok(alike)
    }

    /// Debezium has stopped; rows are written; the relay starts on the same slot.
    fn switch(&mut self) -> Result<bool> {
        let before = self.records(TOPIC)?;
        self.write(10)?;
        let mut relay = start_relay(self.site, self.ground, self.group, self.binary)?;
        relay.wait_streaming(LONG)?;
        self.write(10)?;
        self.site.wait_confirmed(&self.site.name, || relay.exited())?;
        let exit = relay.terminate(LONG)?;
        if exit.code != 0 {
            bail!("the relay ended with {}: {}", exit.code, relay.log());
        }
        self.report("switch", &before, ("Debezium", "walrelay"))
    }

    /// The relay has stopped; rows are written; Debezium starts again, from the slot's position.
    fn back(&mut self, debezium: &mut Debezium) -> Result<bool> {
        let before = self.records(TOPIC)?;
        self.write(10)?;
        debezium.forget()?;
        debezium.start_again()?;
        wait_active(self.site, &self.site.name, debezium)?;
        self.write(10)?;
        self.arrive(TOPIC, debezium)?;
        let good = self.report("return", &before, ("walrelay", "Debezium"));
        debezium.stop()?;
        good
    }

    fn write(&mut self, rows: i64) -> Result<()> {
        let mut client = self.site.connect()?;
        for n in self.written + 1..=self.written + rows {
            let sql =
                format!("INSERT INTO c1.outbox (aggregateid, payload) VALUES ('key-{}', '{{\"n\": {n}}}')", n % 3);
            client.batch_execute(&sql)?;
        }
        self.written += rows;
        Ok(())
    }

    /// Waits until the last row is in the topic.
    fn arrive(&self, topic: &str, debezium: &Debezium) -> Result<()> {
        let last = self.written;
        let there = process::wait_until(LONG, &format!("row {last} in {topic}"), || {
            std::thread::sleep(Duration::from_millis(100));
            Ok(self.records(topic)?.iter().any(|record| number(record) == last))
        });
        there.with_context(|| debezium.tail())
    }

    fn records(&self, topic: &str) -> Result<Vec<Record>> {
        let mut records = consume::read_to_end(&self.ground.kafka().client_config(), &[topic])?;
        for record in &mut records {
            record.headers.retain(|(name, _)| !name.starts_with(CONTEXT));
        }
        records.sort_by_key(|record| (record.partition, record.offset));
        Ok(records)
    }

    /// The last record of one and the first of the other, and whether all are there in their order.
    fn report(&self, what: &str, before: &[Record], (old, new): (&str, &str)) -> Result<bool> {
        let now = self.records(TOPIC)?;
        let after = now.get(before.len()..).unwrap_or_default();
        let seen: BTreeSet<i64> = now.iter().map(number).collect();
        let missing: Vec<i64> = (1..=self.written).filter(|n| !seen.contains(n)).collect();
        let newest = before.iter().map(number).max().unwrap_or(0);
        let repeated = after.iter().filter(|record| number(record) <= newest).count();
        let fresh: Vec<i64> = after.iter().map(number).filter(|n| *n > newest).collect();
        let in_order = fresh.is_sorted();
        screen::line(&format!(
            "{what}: last of {old} {}, first of {new} {}; {} of {} rows there, {repeated} repeated, missing {missing:?}, {}",
            before.last().map_or_else(|| "none".to_owned(), shown),
            after.first().map_or_else(|| "none".to_owned(), shown),
            seen.len(),
            self.written,
            if in_order { "in order" } else { "OUT OF ORDER" }
        ));
        Ok(missing.is_empty() && in_order)
    }
}

/// The row's own number.
fn number(record: &Record) -> i64 {
    record.header("id").and_then(|id| id.parse().ok()).unwrap_or(-1)
}

fn shown(record: &Record) -> String {
    format!("{} {} id={}", record.key_text(), record.value_text(), number(record))
}
