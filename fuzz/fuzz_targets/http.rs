//! Any bytes of an HTTP client in any pieces: the answer is that to the bytes in one piece, but for its figures.
//!
//! There is one answer, or none to half a request. It has a status line and headers as HTTP/1.1 has them, and as many bytes as it says. It is
//! bounded, whatever was asked. A listener on loopback gives nothing to a request that names another host.

#![no_main]

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Instant;

use libfuzzer_sys::fuzz_target;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::runtime::{Builder, Runtime};
use walrelay::http::serve_stream;
use walrelay::metrics::{Metrics, State};

/// The largest head and the largest body of an answer, in bytes.
const LARGEST: (usize, usize) = (1000, 256 << 10);

thread_local! {
    static RUNTIME: Runtime = Builder::new_current_thread().enable_time().build().unwrap();
    static METRICS: Arc<Metrics> = Arc::new(streaming());
}

fuzz_target!(|input: (Vec<u8>, &[u8])| {
    let (pieces, bytes) = input;
    for is_loopback in [false, true] {
        let answers = [pieces.as_slice(), &[]].map(|pieces| Answer::to(bytes, pieces, is_loopback));
        // Whether a head that does not end is wrong, hyper says at once or not at all.
        let may_differ = !ends(bytes) && answers.contains(&None);
        assert!(may_differ || answers[0] == answers[1], "{:?}: {answers:?}", String::from_utf8_lossy(bytes));
    }
    // Behind the request line.
    let line = bytes.iter().position(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    let elsewhere = [&bytes[..line], b"Host: localhost.evil.example:9464\r\n", &bytes[line..]].concat();
    let status = Answer::to(&elsewhere, &pieces, true).map(|answer| answer.status);
    assert!(matches!(status, None | Some(400 | 414 | 421 | 431 | 505)), "{status:?} to {elsewhere:?}");
});

/// Whether the head of a request ends, as hyper looks for it in pieces.
fn ends(bytes: &[u8]) -> bool {
    let head = bytes.iter().position(|byte| !b"\r\n".contains(byte)).map_or(&[][..], |begin| &bytes[begin..]);
    head.windows(4).any(|window| window == b"\r\n\r\n") || head.windows(2).any(|window| window == b"\n\n")
}

fn streaming() -> Metrics {
    let now = Instant::now();
    let metrics = Metrics::new("orders", "outbox_pub", now);
    metrics.set_state(State::Streaming);
    metrics
}

/// An answer, without what two answers to one request may differ in.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    status: u16,
    headers: Vec<String>,
    /// `None`: it has figures.
    body: Option<Vec<u8>>,
}

impl Answer {
    /// The answer to these bytes in pieces of these sizes. `None`: there is none.
    fn to(bytes: &[u8], sizes: &[u8], is_loopback: bool) -> Option<Self> {
        let mut pieces = VecDeque::new();
        let mut rest = bytes;
        for size in sizes {
            let (piece, behind) = rest.split_at((usize::from(*size) + 1).min(rest.len()));
            pieces.push_back(piece.to_vec());
            rest = behind;
        }
        pieces.push_back(rest.to_vec());
        pieces.retain(|piece| !piece.is_empty());
        let said = Arc::new(Mutex::new(Vec::new()));
        let client = Client { pieces, is_due: false, said: Arc::clone(&said) };
        let serve = serve_stream(METRICS.with(Arc::clone), client, is_loopback);
        RUNTIME.with(|runtime| runtime.block_on(serve));
        let said = said.lock().unwrap();
        (!said.is_empty()).then(|| Self::parse(&said))
    }

    fn parse(said: &[u8]) -> Self {
        let shown = String::from_utf8_lossy(said);
        let end = said.windows(4).position(|window| window == b"\r\n\r\n").expect("an answer has a head");
        let (head, body) = (std::str::from_utf8(&said[..end]).unwrap(), &said[end + 4..]);
        assert!(head.len() <= LARGEST.0 && body.len() <= LARGEST.1, "{} and {} bytes", head.len(), body.len());
        let mut lines = head.split("\r\n");
        let status = lines.next().and_then(|line| line.strip_prefix("HTTP/1.1 ").or(line.strip_prefix("HTTP/1.0 ")));
        let (status, reason) = status.and_then(|line| line.split_at_checked(3)).expect("an answer has a status line");
        assert!(reason.len() > 1 && !head.contains(|c: char| c.is_control() && !"\r\n".contains(c)), "{shown:?}");
        let status: u16 = status.parse().unwrap();
        let headers = lines.map(|line| line.split_once(": ").expect("a header has a name and a value"));
        let (lengths, headers): (Vec<_>, Vec<_>) = headers.partition(|(name, _)| *name == "content-length");
        let length = lengths.first().map_or(0, |(_, length)| length.parse().unwrap());
        // An answer to HEAD has no body.
        assert!(lengths.len() <= 1 && (body.is_empty() || body.len() == length), "{shown:?}");
        let headers = headers.into_iter().filter(|(name, _)| *name != "date");
        let has_figures = [200, 503].contains(&status);
        Self {
            status,
            headers: headers.map(|(name, value)| format!("{name}: {value}")).collect(),
            body: (!has_figures).then(|| body.to_vec()),
        }
    }
}

/// The client's end of a connection. Between two pieces, nothing comes for a moment.
struct Client {
    pieces: VecDeque<Vec<u8>>,
    is_due: bool,
    /// What the server has said.
    said: Arc<Mutex<Vec<u8>>>,
}

impl AsyncRead for Client {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, room: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.is_due = !self.is_due;
        if !self.is_due {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        if let Some(piece) = self.pieces.front_mut() {
            let length = piece.len().min(room.remaining());
            room.put_slice(&piece.drain(..length).collect::<Vec<_>>());
            if piece.is_empty() {
                self.pieces.pop_front();
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Client {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.said.lock().unwrap().extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
