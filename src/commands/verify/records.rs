//! [`Records`]: makes of a record that was read what is compared with a row's.
//!
//! In: records of a destination, the settings of a run. Out: a dead letter, or a record with its hashes and its place. Pure. It leaves out what
//! no row has, and remembers what it left out, for the report.

use super::collector::{KnownTopics, TopicNumbers};
use super::comparison::{Hashes, as_read};
use super::faults::RecordAt;
use super::matcher::FoundAt;
use crate::commands::run::RunRequest;
use crate::outbox::{Mapping, Timestamp};
use crate::sink::dead_letter::{self, DeadLetterHeaders};
use crate::sink::destination::ReadBack;
use crate::sink::reading::ReadRecord;
use crate::sink::{Header, Record, emptied};

/// The headers that Debezium's process adds for itself. They change with each start.
const CONTEXT_HEADERS: &str = "__debezium.context.";

/// The bytes in front of a value that say which schema it has.
const SCHEMA_PREFIX: usize = 5;

/// The header with a row's position in the WAL, which a row in a table has not.
const POSITION_HEADER: &str = "walrelay-position";

/// What a record is.
#[derive(Debug)]
pub(super) enum Taken<'a> {
    /// A row that could not be published.
    DeadLetter(DeadLetterHeaders<'a>),
    /// A record.
    Record(FoundAt, Hashes, Record<'a>),
}

/// Reads records.
#[allow(clippy::struct_excessive_bools, reason = "each is a flag")]
#[derive(Debug)]
pub(super) struct Records {
    known: KnownTopics,
    read_back: ReadBack,
    dead_letter_topic: String,
    is_connect: bool,
    has_schema: bool,
    with_time: bool,
    /// Whether records may have their rows' positions, and rows have none.
    without_positions: bool,
    has_broker_time: bool,
    has_context_headers: bool,
    /// Memory for the headers of a record.
    headers: Vec<Header<'static>>,
}

impl Records {
    /// For the records of this run. `without_positions`: rows come without their positions.
    pub(super) fn new(run: &RunRequest, names: &TopicNumbers, without_positions: bool) -> Self {
        Self {
            known: KnownTopics::of(names),
            read_back: run.destination.reads_back(),
            dead_letter_topic: run.bad_rows.dead_letter_topic.clone(),
            is_connect: run.mapping.connect.is_some(),
            has_schema: run.registry.is_some(),
            with_time: compares_time(&run.mapping),
            without_positions: without_positions && run.mapping.position_header,
            has_broker_time: false,
            has_context_headers: false,
            headers: Vec::new(),
        }
    }

    /// Calls `each` with what `read` is. A record of the dead-letter topic that is no dead letter is passed over.
    pub(super) fn take(&mut self, read: &ReadRecord<'_>, each: impl FnOnce(Taken<'_>)) {
        let record = &read.record;
        if record.topic == self.dead_letter_topic {
            if let Some(said) = dead_letter::said(record) {
                each(Taken::DeadLetter(said));
            }
            return;
        }
        self.has_broker_time |= self.with_time && !read.writers_time;
        let number = self.known.number(record.topic);
        let at = RecordAt { topic: number, partition: record.partition.unwrap_or_default(), offset: read.offset };
        let time = read.writers_time.then_some(record.timestamp_millis);
        let found = FoundAt { at, time, partition_of_key: read.partition_of_key };
        let value = if self.has_schema { without_schema(record.value) } else { record.value };
        if !self.is_connect && !self.without_positions {
            let record = Record { value, ..*record };
            as_read(self.read_back, &record, |record| each(Taken::Record(found, Hashes::of(number, record), *record)));
            return;
        }
        let mut kept: Vec<Header<'_>> = emptied(std::mem::take(&mut self.headers));
        let is_own = |header: &&Header<'_>| self.is_connect && header.name.starts_with(CONTEXT_HEADERS);
        self.has_context_headers |= record.headers.iter().any(|header| is_own(&header));
        let is_position = |header: &&Header<'_>| self.without_positions && header.name == POSITION_HEADER;
        kept.extend(record.headers.iter().filter(|header| !is_own(header) && !is_position(header)));
        let record = Record { value, headers: &kept, ..*record };
        as_read(self.read_back, &record, |record| each(Taken::Record(found, Hashes::of(number, record), *record)));
        self.headers = emptied(kept);
    }

    /// The reasons for which something was not compared.
    pub(super) fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.has_broker_time {
            notes.push(
                "the time of records is not compared where the broker sets it (for Kafka, LogAppendTime)".to_owned(),
            );
        }
        if self.has_context_headers {
            notes.push(format!("headers {CONTEXT_HEADERS}* are not compared: they are Debezium's own"));
        }
        if self.has_schema {
            notes.push("the number of a value's schema is not compared".to_owned());
        }
        if self.without_positions {
            notes.push(format!("header {POSITION_HEADER} is not compared: a table does not have its rows' positions"));
        }
        notes
    }
}

/// Whether the record's time is the row's.
pub(super) fn compares_time(mapping: &Mapping) -> bool {
    // Debezium Server's sink for Kafka drops the time. The time of the sending is in no row.
    mapping.connect.is_none() && mapping.timestamp != Timestamp::Send
}

/// The value behind the number of its schema. A value without one stays, and differs.
fn without_schema(value: Option<&[u8]>) -> Option<&[u8]> {
    value.map(|value| match value.split_at_checked(SCHEMA_PREFIX) {
        Some(([0, ..], rest)) => rest,
        Some(_) | None => value,
    })
}
