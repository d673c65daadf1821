//! Which registry knows the schemas of values.
//!
//! In: the layers. Out: its address, who asks, how subjects are named. Contacts nobody.

use super::read::SettingsReader;
use super::table::Definition;
use super::table::run::{
    SCHEMA_REGISTRY, SCHEMA_REGISTRY_CA, SCHEMA_REGISTRY_PASSWORD, SCHEMA_REGISTRY_USER, SCHEMA_SUBJECT,
};
use crate::secret::Secret;
use crate::setting_text::{Given, Origin, SettingError, names_a_file};
use crate::sink::registry::{Credentials, Registry, Subjects};

impl SettingsReader<'_> {
    /// Reads it; what belongs to it is refused without it.
    pub(super) fn registry(&mut self) -> Result<Option<Registry>, SettingError> {
        let one = |setting: &Definition| self.layers.one(setting);
        let url = one(&SCHEMA_REGISTRY)?;
        let subject = one(&SCHEMA_SUBJECT)?;
        let user = one(&SCHEMA_REGISTRY_USER)?;
        let password = one(&SCHEMA_REGISTRY_PASSWORD)?;
        let ca = one(&SCHEMA_REGISTRY_CA)?;
        let Some(url) = url else {
            return match [subject, user, password, ca].into_iter().flatten().next() {
                Some(given) => Err(given.needs("--schema-registry")),
                None => Ok(None),
            };
        };
        let address = url.text.trim().trim_end_matches('/');
        if !Registry::is_address(address) {
            let expected = "http://HOST:PORT or https://HOST/PATH; user and password go to --schema-registry-user and --schema-registry-password";
            return Err(Given { text: "…".to_owned(), origin: url.origin }.invalid(expected, None));
        }
        let subjects = match subject {
            Some(given) => Subjects::parse(&given.text).map_err(|error| given.invalid(error.to_string(), None))?,
            None => Subjects::default(),
        };
        let credentials = match (user, password) {
            (None, None) => None,
            (None, Some(password)) => return Err(password.needs("--schema-registry-user")),
            (Some(user), password) => {
                self.warnings.extend(password.as_ref().and_then(visible));
                let password = Secret::of_value(password.as_ref().map_or("", |given| &given.text));
                Some(Credentials { user: user.text, password })
            }
        };
        Ok(Some(Registry { url: address.to_owned(), credentials, ca: ca.map(|given| given.text.into()), subjects }))
    }
}

/// A password that everybody on the machine can see.
fn visible(password: &Given) -> Option<String> {
    let is_here = matches!(password.origin, Origin::Flag(_)) && !names_a_file(&password.text);
    is_here.then(|| {
        format!("{}: it shows in ps: use @FILE or the variable WALRELAY_SCHEMA_REGISTRY_PASSWORD", password.origin)
    })
}
