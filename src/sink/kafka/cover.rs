//! What a broker that was killed has forgotten to mark.
//!
//! ```text
//!  Ends ──► Decided ──► partitions where something is still open ──► one record to each, in a transaction that ends as it did
//! ```
//!
//! The end of a transaction is decided by its coordinator, which then has a marker written to each partition. A partition that has no
//! leader at that moment gets none, ever: Kafka 4.3.1 takes it for deleted (`KRaftMetadataCache.getPartitionLeaderEndpoint`). So it is
//! where all replicas of a partition are down: a single broker was killed, or one of several, and the partition has no other replica.
//! The next transaction of the same name that ends
//! in such a partition has its marker cover the old records as well: committed, it shows aborted ones beside their repeats; aborted, it
//! hides committed ones. Until then consumers of what is committed wait. So a transaction that ends as the old one did comes first.
//!
//! Invariant: what is open in a partition ends by one marker, so there never is a committed and an aborted transaction of ours in it: a
//! coordinator begins none before the one before is marked, or forgotten, and then nothing is written before this has looked.
//!
//! In: topics, of a moment when no transaction of ours is open, and what is known of what was. Out: done. A step at a time, each no
//! longer than a second or so. Where nothing is open, nothing is written; where a stranger's transaction is, one record may be, which a
//! consumer of what is committed never sees unless the old one was committed.
//! Specification: KIP-98, "Transaction Markers"; Kafka protocol, "ListOffsets".

use super::context::Context;
use super::progress::{LONG_SLICE, OPEN_FOR, SLICE, is_young, passes};
use super::retire::retire;
use super::settings::Settings;
use super::transactions::{PROGRESS, broken, client, is_passing};
use super::written::{Ends, Stands};
use crate::sink::Failure;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::topic_partition_list::TopicPartitionListElem;
use rdkafka::{Offset, TopicPartitionList};
use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::time::{Duration, Instant};

/// A partition.
pub(super) type Place = (String, i32);

/// Where a record is not taken within this time, taking over begins again.
const SENT_WITHIN: Duration = Duration::from_secs(30);

/// A stranger's transaction that is open before ours may be keeps it from being seen whether ours is. Those whose program works end within
/// this time as a rule.
const STRANGER_FOR: Duration = Duration::from_mins(1);

/// What became of a transaction whose partitions are not marked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Postgres has heard of it.
    Committed,
    Aborted,
}

impl Outcome {
    /// The header of the records that are written to end so.
    fn header(self) -> &'static str {
        match self {
            Self::Committed => "walrelay-committed",
            Self::Aborted => "walrelay-aborted",
        }
    }
}

/// How looking goes.
pub(super) enum Found {
    /// Nothing yet; whether somebody has answered.
    Nothing { answered: bool },
    /// Where something is open.
    Open(Open),
}

/// What was found.
#[derive(Debug, Default)]
pub(super) struct Open {
    /// Where something is open, and what became of it.
    pub(super) places: Vec<(Place, Outcome)>,
    /// These have no leader, so nobody can say.
    pub(super) leaderless: BTreeSet<Place>,
}

/// What became of what is open in the topics, as far as that is known before it is looked for.
#[derive(Debug, Clone)]
pub(super) struct Known {
    /// A transaction was committed that wrote there.
    pub(super) committed: Option<Ends>,
    /// What is open there was to be ended so since then.
    pub(super) aborted: BTreeSet<Place>,
    /// And this became of everything else.
    pub(super) otherwise: Outcome,
    /// The cluster has one broker, for all that is known.
    pub(super) is_alone: bool,
}

impl Known {
    /// The record at this offset is the first that is open, in a partition that ends at `end`: what became of ours, and how long nothing
    /// may change until that counts.
    fn judge(&self, place: &Place, offset: i64, end: i64) -> (Outcome, Duration) {
        let ends = self.committed.as_ref().filter(|_| !self.aborted.contains(place));
        match ends.map_or(Stands::Elsewhere, |ends| ends.stands(place, offset, end)) {
            Stands::First => (Outcome::Committed, Duration::ZERO),
            Stands::Before if self.is_alone => (Outcome::Committed, STRANGER_FOR),
            // Of several brokers another one writes the markers, as a rule.
            Stands::Before | Stands::Elsewhere => match self.otherwise {
                Outcome::Committed if !self.aborted.contains(place) => (Outcome::Committed, OPEN_FOR),
                Outcome::Committed | Outcome::Aborted => (Outcome::Aborted, Duration::ZERO),
            },
        }
    }
}

/// Looks for partitions where something is open.
pub(super) struct Look {
    settings: Settings,
    topics: BTreeSet<String>,
    step: Step,
    known: Known,
    /// When it looked last, and what was open.
    seen: Option<(Instant, BTreeMap<Place, Seen>)>,
    /// These have no leader.
    leaderless: BTreeSet<Place>,
}

/// Something is open in a partition.
#[derive(Debug, Clone, Copy)]
struct Seen {
    /// Its first record.
    offset: i64,
    /// Since when that was seen.
    since: Instant,
    /// Where the partition ended when it was first looked at: what is ours is before that.
    end: i64,
}

enum Step {
    /// Where they end, with what is open.
    Ends(Option<BaseConsumer<Context>>),
    /// And where with what is decided.
    Decided(TopicPartitionList, Option<BaseConsumer<Context>>),
}

impl Look {
    pub(super) fn new(settings: &Settings, topics: BTreeSet<String>, known: Known) -> Self {
        let (settings, step, leaderless) = (settings.clone(), Step::Ends(None), BTreeSet::new());
        Self { settings, topics, step, known, seen: None, leaderless }
    }

    /// One step.
    pub(super) fn look(&mut self) -> Result<Found, Failure> {
        if self.seen.as_ref().is_some_and(|(at, _)| at.elapsed() < OPEN_FOR) {
            return Ok(Found::Nothing { answered: true });
        }
        let outcome = match &mut self.step {
            Step::Ends(reader) => {
                let reader = ready(reader, &self.settings, "read_uncommitted")?;
                ends(reader, &self.topics, &mut self.leaderless)
            }
            Step::Decided(ends, reader) => {
                let reader = ready(reader, &self.settings, "read_committed")?;
                positions(reader, ends.clone())
            }
        };
        let found = match outcome {
            Ok(found) => found,
            Err(error) if error.rdkafka_error_code().is_some_and(|code| passes(code) || is_young(code)) => {
                return Ok(Found::Nothing { answered: false });
            }
            Err(error) => return Err(broken("see what is open in its topics", &error)),
        };
        match mem::replace(&mut self.step, Step::Ends(None)) {
            Step::Ends(reader) => {
                retire(reader);
                if found.count() == 0 {
                    return Ok(self.see(&Undecided::new(), Instant::now()));
                }
                self.step = Step::Decided(found, None);
                Ok(Found::Nothing { answered: true })
            }
            Step::Decided(ends, reader) => {
                retire(reader);
                Ok(self.see(&undecided(&ends, &found), Instant::now()))
            }
        }
    }

    /// The record of a cover that is committed is seen: a stranger's transaction that is open for moments gets none. And such a one must
    /// not be taken for ours, or keep ours from being seen.
    fn see(&mut self, open: &Undecided, now: Instant) -> Found {
        let before = self.seen.take().map(|(_, before)| before);
        let seen = |(place, (offset, end)): (&Place, &(i64, i64))| {
            let (mut since, mut end) = (now, *end);
            if let Some(before) = &before {
                // What comes later is not ours.
                let first = before.get(place).filter(|first| *offset < first.end)?;
                end = first.end;
                since = if first.offset == *offset { first.since } else { now };
            }
            Some((place.clone(), Seen { offset: *offset, since, end }))
        };
        let open: BTreeMap<Place, Seen> = open.iter().filter_map(seen).collect();
        let judge = |(place, seen): (&Place, &Seen)| self.known.judge(place, seen.offset, seen.end);
        let waits = |(place, seen): (&Place, &Seen)| now.saturating_duration_since(seen.since) < judge((place, seen)).1;
        if open.iter().any(waits) {
            self.seen = Some((now, open));
            return Found::Nothing { answered: true };
        }
        let places = open.iter().map(|(place, seen)| (place.clone(), judge((place, seen)).0)).collect();
        Found::Open(Open { places, leaderless: mem::take(&mut self.leaderless) })
    }

    /// The partition of which a stranger's transaction, as it seems, is waited for.
    pub(super) fn waits_for(&self) -> Option<&Place> {
        let (_, seen) = self.seen.as_ref()?;
        let waits = |(place, seen): &(&Place, &Seen)| self.known.judge(place, seen.offset, seen.end).1 == STRANGER_FOR;
        seen.iter().find(waits).map(|(place, _)| place)
    }
}

/// From which offset on something is open in a partition, and where that ends.
type Undecided = BTreeMap<Place, (i64, i64)>;

impl Drop for Look {
    fn drop(&mut self) {
        match mem::replace(&mut self.step, Step::Ends(None)) {
            Step::Ends(Some(reader)) | Step::Decided(_, Some(reader)) => retire(reader),
            Step::Ends(None) | Step::Decided(_, None) => {}
        }
    }
}

fn ready<'a>(
    reader: &'a mut Option<BaseConsumer<Context>>,
    settings: &Settings,
    isolation: &str,
) -> Result<&'a BaseConsumer<Context>, Failure> {
    if reader.is_none() {
        *reader = Some(settings.reader(isolation).map_err(|error| client(error.to_string()))?);
    }
    reader.as_ref().ok_or_else(|| client("a reader is not there".to_owned()))
}

/// Where the partitions of `topics` end, those that have a leader.
fn ends(
    reader: &BaseConsumer<Context>,
    topics: &BTreeSet<String>,
    leaderless: &mut BTreeSet<Place>,
) -> Result<TopicPartitionList, KafkaError> {
    let mut wanted = TopicPartitionList::new();
    let metadata = reader.fetch_metadata(None, LONG_SLICE)?;
    leaderless.clear();
    for topic in metadata.topics().iter().filter(|topic| topics.contains(topic.name())) {
        for partition in topic.partitions() {
            if partition.leader() >= 0 {
                wanted.add_partition(topic.name(), partition.id());
            } else {
                leaderless.insert((topic.name().to_owned(), partition.id()));
            }
        }
    }
    positions(reader, wanted)
}

/// The ends of these partitions, as a reader of this isolation sees them.
fn positions(
    reader: &BaseConsumer<Context>,
    mut partitions: TopicPartitionList,
) -> Result<TopicPartitionList, KafkaError> {
    if partitions.count() == 0 {
        return Ok(partitions);
    }
    partitions.set_all_offsets(Offset::End)?;
    // A time of -1 is the end: so the offset of that name is read.
    reader.offsets_for_times(partitions, LONG_SLICE)
}

/// The partitions that end behind what is decided in them.
fn undecided(ends: &TopicPartitionList, decided: &TopicPartitionList) -> Undecided {
    let offset = |list: &TopicPartitionList, (topic, partition): &Place| match list
        .find_partition(topic, *partition)?
        .offset()
    {
        Offset::Offset(offset) => Some(offset),
        Offset::Beginning | Offset::End | Offset::Stored | Offset::Invalid | Offset::OffsetTail(_) => None,
    };
    let open = |found: &TopicPartitionListElem<'_>| {
        let place = (found.topic().to_owned(), found.partition());
        let (end, decided) = (offset(ends, &place)?, offset(decided, &place)?);
        (decided < end).then_some((place, (decided, end)))
    };
    ends.elements().iter().filter_map(open).collect()
}

/// A transaction of one record for each of these partitions.
pub(super) struct Cover {
    partitions: Vec<Place>,
    /// When it was begun.
    began: Option<Instant>,
    /// Of the partitions, so many have got theirs.
    sent: usize,
    /// Its own, and so that of what it covers.
    outcome: Outcome,
}

impl Cover {
    /// What is open there ends like this. A record that is committed is then seen: a null value under our name.
    pub(super) fn new(partitions: Vec<Place>, outcome: Outcome) -> Self {
        Self { partitions, began: None, sent: 0, outcome }
    }

    /// One for what was aborted, and for what was committed one for each topic: a topic that takes no record would have it aborted.
    pub(super) fn all(open: Vec<(Place, Outcome)>) -> Vec<Self> {
        let mut all: BTreeMap<Option<String>, Vec<Place>> = BTreeMap::new();
        for (place, outcome) in open {
            let topic = (outcome == Outcome::Committed).then(|| place.0.clone());
            all.entry(topic).or_default().push(place);
        }
        let outcome = |topic: Option<String>| if topic.is_some() { Outcome::Committed } else { Outcome::Aborted };
        all.into_iter().map(|(topic, its)| Self::new(its, outcome(topic))).collect()
    }

    /// One step; whether it is done. `name`: of our transactions.
    pub(super) fn cover(&mut self, producer: &BaseProducer<Context>, name: &str) -> Result<bool, Failure> {
        let began = if let Some(began) = self.began {
            began
        } else {
            producer.begin_transaction().map_err(|error| broken("begin a transaction", &error))?;
            let partitions = self.partitions.len();
            tracing::info!(
                partitions,
                outcome = ?self.outcome,
                "ending an open transaction in these partitions, maybe one that a broker forgot"
            );
            *self.began.insert(Instant::now())
        };
        self.send(producer, name)?;
        if producer.flush(SLICE).is_err() {
            // Without its record a partition gets no marker. What was committed is never given up: it would be aborted with this.
            return match self.outcome {
                Outcome::Aborted if began.elapsed() >= SENT_WITHIN => Err(self.not_taken()),
                Outcome::Committed | Outcome::Aborted => Ok(false),
            };
        }
        let ended = match self.outcome {
            Outcome::Committed => producer.commit_transaction(SLICE),
            Outcome::Aborted => producer.abort_transaction(SLICE),
        };
        match ended {
            Ok(()) => Ok(true),
            Err(error) if is_passing(&error) => Ok(false),
            Err(error) => Err(broken("end a transaction", &error)),
        }
    }

    fn not_taken(&self) -> Failure {
        let (topic, partition) = self.partitions.first().map_or(("", 0), |(topic, partition)| (topic, *partition));
        let count = self.partitions.len();
        client(format!(
            "no record is taken that ends what is open in {count} partitions, one is {partition} of topic {topic}"
        ))
    }

    /// Reports of these records come as those of progress do: the end of the transaction says all.
    fn send(&mut self, producer: &BaseProducer<Context>, name: &str) -> Result<(), Failure> {
        while let Some((topic, partition)) = self.partitions.get(self.sent) {
            #[allow(clippy::cast_possible_truncation, reason = "pointers are 64 bits wide, see above")]
            let record = BaseRecord::<str, str, usize>::with_opaque_to(topic, PROGRESS.pack() as usize);
            let headers = OwnedHeaders::new().insert(Header { key: self.outcome.header(), value: Some("true") });
            if let Err((error, _)) = producer.send(record.key(name).partition(*partition).headers(headers)) {
                return Err(broken("end what is open in its topics", &error));
            }
            self.sent += 1;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(offsets: &[(i32, Offset)]) -> TopicPartitionList {
        let mut list = TopicPartitionList::new();
        for (partition, offset) in offsets {
            list.add_partition_offset("orders", *partition, *offset).unwrap();
        }
        list
    }

    fn place(partition: i32) -> Place {
        ("orders".to_owned(), partition)
    }

    fn known(committed: Option<&str>, otherwise: Outcome) -> Known {
        let committed = committed.and_then(|header| Ends::read(header.as_bytes()));
        Known { committed, aborted: BTreeSet::new(), otherwise, is_alone: true }
    }

    fn look(known: Known) -> Look {
        let settings = Settings::new("127.0.0.1:1", "walrelay", &[], 1 << 20).unwrap();
        Look::new(&settings, BTreeSet::new(), known)
    }

    fn undecided_at(places: &[(i32, i64, i64)]) -> Undecided {
        places.iter().map(|(partition, offset, end)| (place(*partition), (*offset, *end))).collect()
    }

    #[track_caller]
    fn expect(found: &Found, expected: Option<&[(i32, Outcome)]>) {
        let places = match found {
            Found::Nothing { .. } => None,
            Found::Open(open) => Some(open.places.clone()),
        };
        let expected =
            expected.map(|all| all.iter().map(|(partition, outcome)| (place(*partition), *outcome)).collect());
        assert_eq!(places, expected);
    }

    #[test]
    fn what_is_open_from_the_first_record_of_what_was_committed_was_committed() {
        let known = known(Some(r#"{"orders":{"1":[7,9]}}"#), Outcome::Aborted);
        let outcome = |partition, offset, end| known.judge(&place(partition), offset, end).0;
        assert_eq!(outcome(1, 7, 10), Outcome::Committed);
        assert_eq!(outcome(1, 8, 12), Outcome::Aborted, "what was committed is marked");
        assert_eq!(outcome(0, 7, 10), Outcome::Aborted);
        assert_eq!(outcome(1, 7, 9), Outcome::Aborted, "it was recreated");
        let several = Known { is_alone: false, ..known.clone() };
        assert_eq!(several.judge(&place(1), 7, 10), (Outcome::Committed, Duration::ZERO));
        assert_eq!(several.judge(&place(1), 6, 10), (Outcome::Aborted, Duration::ZERO));
        let aborted = [place(1)].into();
        assert_eq!(Known { aborted, ..known }.judge(&place(1), 7, 10).0, Outcome::Aborted);
    }

    #[test]
    fn what_was_to_be_aborted_since_the_last_commit_is_aborted_again() {
        let known = Known { aborted: [place(1)].into(), ..known(None, Outcome::Committed) };
        assert_eq!(
            [0, 1].map(|partition| known.judge(&place(partition), 5, 9).0),
            [Outcome::Committed, Outcome::Aborted]
        );
    }

    #[test]
    fn ours_is_found_although_a_strangers_transaction_before_it_has_ended_meanwhile() {
        let (mut look, start) = (look(known(None, Outcome::Committed)), Instant::now());
        expect(&look.see(&undecided_at(&[(0, 100, 160), (1, 5, 9)]), start), None);
        expect(&look.see(&undecided_at(&[(0, 150, 170), (1, 5, 9), (2, 0, 1)]), start + OPEN_FOR), None);
        let both = [(0, Outcome::Committed), (1, Outcome::Committed)];
        expect(&look.see(&undecided_at(&[(0, 150, 180), (1, 5, 9)]), start + OPEN_FOR * 2), Some(&both));
    }

    #[test]
    fn strangers_transactions_that_come_and_go_are_none_of_ours() {
        let (mut look, start) = (look(known(None, Outcome::Committed)), Instant::now());
        expect(&look.see(&undecided_at(&[(0, 100, 160)]), start), None);
        expect(&look.see(&undecided_at(&[(0, 159, 170)]), start + OPEN_FOR), None);
        expect(&look.see(&undecided_at(&[(0, 160, 180)]), start + OPEN_FOR * 2), Some(&[]));
        let mut look = self::look(known(None, Outcome::Aborted));
        expect(&look.see(&undecided_at(&[(0, 100, 160)]), start), Some(&[(0, Outcome::Aborted)]));
    }

    #[test]
    fn a_strangers_transaction_that_hides_whether_ours_is_open_is_waited_for_but_not_for_ever() {
        let known = known(Some(r#"{"orders":{"0":[110,120]}}"#), Outcome::Aborted);
        let (mut ended, mut stays, start) = (look(known.clone()), look(known), Instant::now());
        for look in [&mut ended, &mut stays] {
            expect(&look.see(&undecided_at(&[(0, 100, 160)]), start), None);
            assert_eq!(look.waits_for(), Some(&place(0)));
        }
        expect(&ended.see(&undecided_at(&[(0, 150, 160)]), start + OPEN_FOR), Some(&[(0, Outcome::Aborted)]));
        expect(&stays.see(&undecided_at(&[(0, 100, 160)]), start + STRANGER_FOR / 2), None);
        expect(&stays.see(&undecided_at(&[(0, 100, 160)]), start + STRANGER_FOR), Some(&[(0, Outcome::Committed)]));
    }

    #[test]
    fn what_was_committed_ends_in_a_transaction_of_its_own_for_each_topic() {
        let open = [("a", 0, Outcome::Committed), ("b", 0, Outcome::Aborted), ("b", 1, Outcome::Committed)];
        let open = open.map(|(topic, partition, outcome)| ((topic.to_owned(), partition), outcome)).into();
        let all: Vec<_> = Cover::all(open).into_iter().map(|cover| (cover.partitions, cover.outcome)).collect();
        let expected = [("b", 0, Outcome::Aborted), ("a", 0, Outcome::Committed), ("b", 1, Outcome::Committed)];
        let expected = expected.map(|(topic, partition, outcome)| (vec![(topic.to_owned(), partition)], outcome));
        assert_eq!(all, expected);
    }

    #[test]
    fn a_partition_that_ends_behind_what_is_decided_is_undecided() {
        let ends =
            list(&[(0, Offset::Offset(7)), (1, Offset::Offset(7)), (2, Offset::Offset(0)), (3, Offset::Invalid)]);
        let decided =
            list(&[(0, Offset::Offset(7)), (1, Offset::Offset(6)), (2, Offset::Offset(0)), (3, Offset::Offset(1))]);
        assert_eq!(undecided(&ends, &decided), undecided_at(&[(1, 6, 7)]));
    }
}
