//! Pages of the manual that are generated: what the program says of itself. `WALRELAY_BLESS=1` writes them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

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
