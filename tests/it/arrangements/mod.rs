//! `prune` and `backfill` are judged by what is in the topics, whatever was done to the outbox before.
//!
//! An arrangement is an event, a version of Postgres, a shape of the outbox, what tells `prune` the age of a row, what the outbox had when
//! `setup` ran, and whether the relay runs during the event. After it `prune`, `backfill` and `prune` run, and it is asked:
//!
//! * Is each row that `prune` deleted in a topic?
//! * Is each row of the table in a topic, once `backfill` has ended with exit code 0?
//! * Does `prune` delete all rows of an outbox that began empty, or was backfilled, if the event does no harm to what is known of it? And does
//!   it after a backfill?
//!
//! The events are a table ([`events::EVENTS`]). The commit draws the rest of each arrangement, so that a failure comes again. A failure
//! names its arrangement. `WALRELAY_TEST_ARRANGEMENTS='plain/column cluster'` runs all whose names have these words.

mod events;
mod scene;

use std::any::Any;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;

use walrelay_dev::postgres::{Mode, Postgres, default_major};

use events::{EVENTS, Event};
use scene::Scene;

/// What carries the rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    /// The publication names the table.
    Plain,
    /// The publication names the table, whose rows are in partitions.
    Partitioned,
    /// The publication is for all tables.
    AllTables,
    /// The publication is for the table's schema.
    Schema,
    /// Two shards.
    Shards,
}

/// What tells the age of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Age {
    /// A column, by which each row is a day old.
    Column,
    /// The time of its commit.
    Commit,
    /// Nothing.
    Nothing,
}

/// What the outbox had when `setup` ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Start {
    Empty,
    /// Rows that are in no topic.
    Filled,
    /// Rows that `backfill` has published afterwards.
    Backfilled,
    /// Rows that `backfill --setup` has published under the slot's snapshot.
    Snapshot,
}

/// What is run once.
#[derive(Clone, Copy)]
struct Arrangement {
    major: u32,
    event: &'static Event,
    shape: Shape,
    age: Age,
    start: Start,
    /// Whether the relay runs while the event happens.
    runs: bool,
}

impl Arrangement {
    fn name(&self) -> String {
        let Self { major, event, shape, age, start, runs } = self;
        let runs = if *runs { "running" } else { "stopped" };
        format!("{major}/{shape:?}/{age:?}/{start:?}/{runs}/{}", event.name).to_lowercase()
    }

    /// All arrangements of a version.
    fn all(major: u32) -> Vec<Self> {
        let mut all = Vec::new();
        for event in EVENTS.iter().filter(|event| event.from <= major) {
            let has = |shape: &Shape| major >= 15 || !matches!(shape, Shape::Schema | Shape::Shards);
            for shape in event.on.iter().copied().filter(has) {
                for start in [Start::Empty, Start::Filled, Start::Backfilled, Start::Snapshot] {
                    // `backfill` refuses with shards.
                    if shape == Shape::Shards && matches!(start, Start::Backfilled | Start::Snapshot) {
                        continue;
                    }
                    let is_one = shape == Shape::Plain && start == Start::Empty;
                    for age in [Age::Column, Age::Commit, Age::Nothing].into_iter().take(if is_one { 3 } else { 2 }) {
                        all.extend([true, false].map(|runs| Self { major, event, shape, age, start, runs }));
                    }
                }
            }
        }
        all
    }

    /// Makes the outbox, and has the event happen between rows.
    fn prepare(&self, postgres: &mut Postgres) -> Scene {
        let mut scene = Scene::new(self, postgres);
        self.event.happen(&mut scene, postgres);
        scene.insert("outbox");
        scene
    }

    /// Whether `prune` finds an age, and can know of a table that all of its rows are published.
    fn is_prunable(&self) -> bool {
        let has_age = self.age != Age::Nothing || matches!(self.event.name, "time_column" | "trigger_on_time");
        // On 19 a publication of all tables may have left one out at any time.
        has_age && (self.major < 19 || self.shape != Shape::AllTables)
    }

    /// Prunes, backfills and prunes; what became of it, in a line.
    fn judge(&self, mut scene: Scene) -> String {
        let is_up = scene.settle();
        let (shapes, from) = self.event.goes;
        let goes = self.start != Start::Filled && shapes.contains(&self.shape) && self.major >= from;
        let first = scene.prune(self.age, if is_up { "3min" } else { "5s" });
        self.has_pruned(&scene, &first, goes);
        if !is_up {
            let (code, said) = scene.walrelay(&["setup", "--apply", "--after-loss"]);
            assert!(code == 0 || self.shape == Shape::Shards, "{said}");
            assert!(scene.settle() || self.shape == Shape::Shards, "no relay streams after that: {said}");
        }
        let (filled, said) = scene.backfill();
        assert!(if scene.shards > 0 { filled == 64 } else { filled == 0 }, "{filled} {said}");
        if filled == 0 {
            scene.settle();
            let missing = &(&scene.left() | &scene.sent) - &scene.published();
            let missing = &(&missing - &scene.skipped) - &scene.passed;
            assert!(missing.is_empty(), "backfill was done, and these are in no topic: {missing:?}\n{said}");
        }
        let second = scene.prune(self.age, "3min");
        self.has_pruned(&scene, &second, filled == 0 && !self.event.is_doubtful);
        let shown = |(code, said, gone): &(i32, String, usize)| match code {
            0 => format!("{gone} pruned"),
            _ => format!("prune ended with {code}: {}", said.lines().next().unwrap_or_default()),
        };
        let (first, second) = (shown(&first), shown(&second));
        let refused = if is_up { "" } else { "the relay ended, " };
        format!("{refused}{first}; backfill {filled}, {second}, {} left", scene.left().len())
    }

    /// Checks that all rows went, if they were to.
    fn has_pruned(&self, scene: &Scene, (code, said, _): &(i32, String, usize), goes: bool) {
        let kept = &scene.left() - &scene.skipped;
        let is_good = *code == 0 && kept.is_empty();
        assert!(is_good || !goes || !self.is_prunable(), "prune kept {kept:?}\n{code} {said}");
    }
}

/// What became of the arrangements.
#[derive(Default)]
struct Report {
    failed: Vec<String>,
}

impl Report {
    /// Does a part of an arrangement. `None`: it failed.
    fn part<T>(&mut self, arrangement: &Arrangement, act: impl FnOnce() -> T) -> Option<T> {
        let text = |panic: Box<dyn Any + Send>| match panic.downcast::<String>() {
            Ok(text) => *text,
            Err(panic) => panic.downcast_ref::<&str>().map_or_else(String::new, |text| (*text).to_owned()),
        };
        let failure = |panic| self.failed.push(format!("{}: {}", arrangement.name(), text(panic)));
        catch_unwind(AssertUnwindSafe(act)).map_err(failure).ok()
    }

    fn judge(&mut self, arrangement: &Arrangement, scene: Scene) {
        if let Some(outcome) = self.part(arrangement, || arrangement.judge(scene)) {
            eprintln!("{}: {outcome}", arrangement.name());
        }
    }
}

/// Runs arrangements of a version on one server, and says which of them failed, and why.
fn run(major: u32, chosen: Vec<Arrangement>) {
    let settings = [("track_commit_timestamp", "on"), ("max_prepared_transactions", "5")];
    let mut postgres = Postgres::with(major, &settings).unwrap();
    let (count, mut report, mut young) = (chosen.len(), Report::default(), Vec::new());
    let (ageless, mut aged): (Vec<_>, Vec<_>) = chosen.into_iter().partition(|one| one.age == Age::Nothing);
    // Events that stop the server come first, so that they are no part of other arrangements.
    aged.sort_by_key(|one| (!one.event.stops, one.age != Age::Commit));
    for one in aged {
        match report.part(&one, || one.prepare(&mut postgres)) {
            Some(mut scene) if one.age == Age::Commit => {
                scene.stop();
                young.push((one, scene));
            }
            Some(scene) => report.judge(&one, scene),
            None => {}
        }
    }
    for (one, scene) in young {
        scene.wait_until_old();
        report.judge(&one, scene);
    }
    if !ageless.is_empty() {
        postgres.connect(None).unwrap().batch_execute("ALTER SYSTEM SET track_commit_timestamp = off").unwrap();
        postgres.restart(Mode::Fast).unwrap();
    }
    for one in ageless {
        if let Some(scene) = report.part(&one, || one.prepare(&mut postgres)) {
            report.judge(&one, scene);
        }
    }
    let Report { failed } = report;
    assert!(failed.is_empty(), "{} of {count} arrangements failed:\n{}", failed.len(), failed.join("\n\n"));
}

/// A number that is the same in each run of the commit.
fn drawn(what: &str) -> usize {
    let git = Command::new("git").args(["rev-parse", "HEAD"]).current_dir(walrelay_dev::repository()).output();
    // A source archive has no commit.
    let commit = git.map_or_else(|_| Vec::new(), |output| output.stdout);
    let mut hasher = DefaultHasher::new();
    (commit, what).hash(&mut hasher);
    usize::try_from(hasher.finish() % (1 << 31)).unwrap()
}

/// The arrangements that `WALRELAY_TEST_ARRANGEMENTS` names. `None`: it is not set.
fn named(major: u32) -> Option<Vec<Arrangement>> {
    let words = std::env::var("WALRELAY_TEST_ARRANGEMENTS").ok()?;
    let is_named = |one: &Arrangement| words.split(' ').all(|word| one.name().contains(word));
    let named: Vec<_> = Arrangement::all(major).into_iter().filter(is_named).collect();
    assert!(!named.is_empty(), "WALRELAY_TEST_ARRANGEMENTS='{words}' names no arrangement of Postgres {major}");
    Some(named)
}

/// Runs one arrangement of each event.
fn each_event(major: u32) {
    let of_event = |event: &Event| {
        let mut all = Arrangement::all(major);
        all.retain(|one| one.event.name == event.name);
        (!all.is_empty()).then(|| all[drawn(&format!("{major} {}", event.name)) % all.len()])
    };
    run(major, named(major).unwrap_or_else(|| EVENTS.iter().filter_map(of_event).collect()));
}

#[test]
fn no_row_is_lost_by_prune_or_backfill_in_a_few_arrangements() {
    let majors = if default_major() == 17 { &[14, 17, 18][..] } else { &[default_major()] };
    let major = majors[drawn("version") % majors.len()];
    let mut all = Arrangement::all(major);
    // Rows whose age is that of their commit have to become a minute old.
    all.retain(|one| one.age != Age::Commit);
    let few = (0..4).map(|number| all[drawn(&format!("few {number}")) % all.len()]);
    run(major, named(major).unwrap_or_else(|| few.collect()));
}

#[test]
#[ignore = "slow"]
fn no_row_is_lost_by_prune_or_backfill_after_any_event_on_postgres_14() {
    each_event(14);
}

#[test]
#[ignore = "slow"]
fn no_row_is_lost_by_prune_or_backfill_after_any_event_on_postgres_17() {
    each_event(17);
}

#[test]
#[ignore = "slow"]
fn no_row_is_lost_by_prune_or_backfill_after_any_event_on_postgres_18() {
    each_event(18);
}

/// For `make postgres-19`.
#[test]
#[ignore = "slow"]
fn no_row_is_lost_by_prune_or_backfill_after_any_event_on_a_version_that_is_asked_for() {
    if ![14, 17, 18].contains(&default_major()) {
        each_event(default_major());
    }
}
