//! Where streams are: on one server, or on the nodes of a cluster. And commands about one key, for which there is no connection yet.
//!
//! In: settings, a key. Out: connections. What a server says itself decides: `cluster_enabled` of INFO. Several hosts in the settings
//! are always nodes of a cluster; Sentinels know none.

use super::cluster::View;
use super::info;
use super::judge::environment;
use super::link::{Link, broken};
use super::redirect::Redirect;
use super::resp::{Token, Tokens};
use super::sentinel;
use super::settings::{Place, Settings};
use super::slot;
use crate::sink::Failure;

/// As many nodes as a command about one key is sent to, each because the one before it has named it.
const MOST_NODES: usize = 5;

/// Where streams are.
pub(super) enum Found {
    /// On the server at the other end, and its reply to INFO.
    Server(Link, Vec<u8>),
    /// On nodes.
    Cluster(View),
}

/// Connects, and asks. `is_node`: what is known already.
///
/// # Errors
/// No server answers, or it refuses the user.
pub(super) async fn find(settings: &Settings, is_node: bool) -> Result<Found, Failure> {
    let server = match &settings.place {
        Place::Nodes(nodes) => return View::read(settings, nodes).await.map(Found::Cluster),
        Place::Sentinels(sentinels) => {
            return sentinel::primary(settings, sentinels).await.map(|(link, info)| Found::Server(link, info));
        }
        Place::Server(server) => server,
    };
    let (mut link, info) = Link::open_and_ask(settings, server).await?;
    if is_node || info::field(&info, "cluster_enabled") == Some("1") {
        return View::of(&mut link).await.map(Found::Cluster);
    }
    Ok(Found::Server(link, info))
}

/// The reply to a command about one key, by the server that holds it, and that server's address. An error may be the reply.
///
/// # Errors
/// The server is not reached.
pub(super) async fn call(settings: &Settings, key: &str, command: &[&[u8]]) -> Result<(String, Vec<u8>), Failure> {
    let mut link = holder(settings, key).await?;
    let mut ask = false;
    for _ in 0..MOST_NODES {
        if std::mem::take(&mut ask) {
            link.call(&[b"ASKING"]).await?;
        }
        let reply = link.call(command).await?;
        let redirect = match Tokens::of(&reply).next() {
            Some(Token::Error(error)) => Redirect::of(error),
            Some(_) | None => None,
        };
        let Some(redirect) = redirect else { return Ok((link.address().to_owned(), reply)) };
        let server = redirect.server(link.host());
        let server = server.ok_or_else(|| broken(link.address(), "it does not know the address of another node"))?;
        ask = redirect.ask;
        link = Link::open_at(settings, &server).await?;
    }
    Err(environment(link.address(), b"TRYAGAIN nodes name one another for the key"))
}

/// A connection to the server that holds a key.
///
/// # Errors
/// It is not reached.
pub(super) async fn holder(settings: &Settings, key: &str) -> Result<Link, Failure> {
    match find(settings, false).await? {
        Found::Server(link, _) => Ok(link),
        Found::Cluster(view) => {
            let slot = slot::of(key);
            let server = view.owner(slot).ok_or_else(|| view.unserved(slot))?;
            Link::open_at(settings, server).await
        }
    }
}
