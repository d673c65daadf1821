//! `backfill` of tables that are changed meanwhile, or were since the slot was created.

use walrelay_dev::process::wait_until;
use walrelay_dev::relay::Relay;

use crate::backfill::{arguments, assert_once, fill, numbers, with_old};
use crate::lane::{LONG, Lane, OUTBOX, binary, wait_log};

#[track_caller]
fn filling(lane: &Lane, more: &[&str]) -> Relay {
    let filling = Relay::start(&binary(), &arguments(lane, more), &[] as &[(&str, &str)]).unwrap();
    wait_log(&filling, "backfill begins");
    filling
}

/// An index gives the rows in its own order.
#[test]
fn a_table_without_a_key_is_resumed_behind_the_last_row_whatever_the_planner_chooses() {
    let lane = with_old(&format!(
        "{}; INSERT INTO outbox SELECT n::text, 'order', 'k', 't', '{{}}', 1500 - n FROM generate_series(1, 1500) AS n;
         CREATE INDEX ON outbox (back)",
        OUTBOX.replace(" PRIMARY KEY", "").replace("payload jsonb", "payload jsonb, back int")
    ));
    let off = ["enable_seqscan", "enable_tidscan", "enable_bitmapscan"];
    lane.sql(&off.map(|name| format!("ALTER DATABASE {} SET {name} = off", lane.name)).join("; "));
    let more = ["--where", "back >= 0", "--rate", "200"];
    let mut filling = filling(&lane, &more);
    wait_until(LONG, "some rows", || Ok(!lane.records_now("order").is_empty())).unwrap();
    assert_eq!(filling.terminate(LONG).unwrap().code, 1, "{}", filling.log());
    fill(&lane, &more[..2]);
    assert_once(&lane, &numbers(1, 1500));
}
