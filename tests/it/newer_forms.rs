//! State that a newer version has written in a form of its own: it is refused with words, and nothing is written.

use std::process::Output;

use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use walrelay_dev::kafka::shared_kafka;
use walrelay_dev::postgres::default_major;
use walrelay_dev::relay;

use crate::backfill::{fill, filled, with_old_rows};
use crate::exactly_once::{EXACTLY_ONCE, TABLE, insert};
use crate::lane::{LONG, Lane, binary, ended, hint, ids};
use crate::prune::{AGED, left, noted, old, proven, pruned};

/// Writes a record as somebody else.
fn produce(lane: &Lane, record: BaseRecord<'_, str, str>) {
    let producer: BaseProducer = lane.client.create().unwrap();
    producer.send(record).map_err(|(error, _)| error).unwrap();
    producer.flush(LONG).unwrap();
}

#[test]
fn progress_of_a_newer_form_ends_the_start_and_nothing_is_published_or_confirmed() {
    let lane = Lane::with(TABLE, "outbox");
    let mut relay = lane.streaming(&[EXACTLY_ONCE]);
    insert(&lane, 1, 10);
    lane.wait_confirmed();
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
    let system: String =
        lane.connect().query_one("SELECT system_identifier::text FROM pg_control_system()", &[]).unwrap().get(0);
    let key = format!("{system}/{}", lane.name);
    let newer = r#"{"form":2,"timeline":1,"parts":[{"end_lsn":"0/1"}],"source":"db"}"#;
    produce(&lane, BaseRecord::to("walrelay.progress").key(key.as_str()).payload(newer));
    insert(&lane, 11, 20);
    let confirmed = lane.confirmed();

    let mut relay = lane.relay(&[EXACTLY_ONCE]);
    let (code, log) = ended(&mut relay);
    assert_eq!(code, 2, "{log}");
    assert!(log.contains(&format!("under {key} has a form that this version does not know")), "{log}");
    assert!(hint(&log).contains("run the walrelay that has written it"), "{log}");
    assert_eq!(lane.confirmed(), confirmed);
    assert_eq!(ids(&lane.records_now("order")).len(), 10, "{log}");
    let kept = walrelay_dev::consume::read_to_end(&lane.client, &["walrelay.progress"]).unwrap();
    let last = kept.iter().rfind(|record| record.key_text() == key).unwrap();
    assert_eq!(last.value_text(), newer);
}

#[test]
fn a_dead_letter_or_mark_of_a_newer_form_is_not_replayed() {
    let lane = Lane::empty();
    let topic = lane.topic("dead-letter");
    shared_kafka().unwrap().create_topic(&topic, 1, &[]).unwrap();
    shared_kafka().unwrap().create_topic(&lane.topic("order"), 1, &[]).unwrap();
    let (order, header) = (lane.topic("order"), |key, value| Header { key, value: Some(value) });
    let said =
        OwnedHeaders::new().insert(header("walrelay-error", "too large")).insert(header("walrelay-topic", &*order));
    let newer = said.clone().insert(header("walrelay-form", "2"));
    produce(&lane, BaseRecord::to(&topic).key("k").payload("gzipped").headers(newer));
    produce(&lane, BaseRecord::to(&topic).key("k").payload("plain").headers(said));
    let replay = || -> Output {
        let fixed = ["dead-letters", "--replay", "--slot", &lane.name, "--brokers", &lane.brokers];
        relay::run(&binary(), &fixed).unwrap()
    };
    let output = replay();
    let out = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(2), "{out}");
    assert!(out.contains("in form 2, which this version would misread"), "{out}");
    let published = || crate::lane::values(&lane.records_now("order"));
    assert_eq!(published(), ["plain"]);

    let mark = OwnedHeaders::new().insert(header("walrelay-replayed", "0")).insert(header("walrelay-form", "2"));
    produce(&lane, BaseRecord::to(&topic).key("mark").payload("bits").headers(mark));
    let output = replay();
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{err}");
    assert!(err.contains("in a form that this version does not know"), "{err}");
    assert!(hint(&err).contains("run the walrelay that has replayed this topic"), "{err}");
    assert_eq!(published(), ["plain"]);
}

#[test]
fn a_note_of_skipped_rows_of_a_newer_form_stays_beside_a_new_one() {
    let lane = Lane::with(TABLE, "outbox");
    let newer = format!("walrelay passed over: {} {{\"form\":2,\"rows\":[\"1-9\"]}}", lane.name);
    write_note(&lane, &newer);
    let relay = lane.streaming(&["--on-bad-row", "skip"]);
    lane.sql("INSERT INTO outbox VALUES (10, NULL, 'k', 't', 'p'), (11, 'order', 'k', 't', 'p')");
    lane.wait_confirmed();
    assert_eq!(lane.ids("order"), ["11"], "{}", relay.log());
    let notes = notes(&lane, "passed over");
    assert_eq!(notes.len(), 2, "{notes:?}");
    assert!(notes.contains(&newer) && notes.iter().any(|note| note.contains(r#"["10"]"#)), "{notes:?}");
}

/// Writes a note, as a version that is newer.
fn write_note(lane: &Lane, note: &str) {
    lane.sql(&format!(
        "DO $$ BEGIN EXECUTE format('COMMENT ON LARGE OBJECT %s IS %L', lo_create(0), '{note}'); END $$"
    ));
}

/// The notes of a kind.
fn notes(lane: &Lane, kind: &str) -> Vec<String> {
    let sql = format!(
        "SELECT description FROM pg_description WHERE starts_with(description, 'walrelay {kind}: ') ORDER BY 1"
    );
    lane.connect().query(&sql, &[]).unwrap().iter().map(|row| row.get(0)).collect()
}

/// Runs a relay until all rows are confirmed.
#[track_caller]
fn deliver(lane: &Lane) {
    let mut relay = lane.streaming(&[]);
    lane.wait_confirmed();
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
}

#[test]
fn a_relays_note_of_a_newer_form_keeps_prune_from_believing_an_older_one() {
    let lane = proven(Lane::with(AGED, "outbox"));
    let newer = format!("walrelay relay: {} {{\"form\":2,\"unread\":[\"outbox\"]}}", lane.name);
    write_note(&lane, &newer);
    lane.sql(&old(&["1", "2"]));
    let refused = || {
        let (code, text) = pruned(&lane, &["--older-than", "1h"]);
        assert!(code == 2 && text.contains("reads in a form that this version does not know"), "{code} {text}");
        assert_eq!(left(&lane), ["1", "2"]);
        hint(&text)
    };
    refused();
    // What the relay notes does not count beside it either.
    deliver(&lane);
    let forget = refused();
    let kept = notes(&lane, "relay");
    assert!(kept.len() == 2 && kept.contains(&newer), "{kept:?}");
    // The hint's statement leaves no older note that would be believed.
    let statement = forget.split("owners: ").nth(1).unwrap().split(';').next().unwrap();
    lane.sql(statement);
    assert_eq!(notes(&lane, "relay"), [""; 0]);
    noted(&lane, &[]);
    let (code, text) = pruned(&lane, &["--older-than", "1h"]);
    assert!(code == 2 && text.contains("rows from before may be in no topic"), "{code} {text}");
    assert_eq!(left(&lane), ["1", "2"]);
}

#[test]
fn a_line_of_the_marker_of_a_newer_kind_lets_nothing_be_deleted_and_nothing_be_written_beside_it() {
    let lane = proven(Lane::with(AGED, "outbox"));
    let sql =
        format!("SELECT obj_description(oid, 'pg_publication') FROM pg_publication WHERE pubname = '{}'", lane.name);
    let comment = || -> String { lane.connect().query_one(&sql, &[]).unwrap().get(0) };
    let line = format!("walrelay unpublished: {} 16385", lane.name);
    let write = |text: &str| lane.sql(&format!("COMMENT ON PUBLICATION {} IS '{text}'", lane.name));
    let marked = comment();
    write(&format!("{marked}\n{line}"));
    lane.sql(&old(&["1"]));
    deliver(&lane);
    let (code, text) = pruned(&lane, &["--older-than", "1h"]);
    assert!(code == 2 && text.contains(&format!("that this version does not know: {line}")), "{code} {text}");
    let set_up = |more: &[&str]| {
        let place = ["setup", "--source", &lane.source, "--publication", &lane.name, "--slot", &lane.name, "--apply"];
        let output = relay::run(&binary(), &[&place[..], more].concat()).unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let published = ["--published", "--yes", "--table", "outbox"];
    let (code, text) = set_up(&published);
    assert!(code == Some(2) && text.contains(&line), "{text}");
    assert_eq!((comment(), set_up(&[]).0), (format!("{marked}\n{line}"), Some(0)), "the slot is marked");
    write(&line);
    let (code, text) = set_up(&[]);
    assert!(code == Some(2) && text.contains(&line), "{text}");
    assert_eq!((comment(), left(&lane)), (line, vec!["1".to_owned()]));
    write(&marked);
    let _relay = lane.streaming(&[]);
    let (code, text) = pruned(&lane, &["--older-than", "1h"]);
    assert!(code == 0 && text.contains("1 rows deleted"), "{code} {text}");
}

#[test]
fn beside_a_line_of_the_marker_of_a_newer_kind_nothing_is_torn_down_or_moved_to_shards() {
    let lane = proven(Lane::with(AGED, "outbox"));
    let sql = format!(
        "SELECT obj_description(oid, 'pg_publication'), (SELECT count(*) FROM pg_replication_slots WHERE slot_name = '{0}')
           FROM pg_publication WHERE pubname = '{0}'",
        lane.name
    );
    let there = || -> (Option<String>, i64) {
        let row = lane.connect().query_one(&sql, &[]).unwrap();
        (row.get(0), row.get(1))
    };
    let run = |flags: &[&str]| {
        let place = ["--source", &lane.source, "--publication", &lane.name, "--slot", &lane.name];
        let output = relay::run(&binary(), &[flags, &place[..]].concat()).unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let write = |text: &str| lane.sql(&format!("COMMENT ON PUBLICATION {} IS '{text}'", lane.name));
    let marked = there().0.unwrap();
    let reshard: &[&str] = &["setup", "--reshard", "2", "--apply"];
    let teardowns: [&[&str]; 2] = [&["teardown", "--yes"], &["teardown", "--yes", "--publication-too"]];
    // Only versions that filter rows have shards.
    let all = teardowns.into_iter().chain((default_major() >= 15).then_some(reshard));
    let commands: Vec<&[&str]> = all.collect();
    for line in [format!("walrelay paused: {}", lane.name), "walrelay move: halted".to_owned()] {
        let with = format!("{marked}\n{line}");
        write(&with);
        for command in &commands {
            let (code, text) = run(command);
            assert!(code == Some(2) && text.contains(&format!("does not know: {line}")), "{command:?}: {text}");
            assert_eq!(there(), (Some(with.clone()), 1), "{command:?}");
        }
    }
    // A move may have to be waited for.
    let mut relay = lane.relay(&[]);
    let (code, log) = ended(&mut relay);
    assert!(code == 2 && log.contains("does not know: walrelay move: halted"), "{log}");
    write(&marked);
    let (code, text) = run(&["teardown", "--yes"]);
    assert_eq!((code, there()), (Some(0), (None, 0)), "{text}");
}

#[test]
fn a_backfill_whose_progress_has_a_newer_form_is_refused_and_a_note_of_tables_stays_beside_a_new_one() {
    let lane = with_old_rows(10);
    let tables = format!("walrelay tables: {} {{\"form\":2}}", lane.name);
    let progress = format!("walrelay backfill: {} {{\"form\":2,\"done\":[\"outbox\"]}}", lane.name);
    write_note(&lane, &tables);
    write_note(&lane, &progress);
    let (code, text) = filled(&lane, &[]);
    assert!(code == 2 && text.contains("the progress of a backfill of slot"), "{code} {text}");
    assert!(hint(&text).contains("run the walrelay that has begun it"), "{text}");
    assert_eq!((notes(&lane, "backfill"), lane.records_now("order").len()), (vec![progress], 0));
    lane.sql(hint(&text).split("backfill: ").nth(1).unwrap());
    fill(&lane, &[]);
    assert_eq!((notes(&lane, "backfill").len(), lane.records_now("order").len()), (1, 10));
    let kept = notes(&lane, "tables");
    assert!(kept.len() == 2 && kept.contains(&tables), "{kept:?}");
}

#[test]
fn beside_a_line_of_the_marker_of_a_newer_kind_no_backfill_begins_or_believes_an_earlier_one() {
    let lane = with_old_rows(10);
    fill(&lane, &[]);
    let line = format!("walrelay unpublished: {} 16385", lane.name);
    lane.sql(&format!(
        "DO $$ BEGIN EXECUTE format('COMMENT ON PUBLICATION %I IS %L', '{0}', (
             SELECT obj_description(oid, 'pg_publication') FROM pg_publication WHERE pubname = '{0}') || E'\\n{line}'); END $$",
        lane.name
    ));
    for more in [&[][..], &["--again"]] {
        let (code, text) = filled(&lane, more);
        assert!(code == 2 && text.contains(&format!("does not know: {line}")), "{code} {text}");
        assert_eq!(lane.records_now("order").len(), 10, "{more:?}");
    }
}
