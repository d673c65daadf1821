//! The mark that a slot was made: a line in the comment on its publication.
//!
//! In and out: the comment's text. Other lines, a user's own or other slots' marks, are kept. The comment lives in the
//! database, so it is in a dump while the slot is not: a mark without its slot says that a slot was lost. A second line says which
//! transaction was the next one then: what it and later ones leave is in the slot, and of what earlier ones left, little or nothing is.
//! A third says since when the slot has carried every row of every table that the publication has now: later than the second where tables
//! were added, or where the slot was there before anybody marked it. A fourth says where the cluster was when the slot was marked, so that
//! a later slot of the same name does not pass for it ([`Anchor`]). A fifth has the snapshot that meets the slot exactly: what it sees is in no
//! slot, what it does not see is in this one ([`SlotSnapshot`]). `setup --apply` alone can write that, since the server gives it only once.
//! A shard's publication has a line that says which one it is, and while rows move between sets of shards one more ([`Moving`]).

use super::instance::Anchor;
use super::shard::Shard;

/// The prefix of a mark's line.
const PREFIX: &str = "walrelay slot: ";

/// The prefix of the line with the time of a slot's creation.
const SINCE: &str = "walrelay since: ";

/// The prefix of the line that says since when a slot has carried all of its publication.
const WHOLE: &str = "walrelay whole since: ";

/// The prefix of the line with the cluster's identity and position when a slot was marked.
const AT: &str = "walrelay slot at: ";

/// The prefix of the line with the snapshot that meets a slot.
const SNAPSHOT: &str = "walrelay snapshot: ";

/// The prefix of the line with a publication's shard and its slot.
const SHARD: &str = "walrelay shard: ";

/// The prefix of the line with a shard's progress in a move.
const MOVE: &str = "walrelay move: ";

/// A publication's progress in a move of rows from one set of shards to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moving {
    /// Its relay must not read yet: rows from before the cut may be under way elsewhere.
    Waits,
    /// It has no rows behind the cut; those from before are being published.
    Drains,
    /// All of its rows are acknowledged.
    Drained,
}

impl Moving {
    const WORDS: [(Self, &'static str); 3] =
        [(Self::Waits, "waits"), (Self::Drains, "drains"), (Self::Drained, "drained")];

    /// As the comment has it.
    pub(crate) const fn word(self) -> &'static str {
        let [waits, drains, drained] = Self::WORDS;
        match self {
            Self::Waits => waits.1,
            Self::Drains => drains.1,
            Self::Drained => drained.1,
        }
    }
}

/// Which shard a publication is, and its slot; `None`: it is none.
pub(crate) fn shard(comment: Option<&str>) -> Option<(Shard, &str)> {
    let mut lines = comment.unwrap_or_default().lines();
    lines.find_map(|line| {
        let (shard, slot) = line.strip_prefix(SHARD)?.split_once(' ')?;
        Some((shard.parse().ok()?, slot))
    })
}

/// Which shard of a publication and slot, by the names of the whole, a publication is by its own name and comment; `None`: it is none.
pub(crate) fn shard_of(comment: Option<&str>, name: &str, (publication, slot): (&str, &str)) -> Option<Shard> {
    let (shard, found) = shard(comment)?;
    (name == shard.name(publication) && found == shard.name(slot)).then_some(shard)
}

/// The comment of a new shard's publication.
pub(crate) fn new_shard(shard: Shard, slot: &str) -> String {
    moving_to(Some(&format!("{SHARD}{shard} {slot}")), Some(Moving::Waits)).unwrap_or_default()
}

/// Reads a publication's progress in a move; `None` if there is no move.
pub(crate) fn moving(comment: Option<&str>) -> Option<Moving> {
    let mut lines = comment.unwrap_or_default().lines();
    let word = lines.find_map(|line| line.strip_prefix(MOVE))?;
    Moving::WORDS.iter().find(|(_, known)| *known == word).map(|(moving, _)| *moving)
}

/// The comment with how far the publication is, in the place of what it says of that; `None` when nothing is left of it.
pub(crate) fn moving_to(comment: Option<&str>, moving: Option<Moving>) -> Option<String> {
    let kept = without(comment, |line| line.starts_with(MOVE));
    let line = moving.map(|moving| format!("{MOVE}{}", moving.word()));
    let lines: Vec<String> = kept.into_iter().chain(line).collect();
    (!lines.is_empty()).then(|| lines.join("\n"))
}

/// The snapshot that meets a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SlotSnapshot {
    /// How many rows of the publication's tables had been updated by then, as the server counts them.
    pub(crate) updates: u64,
    /// As `pg_current_snapshot()` writes it: no blank is in it.
    pub(crate) snapshot: String,
}

/// Since when a slot has carried all that the publication has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Whole {
    /// The first transaction (64 bits: with its epoch) that had not begun.
    pub(crate) xid: u64,
    /// When that was, in seconds since 1970.
    pub(crate) seconds: u64,
    /// The publication's definition then, in the words of [`super::catalog::membership`]. It contains no blank.
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

/// The first transaction (64 bits: with its epoch) that began after `slot` was made, so that the slot carries its rows; `None`: that was
/// not written down.
pub(crate) fn since(comment: Option<&str>, slot: &str) -> Option<u64> {
    let mut lines = comment.unwrap_or_default().lines();
    lines.find_map(|line| line.strip_prefix(SINCE)?.strip_prefix(slot)?.strip_prefix(' ')?.parse().ok())
}

/// Since when `slot` has carried all that the publication had when that was written down; `None`: it was not.
pub(crate) fn whole(comment: Option<&str>, slot: &str) -> Option<Whole> {
    let mut lines = comment.unwrap_or_default().lines();
    lines.find_map(|line| {
        let mut words = line.strip_prefix(WHOLE)?.strip_prefix(slot)?.strip_prefix(' ')?.split(' ');
        let (xid, seconds, members) =
            (words.next()?.parse().ok()?, words.next()?.parse().ok()?, words.next()?.to_owned());
        words.next().is_none().then_some(Whole { xid, seconds, members })
    })
}

/// Where the cluster was when `slot` was marked; `None`: it was not written down.
pub(crate) fn anchor(comment: Option<&str>, slot: &str) -> Option<Anchor> {
    let mut lines = comment.unwrap_or_default().lines();
    lines.find_map(|line| {
        let mut words = line.strip_prefix(AT)?.strip_prefix(slot)?.strip_prefix(' ')?.split(' ');
        let anchor = Anchor {
            system_identifier: words.next()?.to_owned(),
            timeline: words.next()?.parse().ok()?,
            written: words.next()?.parse().ok()?,
            seconds: words.next()?.parse().ok()?,
        };
        words.next().is_none().then_some(anchor)
    })
}

/// The snapshot that meets `slot`; `None`: it was not written down.
pub(crate) fn taken(comment: Option<&str>, slot: &str) -> Option<SlotSnapshot> {
    let mut lines = comment.unwrap_or_default().lines();
    lines.find_map(|line| {
        let words = line.strip_prefix(SNAPSHOT)?.strip_prefix(slot)?.strip_prefix(' ')?;
        let (updates, snapshot) = words.split_once(' ')?;
        Some(SlotSnapshot { updates: updates.parse().ok()?, snapshot: snapshot.to_owned() })
    })
}

/// The line that has it, to be added to a comment.
pub(crate) fn taken_line(slot: &str, taken: &SlotSnapshot) -> String {
    format!("\n{SNAPSHOT}{slot} {} {}", taken.updates, taken.snapshot)
}

/// The lines that say since when, for SQL's `format`, which fills in the next transaction, the time, what the publication has, the system
/// identifier, the timeline and the position in the WAL; `made`: the slot is marked for the first time, or another one was marked before.
pub(crate) fn since_format(slot: &str, made: bool) -> String {
    let since = if made { format!("\n{SINCE}{slot} %1$s\n{AT}{slot} %4$s %5$s %6$s %2$s") } else { String::new() };
    format!("{since}\n{WHOLE}{slot} %1$s %2$s %3$s")
}

/// The comment without the line that says since when `slot` has carried everything; `None` when nothing is left of it.
pub(crate) fn without_whole(comment: Option<&str>, slot: &str) -> Option<String> {
    without(comment, |line| whole(Some(line), slot).is_some())
}

/// The comment without the mark of `slot`; `None` when nothing is left of it.
pub(crate) fn removed(comment: Option<&str>, slot: &str) -> Option<String> {
    let mark = format!("{PREFIX}{slot}");
    without(comment, |line| {
        let line_of = |prefix: &str| {
            line.strip_prefix(prefix).and_then(|rest| rest.strip_prefix(slot)).is_some_and(|rest| rest.starts_with(' '))
        };
        line == mark || [SINCE, WHOLE, AT, SNAPSHOT].into_iter().any(line_of)
    })
}

/// The comment without such lines; `None` when nothing is left of it.
fn without(comment: Option<&str>, goes: impl Fn(&str) -> bool) -> Option<String> {
    let kept: Vec<&str> = comment.unwrap_or_default().lines().filter(|line| !goes(line)).collect();
    (!kept.is_empty()).then(|| kept.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the server fills it in.
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
        let at = |xid| Whole { xid, seconds: 1_700_000_000, members: "a1b2".to_owned() };
        let comment = marked(Some("events"), "orders", true, "781");
        let comment = marked(Some(&comment), "orders_2", false, "800");
        let comment = marked(without_whole(Some(&comment), "orders").as_deref(), "orders", false, "900");
        assert_eq!(whole(Some(&comment), "orders"), Some(at(900)));
        assert_eq!((whole(Some(&comment), "orders_2"), whole(Some(&comment), "order")), (Some(at(800)), None));
        assert_eq!(since(Some(&comment), "orders"), Some(781));
        assert_eq!(whole(Some("walrelay whole since: orders 5 6"), "orders"), None, "cut off");
        let left = removed(removed(Some(&comment), "orders").as_deref(), "orders_2");
        assert_eq!(left.as_deref(), Some("events"));
    }

    #[test]
    fn the_snapshot_is_read_back_and_goes_with_the_mark() {
        let taken = SlotSnapshot { updates: 5, snapshot: "10:20:10,14".to_owned() };
        let comment = marked(Some("events"), "orders", true, "781") + &taken_line("orders", &taken);
        assert_eq!(super::taken(Some(&comment), "orders"), Some(taken));
        assert_eq!(super::taken(Some(&comment), "order"), None);
        assert!(super::taken(without_whole(Some(&comment), "orders").as_deref(), "orders").is_some());
        assert_eq!(removed(Some(&comment), "orders").as_deref(), Some("events"));
    }

    #[test]
    fn a_shard_is_read_back_and_how_far_it_is_stands_there_once() {
        let third = Shard::new(2, 3).unwrap();
        let comment = new_shard(third, "orders_2_of_3");
        assert_eq!(shard(Some(&comment)), Some((third, "orders_2_of_3")));
        let of = |name, whole| shard_of(Some(&comment), name, whole);
        assert_eq!(of("pub_2_of_3", ("pub", "orders")), Some(third));
        assert_eq!((of("pub", ("pub", "orders")), of("pub_2_of_3", ("pub", "other"))), (None, None));
        assert_eq!((moving(Some(&comment)), moving(Some("events")), moving(None)), (Some(Moving::Waits), None, None));
        let comment = moving_to(Some(&comment), Some(Moving::Drains)).unwrap();
        assert_eq!(moving(Some(&comment)), Some(Moving::Drains));
        let comment = moving_to(Some(&comment), Some(Moving::Drained)).unwrap();
        assert_eq!((moving(Some(&comment)), comment.matches("walrelay move").count()), (Some(Moving::Drained), 1));
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
