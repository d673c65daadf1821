//! What a server says about itself: the reply to INFO.
//!
//! In: that reply. Out: facts. A user who may not ask leaves them unknown.

use super::resp::{Token, Tokens};

/// The oldest Redis with WAITAOF, as its protocol's version; every Valkey says 7.2 or newer.
const WAITS_FOR_FILE: (u32, u32) = (7, 2);

/// A field of INFO's reply.
pub(super) fn field<'a>(reply: &'a [u8], name: &str) -> Option<&'a str> {
    let Some(Token::Bytes(text)) = Tokens::of(reply).next() else { return None };
    let text = std::str::from_utf8(text).ok()?;
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

/// Whether it writes an append-only file, and has the command that waits for it.
pub(super) fn has_file_to_wait_for(reply: &[u8]) -> bool {
    field(reply, "aof_enabled") == Some("1") && version(reply).is_some_and(|version| version >= WAITS_FOR_FILE)
}

/// Major and minor version.
pub(super) fn version(reply: &[u8]) -> Option<(u32, u32)> {
    let mut parts = field(reply, "redis_version")?.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(text: &str) -> Vec<u8> {
        format!("${}\r\n{text}\r\n", text.len()).into_bytes()
    }

    #[test]
    fn the_append_only_file_can_be_waited_for_where_there_is_one_and_the_command() {
        let said = |version: &str, file: &str| {
            reply(&format!("# Server\r\nredis_version:{version}\r\n# Persistence\r\naof_enabled:{file}\r\n"))
        };
        assert!(has_file_to_wait_for(&said("7.2.4", "1")) && has_file_to_wait_for(&said("8.0.2", "1")));
        assert!(!has_file_to_wait_for(&said("7.0.15", "1")) && !has_file_to_wait_for(&said("8.0.2", "0")));
        assert!(!has_file_to_wait_for(b"-NOPERM no\r\n"));
        assert_eq!(field(&said("7.2.4", "1"), "role"), None);
    }
}
