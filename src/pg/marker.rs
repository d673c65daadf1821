//! The setup marker: lines in the comment on a publication that say for which slot the publication was set up.
//!
//! In and out: the comment's text. Other lines stay: those of a user, and those of other slots. The comment is in the database, and so
//! in a dump, but the slot is not. So a marker without its slot means that the slot was lost.
//!
//! | line | content |
//! |---|---|
//! | `PREFIX` | the slot was created |
//! | `SINCE` | the next transaction at that time. The slot has the rows of this and later transactions, and few or none of earlier ones |
//! | `WHOLE` | since when the slot has had every row of every table that the publication has now. That is later than the line before if tables were added, or if the slot was older than its marker |
//! | `AT` | the cluster's identity and position when the slot was marked, so that a later slot of the same name is detected ([`Anchor`]) |
//! | `SNAPSHOT` | the snapshot that the slot begins at ([`SlotSnapshot`]): rows that it sees are in no slot, and rows that it does not see are in this one. Only `setup --apply` can write it, since the server returns it only when it creates the slot |
//! | `SHARD` | which shard the publication is |
//! | `MOVE` | the shard's progress while rows move between sets of shards ([`MoveState`]) |

use super::shard::Shard;
use super::slot_sighting::Anchor;

/// The prefix of the line that marks a slot.
const PREFIX: &str = "walrelay slot: ";

/// The prefix of the line with the first transaction that a slot has.
const SINCE: &str = "walrelay since: ";

/// The prefix of the line that says since when a slot has had all tables of its publication.
const WHOLE: &str = "walrelay whole since: ";

/// The prefix of the line with the cluster's identity and position when a slot was marked.
const AT: &str = "walrelay slot at: ";

/// The prefix of the line with the snapshot that a slot begins at.
const SNAPSHOT: &str = "walrelay snapshot: ";

/// The prefix of the line with a publication's shard and its slot.
const SHARD: &str = "walrelay shard: ";

/// The prefix of the line with a shard's progress in a move.
const MOVE: &str = "walrelay move: ";

/// A publication's progress in a move of rows from one set of shards to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MoveState {
    /// Its relay must not read yet, since rows from before the cut may be in flight elsewhere.
    Waits,
    /// It has no rows from after the cut. The rows from before are being published.
    Drains,
    /// All of its rows are acknowledged.
    Drained,
}

impl MoveState {
    const ALL: [Self; 3] = [Self::Waits, Self::Drains, Self::Drained];

    /// The word for it in the comment.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Waits => "waits",
            Self::Drains => "drains",
            Self::Drained => "drained",
        }
    }
}

/// The shard that a publication is, and its slot. `None`: it is no shard.
pub(crate) fn shard(comment: Option<&str>) -> Option<(Shard, &str)> {
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
pub(crate) fn new_shard(shard: Shard, slot: &str) -> String {
    moving_to(Some(&format!("{SHARD}{shard} {slot}")), Some(MoveState::Waits)).unwrap_or_default()
}

/// A publication's progress in a move. `None`: there is no move.
pub(crate) fn moving(comment: Option<&str>) -> Option<MoveState> {
    let mut lines = comment.unwrap_or_default().lines();
    let word = lines.find_map(|line| line.strip_prefix(MOVE))?;
    MoveState::ALL.into_iter().find(|moving| moving.word() == word)
}

/// The comment with this progress in the place of the old one. `None`: the comment is empty then.
pub(crate) fn moving_to(comment: Option<&str>, moving: Option<MoveState>) -> Option<String> {
    let kept = without(comment, |line| line.starts_with(MOVE));
    let line = moving.map(|moving| format!("{MOVE}{}", moving.word()));
    let lines: Vec<String> = kept.into_iter().chain(line).collect();
    (!lines.is_empty()).then(|| lines.join("\n"))
}

/// The snapshot that a slot begins at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SlotSnapshot {
    /// The server's count of updated rows in the publication's tables at that time.
    pub(crate) updates: u64,
    /// The text of `pg_current_snapshot()`, which has no blanks.
    pub(crate) snapshot: String,
}

/// Since when a slot has had all tables that the publication has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CompleteSince {
    /// The next transaction at that time. It has 64 bits, with its epoch.
    pub(crate) xid: u64,
    /// That time, in seconds since 1970.
    pub(crate) seconds: u64,
    /// The publication's definition at that time, from [`super::catalog::membership`]. It has no blanks.
    pub(crate) members: String,
}

/// Whether `slot` is marked.
pub(crate) fn is_set(comment: Option<&str>, slot: &str) -> bool {
    slots(comment).any(|marked| marked == slot)
}

/// The slots that are marked.
pub(crate) fn slots(comment: Option<&str>) -> impl Iterator<Item = &str> {
    comment.unwrap_or_default().lines().filter_map(|line| line.strip_prefix(PREFIX))
}

/// The comment with `slot` marked.
pub(crate) fn set(comment: Option<&str>, slot: &str) -> String {
    let mark = format!("{PREFIX}{slot}");
    match comment {
        Some(text) if is_set(comment, slot) => text.to_owned(),
        Some(text) if !text.is_empty() => format!("{text}\n{mark}"),
        Some(_) | None => mark,
    }
}

/// The first transaction that `slot` has, with 64 bits and its epoch. `None`: the comment does not have it.
pub(crate) fn since(comment: Option<&str>, slot: &str) -> Option<u64> {
    lines_of(comment, SINCE, slot).find_map(|words| words.parse().ok())
}

/// Since when `slot` has had all tables of the publication. `None`: the comment does not have it.
pub(crate) fn complete_since(comment: Option<&str>, slot: &str) -> Option<CompleteSince> {
    lines_of(comment, WHOLE, slot).find_map(|words| {
        let mut words = words.split(' ');
        let (xid, seconds, members) =
            (words.next()?.parse().ok()?, words.next()?.parse().ok()?, words.next()?.to_owned());
        words.next().is_none().then_some(CompleteSince { xid, seconds, members })
    })
}

/// The position of the cluster when `slot` was marked. `None`: the comment does not have it.
pub(crate) fn anchor(comment: Option<&str>, slot: &str) -> Option<Anchor> {
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

/// The snapshot that `slot` begins at. `None`: the comment does not have it.
pub(crate) fn snapshot(comment: Option<&str>, slot: &str) -> Option<SlotSnapshot> {
    lines_of(comment, SNAPSHOT, slot).find_map(|words| {
        let (updates, snapshot) = words.split_once(' ')?;
        Some(SlotSnapshot { updates: updates.parse().ok()?, snapshot: snapshot.to_owned() })
    })
}

/// The line with the snapshot, to be added to a comment.
pub(crate) fn snapshot_line(slot: &str, taken: &SlotSnapshot) -> String {
    format!("\n{SNAPSHOT}{slot} {} {}", taken.updates, taken.snapshot)
}

/// The lines `SINCE`, `WHOLE` and `AT`, as a format for SQL's `format`. Its arguments are the next transaction, the time, the
/// publication's definition, the system identifier, the timeline and the position in the WAL. `made`: the slot is new, or the marker is
/// that of another slot.
pub(crate) fn since_format(slot: &str, made: bool) -> String {
    let since = if made { format!("\n{SINCE}{slot} %1$s\n{AT}{slot} %4$s %5$s %6$s %2$s") } else { String::new() };
    format!("{since}\n{WHOLE}{slot} %1$s %2$s %3$s")
}

/// The comment without the line [`WHOLE`] of `slot`. `None`: the comment is empty then.
pub(crate) fn without_complete_since(comment: Option<&str>, slot: &str) -> Option<String> {
    without(comment, |line| complete_since(Some(line), slot).is_some())
}

/// The comment without the lines of `slot`. `None`: the comment is empty then.
pub(crate) fn removed(comment: Option<&str>, slot: &str) -> Option<String> {
    let mark = format!("{PREFIX}{slot}");
    without(comment, |line| {
        let is_of_slot = |prefix| lines_of(Some(line), prefix, slot).next().is_some();
        line == mark || [SINCE, WHOLE, AT, SNAPSHOT].into_iter().any(is_of_slot)
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

    /// The comment with the values that the server would fill in.
    fn marked(comment: Option<&str>, slot: &str, made: bool, xid: &str) -> String {
        let values = [xid, "1700000000", "a1b2", "77", "2", "0/3E8"];
        let filled = values
            .iter()
            .enumerate()
            .fold(since_format(slot, made), |text, (at, value)| text.replace(&format!("%{}$s", at + 1), value));
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
    fn since_when_a_slot_is_there_goes_with_its_mark() {
        let comment = marked(Some("events"), "orders", true, "781");
        let comment = marked(Some(&comment), "orders_2", true, "4294967300");
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
        let comment = marked(None, "orders", true, "781");
        let at = Anchor {
            system_identifier: "77".to_owned(),
            timeline: 2,
            written: crate::lsn::Lsn::new(1000),
            seconds: 1_700_000_000,
        };
        assert_eq!((anchor(Some(&comment), "orders"), anchor(Some(&comment), "order")), (Some(at), None));
        assert_eq!(anchor(Some("walrelay slot at: orders 77 2 0/3E8"), "orders"), None, "cut off");
        let again = marked(removed(Some(&comment), "orders").as_deref(), "orders", true, "900");
        assert_eq!(again.matches("walrelay slot at").count(), 1);
    }

    #[test]
    fn since_when_all_is_carried_is_written_once_and_goes_with_the_mark() {
        let at = |xid| CompleteSince { xid, seconds: 1_700_000_000, members: "a1b2".to_owned() };
        let comment = marked(Some("events"), "orders", true, "781");
        let comment = marked(Some(&comment), "orders_2", false, "800");
        let comment = marked(without_complete_since(Some(&comment), "orders").as_deref(), "orders", false, "900");
        assert_eq!(complete_since(Some(&comment), "orders"), Some(at(900)));
        assert_eq!(
            (complete_since(Some(&comment), "orders_2"), complete_since(Some(&comment), "order")),
            (Some(at(800)), None)
        );
        assert_eq!(since(Some(&comment), "orders"), Some(781));
        assert_eq!(complete_since(Some("walrelay whole since: orders 5 6"), "orders"), None, "cut off");
        let left = removed(removed(Some(&comment), "orders").as_deref(), "orders_2");
        assert_eq!(left.as_deref(), Some("events"));
    }

    #[test]
    fn the_snapshot_is_read_back_and_goes_with_the_mark() {
        let taken = SlotSnapshot { updates: 5, snapshot: "10:20:10,14".to_owned() };
        let comment = marked(Some("events"), "orders", true, "781") + &snapshot_line("orders", &taken);
        assert_eq!(super::snapshot(Some(&comment), "orders"), Some(taken));
        assert_eq!(super::snapshot(Some(&comment), "order"), None);
        assert!(super::snapshot(without_complete_since(Some(&comment), "orders").as_deref(), "orders").is_some());
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
