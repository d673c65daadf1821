//! [`Producers`]: the producers that share the partitions, and the search producer, which searches for refused records.
//!
//! In: records with their partitions, from [`Partitions`](super::partitions::Partitions). Out: messages for librdkafka, and the producers
//! that have ended.

mod client;

pub(super) use client::{Client, flush_for_a_millisecond};

use super::METADATA_PATIENCE;
use super::callbacks::Context;
use super::config::{KafkaSettings, SettingsError};
use super::errors;
use super::partitions::{Clients, NotTaken, PartitionTarget, Ticket};
use super::topics::Topics;
use crate::sink::{Failure, FailureClass, Record};
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::producer::{BaseProducer, Producer as _};
use std::io;
use std::time::{Duration, Instant};

/// If a producer ends so soon after it began, no record is the cause, unless its error says so.
const SOON: Duration = Duration::from_secs(5);

/// After so many producers in a row that ended within a tenth of [`SOON`], the sink gives up, whatever their errors say.
const MOST_FRUITLESS: u32 = 100;

/// The pause after a producer that could not begin, since its user lacks a right.
const FORBIDDEN_PAUSE: Duration = Duration::from_secs(1);

/// How often a producer is flushed until the records that something waits for have left.
const URGE_EVERY: Duration = Duration::from_millis(5);

/// How often clients ask for a partition that they do not know, at most.
const LEARN_EVERY: Duration = METADATA_PATIENCE;

/// All producers of the sink.
pub(super) struct Producers {
    numbered: Vec<NumberedProducer>,
    /// The search producer, once one was needed.
    search_producer: Option<Client>,
    /// When a producer was last flushed by [`Producers::urge`].
    urged: Instant,
    /// When a client last asked for a partition.
    learned: Option<Instant>,
    settings: KafkaSettings,
}

struct NumberedProducer {
    client: Client,
    began: Instant,
    /// How many producers in a row ended soon.
    fruitless: u32,
}

/// The producers, with the names of topics: the [`Clients`] of the partitions.
pub(super) struct ProducersWithTopics<'a> {
    producers: &'a mut Producers,
    topics: &'a Topics,
}

impl Producers {
    pub(super) fn new(settings: &KafkaSettings, count: u8) -> Result<Self, SettingsError> {
        Self::of(settings, (0..count.max(1)).map(|_| settings.producer()))
    }

    /// The only producer of transactions under `name`.
    pub(super) fn in_transactions(settings: &KafkaSettings, name: &str) -> Result<Self, SettingsError> {
        Self::of(settings, std::iter::once(settings.transactional(name)))
    }

    fn of(
        settings: &KafkaSettings,
        producers: impl Iterator<Item = Result<BaseProducer<Context>, SettingsError>>,
    ) -> Result<Self, SettingsError> {
        let now = Instant::now();
        let no_thread = |error| SettingsError::Together { reason: format!("no thread can be started: {error}") };
        let client = |producer| Client::new(producer).map_err(no_thread);
        let numbered = |producer| Ok(NumberedProducer { client: client(producer?)?, began: now, fruitless: 0 });
        let numbered = producers.map(numbered).collect::<Result<_, SettingsError>>()?;
        Ok(Self { numbered, search_producer: None, urged: now, learned: None, settings: settings.clone() })
    }

    pub(super) fn count(&self) -> u8 {
        u8::try_from(self.numbered.len()).unwrap_or(u8::MAX)
    }

    /// The first producer.
    ///
    /// # Panics
    /// Never: there is always a producer.
    #[inline]
    pub(super) fn first(&self) -> &BaseProducer<Context> {
        let Some(producer) = self.numbered.first() else { panic!("no producer") };
        producer.client.producer()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Client> {
        self.numbered.iter().map(|producer| &producer.client).chain(&self.search_producer)
    }

    pub(super) fn into_clients(self) -> impl Iterator<Item = Client> {
        self.numbered.into_iter().map(|producer| producer.client).chain(self.search_producer)
    }

    /// The producers as the partitions' [`Clients`].
    #[inline]
    pub(super) fn with<'a>(&'a mut self, topics: &'a Topics) -> ProducersWithTopics<'a> {
        ProducersWithTopics { producers: self, topics }
    }

    /// Flushes the producers that have records waiting for `linger.ms`.
    pub(super) fn flush(&mut self) {
        self.numbered.iter_mut().for_each(|producer| producer.client.flush(false));
    }

    /// Flushes the search producer again, in case its records could not leave at the first flush. `all`: the others as well, since
    /// something waits for their records.
    pub(super) fn urge(&mut self, now: Instant, all: bool) {
        if now.saturating_duration_since(self.urged) < URGE_EVERY {
            return;
        }
        let others = self.numbered.iter_mut().map(|producer| &mut producer.client).filter(|_| all);
        for client in self.search_producer.iter_mut().chain(others).filter(|it| it.producer().in_flight_count() > 0) {
            self.urged = now;
            client.flush(true);
        }
    }

    /// Takes the search producer if `is_so` says so. Another one starts when it is needed.
    pub(super) fn take_search_producer(&mut self, is_so: impl FnOnce(&Client) -> bool) -> Option<Client> {
        self.search_producer.take_if(|client| is_so(client))
    }

    /// The numbers of the producers that take nothing any more, except for those that could not begin a moment ago, since their user lacks a
    /// right.
    pub(super) fn ended(&self, now: Instant) -> Vec<u8> {
        let pauses = |producer: &NumberedProducer| {
            now.saturating_duration_since(producer.began) < FORBIDDEN_PAUSE && producer.client.is_forbidden()
        };
        let ended = |(_, it): &(usize, &NumberedProducer)| it.client.has_ended() && !pauses(it);
        self.numbered.iter().enumerate().filter(ended).filter_map(|(at, _)| u8::try_from(at).ok()).collect()
    }

    /// The failure of a producer that takes nothing any more.
    pub(super) fn fatal(&self, producer: u8) -> Option<Failure> {
        let (code, text) = self.numbered.get(usize::from(producer))?.client.producer().client().fatal_error()?;
        let text = format!("the Kafka producer has failed: {text}");
        Some(Failure::new(FailureClass::Client, errors::reason(Some(code)), text))
    }

    /// Whether the producer or the search producer could not begin, since their user lacks a right.
    #[cold]
    pub(super) fn has_forbidden(&self, producer: u8) -> bool {
        let producer = self.numbered.get(usize::from(producer)).map(|producer| &producer.client);
        producer.into_iter().chain(&self.search_producer).any(Client::is_forbidden)
    }

    /// Whether the producers with this number end one after the other, or the last one ended soon, for a cause that is neither a record nor
    /// a missing right.
    pub(super) fn is_fruitless(&self, producer: u8, now: Instant) -> bool {
        let Some(producer) = self.numbered.get(usize::from(producer)) else { return false };
        let cause = producer.client.producer().client().fatal_error().map(|(code, _)| code);
        let passes = matches!(
            cause,
            None | Some(RDKafkaErrorCode::GaplessGuarantee | RDKafkaErrorCode::ClusterAuthorizationFailed)
        );
        let soon = now.saturating_duration_since(producer.began) < SOON;
        soon && !passes || producer.fruitless >= MOST_FRUITLESS
    }

    /// Replaces the producer with this number, which it returns, with `producer`.
    pub(super) fn replace(&mut self, number: u8, producer: BaseProducer<Context>) -> io::Result<Client> {
        let (client, now) = (Client::new(producer)?, Instant::now());
        let Some(producer) = self.numbered.get_mut(usize::from(number)) else { return Ok(client) };
        let soon = now.saturating_duration_since(producer.began) < SOON / 10;
        producer.fruitless = if soon { producer.fruitless + 1 } else { 0 };
        producer.began = now;
        Ok(std::mem::replace(&mut producer.client, client))
    }
}

impl Clients for ProducersWithTopics<'_> {
    #[inline]
    fn hand_over(&mut self, target: PartitionTarget, record: &Record<'_>, ticket: Ticket) -> Result<(), NotTaken> {
        let Producers { numbered, learned, .. } = &mut *self.producers;
        let Some(producer) = numbered.get_mut(usize::from(target.producer)) else { return Err(NotTaken::Later) };
        send((&mut producer.client, learned), self.topics, target, record, ticket)
    }

    fn collect(&mut self, target: PartitionTarget, record: &Record<'_>, ticket: Ticket) -> Result<(), NotTaken> {
        let Producers { search_producer, learned, settings, .. } = &mut *self.producers;
        let client = if let Some(client) = search_producer {
            client
        } else {
            let producer = settings.search_producer().map_err(|_| NotTaken::Later)?;
            search_producer.insert(Client::new(producer).map_err(|_| NotTaken::Later)?)
        };
        send((client, learned), self.topics, target, record, ticket)
    }

    fn send_collected(&mut self) {
        if let Some(search_producer) = &mut self.producers.search_producer {
            search_producer.flush(true);
        }
    }

    fn request_bytes(&self) -> u64 {
        self.producers.settings.request_bytes()
    }
}

#[inline]
fn send(
    (client, learned): (&mut Client, &mut Option<Instant>),
    topics: &Topics,
    target: PartitionTarget,
    record: &Record<'_>,
    ticket: Ticket,
) -> Result<(), NotTaken> {
    let topic = (target.topic, topics.name(target.topic));
    let mut sent = client.send(topic, target.partition, record, ticket.pack());
    if sent == Err(RDKafkaErrorCode::UnknownPartition) && may_learn(learned) {
        // The cluster has named the partition to the first producer. This client would learn of it within minutes.
        client.learn(topic.1);
        sent = client.send(topic, target.partition, record, ticket.pack());
    }
    sent.map_err(|code| {
        client.ended |= code == RDKafkaErrorCode::Fatal;
        if client.ended && client.is_forbidden() {
            return NotTaken::Refused(errors::of_forbidden(record.topic));
        }
        not_taken(record, code)
    })
}

/// The error for a record that librdkafka did not take.
fn not_taken(record: &Record<'_>, code: RDKafkaErrorCode) -> NotTaken {
    let failure = |text| Failure::new(errors::class(code), errors::reason(Some(code)), text);
    #[allow(clippy::wildcard_enum_match_arm, reason = "librdkafka has some two hundred codes, and grows")]
    match code {
        RDKafkaErrorCode::MessageSizeTooLarge => NotTaken::Refused(failure(format!(
            "its {} bytes are more than the producer may send: raise -X message.max.bytes, and with it the topic's max.message.bytes",
            record.bytes()
        ))),
        code => match errors::class(code) {
            FailureClass::Row | FailureClass::Topic => {
                NotTaken::Refused(failure(format!("topic {}: {code}", record.topic)))
            }
            FailureClass::Environment | FailureClass::LogIn | FailureClass::Client | FailureClass::Unlisted => {
                NotTaken::Later
            }
        },
    }
}

/// Whether a client may ask for partitions now.
#[cold]
fn may_learn(learned: &mut Option<Instant>) -> bool {
    let now = Instant::now();
    let is_due = learned.is_none_or(|at| now.saturating_duration_since(at) >= LEARN_EVERY);
    if is_due {
        *learned = Some(now);
    }
    is_due
}
