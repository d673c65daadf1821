//! The order of the rooms: what each part of the library may know of the others.
//!
//! In: the sources, without comments and without tests. Out: nothing, or every line that names what stands to its right. A new
//! line of code belongs as far to the left as it can go; [`ROOMS`] is the order, without exception.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that cannot go on fails")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use walrelay::sink::labels::LABELS;

/// Each imports only from its left.
const ROOMS: [&str; 20] = [
    "lsn",
    "wire",
    "stderr",
    "given",
    "remedy",
    "check_finding",
    "secret",
    "pgoutput",
    "pg",
    "route",
    "sink",
    "outbox",
    "positions",
    "metrics",
    "relay",
    "supervise",
    "http",
    "commands",
    "debezium",
    "settings",
];

/// Where destinations are named by their modules, beside their own folders.
const NAME_KINDS: &str = "sink/kinds.rs";

/// Who may look at a clock or wait, up to the relay and those to its left: tests move their own time there.
const READ_A_CLOCK: &[&str] = &["metrics/samples.rs", "relay/clock.rs", "secret.rs", "stderr.rs"];

/// Where an answer is distinguished by its words, because its sender has no code for it.
const JUDGE_WORDS: &[&str] = &["pg/pooler.rs", "sink/kafka/check/probe.rs", "sink/sqs/errors.rs"];

struct Source {
    /// Below `src/`.
    path: String,
    /// Without comments and tests.
    code: String,
}

impl Source {
    /// The module right below the crate that it belongs to.
    fn module(&self) -> &str {
        self.path.split('/').next().unwrap().trim_end_matches(".rs")
    }
}

fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut folders = vec![root.clone()];
    let mut sources = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path: PathBuf = entry.unwrap().path();
            let is_test = path.file_stem().is_some_and(|stem| stem == "tests");
            if path.is_dir() && !is_test {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") && !is_test {
                let below = path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned();
                sources.push(Source { path: below, code: code_of(&fs::read_to_string(&path).unwrap()) });
            }
        }
    }
    sources.retain(|source| !is_for_tests(&root, &source.path));
    sources.sort_by(|a, b| a.path.cmp(&b.path));
    sources
}

/// Whether the file above declares it with `#[cfg(test)]`.
fn is_for_tests(root: &Path, path: &str) -> bool {
    let module = path.trim_end_matches(".rs").trim_end_matches("/mod");
    let Some((folder, name)) = module.rsplit_once('/') else { return false };
    let declared = format!("#[cfg(test)]\nmod {name};");
    fs::read_to_string(root.join(folder).join("mod.rs")).is_ok_and(|text| text.contains(&declared))
}

/// A file without its comments, and without the test module at its end.
fn code_of(text: &str) -> String {
    let tests = text.find("\n#[cfg(test)]\nmod tests {").unwrap_or(text.len());
    text[..tests].lines().map(|line| line.split("//").next().unwrap()).collect::<Vec<_>>().join("\n")
}

/// The modules that a file names by way of the crate, also in `use crate::{a, b::c}`.
fn named(code: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (at, root) in code.match_indices("crate::") {
        let before = code[..at].chars().next_back();
        if before.is_some_and(|c| c.is_alphanumeric() || c == '_') {
            continue;
        }
        let path = &code[at + root.len()..];
        match path.strip_prefix('{') {
            Some(list) => found.extend(heads(list)),
            None => found.extend(head(path)),
        }
    }
    found
}

/// The first name of a path, if it is a module's: `pg` of `pg::source::Source`.
fn head(path: &str) -> Option<String> {
    let name: String = path.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    name.chars().next().is_some_and(char::is_lowercase).then_some(name)
}

/// The first names of what stands in braces, up to the closing one.
fn heads(list: &str) -> Vec<String> {
    let (mut depth, mut item, mut items) = (0, String::new(), Vec::new());
    for c in list.chars() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => items.push(std::mem::take(&mut item)),
            _ if depth == 0 => item.push(c),
            _ => {}
        }
    }
    items.push(item);
    items.iter().filter_map(|item| head(item.trim())).collect()
}

fn place(module: &str) -> Option<usize> {
    ROOMS.iter().position(|room| *room == module)
}

/// `file module` for each module to the right of the file's own that it names.
fn backward(sources: &[Source]) -> Vec<String> {
    let mut found = Vec::new();
    for source in sources.iter().filter(|source| !["main", "lib"].contains(&source.module())) {
        let own = place(source.module());
        for module in named(&source.code) {
            if place(&module).is_none() || own < place(&module) {
                found.push(format!("{} {module}", source.path));
            }
        }
    }
    found
}

/// Files whose code has one of `names` in it, but for those that may.
fn naming(names: &[&str], may: impl Fn(&str) -> bool) -> Vec<String> {
    let is_named = |source: &Source| names.iter().any(|name| source.code.contains(name)) && !may(&source.path);
    sources().into_iter().filter(is_named).map(|source| source.path).collect()
}

/// Destinations with a client on a thread of its own.
fn is_a_queues_client(path: &str) -> bool {
    ["sink/aws/", "sink/ordered_queue/", "sink/nats/", "sink/rabbitmq/", "sink/redis/", "sink/sqs/"]
        .iter()
        .any(|folder| path.starts_with(folder))
}

fn is_kafkas(path: &str) -> bool {
    path.starts_with("sink/kafka/")
}

#[test]
fn every_module_has_a_room() {
    for source in sources().iter().filter(|source| !["main", "lib"].contains(&source.module())) {
        assert!(place(source.module()).is_some(), "{} belongs to no room of ROOMS", source.path);
    }
}

#[test]
fn a_room_names_only_what_stands_to_its_left() {
    assert_eq!(backward(&sources()), [""; 0]);
}

#[test]
fn only_kafkas_own_folder_names_librdkafka() {
    assert_eq!(naming(&["rdkafka::"], is_kafkas), [""; 0]);
}

#[test]
fn a_destination_is_named_in_its_own_folder_and_where_kinds_are_listed() {
    let listed = |path: &str| is_kafkas(path) || path == NAME_KINDS || path == "sink/mod.rs";
    assert_eq!(naming(&["sink::kafka", "kafka::K", "mod kafka"], listed), [""; 0]);
    let listed = |path: &str| path.starts_with("sink/redis/") || path == NAME_KINDS || path == "sink/mod.rs";
    assert_eq!(naming(&["sink::redis", "redis::", "mod redis"], listed), [""; 0]);
    let listed = |path: &str| path.starts_with("sink/nats/") || path == NAME_KINDS || path == "sink/mod.rs";
    assert_eq!(naming(&["sink::nats", "nats::", "mod nats"], listed), [""; 0]);
    let listed = |path: &str| path.starts_with("sink/rabbitmq/") || path == NAME_KINDS || path == "sink/mod.rs";
    assert_eq!(naming(&["sink::rabbitmq", "rabbitmq::", "mod rabbitmq"], listed), [""; 0]);
    let listed = |path: &str| path.starts_with("sink/sqs/") || path == NAME_KINDS || path == "sink/mod.rs";
    assert_eq!(naming(&["sink::sqs", "sqs::", "mod sqs"], listed), [""; 0]);
}

#[test]
fn few_below_the_commands_look_at_a_clock() {
    let below = |path: &str| place(path.split('/').next().unwrap().trim_end_matches(".rs")) >= place("http");
    let clocks = naming(&["Instant::now", "thread::sleep"], |path| {
        let asks = path.starts_with("sink/registry/") || path == "sink/fetch.rs";
        let to_servers = path.starts_with("pg/") || is_kafkas(path) || is_a_queues_client(path) || asks;
        below(path) || to_servers || path == "main.rs"
    });
    assert_eq!(clocks, READ_A_CLOCK, "right: READ_A_CLOCK");
}

/// Lines on which a failure's words, or its label, are compared with words.
fn judging_words(code: &str) -> usize {
    let fields = ["reason", "text", "message", "error", "problem", "hint"];
    let looks = [" == \"", " != \"", ".contains(\"", ".starts_with(\"", ".ends_with(\"", ".split_once(\"", ".find(\""];
    let accessors = ["", ".to_string()", ".as_str()", "()"];
    let mut forms = Vec::new();
    for field in fields {
        for accessor in accessors {
            forms.extend(looks.map(|look| format!(".{field}{accessor}{look}")));
            // A text by itself is as a rule one that is parsed.
            if field != "text" {
                forms.extend(looks.map(|look| format!(" {field}{accessor}{look}")));
            }
        }
    }
    code.lines().filter(|line| forms.iter().any(|form| line.contains(form.as_str()))).count()
}

#[test]
fn a_module_with_others_below_it_is_the_mod_rs_of_its_folder() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let has_folder = |source: &Source| root.join(source.path.trim_end_matches(".rs")).is_dir();
    let beside: Vec<String> = sources().into_iter().filter(has_folder).map(|source| source.path).collect();
    assert_eq!(beside, [""; 0]);
}

/// What to do follows from types: words are for people, and change.
#[test]
fn no_decision_hangs_on_the_words_of_a_failure() {
    let found = sources().into_iter().filter(|source| judging_words(&source.code) > 0).map(|source| source.path);
    assert_eq!(found.collect::<Vec<_>>(), JUDGE_WORDS, "right: JUDGE_WORDS");
    for planted in [
        "if failure.reason == \"authentication\" {",
        "matches!(x, Some(f) if f.text.contains(\"too large\"))",
        "let hint = problem.split_once(\"; hint: \");",
        "} else if error.to_string().starts_with(\"SSL\") {",
    ] {
        assert_eq!(judging_words(planted), 1, "{planted}");
    }
}

/// The labels of failures that stand in code as text.
fn labels_in(code: &str) -> Vec<&str> {
    let classes = code.match_indices("class: FailureClass::");
    let reasons = classes.filter_map(|(at, _)| {
        let (class, rest) = code[at..].split_once(',')?;
        let label = rest.trim_start().strip_prefix("reason: \"")?.split('"').next();
        label.filter(|_| !class.contains('{'))
    });
    reasons.collect()
}

#[test]
fn each_label_of_a_failure_has_its_meaning_in_the_manual() {
    let known: Vec<&str> = LABELS.iter().map(|label| label.name).collect();
    let sources = sources();
    let written =
        sources.iter().flat_map(|source| labels_in(&source.code).into_iter().map(|label| (&source.path, label)));
    let written: Vec<_> = written.collect();
    assert!(written.len() > 3, "none is found: {written:?}");
    let unknown: Vec<_> = written.into_iter().filter(|(_, label)| !known.contains(label)).collect();
    assert!(unknown.is_empty(), "right: LABELS of src/sink/labels.rs: {unknown:?}");
}

#[test]
fn contributing_has_the_same_order() {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("CONTRIBUTING.md")).unwrap();
    let order = ROOMS.map(|room| format!("`{room}`")).join(" ");
    assert!(text.contains(&order), "CONTRIBUTING.md is to say: {order}");
}

#[test]
fn an_import_that_points_right_is_found_in_every_form() {
    for text in [
        "use crate::relay::Relay;",
        "use crate::{lsn::Lsn, relay::{Clock, Relay}};",
        "fn f() -> crate::relay::StreamEnd { todo() }",
        "use crate::{\n    lsn::{Lsn, self},\n    relay,\n};",
    ] {
        let source = Source { path: "pg/planted.rs".to_owned(), code: code_of(text) };
        assert_eq!(backward(&[source]), ["pg/planted.rs relay"], "{text}");
    }
    for text in [
        "// use crate::relay::Relay;",
        "/// See [`Relay`](crate::relay::Relay).\nuse crate::lsn::Lsn;",
        "use crate::pg::Row;\n#[cfg(test)]\nmod tests {\n    use crate::relay::Relay;\n}",
        "use other_crate::relay::Relay;",
    ] {
        let source = Source { path: "pg/planted.rs".to_owned(), code: code_of(text) };
        assert_eq!(backward(&[source]), [""; 0], "{text}");
    }
}
