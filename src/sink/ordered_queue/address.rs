//! Parses what follows a scheme in an address, `user:password@host:port,host:port/path`, and properties that several destinations have.
//!
//! It contacts nobody. No error here shows a password.

use super::socket::Tls;
use crate::secret::Secret;
use crate::setting_text::units::duration;
use crate::setting_text::{Given, Origin, SettingError, percent_decoded};
use crate::sink::destination::GivenSettings;
use std::path::PathBuf;
use std::time::Duration;

/// The least [`timeout`]: with less, walrelay would leave a server that is only busy.
const LEAST_TIMEOUT: Duration = Duration::from_secs(1);
/// The largest [`timeout`]: with more, walrelay would not notice that a server is gone.
const MOST_TIMEOUT: Duration = Duration::from_hours(1);

/// A server's host and port.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Server {
    /// A name or an IP address.
    pub host: String,
    /// The TCP port.
    pub port: u16,
}

impl Server {
    /// `host:port`, for people.
    pub fn address(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// `host:port` of each, for people.
    pub fn addresses(servers: &[Self]) -> String {
        servers.iter().map(Self::address).collect::<Vec<_>>().join(",")
    }
}

/// An address without its scheme.
pub struct Address {
    /// The user, percent-decoded.
    pub user: Option<String>,
    /// The password, percent-decoded.
    pub password: Option<String>,
    /// At least one server.
    pub servers: Vec<Server>,
    /// The text behind the first `/`, percent-decoded. `None`: there is none, or it is empty.
    pub path: Option<String>,
}

impl Address {
    /// Parses an address. `example`: a valid one, for messages.
    ///
    /// # Errors
    /// The text is no address.
    pub fn of(given: &Given, default_port: u16, example: &str) -> Result<Self, SettingError> {
        // Messages show only what stands behind the last `@`: before it may be a password.
        let (login, behind) = match given.text.rsplit_once('@') {
            Some((login, behind)) => (Some(login), behind),
            None => (None, given.text.as_str()),
        };
        let wrong = || Given { text: behind.to_owned(), origin: given.origin.clone() }.invalid(example, None);
        let (servers, path) = match behind.split_once('/') {
            Some((servers, path)) => (servers, Some(path)),
            None => (behind, None),
        };
        let servers: Option<Vec<_>> = servers.split(',').map(|text| server(text, default_port)).collect();
        let (user, password) = login.map_or((None, None), |login| match login.split_once(':') {
            Some((user, password)) => (Some(user), Some(password)),
            None => (Some(login), None),
        });
        let decoded = |text: Option<&str>| {
            let text = text.filter(|text| !text.is_empty());
            text.map(|text| percent_decoded(text).ok_or_else(wrong)).transpose()
        };
        Ok(Self {
            user: decoded(user)?,
            password: decoded(password)?,
            servers: servers.ok_or_else(wrong)?,
            path: decoded(path)?,
        })
    }
}

fn server(text: &str, default_port: u16) -> Option<Server> {
    let (host, port) = match text.rsplit_once(':') {
        // A colon before `]` belongs to an IPv6 address.
        Some((host, port)) if !port.contains(']') => (host, port.parse().ok()?),
        Some(_) | None => (text, default_port),
    };
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    (!host.is_empty() && !host.contains(' ')).then(|| Server { host: host.to_owned(), port })
}

/// Reads the properties `tls.ca`, `tls.certificate` and `tls.key`.
///
/// # Errors
/// `tls.certificate` or `tls.key` is given without the other.
pub fn tls(asked: &GivenSettings<'_>) -> Result<Tls, SettingError> {
    let file = |given: &Given| PathBuf::from(&given.text);
    let client = match (asked.property("tls.certificate"), asked.property("tls.key")) {
        (Some(certificate), Some(key)) => Some((file(certificate), file(key))),
        (None, None) => None,
        (Some(certificate), None) => return Err(certificate.needs("tls.key")),
        (None, Some(key)) => return Err(key.needs("tls.certificate")),
    };
    Ok(Tls { authorities: asked.property("tls.ca").map(file), client })
}

/// The secret that a setting gives. A secret in a file is read again each time.
pub fn secret(given: &Given) -> Secret {
    match &given.origin {
        Origin::FlagFile(from) => Secret::File(from.file.clone()),
        Origin::Flag(_) | Origin::Variable(_) | Origin::Key(_) | Origin::Translated(_) => {
            Secret::Text(given.text.clone().into())
        }
    }
}

/// Reads how long a server may be silent while answers are due.
///
/// # Errors
/// The text is no time from a second to an hour.
pub fn timeout(given: &Given) -> Result<Duration, SettingError> {
    time(given, "a time from 1s to 1h", |time| (LEAST_TIMEOUT..=MOST_TIMEOUT).contains(time))
}

/// Reads a time that `fits`. `expected`: the times that do, for messages.
///
/// # Errors
/// The text is no such time.
pub fn time(given: &Given, expected: &str, fits: impl Fn(&Duration) -> bool) -> Result<Duration, SettingError> {
    match duration(&given.text) {
        Ok(time) if fits(&time) => Ok(time),
        Ok(_) => Err(given.invalid(expected, None)),
        Err(error) => Err(given.invalid(expected, error.suggestion)),
    }
}

/// Reads `true` or `false`.
///
/// # Errors
/// The text is neither.
pub fn switch(given: &Given) -> Result<bool, SettingError> {
    match given.text.as_str() {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(given.invalid("true or false", None)),
    }
}
