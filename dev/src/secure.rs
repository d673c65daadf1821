//! Certificates of one's own, and a Kafka that lets nobody in unasked.
//!
//! In: names. Out: an authority's certificates as PEM files; a broker with a listener over `SASL_SSL` (SCRAM) and one over
//! `SSL` that wants a client certificate, where users may do what they were allowed to and nothing else. Its plain listener
//! stays, for the test that set it up.
//!
//! It chooses no algorithms: those are the defaults of rcgen, Java and librdkafka, which is what users have.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose};

use crate::kafka::{self, Kafka};
use crate::{process, provision, run_dir};

/// Signs certificates.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// A certificate and its key, as PEM text.
#[derive(Debug, Clone)]
pub struct Issued {
    /// The certificate.
    pub certificate: String,
    /// Its key, PKCS #8.
    pub key: String,
}

impl Authority {
    /// A new one.
    ///
    /// # Errors
    /// The name does not fit into a certificate.
    pub fn new(name: &str) -> Result<Self> {
        let mut params = named(name, &[])?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages =
            vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
        Ok(Self { issuer: CertifiedIssuer::self_signed(params, KeyPair::generate()?)? })
    }

    /// Its own certificate, as PEM text.
    pub fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// Its own certificate and key, to be used as a server's.
    pub fn as_issued(&self) -> Issued {
        Issued { certificate: self.pem(), key: self.issuer.key().serialize_pem() }
    }

    /// A certificate for `common_name`, with the alternative names `hosts` (names or addresses; none: without that part).
    ///
    /// # Errors
    /// A name does not fit into a certificate.
    pub fn issue(&self, common_name: &str, hosts: &[&str]) -> Result<Issued> {
        let key = KeyPair::generate()?;
        let certificate = named(common_name, hosts)?.signed_by(&key, &self.issuer)?;
        Ok(Issued { certificate: certificate.pem(), key: key.serialize_pem() })
    }
}

impl Issued {
    /// Writes `<name>.crt` and `<name>.key`.
    ///
    /// # Errors
    /// The folder is not writable.
    pub fn write(&self, folder: &Path, name: &str) -> Result<()> {
        fs::write(folder.join(format!("{name}.crt")), &self.certificate)?;
        Ok(fs::write(folder.join(format!("{name}.key")), &self.key)?)
    }
}

fn named(common_name: &str, hosts: &[&str]) -> Result<CertificateParams> {
    let mut params = CertificateParams::new(hosts.iter().map(|&host| host.to_owned()).collect::<Vec<_>>())?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name);
    Ok(params)
}

/// A broker whose certificate is for `localhost`, with users.
#[derive(Debug)]
pub struct SecureKafka {
    /// The broker; its plain listener is its administrator's.
    pub kafka: Kafka,
    /// Bootstrap server over `SASL_SSL`, with SCRAM-SHA-256 and SCRAM-SHA-512.
    pub sasl_ssl: String,
    /// Bootstrap server over `SSL`, with a client certificate.
    pub ssl: String,
    /// Holds `right.pem` (who signed the broker's certificate and takes clients'), `wrong.pem` (another authority),
    /// `client.crt` and `client.key` (user `CN=client`), `stranger.crt` and `stranger.key` (by the other authority).
    pub folder: PathBuf,
}

impl SecureKafka {
    /// Starts one that knows `users` with their passwords, by both mechanisms. None of them may do anything yet.
    ///
    /// # Errors
    /// As [`Kafka::start`].
    pub fn start(users: &[(&str, &str)]) -> Result<Self> {
        Self::start_with(users, kafka::Options::default())
    }

    /// The same with options of its own.
    ///
    /// # Errors
    /// As [`Kafka::start`].
    pub fn start_with(users: &[(&str, &str)], options: kafka::Options) -> Result<Self> {
        let folder = run_dir::make(&provision::kafka()?.run, "secure")?;
        place_certificates(&folder)?;
        let (sasl, ssl) = (run_dir::free_port()?, run_dir::free_port()?);
        let credentials = users.iter().flat_map(|(name, password)| {
            ["SCRAM-SHA-256", "SCRAM-SHA-512"].map(|mechanism| format!("{mechanism}=[name={name},password={password}]"))
        });
        let options = kafka::Options {
            properties: properties(&folder, sasl, ssl),
            format_arguments: credentials.flat_map(|credential| ["--add-scram".to_owned(), credential]).collect(),
            ..options
        };
        let kafka = Kafka::start(&options)?;
        Ok(Self { kafka, sasl_ssl: format!("localhost:{sasl}"), ssl: format!("localhost:{ssl}"), folder })
    }

    /// A file of its folder, as text.
    pub fn file(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    /// Allows `principal` (`User:…`) these operations (`Write`, `Describe`, …) on topics that begin with `prefix`.
    ///
    /// # Errors
    /// The broker refuses.
    pub fn allow(&self, principal: &str, operations: &[&str], prefix: &str) -> Result<()> {
        self.change("--add", principal, operations, prefix)
    }

    /// Takes back what [`SecureKafka::allow`] gave.
    ///
    /// # Errors
    /// The broker refuses.
    pub fn revoke(&self, principal: &str, operations: &[&str], prefix: &str) -> Result<()> {
        self.change("--remove", principal, operations, prefix)
    }

    fn change(&self, what: &str, principal: &str, operations: &[&str], prefix: &str) -> Result<()> {
        let mut arguments = vec![what, "--force", "--allow-principal", principal];
        arguments.extend(operations.iter().flat_map(|&operation| ["--operation", operation]));
        arguments.extend(["--topic", prefix, "--resource-pattern-type", "prefixed"]);
        self.acls(&arguments)
    }

    /// Runs a command line of `kafka-acls.sh` as it would be typed, through the administrator's door.
    ///
    /// # Errors
    /// It is none, or the broker refuses.
    pub fn run_acls(&self, line: &str) -> Result<()> {
        let rest = line.strip_prefix("kafka-acls.sh ").with_context(|| format!("that is not kafka-acls.sh: {line}"))?;
        let words = Command::new("sh").args(["-c", &format!("printf '%s\\n' {rest}")]).output()?;
        let words = String::from_utf8(words.stdout)?;
        let mut words: Vec<&str> = words.lines().collect();
        let door = words.iter().position(|word| *word == "--bootstrap-server").context("no --bootstrap-server")?;
        drop(words.drain(door..door + 2));
        self.acls(&words)
    }

    fn acls(&self, arguments: &[&str]) -> Result<()> {
        let mut command = self.kafka.tool("org.apache.kafka.tools.AclCommand");
        let command = command.args(["--bootstrap-server", &self.kafka.brokers()]).args(arguments);
        process::finish(command).with_context(|| format!("kafka-acls.sh {}", arguments.join(" "))).map(drop)
    }
}

impl Drop for SecureKafka {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.folder));
    }
}

fn place_certificates(folder: &Path) -> Result<()> {
    let (right, wrong) = (Authority::new("right authority")?, Authority::new("wrong authority")?);
    fs::write(folder.join("right.pem"), right.pem())?;
    fs::write(folder.join("wrong.pem"), wrong.pem())?;
    right.issue("client", &["client"])?.write(folder, "client")?;
    wrong.issue("client", &["client"])?.write(folder, "stranger")?;
    let broker = right.issue("broker", &["localhost"])?;
    Ok(fs::write(folder.join("broker.pem"), format!("{}{}", broker.key, broker.certificate))?)
}

fn properties(folder: &Path, sasl: u16, ssl: u16) -> Vec<(String, String)> {
    let plain = "PLAINTEXT://127.0.0.1:{port}";
    let doors = format!("SASL_SSL://localhost:{sasl},SSL://localhost:{ssl}");
    let login = "org.apache.kafka.common.security.scram.ScramLoginModule required;".to_owned();
    let file = |name: &str| folder.join(name).display().to_string();
    [
        ("listeners", format!("{plain},CONTROLLER://127.0.0.1:{{controller_port}},{doors}")),
        ("advertised.listeners", format!("{plain},{doors}")),
        ("ssl.keystore.type", "PEM".to_owned()),
        ("ssl.keystore.location", file("broker.pem")),
        ("ssl.truststore.type", "PEM".to_owned()),
        ("ssl.truststore.location", file("right.pem")),
        ("listener.name.ssl.ssl.client.auth", "required".to_owned()),
        ("sasl.enabled.mechanisms", "SCRAM-SHA-256,SCRAM-SHA-512".to_owned()),
        ("listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config", login.clone()),
        ("listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config", login),
        ("authorizer.class.name", "org.apache.kafka.metadata.authorizer.StandardAuthorizer".to_owned()),
        ("super.users", "User:ANONYMOUS".to_owned()),
    ]
    .map(|(key, value)| (key.to_owned(), value))
    .to_vec()
}
