//! Errors in a source's settings, and the hints that fix them.
//!
//! Invariant: no text here has a password, or a part of a connection string that might be one. A part that might be a password is
//! described by its position and not quoted. A quoted part is shortened, and has one line.

use std::fmt;
use std::path::PathBuf;

use crate::given::{shown, shown_path};
use crate::secret::SecretError;

/// The origin of a part of the source, for messages.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum SourcePlace {
    /// The connection URI or keyword string itself.
    Text,
    /// A section of a service file.
    Service(String),
    /// An environment variable, such as `PGSSLMODE`.
    Variable(&'static str),
    /// A setting of walrelay, such as `--source-password-file`.
    Setting(&'static str),
    /// The default.
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

/// A wrong setting of a source, and its origin.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{problem}")]
pub struct SourceError {
    /// The origin of the setting.
    pub place: SourcePlace,
    /// What is wrong with it.
    pub problem: SourceProblem,
}

impl SourceError {
    /// What to type instead. `None`: the error's text is enough.
    pub fn hint(&self) -> Option<String> {
        self.problem.hint()
    }
}

/// What is wrong with a source's setting.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SourceProblem {
    /// An empty connection string.
    #[error("the connection string is empty")]
    Empty,
    /// A URI with another scheme.
    #[error("the scheme \"{}\" is not one of Postgres: expected postgres:// or postgresql://", shown(.0.as_bytes()))]
    UnknownScheme(String),
    /// A text that is no URI, no keywords and no database name.
    #[error("this is neither a connection URI, nor a string of keywords, nor a database's name")]
    Unrecognized,
    /// The syntax of the URI is wrong.
    #[error("the connection URI is malformed: {0}")]
    MalformedUri(&'static str),
    /// The user's name or the password has a character that ends it early.
    #[error("the connection URI has an @ that does not end the user's name and password")]
    UnescapedAt,
    /// The syntax of the keyword string is wrong.
    #[error("the connection string is malformed at character {at}: {what}")]
    MalformedKeywords {
        /// The index of the character, from 1.
        at: usize,
        /// The missing part.
        what: &'static str,
    },
    /// A keyword that libpq does not know either.
    #[error("{} is not a connection keyword", keyword.as_ref().map_or_else(|| "a word after the password".to_owned(), |k| format!("\"{}\"", shown(k.as_bytes()))))]
    UnknownKeyword {
        /// The keyword. `None`: it is not quoted, since it may be a part of a password.
        keyword: Option<String>,
        /// The keyword that was probably meant.
        nearest: Option<&'static str>,
    },
    /// A keyword of libpq that walrelay does not support, and must not ignore.
    #[error("{keyword} is not supported: {reason}")]
    Unsupported {
        /// libpq's name for it.
        keyword: &'static str,
        /// Why ignoring it would be wrong.
        reason: &'static str,
    },
    /// A value that the keyword does not allow.
    #[error("{keyword} \"{}\" is not valid: expected {expected}", shown(value.as_bytes()))]
    Value {
        /// libpq's name for it.
        keyword: &'static str,
        /// The value.
        value: String,
        /// The valid values.
        expected: &'static str,
        /// The valid value that was probably meant.
        nearest: Option<&'static str>,
    },
    /// A value with a NUL, which ends texts in C. The value is not quoted, since it may be the password.
    #[error("{keyword} holds the character NUL, which no value of libpq's may")]
    Nul {
        /// libpq's name for it.
        keyword: &'static str,
    },
    /// A host name with characters that host names do not have. It is not quoted, since a part of it may be a password.
    #[error("the host's name contains a character that no host name has (one of @ ; = ? # \\ or a space)")]
    HostName,
    /// The lists of hosts and ports have different lengths.
    #[error("{ports} ports for {hosts} hosts: give one for all, or one for each")]
    PortCount {
        /// The number of hosts.
        hosts: usize,
        /// The number of ports.
        ports: usize,
    },
    /// The lists of `host` and `hostaddr` have different lengths.
    #[error("{addresses} addresses in hostaddr for {hosts} hosts: give one for each")]
    AddressCount {
        /// The number of hosts.
        hosts: usize,
        /// The number of addresses.
        addresses: usize,
    },
    /// No user is given.
    #[error("there is no user to log in as: the operating system has no name for this process' user")]
    NoUser,
    /// No service file has the service.
    #[error("service \"{}\" is not defined", shown(service.as_bytes()))]
    ServiceNotFound {
        /// The service.
        service: String,
        /// The files that were read.
        files: Vec<PathBuf>,
    },
    /// The syntax of a service file is wrong.
    #[error("{}, line {line}: {what}", shown_path(path))]
    ServiceFile {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong with it.
        what: String,
    },
    /// A secret cannot be read.
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
    /// `sslrootcert=system` is set, but the mode does not check the host's name.
    #[error(
        "sslmode \"{sslmode}\" is too weak with sslrootcert=system: anybody can get a certificate from a public authority"
    )]
    WeakWithSystemRoots {
        /// The mode.
        sslmode: &'static str,
    },
    /// The mode checks the server's certificate, but there is no root certificate.
    #[error("sslmode {sslmode} needs a root certificate, and {} does not exist", looked.as_ref().map_or_else(|| "~/.postgresql/root.crt".into(), |p| shown_path(p)))]
    NoRootCertificate {
        /// The mode.
        sslmode: &'static str,
        /// The path where one was expected.
        looked: Option<PathBuf>,
    },
    /// A client certificate is set without its key.
    #[error("the client certificate {} has no key: {} does not exist", shown_path(certificate), looked.as_ref().map_or_else(|| "~/.postgresql/postgresql.key".into(), |p| shown_path(p)))]
    NoClientKey {
        /// The certificate.
        certificate: PathBuf,
        /// The path where its key was expected.
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
