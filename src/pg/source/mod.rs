//! Where the rows come from: a server, a database, a user, and how much of TLS to insist on.
//!
//! In: a connection URI or keyword string as `psql` takes it, and the [`Environment`] (`PG*` variables, `~/.pgpass`,
//! `~/.pg_service.conf`, certificates in `~/.postgresql`). Out: a [`Source`] with every default filled in.
//! It connects to nothing, and looks no host up.
//!
//! ```text
//!  URI or keywords ──┐
//!  service file ─────┼─► Parameters (known keywords, first place wins) ──► Source
//!  PG* variables ────┘                                                      ▲ password file, certificates' files
//! ```
//!
//! All of it may change while the program runs: [`Source::renewed`] reads it again, and each connection asks for that.
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

use crate::secret::{Secret, SecretError};

pub use environment::Environment;
pub use error::{SourceError, SourcePlace, SourceProblem};

/// A server, a database on it, and whom to log in as.
#[derive(Debug, Clone)]
pub struct Source {
    /// The hosts to try, in this order; at least one.
    pub hosts: Vec<Host>,
    /// Whom to log in as.
    pub user: String,
    /// The database.
    pub dbname: String,
    /// Whether to use TLS. Unix sockets never do.
    pub sslmode: SslMode,
    /// The certificates against which the server's certificate is verified.
    pub sslrootcert: RootCert,
    /// The client's certificate and its key, shown when the server asks.
    pub client_certificate: Option<ClientCertificate>,
    /// Whether SCRAM must bind to the TLS connection.
    pub channel_binding: ChannelBinding,
    /// How long one host may take to answer; `None`: not given, zero: no limit.
    pub connect_timeout: Option<Duration>,
    /// Which servers are accepted.
    pub target_session_attrs: TargetSessionAttrs,
    /// Command-line options for the session (`-c name=value`).
    pub options: Option<String>,
    /// The session's `application_name`; `None` if it is not given.
    pub application_name: Option<String>,
    /// TCP keepalives.
    pub keepalives: Keepalives,
    /// How long sent data may stay unacknowledged by the peer's TCP; `None`: the operating system's default.
    pub tcp_user_timeout: Option<Duration>,
    password: Option<SecretString>,
    /// From the password file, for each of `hosts`.
    file_passwords: Vec<Option<SecretString>>,
    origin: SourceOrigin,
}

/// Where a source's settings stand, to be read again.
#[derive(Clone, Default)]
struct SourceOrigin {
    /// The connection string.
    text: Option<Secret>,
    /// The password setting, which takes precedence over any password in the connection string and elsewhere.
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

/// A setting of its own for the password.
#[derive(Debug, Clone)]
pub struct PasswordSetting {
    /// Its flag, for messages.
    pub name: &'static str,
    /// Where the password stands.
    pub secret: Secret,
}

/// One server's address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Host {
    /// Over TCP.
    Tcp {
        /// A host's name or IP address: what its certificate is to show.
        name: String,
        /// 1 to 65535.
        port: u16,
        /// Where to connect without looking `name` up (`hostaddr`).
        address: Option<IpAddr>,
    },
    /// Over a Unix socket, `<dir>/.s.PGSQL.<port>`.
    Unix {
        /// The socket's directory.
        dir: PathBuf,
        /// The number in the socket's name.
        port: u16,
    },
}

/// How much of TLS to insist on; see [`Source::verification`] for what is verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SslMode {
    /// None.
    Disable,
    /// TLS if the server has it, else none. `allow` is taken for this: both are content with either.
    Prefer,
    /// TLS.
    Require,
    /// TLS, and a certificate of a trusted authority.
    VerifyCa,
    /// TLS, and a certificate of a trusted authority in the host's name.
    VerifyFull,
}

impl SslMode {
    /// libpq's name of it.
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
    /// Nothing: no file was named, and `~/.postgresql/root.crt` does not exist.
    None,
    /// A file of certificates in PEM, which existed when settings were read.
    File(PathBuf),
    /// The operating system's trusted roots.
    System,
}

/// The checks of the server's certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verification {
    /// Nothing.
    None,
    /// That a trusted authority signed it.
    Chain,
    /// That, and that it is the host's.
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
    /// It must not.
    Disable,
    /// It does where the server offers it.
    Prefer,
    /// It must, or the login fails.
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
    /// Not in recovery.
    Primary,
    /// In recovery.
    Standby,
    /// In recovery if there is one, else any.
    PreferStandby,
}

/// The word that a user types for it.
impl fmt::Display for TargetSessionAttrs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = resolve::SESSION_ATTRS.iter().find(|(_, attrs)| attrs == self);
        f.write_str(word.map_or("any", |(word, _)| *word))
    }
}

/// TCP keepalives; `None` is the caller's default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keepalives {
    /// Whether there are any.
    pub enabled: bool,
    /// Silence before the first.
    pub idle: Option<Duration>,
    /// Time between them.
    pub interval: Option<Duration>,
    /// How many may stay unanswered.
    pub count: Option<u32>,
}

/// A source, and what came up on the way to it.
#[derive(Debug, Clone)]
pub struct Resolved {
    /// The source.
    pub source: Source,
    /// Warnings for the operator: a password file that is not used.
    pub warnings: Vec<String>,
    /// Whether the connection string itself holds the password.
    pub password_in_text: bool,
}

impl Source {
    /// Reads a connection string (`None`: all is left to the environment) and fills in what it leaves out.
    ///
    /// # Errors
    /// Syntax, an unknown or unsupported keyword, a value that is not valid, a named file that does not exist.
    pub fn resolve(text: Option<&str>, environment: &Environment) -> Result<Resolved, SourceError> {
        Self::resolve_from(text.map(|text| Secret::Text(text.into())), None, environment)
    }

    /// As [`Source::resolve`], with a connection string that may stand in a file, and a password that may stand anywhere. That one is
    /// not read yet: to run a program is a connection's affair.
    ///
    /// # Errors
    /// As there; the file cannot be read.
    pub fn resolve_from(
        text: Option<Secret>,
        password: Option<PasswordSetting>,
        environment: &Environment,
    ) -> Result<Resolved, SourceError> {
        let read =
            text.as_ref().map(|text| text.read().map_err(|error| unreadable(SourcePlace::Text, error))).transpose()?;
        let mut resolved = resolve::resolve(read.as_ref().map(ExposeSecret::expose_secret), environment)?;
        // A connection string out of a file does not show in a list of processes.
        resolved.password_in_text &= matches!(text, Some(Secret::Text(_)));
        resolved.source.origin = SourceOrigin { text, password, environment: environment.clone() };
        Ok(resolved)
    }

    /// Reads the source again: files, programs, and the files that these name.
    ///
    /// # Errors
    /// As [`Source::resolve_from`]; the password is not to be had.
    pub fn renewed(&self) -> Result<Self, SourceError> {
        let SourceOrigin { text, password, environment } = self.origin.clone();
        let given = password.as_ref().map(|PasswordSetting { name, secret }| {
            secret.read().map_err(|error| unreadable(SourcePlace::Setting(name), error))
        });
        let given = given.transpose()?;
        let mut source = Self::resolve_from(text, password, &environment)?.source;
        source.application_name.clone_from(&self.application_name);
        source.password = given.or(source.password);
        Ok(source)
    }

    /// The server does not take the password: it is not to be used again where it was kept for a moment. Whether it was, so that
    /// there may be another one now.
    pub fn password_refused(&self) -> bool {
        self.origin.password.as_ref().is_some_and(|setting| setting.secret.refused())
    }

    /// The password for one of `hosts`: the one given, else the password file's.
    pub fn password_for(&self, host: &Host) -> Option<&SecretString> {
        let from_file =
            || self.hosts.iter().position(|h| h == host).and_then(|at| self.file_passwords.get(at)?.as_ref());
        self.password.as_ref().or_else(from_file)
    }

    /// Returns the checks of the server's certificate.
    ///
    /// As in libpq, `prefer` and `require` with a root certificate's file verify as `verify-ca` does: a user with such a
    /// file means it to be used. (`prefer` then goes on without TLS when verification fails.)
    pub fn verification(&self) -> Verification {
        match (self.sslmode, &self.sslrootcert) {
            (SslMode::VerifyFull, _) => Verification::ChainAndName,
            (SslMode::VerifyCa, _) | (SslMode::Prefer | SslMode::Require, RootCert::File(_)) => Verification::Chain,
            (SslMode::Disable | SslMode::Prefer | SslMode::Require, _) => Verification::None,
        }
    }
}

fn unreadable(place: SourcePlace, error: SecretError) -> SourceError {
    SourceError { place, problem: SourceProblem::Secret(Box::new(error)) }
}

impl Source {
    /// Hosts and database, without who logs in: `db1:5432,db2:5432/shop`.
    pub fn place(&self) -> String {
        let hosts = self.hosts.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        format!("{hosts}/{}", self.dbname)
    }
}

impl fmt::Display for Source {
    /// `shop as app at db1:5432, db2:5432`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hosts = self.hosts.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        write!(f, "{} as {} at {hosts}", self.dbname, self.user)
    }
}

impl fmt::Display for Host {
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
