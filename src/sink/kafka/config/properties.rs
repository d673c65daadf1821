//! Checks the bootstrap servers and the user's properties for librdkafka.
//!
//! In: the settings as text. Out: one value for each property, under one name if librdkafka has several.
//! Invariant: no property that passes can break a guarantee. librdkafka itself checks its other rules.
//! Specification: librdkafka's CONFIGURATION.md.

use crate::setting_text::{Given, SettingError, nearest};

/// librdkafka's other names for a property.
const ALIASES: [(&str, &str); 8] = [
    ("request.required.acks", "acks"),
    ("delivery.timeout.ms", "message.timeout.ms"),
    ("message.send.max.retries", "retries"),
    ("max.in.flight", "max.in.flight.requests.per.connection"),
    ("queue.buffering.max.ms", "linger.ms"),
    ("compression.codec", "compression.type"),
    ("metadata.broker.list", "bootstrap.servers"),
    ("sasl.mechanisms", "sasl.mechanism"),
];

/// Partitioners that send equal keys to equal partitions.
const DETERMINISTIC: [&str; 6] =
    ["murmur2_random", "murmur2", "consistent_random", "consistent", "fnv1a_random", "fnv1a"];

/// The decision on a property.
enum PropertyVerdict {
    /// The user may set it.
    Keep,
    /// It sets the value that is fixed anyway.
    Drop,
    /// It would break a guarantee, or has another name.
    Refuse { reason: &'static str, hint: Option<String> },
}

/// Bootstrap servers, with commas between them.
pub(in crate::sink::kafka) fn brokers(addresses: &[Given]) -> Result<String, SettingError> {
    let mut brokers = Vec::new();
    for given in addresses {
        for broker in given.text.trim_end_matches('/').split(',').map(str::trim) {
            if !is_broker(broker) {
                // The text may contain credentials, which belong elsewhere: it is not shown.
                let shown = if broker.contains('@') { "***" } else { broker };
                let given = Given { text: shown.to_owned(), origin: given.origin.clone() };
                return Err(given.invalid("HOST:PORT, with commas between several", nearest_broker(broker)));
            }
            brokers.push(broker);
        }
    }
    Ok(if brokers.is_empty() { "localhost:9092".to_owned() } else { brokers.join(",") })
}

/// The protocols that may stand before `://` in a broker's address.
const PROTOCOLS: [&str; 4] = ["plaintext", "ssl", "sasl_plaintext", "sasl_ssl"];

/// Refuses brokers with another protocol before their address than the client speaks. librdkafka would leave them out.
pub(in crate::sink::kafka) fn one_protocol(addresses: &[Given], spoken: Option<&str>) -> Result<(), SettingError> {
    let spoken = spoken.unwrap_or("plaintext").trim();
    for given in addresses {
        for broker in given.text.split(',').map(str::trim) {
            let named = broker.split_once("://").map(|(named, _)| named);
            if let Some(named) = named.filter(|named| !named.eq_ignore_ascii_case(spoken)) {
                let reason = "the client speaks another protocol (security.protocol), and would leave this broker out";
                let hint = format!("-X security.protocol={}", named.to_ascii_uppercase());
                return Err(SettingError::refused(&given.origin, broker, reason).with_hint(Some(hint)));
            }
        }
    }
    Ok(())
}

/// `host`, `host:port`, `[v6]:port`, or one of these behind librdkafka's `protocol://`.
fn is_broker(broker: &str) -> bool {
    let address = match broker.split_once("://") {
        Some((protocol, _)) if !PROTOCOLS.iter().any(|known| known.eq_ignore_ascii_case(protocol)) => return false,
        Some((_, address)) => address,
        None => broker,
    };
    let (host, port) = match address.strip_prefix('[').and_then(|v6| v6.split_once(']')) {
        Some((host, "")) => (host, None),
        Some((host, port)) => (host, Some(port.strip_prefix(':').unwrap_or("-"))),
        None => address.split_once(':').map_or((address, None), |(host, port)| (host, Some(port))),
    };
    let valid_host = !host.is_empty() && !host.contains(|c: char| c.is_whitespace() || "/@?=".contains(c));
    valid_host && port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0))
}

fn nearest_broker(broker: &str) -> Option<String> {
    let broker = broker.split_once("://").map_or(broker, |(_, address)| address);
    let host = broker.split(['/', ':']).find(|part| !part.is_empty())?;
    let is_name = host.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b));
    (is_name && !broker.contains('@')).then(|| format!("{host}:9092"))
}

/// One value for each property, the last one given.
pub(in crate::sink::kafka) fn check_all(
    given: Vec<(String, Given)>,
    max_in_flight: usize,
) -> Result<Vec<(String, String)>, SettingError> {
    let mut properties = Vec::<(String, String)>::new();
    for (written, value) in given {
        let name = ALIASES.iter().find(|(alias, _)| *alias == written).map_or(written.as_str(), |(_, name)| name);
        properties.retain(|(earlier, _)| earlier != name);
        match verdict(name, value.text.trim(), max_in_flight) {
            PropertyVerdict::Keep => properties.push((name.to_owned(), value.text)),
            PropertyVerdict::Drop => {}
            PropertyVerdict::Refuse { reason, hint } => return Err(refused(&written, &value, reason, hint)),
        }
    }
    Ok(properties)
}

fn refused(written: &str, value: &Given, reason: &'static str, hint: Option<String>) -> SettingError {
    // No property that is refused here holds a secret.
    let setting = format!("{written}={}", value.text);
    SettingError::refused(&value.origin, &setting, reason).with_hint(hint)
}

fn refuse(reason: &'static str) -> PropertyVerdict {
    PropertyVerdict::Refuse { reason, hint: None }
}

fn refuse_unless(fixed: bool, reason: &'static str) -> PropertyVerdict {
    if fixed { PropertyVerdict::Drop } else { refuse(reason) }
}

fn keep_if(is_valid: bool, reason: &'static str, hint: String) -> PropertyVerdict {
    if is_valid { PropertyVerdict::Keep } else { PropertyVerdict::Refuse { reason, hint: Some(hint) } }
}

fn verdict(name: &str, value: &str, max_in_flight: usize) -> PropertyVerdict {
    let is_on = ["true", "t", "1"].iter().any(|on| value.eq_ignore_ascii_case(on));
    let needed_kbytes = max_in_flight.div_ceil(1024);
    match name {
        "acks" => refuse_unless(
            ["all", "-1"].contains(&value),
            "a record counts as delivered when all in-sync replicas have it (acks=all)",
        ),
        "enable.idempotence" => {
            refuse_unless(is_on, "without it a retried batch repeats records and changes their order")
        }
        "message.timeout.ms" => {
            refuse_unless(value == "0", "an outage of Kafka is waited out, no record expires (message.timeout.ms=0)")
        }
        "retries" => {
            refuse_unless(value == "2147483647", "an outage of Kafka is waited out, a record is retried indefinitely")
        }
        "enable.gapless.guarantee" => refuse_unless(
            is_on,
            "without it, records after a refused batch would be written before that one is handled",
        ),
        "delivery.report.only.error" => refuse_unless(!is_on, "each delivery is to be reported: it moves the slot"),
        "transactional.id" => refuse("transactions are not the user's to begin here"),
        "max.in.flight.requests.per.connection" => keep_if(
            value.parse().is_ok_and(|requests: u32| (1..=5).contains(&requests)),
            "brokers keep the order of at most 5 requests in flight (1 to 5)",
            "max.in.flight.requests.per.connection=5".to_owned(),
        ),
        "partitioner" => keep_if(
            DETERMINISTIC.contains(&value),
            "equal keys are to go to one partition: murmur2_random (default), murmur2, consistent_random, consistent, fnv1a_random or fnv1a",
            format!("partitioner={}", nearest(value, DETERMINISTIC).unwrap_or("murmur2_random")),
        ),
        "queuing.strategy" => refuse_unless(value == "fifo", "records of a key are to leave in their order"),
        "queue.buffering.max.kbytes" => keep_if(
            value.parse().is_ok_and(|kbytes: usize| kbytes >= needed_kbytes),
            "the client's queue is to hold --max-in-flight",
            format!("queue.buffering.max.kbytes={needed_kbytes} or more, or a smaller --max-in-flight"),
        ),
        "bootstrap.servers" => PropertyVerdict::Refuse {
            reason: "the bootstrap servers have a flag of their own",
            hint: Some(format!("--brokers {value}")),
        },
        "enabled_events" | "opaque" | "default_topic_conf" | "interceptors" | "msg_order_cmp" => refuse(INTERNAL),
        _ if name.ends_with("_cb") => refuse(INTERNAL),
        _ if name.starts_with("test.mock.") => refuse("records would go to a mock cluster inside this process"),
        _ => PropertyVerdict::Keep,
    }
}

const INTERNAL: &str = "it is set by the program itself";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setting_text::Origin;

    fn checked(flags: &[&str]) -> Result<Vec<(String, String)>, SettingError> {
        let given = |flag: &&str| {
            let (name, text) = flag.split_once('=').unwrap();
            let name = name.trim().to_owned();
            (name.clone(), Given { text: text.to_owned(), origin: Origin::Flag(format!("-X {name}")) })
        };
        check_all(flags.iter().map(given).collect(), 16 << 20)
    }

    fn owned(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn given(addresses: &[&str]) -> Vec<Given> {
        let given = |text: &&str| Given { text: (*text).to_owned(), origin: Origin::Flag("--brokers".to_owned()) };
        addresses.iter().map(given).collect()
    }

    #[test]
    fn what_would_break_a_guarantee_is_refused_under_each_of_its_names() {
        for flag in [
            "acks=1",
            "acks = 0",
            "request.required.acks=1",
            "enable.idempotence=false",
            "message.timeout.ms=5000",
            "delivery.timeout.ms=5000",
            "retries=3",
            "message.send.max.retries=0",
            "max.in.flight=6",
            "max.in.flight=0x10",
            "max.in.flight.requests.per.connection=1000000",
            "partitioner=random",
            "transactional.id=a",
            "delivery.report.only.error=true",
            "enable.gapless.guarantee=false",
            "queuing.strategy=lifo",
            "queue.buffering.max.kbytes=16383",
            "bootstrap.servers=a:1",
            "metadata.broker.list=a:1",
            "dr_msg_cb=x",
            "enabled_events=1",
            "test.mock.num.brokers=3",
        ] {
            let error = checked(&[flag]).expect_err(flag);
            assert!(error.to_string().contains(" is refused: "), "{flag}: {error}");
        }
    }

    #[test]
    fn a_refusal_names_the_setting_as_given_and_the_reason() {
        let error = checked(&["request.required.acks=1"]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "-X request.required.acks: request.required.acks=1 is refused: \
             a record counts as delivered when all in-sync replicas have it (acks=all)"
        );
        let error = checked(&["partitioner=murmur3"]).unwrap_err();
        assert_eq!(error.hint.as_deref(), Some("partitioner=murmur2"));
    }

    #[test]
    fn what_says_the_same_as_is_fixed_is_left_out() {
        let flags = ["acks=all", "acks=-1", "enable.idempotence=true", "message.timeout.ms=0", "retries=2147483647"];
        assert_eq!(checked(&flags).unwrap(), []);
    }

    #[test]
    fn a_broker_of_another_protocol_than_the_clients_is_refused_with_the_setting() {
        let given = |text: &str| Given { text: text.to_owned(), origin: Origin::Flag("--brokers".to_owned()) };
        let checked = |text: &str, spoken| one_protocol(&[given(text)], spoken);
        for (text, spoken) in [
            ("a:1,PLAINTEXT://b:2", None),
            ("SASL_SSL://a:1", Some("sasl_ssl")),
            ("ssl://a", Some("SSL")),
            ("a", Some("ssl")),
        ] {
            assert!(checked(text, spoken).is_ok(), "{text}");
        }
        for (text, spoken) in [("SASL_SSL://a:1", None), ("a:1,ssl://b:2", Some("sasl_ssl"))] {
            let error = checked(text, spoken).unwrap_err();
            let named = if text.starts_with('S') { "SASL_SSL" } else { "SSL" };
            assert_eq!(error.hint, Some(format!("-X security.protocol={named}")), "{error}");
        }
    }

    #[test]
    fn the_rest_is_kept_under_one_name_with_the_last_value() {
        let flags = [
            "linger.ms=7",
            "sasl.password=x",
            "queue.buffering.max.ms=5",
            "compression.codec=lz4",
            "max.in.flight=1",
            "partitioner=consistent",
        ];
        let expected = [
            ("sasl.password", "x"),
            ("linger.ms", "5"),
            ("compression.type", "lz4"),
            ("max.in.flight.requests.per.connection", "1"),
            ("partitioner", "consistent"),
        ];
        assert_eq!(checked(&flags).unwrap(), owned(&expected));
        let queue = checked(&["queue.buffering.max.kbytes=16384"]).unwrap();
        assert_eq!(queue, owned(&[("queue.buffering.max.kbytes", "16384")]));
    }

    #[test]
    fn credentials_among_the_brokers_are_refused_and_not_shown() {
        assert_eq!(brokers(&given(&["a:1,b", "c:3/"])).unwrap(), "a:1,b,c:3");
        assert_eq!(brokers(&[]).unwrap(), "localhost:9092");
        let error = brokers(&given(&["u:hunter2@a:1"])).unwrap_err();
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }

    #[test]
    fn brokers_are_hosts_with_ports() {
        for broker in ["a", "a:9092", "[::1]:9092", "[::1]", "SASL_SSL://a:9092"] {
            assert!(is_broker(broker), "{broker}");
        }
        for broker in ["", ":9092", "a:", "a:x", "a:0", "a:65536", "a b", "http://a/b", "[::1]9"] {
            assert!(!is_broker(broker), "{broker}");
        }
        assert_eq!(nearest_broker("a:x").as_deref(), Some("a:9092"));
    }
}
