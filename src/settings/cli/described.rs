//! The settings of `run`, as the manual lists them.
//!
//! In: the command's definition. Out: each setting in its parts. The parts are read from what `--help` prints, so that manual and
//! help say the same.

use super::Cli;
use super::completions::VALUES;
use clap::{Arg, ArgAction, CommandFactory as _};

/// A setting of `run`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Described {
    /// Its flag without the dashes; also its key in the file.
    pub name: String,
    /// Its flag in short.
    pub short: Option<char>,
    /// Other names of its flag.
    pub aliases: Vec<String>,
    /// The group in which `--help` has it.
    pub group: String,
    /// The form of its value.
    pub value: SettingValue,
    /// It may be given more than once.
    pub repeatable: bool,
    /// Where it is not given; `None`: nothing is done.
    pub default: Option<String>,
    /// Its effect.
    pub meaning: String,
}

/// The form of a setting's value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SettingValue {
    /// `true` or `false`; the flag alone is `true`.
    Switch,
    /// A word of this list.
    OneOf(&'static [&'static str]),
    /// A text, with its name in `--help`.
    Named(String),
}

/// Where the default begins in a flag's text.
const DEFAULT: &str = " [default: ";

/// Defaults that say that there is none.
const NO_DEFAULT: [&str; 2] = ["none", "false"];

/// The settings of `run` that have a name, in the order of `--help`: all but properties of the destination, and the file itself.
pub fn described() -> Vec<Described> {
    let cli = Cli::command();
    let run = cli.find_subcommand("run");
    let flags = run.into_iter().flat_map(clap::Command::get_arguments);
    flags.filter(|flag| flag.get_long() != Some("config")).filter_map(describe).collect()
}

fn describe(flag: &Arg) -> Option<Described> {
    let name = flag.get_long()?.to_owned();
    let help = flag.get_help()?.to_string();
    let (meaning, default) = text_and_default(&help);
    Some(Described {
        short: flag.get_short(),
        aliases: flag.get_visible_aliases().unwrap_or_default().into_iter().map(str::to_owned).collect(),
        group: flag.get_help_heading().unwrap_or_default().to_owned(),
        value: value(flag, &name),
        repeatable: matches!(flag.get_action(), ArgAction::Append),
        default: default.filter(|default| !NO_DEFAULT.contains(default)).map(str::to_owned),
        meaning: meaning.to_owned(),
        name,
    })
}

fn value(flag: &Arg, name: &str) -> SettingValue {
    if flag.is_require_equals_set() {
        return SettingValue::Switch;
    }
    if let Some((_, values)) = VALUES.iter().find(|(known, _)| *known == name) {
        return SettingValue::OneOf(values);
    }
    SettingValue::Named(flag.get_value_names().unwrap_or_default().iter().map(ToString::to_string).collect())
}

/// Splits a flag's text into the part before its default, and the default.
pub(super) fn text_and_default(help: &str) -> (&str, Option<&str>) {
    match help.split_once(DEFAULT) {
        Some((text, default)) => (text, default.strip_suffix(']').or(Some(default))),
        None => (help, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_is_described() {
        let described = described();
        let mut names: Vec<&str> = described.iter().map(|setting| setting.name.as_str()).collect();
        names.sort_unstable();
        assert_eq!(names, super::super::settings());
        for setting in &described {
            assert!(!setting.meaning.contains(DEFAULT.trim()) && !setting.group.is_empty(), "{setting:?}");
        }
    }

    #[test]
    fn a_text_is_distinguished_from_its_default() {
        assert_eq!(text_and_default("The slot [default: walrelay]"), ("The slot", Some("walrelay")));
        assert_eq!(text_and_default("One more header; repeatable"), ("One more header; repeatable", None));
    }
}
