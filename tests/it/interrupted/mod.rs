//! Commands that are ended between any two of their statements: what they have written into the database until then is true, and the same
//! command finishes its work.
//!
//! Each case has a database of its own. A tap before the server cuts all connections of the command before the n-th statement reaches the
//! server, or after the server has answered it and before the command knows. So nothing of the command reaches the server any more, as if
//! it had been killed there. What is true is asked of the database, and of the records that came out, not of the program.

mod case;
mod overtaken;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use walrelay_dev::tap::statements::{Action, Moment, Stop};

use case::{ALL, Case, Ended, Nature, PLAIN, all_hold, with};

/// Runs a command once as it is, and then in a fresh case for each of its statements, stopped before and after it. `check` takes the case
/// after each of them.
#[track_caller]
fn at_each_statement(
    prepare: impl Fn() -> Case + Sync,
    command: &[&str],
    (nature, action): (Nature, Action),
    check: impl Fn(&mut Case, &Ended) + Sync,
) {
    let began = Instant::now();
    let prepare = || {
        let mut case = prepare();
        // So that the slots that were there are known.
        case.lines_are_true();
        case
    };
    let mut case = prepare();
    let whole = case.stopped(command, nature, None);
    assert!(matches!(whole.code, Some(0) | None), "{whole:#?}");
    case.lines_are_true();
    check(&mut case, &whole);
    drop(case);
    let places = whole.statements.len();
    assert!(places > 0, "{command:?} sent no statement through the tap");
    let stops: Vec<Stop> = (1..=places)
        .flat_map(|number| [Moment::Before, Moment::After].map(|moment| Stop { number, moment, action }))
        .collect();
    let show = |stop: &Stop| format!("{:?} {}: {:.200}", stop.moment, stop.number, whole.statements[stop.number - 1]);
    let missed = AtomicUsize::new(0);
    all_hold(&stops, show, |stop| {
        let mut case = prepare();
        let ended = case.stopped(command, nature, Some(*stop));
        missed.fetch_add(usize::from(!ended.stopped), Ordering::Relaxed);
        match ended.code {
            Some(0) => assert!(!ended.stopped || nature != Nature::Ends, "{ended:#?}"),
            Some(code) => {
                assert!(ended.stopped && code == 1 && ended.stderr.contains("error: "), "{ended:#?}");
            }
            None => assert!(nature != Nature::Ends),
        }
        assert!(!ended.stderr.contains("panicked"), "{ended:#?}");
        case.lines_are_true();
        check(&mut case, &ended);
    });
    let missed = missed.into_inner();
    eprintln!(
        "{command:?}: {places} statements, {} cases, of which {missed} ran through, in {:?}",
        stops.len(),
        began.elapsed()
    );
    // One run may ask a few times less than another one.
    assert!(missed * 4 <= stops.len(), "{command:?}: {missed} of {} cases were not stopped", stops.len());
}

/// The same command once more does what is left. Then slot, relay, `prune` and `backfill` are tried.
fn set_up_again(command: &[&str]) -> impl Fn(&mut Case, &Ended) + Sync {
    move |case, ended| {
        let between = set_up_once_more(case, ended, command);
        case.works(between, true);
    }
}

/// As [`set_up_again`], where only the slot is looked into.
fn slot_again(command: &[&str]) -> impl Fn(&mut Case, &Ended) + Sync {
    move |case, ended| {
        let between = set_up_once_more(case, ended, command);
        case.insert(ALL, "new");
        for id in [&["new-outbox", "new-calm", "new-parts"], between].concat() {
            case.slot_has(id);
        }
    }
}

/// Returns the row that came between both of the commands, if the slot has to have it.
fn set_up_once_more(case: &mut Case, ended: &Ended, command: &[&str]) -> &'static [&'static str] {
    let (name, written) = (case.name.clone(), case.written());
    let had_slot = written.slots.contains(&name);
    if ended.stdout.contains("rows committed from now on will be published") {
        assert!(had_slot && written.is_marked(&name), "{ended:#?} {written:#?}");
    }
    // Into the table of which nothing is known in any case.
    case.insert(&["outbox"], "between");
    case.done(command);
    case.is_set_up();
    if had_slot { &["between-outbox"] } else { &[] }
}

const ENDED: (Nature, Action) = (Nature::Ends, Action::CutAll);

#[test]
fn a_setup_that_is_ended_at_any_statement_leaves_true_lines_and_is_finished_by_another_one() {
    let command = with(&["setup", "--apply"], ALL);
    at_each_statement(|| Case::new(ALL), &command, ENDED, slot_again(&command));
}

#[test]
#[ignore = "slow"]
fn after_a_setup_that_was_ended_all_commands_work() {
    let command = with(&["setup", "--apply"], ALL);
    at_each_statement(|| Case::new(ALL), &command, ENDED, set_up_again(&command));
}

#[test]
#[ignore = "slow"]
fn after_a_setup_that_lost_one_of_its_connections_all_commands_work() {
    let command = with(&["setup", "--apply"], ALL);
    at_each_statement(|| Case::new(ALL), &command, (Nature::Ends, Action::Cut), set_up_again(&command));
}

#[test]
#[ignore = "slow"]
fn a_setup_that_adds_a_table_to_a_publication_is_finished_by_another_one() {
    let command = with(&["setup", "--apply"], ALL);
    at_each_statement(described, &command, ENDED, set_up_again(&command));
}

#[test]
#[ignore = "slow"]
fn a_setup_with_a_backfill_that_is_ended_at_any_statement_misses_no_row() {
    let command = with(&["setup", "--apply", "--backfill", "--yes"], ALL);
    at_each_statement(
        || Case::new(ALL),
        &command,
        (Nature::Retries, Action::CutAll),
        |case, ended| {
            let between = set_up_once_more(case, ended, &command);
            assert!(case.old().iter().all(|id| case.delivered.contains(*id)), "{:?} {ended:#?}", case.delivered);
            case.works(between, true);
        },
    );
}

/// The slot went with some rows. `again`: somebody has made another one of that name.
fn lost(again: bool) -> Case {
    let mut case = Case::noted(ALL);
    let name = case.name.clone();
    case.client.execute("SELECT pg_drop_replication_slot($1)", &[&name]).unwrap();
    case.insert(&["outbox"], "lost");
    if again {
        case.client.execute("SELECT pg_create_logical_replication_slot($1, 'pgoutput')", &[&name]).unwrap();
    }
    case
}

#[test]
#[ignore = "slow"]
fn a_setup_after_a_loss_that_is_ended_at_any_statement_is_finished_by_another_one_and_nothing_is_known_of_the_rows() {
    let command = with(&["setup", "--apply", "--after-loss"], ALL);
    for again in [false, true] {
        at_each_statement(
            || lost(again),
            &command,
            ENDED,
            |case, ended| {
                let name = case.name.clone();
                let before = case.written().token(&name).map(str::to_owned);
                let between = set_up_once_more(case, ended, &command);
                let now = case.written().token(&name).map(str::to_owned);
                assert!(now.is_some() && now != before, "{now:?}");
                case.works(between, true);
                assert!(case.delivered.contains("lost-outbox"));
            },
        );
    }
}

#[test]
#[ignore = "slow"]
fn a_statement_that_rows_are_published_is_made_as_a_whole_or_not_at_all() {
    let command = ["setup", "--apply", "--published", "--yes", "--table", "outbox"];
    let prepare = || {
        let mut case = Case::noted(ALL);
        case.stated = true;
        case
    };
    at_each_statement(prepare, &command, ENDED, |case, _| {
        case.done(&command);
        let written = case.is_set_up();
        assert_eq!(written.of("walrelay published").count(), 1, "{written:#?}");
        case.start_relay(&[]);
        let (code, text) = case.pruned(&["--table", "outbox"]);
        assert!(code == 0 && !case.rows().contains("old-1") && case.rows().contains("old-parts"), "{text}");
        case.end_relays();
        case.works(&[], true);
    });
}

/// After a teardown of either kind: nothing of the slot is left, and others' lines are.
fn torn_down_again(command: &[&str]) -> impl Fn(&mut Case, &Ended) + Sync {
    move |case, _| {
        case.done(command);
        let (name, written) = (case.name.clone(), case.lines_are_true());
        assert!(!written.slots.contains(&name), "{written:#?}");
        let of_slot = |line: &&String| line.split(' ').any(|word| word == name);
        let left: Vec<_> = written.lines.iter().chain(&written.notes).filter(of_slot).collect();
        assert!(left.is_empty(), "{left:?}");
        if command.contains(&"--publication-too") {
            assert!(written.publications.is_empty(), "{written:#?}");
            return;
        }
        assert!(written.is_marked(&format!("{name}_other")), "{written:#?}");
        let own = case.texts("SELECT obj_description(oid, 'pg_publication') FROM pg_publication");
        assert!(own[0].lines().next() == Some("events of the shop"), "{own:?}");
        case.done(&with(&["setup", "--apply"], ALL));
        case.is_set_up();
    }
}

/// With a publication that its user has described.
fn described() -> Case {
    let mut case = Case::new(ALL);
    let name = case.name.clone();
    case.client
        .batch_execute(&format!(
            "CREATE PUBLICATION {name} FOR TABLE outbox, calm WITH (publish = 'insert');
             COMMENT ON PUBLICATION {name} IS 'events of the shop'"
        ))
        .unwrap();
    case
}

/// Also with another slot of that publication, and the notes of a relay.
fn shared() -> Case {
    let mut case = described();
    let other = format!("{}_other", case.name);
    case.done(&["setup", "--apply", "--slot", &other]);
    case.done(&with(&["setup", "--apply"], ALL));
    case.start_relay(&[]);
    case.end_relays();
    assert_eq!(case.lines_are_true().notes.len(), 1);
    case
}

#[test]
fn a_teardown_that_is_ended_at_any_statement_leaves_no_slot_without_a_line_and_is_finished_by_another_one() {
    let command = ["teardown", "--yes"];
    at_each_statement(shared, &command, ENDED, torn_down_again(&command));
}

#[test]
#[ignore = "slow"]
fn a_teardown_with_the_publication_is_finished_by_another_one_and_leaves_no_note_of_any_kind() {
    let command = ["teardown", "--yes", "--publication-too"];
    let prepare = || {
        let mut case = Case::noted(ALL);
        case.done(&["backfill", "--yes"]);
        assert_eq!(case.lines_are_true().notes.len(), 3);
        case
    };
    at_each_statement(prepare, &command, ENDED, torn_down_again(&command));
}

#[test]
#[ignore = "slow"]
fn a_setup_of_shards_that_is_ended_at_any_statement_is_finished_by_another_one() {
    let command = with(&["setup", "--shards", "2", "--apply"], PLAIN);
    at_each_statement(
        || Case::new(PLAIN),
        &command,
        ENDED,
        |case, _| {
            case.done(&command);
            case.has_shards(2);
            case.shards_work(2);
        },
    );
}

#[test]
#[ignore = "slow"]
fn a_teardown_of_shards_that_is_ended_at_any_statement_is_finished_by_another_one() {
    let command = ["teardown", "--shards", "2", "--yes"];
    let prepare = || {
        let mut case = Case::new(PLAIN);
        case.done(&with(&["setup", "--shards", "2", "--apply"], PLAIN));
        case.start_relay(&["--shard", "0/2"]);
        case.end_relays();
        case
    };
    at_each_statement(prepare, &command, ENDED, |case, _| {
        case.done(&command);
        let written = case.lines_are_true();
        assert!(
            written.slots.is_empty() && written.publications.is_empty() && written.notes.is_empty(),
            "{written:#?}"
        );
    });
}

#[test]
#[ignore = "slow"]
fn a_move_to_shards_that_is_ended_at_any_statement_is_finished_by_another_one_and_misses_no_row() {
    let command = ["setup", "--reshard", "2", "--apply"];
    let prepare = || {
        let mut case = Case::set_up(PLAIN);
        case.start_relay(&[]);
        case.done(&["backfill", "--yes"]);
        case.insert(PLAIN, "before");
        case
    };
    at_each_statement(prepare, &command, ENDED, |case, _| {
        case.insert(PLAIN, "between");
        case.done(&command);
        assert!(!case.has_shards(2).publications.contains(&case.name), "it is gone");
        case.wait_delivered(&["before-outbox", "before-calm"]);
        case.relays.clear();
        case.shards_work(2);
        case.start_relay(&["--shard", "0/2"]);
        case.start_relay(&["--shard", "1/2"]);
        case.wait_delivered(&["between-outbox", "between-calm"]);
        let (code, text) = case.pruned(&[]);
        assert!(code == 0 && case.rows().is_empty(), "what was known stays known: {text} {:#?}", case.written());
    });
}

#[test]
#[ignore = "slow"]
fn a_prune_that_is_ended_at_any_statement_has_deleted_only_rows_that_were_published() {
    let command = ["prune", "--older-than", "1h", "--timeout", "60s"];
    let prepare = || {
        let mut case = Case::set_up(ALL);
        case.start_relay(&[]);
        case.done(&["backfill", "--yes"]);
        case.insert(ALL, "due");
        case
    };
    at_each_statement(prepare, &command, ENDED, |case, _| {
        let all = ["old-1", "old-2", "old-parts", "due-outbox", "due-calm", "due-parts"].map(str::to_owned).into();
        case.nothing_lost(&all);
        case.done(&command);
        case.nothing_lost(&all);
        assert!(case.rows().is_empty());
        case.end_relays();
        case.works(&[], true);
    });
}

#[test]
#[ignore = "slow"]
fn a_backfill_that_is_ended_at_any_statement_is_finished_by_another_one_and_misses_no_row() {
    let command = ["backfill", "--yes", "--chunk", "1"];
    at_each_statement(
        || Case::noted(ALL),
        &command,
        (Nature::Retries, Action::CutAll),
        |case, _| {
            case.done(&command);
            assert!(case.old().iter().all(|id| case.delivered.contains(*id)), "{:?}", case.delivered);
            case.start_relay(&[]);
            let (code, text) = case.pruned(&[]);
            assert!(code == 0 && case.rows().is_empty(), "{code} {text} {:#?}", case.written());
            case.end_relays();
            case.works(&[], true);
        },
    );
}

#[test]
#[ignore = "slow"]
fn a_relay_that_is_ended_at_any_statement_of_its_start_has_noted_nothing_that_is_not_true() {
    let prepare = || {
        let mut case = Case::set_up(ALL);
        case.insert(ALL, "first");
        case
    };
    for action in [Action::CutAll, Action::Cut] {
        at_each_statement(prepare, &["run"], (Nature::Runs, action), |case, _| {
            case.is_set_up();
            case.works(&["first-outbox", "first-calm", "first-parts"], true);
        });
    }
}

#[test]
#[ignore = "slow"]
fn a_relay_that_is_ended_at_any_statement_of_its_own_setup_is_set_up_by_another_one() {
    let command = with(&["run", "--setup"], ALL);
    let prepare = || {
        let mut case = Case::new(ALL);
        // A relay that reads all tables would not be known to have read each of them before.
        case.flags = with(&[], ALL);
        case
    };
    at_each_statement(prepare, &command, (Nature::Runs, Action::CutAll), |case, _| {
        let name = case.name.clone();
        let had_slot = case.written().slots.contains(&name);
        case.insert(&["outbox"], "between");
        case.start_relay(&["--setup"]);
        case.end_relays();
        case.is_set_up();
        case.works(if had_slot { &["between-outbox"] } else { &[] }, true);
    });
}
