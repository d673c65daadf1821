//! SQS and SNS: messages to queues of Amazon Simple Queue Service and to topics of Simple Notification Service, and of servers that
//! speak their protocols.
//!
//! In: records. Out: one message of the queue or topic that is the record's topic. Up to ten go in one request, and several requests at once,
//! but of a group (the record's key) of a FIFO queue or topic one message at a time. Each message of a request has a result of its own.
//!
//! Invariant: a later record of a key is never sent to a FIFO queue while an earlier one is refused and undecided, or its outcome
//! unknown. A standard queue has no order.
//! Specification: Amazon SQS and Amazon SNS, API References and Developer Guides.

mod call;
mod check;
mod destination;
mod http;
mod json;
mod judge;
mod message;
mod pace;
mod properties;
mod protocol;
mod query;
mod settings;
mod worker;

pub use destination::{KIND, TOPICS_KIND};

use self::settings::Settings;
use super::lanes::{LaneSink, Receiver};
use super::{Record, Sink};
use crate::given::SettingError;

/// A client, which begins to connect.
fn open(settings: Settings) -> Result<Box<dyn Sink + Send>, SettingError> {
    let form = settings.form.clone();
    let admit = move |record: &Record<'_>| form.admit(record);
    LaneSink::start(settings.service.name(), settings.max_in_flight, admit, async move |receiver: &mut Receiver| {
        worker::run(&settings, receiver).await;
    })
}
