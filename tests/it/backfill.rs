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
fn rows_older_than_the_slot_are_published_once_and_the_relay_publishes_the_others() {
    let lane = with_old_rows(300);
    lane.sql(&rows(301, 350));
    let relay = lane.streaming(&[]);
    let text = fill(&lane, &["--chunk", "7"]);
    assert!(text.contains("backfill of a table is done") && text.contains("\"rows\":300"), "{text}");
    lane.wait_confirmed();
    assert_once(&lane, &numbers(1, 350));
    let records = lane.records_now("order");
    let shape = |id: &str| {
        let record = records.iter().find(|record| record.header("id") == Some(id)).unwrap();
        (record.key_text(), record.value_text(), record.header("eventType").map(str::to_owned), record.partition)
    };
    assert_eq!(shape("7"), shape("350"), "both are of key k0");
    let text = fill(&lane, &[]);
    assert!(text.contains("nothing to do"), "{text}");
    drop(relay);
    assert_once(&lane, &numbers(1, 350));
    fill(&lane, &["--again"]);
    assert_eq!(counted(&lane).values().filter(|times| **times == 2).count(), 300);
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
    assert_once(&lane, &expected);
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
    assert_once(&lane, &numbers(1, 120));
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

#[test]
#[ignore = "slow"]
fn without_proof_nothing_is_published_and_the_hint_says_what_gives_it() {
    let lane = Lane::debezium();
    lane.sql(&rows(1, 5));
    let (code, text) = filled(&lane, &[]);
    assert!(code == 2 && text.contains("walrelay setup --apply did not create the slot"), "{text}");
    assert!(
        hint(&text).contains("docs/operations/republish.md") && hint(&text).contains("walrelay teardown"),
        "{text}"
    );
    let (code, text) = filled(&lane, &["--slot", "nowhere"]);
    assert!(code == 2 && text.contains("does not exist"), "{text}");

    let lane = with_old_rows(5);
    lane.sql(&format!("ALTER PUBLICATION {} SET (publish = 'insert, delete')", lane.name));
    let (code, text) = filled(&lane, &[]);
    assert!(code == 2 && text.contains("was changed after the slot was created"), "{text}");

    let lane = with_old_rows(5);
    lane.sql(&format!(
        "CREATE TABLE later (LIKE outbox INCLUDING ALL); ALTER PUBLICATION {} ADD TABLE later",
        lane.name
    ));
    let (code, text) = filled(&lane, &["--table", "later"]);
    assert!(code == 2 && text.contains("table later, was changed after"), "{text}");
    fill(&lane, &["--table", "outbox"]);

    let lane = with_old_rows(5);
    lane.drop_slot(&lane.name);
    lane.make_slot();
    let (code, text) = filled(&lane, &[]);
    assert!(code == 2 && text.contains("for an earlier slot of that name"), "{text}");
    assert_eq!(lane.records_now("order").len(), 0);
}

#[test]
fn rows_updated_after_the_slot_was_made_are_refused_unless_they_may_be_left_out() {
    let lane = with_old_rows(9);
    lane.sql("UPDATE outbox SET type = 'Changed' WHERE id::int <= 4");
    let mut client = lane.connect();
    wait_until(LONG, "the update to be counted", || {
        Ok(client.query_one("SELECT n_tup_upd >= 4 FROM pg_stat_user_tables WHERE relname = 'outbox'", &[])?.get(0))
    })
    .unwrap();
    let (code, text) = filled(&lane, &[]);
    assert!(code == 2 && text.contains("may have been updated after") && hint(&text).contains("republish"), "{text}");
    assert_eq!(lane.records_now("order").len(), 0);
    fill(&lane, &["--leave-updated"]);
    assert_once(&lane, &numbers(5, 9));
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
fn once_the_snapshot_is_gone_updated_rows_are_refused_and_nothing_is_published_twice() {
    let lane = Lane::empty();
    lane.sql(&format!("{OUTBOX}; {}", rows(1, 3000)));
    let more = ["--setup", "--table", "outbox", "--rate", "100"];
    let mut filling = Relay::start(&binary(), &arguments(&lane, &more), &[] as &[(&str, &str)]).unwrap();
    wait_until(LONG, "some rows", || Ok(!lane.records_now("order").is_empty())).unwrap();
    assert_eq!(filling.terminate(LONG).unwrap().code, 1, "{}", filling.log());
    let published = counted(&lane);
    let left = (1..=3000).find(|n: &u32| !published.contains_key(&n.to_string())).unwrap();
    lane.sql(&format!("UPDATE outbox SET type = 'Changed' WHERE id = '{left}'"));
    let mut client = lane.connect();
    wait_until(LONG, "the update to be counted", || {
        Ok(client.query_one("SELECT n_tup_upd >= 1 FROM pg_stat_user_tables WHERE relname = 'outbox'", &[])?.get(0))
    })
    .unwrap();
    let (code, text) = filled(&lane, &["--setup", "--table", "outbox"]);
    assert!(code == 2 && text.contains("may have been updated after"), "{text}");
    fill(&lane, &["--setup", "--table", "outbox", "--leave-updated"]);
    let mut expected = numbers(1, 3000);
    expected.remove(&left.to_string());
    assert_once(&lane, &expected);
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
    let output = Command::new(binary()).args(place).args(["--to", "stdout://"]).output().unwrap();
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
