//! The relay's knowledge of topics: their indices in the metrics, and which of them were given up for a while.
//!
//! A missing or forbidden topic is waited for. Where its rows may become dead letters, it is waited for so long and no longer: from then
//! on its rows are bad rows, and only now and then one is tried. In: names, failures, the time. Out: verdicts. Reads no clock.

use crate::metrics::Metrics;
use crate::sink::Failure;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Where its rows may become dead letters, the relay waits so long for a missing or forbidden topic.
pub(super) const TOPIC_WITHIN: Duration = Duration::from_secs(30);

/// The relay waits so long for a dead-letter topic: one that is created on demand takes a moment.
pub(super) const DEAD_LETTER_TOPIC_WITHIN: Duration = Duration::from_secs(5);

/// A topic that has not failed for so long is waited for again.
const FORGOTTEN_AFTER: Duration = Duration::from_mins(1);

/// That time for a topic that shares its number, so that its deliveries are not known. While it fails, it fails again sooner
/// than this. A topic that took records in between must not count as gone.
const SHARED_FORGOTTEN_AFTER: Duration = Duration::from_secs(10);

/// Once a topic was given up, none of its rows is tried for so long: each refusal would end the producer.
const GIVEN_UP_FOR: Duration = Duration::from_secs(5);

/// Topics beyond the metrics' table share the number that a topic of this name has.
const OTHERS: &str = "other";

/// Topics that fail.
#[derive(Debug, Default)]
pub(super) struct TopicStates {
    /// The metrics' number of the topic asked for last: mostly the next one's, too.
    last: String,
    number: u16,
    /// The numbers that were asked for since the sink began.
    asked: BTreeSet<u16>,
    /// A topic was asked for that may be new to the sink, which may have waited for the destination's answer.
    is_new: bool,
    failing: Vec<Failing>,
}

#[derive(Debug)]
struct Failing {
    topic: String,
    since: Instant,
    last: Instant,
    forgotten_after: Duration,
    given_up: Option<(Instant, Failure)>,
}

impl TopicStates {
    /// The metrics' number of a topic.
    #[inline]
    pub(super) fn number(&mut self, topic: &str, metrics: &Metrics) -> u16 {
        if self.last != topic {
            topic.clone_into(&mut self.last);
            self.number = metrics.topic(topic);
            self.is_new |= self.asked.insert(self.number) || self.number == metrics.topic(OTHERS);
        }
        self.number
    }

    /// Whether a topic may have been new to the sink since the last call.
    #[inline]
    pub(super) fn take_new(&mut self) -> bool {
        std::mem::take(&mut self.is_new)
    }

    /// The sink begins again: each topic is new to it.
    pub(super) fn sink_begins(&mut self) {
        self.last.clear();
        self.asked.clear();
    }

    /// The topic that was asked for last.
    pub(super) fn last(&self) -> &str {
        &self.last
    }

    /// Whether any fails.
    #[inline]
    pub(super) fn any_failing(&self) -> bool {
        !self.failing.is_empty()
    }

    /// A record was delivered to the topic of this number: whatever was wrong with it is over, and the next time is the first.
    /// Of a number that topics share it is not known which of them it was: such a one is well once it has not failed for a while.
    #[cold]
    pub(super) fn delivered(&mut self, number: u16, metrics: &Metrics) {
        if number != metrics.topic(OTHERS) {
            self.failing.retain(|failing| metrics.topic(&failing.topic) != number);
        }
    }

    /// Returns the reason for which rows of this topic are not tried now.
    #[cold]
    pub(super) fn given_up(&self, topic: &str, now: Instant) -> Option<Failure> {
        let failing = self.failing.iter().find(|failing| failing.topic == topic)?;
        failing.given_up.as_ref().filter(|(until, _)| now < *until).map(|(_, failure)| failure.clone())
    }

    /// A record failed because of its topic. Returns whether the topic has failed for `patience`.
    pub(super) fn failed(&mut self, topic: &str, patience: Duration, metrics: &Metrics, now: Instant) -> bool {
        self.failing.retain(|failing| now.saturating_duration_since(failing.last) < failing.forgotten_after);
        if !self.failing.iter().any(|failing| failing.topic == topic) {
            let is_shared = metrics.topic(topic) == metrics.topic(OTHERS);
            let forgotten_after = if is_shared { SHARED_FORGOTTEN_AFTER.min(patience) } else { FORGOTTEN_AFTER };
            self.failing.push(Failing {
                topic: topic.to_owned(),
                since: now,
                last: now,
                forgotten_after,
                given_up: None,
            });
        }
        let Some(failing) = self.failing.iter_mut().find(|failing| failing.topic == topic) else { return false };
        failing.last = now;
        now.saturating_duration_since(failing.since) >= patience
    }

    /// Gives the topic up: none of its rows is tried for a while.
    pub(super) fn give_up(&mut self, topic: &str, failure: &Failure, now: Instant) {
        if let Some(failing) = self.failing.iter_mut().find(|failing| failing.topic == topic) {
            failing.given_up = Some((now + GIVEN_UP_FOR, failure.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::FailureClass;

    #[test]
    fn a_topic_is_waited_for_once_and_then_tried_now_and_then() {
        let failure = Failure::new(FailureClass::Topic, "unknown_topic", "gone");
        let (mut topics, start) = (TopicStates::default(), Instant::now());
        let metrics = Metrics::new("s", "p", start);
        let patience = Duration::from_secs(30);
        let mut failed = |seconds| topics.failed("orders", patience, &metrics, start + Duration::from_secs(seconds));
        assert!(!failed(0) && !failed(29) && failed(30));
        topics.give_up("orders", &failure, start + Duration::from_secs(30));
        let given_up = |seconds| topics.given_up("orders", start + Duration::from_secs(seconds)).is_some();
        assert!(given_up(34) && !given_up(35));
        let mut failed = |seconds| topics.failed("orders", patience, &metrics, start + Duration::from_secs(seconds));
        assert!(failed(36), "at the first try");
        assert!(!failed(200), "it was well meanwhile");
    }

    #[test]
    fn a_topic_that_has_taken_a_record_since_is_waited_for_again() {
        let (mut topics, start) = (TopicStates::default(), Instant::now());
        let metrics = Metrics::new("s", "p", start);
        let (orders, invoices) = (metrics.topic("orders"), metrics.topic("invoices"));
        let after = |seconds| start + Duration::from_secs(seconds);
        let patience = Duration::from_secs(30);
        assert!(!topics.failed("orders", patience, &metrics, after(0)));
        topics.delivered(invoices, &metrics);
        assert!(topics.any_failing(), "another's record says nothing of it");
        topics.delivered(orders, &metrics);
        assert!(!topics.any_failing());
        assert!(
            !topics.failed("orders", patience, &metrics, after(40))
                && !topics.failed("orders", patience, &metrics, after(69))
        );
        assert!(topics.failed("orders", patience, &metrics, after(70)));
    }

    #[test]
    fn topics_that_share_a_number_are_not_taken_for_one_another() {
        let (mut topics, start) = (TopicStates::default(), Instant::now());
        let metrics = Metrics::new("s", "p", start);
        let numbers: Vec<u16> = (0..200).map(|n| metrics.topic(&format!("t{n}"))).collect();
        assert_eq!(numbers[150], numbers[151]);
        let (patience, after) = (Duration::from_secs(30), |seconds| start + Duration::from_secs(seconds));
        assert!(!topics.failed("t150", patience, &metrics, start));
        topics.delivered(numbers[151], &metrics);
        assert!(topics.any_failing());
        assert!(!topics.failed("t150", patience, &metrics, after(35)), "it may have taken records in between");
        let mut failed = (36..=65).map(|second| topics.failed("t150", patience, &metrics, after(second)));
        assert!(failed.by_ref().take(29).all(|given_up| !given_up) && failed.next() == Some(true));
    }
}
