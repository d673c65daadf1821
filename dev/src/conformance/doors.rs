//! Ways in that a configuration of Debezium's can name: TLS with its files, SASL with its passwords.
//!
//! In: a configuration in which `{postgres}`, `{kafka}`, `{sasl_ssl}`, `{ssl}` and `{text:FILE}` stand for what differs from server to
//! server. Out: the same with folders, addresses and a file's text.
//!
//! Beside Postgres lie `right.pem` (its authority), `client.crt` and `client.key`; beside Kafka the same, and the forms that Java reads:
//! `client.pem` (key and certificate), `client.p12` and `right.jks`, both with [`STORE_PASSWORD`].

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};

use super::data::Group;
use crate::kafka::{Kafka, Options};
use crate::postgres::TlsFiles;
use crate::process;
use crate::secure::{Authority, SecureKafka};

/// The user that may write by SCRAM. Its password has characters that JAAS wants escaped.
pub const USER: (&str, &str) = ("generated", r"s3;c r'et\x");

/// The password of Java's stores.
pub const STORE_PASSWORD: &str = "changeit";

/// The rights that a producer needs.
const RIGHTS: &[&str] = &["Write", "Describe", "Create"];

/// A Kafka that anybody may write to.
#[derive(Debug)]
pub enum Broker {
    /// With one listener.
    Open(Kafka),
    /// With an open listener, and with one over TLS that authenticates clients.
    Guarded(SecureKafka),
}

impl Broker {
    /// With one listener.
    ///
    /// # Errors
    /// It does not start.
    pub fn open() -> Result<Self> {
        Ok(Self::Open(Kafka::start(&options())?))
    }

    /// With all three. Users may write to topics whose names begin so.
    ///
    /// # Errors
    /// It does not start, or a tool that writes Java's stores is missing.
    pub fn guarded(prefix: &str) -> Result<Self> {
        let kafka = SecureKafka::start_with(&[USER], options())?;
        place_stores(&kafka.folder)?;
        for user in [&format!("User:{}", USER.0), "User:CN=client"] {
            kafka.allow(user, RIGHTS, prefix)?;
        }
        Ok(Self::Guarded(kafka))
    }

    /// The broker, through its open listener.
    pub fn kafka(&self) -> &Kafka {
        match self {
            Self::Open(kafka) => kafka,
            Self::Guarded(secure) => &secure.kafka,
        }
    }

    fn filled(&self, text: &str) -> Result<String> {
        let Self::Guarded(secure) = self else { return Ok(text.to_owned()) };
        let folder = secure.folder.display().to_string();
        let text = text.replace("{kafka}", &folder);
        let text = text.replace("{sasl_ssl}", &secure.sasl_ssl).replace("{ssl}", &secure.ssl);
        let Some(file) = text.strip_prefix("{text:").and_then(|rest| rest.strip_suffix('}')) else { return Ok(text) };
        fs::read_to_string(secure.folder.join(file)).with_context(|| format!("cannot read {file}"))
    }
}

fn options() -> Options {
    Options { partitions: 1, ..Options::default() }
}

/// The group with the addresses and files of this broker, and of the Postgres whose files are in `postgres`.
///
/// # Errors
/// A file that it names cannot be read.
pub fn filled(group: &Group, broker: &Broker, postgres: &Path) -> Result<Group> {
    let mut group = group.clone();
    let postgres = postgres.display().to_string();
    let fill = |text: &str| broker.filled(&text.replace("{postgres}", &postgres));
    if let Some(connect) = &mut group.connect {
        for value in connect.config.values_mut().chain(&mut connect.worker) {
            *value = fill(value)?;
        }
    }
    Ok(group)
}

/// Writes what a Postgres with TLS and its clients need.
///
/// # Errors
/// The folder is not writable.
pub fn certificates_of_postgres(folder: &Path) -> Result<TlsFiles> {
    let authority = Authority::new("authority of Postgres")?;
    fs::write(folder.join("right.pem"), authority.pem())?;
    authority.issue("postgres", &["localhost", "127.0.0.1"])?.write(folder, "server")?;
    // Java's driver takes a key in PEM for one of RSA, unless a property names another algorithm.
    let client = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=postgres", "-days", "30"];
    written("openssl", folder, &[&client[..], &["-keyout", "client.key", "-out", "client.crt"]].concat())?;
    // Drivers refuse a key that others may read.
    fs::set_permissions(folder.join("client.key"), fs::Permissions::from_mode(0o600))?;
    let file = |name: &str| folder.join(name);
    Ok(TlsFiles {
        certificate: file("server.crt"),
        key: file("server.key"),
        client_authority: Some(file("client.crt")),
    })
}

fn place_stores(folder: &Path) -> Result<()> {
    let [certificate, key] = ["client.crt", "client.key"].map(|name| fs::read_to_string(folder.join(name)));
    fs::write(folder.join("client.pem"), key? + &certificate?)?;
    let password = format!("pass:{STORE_PASSWORD}");
    let pkcs12 =
        ["pkcs12", "-export", "-in", "client.crt", "-inkey", "client.key", "-out", "client.p12", "-passout", &password];
    written("openssl", folder, &pkcs12)?;
    let jks = [
        "-importcert",
        "-noprompt",
        "-alias",
        "right",
        "-file",
        "right.pem",
        "-keystore",
        "right.jks",
        "-storetype",
        "JKS",
    ];
    written("keytool", folder, &[&jks[..], &["-storepass", STORE_PASSWORD]].concat())
}

fn written(tool: &str, folder: &Path, arguments: &[&str]) -> Result<()> {
    process::finish(Command::new(tool).args(arguments).current_dir(folder)).map(drop)
}
