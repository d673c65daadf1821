//! The slots of shards: whose they are, and those that are lost.

use walrelay_dev::postgres::quote_identifier;

use crate::lane::{Lane, hint};
use crate::shards::Shards;

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
