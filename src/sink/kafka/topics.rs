//! Topics that the cluster has confirmed, each with librdkafka's own handle, and how a record gets into one.
//!
//! Given a topic's name, librdkafka takes the client's lock for each record and walks through its list of topics, and rdkafka copies
//! the name before. A handle spares all of that.
//!
//! Invariant: handles are given back before the client that made them ends.
//! Specification: librdkafka's `rdkafka.h`, "Topic Handle" and "Producer API".

use super::context::Context;
use crate::sink::{Header, Record, Token};
use rdkafka::bindings::{self as native, rd_kafka_vtype_t as Type};
use rdkafka::error::{IsError as _, KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{BaseProducer, Producer as _};
use std::collections::HashMap;
use std::ffi::CString;
use std::ptr::{self, NonNull};

/// Of one producer.
#[derive(Default)]
pub(super) struct Topics {
    handles: Vec<Handle>,
    /// Places in `handles`.
    known: HashMap<String, usize>,
    /// The topic of the record before, mostly the next one's, too, and its place; no name before the first.
    last: (String, usize),
}

struct Handle(NonNull<native::rd_kafka_topic_t>);

#[allow(unsafe_code, reason = "librdkafka's handles may be used by any thread")]
// SAFETY: see the reason; a handle is never shared here, only moved with its sink.
unsafe impl Send for Handle {}

impl Topics {
    /// Whether it is the topic of the record before.
    #[inline]
    pub(super) fn is_last(&self, topic: &str) -> bool {
        self.last.0 == topic
    }

    /// The next record is for this topic. Whether it is known.
    pub(super) fn turn_to(&mut self, topic: &str) -> bool {
        let Some(place) = self.known.get(topic) else { return false };
        topic.clone_into(&mut self.last.0);
        self.last.1 = *place;
        true
    }

    /// The cluster has said that the topic is there: the next record is for it.
    ///
    /// # Errors
    /// librdkafka does not take the name.
    pub(super) fn add(&mut self, producer: &BaseProducer<Context>, topic: &str) -> Result<(), RDKafkaErrorCode> {
        let handle = Handle::new(producer, topic)?;
        self.known.insert(topic.to_owned(), self.handles.len());
        self.handles.push(handle);
        self.turn_to(topic);
        Ok(())
    }

    /// Gives everything back, before the producer ends.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Hands a record over to the topic that was turned to.
    pub(super) fn send(
        &self,
        producer: &BaseProducer<Context>,
        record: &Record<'_>,
        token: Token,
    ) -> Result<(), KafkaError> {
        let Some(handle) = self.handles.get(self.last.1) else {
            return Err(KafkaError::MessageProduction(RDKafkaErrorCode::UnknownTopic));
        };
        produce(producer, handle, record, token)
    }
}

impl Handle {
    #[allow(unsafe_code, reason = "rdkafka wraps no handles of a producer's topics")]
    fn new(producer: &BaseProducer<Context>, topic: &str) -> Result<Self, RDKafkaErrorCode> {
        let name = CString::new(topic).map_err(|_| RDKafkaErrorCode::InvalidTopic)?;
        // SAFETY: client and name live as long as the borrows, and the name is copied; no settings means the client's own.
        let handle =
            unsafe { native::rd_kafka_topic_new(producer.client().native_ptr(), name.as_ptr(), ptr::null_mut()) };
        NonNull::new(handle).map(Self).ok_or(RDKafkaErrorCode::InvalidTopic)
    }
}

impl Drop for Handle {
    #[allow(unsafe_code, reason = "as above")]
    fn drop(&mut self) {
        // SAFETY: the handle came from `rd_kafka_topic_new`, is given back once, and its client is there: see the invariant.
        unsafe { native::rd_kafka_topic_destroy(self.0.as_ptr()) }
    }
}

/// `RD_KAFKA_PARTITION_UA`: by the key.
const ANY_PARTITION: i32 = -1;

/// As rdkafka's `send`, but for the topic.
#[allow(unsafe_code, reason = "rdkafka's own takes the topic by its name alone")]
fn produce(
    producer: &BaseProducer<Context>,
    topic: &Handle,
    record: &Record<'_>,
    token: Token,
) -> Result<(), KafkaError> {
    let bytes = |part: Option<&[u8]>| part.map_or((ptr::null(), 0), |part| (part.as_ptr(), part.len()));
    let ((value, value_length), (key, key_length)) = (bytes(record.value), bytes(record.key));
    let headers = headers(record.headers);
    // SAFETY: every kind is followed by arguments of the types that it is documented with; client and topic live as long as the
    // borrows; value and key are copied by the call, the opaque is an integer. Headers are the message's once it is taken.
    let code = unsafe {
        native::rd_kafka_producev(
            producer.client().native_ptr(),
            Type::RD_KAFKA_VTYPE_RKT,
            topic.0.as_ptr(),
            Type::RD_KAFKA_VTYPE_PARTITION,
            record.partition.unwrap_or(ANY_PARTITION),
            Type::RD_KAFKA_VTYPE_MSGFLAGS,
            native::RD_KAFKA_MSG_F_COPY,
            Type::RD_KAFKA_VTYPE_VALUE,
            value,
            value_length,
            Type::RD_KAFKA_VTYPE_KEY,
            key,
            key_length,
            Type::RD_KAFKA_VTYPE_OPAQUE,
            token.pack(),
            Type::RD_KAFKA_VTYPE_TIMESTAMP,
            record.timestamp_millis,
            Type::RD_KAFKA_VTYPE_HEADERS,
            headers,
            Type::RD_KAFKA_VTYPE_END,
        )
    };
    if !code.is_error() {
        return Ok(());
    }
    if !headers.is_null() {
        // SAFETY: a message that was not taken leaves its headers to the caller.
        unsafe { native::rd_kafka_headers_destroy(headers) }
    }
    Err(KafkaError::MessageProduction(code.into()))
}

/// Headers in librdkafka's form; null for none.
#[allow(unsafe_code, reason = "rdkafka's own do not show their pointer")]
fn headers(headers: &[Header<'_>]) -> *mut native::rd_kafka_headers_t {
    if headers.is_empty() {
        return ptr::null_mut();
    }
    // SAFETY: it allocates, and nothing else.
    let all = unsafe { native::rd_kafka_headers_new(headers.len()) };
    for header in headers {
        let (value, length) =
            header.value.map_or((ptr::null(), 0), |value| (value.as_ptr(), value.len().cast_signed()));
        // SAFETY: name and value live as long as the borrows, have the lengths that are named, and are copied.
        unsafe {
            native::rd_kafka_header_add(
                all,
                header.name.as_ptr().cast(),
                header.name.len().cast_signed(),
                value.cast(),
                length,
            );
        }
    }
    all
}
