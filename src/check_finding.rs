//! A finding of `walrelay check`: the subject, the observation and the fix.
//!
//! Made by whoever knows the thing: the checks of Postgres and of tables, and each destination's own.

use crate::remedy::Remedy;
use serde::{Serialize, Serializer};

/// The hint of log lines whose cause only a look at both Postgres and the destination can tell.
pub const CHECK: &str = "walrelay check, with the same flags, says what fixes it";

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Everything is as it should be. The rest of the finding is advice.
    Ok,
    /// `run` works, and something fails later.
    Warn,
    /// `run` would not work, or not for all rows.
    Fail,
}

/// The subject of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The server, the publication, the slot.
    Postgres,
    /// An outbox table.
    Table,
    /// Where records go, by its kind's name: `kafka`.
    Destination(&'static str),
}

impl Side {
    /// It is as it should be.
    pub fn ok(self, check: &'static str, finding: impl Into<String>) -> Finding {
        Finding::new(self, check, Level::Ok, finding)
    }

    /// `run` works, and something fails later.
    pub fn warn(self, check: &'static str, finding: impl Into<String>) -> Finding {
        Finding::new(self, check, Level::Warn, finding)
    }

    /// `run` would not work.
    pub fn fail(self, check: &'static str, finding: impl Into<String>) -> Finding {
        Finding::new(self, check, Level::Fail, finding)
    }
}

impl Serialize for Side {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(match self {
            Self::Postgres => "postgres",
            Self::Table => "table",
            Self::Destination(name) => name,
        })
    }
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The subject.
    pub side: Side,
    /// The table, as `schema.table`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub table: Option<String>,
    /// A stable name.
    pub check: &'static str,
    /// How bad it is.
    pub level: Level,
    /// The observation, for people.
    pub finding: String,
    /// Why it matters.
    pub why: Option<String>,
    /// The SQL or the command that fixes it.
    pub fix: Option<Remedy>,
}

impl Finding {
    fn new(side: Side, check: &'static str, level: Level, finding: impl Into<String>) -> Self {
        Self { side, table: None, check, level, finding: finding.into(), why: None, fix: None }
    }

    /// Why it matters.
    #[must_use]
    pub fn why(self, why: impl Into<String>) -> Self {
        Self { why: Some(why.into()), ..self }
    }

    /// Adds the SQL or the command that fixes it.
    #[must_use]
    pub fn with_fix(self, fix: impl Into<Remedy>) -> Self {
        Self { fix: Some(fix.into()), ..self }
    }

    /// Sets the level to `ok` if `good`, and removes the reason and the fix.
    #[must_use]
    pub fn ok_if(self, good: bool) -> Self {
        if good { Self { level: Level::Ok, why: None, fix: None, ..self } } else { self }
    }

    /// Names the finding's table.
    #[must_use]
    pub fn of(self, table: &str) -> Self {
        Self { table: Some(table.to_owned()), ..self }
    }
}
