//! The settings' file.
//!
//! In: TOML. Out: settings by the names of their flags (`_` counts as `-`), and the properties of destinations from
//! their tables, such as `[kafka]`, each with its origin. Values are texts here whatever TOML makes of them: `max-row = 1000` is "1000".
//! Invariant: no message shows a line of the file, which may contain a password.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use super::cli;
use crate::setting_text::{Key, Origin, SettingError, nearest};
use crate::sink::kinds::KINDS;

/// The settings in the file. Without a file there are none.
#[derive(Default)]
pub(super) struct File {
    /// By the names of flags.
    pub(super) settings: BTreeMap<String, Entry>,
    /// Of destinations: by the kind's name, then by the property's as it is written.
    pub(super) properties: BTreeMap<&'static str, BTreeMap<String, Entry>>,
}

/// One key's value. No `Debug`: it may be a secret.
pub(super) struct Entry {
    pub(super) values: Vec<String>,
    pub(super) is_list: bool,
    pub(super) origin: Origin,
}

impl File {
    pub(super) fn read(path: &Path, named_by: Origin) -> Result<Self, SettingError> {
        let text = fs::read_to_string(path).map_err(|source| SettingError::unreadable(named_by, path, source))?;
        Self::parse(&text, path)
    }

    fn parse(text: &str, path: &Path) -> Result<Self, SettingError> {
        let toml = TomlText { path, text };
        let table = DeTable::parse(text).map_err(|error| {
            let line = error.span().map_or(1, |span| toml.line(&span));
            // TOML's words, without the line that its own display shows.
            SettingError::syntax(path, line, &error.message().replace('\n', ", "))
        })?;
        let mut file = Self::default();
        for (key, value) in table.get_ref() {
            let kind = KINDS.iter().map(|kind| kind.name).find(|kind| kind == key.get_ref());
            if let (Some(kind), DeValue::Table(properties)) = (kind, value.get_ref()) {
                add_properties(file.properties.entry(kind).or_default(), kind, "", properties, &toml)?;
            } else {
                file.add_setting(key, value, &toml)?;
            }
        }
        Ok(file)
    }

    fn add_setting(
        &mut self,
        key: &TomlName<'_>,
        value: &TomlValue<'_>,
        toml: &TomlText<'_>,
    ) -> Result<(), SettingError> {
        let name = key.get_ref().replace('_', "-");
        if !cli::settings().contains(&name.as_str()) {
            return Err(unknown_key(key, toml));
        }
        let entry = entry(key.get_ref(), &key.span(), value, toml)?;
        let origin = entry.origin.clone();
        match self.settings.insert(name, entry) {
            Some(first) => Err(SettingError::exclusive(&first.origin, &origin)),
            None => Ok(()),
        }
    }
}

/// `sasl.password` is a table in a table to TOML, unless it stands in quotes.
fn add_properties(
    found: &mut BTreeMap<String, Entry>,
    kind: &str,
    prefix: &str,
    table: &DeTable<'_>,
    toml: &TomlText<'_>,
) -> Result<(), SettingError> {
    for (key, value) in table {
        let name = format!("{prefix}{}", key.get_ref());
        if let DeValue::Table(table) = value.get_ref() {
            add_properties(found, kind, &format!("{name}."), table, toml)?;
        } else {
            let entry = entry(&format!("{kind}.{name}"), &key.span(), value, toml)?;
            let origin = entry.origin.clone();
            if let Some(first) = found.insert(name, entry) {
                return Err(SettingError::exclusive(&first.origin, &origin));
            }
        }
    }
    Ok(())
}

type TomlName<'a> = Spanned<DeString<'a>>;
type TomlValue<'a> = Spanned<DeValue<'a>>;

/// Finds lines.
struct TomlText<'a> {
    path: &'a Path,
    text: &'a str,
}

impl TomlText<'_> {
    fn line(&self, span: &Range<usize>) -> usize {
        self.text.bytes().take(span.start).filter(|byte| *byte == b'\n').count() + 1
    }

    fn origin(&self, key: &str, span: &Range<usize>) -> Origin {
        Origin::Key(Box::new(Key { file: self.path.to_owned(), line: self.line(span), name: key.to_owned() }))
    }
}

fn entry(key: &str, span: &Range<usize>, value: &TomlValue<'_>, toml: &TomlText<'_>) -> Result<Entry, SettingError> {
    let wrong = || {
        let message = format!("{key} must be a text, a whole number, true, false, or a list of these");
        SettingError::syntax(toml.path, toml.line(span), &message)
    };
    let origin = toml.origin(key, span);
    let is_list = value.get_ref().is_array();
    let items = value.get_ref().as_array().map_or_else(|| vec![value], |items| items.iter().collect());
    let values = items.into_iter().map(|item| text_of(item.get_ref())).collect::<Option<_>>().ok_or_else(wrong)?;
    Ok(Entry { values, is_list, origin })
}

fn text_of(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Boolean(value) => Some(value.to_string()),
        DeValue::Integer(integer) => {
            let digits = integer.as_str().replace('_', "");
            i64::from_str_radix(&digits, integer.radix()).ok().map(|number| number.to_string())
        }
        DeValue::Float(_) | DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) => None,
    }
}

/// A variable or key for something that only a command line can ask for.
pub(super) fn command_line_only(origin: &Origin, flag: &str) -> SettingError {
    SettingError::usage(format!("{origin}: this is given on the command line only"), format!("--{flag}"))
}

/// A variable or key that is no setting, with the one that was probably meant.
pub(super) fn unknown(text: String, kind: &str, nearest: Option<String>) -> SettingError {
    SettingError::usage(
        text,
        nearest.map_or_else(
            || "walrelay run --help lists the settings".to_owned(),
            |nearest| format!("the nearest {kind} is {nearest}"),
        ),
    )
}

fn unknown_key(key: &TomlName<'_>, toml: &TomlText<'_>) -> SettingError {
    let name = key.get_ref().replace('_', "-");
    let settings = cli::settings();
    if cli::actions().contains(&name.as_str()) {
        return command_line_only(&toml.origin(key.get_ref(), &key.span()), &name);
    }
    let candidates = settings.into_iter().chain(KINDS.iter().map(|kind| kind.name));
    let nearest = cli::setting_of_alias(&name).or_else(|| nearest(&name, candidates)).map(str::to_owned);
    let text = format!("{}, line {}: unknown key \"{}\"", toml.path.display(), toml.line(&key.span()), key.get_ref());
    unknown(text, "key", nearest)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Result<File, SettingError> {
        File::parse(text, Path::new("w.toml"))
    }

    #[track_caller]
    fn refused(text: &str) -> (String, Option<String>) {
        let error = parse(text).err().expect("must be refused");
        (error.to_string(), error.hint)
    }

    #[test]
    fn keys_are_flags_and_values_are_texts() {
        let file =
            parse("slot = 'a'\nmax_row = 1_000\n\"max-in-flight\" = 0x10000\nsetup = true\ntable = ['a', 'b']\n")
                .unwrap();
        let values = |name: &str| file.settings[name].values.clone();
        assert_eq!(values("slot"), ["a"]);
        assert_eq!(values("max-row"), ["1000"]);
        assert_eq!(values("max-in-flight"), ["65536"]);
        assert_eq!(values("setup"), ["true"]);
        assert_eq!(values("table"), ["a", "b"]);
        assert_eq!(file.settings["setup"].origin.to_string(), "setup (w.toml, line 4)");
    }

    #[cfg(feature = "kafka")]
    #[test]
    fn properties_may_be_quoted_or_not() {
        let file = parse("[kafka]\nsasl.password = 'x'\n\"ssl.ca.location\" = 'y'\nlinger.ms = 5\n").unwrap();
        let properties = file.properties["kafka"].iter().map(|(name, entry)| (name.as_str(), entry.values[0].as_str()));
        assert_eq!(
            properties.collect::<Vec<_>>(),
            [("linger.ms", "5"), ("sasl.password", "x"), ("ssl.ca.location", "y")]
        );
        assert_eq!(
            file.properties["kafka"]["sasl.password"].origin.to_string(),
            "kafka.sasl.password (w.toml, line 2)"
        );
    }

    #[test]
    fn an_unknown_key_names_file_line_and_nearest() {
        let (error, hint) = refused("slot = 'a'\n\nslto = 'b'\n");
        assert_eq!(error, "w.toml, line 3: unknown key \"slto\"");
        assert_eq!(hint.as_deref(), Some("the nearest key is slot"));
        assert_eq!(refused("dsn = 'x'").1.as_deref(), Some("the nearest key is source"));
        assert_eq!(refused("yes = true").0, "yes (w.toml, line 1): this is given on the command line only");
        assert_eq!(refused("config = 'x'").0, "w.toml, line 1: unknown key \"config\"");
    }

    #[test]
    fn one_setting_written_twice_is_refused() {
        assert!(refused("max-row = 1\nmax_row = 2").0.contains("exclude each other"));
        let (error, _) = refused("[kafka]\n\"linger.ms\" = 1\nlinger.ms = 2");
        assert!(
            error.contains("line 2") && error.contains("line 3") && error.contains("exclude each other"),
            "{error}"
        );
    }

    #[test]
    fn a_syntax_error_names_the_line_and_shows_none() {
        let (error, _) = refused("slot = 'a'\nsource = \"hunter2\nslot = 'b'");
        assert!(error.starts_with("w.toml, line 2: "), "{error}");
        assert!(!error.contains("hunter2"), "{error}");
    }

    #[test]
    fn values_of_other_kinds_are_refused() {
        for text in ["slot = 1.5", "slot = 2020-01-01", "table = [['a']]", "[slot]\na = 1", "kafka = 1"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in any::<String>()) {
            let _read = parse(&text).is_ok();
        }

        #[test]
        fn no_text_of_the_right_alphabet_panics(text in r"([a-z_.\[\]= 0-9x'\x22-]{0,12}\n){0,5}") {
            let _read = parse(&text).is_ok();
        }
    }
}
