//! [`RedisSession`]: the client behind the ordered queue. It finds the servers that have the streams, and connects to them. A [`Conversation`] is a
//! connection to a single server; [`cluster`] has one to each node.
//!
//! In: records from the ordered queue. Out: their outcomes. Batches that were under way when a connection was lost go back into the queue.
//!
//! A server's own answer decides whether it is a node of a cluster: `cluster_enabled` of INFO. Several hosts in the settings are always nodes
//! of a cluster; Sentinels have none. The client asks the Sentinels before each connection and remembers nothing, so that after a failover it
//! only has to connect again. A Sentinel that is cut off from the others may go on naming a server that is gone or has become a replica: then
//! the client asks the next one. The library's own client for Sentinels opens its connections itself, and asks one Sentinel only.
//! Specification: Redis, "Guidelines for Redis clients with support for Redis Sentinel".

use super::cluster::{Cluster, Happened, View};
use super::connection::{Info, RedisConnection};
use super::conversation::{Conversation, IDLE};
use super::errors::{self, Redirect, environment, said, with_fix};
use super::message::slot;
use super::{KIND, RedisSettings, Sentinels, Topology};
use crate::sink::destination::Destination as _;
use crate::sink::ordered_queue::address::Server;
use crate::sink::ordered_queue::{Receiver, Session};
use crate::sink::{Failure, FailureClass};
use redis::{Cmd, Value, cmd};
use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::Instant;

/// How long a Sentinel may take. Another one may know the primary too.
const ASKED_WITHIN: Duration = Duration::from_secs(2);

/// To how many nodes a command is sent at most, one after the other, by redirects.
const MOST_NODES: usize = 5;

/// The connections to the servers that have the streams.
#[expect(clippy::large_enum_variant, reason = "there is one at a time")]
pub(super) enum RedisSession<'a> {
    Server(Conversation<'a>),
    /// Its connections end and begin by themselves. The session never ends.
    Cluster(Cluster<'a>),
}

/// An event on a connection.
pub(super) enum RedisEvent<'a> {
    /// Replies of the single server have come, or the connection is lost.
    Replied,
    Cluster(Happened<'a>),
    /// The session has to look at its connections.
    Look,
}

impl<'a> Session for RedisSession<'a> {
    type Settings = &'a RedisSettings;
    type Event = RedisEvent<'a>;

    async fn open(settings: &'a RedisSettings, _attempt: usize) -> Result<Self, Failure> {
        Ok(match reach(settings).await? {
            StreamsFound::Cluster(view) => Self::Cluster(Cluster::new(settings, &view)),
            StreamsFound::Server(connection, info) => {
                Self::Server(Conversation::new(settings, connection, info.has_file_to_wait_for()))
            }
        })
    }

    fn fill(&mut self, receiver: &mut Receiver) -> Result<(), Failure> {
        match self {
            Self::Server(conversation) => conversation.fill(receiver),
            Self::Cluster(cluster) => cluster.fill(receiver),
        }
        Ok(())
    }

    async fn event(&mut self) -> RedisEvent<'a> {
        let wake = match self {
            Self::Server(conversation) => conversation.wake(),
            Self::Cluster(cluster) => cluster.wake(),
        };
        // Without a due time the client sleeps for `IDLE`.
        let wake = wake.unwrap_or_else(|| Instant::now() + IDLE);
        tokio::select! {
            event = poll_fn(|context| self.poll(context)) => event,
            () = tokio::time::sleep_until(wake) => RedisEvent::Look,
        }
    }

    fn heed(&mut self, event: RedisEvent<'a>, receiver: &mut Receiver) -> Result<(), Failure> {
        match (self, event) {
            (Self::Server(conversation), RedisEvent::Look) => conversation.overdue().map_or(Ok(()), Err),
            (Self::Server(conversation), _) => conversation.read(receiver, None),
            (Self::Cluster(cluster), RedisEvent::Cluster(happened)) => {
                cluster.heed(happened, receiver);
                Ok(())
            }
            // A cluster looks at its connections before it sends.
            (Self::Cluster(_), _) => Ok(()),
        }
    }

    fn blocked(&self) -> Option<&Failure> {
        match self {
            Self::Server(conversation) => conversation.blocked(),
            Self::Cluster(cluster) => cluster.blocked(),
        }
    }

    fn renews(&self) -> bool {
        matches!(self, Self::Server(conversation) if conversation.renews())
    }
}

impl<'a> RedisSession<'a> {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<RedisEvent<'a>> {
        match self {
            Self::Server(conversation) => conversation.poll(context).map(|()| RedisEvent::Replied),
            Self::Cluster(cluster) => cluster.poll(context).map(RedisEvent::Cluster),
        }
    }
}

/// Finds out where the streams are. For a single server, also makes sure that it takes the commands that adding needs.
async fn reach(settings: &RedisSettings) -> Result<StreamsFound, Failure> {
    let rights = ["+info", "+cluster|slots", "+cluster|info"];
    let found = find(settings).await;
    let mut found = found.map_err(|failure| with_fix(failure, || errors::allow(settings, &rights)))?;
    if let StreamsFound::Server(connection, info) = &mut found {
        connection.may_add(settings, info.has_file_to_wait_for()).await?;
    }
    Ok(found)
}

/// The result of looking for the streams.
pub(super) enum StreamsFound {
    /// The streams are on a single server: a connection to it, and its reply to INFO.
    Server(RedisConnection, Info),
    /// The streams are on the nodes of a cluster.
    Cluster(View),
}

/// Connects, and finds out where the streams are.
///
/// # Errors
/// No server answers, or it refuses the user.
pub(super) async fn find(settings: &RedisSettings) -> Result<StreamsFound, Failure> {
    let server = match &settings.topology {
        Topology::Nodes(nodes) => return View::read(settings, nodes.clone()).await.map(StreamsFound::Cluster),
        Topology::Sentinels(sentinels) => {
            return primary(settings, sentinels).await.map(|(connection, info)| StreamsFound::Server(connection, info));
        }
        Topology::Server(server) => server,
    };
    let (mut connection, info) = open_and_ask(settings, server).await?;
    if info.field("cluster_enabled") == Some("1") {
        return View::of(&mut connection).await.map(StreamsFound::Cluster);
    }
    Ok(StreamsFound::Server(connection, info))
}

/// Connects to a server, and asks for INFO.
async fn open_and_ask(settings: &RedisSettings, server: &Server) -> Result<(RedisConnection, Info), Failure> {
    let mut connection = RedisConnection::open_at(settings, server).await?;
    let info = connection.info().await?;
    Ok((connection, info))
}

/// Sends a command about a key to the server that has it. Returns the server's address and the reply, which may be an error. `most`: the
/// most bytes of the reply.
///
/// # Errors
/// The server is not reached, or replies more.
pub(super) async fn call(
    settings: &RedisSettings,
    key: &str,
    command: &Cmd,
    most: usize,
) -> Result<(String, Value), Failure> {
    let mut connection = holder(settings, key).await?;
    let mut ask = false;
    for _ in 0..MOST_NODES {
        if std::mem::take(&mut ask) {
            connection.call(&cmd("ASKING")).await?;
        }
        connection.expect(most);
        let reply = connection.call(command).await?;
        let redirect = said(&reply).and_then(|error| Redirect::of(&error));
        let Some(redirect) = redirect else { return Ok((connection.address().to_owned(), reply)) };
        let server = redirect.server(connection.host());
        let server =
            server.ok_or_else(|| KIND.broken(connection.address(), "it does not know the address of another node"))?;
        ask = redirect.ask;
        connection = RedisConnection::open_at(settings, &server).await?;
    }
    Err(environment(connection.address(), "TRYAGAIN nodes name one another for the key"))
}

/// Connects to the server that has a key.
async fn holder(settings: &RedisSettings, key: &str) -> Result<RedisConnection, Failure> {
    match find(settings).await? {
        StreamsFound::Server(connection, _) => Ok(connection),
        StreamsFound::Cluster(view) => {
            let slot = slot(key);
            let server = view.owner(slot).ok_or_else(|| view.unserved(slot))?;
            RedisConnection::open_at(settings, server).await
        }
    }
}

/// Connects to the primary, and asks for INFO. If the Sentinels name only replicas, connects to the first of these.
async fn primary(settings: &RedisSettings, sentinels: &Sentinels) -> Result<(RedisConnection, Info), Failure> {
    let (mut reasons, mut tried, mut replica, mut unreached) = (Vec::new(), Vec::new(), None, None);
    for server in &sentinels.servers {
        let address = server.address();
        match tokio::time::timeout(ASKED_WITHIN, ask_sentinel(settings, sentinels, server)).await {
            Ok(Ok(Some(primary))) if tried.contains(&primary) => {}
            Ok(Ok(Some(primary))) => {
                match open_and_ask(settings, &primary).await {
                    Ok((connection, info)) if info.field("role") == Some("slave") => {
                        replica = replica.or(Some((connection, info)));
                    }
                    Ok(found) => return Ok(found),
                    Err(failure) => unreached = unreached.or(Some(failure)),
                }
                tried.push(primary);
            }
            Ok(Ok(None)) => reasons.push(format!("Sentinel at {address} knows no primary of that name")),
            // All Sentinels have the same credentials.
            Ok(Err(failure)) if failure.class == FailureClass::LogIn => return Err(failure),
            Ok(Err(failure)) => reasons.push(failure.text),
            Err(_late) => {
                reasons.push(format!("Sentinel at {address} has not answered in {} s", ASKED_WITHIN.as_secs()));
            }
        }
    }
    replica.ok_or_else(|| unreached.unwrap_or_else(|| KIND.broken(&settings.address(), &reasons.join("; "))))
}

/// Asks a Sentinel for the primary. `None`: it does not know the name.
async fn ask_sentinel(
    settings: &RedisSettings,
    sentinels: &Sentinels,
    server: &Server,
) -> Result<Option<Server>, Failure> {
    let mut connection = RedisConnection::reach(settings, server).await?;
    connection.authenticate(sentinels.user.as_deref(), sentinels.password.as_ref()).await?;
    let reply = connection.call(cmd("SENTINEL").arg("get-master-addr-by-name").arg(&sentinels.primary)).await?;
    of_sentinel(&server.address(), &reply)
}

/// The address in a Sentinel's reply. `None`: it does not know the name.
fn of_sentinel(address: &str, reply: &Value) -> Result<Option<Server>, Failure> {
    if let Some(error) = said(reply) {
        return Err(environment(address, &error));
    }
    if *reply == Value::Nil {
        return Ok(None);
    }
    let items: &[Value] = if let Value::Array(items) = reply { items } else { &[] };
    let [Value::BulkString(host), Value::BulkString(port)] = items else {
        return Err(KIND.broken(address, "it is not a Sentinel"));
    };
    let host = String::from_utf8_lossy(host).into_owned();
    let port = std::str::from_utf8(port).ok().and_then(|port| port.parse().ok());
    port.map(|port| Some(Server { host, port })).ok_or_else(|| KIND.broken(address, "its reply has no port"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_names_the_primary_or_does_not_know_it_or_is_no_sentinels() {
        let of = |reply: &str| of_sentinel("s:1", &redis::parse_redis_value(reply.as_bytes()).unwrap());
        let found = of("*2\r\n$9\r\n127.0.0.1\r\n$4\r\n6379\r\n");
        assert_eq!(found, Ok(Some(Server { host: "127.0.0.1".to_owned(), port: 6379 })));
        assert_eq!(of("*-1\r\n"), Ok(None));
        assert_eq!(of("-NOAUTH Authentication required.\r\n").unwrap_err().class, FailureClass::LogIn);
        for reply in ["-ERR unknown\r\n", "*2\r\n$1\r\nh\r\n$1\r\nx\r\n", "+OK\r\n", "*1\r\n$1\r\nh\r\n"] {
            assert_eq!(of(reply).unwrap_err().class, FailureClass::Environment);
        }
    }
}
