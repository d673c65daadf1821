//! The reasons for which a table cannot be read as an outbox, and the command or SQL that fixes each.
//!
//! In: all that a table lacks. Out: one error, and a hint whose commands can be run as they are. Pure.

use super::Role;
use crate::remedy::{Command, Remedy};
use std::fmt;

/// A table that cannot be read as an outbox. An operator must act: see [`PlanError::hint`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// Columns are missing. The error lists all of them.
    #[error("{}table {table} has no column {}; it has {}", because(cause.as_ref()), joined(lacks), listed(present))]
    Lacks {
        /// `schema.table`.
        table: String,
        /// The roles and columns that are missing; at least one.
        lacks: Vec<MissingColumn>,
        /// The columns that the table has.
        present: Vec<String>,
        /// The reason why the columns do not arrive, if the table itself has them.
        cause: Option<HiddenColumns>,
    },
    /// Debezium has no form for a column's type.
    #[error("column \"{column}\" of table {table} is {why}")]
    NotAsDebezium {
        /// `schema.table`.
        table: String,
        /// The column.
        column: String,
        /// The problem of the column's type, and the fix.
        why: &'static str,
    },
    /// Tables have different columns for the envelope. Debezium would write those of the table of the first row.
    #[error("envelopes of tables differ: {one}, {other}; Debezium writes that of the first row's table in all of them")]
    EnvelopesDiffer {
        /// A table and the members that its envelope has.
        one: String,
        /// Another table and its members.
        other: String,
    },
    /// The type of a column does not fit its setting.
    #[error("column \"{column}\" of table {table}, which {flag} names, is {type_name}: {wanted} is wanted")]
    WrongType {
        /// `schema.table`.
        table: String,
        /// The setting.
        flag: &'static str,
        /// The column that it names.
        column: String,
        /// Its type.
        type_name: String,
        /// The type that it should have.
        wanted: &'static str,
    },
}

/// Why columns that the table has do not arrive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HiddenColumns {
    /// The publication's column list hides them.
    ColumnList {
        /// SQL that lists all columns.
        widen: String,
        /// The slot, which has rows under the old list.
        slot: String,
    },
    /// The row was committed when its table was published with other columns. Postgres decodes it by the catalog at that LSN.
    Past {
        /// The slot.
        slot: String,
        /// Whether a column has been renamed or dropped since.
        renamed: bool,
    },
}

/// A column that a table lacks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MissingColumn {
    /// No column has a role that is needed.
    Role {
        /// The role.
        role: Role,
        /// The names tried.
        tried: Vec<String>,
        /// The column that is probably meant, if there is one.
        likely: Option<String>,
        /// For the route: a topic that needs no route.
        topic: Option<String>,
    },
    /// A setting names a column that the table does not have.
    Named {
        /// The setting.
        flag: &'static str,
        /// The column that it names.
        column: String,
        /// The column with the nearest name, if one is near.
        meant: Option<String>,
        /// How the setting names it.
        setting: ColumnSetting,
    },
}

/// How a setting's value names a column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ColumnSetting {
    /// The value is the column's name.
    Name,
    /// The value is the topic's template, which has the name in braces.
    Template(String),
    /// The value is `NAME=` with the column. The setting is a list, and a flag replaces the whole list of the file or of the environment.
    List {
        /// The `NAME` before the column.
        name: String,
        /// All values of the list, in order.
        list: Vec<String>,
    },
}

/// The placeholder of a column that only the user can name.
const OPEN: &str = "COLUMN";

impl fmt::Display for MissingColumn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Role { role, tried, .. } => write!(f, "for the {role}: tried {}", tried.join(", ")),
            Self::Named { flag, column, .. } => write!(f, "\"{column}\", which {flag} names"),
        }
    }
}

impl MissingColumn {
    /// Whether nobody but the user knows which column is meant.
    fn is_open(&self) -> bool {
        match self {
            Self::Role { likely, topic, .. } => likely.is_none() && topic.is_none(),
            Self::Named { meant, .. } => meant.is_none(),
        }
    }

    /// Adds the flag that fixes the problem, with its value.
    fn add_to(&self, flags: &mut Flags) {
        match self {
            Self::Role { likely: None, topic: Some(topic), .. } => flags.set("--topic", topic.clone()),
            Self::Role { role, likely, .. } => flags.set(role.flag(), likely.as_deref().unwrap_or(OPEN).to_owned()),
            Self::Named { flag, column, meant, setting } => {
                let meant = meant.as_deref().unwrap_or(OPEN);
                match setting {
                    ColumnSetting::Name => flags.set(flag, meant.to_owned()),
                    ColumnSetting::Template(template) => {
                        let template = flags.value(flag).unwrap_or(template);
                        flags.set(flag, template_with(template, column, meant));
                    }
                    ColumnSetting::List { name, list } => {
                        flags.list(flag, list);
                        flags.replace(flag, &format!("{name}={column}"), &format!("{name}={meant}"));
                    }
                }
            }
        }
    }
}

/// The topic's template with `meant` instead of the column `name`.
fn template_with(template: &str, name: &str, meant: &str) -> String {
    let filtered = template.replace(&format!("{{{name}|"), &format!("{{{meant}|"));
    filtered.replace(&format!("{{{name}}}"), &format!("{{{meant}}}"))
}

/// The flags of a command, in order.
#[derive(Default)]
struct Flags(Vec<(&'static str, String)>);

impl Flags {
    fn value(&self, flag: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| *known == flag).map(|(_, value)| value.as_str())
    }

    /// Sets a flag that has one value.
    fn set(&mut self, flag: &'static str, value: String) {
        match self.0.iter_mut().find(|(known, _)| *known == flag) {
            Some((_, known)) => *known = value,
            None => self.0.push((flag, value)),
        }
    }

    /// Sets all values of a flag that is a list.
    fn list(&mut self, flag: &'static str, values: &[String]) {
        if self.value(flag).is_none() {
            self.0.extend(values.iter().map(|value| (flag, value.clone())));
        }
    }

    fn replace(&mut self, flag: &str, from: &str, to: &str) {
        for (known, value) in &mut self.0 {
            if *known == flag && value == from {
                to.clone_into(value);
            }
        }
    }
}

/// The remedy if the slot will never send the rows with the needed columns.
fn recreate(slot: &str, table: &str) -> Remedy {
    Remedy::from("a new slot leaves them out: ")
        .and(Remedy::new_slot(slot))
        .and(format!("; then the SQL statement in docs/operations/republish.md publishes them from {table}"))
}

impl PlanError {
    /// The fix.
    pub fn hint(&self) -> Remedy {
        match self {
            Self::Lacks { cause: Some(HiddenColumns::ColumnList { widen, slot }), table, .. } => Remedy::sql(widen)
                .and(" -- rows committed before that are still sent with the old columns: ")
                .and(recreate(slot, table)),
            Self::Lacks { cause: Some(HiddenColumns::Past { slot, renamed }), lacks, table, .. }
                if !renamed || lacks.iter().any(MissingColumn::is_open) =>
            {
                recreate(slot, table)
            }
            Self::Lacks { lacks, present, .. } => lacks_hint(lacks, present),
            Self::NotAsDebezium { .. } => {
                "the records would not be Debezium's: change what the message names in its files".into()
            }
            Self::EnvelopesDiffer { .. } => Remedy::from(Command::new("run").flag("--accept-differences"))
                .and(", which gives each table its own envelope; or the same columns in all tables"),
            Self::WrongType { flag, wanted, .. } => match without(flag) {
                Some(value) => Remedy::from(Command::new("run").set(flag, value))
                    .and(format!(", which does without; or set {flag} to a column of type {wanted}")),
                None => format!("set {flag} to a column of type {wanted}").into(),
            },
        }
    }

    /// Whether the error is true for all rows, whatever columns their table had when they were committed.
    pub(crate) const fn is_for_all_rows(&self) -> bool {
        matches!(self, Self::EnvelopesDiffer { .. })
    }

    /// Adds the reason why columns of the table do not arrive.
    #[must_use]
    pub(crate) fn because(mut self, found: HiddenColumns) -> Self {
        if let Self::Lacks { cause, .. } = &mut self {
            *cause = Some(found);
        }
        self
    }
}

/// The value with which a setting asks for no column. `None`: it has no such value.
fn without(flag: &str) -> Option<&'static str> {
    match flag {
        "--timestamp" => Some("send"),
        "--headers-column" | "--partition-column" => Some(""),
        _ => None,
    }
}

/// One command with all flags that are needed.
fn lacks_hint(lacks: &[MissingColumn], present: &[String]) -> Remedy {
    let mut flags = Flags::default();
    // A topic without a route replaces the whole template, so other errors in the template need no fix.
    let in_template =
        |lack: &&MissingColumn| matches!(lack, MissingColumn::Named { setting: ColumnSetting::Template(_), .. });
    let (of_template, others): (Vec<&MissingColumn>, Vec<&MissingColumn>) = lacks.iter().partition(in_template);
    for lack in others.into_iter().chain(of_template) {
        lack.add_to(&mut flags);
    }
    let command = flags.0.iter().fold(Command::new("run"), |command, (flag, value)| command.set(flag, value));
    if !lacks.iter().any(MissingColumn::is_open) {
        return command.into();
    }
    let generated = "(a STORED generated one is sent by Postgres 18 and later, where the publication says so: publish_generated_columns = stored; a VIRTUAL one is never sent)";
    Remedy::from(command).and(format!(", where COLUMN is one of: {} {generated}", listed(present)))
}

fn joined(lacks: &[MissingColumn]) -> String {
    lacks.iter().map(ToString::to_string).collect::<Vec<_>>().join(", none ")
}

fn because(cause: Option<&HiddenColumns>) -> &'static str {
    match cause {
        Some(HiddenColumns::ColumnList { .. }) => "the publication's column list hides what is needed: ",
        Some(HiddenColumns::Past { .. }) => {
            "a row was committed when its table was published with other columns than now: "
        }
        None => "",
    }
}

fn listed(columns: &[String]) -> String {
    if columns.is_empty() { "no column that is published".to_owned() } else { columns.join(", ") }
}
