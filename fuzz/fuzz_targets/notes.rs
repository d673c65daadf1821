//! What may stand in the database: the comment on a publication, and the notes of a slot. Anybody may have written them, also a newer version.
//!
//! The input's first text says what the other is. `marker`: a slot's name, a comment. What is written into the comment is read back from it,
//! and lines that do not have the slot's name stay. `tables`, `relay`, `rows`, `backfill`: the text of such a note. What is read and written
//! again is the same, and nothing of the text is lost by that. A text or a line of a form that is not known is refused: with one more word, one
//! more member, or one more element.

#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::{Value, json};
use walrelay::lsn::Lsn;
use walrelay::pg::marker::{self, MoveState};
use walrelay::pg::{backfill_progress, leaf_notes, relay_note, skipped_rows};
use walrelay_fuzz::BETWEEN;

fuzz_target!(|input: &str| {
    let mut texts = input.split(BETWEEN);
    let (kind, mut next) = (texts.next().unwrap_or_default(), || texts.next().unwrap_or_default());
    match kind {
        "marker" => comment(next(), next()),
        "tables" => note(leaf_notes::rewritten, next()),
        "relay" => note(relay_note::rewritten, next()),
        "rows" => note(skipped_rows::rewritten, next()),
        "backfill" => note(backfill_progress::rewritten, next()),
        _ => {}
    }
});

fn note(rewritten: fn(&str) -> Option<String>, text: &str) {
    let Some(written) = rewritten(text) else { return };
    assert_eq!(rewritten(&written).as_deref(), Some(written.as_str()), "{text}");
    let parsed = |text: &str| serde_json::from_str::<Value>(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    let (said, written) = (parsed(text), parsed(&written));
    assert!(covers(&written, &said), "{said} was read as {written}");
    let mut newer = said;
    match &mut newer {
        Value::Object(members) => drop(members.insert("form".to_owned(), json!(2))),
        Value::Array(elements) => elements.push(json!(2)),
        _ => panic!("{newer} is no note"),
    }
    assert_eq!(rewritten(&newer.to_string()), None, "{newer}");
}

/// Whether all that is said was written. What is written may have members for what was not said, and a position another notation.
fn covers(written: &Value, said: &Value) -> bool {
    match (written, said) {
        (Value::Object(written), Value::Object(said)) => {
            said.iter().all(|(name, said)| written.get(name).is_some_and(|written| covers(written, said)))
        }
        // The members of a struct in their order, which serde takes as well.
        (Value::Object(written), Value::Array(said)) => {
            said.len() <= written.len() && written.values().zip(said).all(|(written, said)| covers(written, said))
        }
        (Value::Array(written), Value::Array(said)) => {
            written.len() == said.len() && written.iter().zip(said).all(|(written, said)| covers(written, said))
        }
        (Value::String(written), Value::String(said)) => {
            let lsn = |text: &str| text.parse::<Lsn>().ok();
            written == said || lsn(said).is_some_and(|said| lsn(written) == Some(said))
        }
        (written, said) => written == said,
    }
}

fn comment(slot: &str, comment: &str) {
    // Names of slots have no other characters, and a line ends without one.
    if slot.is_empty() || slot.contains(|c: char| !c.is_ascii_lowercase() && !c.is_ascii_digit() && c != '_') {
        return;
    }
    let comment = &comment.replace('\r', "");
    let of = Some(comment.as_str());
    let marked = marker::set(of, slot);
    assert!(marker::is_set(Some(&marked), slot) && marker::set(Some(&marked), slot) == marked, "{marked:?}");
    let begun = marker::creating(of, slot);
    assert!(marker::is_creating(Some(&begun), slot) && !marker::is_set(Some(&begun), slot), "{begun:?}");
    assert_silent(&begun, slot);
    let left = marker::removed(of, slot).unwrap_or_default();
    assert!(!marker::is_creating(Some(&left), slot) && !marker::is_set(Some(&left), slot), "{left:?}");
    assert_silent(&left, slot);
    // But for empty lines at the end.
    assert_eq!(marker::removed(Some(&left), slot).unwrap_or_default().trim_end(), left.trim_end());
    for after in [&marked, &begun, &left] {
        assert_eq!(others(after, slot), others(comment, slot), "{after:?}");
    }
    for stated in marker::statements(of, slot).iter().filter(|_| marker::unknown_line(of, slot).is_none()) {
        let with = marker::with_published(of, slot, stated).expect("a statement has the marker's token");
        assert_eq!(
            (marker::statements(Some(&with), slot).last(), others(&with, slot)),
            (Some(stated), others(comment, slot))
        );
    }
    for state in [MoveState::Waits, MoveState::Drains, MoveState::Drained] {
        let with = marker::moving_to(of, Some(state));
        assert_eq!(marker::moving(with.as_deref()), Some(state), "{with:?}");
        assert_eq!(marker::moving(marker::moving_to(with.as_deref(), None).as_deref()), None, "{with:?}");
    }
    if let Some((shard, slot)) = marker::shard(of) {
        let new = marker::new_shard(shard, slot);
        assert_eq!(
            (marker::shard(Some(&new)), marker::moving(Some(&new))),
            (Some((shard, slot)), Some(MoveState::Waits))
        );
    }
    comment.lines().for_each(|line| newer_line(line, slot));
}

/// Nothing is said about the slot.
fn assert_silent(comment: &str, slot: &str) {
    let comment = Some(comment);
    let said = (marker::since(comment, slot), marker::token(comment, slot), marker::anchor(comment, slot));
    assert!(said == (None, None, None) && marker::statements(comment, slot).is_empty(), "{comment:?}");
}

/// The lines that do not have the slot's name.
fn others<'c>(comment: &'c str, slot: &str) -> Vec<&'c str> {
    comment.lines().filter(|line| !has_word(line, slot)).filter(|line| !line.is_empty()).collect()
}

fn has_word(line: &str, slot: &str) -> bool {
    line.split(' ').any(|word| word == slot)
}

/// A line in which all is known about the slot, but not with one more word.
fn newer_line(line: &str, slot: &str) {
    let is_old = ["walrelay whole since: ", "walrelay snapshot: "].iter().any(|kind| line.starts_with(kind));
    let said = line.strip_prefix("walrelay ").and_then(|line| line.split_once(": "));
    if is_old || said.is_none_or(|(_, words)| !has_word(words, slot)) {
        return;
    }
    let newer = format!("{line} more");
    let newer = Some(newer.as_str());
    assert_eq!(marker::unknown_line(newer, slot), newer);
    let said = (marker::since(newer, slot), marker::anchor(newer, slot), marker::statements(newer, slot));
    assert!(said == (None, None, Vec::new()) && !marker::is_set(newer, slot), "{newer:?}");
}
