//! What a broker's listener speaks, where librdkafka only sees that it does not answer as expected.
//!
//! In: bootstrap servers. Out: which `security.protocol` the first of them that can be reached has. One question in plain text, which
//! proves nothing and changes nothing: the mechanisms of SASL. It blocks for [`PATIENCE`] at most for each address.
//! Specification: Kafka protocol, "SaslHandshake" version 1; RFC 8446, section 6, for the alert.

use super::probe;
use std::io::{Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::time::Duration;

/// How long an address may take to be reached, and again to answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// Bytes of an answer that are looked at.
const LARGEST: usize = 4096;

/// What a listener speaks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Speaks {
    /// `PLAINTEXT`: no encryption, no login.
    Plain,
    /// `SASL_PLAINTEXT`, with these mechanisms.
    Sasl(Vec<String>),
    /// It ends a conversation in plain text at once: `SSL` or `SASL_SSL`.
    Tls,
    /// Nobody answers.
    Nothing,
}

/// What the bootstrap servers speak.
pub(super) fn ask(brokers: &str) -> Speaks {
    let mut all = brokers.split(',').map(|broker| one(&probe::address(broker)));
    all.find(|speaks| *speaks != Speaks::Nothing).unwrap_or(Speaks::Nothing)
}

fn one(address: &str) -> Speaks {
    let mut answer = [0; LARGEST];
    match exchange(address, &mut answer) {
        Ok(length) => answer.get(..length).map_or(Speaks::Nothing, judge),
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
    // The rest of a frame that came in pieces.
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

/// SaslHandshake, version 1, of a mechanism that nobody has.
fn request() -> Vec<u8> {
    let mechanism = b"walrelay-asks";
    let (key, version, correlation, no_client) = ([0, 17], [0, 1], [0, 0, 0, 7], [0xFF, 0xFF]);
    let length = [0, u8::try_from(mechanism.len()).unwrap_or(0)];
    let body = [&key[..], &version, &correlation, &no_client, &length, mechanism].concat();
    let size = u32::try_from(body.len()).unwrap_or(0).to_be_bytes();
    [&size[..], &body].concat()
}

/// Nothing at all, or a TLS alert: plain text is not understood.
fn judge(answer: &[u8]) -> Speaks {
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
    // Where there is no login, there are no mechanisms.
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
        assert_eq!(judge(&answer(34, &[])), Speaks::Plain);
        let both = ["SCRAM-SHA-256", "PLAIN"].map(str::to_owned).to_vec();
        assert_eq!(judge(&answer(33, &["SCRAM-SHA-256", "PLAIN"])), Speaks::Sasl(both));
        assert_eq!(judge(&[0x15, 3, 3, 0, 2, 2, 80, 0, 0, 0, 0]), Speaks::Tls);
        assert_eq!(judge(b""), Speaks::Tls);
        assert_eq!(judge(b"HTTP/1.1 400 Bad Request\r\n"), Speaks::Tls);
    }

    #[test]
    fn nobody_says_nothing() {
        assert_eq!(ask("127.0.0.1:1"), Speaks::Nothing);
    }
}
