//! The order of the rooms: what each part of the library may know of the others.
//!
//! In: the sources, without comments and without tests. Out: nothing, or every line that names what stands to its right. A new
//! line of code belongs as far to the left as it can go; [`ROOMS`] is the order, without exception. Inside a room files have an order,
//! too: none imports, by way of others, one that imports it.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that cannot go on fails")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use walrelay::sink::labels::LABELS;

/// Each imports only from its left.
const ROOMS: [&str; 21] = [
    "lsn",
    "wire",
    "stderr",
    "setting_text",
    "remedy",
    "check_finding",
    "secret",
    "tls",
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

/// Where an answer is distinguished by its words, because its sender has no code for it. The test sees comparisons of a field. Where a function
/// takes the text, as in the destinations' `errors.rs`, a comment there says why.
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
    sources_in("src")
}

/// The sources in a folder of the repository, without its tests.
fn sources_in(folder: &str) -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
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

/// The modules right below the crate that a file names, also in `use crate::{a, b::c}`.
fn named(code: &str) -> BTreeSet<String> {
    let paths = paths_in(code).into_iter().filter(|path| path[0] == "crate");
    let modules = paths.filter_map(|path| path.get(1).cloned());
    modules.filter(|name| name.starts_with(char::is_lowercase)).collect()
}

/// The paths in a file that begin with `crate`, `super` or `self`, each as its names.
fn paths_in(code: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for root in ["crate::", "super::", "self::"] {
        for (at, _) in code.match_indices(root) {
            let before = code[..at].chars().next_back();
            if before.is_none_or(|c| !c.is_alphanumeric() && !"_:".contains(c)) {
                found.extend(paths(&code[at..]));
            }
        }
    }
    found
}

/// The paths at the beginning of a text: `a::{b, c::d}` is two.
fn paths(text: &str) -> Vec<Vec<String>> {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    let (name, behind) = text.split_at(end);
    let behind = match behind.strip_prefix("::").map(|path| (path, path.strip_prefix('{'))) {
        None => vec![Vec::new()],
        Some((path, None)) => paths(path),
        Some((_, Some(list))) => items(list).iter().flat_map(|item| paths(item.trim())).collect(),
    };
    behind.into_iter().map(|names| std::iter::once(name.to_owned()).chain(names).collect()).collect()
}

/// The items of what stands in braces, up to the closing one.
fn items(list: &str) -> Vec<String> {
    let (mut depth, mut items) = (0, vec![String::new()]);
    for c in list.chars() {
        match c {
            '}' if depth == 0 => break,
            ',' if depth == 0 => items.push(String::new()),
            _ => {
                depth += i32::from(c == '{') - i32::from(c == '}');
                items.last_mut().unwrap().push(c);
            }
        }
    }
    items
}

/// A file's module: `pg/source` for `pg/source/mod.rs`.
fn module_of(path: &str) -> &str {
    let module = path.trim_end_matches(".rs");
    module.strip_suffix("/mod").unwrap_or(module)
}

/// The modules that each module imports. A path counts for the longest part of it that is a file. A module and those above it are one
/// family: a child may name what its parent has for all children.
fn imports(sources: &[Source]) -> BTreeMap<&str, BTreeSet<&str>> {
    let modules: BTreeSet<&str> = sources.iter().map(|source| module_of(&source.path)).collect();
    let imported = |module: &str, path: &[String]| {
        let mut at: Vec<&str> = module.split('/').filter(|name| !["lib", "main"].contains(name)).collect();
        for name in path {
            match name.as_str() {
                "crate" => at.clear(),
                "super" => drop(at.pop()),
                "self" => {}
                name => at.push(name),
            }
        }
        while !at.is_empty() && !modules.contains(at.join("/").as_str()) {
            at.pop();
        }
        let target = at.join("/");
        let is_family = module == target || module.starts_with(&format!("{target}/"));
        modules.get(target.as_str()).copied().filter(|_| !is_family)
    };
    let of = |source: &Source| paths_in(&source.code);
    sources
        .iter()
        .map(|source| (module_of(&source.path), of(source)))
        .map(|(module, paths)| (module, paths.iter().filter_map(|path| imported(module, path)).collect()))
        .collect()
}

/// The circles of imports, each as its modules.
fn circles(sources: &[Source]) -> BTreeSet<Vec<String>> {
    let graph = imports(sources);
    let mut reached: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for module in graph.keys() {
        let (found, mut left) = (reached.entry(module).or_default(), vec![*module]);
        while let Some(module) = left.pop() {
            left.extend(graph[module].iter().filter(|next| found.insert(**next)));
        }
    }
    let circle = |module: &&str| -> Vec<String> {
        let both_ways = reached[module].iter().filter(|other| reached[**other].contains(module));
        both_ways.map(|other| (*other).to_owned()).collect()
    };
    graph.keys().map(circle).filter(|circle| !circle.is_empty()).collect()
}

/// The circles in a folder.
fn circles_in(folder: &str) -> BTreeSet<Vec<String>> {
    circles(&sources_in(folder))
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
fn no_file_imports_by_way_of_others_one_that_imports_it() {
    assert_eq!(circles_in("src"), BTreeSet::new());
    assert_eq!(circles_in("dev/src"), BTreeSet::new());
}

#[test]
fn a_circle_of_imports_is_found_in_every_form() {
    let planted = |files: &[(&str, &str)]| {
        let source = |(path, text): &(&str, &str)| Source { path: (*path).to_owned(), code: code_of(text) };
        circles(&files.iter().map(source).collect::<Vec<_>>())
    };
    let (one, other) = ("room/one.rs", "room/other/mod.rs");
    for back in [
        "use super::one::One;",
        "use super::{\n    one::{self, One},\n    third,\n};",
        "use crate::room::one::One;",
        "fn f(_: &crate::room::one::One) {}",
        "use super::third::Third;",
    ] {
        let files = [
            (one, "use super::other::Other;"),
            (other, back),
            ("room/third.rs", "use super::one;"),
            ("room/mod.rs", ""),
        ];
        let expected = if back.contains("hird") {
            vec!["room/one", "room/other", "room/third"]
        } else {
            vec!["room/one", "room/other"]
        };
        assert_eq!(planted(&files), BTreeSet::from([expected.into_iter().map(str::to_owned).collect()]), "{back}");
    }
    // A child knows its parent, and nobody else comes back.
    let files = [
        (one, "use super::other::Other;"),
        (other, "use super::Room;\n// use super::one::One;"),
        ("room/mod.rs", "use one::One;\nuse self::other::Other;"),
    ];
    assert_eq!(planted(&files), BTreeSet::new());
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
    let labels = code.match_indices("Failure::new(").filter_map(|(at, _)| {
        let (_class, rest) = code[at..].split_once(',')?;
        rest.trim_start().strip_prefix('"')?.split('"').next()
    });
    labels.collect()
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
