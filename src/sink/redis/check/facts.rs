//! What servers say about themselves and about streams, gathered without changing anything (rights by a transaction that is discarded).
//!
//! In: settings, names of streams. Out: facts. It judges nothing.

use crate::sink::Failure;
use crate::sink::lanes::address::Server;
use crate::sink::redis::cluster::View;
use crate::sink::redis::link::Link;
use crate::sink::redis::lookup::{Found, find};
use crate::sink::redis::redirect::Redirect;
use crate::sink::redis::resp::{Token, Tokens, code, words};
use crate::sink::redis::settings::Settings;
use crate::sink::redis::slot;

/// What was seen.
#[derive(Debug, Default)]
pub(super) struct Facts {
    /// The server, or each primary of the cluster that answers.
    pub(super) nodes: Vec<Node>,
    /// Why a primary of the cluster does not.
    pub(super) silent: Vec<Failure>,
    /// Why a replica of the cluster could not serve us as a primary.
    pub(super) unready: Vec<Failure>,
    /// `None`: it is one server.
    pub(super) cluster: Option<View>,
    pub(super) streams: Vec<Stream>,
}

/// What one server says.
#[derive(Debug, Default)]
pub(super) struct Node {
    pub(super) address: String,
    /// The reply to INFO.
    pub(super) info: Vec<u8>,
    /// `appendfsync`, where it may be asked for.
    pub(super) sync: Option<String>,
    /// Of a cluster's node: why ASKING is refused.
    pub(super) may_not_ask: Option<String>,
}

/// What stands under a stream's name.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) name: String,
    /// `stream`, `none`, or another type. Why it is not known: nobody has its slot, or its node does not answer.
    pub(super) kind: Result<String, String>,
    /// Why entries may not be added.
    pub(super) refused: Option<String>,
}

pub(super) async fn gather<'a>(settings: &Settings, streams: impl Iterator<Item = &'a str>) -> Result<Facts, Failure> {
    let mut facts = Facts::default();
    let mut links = Vec::new();
    match find(settings, false).await? {
        Found::Server(mut link, _) => {
            facts.nodes.push(node(&mut link).await?);
            links.push((None, link));
        }
        Found::Cluster(view) => {
            for server in &view.primaries {
                match reach(settings, server).await {
                    Ok((node, link)) => {
                        facts.nodes.push(node);
                        links.push((Some(server.clone()), link));
                    }
                    Err(failure) => facts.silent.push(failure),
                }
            }
            for server in &view.replicas {
                facts.unready.extend(Link::open_at(settings, server).await.err());
            }
            facts.cluster = Some(view);
        }
    }
    for name in streams {
        let slot = slot::of(name);
        let owner = facts.cluster.as_ref().map(|view| view.owner(slot).ok_or(slot)).transpose();
        let link = owner.map(|owner| links.iter_mut().find(|(server, _)| server.as_ref() == owner));
        facts.streams.push(match link {
            Ok(Some((_, link))) => stream(link, name).await?,
            Ok(None) => Stream::unknown(name, "the node of its slot does not answer".to_owned()),
            Err(slot) => Stream::unknown(name, format!("no node has its slot {slot}")),
        });
    }
    Ok(facts)
}

async fn reach(settings: &Settings, server: &Server) -> Result<(Node, Link), Failure> {
    let mut link = Link::open_at(settings, server).await?;
    // It concerns the next command alone, which is about no key.
    let asking = link.ask(&[b"ASKING"]).await?;
    let may_not_ask = match Tokens::of(&asking).next() {
        Some(Token::Error(error)) => Some(String::from_utf8_lossy(error).into_owned()),
        Some(_) | None => None,
    };
    let node = Node { may_not_ask, ..node(&mut link).await? };
    Ok((node, link))
}

async fn node(link: &mut Link) -> Result<Node, Failure> {
    let info = link.ask(&[b"INFO"]).await?;
    let sync = link.ask(&[b"CONFIG", b"GET", b"appendfsync"]).await?;
    Ok(Node { address: link.address().to_owned(), info, sync: second_text(&sync), may_not_ask: None })
}

/// The second string of an array.
fn second_text(reply: &[u8]) -> Option<String> {
    match Tokens::of(reply).nth(2) {
        Some(Token::Bytes(text)) => Some(String::from_utf8_lossy(text).into_owned()),
        _other => None,
    }
}

impl Stream {
    fn unknown(name: &str, why: String) -> Self {
        Self { name: name.to_owned(), kind: Err(why), refused: None }
    }
}

async fn stream(link: &mut Link, name: &str) -> Result<Stream, Failure> {
    let kind = link.ask(&[b"TYPE", name.as_bytes()]).await?;
    let kind = match Tokens::of(&kind).next() {
        Some(Token::Text(kind)) => String::from_utf8_lossy(kind).into_owned(),
        // It is on its way to another node.
        Some(Token::Error(error)) if Redirect::of(error).is_some() => {
            return Ok(Stream::unknown(name, String::from_utf8_lossy(error).into_owned()));
        }
        _unknown => "none".to_owned(),
    };
    let refused = may_not_add(link, name).await?;
    Ok(Stream { name: name.to_owned(), kind: Ok(kind), refused })
}

/// Rights are looked at when a command is queued; a transaction that is discarded changes nothing. Where it is not begun, nothing follows: the
/// server would do that at once.
async fn may_not_add(link: &mut Link, stream: &str) -> Result<Option<String>, Failure> {
    let begun = link.ask(&[b"MULTI"]).await?;
    if let Some(Token::Error(error)) = Tokens::of(&begun).next() {
        return Ok(Some(String::from_utf8_lossy(error).into_owned()));
    }
    words(link.output(), &[b"XADD", stream.as_bytes(), b"*", b"payload", b""]);
    let replies = link.call_for(&[b"DISCARD"], 2).await?;
    Ok(Tokens::of(&replies).find_map(|token| {
        let Token::Error(error) = token else { return None };
        (code(error) == b"NOPERM").then(|| String::from_utf8_lossy(error).into_owned())
    }))
}
