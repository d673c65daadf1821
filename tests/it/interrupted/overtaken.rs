//! Two commands at once: one is held before each of its statements that write, while the other one runs as far as it gets. Then both go on.
//!
//! Whichever of them comes first, what is written is true when both have ended, no row is deleted that is in no record, and one further
//! command makes the place whole.

use std::time::Duration;

use rustix::process::Signal;
use walrelay_dev::process::wait_until;
use walrelay_dev::tap::statements::{Action, Moment, StatementTap, Stop};

use super::case::{Case, PLAIN, Process, address, all_hold, with};
use crate::lane::LONG;

/// How long the second command may take after its first statement, while the first one is held. One that waits for the first gets no further.
const HEAD_START: Duration = Duration::from_millis(1500);

/// A command that writes markers or notes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Writer {
    Setup,
    AfterLoss,
    Published,
    Teardown,
    Run,
    Backfill,
    Reshard,
    Prune,
}

use Writer::{AfterLoss, Backfill, Prune, Published, Reshard, Run, Setup, Teardown};

const ALL_WRITERS: [Writer; 8] = [Setup, AfterLoss, Published, Teardown, Run, Backfill, Reshard, Prune];

impl Writer {
    fn words(self) -> Vec<&'static str> {
        match self {
            Setup => with(&["setup", "--apply"], PLAIN),
            AfterLoss => with(&["setup", "--apply", "--after-loss"], PLAIN),
            Published => with(&["setup", "--apply", "--published", "--yes"], PLAIN),
            Teardown => vec!["teardown", "--yes"],
            Run => vec!["run"],
            Backfill => vec!["backfill", "--yes", "--chunk", "1"],
            Reshard => vec!["setup", "--reshard", "2", "--apply"],
            Prune => vec!["prune", "--older-than", "1h", "--timeout", "3s"],
        }
    }
}

/// Whether a statement changes something, or takes a lock.
fn writes(sql: &str) -> bool {
    const FIRST: [&str; 11] =
        ["BEGIN", "COMMIT", "COMMENT", "CREATE", "ALTER", "DROP", "LOCK", "DO ", "START_REPLICATION", "DELETE", "WITH"];
    const WITHIN: [&str; 6] = [
        "pg_drop_replication_slot(",
        "lo_create(",
        "lo_unlink(",
        "advisory",
        "pg_logical_emit_message(",
        "DELETE FROM",
    ];
    FIRST.iter().any(|word| sql.starts_with(word)) || WITHIN.iter().any(|word| sql.contains(word))
}

/// The place in which both meet: set up, with rows of which nobody knows, and a relay where one of them waits for it.
fn prepare(first: Writer, second: Writer) -> Case {
    if first == Setup {
        // Otherwise it would have nothing to do.
        return Case::new(PLAIN);
    }
    let pair = [first, second];
    let mut case = Case::set_up(PLAIN);
    case.stated = pair.contains(&Published);
    if first == Run {
        // It has still to note what it reads.
        return case;
    }
    case.start_relay(&[]);
    case.insert(&["calm"], "due");
    case.wait_delivered(&["due-calm"]);
    if pair.contains(&Prune) {
        // Then it has rows to delete.
        case.done(&["backfill", "--yes"]);
    }
    case.lines_are_true();
    let needs_relay = pair.contains(&Reshard) || pair.contains(&Prune);
    // A slot that is read is not torn down.
    let is_read = needs_relay && !pair.contains(&Run) && (!pair.contains(&Teardown) || first == Reshard);
    if !is_read {
        case.end_relays();
    }
    case
}

/// The end of a command, which one that runs is asked for.
fn end(case: &mut Case, writer: Writer, process: &mut Process) {
    if writer == Run && process.exited().is_none() {
        process.signal(Signal::TERM);
    }
    let code = process.wait();
    let ended = case.ended(process, Some(code), None);
    assert!(matches!(code, 0..=2 | 64), "{writer:?} {ended:#?}");
    assert!(code == 0 || ended.stderr.contains("error: "), "{writer:?} {ended:#?}");
    for word in ["panicked", "deadlock"] {
        assert!(!ended.stderr.contains(word), "{writer:?} {ended:#?}");
    }
}

/// One further command makes it whole: the move to shards goes on, or `setup` does.
fn heal(case: &mut Case) {
    let (name, written) = (case.name.clone(), case.lines_are_true());
    if written.of("walrelay shard").count() == 0 {
        case.done(&with(&["setup", "--apply"], PLAIN));
        case.is_set_up();
        case.works(&[], false);
        return;
    }
    if written.of("walrelay move").count() > 0 {
        // `teardown` may have taken away what rows were to be moved from.
        let moves = written.slots.contains(&name) || written.is_marked(&name);
        if written.slots.contains(&name) {
            case.start_relay(&[]);
        }
        let verb = if moves { "--reshard" } else { "--shards" };
        case.done(&with(&["setup", verb, "2", "--apply"], PLAIN));
        case.end_relays();
    }
    case.has_shards(2);
    case.shards_work(2);
}

/// Holds `first` before its `number`-th statement that writes, as long as `second` runs.
fn overtake(first: Writer, second: Writer, number: usize) -> bool {
    let mut case = prepare(first, second);
    let before = case.rows();
    let stop = Stop { number, moment: Moment::Before, action: Action::Hold };
    let tap = StatementTap::start(&address(), writes, Some(stop)).unwrap();
    let mut one = case.spawn_behind(&tap, &first.words());
    let wait = wait_until(LONG, "the first command to be held", || Ok(tap.is_stopped() || one.exited().is_some()));
    wait.unwrap_or_else(|error| panic!("{error}: {}", one.stderr()));
    let was_held = tap.is_stopped();
    let others = StatementTap::start(&address(), |_| true, None).unwrap();
    let mut other = case.spawn_behind(&others, &second.words());
    let began = || Ok(!others.statements().is_empty() || other.exited().is_some());
    wait_until(LONG, "the second command to begin", began).unwrap();
    drop(wait_until(HEAD_START, "the second command", || Ok(other.exited().is_some())));
    tap.release();
    // One that runs gives the other what it waits for.
    let order = if first == Run {
        [(second, &mut other), (first, &mut one)]
    } else {
        [(first, &mut one), (second, &mut other)]
    };
    for (writer, process) in order {
        end(&mut case, writer, process);
    }
    case.end_relays();
    case.quiet();
    case.lines_are_true();
    case.nothing_lost(&before);
    heal(&mut case);
    was_held
}

/// Each other command overtakes this one at each of its statements that write.
#[track_caller]
fn each_overtakes(first: Writer) {
    let began = std::time::Instant::now();
    let mut case = prepare(first, if matches!(first, Reshard | Prune) { first } else { Setup });
    let tap = StatementTap::start(&address(), writes, None).unwrap();
    let mut process = case.spawn_behind(&tap, &first.words());
    if first == Run {
        let streams = || Ok(tap.statements().iter().any(|sql| sql.starts_with("START_REPLICATION")));
        wait_until(LONG, "the stream", streams).unwrap();
    }
    end(&mut case, first, &mut process);
    let statements = tap.statements();
    assert!(!statements.is_empty(), "{first:?} sent nothing that writes through the tap");
    drop(case);
    let jobs: Vec<(Writer, usize)> =
        ALL_WRITERS.iter().flat_map(|second| (1..=statements.len()).map(|number| (*second, number))).collect();
    let show = |(second, number): &(Writer, usize)| {
        format!("{second:?} overtakes {first:?} before {number}: {:.200}", statements[number - 1])
    };
    let held = std::sync::atomic::AtomicUsize::new(0);
    all_hold(&jobs, show, |(second, number)| {
        let was_held = overtake(first, *second, *number);
        held.fetch_add(usize::from(was_held), std::sync::atomic::Ordering::Relaxed);
    });
    let held = held.into_inner();
    eprintln!(
        "{first:?}: {} statements that write, {} cases, of which {held} were held, in {:?}",
        statements.len(),
        jobs.len(),
        began.elapsed()
    );
    // What there is to do depends on the other command, too.
    assert!(held * 2 > jobs.len(), "{first:?}: only {held} of {} cases were held", jobs.len());
}

#[test]
#[ignore = "slow"]
fn each_command_overtakes_setup() {
    each_overtakes(Setup);
}

#[test]
#[ignore = "slow"]
fn each_command_overtakes_setup_after_a_loss() {
    each_overtakes(AfterLoss);
}

#[test]
#[ignore = "slow"]
fn each_command_overtakes_the_statement_that_rows_are_published() {
    each_overtakes(Published);
}

#[test]
#[ignore = "slow"]
fn each_command_overtakes_teardown() {
    each_overtakes(Teardown);
}

#[test]
#[ignore = "slow"]
fn each_command_overtakes_the_start_of_a_relay() {
    each_overtakes(Run);
}

#[test]
#[ignore = "slow"]
fn each_command_overtakes_backfill() {
    each_overtakes(Backfill);
}

#[test]
#[ignore = "slow"]
fn each_command_overtakes_a_move_to_shards() {
    each_overtakes(Reshard);
}

#[test]
#[ignore = "slow"]
fn each_command_overtakes_prune() {
    each_overtakes(Prune);
}
