//! The errors of commands that have words of their own, each with its exit code and its remedy.
//!
//! In: names and numbers. Out: a [`CommandError`]. Pure. `tests/golden/hints.txt` shows each of them as the user sees it.

use super::{CommandCause, CommandError};
use crate::commands::output::{duration, session, setup_shards, teardown_shards};
use crate::lsn::Lsn;
use crate::outbox::TableName;
use crate::pg::catalog::ServerSession;
use crate::pg::shard::Shard;
use crate::pg::{identifier, literal};
use crate::relay::BadRowAt;
use crate::remedy::{Command, Remedy};
use crate::setting_text::shell_quoted;
use crate::sink::destination::{NoDeadLetters, NoReader, ScratchError};
use crate::sink::{Failure, FailureClass};
use crate::supervise::ExitKind::{Operator, Restart, Settings};
use crate::supervise::{ExitKind, REPUBLISH_PAGE};
use std::io;
use std::time::Duration;

/// Settings that do not fit each other or what is there.
impl CommandError {
    /// A flag is missing that only a look at the database shows to be needed.
    pub(in crate::commands) fn flag_needed(flag: &str, why: &str, example: impl Into<Remedy>) -> Self {
        Self::said(Settings, format!("{flag} is needed: {why}")).with_remedy(example)
    }

    pub(in crate::commands) fn no_table(table: &TableName, database: &str) -> Self {
        Self::said(Operator, format!("table {table} does not exist in database \"{database}\"")).with_remedy(
            "check the name (schema.table; capitals need double quotes, as in SQL) and the database in --source, or let setup create it: --create-table",
        )
    }

    /// `--failover` on a server that has no such slots.
    pub(in crate::commands) fn no_failover_slots(version: &str) -> Self {
        Self::said(Settings, format!("--failover needs Postgres 17 or later; this is {version}"))
            .with_remedy("leave --failover out; after a promotion the slot has to be created again on the new primary")
    }

    pub(in crate::commands) fn nobody_to_ask(command: &str) -> Self {
        Self::said(Settings, format!("{command} asks first, and standard input is no terminal"))
            .with_remedy("if that is what you want, add --yes")
    }

    /// The address of `--http` is none.
    pub(in crate::commands) fn no_address(address: &str, source: io::Error) -> Self {
        Self::explained(Settings, format!("cannot look up --http {address}"), source)
    }
}

/// Ends of a process.
impl CommandError {
    /// The command was stopped on request.
    pub(in crate::commands) const fn interrupted() -> Self {
        Self::new(Restart, CommandCause::Interrupted)
    }

    /// Nobody reads what the command says. What it had to do is done, unless it had to ask.
    pub(in crate::commands) fn unheard(source: io::Error) -> Self {
        Self::explained(Restart, "not all of the output could be written".to_owned(), source)
    }

    /// The relay's thread ended without a word.
    pub(in crate::commands) fn vanished() -> Self {
        Self::said(Restart, "the relay's thread ended unexpectedly")
    }

    /// The time for a graceful shutdown is over.
    pub(in crate::commands) const fn unanswered() -> Self {
        let text = "stopped while waiting for an answer: what was delivered and not confirmed will be published again";
        Self::new(Restart, CommandCause::Left(text))
    }

    /// A second signal of this number came.
    pub(in crate::commands) const fn killed(signal: u8) -> Self {
        Self::new(ExitKind::Signal(signal), CommandCause::Left("stopped at once by a second signal"))
    }
}

/// Slots, relays, and what `check` found.
impl CommandError {
    /// The slot would be created, but `user` may not record that. `sql` lets the owner do that once the slot is there.
    pub(in crate::commands) fn not_markable(publication: &str, user: &str, sql: &str) -> Self {
        let text = format!(
            "publication \"{publication}\" belongs to another role, so that it cannot be marked: a slot that is lost later would not be noticed; nothing was changed"
        );
        let owner = format!("ALTER PUBLICATION {} OWNER TO {};", identifier(publication), identifier(user));
        let remedy = Remedy::from("run as the publication's owner: ").and(setup());
        Self::said(Operator, text).with_remedy(
            remedy.and(format!(
                "; or as a superuser: {owner} or create the slot by hand, and then, as the owner: {sql};"
            )),
        )
    }

    /// A server process reads the slot.
    pub(in crate::commands) fn slot_in_use(slot: &str, pid: Option<u32>, reading: Option<&ServerSession>) -> Self {
        let process = pid.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"));
        let reader = reading.map_or(process, session);
        let pid = pid.map_or_else(|| "PID".to_owned(), |pid| pid.to_string());
        Self::said(Operator, format!("replication slot \"{slot}\" is in use by {reader}")).with_remedy(format!(
            "stop the relay that reads it; if that is gone and the server has not noticed: SELECT pg_terminate_backend({pid});"
        ))
    }

    /// No setup marker of the database names the slot.
    pub(in crate::commands) fn unmarked_slot(slot: &str) -> Self {
        let text = format!(
            "replication slot \"{slot}\" is not one that walrelay has set up in this database: another program may need it"
        );
        Self::said(Operator, text)
            .with_remedy("check the name (--slot, WALRELAY_SLOT); if it is the one to drop, add --unmarked")
    }

    /// A reader of another slot is seen to read the publication.
    pub(in crate::commands) fn read_by_another(publication: &str, slot: &str) -> Self {
        Self::said(Operator, format!("slot \"{slot}\" is read with publication \"{publication}\", too: without it, its reader stops or loses rows"))
            .with_remedy("let that reader use a publication of its own, or stop it and drop its slot first")
    }

    /// Nobody sees what another slot is read with.
    pub(in crate::commands) fn may_be_read(publication: &str, slot: &str) -> Self {
        Self::said(Operator, format!("slot \"{slot}\" may be read with publication \"{publication}\", too: nobody reads it now, or this role may not see with what"))
            .with_remedy(format!("find out which publication its reader uses; if it is another one, or the slot is not needed: --also-read-by {slot}"))
    }

    /// There is something else now than what was agreed to.
    pub(in crate::commands) fn changed_meanwhile() -> Self {
        Self::said(Restart, "slot or publication were changed since they were looked at: nothing was dropped")
            .with_remedy("run the same command again: it looks at what there is now")
    }

    /// The relay is not ready, in its own words.
    pub(in crate::commands) fn not_ready(reason: &str) -> Self {
        Self::said(Restart, format!("not ready: {reason}"))
    }

    pub(in crate::commands) fn no_relay(address: &str, source: io::Error) -> Self {
        Self::explained(Restart, format!("no relay answers at {address}"), source)
            .with_remedy("check that the relay runs, and that its --http is this address")
    }

    pub(in crate::commands) fn checks_fail(count: usize) -> Self {
        Self::said(Operator, format!("checks that fail: {count}"))
            .with_remedy("each fail line above says how to fix it")
    }

    pub(in crate::commands) fn no_scratch(error: ScratchError) -> Self {
        Self::said(Operator, error)
            .with_remedy("give --brokers or --to, and a user that may create topics; or measure without: --sink null")
    }
}

/// `prune`.
impl CommandError {
    /// The publication does not send all rows of a table.
    pub(in crate::commands) fn not_proven(table: &TableName, why: &str, publication: &str) -> Self {
        let remedy = Remedy::from("its rows that are in no topic would be lost. Prune other tables alone: ")
            .and(Command::new("prune").set("--older-than", "7d").set("--table", "SCHEMA.TABLE"));
        Self::said(Operator, format!("no row is deleted: {table}: {why}"))
            .with_remedy(remedy.and(format!("; what the publication has: \\dRp+ {}", identifier(publication))))
    }

    /// Its relay does not read a table. `run` starts it.
    pub(in crate::commands) fn not_read(table: &TableName, why: &str, run: Command) -> Self {
        let remedy = Remedy::from("let the relay read it: ")
            .and(run.set("--table", table.as_typed()))
            .and("; or prune the tables that it reads: leave out --table");
        Self::said(Operator, format!("no row is deleted: {table}: {why}")).with_remedy(remedy)
    }

    /// Nothing says that all rows of a table are published. `again` is the statement that publishes them.
    pub(in crate::commands) fn not_known(table: &TableName, why: &str, again: &str) -> Self {
        let stated = setup().set("--table", table.as_typed()).flag("--published");
        let remedy = Remedy::from("if all of its rows are published, say so once: ")
            .and(stated)
            .and(format!("; to publish them again before that: {again}"));
        Self::said(Operator, format!("no row is deleted: {table}: {why}")).with_remedy(remedy)
    }

    /// The relay has not noted what it reads. `run` starts it.
    pub(in crate::commands) fn relay_not_noted(slot: &str, run: Command) -> Self {
        let text = format!(
            "no row is deleted: the relay of slot \"{slot}\" has not recorded which tables it reads since the slot was marked"
        );
        let remedy = Remedy::from(
            "start it, or start it again if it runs: an earlier version records nothing, and one whose role may not write notes says so in its log. ",
        );
        Self::said(Operator, text).with_remedy(remedy.and(run))
    }

    /// A trusted note of the slot's relay has a form that is not known. `notes`: the large objects of all of its trusted notes. They go together,
    /// since an older one would be believed once the newer one is gone. `run` starts the relay.
    pub(in crate::commands) fn unknown_relay_note(slot: &str, notes: &[u32], run: Command) -> Self {
        let text = format!(
            "no row is deleted: the relay of slot \"{slot}\" has recorded which tables it reads in a form that this version does not know"
        );
        let unlink: Vec<String> = notes.iter().map(|note| format!("lo_unlink({note})")).collect();
        let remedy = format!(
            "run the walrelay that has recorded it, or a newer one; to forget all that its relays have recorded, run as the notes' owners: SELECT {}; and start the relay again: ",
            unlink.join(", ")
        );
        Self::said(Operator, text).with_remedy(Remedy::from(remedy).and(run))
    }

    /// Nothing says which tables are known. `setup --apply` does not mark the slot of a shard. `is_marked`: there is a setup marker, which does not
    /// count for this slot, and which `setup --apply` leaves as it is.
    pub(in crate::commands) fn no_proof(
        slot: &str,
        publication: &str,
        (is_shard, is_marked): (bool, bool),
        why: &str,
    ) -> Self {
        let text = format!(
            "no row is deleted: which rows of publication \"{publication}\" are published through slot \"{slot}\" is not known: {why}"
        );
        let record = "run as the publication's owner: ";
        Self::said(Operator, text).with_remedy(if is_shard {
            "publications of shards have to stay as they were created".into()
        } else if is_marked {
            Remedy::from(format!("once you have compared the table with the topic, {record}"))
                .and(setup().flag("--after-loss"))
                .and(", which records it from then on")
        } else {
            Remedy::from(record).and(setup()).and(", which records it from then on")
        })
    }

    /// The relay identifies rows by a column that the table lacks.
    pub(in crate::commands) fn no_id_column(table: &TableName, column: Option<&str>) -> Self {
        let text = format!(
            "no row is deleted: {table} has no column {}: rows that the relay has skipped could not be identified",
            column.unwrap_or("id or event_id")
        );
        Self::said(Operator, text).with_remedy("start its relay again, with the --id-column that the table has now")
    }

    /// Other rows would go with the rows that are deleted. `key`: the foreign key.
    pub(in crate::commands) fn cascades(table: &TableName, key: &str) -> Self {
        Self::said(Operator, format!("no row is deleted: rows of another table would go or change with those of {table}: foreign key {key}"))
            .with_remedy("let nothing refer to outbox rows, or give the foreign key ON DELETE RESTRICT: rows that are referred to then stay")
    }

    pub(in crate::commands) fn publication_changed(publication: &str) -> Self {
        let text = format!(
            "publication \"{publication}\" was changed while its slot was waited for: no row was deleted since"
        );
        Self::said(Restart, text).with_remedy("run the same command again: it reads the publication as it is now")
    }

    /// The relay has skipped rows that cannot be identified. `forget` is the SQL that forgets them.
    pub(in crate::commands) fn rows_skipped(slot: &str, forget: &str) -> Self {
        let text =
            format!("no row is deleted: the relay of slot \"{slot}\" has skipped rows that cannot be identified");
        Self::said(Operator, text).with_remedy(format!(
            "look at those rows; once they are published or not needed, run as the relay's role: {forget}"
        ))
    }

    /// The slot did not confirm in time. `run` starts its relay.
    pub(in crate::commands) fn not_confirmed(slot: &str, lsn: Lsn, waited: Duration, run: Command) -> Self {
        let waited = duration(waited);
        let text = format!("slot \"{slot}\" has not confirmed {lsn} in {waited}: no row was deleted since");
        let remedy = Remedy::from("if its relay is stopped, start it: ").and(run).and("; or set a longer --timeout");
        Self::said(Restart, text).with_remedy(remedy)
    }

    /// Archived rows would be published.
    pub(in crate::commands) fn archive_published(archive: &TableName, publication: &str) -> Self {
        let text = format!("publication \"{publication}\" has {archive}: what is archived would be published again");
        Self::said(Settings, text).with_remedy("name a table with --archive-to that the publication does not have")
    }

    /// Both tables as SQL names them.
    pub(in crate::commands) fn no_archive(archive: &str, table: &str, database: &str) -> Self {
        Self::said(Operator, format!("table {archive} does not exist in database \"{database}\""))
            .with_remedy(Remedy::sql(format!("CREATE TABLE {archive} (LIKE {table});")))
    }

    /// Rows would lose the value of `column`. The archive as SQL names it.
    pub(in crate::commands) fn archive_lacks(archive: &str, column: &str, table: &TableName) -> Self {
        Self::said(Settings, format!("archive {archive} has no column \"{column}\", which {table} has")).with_remedy(
            format!("ALTER TABLE {archive} ADD COLUMN {} … with the type that it has there;", identifier(column)),
        )
    }

    /// A value might be cut off or refused. The archive as SQL names it.
    pub(in crate::commands) fn archive_differs(archive: &str, column: &str, table: &TableName) -> Self {
        Self::said(
            Settings,
            format!("column \"{column}\" of archive {archive} does not take every value that {table} has there"),
        )
        .with_remedy(format!(
            "ALTER TABLE {archive} ALTER COLUMN {} TYPE … to the type that it has there;",
            identifier(column)
        ))
    }

    /// A crash of the server would empty the archive.
    pub(in crate::commands) fn archive_unlogged(archive: &str) -> Self {
        Self::said(Settings, format!("archive {archive} is UNLOGGED or temporary: a crash of the server empties it"))
            .with_remedy(Remedy::sql(format!("ALTER TABLE {archive} SET LOGGED;")))
    }

    /// Rows would be in neither table: the archive lacks so many of those that were deleted.
    pub(in crate::commands) fn not_archived(
        table: &TableName,
        archive: &TableName,
        (lacks, rows): (u64, u64),
        triggers: &[String],
    ) -> Self {
        let text = format!(
            "rows of {table} are not deleted: {lacks} of {rows} rows were not inserted into {archive}, so this chunk was rolled back"
        );
        Self::said(Operator, text).with_remedy(format!(
            "no row is lost; a trigger that lets no row in returns NULL before the insert: {}. Disable it, or name another table with --archive-to",
            triggers.join(", ")
        ))
    }

    /// The partitions are none that can be pruned as a whole.
    pub(in crate::commands) fn no_partitions(table: &TableName, why: &str) -> Self {
        Self::said(Settings, format!("{table} cannot be pruned by partitions: {why}"))
            .with_remedy("leave out --partitions: rows are then deleted one by one")
    }
}

/// `verify`.
impl CommandError {
    /// Rows or records are not as they must be.
    pub(in crate::commands) fn not_right(what: &str, some_missing: bool) -> Self {
        let cause = "to see the difference: --show-values; rows that were updated, another mapping, and a second writer are what is found most often";
        Self::said(Operator, what).with_remedy(if some_missing {
            format!("to publish missing rows: the SQL statement in {REPUBLISH_PAGE}")
        } else {
            cause.to_owned()
        })
    }

    /// Rows were not judged, or their order, or a topic was not read to its end. `what`: says that.
    pub(in crate::commands) fn not_judged(what: String, reason: &str) -> Self {
        Self::said(Restart, what).with_remedy(format!("remove the cause, then run the same command again: {reason}"))
    }

    /// There was no row in the window.
    pub(in crate::commands) fn nothing_to_compare() -> Self {
        Self::said(Restart, "no row was committed in this time, so nothing was compared")
            .with_remedy("run it while the application writes, or for longer: --follow 10min")
    }

    /// The stream of rows ended before the window did.
    pub(in crate::commands) fn window_broken(reason: &str) -> Self {
        Self::said(Restart, format!("the comparison could not be finished: {reason}"))
            .with_remedy("no row is lost by that; run the same command again")
    }

    /// A walsender more would be too many for the relay.
    pub(in crate::commands) fn no_free_walsender(free: i64) -> Self {
        Self::said(Operator, format!("free walsenders: {free}; verify needs one, and leaves two to the relay"))
            .with_remedy("raise max_wal_senders (needs a restart), or end a walsender that nobody needs: SELECT pid, application_name FROM pg_stat_replication;")
    }

    /// The rows and records between the end of the window and the ends of the topics are too many.
    pub(in crate::commands) fn no_memory(memory: u64) -> Self {
        let reason = format!("rows and records take twice as much memory as --memory allows ({} MiB)", memory >> 20);
        Self::said(Restart, format!("the comparison could not be finished: {reason}"))
            .with_remedy("give it more (--memory), or run it when the relay is not behind")
    }

    /// On a standby, only the primary's relay reads the slot, and the copy says what that one had confirmed some time ago.
    pub(in crate::commands) fn synchronized_slot(slot: &str) -> Self {
        Self::said(
            Settings,
            format!("--follow cannot judge slot \"{slot}\" on this standby: it is a copy of the primary's (pg_replication_slots.synced)"),
        )
        .with_remedy("name the primary in --source")
    }

    /// Records without a row cannot be told from those of others.
    pub(in crate::commands) fn not_exclusive(title: &str) -> Self {
        Self::said(Settings, format!("--exclusive is for Kafka: {title} does not list the topics of a prefix"))
            .with_remedy("leave --exclusive out")
    }

    /// The destination has no reader.
    pub(in crate::commands) fn no_reader(error: NoReader) -> Self {
        match error {
            NoReader::Unsupported { .. } => Self::said(Settings, error),
            NoReader::Settings(error) => error.into(),
        }
    }

    /// The destination does not let its records be read. This is no verdict on a row, so it has not the exit code of one.
    pub(in crate::commands) fn records_unreadable(failure: Failure) -> Self {
        let remedy = failure.remedy.clone();
        let error = Self::said(Restart, failure);
        match remedy {
            Some(remedy) => error.with_remedy(remedy),
            None => error,
        }
    }
}

/// `backfill`.
impl CommandError {
    /// The snapshot of the new slot is gone with its connection, or a table was rewritten, so that it looks empty to it.
    pub(in crate::commands) fn snapshot_lost() -> Self {
        Self::said(
            Restart,
            "the snapshot that the slot was created with is gone (its connection ended, or a table was rewritten): the rows that are left were not published",
        )
        .with_remedy(Remedy::from("go on with ").and(Command::new("backfill")).and(
            ": it reads what is there, up to the greatest key, and rows since the slot was created come a second time",
        ))
    }

    /// The name of a table, or of a partition, is that of another one, or of none.
    pub(in crate::commands) fn replaced(table: &str) -> Self {
        let text = format!(
            "{table} was renamed or replaced while its rows were read: the rows that are left were not published"
        );
        Self::said(Restart, text).with_remedy(
            Remedy::from("go on with ")
                .and(Command::new("backfill"))
                .and(": it resumes behind the last row that was published"),
        )
    }

    /// The rows of a table without a key are read under the snapshot of a new slot alone.
    pub(in crate::commands) fn no_key(table: &str) -> Self {
        Self::said(Operator, format!("{table} has no primary key: once the slot is there, its rows are read by it")).with_remedy(format!(
            "add a primary key, or a unique index on NOT NULL columns; or publish its rows through the slot, by the SQL statement in {REPUBLISH_PAGE}"
        ))
    }

    /// Another order than that of the key is for the snapshot of a new slot alone.
    pub(in crate::commands) fn order_needs_snapshot(column: &str) -> Self {
        let text = format!(
            "--order-by {column} needs the snapshot of a new slot: a row whose {column} changes meanwhile would be missed"
        );
        Self::said(Settings, text).with_remedy(
            "leave out --order-by: rows come in the order of the table's key; if a backfill with it was interrupted, add --again as well",
        )
    }

    pub(in crate::commands) fn rows_hidden(table: &str) -> Self {
        Self::said(Operator, format!("no row of {table} is published: row security hides rows of it from this role"))
            .with_remedy("run it as a role with BYPASSRLS, or as the table's owner where row security is not forced")
    }

    pub(in crate::commands) fn no_order(table: &str, column: &str, has_key: bool) -> Self {
        let (why, fix) = if has_key {
            ("it has no such column", "--order-by takes the name of a column, without direction")
        } else {
            (
                "without a key nothing says where to resume",
                "add a primary key or a unique index on NOT NULL columns, or leave out --order-by",
            )
        };
        Self::said(Settings, format!("{table} cannot be read in the order of {column}: {why}")).with_remedy(fix)
    }

    pub(in crate::commands) fn backfill_runs(slot: &str) -> Self {
        Self::said(Operator, format!("another backfill of slot \"{slot}\" is running")).with_remedy(
            "wait until it ends; if it was killed, the server notices within a minute or two: then run the same command again",
        )
    }

    /// The large object `note` has the progress of a backfill in a form that is not known.
    pub(in crate::commands) fn unknown_backfill(slot: &str, note: u32) -> Self {
        let text = format!("the progress of a backfill of slot \"{slot}\" has a form that this version does not know");
        Self::said(Operator, text).with_remedy(format!(
            "run the walrelay that has begun it, or a newer one; to publish all rows again instead, run as the role of that backfill: SELECT \
             lo_unlink({note});"
        ))
    }

    /// A backfill with other flags (`before`) has published rows of the table.
    pub(in crate::commands) fn other_backfill(table: &str, rows: u64, before: &str) -> Self {
        let text =
            format!("a backfill of {table} {before} has published {rows} of its rows: they would be published again");
        Self::said(Operator, text).with_remedy(
            "to resume it, use the same flags; to publish rows whether or not they were published before: --again",
        )
    }

    /// An existing row cannot be published.
    pub(in crate::commands) fn bad_row(row: &BadRowAt) -> Self {
        let refused = row.dead_letter_refused.as_ref().map_or_else(String::new, |(topic, failure)| {
            format!(", and dead-letter topic {topic} does not take it: {failure}")
        });
        let at = row.position;
        let row = &row.row;
        let which = row.id.as_ref().map_or_else(|| "the row".to_owned(), |id| format!("the row with id {id}"));
        Self::said(Operator, format!("a row of {} cannot be published: {}{refused}", row.table, row.reason)).with_remedy(
            format!(
                "all rows before {which} are published: fix the cause ({}), or decide its action with --bad-row-at {at}=dead-letter or --bad-row-at {at}=skip; the same command then resumes there",
                row.reason.kind().fix
            ),
        )
    }
}

/// Shards. Nothing was changed, unless it says so.
impl CommandError {
    pub(in crate::commands) fn no_row_filters(version: &str) -> Self {
        Self::said(Settings, format!("shards need row filters, which came with Postgres 15; this is {version}"))
            .with_remedy("one table or partition for each relay, each with a publication and a slot of its own")
    }

    pub(in crate::commands) fn no_hash(table: &TableName, column: &str, type_name: &str) -> Self {
        let text = format!(
            "rows of {table} cannot be distinguished by column \"{column}\": a row filter cannot hash type {type_name} (text, varchar, char, uuid, integers, numeric and bytea can be)"
        );
        Self::said(Settings, text).with_remedy(ANOTHER_KEY)
    }

    pub(in crate::commands) fn no_column(table: &TableName, column: &str) -> Self {
        Self::said(Settings, format!("{table} has no column \"{column}\"")).with_remedy(ANOTHER_KEY)
    }

    /// A set that is there has other tables.
    pub(in crate::commands) fn table_not_shared(table: &TableName, publication: &str, count: u8) -> Self {
        let text =
            format!("table {table} is not in publication \"{publication}\" of the {count} shards that are there");
        let own =
            setup_shards("--shards", count).set("--publication", "NAME").set("--slot", "NAME").set("--table", table);
        let remedy = Remedy::from(
            "a set of shards keeps the tables that it was created with. For another table, a set of its own: ",
        );
        Self::said(Settings, text).with_remedy(
            remedy
                .and(own)
                .and(". If the table was taken out of one publication, its rows are in no slot: let the relays publish what waits in their slots, stop them, ")
                .and(teardown_shards(count))
                .and(", and setup again"),
        )
    }

    /// Rows cannot be moved from this publication.
    pub(in crate::commands) fn unfit(publication: &str, why: &str, fix: impl Into<Remedy>) -> Self {
        Self::said(Operator, format!("rows cannot be moved from publication \"{publication}\": {why}")).with_remedy(fix)
    }

    /// There are no shards and no slot. `make` makes shards.
    pub(in crate::commands) fn nothing_to_move(publication: &str, make: impl Into<Remedy>) -> Self {
        let text =
            format!("there is nothing to move rows from: no shards, and no slot of publication \"{publication}\"");
        Self::said(Operator, text).with_remedy(make)
    }

    /// Another set was begun, and rows may be under way to it. `resume` finishes it.
    pub(in crate::commands) fn unfinished(found: &str, resume: impl Into<Remedy>) -> Self {
        Self::said(Operator, format!("the setup of {found} is not finished")).with_remedy(resume)
    }

    /// There is a set already, or a slot. `reshard` moves its rows.
    pub(in crate::commands) fn shards_exist(found: &str, reshard: impl Into<Remedy>) -> Self {
        let text = format!("there is {found} already: a new set of shards would publish its rows, too");
        Self::said(Operator, text).with_remedy(reshard)
    }

    /// There is more than one set to move rows from.
    pub(in crate::commands) fn several_sets(found: &[String]) -> Self {
        let text = format!("there are {}: which of them has the rows is not known", found.join(" and "));
        let remedy =
            Remedy::from("drop the set that nobody reads: ").and(Command::new("teardown").set("--shards", "N"));
        Self::said(Operator, text)
            .with_remedy(remedy.and(", or ").and(Command::new("teardown")).and(" for the one slot"))
    }

    /// Rows of a shard are in no slot.
    pub(in crate::commands) fn shard_incomplete(shard: Shard, why: &str) -> Self {
        let (text, count) = (format!("shard {shard} is incomplete: {why}"), shard.count());
        let remedy = Remedy::from(
            "rows committed since it went are in no slot. Once the other relays have published what waits in their slots, stop them: ",
        );
        Self::said(Operator, text).with_remedy(
            remedy
                .and(teardown_shards(count))
                .and(" && ")
                .and(setup_shards("--shards", count).set("--table", "SCHEMA.TABLE"))
                .and(", then compare the table with the topics"),
        )
    }

    /// A slot is gone, or was invalidated for this reason, while rows are moved. A slot of the new set has no rows before the cut.
    pub(in crate::commands) fn shard_lost(slot: &str, invalidated: Option<&str>, has_rows: bool) -> Self {
        let name = literal(slot);
        let (what, drop) = match invalidated {
            Some(reason) => {
                let drop = format!("SELECT pg_drop_replication_slot({name}); ");
                (format!("has been invalidated ({reason})"), drop)
            }
            None => ("does not exist".to_owned(), String::new()),
        };
        let text = |lost: &str| format!("replication slot \"{slot}\" {what} while rows are moved: {lost}");
        if !has_rows {
            let again = Remedy::sql(drop).and("the same command again creates it");
            return Self::said(Operator, text("it had no rows yet")).with_remedy(again);
        }
        let create = format!("{drop}SELECT pg_create_logical_replication_slot({name}, 'pgoutput');");
        let lost = text("those of its rows that are not published can no longer be read from it");
        Self::said(Operator, lost).with_remedy(Remedy::sql(create).and(format!(
            " start its relay again if it ended, with the --accept-slot-at that it asks for; then the same command again. Then compare the table with the topics: the SQL statement in {REPUBLISH_PAGE} publishes rows that are missing"
        )))
    }

    /// The names of one shard were given, where all are meant. `whole`: publication and slot of all shards, where they are known.
    pub(in crate::commands) fn one_shard_named(publication: &str, shard: Shard, whole: Option<(&str, &str)>) -> Self {
        let text =
            format!("publication \"{publication}\" is shard {shard} alone, which has only a part of each table's rows");
        let flags = whole.map_or_else(String::new, |(publication, slot)| {
            format!(": --publication {} --slot {slot}", shell_quoted(publication))
        });
        Self::said(Settings, text)
            .with_remedy(format!("use the names without the shard, for all shards at once{flags}"))
    }

    /// Rows go over from one set to another. `resume` resumes that.
    pub(in crate::commands) fn rows_move(to: &str, resume: Command) -> Self {
        let text =
            format!("the rows are being moved to {to}: until that is done, nothing proves which of them are delivered");
        Self::said(Restart, text).with_remedy(
            Remedy::from(Command::new("status").flag("--all"))
                .and(" shows how far it is; then the same command again. If nobody moves them any more: ")
                .and(resume),
        )
    }

    /// There are shards, and what was asked for is for one slot.
    pub(in crate::commands) fn shared_out(found: &str, why: &str, remedy: impl Into<Remedy>) -> Self {
        Self::said(Settings, format!("the rows are shared out among {found}: {why}")).with_remedy(remedy)
    }

    /// Rows are under way, and nobody publishes them. `start` starts the relay.
    pub(in crate::commands) fn unread(slot: &str, start: Command) -> Self {
        let text = format!("no relay reads slot \"{slot}\": its unpublished rows would hold up all others");
        let remedy = Remedy::from("start its relay: ").and(start).and("; then the same command again");
        Self::said(Operator, text).with_remedy(remedy)
    }
}

/// Dead-letter records.
impl CommandError {
    /// They cannot be read.
    pub(in crate::commands) fn dead_letters_unreadable(error: NoDeadLetters) -> Self {
        match error {
            NoDeadLetters::Unsupported { kind } => Self::said(Settings, error).with_remedy(format!(
                "read them with {}'s own tools; the SQL statement in {REPUBLISH_PAGE} publishes their rows again",
                kind.title
            )),
            NoDeadLetters::Missing { ref topic } => {
                let remedy = format!(
                    "if {topic} is right, there is no dead-letter record yet where topics are created on demand; else name it with --dead-letter-topic, or the relay with --slot"
                );
                Self::said(Operator, error).with_remedy(remedy)
            }
            NoDeadLetters::Settings(error) => error.into(),
            NoDeadLetters::Failed(failure) => Self::dead_letters_failed(failure),
        }
    }

    /// Reading, publishing or remembering failed.
    pub(in crate::commands) fn dead_letters_failed(failure: Failure) -> Self {
        let remedy = match failure.class {
            FailureClass::Environment | FailureClass::Client | FailureClass::Unlisted => {
                Some("nothing is lost: run it again")
            }
            FailureClass::LogIn => {
                Some("check the user and the password of the destination (-X, WALRELAY_<NAME>_…, --to)")
            }
            FailureClass::Topic => Some(
                "let the user read the dead-letter topic, and with NATS and Redis delete from it; then run it again",
            ),
            FailureClass::Row => None,
        };
        let own = failure.remedy.clone();
        Self { remedy: own.or_else(|| remedy.map(Remedy::from)), ..Self::said(kind_of(&failure), failure) }
    }

    /// Some could not be published.
    pub(in crate::commands) fn dead_letters_stay(count: u64, topic: &str) -> Self {
        let remedy = Remedy::from("each line above says why; fix the causes, then ")
            .and(Command::new("dead-letters").flag("--replay"))
            .and(" publishes what is left");
        Self::said(Operator, format!("{count} of them cannot be published and stay in {topic}")).with_remedy(remedy)
    }

    /// Records were published again that the address cannot mark as such.
    pub(in crate::commands) fn not_remembered(count: u64, topic: &str, failure: Failure) -> Self {
        let text =
            format!("{topic} may not have recorded all that was published again, with records in flight: {count}");
        Self::explained(kind_of(&failure), text, failure).with_remedy(
            "let the user write to the dead-letter topic, and make room in it; another --replay may repeat the latest records",
        )
    }
}

const ANOTHER_KEY: &str =
    "name another column with --key-column, here and for run, or --key-column '' for records without keys";

fn kind_of(failure: &Failure) -> ExitKind {
    match failure.class {
        FailureClass::Row | FailureClass::Topic | FailureClass::LogIn => Operator,
        FailureClass::Environment | FailureClass::Client | FailureClass::Unlisted => Restart,
    }
}

fn setup() -> Command {
    Command::new("setup").flag("--apply")
}
