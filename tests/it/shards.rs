//! Shards: each row has exactly one relay, and rows move from one set of shards to another without loss, swap or repeat.

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use postgres::Client;
use rustix::process::Signal;
use serde_json::Value;
use walrelay_dev::consume::Record;
use walrelay_dev::kafka::shared_kafka;
use walrelay_dev::postgres::{Options, Postgres};
use walrelay_dev::process::wait_until;
use walrelay_dev::relay::Relay;

use crate::lane::{LONG, Lane, OUTBOX, binary, ended, hint};

/// A place whose slots go with it.
pub(crate) struct Shards {
    pub(crate) lane: Lane,
}

impl Shards {
    pub(crate) fn with(tables: &str) -> Self {
        Self::on(Lane::empty(), tables)
    }

    pub(crate) fn on(lane: Lane, tables: &str) -> Self {
        lane.sql(tables);
        Self { lane }
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let name = &self.lane.name;
        let mut command = Command::new(binary());
        command.args(arguments).args(["--source", &self.lane.source, "--publication", name, "--slot", name]);
        command
    }

    pub(crate) fn output(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// What it said on stdout.
    #[track_caller]
    pub(crate) fn done(&self, arguments: &[&str]) -> String {
        let output = self.output(arguments);
        assert!(output.status.success(), "{}", text(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Exit code and everything that it said.
    pub(crate) fn refused(&self, arguments: &[&str]) -> (i32, String) {
        let output = self.output(arguments);
        (output.status.code().unwrap(), text(&output))
    }

    /// With a set of shards for `outbox`.
    pub(crate) fn of(count: &str) -> Self {
        let shards = Self::with(OUTBOX);
        shards.done(&["setup", "--shards", count, "--apply", "--table", "outbox"]);
        shards
    }

    pub(crate) fn relay(&self, shard: &str) -> Relay {
        self.lane.relay(&["--shard", shard])
    }

    /// Starts all relays of a set, and waits until they stream.
    #[track_caller]
    pub(crate) fn relays(&self, count: u32) -> Vec<Relay> {
        let mut relays: Vec<Relay> = (0..count).map(|index| self.relay(&format!("{index}/{count}"))).collect();
        for relay in &mut relays {
            relay.wait_streaming(LONG).unwrap();
        }
        relays
    }

    pub(crate) fn slot(&self, index: u32, count: u32) -> String {
        format!("{}_{index}_of_{count}", self.lane.name)
    }

    #[track_caller]
    pub(crate) fn wait_confirmed(&self, count: u32) {
        for index in 0..count {
            self.lane.wait_confirmed_of(&self.slot(index, count));
        }
    }

    /// The names of all slots of the database.
    pub(crate) fn slots(&self) -> Vec<String> {
        let sql = "SELECT slot_name::text FROM pg_replication_slots WHERE database = current_database() ORDER BY 1";
        self.lane.connect().query(sql, &[]).unwrap().iter().map(|row| row.get(0)).collect()
    }

    /// How many filters of a set each row of a table passes: `(passed, rows)`.
    pub(crate) fn passed(&self, table: &str, count: u32) -> Vec<(i32, i64)> {
        let mut client = self.lane.connect();
        let filters = self.filters(&mut client, table, count);
        let sum: Vec<String> = filters.iter().map(|filter| format!("({filter})::int")).collect();
        let sql = format!("SELECT {} AS passed, count(*) FROM {table} GROUP BY 1 ORDER BY 1", sum.join(" + "));
        client.query(&sql, &[]).unwrap().iter().map(|row| (row.get(0), row.get(1))).collect()
    }

    pub(crate) fn filters(&self, client: &mut Client, table: &str, count: u32) -> Vec<String> {
        let name = &self.lane.name;
        let sql = "SELECT rowfilter FROM pg_publication_tables WHERE pubname = $1 AND tablename = $2";
        let filter = |index| client.query_one(sql, &[&format!("{name}_{index}_of_{count}"), &table]).unwrap().get(0);
        (0..count).map(filter).collect()
    }
}

impl Drop for Shards {
    fn drop(&mut self) {
        let sql =
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE database = current_database()";
        let Ok(mut client) = Client::connect(&self.lane.source, postgres::NoTls) else { return };
        drop(wait_until(Duration::from_secs(5), "the slots to go", || {
            client.batch_execute(sql)?;
            let drop = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database()";
            Ok(client.batch_execute(drop).is_ok())
        }));
    }
}

pub(crate) fn text(output: &Output) -> String {
    String::from_utf8([output.stdout.clone(), output.stderr.clone()].concat()).unwrap()
}

/// Writers, each with keys of its own whose rows are numbered in the order of their commits.
#[derive(Default)]
pub(crate) struct Load {
    stop: AtomicBool,
    committed: AtomicU32,
}

impl Load {
    /// Writes until it is stopped: with savepoints, some rolled back, some transactions too. The ids that were committed.
    fn write(&self, source: &str, writer: u32) -> Vec<String> {
        let mut client = Client::connect(source, postgres::NoTls).unwrap();
        let (mut turn, mut number, mut committed) = (writer * 7919 + 1, 0_u32, Vec::new());
        while !self.stop.load(Ordering::Relaxed) {
            let mut transaction = client.transaction().unwrap();
            let mut kept = Vec::new();
            for _ in 0..=turn >> 30 {
                turn = turn.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                number += 1;
                let key = if turn >> 27 == 0 { None } else { Some(format!("k{writer}.{}", (turn >> 20) % 4)) };
                let id = format!("{writer}:{number}");
                let mut savepoint = transaction.transaction().unwrap();
                let sql = "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) VALUES ($1, 'order', $2, 'Placed', '{}')";
                savepoint.execute(sql, &[&id, &key]).unwrap();
                if (turn >> 16) % 9 == 0 {
                    savepoint.rollback().unwrap();
                } else {
                    savepoint.commit().unwrap();
                    kept.push(id);
                }
                thread::sleep(Duration::from_millis(u64::from((turn >> 24) % 6)));
            }
            if (turn >> 12) % 11 == 0 {
                transaction.rollback().unwrap();
            } else {
                transaction.commit().unwrap();
                self.committed.fetch_add(u32::try_from(kept.len()).unwrap(), Ordering::Relaxed);
                committed.append(&mut kept);
            }
        }
        committed
    }

    /// Waits until so many more rows are committed.
    #[track_caller]
    pub(crate) fn more(&self, rows: u32) {
        let wanted = self.committed.load(Ordering::Relaxed) + rows;
        wait_until(LONG, "more rows", || Ok(self.committed.load(Ordering::Relaxed) >= wanted)).unwrap();
    }
}

/// What is wrong with the topic.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Judged {
    pub(crate) lost: Vec<String>,
    pub(crate) strange: Vec<String>,
    /// A key's row that appears first behind a later one.
    pub(crate) swapped: Vec<String>,
    pub(crate) repeated: Vec<String>,
}

pub(crate) fn judge(records: &[Record], expected: &[String]) -> Judged {
    let mut records: Vec<&Record> = records.iter().collect();
    records.sort_by_key(|record| (record.partition, record.offset));
    let expected: BTreeSet<&str> = expected.iter().map(String::as_str).collect();
    let (mut seen, mut last, mut judged) = (BTreeSet::new(), BTreeMap::new(), Judged::default());
    for record in records {
        let id = record.header("id").unwrap();
        if !seen.insert(id) {
            judged.repeated.push(id.to_owned());
            continue;
        }
        if !expected.contains(id) {
            judged.strange.push(id.to_owned());
        }
        let number: u32 = id.split_once(':').unwrap().1.parse().unwrap();
        if record.key.is_some() && last.insert(record.key_text(), number).is_some_and(|before| before > number) {
            judged.swapped.push(id.to_owned());
        }
    }
    judged.lost.extend(expected.iter().filter(|id| !seen.contains(*id)).map(|id| (*id).to_owned()));
    judged
}

/// Runs `while_writing` beside four writers; what they committed.
pub(crate) fn beside_writers(shards: &Shards, while_writing: impl FnOnce(&Load)) -> Vec<String> {
    let load = Load::default();
    thread::scope(|scope| {
        let writers: Vec<_> = (1..=4)
            .map(|writer| {
                scope.spawn({
                    let (load, source) = (&load, &shards.lane.source);
                    move || load.write(source, writer)
                })
            })
            .collect();
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| while_writing(&load)));
        load.stop.store(true, Ordering::Relaxed);
        let written = writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect();
        if let Err(panic) = outcome {
            std::panic::resume_unwind(panic);
        }
        written
    })
}

#[test]
#[ignore = "slow"]
fn three_shards_become_five_and_then_two_beside_writers_without_loss_swap_or_repeat() {
    let shards = Shards::of("3");
    let mut three = shards.relays(3);
    let mut two = Vec::new();
    let written = beside_writers(&shards, |load| {
        load.more(150);
        let said = shards.done(&["setup", "--reshard", "5", "--apply"]);
        assert!(said.contains("cut: rows that commit from now on are rows of 5 shards"), "{said}");
        for (index, relay) in three.iter_mut().enumerate() {
            let (code, log) = ended(relay);
            assert_eq!(code, 2, "{log}");
            assert!(log.contains(&format!("shard {index}/3 is closed: its rows were moved to 5 shards")), "{log}");
            assert!(hint(&log).starts_with(&format!("walrelay run --shard {index}/5")), "{log}");
        }
        let mut five = shards.relays(5);
        load.more(150);
        shards.done(&["setup", "--reshard", "2", "--apply"]);
        for (index, relay) in five.iter_mut().enumerate() {
            let (code, log) = ended(relay);
            let word = if index < 2 { "walrelay run --shard" } else { "this relay is no longer needed" };
            assert!(code == 2 && hint(&log).starts_with(word), "{log}");
        }
        two = shards.relays(2);
        load.more(150);
    });
    shards.wait_confirmed(2);
    assert_eq!(judge(&shards.lane.records_now("order"), &written), Judged::default());
    assert_eq!(shards.slots(), [shards.slot(0, 2), shards.slot(1, 2)]);
    assert!(two.iter().all(|relay| relay.metric("walrelay_events_total").unwrap() > 0.0), "each has rows");
}

/// Kills a relay from time to time, and starts it again.
fn kill(relays: &Mutex<Vec<Relay>>, stop: &AtomicBool) {
    let mut turn = 1_usize;
    while !stop.load(Ordering::Relaxed) {
        turn = turn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        thread::sleep(Duration::from_millis(200 + (turn >> 40) as u64 % 400));
        let mut relays = relays.lock().unwrap();
        let at = (turn >> 33) % relays.len();
        if relays[at].exited().unwrap().is_none() {
            relays[at].kill9().unwrap();
            relays[at].start_again().unwrap();
        }
    }
}

/// Kills the command twice, after so many milliseconds, and runs it to its end.
#[track_caller]
fn with_kills(shards: &Shards, arguments: &[&str], after: [u64; 2]) {
    for pause in after {
        let mut child = shards.command(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        thread::sleep(Duration::from_millis(pause));
        child.kill().unwrap();
        child.wait().unwrap();
    }
    shards.done(arguments);
}

#[test]
#[ignore = "slow"]
fn nothing_is_lost_or_swapped_while_relays_and_the_move_itself_are_killed() {
    let shards = Shards::of("3");
    let relays = Mutex::new(shards.relays(3));
    let stop = AtomicBool::new(false);
    let mut written = Vec::new();
    thread::scope(|scope| {
        let killer = scope.spawn(|| kill(&relays, &stop));
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            written = beside_writers(&shards, |load| {
                load.more(200);
                for (count, after) in [(5, [40, 250]), (2, [120, 15])] {
                    with_kills(&shards, &["setup", "--reshard", &count.to_string(), "--apply"], after);
                    // Also relays that are killed before they stream.
                    *relays.lock().unwrap() =
                        (0..count).map(|index| shards.relay(&format!("{index}/{count}"))).collect();
                    load.more(200);
                }
            });
        }));
        stop.store(true, Ordering::Relaxed);
        killer.join().unwrap();
        if let Err(panic) = outcome {
            std::panic::resume_unwind(panic);
        }
    });
    shards.wait_confirmed(2);
    let judged = judge(&shards.lane.records_now("order"), &written);
    assert_eq!(Judged { repeated: Vec::new(), ..judged }, Judged::default());
}

/// Waits for a line of a command that runs.
pub(crate) fn spawn(shards: &Shards, arguments: &[&str]) -> Child {
    shards.command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn relays_of_the_new_set_publish_nothing_before_the_old_ones_have_and_the_same_command_resumes() {
    let shards = Shards::of("2");
    let mut old = shards.relays(2);
    // They read no more, and their slots stay in use.
    for relay in &mut old {
        relay.signal(Signal::STOP).unwrap();
    }
    let row = |number: u32| format!("INSERT INTO outbox SELECT '1:{number}', 'order', 'k1', 'Placed', '{{}}'");
    shards.lane.sql(&row(1));
    let mut moving = spawn(&shards, &["setup", "--reshard", "3", "--apply"]);
    let is_cut = || {
        let sql = "SELECT count(*) FROM pg_publication_tables WHERE pubname LIKE '%\\_of\\_3'";
        Ok(shards.lane.connect().query_one(sql, &[])?.get::<_, i64>(0) == 3)
    };
    wait_until(LONG, "the cut", is_cut).unwrap();
    moving.kill().unwrap();
    moving.wait().unwrap();
    shards.lane.sql(&row(2));
    let new: Vec<Relay> = (0..3).map(|index| shards.relay(&format!("{index}/3"))).collect();
    for relay in &new {
        wait_until(LONG, "the new relay to wait", || {
            Ok(relay.status().is_ok_and(|status| status["state"] == "waiting-for-slot"))
        })
        .unwrap();
    }
    for other in ["4", "2"] {
        let (code, said) = shards.refused(&["setup", "--reshard", other, "--apply"]);
        assert_eq!(code, 2, "{said}");
        assert!(said.contains("the setup of 3 shards is not finished"), "{said}");
        assert!(hint(&said).starts_with("walrelay setup --reshard 3 --apply"), "{said}");
    }
    let status: Value = serde_json::from_slice(&shards.output(&["status", "--all", "--json"]).stdout).unwrap();
    let slots = status["slots"].as_array().unwrap();
    let moves: Vec<_> =
        slots.iter().map(|slot| (slot["shard"].as_str().unwrap(), slot["moving"].as_str().unwrap())).collect();
    assert_eq!(moves, [("0/2", "drains"), ("1/2", "drains"), ("0/3", "waits"), ("1/3", "waits"), ("2/3", "waits")]);
    assert_eq!(shards.lane.records_now("order").len(), 0, "nothing has been published by anybody");
    let resumed = spawn(&shards, &["setup", "--reshard", "3", "--apply"]);
    for relay in &mut old {
        relay.signal(Signal::CONT).unwrap();
    }
    let output = resumed.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    shards.wait_confirmed(3);
    assert_eq!(judge(&shards.lane.records_now("order"), &["1:1".to_owned(), "1:2".to_owned()]), Judged::default());
}

#[test]
fn the_cut_waits_for_a_transaction_that_may_write_and_lets_others_write_meanwhile() {
    let shards = Shards::of("2");
    let _old = shards.relays(2);
    let row =
        |number: u32, key: &str| format!("INSERT INTO outbox SELECT '1:{number}', 'order', '{key}', 'Placed', '{{}}'");
    let mut client = shards.lane.connect();
    let mut open = client.transaction().unwrap();
    // It has no number yet, so that slots can be made.
    open.batch_execute("LOCK TABLE outbox IN ROW EXCLUSIVE MODE").unwrap();
    let moving = spawn(&shards, &["setup", "--reshard", "3", "--apply"]);
    wait_until(LONG, "the new slots", || Ok(shards.slots().len() == 5)).unwrap();
    open.batch_execute(&row(1, "k1")).unwrap();
    shards.lane.sql(&row(2, "k2"));
    shards.lane.sql(&row(3, "k2"));
    let cut = "SELECT count(*) FROM pg_publication_tables WHERE pubname LIKE '%\\_of\\_3'";
    assert_eq!(
        shards.lane.connect().query_one(cut, &[]).unwrap().get::<_, i64>(0),
        0,
        "the cut is behind the transaction"
    );
    open.batch_execute(&row(4, "k1")).unwrap();
    open.commit().unwrap();
    let output = moving.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let _new = shards.relays(3);
    shards.lane.sql(&row(5, "k1"));
    shards.wait_confirmed(3);
    let expected: Vec<String> = (1..=5).map(|number| format!("1:{number}")).collect();
    assert_eq!(judge(&shards.lane.records_now("order"), &expected), Judged::default());
}

#[test]
fn a_slot_that_is_lost_before_it_is_drained_ends_the_move() {
    let shards = Shards::of("2");
    let mut old = shards.relays(2);
    for relay in &mut old {
        relay.signal(Signal::STOP).unwrap();
    }
    let mut moving = spawn(&shards, &["setup", "--reshard", "1", "--apply"]);
    wait_until(LONG, "the cut", || {
        let sql = "SELECT count(*) FROM pg_publication_tables WHERE pubname LIKE '%\\_of\\_1'";
        Ok(shards.lane.connect().query_one(sql, &[])?.get::<_, i64>(0) == 1)
    })
    .unwrap();
    moving.kill().unwrap();
    moving.wait().unwrap();
    old[0].kill9().unwrap();
    shards.lane.drop_slot(&shards.slot(0, 2));
    let (code, said) = shards.refused(&["setup", "--reshard", "1", "--apply"]);
    assert_eq!(code, 2, "{said}");
    assert!(said.contains(&shards.slot(0, 2)) && said.contains("does not exist while rows are moved"), "{said}");
    let create = format!("SELECT pg_create_logical_replication_slot('{}', 'pgoutput');", shards.slot(0, 2));
    assert!(hint(&said).starts_with(&create), "{said}");
}

#[test]
fn one_slot_becomes_two_shards_beside_writers() {
    let shards = Shards::with(OUTBOX);
    shards.done(&["setup", "--apply", "--table", "outbox"]);
    let mut one = shards.lane.streaming(&[]);
    let mut two = Vec::new();
    let written = beside_writers(&shards, |load| {
        load.more(100);
        shards.done(&["setup", "--reshard", "2", "--apply"]);
        let (code, log) = ended(&mut one);
        assert!(code == 2 && log.contains("is closed: its rows were moved to 2 shards"), "{log}");
        assert!(hint(&log).starts_with("walrelay run --shard 0/2 --source"), "{log}");
        two = shards.relays(2);
        load.more(100);
    });
    shards.wait_confirmed(2);
    assert_eq!(judge(&shards.lane.records_now("order"), &written), Judged::default());
    assert_eq!(shards.slots(), [shards.slot(0, 2), shards.slot(1, 2)]);
}

#[test]
fn a_shard_that_is_not_there_is_never_made_alone() {
    let shards = Shards::of("2");
    let (code, log) = ended(&mut shards.relay("0/3"));
    assert!(code == 2 && hint(&log).starts_with("walrelay run --shard 0/2"), "{log}");
    shards.lane.drop_slot(&shards.slot(1, 2));
    let (code, log) = ended(&mut shards.relay("1/2"));
    let made = format!("SELECT pg_create_logical_replication_slot('{}', 'pgoutput');", shards.slot(1, 2));
    assert!(code == 2 && hint(&log).contains(&made), "{log}");
    shards.done(&["teardown", "--shards", "2", "--yes"]);
    let (code, log) = ended(&mut shards.relay("1/2"));
    assert!(code == 2 && hint(&log).starts_with("walrelay setup --shards 2 --apply"), "{log}");
}

/// A set, and another one beside writers, on a server of that version.
fn become_two_on(major: u32) {
    let postgres = Postgres::start(&Options { major, ..Options::default() }).unwrap();
    let shards = Shards::on(Lane::on(&postgres, shared_kafka().unwrap()), OUTBOX);
    shards.done(&["setup", "--shards", "3", "--apply", "--table", "outbox"]);
    let mut three = shards.relays(3);
    let mut two = Vec::new();
    let written = beside_writers(&shards, |load| {
        load.more(150);
        shards.done(&["setup", "--reshard", "2", "--apply"]);
        for relay in &mut three {
            let (code, log) = ended(relay);
            assert!(code == 2 && log.contains("is closed: its rows were moved to 2 shards"), "{log}");
        }
        two = shards.relays(2);
        load.more(150);
    });
    shards.wait_confirmed(2);
    assert_eq!(shards.passed("outbox", 2), [(1, i64::try_from(written.len()).unwrap())]);
    assert_eq!(judge(&shards.lane.records_now("order"), &written), Judged::default());
    assert!(two.iter().all(|relay| relay.metric("walrelay_events_total").unwrap() > 0.0), "each has rows");
}

#[test]
#[ignore = "slow"]
fn on_postgres_15_the_first_with_row_filters_three_shards_become_two() {
    become_two_on(15);
}

#[test]
#[ignore = "slow"]
fn on_postgres_18_three_shards_become_two() {
    become_two_on(18);
}
