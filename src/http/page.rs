//! The page on `/`: one look at a relay, for a person.
//!
//! In: the figures. Out: HTML that needs nothing else: no script, no other file. It loads itself again every few seconds.
//! Whatever comes from outside (names, errors) is escaped.

use crate::metrics::{Metrics, Moment, State, Status};
use std::fmt;

const STYLE: &str = "
:root { color-scheme: light dark; --text: #1b1f24; --quiet: #57606a; --back: #fff; --line: #d0d7de;
        --good: #1a7f37; --wait: #7d4e00; --bad: #b3261e; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e6edf3; --quiet: #9aa4af; --back: #0d1117; --line: #30363d; --good: #3fb950; --wait: #d4a72c; --bad: #ff7b72; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back); max-width: 44rem;
       margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; margin: 0; border-left: .4rem solid currentColor; padding-left: .8rem; }
h1.good { color: var(--good); } h1.wait { color: var(--wait); } h1.bad { color: var(--bad); }
p { margin: .5rem 0; } .quiet { color: var(--quiet); }
table { border-collapse: collapse; width: 100%; margin: 1.5rem 0; }
th, td { text-align: left; vertical-align: top; padding: .4rem 0; border-top: 1px solid var(--line); font-weight: normal; }
th { color: var(--quiet); width: 40%; } td { font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
a { color: inherit; margin-right: 1rem; }
";

/// The page. `rate` is records a second; `None` before there is one.
pub(super) fn render(metrics: &Metrics, rate: Option<f64>, now: Moment) -> String {
    let status = metrics.status(now.instant);
    let state = metrics.state();
    let health = Health::of(state, metrics.ready(now.instant));
    let slot = Text(&status.slot);
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"refresh\" content=\"5\">\n\
         <title>{slot}: {state_name} - walrelay</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n\
         <h1 class=\"{class}\">{words}</h1>\n{reason}\
         <p class=\"quiet\">Slot {slot}, publication {publication}.</p>\n\
         <table>\n{rows}\n</table>\n</main>\n\
         <nav><a href=\"/metrics\">metrics</a> <a href=\"/status\">status</a> <a href=\"/readyz\">ready?</a> \
         <a href=\"/livez\">live?</a></nav>\n\
         <p class=\"quiet\">walrelay {version}, up for {uptime}.</p>\n</body>\n</html>\n",
        state_name = status.state,
        class = health.class,
        words = state.words(),
        reason = health.reason(),
        publication = Text(&status.publication),
        rows = rows(metrics, &status, rate, now),
        version = status.version,
        uptime = Age(status.uptime_seconds),
    )
}

/// How the state is coloured, and what is said below it.
struct Health {
    class: &'static str,
    not_ready: Option<String>,
}

impl Health {
    fn of(state: State, ready: Result<(), String>) -> Self {
        let class = match (state, &ready) {
            (State::Streaming, Ok(())) => "good",
            (State::Streaming | State::Blocked | State::Stopped, _) => "bad",
            (State::Connecting | State::WaitingForSlot | State::Careful | State::Stopping, _) => "wait",
        };
        Self { class, not_ready: ready.err() }
    }

    fn reason(&self) -> String {
        self.not_ready.as_deref().map_or_else(String::new, |reason| format!("<p>Not ready. {}</p>\n", Text(reason)))
    }
}

fn rows(metrics: &Metrics, status: &Status, rate: Option<f64>, now: Moment) -> String {
    let rate = rate.map_or_else(|| "not known yet".to_owned(), |rate| format!("{rate:.1} a second"));
    let behind = status.lag_bytes.map_or_else(String::new, |bytes| format!(", {} of WAL", Size(bytes)));
    let last_ack = status.last_ack_seconds.map_or_else(|| "none yet".to_owned(), |age| format!("{} ago", Age(age)));
    let in_flight = format!("{} records, {}", status.in_flight_records, Size(status.in_flight_bytes));
    [
        ("Rate, last minute", rate),
        ("Records acknowledged", status.events_total.to_string()),
        ("Behind", format!("{}{behind}", Age(metrics.lag(now).as_secs_f64()))),
        ("In flight", in_flight),
        ("Last acknowledgement", last_ack),
        ("Confirmed position", status.confirmed_lsn.clone()),
        ("Last error", status.last_error.clone().unwrap_or_else(|| "none".to_owned())),
    ]
    .iter()
    .map(|(name, value)| format!("<tr><th scope=\"row\">{name}</th><td>{}</td></tr>", Text(value)))
    .collect::<Vec<_>>()
    .join("\n")
}

/// Text in HTML, between tags and in attributes.
struct Text<'a>(&'a str);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write as _;
        self.0.chars().try_for_each(|character| match character {
            '&' => f.write_str("&amp;"),
            '<' => f.write_str("&lt;"),
            '>' => f.write_str("&gt;"),
            '"' => f.write_str("&quot;"),
            '\'' => f.write_str("&#39;"),
            other => f.write_char(other),
        })
    }
}

/// Seconds, in the unit that a person would choose.
struct Age(f64);

impl fmt::Display for Age {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            seconds if seconds < 120.0 => write!(f, "{seconds:.1} s"),
            seconds if seconds < 7_200.0 => write!(f, "{:.0} min", seconds / 60.0),
            seconds if seconds < 172_800.0 => write!(f, "{:.0} h", seconds / 3_600.0),
            seconds => write!(f, "{:.0} days", seconds / 86_400.0),
        }
    }
}

/// Bytes, likewise.
struct Size(u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
        match UNITS.iter().find(|(bytes, _)| self.0 >= *bytes) {
            // Tenths in whole numbers: exact, however large.
            Some((bytes, unit)) => write!(f, "{}.{} {unit}", self.0 / bytes, self.0 % bytes * 10 / bytes),
            None => write!(f, "{} bytes", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn what_comes_from_outside_cannot_become_markup() {
        let metrics = Metrics::new("<s>", "\"p\"", Instant::now());
        metrics.last_error(Some("</td><script>alert('x')</script>".to_owned()));
        let page = render(&metrics, None, Moment::now());
        assert!(!page.contains("<script") && !page.contains("<s>"), "{page}");
        assert!(page.contains("&lt;script&gt;alert(&#39;x&#39;)"), "{page}");
    }

    #[test]
    fn the_state_is_said_in_words_and_the_reason_below() {
        let metrics = Metrics::new("orders", "p", Instant::now());
        metrics.set_state(State::Blocked);
        metrics.blocked_on(Some("topic orders does not exist".to_owned()));
        let page = render(&metrics, Some(12.34), Moment::now());
        for part in [
            "<h1 class=\"bad\">Blocked: the destination takes no records now.</h1>",
            "<p>Not ready. blocked: topic orders does not exist</p>",
            "<td>12.3 a second</td>",
            "<td>0 records, 0 bytes</td>",
        ] {
            assert!(page.contains(part), "no {part} in {page}");
        }
    }

    #[test]
    fn figures_are_shown_in_units_that_people_read() {
        let sizes = [0, 1023, 1024, 1536, 5 << 20, u64::MAX].map(|bytes| Size(bytes).to_string());
        assert_eq!(sizes, ["0 bytes", "1023 bytes", "1.0 KiB", "1.5 KiB", "5.0 MiB", "17179869183.9 GiB"]);
        let ages = [0.04, 119.0, 600.0, 7_200.0, 864_000.0].map(|seconds| Age(seconds).to_string());
        assert_eq!(ages, ["0.0 s", "119.0 s", "10 min", "2 h", "10 days"]);
    }
}
