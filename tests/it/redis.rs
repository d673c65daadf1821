//! Records to Valkey's streams, by the binary: what entries hold, bad rows, refusals, outages, kills, graceful shutdowns.
//!
//! What is stored is read with a client of the test's own.

use std::process::{Command, Stdio};

use walrelay_dev::brokers::{Broker, Kind, Reply, shared};
use walrelay_dev::process::wait_until;
use walrelay_dev::relay::{self, Relay};

use crate::elsewhere::{self, insert, killed_in_turns, lane};
use crate::hints::words;
use crate::lane::{LONG, Lane, binary, ended, hint, wait_log};

/// The fields of an entry, in their order.
type Entry = Vec<(String, String)>;

fn start(lane: &Lane, broker: &Broker, more: &[&str]) -> Relay {
    elsewhere::start(lane, &broker.url(), more)
}

fn call(broker: &Broker, words: &[&str]) -> Reply {
    let reply = broker.resp().unwrap().call(words).unwrap();
    assert!(!matches!(reply, Reply::Error(_)), "{words:?}: {reply:?}");
    reply
}

fn entries(broker: &Broker, stream: &str) -> Vec<Entry> {
    let entries = call(broker, &["XRANGE", stream, "-", "+"]);
    let fields = |entry: &Reply| {
        let fields = entry.items()[1].items();
        fields.chunks(2).map(|pair| (pair[0].text(), pair[1].text())).collect()
    };
    entries.items().iter().map(fields).collect()
}

fn field<'a>(entry: &'a Entry, name: &str) -> &'a str {
    entry.iter().find(|(known, _)| known == name).map_or("none", |(_, value)| value)
}

pub(crate) fn ids(broker: &Broker, stream: &str) -> Vec<String> {
    entries(broker, stream).iter().map(|entry| field(entry, "id").to_owned()).collect()
}

/// As [`elsewhere::assert_complete`].
#[track_caller]
fn assert_complete(broker: &Broker, lane: &Lane, last: u32) -> usize {
    elsewhere::assert_complete(&ids(broker, &lane.topic("order")), last)
}

#[test]
fn an_entry_holds_id_type_key_payload_and_headers() {
    let (lane, broker) = (lane(), shared(Kind::Valkey).unwrap());
    lane.sql("INSERT INTO outbox VALUES ('a', 'order', 'k', 'Placed', '{\"total\": 1.50}'), ('b', 'order', NULL, NULL, NULL)");
    let _relay = start(&lane, broker, &["--header", "id=aggregatetype"]);
    lane.wait_confirmed();
    let entry = |fields: &[(&str, &str)]| -> Entry {
        fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    };
    let whole =
        [("id", "a"), ("type", "Placed"), ("key", "k"), ("payload", "{\"total\": 1.50}"), ("header:id", "order")];
    let bare = [("id", "b"), ("header:id", "order")];
    assert_eq!(entries(broker, &lane.topic("order")), [entry(&whole), entry(&bare)]);
}

#[test]
fn a_graceful_shutdown_repeats_nothing_and_a_stream_stays_as_long_as_asked() {
    let (lane, broker) = (lane(), shared(Kind::Valkey).unwrap());
    let mut client = lane.connect();
    insert(&mut client, 1, 700);
    let mut relay = start(&lane, broker, &["-X", "wait=0,1000"]);
    wait_until(LONG, "some entries", || Ok(call(broker, &["XLEN", &lane.topic("order")]).integer() > Some(0))).unwrap();
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
    insert(&mut client, 701, 800);
    relay.start_again().unwrap();
    lane.wait_confirmed();
    assert_eq!(assert_complete(broker, &lane, 800), 0);
    drop(relay);
    let _short = start(&lane, broker, &["-X", "maxlen=10", "-X", "approx=false"]);
    insert(&mut client, 801, 810);
    lane.wait_confirmed();
    let last: Vec<String> = (801..=810).map(|id: u32| id.to_string()).collect();
    assert_eq!(ids(broker, &lane.topic("order")), last);
}

#[test]
fn a_bad_row_stops_is_skipped_or_goes_to_the_dead_letter_stream() {
    let broker = shared(Kind::Valkey).unwrap();
    let rows = "INSERT INTO outbox VALUES ('1', 'order', 'k', 't', '{}'), ('2', NULL, 'k', 't', '{}'), ('3', 'order', 'k', 't', '{}')";
    let stopped = lane();
    stopped.sql(rows);
    let (code, log) = ended(&mut start(&stopped, broker, &[]));
    assert!(code == 2 && hint(&log).contains("id 2 "), "{log}");
    assert_eq!(ids(broker, &stopped.topic("order")), ["1"]);

    let skipped = lane();
    skipped.sql(rows);
    let _relay = start(&skipped, broker, &["--on-bad-row", "skip"]);
    skipped.wait_confirmed();
    assert_eq!(ids(broker, &skipped.topic("order")), ["1", "3"]);

    let dead_lettered = lane();
    dead_lettered.sql(rows);
    let _relay = start(&dead_lettered, broker, &["--on-bad-row", "dead-letter"]);
    dead_lettered.wait_confirmed();
    assert_eq!(ids(broker, &dead_lettered.topic("order")), ["1", "3"]);
    let dead_letters = entries(broker, &format!("{}.dead-letter", dead_lettered.name));
    assert_eq!((dead_letters.len(), field(&dead_letters[0], "id"), field(&dead_letters[0], "key")), (1, "2", "k"));
    assert_eq!(field(&dead_letters[0], "walrelay-table"), "public.outbox");
}

/// The dead-letter stream is a string, so that it takes nothing, and the relay stops after a while.
#[test]
fn a_dead_letter_that_waits_holds_up_the_position_alone() {
    let (lane, broker) = (lane(), shared(Kind::Valkey).unwrap());
    let dead = lane.topic("dead-letter");
    call(broker, &["SET", &dead, "no stream"]);
    let before = lane.confirmed();
    lane.sql(
        "INSERT INTO outbox VALUES ('1', 'order', 'a', '{}', '{}'), ('2', 'order', 'a', 'no object', '{}'), ('3', 'order', 'a', '{}', '{}');
         INSERT INTO outbox SELECT n::text, 'order', 'k' || n % 7, '{}', '{}' FROM generate_series(4, 403) AS n",
    );
    let flags = ["--on-bad-row", "dead-letter", "--headers-column", "type"];
    let (code, log) = ended(&mut start(&lane, broker, &flags));
    assert!(code == 2 && hint(&log).contains("id 2 ") && log.contains("does not take it"), "{log}");
    let mut arrived: Vec<u32> = ids(broker, &lane.topic("order")).iter().map(|id| id.parse().unwrap()).collect();
    arrived.sort_unstable();
    assert!(arrived.into_iter().eq([1].into_iter().chain(3..=403)), "{log}");
    assert_eq!(lane.confirmed(), before);
    call(broker, &["DEL", &dead]);
    let _relay = start(&lane, broker, &flags);
    lane.wait_confirmed();
    let order = ids(broker, &lane.topic("order"));
    assert!(order.iter().filter(|id| ["1", "3"].contains(&id.as_str())).eq(["1", "3", "1", "3"]), "{order:?}");
    assert_eq!(ids(broker, &dead), ["2"]);
}

#[test]
fn a_stream_may_have_any_name() {
    let (lane, broker) = (lane(), shared(Kind::Valkey).unwrap());
    lane.sql("INSERT INTO outbox VALUES ('1', 'an order', 'k', 't', '{}')");
    let topic = format!("shop:{}|{{route}}", lane.name);
    let _relay = start(&lane, broker, &["--topic", &topic]);
    lane.wait_confirmed();
    assert_eq!(ids(broker, &topic.replace("{route}", "an order")), ["1"]);
}

#[test]
fn a_password_in_a_file_is_read_again_at_each_connection() {
    let (lane, broker) = (lane(), Broker::start(Kind::Valkey, &["requirepass first"]).unwrap());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("password");
    std::fs::write(&file, "first\n").unwrap();
    let mut relay = start(&lane, &broker, &["-X", &format!("password=@{}", file.display())]);
    lane.sql("INSERT INTO outbox VALUES ('1', 'order', 'k', 't', '{}')");
    lane.wait_confirmed();
    let mut administrator = broker.resp().unwrap();
    for words in [
        &["AUTH", "first"][..],
        &["CONFIG", "SET", "requirepass", "second"],
        &["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"],
    ] {
        assert!(!matches!(administrator.call(words).unwrap(), Reply::Error(_)), "{words:?}");
    }
    lane.sql("INSERT INTO outbox VALUES ('2', 'order', 'k', 't', '{}')");
    wait_log(&relay, "WRONGPASS");
    std::fs::write(&file, "second\n").unwrap();
    lane.wait_confirmed();
    assert_eq!(administrator.call(&["XLEN", &lane.topic("order")]).unwrap().integer(), Some(2));
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
}

#[test]
fn dead_letter_entries_are_published_again_and_then_deleted() {
    let (lane, broker) = (lane(), shared(Kind::Valkey).unwrap());
    lane.sql("INSERT INTO outbox SELECT n::text, NULL, 'k' || n, 't', '{}' FROM generate_series(1, 250) AS n");
    let mut relay = start(&lane, broker, &["--on-bad-row", "dead-letter", "--header", "key==h"]);
    lane.wait_confirmed();
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
    let (url, order, dead) = (broker.url(), lane.topic("order"), lane.topic("dead-letter"));
    let command = |more: &[&str]| {
        let fixed = ["dead-letters", "--slot", &lane.name, "--to", &url, "--json"];
        let output = relay::run(&binary(), &[&fixed[..], more].concat()).unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    };
    let (code, listed, err) = command(&[]);
    assert_eq!((code, listed.lines().count()), (0, 250), "{err}");
    let (code, _, err) = command(&["--replay", "--id", "7"]);
    assert_eq!((code, entries(broker, &dead).len()), (2, 250), "where to is not known: {err}");
    let (code, said, err) = command(&["--replay", "--id", "7", "--default-topic", &order]);
    assert_eq!((code, said.trim()), (0, r#"{"replayed":1,"failed":0}"#), "{err}");
    let expected = [("id", "7"), ("type", "t"), ("key", "k7"), ("payload", "{}"), ("header:key", "h")];
    let expected: Entry = expected.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    assert_eq!((entries(broker, &order), entries(broker, &dead).len()), (vec![expected], 249));
    let (code, said, err) = command(&["--replay", "--default-topic", &order]);
    assert_eq!((code, said.trim()), (0, r#"{"replayed":249,"failed":0}"#), "{err}");
    let mut found: Vec<u32> = ids(broker, &order).iter().map(|id| id.parse().unwrap()).collect();
    found.sort_unstable();
    assert_eq!((found, entries(broker, &dead).len()), ((1..=250).collect(), 0));
    let (code, _, err) = command(&["--dead-letter-topic", "nobody"]);
    assert!(code == 2 && err.contains("nobody does not exist"), "{err}");
}

#[test]
#[ignore = "slow"]
fn a_replay_waits_for_a_server_that_is_killed_under_it_and_one_that_is_killed_itself_loses_nothing() {
    let (lane, mut broker) = (lane(), Broker::start(Kind::Valkey, &[]).unwrap());
    lane.sql("INSERT INTO outbox SELECT n::text, NULL, 'k' || n % 7, 't', '{}' FROM generate_series(1, 3000) AS n");
    let mut relay = start(&lane, &broker, &["--on-bad-row", "dead-letter"]);
    lane.wait_confirmed();
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
    let (url, order, dead) = (broker.url(), lane.topic("order"), lane.topic("dead-letter"));
    let flags = ["dead-letters", "--slot", &lane.name, "--to", &url, "--replay", "--default-topic", &order];
    let begin = || Command::new(binary()).args(flags).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let mut replay = begin();
    for round in 0..4 {
        let left = || call(&broker, &["XLEN", &dead]).integer();
        let before = left();
        wait_until(LONG, "entries to be deleted", || Ok(left() < before || replay.try_wait()?.is_some())).unwrap();
        assert!(round > 0 || replay.try_wait().unwrap().is_none(), "it is under way");
        if round % 2 == 0 {
            replay.kill().unwrap();
            replay.wait().unwrap();
            replay = begin();
        } else {
            broker.kill().unwrap();
            broker.start_again().unwrap();
        }
    }
    assert!(replay.wait().unwrap().success());
    assert_eq!(entries(&broker, &dead).len(), 0);
    let mut found: Vec<u32> = ids(&broker, &order).iter().map(|id| id.parse().unwrap()).collect();
    found.sort_unstable();
    found.dedup();
    assert_eq!(found, (1..=3000).collect::<Vec<_>>());
}

#[test]
fn a_key_of_another_type_blocks_its_stream_until_it_is_moved() {
    let (lane, broker) = (lane(), shared(Kind::Valkey).unwrap());
    let stream = lane.topic("order");
    call(broker, &["SET", &stream, "no stream"]);
    lane.sql("INSERT INTO outbox VALUES ('1', 'order', 'k', 't', '{}'), ('2', 'order', 'k', 't', '{}')");
    let relay = start(&lane, broker, &[]);
    wait_log(&relay, "WRONGTYPE");
    call(broker, &["DEL", &stream]);
    lane.wait_confirmed();
    assert_eq!(ids(broker, &stream), ["1", "2"]);
}

/// Does what a failure's text says of a missing right, if it says it.
fn follow(broker: &Broker, text: &str) {
    let Some(at) = text.rfind("ACL SETUSER ") else { return };
    let words = words(text[at..].lines().next().unwrap());
    let command: Vec<&str> = words.iter().map(String::as_str).collect();
    call(broker, &command);
}

#[test]
#[ignore = "slow"]
fn the_command_for_a_missing_right_is_whole_for_a_stream_and_for_that_of_dead_letters() {
    for more in [&["-X", "dedupe=1h", "-X", "wait=0,1000"][..], &[]] {
        let user = "user app on >secret +auth +client|setname";
        let (lane, broker) = (lane(), Broker::start(Kind::Valkey, &[user]).unwrap());
        lane.sql("INSERT INTO outbox VALUES ('1', 'order', 'k', 't', '{}'), ('2', NULL, 'k', 't', '{}')");
        let url = broker.url().replace("://", "://app:secret@");
        let mut relay = elsewhere::start(&lane, &url, &[&["--on-bad-row", "dead-letter"], more].concat());
        // Each right shows once the one before it is there. If that of the dead letters' stream is not there in time, the relay ends.
        wait_until(LONG, "the dead letter", || {
            if relay.exited()?.is_some() {
                follow(&broker, &relay.log());
                relay.start_again()?;
            }
            if let Ok(status) = relay.status() {
                follow(&broker, status["last_error"].as_str().unwrap_or_default());
            }
            Ok(ids(&broker, &lane.topic("dead-letter")) == ["2"])
        })
        .unwrap_or_else(|error| panic!("{error}: {}", relay.log()));
        lane.wait_confirmed();
        assert!(ids(&broker, &lane.topic("order")).iter().all(|id| id == "1"), "{}", relay.log());
    }
}

#[test]
#[ignore = "slow"]
fn a_server_that_is_unavailable_or_full_is_waited_for() {
    let (lane, mut broker) = (lane(), Broker::start(Kind::Valkey, &[]).unwrap());
    let mut client = lane.connect();
    let relay = start(&lane, &broker, &["--disconnect-after=2s"]);
    insert(&mut client, 1, 20);
    lane.wait_confirmed();
    broker.stop().unwrap();
    insert(&mut client, 21, 40);
    wait_log(&relay, "cannot be reached");
    broker.start_again().unwrap();
    lane.wait_confirmed();
    call(&broker, &["CONFIG", "SET", "maxmemory", "1"]);
    insert(&mut client, 41, 60);
    wait_log(&relay, "OOM");
    call(&broker, &["CONFIG", "SET", "maxmemory", "0"]);
    lane.wait_confirmed();
    assert_eq!(assert_complete(&broker, &lane, 60), 0);
}

/// Kills relay and server in turns while rows are written. How many repeats there are in the end.
fn killed_under_load(more: &[&str]) -> usize {
    let (lane, mut broker) = (lane(), Broker::start(Kind::Valkey, &[]).unwrap());
    let mut relay = start(&lane, &broker, more);
    let count = |broker: &Broker| {
        Ok(call(broker, &["XLEN", &lane.topic("order")]).integer().unwrap_or_default().unsigned_abs())
    };
    let last = killed_in_turns(&lane, &mut relay, &mut broker, 8, count);
    assert!(relay.metric("walrelay_bad_rows_total").unwrap() < 0.5, "{}", relay.log());
    assert_complete(&broker, &lane, last)
}

#[test]
fn kills_of_relay_and_server_lose_nothing_and_swap_no_rows_of_a_key() {
    killed_under_load(&[]);
}

#[test]
fn with_dedupe_a_row_with_the_id_of_another_one_is_counted_as_lost() {
    let (lane, broker) = (lane(), shared(Kind::Valkey).unwrap());
    lane.sql("ALTER TABLE outbox DROP CONSTRAINT IF EXISTS outbox_pkey");
    let relay = start(&lane, broker, &["-X", "dedupe=1h"]);
    wait_log(&relay, "streaming");
    lane.sql("INSERT INTO outbox VALUES ('b', 'order', 'k', 't', '{}'), ('b', 'order', 'k', 't', '{}'), ('c', 'order', 'k', 't', '{}')");
    lane.wait_confirmed();
    assert_eq!(ids(broker, &lane.topic("order")), ["b", "c"]);
    assert_eq!(relay.metric("walrelay_bad_rows_total").unwrap().to_string(), "1");
    let log = relay.log();
    assert!(log.lines().any(|line| line.contains("row not published") && line.contains("\"id\":\"b\"")), "{log}");
}

#[test]
fn with_dedupe_kills_repeat_nothing() {
    assert_eq!(killed_under_load(&["-X", "dedupe=1h"]), 0);
}

/// The entry was added over another connection, and WAIT knows only what its own has written.
#[test]
#[ignore = "slow"]
fn a_repeat_that_is_not_added_again_waits_for_replicas_like_the_first_time() {
    let (lane, broker) = (lane(), Broker::start(Kind::Valkey, &[]).unwrap());
    let mut replica = Broker::start(Kind::Valkey, &[&format!("replicaof 127.0.0.1 {}", broker.port())]).unwrap();
    let online = || Ok(call(&broker, &["INFO", "replication"]).text().contains("state=online"));
    wait_until(LONG, "the replica", online).unwrap();
    replica.suspend().unwrap();
    lane.sql("INSERT INTO outbox VALUES ('1', 'order', 'k', 't', '{}')");
    for _ in 0..2 {
        let mut relay = start(&lane, &broker, &["-X", "dedupe=1h", "-X", "wait=1,100"]);
        wait_log(&relay, "0 of 1 replicas");
        relay.kill9().unwrap();
    }
    replica.resume().unwrap();
    let _relay = start(&lane, &broker, &["-X", "dedupe=1h", "-X", "wait=1,100"]);
    lane.wait_confirmed();
    assert_eq!(ids(&broker, &lane.topic("order")), ["1"]);
}

#[test]
fn check_names_what_is_wrong_with_the_server_and_its_streams() {
    let lane = lane();
    let broker = Broker::start(Kind::Valkey, &["appendfsync everysec", "user app on >secret ~other* +@all"]).unwrap();
    lane.sql("INSERT INTO outbox VALUES ('1', 'order', 'k', 't', '{}')");
    let check = |to: &str| elsewhere::check(&lane, to, &[]);
    let found = check(&broker.url());
    assert!(found.contains("appendfsync is everysec") && found.contains("-X wait=0,1000"), "{found}");
    assert!(found.contains("is created by its first record"), "{found}");
    let forbidden = check(&broker.url().replace("://", "://app:secret@"));
    let fix = format!("ACL SETUSER app '~{}' +multi +exec +xadd", lane.topic("order"));
    assert!(forbidden.contains("NOPERM") && forbidden.contains(&fix), "{forbidden}");
    let refused = check(&broker.url().replace("://", "://app:wrong@"));
    assert!(refused.contains("WRONGPASS") && !refused.contains("wrong@"), "{refused}");
}

#[test]
fn a_refused_log_in_and_what_redis_does_not_have_end_the_start() {
    let (lane, broker) = (lane(), shared(Kind::Valkey).unwrap());
    let url = broker.url().replace("://", "://nobody:hush@");
    let (code, log) = ended(&mut start(&lane, broker, &["--to", &url]));
    assert!(code == 2 && log.contains("WRONGPASS") && !log.contains("hush"), "{log}");
    for more in [&["--delivery", "exactly-once"][..], &["-X", "maxlength=1"], &["-X", "dedupe=soon"]] {
        let (code, log) = ended(&mut start(&lane, broker, more));
        assert_eq!(code, 64, "{log}");
    }
}

#[test]
#[ignore = "slow"]
fn existing_rows_reach_the_stream_though_the_server_and_the_backfill_are_killed() {
    let (lane, mut broker) = (lane(), Broker::start(Kind::Valkey, &[]).unwrap());
    insert(&mut lane.connect(), 1, 3000);
    lane.drop_slot(&lane.name);
    lane.sql(&format!("DROP PUBLICATION {}; ALTER TABLE outbox ALTER COLUMN id TYPE int USING id::int", lane.name));
    let (url, topic) = (broker.url(), lane.topic("{route}"));
    let place = ["backfill", "--source", &lane.source, "--publication", &lane.name, "--slot", &lane.name];
    let more = ["--setup", "--table", "outbox", "--yes", "--rate", "1000", "--to", &url, "--topic", &topic];
    let mut filling = Relay::start(&binary(), &[&place[..], &more].concat(), &[] as &[(&str, &str)]).unwrap();
    for round in 0..4 {
        let length = || call(&broker, &["XLEN", &lane.topic("order")]).integer();
        let before = length();
        wait_until(LONG, "more entries", || Ok(length() > before || filling.exited()?.is_some())).unwrap();
        if round % 2 == 0 {
            broker.kill().unwrap();
            broker.start_again().unwrap();
        } else {
            filling.kill9().unwrap();
            filling.start_again().unwrap();
        }
    }
    assert_eq!(filling.wait_exit(LONG).unwrap(), 0, "{}", filling.log());
    assert_complete(&broker, &lane, 3000);
}
