//! What the documents say of the code and of each other is still so.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs;
use std::path::Path;

fn text(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The number of a row of the table, and what stands in backticks with a test's name.
fn row(line: &str) -> Option<(u32, Vec<(&str, &str)>)> {
    let number = line.strip_prefix("| ")?.split(' ').next()?.parse().ok()?;
    let tests = line.split('`').filter_map(|piece| piece.split_once(".rs::"));
    Some((number, tests.collect()))
}

#[test]
fn each_pitfall_has_tests_and_each_test_that_is_named_exists() {
    let table = text("docs/pitfalls.md");
    let rows: Vec<_> = table.lines().filter_map(row).collect();
    assert_eq!(rows.iter().map(|(number, _)| *number).collect::<Vec<_>>(), (1..=42).collect::<Vec<_>>());
    for (number, tests) in rows {
        assert!(!tests.is_empty(), "pitfall {number} names no test");
        for (file, name) in tests {
            let source = text(&format!("{file}.rs"));
            let found = source.split("#[test]").skip(1).any(|behind| {
                behind
                    .lines()
                    .find(|line| line.contains("fn "))
                    .is_some_and(|line| line.contains(&format!("fn {name}(")))
            });
            assert!(found, "pitfall {number}: there is no test {name} in {file}.rs");
        }
    }
}

#[test]
fn the_readme_says_that_a_record_may_be_seen_before_its_row() {
    let readme = text("README.md");
    let (_, timing) = readme.split_once("**A consumer may see the record before others see the row.**").unwrap();
    assert!(timing.split("\n- ").next().unwrap().contains("synchronous replication"), "{timing}");
}
