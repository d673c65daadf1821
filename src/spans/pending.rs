//! Transactions that are on their way to the destination and will be spans.
//!
//! ```text
//!  record with a sampled traceparent ─► open, by its transaction's number ─► settled ─► Span
//! ```
//!
//! In: records as the destination takes them, and which transaction is delivered whole. Out: a [`Span`] for each transaction of which a row
//! belongs to a sampled trace. Pure: times come as arguments.
//!
//! Invariants: at most [`MOST_OPEN`] are kept, with at most [`MOST_LINKS`] links each and [`ALL_LINKS`] together; a row allocates nothing unless it brings a context
//! that its transaction does not have yet.

use super::context::Context;
use crate::pgoutput::PgTime;
use crate::sink::{Record, Token};
use std::collections::VecDeque;
use std::time::Duration;

/// Transactions in flight that will be spans, at most.
pub(super) const MOST_OPEN: usize = 8192;

/// Links of a span, at most: OpenTelemetry's default (`OTEL_SPAN_LINK_COUNT_LIMIT`).
pub(super) const MOST_LINKS: usize = 128;

/// Links of all spans that are kept in one place, at most: some 3 MB.
pub(super) const ALL_LINKS: usize = 65_536;

/// The id of a message is left out if it is longer, in bytes.
const LONGEST_ID: usize = 256;

/// Bytes of `tracestate`: what W3C's "Trace Context", section 3.3.1.5, asks to be propagated.
const LONGEST_STATE: usize = 512;

/// A transaction that is published.
#[derive(Debug, Clone, PartialEq)]
pub struct Span {
    /// What its first sampled row belongs to.
    pub parent: Context,
    /// The parent's `tracestate`; empty: none.
    pub state: String,
    /// What its other rows belong to, each once.
    pub links: Vec<Context>,
    /// How many rows brought contexts for which there was no room.
    pub dropped_links: u32,
    /// Where its records went; `None`: to several topics.
    pub topic: Option<String>,
    /// The id of its record, if it has one alone.
    pub message_id: Option<String>,
    /// Its records; at least 1.
    pub records: u32,
    /// When the first record with its context was enqueued.
    pub start: PgTime,
    /// When the last one was acknowledged.
    pub end: PgTime,
    /// From the commit in Postgres to `end`.
    pub latency: Duration,
}

/// One that is not delivered yet.
#[derive(Debug)]
struct Open {
    transaction: u32,
    span: Span,
}

/// What the transaction that is coming has so far.
#[derive(Debug, Default)]
struct Coming {
    /// `None`: nothing.
    transaction: Option<u32>,
    records: u32,
    /// The first record's.
    topic: u16,
    /// Its records go to several topics.
    is_mixed: bool,
    /// There was no room for its span.
    is_dropped: bool,
}

/// Transactions in flight that will be spans, in commit order.
#[derive(Debug, Default)]
pub(super) struct Pending {
    open: VecDeque<Open>,
    /// Links of all of them.
    links: usize,
    coming: Coming,
}

impl Pending {
    /// The destination has taken a record. True: its transaction would be a span, and there is no room; said once for each.
    pub(super) fn taken(&mut self, record: &Record<'_>, token: Token, now: impl FnOnce() -> PgTime) -> bool {
        self.coming.record(token);
        let context = header(record, "traceparent").and_then(Context::parse).filter(Context::is_sampled);
        let Self { open, links, coming } = self;
        if let Some(open) = open.back_mut().filter(|open| open.transaction == token.transaction) {
            let before = open.span.links.len();
            open.span.record(record, coming, context, *links < ALL_LINKS);
            *links += open.span.links.len() - before;
            return false;
        }
        let Some(context) = context else { return false };
        if open.len() >= MOST_OPEN {
            return !std::mem::replace(&mut coming.is_dropped, true);
        }
        let span = Span::begin(record, context, coming, now());
        open.push_back(Open { transaction: token.transaction, span });
        false
    }

    /// A transaction is delivered whole: its span, if it is one. What is older was delivered by another relay.
    pub(super) fn settled(
        &mut self,
        transaction: u32,
        latency: Duration,
        now: impl FnOnce() -> PgTime,
    ) -> Option<Span> {
        while let Some(front) = self.open.front() {
            // Numbers count modulo 2^32.
            let behind = transaction.wrapping_sub(front.transaction);
            if behind >= 1 << 31 {
                return None;
            }
            let open = self.open.pop_front()?;
            self.links -= open.span.links.len();
            if behind == 0 {
                return Some(Span { end: now(), latency, ..open.span });
            }
        }
        None
    }

    /// Nothing that was taken will be reported.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }
}

impl Coming {
    fn record(&mut self, token: Token) {
        if self.transaction != Some(token.transaction) {
            *self = Self { transaction: Some(token.transaction), topic: token.topic, ..Self::default() };
        }
        self.records = self.records.saturating_add(1);
        self.is_mixed |= self.topic != token.topic;
    }
}

impl Span {
    fn begin(record: &Record<'_>, parent: Context, coming: &Coming, start: PgTime) -> Self {
        let short = |name, longest| {
            let text = header(record, name).filter(|value| value.len() <= longest)?;
            std::str::from_utf8(text).ok().map(str::to_owned)
        };
        Self {
            parent,
            state: short("tracestate", LONGEST_STATE).unwrap_or_default(),
            links: Vec::new(),
            dropped_links: 0,
            topic: (!coming.is_mixed).then(|| record.topic.to_owned()),
            message_id: short("id", LONGEST_ID).filter(|_| coming.records == 1),
            records: coming.records,
            start,
            end: start,
            latency: Duration::ZERO,
        }
    }

    /// One more record, whose context may become a link if there is `room`.
    fn record(&mut self, record: &Record<'_>, coming: &Coming, context: Option<Context>, room: bool) {
        self.records = coming.records;
        self.message_id = None;
        // Topics beyond the metrics' table share a number.
        if coming.is_mixed || self.topic.as_ref().is_some_and(|topic| topic != record.topic) {
            self.topic = None;
        }
        let Some(context) = context else { return };
        if same(&context, &self.parent) || self.links.iter().rev().any(|link| same(link, &context)) {
            return;
        }
        if room && self.links.len() < MOST_LINKS {
            self.links.push(context);
        } else {
            self.dropped_links = self.dropped_links.saturating_add(1);
        }
    }
}

fn same(one: &Context, other: &Context) -> bool {
    (one.trace_id, one.span_id) == (other.trace_id, other.span_id)
}

fn header<'a>(record: &Record<'a>, name: &str) -> Option<&'a [u8]> {
    record.headers.iter().find(|header| header.name == name).and_then(|header| header.value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::{Content, Header};

    fn traceparent(trace: u8, flags: u8) -> String {
        format!("00-{}-{}-{flags:02x}", format!("{trace:02x}").repeat(16), format!("{trace:02x}").repeat(8))
    }

    fn context(trace: u8) -> Context {
        Context { trace_id: [trace; 16], span_id: [trace; 8], flags: 1 }
    }

    /// A record of `transaction` is taken at time 7.
    fn take(pending: &mut Pending, transaction: u32, topic: (&str, u16), headers: &[(&str, &str)]) -> bool {
        let headers: Vec<Header<'_>> =
            headers.iter().map(|(name, value)| Header { name, value: Some(value.as_bytes()) }).collect();
        let record = Record {
            topic: topic.0,
            key: None,
            value: None,
            headers: &headers,
            timestamp_millis: 0,
            partition: None,
            content: Content::Unknown,
        };
        pending.taken(&record, Token { transaction, tick: 0, topic: topic.1 }, || PgTime(7))
    }

    fn settle(pending: &mut Pending, transaction: u32) -> Option<Span> {
        pending.settled(transaction, Duration::from_millis(3), || PgTime(9))
    }

    const ORDER: (&str, u16) = ("order", 0);

    #[test]
    fn a_sampled_row_alone_is_a_span_with_its_id_its_topic_and_its_state() {
        let mut pending = Pending::default();
        let parent = traceparent(1, 1);
        take(&mut pending, 0, ORDER, &[("id", "a"), ("traceparent", &parent), ("tracestate", "vendor=x")]);
        let span = settle(&mut pending, 0).unwrap();
        let expected = Span {
            parent: context(1),
            state: "vendor=x".to_owned(),
            links: Vec::new(),
            dropped_links: 0,
            topic: Some("order".to_owned()),
            message_id: Some("a".to_owned()),
            records: 1,
            start: PgTime(7),
            end: PgTime(9),
            latency: Duration::from_millis(3),
        };
        assert_eq!(span, expected);
        assert_eq!(settle(&mut pending, 0), None, "only once");
    }

    #[test]
    fn rows_without_a_sampled_context_are_no_span() {
        let mut pending = Pending::default();
        take(&mut pending, 0, ORDER, &[("id", "a")]);
        take(&mut pending, 1, ORDER, &[("traceparent", &traceparent(1, 0))]);
        take(&mut pending, 2, ORDER, &[("traceparent", "00-nonsense-01")]);
        take(&mut pending, 3, ORDER, &[("Traceparent", &traceparent(1, 1))]);
        assert!((0..4).all(|transaction| settle(&mut pending, transaction).is_none()));
    }

    #[test]
    fn a_transaction_is_one_span_that_counts_all_of_its_records_and_links_to_its_other_traces_once() {
        let mut pending = Pending::default();
        take(&mut pending, 5, ORDER, &[("id", "a")]);
        for trace in [1, 2, 1, 3, 2] {
            take(&mut pending, 5, ORDER, &[("id", "b"), ("traceparent", &traceparent(trace, 1))]);
        }
        take(&mut pending, 5, ORDER, &[("traceparent", &traceparent(4, 0))]);
        let span = settle(&mut pending, 5).unwrap();
        assert_eq!((span.parent, span.links), (context(1), vec![context(2), context(3)]));
        assert_eq!((span.records, span.message_id, span.topic.as_deref()), (7, None, Some("order")));
    }

    #[test]
    fn a_transaction_to_several_topics_names_none() {
        let sampled = traceparent(1, 1);
        let with = [("traceparent", sampled.as_str())];
        // The numbers of topics beyond the table's are equal.
        for (first, second) in [(("a", 0), ("b", 1)), (("a", 100), ("b", 100))] {
            let mut pending = Pending::default();
            take(&mut pending, 0, first, &with);
            take(&mut pending, 0, second, &[]);
            assert_eq!(settle(&mut pending, 0).unwrap().topic, None, "{second:?}");
        }
        let mut pending = Pending::default();
        take(&mut pending, 0, ("a", 0), &[]);
        take(&mut pending, 0, ("b", 1), &with);
        assert_eq!(settle(&mut pending, 0).unwrap().topic, None, "the first row had no context");
    }

    #[test]
    fn links_and_open_transactions_are_bounded_and_what_is_too_much_is_counted() {
        let mut pending = Pending::default();
        for trace in 1..=u8::MAX {
            take(&mut pending, 0, ORDER, &[("traceparent", &traceparent(trace, 1))]);
        }
        let span = settle(&mut pending, 0).unwrap();
        assert_eq!((span.links.len(), span.dropped_links), (MOST_LINKS, 254 - 128));
        let most = u32::try_from(MOST_OPEN).unwrap();
        let sampled = traceparent(1, 1);
        for transaction in 0..most {
            assert!(!take(&mut pending, transaction, ORDER, &[("traceparent", &sampled)]));
        }
        assert!(take(&mut pending, most, ORDER, &[("traceparent", &sampled)]), "dropped");
        assert!(!take(&mut pending, most, ORDER, &[("traceparent", &sampled)]), "once for each transaction");
        assert!(settle(&mut pending, 0).is_some());
        assert!(!take(&mut pending, most + 1, ORDER, &[("traceparent", &sampled)]), "there is room again");
    }

    #[test]
    fn what_another_relay_delivered_is_forgotten_and_numbers_begin_again_behind_their_last() {
        let mut pending = Pending::default();
        let sampled = traceparent(1, 1);
        for transaction in [u32::MAX - 1, u32::MAX, 0, 1] {
            take(&mut pending, transaction, ORDER, &[("traceparent", &sampled)]);
        }
        assert!(settle(&mut pending, u32::MAX).is_some(), "the one before it was closed");
        assert!(settle(&mut pending, u32::MAX - 1).is_none());
        assert!(settle(&mut pending, 1).is_some() && pending.open.is_empty());
        take(&mut pending, 7, ORDER, &[("traceparent", &sampled)]);
        pending.forget();
        assert!(settle(&mut pending, 7).is_none());
    }
}
