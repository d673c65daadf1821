//! Every hint that an error of a command prints, in one file, so that a change of words is seen as such.
//!
//! In: one of each error. Out: `tests/golden/hints.txt`, which `WALRELAY_BLESS=1` writes. A new case of an error does not compile before it
//! has its place in `run_case` or `command_case`, and fails before there is one of it.

use crate::commands::dead_letters;
use crate::commands::error::CommandError;
use crate::commands::shards::ShardError;
use crate::lsn::Lsn;
use crate::outbox::{BadReason, BadRow, Cause, Lack, PlanError, Role, TableName, Within};
use crate::pg::frame::FrameError;
use crate::pg::shard::Shard;
use crate::pg::{self, ServerError, sqlstate};
use crate::positions::Position;
use crate::relay::{BadRowAt, ProtocolError};
use crate::remedy::{Command, Part, Remedy};
use crate::sink::destination::NoDeadLetters;
use crate::sink::kinds::KINDS;
use crate::sink::{Failure, FailureClass};
use crate::supervise::{RunError, chain};
use std::collections::{BTreeMap, BTreeSet};
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
    Failure { class, reason: "refused", text: "the destination's words".to_owned() }
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
        RunError::SlotOfOtherPlugin { slot: slot(), found: "a slot of plugin wal2json".to_owned() },
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

fn command_case(error: &CommandError) -> usize {
    match error {
        CommandError::Run(_) => 0,
        CommandError::FlagNeeded { .. } => 1,
        CommandError::NoTable { .. } => 2,
        CommandError::Refused { .. } => 3,
        CommandError::NoFailoverSlots { .. } => 4,
        CommandError::NotMarkable { .. } => 5,
        CommandError::Interrupted => 6,
        CommandError::SlotInUse { .. } => 7,
        CommandError::NobodyToAsk { .. } => 8,
        CommandError::NotReady { .. } => 9,
        CommandError::NoRelay { .. } => 10,
        CommandError::CheckFailed { .. } => 11,
        CommandError::NotProven { .. } => 12,
        CommandError::NoProof { .. } => 13,
        CommandError::PassedOver { .. } => 14,
        CommandError::NotConfirmed { .. } => 15,
        CommandError::ArchivePublished { .. } => 16,
        CommandError::NoArchive { .. } => 17,
        CommandError::ArchiveLacks { .. } => 18,
        CommandError::NoPartitions { .. } => 20,
        CommandError::NoSnapshot { .. } => 21,
        CommandError::Updated { .. } => 22,
        CommandError::Rewritten { .. } => 23,
        CommandError::RowsHidden { .. } => 24,
        CommandError::NoOrder { .. } => 25,
        CommandError::BackfillRuns { .. } => 26,
        CommandError::OtherBackfill { .. } => 27,
        CommandError::BadRow(_) => 28,
        CommandError::Shards(_) => 29,
        CommandError::DeadLetters(_) => 30,
        CommandError::Output(_) => 31,
        // Of the settings: `settings` has their hints.
        CommandError::Topic(_) | CommandError::Destination(_) => 35,
        CommandError::Changed { .. } => 32,
        CommandError::NotArchived { .. } => 19,
    }
}

fn command_errors() -> Vec<CommandError> {
    let (table, slot) = (|| "public.outbox".to_owned(), || "walrelay".to_owned());
    let refused = |code: &str| CommandError::Refused {
        step: "create the slot".to_owned(),
        fix: Some(Remedy::sql("ALTER ROLE … REPLICATION;")),
        source: Box::new(server(code)),
    };
    let no_order = |has_key| CommandError::NoOrder { table: table(), column: "created_at".to_owned(), has_key };
    let mut errors = vec![
        CommandError::FlagNeeded {
            flag: "--table",
            why: "why".to_owned(),
            example: Command::new("setup").set("--table", "outbox").into(),
        },
        CommandError::NoTable { table: table(), database: "shop".to_owned() },
        refused(sqlstate::INSUFFICIENT_PRIVILEGE),
        refused(sqlstate::LIMIT_EXCEEDED),
        CommandError::NoFailoverSlots { version: "16.1".to_owned() },
        CommandError::NotMarkable { publication: slot(), sql: "COMMENT ON PUBLICATION …;".to_owned() },
        CommandError::Interrupted,
        CommandError::SlotInUse { slot: slot(), pid: Some(7), reading: None },
        CommandError::SlotInUse { slot: slot(), pid: None, reading: None },
        CommandError::NobodyToAsk { what: "teardown" },
        CommandError::NotReady { reason: "blocked".to_owned() },
        CommandError::NoRelay { address: "127.0.0.1:9464".to_owned(), source: io::Error::other("refused") },
        CommandError::CheckFailed { count: 2 },
        CommandError::NotProven { table: table(), why: "why" },
        CommandError::NoProof { slot: slot(), publication: slot(), is_shard: false, why: "why".to_owned() },
        CommandError::NoProof { slot: slot(), publication: slot(), is_shard: true, why: "why".to_owned() },
        CommandError::Changed { publication: slot() },
        CommandError::PassedOver { slot: slot(), forget: "SELECT lo_unlink(1);".to_owned() },
        CommandError::NotConfirmed {
            slot: slot(),
            lsn: AT,
            waited: Duration::from_mins(1),
            run: Command::new("run").set("--slot", "walrelay"),
        },
        CommandError::ArchivePublished { archive: "public.archive".to_owned(), publication: slot() },
        CommandError::NoArchive { archive: "public.archive".to_owned(), table: table(), database: "shop".to_owned() },
        CommandError::ArchiveLacks {
            archive: "public.archive".to_owned(),
            column: "headers".to_owned(),
            table: table(),
        },
        CommandError::NotArchived {
            table: table(),
            archive: "public.archive".to_owned(),
            rows: 2,
            lacks: 1,
            triggers: vec!["guard on archive".to_owned()],
        },
        CommandError::NoPartitions { table: table(), why: "why".to_owned() },
        CommandError::NoSnapshot { slot: slot(), publication: slot(), why: "why".to_owned() },
        CommandError::Updated { table: TableName::parse("\"Outbox\"").unwrap(), slot: slot() },
        CommandError::Rewritten { table: table() },
        CommandError::RowsHidden { table: table() },
        no_order(true),
        no_order(false),
        CommandError::BackfillRuns { slot: slot() },
        CommandError::OtherBackfill { table: table(), rows: 9, before: "--order-by created_at".to_owned() },
        CommandError::BadRow(bad(BadReason::NullRoute { column: "aggregatetype".to_owned() })),
        CommandError::Output(io::Error::other("a broken pipe")),
    ];
    errors.extend(shard_errors().into_iter().map(CommandError::Shards));
    errors.extend(dead_letter_errors().into_iter().map(CommandError::from));
    errors.extend(run_errors().into_iter().map(CommandError::Run));
    errors
}

fn shard_errors() -> Vec<ShardError> {
    let text = || Remedy::from("…");
    vec![
        ShardError::TooOld { version: "14.1".to_owned() },
        ShardError::KeyType {
            table: "public.outbox".to_owned(),
            column: "key".to_owned(),
            type_name: "json".to_owned(),
        },
        ShardError::NoColumn { table: "public.outbox".to_owned(), column: "key".to_owned() },
        ShardError::NotShared {
            table: "public.outbox".to_owned(),
            publication: "walrelay_0_of_3".to_owned(),
            count: 3,
        },
        ShardError::Unfit { publication: "walrelay".to_owned(), why: "why".to_owned(), fix: text() },
        ShardError::NothingToMove { publication: "walrelay".to_owned(), hint: text() },
        ShardError::Unfinished { found: "5 shards".to_owned(), hint: text() },
        ShardError::Exists { found: "slot \"walrelay\"".to_owned(), hint: text() },
        ShardError::Several { found: vec!["3 shards".to_owned(), "5 shards".to_owned()] },
        ShardError::Lost { slot: "walrelay_0_of_3".to_owned(), reason: "wal_removed".to_owned() },
        ShardError::incomplete(Shard::new(0, 3).unwrap(), "publication", "walrelay_0_of_3"),
        ShardError::OnePart {
            publication: "walrelay_0_of_3".to_owned(),
            shard: Shard::new(0, 3).unwrap(),
            whole: Some(("walrelay".to_owned(), "walrelay".to_owned())),
        },
        ShardError::OnePart { publication: "orders".to_owned(), shard: Shard::new(0, 3).unwrap(), whole: None },
        ShardError::Moves {
            to: "3 shards".to_owned(),
            resume: Command::new("setup").set("--reshard", 3).flag("--apply"),
        },
        ShardError::SharedOut { found: "3 shards".to_owned(), why: "why", hint: text() },
        ShardError::Unread { slot: "walrelay_0_of_3".to_owned(), start: Command::new("run").set("--shard", "0/3") },
    ]
}

fn dead_letter_errors() -> Vec<dead_letters::Error> {
    let topic = || "walrelay.dead-letter".to_owned();
    vec![
        dead_letters::Error::Unreadable(NoDeadLetters::Unsupported { kind: KINDS[0] }),
        dead_letters::Error::Unreadable(NoDeadLetters::Missing { topic: topic() }),
        dead_letters::Error::Failed(failure(FailureClass::Environment)),
        dead_letters::Error::Failed(failure(FailureClass::LogIn)),
        dead_letters::Error::Failed(failure(FailureClass::Topic)),
        dead_letters::Error::Stay { count: 2, topic: topic() },
        dead_letters::Error::NotRemembered { count: 2, topic: topic(), failure: failure(FailureClass::Topic) },
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

/// What destinations say of a failure that stops a run.
fn of_destinations(text: &mut String) {
    for kind in KINDS {
        writeln!(text, "\n# {}", kind.title).unwrap();
        let labels: BTreeSet<&str> = (kind.refusals)().into_iter().chain((kind.reasons)()).collect();
        for (class, name) in
            [(FailureClass::LogIn, "credentials"), (FailureClass::Topic, "topic"), (FailureClass::Row, "row")]
        {
            let mut hints: BTreeMap<String, Vec<&str>> = BTreeMap::new();
            for reason in &labels {
                let hint = (kind.hint)(&Failure { class, reason, text: "…".to_owned() });
                if let Some(hint) = hint {
                    is_no_command_as_words(&Part::Text(hint.clone()));
                    hints.entry(hint).or_default().push(reason);
                }
            }
            for (hint, reasons) in hints {
                writeln!(text, "{name}: {}\n  {hint}", reasons.join(", ")).unwrap();
            }
        }
    }
}

#[test]
fn every_hint_is_as_it_was_reviewed() {
    let errors = command_errors();
    let runs: BTreeSet<usize> = run_errors().iter().map(run_case).collect();
    let commands: BTreeSet<usize> = errors.iter().map(command_case).collect();
    assert_eq!((runs, commands), ((0..32).collect(), (0..33).collect()), "one of each case");
    let mut text = String::from("# Each error with its exit code, and its hint\n");
    for error in &errors {
        let hint = error.hint().unwrap_or_else(|| "(no hint)".into());
        hint.parts().iter().for_each(is_no_command_as_words);
        writeln!(text, "\n{} {}\n  {hint}", error.exit_kind().exit_code(), chain(error)).unwrap();
    }
    of_destinations(&mut text);
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/hints.txt");
    if std::env::var_os("WALRELAY_BLESS").is_some() {
        fs::write(&file, &text).unwrap();
    }
    let reviewed = fs::read_to_string(&file).unwrap_or_default();
    assert!(text == reviewed, "tests/golden/hints.txt differs: WALRELAY_BLESS=1 writes it, for the review");
}
