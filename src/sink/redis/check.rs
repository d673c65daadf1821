//! Checks the server or each primary of a cluster, whether acknowledged records survive, and the streams of the latest rows.
//!
//! In: the servers' answers, without changing anything (a discarded transaction shows rights). Out: findings. The functions that judge are
//! pure. If several nodes have the same finding, it is shown once, with their names.

use super::client::{StreamsFound, find};
use super::cluster::View;
use super::connection::{Info, RedisConnection};
use super::errors::{NOT_PERMITTED, Redirect, allow, allow_stream, code, is_text, said};
use super::message::slot;
use super::{KIND, RedisSettings, Sentinels, Topology};
use crate::check_finding::{Finding, Side};
use crate::sink::Failure;
use crate::sink::destination::Wanted;
use crate::sink::ordered_queue::address::Server;
use crate::sink::ordered_queue::block_on;
use redis::{Pipeline, Value, cmd, from_redis_value};

/// The side of these findings.
const SIDE: Side = Side::Destination(KIND.name);

/// The fix if nobody answers.
const ELSEWHERE: &str = "--to redis://HOST:PORT with the server's address; rediss:// where it wants TLS";

/// Asks the servers, and judges their answers.
pub(super) fn check(settings: &RedisSettings, wanted: &Wanted<'_>) -> Vec<Finding> {
    match block_on(gather(settings, wanted.addresses())) {
        Ok(facts) => findings(settings, &facts),
        Err(failure) if failure.reason == NOT_PERMITTED => vec![
            SIDE.fail("connection", failure.text)
                .why("the user may not ask which nodes have the streams")
                .safe(format!("{}, on each node", allow(settings, &["+info", "+cluster|slots", "+cluster|info"]))),
        ],
        Err(failure) => vec![KIND.unreachable(&failure, "server", ELSEWHERE)],
    }
}

fn findings(settings: &RedisSettings, facts: &RedisFacts) -> Vec<Finding> {
    let mut found = match &facts.cluster {
        None => facts.nodes.iter().flat_map(|node| of_node(settings, node)).collect(),
        Some(view) => of_cluster(settings, facts, view),
    };
    found.extend(failover(settings, facts));
    found.extend(settings.adding.most.map(|most| {
        SIDE.ok("maxlen", format!("streams are trimmed to {} entries", most.entries))
            .why("entries beyond that are removed, whether they were read or not")
    }));
    found.extend(facts.streams.iter().map(|stream| of_stream(settings, stream)));
    found
}

fn of_node(settings: &RedisSettings, node: &NodeFacts) -> Vec<Finding> {
    let mut found = vec![of_connection(settings, node)];
    found.extend(node.may_not_ask.iter().map(|refused| {
        SIDE.fail("asking", refused.clone())
            .why("while a slot moves to this node, streams that are there already take no records")
            .safe(allow(settings, &["+asking"]))
    }));
    found.extend(node.may_not_add.iter().map(|failure| {
        SIDE.fail("commands", failure.text.clone()).why("nothing is published: a batch could be added again and again")
    }));
    if node.info.field("role") == Some("slave") {
        found.push(
            SIDE.fail("role", "the server is a replica").why("a replica takes no writes").words("--to its primary"),
        );
    }
    found.extend(durability(settings, node));
    found.extend(eviction(settings, node));
    found.extend(replicas(settings, node));
    found
}

/// The findings about a cluster: about the whole, then those that all nodes share, then the others.
fn of_cluster(settings: &RedisSettings, facts: &RedisFacts, view: &View) -> Vec<Finding> {
    let mut found = vec![state(settings, view)];
    found.extend(facts.silent.iter().map(|failure| {
        SIDE.fail("connection", failure.text.clone())
            .why("the cluster names this primary: records for its streams cannot be delivered")
            .words(
                "start the node, or let this machine reach it at the address that it announces (cluster-announce-ip)",
            )
    }));
    found.extend(facts.unready.iter().map(|failure| {
        SIDE.warn("failover", failure.text.clone())
            .why("once this replica takes over from its primary, records for its streams cannot be delivered")
            .words("start it, let this machine reach it at the address that it announces, and give it the same users")
    }));
    let mut common: Vec<(Finding, Vec<&str>)> = Vec::new();
    for node in &facts.nodes {
        for finding in of_node(settings, node) {
            match common.iter_mut().find(|(known, _)| *known == finding) {
                Some((_, nodes)) => nodes.push(&node.address),
                None => common.push((finding, vec![&node.address])),
            }
        }
    }
    found.extend(common.into_iter().map(|(finding, nodes)| {
        let text = format!("{}: {}", nodes.join(", "), finding.finding);
        Finding { finding: text, ..finding }
    }));
    found
}

/// The finding about slots that no node serves.
fn state(settings: &RedisSettings, view: &View) -> Finding {
    let primaries = view.primaries.len();
    let (uncovered, nameless) = (view.uncovered(), view.nameless());
    if !nameless.is_empty() {
        return SIDE
            .fail("cluster", format!("the nodes that have the slots {} announce no address", nameless.join(", ")))
            .why("records for streams in these slots cannot be delivered")
            .words(
                "CONFIG SET cluster-announce-hostname NAME there, or cluster-preferred-endpoint-type ip on each node",
            );
    }
    if !uncovered.is_empty() {
        return SIDE
            .fail("cluster", format!("no node of the cluster has the slots {}", uncovered.join(", ")))
            .why("records for streams in these slots cannot be delivered")
            .words("start the nodes that had these slots; what valkey-cli or redis-cli does with --cluster fix gives slots to other nodes, without the streams in them");
    }
    match view.state.as_deref() {
        Some("ok") => SIDE.ok("cluster", format!("a cluster of {primaries} primaries, which have all slots")),
        Some(state) => SIDE
            .fail("cluster", format!("cluster_state is {state}, as {} sees it", view.by))
            .why("a cluster in this state takes no writes")
            .words("start the nodes that CLUSTER NODES shows as fail"),
        None => SIDE
            .warn("cluster", format!("a cluster of {primaries} primaries, which does not say its state"))
            .safe(allow(settings, &["+cluster|info"])),
    }
}

fn of_connection(settings: &RedisSettings, node: &NodeFacts) -> Finding {
    let field = |name: &str| node.info.field(name);
    match (field("valkey_version"), field("redis_version")) {
        (Some(version), _) => SIDE.ok("connection", format!("Valkey {version} answers")),
        (None, Some(version)) => SIDE.ok("connection", format!("Redis {version} answers")),
        (None, None) => SIDE
            .warn("connection", "the server answers, and does not say how it is configured")
            .why("whether it keeps what it acknowledges could not be checked")
            .safe(allow(settings, &["+info", "+config|get"])),
    }
}

/// The finding about whether acknowledged records survive a crash.
fn durability(settings: &RedisSettings, node: &NodeFacts) -> Option<Finding> {
    let why = "what it has acknowledged and not written is lost when the server or its machine crashes";
    let file = node.info.field("aof_enabled")?;
    if file != "1" {
        let found = SIDE.warn("appendonly", "appendonly is no").why(why);
        return Some(found.bounded("CONFIG SET appendonly yes, and appendonly yes in its file"));
    }
    Some(match node.sync.as_deref() {
        Some("always") => SIDE.ok("appendonly", "appendonly is yes, appendfsync is always"),
        _ if settings.wait.is_some() => SIDE.ok("appendonly", "appendonly is yes, and each batch waits for it (wait)"),
        Some(sync) => SIDE
            .warn("appendonly", format!("appendonly is yes, appendfsync is {sync}"))
            .why(why)
            .bounded("-X wait=0,1000, or CONFIG SET appendfsync always"),
        None => SIDE.ok("appendonly", "appendonly is yes").why("appendfsync could not be checked"),
    })
}

/// The finding if the server may evict added entries.
fn eviction(settings: &RedisSettings, node: &NodeFacts) -> Option<Finding> {
    let policy = node.info.field("maxmemory_policy")?;
    let text = format!("maxmemory-policy is {policy}");
    let unlimited = node.info.field("maxmemory") == Some("0");
    let (found, is_harmless) = if policy.starts_with("allkeys") {
        (SIDE.fail("eviction", text).why("a full server deletes whole streams, read or not"), false)
    } else {
        let found = SIDE.warn("eviction", text).why("a full server forgets ids, and repeats are added again");
        (found, settings.adding.dedupe.is_none())
    };
    let found = found.bounded("CONFIG SET maxmemory-policy noeviction");
    Some(found.ok_if(policy == "noeviction" || unlimited || is_harmless))
}

fn replicas(settings: &RedisSettings, node: &NodeFacts) -> Option<Finding> {
    let wait = settings.wait.filter(|wait| wait.replicas > 0)?;
    let connected: u32 = node.info.field("connected_slaves")?.parse().ok()?;
    let text = format!("{connected} replicas are connected, {} are waited for", wait.replicas);
    let found = SIDE.fail("replicas", text).why("nothing counts as delivered before they have it");
    Some(found.words("start replicas, or lower -X wait").ok_if(connected >= wait.replicas))
}

/// The finding about whether acknowledged records survive a failover.
fn failover(settings: &RedisSettings, facts: &RedisFacts) -> Option<Finding> {
    let (check, text) = match (&settings.topology, &facts.cluster) {
        (Topology::Sentinels(Sentinels { primary, .. }), _) => {
            ("sentinel", format!("Sentinel names the primary of {primary}"))
        }
        (_, Some(view)) if !view.replicas.is_empty() => {
            ("failover", format!("{} replicas may take over from primaries", view.replicas.len()))
        }
        (_, _) => return None,
    };
    let found = SIDE.warn(check, text).bounded("-X wait=1,1000");
    let found = found.why("a failover loses what was acknowledged and the new primary has not received");
    Some(found.ok_if(settings.wait.is_some_and(|wait| wait.replicas > 0)))
}

fn of_stream(settings: &RedisSettings, stream: &StreamFacts) -> Finding {
    let StreamFacts { name, kind, refused } = stream;
    if let Some(refused) = refused {
        return SIDE
            .fail("stream", format!("stream {name}: {refused}"))
            .why("records for it are refused")
            .safe(allow_stream(settings, name));
    }
    let kind = match kind {
        Ok(kind) => kind.as_str(),
        Err(why) => {
            return SIDE
                .fail("stream", format!("stream {name}: {why}"))
                .why("whether it takes records could not be checked")
                .words("check again once the cluster has settled");
        }
    };
    match kind {
        "stream" => SIDE.ok("stream", format!("stream {name} is there")),
        "none" => SIDE.ok("stream", format!("stream {name} is created by its first record")),
        other => SIDE
            .fail("stream", format!("{name} is a {other}, not a stream"))
            .why("records for it are refused")
            .words("another --topic; or another name for that key, if no program needs it under this one"),
    }
}

/// The servers' answers.
#[derive(Debug, Default)]
struct RedisFacts {
    /// The server, or each primary of the cluster that answers.
    nodes: Vec<NodeFacts>,
    /// The failures of primaries that do not answer.
    silent: Vec<Failure>,
    /// The failures of replicas that could not serve walrelay as primaries.
    unready: Vec<Failure>,
    /// The cluster's view. `None`: there is a single server.
    cluster: Option<View>,
    streams: Vec<StreamFacts>,
}

/// The answers of one server.
#[derive(Debug, Default)]
struct NodeFacts {
    address: String,
    info: Info,
    /// The value of `appendfsync`, if the user may ask for it.
    sync: Option<String>,
    /// For a node of a cluster: the reason why it refuses ASKING.
    may_not_ask: Option<String>,
    /// Why it does not take a command that adding needs beside XADD.
    may_not_add: Option<Failure>,
}

/// The key with a stream's name.
#[derive(Debug)]
struct StreamFacts {
    name: String,
    /// The type: `stream`, `none`, or another. The error says why it is not known: no node has its slot, or its node does not answer.
    kind: Result<String, String>,
    /// The reason why entries may not be added.
    refused: Option<String>,
}

async fn gather<'a>(settings: &RedisSettings, streams: impl Iterator<Item = &'a str>) -> Result<RedisFacts, Failure> {
    let mut facts = RedisFacts::default();
    let mut connections = Vec::new();
    match find(settings).await? {
        StreamsFound::Server(mut connection, _) => {
            facts.nodes.push(node(settings, &mut connection).await?);
            connections.push((None, connection));
        }
        StreamsFound::Cluster(view) => {
            for server in &view.primaries {
                match reach(settings, server).await {
                    Ok((node, connection)) => {
                        facts.nodes.push(node);
                        connections.push((Some(server.clone()), connection));
                    }
                    Err(failure) => facts.silent.push(failure),
                }
            }
            for server in &view.replicas {
                facts.unready.extend(RedisConnection::open_at(settings, server).await.err());
            }
            facts.cluster = Some(view);
        }
    }
    for name in streams {
        let slot = slot(name);
        let owner = facts.cluster.as_ref().map(|view| view.owner(slot).ok_or(slot)).transpose();
        let connection = owner.map(|owner| connections.iter_mut().find(|(server, _)| server.as_ref() == owner));
        facts.streams.push(match connection {
            Ok(Some((_, connection))) => stream(connection, name).await?,
            Ok(None) => StreamFacts::unknown(name, "the node of its slot does not answer".to_owned()),
            Err(slot) => StreamFacts::unknown(name, format!("no node has its slot {slot}")),
        });
    }
    Ok(facts)
}

async fn reach(settings: &RedisSettings, server: &Server) -> Result<(NodeFacts, RedisConnection), Failure> {
    let mut connection = RedisConnection::open_at(settings, server).await?;
    // ASKING concerns only the next command, which has no key.
    let may_not_ask = said(&connection.ask(&cmd("ASKING")).await?);
    let node = NodeFacts { may_not_ask, ..node(settings, &mut connection).await? };
    Ok((node, connection))
}

async fn node(settings: &RedisSettings, connection: &mut RedisConnection) -> Result<NodeFacts, Failure> {
    let info = Info::of(&connection.ask(&cmd("INFO")).await?);
    let sync = connection.ask(cmd("CONFIG").arg("GET").arg("appendfsync")).await?;
    let sync = from_redis_value(sync).ok().map(|(_name, value): (String, String)| value);
    let may_not_add = connection.may_add(settings, info.has_file_to_wait_for()).await.err();
    Ok(NodeFacts { address: connection.address().to_owned(), info, sync, may_not_ask: None, may_not_add })
}

impl StreamFacts {
    fn unknown(name: &str, why: String) -> Self {
        Self { name: name.to_owned(), kind: Err(why), refused: None }
    }
}

async fn stream(connection: &mut RedisConnection, name: &str) -> Result<StreamFacts, Failure> {
    let reply = connection.ask(cmd("TYPE").arg(name)).await?;
    let kind = match (&reply, said(&reply)) {
        (Value::SimpleString(kind), _) => kind.clone(),
        // The stream is on its way to another node.
        (_, Some(error)) if Redirect::of(&error).is_some() => return Ok(StreamFacts::unknown(name, error)),
        _unknown => "none".to_owned(),
    };
    let refused = may_not_add(connection, name).await?;
    Ok(StreamFacts { name: name.to_owned(), kind: Ok(kind), refused })
}

/// Asks, by a discarded transaction, whether the user may add entries: the server checks rights when a command is queued. If the transaction
/// does not begin, no command follows, since the server would execute it at once.
async fn may_not_add(connection: &mut RedisConnection, stream: &str) -> Result<Option<String>, Failure> {
    let begun = connection.ask(&cmd("MULTI")).await?;
    if !is_text(&begun) {
        return Ok(said(&begun));
    }
    let mut commands = Pipeline::new();
    commands.cmd("XADD").arg(stream).arg("*").arg("payload").arg("").cmd("DISCARD");
    let replies = connection.call_all(commands).await?;
    Ok(replies.iter().filter_map(said).find(|error| code(error) == "NOPERM"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check_finding::Level;
    use crate::sink::redis::cluster::view;
    use crate::sink::tests::read_in_test;

    fn settings(properties: &[(&str, &str)]) -> RedisSettings {
        read_in_test("redis", "h", properties, |asked| RedisSettings::read(asked)).unwrap()
    }

    fn judged(properties: &[(&str, &str)], info: &str, sync: &str, streams: Vec<StreamFacts>) -> Vec<(Level, String)> {
        let info = Info::of(&Value::BulkString(info.as_bytes().to_vec()));
        let node = NodeFacts { address: "h:1".to_owned(), info, sync: Some(sync.to_owned()), ..NodeFacts::default() };
        let facts = RedisFacts { nodes: vec![node], streams, ..RedisFacts::default() };
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
    fn a_server_that_may_lose_what_it_acknowledged_is_distinguished() {
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
        assert_eq!(level(&[("sentinel", "main")], SOUND, "", "the primary of main"), Level::Warn);
        assert_eq!(level(&[("sentinel", "main"), ("wait", "1,1000")], SOUND, "", "the primary of main"), Level::Ok);
        let one = format!("{SOUND}connected_slaves:1\r\n");
        assert_eq!(level(&[("wait", "2,1000")], &one, "", "1 replicas are connected"), Level::Fail);
    }

    #[test]
    fn streams_that_take_nothing_are_named() {
        let stream = |name: &str, kind: &str, refused: Option<&str>| StreamFacts {
            name: name.to_owned(),
            kind: Ok(kind.to_owned()),
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

    fn in_cluster(properties: &[(&str, &str)], view: View, nodes: &[(&str, &str)]) -> Vec<(Level, String)> {
        let node = |(address, info): &(&str, &str)| NodeFacts {
            address: (*address).to_owned(),
            info: Info::of(&Value::BulkString(info.as_bytes().to_vec())),
            sync: Some("always".to_owned()),
            ..NodeFacts::default()
        };
        let facts =
            RedisFacts { nodes: nodes.iter().map(node).collect(), cluster: Some(view), ..RedisFacts::default() };
        let found = findings(&settings(properties), &facts);
        found.into_iter().map(|found| (found.level, found.finding)).collect()
    }

    #[test]
    fn of_a_clusters_nodes_each_is_named_that_differs() {
        let sound = format!("{SOUND}connected_slaves:1\r\n");
        let lonely = SOUND.replace("noeviction", "allkeys-lru") + "connected_slaves:0\r\n";
        let nodes = [("a:1", sound.as_str()), ("b:2", sound.as_str()), ("c:3", lonely.as_str())];
        let whole = || view(&[(0, 99, "a:1 d:4"), (100, 199, "b:2 e:5"), (200, 16383, "c:3")]);
        let found = in_cluster(&[("wait", "1,1000")], whole(), &nodes);
        for (level, text) in [
            (Level::Ok, "a cluster of 3 primaries, which have all slots"),
            (Level::Ok, "a:1, b:2, c:3: Redis 7.2.4 answers"),
            (Level::Ok, "a:1, b:2: maxmemory-policy is noeviction"),
            (Level::Fail, "c:3: maxmemory-policy is allkeys-lru"),
            (Level::Fail, "c:3: 0 replicas are connected, 1 are waited for"),
            (Level::Ok, "2 replicas may take over from primaries"),
        ] {
            assert!(found.contains(&(level, text.to_owned())), "{text}: {found:?}");
        }
        let found = in_cluster(&[], whole(), &nodes);
        assert!(found.contains(&(Level::Warn, "2 replicas may take over from primaries".to_owned())), "{found:?}");
    }

    #[test]
    fn a_cluster_that_takes_no_writes_or_not_for_all_slots_fails() {
        let mut down = view(&[(0, 16383, "a:1")]);
        down.state = Some("fail".to_owned());
        let found = in_cluster(&[], down, &[]);
        assert_eq!(found, [(Level::Fail, "cluster_state is fail, as seed:1 sees it".to_owned())]);
        let found = in_cluster(&[], view(&[(0, 16382, "a:1"), (16383, 16383, "?:2")]), &[]);
        assert_eq!(found, [(Level::Fail, "the nodes that have the slots 16383 announce no address".to_owned())]);
        let found = in_cluster(&[], view(&[(0, 9, "a:1"), (11, 99, "a:1")]), &[]);
        assert_eq!(found, [(Level::Fail, "no node of the cluster has the slots 10, 100-16383".to_owned())]);
    }
}
