//! Locks on published tables, as ALTER TABLE and LOCK TABLE hold them: from version 16 on they keep the server from listing the
//! publication's tables. They are waited for, and named.

use postgres::Client;
use walrelay_dev::postgres::default_major;
use walrelay_dev::process::wait_until;
use walrelay_dev::relay::Relay;

use crate::check;
use crate::lane::{LONG, Lane, OUTBOX, wait_log};

/// The version from which on a lock keeps the publication from being listed.
const LISTING_LOCKS: u32 = 16;

/// A lane whose sessions wait for a lock as long as `lock_timeout` says, with another table in the publication.
fn lane(lock_timeout: &str) -> Lane {
    let lane = Lane::with(&format!("{OUTBOX}; CREATE TABLE other (id int)"), "outbox, other");
    lane.sql(&format!("ALTER DATABASE {} SET lock_timeout = '{lock_timeout}'", lane.name));
    lane
}

/// Keeps a table locked until it is dropped; and the server process that does.
fn lock(lane: &Lane, table: &str) -> (Client, i32) {
    let mut client = lane.connect();
    client.batch_execute(&format!("BEGIN; LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")).unwrap();
    let pid = client.query_one("SELECT pg_backend_pid()", &[]).unwrap().get(0);
    (client, pid)
}

fn disconnect(lane: &Lane) {
    let sql = format!(
        "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '{}' AND active",
        lane.name
    );
    lane.sql(&sql);
}

/// `/readyz` names the table and who holds it.
#[track_caller]
fn wait_named(relay: &mut Relay, words: &[&str]) {
    let named = || Ok(relay.get("/readyz").is_ok_and(|answer| words.iter().all(|word| answer.body.contains(word))));
    wait_until(LONG, "/readyz to name the lock", named).unwrap_or_else(|error| {
        panic!("{error}: {:?} {}", relay.get("/readyz").map(|answer| answer.body), relay.log())
    });
    assert_eq!(relay.exited().unwrap(), None, "{}", relay.log());
}

#[test]
#[ignore = "slow"]
fn a_lock_on_a_published_table_is_waited_out_and_named_at_the_start() {
    for (lock_timeout, table) in [("300ms", "other"), ("0", "outbox")] {
        let lane = lane(lock_timeout);
        let (client, pid) = lock(&lane, table);
        let mut relay = lane.relay(&["--table", "outbox"]);
        if default_major() >= LISTING_LOCKS {
            let named = format!("table public.{table} is locked by process {pid}");
            wait_named(&mut relay, &[&named]);
            let mut arguments = lane.arguments(&["--table", "outbox", "--json"]);
            "check".clone_into(&mut arguments[0]);
            let checked = check::checked(&arguments);
            let fix = checked.level("lock", "fail", &[&named]);
            assert_eq!(fix, format!("SELECT pg_terminate_backend({pid});"));
        }
        drop(client);
        relay.wait_streaming(LONG).unwrap();
        lane.sql("INSERT INTO outbox VALUES ('1', 'order', 'k', 't', '1')");
        assert_eq!(lane.ids("order"), ["1"]);
    }
}

#[test]
fn a_table_that_waits_for_its_own_lock_names_the_session_that_it_waits_for() {
    let lane = lane("0");
    let mut reader = lane.connect();
    reader.batch_execute("BEGIN; SELECT count(*) FROM other").unwrap();
    let pid: i32 = reader.query_one("SELECT pg_backend_pid()", &[]).unwrap().get(0);
    let mut migration = lane.connect();
    let migration = std::thread::spawn(move || migration.batch_execute("ALTER TABLE other ADD COLUMN name text"));
    let waits = "SELECT count(*) > 0 FROM pg_locks WHERE NOT granted AND mode = 'AccessExclusiveLock' AND relation = 'other'::regclass";
    let mut client = lane.connect();
    wait_until(LONG, "the migration to wait", || Ok(client.query_one(waits, &[])?.get(0))).unwrap();
    let mut relay = lane.relay(&["--table", "outbox"]);
    if default_major() >= LISTING_LOCKS {
        wait_named(&mut relay, &["table public.other is locked by process", &pid.to_string()]);
    }
    drop(reader);
    migration.join().unwrap().unwrap();
    relay.wait_streaming(LONG).unwrap();
}

#[test]
fn a_reconnect_under_a_lock_reads_the_tables_of_the_last_connection() {
    let lane = lane("300ms");
    let relay = lane.streaming(&["--table", "outbox"]);
    let (_client, _) = lock(&lane, "other");
    disconnect(&lane);
    lane.sql("INSERT INTO outbox VALUES ('1', 'order', 'k', 't', '1')");
    assert_eq!(lane.ids("order"), ["1"]);
    if default_major() >= LISTING_LOCKS {
        wait_log(&relay, "reading those of the last connection");
    }
}

#[test]
fn a_partition_that_is_new_under_a_lock_is_waited_for_and_published() {
    let lane = Lane::with(
        "CREATE TABLE outbox (id text, aggregatetype text, aggregateid text, type text, payload jsonb) PARTITION BY LIST (id);
         CREATE TABLE one PARTITION OF outbox FOR VALUES IN ('1'); CREATE TABLE other (id int)",
        "outbox, other",
    );
    let mut relay = lane.streaming(&["--table", "outbox"]);
    let (client, pid) = lock(&lane, "other");
    lane.sql("CREATE TABLE two PARTITION OF outbox FOR VALUES IN ('2')");
    lane.sql("INSERT INTO outbox VALUES ('1', 'order', 'k', 't', '1'), ('2', 'order', 'k', 't', '2')");
    if default_major() >= LISTING_LOCKS {
        wait_named(&mut relay, &[&format!("table public.other is locked by process {pid}")]);
    }
    drop(client);
    // The row before the new partition's may be in flight when the relay connects again.
    let mut ids = lane.ids("order");
    ids.dedup();
    assert_eq!(ids, ["1", "2"]);
}
