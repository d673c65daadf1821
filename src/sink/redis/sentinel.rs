//! Where the primary is, as Sentinels say.
//!
//! In: their addresses, the primary's name. Out: a connection to it, by the first of them that knows it. They are asked before each connection,
//! on one of their own; nothing is remembered, so that a failover needs no more than another connection. One that is cut off from the
//! others may go on naming a server that is gone or has become a replica: then the next one is asked.
//!
//! Specification: Redis, "Guidelines for Redis clients with support for Redis Sentinel".

use super::info;
use super::judge::environment;
use super::link::{Link, broken};
use super::resp::{Token, Tokens};
use super::settings::{Sentinels, Settings};
use crate::sink::destination::Destination as _;
use crate::sink::lanes::address::Server;
use crate::sink::{Failure, FailureClass};
use std::time::Duration;

/// How long one of them may take: another may know as well.
const ASKED_WITHIN: Duration = Duration::from_secs(2);

/// A connection to the primary, and its reply to INFO. Where no server that they name is one: to the first replica.
///
/// # Errors
/// None of them says where it is, or no server that they name is reached: why the first is not.
pub(super) async fn primary(settings: &Settings, sentinels: &Sentinels) -> Result<(Link, Vec<u8>), Failure> {
    let (mut reasons, mut tried, mut replica, mut unreached) = (Vec::new(), Vec::new(), None, None);
    for server in &sentinels.servers {
        let address = server.address();
        match tokio::time::timeout(ASKED_WITHIN, ask(settings, sentinels, server)).await {
            Ok(Ok(Some(primary))) if tried.contains(&primary) => {}
            Ok(Ok(Some(primary))) => {
                match Link::open_and_ask(settings, &primary).await {
                    Ok((link, info)) if info::field(&info, "role") == Some("slave") => {
                        replica = replica.or(Some((link, info)));
                    }
                    Ok(found) => return Ok(found),
                    Err(failure) => unreached = unreached.or(Some(failure)),
                }
                tried.push(primary);
            }
            Ok(Ok(None)) => reasons.push(format!("Sentinel at {address} knows no primary of that name")),
            // Nobody else's login differs.
            Ok(Err(failure)) if failure.class == FailureClass::LogIn => return Err(failure),
            Ok(Err(failure)) => reasons.push(failure.text),
            Err(_late) => {
                reasons.push(format!("Sentinel at {address} has not answered in {} s", ASKED_WITHIN.as_secs()));
            }
        }
    }
    replica.ok_or_else(|| unreached.unwrap_or_else(|| broken(&settings.address(), &reasons.join("; "))))
}

/// `None`: it does not know the name.
async fn ask(settings: &Settings, sentinels: &Sentinels, server: &Server) -> Result<Option<Server>, Failure> {
    let mut link = Link::reach(settings, server).await?;
    link.authenticate(sentinels.user.as_deref(), sentinels.password.as_ref()).await?;
    let name = sentinels.primary.as_bytes();
    let reply = link.call(&[b"SENTINEL", b"get-master-addr-by-name", name]).await?;
    of_reply(&server.address(), &reply)
}

/// Host and port, or nothing.
fn of_reply(address: &str, reply: &[u8]) -> Result<Option<Server>, Failure> {
    let mut tokens = Tokens::of(reply);
    match (tokens.next(), tokens.next(), tokens.next()) {
        (Some(Token::Null), ..) => Ok(None),
        (Some(Token::Error(error)), ..) => Err(environment(address, error)),
        (Some(Token::Array(2)), Some(Token::Bytes(host)), Some(Token::Bytes(port))) => {
            let host = String::from_utf8_lossy(host).into_owned();
            let port = std::str::from_utf8(port).ok().and_then(|port| port.parse().ok());
            port.map(|port| Some(Server { host, port })).ok_or_else(|| broken(address, "its reply has no port"))
        }
        _other => Err(broken(address, "it is not a Sentinel")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_names_the_primary_or_does_not_know_it_or_is_no_sentinels() {
        let found = of_reply("s:1", b"*2\r\n$9\r\n127.0.0.1\r\n$4\r\n6379\r\n");
        assert_eq!(found, Ok(Some(Server { host: "127.0.0.1".to_owned(), port: 6379 })));
        assert_eq!(of_reply("s:1", b"*-1\r\n"), Ok(None));
        let class = |reply: &[u8]| of_reply("s:1", reply).unwrap_err().class;
        assert_eq!(class(b"-NOAUTH Authentication required.\r\n"), FailureClass::LogIn);
        for reply in [b"-ERR unknown\r\n".as_slice(), b"*2\r\n$1\r\nh\r\n$1\r\nx\r\n", b"+OK\r\n", b"*1\r\n$1\r\nh\r\n"]
        {
            assert_eq!(class(reply), FailureClass::Environment);
        }
    }
}
