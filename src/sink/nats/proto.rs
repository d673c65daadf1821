//! The client protocol of NATS: bytes to frames, and the few lines that are sent beside messages.
//!
//! In: what the server sent. Out: one frame after the other, each borrowing from what was read; nothing is allocated. It does no I/O.
//! Specification: NATS, "Client Protocol".

/// The longest line that is accepted, in bytes: INFO names every server of a cluster.
const MOST_LINE: usize = 1 << 20;

/// The longest message that is accepted, in bytes: what a server sends here is answers.
const MOST_BYTES: usize = 64 << 20;

/// What answers are sent to us with, as our one subscription.
pub(super) const SUBSCRIPTION: &str = "1";

/// One thing that the server says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Frame<'a> {
    /// What the server is, as JSON.
    Info(&'a [u8]),
    /// A message for our subscription.
    Message(Message<'a>),
    /// It wants to know whether we are there.
    Ping,
    /// It is there.
    Pong,
    /// Something was understood.
    Ok,
    /// Something was not: the text, without its quotes.
    Error(&'a [u8]),
}

/// A message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Message<'a> {
    /// Where it was sent to.
    pub(super) subject: &'a [u8],
    /// Its headers as they came; empty: none.
    pub(super) headers: &'a [u8],
    /// What it holds.
    pub(super) data: &'a [u8],
}

/// What was read is not the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Broken;

/// The first frame in `bytes` and how long it is; `None` when it is not whole yet.
pub(super) fn frame(bytes: &[u8]) -> Result<Option<(Frame<'_>, usize)>, Broken> {
    let Some(end) = bytes.iter().take(MOST_LINE).position(|byte| *byte == b'\n') else {
        return if bytes.len() >= MOST_LINE { Err(Broken) } else { Ok(None) };
    };
    let line = bytes.get(..end).and_then(|line| line.strip_suffix(b"\r")).ok_or(Broken)?;
    let (verb, rest) = match line.iter().position(|byte| *byte == b' ' || *byte == b'\t') {
        Some(at) => line.split_at(at),
        None => (line, &b""[..]),
    };
    let rest = rest.trim_ascii();
    let is = |name: &str| verb.eq_ignore_ascii_case(name.as_bytes());
    let frame = if is("MSG") {
        return message(rest, false, bytes, end + 1);
    } else if is("HMSG") {
        return message(rest, true, bytes, end + 1);
    } else if is("PING") {
        Frame::Ping
    } else if is("PONG") {
        Frame::Pong
    } else if is("+OK") {
        Frame::Ok
    } else if is("INFO") {
        Frame::Info(rest)
    } else if is("-ERR") {
        Frame::Error(rest.strip_prefix(b"'").and_then(|rest| rest.strip_suffix(b"'")).unwrap_or(rest))
    } else {
        return Err(Broken);
    };
    Ok(Some((frame, end + 1)))
}

/// `SUBJECT SID [REPLY] [HEADER-BYTES] BYTES`, and behind the line, which ends at `at`, so many bytes.
fn message<'a>(
    line: &'a [u8],
    has_headers: bool,
    bytes: &'a [u8],
    at: usize,
) -> Result<Option<(Frame<'a>, usize)>, Broken> {
    let mut words = line.split(|byte| *byte == b' ' || *byte == b'\t').filter(|word| !word.is_empty());
    let subject = words.next().ok_or(Broken)?;
    let total = words.next_back().and_then(number).ok_or(Broken)?;
    let headers = if has_headers { words.next_back().and_then(number).ok_or(Broken)? } else { 0 };
    // The subscription, and perhaps an address for an answer.
    if !matches!(words.count(), 1 | 2) || headers > total {
        return Err(Broken);
    }
    let end = at + total;
    let Some(behind) = bytes.get(end..end + 2) else { return Ok(None) };
    if behind != b"\r\n" {
        return Err(Broken);
    }
    let (headers, data) = bytes.get(at..end).ok_or(Broken)?.split_at(headers);
    Ok(Some((Frame::Message(Message { subject, headers, data }), end + 2)))
}

fn number(word: &[u8]) -> Option<usize> {
    let number = std::str::from_utf8(word).ok()?.parse().ok()?;
    (number <= MOST_BYTES && word.iter().all(u8::is_ascii_digit)).then_some(number)
}

/// The status that stands in a message's headers in place of an answer, such as 503: nobody listens.
pub(super) fn status(headers: &[u8]) -> Option<u16> {
    let line = headers.split(|byte| *byte == b'\r').next()?;
    let word = line.strip_prefix(b"NATS/1.0")?.split(|byte| *byte == b' ').find(|word| !word.is_empty())?;
    std::str::from_utf8(word).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const STREAM: &[u8] =
        b"INFO {\"a\":1} \r\nMSG _INBOX.x.1 1 5\r\nhello\r\nPING\r\n+OK\r\n-ERR 'Stale Connection'\r\n\
        HMSG _INBOX.x.2 1 reply 16 18\r\nNATS/1.0 503\r\n\r\nab\r\nPONG\r\nMSG s 1 0\r\n\r\n";

    fn frames(mut bytes: &[u8]) -> Vec<Frame<'_>> {
        let mut frames = Vec::new();
        while let Some((frame, length)) = frame(bytes).unwrap() {
            frames.push(frame);
            bytes = &bytes[length..];
        }
        assert!(bytes.is_empty(), "{bytes:?}");
        frames
    }

    #[test]
    fn what_a_server_says_comes_apart_into_frames() {
        let message = |subject: &'static [u8], headers: &'static [u8], data: &'static [u8]| {
            Frame::Message(Message { subject, headers, data })
        };
        let expected = [
            Frame::Info(b"{\"a\":1}"),
            message(b"_INBOX.x.1", b"", b"hello"),
            Frame::Ping,
            Frame::Ok,
            Frame::Error(b"Stale Connection"),
            message(b"_INBOX.x.2", b"NATS/1.0 503\r\n\r\n", b"ab"),
            Frame::Pong,
            message(b"s", b"", b""),
        ];
        assert_eq!(frames(STREAM), expected);
        assert_eq!(status(b"NATS/1.0 503\r\n\r\n"), Some(503));
        assert_eq!(status(b"NATS/1.0 503 No Responders\r\n\r\n"), Some(503));
        assert_eq!((status(b"NATS/1.0\r\na: b\r\n\r\n"), status(b"")), (None, None));
    }

    #[test]
    fn what_is_not_the_protocol_is_an_error() {
        for bytes in [
            &b"HTTP/1.1 400\r\n"[..],
            b"PING\n",
            b"MSG s 1\r\n",
            b"MSG s 1 -1\r\n",
            b"MSG s 1 99999999999\r\n",
            b"MSG s 1 2\r\nabcd\r\n",
            b"MSG s 1 r r 0\r\n\r\n",
            b"HMSG s 1 5 2\r\nab\r\n",
            b"HMSG s 1 2\r\nab\r\n",
            b"\r\n",
        ] {
            assert_eq!(frame(bytes), Err(Broken), "{bytes:?}");
        }
    }

    proptest! {
        #[test]
        fn frames_are_the_same_however_their_bytes_arrive(cuts in prop::collection::vec(1..12_usize, 0..60)) {
            let (mut read, mut at, mut seen) = (Vec::new(), 0, Vec::new());
            let mut parts = cuts.into_iter();
            while at < STREAM.len() {
                let end = (at + parts.next().unwrap_or(STREAM.len())).min(STREAM.len());
                read.extend_from_slice(&STREAM[at..end]);
                at = end;
                while let Some((frame, length)) = frame(&read).unwrap() {
                    seen.push(format!("{frame:?}"));
                    read.drain(..length);
                }
            }
            let whole: Vec<String> = frames(STREAM).iter().map(|frame| format!("{frame:?}")).collect();
            prop_assert_eq!(seen, whole);
            prop_assert!(read.is_empty());
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in any::<Vec<u8>>(), line in "(MSG|HMSG|-ERR|INFO)?[ a-z0-9']{0,20}\r\n.{0,9}") {
            let _whatever = (frame(&bytes), frame(line.as_bytes()), status(&bytes));
        }
    }
}
