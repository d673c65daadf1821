//! Streams of NATS JetStream.
//!
//! In: records. Out: one message to the subject that is the record's topic, which counts once JetStream has acknowledged it. Many
//! messages are under way at a time, of which no two have one key of one subject.
//!
//! Invariant: a later record of a key is never sent while an earlier one is refused and undecided, or its outcome unknown.
//! Specification: NATS, "Client Protocol", JetStream.

mod answer;
mod check;
mod dead_letters;
mod destination;
mod link;
mod message;
mod nobody;
mod properties;
mod proto;
mod settings;
mod signing;
mod worker;

pub use destination::KIND;

use self::settings::Settings;
use super::lanes::{LaneSink, Receiver};
use super::{Failure, FailureClass, Record, Sink};
use crate::given::SettingError;

/// A client, which begins to connect.
fn open(settings: Settings) -> Result<Box<dyn Sink + Send>, SettingError> {
    LaneSink::start("nats", settings.max_in_flight, admit, async move |receiver: &mut Receiver| {
        worker::run(&settings, receiver).await;
    })
}

/// What no server would take.
fn admit(record: &Record<'_>) -> Result<(), Failure> {
    let fault = message::fault(record);
    fault.map_or(Ok(()), |text| Err(Failure { class: FailureClass::Row, reason: answer::HEADERS, text }))
}
