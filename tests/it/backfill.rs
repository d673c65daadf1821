//! `backfill` publishes rows that are older than the slot, once each, and none that the slot carries.

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use postgres::{Client, NoTls};
use walrelay_dev::process::wait_until;
use walrelay_dev::relay::Relay;

use crate::lane::{LONG, Lane, OUTBOX, binary, fresh, hint, ids, quoted, values, wait_log};
use crate::own;

/// Rows `first` to `last` of seven keys.
pub(crate) fn rows(first: u32, last: u32) -> String {
    format!(
        "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) \
         SELECT n::text, 'order', 'k' || n % 7, 'Placed', '{{}}' FROM generate_series({first}, {last}) AS n"
    )
}

/// Runs `setup --apply` for the place.
#[track_caller]
pub(crate) fn set_up(lane: &Lane, table: &str) {
    let place = ["--source", &lane.source, "--publication", &lane.name, "--slot", &lane.name, "--table", table];
    let output = Command::new(binary()).args(["setup", "--apply"]).args(place).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// A place with these tables and rows, which are older than its slot.
#[track_caller]
pub(crate) fn with_old(statements: &str) -> Lane {
    let lane = Lane::empty();
    lane.sql(statements);
    set_up(&lane, "outbox");
    lane
}

/// With Debezium's table, and rows 1 to `last`.
pub(crate) fn with_old_rows(last: u32) -> Lane {
    with_old(&format!("{OUTBOX}; {}", rows(1, last)))
}

/// Arguments of `walrelay backfill`.
pub(crate) fn arguments(lane: &Lane, more: &[&str]) -> Vec<String> {
    let mut arguments = lane.arguments(more);
    "backfill".clone_into(&mut arguments[0]);
    arguments.push("--yes".to_owned());
    arguments
}

fn output(lane: &Lane, more: &[&str]) -> Output {
    Command::new(binary()).args(arguments(lane, more)).output().unwrap()
}

/// Runs it to its end: exit code, what it said.
#[track_caller]
pub(crate) fn filled(lane: &Lane, more: &[&str]) -> (i32, String) {
    let output = output(lane, more);
    let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    (output.status.code().unwrap(), text)
}

/// Runs it to its end, which is a good one.
#[track_caller]
pub(crate) fn fill(lane: &Lane, more: &[&str]) -> String {
    let (code, text) = filled(lane, more);
    assert_eq!(code, 0, "{text}");
    text
}

/// How often each id is in the topic.
pub(crate) fn counted(lane: &Lane) -> BTreeMap<String, u32> {
    let mut counted = BTreeMap::new();
    for id in ids(&lane.records_now("order")) {
        *counted.entry(id).or_default() += 1;
    }
    counted
}

pub(crate) fn numbers(first: u32, last: u32) -> BTreeSet<String> {
    (first..=last).map(|n| n.to_string()).collect()
}

/// Rows may come twice, but none is missing.
#[track_caller]
pub(crate) fn assert_all(lane: &Lane, expected: &BTreeSet<String>) {
    let found: BTreeSet<String> = counted(lane).into_keys().collect();
    let lost: Vec<&String> = expected.difference(&found).collect();
    let strange: Vec<&String> = found.difference(expected).collect();
    assert!(lost.is_empty() && strange.is_empty(), "lost {lost:?}, not expected {strange:?}");
}

#[track_caller]
pub(crate) fn assert_once(lane: &Lane, expected: &BTreeSet<String>) {
    let found = counted(lane);
    let lost: Vec<&String> = expected.iter().filter(|id| !found.contains_key(*id)).collect();
    let strange: Vec<&String> = found.keys().filter(|id| !expected.contains(*id)).collect();
    let repeated: Vec<&String> = found.iter().filter(|(_, times)| **times > 1).map(|(id, _)| id).collect();
    assert!(
        lost.is_empty() && strange.is_empty() && repeated.is_empty(),
        "lost {lost:?}, not expected {strange:?}, repeated {repeated:?}"
    );
}

#[test]
fn every_row_that_is_there_is_published_and_those_since_the_slot_come_twice() {
    let lane = with_old_rows(300);
    lane.sql(&rows(301, 350));
    let relay = lane.streaming(&[]);
    let mut unasked = arguments(&lane, &["--chunk", "7"]);
    unasked.retain(|argument| argument != "--yes");
    let output = Command::new(binary()).args(unasked).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(64) && text.contains("come a second time"), "{text}");
    let text = fill(&lane, &["--chunk", "7"]);
    assert!(text.contains("backfill of a table is done") && text.contains("\"rows\":350"), "{text}");
    lane.wait_confirmed();
    let twice = |lane: &Lane| -> BTreeSet<String> {
        counted(lane).into_iter().filter(|(_, times)| *times == 2).map(|(id, _)| id).collect()
    };
    assert_all(&lane, &numbers(1, 350));
    assert_eq!(twice(&lane), numbers(301, 350));
    let records = lane.records_now("order");
    let shape = |id: &str| {
        let record = records.iter().find(|record| record.header("id") == Some(id)).unwrap();
        (record.key_text(), record.value_text(), record.header("eventType").map(str::to_owned), record.partition)
    };
    assert_eq!(shape("7"), shape("350"), "both are of key k0");
    let text = fill(&lane, &[]);
    assert!(text.contains("nothing to do"), "{text}");
    drop(relay);
    fill(&lane, &["--again"]);
    assert_eq!(twice(&lane), numbers(1, 300));
}

/// Lets writers end, also where the test fails beside them.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A writer that keeps transactions open across whatever happens: with savepoints, some rolled back.
fn write(source: &str, next: &AtomicU32, stop: &AtomicBool, seed: u32) -> Vec<String> {
    let mut client = Client::connect(source, NoTls).unwrap();
    let (mut committed, mut turn) = (Vec::new(), seed);
    while !stop.load(Ordering::Relaxed) {
        turn = turn.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let mut transaction = client.transaction().unwrap();
        let mut kept = Vec::new();
        for part in 0..=(turn >> 28) % 4 {
            let mut savepoint = transaction.transaction().unwrap();
            let first = next.fetch_add(3, Ordering::Relaxed);
            savepoint.batch_execute(&rows(first, first + 2)).unwrap();
            thread::sleep(Duration::from_millis(u64::from((turn >> 20) % 30)));
            if (turn >> part) % 5 == 0 {
                savepoint.rollback().unwrap();
            } else {
                savepoint.commit().unwrap();
                kept.extend((first..first + 3).map(|n| n.to_string()));
            }
        }
        if turn % 7 == 0 {
            transaction.rollback().unwrap();
        } else {
            transaction.commit().unwrap();
            committed.extend(kept);
        }
    }
    committed
}

#[test]
#[ignore = "slow"]
fn beside_writers_each_row_is_published_by_exactly_one_of_both() {
    let lane = Lane::empty();
    lane.sql(&format!("{OUTBOX}; {}", rows(1, 2000)));
    let (next, stop) = (AtomicU32::new(100_001), AtomicBool::new(false));
    let mut expected = numbers(1, 2000);
    thread::scope(|scope| {
        let ends = Ends(&stop);
        let writers: Vec<_> = (1..=5)
            .map(|seed| {
                let (source, next, stop) = (&lane.source, &next, &stop);
                scope.spawn(move || write(source, next, stop, seed * 77))
            })
            .collect();
        let mut client = lane.connect();
        wait_until(LONG, "rows of the writers", || {
            Ok(client.query_one("SELECT count(*) > 200 FROM outbox WHERE length(id) > 5", &[])?.get(0))
        })
        .unwrap();
        let mut filling = Relay::start(
            &binary(),
            &arguments(&lane, &["--setup", "--table", "outbox", "--rate", "3000", "--then-run"]),
            &[] as &[(&str, &str)],
        )
        .unwrap();
        filling.wait_streaming(LONG).unwrap();
        drop(ends);
        for writer in writers {
            expected.extend(writer.join().unwrap());
        }
        lane.wait_confirmed();
        assert!(filling.log().contains("backfill of a table is done"), "{}", filling.log());
    });
    assert_once(&lane, &expected);
}

#[test]
fn an_existing_slot_is_filled_up_beside_writers_that_were_there_when_it_was_made() {
    let lane = Lane::empty();
    lane.sql(&format!("{OUTBOX}; {}", rows(1, 500)));
    let (next, stop) = (AtomicU32::new(100_001), AtomicBool::new(false));
    let mut expected = numbers(1, 500);
    thread::scope(|scope| {
        let ends = Ends(&stop);
        let writers: Vec<_> = (1..=5)
            .map(|seed| {
                let (source, next, stop) = (&lane.source, &next, &stop);
                scope.spawn(move || write(source, next, stop, seed * 991))
            })
            .collect();
        let mut client = lane.connect();
        wait_until(LONG, "rows of the writers", || {
            Ok(client.query_one("SELECT count(*) > 200 FROM outbox WHERE length(id) > 5", &[])?.get(0))
        })
        .unwrap();
        set_up(&lane, "outbox");
        let _relay = lane.streaming(&[]);
        fill(&lane, &[]);
        drop(ends);
        for writer in writers {
            expected.extend(writer.join().unwrap());
        }
        lane.wait_confirmed();
    });
    assert_all(&lane, &expected);
}

#[test]
#[ignore = "slow"]
fn transactions_that_roll_back_while_the_slot_is_made_put_no_row_off() {
    let (postgres, kafka) = (own::postgres(), own::kafka());
    let lane = Lane::on(&postgres, &kafka);
    lane.sql(&format!("{OUTBOX}; {}", rows(1, 100)));
    let (mut first, mut second, mut third) = (lane.connect(), lane.connect(), lane.connect());
    let mut looking = lane.connect();
    let begin = |client: &mut Client| -> String {
        client.batch_execute("BEGIN").unwrap();
        client.query_one("SELECT pg_current_xact_id()::text", &[]).unwrap().get(0)
    };
    let mut wait_until_waited_for = |transaction: &str| {
        let waits = "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND transactionid::text = $1)";
        wait_until(LONG, "the slot to wait", || Ok(looking.query_one(waits, &[&transaction])?.get(0))).unwrap();
    };
    thread::scope(|scope| {
        let one = begin(&mut first);
        let setup = scope.spawn(|| set_up(&lane, "outbox"));
        wait_until_waited_for(&one);
        let other = begin(&mut second);
        first.batch_execute("ROLLBACK").unwrap();
        wait_until_waited_for(&other);
        begin(&mut third);
        second.batch_execute("ROLLBACK").unwrap();
        setup.join().unwrap();
    });
    third.batch_execute(&format!("{}; COMMIT", rows(101, 110))).unwrap();
    lane.sql(&rows(111, 120));
    let _relay = lane.streaming(&[]);
    fill(&lane, &[]);
    lane.wait_confirmed();
    assert_all(&lane, &numbers(1, 120));
}

#[test]
#[ignore = "slow"]
fn after_kills_at_any_moment_it_resumes_and_repeats_only_what_was_not_written_down() {
    const RATE: u32 = 2000;
    let lane = with_old_rows(6000);
    let mut filling =
        Relay::start(&binary(), &arguments(&lane, &["--rate", &RATE.to_string()]), &[] as &[(&str, &str)]).unwrap();
    let seen = |lane: &Lane| u32::try_from(lane.records_now("order").len()).unwrap();
    for kill in 1..=5_u32 {
        let before = seen(&lane);
        wait_until(LONG, "more rows", || Ok(seen(&lane) > before + 100 * kill || filling.exited()?.is_some())).unwrap();
        filling.kill9().unwrap();
        filling.start_again().unwrap();
    }
    assert_eq!(filling.wait_exit(LONG).unwrap(), 0, "{}", filling.log());
    let found = counted(&lane);
    assert_eq!(found.keys().cloned().collect::<BTreeSet<_>>(), numbers(1, 6000));
    let repeats: u32 = found.values().map(|times| times - 1).sum();
    assert!(repeats < 6000, "each kill repeats what is younger than the last note: {repeats}");
    assert!(found.values().all(|times| *times <= 6), "{repeats} repeats");
    assert!(filling.log().contains("\"rows_before\":"), "{}", filling.log());
    let (code, text) = filled(&lane, &[]);
    assert!(code == 0 && text.contains("nothing to do"), "{text}");
}

#[test]
fn a_graceful_stop_exits_1_and_the_next_run_repeats_nothing() {
    let lane = with_old_rows(3000);
    let mut filling = Relay::start(&binary(), &arguments(&lane, &["--rate", "100/s"]), &[] as &[(&str, &str)]).unwrap();
    wait_until(LONG, "some rows", || Ok(!lane.records_now("order").is_empty())).unwrap();
    let exit = filling.terminate(LONG).unwrap();
    assert!(exit.code == 1 && filling.log().contains("stopped before it was done"), "{}", filling.log());
    let text = fill(&lane, &[]);
    assert!(text.contains("backfill of a table is done"), "{text}");
    assert_once(&lane, &numbers(1, 3000));
}

#[test]
#[ignore = "slow"]
fn a_broken_connection_is_made_again_and_no_row_is_lost() {
    let lane = with_old_rows(4000);
    let mut filling = Relay::start(&binary(), &arguments(&lane, &["--rate", "2000"]), &[] as &[(&str, &str)]).unwrap();
    let mut client = lane.connect();
    for _ in 0..3 {
        let before = lane.records_now("order").len();
        wait_until(LONG, "more rows", || Ok(lane.records_now("order").len() > before || filling.exited()?.is_some()))
            .unwrap();
        client
            .execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1 AND application_name LIKE 'walrelay%'", &[&lane.name])
            .unwrap();
    }
    assert_eq!(filling.wait_exit(LONG).unwrap(), 0, "{}", filling.log());
    assert_once(&lane, &numbers(1, 4000));
}

/// Whatever became of slot, publication and rows, all that are there are published.
#[test]
fn no_row_is_taken_for_one_that_the_slot_has() {
    let lane = Lane::debezium();
    let (code, text) = filled(&lane, &["--slot", "nowhere"]);
    assert!(code == 2 && text.contains("does not exist"), "{text}");
    for change in [
        "ALTER PUBLICATION {} SET (publish = 'insert, delete')",
        "UPDATE outbox SET type = 'Changed'",
        "ALTER TABLE outbox ADD COLUMN seq bigserial",
        "VACUUM FULL outbox",
        "SELECT pg_drop_replication_slot('{}'); SELECT pg_create_logical_replication_slot('{}', 'pgoutput')",
    ] {
        let lane = with_old_rows(5);
        for statement in change.replace("{}", &lane.name).split("; ") {
            lane.sql(statement);
        }
        fill(&lane, &[]);
        assert_once(&lane, &numbers(1, 5));
    }
}

#[test]
fn rows_that_were_filled_in_before_their_table_was_published_are_published() {
    let lane = Lane::empty();
    let table = OUTBOX.replace("PRIMARY KEY", "");
    lane.sql(&format!(
        "{table} PARTITION BY RANGE (id); ALTER TABLE outbox ADD PRIMARY KEY (id);
         CREATE TABLE part_1 PARTITION OF outbox FOR VALUES FROM ('1') TO ('2'); {}; ALTER TABLE part_2 ADD PRIMARY KEY (id);
         CREATE PUBLICATION {} FOR TABLE outbox WITH (publish = 'insert')",
        table.replace("TABLE outbox", "TABLE part_2"),
        lane.name
    ));
    lane.sql(&rows(10, 19));
    set_up(&lane, "outbox");
    fill(&lane, &[]);
    lane.sql(&rows(20, 29).replace("INTO outbox", "INTO part_2"));
    lane.sql("ALTER TABLE outbox ATTACH PARTITION part_2 FOR VALUES FROM ('2') TO ('3')");
    fill(&lane, &[]);
    assert_all(&lane, &numbers(10, 29));
}

/// It began before its table was published, so that its row is in no slot, and it is not there yet when the backfill begins.
#[test]
fn rows_of_transactions_that_are_open_at_the_beginning_are_waited_for() {
    let lane = with_old_rows(5);
    let other = OUTBOX.replace("TABLE outbox", "TABLE later");
    lane.sql(&other);
    let mut writer = lane.connect();
    writer.batch_execute(&format!("BEGIN; {}", rows(1, 1).replace("INTO outbox", "INTO later"))).unwrap();
    lane.sql(&format!("ALTER PUBLICATION {} ADD TABLE later", lane.name));
    let filling = Relay::start(&binary(), &arguments(&lane, &["--table", "later"]), &[] as &[(&str, &str)]);
    let mut filling = filling.unwrap();
    wait_log(&filling, "waiting until the transactions that were open");
    writer.batch_execute("COMMIT").unwrap();
    assert_eq!(filling.wait_exit(LONG).unwrap(), 0, "{}", filling.log());
    assert_once(&lane, &numbers(1, 1));
}

#[test]
fn what_it_has_published_may_be_pruned() {
    let lane = Lane::empty();
    let age = "ALTER TABLE outbox ADD created_at timestamptz DEFAULT now() - interval '1 day'";
    lane.sql(&format!("{OUTBOX}; {age}; {}", rows(1, 5)));
    set_up(&lane, "outbox");
    let _relay = lane.streaming(&[]);
    fill(&lane, &["--where", "id = '1'"]);
    let (code, text) = crate::prune::pruned(&lane, &["--older-than", "1h"]);
    assert!(code == 2 && text.contains("nothing says that all of its rows are published"), "{text}");
    fill(&lane, &["--again"]);
    let (code, text) = crate::prune::pruned(&lane, &["--older-than", "1h"]);
    assert!(code == 0 && text.contains("5 rows deleted"), "{text}");
}

/// As if it had been killed after its last row.
#[test]
fn what_it_has_published_is_noted_by_the_next_run_if_it_ended_before_that() {
    let lane = Lane::empty();
    let age = "ALTER TABLE outbox ADD created_at timestamptz DEFAULT now() - interval '1 day'";
    lane.sql(&format!("{OUTBOX}; {age}; {}", rows(1, 5)));
    set_up(&lane, "outbox");
    let _relay = lane.streaming(&[]);
    fill(&lane, &[]);
    lane.sql("SELECT lo_unlink(objoid) FROM pg_description WHERE starts_with(description, 'walrelay tables: ')");
    let (code, text) = crate::prune::pruned(&lane, &["--older-than", "1h"]);
    assert!(code == 2 && text.contains("nothing says that all of its rows are published"), "{text}");
    let text = fill(&lane, &[]);
    assert!(text.contains("nothing to do: its rows were published already"), "{text}");
    let (code, text) = crate::prune::pruned(&lane, &["--older-than", "1h"]);
    assert!(code == 0 && text.contains("5 rows deleted"), "{text}");
    assert_once(&lane, &numbers(1, 5));
}

#[test]
#[ignore = "slow"]
fn with_a_new_slot_rows_are_published_as_the_snapshot_sees_them_whatever_becomes_of_them() {
    let lane = Lane::empty();
    lane.sql(&format!("{OUTBOX}; {}", rows(1, 3000)));
    let more = ["--setup", "--table", "outbox", "--rate", "300"];
    let mut filling = Relay::start(&binary(), &arguments(&lane, &more), &[] as &[(&str, &str)]).unwrap();
    wait_until(LONG, "some rows", || Ok(!lane.records_now("order").is_empty())).unwrap();
    lane.sql("UPDATE outbox SET payload = '{\"changed\": true}'; DELETE FROM outbox WHERE id::int > 2900");
    assert_eq!(filling.wait_exit(LONG).unwrap(), 0, "{}", filling.log());
    assert_once(&lane, &numbers(1, 3000));
    assert!(values(&lane.records_now("order")).iter().all(|value| value == "{}"));
}

#[test]
fn once_the_snapshot_is_gone_it_goes_on_behind_what_is_published_and_misses_no_row() {
    let lane = Lane::empty();
    lane.sql(&format!("{OUTBOX}; {}", rows(1, 3000)));
    let more = ["--setup", "--table", "outbox", "--rate", "100"];
    let mut filling = Relay::start(&binary(), &arguments(&lane, &more), &[] as &[(&str, &str)]).unwrap();
    wait_until(LONG, "some rows", || Ok(!lane.records_now("order").is_empty())).unwrap();
    assert_eq!(filling.terminate(LONG).unwrap().code, 1, "{}", filling.log());
    let published = counted(&lane);
    let left = (1..=3000).find(|n: &u32| !published.contains_key(&n.to_string())).unwrap();
    lane.sql(&format!("UPDATE outbox SET type = 'Changed' WHERE id = '{left}'"));
    let mut unasked = arguments(&lane, &more[..3]);
    unasked.retain(|argument| argument != "--yes");
    let output = Command::new(binary()).args(unasked).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && text.contains("from the last noted one on"), "{text}");
    assert_all(&lane, &numbers(1, 3000));
    assert!(counted(&lane).values().sum::<u32>() < 4000, "it did not begin again");
}

#[test]
#[ignore = "slow"]
fn bad_rows_stop_it_are_skipped_or_go_to_the_dead_letter_topic() {
    let lane =
        with_old(&format!("{OUTBOX}; {}; UPDATE outbox SET aggregatetype = NULL WHERE id IN ('3', '7')", rows(1, 9)));
    let (code, text) = filled(&lane, &[]);
    assert!(code == 2 && text.contains("a row of public.outbox cannot be published"), "{text}");
    let hint = hint(&text);
    assert!(hint.contains("the row with id 3") && hint.contains("--bad-row-at 0/3:0=skip"), "{hint}");
    assert_once(&lane, &numbers(1, 2));
    let dead = lane.topic("dead");
    let more = ["--bad-row-at", "0/3:0=skip", "--on-bad-row", "dead-letter", "--dead-letter-topic", &dead];
    fill(&lane, &more);
    let expected = numbers(1, 9).into_iter().filter(|id| id != "3" && id != "7").collect();
    assert_once(&lane, &expected);
    assert_eq!(ids(&lane.records_now("dead")), ["7"]);
}

#[test]
fn a_role_that_may_only_read_the_table_is_enough_and_row_security_is_refused() {
    let lane = with_old_rows(20);
    let role = fresh("reader");
    lane.sql(&format!("CREATE ROLE {role} LOGIN"));
    let mut source = lane.source.clone();
    let user = source.find("://").unwrap() + 3;
    let end = source.find('@').unwrap();
    source.replace_range(user..end, &role);
    let (code, text) = filled(&lane, &["--source", &source]);
    assert!(code == 2 && hint(&text).contains("GRANT SELECT ON \"public\".\"outbox\""), "{text}");
    lane.sql(&format!("GRANT SELECT ON outbox TO {}; ALTER TABLE outbox ENABLE ROW LEVEL SECURITY", quoted(&role)));
    let (code, text) = filled(&lane, &["--source", &source]);
    assert!(code == 2 && text.contains("row security hides rows"), "{text}");
    lane.sql("ALTER TABLE outbox DISABLE ROW LEVEL SECURITY");
    fill(&lane, &["--source", &source]);
    assert_once(&lane, &numbers(1, 20));
    lane.sql(&format!("SELECT lo_unlink(oid) FROM pg_largeobject_metadata; DROP OWNED BY {role}; DROP ROLE {role}"));
}

#[test]
#[ignore = "slow"]
fn crashes_of_postgres_and_of_the_broker_are_waited_for_and_repeat_nothing_that_is_known() {
    let (mut postgres, mut kafka) = (own::postgres(), own::kafka());
    let lane = Lane::on(&postgres, &kafka);
    lane.sql(&format!("{OUTBOX}; {}", rows(1, 4000)));
    set_up(&lane, "outbox");
    let mut filling = Relay::start(&binary(), &arguments(&lane, &["--rate", "1000"]), &[] as &[(&str, &str)]).unwrap();
    let more = |filling: &mut Relay| {
        let before = lane.records_now("order").len();
        wait_until(LONG, "more rows", || Ok(lane.records_now("order").len() > before || filling.exited()?.is_some()))
            .unwrap();
    };
    more(&mut filling);
    postgres.kill().unwrap();
    postgres.start_again().unwrap();
    more(&mut filling);
    kafka.kill().unwrap();
    kafka.start_again().unwrap();
    assert_eq!(filling.wait_exit(LONG).unwrap(), 0, "{}", filling.log());
    assert_once(&lane, &numbers(1, 4000));
}

#[test]
fn two_backfills_of_a_slot_do_not_run_at_once_and_any_destination_takes_the_rows() {
    let lane = with_old_rows(2000);
    let filling = Relay::start(&binary(), &arguments(&lane, &["--rate", "200"]), &[] as &[(&str, &str)]).unwrap();
    wait_log(&filling, "backfill begins");
    let (code, text) = filled(&lane, &[]);
    assert!(code == 2 && text.contains("another backfill of slot"), "{text}");
    drop(filling);

    let lane = with_old_rows(3);
    let place = ["backfill", "--source", &lane.source, "--publication", &lane.name, "--slot", &lane.name];
    let output = Command::new(binary()).args(place).args(["--to", "stdout://", "--yes"]).output().unwrap();
    let (lines, log) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(output.status.success(), "{log}");
    assert_eq!(lines.lines().count(), 3, "{lines}");
    assert!(lines.lines().all(|line| line.contains("outbox.event.order")), "{lines}");
    assert!(log.lines().all(|line| line.starts_with('{')), "{log}");
}

#[test]
fn setup_makes_the_slot_and_publishes_what_is_older_in_one_go() {
    let lane = Lane::empty();
    lane.sql(&format!("{OUTBOX}; {}", rows(1, 50)));
    let topic = lane.topic("{route}");
    let place = ["--source", &lane.source, "--publication", &lane.name, "--slot", &lane.name, "--table", "outbox"];
    let output = Command::new(binary())
        .args(["setup", "--apply", "--backfill"])
        .args(place)
        .envs([("WALRELAY_BROKERS", &lane.brokers), ("WALRELAY_TOPIC", &topic)])
        .output()
        .unwrap();
    let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert!(output.status.success() && text.contains("created slot") && text.contains("\"rows\":50"), "{text}");
    lane.sql(&rows(51, 60));
    let _relay = lane.streaming(&[]);
    lane.wait_confirmed();
    assert_once(&lane, &numbers(1, 60));
}
