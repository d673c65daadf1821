//! What `walrelay check` looks at: the server, whether it keeps what it acknowledges, and the streams of the latest rows.
//!
//! In: facts, gathered without changing anything (rights by a transaction that is discarded). Out: findings. Judging is pure.

use super::destination::KIND;
use super::info;
use super::link::Link;
use super::resp::{Token, Tokens, code, words};
use super::settings::{Place, Sentinels, Settings};
use crate::finding::{Finding, Side};
use crate::sink::Failure;
use crate::sink::destination::Wanted;
use crate::sink::lanes::block_on;

/// What the findings here are about.
const SIDE: Side = Side::Destination(KIND.name);

/// What to try where nobody answers.
const ELSEWHERE: &str = "--to redis://HOST:PORT with the server's address; rediss:// where it wants TLS";

/// What the server says.
#[derive(Debug, Default)]
struct Facts {
    /// The reply to INFO.
    info: Vec<u8>,
    /// `appendfsync`, where it may be asked for.
    sync: Option<String>,
    streams: Vec<Stream>,
}

/// What stands under a stream's name.
#[derive(Debug)]
struct Stream {
    name: String,
    /// `stream`, `none`, or another type.
    kind: String,
    /// Why entries may not be added.
    refused: Option<String>,
}

/// Looks at the server, and judges it.
pub(super) fn check(settings: &Settings, wanted: &Wanted<'_>) -> Vec<Finding> {
    match block_on(gather(settings, wanted.addresses())) {
        Ok(facts) => findings(settings, &facts),
        Err(failure) => vec![KIND.unreachable(&failure, "server", ELSEWHERE)],
    }
}

async fn gather<'a>(settings: &Settings, streams: impl Iterator<Item = &'a str>) -> Result<Facts, Failure> {
    let mut link = Link::open(settings).await?;
    let info = link.call(&[b"INFO"]).await?;
    let sync = link.call(&[b"CONFIG", b"GET", b"appendfsync"]).await?;
    let mut facts = Facts { info, sync: second_text(&sync), streams: Vec::new() };
    for name in streams {
        let kind = link.call(&[b"TYPE", name.as_bytes()]).await?;
        let kind = match Tokens::of(&kind).next() {
            Some(Token::Text(kind)) => String::from_utf8_lossy(kind).into_owned(),
            _unknown => "none".to_owned(),
        };
        let refused = may_not_add(&mut link, name).await?;
        facts.streams.push(Stream { name: name.to_owned(), kind, refused });
    }
    Ok(facts)
}

/// The second string of an array.
fn second_text(reply: &[u8]) -> Option<String> {
    match Tokens::of(reply).nth(2) {
        Some(Token::Bytes(text)) => Some(String::from_utf8_lossy(text).into_owned()),
        _other => None,
    }
}

/// Rights are looked at when a command is queued; a transaction that is discarded changes nothing.
async fn may_not_add(link: &mut Link, stream: &str) -> Result<Option<String>, Failure> {
    words(link.output(), &[b"MULTI"]);
    words(link.output(), &[b"XADD", stream.as_bytes(), b"*", b"payload", b""]);
    let replies = link.call_for(&[b"DISCARD"], 3).await?;
    Ok(Tokens::of(&replies).find_map(|token| {
        let Token::Error(error) = token else { return None };
        (code(error) == b"NOPERM").then(|| String::from_utf8_lossy(error).into_owned())
    }))
}

fn findings(settings: &Settings, facts: &Facts) -> Vec<Finding> {
    let field = |name: &str| info::field(&facts.info, name);
    let mut found = vec![connection(facts)];
    if field("cluster_enabled") == Some("1") {
        found.push(
            SIDE.fail("cluster", "the server is a node of a cluster")
                .why("streams are written to one server; a cluster spreads them over several")
                .fix("--to a server that is not in a cluster"),
        );
    }
    if field("role") == Some("slave") {
        found.push(
            SIDE.fail("role", "the server is a replica").why("a replica takes no writes").fix("--to its primary"),
        );
    }
    found.extend(durability(settings, facts));
    found.extend(eviction(settings, facts));
    found.extend(replicas(settings, facts));
    found.extend(failover(settings));
    found.extend(settings.adding.most.map(|most| {
        SIDE.ok("maxlen", format!("streams are trimmed to {} entries", most.entries))
            .why("entries beyond that are removed, whether they were read or not")
    }));
    found.extend(facts.streams.iter().map(|stream| of_stream(settings, stream)));
    found
}

fn connection(facts: &Facts) -> Finding {
    let field = |name: &str| info::field(&facts.info, name);
    match (field("valkey_version"), field("redis_version")) {
        (Some(version), _) => SIDE.ok("connection", format!("Valkey {version} answers")),
        (None, Some(version)) => SIDE.ok("connection", format!("Redis {version} answers")),
        (None, None) => SIDE
            .warn("connection", "the server answers, and does not say how it is configured")
            .why("whether it keeps what it acknowledges could not be checked")
            .fix("ACL SETUSER USER +info +config|get"),
    }
}

/// Whether what is acknowledged survives a crash.
fn durability(settings: &Settings, facts: &Facts) -> Option<Finding> {
    let why = "what it has acknowledged and not written is lost when the server or its machine crashes";
    let file = info::field(&facts.info, "aof_enabled")?;
    if file != "1" {
        let found = SIDE.warn("appendonly", "appendonly is no").why(why);
        return Some(found.fix("CONFIG SET appendonly yes, and appendonly yes in its file"));
    }
    Some(match facts.sync.as_deref() {
        Some("always") => SIDE.ok("appendonly", "appendonly is yes, appendfsync is always"),
        _ if settings.wait.is_some() => SIDE.ok("appendonly", "appendonly is yes, and each batch waits for it (wait)"),
        Some(sync) => SIDE
            .warn("appendonly", format!("appendonly is yes, appendfsync is {sync}"))
            .why(why)
            .fix("-X wait=0,1000, or CONFIG SET appendfsync always"),
        None => SIDE.ok("appendonly", "appendonly is yes").why("appendfsync could not be checked"),
    })
}

/// Whether it may throw away what was added.
fn eviction(settings: &Settings, facts: &Facts) -> Option<Finding> {
    let policy = info::field(&facts.info, "maxmemory_policy")?;
    let text = format!("maxmemory-policy is {policy}");
    let unlimited = info::field(&facts.info, "maxmemory") == Some("0");
    let (found, is_harmless) = if policy.starts_with("allkeys") {
        (SIDE.fail("eviction", text).why("a full server deletes whole streams, read or not"), false)
    } else {
        let found = SIDE.warn("eviction", text).why("a full server forgets ids, and repeats are added again");
        (found, settings.adding.dedupe.is_none())
    };
    let found = found.fix("CONFIG SET maxmemory-policy noeviction");
    Some(found.ok_if(policy == "noeviction" || unlimited || is_harmless))
}

fn replicas(settings: &Settings, facts: &Facts) -> Option<Finding> {
    let wait = settings.wait.filter(|wait| wait.replicas > 0)?;
    let connected: u32 = info::field(&facts.info, "connected_slaves")?.parse().ok()?;
    let text = format!("{connected} replicas are connected, {} are waited for", wait.replicas);
    let found = SIDE.fail("replicas", text).why("nothing counts as delivered before they have it");
    Some(found.fix("start replicas, or lower -X wait").ok_if(connected >= wait.replicas))
}

/// Whether what is acknowledged survives a failover.
fn failover(settings: &Settings) -> Option<Finding> {
    let Place::Sentinels(Sentinels { primary, .. }) = &settings.place else { return None };
    let text = format!("Sentinel names the primary of {primary}");
    let found = SIDE.warn("sentinel", text).fix("-X wait=1,1000");
    let found = found.why("a failover loses what was acknowledged and the new primary has not received");
    Some(found.ok_if(settings.wait.is_some_and(|wait| wait.replicas > 0)))
}

fn of_stream(settings: &Settings, stream: &Stream) -> Finding {
    let Stream { name, kind, refused } = stream;
    if let Some(refused) = refused {
        let user = settings.user.as_deref().unwrap_or("default");
        let script = if settings.adding.dedupe.is_some() { " +eval +set +del ~walrelay:seen:*" } else { "" };
        return SIDE
            .fail("stream", format!("stream {name}: {refused}"))
            .why("records for it are refused")
            .fix(format!("ACL SETUSER {user} ~{name} +xadd +multi +exec{script}"));
    }
    match kind.as_str() {
        "stream" => SIDE.ok("stream", format!("stream {name} is there")),
        "none" => SIDE.ok("stream", format!("stream {name} is created by its first record")),
        other => SIDE
            .fail("stream", format!("{name} is a {other}, not a stream"))
            .why("records for it are refused")
            .fix(format!("RENAME {name} OTHER, or another --topic")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Level;
    use crate::sink::tests::read_in_test;

    fn settings(properties: &[(&str, &str)]) -> Settings {
        read_in_test("redis", "h", properties, |asked| Settings::read(asked)).unwrap()
    }

    fn judged(properties: &[(&str, &str)], info: &str, sync: &str, streams: Vec<Stream>) -> Vec<(Level, String)> {
        let info = format!("${}\r\n{info}\r\n", info.len()).into_bytes();
        let facts = Facts { info, sync: Some(sync.to_owned()), streams };
        let found = findings(&settings(properties), &facts);
        found.into_iter().map(|found| (found.level, found.finding)).collect()
    }

    const SOUND: &str =
        "redis_version:7.2.4\r\nrole:master\r\naof_enabled:1\r\nmaxmemory:1\r\nmaxmemory_policy:noeviction\r\n";

    #[test]
    fn a_server_that_keeps_everything_is_fine() {
        let found = judged(&[], SOUND, "always", Vec::new());
        assert!(found.iter().all(|(level, _)| *level == Level::Ok), "{found:?}");
        assert!(found.iter().any(|(_, text)| text == "Redis 7.2.4 answers"));
    }

    #[test]
    fn a_server_that_may_lose_what_it_acknowledged_is_told_apart() {
        let level = |properties: &[(&str, &str)], info: &str, sync: &str, text: &str| {
            let found = judged(properties, info, sync, Vec::new());
            found.iter().find(|(_, found)| found.contains(text)).unwrap_or_else(|| panic!("{text}: {found:?}")).0
        };
        assert_eq!(level(&[], SOUND, "everysec", "everysec"), Level::Warn);
        assert_eq!(level(&[("wait", "0,1000")], SOUND, "everysec", "each batch waits"), Level::Ok);
        assert_eq!(level(&[], &SOUND.replace("aof_enabled:1", "aof_enabled:0"), "", "appendonly is no"), Level::Warn);
        assert_eq!(level(&[], &SOUND.replace("noeviction", "allkeys-lru"), "", "allkeys-lru"), Level::Fail);
        let volatile = SOUND.replace("noeviction", "volatile-lru");
        assert_eq!(level(&[], &volatile, "", "volatile-lru"), Level::Ok);
        assert_eq!(level(&[("dedupe", "1d")], &volatile, "", "volatile-lru"), Level::Warn);
        assert_eq!(level(&[], &SOUND.replace("master", "slave"), "", "replica"), Level::Fail);
        assert_eq!(level(&[], &format!("{SOUND}cluster_enabled:1\r\n"), "", "cluster"), Level::Fail);
        assert_eq!(level(&[("sentinel", "main")], SOUND, "", "the primary of main"), Level::Warn);
        assert_eq!(level(&[("sentinel", "main"), ("wait", "1,1000")], SOUND, "", "the primary of main"), Level::Ok);
        let one = format!("{SOUND}connected_slaves:1\r\n");
        assert_eq!(level(&[("wait", "2,1000")], &one, "", "1 replicas are connected"), Level::Fail);
    }

    #[test]
    fn streams_that_take_nothing_are_named() {
        let stream = |name: &str, kind: &str, refused: Option<&str>| Stream {
            name: name.to_owned(),
            kind: kind.to_owned(),
            refused: refused.map(str::to_owned),
        };
        let streams = vec![
            stream("a", "stream", None),
            stream("b", "none", None),
            stream("c", "string", None),
            stream("d", "none", Some("NOPERM no")),
        ];
        let found = judged(&[], SOUND, "always", streams);
        let levels: Vec<Level> = found.iter().rev().take(4).rev().map(|(level, _)| *level).collect();
        assert_eq!(levels, [Level::Ok, Level::Ok, Level::Fail, Level::Fail]);
    }
}
