//! Every hint that an error of a command prints, in one file, so that a change of words is seen as such.
//!
//! In: one of each error. Out: `tests/golden/hints.txt`, which `WALRELAY_BLESS=1` writes. A new case of
//! [`RunError`] or of [`CommandError`] fails a test before there is one of it here.

use crate::commands::error::CommandError;
use crate::lsn::{Lsn, Position};
use crate::outbox::{BadReason, BadRow, ColumnSetting, HiddenColumns, MissingColumn, PlanError, Role, TableName};
use crate::pg::frame::FrameError;
use crate::pg::shard::Shard;
use crate::pg::{self, ServerError, sqlstate};
use crate::pgoutput::PgTime;
use crate::relay::{BadRowAt, LastTransaction, NextRow, ProtocolError};
use crate::remedy::{Command, Part, Remedy};
use crate::sink::destination::{NoDeadLetters, NoReader, ScratchError};
use crate::sink::kinds::{KINDS, REMEDIED};
use crate::sink::{Failure, FailureClass};
use crate::supervise::{RunError, chain};
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;
use std::{fs, io};

const AT: Lsn = Lsn::new(0x16_B374_D848);

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
    server_error(ServerError { code: code.to_owned(), ..ServerError::default() })
}

fn server_error(error: ServerError) -> pg::Error {
    let error = Box::new(ServerError { message: "its words".to_owned(), ..error });
    pg::Error::Server { doing: "asking".to_owned(), error }
}

/// No replication slot is free.
fn no_free_slot() -> pg::Error {
    let (code, routine) = (sqlstate::LIMIT_EXCEEDED.to_owned(), "ReplicationSlotCreate".to_owned());
    server_error(ServerError { code, routine, ..ServerError::default() })
}

/// A right that is missing by its SQLSTATE, and something else by the server's own words.
fn of_another_reason() -> pg::Error {
    let (code, hint) = (sqlstate::INSUFFICIENT_PRIVILEGE.to_owned(), "the server's own hint".to_owned());
    server_error(ServerError { code, hint, ..ServerError::default() })
}

fn plan_errors() -> Vec<PlanError> {
    let (table, present) = ("public.outbox".to_owned(), vec!["id".to_owned(), "body".to_owned()]);
    let role = |role, likely: Option<&str>, topic: Option<&str>| MissingColumn::Role {
        role,
        tried: vec!["payload".to_owned(), "data".to_owned()],
        likely: likely.map(str::to_owned),
        topic: topic.map(str::to_owned),
    };
    let named = MissingColumn::Named {
        flag: "--header",
        column: "verison".to_owned(),
        meant: Some("version".to_owned()),
        setting: ColumnSetting::List { name: "v".to_owned(), list: vec!["v=verison".to_owned()] },
    };
    let lacks = |lacks: Vec<MissingColumn>, cause: Option<HiddenColumns>| PlanError::Lacks {
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
            Some(HiddenColumns::ColumnList { widen: "ALTER PUBLICATION …;".to_owned(), slot: "walrelay".to_owned() }),
        ),
        lacks(
            vec![role(Role::Payload, Some("body"), None)],
            Some(HiddenColumns::Past { slot: "walrelay".to_owned(), renamed: false }),
        ),
        PlanError::EnvelopesDiffer { one: "public.a has [\"x\"]".to_owned(), other: "public.b has []".to_owned() },
        PlanError::NotAsDebezium { table: table.clone(), column: "at".to_owned(), why: "of a type" },
        wrong("--timestamp", "timestamp"),
        wrong("--headers-column", "json"),
        wrong("--payload-column", "text"),
    ]
}

fn run_errors() -> Vec<RunError> {
    let (slot, publication) = ("walrelay", "walrelay");
    let reasons = [
        BadReason::NullRoute { column: "aggregatetype".to_owned() },
        BadReason::Updated,
        BadReason::GoneTable,
        BadReason::TooLarge { bytes: 5 << 20, limit: 1 << 20 },
        BadReason::Refused { label: "too_large", text: "topic orders: too large".to_owned() },
    ];
    let codes = ["28P01", "28000", sqlstate::NO_DATABASE, sqlstate::INSUFFICIENT_PRIVILEGE];
    let moved = |shard, to| RunError::shards_moved("shard 1/3", shard, to);
    let lost = |reason: &str| RunError::slot_lost(slot, reason.to_owned(), AT);
    let (table, published) = (|name| TableName::parse(name).unwrap(), vec!["public.outbox".to_owned()]);
    let position = Position { final_lsn: AT, ordinal: 3 };
    let next_row = NextRow { position, is_begun: true, table: Some("public.outbox".to_owned()) };
    let mut refused = bad(BadReason::Updated);
    refused.dead_letter_refused = Some(("walrelay.dead-letter".to_owned(), failure(FailureClass::Topic)));
    let mut errors: Vec<RunError> = codes.map(|code| RunError::from(server(code))).into();
    errors.extend([no_free_slot(), of_another_reason()].map(RunError::from));
    let error = ServerError { code: "P0001".to_owned(), message: "its words".to_owned(), ..ServerError::default() };
    errors.push(pg::Error::LoginRefused { host: "h".to_owned(), error: Box::new(error) }.into());
    let holder = Box::new(pg::LockHolder { pid: Some(7), ..pg::LockHolder::default() });
    errors.push(pg::Error::Locked { table: "public.outbox".to_owned(), holder }.into());
    errors.push(pg::Error::SlotUnfinished { slot: slot.to_owned() }.into());
    errors.push(pg::Error::ClearText { host: "h".to_owned() }.into());
    errors.push(pg::Error::Authentication { host: "h".to_owned(), reason: "no password".to_owned() }.into());
    errors.push(pg::Error::from(FrameError::TooLarge { tag: b'd', length: 5 << 20, limit: 1 << 20 }).into());
    errors.extend(plan_errors().into_iter().map(|error| RunError::from(Box::new(error))));
    errors.extend(reasons.map(|reason| RunError::from(bad(reason))));
    errors.extend([
        RunError::wal_level("replica"),
        RunError::no_publication(publication, "shop"),
        RunError::no_inserts(publication),
        RunError::no_tables(publication),
        RunError::publication_too_new(publication, slot),
        RunError::table_renamed(&table("outbox"), &table("outbox_v2"), &[table("outbox_v2"), table("other")]),
        RunError::table_not_published(table("orders"), publication, published.clone()),
        RunError::grows(publication, true, false),
        RunError::grows(publication, false, true),
        RunError::comes_as_root(&table("outbox_1"), &table("outbox"), publication, &[table("outbox"), table("other")]),
        RunError::unlogged(&[table("outbox_1"), table("outbox_2")]),
        RunError::foreign_partition(&table("outbox_1"), &table("outbox")),
        RunError::partitions_not_published(
            &table("outbox"),
            &[table("outbox_1")],
            publication,
            Some("ALTER PUBLICATION …;".to_owned()),
        ),
        RunError::partitions_not_published(&table("outbox"), &[table("outbox_1")], publication, None),
        RunError::children_unsaid(
            &table("outbox"),
            &[table("child")],
            Some("…".into()),
            Command::new("run").set("--table", "ONLY public.outbox"),
        ),
        RunError::children_unsaid(
            &table("outbox"),
            &[table("a"), table("b")],
            None,
            Command::new("run").set("--table", "ONLY public.outbox"),
        ),
        RunError::no_origin("15.9"),
        RunError::nothing_captured("shop\\..*", publication, &published),
        RunError { remedy: Some("what the database showed".into()), ..RunError::on_standby() },
        RunError::no_slot(slot, false),
        RunError::no_slot(slot, true),
        RunError::setup_unfinished(slot, publication),
        RunError::unknown_marker(slot, publication, "walrelay paused: walrelay"),
        RunError::temporary_slot_gone(slot),
        RunError::not_noted(slot, Some("GRANT …;".to_owned()), server(sqlstate::INSUFFICIENT_PRIVILEGE)),
        moved(Shard::new(1, 3), 5),
        moved(Shard::new(2, 3), 2),
        moved(None, 3),
        RunError::slot_of_other_database(slot, "billing", "shop"),
        RunError::slot_of_other_plugin(slot, "of plugin wal2json"),
        RunError::temporary_slot(slot),
        RunError::two_phase_slot(slot),
        lost("wal_removed"),
        lost("rows_removed"),
        lost("wal_level_insufficient"),
        lost("idle_timeout"),
        lost("conflicting with recovery"),
        RunError::slot_unproven(slot, AT, AT),
        RunError::slot_not_marked(slot, publication, AT, AT),
        RunError::other_cluster("1", "2"),
        RunError::older_copy(AT, AT),
        RunError::unsent_row(&next_row, "streaming: string buffer exceeds maximum allowed length"),
        RunError::no_progress(AT),
        RunError::other_history(&LastTransaction { final_lsn: AT, xid: 742, commit_time: PgTime(0) }, AT),
        RunError::earlier_timeline(2, 1),
        RunError::on_standby(),
        RunError::from(refused),
        RunError::stop_timed_out(7),
        RunError::stop_unconfirmed(AT),
        RunError::from(failure(FailureClass::LogIn)),
        RunError::strange_progress("1/walrelay", "x"),
        RunError::transaction_too_long(9, Duration::from_mins(9)),
        RunError::from(ProtocolError::OutOfOrder { message: "Commit", when: "outside a transaction", at: AT }),
    ]);
    errors
}

fn command_errors() -> Vec<CommandError> {
    let (table, archive) = (TableName::parse("outbox").unwrap(), TableName::parse("archive").unwrap());
    let name = "walrelay";
    let refused = |error| {
        let fix = Remedy::sql("ALTER ROLE … REPLICATION;");
        CommandError::refused("create the slot".to_owned(), Some(fix), error)
    };
    let mut errors = vec![
        CommandError::flag_needed("--table", "why", Command::new("setup").set("--table", "outbox")),
        CommandError::no_table(&table, "shop"),
        refused(server(sqlstate::INSUFFICIENT_PRIVILEGE)),
        refused(of_another_reason()),
        refused(no_free_slot()),
        CommandError::no_failover_slots("16.1"),
        CommandError::not_markable(name, "app", "COMMENT ON PUBLICATION …"),
        CommandError::unheard(io::ErrorKind::BrokenPipe.into()),
        CommandError::interrupted(),
        CommandError::slot_in_use(name, Some(7), None),
        CommandError::slot_in_use(name, None, None),
        CommandError::nobody_to_ask("teardown"),
        CommandError::not_ready("blocked"),
        CommandError::no_relay("127.0.0.1:9464", io::Error::other("refused")),
        CommandError::unmarked_slot("debezium"),
        CommandError::read_by_another(name, "debezium"),
        CommandError::may_be_read(name, "debezium"),
        CommandError::changed_meanwhile(),
        CommandError::checks_fail(2),
        CommandError::not_proven(&table, "the publication does not send all of its rows (…)", name),
        CommandError::not_read(
            &table,
            "its relay does not read it, as far as the relay has noted",
            Command::new("run").set("--slot", name),
        ),
        CommandError::not_known(&table, "nothing says that all of its rows are published: …", "WITH r AS …"),
        CommandError::relay_not_noted(name, Command::new("run").set("--slot", name)),
        CommandError::unknown_relay_note(name, &[1, 2], Command::new("run").set("--slot", name)),
        CommandError::no_id_column(&table, Some("event_id")),
        CommandError::cascades(&table, "lines_fkey of lines (ON DELETE CASCADE)"),
        CommandError::archive_differs("archive", "payload", &table),
        CommandError::archive_unlogged("archive"),
        CommandError::no_proof(name, name, (false, false), "why"),
        CommandError::no_proof(name, name, (false, true), "why"),
        CommandError::no_proof(name, name, (true, true), "why"),
        CommandError::publication_changed(name),
        CommandError::rows_skipped(name, "SELECT lo_unlink(1);"),
        CommandError::not_confirmed(name, AT, Duration::from_mins(1), Command::new("run").set("--slot", name)),
        CommandError::archive_published(&archive, name),
        CommandError::no_archive("public.archive", "public.outbox", "shop"),
        CommandError::archive_lacks("public.archive", "headers", &table),
        CommandError::not_archived(&table, &archive, (1, 2), &["guard on archive".to_owned()]),
        CommandError::no_partitions(&table, "why"),
        CommandError::snapshot_lost(),
        CommandError::replaced("public.outbox"),
        CommandError::no_key("public.outbox"),
        CommandError::order_needs_snapshot("created_at"),
        CommandError::rows_hidden("public.outbox"),
        CommandError::no_order("public.outbox", "created_at", true),
        CommandError::no_order("public.outbox", "created_at", false),
        CommandError::backfill_runs(name),
        CommandError::unknown_backfill(name, 1),
        CommandError::other_backfill("public.outbox", 9, "--order-by created_at"),
        CommandError::bad_row(&bad(BadReason::NullRoute { column: "aggregatetype".to_owned() })),
        CommandError::from(io::Error::other("a broken pipe")),
    ];
    errors.extend(shard_errors(&table));
    errors.extend(dead_letter_errors());
    errors.extend(verify_errors());
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
        CommandError::shard_lost("walrelay_0_of_3", Some("wal_removed"), true),
        CommandError::shard_lost("walrelay_0_of_3", None, true),
        CommandError::shard_lost("walrelay_0_of_3", Some("wal_removed"), false),
        CommandError::shard_lost("walrelay_0_of_3", None, false),
        CommandError::shard_incomplete(first, "publication \"walrelay_0_of_3\" does not exist"),
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

fn verify_errors() -> Vec<CommandError> {
    vec![
        CommandError::not_right("1 of 9 rows has no record", true),
        CommandError::not_right("1 of 9 rows has an altered record", false),
        CommandError::not_judged("1 of 9 rows not judged".to_owned(), "1 row not judged: why"),
        CommandError::no_memory(256 << 20),
        CommandError::synchronized_slot("walrelay"),
        CommandError::nothing_to_compare(),
        CommandError::window_broken("the connection was lost"),
        CommandError::no_free_walsender(2),
        CommandError::not_exclusive("Redis"),
        CommandError::no_reader(NoReader::Unsupported { kind: KINDS[0] }),
        CommandError::records_unreadable(failure(FailureClass::Environment)),
        CommandError::records_unreadable(failure(FailureClass::Topic)),
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

/// The names of the functions in a file that make an error.
fn cases(file: &str) -> Vec<&str> {
    let functions = file.split("fn ").skip(1).filter(|rest| rest.contains("-> Self {"));
    functions.filter_map(|rest| rest.split(['(', '<']).next()).collect()
}

#[test]
fn each_error_of_a_run_and_of_a_command_is_among_those() {
    let here = include_str!("hints.rs");
    let of_commands = cases(include_str!("../error/cases.rs"));
    let of_runs = cases(include_str!("../../supervise/error/cases.rs"));
    assert!(of_commands.len() > 50 && of_runs.len() > 20, "{of_commands:?} {of_runs:?}");
    // Those that a case is made of.
    let parts = ["slot_of_other_kind", "other_server", "dead_letter"];
    let of_runs = of_runs.into_iter().filter(|name| !parts.contains(name));
    let calls = of_commands.iter().map(|name| format!("CommandError::{name}("));
    let calls = calls.chain(of_runs.map(|name| format!("RunError::{name}(")));
    let missing: Vec<String> = calls.filter(|call| !here.contains(call)).collect();
    assert!(missing.is_empty(), "missing here: {missing:?}");
}
