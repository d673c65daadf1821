//! Why a run ended other than on request: each case with its exit code and with what to do.

use crate::given::shell_quoted;
use crate::lsn::Lsn;
use crate::outbox::TableName;
use crate::outbox::{BadReason, PlanError};
use crate::pg::frame::FrameError;
use crate::pg::shard::Shard;
use crate::pg::{self, Recovery, sqlstate};
use crate::relay::{BadRowAt, ProtocolError};
use crate::remedy::{Command, Remedy};
use crate::sink::Failure;
use std::time::Duration;

/// The kinds of ends of the process, each with its exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitKind {
    /// A restart may cure it.
    Restart,
    /// An operator must act.
    Operator,
    /// The settings are wrong; nothing was contacted, or nothing was changed.
    Settings,
    /// A second signal of this number ended it.
    Signal(u8),
}

impl ExitKind {
    /// The process's exit code.
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Restart => 1,
            Self::Operator => 2,
            Self::Settings => 64,
            Self::Signal(number) => 128 + number,
        }
    }
}

/// The page with the statement that publishes rows again, or rows that no slot has carried.
pub const REPUBLISH_PAGE: &str = "docs/operations/republish.md";

/// The rows that a new slot leaves out.
const NONE_BEFORE: &str =
    "rows committed before that are in no slot: the SQL statement in docs/operations/republish.md publishes them";

/// A log-in that the server refuses for a reason of its own.
pub(crate) const LOGIN_RULE: &str = "the server is up and a rule of its own refuses this log-in, such as a login trigger: SELECT evtname, evtfoid::regproc FROM pg_event_trigger WHERE evtevent = 'login'; let it pass this role, or ALTER EVENT TRIGGER … DISABLE;";

/// Characters of a slot's name.
const MOST_OF_SLOT: usize = 63;

/// The most characters that are added to the name of another slot.
const MOST_OF_SUFFIX: usize = 30;

/// Why a run ended.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Postgres refuses, or speaks what it should not.
    #[error(transparent)]
    Postgres(#[from] pg::Error),
    /// `wal_level` does not allow logical decoding.
    #[error("wal_level is {found}, logical decoding needs wal_level = logical")]
    WalLevel {
        /// What it is.
        found: String,
    },
    /// No such publication.
    #[error("publication \"{publication}\" does not exist in database \"{database}\"")]
    NoPublication {
        /// Its name.
        publication: String,
        /// The database that was looked at.
        database: String,
    },
    /// The publication carries no inserts.
    #[error("publication \"{publication}\" does not publish inserts")]
    NoInserts {
        /// Its name.
        publication: String,
    },
    /// The publication has no table.
    #[error("publication \"{publication}\" has no table")]
    NoTables {
        /// Its name.
        publication: String,
    },
    /// The publication was made after the slot, or recreated: at the slot's LSN it did not exist.
    #[error("publication \"{publication}\" was created after the position of slot \"{slot}\"")]
    PublicationTooNew {
        /// Its name.
        publication: String,
        /// The slot.
        slot: String,
    },
    /// A table that was asked for is not in the publication.
    #[error("table {table} is not in publication \"{publication}\", which has {}", published.join(", "))]
    TableNotPublished {
        /// As it was asked for.
        table: TableName,
        /// The publication.
        publication: String,
        /// Its tables.
        published: Vec<String>,
    },
    /// A table that was asked for has another name now. Its id is the same.
    #[error("table {table} was renamed to {now}")]
    TableRenamed {
        /// As it was asked for.
        table: TableName,
        /// Its name now.
        now: Box<TableName>,
        /// `--table`, with that name.
        tables: Vec<TableName>,
    },
    /// `table.include.list` fits no table of the publication.
    #[error("no table of publication \"{publication}\" is captured by {patterns}: it has {}", published.join(", "))]
    NothingCaptured {
        /// The expressions.
        patterns: String,
        /// The publication.
        publication: String,
        /// Its tables.
        published: Vec<String>,
    },
    /// A table lacks a column that is needed.
    #[error(transparent)]
    Unmappable(Box<PlanError>),
    /// An error that the database was looked at for.
    #[error("{}", super::chain(error))]
    Advised {
        /// The error.
        error: Box<Self>,
        /// The remedy for this database.
        hint: Remedy,
    },
    /// No such slot; the publication is there.
    #[error("replication slot \"{slot}\" does not exist: was it never created, or has it been lost?")]
    NoSlot {
        /// Its name.
        slot: String,
        /// A slot was there before, as the publication's comment or this run knows.
        was_there: bool,
    },
    /// The rows are published by the relays of another set of shards now.
    #[error("{from} is closed: its rows were moved to {}", shards(*to))]
    ShardsMoved {
        /// `shard 1/3`, or the slot that all rows were in.
        from: String,
        /// Which one it was; `None`: all rows were in one slot.
        shard: Option<Shard>,
        /// How many there are now.
        to: u8,
    },
    /// The slot belongs to another database.
    #[error(
        "replication slot \"{slot}\" belongs to database \"{found}\", not to \"{wanted}\" (slot names are cluster-wide)"
    )]
    SlotOfOtherDatabase {
        /// Its name.
        slot: String,
        /// Its database.
        found: String,
        /// The source's database.
        wanted: String,
    },
    /// The slot has another output plugin, or none.
    #[error("replication slot \"{slot}\" is {found}, walrelay needs a logical slot of plugin pgoutput")]
    SlotOfOtherPlugin {
        /// Its name.
        slot: String,
        /// What it is.
        found: String,
    },
    /// The slot goes with its session.
    #[error("replication slot \"{slot}\" is temporary: it ends with the session that created it")]
    TemporarySlot {
        /// Its name.
        slot: String,
    },
    /// The slot sends prepared transactions.
    #[error("replication slot \"{slot}\" was created with two_phase = true, which walrelay does not read")]
    TwoPhaseSlot {
        /// Its name.
        slot: String,
    },
    /// The slot can no longer be read.
    #[error(
        "replication slot \"{slot}\" has been invalidated ({reason}): rows committed after {confirmed} can no longer be read from it"
    )]
    SlotLost {
        /// Its name.
        slot: String,
        /// Why.
        reason: String,
        /// The last position that it confirmed.
        confirmed: Lsn,
    },
    /// The slot is ahead of what was read, and nothing proves that it is the same slot.
    #[error(
        "replication slot \"{slot}\" is at {confirmed} and was read up to {read}: nothing proves that it is the slot that was read, so rows in between may be in none"
    )]
    SlotUnproven {
        /// Its name.
        slot: String,
        /// The position up to which the relay read it, or at which the relay saw it last.
        read: Lsn,
        /// Where it is.
        confirmed: Lsn,
    },
    /// The slot is not the one that the setup marker is for.
    #[error(
        "replication slot \"{slot}\" (at {confirmed}) is not the one that publication \"{publication}\" was marked for at {marked}: it was never read from there"
    )]
    SlotNotMarked {
        /// Its name.
        slot: String,
        /// The publication with the marker.
        publication: String,
        /// The position in the WAL at which the marker was written.
        marked: Lsn,
        /// Where the slot is.
        confirmed: Lsn,
    },
    /// The server behind the address is another one.
    #[error("the server is another cluster now (system identifier {found}, before {before}): nothing was read from it")]
    OtherCluster {
        /// The first one's system identifier.
        before: String,
        /// This one's.
        found: String,
    },
    /// The server's log ends before a position that it has sent.
    #[error(
        "the server's WAL ends at {flushed}, but it has sent rows up to {seen}: an older copy of the cluster is in its place now, nothing was read from it"
    )]
    OlderCopy {
        /// Sent before.
        seen: Lsn,
        /// Where the WAL ends.
        flushed: Lsn,
    },
    /// The server is on an earlier timeline than one that was read: the old primary is back in the promoted one's place.
    #[error(
        "the server is on timeline {found}, and rows of timeline {before} were read: an earlier timeline of the cluster is in its place now, nothing was read from it"
    )]
    EarlierTimeline {
        /// Read before.
        before: u32,
        /// This server's.
        found: u32,
    },
    /// The server is a standby, and delivery is exactly once.
    #[error(
        "exactly once cannot read from a standby: when that is promoted, the relay's progress would be another timeline's"
    )]
    OnStandby,
    /// A row cannot be published.
    #[error("a row of {} cannot be published: {}", row.row.table, row.row.reason)]
    BadRow {
        /// The row and where it is.
        row: Box<BadRowAt>,
    },
    /// A row cannot be published, and not be put into the dead-letter topic either.
    #[error("a row of {} cannot be published ({}), and dead-letter topic {topic} does not take it", row.row.table, row.row.reason)]
    DeadLetter {
        /// The row and where it is.
        row: Box<BadRowAt>,
        /// The topic.
        topic: String,
        /// Why it does not.
        #[source]
        failure: Failure,
    },
    /// The graceful shutdown ran out of time.
    #[error(
        "stopped before everything was acknowledged: records in flight: {in_flight}; these and those of unfinished transactions will be published again"
    )]
    StopTimedOut {
        /// Records in flight.
        in_flight: u64,
    },
    /// Everything is published, but Postgres may not have heard of it.
    #[error("stopped before Postgres confirmed {lsn}: what it has not confirmed will be published again")]
    StopUnconfirmed {
        /// The position that Postgres should have confirmed.
        lsn: Lsn,
    },
    /// The destination's client cannot work.
    #[error(transparent)]
    Sink(Failure),
    /// The relay cannot read the progress that Kafka holds.
    #[error("the progress kept in Kafka under {key} is not a relay's: {value}")]
    StrangeProgress {
        /// The record's key.
        key: String,
        /// Its value.
        value: String,
    },
    /// A transaction takes too long for Kafka's.
    #[error(
        "a transaction is too large for exactly once: {records} records were sent, and it has not ended in the {} s that a Kafka transaction may take", timeout.as_secs()
    )]
    TransactionTooLong {
        /// Its records so far.
        records: u64,
        /// How long it may take.
        timeout: Duration,
    },
    /// The stream is not what the manual says.
    #[error("the stream from Postgres is not as documented")]
    Protocol(#[from] ProtocolError),
}

impl From<Box<BadRowAt>> for RunError {
    fn from(mut row: Box<BadRowAt>) -> Self {
        match row.dead_letter_refused.take() {
            Some((topic, failure)) => Self::DeadLetter { row, topic, failure },
            None => Self::BadRow { row },
        }
    }
}

impl RunError {
    /// The kind of end, which has the exit code.
    pub fn exit_kind(&self) -> ExitKind {
        match self {
            Self::Advised { error, .. } => error.exit_kind(),
            Self::Postgres(error) if error.recovery() != Recovery::Stop => ExitKind::Restart,
            Self::StopTimedOut { .. } | Self::StopUnconfirmed { .. } | Self::Protocol(_) => ExitKind::Restart,
            Self::Postgres(_)
            | Self::WalLevel { .. }
            | Self::NoPublication { .. }
            | Self::PublicationTooNew { .. }
            | Self::NoInserts { .. }
            | Self::NoTables { .. }
            | Self::TableNotPublished { .. }
            | Self::TableRenamed { .. }
            | Self::NothingCaptured { .. }
            | Self::Unmappable(_)
            | Self::NoSlot { .. }
            | Self::ShardsMoved { .. }
            | Self::SlotOfOtherDatabase { .. }
            | Self::SlotOfOtherPlugin { .. }
            | Self::TemporarySlot { .. }
            | Self::TwoPhaseSlot { .. }
            | Self::SlotLost { .. }
            | Self::SlotUnproven { .. }
            | Self::SlotNotMarked { .. }
            | Self::OtherCluster { .. }
            | Self::OlderCopy { .. }
            | Self::EarlierTimeline { .. }
            | Self::OnStandby
            | Self::BadRow { .. }
            | Self::DeadLetter { .. }
            | Self::StrangeProgress { .. }
            | Self::TransactionTooLong { .. }
            | Self::Sink(_) => ExitKind::Operator,
        }
    }

    /// Returns the command, SQL or short text that fixes it.
    pub fn hint(&self) -> Option<Remedy> {
        Some(match self {
            Self::Postgres(error) => return postgres_hint(error),
            Self::WalLevel { .. } => Remedy::sql("ALTER SYSTEM SET wal_level = logical;").and(
                " then restart Postgres (managed services: the parameter rds.logical_replication, cloudsql.logical_decoding, …)",
            ),
            Self::NoPublication { publication, .. } => {
                let setup = setup().set("--publication", publication).set("--table", "SCHEMA.TABLE");
                Remedy::from(setup).and(format!(
                    ", or: CREATE PUBLICATION {} FOR TABLE … WITH (publish = 'insert');",
                    pg::identifier(publication)
                ))
            }
            Self::NoInserts { publication } => altered(publication, "SET (publish = 'insert')", "SCHEMA.TABLE"),
            Self::NoTables { publication } => altered(publication, "ADD TABLE public.outbox", "public.outbox"),
            Self::TableNotPublished { table, publication, .. } => {
                altered(publication, &format!("ADD TABLE {}", table.sql()), &table.as_typed())
            }
            Self::TableRenamed { tables, .. } => {
                let run = tables.iter().fold(run(), |run, table| run.set("--table", table.as_typed()));
                Remedy::from(run).and("; rows that it got under its earlier name are published, too")
            }
            Self::NothingCaptured { publication, .. } => format!(
                "name the publication's tables with --table; or ALTER PUBLICATION {} ADD TABLE …;{}",
                pg::identifier(publication),
                not_sent("SCHEMA.TABLE")
            )
            .into(),
            Self::PublicationTooNew { slot, .. } => Remedy::from(
                "Postgres decodes WAL with the catalog as it was at that position, so this slot cannot pass it: ",
            )
            .and(Remedy::new_slot(slot))
            .and(format!(
                "; rows committed before that are in no slot: compare the table with the topic, then publish what is missing by the SQL statement in {REPUBLISH_PAGE}"
            )),
            Self::Unmappable(error) => error.hint(),
            Self::Advised { hint, .. } => hint.clone(),
            Self::NoSlot { slot, was_there } => no_slot_hint(slot, *was_there),
            Self::ShardsMoved { shard, to, .. } => moved_hint(*shard, *to),
            Self::SlotOfOtherDatabase { slot, found, wanted } => Remedy::from("for a slot of this database: ")
                .and(another_slot(slot, wanted))
                .and(format!("; {NONE_BEFORE}; or connect to that database (--source …/{found})")),
            Self::SlotOfOtherPlugin { slot, .. } | Self::TemporarySlot { slot } | Self::TwoPhaseSlot { slot } => {
                Remedy::from("under another name: ").and(another_slot(slot, "relay")).and(format!("; {NONE_BEFORE}"))
            }
            Self::SlotLost { slot, reason, .. } => {
                Remedy::from("find the rows that never arrived (compare the table with the topic), then: ")
                    .and(Remedy::new_slot(slot))
                    .and(format!(
                        ", and the SQL statement in {REPUBLISH_PAGE} for those rows; so that it does not happen again: {}",
                        prevention(reason)
                    ))
            }
            Self::SlotUnproven { slot, read, confirmed } => Remedy::from(format!(
                "either it was dropped and created again, or advanced by hand (Terraform, Patroni, walrelay teardown and setup, pg_replication_slot_advance): rows committed between {read} and {confirmed} are in no slot, so compare the table with the topic, "
            ))
            .and(setup().set("--slot", slot))
            .and(format!(
                ", and the SQL statement in {REPUBLISH_PAGE} for rows that are missing; or another relay read it and left no trace, since the server lost its statistics in a crash: nothing is missing. Then: "
            ))
            .and(run().set("--slot", slot).set("--accept-slot-at", confirmed)),
            Self::SlotNotMarked { slot, confirmed, .. } => Remedy::from(format!(
                "it was dropped and created again, or advanced by hand: rows committed before {confirmed} may be in no slot, so compare the table with the topic; then, as the publication's owner, "
            ))
            .and(setup().set("--slot", slot))
            .and(format!(" (or --accept-slot-at {confirmed} with "))
            .and(run())
            .and(format!("), and the SQL statement in {REPUBLISH_PAGE} for rows that are missing")),
            Self::OtherCluster { .. } | Self::OlderCopy { .. } => format!(
                "if you want to read that server (such as a restored copy), restart walrelay: it begins at the position of its slot there. Exactly once remembers the old cluster: then use another --slot, which walrelay setup creates; {NONE_BEFORE}"
            )
            .into(),
            Self::EarlierTimeline { .. } => format!(
                "two servers of the cluster may be taking writes: keep clients away from the old primary; if you want to read it, restart walrelay. Exactly once remembers the newer timeline: then use another --slot, which walrelay setup creates; {NONE_BEFORE}"
            )
            .into(),
            Self::OnStandby => {
                "set --source to the primary's address, or to all hosts with target_session_attrs=read-write; or use --delivery at-least-once".into()
            }
            Self::BadRow { row } => bad_row_hint(row),
            Self::DeadLetter { row, topic, .. } => Remedy::from(format!(
                "{}: create topic {topic}, give it room or the right to write it, or name another with --dead-letter-topic, and start walrelay again; or skip the row: ",
                where_it_stays(row)
            ))
            .and(decided(row, "skip")),
            Self::StopTimedOut { .. } | Self::StopUnconfirmed { .. } => {
                "consumers that keep ids of processed events are not affected; a longer --shutdown-timeout waits longer".into()
            }
            Self::StrangeProgress { .. } => {
                format!("use another Kafka cluster; or another --slot, which walrelay setup creates: {NONE_BEFORE}").into()
            }
            Self::TransactionTooLong { .. } => Remedy::from(run().set("-X", "transaction.timeout.ms=900000"))
                .and(" if the brokers' transaction.max.timeout.ms allows it; or publish it once with ")
                .and(run().set("--delivery", "at-least-once"))
                .and(", then return to exactly-once"),
            Self::Sink(failure) => return failure.remedy.clone(),
            Self::Protocol(_) => return None,
        })
    }
}

/// Returns the setting that keeps Postgres from invalidating a slot for this reason, which is `invalidation_reason` where the version has that.
fn prevention(reason: &str) -> &'static str {
    match reason {
        "idle_timeout" => "idle_replication_slot_timeout = 0, or longer than a relay may be down",
        "rows_removed" => "hot_standby_feedback = on on the standby, with primary_slot_name",
        "wal_level_insufficient" => "wal_level = logical, on the primary too",
        // 16 does not say which of the two.
        "conflicting with recovery" => {
            "hot_standby_feedback = on on the standby, with primary_slot_name; and wal_level = logical on the primary"
        }
        _ => "a larger max_slot_wal_keep_size",
    }
}

/// The next power of two that is large enough, as `--max-row` takes it; that takes 1 GiB at most.
fn room_for(bytes: usize) -> String {
    format!("{}KiB", bytes.max(1).checked_next_power_of_two().unwrap_or(bytes).clamp(1 << 10, 1 << 30) >> 10)
}

fn run() -> Command {
    Command::new("run")
}

fn setup() -> Command {
    Command::new("setup").flag("--apply")
}

/// Runs with another action for one row.
fn decided(row: &BadRowAt, action: &str) -> Command {
    run().set("--bad-row-at", format!("{}={action}", row.position))
}

/// Creates and reads a slot of another name, which has letters, digits and underscores, 63 at most.
fn another_slot(slot: &str, suffix: &str) -> Remedy {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' };
    let suffix: String = suffix.chars().map(plain).take(MOST_OF_SUFFIX).collect();
    let slot: String = slot.chars().take(MOST_OF_SLOT - 1 - suffix.len()).collect();
    let own = format!("{slot}_{suffix}");
    Remedy::from(setup().set("--slot", &own)).and(" && ").and(run().set("--slot", own))
}

/// SQL that makes a publication send more of a table.
fn altered(publication: &str, change: &str, table: &str) -> Remedy {
    Remedy::sql(format!("ALTER PUBLICATION {} {change};", pg::identifier(publication))).and(not_sent(table))
}

/// Goes along with SQL that makes a publication send more, as a comment in it: Postgres decodes each row by the catalogue of its time.
pub(super) fn not_sent(table: &str) -> String {
    format!(
        " -- rows committed before that are not sent, also those that the slot has yet to pass: the SQL statement in {REPUBLISH_PAGE} publishes them from {}",
        shell_quoted(table)
    )
}

fn where_it_stays(row: &BadRowAt) -> String {
    let which = row.row.id.as_ref().map_or_else(|| "the row".to_owned(), |id| format!("the row with id {id}"));
    format!("{which} stays unpublished at {}, and the slot before it at {}", row.position, row.confirmed)
}

fn bad_row_hint(row: &BadRowAt) -> Remedy {
    let (stays, at) = (where_it_stays(row), row.position);
    match row.row.reason {
        BadReason::TooLarge { bytes, .. } => Remedy::from(format!("{stays}: "))
            .and(run().set("--max-row", room_for(bytes)))
            .and(" if a row may be so large, or skip it: ")
            .and(decided(row, "skip")),
        BadReason::Updated => Remedy::from(format!("{stays}: "))
            .and(run().set("--on-update", "warn"))
            .and(", which skips updates and logs them, or --on-update skip"),
        BadReason::GoneTable => format!(
            "{stays}: if it was a partition that was detached or dropped, leave out --table until the slot has passed its rows (or, where the publication has other tables than outboxes, add {} to it again, recreated if need be, and name it with --table as well); if it was no outbox table, --bad-row-at {at}=skip; then start walrelay again",
            row.row.table
        )
        .into(),
        BadReason::NullRoute { .. }
        | BadReason::InvalidTopic { .. }
        | BadReason::HeadersNotObject { .. }
        | BadReason::InvalidPartition { .. }
        | BadReason::InvalidSchemaId { .. }
        | BadReason::InvalidTimestamp { .. }
        | BadReason::Unwritable { .. }
        | BadReason::NotJson { .. }
        | BadReason::MissingId { .. }
        | BadReason::MissingType { .. }
        | BadReason::MissingPayload { .. }
        | BadReason::Refused { .. }
        | BadReason::NotUtf8 { .. } => {
            let fix = row.row.reason.kind().fix;
            let kept = Remedy::from(format!(
                "{stays}: fix the cause ({fix}) and start walrelay again; or publish it to the dead-letter topic: "
            ))
            .and(decided(row, "dead-letter"));
            let replay = Command::new("dead-letters").flag("--replay");
            let kept = if row.readable {
                kept.and("; ").and(replay).and(" publishes it where it belongs once the cause is fixed")
            } else {
                kept
            };
            kept.and("; or skip it: ").and(decided(row, "skip"))
        }
    }
}

/// How many there are, for people.
fn shards(count: u8) -> String {
    if count == 1 { "1 shard".to_owned() } else { format!("{count} shards") }
}

fn moved_hint(shard: Option<Shard>, to: u8) -> Remedy {
    let (index, last) = (shard.map_or(0, Shard::index), to.saturating_sub(1));
    let all = if last == 0 { String::new() } else { format!("; one relay for each shard from 0/{to} to {last}/{to}") };
    let run = |index: u8| Remedy::from(run().set("--shard", format!("{index}/{to}")));
    let remedy = if index < to {
        run(index)
    } else {
        Remedy::from("this relay is no longer needed; the new ones are: ").and(run(0))
    };
    remedy.and(format!("{all}; nothing is missing"))
}

fn no_slot_hint(slot: &str, was_there: bool) -> Remedy {
    let make = setup().set("--slot", slot);
    if was_there {
        Remedy::from("it was there before, so rows may be missing: compare the table with the topic, then ")
            .and(make)
            .and(format!(
                "; the rows in between pass through no slot: the SQL statement in {REPUBLISH_PAGE} publishes them"
            ))
    } else {
        Remedy::from("never created: ")
            .and(make.clone())
            .and(". Lost: rows committed since are in no slot; compare the table with the topic, then ")
            .and(make)
            .and(format!(", and the SQL statement in {REPUBLISH_PAGE} for those rows"))
    }
}

fn postgres_hint(error: &pg::Error) -> Option<Remedy> {
    if let pg::Error::Frame(FrameError::TooLarge { length, .. }) = error {
        let run = run().set("--max-row", room_for(*length));
        return Some(Remedy::from(run).and(" if a row may be so large; the slot stays before its transaction"));
    }
    if let pg::Error::Locked { holder, .. } = error {
        return holder.release().map(|sql| format!("wait for that transaction to end, or end it: {sql}").into());
    }
    if let pg::Error::Tls { .. } | pg::Error::File { .. } = error {
        return Some(
            "sslrootcert=FILE in --source with the certificate of the server's authority (sslrootcert=system: the operating system's authorities), and the host's name as the server's certificate has it; sslmode=require encrypts and verifies nothing; sslmode=disable where the server has no TLS".into(),
        );
    }
    if let pg::Error::ClearText { .. } = error {
        return Some(
            "sslmode=require in --source (better: verify-full), once the server has TLS (ssl = on); or let pg_hba.conf ask for scram-sha-256 instead of password; or sslmode=disable, which sends the password as it is".into(),
        );
    }
    if let pg::Error::Authentication { .. } = error {
        return Some(
            "set the user's password, or its token: PGPASSWORD, ~/.pgpass, --source-password-file FILE or --source-password-command COMMAND; where the connection cannot be bound: channel_binding=prefer".into(),
        );
    }
    if let Some(right) = pg::right_to_note(error, "…") {
        return Some(Remedy::sql(right));
    }
    Some(match (error, error.code()?) {
        (_, "28P01") => "check user and password (PGPASSWORD, ~/.pgpass, WALRELAY_SOURCE)".into(),
        (_, "28000") => "the server's pg_hba.conf has no line that lets this user in from here (where its lines are for TLS alone: sslmode=require in --source), or the role does not exist or may not log in".into(),
        (_, sqlstate::NO_DATABASE) => "name the database in --source: postgres://user@host/DATABASE".into(),
        (_, sqlstate::INSUFFICIENT_PRIVILEGE) => {
            "the role needs to replicate: ALTER ROLE … REPLICATION; (managed services: GRANT rds_replication TO …;, or their own role)".into()
        }
        (_, sqlstate::LIMIT_EXCEEDED) => "raise max_replication_slots, or drop a slot that nobody uses".into(),
        (_, sqlstate::UNTRANSLATABLE_CHARACTER) => Remedy::from(
            "some row has a text with bytes that are no character of the database's encoding, so Postgres cannot send it: correct it with UPDATE (the message has the bytes); the slot has the row as it was, so a new slot leaves it out: ",
        )
        .and(Command::new("teardown").flag("--yes"))
        .and(" && ")
        .and(setup())
        .and(format!("; {NONE_BEFORE}")),
        (pg::Error::Server { error, .. } | pg::Error::LoginRefused { error, .. }, _) if !error.hint.is_empty() => {
            error.hint.clone().into()
        }
        (pg::Error::LoginRefused { .. }, _) => LOGIN_RULE.into(),
        (_, _) => return None,
    })
}
