//! Builds records as Debezium's outbox router and Kafka Connect's converters write them.
//!
//! ```text
//!  Relation + catalog ──types──► a Type per column ──planner──► ConnectPlan, beside the table's TablePlan
//!  text of a column ──Type::read──► ConnectValue ──Encoder──► bytes of key, header, value
//! ```
//!
//! All that depends on a type, a converter or a mode is decided once for each Relation message. If a column's bytes are the text that
//! Postgres sends (`Encoder::AsIs`), it costs no more than without Debezium's form. This folder has no topics, partitions and
//! timestamps, since these do not differ.
//! Specification: Debezium's `EventRouterDelegate`, Kafka Connect's converters.

mod array;
mod default;
mod envelope;
mod expand;
mod number;
mod planner;
mod reader;
mod row;
mod schema;
pub(super) mod settings;
mod special_types;
mod temporal;
mod types;
mod value;

pub use settings::{
    BinaryMode, Connect, Converter, DecimalMode, Expand, HstoreMode, IntervalMode, Json, Modes, Schemas, TimePrecision,
};

use envelope::EnvelopeSchema;
pub(super) use envelope::EnvelopeSchemas;
use reader::TypeReader;

/// The column because of which a table's rows cannot be written as by Debezium, and the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NoPlan {
    pub(super) index: usize,
    pub(super) why: &'static str,
}

/// How the columns of a table become bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ConnectPlan {
    id: Encoder,
    /// `None`: the table has no column for the key.
    key: Option<Encoder>,
    /// The text of a key without a column. `None`: it has no bytes.
    absent_key: Option<String>,
    /// One encoder for each of the plan's `extra_headers`.
    headers: Vec<Encoder>,
    value: ValuePlan,
    /// How a text payload is expanded. `None`: it stays a text.
    expand: Option<Expand>,
    /// Whether an empty text becomes a tombstone. For Debezium, Java's byte buffers are never empty.
    blank_counts: bool,
    /// The value that replaces a null payload, in Postgres' text form.
    payload_default: Option<String>,
    /// The reader of the payload. `None`: the payload is what Postgres sends.
    payload_reader: Option<TypeReader>,
    /// Whether Debezium turns the payload into a text.
    payload_is_text: bool,
}

/// How a value is built.
#[derive(Debug, Clone, PartialEq, Eq)]
enum ValuePlan {
    /// The value is the payload.
    Payload(Encoder),
    /// The value is `{"payload":…,"name":…}`.
    Json { members: Vec<(String, Encoder)>, schema: EnvelopeSchema },
    /// The value is `Struct{payload=…,name=…}`.
    Java { members: Vec<(String, Encoder)> },
}

/// How a column becomes bytes. `null`: the text of a null. `None`: a null has no bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Encoder {
    /// The text that Postgres sends. For a bytea, its bytes.
    AsIs { null: Option<String> },
    Write {
        reader: TypeReader,
        form: ValueForm,
        null: Option<String>,
        /// Whether a value that Debezium cannot convert ends its task. Else it becomes null.
        must_convert: bool,
    },
}

/// The forms in which a value is written.
#[derive(Debug, Clone, PartialEq, Eq)]
enum ValueForm {
    Java,
    Simple,
    Json(Json),
    /// JSON, with `{"schema":…,"payload":` before it and `}` after it.
    JsonWithSchema {
        json: Json,
        before: String,
    },
}
