//! Finds out which protocol a broker's listener speaks. librdkafka only sees that it does not answer as expected.
//!
//! In: bootstrap servers. Out: the `security.protocol` of the first one that answers. The question, in plain text, is for the mechanisms of
//! SASL: it contains no secret and changes nothing. It blocks for [`PATIENCE`] for each connection, and as long for each answer.
//! Specification: Kafka protocol, "SaslHandshake" version 1; RFC 8446, section 6, for the alert.

use super::probe;
use std::io::{Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::time::Duration;

/// How long a connection may take, and again an answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// The most bytes of an answer that are read.
const LARGEST: usize = 4096;

/// The protocol of a listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::sink::kafka) enum Speaks {
    /// `PLAINTEXT`: no encryption, no login.
    Plain,
    /// `SASL_PLAINTEXT`, with these mechanisms.
    Sasl(Vec<String>),
    /// `SSL` or `SASL_SSL`: the listener closes a connection in plain text at once.
    Tls,
    /// Nobody answers.
    Nothing,
}

/// The protocol of the first bootstrap server that answers.
pub(in crate::sink::kafka) fn ask(brokers: &str) -> Speaks {
    let mut all = brokers.split(',').map(|broker| one(&probe::address(broker)));
    all.find(|speaks| *speaks != Speaks::Nothing).unwrap_or(Speaks::Nothing)
}

fn one(address: &str) -> Speaks {
    let mut answer = [0; LARGEST];
    match exchange(address, &mut answer) {
        Ok(length) => answer.get(..length).map_or(Speaks::Nothing, recognize),
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => Speaks::Tls,
        Err(_) => Speaks::Nothing,
    }
}

fn exchange(address: &str, answer: &mut [u8]) -> std::io::Result<usize> {
    let first = address.to_socket_addrs()?.next().ok_or(std::io::ErrorKind::NotFound)?;
    let mut socket = TcpStream::connect_timeout(&first, PATIENCE)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.write_all(&request())?;
    let mut length = socket.read(answer)?;
    // The frame may come in pieces.
    while length < frame_length(answer) && length < answer.len() {
        match socket.read(answer.get_mut(length..).unwrap_or_default())? {
            0 => break,
            more => length += more,
        }
    }
    Ok(length)
}

fn frame_length(answer: &[u8]) -> usize {
    let length = answer.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes));
    usize::try_from(length).unwrap_or(0).saturating_add(4)
}

/// A SaslHandshake request, version 1, for a mechanism that does not exist.
fn request() -> Vec<u8> {
    let mechanism = b"walrelay-asks";
    let (key, version, correlation, no_client) = ([0, 17], [0, 1], [0, 0, 0, 7], [0xFF, 0xFF]);
    let length = [0, u8::try_from(mechanism.len()).unwrap_or(0)];
    let body = [&key[..], &version, &correlation, &no_client, &length, mechanism].concat();
    let size = u32::try_from(body.len()).unwrap_or(0).to_be_bytes();
    [&size[..], &body].concat()
}

/// The protocol by an answer. Nothing at all or a TLS alert means that the listener expects TLS.
fn recognize(answer: &[u8]) -> Speaks {
    let Some((head, mut rest)) = answer.split_first_chunk::<10>() else { return Speaks::Tls };
    if head.first() == Some(&0x15) || head.get(4..8) != Some(&[0, 0, 0, 7][..]) {
        return Speaks::Tls;
    }
    let mut mechanisms = Vec::new();
    let Some((_count, names)) = rest.split_first_chunk::<4>() else { return Speaks::Plain };
    rest = names;
    while let Some((length, name)) = rest.split_first_chunk::<2>() {
        let Some((name, more)) = name.split_at_checked(usize::from(u16::from_be_bytes(*length))) else { break };
        mechanisms.push(String::from_utf8_lossy(name).into_owned());
        rest = more;
    }
    // A listener without authentication has no mechanisms.
    if mechanisms.is_empty() { Speaks::Plain } else { Speaks::Sasl(mechanisms) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(code: u8, mechanisms: &[&str]) -> Vec<u8> {
        let count = u32::try_from(mechanisms.len()).unwrap().to_be_bytes();
        let names =
            mechanisms.iter().flat_map(|name| [&[0, u8::try_from(name.len()).unwrap()][..], name.as_bytes()].concat());
        let body: Vec<u8> = [0, 0, 0, 7, 0, code].into_iter().chain(count).chain(names).collect();
        [&u32::try_from(body.len()).unwrap().to_be_bytes()[..], &body].concat()
    }

    #[test]
    fn a_listener_is_known_by_its_answer() {
        assert_eq!(recognize(&answer(34, &[])), Speaks::Plain);
        let both = ["SCRAM-SHA-256", "PLAIN"].map(str::to_owned).to_vec();
        assert_eq!(recognize(&answer(33, &["SCRAM-SHA-256", "PLAIN"])), Speaks::Sasl(both));
        assert_eq!(recognize(&[0x15, 3, 3, 0, 2, 2, 80, 0, 0, 0, 0]), Speaks::Tls);
        assert_eq!(recognize(b""), Speaks::Tls);
        assert_eq!(recognize(b"HTTP/1.1 400 Bad Request\r\n"), Speaks::Tls);
    }

    #[test]
    fn nobody_says_nothing() {
        assert_eq!(ask("127.0.0.1:1"), Speaks::Nothing);
    }
}
