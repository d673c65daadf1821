//! The table of settings: a setting is a row here, and its use.
//!
//! ```text
//!                ┌─► cli: clap's arguments, `-h`, completions, the manual
//!  row, or rows ─┼─► layers, file: the known names
//!                └─► read: a value of the row's type, from the text that was given, else from the default's
//! ```
//!
//! In: nothing. Out: [`Setting`]s, which are typed, and [`of`], the flags of each command. A flag that only one command has is a row,
//! too: of that command's module. Where two commands say of one setting different things, the second one has a row made of the first.

pub(super) mod form;
pub(super) mod others;
pub(super) mod run;
pub(super) mod verify;

use crate::setting_text::{Given, SettingError};
use form::{Form, any, on_or_off};
use std::ops::Deref;

/// A setting without the type of its value.
#[derive(Clone, Copy)]
pub struct Definition {
    /// Its flag without the dashes; of a setting of `run` also its key in the file, and with `WALRELAY_` its variable.
    pub name: &'static str,
    /// Its flag in short.
    pub short: Option<char>,
    /// Whether the flag has only the short name.
    pub is_short_only: bool,
    /// Other names of its flag.
    pub aliases: &'static [&'static str],
    /// The number of its values.
    pub takes: Takes,
    /// The name of its value in help.
    pub value: &'static str,
    /// The heading above it in help; empty: none.
    pub group: &'static str,
    /// Its effect.
    pub help: &'static str,
    /// The value where none is given, in words if it depends, as in brackets at the end of the help; empty: nothing is said.
    pub default: &'static str,
    /// Whether few need it: `-h` leaves it out.
    pub is_seldom: bool,
    /// Flags of the command with which it cannot be typed.
    pub excludes: &'static [&'static str],
    /// Flags of the command without which it cannot be typed.
    pub requires: &'static [&'static str],
}

/// The number of values that a flag takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Takes {
    /// None: it is only on the command line, and off where it is not typed.
    Nothing,
    /// `true` or `false`; alone it is `true`.
    Switch,
    /// One; the last one that is typed counts.
    One,
    /// One each time that it is typed.
    Many,
}

/// A setting whose value is a `T`.
pub(super) struct Setting<T: 'static> {
    definition: Definition,
    form: &'static dyn Form<T>,
}

impl<T> Deref for Setting<T> {
    type Target = Definition;

    fn deref(&self) -> &Definition {
        &self.definition
    }
}

/// A setting, whatever the type of its value.
pub trait AnySetting: Deref<Target = Definition> {
    /// The only values that it has; empty: any text may be one.
    fn words(&self) -> Vec<&'static str>;
}

impl<T> AnySetting for Setting<T> {
    fn words(&self) -> Vec<&'static str> {
        self.form.words()
    }
}

/// Settings under one heading, in the order of `--help`.
pub(super) type SettingGroup = &'static [&'static dyn AnySetting];

/// A setting with one value.
const fn one<T>(name: &'static str, value: &'static str, form: &'static dyn Form<T>) -> Setting<T> {
    let definition = Definition {
        name,
        short: None,
        is_short_only: false,
        aliases: &[],
        takes: Takes::One,
        value,
        group: "",
        help: "",
        default: "",
        is_seldom: false,
        excludes: &[],
        requires: &[],
    };
    Setting { definition, form }
}

/// A setting with any number of values, which are read one by one.
const fn many(name: &'static str, value: &'static str) -> Setting<Given> {
    one(name, value, &any).taking(Takes::Many)
}

/// A setting that is on or off.
const fn switch(name: &'static str) -> Setting<bool> {
    one(name, "BOOL", &on_or_off).taking(Takes::Switch).or("false")
}

/// A flag that is typed or not. clap says `false` where it is not, so that no other layer is asked.
const fn flag(name: &'static str) -> Setting<bool> {
    one(name, "", &on_or_off).taking(Takes::Nothing).or("false")
}

impl<T> Setting<T> {
    const fn taking(mut self, takes: Takes) -> Self {
        self.definition.takes = takes;
        self
    }

    /// The default, as the help has it.
    const fn or(mut self, default: &'static str) -> Self {
        self.definition.default = default;
        self
    }

    const fn short(mut self, short: char) -> Self {
        self.definition.short = Some(short);
        self
    }

    const fn short_only(mut self, short: char) -> Self {
        self.definition.is_short_only = true;
        self.short(short)
    }

    const fn aliases(mut self, aliases: &'static [&'static str]) -> Self {
        self.definition.aliases = aliases;
        self
    }

    const fn seldom(mut self) -> Self {
        self.definition.is_seldom = true;
        self
    }

    const fn excludes(mut self, excludes: &'static [&'static str]) -> Self {
        self.definition.excludes = excludes;
        self
    }

    const fn requires(mut self, requires: &'static [&'static str]) -> Self {
        self.definition.requires = requires;
        self
    }

    /// The group and the help, which [`settings`] adds.
    const fn said(mut self, group: &'static str, help: &'static str) -> Self {
        self.definition.group = group;
        self.definition.help = help.trim_ascii();
        self
    }

    /// The value of a text.
    pub(super) fn parse(&self, given: &Given) -> Result<T, SettingError> {
        self.form.parse(given)
    }
}

/// Defines rows under one heading, and the list of them: `LIST "Heading": /// Help.⏎ NAME: Type = row;`. A row's doc comment is its help.
macro_rules! settings {
    ($list:ident $group:literal: $($(#[doc = $help:literal])+ $name:ident: $value:ty = $row:expr;)+) => {
        $($(#[doc = $help])+ pub(crate) const $name: Setting<$value> = $row.said($group, concat!($($help),+));)+
        pub(crate) const $list: SettingGroup = &[$(&$name),+];
    };
}
use settings;

/// The flags of a command, in the order of `--help`.
pub(super) fn of(command: &str) -> Vec<&'static dyn AnySetting> {
    match command {
        "run" => run(),
        "check" => [others::check::FLAGS, &run()].concat(),
        "setup" => others::setup::ALL.concat(),
        "status" => others::status::ALL.concat(),
        "teardown" => others::teardown::ALL.concat(),
        "dead-letters" => others::dead_letters::ALL.concat(),
        "backfill" => [others::backfill::FLAGS, &run()].concat(),
        "verify" => [verify::FLAGS, &run()].concat(),
        "prune" => others::prune::ALL.concat(),
        "bench" => others::bench::ALL.concat(),
        _ => Vec::new(),
    }
}

fn run() -> Vec<&'static dyn AnySetting> {
    run::ALL.concat()
}

/// The settings of `run` that have a name: all but the file itself, and properties of the destination.
pub fn named() -> impl Iterator<Item = &'static dyn AnySetting> {
    run().into_iter().filter(|row| row.name != run::CONFIG.name && !row.is_short_only)
}
