//! [`Context`]: librdkafka's callbacks, which bring delivery reports, errors and log lines.
//!
//! Reports come on the thread that polls, one call each. The callback adds them to a list of that thread, so that a report takes no lock.
//! Errors and log lines may come on any thread.

mod log_lines;
mod reports;

use super::auth_state::AuthState;
use super::check::probe;
use super::errors;
use super::login::Login;
use crate::secret::CREDENTIALS_WITHIN;
use crate::sink::{Content, Failure, FailureClass, Header, OwnedRecord, Record};
use log_lines::Lines;
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
    /// Reports that this thread's polls have brought and nobody has taken yet.
    static REPORTS: RefCell<Vec<Reported>> = const { RefCell::new(Vec::new()) };
    /// How many log lines and errors this thread's polls have brought.
    static EVENTS: Cell<u64> = const { Cell::new(0) };
}

/// A report, with the opaque number that went to librdkafka with the record.
pub(super) enum Reported {
    /// The offset is negative where librdkafka had no answer for the record itself, but for a later one.
    Delivered(u64, i64),
    /// The record was not delivered. librdkafka returns it.
    Failed(u64, Box<(OwnedRecord, Failure)>),
}

/// Takes this thread's reports since the last call, in exchange for an empty list.
pub(super) fn take_reports(empty: &mut Vec<Reported>) {
    REPORTS.with_borrow_mut(|reports| std::mem::swap(reports, empty));
}

/// How many log lines and errors this thread's polls have brought. One poll brings one of them, or one batch of reports.
pub(super) fn events() -> u64 {
    EVENTS.get()
}

/// Receives librdkafka's callbacks.
pub(super) struct Context {
    /// The bootstrap servers.
    brokers: String,
    shared: Arc<Problems>,
    /// An error has come since the last [`Context::take_failed`].
    failed: AtomicBool,
    /// Whether the user wants to see librdkafka's debug lines.
    debugs: bool,
    login: Option<Login>,
}

/// The problems between the clients of one destination and the cluster.
#[derive(Default)]
pub(super) struct Problems {
    /// The last problem, until the next delivery.
    problem: Mutex<Option<ClientProblem>>,
    /// Whether a broker has answered, and there was no problem since. It spares the good case the lock.
    is_well: AtomicBool,
    lines: Mutex<Lines>,
    /// Whether brokers accept the credentials.
    refused: Mutex<AuthState>,
}

struct ClientProblem {
    code: Option<RDKafkaErrorCode>,
    text: String,
}

impl Context {
    pub(super) fn new(brokers: &str, shared: &Arc<Problems>, debugs: bool, login: Option<&Login>) -> Self {
        let (brokers, failed) = (brokers.to_owned(), AtomicBool::new(false));
        Self { brokers, shared: Arc::clone(shared), failed, debugs, login: login.cloned() }
    }

    /// Gives the producer each new token or password.
    pub(super) fn keep_logged_in(&self, producer: &Arc<BaseProducer<Self>>) {
        self.login.iter().for_each(|login| login.keep(producer));
    }

    /// Whether brokers accept the credentials.
    pub(super) fn refused(&self) -> MutexGuard<'_, AuthState> {
        self.shared.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there may be a problem: there was one since the last answer of a broker, or none has answered yet.
    pub(super) fn may_have_problem(&self) -> bool {
        !self.shared.is_well.load(Ordering::Relaxed)
    }

    /// A broker has refused the credentials, or there are none. Logs the first refusal, and returns whether it logged.
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

    /// Whether an error has come since the last call. librdkafka knows whether it was fatal.
    pub(super) fn take_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed) && self.failed.swap(false, Ordering::Relaxed)
    }

    /// The text of an error. It is librdkafka's, unless the error is about an address that only the cluster has named: then it is
    /// walrelay's, with the bootstrap address as well.
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

    /// The failure of a question that the cluster has not answered, with the client's last problem: the error itself says "timed out" at
    /// most.
    pub(super) fn unanswered(&self, error: &KafkaError) -> Failure {
        let code = self.problem_code().or_else(|| error.rdkafka_error_code());
        let why = self.problem().unwrap_or_else(|| error.to_string());
        let text = format!("Kafka at {} does not answer: {why}", self.brokers);
        if errors::is_of_login(code) {
            return errors::refused_login(code, text);
        }
        Failure::new(FailureClass::Environment, errors::reason(code), text)
    }

    /// A record was delivered, or the cluster has answered: the problem is over.
    pub(super) fn recovered(&self) {
        if self.shared.is_well.load(Ordering::Relaxed) || self.shared.is_well.swap(true, Ordering::Relaxed) {
            return;
        }
        self.refused().accepted();
        self.login.iter().for_each(Login::accepted);
        if let Some(problem) = self.lock().take() {
            tracing::info!(was = problem.text, "Kafka recovered");
        }
    }

    fn show(&self, facility: &str, message: &str) {
        let decision = self.shared.lines.lock().unwrap_or_else(PoisonError::into_inner).take(Instant::now());
        let Some(dropped) = decision else { return };
        if dropped > 0 {
            tracing::debug!(target: "walrelay::librdkafka", dropped, "too many log lines");
        }
        tracing::debug!(target: "walrelay::librdkafka", facility, "{message}");
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<ClientProblem>> {
        self.shared.problem.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientContext for Context {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        EVENTS.set(EVENTS.get() + 1);
        // librdkafka also brings errors by `error`, with their code.
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
        // The next call that enqueues or commits returns this error. Often no record has failed.
        if matches!(code, Some(RDKafkaErrorCode::Fatal | RDKafkaErrorCode::GaplessGuarantee)) {
            tracing::debug!(reason, "the Kafka client has ended its work");
            return;
        }
        // A consumer reports the end of a partition as an error, and so it does a group that it never joins.
        if matches!(code, Some(RDKafkaErrorCode::PartitionEOF | RDKafkaErrorCode::GroupAuthorizationFailed)) {
            return;
        }
        let reason = self.words(code, reason);
        let was_said = errors::is_of_login(code) && self.login_refused(&reason);
        let mut problem = self.lock();
        if was_said || problem.is_some() {
            tracing::debug!(reason, "Kafka client error persists");
        } else {
            tracing::warn!(reason, "Kafka client error");
        }
        // "All brokers are down" comes after its reason, and says less.
        if problem.is_none() || code != Some(RDKafkaErrorCode::AllBrokersDown) {
            self.shared.is_well.store(false, Ordering::Relaxed);
            *problem = Some(ClientProblem { code, text: reason });
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
            Ok(message) => Reported::Delivered(opaque, message.offset()),
            Err((error, message)) => {
                let failure = errors::of_report(message.topic(), error);
                Reported::Failed(opaque, Box::new((copy(message), failure)))
            }
        };
        REPORTS.with_borrow_mut(|reports| reports.push(report));
    }
}

/// The record of a librdkafka message.
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

    /// A context that sends the codes of its client's errors.
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

    /// This report also makes librdkafka start over from the bootstrap servers. `.cargo/config.toml` says what a build without its atomics
    /// lacks.
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
