//! The commands of `docs/tables.md`, run as they stand, on the files of `sql/`.
//!
//! A block is a database of its own. `psql` goes through a client of ours, `walrelay` is the binary with the words of the
//! line; where to connect, and the slot's name, come by the environment, as a user would have it.

use crate::lane::{LONG, Lane, binary, fresh};
use crate::manual::words;
use postgres::SimpleQueryMessage;
use std::process::Command;
use walrelay_dev::consume::{self, Record};
use walrelay_dev::relay::Relay;

const DOC: &str = include_str!("../../docs/tables.md");

/// As `kcat -f '%t %k %h %s'` shows it.
fn shown(record: &Record) -> String {
    let text = |bytes: &Option<Vec<u8>>| String::from_utf8(bytes.clone().unwrap_or_default()).unwrap();
    let headers = record.headers.iter().map(|(name, value)| format!("{name}={}", text(value)));
    let headers = headers.collect::<Vec<_>>().join(",");
    format!("{} {} {headers} {}", record.topic, text(&record.key), text(&record.value))
}

struct Block {
    lane: Lane,
    slot: String,
    relay: Option<Relay>,
}

impl Block {
    fn environment(&self) -> [(&'static str, &str); 3] {
        [("DATABASE_URL", &self.lane.source), ("WALRELAY_BROKERS", &self.lane.brokers), ("WALRELAY_SLOT", &self.slot)]
    }

    fn command(&mut self, line: &str) {
        let words = words(line, &|name| panic!("no variable {name} here"));
        let words = words.iter().map(String::as_str).collect::<Vec<_>>();
        match words.as_slice() {
            ["psql", "-f", file] => {
                let sql = std::fs::read_to_string(walrelay_dev::repository().join(file)).unwrap();
                // Each file says that it is repeatable.
                (0..2).for_each(|_| self.lane.sql(&sql));
            }
            ["psql", "-c", sql] => {
                let messages = self.lane.connect().simple_query(sql).unwrap();
                assert!(messages.iter().any(|message| matches!(message, SimpleQueryMessage::CommandComplete(1))));
            }
            ["walrelay", "run", ..] => {
                let mut relay = Relay::start(&binary(), &words[1..], &self.environment()).unwrap();
                relay.wait_streaming(LONG).unwrap();
                self.relay = Some(relay);
            }
            ["walrelay", arguments @ ..] => {
                let output = Command::new(binary()).args(arguments).envs(self.environment()).output().unwrap();
                assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
            }
            _ => panic!("no such command: {line}"),
        }
    }

    fn record(&self, expected: &str) {
        let (topic, rest) = expected.split_once(' ').unwrap();
        let id = rest.split("id=").nth(1).and_then(|rest| rest.split(',').next()).unwrap();
        self.lane.wait_confirmed_of(&self.slot);
        let records = consume::read_to_end(&self.lane.client, &[topic]).unwrap();
        let found = records.iter().filter(|record| record.header("id") == Some(id)).map(shown).collect::<Vec<_>>();
        assert_eq!(found, [expected]);
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.relay = None;
        self.lane.name.clone_from(&self.slot);
    }
}

#[test]
#[ignore = "slow"]
fn the_documented_command_for_each_kind_of_table_gives_the_documented_record() {
    let mut blocks = 0;
    for text in DOC.split("```console\n").skip(1) {
        let (text, _) = text.split_once("```").unwrap();
        let mut block = Block { lane: Lane::empty(), slot: fresh("tables"), relay: None };
        let mut compared = 0;
        for line in text.lines() {
            if let Some(command) = line.strip_prefix("$ ") {
                block.command(command);
            } else {
                block.record(line);
                compared += 1;
            }
        }
        assert_eq!(compared, 1, "{text}");
        blocks += 1;
    }
    assert_eq!(blocks, 8, "a kind of table has gone from the document");
}
