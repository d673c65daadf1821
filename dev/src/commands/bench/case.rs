//! What is measured: a backlog as it is written, and how it is read.

use std::fmt;
use std::str::FromStr;

use crate::distance::Distance;

/// Bytes that a backlog has at most: rows beyond are left out.
const MOST_BYTES: u64 = 1_500_000_000;

/// A backlog as it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Load {
    /// Rows in all; a multiple of `batch`.
    pub(crate) rows: u64,
    /// Rows to a transaction.
    pub(crate) batch: u64,
    /// The payload's size as text, nearly.
    pub(crate) payload: Size,
    /// The payload's type.
    pub(crate) kind: Kind,
    /// Topics that the rows go to in turn.
    pub(crate) topics: u64,
    /// Keys, in turn as well.
    pub(crate) keys: u64,
}

/// How it is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reading {
    /// How Postgres is reached.
    pub(crate) way: Way,
    /// Of Redis: how many nodes share the streams; 1: one server, which is no cluster.
    pub(crate) nodes: u16,
    /// Of each topic.
    pub(crate) partitions: u32,
    /// librdkafka's `compression.type`.
    pub(crate) compression: String,
    /// `--delivery`.
    pub(crate) delivery: Delivery,
    /// How far the brokers are from who is measured.
    pub(crate) broker: Distance,
    /// How far Postgres is.
    pub(crate) postgres: Distance,
}

/// What carries the payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Kind {
    Jsonb,
    Text,
    Bytea,
    /// `pg_logical_emit_message`, no table at all
    Message,
}

impl Kind {
    /// The type of the table's column.
    pub(crate) const fn column(self) -> &'static str {
        match self {
            Self::Jsonb => "jsonb",
            Self::Text | Self::Message => "text",
            Self::Bytea => "bytea",
        }
    }
}

/// A way to Postgres.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Way {
    Tcp,
    Socket,
    Tls,
}

/// `--delivery` of the relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Delivery {
    AtLeastOnce,
    ExactlyOnce,
}

/// A size in bytes, typed as `300`, `10k` or `1m`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Size(pub(crate) u64);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (digits, factor) = match text.strip_suffix(['k', 'K']) {
            Some(digits) => (digits, 1000),
            None => text.strip_suffix(['m', 'M']).map_or((text, 1), |digits| (digits, 1_000_000)),
        };
        let size = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(factor));
        size.filter(|size| *size > 0).map(Self).ok_or_else(|| "a size such as 300, 10k or 1m".to_owned())
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            bytes if bytes.is_multiple_of(1000) => write!(f, "{} kB", bytes / 1000),
            bytes => write!(f, "{bytes} B"),
        }
    }
}

impl Load {
    /// With whole transactions only, and no more bytes than a disk cache likes.
    pub(crate) fn bounded(self) -> Self {
        let rows = self.rows.min(MOST_BYTES / self.payload.0).max(1);
        let batch = self.batch.clamp(1, rows);
        Self { rows: rows / batch * batch, batch, ..self }
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rows, batch, payload, topics, keys, .. } = self;
        let kind = format!("{:?}", self.kind).to_lowercase();
        let rows = crate::screen::thousands(*rows);
        write!(f, "{rows} rows of {payload} {kind}, {batch} a transaction, {keys} keys, {topics} topic(s)")
    }
}

impl fmt::Display for Reading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let way = match self.way {
            Way::Tcp => "TCP",
            Way::Socket => "Unix socket",
            Way::Tls => "TLS",
        };
        write!(f, "{way}, {} partition(s), compression {}", self.partitions, self.compression)?;
        match self.delivery {
            Delivery::AtLeastOnce => {}
            Delivery::ExactlyOnce => write!(f, ", exactly once")?,
        }
        if self.nodes > 1 {
            write!(f, ", a cluster of {} nodes", self.nodes)?;
        }
        for (peer, distance) in [("the broker", self.broker), ("Postgres", self.postgres)] {
            if !distance.is_none() {
                write!(f, ", {distance} to {peer}")?;
            }
        }
        Ok(())
    }
}

impl Default for Reading {
    fn default() -> Self {
        Self {
            way: Way::Tcp,
            nodes: 1,
            partitions: 12,
            compression: "none".to_owned(),
            delivery: Delivery::AtLeastOnce,
            broker: Distance::default(),
            postgres: Distance::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(rows: u64, batch: u64, payload: u64) -> Load {
        Load { rows, batch, payload: Size(payload), kind: Kind::Jsonb, topics: 1, keys: 1000 }
    }

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in [("300", 300), ("10k", 10_000), ("900K", 900_000), ("1m", 1_000_000)] {
            assert_eq!(text.parse::<Size>(), Ok(Size(bytes)));
        }
        for text in ["", "0", "k", "1g", "-1"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_reading_tells_distances_where_there_are_some() {
        let far = Reading { broker: "500us".parse().unwrap(), ..Reading::default() };
        assert_eq!(far.to_string(), "TCP, 12 partition(s), compression none, RTT 1 ms to the broker");
    }

    #[test]
    fn a_backlog_has_whole_transactions_and_a_bounded_size() {
        assert_eq!(load(1005, 10, 300).bounded().rows, 1000);
        assert_eq!(load(1_000_000, 10, 900_000).bounded().rows, 1660);
        let one = load(100, 1_000_000, 300).bounded();
        assert_eq!((one.rows, one.batch), (100, 100));
    }
}
