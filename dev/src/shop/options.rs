//! How busy a shop is, what its transactions look like, and what its rows are called.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rand::Rng as _;
use rand::rngs::StdRng;

/// What the aggregates are, and so which topics there are.
pub const KINDS: [&str; 2] = ["order", "invoice"];

/// How busy the shop is.
#[derive(Debug, Clone)]
pub struct Options {
    /// Connections that write at once.
    pub connections: u32,
    /// Keys of each kind; few keys make connections wait for each other.
    pub keys: u32,
    /// Repeats the same choices; what the connections do to each other differs from run to run.
    pub seed: u64,
    /// Ends after about that many committed rows; `None`: when stopped.
    pub rows: Option<u64>,
    /// The pause between two transactions of one connection.
    pub pause: Duration,
    /// What the transactions look like.
    pub shapes: Shapes,
}

/// What transactions look like.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub enum Shapes {
    /// 1 to 20 rows, with savepoints, nested savepoints, partial and whole rollbacks.
    #[default]
    Plain,
    /// Also single rows, hundreds and thousands, rows deleted at once, open for long, only other tables, and what
    /// follows. The outbox is partitioned.
    Every {
        /// Logical messages of [`MESSAGE_PREFIX`].
        messages: bool,
        /// Transactions of thousands of rows, all of one key: where one record of a key is under way at a time, each takes long.
        thousands: bool,
        /// The share of transactions with a row that has no topic that Kafka allows, 0 to 1.
        misrouted: f64,
        /// The share of transactions with a row whose payload has [`OVERSIZE`] bytes or more.
        oversized: f64,
    },
}

/// The prefix of logical messages that stand for a row.
pub const MESSAGE_PREFIX: &str = "shop";

/// Every oversized row has at least this many bytes, so a topic that is to refuse them has a lower limit.
pub const OVERSIZE: usize = 60_000;

impl Default for Options {
    fn default() -> Self {
        Self { connections: 4, keys: 20, seed: 1, rows: None, pause: Duration::ZERO, shapes: Shapes::Plain }
    }
}

/// A UUID of version 7: it begins with the time, as new tables' keys do.
pub fn new_id(rng: &mut StdRng) -> String {
    let milliseconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
    let random: u128 = rng.random();
    let bits = (milliseconds << 80) | (0x7 << 76) | (random >> 52 & 0xfff) << 64 | (0b10 << 62) | (random >> 66);
    let hex = format!("{bits:032x}");
    let part = |range: std::ops::Range<usize>| hex.get(range).unwrap_or_default().to_owned();
    [part(0..8), part(8..12), part(12..16), part(16..20), part(20..32)].join("-")
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng as _;

    use super::*;

    #[test]
    fn ids_are_of_version_7_and_differ() {
        let mut rng = StdRng::seed_from_u64(1);
        let ids: std::collections::BTreeSet<String> = (0..1000).map(|_| new_id(&mut rng)).collect();
        assert_eq!(ids.len(), 1000);
        for id in ids {
            assert_eq!((id.len(), id.get(14..15)), (36, Some("7")), "{id}");
            assert!(matches!(id.get(19..20), Some("8" | "9" | "a" | "b")), "{id}");
        }
    }
}
