//! Whether a command printed what the manual shows.
//!
//! Positions, times, ids, ports, sizes and process numbers differ from run to run: one stands for any other of its form. `…` stands for any text
//! of a line, and by itself on a line for any lines.

use regex::Regex;
use std::sync::OnceLock;

/// Forms of what differs, and what is compared in its place.
const FORMS: [(&str, &str); 9] = [
    (r"\d{4}-\d\d-\d\dT[0-9:.]+Z", "TIME"),
    (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "UUID"),
    (r"\b[0-9A-F]{1,8}/[0-9A-F]{5,8}\b", "LSN"),
    (r"(?:localhost|127\.0\.0\.1|0\.0\.0\.0|\[::\]):\d+", "ADDRESS"),
    (r"from 127\.0\.0\.1\b", "from ADDRESS"),
    (r"\bprocess \d+", "process N"),
    (r"\d+(?:\.\d+)? (?:B|KiB|MiB|GiB|kB|MB|GB)\b", "SIZE"),
    (r"\b\d+ ms\b", "N ms"),
    (r"Postgres \d+\.\d+", "Postgres VERSION"),
];

fn same_forms(line: &str) -> String {
    static READ: OnceLock<Vec<(Regex, &str)>> = OnceLock::new();
    let read = READ.get_or_init(|| FORMS.iter().map(|(form, name)| (Regex::new(form).unwrap(), *name)).collect());
    read.iter().fold(line.trim_end().to_owned(), |line, (form, name)| form.replace_all(&line, *name).into_owned())
}

/// Whether a line is one that the manual shows.
fn is_line(expected: &str, line: &str) -> bool {
    let (expected, line) = (same_forms(expected), same_forms(line));
    let pieces: Vec<&str> = expected.split('…').map(str::trim_end).collect();
    let (first, last) = (pieces[0], pieces[pieces.len() - 1]);
    if pieces.len() == 1 {
        return expected == line;
    }
    let Some(mut rest) = line.strip_prefix(first) else { return false };
    for piece in &pieces[1..pieces.len() - 1] {
        match rest.split_once(piece.trim_start()) {
            Some((_, behind)) => rest = behind,
            None => return false,
        }
    }
    rest.ends_with(last.trim_start())
}

/// Whether a command that has ended printed what is expected, and nothing else.
pub(crate) fn is_all(expected: &[String], lines: &[&str]) -> bool {
    match expected.split_first() {
        None => lines.is_empty(),
        Some((first, behind)) if first.trim() == "…" => {
            (0..=lines.len()).any(|skipped| is_all(behind, &lines[skipped..]))
        }
        Some((first, behind)) => lines.first().is_some_and(|line| is_line(first, line)) && is_all(behind, &lines[1..]),
    }
}

/// Whether what is expected is among the lines, in its order.
pub(crate) fn is_among(expected: &[String], lines: &[&str]) -> bool {
    let mut lines = lines.iter();
    expected.iter().filter(|line| line.trim() != "…").all(|expected| lines.any(|line| is_line(expected, line)))
}

#[test]
fn what_differs_from_run_to_run_is_distinguished_from_what_must_not() {
    let all = |expected: &[&str], lines: &[&str]| {
        is_all(&expected.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>(), lines)
    };
    assert!(all(&["created slot \"w\" at 0/9DFCE90: rows"], &["created slot \"w\" at 1/A0B1C2D3: rows"]));
    assert!(all(&["a", "…", "z …"], &["a", "b", "c", "z and more"]));
    assert!(all(&["kept WAL     760 B (x)"], &["kept WAL     1.5 MiB (x)"]));
    for (expected, lines) in [
        (&["run --shard 0/3"][..], &["run --shard 1/3"][..]),
        (&["a"], &["a", "b"]),
        (&["a … c"], &["a b"]),
        (&["created slot \"w\""], &["created slot \"v\""]),
        (&["a", "…", "z"], &["a", "y"]),
    ] {
        assert!(!all(expected, lines), "{expected:?} {lines:?}");
    }
}
