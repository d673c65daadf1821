//! Settings of the server, the database and the role change nothing of what walrelay's commands do: every session has its own.

use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use walrelay_dev::kafka::shared_kafka;
use walrelay_dev::postgres::{self, Postgres};
use walrelay_dev::process::wait_until;

use crate::check::checked_as;
use crate::lane::{LONG, Lane, binary, wait_events};
use crate::prune::left;

/// The time-outs that end a session which is idle or slow, and with it a long transaction of the stream.
const TIME_OUTS: [(&str, &str); 5] = [
    ("statement_timeout", "'1ms'"),
    ("lock_timeout", "'1ms'"),
    ("idle_in_transaction_session_timeout", "'1s'"),
    ("idle_session_timeout", "'1s'"),
    ("transaction_timeout", "'1s'"),
];

/// What decides on the meaning of statements, and on the text form of values.
const MEANINGS: [(&str, &str); 14] = [
    ("default_transaction_read_only", "on"),
    ("default_transaction_isolation", "'serializable'"),
    ("default_transaction_deferrable", "on"),
    ("standard_conforming_strings", "off"),
    ("escape_string_warning", "off"),
    ("quote_all_identifiers", "on"),
    ("exit_on_error", "on"),
    ("search_path", "''"),
    ("DateStyle", "'German'"),
    ("TimeZone", "'Asia/Kolkata'"),
    ("IntervalStyle", "'sql_standard'"),
    ("extra_float_digits", "-15"),
    ("bytea_output", "'escape'"),
    ("client_encoding", "'LATIN1'"),
];

/// A server whose own settings, whose database's and whose role `hostile`'s are all of these. Its superuser has none of them.
fn hostile() -> (Postgres, Lane, String) {
    let server = Postgres::start(&postgres::Options::default()).unwrap();
    let lane = Lane::on(&server, shared_kafka().unwrap());
    let mut client = lane.connect();
    let known = client.query("SELECT lower(name) FROM pg_settings", &[]).unwrap();
    let known: Vec<String> = known.iter().map(|row| row.get(0)).collect();
    client.batch_execute("CREATE ROLE hostile LOGIN SUPERUSER").unwrap();
    // `transaction_timeout` came with 17, and on 19 the strings cannot be turned.
    let settings = TIME_OUTS.into_iter().chain(MEANINGS).filter(|(name, _)| known.contains(&name.to_lowercase()));
    let settings =
        settings.filter(|(name, _)| *name != "standard_conforming_strings" || postgres::default_major() < 19);
    for (name, value) in settings {
        let default = format!("SELECT boot_val FROM pg_settings WHERE lower(name) = '{}'", name.to_lowercase());
        let default: String = client.query_one(&default, &[]).unwrap().get(0);
        client.batch_execute(&format!("ALTER ROLE postgres SET {name} = '{default}'")).unwrap();
        client.batch_execute(&format!("ALTER ROLE hostile SET {name} = {value}")).unwrap();
        client.batch_execute(&format!("ALTER DATABASE {} SET {name} = {value}", lane.name)).unwrap();
        client.batch_execute(&format!("ALTER SYSTEM SET {name} = {value}")).unwrap();
    }
    client.batch_execute("ALTER ROLE postgres SET search_path = public").unwrap();
    client.query("SELECT pg_reload_conf()", &[]).unwrap();
    let source = lane.source.replace("postgres@", "hostile@");
    (server, lane, source)
}

/// Runs a command on the lane's place as `hostile`; its code, and what it said.
fn ran(lane: &Lane, source: &str, arguments: &[&str]) -> (i32, String) {
    let mut command = Command::new(binary());
    command.args(arguments).args(["--source", source]).env("WALRELAY_BROKERS", &lane.brokers);
    if arguments[0] != "bench" {
        command.args(["--slot", &lane.name]);
    }
    if !["bench", "dead-letters"].contains(&arguments[0]) {
        command.args(["--publication", &lane.name]);
    }
    let output = command.output().unwrap();
    (output.status.code().unwrap(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}

#[track_caller]
fn well(lane: &Lane, source: &str, arguments: &[&str]) -> String {
    let (code, said) = ran(lane, source, arguments);
    assert_eq!(code, 0, "{arguments:?}: {said}");
    said
}

/// The relay is frozen until the transaction that it reads has taken longer than each time-out.
#[test]
fn every_command_works_under_hostile_settings_of_server_database_and_role() {
    let (_server, lane, source) = hostile();
    lane.sql(
        "CREATE TABLE outbox (id text PRIMARY KEY, aggregatetype text NOT NULL, aggregateid text, payload text,
                              created_at timestamptz NOT NULL DEFAULT now() - interval '1 day');
         INSERT INTO outbox VALUES ('before', 'order', 'k', 'p')",
    );
    well(&lane, &source, &["setup", "--apply", "--table", "public.outbox"]);
    let topic = lane.topic("{route}");
    well(&lane, &source, &["backfill", "--table", "public.outbox", "--yes", "--topic", &topic]);

    let relay = |more: &[&str]| lane.streaming(&[&["--source", &source, "--on-bad-row=skip"], more].concat());
    let mut streaming = relay(&[]);
    streaming.signal(Signal::STOP).unwrap();
    lane.sql(
        "INSERT INTO outbox SELECT n, 'order', 'k' || n % 7, repeat('p', 1000), now() FROM generate_series(1, 30000) AS n",
    );
    // More than the sockets hold: the walsender stands in the middle of the transaction.
    let started = Instant::now();
    wait_until(LONG, "the time-outs to pass", || Ok(started.elapsed() > Duration::from_secs(3))).unwrap();
    streaming.signal(Signal::CONT).unwrap();
    wait_events(&streaming, 30_000);
    lane.wait_confirmed();
    // None came twice.
    assert_eq!(lane.records_now("order").len(), 30_001, "{}", streaming.log());

    let mut arguments = lane.arguments(&["--source", &source, "--json"]);
    "check".clone_into(&mut arguments[0]);
    let found = checked_as(&arguments, &[]);
    assert_eq!(found.code, 0, "{:#}", found.report);

    // A row that is skipped is noted, by an id that strings may change.
    lane.sql(r"INSERT INTO outbox VALUES (E'a\'c', 'no topic', 'k', 'p'), ('old', 'order', 'k', 'p')");
    wait_events(&streaming, 30_001);
    lane.wait_confirmed();
    let shown = well(&lane, &source, &["status"]);
    assert!(shown.contains("active"), "{shown}");
    let text = well(&lane, &source, &["prune", "--older-than", "1h", "--table", "public.outbox"]);
    assert!(text.contains("1 rows that the relay skipped"), "{text}");
    assert!(left(&lane).contains(&"a'c".to_owned()) && !left(&lane).contains(&"old".to_owned()), "{text}");
    assert_eq!(streaming.terminate(LONG).unwrap().code, 0);
    let log = streaming.log();
    assert!(!log.contains("25P04") && !log.contains("57014") && !log.contains("57P05"), "{log}");

    shared_kafka().unwrap().create_topic(&format!("{}.dead-letter", lane.name), 1, &[]).unwrap();
    let listed = Command::new(binary())
        .args(["dead-letters", "--slot", &lane.name, "--brokers", &lane.brokers, "--json"])
        .output()
        .unwrap();
    assert!(listed.status.success(), "{listed:?}");
    well(&lane, &source, &["bench", "--rows", "1000", "--rate", "50", "--seconds", "1", "--sink", "null"]);
    well(&lane, &source, &["teardown", "--yes", "--publication-too"]);
}
