//! [`Watch`]: asks now and then whether the cluster answers, on a thread and a connection of its own.
//!
//! A relay that waits for its slot asks so, and one with a problem. The question names one topic, so that the answer is short whatever the
//! cluster has, and comes from a client that creates no topic. librdkafka gives it to any broker that is connected: a broker in the metadata
//! that cannot be reached delays nothing.
//!
//! In: the time. Out: the last answer, as long as it is new. Invariant: one question is under way at a time, and two seconds pass between two.

use super::callbacks::Context;
use super::config::KafkaSettings;
use super::describe::topic_in;
use super::replicas::{TRANSACTION_STATE, replicas_of};
use super::retire::Retirable;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::KafkaError;
use std::collections::BTreeSet;
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::thread::Builder;
use std::time::{Duration, Instant};

/// How often the cluster is asked. librdkafka asks a second time by itself for a topic that does not exist, so this is at most one request a
/// second.
const ASK_EVERY: Duration = Duration::from_secs(2);

/// How long the cluster may take to answer.
const ANSWERED_WITHIN: Duration = Duration::from_secs(4);

/// An answer says for so long that the cluster is there.
const BELIEVED_FOR: Duration = Duration::from_secs(6);

/// If nobody wants an answer for so long, the client ends.
const UNUSED_FOR: Duration = Duration::from_secs(30);

/// The most events of the client that are served after a question.
const EVENTS: u32 = 100;

/// The client that asks.
type AskingClient = Retirable<BaseConsumer<Context>>;

/// The cluster's answer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct ClusterAnswer {
    /// How many brokers there are.
    pub(super) brokers: usize,
    /// Their ports.
    pub(super) ports: BTreeSet<u16>,
    /// The fewest replicas of a partition of the transaction coordinators' topic. `None`: it does not exist, or this user may not see it.
    pub(super) replicas: Option<usize>,
}

/// The client, and its last answer.
pub(super) struct Watch {
    settings: KafkaSettings,
    client: Option<AskingClient>,
    under_way: Option<Receiver<(AskingClient, Result<ClusterAnswer, KafkaError>)>>,
    asked: Option<Instant>,
    /// When somebody last wanted an answer.
    wanted: Instant,
    answer: Option<LastAnswer>,
}

/// An answer, with its times.
struct LastAnswer {
    asked: Instant,
    came: Instant,
    answer: ClusterAnswer,
}

impl Watch {
    pub(super) fn new(settings: &KafkaSettings, now: Instant) -> Self {
        Self { settings: settings.clone(), client: None, under_way: None, asked: None, wanted: now, answer: None }
    }

    /// The cluster's last answer, if it came a moment ago. Asks again if that is due, and does not wait for the answer.
    pub(super) fn look(&mut self, now: Instant) -> Option<&ClusterAnswer> {
        self.wanted = now;
        self.take_answer(now);
        if self.under_way.is_none() && self.asked.is_none_or(|at| now.saturating_duration_since(at) >= ASK_EVERY) {
            self.asked = Some(now);
            self.ask();
        }
        let LastAnswer { came, answer, .. } = self.answer.as_ref()?;
        (now.saturating_duration_since(*came) < BELIEVED_FOR).then_some(answer)
    }

    /// As [`Watch::look`], whether the cluster has answered a question that was asked at `since` or later.
    pub(super) fn answers_since(&mut self, since: Instant, now: Instant) -> bool {
        self.look(now).is_some() && self.answer.as_ref().is_some_and(|last| last.asked >= since)
    }

    /// Ends the client if nobody wants an answer any more.
    pub(super) fn rest(&mut self, now: Instant) {
        if self.client.is_some() && now.saturating_duration_since(self.wanted) >= UNUSED_FOR {
            self.client = None;
        }
    }

    fn take_answer(&mut self, now: Instant) {
        match self.under_way.as_ref().map(Receiver::try_recv) {
            Some(Ok((client, answer))) => {
                (self.client, self.under_way) = (Some(client), None);
                match answer {
                    Ok(answer) => {
                        let asked = self.asked.unwrap_or(now);
                        self.answer = Some(LastAnswer { asked, came: now, answer });
                    }
                    Err(error) => tracing::debug!(%error, "Kafka has not answered whether it is there"),
                }
            }
            Some(Err(TryRecvError::Disconnected)) => self.under_way = None,
            Some(Err(TryRecvError::Empty)) | None => {}
        }
    }

    fn ask(&mut self) {
        let client = match self.client.take().map_or_else(|| self.settings.watcher(), Ok) {
            Ok(client) => client,
            Err(error) => return tracing::debug!(%error, "no client to ask whether Kafka is there"),
        };
        let (sender, receiver) = mpsc::channel();
        let ask = move || {
            let answer = answer(&client);
            sender.send((client, answer)).ok();
        };
        match Builder::new().name("kafka-watch".to_owned()).spawn(ask) {
            Ok(_) => self.under_way = Some(receiver),
            Err(error) => tracing::debug!(%error, "no thread to ask whether Kafka is there"),
        }
    }
}

fn answer(client: &AskingClient) -> Result<ClusterAnswer, KafkaError> {
    let metadata = client.fetch_metadata(Some(TRANSACTION_STATE), ANSWERED_WITHIN);
    // Errors of the client are events, which nobody else serves.
    let mut served = 0;
    while client.poll(Duration::ZERO).is_some() && served < EVENTS {
        served += 1;
    }
    let metadata = metadata?;
    Ok(ClusterAnswer {
        brokers: metadata.brokers().len(),
        ports: metadata.brokers().iter().filter_map(|broker| u16::try_from(broker.port()).ok()).collect(),
        replicas: topic_in(&metadata, TRANSACTION_STATE).ok().and_then(replicas_of),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdkafka::mocking::MockCluster;
    use std::thread;

    #[test]
    fn a_cluster_that_is_there_answers_and_is_believed_for_a_while() {
        let cluster = MockCluster::new(2).unwrap();
        let settings = KafkaSettings::new(&cluster.bootstrap_servers(), "walrelay", &[], 1 << 20).unwrap();
        let began = Instant::now();
        let mut watch = Watch::new(&settings, began);
        let until = began + Duration::from_mins(1);
        while watch.look(began).is_none() {
            assert!(Instant::now() < until, "no answer");
            thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(watch.look(began).unwrap().brokers, 2);
        assert!(watch.under_way.is_none(), "it asks again in two seconds");
        assert!(watch.answers_since(began, began) && !watch.answers_since(began + ASK_EVERY / 2, began));
        assert!(watch.look(began + BELIEVED_FOR).is_none() && watch.under_way.is_some());
        watch.rest(began + BELIEVED_FOR + UNUSED_FOR);
    }
}
