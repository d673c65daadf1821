//! The relay at a steady rate of single-row transactions, rate by rate.

use anyhow::Result;
use serde_json::{Value, json};
use walrelay_dev::kafka::Kafka;

use super::plot;
use super::report::Figure;
use super::subject::Subjects;
use crate::commands::latency::{self, Measured};
use crate::screen::{line, percentile, thousands};

/// What one rate showed.
#[derive(Debug)]
pub(super) struct Steady {
    measured: Measured,
}

/// How long the highest rate goes on first, which does not count: a broker that has just started is slow at small batches, too.
const WARM_UP_SECONDS: u32 = 5;

/// Measures each rate for so many seconds.
pub(super) fn measure(
    subjects: &Subjects,
    kafka: &Kafka,
    major: u32,
    rates: &[u32],
    seconds: u32,
) -> Result<Vec<Steady>> {
    let postgres = latency::start_postgres(major)?;
    let at = |rate, seconds| {
        latency::measure(&postgres, kafka, &subjects.walrelay, rate, seconds, subjects.relay_arguments())
    };
    if let Some(highest) = rates.iter().max() {
        at(*highest, WARM_UP_SECONDS)?;
    }
    let mut all = Vec::new();
    for rate in rates {
        let measured = at(*rate, seconds)?;
        let steady = Steady { measured };
        line(&format!("  steady {}", steady.row()));
        all.push(steady);
    }
    Ok(all)
}

impl Steady {
    fn row(&self) -> String {
        let Measured { rate, written_per_second, to_append, to_consumer, cpu_share, peak_mib, .. } = &self.measured;
        let at = |times: &[f64]| {
            [50.0, 90.0, 99.0, 99.9, 100.0].map(|percent| format!("{:.1}", percentile(times, percent))).join(" / ")
        };
        format!(
            "| {} ({written_per_second:.0}) | {} | {} | {:.1} % | {peak_mib} |",
            thousands((*rate).into()),
            at(to_append),
            at(to_consumer),
            cpu_share * 100.0
        )
    }

    /// Everything.
    pub(super) fn json(&self) -> Value {
        let Measured { rate, written_per_second, seconds, late, to_append, to_consumer, cpu_share, peak_mib, .. } =
            &self.measured;
        let at = |times: &[f64]| {
            json!({
                "rows": times.len(),
                "p50": percentile(times, 50.0),
                "p90": percentile(times, 90.0),
                "p99": percentile(times, 99.0),
                "p99.9": percentile(times, 99.9),
                "max": percentile(times, 100.0),
            })
        };
        json!({
            "per_second": rate,
            "written_per_second": written_per_second,
            "seconds": seconds,
            "writers_late_seconds": late.as_secs_f64(),
            "commit_to_append_millis": at(to_append),
            "commit_to_consumer_millis": at(to_consumer),
            "cpu_share_of_a_core": cpu_share,
            "peak_mib": peak_mib,
        })
    }
}

/// As a picture: the time from commit to append that half the rows stay below, and 99 of 100.
pub(super) fn picture(all: &[Steady]) -> String {
    let bars: Vec<_> = all
        .iter()
        .map(|Steady { measured }| {
            let at = |percent| percentile(&measured.to_append, percent);
            let (median, most) = (at(50.0), at(99.0));
            let words = format!("p50 {median:.1} ms, p99 {most:.1} ms");
            (format!("walrelay {}/s", thousands(measured.rate.into())), Figure { median, least: median, most }, words)
        })
        .collect();
    plot::bars_of("From commit to the broker's append, in milliseconds", "p50 as the bar, p99 as the line", &bars)
}

/// As a section of the report.
pub(super) fn markdown(all: &[Steady]) -> String {
    let mut text = "\n## Steady: single-row transactions\n\nwalrelay, TCP; fsync = off, since a commit's time is taken before the disk is waited for. Milliseconds as p50 / p90 / p99 / p99.9 / max;\nthe broker's append time has whole ones.\n\n\
        | a second (written) | commit to append | COMMIT to consumer | CPU of a core | peak MB |\n|---|---|---|---|---|\n"
        .to_owned();
    for steady in all {
        text.push_str(&steady.row());
        text.push('\n');
    }
    text
}
