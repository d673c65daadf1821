//! How old a row is.
//!
//! In: a table's columns, and what the server tracks. Out: a condition in SQL. Pure.

use crate::commands::AGE_COLUMNS;
use crate::commands::error::CommandError;
use crate::outbox::TableName;
use crate::pg::identifier;
use crate::pg::shape::{Shape, ShapeColumn};
use crate::remedy::{Command, Remedy};
use std::time::Duration;

/// `pg_type.oid` of what can contain a time.
const DATE: u32 = 1082;
const TIMESTAMP: u32 = 1114;
const TIMESTAMPTZ: u32 = 1184;
const BIGINT: u32 = 20;

/// The source of a row's age.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::commands) enum Age {
    /// A column: its name, and how it reads as a time.
    Column(String, u32),
    /// When the transaction that left the row there was committed (`track_commit_timestamp`).
    Commit,
}

impl Age {
    /// By the flag, else by name, else by what the server tracks.
    pub(in crate::commands) fn find(
        flag: Option<&str>,
        table: &TableName,
        shape: &Shape,
        tracks_commits: bool,
    ) -> Result<Self, CommandError> {
        let named = |name: &str| shape.columns.iter().find(|column| column.name == name);
        if let Some(name) = flag {
            let column = named(name).filter(|column| holds_time(column));
            let why =
                format!("--age-column {name} names no time: timestamptz, timestamp, date, or bigint milliseconds");
            return column.map(Self::of).ok_or_else(|| no_age(table, &why));
        }
        let found = AGE_COLUMNS.iter().filter_map(|name| named(name)).find(|column| holds_time(column));
        match found {
            Some(column) => Ok(Self::of(column)),
            None if tracks_commits => Ok(Self::Commit),
            None => Err(no_age(
                table,
                &format!("{table} has none of {}, and the server does not track commits", AGE_COLUMNS.join(", ")),
            )),
        }
    }

    fn of(column: &ShapeColumn) -> Self {
        Self::Column(column.name.clone(), column.type_id)
    }

    /// For people.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Column(name, _) => name.clone(),
            Self::Commit => "the commit's time".to_owned(),
        }
    }

    /// As SQL, whether a row is older.
    pub(super) fn older_than(&self, age: Duration) -> String {
        self.before(&format!("pg_catalog.now() - interval '{} ms'", age.as_millis()))
    }

    /// As SQL, whether a row is from `limit`, a timestamptz in SQL, or later. A row without a time in the column counts as such.
    pub(in crate::commands) fn since(&self, limit: &str) -> String {
        let later = format!("NOT ({})", self.before(limit));
        match self {
            Self::Column(name, _) => format!("({later} OR {} IS NULL)", identifier(name)),
            Self::Commit => later,
        }
    }

    /// As SQL, a row's time in microseconds since 1970. Without a time: null or 0.
    pub(in crate::commands) fn micros(&self) -> String {
        let of_time = |time: &str| {
            format!(
                "CASE WHEN pg_catalog.isfinite({time}) THEN (extract(epoch FROM {time}) * 1000000)::bigint ELSE 0 END"
            )
        };
        match self {
            // Else a value that is no time would be out of range.
            Self::Column(name, BIGINT) => format!("LEAST(GREATEST({}, 0), 4000000000000) * 1000", identifier(name)),
            Self::Column(name, _) => of_time(&identifier(name)),
            Self::Commit => of_time("pg_catalog.pg_xact_commit_timestamp(xmin)"),
        }
    }

    /// As SQL, whether a row is from before `limit`, a timestamptz in SQL.
    pub(super) fn before(&self, limit: &str) -> String {
        match self {
            Self::Column(name, BIGINT) => {
                format!("{} < (extract(epoch FROM {limit}) * 1000)::bigint", identifier(name))
            }
            Self::Column(name, TIMESTAMP) => format!("{} < ({limit}) AT TIME ZONE 'UTC'", identifier(name)),
            Self::Column(name, _) => format!("{} < {limit}", identifier(name)),
            Self::Commit => format!("pg_catalog.pg_xact_commit_timestamp(xmin) < {limit}"),
        }
    }
}

const fn holds_time(column: &ShapeColumn) -> bool {
    matches!(column.type_id, DATE | TIMESTAMP | TIMESTAMPTZ | BIGINT)
}

fn no_age(table: &TableName, why: &str) -> CommandError {
    let prune = Command::new("prune").set("--table", table.as_typed()).set("--age-column", "COLUMN");
    let example = Remedy::from(prune)
        .and(", or: ALTER SYSTEM SET track_commit_timestamp = on; (a restart, for rows from then on)");
    CommandError::flag_needed("--age-column", why, example)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(columns: &[(&str, u32)]) -> Shape {
        let column = |(name, type_id): &(&str, u32)| ShapeColumn {
            name: (*name).to_owned(),
            type_id: *type_id,
            type_modifier: -1,
            generated: false,
        };
        Shape { columns: columns.iter().map(column).collect(), ..Shape::default() }
    }

    fn find(flag: Option<&str>, columns: &[(&str, u32)], tracks: bool) -> Result<Age, CommandError> {
        Age::find(flag, &TableName::parse("outbox").unwrap(), &shape(columns), tracks)
    }

    #[test]
    fn age_is_taken_from_the_flag_then_by_name_then_from_the_commit() {
        let both = [("timestamp", BIGINT), ("created_at", TIMESTAMPTZ), ("at", DATE)];
        assert_eq!(find(None, &both, true).unwrap().name(), "created_at");
        assert_eq!(find(Some("at"), &both, true).unwrap().name(), "at");
        assert_eq!(find(None, &[("created_at", 25)], true).unwrap(), Age::Commit);
        assert_eq!(find(None, &[("id", 20)], false).unwrap_err().kind.exit_code(), 64);
        assert_eq!(find(Some("id2"), &[("id", 20)], true).unwrap_err().kind.exit_code(), 64);
    }

    #[test]
    fn each_type_is_compared_as_the_time_that_it_is() {
        let hour = Duration::from_hours(1);
        let sql = |type_id| Age::Column("at".to_owned(), type_id).older_than(hour);
        assert_eq!(sql(TIMESTAMPTZ), "\"at\" < pg_catalog.now() - interval '3600000 ms'");
        assert!(sql(BIGINT).contains("* 1000)::bigint"));
        assert!(sql(TIMESTAMP).ends_with("AT TIME ZONE 'UTC'"));
        assert!(Age::Commit.older_than(hour).starts_with("pg_catalog.pg_xact_commit_timestamp(xmin) <"));
        let at = Age::Column("at".to_owned(), BIGINT);
        assert_eq!(at.since("now()"), "(NOT (\"at\" < (extract(epoch FROM now()) * 1000)::bigint) OR \"at\" IS NULL)");
        assert_eq!(at.micros(), "LEAST(GREATEST(\"at\", 0), 4000000000000) * 1000");
    }
}
