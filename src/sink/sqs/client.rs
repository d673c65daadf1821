//! [`SqsSession`]: the client of SQS and SNS behind the ordered queue. It sends records in batches, and classifies each answer.
//!
//! ```text
//!   queue ─▶ batch for one queue or topic ─▶ request of the AWS SDK ─▶ result of each message ─▶ queue
//!            (≤ 10, ≤ 1 MiB)                 (up to MOST_REQUESTS at once)
//! ```
//!
//! In: records. Out: their outcomes. The SDK signs, keeps connections and credentials, and retries nothing: messages that fail go back into
//! the queue. So a session never ends by itself.
//!
//! Invariants: of a FIFO queue's group at most one message is under way, in one batch: if that one is refused or its outcome is not
//! known, no later one is stored. The HTTP status 200 alone is no success of a message.
//! Specification: Amazon SQS and Amazon SNS, API References, "SendMessageBatch" and "PublishBatch".

use super::errors::{self, BatchOutcome, ServiceRefusal, SqsFault, Unserved, answered, broken, of_each, passing};
use super::message::{Batch, MOST_MESSAGES, MessageForm};
use super::{FIFO, GivenKeys, Service, SqsSettings, is_url};
use crate::sink::aws;
use crate::sink::destination::CONNECTION;
use crate::sink::ordered_queue::{
    Fit, KeyHash, LOG_IN_LABEL, Receiver, RecordIndex, RecordOutcome, Session, Stored, TakenRecord,
};
use crate::sink::{Failure, FailureClass};
use aws_config::retry::RetryConfig;
use aws_config::stalled_stream_protection::StalledStreamProtectionConfig;
use aws_config::timeout::TimeoutConfig;
use aws_config::{BehaviorVersion, SdkConfig};
use aws_credential_types::Credentials;
use aws_credential_types::provider::error::CredentialsError;
use aws_credential_types::provider::{ProvideCredentials, SharedCredentialsProvider, future};
use aws_sdk_sqs::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_sqs::types::{QueueAttributeName, SendMessageBatchResultEntry};
use aws_types::region::Region;
use secrecy::ExposeSecret as _;
use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// How long the client sleeps if nothing wakes it.
const AT_LEAST_EACH: Duration = Duration::from_mins(1);

/// The most requests under way: enough to hide the round trip to the service.
const MOST_REQUESTS: usize = 16;

/// The shortest and the longest pause after a failure. Each pause is twice the one before.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

/// How often keys from settings are read again, since files change.
const KEPT: Duration = Duration::from_mins(5);

const MISFIT: &str = "its answer does not fit what was sent";

/// The requests under way, and the client's knowledge of queues.
pub(super) struct SqsSession<'a> {
    caller: &'a Arc<Caller>,
    requests: JoinSet<EndedRequest>,
    pace: Pace,
    /// Why requests fail, until one is served.
    blocked: Option<Failure>,
    /// The URLs of queues, by their names.
    queues: BTreeMap<Box<str>, Arc<str>>,
    /// The standard queues whose missing order was logged.
    told: BTreeSet<Box<str>>,
}

/// A request that has ended.
pub(super) struct EndedRequest {
    /// The queue's name or URL.
    queue: Box<str>,
    /// The queue's URL, once it is known.
    url: Option<Arc<str>>,
    taken: Vec<TakenRecord<RecordIndex>>,
    answered: Result<BatchOutcome, Unserved>,
}

/// The room that is left in a batch.
struct Room<'a> {
    form: &'a MessageForm,
    most_bytes: usize,
    queue: Box<str>,
    is_fifo: bool,
    messages: usize,
    bytes: usize,
    last: Option<KeyHash>,
}

impl Room<'_> {
    /// Whether the batch takes the record: it has messages of one queue, and of each group of a FIFO queue at most one.
    fn fit(&mut self, record: Stored<'_>) -> Fit {
        let group = KeyHash::of(record.topic(), record.key());
        if self.messages == 0 {
            self.queue = record.topic().into();
            self.is_fifo = record.topic().ends_with(FIFO);
        } else if *self.queue != *record.topic() || (self.is_fifo && self.last == Some(group)) {
            return Fit::NotThis;
        }
        let bytes = self.form.most_bytes(record.held_bytes(), record.value().map_or(0, <[u8]>::len));
        if self.messages == MOST_MESSAGES || (self.messages > 0 && self.bytes + bytes > self.most_bytes) {
            return Fit::Full;
        }
        (self.messages, self.bytes, self.last) = (self.messages + 1, self.bytes + bytes, Some(group));
        Fit::Takes
    }
}

impl<'a> Session for SqsSession<'a> {
    type Settings = &'a Arc<Caller>;
    /// `None`: a pause is over.
    type Event = Option<EndedRequest>;

    /// Asks whether the service answers and accepts the keys. The right to list queues does not matter.
    async fn open(caller: &'a Arc<Caller>, _attempt: usize) -> Result<Self, Failure> {
        answered(&caller.settings, caller.look().await)?.ok();
        Ok(Self {
            caller,
            requests: JoinSet::new(),
            pace: Pace::default(),
            blocked: None,
            queues: BTreeMap::new(),
            told: BTreeSet::new(),
        })
    }

    fn fill(&mut self, receiver: &mut Receiver) -> Result<(), Failure> {
        while self.requests.len() < self.pace.requests(Instant::now()) && receiver.has_ready() && self.send(receiver) {}
        Ok(())
    }

    async fn event(&mut self) -> Option<EndedRequest> {
        let wake = self.pace.resumes_at.unwrap_or_else(|| Instant::now() + AT_LEAST_EACH);
        tokio::select! {
            // A task that panicked has printed its reason. In a release a panic aborts the process.
            Some(ended) = self.requests.join_next() => ended.ok(),
            () = tokio::time::sleep_until(wake) => None,
        }
    }

    fn heed(&mut self, ended: Option<EndedRequest>, receiver: &mut Receiver) -> Result<(), Failure> {
        if let Some(request) = ended {
            self.settle(request, receiver);
        }
        Ok(())
    }

    fn blocked(&self) -> Option<&Failure> {
        self.blocked.as_ref()
    }
}

impl SqsSession<'_> {
    /// Sends a batch. Returns whether there were records for one.
    fn send(&mut self, receiver: &mut Receiver) -> bool {
        let SqsSettings { form, service, .. } = &self.caller.settings;
        let service = *service;
        let mut room = Room {
            form,
            most_bytes: service.batch_bytes(),
            queue: "".into(),
            is_fifo: false,
            messages: 0,
            bytes: 0,
            last: None,
        };
        let mut taken = Vec::with_capacity(MOST_MESSAGES);
        receiver.take(&mut taken, u32::MAX, |record| room.fit(record));
        let Room { queue, is_fifo, .. } = room;
        if taken.is_empty() {
            return false;
        }
        let mut entries = service.batch();
        for (number, stored) in taken.iter().filter_map(|taken| receiver.record(taken.item)).enumerate() {
            stored.with_record(|record| entries.push(number, record, stored.tag().origin, form, is_fifo));
        }
        self.tell(&queue, is_fifo);
        let caller = Arc::clone(self.caller);
        let known = if service == Service::Sns || is_url(&queue) {
            Some(Arc::from(&*queue))
        } else {
            self.queues.get(&queue).cloned()
        };
        self.requests.spawn(async move {
            let url = match known {
                Some(url) => Ok(url),
                None => caller.url_of(&queue).await.map(Arc::from),
            };
            let (answered, url) = match url {
                Ok(url) => (caller.send(&queue, &url, entries).await, Some(url)),
                Err(unserved) => (Err(unserved), None),
            };
            EndedRequest { queue, url, taken, answered }
        });
        true
    }

    /// Logs, once for each standard queue, that it keeps no order.
    fn tell(&mut self, queue: &str, is_fifo: bool) {
        if !is_fifo && !self.told.contains(queue) {
            self.told.insert(queue.into());
            tracing::warn!(
                name = queue,
                "standard queues and topics keep no order and may repeat messages; those whose name ends with .fifo do not"
            );
        }
    }

    /// Settles the records of a request that has ended.
    fn settle(&mut self, request: EndedRequest, receiver: &mut Receiver) {
        let EndedRequest { queue, url, taken, answered } = request;
        let service = self.caller.settings.service;
        if let Some(url) = url.filter(|_| service == Service::Sqs && !is_url(&queue)) {
            self.queues.entry(queue.clone()).or_insert(url);
        }
        let batch_outcome = match answered {
            Ok(batch_outcome) => batch_outcome,
            Err(unserved) => self.of_none(&queue, unserved, taken.len()),
        };
        if let Some(failure) = &batch_outcome.among {
            receiver.search(&taken, failure);
        }
        let is_any = batch_outcome.outcomes.iter().any(|outcome| matches!(outcome, RecordOutcome::Delivered));
        // If the answer has no result for a message, nobody knows what became of it.
        let outcomes = batch_outcome.outcomes.iter().chain(std::iter::repeat(&RecordOutcome::Unknown));
        for (taken, outcome) in taken.into_iter().zip(outcomes) {
            receiver.settle(taken, outcome);
        }
        match batch_outcome.problem {
            Some(failure) => self.pause(failure, is_any),
            None => self.goes_on(),
        }
    }

    fn goes_on(&mut self) {
        if self.pace.went() {
            self.blocked = None;
        }
    }

    /// Begins a pause. If a service throttles and takes some messages meanwhile, that is not reported as blocked.
    fn pause(&mut self, failure: Failure, is_any: bool) {
        if is_any {
            self.goes_on();
        }
        let failures = self.pace.failed(Instant::now());
        let is_connection = failure.class == FailureClass::LogIn || failure.reason == CONNECTION;
        if failures > 1 || is_connection {
            self.blocked = Some(failure);
        }
    }

    /// The outcome of a batch whose request was not served.
    fn of_none(&mut self, queue: &str, unserved: Unserved, messages: usize) -> BatchOutcome {
        let settings = &self.caller.settings;
        let refusal: ServiceRefusal = match unserved {
            Unserved::Failed(failure) => return BatchOutcome::passing(failure),
            Unserved::Unanswered(failure) => {
                return BatchOutcome {
                    outcomes: vec![RecordOutcome::Unanswered; messages],
                    ..BatchOutcome::passing(failure)
                };
            }
            Unserved::Refused(refusal) => refusal,
        };
        let fault = refusal.fault();
        let refused = || errors::refused(settings, queue, fault, &refusal.text);
        let each = |outcomes| BatchOutcome { outcomes, problem: None, among: None };
        match fault.0 {
            SqsFault::Later | SqsFault::LogIn => BatchOutcome::passing(passing(settings, fault, &refusal.text)),
            SqsFault::Missing | SqsFault::NotPermitted | SqsFault::Unsupported => {
                let outcomes = vec![RecordOutcome::Refused(refused()); messages];
                // The queue may be created again under another URL.
                self.queues.remove(queue);
                each(outcomes)
            }
            SqsFault::Row | SqsFault::Unlisted if messages == 1 => each(vec![RecordOutcome::Refused(refused())]),
            SqsFault::Row | SqsFault::Unlisted => BatchOutcome { among: Some(refused()), ..each(Vec::new()) },
        }
    }
}

/// The limit of requests under way, and the pause between them. A service throttles a client that sends too much. So each failure halves
/// the limit and begins a pause, which doubles until a request succeeds. Each success raises the limit by one request.
#[derive(Debug)]
struct Pace {
    requests: usize,
    /// How many failures there were since the last success.
    failures: u32,
    resumes_at: Option<Instant>,
}

impl Default for Pace {
    fn default() -> Self {
        Self { requests: MOST_REQUESTS, failures: 0, resumes_at: None }
    }
}

impl Pace {
    /// How many requests may be under way now.
    fn requests(&mut self, now: Instant) -> usize {
        if self.resumes_at.is_some_and(|at| now < at) {
            return 0;
        }
        self.resumes_at = None;
        self.requests
    }

    /// Notes that a request was served. Returns whether it is the first one since a failure.
    fn went(&mut self) -> bool {
        let before = std::mem::take(&mut self.failures);
        self.requests = MOST_REQUESTS.min(self.requests + 1);
        before > 0
    }

    /// Notes that a request was not served. Returns the number of failures since the last success. Requests that were under way together
    /// count as one.
    fn failed(&mut self, now: Instant) -> u32 {
        if self.resumes_at.is_some_and(|at| now < at) {
            return self.failures;
        }
        let doubled = PAUSES.0 * 2_u32.saturating_pow(self.failures.min(16));
        self.failures = self.failures.saturating_add(1);
        self.requests = 1.max(self.requests / 2);
        self.resumes_at = Some(now + doubled.min(PAUSES.1));
        self.failures
    }
}

/// The SDK's client of one of the two services.
#[derive(Clone)]
enum Api {
    Sqs(aws_sdk_sqs::Client),
    Sns(aws_sdk_sns::Client),
}

/// The sender of requests to one service.
pub(super) struct Caller {
    pub(super) settings: SqsSettings,
    /// The SDK's client. `None`: it is not created yet, or the service refused its keys, which are then read again. A client whose time was wrong
    /// stays: it signs its next request with the service's time.
    api: Mutex<Option<Api>>,
}

impl ProvideCredentials for GivenKeys {
    fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        let read = self.secret.read().map_err(CredentialsError::invalid_configuration);
        future::ProvideCredentials::ready(read.map(|secret| {
            let secret = secret.expose_secret().to_owned();
            Credentials::new(self.id.clone(), secret, None, Some(SystemTime::now() + KEPT), "walrelay")
        }))
    }
}

impl Caller {
    pub(super) fn new(settings: SqsSettings) -> Self {
        Self { settings, api: Mutex::new(None) }
    }

    async fn api(&self) -> Result<Api, Unserved> {
        let mut api = self.api.lock().await;
        if let Some(api) = &*api {
            return Ok(api.clone());
        }
        let failed = |text: String| Unserved::Failed(passing(&self.settings, (SqsFault::LogIn, LOG_IN_LABEL), &text));
        let config = self.config().await.map_err(failed)?;
        let made = match self.settings.service {
            Service::Sqs => Api::Sqs(aws_sdk_sqs::Client::new(&config)),
            Service::Sns => Api::Sns(aws_sdk_sns::Client::new(&config)),
        };
        *api = Some(made.clone());
        Ok(made)
    }

    async fn config(&self) -> Result<SdkConfig, String> {
        let SqsSettings { endpoint, region, keys, timeout, .. } = &self.settings;
        let credentials = match keys {
            Some(given) => SharedCredentialsProvider::new(given.clone()),
            None => aws::credentials(region).await?,
        };
        let scheme = if endpoint.tls.is_some() { "https" } else { "http" };
        Ok(SdkConfig::builder()
            .behavior_version(BehaviorVersion::latest())
            .region(Region::new(region.clone()))
            .endpoint_url(format!("{scheme}://{}", endpoint.authority()))
            .credentials_provider(credentials)
            .http_client(aws::http_client(&endpoint.tls.clone().unwrap_or_default())?)
            // A request that the SDK sends again could arrive behind a later one.
            .retry_config(RetryConfig::disabled())
            .timeout_config(TimeoutConfig::builder().connect_timeout(*timeout).operation_timeout(*timeout).build())
            .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
            .build())
    }

    /// The reason in an error of the SDK.
    async fn unserved<E>(&self, error: SdkError<E>) -> Unserved
    where
        E: ProvideErrorMetadata + Error + Send + Sync + 'static,
    {
        let settings = &self.settings;
        let unserved = match &error {
            SdkError::ServiceError(said) => {
                let (status, meta) = (said.raw().status().as_u16(), said.err().meta());
                let said = meta.code().map(|code| (code.to_owned(), meta.message().unwrap_or_default().to_owned()));
                Unserved::Refused(ServiceRefusal::of(status, said))
            }
            SdkError::TimeoutError(_) => {
                Unserved::Unanswered(broken(settings, &format!("no answer within {} s", settings.timeout.as_secs())))
            }
            SdkError::ResponseError(_) => Unserved::Unanswered(broken(settings, MISFIT)),
            SdkError::ConstructionFailure(_) | SdkError::DispatchFailure(_) | _ => {
                let text = error.source().map_or_else(|| error.to_string(), aws::chain_of);
                Unserved::Failed(match aws::of_credentials(&error) {
                    Some(true) => passing(settings, (SqsFault::Later, CONNECTION), &text),
                    Some(false) => passing(settings, (SqsFault::LogIn, LOG_IN_LABEL), &text),
                    None => broken(settings, &text),
                })
            }
        };
        let of_keys = match &unserved {
            Unserved::Refused(refusal) => refusal.fault().0 == SqsFault::LogIn,
            Unserved::Failed(failure) | Unserved::Unanswered(failure) => failure.class == FailureClass::LogIn,
        };
        if of_keys {
            *self.api.lock().await = None;
        }
        unserved
    }

    async fn ask<T, E>(&self, request: impl Future<Output = Result<T, SdkError<E>>>) -> Result<T, Unserved>
    where
        E: ProvideErrorMetadata + Error + Send + Sync + 'static,
    {
        match request.await {
            Ok(answer) => Ok(answer),
            Err(error) => Err(self.unserved(error).await),
        }
    }

    /// Asks something that anybody with keys may ask, to see whether the service answers.
    pub(super) async fn look(&self) -> Result<(), Unserved> {
        match self.api().await? {
            Api::Sqs(api) => self.ask(api.list_queues().max_results(1).send()).await.map(drop),
            Api::Sns(api) => self.ask(api.list_topics().send()).await.map(drop),
        }
    }

    /// Sends a batch to a queue or topic, once. `resource`: its URL or ARN.
    pub(super) async fn send(&self, queue: &str, resource: &str, batch: Batch) -> Result<BatchOutcome, Unserved> {
        let batch_outcome = match (self.api().await?, batch) {
            (Api::Sqs(api), Batch::Sqs(entries)) => {
                let messages = entries.len();
                let request = api.send_message_batch().queue_url(resource).set_entries(Some(entries));
                let answer = self.ask(request.send()).await?;
                let failed = answer.failed().iter();
                let failed = failed.map(|one| (one.id(), one.code(), one.sender_fault(), one.message()));
                let kept = answer.successful().iter().map(SendMessageBatchResultEntry::id);
                of_each(&self.settings, queue, messages, kept, failed)
            }
            (Api::Sns(api), Batch::Sns(entries)) => {
                let messages = entries.len();
                let request = api.publish_batch().topic_arn(resource).set_publish_batch_request_entries(Some(entries));
                let answer = self.ask(request.send()).await?;
                let failed = answer.failed().iter();
                let failed = failed.map(|one| (one.id(), one.code(), one.sender_fault(), one.message()));
                let kept = answer.successful().iter().map(|one| one.id().unwrap_or_default());
                of_each(&self.settings, queue, messages, kept, failed)
            }
            (Api::Sqs(_), Batch::Sns(_)) | (Api::Sns(_), Batch::Sqs(_)) => None,
        };
        batch_outcome.ok_or_else(|| Unserved::Failed(broken(&self.settings, MISFIT)))
    }

    /// The URL of a queue with this name.
    pub(super) async fn url_of(&self, queue: &str) -> Result<String, Unserved> {
        let Api::Sqs(api) = self.api().await? else { return Ok(queue.to_owned()) };
        let url = self.ask(api.get_queue_url().queue_name(queue).send()).await?.queue_url;
        url.ok_or_else(|| Unserved::Failed(broken(&self.settings, MISFIT)))
    }

    /// All attributes of a queue's URL or a topic's ARN, as the service names them.
    pub(super) async fn attributes(&self, resource: &str) -> Result<BTreeMap<String, String>, Unserved> {
        match self.api().await? {
            Api::Sqs(api) => {
                let request = api.get_queue_attributes().queue_url(resource).attribute_names(QueueAttributeName::All);
                let found = self.ask(request.send()).await?.attributes.unwrap_or_default();
                Ok(found.into_iter().map(|(name, value)| (name.as_str().to_owned(), value)).collect())
            }
            Api::Sns(api) => {
                let found = self.ask(api.get_topic_attributes().topic_arn(resource).send()).await?;
                Ok(found.attributes.unwrap_or_default().into_iter().collect())
            }
        }
    }

    /// Creates a queue for a measurement.
    pub(super) async fn create(&self, queue: &str) -> Result<(), Unserved> {
        let Api::Sqs(api) = self.api().await? else { return Ok(()) };
        let fifo = queue.ends_with(FIFO).then(|| [(QueueAttributeName::FifoQueue, "true".to_owned())].into());
        self.ask(api.create_queue().queue_name(queue).set_attributes(fifo).send()).await.map(drop)
    }

    /// Removes that queue.
    pub(super) async fn remove(&self, queue: &str) -> Result<(), Unserved> {
        let Api::Sqs(api) = self.api().await? else { return Ok(()) };
        let url = self.url_of(queue).await?;
        self.ask(api.delete_queue().queue_url(url).send()).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::destination::GivenSettings;
    use crate::sink::ordered_queue::block_on;
    use crate::sink::tests::read_in_test;
    use std::io::{BufRead as _, BufReader, Read as _, Write as _};
    use std::net::TcpListener;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// A service that answers each request with the same bytes, and closes the connection. `None`: it never answers. Where it is, and how
    /// many requests came.
    fn service(answer: Option<&'static str>) -> (String, Arc<AtomicUsize>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, requests) = (listener.local_addr().unwrap().to_string(), Arc::new(AtomicUsize::new(0)));
        let count = Arc::clone(&requests);
        std::thread::spawn(move || {
            let mut silent = Vec::new();
            for socket in listener.incoming() {
                let mut reader = BufReader::new(socket.unwrap());
                let (mut line, mut length) = (String::new(), 0);
                while reader.read_line(&mut line).unwrap() > 2 {
                    let header = line.to_ascii_lowercase();
                    length = header.strip_prefix("content-length:").map_or(length, |text| text.trim().parse().unwrap());
                    line.clear();
                }
                reader.read_exact(&mut vec![0; length]).unwrap();
                count.fetch_add(1, Ordering::SeqCst);
                match answer {
                    Some(answer) => reader.get_mut().write_all(answer.as_bytes()).unwrap(),
                    None => silent.push(reader),
                }
            }
        });
        (address, requests)
    }

    fn caller(scheme: &str, address: &str) -> Caller {
        let read = |asked: &mut GivenSettings<'_>| SqsSettings::read(asked);
        let address = format!("id:secret@{address}/eu-central-1");
        Caller::new(read_in_test(scheme, &address, &[("timeout", "1s")], read).unwrap())
    }

    #[test]
    fn after_a_request_whose_time_is_wrong_the_next_one_has_the_services_time() {
        let said = r#"{"__type":"InvalidSignatureException","message":"Signature expired: 1 is now earlier than 2"}"#;
        let answer = format!(
            "HTTP/1.1 403 Forbidden\r\ndate: Fri, 01 Jan 2100 00:00:00 GMT\r\ncontent-type: application/x-amz-json-1.0\r\n\
             content-length: {}\r\nconnection: close\r\n\r\n{said}",
            said.len()
        );
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let signed_at = std::thread::spawn(move || {
            let serve = |socket: std::net::TcpStream| {
                let mut reader = BufReader::new(socket);
                let (mut line, mut length, mut at) = (String::new(), 0, String::new());
                while reader.read_line(&mut line).unwrap() > 2 {
                    let header = line.to_ascii_lowercase();
                    length = header.strip_prefix("content-length:").map_or(length, |text| text.trim().parse().unwrap());
                    header.strip_prefix("x-amz-date:").into_iter().for_each(|text| text.trim().clone_into(&mut at));
                    line.clear();
                }
                reader.read_exact(&mut vec![0; length]).unwrap();
                reader.get_mut().write_all(answer.as_bytes()).unwrap();
                at
            };
            listener.incoming().take(2).map(|socket| serve(socket.unwrap())).collect::<Vec<_>>()
        });
        let caller = caller("sqs+http", &address);
        for _ in 0..2 {
            let unserved = block_on(async { Ok::<_, Failure>(caller.look().await.unwrap_err()) }).unwrap();
            let failure = answered::<()>(&caller.settings, Err(unserved)).unwrap_err();
            assert_eq!((failure.class, failure.reason), (FailureClass::Environment, "clock"), "{failure}");
        }
        let signed_at = signed_at.join().unwrap();
        assert!(!signed_at[0].starts_with("2100") && signed_at[1].starts_with("21000101t0000"), "{signed_at:?}");
    }

    #[test]
    fn a_request_is_sent_once_whatever_becomes_of_it() {
        let answers = [
            (Some(""), "connection"),
            (Some("HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n"), "500"),
            (
                Some(
                    "HTTP/1.1 400 No\r\ncontent-length: 53\r\n\r\n{\"__type\":\"com.amazonaws.sqs#RequestThrottled\",\"m\":1}",
                ),
                "RequestThrottled",
            ),
            (Some("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{"), "connection"),
            (Some("SSH-2.0-x\r\n\r\n"), "connection"),
            (None, "no answer within 1 s"),
        ];
        for (answer, expected) in answers {
            for scheme in ["sqs+http", "sns+http"] {
                let (address, requests) = service(answer);
                let caller = caller(scheme, &address);
                let batch = caller.settings.service.batch();
                let unserved = block_on(async { Ok(caller.send("queue", "place", batch).await) }).unwrap().unwrap_err();
                assert_eq!(requests.load(Ordering::SeqCst), 1, "{scheme} {answer:?}: {unserved:?}");
                let shown = format!("{unserved:?}");
                assert!(scheme == "sns+http" || shown.contains(expected), "{answer:?}: {shown}");
            }
        }
    }

    #[test]
    fn a_service_that_is_not_there_passes_and_a_missing_key_is_the_operators() {
        let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let caller = caller("sqs+http", &nobody);
        let Err(Unserved::Failed(failure)) = block_on(async { Ok(caller.look().await) }).unwrap() else { panic!() };
        assert_eq!((failure.class, failure.reason), (FailureClass::Environment, CONNECTION), "{}", failure.text);
        let mut settings = caller.settings.clone();
        settings.keys = Some(GivenKeys { id: "id".to_owned(), secret: crate::secret::Secret::of_value("@/nowhere") });
        let caller = Caller::new(settings);
        let Err(Unserved::Failed(failure)) = block_on(async { Ok(caller.look().await) }).unwrap() else { panic!() };
        assert_eq!((failure.class, failure.reason), (FailureClass::LogIn, LOG_IN_LABEL), "{}", failure.text);
        assert!(failure.text.contains("/nowhere"), "{}", failure.text);
    }

    #[test]
    fn failures_slow_down_and_successes_speed_up() {
        let (mut pace, mut now) = (Pace::default(), Instant::now());
        assert_eq!(pace.requests(now), MOST_REQUESTS);
        assert_eq!((pace.failed(now), pace.failed(now), pace.requests(now)), (1, 1, 0));
        now += PAUSES.0;
        assert_eq!((pace.requests(now), pace.failed(now)), (MOST_REQUESTS / 2, 2));
        assert_eq!(pace.resumes_at, Some(now + PAUSES.0 * 2));
        for _ in 0..40 {
            now += PAUSES.1;
            pace.failed(now);
        }
        assert_eq!(pace.resumes_at, Some(now + PAUSES.1));
        now += PAUSES.1;
        assert_eq!((pace.requests(now), pace.went(), pace.went(), pace.requests(now)), (1, true, false, 3));
    }
}
