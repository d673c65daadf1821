//! Tests which errors the supervisor waits out, and which ones end the run.

use super::*;
use crate::outbox::{Mapping, Outbox};
use crate::pg::source::Environment;
use crate::relay::{Limits, SystemClock};
use crate::remedy::Remedy;
use crate::sink::stdout::StdoutSink;
use crate::sink::{Failure, FailureClass};
use std::time::Instant;

fn supervisor() -> Supervisor<PgServer, StdoutSink<Vec<u8>>, SystemClock> {
    let source = Source::resolve(Some("postgres://u@127.0.0.1:1/d"), &Environment::default()).unwrap().source;
    let (slot, publication) = ("s".to_owned(), "p".to_owned());
    let target = StreamTarget {
        source,
        publication,
        slot,
        shard: None,
        tables: vec![],
        without_children: vec![],
        patterns: TablePatterns::default(),
        messages: false,
        only_local: false,
        max_row: 1,
        temporary_slot: None,
        accept_slot_at: None,
    };
    let limits = Limits {
        coalesce: Duration::ZERO,
        shutdown_timeout: Duration::from_secs(8),
        disconnect_after: Duration::from_secs(30),
    };
    let metrics = Arc::new(Metrics::new("s", "p", Instant::now()));
    let outbox = Outbox::new(Mapping::default(), Vec::new()).unwrap();
    let (sink, stop) = (StdoutSink::new(Vec::new()), Arc::default());
    let relay = Relay::new(outbox, sink, SystemClock, Arc::clone(&metrics), stop, limits);
    Supervisor::new(PgServer::new(target), relay, metrics)
}

#[test]
fn a_row_above_the_limit_is_for_an_operator_and_names_the_flag() {
    let error = RunError::from(pg::Error::Frame(FrameError::TooLarge { tag: b'd', length: 2000, limit: 1000 }));
    assert_eq!(error.kind, ExitKind::Operator);
    let hint = error.remedy.unwrap().to_string();
    assert!(hint.contains("--max-row 2KiB"), "{hint}");
}

#[test]
fn a_refusal_is_waited_out_for_some_minutes_if_the_relay_has_streamed_before() {
    let refusal = |code: &str| {
        let error = Box::new(pg::ServerError { code: code.to_owned(), ..pg::ServerError::default() });
        pg::Error::LoginRefused { host: "h".to_owned(), error }
    };
    for code in ["28000", "3D000", "42501", "0A000", "55000", "P0001", "22023", "23505", "54000"] {
        let mut supervisor = supervisor();
        assert!(!supervisor.may_pass(&refusal(code)), "{code} at the first start");
        supervisor.credentials_wait = Some(CredentialsWait::default());
        assert!(supervisor.may_pass(&refusal(code)), "{code}");
        supervisor.credentials_wait =
            Some(CredentialsWait::since(Instant::now().checked_sub(CREDENTIALS_WITHIN).unwrap()));
        assert!(!supervisor.may_pass(&refusal(code)), "{code} for long");
        assert_eq!(RunError::from(refusal(code)).kind, ExitKind::Operator);
    }
    for code in ["53300", "57P01", "57P03", "53100", "55P03", "55006", "25006", "08006"] {
        assert!(supervisor().may_pass(&refusal(code)), "{code}");
        // It passes by itself: nobody is sent to look for a rule that refuses log-ins.
        let remedy = RunError::from(refusal(code)).remedy;
        assert!(remedy.is_none(), "{code}: {}", remedy.unwrap());
    }
}

#[test]
fn an_invalidated_slots_hint_names_the_setting_that_did_it() {
    for (reason, setting) in [
        ("wal_removed", "max_slot_wal_keep_size"),
        ("idle_timeout", "idle_replication_slot_timeout"),
        ("rows_removed", "hot_standby_feedback"),
        ("wal_level_insufficient", "wal_level"),
    ] {
        let hint = RunError::slot_lost("s", reason.to_owned(), Lsn::ZERO).remedy.unwrap().to_string();
        assert!(hint.contains(setting), "{hint}");
    }
}

#[test]
fn a_row_whose_table_no_look_settles_ends_the_run() {
    let mut supervisor = supervisor();
    let at = |ordinal| Position { final_lsn: Lsn::new(16), ordinal };
    for ordinal in [0, 1] {
        for _ in 0..READS_FOR_ONE_ROW {
            supervisor.read_publication_again(at(ordinal), "table app.outbox is new").unwrap();
        }
    }
    let error = supervisor.read_publication_again(at(1), "table app.outbox is new").unwrap_err();
    assert_eq!(error.kind, ExitKind::Restart);
    let text = chain(&error);
    assert!(text.contains("table app.outbox is new, and the publication, which was looked at 5 times"), "{text}");
}

#[test]
fn a_failure_that_was_started_over_from_does_not_outlive_it() {
    let mut supervisor = supervisor();
    let text = "topic orders is gone".to_owned();
    let failure = Failure::new(FailureClass::Environment, "unknown_topic", text);
    supervisor.start_over(&failure, None).unwrap();
    let metrics = &supervisor.metrics;
    assert_eq!(metrics.ready(Instant::now()), Err("blocked: topic orders is gone".to_owned()));
    metrics.set_state(State::Streaming);
    metrics.status_sent(Instant::now());
    assert_eq!(metrics.ready(Instant::now()), Ok(()));
}

#[test]
fn a_failure_of_the_destination_keeps_its_remedy() {
    let failure = |remedy: &str| Failure::new(FailureClass::Client, "x", "no").with_remedy(Remedy::from(remedy));
    assert_eq!(RunError::from(failure("do this")).remedy, Some(Remedy::from("do this")));
    assert_eq!(RunError::from(Failure::new(FailureClass::Client, "x", "no")).remedy, None);
}
