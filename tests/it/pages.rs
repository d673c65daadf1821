//! What an operator sees of a running relay.

use crate::lane::{LONG, Lane, wait_events, wait_log};
use std::collections::BTreeSet;
use std::os::unix::net::UnixDatagram;
use walrelay_dev::process::wait_until;
use walrelay_dev::relay::Relay;

/// The metrics that dashboards are made of.
const METRICS: [&str; 21] = [
    "walrelay_bad_rows_total",
    "walrelay_ignored_total",
    "walrelay_publish_failures_total",
    "walrelay_event_bytes_total",
    "walrelay_transactions_total",
    "walrelay_reconnects_total",
    "walrelay_in_flight_records",
    "walrelay_in_flight_bytes",
    "walrelay_producers",
    "walrelay_confirmed_lsn_bytes",
    "walrelay_received_lsn_bytes",
    "walrelay_lag_seconds",
    "walrelay_last_ack_timestamp_seconds",
    "walrelay_seconds_since_last_ack",
    "walrelay_oldest_in_flight_seconds",
    "walrelay_publish_latency_seconds_bucket",
    "walrelay_publish_latency_seconds_sum",
    "walrelay_publish_latency_seconds_count",
    "walrelay_state",
    "walrelay_build_info",
    "walrelay_events_total",
];

/// Those that have samples once the slot has been looked at.
const DECLARED: [&str; 6] = [
    "walrelay_oldest_unpublished_seconds",
    "walrelay_slot_lag_bytes",
    "walrelay_slot_retained_wal_bytes",
    "walrelay_slot_wal_status",
    "walrelay_slot_safe_wal_bytes",
    "walrelay_slot_active",
];

const KEYS: [&str; 15] = [
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
    "tried_alone",
    "last_error",
    "hint",
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
fn counters_of_errors_begin_with_0_and_not_with_the_first_error() {
    let lane = Lane::debezium();
    let relay = lane.relay(&["--source", "postgres://postgres@127.0.0.1:1/x"]);
    wait_log(&relay, "Postgres connection failed; retrying");
    let metrics = relay.get("/metrics").unwrap().body;
    for (name, label, values) in [
        ("walrelay_bad_rows_total", "reason", &["invalid_topic", "updated", "above_max_row", "too_large"][..]),
        ("walrelay_publish_failures_total", "reason", &["too_large", "unknown_topic", "timed_out", "other"]),
        ("walrelay_ignored_total", "kind", &["update", "non_transactional_message"]),
    ] {
        for value in values {
            let sample = format!("{name}{{slot=\"{}\",{label}=\"{value}\"}} 0\n", lane.name);
            assert!(metrics.contains(&sample), "{sample} in {metrics}");
        }
    }
}

#[test]
fn the_page_shows_what_happened_and_what_to_do() {
    let lane = Lane::debezium();
    let relay = lane.streaming(&[]);
    lane.sql("INSERT INTO outbox SELECT n, 'order', 'k', 't', '123' FROM generate_series(1, 1234) AS n");
    wait_page(&relay, &["1,234 records since the start", &lane.topic("order"), "<h1 class=\"good\">Streaming.</h1>"]);
    lane.sql("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = current_database()");
    let page = wait_page(&relay, &["terminating connection due to administrator command", "connects again by itself"]);
    for part in [
        "prefers-color-scheme: dark",
        "<meta name=\"viewport\"",
        "<noscript><meta http-equiv=\"refresh\"",
        "role=\"img\"",
    ] {
        assert!(page.contains(part), "no {part} in {page}");
    }
    let outside: Vec<&str> =
        page.split("://").skip(1).filter(|rest| !rest.starts_with("www.w3.org/2000/svg")).collect();
    assert!(outside.is_empty(), "the page leads elsewhere: {outside:?}");
}

/// Waits until the page has all of these.
#[track_caller]
fn wait_page(relay: &Relay, parts: &[&str]) -> String {
    let mut page = String::new();
    let found = wait_until(LONG, &format!("{parts:?} on the page"), || {
        // Where a long name may break is not looked at.
        page = relay.get("/")?.body.replace("<wbr>", "");
        Ok(parts.iter().all(|part| page.contains(part)))
    });
    found.unwrap_or_else(|error| panic!("{error}: {page}"));
    page
}

#[test]
fn alerts_and_dashboard_name_metrics_that_there_are() {
    let lane = Lane::debezium();
    let relay = lane.streaming(&[]);
    let metrics = relay.get("/metrics").unwrap().body;
    let declared: BTreeSet<&str> =
        metrics.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    for file in ["docker/prometheus/alerts.yml", "docker/grafana/walrelay.json", "docs/operations.md"] {
        let text = std::fs::read_to_string(walrelay_dev::repository().join(file)).unwrap();
        let names: BTreeSet<&str> = text
            .split(|character: char| !character.is_ascii_alphanumeric() && character != '_')
            .filter(|word| word.starts_with("walrelay_") || word.starts_with("process_"))
            .collect();
        assert!(!names.is_empty(), "{file}");
        for name in names {
            let family = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(suffix));
            let is_it = |metric: &str| {
                // What is written with a star behind it stands for all that begin so.
                if name.ends_with('_') { metric.starts_with(name) } else { metric == name || family == Some(metric) }
            };
            assert!(declared.iter().any(|metric| is_it(metric)), "{file} names {name}");
        }
    }
}

#[test]
fn every_alert_has_its_entry_in_the_runbook() {
    let read = |file: &str| std::fs::read_to_string(walrelay_dev::repository().join(file)).unwrap();
    let (alerts, runbook) = (read("docker/prometheus/alerts.yml"), read("docs/operations.md"));
    let entry = |name: &str| {
        let (_, behind) = runbook.split_once(&format!("\n### {name}\n"))?;
        Some(behind.split("\n##").next().unwrap_or_default().to_owned())
    };
    let after = |label: &str| -> Vec<&str> {
        alerts.lines().filter_map(|line| line.trim().strip_prefix(label)).map(str::trim).collect()
    };
    let (names, links) = (after("- alert: "), after("runbook_url: "));
    assert!(names.len() > 10 && names.len() == links.len(), "{names:?}: {links:?}");
    let anchors: BTreeSet<String> = names.iter().map(|name| name.to_lowercase()).collect();
    for (name, link) in names.iter().zip(links) {
        let entry = entry(name).unwrap_or_else(|| panic!("{name} has no entry"));
        assert!(!entry.trim().is_empty(), "{name} has an empty entry");
        let (_, anchor) = link.split_once("docs/operations.md#").unwrap_or_else(|| panic!("{name} leads to {link}"));
        // An alert may lead to another one's entry that its own refers to.
        let known =
            anchor == name.to_lowercase() || (anchors.contains(anchor) && entry.contains(&format!("(#{anchor})")));
        assert!(known, "{name} leads to {link}");
    }
}

#[test]
fn a_service_manager_hears_of_start_life_and_stop() {
    let lane = Lane::debezium();
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("notify");
    let manager = UnixDatagram::bind(&socket).unwrap();
    manager.set_read_timeout(Some(LONG)).unwrap();
    let environment = [("NOTIFY_SOCKET", socket.to_str().unwrap()), ("WATCHDOG_USEC", "600000")];
    let mut relay = Relay::start(&crate::lane::binary(), &lane.arguments(&[]), &environment).unwrap();
    assert_eq!(told(&manager), "READY=1");
    let mut fed = 0;
    loop {
        let sign = told(&manager);
        assert!(sign.starts_with("STATUS=") && sign.ends_with("WATCHDOG=1"), "{sign}");
        fed += u32::from(sign.starts_with("STATUS=Streaming.\n"));
        if fed == 3 {
            break;
        }
    }
    let ended = relay.terminate(LONG).unwrap();
    let stopping = std::iter::repeat_with(|| told(&manager)).find(|sign| !sign.starts_with("STATUS=")).unwrap();
    assert!(stopping.starts_with("STOPPING=1\n"), "{stopping}");
    assert_eq!(ended.code, 0);
}

#[test]
fn a_relay_that_holds_after_its_stop_is_alive_to_its_service_manager() {
    let lane = Lane::debezium();
    lane.sql(&format!("DROP PUBLICATION {}", lane.name));
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("notify");
    let manager = UnixDatagram::bind(&socket).unwrap();
    manager.set_read_timeout(Some(LONG)).unwrap();
    let environment = [("NOTIFY_SOCKET", socket.to_str().unwrap()), ("WATCHDOG_USEC", "600000")];
    let mut relay = Relay::start(&crate::lane::binary(), &lane.arguments(&["--on-stop=hold"]), &environment).unwrap();
    assert_eq!(told(&manager), "READY=1");
    let mut fed = 0;
    while fed < 3 {
        let sign = told(&manager);
        assert!(sign.starts_with("STATUS=") && sign.ends_with("\nWATCHDOG=1"), "{sign}");
        fed += u32::from(sign.starts_with("STATUS=Stopped. "));
    }
    assert_eq!(relay.get("/livez").unwrap().status, 200);
    assert_eq!(relay.get("/readyz").unwrap().status, 503);
    assert_eq!(relay.terminate(LONG).unwrap().code, 2);
}

fn told(manager: &UnixDatagram) -> String {
    let mut buffer = [0; 4096];
    let length = manager.recv(&mut buffer).unwrap();
    String::from_utf8_lossy(&buffer[..length]).into_owned()
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
