//! Settings as a destination gets them, for tests of how it reads them.

use super::{Given, Origin};

/// What stands behind `--to`.
pub fn given(text: &str) -> Given {
    Given { text: text.to_owned(), origin: Origin::Flag("--to".to_owned()) }
}

/// What `-X` gives, by name.
pub struct Properties(Vec<(String, Given)>);

impl Properties {
    /// Of names and texts.
    pub fn of(properties: &[(&str, &str)]) -> Self {
        Self(properties.iter().map(|(name, text)| ((*name).to_owned(), given(text))).collect())
    }

    /// The one of this name.
    pub fn get(&self, name: &str) -> Option<&Given> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, given)| given)
    }
}
