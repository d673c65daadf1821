//! Topics of SNS, as far as tests need them: they take batches, drop repeats of FIFO topics, and keep what they took.
//!
//! In: requests of SNS' Query protocol as forms. Out: batches as JSON, in SQS' words, which [`Gate`](super::Gate) refuses, throttles and
//! takes apart as it does SQS'; answers as XML.
//!
//! Specification: Amazon SNS API Reference, "PublishBatch", "ListTopics", "GetTopicAttributes".

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::brokers::{SqsMessage, field};

/// All topics, by their ARNs.
#[derive(Debug, Default)]
pub(super) struct Topics(BTreeMap<String, Topic>);

#[derive(Debug, Default)]
struct Topic {
    messages: Vec<SqsMessage>,
    /// What repeats are known by.
    seen: BTreeSet<String>,
}

impl Topics {
    pub(super) fn create(&mut self, arn: &str) {
        self.0.entry(arn.to_owned()).or_default();
    }

    pub(super) fn messages(&self, arn: &str) -> Vec<SqsMessage> {
        self.0.get(arn).map(|topic| topic.messages.clone()).unwrap_or_default()
    }

    /// Takes a batch in SQS' words; answers in them.
    pub(super) fn publish(&mut self, batch: &Value) -> (u16, Value) {
        let arn = field(batch, "QueueUrl").as_str().unwrap_or_default();
        let Some(topic) = self.0.get_mut(arn) else {
            return (404, json!({"__type": "NotFound", "message": "Topic does not exist"}));
        };
        let entries = field(batch, "Entries").as_array().cloned().unwrap_or_default();
        if entries.is_empty() {
            return (400, json!({"__type": "EmptyBatchRequest", "message": "no entries"}));
        }
        if entries.len() > 10 {
            return (400, json!({"__type": "TooManyEntriesInBatchRequest", "message": "more than 10"}));
        }
        let (mut successful, mut failed) = (Vec::new(), Vec::new());
        for entry in &entries {
            let message = SqsMessage::of_entry(entry);
            let lacks = arn.strip_suffix(".fifo").is_some()
                && (message.group.is_empty() || message.deduplication_id.is_empty());
            if lacks || message.body.is_empty() {
                failed.push(json!({"Id": field(entry, "Id"), "Code": "InvalidParameter", "SenderFault": true, "Message": "invalid"}));
                continue;
            }
            successful.push(json!({"Id": field(entry, "Id"), "MessageId": "m"}));
            if message.deduplication_id.is_empty() || topic.seen.insert(message.deduplication_id.clone()) {
                topic.messages.push(message);
            }
        }
        (200, json!({"Successful": successful, "Failed": failed}))
    }

    /// What a topic says of itself.
    pub(super) fn attributes(&self, arn: &str) -> (u16, Vec<u8>) {
        if !self.0.contains_key(arn) {
            return (404, refusal("NotFound"));
        }
        let entry = |(key, value)| format!("<entry><key>{key}</key><value>{value}</value></entry>");
        let fifo = arn.strip_suffix(".fifo").is_some().to_string();
        let entries: String = [("FifoTopic", fifo.as_str()), ("SubscriptionsConfirmed", "0")].map(entry).concat();
        let inner = format!("<GetTopicAttributesResult><Attributes>{entries}</Attributes></GetTopicAttributesResult>");
        (200, format!("<GetTopicAttributesResponse>{inner}</GetTopicAttributesResponse>").into_bytes())
    }
}

/// The batch of a form, in SQS' words.
pub(super) fn batch(form: &BTreeMap<String, String>) -> Value {
    let mut entries = Vec::new();
    for number in 1.. {
        let part = |name: &str| form.get(&format!("PublishBatchRequestEntries.member.{number}.{name}"));
        let Some(id) = part("Id") else { break };
        let mut attributes = serde_json::Map::new();
        for number in 1.. {
            let of_attribute = |name: &str| part(&format!("MessageAttributes.entry.{number}.{name}"));
            let Some(name) = of_attribute("Name") else { break };
            let value = json!({
                "DataType": of_attribute("Value.DataType"),
                "StringValue": of_attribute("Value.StringValue"),
                "BinaryValue": of_attribute("Value.BinaryValue"),
            });
            attributes.insert(name.clone(), value);
        }
        entries.push(json!({
            "Id": id,
            "MessageBody": part("Message"),
            "MessageAttributes": attributes,
            "MessageGroupId": part("MessageGroupId"),
            "MessageDeduplicationId": part("MessageDeduplicationId"),
        }));
    }
    json!({"QueueUrl": form.get("TopicArn"), "Entries": entries})
}

/// An answer in SQS' words, as SNS says it.
pub(super) fn xml(status: u16, answer: &Value) -> Vec<u8> {
    if status != 200 {
        return refusal(field(answer, "__type").as_str().unwrap_or_default());
    }
    let element = |name: &str, value: &Value| {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        format!("<{name}>{text}</{name}>")
    };
    let list = |name: &str| {
        let members = field(answer, name).as_array().into_iter().flatten().map(|member| {
            let fields = member.as_object().into_iter().flatten();
            format!("<member>{}</member>", fields.map(|(name, value)| element(name, value)).collect::<String>())
        });
        format!("<{name}>{}</{name}>", members.collect::<String>())
    };
    let result = format!("<PublishBatchResult>{}{}</PublishBatchResult>", list("Failed"), list("Successful"));
    format!("<PublishBatchResponse>{result}</PublishBatchResponse>").into_bytes()
}

/// A refusal in SNS' form.
pub(super) fn refusal(code: &str) -> Vec<u8> {
    let error = format!("<Error><Type>Sender</Type><Code>{code}</Code><Message>by the gate</Message></Error>");
    format!("<ErrorResponse>{error}</ErrorResponse>").into_bytes()
}
