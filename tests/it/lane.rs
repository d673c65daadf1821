//! One test's place on the servers: a database, a publication and a slot of its own name, topics with its own prefix.

use std::path::PathBuf;
use std::time::Duration;

use postgres::error::SqlState;
use postgres::{Client, NoTls};
use rdkafka::ClientConfig;
use walrelay_dev::consume::{self, Record};
use walrelay_dev::kafka::{Kafka, shared_kafka};
use walrelay_dev::postgres::{Postgres, quote_identifier, shared_postgres, unique_name};
use walrelay_dev::process::wait_until;
use walrelay_dev::relay::{self, Relay};

/// A deadline that only a failure reaches, on a machine that others use as well.
pub(crate) const LONG: Duration = Duration::from_mins(3);

/// Debezium's outbox table.
pub(crate) const OUTBOX: &str = "CREATE TABLE outbox (id text PRIMARY KEY, aggregatetype text, aggregateid text, \
                                 type text, payload jsonb)";

/// The relay's binary.
pub(crate) fn binary() -> PathBuf {
    relay::built()
}

/// A place; its slot goes with it.
pub(crate) struct Lane {
    /// Database, publication and slot.
    pub(crate) name: String,
    /// Connection URI of the database, as superuser.
    pub(crate) source: String,
    /// Bootstrap servers.
    pub(crate) brokers: String,
    /// Gets into Kafka.
    pub(crate) client: ClientConfig,
}

impl Lane {
    /// A database without tables on the shared servers.
    pub(crate) fn empty() -> Self {
        Self::on(shared_postgres().unwrap(), shared_kafka().unwrap())
    }

    /// A database without tables.
    pub(crate) fn on(postgres: &Postgres, kafka: &Kafka) -> Self {
        let name = postgres.create_unique_database("lane").unwrap();
        let source = postgres.url(&name);
        Self { name, source, brokers: kafka.brokers(), client: kafka.client_config() }
    }

    /// On the shared servers, with these tables, of which those in `published` are in the publication, and a slot.
    pub(crate) fn with(tables: &str, published: &str) -> Self {
        Self::empty().furnish(tables, published)
    }

    /// On the shared servers, with [`OUTBOX`].
    pub(crate) fn debezium() -> Self {
        Self::with(OUTBOX, "outbox")
    }

    /// Makes tables, publication and slot.
    pub(crate) fn furnish(self, tables: &str, published: &str) -> Self {
        let mut client = self.connect();
        for statements in [tables, &self.publication(published), &self.slot()] {
            client.batch_execute(statements).unwrap();
        }
        self
    }

    /// Makes the publication.
    pub(crate) fn publish(&self, tables: &str) {
        self.sql(&self.publication(tables));
    }

    /// Makes the slot.
    pub(crate) fn make_slot(&self) {
        self.sql(&self.slot());
    }

    fn publication(&self, tables: &str) -> String {
        format!("CREATE PUBLICATION {} FOR TABLE {tables} WITH (publish = 'insert')", self.name)
    }

    fn slot(&self) -> String {
        format!("SELECT pg_create_logical_replication_slot('{}', 'pgoutput')", self.name)
    }

    /// Drops a slot, once the server has seen the end of who read it.
    #[track_caller]
    pub(crate) fn drop_slot(&self, slot: &str) {
        let mut client = self.connect();
        wait_until(LONG, &format!("slot {slot} to be free"), || {
            match client.execute("SELECT pg_drop_replication_slot($1)", &[&slot]) {
                Err(error) if error.code() == Some(&SqlState::OBJECT_IN_USE) => Ok(false),
                outcome => Ok(outcome.map(|_| true)?),
            }
        })
        .unwrap();
    }

    /// A new connection.
    pub(crate) fn connect(&self) -> Client {
        Client::connect(&self.source, NoTls).unwrap()
    }

    /// Runs statements on a new connection.
    #[track_caller]
    pub(crate) fn sql(&self, statements: &str) {
        self.connect().batch_execute(statements).unwrap();
    }

    /// The topic of a route.
    pub(crate) fn topic(&self, route: &str) -> String {
        format!("{}.{route}", self.name)
    }

    /// Arguments of `walrelay run` for this place, with a graceful shutdown that load does not keep from its end; `more` come last,
    /// and count.
    pub(crate) fn arguments(&self, more: &[&str]) -> Vec<String> {
        let topic = self.topic("{route}");
        let fixed = ["run", "--source", &self.source, "--publication", &self.name, "--slot", &self.name];
        let kafka = ["--brokers", &self.brokers, "--topic", &topic, "--shutdown-timeout=50s"];
        // The shared broker is alone.
        let is_alone = !self.brokers.contains(',') && more.iter().any(|argument| argument.ends_with("exactly-once"));
        let one = is_alone.then_some("--accept-one-replica");
        fixed.iter().chain(&kafka).chain(&one).chain(more).map(|&argument| argument.to_owned()).collect()
    }

    /// Starts a relay.
    pub(crate) fn relay(&self, more: &[&str]) -> Relay {
        Relay::start(&binary(), &self.arguments(more), &[] as &[(&str, &str)]).unwrap()
    }

    /// Starts a relay and waits until it streams.
    #[track_caller]
    pub(crate) fn streaming(&self, more: &[&str]) -> Relay {
        let mut relay = self.relay(more);
        relay.wait_streaming(LONG).unwrap();
        relay
    }

    /// The slot's `confirmed_flush_lsn`.
    pub(crate) fn confirmed(&self) -> String {
        let sql = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = $1";
        self.connect().query_one(sql, &[&self.name]).unwrap().get(0)
    }

    /// Waits until everything that is committed now is confirmed.
    #[track_caller]
    pub(crate) fn wait_confirmed(&self) {
        self.wait_confirmed_of(&self.name);
    }

    /// As [`Lane::wait_confirmed`], for a slot of another name.
    #[track_caller]
    pub(crate) fn wait_confirmed_of(&self, slot: &str) {
        let mut client = self.connect();
        let end: String = client.query_one("SELECT pg_current_wal_lsn()::text", &[]).unwrap().get(0);
        let sql = "SELECT confirmed_flush_lsn >= $1::text::pg_lsn FROM pg_replication_slots WHERE slot_name = $2";
        wait_until(LONG, &format!("{end} to be confirmed"), || {
            Ok(client.query_one(sql, &[&end, &slot])?.get::<_, Option<bool>>(0) == Some(true))
        })
        .unwrap();
    }

    /// Everything in the topic of a route, once everything that is committed now is confirmed.
    #[track_caller]
    pub(crate) fn records(&self, route: &str) -> Vec<Record> {
        self.wait_confirmed();
        self.records_now(route)
    }

    /// Everything in the topic of a route.
    #[track_caller]
    pub(crate) fn records_now(&self, route: &str) -> Vec<Record> {
        consume::read_to_end(&self.client, &[&self.topic(route)]).unwrap()
    }

    /// The header `id` of everything in the topic of a route, once everything that is committed now is confirmed.
    #[track_caller]
    pub(crate) fn ids(&self, route: &str) -> Vec<String> {
        ids(&self.records(route))
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        let Ok(mut client) = Client::connect(&self.source, NoTls) else { return };
        let mut drop_slot = || {
            client.execute(
                "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = $1",
                &[&self.name],
            )?;
            let sql = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = $1";
            Ok(client.execute(sql, &[&self.name]).is_ok())
        };
        drop(wait_until(Duration::from_secs(5), "the slot to go", &mut drop_slot));
    }
}

/// The header `id` of each record.
pub(crate) fn ids(records: &[Record]) -> Vec<String> {
    records.iter().map(|record| record.header("id").unwrap_or("none").to_owned()).collect()
}

/// The values of each record as text.
pub(crate) fn values(records: &[Record]) -> Vec<String> {
    records.iter().map(Record::value_text).collect()
}

/// Waits for the end of a relay that is to end by itself: its exit code and what it said.
#[track_caller]
pub(crate) fn ended(relay: &mut Relay) -> (i32, String) {
    let code = relay.wait_exit(LONG).unwrap_or_else(|error| panic!("{error}: {}", relay.log()));
    (code, relay.log())
}

/// The text of the hint in a log.
#[track_caller]
pub(crate) fn hint(log: &str) -> String {
    let hint = log.lines().rev().find_map(|line| line.strip_prefix("hint: "));
    hint.unwrap_or_else(|| panic!("no hint in {log}")).to_owned()
}

/// Waits until the relay's log has the text.
#[track_caller]
pub(crate) fn wait_log(relay: &Relay, text: &str) {
    let found = wait_until(LONG, &format!("{text:?} in the log"), || Ok(relay.log().contains(text)));
    found.unwrap_or_else(|error| panic!("{error}: {}", relay.log()));
}

/// Waits until so many records are acknowledged since the relay's start.
#[track_caller]
pub(crate) fn wait_events(relay: &Relay, count: u32) {
    let mut seen = 0.0;
    let found = wait_until(LONG, &format!("{count} records"), || {
        seen = relay.metric("walrelay_events_total").unwrap_or(seen);
        Ok(seen >= f64::from(count))
    });
    found.unwrap_or_else(|error| panic!("{error}, there are {seen}: {}", relay.log()));
}

/// A name that nothing else has.
pub(crate) fn fresh(prefix: &str) -> String {
    unique_name(prefix)
}

/// As SQL takes it.
pub(crate) fn quoted(name: &str) -> String {
    quote_identifier(name)
}
