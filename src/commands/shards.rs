//! Lists the sets of shards that a database has.
//!
//! In: the common names of publication and slot. Out: the one slot without shards, and each set of shards, as publications and their
//! comments show them. Reads only. The names of a shard are derived in [`crate::pg::shard`]. A publication that has such a name, and no
//! line of walrelay in its comment, belongs to somebody else and is in no set.

use super::error::CommandError;
use super::output::setup_shards;
use crate::pg::marker::{self, MoveState};
use crate::pg::server::{self, Slot};
use crate::pg::shard::{MOST, Shard};
use crate::pg::{self, Connection, Row, catalog};
use crate::remedy::{Command, Remedy};
use crate::supervise::{REPUBLISH_PAGE, RunError};
use std::iter;

/// A publication with its slot, whether or not they exist.
#[derive(Debug, Clone)]
pub(super) struct Member {
    /// `None`: it is the one without shards.
    pub(super) shard: Option<Shard>,
    pub(super) publication: String,
    pub(super) slot: String,
    /// Whether the publication exists.
    pub(super) exists: bool,
    /// The publication's comment.
    pub(super) comment: Option<String>,
    /// Whether the role may change the publication, or create it.
    pub(super) owned: bool,
    /// The slot. `None`: it does not exist.
    pub(super) found: Option<Slot>,
}

impl Member {
    /// Finds the publication among those of the database. `whole`: the common names of publication and slot.
    fn of(shard: Option<Shard>, publications: &[Row], whole: (&str, &str)) -> Self {
        let name = |whole: &str| shard.map_or_else(|| whole.to_owned(), |shard| shard.name(whole));
        let (publication, slot) = (name(whole.0), name(whole.1));
        let is_it = |row: &&Row| {
            row.text(0) == Some(&publication) && marker::shard(row.text(1)) == shard.map(|shard| (shard, slot.as_str()))
        };
        let row = publications.iter().find(is_it);
        let comment = row.and_then(|row| row.text(1)).map(str::to_owned);
        let owned = row.is_none_or(|row| row.is_true(2));
        Self { shard, exists: row.is_some(), comment, owned, found: None, publication, slot }
    }

    pub(super) fn moving(&self) -> Option<MoveState> {
        marker::moving(self.comment.as_deref())
    }

    /// Checks that the comment says nothing of it in a form that is not known.
    pub(super) fn is_known(&self) -> Result<(), CommandError> {
        match marker::unknown_line(self.comment.as_deref(), &self.slot) {
            Some(line) => Err(RunError::unknown_marker(&self.slot, &self.publication, line).into()),
            None => Ok(()),
        }
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
    /// All of them, in their order.
    pub(super) members: Vec<Member>,
}

impl Set {
    /// Finds its publications among those of the database. `whole`: the common names of publication and slot.
    pub(super) fn of(count: Option<u8>, publications: &[Row], whole: (&str, &str)) -> Self {
        let shards = count.map_or_else(|| vec![None], |count| Shard::all(count).map(Some).collect());
        Self { count, members: shards.into_iter().map(|shard| Member::of(shard, publications, whole)).collect() }
    }

    /// For people: `3 shards`.
    pub(super) fn shown(&self) -> String {
        match self.count {
            Some(1) => "1 shard".to_owned(),
            Some(count) => format!("{count} shards"),
            None => self.members.first().map_or_else(String::new, |plain| format!("slot \"{}\"", plain.slot)),
        }
    }

    pub(super) fn shards(&self) -> impl Iterator<Item = (Shard, &Member)> {
        self.members.iter().filter_map(|member| Some((member.shard?, member)))
    }

    /// Checks that each of its publications exists.
    pub(super) fn has_publications(&self) -> Result<(), CommandError> {
        match self.shards().find(|(_, member)| !member.exists) {
            Some((shard, member)) => {
                let why = format!("publication \"{}\" does not exist", member.publication);
                Err(CommandError::shard_incomplete(shard, &why))
            }
            None => Ok(()),
        }
    }

    /// Checks that each row is in one of its slots. Its setup is done.
    pub(super) fn is_whole(&self) -> Result<(), CommandError> {
        self.has_publications()?;
        for (shard, member) in self.shards() {
            if member.found.is_none() {
                return Err(CommandError::shard_incomplete(shard, &no_slot(&member.slot)));
            }
            if member.moving().is_some() {
                return Err(CommandError::shard_incomplete(shard, "its rows were moved to shards that are gone"));
            }
        }
        Ok(())
    }

    /// Whether it exists, and its relays may read.
    pub(super) fn is_done(&self) -> bool {
        self.members.iter().any(|member| member.exists) && !self.is(MoveState::Waits)
    }

    /// Whether one of its publications is at this stage of a move.
    pub(super) fn is(&self, moving: MoveState) -> bool {
        self.members.iter().any(|member| member.moving() == Some(moving))
    }
}

/// Says that a shard has no slot.
pub(super) fn no_slot(slot: &str) -> String {
    format!("replication slot \"{slot}\" does not exist")
}

/// Lists the sets that exist, the one without shards first if its slot exists or did.
///
/// # Errors
/// The connection broke.
pub(super) fn sets(connection: &mut Connection, whole: (&str, &str)) -> Result<Vec<Set>, pg::Error> {
    let publications = connection.query(
        "SELECT pubname, pg_catalog.obj_description(oid, 'pg_publication'), pg_catalog.pg_has_role(pubowner, 'USAGE')
           FROM pg_catalog.pg_publication",
    )?;
    let counts = iter::once(None).chain((1..=MOST).map(Some));
    let mut sets: Vec<Set> = counts.map(|count| Set::of(count, &publications, whole)).collect();
    sets.retain(|set| set.members.iter().any(|member| member.exists));
    for member in sets.iter_mut().flat_map(|set| &mut set.members) {
        member.found = server::slot(connection, &member.slot)?;
    }
    let has_slot = |member: &Member| member.found.is_some() || marker::is_set(member.comment.as_deref(), &member.slot);
    sets.retain(|set| set.count.is_some() || set.members.iter().any(has_slot));
    Ok(sets)
}

/// The set of shards that has the rows now. `None`: there are no shards. `whole`: the common names of publication and slot.
///
/// # Errors
/// The names are those of one shard; rows go over to another set; there are several sets, or one is not whole.
pub(super) fn current(connection: &mut Connection, whole: (&str, &str)) -> Result<Option<Set>, CommandError> {
    is_whole_name(connection, whole)?;
    let mut sets = sets(connection, whole)?;
    let members = sets.iter().flat_map(|set| &set.members);
    members.filter(|member| member.moving() == Some(MoveState::Unknown)).try_for_each(Member::is_known)?;
    if let Some((set, resume)) = unfinished(&sets) {
        return Err(CommandError::rows_move(&set.shown(), resume));
    }
    if sets.len() > 1 {
        return Err(CommandError::several_sets(&sets.iter().map(Set::shown).collect::<Vec<_>>()));
    }
    let set = sets.pop().filter(|set| set.count.is_some());
    set.iter().try_for_each(Set::is_whole)?;
    Ok(set)
}

/// The set whose setup has begun and not ended, with the command that resumes it.
pub(super) fn unfinished(sets: &[Set]) -> Option<(&Set, Command)> {
    let set = sets.iter().find(|set| set.is(MoveState::Waits))?;
    let verb = if sets.len() > 1 { "--reshard" } else { "--shards" };
    Some((set, setup_shards(verb, set.count.unwrap_or_default())))
}

/// Checks that a publication is not that of one shard.
fn is_whole_name(connection: &mut Connection, (publication, slot): (&str, &str)) -> Result<(), CommandError> {
    let mark = catalog::publication_mark(connection, publication)?;
    let Some((shard, found)) = marker::shard(mark.comment.as_deref()) else { return Ok(()) };
    let slot = shard.whole(slot).or_else(|| shard.whole(found));
    Err(CommandError::one_shard_named(publication, shard, shard.whole(publication).zip(slot)))
}

/// Checks that there are no shards: they have no snapshot that distinguishes existing rows from those of their slots.
///
/// # Errors
/// There are shards.
pub(super) fn has_one_slot(connection: &mut Connection, whole: (&str, &str)) -> Result<(), CommandError> {
    let Some(set) = current(connection, whole)? else { return Ok(()) };
    let remedy = Remedy::from(format!(
        "the SQL statement in {REPUBLISH_PAGE} passes rows through the shards, whether or not they were published. Another time publish existing rows before: "
    ))
    .and(Command::new("setup").flag("--apply").flag("--backfill"))
    .and(", then ")
    .and(Command::new("setup").set("--reshard", "N").flag("--apply"));
    Err(CommandError::shared_out(&set.shown(), "nothing says which rows are older than their slots", remedy))
}

/// Checks that one slot for all rows would not publish the rows of shards once more. Returns the sets that exist.
///
/// # Errors
/// There are shards, and that slot does not exist.
pub(super) fn has_no_shards(connection: &mut Connection, whole: (&str, &str)) -> Result<Vec<Set>, CommandError> {
    is_whole_name(connection, whole)?;
    let sets = sets(connection, whole)?;
    let Some(set) = sets.first().filter(|set| set.count.is_some()) else { return Ok(sets) };
    let remedy =
        Remedy::from("one relay for each of them, with --shard and without --setup; to have one relay again: ")
            .and(setup_shards("--reshard", 1));
    Err(CommandError::shared_out(&set.shown(), "one slot for all of them would publish each row twice", remedy))
}
