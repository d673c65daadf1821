//! What ends a run before its first row, or in the middle: the exit code, the words, and that the hint fixes it.

mod mistakes;

use std::io::{Read as _, Write as _};
use std::net::TcpListener;

use walrelay_dev::kafka::shared_kafka;
use walrelay_dev::postgres::{self, Mode, Postgres, shared_postgres};
use walrelay_dev::process::wait_until;
use walrelay_dev::relay::Relay;
use walrelay_dev::tap::Tap;

use crate::hints::first_commands;
use crate::lane::{LONG, Lane, OUTBOX, binary, ended, fresh, hint, ids, quoted, wait_events, wait_log};

/// A run that an operator must fix: its words, and the hint.
#[track_caller]
fn refused(lane: &Lane, more: &[&str], words: &[&str]) -> String {
    let mut relay = lane.relay(more);
    refused_by(&mut relay, words)
}

#[track_caller]
fn refused_by(relay: &mut Relay, words: &[&str]) -> String {
    let (code, log) = ended(relay);
    assert_eq!(code, 2, "{log}");
    let error = log.lines().find(|line| line.starts_with("error: ")).unwrap_or_else(|| panic!("no error in {log}"));
    for word in words {
        assert!(error.contains(word), "{word:?} is not in {error:?}");
    }
    hint(&log)
}

/// The lane works now.
#[track_caller]
fn assert_flows(lane: &Lane, more: &[&str]) {
    let _relay = lane.streaming(more);
    lane.sql("INSERT INTO outbox VALUES ('after', 'flows', 'k', 't', '1')");
    assert_eq!(lane.ids("flows").last().map(String::as_str), Some("after"));
}

/// A lane whose names are no plain identifiers.
fn odd() -> (Lane, String) {
    let lane = Lane::empty();
    lane.sql(OUTBOX);
    (lane, fresh("My \"Pub\""))
}

#[test]
fn a_publication_that_does_not_exist_is_made_by_the_hint() {
    let (lane, publication) = odd();
    lane.make_slot();
    let more = ["--publication", publication.as_str()];
    let hint = refused(&lane, &more, &["publication", &publication, "does not exist", &lane.name]);
    let sql = hint.split_once("or: ").unwrap().1;
    lane.sql(&sql.replace('…', "outbox"));
    assert_flows(&lane, &more);
}

#[test]
fn a_publication_without_inserts_gets_them_by_the_hint() {
    let (lane, publication) = odd();
    lane.sql(&format!("CREATE PUBLICATION {} FOR TABLE outbox WITH (publish = 'delete')", quoted(&publication)));
    lane.make_slot();
    let more = ["--publication", publication.as_str()];
    lane.sql(&refused(&lane, &more, &[&publication, "does not publish inserts"]));
    assert_flows(&lane, &more);
}

#[test]
fn a_publication_without_tables_gets_one_by_the_hint() {
    let (lane, publication) = odd();
    lane.sql(&format!("CREATE PUBLICATION {}", quoted(&publication)));
    lane.make_slot();
    let more = ["--publication", publication.as_str()];
    lane.sql(&refused(&lane, &more, &[&publication, "has no table"]));
    assert_flows(&lane, &more);
}

#[test]
fn a_table_outside_the_publication_gets_into_it_by_the_hint() {
    let lane = Lane::with(&format!("{OUTBOX}; CREATE TABLE \"Out Box\" (LIKE outbox)"), "outbox");
    let more = ["--table", "outbox", "--table", "\"Out Box\""];
    lane.sql(&refused(&lane, &more, &["Out Box", "is not in publication", "public.outbox"]));
    let _relay = lane.streaming(&more);
    lane.sql("INSERT INTO \"Out Box\" VALUES ('1', 'order', 'k', 't', '1')");
    assert_eq!(lane.ids("order"), ["1"]);
}

#[test]
fn a_table_without_a_column_that_is_needed_is_named_with_the_flag() {
    let lane = Lane::with(
        "CREATE TABLE outbox (id text, aggregatetype text, aggregateid text, type text, payloads jsonb)",
        "outbox",
    );
    let hint = refused(&lane, &[], &["public.outbox", "payload", "payloads"]);
    assert!(hint.starts_with("walrelay run --payload-column payloads --source "), "{hint}");
    let hint = refused(&lane, &["--payload-column=payloads", "--header=x=typ"], &["\"typ\"", "--header"]);
    assert!(hint.starts_with("walrelay run --header x=type ") && hint.contains("--payload-column payloads"), "{hint}");
    let command = first_commands(&hint).remove(0);
    assert_flows(&lane, &command[1..].iter().map(String::as_str).collect::<Vec<_>>());
}

#[test]
fn a_needed_column_that_is_dropped_under_way_stops_the_relay_before_the_first_row_without_it() {
    let lane = Lane::debezium();
    let mut relay = lane.streaming(&[]);
    lane.sql("INSERT INTO outbox VALUES ('1', 'order', 'k', 't', '1')");
    wait_events(&relay, 1);
    lane.sql("ALTER TABLE outbox DROP payload; INSERT INTO outbox VALUES ('2', 'order', 'k', 't')");
    refused_by(&mut relay, &["public.outbox", "payload"]);
    let _fixed = lane.relay(&["--payload-column=type"]);
    assert_eq!(lane.ids("order"), ["1", "2"]);
}

#[test]
fn a_slot_that_does_not_exist_is_never_made_or_lost() {
    let lane = Lane::empty();
    lane.sql(OUTBOX);
    lane.publish("outbox");
    let hint = refused(&lane, &[], &["does not exist", "never created", "lost", &lane.name]);
    let setup = format!("walrelay setup --apply --slot {}", lane.name);
    assert!(hint.matches(&setup).count() == 2 && hint.contains("Lost"), "{hint}");
    lane.make_slot();
    let mut relay = lane.streaming(&[]);
    // Lost under way: never made again behind anybody's back.
    let sql = format!("SELECT pg_drop_replication_slot('{}')", lane.name);
    let terminate = "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = $1";
    let mut client = lane.connect();
    wait_until(LONG, "the slot to go", || {
        client.execute(terminate, &[&lane.name])?;
        Ok(client.batch_execute(&sql).is_ok())
    })
    .unwrap();
    let hint = refused_by(&mut relay, &["does not exist"]);
    assert!(hint.contains("it was there before") && hint.contains(&setup), "{hint}");
}

#[test]
fn a_slot_of_another_database_is_named_before_any_waiting() {
    let (lane, other) = (Lane::debezium(), Lane::debezium());
    let _busy = other.streaming(&[]);
    let slot = ["--slot", other.name.as_str()];
    let hint = refused(&lane, &slot, &[&other.name, &lane.name, "belongs to database", "cluster-wide"]);
    assert!(hint.contains(&format!("/{}", other.name)), "{hint}");
}

#[test]
fn a_slot_of_another_kind_is_refused() {
    let lane = Lane::debezium();
    let [physical, two_phase, decoding, passing] = ["physical", "two_phase", "decoding", "passing"].map(fresh);
    lane.sql(&format!(
        "SELECT pg_create_physical_replication_slot('{physical}');
         SELECT pg_create_logical_replication_slot('{two_phase}', 'pgoutput', twophase => true);
         SELECT pg_create_logical_replication_slot('{decoding}', 'test_decoding')"
    ));
    let mut holder = lane.connect();
    holder
        .batch_execute(&format!(
            "SELECT pg_create_logical_replication_slot('{passing}', 'pgoutput', temporary => true)"
        ))
        .unwrap();
    let kinds = [
        (&physical, "a physical slot"),
        (&two_phase, "two_phase"),
        (&decoding, "of plugin test_decoding"),
        (&passing, "temporary"),
    ];
    for (slot, words) in kinds {
        let hint = refused(&lane, &["--slot", slot], &[slot, words]);
        let own = format!("{slot}_relay");
        assert!(hint.contains(&format!("walrelay setup --apply --slot {own}")), "{hint}");
    }
    for slot in [physical, two_phase, decoding] {
        lane.drop_slot(&slot);
    }
}

#[test]
fn wal_level_is_fixed_by_the_hint_and_an_invalidated_slot_is_a_loud_stop() {
    let options = postgres::Options {
        settings: [
            ("wal_level", "replica"),
            ("max_wal_size", "32MB"),
            ("min_wal_size", "32MB"),
            ("wal_keep_size", "0"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .to_vec(),
        ..postgres::Options::default()
    };
    let mut server = Postgres::start(&options).unwrap();
    let lane = Lane::on(&server, shared_kafka().unwrap());
    lane.sql(OUTBOX);
    lane.publish("outbox");
    let fixed = refused(&lane, &[], &["wal_level is replica", "logical"]);
    lane.sql(fixed.split_inclusive(';').next().unwrap());
    server.restart(Mode::Fast).unwrap();
    lane.make_slot();
    assert_flows(&lane, &[]);
    // A slot that falls behind what the server may keep.
    lane.sql("CREATE TABLE busy (text text); INSERT INTO outbox VALUES ('lost', 'flows', 'k', 't', '1')");
    lane.sql("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'");
    lane.sql("SELECT pg_reload_conf()");
    let mut client = lane.connect();
    let sql = "SELECT wal_status = 'lost' FROM pg_replication_slots WHERE slot_name = $1";
    wait_until(LONG, "the slot to be lost", || {
        client.batch_execute("INSERT INTO busy SELECT repeat(md5(n::text), 30) FROM generate_series(1, 20000) AS n")?;
        client.batch_execute("SELECT pg_switch_wal()")?;
        client.batch_execute("CHECKPOINT")?;
        Ok(client.query_one(sql, &[&lane.name])?.get(0))
    })
    .unwrap();
    let hint = refused(&lane, &[], &[&lane.name, "invalidated", "can no longer be read"]);
    assert!(hint.contains(&format!("walrelay teardown --slot {}", lane.name)), "{hint}");
}

fn another_cluster() -> Postgres {
    Postgres::start(&postgres::Options { another_cluster: true, ..postgres::Options::default() }).unwrap()
}

#[test]
fn another_cluster_behind_the_same_address_is_a_loud_stop() {
    let (one, other) = (shared_postgres().unwrap(), another_cluster());
    let lane = Lane::debezium();
    let tap = Tap::start(format!("127.0.0.1:{}", one.port())).unwrap();
    let source = format!("postgres://postgres@{}/{}", tap.address(), lane.name);
    let mut relay = lane.streaming(&["--source", &source]);
    lane.sql("INSERT INTO outbox VALUES ('1', 'order', 'k', 't', '1')");
    lane.wait_confirmed();
    other.create_database(&lane.name).unwrap();
    tap.set_target(format!("127.0.0.1:{}", other.port()));
    tap.cut();
    let hint = refused_by(&mut relay, &["another cluster", "system identifier"]);
    assert!(hint.contains("restart walrelay"), "{hint}");
}

#[test]
fn a_database_that_does_not_exist_is_named() {
    let lane = Lane::debezium();
    let source = lane.source.replace(&lane.name, "nowhere");
    let hint = refused(&lane, &["--source", &source], &["\"nowhere\"", "3D000"]);
    assert!(hint.contains("--source"), "{hint}");
}

#[test]
fn a_role_that_may_not_replicate_may_by_the_hint() {
    let lane = Lane::debezium();
    let role = format!("{} \"Role\"", lane.name);
    lane.sql(&format!("CREATE ROLE {} LOGIN", quoted(&role)));
    let encoded = role.replace(' ', "%20").replace('"', "%22");
    let source = lane.source.replace("postgres@", &format!("{encoded}@"));
    let more = ["--source", source.as_str()];
    let hint = refused(&lane, &more, &["42501"]);
    let sql = hint.split_inclusive(';').next().unwrap();
    lane.sql(&sql[sql.find("ALTER").unwrap()..].replace('…', &quoted(&role)));
    assert_flows(&lane, &more);
    lane.sql(&format!("DROP ROLE {}", quoted(&role)));
}

#[test]
fn a_server_without_free_slots_is_reported_and_an_occupied_walsender_is_waited_for() {
    let options = postgres::Options {
        settings: [("max_wal_senders", "1"), ("max_replication_slots", "2")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .to_vec(),
        ..postgres::Options::default()
    };
    let server = Postgres::start(&options).unwrap();
    let lane = Lane::on(&server, shared_kafka().unwrap()).furnish(OUTBOX, "outbox");
    let mut first = lane.streaming(&[]);
    let mut second = lane.relay(&[]);
    wait_log(&second, "Postgres connection failed; retrying");
    assert_eq!(first.terminate(LONG).unwrap().code, 0);
    second.wait_streaming(LONG).unwrap();
    assert_eq!(second.terminate(LONG).unwrap().code, 0);
    lane.sql("SELECT pg_create_physical_replication_slot('full')");
    let hint = refused(&lane, &["--dry-run"], &["53400"]);
    assert!(hint.contains("max_replication_slots"), "{hint}");
}

#[test]
fn rows_of_a_publication_that_is_gone_are_not_passed_over() {
    let lane = Lane::debezium();
    lane.sql("INSERT INTO outbox VALUES ('1', 'order', 'k', 't', '1')");
    let mut relay = lane.streaming(&[]);
    lane.wait_confirmed();
    lane.sql(&format!("DROP PUBLICATION {}", lane.name));
    lane.sql("INSERT INTO outbox VALUES ('2', 'order', 'k', 't', '1')");
    let (code, log) = ended(&mut relay);
    assert_eq!(code, 2, "{log}");
    assert!(log.contains(&lane.name) && log.contains("does not exist"), "{log}");
    assert_eq!(ids(&lane.records_now("order")), ["1"]);
    assert!(hint(&log).contains("CREATE PUBLICATION"), "{log}");
}

#[test]
fn a_publication_made_after_the_slot_is_reported_with_what_fixes_it() {
    let lane = Lane::empty();
    lane.sql(OUTBOX);
    lane.make_slot();
    lane.sql("INSERT INTO outbox VALUES ('1', 'order', 'k', 't', '1')");
    lane.publish("outbox");
    let hint = refused(&lane, &[], &["publication", &lane.name, "created after the position"]);
    assert!(hint.contains(&format!("walrelay setup --apply --slot {}", lane.name)), "{hint}");
    lane.drop_slot(&lane.name);
    lane.make_slot();
    assert_flows(&lane, &[]);
}

#[test]
fn a_pooler_that_passes_no_replication_is_reported_with_the_way_past_it() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            // As PgBouncer before 1.23 answers the start-up packet.
            assert!(stream.read(&mut [0; 1024]).unwrap() > 0);
            let body = b"SFATAL\0C08P01\0Munsupported startup parameter: replication\0\0";
            let length = u32::try_from(body.len() + 4).unwrap().to_be_bytes();
            stream.write_all(&[&b"E"[..], &length, body].concat()).unwrap();
        }
    });
    let mut arguments = Lane::debezium().arguments(&[]);
    arguments[2] = format!("postgres://u@127.0.0.1:{port}/d?sslmode=disable");
    let mut relay = Relay::start(&binary(), &arguments, &[] as &[(&str, &str)]).unwrap();
    wait_log(&relay, "use the direct port: --source");
    assert_eq!(relay.exited().unwrap(), None, "{}", relay.log());
}
