//! A NATS destination's address and properties, as users write them.
//!
//! In: `nats://user:password@host:port,host:port` and `-X` properties. Out: [`Settings`]. No error here shows a secret.

use super::message::MessageId;
use super::settings::{LogIn, Settings};
use crate::given::{Given, Origin, SettingError};
use crate::route::{Rule, TopicFault};
use crate::secret::Secret;
use crate::sink::destination::Asked;
use crate::sink::lanes::address::{Address, Server, secret, switch, timeout, tls};
use std::time::Duration;

/// Every property.
pub(super) const PROPERTIES: [&str; 14] = [
    "username",
    "password",
    "token",
    "nkey",
    "credentials",
    "stream",
    "atomic",
    "msg-id",
    "inbox",
    "tls.ca",
    "tls.certificate",
    "tls.key",
    "tls.first",
    "timeout",
];

/// How long the server may be silent while acknowledgements are due, unless said.
const TIMEOUT: Duration = Duration::from_secs(20);

const DEFAULT_PORT: u16 = 4222;

/// What stands before `://`, without and with encryption.
pub(super) const SCHEMES: [&str; 2] = ["nats", "tls"];

/// An address as an example.
pub(super) const EXAMPLE: &str = "nats://HOST:PORT,HOST:PORT";

/// What is asked of an address, for messages.
const ADDRESS: &str = "HOST:PORT,HOST:PORT, with USER:PASSWORD@ or TOKEN@ in front";

/// What the subjects of answers begin with, unless said.
const INBOX: &str = "_INBOX";

/// A subject that messages may be published to: parts between dots, without what stands for several subjects.
pub(super) static SUBJECTS: Rule = Rule {
    expected: "a subject: parts with dots between them, without spaces, * and >",
    made_of: "a subject (spaces, '*', '>' and control characters are not)",
    allows: |character| !character.is_whitespace() && !character.is_control() && !matches!(character, '*' | '>'),
    // The server's line for a message has 4096 bytes by default.
    longest_bytes: 1024,
    also: |name| {
        let reserved = ["$", "_INBOX."].into_iter().find(|start| name.starts_with(start)).map(TopicFault::Reserved);
        let empty = || name.split('.').any(str::is_empty).then_some(TopicFault::EmptyPart);
        reserved.or_else(empty)
    },
};

impl Settings {
    pub(super) fn read(asked: &Asked<'_>) -> Result<Self, SettingError> {
        let address = asked.address("server", EXAMPLE)?;
        let property = |name: &str| asked.property(name);
        let (servers, in_address) = servers(address)?;
        Ok(Self {
            servers,
            tls_wanted: asked.scheme == "tls",
            tls_first: property("tls.first").map_or(Ok(false), switch)?,
            tls: tls(asked)?,
            login: login(asked)?.or(in_address).unwrap_or(LogIn::None),
            inbox: property("inbox").map_or_else(|| Ok(INBOX.to_owned()), inbox)?,
            stream: property("stream").map(stream).transpose()?,
            atomic: atomic(asked)?,
            timeout: property("timeout").map_or(Ok(TIMEOUT), timeout)?,
            id: property("msg-id").map_or_else(|| Ok(MessageId::default()), message_id)?,
            client: "walrelay".to_owned(),
            max_in_flight: asked.max_in_flight,
        })
    }
}

/// The servers, and the login that stands in front of one of them.
fn servers(given: &Given) -> Result<(Vec<Server>, Option<LogIn>), SettingError> {
    let (mut servers, mut login) = (Vec::new(), None);
    for part in given.text.split(',') {
        // Other clients repeat the scheme.
        let part = part.split_once("://").map_or(part, |(_, part)| part);
        let part = Given { text: part.to_owned(), origin: given.origin.clone() };
        let Address { user, password, servers: here, path } = Address::of(&part, DEFAULT_PORT, ADDRESS)?;
        if let Some(path) = path {
            return Err(Given { text: format!("…/{path}"), ..part }.invalid(ADDRESS, None));
        }
        servers.extend(here);
        let secret = |text: String| Secret::Text(text.into());
        login = match (user, password) {
            (user, Some(password)) => Some(LogIn::Password(user.unwrap_or_default(), secret(password))),
            (Some(token), None) => Some(LogIn::Token(secret(token))),
            (None, None) => login,
        };
    }
    Ok((servers, login))
}

/// What properties say of it; they exclude each other.
fn login(asked: &Asked<'_>) -> Result<Option<LogIn>, SettingError> {
    let given = ["username", "token", "nkey", "credentials"].map(|name| Some((name, asked.property(name)?)));
    let mut given = given.into_iter().flatten();
    let (first, second) = (given.next(), given.next());
    if let (Some((_, first)), Some((_, second))) = (first, second) {
        return Err(first.excludes(second));
    }
    let password = asked.property("password");
    Ok(match (first, password) {
        (None, None) => None,
        (None, Some(password)) => return Err(password.needs("username")),
        (Some(("username", user)), None) => return Err(user.needs("password")),
        (Some(("username", user)), Some(password)) => Some(LogIn::Password(user.text.clone(), secret(password))),
        (Some((_, first)), Some(password)) => {
            return Err(first.excludes(password));
        }
        (Some(("token", token)), None) => Some(LogIn::Token(secret(token))),
        (Some(("nkey", file)), None) => Some(LogIn::Nkey(file_of(file))),
        (Some((_, file)), None) => Some(LogIn::Credentials(file_of(file))),
    })
}

/// A property that names a file; `@` in front of it is the same.
fn file_of(given: &Given) -> Secret {
    match &given.origin {
        Origin::FlagFile(from) => Secret::File(from.file.clone()),
        Origin::Flag(_) | Origin::Variable(_) | Origin::Key(_) | Origin::Translated(_) => {
            Secret::File(given.text.clone().into())
        }
    }
}

/// Whether a stream allows it can be asked only where its name is known.
fn atomic(asked: &Asked<'_>) -> Result<bool, SettingError> {
    match (asked.property("atomic"), asked.property("stream")) {
        (Some(given), None) => Err(given.needs("stream")),
        (Some(given), Some(_)) => switch(given),
        (None, _) => Ok(false),
    }
}

fn message_id(given: &Given) -> Result<MessageId, SettingError> {
    match given.text.as_str() {
        "id" => Ok(MessageId::Id),
        "subject" => Ok(MessageId::SubjectAndId),
        _ => Err(given.invalid("id, or subject for the subject and the id", None)),
    }
}

/// Parts of a subject, of which answers get one of their own.
fn inbox(given: &Given) -> Result<String, SettingError> {
    let fits = given.text.chars().all(SUBJECTS.allows) && !given.text.split('.').any(str::is_empty);
    if fits { Ok(given.text.clone()) } else { Err(given.invalid(SUBJECTS.expected, None)) }
}

fn stream(given: &Given) -> Result<String, SettingError> {
    let fits =
        !given.text.is_empty() && given.text.chars().all(|c| (SUBJECTS.allows)(c) && !matches!(c, '.' | '/' | '\\'));
    if fits {
        Ok(given.text.clone())
    } else {
        Err(given.invalid("a stream's name, without dots, slashes and spaces", None))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::given::FlagFile;
    use crate::sink::destination::Destination as _;
    use crate::sink::tests::read_in_test;
    use secrecy::ExposeSecret as _;

    fn read(scheme: &str, address: &str, properties: &[(&str, &str)]) -> Result<Settings, SettingError> {
        read_in_test(scheme, address, properties, |asked| Settings::read(asked))
    }

    /// The login with its secrets, which is what is tested.
    fn shown(settings: &Settings) -> String {
        let read = |secret: &Secret| match secret {
            Secret::File(path) => format!("@{}", path.display()),
            Secret::Text(_) | Secret::Command(_) => secret.read().unwrap().expose_secret().to_owned(),
        };
        match &settings.login {
            LogIn::None => "none".to_owned(),
            LogIn::Password(user, secret) => format!("{user} {}", read(secret)),
            LogIn::Token(secret) => format!("token {}", read(secret)),
            LogIn::Nkey(secret) => format!("nkey {}", read(secret)),
            LogIn::Credentials(secret) => format!("credentials {}", read(secret)),
        }
    }

    #[test]
    fn an_address_names_servers_and_a_log_in() {
        let plain = read("nats", "h", &[]).unwrap();
        assert_eq!((plain.address().as_str(), plain.tls_wanted, shown(&plain).as_str()), ("h:4222", false, "none"));
        let several = read("tls", "app:p%40ss@a:1,tls://b,[::1]:7/", &[("tls.ca", "/ca.pem")]).unwrap();
        assert_eq!((several.address().as_str(), several.tls_wanted), ("a:1,b:4222,::1:7", true));
        assert_eq!(shown(&several), "app p@ss");
        assert_eq!(shown(&read("nats", "s3cr%21t@h", &[]).unwrap()), "token s3cr!t");
    }

    #[test]
    fn properties_say_as_whom_and_count_before_the_address() {
        let login = |properties: &[(&str, &str)]| shown(&read("nats", "u:p@h", properties).unwrap());
        assert_eq!(login(&[]), "u p");
        assert_eq!(login(&[("username", "v"), ("password", "q")]), "v q");
        assert_eq!(login(&[("token", "t")]), "token t");
        assert_eq!(login(&[("nkey", "/seed")]), "nkey @/seed");
        assert_eq!(login(&[("credentials", "/app.creds")]), "credentials @/app.creds");
        let flag_file = FlagFile { flag: "-X token".to_owned(), file: "/token".into() };
        let from_file = Given { text: "old".to_owned(), origin: Origin::FlagFile(Box::new(flag_file)) };
        let from_file = read_in_test("nats", "h", &[], |asked| {
            asked.properties.push(("token".to_owned(), from_file));
            Settings::read(asked)
        });
        assert_eq!(shown(&from_file.unwrap()), "token @/token");
    }

    #[test]
    fn what_is_not_valid_is_refused_and_no_secret_shown() {
        for (address, properties) in [
            ("", vec![]),
            ("h:port", vec![]),
            ("h,", vec![]),
            ("h/x", vec![]),
            ("%zz:p@h", vec![]),
            ("h", vec![("password", "p")]),
            ("h", vec![("username", "u")]),
            ("h", vec![("token", "t"), ("nkey", "n")]),
            ("h", vec![("token", "t"), ("password", "n")]),
            ("h", vec![("tls.first", "yes")]),
            ("h", vec![("tls.key", "k")]),
            ("h", vec![("msg-id", "both")]),
            ("h", vec![("inbox", "a..b")]),
            ("h", vec![("stream", "a.b")]),
            ("h", vec![("atomic", "true")]),
            ("h", vec![("stream", "a"), ("atomic", "yes")]),
            ("h", vec![("timeout", "500ms")]),
            ("h", vec![("timeout", "2h")]),
            ("h", vec![("timeout", "soon")]),
        ] {
            assert!(read("nats", address, &properties).is_err(), "{address} {properties:?}");
        }
        let error = read("nats", "u:hush@h:port", &[]).unwrap_err();
        let settings = read("nats", "u:hush@h", &[]).unwrap();
        assert!(!format!("{error} {error:?} {settings:?}").contains("hush"));
    }

    #[test]
    fn subjects_are_distinguished_from_what_is_none() {
        for subject in ["a", "outbox.order", "outbox.Ärger-1_2", "a:b/c", "a$b"] {
            assert_eq!(SUBJECTS.check(subject), Ok(()), "{subject}");
        }
        for subject in
            ["", ".", "a.", ".a", "a..b", "a b", "a.*", "a>", "a\tb", "$JS.API.INFO", "_INBOX.x", &"x".repeat(1025)]
        {
            assert!(SUBJECTS.check(subject).is_err(), "{subject}");
        }
    }
}
