//! Where records go, as settings name it: a [`Kind`] for each system, and a [`Destination`] for one address with its properties.
//!
//! ```text
//!  --to URL, -X key=value ─► Kind::read ─► Destination ─┬─► open ─► Sink          (run)
//!                            (contacts nobody)          ├─► check ─► findings      (check)
//!                                                       └─► scratch ─► Scratch     (bench)
//! ```
//!
//! A kind is one folder below `sink/` and one line in [`kinds`](super::kinds). What it cannot do is refused with the settings,
//! before anything is contacted.

use super::{Failure, FailureClass, OwnedRecord, Sink};
use crate::check_finding::{Finding, Side};
use crate::given::{Given, SettingError};
use crate::route::Rule;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// A system that takes records.
pub struct Kind {
    /// In lower case: its table in the file, `WALRELAY_<NAME>_…`, the label of metrics, its side in `check --json`.
    pub name: &'static str,
    /// For people.
    pub title: &'static str,
    /// What stands before `://` in `--to`; the first is the usual one.
    pub schemes: &'static [&'static str],
    /// An address as an example, for messages: `kafka://HOST:PORT`.
    pub example: &'static str,
    /// What `--topic` may come to there.
    pub topics: &'static Rule,
    /// What it can do.
    pub can: Can,
    /// Its properties, as `-X` names them. In variables and in the file `.`, `-` and `_` in them are one.
    pub properties: &'static [&'static str],
    /// Other properties are its client's, which judges them itself.
    pub passes_others: bool,
    /// What a record in flight costs beyond key and value, in bytes, at least: `--max-in-flight` counts it.
    pub record_overhead_bytes: u64,
    /// Understands settings. Contacts nobody.
    pub read: fn(&mut Asked<'_>) -> Result<Arc<dyn Destination>, SettingError>,
    /// Labels of what a record may be refused for, for metrics that are 0 until then.
    pub refusals: fn() -> Vec<&'static str>,
    /// Labels of what a delivery report may say.
    pub reasons: fn() -> Vec<&'static str>,
    /// What fixes a failure for which an operator must act; `None`: its text says it all.
    pub hint: fn(&Failure) -> Option<String>,
}

impl fmt::Debug for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl PartialEq for Kind {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Kind {
    /// What a check finds where nobody answers, or not us. `who` answers there; `elsewhere`: what to try.
    pub fn unreachable(&self, failure: &Failure, who: &str, elsewhere: &str) -> Finding {
        let found = Side::Destination(self.name).fail("connection", failure.text.clone());
        match (failure.class, (self.hint)(failure)) {
            (FailureClass::LogIn, Some(hint)) => found.why(format!("the {who} refuses the authentication")).fix(hint),
            (_, _) => found.why("nothing else could be checked here").fix(elsewhere),
        }
    }
}

/// What a kind can do; else a setting that asks for it is refused.
#[allow(clippy::struct_excessive_bools, reason = "each stands for one setting")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Can {
    /// `--delivery exactly-once`.
    pub exactly_once: bool,
    /// `--partition-column`.
    pub partitions: bool,
    /// A record without a value: `--tombstone-on-empty-payload`.
    pub null_values: bool,
    /// Records as Debezium writes them: `--from-debezium`.
    pub debezium: bool,
    /// `walrelay dead-letters` reads its dead-letter records, and publishes them again.
    pub dead_letters: bool,
}

/// What the settings say of a destination.
pub struct Asked<'a> {
    /// One of the kind's schemes.
    pub scheme: &'a str,
    /// What stands behind `scheme://`, whole; where `--brokers` was given instead, each of them. May hold a password.
    pub addresses: Vec<Given>,
    /// In the order in which they count: of equal names, the last. Their names are the kind's, unless it passes others on.
    pub properties: Vec<(String, Given)>,
    /// Bytes in flight at most.
    pub max_in_flight: usize,
    /// To be logged once logging works.
    pub warnings: &'a mut Vec<String>,
}

impl Asked<'_> {
    /// The address, of kinds that have one. `names`: what it would name, `example`: how.
    ///
    /// # Errors
    /// There is none.
    pub fn address(&self, names: &str, example: &str) -> Result<&Given, SettingError> {
        self.addresses.first().ok_or_else(|| {
            SettingError::usage(format!("--to {}:// names no {names}", self.scheme), format!("--to {example}"))
        })
    }

    /// The property that counts.
    pub fn property(&self, name: &str) -> Option<&Given> {
        self.properties.iter().rev().find(|(known, _)| known == name).map(|(_, given)| given)
    }
}

/// How often a record may appear.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Delivery {
    /// Repeated after a crash.
    #[default]
    AtLeastOnce,
    /// In the destination's transactions: consumers that read what is committed see each once.
    ExactlyOnce {
        /// Topics may have one replica, and the crash of its broker may hide rows, or repeat them.
        one_replica: bool,
    },
}

/// One address with its properties. `Debug` shows no secret.
pub trait Destination: fmt::Debug + Send + Sync {
    /// Its kind.
    fn kind(&self) -> &'static Kind;

    /// For people, without a secret.
    fn address(&self) -> String;

    /// A client, which begins to connect. `client`: its name there, `walrelay/<slot>`.
    ///
    /// # Errors
    /// The client refuses the settings.
    fn open(&self, client: &str, how: Delivery) -> Result<Box<dyn Sink + Send>, SettingError>;

    /// Looks at everything that a run needs of it. Changes nothing; waits some seconds at most where nobody answers.
    fn check(&self, wanted: &Wanted<'_>) -> Vec<Finding>;

    /// Makes a topic, or what it is called there, for a measurement.
    ///
    /// # Errors
    /// It is there already, or cannot be had.
    fn scratch(&self, client: &str, topic: &str, partitions: i32) -> Result<Box<dyn Scratch>, ScratchError>;

    /// A header that it reads from each record for itself, and the column that holds it.
    fn header_column(&self) -> Option<(&'static str, &str)> {
        None
    }

    /// How CloudEvents' attributes stand in a record's headers; `None`: nothing says so for this kind.
    fn event_binding(&self) -> Option<EventBinding> {
        None
    }

    /// What is at a dead-letter address now, from its first record on. May wait some seconds for an answer.
    ///
    /// # Errors
    /// There is no such address, it cannot be read, or nothing can be read from this kind.
    fn dead_letters(&self, _client: &str, _topic: &str) -> Result<Box<dyn DeadLetters>, NoDeadLetters> {
        Err(NoDeadLetters::Unsupported { kind: self.kind() })
    }
}

/// How CloudEvents' attributes stand in headers, by the protocol's binding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventBinding {
    /// What stands before an attribute's name.
    pub prefix: &'static str,
    /// Values are percent-encoded, as in HTTP's headers.
    pub percent_encoded: bool,
}

/// The records at one address, in their order, up to where it ended when they were first asked for.
///
/// A record stays where it is until it is settled: [`DeadLetters::settle`] makes the destination itself remember that it was
/// published again, so that whoever reads the address later is told.
pub trait DeadLetters {
    /// The next one. Waits for about 100 ms.
    ///
    /// # Errors
    /// The destination refuses, or has been silent for a minute.
    fn next(&mut self) -> Result<NextKept, Failure>;

    /// How many records there may be in all; 0 until that is known.
    fn count(&self) -> u64;

    /// Remembers that these were published again. What comes back has to be published, too, as it is: only then are they remembered.
    ///
    /// # Errors
    /// The destination does not answer, or refuses.
    fn settle(&mut self, places: &[Place]) -> Result<Vec<OwnedRecord>, Failure>;
}

/// What comes next of an address.
#[derive(Debug)]
pub enum NextKept {
    /// A record.
    Kept(Kept),
    /// Nothing yet: ask again.
    Waiting,
    /// There is no more.
    End,
}

/// A record as it is kept.
#[derive(Debug)]
pub struct Kept {
    /// For [`DeadLetters::settle`].
    pub place: Place,
    /// It was published again before.
    pub settled: bool,
    /// The record, under its address.
    pub record: OwnedRecord,
}

/// Where a record stands at its address. Its text is how the destination's own tools write it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// Kafka: the partition. Redis: the entry's milliseconds. NATS: 0.
    pub major: u64,
    /// What stands between the two numbers; `None`: the second is all.
    pub between: Option<char>,
    /// Kafka: the offset. Redis: the entry's number in its millisecond. NATS: the message's place in its stream.
    pub minor: u64,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.between {
            Some(between) => write!(f, "{}{between}{}", self.major, self.minor),
            None => write!(f, "{}", self.minor),
        }
    }
}

/// Why an address cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum NoDeadLetters {
    /// Nothing can be read from this kind of destination.
    #[error("dead-letter records of {} cannot be read", kind.title)]
    Unsupported {
        /// The kind.
        kind: &'static Kind,
    },
    /// There is no such address.
    #[error("dead-letter topic {topic} does not exist")]
    Missing {
        /// Its name.
        topic: String,
    },
    /// The client refuses the settings.
    #[error(transparent)]
    Settings(#[from] SettingError),
    /// The destination does not answer, or refuses.
    #[error(transparent)]
    Failed(#[from] Failure),
}

/// What a run wants of its destination.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    /// The client's name, as in [`Destination::open`].
    pub client: &'a str,
    /// Where the latest rows would go.
    pub topics: &'a BTreeSet<String>,
    /// What all topics begin with; empty where that is not known.
    pub topics_begin: &'a str,
    /// Where bad rows go, if they go anywhere.
    pub dead_letters: Option<&'a str>,
    /// Bytes of key and value of the largest record.
    pub largest_bytes: usize,
    /// Records without a key are among them.
    pub without_key: bool,
    /// Exactly once is asked for; then, under which name, where that is known.
    pub exactly_once: Option<Option<&'a str>>,
    /// Then, topics may have one replica.
    pub one_replica: bool,
    /// The slot was read before, by whomever.
    pub was_read: bool,
}

impl<'a> Wanted<'a> {
    /// Where rows would go, bad ones included.
    pub fn addresses(&self) -> impl Iterator<Item = &'a str> {
        self.topics.iter().map(String::as_str).chain(self.dead_letters)
    }
}

#[cfg(test)]
impl Wanted<'static> {
    pub(crate) fn nothing() -> Self {
        static NO_TOPICS: BTreeSet<String> = BTreeSet::new();
        Self {
            client: "walrelay",
            topics: &NO_TOPICS,
            topics_begin: "",
            dead_letters: None,
            largest_bytes: 0,
            without_key: false,
            exactly_once: None,
            one_replica: false,
            was_read: false,
        }
    }
}

/// What was made for a measurement, and goes with it.
pub trait Scratch: Send {
    /// What the shortest of some small requests took from its sending to its answer; `None`: this kind does not measure it, or nobody
    /// answered.
    fn round_trip(&self) -> Option<Duration> {
        None
    }

    /// Removes it.
    ///
    /// # Errors
    /// It is still there.
    fn remove(self: Box<Self>) -> Result<(), ScratchError>;
}

/// It cannot be made or removed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what} {topic}: {reason}")]
pub struct ScratchError {
    /// `make topic`, `remove topic`.
    pub what: &'static str,
    /// Its name.
    pub topic: String,
    /// In the destination's words, or its client's.
    pub reason: String,
}
