//! How rows become records, as settings say it.
//!
//! Names of columns are exact; whether a table has them shows when its plan is made.

use super::cloudevents::CloudEvents;
use super::connect::Connect;
use crate::route::{Rule, TopicSetting};

/// How rows become records. The default is what `walrelay run` does without flags.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Mapping {
    /// Column of the event's id; `None`: found by name.
    pub id_column: Option<String>,
    /// Column of the key; `None`: found by name, empty: no key.
    pub key_column: Option<String>,
    /// Column of the value; `None`: found by name.
    pub payload_column: Option<String>,
    /// Column of the event's type; `None`: found by name, empty: none.
    pub type_column: Option<String>,
    /// Column that `{route}` stands for; `None`: found by name.
    pub route_column: Option<String>,
    /// Column with a JSON object of headers; `None`: `headers`, if the table has it; empty: none.
    pub headers_column: Option<String>,
    /// Where a record goes.
    pub topic: TopicSetting,
    /// The rule that results of `topic` have to follow. The default is Kafka's.
    pub addresses: &'static Rule,
    /// Further headers in this order: name, column. Names may repeat.
    pub headers: Vec<(String, String)>,
    /// Headers with the same value in each record, among those.
    pub constants: Vec<Constant>,
    /// The value begins as registries of schemas that speak Confluent's protocol have it; then no envelope and no events, and nothing as
    /// Connect writes it.
    pub schema_id: Option<SchemaId>,
    /// Records are CloudEvents; then no envelope, and nothing as Connect writes it.
    pub cloudevents: Option<CloudEvents>,
    /// Whether each record has a header `content-type`, by the payload's type.
    pub content_type_header: bool,
    /// Members beside `payload` in the value: name, column. Empty: the value is the payload itself. Names are distinct.
    pub envelope: Vec<(String, String)>,
    /// Column of the partition; `None`: by the key.
    pub partition_column: Option<String>,
    /// The record's time.
    pub timestamp: Timestamp,
    /// Whether an empty or blank payload becomes a null value.
    pub tombstone_on_empty_payload: bool,
    /// Whether each record carries its position as a header.
    pub position_header: bool,
    /// The reaction to an update of a row.
    pub on_update: OnUpdate,
    /// Prefixes of logical messages to publish; empty: none.
    pub message_prefixes: Vec<String>,
    /// Texts and bytes as Debezium and Kafka Connect write them; `None`: as Postgres does.
    pub connect: Option<Box<Connect>>,
}

/// Where the number of a value's schema stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SchemaId {
    /// One number for each row: 0 to 2^31 - 1.
    Number(u32),
    /// An integer column.
    Column(String),
    /// A registry, which the destination's side asks: nothing is put in front of the value here.
    Registry,
}

impl SchemaId {
    /// The column's name.
    pub fn column(&self) -> Option<&str> {
        match self {
            Self::Number(_) | Self::Registry => None,
            Self::Column(name) => Some(name),
        }
    }
}

/// A header with a value of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Constant {
    /// How many of [`Mapping::headers`] come before it.
    pub behind: usize,
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
}

/// A record's time.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Timestamp {
    /// The transaction's commit.
    #[default]
    Commit,
    /// The column's value; null: as [`Timestamp::Commit`].
    Column(String),
}

/// The reaction to an update of a row. No update is published.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnUpdate {
    /// Is counted and logged.
    #[default]
    Warn,
    /// Is counted.
    Skip,
    /// Stops the relay.
    Stop,
}
