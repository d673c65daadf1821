//! What a row's columns mean, as the user set it: the flags that shape a record.
//!
//! In: flags, environment, file, validated elsewhere. Out: plain values that [`outbox`](crate::outbox) and
//! [`route`](crate::route) read once per table. Nothing here looks at a table.

/// Which column plays which role, and what a record is made of. `None` for a column: found by name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Mapping {
    /// `--id-column`.
    pub id_column: Option<String>,
    /// `--key-column`; empty: no key.
    pub key_column: Option<String>,
    /// `--payload-column`.
    pub payload_column: Option<String>,
    /// `--type-column`; empty: none.
    pub type_column: Option<String>,
    /// `--route-column`.
    pub route_column: Option<String>,
    /// `--headers-column`; empty: none.
    pub headers_column: Option<String>,
    /// `--topic`, or `--topic-regex` with `--topic-replacement`.
    pub topic: Topic,
    /// `--header NAME=COLUMN`, in the order given.
    pub headers: Vec<(String, String)>,
    /// `--envelope NAME=COLUMN`, in the order given; empty: the value is the bare payload.
    pub envelope: Vec<(String, String)>,
    /// `--partition-column`.
    pub partition_column: Option<String>,
    /// `--timestamp`.
    pub timestamp: Timestamp,
    /// `--tombstone-on-empty-payload`.
    pub tombstone_on_empty_payload: bool,
    /// `--position-header`.
    pub position_header: bool,
    /// `--on-update`.
    pub on_update: OnUpdate,
    /// `--message-prefix`, each.
    pub message_prefixes: Vec<String>,
}

/// Where a record's topic comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Topic {
    /// A text with `{name}` in it.
    Template(String),
    /// The routed-by value with a whole match replaced.
    Regex {
        /// Java's syntax.
        regex: String,
        /// Java's syntax: `$1`, `${name}`, `\$`.
        replacement: String,
    },
}

impl Default for Topic {
    fn default() -> Self {
        Self::Template("outbox.event.{route}".to_owned())
    }
}

/// Where a record's timestamp comes from.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Timestamp {
    /// When the transaction was committed.
    #[default]
    Commit,
    /// The column of this name; null: as [`Timestamp::Commit`].
    Column(String),
}

/// What an update of an outbox row does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnUpdate {
    /// Counted, logged, passed over.
    #[default]
    Warn,
    /// Counted and passed over.
    Skip,
    /// The run ends.
    Stop,
}
