//! Kafka, by librdkafka: idempotent producers, served on the thread that enqueues.
//!
//! ```text
//!  record ──► its partition (chosen here) ──► the partition's state and queue ──► producer 0 … n, 5 requests in flight
//!                                                        ▲                   └──► the search producer, one request at a time
//!                                                        └── what failed, in order ◄── reports
//! ```
//!
//! In: records. Out: delivery reports, in runs of equal tokens; refusals of single records. [`partitions`] decides which record may be
//! handed to a producer: never two requests under way for a partition that may not know the producer. Several producers share the
//! partitions, and each partition always has the same one. A broker answers the requests of a connection one after the other, and
//! librdkafka puts one partition into each request. So at a distance, more producers have more records under way.
//!
//! A refused batch ends its producer (`enable.gapless.guarantee`), so that no record behind it gets in. The sink waits for the reports of
//! that producer, starts a new one, and hands it the failed records again. The other partitions lose a round trip, and no record with a
//! known outcome repeats. A parked sink is one all of whose producers have ended at once. With exactly once there is one producer, and a failure is that of its transaction. The records of a refused batch go in
//! smaller batches in the next transactions, until the record at fault is known.
//!
//! Records of a topic whose partitions are not known wait here, in order, while the cluster is asked on a thread of its own: for all such
//! topics together. Records of other topics go on.
//!
//! Invariants: the records in flight never exceed `--max-in-flight`, unless a single larger record goes alone; a client gets a topic's first
//! record only after the cluster has said that the topic exists; no client ends on this thread.
//!
//! | file or folder | what |
//! |---|---|
//! | `destination`, `config/`, `login/` | the settings: properties, tokens and passwords |
//! | `producers/` | the producers, their topic handles and flushes |
//! | `partitions/` | which record may be handed over, and the search for a refused one |
//! | `metadata` | questions to the cluster, and what the answers mean |
//! | `questions`, `describe` | the thread that asks for topics; the request for many of them |
//! | `health`, `watch` | what reports and answers say of the cluster; the thread that asks whether it answers |
//! | `topics`, `partitioner` | the known topics, and the choice of a record's partition |
//! | `callbacks/` | librdkafka's reports, errors and log lines; new producers for those that ended |
//! | `errors`, `auth_state` | classes and labels of errors; whether brokers accept the credentials |
//! | `transactions`, `progress`, `replicas` | exactly once |
//! | `check/`, `dead_letters`, `marks`, `scratch` | `walrelay check`, `dead-letters`, `bench` |
//! | `admin`, `retire`, `tools` | creates and describes topics; ends clients; the commands of Kafka's tools that hints print |
//!
//! Specification: librdkafka's INTRODUCTION.md, "Idempotent Producer"; KIP-98, KIP-360.

mod admin;
mod auth_state;
mod callbacks;
mod check;
mod config;
mod dead_letters;
mod describe;
mod destination;
mod errors;
mod health;
mod login;
mod marks;
mod metadata;
mod partitioner;
pub mod partitions;
mod producers;
mod progress;
mod questions;
mod reader;
mod replicas;
mod retire;
mod scratch;
mod tools;
mod topics;
mod transactions;
mod watch;

pub use config::{KafkaSettings, SettingsError};
pub use destination::KIND;
#[cfg(test)]
pub(super) use errors::remedied;
pub use partitions::RECORD_OVERHEAD_BYTES;

use super::hold::Hold;
use super::{
    Enqueue, Failure, FailureClass, InFlight, Initialized, Owner, Reach, Record, RefusalId, Report, Resolution, Rows,
    Sink, Tag, TriedAlone,
};
use crate::sink::sockets::Sockets;
use callbacks::{Reported, take_reports};
use check::probe;
use health::ClusterHealth;
use metadata::advertised;
use partitions::Partitions;
use producers::{Client, Producers};
use questions::Questions;
use rdkafka::producer::Producer as _;
use retire::{purge_all, retire};
use std::time::{Duration, Instant};
use topics::Topics;
use transactions::Transactions;
use watch::{ClusterAnswer, Watch};

/// The name of the kind, and of its side in a check.
const NAME: &str = "kafka";

const _: () = assert!(usize::BITS == 64, "a ticket must fit into a pointer");

/// How long the sink waits for an answer of the cluster before it does other things.
const METADATA_PATIENCE: Duration = Duration::from_millis(100);

/// Whether the sink's producers may send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SinkState {
    Open,
    /// The producers are purged and get nothing any more, and the sink has their records, until [`Sink::unpark`].
    Parked,
    /// The producers are purged, and the records are forgotten. The sink takes nothing before [`Sink::restart`].
    Closed,
}

/// The sink of Kafka.
pub struct KafkaSink {
    settings: KafkaSettings,
    /// With transactions, there is one.
    producers: Producers,
    topics: Topics,
    partitions: Partitions,
    /// Producers that have ended and still have records in flight, and since when the sink waits for their reports.
    retired: Vec<(Client, Instant)>,
    sockets: Sockets,
    hold: Hold,
    /// Whether a record's time is its row's, so that the row is at fault if brokers refuse it.
    times_are_rows: bool,
    state: SinkState,
    /// The time of the last poll.
    now: Instant,
    /// An empty list for reports, whose memory is used again.
    reports: Vec<Reported>,
    /// The question about topics that is under way.
    questions: Questions,
    /// Asks whether the cluster answers.
    watch: Watch,
    health: ClusterHealth,
    transactions: Transactions,
}

impl KafkaSink {
    /// Starts the producers, which begin to connect.
    ///
    /// # Errors
    /// librdkafka refuses the settings.
    pub fn new(settings: KafkaSettings) -> Result<Self, SettingsError> {
        let producers = settings.producers;
        Self::with_producers(settings, producers)
    }

    /// Starts one producer, which writes records in transactions.
    ///
    /// # Errors
    /// As [`KafkaSink::new`].
    pub fn in_transactions(settings: KafkaSettings) -> Result<Self, SettingsError> {
        Ok(Self { transactions: Transactions::default(), ..Self::with_producers(settings, 1)? })
    }

    fn with_producers(settings: KafkaSettings, count: u8) -> Result<Self, SettingsError> {
        let (producers, now) = (Producers::new(&settings, count)?, Instant::now());
        // A sink that ended on this thread may have left reports, whose tickets are not this sink's.
        take_reports(&mut Vec::new());
        Ok(Self {
            topics: Topics::new(settings.partitioner(), count),
            partitions: Partitions::default(),
            sockets: Sockets::to(ports(&settings.brokers)),
            hold: Hold::default(),
            times_are_rows: true,
            state: SinkState::Open,
            questions: Questions::new(&settings),
            watch: Watch::new(&settings, now),
            settings,
            producers,
            retired: Vec::new(),
            now,
            reports: Vec::new(),
            health: ClusterHealth::new(now),
            transactions: Transactions::unused(),
        })
    }

    /// Whether a record of `bytes` fits. A record above the whole limit goes alone.
    #[inline]
    fn has_room(&self, bytes: u64) -> bool {
        let InFlight { records, bytes: memory, .. } = self.partitions.in_flight();
        records == 0 || memory + bytes + (records + 1) * RECORD_OVERHEAD_BYTES <= self.settings.max_in_flight
    }

    /// Takes a record for the partition with this index.
    #[inline]
    fn enqueue_at(&mut self, at: u32, record: &Record<'_>, tag: Tag) -> Enqueue {
        match self.transactions.open(self.producers.first()) {
            Ok(true) => {}
            Ok(false) => return Enqueue::Full,
            Err(failure) => return Enqueue::Blocked(failure),
        }
        self.first_in_flight();
        let mut producers = self.producers.with(&self.topics);
        self.partitions.enqueue(at, record, tag, self.now, &mut producers)
    }

    /// A record is about to be taken. If none is in flight, no report of an earlier one is waited for.
    #[inline]
    fn first_in_flight(&mut self) {
        if self.partitions.in_flight().records == 0 {
            self.now = Instant::now();
            self.note_report();
        }
    }

    /// Replaces all producers, which end, with other ones. All records in flight are forgotten.
    fn replace(&mut self, fresh: Producers) {
        let old = std::mem::replace(&mut self.producers, fresh);
        old.into_clients().chain(self.retired.drain(..).map(|(client, _)| client)).for_each(retire);
        self.forget();
    }

    /// All producers, with those that have ended and still have records in flight.
    fn clients(&self) -> impl Iterator<Item = &Client> {
        self.producers.all().chain(self.retired.iter().map(|(client, _)| client))
    }

    /// Purges the records of all producers: no record leaves the process any more, nor the kernel.
    fn purge(&self) {
        self.sockets.empty_at_close();
        purge_all(self.clients().map(Client::shared));
        self.sockets.reset();
    }

    /// Forgets all records in flight.
    fn forget(&mut self) {
        take_reports(&mut Vec::new());
        self.partitions.forget(self.now);
        self.topics.forget();
        self.questions.forget();
        self.health.forget();
    }
}

/// The ports of bootstrap servers.
fn ports(brokers: &str) -> impl Iterator<Item = u16> {
    brokers.split(',').filter_map(|broker| probe::address(broker).rsplit_once(':')?.1.parse().ok())
}

impl Sink for KafkaSink {
    fn reach(&mut self, patience: Duration) -> Reach {
        match self.metadata(patience) {
            Ok(metadata) => {
                self.producers.first().context().recovered();
                Reach::There(probe::unreachable(&self.settings.brokers, &advertised(&metadata)))
            }
            Err(failure) if failure.class == FailureClass::LogIn => Reach::Refused(failure),
            Err(failure) => Reach::Silent(failure),
        }
    }

    fn is_reachable(&mut self) -> bool {
        self.look(Instant::now()).is_some()
    }

    fn try_enqueue(&mut self, record: &Record<'_>, tag: Tag) -> Enqueue {
        if self.state != SinkState::Open || !self.has_room(record.held_bytes() as u64) {
            return Enqueue::Full;
        }
        if let Some(failure) = errors::of_headers(record) {
            return Enqueue::Bad(failure);
        }
        if let Some(failure) = self.partitions.waits_alone(tag.origin, self.now) {
            return Enqueue::Blocked(failure.clone());
        }
        if !self.topics.is_last(record.topic) && !self.topics.turn_to(record.topic) {
            return self.take_unknown(record, tag);
        }
        match self.choose(record) {
            Ok(at) => self.enqueue_at(at, record, tag),
            Err(outcome) => outcome,
        }
    }

    fn poll(&mut self, each: &mut dyn FnMut(Report)) {
        self.now = Instant::now();
        match self.state {
            SinkState::Open => {}
            SinkState::Parked => {
                // The purge's reports bring the records back into their partitions' queues.
                self.serve(each);
                return;
            }
            SinkState::Closed => return,
        }
        if self.partitions.in_flight().records > 0 {
            self.sockets.look(self.now);
        }
        if self.serve(each) {
            self.note_report();
        } else if self.partitions.in_flight().records > 0 {
            self.remind();
        }
        if self.health.is_lost() {
            self.fatal().into_iter().for_each(|failure| each(Report::Failed(failure)));
        }
        self.serve_questions(each);
        if !self.transactions.are_used() {
            self.renew(each);
        }
        let mut producers = self.producers.with(&self.topics);
        let is_urgent = self.partitions.advance(self.now, &mut producers, each);
        if is_urgent {
            self.producers.flush();
        }
        self.producers.urge(self.now, is_urgent);
        self.log_events();
        self.ask_again();
        self.given_up().into_iter().for_each(|failure| each(Report::Failed(failure)));
    }

    fn resolve(&mut self, refusal: RefusalId, resolution: Resolution<'_>) -> Enqueue {
        let Some((at, target)) = self.partitions.held_at(refusal) else { return Enqueue::Taken };
        if self.state == SinkState::Parked && matches!(resolution, Resolution::ReplaceWith(..)) {
            // It may be handed over at once.
            return Enqueue::Full;
        }
        let to = match resolution {
            Resolution::ReplaceWith(record, _) if record.topic != self.topics.name(target.topic) => {
                match self.choose_or_wait(record) {
                    Ok(to) => to,
                    Err(outcome) => return outcome,
                }
            }
            Resolution::Retry => {
                // The topic may have been deleted, or recreated.
                self.topics.retry(target.topic, self.now);
                at
            }
            Resolution::ReplaceWith(..) | Resolution::Skip => at,
        };
        let mut producers = self.producers.with(&self.topics);
        self.partitions.resolve(refusal, resolution, to, self.now, &mut producers)
    }

    fn in_flight(&self) -> InFlight {
        self.partitions.in_flight_by_state()
    }

    /// Flushes the producers: see `producers::Client`.
    fn on_idle(&mut self, rows: Rows) {
        if self.partitions.in_flight().records > 0 {
            self.producers.flush();
            if rows == Rows::Live {
                self.partitions.flushed();
            }
        }
    }

    /// Purges the records of all producers, in librdkafka's queues and in the kernel.
    fn close(&mut self) {
        if self.state == SinkState::Closed {
            return;
        }
        self.state = SinkState::Closed;
        self.purge();
        self.forget();
    }

    /// Purges as [`KafkaSink::close`] does. The producers that were purged stay until [`KafkaSink::unpark`], and get nothing any more:
    /// polls bring the records back from them.
    fn park(&mut self) {
        if self.state == SinkState::Open && !self.transactions.are_used() {
            self.state = SinkState::Parked;
            self.purge();
        }
    }

    fn unpark(&mut self) -> Result<(), Failure> {
        if self.state == SinkState::Parked {
            self.replace_purged()?;
            self.state = SinkState::Open;
            self.note_report();
        }
        Ok(())
    }

    /// The relay closes the sink in time. The hold bounds how long the sink's questions may take.
    fn hold_until(&mut self, until: Option<Duration>) {
        self.hold.set(until);
    }

    fn restart(&mut self) -> Result<(), Failure> {
        self.close();
        if let Some(failure) = self.given_up() {
            return Err(failure);
        }
        if self.producers.first().client().fatal_error().is_some() {
            // Another relay may have committed since.
            self.transactions.certain = false;
        }
        let fresh = match self.transactions.restart(&self.settings)? {
            Some(in_transactions) => in_transactions,
            None => Producers::new(&self.settings, self.producers.count()).map_err(errors::client)?,
        };
        self.replace(fresh);
        self.state = SinkState::Open;
        self.note_report();
        Ok(())
    }

    fn blocked(&self) -> Option<Failure> {
        // While a record is being sent again, its partition does not rest.
        let others = self.health.blocked().filter(|_| self.partitions.in_flight().records > 0);
        self.refusal().or_else(|| self.partitions.blocked().or(others).cloned())
    }

    fn tried_alone(&self) -> Option<TriedAlone> {
        self.partitions.tried_alone().cloned()
    }

    fn times_are_rows(&mut self, they_are: bool) {
        self.times_are_rows = they_are;
    }

    fn problem(&self) -> Option<String> {
        self.producers.first().context().problem()
    }

    fn producers(&self) -> Option<u8> {
        Some(self.producers.count())
    }

    fn transaction_timeout(&self) -> Option<Duration> {
        self.transactions.are_used().then(|| self.settings.transaction_timeout())
    }

    fn prepare(&mut self) -> Result<bool, Failure> {
        let Some(ClusterAnswer { brokers, .. }) = self.look(Instant::now()) else { return Ok(false) };
        progress::make(&self.settings, brokers)
    }

    fn init_transactions(&mut self, owner: &Owner) -> Result<Initialized, Failure> {
        self.take_over(owner)
    }

    fn commit(&mut self, key: &str, value: &str) -> Result<bool, Failure> {
        self.commit_progress(key, value)
    }

    fn abandon(&mut self) {
        self.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lsn::{Lsn, Position};
    use crate::sink::{Content, Origin, Token};
    use rdkafka::mocking::MockCluster;
    use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
    use std::time::Instant;

    fn record(topic: &str) -> Record<'_> {
        Record {
            topic,
            key: Some(b"k"),
            value: Some(b"v"),
            headers: &[],
            timestamp_millis: 1,
            partition: None,
            content: Content::Unknown,
        }
    }

    fn sink(brokers: &str) -> KafkaSink {
        KafkaSink::new(KafkaSettings::new(brokers, "walrelay", &[], 1 << 20).unwrap()).unwrap()
    }

    #[test]
    fn a_cluster_that_takes_its_time_to_answer_is_not_taken_for_one_that_does_not() {
        let cluster = MockCluster::new(1).unwrap();
        cluster.create_topic("orders", 1, 1).unwrap();
        cluster.broker_round_trip_time(-1, Duration::from_millis(300)).unwrap();
        let mut sink = sink(&cluster.bootstrap_servers());
        let token = Tag { token: Token { transaction: 0, tick: 0, topic: 0 }, origin: Origin::default() };
        assert!(matches!(sink.try_enqueue(&record("orders"), token), Enqueue::Taken));
        let until = Instant::now() + Duration::from_secs(20);
        while sink.in_flight().records > 0 {
            assert!(Instant::now() < until, "{:?} {:?}", sink.problem(), sink.blocked());
            sink.poll(&mut |report| assert!(matches!(report, Report::Delivered(_)), "{report:?}"));
        }
    }

    /// The broker refuses the only record with this code once. Whether it was named, and what became of it.
    fn refused_once(code: RDKafkaRespErr) -> (bool, u32) {
        let cluster = MockCluster::new(1).unwrap();
        cluster.create_topic("orders", 1, 1).unwrap();
        cluster.request_errors(RDKafkaApiKey::Produce, &[code]);
        let mut sink = sink(&cluster.bootstrap_servers());
        let origin = Origin { position: Position { final_lsn: Lsn::new(7), ordinal: 0 }, ..Origin::default() };
        let tag = Tag { token: Token { transaction: 0, tick: 0, topic: 0 }, origin };
        let until = Instant::now() + Duration::from_secs(30);
        while !matches!(sink.try_enqueue(&record("orders"), tag), Enqueue::Taken) {
            assert!(Instant::now() < until, "{:?}", sink.problem());
        }
        let (mut delivered, mut is_named) = (0, false);
        while delivered == 0 && Instant::now() < until {
            sink.poll(&mut |report| match report {
                Report::Delivered(run) => delivered += run.records,
                other @ (Report::Refused(_) | Report::Failed(_)) => panic!("{code:?}: {other:?}"),
            });
            is_named |= sink.tried_alone().is_some_and(|tried| tried.origin == origin && tried.topic == "orders");
            std::thread::sleep(Duration::from_millis(5));
        }
        (is_named, delivered)
    }

    #[test]
    fn a_code_that_is_in_no_list_costs_no_row_and_names_the_one_that_is_tried() {
        use RDKafkaRespErr as Code;
        let codes = [
            Code::RD_KAFKA_RESP_ERR_UNKNOWN,
            Code::RD_KAFKA_RESP_ERR_INVALID_REQUEST,
            Code::RD_KAFKA_RESP_ERR_POLICY_VIOLATION,
            Code::RD_KAFKA_RESP_ERR_OPERATION_NOT_ATTEMPTED,
            Code::RD_KAFKA_RESP_ERR_UNSUPPORTED_COMPRESSION_TYPE,
        ];
        std::thread::scope(|threads| {
            let tried = codes.map(|code| (code, threads.spawn(move || refused_once(code))));
            for (code, thread) in tried {
                assert_eq!(thread.join().unwrap(), (true, 1), "{code:?}");
            }
        });
    }

    #[test]
    fn a_time_that_is_not_the_rows_is_replaced_and_no_fault_of_the_row() {
        let cluster = MockCluster::new(1).unwrap();
        cluster.create_topic("orders", 1, 1).unwrap();
        let refused = RDKafkaRespErr::RD_KAFKA_RESP_ERR_INVALID_TIMESTAMP;
        cluster.request_errors(RDKafkaApiKey::Produce, &[refused]);
        let mut sink = sink(&cluster.bootstrap_servers());
        sink.times_are_rows(false);
        let tag = Tag { token: Token { transaction: 0, tick: 0, topic: 0 }, origin: Origin::default() };
        let until = Instant::now() + Duration::from_secs(30);
        while !matches!(sink.try_enqueue(&record("orders"), tag), Enqueue::Taken) {
            assert!(Instant::now() < until, "{:?}", sink.problem());
        }
        let (mut delivered, mut words) = (0, None);
        while delivered == 0 && Instant::now() < until {
            sink.poll(&mut |report| match report {
                Report::Delivered(run) => delivered += run.records,
                other @ (Report::Refused(_) | Report::Failed(_)) => panic!("{other:?}"),
            });
            words = words.or_else(|| sink.blocked());
        }
        assert!(delivered == 1 && words.is_some_and(|it| it.class == FailureClass::Environment));
    }

    #[test]
    fn live_rows_wait_for_the_answers_of_those_before_them_and_a_backlogs_do_not() {
        for (rows, waits) in [(Rows::Backlog, false), (Rows::Live, true)] {
            let cluster = MockCluster::new(1).unwrap();
            cluster.create_topic("orders", 1, 1).unwrap();
            let mut sink = sink(&cluster.bootstrap_servers());
            let token = Tag { token: Token { transaction: 0, tick: 0, topic: 0 }, origin: Origin::default() };
            let until = Instant::now() + Duration::from_mins(1);
            let (mut taken, mut delivered) = (false, 0);
            while delivered == 0 && Instant::now() < until {
                taken = taken || matches!(sink.try_enqueue(&record("orders"), token), Enqueue::Taken);
                sink.on_idle(Rows::Live);
                sink.poll(&mut |report| match report {
                    Report::Delivered(run) => delivered += run.records,
                    other @ (Report::Refused(_) | Report::Failed(_)) => panic!("{other:?}"),
                });
            }
            // Without a poll nothing counts as answered.
            (0..10).for_each(|_| assert!(matches!(sink.try_enqueue(&record("orders"), token), Enqueue::Taken)));
            sink.on_idle(rows);
            assert!(matches!(sink.try_enqueue(&record("orders"), token), Enqueue::Taken));
            // At 0 the first record waited for its partition.
            assert_eq!(sink.partitions.is_open(1), !waits, "{rows:?}, {delivered} delivered before");
        }
    }

    #[test]
    fn a_parked_sink_sends_nothing_and_goes_on_in_order_with_all_that_it_has() {
        let cluster = MockCluster::new(1).unwrap();
        cluster.create_topic("orders", 1, 1).unwrap();
        let mut sink = sink(&cluster.bootstrap_servers());
        let tag = |number| Tag { token: Token { transaction: number, tick: 0, topic: 0 }, origin: Origin::default() };
        let mut delivered = Vec::new();
        let serve = |sink: &mut KafkaSink, delivered: &mut Vec<u32>| {
            sink.on_idle(Rows::Live);
            sink.poll(&mut |report| match report {
                Report::Delivered(run) => delivered.push(run.token.transaction),
                other @ (Report::Refused(_) | Report::Failed(_)) => panic!("{other:?}"),
            });
        };
        let until = Instant::now() + Duration::from_mins(1);
        while !matches!(sink.try_enqueue(&record("orders"), tag(0)), Enqueue::Taken) {
            assert!(Instant::now() < until, "{:?}", sink.problem());
        }
        while delivered.is_empty() && Instant::now() < until {
            serve(&mut sink, &mut delivered);
        }
        cluster.broker_round_trip_time(-1, Duration::from_millis(700)).unwrap();
        // Some are under way then, and some wait.
        (1..=20).for_each(|number| assert!(matches!(sink.try_enqueue(&record("orders"), tag(number)), Enqueue::Taken)));
        serve(&mut sink, &mut delivered);
        sink.park();
        let parked = Instant::now();
        while parked.elapsed() < Duration::from_secs(3) {
            assert!(matches!(sink.try_enqueue(&record("orders"), tag(21)), Enqueue::Full));
            serve(&mut sink, &mut delivered);
        }
        assert_eq!((delivered.as_slice(), sink.in_flight().records), ([0].as_slice(), 20));
        sink.unpark().unwrap();
        assert!(matches!(sink.try_enqueue(&record("orders"), tag(21)), Enqueue::Taken));
        while sink.in_flight().records > 0 && Instant::now() < until {
            serve(&mut sink, &mut delivered);
        }
        assert_eq!(delivered, (0..=21).collect::<Vec<_>>(), "{:?}", sink.problem());
    }

    /// As a broker refuses each new producer of a user who may write nothing.
    #[test]
    fn a_producer_that_may_not_begin_names_the_topic_that_waits_and_another_one_delivers_once_it_may() {
        let cluster = MockCluster::new(1).unwrap();
        cluster.create_topic("orders", 1, 1).unwrap();
        let forbidden = RDKafkaRespErr::RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED;
        cluster.request_errors(RDKafkaApiKey::InitProducerId, &[forbidden; 6]);
        let mut sink = sink(&cluster.bootstrap_servers());
        let token = Tag { token: Token { transaction: 0, tick: 0, topic: 0 }, origin: Origin::default() };
        let until = Instant::now() + Duration::from_mins(1);
        let (mut words, mut taken, mut delivered) = (Vec::new(), false, 0);
        while delivered == 0 && Instant::now() < until {
            if !taken {
                match sink.try_enqueue(&record("orders"), token) {
                    Enqueue::Blocked(failure) => words.push(failure),
                    Enqueue::Taken => taken = true,
                    Enqueue::Full | Enqueue::Bad(_) => {}
                }
            }
            let mut refused = Vec::new();
            sink.poll(&mut |report| match report {
                Report::Failed(failure) => panic!("{failure}"),
                Report::Refused(it) => refused.push(it),
                Report::Delivered(run) => delivered += run.records,
            });
            for it in refused {
                assert_eq!(it.failure.class, FailureClass::Environment, "{}", it.failure);
                sink.resolve(it.id, Resolution::Retry);
            }
            words.extend(sink.blocked());
        }
        assert_eq!(delivered, 1, "{:?}", sink.problem());
        assert!(words.iter().any(|it| it.text.contains("topic orders") && it.text.contains("WRITE")), "{words:?}");
        assert!(sink.blocked().is_none());
    }
}
