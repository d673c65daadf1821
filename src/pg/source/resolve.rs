//! Makes a [`Source`] of a connection string and the environment.
//!
//! In: the string, the [`Environment`], and the files that these name. Out: a source with all fields, or the error and its origin.
//! Invariant: as in libpq, the string takes precedence over its service, the service over variables, and variables over defaults.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use secrecy::SecretString;

use super::environment::Environment;
use super::error::{SourceError, SourcePart, SourceProblem};
use super::keywords::{Pair, Parameters};
use super::{
    ChannelBinding, ClientCertificate, Host, Keepalives, Resolved, RootCert, Source, SourceOrigin, SslMode,
    TargetSessionAttrs, conninfo, passfile, service, uri,
};
use crate::secret::Secret;
use crate::setting_text::{nearest, shown, shown_path};

/// Postgres' default port.
const DEFAULT_PORT: u16 = 5432;

/// See [`Source::resolve`].
pub(super) fn resolve(text: Option<&str>, environment: &Environment) -> Result<Resolved, SourceError> {
    let pairs = text.map_or(Ok(Vec::new()), parse).map_err(|problem| problem.at(SourcePart::Text))?;
    let password_in_text = pairs.iter().any(|pair| pair.keyword == "password" && !pair.value.is_empty());
    let parameters = gather(pairs, environment)?;
    let mut warnings = Vec::new();
    let source = assemble(&KeywordReader { parameters: &parameters, environment }, &mut warnings)?;
    Ok(Resolved { source, warnings, password_in_text })
}

/// Parses a connection string in any of its forms.
fn parse(text: &str) -> Result<Vec<Pair>, SourceProblem> {
    let text = text.trim();
    if text.is_empty() {
        return Err(SourceProblem::no_source("the connection string is empty"));
    }
    // A word and a colon cannot begin a keyword string. If they did, `jdbc:…://app:secret@…?ssl=true` would show its password as a
    // keyword.
    if let Some((scheme, after)) = text.split_once(':').filter(|(scheme, _)| is_scheme(scheme)) {
        return match (scheme.to_ascii_lowercase().as_str(), after.strip_prefix("//")) {
            ("postgres" | "postgresql", Some(after)) => uri::parse(after),
            (_, None) if !after.contains("://") => Err(unrecognized()),
            _ => Err(SourceProblem::no_source(format!(
                "the scheme \"{}\" is not one of Postgres: expected postgres:// or postgresql://",
                shown(scheme.as_bytes())
            ))),
        };
    }
    if text.contains('=') { conninfo::parse(text) } else { database_name(text) }
}

fn is_scheme(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphabetic())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
}

/// Parses a database name, as `psql -d` takes it. A text that may be a host or a user is refused.
fn database_name(text: &str) -> Result<Vec<Pair>, SourceProblem> {
    let odd = |c: char| c.is_whitespace() || ":/@?;,".contains(c);
    if text.contains(odd) { Err(unrecognized()) } else { Ok(vec![Pair::new("dbname", text)]) }
}

fn unrecognized() -> SourceProblem {
    SourceProblem::no_source("this is neither a connection URI, nor a string of keywords, nor a database's name")
}

/// Collects all origins in libpq's order: the string, its service, the variables.
fn gather(pairs: Vec<Pair>, environment: &Environment) -> Result<Parameters, SourceError> {
    let mut parameters = Parameters::default();
    parameters.add(pairs, &SourcePart::Text)?;
    let named = |keyword: &'static str, variable: &'static str| match parameters.get(keyword) {
        Some(value) => Some((value.to_owned(), SourcePart::Text)),
        None => environment.variable(variable).map(|value| (value.to_owned(), SourcePart::Variable(variable))),
    };
    let file = named("servicefile", "PGSERVICEFILE").map(|(file, _)| file);
    if let Some((service, part)) = named("service", "PGSERVICE") {
        let pairs = service::find(&service, file.as_deref(), environment).map_err(|problem| problem.at(part))?;
        parameters.add(pairs, &SourcePart::Service(service))?;
    }
    parameters.add_variables(environment)?;
    Ok(parameters)
}

fn assemble(reader: &KeywordReader<'_>, warnings: &mut Vec<String>) -> Result<Source, SourceError> {
    let user = reader.user()?;
    let dbname = reader.text("dbname").unwrap_or_else(|| user.clone());
    let hosts = reader.hosts()?;
    let over_tcp = hosts.iter().any(|host| matches!(host, Host::Tcp { .. }));
    let sslmode = reader.sslmode()?;
    let tls = over_tcp && sslmode != SslMode::Disable;
    let password = reader.password()?;
    let file_passwords = match password {
        Some(_) => Vec::new(),
        None => reader.file_passwords(&hosts, &dbname, &user, warnings),
    };
    Ok(Source {
        sslmode,
        sslrootcert: if tls { reader.root_certificate(sslmode)? } else { RootCert::None },
        client_certificate: if tls { reader.client_certificate()? } else { None },
        channel_binding: reader.one_of("channel_binding", &CHANNEL_BINDINGS, ChannelBinding::Prefer)?,
        connect_timeout: reader.seconds("connect_timeout")?,
        target_session_attrs: reader.one_of("target_session_attrs", &SESSION_ATTRS, TargetSessionAttrs::Any)?,
        options: reader.text("options"),
        application_name: reader.text("application_name"),
        keepalives: reader.keepalives()?,
        tcp_user_timeout: reader.integer("tcp_user_timeout")?.filter(|n| *n > 0).map(Duration::from_millis),
        hosts,
        user,
        dbname,
        password,
        file_passwords,
        origin: SourceOrigin::default(),
    })
}

/// The names of an enum's values, each with the value.
type Values<T> = [(&'static str, T)];

const SSL_MODES: [(&str, SslMode); 6] = [
    ("disable", SslMode::Disable),
    ("allow", SslMode::Prefer),
    ("prefer", SslMode::Prefer),
    ("require", SslMode::Require),
    ("verify-ca", SslMode::VerifyCa),
    ("verify-full", SslMode::VerifyFull),
];

const CHANNEL_BINDINGS: [(&str, ChannelBinding); 3] =
    [("disable", ChannelBinding::Disable), ("prefer", ChannelBinding::Prefer), ("require", ChannelBinding::Require)];

pub(super) const SESSION_ATTRS: [(&str, TargetSessionAttrs); 6] = [
    ("any", TargetSessionAttrs::Any),
    ("read-write", TargetSessionAttrs::ReadWrite),
    ("read-only", TargetSessionAttrs::ReadOnly),
    ("primary", TargetSessionAttrs::Primary),
    ("standby", TargetSessionAttrs::Standby),
    ("prefer-standby", TargetSessionAttrs::PreferStandby),
];

/// The valid values of a keyword of [`Values`], for messages.
fn expected(keyword: &'static str) -> &'static str {
    match keyword {
        "sslmode" => "disable, prefer, require, verify-ca or verify-full",
        "channel_binding" => "disable, prefer or require",
        _ => "any, read-write, read-only, primary, standby or prefer-standby",
    }
}

/// Reads the values of keywords.
struct KeywordReader<'a> {
    parameters: &'a Parameters,
    environment: &'a Environment,
}

impl KeywordReader<'_> {
    fn text(&self, keyword: &'static str) -> Option<String> {
        self.parameters.get(keyword).map(str::to_owned)
    }

    fn invalid(&self, keyword: &'static str, value: &str, expected: &'static str) -> SourceError {
        self.parameters.error(keyword, SourceProblem::value(keyword, value, expected, None))
    }

    fn one_of<T: Copy>(&self, keyword: &'static str, values: &Values<T>, default: T) -> Result<T, SourceError> {
        let Some(given) = self.parameters.get(keyword) else { return Ok(default) };
        if let Some((_, value)) = values.iter().find(|(name, _)| *name == given) {
            return Ok(*value);
        }
        let nearest = nearest(given, values.iter().map(|(name, _)| *name));
        Err(self.parameters.error(keyword, SourceProblem::value(keyword, given, expected(keyword), nearest)))
    }

    /// A whole number from 0. As in libpq, a negative one counts as 0.
    fn integer(&self, keyword: &'static str) -> Result<Option<u64>, SourceError> {
        let Some(given) = self.parameters.get(keyword) else { return Ok(None) };
        match given.trim().parse::<i32>() {
            Ok(number) => Ok(Some(u64::try_from(number).unwrap_or(0))),
            Err(_) => Err(self.invalid(keyword, given, "a whole number")),
        }
    }

    fn seconds(&self, keyword: &'static str) -> Result<Option<Duration>, SourceError> {
        Ok(self.integer(keyword)?.map(Duration::from_secs))
    }

    fn keepalives(&self) -> Result<Keepalives, SourceError> {
        let given = |duration: &Duration| !duration.is_zero();
        Ok(Keepalives {
            enabled: self.integer("keepalives")? != Some(0),
            idle: self.seconds("keepalives_idle")?.filter(given),
            interval: self.seconds("keepalives_interval")?.filter(given),
            count: self.integer("keepalives_count")?.filter(|n| *n > 0).and_then(|n| u32::try_from(n).ok()),
        })
    }

    /// The password. In `PGPASSWORD`, an `@` with an absolute path after it names a file. For libpq that would be a password, but
    /// nobody has such a password.
    fn password(&self) -> Result<Option<SecretString>, SourceError> {
        let Some(given) = self.parameters.get("password") else { return Ok(None) };
        let part = self.parameters.part("password");
        if matches!(part, SourcePart::Variable(_)) && given.starts_with("@/") {
            let read = Secret::of_value(given).read();
            return read.map(Some).map_err(|error| SourceProblem::from(error).at(part));
        }
        Ok(Some(given.into()))
    }

    fn user(&self) -> Result<String, SourceError> {
        let user = self.text("user").or_else(|| self.environment.user.clone());
        user.ok_or_else(|| {
            let text = "there is no user to log in as: the operating system has no name for this process' user";
            SourceProblem::with_hint(text, "name the user: postgres://user@host/dbname, or PGUSER")
                .at(SourcePart::Default)
        })
    }

    fn hosts(&self) -> Result<Vec<Host>, SourceError> {
        let list = |keyword| self.parameters.get(keyword).map(|v| v.split(',').map(str::trim).collect::<Vec<_>>());
        let (names, addresses) = (list("host"), list("hostaddr"));
        let count = names.as_ref().or(addresses.as_ref()).map_or(1, Vec::len);
        let names = names.unwrap_or_else(|| vec![""; count]);
        let addresses = addresses.unwrap_or_else(|| vec![""; count]);
        if addresses.len() != count {
            let text = format!("{} addresses in hostaddr for {count} hosts: give one for each", addresses.len());
            return Err(self.parameters.error("hostaddr", SourceProblem::new(text)));
        }
        let ports = self.ports(count)?;
        let hosts = names.into_iter().zip(addresses).zip(ports);
        hosts.map(|((name, address), port)| self.host(name, address, port)).collect()
    }

    /// The ports: one for all hosts, or one for each. An empty one is 5432.
    fn ports(&self, count: usize) -> Result<Vec<u16>, SourceError> {
        let given = self.parameters.get("port").unwrap_or("");
        let ports = given.split(',').map(|port| self.port(port.trim())).collect::<Result<Vec<_>, _>>()?;
        match ports.as_slice() {
            [one] => Ok(vec![*one; count]),
            ports if ports.len() == count => Ok(ports.to_vec()),
            ports => {
                let text = format!("{} ports for {count} hosts: give one for all, or one for each", ports.len());
                Err(self.parameters.error("port", SourceProblem::new(text)))
            }
        }
    }

    fn port(&self, given: &str) -> Result<u16, SourceError> {
        match given.parse() {
            _ if given.is_empty() => Ok(DEFAULT_PORT),
            Ok(port) if port > 0 => Ok(port),
            _ => Err(self.invalid("port", given, "a number from 1 to 65535")),
        }
    }

    fn host(&self, name: &str, address: &str, port: u16) -> Result<Host, SourceError> {
        let is_dir = name.starts_with('/') && address.is_empty();
        if !is_dir && name.contains(|c: char| c.is_whitespace() || c.is_control() || "@;=?#\\".contains(c)) {
            // It is not quoted, since a part of it may be a password.
            let text = "the host's name contains a character that no host name has (one of @ ; = ? # \\ or a space)";
            return Err(self.parameters.error("host", SourceProblem::new(text)));
        }
        if !address.is_empty() {
            let parsed = address.parse::<IpAddr>().map_err(|_| self.invalid("hostaddr", address, "an IP address"))?;
            let name = if name.is_empty() { address } else { name };
            return Ok(Host::Tcp { name: name.to_owned(), port, address: Some(parsed) });
        }
        if is_dir {
            return Ok(Host::Unix { dir: name.into(), port });
        }
        Ok(match (name, &self.environment.socket_dir) {
            ("", Some(dir)) => Host::Unix { dir: dir.clone(), port },
            ("", None) => Host::Tcp { name: "localhost".to_owned(), port, address: None },
            (name, _) => Host::Tcp { name: name.to_owned(), port, address: None },
        })
    }

    /// The mode. The default is `prefer`. With the operating system's certificates, it is `verify-full`, and a weaker mode is refused.
    fn sslmode(&self) -> Result<SslMode, SourceError> {
        let system = self.parameters.get("sslrootcert") == Some("system");
        let default = if system { SslMode::VerifyFull } else { SslMode::Prefer };
        let sslmode = self.one_of("sslmode", &SSL_MODES, default)?;
        if system && sslmode < SslMode::VerifyFull && sslmode != SslMode::Disable {
            let text = format!(
                "sslmode \"{}\" is too weak with sslrootcert=system: anybody can get a certificate from a public authority",
                sslmode.name()
            );
            return Err(self.parameters.error("sslmode", SourceProblem::with_hint(text, "sslmode=verify-full")));
        }
        Ok(sslmode)
    }

    /// The root certificates. A file that is named must exist. (libpq would go on without the check if the mode allows it.)
    fn root_certificate(&self, sslmode: SslMode) -> Result<RootCert, SourceError> {
        if let Some(named) = self.parameters.get("sslrootcert") {
            return match named {
                "system" => Ok(RootCert::System),
                file => Ok(RootCert::File(self.existing("sslrootcert", file)?)),
            };
        }
        match self.environment.in_home(".postgresql/root.crt") {
            Some(file) if file.exists() => Ok(RootCert::File(file)),
            looked if sslmode >= SslMode::VerifyCa => {
                let looked = looked.map_or_else(|| "~/.postgresql/root.crt".to_owned(), |path| shown_path(&path));
                let text = format!("sslmode {} needs a root certificate, and {looked} does not exist", sslmode.name());
                let hint = "sslrootcert=FILE, or sslrootcert=system for the operating system's roots";
                Err(self.parameters.error("sslmode", SourceProblem::with_hint(text, hint)))
            }
            _ => Ok(RootCert::None),
        }
    }

    fn client_certificate(&self) -> Result<Option<ClientCertificate>, SourceError> {
        if self.parameters.get("sslcertmode") == Some("disable") {
            return Ok(None);
        }
        let Some(certificate) = self.file("sslcert", ".postgresql/postgresql.crt")? else { return Ok(None) };
        if let Some(key) = self.file("sslkey", ".postgresql/postgresql.key")? {
            return Ok(Some(ClientCertificate { certificate, key }));
        }
        let looked = self.environment.in_home(".postgresql/postgresql.key");
        let looked = looked.map_or_else(|| "~/.postgresql/postgresql.key".to_owned(), |path| shown_path(&path));
        let certificate = shown_path(&certificate);
        let text = format!("the client certificate {certificate} has no key: {looked} does not exist");
        Err(self.parameters.error("sslcert", SourceProblem::with_hint(text, "sslkey=FILE")))
    }

    /// The file that is named, which must exist, or else the default one in the home directory, if that exists.
    fn file(&self, keyword: &'static str, default: &str) -> Result<Option<PathBuf>, SourceError> {
        match self.parameters.get(keyword) {
            Some(named) => self.existing(keyword, named).map(Some),
            None => Ok(self.environment.in_home(default).filter(|file| file.exists())),
        }
    }

    fn existing(&self, keyword: &'static str, file: &str) -> Result<PathBuf, SourceError> {
        let path = Path::new(file).to_owned();
        match path.metadata() {
            Ok(_) => Ok(path),
            Err(error) => {
                let text = format!("{keyword}: cannot read {}: {error}", shown_path(&path));
                Err(self.parameters.error(keyword, SourceProblem::new(text)))
            }
        }
    }

    fn file_passwords(
        &self,
        hosts: &[Host],
        dbname: &str,
        user: &str,
        warnings: &mut Vec<String>,
    ) -> Vec<Option<SecretString>> {
        let named = self.text("passfile").map(PathBuf::from);
        let is_named = named.is_some();
        let Some(path) = named.or_else(|| self.environment.in_home(".pgpass")) else { return Vec::new() };
        match passfile::read(&path, is_named) {
            Ok(file) => hosts.iter().map(|host| passfile::find(&file, host, dbname, user)).collect(),
            Err(warning) => {
                warnings.extend(warning);
                Vec::new()
            }
        }
    }
}
