//! What librdkafka tells us: delivery reports, troubles, log lines.
//!
//! Reports come on the thread that polls, one call each; they are gathered into runs of equal token and outcome, in a
//! place of that thread, so that a report takes no lock. Troubles may come on any thread.

use super::lines::{Line, Lines};
use super::{failure, probe};
use crate::sink::{Failure, Token};
use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::ConsumerContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Message};
use rdkafka::producer::{DeliveryResult, NoCustomPartitioner, ProducerContext};
use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

thread_local! {
    /// Reports served by this thread's polls and not yet taken.
    static REPORTS: RefCell<Vec<Run>> = const { RefCell::new(Vec::new()) };
    /// Log lines and errors served by this thread's polls.
    static EVENTS: Cell<u64> = const { Cell::new(0) };
}

/// What has been reported since the last call, on this thread.
pub(super) fn take_reports() -> Vec<Run> {
    REPORTS.take()
}

/// Reports of one token that came in a row.
pub(super) struct Run {
    pub(super) token: Token,
    pub(super) records: u32,
    /// Their bytes of key and value.
    pub(super) bytes: u64,
    pub(super) outcome: Result<(), Failure>,
}

/// How many log lines and errors this thread's polls have served. One poll serves one of them, or one batch of reports.
pub(super) fn events() -> u64 {
    EVENTS.get()
}

/// Receives librdkafka's callbacks.
#[derive(Default)]
pub(super) struct Context {
    /// Bootstrap servers.
    brokers: String,
    /// The last trouble, until something is delivered again.
    trouble: Mutex<Option<Trouble>>,
    /// Whether there is one: spares the good case the lock.
    troubled: AtomicBool,
    lines: Mutex<Lines>,
}

struct Trouble {
    code: Option<RDKafkaErrorCode>,
    text: String,
}

impl Context {
    pub(super) fn new(brokers: &str) -> Self {
        Self { brokers: brokers.to_owned(), ..Self::default() }
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

    pub(super) fn trouble(&self) -> Option<String> {
        self.lock().as_ref().map(|trouble| trouble.text.clone())
    }

    pub(super) fn trouble_code(&self) -> Option<RDKafkaErrorCode> {
        self.lock().as_ref().and_then(|trouble| trouble.code)
    }

    /// Something was delivered: whatever it was is over.
    pub(super) fn recovered(&self) {
        if !self.troubled.swap(false, Ordering::Relaxed) {
            return;
        }
        if let Some(trouble) = self.lock().take() {
            tracing::info!(was = trouble.text, "Kafka answers again");
        }
    }

    fn show(&self, facility: &str, message: &str) {
        match self.lines.lock().unwrap_or_else(PoisonError::into_inner).take(Instant::now()) {
            Line::Dropped => return,
            Line::ShownAfter(dropped) => tracing::debug!(target: "walrelay::librdkafka", dropped, "too many log lines"),
            Line::Shown => {}
        }
        tracing::debug!(target: "walrelay::librdkafka", facility, "{message}");
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Trouble>> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
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
            RDKafkaLogLevel::Error
            | RDKafkaLogLevel::Warning
            | RDKafkaLogLevel::Notice
            | RDKafkaLogLevel::Info
            | RDKafkaLogLevel::Debug => self.show(facility, message),
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        EVENTS.set(EVENTS.get() + 1);
        let code = error.rdkafka_error_code();
        // Whoever enqueues or commits next is told what it is, and what follows from it: often enough nothing has failed.
        if code == Some(RDKafkaErrorCode::Fatal) {
            tracing::debug!(reason, "the Kafka client has ended its work");
            return;
        }
        // A reader's way of saying that it has read everything; and a group that it never joins.
        if matches!(code, Some(RDKafkaErrorCode::PartitionEOF | RDKafkaErrorCode::GroupAuthorizationFailed)) {
            return;
        }
        let reason = self.words(code, reason);
        let mut trouble = self.lock();
        if trouble.is_none() {
            tracing::warn!(reason, "trouble with Kafka");
        } else {
            tracing::debug!(reason, "trouble with Kafka goes on");
        }
        // "All brokers are down" follows the reason for it, and says less.
        if trouble.is_none() || code != Some(RDKafkaErrorCode::AllBrokersDown) {
            self.troubled.store(true, Ordering::Relaxed);
            *trouble = Some(Trouble { code, text: reason });
        }
    }
}

impl ConsumerContext for Context {}

impl ProducerContext<NoCustomPartitioner> for Context {
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, opaque: usize) {
        let token = Token::unpack(opaque as u64);
        REPORTS.with_borrow_mut(|runs| match result {
            Ok(message) => delivered(runs, token, bytes(message)),
            Err((error, message)) => runs.push(Run {
                token,
                records: 1,
                bytes: bytes(message),
                outcome: Err(failure::of_report(message.topic(), error)),
            }),
        });
    }
}

fn delivered(runs: &mut Vec<Run>, token: Token, bytes: u64) {
    match runs.last_mut() {
        Some(run) if run.token == token && run.outcome.is_ok() => {
            run.records += 1;
            run.bytes += bytes;
        }
        Some(_) | None => runs.push(Run { token, records: 1, bytes, outcome: Ok(()) }),
    }
}

fn bytes(message: &BorrowedMessage<'_>) -> u64 {
    (message.key_len() + message.payload_len()) as u64
}
