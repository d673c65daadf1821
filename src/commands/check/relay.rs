//! The relay itself, where one runs on this machine: what it says of itself counts for more than what its slot looks like.
//!
//! In: its `/status`, or none. Out: a finding, or none. Only [`ask`] contacts it.

use crate::check_finding::{Finding, Side};
use crate::commands::run;
use crate::commands::status::{RelayReport, of_relay};
use crate::http::HttpAddress;
use crate::metrics::State;

/// Asks the relay that serves HTTP where this run would. `is_read`: somebody reads the slot.
pub(super) fn ask(config: &run::RunRequest, is_read: bool) -> Option<Finding> {
    let address = config.http.as_ref().map(HttpAddress::of_this_machine)?;
    match of_relay(&address, &config.slot) {
        Some(report) => Some(judge(&address, &report)),
        None => is_read.then(|| unasked(&address, &config.slot)),
    }
}

fn unasked(address: &str, slot: &str) -> Finding {
    Side::Postgres
        .ok("relay", format!("no relay of slot {slot} answers at {address}, and somebody reads it"))
        .why("what the relay reports is more reliable than what its slot shows")
        .words("--http with the address that the relay serves, if it runs on this machine")
}

fn judge(address: &str, report: &RelayReport) -> Finding {
    let state = State::ALL.into_iter().find(|state| state.name() == report.state);
    let problem = report.last_error.as_deref().unwrap_or("it says no more");
    let text = format!("the relay at {address} is {}", report.state);
    let more = format!("{text}: {problem}");
    match state {
        Some(State::Streaming) => Side::Postgres.ok("relay", text),
        Some(State::WaitingForSlot | State::Stopping) => Side::Postgres.ok("relay", more),
        Some(State::Stopped | State::Blocked) => Side::Postgres
            .fail("relay", more)
            .why("no row is published until that is fixed; the slot keeps all of them")
            .bounded(report.hint.clone().unwrap_or_else(|| format!("see http://{address}/ and the relay's log"))),
        Some(State::Connecting | State::Searching) | None => Side::Postgres
            .warn("relay", more)
            .why("rows wait until that has passed")
            .words(format!("see http://{address}/ and the relay's log, if it lasts")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check_finding::{Fix, Level};
    use serde_json::json;

    fn judged(state: &str, hint: Option<&str>) -> Finding {
        let report = json!({"slot": "s", "state": state, "last_error": "a row is bad", "hint": hint});
        judge("h:1", &serde_json::from_value(report).unwrap())
    }

    #[test]
    fn a_relay_that_is_held_fails_with_the_hint_that_it_gives() {
        let found = judged("stopped", Some("walrelay run --bad-row-at 0/1:0=skip"));
        assert_eq!((found.level, found.finding.as_str()), (Level::Fail, "the relay at h:1 is stopped: a row is bad"));
        assert_eq!(found.fix, Some(Fix::bounded("walrelay run --bad-row-at 0/1:0=skip")));
        assert_eq!(judged("blocked", None).level, Level::Fail);
    }

    #[test]
    fn a_relay_that_serves_elsewhere_is_asked_for() {
        let found = unasked("127.0.0.1:9464", "orders");
        assert_eq!(found.level, Level::Ok);
        assert!(found.finding.contains("127.0.0.1:9464") && found.fix.unwrap().to_string().contains("--http"));
    }

    #[test]
    fn what_passes_by_itself_is_a_warning_and_a_stream_is_fine() {
        assert_eq!(judged("connecting", None).level, Level::Warn);
        assert_eq!(judged("of-the-future", None).level, Level::Warn);
        assert_eq!(judged("waiting-for-slot", None).level, Level::Ok);
        assert_eq!(judged("streaming", None).finding, "the relay at h:1 is streaming");
    }
}
