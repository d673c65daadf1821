//! A client of SQS' protocol, by which tests create queues and read messages.
//!
//! In: a port on loopback, actions. Out: queues, and the messages in them. It signs nothing: servers of one's own do not look.
//!
//! Specification: Amazon SQS API Reference; Smithy, "AWS JSON 1.0 protocol".

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use crate::http;

/// The region of the queues.
pub(super) const REGION: &str = "us-east-1";

/// How long each read of an answer may take, on a machine that has much else to do.
const PATIENCE: Duration = Duration::from_mins(1);

/// How long a message that is taken out is hidden from other readers.
const DRAINED_WITHIN: Duration = Duration::from_mins(10);

/// A server with queues.
#[derive(Debug, Clone, Copy)]
pub struct Queues {
    port: u16,
    /// How long each read of an answer may take.
    patience: Duration,
}

/// A message that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SqsMessage {
    /// Its body.
    pub body: String,
    /// Its attributes' values; those of binary ones as text, where they are.
    pub attributes: BTreeMap<String, String>,
    /// Its group; empty: it has none.
    pub group: String,
    /// Its deduplication id; empty: it has none.
    pub deduplication_id: String,
}

/// A message that was received, and is there until it is deleted.
#[derive(Debug, Clone)]
pub(crate) struct Received {
    /// Its id, which stays the same if it is received again.
    pub(crate) id: String,
    /// When it was sent, in milliseconds since 1970-01-01 UTC.
    pub(crate) sent_millis: Option<i64>,
    pub(crate) message: SqsMessage,
    /// The handle by which it is deleted.
    handle: String,
}

impl Received {
    fn of(message: &Value) -> Self {
        let text = |name: &str| field(message, name).as_str().unwrap_or_default().to_owned();
        let sent = field(field(message, "Attributes"), "SentTimestamp").as_str();
        Self {
            id: text("MessageId"),
            sent_millis: sent.and_then(|sent| sent.parse().ok()),
            message: self::message(message),
            handle: text("ReceiptHandle"),
        }
    }
}

impl SqsMessage {
    /// What an entry of a batch is once it is kept.
    pub(crate) fn of_entry(entry: &Value) -> Self {
        let text = |name: &str| field(entry, name).as_str().unwrap_or_default().to_owned();
        Self {
            body: text("MessageBody"),
            attributes: attributes(field(entry, "MessageAttributes")),
            group: text("MessageGroupId"),
            deduplication_id: text("MessageDeduplicationId"),
        }
    }

    /// An attribute's value; `none` where there is none.
    pub fn attribute(&self, name: &str) -> &str {
        self.attributes.get(name).map_or("none", String::as_str)
    }
}

impl Queues {
    /// The queues of the server on this port of 127.0.0.1.
    pub fn on(port: u16) -> Self {
        Self { port, patience: PATIENCE }
    }

    /// The same, for a caller that asks again if an answer takes longer than `patience`.
    pub(crate) fn asked_within(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// Creates a queue, a FIFO queue where its name says so.
    ///
    /// # Errors
    /// The server does not answer, or refuses.
    pub fn create(self, name: &str, attributes: &[(&str, &str)]) -> Result<()> {
        let mut all: BTreeMap<&str, &str> = attributes.iter().copied().collect();
        if is_fifo(name) {
            all.insert("FifoQueue", "true");
        }
        self.ask("CreateQueue", &json!({"QueueName": name, "Attributes": all})).map(drop)
    }

    /// Deletes a queue with its messages.
    ///
    /// # Errors
    /// As [`Queues::create`].
    pub fn delete(self, name: &str) -> Result<()> {
        self.ask("DeleteQueue", &json!({"QueueUrl": self.url(name)?})).map(drop)
    }

    /// Sends a message to a FIFO queue.
    ///
    /// # Errors
    /// As [`Queues::create`].
    pub fn send(self, name: &str, group: &str, id: &str, body: &str) -> Result<()> {
        let attribute = json!({"DataType": "String", "StringValue": id});
        let message = json!({
            "QueueUrl": self.url(name)?,
            "MessageBody": body,
            "MessageGroupId": group,
            "MessageDeduplicationId": id,
            "MessageAttributes": {"id": attribute},
        });
        self.ask("SendMessage", &message).map(drop)
    }

    /// How many messages are in a queue and not received, about.
    ///
    /// # Errors
    /// As [`Queues::create`].
    pub fn count(self, name: &str) -> Result<u64> {
        self.sum(&self.url(name)?, &["ApproximateNumberOfMessages"])
    }

    /// How many messages are in the queue with this URL, those among them that were received and not deleted.
    pub(crate) fn left(self, url: &str) -> Result<u64> {
        self.sum(url, &["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"])
    }

    fn sum(self, url: &str, names: &[&str]) -> Result<u64> {
        let answer = self.ask("GetQueueAttributes", &json!({"QueueUrl": url, "AttributeNames": names}))?;
        let found = |name: &&str| field(field(&answer, "Attributes"), name).as_str()?.parse::<u64>().ok();
        names.iter().map(found).sum::<Option<u64>>().with_context(|| format!("no count in {answer}"))
    }

    /// Takes out all messages; those of a FIFO queue's group in their order.
    ///
    /// # Errors
    /// As [`Queues::create`].
    pub fn drain(self, name: &str) -> Result<Vec<SqsMessage>> {
        let url = self.url(name)?;
        let mut all = Vec::new();
        loop {
            let received = self.receive(&url, DRAINED_WITHIN)?;
            if received.is_empty() {
                return Ok(all);
            }
            self.remove(&url, &received)?;
            all.extend(received.into_iter().map(|received| received.message));
        }
    }

    /// Some of what is in the queue with this URL, which nobody else receives for so long; those of a group in their order.
    pub(crate) fn receive(self, url: &str, hidden: Duration) -> Result<Vec<Received>> {
        let most = json!({
            "QueueUrl": url,
            "MaxNumberOfMessages": 10,
            "AttributeNames": ["All"],
            "MessageAttributeNames": ["All"],
            "VisibilityTimeout": hidden.as_secs(),
        });
        let answer = self.ask("ReceiveMessage", &most)?;
        Ok(field(&answer, "Messages").as_array().into_iter().flatten().map(Received::of).collect())
    }

    /// Deletes what was received.
    pub(crate) fn remove(self, url: &str, received: &[Received]) -> Result<()> {
        let numbered = received.iter().enumerate();
        let entries: Vec<Value> = numbered
            .map(|(number, received)| json!({"Id": number.to_string(), "ReceiptHandle": received.handle}))
            .collect();
        self.ask("DeleteMessageBatch", &json!({"QueueUrl": url, "Entries": entries})).map(drop)
    }

    /// The URL of the queue with this name.
    pub(crate) fn url(self, name: &str) -> Result<String> {
        let answer = self.ask("GetQueueUrl", &json!({"QueueName": name}))?;
        field(&answer, "QueueUrl").as_str().map(str::to_owned).with_context(|| format!("no URL in {answer}"))
    }

    fn ask(self, action: &str, body: &Value) -> Result<Value> {
        let body = body.to_string();
        let (status, answer) = post_within(self.port, &format!("AmazonSQS.{action}"), body.as_bytes(), self.patience)?;
        let answer = String::from_utf8_lossy(&answer);
        if status != 200 {
            bail!("{action} {body}: {status} {answer}");
        }
        if answer.is_empty() { Ok(Value::Null) } else { Ok(serde_json::from_str(&answer)?) }
    }
}

/// Whether a queue keeps its messages in order: that its name says.
fn is_fifo(name: &str) -> bool {
    name.strip_suffix(".fifo").is_some()
}

/// A member of a JSON object; null where there is none.
pub(crate) fn field<'a>(value: &'a Value, name: &str) -> &'a Value {
    value.get(name).unwrap_or(&Value::Null)
}

fn message(message: &Value) -> SqsMessage {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let own = field(message, "Attributes");
    let (group, deduplication_id) = (text(field(own, "MessageGroupId")), text(field(own, "MessageDeduplicationId")));
    let attributes = attributes(field(message, "MessageAttributes"));
    SqsMessage { body: text(field(message, "Body")), attributes, group, deduplication_id }
}

fn attributes(all: &Value) -> BTreeMap<String, String> {
    let value = |value: &Value| {
        let text = field(value, "StringValue").as_str().unwrap_or_default().to_owned();
        let bytes = field(value, "BinaryValue").as_str().map(|bytes| BASE64_STANDARD.decode(bytes).unwrap_or_default());
        bytes.map_or(text, |bytes| String::from_utf8_lossy(&bytes).into_owned())
    };
    all.as_object().into_iter().flatten().map(|(name, found)| (name.clone(), value(found))).collect()
}

/// Sends one request to 127.0.0.1, on a connection of its own: its status and body.
pub(crate) fn post(port: u16, target: &str, body: &[u8]) -> Result<(u16, Vec<u8>)> {
    post_within(port, target, body, PATIENCE)
}

fn post_within(port: u16, target: &str, body: &[u8], patience: Duration) -> Result<(u16, Vec<u8>)> {
    // moto finds the service and the region in the scope of a signature, which it does not check.
    let head = format!(
        "Content-Type: application/x-amz-json-1.0\r\nX-Amz-Target: {target}\r\nAuthorization: AWS4-HMAC-SHA256 \
         Credential=test/20260101/{REGION}/sqs/aws4_request, SignedHeaders=host, Signature=none\r\n"
    );
    http::exchange(port, "POST /", &head, body, patience)
}
