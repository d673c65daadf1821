//! What the two services' protocols have in common: a batch of messages goes out, and of each message comes a result.
//!
//! In: records, answers. Out: requests' bodies, results, refusals. It does no I/O and decides nothing. SQS speaks JSON, SNS forms and
//! XML.

use super::judge::Refusal;
use super::message::Form;
use super::settings::Service;
use super::{json, query};
use crate::sink::{Origin, Record};

/// Messages in a batch.
pub(super) const MOST_MESSAGES: usize = 10;

/// What an answer says of one message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Said {
    /// It is kept.
    Kept,
    /// It is not.
    Failed {
        /// The error's code.
        code: String,
        /// Whether the message is at fault, and not the service.
        by_sender: bool,
        /// For people.
        text: String,
    },
    /// Nothing.
    Nothing,
}

/// A request: its action, and its body.
pub(super) type Asked = (&'static str, Vec<u8>);

impl Service {
    /// Adds a record as the batch's next entry. `is_fifo`: of the queue or topic.
    pub(super) fn entry(
        self,
        out: &mut Vec<u8>,
        number: usize,
        record: &Record<'_>,
        origin: Origin,
        form: &Form,
        is_fifo: bool,
    ) {
        match self {
            Self::Sqs => json::entry(out, number, record, origin, form, is_fifo),
            Self::Sns => query::entry(out, number, record, origin, form, is_fifo),
        }
    }

    /// Sends entries that were written to a queue's URL or a topic's ARN.
    pub(super) fn batch(self, place: &str, entries: &[u8]) -> Asked {
        match self {
            Self::Sqs => ("SendMessageBatch", json::request(place, entries)),
            Self::Sns => ("PublishBatch", query::request("PublishBatch", &[("TopicArn", place)], entries)),
        }
    }

    /// Asks for what anybody with keys may ask for.
    pub(super) fn look(self) -> Asked {
        match self {
            Self::Sqs => ("ListQueues", b"{\"MaxResults\":1}".to_vec()),
            Self::Sns => ("ListTopics", query::request("ListTopics", &[], b"")),
        }
    }

    /// What the body of an answer with the status 200 says of each of `messages`, in their order; `None`: it is no such answer.
    pub(super) fn results(self, body: &[u8], messages: usize) -> Option<Vec<Said>> {
        match self {
            Self::Sqs => json::results(body, messages),
            Self::Sns => query::results(body, messages),
        }
    }

    /// What an answer of another status says.
    pub(super) fn refusal(self, status: u16, body: &[u8]) -> Refusal {
        let said = match self {
            Self::Sqs => json::error(body),
            Self::Sns => query::error(body),
        };
        Refusal::of(status, said)
    }
}
