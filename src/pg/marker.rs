//! The mark that a slot was made: a line in the comment on its publication.
//!
//! In and out: the comment's text. Other lines, a user's own or other slots' marks, are kept. The comment lives in the
//! database, so it is in a dump while the slot is not: a mark without its slot says that a slot was lost. A second line says which
//! transaction was the next one then: what it and later ones leave is in the slot, and of what earlier ones left, little or nothing is.

/// What a mark's line begins with.
const PREFIX: &str = "walrelay slot: ";

/// What a line begins with that says since when a slot is there.
const SINCE: &str = "walrelay since: ";

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

/// The comment with `slot` marked as made when `xid` (64 bits: with its epoch) was the next transaction.
pub(crate) fn set_since(comment: Option<&str>, slot: &str, xid: u64) -> String {
    let text = removed(comment, slot);
    format!("{}\n{SINCE}{slot} {xid}", set(text.as_deref(), slot))
}

/// The first transaction (64 bits: with its epoch) that began after `slot` was made, so that the slot carries its rows; `None`: that was
/// not written down.
pub(crate) fn since(comment: Option<&str>, slot: &str) -> Option<u64> {
    let mut lines = comment.unwrap_or_default().lines();
    lines.find_map(|line| line.strip_prefix(SINCE)?.strip_prefix(slot)?.strip_prefix(' ')?.parse().ok())
}

/// The comment without the mark of `slot`; `None` when nothing is left of it.
pub(crate) fn removed(comment: Option<&str>, slot: &str) -> Option<String> {
    let mark = format!("{PREFIX}{slot}");
    let of_slot = |line: &str| line == mark || since(Some(line), slot).is_some();
    let kept: Vec<&str> = comment.unwrap_or_default().lines().filter(|line| !of_slot(line)).collect();
    (!kept.is_empty()).then(|| kept.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let comment = set_since(Some("events"), "orders", 781);
        let comment = set_since(Some(&comment), "orders_2", 4_294_967_300);
        assert!(is_set(Some(&comment), "orders"));
        assert_eq!(
            [since(Some(&comment), "orders"), since(Some(&comment), "orders_2"), since(Some(&comment), "order")],
            [Some(781), Some(4_294_967_300), None]
        );
        assert_eq!(set_since(Some(&comment), "orders", 900).matches("orders ").count(), 1);
        let left = removed(removed(Some(&comment), "orders").as_deref(), "orders_2");
        assert_eq!(left.as_deref(), Some("events"));
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
