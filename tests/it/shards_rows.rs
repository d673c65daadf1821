//! What deletes, repeats and backfills rows, where these are shared out among shards: for all of them at once, or not at all.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Command};

use anyhow::bail;
use rustix::process::Signal;
use walrelay_dev::kafka::shared_kafka;
use walrelay_dev::process::wait_until;
use walrelay_dev::relay::Relay;

use crate::lane::{LONG, Lane, OUTBOX, binary, hint, ids};
use crate::own;
use crate::shards::{Shards, spawn, text};

/// With a column that says how old a row is: a day.
const AGED: &str = "CREATE TABLE outbox (id text PRIMARY KEY, aggregatetype text NOT NULL, aggregateid text, payload text, \
                    created_at timestamptz NOT NULL DEFAULT now() - interval '1 day')";

/// So many rows, each with a key of its own.
fn rows(first: u32, last: u32) -> String {
    format!(
        "INSERT INTO outbox (id, aggregatetype, aggregateid, payload) \
         SELECT n::text, 'order', 'k' || n, 'p' FROM generate_series({first}, {last}) AS n"
    )
}

/// Three shards of a table with rows that are old as soon as they are there.
fn aged() -> Shards {
    let shards = Shards::with(AGED);
    shards.done(&["setup", "--shards", "3", "--apply", "--table", "outbox"]);
    // Each relay notes what it reads.
    for mut relay in shards.relays(3) {
        assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
    }
    shards
}

fn left(shards: &Shards) -> i64 {
    shards.lane.connect().query_one("SELECT count(*) FROM outbox", &[]).unwrap().get(0)
}

/// How often each id is in the topic.
fn counted(shards: &Shards) -> BTreeMap<String, u32> {
    let mut counted = BTreeMap::new();
    for id in ids(&shards.lane.records_now("order")) {
        *counted.entry(id).or_default() += 1;
    }
    counted
}

#[track_caller]
fn ended(child: Child) -> (i32, String) {
    let output = child.wait_with_output().unwrap();
    (output.status.code().unwrap(), text(&output))
}

const PRUNE: [&str; 3] = ["prune", "--older-than", "1h"];

#[test]
fn prune_deletes_no_row_before_the_slots_of_all_shards_have_confirmed() {
    let shards = aged();
    shards.lane.sql(&rows(1, 60));
    let mut relays: Vec<Relay> = ["0/3", "1/3"].map(|shard| shards.relay(shard)).into();
    for relay in &mut relays {
        relay.wait_streaming(LONG).unwrap();
    }
    let (code, said) = shards.refused(&[&PRUNE[..], &["--timeout", "1s"]].concat());
    assert!(code == 1 && said.contains(&format!("slot \"{}\" has not confirmed", shards.slot(2, 3))), "{said}");
    assert!(hint(&said).contains("walrelay run --shard 2/3"), "{said}");
    assert_eq!(left(&shards), 60);
    relays.push(shards.relay("2/3"));
    let said = shards.done(&PRUNE);
    assert!(said.contains("public.outbox: 60 rows deleted"), "{said}");
    let found = counted(&shards);
    assert!(found.len() == 60 && found.values().all(|times| *times == 1), "{found:?}");
}

#[test]
fn prune_keeps_rows_that_no_shard_has_and_those_that_a_relay_has_passed_over() {
    let shards = aged();
    let relays: Vec<Relay> =
        (0..3).map(|index| shards.lane.relay(&["--shard", &format!("{index}/3"), "--on-bad-row", "skip"])).collect();
    shards.lane.sql(&rows(1, 30));
    // Its address cannot be a topic.
    shards.lane.sql("INSERT INTO outbox (id, aggregatetype, aggregateid) VALUES ('bad', 'no topic', 'k1')");
    shards.wait_confirmed(3);
    let said = shards.done(&PRUNE);
    assert!(said.contains("30 rows deleted") && said.contains("1 rows that the relay skipped stay"), "{said}");
    assert_eq!(left(&shards), 1);
    // A publication that somebody has changed proves nothing.
    let first = format!("{}_0_of_3", shards.lane.name);
    shards.lane.sql(&format!("ALTER PUBLICATION {first} SET TABLE outbox WHERE (id = 'x')"));
    shards.lane.sql(&rows(31, 40));
    let (code, said) = shards.refused(&PRUNE);
    assert!(code == 2 && said.contains("nothing says that all of its rows are published"), "{said}");
    assert_eq!(left(&shards), 11);
    drop(relays);
}

#[test]
fn the_names_of_one_shard_are_refused_where_all_are_meant() {
    let shards = aged();
    shards.lane.sql(&rows(1, 5));
    let one = shards.slot(0, 3);
    let command = ["prune", "--older-than", "1h"];
    let place = ["--source", &shards.lane.source, "--publication", &one, "--slot", &one];
    let output = Command::new(binary()).args(command).args(place).output().unwrap();
    let said = text(&output);
    assert_eq!(output.status.code(), Some(64), "{said}");
    let name = &shards.lane.name;
    assert!(hint(&said).ends_with(&format!("--publication {name} --slot {name}")), "{said}");
    assert_eq!(left(&shards), 5);
}

#[test]
#[ignore = "slow"]
fn prune_deletes_nothing_while_rows_move_to_other_shards() {
    // New slots wait for the transactions of all databases: on a shared server for other tests' as well.
    let postgres = own::postgres();
    let shards = Shards::on(Lane::on(&postgres, shared_kafka().unwrap()), AGED);
    shards.done(&["setup", "--apply", "--table", "outbox"]);
    // The server must not give up a relay that stands still.
    let patient = format!("{}?options=-c%20wal_sender_timeout%3D0", shards.lane.source);
    let mut one = shards.lane.streaming(&["--source", &patient]);
    one.signal(Signal::STOP).unwrap();
    shards.lane.sql(&rows(1, 10));
    let mut waits = spawn(&shards, &PRUNE);
    let mut notes = BufReader::new(waits.stderr.take().unwrap()).lines();
    assert!(notes.next().unwrap().unwrap().contains("waiting for slot"));
    let mut moving = spawn(&shards, &["setup", "--reshard", "2", "--apply"]);
    let cut = "SELECT count(*) = 2 FROM pg_publication_tables WHERE pubname LIKE '%\\_of\\_2'";
    let mut client = shards.lane.connect();
    wait_until(LONG, "the cut", || {
        if moving.try_wait()?.is_some() {
            let mut said = String::new();
            moving.stderr.take().into_iter().try_for_each(|mut stderr| stderr.read_to_string(&mut said).map(drop))?;
            bail!("the move has ended: {said}");
        }
        Ok(client.query_one(cut, &[])?.get(0))
    })
    .unwrap();
    // No relay of the new set publishes it yet.
    shards.lane.sql(&rows(11, 11));
    let (code, said) = shards.refused(&PRUNE);
    assert!(code == 1 && said.contains("the rows are being moved to 2 shards"), "{said}");
    one.signal(Signal::CONT).unwrap();
    let (code, said) = ended(moving);
    assert_eq!(code, 0, "{said}");
    let said: String = notes.map(Result::unwrap).collect();
    let why = ["was changed while its slot was waited for", "does not exist", "nothing proves"];
    assert!(!waits.wait().unwrap().success() && why.iter().any(|why| said.contains(why)), "{said}");
    assert_eq!(left(&shards), 11, "the slot that it waited for carries no new row any more");
    let _two = shards.relays(2);
    shards.wait_confirmed(2);
    assert_eq!(counted(&shards).len(), 11);
    let said = shards.done(&PRUNE);
    assert!(said.contains("11 rows deleted"), "what is known of the drained slot is known of its shards: {said}");
    assert_eq!(left(&shards), 0);
}

#[test]
fn rows_that_are_deleted_and_inserted_again_pass_through_their_shards_once_more() {
    let shards = aged();
    let _relays = shards.relays(3);
    shards.lane.sql(&rows(1, 40));
    shards.lane.sql(
        "WITH r AS (DELETE FROM outbox WHERE id::int <= 30 RETURNING *), i AS (INSERT INTO outbox SELECT * FROM r RETURNING 1)
         SELECT 1 / ((SELECT count(*) FROM r) = (SELECT count(*) FROM i))::int",
    );
    shards.wait_confirmed(3);
    let found = counted(&shards);
    assert_eq!((found.len(), found.values().filter(|times| **times == 2).count()), (40, 30));
}

#[test]
fn one_slot_for_all_rows_is_not_made_beside_shards_and_existing_rows_are_not_told() {
    let shards = Shards::of("2");
    let slots = shards.slots();
    let topic = shards.lane.topic("{route}");
    let to = ["--brokers", &shards.lane.brokers, "--topic", &topic];
    for (command, word) in [
        (&["setup", "--apply", "--table", "outbox"][..], "publish each row twice"),
        (&["setup", "--table", "outbox"], "publish each row twice"),
        (&["run", "--setup", "--table", "outbox", "--http", "off"], "publish each row twice"),
        (&["backfill"], "older than their slots"),
        (&["backfill", "--setup", "--table", "outbox"], "publish each row twice"),
    ] {
        let more = if command[0] == "setup" { &[][..] } else { &to };
        let (code, said) = shards.refused(&[command, more].concat());
        assert!(code == 64 && said.contains(word), "{command:?}: {code} {said}");
        assert!(
            ["--reshard 1 --apply", "docs/operations/republish.md"].iter().any(|word| hint(&said).contains(word)),
            "{said}"
        );
        assert_eq!(shards.slots(), slots, "{command:?}");
    }
}

#[test]
#[ignore = "slow"]
fn rows_are_shared_out_only_once_their_backfill_is_done() {
    let shards = Shards::with(OUTBOX);
    shards.lane.sql(
        "INSERT INTO outbox SELECT n::text, 'order', 'k' || n % 9, 'Placed', '{}' FROM generate_series(1, 2000) AS n",
    );
    shards.done(&["setup", "--apply", "--table", "outbox"]);
    let _one = shards.lane.streaming(&[]);
    let mut arguments = shards.lane.arguments(&["--rate", "100", "--yes"]);
    "backfill".clone_into(&mut arguments[0]);
    let mut filling = Relay::start(&binary(), &arguments, &[] as &[(&str, &str)]).unwrap();
    wait_until(LONG, "some rows", || Ok(!shards.lane.records_now("order").is_empty())).unwrap();
    filling.terminate(LONG).unwrap();
    let (code, said) = shards.refused(&["setup", "--reshard", "2", "--apply"]);
    assert!(code == 2 && said.contains("its existing rows are not all published"), "{said}");
    assert!(hint(&said).contains("walrelay backfill") && hint(&said).contains("lo_unlink"), "{said}");
    filling.start_again().unwrap();
    assert_eq!(filling.wait_exit(LONG).unwrap(), 0, "{}", filling.log());
    shards.done(&["setup", "--reshard", "2", "--apply"]);
    let found = counted(&shards);
    assert!(found.len() == 2000 && found.values().all(|times| *times == 1), "{}", found.len());
}
