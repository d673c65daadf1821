//! What leaves: a [`Record`], and the one trait behind which a destination stands.
//!
//! In: a record that borrows from the read buffer, with a [`Token`] that comes back in its delivery report. Out: whether
//! the destination took it, and later exactly one report for each record taken.
//! Nothing above this folder names Kafka. A destination is driven by one thread; it may keep threads of its own.

pub mod dead_letter;
pub mod kafka;
pub mod null;
pub mod stdout;

use std::time::Duration;

/// One message for the destination. Borrows everything: a destination copies what it keeps.
#[derive(Debug, Clone, Copy)]
pub struct Record<'a> {
    /// The topic, a name that Kafka allows: `[a-zA-Z0-9._-]{1,249}`.
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
}

impl Record<'_> {
    /// Bytes of key and value: what bounds and byte counters count.
    pub fn bytes(&self) -> usize {
        self.key.map_or(0, <[u8]>::len) + self.value.map_or(0, <[u8]>::len)
    }
}

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
    /// Transaction number, counted by the [`tracker`](crate::tracker), modulo 2^32.
    pub transaction: u32,
    /// When it was enqueued, in the tracker's coarse ticks, modulo 2^16.
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

/// What a destination has taken and not yet reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct InFlight {
    /// Records.
    pub records: u64,
    /// Their bytes of key and value.
    pub bytes: u64,
}

/// What became of an attempt to hand a record over.
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

/// Reports of equal fate that came in a row.
#[derive(Debug)]
pub struct Delivered {
    /// The token of each of them.
    pub token: Token,
    /// How many; at least 1.
    pub records: u32,
    /// Their bytes of key and value.
    pub bytes: u64,
    /// `Err`: none of them may be counted as delivered.
    pub outcome: Result<(), Failure>,
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
    /// The record's topic is missing, or we may not write to it. The same record is taken once that is mended.
    Topic,
    /// The destination's condition otherwise: log-in, disk, replicas, reach. The same record is taken once that is mended.
    Environment,
    /// Neither: the client gave up for a reason of its own, such as a fatal error after another record's failure.
    Client,
}

/// How a destination hands over after a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// Batches, as large as settings allow.
    Full,
    /// As [`Pace::Full`], with batches of at most so many bytes: a topic refused larger ones.
    Batches(usize),
}

/// Under which name a transactional destination works, and what it keeps beside the records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// Whoever takes it over ends what others have open under it.
    pub name: String,
    /// Whose progress is read: every key that ends in this.
    pub keys_ending: String,
}

/// How taking over goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Own {
    /// Ask again; what it waits for, where that is known.
    Pending(Option<String>),
    /// Done: keys and values of the progress that is kept.
    Ready(Vec<(String, String)>),
}

/// A destination. Its methods never block for longer than about 100 ms, or a second where the destination is slow to answer.
pub trait Sink {
    /// Hands one record over.
    fn try_enqueue(&mut self, record: &Record<'_>, token: Token) -> Enqueue;

    /// Serves the reports that have come, in runs. Does not wait for any.
    fn poll(&mut self, each: &mut dyn FnMut(Delivered));

    /// What was taken and not yet reported.
    fn in_flight(&self) -> InFlight;

    /// What has gathered should leave without waiting for company: no further record is at hand, or those that come are live.
    /// May take a millisecond.
    fn ran_dry(&mut self);

    /// Forgets everything that was taken, so that no report of it will ever come, and begins anew. What had left may
    /// still arrive.
    ///
    /// # Errors
    /// The destination's client cannot be made.
    fn restart(&mut self, pace: Pace) -> Result<(), Failure>;

    /// The last trouble with the destination that is not known to be over, for people.
    fn trouble(&self) -> Option<String>;

    /// How long a transaction may stay open, where the destination takes records in transactions: then a record counts only once
    /// [`Sink::seal`] has said so, and nothing is taken before [`Sink::own`] is done, also after each restart.
    fn transaction_timeout(&self) -> Option<Duration> {
        None
    }

    /// Takes over what was left open under that name, and reads what is kept.
    ///
    /// # Errors
    /// It cannot be had like this: begin anew.
    fn own(&mut self, _owner: &Owner) -> Result<Own, Failure> {
        Ok(Own::Ready(Vec::new()))
    }

    /// Commits the open transaction, of which every record has been reported, together with the progress that `key` and `value`
    /// say. `true` once that is done; else ask again.
    ///
    /// # Errors
    /// Whether it was committed is not known: begin anew.
    fn seal(&mut self, _key: &str, _value: &str) -> Result<bool, Failure> {
        Ok(true)
    }

    /// The end: what is open is aborted, so that it holds nobody up. May take a second.
    fn abandon(&mut self) {}
}
