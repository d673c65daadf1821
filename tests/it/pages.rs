//! What an operator sees of a running relay.

use crate::lane::{LONG, Lane, wait_events};
use walrelay_dev::process::wait_until;

/// The metrics that dashboards are made of.
const METRICS: [&str; 16] = [
    "walrelay_event_bytes_total",
    "walrelay_transactions_total",
    "walrelay_reconnects_total",
    "walrelay_in_flight_records",
    "walrelay_in_flight_bytes",
    "walrelay_confirmed_lsn_bytes",
    "walrelay_received_lsn_bytes",
    "walrelay_lag_seconds",
    "walrelay_seconds_since_last_ack",
    "walrelay_oldest_in_flight_seconds",
    "walrelay_publish_latency_seconds_bucket",
    "walrelay_publish_latency_seconds_sum",
    "walrelay_publish_latency_seconds_count",
    "walrelay_state",
    "walrelay_build_info",
    "walrelay_events_total",
];

/// Those that have samples once something has happened, or the slot has been looked at.
const DECLARED: [&str; 6] = [
    "walrelay_bad_rows",
    "walrelay_ignored",
    "walrelay_publish_failures",
    "walrelay_slot_lag_bytes",
    "walrelay_slot_retained_wal_bytes",
    "walrelay_slot_wal_status",
];

const KEYS: [&str; 13] = [
    "slot",
    "publication",
    "state",
    "confirmed_lsn",
    "received_lsn",
    "lag_bytes",
    "in_flight_records",
    "in_flight_bytes",
    "events_total",
    "last_ack_seconds",
    "last_error",
    "uptime_seconds",
    "version",
];

#[test]
fn a_running_relay_tells_what_it_does() {
    let lane = Lane::debezium();
    let relay = lane.streaming(&[]);
    lane.sql("INSERT INTO outbox SELECT n, 'order', 'k', 't', '123' FROM generate_series(1, 40) AS n");
    lane.sql("INSERT INTO outbox SELECT n, 'invoice', 'k', 't', '123' FROM generate_series(41, 42) AS n");
    lane.wait_confirmed();
    wait_events(&relay, 42);
    let metrics = relay.get("/metrics").unwrap().body;
    let label = format!("slot=\"{}\"", lane.name);
    for name in METRICS {
        let samples: Vec<&str> = metrics.lines().filter(|line| line.starts_with(&format!("{name}{{"))).collect();
        assert!(!samples.is_empty() && samples.iter().all(|line| line.contains(&label)), "{name}: {metrics}");
    }
    for name in DECLARED {
        assert!(metrics.contains(&format!("# TYPE {name}")), "{name}: {metrics}");
    }
    let order = format!("walrelay_events_total{{{label},topic=\"{}\"}} 40", lane.topic("order"));
    assert!(metrics.contains(&order), "{order} in {metrics}");
    for (name, value) in [
        ("walrelay_events_total", 42.0),
        ("walrelay_event_bytes_total", 42.0 * 4.0),
        ("walrelay_transactions_total", 2.0),
        ("walrelay_in_flight_records", 0.0),
        ("walrelay_publish_latency_seconds_count", 42.0),
    ] {
        let found = relay.metric(name).unwrap();
        let close = (found - value).abs() < 0.1;
        assert!(close || name.ends_with("_seconds_count"), "{name}: {found}");
    }
    let status = relay.status().unwrap();
    let keys: Vec<&String> = status.as_object().unwrap().keys().collect();
    assert_eq!(keys, KEYS);
    assert_eq!((&status["state"], &status["events_total"]), (&"streaming".into(), &42.into()));
    assert_eq!((&status["slot"], &status["publication"]), (&lane.name.clone().into(), &lane.name.clone().into()));
    // Keepalives move it meanwhile, since others write to the same server.
    wait_until(LONG, "the slot's own word for what is confirmed", || {
        Ok(relay.status()?["confirmed_lsn"].as_str() == Some(lane.confirmed().as_str()))
    })
    .unwrap();
    for (path, code) in [("/livez", 200), ("/healthz", 200), ("/readyz", 200), ("/", 200), ("/nothing", 404)] {
        assert_eq!(relay.get(path).unwrap().status, code, "{path}");
    }
}

#[test]
fn an_http_address_that_is_taken_is_an_operators_affair() {
    let lane = Lane::debezium();
    let taken = lane.streaming(&[]);
    let arguments = lane.arguments(&[&format!("--http=127.0.0.1:{}", taken.http_port())]);
    let output = walrelay_dev::relay::run(&crate::lane::binary(), &arguments).unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains(&taken.http_port().to_string()), "{said}");
}
