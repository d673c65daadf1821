//! [`History`]: the last 15 minutes of the figures, for the page.
//!
//! In: a reading of the figures each [`READ_EVERY`], by the control thread. Out: rates, latencies, the points of a chart, topics by
//! rate, the last problems. A reading takes the same counters as a scrape, so the relay's thread does not wait for it.
//! Invariant: the size is limited to [`POINTS`] points, [`TOPIC_READINGS`] readings of the topics' counters (which are at most 101),
//! and [`PROBLEMS`] problems.

use crate::metrics::{Latencies, Metrics, Moment, State};
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// The time between two readings.
pub(super) const READ_EVERY: Duration = Duration::from_secs(1);

/// All readings within this time become one point of the chart.
const POINT_EVERY: Duration = Duration::from_secs(5);

/// The time that the chart shows.
pub(super) const SPAN: Duration = Duration::from_mins(15);

/// The most points: one more than [`SPAN`] has, since a rate is between two of them.
const POINTS: usize = 181;

/// The time for which current rates and latencies are computed.
const WINDOW: Duration = Duration::from_mins(1);

/// The most readings of topics: one more than [`WINDOW`] has spans of [`POINT_EVERY`].
const TOPIC_READINGS: usize = 13;

/// The page's text for a relay that is blocked without a known reason.
const SILENT: &str = "The destination acknowledges nothing, and gives no reason.";

/// The most problems that are stored. Each text counts once.
const PROBLEMS: usize = 8;

/// The relay's condition, which the page shows by a colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Condition {
    /// Rows are published, or would be if there were any.
    Good,
    /// The relay waits for something that passes by itself.
    Wait,
    /// Rows are not published.
    Bad,
}

impl Condition {
    /// The condition of a relay in this state.
    pub(super) fn of(state: State, ready: bool) -> Self {
        match (state, ready) {
            (State::Streaming, true) => Self::Good,
            (State::Streaming | State::Blocked | State::Stopped, _) => Self::Bad,
            (State::Connecting | State::WaitingForSlot | State::Searching | State::Stopping, _) => Self::Wait,
        }
    }

    /// The name in style sheets.
    pub(super) const fn class(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Wait => "wait",
            Self::Bad => "bad",
        }
    }
}

/// The counters at one moment, and the worst values since the point before.
#[derive(Debug, Clone, Copy)]
struct CounterReading {
    at: Instant,
    events: u64,
    latencies: Latencies,
    lag: Duration,
    in_flight: u64,
    condition: Condition,
}

/// One point of the chart, which covers [`POINT_EVERY`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Point {
    /// The time since its end.
    pub(super) age: Duration,
    /// The records that were acknowledged in a second.
    pub(super) rate: f64,
    /// The 99th percentile of the latencies. `None`: no transaction was delivered.
    pub(super) latency: Option<Duration>,
    /// Whether the true latency is larger, by an unknown amount.
    pub(super) latency_is_larger: bool,
    /// The largest lag.
    pub(super) lag: Duration,
    /// The most records in flight.
    pub(super) in_flight: u64,
    /// The worst condition.
    pub(super) condition: Condition,
}

/// The rate and the total of a topic.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct TopicRate {
    /// Its name.
    pub(super) name: String,
    /// The records that were acknowledged in a second, over the last minute.
    pub(super) rate: f64,
    /// The number of records that were acknowledged since the start.
    pub(super) total: u64,
}

/// A problem of the relay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NotedProblem {
    /// When it was noticed first, or noticed again after another problem.
    pub(super) at: Instant,
    /// The text for people.
    pub(super) text: String,
    /// The relay's state at that time.
    pub(super) state: State,
    /// Whether it is about some rows that were not published, while others were.
    pub(super) is_of_rows: bool,
}

/// The last 15 minutes.
#[derive(Debug, Default)]
pub(super) struct History {
    /// The points, oldest first, [`POINT_EVERY`] apart.
    points: VecDeque<CounterReading>,
    /// The last reading, with the worst values since the last point.
    last: Option<CounterReading>,
    /// The counters of topics, oldest first, [`POINT_EVERY`] apart.
    topics: VecDeque<(Instant, BTreeMap<String, u64>)>,
    /// The counters of the last reading, if it is not a point of the chart.
    last_topics: Option<(Instant, BTreeMap<String, u64>)>,
    /// The problems. Each text is there once. The latest is at the end.
    problems: VecDeque<NotedProblem>,
    /// The problem of the last reading.
    current_problem: Option<String>,
    /// The number of rows that were not published, at the last reading.
    bad_rows: u64,
}

impl History {
    /// Reads the figures.
    pub(super) fn read(&mut self, metrics: &Metrics, now: Moment) {
        let state = metrics.state();
        let reading = CounterReading {
            at: now.instant,
            events: metrics.events_total(),
            latencies: metrics.latencies(),
            lag: metrics.lag(now),
            in_flight: metrics.in_flight().0,
            condition: Condition::of(state, metrics.ready(now.instant).is_ok()),
        };
        self.fold(reading, || metrics.topic_totals());
        // If a destination is only silent, it reports no problem.
        let silent = || (state == State::Blocked).then(|| SILENT.to_owned());
        self.notice(metrics.problem().or_else(silent), state, now.instant);
        self.count_bad_rows(&metrics.bad_row_totals(), state, now.instant);
    }

    /// Notes a problem for rows that became dead letters or were skipped. They stop nothing, so the page only shows their number.
    fn count_bad_rows(&mut self, totals: &BTreeMap<String, u64>, state: State, now: Instant) {
        let all = totals.values().sum();
        if std::mem::replace(&mut self.bad_rows, all) >= all {
            return;
        }
        let reasons: Vec<String> =
            totals.iter().filter(|(_, count)| **count > 0).map(|(reason, count)| format!("{reason} {count}")).collect();
        let rows = if all == 1 { "row was" } else { "rows were" };
        let text = format!("{all} {rows} not published since the start: {}", reasons.join(", "));
        self.problems.retain(|problem| !problem.is_of_rows);
        push_bounded(&mut self.problems, NotedProblem { at: now, text, state, is_of_rows: true }, PROBLEMS);
    }

    fn fold(&mut self, mut reading: CounterReading, topics: impl FnOnce() -> BTreeMap<String, u64>) {
        if let Some(last) = self.last {
            reading.lag = reading.lag.max(last.lag);
            reading.in_flight = reading.in_flight.max(last.in_flight);
            reading.condition = reading.condition.max(last.condition);
        }
        let due = self.points.back().is_none_or(|point| reading.at.saturating_duration_since(point.at) >= POINT_EVERY);
        if !due {
            (self.last, self.last_topics) = (Some(reading), Some((reading.at, topics())));
            return;
        }
        (self.last, self.last_topics) = (None, None);
        push_bounded(&mut self.points, reading, POINTS);
        push_bounded(&mut self.topics, (reading.at, topics()), TOPIC_READINGS);
    }

    fn notice(&mut self, text: Option<String>, state: State, now: Instant) {
        if let Some(text) = text.clone().filter(|_| text != self.current_problem) {
            self.problems.retain(|problem| problem.text != text);
            let problem = NotedProblem { at: now, text, state, is_of_rows: false };
            push_bounded(&mut self.problems, problem, PROBLEMS);
        } else if text.is_some()
            && state != State::Streaming
            && let Some(problem) = self.problems.iter_mut().rfind(|problem| !problem.is_of_rows)
        {
            // The relay's state may change a moment after the problem.
            problem.state = state;
        }
        self.current_problem = text;
    }

    /// The records that were acknowledged in a second, over the last minute. `None`: there are no two readings yet.
    pub(super) fn rate(&self) -> Option<f64> {
        let (from, to) = self.last_minute()?;
        per_second(from.events, to.events, from.at, to.at)
    }

    /// The latencies of transactions that were delivered in the last minute.
    pub(super) fn latencies(&self) -> Latencies {
        self.last_minute().map_or_else(Latencies::default, |(from, to)| to.latencies.since(from.latencies))
    }

    fn last_minute(&self) -> Option<(&CounterReading, &CounterReading)> {
        let to = self.last.as_ref().or_else(|| self.points.back())?;
        let from = self.points.iter().find(|point| to.at.saturating_duration_since(point.at) <= WINDOW)?;
        Some((from, to))
    }

    /// The chart's points, oldest first. The last one is not complete yet.
    pub(super) fn points(&self, now: Instant) -> impl Iterator<Item = Point> {
        let ends = self.points.iter().skip(1).chain(&self.last);
        self.points.iter().zip(ends).filter_map(move |(from, to)| {
            let latencies = to.latencies.since(from.latencies);
            Some(Point {
                age: now.saturating_duration_since(to.at),
                rate: per_second(from.events, to.events, from.at, to.at)?,
                latency: latencies.quantile(0.99),
                latency_is_larger: latencies.is_above_bounds(0.99),
                lag: to.lag,
                in_flight: to.in_flight,
                condition: to.condition,
            })
        })
    }

    /// All topics. The busiest of the last minute come first.
    pub(super) fn topics(&self) -> Vec<TopicRate> {
        let Some((to, totals)) = self.last_topics.as_ref().or_else(|| self.topics.back()) else { return Vec::new() };
        let is_of_the_minute = |(at, _): &&(Instant, _)| to.saturating_duration_since(*at) <= WINDOW;
        let Some((from, before)) = self.topics.iter().find(is_of_the_minute) else { return Vec::new() };
        let mut topics: Vec<TopicRate> = totals
            .iter()
            .map(|(name, &total)| {
                let earlier = before.get(name).copied().unwrap_or_default();
                TopicRate {
                    name: name.clone(),
                    rate: per_second(earlier, total, *from, *to).unwrap_or_default(),
                    total,
                }
            })
            .collect();
        topics.sort_by(|one, other| other.rate.total_cmp(&one.rate).then(other.total.cmp(&one.total)));
        topics
    }

    /// The last problems, newest first.
    pub(super) fn problems(&self) -> impl Iterator<Item = &NotedProblem> {
        self.problems.iter().rev()
    }
}

fn push_bounded<T>(queue: &mut VecDeque<T>, item: T, most: usize) {
    if queue.len() == most {
        queue.pop_front();
    }
    queue.push_back(item);
}

/// The rate in a second. `None`: no time has passed.
#[allow(clippy::cast_precision_loss, reason = "shown to people")]
fn per_second(first: u64, last: u64, from: Instant, to: Instant) -> Option<f64> {
    let seconds = to.saturating_duration_since(from).as_secs_f64();
    (seconds > 0.0).then(|| last.saturating_sub(first) as f64 / seconds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pgoutput::PgTime;

    /// The history of a relay that streams, with a reading each second. `each` is called before each reading, with the second.
    fn watched(seconds: u64, mut each: impl FnMut(&Metrics, u64)) -> (History, Instant) {
        let start = Instant::now();
        let metrics = Metrics::new("orders", "p", start);
        let mut history = History::default();
        metrics.set_state(State::Streaming);
        for second in 0..=seconds {
            let instant = start + Duration::from_secs(second);
            metrics.status_sent(instant);
            each(&metrics, second);
            history.read(&metrics, Moment { instant, unix_micros: 0 });
        }
        (history, start + Duration::from_secs(seconds))
    }

    fn acknowledge(metrics: &Metrics, topic: &str, records: u64) {
        metrics.acknowledged(metrics.topic(topic), records, 0, Instant::now());
    }

    #[test]
    fn a_rate_reaches_back_for_a_minute_and_no_further() {
        assert_eq!(watched(0, |_, _| ()).0.rate(), None);
        let (history, _) = watched(100, |metrics, second| {
            acknowledge(metrics, "a", if second < 20 { 1_000 } else { 50 });
        });
        assert_eq!(history.rate(), Some(50.0));
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let (history, now) = watched(2_000, |metrics, second| metrics.set_last_error(Some(second.to_string())));
        assert_eq!(
            (history.points.len(), history.topics.len(), history.problems.len()),
            (POINTS, TOPIC_READINGS, PROBLEMS)
        );
        assert_eq!(history.points(now).count(), POINTS - 1);
        assert!(history.points(now).all(|point| point.age <= SPAN));
    }

    #[test]
    fn a_point_shows_the_worst_of_its_seconds() {
        let (history, now) = watched(10, |metrics, second| {
            metrics.set_in_flight(if second == 7 { 900 } else { 1 }, 0);
            metrics.set_oldest_commit((second == 8).then_some(PgTime(-946_684_800_000_000 - 3_000_000)));
            metrics.set_state(if second == 6 { State::Blocked } else { State::Streaming });
            if second == 9 {
                metrics.transaction_delivered(Duration::from_millis(40));
            }
        });
        let points: Vec<Point> = history.points(now).collect();
        assert_eq!(points.len(), 2);
        assert_eq!((points[0].in_flight, points[0].condition, points[0].latency), (1, Condition::Good, None));
        assert_eq!(
            (points[1].in_flight, points[1].condition, points[1].lag),
            (900, Condition::Bad, Duration::from_secs(3))
        );
        assert!((25..=50).contains(&points[1].latency.unwrap().as_millis()));
        assert!((25..=50).contains(&history.latencies().quantile(0.5).unwrap().as_millis()));
    }

    #[test]
    fn topics_come_by_their_rate_of_the_last_minute() {
        let (history, _) = watched(120, |metrics, second| {
            acknowledge(metrics, "early", if second < 50 { 1_000 } else { 0 });
            acknowledge(metrics, "steady", 10);
            acknowledge(metrics, "busy", 20);
        });
        let found: Vec<(String, f64, u64)> =
            history.topics().into_iter().map(|topic| (topic.name, topic.rate, topic.total)).collect();
        let expected = [("busy", 20.0, 121 * 20), ("steady", 10.0, 121 * 10), ("early", 0.0, 50_000)];
        assert_eq!(found, expected.map(|(name, rate, total)| (name.to_owned(), rate, total)));
    }

    #[test]
    fn a_problem_is_shown_once_with_what_the_relay_does_about_it() {
        let (history, now) = watched(30, |metrics, second| match second {
            3 | 20 => metrics.set_last_error(Some("refused".to_owned())),
            4 => metrics.set_state(State::Connecting),
            6 => metrics.set_state(State::Streaming),
            10 => metrics.set_last_error(Some("another".to_owned())),
            _ => {}
        });
        let found: Vec<(u64, &str, State)> = history
            .problems()
            .map(|problem| ((now - problem.at).as_secs(), problem.text.as_str(), problem.state))
            .collect();
        assert_eq!(found, [(10, "refused", State::Streaming), (20, "another", State::Streaming)]);
        let (history, _) = watched(5, |metrics, second| match second {
            3 => metrics.set_last_error(Some("refused".to_owned())),
            4 => metrics.set_state(State::Connecting),
            _ => {}
        });
        assert_eq!(history.problems().next().unwrap().state, State::Connecting);
    }

    #[test]
    fn rows_that_are_put_aside_are_a_problem_that_is_shown_once_with_their_number() {
        let (history, now) = watched(30, |metrics, second| match second {
            3 => metrics.bad_row("invalid_topic"),
            10 => metrics.set_last_error(Some("refused".to_owned())),
            20 => (0..2).for_each(|_| metrics.bad_row("null_route")),
            _ => {}
        });
        let found: Vec<(u64, &str, bool)> = history
            .problems()
            .map(|problem| ((now - problem.at).as_secs(), problem.text.as_str(), problem.is_of_rows))
            .collect();
        let rows = "3 rows were not published since the start: invalid_topic 1, null_route 2";
        assert_eq!(found, [(10, rows, true), (20, "refused", false)]);
    }

    #[test]
    fn figures_of_now_are_within_the_chart_and_topics_add_up_to_the_rate() {
        for seconds in 1..20 {
            let (history, now) = watched(seconds, |metrics, second| {
                acknowledge(metrics, "a", 100 * second);
                acknowledge(metrics, "b", 7);
                metrics.set_in_flight(second, 0);
            });
            let points: Vec<Point> = history.points(now).collect();
            let rate = history.rate().unwrap();
            assert!(points.iter().any(|point| point.rate >= rate), "{seconds}: {rate} {points:?}");
            assert_eq!(points.last().map(|point| (point.age, point.in_flight)), Some((Duration::ZERO, seconds)));
            let of_topics: f64 = history.topics().iter().map(|topic| topic.rate).sum();
            assert!((of_topics - rate).abs() < 0.001, "{seconds}: {of_topics} {rate}");
        }
    }

    #[test]
    fn a_destination_that_falls_silent_is_a_problem() {
        let (history, now) = watched(9, |metrics, second| match second {
            3 => metrics.set_state(State::Blocked),
            6 => metrics.set_state(State::Streaming),
            _ => {}
        });
        let found: Vec<_> = history.problems().map(|problem| ((now - problem.at).as_secs(), &*problem.text)).collect();
        assert_eq!(found, [(6, SILENT)]);
    }
}
