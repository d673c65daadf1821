//! Lists each fix that `check` can print, with its kind.
//!
//! In: the source of `check` and of the destinations' checks. Out: `tests/golden/fixes.txt`, which `WALRELAY_BLESS=1` writes, for the
//! review. A fix is made by a call that names its kind, since its type has no other constructor; the list has what that call is given.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// The kinds, as the calls name them.
const KINDS: [&str; 3] = ["safe", "bounded", "words"];

/// What makes SQL, or a command of a server's tool.
const MAKES_STATEMENTS: [&str; 7] =
    ["::sql(", "parameter(", "quantity(", "wal_limit(", "alter(", "create(", "in_publication("];

/// How statements begin.
const STATEMENTS: [&str; 11] = [
    "ALTER ",
    "BEGIN",
    "CREATE ",
    "DELETE ",
    "DROP ",
    "GRANT ",
    "REVOKE ",
    "ROLLBACK ",
    "SELECT ",
    "TRUNCATE ",
    "UPDATE ",
];

struct Fix {
    file: String,
    /// The check whose finding it fixes, as the source has it.
    check: String,
    kind: &'static str,
    /// What the call is given, on one line.
    argument: String,
}

impl Fix {
    /// Whether a statement that could be pasted is in it: one that ends with a semicolon.
    fn has_statement(&self) -> bool {
        let literals = self.argument.split('"').skip(1).step_by(2);
        let is_statement = |literal: &str| {
            STATEMENTS.iter().any(|begin| {
                literal.match_indices(begin).any(|(at, _)| {
                    let is_begin = literal[..at].chars().next_back().is_none_or(|before| !before.is_alphanumeric());
                    is_begin && literal[at..].contains(';')
                })
            })
        };
        literals.into_iter().any(is_statement) || MAKES_STATEMENTS.iter().any(|call| self.argument.contains(call))
    }
}

/// The source files of the checks.
fn files() -> Vec<PathBuf> {
    fn collect(folder: &Path, into: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                collect(&path, into);
            } else if path.extension().is_some_and(|extension| extension == "rs") && !path.ends_with("tests.rs") {
                into.push(path);
            }
        }
    }
    let mut all = Vec::new();
    collect(&top().join("src/commands/check"), &mut all);
    collect(&top().join("src/sink"), &mut all);
    all.sort();
    all
}

fn top() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn fixes() -> Vec<Fix> {
    let mut all = Vec::new();
    for path in files() {
        let source = fs::read_to_string(&path).unwrap();
        let source = source.split("#[cfg(test)]\nmod tests {").next().unwrap();
        if !source.contains("check_finding") {
            continue;
        }
        let file = path.strip_prefix(top()).unwrap().display().to_string();
        let calls = KINDS.iter().flat_map(|kind| {
            [format!(".{kind}("), format!("Fix::{kind}(")].into_iter().flat_map(|call| {
                let ends = source.match_indices(&call).map(|(at, _)| at + call.len());
                ends.map(|end| (end, *kind)).collect::<Vec<_>>()
            })
        });
        let mut calls: Vec<_> = calls.collect();
        calls.sort_unstable();
        all.extend(calls.into_iter().map(|(end, kind)| Fix {
            file: file.clone(),
            check: check_before(&source[..end]),
            kind,
            argument: argument(&source[end..]).split_whitespace().collect::<Vec<_>>().join(" "),
        }));
    }
    all
}

/// The name of the check in the last finding that the source makes.
fn check_before(source: &str) -> String {
    let begins = [".ok(", ".warn(", ".fail("].iter().filter_map(|call| Some(source.rfind(call)? + call.len()));
    let name = begins.max().map_or("", |begin| &source[begin..]);
    name.split([',', ')']).next().unwrap().trim().trim_matches('"').to_owned()
}

/// The argument of a call, up to its closing parenthesis.
fn argument(source: &str) -> &str {
    let (mut depth, mut is_quoted, mut is_escaped) = (0_u32, false, false);
    for (at, character) in source.char_indices() {
        match character {
            _ if is_escaped => is_escaped = false,
            '\\' if is_quoted => is_escaped = true,
            '"' => is_quoted = !is_quoted,
            '(' if !is_quoted => depth += 1,
            ')' if !is_quoted && depth == 0 => return &source[..at],
            ')' if !is_quoted => depth -= 1,
            _ => {}
        }
    }
    panic!("a call without an end: {source}");
}

#[test]
fn every_fix_has_a_kind_and_is_as_it_was_reviewed() {
    let mut text = String::from("# Each fix that check prints: the check, its kind, and what it is made of\n");
    let mut file = String::new();
    for fix in fixes() {
        if fix.file != file {
            file.clone_from(&fix.file);
            writeln!(text, "\n# {file}").unwrap();
        }
        writeln!(text, "{} {}: {}", fix.check, fix.kind, fix.argument).unwrap();
    }
    let golden = top().join("tests/golden/fixes.txt");
    if std::env::var_os("WALRELAY_BLESS").is_some() {
        fs::write(&golden, &text).unwrap();
    }
    let reviewed = fs::read_to_string(&golden).unwrap_or_default();
    assert!(text == reviewed, "tests/golden/fixes.txt differs: WALRELAY_BLESS=1 writes it, for the review");
}

#[test]
fn what_is_said_in_words_has_no_statement_and_what_is_safe_takes_nothing_away() {
    let all = fixes();
    assert!(KINDS.iter().all(|kind| all.iter().filter(|fix| fix.kind == *kind).count() > 15), "{}", all.len());
    for fix in all {
        let shown = format!("{}, {}: {}", fix.file, fix.check, fix.argument);
        assert!(fix.kind != "words" || !fix.has_statement(), "{shown}");
        let takes_away = ["DROP ", "DELETE ", "SET ", "ALTER COLUMN", "ROLLBACK", "TRUNCATE ", "REVOKE "];
        assert!(fix.kind != "safe" || takes_away.iter().all(|words| !fix.argument.contains(words)), "{shown}");
    }
}

#[test]
fn a_statement_is_told_from_words_that_name_it() {
    let is = |argument: &str| {
        let (file, check, argument) = (String::new(), String::new(), argument.to_owned());
        Fix { file, check, kind: "words", argument }.has_statement()
    };
    assert!(is("format!(\"or so: DROP TABLE {}; -- all\", name)") && is("Remedy::sql(text)"));
    assert!(!is("\"COMMIT PREPARED or ROLLBACK PREPARED, as you like\"") && !is("\"wait; then look\""));
}
