//! Where a setting comes from: the flag, else its variable, else its key in the file, else a Debezium configuration's files.
//!
//! In: what was typed, the environment, the file, the files of `--from-debezium`. Out: a text and its [`Origin`], for one setting at a time.
//! An unknown `WALRELAY_*` variable is an error like an unknown flag: a misspelt setting must not run with its default.
//! Not meant as settings, and left alone: `WALRELAY_BIN`, `WALRELAY_TEST_*`, `WALRELAY_DEV_*`, and what Kubernetes puts
//! into every container beside a service that is named walrelay (`WALRELAY_SERVICE_HOST`, `WALRELAY_PORT_9464_TCP`…).

use std::path::PathBuf;

use super::cli::{self, FlagValues};
use super::file::{Entry, File, command_line_only, unknown};
use super::table::Definition;
use super::table::run::{CONFIG, FROM_DEBEZIUM};
use crate::debezium::{self, Translation};
use crate::pg::source::Environment;
use crate::setting_text::{Given, Origin, SettingError, nearest};
use crate::sink::destination::Kind;
use crate::sink::kinds::KINDS;

const PREFIX: &str = "WALRELAY_";

/// The variable that names the file; the only one whose setting has no key.
const CONFIG_VARIABLE: &str = "WALRELAY_CONFIG";

/// All layers, the first of them first.
pub(super) struct Layers<'a> {
    pub(super) flags: FlagValues,
    pub(super) environment: &'a Environment,
    file: File,
    translation: Option<Translation>,
}

impl<'a> Layers<'a> {
    /// Reads the file that the flag or `WALRELAY_CONFIG` names, if any, and looks for names that are no settings. Reads the files of
    /// `--from-debezium`, wherever they are named.
    pub(super) fn open(flags: FlagValues, environment: &'a Environment) -> Result<Self, SettingError> {
        check_variables(environment)?;
        let flag = flags.last(CONFIG.name).map(|path| (path, Origin::Flag("--config".to_owned())));
        let variable =
            || environment.variable(CONFIG_VARIABLE).map(|path| (path, Origin::Variable(CONFIG_VARIABLE.into())));
        let file = match flag.or_else(variable) {
            Some((path, origin)) => File::read(path.as_ref(), origin)?,
            None => File::default(),
        };
        let mut layers = Self { flags, environment, file, translation: None };
        let files = layers.debezium_files();
        if !files.is_empty() {
            layers.translation = Some(debezium::read(&files, environment)?);
        }
        Ok(layers)
    }

    /// The files of `--from-debezium`.
    pub(super) fn debezium_files(&self) -> Vec<PathBuf> {
        self.many(&FROM_DEBEZIUM).into_iter().map(|given| PathBuf::from(given.text)).collect()
    }

    /// The translation of those files.
    pub(super) fn translation(&self) -> Option<&Translation> {
        self.translation.as_ref()
    }

    /// All values of a setting in those files, and where it stands.
    fn translated(&self, name: &str) -> Option<(&Vec<String>, &Origin)> {
        self.translation.as_ref()?.setting(name)
    }

    /// The one value of a setting, or of a flag that stands on the command line alone.
    pub(super) fn one(&self, setting: &Definition) -> Result<Option<Given>, SettingError> {
        let name = setting.name;
        let flag = self.flags.last(name).map(|text| given_flag(name, text));
        if let Some(given) = flag.or_else(|| self.variable(name)) {
            return Ok(Some(given));
        }
        match self.file.settings.get(name) {
            None => Ok(self.translated(name).and_then(|(values, origin)| first(values, origin))),
            Some(Entry { values, is_list: false, origin }) => Ok(first(values, origin)),
            Some(Entry { origin, .. }) => Err(SettingError::new(format!("{origin}: expected one value, not a list"))),
        }
    }

    /// All values of a repeatable setting, from the first layer that has any.
    pub(super) fn many(&self, setting: &Definition) -> Vec<Given> {
        let name = setting.name;
        let flags = self.flags.all(name);
        if !flags.is_empty() {
            return flags.iter().map(|text| given_flag(name, text)).collect();
        }
        if let Some(Given { text, origin }) = self.variable(name) {
            let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
            return items.map(|text| Given { text: text.to_owned(), origin: origin.clone() }).collect();
        }
        let found = self.file.settings.get(name).map(|entry| (&entry.values, &entry.origin));
        let found = found.or_else(|| self.translated(name));
        let all = |(values, origin): (&Vec<String>, &Origin)| {
            values.iter().map(|text| Given { text: text.clone(), origin: origin.clone() }).collect()
        };
        found.map(all).unwrap_or_default()
    }

    /// The value of a setting, or the first of them.
    pub(super) fn many_or_one(&self, setting: &Definition) -> Option<Given> {
        self.many(setting).into_iter().next()
    }

    /// Properties of a destination from a Debezium configuration, from the file, then from variables: later ones count.
    pub(super) fn properties(&self, kind: &Kind) -> Vec<(String, Given)> {
        let translation = self.translation.iter().filter(|_| kind.can.debezium);
        let properties = translation.flat_map(Translation::properties);
        let old = properties.filter_map(|(name, values, origin)| Some((name.clone(), first(values, origin)?)));
        let file =
            self.file.properties.get(kind.name).into_iter().flatten().map(|(name, entry)| {
                (name.clone(), Given { text: entry.values.join(","), origin: entry.origin.clone() })
            });
        let prefix = Self::prefix(kind);
        let variables = self.environment.variables.iter().filter(|(name, value)| is_meant(name, value)).filter_map(
            |(name, value)| {
                let property = name.strip_prefix(&prefix)?.to_ascii_lowercase().replace('_', ".");
                Some((property, Given { text: value.clone(), origin: Origin::Variable(name.clone()) }))
            },
        );
        old.chain(file).chain(variables).collect()
    }

    /// The prefix of variables with the kind's properties: `WALRELAY_KAFKA_`.
    pub(super) fn prefix(kind: &Kind) -> String {
        format!("{PREFIX}{}_", kind.name.to_ascii_uppercase())
    }

    fn variable(&self, name: &str) -> Option<Given> {
        let variable = variable_of(name);
        let text = self.environment.variable(&variable)?.to_owned();
        Some(Given { text, origin: Origin::Variable(variable) })
    }
}

fn first(values: &[String], origin: &Origin) -> Option<Given> {
    values.first().map(|text| Given { text: text.clone(), origin: origin.clone() })
}

fn given_flag(name: &str, text: &str) -> Given {
    Given { text: text.to_owned(), origin: Origin::Flag(format!("--{name}")) }
}

/// The variable of a setting: `WALRELAY_MAX_ROW` of `max-row`.
pub fn variable_of(name: &str) -> String {
    format!("{PREFIX}{}", name.to_ascii_uppercase().replace('-', "_"))
}

/// Whether a variable is set, and meant as a setting.
fn is_meant(name: &str, value: &str) -> bool {
    let others = name == "WALRELAY_BIN" || name.starts_with("WALRELAY_TEST_") || name.starts_with("WALRELAY_DEV_");
    name.starts_with(PREFIX) && !value.is_empty() && !others && !is_service_link(name, value)
}

/// Whether a variable is one of those with which Kubernetes tells a container of the services around it.
fn is_service_link(name: &str, value: &str) -> bool {
    let is_port_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let names_a_port = name.split("_PORT_").skip(1).any(|after| after.split('_').next().is_some_and(is_port_number));
    name.ends_with("_SERVICE_HOST")
        || name.ends_with("_SERVICE_PORT")
        || name.contains("_SERVICE_PORT_")
        || (name.ends_with("_PORT") && value.contains("://"))
        || names_a_port
}

fn check_variables(environment: &Environment) -> Result<(), SettingError> {
    let settings = cli::settings();
    let known = settings.iter().map(|name| variable_of(name)).collect::<Vec<_>>();
    let prefixes = KINDS.iter().map(|kind| Layers::prefix(kind)).collect::<Vec<_>>();
    for (name, _) in environment.variables.iter().filter(|(name, value)| is_meant(name, value)) {
        if name == CONFIG_VARIABLE || known.contains(name) || prefixes.iter().any(|prefix| name.starts_with(prefix)) {
            continue;
        }
        return Err(unknown_variable(name, &known));
    }
    Ok(())
}

fn unknown_variable(name: &str, known: &[String]) -> SettingError {
    let flag = name.trim_start_matches(PREFIX).to_ascii_lowercase().replace('_', "-");
    if cli::actions().contains(&flag.as_str()) {
        return command_line_only(&Origin::Variable(name.to_owned()), &flag);
    }
    // Compared without the prefix that all share, which would make everything resemble everything.
    let known = known.iter().map(|known| known.trim_start_matches(PREFIX)).chain(["CONFIG"]);
    let nearest = cli::setting_of_alias(&flag).map(variable_of);
    let nearest = nearest.or_else(|| self::nearest(&flag, known).map(|nearest| format!("{PREFIX}{nearest}")));
    unknown(format!("unknown variable {name}"), "variable", nearest)
}

#[cfg(test)]
mod tests {
    use super::super::table::Setting;
    use super::super::table::run::{BROKERS, DRY_RUN, PUBLICATION, SETUP, SLOT, SOURCE, TABLE};
    use super::*;

    fn environment(variables: &[(&str, &str)]) -> Environment {
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Environment { variables, ..Environment::default() }
    }

    fn properties(environment: &Environment) -> Vec<(String, Given)> {
        Layers::open(FlagValues::default(), environment).unwrap().properties(KINDS[0])
    }

    #[track_caller]
    fn refused(variables: &[(&str, &str)]) -> (String, String) {
        let environment = environment(variables);
        let error = Layers::open(FlagValues::default(), &environment).err().expect("must be refused");
        (error.to_string(), error.hint.unwrap())
    }

    #[test]
    fn a_flag_beats_a_variable_and_a_variable_beats_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("walrelay.toml");
        std::fs::write(&file, "slot = 'file'\npublication = 'file'\nbrokers = 'file'\n").unwrap();
        let environment = environment(&[("WALRELAY_SLOT", "variable"), ("WALRELAY_PUBLICATION", "variable")]);
        let flags = FlagValues::default().with("config", file.to_str().unwrap()).with("slot", "flag");
        let layers = Layers::open(flags, &environment).unwrap();
        let one =
            |setting: &Definition| layers.one(setting).unwrap().map(|given| (given.text, given.origin.to_string()));
        assert_eq!(one(&SLOT), Some(("flag".into(), "--slot".into())));
        assert_eq!(one(&PUBLICATION), Some(("variable".into(), "WALRELAY_PUBLICATION".into())));
        let origin = format!("brokers ({}, line 3)", file.display());
        assert_eq!(one(&BROKERS), Some(("file".into(), origin)));
        assert_eq!(one(&SOURCE), None);
    }

    #[test]
    fn a_repeatable_settings_variable_is_comma_separated() {
        let environment = environment(&[("WALRELAY_TABLE", "a, b,,c")]);
        let texts = |flags| {
            let tables = Layers::open(flags, &environment).unwrap().many(&TABLE).into_iter();
            tables.map(|given| given.text).collect::<Vec<_>>()
        };
        assert_eq!(texts(FlagValues::default()), ["a", "b", "c"]);
        assert_eq!(texts(FlagValues::default().with("table", "d,e")), ["d,e"]);
    }

    #[test]
    fn an_empty_variable_is_not_given() {
        let environment = environment(&[("WALRELAY_SLOT", ""), ("WALRELAY_NONSENSE", "")]);
        assert!(Layers::open(FlagValues::default(), &environment).unwrap().one(&SLOT).unwrap().is_none());
    }

    #[test]
    fn switches_can_be_turned_off_again() {
        let environment = environment(&[("WALRELAY_SETUP", "yes"), ("WALRELAY_DRY_RUN", "maybe")]);
        let is_on = |setting: &Setting<bool>, flags| {
            setting.parse(&Layers::open(flags, &environment).unwrap().one(setting).unwrap().unwrap())
        };
        assert!(is_on(&SETUP, FlagValues::default()).unwrap());
        assert!(!is_on(&SETUP, FlagValues::default().with("setup", "false")).unwrap());
        let error = is_on(&DRY_RUN, FlagValues::default()).unwrap_err();
        assert_eq!(error.to_string(), "WALRELAY_DRY_RUN: \"maybe\" is not valid: expected true or false");
    }

    #[test]
    fn an_unknown_variable_names_the_nearest() {
        let (error, hint) = refused(&[("WALRELAY_SLOTT", "x")]);
        assert_eq!(
            (error.as_str(), hint.as_str()),
            ("unknown variable WALRELAY_SLOTT", "the nearest variable is WALRELAY_SLOT")
        );
        let (_, hint) = refused(&[("WALRELAY_DATABASE_URL", "x")]);
        assert_eq!(hint, "the nearest variable is WALRELAY_SOURCE");
        let (error, hint) = refused(&[("WALRELAY_YES", "1")]);
        assert_eq!((error.as_str(), hint.as_str()), ("WALRELAY_YES: this is given on the command line only", "--yes"));
    }

    #[test]
    fn what_kubernetes_and_tests_set_is_left_alone() {
        let environment = environment(&[
            ("WALRELAY_SERVICE_HOST", "10.0.0.1"),
            ("WALRELAY_SERVICE_PORT", "9464"),
            ("WALRELAY_SERVICE_PORT_METRICS", "9464"),
            ("WALRELAY_PORT", "tcp://10.0.0.1:9464"),
            ("WALRELAY_PORT_9464_TCP", "tcp://10.0.0.1:9464"),
            ("WALRELAY_PORT_9464_TCP_ADDR", "10.0.0.1"),
            ("WALRELAY_KAFKA_SERVICE_HOST", "10.0.0.1"),
            ("WALRELAY_KAFKA_PORT_9092_TCP_PORT", "9092"),
            ("WALRELAY_TEST_POSTGRES", "x"),
            ("WALRELAY_DEV_DIR", "x"),
            ("WALRELAY_BIN", "x"),
        ]);
        assert!(properties(&environment).is_empty());
    }

    #[cfg(feature = "kafka")]
    #[test]
    fn properties_are_read_from_variables() {
        let environment = environment(&[("WALRELAY_KAFKA_SASL_PASSWORD", "hunter2")]);
        let kafka = properties(&environment);
        assert_eq!((kafka[0].0.as_str(), kafka[0].1.text.as_str()), ("sasl.password", "hunter2"));
    }
}
