//! Whether a pause before the next read pays.
//!
//! A walsender sends each message by itself. While the relay pauses, messages gather and leave together, which costs both sides less for each.
//! Where the receive window is small (see `pg::window`), a few long messages fill it, and the walsender then only waits for the relay.
//!
//! In: the bytes and messages of a read. Out: a verdict. Reads no clock, and costs a message one store.

/// A read of at least this many bytes says that more is waiting: no pause for company.
const LONG_READ_BYTES: usize = 64 * 1024;

/// So many have to fit into a small window. Measured over loopback with one of 32 KiB and ten rows a transaction, rows a second with a
/// pause and without, by bytes a message, Begin and Commit among them: at 620 (53 fit) 93 and 73 thousand, at 790 (42) 85 and 98, at 950
/// (34) 58 and 73, at 8,450 (4) 9.5 and 12.6.
const MESSAGES_IN_WINDOW: usize = 45;

/// The bytes and messages of the last read.
#[derive(Debug, Default)]
pub(super) struct LastRead {
    bytes: usize,
    messages: usize,
}

impl LastRead {
    /// A message was taken.
    #[inline]
    pub(super) fn took_message(&mut self) {
        self.messages += 1;
    }

    /// A new read brought so many bytes.
    pub(super) fn read(&mut self, bytes: usize) {
        *self = Self { bytes, messages: 0 };
    }

    /// Whether a pause before the next read pays; `window`: what can come meanwhile at most, in bytes, where that is little.
    pub(super) fn is_worth_a_pause(&self, window: Option<usize>) -> bool {
        let fits = |window| self.messages.saturating_mul(window) >= self.bytes.saturating_mul(MESSAGES_IN_WINDOW);
        (1..LONG_READ_BYTES).contains(&self.bytes) && window.is_none_or(fits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Option<usize> = Some(32 * 1024);

    fn brought(messages: usize, bytes: usize) -> LastRead {
        let mut last_read = LastRead::default();
        last_read.read(bytes);
        (0..messages).for_each(|_| last_read.took_message());
        last_read
    }

    #[test]
    fn short_messages_are_worth_a_pause_and_a_long_read_or_none_is_not() {
        for window in [WINDOW, None] {
            assert!(brought(100, 32_000).is_worth_a_pause(window));
            assert!(brought(1, 100).is_worth_a_pause(window));
            assert!(!brought(200, 65_536).is_worth_a_pause(window));
            assert!(!brought(0, 0).is_worth_a_pause(window));
        }
    }

    #[test]
    fn long_messages_are_not_where_the_window_is_small() {
        for (messages, bytes) in [(34, 32_700), (3, 32_700), (0, 32_768)] {
            assert!(!brought(messages, bytes).is_worth_a_pause(WINDOW));
            assert!(brought(messages, bytes).is_worth_a_pause(None));
        }
    }

    #[test]
    fn what_an_earlier_read_brought_does_not_count() {
        let mut last_read = brought(1000, 30_000);
        last_read.read(30_000);
        assert!(!last_read.is_worth_a_pause(WINDOW));
    }
}
