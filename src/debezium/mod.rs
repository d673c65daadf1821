//! A Debezium configuration read as walrelay's settings.
//!
//! ```text
//!  files ──document, places──► keys ──expressions──► values ──translate──► Translation ──► settings' lowest layer
//!                                                                                   └─report─► what `check` prints
//! ```
//!
//! In: Debezium Server's `application.properties`, a Kafka Connect connector's JSON or properties, a Connect worker's
//! properties, variables, `.env`. Out: a [`Translation`]: settings by the names of flags, what has no flag ([`Connect`]), and a note for each
//! key that was not carried over. Reads files that are named, and those of active profiles beside them; contacts nothing.
//! Invariants: every key is either carried over or in a note; no secret is in a note or in what is printed; a note is one line.

mod document;
mod error;
mod expressions;
mod jaas;
mod keys;
mod places;
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
pub use error::DebeziumError;

use crate::given::{Origin, one_line};
use crate::outbox::TablePatterns;
use crate::outbox::connect::Connect;
use crate::pg::source::Environment;
use document::{Document, Job};
use keys::Keys;
use places::Places;

/// A Debezium configuration, translated to walrelay's settings. No `Debug`: values may be secrets.
pub struct Translation {
    /// Settings by the names of flags.
    pub settings: BTreeMap<&'static str, Setting>,
    /// librdkafka's properties.
    pub properties: BTreeMap<String, Setting>,
    /// The conversion of keys, values and headers.
    pub connect: Connect,
    /// The tables that are captured; empty: all.
    pub tables: TablePatterns,
    /// Notes on keys that have no counterpart, and on differences that the user should know.
    pub notes: Vec<Note>,
    /// The program that ran the Debezium configuration.
    pub platform: Platform,
}

/// A setting's values, and where they come from.
#[derive(Clone)]
pub struct Setting {
    /// One value, or several for a list.
    pub values: Vec<String>,
    /// Whether it is a list.
    pub is_list: bool,
    /// The value as messages may show it; `None` if it is a secret.
    pub shown: Option<Vec<String>>,
    /// The key that gave it.
    pub origin: Origin,
}

/// A note on a key that has no counterpart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// The note's severity.
    pub severity: Severity,
    /// The key with its place.
    pub origin: String,
    /// The key's effect in Debezium, and walrelay's behaviour instead.
    pub text: String,
}

/// The severity of a note.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Nothing is lost without the key.
    NotNeeded,
    /// No record differs, but something else may.
    Warning,
    /// A record would differ: an error unless differences are accepted.
    Differs,
    /// walrelay cannot run with it: always an error.
    Refused,
}

/// Reads `files` together, and those of Quarkus' active profiles that lie beside them.
///
/// # Errors
/// A file cannot be read or understood, or they are not one configuration. What a key asks for is in the notes instead: see
/// [`Translation::verdict`].
pub fn read(files: &[PathBuf], environment: &Environment) -> Result<Translation, DebeziumError> {
    let mut documents = files.iter().map(|file| Document::read(file, &bytes(file)?)).collect::<Result<Vec<_>, _>>()?;
    let places = places(files, &mut documents, environment)?;
    Ok(translate::translate(Job::assemble(documents, places)?, environment))
}

/// Returns the places in which Debezium Server looks: none if no file is Debezium Server's. Adds files of active profiles to
/// `documents`.
fn places(
    files: &[PathBuf],
    documents: &mut Vec<Document>,
    environment: &Environment,
) -> Result<Places, DebeziumError> {
    let of_server =
        |(file, document): (&PathBuf, &Document)| matches!(document, Document::Server(_)).then(|| file.clone());
    let named = files.iter().zip(&*documents).filter_map(of_server).collect::<Vec<_>>();
    if named.is_empty() {
        return Ok(Places::default());
    }
    if let Some(unread) = named.iter().find_map(|file| document::unread_beside(file)) {
        return Err(DebeziumError::Together {
            message: format!("Debezium Server reads {}, too, which is not read here", unread.display()),
            hint: "write its keys into application.properties, and move it away",
        });
    }
    let dot_env = dot_env(&named).map(|file| document::variables(&file, &bytes(&file)?)).transpose()?;
    let keys = |documents: &[Document]| {
        documents.iter().fold(Keys::default(), |all, document| match document {
            Document::Server(keys) | Document::Worker(keys) => all.overlaid(keys.clone()),
            Document::Connector(_) => all,
        })
    };
    let plain = Places::new(keys(documents), dot_env.clone(), environment);
    for profile in plain.profiles() {
        for file in &named {
            let stem = file.file_stem().unwrap_or_default().to_string_lossy();
            let beside = file.with_file_name(format!("{stem}-{profile}.properties"));
            if !files.contains(&beside) && beside.is_file() {
                documents.push(Document::of_profile(&beside, &bytes(&beside)?, profile)?);
            }
        }
    }
    Ok(Places::new(keys(documents), dot_env, environment))
}

/// The `.env` of Debezium Server's working directory, which holds the folder `config`; else that of walrelay's.
fn dot_env(files: &[PathBuf]) -> Option<PathBuf> {
    let folders = files.iter().filter_map(|file| file.parent());
    let above = folders.filter(|folder| folder.ends_with("config")).filter_map(Path::parent);
    above.chain(std::iter::once(Path::new(""))).map(|folder| folder.join(".env")).find(|file| file.is_file())
}

fn bytes(file: &Path) -> Result<Vec<u8>, DebeziumError> {
    fs::read(file).map_err(|source| DebeziumError::Unreadable { file: file.to_owned(), source })
}

impl Translation {
    /// A setting's values, and where they come from.
    pub fn setting(&self, name: &str) -> Option<(&Vec<String>, &Origin)> {
        self.settings.get(name).map(|setting| (&setting.values, &setting.origin))
    }

    /// Returns librdkafka's properties likewise, with their names.
    pub fn properties(&self) -> impl Iterator<Item = (&String, &Vec<String>, &Origin)> {
        self.properties.iter().map(|(name, setting)| (name, &setting.values, &setting.origin))
    }

    /// Returns the conversion of keys, values and headers; with `accept` even if records differ.
    pub fn connect(&self, accept: bool) -> Connect {
        Connect { alike_envelopes: self.connect.alike_envelopes && !accept, ..self.connect.clone() }
    }

    /// Returns the tables that are captured.
    pub fn tables(&self) -> &TablePatterns {
        &self.tables
    }

    /// Whether walrelay may run with the configuration; with `accept` even if records differ.
    ///
    /// # Errors
    /// A note says that it may not.
    pub fn verdict(&self, accept: bool) -> Result<(), DebeziumError> {
        let least = if accept { Severity::Refused } else { Severity::Differs };
        let standing = self.notes.iter().filter(|note| note.severity >= least).collect::<Vec<_>>();
        if standing.is_empty() {
            return Ok(());
        }
        let acceptable = standing.iter().all(|note| note.severity == Severity::Differs);
        Err(DebeziumError::Problems { problems: standing.into_iter().map(ToString::to_string).collect(), acceptable })
    }

    /// Returns a line to log for each note that matters.
    pub fn warnings(&self) -> Vec<String> {
        let matters = |note: &&Note| note.severity > Severity::NotNeeded;
        self.notes.iter().filter(matters).map(|note| format!("--from-debezium: {note}")).collect()
    }
}

impl Note {
    /// The longest text, in characters: a longer one quotes a long value.
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
