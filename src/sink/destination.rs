//! A [`Kind`] for each system that takes records, and a [`Destination`] for one address with its properties.
//!
//! ```text
//!  --to URL, -X key=value ─► Kind::read ─► Destination ─┬─► open ─► Sink          (run)
//!                            (contacts nobody)          ├─► check ─► findings      (check)
//!                                                       └─► scratch ─► Scratch     (bench)
//! ```
//!
//! A kind is one folder below `sink/` and one line in [`kinds`](super::kinds). walrelay refuses settings that ask for something that a
//! kind cannot do, before it contacts anybody.

use super::reading::RecordReader;
use super::{Failure, FailureClass, OwnedRecord, Sink};
use crate::check_finding::{Finding, Side};
use crate::route::AddressRule;
use crate::setting_text::{Given, SettingError};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The label of connections that are lost or cannot be opened, for metrics.
pub const CONNECTION: &str = "connection";

/// A system that takes records.
pub struct Kind {
    /// The name in lower case, for its table in the file, `WALRELAY_<NAME>_…`, the label of metrics, its side in `check --json`.
    pub name: &'static str,
    /// The name for people.
    pub title: &'static str,
    /// The schemes of its addresses in `--to`. The first is the usual one.
    pub schemes: &'static [&'static str],
    /// An address as an example, for messages: `kafka://HOST:PORT`.
    pub example: &'static str,
    /// The rule for names of topics, or of their counterparts.
    pub topics: &'static AddressRule,
    /// The settings that it supports.
    pub can: Can,
    /// Its properties, as `-X` names them. In variables and in the file, `.`, `-` and `_` in these names are the same.
    pub properties: &'static [&'static str],
    /// Whether walrelay passes other properties on to its client, which checks them.
    pub passes_others: bool,
    /// The least memory of a record in flight beyond key and value, in bytes. `--max-in-flight` counts it.
    pub record_overhead_bytes: u64,
    /// Parses the settings. Contacts nobody.
    pub read: fn(&mut GivenSettings<'_>) -> Result<Arc<dyn Destination>, SettingError>,
    /// The labels for which it may refuse a record. Metrics show them as 0 from the start.
    pub refusals: fn() -> Vec<&'static str>,
    /// The labels that a delivery report may have.
    pub reasons: fn() -> Vec<&'static str>,
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
    /// The failure of a connection to `address` that cannot be opened, or is lost.
    pub fn broken(&self, address: &str, reason: &str) -> Failure {
        let text = format!("{} at {address} cannot be reached: {reason}", self.title);
        Failure::new(FailureClass::Environment, CONNECTION, text)
    }

    /// The finding of a check if the destination does not answer, or refuses the credentials. `who`: the server's name for people;
    /// `elsewhere`: the fix.
    pub fn unreachable(&self, failure: &Failure, who: &str, elsewhere: &str) -> Finding {
        let found = Side::Destination(self.name).fail("connection", failure.text.clone());
        match &failure.remedy {
            Some(remedy) if failure.class == FailureClass::LogIn => {
                found.why(format!("the {who} refuses the authentication")).bounded(remedy.clone())
            }
            Some(_) | None => found.why("nothing else could be checked here").words(elsewhere),
        }
    }
}

/// The settings that a kind supports. walrelay refuses the others.
#[allow(clippy::struct_excessive_bools, reason = "each stands for one setting")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Can {
    /// `--delivery exactly-once`.
    pub exactly_once: bool,
    /// `--partition-column`.
    pub partitions: bool,
    /// Records without a value: `--tombstone-on-empty-payload`.
    pub null_values: bool,
    /// Records as Debezium writes them: `--from-debezium`.
    pub debezium: bool,
    /// `walrelay dead-letters`, which reads dead-letter records and publishes them again.
    pub dead_letters: bool,
}

/// The settings of a destination, as text.
pub struct GivenSettings<'a> {
    /// The scheme of `--to`, which the kind has.
    pub scheme: &'a str,
    /// The text behind `scheme://`, or each value of `--brokers`. May hold a password.
    pub addresses: Vec<Given>,
    /// The properties. If a name is there twice, the last counts. The kind knows all names, unless it passes others on.
    pub properties: Vec<(String, Given)>,
    /// The most bytes in flight.
    pub max_in_flight: usize,
    /// Warnings, which are logged once logging works.
    pub warnings: &'a mut Vec<String>,
}

impl GivenSettings<'_> {
    /// The address, for kinds that need one. `names`: the thing that an address names; `example`: a valid address.
    ///
    /// # Errors
    /// The settings have no address.
    pub fn address(&self, names: &str, example: &str) -> Result<&Given, SettingError> {
        self.addresses.first().ok_or_else(|| {
            SettingError::usage(format!("--to {}:// names no {names}", self.scheme), format!("--to {example}"))
        })
    }

    /// The property with this name. If there are several, the last.
    pub fn property(&self, name: &str) -> Option<&Given> {
        self.properties.iter().rev().find(|(known, _)| known == name).map(|(_, given)| given)
    }
}

/// How often a record may appear.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Delivery {
    /// At least once: records may repeat after a crash.
    #[default]
    AtLeastOnce,
    /// Exactly once, by the destination's transactions: consumers with `read_committed` see each record once.
    ExactlyOnce {
        /// Whether topics may have one replica. The crash of its broker may then hide rows, or repeat them.
        one_replica: bool,
    },
}

/// One address with its properties. `Debug` shows no secret.
pub trait Destination: fmt::Debug + Send + Sync {
    /// Its kind.
    fn kind(&self) -> &'static Kind;

    /// The address for people, without a secret.
    fn address(&self) -> String;

    /// Opens a sink, which begins to connect. `client`: the client's name at the destination, `walrelay/<slot>`.
    ///
    /// # Errors
    /// The client refuses the settings.
    fn open(&self, client: &str, how: Delivery) -> Result<Box<dyn Sink + Send>, SettingError>;

    /// Checks everything that a run needs of the destination. Changes nothing. If nobody answers, waits for some seconds at most.
    fn check(&self, wanted: &Wanted<'_>) -> Vec<Finding>;

    /// Makes a topic, or its counterpart, for a measurement.
    ///
    /// # Errors
    /// It exists already, or cannot be created.
    fn scratch(&self, client: &str, topic: &str, partitions: i32) -> Result<Box<dyn Scratch>, ScratchError>;

    /// The setting by which it deletes a record some time after the record's own time. `None`: it does not delete by that time.
    fn deletes_by_time(&self) -> Option<&'static str> {
        None
    }

    /// A header that the destination itself reads from each record, and the column with its value.
    fn header_column(&self) -> Option<(&'static str, &str)> {
        None
    }

    /// The form of CloudEvents' attributes in a record's headers. `None`: no specification defines one for this kind.
    fn event_binding(&self) -> Option<EventBinding> {
        None
    }

    /// Opens a dead-letter address for reading, from its first record to its present end. May wait for an answer for some seconds.
    ///
    /// # Errors
    /// The address does not exist or cannot be read, or walrelay cannot read from this kind.
    fn dead_letters(&self, _client: &str, _topic: &str) -> Result<Box<dyn DeadLetters>, NoDeadLetters> {
        Err(NoDeadLetters::Unsupported { kind: self.kind() })
    }

    /// Opens a reader of records, which reads no topic yet.
    ///
    /// # Errors
    /// walrelay cannot read from this kind, or the client refuses the settings.
    fn reader(&self, _client: &str) -> Result<Box<dyn RecordReader>, NoReader> {
        Err(NoReader::Unsupported { kind: self.kind() })
    }

    /// How records that are read differ from those that were written.
    fn reads_back(&self) -> ReadBack {
        ReadBack::Same
    }
}

/// How records that are read differ from those that were written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadBack {
    /// They do not.
    Same,
    /// Headers that are null are left out. Only headers of one name have an order. `null_value_is_empty`: a null value comes back empty.
    Unordered {
        /// A null value comes back empty.
        null_value_is_empty: bool,
    },
}

/// The form of CloudEvents' attributes in headers, by the binding of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventBinding {
    /// The prefix of an attribute's name.
    pub prefix: &'static str,
    /// Values are percent-encoded, as in HTTP's headers.
    pub percent_encoded: bool,
}

/// The dead-letter records at one address, in their order, up to the end that the address had when it was opened.
///
/// A record stays there until [`DeadLetters::mark_replayed`]. The destination then remembers that it was published again, and tells later
/// readers of the address.
pub trait DeadLetters {
    /// The next record. Waits for about 100 ms.
    ///
    /// # Errors
    /// The destination refuses, or has been silent for a minute.
    fn next(&mut self) -> Result<NextKept, Failure>;

    /// How many records there may be in all. 0 until that is known.
    fn count(&self) -> u64;

    /// Makes the destination remember that these records were published again. The caller has to publish the returned records as they
    /// are: only then does it remember.
    ///
    /// # Errors
    /// The destination does not answer, or refuses.
    fn mark_replayed(&mut self, ids: &[DeadLetterId]) -> Result<Vec<OwnedRecord>, Failure>;
}

/// The next item of a dead-letter address.
#[derive(Debug)]
pub enum NextKept {
    /// A record.
    Kept(KeptRecord),
    /// Nothing has come yet. Ask again.
    Waiting,
    /// There are no more records.
    End,
}

/// A dead-letter record, as the destination keeps it.
#[derive(Debug)]
pub struct KeptRecord {
    /// Its id, for [`DeadLetters::mark_replayed`].
    pub id: DeadLetterId,
    /// Whether it was published again before.
    pub replayed: bool,
    /// The record, with the dead-letter address as its topic.
    pub record: OwnedRecord,
}

/// The id of a record at a dead-letter address. Its text is the one that the destination's own tools use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeadLetterId {
    /// Kafka: the partition. Redis: the entry's milliseconds. NATS: 0.
    pub major: u64,
    /// The character between the two numbers. `None`: the text is the second number alone.
    pub between: Option<char>,
    /// Kafka: the offset. Redis: the entry's number in its millisecond. NATS: the message's sequence number in its stream.
    pub minor: u64,
}

impl fmt::Display for DeadLetterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.between {
            Some(between) => write!(f, "{}{between}{}", self.major, self.minor),
            None => write!(f, "{}", self.minor),
        }
    }
}

/// The reason why a dead-letter address cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum NoDeadLetters {
    /// walrelay cannot read from this kind of destination.
    #[error("dead-letter records of {} cannot be read", kind.title)]
    Unsupported {
        /// The kind.
        kind: &'static Kind,
    },
    /// The address does not exist.
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

/// A run's demands on its destination, for [`Destination::check`].
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    /// The client's name, as in [`Destination::open`].
    pub client: &'a str,
    /// The topics of the latest rows.
    pub topics: &'a BTreeSet<String>,
    /// The common prefix of all topics. Empty if it is not known.
    pub topics_begin: &'a str,
    /// The dead-letter topic, if bad rows go to one.
    pub dead_letters: Option<&'a str>,
    /// The bytes of key and value of the largest record.
    pub largest_bytes: usize,
    /// Whether there are records without a key.
    pub without_key: bool,
    /// `Some`: the run delivers exactly once, under the inner name if that is known.
    pub exactly_once: Option<Option<&'a str>>,
    /// Whether topics may have one replica with exactly once.
    pub one_replica: bool,
    /// Whether any relay has read the slot before.
    pub was_read: bool,
    /// Which times the records have.
    pub times: RecordTimes,
}

/// Which times records have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordTimes {
    /// Those of their sending.
    Sent,
    /// The rows' own: of the commit, or of a column.
    OfRows {
        /// How long nobody has read the slot: rows may have waited as long. `None`: it is not known, or a relay reads it.
        unread_for: Option<Duration>,
    },
    /// Those of old rows that are published now, of which the oldest one is so old.
    OfOldRows(Duration),
}

impl<'a> Wanted<'a> {
    /// The topics of all rows, bad ones included.
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
            times: RecordTimes::Sent,
        }
    }
}

/// A topic, or its counterpart, that was made for a measurement.
pub trait Scratch: Send {
    /// The time from request to answer of the fastest of some small requests. `None`: this kind does not measure it, or nobody answered.
    fn round_trip(&self) -> Option<Duration> {
        None
    }

    /// Removes the topic.
    ///
    /// # Errors
    /// It could not be removed.
    fn remove(self: Box<Self>) -> Result<(), ScratchError>;
}

/// The reason why a topic for a measurement cannot be created or removed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what} {topic}: {reason}")]
pub struct ScratchError {
    /// The action that failed, such as `create topic` or `remove topic`.
    pub what: &'static str,
    /// The topic's name.
    pub topic: String,
    /// The reason, in the destination's or its client's words.
    pub reason: String,
}

/// Why the records of a destination cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum NoReader {
    /// walrelay cannot read records of this kind.
    #[error(
        "the records of {} cannot be read: walrelay reads those of Kafka, NATS and Redis; a queue, a notification or a pipe gives each \
         message away once",
        kind.title
    )]
    Unsupported {
        /// The kind.
        kind: &'static Kind,
    },
    /// The client refuses the settings.
    #[error(transparent)]
    Settings(#[from] SettingError),
}
