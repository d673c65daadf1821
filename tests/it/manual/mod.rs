//! The pages of the manual, followed: each block of commands that has no reason against it runs on real servers, and prints what the page shows.
//!
//! `tests/docs.rs` holds that no block has neither.

#[path = "../../blocks/mod.rs"]
mod blocks;
mod compare;
mod page;
mod shell;

use page::Page;
use walrelay_dev::postgres::default_major;

use crate::own;
pub(crate) use shell::words;

/// The table of the examples.
const OUTBOX: &str = include_str!("../../../sql/outbox.sql");

/// The table of a polling worker.
const EVENTS: &str = include_str!("../../../sql/variants/outbox_events_status.sql");

#[test]
fn the_readme_can_be_followed() {
    let mut page = Page::open("README.md");
    page.block();
    page.start_over();
    page.finish();
}

#[test]
fn the_first_record_arrives() {
    Page::open("docs/getting-started.md").finish();
}

#[test]
#[ignore = "slow"]
fn a_polling_worker_is_replaced_and_comes_back() {
    let mut page = Page::open("docs/migrating-from-polling.md");
    page.sql(EVENTS);
    page.sql(
        "INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload, status, created_at)
         SELECT 'order', 'order-' || n, 'OrderPlaced', '{}', CASE WHEN n < 3 THEN 'PUBLISHED' ELSE 'PENDING' END, now() + n * interval '1 ms'
         FROM generate_series(1, 6) AS n",
    );
    for _ in 0..4 {
        page.block();
    }
    page.stop();
    page.finish();
}

#[test]
fn existing_rows_are_published() {
    let mut page = Page::open("docs/operations/existing-rows.md");
    page.sql(OUTBOX);
    page.sql(
        "INSERT INTO outbox (aggregatetype, aggregateid, type, payload)
         SELECT 'manual-existing', n::text, 'OrderPlaced', '{}' FROM generate_series(1, 1204) AS n",
    );
    page.before("walrelay setup --apply --table outbox");
    page.finish();
}

#[test]
fn rows_are_published_again() {
    let mut page = Page::open("docs/operations/republish.md");
    page.sql(
        "CREATE TABLE outbox (id int PRIMARY KEY, event_type text, payload text, status text, created_at timestamptz);
         INSERT INTO outbox SELECT n, 'OrderPlaced', '{}', 'PENDING', now() - n * interval '1 ms' FROM generate_series(17, 19) AS n",
    );
    page.before("walrelay setup --apply --table outbox");
    page.finish();
}

#[test]
fn dead_letter_records_are_listed_and_published_again() {
    let mut page = Page::open("docs/operations/dead-letters.md");
    page.sql(
        "CREATE TABLE outbox (id int PRIMARY KEY, aggregatetype text, aggregateid text, type text, payload text, headers text)",
    );
    page.set("WALRELAY_SLOT", "orders");
    page.before("walrelay setup --apply --table outbox");
    page.before("walrelay run --on-bad-row dead-letter");
    page.sql("INSERT INTO outbox VALUES (1, 'manual-dead', 'k', 't', 'payload', 'no object')");
    page.wait_confirmed("orders");
    page.stop();
    page.finish();
}

#[test]
fn a_relay_can_be_looked_after() {
    let mut page = Page::open("docs/operations/running.md");
    let (kafka, _) = own::strict_kafka();
    page.set("WALRELAY_BROKERS", &kafka.brokers());
    page.sql(OUTBOX);
    page.before("walrelay run --setup --table outbox");
    page.sql("INSERT INTO outbox (aggregatetype, aggregateid, type, payload) VALUES ('nowhere', 'k', 't', '{}')");
    page.finish();
}

#[test]
fn a_check_finds_what_it_shows() {
    let mut page = Page::open("docs/operations/check.md");
    page.sql(OUTBOX);
    page.before("walrelay setup --apply --table outbox");
    page.sql("INSERT INTO outbox (aggregatetype, aggregateid, type, payload) VALUES ('order', 'order-17', 'OrderPlaced', '{}')");
    page.finish();
}

#[test]
#[ignore = "slow"]
fn a_lost_slot_is_made_again() {
    let mut page = Page::with("docs/operations/lost-slot.md", &[("max_slot_wal_keep_size", "1MB")]);
    page.sql(OUTBOX);
    page.before("walrelay setup --apply --table outbox");
    page.sql("INSERT INTO outbox (aggregatetype, aggregateid, type, payload) VALUES ('order', 'k', 't', '{}')");
    for _ in 0..6 {
        page.sql("CREATE TABLE filled AS SELECT 1; DROP TABLE filled");
        page.sql("SELECT pg_switch_wal()");
    }
    page.sql("CHECKPOINT");
    page.finish();
}

#[test]
fn two_relays_read_one_cluster() {
    Page::open("docs/operations/several.md").finish();
}

#[test]
fn rows_are_shared_out_and_shared_out_again() {
    if default_major() < 15 {
        return shards_need_15();
    }
    let page = Page::open("docs/scaling.md");
    page.sql(OUTBOX);
    page.finish();
}

/// What the page's commands say of a server that has no row filters.
fn shards_need_15() {
    let page = Page::open("docs/scaling.md");
    page.sql(OUTBOX);
    page.refused("walrelay setup --shards 3 --apply --table outbox");
}

#[test]
fn events_of_the_cloud_are_published() {
    let mut page = Page::open("docs/cloudevents.md");
    page.sql(OUTBOX);
    page.before("walrelay setup --apply --table outbox");
    page.finish();
}

#[test]
fn the_statements_for_a_server_run() {
    for path in
        ["docs/postgres/own.md", "docs/postgres/requirements.md", "docs/operations/disk.md", "docs/operations.md"]
    {
        Page::open(path).finish();
    }
}

#[test]
fn a_row_can_carry_a_trace() {
    let page = Page::open("docs/consumers.md");
    page.sql(
        "CREATE TABLE outbox (id uuid PRIMARY KEY, aggregatetype text, aggregateid text, type text, payload jsonb, headers jsonb)",
    );
    page.finish();
}
