//! What an SQS or SNS destination is asked for: where, with which keys, and how messages are written.
//!
//! Contacts nobody. A secret key that stands in a file is read again whenever keys are needed, so that the file can change.

use super::message::{Form, LARGEST};
use crate::secret::Secret;
use crate::sink::lanes::socket::Tls;
use std::time::Duration;

/// Which of the two services.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Service {
    /// Simple Queue Service.
    Sqs,
    /// Simple Notification Service.
    Sns,
}

impl Service {
    /// As signatures and host names have it.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Sqs => "sqs",
            Self::Sns => "sns",
        }
    }

    /// For people.
    pub(super) const fn title(self) -> &'static str {
        match self {
            Self::Sqs => "SQS",
            Self::Sns => "SNS",
        }
    }

    /// What a record's topic is there, for people.
    pub(super) const fn place(self) -> &'static str {
        match self {
            Self::Sqs => "queue",
            Self::Sns => "topic",
        }
    }

    /// What all messages of a batch may have together unless they are one, in bytes. A topic of SNS takes less than a queue, unless its
    /// attributes say otherwise.
    pub(super) const fn batch_bytes(self) -> usize {
        match self {
            Self::Sqs => LARGEST,
            Self::Sns => 256 << 10,
        }
    }
}

/// A service and how to use it. `Debug` shows no secret.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    pub(super) service: Service,
    pub(super) endpoint: Endpoint,
    /// As signatures have it.
    pub(super) region: String,
    /// `None`: those of AWS's own chain.
    pub(super) keys: Option<GivenKeys>,
    pub(super) form: Form,
    /// How long a request may take, connecting included.
    pub(super) timeout: Duration,
    /// Bytes.
    pub(super) max_in_flight: usize,
}

/// Where requests go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Endpoint {
    pub(super) host: String,
    pub(super) port: u16,
    /// `None`: it is not encrypted.
    pub(super) tls: Option<Tls>,
}

impl Endpoint {
    /// As the header `Host` has it.
    pub(super) fn authority(&self) -> String {
        let usual = if self.tls.is_some() { 443 } else { 80 };
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        if self.port == usual { host } else { format!("{host}:{}", self.port) }
    }
}

/// Access keys that settings name.
#[derive(Debug, Clone)]
pub(super) struct GivenKeys {
    pub(super) id: String,
    pub(super) secret: Secret,
}
