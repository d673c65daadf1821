//! A configuration that works, the command that a person types there, and what the person's hands can do.
//!
//! Postgres asks for a password by SCRAM, with TLS; Kafka lets in by SCRAM over TLS, and each user writes what its rights say. The role
//! of the relay owns nothing. The owner of database and publication is another one, as whom SQL runs.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use walrelay_dev::consume::Record;
use walrelay_dev::pgbouncer::{Front, PgBouncer};
use walrelay_dev::process::wait_until;
use walrelay_dev::relay::Relay;

use crate::doors::Door;
use crate::lane::{LONG, Lane, binary, ids};
use crate::secure;

/// The password of the relay's role.
const PASSWORD: &str = "s3cret of the role";

/// So many rows are committed whenever a relay streams.
const BATCH: usize = 3;

/// How a start ended.
pub(super) enum Outcome {
    /// All rows that are committed by now and that the relay is to publish are in their topic.
    Flows,
    /// It ended, or it waits: what it says of that.
    Says(String),
}

pub(super) struct Place {
    pub(super) role: String,
    /// Of `walrelay run`, without that word.
    pub(super) flags: Vec<String>,
    pub(super) environment: BTreeMap<&'static str, String>,
    door: Door,
    pooler: Option<PgBouncer>,
    /// The ids of all rows, in the order of their commits.
    committed: Vec<String>,
}

impl Place {
    /// Without any mistake.
    pub(super) fn new() -> Self {
        Self::behind(Door::beside(&secure::kafka().kafka, "lane"))
    }

    /// On a server that was installed and not set up for logical decoding, so that it has no slot either.
    pub(super) fn without_logical_decoding() -> Self {
        Self::behind(Door::with_settings(&secure::kafka().kafka, "lane", &[("wal_level", "replica")]))
    }

    fn behind(door: Door) -> Self {
        let kafka = secure::kafka();
        let lane = &door.lane;
        let role = format!("{}_role", lane.name);
        lane.sql(&format!("CREATE ROLE {role} LOGIN REPLICATION PASSWORD '{PASSWORD}' IN ROLE rotating"));
        let (topic, authority) = (lane.topic("{route}"), kafka.file("right.pem"));
        let source = door.source(&role, "localhost", "sslmode=require");
        let fixed = [
            ["--source", &source],
            ["--publication", &lane.name],
            ["--slot", &lane.name],
            ["--table", "outbox"],
            ["--key-column", "aggregateid"],
            ["--header", "kind=type"],
            ["--topic", &topic],
            ["--brokers", &kafka.sasl_ssl],
            ["--shutdown-timeout", "50s"],
        ];
        let mut place = Self {
            flags: fixed.concat().into_iter().map(str::to_owned).collect(),
            environment: BTreeMap::new(),
            committed: Vec::new(),
            role,
            door,
            pooler: None,
        };
        for (key, value) in secure::by_scram("SCRAM-SHA-256", "scram", &authority) {
            place.property(key, value);
        }
        place.right_password();
        place.environment.insert("WALRELAY_KAFKA_SASL_PASSWORD", secure::PASSWORD.to_owned());
        place
    }

    pub(super) fn lane(&self) -> &Lane {
        &self.door.lane
    }

    pub(super) fn right_password(&mut self) {
        self.environment.insert("PGPASSWORD", PASSWORD.to_owned());
    }

    pub(super) fn authority_of_postgres(&self) -> String {
        self.door.file("right.pem")
    }

    pub(super) fn restart_postgres(&mut self) {
        self.door.restart();
    }

    /// The port of Postgres itself.
    pub(super) fn port(&self) -> u16 {
        self.door.port()
    }

    /// Puts a PgBouncer in front of Postgres; its port.
    pub(super) fn pool(&mut self) -> u16 {
        let files = ["server.crt", "server.key"].map(|name| self.door.file(name));
        let front = Front {
            target: self.port(),
            users: &[(&self.role, PASSWORD)],
            tls: [Path::new(&files[0]), Path::new(&files[1])],
        };
        self.pooler = Some(PgBouncer::start(&front).unwrap());
        self.pooler()
    }

    /// Its port.
    pub(super) fn pooler(&self) -> u16 {
        self.pooler.as_ref().unwrap().port()
    }

    /// The value of a flag.
    pub(super) fn value(&self, name: &str) -> &str {
        let at =
            self.flags.iter().position(|flag| flag == name).unwrap_or_else(|| panic!("no {name}: {:?}", self.flags));
        &self.flags[at + 1]
    }

    /// Types a flag's value in place of an earlier one.
    pub(super) fn flag(&mut self, name: &str, value: &str) {
        match self.flags.iter().position(|flag| flag == name) {
            Some(at) => value.clone_into(&mut self.flags[at + 1]),
            None => self.flags.extend([name.to_owned(), value.to_owned()]),
        }
    }

    /// The same with `-X`.
    pub(super) fn property(&mut self, key: &str, value: &str) {
        self.without_property(key);
        self.flags.extend(["-X".to_owned(), format!("{key}={value}")]);
    }

    pub(super) fn without_property(&mut self, key: &str) {
        let is_it = |text: &String| text.split_once('=').is_some_and(|(name, _)| name == key);
        if let Some(at) = self.flags.windows(2).position(|pair| pair[0] == "-X" && is_it(&pair[1])) {
            drop(self.flags.drain(at..at + 2));
        }
    }

    /// Changes what is typed for the source.
    pub(super) fn in_source(&mut self, from: &str, to: &str) {
        let source = self.value("--source");
        assert!(source.contains(from), "{from} is not in {source}");
        let source = source.replacen(from, to, 1);
        self.flag("--source", &source);
    }

    /// Runs SQL as the owner of everything.
    pub(super) fn sql(&self, statements: &str) {
        let done = self.lane().connect().batch_execute(statements);
        done.unwrap_or_else(|error| panic!("{statements}: {error:?}"));
    }

    /// Runs a command of ours to its end.
    pub(super) fn run(&self, words: &[String]) -> Output {
        let environment = self.environment.iter().map(|(name, value)| (*name, value.as_str()));
        Command::new(binary()).args(words).envs(environment).output().unwrap()
    }

    /// What `walrelay check`, with the same flags, finds first that has a fix.
    pub(super) fn first_fix(&self) -> Option<String> {
        let words = ["check".to_owned(), "--json".to_owned()];
        let output = self.run(&[&words[..], &self.flags].concat());
        let report: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
        let findings = report["findings"].as_array().unwrap();
        let mut failed = findings.iter().filter(|finding| finding["level"] == "fail");
        failed.find_map(|finding| finding["fix"].as_str()).map(str::to_owned)
    }

    /// Commits a row before the first start, in the shape that the table has then.
    pub(super) fn commit_early(&mut self) {
        self.commit("early".to_owned());
    }

    fn commit(&mut self, id: String) {
        self.sql(&format!("INSERT INTO outbox VALUES ('{id}', 'order', 'key of {id}', 't', '{{\"of\": \"{id}\"}}')"));
        self.committed.push(id);
    }

    /// Starts the relay, and once it streams commits rows.
    pub(super) fn start(&mut self) -> Outcome {
        let arguments = [&["run".to_owned()][..], &self.flags].concat();
        let environment: Vec<(&str, &str)> =
            self.environment.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let mut relay = Relay::start(&binary(), &arguments, &environment).unwrap();
        let (mut is_filled, mut outcome) = (false, None);
        let waited = wait_until(LONG, "a hint or the rows", || {
            if let Some(code) = relay.exited().unwrap() {
                assert!([2, 64].contains(&code), "{code}: {}", relay.log());
                let log = relay.log();
                let hint = log.lines().find_map(|line| line.strip_prefix("hint: "));
                outcome =
                    Some(Outcome::Says(hint.unwrap_or_else(|| panic!("no hint: {arguments:?}: {log}")).to_owned()));
                return Ok(true);
            }
            if let Some(hint) = hint_in(&relay.log()) {
                outcome = Some(Outcome::Says(hint));
                return Ok(true);
            }
            if !is_filled && relay.get("/readyz").is_ok_and(|answer| answer.status == 200) {
                is_filled = true;
                let before = self.committed.len();
                (before..before + BATCH).for_each(|id| self.commit(id.to_string()));
            }
            if is_filled && relay.metric("walrelay_events_total").is_ok_and(|count| count > 0.0) && self.has_all() {
                outcome = Some(Outcome::Flows);
            }
            Ok(outcome.is_some())
        });
        waited.unwrap_or_else(|error| panic!("{error}: {arguments:?}: {}", relay.log()));
        outcome.unwrap()
    }

    fn records(&self) -> Vec<Record> {
        self.lane().records_now("order")
    }

    /// Of the rows that were committed last.
    fn has_all(&self) -> bool {
        let there = ids(&self.records());
        self.committed.iter().rev().take(BATCH).all(|id| there.contains(id))
    }

    /// Each record once, with its key, its payload and its header. Whether all rows are among them.
    pub(super) fn verify(&self) -> bool {
        let records = self.records();
        let mut there = ids(&records);
        // Of several partitions.
        there.sort_by_key(|id| self.committed.iter().position(|other| other == id));
        let known: Vec<&String> = self.committed.iter().filter(|id| there.contains(id)).collect();
        assert_eq!(there.iter().collect::<Vec<_>>(), known);
        for record in &records {
            let id = record.header("id").unwrap();
            assert_eq!(record.key_text(), format!("key of {id}"));
            assert_eq!(record.value_text(), format!("{{\"of\": \"{id}\"}}"));
            assert_eq!(record.header("kind"), Some("t"));
        }
        there.len() == self.committed.len()
    }
}

/// The hint of a line of the log, and its reason, which may have a command of the broker's tools.
fn hint_in(log: &str) -> Option<String> {
    let mut lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.find_map(|line| {
        let reason = line["reason"].as_str().map_or_else(String::new, |reason| format!("; {reason}"));
        Some(line["hint"].as_str()?.to_owned() + &reason)
    })
}

impl Drop for Place {
    fn drop(&mut self) {
        let (name, role) = (&self.lane().name, &self.role);
        let Ok(mut client) = postgres::Client::connect(&self.lane().source, postgres::NoTls) else { return };
        let slots = format!(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name LIKE '{name}%' AND active;
             SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name LIKE '{name}%' AND NOT active"
        );
        for statements in [slots, format!("DROP OWNED BY {role}"), format!("DROP ROLE {role}")] {
            // What is left behind goes with the server.
            drop(client.batch_execute(&statements));
        }
    }
}
