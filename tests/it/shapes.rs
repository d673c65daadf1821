//! Tables of every shape, that change while the relay runs, in databases with defaults of their own.

use std::time::Duration;

use walrelay_dev::kafka::shared_kafka;
use walrelay_dev::postgres::{default_major, shared_postgres, unique_name};
use walrelay_dev::process::wait_until;

use crate::lane::{LONG, Lane, OUTBOX, ended, ids, quoted, values, wait_events};

#[test]
fn columns_added_dropped_and_renamed_take_effect_at_that_place_in_the_stream() {
    let lane = Lane::with(&format!("{OUTBOX}; ALTER TABLE outbox ADD extra text DEFAULT 'e'"), "outbox");
    let relay = lane.streaming(&[]);
    lane.sql("INSERT INTO outbox VALUES ('1', 'order', 'k', 't', '1')");
    wait_events(&relay, 1);
    lane.sql(
        "ALTER TABLE outbox ADD headers jsonb;
         INSERT INTO outbox VALUES ('2', 'order', 'k', 't', '2', 'e', '{\"h\": 2}');
         ALTER TABLE outbox DROP extra;
         INSERT INTO outbox VALUES ('3', 'order', 'k', 't', '3', '{\"h\": 3}');
         ALTER TABLE outbox RENAME payload TO event_data;
         INSERT INTO outbox VALUES ('4', 'order', 'k', 't', '4', '{\"h\": 4}');
         BEGIN;
         INSERT INTO outbox VALUES ('5', 'order', 'k', 't', '5', '{\"h\": 5}');
         ALTER TABLE outbox DROP headers;
         INSERT INTO outbox VALUES ('6', 'order', 'k', 't', '6');
         ALTER TABLE outbox ADD seq int, DROP type;
         INSERT INTO outbox VALUES ('7', 'order', 'k', '7', 7);
         ALTER TABLE outbox RENAME TO outbox2;
         INSERT INTO outbox2 VALUES ('8', 'order', 'k', '8', 8);
         COMMIT;",
    );
    let records = lane.records("order");
    assert_eq!(ids(&records), ["1", "2", "3", "4", "5", "6", "7", "8"]);
    assert_eq!(values(&records), ["1", "2", "3", "4", "5", "6", "7", "8"]);
    let headers: Vec<Option<&str>> = records.iter().map(|record| record.header("h")).collect();
    assert_eq!(headers, [None, Some("2"), Some("3"), Some("4"), Some("5"), None, None, None]);
    let with_type = records.iter().filter(|record| record.header("eventType").is_some()).count();
    assert_eq!(with_type, 6);
}

#[test]
fn a_table_that_changes_its_shape_under_load_loses_nothing() {
    let lane = Lane::debezium();
    let relay = lane.streaming(&[]);
    let writer = std::thread::spawn({
        let mut client = lane.connect();
        move || {
            for n in 0..300 {
                let row = format!(
                    "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) VALUES ('{n}', 'order', 'k', 't', '{n}')"
                );
                client.batch_execute(&row).unwrap();
            }
        }
    });
    let mut client = lane.connect();
    while !writer.is_finished() {
        client.batch_execute("ALTER TABLE outbox ADD spare int; ALTER TABLE outbox DROP spare").unwrap();
    }
    writer.join().unwrap();
    let expected: Vec<String> = (0..300).map(|n| n.to_string()).collect();
    let records = lane.records("order");
    assert_eq!((ids(&records), values(&records)), (expected.clone(), expected), "{}", relay.log());
}

#[test]
fn a_stored_generated_column_is_found_where_the_publication_has_it() {
    // They are sent since 18.
    if default_major() < 18 {
        return;
    }
    let lane = Lane::empty();
    lane.sql(
        "CREATE TABLE outbox (id int, type text, amount int, payload text GENERATED ALWAYS AS ('amount ' || amount::text) STORED);
         CREATE TABLE plain (id int, type text, payload text, double int GENERATED ALWAYS AS (id * 2) STORED)",
    );
    let options = "publish = 'insert', publish_generated_columns = stored";
    lane.sql(&format!("CREATE PUBLICATION {} FOR TABLE outbox WITH ({options})", lane.name));
    lane.make_slot();
    let mut relay = lane.streaming(&[]);
    lane.sql("INSERT INTO outbox VALUES (1, 'order', 7)");
    assert_eq!(values(&lane.records("order")), ["amount 7"], "{}", relay.log());
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
    // Without the option it is one only where a column list has it.
    lane.sql(&format!("ALTER PUBLICATION {} SET (publish_generated_columns = none)", lane.name));
    lane.sql(&format!("ALTER PUBLICATION {} SET TABLE outbox (id, type, payload), plain", lane.name));
    let mut relay = lane.streaming(&[]);
    lane.sql("INSERT INTO outbox VALUES (2, 'order', 8)");
    lane.sql("INSERT INTO plain VALUES (3, 'order', 'p')");
    let mut found = values(&lane.records("order"));
    found.sort();
    assert_eq!(found, ["amount 7", "amount 8", "p"], "{}", relay.log());
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
    let (code, log) = ended(&mut lane.relay(&["--header=double=double"]));
    assert_eq!(code, 2, "{log}");
}

/// A place in a database whose encoding is no UTF-8.
fn in_encoding(encoding: &str, table: &str) -> Lane {
    let (postgres, kafka) = (shared_postgres().unwrap(), shared_kafka().unwrap());
    let name = unique_name("lane");
    let create = format!("CREATE DATABASE {name} ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0");
    postgres.connect(None).unwrap().batch_execute(&create).unwrap();
    let source = postgres.url(&name);
    Lane { name, source, brokers: kafka.brokers(), client: kafka.client_config() }.furnish(table, "outbox")
}

#[test]
fn bytes_of_a_database_without_an_encoding_arrive_as_they_are_and_only_text_that_must_be_utf8_is_a_bad_row() {
    let lane =
        in_encoding("SQL_ASCII", "CREATE TABLE outbox (id int, type text, aggregateid text, payload text, note text)");
    // No server of UTF-8 would send such a text, of whichever column.
    lane.sql(r"INSERT INTO outbox SELECT 1, 'order', raw, raw, raw FROM convert_from('\xe9ff', 'SQL_ASCII') AS raw");
    let _relay = lane.streaming(&["--on-bad-row=skip"]);
    let records = lane.records("order");
    let bytes = &[0xE9, 0xFF][..];
    let found = records.iter().map(|record| (record.key.as_deref(), record.value.as_deref())).collect::<Vec<_>>();
    assert_eq!(found, [(Some(bytes), Some(bytes))]);
    lane.sql(r"INSERT INTO outbox SELECT 2, convert_from('\xe9', 'SQL_ASCII'), NULL, 'p'; INSERT INTO outbox VALUES (3, 'order', NULL, 'p')");
    wait_until(LONG, "the third row", || Ok(lane.records("order").len() == 2)).unwrap();
}

#[test]
fn bytes_that_are_no_character_of_the_databases_encoding_stop_the_relay_with_what_gets_past_them() {
    let lane = in_encoding("WIN1252", "CREATE TABLE outbox (id int, type text, payload text)");
    lane.sql("INSERT INTO outbox VALUES (1, 'order', chr(129))");
    let (code, log) = ended(&mut lane.relay(&[]));
    assert_eq!(code, 2, "{log}");
    assert!(log.contains("has no equivalent in encoding \"UTF8\" [SQLSTATE 22P05]"), "{log}");
    assert!(log.contains("hint: ") && log.contains("docs/operations/republish.md"), "{log}");
}

#[test]
#[ignore = "slow"]
fn a_table_that_leaves_the_publication_under_a_relay_that_streams_is_reported_at_once_and_over_when_it_is_back() {
    let lane = Lane::with(OUTBOX, "outbox");
    let relay = lane.streaming(&[]);
    // As a migration does that replaces the table: the publication has the old one only.
    lane.sql(&format!("DROP TABLE outbox; {OUTBOX}; INSERT INTO outbox VALUES ('1', 'order', 'k', 't', '1')"));
    let tells = || Ok(relay.log().contains("rows that are committed now may be in no slot"));
    wait_until(LONG, "the relay to tell", tells).unwrap_or_else(|error| panic!("{error}: {}", relay.log()));
    let error = format!("publication \"{}\" has no table", lane.name);
    let unready = relay.get("/readyz").unwrap();
    assert!(unready.status == 503 && unready.body.contains(&error), "{unready:?} {}", relay.log());
    assert!(relay.log().contains(&error.replace('"', "\\\"")), "{}", relay.log());
    lane.sql(&format!("ALTER PUBLICATION {} ADD TABLE outbox", lane.name));
    wait_until(LONG, "that it is over", || Ok(relay.get("/readyz")?.status == 200)).unwrap();
    lane.sql("INSERT INTO outbox VALUES ('2', 'order', 'k', 't', '2')");
    assert_eq!(lane.ids("order"), ["2"]);
}

#[test]
#[ignore = "slow"]
fn hostile_defaults_of_database_and_role_change_no_record() {
    let lane = Lane::with(
        "CREATE TABLE outbox (id int, type text, payload text, ts timestamptz, d date, iv interval, f float8, b bytea,
                              n numeric, a text[], u text)",
        "outbox",
    );
    let role = lane.name.clone();
    lane.sql(&format!("CREATE ROLE {role} LOGIN SUPERUSER REPLICATION"));
    let hostile = [
        ("DateStyle", "'German'"),
        ("TimeZone", "'Asia/Kolkata'"),
        ("IntervalStyle", "'sql_standard'"),
        ("extra_float_digits", "-15"),
        ("bytea_output", "'escape'"),
        ("client_encoding", "'LATIN1'"),
        ("standard_conforming_strings", "off"),
        ("backslash_quote", "off"),
        ("search_path", "''"),
        ("statement_timeout", "'3s'"),
        ("lock_timeout", "'1s'"),
        ("default_transaction_read_only", "on"),
        ("default_transaction_isolation", "'serializable'"),
        ("row_security", "off"),
        ("idle_in_transaction_session_timeout", "'1s'"),
        ("idle_session_timeout", "'1s'"),
        ("transaction_timeout", "'3s'"),
        ("lc_messages", "'C'"),
        ("xmlbinary", "'hex'"),
        ("jit", "on"),
        ("quote_all_identifiers", "on"),
        ("log_min_duration_statement", "0"),
    ];
    let known: Vec<String> = lane
        .connect()
        .query("SELECT name FROM pg_settings", &[])
        .unwrap()
        .iter()
        .map(|row| row.get::<_, String>(0).to_lowercase())
        .collect();
    // One of them came with 17.
    for (name, value) in hostile.into_iter().filter(|(name, _)| known.contains(&name.to_lowercase())) {
        lane.sql(&format!("ALTER ROLE {role} SET {name} = {value}"));
        if name != "default_transaction_read_only" {
            lane.sql(&format!("ALTER DATABASE {} SET {name} = {value}", lane.name));
        }
    }
    let source = lane.source.replace("postgres@", &format!("{role}@"));
    let columns = ["ts", "d", "iv", "f", "b", "n", "a", "u"].map(|name| format!("--header={name}={name}"));
    let mut more: Vec<&str> = columns.iter().map(String::as_str).collect();
    more.extend(["--source", &source]);
    let relay = lane.streaming(&more);
    // Longer than each of the timeouts above that ends sessions.
    let started = std::time::Instant::now();
    wait_until(LONG, "timeouts to pass", || Ok(started.elapsed() > Duration::from_secs(4))).unwrap();
    lane.sql(
        "SET search_path = public; SET TimeZone = 'UTC'; SET DateStyle = 'ISO, MDY'; SET client_encoding = 'UTF8';
         INSERT INTO outbox VALUES (1, 'order', 'äöü €', '2024-02-29 12:34:56.789+00', '2024-02-29', '1 day 02:03:04',
             0.1::float8 + 0.2::float8, decode('ff005c', 'hex'), 1.50, ARRAY['a b', NULL, '\"'], 'ü€')",
    );
    let records = lane.records("order");
    assert_eq!(values(&records), ["äöü €"]);
    let record = &records[0];
    let texts = ["ts", "d", "iv", "f", "n", "a", "u"].map(|name| record.header(name).unwrap_or("none"));
    let expected = [
        "2024-02-29 12:34:56.789+00",
        "2024-02-29",
        "1 day 02:03:04",
        "0.30000000000000004",
        "1.50",
        r#"{"a b",NULL,"\""}"#,
        "ü€",
    ];
    assert_eq!(texts, expected);
    let bytes = record.headers.iter().find(|(name, _)| name == "b").unwrap();
    assert_eq!(bytes.1.as_deref(), Some(&[0xFF, 0x00, 0x5C][..]));
    assert!(!relay.log().contains("no connection"), "{}", relay.log());
    drop(relay);
    // A role outlives its test's database otherwise.
    lane.sql(&format!("SET default_transaction_read_only = off; DROP ROLE {role}"));
}

#[test]
fn names_that_need_quotes_work_everywhere() {
    let lane = Lane::empty();
    let (schema, table, publication) = ("My.Schema", "Out \"Box'\\ é", "Pub \"x\"; --, 'y'\\");
    let full = format!("{}.{}", quoted(schema), quoted(table));
    lane.sql(&format!("CREATE SCHEMA {}", quoted(schema)));
    lane.sql(&format!("CREATE TABLE {full} (id int, \"Aggregate Type\" text, payload text, \"X\"\"Y\" text)"));
    lane.sql(&format!("CREATE PUBLICATION {} FOR TABLE {full} WITH (publish = 'insert')", quoted(publication)));
    lane.make_slot();
    let more = ["--publication", publication, "--table", &full, "--route-column=Aggregate Type", "--header=h=X\"Y"];
    let _relay = lane.streaming(&more);
    lane.sql(&format!("INSERT INTO {full} VALUES (1, 'order', 'p', 'x')"));
    let records = lane.records("order");
    assert_eq!((ids(&records), records[0].header("h")), (vec!["1".to_owned()], Some("x")));
}

#[test]
fn two_tables_of_different_shape_share_a_slot() {
    let lane = Lane::with(
        "CREATE TABLE outbox_events (id bigint, aggregate_id text, aggregate_type text, event_type text, event_data jsonb, event_version int);
         CREATE TABLE outbox_tasks (id uuid, task_type text, payload bytea, seq bigint)",
        "outbox_events, outbox_tasks",
    );
    let _relay = lane.streaming(&[]);
    lane.sql(
        "BEGIN;
         INSERT INTO outbox_events VALUES (1, 'a-1', 'account', 'Opened', '{\"b\": 1, \"a\": 2}', 3);
         INSERT INTO outbox_tasks VALUES ('0192d2c8-5b5c-7c3e-9d3e-0d8f6f3a1b2c', 'mail', '\\x00ff', 1);
         INSERT INTO outbox_events VALUES (2, 'a-1', 'account', 'Closed', NULL, 3);
         COMMIT",
    );
    let events = lane.records("account");
    assert_eq!(
        (ids(&events), values(&events)),
        (vec!["1".into(), "2".into()], vec![r#"{"a": 2, "b": 1}"#.into(), String::new()])
    );
    assert_eq!(events[0].header("eventType"), Some("Opened"));
    let tasks = lane.records_now("mail");
    assert_eq!((tasks[0].key.clone(), tasks[0].value.clone()), (None, Some(vec![0x00, 0xFF])));
    assert_eq!(ids(&tasks), ["0192d2c8-5b5c-7c3e-9d3e-0d8f6f3a1b2c"]);
}

#[test]
fn a_column_that_becomes_bytea_while_running_is_still_exact() {
    let lane = Lane::with("CREATE TABLE outbox (id int, type text, payload bytea)", "outbox");
    // Rows without a key go anywhere.
    shared_kafka().unwrap().create_topic(&lane.topic("order"), 1, &[]).unwrap();
    let relay = lane.streaming(&["--header=at=id"]);
    lane.sql("INSERT INTO outbox VALUES (1, 'order', '\\x01ff')");
    wait_events(&relay, 1);
    // Numeric has no place in a binary stream: the connection has to be recreated, in text.
    lane.sql(
        "ALTER TABLE outbox ALTER id TYPE numeric(10, 2);
         INSERT INTO outbox VALUES (2.5, 'order', '\\x02ff');
         ALTER TABLE outbox ALTER payload TYPE text USING 'x';
         INSERT INTO outbox VALUES (3, 'order', 'three');",
    );
    let records = lane.records("order");
    let all: Vec<&[u8]> = records.iter().map(|record| record.value.as_deref().unwrap()).collect();
    assert_eq!(all, [&[0x01, 0xFF][..], &[0x02, 0xFF], b"three"], "{}", relay.log());
    assert_eq!(ids(&records), ["1", "2.50", "3.00"]);
}

#[test]
fn a_table_that_comes_and_goes_beside_the_one_asked_for_holds_nothing_up() {
    let lane = Lane::empty();
    lane.sql(OUTBOX);
    lane.sql(&format!("CREATE PUBLICATION {} FOR ALL TABLES WITH (publish = 'insert')", lane.name));
    lane.make_slot();
    let relay = lane.streaming(&["--table", "outbox"]);
    lane.sql(
        "CREATE TABLE passing AS SELECT 1 AS nothing; INSERT INTO passing VALUES (2); DROP TABLE passing;
         INSERT INTO outbox VALUES ('1', 'order', 'k', 't', '1');
         CREATE TABLE other (LIKE outbox); INSERT INTO other VALUES ('no', 'order', 'k', 't', '1');
         INSERT INTO outbox VALUES ('2', 'order', 'k', 't', '1');",
    );
    assert_eq!(lane.ids("order"), ["1", "2"]);
    assert!(relay.log().contains("public.passing"), "{}", relay.log());
}

#[test]
fn a_backlog_across_changes_of_shape_is_read_with_the_shapes_of_its_time() {
    let lane = Lane::with(&format!("{OUTBOX}; ALTER TABLE outbox ADD spare int DEFAULT 7"), "outbox");
    lane.sql(
        "INSERT INTO outbox VALUES ('1', 'order', 'k', 't', '1');
         ALTER TABLE outbox RENAME payload TO data;
         INSERT INTO outbox VALUES ('2', 'order', 'k', 't', '2');
         ALTER TABLE outbox DROP spare, DROP type;
         INSERT INTO outbox VALUES ('3', 'order', 'k', '3');
         ALTER TABLE outbox ADD headers jsonb, ADD type text;
         INSERT INTO outbox VALUES ('4', 'order', 'k', '4', '{\"h\": 4}', 't');
         ALTER TABLE outbox DROP data, ADD payload text;
         INSERT INTO outbox VALUES ('5', 'order', 'k', '{\"h\": 5}', 't', '5')",
    );
    let mut relay = lane.relay(&["--header=key=aggregateid"]);
    let records = lane.records("order");
    assert_eq!(
        (ids(&records), values(&records)),
        (
            vec!["1", "2", "3", "4", "5"].into_iter().map(str::to_owned).collect(),
            ["1", "2", "3", "4", "5"].map(str::to_owned).to_vec()
        ),
        "{}",
        relay.log()
    );
    let headers: Vec<_> = records.iter().map(|r| (r.header("eventType"), r.header("h"), r.header("key"))).collect();
    let (t, k) = (Some("t"), Some("k"));
    assert_eq!(headers, [(t, None, k), (t, None, k), (None, None, k), (t, Some("4"), k), (t, Some("5"), k)]);
    assert_eq!(relay.terminate(LONG).unwrap().code, 0);
}

/// A row, its payload's column renamed, and a row after that if there is to be one.
fn renamed(after: bool) -> Lane {
    let lane = Lane::with(
        "CREATE TABLE outbox (id text, aggregatetype text, aggregateid text, type text, content bytea)",
        "outbox",
    );
    lane.sql("INSERT INTO outbox VALUES ('1', 'order', 'k', 't', 'one')");
    lane.sql("ALTER TABLE outbox RENAME content TO body");
    if after {
        lane.sql("INSERT INTO outbox VALUES ('2', 'order', 'k', 't', 'two')");
    }
    lane
}

#[test]
fn a_backlog_across_the_rename_of_a_column_that_a_flag_names_goes_through_with_the_old_flag_and_then_the_new() {
    let lane = renamed(true);
    let (code, log) = ended(&mut lane.relay(&["--payload-column=content"]));
    assert_eq!(code, 2, "{log}");
    assert!(log.contains("no column \"content\", which --payload-column names"), "{log}");
    assert_eq!(ids(&lane.records_now("order")), ["1"]);
    let relay = lane.relay(&["--payload-column=body"]);
    let records = lane.records("order");
    assert_eq!(
        (ids(&records).join(" "), values(&records).join(" ")),
        ("1 2".into(), "one two".into()),
        "{}",
        relay.log()
    );
}

#[test]
fn a_rename_with_no_row_behind_it_stops_the_relay_once_the_rows_before_it_are_through() {
    let lane = renamed(false);
    for _ in 0..2 {
        let (code, log) = ended(&mut lane.relay(&["--payload-column=content"]));
        assert_eq!(code, 2, "{log}");
        assert!(log.contains("no column \"content\", which --payload-column names"), "{log}");
        assert_eq!(ids(&lane.records_now("order")), ["1"], "{log}");
    }
    let _relay = lane.relay(&["--payload-column=body"]);
    lane.sql("INSERT INTO outbox VALUES ('2', 'order', 'k', 't', 'two')");
    assert_eq!(lane.ids("order"), ["1", "2"]);
}
