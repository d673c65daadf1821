//! SQS and SNS as settings name them.
//!
//! In: `--to sqs://…`, `--to sns://…` and properties. Out: [`Settings`] as a [`Destination`]: sinks, checks, a queue or topic for measurements.

use super::call::{Caller, Unserved};
use super::json::text;
use super::properties::{EXAMPLE, FIFO, PROPERTIES, QUEUES, SCHEMES, TOPIC_EXAMPLE, TOPIC_SCHEMES, TOPICS};
use super::settings::{Service, Settings};
use super::worker::url_of;
use super::{check, judge};
use crate::finding::Finding;
use crate::given::SettingError;
use crate::sink::destination::{Can, Delivery, Destination, Kind, Scratch, ScratchError, Wanted};
use crate::sink::lanes::{RECORD_OVERHEAD_BYTES, block_on};
use crate::sink::{Failure, Sink};
use std::sync::Arc;

/// Amazon SQS.
pub const KIND: Kind = Kind {
    name: "sqs",
    title: "SQS",
    schemes: &SCHEMES,
    example: EXAMPLE,
    topics: &QUEUES,
    can: Can { exactly_once: false, partitions: false, null_values: false, debezium: false, dead_letters: false },
    properties: &PROPERTIES,
    passes_others: false,
    record_overhead_bytes: RECORD_OVERHEAD_BYTES,
    read: |asked| Ok(Arc::new(Settings::read(asked)?)),
    refusals: || judge::REFUSALS.to_vec(),
    reasons: || judge::REASONS.to_vec(),
    hint: judge::hint,
};

/// Amazon SNS.
pub const TOPICS_KIND: Kind = Kind {
    name: "sns",
    title: "SNS",
    schemes: &TOPIC_SCHEMES,
    example: TOPIC_EXAMPLE,
    topics: &TOPICS,
    hint: judge::hint_of_topics,
    ..KIND
};

impl Destination for Settings {
    fn kind(&self) -> &'static Kind {
        match self.service {
            Service::Sqs => &KIND,
            Service::Sns => &TOPICS_KIND,
        }
    }

    fn address(&self) -> String {
        format!("{} ({})", self.endpoint.authority(), self.region)
    }

    fn open(&self, _client: &str, _how: Delivery) -> Result<Box<dyn Sink + Send>, SettingError> {
        super::open(self.clone())
    }

    fn check(&self, wanted: &Wanted<'_>) -> Vec<Finding> {
        check::check(self, wanted)
    }

    fn scratch(&self, _client: &str, topic: &str, _partitions: i32) -> Result<Box<dyn Scratch>, ScratchError> {
        let failed = |reason: String| ScratchError { what: "create queue", topic: topic.to_owned(), reason };
        if self.service == Service::Sns {
            // Its ARN has an account in it, and nobody would be subscribed.
            return Err(failed("bench cannot create topics of SNS".to_owned()));
        }
        let caller = Caller::new(self.clone());
        let created = block_on(async {
            if url_of(&caller, &mut None, topic).await.is_ok() {
                return Ok(Err("there is a queue of that name".to_owned()));
            }
            let mut body = b"{\"QueueName\":".to_vec();
            text(&mut body, topic);
            let attributes: &[u8] =
                if topic.ends_with(FIFO) { b",\"Attributes\":{\"FifoQueue\":\"true\"}}" } else { b"}" };
            body.extend_from_slice(attributes);
            Ok(caller.call(&mut None, "CreateQueue", &body).await.map_err(Unserved::into_text))
        });
        created.map_err(|failure: Failure| failed(failure.text))?.map_err(failed)?;
        Ok(Box::new(ScratchQueue { settings: self.clone(), queue: topic.to_owned() }))
    }
}

/// A queue for a measurement.
struct ScratchQueue {
    settings: Settings,
    queue: String,
}

impl Scratch for ScratchQueue {
    fn remove(self: Box<Self>) -> Result<(), ScratchError> {
        let Self { settings, queue } = *self;
        let caller = Caller::new(settings);
        let removed = block_on(async {
            let removing = async {
                let mut body = b"{\"QueueUrl\":".to_vec();
                text(&mut body, &url_of(&caller, &mut None, &queue).await?);
                body.push(b'}');
                caller.call(&mut None, "DeleteQueue", &body).await
            };
            Ok(removing.await.map_err(Unserved::into_text))
        });
        let failed = |reason: String| ScratchError { what: "remove queue", topic: queue.clone(), reason };
        removed.map_err(|failure: Failure| failed(failure.text))?.map(drop).map_err(failed)
    }
}
