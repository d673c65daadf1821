//! A finding of `walrelay check`: the subject, the observation and the fix.
//!
//! Made by whoever knows the thing: the checks of Postgres and of tables, and each destination's own.

use crate::remedy::{Remedy, TypedFlags};
use serde::{Serialize, Serializer};
use std::fmt;

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
    /// Its fix.
    pub fix: Option<Fix>,
}

/// The fix of a finding. There is no other kind: SQL or a command that could lose rows, or of which that is not known, is not printed.
/// `tests/golden/fixes.txt` lists each fix with its kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fix {
    /// It grants, creates or adds, and takes nothing away.
    Safe(Remedy),
    /// It is computed from what `check` has looked at, and loses no row of what is there. The commands of this program are of this kind, since each
    /// looks by itself before it changes anything.
    Bounded(Remedy),
    /// It says what to do, and has nothing to paste but commands of this program.
    Words(Remedy),
}

impl Fix {
    /// One that grants, creates or adds.
    pub fn safe(fix: impl Into<Remedy>) -> Self {
        Self::Safe(fix.into())
    }

    /// One that is computed from what was looked at.
    pub fn bounded(fix: impl Into<Remedy>) -> Self {
        Self::Bounded(fix.into())
    }

    /// One that is said in words.
    pub fn words(fix: impl Into<Remedy>) -> Self {
        Self::Words(fix.into())
    }

    /// The fix whose commands also have the flags that the user typed.
    #[must_use]
    pub fn with(self, typed: &TypedFlags) -> Self {
        match self {
            Self::Safe(fix) => Self::Safe(fix.with(typed)),
            Self::Bounded(fix) => Self::Bounded(fix.with(typed)),
            Self::Words(fix) => Self::Words(fix.with(typed)),
        }
    }
}

impl fmt::Display for Fix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Safe(fix) | Self::Bounded(fix) | Self::Words(fix)) = self;
        fix.fmt(f)
    }
}

impl Serialize for Fix {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
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

    /// Adds a fix that grants, creates or adds.
    #[must_use]
    pub fn safe(self, fix: impl Into<Remedy>) -> Self {
        self.with_fix(Fix::safe(fix))
    }

    /// Adds a fix that is computed from what was looked at.
    #[must_use]
    pub fn bounded(self, fix: impl Into<Remedy>) -> Self {
        self.with_fix(Fix::bounded(fix))
    }

    /// Adds a fix that is said in words.
    #[must_use]
    pub fn words(self, fix: impl Into<Remedy>) -> Self {
        self.with_fix(Fix::words(fix))
    }

    /// Adds what fixes it.
    #[must_use]
    pub fn with_fix(self, fix: Fix) -> Self {
        Self { fix: Some(fix), ..self }
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
