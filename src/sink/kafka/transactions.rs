//! Records in Kafka transactions, for exactly once.
//!
//! ```text
//!  Foreign ──► Initializing ──► Reading ──► Idle ──► Open ──► Sealing ──► Idle …
//!              init_transactions  progress     begin    progress record, commit
//! ```
//!
//! In: records and, at the end of each transaction, a progress record, in the same transaction. Out: what was committed under
//! this name before. Blocking calls of librdkafka are made in slices, so that the caller can look after other things meanwhile.
//! Specification: KIP-98; librdkafka's INTRODUCTION.md, "Transactional Producer".

use super::context::Context;
use super::progress::{PARTITION, Reading, TOPIC};
use super::settings::Settings;
use super::{KafkaSink, failure};
use crate::sink::{Failure, FailureClass, Own, Owner, Token};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use std::time::Duration;

/// Longest blocking call while rows may flow.
const SLICE: Duration = Duration::from_millis(100);

/// How long the last abort may take.
const ABANDON_WITHIN: Duration = Duration::from_secs(1);

/// The token of progress records. No row has it: topics' places are small.
pub(super) const PROGRESS: Token = Token { transaction: u32::MAX, tick: u16::MAX, topic: u16::MAX };

/// Where it stands.
#[derive(Default)]
pub(super) struct Transactions {
    phase: Phase,
    name: Option<String>,
}

#[derive(Default)]
enum Phase {
    /// Nothing is ours yet.
    #[default]
    Foreign,
    Initializing,
    Reading(Box<Reading>),
    /// No transaction is open.
    Idle,
    Open,
    /// The progress record is on its way until it is reported, then the commit.
    Sealing {
        reported: bool,
    },
}

impl Transactions {
    /// Whether a record can be taken, with a transaction opened for it where there is none.
    pub(super) fn open(&mut self, producer: &BaseProducer<Context>) -> Result<bool, Failure> {
        match self.phase {
            Phase::Open => Ok(true),
            Phase::Idle => {
                producer.begin_transaction().map_err(|error| broken("begin a transaction", &error))?;
                self.phase = Phase::Open;
                Ok(true)
            }
            Phase::Foreign | Phase::Initializing | Phase::Reading(_) | Phase::Sealing { .. } => Ok(false),
        }
    }

    fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Open | Phase::Sealing { .. })
    }

    pub(super) fn progress_reported(&mut self) {
        if let Phase::Sealing { reported } = &mut self.phase {
            *reported = true;
        }
    }

    /// A producer for the name that was taken over last, and what has to be done with it again.
    pub(super) fn restart(&mut self, settings: &Settings) -> Result<Option<BaseProducer<Context>>, Failure> {
        self.phase = Phase::Foreign;
        let Some(name) = &self.name else { return Ok(None) };
        let producer = settings.transactional(name).map_err(|error| client(error.to_string()))?;
        self.phase = Phase::Initializing;
        Ok(Some(producer))
    }
}

impl KafkaSink {
    pub(super) fn take_over(&mut self, owner: &Owner) -> Result<Own, Failure> {
        let Some(transactions) = &mut self.transactions else { return Ok(Own::Ready(Vec::new())) };
        match &mut transactions.phase {
            Phase::Foreign => {
                transactions.name = Some(owner.name.clone());
                if let Some(producer) = transactions.restart(&self.settings)? {
                    self.replace(producer)?;
                    self.hear();
                }
                Ok(Own::Pending(None))
            }
            Phase::Initializing => {
                let outcome = self.producer.init_transactions(SLICE);
                self.producer.poll(Duration::ZERO);
                match outcome {
                    Ok(()) => transactions.phase = Phase::Reading(Box::new(Reading::new(&self.settings))),
                    Err(error) if is_passing(&error) => {
                        self.remind();
                        if let Some(failure) = self.fatal() {
                            return Err(failure);
                        }
                        let trouble = self.producer.context().trouble();
                        return Ok(Own::Pending(Some(trouble.unwrap_or_else(|| {
                            format!("Kafka's transaction coordinator does not answer yet: {error}")
                        }))));
                    }
                    Err(error) => return Err(broken("take over its transactions", &error)),
                }
                Ok(Own::Pending(None))
            }
            Phase::Reading(reading) => match reading.read()? {
                None => Ok(Own::Pending(Some(format!("reading {TOPIC}")))),
                Some(kept) => {
                    transactions.phase = Phase::Idle;
                    self.producer.context().recovered();
                    let ours = kept.into_iter().filter(|(key, _)| key.ends_with(&owner.keys_ending));
                    Ok(Own::Ready(ours.collect()))
                }
            },
            Phase::Idle | Phase::Open | Phase::Sealing { .. } => Ok(Own::Ready(Vec::new())),
        }
    }

    pub(super) fn commit(&mut self, key: &str, value: &str) -> Result<bool, Failure> {
        let Some(transactions) = &mut self.transactions else { return Ok(true) };
        match transactions.phase {
            Phase::Idle => return Ok(true),
            Phase::Open => {
                #[allow(clippy::cast_possible_truncation, reason = "pointers are 64 bits wide, see above")]
                let record = BaseRecord::with_opaque_to(TOPIC, PROGRESS.pack() as usize);
                let record = record.key(key).payload(value).partition(PARTITION);
                match self.producer.send(record) {
                    Ok(()) => transactions.phase = Phase::Sealing { reported: false },
                    Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), _)) => return Ok(false),
                    Err((error, _)) => return Err(broken("write its progress", &error)),
                }
            }
            // librdkafka's own count has its log lines in it.
            Phase::Sealing { reported: true } => return self.commit_reported(),
            Phase::Sealing { reported: false } => {}
            Phase::Foreign | Phase::Initializing | Phase::Reading(_) => {
                return Err(client("a transaction was to be committed that is not ours".to_owned()));
            }
        }
        super::client::flush_for_a_millisecond(&self.producer);
        Ok(false)
    }

    /// Everything that is in it has been reported.
    fn commit_reported(&mut self) -> Result<bool, Failure> {
        match self.producer.commit_transaction(SLICE) {
            Ok(()) => {
                if let Some(transactions) = &mut self.transactions {
                    transactions.phase = Phase::Idle;
                }
                self.producer.context().recovered();
                Ok(true)
            }
            Err(error) if is_passing(&error) => {
                self.remind();
                self.fatal().map_or(Ok(false), Err)
            }
            Err(error) => Err(broken("commit a transaction", &error)),
        }
    }

    /// Why the open transaction takes nothing any more: the client says so to whoever asks it for something else meanwhile.
    #[cold]
    pub(super) fn why_transaction_ended(&self) -> Option<Failure> {
        let refused = || self.producer.begin_transaction().err();
        let error = self.transactions.as_ref().is_some_and(Transactions::is_open).then(refused).flatten()?;
        Some(broken("go on with its transaction", &error))
    }

    pub(super) fn abort(&mut self) {
        if self.transactions.as_ref().is_some_and(Transactions::is_open)
            && let Err(error) = self.producer.abort_transaction(ABANDON_WITHIN)
        {
            tracing::warn!(%error, "the open Kafka transaction could not be aborted: consumers wait until it times out");
        }
    }
}

/// Whether the same call may succeed later.
fn is_passing(error: &KafkaError) -> bool {
    #[allow(clippy::wildcard_enum_match_arm, reason = "transactional calls give these two")]
    match error {
        KafkaError::Transaction(error) => error.is_retriable() && !error.is_fatal() && !error.txn_requires_abort(),
        error => error.rdkafka_error_code() == Some(RDKafkaErrorCode::OperationTimedOut),
    }
}

pub(super) fn client(text: String) -> Failure {
    Failure { class: FailureClass::Client, reason: "client", text }
}

/// The client is to be made anew. What the cluster says about rights is the environment's.
pub(super) fn broken(what: &str, error: &KafkaError) -> Failure {
    let code = error.rdkafka_error_code();
    let forbidden = [
        RDKafkaErrorCode::TransactionalIdAuthorizationFailed,
        RDKafkaErrorCode::ClusterAuthorizationFailed,
        RDKafkaErrorCode::TopicAuthorizationFailed,
    ];
    let is_forbidden = code.is_some_and(|code| forbidden.contains(&code));
    let class = if is_forbidden { FailureClass::Environment } else { FailureClass::Client };
    let reason = if is_forbidden { "authorization" } else { failure::reason(code) };
    Failure { class, reason, text: format!("Kafka did not let the relay {what}: {error}") }
}
