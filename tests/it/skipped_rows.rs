//! Rows that are skipped in great numbers, and their notes for `prune`.

use walrelay_dev::postgres::{Mode, default_major};
use walrelay_dev::process::wait_until;

use crate::lane::{LONG, Lane, wait_log};
use crate::own;

const TABLE: &str = "CREATE TABLE outbox (id int, aggregatetype text, aggregateid text, type text, payload text)";

/// Of each ten rows, nine have no topic.
const NINE_IN_TEN_ARE_BAD: &str = "INSERT INTO outbox SELECT n, CASE WHEN n % 10 = 0 THEN 'order' END, 'k', 't', 'p' FROM generate_series(1, 1000) AS n";

/// The notes in the database.
fn notes(lane: &Lane) -> Vec<String> {
    let sql = "SELECT description FROM pg_description WHERE description LIKE 'walrelay passed over: %'";
    lane.connect().query(sql, &[]).unwrap().iter().map(|row| row.get(0)).collect()
}

#[test]
fn a_transaction_of_which_nine_rows_in_ten_are_skipped_is_confirmed_and_the_slot_never_in_doubt() {
    let lane = Lane::with(TABLE, "outbox");
    let relay = lane.streaming(&["--on-bad-row", "skip"]);
    lane.sql(NINE_IN_TEN_ARE_BAD);
    let expected: Vec<String> = (1..=100).map(|n| (n * 10).to_string()).collect();
    assert_eq!(lane.ids("order"), expected, "{}", relay.log());
    let notes = notes(&lane);
    assert!(matches!(notes.as_slice(), [note] if note.contains(r#""others":true"#)), "{notes:?}");
    let reconnects = relay.metric("walrelay_reconnects_total{peer=\"postgres\"}").unwrap();
    assert!(reconnects < 1.0, "{}", relay.log());
    assert!(!relay.log().contains("holds the slot"), "{}", relay.log());
}

#[test]
fn a_note_that_was_taken_away_while_the_relay_runs_is_written_again() {
    let lane = Lane::with(TABLE, "outbox");
    let _relay = lane.streaming(&["--on-bad-row", "skip"]);
    lane.sql(NINE_IN_TEN_ARE_BAD);
    lane.wait_confirmed();
    lane.sql("SELECT lo_unlink(oid) FROM pg_largeobject_metadata");
    lane.sql("INSERT INTO outbox VALUES (2000, NULL, 'k', 't', 'p')");
    lane.wait_confirmed();
    let notes = notes(&lane);
    assert!(matches!(notes.as_slice(), [note] if note.contains(r#"["2000"]"#)), "{notes:?}");
}

/// No standby is named here, so that none is waited for.
#[test]
fn a_slot_that_a_standby_may_take_over_passes_skipped_rows_as_well() {
    if default_major() < 17 {
        return;
    }
    let lane = Lane::empty();
    lane.sql(TABLE);
    lane.publish("outbox");
    lane.sql(&format!("SELECT pg_create_logical_replication_slot('{}', 'pgoutput', false, false, true)", lane.name));
    let relay = lane.streaming(&["--on-bad-row", "skip"]);
    lane.sql(NINE_IN_TEN_ARE_BAD);
    assert_eq!(lane.ids("order").len(), 100, "{}", relay.log());
    assert_eq!(notes(&lane).len(), 1);
}

#[test]
fn a_shutdown_of_postgres_waits_for_no_note() {
    for mode in [Mode::Smart, Mode::Fast] {
        let (mut postgres, kafka) = (own::postgres(), own::kafka());
        let lane = Lane::on(&postgres, &kafka).furnish(TABLE, "outbox");
        let relay = lane.streaming(&["--on-bad-row", "skip"]);
        let mut client = lane.connect();
        for n in 0..500 {
            client.execute("INSERT INTO outbox VALUES ($1, NULL, 'k', 't', 'p')", &[&n]).unwrap();
        }
        client.execute("INSERT INTO outbox VALUES (500, 'order', 'k', 't', 'p')", &[]).unwrap();
        drop(client);
        postgres.stop_within(mode, LONG).unwrap_or_else(|error| panic!("{mode:?}: {error}: {}", relay.log()));
        postgres.start_again().unwrap();
        lane.wait_confirmed();
        assert_eq!(lane.ids("order"), ["500"], "{}", relay.log());
        assert_eq!(notes(&lane).len(), 1);
    }
}

/// By default everybody may make a large object, in whose comment that is written down.
#[test]
fn a_relay_that_may_not_note_what_it_skips_waits_says_so_and_goes_on_once_it_may() {
    let lane = Lane::with(TABLE, "outbox");
    let role = format!("{}_relay", lane.name);
    lane.sql(&format!("CREATE ROLE {role} LOGIN REPLICATION; REVOKE EXECUTE ON FUNCTION lo_create(oid) FROM PUBLIC"));
    let source = lane.source.replace("postgres@", &format!("{role}@"));
    let relay = lane.streaming(&["--source", &source, "--on-bad-row", "skip"]);
    let mut client = lane.connect();
    client
        .batch_execute("BEGIN; INSERT INTO outbox VALUES (1, NULL, 'k', 't', 'p'), (2, 'order', 'k', 't', 'p')")
        .unwrap();
    let before_commit: String = client.query_one("SELECT pg_current_wal_insert_lsn()::text", &[]).unwrap().get(0);
    client.batch_execute("COMMIT").unwrap();
    wait_log(&relay, "skipped rows cannot be noted in Postgres");
    assert!(relay.log().contains("GRANT EXECUTE ON FUNCTION pg_catalog.lo_create(oid) TO"), "{}", relay.log());
    wait_until(LONG, "the reason on /readyz", || {
        let ready = relay.get("/readyz")?;
        Ok(ready.status == 503 && ready.body.contains("skipped rows cannot be noted"))
    })
    .unwrap();
    let sql = "SELECT confirmed_flush_lsn <= $1::text::pg_lsn FROM pg_replication_slots WHERE slot_name = $2";
    assert!(client.query_one(sql, &[&before_commit, &lane.name]).unwrap().get::<_, bool>(0), "{}", relay.log());
    lane.sql(&format!("GRANT EXECUTE ON FUNCTION lo_create(oid) TO {role}"));
    assert_eq!(lane.ids("order"), ["2"], "{}", relay.log());
    wait_until(LONG, "the relay to be ready", || Ok(relay.get("/readyz")?.status == 200)).unwrap();
}
