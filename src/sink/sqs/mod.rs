//! SQS and SNS: messages to queues of Amazon Simple Queue Service and to topics of Simple Notification Service, and of servers that
//! speak their protocols.
//!
//! In: `--to sqs://region`, `--to sns://region`, `--to sqs+http://id:secret@host:port/region`, `-X` properties; records. Out: one message of the
//! queue or topic that is the record's topic. A request has up to ten messages, and several requests are under way at once, but of a group
//! (the record's key) of a FIFO queue or topic one message at a time.
//!
//! Invariants: a later record of a key is never sent to a FIFO queue while an earlier one is refused and not resolved, or while its outcome
//! is unknown (a standard queue has no order). Reading settings contacts nobody; if the region is not given, it is the environment's, as
//! for AWS' own tools. No error shows a secret.
//! Specification: Amazon SQS and Amazon SNS, API References and Developer Guides.

mod check;
mod client;
mod errors;
mod message;

#[cfg(test)]
pub(super) use self::errors::{remedied, remedied_of_topics};

use self::client::{Caller, SqsSession};
use self::errors::Unserved;
use self::message::{LARGEST, MOST_ATTRIBUTES, MessageForm, is_attribute};
use super::destination::{Can, Delivery, Destination, GivenSettings, Kind, Scratch, ScratchError, Wanted};
use super::ordered_queue::address::{Address, Server, secret, timeout, tls};
use super::ordered_queue::socket::Tls;
use super::ordered_queue::{QueueSink, RECORD_OVERHEAD_BYTES, Receiver, block_on, drive};
use super::{Failure, Record, Sink, aws};
use crate::check_finding::Finding;
use crate::route::{AddressRule, TopicFault};
use crate::secret::Secret;
use crate::setting_text::{Given, SettingError};
use std::sync::Arc;
use std::time::Duration;

/// The kind `sqs`.
pub const KIND: Kind = Kind {
    name: "sqs",
    title: "SQS",
    schemes: &SCHEMES,
    example: EXAMPLE,
    topics: &QUEUES,
    can: Can { exactly_once: false, partitions: false, null_values: false, debezium: false, dead_letters: false },
    properties: &PROPERTIES,
    passes_others: false,
    record_overhead_bytes: RECORD_OVERHEAD_BYTES,
    read: |asked| Ok(Arc::new(SqsSettings::read(asked)?)),
    refusals: || errors::REFUSALS.to_vec(),
    reasons: || errors::REASONS.to_vec(),
};

/// The kind `sns`.
pub const TOPICS_KIND: Kind =
    Kind { name: "sns", title: "SNS", schemes: &TOPIC_SCHEMES, example: TOPIC_EXAMPLE, topics: &TOPICS, ..KIND };

impl Destination for SqsSettings {
    fn kind(&self) -> &'static Kind {
        self.service.kind()
    }

    fn address(&self) -> String {
        format!("{} ({})", self.endpoint.authority(), self.region)
    }

    fn open(&self, _client: &str, _how: Delivery) -> Result<Box<dyn Sink + Send>, SettingError> {
        let (settings, form) = (self.clone(), self.form.clone());
        let admit = move |record: &Record<'_>| form.admit(record);
        QueueSink::start(self.kind().name, self.max_in_flight, admit, async move |receiver: &mut Receiver| {
            let caller = Arc::new(Caller::new(settings.clone()));
            drive::<SqsSession<'_>>(&caller, receiver).await;
        })
    }

    fn check(&self, wanted: &Wanted<'_>) -> Vec<Finding> {
        check::check(self, wanted)
    }

    fn scratch(&self, _client: &str, topic: &str, _partitions: i32) -> Result<Box<dyn Scratch>, ScratchError> {
        let failed = |reason: String| ScratchError { what: "create queue", topic: topic.to_owned(), reason };
        if self.service == Service::Sns {
            // The ARN of a topic has an account in it, and nobody would be subscribed.
            return Err(failed("bench cannot create topics of SNS".to_owned()));
        }
        let caller = Caller::new(self.clone());
        let created = block_on(async {
            if caller.url_of(topic).await.is_ok() {
                return Ok(Err("there is a queue of that name".to_owned()));
            }
            Ok(caller.create(topic).await.map_err(Unserved::into_text))
        });
        created.map_err(|failure: Failure| failed(failure.text))?.map_err(failed)?;
        Ok(Box::new(ScratchQueue { settings: self.clone(), queue: topic.to_owned() }))
    }
}

/// A queue for a measurement.
struct ScratchQueue {
    settings: SqsSettings,
    queue: String,
}

impl Scratch for ScratchQueue {
    fn remove(self: Box<Self>) -> Result<(), ScratchError> {
        let Self { settings, queue } = *self;
        let caller = Caller::new(settings);
        let removed = block_on(async { Ok(caller.remove(&queue).await.map_err(Unserved::into_text)) });
        let failed = |reason: String| ScratchError { what: "remove queue", topic: queue.clone(), reason };
        removed.map_err(|failure: Failure| failed(failure.text))?.map_err(failed)
    }
}

/// The service: SQS or SNS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Service {
    /// Simple Queue Service.
    Sqs,
    /// Simple Notification Service.
    Sns,
}

impl Service {
    /// The kind, whose name is also the service's in host names.
    const fn kind(self) -> &'static Kind {
        match self {
            Self::Sqs => &KIND,
            Self::Sns => &TOPICS_KIND,
        }
    }

    /// The word, for people, for the counterpart of a topic: queue or topic.
    const fn resource(self) -> &'static str {
        match self {
            Self::Sqs => "queue",
            Self::Sns => "topic",
        }
    }

    /// The most bytes of all messages of a batch, unless it is one message. A topic of SNS takes less than a queue, unless its attributes
    /// say otherwise.
    const fn batch_bytes(self) -> usize {
        match self {
            Self::Sqs => LARGEST,
            Self::Sns => 256 << 10,
        }
    }
}

/// A service and how to use it. `Debug` shows no secret.
#[derive(Debug, Clone)]
struct SqsSettings {
    service: Service,
    endpoint: Endpoint,
    /// The region in signatures.
    region: String,
    /// The keys in the settings. `None`: those of AWS' own chain.
    keys: Option<GivenKeys>,
    form: MessageForm,
    /// How long a request may take, connecting included.
    timeout: Duration,
    /// The most bytes in flight.
    max_in_flight: usize,
}

/// The server of requests.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Endpoint {
    host: String,
    port: u16,
    /// The settings of TLS. `None`: the connection is not encrypted.
    tls: Option<Tls>,
}

impl Endpoint {
    /// The value of the header `Host`.
    fn authority(&self) -> String {
        let usual = if self.tls.is_some() { 443 } else { 80 };
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        if self.port == usual { host } else { format!("{host}:{}", self.port) }
    }
}

/// Access keys that settings name.
#[derive(Debug, Clone)]
struct GivenKeys {
    id: String,
    secret: Secret,
}

/// The names of all properties.
const PROPERTIES: [&str; 7] =
    ["endpoint-url", "access-key-id", "secret-access-key", "attributes", "body", "timeout", "tls.ca"];

/// The default of `timeout`: how long a request may take.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The schemes of SQS: for AWS, and for another server without encryption.
const SCHEMES: [&str; 2] = ["sqs", "sqs+http"];

/// The schemes of SNS.
const TOPIC_SCHEMES: [&str; 2] = ["sns", "sns+http"];

/// An address as an example.
const EXAMPLE: &str = "sqs://REGION";

/// An address of SNS as an example.
const TOPIC_EXAMPLE: &str = "sns://REGION";

/// The form of another server's address, for messages.
const LOCAL: &str = "HOST:PORT/REGION, with ID:SECRET@ in front";

/// The end of the name of a FIFO queue or topic, which keeps the order of messages.
const FIFO: &str = ".fifo";

/// The longest name of a queue.
const LONGEST_NAME: usize = 80;

/// The rule for queues: a name or a URL.
static QUEUES: AddressRule = AddressRule {
    expected: "a queue's name (letters, digits, '-' and '_', 80 at most, .fifo at its end where it has one), or its URL",
    made_of: "a queue's name or URL (letters, digits, '-' and '_' are)",
    allows: |character| character.is_ascii_alphanumeric() || matches!(character, '-' | '_' | '.' | ':' | '/'),
    longest_bytes: 1024,
    also: queue_fault,
};

/// The rule for topics: an ARN.
static TOPICS: AddressRule = AddressRule {
    expected: "a topic's ARN, such as arn:aws:sns:eu-central-1:123456789012:orders.fifo",
    made_of: "a topic's ARN (letters, digits, '-', '_', '.' and ':' are)",
    allows: |character| character.is_ascii_alphanumeric() || matches!(character, '-' | '_' | '.' | ':'),
    longest_bytes: 1024,
    also: topic_fault,
};

/// The fault of a text that is no ARN: `arn:PARTITION:sns:REGION:ACCOUNT:NAME`.
fn topic_fault(topic: &str) -> Option<TopicFault> {
    let parts: Vec<&str> = topic.split(':').collect();
    match parts.as_slice() {
        ["arn", _, "sns", region, account, name] => {
            let name = name.strip_suffix(FIFO).unwrap_or(*name);
            if name.contains('.') {
                return Some(TopicFault::Character('.', "a topic's name"));
            }
            [region, account, &name].iter().any(|part| part.is_empty()).then_some(TopicFault::EmptyPart)
        }
        _ => Some(TopicFault::Shape("an ARN, arn:aws:sns:REGION:ACCOUNT:NAME")),
    }
}

fn queue_fault(queue: &str) -> Option<TopicFault> {
    if is_url(queue) {
        return None;
    }
    let name = queue.strip_suffix(FIFO).unwrap_or(queue);
    let other = name.chars().find(|character| matches!(character, '.' | ':' | '/'));
    match other {
        Some(character) => Some(TopicFault::Character(character, "a queue's name")),
        None if name.is_empty() => Some(TopicFault::Empty),
        None => (queue.len() > LONGEST_NAME).then_some(TopicFault::TooLong(queue.len(), LONGEST_NAME)),
    }
}

/// Whether an address is a queue's URL; else it is its name.
fn is_url(queue: &str) -> bool {
    queue.starts_with("https://") || queue.starts_with("http://")
}

impl SqsSettings {
    fn read(asked: &GivenSettings<'_>) -> Result<Self, SettingError> {
        let address = asked.address("region", &format!("{}://REGION", asked.scheme))?;
        let property = |name: &str| asked.property(name);
        let (service, example) =
            if asked.scheme.starts_with("sns") { (Service::Sns, TOPIC_EXAMPLE) } else { (Service::Sqs, EXAMPLE) };
        let given = if asked.scheme.ends_with("+http") {
            InAddress::of_server(address)?
        } else {
            InAddress { region: region(address)?, ..InAddress::default() }
        };
        let region = given
            .region
            .or_else(aws::region)
            .ok_or_else(|| SettingError::usage("the region is missing", format!("--to {example}, or AWS_REGION")))?;
        let tls = tls(asked)?;
        let endpoint = match (property("endpoint-url"), given.endpoint) {
            (Some(given), _) => endpoint(given, tls)?,
            (None, Some(local)) => local,
            (None, None) => Endpoint { host: host(service, &region), port: 443, tls: Some(tls) },
        };
        Ok(Self {
            service,
            endpoint,
            region,
            keys: keys(asked, address, given.id, given.secret)?,
            form: MessageForm {
                attributes: property("attributes").map(attributes).transpose()?,
                base64: base64(asked)?,
            },
            timeout: property("timeout").map_or(Ok(TIMEOUT), timeout)?,
            max_in_flight: asked.max_in_flight,
        })
    }
}

/// The host of a service of AWS in a region.
fn host(service: Service, region: &str) -> String {
    let domain = if region.starts_with("cn-") { "amazonaws.com.cn" } else { "amazonaws.com" };
    format!("{}.{region}.{domain}", service.kind().name)
}

fn is_region(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
}

/// The region in an address. `None`: the address has none.
fn region(address: &Given) -> Result<Option<String>, SettingError> {
    match address.text.as_str() {
        "" => Ok(None),
        text if is_region(text) => Ok(Some(text.to_owned())),
        // The text before an @ may be a secret.
        text => {
            let shown = text.rsplit('@').next().unwrap_or_default().to_owned();
            let given = Given { text: shown, origin: address.origin.clone() };
            Err(given.invalid("a region, such as eu-central-1", None))
        }
    }
}

/// The parts of an address.
#[derive(Default)]
struct InAddress {
    region: Option<String>,
    endpoint: Option<Endpoint>,
    /// An access key's id.
    id: Option<String>,
    secret: Option<Secret>,
}

impl InAddress {
    /// Parses the address of a server of one's own.
    fn of_server(given: &Given) -> Result<Self, SettingError> {
        let Address { user, password, mut servers, path } = Address::of(given, 80, LOCAL)?;
        let wrong = |shown: &str| Given { text: shown.to_owned(), origin: given.origin.clone() }.invalid(LOCAL, None);
        let region = path.map(|path| if is_region(&path) { Ok(path) } else { Err(wrong(&path)) }).transpose()?;
        let endpoint = match (servers.pop(), servers.as_slice()) {
            (Some(Server { host, port }), []) => Endpoint { host, port, tls: None },
            (_, others) => {
                return Err(wrong(&others.iter().map(|other| other.host.as_str()).collect::<Vec<_>>().join(",")));
            }
        };
        if user.is_none() && password.is_some() {
            return Err(wrong(&endpoint.authority()));
        }
        let secret = password.map(|password| Secret::Text(password.into()));
        Ok(Self { region, endpoint: Some(endpoint), id: user, secret })
    }
}

/// Parses `https://host:port` or `http://host:port`.
fn endpoint(given: &Given, tls: Tls) -> Result<Endpoint, SettingError> {
    let wrong = || given.invalid("https://HOST or http://HOST:PORT", None);
    let url = given.text.as_str();
    let (scheme, rest) = url.split_once("://").ok_or_else(wrong)?;
    let (port, tls) = match scheme {
        "https" => (443, Some(tls)),
        "http" => (80, None),
        _ => return Err(wrong()),
    };
    let rest = Given { text: rest.to_owned(), origin: given.origin.clone() };
    let Address { user: None, password: None, mut servers, path: None } =
        Address::of(&rest, port, "https://HOST or http://HOST:PORT")?
    else {
        return Err(wrong());
    };
    match (servers.pop(), servers.is_empty()) {
        (Some(Server { host, port }), true) => Ok(Endpoint { host, port, tls }),
        (_, _) => Err(wrong()),
    }
}

/// The access keys. Each part is from its property, or else from the address.
fn keys(
    asked: &GivenSettings<'_>,
    address: &Given,
    id: Option<String>,
    in_address: Option<Secret>,
) -> Result<Option<GivenKeys>, SettingError> {
    let given = asked.property("access-key-id");
    let secret = asked.property("secret-access-key").map(secret).or(in_address);
    match (given.map(|id| id.text.clone()).or(id), secret) {
        (Some(id), Some(secret)) => Ok(Some(GivenKeys { id, secret })),
        (None, None) => Ok(None),
        (Some(_), None) => Err(given.unwrap_or(address).needs("secret-access-key")),
        (None, Some(_)) => Err(asked.property("secret-access-key").unwrap_or(address).needs("access-key-id")),
    }
}

/// Parses names with commas between them.
fn attributes(given: &Given) -> Result<Vec<String>, SettingError> {
    let names: Vec<String> =
        given.text.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect();
    if names.len() > MOST_ATTRIBUTES || names.iter().any(|name| !is_attribute(name)) {
        return Err(given.invalid("names of at most 10 headers, separated by commas", None));
    }
    Ok(names)
}

fn base64(asked: &GivenSettings<'_>) -> Result<bool, SettingError> {
    match asked.property("body").map(|given| (given, given.text.as_str())) {
        None | Some((_, "text")) => Ok(false),
        Some((_, "base64")) => Ok(true),
        Some((given, _)) => Err(given.invalid("text or base64", None)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::tests::read_in_test;

    fn read(scheme: &str, address: &str, properties: &[(&str, &str)]) -> Result<SqsSettings, SettingError> {
        read_in_test(scheme, address, properties, |asked| SqsSettings::read(asked))
    }

    #[test]
    fn an_address_is_a_region_or_a_server_of_ones_own() {
        let aws = read("sqs", "eu-central-1", &[]).unwrap();
        assert_eq!(aws.endpoint.authority(), "sqs.eu-central-1.amazonaws.com");
        assert_eq!((aws.region.as_str(), aws.endpoint.tls.is_some(), aws.keys.is_none()), ("eu-central-1", true, true));
        assert_eq!(aws.timeout, Duration::from_secs(30));
        assert_eq!(read("sqs", "eu-central-1", &[("timeout", "2min")]).unwrap().timeout, Duration::from_mins(2));
        let china = read("sqs", "cn-north-1", &[]).unwrap();
        assert_eq!(china.endpoint.host, "sqs.cn-north-1.amazonaws.com.cn");
        let local = read("sqs+http", "id:hush@[::1]:9324/elasticmq", &[("body", "base64")]).unwrap();
        assert_eq!((local.endpoint.authority().as_str(), local.region.as_str()), ("[::1]:9324", "elasticmq"));
        assert!(local.endpoint.tls.is_none() && local.form.base64 && !format!("{local:?}").contains("hush"));
        assert_eq!(local.keys.unwrap().id, "id");
        let own = [("endpoint-url", "https://sqs.example.com"), ("tls.ca", "/ca.pem"), ("attributes", "a, b.c")];
        let own = read("sqs", "r-1", &own).unwrap();
        assert_eq!((own.endpoint.authority().as_str(), own.region.as_str()), ("sqs.example.com", "r-1"));
        assert!(own.endpoint.tls.unwrap().authorities.is_some());
        assert_eq!(own.form.attributes, Some(vec!["a".to_owned(), "b.c".to_owned()]));
        let plain = read("sqs", "r-1", &[("endpoint-url", "http://h:80")]).unwrap();
        assert_eq!((plain.endpoint.authority().as_str(), plain.endpoint.tls), ("h", None));
    }

    #[test]
    fn what_is_not_valid_is_refused_and_no_secret_shown() {
        for (scheme, address, properties) in [
            ("sqs", "h:80", vec![]),
            ("sqs", "id:hush@r", vec![]),
            ("sqs+http", "id:hush@h:x/r", vec![]),
            ("sqs+http", "id@h/r", vec![]),
            ("sqs+http", "a,b/r", vec![]),
            ("sqs+http", "id:hush@h/R 1", vec![]),
            ("sqs", "r", vec![("endpoint-url", "h:80")]),
            ("sqs", "r", vec![("endpoint-url", "ftp://h")]),
            ("sqs", "r", vec![("endpoint-url", "http://h/path")]),
            ("sqs", "r", vec![("access-key-id", "id")]),
            ("sqs", "r", vec![("secret-access-key", "hush")]),
            ("sqs", "r", vec![("attributes", "a,aws.b")]),
            ("sqs", "r", vec![("attributes", "a,b,c,d,e,f,g,h,i,j,k")]),
            ("sqs", "r", vec![("body", "hex")]),
            ("sqs", "r", vec![("timeout", "500ms")]),
            ("sns", "r", vec![("timeout", "2h")]),
        ] {
            let error = read(scheme, address, &properties).unwrap_err().to_string();
            assert!(!error.contains("hush"), "{error}");
        }
    }

    #[test]
    fn a_queue_is_a_name_or_a_url() {
        for queue in ["orders", "Orders_1-b.fifo", "https://sqs.eu-central-1.amazonaws.com/123456789012/orders.fifo"] {
            assert_eq!(QUEUES.check(queue), Ok(()), "{queue}");
        }
        let long = ["x"; LONGEST_NAME + 1].concat();
        for queue in ["", ".fifo", "a.b", "orders.fifo.fifo", "a:b", "a/b", "a b", "ä", &long] {
            assert!(QUEUES.check(queue).is_err(), "{queue}");
        }
    }

    #[test]
    fn a_topic_is_an_arn() {
        let sns = read("sns", "eu-central-1", &[]).unwrap();
        assert_eq!((sns.service, sns.endpoint.authority().as_str()), (Service::Sns, "sns.eu-central-1.amazonaws.com"));
        for topic in ["arn:aws:sns:eu-central-1:123456789012:orders.fifo", "arn:aws-cn:sns:cn-north-1:1:a_b-C"] {
            assert_eq!(TOPICS.check(topic), Ok(()), "{topic}");
        }
        for topic in [
            "",
            "orders.fifo",
            "arn:aws:sqs:r:1:a",
            "arn:aws:sns:r:1:",
            "arn:aws:sns::1:a",
            "arn:aws:sns:r:1:a.b",
            "arn:aws:sns:r:1:a:b",
        ] {
            assert!(TOPICS.check(topic).is_err(), "{topic}");
        }
    }
}
