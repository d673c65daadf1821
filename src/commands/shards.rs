//! Sets of shards: which there are.
//!
//! In: the names of the whole. Out: the one slot without shards, and each set of shards, as publications and their comments show them.
//! Reads only. The names of a shard are derived in [`crate::pg::shard`]; a publication that has such a name and no line of ours in its comment is somebody
//! else's, and is in no set.

use super::error::CommandError;
use super::output::setup_shards;
use crate::outbox::TableName;
use crate::pg::marker::{self, MoveState};
use crate::pg::server::{self, Slot};
use crate::pg::shard::Shard;
use crate::pg::{self, Connection, catalog, literal};
use crate::remedy::{Command, Remedy};
use crate::supervise::REPUBLISH_PAGE;

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
    pub(super) fn moving(&self) -> Option<MoveState> {
        marker::moving(self.comment.as_deref())
    }

    /// Returns the command that runs its relay.
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
    pub(super) fn is_whole(&self, publication: &str) -> Result<(), CommandError> {
        let has = |shard: &Shard| self.members.iter().any(|member| member.shard == Some(*shard));
        match self.count.and_then(|count| Shard::all(count).find(|shard| !has(shard))) {
            Some(shard) => Err(CommandError::shard_lacks(shard, "publication", &shard.name(publication))),
            None => Ok(()),
        }
    }

    /// Whether it exists, and its relays may read.
    pub(super) fn is_done(&self) -> bool {
        !self.members.is_empty() && !self.is(MoveState::Waits)
    }

    /// Whether one of them is so far in a move.
    pub(super) fn is(&self, moving: MoveState) -> bool {
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
pub(super) fn settled(connection: &mut Connection, whole: (&str, &str)) -> Result<Option<Set>, CommandError> {
    let (publication, slot) = whole;
    is_whole_name(connection, publication, slot)?;
    let mut sets = sets(connection, publication, slot)?;
    if let Some((set, resume)) = unfinished(&sets) {
        return Err(CommandError::rows_move(&set.shown(), resume));
    }
    if !sets.iter().any(|set| set.count.is_some()) {
        return Ok(None);
    }
    if sets.len() > 1 {
        return Err(CommandError::several_sets(&sets.iter().map(Set::shown).collect::<Vec<_>>()));
    }
    let Some(set) = sets.pop() else { return Ok(None) };
    set.is_whole(publication)?;
    let lost = set.members.iter().find_map(|member| member.shard.filter(|_| member.found.is_none()));
    match lost {
        Some(shard) => Err(CommandError::shard_lacks(shard, "replication slot", &shard.name(slot))),
        None => Ok(Some(set)),
    }
}

/// The set whose setup has begun and not ended, with the command that resumes it.
pub(super) fn unfinished(sets: &[Set]) -> Option<(&Set, Command)> {
    let set = sets.iter().find(|set| set.is(MoveState::Waits))?;
    let verb = if sets.len() > 1 { "--reshard" } else { "--shards" };
    Some((set, setup_shards(verb, set.count.unwrap_or_default())))
}

/// Sees that a publication is not that of one shard.
fn is_whole_name(connection: &mut Connection, publication: &str, slot: &str) -> Result<(), CommandError> {
    let mark = catalog::publication_mark(connection, publication)?;
    let Some((shard, found)) = marker::shard(mark.comment.as_deref()) else { return Ok(()) };
    let slot = shard.whole(slot).or_else(|| shard.whole(found));
    Err(CommandError::one_shard_named(publication, shard, shard.whole(publication).zip(slot)))
}

/// Sees that existing rows can be distinguished from those of the slot, which shards have no snapshot for.
///
/// # Errors
/// There are shards.
pub(super) fn has_one_slot(connection: &mut Connection, whole: (&str, &str)) -> Result<(), CommandError> {
    let Some(set) = settled(connection, whole)? else { return Ok(()) };
    let remedy = Remedy::from(format!(
        "the SQL statement in {REPUBLISH_PAGE} passes rows through the shards, whether or not they were published. Another time publish existing rows before: "
    ))
    .and(Command::new("setup").flag("--apply").flag("--backfill"))
    .and(", then ")
    .and(Command::new("setup").set("--reshard", "N").flag("--apply"));
    Err(CommandError::shared_out(&set.shown(), "nothing says which rows are older than their slots", remedy))
}

/// Sees that one slot for all rows would not publish those of shards once more.
///
/// # Errors
/// There are shards, and that slot is not.
pub(super) fn has_no_shards(connection: &mut Connection, whole: (&str, &str)) -> Result<(), CommandError> {
    let (publication, slot) = whole;
    is_whole_name(connection, publication, slot)?;
    let sets = sets(connection, publication, slot)?;
    let Some(set) = sets.iter().find(|set| set.count.is_some()) else { return Ok(()) };
    if sets.iter().any(|set| set.count.is_none()) {
        return Ok(());
    }
    let remedy =
        Remedy::from("one relay for each of them, with --shard and without --setup; to have one relay again: ")
            .and(setup_shards("--reshard", 1));
    Err(CommandError::shared_out(&set.shown(), "one slot for all of them would publish each row twice", remedy))
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
