//! [`Framed`]: a sink in front of the destination's, which puts the schema's number from a registry before each value.
//!
//! ```text
//!  record ──► subject ──► number, looked up once ──► 0 │ number │ value ──► destination's sink
//!                └─ not known yet: Blocked, and a thread of its own asks the registry
//! ```
//!
//! In: records without a number. Out: the same records with Confluent's prefix before the value, which consumers of a registry expect. Null
//! values stay null. Records of the dead-letter topic stay as they are: a record that the destination refused has its number already; one
//! that walrelay could not make has none, and cannot be published again from there.
//!
//! Invariants: this sink never waits for the registry; it asks for a subject's number once, and the client asks again in the background
//! (see `client`); while a number is not known, the sink does not take its record, so that no later record overtakes it.
//! Specification: Confluent, "Wire format" and "Schema Registry API", `GET /subjects/(string: subject)/versions/(versionId: version)`.

mod client;
mod subject;

pub use client::{Credentials, Registry};
pub use subject::{SubjectError, Subjects};

use super::{Content, Enqueue, Failure, FailureClass, Record, Sink, Tag, hand_on};
use client::Client;
use std::collections::HashMap;

/// The header with a row's type.
const TYPE: &str = "eventType";

/// Labels of failures, for metrics.
const NO_SUBJECT: &str = "no_subject";
const UNKNOWN_SUBJECT: &str = "unknown_subject";

/// The labels for which this sink may refuse a record.
pub const REFUSALS: [&str; 2] = [NO_SUBJECT, UNKNOWN_SUBJECT];

/// The label of a registry that does not answer, or refuses the credentials.
const SCHEMA_REGISTRY: &str = "schema_registry";

/// The other labels of this sink.
pub const REASONS: [&str; 1] = [SCHEMA_REGISTRY];

/// A sink that puts numbers in front of values.
pub struct Framed<S> {
    sink: S,
    subjects: Subjects,
    client: Client,
    /// Records of this topic stay as they are.
    dead_letter_topic: String,
    numbers: HashMap<String, u32>,
    /// The state of the client at which `numbers` and `last` were filled.
    state: u64,
    /// The subject of the present record.
    subject: String,
    /// The last record's topic, type and number: the next record mostly has the same.
    last: Option<Last>,
    value: Vec<u8>,
    /// The reason why the last record was not taken.
    problem: Option<String>,
}

struct Last {
    topic: String,
    event_type: Vec<u8>,
    number: u32,
}

impl<S: Sink> Framed<S> {
    /// A sink in front of `sink`. The registry's thread starts with the first question.
    pub fn new(sink: S, registry: &Registry, dead_letter_topic: &str) -> Self {
        Self {
            sink,
            subjects: registry.subjects.clone(),
            client: Client::new(registry),
            dead_letter_topic: dead_letter_topic.to_owned(),
            numbers: HashMap::new(),
            state: 0,
            subject: String::new(),
            last: None,
            value: Vec::new(),
            problem: None,
        }
    }

    /// The number of the record's schema.
    #[inline]
    fn number(&mut self, record: &Record<'_>) -> Result<u32, Enqueue> {
        let state = self.client.state();
        if state != self.state {
            (self.last, self.state) = (None, state);
            self.numbers.clear();
        }
        let event_type = event_type(record);
        if let Some(last) = &self.last
            && last.topic == record.topic
            && last.event_type == event_type.unwrap_or_default()
        {
            return Ok(last.number);
        }
        self.other(record, event_type)
    }

    /// The number for a record whose topic or type is not the last record's.
    fn other(&mut self, record: &Record<'_>, event_type: Option<&[u8]>) -> Result<u32, Enqueue> {
        let Self { subjects, subject, numbers, client, .. } = self;
        if !subjects.fill(record.topic, event_type, subject) {
            let text = "the row has no type, which its schema's subject is made of".to_owned();
            return Err(Enqueue::Bad(Failure::new(FailureClass::Row, NO_SUBJECT, text)));
        }
        let number = match numbers.get(subject.as_str()) {
            Some(number) => *number,
            None => match client.ask(subject) {
                Ok(number) => {
                    numbers.insert(subject.clone(), number);
                    number
                }
                Err(failure) => {
                    self.problem = Some(failure.text.clone());
                    return Err(Enqueue::Blocked(failure));
                }
            },
        };
        let last = self.last.get_or_insert_with(|| Last { topic: String::new(), event_type: Vec::new(), number });
        record.topic.clone_into(&mut last.topic);
        event_type.unwrap_or_default().clone_into(&mut last.event_type);
        last.number = number;
        self.problem = None;
        Ok(number)
    }
}

fn event_type<'a>(record: &Record<'a>) -> Option<&'a [u8]> {
    record.headers.iter().find(|header| header.name == TYPE).and_then(|header| header.value)
}

impl<S: Sink> Sink for Framed<S> {
    hand_on!(self => self.sink; poll, resolve, in_flight, on_idle, restart, close, park, unpark, alone_from, hold_until, times_are_rows, blocked, tried_alone, reach, is_reachable, producers, transaction_timeout, prepare, init_transactions, commit, abandon);

    fn try_enqueue(&mut self, record: &Record<'_>, tag: Tag) -> Enqueue {
        let Some(value) = record.value.filter(|_| record.topic != self.dead_letter_topic) else {
            return self.sink.try_enqueue(record, tag);
        };
        let number = match self.number(record) {
            Ok(number) => number,
            Err(outcome) => return outcome,
        };
        self.value.clear();
        self.value.push(0);
        self.value.extend(number.to_be_bytes());
        self.value.extend(value);
        self.sink.try_enqueue(&Record { value: Some(&self.value), content: Content::Bytes, ..*record }, tag)
    }

    fn problem(&self) -> Option<String> {
        self.sink.problem().or_else(|| self.problem.clone())
    }
}
