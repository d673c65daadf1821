//! An outbox with its relays, and what became of its rows.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};
use std::time::Duration;

use walrelay_dev::kafka::shared_kafka;
use walrelay_dev::postgres::Postgres;
use walrelay_dev::process::wait_until;
use walrelay_dev::relay::Relay;

use super::Shape::{AllTables, Partitioned, Plain, Schema, Shards};
use super::{Age, Arrangement, Shape, Start};
use crate::backfill::{arguments, filled};
use crate::lane::{LONG, Lane, binary};

/// A deadline for a relay that may refuse to stream.
const SHORT: Duration = Duration::from_secs(30);

/// The tables that the relay reads.
const TABLES: [&str; 4] = ["--table", "app.outbox", "--table", "app.other"];

/// An outbox, its relays, and what became of its rows.
pub(super) struct Scene {
    pub(super) relays: Vec<Relay>,
    /// Its slot goes with it, once the relays are gone.
    pub(super) lane: Lane,
    pub(super) shape: Shape,
    /// The server's version.
    pub(super) postgres: u32,
    /// How many shards there are; 0: there is one slot.
    pub(super) shards: u32,
    /// Arguments of the relays.
    pub(super) more: Vec<String>,
    /// The next row's id.
    next: u32,
    /// How many values the partition key has: `a`, `b`, and so on.
    pub(super) keys: u32,
    /// Rows that have to be in a topic, and are in no table.
    pub(super) sent: BTreeSet<String>,
    /// Rows that were skipped as it was asked for: they are in no topic, and stay.
    pub(super) skipped: BTreeSet<String>,
    /// Rows that somebody has passed over, which nothing notices.
    pub(super) passed: BTreeSet<String>,
    /// The server after a promotion.
    pub(super) standby: Option<Postgres>,
}

impl Scene {
    /// Makes outbox, slot and relay.
    pub(super) fn new(arrangement: &Arrangement, postgres: &Postgres) -> Self {
        let Arrangement { shape, age, start, .. } = *arrangement;
        let lane = Lane::on(postgres, shared_kafka().unwrap());
        lane.sql(&format!("CREATE SCHEMA app; ALTER DATABASE {} SET search_path = app", lane.name));
        let at = ", created_at timestamptz NOT NULL DEFAULT now() - interval '1 day'";
        let columns = format!(
            "(id int, aggregatetype text NOT NULL, aggregateid text, payload text{}, PRIMARY KEY (id{}))",
            if age == Age::Column { at } else { "" },
            if shape == Partitioned { ", aggregateid" } else { "" }
        );
        if shape == Partitioned {
            lane.sql(&format!(
                "CREATE TABLE outbox {columns} PARTITION BY LIST (aggregateid);
                 CREATE TABLE outbox_a PARTITION OF outbox FOR VALUES IN ('a');
                 CREATE TABLE outbox_b PARTITION OF outbox FOR VALUES IN ('b', 'c', 'd')"
            ));
        } else {
            lane.sql(&format!("CREATE TABLE outbox {columns}"));
        }
        lane.sql("CREATE TABLE other (LIKE outbox INCLUDING ALL)");
        let none = BTreeSet::new;
        let mut scene = Self {
            relays: Vec::new(),
            lane,
            shape,
            postgres: arrangement.major,
            shards: if shape == Shards { 2 } else { 0 },
            more: Vec::new(),
            next: 1,
            keys: 4,
            sent: none(),
            skipped: none(),
            passed: none(),
            standby: None,
        };
        if matches!(shape, AllTables | Schema) {
            scene.publish();
        }
        if start != Start::Empty {
            scene.insert("outbox");
        }
        let shards: &[&str] = if shape == Shards { &["--shards", "2"] } else { &[] };
        let (code, said) = if start == Start::Snapshot {
            filled(&scene.lane, &[&["--setup"], &TABLES[..]].concat())
        } else {
            scene.walrelay(&[&["setup", "--apply"], shards, &TABLES].concat())
        };
        assert_eq!(code, 0, "{said}");
        assert!(scene.start());
        if start == Start::Backfilled {
            let (code, said) = scene.backfill();
            assert_eq!(code, 0, "{said}");
        }
        scene.insert("outbox");
        assert!(scene.settle());
        if !arrangement.runs {
            scene.stop();
        }
        scene
    }

    #[track_caller]
    pub(super) fn sql(&self, statements: &str) {
        self.lane.sql(statements);
    }

    /// A statement that inserts one row.
    pub(super) fn row(&mut self, table: &str) -> String {
        self.next += 1;
        format!(
            "INSERT INTO {table} (id, aggregatetype, aggregateid, payload) VALUES ({}, 'order', 'b', '{{}}')",
            self.next - 1
        )
    }

    /// The id of the last row.
    pub(super) fn last(&self) -> String {
        (self.next - 1).to_string()
    }

    /// Inserts rows, whose key is this expression; their ids.
    #[track_caller]
    pub(super) fn rows(&mut self, table: &str, key: &str) -> Vec<String> {
        let first = self.next;
        self.next += 8;
        self.sql(&format!(
            "INSERT INTO {table} (id, aggregatetype, aggregateid, payload)
             SELECT n, 'order', {key}, '{{}}' FROM generate_series({first}, {}) AS n",
            self.next - 1
        ));
        (first..self.next).map(|id| id.to_string()).collect()
    }

    /// Inserts rows of all keys.
    #[track_caller]
    pub(super) fn insert(&mut self, table: &str) -> Vec<String> {
        self.rows(table, &format!("chr(97 + n % {})", self.keys))
    }

    /// Makes the publication of a shape with one.
    pub(super) fn publish(&self) {
        let what = match self.shape {
            AllTables => "ALL TABLES",
            Schema => "TABLES IN SCHEMA app",
            Plain | Partitioned | Shards => "TABLE outbox, other",
        };
        self.sql(&format!("CREATE PUBLICATION {} FOR {what} WITH (publish = 'insert')", self.lane.name));
    }

    fn names(&self) -> Vec<String> {
        let name = &self.lane.name;
        let of_shard = |index| format!("{name}_{index}_of_{}", self.shards);
        if self.shards == 0 { vec![name.clone()] } else { (0..self.shards).map(of_shard).collect() }
    }

    #[track_caller]
    pub(super) fn alter_publications(&self, how: &str) {
        self.names().iter().for_each(|name| self.sql(&format!("ALTER PUBLICATION {name} {how}")));
    }

    #[track_caller]
    pub(super) fn each_slot(&self, sql: &str) {
        let mut client = self.lane.connect();
        for name in self.names() {
            wait_until(LONG, "the slot to be free", || Ok(client.batch_execute(&sql.replace("{slot}", &name)).is_ok()))
                .unwrap_or_else(|error| panic!("{error}: {sql}"));
        }
    }

    /// Sets up anew, which waits for a transaction.
    pub(super) fn set_up_beside(&mut self, begin: &str, end: &str) {
        self.stop();
        let (code, said) = self.walrelay(&["teardown", "--yes"]);
        assert_eq!(code, 0, "{said}");
        let mut writer = self.lane.connect();
        writer.batch_execute(begin).unwrap();
        let child = self.command(&["setup", "--apply"]).spawn().unwrap();
        let (name, mut client) = (self.lane.name.clone(), self.lane.connect());
        let is_made = "SELECT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = $1)";
        wait_until(LONG, "the slot", || Ok(client.query_one(is_made, &[&name])?.get(0))).unwrap();
        writer.batch_execute(end).unwrap();
        assert!(child.wait_with_output().unwrap().status.success());
    }

    /// Moves the rows to so many shards.
    pub(super) fn reshard(&mut self, count: u32) {
        self.start();
        let (code, said) = self.walrelay(&["setup", "--reshard", &count.to_string(), "--apply"]);
        assert_eq!(code, 0, "{said}");
        self.relays.clear();
        self.shards = count;
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let name = &self.lane.name;
        let mut command = Command::new(binary());
        command.args(arguments).args(["--source", &self.lane.source, "--publication", name, "--slot", name]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs a command to its end: exit code, and what it said.
    pub(super) fn walrelay(&self, arguments: &[&str]) -> (i32, String) {
        let output = self.command(arguments).output().unwrap();
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        (output.status.code().unwrap_or(-1), said)
    }

    pub(super) fn backfill(&self) -> (i32, String) {
        filled(&self.lane, &self.own_arguments())
    }

    pub(super) fn filling(&self) -> Relay {
        Relay::start(&binary(), &arguments(&self.lane, &self.own_arguments()), &[] as &[(&str, &str)]).unwrap()
    }

    fn own_arguments(&self) -> Vec<&str> {
        // A publication that grows by itself needs tables.
        let tables: &[&str] = if matches!(self.shape, AllTables | Schema) { &TABLES } else { &[] };
        tables.iter().copied().chain(self.more.iter().map(String::as_str)).collect()
    }

    /// Starts the relays that do not run. Whether all of them stream.
    pub(super) fn start(&mut self) -> bool {
        let more: Vec<String> = self.own_arguments().into_iter().map(str::to_owned).collect();
        self.start_with(&more.iter().map(String::as_str).collect::<Vec<_>>())
    }

    pub(super) fn start_with(&mut self, more: &[&str]) -> bool {
        if self.relays.is_empty() {
            let shards: Vec<String> = (0..self.shards).map(|index| format!("{index}/{}", self.shards)).collect();
            self.relays = match shards.as_slice() {
                [] => vec![self.lane.relay(more)],
                shards => shards.iter().map(|shard| self.lane.relay(&[&["--shard", shard], more].concat())).collect(),
            };
        }
        self.relays.iter_mut().all(|relay| relay.wait_streaming(SHORT).is_ok())
    }

    pub(super) fn stop(&mut self) {
        for mut relay in self.relays.drain(..) {
            if relay.exited().unwrap().is_none() {
                relay.terminate(LONG).unwrap();
            }
        }
    }

    /// Has relays that stream, if necessary new ones, and waits until everything that is committed now is confirmed. `false`: a relay refuses.
    pub(super) fn settle(&mut self) -> bool {
        let is_ready = |relay: &Relay| relay.get("/readyz").is_ok_and(|answer| answer.status == 200);
        if !self.relays.iter().all(is_ready) {
            self.stop();
        }
        let mut client = self.lane.connect();
        let end: String = client.query_one("SELECT pg_current_wal_lsn()::text", &[]).unwrap().get(0);
        let confirmed = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = ANY ($1) AND confirmed_flush_lsn >= $2::text::pg_lsn";
        let names = self.names();
        // A relay that runs may end only once it comes to what it cannot publish.
        (0..2).any(|_| {
            let mut streams = self.start();
            if streams {
                wait_until(LONG, "everything to be confirmed", || {
                    streams = self.relays.iter_mut().all(|relay| matches!(relay.exited(), Ok(None)));
                    let confirmed: i64 = client.query_one(confirmed, &[&names, &end])?.get(0);
                    Ok(!streams || usize::try_from(confirmed)? == names.len())
                })
                .unwrap();
            }
            if !streams {
                self.stop();
            }
            streams
        })
    }

    /// The ids in the table.
    pub(super) fn left(&self) -> BTreeSet<String> {
        let rows = self.lane.connect().query("SELECT id::text FROM outbox", &[]).unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    }

    /// The ids in the topics. A dead letter without its payload is no copy of its row.
    pub(super) fn published(&self) -> BTreeSet<String> {
        let records = ["order", "dead-letter"].into_iter().flat_map(|route| self.lane.records_now(route));
        let copies = records.filter(|record| record.header("walrelay-payload-bytes").is_none());
        copies.filter_map(|record| record.header("id").map(str::to_owned)).collect()
    }

    /// Waits until each row is older than `prune` wants at least.
    pub(super) fn wait_until_old(&self) {
        let sql = "SELECT COALESCE(bool_and(pg_xact_commit_timestamp(xmin) < now() - interval '61 seconds'), true) FROM outbox";
        let mut client = self.lane.connect();
        wait_until(LONG, "the rows to be old", || Ok(client.query_one(sql, &[])?.get(0))).unwrap();
    }

    /// Prunes, and checks that what it deleted is in a topic: exit code, what it said, and how many rows went.
    pub(super) fn prune(&self, age: Age, timeout: &str) -> (i32, String, usize) {
        let older = if age == Age::Column { "1h" } else { "1min" };
        let before = self.left();
        let (code, said) = self.walrelay(&["prune", "--older-than", older, "--timeout", timeout]);
        let gone: BTreeSet<String> = before.difference(&self.left()).cloned().collect();
        let lost = &(&gone - &self.passed) - &self.published();
        assert!(lost.is_empty(), "prune deleted rows that are in no topic: {lost:?}\n{code} {said}");
        (code, said, gone.len())
    }
}
