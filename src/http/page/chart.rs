//! Draws small charts of the last 15 minutes, as SVG: a line, and a strip of conditions.
//!
//! In: values with their ages. Out: one `svg` element. It has no text, since it is stretched, but a label that describes it in words.
//! Its colours come from the page's style sheet.

use super::super::history::{Condition, SPAN};
use super::html::EscapedText;
use std::fmt::Write as _;
use std::time::Duration;

const WIDTH: f64 = 300.0;
const HEIGHT: f64 = 60.0;

/// If two points are further apart, no line joins them.
const GAP: Duration = Duration::from_secs(12);

/// Draws a line over the last 15 minutes. `None` is a gap. `least`: the top of the chart is at least this value.
pub(super) fn line(label: &str, values: &[(Duration, Option<f64>)], least: f64) -> String {
    let top = values.iter().filter_map(|(_, value)| *value).fold(least, f64::max);
    let (mut strokes, mut areas) = (String::new(), String::new());
    for run in runs(values) {
        let point = |&(age, value): &(Duration, f64)| (x(age), HEIGHT - 2.0 - value / top * (HEIGHT - 4.0));
        let (Some(first), Some(last)) = (run.first().map(point), run.last().map(point)) else { continue };
        let mut path = format!("M{:.1} {:.1}", first.0, first.1);
        for (x, y) in run.iter().skip(1).map(point) {
            append(&mut path, &format!("L{x:.1} {y:.1}"));
        }
        if run.len() == 1 {
            // This point has no neighbours. With round ends, a line of no length is a dot.
            path.push_str("h0.1");
        }
        append(&mut strokes, &path);
        append(&mut areas, &format!("{path}L{:.1} {HEIGHT}L{:.1} {HEIGHT}Z", last.0, first.0));
    }
    format!(
        "<svg class=\"chart\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" preserveAspectRatio=\"none\" role=\"img\" \
         aria-label=\"{}\"><path class=\"area\" d=\"{areas}\"/><path class=\"stroke\" d=\"{strokes}\"/></svg>",
        EscapedText(label)
    )
}

/// Draws the conditions as a strip of colours.
pub(super) fn strip(conditions: &[(Duration, Condition)]) -> String {
    let mut bars = String::new();
    let mut rest = conditions;
    while let Some(&(_, condition)) = rest.first() {
        let same = rest.iter().take_while(|(_, other)| *other == condition).count();
        let (run, after) = rest.split_at(same);
        let from = run.first().map_or(0.0, |(age, _)| x(*age + Duration::from_secs(5)));
        let to = run.last().map_or(0.0, |(age, _)| x(*age));
        let (y, height) = match condition {
            // For readers who do not see colours, a worse condition is higher.
            Condition::Good => (6, 4),
            Condition::Wait => (3, 7),
            Condition::Bad => (0, 10),
        };
        append(
            &mut bars,
            &format!(
                "<rect class=\"{}\" x=\"{from:.1}\" y=\"{y}\" width=\"{:.1}\" height=\"{height}\"/>",
                condition.class(),
                to - from
            ),
        );
        rest = after;
    }
    let good = conditions.iter().filter(|(_, condition)| *condition == Condition::Good).count();
    let label = match conditions.len() {
        0 => "The last 15 minutes: nothing known yet".to_owned(),
        all => format!("Of the time known of the last 15 minutes, ready for {} %", good * 100 / all),
    };
    format!(
        "<svg class=\"strip\" viewBox=\"0 0 {WIDTH} 10\" preserveAspectRatio=\"none\" role=\"img\" \
         aria-label=\"{label}\">{bars}</svg>"
    )
}

/// Splits the values at gaps.
fn runs(values: &[(Duration, Option<f64>)]) -> Vec<Vec<(Duration, f64)>> {
    let mut runs: Vec<Vec<(Duration, f64)>> = Vec::new();
    let mut joined = false;
    for &(age, value) in values {
        let Some(value) = value else {
            joined = false;
            continue;
        };
        match runs.last_mut() {
            Some(run) if joined && run.last().is_none_or(|(before, _)| before.saturating_sub(age) <= GAP) => {
                run.push((age, value));
            }
            _ => runs.push(vec![(age, value)]),
        }
        joined = true;
    }
    runs
}

/// The x coordinate of an age. Now is on the right.
fn x(age: Duration) -> f64 {
    WIDTH - age.min(SPAN).as_secs_f64() / SPAN.as_secs_f64() * WIDTH
}

fn append(text: &mut String, more: &str) {
    let _infallible = text.write_str(more);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn the_line_runs_from_left_to_right_and_the_largest_value_is_on_top() {
        let chart =
            line("a \"label\"", &[(seconds(10), Some(0.0)), (seconds(5), Some(8.0)), (seconds(0), Some(4.0))], 1.0);
        assert!(chart.contains("d=\"M296.7 58.0L298.3 2.0L300.0 30.0\""), "{chart}");
        assert!(chart.contains("aria-label=\"a &quot;label&quot;\""), "{chart}");
    }

    #[test]
    fn what_is_unknown_breaks_the_line() {
        let values = [(seconds(20), Some(1.0)), (seconds(15), None), (seconds(10), Some(1.0)), (seconds(5), Some(1.0))];
        let chart = line("x", &values, 1.0);
        assert!(chart.contains("d=\"M293.3 2.0h0.1M296.7 2.0L298.3 2.0\""), "{chart}");
        assert!(line("x", &[], 1.0).contains("d=\"\""));
    }

    #[test]
    fn the_strip_joins_what_is_alike() {
        let conditions = [(seconds(10), Condition::Good), (seconds(5), Condition::Good), (seconds(0), Condition::Bad)];
        let strip = strip(&conditions);
        assert_eq!(strip.matches("<rect").count(), 2, "{strip}");
        assert!(strip.contains("ready for 66 %"), "{strip}");
    }
}
