//! Translates a Debezium configuration into walrelay's settings.
//!
//! ```text
//!  files ──document, sources─► keys ──expressions──► values ──translate──► Translation ──► settings' lowest layer
//!                                                                                   └─report─► what `check` prints
//! ```
//!
//! In: Debezium Server's `application.properties`, a Kafka Connect connector's JSON or properties, a Connect worker's properties,
//! variables, `.env`. Out: a [`Translation`]: settings by the names of flags, settings without flags ([`Connect`]), and a note for each
//! key that was not carried over. This folder reads the files that the user names, and those of active profiles beside them. It
//! contacts nobody.
//! Invariants: every key is either carried over or in a note. No note and no printed text has a secret. A note is one line.

mod config_sources;
mod document;
mod expressions;
mod jaas;
mod keys;
mod properties;
mod report;
mod translate;

#[cfg(test)]
mod sorted;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

pub use document::Platform;

use crate::outbox::TablePatterns;
use crate::outbox::connect::Connect;
use crate::pg::source::Environment;
use crate::setting_text::{Origin, SettingError, one_line};
use config_sources::ConfigSources;
use document::{Configuration, Document};
use keys::Keys;

/// A Debezium configuration, translated to walrelay's settings. It has no `Debug`, since values may be secrets.
pub struct Translation {
    /// Settings by the names of flags.
    pub settings: BTreeMap<&'static str, Setting>,
    /// librdkafka's properties.
    pub properties: BTreeMap<String, Setting>,
    /// The conversion of keys, values and headers.
    pub connect: Connect,
    /// The tables that are captured. Empty: all.
    pub tables: TablePatterns,
    /// Notes on keys without a counterpart, and on differences that the user should know.
    pub notes: Vec<Note>,
    /// The program that ran the Debezium configuration.
    pub platform: Platform,
}

/// A setting's values, and their origin.
#[derive(Clone)]
pub struct Setting {
    /// One value, or several for a list.
    pub values: Vec<String>,
    /// Whether it is a list.
    pub is_list: bool,
    /// The values for messages. `None`: they are secret.
    pub shown: Option<Vec<String>>,
    /// The key from which the setting comes.
    pub origin: Origin,
}

/// A note on a key without a counterpart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// The note's severity.
    pub severity: Severity,
    /// The key and its origin.
    pub origin: String,
    /// The key's effect in Debezium, and what walrelay does instead.
    pub text: String,
}

/// The severity of a note.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Nothing is lost without the key.
    NotNeeded,
    /// The records are the same, but something else may differ.
    Warning,
    /// A record would differ. This is an error unless `--accept-differences` is set.
    Differs,
    /// walrelay cannot run with the key. This is always an error.
    Refused,
}

/// Reads `files` together, and the files of Quarkus' active profiles beside them.
///
/// # Errors
/// A file cannot be read or understood, or the files are not one configuration. Problems of single keys are in the notes instead: see
/// [`Translation::verdict`].
pub fn read(files: &[PathBuf], environment: &Environment) -> Result<Translation, SettingError> {
    let mut documents = files.iter().map(|file| Document::read(file, &bytes(file)?)).collect::<Result<Vec<_>, _>>()?;
    let sources = config_sources(files, &mut documents, environment)?;
    Ok(translate::translate(Configuration::assemble(documents, sources)?, environment))
}

/// Returns the sources in which Debezium Server looks keys up. There are none if no file is Debezium Server's. Adds files of active
/// profiles to `documents`.
fn config_sources(
    files: &[PathBuf],
    documents: &mut Vec<Document>,
    environment: &Environment,
) -> Result<ConfigSources, SettingError> {
    let of_server =
        |(file, document): (&PathBuf, &Document)| matches!(document, Document::Server(_)).then(|| file.clone());
    let named = files.iter().zip(&*documents).filter_map(of_server).collect::<Vec<_>>();
    if named.is_empty() {
        return Ok(ConfigSources::default());
    }
    if let Some(unread) = named.iter().find_map(|file| document::unread_beside(file)) {
        return Err(SettingError::usage(
            format!("--from-debezium: Debezium Server reads {}, too, which is not read here", unread.display()),
            "write its keys into application.properties, and move it away",
        ));
    }
    let dot_env = dot_env(&named).map(|file| document::variables(&file, &bytes(&file)?)).transpose()?;
    let keys = |documents: &[Document]| {
        documents.iter().fold(Keys::default(), |all, document| match document {
            Document::Server(keys) | Document::Worker(keys) => all.overlaid(keys.clone()),
            Document::Connector(_) => all,
        })
    };
    let plain = ConfigSources::new(keys(documents), dot_env.clone(), environment);
    for profile in plain.profiles() {
        for file in &named {
            let stem = file.file_stem().unwrap_or_default().to_string_lossy();
            let beside = file.with_file_name(format!("{stem}-{profile}.properties"));
            if !files.contains(&beside) && beside.is_file() {
                documents.push(Document::of_profile(&beside, &bytes(&beside)?, profile)?);
            }
        }
    }
    Ok(ConfigSources::new(keys(documents), dot_env, environment))
}

/// The `.env` of Debezium Server's working directory, which has the folder `config`. If there is none, that of
/// walrelay's working directory.
fn dot_env(files: &[PathBuf]) -> Option<PathBuf> {
    let folders = files.iter().filter_map(|file| file.parent());
    let above = folders.filter(|folder| folder.ends_with("config")).filter_map(Path::parent);
    above.chain(std::iter::once(Path::new(""))).map(|folder| folder.join(".env")).find(|file| file.is_file())
}

fn bytes(file: &Path) -> Result<Vec<u8>, SettingError> {
    fs::read(file).map_err(|error| SettingError::unreadable("--from-debezium", file, error))
}

impl Translation {
    /// A setting's values, and their origin.
    pub fn setting(&self, name: &str) -> Option<(&Vec<String>, &Origin)> {
        self.settings.get(name).map(|setting| (&setting.values, &setting.origin))
    }

    /// librdkafka's properties: name, values and origin.
    pub fn properties(&self) -> impl Iterator<Item = (&String, &Vec<String>, &Origin)> {
        self.properties.iter().map(|(name, setting)| (name, &setting.values, &setting.origin))
    }

    /// The conversion of keys, values and headers. `accept`: it is returned even if records differ.
    pub fn connect(&self, accept: bool) -> Connect {
        Connect { alike_envelopes: self.connect.alike_envelopes && !accept, ..self.connect.clone() }
    }

    /// The tables that are captured.
    pub fn tables(&self) -> &TablePatterns {
        &self.tables
    }

    /// Whether walrelay may run with the configuration. `accept`: it may even if records differ.
    ///
    /// # Errors
    /// A note forbids it.
    pub fn verdict(&self, accept: bool) -> Result<(), SettingError> {
        let least = if accept { Severity::Refused } else { Severity::Differs };
        let standing = self.notes.iter().filter(|note| note.severity >= least).collect::<Vec<_>>();
        if standing.is_empty() {
            return Ok(());
        }
        let shows_all = "walrelay check --from-debezium FILE shows it all";
        let hint = if standing.iter().all(|note| note.severity == Severity::Differs) {
            format!("--accept-differences runs all the same; {shows_all}")
        } else {
            shows_all.to_owned()
        };
        let problems = standing.iter().map(ToString::to_string).collect::<Vec<_>>();
        let text = match problems.as_slice() {
            [one] => one.clone(),
            several => format!("{} keys cannot be carried over: {}", several.len(), several.join("; ")),
        };
        Err(SettingError::usage(text, hint))
    }

    /// A line to log for each note that matters.
    pub fn warnings(&self) -> Vec<String> {
        let matters = |note: &&Note| note.severity > Severity::NotNeeded;
        self.notes.iter().filter(matters).map(|note| format!("--from-debezium: {note}")).collect()
    }
}

impl Note {
    /// The most characters of a text. A longer one quotes a long value, and is cut.
    const LONGEST: usize = 600;

    fn new(severity: Severity, origin: String, text: &str) -> Self {
        Self { severity, origin, text: one_line(text, Self::LONGEST) }
    }
}

impl std::fmt::Display for Note {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.origin, self.text)
    }
}
