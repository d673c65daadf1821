//! State that a newer version has written in a form of its own: it is refused with words, and nothing is written.

use std::process::Output;

use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use walrelay_dev::kafka::shared_kafka;
use walrelay_dev::relay;

use crate::exactly_once::{EXACTLY_ONCE, TABLE, insert};
use crate::lane::{LONG, Lane, binary, ended, hint, ids};

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
    lane.sql(&format!(
        "DO $$ BEGIN EXECUTE format('COMMENT ON LARGE OBJECT %s IS %L', lo_create(0), '{newer}'); END $$"
    ));
    let relay = lane.streaming(&["--on-bad-row", "skip"]);
    lane.sql("INSERT INTO outbox VALUES (10, NULL, 'k', 't', 'p'), (11, 'order', 'k', 't', 'p')");
    lane.wait_confirmed();
    assert_eq!(lane.ids("order"), ["11"], "{}", relay.log());
    let sql = "SELECT description FROM pg_description WHERE description LIKE 'walrelay passed over: %' ORDER BY 1";
    let notes: Vec<String> = lane.connect().query(sql, &[]).unwrap().iter().map(|row| row.get(0)).collect();
    assert_eq!(notes.len(), 2, "{notes:?}");
    assert!(notes.contains(&newer) && notes.iter().any(|note| note.contains(r#"["10"]"#)), "{notes:?}");
}
