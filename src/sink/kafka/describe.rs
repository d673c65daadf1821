//! Asks the cluster for the partitions of many topics in one request, which creates none of them.
//!
//! `rdkafka` asks for one topic or for all topics of the cluster; [`topic_in`] finds one in such an answer. In: a client, names. Out: for each topic its partitions and replicas, or
//! the error code. The client learns the partitions from the same answer, so that a later record of such a topic asks nobody.
//!
//! Invariant: a [`Description`] borrows its client, which is therefore there until the answer has come or is given up.
//! Specification: librdkafka's `rdkafka.h`, `rd_kafka_DescribeTopics`; Kafka protocol, "Metadata".

use super::callbacks::Context;
use rdkafka::bindings as native;
use rdkafka::client::Client;
use rdkafka::error::{IsError, KafkaError, RDKafkaErrorCode};
use rdkafka::metadata::{Metadata, MetadataTopic};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr::{self, NonNull};
use std::slice;
use std::time::Duration;

/// The partitions of a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TopicShape {
    /// How many there are, at least 1.
    pub(super) partitions: i32,
    /// The fewest replicas of one of them. `None`: this user may not see them.
    pub(super) replicas: Option<usize>,
}

/// A topic, and what the cluster says of it.
pub(super) type DescribedTopic = (String, Result<TopicShape, RDKafkaErrorCode>);

/// A question that the client has been given.
pub(super) struct Description<'c> {
    queue: NonNull<native::rd_kafka_queue_t>,
    _client: &'c Client<Context>,
}

/// The cluster's answer.
#[derive(Debug, Default)]
pub(super) struct DescribedTopics {
    /// Each topic once, as it was asked for.
    pub(super) topics: Vec<DescribedTopic>,
    /// The ports of the brokers that have their replicas.
    pub(super) ports: BTreeSet<u16>,
    /// The ids of the topics, which Kafka gives since version 2.8 (KIP-516). A topic that is created again has another id.
    pub(super) ids: BTreeMap<String, TopicId>,
}

/// The two halves of a topic's UUID.
pub(super) type TopicId = (i64, i64);

impl<'c> Description<'c> {
    /// Asks for these topics, each of which is there once. The client gives up after `within`. `None`: the client has no memory left.
    #[allow(unsafe_code, reason = "rdkafka does not wrap this request")]
    pub(super) fn ask(client: &'c Client<Context>, topics: &[CString], within: Duration) -> Option<Self> {
        let handle = client.native_ptr();
        let mut names: Vec<*const c_char> = topics.iter().map(|name| name.as_ptr()).collect();
        let millis = c_int::try_from(within.as_millis()).unwrap_or(c_int::MAX);
        // SAFETY: the client outlives this value. Queue, options and collection are made here, are checked, and each is destroyed once: the
        // queue by `drop`. The names live as long as the borrows, and the calls copy them and the options.
        unsafe {
            let queue = NonNull::new(native::rd_kafka_queue_new(handle))?;
            let kind = native::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_DESCRIBETOPICS;
            let options = native::rd_kafka_AdminOptions_new(handle, kind);
            let collection = native::rd_kafka_TopicCollection_of_topic_names(names.as_mut_ptr(), names.len());
            if !options.is_null() && !collection.is_null() {
                native::rd_kafka_AdminOptions_set_request_timeout(options, millis, ptr::null_mut(), 0);
                native::rd_kafka_DescribeTopics(handle, collection, options, queue.as_ptr());
            }
            if !options.is_null() {
                native::rd_kafka_AdminOptions_destroy(options);
            }
            if !collection.is_null() {
                native::rd_kafka_TopicCollection_destroy(collection);
            }
            Some(Self { queue, _client: client })
        }
    }

    /// Waits for the answer.
    ///
    /// # Errors
    /// There is none.
    #[allow(unsafe_code, reason = "as above")]
    pub(super) fn answer(&self, within: Duration) -> Result<DescribedTopics, KafkaError> {
        let millis = c_int::try_from(within.as_millis()).unwrap_or(c_int::MAX);
        // SAFETY: the queue is there until `drop`. The event is destroyed once, after its last use, and everything read from it is copied
        // before. Each pointer into it comes with its length, and is read only if it is not null.
        unsafe {
            let event = native::rd_kafka_queue_poll(self.queue.as_ptr(), millis);
            if event.is_null() {
                return Err(KafkaError::MetadataFetch(RDKafkaErrorCode::OperationTimedOut));
            }
            let error = native::rd_kafka_event_error(event);
            let answer = if error.is_error() {
                Err(KafkaError::MetadataFetch(error.into()))
            } else {
                let result = native::rd_kafka_event_DescribeTopics_result(event);
                let mut count = 0;
                let topics = if result.is_null() {
                    ptr::null_mut()
                } else {
                    native::rd_kafka_DescribeTopics_result_topics(result, &raw mut count)
                };
                Ok(described(items(topics, count)))
            };
            native::rd_kafka_event_destroy(event);
            answer
        }
    }
}

impl Drop for Description<'_> {
    #[allow(unsafe_code, reason = "as above")]
    fn drop(&mut self) {
        // SAFETY: the queue was made by `ask` and is destroyed once. librdkafka drops an answer that comes later.
        unsafe { native::rd_kafka_queue_destroy(self.queue.as_ptr()) }
    }
}

/// The pointers in an array of librdkafka's.
#[allow(unsafe_code, reason = "as above")]
unsafe fn items<'a, T>(first: *mut *const T, count: usize) -> &'a [*const T] {
    if first.is_null() {
        return &[];
    }
    // SAFETY: the caller has the array and its length from librdkafka.
    unsafe { slice::from_raw_parts(first, count) }
}

#[allow(unsafe_code, reason = "as above")]
unsafe fn described(topics: &[*const native::rd_kafka_TopicDescription_t]) -> DescribedTopics {
    let mut answer = DescribedTopics::default();
    for &topic in topics {
        // SAFETY: the pointers are librdkafka's, and the event that has them is there. Names are text that ends in a zero byte.
        let (name, error) = unsafe {
            let name = CStr::from_ptr(native::rd_kafka_TopicDescription_name(topic)).to_string_lossy().into_owned();
            (name, native::rd_kafka_TopicDescription_error(topic))
        };
        // SAFETY: as above; the error is read only if there is one.
        let code = if error.is_null() { None } else { Some(unsafe { native::rd_kafka_error_code(error) }) };
        let outcome = match code.filter(IsError::is_error) {
            Some(code) => Err(code.into()),
            // SAFETY: as above.
            None => unsafe { shape(topic, &mut answer.ports) },
        };
        if outcome.is_ok()
            // SAFETY: as above.
            && let Some(id) = unsafe { id(topic) }
        {
            answer.ids.insert(name.clone(), id);
        }
        answer.topics.push((name, outcome));
    }
    answer
}

/// The topic's id. `None`: the broker gives none.
#[allow(unsafe_code, reason = "as above")]
unsafe fn id(topic: *const native::rd_kafka_TopicDescription_t) -> Option<TopicId> {
    // SAFETY: as above.
    let id = unsafe { native::rd_kafka_TopicDescription_topic_id(topic) };
    if id.is_null() {
        return None;
    }
    // SAFETY: it is not null, and belongs to the topic.
    let id =
        unsafe { (native::rd_kafka_Uuid_most_significant_bits(id), native::rd_kafka_Uuid_least_significant_bits(id)) };
    Some(id).filter(|id| *id != (0, 0))
}

#[allow(unsafe_code, reason = "as above")]
unsafe fn shape(
    topic: *const native::rd_kafka_TopicDescription_t,
    ports: &mut BTreeSet<u16>,
) -> Result<TopicShape, RDKafkaErrorCode> {
    let mut count = 0;
    // SAFETY: as above.
    let partitions = unsafe { items(native::rd_kafka_TopicDescription_partitions(topic, &raw mut count), count) };
    let mut fewest = None;
    for &partition in partitions {
        let mut count = 0;
        // SAFETY: as above. A replica is a broker, or null.
        unsafe {
            let replicas = items(native::rd_kafka_TopicPartitionInfo_replicas(partition, &raw mut count), count);
            let brokers = replicas.iter().filter(|broker| !broker.is_null());
            ports.extend(brokers.map(|broker| native::rd_kafka_Node_port(*broker)));
        }
        fewest = Some(fewest.map_or(count, |fewest: usize| fewest.min(count)));
    }
    match i32::try_from(partitions.len()) {
        Ok(0) => Err(RDKafkaErrorCode::UnknownTopicOrPartition),
        partitions => Ok(TopicShape { partitions: partitions.unwrap_or(i32::MAX), replicas: fewest }),
    }
}

/// The topic in the cluster's answer, or the error code for which it takes no records.
pub(super) fn topic_in<'m>(metadata: &'m Metadata, topic: &str) -> Result<&'m MetadataTopic, RDKafkaErrorCode> {
    let Some(answer) = metadata.topics().iter().find(|answer| answer.name() == topic) else {
        return Err(RDKafkaErrorCode::UnknownTopicOrPartition);
    };
    match answer.error() {
        Some(error) => Err(error.into()),
        None if answer.partitions().is_empty() => Err(RDKafkaErrorCode::UnknownTopicOrPartition),
        None => Ok(answer),
    }
}

/// librdkafka's mock of a cluster has no controller, which would answer: `tests/it/first_topics.rs` shows that.
#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::kafka::KafkaSettings;
    use rdkafka::producer::Producer as _;

    #[test]
    fn a_cluster_that_does_not_answer_is_an_error() {
        let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let settings = KafkaSettings::new(&nobody.to_string(), "walrelay", &[], 1 << 20).unwrap();
        let producer = settings.producer().unwrap();
        let asked = Description::ask(producer.client(), &[c"orders".to_owned()], Duration::from_millis(50)).unwrap();
        assert!(asked.answer(Duration::from_millis(100)).is_err());
        assert!(asked.answer(Duration::ZERO).is_err(), "and there is no second answer");
    }
}
