//! [`Keys`]: keys with their values and origins. A translated key is removed.

use std::collections::BTreeMap;

use crate::setting_text::Origin;

/// A key's value and its origin. It has no `Debug`, since the value may be a secret.
#[derive(Clone)]
pub(super) struct KeyValue {
    pub(super) text: String,
    pub(super) origin: Origin,
}

impl KeyValue {
    /// `true` or `false` in any case. `None`: another text, which Java takes for false.
    pub(super) fn boolean(&self) -> Option<bool> {
        match self.text.trim().to_ascii_lowercase().as_str() {
            "true" => Some(true),
            "false" => Some(false),
            _ => None,
        }
    }
}

/// A set of keys. The translation removes each key that it handles, so the keys that are left have no counterpart.
#[derive(Clone, Default)]
pub(super) struct Keys(BTreeMap<String, KeyValue>);

impl Keys {
    /// Inserts a key. If it is there already, the new value replaces the old one.
    pub(super) fn insert(&mut self, key: String, value: KeyValue) {
        self.0.insert(key, value);
    }

    pub(super) fn get(&self, key: &str) -> Option<&KeyValue> {
        self.0.get(key)
    }

    pub(super) fn take(&mut self, key: &str) -> Option<KeyValue> {
        self.0.remove(key)
    }

    /// Removes a key. An empty value counts as not given.
    pub(super) fn take_filled(&mut self, key: &str) -> Option<KeyValue> {
        self.take(key).filter(|value| !value.text.trim().is_empty())
    }

    /// Removes all keys that begin with `prefix`. The result has them without it.
    pub(super) fn take_below(&mut self, prefix: &str) -> Self {
        let below = self.0.keys().filter(|key| key.starts_with(prefix)).cloned().collect::<Vec<_>>();
        let mut taken = Self::default();
        for key in below {
            if let (Some(value), Some(rest)) = (self.0.remove(&key), key.strip_prefix(prefix)) {
                taken.insert(rest.to_owned(), value);
            }
        }
        taken
    }

    /// Merges `over` into these keys. If both have a key, the value of `over` counts.
    pub(super) fn overlaid(mut self, over: Self) -> Self {
        self.0.extend(over.0);
        self
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &KeyValue)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value))
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = (&str, &mut KeyValue)> {
        self.0.iter_mut().map(|(key, value)| (key.as_str(), value))
    }
}
