//! The slots of shards: whose they are, and those that are lost.

use walrelay_dev::postgres::{default_major, quote_identifier};
use walrelay_dev::process::wait_until;

use crate::lane::{LONG, Lane, OUTBOX, hint};
use crate::shards::{Shards, spawn};

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
