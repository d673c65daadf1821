//! Rows that `prune` keeps: those that no slot has carried, and those that would be nowhere else.

use walrelay_dev::postgres::{default_major, shared_postgres};
use walrelay_dev::tap::Tap;

use crate::lane::{LONG, Lane, ended, hint, wait_events, wait_log};
use crate::prune::{AGED, left, noted, old, proven, pruned, set_up};
use crate::prune_partitions::by_id;

/// A published table itself cannot be made so, but one of a publication for all tables can, and a partition.
#[test]
fn rows_that_were_inserted_while_the_table_was_unlogged_stay() {
    let lane = Lane::empty();
    lane.sql(AGED);
    lane.sql(&format!("CREATE PUBLICATION {} FOR ALL TABLES WITH (publish = 'insert')", lane.name));
    lane.make_slot();
    set_up(&lane, &[]);
    noted(&lane, &["--table", "outbox"]);
    lane.sql("ALTER TABLE outbox SET UNLOGGED");
    lane.sql(&old(&["never"]));
    lane.sql("ALTER TABLE outbox SET LOGGED");
    // What is changed of it later does not hide that.
    lane.sql("GRANT SELECT ON outbox TO PUBLIC");
    lane.sql("VACUUM FULL outbox");
    lane.sql(&old(&["after"]));
    let _relay = lane.streaming(&["--table", "outbox"]);
    assert_eq!(lane.ids("order"), ["after"]);
    let (code, text) = pruned(&lane, &["--older-than", "1h", "--table", "outbox"]);
    assert!(code == 2 && text.contains("public.outbox: nothing says that all of its rows are published"), "{text}");
    assert_eq!(left(&lane), ["after", "never"]);
}

#[test]
fn partitions_that_are_unlogged_stay() {
    let lane = Lane::empty();
    lane.sql(&format!("{} PARTITION BY LIST (id)", AGED.replace("text PRIMARY KEY", "text")));
    lane.sql("CREATE TABLE outbox_a PARTITION OF outbox FOR VALUES IN ('a')");
    lane.sql("CREATE TABLE outbox_b PARTITION OF outbox DEFAULT");
    lane.publish("outbox");
    lane.make_slot();
    let lane = proven(lane);
    let _relay = lane.streaming(&["--table", "outbox"]);
    lane.sql("ALTER TABLE outbox_a SET UNLOGGED");
    lane.sql(&old(&["a", "b"]));
    let (code, text) = pruned(&lane, &["--older-than", "1h"]);
    assert!(code == 2 && text.contains("partition public.outbox_a: the publication does not send all"), "{text}");
    lane.sql("ALTER TABLE outbox_a SET LOGGED");
    let (code, text) = pruned(&lane, &["--older-than", "1h"]);
    assert!(code == 2 && text.contains("partition public.outbox_a: nothing says"), "{text}");
    assert_eq!(left(&lane), ["a", "b"]);
}

#[test]
fn rows_that_the_relay_may_have_left_out_since_a_subscription_applied_them_stay() {
    if default_major() < 16 {
        return;
    }
    let lane = Lane::with(AGED, "outbox");
    set_up(&lane, &[]);
    noted(&lane, &["--origin=local"]);
    // Applied, as a subscription does it.
    let mut client = lane.connect();
    client.batch_execute(&format!("SELECT pg_replication_origin_create('{}')", lane.name)).unwrap();
    client.batch_execute(&format!("SELECT pg_replication_origin_session_setup('{}')", lane.name)).unwrap();
    client.batch_execute(&old(&["applied"])).unwrap();
    lane.sql(&old(&["own"]));
    let mut relay = lane.streaming(&["--origin=local"]);
    lane.wait_confirmed();
    let (code, text) = pruned(&lane, &["--older-than", "1h"]);
    assert!(code == 2 && text.contains("--origin local"), "{code} {text}");
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
    // What it left out before is in no topic, though it reads all from now on.
    let _relay = lane.streaming(&[]);
    let (code, text) = pruned(&lane, &["--older-than", "1h"]);
    assert!(code == 2 && text.contains("column or origin: rows from before may be in no topic"), "{code} {text}");
    assert_eq!((left(&lane).len(), lane.ids("order")), (2, vec!["own".to_owned()]));
    client.batch_execute("SELECT pg_replication_origin_session_reset()").unwrap();
    client.batch_execute(&format!("SELECT pg_replication_origin_drop('{}')", lane.name)).unwrap();
}

/// It would be gone.
#[test]
fn a_row_that_the_archive_does_not_let_in_stays_with_its_chunk() {
    let lane = proven(Lane::with(AGED, "outbox"));
    lane.sql(&old(&["1", "2", "3", "4", "5"]));
    lane.sql(
        "CREATE TABLE kept (LIKE outbox);
         CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
           $$ BEGIN IF NEW.id = '4' THEN RETURN NULL; END IF; RETURN NEW; END $$;
         CREATE TRIGGER guard BEFORE INSERT ON kept FOR EACH ROW EXECUTE FUNCTION refuse()",
    );
    let _relay = lane.streaming(&[]);
    let (code, text) = pruned(&lane, &["--older-than", "1h", "--archive-to", "kept", "--chunk", "2"]);
    assert_eq!(left(&lane), ["3", "4", "5"], "{text}");
    assert!(code == 2 && text.contains("1 of 2 rows") && hint(&text).contains("guard on kept"), "{text}");
    let kept = lane.connect().query("SELECT id FROM kept ORDER BY id", &[]).unwrap();
    assert_eq!(kept.iter().map(|row| row.get(0)).collect::<Vec<String>>(), ["1", "2"]);
}

/// The relay shows its text, and the server writes the bytes of it as escapes.
#[test]
fn a_row_that_was_skipped_stays_though_its_id_is_of_bytes_beyond_ascii() {
    let lane = proven(Lane::with(&AGED.replace("id text", "id bytea"), "outbox"));
    let _relay = lane.streaming(&["--on-bad-row=skip"]);
    let long = "ü".repeat(70);
    for (id, route) in [("1", "order"), ("zä", "no topic"), (&long, "no topic"), ("za", "order")] {
        lane.sql(&format!(
            "INSERT INTO outbox (id, aggregatetype, aggregateid, payload) VALUES (convert_to('{id}', 'UTF8'), '{route}', 'k', 'p')"
        ));
    }
    lane.wait_confirmed();
    let (code, text) = pruned(&lane, &["--older-than", "1h"]);
    assert!(code == 0 && text.contains("2 rows deleted") && text.contains("2 rows that the relay skipped"), "{text}");
    let rows = lane.connect().query("SELECT convert_from(id, 'UTF8') FROM outbox ORDER BY id", &[]).unwrap();
    assert_eq!(rows.iter().map(|row| row.get(0)).collect::<Vec<String>>(), ["zä".to_owned(), long]);
}

/// Another column has taken the id's role since the relay noted which one has it.
#[test]
fn a_row_that_was_skipped_by_another_id_than_the_noted_one_stays() {
    let table = AGED.replace("id text PRIMARY KEY", "event_id text PRIMARY KEY");
    let lane = proven(Lane::with(&table, "outbox"));
    let _relay = lane.streaming(&["--on-bad-row=skip"]);
    lane.sql(
        "ALTER TABLE outbox ADD id text;
         INSERT INTO outbox (event_id, id, aggregatetype, aggregateid, payload)
         VALUES ('event', 'other', 'no topic', 'k', 'p'), ('next', 'order', 'order', 'k', 'p')",
    );
    lane.wait_confirmed();
    let (code, text) = pruned(&lane, &["--older-than", "1h"]);
    assert!(code == 2 && text.contains("has skipped rows that cannot be identified"), "{code} {text}");
    let rows = lane.connect().query("SELECT FROM outbox", &[]).unwrap();
    assert_eq!((rows.len(), lane.ids("order")), (2, vec!["order".to_owned()]));
}

/// Nothing of it is in the WAL from before it was logged.
#[test]
fn a_later_partition_that_was_unlogged_stays() {
    let lane = by_id();
    lane.sql("CREATE UNLOGGED TABLE outbox_a PARTITION OF outbox FOR VALUES IN ('a')");
    lane.sql(&old(&["a"]));
    lane.sql("ALTER TABLE outbox_a SET LOGGED");
    let _relay = lane.streaming(&["--table", "outbox"]);
    lane.wait_confirmed();
    let (code, text) = pruned(&lane, &["--older-than", "1h"]);
    assert!(code == 2 && text.contains("partition public.outbox_a: nothing says"), "{code} {text}");
    assert_eq!((left(&lane), lane.records_now("order").len()), (vec!["a".to_owned()], 0));
}

/// The relay that saw the slot before has ended, and the next one finds nothing against the slot: somebody has looked into it.
#[test]
fn rows_stay_once_a_relay_has_met_a_slot_that_may_be_another_one() {
    let lane = proven(Lane::with(AGED, "outbox"));
    let tap = Tap::start(format!("127.0.0.1:{}", shared_postgres().unwrap().port())).unwrap();
    let source = format!("postgres://postgres@{}/{}", tap.address(), lane.name);
    let mut relay = lane.streaming(&["--source", &source]);
    lane.sql(&old(&["before"]));
    wait_events(&relay, 1);
    lane.wait_confirmed();
    tap.refuse(true);
    tap.cut();
    wait_log(&relay, "Postgres connection failed; retrying");
    lane.drop_slot(&lane.name);
    lane.sql(&old(&["lost"]));
    lane.make_slot();
    lane.sql(&old(&["after"]));
    lane.sql(&format!(
        "SELECT count(*) FROM pg_logical_slot_peek_binary_changes('{0}', NULL, NULL, 'proto_version', '1', 'publication_names', '{0}')",
        lane.name
    ));
    tap.flow();
    let (code, log) = ended(&mut relay);
    assert!(code == 2 && log.contains("nothing proves that it is the slot that was read"), "{log}");
    assert!(hint(&log).contains("--after-loss"), "{log}");
    let _relay = lane.streaming(&["--accept-slot-at", &lane.confirmed()]);
    lane.wait_confirmed();
    let (code, text) = pruned(&lane, &["--older-than", "1h"]);
    assert!(code == 2 && text.contains("has not read it all the time"), "{code} {text}");
    assert_eq!((left(&lane).len(), lane.ids("order").contains(&"lost".to_owned())), (3, false));
}
