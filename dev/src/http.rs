//! One HTTP request, for the relay's own pages and Kafka Connect's interface on loopback.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result};

/// How long a page of the relay or of a broker may take: on a machine that has much else to do, seconds.
const PATIENCE: Duration = Duration::from_secs(10);

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
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let mut stream = TcpStream::connect_timeout(&address, patience)?;
    stream.set_read_timeout(Some(patience))?;
    // HTTP/1.0: the body ends with the connection, never in chunks.
    let content = match body.len() {
        0 => String::new(),
        length => format!("Content-Type: application/json\r\nContent-Length: {length}\r\n"),
    };
    stream.write_all(format!("{method} {path} HTTP/1.0\r\nHost: {address}\r\n{content}\r\n{body}").as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    parse(&answer).with_context(|| format!("no HTTP answer from {address}: {answer:?}"))
}

fn parse(answer: &str) -> Option<Answer> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.strip_prefix("HTTP/1.")?.split(' ').nth(1)?.parse().ok()?;
    Some(Answer { status, body: body.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_and_body_are_distinguished() {
        let answer = parse("HTTP/1.0 503 Service Unavailable\r\ncontent-length: 4\r\n\r\nwhy?").unwrap();
        assert_eq!(answer, Answer { status: 503, body: "why?".to_owned() });
        assert_eq!(parse("SSH-2.0-OpenSSH"), None);
    }
}
