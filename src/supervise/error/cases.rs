//! The errors of a run that have a text of their own, each with its exit code and its remedy.
//!
//! In: names and numbers. Out: a [`RunError`]. Pure. `tests/golden/hints.txt` shows each of them as the user sees it.

use super::ExitKind::{Operator, Restart};
use super::{Explained, RunCause, RunError};
use crate::lsn::Lsn;
use crate::outbox::{BadReason, TableName};
use crate::pg::frame::FrameError;
use crate::pg::shard::Shard;
use crate::pg::{self, identifier, sqlstate};
use crate::relay::{BadRowAt, LastTransaction, NextRow};
use crate::remedy::{Command, Remedy};
use crate::setting_text::shell_quoted;
use crate::sink::Failure;
use std::time::Duration;

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

/// The server and the publication.
impl RunError {
    /// `wal_level` does not allow logical decoding. `found`: what it is.
    pub(crate) fn wal_level(found: &str) -> Self {
        let remedy = Remedy::sql("ALTER SYSTEM SET wal_level = logical;").and(
            " then restart Postgres (managed services: the parameter rds.logical_replication, cloudsql.logical_decoding, …)",
        );
        Self::ended(Operator, format!("wal_level is {found}, logical decoding needs wal_level = logical"), remedy)
    }

    /// No such publication.
    pub(crate) fn no_publication(publication: &str, database: &str) -> Self {
        let make = setup().set("--publication", publication).set("--table", "SCHEMA.TABLE");
        let remedy = Remedy::from(make).and(format!(
            ", or: CREATE PUBLICATION {} FOR TABLE … WITH (publish = 'insert');",
            identifier(publication)
        ));
        let (publication, database) = (publication.to_owned(), database.to_owned());
        Self::ended(Operator, RunCause::NoPublication { publication, database }, remedy)
    }

    /// The publication carries no inserts.
    pub(crate) fn no_inserts(publication: &str) -> Self {
        let remedy = altered(publication, "SET (publish = 'insert')", "SCHEMA.TABLE");
        Self::ended(Operator, format!("publication \"{publication}\" does not publish inserts"), remedy)
    }

    /// The publication has no table.
    pub(crate) fn no_tables(publication: &str) -> Self {
        let remedy = altered(publication, "ADD TABLE public.outbox", "public.outbox");
        Self::ended(Operator, RunCause::NoTables { publication: publication.to_owned() }, remedy)
    }

    /// The publication was made after the slot, or recreated: at the slot's LSN it did not exist.
    pub(crate) fn publication_too_new(publication: &str, slot: &str) -> Self {
        let text = format!("publication \"{publication}\" was created after the position of slot \"{slot}\"");
        let remedy = Remedy::from(
            "Postgres decodes WAL with the catalog as it was at that position, so this slot cannot pass it: ",
        )
        .and(Remedy::new_slot(slot))
        .and(format!(
            "; rows committed before that are in no slot: compare the table with the topic, then publish what is missing by the SQL statement in {REPUBLISH_PAGE}"
        ));
        Self::ended(Operator, text, remedy)
    }

    /// A table that was asked for is not in the publication, which has those that are `published`.
    pub(crate) fn table_not_published(table: TableName, publication: &str, published: Vec<String>) -> Self {
        let remedy = altered(publication, &format!("ADD TABLE {}", table.sql()), &table.as_typed());
        let (table, publication) = (Box::new(table), publication.to_owned());
        Self::ended(Operator, RunCause::TableNotPublished { table, publication, published }, remedy)
    }

    /// The publication is of `all` tables, or of schemas, and no table was asked for. `messages`: logical messages were.
    pub(crate) fn grows(publication: &str, all: bool, messages: bool) -> Self {
        let remedy = Remedy::from(run().set("--table", "SCHEMA.TABLE"));
        let remedy = if messages { remedy.and(for_messages(publication)) } else { remedy };
        Self::ended(Operator, RunCause::Grows { publication: publication.to_owned(), all, messages }, remedy)
    }

    /// A table that was asked for is a partition, and its rows come as those of `root`. `tables`: `--table`, with `root` instead.
    pub(crate) fn comes_as_root(table: &TableName, root: &TableName, publication: &str, tables: &[TableName]) -> Self {
        let text = format!(
            "rows of table {table} come as rows of {root}: publication \"{publication}\" has publish_via_partition_root = true"
        );
        let run = tables.iter().fold(run(), |run, table| run.set("--table", table.as_typed()));
        Self::ended(Operator, text, Remedy::from(run).and("; rows of the other partitions are published, too"))
    }

    /// Tables that were asked for, or their partitions, are `UNLOGGED`.
    pub(crate) fn unlogged(tables: &[TableName]) -> Self {
        let what = if tables.len() == 1 { "table" } else { "tables" };
        let text = format!("{what} {} UNLOGGED: rows there are in no slot", listed(tables, ("is", "are")));
        let sql: Vec<String> = tables.iter().map(|table| format!("ALTER TABLE {} SET LOGGED;", table.sql())).collect();
        let first = tables.first().map(TableName::as_typed).unwrap_or_default();
        Self::ended(Operator, text, Remedy::sql(sql.join(" ")).and(not_sent(&first)))
    }

    /// A partition is a foreign table.
    pub(crate) fn foreign_partition(table: &TableName, parent: &TableName) -> Self {
        let text = format!(
            "partition {table} of {parent} is a foreign table: rows that are written to it are in the WAL of another server, and in no slot here"
        );
        let remedy = Remedy::sql(format!("ALTER TABLE {} DETACH PARTITION {};", parent.sql(), table.sql()))
            .and(" -- if the other server has an outbox of its own, it needs a relay of its own");
        Self::ended(Operator, text, remedy)
    }

    /// The publication has some partitions of `root`, and not these. `sql`: the statement that publishes them. `None`: the other ones differ
    /// in what is published of them.
    pub(crate) fn partitions_not_published(
        root: &TableName,
        partitions: &[TableName],
        publication: &str,
        sql: Option<String>,
    ) -> Self {
        let what = if partitions.len() == 1 { "partition" } else { "partitions" };
        let text = format!(
            "{what} {} not in publication \"{publication}\", which has others of {root}: rows there are in no slot",
            listed(partitions, ("is", "are"))
        );
        let remedy = match sql {
            Some(sql) => Remedy::sql(sql).and(not_sent(&root.as_typed())),
            None => format!(
                "ALTER PUBLICATION {} ADD TABLE …, with the row filter and the columns that these partitions need (the others differ in theirs); or name with --table those partitions alone whose rows are to be published",
                identifier(publication)
            )
            .into(),
        };
        Self::ended(Operator, text, remedy)
    }

    /// Tables inherit from one that was asked for, and nothing says whether their rows are wanted. `publish`: what publishes them. `None`: they
    /// cannot be published. `leave_out`: the command that leaves them out.
    pub(crate) fn children_unsaid(
        parent: &TableName,
        children: &[TableName],
        publish: Option<Remedy>,
        leave_out: Command,
    ) -> Self {
        let (what, them) = if children.len() == 1 { ("table", "it has") } else { ("tables", "they have") };
        let text = format!(
            "{what} {} from {parent}, and nothing says whether rows that {them} are to be published",
            listed(children, ("inherits", "inherit"))
        );
        let remedy = match publish {
            Some(publish) => Remedy::from("to publish them: ")
                .and(publish)
                .and("; to leave them out (an archive has each row a second time): "),
            None => "foreign tables are in no slot; to leave them out: ".into(),
        };
        Self::ended(Operator, text, remedy.and(leave_out))
    }

    /// `--origin local` with a server of this version.
    pub(crate) fn no_origin(version: &str) -> Self {
        let text = format!("--origin local needs Postgres 16, and this server has version {version}");
        let remedy = "before 16, Postgres cannot leave out rows that a subscription applied: --origin any, and a publication without the tables that the subscription writes";
        Self::ended(Operator, text, Remedy::from(remedy))
    }

    /// A table that was asked for has another name `now`. Its id is the same. `tables`: `--table`, with that name.
    pub(crate) fn table_renamed(table: &TableName, now: &TableName, tables: &[TableName]) -> Self {
        let run = tables.iter().fold(run(), |run, table| run.set("--table", table.as_typed()));
        let remedy = Remedy::from(run).and("; rows that it got under its earlier name are published, too");
        Self::ended(Operator, format!("table {table} was renamed to {now}"), remedy)
    }

    /// `table.include.list` fits no table of the publication, which has those that are `published`.
    pub(crate) fn nothing_captured(patterns: &str, publication: &str, published: &[String]) -> Self {
        let text = format!(
            "no table of publication \"{publication}\" is captured by {patterns}: it has {}",
            published.join(", ")
        );
        let remedy = format!(
            "name the publication's tables with --table; or ALTER PUBLICATION {} ADD TABLE …;{}",
            identifier(publication),
            not_sent("SCHEMA.TABLE")
        );
        Self::ended(Operator, text, remedy)
    }
}

/// The slot.
impl RunError {
    /// No such slot; the publication is there. `was_there`: a slot was there before, as the publication's comment or this run knows.
    pub(crate) fn no_slot(slot: &str, was_there: bool) -> Self {
        let make = setup().set("--slot", slot);
        let remedy = if was_there {
            Remedy::from("it was there before, so rows may be missing: compare the table with the topic, then ")
                .and(make.flag("--after-loss"))
                .and(format!(
                    "; the rows in between pass through no slot: the SQL statement in {REPUBLISH_PAGE} publishes them"
                ))
        } else {
            Remedy::from("never created: ")
                .and(make.clone())
                .and(". Lost: rows committed since are in no slot; compare the table with the topic, then ")
                .and(make)
                .and(format!(", and the SQL statement in {REPUBLISH_PAGE} for those rows"))
        };
        Self::ended(Operator, RunCause::NoSlot { slot: slot.to_owned(), was_there }, remedy)
    }

    /// The connection is gone, and with it the temporary slot.
    pub(crate) fn temporary_slot_gone(slot: &str) -> Self {
        let text = format!("the connection with the temporary slot \"{slot}\" was lost, and the slot with it");
        Self::ended(Restart, text, "run the same command again")
    }

    /// The setup that creates the slot was ended before the slot was marked.
    pub(crate) fn setup_unfinished(slot: &str, publication: &str) -> Self {
        let text = format!("the setup of slot \"{slot}\" has begun and not ended: the slot is not marked yet");
        let remedy = Remedy::from("run it once more, it resumes where it stopped: ")
            .and(setup().set("--publication", publication).set("--slot", slot));
        Self::ended(Operator, text, remedy)
    }

    /// The comment on the publication has a `line` with the slot's name, or about a move, in a form that is not known.
    pub(crate) fn unknown_marker(slot: &str, publication: &str, line: &str) -> Self {
        let text = format!(
            "the comment on publication \"{publication}\" has a line about slot \"{slot}\" in a form that this version does not know: {line}"
        );
        let remedy = "run the walrelay that has written it, or a newer one; if walrelay has not written it, begin it with another word than walrelay";
        Self::ended(Operator, text, remedy)
    }

    /// The rows are published by the relays of `to` shards now. `from`: `shard 1/3`, or the slot that all rows were in. `shard`: the one
    /// that it was; `None`: all rows were in one slot.
    pub(crate) fn shards_moved(from: &str, shard: Option<Shard>, to: u8) -> Self {
        let (index, last) = (shard.map_or(0, Shard::index), to.saturating_sub(1));
        let all =
            if last == 0 { String::new() } else { format!("; one relay for each shard from 0/{to} to {last}/{to}") };
        let run = |index: u8| Remedy::from(run().set("--shard", format!("{index}/{to}")));
        let remedy = if index < to {
            run(index)
        } else {
            Remedy::from("this relay is no longer needed; the new ones are: ").and(run(0))
        };
        let shards = if to == 1 { "1 shard".to_owned() } else { format!("{to} shards") };
        let text = format!("{from} is closed: its rows were moved to {shards}");
        Self::ended(Operator, text, remedy.and(format!("{all}; nothing is missing")))
    }

    /// The slot belongs to the database `found`, and the source's is `wanted`.
    pub(crate) fn slot_of_other_database(slot: &str, found: &str, wanted: &str) -> Self {
        let remedy = Remedy::from("for a slot of this database: ")
            .and(another_slot(slot, wanted))
            .and(format!("; {NONE_BEFORE}; or connect to that database (--source …/{found})"));
        let text = format!(
            "replication slot \"{slot}\" belongs to database \"{found}\", not to \"{wanted}\" (slot names are cluster-wide)"
        );
        Self::ended(Operator, text, remedy)
    }

    /// The slot has another output plugin, or none. `found`: what it is.
    pub(crate) fn slot_of_other_plugin(slot: &str, found: &str) -> Self {
        Self::slot_of_other_kind(slot, &format!("is {found}, walrelay needs a logical slot of plugin pgoutput"))
    }

    /// The slot goes with its session.
    pub(crate) fn temporary_slot(slot: &str) -> Self {
        Self::slot_of_other_kind(slot, "is temporary: it ends with the session that created it")
    }

    /// The slot sends prepared transactions.
    pub(crate) fn two_phase_slot(slot: &str) -> Self {
        Self::slot_of_other_kind(slot, "was created with two_phase = true, which walrelay does not read")
    }

    /// The slot is none that a relay can read. `why`: what it is.
    fn slot_of_other_kind(slot: &str, why: &str) -> Self {
        let remedy =
            Remedy::from("under another name: ").and(another_slot(slot, "relay")).and(format!("; {NONE_BEFORE}"));
        Self::ended(Operator, format!("replication slot \"{slot}\" {why}"), remedy)
    }

    /// The slot can no longer be read. It has `confirmed` that position last.
    pub(crate) fn slot_lost(slot: &str, reason: String, confirmed: Lsn) -> Self {
        let remedy = Remedy::from("find the rows that never arrived (compare the table with the topic), then: ")
            .and(Remedy::new_slot(slot))
            .and(format!(
                ", and the SQL statement in {REPUBLISH_PAGE} for those rows; so that it does not happen again: {}",
                prevention(&reason)
            ));
        Self::ended(Operator, RunCause::SlotLost { slot: slot.to_owned(), reason, confirmed }, remedy)
    }

    /// The slot is ahead of what was `read`, and nothing proves that it is the same slot.
    pub(crate) fn slot_unproven(slot: &str, read: Lsn, confirmed: Lsn) -> Self {
        let text = format!(
            "replication slot \"{slot}\" is at {confirmed} and was read up to {read}: nothing proves that it is the slot that was read, so rows in between may be in none"
        );
        let remedy = Remedy::from(format!(
            "either it was dropped and created again, or advanced by hand (Terraform, Patroni, walrelay teardown and setup, pg_replication_slot_advance): rows committed between {read} and {confirmed} are in no slot, so compare the table with the topic, then, as the publication's owner, "
        ))
        .and(setup().set("--slot", slot).flag("--after-loss"))
        .and(format!(
            ", and the SQL statement in {REPUBLISH_PAGE} for rows that are missing; or another relay read it and left no trace, since the server lost its statistics in a crash: nothing is missing. Then: "
        ))
        .and(run().set("--slot", slot).set("--accept-slot-at", confirmed));
        Self::ended(Operator, text, remedy)
    }

    /// The relay could not note what it reads, and an earlier note says something else. `grant` gives the right that is missing.
    pub(crate) fn not_noted(slot: &str, grant: Option<String>, error: pg::Error) -> Self {
        let remedy = grant.map_or_else(
            || Remedy::from("let the relay's role write: a note is the comment on an empty large object of its own."),
            Remedy::sql,
        );
        let remedy = remedy.and(" Or run it with the tables and the id column that it had before");
        let error = Self::from(error);
        let text = format!(
            "what the relay of slot \"{slot}\" reads has changed, and cannot be recorded: walrelay prune would delete rows that are in no topic: {error}"
        );
        Self::ended(Operator, text, remedy)
    }

    /// The slot is not the one that the setup marker is for, which was `marked` at that position of the WAL.
    pub(crate) fn slot_not_marked(slot: &str, publication: &str, marked: Lsn, confirmed: Lsn) -> Self {
        let text = format!(
            "replication slot \"{slot}\" (at {confirmed}) is not the one that publication \"{publication}\" was marked for at {marked}: it was never read from there"
        );
        let remedy = Remedy::from(format!(
            "it was dropped and created again, or advanced by hand: rows committed before {confirmed} may be in no slot, so compare the table with the topic; then, as the publication's owner, "
        ))
        .and(setup().set("--slot", slot).flag("--after-loss"))
        .and(format!(" (or --accept-slot-at {confirmed} with "))
        .and(run())
        .and(format!("), and the SQL statement in {REPUBLISH_PAGE} for rows that are missing"));
        Self::ended(Operator, text, remedy)
    }
}

/// Another server instead of the one that was read.
impl RunError {
    /// The server behind the address is another one. `before` and `found`: their system identifiers.
    pub(crate) fn other_cluster(before: &str, found: &str) -> Self {
        Self::other_server(format!(
            "the server is another cluster now (system identifier {found}, before {before}): nothing was read from it"
        ))
    }

    /// The server's WAL ends at `flushed`, before a position that it has sent.
    pub(crate) fn older_copy(seen: Lsn, flushed: Lsn) -> Self {
        Self::other_server(format!(
            "the server's WAL ends at {flushed}, but it has sent rows up to {seen}: an older copy of the cluster is in its place now, nothing was read from it"
        ))
    }

    /// No progress is stored, and the slot, which is at `confirmed`, has been read.
    pub(crate) fn no_progress(confirmed: Lsn) -> Self {
        let text = "Kafka has no progress of this slot, and the slot has been read: rows that were committed to Kafka exactly once, and not confirmed to Postgres, would be published again; nothing was read";
        let remedy = Remedy::from(
            "only the last transactions of a relay that was killed are such rows; if you accept that, or if no relay of this slot had --delivery exactly-once before: ".to_owned(),
        )
        .and(run().set("--accept-slot-at", confirmed));
        Self::ended(Operator, text.to_owned(), remedy)
    }

    /// The server's history has not the last transaction that was published. The slot is at `confirmed`.
    pub(crate) fn other_history(published: &LastTransaction, confirmed: Lsn) -> Self {
        let LastTransaction { final_lsn, xid, .. } = published;
        let text = format!(
            "the transaction at {final_lsn} (xid {xid}), published last, is not in this server's history: the progress in Kafka is of a copy of the cluster, or this server is one; nothing was read"
        );
        let remedy = Remedy::from(
            "find the other relay, which reads a copy of this cluster (a restored or cloned one) under the same slot name, and give it another Kafka cluster or another --slot; a change of --message-prefix or --origin hides a transaction as well: undo it. If this server is the right one, resume at its slot's position, where rows that were published and not confirmed repeat: ".to_owned(),
        )
        .and(run().set("--accept-slot-at", confirmed));
        Self::ended(Operator, text, remedy)
    }

    fn other_server(text: String) -> Self {
        let remedy = format!(
            "if you want to read that server (such as a restored copy), restart walrelay: it begins at the position of its slot there. Exactly once remembers the old cluster: then use another --slot, which walrelay setup creates; {NONE_BEFORE}"
        );
        Self::ended(Operator, text, remedy)
    }

    /// The server is on the timeline `found`, earlier than the one that was read: the old primary is back in the promoted one's place.
    pub(crate) fn earlier_timeline(before: u32, found: u32) -> Self {
        let text = format!(
            "the server is on timeline {found}, and rows of timeline {before} were read: an earlier timeline of the cluster is in its place now, nothing was read from it"
        );
        let remedy = format!(
            "two servers of the cluster may be taking writes: keep clients away from the old primary; if you want to read it, restart walrelay. Exactly once remembers the newer timeline: then use another --slot, which walrelay setup creates; {NONE_BEFORE}"
        );
        Self::ended(Operator, text, remedy)
    }

    /// The server is a standby, and delivery is exactly once.
    pub(crate) fn on_standby() -> Self {
        let text = "exactly once cannot read from a standby: when that is promoted, the relay's progress would be another timeline's";
        let remedy = "set --source to the primary's address, or to all hosts with target_session_attrs=read-write; or use --delivery at-least-once";
        Self::ended(Operator, text.to_owned(), remedy)
    }
}

/// A row cannot be published.
impl From<Box<BadRowAt>> for RunError {
    fn from(mut row: Box<BadRowAt>) -> Self {
        let Some((topic, failure)) = row.dead_letter_refused.take() else {
            let remedy = of_bad_row(&row);
            return Self::ended(Operator, RunCause::BadRow { row }, remedy);
        };
        Self::dead_letter(&row, &topic, failure)
    }
}

/// The delivery.
impl RunError {
    /// A row cannot be published, and not be put into the dead-letter topic either.
    fn dead_letter(row: &BadRowAt, topic: &str, failure: Failure) -> Self {
        let text = format!(
            "a row of {} cannot be published ({}), and dead-letter topic {topic} does not take it",
            row.row.table, row.row.reason
        );
        let remedy = Remedy::from(format!(
            "{}: create topic {topic}, give it room or the right to write it, or name another with --dead-letter-topic, and start walrelay again; or skip the row: ",
            where_it_stays(row)
        ))
        .and(decided(row, "skip"));
        let cause = Explained { text, source: failure.into() };
        Self::ended(Operator, RunCause::Other(cause.into()), remedy)
    }

    /// The graceful shutdown ran out of time, with so many records in flight.
    pub(crate) fn stop_timed_out(in_flight: u64) -> Self {
        Self::ended(Restart, RunCause::StopTimedOut { in_flight }, LONGER_SHUTDOWN)
    }

    /// Everything is published, but Postgres may not have heard of it: it should have confirmed `lsn`.
    pub(crate) fn stop_unconfirmed(lsn: Lsn) -> Self {
        Self::ended(Restart, RunCause::StopUnconfirmed { lsn }, LONGER_SHUTDOWN)
    }

    /// The relay cannot read the progress that Kafka has in the record with this key and value.
    pub(crate) fn strange_progress(key: &str, value: &str) -> Self {
        let text =
            format!("the progress kept in Kafka under {key} has a form that this version does not know: {value}");
        let remedy = format!(
            "run the walrelay that has written it, or a newer one; if none has, use another Kafka cluster, or another --slot, which walrelay \
             setup creates: {NONE_BEFORE}"
        );
        Self::ended(Operator, text, remedy)
    }

    /// Postgres cannot send the row that is to come next, for the reason `why`.
    pub(crate) fn unsent_row(next: &NextRow, why: &str) -> Self {
        let NextRow { position, is_begun, table } = next;
        let (table, commits) = (table.as_ref().map(|table| format!(" of {table}")), position.final_lsn);
        let what = if *is_begun {
            format!("row{} at {position}, in the transaction that commits at {commits}", table.unwrap_or_default())
        } else {
            format!("next transaction, which commits at {commits} or later")
        };
        Self::ended(Operator, format!("Postgres cannot send the {what}: {why}"), UNSENT)
    }

    /// A transaction takes longer than a Kafka transaction may, after so many `records`.
    pub(crate) fn transaction_too_long(records: u64, timeout: Duration) -> Self {
        let text = format!(
            "a transaction is too large for exactly once: {records} records were sent, and it has not ended in the {} s that a Kafka transaction may take",
            timeout.as_secs()
        );
        let remedy = Remedy::from(run().set("-X", "transaction.timeout.ms=900000"))
            .and(" if the brokers' transaction.max.timeout.ms allows it; or publish it once with ")
            .and(run().set("--delivery", "at-least-once"))
            .and(", then return to exactly-once");
        Self::ended(Operator, text, remedy)
    }
}

/// The hint for a row that Postgres cannot send.
const UNSENT: &str = "fix what the server names (a library that is missing, its memory); a row whose text is too long for Postgres can never be sent: docs/errors.md, \"Postgres cannot send a row\", says how to get past its transaction and publish the others of it";

const LONGER_SHUTDOWN: &str =
    "consumers that keep ids of processed events are not affected; a longer --shutdown-timeout waits longer";

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

/// The most tables that a text names.
const MOST_NAMED: usize = 5;

/// Names tables, and says `verb` of one or of several: `public.a is`, `public.a, public.b and 7 more are`.
fn listed(tables: &[TableName], verb: (&str, &str)) -> String {
    let names: Vec<String> = tables.iter().take(MOST_NAMED).map(ToString::to_string).collect();
    let more = tables.len().saturating_sub(MOST_NAMED);
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    format!("{}{more} {}", names.join(", "), if tables.len() == 1 { verb.0 } else { verb.1 })
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
    Remedy::sql(format!("ALTER PUBLICATION {} {change};", identifier(publication))).and(not_sent(table))
}

/// Goes along with commands that name tables: a publication without tables, for messages alone.
pub(in crate::supervise) fn for_messages(publication: &str) -> String {
    let name = identifier(&format!("{publication}_messages"));
    format!("; for messages alone, a publication without tables: CREATE PUBLICATION {name} WITH (publish = 'insert');")
}

/// Goes along with SQL that makes a publication send more, as a comment in it: Postgres decodes each row by the catalogue of its time.
pub(in crate::supervise) fn not_sent(table: &str) -> String {
    format!(
        " -- rows committed before that are not sent, also those that the slot has yet to pass: the SQL statement in {REPUBLISH_PAGE} publishes them from {}",
        shell_quoted(table)
    )
}

fn where_it_stays(row: &BadRowAt) -> String {
    let which = row.row.id.as_ref().map_or_else(|| "the row".to_owned(), |id| format!("the row with id {id}"));
    format!("{which} stays unpublished at {}, and the slot before it at {}", row.position, row.confirmed)
}

fn of_bad_row(row: &BadRowAt) -> Remedy {
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
            "{stays}: if it was a partition that was detached or dropped, or a child, name it with --table as well until the slot has passed its rows (if it is no longer in the publication, add {} to it again, recreated if need be; or, where the publication has outboxes alone and names them, leave out --table for that time); if it was no outbox table, --bad-row-at {at}=skip; then start walrelay again",
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
        | BadReason::Named
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

/// Returns what fixes an error of Postgres, as far as its code tells it.
pub(super) fn of_postgres(error: &pg::Error) -> Option<Remedy> {
    if let pg::Error::Frame(FrameError::TooLarge { length, .. }) = error {
        let run = run().set("--max-row", room_for(*length));
        return Some(Remedy::from(run).and(" if a row may be so large; the slot stays before its transaction"));
    }
    if let pg::Error::Locked { holder, .. } = error {
        return holder.way_to_end().map(|sql| format!("wait for that transaction to end, or end it: {sql}").into());
    }
    if let pg::Error::SlotUnfinished { slot } = error {
        return Some(format!("older transactions must end first; their processes (0: a prepared transaction): SELECT pg_blocking_pids(active_pid) FROM pg_replication_slots WHERE slot_name = {};", pg::literal(slot)).into());
    }
    if let pg::Error::UnsupportedKey { .. } = error {
        return Some(
            "on the server, a new key and certificate, for instance: openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout server.key -out server.csr, signed by the server's authority".into(),
        );
    }
    if let pg::Error::Tls { .. } | pg::Error::File { .. } = error {
        return Some(
            "sslrootcert=FILE in --source with the certificate of the server's authority (sslrootcert=system: the operating system's authorities), and the host's name as the server's certificate has it; sslmode=require encrypts and verifies nothing; sslmode=disable where the server has no TLS".into(),
        );
    }
    if let pg::Error::SlowScram { .. } = error {
        return Some(
            "on the server, set the role's password again with fewer iterations: SET scram_iterations = 600000; ALTER ROLE … PASSWORD …;".into(),
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
    let said = error.server_error();
    Some(match (error, error.code()?) {
        (_, "28P01") => "check user and password (PGPASSWORD, ~/.pgpass, WALRELAY_SOURCE)".into(),
        (_, "28000") => "the server's pg_hba.conf has no line that lets this user in from here (where its lines are for TLS alone: sslmode=require in --source), or the role does not exist or may not log in".into(),
        (_, sqlstate::NO_DATABASE) => "name the database in --source: postgres://user@host/DATABASE".into(),
        (_, sqlstate::INSUFFICIENT_PRIVILEGE) if said.is_some_and(pg::ServerError::lacks_a_right) => {
            "the role needs to replicate: ALTER ROLE … REPLICATION; (managed services: GRANT rds_replication TO …;, or their own role)".into()
        }
        (_, sqlstate::LIMIT_EXCEEDED) if said.is_some_and(pg::ServerError::lacks_a_free_slot) => "raise max_replication_slots, or drop a slot that nobody uses".into(),
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
        // What a server refuses for a time, as while it recovers, is over by itself.
        (pg::Error::LoginRefused { error, .. }, _) if error.recovery() == pg::Recovery::Stop => LOGIN_RULE.into(),
        (_, _) => return None,
    })
}
