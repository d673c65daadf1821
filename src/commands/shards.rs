//! Sets of shards: which there are.
//!
//! In: the names of the whole. Out: the one slot without shards, and each set of shards, as publications and their comments show them.
//! Reads only. The names of a shard are derived in [`crate::pg::shard`]; a publication that has such a name and no line of ours in its comment is somebody
//! else's, and is in no set.

use crate::given::shell_quoted;
use crate::outbox::TableName;
use crate::pg::marker::{self, Moving};
use crate::pg::server::{self, Slot};
use crate::pg::shard::{self, Shard};
use crate::pg::{self, Connection, catalog, literal};
use crate::remedy::{Command, Remedy};
use crate::supervise::{ExitKind, REPUBLISH_PAGE, RunError};

/// Why a set of shards cannot be had as asked for. Nothing was changed, unless it says so.
#[derive(Debug, thiserror::Error)]
pub enum ShardError {
    /// No row filters.
    #[error("shards need row filters, which came with Postgres 15; this is {version}")]
    TooOld {
        /// The server's version.
        version: String,
    },
    /// The key's type.
    #[error(
        "rows of {table} cannot be distinguished by column \"{column}\": a row filter cannot hash type {type_name} (text, varchar, char, uuid, integers, numeric and bytea can be)"
    )]
    KeyType {
        /// `schema.table`.
        table: String,
        /// The key.
        column: String,
        /// Its type.
        type_name: String,
    },
    /// There is no such column.
    #[error("{table} has no column \"{column}\"")]
    NoColumn {
        /// `schema.table`.
        table: String,
        /// As it was asked for.
        column: String,
    },
    /// A set that is there has other tables.
    #[error("table {table} is not in publication \"{publication}\" of the {count} shards that are there")]
    NotShared {
        /// `schema.table`.
        table: String,
        /// One of them.
        publication: String,
        /// How many.
        count: u8,
    },
    /// A publication that rows cannot be moved from.
    #[error("rows cannot be moved from publication \"{publication}\": {why}")]
    Unfit {
        /// Its name.
        publication: String,
        /// Why.
        why: String,
        /// What fixes it.
        fix: Remedy,
    },
    /// There are no shards and no slot.
    #[error("there is nothing to move rows from: no shards, and no slot of publication \"{publication}\"")]
    NothingToMove {
        /// Its name.
        publication: String,
        /// What makes shards.
        hint: Remedy,
    },
    /// Another set was begun, and rows may be under way to it.
    #[error("the setup of {found} is not finished")]
    Unfinished {
        /// What.
        found: String,
        /// What finishes it.
        hint: Remedy,
    },
    /// There is something already.
    #[error("there is {found} already: a new set of shards would publish its rows, too")]
    Exists {
        /// What.
        found: String,
        /// What moves the rows.
        hint: Remedy,
    },
    /// More than one set to move from.
    #[error("there are {}: which of them has the rows is not known", found.join(" and "))]
    Several {
        /// What.
        found: Vec<String>,
    },
    /// A part of a set is gone.
    #[error("shard {shard} is incomplete: {missing} does not exist")]
    Incomplete {
        /// Which.
        shard: Shard,
        /// Its publication or slot.
        missing: String,
    },
    /// A slot with rows can no longer be read.
    #[error(
        "replication slot \"{slot}\" has been invalidated ({reason}) while rows are moved: those of its rows that are not published can no longer be read from it"
    )]
    Lost {
        /// Its name.
        slot: String,
        /// Why.
        reason: String,
    },
    /// The names of one shard were given, where all are meant.
    #[error("publication \"{publication}\" is shard {shard} alone, which has only a part of each table's rows")]
    OnePart {
        /// Its name.
        publication: String,
        /// Which.
        shard: Shard,
        /// Publication and slot of the whole; `None`: they are not known.
        whole: Option<(String, String)>,
    },
    /// Rows go over from one set to another.
    #[error("the rows are being moved to {to}: until that is done, nothing proves which of them are delivered")]
    Moves {
        /// For people.
        to: String,
        /// What resumes it.
        resume: Command,
    },
    /// There are shards, and what was asked for is for one slot.
    #[error("the rows are shared out among {found}: {why}")]
    SharedOut {
        /// For people.
        found: String,
        /// Why that is refused.
        why: &'static str,
        /// What to do.
        hint: Remedy,
    },
    /// Rows are under way, and nobody publishes them.
    #[error("no relay reads slot \"{slot}\": its unpublished rows would hold up all others")]
    Unread {
        /// Its name.
        slot: String,
        /// What starts the relay.
        start: Command,
    },
}

impl ShardError {
    /// The kind of end, which has the exit code.
    pub(super) const fn exit_kind(&self) -> ExitKind {
        match self {
            Self::TooOld { .. }
            | Self::KeyType { .. }
            | Self::NoColumn { .. }
            | Self::NotShared { .. }
            | Self::OnePart { .. }
            | Self::SharedOut { .. } => ExitKind::Settings,
            Self::Moves { .. } => ExitKind::Restart,
            Self::Unfit { .. }
            | Self::NothingToMove { .. }
            | Self::Unfinished { .. }
            | Self::Exists { .. }
            | Self::Several { .. }
            | Self::Incomplete { .. }
            | Self::Lost { .. }
            | Self::Unread { .. } => ExitKind::Operator,
        }
    }

    /// That something of a shard is gone: of such a kind, with such a name.
    pub(super) fn incomplete(shard: Shard, kind: &str, name: &str) -> Self {
        Self::Incomplete { shard, missing: format!("{kind} \"{name}\"") }
    }

    pub(super) fn hint(&self) -> Remedy {
        match self {
            Self::TooOld { .. } => {
                "one table or partition for each relay, each with a publication and a slot of its own".into()
            }
            Self::KeyType { .. } | Self::NoColumn { .. } => {
                "name another column with --key-column, here and for run, or --key-column '' for records without keys".into()
            }
            Self::NotShared { table, count, .. } => {
                let own = setup("--shards", *count).set("--publication", "NAME").set("--slot", "NAME").set("--table", table);
                Remedy::from("a set of shards keeps the tables that it was created with. For another table, a set of its own: ")
                    .and(own)
                    .and(". If the table was taken out of one publication, its rows are in no slot: let the relays publish what waits in their slots, stop them, ")
                    .and(teardown(*count))
                    .and(", and setup again")
            }
            Self::Unfit { fix, .. } => fix.clone(),
            Self::NothingToMove { hint, .. }
            | Self::Unfinished { hint, .. }
            | Self::Exists { hint, .. }
            | Self::SharedOut { hint, .. } => hint.clone(),
            Self::Several { .. } => {
                Remedy::from("drop the set that nobody reads: ")
                    .and(Command::new("teardown").set("--shards", "N"))
                    .and(", or ")
                    .and(Command::new("teardown"))
                    .and(" for the one slot")
            }
            Self::Incomplete { shard, .. } => {
                Remedy::from("rows committed since it went are in no slot. Once the other relays have published what waits in their slots, stop them: ")
                    .and(teardown(shard.count()))
                    .and(" && ")
                    .and(setup("--shards", shard.count()))
                    .and(", then compare the table with the topics")
            }
            Self::Lost { slot, .. } => {
                let name = literal(slot);
                Remedy::sql(format!(
                    "SELECT pg_drop_replication_slot({name}); SELECT pg_create_logical_replication_slot({name}, 'pgoutput');"
                ))
                .and(format!(
                    " start its relay again if it ended, with the --accept-slot-at that it asks for; then the same command again. Then compare the table with the topics: the SQL statement in {REPUBLISH_PAGE} publishes rows that are missing"
                ))
            }
            Self::OnePart { whole: Some((publication, slot)), .. } => format!(
                "use the names without the shard, for all shards at once: --publication {} --slot {slot}",
                shell_quoted(publication)
            )
            .into(),
            Self::OnePart { whole: None, .. } => "use the names without the shard, for all shards at once".into(),
            Self::Moves { resume, .. } => Remedy::from(Command::new("status").flag("--all"))
                .and(" shows how far it is; then the same command again. If nobody moves them any more: ")
                .and(resume.clone()),
            Self::Unread { start, .. } => {
                Remedy::from("start its relay: ").and(start.clone()).and("; then the same command again")
            }
        }
    }
}

/// Makes a set of shards, or moves rows to one: `--shards` or `--reshard`.
pub(super) fn setup(verb: &str, count: u8) -> Command {
    Command::new("setup").set(verb, count).flag("--apply")
}

/// Drops a set of shards.
pub(super) fn teardown(count: u8) -> Command {
    Command::new("teardown").set("--shards", count)
}

/// One publication with its slot.
#[derive(Debug, Clone)]
pub(super) struct Member {
    /// `None`: it is the one without shards.
    pub(super) shard: Option<Shard>,
    pub(super) publication: String,
    pub(super) slot: String,
    /// The publication's comment.
    pub(super) comment: Option<String>,
    /// The role may change the publication.
    pub(super) owned: bool,
    /// FOR ALL TABLES.
    pub(super) all_tables: bool,
    /// The slot; `None`: there is none.
    pub(super) found: Option<Slot>,
}

impl Member {
    pub(super) fn moving(&self) -> Option<Moving> {
        marker::moving(self.comment.as_deref())
    }

    /// What runs its relay.
    pub(super) fn command(&self) -> Command {
        let run = Command::new("run");
        match self.shard {
            Some(shard) => run.set("--shard", shard),
            None => run.set("--publication", &self.publication).set("--slot", &self.slot),
        }
    }
}

/// The publications that share the rows.
#[derive(Debug, Clone)]
pub(super) struct Set {
    /// `None`: one without shards.
    pub(super) count: Option<u8>,
    /// In their order; those that are there.
    pub(super) members: Vec<Member>,
}

impl Set {
    /// For people: `3 shards`.
    pub(super) fn shown(&self) -> String {
        match self.count {
            Some(1) => "1 shard".to_owned(),
            Some(count) => format!("{count} shards"),
            None => self.members.first().map_or_else(String::new, |plain| format!("slot \"{}\"", plain.slot)),
        }
    }

    /// Sees that each of its publications is there.
    pub(super) fn is_whole(&self, publication: &str) -> Result<(), ShardError> {
        let has = |shard: &Shard| self.members.iter().any(|member| member.shard == Some(*shard));
        match self.count.and_then(|count| Shard::all(count).find(|shard| !has(shard))) {
            Some(shard) => Err(ShardError::incomplete(shard, "publication", &shard.name(publication))),
            None => Ok(()),
        }
    }

    /// Whether one of them is so far in a move.
    pub(super) fn is(&self, moving: Moving) -> bool {
        self.members.iter().any(|member| member.moving() == Some(moving))
    }
}

/// Lists the sets, the one without shards first if its slot is there or was.
///
/// # Errors
/// The connection broke.
pub(super) fn sets(connection: &mut Connection, publication: &str, slot: &str) -> Result<Vec<Set>, pg::Error> {
    let rows = connection.query(
        "SELECT pubname, pg_catalog.obj_description(oid, 'pg_publication'), pg_catalog.pg_has_role(pubowner, 'USAGE'), puballtables
           FROM pg_catalog.pg_publication ORDER BY pubname",
    )?;
    let mut sets: Vec<Set> = Vec::new();
    for row in &rows {
        let (name, comment) = (row.text(0).unwrap_or_default().to_owned(), row.text(1).map(str::to_owned));
        let (shard, slot) = match marker::shard_of(comment.as_deref(), &name, (publication, slot)) {
            Some(shard) => (Some(shard), shard.name(slot)),
            None if name == publication && marker::shard(comment.as_deref()).is_none() => (None, slot.to_owned()),
            None => continue,
        };
        let found = server::slot(connection, &slot)?;
        if shard.is_none() && found.is_none() && !marker::is_set(comment.as_deref(), &slot) {
            continue;
        }
        let (owned, all_tables) = (row.is_true(2), row.is_true(3));
        let member = Member { shard, publication: name, slot, comment, owned, all_tables, found };
        let count = shard.map(Shard::count);
        match sets.iter_mut().find(|set| set.count == count) {
            Some(set) => set.members.push(member),
            None => sets.push(Set { count, members: vec![member] }),
        }
    }
    for set in &mut sets {
        set.members.sort_by_key(|member| member.shard);
    }
    sets.sort_by_key(|set| set.count);
    Ok(sets)
}

/// The set of shards that has the rows now, each with its slot; `None`: there are no shards. `whole`: publication and slot.
///
/// # Errors
/// The names are those of one shard; rows go over to another set; there are several sets, or one is not whole.
pub(super) fn settled(connection: &mut Connection, whole: (&str, &str)) -> Result<Option<Set>, super::CommandError> {
    let (publication, slot) = whole;
    is_whole_name(connection, publication, slot)?;
    let mut sets = sets(connection, publication, slot)?;
    if let Some((set, resume)) = unfinished(&sets) {
        return Err(ShardError::Moves { to: set.shown(), resume }.into());
    }
    if !sets.iter().any(|set| set.count.is_some()) {
        return Ok(None);
    }
    if sets.len() > 1 {
        return Err(ShardError::Several { found: sets.iter().map(Set::shown).collect() }.into());
    }
    let Some(set) = sets.pop() else { return Ok(None) };
    set.is_whole(publication)?;
    let lost = set.members.iter().find_map(|member| member.shard.filter(|_| member.found.is_none()));
    match lost {
        Some(shard) => Err(ShardError::incomplete(shard, "replication slot", &shard.name(slot)).into()),
        None => Ok(Some(set)),
    }
}

/// The set whose setup has begun and not ended, with the command that resumes it.
pub(super) fn unfinished(sets: &[Set]) -> Option<(&Set, Command)> {
    let set = sets.iter().find(|set| set.is(Moving::Waits))?;
    let verb = if sets.len() > 1 { "--reshard" } else { "--shards" };
    Some((set, setup(verb, set.count.unwrap_or_default())))
}

/// Sees that a publication is not that of one shard.
fn is_whole_name(connection: &mut Connection, publication: &str, slot: &str) -> Result<(), super::CommandError> {
    let mark = catalog::publication_mark(connection, publication)?;
    let Some((shard, found)) = marker::shard(mark.comment.as_deref()) else { return Ok(()) };
    let slot = shard.whole(slot).or_else(|| shard.whole(found));
    let whole = shard.whole(publication).zip(slot).map(|(one, other)| (one.to_owned(), other.to_owned()));
    Err(ShardError::OnePart { publication: publication.to_owned(), shard, whole }.into())
}

/// Sees that existing rows can be distinguished from those of the slot, which shards have no snapshot for.
///
/// # Errors
/// There are shards.
pub(super) fn has_one_slot(connection: &mut Connection, whole: (&str, &str)) -> Result<(), super::CommandError> {
    let Some(set) = settled(connection, whole)? else { return Ok(()) };
    Err(ShardError::SharedOut {
        found: set.shown(),
        why: "nothing says which rows are older than their slots",
        hint: Remedy::from(format!(
            "the SQL statement in {REPUBLISH_PAGE} passes rows through the shards, whether or not they were published. Another time publish existing rows before: "
        ))
        .and(Command::new("setup").flag("--apply").flag("--backfill"))
        .and(", then ")
        .and(Command::new("setup").set("--reshard", "N").flag("--apply")),
    }
    .into())
}

/// Sees that one slot for all rows would not publish those of shards once more.
///
/// # Errors
/// There are shards, and that slot is not.
pub(super) fn has_no_shards(connection: &mut Connection, whole: (&str, &str)) -> Result<(), super::CommandError> {
    let (publication, slot) = whole;
    is_whole_name(connection, publication, slot)?;
    let sets = sets(connection, publication, slot)?;
    let Some(set) = sets.iter().find(|set| set.count.is_some()) else { return Ok(()) };
    if sets.iter().any(|set| set.count.is_none()) {
        return Ok(());
    }
    Err(ShardError::SharedOut {
        found: set.shown(),
        why: "one slot for all of them would publish each row twice",
        hint: Remedy::from("one relay for each of them, with --shard and without --setup; to have one relay again: ")
            .and(setup("--reshard", 1)),
    }
    .into())
}

/// The tables that a publication names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NamedTable {
    pub(super) name: TableName,
    pub(super) partitioned: bool,
    /// It leaves rows or columns out.
    pub(super) restricted: bool,
}

/// Lists them; with partitioned tables by their own name.
///
/// # Errors
/// The connection broke.
pub(super) fn named_tables(connection: &mut Connection, publication: &str) -> Result<Vec<NamedTable>, pg::Error> {
    let rows = connection.query(&format!(
        "SELECT n.nspname, c.relname, c.relkind = 'p', m.prqual IS NOT NULL OR m.prattrs IS NOT NULL
           FROM pg_catalog.pg_publication_rel AS m JOIN pg_catalog.pg_publication AS p ON p.oid = m.prpubid
           JOIN pg_catalog.pg_class AS c ON c.oid = m.prrelid JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
          WHERE p.pubname = {} AND {} ORDER BY 1, 2",
        literal(publication),
        catalog::NOT_LEFT_OUT
    ))?;
    let table = |row: &pg::Row| {
        let name = TableName { schema: row.text(0)?.to_owned(), name: row.text(1)?.to_owned() };
        Some(NamedTable { name, partitioned: row.is_true(2), restricted: row.is_true(3) })
    };
    Ok(rows.iter().filter_map(table).collect())
}

/// Sees that the server has row filters.
///
/// # Errors
/// It has none, or the connection broke.
pub(super) fn has_row_filters(connection: &mut Connection) -> Result<(), super::CommandError> {
    let server = catalog::server(connection)?;
    if !server.decodes() {
        return Err(RunError::WalLevel { found: server.wal_level }.into());
    }
    if server.version < shard::SINCE {
        return Err(ShardError::TooOld { version: server.version_text }.into());
    }
    Ok(())
}
