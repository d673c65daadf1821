//! One relay between one database and its topics.
//!
//! In: a Postgres, a destination, the relay's binary. Out: a fresh database with the shop's tables, the topics, publication
//! and slot (by the relay's own `setup`), relays that run on them, and when everything committed has been confirmed.
//! Several stages share the services: each has names of its own.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ::postgres::{Client, NoTls};
use anyhow::{Context as _, Result};

use crate::arrivals::Arrivals;
use crate::kafka::Kafka;
use crate::postgres::{self, Postgres};
use crate::relay::{self, Relay};
use crate::tap::Tap;
use crate::{process, shop, truth};

/// The default number of partitions of each topic.
const PARTITIONS: u32 = 4;

/// The database, topics and names of one relay, which need not run yet.
#[derive(Debug, Clone)]
pub struct Stage {
    /// The relay's binary.
    pub binary: PathBuf,
    /// Connection URI of the database, as superuser.
    pub source: String,
    /// The same for the relay, which may go through a tap.
    pub relay_source: String,
    /// Database, publication and slot have this name.
    pub name: String,
    /// What `--to` takes.
    pub to: String,
    /// Topics are `prefix.order` and `prefix.invoice`, as far as the destination can have such names.
    pub topic_prefix: String,
    /// Where the published records are read.
    pub arrivals: Arrivals,
    admin_source: String,
}

impl Stage {
    /// Makes database, tables, keys and topics.
    ///
    /// # Errors
    /// One of them cannot be made.
    pub fn build(
        postgres: &Postgres,
        kafka: &Kafka,
        binary: &Path,
        topic_prefix: &str,
        options: &shop::Options,
    ) -> Result<Self> {
        Self::build_with(postgres, kafka, binary, topic_prefix, options, PARTITIONS, &[])
    }

    /// As [`Stage::build`], with the topics' partitions and settings.
    ///
    /// # Errors
    /// As [`Stage::build`].
    pub fn build_with(
        postgres: &Postgres,
        kafka: &Kafka,
        binary: &Path,
        topic_prefix: &str,
        options: &shop::Options,
        partitions: u32,
        topic_settings: &[(&str, &str)],
    ) -> Result<Self> {
        let (to, arrivals) = to_kafka(kafka);
        let stage = Self::build_to(postgres, &to, arrivals, binary, topic_prefix, options)?;
        for topic in stage.topics() {
            kafka.create_topic(&topic, partitions, topic_settings)?;
        }
        Ok(stage)
    }

    /// Makes a database and one topic, for a table that is not the shop's and has one route.
    ///
    /// # Errors
    /// One of them cannot be made.
    pub fn bare(
        postgres: &Postgres,
        kafka: &Kafka,
        binary: &Path,
        topic: &str,
        partitions: u32,
        topic_settings: &[(&str, &str)],
    ) -> Result<Self> {
        let (to, arrivals) = to_kafka(kafka);
        kafka.create_topic(topic, partitions, topic_settings)?;
        Self::empty(postgres, &to, arrivals, binary, topic.split('.').next().unwrap_or_default())
    }

    /// Makes database, tables and keys for a destination that is prepared already.
    ///
    /// # Errors
    /// As [`Stage::build`].
    pub fn build_to(
        postgres: &Postgres,
        to: &str,
        arrivals: Arrivals,
        binary: &Path,
        topic_prefix: &str,
        options: &shop::Options,
    ) -> Result<Self> {
        let stage = Self::empty(postgres, to, arrivals, binary, topic_prefix)?;
        stage.arrivals.create(&stage.topics().iter().map(String::as_str).collect::<Vec<_>>())?;
        shop::create_tables(&mut stage.connect()?, options)?;
        Ok(stage)
    }

    /// Makes a database alone, for tables and topics that are not the shop's.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn empty(postgres: &Postgres, to: &str, arrivals: Arrivals, binary: &Path, topic_prefix: &str) -> Result<Self> {
        let name = postgres.create_unique_database("shop")?;
        Ok(Self {
            binary: binary.to_owned(),
            source: postgres.url(&name),
            relay_source: postgres.url(&name),
            name,
            to: to.to_owned(),
            topic_prefix: topic_prefix.to_owned(),
            arrivals,
            admin_source: postgres.url("postgres"),
        })
    }

    /// The topics of the shop's rows.
    pub fn topics(&self) -> Vec<String> {
        shop::KINDS.iter().map(|kind| self.arrivals.address(&self.topic_prefix, kind)).collect()
    }

    /// Connects to the database.
    ///
    /// # Errors
    /// It does not answer.
    pub fn connect(&self) -> Result<Client> {
        Client::connect(&self.source, NoTls).context("cannot connect to the stage's database")
    }

    /// Makes publication and slot as a user does: `walrelay setup --apply`.
    ///
    /// # Errors
    /// The command fails; the message carries what it said.
    pub fn setup(&self) -> Result<String> {
        relay::run_well(&self.binary, &self.arguments("setup", &["--apply", "--table", "public.outbox"]))
    }

    /// Starts a relay; `more` are further arguments.
    ///
    /// # Errors
    /// It cannot be started; see [`Relay::start`].
    pub fn relay(&self, more: &[&str]) -> Result<Relay> {
        self.publisher("run", more)
    }

    /// Starts a command that publishes as a relay does.
    ///
    /// # Errors
    /// As [`Stage::relay`].
    pub fn publisher(&self, command: &str, more: &[&str]) -> Result<Relay> {
        let topic = self.arrivals.address(&self.topic_prefix, "{route}");
        let arguments = self.arguments(command, &[&["--to", &self.to, "--topic", &topic], more].concat());
        Relay::start(&self.binary, &arguments, &[] as &[(&str, &str)])
    }

    /// The arguments of one of the binary's commands for this stage's database, publication and slot.
    pub fn arguments(&self, command: &str, more: &[&str]) -> Vec<String> {
        let place = [command, "--source", &self.relay_source, "--publication", &self.name, "--slot", &self.name];
        place.iter().chain(more).map(|&argument| argument.to_owned()).collect()
    }

    /// Waits until the slot has been confirmed up to everything that is committed now.
    ///
    /// # Errors
    /// It has not within `limit`; the message says how far it is.
    pub fn wait_confirmed(&self, limit: Duration) -> Result<()> {
        let mut client = self.connect()?;
        let target: String = client.query_one("SELECT pg_current_wal_lsn()::text", &[])?.get(0);
        let waited = process::wait_until(limit, "the slot to be confirmed", || {
            let sql = "SELECT coalesce((SELECT confirmed_flush_lsn >= $1::text::pg_lsn FROM pg_replication_slots
                       WHERE slot_name = $2), false)";
            std::thread::sleep(Duration::from_millis(10));
            Ok(client.query_one(sql, &[&target, &self.name])?.get(0))
        });
        waited.with_context(|| format!("up to {target}: it is at {:?}", self.confirmed().ok()))
    }

    /// Has relays reach the database through a tap.
    #[must_use]
    pub fn behind(mut self, tap: &Tap) -> Self {
        self.relay_source = format!("postgres://postgres@{}/{}", tap.address(), self.name);
        self
    }

    /// The process of the slot's walsender; `None`: no relay reads the slot.
    ///
    /// # Errors
    /// There is no such slot.
    pub fn walsender(&self) -> Result<Option<i32>> {
        let sql = "SELECT active_pid FROM pg_replication_slots WHERE slot_name = $1";
        Ok(self.connect()?.query_one(sql, &[&self.name])?.get(0))
    }

    /// Ends the slot's walsender. Returns whether there was one.
    ///
    /// # Errors
    /// There is no such slot.
    pub fn terminate_walsender(&self) -> Result<bool> {
        let Some(pid) = self.walsender()? else { return Ok(false) };
        self.connect()?.execute("SELECT pg_terminate_backend($1)", &[&pid])?;
        Ok(true)
    }

    /// Waits until no relay reads the slot, which may have been dropped.
    ///
    /// # Errors
    /// A relay reads it for longer than `limit`.
    pub fn wait_released(&self, limit: Duration) -> Result<()> {
        let mut client = self.connect()?;
        let sql = "SELECT count(*) = 0 FROM pg_replication_slots WHERE slot_name = $1 AND active";
        process::wait_until(limit, "the slot to be released", || Ok(client.query_one(sql, &[&self.name])?.get(0)))
    }

    /// The slot's `confirmed_flush_lsn`.
    ///
    /// # Errors
    /// There is no such slot.
    pub fn confirmed(&self) -> Result<String> {
        let sql = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = $1";
        Ok(self.connect()?.query_one(sql, &[&self.name])?.get(0))
    }

    /// Reads the topics to their end and compares them with the truth.
    ///
    /// # Errors
    /// Database or brokers do not answer.
    pub fn compare(&self) -> Result<truth::Report> {
        let mut checker = truth::Checker::load(&mut self.connect()?)?;
        self.arrivals.read(&self.topics(), |record| checker.see(&record))?;
        Ok(checker.finish())
    }

    /// Removes slot, database and topics, for services that live on. No relay may run.
    ///
    /// # Errors
    /// One of them cannot be removed.
    pub fn strike(&self, kafka: &Kafka) -> Result<()> {
        self.drop_database()?;
        kafka.delete_topics(&self.topics().iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// Removes slot and database.
    ///
    /// # Errors
    /// One of them cannot be removed.
    pub fn drop_database(&self) -> Result<()> {
        postgres::drop_database(&mut Client::connect(&self.admin_source, NoTls)?, &self.name)
    }
}

/// The value of `--to` for Kafka, and where the published records are read.
fn to_kafka(kafka: &Kafka) -> (String, Arrivals) {
    (format!("kafka://{}", kafka.brokers()), Arrivals::Kafka(Box::new(kafka.client_config())))
}
