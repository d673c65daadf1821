//! Which rows a shard has, which tables can be shared out, and what shows, checks and drops a whole set.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;
use walrelay_dev::postgres::{Options, Postgres};
use walrelay_dev::process::wait_until;

use crate::lane::{LONG, OUTBOX, binary, hint};
use crate::shards::{Judged, Shards, judge, text};

#[test]
fn each_row_passes_one_filter_whatever_its_key_is() {
    let shards = Shards::with(
        r"CREATE TABLE texts (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregateid text, type text, payload json);
          INSERT INTO texts (aggregateid) SELECT k FROM unnest(ARRAY['', '\', '\\', '\x41', '\0', 'é', '🦀', 'A' || repeat('x', 100000), NULL, NULL]) AS k;
          INSERT INTO texts (aggregateid) SELECT n::text FROM generate_series(1, 3000) AS n;
          CREATE TABLE numbers (id bigint PRIMARY KEY, aggregateid bigint, type text, payload json);
          INSERT INTO numbers SELECT n, nullif(n, 7) FROM generate_series(-1000, 2000) AS n;
          CREATE TABLE bytes (id text PRIMARY KEY, aggregateid bytea, type text, payload json);
          INSERT INTO bytes SELECT n::text, convert_to(n::text, 'UTF8') FROM generate_series(1, 500) AS n;
          CREATE TABLE padded (id text PRIMARY KEY, aggregateid char(9), type text, payload json);
          INSERT INTO padded SELECT n::text, n::text FROM generate_series(1, 500) AS n;
          CREATE TABLE ids (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregateid uuid DEFAULT gen_random_uuid(), type text, payload json);
          INSERT INTO ids SELECT FROM generate_series(1, 500);
          CREATE TABLE keyless (id text, type text, payload json);
          INSERT INTO keyless SELECT n::text FROM generate_series(1, 500) AS n; INSERT INTO keyless VALUES (NULL)",
    );
    let tables = [("texts", 3010), ("numbers", 3001), ("bytes", 500), ("padded", 500), ("ids", 500), ("keyless", 501)];
    let mut arguments = vec!["setup", "--shards", "3", "--apply"];
    arguments.extend(tables.iter().flat_map(|(table, _)| ["--table", table]));
    shards.done(&arguments);
    for (table, rows) in tables {
        assert_eq!(shards.passed(table, 3), [(1, rows)], "{table}");
    }
    let mut client = shards.lane.connect();
    let texts = shards.filters(&mut client, "texts", 3);
    let numbers = shards.filters(&mut client, "numbers", 3);
    let bytes = shards.filters(&mut client, "bytes", 3);
    let select = |table: &str, filter: &str| {
        format!(
            "SELECT encode(textsend(aggregateid::text), 'escape') FROM {table} WHERE ({filter}) AND aggregateid::text ~ '^[1-9][0-9]{{0,2}}$'"
        )
    };
    for (index, filter) in texts.iter().enumerate() {
        let mut keys =
            |sql: &str| -> BTreeSet<String> { client.query(sql, &[]).unwrap().iter().map(|row| row.get(0)).collect() };
        let of_texts = keys(&select("texts", filter));
        let all: BTreeSet<_> = keys(&select("numbers", &numbers[index]));
        let without_null: BTreeSet<_> = of_texts.iter().filter(|key| *key != "7").cloned().collect();
        assert_eq!(without_null, all, "equal keys of two tables are in one shard");
        let of_bytes = keys(&format!("SELECT convert_from(aggregateid, 'UTF8') FROM bytes WHERE {}", bytes[index]));
        assert!(of_bytes.iter().all(|key| key.len() > 3 || of_texts.contains(key)), "{index}");
        assert!(of_texts.len() > 250, "{index} has {} of 999 keys", of_texts.len());
    }
}

#[test]
fn partitioned_tables_are_shared_out_as_a_whole_with_partitions_that_come_later() {
    let shards = Shards::with(
        "CREATE TABLE outbox (id text, aggregatetype text, aggregateid text, type text, payload jsonb, day int) PARTITION BY LIST (day);
         CREATE TABLE outbox_1 PARTITION OF outbox FOR VALUES IN (1)",
    );
    shards.done(&["setup", "--shards", "2", "--apply", "--table", "outbox"]);
    let relays = shards.relays(2);
    let rows = |day: u32| {
        format!(
            "INSERT INTO outbox SELECT '{day}:' || n, 'order', 'k' || n % 9, 'Placed', '{{}}', {day} FROM generate_series(1, 100) AS n"
        )
    };
    shards.lane.sql(&rows(1));
    shards.lane.sql("CREATE TABLE outbox_2 PARTITION OF outbox FOR VALUES IN (2)");
    shards.lane.sql(&rows(2));
    shards.wait_confirmed(2);
    let expected: Vec<String> = (1..=2).flat_map(|day| (1..=100).map(move |n| format!("{day}:{n}"))).collect();
    let judged = judge(&shards.lane.records_now("order"), &expected);
    assert_eq!(Judged { swapped: Vec::new(), ..judged }, Judged::default(), "numbers begin again each day");
    drop(relays);
    // The same, from one slot whose rows come as those of partitions.
    let plain = Shards::with(
        "CREATE TABLE outbox (id text, aggregateid text, type text, payload json, day int) PARTITION BY LIST (day)",
    );
    plain.done(&["setup", "--apply", "--table", "outbox"]);
    let (code, said) = plain.refused(&["setup", "--reshard", "2", "--apply"]);
    assert_eq!(code, 2, "{said}");
    plain.lane.sql(&hint(&said));
    let _relay = plain.lane.streaming(&[]);
    plain.done(&["setup", "--reshard", "2", "--apply"]);
}

#[test]
#[ignore = "slow"]
fn what_cannot_be_shared_out_is_refused_with_the_reason_and_changes_nothing() {
    let shards = Shards::with(&format!(
        "{OUTBOX}; CREATE TABLE odd (id text PRIMARY KEY, aggregateid jsonb, type text, payload json)"
    ));
    let (code, said) = shards.refused(&["setup", "--shards", "2", "--apply", "--table", "odd"]);
    assert_eq!(code, 64, "{said}");
    assert!(said.contains("cannot hash type jsonb"), "{said}");
    let (code, said) =
        shards.refused(&["setup", "--shards", "2", "--apply", "--table", "outbox", "--key-column", "nokey"]);
    assert_eq!((code, said.contains("has no column \"nokey\"")), (64, true), "{said}");
    let (code, said) = shards.refused(&["setup", "--reshard", "2", "--apply"]);
    assert_eq!((code, hint(&said).contains("--shards 2")), (2, true), "{said}");
    let (code, said) = shards.refused(&["setup", "--shards", "2", "--apply"]);
    assert_eq!((code, hint(&said).contains("--table")), (64, true), "{said}");
    assert!(shards.slots().is_empty());
    shards.done(&["setup", "--shards", "2", "--apply", "--table", "outbox"]);
    let (code, said) = shards.refused(&["setup", "--shards", "3", "--apply", "--table", "outbox"]);
    assert_eq!((code, hint(&said).contains("--reshard 3")), (2, true), "{said}");
    let (code, said) = shards.refused(&["setup", "--reshard", "3", "--apply"]);
    assert_eq!((code, said.contains("no relay reads slot")), (2, true), "{said}");
    assert!(hint(&said).contains("walrelay run --shard 0/2"), "{said}");
    let (code, said) = shards.refused(&["run", "--shard", "0/2", "--message-prefix", "x"]);
    assert_eq!((code, said.contains("every slot")), (64, true), "{said}");
}

#[test]
fn before_row_filters_shards_are_refused() {
    let old = Postgres::start(&Options { major: 14, ..Options::default() }).unwrap();
    let source = old.url("postgres");
    let arguments = ["setup", "--shards", "2", "--apply", "--table", "outbox", "--source", &source];
    let output = Command::new(binary()).args(arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(64), "{}", text(&output));
    assert!(text(&output).contains("Postgres 15"), "{}", text(&output));
}

#[test]
fn all_shards_are_shown_checked_and_dropped_together() {
    let shards = Shards::of("2");
    let relays = shards.relays(2);
    let status: Value = serde_json::from_slice(&shards.output(&["status", "--all", "--json"]).stdout).unwrap();
    let slots = status["slots"].as_array().unwrap();
    let found: Vec<_> =
        slots.iter().map(|slot| (slot["shard"].as_str().unwrap(), slot["active"].as_bool().unwrap())).collect();
    assert_eq!(found, [("0/2", true), ("1/2", true)]);
    let topic = shards.lane.topic("{route}");
    let check = ["check", "--shard", "1/2", "--json", "--brokers", &shards.lane.brokers, "--topic", &topic];
    let report: Value = serde_json::from_slice(&shards.output(&check).stdout).unwrap();
    let level = |report: &Value, name: &str| {
        let findings = report["findings"].as_array().unwrap();
        findings
            .iter()
            .find(|finding| finding["check"] == name)
            .map(|finding| finding["level"].as_str().unwrap().to_owned())
    };
    assert_eq!(level(&report, "shards").as_deref(), Some("ok"), "{report}");
    assert_eq!((level(&report, "row_filter"), level(&report, "shard_key")), (None, None));
    let other_key = [&check[..], &["--key-column", "type"]].concat();
    let report: Value = serde_json::from_slice(&shards.output(&other_key).stdout).unwrap();
    assert_eq!(level(&report, "shard_key").as_deref(), Some("fail"), "{report}");
    let (code, said) = shards.refused(&["teardown", "--shards", "2", "--yes"]);
    assert_eq!((code, said.contains("is in use by")), (2, true), "{said}");
    drop(relays);
    let free = "SELECT NOT bool_or(active) FROM pg_replication_slots WHERE database = current_database()";
    wait_until(LONG, "the slots to be free", || Ok(shards.lane.connect().query_one(free, &[])?.get(0))).unwrap();
    let said = shards.done(&["teardown", "--shards", "2", "--yes"]);
    assert!(said.contains("setup --shards 2 --apply"), "{said}");
    assert!(shards.slots().is_empty());
    let said = shards.done(&["teardown", "--shards", "2", "--yes"]);
    assert!(said.contains("nothing to do"), "{said}");
    let (code, said) = shards.refused(&["status", "--all"]);
    assert_eq!(code, 2, "{said}");
}
