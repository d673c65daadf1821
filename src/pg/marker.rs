//! The setup marker: lines in the comment on a publication that say for which slot the publication was set up.
//!
//! In and out: the comment's text. Other lines stay: those of a user, and those of other slots. The comment is in the database, and so
//! in a dump, but the slot is not. So a marker without its slot means that the slot was lost.
//!
//! | line | content |
//! |---|---|
//! | `CREATING` | the slot is to be created. The line is there before the slot, and goes when the slot is marked |
//! | `PREFIX` | the slot was created |
//! | `SINCE` | the next transaction at that time. The slot has the rows of this and later transactions, and few or none of earlier ones |
//! | `AT` | the cluster's identity and position when the slot was marked, so that a later slot of the same name is detected ([`Anchor`]) |
//! | `EMPTY` | the marker's token, and the tables that were empty when the slot was marked ([`TableStatement`]) |
//! | `PUBLISHED` | the same token, and tables of which a person has said that their rows are published |
//! | `SHARD` | which shard the publication is |
//! | `MOVE` | the shard's progress while rows move between sets of shards ([`MoveState`]) |
//!
//! The token is a random number, the cluster's system identifier and the database's oid. A marker that was copied into another cluster or
//! database has another identifier or oid than that one, and says nothing there. Notes of the slot (`pg::large_object_state`) repeat
//! the token, so they end with their marker.
//!
//! A line that has the slot's name, and a kind or a form that is not known, is a newer version's ([`unknown_line`]). It stays, and nothing is known
//! of the tables beside it: it may say that a record of them does not count.
//!
//! Who writes the comment has the advisory lock `LOCK` from the last look at it to the write.

use super::connection::Connection;
use super::error::Error;
use super::shard::Shard;
use super::slot_sighting::Anchor;
use super::{identifier, literal};
use crate::lsn::Lsn;
use std::collections::{BTreeMap, BTreeSet};

/// The advisory lock of those who write the comment, one after the other in a database: "walrelay" in ASCII.
pub(crate) const LOCK: (u32, u32) = (0x7761_6c72, 0x656c_6179);

/// The prefix of the line that marks a slot.
const PREFIX: &str = "walrelay slot: ";

/// The prefix of the line that says that a slot is to be created.
const CREATING: &str = "walrelay creating: ";

/// The prefix of the line with the first transaction that a slot has.
const SINCE: &str = "walrelay since: ";

/// The prefix of the line with the token and the tables that were empty.
const EMPTY: &str = "walrelay empty: ";

/// The prefix of a line with tables whose rows are published.
const PUBLISHED: &str = "walrelay published: ";

/// The prefix of a line that earlier versions wrote, and that says nothing any more.
const WHOLE: &str = "walrelay whole since: ";

/// The prefix of the line with the cluster's identity and position when a slot was marked.
const AT: &str = "walrelay slot at: ";

/// The prefix of a line that earlier versions wrote, and that says nothing any more.
const SNAPSHOT: &str = "walrelay snapshot: ";

/// The prefix of the line with a publication's shard and its slot.
const SHARD: &str = "walrelay shard: ";

/// The prefix of the line with a shard's progress in a move.
pub(crate) const MOVE: &str = "walrelay move: ";

/// A publication's progress in a move of rows from one set of shards to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MoveState {
    /// Its relay must not read yet, since rows from before the cut may be in flight elsewhere.
    Waits,
    /// It has no rows from after the cut. The rows from before are being published.
    Drains,
    /// All of its rows are acknowledged.
    Drained,
    /// A newer version has written it. It may mean anything: so nothing is read, and nothing is written beside it.
    Unknown,
}

impl MoveState {
    /// The states that this version writes.
    const WRITTEN: [Self; 3] = [Self::Waits, Self::Drains, Self::Drained];

    /// The word for it in the comment.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Waits => "waits",
            Self::Drains => "drains",
            Self::Drained => "drained",
            Self::Unknown => "unknown",
        }
    }
}

/// The shard that a publication is, and its slot. `None`: it is no shard.
pub fn shard(comment: Option<&str>) -> Option<(Shard, &str)> {
    let mut lines = comment.unwrap_or_default().lines();
    lines.find_map(|line| {
        let (shard, slot) = line.strip_prefix(SHARD)?.split_once(' ')?;
        Some((Shard::parse(shard)?, slot))
    })
}

/// The shard that a publication is, by its own name and comment. `publication` and `slot` are the common names of all shards. `None`:
/// it is none of these shards.
pub(crate) fn shard_of(comment: Option<&str>, name: &str, (publication, slot): (&str, &str)) -> Option<Shard> {
    let (shard, found) = shard(comment)?;
    (name == shard.name(publication) && found == shard.name(slot)).then_some(shard)
}

/// The comment of a new shard's publication.
pub fn new_shard(shard: Shard, slot: &str) -> String {
    moving_to(Some(&format!("{SHARD}{shard} {slot}")), Some(MoveState::Waits)).unwrap_or_default()
}

/// A publication's progress in a move. `None`: there is no move.
pub fn moving(comment: Option<&str>) -> Option<MoveState> {
    let mut lines = comment.unwrap_or_default().lines();
    let word = lines.find_map(|line| line.strip_prefix(MOVE))?;
    Some(MoveState::WRITTEN.into_iter().find(|moving| moving.word() == word).unwrap_or(MoveState::Unknown))
}

/// The comment with this progress instead of the old one. `None`: the comment is empty then.
pub fn moving_to(comment: Option<&str>, moving: Option<MoveState>) -> Option<String> {
    let kept = without(comment, |line| line.starts_with(MOVE));
    let line = moving.map(|moving| format!("{MOVE}{}", moving.word()));
    let lines: Vec<String> = kept.into_iter().chain(line).collect();
    (!lines.is_empty()).then(|| lines.join("\n"))
}

/// A statement about tables at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TableStatement {
    /// The position in the WAL. Of each row that was committed before it, the statement says that it is published, or that there was none.
    pub at: Lsn,
    /// The fingerprints of the tables, by `pg_class.oid`: see `pg::leaves`.
    pub known: BTreeMap<u32, String>,
    /// The tables that were there as well, and of which nothing is stated.
    pub others: BTreeSet<u32>,
}

impl TableStatement {
    /// Parses what follows the token: `at` and the list. `None`: its form is not known.
    fn of_words(words: &str) -> Option<Self> {
        let (at, list) = words.split_once(' ').filter(|(_, list)| !list.contains(' '))?;
        Self::parse(at, list)
    }

    /// Parses `at` and the list: `OID:FINGERPRINT` for each table of `known`, and `OID` for each other one. `-`: there is none.
    fn parse(at: &str, list: &str) -> Option<Self> {
        let mut statement = Self { at: at.parse().ok()?, ..Self::default() };
        for word in list.split(',').filter(|_| list != "-") {
            match word.split_once(':') {
                Some((oid, fingerprint)) => {
                    statement.known.insert(oid.parse().ok()?, fingerprint.to_owned());
                }
                None => {
                    statement.others.insert(word.parse().ok()?);
                }
            }
        }
        Some(statement)
    }

    /// The list that [`TableStatement::parse`] takes.
    fn list(&self) -> String {
        let known = self.known.iter().map(|(oid, fingerprint)| format!("{oid}:{fingerprint}"));
        let words: Vec<String> = known.chain(self.others.iter().map(u32::to_string)).collect();
        if words.is_empty() { "-".to_owned() } else { words.join(",") }
    }

    /// Whether the table was there when the statement was made.
    pub(crate) fn has(&self, oid: u32) -> bool {
        self.known.contains_key(&oid) || self.others.contains(&oid)
    }
}

/// Whether `slot` is marked.
pub fn is_set(comment: Option<&str>, slot: &str) -> bool {
    slots(comment).any(|marked| marked == slot)
}

/// The slots that are marked.
pub fn slots(comment: Option<&str>) -> impl Iterator<Item = &str> {
    comment.unwrap_or_default().lines().filter_map(|line| line.strip_prefix(PREFIX))
}

/// The comment with `slot` marked.
pub fn set(comment: Option<&str>, slot: &str) -> String {
    if is_set(comment, slot) {
        return comment.unwrap_or_default().to_owned();
    }
    let intent = format!("{CREATING}{slot}");
    with_line(without(comment, |line| line == intent), &format!("{PREFIX}{slot}"))
}

/// The comment that says that `slot` is to be created, without what it says of an earlier slot of that name.
pub fn creating(comment: Option<&str>, slot: &str) -> String {
    with_line(removed(comment, slot), &format!("{CREATING}{slot}"))
}

/// Whether `slot` is to be created, and is not marked yet.
pub fn is_creating(comment: Option<&str>, slot: &str) -> bool {
    let mut intents = comment.unwrap_or_default().lines().filter_map(|line| line.strip_prefix(CREATING));
    intents.any(|intent| intent == slot)
}

fn with_line(comment: Option<String>, line: &str) -> String {
    comment.filter(|text| !text.is_empty()).map_or_else(|| line.to_owned(), |text| format!("{text}\n{line}"))
}

/// As SQL, whether somebody has [`LOCK`].
pub(crate) const IS_LOCKED: &str = "SELECT EXISTS (
    SELECT FROM pg_catalog.pg_locks AS l JOIN pg_catalog.pg_database AS d ON d.oid = l.database
     WHERE l.locktype = 'advisory' AND l.granted AND d.datname = pg_catalog.current_database()
       AND l.classid = 2002873458 AND l.objid = 1701601657 AND l.objsubid = 1)";

/// The first transaction that `slot` has, with 64 bits and its epoch. `None`: the comment does not have it.
pub fn since(comment: Option<&str>, slot: &str) -> Option<u64> {
    lines_of(comment, SINCE, slot).find_map(|words| words.parse().ok())
}

/// The token of the marker of `slot`. `None`: it has none.
pub fn token<'c>(comment: Option<&'c str>, slot: &'c str) -> Option<&'c str> {
    lines_of(comment, EMPTY, slot).find_map(|words| words.split(' ').next())
}

/// The statements in the marker of `slot`: first of the tables that were empty, then of those that a person has named. Empty: there is no marker with
/// a token, or the form of its list is not known.
pub fn statements(comment: Option<&str>, slot: &str) -> Vec<TableStatement> {
    let Some((token, listed)) = lines_of(comment, EMPTY, slot).find_map(|words| words.split_once(' ')) else {
        return Vec::new();
    };
    let Some(listed) = TableStatement::of_words(listed) else { return Vec::new() };
    let published = lines_of(comment, PUBLISHED, slot).filter_map(|words| words.split_once(' '));
    let published = published.filter(|(of, _)| *of == token).filter_map(|(_, words)| TableStatement::of_words(words));
    [listed].into_iter().chain(published).collect()
}

/// The first line with the name of `slot` whose kind or form is not known, or a line about a move in such a form. `None`: there is none.
pub fn unknown_line<'c>(comment: Option<&'c str>, slot: &str) -> Option<&'c str> {
    let is_about_slot = |line: &&str| {
        let said = line.strip_prefix("walrelay ").and_then(|line| line.split_once(": "));
        line.starts_with(MOVE) || said.is_some_and(|(_, words)| words.split(' ').any(|word| word == slot))
    };
    comment.unwrap_or_default().lines().filter(is_about_slot).find(|line| !is_known(line))
}

/// Whether a line has a kind and a form that this version knows, of whichever slot it is.
fn is_known(line: &str) -> bool {
    if let Some(slot) = line.strip_prefix(PREFIX).or_else(|| line.strip_prefix(CREATING)) {
        return !slot.contains(' ');
    }
    if line.starts_with(SHARD) {
        return shard(Some(line)).is_some_and(|(_, slot)| !slot.contains(' '));
    }
    if line.starts_with(MOVE) {
        return moving(Some(line)) != Some(MoveState::Unknown);
    }
    let said = line.split_once(": ").and_then(|(_, words)| words.split_once(' '));
    let Some((slot, words)) = said else { return false };
    if [WHOLE, SNAPSHOT].iter().any(|prefix| line.starts_with(prefix)) {
        return true;
    }
    if line.starts_with(SINCE) {
        return since(Some(line), slot).is_some();
    }
    if line.starts_with(AT) {
        return anchor(Some(line), slot).is_some();
    }
    let is_statement = [EMPTY, PUBLISHED].iter().any(|prefix| line.starts_with(prefix));
    is_statement && words.split_once(' ').is_some_and(|(_, words)| TableStatement::of_words(words).is_some())
}

/// The comment with what a person states of tables of `slot`. An earlier statement of the same tables goes. `None`: the marker has no token.
pub fn with_published(comment: Option<&str>, slot: &str, stated: &TableStatement) -> Option<String> {
    let token = token(comment, slot)?;
    let is_replaced = |line: &str| {
        let words = lines_of(Some(line), PUBLISHED, slot).next().unwrap_or_default().to_owned();
        let list = words.rsplit(' ').next().and_then(|list| TableStatement::parse("0/0", list));
        list.is_some_and(|before| before.known.keys().all(|oid| stated.known.contains_key(oid)))
    };
    let kept = without(comment, is_replaced).unwrap_or_default();
    Some(format!("{kept}\n{PUBLISHED}{slot} {token} {} {}", stated.at, stated.list()))
}

/// The position of the cluster when `slot` was marked. `None`: the comment does not have it.
pub fn anchor(comment: Option<&str>, slot: &str) -> Option<Anchor> {
    lines_of(comment, AT, slot).find_map(|words| {
        let mut words = words.split(' ');
        let anchor = Anchor {
            system_identifier: words.next()?.to_owned(),
            timeline: words.next()?.parse().ok()?,
            written: words.next()?.parse().ok()?,
            seconds: words.next()?.parse().ok()?,
        };
        words.next().is_none().then_some(anchor)
    })
}

/// The lines `SINCE`, `AT` and `EMPTY`, as a format for SQL's `format`. Its arguments are the next transaction, the time, the system
/// identifier, the timeline, the position in the WAL, the token and the list of tables.
pub(crate) fn since_format(slot: &str) -> String {
    format!("\n{SINCE}{slot} %1$s\n{AT}{slot} %3$s %4$s %5$s %2$s\n{EMPTY}{slot} %6$s %5$s %7$s")
}

/// As SQL, the end of a token: which cluster and which database this is.
pub(crate) const HERE: &str = "(SELECT '.' || c.system_identifier || '.' || d.oid
    FROM pg_catalog.pg_control_system() AS c, pg_catalog.pg_database AS d WHERE d.datname = pg_catalog.current_database())";

/// The token of the marker of `slot`, if the marker was written in this database of this cluster.
///
/// # Errors
/// The connection broke.
pub(crate) fn token_of_here(
    connection: &mut Connection,
    comment: Option<&str>,
    slot: &str,
) -> Result<Option<String>, Error> {
    let Some(token) = token(comment, slot) else { return Ok(None) };
    let here: Option<String> = connection.value(&format!("SELECT {HERE}"))?;
    Ok(here.filter(|here| token.ends_with(here.as_str())).map(|_| token.to_owned()))
}

/// SQL that writes the comment of a publication.
pub(crate) fn comment_sql(publication: &str, comment: Option<&str>) -> String {
    let text = comment.map_or_else(|| "NULL".to_owned(), literal);
    format!("COMMENT ON PUBLICATION {} IS {text}", identifier(publication))
}

/// The number of [`LOCK`] as SQL's functions take it.
pub(crate) fn lock_key() -> u64 {
    (u64::from(LOCK.0) << 32) | u64::from(LOCK.1)
}

/// The comment without the lines of `slot`. `None`: the comment is empty then.
pub fn removed(comment: Option<&str>, slot: &str) -> Option<String> {
    let own = [PREFIX, CREATING].map(|prefix| format!("{prefix}{slot}"));
    without(comment, |line| {
        let is_of_slot = |prefix| lines_of(Some(line), prefix, slot).next().is_some();
        own.iter().any(|own| own == line) || [SINCE, WHOLE, AT, EMPTY, PUBLISHED, SNAPSHOT].into_iter().any(is_of_slot)
    })
}

/// The lines with this prefix and then `slot`, without both.
fn lines_of<'c>(comment: Option<&'c str>, prefix: &'c str, slot: &'c str) -> impl Iterator<Item = &'c str> {
    let lines = comment.unwrap_or_default().lines();
    lines.filter_map(move |line| line.strip_prefix(prefix)?.strip_prefix(slot)?.strip_prefix(' '))
}

/// The comment without the lines for which `goes` is true. `None`: the comment is empty then.
fn without(comment: Option<&str>, goes: impl Fn(&str) -> bool) -> Option<String> {
    let kept: Vec<&str> = comment.unwrap_or_default().lines().filter(|line| !goes(line)).collect();
    (!kept.is_empty()).then(|| kept.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{assert_written, golden};

    /// The comment that has each kind of line of one slot: the marker of a setup, a person's statement, a shard's progress.
    fn written() -> String {
        let stated =
            TableStatement { at: Lsn::new(2000), known: [(16390, "e5f6".to_owned())].into(), others: BTreeSet::new() };
        let comment = with_published(Some(&marked(Some("events of the shop"), "orders", "781")), "orders", &stated);
        let shard = new_shard(Shard::new(0, 2).unwrap(), "orders_0_of_2");
        format!("{}\n{shard}", comment.unwrap())
    }

    #[test]
    fn the_marker_that_each_version_has_written_is_read() {
        assert_written("marker.txt", &format!("{}\n", written()));
        for golden in golden("marker.txt") {
            let (comment, version) = (Some(golden.text.as_str()), golden.version.as_str());
            assert_eq!((is_set(comment, "orders"), unknown_line(comment, "orders")), (true, None), "{version}");
            assert!(!is_creating(comment, "orders"), "{version}");
            if version == "0.1" {
                assert_eq!((token(comment, "orders"), statements(comment, "orders")), (None, Vec::new()));
                continue;
            }
            assert_eq!(since(comment, "orders"), Some(781), "{version}");
            assert_eq!(anchor(comment, "orders").unwrap().written, Lsn::new(1000), "{version}");
            assert_eq!(token(comment, "orders"), Some("a1b2.77.5"), "{version}");
            let found = statements(comment, "orders");
            let said: Vec<_> = found.iter().map(|found| (found.at, found.has(16385), found.has(16390))).collect();
            assert_eq!(said, [(Lsn::new(1000), true, true), (Lsn::new(2000), false, true)], "{version}");
            assert_eq!(moving(comment), Some(MoveState::Waits), "{version}");
            assert_eq!(shard(comment), Some((Shard::new(0, 2).unwrap(), "orders_0_of_2")), "{version}");
        }
    }

    #[test]
    fn the_intent_that_each_version_has_written_is_read() {
        assert_written("intent.txt", &format!("{}\n", creating(Some("events of the shop"), "orders")));
        for golden in golden("intent.txt") {
            let comment = Some(golden.text.as_str());
            assert!(is_creating(comment, "orders") && !is_set(comment, "orders"), "{}", golden.version);
            assert_eq!(unknown_line(comment, "orders"), None, "{}", golden.version);
        }
    }

    #[test]
    fn a_line_of_a_newer_form_is_found_says_nothing_and_stays() {
        let comment = written();
        for line in [
            "walrelay paused: orders",
            "walrelay not published: 16385 of orders",
            "walrelay creating: orders 2",
            "walrelay slot: orders 2",
            "walrelay slot at: orders 77 2 0/3E8 1700000000 more",
            "walrelay since: orders 0/3E8",
            "walrelay empty: orders a1b2.77.5 0/3E8 16385:c3d4 more",
            "walrelay empty: orders a1b2.77.5 0/3E8 public.a:c3d4",
            "walrelay published: orders a1b2.77.5 0/3E8 - more",
            "walrelay shard: 0/2/1 orders",
            "walrelay move: halted",
        ] {
            let with = format!("{comment}\n{line}");
            assert_eq!(unknown_line(Some(&with), "orders"), Some(line));
            assert_eq!(statements(Some(line), "orders"), [], "{line}");
            assert!(removed(Some(&format!("walrelay paused: orders\n{line}")), "orders").is_some());
        }
        for line in ["walrelay paused: returns", "walrelay publishes orders", "orders: see the wiki", ""] {
            assert_eq!(unknown_line(Some(&format!("{comment}\n{line}")), "orders"), None, "{line}");
        }
    }

    #[test]
    fn a_list_of_a_newer_form_is_not_replaced_by_what_a_person_states() {
        let comment = written().replace(" 16385:c3d4,16390", " public.a:c3d4");
        assert_eq!(
            (token(Some(&comment), "orders"), statements(Some(&comment), "orders")),
            (Some("a1b2.77.5"), vec![])
        );
    }

    /// The comment with the values that the server would fill in.
    fn marked(comment: Option<&str>, slot: &str, xid: &str) -> String {
        let values = [xid, "1700000000", "77", "2", "0/3E8", "a1b2.77.5", "16385:c3d4,16390"];
        let filled = values
            .iter()
            .enumerate()
            .fold(since_format(slot), |text, (at, value)| text.replace(&format!("%{}$s", at + 1), value));
        set(comment, slot) + &filled
    }

    #[test]
    fn a_users_own_comment_and_other_slots_marks_are_kept() {
        let comment = set(Some("events of the shop"), "orders");
        let comment = set(Some(&comment), "returns");
        assert_eq!(comment, "events of the shop\nwalrelay slot: orders\nwalrelay slot: returns");
        assert_eq!(removed(Some(&comment), "orders").unwrap(), "events of the shop\nwalrelay slot: returns");
        assert_eq!(slots(Some(&comment)).collect::<Vec<_>>(), ["orders", "returns"]);
    }

    #[test]
    fn a_mark_is_of_one_slot_and_not_of_one_whose_name_it_begins() {
        let comment = set(None, "orders_2");
        assert!(is_set(Some(&comment), "orders_2") && !is_set(Some(&comment), "orders"));
        assert_eq!(removed(Some(&comment), "orders").as_deref(), Some("walrelay slot: orders_2"));
    }

    #[test]
    fn an_intent_goes_when_the_slot_is_marked_and_is_no_mark() {
        let comment = creating(Some("events\nwalrelay slot: orders\nwalrelay slot: orders_2"), "orders");
        assert_eq!(comment, "events\nwalrelay slot: orders_2\nwalrelay creating: orders");
        assert!(is_creating(Some(&comment), "orders") && !is_set(Some(&comment), "orders"));
        assert!(
            !is_creating(Some(&comment), "orders_2") && !is_creating(Some("walrelay creating: orders_2"), "orders")
        );
        let marked = set(Some(&comment), "orders");
        assert_eq!(marked, "events\nwalrelay slot: orders_2\nwalrelay slot: orders");
        assert_eq!(removed(Some(&creating(None, "orders")), "orders"), None);
        assert!(IS_LOCKED.contains(&LOCK.0.to_string()) && IS_LOCKED.contains(&LOCK.1.to_string()));
    }

    #[test]
    fn since_when_a_slot_is_there_goes_with_its_mark() {
        let comment = marked(Some("events"), "orders", "781");
        let comment = marked(Some(&comment), "orders_2", "4294967300");
        assert!(is_set(Some(&comment), "orders"));
        assert_eq!(
            [since(Some(&comment), "orders"), since(Some(&comment), "orders_2"), since(Some(&comment), "order")],
            [Some(781), Some(4_294_967_300), None]
        );
        let left = removed(removed(Some(&comment), "orders").as_deref(), "orders_2");
        assert_eq!(left.as_deref(), Some("events"));
    }

    #[test]
    fn where_the_cluster_was_is_read_back_and_goes_with_the_mark() {
        let comment = marked(None, "orders", "781");
        let at = Anchor {
            system_identifier: "77".to_owned(),
            timeline: 2,
            written: crate::lsn::Lsn::new(1000),
            seconds: 1_700_000_000,
        };
        assert_eq!((anchor(Some(&comment), "orders"), anchor(Some(&comment), "order")), (Some(at), None));
        assert_eq!(anchor(Some("walrelay slot at: orders 77 2 0/3E8"), "orders"), None, "cut off");
        let again = marked(removed(Some(&comment), "orders").as_deref(), "orders", "900");
        assert_eq!(again.matches("walrelay slot at").count(), 1);
    }

    #[test]
    fn what_was_empty_is_read_back_with_the_token_and_goes_with_the_mark() {
        let comment = marked(Some("events"), "orders", "781");
        assert_eq!((token(Some(&comment), "orders"), token(Some(&comment), "order")), (Some("a1b2.77.5"), None));
        let empty =
            TableStatement { at: Lsn::new(1000), known: [(16385, "c3d4".to_owned())].into(), others: [16390].into() };
        assert_eq!(statements(Some(&comment), "orders"), std::slice::from_ref(&empty));
        assert!(empty.has(16385) && empty.has(16390) && !empty.has(16400));
        assert_eq!(statements(Some("walrelay empty: orders a1b2.77.5 0/3E8"), "orders"), [], "cut off");
        assert_eq!(statements(Some("walrelay empty: orders a1b2.77.5 0/3E8 -"), "orders").len(), 1);
        assert_eq!(removed(Some(&comment), "orders").as_deref(), Some("events"));
    }

    #[test]
    fn what_a_person_states_is_added_once_for_each_table_and_counts_with_its_token_alone() {
        let comment = marked(None, "orders", "781");
        let stated = |at, oids: &[u32]| TableStatement {
            at: Lsn::new(at),
            known: oids.iter().map(|oid| (*oid, "e5".to_owned())).collect(),
            others: BTreeSet::new(),
        };
        let comment = with_published(Some(&comment), "orders", &stated(2000, &[16390])).unwrap();
        let comment = with_published(Some(&comment), "orders", &stated(3000, &[16395])).unwrap();
        let comment = with_published(Some(&comment), "orders", &stated(4000, &[16390, 16391])).unwrap();
        let found = statements(Some(&comment), "orders");
        assert_eq!(found.get(1..), Some(&[stated(3000, &[16395]), stated(4000, &[16390, 16391])][..]));
        let other = comment.replace("walrelay empty: orders a1b2", "walrelay empty: orders ffff");
        assert_eq!(statements(Some(&other), "orders").len(), 1, "the statements were for another marker");
        assert_eq!(removed(Some(&comment), "orders"), None);
        assert_eq!(with_published(Some("walrelay slot: orders"), "orders", &stated(5, &[7])), None);
    }

    #[test]
    fn lines_of_earlier_versions_go_with_the_mark() {
        let old = "walrelay whole since: orders 5 6 a1b2\nwalrelay snapshot: orders 5 10:20:10,14";
        let comment = format!("{}\n{old}", marked(Some("events"), "orders", "781"));
        assert_eq!(removed(Some(&comment), "orders").as_deref(), Some("events"));
    }

    #[test]
    fn a_shard_is_read_back_and_its_progress_is_written_once() {
        let third = Shard::new(2, 3).unwrap();
        let comment = new_shard(third, "orders_2_of_3");
        assert_eq!(shard(Some(&comment)), Some((third, "orders_2_of_3")));
        let of = |name, whole| shard_of(Some(&comment), name, whole);
        assert_eq!(of("pub_2_of_3", ("pub", "orders")), Some(third));
        assert_eq!((of("pub", ("pub", "orders")), of("pub_2_of_3", ("pub", "other"))), (None, None));
        assert_eq!(
            (moving(Some(&comment)), moving(Some("events")), moving(None)),
            (Some(MoveState::Waits), None, None)
        );
        let comment = moving_to(Some(&comment), Some(MoveState::Drains)).unwrap();
        assert_eq!(moving(Some(&comment)), Some(MoveState::Drains));
        let comment = moving_to(Some(&comment), Some(MoveState::Drained)).unwrap();
        assert_eq!((moving(Some(&comment)), comment.matches("walrelay move").count()), (Some(MoveState::Drained), 1));
        let marked = set(moving_to(Some(&comment), None).as_deref(), "orders_2_of_3");
        assert_eq!((moving(Some(&marked)), shard(Some(&marked)).is_some()), (None, true));
        assert_eq!(moving_to(Some("walrelay move: drains"), None), None);
        assert_eq!(moving(Some("walrelay move: unknown")), Some(MoveState::Unknown), "no version has written it");
        assert_eq!(shard(Some("walrelay shard: 3/3 orders")), None, "there is no such shard");
    }

    #[test]
    fn nothing_is_left_of_a_comment_that_was_only_the_mark() {
        assert_eq!(removed(Some("walrelay slot: s"), "s"), None);
        assert_eq!(removed(None, "s"), None);
    }

    #[test]
    fn marking_twice_changes_nothing() {
        assert_eq!(set(Some("walrelay slot: s"), "s"), "walrelay slot: s");
        assert_eq!(set(Some(""), "s"), "walrelay slot: s");
    }
}
