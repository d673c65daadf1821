//! `prune` and `backfill` beside a relay under load, each of the three killed again and again: no row is deleted that is in no topic, and
//! none is missing once a backfill is done.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

use crate::backfill;
use crate::lane::{LONG, Lane, binary, ids};
use crate::prune::{self, AGED, left, proven, pruned};

const KILLS: u32 = 30;

/// Skipped rows are noted by their ids up to 100.
const MOST_SKIPPED: usize = 90;

/// What a writer has committed: all ids, and those of rows without a topic.
#[derive(Default)]
struct Committed {
    all: BTreeSet<String>,
    skipped: BTreeSet<String>,
}

/// Writes transactions of twenty rows that are a day old until `ends`, and so many rows without a topic at most. One transaction in five is
/// rolled back.
fn write(lane: &Lane, ends: &AtomicBool, most_skipped: usize) -> Committed {
    let (mut client, mut committed, mut next) = (lane.connect(), Committed::default(), 0_usize);
    while !ends.load(Ordering::Relaxed) {
        let (ids, route): (Vec<String>, _) = ((next..next + 20).map(|id| format!("{id:07}")).collect(), "order");
        let skipped = ids[7].clone();
        let skips = next.is_multiple_of(140) && committed.skipped.len() < most_skipped;
        let row = |id: &String| {
            let route = if skips && *id == skipped { "no topic" } else { route };
            format!("('{id}', '{route}', 'k' || {}, 'p')", id.len() + usize::from(id.as_bytes()[6]))
        };
        let rows: Vec<String> = ids.iter().map(row).collect();
        let insert = format!("INSERT INTO outbox (id, aggregatetype, aggregateid, payload) VALUES {}", rows.join(", "));
        let is_kept = !next.is_multiple_of(100);
        let end = if is_kept { "COMMIT" } else { "ROLLBACK" };
        client.batch_execute(&format!("BEGIN; {insert}; {end}")).unwrap();
        if is_kept {
            committed.skipped.extend(skips.then_some(skipped));
            committed.all.extend(ids);
        }
        next += 20;
        thread::sleep(Duration::from_millis(5));
    }
    committed
}

fn set(ids: Vec<String>) -> BTreeSet<String> {
    ids.into_iter().collect()
}

#[test]
#[ignore = "slow"]
fn a_prune_and_a_relay_that_are_killed_delete_nothing_that_is_in_no_topic() {
    let lane = proven(Lane::with(AGED, "outbox"));
    let mut dice = StdRng::seed_from_u64(30);
    let mut relay = lane.streaming(&["--on-bad-row=skip"]);
    let ends = AtomicBool::new(false);
    let committed = thread::scope(|scope| {
        let writer = scope.spawn(|| write(&lane, &ends, MOST_SKIPPED));
        for _ in 0..KILLS {
            let mut job = prune::command(&lane, &["--older-than", "1h", "--every", "1s", "--chunk", "7"]);
            let mut job = job.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            thread::sleep(Duration::from_millis(dice.random_range(100..2500)));
            if dice.random_bool(0.5) {
                relay.kill9().unwrap();
                thread::sleep(Duration::from_millis(dice.random_range(0..700)));
                relay.start_again().unwrap();
                thread::sleep(Duration::from_millis(dice.random_range(0..700)));
            }
            assert_eq!(job.try_wait().unwrap(), None, "a prune ended by itself");
            job.kill().unwrap();
            job.wait().unwrap();
        }
        ends.store(true, Ordering::Relaxed);
        writer.join().unwrap()
    });
    relay.wait_streaming(LONG).unwrap();
    let published = set(lane.ids("order"));
    let kept = set(left(&lane));
    let deleted: BTreeSet<_> = committed.all.difference(&kept).cloned().collect();
    assert!(deleted.len() > 100, "only {} rows were deleted under way", deleted.len());
    assert!(deleted.is_subset(&published), "deleted, in no topic: {:?}", deleted.difference(&published));
    assert!(committed.skipped.is_subset(&kept), "the only copy: {:?}", committed.skipped.difference(&kept));
    let all: BTreeSet<_> = published.union(&committed.skipped).cloned().collect();
    assert_eq!(all, committed.all, "each row is published or skipped");
    let (code, text) = pruned(&lane, &["--older-than", "1h"]);
    assert_eq!(code, 0, "{text}");
    assert_eq!(set(left(&lane)), committed.skipped);
    eprintln!("{} rows, {} deleted under way, {} skipped", committed.all.len(), deleted.len(), committed.skipped.len());
}

#[test]
#[ignore = "slow"]
fn a_backfill_that_is_killed_leaves_no_row_out_once_it_is_done() {
    const OLD: u32 = 30_000;
    let lane = Lane::empty();
    lane.sql(AGED);
    lane.sql(&format!(
        "INSERT INTO outbox SELECT 'old' || n, 'order', 'k' || n % 7, 'p' FROM generate_series(1, {OLD}) AS n"
    ));
    backfill::set_up(&lane, "outbox");
    let mut dice = StdRng::seed_from_u64(31);
    let mut relay = lane.streaming(&[]);
    let ends = AtomicBool::new(false);
    let arguments = backfill::arguments(&lane, &["--chunk=200", "--rate=20000"]);
    let (committed, interrupted) = thread::scope(|scope| {
        let writer = scope.spawn(|| write(&lane, &ends, 0));
        let mut interrupted = 0;
        for _ in 0..KILLS {
            let mut job = Command::new(binary());
            let mut job = job.args(&arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            thread::sleep(Duration::from_millis(dice.random_range(200..1000)));
            if dice.random_bool(0.3) {
                relay.kill9().unwrap();
                relay.start_again().unwrap();
            }
            interrupted += u32::from(job.try_wait().unwrap().is_none());
            job.kill().unwrap();
            job.wait().unwrap();
        }
        ends.store(true, Ordering::Relaxed);
        (writer.join().unwrap(), interrupted)
    });
    assert!(interrupted >= 3, "only {interrupted} were killed before they were done");
    let (code, text) = backfill::filled(&lane, &["--chunk=200"]);
    assert_eq!(code, 0, "{text}");
    let published = set(ids(&lane.records("order")));
    let old = (1..=OLD).map(|n| format!("old{n}"));
    let expected: BTreeSet<_> = old.chain(committed.all).collect();
    assert!(
        published.is_superset(&expected),
        "in no topic: {:?}",
        expected.difference(&published).take(9).collect::<Vec<_>>()
    );
    // All of the table is known to be published now.
    let (code, text) = pruned(&lane, &["--older-than", "1h"]);
    assert_eq!(code, 0, "{text}");
    assert_eq!(left(&lane), [] as [String; 0]);
    eprintln!("{interrupted} backfills were killed under way");
}
