//! [`Keys`]: keys with their values and origins. A translated key is removed.

use std::collections::BTreeMap;

use crate::setting_text::Given;

/// Whether the value is this word, in any case. Java takes each text but `true` for false.
pub(super) fn says(value: &Given, word: &str) -> bool {
    value.text.trim().eq_ignore_ascii_case(word)
}

/// A set of keys. The translation removes each key that it handles, so the keys that are left have no counterpart.
#[derive(Clone, Default)]
pub(super) struct Keys(BTreeMap<String, Given>);

impl Keys {
    /// Inserts a key. If it is there already, the new value replaces the old one.
    pub(super) fn insert(&mut self, key: String, value: Given) {
        self.0.insert(key, value);
    }

    pub(super) fn get(&self, key: &str) -> Option<&Given> {
        self.0.get(key)
    }

    pub(super) fn take(&mut self, key: &str) -> Option<Given> {
        self.0.remove(key)
    }

    /// Removes a key. An empty value counts as not given.
    pub(super) fn take_filled(&mut self, key: &str) -> Option<Given> {
        self.take(key).filter(|value| !value.text.trim().is_empty())
    }

    /// Removes all keys that begin with `prefix`. The result has them without it.
    pub(super) fn take_below(&mut self, prefix: &str) -> Self {
        let below = self.0.extract_if(.., |key, _| key.starts_with(prefix));
        Self(below.map(|(mut key, value)| (key.split_off(prefix.len()), value)).collect())
    }

    /// Merges `over` into these keys. If both have a key, the value of `over` counts.
    pub(super) fn overlaid(mut self, over: Self) -> Self {
        self.0.extend(over.0);
        self
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &Given)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value))
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = (&str, &mut Given)> {
        self.0.iter_mut().map(|(key, value)| (key.as_str(), value))
    }
}
