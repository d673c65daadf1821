//! The client's thread: takes what may be under way, sends it in batches over several connections, settles each message.
//!
//! In: records behind the hand-over's lanes. Out: their outcomes.
//!
//! ```text
//!   lanes ─▶ batch of one queue ─▶ request on a connection of its own ─▶ result of each message ─▶ lanes
//!            (≤ 10, ≤ 1 MiB)        (up to MOST_REQUESTS at once)
//! ```
//!
//! Invariants: of a FIFO queue's group at most one message is under way, in one batch: where that one is refused or its outcome is not
//! known, no later one is in. The status 200 is no message's success. Nothing is sent a second time by itself: what fails goes back
//! to its lane.

use super::call::{Caller, Unserved};
use super::http::Link;
use super::json;
use super::judge::{self, Fault, Refusal};
use super::message::Form;
use super::pace::Pace;
use super::properties::{FIFO, is_url};
use super::protocol::{MOST_MESSAGES, Said};
use super::settings::{Service, Settings};
use crate::sink::lanes::{Event, Fit, Outcome, Owner, Place, Receiver, Stored, Taken};
use crate::sink::{Failure, FailureClass, Header, Record};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// How long the thread sleeps where nothing wakes it.
const AT_LEAST_EACH: Duration = Duration::from_mins(1);

/// Runs until the relay wants nothing more.
pub(super) async fn run(settings: &Settings, receiver: &mut Receiver) {
    let mut worker = Worker::new(settings.clone());
    loop {
        worker.fill(receiver);
        let wake = worker.pace.resumes_at().unwrap_or_else(|| Instant::now() + AT_LEAST_EACH);
        tokio::select! {
            event = receiver.next() => match event {
                Event::Work => {}
                Event::Closed => return,
            },
            Some(ended) = worker.requests.join_next() => {
                // A task that panicked has printed why; in a release the process is gone.
                if let Ok(request) = ended {
                    worker.settle(request, receiver);
                }
            }
            () = tokio::time::sleep_until(wake) => {}
        }
    }
}

/// What is under way, and what is known.
struct Worker {
    caller: Arc<Caller>,
    requests: JoinSet<Request>,
    pace: Pace,
    /// Connections that are idle; the one that was used last is last.
    links: Vec<Link>,
    /// URLs of queues, by their names.
    queues: BTreeMap<Box<str>, Arc<str>>,
    /// Standard queues that were reported.
    told: BTreeSet<Box<str>>,
    /// The service answered, and takes our keys.
    is_reached: bool,
    /// So many records are sent one by one: which of them is refused is to be found out.
    alone: usize,
}

/// A request that has ended.
struct Request {
    link: Option<Link>,
    /// The queue's name or URL; empty: it was to see who answers.
    queue: Box<str>,
    /// Its URL, once that is known.
    url: Option<Arc<str>>,
    taken: Vec<Taken<Place>>,
    answered: Result<Vec<u8>, Unserved>,
}

/// What a batch has room for.
struct Room<'a> {
    form: &'a Form,
    most: usize,
    most_bytes: usize,
    queue: Box<str>,
    is_fifo: bool,
    messages: usize,
    bytes: usize,
    last: Option<Owner>,
}

impl Room<'_> {
    /// One queue's messages; of a group of a FIFO queue's, one.
    fn fit(&mut self, record: Stored<'_>) -> Fit {
        let group = Owner::of(record.topic(), record.key());
        if self.messages == 0 {
            self.queue = record.topic().into();
            self.is_fifo = record.topic().ends_with(FIFO);
        } else if *self.queue != *record.topic() || (self.is_fifo && self.last == Some(group)) {
            return Fit::NotThis;
        }
        let bytes = self.form.most_bytes(record.held_bytes(), record.value().map_or(0, <[u8]>::len));
        if self.messages == self.most || (self.messages > 0 && self.bytes + bytes > self.most_bytes) {
            return Fit::Full;
        }
        (self.messages, self.bytes, self.last) = (self.messages + 1, self.bytes + bytes, Some(group));
        Fit::Takes
    }
}

/// A record of the lanes with its headers, which stand beside it so that their room is used again.
fn borrowed<'a>(stored: Stored<'a>, headers: &'a [Header<'a>]) -> Record<'a> {
    Record {
        topic: stored.topic(),
        key: stored.key(),
        value: stored.value(),
        headers,
        timestamp_millis: stored.timestamp_millis(),
        partition: None,
        content: stored.content(),
    }
}

impl Worker {
    fn new(settings: Settings) -> Self {
        Self {
            caller: Arc::new(Caller::new(settings)),
            requests: JoinSet::new(),
            pace: Pace::default(),
            links: Vec::new(),
            queues: BTreeMap::new(),
            told: BTreeSet::new(),
            is_reached: false,
            alone: 0,
        }
    }

    /// Sends what may be under way.
    fn fill(&mut self, receiver: &mut Receiver) {
        while self.requests.len() < self.pace.requests(Instant::now()) {
            if !self.is_reached {
                if self.requests.is_empty() {
                    self.look();
                }
                return;
            }
            if !receiver.has_ready() || !self.send(receiver) {
                return;
            }
        }
    }

    /// Whether anybody answers who takes our keys, before the first record: what may be listed is no matter.
    fn look(&mut self) {
        let caller = Arc::clone(&self.caller);
        let mut link = self.links.pop();
        self.requests.spawn(async move {
            let (action, body) = caller.settings.service.look();
            let answered = caller.call(&mut link, action, &body).await;
            Request { link, queue: "".into(), url: None, taken: Vec::new(), answered }
        });
    }

    /// Whether there was anything.
    fn send(&mut self, receiver: &mut Receiver) -> bool {
        let Settings { form, service, .. } = &self.caller.settings;
        let service = *service;
        let most = if self.alone > 0 { 1 } else { MOST_MESSAGES };
        let mut room = Room {
            form,
            most,
            most_bytes: service.batch_bytes(),
            queue: "".into(),
            is_fifo: false,
            messages: 0,
            bytes: 0,
            last: None,
        };
        let mut taken = Vec::with_capacity(MOST_MESSAGES);
        receiver.take(&mut taken, u32::MAX, |record| room.fit(record));
        let Room { queue, is_fifo, bytes, .. } = room;
        if taken.is_empty() {
            return false;
        }
        self.alone = self.alone.saturating_sub(taken.len());
        let mut entries = Vec::with_capacity(bytes + bytes / 4);
        let mut headers: Vec<Header<'_>> = Vec::new();
        for (number, stored) in taken.iter().filter_map(|taken| receiver.record(taken.item)).enumerate() {
            headers.clear();
            headers.extend(stored.headers());
            let record = borrowed(stored, &headers);
            service.entry(&mut entries, number, &record, stored.tag().origin, form, is_fifo);
        }
        self.tell(&queue, is_fifo);
        let (caller, mut link) = (Arc::clone(&self.caller), self.links.pop());
        let mut url = if service == Service::Sns || is_url(&queue) {
            Some(Arc::from(&*queue))
        } else {
            self.queues.get(&queue).cloned()
        };
        self.requests.spawn(async move {
            let answered = send_to(&caller, &mut link, &queue, &mut url, &entries).await;
            Request { link, queue, url, taken, answered }
        });
        true
    }

    /// Says once of each queue without order that it has none.
    fn tell(&mut self, queue: &str, is_fifo: bool) {
        if !is_fifo && !self.told.contains(queue) {
            self.told.insert(queue.into());
            tracing::warn!(
                name = queue,
                "standard queues and topics keep no order and may repeat messages; those whose name ends with .fifo do not"
            );
        }
    }

    /// A request has ended.
    fn settle(&mut self, request: Request, receiver: &mut Receiver) {
        let Request { link, queue, url, taken, answered } = request;
        self.links.extend(link);
        let service = self.caller.settings.service;
        if let Some(url) = url.filter(|_| service == Service::Sqs && !is_url(&queue)) {
            self.queues.entry(queue.clone()).or_insert(url);
        }
        if queue.is_empty() {
            self.looked(answered, receiver);
            return;
        }
        let judged = match answered {
            Ok(body) => self.of_results(&queue, &body, taken.len()),
            Err(unserved) => self.of_none(&queue, unserved, taken.len()),
        };
        let is_any = judged.outcomes.iter().any(|outcome| matches!(outcome, Outcome::Delivered));
        // Where nothing was said of a message, nothing is known of it.
        let outcomes = judged.outcomes.iter().chain(std::iter::repeat(&Outcome::Unknown));
        for (taken, outcome) in taken.into_iter().zip(outcomes) {
            receiver.settle(taken, outcome);
        }
        receiver.publish();
        match judged.problem {
            Some((failure, is_stale)) => self.pause(failure, is_stale, is_any, receiver),
            None => self.goes_on(receiver),
        }
    }

    fn looked(&mut self, answered: Result<Vec<u8>, Unserved>, receiver: &Receiver) {
        let settings = &self.caller.settings;
        let problem = match answered {
            Ok(_) => None,
            Err(Unserved::Failed { failure, .. }) => Some(failure),
            Err(Unserved::Refused(refusal)) => {
                let fault = refusal.fault();
                matches!(fault.0, Fault::Later | Fault::LogIn).then(|| judge::passing(settings, fault, &refusal.text))
            }
        };
        if let Some(failure) = problem {
            self.pause(failure, false, false, receiver);
            return;
        }
        self.is_reached = true;
        self.pace.went();
        receiver.set_blocked(None);
    }

    fn goes_on(&mut self, receiver: &Receiver) {
        if self.pace.went() {
            receiver.set_blocked(None);
        }
    }

    /// Nothing is sent for a while. Throttling of a service that takes some messages meanwhile, and a connection that was closed while
    /// it was idle, block nobody.
    fn pause(&mut self, failure: Failure, is_stale: bool, is_any: bool, receiver: &Receiver) {
        if is_any {
            self.goes_on(receiver);
        }
        let failures = self.pace.failed(Instant::now());
        let is_connection = failure.class == FailureClass::LogIn || failure.reason == judge::CONNECTION;
        if failures > 1 || (is_connection && !is_stale) {
            receiver.set_blocked(Some(failure));
        }
    }

    /// The status was 200: that says nothing of any message.
    fn of_results(&self, queue: &str, body: &[u8], messages: usize) -> Judged {
        let settings = &self.caller.settings;
        let Some(results) = settings.service.results(body, messages) else {
            let failure = judge::broken(settings, "its answer does not fit what was sent");
            return Judged { outcomes: Vec::new(), problem: Some((failure, false)) };
        };
        let mut judged = Judged { outcomes: Vec::with_capacity(messages), problem: None };
        for said in results {
            let outcome = match said {
                Said::Kept => Outcome::Delivered,
                Said::Nothing => {
                    let failure = judge::broken(settings, "its answer does not name each message");
                    judged.problem = Some((failure, false));
                    Outcome::Unknown
                }
                Said::Failed { code, by_sender, text } => {
                    let fault = judge::fault(&code, 200, by_sender);
                    let said = format!("{code}: {text}");
                    match fault.0 {
                        Fault::Row | Fault::Topic => Outcome::Refused(judge::refused(settings, queue, fault, &said)),
                        Fault::Later | Fault::LogIn => {
                            judged.problem = Some((judge::passing(settings, fault, &said), false));
                            Outcome::Unknown
                        }
                    }
                }
            };
            judged.outcomes.push(outcome);
        }
        judged
    }

    /// No message of the batch was looked at, or nobody knows.
    fn of_none(&mut self, queue: &str, unserved: Unserved, messages: usize) -> Judged {
        let settings = &self.caller.settings;
        let refusal: Refusal = match unserved {
            Unserved::Failed { failure, is_stale } => {
                return Judged { outcomes: Vec::new(), problem: Some((failure, is_stale)) };
            }
            Unserved::Refused(refusal) => refusal,
        };
        let fault = refusal.fault();
        let refused = || judge::refused(settings, queue, fault, &refusal.text);
        match fault.0 {
            Fault::Later | Fault::LogIn => {
                let failure = judge::passing(settings, fault, &refusal.text);
                Judged { outcomes: Vec::new(), problem: Some((failure, false)) }
            }
            Fault::Topic => {
                let outcomes = vec![Outcome::Refused(refused()); messages];
                // It may be created again under another URL.
                self.queues.remove(queue);
                Judged { outcomes, problem: None }
            }
            Fault::Row if messages == 1 => Judged { outcomes: vec![Outcome::Refused(refused())], problem: None },
            Fault::Row => {
                self.alone += messages;
                Judged { outcomes: Vec::new(), problem: None }
            }
        }
    }
}

/// What becomes of a batch.
struct Judged {
    /// Of each message, in their order; of those that are missing, nothing is known.
    outcomes: Vec<Outcome>,
    /// What passes by itself, and whether it was the first problem on a connection that had worked.
    problem: Option<(Failure, bool)>,
}

/// Asks for the queue's URL where that is not known, and sends the batch.
async fn send_to(
    caller: &Caller,
    link: &mut Option<Link>,
    queue: &str,
    url: &mut Option<Arc<str>>,
    entries: &[u8],
) -> Result<Vec<u8>, Unserved> {
    let known = if let Some(url) = url {
        Arc::clone(url)
    } else {
        let found = Arc::from(url_of(caller, link, queue).await?);
        *url = Some(Arc::clone(&found));
        found
    };
    let (action, body) = caller.settings.service.batch(&known, entries);
    caller.call(link, action, &body).await
}

/// The URL of a queue with this name.
pub(super) async fn url_of(caller: &Caller, link: &mut Option<Link>, queue: &str) -> Result<String, Unserved> {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Found {
        queue_url: String,
    }
    let mut body = b"{\"QueueName\":".to_vec();
    json::text(&mut body, queue);
    body.push(b'}');
    let answer = caller.call(link, "GetQueueUrl", &body).await?;
    serde_json::from_slice(&answer).map(|Found { queue_url }| queue_url).map_err(|_| Unserved::Failed {
        failure: judge::broken(&caller.settings, "its answer has no queue's URL"),
        is_stale: false,
    })
}
