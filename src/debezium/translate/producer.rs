//! Translates the Kafka producer's properties into librdkafka's.
//!
//! Specification: Kafka's "Producer Configs", librdkafka's CONFIGURATION.md.

use std::ops::RangeInclusive;

use super::{NO_EFFECT, Translator, class_name};
use crate::debezium::jaas::{self, Jaas};
use crate::debezium::keys::says;
use crate::debezium::{Note, Severity};
use crate::setting_text::Given;

/// The treatment of a property of Java's producer.
#[derive(Clone, Copy)]
enum PropertyAction {
    /// librdkafka has the same property under this name.
    Becomes(&'static str),
    /// Nothing is lost without it, for this reason.
    NotNeeded(&'static str),
    /// Records stay the same, but this effect is lost.
    Lost(&'static str),
}

use PropertyAction::{Becomes, Lost, NotNeeded};

const FIXED: &str =
    "fixed here: every record is acknowledged by all in-sync replicas, idempotent and retried indefinitely";
const PACE: &str = "the relay has a pace of its own (--max-in-flight, --disconnect-after)";
const METRICS: &str = "walrelay has its own metrics";
const OIDC: &str = "Java's way to a token: -X sasl.oauthbearer.* has librdkafka's";
const TLS: &str = "a setting of Java's TLS; OpenSSL's default counts";

/// Java's names. A name that ends with a dot stands for all that begin with it.
const PROPERTIES: [(&str, PropertyAction); 71] = [
    ("acks", NotNeeded(FIXED)),
    ("enable.idempotence", NotNeeded(FIXED)),
    ("retries", NotNeeded(FIXED)),
    ("delivery.timeout.ms", NotNeeded(FIXED)),
    ("max.in.flight.requests.per.connection", NotNeeded(FIXED)),
    ("transactional.id", NotNeeded("Debezium begins no transactions, and neither does walrelay")),
    ("transaction.timeout.ms", NotNeeded("there are no transactions")),
    ("transaction.two.phase.commit.enable", NotNeeded("there are no transactions")),
    ("request.timeout.ms", Becomes("request.timeout.ms")),
    ("max.block.ms", NotNeeded(PACE)),
    ("buffer.memory", NotNeeded(PACE)),
    ("linger.ms", Becomes("linger.ms")),
    ("batch.size", Becomes("batch.size")),
    ("compression.type", Becomes("compression.type")),
    ("compression.gzip.level", Becomes("compression.level")),
    ("compression.lz4.level", Becomes("compression.level")),
    ("compression.zstd.level", Becomes("compression.level")),
    ("max.request.size", Becomes("message.max.bytes")),
    ("client.id", Becomes("client.id")),
    ("client.rack", Becomes("client.rack")),
    ("client.dns.lookup", Becomes("client.dns.lookup")),
    ("connections.max.idle.ms", Becomes("connections.max.idle.ms")),
    ("reconnect.backoff.ms", Becomes("reconnect.backoff.ms")),
    ("reconnect.backoff.max.ms", Becomes("reconnect.backoff.max.ms")),
    ("retry.backoff.ms", Becomes("retry.backoff.ms")),
    ("retry.backoff.max.ms", Becomes("retry.backoff.max.ms")),
    ("socket.connection.setup.timeout.ms", Becomes("socket.connection.setup.timeout.ms")),
    ("socket.connection.setup.timeout.max.ms", NotNeeded(PACE)),
    ("send.buffer.bytes", Becomes("socket.send.buffer.bytes")),
    ("receive.buffer.bytes", Becomes("socket.receive.buffer.bytes")),
    ("metadata.max.age.ms", Becomes("topic.metadata.refresh.interval.ms")),
    ("metadata.max.idle.ms", NotNeeded(PACE)),
    ("metadata.recovery.strategy", Becomes("metadata.recovery.strategy")),
    ("metadata.recovery.rebootstrap.trigger.ms", Becomes("metadata.recovery.rebootstrap.trigger.ms")),
    (
        "partitioner.adaptive.partitioning.enable",
        Lost("it concerns records without a key: librdkafka spreads them in its own way"),
    ),
    (
        "partitioner.availability.timeout.ms",
        Lost("it concerns records without a key: librdkafka spreads them in its own way"),
    ),
    ("metric.reporters", NotNeeded(METRICS)),
    ("metrics.", NotNeeded(METRICS)),
    ("auto.include.jmx.reporter", NotNeeded(METRICS)),
    ("enable.metrics.push", Becomes("enable.metrics.push")),
    ("security.providers", Lost(TLS)),
    ("security.protocol", Becomes("security.protocol")),
    ("sasl.kerberos.", Lost("Kerberos is not built in")),
    ("sasl.login.connect.timeout.ms", NotNeeded(PACE)),
    ("sasl.login.read.timeout.ms", NotNeeded(PACE)),
    ("sasl.login.retry.", NotNeeded(PACE)),
    ("sasl.login.refresh.", NotNeeded("librdkafka renews tokens when 80 % of their time is over")),
    ("sasl.oauthbearer.token.endpoint.url", Becomes("sasl.oauthbearer.token.endpoint.url")),
    ("sasl.oauthbearer.scope", Becomes("sasl.oauthbearer.scope")),
    ("sasl.oauthbearer.client.credentials.client.id", Becomes("sasl.oauthbearer.client.id")),
    ("sasl.oauthbearer.client.credentials.client.secret", Becomes("sasl.oauthbearer.client.secret")),
    ("sasl.oauthbearer.jwks.", NotNeeded("a producer checks no tokens")),
    ("sasl.oauthbearer.expected.", NotNeeded("a producer checks no tokens")),
    ("sasl.oauthbearer.clock.skew.seconds", NotNeeded("a producer checks no tokens")),
    ("sasl.oauthbearer.header.urlencode", Lost(OIDC)),
    ("sasl.oauthbearer.jwt.", Lost(OIDC)),
    ("sasl.oauthbearer.assertion.", Lost(OIDC)),
    ("sasl.oauthbearer.scope.claim.name", NotNeeded("librdkafka does not look into tokens")),
    ("sasl.oauthbearer.sub.claim.name", NotNeeded("librdkafka does not look into tokens")),
    ("ssl.cipher.suites", Lost("Java's names of cipher suites are not OpenSSL's: -X ssl.cipher.suites=… names those")),
    ("ssl.enabled.protocols", Lost(TLS)),
    ("ssl.protocol", Lost(TLS)),
    ("ssl.provider", Lost(TLS)),
    ("ssl.keymanager.algorithm", Lost(TLS)),
    ("ssl.trustmanager.algorithm", Lost(TLS)),
    ("ssl.secure.random.implementation", Lost(TLS)),
    ("config.providers", NotNeeded("asked already")),
    ("config.providers.", NotNeeded("asked already")),
    ("schema.registry.url", NotNeeded("no converter here asks a registry")),
    ("key.converter.", NotNeeded("the producer does not look at converters")),
    ("value.converter.", NotNeeded("the producer does not look at converters")),
];

/// Properties with numbers: Java's name, Java's least value, and librdkafka's range.
const NUMBERS: [(&str, i64, RangeInclusive<i64>); 16] = [
    ("linger.ms", 0, 0..=900_000),
    ("batch.size", 0, 1..=2_147_483_647),
    ("max.request.size", 0, 1_000..=1_000_000_000),
    ("request.timeout.ms", 0, 1..=900_000),
    // In Java, -1 leaves the size to the operating system. In librdkafka, that is 0.
    ("send.buffer.bytes", -1, 0..=100_000_000),
    ("receive.buffer.bytes", -1, 0..=100_000_000),
    ("retry.backoff.ms", 0, 1..=300_000),
    ("retry.backoff.max.ms", 0, 1..=300_000),
    ("reconnect.backoff.ms", 0, 0..=3_600_000),
    ("reconnect.backoff.max.ms", 0, 0..=3_600_000),
    // In Java, a value below 0 means never. In librdkafka, that is 0.
    ("connections.max.idle.ms", i64::MIN, 0..=2_147_483_647),
    ("metadata.max.age.ms", 0, 1..=3_600_000),
    ("socket.connection.setup.timeout.ms", i64::MIN, 1_000..=2_147_483_647),
    ("compression.gzip.level", -1, -1..=9),
    ("compression.lz4.level", 1, 1..=12),
    ("compression.zstd.level", -131_072, 1..=12),
];

/// The mechanisms that librdkafka has.
const MECHANISMS: [&str; 4] = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"];

const NO_OTHER: &str = "PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 and OAUTHBEARER are built in";

impl Translator {
    pub(super) fn producer(&mut self) {
        match self.configuration.producer.take_filled("bootstrap.servers") {
            Some(brokers) => {
                let list = brokers.text.split(',').map(|broker| broker.trim().to_owned()).filter(|b| !b.is_empty());
                self.set_list("brokers", list.collect(), &brokers.origin);
            }
            None => self.no_brokers(),
        }
        self.partitioner();
        self.serializers();
        self.sasl();
        self.tls();
        self.levels();
        self.reconnects();
        let rest = std::mem::take(&mut self.configuration.producer);
        for (key, value) in rest.iter() {
            self.plain_property(key, value);
        }
    }

    fn no_brokers(&mut self) {
        let text = if self.is_server() {
            "debezium.sink.kafka.producer.bootstrap.servers is missing: --brokers says where Kafka is"
        } else {
            "a connector does not say where Kafka is, its worker does: --brokers says it, or the worker's properties with another --from-debezium"
        };
        self.out.notes.push(Note::new(Severity::Warning, "bootstrap.servers".to_owned(), text));
    }

    fn plain_property(&mut self, key: &str, value: &Given) {
        let action = PROPERTIES.iter().find(|(name, _)| key == *name || (name.ends_with('.') && key.starts_with(name)));
        match action.map(|(_, action)| *action) {
            Some(Becomes(name)) => self.becomes(key, name, value),
            Some(NotNeeded(text)) => self.not_needed(value, text),
            Some(Lost(text)) => self.warn(value, text),
            None => self.warn(value, "the producer of today knows no such property"),
        }
    }

    /// Sets librdkafka's property. If Java takes a number and librdkafka does not, it becomes the nearest one that librdkafka takes.
    fn becomes(&mut self, key: &str, name: &str, value: &Given) {
        let text = value.text.trim();
        if text.is_empty() && self.is_server() {
            return self.not_needed(value, "Quarkus takes an empty value for none");
        }
        let near = NUMBERS.iter().find(|(number, ..)| *number == key).and_then(|(_, least, taken)| {
            let number = text.parse::<i64>().ok().filter(|number| number >= least && !taken.contains(number))?;
            Some((number.clamp(*taken.start(), *taken.end()), taken))
        });
        let Some((near, taken)) = near else { return self.property(name, text, &value.origin) };
        self.property(name, near.to_string(), &value.origin);
        self.warn(value, format!("librdkafka takes {} to {}, so that {near} counts", taken.start(), taken.end()));
    }

    /// Translates levels of compression. A level counts only for its codec.
    fn levels(&mut self) {
        let codec =
            self.configuration.producer.get("compression.type").map(|codec| codec.text.trim().to_ascii_lowercase());
        for other in ["gzip", "lz4", "zstd"].into_iter().filter(|other| codec.as_deref() != Some(other)) {
            let level = self.configuration.producer.take(&format!("compression.{other}.level"));
            self.not_needed(&level, format!("compression.type is not {other}"));
        }
    }

    /// Translates the pauses between connection attempts. As in Java, if only the first pause is given, it is also the longest one.
    /// Else the longest one is the limit.
    fn reconnects(&mut self) {
        let (first, longest) = ("reconnect.backoff.ms", "reconnect.backoff.max.ms");
        let producer = &mut self.configuration.producer;
        let number = |value: &Given| value.text.trim().parse::<i64>().ok();
        let Some(pause) = producer.get(first).filter(|pause| number(pause).is_some()).cloned() else { return };
        match producer.get(longest).cloned() {
            None => producer.insert(longest.to_owned(), pause),
            Some(bound) if number(&bound).is_some_and(|bound| number(&pause).is_some_and(|pause| pause > bound)) => {
                producer.insert(first.to_owned(), Given { text: bound.text, ..pause });
            }
            Some(_) => {}
        }
    }

    fn partitioner(&mut self) {
        if let Some(class) = self.configuration.producer.take_filled("partitioner.class") {
            let name = class_name(&class.text);
            if name == "DefaultPartitioner" {
                self.not_needed(&class, "records go by their keys here, too");
            } else {
                self.differs(
                    &class,
                    format!("{name} may choose other partitions; here records go by murmur2 of their keys"),
                );
            }
        }
        match self.configuration.producer.take("partitioner.ignore.keys") {
            Some(ignore) if says(&ignore, "true") => {
                self.differs(&ignore, "records went to any partition; here they go by murmur2 of their keys");
            }
            obey => self.not_needed(&obey, NO_EFFECT),
        }
        let classes = self.configuration.producer.take_filled("interceptor.classes");
        self.differs(&classes, "interceptors may change records; none is applied");
    }

    /// Checks the serializers. They get the converter's bytes, and these two do not change them.
    fn serializers(&mut self) {
        for key in ["key.serializer", "value.serializer"] {
            let Some(class) = self.configuration.producer.take_filled(key) else { continue };
            let name = class_name(&class.text);
            if ["StringSerializer", "ByteArraySerializer", "ByteBufferSerializer"].contains(&name) {
                self.not_needed(&class, "it leaves what the converter made as it is");
            } else {
                self.differs(&class, format!("{name} may write other bytes than the converter made"));
            }
        }
    }

    fn sasl(&mut self) {
        let producer = &mut self.configuration.producer;
        let mechanism = producer.take_filled("sasl.mechanism");
        let config = producer.take_filled("sasl.jaas.config");
        let classes = ["sasl.login.callback.handler.class", "sasl.client.callback.handler.class", "sasl.login.class"];
        let callbacks = classes.map(|key| producer.take_filled(key));
        for class in callbacks.into_iter().flatten() {
            if class.text.trim().ends_with("OAuthBearerLoginCallbackHandler") {
                self.property("sasl.oauthbearer.method", "oidc", &class.origin);
            } else {
                self.refuse(&class, "a Java class that logs in: librdkafka has sasl.mechanism, sasl.username, sasl.password and sasl.oauthbearer.*");
            }
        }
        if let Some(named) = &mechanism {
            self.mechanism(named);
        }
        if let Some(config) = config {
            match jaas::parse(&config.text) {
                Some(parsed) => self.log_in(parsed, mechanism.is_some(), &config),
                None => self.refuse(
                    &config,
                    "this is not a JAAS configuration; librdkafka has sasl.username and sasl.password",
                ),
            }
        }
        self.kerberos(mechanism.as_ref());
    }

    /// Translates the mechanism. In Java, the names are only in capitals.
    fn mechanism(&mut self, named: &Given) {
        let text = named.text.trim();
        if MECHANISMS.contains(&text) {
            self.property("sasl.mechanism", text, &named.origin);
        } else if self.sasl_protocol().is_some() {
            self.refuse(named, format!("\"{text}\" is not built in: {NO_OTHER}"));
        } else {
            self.not_needed(named, "security.protocol asks for no SASL");
        }
    }

    /// Refuses Kerberos (GSSAPI), which Java's producer uses if no mechanism is named.
    fn kerberos(&mut self, mechanism: Option<&Given>) {
        let protocol = self.sasl_protocol().filter(|_| mechanism.is_none());
        if let Some(protocol) = protocol.filter(|_| !self.out.properties.contains_key("sasl.mechanism")) {
            let text =
                format!("sasl.mechanism is missing, so that Java takes GSSAPI, which is not built in: {NO_OTHER}");
            self.refuse(&protocol, text);
        }
    }

    /// `security.protocol`, if its value means SASL.
    fn sasl_protocol(&self) -> Option<Given> {
        let protocol = self.configuration.producer.get("security.protocol").cloned();
        protocol.filter(|value| value.text.trim().to_ascii_uppercase().starts_with("SASL"))
    }

    fn log_in(&mut self, mut jaas: Jaas, has_mechanism: bool, config: &Given) {
        let (names, mechanism) = match jaas.module.as_str() {
            "PlainLoginModule" => {
                ([("username", "sasl.username"), ("password", "sasl.password")].as_slice(), Some("PLAIN"))
            }
            "ScramLoginModule" => ([("username", "sasl.username"), ("password", "sasl.password")].as_slice(), None),
            "OAuthBearerLoginModule" => (
                [
                    ("clientId", "sasl.oauthbearer.client.id"),
                    ("clientSecret", "sasl.oauthbearer.client.secret"),
                    ("scope", "sasl.oauthbearer.scope"),
                ]
                .as_slice(),
                Some("OAUTHBEARER"),
            ),
            // It is not named: if the entry is malformed, it may be a part of the password.
            _ => return self.refuse(config, NO_MODULE),
        };
        for (option, property) in names {
            if let Some(text) = jaas.options.remove(*option) {
                self.property(property, text, &config.origin);
            }
        }
        match (has_mechanism, mechanism) {
            (false, Some(mechanism)) => self.property("sasl.mechanism", mechanism, &config.origin),
            (false, None) => self.refuse(config, "sasl.mechanism is missing: SCRAM-SHA-256 or SCRAM-SHA-512"),
            (true, _) => {}
        }
        for option in jaas.options.keys() {
            // It is named only if it is known: after a quote within the password, a part of that looks like an option.
            match OPTIONS.iter().find(|known| *known == option) {
                Some(known) => self.warn(config, format!("its option {known} is not carried over")),
                None => self.warn(config, "an option of it is not carried over"),
            }
        }
    }
}

const NO_MODULE: &str = "its login module has no counterpart: librdkafka has sasl.mechanism PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 and OAUTHBEARER, with sasl.username and sasl.password";

/// Options of Kafka's login modules that have no counterpart.
const OPTIONS: [&str; 3] = ["tokenauth", "serviceName", "debug"];
