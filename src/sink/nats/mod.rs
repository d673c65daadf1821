//! NATS JetStream: its settings, its [`Kind`], and its sink.
//!
//! In: `--to nats://user:password@host:port,host:port`, properties, records. Out: `NatsSettings` as a [`Destination`]: sinks, checks, dead-letter
//! records, a stream for measurements. A record becomes one message to the subject that is its topic, and counts as delivered once
//! JetStream has acknowledged it. Many messages are under way at a time, and of each key of a subject at most one, or with `atomic` one batch.
//! No error here shows a secret.
//!
//! Invariant: a later record of a key is never sent while an earlier one is refused and not resolved, or while its outcome is unknown.
//! Specification: NATS, "Client Protocol", JetStream. The library `async-nats` speaks the protocol.

mod check;
mod client;
mod dead_letters;
mod errors;
mod message;
mod reader;

#[cfg(test)]
pub(super) use self::errors::remedied;

use self::client::{ANSWERED_WITHIN, NatsConnection, NatsSession, QUEUE};
use self::dead_letters::SubjectPages;
pub use self::errors::classify;
use self::errors::{Answered, log_in_fails};
use self::message::MessageId;
use self::reader::StreamReader;
use super::{Failure, FailureClass, Record, Sink};
use crate::check_finding::Finding;
use crate::route::{AddressRule, TopicFault};
use crate::secret::Secret;
use crate::setting_text::{Given, Origin, SettingError};
use crate::sink::destination::{
    Can, DeadLetters, Delivery, Destination, EventBinding, GivenSettings, Kind, NoDeadLetters, NoReader, ReadBack,
    Scratch, ScratchError, Wanted,
};
use crate::sink::ordered_queue::address::{Address, Server, secret, switch, timeout, tls};
use crate::sink::ordered_queue::socket::{self, Tls};
use crate::sink::ordered_queue::{QueueSink, REACHED_WITHIN, RECORD_OVERHEAD_BYTES, Receiver, block_on, drive};
use crate::sink::reading::RecordReader;
use async_nats::ConnectOptions;
use secrecy::ExposeSecret as _;
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

/// The kind `nats`.
pub const KIND: Kind = Kind {
    name: "nats",
    title: "NATS",
    schemes: &SCHEMES,
    example: EXAMPLE,
    topics: &SUBJECTS,
    can: Can { exactly_once: false, partitions: false, null_values: false, debezium: false, dead_letters: true },
    properties: &PROPERTIES,
    passes_others: false,
    record_overhead_bytes: RECORD_OVERHEAD_BYTES,
    read,
    refusals: || errors::REFUSALS.to_vec(),
    reasons: || errors::REASONS.to_vec(),
};

/// The names of all properties.
const PROPERTIES: [&str; 14] = [
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

/// The library sends this many pings into silence, and then counts the connection as lost.
const PINGS: u32 = 3;

/// The default of `timeout`: how long the server may be silent while acknowledgements are due.
const TIMEOUT: Duration = Duration::from_secs(20);

const DEFAULT_PORT: u16 = 4222;

/// The schemes, without and with encryption.
const SCHEMES: [&str; 2] = ["nats", "tls"];

/// An address as an example.
const EXAMPLE: &str = "nats://HOST:PORT,HOST:PORT";

/// The form of an address, for messages.
const ADDRESS: &str = "HOST:PORT,HOST:PORT, with USER:PASSWORD@ or TOKEN@ in front";

/// The default prefix of the subjects of answers.
const INBOX: &str = "_INBOX";

/// The rule for subjects: parts between dots, without wildcards.
static SUBJECTS: AddressRule = AddressRule {
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

/// Servers and how to use them. `Debug` shows no secret.
#[derive(Debug, Clone)]
struct NatsSettings {
    /// At least one server. Any of them will do.
    servers: Vec<Server>,
    /// Whether to send nothing without TLS.
    tls_wanted: bool,
    /// Whether TLS begins before the server's first message.
    tls_first: bool,
    /// The settings of TLS, if the user or the server wants it.
    tls: Tls,
    login: LogIn,
    /// The prefix of the subjects of answers.
    inbox: String,
    /// The stream that has to take every message. `None`: any stream.
    stream: Option<String>,
    /// Whether several messages of a key go as one batch, if the stream allows it.
    atomic: bool,
    id: MessageId,
    /// How long the server may be silent while acknowledgements are due. The library pings it long before.
    timeout: Duration,
    /// The client's name at the server.
    client: String,
    /// The most bytes in flight.
    max_in_flight: usize,
}

/// The credentials.
#[derive(Debug, Clone)]
enum LogIn {
    /// No credentials.
    None,
    /// A user, whose password may be empty.
    Password(String, Secret),
    /// A token that all clients share.
    Token(Secret),
    /// A key's seed.
    Nkey(Secret),
    /// A JWT with a key's seed.
    Credentials(Secret),
}

fn read(asked: &mut GivenSettings<'_>) -> Result<Arc<dyn Destination>, SettingError> {
    let settings = NatsSettings::read(asked)?;
    let from_flag = asked.addresses.iter().any(|address| matches!(address.origin, Origin::Flag(_)));
    if from_flag && asked.property("token").is_none() && matches!(settings.login, LogIn::Token(_)) {
        let warning = "--to: its token shows in ps: use the variable WALRELAY_TO, or -X token=@FILE";
        asked.warnings.push(warning.to_owned());
    }
    Ok(Arc::new(settings))
}

impl Destination for NatsSettings {
    fn kind(&self) -> &'static Kind {
        &KIND
    }

    fn address(&self) -> String {
        Server::addresses(&self.servers)
    }

    fn open(&self, client: &str, _how: Delivery) -> Result<Box<dyn Sink + Send>, SettingError> {
        let settings = self.named(client);
        let bytes = settings.max_in_flight;
        QueueSink::start("nats", bytes, admit, async move |receiver: &mut Receiver| {
            drive::<NatsSession<'_>>(&settings, receiver).await;
        })
    }

    fn check(&self, wanted: &Wanted<'_>) -> Vec<Finding> {
        check::check(&self.named(wanted.client), wanted)
    }

    fn dead_letters(&self, client: &str, topic: &str) -> Result<Box<dyn DeadLetters>, NoDeadLetters> {
        Ok(Box::new(SubjectPages::open(self.named(client), topic)?))
    }

    fn reader(&self, client: &str) -> Result<Box<dyn RecordReader>, NoReader> {
        let reader = StreamReader::new(self.named(client)).map_err(NoReader::Settings)?;
        Ok(Box::new(reader))
    }

    fn reads_back(&self) -> ReadBack {
        ReadBack::Unordered { null_value_is_empty: true }
    }

    fn event_binding(&self) -> Option<EventBinding> {
        Some(EventBinding { prefix: "ce-", percent_encoded: true })
    }

    fn scratch(&self, client: &str, topic: &str, _partitions: i32) -> Result<Box<dyn Scratch>, ScratchError> {
        let stream = ScratchStream { settings: self.named(client), subject: topic.to_owned() };
        if stream.ask("create stream", "INFO", "").is_ok() {
            return Err(stream.failed("create stream", "there is a stream of that name".to_owned()));
        }
        let config = json!({ "name": stream.name(), "subjects": [topic], "storage": "file" });
        stream.ask("create stream", "CREATE", &config.to_string())?;
        Ok(Box::new(stream))
    }
}

/// A stream of one subject.
struct ScratchStream {
    settings: NatsSettings,
    subject: String,
}

impl ScratchStream {
    fn name(&self) -> String {
        self.subject.replace('.', "_")
    }

    fn failed(&self, what: &'static str, reason: String) -> ScratchError {
        ScratchError { what, topic: self.subject.clone(), reason }
    }

    fn ask(&self, what: &'static str, request: &str, data: &str) -> Result<(), ScratchError> {
        let failed = |reason: String| self.failed(what, reason);
        let answered = block_on(async {
            let mut connection = NatsConnection::open(&self.settings, 0).await?;
            connection.ask(&format!("$JS.API.STREAM.{request}.{}", self.name()), data).await
        });
        match answered.map_err(|failure| failed(failure.text))? {
            Answered::With(_) => Ok(()),
            Answered::Refused(error, _) => Err(failed(error)),
            Answered::Forbidden => Err(failed("the user may not ask for it".to_owned())),
        }
    }
}

impl Scratch for ScratchStream {
    fn remove(self: Box<Self>) -> Result<(), ScratchError> {
        self.ask("remove stream", "DELETE", "")
    }
}

/// Refuses records that no server would take.
fn admit(record: &Record<'_>) -> Result<(), Failure> {
    let fault = message::fault(record);
    fault.map_or(Ok(()), |text| Err(Failure::new(FailureClass::Row, errors::HEADERS, text)))
}

impl NatsSettings {
    /// These settings, under this client's name.
    fn named(&self, client: &str) -> Self {
        Self { client: client.to_owned(), ..self.clone() }
    }

    /// The options for the library's client. Files are read at each connection, so that they can change.
    fn options(&self, address: &str) -> Result<ConnectOptions, Failure> {
        let mut options = ConnectOptions::new()
            .name(&self.client)
            .custom_inbox_prefix(&self.inbox)
            .require_tls(self.tls_wanted)
            .ignore_discovered_servers()
            .connection_timeout(REACHED_WITHIN)
            .request_timeout(Some(ANSWERED_WITHIN))
            .ping_interval(self.timeout / PINGS)
            .client_capacity(QUEUE)
            .subscription_capacity(2 * QUEUE);
        if self.tls_first {
            options = options.tls_first();
        }
        // A server may ask for TLS though no setting does. The library then trusts what the machine trusts, if this is not set.
        let asks_for_tls = self.tls_wanted || self.tls_first || self.tls != Tls::default();
        match socket::client_config(&self.tls) {
            Ok(config) => options = options.tls_client_config(config),
            Err(reason) if asks_for_tls => return Err(KIND.broken(address, &reason)),
            Err(_) => {}
        }
        let wrong = |what: &str| log_in_fails(address, what);
        let read = |secret: &Secret| match secret.read() {
            Ok(text) => Ok(text.expose_secret().to_owned()),
            Err(error) => Err(wrong(&error.to_string())),
        };
        Ok(match &self.login {
            LogIn::None => options,
            LogIn::Password(user, password) => options.user_and_password(user.clone(), read(password)?),
            LogIn::Token(token) => options.token(read(token)?),
            LogIn::Nkey(seed) => options.nkey(read(seed)?.trim().to_owned()),
            // The library wants the newline at the end, which is not part of a secret.
            LogIn::Credentials(file) => options
                .credentials(&format!("{}\n", read(file)?))
                .map_err(|_| wrong("the credentials file holds no JWT with a user's seed"))?,
        })
    }

    fn read(asked: &GivenSettings<'_>) -> Result<Self, SettingError> {
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

/// The servers of an address, and the credentials in front of one of them.
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

/// The credentials from properties, which exclude each other.
fn login(asked: &GivenSettings<'_>) -> Result<Option<LogIn>, SettingError> {
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

/// The secret in the file that a property names, with or without `@`.
fn file_of(given: &Given) -> Secret {
    match &given.origin {
        Origin::FlagFile(from) => Secret::File(from.file.clone()),
        Origin::Flag(_) | Origin::Variable(_) | Origin::Key(_) | Origin::Translated(_) => {
            Secret::File(given.text.clone().into())
        }
    }
}

/// Reads the property `atomic`. It needs `stream`, since the client has to ask the stream whether it allows batches.
fn atomic(asked: &GivenSettings<'_>) -> Result<bool, SettingError> {
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

/// Reads the prefix of the subjects of answers.
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
    use crate::setting_text::FlagFile;
    use crate::sink::tests::read_in_test;

    fn read(scheme: &str, address: &str, properties: &[(&str, &str)]) -> Result<NatsSettings, SettingError> {
        read_in_test(scheme, address, properties, |asked| NatsSettings::read(asked))
    }

    /// The login with its secrets, which is what is tested.
    fn shown(settings: &NatsSettings) -> String {
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
            NatsSettings::read(asked)
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
