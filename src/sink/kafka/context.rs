//! What librdkafka tells us: delivery reports, problems, log lines.
//!
//! Reports come on the thread that polls, one call each; they are gathered into runs of equal token and outcome, in a
//! place of that thread, so that a report takes no lock. Problems may come on any thread.

use super::lines::{Line, Lines};
use super::login::Login;
use super::refused::Refused;
use super::{failure, probe};
use crate::secret::CREDENTIALS_WITHIN;
use crate::sink::{Content, Failure, Header, OwnedRecord, Record};
use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::ConsumerContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Headers as _, Message};
use rdkafka::producer::{BaseProducer, DeliveryResult, NoCustomPartitioner, ProducerContext};
use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

thread_local! {
    /// Reports served by this thread's polls and not yet taken.
    static REPORTS: RefCell<Vec<Reported>> = const { RefCell::new(Vec::new()) };
    /// Log lines and errors served by this thread's polls.
    static EVENTS: Cell<u64> = const { Cell::new(0) };
}

/// One report, with the opaque that the record was handed over with.
pub(super) enum Reported {
    Delivered(u64),
    /// With the record, which librdkafka gives back.
    Failed(u64, Box<(OwnedRecord, Failure)>),
}

/// What has been reported since the last call, on this thread, in exchange for an empty list.
pub(super) fn take_reports(empty: &mut Vec<Reported>) {
    REPORTS.with_borrow_mut(|reports| std::mem::swap(reports, empty));
}

/// How many log lines and errors this thread's polls have served. One poll serves one of them, or one batch of reports.
pub(super) fn events() -> u64 {
    EVENTS.get()
}

/// Receives librdkafka's callbacks.
pub(super) struct Context {
    /// Bootstrap servers.
    brokers: String,
    shared: Arc<Problems>,
    /// An error came since it was asked whether it was fatal.
    failed: AtomicBool,
    /// The user wants to see lines for debugging.
    debugs: bool,
    login: Option<Login>,
}

/// What goes wrong between the clients of one destination and the cluster.
#[derive(Default)]
pub(super) struct Problems {
    /// The last problem, until something is delivered again.
    problem: Mutex<Option<Problem>>,
    /// Whether there is one: spares the good case the lock.
    failing: AtomicBool,
    /// A broker has answered.
    answered: AtomicBool,
    lines: Mutex<Lines>,
    /// Whether brokers take our credentials.
    refused: Mutex<Refused>,
}

struct Problem {
    code: Option<RDKafkaErrorCode>,
    text: String,
}

impl Context {
    pub(super) fn new(brokers: &str, shared: &Arc<Problems>, debugs: bool, login: Option<&Login>) -> Self {
        let (brokers, failed) = (brokers.to_owned(), AtomicBool::new(false));
        Self { brokers, shared: Arc::clone(shared), failed, debugs, login: login.cloned() }
    }

    /// Its producer gets each new token or password.
    pub(super) fn keep_logged_in(&self, producer: &Arc<BaseProducer<Self>>) {
        self.login.iter().for_each(|login| login.keep(producer));
    }

    /// Whether brokers take our credentials.
    pub(super) fn refused(&self) -> MutexGuard<'_, Refused> {
        self.shared.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether something is wrong.
    pub(super) fn has_problem(&self) -> bool {
        self.shared.failing.load(Ordering::Relaxed)
    }

    /// The broker has refused our credentials, or there are none: said at once, once. Whether it was said now.
    fn login_refused(&self, reason: &str) -> bool {
        self.login.iter().for_each(Login::refused);
        let is_new = self.refused().refused(reason, Instant::now());
        if is_new {
            tracing::error!(
                reason,
                gives_up_after = ?CREDENTIALS_WITHIN,
                "Kafka authentication failed; no data lost; retrying with credentials that are read again"
            );
        }
        is_new
    }

    /// Whether an error came since the last call: librdkafka knows whether it was fatal.
    pub(super) fn take_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed) && self.failed.swap(false, Ordering::Relaxed)
    }

    /// librdkafka's words; about an address that only the cluster itself has named, ours, with both addresses: to
    /// librdkafka it is a broker like any other.
    fn words(&self, code: Option<RDKafkaErrorCode>, reason: &str) -> String {
        let unreachable = matches!(code, Some(RDKafkaErrorCode::BrokerTransportFailure | RDKafkaErrorCode::Resolve));
        match probe::advertised(reason) {
            Some((address, error)) if unreachable && !probe::is_known(&self.brokers, address) => {
                probe::warning(&self.brokers, address, &error)
            }
            Some(_) | None => reason.to_owned(),
        }
    }

    pub(super) fn problem(&self) -> Option<String> {
        self.lock().as_ref().map(|problem| problem.text.clone())
    }

    pub(super) fn problem_code(&self) -> Option<RDKafkaErrorCode> {
        self.lock().as_ref().and_then(|problem| problem.code)
    }

    /// Something was delivered: whatever it was is over.
    pub(super) fn recovered(&self) {
        if self.shared.answered.load(Ordering::Relaxed) && !self.shared.failing.swap(false, Ordering::Relaxed) {
            return;
        }
        self.shared.answered.store(true, Ordering::Relaxed);
        self.refused().accepted();
        self.login.iter().for_each(Login::accepted);
        if let Some(problem) = self.lock().take() {
            tracing::info!(was = problem.text, "Kafka recovered");
        }
    }

    fn show(&self, facility: &str, message: &str) {
        match self.shared.lines.lock().unwrap_or_else(PoisonError::into_inner).take(Instant::now()) {
            Line::Dropped => return,
            Line::ShownAfter(dropped) => tracing::debug!(target: "walrelay::librdkafka", dropped, "too many log lines"),
            Line::Shown => {}
        }
        tracing::debug!(target: "walrelay::librdkafka", facility, "{message}");
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Problem>> {
        self.shared.problem.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientContext for Context {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        EVENTS.set(EVENTS.get() + 1);
        // Errors come again, with their code, by `error`.
        match level {
            RDKafkaLogLevel::Emerg | RDKafkaLogLevel::Alert | RDKafkaLogLevel::Critical => {
                tracing::warn!(target: "walrelay::librdkafka", facility, "{message}");
            }
            RDKafkaLogLevel::Error | RDKafkaLogLevel::Warning | RDKafkaLogLevel::Notice | RDKafkaLogLevel::Info => {
                self.show(facility, message);
            }
            RDKafkaLogLevel::Debug if self.debugs => self.show(facility, message),
            RDKafkaLogLevel::Debug => {}
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        EVENTS.set(EVENTS.get() + 1);
        let code = error.rdkafka_error_code();
        self.failed.store(true, Ordering::Relaxed);
        // Whoever enqueues or commits next is told what it is, and what follows from it: often enough nothing has failed.
        if matches!(code, Some(RDKafkaErrorCode::Fatal | RDKafkaErrorCode::GaplessGuarantee)) {
            tracing::debug!(reason, "the Kafka client has ended its work");
            return;
        }
        // A reader's way of saying that it has read everything; and a group that it never joins.
        if matches!(code, Some(RDKafkaErrorCode::PartitionEOF | RDKafkaErrorCode::GroupAuthorizationFailed)) {
            return;
        }
        let reason = self.words(code, reason);
        let was_said = failure::is_of_login(code) && self.login_refused(&reason);
        let mut problem = self.lock();
        if was_said || problem.is_some() {
            tracing::debug!(reason, "Kafka client error persists");
        } else {
            tracing::warn!(reason, "Kafka client error");
        }
        // "All brokers are down" follows the reason for it, and says less.
        if problem.is_none() || code != Some(RDKafkaErrorCode::AllBrokersDown) {
            self.shared.failing.store(true, Ordering::Relaxed);
            *problem = Some(Problem { code, text: reason });
        }
    }
}

impl ConsumerContext for Context {}

impl ProducerContext<NoCustomPartitioner> for Context {
    type DeliveryOpaque = usize;

    #[allow(clippy::as_conversions, reason = "an opaque is a pointer's room")]
    fn delivery(&self, result: &DeliveryResult<'_>, opaque: usize) {
        let opaque = opaque as u64;
        let report = match result {
            Ok(_) => Reported::Delivered(opaque),
            Err((error, message)) => {
                let failure = failure::of_report(message.topic(), error);
                Reported::Failed(opaque, Box::new((copy(message), failure)))
            }
        };
        REPORTS.with_borrow_mut(|reports| reports.push(report));
    }
}

/// The record that a message was made of.
pub(super) fn copy(message: &BorrowedMessage<'_>) -> OwnedRecord {
    let all = message.headers().into_iter().flat_map(|headers| headers.iter());
    let headers: Vec<Header<'_>> = all.map(|header| Header { name: header.key, value: header.value }).collect();
    OwnedRecord::of(&Record {
        topic: message.topic(),
        key: message.key(),
        value: message.payload(),
        headers: &headers,
        timestamp_millis: message.timestamp().to_millis().unwrap_or_default(),
        partition: Some(message.partition()),
        content: Content::Unknown,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdkafka::ClientConfig;
    use std::sync::mpsc;
    use std::time::Duration;

    /// Sends the codes of a client's errors.
    struct Codes(mpsc::Sender<Option<RDKafkaErrorCode>>);

    impl ClientContext for Codes {
        fn error(&self, error: KafkaError, _reason: &str) {
            let _over = self.0.send(error.rdkafka_error_code()).is_err();
        }
    }

    impl ProducerContext<NoCustomPartitioner> for Codes {
        type DeliveryOpaque = ();

        fn delivery(&self, _result: &DeliveryResult<'_>, _opaque: ()) {}
    }

    /// It also decides when librdkafka starts over from the bootstrap servers. `.cargo/config.toml` says what a build without it lacks.
    #[test]
    fn librdkafka_reports_that_all_brokers_are_down() {
        let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let (codes, errors) = mpsc::channel();
        let producer: BaseProducer<Codes> =
            ClientConfig::new().set("bootstrap.servers", nobody.to_string()).create_with_context(Codes(codes)).unwrap();
        let until = Instant::now() + Duration::from_secs(20);
        while !errors.try_iter().any(|code| code == Some(RDKafkaErrorCode::AllBrokersDown)) {
            assert!(
                Instant::now() < until,
                "librdkafka was built without its atomics: CFLAGS lacks -DHAVE_ATOMICS_32_ATOMIC=1"
            );
            producer.poll(Duration::from_millis(10));
        }
    }
}
