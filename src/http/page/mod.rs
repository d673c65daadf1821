//! Writes the page on `/`, which shows one relay.
//!
//! In: the figures and their last 15 minutes. Out: HTML that needs no other files. All of the page is written here. Its script only
//! loads a new copy every two seconds; without the script, the page reloads itself. Texts from outside (names, errors) are escaped. The
//! policy names style and script by their hash, so the browser uses no others.

mod chart;
mod html;

use super::history::{Condition, History, NotedProblem, Point, TopicRate};
use crate::metrics::{Metrics, Moment, State, Status};
use crate::remedy::{Part, Remedy};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use html::{BreakableName, EscapedText, PerSecond, ShownSeconds, Size, number};
use sha2::{Digest as _, Sha256};
use std::time::Duration;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// The most topics that are shown.
const TOPICS: usize = 10;

/// The `Content-Security-Policy` of the page. It allows the page's own style, script and address.
pub(super) fn policy() -> String {
    format!(
        "default-src 'none'; style-src '{}'; script-src '{}'; connect-src 'self'; img-src data:; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'",
        hash(STYLE),
        hash(SCRIPT)
    )
}

/// The form in which a policy names an inline element.
fn hash(content: &str) -> String {
    format!("sha256-{}", BASE64_STANDARD.encode(Sha256::digest(content)))
}

/// The page.
pub(super) fn render(metrics: &Metrics, history: &History, now: Moment) -> String {
    let status = metrics.status(now.instant);
    let view = View { metrics, history, now, state: metrics.state(), status: &status };
    let slot = EscapedText(&status.slot);
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <noscript><meta http-equiv=\"refresh\" content=\"5\"></noscript>\n\
         <link rel=\"icon\" href=\"{icon}\">\n\
         <title>{slot}: {state} - walrelay</title>\n<style>{STYLE}</style>\n</head>\n<body>\n\
         <header><span><strong>walrelay</strong> slot <strong>{slot_name}</strong>, publication {publication}</span>\
         <nav aria-label=\"For programs\"><a href=\"metrics\">metrics</a> <a href=\"status\">status</a> \
         <a href=\"readyz\">ready?</a> <a href=\"livez\">live?</a></nav></header>\n\
         <p id=\"stale\" role=\"alert\"></p><p id=\"paused\" role=\"status\"></p><p id=\"said\" class=\"unseen\" role=\"status\"></p>\n\
         <main>\n{main}</main>\n<script>{SCRIPT}</script>\n</body>\n</html>\n",
        icon = view.icon(),
        state = status.state,
        slot_name = BreakableName(&status.slot),
        publication = BreakableName(&status.publication),
        main = view.main(),
    )
}

/// The values that the page is made from.
struct View<'a> {
    metrics: &'a Metrics,
    history: &'a History,
    now: Moment,
    state: State,
    status: &'a Status,
}

impl View<'_> {
    fn main(&self) -> String {
        let points: Vec<Point> = self.history.points(self.now.instant).collect();
        [self.health(&points), self.tiles(&points), self.topics(), self.problems(), self.facts(), self.foot()].concat()
    }

    fn icon(&self) -> String {
        let colour = match self.condition() {
            Condition::Good => "1a7f37",
            Condition::Wait => "d4a72c",
            Condition::Bad => "d1242f",
        };
        format!(
            "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E\
             %3Ccircle cx='8' cy='8' r='7' fill='%23{colour}'/%3E%3C/svg%3E"
        )
    }

    fn condition(&self) -> Condition {
        Condition::of(self.state, self.metrics.ready(self.now.instant).is_ok())
    }

    fn health(&self, points: &[Point]) -> String {
        let reason = self.reason() + &self.unencrypted();
        let conditions: Vec<(Duration, Condition)> = points.iter().map(|point| (point.age, point.condition)).collect();
        format!(
            "<section class=\"card\" aria-label=\"Health\">\n<h1 class=\"{}\">{}</h1>\n{reason}{}{AXIS}</section>\n",
            self.condition().class(),
            self.state.sentence(),
            chart::strip(&conditions)
        )
    }

    /// A warning if others on the network can read the rows. Empty: they cannot.
    fn unencrypted(&self) -> String {
        self.metrics.unencrypted().map_or_else(String::new, |reason| {
            format!("<p class=\"quiet\">The connection to Postgres is not encrypted: {}.</p>\n", EscapedText(&reason))
        })
    }

    /// Why no rows are published, and what to do. Empty: they are published.
    fn reason(&self) -> String {
        // If a destination is silent, the relay is blocked before it is not ready.
        let reason = match (self.state, self.metrics.ready(self.now.instant), self.metrics.problem()) {
            (State::Streaming | State::Searching, Ok(()), _) => return String::new(),
            (State::Streaming, Err(not_ready), _) => format!("Not ready: {not_ready}."),
            (_, _, Some(problem)) => problem,
            (_, _, None) if self.status.in_flight_records > 0 => {
                let (waiting, lag) = (number(self.status.in_flight_records), self.metrics.lag(self.now));
                format!("{waiting} records are not acknowledged, the oldest for {}.", ShownSeconds(lag.as_secs_f64()))
            }
            (_, _, None) => String::new(),
        };
        self.problem_with_advice(&reason, self.state)
    }

    fn problem_item(&self, problem: &NotedProblem) -> String {
        let age = ShownSeconds(self.now.instant.saturating_duration_since(problem.at).as_secs_f64().max(1.0));
        let problem_with_advice = if problem.is_of_rows {
            format!("<p>{}</p>\n<p class=\"quiet\">{ROWS_ADVICE}</p>\n", EscapedText(&problem.text))
        } else {
            self.problem_with_advice(&problem.text, problem.state)
        };
        format!("<li><span class=\"quiet\">{age} ago</span>{problem_with_advice}</li>\n")
    }

    /// A problem and what to do, as HTML. The advice is the hint of a relay that has stopped, or else depends on the state.
    fn problem_with_advice(&self, problem: &str, state: State) -> String {
        let hint = match self.metrics.hint().filter(|_| state == State::Stopped) {
            Some(hint) => hint_with_commands(&hint),
            None => format!("<p class=\"quiet\">{}</p>\n", advice(state, self.metrics.destination())),
        };
        format!("<p>{}</p>\n{hint}", EscapedText(problem))
    }

    fn tiles(&self, points: &[Point]) -> String {
        format!(
            "<div class=\"tiles\">\n{}{}{}{}</div>\n",
            self.rate(points),
            self.latency(points),
            self.lag(points),
            self.in_flight(points)
        )
    }

    fn rate(&self, points: &[Point]) -> String {
        let now = self.history.rate().map_or_else(|| NOTHING.to_owned(), |rate| PerSecond(rate).to_string());
        let highest = points.iter().map(|point| point.rate).fold(0.0, f64::max);
        let values: Vec<_> = points.iter().map(|point| (point.age, Some(point.rate))).collect();
        Tile {
            name: "Rate",
            figure: now,
            more: format!("over the last minute; {} records since the start", number(self.status.events_total)),
            highest: PerSecond(highest).to_string(),
        }
        .render(&values, 1.0)
    }

    fn latency(&self, points: &[Point]) -> String {
        let latencies = self.history.latencies();
        let quantile =
            |share| latencies.quantile(share).map(|latency| at_least(latency, latencies.is_above_bounds(share)));
        let more = match quantile(0.99) {
            Some(p99) if latencies.is_above_bounds(0.99) => {
                format!("median, commit to acknowledgement; more than 1 % took {p99}")
            }
            Some(p99) => format!("median, commit to acknowledgement; 99 % in {p99}"),
            None => "commit to acknowledgement: none in the last minute".to_owned(),
        };
        let values: Vec<_> =
            points.iter().map(|point| (point.age, point.latency.map(|latency| latency.as_secs_f64()))).collect();
        let known = points.iter().filter_map(|point| Some((point.latency?, point.latency_is_larger)));
        let highest = known.max().map_or_else(|| NOTHING.to_owned(), |(most, is_larger)| at_least(most, is_larger));
        Tile { name: "Latency", figure: quantile(0.5).unwrap_or_else(|| NOTHING.to_owned()), more, highest }
            .render(&values, 0.01)
    }

    fn lag(&self, points: &[Point]) -> String {
        let behind = match self.status.lag_bytes {
            Some(bytes) => format!("{} of WAL not confirmed", Size(bytes)),
            None => "age of the oldest transaction that is not delivered".to_owned(),
        };
        let now = self.metrics.lag(self.now).as_secs_f64();
        let before = points.iter().map(|point| (point.age, Some(point.lag.as_secs_f64())));
        let values: Vec<_> = before.chain([(Duration::ZERO, Some(now))]).collect();
        Tile {
            name: "Lag",
            figure: ShownSeconds(now).to_string(),
            more: behind,
            highest: ShownSeconds(values.iter().filter_map(|(_, value)| *value).fold(0.0, f64::max)).to_string(),
        }
        .render(&values, 1.0)
    }

    #[allow(clippy::cast_precision_loss, reason = "drawn")]
    fn in_flight(&self, points: &[Point]) -> String {
        let now = self.status.in_flight_records;
        let before = points.iter().map(|point| (point.age, Some(point.in_flight as f64)));
        let values: Vec<_> = before.chain([(Duration::ZERO, Some(now as f64))]).collect();
        let highest = points.iter().map(|point| point.in_flight).chain([now]).max().unwrap_or_default();
        Tile {
            name: "In flight",
            figure: number(self.status.in_flight_records),
            more: format!("records not acknowledged yet, {}", Size(self.status.in_flight_bytes)),
            highest: number(highest),
        }
        .render(&values, 10.0)
    }

    fn topics(&self) -> String {
        let topics = self.history.topics();
        let head = "<section class=\"card\" aria-labelledby=\"topics\">\n<h2 id=\"topics\">Topics</h2>\n";
        if topics.is_empty() {
            return format!("{head}<p class=\"quiet\">No record yet.</p>\n</section>\n");
        }
        let top = topics.first().map_or(0.0, |topic| topic.rate);
        let rows: String = topics.iter().take(TOPICS).map(|topic| topic_row(topic, top)).collect();
        let rest = match topics.len().saturating_sub(TOPICS) {
            0 => String::new(),
            more => format!("<p class=\"quiet\">And {more} more with less; all are in the metrics.</p>\n"),
        };
        format!(
            "{head}<div class=\"wide\"><table>\n<thead><tr><th scope=\"col\">topic</th><td class=\"share\"></td>\
             <th scope=\"col\" class=\"number\">last minute</th><th scope=\"col\" class=\"number\">since the start</th></tr></thead>\n\
             <tbody>\n{rows}</tbody>\n</table></div>\n{rest}</section>\n"
        )
    }

    fn problems(&self) -> String {
        let list: String = self.history.problems().map(|problem| self.problem_item(problem)).collect();
        let content = if list.is_empty() {
            "<p class=\"quiet\">None since the start.</p>\n".to_owned()
        } else {
            format!("<ul>\n{list}</ul>\n")
        };
        format!(
            "<section class=\"card\" aria-labelledby=\"problems\">\n<h2 id=\"problems\">Last problems</h2>\n{content}</section>\n"
        )
    }

    fn facts(&self) -> String {
        let figures = self.metrics.slot_figures();
        let size = |bytes: Option<u64>| bytes.map_or_else(|| UNKNOWN.to_owned(), |bytes| Size(bytes).to_string());
        let ack = self
            .status
            .last_ack_seconds
            .map_or_else(|| "none yet".to_owned(), |age| format!("{} ago", ShownSeconds(age)));
        let bad: u64 = self.metrics.bad_row_totals().values().sum();
        let kept = match figures.safe_wal_bytes {
            Some(safe) => format!("{}; the slot is lost after {} more", size(figures.retained_wal_bytes), Size(safe)),
            None => size(figures.retained_wal_bytes),
        };
        let rows = [
            ("Confirmed position", self.status.confirmed_lsn.clone()),
            ("Received position", self.status.received_lsn.clone()),
            ("WAL kept for the slot", kept),
            ("State of the slot's WAL", figures.wal_status.unwrap_or_else(|| UNKNOWN.to_owned())),
            ("Last acknowledgement", ack),
            ("Rows not published", number(bad)),
        ]
        .iter()
        .map(|(name, value)| format!("<tr><th scope=\"row\">{name}</th><td>{}</td></tr>\n", EscapedText(value)))
        .collect::<Vec<_>>()
        .concat();
        format!(
            "<section class=\"card\" aria-label=\"Details\">\n<details id=\"details\"><summary>Positions and WAL</summary>\n\
             <table class=\"facts\">\n{rows}</table>\n</details>\n</section>\n"
        )
    }

    fn foot(&self) -> String {
        let Status { version, uptime_seconds, .. } = self.status;
        format!("<footer><span>walrelay {version}, up for {}</span></footer>\n", ShownSeconds(*uptime_seconds))
    }
}

const UNKNOWN: &str = "not known yet";

/// The text for a missing figure.
const NOTHING: &str = "–";

const AXIS: &str = "<p class=\"axis\" aria-hidden=\"true\"><span>15 min ago</span><span>now</span></p>\n";

/// One figure, and its chart.
struct Tile {
    name: &'static str,
    figure: String,
    more: String,
    highest: String,
}

impl Tile {
    fn render(&self, values: &[(Duration, Option<f64>)], least: f64) -> String {
        let Self { name, figure, more, highest } = self;
        let label = format!("{name} over the last 15 minutes, highest {highest}");
        format!(
            "<section class=\"card\"><h2>{name}</h2>\n<p class=\"figure\">{figure}</p>\n<p class=\"quiet\">{more}</p>\n{}\
             <p class=\"axis\" aria-hidden=\"true\"><span>15 min ago</span><span>highest {highest}</span><span>now</span></p>\n\
             </section>\n",
            chart::line(&label, values, least)
        )
    }
}

fn topic_row(topic: &TopicRate, top: f64) -> String {
    let share = if top > 0.0 { topic.rate / top * 100.0 } else { 0.0 };
    format!(
        "<tr><td class=\"name\">{}</td><td class=\"share\"><svg aria-hidden=\"true\"><rect width=\"{share:.1}%\" height=\"100%\"/></svg></td>\
         <td class=\"number\">{}</td><td class=\"number\">{}</td></tr>\n",
        BreakableName(&topic.name),
        PerSecond(topic.rate),
        number(topic.total)
    )
}

/// A latency. `is_larger`: the true one is larger, by an unknown amount.
fn at_least(latency: Duration, is_larger: bool) -> String {
    let age = ShownSeconds(latency.as_secs_f64());
    if is_larger { format!("more than {age}") } else { age.to_string() }
}

/// A hint. Each command in it has its own line, with a button that the script makes work.
fn hint_with_commands(hint: &Remedy) -> String {
    // The words that join two commands in a sentence are left out.
    let words = |text: &str| match text.trim().trim_start_matches([';', ',', '.']).trim_start() {
        "" => String::new(),
        text => format!("<p class=\"quiet\">{}</p>\n", EscapedText(text)),
    };
    let part = |part: &Part| match part {
        Part::Text(text) => words(text),
        Part::Sql(_) | Part::Command(_) => format!(
            "<div class=\"command\"><code tabindex=\"0\">{}</code>\
             <button type=\"button\" class=\"copy\" hidden>Copy</button></div>\n",
            EscapedText(&part.to_string())
        ),
    };
    hint.parts().iter().map(part).collect()
}

/// The advice for rows that were not published.
const ROWS_ADVICE: &str = "The log names each of them. <code>walrelay dead-letters</code> lists those that are in the dead-letter topic, \
                           and with <code>--replay</code> publishes them once the cause is fixed.";

/// The advice for a problem in this state, as HTML.
fn advice(state: State, destination: &str) -> String {
    let text = match state {
        State::Connecting => {
            "Nothing to do if Postgres restarts or fails over: the relay connects again by itself. If it lasts, \
             <code>walrelay check</code> says what is wrong."
        }
        State::WaitingForSlot => "Nothing to do: it takes over as soon as the other process releases the slot.",
        State::Streaming => "Nothing to do while rows flow.",
        State::Searching => "Nothing to do yet: the relay looks for the one record that was refused.",
        State::Blocked => {
            return format!(
                "Fix {}, the topic, or what else is named above: the relay resumes by itself, and nothing is lost meanwhile. Until then Postgres \
                 keeps its WAL: watch its disk.",
                EscapedText(destination)
            );
        }
        State::Stopping => "Nothing to do: the relay was asked to stop.",
        State::Stopped => "Fix what it names, then start the relay again.",
    };
    text.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remedy::Command;
    use std::time::Instant;

    fn page(metrics: &Metrics) -> String {
        let mut history = History::default();
        let now = Moment::now();
        history.read(metrics, now);
        render(metrics, &history, now)
    }

    #[test]
    fn what_comes_from_outside_cannot_become_markup() {
        let metrics = Metrics::new("<s>", "\"p\"", Instant::now());
        metrics.set_last_error(Some("</td><script>alert('x')</script>".to_owned()));
        metrics.acknowledged(metrics.topic("<img>"), 1, 1, Instant::now());
        let page = page(&metrics);
        assert!(!page.contains("<script>alert") && !page.contains("<s>") && !page.contains("<img>"), "{page}");
        assert!(page.contains("&lt;script&gt;alert(&#39;x&#39;)") && page.contains("&lt;img&gt;"), "{page}");
    }

    #[test]
    fn the_state_is_said_in_words_and_the_reason_below() {
        let metrics = Metrics::new("orders", "p", Instant::now()).with_destination("kafka", "Kafka");
        metrics.set_state(State::Blocked);
        metrics.set_blocked_on(Some("topic orders does not exist".to_owned()));
        let page = page(&metrics);
        for part in [
            "<h1 class=\"bad\">Blocked: rows wait.</h1>",
            "<p>topic orders does not exist</p>\n<p class=\"quiet\">Fix Kafka, the topic, or what else is named",
            "<p>topic orders does not exist</p>",
        ] {
            assert!(page.contains(part), "no {part} in {page}");
        }
    }

    #[test]
    fn a_silent_broker_is_reported_by_what_waits_for_it() {
        let metrics = Metrics::new("orders", "p", Instant::now()).with_destination("kafka", "Kafka");
        metrics.set_state(State::Blocked);
        metrics.set_in_flight(2_060, 1);
        let page = page(&metrics);
        assert!(page.contains("<p>2,060 records are not acknowledged, the oldest for 0 s.</p>"), "{page}");
    }

    #[test]
    fn a_destination_that_is_silent_is_reported_while_the_relay_is_still_ready() {
        let metrics = Metrics::new("orders", "p", Instant::now()).with_destination("kafka", "Kafka");
        metrics.status_sent(Instant::now());
        metrics.set_silent();
        metrics.set_in_flight(379, 1);
        assert_eq!(metrics.ready(Instant::now()), Ok(()));
        let page = page(&metrics);
        assert!(page.contains("<p>379 records are not acknowledged") && page.contains("Fix Kafka"), "{page}");
    }

    #[test]
    fn a_connection_without_tls_is_reported_with_the_reason() {
        let metrics = Metrics::new("s", "p", Instant::now());
        assert!(!page(&metrics).contains("not encrypted"));
        metrics.set_unencrypted(Some("a <key>".to_owned()));
        assert!(page(&metrics).contains("The connection to Postgres is not encrypted: a &lt;key&gt;."));
    }

    #[test]
    fn a_hint_is_apart_from_the_problem_that_it_fixes() {
        let metrics = Metrics::new("orders", "p", Instant::now());
        metrics.set_stopped("a row cannot be published".to_owned(), Some("skip <it>".into()));
        let page = page(&metrics);
        let both = "<p>a row cannot be published</p>\n<p class=\"quiet\">skip &lt;it&gt;</p>";
        assert_eq!(page.matches(both).count(), 2, "{page}");
    }

    #[test]
    fn each_command_of_a_hint_has_a_line_and_a_button() {
        let metrics = Metrics::new("orders", "p", Instant::now());
        let run = || Command::new("run");
        let skip = run().set("--bad-row-at", "0/1:0=skip");
        let hint = Remedy::from("row 7 stays: ").and(run().set("--topic", "a<b>")).and(", or ").and(skip.clone());
        metrics.set_stopped("a row cannot be published".to_owned(), Some(hint.and("; then start walrelay again")));
        let page = page(&metrics);
        let button = "</code><button type=\"button\" class=\"copy\" hidden>Copy</button></div>\n";
        for part in [
            "<p class=\"quiet\">row 7 stays:</p>\n<div class=\"command\"><code tabindex=\"0\">walrelay run --topic &#39;a&lt;b&gt;&#39;",
            &format!("{skip}{button}<p class=\"quiet\">then start walrelay again</p>"),
        ] {
            assert!(page.contains(part), "no {part} in {page}");
        }
    }

    #[test]
    fn a_latency_above_the_last_bucket_says_so() {
        let metrics = Metrics::new("orders", "p", Instant::now());
        let mut history = History::default();
        let first = Moment::now();
        history.read(&metrics, first);
        (0..3).for_each(|_| metrics.transaction_delivered(Duration::from_secs(90)));
        let now = Moment { instant: first.instant + Duration::from_secs(6), ..first };
        history.read(&metrics, now);
        let page = render(&metrics, &history, now);
        assert!(page.contains("<p class=\"figure\">more than 60 s</p>"), "{page}");
        assert!(
            page.contains("more than 1 % took more than 60 s") && page.contains("highest more than 60 s"),
            "{page}"
        );
        assert!(!page.contains("99 % in"), "{page}");
    }

    #[test]
    fn a_latency_that_nobody_knows_is_not_shown_as_zero() {
        let page = page(&Metrics::new("orders", "p", Instant::now()));
        assert!(page.contains("Latency over the last 15 minutes, highest –\""), "{page}");
    }

    #[test]
    fn no_figure_exceeds_its_own_charts_highest() {
        let metrics = Metrics::new("orders", "p", Instant::now());
        let mut history = History::default();
        let now = Moment::now();
        history.read(&metrics, now);
        metrics.set_in_flight(1_900, 1);
        let page = render(&metrics, &history, now);
        assert!(page.contains("<p class=\"figure\">1,900</p>") && page.contains("highest 1,900<"), "{page}");
    }

    #[test]
    fn rows_in_the_dead_letter_topic_are_among_the_problems_of_a_relay_that_streams() {
        let metrics = Metrics::new("orders", "p", Instant::now());
        metrics.set_state(State::Streaming);
        metrics.bad_row("invalid_topic");
        let page = page(&metrics);
        assert!(page.contains("1 row was not published since the start: invalid_topic 1"), "{page}");
        assert!(page.contains("<code>walrelay dead-letters</code> lists"), "{page}");
    }

    #[test]
    fn only_the_pages_own_style_and_script_are_heeded() {
        let policy = policy();
        // This is the hash of the empty text, from `openssl dgst -sha256 -binary | base64`.
        assert_eq!(hash(""), "sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=");
        assert!(!policy.contains("unsafe"), "{policy}");
        let page = page(&Metrics::new("orders", "p", Instant::now()));
        assert!(
            page.contains(&format!("<style>{STYLE}</style>")) && page.contains(&format!("<script>{SCRIPT}</script>"))
        );
        // The policy does not allow such attributes.
        assert!(!page.contains(" style=\"") && !page.contains(" onclick="), "{page}");
        assert!(!page.contains("src=\"") && !page.contains("href=\"http"), "{page}");
    }
}
