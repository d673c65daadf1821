//! A slot that cannot be read, or that somebody else has read meanwhile.

use std::thread::JoinHandle;

use rustix::process::Signal;
use walrelay_dev::kafka::shared_kafka;
use walrelay_dev::postgres::{Options, Postgres, default_major, shared_postgres};
use walrelay_dev::process::wait_until;
use walrelay_dev::relay::run;
use walrelay_dev::tap::{Direction, Tap};

use crate::lane::{LONG, Lane, OUTBOX, binary, ended, hint, ids, wait_events, wait_log};
use crate::load::Load;
use crate::own;

/// On a standby the WAL that a slot needs can go in other ways than by its size.
#[test]
fn a_slot_that_conflicts_with_recovery_on_a_standby_is_a_loud_stop() {
    if default_major() < 16 {
        // No standby decodes.
        return;
    }
    let mut primary = Postgres::start(&Options::default()).unwrap();
    let standby = primary.standby(&[("hot_standby_feedback", "off"), ("max_standby_streaming_delay", "0")]).unwrap();
    let mut lane = Lane::on(&primary, shared_kafka().unwrap());
    lane.sql(OUTBOX);
    lane.publish("outbox");
    let primary_source = std::mem::replace(&mut lane.source, standby.url(&lane.name));
    wait_until(LONG, "the publication on the standby", || {
        let Ok(mut client) = postgres::Client::connect(&lane.source, postgres::NoTls) else { return Ok(false) };
        Ok(client.query("SELECT FROM pg_publication", &[])?.len() == 1)
    })
    .unwrap();
    let mut on_primary = primary.connect(Some(&lane.name)).unwrap();
    let name = lane.name.clone();
    let making = std::thread::spawn({
        let source = lane.source.clone();
        move || {
            let mut client = postgres::Client::connect(&source, postgres::NoTls).unwrap();
            client.execute("SELECT pg_create_logical_replication_slot($1, 'pgoutput')", &[&name]).unwrap();
        }
    });
    // It waits for word of what runs on the primary.
    wait_until(LONG, "the slot on the standby", || {
        on_primary.execute("SELECT pg_log_standby_snapshot()", &[])?;
        Ok(making.is_finished())
    })
    .unwrap();
    making.join().unwrap();
    let mut relay = lane.streaming(&[]);
    on_primary.batch_execute("INSERT INTO outbox VALUES ('1', 'order', 'k', 't', '1')").unwrap();
    wait_events(&relay, 1);
    // Rows of catalogues that the slot still needs are removed.
    let sql = "SELECT wal_status = 'lost' OR conflicting FROM pg_replication_slots";
    wait_until(LONG, "the conflict", || {
        for sql in ["CREATE TABLE passing (n int)", "DROP TABLE passing", "VACUUM pg_class", "VACUUM FULL pg_class"] {
            on_primary.batch_execute(sql)?;
        }
        // The question, too, may conflict, and lose its session.
        let answer = standby.connect(None).and_then(|mut client| Ok(client.query_one(sql, &[])?));
        Ok(answer.is_ok_and(|row| row.get::<_, Option<bool>>(0) == Some(true)))
    })
    .unwrap_or_else(|error| panic!("{error}: {}", relay.log()));
    let (code, log) = ended(&mut relay);
    assert_eq!(code, 2, "{log}");
    let reason = if default_major() == 16 { "conflicting with recovery" } else { "rows_removed" };
    assert!(log.contains("has been invalidated") && log.contains(reason), "{log}");
    assert!(hint(&log).contains(&format!("walrelay teardown --slot {}", lane.name)), "{log}");
    lane.source = primary_source;
}

#[test]
fn a_slot_that_is_invalidated_under_way_is_a_loud_stop_with_what_was_lost() {
    let settings = [("max_wal_size", "32MB"), ("min_wal_size", "32MB"), ("max_slot_wal_keep_size", "1MB")]
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
    let postgres = Postgres::start(&Options { settings: settings.to_vec(), ..Options::default() }).unwrap();
    let mut kafka = own::kafka();
    let load = Load::on(&postgres, &kafka);
    let mut relay = load.lane.streaming(&["--disconnect-after=1s"]);
    let mut client = load.connect();
    Load::bulk(&mut client, "order-before", 0..10);
    wait_events(&relay, 10);
    kafka.suspend().unwrap();
    Load::bulk(&mut client, "order-held", 0..10);
    wait_log(&relay, "disconnected from Postgres, slot kept");
    client.batch_execute("CREATE TABLE busy (text text)").unwrap();
    let sql = "SELECT wal_status = 'lost' FROM pg_replication_slots WHERE slot_name = $1";
    wait_until(LONG, "the slot to be lost", || {
        client.batch_execute("INSERT INTO busy SELECT repeat(md5(n::text), 30) FROM generate_series(1, 20000) AS n")?;
        client.batch_execute("SELECT pg_switch_wal()")?;
        client.batch_execute("CHECKPOINT")?;
        Ok(client.query_one(sql, &[&load.lane.name])?.get(0))
    })
    .unwrap();
    kafka.resume().unwrap();
    let (code, log) = ended(&mut relay);
    assert_eq!(code, 2, "{log}");
    let reason = if default_major() >= 17 { "wal_removed" } else { "wal_status = lost" };
    assert!(log.contains("has been invalidated") && log.contains(reason), "{log}");
}

/// A is cut off half-way through a transaction, B finishes it, A returns.
#[test]
#[ignore = "slow"]
fn a_relay_that_left_half_way_returns_behind_what_another_finished_and_the_slot_advances() {
    let load = Load::shared();
    let tap = Tap::start(format!("127.0.0.1:{}", shared_postgres().unwrap().port())).unwrap();
    let mut client = load.connect();
    Load::bulk(&mut client, "order-large", 0..30_000);
    // Seconds for the transaction, of some 130 bytes a row.
    tap.limit(Direction::ToClient, 500_000);
    let source = format!("postgres://postgres@{}/{}", tap.address(), load.lane.name);
    let mut first = load.lane.relay(&["--source", &source]);
    wait_events(&first, 1000);
    tap.refuse(true);
    tap.cut();
    wait_log(&first, "Postgres connection failed; retrying");
    let before = first.metric("walrelay_events_total").unwrap();
    let mut second = load.lane.streaming(&[]);
    load.lane.wait_confirmed();
    assert_eq!(second.terminate(LONG).unwrap().code, 0, "{}", second.log());
    tap.flow();
    first.wait_streaming(LONG).unwrap();
    Load::bulk(&mut client, "order-after", 0..10);
    let report = load.assert_complete(&first);
    let in_hand = first.metric("walrelay_events_total").unwrap();
    assert!(report.repeated > 0 && report.repeated <= 30_000, "{report:#?}");
    assert!(in_hand >= before + 10.0, "the first went on");
}

/// The slot that is there now, as the hint names it.
#[track_caller]
fn accepted(lane: &Lane, log: &str) -> String {
    let at = lane.confirmed();
    assert!(hint(log).contains(&format!("--accept-slot-at {at}")), "{log}");
    at
}

/// A slot whose creation has begun. It ends once the transaction of `open` has ended.
struct UnfinishedSlot {
    open: postgres::Client,
    creation: JoinHandle<()>,
}

impl UnfinishedSlot {
    #[track_caller]
    fn begin(lane: &Lane) -> Self {
        let mut open = lane.connect();
        open.batch_execute("BEGIN; SELECT pg_current_xact_id()").unwrap();
        let (mut client, name) = (lane.connect(), lane.name.clone());
        let creation = std::thread::spawn(move || {
            client.execute("SELECT pg_create_logical_replication_slot($1, 'pgoutput')", &[&name]).unwrap();
        });
        let sql = "SELECT FROM pg_replication_slots WHERE slot_name = $1 AND confirmed_flush_lsn IS NULL
                      AND pg_backend_pid() = ANY (pg_blocking_pids(active_pid))";
        wait_until(LONG, "the creation of the slot", || Ok(open.query(sql, &[&lane.name])?.len() == 1)).unwrap();
        Self { open, creation }
    }

    #[track_caller]
    fn finish(mut self) {
        self.open.batch_execute("COMMIT").unwrap();
        self.creation.join().unwrap();
    }
}

#[test]
fn a_slot_that_is_being_created_is_waited_for() {
    let lane = Lane::debezium();
    lane.drop_slot(&lane.name);
    let slot = UnfinishedSlot::begin(&lane);
    let mut relay = lane.relay(&[]);
    wait_log(&relay, "is still being created");
    let place = ["--slot", &lane.name, "--publication", &lane.name, "--source", &lane.source];
    let commands =
        [(1, "status", ""), (1, "setup", "--apply"), (1, "prune", "--older-than=1d"), (2, "check", "--to=stdout://")];
    for (code, command, flag) in commands {
        let own = [command, flag].into_iter().filter(|word| !word.is_empty());
        let output = run(&binary(), &own.chain(place).collect::<Vec<_>>()).unwrap();
        let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(code) && text.contains("is still being created"), "{command}: {text}");
    }
    slot.finish();
    relay.wait_streaming(LONG).unwrap();
    lane.sql("INSERT INTO outbox VALUES ('1', 'order', 'k', 't', '1')");
    wait_events(&relay, 1);
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
}

/// It stands still while the slot is dropped and its creation begins, so it never sees that there is none.
#[test]
fn a_standby_waits_for_a_slot_that_is_being_created_again_and_then_stops_loudly() {
    let lane = Lane::debezium();
    let (mut first, mut second) = (lane.streaming(&[]), lane.relay(&[]));
    wait_log(&second, "waiting as standby");
    lane.sql("INSERT INTO outbox VALUES ('1', 'order', 'k', 't', '1')");
    wait_events(&first, 1);
    lane.wait_confirmed();
    second.signal(Signal::STOP).unwrap();
    assert_eq!(first.terminate(LONG).unwrap().code, 0, "{}", first.log());
    lane.drop_slot(&lane.name);
    lane.sql("INSERT INTO outbox VALUES ('lost', 'order', 'k', 't', '1')");
    let slot = UnfinishedSlot::begin(&lane);
    second.signal(Signal::CONT).unwrap();
    wait_log(&second, "is still being created");
    slot.finish();
    let (code, log) = ended(&mut second);
    assert_eq!(code, 2, "{log}");
    accepted(&lane, &log);
}

/// Kafka is frozen, so the relay leaves the slot; somebody drops it, rows come, somebody creates it.
#[test]
fn a_slot_that_was_created_again_while_the_relay_had_left_it_is_a_loud_stop() {
    let mut kafka = own::kafka();
    let load = Load::on(shared_postgres().unwrap(), &kafka);
    let mut relay = load.lane.streaming(&["--disconnect-after=1s"]);
    let mut client = load.connect();
    Load::bulk(&mut client, "order-before", 0..10);
    wait_events(&relay, 10);
    kafka.suspend().unwrap();
    Load::bulk(&mut client, "order-held", 0..10);
    wait_log(&relay, "disconnected from Postgres, slot kept");
    load.lane.drop_slot(&load.lane.name);
    Load::bulk(&mut client, "order-lost", 0..5);
    let slot = UnfinishedSlot::begin(&load.lane);
    kafka.resume().unwrap();
    wait_log(&relay, "is still being created");
    slot.finish();
    let (code, log) = ended(&mut relay);
    assert_eq!(code, 2, "{log}");
    assert!(log.contains("nothing proves that it is the slot"), "{log}");
    let at = accepted(&load.lane, &log);
    // The operator has looked, and goes on from there.
    let mut relay = load.lane.streaming(&["--accept-slot-at", &at]);
    Load::bulk(&mut client, "order-after", 0..5);
    wait_events(&relay, 5);
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
}

#[test]
fn a_slot_that_was_created_again_while_postgres_was_out_of_reach_is_a_loud_stop_for_the_standby_too() {
    let lane = Lane::debezium();
    let tap = Tap::start(format!("127.0.0.1:{}", shared_postgres().unwrap().port())).unwrap();
    let source = format!("postgres://postgres@{}/{}", tap.address(), lane.name);
    let mut first = lane.streaming(&["--source", &source]);
    let mut second = lane.relay(&["--source", &source]);
    wait_log(&second, "waiting as standby");
    lane.sql("INSERT INTO outbox VALUES ('1', 'order', 'k', 't', '1')");
    wait_events(&first, 1);
    lane.wait_confirmed();
    tap.refuse(true);
    tap.cut();
    for relay in [&first, &second] {
        wait_log(relay, "Postgres connection failed; retrying");
    }
    lane.drop_slot(&lane.name);
    lane.sql("INSERT INTO outbox VALUES ('lost', 'order', 'k', 't', '1')");
    lane.make_slot();
    tap.flow();
    for relay in [&mut first, &mut second] {
        let (code, log) = ended(relay);
        assert_eq!(code, 2, "{log}");
        accepted(&lane, &log);
    }
}

/// Many times, since a moment is what could go wrong: the first ends at any time between two looks of the other.
#[test]
#[ignore = "slow"]
fn relays_that_take_turns_on_a_quiet_slot_go_on() {
    let lane = Lane::debezium();
    let (mut one, mut other) = (lane.streaming(&[]), lane.relay(&[]));
    for round in 0..6 {
        wait_log(&other, "waiting as standby");
        // Moves the place where decoding would begin.
        lane.sql("SELECT pg_log_standby_snapshot()");
        lane.wait_confirmed();
        if round % 2 == 0 {
            assert_eq!(one.terminate(LONG).unwrap().code, 0, "{}", one.log());
        } else {
            one.kill9().unwrap();
        }
        other.wait_streaming(LONG).unwrap_or_else(|error| panic!("{error}: {}", other.log()));
        lane.sql(&format!("INSERT INTO outbox VALUES ('{round}', 'order', 'k', 't', '1')"));
        lane.wait_confirmed();
        one = std::mem::replace(&mut other, lane.relay(&[]));
    }
    let mut found = lane.ids("order");
    found.dedup();
    assert_eq!(found, ["0", "1", "2", "3", "4", "5"]);
}

/// Interleaved writers: positions of changes go back and forth, only those of commits rise.
#[test]
fn interleaved_transactions_are_confirmed_in_the_order_of_their_commits() {
    let lane = Lane::debezium();
    let _relay = lane.streaming(&[]);
    let mut writers: Vec<_> = (0..4).map(|_| lane.connect()).collect();
    let mut expected = Vec::new();
    for round in 0..20 {
        for writer in &mut writers {
            writer.batch_execute("BEGIN").unwrap();
        }
        for row in 0..3 {
            for (number, writer) in writers.iter_mut().enumerate() {
                let sql = format!("INSERT INTO outbox VALUES ('{round}-{number}-{row}', 'order', 'k', 't', '1')");
                writer.batch_execute(&sql).unwrap();
            }
        }
        // The last to begin is the first to commit.
        for (number, writer) in writers.iter_mut().enumerate().rev() {
            writer.batch_execute("COMMIT").unwrap();
            expected.extend((0..3).map(|row| format!("{round}-{number}-{row}")));
        }
    }
    lane.wait_confirmed();
    assert_eq!(ids(&lane.records_now("order")), expected);
}
