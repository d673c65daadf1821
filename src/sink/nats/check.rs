//! Checks the server, JetStream, and the streams that take the subjects of the latest rows.
//!
//! In: the server's answers, without changing anything. Out: findings. The functions that judge are pure.

use super::client::NatsConnection;
use super::errors::{self, Answered, Names};
use super::{KIND, NatsSettings};
use crate::check_finding::{Finding, Side};
use crate::sink::Failure;
use crate::sink::destination::Wanted;
use crate::sink::ordered_queue::block_on;
use async_nats::ServerInfo;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// The side of these findings.
const SIDE: Side = Side::Destination(KIND.name);

/// An estimate of the bytes of a record's headers, which are not known.
const HEADER_ROOM: usize = 1024;

/// The fix if nobody answers.
const ELSEWHERE: &str = "--to nats://HOST:PORT with the server's address; tls:// where it wants TLS";

/// The server's answers.
#[derive(Debug, Default)]
struct NatsFacts {
    info: ServerInfo,
    /// The reason why JetStream does not answer.
    jetstream: Option<String>,
    /// Whether the user may not use the API at all.
    forbidden: bool,
    /// The streams that take each subject.
    subjects: Vec<(String, Vec<String>)>,
    streams: BTreeMap<String, Config>,
}

/// The part of a stream's configuration that the check needs.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Config {
    subjects: Vec<String>,
    retention: String,
    storage: String,
    discard: String,
    num_replicas: u32,
    /// In bytes. -1: no limit.
    max_msg_size: i64,
    max_msgs: i64,
    max_bytes: i64,
    /// In nanoseconds. 0: no limit.
    max_age: u64,
    /// In nanoseconds.
    duplicate_window: u64,
    sealed: bool,
    allow_atomic: bool,
    no_ack: bool,
    mirror: Option<serde::de::IgnoredAny>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct StreamInfo {
    config: Config,
}

/// Asks the server, and judges its answers.
pub(super) fn check(settings: &NatsSettings, wanted: &Wanted<'_>) -> Vec<Finding> {
    match block_on(gather(settings, wanted.addresses())) {
        Ok(facts) => findings(settings, &facts, wanted.largest_bytes),
        Err(failure) => vec![KIND.unreachable(&failure, "server", ELSEWHERE)],
    }
}

async fn gather<'a>(settings: &NatsSettings, subjects: impl Iterator<Item = &'a str>) -> Result<NatsFacts, Failure> {
    let mut connection = NatsConnection::open(settings, 0).await?;
    let mut facts = NatsFacts { info: connection.info(), ..NatsFacts::default() };
    match connection.ask("$JS.API.INFO", "").await? {
        Answered::With(_) => {}
        Answered::Refused(reason, _) => return Ok(NatsFacts { jetstream: Some(reason), ..facts }),
        Answered::Forbidden => facts.forbidden = true,
    }
    for subject in subjects {
        let question = serde_json::json!({ "subject": subject }).to_string();
        let names: Names = match connection.ask("$JS.API.STREAM.NAMES", &question).await? {
            Answered::With(data) => serde_json::from_slice(&data).unwrap_or_default(),
            Answered::Refused(..) => continue,
            Answered::Forbidden => return Ok(NatsFacts { forbidden: true, ..facts }),
        };
        let names = names.streams.unwrap_or_default();
        for name in &names {
            if !facts.streams.contains_key(name)
                && let Answered::With(data) = connection.ask(&format!("$JS.API.STREAM.INFO.{name}"), "").await?
                && let Ok(StreamInfo { config }) = serde_json::from_slice(&data)
            {
                facts.streams.insert(name.clone(), config);
            }
        }
        facts.subjects.push((subject.to_owned(), names));
    }
    Ok(facts)
}

fn findings(settings: &NatsSettings, facts: &NatsFacts, largest_bytes: usize) -> Vec<Finding> {
    let mut found = vec![SIDE.ok("connection", format!("NATS {} answers", facts.info.version))];
    if let Some(reason) = &facts.jetstream {
        found.push(
            SIDE.fail("jetstream", format!("JetStream is not there: {reason}"))
                .why("no stream would store or acknowledge the messages")
                .words(
                    "jetstream { store_dir: \"/var/lib/nats\" } in the server's file; nsc edit account --js-enable 1",
                ),
        );
        return found;
    }
    if facts.forbidden {
        found.push(
            SIDE.warn("jetstream", "the user may not ask JetStream's API")
                .why("whether streams take the subjects, and how they keep messages, could not be checked")
                .words("let it publish to $JS.API.INFO, $JS.API.STREAM.NAMES and $JS.API.STREAM.INFO.*"),
        );
        return found;
    }
    found.push(SIDE.ok("jetstream", "JetStream answers"));
    found.extend(payload(facts, largest_bytes));
    found.extend(facts.subjects.iter().map(|(subject, streams)| of_subject(settings, subject, streams)));
    for (name, config) in &facts.streams {
        found.extend(of_stream(facts, name, config, largest_bytes));
        if settings.atomic && !config.allow_atomic {
            found.push(
                SIDE.warn("atomic", format!("stream {name} allows no atomic batches"))
                    .why("messages of one key are sent one by one")
                    .words("NATS 2.12 or newer, and allow_atomic in the stream's configuration"),
            );
        }
    }
    found
}

fn payload(facts: &NatsFacts, largest_bytes: usize) -> Option<Finding> {
    let most = facts.info.max_payload;
    let text = format!("max_payload is {most} bytes, the largest of the latest rows has {largest_bytes}");
    let found = SIDE.fail("limits", text).why("larger rows are refused").words("max_payload in the server's file");
    (most > 0).then(|| found.ok_if(largest_bytes + HEADER_ROOM <= most))
}

fn of_subject(settings: &NatsSettings, subject: &str, streams: &[String]) -> Finding {
    let wanted = settings.stream.as_deref();
    match streams {
        [] => SIDE
            .fail("stream", format!("no stream takes subject {subject}"))
            .why("messages to it are refused, and their rows wait")
            .safe(errors::create(subject, wanted)),
        [name, ..] if wanted.is_some_and(|wanted| wanted != name) => SIDE
            .fail("stream", format!("stream {name} takes subject {subject}, and -X stream asks for another"))
            .why("messages to it are refused, and their rows wait")
            .words(format!("-X stream={name}, or another --topic")),
        [name, ..] => SIDE.ok("stream", format!("stream {name} takes subject {subject}")),
    }
}

fn of_stream(facts: &NatsFacts, name: &str, config: &Config, largest_bytes: usize) -> Vec<Finding> {
    let mut found = vec![durability(facts, name, config)];
    if config.no_ack {
        found.push(
            SIDE.fail("acknowledgements", format!("stream {name} acknowledges nothing (no_ack)"))
                .why("no row would ever count as delivered")
                .bounded(format!("nats stream edit {name} --ack")),
        );
    }
    if config.sealed || config.mirror.is_some() {
        let why = "it takes no messages that are published";
        found.push(
            SIDE.fail("stream", format!("stream {name} is sealed or a mirror")).why(why).words("another --topic"),
        );
    }
    let most = usize::try_from(config.max_msg_size).ok().filter(|most| *most > 0);
    if let Some(most) = most.filter(|most| largest_bytes + HEADER_ROOM > *most) {
        found.push(
            SIDE.fail(
                "limits",
                format!("stream {name} takes {most} bytes a message, the largest row has {largest_bytes}"),
            )
            .why("larger rows are refused")
            .bounded(format!("nats stream edit {name} --max-msg-size=-1")),
        );
    }
    let window = Duration::from_nanos(config.duplicate_window);
    found.push(
        SIDE.ok("duplicates", format!("stream {name} drops repeats within {} s", window.as_secs()))
            .why("a repeat that comes later, after a longer outage or stop, is stored again"),
    );
    found.extend(retention(name, config));
    found
}

/// The finding about whether acknowledged messages survive a crash.
fn durability(facts: &NatsFacts, name: &str, config: &Config) -> Finding {
    let replicas = config.num_replicas;
    if config.storage == "memory" {
        return SIDE
            .warn("storage", format!("stream {name} is kept in memory, on {replicas} servers"))
            .why("what it has acknowledged is lost when its servers restart")
            .words(
                "a stream cannot change its storage: once its messages are consumed, delete it, and create it again with files",
            );
    }
    let text = format!("stream {name} is kept in files, on {replicas} servers");
    if replicas == 1 && facts.info.cluster.is_some() {
        return SIDE
            .warn("storage", text)
            .why("what it has acknowledged is lost with that server's disk, and unavailable while it is down")
            .bounded(format!("nats stream edit {name} --replicas 3"));
    }
    if replicas == 1 {
        return SIDE
            .ok("storage", text)
            .why("a power cut may lose what was not synced yet: sync_interval: always in its file");
    }
    SIDE.ok("storage", text)
}

/// The finding if a stream may delete messages before somebody reads them.
fn retention(name: &str, config: &Config) -> Option<Finding> {
    if config.retention == "interest" {
        return Some(
            SIDE.warn(
                "retention",
                format!("stream {name} keeps messages only for consumers that exist (retention interest)"),
            )
            .why("a message that comes before its consumer was created is acknowledged and dropped"),
        );
    }
    let limited = config.max_msgs > 0 || config.max_bytes > 0;
    if limited && config.discard == "new" {
        return Some(
            SIDE.ok("retention", format!("stream {name} refuses messages when it is full (discard new)"))
                .why("rows wait until it has room"),
        );
    }
    (limited || config.max_age > 0).then(|| {
        SIDE.ok("retention", format!("stream {name} removes its oldest messages at its limits"))
            .why("whether they were read or not")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check_finding::Level;
    use crate::sink::tests::read_in_test;

    const CONFIG: &str = r#"{"config":{"retention":"limits","storage":"file","discard":"old","num_replicas":1,"max_msg_size":-1,
        "max_msgs":-1,"max_bytes":-1,"max_age":0,"duplicate_window":120000000000}}"#;

    fn settings(stream: Option<&str>) -> NatsSettings {
        let properties: Vec<_> = stream.map(|stream| ("stream", stream)).into_iter().collect();
        read_in_test("nats", "h", &properties, |asked| NatsSettings::read(asked)).unwrap()
    }

    fn facts(config: &str) -> NatsFacts {
        let StreamInfo { config } = serde_json::from_str(config).unwrap();
        NatsFacts {
            info: ServerInfo { version: "2.15.2".to_owned(), max_payload: 1 << 20, ..ServerInfo::default() },
            subjects: vec![("a.b".to_owned(), vec!["S".to_owned()])],
            streams: BTreeMap::from([("S".to_owned(), config)]),
            ..NatsFacts::default()
        }
    }

    fn judged(stream: Option<&str>, facts: &NatsFacts, largest: usize) -> Vec<(Level, String)> {
        let found = findings(&settings(stream), facts, largest);
        found.into_iter().map(|found| (found.level, found.finding)).collect()
    }

    #[track_caller]
    fn assert_found(found: &[(Level, String)], level: Level, text: &str) {
        assert!(found.iter().any(|(at, said)| *at == level && said.contains(text)), "{level:?} {text}: {found:?}");
    }

    #[test]
    fn a_stream_that_keeps_everything_is_fine() {
        let found = judged(Some("S"), &facts(CONFIG), 1000);
        assert!(found.iter().all(|(level, _)| *level == Level::Ok), "{found:?}");
        assert_found(&found, Level::Ok, "NATS 2.15.2 answers");
        assert_found(&found, Level::Ok, "within 120 s");
    }

    #[test]
    fn what_may_lose_or_refuse_messages_is_distinguished() {
        let told = |from: &str, to: &str, largest| judged(None, &facts(&CONFIG.replace(from, to)), largest);
        assert_found(&told("\"file\"", "\"memory\"", 1), Level::Warn, "in memory");
        assert_found(&told("\"limits\"", "\"interest\"", 1), Level::Warn, "interest");
        assert_found(&told("\"max_msg_size\":-1", "\"max_msg_size\":2000", 1000), Level::Fail, "2000 bytes a message");
        assert_found(&told("\"max_age\":0", "\"max_age\":0,\"sealed\":true", 1), Level::Fail, "sealed");
        assert_found(&told("\"max_age\":0", "\"max_age\":0,\"no_ack\":true", 1), Level::Fail, "no_ack");
        assert_found(&told("\"max_age\":0", "\"max_age\":0,\"mirror\":{\"name\":\"T\"}", 1), Level::Fail, "mirror");
        assert_found(&told("\"max_age\":0", "\"max_age\":5", 1), Level::Ok, "removes its oldest");
        let new =
            CONFIG.replace("\"discard\":\"old\"", "\"discard\":\"new\"").replace("\"max_msgs\":-1", "\"max_msgs\":5");
        assert_found(&judged(None, &facts(&new), 1), Level::Ok, "discard new");
        assert_found(&judged(None, &facts(CONFIG), 1 << 20), Level::Fail, "max_payload");
        let cluster =
            NatsFacts { info: ServerInfo { cluster: Some("c".to_owned()), ..ServerInfo::default() }, ..facts(CONFIG) };
        assert_found(&judged(None, &cluster, 1), Level::Warn, "on 1 servers");
    }

    #[test]
    fn a_stream_without_atomic_batches_is_reported_where_they_are_asked_for() {
        let found = |config: &str| findings(&NatsSettings { atomic: true, ..settings(Some("S")) }, &facts(config), 1);
        let told = |config: &str| found(config).iter().any(|found| found.finding.contains("no atomic batches"));
        assert!(told(CONFIG));
        assert!(!told(&CONFIG.replace("\"max_age\":0", "\"max_age\":0,\"allow_atomic\":true")));
    }

    #[test]
    fn subjects_that_no_stream_or_another_one_takes_are_named() {
        let none = NatsFacts { subjects: vec![("a.b".to_owned(), Vec::new())], ..facts(CONFIG) };
        assert_found(&judged(None, &none, 1), Level::Fail, "no stream takes subject a.b");
        assert_found(&judged(Some("T"), &facts(CONFIG), 1), Level::Fail, "asks for another");
        let without = |answer: Answered| match answer {
            Answered::Refused(reason, _) => NatsFacts { jetstream: Some(reason), ..NatsFacts::default() },
            Answered::With(_) | Answered::Forbidden => panic!("{answer:?}"),
        };
        let absent = without(Answered::no_responders());
        assert_found(&judged(None, &absent, 1), Level::Fail, "JetStream is not there");
        let disabled = br#"{"error":{"code":503,"err_code":10039,"description":"not enabled for account"}}"#;
        let disabled = without(Answered::of(disabled[..].into()));
        assert_found(&judged(None, &disabled, 1), Level::Fail, "not enabled for account (10039, 503)");
        assert_found(
            &judged(None, &NatsFacts { forbidden: true, ..NatsFacts::default() }, 1),
            Level::Warn,
            "may not ask",
        );
    }
}
