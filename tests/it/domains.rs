//! A domain is the type below it: a table whose columns have domains gives the records of one whose columns have the types below them.

use walrelay_dev::consume::Record;

use crate::backfill::{fill, with_old};
use crate::lane::{Lane, ended, wait_events};

/// Each column's type, and a value as SQL.
const COLUMNS: [(&str, &str, &str); 16] = [
    ("id", "integer", "7"),
    ("aggregateid", "char(8)", "'k1'"),
    ("type", "varchar(20)", "'placed'"),
    ("headers", "jsonb", r#"'{"a": 1, "b": "c"}'"#),
    ("due", "timestamptz", "'2024-02-29 12:34:56.789+00'"),
    ("part", "bigint", "0"),
    ("h_bool", "boolean", "true"),
    ("h_bytea", "bytea", r"'\x00ff41'"),
    ("h_json", "json", r#"'{"j":  1.50}'"#),
    ("h_jsonb", "jsonb", r#"'{"j": [1]}'"#),
    ("h_small", "smallint", "-3"),
    ("h_numeric", "numeric(10,2)", "1.5"),
    ("h_double", "double precision", "0.1"),
    ("h_uuid", "uuid", "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'"),
    ("h_array", "integer[]", "'{1,NULL,-3}'"),
    ("h_date", "date", "'2024-02-29'"),
];

const PAYLOADS: [(&str, &str); 6] = [
    ("bytea", r"'\x00ff41'"),
    ("json", r#"'{"p":  1.50}'"#),
    ("jsonb", r#"'{"p": 1.50}'"#),
    ("boolean", "false"),
    ("numeric", "1.50"),
    ("integer[]", "'{1,2}'"),
];

/// A table whose route is `char(10)`. `domains`: with a domain over a domain for each type, and an array of domains.
fn create(table: &str, payload: &str, domains: bool) -> String {
    let (mut statements, mut columns) = (Vec::new(), Vec::new());
    let more = [("payload", payload), ("aggregatetype", "char(10)")];
    for (name, plain) in COLUMNS.iter().map(|(name, plain, _)| (*name, *plain)).chain(more) {
        let domain = format!("{table}_{name}");
        let type_name = if !domains {
            plain.to_owned()
        } else if name == "h_array" {
            statements.push(format!("CREATE DOMAIN {domain} AS integer;"));
            format!("{domain}[]")
        } else {
            statements
                .push(format!("CREATE DOMAIN {domain}_below AS {plain}; CREATE DOMAIN {domain} AS {domain}_below;"));
            domain
        };
        columns.push(format!("{name} {type_name}"));
    }
    format!("{} CREATE TABLE {table} ({})", statements.concat(), columns.join(", "))
}

fn insert(table: &str, payload: &str) -> String {
    let names: Vec<&str> = COLUMNS.iter().map(|(name, ..)| *name).collect();
    let values: Vec<&str> = COLUMNS.iter().map(|(.., value)| *value).collect();
    format!(
        "INSERT INTO {table} (aggregatetype, {}, payload) VALUES ('{table}', {}, {payload})",
        names.join(", "),
        values.join(", ")
    )
}

/// Everything that the table's columns decide.
type Part = (Option<i64>, Option<Vec<u8>>, Option<Vec<u8>>, Vec<(String, Option<Vec<u8>>)>, i32);

fn parts(records: Vec<Record>) -> Vec<Part> {
    records.into_iter().map(|it| (it.timestamp, it.key, it.value, it.headers, it.partition)).collect()
}

fn flags(envelope: bool) -> Vec<String> {
    let named = COLUMNS.iter().filter(|(name, ..)| name.starts_with("h_"));
    let flag = if envelope { "--envelope" } else { "--header" };
    let pairs = named.map(|(name, ..)| format!("{flag}={name}={name}"));
    pairs.chain(["--timestamp=due".to_owned(), "--partition-column=part".to_owned()]).collect()
}

/// For each type of payload, both tables give equal records.
#[track_caller]
fn check(more: &[String]) {
    for (payload, value) in PAYLOADS {
        let tables = format!("{}; {}", create("plain", payload, false), create("domains", payload, true));
        let lane = Lane::with(&tables, "plain, domains");
        let more: Vec<&str> = more.iter().map(String::as_str).collect();
        let relay = lane.streaming(&more);
        for table in ["plain", "domains"] {
            lane.sql(&insert(table, value));
        }
        let expected = parts(lane.records("plain"));
        assert_eq!(expected.len(), 1, "{}", relay.log());
        assert_eq!(expected[0].1.as_deref(), Some(&b"k1"[..]), "a key of char(n) has no spaces at its end");
        assert_eq!(parts(lane.records("domains")), expected, "{payload} {more:?}: {}", relay.log());
    }
}

#[test]
fn keys_values_headers_times_and_partitions_of_domains_are_those_of_the_types_below_them() {
    check(&flags(false));
}

#[test]
#[ignore = "slow"]
fn members_of_an_envelope_are_those_of_the_types_below_domains() {
    check(&flags(true));
}

#[test]
#[ignore = "slow"]
fn cloudevents_of_domains_are_those_of_the_types_below_them() {
    for mode in ["binary", "structured"] {
        let source = "--cloudevents-source=/shop".to_owned();
        check(&[format!("--cloudevents={mode}"), source, "--timestamp=due".to_owned()]);
    }
}

#[test]
fn a_domain_that_is_created_while_the_relay_runs_is_the_type_below_it() {
    let lane = Lane::with("CREATE TABLE outbox (id int, type text, payload bytea, h boolean)", "outbox");
    let relay = lane.streaming(&["--header=h=h"]);
    lane.sql(r"INSERT INTO outbox VALUES (1, 'order', '\x00ff', true)");
    wait_events(&relay, 1);
    lane.sql(
        r"CREATE DOMAIN raw AS bytea; CREATE DOMAIN agreed AS boolean;
          CREATE DOMAIN agreed_twice AS agreed;
          ALTER TABLE outbox ALTER payload TYPE raw, ALTER h TYPE agreed_twice;
          INSERT INTO outbox VALUES (2, 'order', '\x00ff', true)",
    );
    let records = lane.records("order");
    assert_eq!(records.len(), 2, "{}", relay.log());
    for record in &records {
        assert_eq!((record.value.as_deref(), record.header("h")), (Some(&[0, 255][..]), Some("true")), "{record:?}");
    }
    // Its rows are still in the slot, and the catalog does not know the domains any more.
    drop(relay);
    lane.sql(r"INSERT INTO outbox VALUES (3, 'order', '\x01', false)");
    lane.sql(
        "ALTER TABLE outbox ALTER payload TYPE bytea, ALTER h TYPE boolean; DROP DOMAIN raw, agreed_twice, agreed",
    );
    let relay = lane.streaming(&["--header=h=h"]);
    let records = lane.records("order");
    let last = records.last().unwrap();
    assert_eq!((last.value.as_deref(), last.header("h")), (Some(&[1][..]), Some("false")), "{}", relay.log());
}

#[test]
fn existing_rows_of_domains_are_read_as_the_types_below_them() {
    let lane = with_old(
        r"CREATE DOMAIN raw AS bytea; CREATE TABLE outbox (id int PRIMARY KEY, type text, payload raw, h raw);
          INSERT INTO outbox VALUES (1, 'order', '\x00ff', '\x41')",
    );
    fill(&lane, &["--header=h=h"]);
    let records = lane.records_now("order");
    assert_eq!((records[0].value.as_deref(), records[0].header("h")), (Some(&[0, 255][..]), Some("A")));
}

#[test]
fn a_domain_that_cannot_play_its_role_is_named_at_the_start() {
    let lane = Lane::with(
        "CREATE DOMAIN counted AS integer; CREATE TABLE outbox (id int, type text, payload text, extra counted)",
        "outbox",
    );
    let (code, log) = ended(&mut lane.relay(&["--headers-column=extra"]));
    assert!(code == 2 && log.contains("integer") && log.contains("json"), "{code} {log}");
}
