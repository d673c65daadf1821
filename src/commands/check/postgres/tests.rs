use super::super::facts::{AsyncCommit, PublicationFacts};
use super::super::service::Service;
use super::*;
use crate::check_finding::Level;
use crate::pg::ServerError;
use crate::pg::catalog::{PreparedTransaction, PublicationMark, ServerRow, ServerSession};
use crate::pg::server::{Publication, Slot};
use crate::pg::source::Environment;
use crate::settings::{self, Task};
use crate::supervise::Surroundings;
use serde_json::json;

fn config(more: &[&str]) -> run::RunRequest {
    let fixed = ["walrelay", "check", "--source", "postgres://app@db/shop"];
    let arguments = fixed.iter().chain(more).map(|text| (*text).into());
    let task = settings::parse(arguments, &Environment::default()).unwrap().task;
    let Task::Check(request) = task else { panic!("no check") };
    request.config
}

fn slot_row() -> Slot {
    Slot {
        row: serde_json::from_value(json!({"plugin": "pgoutput", "database": "shop", "wal_status": "reserved"}))
            .unwrap(),
        confirmed_flush_lsn: Some(crate::lsn::Lsn::new(0x20)),
        restart_lsn: None,
        lag_bytes: Some(0),
        retained_wal_bytes: Some(0),
    }
}

/// Nothing is wrong with it.
fn facts() -> Facts {
    let settings = [
        ("wal_level", "logical"),
        ("max_replication_slots", "10"),
        ("max_wal_senders", "10"),
        ("max_slot_wal_keep_size", "51200"),
        ("wal_sender_timeout", "60000"),
        ("logical_decoding_work_mem", "65536"),
        ("synchronous_commit", "on"),
    ];
    let row = ServerRow {
        version: 170_011,
        version_text: "17.11".to_owned(),
        wal_level: "logical".to_owned(),
        database: "shop".to_owned(),
        user: "app".to_owned(),
    };
    let server = ServerFacts {
        row: Some(row),
        settings: settings.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
        most_kept_bytes: Some(0),
        ..ServerFacts::default()
    };
    let publication =
        Publication { puballtables: true, pubinsert: true, pubupdate: false, pubdelete: false, pubviaroot: false };
    Facts {
        host: "db:5432".to_owned(),
        unencrypted: None,
        server,
        replication: Ok(("7".to_owned(), Asking { beside_stream: Ok(()), ordinary: Ok(()) })),
        publication: Some(PublicationFacts { row: publication, mark: PublicationMark::default() }),
        slot: Some(SlotFacts { slot: slot_row(), reader: None, sighting: None, spilled_bytes: 0, unread_for: None }),
        tables: Vec::new(),
        trees: Vec::new(),
        refused: Vec::new(),
        subscriptions: Vec::new(),
        holders: Vec::new(),
        prepared: Vec::new(),
        around: Surroundings::default(),
    }
}

/// The findings that are not ok, but for the publication, which has no table here.
fn bad(facts: &Facts) -> Vec<Finding> {
    let found = findings(&config(&["--message-prefix", "outbox"]), facts);
    found.into_iter().filter(|finding| finding.level != Level::Ok).collect()
}

#[track_caller]
fn check(change: impl FnOnce(&mut Facts), name: &str, level: Level, fix: &str) {
    let mut facts = facts();
    change(&mut facts);
    let found = bad(&facts);
    let [finding] = found.as_slice() else { panic!("{found:#?}") };
    assert_eq!((finding.check, finding.level), (name, level), "{finding:#?}");
    assert!(finding.fix.as_ref().map_or_else(String::new, ToString::to_string).contains(fix), "{finding:#?}");
    assert!(finding.why.is_some() || name == "slot", "{finding:#?}");
}

fn set(name: &str, value: &str) -> impl FnOnce(&mut Facts) {
    move |facts| {
        facts.server.settings.insert(name.to_owned(), value.to_owned());
    }
}

fn answer(code: &str, message: &str) -> pg::Error {
    let error = ServerError { code: code.to_owned(), message: message.to_owned(), ..ServerError::default() };
    pg::Error::Server { doing: "connecting".to_owned(), error: Box::new(error) }
}

fn holder(age: Duration) -> ServerSession {
    ServerSession {
        pid: 42,
        user: Some("app".to_owned()),
        application: None,
        client: None,
        state: Some("idle in transaction".to_owned()),
        transaction_age: Some(age),
        statement_age: None,
    }
}

#[test]
fn nothing_is_said_of_what_is_well() {
    assert_eq!(bad(&facts()), []);
    for trusted in ["pgoutput, test_decoding", "\"pgoutput\""] {
        let mut facts = facts();
        set("output_plugin_libraries", trusted)(&mut facts);
        assert_eq!(bad(&facts), [], "{trusted}");
    }
}

#[test]
fn each_setting_that_fails_later_has_its_fix() {
    use Level::{Fail, Warn};
    check(set("wal_level", "replica"), "wal_level", Fail, "ALTER SYSTEM SET wal_level = logical");
    check(set("max_slot_wal_keep_size", "-1"), "slot_wal_limit", Warn, "SET max_slot_wal_keep_size = '50GB'");
    check(set("output_plugin_libraries", "test_decoding, \"other\""), "output_plugin", Fail, "add pgoutput");
    check(set("wal_sender_timeout", "0"), "sender_timeout", Warn, "'60s'");
    check(set("wal_sender_timeout", "900"), "sender_timeout", Warn, "'60s'");
    check(set("logical_decoding_work_mem", "64"), "decoding_memory", Warn, "'256MB'");
    check(set("idle_replication_slot_timeout", "7200"), "idle_timeout", Warn, "= '0'");
    check(set("synchronous_commit", "off"), "sync_commit", Warn, "= 'on'");
    let at = |service| {
        move |facts: &mut Facts| {
            facts.server.service = service;
            set("logical_decoding_work_mem", "64")(facts);
        }
    };
    check(at(Service::Rds), "decoding_memory", Warn, "ParameterValue=262144,");
    check(at(Service::Aurora), "decoding_memory", Warn, "modify-db-cluster-parameter-group");
    check(|facts| facts.unencrypted = Some("ssl = off".to_owned()), "encryption", Warn, "sslmode=verify-full");
    check(|facts| facts.server.walsenders = 10, "free_walsenders", Warn, "max_wal_senders = '20'");
    check(|facts| facts.server.in_recovery = true, "standby", Fail, "target_session_attrs=read-write");
    check(|facts| facts.server.row.as_mut().unwrap().version = 130_000, "version", Fail, "upgrade");
}

#[test]
fn a_role_that_commits_asynchronously_is_reset_where_it_is_set() {
    let scope = |role: Option<&str>, database: Option<&str>| AsyncCommit {
        role: role.map(str::to_owned),
        database: database.map(str::to_owned),
    };
    for (scope, fix) in [
        (scope(Some("app"), None), "ALTER ROLE \"app\" RESET"),
        (scope(None, Some("shop")), "ALTER DATABASE \"shop\" RESET"),
        (scope(Some("app"), Some("shop")), "ALTER ROLE \"app\" IN DATABASE \"shop\" RESET"),
        (scope(None, None), "ALTER ROLE ALL RESET"),
    ] {
        check(|facts| facts.server.asynchronous = vec![scope], "sync_commit", Level::Warn, fix);
    }
}

#[test]
fn a_transaction_counts_once_it_has_been_open_for_a_minute() {
    check(
        |facts| facts.holders = vec![holder(Duration::from_secs(59)), holder(Duration::from_mins(2))],
        "transactions",
        Level::Warn,
        "SELECT pg_terminate_backend(42);",
    );
    let prepared = PreparedTransaction {
        gid: "it's".to_owned(),
        owner: "app".to_owned(),
        database: "shop".to_owned(),
        age: Duration::from_mins(5),
    };
    check(
        |facts| facts.prepared = vec![prepared],
        "transactions",
        Level::Warn,
        "its transaction manager, or the application",
    );
}

#[test]
fn clocks_may_differ_by_what_the_way_there_takes() {
    check(|facts| facts.server.clock_ahead_ms = -5_000, "clock", Level::Warn, "ntp");
    let mut far_away = facts();
    (far_away.server.clock_ahead_ms, far_away.server.clock_exact_to_ms) = (5_000, 6_000);
    assert_eq!(bad(&far_away), []);
}

#[test]
fn a_slot_is_judged_by_what_it_holds_and_how_long_it_can() {
    let slot = |change: fn(&mut Slot)| move |facts: &mut Facts| change(&mut facts.slot.as_mut().unwrap().slot);
    check(slot(|slot| slot.row.wal_status = Some("unreserved".to_owned())), "slot_wal", Level::Fail, "walrelay run");
    check(slot(|slot| slot.retained_wal_bytes = Some(45 << 30)), "slot_wal", Level::Warn, "max_slot_wal_keep_size");
    check(slot(|slot| slot.lag_bytes = Some(2 << 30)), "slot_wal", Level::Warn, "walrelay teardown --slot walrelay");
    check(slot(|slot| slot.row.wal_status = Some("lost".to_owned())), "slot", Level::Fail, "walrelay setup");
    let begun = |slot: &mut Slot| {
        slot.row.plugin = Some(String::new());
        slot.confirmed_flush_lsn = None;
    };
    check(slot(begun), "slot", Level::Fail, "pg_blocking_pids");
    check(|facts| facts.slot = None, "slot", Level::Fail, "walrelay setup --apply");
    let lost = |facts: &mut Facts| {
        facts.slot = None;
        facts.publication.as_mut().unwrap().mark.comment = Some("walrelay slot: walrelay".to_owned());
    };
    check(lost, "slot", Level::Fail, "it was there before");
}

#[test]
fn a_limit_of_the_wal_that_slots_keep_is_four_times_what_any_of_them_keeps() {
    let fix = |gib: Option<u64>| {
        let mut facts = facts();
        facts.server.most_kept_bytes = gib.map(|gib| gib << 30);
        new_wal_limit(&facts)
    };
    assert_eq!(fix(Some(12)), Fix::bounded(Service::Own.wal_limit(50 * 1024)));
    let told = fix(Some(80)).to_string();
    assert!(told.contains("keeps 80.0 GiB: first run the relay (walrelay run)"), "{told}");
    assert!(told.contains("SET max_slot_wal_keep_size = '320GB'"), "{told}");
    let Fix::Words(words) = fix(None) else { panic!("nothing is known") };
    assert!(!words.to_string().contains("SET"), "{words}");
    let mut near = facts();
    near.server.most_kept_bytes = Some(80 << 30);
    assert!(room(&near).contains("'320GB'"), "the limit of 50 GB is doubled where that is enough: {}", room(&near));
}

#[test]
fn a_slot_that_standbys_do_not_keep_is_warned_of_as_the_version_allows() {
    check(
        |facts| facts.server.standbys = 2,
        "failover",
        Level::Warn,
        "ALTER_REPLICATION_SLOT \"walrelay\" (FAILOVER true);",
    );
    let older = |facts: &mut Facts| {
        facts.server.standbys = 1;
        facts.server.row.as_mut().unwrap().version = 160_000;
    };
    check(older, "failover", Level::Warn, "docs/operations/republish.md");
}

#[test]
fn a_refusal_to_replicate_is_never_taken_from_the_roles_attributes() {
    let refused = |error| move |facts: &mut Facts| facts.replication = Err(error);
    check(refused(answer("42501", "permission denied")), "replication", Level::Fail, "ALTER ROLE \"app\" REPLICATION;");
    let pooler = answer("08P01", "unsupported startup parameter: replication");
    check(refused(pooler), "replication", Level::Fail, "use the direct port");
    let of_amazon = |facts: &mut Facts| {
        facts.server.service = Service::Rds;
        facts.replication = Err(answer("42501", "permission denied"));
    };
    check(of_amazon, "replication", Level::Fail, "GRANT rds_replication TO \"app\";");
}

#[test]
fn each_way_to_ask_for_the_holder_that_is_refused_has_its_fix() {
    let full = || Err(answer("53300", "too many"));
    let asking = |beside_stream, ordinary| {
        move |facts: &mut Facts| facts.replication = Ok(("7".to_owned(), Asking { beside_stream, ordinary }))
    };
    let (warn, senders) = (Level::Warn, "SET max_wal_senders = '20'");
    check(asking(full(), Ok(())), "slot_holder", warn, senders);
    check(asking(full(), full()), "slot_holder", warn, senders);
    let connections = |facts: &mut Facts| {
        set("max_connections", "100")(facts);
        asking(Ok(()), full())(facts);
    };
    check(connections, "slot_holder", warn, "SET max_connections = '110'");
    let rule = Err(answer("28000", "no pg_hba.conf entry"));
    check(asking(Ok(()), rule), "slot_holder", warn, "a line in pg_hba.conf");
    let mut facts = facts();
    asking(full(), full())(&mut facts);
    let exactly_once = config(&["--message-prefix", "outbox", "--delivery", "exactly-once"]);
    let found = findings(&exactly_once, &facts);
    assert!(found.iter().all(|finding| finding.check != "slot_holder"), "{found:#?}");
}

#[test]
fn no_connection_at_all_names_a_pooler_by_its_address_or_answer() {
    let found = unreachable("db:6432", answer("08P01", "unsupported startup parameter: IntervalStyle"));
    assert!(found.why.unwrap().contains("PgBouncer"));
    let found = unreachable("db:5432", answer("28P01", "password authentication failed"));
    assert!(found.fix.unwrap().to_string().contains("PGPASSWORD"));
    let found = unreachable("db:5432", pg::Error::Ended);
    assert!(found.fix.unwrap().to_string().contains("--source"));
}

#[test]
fn on_update_stop_without_updates_is_said() {
    let found = findings(&config(&["--on-update", "stop", "--message-prefix", "x"]), &facts());
    let found: Vec<&Finding> = found.iter().filter(|finding| finding.level != Level::Ok).collect();
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].check, found[0].level), ("updates", Level::Warn));
}

#[test]
fn a_relay_that_would_be_the_synchronous_standby_is_reported_with_the_standbys_that_are_there() {
    let of = |names: &'static str| set("synchronous_standby_names", names);
    let none = "name the standbys alone in synchronous_standby_names, with FIRST or ANY";
    for names in ["*", "ANY 1 (*)", "FIRST 1 (other, Walrelay)", "\"walrelay\""] {
        check(of(names), "sync_standby", Level::Warn, none);
    }
    let with_standbys = |facts: &mut Facts| {
        of("*")(facts);
        facts.server.standby_names = vec!["walrelay".to_owned(), "the other's".to_owned()];
    };
    check(with_standbys, "sync_standby", Level::Warn, "connected now: \"the other's\"");
    let mut named = facts();
    of("FIRST 1 (standby, walrelay_standby)")(&mut named);
    assert_eq!(bad(&named), []);
}
