//! Mistakes, alone and two at a time: what is printed is followed to the letter, step by step, until the rows flow.
//!
//! `table` has the mistakes, `place` a set-up that works and what a person does to it, `follow` the steps. Each mistake must end in the
//! right records after [`MOST_STEPS`] hints at most, whatever other mistake was made with it. What was committed before the first start
//! either arrives as well, or a hint on the way has said how it is published.
//!
//! `cargo test` takes each mistake once, with another one that a seed draws; `make hints` takes each alone and all pairs. `MISTAKES` is
//! another seed, `all`, `all:2/3` (the second third of them), `with:wrong-password` (all cases of it), `alone`, or one case:
//! `wrong-password`, `wrong-password,wrong-database`. (Variables of walrelay's own prefix would reach the relay, which knows all of its
//! variables.)

mod follow;
mod place;
mod table;

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;

use table::{ALL, Mistake};

/// Hints that are followed for each mistake of a pair: the bound of a person's patience.
const MOST_STEPS: usize = 6;

/// So many at the same time: most of the time is spent waiting for servers.
const AT_ONCE: usize = 6;

/// One or two mistakes, made at the same place.
type Case = Vec<&'static Mistake>;

#[test]
#[ignore = "slow"]
fn hints_lead_out_of_two_mistakes_at_once() {
    let cases = cases();
    let failed = Mutex::new(Vec::new());
    let next = Mutex::new(cases.iter());
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let Some(case) = next.lock().unwrap().next() else { return };
                    if catch_unwind(AssertUnwindSafe(|| follow::out_of(case))).is_err() {
                        failed.lock().unwrap().push(name(case));
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    assert!(
        failed.is_empty(),
        "{} of {}: to run one again: MISTAKES={} cargo test --workspace --test it mistakes; all: {failed:#?}",
        failed.len(),
        cases.len(),
        failed[0],
    );
}

fn name(case: &Case) -> String {
    case.iter().map(|mistake| mistake.name).collect::<Vec<_>>().join(",")
}

fn cases() -> Vec<Case> {
    let asked_for = std::env::var("MISTAKES").unwrap_or_else(|_| "1".to_owned());
    match (asked_for.as_str(), asked_for.parse()) {
        ("all", _) => every(),
        (part, _) if part.starts_with("all:") => part_of(&part["all:".len()..], every()),
        (with, _) if with.starts_with("with:") => every_with(named(&with["with:".len()..])),
        ("alone", _) => ALL.iter().map(|one| vec![one]).collect(),
        (_, Ok(seed)) => drawn(seed),
        (names, Err(_)) => vec![names.split(',').map(named).collect()],
    }
}

/// Mixed, so that those that wait for one server do not all wait at once.
fn every() -> Vec<Case> {
    shuffled(ALL.iter().map(|one| vec![one]).chain(pairs()).collect(), 0, name)
}

fn every_with(one: &Mistake) -> Vec<Case> {
    every().into_iter().filter(|case| case.iter().any(|mistake| mistake.name == one.name)).collect()
}

/// `2/3`: the second of three parts.
fn part_of(part: &str, cases: Vec<Case>) -> Vec<Case> {
    let (number, parts) = part.split_once('/').unwrap();
    let (number, parts): (usize, usize) = (number.parse().unwrap(), parts.parse().unwrap());
    cases.into_iter().skip(number - 1).step_by(parts).collect()
}

fn named(name: &str) -> &'static Mistake {
    ALL.iter().find(|mistake| mistake.name == name).unwrap_or_else(|| panic!("no mistake {name}"))
}

/// Two of the same part cannot both be made.
fn pairs() -> impl Iterator<Item = Case> {
    let later = |at: usize| ALL[at + 1..].iter();
    ALL.iter()
        .enumerate()
        .flat_map(move |(at, one)| later(at).filter(|other| other.part != one.part).map(move |other| vec![one, other]))
}

/// Each mistake once, or with one more where their number is odd or their parts collide.
fn drawn(seed: u64) -> Vec<Case> {
    eprintln!("MISTAKES={seed}");
    let mut left: Vec<&Mistake> = shuffled(ALL.iter().collect(), seed, |mistake| mistake.name.to_owned());
    let mut drawn = Vec::new();
    while let Some(one) = left.pop() {
        let other = left.iter().position(|other| other.part != one.part);
        drawn.push(std::iter::once(one).chain(other.map(|at| left.remove(at))).collect());
    }
    drawn
}

/// In an order that depends on the seed alone.
fn shuffled<T>(mut all: Vec<T>, seed: u64, name: impl Fn(&T) -> String) -> Vec<T> {
    all.sort_by_cached_key(|one| {
        let mut hasher = DefaultHasher::new();
        (seed, name(one)).hash(&mut hasher);
        hasher.finish()
    });
    all
}
