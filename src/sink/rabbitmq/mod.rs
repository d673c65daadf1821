//! RabbitMQ, by AMQP 0-9-1.
//!
//! In: records. Out: one message for each, published to an exchange with the record's topic as routing key. A record counts as delivered
//! when the broker has confirmed its message and has not returned it. At most one message of a key is under way.
//!
//! Invariant: a later record of a key is never published while an earlier one is refused and undecided, or its outcome unknown.
//! Specification: AMQP 0-9-1; RabbitMQ, "Consumer Acknowledgements and Publisher Confirms".

mod channel;
mod check;
mod destination;
mod judge;
mod message;
mod method;
mod properties;
mod session;
mod settings;
mod token;
mod window;
mod wire;
mod worker;

pub use destination::KIND;

use self::settings::Settings;
use super::lanes::{LaneSink, Receiver};
use super::{Failure, Record, Sink};
use crate::given::SettingError;

/// A client, which begins to connect.
fn open(settings: Settings) -> Result<Box<dyn Sink + Send>, SettingError> {
    let bound = settings.max_in_flight;
    LaneSink::start("rabbitmq", bound, admit, async move |receiver: &mut Receiver| {
        worker::run(&settings, receiver).await;
    })
}

/// What no broker would take.
fn admit(record: &Record<'_>) -> Result<(), Failure> {
    let bytes = record.topic.len();
    if bytes == 0 || bytes > wire::SHORT {
        return Err(judge::bad_key(bytes));
    }
    let own = record.headers.iter().find(|header| header.name == message::EXCHANGE).and_then(|header| header.value);
    if let Some(own) = own.filter(|own| own.len() > wire::SHORT || std::str::from_utf8(own).is_err()) {
        return Err(judge::bad_exchange(own.len()));
    }
    match record.headers.iter().find(|header| header.name.len() > message::LONGEST_NAME) {
        Some(header) => Err(judge::bad_headers(format!("a header's name of {} bytes", header.name.len()))),
        None => Ok(()),
    }
}
