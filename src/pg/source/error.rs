//! Errors in a source's settings, and the hints that fix them.
//!
//! Invariant: no text here holds a password, or a piece of a connection string that might be one. What cannot be determined
//! from a password is described by its place, never quoted. What is quoted is one line, and cut.

use std::fmt;
use std::path::PathBuf;

use crate::given::{shown, shown_path};
use crate::secret::SecretError;

/// Where a part of the source came from, for messages.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum SourcePlace {
    /// The connection URI or keyword string itself.
    Text,
    /// A section of a service file.
    Service(String),
    /// An environment variable, such as `PGSSLMODE`.
    Variable(&'static str),
    /// A setting of walrelay's own, such as `--source-password-file`.
    Setting(&'static str),
    /// Nowhere: it is the default.
    Default,
}

impl fmt::Display for SourcePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text => f.write_str("the connection string"),
            Self::Service(name) => write!(f, "service {}", shown(name.as_bytes())),
            Self::Variable(name) | Self::Setting(name) => f.write_str(name),
            Self::Default => f.write_str("libpq's defaults"),
        }
    }
}

/// A source whose settings are wrong: what, and where it stands.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{problem}")]
pub struct SourceError {
    /// Where it stands.
    pub place: SourcePlace,
    /// The problem.
    pub problem: SourceProblem,
}

impl SourceError {
    /// What to type instead; `None` when the error says it all.
    pub fn hint(&self) -> Option<String> {
        self.problem.hint()
    }
}

/// A problem of a source's settings.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SourceProblem {
    /// An empty connection string.
    #[error("the connection string is empty")]
    Empty,
    /// A URI of something else.
    #[error("the scheme \"{}\" is not one of Postgres: expected postgres:// or postgresql://", shown(.0.as_bytes()))]
    UnknownScheme(String),
    /// Neither a URI, nor keywords, nor a database's name.
    #[error("this is neither a connection URI, nor a string of keywords, nor a database's name")]
    Unrecognized,
    /// The URI's syntax.
    #[error("the connection URI is malformed: {0}")]
    MalformedUri(&'static str),
    /// A character that ends the user's name or the password early.
    #[error("the connection URI has an @ that does not end the user's name and password")]
    UnescapedAt,
    /// The keyword string's syntax; `at` counts characters from 1.
    #[error("the connection string is malformed at character {at}: {what}")]
    MalformedKeywords {
        /// The character, counted from 1.
        at: usize,
        /// The missing part.
        what: &'static str,
    },
    /// A keyword that libpq does not know either. `None`: not quoted, it may be a piece of a password.
    #[error("{} is not a connection keyword", keyword.as_ref().map_or_else(|| "a word after the password".to_owned(), |k| format!("\"{}\"", shown(k.as_bytes()))))]
    UnknownKeyword {
        /// As it was written.
        keyword: Option<String>,
        /// The keyword that was probably meant.
        nearest: Option<&'static str>,
    },
    /// A keyword of libpq which cannot be honoured, and must not be ignored.
    #[error("{keyword} is not supported: {reason}")]
    Unsupported {
        /// libpq's name of it.
        keyword: &'static str,
        /// Why ignoring it would be wrong.
        reason: &'static str,
    },
    /// A value that its keyword does not take.
    #[error("{keyword} \"{}\" is not valid: expected {expected}", shown(value.as_bytes()))]
    Value {
        /// libpq's name of it.
        keyword: &'static str,
        /// As it was written.
        value: String,
        /// The valid values.
        expected: &'static str,
        /// The valid value that was probably meant.
        nearest: Option<&'static str>,
    },
    /// A character that ends texts in C. The value is not quoted: it may be the password.
    #[error("{keyword} holds the character NUL, which no value of libpq's may")]
    Nul {
        /// libpq's name of it.
        keyword: &'static str,
    },
    /// A host's name with characters that no host has. Not quoted: a password may have slipped into it.
    #[error("the host's name contains a character that no host name has (one of @ ; = ? # \\ or a space)")]
    HostName,
    /// Lists of different lengths.
    #[error("{ports} ports for {hosts} hosts: give one for all, or one for each")]
    PortCount {
        /// Hosts given.
        hosts: usize,
        /// Ports given.
        ports: usize,
    },
    /// `host` and `hostaddr` lists of different lengths.
    #[error("{addresses} addresses in hostaddr for {hosts} hosts: give one for each")]
    AddressCount {
        /// Hosts given.
        hosts: usize,
        /// Addresses given.
        addresses: usize,
    },
    /// Nobody to log in as.
    #[error("there is no user to log in as: the operating system has no name for this process' user")]
    NoUser,
    /// A service that no service file has.
    #[error("service \"{}\" is not defined", shown(service.as_bytes()))]
    ServiceNotFound {
        /// The service.
        service: String,
        /// Where it was looked for.
        files: Vec<PathBuf>,
    },
    /// A service file's syntax.
    #[error("{}, line {line}: {what}", shown_path(path))]
    ServiceFile {
        /// The file.
        path: PathBuf,
        /// Its line, from 1.
        line: usize,
        /// The problem.
        what: String,
    },
    /// A secret that is not to be had.
    #[error(transparent)]
    Secret(Box<SecretError>),
    /// A file that cannot be read.
    #[error("{keyword}: cannot read {}: {reason}", shown_path(path))]
    Unreadable {
        /// The keyword that names it.
        keyword: &'static str,
        /// The file.
        path: PathBuf,
        /// The operating system's reason.
        reason: String,
    },
    /// `sslrootcert=system` with a mode that does not verify the host's name.
    #[error(
        "sslmode \"{sslmode}\" is too weak with sslrootcert=system: anybody can get a certificate from a public authority"
    )]
    WeakWithSystemRoots {
        /// The mode given.
        sslmode: &'static str,
    },
    /// A verifying mode without anything to verify against.
    #[error("sslmode {sslmode} needs a root certificate, and {} does not exist", looked.as_ref().map_or_else(|| "~/.postgresql/root.crt".into(), |p| shown_path(p)))]
    NoRootCertificate {
        /// The mode given.
        sslmode: &'static str,
        /// Where one was looked for.
        looked: Option<PathBuf>,
    },
    /// A client certificate without its key.
    #[error("the client certificate {} has no key: {} does not exist", shown_path(certificate), looked.as_ref().map_or_else(|| "~/.postgresql/postgresql.key".into(), |p| shown_path(p)))]
    NoClientKey {
        /// The certificate.
        certificate: PathBuf,
        /// Where its key was looked for.
        looked: Option<PathBuf>,
    },
}

impl SourceProblem {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Empty | Self::Unrecognized | Self::UnknownScheme(_) | Self::MalformedUri(_) => {
                Some("postgres://user@host:5432/dbname?sslmode=verify-full".into())
            }
            Self::UnescapedAt => Some(
                "in user name and password write @ as %40, / as %2F, : as %3A, ? as %3F and % as %25, or give the password in PGPASSWORD or ~/.pgpass".into(),
            ),
            Self::MalformedKeywords { .. } => {
                Some("keyword=value, with a value that has spaces in single quotes: host=db dbname='my shop'".into())
            }
            Self::UnknownKeyword { nearest, .. } => Some(nearest.map_or_else(
                || "only libpq's keywords are taken: leave out those of other libraries".into(),
                |nearest| format!("the nearest keyword is {nearest}"),
            )),
            Self::Value { nearest, .. } => nearest.map(|nearest| format!("the nearest valid value is {nearest}")),
            Self::NoUser => Some("name the user: postgres://user@host/dbname, or PGUSER".into()),
            Self::ServiceNotFound { files, .. } => Some(match files.as_slice() {
                [] => "name the file in PGSERVICEFILE".into(),
                files => format!("looked in {}", files.iter().map(|f| shown_path(f)).collect::<Vec<_>>().join(", ")),
            }),
            Self::WeakWithSystemRoots { .. } => Some("sslmode=verify-full".into()),
            Self::NoRootCertificate { .. } => {
                Some("sslrootcert=FILE, or sslrootcert=system for the operating system's roots".into())
            }
            Self::NoClientKey { .. } => Some("sslkey=FILE".into()),
            Self::Unsupported { keyword, .. } => Some(format!("leave {keyword} out")),
            Self::Nul { .. }
            | Self::HostName
            | Self::PortCount { .. }
            | Self::AddressCount { .. }
            | Self::ServiceFile { .. }
            | Self::Secret(_)
            | Self::Unreadable { .. } => None,
        }
    }
}
