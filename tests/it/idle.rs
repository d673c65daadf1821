//! An outbox without rows holds nothing back.

use std::time::Duration;

use postgres::Client;
use walrelay_dev::kafka::shared_kafka;
use walrelay_dev::postgres::Mode;
use walrelay_dev::process::wait_until;

use crate::lane::{LONG, Lane, OUTBOX};
use crate::load::Load;
use crate::own;

/// Longer than any answer takes, shorter than the half of `wal_sender_timeout` at which a server asks by itself.
const SOON: Duration = Duration::from_secs(25);

fn lag(client: &mut Client, slot: &str) -> i64 {
    let sql =
        "SELECT (pg_current_wal_lsn() - confirmed_flush_lsn)::bigint FROM pg_replication_slots WHERE slot_name = $1";
    client.query_one(sql, &[&slot]).unwrap().get(0)
}

#[test]
#[ignore = "slow"]
fn an_idle_outbox_holds_back_no_wal_and_lets_postgres_stop() {
    let mut postgres = own::postgres();
    let lane = Lane::on(&postgres, shared_kafka().unwrap())
        .furnish(&format!("{OUTBOX}; CREATE TABLE busy (n int, text text)"), "outbox");
    let mut relay = lane.streaming(&[]);
    let mut client = lane.connect();
    let start: String = client.query_one("SELECT pg_current_wal_lsn()::text", &[]).unwrap().get(0);
    let mut most = 0;
    for _ in 0..60 {
        client
            .batch_execute("INSERT INTO busy SELECT n, repeat(md5(n::text), 30) FROM generate_series(1, 1000) AS n")
            .unwrap();
        // A megabyte at a time, so that what is read of the lag is the relay's and not the disk's.
        wait_until(SOON, "the lag to be small", || {
            let now = lag(&mut client, &lane.name);
            most = most.max(now);
            Ok(now < 1_000_000)
        })
        .unwrap_or_else(|error| panic!("{error}: {most} bytes at most\n{}", relay.log()));
    }
    let written: i64 =
        client.query_one("SELECT (pg_current_wal_lsn() - $1::text::pg_lsn)::bigint", &[&start]).unwrap().get(0);
    assert!(written > 60_000_000, "{written}");
    println!("{written} bytes of WAL, lag at most {most}");
    // What the stop shall not wait for the disk with.
    client.batch_execute("CHECKPOINT").unwrap();
    wait_until(SOON, "no lag", || Ok(lag(&mut client, &lane.name) < 100_000)).unwrap();
    drop(client);
    let took = postgres.stop_within(Mode::Fast, SOON).unwrap();
    println!("stopped in {took:?}");
    postgres.start_again().unwrap();
    relay.wait_streaming(LONG).unwrap();
    lane.sql("INSERT INTO outbox VALUES ('1', 'order', 'k', 't', '1')");
    assert_eq!(lane.ids("order"), ["1"]);
}

#[test]
fn changes_that_publish_nothing_release_wal_too() {
    let lane = Lane::empty();
    lane.sql(&format!("{OUTBOX}; CREATE TABLE other (LIKE outbox)"));
    lane.sql(&format!("CREATE PUBLICATION {} FOR TABLE outbox, other", lane.name));
    lane.make_slot();
    lane.sql("INSERT INTO outbox VALUES ('1', 'order', 'k', 't', '1')");
    let _relay = lane.streaming(&["--table=outbox"]);
    lane.sql("UPDATE outbox SET type = 'u'; DELETE FROM outbox; TRUNCATE outbox; INSERT INTO other VALUES ('2', 'o', 'k', 't', '1')");
    assert_eq!(lane.ids("order"), ["1"]);
}

#[test]
fn the_confirmed_position_advances_under_load_and_never_goes_back() {
    let load = Load::shared();
    let relay = load.lane.streaming(&[]);
    let shop = load.shop();
    let mut client = load.connect();
    let sql = "SELECT (confirmed_flush_lsn - '0/0')::bigint FROM pg_replication_slots WHERE slot_name = $1";
    let mut seen: i64 = client.query_one(sql, &[&load.lane.name]).unwrap().get(0);
    for _ in 0..20 {
        wait_until(LONG, "the position to advance", || {
            let now: i64 = client.query_one(sql, &[&load.lane.name])?.get(0);
            assert!(now >= seen && now > 0, "{now} after {seen}");
            Ok(std::mem::replace(&mut seen, now) < now)
        })
        .unwrap_or_else(|error| panic!("{error}: {}", relay.log()));
    }
    shop.close().unwrap();
    load.assert_exact(&relay);
}
