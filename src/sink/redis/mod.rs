//! Streams of Redis, and of Valkey, which speaks the same protocol: their settings, their [`Kind`], and their sink.
//!
//! In: `--to redis://user:password@host:port/database`, `-X` properties, records. Several hosts are nodes of a cluster; with `sentinel`, the
//! hosts are Sentinels. Out: `RedisSettings` as a [`Destination`]: sinks, checks, dead-letter records, a stream for measurements. A record
//! becomes one entry of the stream that is its topic. A batch is added as one (MULTI/EXEC, or one script with `dedupe`); no two batches
//! under way hold records of one key. Certificates, and a password in a file, are read at each connection, so that the files can
//! change. No error here shows a password.
//!
//! Invariant: a later record of a key is never added while an earlier one is refused and not resolved, or while its outcome is unknown.
//! Specification: Redis, "Streams", "Transactions". The library `redis` speaks the protocol.

mod check;
mod client;
mod cluster;
mod connection;
mod conversation;
mod dead_letters;
mod errors;
#[cfg(test)]
mod fake_server_tests;
mod message;
mod reader;

#[cfg(test)]
pub(super) use self::errors::remedied;

use self::client::RedisSession;
use self::connection::ANSWER_BYTES;
use self::dead_letters::StreamPages;
use self::message::{Adding, Most};
use self::reader::EntryReader;
use super::{Failure, FailureClass, Record, Sink};
use crate::check_finding::Finding;
use crate::route::AddressRule;
use crate::secret::Secret;
use crate::setting_text::units::duration;
use crate::setting_text::{Given, SettingError};
use crate::sink::destination::{
    Can, DeadLetters, Delivery, Destination, GivenSettings, Kind, NoDeadLetters, NoReader, ReadBack, Scratch,
    ScratchError, Wanted,
};
use crate::sink::ordered_queue::address::{Address, Server, secret, switch, time, timeout, tls};
use crate::sink::ordered_queue::socket::Tls;
use crate::sink::ordered_queue::{QueueSink, RECORD_OVERHEAD_BYTES, Receiver, block_on, drive};
use crate::sink::reading::RecordReader;
use redis::{cmd, from_redis_value};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

/// The kind `redis`, for Redis and Valkey.
pub const KIND: Kind = Kind {
    name: "redis",
    title: "Redis",
    schemes: &SCHEMES,
    example: EXAMPLE,
    topics: &STREAMS,
    can: Can { exactly_once: false, partitions: false, null_values: true, debezium: false, dead_letters: true },
    properties: &PROPERTIES,
    passes_others: false,
    record_overhead_bytes: RECORD_OVERHEAD_BYTES,
    read: |asked| Ok(Arc::new(RedisSettings::read(asked)?)),
    refusals: || errors::REFUSALS.to_vec(),
    reasons: || errors::REASONS.to_vec(),
};

/// The names of all properties.
const PROPERTIES: [&str; 14] = [
    "username",
    "password",
    "database",
    "sentinel",
    "sentinel.username",
    "sentinel.password",
    "tls.ca",
    "tls.certificate",
    "tls.key",
    "maxlen",
    "approx",
    "wait",
    "dedupe",
    "timeout",
];

/// The default of `timeout`: how long a connection may be silent while replies are due.
const TIMEOUT: Duration = Duration::from_mins(1);

const DEFAULT_PORT: u16 = 6379;

/// The default port of Sentinels.
const SENTINEL_PORT: u16 = 26379;

/// The schemes, with and without encryption.
const SCHEMES: [&str; 2] = ["redis", "rediss"];

/// An address as an example.
const EXAMPLE: &str = "redis://HOST:PORT";

/// The form of an address, for messages.
const ADDRESSES: &str = "HOST:PORT, HOST:PORT,HOST:PORT of a cluster, or of Sentinels with -X sentinel=NAME";

/// The rule for streams: their keys may be any text.
static STREAMS: AddressRule = AddressRule {
    expected: "a text of at most 4096 bytes that is not empty",
    made_of: "a stream's key (all others are)",
    allows: |character| character != '\0',
    longest_bytes: 4096,
    also: |_| None,
};

/// A server and how to use it. `Debug` shows no secret.
#[derive(Debug, Clone)]
struct RedisSettings {
    topology: Topology,
    /// The database's number.
    database: u32,
    tls: Option<Tls>,
    /// The user. `None`: the default user.
    user: Option<String>,
    password: Option<Secret>,
    adding: Adding,
    /// The replicas that each batch waits for. `None`: it waits for the reply only.
    wait: Option<ReplicaWait>,
    /// How long a connection may be silent while replies are due. After that the client connects again.
    timeout: Duration,
    /// The client's name at the server.
    client: String,
    /// The most bytes in flight.
    max_in_flight: usize,
}

/// The address of the server, of the nodes or of the Sentinels.
#[derive(Debug, Clone)]
enum Topology {
    /// A single server, or a node of a cluster: the server itself says which.
    Server(Server),
    /// Nodes of a cluster, at least two. Any of them will do.
    Nodes(Vec<Server>),
    /// Sentinels, which know the server.
    Sentinels(Sentinels),
}

/// The Sentinels that know the address of a primary.
#[derive(Debug, Clone)]
struct Sentinels {
    /// At least one Sentinel. Any of them will do.
    servers: Vec<Server>,
    /// The Sentinels' name of the primary.
    primary: String,
    /// The user at the Sentinels. `None`: the default user.
    user: Option<String>,
    password: Option<Secret>,
}

/// The number of replicas that each batch waits for. It also waits for the append-only file on disk, if the server has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ReplicaWait {
    /// How many replicas must have the batch.
    replicas: u32,
    /// How long one wait lasts before the client asks again.
    patience: Duration,
}

/// Opens the sink, which begins to connect.
fn open(settings: RedisSettings) -> Result<Box<dyn Sink + Send>, SettingError> {
    let adding = settings.adding;
    let admit = move |record: &Record<'_>| admit(record, adding);
    QueueSink::start("redis", settings.max_in_flight, admit, async move |receiver: &mut Receiver| {
        drive::<RedisSession<'_>>(&settings, receiver).await;
    })
}

/// Refuses records that no server would take, or whose ids cannot be remembered.
fn admit(record: &Record<'_>, adding: Adding) -> Result<(), Failure> {
    let bad = |reason, text| Err(Failure::new(FailureClass::Row, reason, text));
    if record.topic.is_empty() {
        return bad(errors::STREAM, "a stream needs a name".to_owned());
    }
    if adding.dedupe.is_some() && !message::can_have_markers(record.topic) {
        return bad(errors::STREAM, "with dedupe, a stream's name has no } outside of a hash tag".to_owned());
    }
    if record.headers.len() > message::MOST_HEADERS {
        let text = format!("{} headers; an entry may have {}", record.headers.len(), message::MOST_HEADERS);
        return bad(errors::HEADERS, text);
    }
    Ok(())
}

impl Destination for RedisSettings {
    fn kind(&self) -> &'static Kind {
        &KIND
    }

    fn address(&self) -> String {
        match &self.topology {
            Topology::Server(server) => server.address(),
            Topology::Nodes(nodes) => Server::addresses(nodes),
            Topology::Sentinels(Sentinels { servers, primary, .. }) => {
                format!("{primary} of {}", Server::addresses(servers))
            }
        }
    }

    fn open(&self, client: &str, _how: Delivery) -> Result<Box<dyn Sink + Send>, SettingError> {
        open(self.named(client))
    }

    fn check(&self, wanted: &Wanted<'_>) -> Vec<Finding> {
        check::check(&self.named(wanted.client), wanted)
    }

    fn dead_letters(&self, client: &str, topic: &str) -> Result<Box<dyn DeadLetters>, NoDeadLetters> {
        Ok(Box::new(StreamPages::open(self.named(client), topic)?))
    }

    fn reader(&self, client: &str) -> Result<Box<dyn RecordReader>, NoReader> {
        let reader = EntryReader::new(self.named(client)).map_err(NoReader::Settings)?;
        Ok(Box::new(reader))
    }

    fn reads_back(&self) -> ReadBack {
        ReadBack::Unordered { null_value_is_empty: false }
    }

    fn scratch(&self, client: &str, topic: &str, _partitions: i32) -> Result<Box<dyn Scratch>, ScratchError> {
        let stream = ScratchStream { settings: self.named(client), stream: topic.to_owned() };
        match stream.number("create stream", "EXISTS")? {
            0 => Ok(Box::new(stream)),
            _there => Err(stream.failed("create stream", "there is a key of that name")),
        }
    }
}

/// A stream for a measurement. The first record creates it.
struct ScratchStream {
    settings: RedisSettings,
    stream: String,
}

impl ScratchStream {
    fn failed(&self, what: &'static str, reason: &str) -> ScratchError {
        ScratchError { what, topic: self.stream.clone(), reason: reason.to_owned() }
    }

    /// Sends a command about the stream, whose reply is a number.
    fn number(&self, what: &'static str, command: &str) -> Result<i64, ScratchError> {
        let mut command = cmd(command);
        command.arg(&self.stream);
        let asked = block_on(client::call(&self.settings, &self.stream, &command, ANSWER_BYTES));
        let (_, reply) = asked.map_err(|failure| self.failed(what, &failure.text))?;
        match errors::said(&reply) {
            Some(error) => Err(self.failed(what, &error)),
            None => from_redis_value(reply).map_err(|_| self.failed(what, "its reply is not a number")),
        }
    }
}

impl Scratch for ScratchStream {
    fn remove(self: Box<Self>) -> Result<(), ScratchError> {
        self.number("remove stream", "UNLINK").map(drop)
    }
}

impl RedisSettings {
    /// These settings, under this client's name.
    fn named(&self, client: &str) -> Self {
        Self { client: client.to_owned(), ..self.clone() }
    }

    /// The name of the user, for commands that give rights.
    fn user(&self) -> &str {
        self.user.as_deref().unwrap_or("default")
    }

    fn read(asked: &GivenSettings<'_>) -> Result<Self, SettingError> {
        let address = asked.address("server", EXAMPLE)?;
        let property = |name: &str| asked.property(name);
        let port = if property("sentinel").is_some() { SENTINEL_PORT } else { DEFAULT_PORT };
        let Address { user, password, servers, path } = Address::of(address, port, ADDRESSES)?;
        let in_path = path.map(|path| {
            let hosts = servers.iter().map(|server| server.host.as_str()).collect::<Vec<_>>().join(",");
            let shown = Given { text: format!("{hosts}/{path}"), origin: address.origin.clone() };
            path.parse().map_err(|_| shown.invalid(ADDRESSES, None))
        });
        let said = |name: &str| property(name).map(|given| given.text.clone());
        let database = property("database").map(|given| number(given, "the number of a database"));
        Ok(Self {
            topology: topology(servers, asked)?,
            database: database.or(in_path).transpose()?.unwrap_or_default(),
            tls: (asked.scheme == "rediss").then(|| tls(asked)).transpose()?,
            user: said("username").or(user),
            password: property("password").map(secret).or_else(|| password.map(|text| Secret::Text(text.into()))),
            adding: Adding { most: most(asked)?, dedupe: property("dedupe").map(remembered).transpose()? },
            wait: property("wait").map(wait).transpose()?,
            timeout: property("timeout").map_or(Ok(TIMEOUT), timeout)?,
            client: "walrelay".to_owned(),
            max_in_flight: asked.max_in_flight,
        })
    }
}

/// The role of the hosts in the address.
fn topology(servers: Vec<Server>, asked: &GivenSettings<'_>) -> Result<Topology, SettingError> {
    if let Some(name) = asked.property("sentinel") {
        return sentinels(servers, name, asked).map(Topology::Sentinels);
    }
    if let Some(lonely) = ["sentinel.username", "sentinel.password"].into_iter().find_map(|name| asked.property(name)) {
        return Err(lonely.needs("sentinel"));
    }
    Ok(<[Server; 1]>::try_from(servers).map_or_else(Topology::Nodes, |[server]| Topology::Server(server)))
}

fn sentinels(servers: Vec<Server>, name: &Given, asked: &GivenSettings<'_>) -> Result<Sentinels, SettingError> {
    if name.text.is_empty() {
        return Err(name.invalid("the name of a primary, as Sentinel has it", None));
    }
    Ok(Sentinels {
        servers,
        primary: name.text.clone(),
        user: asked.property("sentinel.username").map(|given| given.text.clone()),
        password: asked.property("sentinel.password").map(secret),
    })
}

fn most(asked: &GivenSettings<'_>) -> Result<Option<Most>, SettingError> {
    let about = asked.property("approx").map_or(Ok(true), switch)?;
    match (asked.property("maxlen"), asked.property("approx")) {
        (Some(given), _) => {
            let entries: NonZeroU64 = number(given, "a number of entries, at least 1")?;
            Ok(Some(Most { entries: entries.get(), about }))
        }
        (None, Some(given)) => Err(given.needs("maxlen")),
        (None, None) => Ok(None),
    }
}

fn number<T: std::str::FromStr>(given: &Given, expected: &str) -> Result<T, SettingError> {
    given.text.parse().map_err(|_| given.invalid(expected, None))
}

fn remembered(given: &Given) -> Result<Duration, SettingError> {
    time(given, "a time, such as 7d", |time| *time >= Duration::from_millis(1))
}

/// Parses `REPLICAS,TIME`. A time without a unit is in milliseconds.
fn wait(given: &Given) -> Result<ReplicaWait, SettingError> {
    let expected = "REPLICAS,MILLISECONDS, such as 1,1000 (0 replicas: the append-only file alone)";
    let wrong = || given.invalid(expected, None);
    let (replicas, time) = given.text.split_once(',').ok_or_else(wrong)?;
    let replicas = replicas.trim().parse().map_err(|_| wrong())?;
    let time = time.trim();
    let patience = match time.parse() {
        Ok(millis) => Duration::from_millis(millis),
        Err(_) => duration(time).map_err(|_| wrong())?,
    };
    // WAIT without a limit would hold the connection for as long as a replica is missing.
    if patience < Duration::from_millis(1) || patience > Duration::from_secs(30) {
        return Err(given.invalid("a time from 1 ms to 30 s after the comma", None));
    }
    Ok(ReplicaWait { replicas, patience })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::tests::read_in_test;
    use secrecy::ExposeSecret as _;
    use std::path::PathBuf;

    fn read(scheme: &str, address: &str, properties: &[(&str, &str)]) -> Result<RedisSettings, SettingError> {
        read_in_test(scheme, address, properties, |asked| RedisSettings::read(asked))
    }

    fn password(settings: &RedisSettings) -> String {
        settings.password.as_ref().unwrap().read().unwrap().expose_secret().to_owned()
    }

    #[test]
    fn an_address_names_server_user_and_database() {
        let plain = read("redis", "h", &[]).unwrap();
        assert_eq!((plain.address(), plain.database, plain.tls, plain.user), ("h:6379".to_owned(), 0, None, None));
        let whole = read("rediss", "app:p%40ss%3A@h:7000/3", &[("tls.ca", "/ca.pem")]).unwrap();
        assert_eq!((whole.address().as_str(), whole.database), ("h:7000", 3));
        assert_eq!((whole.user.as_deref(), password(&whole).as_str()), (Some("app"), "p@ss:"));
        assert_eq!(whole.tls.unwrap().authorities, Some(PathBuf::from("/ca.pem")));
        let ipv6 = read("redis", ":secret@[::1]:7000/", &[]).unwrap();
        assert_eq!((ipv6.address().as_str(), ipv6.user), ("::1:7000", None));
        let own = read("redis", "u:p@h/1", &[("username", "v"), ("password", "q"), ("database", "2")]).unwrap();
        assert_eq!((own.user.as_deref(), own.database, password(&own).as_str()), (Some("v"), 2, "q"));
    }

    #[test]
    fn with_a_primarys_name_the_hosts_are_sentinels() {
        let said = [("sentinel", "main"), ("sentinel.username", "s"), ("sentinel.password", "hush")];
        let settings = read("redis", "app:secret@a,b:26380/1", &said).unwrap();
        assert_eq!(settings.address(), "main of a:26379,b:26380");
        assert_eq!((settings.user.as_deref(), settings.database), (Some("app"), 1));
        assert!(!format!("{settings:?}").contains("hush"));
        let Topology::Sentinels(sentinels) = settings.topology else { panic!("{:?}", settings.topology) };
        assert!(sentinels.user.as_deref() == Some("s") && sentinels.password.is_some());
    }

    #[test]
    fn several_hosts_are_nodes_of_a_cluster() {
        let settings = read("redis", "app:secret@a,b:7000", &[]).unwrap();
        assert_eq!((settings.address().as_str(), settings.user.as_deref()), ("a:6379,b:7000", Some("app")));
        assert!(matches!(settings.topology, Topology::Nodes(nodes) if nodes.len() == 2));
    }

    #[test]
    fn properties_say_how_entries_are_added() {
        let said = [("maxlen", "1000"), ("approx", "false"), ("wait", "1,500"), ("dedupe", "7d")];
        let settings = read("redis", "h", &said).unwrap();
        let most = Some(Most { entries: 1000, about: false });
        assert_eq!(settings.adding, Adding { most, dedupe: Some(Duration::from_hours(7 * 24)) });
        assert_eq!(settings.wait, Some(ReplicaWait { replicas: 1, patience: Duration::from_millis(500) }));
        assert!(read("redis", "h", &[("maxlen", "5")]).unwrap().adding.most.unwrap().about);
    }

    #[test]
    fn what_is_not_valid_is_refused_and_no_password_shown() {
        for (address, properties) in [
            ("", vec![]),
            ("h:port", vec![]),
            ("h/x", vec![]),
            ("a,", vec![]),
            ("h", vec![("maxlen", "0")]),
            ("h", vec![("approx", "true")]),
            ("h", vec![("maxlen", "1"), ("approx", "yes")]),
            ("h", vec![("wait", "1")]),
            ("h", vec![("wait", "1,0")]),
            ("h", vec![("dedupe", "7")]),
            ("h", vec![("database", "x")]),
            ("h", vec![("timeout", "10ms")]),
            ("h", vec![("timeout", "1")]),
            ("a,b", vec![("sentinel", "")]),
            ("h", vec![("sentinel.username", "s")]),
            ("h", vec![("sentinel.password", "hush")]),
        ] {
            assert!(read("redis", address, &properties).is_err(), "{address} {properties:?}");
        }
        assert!(read("rediss", "h", &[("tls.key", "k")]).is_err());
        let error = read("redis", "u:hush@h:port", &[]).unwrap_err();
        let settings = read("redis", "u:hush@h", &[]).unwrap();
        assert!(!format!("{error} {error:?} {settings:?}").contains("hush"));
    }
}
