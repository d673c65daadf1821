//! The slots of shards: whose they are, and those that are lost.

use walrelay_dev::kafka::shared_kafka;
use walrelay_dev::postgres::{Options, Postgres, default_major, quote_identifier};
use walrelay_dev::process::wait_until;

use crate::lane::{LONG, Lane, OUTBOX, hint};
use crate::shards::{Judged, Shards, judge, spawn, text};

#[test]
fn a_copy_of_the_database_does_not_take_the_slots_of_the_first_for_its_own() {
    let shards = Shards::of("2");
    let name = &shards.lane.name;
    let copy = format!("{name}_copy");
    shards.lane.sql(&format!("CREATE DATABASE {} TEMPLATE {}", quote_identifier(&copy), quote_identifier(name)));
    let mut relays = shards.relays(2);
    let source = shards.lane.source.replace(&format!("/{name}"), &format!("/{copy}"));
    assert_ne!(source, shards.lane.source);
    let Lane { name, brokers, client, .. } = &shards.lane;
    let lane = Lane { name: name.clone(), source, brokers: brokers.clone(), client: client.clone() };
    let in_copy = Shards { lane };
    for arguments in [&["setup", "--reshard", "1"][..], &["setup", "--reshard", "1", "--apply"]] {
        let (code, said) = in_copy.refused(arguments);
        assert_eq!(code, 2, "{said}");
        assert!(said.contains(&format!("belongs to database \"{name}\", not to \"{copy}\"")), "{said}");
        assert!(hint(&said).contains("--slot"), "{said}");
    }
    assert_eq!(shards.slots(), [shards.slot(0, 2), shards.slot(1, 2)]);
    assert!(relays.iter_mut().all(|relay| relay.exited().unwrap().is_none()), "they read on");
}

#[test]
fn setup_of_one_slot_refuses_while_its_rows_go_over_to_shards_that_have_its_failover() {
    let shards = Shards::with(OUTBOX);
    let failover = default_major() >= 17;
    let mut setup = vec!["setup", "--apply", "--table", "outbox"];
    setup.extend(failover.then_some("--failover"));
    shards.done(&setup);
    let mut moving = spawn(&shards, &["setup", "--reshard", "2", "--apply"]);
    wait_until(LONG, "the new slots", || Ok(shards.slots().len() == 3)).unwrap();
    moving.kill().unwrap();
    moving.wait().unwrap();
    for refused in [&["setup", "--apply"][..], &["setup"]] {
        let (code, said) = shards.refused(refused);
        assert!(code == 2 && said.contains("the setup of 2 shards is not finished"), "{said}");
        assert!(hint(&said).starts_with("walrelay setup --reshard 2 --apply"), "{said}");
    }
    // Its relay has rows to publish.
    let relay = shards.lane.streaming(&["--setup"]);
    shards.done(&["setup", "--reshard", "2", "--apply"]);
    drop(relay);
    if failover {
        let sql = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database() AND failover";
        assert_eq!(shards.lane.connect().query_one(sql, &[]).unwrap().get::<_, i64>(0), 2);
    }
}

#[test]
fn rows_are_not_moved_away_from_a_publication_that_another_reader_may_use() {
    let shards = Shards::with(OUTBOX);
    shards.done(&["setup", "--apply", "--table", "outbox"]);
    let other = format!("{}_other", shards.lane.name);
    shards.lane.sql(&format!("SELECT pg_create_logical_replication_slot('{other}', 'pgoutput')"));
    let reshard = ["setup", "--reshard", "2", "--apply"];
    let (code, said) = shards.refused(&reshard);
    assert!(code == 2 && said.contains(&format!("slot \"{other}\" may be read with publication")), "{said}");
    assert!(hint(&said).contains(&format!("--also-read-by {other}")), "{said}");
    assert_eq!(shards.slots().len(), 2, "no slot was created");
    let relay = shards.lane.streaming(&[]);
    shards.done(&[&reshard[..], &["--also-read-by", &other]].concat());
    drop(relay);
    shards.lane.drop_slot(&other);
    assert_eq!(shards.slots(), [shards.slot(0, 2), shards.slot(1, 2)]);
}

#[test]
fn a_set_that_is_there_has_its_slots_and_the_tables_that_are_asked_for() {
    let shards = Shards::of("2");
    shards.lane.sql("CREATE TABLE more (LIKE outbox INCLUDING ALL)");
    let asked = |table| ["setup", "--shards", "2", "--apply", "--table", table];
    assert!(shards.done(&asked("outbox")).contains("nothing to do: 2 shards are there"));
    let (code, said) = shards.refused(&asked("more"));
    assert!(code == 64 && said.contains("table public.more is not in publication"), "{said}");
    let second = quote_identifier(&shards.slot(1, 2));
    shards.lane.sql(&format!("ALTER PUBLICATION {second} ADD TABLE more"));
    let (code, said) = shards.refused(&asked("outbox"));
    assert!(code == 64 && said.contains(&format!("not in publication \"{}\"", shards.slot(0, 2))), "{said}");
    shards.lane.sql(&format!("ALTER PUBLICATION {second} DROP TABLE more"));
    shards.lane.drop_slot(&shards.slot(1, 2));
    let (code, said) = shards.refused(&asked("outbox"));
    assert!(code == 2 && said.contains("shard 1/2 is incomplete"), "{said}");
}

/// Writes WAL until no more slots are left than those that are read. These keep up.
fn lose_unread_slots(shards: &Shards) {
    let mut client = shards.lane.connect();
    let lost = "SELECT bool_and(active OR wal_status = 'lost') FROM pg_replication_slots";
    let near = "SELECT bool_and(NOT active OR pg_current_wal_lsn() - restart_lsn < 16000000) FROM pg_replication_slots";
    wait_until(LONG, "the slots to be lost", || {
        client.batch_execute("SELECT pg_logical_emit_message(false, 'busy', 'x')")?;
        client.batch_execute("SELECT pg_switch_wal()")?;
        wait_until(LONG, "the others to be near", || {
            client.batch_execute("CHECKPOINT")?;
            Ok(client.query_one(near, &[])?.get(0))
        })?;
        Ok(client.query_one(lost, &[])?.get(0))
    })
    .unwrap();
}

#[test]
#[ignore = "slow"]
fn new_slots_that_are_lost_before_the_cut_end_the_move_and_the_same_command_resumes() {
    let settings = [("max_wal_size", "32MB"), ("min_wal_size", "32MB"), ("max_slot_wal_keep_size", "48MB")]
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
    let postgres = Postgres::start(&Options { settings: settings.to_vec(), ..Options::default() }).unwrap();
    let shards = Shards::on(Lane::on(&postgres, shared_kafka().unwrap()), OUTBOX);
    shards.done(&["setup", "--apply", "--table", "outbox"]);
    let _old = shards.lane.streaming(&[]);
    let row = |number: u32| format!("INSERT INTO outbox SELECT '1:{number}', 'order', 'k1', 'Placed', '{{}}'");
    let mut client = shards.lane.connect();
    let mut open = client.transaction().unwrap();
    open.batch_execute("LOCK TABLE outbox IN ROW EXCLUSIVE MODE").unwrap();
    let moving = spawn(&shards, &["setup", "--reshard", "2", "--apply"]);
    wait_until(LONG, "the new slots", || Ok(shards.slots().len() == 3)).unwrap();
    lose_unread_slots(&shards);
    open.batch_execute(&row(1)).unwrap();
    open.commit().unwrap();
    let output = moving.wait_with_output().unwrap();
    let mut said = text(&output);
    for slot in [shards.slot(0, 2), shards.slot(1, 2)] {
        assert!(said.contains(&slot) && said.contains("while rows are moved: it had no rows yet"), "{said}");
        shards.lane.sql(hint(&said).strip_suffix("the same command again creates it").unwrap());
        said = text(&shards.output(&["setup", "--reshard", "2", "--apply"]));
    }
    assert!(said.contains("opened 2 shards"), "{said}");
    let _new = shards.relays(2);
    shards.lane.sql(&row(2));
    shards.wait_confirmed(2);
    assert_eq!(judge(&shards.lane.records_now("order"), &["1:1".to_owned(), "1:2".to_owned()]), Judged::default());
}
