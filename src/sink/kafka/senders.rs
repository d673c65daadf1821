//! The producers: those that share the partitions, and one for the search for refused records.
//!
//! In: records with their places, from [`Partitions`](super::partitions::Partitions). Out: to librdkafka. Says which producers
//! have ended.

use super::asking::METADATA_PATIENCE;
use super::client::Client;
use super::context::Context;
use super::failure;
use super::partitions::{Clients, NotTaken, Place, Ticket};
use super::settings::{Settings, SettingsError};
use super::topics::Topics;
use crate::sink::{Failure, FailureClass, Record};
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::producer::{BaseProducer, Producer as _};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A producer that ends so soon after it began ends for another reason than what it was handed, unless it says so.
const SOON: Duration = Duration::from_secs(5);

/// So many in a row that ended within a tenth of that are enough, whatever they say.
const MOST_FRUITLESS: u32 = 100;

/// A producer that could not begin for want of a right has so long before another one tries.
const FORBIDDEN_PAUSE: Duration = Duration::from_secs(1);

/// What was collected is told to leave this often, until it does.
const URGE_EVERY: Duration = Duration::from_millis(5);

/// A client asks for a partition that it does not know this often at most.
const LEARN_EVERY: Duration = METADATA_PATIENCE;

/// All of them.
pub(super) struct Senders {
    producers: Vec<Sharing>,
    /// There once it was needed.
    isolating: Option<Client>,
    /// When it was told last.
    urged: Instant,
    /// When one of them asked for a partition last.
    learned: Option<Instant>,
    settings: Settings,
}

struct Sharing {
    client: Client,
    began: Instant,
    /// Producers in a row that ended soon.
    fruitless: u32,
}

/// The same, with the topics' names.
pub(super) struct Named<'a> {
    senders: &'a mut Senders,
    topics: &'a Topics,
}

impl Senders {
    pub(super) fn new(settings: &Settings, producers: u8) -> Result<Self, SettingsError> {
        let now = Instant::now();
        let client = |producer| Client::new(producer).map_err(|error| no_thread(&error));
        let producer = |_| Ok(Sharing { client: client(settings.producer()?)?, began: now, fruitless: 0 });
        let producers = (0..producers.max(1)).map(producer).collect::<Result<_, SettingsError>>()?;
        Ok(Self { producers, isolating: None, urged: now, learned: None, settings: settings.clone() })
    }

    pub(super) fn count(&self) -> u8 {
        u8::try_from(self.producers.len()).unwrap_or(u8::MAX)
    }

    /// The first producer.
    ///
    /// # Panics
    /// Never: there is always a producer.
    pub(super) fn first(&self) -> Arc<BaseProducer<Context>> {
        let Some(producer) = self.producers.first() else { panic!("no producer") };
        producer.client.shared()
    }

    pub(super) fn producers(&self) -> impl Iterator<Item = &BaseProducer<Context>> {
        self.producers.iter().map(|producer| &producer.client).chain(&self.isolating).map(Client::producer)
    }

    /// The same, to be shared with another thread.
    pub(super) fn shared(&self) -> impl Iterator<Item = Arc<BaseProducer<Context>>> {
        self.producers.iter().map(|producer| &producer.client).chain(&self.isolating).map(Client::shared)
    }

    pub(super) fn into_clients(self) -> impl Iterator<Item = Client> {
        self.producers.into_iter().map(|producer| producer.client).chain(self.isolating)
    }

    /// For handing records over.
    #[inline]
    pub(super) fn with<'a>(&'a mut self, topics: &'a Topics) -> Named<'a> {
        Named { senders: self, topics }
    }

    /// What lingers should leave.
    pub(super) fn let_go(&mut self) {
        self.producers.iter_mut().for_each(|producer| producer.client.let_go(false));
    }

    /// What was collected should leave, also where it could not when it was told.
    pub(super) fn urge(&mut self, now: Instant) {
        let Some(isolating) = &mut self.isolating else { return };
        if now.saturating_duration_since(self.urged) >= URGE_EVERY && isolating.producer().in_flight_count() > 0 {
            self.urged = now;
            isolating.let_go(true);
        }
    }

    /// The isolating producer, if that is so: the next one is there once it is needed.
    pub(super) fn take_isolating(&mut self, is_so: impl FnOnce(&Client) -> bool) -> Option<Client> {
        self.isolating.take_if(|client| is_so(client))
    }

    fn isolating(&mut self) -> Result<&mut Client, NotTaken> {
        if self.isolating.is_none() {
            let producer = self.settings.isolating().map_err(|_| NotTaken::Later)?;
            self.isolating = Some(Client::new(producer).map_err(|_| NotTaken::Later)?);
        }
        self.isolating.as_mut().ok_or(NotTaken::Later)
    }

    /// The numbers of the producers that take nothing any more.
    pub(super) fn ended(&self) -> Vec<u8> {
        let ended = |(_, producer): &(usize, &Sharing)| producer.client.has_ended();
        self.producers.iter().enumerate().filter(ended).filter_map(|(at, _)| u8::try_from(at).ok()).collect()
    }

    /// Why a producer takes nothing any more.
    pub(super) fn fatal(&self, producer: u8) -> Option<Failure> {
        let (code, text) = self.producers.get(usize::from(producer))?.client.producer().client().fatal_error()?;
        let text = format!("the Kafka producer has failed: {text}");
        Some(Failure { class: FailureClass::Client, reason: failure::reason(Some(code)), text })
    }

    /// Whether a producer could not begin for want of a right, a moment ago. There is another once something is handed over.
    pub(super) fn is_forbidden(&self, producer: u8, now: Instant) -> bool {
        let producer = self.producers.get(usize::from(producer));
        producer.is_some_and(|producer| {
            now.saturating_duration_since(producer.began) < FORBIDDEN_PAUSE && producer.client.is_forbidden()
        })
    }

    /// Whether a producer or the isolating one could not begin for want of a right.
    #[cold]
    pub(super) fn has_forbidden(&self, producer: u8) -> bool {
        let producer = self.producers.get(usize::from(producer)).map(|producer| &producer.client);
        producer.into_iter().chain(&self.isolating).any(Client::is_forbidden)
    }

    /// Whether the producers with this number end one after the other, or the last ended for a cause that is neither a record nor a missing right.
    pub(super) fn is_fruitless(&self, producer: u8, now: Instant) -> bool {
        let Some(producer) = self.producers.get(usize::from(producer)) else { return false };
        let cause = producer.client.producer().client().fatal_error().map(|(code, _)| code);
        let passes = matches!(
            cause,
            None | Some(RDKafkaErrorCode::GaplessGuarantee | RDKafkaErrorCode::ClusterAuthorizationFailed)
        );
        let soon = now.saturating_duration_since(producer.began) < SOON;
        soon && !passes || producer.fruitless >= MOST_FRUITLESS
    }

    /// Puts `producer` in the place of the one with this number, which it returns.
    pub(super) fn replace(&mut self, number: u8, producer: BaseProducer<Context>) -> io::Result<Client> {
        let (client, now) = (Client::new(producer)?, Instant::now());
        let Some(producer) = self.producers.get_mut(usize::from(number)) else { return Ok(client) };
        let soon = now.saturating_duration_since(producer.began) < SOON / 10;
        producer.fruitless = if soon { producer.fruitless + 1 } else { 0 };
        producer.began = now;
        Ok(std::mem::replace(&mut producer.client, client))
    }
}

fn no_thread(error: &io::Error) -> SettingsError {
    SettingsError::Together { reason: format!("no thread can be started: {error}") }
}

impl Clients for Named<'_> {
    #[inline]
    fn hand_over(&mut self, place: Place, record: &Record<'_>, ticket: Ticket) -> Result<(), NotTaken> {
        let Senders { producers, learned, .. } = &mut *self.senders;
        let Some(producer) = producers.get_mut(usize::from(place.producer)) else { return Err(NotTaken::Later) };
        send((&mut producer.client, learned), self.topics, place, record, ticket)
    }

    fn collect(&mut self, place: Place, record: &Record<'_>, ticket: Ticket) -> Result<(), NotTaken> {
        let topics = self.topics;
        let mut learned = self.senders.learned;
        let sent = send((self.senders.isolating()?, &mut learned), topics, place, record, ticket);
        self.senders.learned = learned;
        sent
    }

    fn release(&mut self) {
        if let Some(isolating) = &mut self.senders.isolating {
            isolating.let_go(true);
        }
    }

    fn request_bytes(&self) -> u64 {
        self.senders.settings.request_bytes()
    }
}

#[inline]
fn send(
    (client, learned): (&mut Client, &mut Option<Instant>),
    topics: &Topics,
    place: Place,
    record: &Record<'_>,
    ticket: Ticket,
) -> Result<(), NotTaken> {
    let topic = (place.topic, topics.name(place.topic));
    let mut sent = client.send(topic, place.partition, record, ticket.pack());
    if sent == Err(RDKafkaErrorCode::UnknownPartition) && may_learn(learned) {
        // The cluster has named it to the first producer. This one would hear of it within minutes.
        client.learn(topic.1);
        sent = client.send(topic, place.partition, record, ticket.pack());
    }
    sent.map_err(|code| {
        client.ended |= code == RDKafkaErrorCode::Fatal;
        if client.ended && client.is_forbidden() {
            return NotTaken::Refused(failure::of_forbidden(record.topic));
        }
        failure::of_send(record, code)
    })
}

/// Whether a client may ask now.
#[cold]
fn may_learn(learned: &mut Option<Instant>) -> bool {
    let now = Instant::now();
    let is_due = learned.is_none_or(|at| now.saturating_duration_since(at) >= LEARN_EVERY);
    if is_due {
        *learned = Some(now);
    }
    is_due
}
