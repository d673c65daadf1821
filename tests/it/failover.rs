//! A physical standby that is promoted while the old primary is gone, or is not as gone as it seemed.

use postgres::{Client, NoTls};
use walrelay_dev::kafka::{Kafka, shared_kafka};
use walrelay_dev::postgres::{Mode, Options, Postgres, default_major};
use walrelay_dev::process::wait_until;
use walrelay_dev::relay::Relay;
use walrelay_dev::tap::Tap;

use crate::lane::{LONG, Lane, OUTBOX, ended, hint, ids, wait_events, wait_log};
use crate::load::{Load, assert_not_repeated};
use crate::own;

/// What a standby needs that keeps slots as well; before 17 there is nothing to need.
const KEEPS_SLOTS: [(&str, &str); 4] = [
    ("primary_slot_name", "standby"),
    ("sync_replication_slots", "on"),
    ("hot_standby_feedback", "on"),
    ("synchronized_standby_slots", ""),
];

/// A primary, its standby, and a lane on the primary.
struct Pair {
    primary: Postgres,
    standby: Postgres,
    load: Load,
}

impl Pair {
    /// With a slot that is kept on the standby, where servers can do that.
    fn with_kept_slot(primary_settings: &[(&str, &str)]) -> Self {
        Self::before(shared_kafka().unwrap(), primary_settings)
    }

    /// The same, before this Kafka.
    fn before(kafka: &Kafka, primary_settings: &[(&str, &str)]) -> Self {
        let settings = primary_settings.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
        let mut primary = Postgres::start(&Options { settings, ..Options::default() }).unwrap();
        let sql = "SELECT pg_create_physical_replication_slot('standby')";
        primary.connect(None).unwrap().execute(sql, &[]).unwrap();
        let standby = primary.standby(&KEEPS_SLOTS).unwrap();
        let load = Load::on(&primary, kafka);
        let sql = format!(
            "SELECT pg_drop_replication_slot('{0}');
             SELECT pg_create_logical_replication_slot('{0}', 'pgoutput', failover => true)",
            load.lane.name
        );
        load.lane.sql(&sql);
        Self { primary, standby, load }
    }

    /// Both servers, whichever takes writes.
    fn source(&self) -> String {
        both(&self.primary, &self.standby, &self.load.lane.name)
    }

    fn on_standby(&self) -> Client {
        Client::connect(&self.standby.url(&self.load.lane.name), NoTls).unwrap()
    }

    /// Waits until the slot on the standby is there to stay.
    #[track_caller]
    fn wait_kept(&self, relay: &Relay) {
        let mut client = self.standby.connect(None).unwrap();
        let sql = "SELECT synced AND NOT temporary FROM pg_replication_slots WHERE slot_name = $1";
        let mut primary = self.primary.connect(None).unwrap();
        wait_until(LONG, "the slot to be kept on the standby", || {
            // It has to see transactions end, which a quiet server does not tell of.
            primary.execute("SELECT pg_log_standby_snapshot()", &[])?;
            Ok(client.query_opt(sql, &[&self.load.lane.name])?.is_some_and(|row| row.get(0)))
        })
        .unwrap_or_else(|error| panic!("{error}: {}", relay.log()));
    }
}

fn both(one: &Postgres, other: &Postgres, database: &str) -> String {
    let (one, other) = (one.port(), other.port());
    format!("postgres://postgres@127.0.0.1:{one},127.0.0.1:{other}/{database}?target_session_attrs=read-write")
}

/// Slots are kept on standbys since 17; before, the promoted server has none.
fn keeps_slots() -> bool {
    default_major() >= 17
}

#[test]
#[ignore = "slow"]
fn a_promoted_standby_that_kept_the_slot_is_followed_without_loss_or_repeats() {
    if !keeps_slots() {
        return;
    }
    let mut pair = Pair::with_kept_slot(&[("synchronized_standby_slots", "standby")]);
    let mut relay = pair.load.lane.streaming(&["--source", &pair.source()]);
    let mut client = pair.load.connect();
    for batch in 0..20 {
        Load::bulk(&mut client, &format!("order-{batch}"), 0..50);
    }
    pair.wait_kept(&relay);
    // In the middle of what is being read.
    Load::bulk(&mut client, "order-last", 0..20_000);
    wait_events(&relay, 1500);
    pair.primary.kill().unwrap();
    pair.standby.promote().unwrap();
    pair.load.lane.source = pair.standby.url(&pair.load.lane.name);
    Load::bulk(&mut pair.load.connect(), "order-after", 0..50);
    let report = pair.load.assert_complete(&relay);
    println!("repeated {} of {}", report.repeated, report.committed);
    assert!(relay.log().contains("on a newer timeline"), "{}", relay.log());
    assert_eq!(relay.exited().unwrap(), None);
    // Nothing was delivered that the standby does not have, so nothing of what the relay knows was in doubt.
    assert_not_repeated(&report, &relay);
}

#[test]
#[ignore = "slow"]
fn verify_follows_no_copy_of_a_slot_on_a_standby() {
    if !keeps_slots() {
        return;
    }
    let pair = Pair::with_kept_slot(&[]);
    let lane = &pair.load.lane;
    let relay = lane.streaming(&[]);
    pair.wait_kept(&relay);
    let mut arguments = lane.arguments(&["--follow=1s", "--source", &pair.standby.url(&lane.name)]);
    "verify".clone_into(&mut arguments[0]);
    let output = walrelay_dev::relay::run(&crate::lane::binary(), &arguments).unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        output.status.code() == Some(64) && said.contains("cannot judge slot") && said.contains(&lane.name),
        "{said}"
    );
}

#[test]
#[ignore = "slow"]
fn a_failover_while_kafka_hangs_waits_for_no_relay_and_loses_nothing() {
    if !keeps_slots() {
        return;
    }
    let mut kafka = own::kafka();
    let mut pair = Pair::before(&kafka, &[("synchronized_standby_slots", "standby")]);
    let mut relay = pair.load.lane.streaming(&["--source", &pair.source(), "--disconnect-after=1s"]);
    let mut client = pair.load.connect();
    Load::bulk(&mut client, "order-1", 0..50);
    wait_events(&relay, 50);
    pair.wait_kept(&relay);
    kafka.suspend().unwrap();
    Load::bulk(&mut client, "order-2", 0..5000);
    wait_log(&relay, "disconnected from Postgres, slot kept");
    drop(client);
    // What is committed is on the standby once the primary is down.
    println!("the primary: {:?}", pair.primary.stop_within(Mode::Fast, LONG).unwrap());
    pair.standby.promote().unwrap();
    pair.load.lane.source = pair.standby.url(&pair.load.lane.name);
    Load::bulk(&mut pair.load.connect(), "order-3", 0..50);
    kafka.resume().unwrap();
    let report = pair.load.assert_complete(&relay);
    println!("repeated {} of {}", report.repeated, report.committed);
    assert_eq!(relay.exited().unwrap(), None);
}

#[test]
#[ignore = "slow"]
fn rows_of_a_lagging_standby_arrive_and_what_it_lacks_is_said() {
    if !keeps_slots() {
        return;
    }
    let mut pair = Pair::with_kept_slot(&[]);
    let lane = &pair.load.lane;
    let insert = |client: &mut Client, id: u32| {
        let sql = format!("INSERT INTO outbox VALUES ('00000000-0000-0000-0000-{id:012}', 'order', 'k', 't', '1')");
        client.batch_execute(&sql).unwrap();
    };
    let mut relay = lane.streaming(&["--source", &pair.source()]);
    insert(&mut lane.connect(), 1);
    lane.wait_confirmed();
    pair.wait_kept(&relay);
    // It hears nothing any more.
    let mut standby = pair.on_standby();
    standby.batch_execute("ALTER SYSTEM SET primary_conninfo = ''").unwrap();
    standby.batch_execute("SELECT pg_reload_conf()").unwrap();
    wait_until(LONG, "the standby to be deaf", || {
        Ok(standby.query("SELECT FROM pg_stat_wal_receiver", &[])?.is_empty())
    })
    .unwrap();
    for id in 2..=400 {
        insert(&mut lane.connect(), id);
    }
    lane.wait_confirmed();
    pair.primary.kill().unwrap();
    pair.standby.promote().unwrap();
    // They lie where other rows have been delivered and confirmed.
    for id in 1001..=1200 {
        insert(&mut standby, id);
    }
    pair.load.lane.source = pair.standby.url(&pair.load.lane.name);
    let mut found: Vec<u32> =
        ids(&pair.load.lane.records("order")).iter().map(|id| id[24..].parse().unwrap()).collect();
    let new: Vec<u32> = found.iter().copied().filter(|id| *id > 1000).collect();
    assert_eq!(new, (1001..=1200).collect::<Vec<_>>(), "{}", relay.log());
    found.sort_unstable();
    found.dedup();
    assert_eq!(found.len(), 600);
    let warning = relay.log().lines().find(|line| line.contains("on a newer timeline")).map(str::to_owned);
    assert!(warning.is_some_and(|line| line.contains("WARN") && line.contains("switch_point")), "{}", relay.log());
    assert_eq!(relay.exited().unwrap(), None);
}

#[test]
#[ignore = "slow"]
fn while_a_standby_that_rows_wait_for_is_down_the_relay_waits_too() {
    if !keeps_slots() {
        return;
    }
    let mut pair = Pair::with_kept_slot(&[("synchronized_standby_slots", "standby")]);
    let mut relay = pair.load.lane.streaming(&[]);
    pair.standby.stop(Mode::Fast).unwrap();
    Load::bulk(&mut pair.load.connect(), "order-held", 0..10);
    wait_log(&relay, "Postgres waits for a standby and sends no rows");
    wait_until(LONG, "the reason", || Ok(relay.status()?["state"] == "blocked")).unwrap();
    let status = relay.status().unwrap();
    assert!(status["last_error"].as_str().unwrap().contains("synchronized_standby_slots"), "{status}");
    assert_eq!(relay.exited().unwrap(), None, "{}", relay.log());
    // A primary that stops says the same as an error.
    pair.primary.restart(Mode::Fast).unwrap();
    let again = || Ok(relay.log().matches("Postgres waits for a standby").count() >= 2);
    wait_until(LONG, "the relay to be back", again).unwrap_or_else(|error| panic!("{error}: {}", relay.log()));
    pair.standby.start_again().unwrap();
    pair.load.assert_complete(&relay);
    wait_until(LONG, "the end of it", || Ok(relay.status()?["last_error"].is_null())).unwrap();
    assert_eq!(relay.exited().unwrap(), None);
}

#[test]
fn a_promoted_standby_without_the_slot_is_a_loud_stop() {
    let mut primary = Postgres::start(&Options::default()).unwrap();
    let standby = primary.standby(&[]).unwrap();
    let mut lane = Lane::on(&primary, shared_kafka().unwrap()).furnish(OUTBOX, "outbox");
    let mut relay = lane.streaming(&["--source", &both(&primary, &standby, &lane.name)]);
    lane.sql("INSERT INTO outbox VALUES ('1', 'order', 'k', 't', '1')");
    lane.wait_confirmed();
    lane.source = standby.url(&lane.name);
    wait_until(LONG, "the standby to have it all", || {
        Ok(Client::connect(&lane.source, NoTls)
            .is_ok_and(|mut client| client.query("SELECT FROM outbox", &[]).is_ok_and(|rows| rows.len() == 1)))
    })
    .unwrap();
    primary.kill().unwrap();
    standby.promote().unwrap();
    let (code, log) = ended(&mut relay);
    assert_eq!(code, 2, "{log}");
    assert!(log.contains("does not exist") && hint(&log).contains("it was there before"), "{log}");
    let slots = lane.connect().query("SELECT FROM pg_replication_slots", &[]).unwrap();
    assert!(slots.is_empty(), "none is made behind anybody's back");
}

#[test]
fn the_old_primary_in_the_promoted_ones_place_is_a_loud_stop() {
    let mut primary = Postgres::start(&Options::default()).unwrap();
    let standby = primary.standby(&[]).unwrap();
    let old = Lane::on(&primary, shared_kafka().unwrap()).furnish(OUTBOX, "outbox");
    let insert = |id: &str| format!("INSERT INTO outbox VALUES ('{id}', 'order', 'k', 't', '1')");
    wait_until(LONG, "the standby to have it all", || {
        Ok(Client::connect(&standby.url(&old.name), NoTls)
            .is_ok_and(|mut client| client.query("SELECT FROM pg_publication", &[]).is_ok_and(|rows| rows.len() == 1)))
    })
    .unwrap();
    standby.promote().unwrap();
    let new = Lane {
        source: standby.url(&old.name),
        name: old.name.clone(),
        brokers: old.brokers.clone(),
        client: old.client.clone(),
    };
    new.make_slot();
    let tap = Tap::start(format!("127.0.0.1:{}", standby.port())).unwrap();
    let source = format!("postgres://postgres@{}/{}", tap.address(), old.name);
    let mut relay = new.streaming(&["--source", &source]);
    new.sql(&insert("new"));
    assert_eq!(new.ids("order"), ["new"]);
    old.sql(&insert("old"));
    tap.set_target(format!("127.0.0.1:{}", primary.port()));
    tap.cut();
    let (code, log) = ended(&mut relay);
    assert_eq!(code, 2, "{log}");
    assert!(log.contains("an earlier timeline"), "{log}");
    assert!(hint(&log).contains("restart walrelay"), "{log}");
    assert_eq!(ids(&new.records_now("order")), ["new"], "nothing was read from it");
}
