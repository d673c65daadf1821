//! RabbitMQ as settings name it.
//!
//! In: `--to amqp://…` and properties. Out: [`Settings`] as a [`Destination`]: sinks, checks, a queue for measurements.

use super::properties::{EXAMPLE, PROPERTIES, ROUTING_KEYS, SCHEMES};
use super::session::{ASKING, Refusal, Session};
use super::settings::Settings;
use super::{check, judge, message, method};
use crate::finding::Finding;
use crate::given::SettingError;
use crate::sink::destination::{Can, Delivery, Destination, EventBinding, Kind, Scratch, ScratchError, Wanted};
use crate::sink::lanes::address::Server;
use crate::sink::lanes::{RECORD_OVERHEAD_BYTES, block_on};
use crate::sink::{Failure, Sink};
use std::sync::Arc;

/// RabbitMQ.
pub const KIND: Kind = Kind {
    name: "rabbitmq",
    title: "RabbitMQ",
    schemes: &SCHEMES,
    example: EXAMPLE,
    topics: &ROUTING_KEYS,
    can: Can { exactly_once: false, partitions: false, null_values: false, debezium: false, dead_letters: false },
    properties: &PROPERTIES,
    passes_others: false,
    record_overhead_bytes: RECORD_OVERHEAD_BYTES,
    read: |asked| Ok(Arc::new(Settings::read(asked)?)),
    refusals: || judge::REFUSALS.to_vec(),
    reasons: || judge::REASONS.to_vec(),
    hint: judge::hint,
};

impl Destination for Settings {
    fn kind(&self) -> &'static Kind {
        &KIND
    }

    fn address(&self) -> String {
        Server::addresses(&self.servers)
    }

    fn open(&self, client: &str, _how: Delivery) -> Result<Box<dyn Sink + Send>, SettingError> {
        super::open(self.named(client))
    }

    fn check(&self, wanted: &Wanted<'_>) -> Vec<Finding> {
        check::check(&self.named(wanted.client), wanted)
    }

    /// CloudEvents' "AMQP Protocol Binding", as RabbitMQ carries its application properties: as headers.
    fn event_binding(&self) -> Option<EventBinding> {
        Some(EventBinding { prefix: "cloudEvents_", percent_encoded: false })
    }

    fn header_column(&self) -> Option<(&'static str, &str)> {
        self.exchange_column.as_deref().map(|column| (message::EXCHANGE, column))
    }

    fn scratch(&self, client: &str, topic: &str, _partitions: i32) -> Result<Box<dyn Scratch>, ScratchError> {
        let queue = ScratchQueue { settings: self.named(client), queue: topic.to_owned() };
        queue.asked("create queue", async |session| {
            let Self { exchange, .. } = &queue.settings;
            if session.ask(|out| method::queue_declare(out, ASKING, topic, true)).await?.is_ok() {
                return Ok(Err("there is a queue of that name".to_owned()));
            }
            let declared = session.ask(|out| method::queue_declare(out, ASKING, topic, false)).await?;
            let bound = match declared {
                Ok(()) if !exchange.is_empty() => {
                    session.ask(|out| method::queue_bind(out, ASKING, topic, exchange, topic)).await?
                }
                declared => declared,
            };
            if bound.is_err() {
                // What was declared goes with it; whoever may not declare has nothing to delete.
                drop(session.ask(|out| method::queue_delete(out, ASKING, topic)).await?);
            }
            Ok(bound.map_err(|refusal| refusal.text))
        })?;
        Ok(Box::new(queue))
    }
}

/// A quorum queue, bound by its name.
struct ScratchQueue {
    settings: Settings,
    queue: String,
}

impl ScratchQueue {
    /// Asks on a connection of its own.
    fn asked(
        &self,
        what: &'static str,
        ask: impl AsyncFnOnce(&mut Session) -> Result<Result<(), String>, Failure>,
    ) -> Result<(), ScratchError> {
        let failed = |reason: String| ScratchError { what, topic: self.queue.clone(), reason };
        let answer = block_on(async {
            let mut session = Session::open(&self.settings, 0).await?;
            let answer = ask(&mut session).await;
            session.leave().await;
            answer
        });
        answer.map_err(|failure| failed(failure.text))?.map_err(failed)
    }
}

impl Scratch for ScratchQueue {
    fn remove(self: Box<Self>) -> Result<(), ScratchError> {
        self.asked("remove queue", async |session| {
            let deleted = session.ask(|out| method::queue_delete(out, ASKING, &self.queue)).await?;
            Ok(deleted.map_err(|refusal: Refusal| refusal.text))
        })
    }
}
