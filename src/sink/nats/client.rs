//! [`NatsSession`]: the library's client behind the ordered queue. It connects, sends messages, and classifies the answers.
//!
//! In: records from the ordered queue. Out: their outcomes. Many messages are under way on one connection, and at most one of a key, since
//! JetStream accepts messages behind a refused one. Messages that were under way when a connection was lost, or that were not acknowledged
//! in time, go back into the queue. If one is a repeat, the stream drops it by its id.
//!
//! After a reconnect, the library would send the messages in its queue. So it never reconnects here: a client's runtime ends with its
//! connection, and drops queue and socket with it.
//!
//! With `atomic`, the waiting records of a key go as one batch, which the stream stores as a whole or not at all. If it does not store a
//! batch, its answer does not say which record is the cause: the records then go one by one.

use super::errors::{self, Answered, EventMeaning, NoResponders, QUESTION, classify, no_ack, not_permitted};
use super::message::{Headers, InBatch, Sending};
use super::{KIND, NatsSettings};
use crate::sink::destination::Destination as _;
use crate::sink::ordered_queue::address::Server;
use crate::sink::ordered_queue::runtime::ClientRuntime;
use crate::sink::ordered_queue::{Receiver, RecordIndex, RecordOutcome, Session, Size, TakenRecord, within};
use crate::sink::sockets::Sockets;
use crate::sink::{Failure, FailureClass};
use async_nats::connection::State;
use async_nats::{Client, HeaderMap, Message, RequestErrorKind, ServerInfo, StatusCode, Subscriber};
use bytes::Bytes;
use futures_util::stream::FuturesOrdered;
use futures_util::{FutureExt as _, StreamExt as _};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::Instant;

/// How long an answer to a question may take.
pub(super) const ANSWERED_WITHIN: Duration = Duration::from_secs(5);

/// The library's pause before it reconnects, so that it never does.
const NEVER: Duration = Duration::from_hours(24 * 365);

/// The most messages under way: enough to hide the round trip to the server and its disk. The most bytes, unless one message alone has more: the
/// library copies each message.
const WINDOW: Size = Size { records: 1024, bytes: 4 << 20 };

/// The size of the library's queue: for messages under way, messages sent again for want of an answer, and questions.
pub(super) const QUEUE: usize = 4 * WINDOW.records;

/// The most messages in a batch. Servers take 1,000.
const BATCH: u32 = 200;

/// The most batches under way. Servers take 50.
const BATCHES: usize = 16;

/// If no message at all is acknowledged for so long, messages that are at least as old are sent again: a stream without a leader drops
/// messages without an answer.
const ACKNOWLEDGED_WITHIN: Duration = Duration::from_secs(10);

/// How long a message may stay unacknowledged while others are acknowledged.
const ACKNOWLEDGED_AT_LAST: Duration = Duration::from_mins(1);

/// How often the session looks whether one of these times has run out.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The part before the number in the subject of an answer to a question.
const ANSWER: &str = "s";

/// A connection, and its messages under way.
pub(super) struct NatsSession<'a> {
    settings: &'a NatsSettings,
    connection: NatsConnection,
    answers: Subscriber,
    /// The prefix of the subjects of answers.
    inbox: String,
    flights: Flights,
    /// How many messages of a key go together. More than one only if the stream stores batches as a whole or not at all.
    most_of_a_key: u32,
    /// How many batches were sent.
    sent_batches: u64,
    /// An empty list, whose memory is used again.
    taken: Vec<TakenRecord<RecordIndex>>,
    /// When a message was last acknowledged, or the first one was sent.
    acknowledged: Instant,
    /// When the session next looks for missing acknowledgements.
    look_at: Instant,
    /// The failure for which messages are sent again: an acknowledgement is missing, and none has come since.
    missing: Option<Failure>,
    /// Whether the server is about to shut down.
    leaves: bool,
    /// Whether the library's queue is full.
    is_stuck: bool,
    /// Subjects without responders.
    no_responders: NoResponders,
}

/// An event on the connection.
pub(super) enum NatsEvent {
    Answer(Message),
    /// The library reports something. `None`: its client has ended.
    Library(Option<async_nats::Event>),
    /// The session has to look for missing acknowledgements.
    Look,
}

impl<'a> Session for NatsSession<'a> {
    type Settings = &'a NatsSettings;
    type Event = NatsEvent;

    async fn open(settings: &'a NatsSettings, attempt: usize) -> Result<Self, Failure> {
        let mut connection = NatsConnection::open(settings, attempt).await?;
        let stream = settings.stream.as_deref().filter(|_| settings.atomic);
        let atomic = match stream {
            Some(stream) => connection.allows_atomic(stream).await?,
            None => false,
        };
        let inbox = format!("{}.", connection.client.new_inbox());
        let answers = connection.client.subscribe(format!("{inbox}*")).await;
        let answers = answers.map_err(|error| KIND.broken(&connection.address, &error.to_string()))?;
        let now = Instant::now();
        Ok(Self {
            settings,
            connection,
            answers,
            inbox,
            flights: Flights::default(),
            most_of_a_key: if atomic { BATCH } else { 1 },
            sent_batches: 0,
            taken: Vec::new(),
            acknowledged: now,
            look_at: now + LOOK_EVERY,
            missing: None,
            leaves: false,
            is_stuck: false,
            no_responders: NoResponders::of(settings.stream.clone()),
        })
    }

    fn fill(&mut self, receiver: &mut Receiver) -> Result<(), Failure> {
        if self.leaves && self.flights.under_way.records == 0 {
            return Err(KIND.broken(&self.connection.address, "it is about to leave"));
        }
        while !self.leaves && receiver.has_ready() {
            let (mut size, mut taken) = (self.flights.under_way, std::mem::take(&mut self.taken));
            let most_of_a_key = if self.flights.batches < BATCHES { self.most_of_a_key } else { 1 };
            receiver.take(&mut taken, most_of_a_key, |record| size.fit(record, WINDOW));
            let any = !taken.is_empty();
            let now = Instant::now();
            // If messages are sent again for want of an answer, the time for the next one does not start over.
            if any && self.flights.under_way.records == 0 && self.missing.is_none() {
                self.acknowledged = now;
            }
            if most_of_a_key > 1 {
                taken.sort_unstable_by_key(|taken| (taken.key, taken.number));
            }
            for run in taken.chunk_by(|a, b| a.key == b.key) {
                self.send(run, now, receiver);
            }
            taken.clear();
            self.taken = taken;
            if !any {
                break;
            }
        }
        if self.is_stuck {
            return Err(KIND.broken(&self.connection.address, "it reads nothing of what is sent"));
        }
        Ok(())
    }

    async fn event(&mut self) -> NatsEvent {
        tokio::select! {
            Some(answer) = self.answers.next() => NatsEvent::Answer(answer),
            event = self.connection.events.recv() => NatsEvent::Library(event),
            () = tokio::time::sleep_until(self.look_at), if self.flights.under_way.records > 0 => NatsEvent::Look,
        }
    }

    fn heed(&mut self, event: NatsEvent, receiver: &mut Receiver) -> Result<(), Failure> {
        match event {
            NatsEvent::Answer(answer) => {
                self.settle(&answer, receiver);
                self.drain_answers(receiver);
                Ok(())
            }
            NatsEvent::Library(event) => self.heed_library(event, receiver),
            NatsEvent::Look => self.look(receiver),
        }
    }

    fn blocked(&self) -> Option<&Failure> {
        self.missing.as_ref()
    }

    fn drain(&mut self, receiver: &mut Receiver) {
        self.drain_answers(receiver);
        if self.flights.batches > 0 {
            // The stream refuses a batch with a message that it has.
            receiver.mark_each_alone(&receiver.taken());
        }
    }
}

impl NatsSession<'_> {
    /// Sends records of one key: one, or several as a batch.
    fn send(&mut self, run: &[TakenRecord<RecordIndex>], now: Instant, receiver: &mut Receiver) {
        let Some(&first) = run.first() else { return };
        let records = run.len();
        let mut flight = Flight { taken: first, records, bytes: 0, sent: now };
        let messages = match self.messages(run, receiver) {
            Ok(messages) => messages,
            Err(failure) => return receiver.search(run, &failure),
        };
        for (index, (taken, headers)) in messages.into_iter().enumerate() {
            let Some(record) = receiver.record(taken.item) else { continue };
            flight.bytes += record.held_bytes();
            let reply = (index + 1 == records).then(|| format!("{}{}", self.inbox, self.flights.next));
            let data = Bytes::copy_from_slice(record.value().unwrap_or_default());
            self.is_stuck |= !self.connection.send(record.topic(), reply, headers.map, data);
        }
        self.flights.push(flight);
    }

    /// The headers of each message. Fails if the server would close the connection over the size of one.
    fn messages(
        &mut self,
        run: &[TakenRecord<RecordIndex>],
        receiver: &Receiver,
    ) -> Result<Vec<(TakenRecord<RecordIndex>, Headers)>, Failure> {
        let sending = Sending { stream: self.settings.stream.as_deref(), id: self.settings.id };
        let most = self.connection.client.max_payload();
        let batch = (run.len() > 1).then(|| {
            self.sent_batches += 1;
            let client = self.inbox.rsplit('.').find(|part| !part.is_empty()).unwrap_or_default();
            format!("{client}-{}", self.sent_batches)
        });
        let message = |(index, taken): (usize, &TakenRecord<RecordIndex>)| {
            let record = receiver.record(taken.item)?;
            let batch = batch.as_deref();
            let batch = batch.map(|batch| InBatch { batch, sequence: index + 1, last: index + 1 == run.len() });
            let headers = Headers::of(sending, batch, record);
            let bytes = headers.bytes + record.value().map_or(0, <[u8]>::len);
            let fits = most == 0 || bytes <= most;
            Some(if fits { Ok((*taken, headers)) } else { Err(errors::too_large(record.topic(), bytes, most)) })
        };
        run.iter().enumerate().filter_map(message).collect()
    }

    /// Settles what all answers that have come are for.
    fn drain_answers(&mut self, receiver: &mut Receiver) {
        while let Some(Some(answer)) = self.answers.next().now_or_never() {
            self.settle(&answer, receiver);
        }
    }

    /// Settles the message, or the batch, that the answer is for.
    fn settle(&mut self, answer: &Message, receiver: &mut Receiver) {
        let Some(number) = answer.subject.strip_prefix(self.inbox.as_str()) else { return };
        let is_from_nobody = answer.status == Some(StatusCode::NO_RESPONDERS);
        if let Some(question) = number.strip_prefix(ANSWER).and_then(|number| number.parse().ok()) {
            let said = if is_from_nobody { Answered::no_responders() } else { Answered::of(answer.payload.clone()) };
            return self.no_responders.heed(question, &said);
        }
        let Ok(number) = number.parse() else { return };
        let Some(&Flight { taken, records, .. }) = self.flights.numbered.get(&number) else { return };
        let subject = receiver.record(taken.item).map_or("", |record| record.topic());
        let outcome = if is_from_nobody {
            Some(self.classify_nobody(subject))
        } else {
            classify(subject, records, &answer.payload)
        };
        // Other programs may answer too: the session goes on waiting for JetStream's answer.
        let Some(outcome) = outcome else { return };
        self.flights.take(number);
        match outcome {
            RecordOutcome::Delivered | RecordOutcome::Duplicate => {
                if let RecordOutcome::Duplicate = outcome {
                    receiver.settle(taken, &outcome);
                } else {
                    receiver.delivered(taken.key, records);
                }
                self.acknowledged = Instant::now();
                self.missing = None;
            }
            RecordOutcome::Refused(failure) if records > 1 => {
                receiver.search(&receiver.taken_of(taken.key), &failure);
            }
            // Alone, each record of the batch gets an answer of its own.
            _ if records > 1 => receiver.send_each_alone(&receiver.taken_of(taken.key)),
            RecordOutcome::Refused(_)
            | RecordOutcome::RefusedPerhapsStored(_)
            | RecordOutcome::Unanswered
            | RecordOutcome::Unknown
            | RecordOutcome::NotStored
            | RecordOutcome::Later(_) => {
                receiver.settle(taken, &outcome);
            }
        }
    }

    /// The outcome of a message to a subject without responders. If it is not known which streams take the subject, asks for them.
    fn classify_nobody(&mut self, subject: &str) -> RecordOutcome {
        let (outcome, question) = self.no_responders.classify(subject, Instant::now());
        if let Some(number) = question {
            let question = serde_json::json!({ "subject": subject }).to_string();
            let reply = format!("{}{ANSWER}{number}", self.inbox);
            self.is_stuck |= !self.connection.send(QUESTION, Some(reply), HeaderMap::new(), question.into());
        }
        outcome
    }

    fn heed_library(&mut self, event: Option<async_nats::Event>, receiver: &mut Receiver) -> Result<(), Failure> {
        match EventMeaning::of(&self.connection.address, event) {
            EventMeaning::Nothing => Ok(()),
            EventMeaning::Leaves => {
                self.leaves = true;
                Ok(())
            }
            EventMeaning::Closes(failure) => Err(failure),
            EventMeaning::Ended => Err(errors::ended(&self.connection.address, self.connection.timeout)),
            EventMeaning::Forbidden(subject) if subject == QUESTION => {
                self.no_responders.forbid();
                Ok(())
            }
            EventMeaning::Forbidden(subject) => {
                // The error does not say which batch it is for.
                if self.flights.batches > 0 {
                    return Err(not_permitted(&subject));
                }
                self.refuse_all_to(&subject, receiver);
                Ok(())
            }
        }
    }

    /// Settles each message to the subject as refused.
    fn refuse_all_to(&mut self, subject: &str, receiver: &mut Receiver) {
        let is_to =
            |flight: &Flight| receiver.record(flight.taken.item).is_some_and(|record| record.topic() == subject);
        let here: Vec<u64> =
            self.flights.numbered.iter().filter(|(_, flight)| is_to(flight)).map(|(number, _)| *number).collect();
        for number in here {
            if let Some(flight) = self.flights.take(number) {
                receiver.settle(flight.taken, &RecordOutcome::Refused(not_permitted(subject)));
            }
        }
    }

    /// Looks whether an acknowledgement is overdue, or the connection is lost.
    fn look(&mut self, receiver: &mut Receiver) -> Result<(), Failure> {
        let now = Instant::now();
        self.look_at = now + LOOK_EVERY;
        if self.connection.client.connection_state() == State::Disconnected {
            return Err(errors::ended(&self.connection.address, self.connection.timeout));
        }
        let none = now.duration_since(self.acknowledged) >= ACKNOWLEDGED_WITHIN;
        let patience = if none { ACKNOWLEDGED_WITHIN } else { ACKNOWLEDGED_AT_LAST };
        let mut missing = None;
        while let Some(flight) = self.flights.take_older(now, patience) {
            if missing.is_none() {
                let subject = receiver.record(flight.taken.item).map_or("", |record| record.topic());
                missing = Some(no_ack(subject, patience.as_secs()));
            }
            if flight.records > 1 {
                // The stream refuses a batch with a message that it has.
                receiver.mark_each_alone(&receiver.taken_of(flight.taken.key));
            }
            receiver.settle(flight.taken, &RecordOutcome::Unanswered);
        }
        if missing.is_some() {
            self.missing = missing;
        }
        Ok(())
    }
}

/// A message, or a batch of one key, that waits for its acknowledgement.
struct Flight {
    taken: TakenRecord<RecordIndex>,
    /// How many messages there are.
    records: usize,
    bytes: usize,
    sent: Instant,
}

/// The messages and batches under way, by their numbers, which count from 0 on each connection.
#[derive(Default)]
struct Flights {
    numbered: BTreeMap<u64, Flight>,
    /// The next number.
    next: u64,
    /// The messages under way.
    under_way: Size,
    /// How many batches are under way.
    batches: usize,
}

impl Flights {
    fn push(&mut self, flight: Flight) {
        self.under_way.records += flight.records;
        self.under_way.bytes += flight.bytes;
        self.batches += usize::from(flight.records > 1);
        self.numbered.insert(self.next, flight);
        self.next += 1;
    }

    fn take(&mut self, number: u64) -> Option<Flight> {
        let flight = self.numbered.remove(&number)?;
        self.under_way.records -= flight.records;
        self.under_way.bytes -= flight.bytes;
        self.batches -= usize::from(flight.records > 1);
        Some(flight)
    }

    /// Takes the oldest message or batch, if it has been under way for so long.
    fn take_older(&mut self, now: Instant, than: Duration) -> Option<Flight> {
        let (number, flight) = self.numbered.first_key_value()?;
        let is_old = now.duration_since(flight.sent) >= than;
        let number = *number;
        is_old.then(|| self.take(number)).flatten()
    }
}

/// A connection, with the library's client on a thread of its own.
pub(super) struct NatsConnection {
    client: Client,
    events: UnboundedReceiver<async_nats::Event>,
    /// `host:port`, for people.
    address: String,
    /// How long the server may be silent.
    timeout: Duration,
    _runtime: ClientRuntime,
}

impl NatsConnection {
    /// Connects to a server and logs in. Tries all servers, beginning with the one at index `first`.
    ///
    /// # Errors
    /// All attempts fail: the failure of the last, or of one that refuses the credentials.
    pub(super) async fn open(settings: &NatsSettings, first: usize) -> Result<Self, Failure> {
        let servers = settings.servers.iter().cycle().skip(first % settings.servers.len().max(1));
        let mut refused = KIND.broken(&settings.address(), "there is no server");
        for server in servers.take(settings.servers.len()) {
            match within(&KIND, &server.address(), Self::open_one(settings, server)).await {
                Ok(connection) => return Ok(connection),
                Err(_another) if refused.class == FailureClass::LogIn => {}
                Err(failure) => refused = failure,
            }
        }
        Err(refused)
    }

    async fn open_one(settings: &NatsSettings, server: &Server) -> Result<Self, Failure> {
        let address = server.address();
        let failed = |error: &dyn std::fmt::Display| KIND.broken(&address, &error.to_string());
        let (runtime, alive) = ClientRuntime::new("nats-client").map_err(|error| failed(&error))?;
        let (to, events) = unbounded_channel();
        let is_first = AtomicBool::new(true);
        // The library's task has this callback beside the socket, and drops both.
        let delay = move |_attempts| {
            let _alive = &alive;
            if is_first.swap(false, Ordering::Relaxed) { Duration::ZERO } else { NEVER }
        };
        let options = settings.options(&address)?.reconnect_delay_callback(delay).event_callback(move |event| {
            let _nobody_listens = to.send(event);
            std::future::ready(())
        });
        let host = if server.host.contains(':') { format!("[{}]", server.host) } else { server.host.clone() };
        let connecting = options.connect(format!("nats://{host}:{}", server.port));
        let client = runtime.run(connecting).await.map_err(|error| failed(&error))?;
        let client = client.map_err(|error| errors::of_connect(&address, &settings.login, &error))?;
        Sockets::to([server.port]).empty_at_close();
        if !client.server_info().headers {
            return Err(KIND.broken(&address, "it is older than NATS 2.2 or has headers turned off"));
        }
        Ok(Self { client, events, address, timeout: settings.timeout, _runtime: runtime })
    }

    /// The server's own description.
    pub(super) fn info(&self) -> ServerInfo {
        self.client.server_info()
    }

    /// Asks the API, while no message is under way.
    ///
    /// # Errors
    /// The connection is lost, or no answer comes.
    pub(super) async fn ask(&mut self, subject: &str, data: &str) -> Result<Answered, Failure> {
        Ok(self
            .ask_all(&[(subject.to_owned(), data.to_owned())], usize::MAX)
            .await?
            .pop()
            .unwrap_or(Answered::Forbidden))
    }

    /// Asks several questions at once, while no message is under way: each a subject, and data. The answers are in their order. If the user may
    /// not ask, there is only that answer. `most`: once the answers have so many bytes, the later ones are not awaited.
    ///
    /// # Errors
    /// As [`NatsConnection::ask`].
    pub(super) async fn ask_all(
        &mut self,
        questions: &[(String, String)],
        most: usize,
    ) -> Result<Vec<Answered>, Failure> {
        let Self { client, events, address, timeout, .. } = self;
        let asked = |(subject, data): &(String, String)| {
            client.request(subject.clone(), Bytes::copy_from_slice(data.as_bytes()))
        };
        let mut asking: FuturesOrdered<_> = questions.iter().map(asked).collect();
        let (mut answers, mut bytes) = (Vec::with_capacity(questions.len()), 0);
        while bytes < most {
            tokio::select! {
                answered = asking.next() => {
                    let answer = match answered {
                        None => break,
                        Some(Ok(Message { payload, .. })) => Answered::of(payload),
                        Some(Err(error)) if error.kind() == RequestErrorKind::NoResponders => Answered::no_responders(),
                        Some(Err(error)) if error.kind() == RequestErrorKind::TimedOut => {
                            let text = format!("no answer within {} s", ANSWERED_WITHIN.as_secs());
                            return Err(KIND.broken(address, &text));
                        }
                        Some(Err(error)) => return Err(KIND.broken(address, &error.to_string())),
                    };
                    bytes += answer.bytes();
                    answers.push(answer);
                }
                event = events.recv() => match EventMeaning::of(address, event) {
                    EventMeaning::Forbidden(_) => return Ok(vec![Answered::Forbidden]),
                    EventMeaning::Closes(failure) => return Err(failure),
                    EventMeaning::Ended => return Err(errors::ended(address, *timeout)),
                    EventMeaning::Leaves | EventMeaning::Nothing => {}
                },
            }
        }
        Ok(answers)
    }

    /// Whether a stream stores batches as a whole or not at all. A server without such batches does not say so.
    async fn allows_atomic(&mut self, stream: &str) -> Result<bool, Failure> {
        let Answered::With(data) = self.ask(&format!("$JS.API.STREAM.INFO.{stream}"), "").await? else {
            return Ok(false);
        };
        let info: Option<serde_json::Value> = serde_json::from_slice(&data).ok();
        Ok(info.and_then(|info| info.pointer("/config/allow_atomic")?.as_bool()).unwrap_or_default())
    }

    /// Hands a message to the library, which sends it soon. `false`: the library's queue is full.
    fn send(&self, subject: &str, reply: Option<String>, headers: HeaderMap, data: Bytes) -> bool {
        let subject = subject.to_owned();
        let sending = async {
            match reply {
                Some(reply) => self.client.publish_with_reply_and_headers(subject, reply, headers, data).await.is_ok(),
                None => self.client.publish_with_headers(subject, headers, data).await.is_ok(),
            }
        };
        tokio::task::unconstrained(sending).now_or_never().unwrap_or(false)
    }
}
