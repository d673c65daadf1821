//! What leaves: a [`Record`], and the one trait behind which a destination stands.
//!
//! In: a record that borrows from the read buffer, with a [`Tag`]: what comes back in its report. Out: whether the destination
//! took it, and later exactly one report for each record taken.
//! Nothing above this folder names a destination: settings choose one of the [`kinds`]. A sink is driven by one thread; it may
//! keep threads of its own.

#[cfg(feature = "aws")]
mod aws;
pub mod dead_letter;
pub mod destination;
pub(crate) mod fetch;
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
#[cfg(feature = "nats")]
mod time;

pub(crate) use owned::emptied;
pub use owned::{HeaderRoom, OwnedRecord};

use crate::lsn::Lsn;
use std::time::Duration;

/// One message for the destination. Borrows everything: a destination copies what it keeps.
#[derive(Debug, Clone, Copy)]
pub struct Record<'a> {
    /// The topic, or what the destination has in its place: a name that its kind's rule allows.
    pub topic: &'a str,
    /// `None` is a null key.
    pub key: Option<&'a [u8]>,
    /// `None` is a tombstone.
    pub value: Option<&'a [u8]>,
    /// In the order in which they are written.
    pub headers: &'a [Header<'a>],
    /// Milliseconds since 1970-01-01 UTC.
    pub timestamp_millis: i64,
    /// `None`: by the key.
    pub partition: Option<i32>,
    /// What the value is.
    pub content: Content,
}

/// What a value is, as its column's type says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Content {
    /// JSON.
    Json,
    /// Text.
    Text,
    /// Bytes as they were stored.
    Bytes,
    /// That is not known.
    #[default]
    Unknown,
}

impl Record<'_> {
    /// Bytes of key and value: what byte counters count.
    pub fn bytes(&self) -> usize {
        self.key.map_or(0, <[u8]>::len) + self.value.map_or(0, <[u8]>::len)
    }

    /// Bytes of key, value and headers, names included, and [`HEADER_OVERHEAD_BYTES`] for each header: what bounds count.
    #[inline]
    pub fn held_bytes(&self) -> usize {
        let header =
            |header: &Header<'_>| header.name.len() + header.value.map_or(0, <[u8]>::len) + HEADER_OVERHEAD_BYTES;
        self.bytes() + self.headers.iter().map(header).sum::<usize>()
    }
}

/// What a header costs beyond its name and value while its record is in flight, in bytes: an allocation and its fields.
pub const HEADER_OVERHEAD_BYTES: usize = 64;

/// A header; names may repeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header<'a> {
    /// Its name.
    pub name: &'a str,
    /// `None` is a null header.
    pub value: Option<&'a [u8]>,
}

/// What a record carries to its delivery report, in 64 bits so that a destination can keep it in a pointer's room.
///
/// Reports that follow each other with equal tokens are handed over as one run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token {
    /// Transaction number, counted by the [`Ledger`](crate::positions::Ledger), modulo 2^32.
    pub transaction: u32,
    /// When it was enqueued, in the ledger's coarse ticks, modulo 2^16.
    pub tick: u16,
    /// The topic's place in the metrics' table.
    pub topic: u16,
}

impl Token {
    /// As one integer.
    pub const fn pack(self) -> u64 {
        (self.transaction as u64) << 32 | (self.tick as u64) << 16 | self.topic as u64
    }

    /// Back from [`Token::pack`].
    #[allow(clippy::cast_possible_truncation, reason = "each field takes its own bits")]
    pub const fn unpack(packed: u64) -> Self {
        Self { transaction: (packed >> 32) as u32, tick: (packed >> 16) as u16, topic: packed as u16 }
    }
}

/// Which row a record was made of. A destination keeps it with what it keeps of the record, gives it back in [`Refused`], and
/// reads nothing into it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Origin {
    /// Where its transaction's commit record begins, as an integer.
    pub final_lsn: u64,
    /// Its number in the transaction, from 0.
    pub ordinal: u64,
    /// Where it was inserted.
    pub source: Source,
}

/// Where a row was inserted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Source {
    /// The table with this object identifier.
    Table(u32),
    /// No table: it is a logical message with the prefix that `--message-prefix` names at this place, from 0.
    Message(u32),
}

impl Default for Source {
    fn default() -> Self {
        Self::Table(0)
    }
}

/// What a record carries to its report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tag {
    /// For [`Delivered`].
    pub token: Token,
    /// For [`Refused`].
    pub origin: Origin,
}

/// What a destination has taken and not yet reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct InFlight {
    /// Records.
    pub records: u64,
    /// What they hold: [`Record::held_bytes`].
    pub bytes: u64,
    /// How many of the records cannot move before [`Sink::resolve`]: the refused ones, and what waits behind them.
    pub held: u64,
    /// How many of the records are of sequences in which the destination searches for a refused record.
    pub isolating: u64,
}

/// What became of an attempt to enqueue a record.
#[derive(Debug)]
pub enum Enqueue {
    /// The destination has it: exactly one report will come.
    Taken,
    /// No room. Nothing was kept; try again after reports have come.
    Full,
    /// The destination cannot take this topic's records now (missing, forbidden, unreachable). Nothing was kept; try again.
    Blocked(Failure),
    /// This record will never be taken.
    Bad(Failure),
}

/// What a destination reports.
#[derive(Debug)]
pub enum Report {
    /// Records that it keeps now.
    Delivered(Delivered),
    /// The destination refuses one record: for the record's own sake ([`FailureClass::Row`]), or for its topic's
    /// ([`FailureClass::Topic`]). The record stays in flight, and its sequence is held, until [`Sink::resolve`].
    Refused(Box<Refused>),
    /// The client as a whole gave up: nothing more is taken or reported until [`Sink::restart`].
    Failed(Failure),
}

/// Records that were delivered, in a row with equal tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delivered {
    /// The token of each of them.
    pub token: Token,
    /// How many; at least 1.
    pub records: u32,
    /// Their bytes of key and value.
    pub bytes: u64,
}

/// Why a record is refused that the destination has dropped as a repeat, though nobody can have sent it before: for metrics.
pub const DUPLICATE: &str = "duplicate";

/// Which refusal is meant; counted by the destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RefusalId(pub u64);

/// One record that the destination refuses by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// For [`Sink::resolve`].
    pub id: RefusalId,
    /// As it was enqueued.
    pub tag: Tag,
    /// The record. Where a dead-letter record stands in its place, that.
    pub record: OwnedRecord,
    /// Why.
    pub failure: Failure,
}

/// What becomes of a refused record.
#[derive(Debug, Clone, Copy)]
pub enum Resolution<'a> {
    /// It is tried again after a pause, about a second, and everything behind it waits.
    Retry,
    /// It is not in flight any more, and no report of it will come. What waits behind it goes on.
    Skip,
    /// This record takes its place, addressed to a topic of its own. Once it is delivered, [`Delivered`] says so with this token, and
    /// what waits behind goes on. If it is refused as well, [`Refused`] comes with it and the origin of the first.
    ReplaceWith(&'a Record<'a>, Token),
}

/// Why a record was not delivered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Failure {
    /// What it says about what to do.
    pub class: FailureClass,
    /// A label for metrics: short, stable, from a closed set.
    pub reason: &'static str,
    /// For people: names the topic, and what the destination answered.
    pub text: String,
}

/// What a failure says about what to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureClass {
    /// The record itself (or one of its batch) is refused, and would be again.
    Row,
    /// The record's topic is missing, or we may not write to it. The same record is taken once that is fixed.
    Topic,
    /// The destination's condition otherwise: disk, replicas, reach. The same record is taken once that is fixed.
    Environment,
    /// The destination does not take our credentials: a new client is refused as well until somebody changes one or the other.
    LogIn,
    /// Neither: the client gave up for a reason of its own, such as a fatal error after another record's failure.
    Client,
}

/// Under which name a transactional destination works, and what it keeps beside the records.
#[derive(Debug, Clone)]
pub struct Owner {
    /// Whoever takes it over ends what others have open under it.
    pub name: String,
    /// Whose progress is read: every key that ends in this.
    pub keys_ending: String,
    /// What may have been committed under the name: of interest where the destination keeps no progress any more.
    pub committed: Committed,
}

/// What may have been committed in transactions, as far as it is known here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Committed {
    /// Nothing: the slot was never read.
    #[default]
    Nothing,
    /// What Postgres has confirmed, and no more.
    Confirmed,
    /// More than Postgres has confirmed by now.
    More,
    /// That is not known: another process has read the slot.
    Unknown,
}

/// How far the fencing of the old producer is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Initialized {
    /// Ask again.
    Pending {
        /// What it waits for, where that is known.
        reason: Option<String>,
        /// The destination has answered since it was asked last: what it says is "not yet".
        answered: bool,
    },
    /// Done: keys and values of the progress that is kept.
    Ready(Vec<(String, String)>),
}

/// What a first look at a destination shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reach {
    /// It answers; warnings about what may fail all the same.
    There(Vec<String>),
    /// Nobody answers: that is waited out.
    Silent(Failure),
    /// It refuses us: waiting does not help.
    Refused(Failure),
}

/// Which rows have gathered in a sink.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rows {
    /// They were committed a moment ago, or somebody waits for them: milliseconds count.
    Live,
    /// They are old already: large batches count.
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
/// * **A restart forgets.** After [`Sink::restart`] no report and no refusal of what was taken before comes, though what had left may
///   still arrive.
/// * **Transactions.** A destination that takes records in transactions refuses no single record: it says [`Report::Failed`].
pub trait Sink {
    /// Takes one record. It is copied: nothing is borrowed after the call.
    fn try_enqueue(&mut self, record: &Record<'_>, tag: Tag) -> Enqueue;

    /// Serves the reports that have come, in runs. Does not wait for any.
    fn poll(&mut self, each: &mut dyn FnMut(Report));

    /// Decides what becomes of a refused record. Anything but [`Enqueue::Taken`] leaves the refusal as it is, and only
    /// [`Resolution::ReplaceWith`] has it: [`Enqueue::Bad`] when the other record would never be taken.
    fn resolve(&mut self, _refusal: RefusalId, _resolution: Resolution<'_>) -> Enqueue {
        Enqueue::Taken
    }

    /// What was taken and not yet reported.
    fn in_flight(&self) -> InFlight;

    /// What has gathered should leave without waiting for company: no further record is at hand, or those that come are live.
    /// May take a millisecond.
    fn on_idle(&mut self, _rows: Rows) {}

    /// Closes the client, so that nothing of what was taken leaves any more, forgets it, so that no report of it will ever come, and
    /// starts over with another client. What had reached the destination's machine may still be stored. May take a second.
    ///
    /// # Errors
    /// The destination's client cannot be created.
    fn restart(&mut self) -> Result<(), Failure>;

    /// Records may leave until then, by the clock of [`hold::since_boot`]; `None`: without a bound, as before the first call. What has
    /// not left by then stays until a later moment is set, or [`Sink::restart`] forgets it. A destination without a client that sends by
    /// itself has nothing to do.
    fn hold_until(&mut self, _until: Option<Duration>) {}

    /// The slot was taken: no other relay can have sent what is committed after `lsn`. A destination that says so when it drops a record
    /// as a repeat refuses such a one by this, for [`DUPLICATE`], where it was not sent before.
    fn alone_from(&mut self, _lsn: Lsn) {}

    /// Closes the client as [`Sink::restart`] does, without another one: nothing is taken before that is called.
    fn close(&mut self) {}

    /// The failure that a sequence waits for, if one does: one of the topic or of the environment, which passes by itself.
    fn blocked(&self) -> Option<Failure> {
        None
    }

    /// The last problem with the destination that is not known to be over, for people.
    fn problem(&self) -> Option<String>;

    /// Looks whether the destination answers, once, before the first record. May wait for `patience`.
    fn reach(&mut self, _patience: Duration) -> Reach {
        Reach::There(Vec::new())
    }

    /// How long a transaction may stay open, where the destination takes records in transactions: then a record counts only once
    /// [`Sink::commit`] has said so, and nothing is taken before [`Sink::init_transactions`] is done, also after each restart.
    fn transaction_timeout(&self) -> Option<Duration> {
        None
    }

    /// How many producers share the partitions, if several may: each partition always has the same producer.
    fn producers(&self) -> Option<u8> {
        None
    }

    /// Fences the producer that had this name before, aborts its open transaction, and returns the saved progress.
    ///
    /// # Errors
    /// The sink has to start over.
    fn init_transactions(&mut self, _owner: &Owner) -> Result<Initialized, Failure> {
        Ok(Initialized::Ready(Vec::new()))
    }

    /// Commits the open transaction, of which every record has been reported, together with the progress that `key` and `value`
    /// say. `true` once that is done; else ask again.
    ///
    /// # Errors
    /// Whether it was committed is not known: the sink has to start over.
    fn commit(&mut self, _key: &str, _value: &str) -> Result<bool, Failure> {
        Ok(true)
    }

    /// The end: what is open is aborted, so that it holds nobody up. May take a second.
    fn abandon(&mut self) {}

    /// What fixes the failure for which [`Sink::restart`] refuses: a command, or a short text; `None`: the failure's text says it all.
    fn fix(&self) -> Option<String> {
        None
    }
}

/// Methods of [`Sink`] that a sink hands on to the one that is in its field: `hand_on!(sink: poll, resolve)`.
macro_rules! hand_on {
    ($field:ident: $($method:ident),+) => { $(hand_on!(@ $field $method);)+ };
    (@ $field:ident poll) => {
        fn poll(&mut self, each: &mut dyn FnMut($crate::sink::Report)) {
            self.$field.poll(each);
        }
    };
    (@ $field:ident resolve) => {
        fn resolve(
            &mut self,
            refusal: $crate::sink::RefusalId,
            resolution: $crate::sink::Resolution<'_>,
        ) -> $crate::sink::Enqueue {
            self.$field.resolve(refusal, resolution)
        }
    };
    (@ $field:ident on_idle) => {
        fn on_idle(&mut self, rows: $crate::sink::Rows) {
            self.$field.on_idle(rows);
        }
    };
    (@ $field:ident reach) => {
        fn reach(&mut self, patience: std::time::Duration) -> $crate::sink::Reach {
            self.$field.reach(patience)
        }
    };
    (@ $field:ident init_transactions) => {
        fn init_transactions(&mut self, owner: &$crate::sink::Owner) -> Result<$crate::sink::Initialized, $crate::sink::Failure> {
            self.$field.init_transactions(owner)
        }
    };
    (@ $field:ident commit) => {
        fn commit(&mut self, key: &str, value: &str) -> Result<bool, $crate::sink::Failure> {
            self.$field.commit(key, value)
        }
    };
    (@ $field:ident restart) => { hand_on!(@@ $field restart(&mut self) -> Result<(), $crate::sink::Failure>); };
    (@ $field:ident close) => { hand_on!(@@ $field close(&mut self) -> ()); };
    (@ $field:ident alone_from) => {
        fn alone_from(&mut self, lsn: $crate::lsn::Lsn) {
            self.$field.alone_from(lsn);
        }
    };
    (@ $field:ident hold_until) => {
        fn hold_until(&mut self, until: Option<std::time::Duration>) {
            self.$field.hold_until(until);
        }
    };
    (@ $field:ident abandon) => { hand_on!(@@ $field abandon(&mut self) -> ()); };
    (@ $field:ident fix) => { hand_on!(@@ $field fix(&self) -> Option<String>); };
    (@ $field:ident in_flight) => { hand_on!(@@ $field in_flight(&self) -> $crate::sink::InFlight); };
    (@ $field:ident blocked) => { hand_on!(@@ $field blocked(&self) -> Option<$crate::sink::Failure>); };
    (@ $field:ident problem) => { hand_on!(@@ $field problem(&self) -> Option<String>); };
    (@ $field:ident producers) => { hand_on!(@@ $field producers(&self) -> Option<u8>); };
    (@ $field:ident transaction_timeout) => {
        hand_on!(@@ $field transaction_timeout(&self) -> Option<std::time::Duration>);
    };
    (@@ $field:ident $method:ident(&$mut:tt self) -> $result:ty) => {
        fn $method(&mut self) -> $result { self.$field.$method() }
    };
    (@@ $field:ident $method:ident(&self) -> $result:ty) => {
        fn $method(&self) -> $result { self.$field.$method() }
    };
}
pub(crate) use hand_on;

impl<S: Sink + ?Sized> Sink for Box<S> {
    fn try_enqueue(&mut self, record: &Record<'_>, tag: Tag) -> Enqueue {
        (**self).try_enqueue(record, tag)
    }

    fn poll(&mut self, each: &mut dyn FnMut(Report)) {
        (**self).poll(each);
    }

    fn resolve(&mut self, refusal: RefusalId, resolution: Resolution<'_>) -> Enqueue {
        (**self).resolve(refusal, resolution)
    }

    fn in_flight(&self) -> InFlight {
        (**self).in_flight()
    }

    fn on_idle(&mut self, rows: Rows) {
        (**self).on_idle(rows);
    }

    fn restart(&mut self) -> Result<(), Failure> {
        (**self).restart()
    }

    fn close(&mut self) {
        (**self).close();
    }

    fn alone_from(&mut self, lsn: Lsn) {
        (**self).alone_from(lsn);
    }

    fn hold_until(&mut self, until: Option<Duration>) {
        (**self).hold_until(until);
    }

    fn blocked(&self) -> Option<Failure> {
        (**self).blocked()
    }

    fn problem(&self) -> Option<String> {
        (**self).problem()
    }

    fn reach(&mut self, patience: Duration) -> Reach {
        (**self).reach(patience)
    }

    fn producers(&self) -> Option<u8> {
        (**self).producers()
    }

    fn transaction_timeout(&self) -> Option<Duration> {
        (**self).transaction_timeout()
    }

    fn init_transactions(&mut self, owner: &Owner) -> Result<Initialized, Failure> {
        (**self).init_transactions(owner)
    }

    fn commit(&mut self, key: &str, value: &str) -> Result<bool, Failure> {
        (**self).commit(key, value)
    }

    fn abandon(&mut self) {
        (**self).abandon();
    }

    fn fix(&self) -> Option<String> {
        (**self).fix()
    }
}
