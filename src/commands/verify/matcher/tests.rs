//! Rows against records, in every order in which they may come.

#![allow(clippy::needless_for_each, reason = "one line says which rows or records come")]

use super::super::comparison::tests::record;
use super::*;
use crate::sink::Header;
use proptest::prelude::*;

const RULES: Rules =
    Rules { exclusive: false, once: false, asks_for_partitions: false, with_values: false, show: 20, memory: 1 << 30 };

/// A row with this number as its position and id, this key, and this value.
pub(in crate::commands::verify) fn row(number: u32, key: &str, value: &str) -> Expected {
    let id = number.to_string();
    let (copy, hashes) = with(&id, key, value, |record| (Box::new(OwnedRecord::of(record)), Hashes::of(0, record)));
    Expected {
        position: Position { final_lsn: Lsn::new(u64::from(number)), ordinal: 0 },
        source: Source::Table(1),
        topic: 0,
        hashes,
        id: id.into_bytes().into(),
        partition: None,
        time: None,
        is_bad: false,
        copy: Some(copy),
    }
}

fn with<T>(id: &str, key: &str, value: &str, take: impl FnOnce(&Record<'_>) -> T) -> T {
    let headers = [Header { name: "id", value: Some(id.as_bytes()) }];
    take(&record(Some(key.as_bytes()), Some(value.as_bytes()), &headers))
}

fn at(offset: i64) -> FoundAt {
    FoundAt { at: RecordAt { topic: 0, partition: 0, offset }, time: None, partition_of_key: None }
}

/// A witness of rows and topics that says the same of each.
#[derive(Debug, Clone)]
struct Says {
    explanation: Explanation,
    unknown: Option<&'static str>,
    lost: Option<&'static str>,
    void: bool,
}

/// Everything was read, and nothing explains what is wrong.
const ALL: Says = Says { explanation: Explanation::Unexplained, unknown: None, lost: None, void: false };

impl Witness for Says {
    fn explanation(&mut self, _: &Expected, _: bool) -> Explanation {
        self.explanation.clone()
    }

    fn why_unknown(&mut self, _: u32, _: Position) -> Option<String> {
        self.unknown.map(str::to_owned)
    }

    fn why_lost(&mut self, _: u32) -> Option<String> {
        self.lost.map(str::to_owned)
    }

    fn is_void(&mut self, _: u32) -> bool {
        self.void
    }
}

/// The reasons with their numbers.
fn said(reasons: &BTreeMap<String, u64>) -> Vec<(&str, u64)> {
    reasons.iter().map(|(reason, count)| (reason.as_str(), *count)).collect()
}

impl Matcher {
    fn finds(&mut self, offset: i64, id: u32, key: &str, value: &str) {
        with(&id.to_string(), key, value, |record| self.found(at(offset), Hashes::of(0, record), record));
    }

    /// A record of value `a` has come, in this partition.
    fn finds_in(&mut self, partition: i32, offset: i64, id: u32, key: &str) {
        let found = FoundAt { at: RecordAt { partition, ..at(offset).at }, ..at(offset) };
        with(&id.to_string(), key, "a", |record| self.found(found, Hashes::of(0, record), record));
    }

    /// All rows have come.
    fn ends(self) -> Outcome {
        self.ends_with(ALL)
    }

    fn ends_with(mut self, mut witness: Says) -> Outcome {
        self.settle(self.next_unknown());
        self.finish(&mut witness)
    }
}

fn verdicts(outcome: &Outcome) -> Vec<(Verdict, String)> {
    let id = |fault: &Fault| String::from_utf8_lossy(&fault.id).into_owned();
    outcome.faults.iter().map(|fault| (fault.verdict, id(fault))).collect()
}

#[test]
fn a_row_whose_record_comes_before_or_behind_it_is_right() {
    let mut matcher = Matcher::new(RULES);
    matcher.finds(0, 1, "k", "a");
    matcher.expect(row(1, "k", "a"));
    matcher.expect(row(2, "k", "b"));
    matcher.finds(1, 2, "k", "b");
    let outcome = matcher.ends();
    assert_eq!(outcome.counts, Counts { rows: 2, right: 2, ..Counts::default() });
}

#[test]
fn a_row_without_a_record_is_missing_and_has_its_id_and_position() {
    let mut matcher = Matcher::new(RULES);
    matcher.expect(row(1, "k", "a"));
    matcher.expect(row(2, "k", "b"));
    matcher.finds(0, 1, "k", "a");
    let outcome = matcher.ends();
    assert_eq!((outcome.counts.right, outcome.counts.missing), (1, 1));
    assert!(outcome.reasons.is_empty() && outcome.keys.is_empty() && outcome.topics.is_empty());
    assert_eq!(verdicts(&outcome), [(Verdict::Missing, "2".to_owned())]);
    assert_eq!(outcome.faults[0].position.unwrap().to_string(), "0/2:0");
}

#[test]
fn a_record_with_a_rows_id_and_other_bytes_is_that_row_altered_wherever_it_comes() {
    for record_first in [true, false] {
        let mut matcher = Matcher::new(RULES);
        if record_first {
            matcher.finds(7, 1, "k", "axc");
        }
        matcher.expect(row(1, "k", "abc"));
        if !record_first {
            matcher.finds(7, 1, "k", "axc");
        }
        let outcome = matcher.ends();
        assert_eq!((outcome.counts.altered, outcome.counts.missing, outcome.counts.other), (1, 0, 0));
        assert_eq!(outcome.faults[0].why, "value: 3 bytes, expected 3 bytes, different from byte 1 on");
        assert_eq!(outcome.faults[0].at.unwrap().offset, 7);
    }
}

/// Two services may write to a topic, and count their ids from 1.
#[test]
fn another_record_with_the_id_of_a_row_that_is_right_is_another_writers() {
    for other_first in [true, false] {
        let mut matcher = Matcher::new(RULES);
        matcher.expect(row(1, "k", "a"));
        matcher.finds(0, 1, if other_first { "z" } else { "k" }, "a");
        matcher.settle(matcher.next_unknown());
        matcher.finds(1, 1, if other_first { "k" } else { "z" }, "a");
        let outcome = matcher.ends();
        assert_eq!(outcome.counts, Counts { rows: 1, right: 1, other: 1, ..Counts::default() });
    }
}

#[test]
fn a_record_without_a_row_is_a_fault_only_if_the_topics_are_the_slots_alone() {
    for exclusive in [false, true] {
        let mut matcher = Matcher::new(Rules { exclusive, ..RULES });
        matcher.finds(3, 9, "k", "a");
        let outcome = matcher.ends();
        assert_eq!((outcome.counts.other, outcome.faults.len()), (1, usize::from(exclusive)));
    }
}

#[test]
fn a_tail_that_is_sent_again_is_repeated_and_in_order() {
    let mut matcher = Matcher::new(RULES);
    (1..=3).for_each(|number| matcher.expect(row(number, "k", "a")));
    [1, 2, 3, 2, 3].iter().zip(0..).for_each(|(id, offset)| matcher.finds(offset, *id, "k", "a"));
    let outcome = matcher.ends();
    assert_eq!(outcome.counts, Counts { rows: 3, right: 3, repeated: 2, ..Counts::default() });
}

#[test]
fn a_repeated_record_is_a_fault_with_exactly_once() {
    let mut matcher = Matcher::new(Rules { once: true, ..RULES });
    matcher.expect(row(1, "k", "a"));
    [0, 1].iter().for_each(|offset| matcher.finds(*offset, 1, "k", "a"));
    assert_eq!(verdicts(&matcher.ends()), [(Verdict::Repeated, "1".to_owned())]);
}

/// Neither row has an id of its own.
#[test]
fn rows_with_equal_records_need_as_many_records() {
    for records_first in [true, false] {
        let mut matcher = Matcher::new(RULES);
        let twice = |matcher: &mut Matcher| {
            [1, 2].iter().for_each(|lsn| {
                matcher.expect(Expected {
                    position: Position { final_lsn: Lsn::new(*lsn), ordinal: 0 },
                    ..row(7, "k", "a")
                });
            });
        };
        if records_first {
            [0, 1].iter().for_each(|offset| matcher.finds(*offset, 7, "k", "a"));
        }
        twice(&mut matcher);
        if !records_first {
            [0, 1].iter().for_each(|offset| matcher.finds(*offset, 7, "k", "a"));
        }
        assert_eq!(matcher.ends().counts, Counts { rows: 2, right: 2, ..Counts::default() });
    }
}

#[test]
fn swapped_records_of_a_key_are_found_and_those_of_two_keys_are_not() {
    let mut matcher = Matcher::new(RULES);
    [row(1, "k", "a"), row(2, "k", "a"), row(3, "z", "a"), row(4, "y", "a")]
        .into_iter()
        .for_each(|row| matcher.expect(row));
    [(2, "k"), (1, "k"), (4, "y"), (3, "z")]
        .iter()
        .zip(0..)
        .for_each(|((id, key), at)| matcher.finds(at, *id, key, "a"));
    let outcome = matcher.ends();
    // Its last record is that of the first row, too.
    assert_eq!(verdicts(&outcome), [(Verdict::OutOfOrder, "2".to_owned()), (Verdict::Stale, "2".to_owned())]);
    assert_eq!(outcome.counts.right, 4);
}

#[test]
fn an_old_record_behind_the_newest_is_stale_until_the_newest_comes_again() {
    let mut matcher = Matcher::new(RULES);
    [row(1, "k", "a"), row(2, "k", "b")].into_iter().for_each(|row| matcher.expect(row));
    [(1, "a"), (2, "b"), (1, "a")].iter().zip(0..).for_each(|((id, value), at)| matcher.finds(at, *id, "k", value));
    matcher.settle(matcher.next_unknown());
    assert_eq!(matcher.last_open(), Some(Lsn::new(2)), "the repeat may still go on");
    let mut again = Matcher::new(RULES);
    [row(1, "k", "a"), row(2, "k", "b")].into_iter().for_each(|row| again.expect(row));
    [(1, "a"), (2, "b"), (1, "a"), (2, "b")]
        .iter()
        .zip(0..)
        .for_each(|((id, value), at)| again.finds(at, *id, "k", value));
    let outcome = matcher.ends();
    assert_eq!(verdicts(&outcome), [(Verdict::Stale, "2".to_owned())]);
    assert_eq!((outcome.counts.stale_keys, again.ends().counts.stale_keys), (1, 0));
}

#[test]
fn an_old_record_behind_the_newest_says_nothing_while_the_newest_may_come_again_unread() {
    let mut matcher = Matcher::new(RULES);
    [row(1, "k", "a"), row(2, "k", "a"), row(3, "z", "a")].into_iter().for_each(|row| matcher.expect(row));
    [(1, "k"), (2, "k"), (1, "k"), (3, "z")]
        .iter()
        .zip(0..)
        .for_each(|((id, key), at)| matcher.finds(at, *id, key, "a"));
    let outcome = matcher.ends_with(Says { unknown: Some("not confirmed"), ..ALL });
    assert_eq!((outcome.counts.stale_keys, outcome.faults.len()), (0, 0));
    assert_eq!(said(&outcome.keys), [("not confirmed", 1)], "the other key is right, whatever comes");
}

#[test]
fn swapped_records_say_nothing_if_those_between_them_may_have_gone_unread() {
    let mut matcher = Matcher::new(RULES);
    [row(1, "k", "a"), row(2, "k", "a")].into_iter().for_each(|row| matcher.expect(row));
    [2, 1, 2].iter().zip(0..).for_each(|(id, at)| matcher.finds(at, *id, "k", "a"));
    let outcome = matcher.ends_with(Says { lost: Some("deleted"), ..ALL });
    assert_eq!((outcome.counts.out_of_order, outcome.faults.len()), (0, 0));
    assert_eq!(said(&outcome.keys), [("deleted", 1)]);
}

#[test]
fn records_of_a_key_in_several_partitions_have_no_order() {
    let mut matcher = Matcher::new(RULES);
    (1..=2).for_each(|number| matcher.expect(row(number, "k", "a")));
    // The partition of the newer one is read first.
    matcher.finds_in(1, 0, 2, "k");
    matcher.finds_in(0, 9, 1, "k");
    assert_eq!(matcher.last_open(), None, "nothing is waited for");
    let outcome = matcher.ends();
    assert_eq!(outcome.counts, Counts { rows: 2, right: 2, ..Counts::default() });
    assert!(outcome.keys.keys().all(|why| why.contains("several partitions")) && outcome.keys.len() == 1);
}

/// Both were sent again after partitions were added, and the new partition is read first.
#[test]
fn records_that_were_sent_again_to_another_partition_are_not_out_of_order() {
    for asks_for_partitions in [false, true] {
        let mut matcher = Matcher::new(Rules { asks_for_partitions, ..RULES });
        (1..=2).for_each(|number| matcher.expect(row(number, "k", "a")));
        [(1, 7, 2), (1, 8, 1), (1, 9, 2), (0, 5, 1)]
            .iter()
            .for_each(|(partition, offset, id)| matcher.finds_in(*partition, *offset, *id, "k"));
        let outcome = matcher.ends();
        assert_eq!(outcome.counts, Counts { rows: 2, right: 2, repeated: 2, ..Counts::default() });
        assert!(!outcome.keys.is_empty());
    }
}

#[test]
fn where_rows_ask_for_partitions_a_key_has_an_order_in_each() {
    let rules = Rules { asks_for_partitions: true, ..RULES };
    let asks = |number, partition| Expected { partition: Some(partition), ..row(number, "k", "a") };
    let mut matcher = Matcher::new(rules);
    [asks(1, 0), asks(2, 1), asks(3, 0)].into_iter().for_each(|row| matcher.expect(row));
    [(0, 4, 3), (0, 5, 1), (1, 3, 2)]
        .iter()
        .for_each(|(partition, offset, id)| matcher.finds_in(*partition, *offset, *id, "k"));
    let outcome = matcher.ends();
    assert_eq!((outcome.counts.out_of_order, outcome.counts.stale_keys, outcome.keys.len()), (1, 1, 0));
}

#[test]
fn an_old_record_behind_the_newest_is_stale_also_if_its_row_asks_for_no_partition_and_others_do() {
    let rules = Rules { asks_for_partitions: true, ..RULES };
    let check = |ids: &[u32], expected: u64| {
        let mut matcher = Matcher::new(rules);
        (1..=3).for_each(|number| matcher.expect(row(number, "k", "a")));
        ids.iter().zip(0..).for_each(|(id, offset)| matcher.finds_in(2, offset, *id, "k"));
        let outcome = matcher.ends();
        assert_eq!((outcome.counts.stale_keys, outcome.keys.len()), (expected, 0), "{ids:?}");
    };
    check(&[1, 2, 3, 2], 1);
    check(&[1, 2, 3, 2, 3], 0);
    // What one row asks for and what the key of another one gives is the same partition.
    let mut matcher = Matcher::new(rules);
    matcher.expect(Expected { partition: Some(2), ..row(1, "k", "a") });
    matcher.expect(row(2, "k", "a"));
    [1, 2, 1, 2].iter().zip(0..).for_each(|(id, offset)| matcher.finds_in(2, offset, *id, "k"));
    assert_eq!(matcher.ends().counts, Counts { rows: 2, right: 2, repeated: 2, ..Counts::default() });
}

#[test]
fn nothing_is_concluded_from_a_topic_that_is_another_one_now() {
    let mut matcher = Matcher::new(Rules { exclusive: true, once: true, ..RULES });
    matcher.expect(Expected { partition: Some(1), ..row(1, "k", "a") });
    matcher.expect(row(2, "k", "a"));
    [1, 2, 2, 9].iter().zip(0..).for_each(|(id, offset)| matcher.finds(offset, *id, "k", "a"));
    let judged = Counts { rows: 2, right: 1, altered: 1, repeated: 1, other: 1, ..Counts::default() };
    let mut again = Matcher::new(Rules { exclusive: true, once: true, ..RULES });
    again.expect(Expected { partition: Some(1), ..row(1, "k", "a") });
    again.expect(row(2, "k", "a"));
    [1, 2, 2, 9].iter().zip(0..).for_each(|(id, offset)| again.finds(offset, *id, "k", "a"));
    assert_eq!(matcher.ends().counts, judged);
    let outcome = again.ends_with(Says { lost: Some("made again"), void: true, ..ALL });
    assert_eq!(outcome.counts, Counts { rows: 2, right: 1, not_judged: 1, ..Counts::default() });
    assert_eq!((said(&outcome.reasons), outcome.faults.len()), (vec![("made again", 1)], 0));
}

#[test]
fn a_missing_row_is_shown_although_others_filled_the_list_before() {
    let mut matcher = Matcher::new(Rules { show: 2, ..RULES });
    (1..=9).for_each(|number| matcher.expect(Expected { partition: Some(1), ..row(number, "k", "a") }));
    (1..=8).for_each(|id| matcher.finds(i64::from(id), id, "k", "a"));
    let outcome = matcher.ends();
    assert_eq!(verdicts(&outcome), [(Verdict::Altered, "1".to_owned()), (Verdict::Missing, "9".to_owned())]);
}

#[test]
fn rows_behind_the_end_are_known_and_do_not_count() {
    let mut matcher = Matcher::new(RULES);
    matcher.expect(row(1, "k", "a"));
    matcher.end_at(Lsn::new(2));
    matcher.expect(row(2, "k", "a"));
    matcher.expect(row(3, "k", "a"));
    [1, 2].iter().zip(0..).for_each(|(id, offset)| matcher.finds(offset, *id, "k", "a"));
    assert_eq!(matcher.last_open(), None);
    assert_eq!(matcher.ends().counts, Counts { rows: 1, right: 1, ..Counts::default() });
}

#[test]
fn time_and_partition_are_compared_where_both_sides_have_one() {
    let found = FoundAt { time: Some(7), partition_of_key: Some(3), ..at(0) };
    for (time, partition, said) in [
        (None, Some(0), ""),
        (Some(7), Some(0), ""),
        (Some(8), Some(0), "time: 7 ms, expected 8 ms"),
        (None, Some(2), "partition: 0, expected 2"),
        (None, None, "partition: 0, expected 3"),
    ] {
        let mut matcher = Matcher::new(RULES);
        matcher.expect(Expected { partition, time, ..row(1, "k", "a") });
        with("1", "k", "a", |record| matcher.found(found, Hashes::of(0, record), record));
        let outcome = matcher.ends();
        assert_eq!(outcome.counts.altered, u64::from(!said.is_empty()));
        assert!(outcome.faults.iter().all(|fault| fault.why == said), "{:?}", outcome.faults);
    }
    let mut matcher = Matcher::new(RULES);
    matcher.expect(Expected { time: Some(8), ..row(1, "k", "a") });
    matcher.finds(0, 1, "k", "a");
    assert_eq!(matcher.ends().counts.right, 1, "the broker set the time");
}

#[test]
fn a_bad_row_needs_a_dead_letter_of_its_position_and_id_and_any_row_may_have_one() {
    let mut matcher = Matcher::new(RULES);
    let bad = |number| Expected { is_bad: true, ..row(number, "k", "a") };
    [bad(1), bad(2), row(3, "k", "a")].into_iter().for_each(|row| matcher.expect(row));
    let position = |number| Position { final_lsn: Lsn::new(number), ordinal: 0 };
    // Another shard's row has the position of the second.
    [(1, "1"), (2, "9"), (3, "3")]
        .iter()
        .for_each(|(number, id)| matcher.found_dead_letter(position(*number), id.as_bytes()));
    let outcome = matcher.ends();
    assert_eq!((outcome.counts.dead_lettered, outcome.counts.missing), (2, 1));
    assert_eq!(verdicts(&outcome), [(Verdict::Missing, "2".to_owned())]);
}

#[test]
fn memory_is_given_back_and_a_row_with_its_record_takes_eight_bytes() {
    let mut matcher = Matcher::new(RULES);
    for number in 0..200_000 {
        matcher.expect(Expected { copy: None, ..row(number, &(number % 100).to_string(), "a") });
        matcher.finds(i64::from(number), number, &(number % 100).to_string(), "a");
    }
    assert!(matcher.bytes() < 200_000 * 8 + (3 << 20), "{}", matcher.bytes());
    assert!(matcher.kept_bytes < 100 * 8, "{}", matcher.kept_bytes);
    assert_eq!(matcher.open_rows(), 0);
}

#[test]
fn everything_that_is_kept_counts_as_memory() {
    let mut matcher = Matcher::new(RULES);
    let grows = |matcher: &mut Matcher, by: usize, keep: &dyn Fn(&mut Matcher)| {
        let before = matcher.bytes();
        keep(matcher);
        assert!(matcher.bytes() >= before + by as u64, "{} to {}, not by {by}", before, matcher.bytes());
    };
    let large = "x".repeat(5000);
    grows(&mut matcher, 5000, &|matcher| matcher.expect(row(1, "k", &large)));
    grows(&mut matcher, 5000, &|matcher| matcher.finds(0, 2, "k", &large));
    assert!(matcher.unknown_bytes() > 5000);
    let position = Position { final_lsn: Lsn::new(9), ordinal: 0 };
    grows(&mut matcher, 5000, &|matcher| matcher.found_dead_letter(position, large.as_bytes()));
    // A record that waited for its row, which has another value, waits on.
    matcher.expect(Expected { copy: None, ..row(2, "k", "b") });
    let before = matcher.bytes();
    matcher.settle(matcher.next_unknown());
    assert_eq!(matcher.unknown_bytes(), 0);
    assert!(matcher.bytes() + 64 >= before, "{before} to {}", matcher.bytes());
}

proptest! {
    /// A relay that repeats tails, drops nothing and swaps nothing; its records come before or behind their rows.
    #[test]
    fn a_healthy_relay_is_right_in_every_interleaving(
        keys in prop::collection::vec(0_u8..3, 1..30),
        restarts in prop::collection::vec((0_usize..30, 0_usize..6), 0..3),
        pace in prop::collection::vec(any::<bool>(), 0..200),
    ) {
        let mut sent: Vec<usize> = Vec::new();
        for at in 0..keys.len() {
            sent.push(at);
            for (after, back) in &restarts {
                if *after == at {
                    sent.extend(at.saturating_sub(*back)..=at);
                }
            }
        }
        let mut matcher = Matcher::new(RULES);
        let (mut rows, mut records) = (0, 0);
        let mut pace = pace.into_iter().chain(std::iter::repeat(true));
        while rows < keys.len() || records < sent.len() {
            let takes_row = pace.next().unwrap_or_default();
            if (takes_row || records == sent.len()) && rows < keys.len() {
                matcher.expect(row(u32::try_from(rows).unwrap(), &keys[rows].to_string(), "a"));
                rows += 1;
            } else {
                let id = sent[records];
                matcher.finds(i64::try_from(records).unwrap(), u32::try_from(id).unwrap(), &keys[id].to_string(), "a");
                records += 1;
            }
        }
        let repeated = (sent.len() - keys.len()) as u64;
        let rows = keys.len() as u64;
        prop_assert_eq!(matcher.ends().counts, Counts { rows, right: rows, repeated, ..Counts::default() });
    }

    /// The same relay with one fault.
    #[test]
    fn a_fault_is_found_in_every_interleaving(
        keys in prop::collection::vec(0_u8..2, 4..20),
        fault in 0_u8..4,
        which in 0_usize..20,
        pace in prop::collection::vec(any::<bool>(), 0..100),
    ) {
        let which = which % keys.len();
        let mut sent: Vec<(usize, &str)> = (0..keys.len()).map(|at| (at, "a")).collect();
        let next = (which + 1..keys.len()).find(|other| keys[*other] == keys[which]);
        prop_assume!(fault < 2 || next.is_some());
        match fault {
            0 => drop(sent.remove(which)),
            1 => sent[which].1 = "b",
            2 => sent.swap(which, next.unwrap()),
            _ => sent.push(sent[which]),
        }
        let mut matcher = Matcher::new(RULES);
        let (mut rows, mut records) = (0, 0);
        let mut pace = pace.into_iter().chain(std::iter::repeat(true));
        while rows < keys.len() || records < sent.len() {
            if (pace.next().unwrap_or_default() || records == sent.len()) && rows < keys.len() {
                matcher.expect(row(u32::try_from(rows).unwrap(), &keys[rows].to_string(), "a"));
                rows += 1;
            } else {
                let (id, value) = sent[records];
                matcher.finds(i64::try_from(records).unwrap(), u32::try_from(id).unwrap(), &keys[id].to_string(), value);
                records += 1;
            }
        }
        let counts = matcher.ends().counts;
        let found = [counts.missing, counts.altered, counts.out_of_order, counts.stale_keys];
        prop_assert!(found[usize::from(fault)] >= 1, "{:?}", counts);
        prop_assert!(fault == 2 || found.iter().sum::<u64>() == 1, "{:?}", counts);
    }
}
