//! [`ClusterHealth`]: what reports and answers say of the cluster, and what the sink has to do about it.
//!
//! | what was seen | what follows |
//! |---|---|
//! | records are in flight, and no report came for [`FORGOTTEN_BY_CLIENT`] | librdkafka is given the bootstrap servers again |
//! | the same once more, and the cluster answers another client meanwhile | this client is lost: it has to be recreated |
//! | a record has no report, a connection fails, and brokers answer other questions for [`CLOSED_FOR`] | they close the connection when records are sent |
//! | the cluster says that the topic of a record without report takes none | records wait for the topic |
//! | a producer may not begin | records wait for a right, until one is delivered |
//!
//! In: reports, answers, the time. Out: the failure that records wait for, and what is due. Pure: it asks nobody, and reads no clock.

use super::errors;
use crate::sink::Failure;
use std::time::{Duration, Instant};

/// If no report comes for so long while records are in flight, the sink tells librdkafka the bootstrap servers again.
///
/// When a cluster's metadata name topics and no broker, as those of one whose last broker is shutting down do, librdkafka
/// (2.12) drops every broker that it knows, the bootstrap servers included. Then it has nobody left to ask, and without a
/// question its own timer for starting over never begins: it stays without a connection forever. If the servers' names do
/// not help either, the sink replaces the client.
const FORGOTTEN_BY_CLIENT: Duration = Duration::from_secs(10);

/// The sink replaces the client once the cluster has left it unanswered so many times in a row. Once may be chance, at the end of an
/// outage: a new client connects at once, an old one when its pause is over (`reconnect.backoff.max.ms`, a second).
const LOST: u32 = 2;

/// How often the sink asks the cluster without need, at most.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// If brokers answer other questions for so long, and acknowledge no record, they close the connection when records are sent.
const CLOSED_FOR: Duration = Duration::from_secs(3);

/// The relay's knowledge of the cluster.
#[derive(Debug)]
pub(super) struct ClusterHealth {
    /// The last time when a report came, nothing was in flight, or librdkafka was given the bootstrap servers.
    last_report: Instant,
    /// The last time when the sink asked the cluster without need.
    last_question: Instant,
    /// How many times in a row, since the last report, the cluster answered another client and not this one.
    unanswered: u32,
    /// Since when there is a problem with a connection.
    trouble: Option<Instant>,
    /// Since when brokers answer other questions while a record has no report and a connection fails.
    answers: Option<Instant>,
    /// The reason why a record has no report, until the cluster says otherwise: its topic takes none, or the broker closes the connection.
    missing: Option<Failure>,
    /// The failure of records that wait for a producer whose user lacks a right.
    forbidden: Option<Failure>,
}

impl ClusterHealth {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            last_report: now,
            last_question: now,
            unanswered: 0,
            trouble: None,
            answers: None,
            missing: None,
            forbidden: None,
        }
    }

    /// A report has come, nothing is in flight, or there is a new client.
    pub(super) fn reported(&mut self, now: Instant) {
        (self.last_report, self.unanswered, self.answers) = (now, 0, None);
    }

    /// A record was delivered.
    #[inline]
    pub(super) fn delivered(&mut self) {
        self.forbidden = None;
    }

    /// The records in flight are forgotten, with what they wait for.
    pub(super) fn forget(&mut self) {
        (self.unanswered, self.missing, self.forbidden) = (0, None, None);
    }

    /// Whether the sink may ask without need now. It does so then.
    pub(super) fn asks(&mut self, now: Instant) -> bool {
        let is_due = now.saturating_duration_since(self.last_question) >= ASK_EVERY;
        if is_due {
            self.last_question = now;
        }
        is_due
    }

    /// Whether librdkafka may have forgotten all brokers. It is told then, which is not due again for a while.
    pub(super) fn is_forgotten(&mut self, now: Instant) -> bool {
        let is_due = now.saturating_duration_since(self.last_report) >= FORGOTTEN_BY_CLIENT;
        if is_due {
            self.last_report = now;
        }
        is_due
    }

    /// Whether the cluster has left the client unanswered, and answered another one.
    pub(super) fn left_unanswered(&mut self, is_so: bool) {
        self.unanswered = if is_so { self.unanswered + 1 } else { 0 };
    }

    /// Whether this client reaches no broker any more, and a new one would: it has to be recreated.
    #[inline]
    pub(super) fn is_lost(&self) -> bool {
        self.unanswered >= LOST
    }

    /// There is a problem with a connection. Returns since when. What brokers answered before says nothing of it.
    pub(super) fn in_trouble(&mut self, now: Instant) -> Instant {
        *self.trouble.get_or_insert(now)
    }

    /// A record has no report and a connection fails. Whether brokers answer other questions.
    pub(super) fn answers_others(&mut self, is_so: bool, now: Instant) {
        self.answers = is_so.then(|| self.answers.unwrap_or(now));
        let is_closed = |since| now.saturating_duration_since(since) >= CLOSED_FOR;
        self.missing = self.answers.is_some_and(is_closed).then(errors::of_closed);
    }

    /// No record waits for a report, or every connection is well. `missing`: why the topic of a record without report takes none.
    pub(super) fn is_well(&mut self, missing: Option<Failure>) {
        (self.trouble, self.answers, self.missing) = (None, None, missing);
    }

    /// Records wait for a producer that may begin.
    pub(super) fn may_not_begin(&mut self, failure: Failure) {
        self.forbidden = Some(failure);
    }

    /// The failure that records in flight wait for.
    pub(super) fn blocked(&self) -> Option<&Failure> {
        self.forbidden.as_ref().or(self.missing.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::FailureClass;

    fn at(seconds: u64) -> impl Fn(Instant) -> Instant {
        move |start| start + Duration::from_secs(seconds)
    }

    fn failure(text: &str) -> Failure {
        Failure::new(FailureClass::Topic, "unknown_topic", text)
    }

    #[test]
    fn a_client_is_lost_once_the_cluster_has_answered_another_one_twice_in_a_row() {
        let start = Instant::now();
        let mut health = ClusterHealth::new(start);
        assert!(!health.is_forgotten(at(9)(start)) && health.is_forgotten(at(10)(start)));
        health.left_unanswered(true);
        assert!(!health.is_lost() && !health.is_forgotten(at(19)(start)), "once is chance");
        health.left_unanswered(false);
        health.left_unanswered(true);
        assert!(!health.is_lost());
        health.left_unanswered(true);
        assert!(health.is_lost());
        health.forget();
        assert!(!health.is_lost(), "there is another client");
        health.left_unanswered(true);
        health.reported(at(30)(start));
        health.left_unanswered(true);
        assert!(!health.is_lost() && !health.is_forgotten(at(39)(start)));
    }

    #[test]
    fn brokers_that_answer_everything_but_records_close_the_connection() {
        let start = Instant::now();
        let mut health = ClusterHealth::new(start);
        health.answers_others(true, start);
        health.answers_others(false, at(2)(start));
        health.answers_others(true, at(3)(start));
        health.answers_others(true, at(5)(start));
        assert_eq!(health.blocked(), None, "in an outage they answer nothing");
        health.answers_others(true, at(6)(start));
        assert!(health.blocked().is_some_and(|failure| failure.text.contains("socket.request.max.bytes")));
        health.is_well(None);
        assert_eq!(health.blocked(), None);
        health.answers_others(true, at(7)(start));
        assert_eq!(health.blocked(), None, "it counts anew");
    }

    #[test]
    fn a_right_that_is_missing_is_named_until_a_record_is_delivered_and_a_topic_until_it_is_there() {
        let start = Instant::now();
        let mut health = ClusterHealth::new(start);
        health.is_well(Some(failure("gone")));
        health.may_not_begin(failure("forbidden"));
        assert_eq!(health.blocked(), Some(&failure("forbidden")));
        health.reported(at(1)(start));
        health.delivered();
        assert_eq!(health.blocked(), Some(&failure("gone")), "it may be another topic's");
        health.is_well(None);
        assert_eq!(health.blocked(), None);
    }

    #[test]
    fn the_cluster_is_asked_without_need_once_a_second() {
        let start = Instant::now();
        let mut health = ClusterHealth::new(start);
        let asked = (0..10_000).filter(|millis| health.asks(start + Duration::from_millis(*millis))).count();
        assert_eq!(asked, 9);
    }
}
