//! [`Record`] and the [`Sink`] trait that each destination implements.
//!
//! In: a record that borrows from the read buffer, with the [`Tag`] that its report returns. Out: whether the destination took the
//! record, and later exactly one report for each record taken.
//! No other folder imports a destination's module: settings choose one of the [`kinds`]. One thread drives a sink; a sink may have
//! threads of its own.

#[cfg(feature = "aws")]
mod aws;
pub mod dead_letter;
pub mod destination;
pub(crate) mod fetch;
mod fetch_tls;
pub mod hold;
#[cfg(feature = "kafka")]
pub mod kafka;
pub mod kinds;
pub mod labels;
#[cfg(feature = "nats")]
pub mod nats;
pub mod null;
#[cfg(feature = "ordered-queue")]
pub mod ordered_queue;
mod owned;
#[cfg(feature = "rabbitmq")]
pub mod rabbitmq;
pub mod reading;
#[cfg(feature = "redis")]
pub mod redis;
pub mod registry;
#[cfg(any(feature = "kafka", feature = "nats"))]
mod sockets;
#[cfg(feature = "aws")]
pub mod sqs;
pub mod stdout;
#[cfg(all(test, feature = "ordered-queue"))]
mod tests;
mod tried_alone;

pub(crate) use owned::emptied;
pub use owned::{HeaderRoom, OwnedRecord};
pub use tried_alone::TriedAlone;

use crate::check_finding::CHECK;
use crate::lsn::{Lsn, Position};
use crate::remedy::Remedy;
use std::time::Duration;

/// One message for the destination. Borrows everything: a destination copies what it keeps.
#[derive(Debug, Clone, Copy)]
pub struct Record<'a> {
    /// The topic, or the destination's counterpart of one. The rule of the destination's kind allows the name.
    pub topic: &'a str,
    /// `None` is a null key.
    pub key: Option<&'a [u8]>,
    /// `None` is a tombstone.
    pub value: Option<&'a [u8]>,
    /// In the order in which they are written.
    pub headers: &'a [Header<'a>],
    /// Milliseconds since 1970-01-01 UTC.
    pub timestamp_millis: i64,
    /// `None`: the key decides.
    pub partition: Option<i32>,
    /// The kind of the value.
    pub content: Content,
}

/// The kind of a value, by its column's type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Content {
    /// JSON.
    Json,
    /// Text.
    Text,
    /// Bytes as they were stored.
    Bytes,
    /// Nobody knows.
    #[default]
    Unknown,
}

impl Record<'_> {
    /// The bytes of key and value. Byte counters count these.
    pub fn bytes(&self) -> usize {
        self.key.map_or(0, <[u8]>::len) + self.value.map_or(0, <[u8]>::len)
    }

    /// The bytes of key, value and headers, names included, and [`HEADER_OVERHEAD_BYTES`] for each header. Limits of memory count these.
    #[inline]
    pub fn held_bytes(&self) -> usize {
        let header =
            |header: &Header<'_>| header.name.len() + header.value.map_or(0, <[u8]>::len) + HEADER_OVERHEAD_BYTES;
        self.bytes() + self.headers.iter().map(header).sum::<usize>()
    }
}

/// The memory of a header beyond its name and value while its record is in flight, in bytes: an allocation and its fields.
pub const HEADER_OVERHEAD_BYTES: usize = 64;

/// A header. A record may have several of one name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header<'a> {
    /// Its name.
    pub name: &'a str,
    /// `None` is a null header.
    pub value: Option<&'a [u8]>,
}

/// The transaction, time and topic of a record, for its delivery report. It has 64 bits, so that a destination can keep it in a pointer.
///
/// A destination reports records with equal tokens, one after the other, as one [`Delivered`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token {
    /// Transaction number, counted by the [`Ledger`](crate::positions::Ledger), modulo 2^32.
    pub transaction: u32,
    /// The time when the record was enqueued, in the ledger's coarse ticks, modulo 2^16.
    pub tick: u16,
    /// The topic's index in the table of the metrics.
    pub topic: u16,
}

impl Token {
    /// The token as one integer.
    pub const fn pack(self) -> u64 {
        (self.transaction as u64) << 32 | (self.tick as u64) << 16 | self.topic as u64
    }

    /// The token that [`Token::pack`] made this integer of.
    #[allow(clippy::cast_possible_truncation, reason = "each field takes its own bits")]
    pub const fn unpack(packed: u64) -> Self {
        Self { transaction: (packed >> 32) as u32, tick: (packed >> 16) as u16, topic: packed as u16 }
    }
}

/// The row that a record was made of. A destination keeps it beside the record and returns it in [`Refused`], and does nothing else
/// with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Origin {
    /// Its position in the stream.
    pub position: Position,
    /// The row's table or message prefix.
    pub source: Source,
}

/// The table or the message prefix of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Source {
    /// The table with this object identifier.
    Table(u32),
    /// A logical message. Its prefix is the one that `--message-prefix` names at this index, from 0.
    Message(u32),
}

impl Default for Source {
    fn default() -> Self {
        Self::Table(0)
    }
}

/// The token and the origin of a record, which its report returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tag {
    /// [`Delivered`] returns it.
    pub token: Token,
    /// [`Refused`] returns it, with the token.
    pub origin: Origin,
}

/// The records that a destination has taken and not yet reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct InFlight {
    /// How many records.
    pub records: u64,
    /// The sum of their [`Record::held_bytes`].
    pub bytes: u64,
    /// How many of the records cannot move before [`Sink::resolve`]: the refused ones, and those that wait behind them.
    pub held: u64,
    /// How many of the records are of sequences in which the destination searches for a refused record. Only Kafka's sink counts them.
    pub searched: u64,
}

/// The outcome of an attempt to enqueue a record.
#[derive(Debug)]
pub enum Enqueue {
    /// The destination has copied the record. Exactly one report will come.
    Taken,
    /// The destination has no room, and has not kept the record. Try again after reports have come.
    Full,
    /// The destination cannot take this topic's records now (missing, forbidden, unreachable), and has not kept the record. Try again.
    Blocked(Failure),
    /// The destination will never take this record.
    Bad(Failure),
}

/// A report of a destination.
#[derive(Debug)]
pub enum Report {
    /// The destination has stored records.
    Delivered(Delivered),
    /// The destination refuses one record: for the record's own sake ([`FailureClass::Row`]), or for its topic's
    /// ([`FailureClass::Topic`]). The record stays in flight, and its sequence is held, until [`Sink::resolve`]. In a transaction, until
    /// [`Sink::restart`].
    Refused(Box<Refused>),
    /// The client gave up as a whole: it takes and reports nothing more until [`Sink::restart`].
    Failed(Failure),
}

/// Delivered records with equal tokens, one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delivered {
    /// The token of each record.
    pub token: Token,
    /// How many records, at least 1.
    pub records: u32,
    /// The bytes of their keys and values.
    pub bytes: u64,
}

/// The label, for metrics, of a record that the destination dropped as a repeat although nobody can have sent it before.
pub const DUPLICATE: &str = "duplicate";

/// The label, for metrics, of an answer that is in no list of the destination.
pub const UNLISTED: &str = "unlisted";

/// The number of a refusal. The destination counts them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RefusalId(pub u64);

/// A single record that the destination refuses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// The refusal's number, for [`Sink::resolve`].
    pub id: RefusalId,
    /// The record's tag, as it was enqueued.
    pub tag: Tag,
    /// The record, or the dead-letter record that replaced it.
    pub record: OwnedRecord,
    /// The destination's reason.
    pub failure: Failure,
}

/// The relay's decision on a refused record.
#[derive(Debug, Clone, Copy)]
pub enum Resolution<'a> {
    /// The destination sends the record again after about a second. The records behind it wait.
    Retry,
    /// The destination gives the record up, and will not report it. The records behind it go on.
    Skip,
    /// This record replaces the refused one. It has a topic of its own. Once it is delivered, [`Delivered`] has this token, and
    /// the records behind it go on. If it is refused as well, [`Refused`] has it and the origin of the first record.
    ReplaceWith(&'a Record<'a>, Token),
}

/// Why a record was not delivered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Failure {
    /// The class, which decides what the relay does.
    pub class: FailureClass,
    /// A label for metrics: short, stable, from a closed set.
    pub reason: &'static str,
    /// A text for people, with the topic and the destination's answer.
    pub text: String,
    /// The fix, as far as the text does not have it.
    pub remedy: Option<Remedy>,
}

impl Failure {
    /// A failure whose text says it all.
    pub fn new(class: FailureClass, reason: &'static str, text: impl Into<String>) -> Self {
        Self { class, reason, text: text.into(), remedy: None }
    }

    /// The failure with its fix.
    #[must_use]
    pub fn with_remedy(self, remedy: impl Into<Remedy>) -> Self {
        Self { remedy: Some(remedy.into()), ..self }
    }

    /// The remedy for a log line. Without one, `walrelay check` has to find it.
    pub fn logged_remedy(&self) -> String {
        self.remedy.as_ref().map_or_else(|| CHECK.to_owned(), Remedy::to_string)
    }
}

/// The class of a failure, which decides what the relay does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureClass {
    /// The destination says of the record itself, or of one of its batch, that it refuses it, and would do so again. The codes that say so
    /// are a closed list of each destination.
    Row,
    /// The record's topic is missing, or walrelay may not write to it. Once that is fixed, the destination takes the record.
    Topic,
    /// Something else at the destination fails: its disk, its replicas, the network. Once that is fixed, it takes the record.
    Environment,
    /// The destination does not accept walrelay's credentials. It refuses a new client as well, until the credentials or the
    /// destination change.
    LogIn,
    /// The client gave up for a reason of its own, such as a fatal error after another record's failure.
    Client,
    /// The destination gave an answer that is in none of its lists. It is no evidence about any row: the record waits, whatever
    /// `--on-bad-row` says, and the destination shows which one it is ([`Sink::tried_alone`]).
    Unlisted,
}

impl FailureClass {
    /// How much a failure of the class explains: of several failures, the one with the highest rank counts.
    pub const fn rank(self) -> u8 {
        match self {
            Self::Row => 4,
            Self::Topic => 3,
            Self::Unlisted => 2,
            Self::Environment | Self::LogIn => 1,
            Self::Client => 0,
        }
    }
}

/// The name under which a transactional destination works, and the progress that it keeps beside the records.
#[derive(Debug, Clone)]
pub struct Owner {
    /// The name. A producer that takes it over ends the open transactions of others under it.
    pub name: String,
    /// The destination returns the progress of each key that ends in this.
    pub keys_ending: String,
    /// The transactions that may have been committed under the name. It counts if the destination has lost the progress.
    pub committed: Committed,
}

/// The transactions that may have been committed, as far as this process knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Committed {
    /// No transactions: nobody has ever read the slot.
    #[default]
    Nothing,
    /// The transactions that Postgres has confirmed, and no more.
    Confirmed,
    /// More than Postgres has confirmed by now.
    More,
    /// Another process has read the slot, and may have committed some.
    Unknown,
}

/// The state of [`Sink::init_transactions`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Initialized {
    /// It is not done. Ask again.
    Pending {
        /// The event that it waits for, if that is known.
        reason: Option<String>,
        /// The destination has answered since the last call: it is there, and not ready.
        answered: bool,
    },
    /// The place for the progress is not there, and is not made, since something may have been committed before.
    Missing,
    /// It is done. Keys and values of the saved progress.
    Ready(Vec<(String, String)>),
}

/// The result of a first look at a destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reach {
    /// The destination answers. The warnings say what may fail all the same.
    There(Vec<String>),
    /// Nobody answers. The relay waits.
    Silent(Failure),
    /// The destination refuses the credentials. Waiting does not help.
    Refused(Failure),
}

/// The age of the rows that have gathered in a sink.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rows {
    /// The rows were committed a moment ago, or somebody waits for them: milliseconds count.
    Live,
    /// The rows are old already: large batches count.
    Backlog,
}

/// A destination. Its methods never block for longer than about 100 ms, or a second where the destination is slow to answer.
///
/// The contract:
///
/// * **Taken once, reported once.** For each record for which [`Sink::try_enqueue`] said [`Enqueue::Taken`], [`Sink::poll`] reports
///   [`Delivered`] once, or [`Sink::resolve`] ends it with [`Resolution::Skip`]. Until then it is in [`Sink::in_flight`].
/// * **Sequences.** The records whose order counts are a *sequence*: those of a Kafka partition; elsewhere, those of a key of a topic.
///   The records of a sequence arrive in the order in which they were taken. A destination does not send a record before every earlier
///   one of its sequence has arrived, unless it knows that the other end takes it only after those. Records of different sequences
///   pass each other freely, and so do reports.
/// * **A sequence may wait.** If a sequence cannot move now, the destination takes its records all the same and copies them into a queue
///   of its own: they count as in flight. [`Enqueue::Full`] bounds the sum.
/// * **A refusal holds its sequence.** The destination finds out which single record is refused before it says [`Report::Refused`]. It
///   may send one batch of the sequence, then halves of it. No record of that sequence moves before [`Sink::resolve`]; other sequences
///   go on. If a failure passes by itself (an unreachable broker, too few replicas), the destination sends the records again and
///   reports the failure by [`Sink::blocked`], never as a refusal.
/// * **An unknown answer costs no row.** A failure of the class [`FailureClass::Unlisted`] is never reported as a refusal. The destination sends
///   the records that may be its cause in sixteenths, without pauses, until one is left. It sends that one alone after 5, 10, 20, 40 and then
///   every 60 seconds, and shows it by [`Sink::tried_alone`]. Other sequences go on meanwhile.
/// * **Parked.** The contract's rules apply while the sink is parked: its records stay in flight. Only nothing is sent.
/// * **A restart forgets.** After [`Sink::restart`] no report and no refusal of what was taken before comes, though what had left may
///   still arrive.
/// * **Transactions.** A refusal fails the whole transaction: there is nothing to resolve, and [`Sink::restart`] follows. If the destination knows
///   the record, it says [`Report::Refused`], else [`Report::Failed`]. It sends the records of a refused batch in smaller batches in the next
///   transactions, until it knows. [`InFlight::searched`] counts the records meanwhile.
pub trait Sink {
    /// Takes one record. The sink copies it, and borrows nothing after the call.
    fn try_enqueue(&mut self, record: &Record<'_>, tag: Tag) -> Enqueue;

    /// Calls `each` with the reports that have come. Does not wait for any.
    fn poll(&mut self, each: &mut dyn FnMut(Report));

    /// Applies the relay's decision on a refused record. If it returns anything but [`Enqueue::Taken`], the refusal stays as it is. Only
    /// [`Resolution::ReplaceWith`] can cause that: [`Enqueue::Bad`] says that the destination would never take the other record.
    fn resolve(&mut self, _refusal: RefusalId, _resolution: Resolution<'_>) -> Enqueue {
        Enqueue::Taken
    }

    /// The records that were taken and not yet reported.
    fn in_flight(&self) -> InFlight;

    /// Sends the records that have gathered, without waiting for more: the relay has no further record at hand, or the rows are live. May
    /// take a millisecond.
    fn on_idle(&mut self, _rows: Rows) {}

    /// Closes the client, so that no taken record leaves any more; forgets all taken records, so that no report of them will ever come;
    /// starts over with another client. The destination may still store records that had reached its machine. May take a second.
    ///
    /// # Errors
    /// The destination's client cannot be created.
    fn restart(&mut self) -> Result<(), Failure>;

    /// Lets records leave until then, by the clock of [`hold::since_boot`]. `None`: without a limit, as before the first call. Records that
    /// have not left by then stay until a later moment is set, or until [`Sink::restart`] forgets them. A destination whose client sends
    /// nothing by itself has nothing to do.
    fn hold_until(&mut self, _until: Option<Duration>) {}

    /// Tells the destination whether the time of a record is its row's, by a column. By default it is. Otherwise the row is not at fault if the
    /// destination refuses the time, and a record that is sent again may have another one.
    fn times_are_rows(&mut self, _they_are: bool) {}

    /// Tells the destination that the relay has taken the slot: no other relay can have sent a row that is committed after `lsn`. If the
    /// destination then drops such a record as a repeat, and this process has not sent it before, it refuses the record for
    /// [`DUPLICATE`].
    fn alone_from(&mut self, _lsn: Lsn) {}

    /// Closes the client as [`Sink::restart`] does, without starting another one. The sink takes nothing before a restart.
    fn close(&mut self) {}

    /// Closes the client as [`Sink::restart`] does, so that no record leaves any more, and keeps every record that was taken in its
    /// sequence, in order. Nothing is sent before [`Sink::unpark`]. Reports that had come already may come still. A sink with transactions
    /// is never parked. May take a second.
    fn park(&mut self) {}

    /// A parked sink goes on with another client: it sends the records that it has kept, as after a client that was lost. So what the
    /// destination had stored without a report repeats, in order.
    ///
    /// # Errors
    /// The destination's client cannot be created: the sink has to start over.
    fn unpark(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    /// The failure that a sequence waits for, if one does: one of the topic or of the environment, which passes by itself, or an answer that
    /// is in no list.
    fn blocked(&self) -> Option<Failure> {
        None
    }

    /// The record that is sent alone for answers that are in no list; of several, the one that was enqueued first.
    fn tried_alone(&self) -> Option<TriedAlone> {
        None
    }

    /// The last problem with the destination that is not known to be over, for people.
    fn problem(&self) -> Option<String>;

    /// Looks once, before the first record, whether the destination answers. May wait for `patience`.
    fn reach(&mut self, _patience: Duration) -> Reach {
        Reach::There(Vec::new())
    }

    /// Whether the destination answers, for a relay that waits for its slot and calls this again and again. It asks once a second at most.
    fn is_reachable(&mut self) -> bool {
        matches!(self.reach(Duration::from_secs(1)), Reach::There(_))
    }

    /// How long a transaction may stay open. `None`: the destination has no transactions. If it has, a record counts as published only
    /// after [`Sink::commit`], and the sink takes nothing before [`Sink::init_transactions`] is done, after each restart too.
    fn transaction_timeout(&self) -> Option<Duration> {
        None
    }

    /// How many producers share the partitions, if several may: each partition always has the same producer.
    fn producers(&self) -> Option<u8> {
        None
    }

    /// Makes the place for the progress of transactions, before the slot is read for the first time. Returns whether it is there; if not, the
    /// caller asks again. Ends nobody's transactions. May take a second.
    ///
    /// # Errors
    /// The destination does not make it.
    fn prepare(&mut self) -> Result<bool, Failure> {
        Ok(true)
    }

    /// Fences the producer that had this name before, aborts its open transaction, and returns the saved progress.
    ///
    /// # Errors
    /// The sink has to start over.
    fn init_transactions(&mut self, _owner: &Owner) -> Result<Initialized, Failure> {
        Ok(Initialized::Ready(Vec::new()))
    }

    /// Commits the open transaction together with the progress in `key` and `value`, or that progress alone if none is open. Every record
    /// of the transaction has been reported. Returns `true` once the commit is done; ask again until then.
    ///
    /// # Errors
    /// Nobody knows whether the transaction was committed: the sink has to start over.
    fn commit(&mut self, _key: &str, _value: &str) -> Result<bool, Failure> {
        Ok(true)
    }

    /// Aborts the open transaction at the end of the process, so that consumers do not wait for it. May take a second.
    fn abandon(&mut self) {}
}

/// Implements methods of [`Sink`] by calling those of another sink: `hand_on!(self => self.sink; poll, resolve)`.
macro_rules! hand_on {
    ($self:ident => $sink:expr; $($method:ident),+) => { $(hand_on!(@ $self, $sink, $method);)+ };
    (@ $self:ident, $sink:expr, try_enqueue) => {
        fn try_enqueue(&mut $self, record: &$crate::sink::Record<'_>, tag: $crate::sink::Tag) -> $crate::sink::Enqueue {
            $sink.try_enqueue(record, tag)
        }
    };
    (@ $self:ident, $sink:expr, poll) => {
        fn poll(&mut $self, each: &mut dyn FnMut($crate::sink::Report)) { $sink.poll(each); }
    };
    (@ $self:ident, $sink:expr, resolve) => {
        fn resolve(&mut $self, refusal: $crate::sink::RefusalId, resolution: $crate::sink::Resolution<'_>) -> $crate::sink::Enqueue {
            $sink.resolve(refusal, resolution)
        }
    };
    (@ $self:ident, $sink:expr, on_idle) => {
        fn on_idle(&mut $self, rows: $crate::sink::Rows) { $sink.on_idle(rows); }
    };
    (@ $self:ident, $sink:expr, alone_from) => {
        fn alone_from(&mut $self, lsn: $crate::lsn::Lsn) { $sink.alone_from(lsn); }
    };
    (@ $self:ident, $sink:expr, hold_until) => {
        fn hold_until(&mut $self, until: Option<std::time::Duration>) { $sink.hold_until(until); }
    };
    (@ $self:ident, $sink:expr, reach) => {
        fn reach(&mut $self, patience: std::time::Duration) -> $crate::sink::Reach { $sink.reach(patience) }
    };
    (@ $self:ident, $sink:expr, is_reachable) => { fn is_reachable(&mut $self) -> bool { $sink.is_reachable() } };
    (@ $self:ident, $sink:expr, prepare) => { fn prepare(&mut $self) -> Result<bool, $crate::sink::Failure> { $sink.prepare() } };
    (@ $self:ident, $sink:expr, init_transactions) => {
        fn init_transactions(&mut $self, owner: &$crate::sink::Owner) -> Result<$crate::sink::Initialized, $crate::sink::Failure> {
            $sink.init_transactions(owner)
        }
    };
    (@ $self:ident, $sink:expr, commit) => {
        fn commit(&mut $self, key: &str, value: &str) -> Result<bool, $crate::sink::Failure> { $sink.commit(key, value) }
    };
    (@ $self:ident, $sink:expr, restart) => { fn restart(&mut $self) -> Result<(), $crate::sink::Failure> { $sink.restart() } };
    (@ $self:ident, $sink:expr, close) => { fn close(&mut $self) { $sink.close(); } };
    (@ $self:ident, $sink:expr, park) => { fn park(&mut $self) { $sink.park(); } };
    (@ $self:ident, $sink:expr, unpark) => { fn unpark(&mut $self) -> Result<(), $crate::sink::Failure> { $sink.unpark() } };
    (@ $self:ident, $sink:expr, abandon) => { fn abandon(&mut $self) { $sink.abandon(); } };
    (@ $self:ident, $sink:expr, in_flight) => { fn in_flight(&$self) -> $crate::sink::InFlight { $sink.in_flight() } };
    (@ $self:ident, $sink:expr, blocked) => { fn blocked(&$self) -> Option<$crate::sink::Failure> { $sink.blocked() } };
    (@ $self:ident, $sink:expr, times_are_rows) => {
        fn times_are_rows(&mut $self, they_are: bool) { $sink.times_are_rows(they_are); }
    };
    (@ $self:ident, $sink:expr, tried_alone) => {
        fn tried_alone(&$self) -> Option<$crate::sink::TriedAlone> { $sink.tried_alone() }
    };
    (@ $self:ident, $sink:expr, problem) => { fn problem(&$self) -> Option<String> { $sink.problem() } };
    (@ $self:ident, $sink:expr, producers) => { fn producers(&$self) -> Option<u8> { $sink.producers() } };
    (@ $self:ident, $sink:expr, transaction_timeout) => {
        fn transaction_timeout(&$self) -> Option<std::time::Duration> { $sink.transaction_timeout() }
    };
}
pub(crate) use hand_on;

impl<S: Sink + ?Sized> Sink for Box<S> {
    hand_on!(self => (**self); try_enqueue, poll, resolve, in_flight, on_idle, restart, close, park, unpark, alone_from, hold_until, times_are_rows, blocked, tried_alone, problem, reach, is_reachable, producers, transaction_timeout, prepare, init_transactions, commit, abandon);
}
