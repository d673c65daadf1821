//! A proxy in front of a server of SQS' protocol that refuses, throttles, and lets batches fail in part. By itself, topics of SNS.
//!
//! In: a port, what is to be refused. Out: a loopback port that forwards each request, or answers it in the service's place as the real
//! one does. It knows what is under way at each moment, and tells when two messages of a group are.
//!
//! Specification: Amazon SQS API Reference, "SendMessageBatch"; Smithy, "AWS JSON 1.0 protocol"; for SNS see `topics`.

mod topics;

use std::collections::{BTreeMap, BTreeSet};
use std::io::BufReader;
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::Result;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::brokers::{SqsMessage, field, post};
use crate::http::{self, Request};
use crate::listener::Listener;
use topics::Topics;

/// The code that refuses a request with unknown keys.
const UNKNOWN_KEYS: &str = "com.amazon.coral.service#UnrecognizedClientException";

/// A digit that many bodies have and many have not.
const SOME: &str = "7";

/// Messages that are to fail in batches.
#[derive(Debug, Clone)]
pub struct Failing {
    /// A message fails if its body contains this.
    pub body: String,
    /// The code of the failure.
    pub code: &'static str,
    /// Whether the failure is the sender's fault.
    pub by_sender: bool,
    /// How many messages fail.
    pub times: usize,
}

/// The proxy; it ends when dropped, with its connections.
#[derive(Debug)]
pub struct Gate {
    shared: Arc<Shared>,
    listener: Listener,
}

#[derive(Debug, Default)]
struct Shared {
    /// The server's port; `None`: there is none, and topics are its own.
    target: Option<u16>,
    topics: Mutex<Topics>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Requests for these queues are refused with these codes.
    refused: BTreeMap<String, &'static str>,
    /// All messages are refused with this status and code.
    throttled: Option<(u16, &'static str)>,
    /// How many batches were answered so.
    throttlings: usize,
    /// The keys of every request are unknown.
    keys_refused: bool,
    failing: Vec<Failing>,
    /// How many deletions are still to be lost.
    deletions_lost: usize,
    /// How long each batch is held before it is forwarded.
    delay: Duration,
    /// Groups whose messages are under way, by queue and name.
    under_way: BTreeSet<(String, String)>,
    overlaps: usize,
    batches: usize,
    most_at_once: usize,
    at_once: usize,
    connections: Vec<TcpStream>,
}

impl Gate {
    /// Forwards a free loopback port to the server on that port.
    ///
    /// # Errors
    /// No port can be opened.
    pub fn start(target: u16) -> Result<Self> {
        Self::before(Some(target))
    }

    /// Topics of SNS on a free loopback port.
    ///
    /// # Errors
    /// No port can be opened.
    pub fn of_topics() -> Result<Self> {
        Self::before(None)
    }

    fn before(target: Option<u16>) -> Result<Self> {
        let shared = Arc::new(Shared { target, topics: Mutex::default(), state: Mutex::default() });
        let its = Arc::clone(&shared);
        let listener = Listener::start(move |client| accept(client, &its))?;
        Ok(Self { shared, listener })
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.listener.port()
    }

    /// What `--to` takes for it.
    pub fn url(&self) -> String {
        let (service, region) = if self.shared.target.is_some() { ("sqs", "elasticmq") } else { ("sns", "region-1") };
        format!("{service}+http://test:test@{}/{region}", self.listener.address())
    }

    /// Creates a topic with this ARN.
    pub fn create_topic(&self, arn: &str) {
        self.shared.topics.lock().create(arn);
    }

    /// What a topic took, in its order.
    pub fn published(&self, arn: &str) -> Vec<SqsMessage> {
        self.shared.topics.lock().messages(arn)
    }

    /// From now on messages for the queue are refused with this code.
    pub fn refuse(&self, queue: &str, code: &'static str) {
        self.shared.state.lock().refused.insert(queue.to_owned(), code);
    }

    /// Ends what [`Gate::refuse`] began.
    pub fn allow(&self, queue: &str) {
        self.shared.state.lock().refused.remove(queue);
    }

    /// From now on all messages are refused with this status and code; `None` ends that.
    pub fn throttle(&self, with: Option<(u16, &'static str)>) {
        self.shared.state.lock().throttled = with;
    }

    /// How many batches were refused so until now.
    pub fn throttled(&self) -> usize {
        self.shared.state.lock().throttlings
    }

    /// From now on all keys are unknown.
    pub fn refuse_keys(&self) {
        self.shared.state.lock().keys_refused = true;
    }

    /// Some messages of batches fail, and the others do not.
    pub fn fail(&self, failing: Failing) {
        self.shared.state.lock().failing.push(failing);
    }

    /// The next requests that delete received messages have no effect, so that those can be received again.
    pub fn lose_deletions(&self, times: usize) {
        self.shared.state.lock().deletions_lost = times;
    }

    /// Messages are throttled, or the service is unavailable, or some of each batch fail: as the dice say, until it eases.
    pub fn disturb(&self, dice: u64) {
        match dice % 3 {
            0 => self.throttle(Some((400, "ThrottlingException"))),
            1 => self.throttle(Some((503, "ServiceUnavailable"))),
            _ => {
                let body = SOME.to_owned();
                self.fail(Failing { body, code: "InternalError", by_sender: false, times: usize::MAX });
            }
        }
    }

    /// Nothing is throttled any more, and nothing fails.
    pub fn ease(&self) {
        let mut state = self.shared.state.lock();
        state.throttled = None;
        state.failing.clear();
    }

    /// Each batch takes so much longer.
    pub fn delay(&self, delay: Duration) {
        self.shared.state.lock().delay = delay;
    }

    /// All connections are lost, with what is under way on them.
    pub fn cut(&self) {
        for connection in self.shared.state.lock().connections.drain(..) {
            drop(connection.shutdown(Shutdown::Both));
        }
    }

    /// How many messages came while another one of their group was under way, or in the same batch.
    pub fn overlaps(&self) -> usize {
        self.shared.state.lock().overlaps
    }

    /// How many batches there were, and how many of them at a time at most.
    pub fn batches(&self) -> (usize, usize) {
        let state = self.shared.state.lock();
        (state.batches, state.most_at_once)
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.listener.close();
        self.cut();
    }
}

fn accept(client: TcpStream, shared: &Arc<Shared>) {
    let its = Arc::clone(shared);
    if let Ok(kept) = client.try_clone() {
        shared.state.lock().connections.push(kept);
        // A connection that breaks is the client's to notice.
        thread::spawn(move || {
            drop(its.serve(&client));
            // The copy that is kept to be cut would leave it open.
            drop(client.shutdown(Shutdown::Both));
        });
    }
}

fn refusal(status: u16, code: &str) -> (u16, Vec<u8>) {
    (status, json!({"__type": code, "message": "by the gate"}).to_string().into_bytes())
}

impl Shared {
    fn serve(&self, client: &TcpStream) -> Result<()> {
        client.set_nodelay(true)?;
        let mut reader = BufReader::new(client);
        while let Some(request) = Request::read(&mut reader)? {
            // It is empty in requests to SNS, whose action is in the body.
            let target = request.value("x-amz-target");
            let (status, body) = match (target, self.target) {
                (_, Some(_)) if self.state.lock().keys_refused => refusal(403, UNKNOWN_KEYS),
                ("AmazonSQS.SendMessageBatch", Some(port)) => {
                    let batch = serde_json::from_slice(&request.body)?;
                    let forward = |batch: &Value| post(port, target, batch.to_string().as_bytes());
                    self.batch(batch, forward)?
                }
                ("AmazonSQS.DeleteMessageBatch", Some(_)) if self.state.lock().loses_deletion() => {
                    refusal(503, "ServiceUnavailable")
                }
                (target, Some(port)) => post(port, target, &request.body)?,
                (_, None) => self.query(&request.body)?,
            };
            http::answer(client, status, "", &body)?;
            if request.value("connection").eq_ignore_ascii_case("close") {
                break;
            }
        }
        Ok(())
    }

    /// One of SNS' requests.
    fn query(&self, body: &[u8]) -> Result<(u16, Vec<u8>)> {
        let form: BTreeMap<String, String> = form_urlencoded::parse(body).into_owned().collect();
        let of_form = |name: &str| form.get(name).map(String::as_str).unwrap_or_default();
        if self.state.lock().keys_refused {
            return Ok((403, topics::refusal("InvalidClientTokenId")));
        }
        Ok(match of_form("Action") {
            "PublishBatch" => {
                let publish = |batch: &Value| {
                    let (status, answer) = self.topics.lock().publish(batch);
                    Ok((status, answer.to_string().into_bytes()))
                };
                let (status, answer) = self.batch(topics::batch(&form), publish)?;
                (status, topics::xml(status, &serde_json::from_slice(&answer)?))
            }
            "GetTopicAttributes" => self.topics.lock().attributes(of_form("TopicArn")),
            "ListTopics" => {
                let result = "<ListTopicsResult><Topics></Topics></ListTopicsResult>";
                (200, format!("<ListTopicsResponse>{result}</ListTopicsResponse>").into_bytes())
            }
            _ => (400, topics::refusal("InvalidAction")),
        })
    }

    fn batch(&self, batch: Value, forward: impl Fn(&Value) -> Result<(u16, Vec<u8>)>) -> Result<(u16, Vec<u8>)> {
        let place = field(&batch, "QueueUrl").as_str().and_then(|url| url.rsplit('/').next()).unwrap_or_default();
        let place = place.to_owned();
        let groups = self.state.lock().begin(&place, &batch);
        let delay = self.state.lock().delay;
        thread::sleep(delay);
        let answered = self.answer(&place, batch, forward);
        self.state.lock().end(groups);
        answered
    }

    fn answer(
        &self,
        place: &str,
        mut batch: Value,
        forward: impl Fn(&Value) -> Result<(u16, Vec<u8>)>,
    ) -> Result<(u16, Vec<u8>)> {
        let refused = {
            let mut state = self.state.lock();
            state.throttlings += usize::from(state.throttled.is_some());
            state.throttled.or_else(|| state.refused.get(place).map(|code| (400, *code)))
        };
        if let Some((status, code)) = refused {
            return Ok(refusal(status, code));
        }
        let failed = self.state.lock().fail(&mut batch);
        let is_empty = field(&batch, "Entries").as_array().is_none_or(Vec::is_empty);
        let mut answer = json!({"Successful": []});
        if failed.is_empty() || !is_empty {
            let (status, body) = forward(&batch)?;
            if status != 200 || failed.is_empty() {
                return Ok((status, body));
            }
            answer = serde_json::from_slice(&body)?;
        }
        let others = field(&answer, "Failed").as_array().cloned().unwrap_or_default();
        if let Some(answer) = answer.as_object_mut() {
            answer.insert("Failed".to_owned(), others.into_iter().chain(failed).collect());
        }
        Ok((200, answer.to_string().into_bytes()))
    }
}

impl State {
    /// Notes a batch as under way. Returns the groups that were not under way before it.
    fn begin(&mut self, queue: &str, batch: &Value) -> Vec<(String, String)> {
        let mut groups = Vec::new();
        for entry in field(batch, "Entries").as_array().into_iter().flatten() {
            let Some(group) = field(entry, "MessageGroupId").as_str() else { continue };
            let group = (queue.to_owned(), group.to_owned());
            if self.under_way.insert(group.clone()) {
                groups.push(group);
            } else {
                self.overlaps += 1;
            }
        }
        self.batches += 1;
        self.at_once += 1;
        self.most_at_once = self.most_at_once.max(self.at_once);
        groups
    }

    fn end(&mut self, groups: Vec<(String, String)>) {
        self.at_once -= 1;
        for group in groups {
            self.under_way.remove(&group);
        }
    }

    fn loses_deletion(&mut self) -> bool {
        let left = self.deletions_lost.checked_sub(1);
        self.deletions_lost = left.unwrap_or_default();
        left.is_some()
    }

    /// Takes the messages that are to fail out of a batch. Returns their failures.
    fn fail(&mut self, batch: &mut Value) -> Vec<Value> {
        let mut failed = Vec::new();
        if let Some(entries) = batch.get_mut("Entries").and_then(Value::as_array_mut) {
            entries.retain(|entry| {
                let body = field(entry, "MessageBody").as_str().unwrap_or_default();
                let failing = self.failing.iter_mut().find(|failing| failing.times > 0 && body.contains(&failing.body));
                let Some(failing) = failing else { return true };
                failing.times -= 1;
                let (code, by_sender) = (failing.code, failing.by_sender);
                failed.push(
                    json!({"Id": field(entry, "Id"), "Code": code, "SenderFault": by_sender, "Message": "by the gate"}),
                );
                false
            });
        }
        failed
    }
}
