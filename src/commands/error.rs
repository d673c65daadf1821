//! Why a command ended without having done its work: each case with its exit code and with what to do.

use super::dead_letters;
use super::output::session;
use super::shards::ShardError;
use crate::given::SettingError;
use crate::lsn::Lsn;
use crate::outbox::TableName;
use crate::pg::{self, catalog, identifier, sqlstate};
use crate::relay::BadRowAt;
use crate::remedy::{Command, Remedy};
use crate::route::TopicError;
use crate::supervise::{ExitKind, REPUBLISH_PAGE, RunError};
use std::io;
use std::time::Duration;

/// Why a command ended.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// As a run would end.
    #[error(transparent)]
    Run(#[from] RunError),
    /// A flag is missing that only a look at the database shows to be needed.
    #[error("{flag} is needed: {why}")]
    FlagNeeded {
        /// The flag.
        flag: &'static str,
        /// Why.
        why: String,
        /// With it.
        example: Remedy,
    },
    /// No such table.
    #[error("table {table} does not exist in database \"{database}\"")]
    NoTable {
        /// As it was asked for.
        table: String,
        /// The database that was looked at.
        database: String,
    },
    /// The role lacks a right, or the server something else that this step needs.
    #[error("cannot {step}")]
    Refused {
        /// What was to be done.
        step: String,
        /// What fixes it, where that is known.
        fix: Option<Remedy>,
        /// The server's answer.
        #[source]
        source: Box<pg::Error>,
    },
    /// `--failover` on a server that has no such slots.
    #[error("--failover needs Postgres 17 or later; this is {version}")]
    NoFailoverSlots {
        /// The server's version.
        version: String,
    },
    /// The slot would be made, but that it was could not be written down.
    #[error(
        "publication \"{publication}\" belongs to another role, so that it cannot be marked: a slot lost later would not be noticed"
    )]
    NotMarkable {
        /// Its name.
        publication: String,
        /// What its owner can do.
        sql: String,
    },
    /// Stopped on request while waiting; nothing half-made is left.
    #[error("stopped before it was done")]
    Interrupted,
    /// A relay reads the slot.
    #[error("replication slot \"{slot}\" is in use by {}", reader(*.pid, reading.as_deref()))]
    SlotInUse {
        /// Its name.
        slot: String,
        /// The server process that reads it.
        pid: Option<u32>,
        /// What is known of it.
        reading: Option<Box<catalog::ServerSession>>,
    },
    /// Nobody can be asked.
    #[error("{what} asks first, and standard input is no terminal")]
    NobodyToAsk {
        /// The command.
        what: &'static str,
    },
    /// The relay is not ready.
    #[error("not ready: {reason}")]
    NotReady {
        /// In its own words.
        reason: String,
    },
    /// The relay cannot be asked.
    #[error("no relay answers at {address}")]
    NoRelay {
        /// Where it was looked for.
        address: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// `check` found what stands in the way of a run.
    #[error("checks that fail: {count}")]
    CheckFailed {
        /// How many.
        count: usize,
    },
    /// That rows are delivered cannot be determined.
    #[error("rows of {table} are not deleted: {why}")]
    NotProven {
        /// `schema.table`.
        table: String,
        /// Why.
        why: &'static str,
    },
    /// Since when the slot has carried everything is not known.
    #[error(
        "no row is deleted: since when slot \"{slot}\" has carried every row of publication \"{publication}\" is not known: {why}"
    )]
    NoProof {
        /// Its name.
        slot: String,
        /// Its name.
        publication: String,
        /// It is a shard's, which `setup --apply` does not mark.
        is_shard: bool,
        /// Why.
        why: String,
    },
    /// What a slot carries was changed.
    #[error("publication \"{publication}\" was changed while its slot was waited for: no row was deleted since")]
    Changed {
        /// Its name.
        publication: String,
    },
    /// The relay has skipped rows that cannot be identified.
    #[error("no row is deleted: the relay of slot \"{slot}\" has skipped rows that cannot be identified")]
    PassedOver {
        /// Its name.
        slot: String,
        /// As SQL, what forgets them.
        forget: String,
    },
    /// The slot did not confirm in time.
    #[error("slot \"{slot}\" has not confirmed {lsn} in {}: no row was deleted since", super::output::duration(*waited))]
    NotConfirmed {
        /// Its name.
        slot: String,
        /// What it should have confirmed.
        lsn: Lsn,
        /// How long it was waited for.
        waited: Duration,
        /// What runs its relay.
        run: Command,
    },
    /// Archived rows would be published.
    #[error("publication \"{publication}\" has {archive}: what is archived would be published again")]
    ArchivePublished {
        /// `schema.table`.
        archive: String,
        /// Its name.
        publication: String,
    },
    /// There is no such archive.
    #[error("table {archive} does not exist in database \"{database}\"")]
    NoArchive {
        /// As SQL names it.
        archive: String,
        /// The table whose rows it is to have, as SQL names it.
        table: String,
        /// The database that was looked at.
        database: String,
    },
    /// Rows would lose a value.
    #[error("archive {archive} has no column \"{column}\", which {table} has")]
    ArchiveLacks {
        /// `schema.table`.
        archive: String,
        /// The column.
        column: String,
        /// `schema.table`.
        table: String,
    },
    /// Rows would be in neither table.
    #[error(
        "rows of {table} are not deleted: {lacks} of {rows} rows were not inserted into {archive}, so this chunk was rolled back"
    )]
    NotArchived {
        /// `schema.table`.
        table: String,
        /// `schema.table`.
        archive: String,
        /// Rows that were deleted.
        rows: u64,
        /// Those that the archive does not have.
        lacks: u64,
        /// Triggers on the archive's rows.
        triggers: Vec<String>,
    },
    /// The partitions are none that can be pruned as a whole.
    #[error("{table} cannot be pruned by partitions: {why}")]
    NoPartitions {
        /// `schema.table`.
        table: String,
        /// Why.
        why: String,
    },
    /// Which rows no slot carries is not known.
    #[error(
        "no row is published: which rows of publication \"{publication}\" came before slot \"{slot}\" is not known: {why}"
    )]
    NoSnapshot {
        /// Its name.
        slot: String,
        /// Its name.
        publication: String,
        /// Why.
        why: String,
    },
    /// Rows of before the slot may look like rows of after it.
    #[error(
        "rows of {table} may have been updated after slot \"{slot}\" was created: such a row cannot be distinguished from a new one, which the slot carries"
    )]
    Updated {
        /// The table, or the partition.
        table: TableName,
        /// Its name.
        slot: String,
    },
    /// The rows of a table without a key have moved.
    #[error(
        "{table} has no key and was rewritten (VACUUM FULL, CLUSTER, ALTER TABLE): its rows are in other places now"
    )]
    Rewritten {
        /// `schema.table`.
        table: String,
    },
    /// Row security hides rows from our role.
    #[error("no row of {table} is published: row security hides rows of it from this role")]
    RowsHidden {
        /// `schema.table`.
        table: String,
    },
    /// The rows cannot be read in this order.
    #[error("{table} cannot be read in the order of {column}: {}", no_order(*.has_key))]
    NoOrder {
        /// `schema.table`.
        table: String,
        /// The column.
        column: String,
        /// It has a key.
        has_key: bool,
    },
    /// Another backfill of the slot runs.
    #[error("another backfill of slot \"{slot}\" is running")]
    BackfillRuns {
        /// Its name.
        slot: String,
    },
    /// A backfill of other rows of the table was begun.
    #[error("a backfill of {table} {before} has published {rows} of its rows: they would be published again")]
    OtherBackfill {
        /// `schema.table`.
        table: String,
        /// How many.
        rows: u64,
        /// Its flags.
        before: String,
    },
    /// An existing row cannot be published.
    #[error("a row of {} cannot be published: {}{}", .0.row.table, .0.row.reason, dead_letter_refused(.0))]
    BadRow(Box<BadRowAt>),
    /// The topic setting.
    #[error(transparent)]
    Topic(#[from] Box<TopicError>),
    /// The destination's settings.
    #[error(transparent)]
    Destination(#[from] SettingError),
    /// Shards.
    #[error(transparent)]
    Shards(#[from] ShardError),
    /// Dead-letter records.
    #[error(transparent)]
    DeadLetters(#[from] Box<dead_letters::Error>),
    /// What was found cannot be written.
    #[error("cannot write the output")]
    Output(#[from] io::Error),
}

impl From<dead_letters::Error> for CommandError {
    fn from(error: dead_letters::Error) -> Self {
        Self::DeadLetters(Box::new(error))
    }
}

impl From<pg::Error> for CommandError {
    fn from(error: pg::Error) -> Self {
        Self::Run(error.into())
    }
}

impl CommandError {
    /// The same; where a right is missing that `fix` gives, with that.
    pub(super) fn with_fix(self, step: String, fix: impl Into<Remedy>) -> Self {
        if let Self::Run(RunError::Postgres(source)) = self {
            return match source.code() {
                Some(sqlstate::INSUFFICIENT_PRIVILEGE) => {
                    Self::Refused { step, fix: Some(fix.into()), source: Box::new(source) }
                }
                _ => Self::Run(RunError::Postgres(source)),
            };
        }
        self
    }

    /// The kind of end, which has the exit code.
    pub fn exit_kind(&self) -> ExitKind {
        match self {
            Self::Run(error) => error.exit_kind(),
            Self::Shards(error) => error.exit_kind(),
            Self::DeadLetters(error) => error.exit_kind(),
            Self::FlagNeeded { .. }
            | Self::NoFailoverSlots { .. }
            | Self::NobodyToAsk { .. }
            | Self::NoPartitions { .. }
            | Self::NoOrder { .. }
            | Self::ArchiveLacks { .. }
            | Self::ArchivePublished { .. }
            | Self::Topic(_)
            | Self::Destination(_) => ExitKind::Settings,
            Self::Refused { source, .. } if source.recovery() != pg::Recovery::Stop => ExitKind::Restart,
            Self::NoTable { .. }
            | Self::Refused { .. }
            | Self::NotMarkable { .. }
            | Self::SlotInUse { .. }
            | Self::NotProven { .. }
            | Self::NoProof { .. }
            | Self::PassedOver { .. }
            | Self::NoArchive { .. }
            | Self::NoSnapshot { .. }
            | Self::Updated { .. }
            | Self::Rewritten { .. }
            | Self::RowsHidden { .. }
            | Self::BackfillRuns { .. }
            | Self::OtherBackfill { .. }
            | Self::BadRow(_)
            | Self::NotArchived { .. }
            | Self::CheckFailed { .. } => ExitKind::Operator,
            Self::Interrupted
            | Self::NotConfirmed { .. }
            | Self::Changed { .. }
            | Self::NotReady { .. }
            | Self::NoRelay { .. }
            | Self::Output(_) => ExitKind::Restart,
        }
    }

    /// What fixes it: a command, SQL, or a short text.
    pub fn hint(&self) -> Option<Remedy> {
        Some(match self {
            Self::Run(error) => return error.hint(),
            Self::Shards(error) => error.hint(),
            Self::DeadLetters(error) => return error.hint(),
            Self::FlagNeeded { example, .. } => example.clone(),
            Self::NoTable { .. } => {
                "check the name (schema.table; capitals need double quotes, as in SQL) and the database in --source, or let setup create it: --create-table".into()
            }
            Self::Refused { fix, source, .. } => return refused_hint(fix.as_ref(), source),
            Self::NoFailoverSlots { .. } => {
                "leave --failover out; after a promotion the slot has to be created again on the new primary".into()
            }
            Self::NotMarkable { sql, .. } => Remedy::from("run as the publication's owner: ")
                .and(setup())
                .and(format!("; or once the slot is there: {sql}")),
            Self::Interrupted => Remedy::from("once no old transaction is open: ").and(setup()),
            Self::SlotInUse { pid, .. } => in_use_hint(*pid),
            Self::NobodyToAsk { .. } => "if that is what you want, add --yes".into(),
            Self::Topic(error) => return error.hint().map(Remedy::from),
            Self::Destination(error) => return error.hint().map(Remedy::from),
            Self::NotReady { .. } | Self::Output(_) => return None,
            Self::NotProven { .. } => "if that is what you want, add --force".into(),
            Self::PassedOver { forget, .. } => {
                format!("look at those rows; once they are published or not needed, run as the relay's role: {forget} or add --force").into()
            }
            Self::Changed { .. } => "run the same command again: it reads the publication as it is now".into(),
            Self::NoProof { is_shard: true, .. } => {
                "publications of shards have to stay as they were created; to delete rows without that proof: --force".into()
            }
            Self::NoProof { .. } => Remedy::from("run as the publication's owner: ")
                .and(setup())
                .and(", which records it from then on; for rows from before: --force"),
            Self::NoSnapshot { slot, .. } => Remedy::from(format!(
                "for single rows, through the slot that is there: the SQL statement in {REPUBLISH_PAGE}; for all of them, with a new slot: stop the relay once it has caught up, then "
            ))
            .and(Remedy::new_slot(slot))
            .and(", and ")
            .and(Command::new("backfill").set("--slot", slot))
            .and(", which publishes every row that is in the table then"),
            Self::Updated { table, .. } => format!(
                "find out which rows of {table}; publish the others with --leave-updated, and then those through the slot by the SQL statement in {REPUBLISH_PAGE}"
            )
            .into(),
            Self::Rewritten { .. } => "to publish all of its rows once more: --again; a primary key avoids this".into(),
            Self::RowsHidden { .. } => {
                "run it as a role with BYPASSRLS, or as the table's owner where row security is not forced".into()
            }
            Self::NoOrder { has_key: false, .. } => {
                "add a primary key or a unique index on NOT NULL columns, or leave out --order-by".into()
            }
            Self::NoOrder { .. } => "--order-by takes the name of a column, without direction".into(),
            Self::BackfillRuns { .. } => {
                "wait until it ends; if it was killed, the server notices within a minute or two: then run the same command again".into()
            }
            Self::OtherBackfill { .. } => {
                "to resume it, use the same flags; to publish rows whether or not they were published before: --again".into()
            }
            Self::BadRow(row) => existing_row_hint(row),
            Self::NotConfirmed { run, .. } => Remedy::from("if its relay is stopped, start it: ")
                .and(run.clone())
                .and("; or set a longer --timeout"),
            Self::ArchivePublished { .. } => "name a table with --archive-to that the publication does not have".into(),
            Self::NoArchive { archive, table, .. } => {
                Remedy::sql(format!("CREATE TABLE {archive} (LIKE {table});"))
            }
            Self::ArchiveLacks { archive, column, .. } => {
                format!("ALTER TABLE {archive} ADD COLUMN {} … with the type that it has there;", identifier(column)).into()
            }
            Self::NotArchived { triggers, .. } => format!(
                "no row is lost; a trigger that lets no row in returns NULL before the insert: {}. Disable it, or name another table with --archive-to",
                triggers.join(", ")
            )
            .into(),
            Self::NoPartitions { .. } => "leave out --partitions: rows are then deleted one by one".into(),
            Self::CheckFailed { .. } => "each fail line above says how to fix it".into(),
            Self::NoRelay { .. } => "check that the relay runs, and that its --http is this address".into(),
        })
    }
}

/// Our own word where it is about rights, else the server's.
fn refused_hint(fix: Option<&Remedy>, error: &pg::Error) -> Option<Remedy> {
    if error.code() == Some(sqlstate::INSUFFICIENT_PRIVILEGE) && fix.is_some() {
        return fix.cloned();
    }
    let error = error.server_error()?;
    if error.code == sqlstate::LIMIT_EXCEEDED {
        return Some(
            "raise max_replication_slots (needs a restart), or drop a slot that nobody uses: SELECT slot_name, active, restart_lsn FROM pg_replication_slots;".into(),
        );
    }
    (!error.hint.is_empty()).then(|| error.hint.clone().into())
}

fn no_order(has_key: bool) -> &'static str {
    if has_key { "it has no such column" } else { "without a key nothing says where to resume" }
}

fn dead_letter_refused(row: &BadRowAt) -> String {
    row.dead_letter_refused.as_ref().map_or_else(String::new, |(topic, failure)| {
        format!(", and dead-letter topic {topic} does not take it: {failure}")
    })
}

fn setup() -> Command {
    Command::new("setup").flag("--apply")
}

fn existing_row_hint(row: &BadRowAt) -> Remedy {
    let (which, at) =
        (row.row.id.as_ref().map_or_else(|| "the row".to_owned(), |id| format!("the row with id {id}")), row.position);
    format!(
        "all rows before {which} are published: fix the cause ({}), or decide its action with --bad-row-at {at}=dead-letter or --bad-row-at {at}=skip; the same command then resumes there",
        row.row.reason.kind().fix
    )
    .into()
}

fn in_use_hint(pid: Option<u32>) -> Remedy {
    let pid = pid.map_or_else(|| "PID".to_owned(), |pid| pid.to_string());
    format!(
        "stop the relay that reads it; if that is gone and the server has not noticed: SELECT pg_terminate_backend({pid});"
    )
    .into()
}

fn reader(pid: Option<u32>, reading: Option<&catalog::ServerSession>) -> String {
    match (reading, pid) {
        (Some(reading), _) => session(reading),
        (None, Some(pid)) => format!("process {pid}"),
        (None, None) => "another process".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pg::ServerError;

    fn refusal(code: &str, fix: &str) -> CommandError {
        let error = Box::new(ServerError { code: code.to_owned(), message: "no".to_owned(), ..ServerError::default() });
        let source = Box::new(pg::Error::Server { doing: "X".to_owned(), error });
        CommandError::Refused { step: "do it".to_owned(), fix: Some(fix.into()), source }
    }

    #[test]
    fn a_missing_right_is_fixed_by_the_steps_own_word() {
        let error = refusal(sqlstate::INSUFFICIENT_PRIVILEGE, "GRANT it");
        assert_eq!((error.exit_kind(), error.hint()), (ExitKind::Operator, Some("GRANT it".into())));
    }

    #[test]
    fn no_free_slot_is_for_an_operator_and_names_the_setting() {
        let error = refusal(sqlstate::LIMIT_EXCEEDED, "GRANT it");
        assert_eq!(error.exit_kind(), ExitKind::Operator);
        assert!(error.hint().unwrap().to_string().contains("max_replication_slots"));
    }

    #[test]
    fn what_passes_by_itself_is_worth_another_try() {
        assert_eq!(refusal("57P01", "").exit_kind(), ExitKind::Restart);
    }

    #[test]
    fn a_slot_in_use_names_the_process_and_how_to_end_it() {
        let error = CommandError::SlotInUse { slot: "s".to_owned(), pid: Some(7), reading: None };
        assert_eq!(error.to_string(), "replication slot \"s\" is in use by process 7");
        assert!(error.hint().unwrap().to_string().contains("pg_terminate_backend(7)"));
    }
}
