//! What a broker that was killed has forgotten to mark.
//!
//! ```text
//!  Ends ──► Decided ──► partitions where something is still open ──► one record to each, in a transaction that ends as it did
//! ```
//!
//! The end of a transaction is decided by its coordinator, which then has a marker written to each partition. A single broker that is
//! killed in between calls it ended when it is back, and writes none of the markers that are missing; likewise where the time of an
//! open transaction ran out meanwhile, which it calls aborted (seen with Kafka 4.3.1). The next transaction of the same name that ends
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
use super::written::Ends;
use crate::sink::Failure;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::topic_partition_list::TopicPartitionListElem;
use rdkafka::{Offset, TopicPartitionList};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// A partition.
pub(super) type Place = (String, i32);

/// A record that is not taken within this time does without: its partition's marker may be there all the same.
const SENT_WITHIN: Duration = Duration::from_secs(30);

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
    /// These partitions, and what became of what is open there.
    Open(Vec<(Place, Outcome)>),
}

/// What became of what is open in the topics, as far as that is known before it is looked for.
#[derive(Debug, Clone)]
pub(super) struct Known {
    /// A transaction was committed that wrote up to there: what is open before that is its.
    pub(super) committed: Option<Ends>,
    /// And this became of everything else.
    pub(super) otherwise: Outcome,
}

impl Known {
    /// The record at this offset is the first that is open.
    fn outcome(&self, place: &Place, offset: i64) -> Outcome {
        let is_before = self.committed.as_ref().is_some_and(|ends| ends.have(place, offset));
        if is_before { Outcome::Committed } else { self.otherwise }
    }
}

/// Looks for partitions where something is open.
pub(super) struct Look {
    settings: Settings,
    topics: BTreeSet<String>,
    step: Step,
    known: Known,
    /// What was open at first.
    first: Option<(Instant, Undecided)>,
}

/// From which offset on something is open.
type Undecided = BTreeMap<Place, i64>;

enum Step {
    /// Where they end, with what is open.
    Ends(Option<BaseConsumer<Context>>),
    /// And where with what is decided.
    Decided(TopicPartitionList, Option<BaseConsumer<Context>>),
}

impl Look {
    pub(super) fn new(settings: &Settings, topics: BTreeSet<String>, known: Known) -> Self {
        Self { settings: settings.clone(), topics, step: Step::Ends(None), known, first: None }
    }

    /// One step.
    pub(super) fn look(&mut self) -> Result<Found, Failure> {
        if self.first.as_ref().is_some_and(|(at, _)| at.elapsed() < OPEN_FOR) {
            return Ok(Found::Nothing { answered: true });
        }
        let outcome = match &mut self.step {
            Step::Ends(reader) => {
                let reader = ready(reader, &self.settings, "read_uncommitted")?;
                ends(reader, &self.topics)
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
        if found.count() == 0 {
            return Ok(Found::Open(Vec::new()));
        }
        match std::mem::replace(&mut self.step, Step::Ends(None)) {
            Step::Ends(reader) => {
                retire(reader);
                self.step = Step::Decided(found, None);
                Ok(Found::Nothing { answered: true })
            }
            Step::Decided(ends, reader) => {
                retire(reader);
                Ok(self.see(undecided(&ends, &found)))
            }
        }
    }

    /// What is committed is seen, the record of a cover as well: a stranger's transaction that is open for moments gets none.
    fn see(&mut self, mut open: Undecided) -> Found {
        match self.first.take() {
            Some((_, first)) => open.retain(|place, offset| first.get(place) == Some(offset)),
            None if open.iter().any(|(place, at)| self.known.outcome(place, *at) == Outcome::Committed) => {
                self.first = Some((Instant::now(), open));
                return Found::Nothing { answered: true };
            }
            None => {}
        }
        let known = |(place, at)| {
            let outcome = self.known.outcome(&place, at);
            (place, outcome)
        };
        Found::Open(open.into_iter().map(known).collect())
    }
}

impl Drop for Look {
    fn drop(&mut self) {
        match std::mem::replace(&mut self.step, Step::Ends(None)) {
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
fn ends(reader: &BaseConsumer<Context>, topics: &BTreeSet<String>) -> Result<TopicPartitionList, KafkaError> {
    let mut wanted = TopicPartitionList::new();
    let metadata = reader.fetch_metadata(None, LONG_SLICE)?;
    for topic in metadata.topics().iter().filter(|topic| topics.contains(topic.name())) {
        for partition in topic.partitions().iter().filter(|partition| partition.leader() >= 0) {
            wanted.add_partition(topic.name(), partition.id());
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
        (decided < end).then_some((place, decided))
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

    /// One for each outcome.
    pub(super) fn all(open: Vec<(Place, Outcome)>) -> Vec<Self> {
        let (committed, aborted): (Vec<_>, Vec<_>) =
            open.into_iter().partition(|(_, outcome)| *outcome == Outcome::Committed);
        let all = [(committed, Outcome::Committed), (aborted, Outcome::Aborted)];
        let all = all.into_iter().filter(|(its, _)| !its.is_empty());
        all.map(|(its, outcome)| Self::new(its.into_iter().map(|(place, _)| place).collect(), outcome)).collect()
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
        if producer.flush(SLICE).is_err() && began.elapsed() < SENT_WITHIN {
            return Ok(false);
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

    #[test]
    fn what_is_open_before_the_end_of_what_was_committed_was_committed() {
        let place = ("orders".to_owned(), 1);
        let committed = Ends::read(br#"{"orders":{"1":7}}"#);
        let known = Known { committed, otherwise: Outcome::Aborted };
        assert_eq!([6, 7, 8].map(|at| known.outcome(&place, at) == Outcome::Committed), [true, true, false]);
        assert_eq!(known.outcome(&("orders".to_owned(), 0), 0), Outcome::Aborted);
        let known = Known { committed: None, otherwise: Outcome::Committed };
        assert_eq!(known.outcome(&place, 8), Outcome::Committed);
    }

    #[test]
    fn a_partition_that_ends_behind_what_is_decided_is_undecided() {
        let ends =
            list(&[(0, Offset::Offset(7)), (1, Offset::Offset(7)), (2, Offset::Offset(0)), (3, Offset::Invalid)]);
        let decided =
            list(&[(0, Offset::Offset(7)), (1, Offset::Offset(6)), (2, Offset::Offset(0)), (3, Offset::Offset(1))]);
        assert_eq!(undecided(&ends, &decided), [(("orders".to_owned(), 1), 6)].into());
    }
}
