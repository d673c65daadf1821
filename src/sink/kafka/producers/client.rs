//! [`Client`]: a librdkafka producer, with its topic handles and a thread that flushes it.
//!
//! For a topic's name, rdkafka copies the name, and librdkafka takes the client's lock and walks through its list of topics. A handle
//! spares all of that for each record.
//!
//! Invariants: handles are destroyed before the client that made them; the last pointer to a client is never dropped on the relay's
//! thread, since librdkafka then joins threads that may be looking up a name (see `retire`).
//! Specification: librdkafka's `rdkafka.h`, "Topic Handle" and "Producer API".

use super::super::METADATA_PATIENCE;
use super::super::callbacks::Context;
use crate::sink::{Header, Record};
use rdkafka::bindings::{self as native, rd_kafka_vtype_t as Type};
use rdkafka::error::{IsError as _, RDKafkaErrorCode};
use rdkafka::producer::{BaseProducer, Producer as _};
use std::ffi::CString;
use std::io;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Thread};

/// A producer, with its handles and the thread that flushes it.
pub(in crate::sink::kafka) struct Client {
    /// The handles by the topics' numbers. They are dropped first.
    handles: Vec<Option<Handle>>,
    flusher: Thread,
    orders: Arc<FlushOrders>,
    producer: Arc<BaseProducer<Context>>,
    /// Records were handed over since the last flush.
    lingers: bool,
    /// The producer has refused a record for good.
    pub(in crate::sink::kafka) ended: bool,
}

struct Handle(NonNull<native::rd_kafka_topic_t>);

#[allow(unsafe_code, reason = "librdkafka's handles may be used by any thread")]
// SAFETY: librdkafka's handles may be used by any thread. A handle is never shared here, only moved with its client.
unsafe impl Send for Handle {}

/// The orders to the thread that flushes a producer, so that records leave before `linger.ms` is over.
///
/// A flush in librdkafka overrides `linger.ms`. So `linger.ms` can be long enough for a backlog's batches, and costs a live row nothing.
/// The override lasts only while the call lasts. A call that does not wait is over before the broker's thread has woken up, two times out
/// of three. So the call lasts one millisecond, on a thread of its own.
#[derive(Default)]
struct FlushOrders {
    flush: AtomicBool,
    end: AtomicBool,
}

impl Client {
    pub(in crate::sink::kafka) fn new(producer: BaseProducer<Context>) -> io::Result<Self> {
        let producer = Arc::new(producer);
        producer.context().keep_logged_in(&producer);
        let orders = Arc::new(FlushOrders::default());
        let (flushed, theirs) = (Arc::clone(&producer), Arc::clone(&orders));
        let flusher = thread::Builder::new().name("kafka-flush".to_owned()).spawn(move || {
            while !theirs.end.load(Ordering::Acquire) {
                if theirs.flush.swap(false, Ordering::AcqRel) {
                    flush_for_a_millisecond(&flushed);
                } else {
                    thread::park();
                }
            }
        })?;
        let flusher = flusher.thread().clone();
        Ok(Self { handles: Vec::new(), flusher, orders, producer, lingers: false, ended: false })
    }

    pub(in crate::sink::kafka) fn producer(&self) -> &BaseProducer<Context> {
        &self.producer
    }

    pub(in crate::sink::kafka) fn shared(&self) -> Arc<BaseProducer<Context>> {
        Arc::clone(&self.producer)
    }

    /// Hands librdkafka a record for a partition of the topic with this number and name.
    pub(in crate::sink::kafka) fn send(
        &mut self,
        (number, name): (u32, &str),
        partition: i32,
        record: &Record<'_>,
        opaque: u64,
    ) -> Result<(), RDKafkaErrorCode> {
        let number = number as usize;
        if self.handles.len() <= number {
            self.handles.resize_with(number + 1, || None);
        }
        let Self { handles, producer, .. } = self;
        let Some(slot) = handles.get_mut(number) else { return Err(RDKafkaErrorCode::UnknownTopic) };
        let handle = match slot {
            Some(handle) => handle,
            None => slot.insert(Handle::new(producer, name)?),
        };
        produce(producer, handle, partition, record, opaque)?;
        self.lingers = true;
        Ok(())
    }

    /// Asks the cluster for a topic's partitions, by which librdkafka learns them.
    #[cold]
    pub(in crate::sink::kafka) fn learn(&self, topic: &str) {
        if let Err(error) = self.producer.client().fetch_metadata(Some(topic), METADATA_PATIENCE) {
            tracing::debug!(%error, topic, "its partitions could not be asked for");
        }
    }

    /// Whether the producer takes nothing any more.
    pub(in crate::sink::kafka) fn has_ended(&self) -> bool {
        self.ended || self.producer.context().take_failed() && self.producer.client().fatal_error().is_some()
    }

    /// Whether the producer could not begin, since its user may write no topic.
    #[cold]
    pub(in crate::sink::kafka) fn is_forbidden(&self) -> bool {
        let cause = self.producer.client().fatal_error().map(|(code, _)| code);
        cause == Some(RDKafkaErrorCode::ClusterAuthorizationFailed)
    }

    /// Flushes the producer if records were handed over since the last flush. `again`: in any case.
    pub(in crate::sink::kafka) fn flush(&mut self, again: bool) {
        if std::mem::take(&mut self.lingers) || again {
            self.orders.flush.store(true, Ordering::Release);
            self.flusher.unpark();
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.orders.end.store(true, Ordering::Release);
        self.flusher.unpark();
    }
}

/// Flushes the producer for a millisecond. Its result is nearly always "timed out", and does not matter: polls bring the reports.
#[allow(unsafe_code, reason = "rdkafka's flush never lets librdkafka's own last")]
pub(in crate::sink::kafka) fn flush_for_a_millisecond(producer: &BaseProducer<Context>) {
    // SAFETY: the pointer is the producer's own and lives as long as the borrow; the call is thread-safe and keeps nothing.
    unsafe {
        native::rd_kafka_flush(producer.client().native_ptr(), 1);
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

/// Does what rdkafka's `send` does, with a topic handle instead of a name.
#[allow(unsafe_code, reason = "rdkafka's own takes the topic by its name alone")]
fn produce(
    producer: &BaseProducer<Context>,
    topic: &Handle,
    partition: i32,
    record: &Record<'_>,
    opaque: u64,
) -> Result<(), RDKafkaErrorCode> {
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
            partition,
            Type::RD_KAFKA_VTYPE_MSGFLAGS,
            native::RD_KAFKA_MSG_F_COPY,
            Type::RD_KAFKA_VTYPE_VALUE,
            value,
            value_length,
            Type::RD_KAFKA_VTYPE_KEY,
            key,
            key_length,
            Type::RD_KAFKA_VTYPE_OPAQUE,
            opaque,
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
    Err(code.into())
}

/// The headers in librdkafka's form. A null pointer stands for none.
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
