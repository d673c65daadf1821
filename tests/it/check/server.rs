//! Postgres' settings, what a managed service names in their place, and what stands in between.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};

use serde_json::Value;
use walrelay_dev::kafka::shared_kafka;
use walrelay_dev::postgres::{self, Mode, Postgres, shared_postgres};
use walrelay_dev::process::wait_until;

use super::{GOOD, ROW, check, fixed_by_sql, good};
use crate::lane::{LONG, Lane};

/// A server whose settings each bite, and that Amazon's settings name.
fn badly_set() -> Postgres {
    let settings = [
        ("wal_level", "replica"),
        ("wal_sender_timeout", "0"),
        ("logical_decoding_work_mem", "1MB"),
        ("synchronous_commit", "off"),
        ("max_replication_slots", "1"),
        ("idle_replication_slot_timeout", "2h"),
    ];
    let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
    Postgres::start(&postgres::Options { major: 18, settings, ..postgres::Options::default() }).unwrap()
}

#[test]
#[ignore = "slow"]
fn settings_that_bite_are_fixed_one_by_one() {
    let mut server = badly_set();
    let lane = Lane::on(&server, shared_kafka().unwrap());
    lane.sql(GOOD);
    lane.publish("outbox");
    let fix = check(&lane, &[]).level("wal_level", "fail", &["wal_level is replica"]);
    lane.sql(fix.split(" -- ").next().unwrap());
    server.restart(Mode::Fast).unwrap();
    lane.sql("SELECT pg_create_physical_replication_slot('full')");
    let fix = check(&lane, &[]).level("free_slots", "fail", &["1 of max_replication_slots = 1"]);
    lane.sql(fix.split(" -- ").next().unwrap());
    server.restart(Mode::Fast).unwrap();
    lane.make_slot();
    check(&lane, &[]).level("free_slots", "ok", &[]);
    for (name, words) in [
        ("slot_wal_limit", "unlimited"),
        ("sender_timeout", "is off"),
        ("decoding_memory", "1.0 MiB"),
        ("idle_timeout", "2 h"),
        ("sync_commit", "synchronous_commit is off"),
    ] {
        fixed_by_sql(&lane, &[], name, "warn", &[words]);
    }
    let found = check(&lane, &[]);
    assert_eq!((found.code, &found.report["verdict"]), (0, &Value::from("ok")), "{:#}", found.report);
}

#[test]
#[ignore = "slow"]
fn a_slot_that_nears_its_limit_is_warned_of_and_a_lost_one_fails() {
    let settings = [("max_slot_wal_keep_size", "64MB"), ("max_wal_size", "32MB"), ("min_wal_size", "32MB")];
    let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
    let server = Postgres::start(&postgres::Options { settings, ..postgres::Options::default() }).unwrap();
    let lane = Lane::on(&server, shared_kafka().unwrap()).furnish(GOOD, "outbox");
    lane.sql("CREATE TABLE busy (text text)");
    let mut client = lane.connect();
    let mut fill =
        || client.batch_execute("INSERT INTO busy SELECT repeat(md5(n::text), 60) FROM generate_series(1, 4000) AS n");
    wait_until(LONG, "a slot that holds much", || {
        fill()?;
        Ok(check(&lane, &[]).finding("slot_wal")["level"] == "warn")
    })
    .unwrap();
    let fix = check(&lane, &[]).level("slot_wal", "warn", &["above max_slot_wal_keep_size the slot is lost"]);
    assert!(fix.contains("walrelay run") && fix.contains("max_slot_wal_keep_size"), "{fix}");
    wait_until(LONG, "the slot to be lost", || {
        fill()?;
        lane.sql("CHECKPOINT");
        Ok(check(&lane, &[]).finding("slot")["level"] == "fail")
    })
    .unwrap();
    let fix = check(&lane, &[]).level("slot", "fail", &["has been invalidated"]);
    assert!(fix.contains("walrelay teardown") && fix.contains("walrelay setup --apply"), "{fix}");
}

#[test]
fn a_managed_service_gets_its_own_fix() {
    let server = Postgres::start(&postgres::Options {
        settings: vec![
            ("wal_level".to_owned(), "replica".to_owned()),
            ("rds.logical_replication".to_owned(), "off".to_owned()),
        ],
        ..postgres::Options::default()
    })
    .unwrap();
    let lane = Lane::on(&server, shared_kafka().unwrap());
    lane.sql(GOOD);
    lane.publish("outbox");
    lane.sql("CREATE ROLE rds_replication; CREATE ROLE app LOGIN");
    let source = lane.source.replace("postgres@", "app@");
    let found = check(&lane, &["--source", &source]);
    found.level("service", "ok", &["Amazon RDS"]);
    let fix = found.level("wal_level", "fail", &[]);
    assert!(fix.contains("ParameterName=rds.logical_replication,ParameterValue=1"), "{fix}");
    assert_eq!(found.level("replication", "fail", &[]), "GRANT rds_replication TO \"app\";");
    let fix = found.level("slot_wal_limit", "warn", &[]);
    assert!(fix.starts_with("aws rds modify-db-parameter-group") && fix.contains("ParameterValue=51200,"), "{fix}");
}

/// Servers before 17 do not keep the time since when nobody reads a slot.
#[test]
fn before_17_the_wal_that_the_slot_needs_says_for_how_long_rows_have_waited() {
    let server = Postgres::with(16, &[]).unwrap();
    let lane = Lane::on(&server, shared_kafka().unwrap()).furnish(GOOD, "outbox");
    shared_kafka().unwrap().create_topic(&lane.topic("order"), 1, &[("retention.ms", "86400000")]).unwrap();
    lane.sql(ROW);
    check(&lane, &["--timestamp=commit"]).level("retention", "ok", &["24 h"]);
    // The file is not written any more, and was written days ago.
    lane.sql("SELECT pg_switch_wal()");
    lane.sql(
        "DO $$ BEGIN EXECUTE format('COPY (SELECT 1) TO PROGRAM %L', 'cat > /dev/null; touch -d \"3 days ago\" pg_wal/'
           || (SELECT pg_walfile_name(confirmed_flush_lsn) FROM pg_replication_slots)); END $$",
    );
    check(&lane, &["--timestamp=commit"]).level("retention", "warn", &["rows may have waited for 3 d"]);
    // A slot that has moved on needs that file no more.
    lane.sql("SELECT pg_replication_slot_advance(slot_name, pg_current_wal_lsn()) FROM pg_replication_slots");
    check(&lane, &["--timestamp=commit"]).level("retention", "ok", &["24 h"]);
}

#[test]
fn without_a_walsender_beside_the_stream_the_other_way_to_ask_for_the_holder_is_named() {
    let settings = vec![("max_wal_senders".to_owned(), "1".to_owned())];
    let mut server = Postgres::start(&postgres::Options { settings, ..postgres::Options::default() }).unwrap();
    let lane = Lane::on(&server, shared_kafka().unwrap()).furnish(GOOD, "outbox");
    let fix = check(&lane, &[]).level("slot_holder", "warn", &["53300", "over an ordinary connection"]);
    lane.sql(&fix.split(" -- ").next().unwrap().replace("'11'", "'2'"));
    server.restart(Mode::Fast).unwrap();
    check(&lane, &[]).level("slot_holder", "ok", &[]);
    // The stream is there: nothing has to stand in for it. Besides, a relay that begins asks by itself.
    let _relay = lane.streaming(&[]);
    let sql = "SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'walsender'";
    let mut client = lane.connect();
    wait_until(LONG, "a walsender to be free", || Ok(client.query_one(sql, &[])?.get(0))).unwrap();
    check(&lane, &[]).level("slot_holder", "ok", &[]);
}

/// Stands in front of a server and does what PgBouncer before 1.23 does: ordinary sessions pass, replication is refused at start-up.
fn pgbouncer(target: u16) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let (mut client, mut server) = (client.unwrap(), TcpStream::connect(("127.0.0.1", target)).unwrap());
            std::thread::spawn(move || {
                let mut start = vec![0; 4096];
                let length = client.read(&mut start).unwrap();
                start.truncate(length);
                if start.windows(11).any(|word| word == b"replication") {
                    let body = b"SFATAL\0VFATAL\0C08P01\0Munsupported startup parameter: replication\0\0";
                    let length = u32::try_from(body.len() + 4).unwrap().to_be_bytes();
                    return drop(client.write_all(&[&b"E"[..], &length, body].concat()));
                }
                server.write_all(&start).unwrap();
                let (mut from, mut to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                std::thread::spawn(move || drop(std::io::copy(&mut from, &mut to)));
                drop(std::io::copy(&mut server, &mut client));
                drop(client.shutdown(std::net::Shutdown::Both));
            });
        }
    });
    port
}

#[test]
fn a_pooler_in_between_is_reported_and_the_direct_port_fixes_it() {
    let lane = good();
    let direct = shared_postgres().unwrap().port();
    let pooled = lane.source.replace(&format!(":{direct}/"), &format!(":{}/", pgbouncer(direct)));
    let found = check(&lane, &["--source", &format!("{pooled}?sslmode=disable")]);
    assert_eq!(found.code, 2);
    let fix = found.level("replication", "fail", &["this is PgBouncer"]);
    assert!(fix.contains("use the direct port"), "{fix}");
    found.level("slot", "ok", &[]);
    check(&lane, &[]).level("replication", "ok", &[]);
}
