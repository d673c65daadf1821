//! What the documents say of the code and of each other is still so.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "blocks/mod.rs"]
mod blocks;

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
    assert_eq!(rows.iter().map(|(number, _)| *number).collect::<Vec<_>>(), (1..=43).collect::<Vec<_>>());
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
fn the_manual_says_that_a_record_may_be_seen_before_its_row() {
    let page = text("docs/timing.md");
    let (_, timing) = page.split_once("**A consumer may see the record before others see the row.**").unwrap();
    assert!(timing.split("\n- ").next().unwrap().contains("synchronous replication"), "{timing}");
}

/// Where the repository's own files are.
const FOLDERS: [&str; 9] = ["src/", "tests/", "dev/", "docs/", "packaging/", "docker/", "benches/", "sql/", "fuzz/"];

/// Files that a page names between backticks. One with a name in capitals stands for any.
fn named_files(page: &str) -> impl Iterator<Item = &str> {
    let pieces = page.split('`').map(|piece| piece.split("::").next().unwrap());
    pieces.filter(|piece| {
        let is_path = piece.chars().all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c));
        is_path
            && piece.contains('.')
            && !piece.contains("NAME")
            && FOLDERS.iter().any(|below| piece.starts_with(below))
    })
}

#[test]
fn each_file_that_a_page_names_is_there() {
    let (mut missing, mut found) = (Vec::new(), 0);
    for page in pages() {
        for file in named_files(&text(&page)) {
            found += 1;
            if !Path::new(env!("CARGO_MANIFEST_DIR")).join(file).exists() {
                missing.push(format!("{page}: {file}"));
            }
        }
    }
    assert!(found > 50, "pages name files: {found}");
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
fn each_fuzz_target_has_its_row() {
    let manifest = text("fuzz/Cargo.toml");
    let targets = manifest.split("[[bin]]\nname = \"").skip(1).map(|piece| piece.split('"').next().unwrap());
    let page = text("fuzz/README.md");
    let missing: Vec<_> = targets.filter(|target| !page.contains(&format!("\n| `{target}` | "))).collect();
    assert!(manifest.contains("[[bin]]") && missing.is_empty(), "{missing:?}");
}

/// A message as the manual may have it: `…` for what is filled in.
fn shown(literal: &str) -> String {
    let mut text = String::new();
    let mut depth = 0;
    for character in literal.replace("\\\"", "\"").chars() {
        match character {
            '{' => depth += 1,
            '}' => {
                depth -= 1;
                text.push('…');
            }
            other if depth == 0 => text.push(other),
            _ => {}
        }
    }
    text
}

/// The messages of an enum of errors in a file; without those that only pass another's on.
fn messages(source: &str) -> Vec<String> {
    let production = source.split("#[cfg(test)]").next().unwrap();
    let variants = production.split("#[error(").skip(1).filter(|piece| !piece.starts_with("transparent"));
    variants
        .map(|piece| {
            let (_, text) = piece.split_once('"').unwrap();
            let end = text.char_indices().find(|(at, quote)| *quote == '"' && !text[..*at].ends_with('\\')).unwrap().0;
            shown(&text[..end])
        })
        .collect()
}

/// Whether the pieces of `parts` between its `…` stand in `text`, one after the other.
fn in_order(parts: &str, text: &str) -> bool {
    let mut rest = text;
    parts.split('…').map(str::trim).filter(|part| !part.is_empty()).all(|part| match rest.split_once(part) {
        Some((_, behind)) => {
            rest = behind;
            true
        }
        None => false,
    })
}

/// Words that stand for a server's or a broker's own in `hints.txt`: the manual has none of these.
const OTHERS_WORDS: [&str; 2] = ["its words", "the destination's words"];

#[test]
fn each_message_for_an_operator_has_its_entry_in_the_manual() {
    let page = text("docs/errors.md");
    let entries: Vec<&str> = page.split('`').skip(1).step_by(2).filter(|entry| entry.len() >= 12).collect();
    let hints = text("tests/golden/hints.txt");
    let said = hints.lines().filter_map(|line| line.strip_prefix("2 "));
    let own = said.filter(|message| !OTHERS_WORDS.iter().any(|words| message.contains(words)));
    let (faults, plans) = (text("src/outbox/fault.rs"), text("src/outbox/plan/error.rs"));
    let faults = &faults[faults.find("pub enum BadReason").unwrap()..];
    let all: Vec<String> = own.map(str::to_owned).chain(messages(faults)).chain(messages(&plans)).collect();
    let has_entry = |message: &String| entries.iter().any(|entry| in_order(entry, message) || in_order(message, entry));
    let missing: Vec<_> = all.iter().filter(|message| !has_entry(message)).collect();
    assert!(
        all.len() > 90 && missing.is_empty(),
        "of {} these have no entry in docs/errors.md: {missing:#?}",
        all.len()
    );
}

/// Every page of the manual, from the top of the repository.
fn pages() -> Vec<String> {
    fn collect(folder: &Path, into: &mut Vec<String>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                collect(&path, into);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                let top = Path::new(env!("CARGO_MANIFEST_DIR"));
                into.push(path.strip_prefix(top).unwrap().display().to_string());
            }
        }
    }
    let mut all: Vec<String> = ["README.md", "CONTRIBUTING.md", "SECURITY.md"].map(str::to_owned).into();
    collect(&Path::new(env!("CARGO_MANIFEST_DIR")).join("docs"), &mut all);
    all
}

/// Text without its blocks of code.
fn prose(text: &str) -> String {
    text.split("```").step_by(2).collect()
}

/// The anchors of a page: its headings, as GitHub and mdbook name them.
fn anchors(page: &str) -> Vec<String> {
    let named = |line: &str| {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        let kept = title.chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    prose(page).lines().filter(|line| line.starts_with('#')).map(named).collect()
}

#[test]
fn each_link_between_pages_leads_somewhere() {
    let mut looked_at = 0;
    for page in pages() {
        let source = text(&page);
        let folder = Path::new(&page).parent().unwrap().to_owned();
        for link in prose(&source).split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(link, _)| link) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { page.clone() } else { folder.join(file).display().to_string() };
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(&target);
            assert!(path.exists(), "{page}: {link} leads nowhere");
            if !anchor.is_empty() && Path::new(&target).extension().is_some_and(|extension| extension == "md") {
                assert!(anchors(&text(&target)).contains(&anchor.to_owned()), "{page}: {link}: no such heading");
            }
            looked_at += 1;
        }
    }
    assert!(looked_at > 150, "{looked_at}");
}

#[test]
fn the_book_has_each_page_of_the_manual() {
    let summary = text("docs/SUMMARY.md");
    for page in pages() {
        let Some(name) = page.strip_prefix("docs/").filter(|name| *name != "SUMMARY.md") else { continue };
        assert!(summary.contains(&format!("({name})")), "{name} is not in docs/SUMMARY.md");
    }
}

#[test]
fn the_readme_is_short() {
    let lines = text("README.md").lines().count();
    assert!(lines <= 250, "{lines} lines: what is a manual's belongs into docs/");
}

/// Each block that a reader types is run by a test, or says why not.
#[test]
fn each_block_of_commands_is_run_or_says_why_not() {
    let tests = [text("tests/it/manual/mod.rs"), text("tests/it/tables.rs")].concat();
    let (mut run, mut reasons) = (0, Vec::new());
    for page in pages() {
        for block in blocks::blocks(&text(&page)) {
            let place = format!("{page}, line {}", block.line);
            if let Some(reason) = &block.not_run {
                reasons.push(format!("{place}: {reason}"));
                continue;
            }
            let is_followed = tests.contains(&format!("\"{page}\"")) || tests.contains(&format!("../{page}\""));
            assert!(is_followed, "{place}: no test follows this page; run it in tests/it/manual, or say why not");
            assert!(!block.steps().is_empty(), "{place}: nothing is typed");
            run += 1;
        }
    }
    eprintln!("{run} blocks run, {} do not:\n{}", reasons.len(), reasons.join("\n"));
    assert!(run >= 40 && reasons.iter().all(|reason| reason.len() > 12), "{run} blocks run: {reasons:#?}");
}
