//! Every hint that an error of a command prints, in one file, so that a change of words is seen as such.
//!
//! In: one of each error. Out: `tests/golden/hints.txt`, which `WALRELAY_BLESS=1` writes. A new case of [`RunError`] does not compile before
//! it has its place in `run_case`; a new case of [`CommandError`] fails a test before there is one of it here.

use crate::commands::error::CommandError;
use crate::lsn::Lsn;
use crate::outbox::{BadReason, BadRow, Cause, Lack, PlanError, Role, TableName, Within};
use crate::pg::frame::FrameError;
use crate::pg::shard::Shard;
use crate::pg::{self, ServerError, sqlstate};
use crate::positions::Position;
use crate::relay::{BadRowAt, ProtocolError};
use crate::remedy::{Command, Part, Remedy};
use crate::sink::destination::{NoDeadLetters, ScratchError};
use crate::sink::kinds::{KINDS, REMEDIED};
use crate::sink::{Failure, FailureClass};
use crate::supervise::{RunError, chain};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;
use std::{fs, io};

const AT: Lsn = Lsn::new(0x16_B374_D848);

/// The case of an error, as a number.
fn run_case(error: &RunError) -> usize {
    match error {
        RunError::Postgres(_) => 0,
        RunError::WalLevel { .. } => 1,
        RunError::NoPublication { .. } => 2,
        RunError::NoInserts { .. } => 3,
        RunError::NoTables { .. } => 4,
        RunError::PublicationTooNew { .. } => 5,
        RunError::TableNotPublished { .. } => 6,
        RunError::NothingCaptured { .. } => 7,
        RunError::Unmappable(_) => 8,
        RunError::Advised { .. } => 9,
        RunError::NoSlot { .. } => 10,
        RunError::SlotOfOtherDatabase { .. } => 11,
        RunError::SlotOfOtherPlugin { .. } => 12,
        RunError::TemporarySlot { .. } => 13,
        RunError::TwoPhaseSlot { .. } => 14,
        RunError::SlotLost { .. } => 15,
        RunError::SlotUnproven { .. } => 16,
        RunError::SlotNotMarked { .. } => 17,
        RunError::OtherCluster { .. } => 18,
        RunError::OlderCopy { .. } => 19,
        RunError::EarlierTimeline { .. } => 20,
        RunError::OnStandby => 21,
        RunError::BadRow { .. } => 22,
        RunError::DeadLetter { .. } => 23,
        RunError::StopTimedOut { .. } => 24,
        RunError::StopUnconfirmed { .. } => 25,
        RunError::Sink(_) => 26,
        RunError::StrangeProgress { .. } => 27,
        RunError::TransactionTooLong { .. } => 28,
        RunError::Protocol(_) => 29,
        RunError::ShardsMoved { .. } => 30,
        RunError::TableRenamed { .. } => 31,
    }
}

fn failure(class: FailureClass) -> Failure {
    Failure::new(class, "refused", "the destination's words")
}

fn bad(reason: BadReason) -> Box<BadRowAt> {
    let row = BadRow { table: "public.outbox".to_owned(), id: Some("17".to_owned()), reason };
    Box::new(BadRowAt {
        position: Position { final_lsn: AT, ordinal: 3 },
        confirmed: AT,
        row,
        dead_letter_refused: None,
        readable: true,
    })
}

fn server(code: &str) -> pg::Error {
    let error = ServerError { code: code.to_owned(), message: "its words".to_owned(), ..ServerError::default() };
    pg::Error::Server { doing: "asking".to_owned(), error: Box::new(error) }
}

fn plan_errors() -> Vec<PlanError> {
    let (table, present) = ("public.outbox".to_owned(), vec!["id".to_owned(), "body".to_owned()]);
    let role = |role, likely: Option<&str>, topic: Option<&str>| Lack::Role {
        role,
        tried: vec!["payload".to_owned(), "data".to_owned()],
        likely: likely.map(str::to_owned),
        topic: topic.map(str::to_owned),
    };
    let named = Lack::Named {
        flag: "--header",
        column: "verison".to_owned(),
        meant: Some("version".to_owned()),
        within: Within::List { name: "v".to_owned(), list: vec!["v=verison".to_owned()] },
    };
    let lacks = |lacks: Vec<Lack>, cause: Option<Cause>| PlanError::Lacks {
        table: table.clone(),
        lacks,
        present: present.clone(),
        cause,
    };
    let wrong = |flag, wanted| PlanError::WrongType {
        table: table.clone(),
        flag,
        column: "at".to_owned(),
        type_name: "text".to_owned(),
        wanted,
    };
    vec![
        lacks(vec![role(Role::Payload, Some("body"), None)], None),
        lacks(vec![role(Role::Payload, None, None)], None),
        lacks(vec![role(Role::Route, None, Some("orders"))], None),
        lacks(vec![named], None),
        lacks(
            vec![role(Role::Payload, None, None)],
            Some(Cause::ColumnList { widen: "ALTER PUBLICATION …;".to_owned(), slot: "walrelay".to_owned() }),
        ),
        lacks(
            vec![role(Role::Payload, Some("body"), None)],
            Some(Cause::Past { slot: "walrelay".to_owned(), renamed: false }),
        ),
        PlanError::EnvelopesDiffer { one: "public.a has [\"x\"]".to_owned(), other: "public.b has []".to_owned() },
        PlanError::NotAsDebezium { table: table.clone(), column: "at".to_owned(), why: "of a type" },
        wrong("--timestamp", "timestamp"),
        wrong("--headers-column", "json"),
        wrong("--payload-column", "text"),
    ]
}

fn run_errors() -> Vec<RunError> {
    let (slot, publication) = (|| "walrelay".to_owned(), || "walrelay".to_owned());
    let reasons = [
        BadReason::NullRoute { column: "aggregatetype".to_owned() },
        BadReason::Updated,
        BadReason::GoneTable,
        BadReason::TooLarge { bytes: 5 << 20, limit: 1 << 20 },
        BadReason::Refused { label: "too_large", text: "topic orders: too large".to_owned() },
    ];
    let codes = ["28P01", "28000", sqlstate::NO_DATABASE, sqlstate::INSUFFICIENT_PRIVILEGE, sqlstate::LIMIT_EXCEEDED];
    let moved = |shard, to| RunError::ShardsMoved { from: "shard 1/3".to_owned(), shard, to };
    let lost = |reason: &str| RunError::SlotLost { slot: slot(), reason: reason.to_owned(), confirmed: AT };
    let mut errors: Vec<RunError> = codes.map(|code| RunError::Postgres(server(code))).into();
    let error = ServerError { code: "P0001".to_owned(), message: "its words".to_owned(), ..ServerError::default() };
    errors.push(RunError::Postgres(pg::Error::LoginRefused { host: "h".to_owned(), error: Box::new(error) }));
    let holder = Box::new(pg::LockHolder { pid: Some(7), ..pg::LockHolder::default() });
    errors.push(RunError::Postgres(pg::Error::Locked { table: "public.outbox".to_owned(), holder }));
    errors.push(RunError::Postgres(pg::Error::ClearText { host: "h".to_owned() }));
    let authentication = pg::Error::Authentication { host: "h".to_owned(), reason: "no password".to_owned() };
    errors.push(RunError::Postgres(authentication));
    errors.push(RunError::Postgres(FrameError::TooLarge { tag: b'd', length: 5 << 20, limit: 1 << 20 }.into()));
    errors.extend(plan_errors().into_iter().map(|error| RunError::Unmappable(Box::new(error))));
    errors.extend(reasons.map(|reason| RunError::BadRow { row: bad(reason) }));
    errors.extend([
        RunError::WalLevel { found: "replica".to_owned() },
        RunError::NoPublication { publication: publication(), database: "shop".to_owned() },
        RunError::NoInserts { publication: publication() },
        RunError::NoTables { publication: publication() },
        RunError::PublicationTooNew { publication: publication(), slot: slot() },
        RunError::TableRenamed {
            table: TableName::parse("outbox").unwrap(),
            now: Box::new(TableName::parse("outbox_v2").unwrap()),
            tables: vec![TableName::parse("outbox_v2").unwrap(), TableName::parse("other").unwrap()],
        },
        RunError::TableNotPublished {
            table: TableName::parse("orders").unwrap(),
            publication: publication(),
            published: vec!["public.outbox".to_owned()],
        },
        RunError::NothingCaptured {
            patterns: "shop\\..*".to_owned(),
            publication: publication(),
            published: vec!["public.outbox".to_owned()],
        },
        RunError::Advised { error: Box::new(RunError::OnStandby), hint: "what the database showed".into() },
        RunError::NoSlot { slot: slot(), was_there: false },
        RunError::NoSlot { slot: slot(), was_there: true },
        moved(Shard::new(1, 3), 5),
        moved(Shard::new(2, 3), 2),
        moved(None, 3),
        RunError::SlotOfOtherDatabase { slot: slot(), found: "billing".to_owned(), wanted: "shop".to_owned() },
        RunError::SlotOfOtherPlugin { slot: slot(), found: "of plugin wal2json".to_owned() },
        RunError::TemporarySlot { slot: slot() },
        RunError::TwoPhaseSlot { slot: slot() },
        lost("wal_removed"),
        lost("rows_removed"),
        lost("wal_level_insufficient"),
        lost("idle_timeout"),
        lost("conflicting with recovery"),
        RunError::SlotUnproven { slot: slot(), read: AT, confirmed: AT },
        RunError::SlotNotMarked { slot: slot(), publication: publication(), marked: AT, confirmed: AT },
        RunError::OtherCluster { before: "1".to_owned(), found: "2".to_owned() },
        RunError::OlderCopy { seen: AT, flushed: AT },
        RunError::EarlierTimeline { before: 2, found: 1 },
        RunError::OnStandby,
        RunError::DeadLetter {
            row: bad(BadReason::Updated),
            topic: "walrelay.dead-letter".to_owned(),
            failure: failure(FailureClass::Topic),
        },
        RunError::StopTimedOut { in_flight: 7 },
        RunError::StopUnconfirmed { lsn: AT },
        RunError::Sink(failure(FailureClass::LogIn)),
        RunError::StrangeProgress { key: "1/walrelay".to_owned(), value: "x".to_owned() },
        RunError::TransactionTooLong { records: 9, timeout: Duration::from_mins(9) },
        RunError::Protocol(ProtocolError::OutOfPlace { message: "Commit", place: "outside a transaction", at: AT }),
    ]);
    errors
}

fn command_errors() -> Vec<CommandError> {
    let (table, archive) = (TableName::parse("outbox").unwrap(), TableName::parse("archive").unwrap());
    let name = "walrelay";
    let refused = |code: &str| {
        let fix = Remedy::sql("ALTER ROLE … REPLICATION;");
        CommandError::refused("create the slot".to_owned(), Some(fix), server(code))
    };
    let mut errors = vec![
        CommandError::flag_needed("--table", "why", Command::new("setup").set("--table", "outbox")),
        CommandError::no_table(&table, "shop"),
        refused(sqlstate::INSUFFICIENT_PRIVILEGE),
        refused(sqlstate::LIMIT_EXCEEDED),
        CommandError::no_failover_slots("16.1"),
        CommandError::not_markable(name, "COMMENT ON PUBLICATION …;"),
        CommandError::interrupted(),
        CommandError::slot_in_use(name, Some(7), None),
        CommandError::slot_in_use(name, None, None),
        CommandError::nobody_to_ask(),
        CommandError::not_ready("blocked"),
        CommandError::no_relay("127.0.0.1:9464", io::Error::other("refused")),
        CommandError::checks_fail(2),
        CommandError::not_proven(&table, "why"),
        CommandError::no_proof(name, name, false, "why"),
        CommandError::no_proof(name, name, true, "why"),
        CommandError::publication_changed(name),
        CommandError::rows_skipped(name, "SELECT lo_unlink(1);"),
        CommandError::not_confirmed(name, AT, Duration::from_mins(1), Command::new("run").set("--slot", name)),
        CommandError::archive_published(&archive, name),
        CommandError::no_archive("public.archive", "public.outbox", "shop"),
        CommandError::archive_lacks("public.archive", "headers", &table),
        CommandError::not_archived(&table, &archive, (1, 2), &["guard on archive".to_owned()]),
        CommandError::no_partitions(&table, "why"),
        CommandError::no_snapshot(name, name, "why"),
        CommandError::updated(&TableName::parse("\"Outbox\"").unwrap(), name),
        CommandError::rewritten("public.outbox"),
        CommandError::rows_hidden("public.outbox"),
        CommandError::no_order("public.outbox", "created_at", true),
        CommandError::no_order("public.outbox", "created_at", false),
        CommandError::backfill_runs(name),
        CommandError::other_backfill("public.outbox", 9, "--order-by created_at"),
        CommandError::bad_row(&bad(BadReason::NullRoute { column: "aggregatetype".to_owned() })),
        CommandError::from(io::Error::other("a broken pipe")),
    ];
    errors.extend(shard_errors(&table));
    errors.extend(dead_letter_errors());
    errors.extend(run_errors().into_iter().map(CommandError::from));
    errors.extend(ends());
    errors
}

fn shard_errors(table: &TableName) -> Vec<CommandError> {
    let first = Shard::new(0, 3).unwrap();
    vec![
        CommandError::no_row_filters("14.1"),
        CommandError::no_hash(table, "key", "json"),
        CommandError::no_column(table, "key"),
        CommandError::table_not_shared(table, "walrelay_0_of_3", 3),
        CommandError::unfit("walrelay", "why", "…"),
        CommandError::nothing_to_move("walrelay", "…"),
        CommandError::unfinished("5 shards", "…"),
        CommandError::shards_exist("slot \"walrelay\"", "…"),
        CommandError::several_sets(&["3 shards".to_owned(), "5 shards".to_owned()]),
        CommandError::shard_lost("walrelay_0_of_3", "wal_removed"),
        CommandError::shard_lacks(first, "publication", "walrelay_0_of_3"),
        CommandError::one_shard_named("walrelay_0_of_3", first, Some(("walrelay", "walrelay"))),
        CommandError::one_shard_named("orders", first, None),
        CommandError::rows_move("3 shards", Command::new("setup").set("--reshard", 3).flag("--apply")),
        CommandError::shared_out("3 shards", "why", "…"),
        CommandError::unread("walrelay_0_of_3", Command::new("run").set("--shard", "0/3")),
    ]
}

fn dead_letter_errors() -> Vec<CommandError> {
    let topic = "walrelay.dead-letter";
    vec![
        CommandError::dead_letters_unreadable(NoDeadLetters::Unsupported { kind: KINDS[0] }),
        CommandError::dead_letters_unreadable(NoDeadLetters::Missing { topic: topic.to_owned() }),
        CommandError::dead_letters_failed(failure(FailureClass::Environment)),
        CommandError::dead_letters_failed(failure(FailureClass::LogIn)),
        CommandError::dead_letters_failed(failure(FailureClass::Topic)),
        CommandError::dead_letters_stay(2, topic),
        CommandError::not_remembered(2, topic, failure(FailureClass::Topic)),
    ]
}

/// Ends of the process, and of `bench`.
fn ends() -> [CommandError; 5] {
    let (what, topic) = ("create topic", "walrelay-bench.events".to_owned());
    [
        CommandError::no_address("localhost:9464", io::Error::other("unknown")),
        CommandError::vanished(),
        CommandError::unanswered(),
        CommandError::killed(15),
        CommandError::no_scratch(ScratchError { what, topic, reason: "the destination's words".to_owned() }),
    ]
}

/// A command with flags in the words of a hint would lack the flags that the user typed.
#[track_caller]
fn is_no_command_as_words(part: &Part) {
    let Part::Text(text) = part else { return };
    let mut commands = text.split("walrelay ").skip(1).filter(|behind| {
        let (_name, flags) = behind.split_once(' ').unwrap_or_default();
        flags.starts_with('-')
    });
    assert_eq!(commands.next(), None, "a command of this program is a part of its own: {text}");
}

/// The remedies that the destinations' failures carry.
fn of_destinations(text: &mut String) {
    for (title, remedied) in REMEDIED {
        writeln!(text, "\n# {title}").unwrap();
        for Failure { class, reason, remedy, .. } in remedied() {
            let remedy = remedy.unwrap();
            remedy.parts().iter().for_each(is_no_command_as_words);
            let name = if class == FailureClass::LogIn { "credentials" } else { "topic" };
            writeln!(text, "{name}: {reason}\n  {remedy}").unwrap();
        }
    }
}

#[test]
fn every_hint_is_as_it_was_reviewed() {
    let runs: BTreeSet<usize> = run_errors().iter().map(run_case).collect();
    assert_eq!(runs, (0..32).collect(), "one of each case");
    let mut text = String::from("# Each error with its exit code, and its hint\n");
    for error in command_errors() {
        let shown = chain(&error);
        let hint = error.remedy.unwrap_or_else(|| "(no hint)".into());
        hint.parts().iter().for_each(is_no_command_as_words);
        writeln!(text, "\n{} {shown}\n  {hint}", error.kind.exit_code()).unwrap();
    }
    of_destinations(&mut text);
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/hints.txt");
    if std::env::var_os("WALRELAY_BLESS").is_some() {
        fs::write(&file, &text).unwrap();
    }
    let reviewed = fs::read_to_string(&file).unwrap_or_default();
    assert!(text == reviewed, "tests/golden/hints.txt differs: WALRELAY_BLESS=1 writes it, for the review");
}

#[test]
fn each_error_of_a_command_is_among_those() {
    let (cases, here) = (include_str!("../error/cases.rs"), include_str!("hints.rs"));
    let names = cases.split("fn ").skip(1).filter(|rest| rest.contains("-> Self {"));
    let names: Vec<&str> = names.filter_map(|rest| rest.split(['(', '<']).next()).collect();
    let missing: Vec<&&str> = names.iter().filter(|name| !here.contains(&format!("CommandError::{name}("))).collect();
    assert!(names.len() > 50 && missing.is_empty(), "{} cases; missing here: {missing:?}", names.len());
}
