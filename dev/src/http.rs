//! One HTTP request on loopback: made of the relay's own pages and of Kafka Connect's interface, or read by a server of ours.

use std::collections::BTreeMap;
use std::io::{BufRead, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result};

/// How long a page of the relay or of a broker may take: on a machine that has much else to do, seconds.
const PATIENCE: Duration = Duration::from_secs(10);

/// The largest request that a server of ours takes, in bytes.
const LARGEST: usize = 8 << 20;

/// An answer: its status code and its body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Such as 200.
    pub status: u16,
    /// The body, as text.
    pub body: String,
}

/// Asks 127.0.0.1:`port` for `path`.
///
/// # Errors
/// Nobody answers within 10 s, or it is no HTTP.
pub fn get(port: u16, path: &str) -> Result<Answer> {
    request(port, "GET", path, "", PATIENCE)
}

/// Asks 127.0.0.1:`port` for `path` by any method; `body`: JSON, or empty. The connection, and each read of the answer, may take as long
/// as `patience`.
///
/// # Errors
/// Nobody answers in time, or it is no HTTP.
pub fn request(port: u16, method: &str, path: &str, body: &str, patience: Duration) -> Result<Answer> {
    let kind = if body.is_empty() { "" } else { "Content-Type: application/json\r\n" };
    let (status, body) = exchange(port, &format!("{method} {path}"), kind, body.as_bytes(), patience)?;
    Ok(Answer { status, body: String::from_utf8(body)? })
}

/// A request, as a server of ours reads it.
pub(crate) struct Request {
    pub(crate) path: String,
    /// The values of its head, by their names in lower case.
    head: BTreeMap<String, String>,
    pub(crate) body: Vec<u8>,
}

impl Request {
    /// Reads the next one of a connection; `None`: there is none.
    pub(crate) fn read(reader: &mut impl BufRead) -> Result<Option<Self>> {
        let (mut first, mut line, mut head) = (String::new(), String::new(), BTreeMap::new());
        if reader.read_line(&mut first)? == 0 {
            return Ok(None);
        }
        loop {
            line.clear();
            reader.read_line(&mut line)?;
            let Some((name, value)) = line.trim_end().split_once(':') else { break };
            head.insert(name.to_ascii_lowercase(), value.trim().to_owned());
        }
        let length = head.get("content-length").map_or(Ok(0), |length| length.parse())?;
        anyhow::ensure!(length <= LARGEST, "a request of {length} bytes");
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
        Ok(Some(Self { path, head, body }))
    }

    /// A value of its head; empty where there is none.
    pub(crate) fn value(&self, name: &str) -> &str {
        self.head.get(name).map_or("", String::as_str)
    }
}

/// Answers a request, with these lines of the head.
pub(crate) fn answer(mut stream: &TcpStream, status: u16, head: &str, body: &[u8]) -> Result<()> {
    let head = format!("HTTP/1.1 {status} X\r\n{head}Content-Length: {}\r\n\r\n", body.len());
    Ok(stream.write_all(&[head.as_bytes(), body].concat())?)
}

/// A request on a connection of its own, with these lines of its head: the answer's status and body.
pub(crate) fn exchange(
    port: u16,
    request: &str,
    head: &str,
    body: &[u8],
    patience: Duration,
) -> Result<(u16, Vec<u8>)> {
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let mut stream = TcpStream::connect_timeout(&address, patience)?;
    stream.set_read_timeout(Some(patience))?;
    // HTTP/1.0: the body ends with the connection, never in chunks.
    let length = body.len();
    let head =
        format!("{request} HTTP/1.0\r\nHost: {address}\r\n{head}Content-Length: {length}\r\nConnection: close\r\n\r\n");
    stream.write_all(&[head.as_bytes(), body].concat())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    parse(&answer).with_context(|| format!("no HTTP answer from {address}: {:?}", String::from_utf8_lossy(&answer)))
}

fn parse(answer: &[u8]) -> Option<(u16, Vec<u8>)> {
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n")?;
    let (head, body) = answer.split_at_checked(end + 4)?;
    let status = std::str::from_utf8(head).ok()?.strip_prefix("HTTP/1.")?.split(' ').nth(1)?.parse().ok()?;
    Some((status, body.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_and_body_are_distinguished() {
        let answer = parse(b"HTTP/1.0 503 Service Unavailable\r\ncontent-length: 4\r\n\r\nwhy?").unwrap();
        assert_eq!(answer, (503, b"why?".to_vec()));
        assert_eq!(parse(b"SSH-2.0-OpenSSH"), None);
    }
}
