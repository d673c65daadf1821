//! Pages of the manual, and blocks of pages, that are generated: what the program says of itself. `WALRELAY_BLESS=1` writes them.
//!
//! A block stands between `<!-- generated: NAME -->` and `<!-- end -->`. What is around it is written by hand.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use prometheus_client::registry::Unit;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;
use walrelay::commands::EXIT_CODES;
use walrelay::metrics::{State, WAL_STATUSES};
use walrelay::outbox::{BadReason, Ignored};
use walrelay::route::TopicFault;
use walrelay::settings::{Takes, named, variable_of};
use walrelay::sink::destination::Kind;
use walrelay::sink::kinds::KINDS;
use walrelay::sink::labels::LABELS;
use walrelay::sink::registry;

fn help(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_walrelay")).args(arguments).env_clear().output().unwrap();
    assert!(output.status.success(), "{arguments:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n").trim_end().to_owned()
}

/// The commands, as `--help` lists them.
fn commands(overview: &str) -> Vec<String> {
    let (_, list) = overview.split_once("Commands:\n").unwrap();
    let names = list
        .lines()
        .take_while(|line| !line.is_empty())
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names = names.filter_map(|line| line.split_whitespace().next());
    names.filter(|name| *name != "help").map(str::to_owned).collect()
}

/// `docs/cli.md`.
fn command_line() -> String {
    let overview = help(&["--help"]);
    let mut page = String::from(
        "# Command line\n\nGenerated from the program: what `walrelay COMMAND --help` prints. [Configuration](configuration.md) says how flags,\n\
         variables and the file go together.\n",
    );
    write!(page, "\n```text\n{overview}\n```\n").unwrap();
    for command in commands(&overview) {
        write!(page, "\n## walrelay {command}\n\n```text\n{}\n```\n", help(&[&command, "--help"])).unwrap();
    }
    page
}

/// Text for a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

/// The same, with what a reader types in backticks: flags, and names with braces.
fn typed(text: &str) -> String {
    let is_flag = |word: &str| word.starts_with("--") || word.starts_with("-X") || word.starts_with('{');
    let (mut shown, mut quoted) = (Vec::new(), false);
    let mut words = text.split(' ').peekable();
    while let Some(word) = words.next() {
        let is_inside = quoted;
        quoted ^= word.matches('`').count() % 2 == 1;
        if is_inside || !is_flag(word) {
            shown.push(if is_inside || quoted { word.to_owned() } else { word.replace('*', "\\*") });
            continue;
        }
        let bare = word.trim_end_matches([',', ';', ':', '.', ')']);
        // `-X` and what follows it are one.
        let whole = match words.next_if(|next| bare == "-X" || *next == "''") {
            Some(value) => format!("{bare} {value}"),
            None => bare.to_owned(),
        };
        let behind = &word[bare.len()..];
        shown.push(format!("`{whole}`{behind}"));
    }
    cell(&shown.join(" "))
}

fn code(text: &str) -> String {
    format!("`{}`", cell(text))
}

/// The settings of one group of `run --help`.
fn settings(group: &str) -> String {
    let mut table = String::from("| flag and key | value | default | meaning |\n|---|---|---|---|\n");
    let of_group: Vec<_> = named().filter(|setting| setting.group == group).collect();
    assert!(!of_group.is_empty(), "no setting is in the group {group}");
    for setting in of_group {
        let short = setting.short.map_or_else(String::new, |short| format!("`-{short}`, "));
        let words = if setting.takes == Takes::Switch { vec!["true", "false"] } else { setting.words() };
        let value = match words.as_slice() {
            [] => code(setting.value),
            words => words.iter().map(|word| code(word)).collect::<Vec<_>>().join(", "),
        };
        let list = if setting.takes == Takes::Many { ", a list" } else { "" };
        let default = if setting.default.is_empty() { "none".to_owned() } else { typed_default(setting.default) };
        let meaning = setting.help.trim_end_matches("; repeatable");
        writeln!(table, "| {short}`--{}` | {value}{list} | {default} | {} |", setting.name, typed(meaning)).unwrap();
    }
    table
}

/// A default is a value to type if it is one word, else a description.
fn typed_default(default: &str) -> String {
    if default == "none" || default.contains([' ', ',']) { typed(default) } else { code(default) }
}

/// Every setting with its variable.
fn variables() -> String {
    let mut table = String::from("| key in the file | flag | variable |\n|---|---|---|\n");
    for setting in named() {
        let flags: Vec<String> =
            [&setting.name].into_iter().chain(setting.aliases).map(|name| format!("`--{name}`")).collect();
        let (name, flags) = (&setting.name, flags.join(", "));
        writeln!(table, "| `{name}` | {flags} | `{}` |", variable_of(name)).unwrap();
    }
    table
}

fn metrics() -> String {
    let mut table = String::from("| metric | type | unit | labels | meaning |\n|---|---|---|---|---|\n");
    for metric in walrelay::metrics::FAMILIES {
        let name = metric.sample_name();
        let of_relay = if name.starts_with("process_") { None } else { Some("slot") };
        let labels: Vec<String> = of_relay.into_iter().chain(metric.label).map(code).collect();
        let (_, unit) = metric.unit();
        let unit = unit.as_ref().map_or("", Unit::as_str);
        writeln!(
            table,
            "| `{name}` | {} | {unit} | {} | {} |",
            metric.kind_name(),
            labels.join(", "),
            typed(metric.help)
        )
        .unwrap();
    }
    table
}

/// The values of labels that come from closed sets.
fn label_values() -> String {
    let list = |values: &[&str]| values.iter().map(|value| code(value)).collect::<Vec<_>>().join(", ");
    let kinds: Vec<&str> = KINDS.iter().map(|kind| kind.name).collect();
    format!(
        "| label | values |\n|---|---|\n\
         | `state` | {} |\n\
         | `status` | {} |\n\
         | `kind` | {} |\n\
         | `peer` | `postgres`, and the destination: {} |\n\
         | `reason` | [reasons](errors.md#reasons) |\n",
        list(&State::ALL.map(State::name)),
        list(&WAL_STATUSES),
        list(&Ignored::ALL.map(Ignored::label)),
        list(&kinds),
    )
}

/// One of each kind of bad row, with `…` for what a row fills in.
fn bad_rows() -> Vec<(BadReason, String)> {
    let (column, value) = ("…".to_owned(), "…".to_owned());
    let reasons = vec![
        BadReason::NullRoute { column: column.clone() },
        BadReason::InvalidTopic { topic: value.clone(), fault: TopicFault::Empty },
        BadReason::HeadersNotObject { column: column.clone(), value: value.clone() },
        BadReason::InvalidPartition { column: column.clone(), value: value.clone() },
        BadReason::InvalidSchemaId { column: column.clone(), value: value.clone() },
        BadReason::InvalidTimestamp { column: column.clone(), value: value.clone() },
        BadReason::Unwritable { column: column.clone(), value: value.clone() },
        BadReason::NotJson { value: value.clone() },
        BadReason::MissingId { column: column.clone() },
        BadReason::MissingType { column: column.clone() },
        BadReason::MissingPayload { column: column.clone() },
        BadReason::GoneTable,
        BadReason::Updated,
        BadReason::Named,
        BadReason::TooLarge { bytes: 0, limit: 0 },
        BadReason::NotUtf8 { column, value },
    ];
    let fault = TopicFault::Empty.to_string();
    let shown = |reason: &BadReason| reason.to_string().replace(&fault, "…").replace(" 0 ", " … ");
    let reasons: Vec<_> = reasons.into_iter().map(|reason| (shown(&reason), reason)).collect();
    let kinds: Vec<_> = reasons.iter().map(|(_, reason)| reason.kind()).collect();
    assert_eq!(kinds, BadReason::KINDS, "each kind has its example");
    reasons.into_iter().map(|(shown, reason)| (reason, shown)).collect()
}

fn reasons_of_rows() -> String {
    let mut table = String::from("| message | reason | fix |\n|---|---|---|\n");
    for (reason, shown) in bad_rows() {
        let kind = reason.kind();
        writeln!(table, "| {} | `{}` | {} |", code(&shown), kind.label, typed(kind.fix)).unwrap();
    }
    table
}

/// What each label of a destination means, and who gives it.
fn reasons_of_destinations() -> String {
    let mut table = String::from("| reason | destinations | meaning | fix |\n|---|---|---|---|\n");
    for label in LABELS {
        let gives =
            |kind: &&&Kind| (kind.refusals)().into_iter().chain((kind.reasons)()).any(|name| name == label.name);
        let mut kinds: Vec<&str> = KINDS.iter().filter(gives).map(|kind| kind.name).collect();
        if registry::REFUSALS.iter().chain(&registry::REASONS).any(|name| *name == label.name) {
            kinds.push("schema registry");
        }
        writeln!(
            table,
            "| `{}` | {} | {} | {} |",
            label.name,
            kinds.join(", "),
            typed(label.meaning),
            typed(label.fix)
        )
        .unwrap();
    }
    table
}

fn exit_codes() -> String {
    let mut table = String::from("| exit code | meaning | what to do |\n|---|---|---|\n");
    for code in EXIT_CODES {
        let codes: Vec<String> = code.codes.iter().map(ToString::to_string).collect();
        writeln!(table, "| {} | {} | {} |", codes.join(", "), code.meaning, code.action).unwrap();
    }
    table
}

/// What is made of the block's name, in a page.
fn generated(name: &str) -> String {
    match name {
        "variables" => variables(),
        "metrics" => metrics(),
        "label values" => label_values(),
        "reasons of rows" => reasons_of_rows(),
        "reasons of destinations" => reasons_of_destinations(),
        "exit codes" => exit_codes(),
        other => settings(other.strip_prefix("settings: ").unwrap_or_else(|| panic!("nothing generates {other}"))),
    }
}

const BEGIN: &str = "<!-- generated: ";
const END: &str = "<!-- end -->";

/// A page with its blocks generated, and how many they are.
fn with_blocks(page: &str) -> (String, usize) {
    let mut pieces = page.split(BEGIN);
    let mut made = pieces.next().unwrap().to_owned();
    let mut count = 0;
    for piece in pieces {
        let (name, rest) = piece.split_once(" -->").unwrap();
        let (_, behind) = rest.split_once(END).unwrap_or_else(|| panic!("the block {name} has no end"));
        write!(made, "{BEGIN}{name} -->\n\n{}\n{END}{behind}", generated(name)).unwrap();
        count += 1;
    }
    (made, count)
}

#[track_caller]
fn check(path: &str, expected: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    if std::env::var_os("WALRELAY_BLESS").is_some() {
        fs::write(&file, expected).unwrap();
    }
    let found = fs::read_to_string(&file).unwrap_or_default();
    assert!(
        found == expected,
        "{path} is not what the program says: WALRELAY_BLESS=1 cargo test --test reference writes it"
    );
}

#[test]
fn the_page_about_the_command_line_is_what_the_program_says() {
    let page = command_line();
    assert!(page.contains("## walrelay run\n") && page.contains("--max-in-flight"), "{page}");
    check("docs/cli.md", &page);
}

#[track_caller]
fn blocks_of(path: &str, expected: usize) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    let (made, count) = with_blocks(&fs::read_to_string(file).unwrap());
    assert_eq!(count, expected, "blocks of {path}");
    check(path, &made);
}

#[test]
fn the_page_about_settings_has_each_of_them_as_the_program_does() {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/configuration.md")).unwrap();
    let groups: BTreeSet<&str> = named().map(|setting| setting.group).collect();
    for group in &groups {
        assert!(
            page.contains(&format!("{BEGIN}settings: {group} -->")),
            "docs/configuration.md has no block for {group}"
        );
    }
    blocks_of("docs/configuration.md", groups.len() + 1);
}

#[test]
fn the_page_about_metrics_has_each_of_them_as_the_program_does() {
    blocks_of("docs/http.md", 2);
}

#[test]
fn the_pages_about_errors_have_each_code_and_reason_as_the_program_does() {
    blocks_of("docs/errors.md", 2);
    blocks_of("docs/operations/running.md", 1);
}
