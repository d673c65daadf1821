//! Tables that get another name while `--table` has the old one: the relay stops, and its hint, followed once and to the letter, publishes
//! the rows of both names.

use walrelay_dev::postgres::default_major;
use walrelay_dev::relay::Relay;

use crate::hints::first_commands;
use crate::lane::{LONG, Lane, binary, ended, hint};

/// Two tables that look like an outbox, in a schema of their own.
fn lane() -> Lane {
    let table = "(id text PRIMARY KEY, aggregatetype text, aggregateid text, type text, payload jsonb)";
    Lane::with(
        &format!("CREATE SCHEMA shop; CREATE TABLE shop.outbox {table}; CREATE TABLE shop.outbox_b {table}"),
        "shop.outbox, shop.outbox_b",
    )
}

fn insert(table: &str, id: &str) -> String {
    format!("INSERT INTO {table} VALUES ('{id}', 'order', 'k', 't', '1');")
}

/// Each rename, and the name that the table has then.
const RENAMES: [(&str, &str); 3] = [
    ("ALTER TABLE shop.outbox RENAME TO outbox_v2;", "shop.outbox_v2"),
    ("CREATE SCHEMA other; ALTER TABLE shop.outbox SET SCHEMA other;", "other.outbox"),
    ("ALTER SCHEMA shop RENAME TO shop_v2;", "shop_v2.outbox"),
];

/// From this major version on, a walsender announces a table again after its schema was renamed. An older one sends the table's rows
/// under the old name until the connection ends.
const ANNOUNCES_SCHEMAS: u32 = 16;

/// Runs the command of the hint as it is.
#[track_caller]
fn follow(hint: &str) -> Relay {
    let commands = first_commands(hint);
    let [command] = commands.as_slice() else { panic!("one command in {hint:?}") };
    let mut relay = Relay::start(&binary(), command, &[] as &[(&str, &str)]).unwrap();
    relay.wait_streaming(LONG).unwrap_or_else(|error| panic!("{error}: {hint}: {}", relay.log()));
    relay
}

#[test]
fn a_table_that_is_renamed_while_it_is_read_is_named_and_the_hint_holds_in_one_step() {
    for (rename, now) in RENAMES {
        let lane = lane();
        let mut relay = lane.streaming(&["--table", "shop.outbox"]);
        lane.sql(&insert("shop.outbox", "1"));
        lane.wait_confirmed();
        // Rows of both names are in the transaction before which the slot stays.
        lane.sql(&format!("BEGIN; {} {rename} {} COMMIT", insert("shop.outbox", "2"), insert(now, "3")));
        let is_announced = default_major() >= ANNOUNCES_SCHEMAS || !rename.starts_with("ALTER SCHEMA");
        if !is_announced {
            lane.wait_confirmed();
            assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
            relay = lane.relay(&["--table", "shop.outbox"]);
        }
        let (code, log) = ended(&mut relay);
        let renamed = format!("table shop.outbox was renamed to {now}");
        assert!(code == 2 && (!is_announced || log.contains(&renamed)), "{code} {log}");
        let _relay = follow(&hint(&log));
        lane.sql(&insert(now, "4"));
        let mut found = lane.ids("order");
        // The transaction that the first relay had begun comes again.
        found.dedup();
        assert_eq!(found, ["1", "2", "3", "4"], "{rename}");
    }
}

#[test]
fn a_table_that_was_renamed_before_the_start_is_not_taken_for_another_one() {
    for (rename, now) in RENAMES {
        let lane = lane();
        lane.sql(&format!("{} {rename} {}", insert("shop.outbox", "1"), insert(now, "2")));
        let mut relay = lane.relay(&["--table", "shop.outbox"]);
        let (code, log) = ended(&mut relay);
        assert!(code == 2 && log.contains("shop.outbox"), "{code} {log}");
        let _relay = follow(&hint(&log));
        lane.sql(&insert(now, "3"));
        assert_eq!(lane.ids("order"), ["1", "2", "3"], "{rename}: {}", hint(&log));
    }
}

#[test]
fn the_hint_does_not_name_a_slot_that_another_publication_is_marked_for() {
    let lane = Lane::debezium();
    let slot = format!("{}s", lane.name);
    let other = format!("{}_other", lane.name);
    lane.sql(&format!(
        "CREATE TABLE other (id int); CREATE PUBLICATION {other} FOR TABLE other;
         COMMENT ON PUBLICATION {other} IS 'walrelay slot: {}'",
        lane.name
    ));
    let mut relay = lane.relay(&["--slot", &slot]);
    let (code, log) = ended(&mut relay);
    assert!(code == 2 && !hint(&log).contains("did you mean"), "{code} {log}");
}
