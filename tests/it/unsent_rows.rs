//! Rows that Postgres cannot send.

use walrelay_dev::process::wait_until;

use crate::lane::{LONG, Lane, wait_log};

/// A type whose values cannot be written as text: the output function reads them as something else, and fails.
const TABLE: &str = "CREATE TYPE broken;
    CREATE FUNCTION broken_in(cstring) RETURNS broken AS 'textin' LANGUAGE internal IMMUTABLE STRICT;
    CREATE FUNCTION broken_out(broken) RETURNS cstring AS 'pg_ndistinct_out' LANGUAGE internal IMMUTABLE STRICT;
    CREATE TYPE broken (INPUT = broken_in, OUTPUT = broken_out);
    CREATE TABLE outbox (id int, aggregatetype text, aggregateid text, type text, payload text, more broken)";

#[test]
fn a_row_that_postgres_fails_to_send_again_and_again_is_named_until_it_is_passed() {
    let lane = Lane::with(TABLE, "outbox");
    let relay = lane.streaming(&[]);
    lane.sql("INSERT INTO outbox VALUES (1, 'order', 'k', 't', 'p')");
    assert_eq!(lane.ids("order"), ["1"], "{}", relay.log());
    lane.sql("INSERT INTO outbox VALUES (2, 'order', 'k', 't', 'p', NULL), (3, 'order', 'k', 't', 'p', 'x')");
    wait_log(&relay, "Postgres cannot send the row of public.outbox at ");
    let mut ready = String::new();
    let named = wait_until(LONG, "the row on /readyz", || {
        let answer = relay.get("/readyz")?;
        ready = answer.body;
        Ok(answer.status == 503 && ready.contains("Postgres cannot send the row") && ready.contains("MVNDistinct"))
    });
    named.unwrap_or_else(|error| panic!("{error}: {ready}: {}", relay.log()));
    // The page's way out.
    let (_, rest) = ready.split_once("that commits at ").unwrap();
    let commits = rest.split(':').next().unwrap();
    let sql = format!("SELECT pg_replication_slot_advance('{}', '{commits}'::pg_lsn + 1)", lane.name);
    wait_until(LONG, "the slot to be free", || Ok(lane.connect().batch_execute(&sql).is_ok())).unwrap();
    lane.sql("INSERT INTO outbox VALUES (4, 'order', 'k', 't', 'p')");
    lane.wait_confirmed();
    let ids = lane.ids("order");
    assert!(ids.first().is_some_and(|id| id == "1") && ids.last().is_some_and(|id| id == "4"), "{ids:?}");
    wait_until(LONG, "the relay to be ready", || Ok(relay.get("/readyz")?.status == 200)).unwrap();
}
