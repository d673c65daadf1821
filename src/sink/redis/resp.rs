//! The Redis protocol, version 2: commands to bytes, bytes to replies.
//!
//! In: words of a command, or what the server sent. Out: bytes to send, or replies as a flat run of tokens that borrow from what was
//! read: nothing is allocated for a reply. It does no I/O.
//! Specification: Redis, "Redis serialization protocol specification".

/// The longest string that is accepted, in bytes: what the protocol allows by default. Replies that are waited for are short.
const MOST_BYTES: usize = 512 << 20;

/// The deepest count that an array may announce.
const MOST_ITEMS: usize = 1 << 24;

/// A piece of a reply. An array is followed by its items.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Token<'a> {
    /// A simple string, such as `OK`.
    Text(&'a [u8]),
    /// An error: its code, and the rest of its line.
    Error(&'a [u8]),
    /// A number.
    Integer(i64),
    /// A string of bytes.
    Bytes(&'a [u8]),
    /// No string, or no array.
    Null,
    /// So many replies follow.
    Array(usize),
}

/// What was read is not the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Broken;

/// Writes the head of a command of `words` words.
pub(super) fn command(out: &mut Vec<u8>, words: usize) {
    out.push(b'*');
    number(out, words);
}

/// Writes one word of a command.
pub(super) fn word(out: &mut Vec<u8>, word: &[u8]) {
    out.push(b'$');
    number(out, word.len());
    out.extend_from_slice(word);
    out.extend_from_slice(b"\r\n");
}

/// Writes a whole command.
pub(super) fn words(out: &mut Vec<u8>, words: &[&[u8]]) {
    command(out, words.len());
    for each in words {
        word(out, each);
    }
}

fn number(out: &mut Vec<u8>, mut number: usize) {
    let mut digits = [0_u8; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        if let Some(digit) = digits.get_mut(at) {
            // The remainder is below ten.
            *digit = b'0' + u8::try_from(number % 10).unwrap_or(0);
        }
        number /= 10;
        if number == 0 || at == 0 {
            break;
        }
    }
    out.extend_from_slice(digits.get(at..).unwrap_or_default());
    out.extend_from_slice(b"\r\n");
}

/// The first token in `bytes` and how long it is; `None` when it is not whole yet.
pub(super) fn token(bytes: &[u8]) -> Result<Option<(Token<'_>, usize)>, Broken> {
    let Some((line, length)) = line(bytes) else { return Ok(None) };
    let (kind, rest) = line.split_first().ok_or(Broken)?;
    let token = match kind {
        b'+' => Token::Text(rest),
        b'-' => Token::Error(rest),
        b':' => Token::Integer(integer(rest)?),
        b'$' | b'*' if rest == b"-1" => Token::Null,
        b'$' => return string(bytes, rest, length),
        b'*' => Token::Array(count(rest, MOST_ITEMS)?),
        _ => return Err(Broken),
    };
    Ok(Some((token, length)))
}

fn string<'a>(bytes: &'a [u8], rest: &[u8], head: usize) -> Result<Option<(Token<'a>, usize)>, Broken> {
    let end = head + count(rest, MOST_BYTES)?;
    match bytes.get(end..end + 2) {
        None => Ok(None),
        Some(b"\r\n") => Ok(Some((Token::Bytes(bytes.get(head..end).ok_or(Broken)?), end + 2))),
        Some(_) => Err(Broken),
    }
}

/// The line up to its end, and how long it is with that.
fn line(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let end = bytes.windows(2).position(|pair| pair == b"\r\n")?;
    Some((bytes.get(..end)?, end + 2))
}

fn integer(digits: &[u8]) -> Result<i64, Broken> {
    std::str::from_utf8(digits).ok().and_then(|text| text.parse().ok()).ok_or(Broken)
}

fn count(digits: &[u8], most: usize) -> Result<usize, Broken> {
    let count = integer(digits)?;
    usize::try_from(count).ok().filter(|count| *count <= most).ok_or(Broken)
}

/// How long the first `replies` replies are; `None` when they are not whole yet.
pub(super) fn length(bytes: &[u8], replies: usize) -> Result<Option<usize>, Broken> {
    let (mut left, mut at) = (replies, 0);
    while left > 0 {
        let Some((token, length)) = token(bytes.get(at..).unwrap_or_default())? else { return Ok(None) };
        at += length;
        left -= 1;
        if let Token::Array(items) = token {
            left += items;
        }
    }
    Ok(Some(at))
}

/// The tokens of what [`length`] found whole.
#[derive(Debug, Clone)]
pub(super) struct Tokens<'a> {
    bytes: &'a [u8],
}

impl<'a> Tokens<'a> {
    /// Of these bytes.
    pub(super) fn of(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }
}

impl<'a> Iterator for Tokens<'a> {
    type Item = Token<'a>;

    fn next(&mut self) -> Option<Token<'a>> {
        let (token, length) = token(self.bytes).ok()??;
        self.bytes = self.bytes.get(length..).unwrap_or_default();
        Some(token)
    }
}

/// An error's code: its first word, such as `OOM`.
pub(super) fn code(error: &[u8]) -> &[u8] {
    error.split(|byte| *byte == b' ').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const REPLIES: &[u8] = b"+OK\r\n*3\r\n$3\r\n1-0\r\n-OOM command not allowed\r\n:-7\r\n$-1\r\n$0\r\n\r\n";

    #[test]
    fn replies_come_apart_into_tokens() {
        let tokens: Vec<Token<'_>> = Tokens::of(REPLIES).collect();
        let error = Token::Error(b"OOM command not allowed");
        let array = [Token::Array(3), Token::Bytes(b"1-0"), error, Token::Integer(-7)];
        assert_eq!(tokens, [&[Token::Text(b"OK")], &array[..], &[Token::Null, Token::Bytes(b"")]].concat());
        assert_eq!(code(b"OOM command not allowed"), b"OOM");
        assert_eq!(length(REPLIES, 4), Ok(Some(REPLIES.len())));
        assert_eq!(length(REPLIES, 1), Ok(Some(5)));
        assert_eq!(length(REPLIES, 5), Ok(None));
    }

    #[test]
    fn nothing_is_taken_for_whole_before_its_last_byte() {
        for end in 0..REPLIES.len() {
            assert_eq!(length(&REPLIES[..end], 4), Ok(None), "{end}");
        }
    }

    #[test]
    fn what_is_not_the_protocol_is_an_error() {
        for bytes in [&b"HTTP/1.1 400\r\n"[..], b"$-2\r\n", b"*99999999999\r\n", b"$3\r\nabcd\r\n", b":x\r\n", b"\r\n"]
        {
            assert_eq!(length(bytes, 1), Err(Broken), "{bytes:?}");
        }
    }

    #[test]
    fn a_command_is_an_array_of_its_words() {
        let mut out = Vec::new();
        words(&mut out, &[b"XADD", b"", b"a\r\nb", &[7; 120]]);
        assert!(out.starts_with(b"*4\r\n$4\r\nXADD\r\n$0\r\n\r\n$4\r\na\r\nb\r\n$120\r\n"));
        let read: Vec<Token<'_>> = Tokens::of(&out).collect();
        assert_eq!(read.len(), 5);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in any::<Vec<u8>>(), replies in 0_usize..4) {
            let _whatever = length(&bytes, replies);
            Tokens::of(&bytes).for_each(drop);
        }
    }
}
