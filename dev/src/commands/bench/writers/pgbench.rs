//! The application: pgbench, whose transactions change a business table and insert into the outbox.
//!
//! In: a database and a rate. Out: its transactions a second, and what each of them took, by pgbench's own log.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

use crate::screen::percentile;

/// Writers at the same time.
pub(super) const CLIENTS: u32 = 8;

/// The business table, which has nothing to do with any relay.
pub(super) const BUSINESS: &str = "
CREATE TABLE orders (id int PRIMARY KEY, version int NOT NULL DEFAULT 0, changed_at timestamptz NOT NULL DEFAULT now());
INSERT INTO orders (id) SELECT generate_series(1, 10000);
VACUUM ANALYZE orders;
";

const SCRIPT: &str = "\\set order random(1, 10000)
BEGIN;
UPDATE orders SET version = version + 1, changed_at = now() WHERE id = :order;
INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, payload) VALUES (gen_random_uuid(), 'order', 'order-' || :order::int,
 'OrderPlaced', jsonb_build_object('order', :order::int, 'total', '29.99', 'note', repeat('x', 250)));
END;
";

/// What the writers saw.
#[derive(Debug, Clone, Copy, serde::Serialize)]
pub(super) struct Written {
    #[serde(rename = "transactions_per_second")]
    pub(super) per_second: f64,
    /// A whole transaction; at a fixed rate from when it was due.
    #[serde(rename = "transaction_p50_millis")]
    pub(super) p50_millis: f64,
    #[serde(rename = "transaction_p99_millis")]
    pub(super) p99_millis: f64,
    /// The mean of COMMIT alone.
    #[serde(rename = "commit_mean_millis")]
    pub(super) commit_millis: f64,
}

/// Writes for so many seconds, at `rate` transactions a second; 0: as many as they can.
pub(super) fn write(program: &Path, url: &str, folder: &Path, rate: u32, seconds: u32) -> Result<Written> {
    let script = folder.join("writers.sql");
    std::fs::write(&script, SCRIPT)?;
    let log = folder.join("writers");
    let mut command = Command::new(program);
    command.args(["--no-vacuum", "--protocol=prepared", "--report-per-command", "--log", "--jobs=1"]);
    command.arg(format!("--client={CLIENTS}")).arg(format!("--time={seconds}"));
    command.arg(format!("--file={}", script.display())).arg(format!("--log-prefix={}", log.display()));
    if rate > 0 {
        command.arg(format!("--rate={rate}"));
    }
    let output = command.arg(url).stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot start {}", program.display()))?;
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "pgbench: {said}{}", String::from_utf8_lossy(&output.stderr));
    let mut millis = latencies(folder)?;
    millis.sort_by(f64::total_cmp);
    Ok(Written {
        per_second: rate_of(&said).context("pgbench tells no rate")?,
        p50_millis: percentile(&millis, 50.0),
        p99_millis: percentile(&millis, 99.0),
        commit_millis: commit_of(&said).context("pgbench tells nothing of END")?,
    })
}

/// Milliseconds of each transaction; the logs are removed.
fn latencies(folder: &Path) -> Result<Vec<f64>> {
    let mut millis = Vec::new();
    for path in logs(folder)? {
        let text = std::fs::read_to_string(&path)?;
        millis.extend(text.lines().filter_map(latency));
        std::fs::remove_file(path)?;
    }
    Ok(millis)
}

fn logs(folder: &Path) -> Result<Vec<PathBuf>> {
    let files = std::fs::read_dir(folder)?.flatten().map(|file| file.path());
    let is_log = |path: &PathBuf| {
        path.file_name()
            .and_then(|name| name.to_str())
            .is_some_and(|name| name.starts_with("writers.") && name != "writers.sql")
    };
    Ok(files.filter(is_log).collect())
}

/// Of a log's line `client transaction microseconds …`.
fn latency(line: &str) -> Option<f64> {
    Some(line.split(' ').nth(2)?.parse::<f64>().ok()? / 1000.0)
}

/// Of `tps = 1234.5 (without initial connection time)`.
fn rate_of(said: &str) -> Option<f64> {
    said.lines().find_map(|line| line.strip_prefix("tps = ")?.split(' ').next()?.parse().ok())
}

/// Of `         0.123           0 END;`.
fn commit_of(said: &str) -> Option<f64> {
    said.lines().find(|line| line.trim_end().ends_with("END;"))?.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pgbenchs_words_are_read() {
        let said = "latency average = 2.1 ms\ntps = 1234.500000 (without initial connection time)\n         0.350           0  BEGIN;\n         1.250           0  END;\n";
        assert_eq!((rate_of(said), commit_of(said)), (Some(1234.5), Some(1.25)));
        assert_eq!((rate_of("no"), commit_of("no")), (None, None));
        assert_eq!(latency("0 199 2241 0 1175850568 995598 12"), Some(2.241));
    }

    #[test]
    fn the_script_names_the_orders_that_there_are() {
        let orders = "(1, 10000)";
        assert!(SCRIPT.contains(&format!("random{orders}")) && BUSINESS.contains(&format!("generate_series{orders}")));
    }
}
