//! Where AWS's access keys come from, in the order of AWS's own tools.
//!
//! ```text
//!  1 AWS_ACCESS_KEY_ID …   2 profile (keys, credential_process, web identity, role)   3 AWS_WEB_IDENTITY_TOKEN_FILE (EKS)
//!  4 container (ECS, EKS Pod Identity)   5 instance (IMDSv2)
//! ```
//!
//! In: variables, files, metadata services. Out: keys that are good now. The first place that is set up counts: where it fails, no other
//! one is asked. Nothing is kept: each call asks again. It waits for answers, so it belongs on a thread of its own. Not here: SSO, which
//! needs a browser (`credential_process` runs the AWS CLI for it), and IMDSv1.
//!
//! Specification: AWS SDKs and Tools Reference Guide, "Standardized credential providers".

use super::profile::Profiles;
use super::sign::{Keys, Presigned, joined};
use super::time;
use crate::secret::{SecretCommand, SecretError};
use crate::sink::fetch::{Answer, Request, Url};
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use std::{env, fs, io};

/// Where ECS answers.
const CONTAINER: &str = "http://169.254.170.2";
/// Besides loopback, where a container's token may go without TLS: ECS, EKS.
const PLAIN_HOSTS: [&str; 3] = ["169.254.170.2", "169.254.170.23", "fd00:ec2::23"];
/// Where EC2 answers.
const INSTANCE: &str = "http://169.254.169.254";

/// Codes with which AWS's token service refuses what it may take a moment later.
const PASSING: [&str; 3] = ["Throttling", "ThrottlingException", "IDPCommunicationError"];

/// How many roles may be behind each other.
const MOST_ROLES: u32 = 5;

/// What a session is called in AWS's logs.
const SESSION: &str = "walrelay";

/// No keys.
#[derive(Debug, thiserror::Error)]
#[cfg_attr(not(feature = "kafka"), allow(unreachable_pub, reason = "a part of what Kafka's errors say"))]
pub enum AwsError {
    /// Nothing is set up.
    #[error(
        "no AWS credentials: not in the environment, in a profile, by web identity, from a container or an instance ({0})"
    )]
    Nowhere(io::Error),
    /// A variable or a setting is missing.
    #[error("{place}: {missing} is missing")]
    Missing {
        /// What lacks it.
        place: String,
        /// What it lacks.
        missing: String,
    },
    /// A profile is not there.
    #[error("there is no AWS profile {0:?}")]
    NoProfile(String),
    /// A profile asks for what is not here.
    #[error(
        "AWS profile {0:?} uses SSO: set credential_process = aws configure export-credentials --profile {0} --format process in another profile, and name that"
    )]
    Sso(String),
    /// Roles lead in circles.
    #[error("AWS profile {0:?}: source_profile leads in a circle, or is nested too deeply")]
    Circle(String),
    /// A file cannot be read.
    #[error("cannot read {}: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The operating system's reason.
        reason: String,
    },
    /// A program fails.
    #[error("credential_process: {0}")]
    Program(SecretError),
    /// A service does not answer.
    #[error("{service} does not answer: {source}")]
    Silent {
        /// Which.
        service: String,
        /// Why.
        source: io::Error,
    },
    /// A service refuses.
    #[error("{service} answers {status}{words}")]
    Refused {
        /// Which.
        service: String,
        /// HTTP's status.
        status: u16,
        /// Its code; empty: none.
        code: String,
        /// Its code and message, behind a colon; empty: none.
        words: String,
    },
    /// What came is none.
    #[error("{0}: the answer has no access keys")]
    NoKeys(String),
}

#[cfg_attr(not(feature = "sqs"), allow(dead_code, reason = "Kafka's client asks again by itself"))]
impl AwsError {
    /// Whether it passes by itself.
    pub(crate) fn passes(&self) -> bool {
        match self {
            Self::Silent { .. } => true,
            Self::Refused { status, code, .. } => *status >= 500 || *status == 429 || PASSING.contains(&code.as_str()),
            Self::Nowhere(_)
            | Self::Missing { .. }
            | Self::NoProfile(_)
            | Self::Sso(_)
            | Self::Circle(_)
            | Self::File { .. }
            | Self::Program(_)
            | Self::NoKeys(_) => false,
        }
    }
}

/// What the chain looks at.
#[derive(Debug, Clone, Default)]
pub(crate) struct Surroundings {
    variables: BTreeMap<String, String>,
}

/// Keys as services and programs write them.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Written {
    access_key_id: String,
    secret_access_key: String,
    #[serde(alias = "SessionToken")]
    token: Option<String>,
    expiration: Option<String>,
}

type Settings = BTreeMap<String, String>;

impl Surroundings {
    /// The process's own. Bytes of variables that are not UTF-8 are replaced.
    pub(crate) fn of_process() -> Self {
        let text = |bytes: std::ffi::OsString| bytes.to_string_lossy().into_owned();
        Self { variables: env::vars_os().map(|(name, value)| (text(name), text(value))).collect() }
    }

    /// Others.
    #[cfg(test)]
    pub(crate) fn of(variables: &[(&str, &str)]) -> Self {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Self { variables: variables.iter().map(owned).collect() }
    }

    fn variable(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// The region that is set, if one is.
    pub(crate) fn region(&self) -> Option<String> {
        let set = self.variable("AWS_REGION").or_else(|| self.variable("AWS_DEFAULT_REGION")).map(str::to_owned);
        set.or_else(|| self.profiles().named(self.profile())?.get("region").cloned())
    }

    /// The access keys of now.
    pub(crate) fn keys(&self, now: SystemTime) -> Result<Keys, AwsError> {
        // Who names a profile wants it, as with AWS's CLI.
        let named = self.variable("AWS_PROFILE");
        if named.is_none()
            && let Some(id) = self.variable("AWS_ACCESS_KEY_ID")
        {
            return self.of_environment(id);
        }
        let profiles = self.profiles();
        match profiles.named(self.profile()).filter(|settings| has_keys(settings)) {
            Some(_) => return self.of_profile(&profiles, self.profile(), now, MOST_ROLES),
            None if named.is_some() && profiles.named(self.profile()).is_none() => {
                return Err(AwsError::NoProfile(self.profile().to_owned()));
            }
            None => {}
        }
        if let Some(file) = self.variable("AWS_WEB_IDENTITY_TOKEN_FILE") {
            let role =
                self.variable("AWS_ROLE_ARN").ok_or_else(|| missing("AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_ARN"))?;
            return self.by_web_identity(
                Path::new(file),
                role,
                self.variable("AWS_ROLE_SESSION_NAME"),
                &Settings::new(),
            );
        }
        match self.of_container()? {
            Some(keys) => Ok(keys),
            None => self.of_instance(),
        }
    }

    fn of_environment(&self, id: &str) -> Result<Keys, AwsError> {
        let secret = self.variable("AWS_SECRET_ACCESS_KEY");
        let secret = secret.ok_or_else(|| missing("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"))?.into();
        let token = self.variable("AWS_SESSION_TOKEN").map(Into::into);
        Ok(Keys { id: id.to_owned(), secret, token, expires_at: None })
    }

    fn profile(&self) -> &str {
        self.variable("AWS_PROFILE").unwrap_or("default")
    }

    /// Files that are not there have no profiles.
    fn profiles(&self) -> Profiles {
        let file = |variable: &str, name: &str| {
            let home = || Some(PathBuf::from(self.variable("HOME")?).join(".aws").join(name));
            let path = self.variable(variable).map(PathBuf::from).or_else(home)?;
            fs::read_to_string(path).ok()
        };
        let config = file("AWS_CONFIG_FILE", "config").unwrap_or_default();
        Profiles::of(&config, &file("AWS_SHARED_CREDENTIALS_FILE", "credentials").unwrap_or_default())
    }

    fn of_profile(&self, profiles: &Profiles, name: &str, now: SystemTime, roles: u32) -> Result<Keys, AwsError> {
        let settings = profiles.named(name).ok_or_else(|| AwsError::NoProfile(name.to_owned()))?;
        let place = || format!("AWS profile {name:?}");
        if let Some(role) = settings.get("role_arn") {
            if let Some(file) = settings.get("web_identity_token_file") {
                let session = settings.get("role_session_name").map(String::as_str);
                return self.by_web_identity(Path::new(file), role, session, settings);
            }
            if roles == 0 {
                return Err(AwsError::Circle(name.to_owned()));
            }
            let own = match (settings.get("source_profile"), settings.get("credential_source").map(String::as_str)) {
                // A profile may be its own source: then its keys are meant.
                (Some(source), _) if source == name => of_settings(settings, &place())?,
                (Some(source), _) => self.of_profile(profiles, source, now, roles - 1)?,
                (None, Some("Environment")) => {
                    let id =
                        self.variable("AWS_ACCESS_KEY_ID").ok_or_else(|| missing(&place(), "AWS_ACCESS_KEY_ID"))?;
                    self.of_environment(id)?
                }
                (None, Some("EcsContainer")) => {
                    self.of_container()?.ok_or_else(|| missing(&place(), "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"))?
                }
                (None, Some("Ec2InstanceMetadata")) => self.of_instance()?,
                (None, _) => return Err(missing(&place(), "source_profile or credential_source")),
            };
            return self.by_role(&own, role, settings, now);
        }
        if settings.contains_key("aws_access_key_id") {
            return of_settings(settings, &place());
        }
        if let Some(line) = settings.get("credential_process") {
            let command = SecretCommand::parse(line).map_err(AwsError::Program)?;
            let output = command.output().map_err(AwsError::Program)?;
            return written(output.expose_secret(), "credential_process");
        }
        Err(AwsError::Sso(name.to_owned()))
    }

    /// By a token of somebody whom AWS trusts, as Kubernetes mounts it.
    fn by_web_identity(
        &self,
        file: &Path,
        role: &str,
        session: Option<&str>,
        settings: &Settings,
    ) -> Result<Keys, AwsError> {
        let token = read(file)?;
        let body = joined(&[
            ("Action", "AssumeRoleWithWebIdentity"),
            ("Version", "2011-06-15"),
            ("RoleArn", role),
            ("RoleSessionName", session.unwrap_or(SESSION)),
            ("WebIdentityToken", token.expose_secret().trim()),
        ]);
        let host = self.token_service(settings);
        let url = self.variable("AWS_ENDPOINT_URL_STS").map_or_else(|| format!("https://{host}/"), str::to_owned);
        let headers = [("Content-Type", "application/x-www-form-urlencoded")];
        let answer = send(&Request { method: "POST", url: &url, headers: &headers, body: body.as_bytes() }, &host)?;
        of_token_service(&answer, &host)
    }

    /// By keys that may take the role.
    fn by_role(&self, own: &Keys, role: &str, settings: &Settings, now: SystemTime) -> Result<Keys, AwsError> {
        let host = self.token_service(settings);
        let region = self.region_of(settings);
        let session = settings.get("role_session_name").map_or(SESSION, String::as_str);
        let mut query =
            vec![("Action", "AssumeRole"), ("Version", "2011-06-15"), ("RoleArn", role), ("RoleSessionName", session)];
        query.extend(settings.get("external_id").map(|id| ("ExternalId", id.as_str())));
        let presigned = Presigned { host: &host, region: &region, service: "sts", query: &query, expires_seconds: 60 };
        let url = presigned.url(own, now);
        let request = Request { method: "GET", url: url.expose_secret(), headers: &[], body: b"" };
        of_token_service(&send(&request, &host)?, &host)
    }

    fn region_of(&self, settings: &Settings) -> String {
        settings.get("region").cloned().or_else(|| self.region()).unwrap_or_else(|| "us-east-1".to_owned())
    }

    /// The host of AWS's token service, in our region.
    fn token_service(&self, settings: &Settings) -> String {
        let region = self.region_of(settings);
        let domain = if region.starts_with("cn-") { "amazonaws.com.cn" } else { "amazonaws.com" };
        format!("sts.{region}.{domain}")
    }

    /// `None`: this is no container of AWS.
    fn of_container(&self) -> Result<Option<Keys>, AwsError> {
        let url = match (
            self.variable("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"),
            self.variable("AWS_CONTAINER_CREDENTIALS_FULL_URI"),
        ) {
            (Some(path), _) => format!("{CONTAINER}{path}"),
            (None, Some(url)) => url.to_owned(),
            (None, None) => return Ok(None),
        };
        let service = "the container's credential service";
        if !Url::of(&url).is_some_and(|url| url.is_https || is_near(url.host)) {
            let reason = "it is neither https, nor on this machine, nor an address of ECS or EKS";
            let source = io::Error::new(io::ErrorKind::InvalidInput, reason);
            return Err(AwsError::Silent { service: "AWS_CONTAINER_CREDENTIALS_FULL_URI".to_owned(), source });
        }
        let token = match self.variable("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE") {
            Some(file) => Some(read(Path::new(file))?),
            None => self.variable("AWS_CONTAINER_AUTHORIZATION_TOKEN").map(Into::into),
        };
        let headers: Vec<_> = token.iter().map(|token| ("Authorization", token.expose_secret())).collect();
        let answer = send(&Request { method: "GET", url: &url, headers: &headers, body: b"" }, service)?;
        written(&answer.body, service).map(Some)
    }

    fn of_instance(&self) -> Result<Keys, AwsError> {
        let off = self.variable("AWS_EC2_METADATA_DISABLED").is_some_and(|off| off.eq_ignore_ascii_case("true"));
        if off {
            return Err(AwsError::Nowhere(io::Error::other("AWS_EC2_METADATA_DISABLED is true")));
        }
        let base = self.variable("AWS_EC2_METADATA_SERVICE_ENDPOINT").unwrap_or(INSTANCE).trim_end_matches('/');
        let service = "the instance's metadata service";
        let url = format!("{base}/latest/api/token");
        let lasting = [("X-aws-ec2-metadata-token-ttl-seconds", "300")];
        let request = Request { method: "PUT", url: &url, headers: &lasting, body: b"" };
        let session = succeeded(request.send().map_err(AwsError::Nowhere)?, service)?.body;
        let get = |path: &str| {
            let url = format!("{base}/latest/meta-data/iam/security-credentials/{path}");
            let headers = [("X-aws-ec2-metadata-token", session.as_str())];
            send(&Request { method: "GET", url: &url, headers: &headers, body: b"" }, service)
        };
        let role = get("")?.body;
        written(&get(role.lines().next().unwrap_or_default().trim())?.body, service)
    }
}

fn has_keys(settings: &Settings) -> bool {
    let any = ["aws_access_key_id", "role_arn", "credential_process", "sso_session", "sso_start_url"];
    any.iter().any(|key| settings.contains_key(*key))
}

fn of_settings(settings: &Settings, place: &str) -> Result<Keys, AwsError> {
    let needed = |name: &str| settings.get(name).ok_or_else(|| missing(place, name));
    let (id, secret) = (needed("aws_access_key_id")?.clone(), needed("aws_secret_access_key")?.as_str().into());
    let token = settings.get("aws_session_token").map(|token| token.as_str().into());
    Ok(Keys { id, secret, token, expires_at: None })
}

fn missing(place: &str, missing: &str) -> AwsError {
    AwsError::Missing { place: place.to_owned(), missing: missing.to_owned() }
}

fn read(path: &Path) -> Result<SecretString, AwsError> {
    let failed = |error: io::Error| AwsError::File { path: path.to_owned(), reason: error.to_string() };
    fs::read_to_string(path).map(Into::into).map_err(failed)
}

fn is_near(host: &str) -> bool {
    let is_loopback = host.parse().is_ok_and(|address: std::net::IpAddr| address.is_loopback());
    host == "localhost" || is_loopback || PLAIN_HOSTS.contains(&host)
}

fn send(request: &Request<'_>, service: &str) -> Result<Answer, AwsError> {
    let answer = request.send().map_err(|source| AwsError::Silent { service: service.to_owned(), source })?;
    succeeded(answer, service)
}

/// The words of a refusal are AWS's code and message; the rest of it may be anything.
fn succeeded(answer: Answer, service: &str) -> Result<Answer, AwsError> {
    if answer.status == 200 {
        return Ok(answer);
    }
    let words = [element(&answer.body, "Code"), element(&answer.body, "Message").map(super::words)];
    let words = words.into_iter().flatten().fold(String::new(), |words, word| words + ": " + word);
    let code = element(&answer.body, "Code").unwrap_or_default().to_owned();
    Err(AwsError::Refused { service: service.to_owned(), status: answer.status, code, words })
}

fn of_token_service(answer: &Answer, service: &str) -> Result<Keys, AwsError> {
    let part = |name| element(&answer.body, name).map(str::to_owned);
    let keys = part("AccessKeyId").zip(part("SecretAccessKey"));
    let (access_key_id, secret_access_key) = keys.ok_or_else(|| AwsError::NoKeys(service.to_owned()))?;
    let written =
        Written { access_key_id, secret_access_key, token: part("SessionToken"), expiration: part("Expiration") };
    Ok(written.into())
}

/// The text of the first XML element of that name. Keys and codes have nothing in them that XML would escape.
pub(crate) fn element<'a>(xml: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = xml.split_once(&format!("<{name}>"))?;
    rest.split_once(&format!("</{name}>")).map(|(text, _)| text)
}

fn written(json: &str, service: &str) -> Result<Keys, AwsError> {
    let written: Result<Written, _> = serde_json::from_str(json);
    written.map(Into::into).map_err(|_| AwsError::NoKeys(service.to_owned()))
}

impl From<Written> for Keys {
    fn from(written: Written) -> Self {
        Self {
            id: written.access_key_id,
            secret: written.secret_access_key.into(),
            token: written.token.filter(|token| !token.is_empty()).map(Into::into),
            expires_at: written.expiration.as_deref().and_then(time::of_extended),
        }
    }
}

#[cfg(test)]
mod tests;
