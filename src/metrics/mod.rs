//! [`Metrics`]: the figures of one relay, for operators.
//!
//! In: the loop's figures, by one call for each batch. Out: the figures as metrics (`render`) and as JSON (`status`), and whether the
//! relay is live and ready (`health`).
//! Invariant: the loop never waits for a reader. A figure that changes with each batch is an atomic. Only texts, rare counts and the
//! latency of a transaction have a mutex, which is locked only for one copy. Figures are read one by one, so in a scrape a record may
//! be acknowledged and still in flight. This folder decides nothing, and reads no clock. Times come as [`Instant`], and are stored as
//! nanoseconds since the start.

mod cells;
mod families;
mod health;
mod process;
mod render;
mod samples;
mod status;
mod unpublished;

pub use cells::Latencies;
pub use families::{FAMILIES, Family, WAL_STATUSES};
pub use render::Format;
pub use samples::Moment;
pub use status::{Status, TriedRow};
pub use unpublished::WalEnd;

use crate::lsn::Lsn;
use crate::pgoutput::PgTime;
use crate::remedy::Remedy;
use cells::{Latency, Stamp, Tally, TopicCounters, lock};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use unpublished::Unpublished;

/// The relay's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// The relay connects to Postgres.
    Connecting,
    /// Another process reads the slot, or has done so within the last second. The relay waits as a standby.
    WaitingForSlot,
    /// The relay reads the slot, and the destination takes records.
    Streaming,
    /// The destination sends smaller and smaller batches, to find the record that was refused. Only Kafka's sink says so.
    Searching,
    /// Rows wait: the destination or one topic takes nothing or is silent, Postgres does not answer who holds the slot or sends nothing before a
    /// standby has its WAL, notes of skipped rows fail, or the relay begins again after a pause.
    Blocked,
    /// The relay was asked to stop, and waits for acknowledgements.
    Stopping,
    /// The relay has stopped for good. The process may stay up to report why.
    Stopped,
}

impl State {
    /// All states, each at the index of its discriminant.
    pub const ALL: [Self; 7] = [
        Self::Connecting,
        Self::WaitingForSlot,
        Self::Streaming,
        Self::Searching,
        Self::Blocked,
        Self::Stopping,
        Self::Stopped,
    ];

    /// The name in `/status`, and the value of the label `state`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Connecting => "connecting",
            Self::WaitingForSlot => "waiting-for-slot",
            Self::Streaming => "streaming",
            Self::Searching => "careful",
            Self::Blocked => "blocked",
            Self::Stopping => "stopping",
            Self::Stopped => "stopped",
        }
    }

    /// The state as a sentence for people.
    pub const fn sentence(self) -> &'static str {
        match self {
            Self::Connecting => "Connecting to Postgres.",
            Self::WaitingForSlot => "Standing by: another process reads the slot, or did so a moment ago.",
            Self::Streaming => "Streaming.",
            Self::Searching => "Streaming, and searching for the one record that was refused.",
            Self::Blocked => "Blocked: rows wait.",
            Self::Stopping => "Stopping: waiting for the last acknowledgements.",
            Self::Stopped => "Stopped.",
        }
    }
}

/// The other end of a connection that was lost and opened again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// Postgres, by the replication connection.
    Postgres,
    /// The destination, by the sink's client.
    Destination,
}

/// The figures of `pg_replication_slots` about the slot. `None`: not known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SlotFigures {
    /// The bytes of WAL between `confirmed_flush_lsn` and the server's current position.
    pub lag_bytes: Option<u64>,
    /// The bytes of WAL between `restart_lsn` and the server's current position. The slot keeps these on disk.
    pub retained_wal_bytes: Option<u64>,
    /// `reserved`, `extended`, `unreserved` or `lost`.
    pub wal_status: Option<String>,
    /// The bytes that may be written before the slot may be lost. Not known if `max_slot_wal_keep_size` is not set.
    pub safe_wal_bytes: Option<u64>,
    /// Whether a walsender reads the slot, for this relay or another one.
    pub active: Option<bool>,
    /// The end of the server's WAL.
    pub wal_end: Option<WalEnd>,
}

/// The figures of one relay. They are shared, so every method takes `&self`.
#[derive(Debug)]
pub struct Metrics {
    slot: String,
    publication: String,
    /// The destination's label and title.
    destination: (&'static str, &'static str),
    /// The start, from which every [`Stamp`] counts.
    start: Instant,
    state: AtomicU8,
    turned: Stamp,
    received: AtomicU64,
    confirmed: AtomicU64,
    in_flight_records: AtomicU64,
    in_flight_bytes: AtomicU64,
    /// The number of the destination's producers. 0: it has none.
    producers: AtomicU8,
    oldest_in_flight: Stamp,
    /// Microseconds since 1970. `i64::MIN`: all received transactions are acknowledged.
    oldest_commit: AtomicI64,
    /// The highest value that `oldest_commit` has had.
    stream_time: AtomicI64,
    unpublished: Mutex<Unpublished>,
    topics: TopicCounters,
    event_bytes: AtomicU64,
    last_ack: Stamp,
    latency: Latency,
    bad_rows: Tally,
    ignored: Tally,
    publish_failures: Tally,
    postgres_reconnects: AtomicU64,
    destination_reconnects: AtomicU64,
    status_sent: Stamp,
    last_error: Mutex<Option<String>>,
    publication_gap: Mutex<Option<String>>,
    unsent_row: Mutex<Option<String>>,
    /// The fix for the error that stopped the relay.
    hint: Mutex<Option<Remedy>>,
    blocked_on: Mutex<Option<String>>,
    tried_alone: Mutex<Option<TriedRow>>,
    /// Whether the relay is blocked only because nothing is acknowledged.
    only_silent: AtomicBool,
    unready_after: Duration,
    slot_figures: Mutex<SlotFigures>,
    slot_look_failures: AtomicU64,
    reads_from: Mutex<Option<String>>,
    unencrypted: Mutex<Option<String>>,
}

/// The default of [`Metrics::with_unready_after`].
const UNREADY_AFTER: Duration = Duration::from_secs(30);

impl Metrics {
    /// The figures before anything has happened. The state is `connecting`.
    pub fn new(slot: &str, publication: &str, now: Instant) -> Self {
        Self {
            slot: slot.to_owned(),
            publication: publication.to_owned(),
            destination: ("destination", "the destination"),
            start: now,
            state: AtomicU8::new(State::Connecting as u8),
            turned: Stamp::never(),
            received: AtomicU64::new(0),
            confirmed: AtomicU64::new(0),
            in_flight_records: AtomicU64::new(0),
            in_flight_bytes: AtomicU64::new(0),
            producers: AtomicU8::new(0),
            oldest_in_flight: Stamp::never(),
            oldest_commit: AtomicI64::new(i64::MIN),
            stream_time: AtomicI64::new(i64::MIN),
            unpublished: Mutex::default(),
            topics: TopicCounters::default(),
            event_bytes: AtomicU64::new(0),
            last_ack: Stamp::never(),
            latency: Latency::default(),
            bad_rows: Tally::default(),
            ignored: Tally::default(),
            publish_failures: Tally::default(),
            postgres_reconnects: AtomicU64::new(0),
            destination_reconnects: AtomicU64::new(0),
            status_sent: Stamp::never(),
            last_error: Mutex::default(),
            publication_gap: Mutex::default(),
            unsent_row: Mutex::default(),
            hint: Mutex::default(),
            blocked_on: Mutex::default(),
            tried_alone: Mutex::default(),
            only_silent: AtomicBool::new(false),
            unready_after: UNREADY_AFTER,
            slot_figures: Mutex::default(),
            slot_look_failures: AtomicU64::new(0),
            reads_from: Mutex::default(),
            unencrypted: Mutex::default(),
        }
    }

    /// Sets the destination's label, and its title for people.
    #[must_use]
    pub fn with_destination(self, label: &'static str, title: &'static str) -> Self {
        Self { destination: (label, title), ..self }
    }

    /// The destination's title.
    pub fn destination(&self) -> &'static str {
        self.destination.1
    }

    /// Sets how long the relay stays ready while records are in flight and none is acknowledged. The default is 30 s.
    #[must_use]
    pub fn with_unready_after(self, unready_after: Duration) -> Self {
        Self { unready_after, ..self }
    }

    /// How long the relay stays ready while records are in flight and none is acknowledged.
    pub fn unready_after(&self) -> Duration {
        self.unready_after
    }

    /// Sets the relay's state.
    pub fn set_state(&self, state: State) {
        self.state.store(state as u8, Relaxed);
        self.only_silent.store(false, Relaxed);
    }

    /// Sets the state `blocked` for a relay that streams while nothing is acknowledged. It stays ready for [`Metrics::unready_after`].
    pub fn set_silent(&self) {
        self.state.store(State::Blocked as u8, Relaxed);
        self.only_silent.store(true, Relaxed);
    }

    /// The relay's state.
    pub fn state(&self) -> State {
        let index = usize::from(self.state.load(Relaxed));
        State::ALL.get(index).copied().unwrap_or(State::Connecting)
    }

    /// The loop has turned. It calls this in any state.
    pub fn turned(&self, now: Instant) {
        self.turned.set(self.since_start(now));
    }

    /// Sets the last position that was received from the server, and the one up to which everything is acknowledged: it was confirmed, or the
    /// next status update confirms it.
    pub fn set_positions(&self, received: Lsn, confirmed: Lsn) {
        self.received.store(received.bytes(), Relaxed);
        self.confirmed.store(confirmed.bytes(), Relaxed);
    }

    /// Sets the number and bytes of records that are enqueued and not acknowledged.
    pub fn set_in_flight(&self, records: u64, bytes: u64) {
        self.in_flight_records.store(records, Relaxed);
        self.in_flight_bytes.store(bytes, Relaxed);
    }

    /// Sets the number of the destination's producers. `None`: it has none.
    pub fn set_producers(&self, producers: Option<u8>) {
        self.producers.store(producers.unwrap_or_default(), Relaxed);
    }

    fn producers(&self) -> Option<u64> {
        Some(u64::from(self.producers.load(Relaxed))).filter(|producers| *producers > 0)
    }

    /// Sets when the oldest record in flight was enqueued. `None`: none is in flight.
    pub fn set_oldest_in_flight(&self, enqueued: Option<Instant>) {
        match enqueued {
            Some(at) => self.oldest_in_flight.set(self.since_start(at)),
            None => self.oldest_in_flight.clear(),
        }
    }

    /// Sets when the oldest transaction was committed that is received and not acknowledged. `None`: there is none.
    pub fn set_oldest_commit(&self, commit_time: Option<PgTime>) {
        let micros = commit_time.map_or(i64::MIN, PgTime::unix_micros);
        self.oldest_commit.store(micros, Relaxed);
        self.stream_time.fetch_max(micros, Relaxed);
    }

    /// Returns a topic's index for [`Metrics::acknowledged`]. This takes a lock, so the caller should keep the index.
    pub fn topic(&self, name: &str) -> u16 {
        self.topics.intern(name)
    }

    /// The destination has acknowledged `records` records of one topic. `bytes`: their bytes of key and value.
    pub fn acknowledged(&self, topic: u16, records: u64, bytes: u64, now: Instant) {
        self.topics.add(topic, records);
        self.event_bytes.fetch_add(bytes, Relaxed);
        self.last_ack.set(self.since_start(now));
    }

    /// A transaction's last record was acknowledged, at the time `latency` after the commit.
    pub fn transaction_delivered(&self, latency: Duration) {
        self.latency.observe(latency);
    }

    /// Shows the counters of these reasons for bad rows from the start, at zero. An alert on an increase does not see a series that
    /// begins at 1.
    pub fn expect_bad_rows(&self, reasons: impl IntoIterator<Item = &'static str>) {
        reasons.into_iter().for_each(|reason| self.bad_rows.add(reason, 0));
    }

    /// Shows the counters of these reasons for failed delivery reports from the start, at zero.
    pub fn expect_publish_failures(&self, reasons: impl IntoIterator<Item = &'static str>) {
        reasons.into_iter().for_each(|reason| self.publish_failures.add(reason, 0));
    }

    /// Shows the counters of these kinds of ignored changes from the start, at zero.
    pub fn expect_ignored(&self, kinds: impl IntoIterator<Item = &'static str>) {
        kinds.into_iter().for_each(|kind| self.ignored.add(kind, 0));
    }

    /// A row was not published.
    pub fn bad_row(&self, reason: &str) {
        self.bad_rows.add(reason, 1);
    }

    /// `n` changes published nothing by design.
    pub fn ignored(&self, kind: &str, n: u64) {
        self.ignored.add(kind, n);
    }

    /// `n` delivery reports carried this error.
    pub fn publish_failure(&self, reason: &str, n: u64) {
        self.publish_failures.add(reason, n);
    }

    /// A lost connection was opened again.
    pub fn reconnect(&self, peer: Peer) {
        let counter = match peer {
            Peer::Postgres => &self.postgres_reconnects,
            Peer::Destination => &self.destination_reconnects,
        };
        counter.fetch_add(1, Relaxed);
    }

    /// The relay has sent a status update.
    pub fn status_sent(&self, now: Instant) {
        self.status_sent.set(self.since_start(now));
    }

    /// Sets the last error, for people. `None`: it is over.
    pub fn set_last_error(&self, text: Option<String>) {
        *lock(&self.last_error) = text;
    }

    /// Sets why some rows are in no slot although the relay streams, for people. `None`: all rows are in a slot.
    pub fn set_publication_gap(&self, text: Option<String>) {
        *lock(&self.publication_gap) = text;
    }

    /// Sets which row Postgres has failed to send again and again, for people. `None`: the stream goes on.
    pub fn set_unsent_row(&self, text: Option<String>) {
        *lock(&self.unsent_row) = text;
    }

    /// Sets why the relay has stopped for good, for people, and the fix.
    pub fn set_stopped(&self, text: String, hint: Option<Remedy>) {
        self.set_last_error(Some(text));
        *lock(&self.hint) = hint;
        self.set_blocked_on(None);
        self.set_state(State::Stopped);
    }

    /// The fix for the error that stopped the relay.
    pub fn hint(&self) -> Option<Remedy> {
        lock(&self.hint).clone()
    }

    /// Sets why the relay waits, for people, if it cannot fix the cause itself. `None`: it does not wait.
    pub fn set_blocked_on(&self, text: Option<String>) {
        *lock(&self.blocked_on) = text;
    }

    /// Sets the row whose record the destination does not take for an answer that is in no list. `None`: there is none.
    pub fn set_tried_alone(&self, row: Option<TriedRow>) {
        *lock(&self.tried_alone) = row;
    }

    /// Sets the server's figures about the slot.
    pub fn set_slot_figures(&self, figures: SlotFigures) {
        if let Some(end) = figures.wal_end {
            // The slot's own position may be that of another relay.
            let of_slot = Lsn::new(end.position.bytes().saturating_sub(figures.lag_bytes.unwrap_or(u64::MAX)));
            lock(&self.unpublished).wal_ends(end, self.confirmed().max(of_slot));
        }
        *lock(&self.slot_figures) = figures;
    }

    /// The query for the slot failed, so its figures are not known now. Old figures would mislead.
    pub fn slot_look_failed(&self) {
        self.slot_look_failures.fetch_add(1, Relaxed);
        self.set_slot_figures(SlotFigures::default());
    }

    /// Sets the running server that the stream comes from, by a text that identifies it. `None`: there is no stream.
    pub fn set_server(&self, server: Option<String>) {
        *lock(&self.reads_from) = server;
    }

    /// Sets why others on the network can read the stream, for people. `None`: they cannot.
    pub fn set_unencrypted(&self, reason: Option<String>) {
        *lock(&self.unencrypted) = reason;
    }

    /// Why others on the network can read the stream. `None`: they cannot.
    pub fn unencrypted(&self) -> Option<String> {
        lock(&self.unencrypted).clone()
    }

    /// The server that [`Metrics::set_server`] has set.
    pub fn server(&self) -> Option<String> {
        lock(&self.reads_from).clone()
    }

    /// The position that [`Metrics::set_positions`] has set as confirmed.
    pub fn confirmed(&self) -> Lsn {
        Lsn::new(self.confirmed.load(Relaxed))
    }

    /// The bytes of key and value that were acknowledged since the start.
    pub fn event_bytes_total(&self) -> u64 {
        self.event_bytes.load(Relaxed)
    }

    /// The number of records that were acknowledged since the start.
    pub fn events_total(&self) -> u64 {
        self.topics.total()
    }

    /// The number of records that were acknowledged since the start, by topic. Topics beyond the hundredth count as `other`.
    pub fn topic_totals(&self) -> BTreeMap<String, u64> {
        self.topics.counts()
    }

    /// The number of rows that were not published since the start, by reason.
    pub fn bad_row_totals(&self) -> BTreeMap<String, u64> {
        self.bad_rows.counts()
    }

    /// The number of records that are enqueued and not acknowledged, and their bytes of key, value and headers.
    pub fn in_flight(&self) -> (u64, u64) {
        (self.in_flight_records.load(Relaxed), self.in_flight_bytes.load(Relaxed))
    }

    /// The latencies of the transactions that were delivered since the start, for [`Latencies::since`].
    pub fn latencies(&self) -> Latencies {
        self.latency.now()
    }

    /// The server's last figures about the slot.
    pub fn slot_figures(&self) -> SlotFigures {
        lock(&self.slot_figures).clone()
    }

    fn since_start(&self, at: Instant) -> Duration {
        at.saturating_duration_since(self.start)
    }

    /// The time since `stamp` was set. `None`: it is not set.
    fn age(&self, stamp: &Stamp, now: Instant) -> Option<Duration> {
        Some(self.since_start(now).saturating_sub(stamp.get()?))
    }

    /// The problem to show: the obstacle if there is one, or else the row that Postgres does not send, or else the last error, or else the gap in the publication.
    pub fn problem(&self) -> Option<String> {
        let first = |text: &Mutex<Option<String>>| lock(text).clone();
        let obstacle = first(&self.blocked_on).or_else(|| first(&self.unsent_row));
        obstacle.or_else(|| first(&self.last_error)).or_else(|| first(&self.publication_gap))
    }

    /// The problem and its fix, as one text.
    pub fn problem_with_hint(&self) -> Option<String> {
        let text = self.problem()?;
        Some(self.hint().map_or_else(|| text.clone(), |hint| format!("{text}; hint: {hint}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metrics() -> (Metrics, Instant) {
        let start = Instant::now();
        (Metrics::new("orders", "outbox_pub", start), start)
    }

    #[test]
    fn each_state_survives_its_way_through_the_atomic() {
        let (metrics, _) = metrics();
        assert_eq!(metrics.state(), State::Connecting);
        for state in State::ALL {
            metrics.set_state(state);
            assert_eq!(metrics.state(), state);
        }
    }

    #[test]
    fn a_topic_keeps_its_place() {
        let (metrics, _) = metrics();
        let first = metrics.topic("a");
        assert_ne!(metrics.topic("b"), first);
        assert_eq!(metrics.topic("a"), first);
    }

    #[test]
    fn topics_beyond_the_hundredth_share_one_place() {
        let (metrics, now) = metrics();
        let indices: Vec<u16> = (0..103).map(|n| metrics.topic(&format!("t{n}"))).collect();
        for &index in &indices {
            metrics.acknowledged(index, 2, 10, now);
        }
        let counts = metrics.topics.counts();
        assert_eq!(counts.len(), 101);
        assert_eq!(counts["t99"], 2);
        assert_eq!(counts["other"], 6);
        assert_eq!(metrics.events_total(), 206);
    }

    #[test]
    fn a_topic_named_other_counts_with_the_others() {
        let (metrics, now) = metrics();
        metrics.acknowledged(metrics.topic("other"), 1, 1, now);
        metrics.acknowledged(u16::MAX, 1, 1, now);
        assert_eq!(metrics.topics.counts(), BTreeMap::from([("other".to_owned(), 2)]));
    }

    #[test]
    fn what_is_expected_appears_with_0_and_loses_no_count() {
        let (metrics, _) = metrics();
        metrics.bad_row("not_utf8");
        metrics.expect_bad_rows(["not_utf8", "updated"]);
        assert_eq!(metrics.bad_row_totals(), BTreeMap::from([("not_utf8".to_owned(), 1), ("updated".to_owned(), 0)]));
    }

    #[test]
    fn a_quantile_lies_within_its_bucket() {
        let (metrics, _) = metrics();
        assert_eq!(metrics.latencies().quantile(0.5), None);
        for _ in 0..99 {
            metrics.transaction_delivered(Duration::from_millis(4));
        }
        metrics.transaction_delivered(Duration::from_millis(700));
        let before = metrics.latencies();
        let millis = |latencies: Latencies, share| latencies.quantile(share).unwrap().as_millis();
        assert!((2..=5).contains(&millis(before, 0.5)) && (2..=5).contains(&millis(before, 0.99)));
        assert!((500..=1000).contains(&millis(before, 0.999)));
        metrics.transaction_delivered(Duration::from_secs(90));
        assert_eq!(millis(metrics.latencies().since(before), 0.5), 60_000);
    }

    #[test]
    fn a_time_before_the_start_counts_as_the_start() {
        let start = Instant::now();
        let metrics = Metrics::new("s", "p", start + Duration::from_secs(5));
        metrics.status_sent(start);
        assert_eq!(metrics.age(&metrics.status_sent, start + Duration::from_secs(7)), Some(Duration::from_secs(2)));
    }
}
