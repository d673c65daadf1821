//! Streams of Redis, and of Valkey, which speaks the same protocol.
//!
//! In: records. Out: one entry of the stream that is the record's topic. A batch is added as one (MULTI/EXEC, or one script with
//! `dedupe`); no two batches under way hold records of one key.
//!
//! Invariant: a later record of a key is never added while an earlier one is refused and undecided, or its outcome unknown.
//! Specification: Redis, "Streams", "Transactions", "Redis serialization protocol specification".

mod check;
mod cluster;
mod conversation;
mod dead_letters;
mod destination;
mod entry;
mod info;
mod judge;
mod link;
mod lookup;
mod properties;
mod redirect;
mod resp;
mod sentinel;
mod settings;
mod slot;
#[cfg(test)]
mod tests;
mod worker;

pub use destination::KIND;

use self::settings::Settings;
use super::lanes::{LaneSink, Receiver};
use super::{Failure, FailureClass, Record, Sink};
use crate::given::SettingError;

/// A client, which begins to connect.
fn open(settings: Settings) -> Result<Box<dyn Sink + Send>, SettingError> {
    LaneSink::start("redis", settings.max_in_flight, admit, async move |receiver: &mut Receiver| {
        worker::run(&settings, receiver).await;
    })
}

/// What no server would take.
fn admit(record: &Record<'_>) -> Result<(), Failure> {
    let bad = |reason, text| Err(Failure { class: FailureClass::Row, reason, text });
    if record.topic.is_empty() {
        return bad(judge::STREAM, "a stream needs a name".to_owned());
    }
    if record.headers.len() > entry::MOST_HEADERS {
        let text = format!("{} headers; an entry may have {}", record.headers.len(), entry::MOST_HEADERS);
        return bad(judge::HEADERS, text);
    }
    Ok(())
}
