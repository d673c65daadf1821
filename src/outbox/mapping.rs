//! [`Mapping`]: the settings by which rows become records.
//!
//! Names of columns are in the catalog's case. Whether a table has the columns shows only when its plan is created.

use super::connect::settings::Connect;
use crate::route::{AddressRule, TopicSetting};
use crate::sink::destination::EventBinding;

/// The settings by which rows become records. The defaults are those of `walrelay run`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Mapping {
    /// The column of the event's id. `None`: found by its name.
    pub id_column: Option<String>,
    /// The column of the key. `None`: found by its name. Empty: no key.
    pub key_column: Option<String>,
    /// The column of the value. `None`: found by its name.
    pub payload_column: Option<String>,
    /// The column of the event's type. `None`: found by its name. Empty: no type.
    pub type_column: Option<String>,
    /// The column for `{route}`. `None`: found by its name.
    pub route_column: Option<String>,
    /// The column with a JSON object of headers. `None`: `headers`, if the table has it. Empty: none.
    pub headers_column: Option<String>,
    /// The setting that gives the topic.
    pub topic: TopicSetting,
    /// The rule that topics have to follow. The default is Kafka's.
    pub addresses: &'static AddressRule,
    /// Headers from columns, in order: name and column. Names may repeat.
    pub headers: Vec<(String, String)>,
    /// Headers with the same value in each record. Each has its index among `headers`.
    pub constants: Vec<Constant>,
    /// Where the schema's number at the beginning of each value comes from, in the form of Confluent's registry. If set, there is no
    /// envelope, no CloudEvents and no `connect`.
    pub schema_id: Option<SchemaId>,
    /// How records become CloudEvents. If set, there is no envelope and no `connect`.
    pub cloudevents: Option<CloudEvents>,
    /// Whether each record has a header `content-type`, by the type of its payload.
    pub content_type_header: bool,
    /// Members of the value beside `payload`: name and column. Empty: the value is the payload itself. Names are distinct.
    pub envelope: Vec<(String, String)>,
    /// The column of the partition. `None`: the key decides.
    pub partition_column: Option<String>,
    /// Where the record's time comes from.
    pub timestamp: Timestamp,
    /// Whether an empty or blank payload becomes a null value.
    pub tombstone_on_empty_payload: bool,
    /// Whether each record has its row's position as a header.
    pub position_header: bool,
    /// The reaction to an update of a row.
    pub on_update: OnUpdate,
    /// The prefixes of the logical messages to publish. Empty: none.
    pub message_prefixes: Vec<String>,
    /// The settings for records in the form of Debezium and Kafka Connect. `None`: the form of Postgres.
    pub connect: Option<Box<Connect>>,
}

/// The source of the number of a value's schema.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SchemaId {
    /// A number that is the same for each row: 0 to 2^31 - 1.
    Number(u32),
    /// An integer column.
    Column(String),
    /// A registry. The sink asks it and adds the number, so the value has none here.
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

/// A header with a constant value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Constant {
    /// The number of [`Mapping::headers`] that come before it.
    pub behind: usize,
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
}

/// The source of a record's time.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Timestamp {
    /// When the relay hands the record over. What is read from the slot again has another time.
    #[default]
    Send,
    /// The transaction's commit.
    Commit,
    /// The column's value. If it is null, as for [`Timestamp::Commit`].
    Column(String),
}

/// The reaction to an update of a row. No update is published.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnUpdate {
    /// The update is counted and logged.
    #[default]
    Warn,
    /// The update is counted.
    Skip,
    /// The update stops the relay.
    Stop,
}

/// How rows become CloudEvents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CloudEvents {
    pub(super) mode: EventMode,
    pub(super) source: String,
}

/// Where the attributes go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum EventMode {
    Binary {
        /// The headers of the version, the id, the source, the type, the time and the subject.
        names: [String; 6],
        /// Whether their values are percent-encoded.
        percent: bool,
    },
    Structured,
}

impl CloudEvents {
    /// The attributes become headers, as the destination's binding names them.
    pub fn binary(source: String, binding: EventBinding) -> Self {
        let names = ["specversion", "id", "source", "type", "time", "subject"];
        let names = names.map(|attribute| format!("{}{attribute}", binding.prefix));
        Self { mode: EventMode::Binary { names, percent: binding.percent_encoded }, source }
    }

    /// An event becomes one JSON object.
    pub fn structured(source: String) -> Self {
        Self { mode: EventMode::Structured, source }
    }
}
