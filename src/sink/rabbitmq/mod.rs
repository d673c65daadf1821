//! RabbitMQ: its settings, its [`Kind`], and its sink.
//!
//! In: `--to amqp://user:password@host:port,host:port/vhost`, properties, records. Out: `RabbitSettings` as a [`Destination`]: sinks, checks, a queue for
//! measurements. A record becomes one message to an exchange, with the record's topic as routing key. It counts as delivered when the
//! broker has confirmed its message and has not returned it. At most one message of a key is under way. No error here shows a password.
//!
//! Invariant: a later record of a key is never published while an earlier one is refused and not resolved, or while its outcome is unknown.
//! Specification: AMQP 0-9-1; RabbitMQ, "URI Specification", "Consumer Acknowledgements and Publisher Confirms". The library `lapin` speaks the
//! protocol.

mod check;
mod client;
mod errors;
mod message;

#[cfg(test)]
pub(super) use self::errors::remedied;

use self::client::RabbitmqConnection;
use self::message::SHORT;
use super::{Failure, Record, Sink};
use crate::check_finding::Finding;
use crate::route::AddressRule;
use crate::secret::{Secret, SecretCommand};
use crate::setting_text::{Given, SettingError};
use crate::sink::destination::{
    Can, Delivery, Destination, EventBinding, GivenSettings, Kind, Scratch, ScratchError, Wanted,
};
use crate::sink::ordered_queue::address::{Address, Server, secret, switch, time, tls};
use crate::sink::ordered_queue::socket::Tls;
use crate::sink::ordered_queue::{QueueSink, RECORD_OVERHEAD_BYTES, Receiver, block_on};
use std::sync::Arc;
use std::time::Duration;

/// The kind `rabbitmq`.
pub const KIND: Kind = Kind {
    name: "rabbitmq",
    title: "RabbitMQ",
    schemes: &SCHEMES,
    example: EXAMPLE,
    topics: &ROUTING_KEYS,
    can: Can { exactly_once: false, partitions: false, null_values: false, debezium: false, dead_letters: false },
    properties: &PROPERTIES,
    passes_others: false,
    record_overhead_bytes: RECORD_OVERHEAD_BYTES,
    read: |asked| Ok(Arc::new(RabbitSettings::read(asked)?)),
    refusals: || errors::REFUSALS.to_vec(),
    reasons: || errors::REASONS.to_vec(),
};

/// The names of all properties.
const PROPERTIES: [&str; 14] = [
    "exchange",
    "exchange-column",
    "declare",
    "mandatory",
    "queue",
    "username",
    "password",
    PASSWORD_COMMAND,
    "vhost",
    "auth",
    "heartbeat",
    "tls.ca",
    "tls.certificate",
    "tls.key",
];

const PASSWORD_COMMAND: &str = "password-command";

/// The rule for routing keys: any text of up to so many bytes.
static ROUTING_KEYS: AddressRule = AddressRule {
    expected: "a text of 1 to 255 bytes",
    made_of: "a routing key (all others are)",
    allows: |character| character != '\0',
    longest_bytes: SHORT,
    also: |_| None,
};

/// The schemes, without and with encryption.
const SCHEMES: [&str; 2] = ["amqp", "amqps"];

/// An address as an example.
const EXAMPLE: &str = "amqp://USER@HOST:PORT/VHOST";

const PORTS: (u16, u16) = (5672, 5671);
const EXCHANGE: &str = "outbox";
const VHOST: &str = "/";
const HEARTBEAT: Duration = Duration::from_secs(10);

/// The user and the password of a new server, which accepts them only from its own machine.
const GUEST: &str = "guest";

/// A broker and how to use it. `Debug` shows no secret.
#[derive(Debug, Clone)]
struct RabbitSettings {
    /// The servers of one cluster, at least one.
    servers: Vec<Server>,
    vhost: String,
    tls: Option<Tls>,
    login: Login,
    /// The exchange for messages. Empty: the default exchange, in which a routing key is a queue's name.
    exchange: String,
    /// The column with a row's own exchange. If its value is null or empty, `exchange` counts.
    exchange_column: Option<String>,
    /// The queue that is declared or checked.
    queue: Option<String>,
    /// Whether to declare exchange and queue at each connection.
    declare: bool,
    /// Whether the broker returns a message that no queue takes. Without, it drops and confirms it.
    mandatory: bool,
    /// The interval of heartbeats.
    heartbeat: Duration,
    /// The client's name at the broker.
    client: String,
    /// The most bytes in flight.
    max_in_flight: usize,
}

/// The way of authentication.
#[derive(Debug, Clone)]
enum Login {
    /// A user, with a password or with a token in its place.
    Plain { user: String, password: Secret },
    /// The client's certificate.
    External,
}

impl Destination for RabbitSettings {
    fn kind(&self) -> &'static Kind {
        &KIND
    }

    fn address(&self) -> String {
        Server::addresses(&self.servers)
    }

    fn open(&self, client: &str, _how: Delivery) -> Result<Box<dyn Sink + Send>, SettingError> {
        let settings = self.named(client);
        let bytes = settings.max_in_flight;
        QueueSink::start("rabbitmq", bytes, admit, async move |receiver: &mut Receiver| {
            Box::pin(client::run(&settings, receiver)).await;
        })
    }

    fn check(&self, wanted: &Wanted<'_>) -> Vec<Finding> {
        check::check(&self.named(wanted.client), wanted)
    }

    /// CloudEvents' "AMQP Protocol Binding". RabbitMQ has its application properties as headers.
    fn event_binding(&self) -> Option<EventBinding> {
        Some(EventBinding { prefix: "cloudEvents_", percent_encoded: false })
    }

    fn header_column(&self) -> Option<(&'static str, &str)> {
        self.exchange_column.as_deref().map(|column| (message::EXCHANGE, column))
    }

    fn scratch(&self, client: &str, topic: &str, _partitions: i32) -> Result<Box<dyn Scratch>, ScratchError> {
        let queue = ScratchQueue { settings: self.named(client), queue: topic.to_owned() };
        queue.asked("create queue", async |connection| {
            let Self { exchange, .. } = &queue.settings;
            if connection.queue_declare(topic, true).await?.is_ok() {
                return Ok(Err("there is a queue of that name".to_owned()));
            }
            let declared = connection.queue_declare(topic, false).await?;
            let bound = match declared {
                Ok(()) if !exchange.is_empty() => connection.queue_bind(topic, exchange, topic).await?,
                declared => declared,
            };
            if bound.is_err() {
                // The queue's bindings go with it. If the user lacks the right to configure, nothing was declared.
                drop(connection.queue_delete(topic).await?);
            }
            Ok(bound.map_err(|refusal| refusal.text))
        })?;
        Ok(Box::new(queue))
    }
}

/// A quorum queue for a measurement, bound by its name.
struct ScratchQueue {
    settings: RabbitSettings,
    queue: String,
}

impl ScratchQueue {
    /// Sends requests on a connection of its own.
    fn asked(
        &self,
        what: &'static str,
        ask: impl AsyncFnOnce(&RabbitmqConnection) -> Result<Result<(), String>, Failure>,
    ) -> Result<(), ScratchError> {
        let failed = |reason: String| ScratchError { what, topic: self.queue.clone(), reason };
        let answer = block_on(async {
            let connection = RabbitmqConnection::open(&self.settings, 0).await?;
            let answer = ask(&connection).await;
            connection.leave().await;
            answer
        });
        answer.map_err(|failure| failed(failure.text))?.map_err(failed)
    }
}

impl Scratch for ScratchQueue {
    fn remove(self: Box<Self>) -> Result<(), ScratchError> {
        self.asked("remove queue", async |connection| {
            let deleted = connection.queue_delete(&self.queue).await?;
            Ok(deleted.map_err(|refusal| refusal.text))
        })
    }
}

/// Refuses records that no broker would take.
fn admit(record: &Record<'_>) -> Result<(), Failure> {
    let bytes = record.topic.len();
    if bytes == 0 || bytes > SHORT {
        return Err(errors::bad_key(bytes));
    }
    let own = record.headers.iter().find(|header| header.name == message::EXCHANGE).and_then(|header| header.value);
    if let Some(own) = own.filter(|own| own.len() > SHORT || std::str::from_utf8(own).is_err()) {
        return Err(errors::bad_exchange(own.len()));
    }
    match record.headers.iter().find(|header| header.name.len() > SHORT) {
        Some(header) => Err(errors::bad_headers(format!("a header's name of {} bytes", header.name.len()))),
        None => Ok(()),
    }
}

impl RabbitSettings {
    /// These settings, under this client's name.
    fn named(&self, client: &str) -> Self {
        Self { client: client.to_owned(), ..self.clone() }
    }

    /// The exchange's name for people.
    fn exchange_shown(&self) -> &str {
        errors::exchange_shown(&self.exchange)
    }

    /// The user, if it is known: with a certificate, only the broker knows it.
    fn user(&self) -> &str {
        match &self.login {
            Login::Plain { user, .. } => user,
            Login::External => "USER",
        }
    }

    fn read(asked: &GivenSettings<'_>) -> Result<Self, SettingError> {
        let address = asked.address("server", EXAMPLE)?;
        let property = |name: &str| asked.property(name);
        let is_encrypted = asked.scheme == "amqps";
        let default_port = if is_encrypted { PORTS.1 } else { PORTS.0 };
        let Address { user, password, servers, path } = Address::of(address, default_port, EXAMPLE)?;
        let name = |name: &str| property(name).map(name_of).transpose();
        let login = login(asked, user, password)?;
        if let Some(path) = path.as_ref().filter(|path| path.len() > SHORT) {
            let given = Given { text: format!("…/{path}"), origin: address.origin.clone() };
            return Err(given.invalid("a vhost of at most 255 bytes", None));
        }
        if let Some(given) = property("auth").filter(|_| matches!(login, Login::External) && !is_encrypted) {
            return Err(given.invalid("plain, or external with amqps:// and tls.certificate", None));
        }
        let declare = property("declare").map(switch).transpose()?.unwrap_or_default();
        Ok(Self {
            servers,
            vhost: name("vhost")?.or(path).unwrap_or_else(|| VHOST.to_owned()),
            tls: is_encrypted.then(|| tls(asked)).transpose()?,
            login,
            exchange: name("exchange")?.unwrap_or_else(|| EXCHANGE.to_owned()),
            exchange_column: property("exchange-column").map(column).transpose()?,
            queue: name("queue")?.filter(|queue| !queue.is_empty()),
            declare,
            mandatory: property("mandatory").map(switch).transpose()?.unwrap_or(true),
            heartbeat: property("heartbeat").map(heartbeat).transpose()?.unwrap_or(HEARTBEAT),
            client: "walrelay".to_owned(),
            max_in_flight: asked.max_in_flight,
        })
    }
}

fn login(asked: &GivenSettings<'_>, user: Option<String>, password: Option<String>) -> Result<Login, SettingError> {
    let property = |name: &str| asked.property(name);
    let mechanism = property("auth").map_or("plain", |given| given.text.as_str());
    match (mechanism, property("auth")) {
        ("plain", _) | (_, None) => {}
        ("external", Some(auth)) if property("tls.certificate").is_none() => return Err(auth.needs("tls.certificate")),
        ("external", _) => return Ok(Login::External),
        (_, Some(given)) => return Err(given.invalid("plain or external", None)),
    }
    let password = match (property(PASSWORD_COMMAND), property("password")) {
        (Some(command), Some(other)) => return Err(command.excludes(other)),
        (Some(command), None) => {
            let parsed = SecretCommand::parse(&command.text);
            Secret::Command(parsed.map_err(|error| command.invalid(format!("a command line: {error}"), None))?)
        }
        (None, Some(given)) => secret(given),
        (None, None) => Secret::Text(password.unwrap_or_else(|| GUEST.to_owned()).into()),
    };
    let user = property("username").map(|given| given.text.clone()).or(user).unwrap_or_else(|| GUEST.to_owned());
    Ok(Login::Plain { user, password })
}

fn column(given: &Given) -> Result<String, SettingError> {
    if given.text.is_empty() {
        return Err(given.invalid("the name of a column", None));
    }
    Ok(given.text.clone())
}

fn name_of(given: &Given) -> Result<String, SettingError> {
    if given.text.len() > SHORT {
        return Err(given.invalid("a name of at most 255 bytes", None));
    }
    Ok(given.text.clone())
}

fn heartbeat(given: &Given) -> Result<Duration, SettingError> {
    time(given, "a time of whole seconds from 1s to 10m", |time| {
        time.subsec_nanos() == 0 && (1..=600).contains(&time.as_secs())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setting_text::{FlagFile, Origin};
    use crate::sink::tests::read_in_test;
    use secrecy::ExposeSecret as _;
    use std::path::PathBuf;

    fn read(scheme: &str, address: &str, properties: &[(&str, &str)]) -> Result<RabbitSettings, SettingError> {
        read_in_test(scheme, address, properties, |asked| RabbitSettings::read(asked))
    }

    fn user_and_password(settings: &RabbitSettings) -> (String, String) {
        match &settings.login {
            Login::Plain { user, password } => (user.clone(), password.read().unwrap().expose_secret().to_owned()),
            Login::External => panic!("{settings:?}"),
        }
    }

    #[test]
    fn an_address_names_hosts_user_and_vhost() {
        let plain = read("amqp", "h", &[]).unwrap();
        assert_eq!(
            (plain.address().as_str(), plain.vhost.as_str(), plain.exchange.as_str()),
            ("h:5672", "/", "outbox")
        );
        assert_eq!(user_and_password(&plain), ("guest".to_owned(), "guest".to_owned()));
        assert!(plain.tls.is_none() && !plain.declare && plain.queue.is_none());
        let whole = read("amqps", "app:p%40ss@a:1,b,[::1]:3/%2fshop", &[("tls.ca", "/ca.pem")]).unwrap();
        assert_eq!((whole.address().as_str(), whole.vhost.as_str()), ("a:1,b:5671,::1:3", "/shop"));
        assert_eq!(user_and_password(&whole), ("app".to_owned(), "p@ss".to_owned()));
        assert_eq!(whole.tls.unwrap().authorities, Some(PathBuf::from("/ca.pem")));
        let own = [("username", "v"), ("password", "q"), ("vhost", "w"), ("exchange", ""), ("heartbeat", "30s")];
        let own = read("amqp", "u:p@h/x", &own).unwrap();
        assert_eq!(user_and_password(&own), ("v".to_owned(), "q".to_owned()));
        assert_eq!((own.vhost.as_str(), own.exchange_shown(), own.heartbeat.as_secs()), ("w", "(default)", 30));
    }

    #[test]
    fn a_password_is_read_where_it_stands_each_time() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let from = FlagFile { flag: "-X password".to_owned(), file: file.path().to_owned() };
        let password = Given { text: "old".to_owned(), origin: Origin::FlagFile(Box::new(from)) };
        let settings = read_in_test("amqp", "h", &[], |asked| {
            asked.properties.push(("password".to_owned(), password));
            RabbitSettings::read(asked).unwrap()
        });
        std::fs::write(file.path(), "new\n").unwrap();
        assert_eq!(user_and_password(&settings).1, "new");
        let command = read("amqp", "h", &[("password-command", "echo token")]).unwrap();
        assert_eq!(user_and_password(&command).1, "token");
    }

    #[test]
    fn what_is_not_valid_is_refused_and_no_password_shown() {
        let long = "x".repeat(256);
        for (address, properties) in [
            ("", vec![]),
            ("h:port", vec![]),
            ("a,,b", vec![]),
            ("h", vec![("declare", "yes")]),
            ("h", vec![("heartbeat", "0s")]),
            ("h", vec![("heartbeat", "1500ms")]),
            ("h", vec![("exchange", long.as_str())]),
            (&format!("h/{long}"), vec![]),
            ("h", vec![("exchange-column", "")]),
            ("h", vec![("auth", "kerberos")]),
            ("h", vec![("auth", "external")]),
            ("h", vec![("auth", "external"), ("tls.certificate", "c"), ("tls.key", "k")]),
            ("h", vec![("password", "p"), ("password-command", "c")]),
            ("h", vec![("password-command", "'")]),
        ] {
            assert!(read("amqp", address, &properties).is_err(), "{address} {properties:?}");
        }
        let external = [("auth", "external"), ("tls.certificate", "c"), ("tls.key", "k")];
        assert!(matches!(read("amqps", "h", &external).unwrap().login, Login::External));
        let error = read("amqp", "u:hush@h:port", &[]).unwrap_err();
        let settings = read("amqp", "u:hush@h", &[]).unwrap();
        assert!(!format!("{error} {error:?} {settings:?}").contains("hush"));
    }
}
