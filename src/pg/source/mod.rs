//! [`Source`]: the server, database, user and TLS settings of the connection to Postgres.
//!
//! In: a connection URI or keyword string as `psql` takes it, and the [`Environment`] (`PG*` variables, `~/.pgpass`,
//! `~/.pg_service.conf`, certificates in `~/.postgresql`). Out: a [`Source`] with all defaults. This folder makes no connection, and
//! resolves no host name.
//!
//! ```text
//!  URI or keywords ──┐
//!  service file ─────┼─► Parameters (known keywords, the first one wins) ──► Source
//!  PG* variables ────┘                                                      ▲ password file, certificates' files
//! ```
//!
//! Files and variables may change while the program runs. So each new connection calls [`Source::renewed`], which reads them again.
//!
//! Invariant: no password shows in `Debug`, `Display` or an error.
//! Specification: PostgreSQL manual, sections 32.1 and 32.15 to 32.19.

mod conninfo;
mod environment;
mod error;
mod keywords;
mod passfile;
mod resolve;
mod service;
mod uri;

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use secrecy::{ExposeSecret, SecretString};

use crate::secret::Secret;

pub use environment::Environment;
pub use error::{SourceError, SourcePart, SourceProblem};

/// The servers, the database, and the user.
#[derive(Debug, Clone)]
pub struct Source {
    /// The hosts, in the order in which they are tried. There is at least one.
    pub hosts: Vec<Host>,
    /// The user.
    pub user: String,
    /// The database.
    pub dbname: String,
    /// Whether to use TLS. A Unix socket never has TLS.
    pub sslmode: SslMode,
    /// The certificates against which the server's certificate is verified.
    pub sslrootcert: RootCert,
    /// The client's certificate and its key, shown when the server asks.
    pub client_certificate: Option<ClientCertificate>,
    /// Whether SCRAM must bind to the TLS connection.
    pub channel_binding: ChannelBinding,
    /// How long one host may take to answer. `None`: not given. Zero: no limit.
    pub connect_timeout: Option<Duration>,
    /// Which servers are accepted.
    pub target_session_attrs: TargetSessionAttrs,
    /// Command-line options for the session (`-c name=value`).
    pub options: Option<String>,
    /// The session's `application_name`. `None`: not given.
    pub application_name: Option<String>,
    /// TCP keepalives.
    pub keepalives: Keepalives,
    /// How long sent data may stay unacknowledged by TCP. `None`: the operating system decides.
    pub tcp_user_timeout: Option<Duration>,
    password: Option<SecretString>,
    /// The password file's entry for each of `hosts`.
    file_passwords: Vec<Option<SecretString>>,
    origin: SourceOrigin,
}

/// Where a source's settings come from, to read them again.
#[derive(Clone, Default)]
struct SourceOrigin {
    /// The connection string.
    text: Option<Secret>,
    /// The setting for the password alone. It takes precedence over all other passwords.
    password: Option<PasswordSetting>,
    environment: Environment,
}

impl fmt::Debug for SourceOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SourceOrigin")
            .field("text", &self.text)
            .field("password", &self.password)
            .finish_non_exhaustive()
    }
}

/// The setting for the password alone.
#[derive(Debug, Clone)]
pub struct PasswordSetting {
    /// Its flag, for messages.
    pub name: &'static str,
    /// The source of the password.
    pub secret: Secret,
}

/// One server's address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Host {
    /// A TCP connection.
    Tcp {
        /// A host name or an IP address. The server's certificate has to have it.
        name: String,
        /// 1 to 65535.
        port: u16,
        /// The address to connect to, if `name` must not be resolved (`hostaddr`).
        address: Option<IpAddr>,
    },
    /// A Unix socket, `<dir>/.s.PGSQL.<port>`.
    Unix {
        /// The socket's directory.
        dir: PathBuf,
        /// The number in the socket's name.
        port: u16,
    },
}

/// Whether to use TLS. [`Source::verification`] says which checks it makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SslMode {
    /// No TLS.
    Disable,
    /// TLS if the server has it, else no TLS. `allow` means the same here.
    Prefer,
    /// TLS is required.
    Require,
    /// TLS is required, with a certificate of a trusted authority.
    VerifyCa,
    /// TLS is required, with a certificate of a trusted authority for the host's name.
    VerifyFull,
}

impl SslMode {
    /// libpq's name for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Disable => "disable",
            Self::Prefer => "prefer",
            Self::Require => "require",
            Self::VerifyCa => "verify-ca",
            Self::VerifyFull => "verify-full",
        }
    }
}

/// The certificates against which the server's certificate is verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RootCert {
    /// None. No file was named, and `~/.postgresql/root.crt` does not exist.
    None,
    /// A file of certificates in PEM. It existed when settings were read.
    File(PathBuf),
    /// The operating system's trusted certificates.
    System,
}

/// The checks of the server's certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verification {
    /// No check.
    None,
    /// A trusted authority must have signed it.
    Chain,
    /// A trusted authority must have signed it, and it must have the host's name.
    ChainAndName,
}

/// A client certificate. Both files existed when settings were read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientCertificate {
    /// The certificate (`sslcert`), PEM.
    pub certificate: PathBuf,
    /// Its key (`sslkey`), PEM, not encrypted.
    pub key: PathBuf,
}

/// Whether SCRAM must bind to the TLS connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChannelBinding {
    /// It must not bind.
    Disable,
    /// It binds if the server offers that.
    Prefer,
    /// It must bind, or the login fails.
    Require,
}

/// Which servers are accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TargetSessionAttrs {
    /// Any server.
    Any,
    /// Sessions may write.
    ReadWrite,
    /// Sessions may not write.
    ReadOnly,
    /// The server is not in recovery.
    Primary,
    /// The server is in recovery.
    Standby,
    /// A server in recovery if there is one, else any server.
    PreferStandby,
}

/// Writes the word that a user types.
impl fmt::Display for TargetSessionAttrs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = resolve::SESSION_ATTRS.iter().find(|(_, attrs)| attrs == self);
        f.write_str(word.map_or("any", |(word, _)| *word))
    }
}

/// TCP keepalives. `None`: the caller's default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keepalives {
    /// Whether there are keepalives.
    pub enabled: bool,
    /// The silence before the first probe.
    pub idle: Option<Duration>,
    /// The time between probes.
    pub interval: Option<Duration>,
    /// How many probes may stay unanswered.
    pub count: Option<u32>,
}

/// A source, and remarks about its settings.
#[derive(Debug, Clone)]
pub struct Resolved {
    /// The source.
    pub source: Source,
    /// Warnings for the operator, such as that a password file is not used.
    pub warnings: Vec<String>,
    /// Whether the connection string itself has the password.
    pub password_in_text: bool,
}

impl Source {
    /// Parses a connection string (`None`: only the environment counts), and fills in what it leaves out.
    ///
    /// # Errors
    /// The syntax is wrong, a keyword is unknown or not supported, a value is invalid, or a named file does not exist.
    pub fn resolve(text: Option<&str>, environment: &Environment) -> Result<Resolved, SourceError> {
        Self::resolve_from(text.map(|text| Secret::Text(text.into())), None, environment)
    }

    /// As [`Source::resolve`], but the connection string may be in a file, and the password may be in a file or come from a program.
    /// The password is not read yet, since each connection reads it.
    ///
    /// # Errors
    /// As [`Source::resolve`]. Or the file cannot be read.
    pub fn resolve_from(
        text: Option<Secret>,
        password: Option<PasswordSetting>,
        environment: &Environment,
    ) -> Result<Resolved, SourceError> {
        let read = text
            .as_ref()
            .map(Secret::read)
            .transpose()
            .map_err(|error| SourceProblem::from(error).at(SourcePart::Text))?;
        let mut resolved = resolve::resolve(read.as_ref().map(ExposeSecret::expose_secret), environment)?;
        // A connection string from a file does not show in a list of processes.
        resolved.password_in_text &= matches!(text, Some(Secret::Text(_)));
        resolved.source.origin = SourceOrigin { text, password, environment: environment.clone() };
        Ok(resolved)
    }

    /// Reads the source again: files, programs, and the files that these name.
    ///
    /// # Errors
    /// As [`Source::resolve_from`]. Or the password cannot be read.
    pub fn renewed(&self) -> Result<Self, SourceError> {
        let SourceOrigin { text, password, environment } = self.origin.clone();
        let given = password.as_ref().map(|PasswordSetting { name, secret }| {
            secret.read().map_err(|error| SourceProblem::from(error).at(SourcePart::Setting(name)))
        });
        let given = given.transpose()?;
        let mut source = Self::resolve_from(text, password, &environment)?.source;
        source.application_name.clone_from(&self.application_name);
        source.password = given.or(source.password);
        Ok(source)
    }

    /// The server has refused the password, so a stored copy must not be used again. Returns whether there was such a copy: then
    /// another attempt may get a new password.
    pub fn password_refused(&self) -> bool {
        self.origin.password.as_ref().is_some_and(|setting| setting.secret.refused())
    }

    /// The password for one of `hosts`: the given one, or else that of the password file.
    pub fn password_for(&self, host: &Host) -> Option<&SecretString> {
        let from_file =
            || self.hosts.iter().position(|h| h == host).and_then(|at| self.file_passwords.get(at)?.as_ref());
        self.password.as_ref().or_else(from_file)
    }

    /// Returns the checks of the server's certificate.
    ///
    /// As in libpq, `prefer` and `require` with a file of root certificates check the chain as `verify-ca` does: a user with such a
    /// file wants it to be used. (If that check fails, `prefer` connects without TLS.)
    pub fn verification(&self) -> Verification {
        match (self.sslmode, &self.sslrootcert) {
            (SslMode::VerifyFull, _) => Verification::ChainAndName,
            (SslMode::VerifyCa, _) | (SslMode::Prefer | SslMode::Require, RootCert::File(_)) => Verification::Chain,
            (SslMode::Disable | SslMode::Prefer | SslMode::Require, _) => Verification::None,
        }
    }
}

impl Source {
    /// The hosts and the database, without the user: `db1:5432,db2:5432/shop`.
    pub fn without_user(&self) -> String {
        let hosts = self.hosts.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        format!("{hosts}/{}", self.dbname)
    }
}

impl fmt::Display for Source {
    /// Writes `shop as app at db1:5432, db2:5432`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hosts = self.hosts.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        write!(f, "{} as {} at {hosts}", self.dbname, self.user)
    }
}

impl fmt::Display for Host {
    /// Writes host and port, or the socket's path.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { name, port, .. } if name.contains(':') => write!(f, "[{name}]:{port}"),
            Self::Tcp { name, port, .. } => write!(f, "{name}:{port}"),
            Self::Unix { dir, port } => write!(f, "{}/.s.PGSQL.{port}", dir.display()),
        }
    }
}

#[cfg(test)]
mod tests;
