//! [`Questions`]: asks the cluster for topics on a thread of its own, so that the relay's thread waits for no answer.
//!
//! ```text
//!  names ──► all in one request, by each producer ──► those that are not there, one by one ──► min.insync.replicas ──► answers
//!            (each learns their partitions)           (a cluster that creates on demand        (exactly once, one
//!                                                      creates them)                            request for all)
//! ```
//!
//! In: the producers, names. Out: an answer for each name. One question is under way at a time; names that come meanwhile go into the next.
//! What an answer means is not known here.

use super::admin::Admin;
use super::callbacks::Context;
use super::config::KafkaSettings;
use super::describe::{DescribedTopics, Description, TopicShape, topic_in};
use super::replicas::replicas_of;
use super::tools::{MIN_INSYNC, REPLICAS};
use rdkafka::admin::ResourceSpecifier;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{BaseProducer, Producer as _};
use std::collections::{BTreeSet, HashMap};
use std::ffi::CString;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::thread::Builder;
use std::time::{Duration, Instant};

/// How long the cluster may take to answer a question for all names. librdkafka gives it to the controller, which may be unreachable.
const TOGETHER_WITHIN: Duration = Duration::from_secs(1);

/// How long it may take to answer a question for one name, which librdkafka gives to any broker.
const ALONE_WITHIN: Duration = Duration::from_secs(3);

/// The most names that are asked for one by one in a question, before other names get their answers.
const MOST_ALONE: usize = 100;

/// How long it may take to answer for `min.insync.replicas`.
const SETTINGS_WITHIN: Duration = Duration::from_secs(3);

/// The question that is under way.
pub(super) struct Questions {
    settings: KafkaSettings,
    under_way: Option<Receiver<Answers>>,
    /// The client that asks for settings of topics, once it was needed.
    admin: Option<Admin>,
}

/// A topic to ask for.
pub(super) struct AskedTopic {
    pub(super) name: String,
    /// Whether its `min.insync.replicas` is needed.
    pub(super) needs_least: bool,
}

/// The cluster's answer about a topic.
#[derive(Debug)]
pub(super) enum TopicAnswer {
    /// It has these partitions. `least`: its `min.insync.replicas`, if that is needed and this user may see it.
    Known { shape: TopicShape, least: Option<usize> },
    /// It takes no records. The cluster has so many brokers.
    Denied { code: RDKafkaErrorCode, brokers: usize },
    /// The cluster has not answered.
    Unanswered(KafkaError),
}

/// The answers to a question.
pub(super) struct Answers {
    pub(super) topics: Vec<(String, TopicAnswer)>,
    /// Ports of brokers.
    pub(super) ports: BTreeSet<u16>,
    admin: Option<Admin>,
}

impl Questions {
    pub(super) fn new(settings: &KafkaSettings) -> Self {
        Self { settings: settings.clone(), under_way: None, admin: None }
    }

    /// Whether another question may be asked.
    #[inline]
    pub(super) fn are_answered(&self) -> bool {
        self.under_way.is_none()
    }

    /// Asks for topics. The first of the producers gives the answer.
    pub(super) fn ask(&mut self, producers: Vec<Arc<BaseProducer<Context>>>, topics: Vec<AskedTopic>) {
        let (sender, receiver) = mpsc::channel();
        let (settings, admin) = (self.settings.clone(), self.admin.take());
        let ask = move || {
            // Nobody takes the answers of a sink that was closed.
            sender.send(answers(&producers, &topics, &settings, admin)).ok();
        };
        match Builder::new().name("kafka-ask".to_owned()).spawn(ask) {
            Ok(_) => self.under_way = Some(receiver),
            Err(error) => tracing::warn!(%error, "no thread to ask Kafka for topics; asking again"),
        }
    }

    /// The answers, once they have come.
    pub(super) fn answers(&mut self) -> Option<Answers> {
        match self.under_way.as_ref()?.try_recv() {
            Ok(mut answers) => {
                (self.under_way, self.admin) = (None, answers.admin.take());
                Some(answers)
            }
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => {
                self.under_way = None;
                None
            }
        }
    }

    /// The producers are others now: the answer does not count.
    pub(super) fn forget(&mut self) {
        self.under_way = None;
    }
}

fn answers(
    producers: &[Arc<BaseProducer<Context>>],
    asked: &[AskedTopic],
    settings: &KafkaSettings,
    mut admin: Option<Admin>,
) -> Answers {
    let mut answers = Answers { topics: Vec::new(), ports: BTreeSet::new(), admin: None };
    let names: Vec<CString> = asked.iter().filter_map(|topic| CString::new(topic.name.as_str()).ok()).collect();
    let together = ask_together(producers, &names).unwrap_or_default();
    answers.ports = together.ports;
    let described: HashMap<_, _> = together.topics.into_iter().collect();
    let (mut left, mut silent) = (MOST_ALONE, None);
    for AskedTopic { name, .. } in asked {
        let answer = match (described.get(name), &silent) {
            (Some(Ok(shape)), _) => TopicAnswer::Known { shape: *shape, least: None },
            (_, None) if left > 0 => {
                left -= 1;
                let answer = ask_alone(producers, name, &mut answers.ports);
                if let TopicAnswer::Unanswered(error) = &answer {
                    silent = Some(error.clone());
                }
                answer
            }
            (_, silent) => {
                let timed_out = KafkaError::MetadataFetch(RDKafkaErrorCode::OperationTimedOut);
                TopicAnswer::Unanswered(silent.clone().unwrap_or(timed_out))
            }
        };
        answers.topics.push((name.clone(), answer));
    }
    if let Err(error) = ask_for_least(asked, &mut answers.topics, settings, &mut admin) {
        let needs = |(topic, _): &(&AskedTopic, _)| topic.needs_least;
        for (_, (_, answer)) in asked.iter().zip(&mut answers.topics).filter(needs) {
            *answer = TopicAnswer::Unanswered(error.clone());
        }
    }
    answers.admin = admin;
    answers
}

/// Asks for all names in one request of each producer. The first one's answer counts. The others have as much time as it took.
fn ask_together(producers: &[Arc<BaseProducer<Context>>], names: &[CString]) -> Option<DescribedTopics> {
    let began = Instant::now();
    let mut asked = producers.iter().filter_map(|producer| Description::ask(producer.client(), names, TOGETHER_WITHIN));
    let first = asked.next()?;
    let others: Vec<_> = asked.collect();
    let answer = first.answer(TOGETHER_WITHIN);
    let until = Instant::now() + began.elapsed();
    for other in others {
        other.answer(until.saturating_duration_since(Instant::now())).ok();
    }
    answer.inspect_err(|error| tracing::debug!(%error, "the controller has not described topics")).ok()
}

/// Asks any broker for one name. A cluster that creates topics on demand creates it.
fn ask_alone(producers: &[Arc<BaseProducer<Context>>], name: &str, ports: &mut BTreeSet<u16>) -> TopicAnswer {
    let timed_out = KafkaError::MetadataFetch(RDKafkaErrorCode::OperationTimedOut);
    let Some(first) = producers.first() else { return TopicAnswer::Unanswered(timed_out) };
    let metadata = match first.client().fetch_metadata(Some(name), ALONE_WITHIN) {
        Ok(metadata) => metadata,
        Err(error) => return TopicAnswer::Unanswered(error),
    };
    ports.extend(metadata.brokers().iter().filter_map(|broker| u16::try_from(broker.port()).ok()));
    match topic_in(&metadata, name) {
        Ok(topic) => {
            let partitions = i32::try_from(topic.partitions().len()).unwrap_or(i32::MAX);
            let shape = TopicShape { partitions, replicas: replicas_of(topic) };
            TopicAnswer::Known { shape, least: None }
        }
        Err(code) => TopicAnswer::Denied { code, brokers: metadata.brokers().len() },
    }
}

/// Asks for the `min.insync.replicas` of the topics that need it, in one request.
fn ask_for_least(
    asked: &[AskedTopic],
    answers: &mut [(String, TopicAnswer)],
    settings: &KafkaSettings,
    admin: &mut Option<Admin>,
) -> Result<(), KafkaError> {
    let mut needed = Vec::new();
    for (topic, (_, answer)) in asked.iter().zip(answers) {
        if let TopicAnswer::Known { shape: TopicShape { replicas: Some(REPLICAS..), .. }, least } = answer
            && topic.needs_least
        {
            needed.push((topic.name.as_str(), least));
        }
    }
    if needed.is_empty() {
        return Ok(());
    }
    if admin.is_none() {
        let no_client = |_| KafkaError::AdminOpCreation("a client".to_owned());
        *admin = Some(Admin::new(settings, SETTINGS_WITHIN).map_err(no_client)?);
    }
    let Some(admin) = admin else { return Ok(()) };
    let names: Vec<_> = needed.iter().map(|(name, _)| ResourceSpecifier::Topic(name)).collect();
    for ((_, least), seen) in needed.into_iter().zip(admin.settings_of(&names)?) {
        *least = seen.ok().and_then(|settings| settings.get(MIN_INSYNC)?.parse().ok());
    }
    Ok(())
}
