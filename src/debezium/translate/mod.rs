//! Translates keys into settings.
//!
//! In: a [`Configuration`]. Out: a [`Translation`]. Each file of this folder removes the keys that it handles. The keys that are left
//! get a note: known keys without a counterpart by the table in `without_counterpart`, and others as unknown.

mod converters;
mod database;
mod modes;
mod producer;
mod rest;
mod router;
mod tls;
mod without_counterpart;

use std::collections::BTreeMap;

use super::document::{Configuration, Platform};
use super::expressions::ExpressionContext;
use super::{Note, Setting, Severity, Translation};
use crate::outbox::TablePatterns;
use crate::outbox::connect::Connect;
use crate::pg::source::Environment;
use crate::setting_text::{Given, Origin, is_secret};

/// Translates a whole configuration.
pub(super) fn translate(configuration: Configuration, environment: &Environment) -> Translation {
    let mut translator = Translator {
        out: Translation {
            settings: BTreeMap::new(),
            properties: BTreeMap::new(),
            connect: Connect::default(),
            tables: TablePatterns::default(),
            notes: Vec::new(),
            platform: configuration.platform,
        },
        configuration,
    };
    translator.resolve(environment);
    translator.database();
    translator.slot();
    translator.tables();
    translator.router();
    translator.converters();
    translator.modes();
    translator.producer();
    translator.rest();
    translator.out.notes.sort_by_key(|note| std::cmp::Reverse(note.severity));
    translator.out
}

/// The note on a key whose value has no effect.
const NO_EFFECT: &str = "it asks for nothing";

/// The last part of the name of a Java class.
fn class_name(class: &str) -> &str {
    class.trim().rsplit('.').next().unwrap_or_default()
}

/// A configuration that is being translated.
struct Translator {
    configuration: Configuration,
    out: Translation,
}

impl Translator {
    /// Replaces every `${…}`. If a key's value cannot be resolved, the key is removed and noted.
    fn resolve(&mut self, environment: &Environment) {
        let asks = self.configuration.connector.get("config.providers").is_some();
        let Configuration { platform, connector, producer, worker, server, sources, .. } = &mut self.configuration;
        let context = ExpressionContext::new(*platform, environment, sources, &[&*worker, &*connector], asks);
        let mut notes = Vec::new();
        for keys in [connector, producer, worker, server] {
            let mut failed = Vec::new();
            for (key, value) in keys.values_mut() {
                match context.resolve(&value.text) {
                    Ok(text) => value.text = text,
                    Err(error) => failed.push((key.to_owned(), value.origin.to_string(), error.to_string())),
                }
            }
            for (key, origin, text) in failed {
                keys.take(&key);
                notes.push(Note::new(Severity::Refused, origin, &text));
            }
        }
        self.out.notes.extend(notes);
    }

    fn note(&mut self, severity: Severity, origin: &Origin, text: impl Into<String>) {
        let text: String = text.into();
        self.out.notes.push(Note::new(severity, origin.to_string(), &text));
    }

    /// Makes a note on a key, if it is set.
    fn note_if_set<'v>(&mut self, severity: Severity, value: impl Into<Option<&'v Given>>, text: impl Into<String>) {
        if let Some(value) = value.into() {
            self.note(severity, &value.origin, text);
        }
    }

    fn not_needed<'v>(&mut self, value: impl Into<Option<&'v Given>>, text: impl Into<String>) {
        self.note_if_set(Severity::NotNeeded, value, text);
    }

    fn warn<'v>(&mut self, value: impl Into<Option<&'v Given>>, text: impl Into<String>) {
        self.note_if_set(Severity::Warning, value, text);
    }

    fn differs<'v>(&mut self, value: impl Into<Option<&'v Given>>, text: impl Into<String>) {
        self.note_if_set(Severity::Differs, value, text);
    }

    fn refuse<'v>(&mut self, value: impl Into<Option<&'v Given>>, text: impl Into<String>) {
        self.note_if_set(Severity::Refused, value, text);
    }

    /// Refuses the configuration since a key is missing.
    fn refuse_missing(&mut self, key: &str, text: &str) {
        self.out.notes.push(Note::new(Severity::Refused, key.to_owned(), text));
    }

    /// Sets a setting that has one value, which is no secret.
    fn set(&mut self, name: &'static str, text: impl Into<String>, origin: &Origin) {
        let text = text.into();
        let shown = Some(vec![text.clone()]);
        let setting = Setting { values: vec![text], is_list: false, shown, origin: origin.clone() };
        self.out.settings.insert(name, setting);
    }

    fn set_list(&mut self, name: &'static str, values: Vec<String>, origin: &Origin) {
        if !values.is_empty() {
            let shown = Some(values.clone());
            self.out.settings.insert(name, Setting { values, is_list: true, shown, origin: origin.clone() });
        }
    }

    /// Sets a property of librdkafka. If two keys set it, the later one counts.
    fn property(&mut self, name: &str, text: impl Into<String>, origin: &Origin) {
        let text = text.into();
        let shown = (!is_secret(name)).then(|| vec![text.clone()]);
        let setting = Setting { values: vec![text], is_list: false, shown, origin: origin.clone() };
        let earlier = self.out.properties.insert(name.to_owned(), setting);
        if let Some(earlier) = earlier.filter(|earlier| earlier.origin != *origin) {
            self.note(Severity::NotNeeded, &earlier.origin, format!("{origin} gives {name}, and counts more"));
        }
    }

    /// Sets a property of librdkafka to the value of a key, if the key is set.
    fn property_if_set(&mut self, name: &str, value: Option<Given>) {
        if let Some(Given { text, origin }) = value {
            self.property(name, text, &origin);
        }
    }

    /// Reads a value that has to be one of `words`, in upper or lower case. Another value is refused.
    fn one_of<T: Copy>(&mut self, value: &Given, words: &[(&str, T)]) -> Option<T> {
        let text = value.text.trim();
        let found = words.iter().find(|(word, _)| word.eq_ignore_ascii_case(text)).map(|(_, meant)| *meant);
        if found.is_none() {
            let words = words.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(", ");
            self.refuse(value, format!("\"{text}\" is none of {words}"));
        }
        found
    }

    fn is_on(&mut self, value: Option<Given>) -> bool {
        value.is_some_and(|value| self.one_of(&value, &[("true", true), ("false", false)]).unwrap_or(false))
    }

    fn is_server(&self) -> bool {
        self.configuration.platform == Platform::Server
    }
}
