//! `walrelay verify` beside the rounds: what it says is compared with the books of those who write.
//!
//! In: the relay's arguments. Out: what it said that the books do not. It goes around the taps, as reader and witness do. When Postgres is killed, or a
//! table comes, its window ends with exit code 1, and another one begins after the round. Exit code 2 is a false alarm, unless the books
//! say the same. A window that lasted for the whole run has to have as many rows and repeats as the books.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use walrelay_dev::process::wait_until;
use walrelay_dev::relay::Relay;
use walrelay_dev::stage::Stage;
use walrelay_dev::truth;

/// How long a window may take to begin, and to end.
const PATIENCE: Duration = Duration::from_mins(3);

/// The line that says that a window has begun.
const BEGUN: &str = "comparing rows with records";

/// A comparison that runs.
pub(super) struct Comparison {
    process: Relay,
    stage: Stage,
    arguments: Vec<String>,
    /// Windows that ended before the end.
    broken: usize,
    /// What it said that it should not have.
    wrong: Vec<String>,
}

/// What the windows showed in the end.
#[derive(Debug, Default)]
pub(super) struct Compared {
    /// Windows, the last one included.
    pub(super) windows: usize,
    /// The report of the last one.
    pub(super) last: Value,
    /// What does not agree with the books.
    pub(super) wrong: Vec<String>,
}

impl Comparison {
    /// Begins, and waits until the window has begun. `to`: the brokers, around their taps; `relay`: the arguments of the relay.
    pub(super) fn start(stage: &Stage, to: &str, relay: &[String]) -> Result<Self> {
        let own = ["--json", "--follow=0", "--wait=2min"].map(str::to_owned);
        let place = ["--source".to_owned(), stage.source.clone(), "--to".to_owned(), to.to_owned()];
        let arguments: Vec<String> = relay.iter().cloned().chain(own).chain(place).collect();
        let process = begin(stage, &arguments)?;
        Ok(Self { process, stage: stage.clone(), arguments, broken: 0, wrong: Vec::new() })
    }

    /// Begins again, if the window has ended. Everything is up.
    pub(super) fn look(&mut self) -> Result<()> {
        let Some(code) = self.process.exited()? else { return Ok(()) };
        self.broken += 1;
        if code != 1 {
            self.wrong.push(format!("it ended with {code}: {}{}", self.process.stdout(), self.process.log()));
        }
        self.process = begin(&self.stage, &self.arguments)?;
        Ok(())
    }

    /// Ends the window. Everything that is committed has been confirmed, and the books say this.
    pub(super) fn end(mut self, truth: &truth::Report, counts_all: bool) -> Result<Compared> {
        let windows = self.broken + 1;
        let code = match self.process.exited()? {
            Some(code) => code,
            None => self.process.terminate(PATIENCE).context("the comparison")?.code,
        };
        let (out, log) = (self.process.stdout(), self.process.log());
        let last: Value = serde_json::from_str(&out).unwrap_or_default();
        let mut wrong = std::mem::take(&mut self.wrong);
        let rows = count(&last, "rows");
        let is_empty = code == 1 && rows == 0 && !last.is_null();
        if code != 0 && !is_empty && truth.is_clean() {
            wrong.push(format!("the last window ended with {code}: {out}{log}"));
        }
        if windows == 1 && counts_all {
            let books = (truth.committed as u64, truth.repeated as u64);
            let said = (rows, count(&last, "repeated"));
            if said != books {
                wrong.push(format!("rows and repeats: it says {said:?}, the books say {books:?}: {out}"));
            }
        }
        Ok(Compared { windows, last, wrong })
    }
}

/// A count of a report; 0 if it has none.
pub(super) fn count(report: &Value, name: &str) -> u64 {
    report.get(name).and_then(Value::as_u64).unwrap_or_default()
}

fn begin(stage: &Stage, arguments: &[String]) -> Result<Relay> {
    let mut process = stage.publisher("verify", &arguments.iter().map(String::as_str).collect::<Vec<_>>())?;
    let begun = wait_until(PATIENCE, "the comparison to begin", || {
        if let Some(code) = process.exited()? {
            bail!("it ended with {code}");
        }
        Ok(process.log().contains(BEGUN))
    });
    begun.with_context(|| process.log())?;
    Ok(process)
}
