//! The reasons for which a row gives no record.
//!
//! There are two families. If the connection is at fault, the relay reconnects or stops: all variants of [`RowError`] but the last. If
//! the row's values are at fault ([`BadRow`]), `--on-bad-row` decides.

use crate::pgoutput::RelationId;
use crate::route::TopicFault;
use crate::wire::DecodeError;

/// A row that gives no record.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RowError {
    /// The server's bytes are not as the manual describes them.
    #[error("a row could not be decoded")]
    Undecodable(#[from] DecodeError),
    /// The row's table was not announced by a Relation message on this connection.
    #[error("a row of relation {0} came before its Relation message")]
    UnknownRelation(RelationId),
    /// The row's table did not exist, or was no partition, when the relay last read the publication. The relay has to read it again, to
    /// know whether `--table` covers the table.
    #[error("table {0} is new")]
    NewTable(String),
    /// The row has another number of columns than its table.
    #[error("a row of table {table} has {row} columns, its Relation message has {relation}")]
    ColumnCount {
        /// `schema.table`.
        table: String,
        /// The number that the Relation message announced.
        relation: usize,
        /// The number that the row has.
        row: usize,
    },
    /// A value came in an unknown binary form, so the connection must ask for text.
    /// [`TablePlan::binary_safe`](super::TablePlan::binary_safe) found the form of each column known, so the column's type has changed
    /// since.
    #[error(
        "column \"{column}\" of table {table} came in the binary form of the type with oid {type_id}: text is needed"
    )]
    BinaryForm {
        /// `schema.table`.
        table: String,
        /// The column.
        column: String,
        /// `pg_type.oid`.
        type_id: u32,
    },
    /// The row's values are at fault.
    #[error(transparent)]
    Bad(#[from] Box<BadRow>),
}

/// A row that cannot be published.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("row {} of {table} cannot be published: {reason}", id.as_deref().unwrap_or("without id"))]
pub struct BadRow {
    /// `schema.table`, or `message "prefix"`.
    pub table: String,
    /// The id's text, shortened. `None` if it is null or missing.
    pub id: Option<String>,
    /// The reason.
    pub reason: BadReason,
}

/// The texts for all bad rows with the same problem: in metrics, in hints and in the manual.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadKind {
    /// The label in metrics.
    pub label: &'static str,
    /// The meaning of the label, for people.
    pub meaning: &'static str,
    /// The change after which such rows can be published.
    pub fix: &'static str,
}

/// The reason for which a row cannot be published. Values are shortened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadReason {
    /// A column that the topic needs is null.
    #[error("column \"{column}\" is null, and the topic is made of it")]
    NullRoute {
        /// The column.
        column: String,
    },
    /// The value of `--topic` gives an invalid topic name.
    #[error("\"{topic}\" is not a topic name: {fault}")]
    InvalidTopic {
        /// The name.
        topic: String,
        /// The fault of that name.
        fault: TopicFault,
    },
    /// The value of the headers column is not a JSON object.
    #[error("column \"{column}\" is not a JSON object: {value}")]
    HeadersNotObject {
        /// The column.
        column: String,
        /// The column's value.
        value: String,
    },
    /// The value of the partition column is not a number from 0 to 2^31 - 1.
    #[error("column \"{column}\" is not a partition number: {value}")]
    InvalidPartition {
        /// The column.
        column: String,
        /// The column's value.
        value: String,
    },
    /// The value of the column with the schema's number is not a number from 0 to 2^31 - 1.
    #[error("column \"{column}\" is not a schema id: {value}")]
    InvalidSchemaId {
        /// The column.
        column: String,
        /// The column's value.
        value: String,
    },
    /// The value of the timestamp column is not a time after the first millisecond of 1970.
    #[error("column \"{column}\" is not a time after 1970-01-01 00:00: {value}")]
    InvalidTimestamp {
        /// The column.
        column: String,
        /// The column's value.
        value: String,
    },
    /// Debezium has no form for the value, or walrelay does not know it.
    #[error("column \"{column}\" cannot be written as Debezium would: {value}")]
    Unwritable {
        /// The column.
        column: String,
        /// The column's value.
        value: String,
    },
    /// The content of a logical message is not a JSON object.
    #[error("the content is not a JSON object: {value}")]
    NotJson {
        /// The content.
        value: String,
    },
    /// The id is null, or a logical message has none.
    #[error("it has no id: \"{column}\" is null or missing")]
    MissingId {
        /// The column, or the names tried.
        column: String,
    },
    /// A CloudEvent needs a type, and the row has none.
    #[error("it has no type, which a CloudEvent needs: \"{column}\" is null or empty")]
    MissingType {
        /// The column.
        column: String,
    },
    /// A logical message has no payload.
    #[error("it has no payload: \"{column}\" is missing")]
    MissingPayload {
        /// The names tried.
        column: String,
    },
    /// The row's table was in the publication when the row was committed. Now it is not, or it has lost its parent since, and `--table` does
    /// not name it. It may have been a partition of a table that `--table` names.
    #[error("its table left the publication or its parent table, and --table does not name it")]
    GoneTable,
    /// The row was updated, and `--on-update` is `stop`.
    #[error("it was updated, and --on-update is stop")]
    Updated,
    /// The destination will never take the record.
    #[error("{text}")]
    Refused {
        /// The destination's label for it.
        label: &'static str,
        /// The destination's text.
        text: String,
    },
    /// `--bad-row-at` names the row, in which nothing else is wrong.
    #[error("--bad-row-at names it")]
    Named,
    /// The row is larger than `--max-row`.
    #[error("its message of {bytes} bytes is larger than the {limit} that --max-row allows")]
    TooLarge {
        /// Bytes of the message.
        bytes: usize,
        /// `--max-row`, in bytes.
        limit: usize,
    },
    /// The text is not UTF-8. A database with the encoding `SQL_ASCII` may have such texts.
    #[error("column \"{column}\" is not UTF-8: {value}")]
    NotUtf8 {
        /// The column.
        column: String,
        /// The column's value.
        value: String,
    },
}

impl BadReason {
    const NULL_ROUTE: BadKind = BadKind {
        label: "null_route",
        meaning: "a column that the topic is made of is null",
        fix: "a --topic or --route-column that does not need the column",
    };
    const INVALID_TOPIC: BadKind = BadKind {
        label: "invalid_topic",
        meaning: "what --topic makes of the row is not a topic name at the destination",
        fix: "a filter such as {route|kebab}, another --topic, or --topic-regex",
    };
    const HEADERS_NOT_OBJECT: BadKind = BadKind {
        label: "headers_not_object",
        meaning: "the headers column is not a JSON object",
        fix: "another --headers-column, or none: --headers-column ''",
    };
    const INVALID_PARTITION: BadKind = BadKind {
        label: "invalid_partition",
        meaning: "the partition column is not a number from 0 to 2147483647",
        fix: "another --partition-column, or none: --partition-column ''",
    };
    const INVALID_SCHEMA_ID: BadKind = BadKind {
        label: "invalid_schema_id",
        meaning: "the column of the schema's id is not a number from 0 to 2147483647",
        fix: "another --schema-id",
    };
    const INVALID_TIMESTAMP: BadKind = BadKind {
        label: "invalid_timestamp",
        meaning: "the timestamp column is not a time after 1970-01-01 00:00",
        fix: "another --timestamp",
    };
    const UNWRITABLE: BadKind = BadKind {
        label: "unwritable",
        meaning: "with --from-debezium: a value that has no form there",
        fix: "another handling mode for that column",
    };
    const NOT_JSON: BadKind = BadKind {
        label: "not_json",
        meaning: "the content of a logical message is not a JSON object",
        fix: "a JSON object as its content, or leave out --message-prefix",
    };
    const MISSING_ID: BadKind = BadKind {
        label: "missing_id",
        meaning: "the id is null, or a logical message has none",
        fix: "another --id-column; for a message, an id in its content",
    };
    const MISSING_TYPE: BadKind = BadKind {
        label: "missing_type",
        meaning: "the row has no type, and its CloudEvent needs one",
        fix: "another --type-column, or leave out --cloudevents",
    };
    const MISSING_PAYLOAD: BadKind = BadKind {
        label: "missing_payload",
        meaning: "a logical message has no payload",
        fix: "a payload in its content, or leave out --message-prefix",
    };
    const GONE_TABLE: BadKind = BadKind {
        label: "gone_table",
        meaning: "its table left the publication or its parent table, and --table does not name it",
        fix: "name it with --table as well until its rows are published",
    };
    const UPDATED: BadKind = BadKind {
        label: "updated",
        meaning: "the row was updated, and --on-update is stop",
        fix: "another --on-update: warn or skip",
    };
    const NAMED: BadKind = BadKind {
        label: "named",
        meaning: "--bad-row-at names the row, in which nothing else is wrong",
        fix: "leave out its --bad-row-at",
    };
    const ABOVE_MAX_ROW: BadKind = BadKind {
        label: "above_max_row",
        meaning: "its change message is larger than --max-row",
        fix: "a larger --max-row",
    };
    const NOT_UTF8: BadKind = BadKind {
        label: "not_utf8",
        meaning: "in a database with encoding SQL_ASCII: a text that must be UTF-8 is not",
        fix: "another --key-column, --topic or other setting that names the column",
    };

    /// All kinds, except for those of [`Self::Refused`]: their labels are the destination's.
    pub const KINDS: [BadKind; 16] = [
        Self::NULL_ROUTE,
        Self::INVALID_TOPIC,
        Self::HEADERS_NOT_OBJECT,
        Self::INVALID_PARTITION,
        Self::INVALID_SCHEMA_ID,
        Self::INVALID_TIMESTAMP,
        Self::UNWRITABLE,
        Self::NOT_JSON,
        Self::MISSING_ID,
        Self::MISSING_TYPE,
        Self::MISSING_PAYLOAD,
        Self::GONE_TABLE,
        Self::UPDATED,
        Self::NAMED,
        Self::ABOVE_MAX_ROW,
        Self::NOT_UTF8,
    ];

    /// The name that the topic setting gave, if that name is the fault.
    pub fn topic(&self) -> Option<&str> {
        if let Self::InvalidTopic { topic, .. } = self { Some(topic) } else { None }
    }

    /// Returns the kind: the texts that all rows with the same problem share.
    pub const fn kind(&self) -> BadKind {
        match self {
            Self::NullRoute { .. } => Self::NULL_ROUTE,
            Self::InvalidTopic { .. } => Self::INVALID_TOPIC,
            Self::HeadersNotObject { .. } => Self::HEADERS_NOT_OBJECT,
            Self::InvalidPartition { .. } => Self::INVALID_PARTITION,
            Self::InvalidSchemaId { .. } => Self::INVALID_SCHEMA_ID,
            Self::InvalidTimestamp { .. } => Self::INVALID_TIMESTAMP,
            Self::Unwritable { .. } => Self::UNWRITABLE,
            Self::NotJson { .. } => Self::NOT_JSON,
            Self::MissingId { .. } => Self::MISSING_ID,
            Self::MissingType { .. } => Self::MISSING_TYPE,
            Self::MissingPayload { .. } => Self::MISSING_PAYLOAD,
            Self::GoneTable => Self::GONE_TABLE,
            Self::Updated => Self::UPDATED,
            Self::Named => Self::NAMED,
            Self::TooLarge { .. } => Self::ABOVE_MAX_ROW,
            Self::NotUtf8 { .. } => Self::NOT_UTF8,
            Self::Refused { label, .. } => BadKind {
                label,
                meaning: "the destination will never take the record",
                fix: "the topic's limit or another setting, as the error says",
            },
        }
    }

    /// The label in metrics.
    pub const fn label(&self) -> &'static str {
        self.kind().label
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use BadReason as Reason;

    /// Returns the reason after `reason`, so that tests visit each once. The match does not compile before a new reason has its
    /// place here.
    fn next(reason: &Reason) -> Option<Reason> {
        let (column, value) = (String::new(), String::new());
        Some(match reason {
            Reason::NullRoute { .. } => Reason::InvalidTopic { topic: value, fault: TopicFault::Empty },
            Reason::InvalidTopic { .. } => Reason::HeadersNotObject { column, value },
            Reason::HeadersNotObject { .. } => Reason::InvalidPartition { column, value },
            Reason::InvalidPartition { .. } => Reason::InvalidSchemaId { column, value },
            Reason::InvalidSchemaId { .. } => Reason::InvalidTimestamp { column, value },
            Reason::InvalidTimestamp { .. } => Reason::Unwritable { column, value },
            Reason::Unwritable { .. } => Reason::NotJson { value },
            Reason::NotJson { .. } => Reason::MissingId { column },
            Reason::MissingId { .. } => Reason::MissingType { column },
            Reason::MissingType { .. } => Reason::MissingPayload { column },
            Reason::MissingPayload { .. } => Reason::GoneTable,
            Reason::GoneTable => Reason::Updated,
            Reason::Updated => Reason::Named,
            Reason::Named => Reason::TooLarge { bytes: 2, limit: 1 },
            Reason::TooLarge { .. } => Reason::NotUtf8 { column, value },
            Reason::NotUtf8 { .. } => Reason::Refused { label: "too_large", text: value },
            Reason::Refused { .. } => return None,
        })
    }

    #[test]
    fn every_kind_of_our_own_is_listed() {
        let first = Reason::NullRoute { column: String::new() };
        let all: Vec<Reason> = std::iter::successors(Some(first), next).collect();
        let ours = all.iter().filter(|reason| !matches!(reason, Reason::Refused { .. }));
        let kinds: Vec<BadKind> = ours.map(Reason::kind).collect();
        assert_eq!(kinds, Reason::KINDS);
    }
}
