//! The producers: one for each lane, and one for the search for refused records.
//!
//! In: records with their places, from [`Partitions`](super::partitions::Partitions). Out: to librdkafka. Says which lanes' producers
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
    lanes: Vec<Lane>,
    /// There once it was needed.
    isolating: Option<Client>,
    /// When it was told last.
    urged: Instant,
    /// When one of them asked for a partition last.
    learned: Option<Instant>,
    settings: Settings,
}

struct Lane {
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
    pub(super) fn new(settings: &Settings, lanes: u8) -> Result<Self, SettingsError> {
        let now = Instant::now();
        let client = |producer| Client::new(producer).map_err(|error| no_thread(&error));
        let lane = |_| Ok(Lane { client: client(settings.producer()?)?, began: now, fruitless: 0 });
        let lanes = (0..lanes.max(1)).map(lane).collect::<Result<_, SettingsError>>()?;
        Ok(Self { lanes, isolating: None, urged: now, learned: None, settings: settings.clone() })
    }

    pub(super) fn lanes(&self) -> u8 {
        u8::try_from(self.lanes.len()).unwrap_or(u8::MAX)
    }

    /// The first lane's producer.
    ///
    /// # Panics
    /// Never: there is always a lane.
    pub(super) fn first(&self) -> Arc<BaseProducer<Context>> {
        let Some(lane) = self.lanes.first() else { panic!("no lane") };
        lane.client.shared()
    }

    pub(super) fn producers(&self) -> impl Iterator<Item = &BaseProducer<Context>> {
        self.lanes.iter().map(|lane| &lane.client).chain(&self.isolating).map(Client::producer)
    }

    /// The same, to be shared with another thread.
    pub(super) fn shared(&self) -> impl Iterator<Item = Arc<BaseProducer<Context>>> {
        self.lanes.iter().map(|lane| &lane.client).chain(&self.isolating).map(Client::shared)
    }

    pub(super) fn into_clients(self) -> impl Iterator<Item = Client> {
        self.lanes.into_iter().map(|lane| lane.client).chain(self.isolating)
    }

    /// For handing records over.
    #[inline]
    pub(super) fn with<'a>(&'a mut self, topics: &'a Topics) -> Named<'a> {
        Named { senders: self, topics }
    }

    /// What lingers should leave.
    pub(super) fn let_go(&mut self) {
        self.lanes.iter_mut().for_each(|lane| lane.client.let_go(false));
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

    /// Lanes whose producer takes nothing any more.
    pub(super) fn ended(&self) -> Vec<u8> {
        let ended = |(_, lane): &(usize, &Lane)| lane.client.has_ended();
        self.lanes.iter().enumerate().filter(ended).filter_map(|(at, _)| u8::try_from(at).ok()).collect()
    }

    /// Why a lane's producer takes nothing any more.
    pub(super) fn fatal(&self, lane: u8) -> Option<Failure> {
        let (code, text) = self.lanes.get(usize::from(lane))?.client.producer().client().fatal_error()?;
        let text = format!("the Kafka producer has failed: {text}");
        Some(Failure { class: FailureClass::Client, reason: failure::reason(Some(code)), text })
    }

    /// Whether a lane's producer could not begin for want of a right, a moment ago. There is another once something is handed over.
    pub(super) fn is_forbidden(&self, lane: u8, now: Instant) -> bool {
        let lane = self.lanes.get(usize::from(lane));
        lane.is_some_and(|lane| {
            now.saturating_duration_since(lane.began) < FORBIDDEN_PAUSE && lane.client.is_forbidden()
        })
    }

    /// Whether a lane's producer or the isolating one could not begin for want of a right.
    #[cold]
    pub(super) fn has_forbidden(&self, lane: u8) -> bool {
        let lane = self.lanes.get(usize::from(lane)).map(|lane| &lane.client);
        lane.into_iter().chain(&self.isolating).any(Client::is_forbidden)
    }

    /// Whether a lane's producers end one after the other, or for what neither a record nor a missing right is to blame for.
    pub(super) fn is_fruitless(&self, lane: u8, now: Instant) -> bool {
        let Some(lane) = self.lanes.get(usize::from(lane)) else { return false };
        let cause = lane.client.producer().client().fatal_error().map(|(code, _)| code);
        let passes = matches!(
            cause,
            None | Some(RDKafkaErrorCode::GaplessGuarantee | RDKafkaErrorCode::ClusterAuthorizationFailed)
        );
        let soon = now.saturating_duration_since(lane.began) < SOON;
        soon && !passes || lane.fruitless >= MOST_FRUITLESS
    }

    /// Another producer for the lane; the one before.
    pub(super) fn replace(&mut self, lane: u8, producer: BaseProducer<Context>) -> io::Result<Client> {
        let (client, now) = (Client::new(producer)?, Instant::now());
        let Some(lane) = self.lanes.get_mut(usize::from(lane)) else { return Ok(client) };
        let soon = now.saturating_duration_since(lane.began) < SOON / 10;
        lane.fruitless = if soon { lane.fruitless + 1 } else { 0 };
        lane.began = now;
        Ok(std::mem::replace(&mut lane.client, client))
    }
}

fn no_thread(error: &io::Error) -> SettingsError {
    SettingsError::Together { reason: format!("no thread can be started: {error}") }
}

impl Clients for Named<'_> {
    #[inline]
    fn hand_over(&mut self, place: Place, record: &Record<'_>, ticket: Ticket) -> Result<(), NotTaken> {
        let Senders { lanes, learned, .. } = &mut *self.senders;
        let Some(lane) = lanes.get_mut(usize::from(place.lane)) else { return Err(NotTaken::Later) };
        send((&mut lane.client, learned), self.topics, place, record, ticket)
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
        // The cluster has named it to the first lane's client. This one would hear of it within minutes.
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
