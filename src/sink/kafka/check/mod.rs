//! Checks the brokers, and the topics of the latest rows.
//!
//! In: the cluster's answers, and the rows' topics and sizes. Out: findings.

mod exactly_once;
mod examine;
mod listener;
pub(super) mod probe;
mod retention;
mod rights;
#[cfg(test)]
mod tests;

use super::NAME;
use super::config::{KafkaSettings, SettingsError};
use super::errors::LOGIN_HINT;
use super::progress::{CLEANUP_POLICY, TOPIC as PROGRESS_TOPIC};
use super::replicas::TRANSACTION_STATE;
use super::tools::{self, MIN_INSYNC, allow, alter};
use crate::check_finding::{Finding, Side};
use crate::remedy::Command;
use crate::setting_text::units::bytes;
use crate::sink::destination::{RecordTimes, Wanted};
use crate::sink::{Failure, FailureClass};
use examine::{Cluster, TopicFacts, examine, is_of_advertised_address, setting};
use listener::Speaks;
use std::net::IpAddr;

/// The side of these findings.
const SIDE: Side = Side::Destination(NAME);

/// The broker's default of `message.max.bytes`, which limits a topic's records.
const DEFAULT_MESSAGE_BYTES: usize = 1_048_588;

/// A generous estimate of a record's bytes in a batch beyond key and value, with a few headers.
const OVERHEAD_BYTES: usize = 512;

/// librdkafka's default of `batch.size`.
const DEFAULT_BATCH_BYTES: u64 = 1_000_000;

/// A generous estimate of a request's bytes beside its batch.
const ROOM_BYTES: u64 = 1_024;

/// The command that gives a topic more replicas.
const MORE_REPLICAS: &str = "kafka-reassign-partitions.sh, with three replicas for each partition";

/// If more topics are missing, the check only counts them.
const TOPICS_SHOWN: usize = 20;

/// The fix if both sides speak TLS and the handshake fails.
const CERTIFICATES: &str = "-X ssl.ca.location=FILE with the certificate of the brokers' authority, and in --brokers the host's name as the certificate has it; where brokers ask for a client's certificate, -X ssl.certificate.location=FILE -X ssl.key.location=FILE";

/// Asks the cluster, and makes findings of its answers.
pub(super) fn check(settings: Result<KafkaSettings, SettingsError>, wanted: &Wanted<'_>) -> Vec<Finding> {
    let settings = match settings {
        Ok(settings) if wanted.exactly_once.is_some() => settings.exactly_once(wanted.one_replica),
        Ok(settings) => settings,
        Err(error) => return vec![SIDE.fail("connection", error.to_string())],
    };
    let own = wanted.exactly_once.map(|_| PROGRESS_TOPIC);
    let topics: Vec<&str> = wanted.topics.iter().map(String::as_str).chain(own).collect();
    let more = wanted.exactly_once.map(|_| TRANSACTION_STATE).into_iter().chain(wanted.dead_letters);
    let looked_at: Vec<&str> = topics.iter().copied().chain(more).collect();
    let mut cluster = match examine(&settings, &looked_at) {
        Ok(cluster) => cluster,
        Err(failure) => return vec![unreachable(&settings, &failure, &listener::ask(&settings.brokers))],
    };
    let missing: Vec<&str> = topics.into_iter().filter(|name| !cluster.topics.contains_key(*name)).collect();
    cluster.forbidden = rights::not_to_be_created(&settings, &missing);
    let of_dead_letters = wanted.dead_letters.filter(|name| !cluster.topics.contains_key(*name));
    let unseen: Vec<&str> = missing.into_iter().chain(of_dead_letters).collect();
    cluster.hidden = rights::not_to_be_seen(&settings, &unseen);
    let mut found = Check { settings: &settings, cluster: &cluster, wanted }.findings();
    if let Some(name) = wanted.exactly_once {
        found.extend(exactly_once::findings(&settings, &cluster, (name, wanted.was_read)));
        let dead_letters = wanted.dead_letters.filter(|name| !wanted.topics.contains(*name));
        found.extend(dead_letters.and_then(|name| exactly_once::replicas(&settings, name, cluster.topics.get(name)?)));
    }
    found
}

/// The finding if no broker answers, or if the brokers refuse the credentials.
fn unreachable(settings: &KafkaSettings, failure: &Failure, speaks: &Speaks) -> Finding {
    if is_of_advertised_address(failure) {
        return misled(SIDE.fail("advertised", failure.text.clone()));
    }
    let found = SIDE.fail("connection", failure.text.clone());
    let protocol = settings.property("security.protocol").unwrap_or("plaintext").to_ascii_lowercase();
    if let Some((why, fix)) = other_protocol(settings, &protocol, speaks) {
        return found.why(why).bounded(fix);
    }
    if failure.class == FailureClass::LogIn {
        return found.why("the brokers refuse the credentials").words(LOGIN_HINT);
    }
    found.why("nothing else could be checked here").words(match speaks {
        Speaks::Tls => CERTIFICATES.to_owned(),
        Speaks::Plain | Speaks::Sasl(_) | Speaks::Nothing => {
            format!("--brokers with the brokers' address; security.protocol is {protocol}")
        }
    })
}

/// The listener's protocol and the flags for it, if the settings have another protocol.
fn other_protocol(settings: &KafkaSettings, protocol: &str, speaks: &Speaks) -> Option<(String, Command)> {
    let (has_login, is_encrypted) = (protocol.starts_with("sasl_"), protocol.ends_with("ssl"));
    let login = if has_login || settings.property("sasl.username").is_some() { "SASL_SSL" } else { "SSL" };
    let run = |property: &str, value: &str| Command::new("run").set("-X", format_args!("{property}={value}"));
    let (speaks, run) = match speaks {
        Speaks::Plain if protocol != "plaintext" => {
            ("neither TLS nor authentication".to_owned(), run("security.protocol", "PLAINTEXT"))
        }
        Speaks::Sasl(mechanisms) if protocol != "sasl_plaintext" => {
            let known = ["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN", "OAUTHBEARER"];
            let best = known.into_iter().find(|known| mechanisms.iter().any(|offered| offered == known));
            let chosen = settings.property("sasl.mechanism").filter(|chosen| mechanisms.iter().any(|m| m == chosen));
            let mechanism = chosen.or(best).unwrap_or("PLAIN");
            let run = run("security.protocol", "SASL_PLAINTEXT").set("-X", format_args!("sasl.mechanism={mechanism}"));
            (format!("no TLS, and authentication by {}", mechanisms.join(", ")), run)
        }
        Speaks::Sasl(mechanisms) => {
            let chosen = settings.property("sasl.mechanism").unwrap_or("GSSAPI");
            let offered = mechanisms.first().filter(|_| mechanisms.iter().all(|offered| offered != chosen))?;
            let why = format!("authentication by {}, not by {chosen}", mechanisms.join(", "));
            (why, run("sasl.mechanism", offered))
        }
        Speaks::Tls if !is_encrypted => ("TLS alone".to_owned(), run("security.protocol", login)),
        Speaks::Plain | Speaks::Tls | Speaks::Nothing => return None,
    };
    Some((format!("the listener there speaks {speaks}"), run))
}

/// The settings, the answers of a cluster, and the run's demands on it.
struct Check<'a> {
    settings: &'a KafkaSettings,
    cluster: &'a Cluster,
    wanted: &'a Wanted<'a>,
}

impl Check<'_> {
    /// All findings about a cluster that has answered.
    fn findings(&self) -> Vec<Finding> {
        let mut found = vec![
            SIDE.ok("connection", format!("brokers that answer: {}", self.cluster.brokers.len())),
            self.protocol(),
        ];
        found.extend(self.advertised());
        found.push(self.idempotence());
        found.extend(self.request_size());
        found.extend(self.missing());
        found.extend(self.dead_letters());
        for name in self.wanted.topics {
            if let Some(topic) = self.cluster.topics.get(name) {
                found.extend(self.topic(name, topic));
            }
        }
        found.extend(self.retention());
        found
    }

    fn protocol(&self) -> Finding {
        let protocol = self.settings.property("security.protocol").unwrap_or("plaintext").to_ascii_lowercase();
        let encrypted = protocol.contains("ssl");
        let text = format!("security.protocol is {protocol}");
        let verified =
            self.settings.property("enable.ssl.certificate.verification").is_none_or(|value| value != "false");
        if encrypted && !verified {
            return SIDE.warn("security", format!("{text}, and the brokers' certificates are not verified"))
                .why("anybody on the network path can read and change records")
                .words("leave out -X enable.ssl.certificate.verification=false; an authority of your own: -X ssl.ca.location=FILE");
        }
        if encrypted {
            return SIDE.ok("security", text);
        }
        let why = "records and passwords are not encrypted on the way";
        if self.cluster.brokers.iter().all(|broker| is_loopback(broker)) {
            return SIDE.ok("security", text).why(why);
        }
        let flag = if protocol.starts_with("sasl") { "SASL_SSL" } else { "SSL" };
        SIDE.warn("security", format!("{text}, and brokers are on other machines")).why(why).words(format!(
            "-X security.protocol={flag}, with the address of a TLS listener of the brokers in --brokers"
        ))
    }

    /// Whether no broker can be reached at its advertised address.
    fn is_out_of_reach(&self) -> bool {
        self.cluster.unreachable.len() >= self.cluster.brokers.len()
    }

    fn advertised(&self) -> impl Iterator<Item = Finding> {
        let found: fn(Side, &'static str, String) -> Finding =
            if self.is_out_of_reach() { Side::fail } else { Side::warn };
        self.cluster.unreachable.iter().map(move |warning| misled(found(SIDE, "advertised", warning.clone())))
    }

    fn idempotence(&self) -> Finding {
        match &self.cluster.idempotence {
            Ok(()) => SIDE.ok("write", "an idempotent producer gets its identity"),
            Err(_) if self.is_out_of_reach() => {
                SIDE.warn("write", "not checked: no broker can be reached at its advertised address")
            }
            Err(error) => SIDE
                .fail("write", format!("no identity for an idempotent producer: {error}"))
                .why("every record is written idempotently; the user may write no topic, and not idempotently either")
                .safe(allow(self.settings, &["Write", "Describe"], &self.topics_by_pattern())),
        }
    }

    /// The finding if brokers refuse requests as large as a batch. `None` as well, if their settings cannot be seen.
    fn request_size(&self) -> Option<Finding> {
        const LIMIT: &str = "socket.request.max.bytes";
        let limit: u64 = setting(&self.cluster.settings, LIMIT)?.parse().ok()?;
        let batch = self.settings.property("batch.size").map_or(Some(DEFAULT_BATCH_BYTES), |size| size.parse().ok())?;
        (limit < batch + ROOM_BYTES).then(|| {
            SIDE.fail("request_size", format!("{LIMIT} of the brokers is {limit}, and batch.size {batch}"))
                .why("a broker closes the connection upon a larger request, which is then sent again and again")
                .bounded(Command::new("run").set("-X", format_args!("batch.size={}", (limit / 2).max(1))))
        })
    }

    /// The command's options that name all topics of the relay.
    fn topics_by_pattern(&self) -> String {
        match self.wanted.topics_begin {
            "" => "--topic '*'".to_owned(),
            begin => format!("--topic '{begin}' --resource-pattern-type prefixed"),
        }
    }

    /// The findings about topics of the latest rows that do not exist.
    fn missing(&self) -> Vec<Finding> {
        let names = self.wanted.topics.iter();
        let missing: Vec<&String> = names.filter(|name| !self.cluster.topics.contains_key(*name)).collect();
        if missing.is_empty() {
            return vec![match self.wanted.topics.len() {
                0 => SIDE.ok("topics", "there is no row that says which topics are needed"),
                count => SIDE.ok("topics", format!("the latest rows' topics are there: {count}")),
            }];
        }
        let (hidden, missing): (Vec<&String>, Vec<_>) =
            missing.into_iter().partition(|name| self.cluster.hidden.contains(*name));
        // One command gives the right to all of them. The next check then shows which of them do not exist.
        let hidden = hidden.first().map(|name| {
            let found = self.out_of_sight("topics", name, &self.topics_by_pattern());
            found.why("the relay waits before its first record")
        });
        let mut found: Vec<Finding> = hidden.into_iter().collect();
        if !missing.is_empty() {
            found.extend(self.to_be_created(missing));
        }
        found
    }

    /// The finding about a topic that the user may not see. It may exist. `resource`: the command's options that name it.
    fn out_of_sight(&self, check: &'static str, name: &str, resource: &str) -> Finding {
        SIDE.fail(check, format!("this user may not see topic {name}, nor write it")).safe(allow(
            self.settings,
            &["Write", "Describe"],
            resource,
        ))
    }

    fn to_be_created(&self, missing: Vec<&String>) -> Vec<Finding> {
        let forbidden = missing.iter().any(|name| self.cluster.forbidden.contains(*name));
        let (creates, more) = self.creates();
        match creates.filter(|_| !forbidden) {
            Some(true) => {
                let names: Vec<&str> = missing.iter().take(TOPICS_SHOWN).map(|name| name.as_str()).collect();
                vec![
                    SIDE.ok("topics", format!("made with their first record: {}", names.join(", ")))
                        .why("with the brokers' defaults for partitions and replicas")
                        .safe(self.create(names.first().copied().unwrap_or_default())),
                ]
            }
            creates => missing
                .into_iter()
                .take(TOPICS_SHOWN)
                .map(|name| {
                    let is_forbidden = self.cluster.forbidden.contains(name);
                    let whose = if is_forbidden { "; this user may not create it" } else { "" };
                    let text = format!("topic {name} is not there, or may not be seen{whose}{more}");
                    let found = if creates.is_some() || is_forbidden {
                        SIDE.fail("topics", text)
                    } else {
                        SIDE.warn("topics", text)
                    };
                    found.why("the relay waits before its first record").safe(self.create(name))
                })
                .collect(),
        }
    }

    /// The finding about the dead-letter topic, if bad rows go to one.
    fn dead_letters(&self) -> Option<Finding> {
        let topic = self.wanted.dead_letters?;
        if self.cluster.topics.contains_key(topic) {
            return Some(SIDE.ok("dead_letters", format!("topic {topic} is there")));
        }
        let why = "the first bad row stops the relay: its dead-letter record can go nowhere";
        if self.cluster.hidden.contains(topic) {
            return Some(self.out_of_sight("dead_letters", topic, &format!("--topic {topic}")).why(why));
        }
        let (creates, more) = self.creates();
        if creates == Some(true) {
            return Some(SIDE.ok("dead_letters", format!("topic {topic} is created with the first bad row")));
        }
        let text = format!("topic {topic} is not there, or may not be seen{more}");
        Some(SIDE.fail("dead_letters", text).why(why).safe(self.create(topic)))
    }

    /// Whether the brokers create topics on demand, if their settings can be seen, and an addition to the finding.
    fn creates(&self) -> (Option<bool>, String) {
        let creates = setting(&self.cluster.settings, "auto.create.topics.enable").map(|creates| creates == "true");
        let replicas = setting(&self.cluster.settings, "default.replication.factor")
            .and_then(|factor| factor.parse::<usize>().ok());
        let brokers = self.cluster.brokers.len();
        match replicas.filter(|replicas| creates == Some(true) && *replicas > brokers) {
            Some(replicas) => (
                Some(false),
                format!("; default.replication.factor={replicas} with {brokers} brokers creates none on demand"),
            ),
            None => (creates, String::new()),
        }
    }

    fn create(&self, topic: &str) -> String {
        tools::create(self.settings, topic, self.cluster.brokers.len(), " --partitions 12")
    }

    fn topic(&self, name: &str, topic: &TopicFacts) -> Vec<Finding> {
        let of_transactions = || exactly_once::replicas(self.settings, name, topic);
        if let Err(refusal) = &topic.settings {
            let text = format!("the settings of topic {name} may not be seen: {refusal}");
            let why = "what is too large, or has too few replicas, shows when records are refused";
            let replicas = self.wanted.exactly_once.and_then(|_| of_transactions());
            return [SIDE.ok("topic", text).why(why)].into_iter().chain(replicas).collect();
        }
        let mut found =
            vec![SIDE.ok("topic", format!("{name}: {} partitions, {} replicas", topic.partitions, topic.replicas))];
        found.extend(self.in_sync(name, topic).or_else(|| match self.wanted.exactly_once {
            Some(_) => of_transactions(),
            None => self.replicas(name, topic),
        }));
        found.extend(self.too_small(name, topic));
        found.extend(self.compacted(name, topic));
        found
    }

    /// The finding if a topic accepts no records now.
    fn in_sync(&self, name: &str, topic: &TopicFacts) -> Option<Finding> {
        let (least, text) = least_in_sync(name, topic)?;
        let found = SIDE.fail("replicas", text);
        if least > topic.replicas {
            let why = "the relay writes with acks=all: older brokers never accept a record, newer ones with fewer replicas than asked for";
            return Some(found.why(why).bounded(alter(self.settings, name, MIN_INSYNC, topic.replicas.max(1))));
        }
        (topic.in_sync < least).then(|| {
            found.why("no record is accepted until more replicas are in sync").words("start the brokers that are down")
        })
    }

    /// The finding, with at least once, if acknowledged records do not survive the loss of a broker, or if none can be written while one is
    /// down.
    fn replicas(&self, name: &str, topic: &TopicFacts) -> Option<Finding> {
        let (least, text) = least_in_sync(name, topic)?;
        let found = SIDE.warn("replicas", text);
        if topic.replicas == 1 {
            let why = "if its only broker is down, the relay waits; if that broker's disk is lost, so are the records";
            return (self.cluster.brokers.len() > 1).then(|| found.why(why).words(MORE_REPLICAS));
        }
        let found = match least {
            1 => found.why("an acknowledged record may be on one broker only, and is lost with it"),
            least if least == topic.replicas => found.why("with one broker down nothing can be written"),
            _ => return None,
        };
        Some(match topic.replicas {
            // Neither 1 nor 2 in sync is right.
            2 => found.words(MORE_REPLICAS),
            replicas => found.bounded(alter(self.settings, name, MIN_INSYNC, replicas.saturating_sub(1))),
        })
    }

    fn too_small(&self, name: &str, topic: &TopicFacts) -> Vec<Finding> {
        let largest = self.wanted.largest_bytes;
        let needed = largest + OVERHEAD_BYTES;
        let room = needed.next_power_of_two();
        let limit = |text: Option<&str>| text.and_then(|text| text.parse().ok()).unwrap_or(DEFAULT_MESSAGE_BYTES);
        let found = |limit, whose: &str, who: &str| {
            let text = format!("{whose} {}, the largest record seen has {}", size(limit), size(largest));
            let found =
                SIDE.fail("record_size", text).why(format!("the {who} refuses it, and the relay stops before it"));
            (needed > limit).then_some(found)
        };
        let of_topic = found(limit(setting(&topic.settings, "max.message.bytes")), &format!("{name} takes"), "broker")
            .map(|found| found.bounded(alter(self.settings, name, "max.message.bytes", room)));
        let of_client = found(limit(self.settings.property("message.max.bytes")), "message.max.bytes is", "client")
            .map(|found| found.bounded(Command::new("run").set("-X", format_args!("message.max.bytes={room}"))));
        of_topic.into_iter().chain(of_client).collect()
    }

    fn compacted(&self, name: &str, topic: &TopicFacts) -> Option<Finding> {
        let compacts = setting(&topic.settings, CLEANUP_POLICY).is_some_and(|policy| policy.contains("compact"));
        (compacts && self.wanted.without_key).then(|| {
            SIDE.fail("compaction", format!("{name} is compacted, and rows without a key go there"))
                .why("a compacted topic refuses records without a key")
                .words(format!(
                    "let rows have keys (--key-column), or send them to another topic; with {CLEANUP_POLICY}=delete this one deletes old records, also the last one of a key"
                ))
        })
    }
}

/// Whether a broker (`host:port`) is on this machine, by its address.
fn is_loopback(broker: &str) -> bool {
    let host = broker.rsplit_once(':').map_or(broker, |(host, _)| host).trim_matches(['[', ']']);
    host == "localhost" || host.parse().is_ok_and(|address: IpAddr| address.to_canonical().is_loopback())
}

fn misled(found: Finding) -> Finding {
    found.why("clients are sent from the bootstrap address to the advertised ones").words(
        "server.properties of that broker: advertised.listeners=PLAINTEXT://ADDRESS_FROM_HERE:PORT, then restart it",
    )
}

/// `min.insync.replicas` of a topic, and a text for people with the numbers of replicas.
fn least_in_sync(name: &str, topic: &TopicFacts) -> Option<(usize, String)> {
    let least: usize = setting(&topic.settings, MIN_INSYNC)?.parse().ok()?;
    let text = format!("{name}: {MIN_INSYNC} is {least}, replicas {}, in sync {}", topic.replicas, topic.in_sync);
    Some((least, text))
}

fn size(count: usize) -> String {
    bytes(u64::try_from(count).unwrap_or(u64::MAX))
}
