//! [`ConfigSources`]: the sources in which Debezium Server finds its keys, and which of them takes precedence.
//!
//! ```text
//!  variables ──► .env in the working directory ──► application-PROFILE.properties ──► application.properties
//! ```
//!
//! In: the keys of each source. Out: the keys as Debezium Server sees them. The first source that has a key counts. In each source, a key
//! of an active profile takes precedence over the same key without one. A variable stands for a key in any case, with an underscore in
//! for each character that is no letter or digit.
//! Invariant: if two spellings of one key have different values, that is an error, since Java's hashes decide which of them counts.
//! Specification: Debezium Server's `DebeziumServer.configToProperties`; SmallRye Config's `EnvConfigSource`,
//! `ProfileConfigSourceInterceptor`; Quarkus' "Configuration Reference".

use super::keys::Keys;
use crate::pg::source::Environment;
use crate::setting_text::{Given, Origin, SettingError};

/// All sources. The first one that has a key counts.
#[derive(Default)]
pub(super) struct ConfigSources {
    sources: Vec<ConfigSource>,
    /// Active profiles. The last one that has a key counts.
    profiles: Vec<String>,
}

struct ConfigSource {
    keys: Keys,
    /// Whether the keys are names of variables.
    is_of_variables: bool,
}

/// The prefixes of keys that Debezium Server also takes with underscores instead of dots.
const IN_ANY_FORM: [&str; 4] = ["debezium.source.", "debezium.format.", "debezium.transforms.", "debezium.predicates."];

/// Keys with one of these prefixes that Debezium Server takes only with dots.
const WITH_DOTS: [&str; 3] = ["debezium.format.key", "debezium.format.value", "debezium.format.header"];

/// The prefixes of variables that stand for keys. `DEBEZIUM_VERSION` and the like are no keys, since the image of Debezium Server sets
/// them.
const OF_VARIABLES: [&str; 7] = [
    "debezium.source.",
    "debezium.sink.",
    "debezium.format.",
    "debezium.transforms",
    "debezium.predicates",
    "quarkus.config.",
    "smallrye.config.loc",
];

/// Variables from which Java reads options.
const JAVA_OPTIONS: [&str; 4] = ["JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "JAVA_OPTS", "DEBEZIUM_OPTS"];

impl ConfigSources {
    /// `files`: the keys of all files together. `dot_env`: the keys of `.env`.
    pub(super) fn new(files: Keys, dot_env: Option<Keys>, environment: &Environment) -> Self {
        let mut variables = Keys::default();
        for (name, text) in &environment.variables {
            variables.insert(name.clone(), Given { text: text.clone(), origin: Origin::foreign(name) });
        }
        let of_variables =
            std::iter::once(variables).chain(dot_env).map(|keys| ConfigSource { keys, is_of_variables: true });
        let mut sources = Self {
            sources: of_variables
                .chain(std::iter::once(ConfigSource { keys: files, is_of_variables: false }))
                .collect(),
            profiles: Vec::new(),
        };
        sources.profiles = sources.active();
        sources
    }

    /// The active profiles. Later ones take precedence. An empty list of profiles counts as one profile.
    pub(super) fn profiles(&self) -> &[String] {
        &self.profiles
    }

    fn active(&self) -> Vec<String> {
        const NAMES: [&str; 3] = ["mp.config.profile", "quarkus.profile", "smallrye.config.profile"];
        let named = self.sources.iter().find_map(|source| NAMES.iter().find_map(|name| source.find(name)));
        let given = named.map_or(DEFAULT_PROFILE, |value| &value.text);
        given.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
    }

    /// The value of a key, from the first source that has it.
    pub(super) fn find(&self, name: &str) -> Option<&Given> {
        self.sources.iter().find_map(|source| {
            let of_profiles = self.profiles.iter().rev().find_map(|profile| source.find(&format!("%{profile}.{name}")));
            of_profiles.or_else(|| source.find(name))
        })
    }

    /// All keys, by the names that Debezium Server uses.
    ///
    /// # Errors
    /// Two spellings of one key have different values.
    pub(super) fn keys(&self) -> Result<Keys, SettingError> {
        let mut keys = Keys::default();
        for name in self.names() {
            let dotted = dotted(&name);
            let is_shell = name.contains('_') && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
            let key = if is_shell && is_in_any_form(&dotted) { dotted } else { name.clone() };
            let Some(value) = self.find(&name).cloned() else { continue };
            if let Some(other) = keys.get(&key).filter(|other| other.text != value.text) {
                return Err(SettingError::usage(
                    format!("--from-debezium: {} and {} are one key with two values", other.origin, value.origin),
                    "leave one of them out: which of them Debezium Server takes depends on Java's hashes",
                ));
            }
            keys.insert(key, value);
        }
        Ok(keys)
    }

    /// The names of all keys: those in files, and those for which variables stand.
    fn names(&self) -> Vec<String> {
        let of = |is_of_variables| self.sources.iter().filter(move |source| source.is_of_variables == is_of_variables);
        let mut names = of(false)
            .flat_map(|source| source.keys.iter().filter_map(|(name, _)| self.without_profile(name)))
            .collect::<Vec<_>>();
        let of_variables = of(true)
            .flat_map(|source| source.keys.iter().flat_map(|(name, value)| self.of_variable(name, value, &names)));
        let of_variables = of_variables.collect::<Vec<_>>();
        names.extend(of_variables);
        names
    }

    /// The name without its profile. `None`: the profile is not active.
    fn without_profile(&self, name: &str) -> Option<String> {
        let Some((profile, rest)) = name.strip_prefix('%').and_then(|rest| rest.split_once('.')) else {
            return Some(name.to_owned());
        };
        self.profiles.iter().any(|active| active == profile).then(|| rest.to_owned())
    }

    /// The names of the keys for which a variable stands: its own name, and one with dots. If a file has the key in mixed case, there
    /// are none.
    fn of_variable(&self, name: &str, value: &Given, of_files: &[String]) -> Vec<String> {
        let is_option = |word: &str| {
            ["debezium", "quarkus", "smallrye", "mp"].iter().any(|of| word.starts_with(&format!("-D{of}.")))
        };
        if JAVA_OPTIONS.contains(&name) && value.text.split_whitespace().any(is_option) {
            return vec![name.to_owned()];
        }
        let of_profile = self.profiles.iter().find_map(|profile| {
            let prefix = format!("_{}_", plain(profile));
            plain(name).starts_with(&prefix).then(|| name.get(prefix.len()..)).flatten()
        });
        let name = of_profile.unwrap_or(name);
        let dotted = dotted(name);
        let is_key = OF_VARIABLES.iter().any(|prefix| dotted.starts_with(prefix));
        let in_mixed_case = |known: &&String| plain(known) == plain(name) && known.contains('.') && **known != dotted;
        if !is_key || of_files.iter().any(|known| in_mixed_case(&known)) {
            return Vec::new();
        }
        let own = (name.contains('.') || is_in_any_form(&dotted)).then(|| name.to_owned());
        own.into_iter().chain((!name.contains('.')).then_some(dotted)).collect()
    }
}

/// Whether a key may have underscores instead of its dots.
fn is_in_any_form(dotted: &str) -> bool {
    IN_ANY_FORM.iter().any(|prefix| dotted.starts_with(prefix)) && !WITH_DOTS.contains(&dotted)
}

/// Debezium Server's profile, if the user sets none.
const DEFAULT_PROFILE: &str = "prod";

impl ConfigSource {
    fn find(&self, name: &str) -> Option<&Given> {
        if !self.is_of_variables {
            return self.keys.get(name);
        }
        let alike = || self.keys.iter().filter(|(known, _)| plain(known) == plain(name)).map(|(_, value)| value);
        if alike().count() < 2 {
            return alike().next();
        }
        let underscored = underscored(name);
        let exactly = self.keys.get(name).or_else(|| self.keys.get(&underscored));
        exactly.or_else(|| self.keys.get(&underscored.to_ascii_uppercase()))
    }
}

/// The key of a variable: `DEBEZIUM_SOURCE_SLOT_NAME` is `debezium.source.slot.name`.
fn dotted(name: &str) -> String {
    name.replace('_', ".").to_ascii_lowercase()
}

fn underscored(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect()
}

/// The common form of all names for which one variable may stand.
fn plain(name: &str) -> String {
    underscored(name).to_ascii_lowercase()
}
