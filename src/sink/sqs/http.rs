//! One connection to a service over HTTP/1.1, kept open from one request to the next.
//!
//! In: a request, written out. Out: its answer's status and body. It follows no redirect, and sends nothing a second time.
//!
//! Invariants: a connection on which something went wrong is not used again; no answer is larger than [`LARGEST`].
//! Specification: RFC 9112.

use crate::sink::lanes::socket::{Peer, Socket};
use std::io;
use std::time::Duration;

/// Bytes of an answer: one to a batch is a few thousand.
const LARGEST: usize = 4 << 20;

/// Bytes of an answer's head.
const LARGEST_HEAD: usize = 64 << 10;

/// What ends an answer's head.
const END_OF_HEAD: &[u8] = b"\r\n\r\n";

/// An answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answer {
    /// Such as 200.
    pub(super) status: u16,
    /// Its bytes.
    pub(super) body: Vec<u8>,
    /// The connection may be used again.
    keeps: bool,
}

/// A connection.
pub(super) struct Link {
    socket: Socket,
    /// Requests were answered on it.
    pub(super) is_used: bool,
    keeps: bool,
}

/// It is no HTTP.
#[derive(Debug, PartialEq, Eq)]
struct Garbled;

impl Link {
    /// Reaches the service.
    ///
    /// # Errors
    /// It cannot be reached, or is not whom its certificate should name.
    pub(super) async fn open(peer: Peer<'_>) -> io::Result<Self> {
        Ok(Self { socket: Socket::connect(peer).await?, is_used: false, keeps: true })
    }

    /// Whether it can take a request: services close connections that are idle.
    pub(super) async fn is_open(&mut self) -> bool {
        // Nothing is due, so that anything that happens is the end.
        self.keeps && tokio::time::timeout(Duration::ZERO, self.socket.turn()).await.is_err()
    }

    /// Sends a request and waits for its answer, for as long as that takes.
    ///
    /// # Errors
    /// The connection is lost: whether the request was served is not known.
    pub(super) async fn ask(&mut self, request: &[u8]) -> io::Result<Answer> {
        self.keeps = false;
        self.socket.output.extend_from_slice(request);
        loop {
            self.socket.turn().await?;
            match read(self.socket.input()) {
                Err(Garbled) => return Err(io::Error::new(io::ErrorKind::InvalidData, "the answer is not HTTP")),
                Ok(None) => {}
                Ok(Some((answer, length))) => {
                    self.socket.consume(length);
                    self.is_used = true;
                    // An answer that came before all was sent is to a request that is not read to its end.
                    self.keeps = answer.keeps && self.socket.is_written() && self.socket.input().is_empty();
                    return Ok(answer);
                }
            }
        }
    }
}

/// The answer that the bytes begin with, and its length; `None`: it is not all there.
fn read(bytes: &[u8]) -> Result<Option<(Answer, usize)>, Garbled> {
    let Some(end) = bytes.windows(END_OF_HEAD.len()).position(|four| four == END_OF_HEAD) else {
        return if bytes.len() > LARGEST_HEAD { Err(Garbled) } else { Ok(None) };
    };
    let (head, rest) = bytes.split_at_checked(end).ok_or(Garbled)?;
    let rest = rest.get(END_OF_HEAD.len()..).ok_or(Garbled)?;
    let head = std::str::from_utf8(head).map_err(|_| Garbled)?;
    let (version, line) = head.strip_prefix("HTTP/1.").and_then(|line| line.split_once(' ')).ok_or(Garbled)?;
    let status = line.get(..3).and_then(|status| status.parse().ok()).ok_or(Garbled)?;
    let header = |wanted: &str| {
        let fields = head.split("\r\n").filter_map(|line| line.split_once(':'));
        fields.filter(|(name, _)| name.eq_ignore_ascii_case(wanted)).map(|(_, value)| value.trim()).next()
    };
    let says = |name: &str, word: &str| header(name).is_some_and(|value| value.eq_ignore_ascii_case(word));
    let body =
        if says("transfer-encoding", "chunked") { unchunked(rest)? } else { measured(rest, header("content-length"))? };
    let Some((body, length)) = body else { return Ok(None) };
    let keeps = version == "1" && !says("connection", "close");
    Ok(Some((Answer { status, body, keeps }, end + END_OF_HEAD.len() + length)))
}

type Body = Option<(Vec<u8>, usize)>;

/// A body of a length that the head says; both services always do.
fn measured(rest: &[u8], length: Option<&str>) -> Result<Body, Garbled> {
    let length: usize = length.and_then(|length| length.parse().ok()).ok_or(Garbled)?;
    if length > LARGEST {
        return Err(Garbled);
    }
    Ok(rest.get(..length).map(|body| (body.to_vec(), length)))
}

fn unchunked(bytes: &[u8]) -> Result<Body, Garbled> {
    let (mut body, mut rest) = (Vec::new(), bytes);
    loop {
        let Some(end) = rest.windows(2).position(|two| two == b"\r\n") else { return Ok(None) };
        let size = rest.get(..end).and_then(|size| std::str::from_utf8(size).ok()).ok_or(Garbled)?;
        let size = size.split(';').next().unwrap_or_default().trim();
        let size = usize::from_str_radix(size, 16).map_err(|_| Garbled)?;
        if body.len() + size.min(LARGEST + 1) > LARGEST {
            return Err(Garbled);
        }
        // Of the last one, the empty line that ends the trailer; fields in it are not known here.
        let Some(chunk) = rest.get(end + 2..end + 2 + size) else { return Ok(None) };
        let Some(after) = rest.get(end + 2 + size..end + 4 + size) else { return Ok(None) };
        if after != b"\r\n" {
            return Err(Garbled);
        }
        body.extend_from_slice(chunk);
        rest = rest.get(end + 4 + size..).unwrap_or_default();
        if size == 0 {
            return Ok(Some((body, bytes.len() - rest.len())));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANSWERS: [(&str, u16, &str, bool); 4] = [
        ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", 200, "hello", true),
        ("HTTP/1.1 400 No\r\ncontent-length: 0\r\nConnection: close\r\n\r\n", 400, "", false),
        (
            "HTTP/1.1 503 X\r\nTransfer-Encoding: chunked\r\n\r\n2;x=y\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",
            503,
            "hello",
            true,
        ),
        ("HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok", 200, "ok", false),
    ];

    #[test]
    fn an_answer_is_taken_once_it_is_all_there_and_no_byte_more() {
        for (text, status, body, keeps) in ANSWERS {
            for end in 0..text.len() {
                assert_eq!(read(&text.as_bytes()[..end]), Ok(None), "{end} of {text}");
            }
            let more = [text, "HTTP"].concat();
            let expected = Answer { status, body: body.as_bytes().to_vec(), keeps };
            assert_eq!(read(more.as_bytes()), Ok(Some((expected, text.len()))), "{text}");
        }
    }

    #[test]
    fn what_is_no_answer_or_too_large_is_given_up() {
        for text in [
            "SSH-2.0-x\r\n\r\n",
            "HTTP/1.1 OK\r\n\r\n",
            "HTTP/1.1 200 OK\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffff\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nabc",
        ] {
            assert_eq!(read(text.as_bytes()), Err(Garbled), "{text}");
        }
        assert_eq!(read(&vec![b'x'; LARGEST_HEAD + 1]), Err(Garbled));
    }
}
