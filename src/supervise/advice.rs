//! Remedies that only a look at the database gives: the name that was meant, the table that could be the outbox,
//! the role, the column that only the publication hides.
//!
//! In: an error that ends a run, and what was asked for. Out: the same error, with a hint that can be followed as it is. Reads only;
//! where nobody can be asked, the error's own hint stands.

use super::StreamTarget;
use super::error::{REPUBLISH_PAGE, RunCause, RunError, for_messages, not_sent};
use crate::outbox::{HiddenColumns, Outbox, PlanError, TableName};
use crate::pg::marker::{self, MoveState};
use crate::pg::shard::Shard;
use crate::pg::{self, Connection, Purpose, catalog, identifier, literal, names, server, sqlstate};
use crate::remedy::{Command, Remedy};
use crate::setting_text::nearest;

/// The names that the database has beside those that the user gave.
#[derive(Debug, Clone, Default)]
pub(crate) struct Surroundings {
    /// Whom we connect as.
    pub(crate) user: String,
    /// The server gives REPLICATION by membership in `rds_replication`.
    pub(crate) grants_by_role: bool,
    /// `--table`.
    pub(crate) tables: Vec<TableName>,
    /// The tables of `tables` that do not exist.
    pub(crate) absent: Vec<TableName>,
    /// The publications of the database.
    pub(crate) publications: Vec<String>,
    /// The slots that could be read from it, without those that another publication is marked for: rows of that one are in them.
    pub(crate) slots: Vec<String>,
    /// The tables that the publication leaves out, if it is one of all tables: none is added to it.
    pub(crate) left_out: Option<Vec<(String, String)>>,
    /// The tables of the publication that look like an outbox.
    pub(crate) published: Vec<TableName>,
    /// The slot that was asked for, and its database, where that is another one.
    pub(crate) slot_elsewhere: Option<(String, String)>,
    /// The tables that could be an outbox.
    pub(crate) outboxes: Vec<TableName>,
}

impl Surroundings {
    /// Looks.
    ///
    /// # Errors
    /// The connection broke, or the server refuses.
    pub(crate) fn gather(
        connection: &mut Connection,
        user: &str,
        (publication, slot, tables): (&str, &str, &[TableName]),
        outbox: &Outbox,
    ) -> Result<Self, pg::Error> {
        let mut absent = Vec::new();
        for table in tables {
            if catalog::table(connection, &table.schema, &table.name, publication)?.is_none() {
                absent.push(table.clone());
            }
        }
        let found = names::tables_with(connection, &outbox.payload_names())?;
        let outboxes = found.iter().map(|table| &table.relation).filter(|relation| outbox.could_read(relation).is_ok());
        let mut slots = names::slots(connection)?;
        let others = names::slots_of_others(connection, publication)?;
        slots.retain(|slot| !others.contains(slot));
        let found = server::publication(connection, publication)?;
        let listed = match &found {
            Some(_) => server::published_tables(connection, publication)?,
            None => Vec::new(),
        };
        let left_out = match found.filter(|found| found.puballtables) {
            Some(_) => Some(catalog::left_out(connection, publication)?),
            None => None,
        };
        let readable = listed.iter().filter(|table| outbox.could_read(&table.relation).is_ok());
        let mut published: Vec<TableName> = readable.map(TableName::of_whole).collect();
        published.dedup();
        Ok(Self {
            user: user.to_owned(),
            grants_by_role: catalog::grants_replication_by_role(connection)?,
            tables: tables.to_vec(),
            absent,
            publications: names::publications(connection)?,
            slots,
            left_out,
            published,
            slot_elsewhere: names::other_database_of(connection, slot)?.map(|database| (slot.to_owned(), database)),
            outboxes: outboxes.map(TableName::of).collect(),
        })
    }

    /// Returns the error with the remedy that fits this database, or with its own if that says it all.
    pub(crate) fn advised(&self, error: RunError) -> RunError {
        let remedy = match &error.cause {
            RunCause::NoPublication { publication, .. } => Some(self.no_publication(publication)),
            RunCause::NoTables { publication } => self.outbox().and_then(|table| self.add(table, publication)),
            RunCause::Grows { publication, messages, .. } => self.choose(publication, *messages),
            RunCause::NoSlot { slot, was_there: false } => self.other_slot(slot),
            RunCause::TableNotPublished { table, published, publication } => {
                let is_of_all = self.left_out.is_some();
                let add = || self.add(table, publication).unwrap_or_else(|| Self::unpublishable(table));
                self.instead_of(table, published).or_else(|| is_of_all.then(add))
            }
            RunCause::Postgres(_) => may_not(&error).then(|| self.replication()),
            RunCause::NoSlot { .. }
            | RunCause::Unmappable(_)
            | RunCause::SlotLost { .. }
            | RunCause::BadRow { .. }
            | RunCause::StopTimedOut { .. }
            | RunCause::StopUnconfirmed { .. }
            | RunCause::Sink(_)
            | RunCause::Other(_) => None,
        };
        error.advised(remedy)
    }

    /// Returns the SQL that adds a table to the publication. `None`: it is of all tables, and leaves this one not out.
    fn add(&self, table: &TableName, publication: &str) -> Option<Remedy> {
        let sql = match &self.left_out {
            Some(left_out) if !left_out.contains(&(table.schema.clone(), table.name.clone())) => return None,
            Some(left_out) => catalog::no_longer_left_out(publication, left_out, (&table.schema, &table.name)),
            None => format!("ALTER PUBLICATION {} ADD TABLE {}", identifier(publication), table.sql()),
        };
        Some(Remedy::sql(format!("{sql};")).and(not_sent(&table.as_typed())))
    }

    /// The remedy for a table that no publication of all tables has.
    fn unpublishable(table: &TableName) -> Remedy {
        format!("no publication has a view, or a temporary or foreign table: name a table that has rows of its own instead of {table}").into()
    }

    /// Returns `--table` flags that name each table of the publication that looks like an outbox. `None`: none does.
    fn choose(&self, publication: &str, messages: bool) -> Option<Remedy> {
        if self.published.is_empty() {
            return None;
        }
        let run = self.published.iter().fold(Command::new("run"), |run, table| run.set("--table", table.as_typed()));
        let mut remedy = Remedy::from(run);
        if self.published.len() > 1 {
            remedy = remedy
                .and("; leave out each table that is none, such as a copy of the outbox: the slot passes its rows");
        }
        Some(if messages { remedy.and(for_messages(publication)) } else { remedy })
    }

    fn replication(&self) -> Remedy {
        let user = identifier(&self.user);
        Remedy::sql(if self.grants_by_role {
            format!("GRANT rds_replication TO {user};")
        } else {
            format!("ALTER ROLE {user} REPLICATION;")
        })
    }

    /// The one table that could be meant.
    fn outbox(&self) -> Option<&TableName> {
        match (&self.tables[..], &self.outboxes[..]) {
            ([table], _) if self.absent.is_empty() => Some(table),
            ([], [table]) => Some(table),
            _ => None,
        }
    }

    fn no_publication(&self, publication: &str) -> Remedy {
        let others = self.publications.iter().map(String::as_str);
        if let Some(meant) = nearest(publication, others) {
            return Remedy::from(format!("did you mean \"{meant}\"? "))
                .and(Command::new("run").set("--publication", meant))
                .and("; to create it: ")
                .and(self.setup(publication))
                .and(format!(
                    "; a slot passes rows that its relay's publication lacks: the SQL statement in {REPUBLISH_PAGE} publishes them"
                ));
        }
        if let Some((slot, database)) = &self.slot_elsewhere {
            return Remedy::from(format!(
                "slot \"{slot}\" belongs to database \"{database}\": connect to that database (--source …/{database}); if it is this one that is to be read: "
            ))
            .and(self.setup(publication));
        }
        let table = self.outbox().map_or_else(|| "…".to_owned(), TableName::sql);
        self.setup(publication).and(format!(
            ", or: CREATE PUBLICATION {} FOR TABLE {table} WITH (publish = 'insert');",
            identifier(publication)
        ))
    }

    fn setup(&self, publication: &str) -> Remedy {
        let table = self.outbox().map_or_else(|| "SCHEMA.TABLE".to_owned(), TableName::as_typed);
        let setup = Command::new("setup").flag("--apply").set("--publication", publication).set("--table", table);
        if self.outbox().is_some() || self.outboxes.is_empty() {
            return setup.into();
        }
        let names: Vec<String> = self.outboxes.iter().map(TableName::as_typed).collect();
        Remedy::from(setup).and(format!(" (one of {})", names.join(", ")))
    }

    fn other_slot(&self, slot: &str) -> Option<Remedy> {
        let meant = nearest(slot, self.slots.iter().map(String::as_str))?;
        Some(
            Remedy::from(format!("did you mean \"{meant}\"? "))
                .and(Command::new("run").set("--slot", meant))
                .and(format!("; if \"{slot}\" is to be another one, or if relays of another publication read \"{meant}\", whose rows would be passed: "))
                .and(Command::new("setup").flag("--apply").set("--slot", slot)),
        )
    }

    /// Returns `--table` flags to give instead of a table that does not exist, and so cannot be added. They name each table of the publication
    /// that looks like an outbox, since the slot passes the rows of one that is left out, and it may be the one that was meant.
    fn instead_of(&self, table: &TableName, published: &[String]) -> Option<Remedy> {
        if !self.absent.contains(table) {
            return None;
        }
        let candidates: Vec<&TableName> = self.published.iter().filter(|name| !self.tables.contains(name)).collect();
        if candidates.is_empty() {
            let all = published.join(", ");
            return Some(
                format!("there is no table {table}; without --table every table of the publication is read: {all}")
                    .into(),
            );
        }
        let mut run = Command::new("run");
        for asked in &self.tables {
            let names = if asked == table { candidates.clone() } else { vec![asked] };
            for name in names.into_iter().filter(|name| !self.absent.contains(name)) {
                run = run.set("--table", name.as_typed());
            }
        }
        let remedy = Remedy::from(format!("there is no table {table}: ")).and(run);
        Some(if candidates.len() > 1 {
            remedy.and("; leave out a table only if its rows are not to be published: the slot passes them")
        } else {
            remedy
        })
    }
}

/// Adds to an error the remedy that the database shows.
pub(super) fn advised(target: &StreamTarget, outbox: &Outbox, error: RunError) -> RunError {
    if let Some(pg::Error::LoginRefused { error: refusal, .. }) = error.postgres()
        && let Some(allow) = allow_connections(refusal, target)
    {
        return error.advised(Some(allow));
    }
    if !needs_a_look(&error) {
        return error;
    }
    let look = |mut connection| look(&mut connection, target, outbox, &error);
    match Connection::open(&target.source, Purpose::Control).and_then(look) {
        Ok(Some(Advice::Around(around))) => around.advised(error),
        Ok(Some(Advice::Remedy(remedy))) => error.advised(Some(remedy)),
        Ok(Some(Advice::Instead(error))) => error,
        // An ordinary session is refused as well: it is not the right to replicate.
        Err(pg::Error::LoginRefused { error: refusal, .. }) if may_not(&error) && refusal.lacks_a_right() => {
            let StreamTarget { source, .. } = target;
            let (database, user) = (identifier(&source.dbname), identifier(&source.user));
            let grant = Remedy::sql(format!("GRANT CONNECT ON DATABASE {database} TO {user};")).and(
                " (or a login trigger refuses the role: SELECT evtname FROM pg_event_trigger WHERE evtevent = 'login';)",
            );
            error.advised(Some(grant))
        }
        // No other connection either, as where the database's name is wrong too: whose right is missing is known all the same.
        Err(_) if may_not(&error) => {
            let user = identifier(&target.source.user);
            let grant = Remedy::sql(format!("ALTER ROLE {user} REPLICATION;"))
                .and(format!(" (managed services: GRANT rds_replication TO {user};, or their own role)"));
            error.advised(Some(grant))
        }
        Ok(None) | Err(_) => error,
    }
}

/// Returns the SQL that lets the relay in again, if the code of the refusal tells it.
fn allow_connections(refusal: &pg::ServerError, target: &StreamTarget) -> Option<Remedy> {
    let is_closed = refusal.code == sqlstate::NOT_IN_PREREQUISITE_STATE && refusal.hint.is_empty();
    let database = identifier(&target.source.dbname);
    is_closed.then(|| Remedy::sql(format!("ALTER DATABASE {database} ALLOW_CONNECTIONS true;")))
}

enum Advice {
    /// The names that the database has.
    Around(Box<Surroundings>),
    /// A remedy that fits better.
    Remedy(Remedy),
    /// The error that is the cause of the first one, or says more.
    Instead(RunError),
}

fn needs_a_look(error: &RunError) -> bool {
    matches!(
        error.cause,
        RunCause::NoPublication { .. }
            | RunCause::NoTables { .. }
            | RunCause::Grows { .. }
            | RunCause::NoSlot { .. }
            | RunCause::TableNotPublished { .. }
            | RunCause::Unmappable(_)
    ) || may_not(error)
}

/// The role lacks the one right that a run needs.
fn may_not(error: &RunError) -> bool {
    error.postgres().and_then(pg::Error::server_error).is_some_and(pg::ServerError::lacks_a_right)
}

fn look(
    connection: &mut Connection,
    target: &StreamTarget,
    outbox: &Outbox,
    error: &RunError,
) -> Result<Option<Advice>, pg::Error> {
    if let RunCause::Unmappable(error) = &error.cause {
        return Ok(widened(connection, target, outbox, error)?.map(|error| Advice::Instead(error.into())));
    }
    if let Some(found) = of_shards(connection, target, error)? {
        return Ok(Some(found));
    }
    let around = Surroundings::gather(
        connection,
        &target.source.user,
        (&target.publication, &target.slot, &target.tables),
        outbox,
    )?;
    Ok(Some(Advice::Around(Box::new(around))))
}

/// Looks for shards that explain why a publication or slot is gone. A shard's slot is never created again by itself.
fn of_shards(
    connection: &mut Connection,
    target: &StreamTarget,
    error: &RunError,
) -> Result<Option<Advice>, pg::Error> {
    // A publication may also be dropped between two questions about it.
    if !matches!(error.cause, RunCause::NoPublication { .. } | RunCause::NoSlot { .. } | RunCause::NoTables { .. }) {
        return Ok(None);
    }
    let StreamTarget { publication, slot, shard, .. } = target;
    let whole = |name| shard.map_or(Some(name), |shard| shard.whole(name));
    let Some(names) = whole(publication).zip(whole(slot)) else { return Ok(None) };
    let own = catalog::publication_mark(connection, publication)?.comment;
    let is_drained = marker::moving(own.as_deref()) == Some(MoveState::Drained);
    let is_there = server::publication(connection, publication)?.is_some();
    // One that is not drained has rows that nobody else publishes.
    let takes_over = |moving: Option<MoveState>| is_drained || (!is_there && moving.is_none());
    let others = names::shards(connection, names)?;
    let mut others = others.iter().filter(|(other, _)| shard.map(Shard::count) != Some(other.count()));
    let from = || shard.map_or_else(|| format!("slot \"{slot}\""), |shard| format!("shard {shard}"));
    let moved = others.find(|(_, moving)| takes_over(*moving));
    let moved = moved.map(|(other, _)| RunError::shards_moved(&from(), *shard, other.count()));
    let has_slot = !matches!(error.cause, RunCause::NoSlot { .. });
    let lost = || shard.map(|shard| Advice::Remedy(lost_shard(shard, slot, is_there, has_slot)));
    Ok(moved.map(Advice::Instead).or_else(lost))
}

/// `is_there`: its publication is.
fn lost_shard(shard: Shard, slot: &str, is_there: bool, has_slot: bool) -> Remedy {
    let count = shard.count();
    if is_there && has_slot {
        // A table without its row filter would send the rows of all shards.
        Remedy::from(Command::new("check").set("--shard", shard))
            .and(" looks at all shards; no table goes into a shard's publication by hand")
    } else if is_there {
        Remedy::from(format!(
            "rows of this shard that were committed since are in no slot. SELECT pg_create_logical_replication_slot({}, 'pgoutput'); then ",
            literal(slot)
        ))
        .and(Command::new("run").set("--shard", shard))
        .and(format!(
            ", with the --accept-slot-at that it may ask for; compare the table with the topics, and the SQL statement in {REPUBLISH_PAGE} for rows that are missing"
        ))
    } else {
        let setup = Command::new("setup").set("--shards", count).flag("--apply").set("--table", "SCHEMA.TABLE");
        Remedy::from(setup).and(
            "; if the shards were there before, rows committed since are in no slot: compare the table with the topics",
        )
    }
}

/// Where the table as it is published now would do, the row is an older one. Where all columns of the table would do, the publication is
/// to send them. Where they would not, what is meant is among all of them.
fn widened(
    connection: &mut Connection,
    target: &StreamTarget,
    outbox: &Outbox,
    error: &PlanError,
) -> Result<Option<Box<PlanError>>, pg::Error> {
    let PlanError::Lacks { table, present, .. } = error else { return Ok(None) };
    let tables = server::published_tables(connection, &target.publication)?;
    let is_it = |name: (String, String)| format!("{}.{}", name.0, name.1) == *table;
    let Some(mut found) = tables.into_iter().find(|found| is_it(found.relation.full_name())) else { return Ok(None) };
    let slot = target.slot.clone();
    if outbox.could_read(&found.relation).is_ok() {
        let is_there = |name: &String| found.relation.columns.iter().any(|column| column.name == *name);
        let renamed = !present.iter().all(is_there);
        return Ok(Some(Box::new(error.clone().because(HiddenColumns::Past { slot, renamed }))));
    }
    let Some(listed) = names::column_list(connection, &target.publication, found.relation.id)? else { return Ok(None) };
    found.relation.columns = listed.columns;
    Ok(Some(Box::new(match outbox.could_read(&found.relation) {
        Ok(()) => error.clone().because(HiddenColumns::ColumnList { widen: listed.widened, slot }),
        Err(error) => error,
    })))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(name: &str) -> TableName {
        TableName::parse(name).unwrap()
    }

    fn around(tables: &[&str], absent: &[&str], outboxes: &[&str]) -> Surroundings {
        let all = |names: &[&str]| names.iter().map(|name| table(name)).collect();
        Surroundings {
            user: "My role".to_owned(),
            tables: all(tables),
            absent: all(absent),
            publications: vec!["outbox_events".to_owned()],
            slots: vec!["orders".to_owned()],
            left_out: None,
            published: all(&["outbox", "other"]),
            outboxes: all(outboxes),
            grants_by_role: false,
            slot_elsewhere: None,
        }
    }

    fn no_publication(name: &str) -> RunError {
        RunError::no_publication(name, "shop")
    }

    /// The remedy that the database shows.
    fn remedy(around: &Surroundings, error: RunError) -> String {
        around.advised(error).remedy.unwrap().to_string()
    }

    /// An error whose own remedy stays.
    #[track_caller]
    fn keeps_its_own(around: &Surroundings, error: fn() -> RunError) {
        assert_eq!(around.advised(error()).remedy, error().remedy);
    }

    #[test]
    fn a_publication_that_was_meant_comes_before_one_that_is_to_be_created() {
        let around = around(&[], &[], &["shop.\"Out Box\""]);
        let hint = remedy(&around, no_publication("outbox_event"));
        assert!(
            hint.starts_with("did you mean \"outbox_events\"? walrelay run --publication outbox_events;"),
            "{hint}"
        );
        assert_eq!(
            remedy(&around, no_publication("Z 1")),
            "walrelay setup --apply --publication 'Z 1' --table 'shop.\"Out Box\"', or: CREATE PUBLICATION \"Z 1\" FOR \
             TABLE \"shop\".\"Out Box\" WITH (publish = 'insert');"
        );
    }

    #[test]
    fn of_several_tables_that_could_be_the_outbox_the_user_chooses() {
        let hint = remedy(&around(&[], &[], &["a", "b"]), no_publication("zzz"));
        assert!(hint.contains("--table SCHEMA.TABLE (one of public.a, public.b)"), "{hint}");
        let hint = remedy(&around(&["b"], &[], &["a", "b"]), no_publication("zzz"));
        assert!(hint.contains("--table public.b, or:"), "{hint}");
    }

    #[test]
    fn a_slot_that_was_meant_is_named_and_any_other_is_the_errors_own_affair() {
        let around = around(&[], &[], &[]);
        assert!(remedy(&around, RunError::no_slot("order", false)).contains("walrelay run --slot orders;"));
        keeps_its_own(&around, || RunError::no_slot("zzz", false));
        keeps_its_own(&around, || RunError::no_slot("order", true));
    }

    #[test]
    fn a_table_that_is_not_there_is_not_added() {
        let around = around(&["outbx", "other"], &["outbx"], &[]);
        let published = || vec!["public.outbox".to_owned(), "public.other".to_owned()];
        let missing = |name: &str| RunError::table_not_published(table(name), "p", published());
        assert_eq!(
            remedy(&around, missing("outbx")),
            "there is no table public.outbx: walrelay run --table public.outbox --table public.other"
        );
        assert_eq!(around.advised(missing("other")).remedy, missing("other").remedy, "its own stays");
        // With two that it could be, no hint leads past the rows of one.
        let around = self::around(&["outbx"], &["outbx"], &[]);
        let hint = remedy(&around, missing("outbx"));
        assert!(hint.contains("walrelay run --table public.outbox --table public.other; leave out"), "{hint}");
    }

    #[test]
    fn a_table_that_a_publication_of_all_tables_leaves_out_is_no_longer_left_out() {
        let mut around = around(&["outbox"], &[], &["outbox"]);
        around.left_out = Some(vec![("public".to_owned(), "outbox".to_owned())]);
        let missing = RunError::table_not_published(table("outbox"), "p", Vec::new());
        for error in [missing, RunError::no_tables("p")] {
            let hint = remedy(&around, error);
            assert!(hint.starts_with("ALTER PUBLICATION \"p\" SET ALL TABLES; -- rows committed before"), "{hint}");
        }
    }

    #[test]
    fn each_table_that_looks_like_an_outbox_is_named_if_the_publication_grows_by_itself() {
        let around = around(&[], &[], &[]);
        let hint = remedy(&around, RunError::grows("p", true, true));
        assert!(hint.starts_with("walrelay run --table public.outbox --table public.other; leave out"), "{hint}");
        assert!(hint.ends_with("CREATE PUBLICATION \"p_messages\" WITH (publish = 'insert');"), "{hint}");
    }

    #[test]
    fn no_version_is_told_to_set_all_tables_where_the_publication_does_not_leave_the_table_out() {
        let mut around = around(&["outbox"], &[], &["outbox"]);
        around.left_out = Some(Vec::new());
        let hint = remedy(&around, RunError::table_not_published(table("outbox"), "p", Vec::new()));
        assert!(!hint.contains("ALTER"), "{hint}");
    }

    #[test]
    fn a_role_that_may_not_replicate_is_named() {
        let server =
            pg::ServerError { code: sqlstate::INSUFFICIENT_PRIVILEGE.to_owned(), ..pg::ServerError::default() };
        let refused = || RunError::from(pg::Error::Server { doing: "x".to_owned(), error: Box::new(server.clone()) });
        let mut around = around(&[], &[], &[]);
        assert_eq!(remedy(&around, refused()), "ALTER ROLE \"My role\" REPLICATION;");
        around.grants_by_role = true;
        assert_eq!(remedy(&around, refused()), "GRANT rds_replication TO \"My role\";");
        let hint = "add it to output_plugin_libraries".to_owned();
        let error = Box::new(pg::ServerError { hint: hint.clone(), ..server.clone() });
        let untrusted = RunError::from(pg::Error::Server { doing: "x".to_owned(), error });
        assert_eq!(remedy(&around, untrusted), hint, "the role has the right");
    }
}
