//! Records in Kafka transactions, for exactly once.
//!
//! ```text
//!  Foreign ──► Initializing ──► Checking ─────► Reading ──► Idle ──► Open ──► Committing ──► Idle …
//!              init_transactions  replicas of     progress    begin    progress record, commit
//!                                 __transaction_state
//! ```
//!
//! In: records and, at the end of each transaction, a progress record, in the same transaction. Out: the progress that was committed under
//! this name before. Blocking calls of librdkafka are made in slices, so that the caller can do other things meanwhile.
//! Specification: KIP-98; librdkafka's INTRODUCTION.md, "Transactional Producer".

use super::callbacks::Context;
use super::config::KafkaSettings;
use super::metadata::UNANSWERED;
use super::producers::{Producers, flush_for_a_millisecond};
use super::progress::{self, KeptProgress, PARTITION, ProgressReading, Read, SLICE, TOPIC};
use super::replicas::{Replicas, TRANSACTION_STATE};
use super::watch::ClusterAnswer;
use super::{KafkaSink, errors};
use crate::sink::{Committed, Failure, FailureClass, Initialized, Owner};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use std::time::{Duration, Instant};

/// How often the sink asks whether the progress topic exists, while it has no report of a progress record.
const ALIVE_EVERY: Duration = Duration::from_secs(1);

/// The event that a relay waits for in the phase `Checking`, for people.
const CHECKING: &str = "asking Kafka for the replicas of __transaction_state";

/// How long the last abort may take.
const ABANDON_WITHIN: Duration = Duration::from_secs(1);

/// The number that goes to librdkafka with a progress record. No ticket is this number, since the indexes of entries are smaller.
pub(super) const PROGRESS: u64 = u64::MAX;

/// The state of the sink's transactions.
#[derive(Default)]
pub(super) struct Transactions {
    phase: Phase,
    name: Option<String>,
    /// The topics that were checked by their replicas.
    pub(super) replicas: Replicas,
    /// When the sink last asked whether the progress topic exists.
    last_question: Option<Instant>,
    /// Whether every commit of this process was answered. Then no other relay has fenced its producer and committed.
    pub(super) certain: bool,
}

#[derive(Default)]
enum Phase {
    /// At least once: records are written without transactions.
    Unused,
    /// The transactions are another producer's, or nobody's.
    #[default]
    Foreign,
    Initializing,
    /// This producer has the transactions. The sink asks for the replicas of `__transaction_state`.
    Checking,
    Reading(Box<ProgressReading>),
    /// No transaction is open.
    Idle,
    Open,
    /// The progress record waits for its report. The commit follows.
    Committing {
        since: Instant,
        reported: Option<Result<(), Failure>>,
    },
}

impl Transactions {
    /// The state of a sink that writes records without transactions.
    pub(super) fn unused() -> Self {
        Self { phase: Phase::Unused, ..Self::default() }
    }

    /// Whether records are written in transactions.
    pub(super) fn are_used(&self) -> bool {
        !matches!(self.phase, Phase::Unused)
    }

    /// Whether the sink can take a record. Begins a transaction if none is open.
    pub(super) fn open(&mut self, producer: &BaseProducer<Context>) -> Result<bool, Failure> {
        match self.phase {
            Phase::Unused | Phase::Open => Ok(true),
            Phase::Idle => {
                producer.begin_transaction().map_err(|error| errors::of_call("begin a transaction", &error))?;
                self.phase = Phase::Open;
                Ok(true)
            }
            Phase::Foreign | Phase::Initializing | Phase::Checking | Phase::Reading(_) | Phase::Committing { .. } => {
                Ok(false)
            }
        }
    }

    fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Open | Phase::Committing { .. })
    }

    pub(super) fn progress_reported(&mut self, outcome: Result<(), Failure>) {
        if let Phase::Committing { reported, .. } = &mut self.phase {
            *reported = Some(outcome);
        }
    }

    /// A new producer for the last name. It has to go through all phases again.
    pub(super) fn restart(&mut self, settings: &KafkaSettings) -> Result<Option<Producers>, Failure> {
        if let Some(refused) = self.replicas.refused() {
            return Err(refused.clone());
        }
        let Some(name) = &self.name else { return Ok(None) };
        self.phase = Phase::Foreign;
        let producers = Producers::in_transactions(settings, name).map_err(errors::client)?;
        self.phase = Phase::Initializing;
        Ok(Some(producers))
    }
}

impl KafkaSink {
    pub(super) fn take_over(&mut self, owner: &Owner) -> Result<Initialized, Failure> {
        match std::mem::take(&mut self.transactions.phase) {
            Phase::Foreign => {
                self.transactions.name = Some(owner.name.clone());
                if let Some(producers) = self.transactions.restart(&self.settings)? {
                    self.replace(producers);
                    self.note_report();
                }
                Ok(Initialized::Pending { reason: None, answered: false })
            }
            Phase::Initializing => self.initialize(),
            Phase::Checking => self.check(),
            Phase::Reading(reading) => self.read(reading, owner),
            phase @ (Phase::Unused | Phase::Idle | Phase::Open | Phase::Committing { .. }) => {
                self.transactions.phase = phase;
                Ok(Initialized::Ready(Vec::new()))
            }
        }
    }

    /// Sets the phase, which the caller has to wait for.
    fn pending(&mut self, phase: Phase, reason: &str, answered: bool) -> Initialized {
        self.transactions.phase = phase;
        Initialized::Pending { reason: Some(reason.to_owned()), answered }
    }

    fn initialize(&mut self) -> Result<Initialized, Failure> {
        let outcome = self.producers.first().init_transactions(SLICE);
        self.producers.first().poll(Duration::ZERO);
        match outcome {
            Ok(()) => Ok(self.pending(Phase::Checking, CHECKING, true)),
            Err(error) if is_passing(&error) => {
                self.remind();
                if let Some(failure) = self.fatal() {
                    return Err(failure);
                }
                let answered = self.is_alive();
                let problem = self.producers.first().context().problem();
                let reason =
                    problem.unwrap_or_else(|| format!("Kafka's transaction coordinator does not answer yet: {error}"));
                Ok(self.pending(Phase::Initializing, &reason, answered))
            }
            Err(error) => Err(errors::of_call("take over its transactions", &error)),
        }
    }

    /// Whether brokers answer, even if the coordinator does not.
    fn is_alive(&mut self) -> bool {
        self.look(Instant::now()).is_some_and(|answer| answer.brokers > 0)
    }

    /// Checks `__transaction_state` by its replicas.
    fn check(&mut self) -> Result<Initialized, Failure> {
        let Some(ClusterAnswer { replicas, .. }) = self.look(Instant::now()) else {
            return Ok(self.pending(Phase::Checking, CHECKING, false));
        };
        match self.transactions.replicas.see(TRANSACTION_STATE, replicas, &self.settings) {
            Ok(()) => {
                let reading = Box::new(ProgressReading::new(&self.settings));
                Ok(self.pending(Phase::Reading(reading), progress::READING, true))
            }
            Err(failure) if failure.class == FailureClass::Environment => {
                Ok(self.pending(Phase::Checking, &failure.text, false))
            }
            Err(failure) => Err(failure),
        }
    }

    fn read(&mut self, mut reading: Box<ProgressReading>, owner: &Owner) -> Result<Initialized, Failure> {
        let brokers = self.look(Instant::now()).map_or(0, |answer| answer.brokers);
        let transactions = &mut self.transactions;
        let (committed, certain) = (owner.committed, transactions.certain);
        let make = committed == Committed::Nothing || committed == Committed::Confirmed && certain;
        match reading.read(&mut transactions.replicas, make, brokers)? {
            Read::Missing if committed == Committed::More && certain => Err(gone()),
            Read::Missing => Ok(Initialized::Missing),
            Read::Pending { answered } => {
                let reason = reading.reason();
                Ok(self.pending(Phase::Reading(reading), &reason, answered))
            }
            Read::Done(kept) => Ok(self.is_ours(kept, owner)),
        }
    }

    /// The transactions and the progress are this relay's.
    fn is_ours(&mut self, kept: KeptProgress, owner: &Owner) -> Initialized {
        (self.transactions.phase, self.transactions.certain) = (Phase::Idle, true);
        self.producers.first().context().recovered();
        let its = kept.into_iter().filter(|(key, _)| key.ends_with(&owner.keys_ending));
        Initialized::Ready(its.collect())
    }

    pub(super) fn commit_progress(&mut self, key: &str, value: &str) -> Result<bool, Failure> {
        let Self { transactions, producers, .. } = self;
        if matches!(transactions.phase, Phase::Idle) {
            transactions.open(producers.first())?;
        }
        match &mut transactions.phase {
            Phase::Unused => return Ok(true),
            Phase::Open => {
                #[allow(clippy::cast_possible_truncation, reason = "pointers are 64 bits wide, see above")]
                let record = BaseRecord::with_opaque_to(TOPIC, PROGRESS as usize);
                let record = record.key(key).payload(value).partition(PARTITION);
                match self.producers.first().send(record) {
                    Ok(()) => transactions.phase = Phase::Committing { since: Instant::now(), reported: None },
                    Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), _)) => return Ok(false),
                    Err((error, _)) => return Err(errors::of_call("write its progress", &error)),
                }
            }
            // The report counts, not librdkafka's count of messages in flight, which includes its log lines.
            Phase::Committing { reported: Some(Ok(())), .. } => return self.commit_reported(),
            Phase::Committing { reported: Some(Err(failure)), .. } => {
                return Err(if failure.class == FailureClass::Topic { gone() } else { failure.clone() });
            }
            Phase::Committing { since, reported: None } => {
                let now = Instant::now();
                let is_due = |at: Instant| now.saturating_duration_since(at) >= ALIVE_EVERY;
                if now.saturating_duration_since(*since) >= UNANSWERED && transactions.last_question.is_none_or(is_due)
                {
                    transactions.last_question = Some(now);
                    if self.why_missing(TOPIC).is_some() {
                        return Err(gone());
                    }
                }
            }
            Phase::Foreign | Phase::Initializing | Phase::Checking | Phase::Reading(_) | Phase::Idle => {
                return Err(errors::client("a transaction was to be committed that is not ours"));
            }
        }
        flush_for_a_millisecond(self.producers.first());
        Ok(false)
    }

    /// Commits the transaction. All its records have been reported.
    fn commit_reported(&mut self) -> Result<bool, Failure> {
        let outcome = self.producers.first().commit_transaction(SLICE);
        self.transactions.certain = outcome.is_ok();
        match outcome {
            Ok(()) => {
                self.transactions.phase = Phase::Idle;
                self.partitions.committed();
                self.producers.first().context().recovered();
                Ok(true)
            }
            Err(error) if is_passing(&error) => {
                self.remind();
                self.fatal().map_or(Ok(false), Err)
            }
            Err(error) => Err(errors::of_call("commit a transaction", &error)),
        }
    }

    /// The failure of an open transaction that takes nothing any more. librdkafka returns it to a second `begin_transaction`.
    #[cold]
    pub(super) fn why_transaction_ended(&self) -> Option<Failure> {
        let refused = || self.producers.first().begin_transaction().err();
        let error = self.transactions.is_open().then(refused).flatten()?;
        Some(errors::of_call("continue its transaction", &error))
    }

    pub(super) fn abort(&mut self) {
        if self.transactions.is_open()
            && let Err(error) = self.producers.first().abort_transaction(ABANDON_WITHIN)
        {
            tracing::warn!(%error, "Kafka abort failed; read_committed consumers wait for the transaction timeout");
        }
    }
}

/// Whether the same call may succeed later.
pub(super) fn is_passing(error: &KafkaError) -> bool {
    #[allow(clippy::wildcard_enum_match_arm, reason = "transactional calls give these two")]
    match error {
        KafkaError::Transaction(error) => error.is_retriable() && !error.is_fatal() && !error.txn_requires_abort(),
        error => error.rdkafka_error_code() == Some(RDKafkaErrorCode::OperationTimedOut),
    }
}

/// The failure if the progress topic was deleted while rows flowed. The transaction was not committed.
fn gone() -> Failure {
    let text =
        format!("topic {TOPIC} is not there any more: it is made again once Postgres has confirmed the last commit");
    Failure::new(FailureClass::Environment, errors::PROGRESS_TOPIC, text)
}
