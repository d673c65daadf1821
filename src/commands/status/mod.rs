//! `status`: one slot, as the server and the relay on this machine see it.
//!
//! In: names. Out: a table for people, or JSON with stable keys (sizes as integers, positions as Postgres writes them); with
//! `--watch` again and again. Reads only. What could be found out is shown also when the slot cannot be read, and then why.

mod all;
mod relay;
mod report;

use super::error::CommandError;
use super::signals;
use crate::outbox::TableName;
use crate::pg::source::Source;
use crate::pg::{self, Connection, Purpose, Recovery, catalog, marker, server, slot_sighting};
use crate::supervise::{RunError, agrees, check_slot};
pub(super) use relay::{RelayReport, status as of_relay};
use report::{SlotReport, StatusReport, per_second};
use std::io::Write;
use std::time::{Duration, Instant};

/// Clears what is below and to the right; goes to the top left corner.
const CLEAR: &str = "\x1b[H\x1b[2J";
const HOME: &str = "\x1b[H";
const CLEAR_LINE: &str = "\x1b[K";
const CLEAR_BELOW: &str = "\x1b[J";

/// The slot to show, and how.
#[derive(Debug, Clone)]
pub struct StatusRequest {
    /// The database.
    pub source: Source,
    /// The publication.
    pub publication: String,
    /// The slot.
    pub slot: String,
    /// JSON.
    pub json: bool,
    /// Every shard, too.
    pub all: bool,
    /// Again after each such pause; `None`: once.
    pub watch: Option<Duration>,
    /// Where a relay on this machine serves HTTP, `host:port`; `None`: it is not asked.
    pub http: Option<String>,
}

/// Shows the slot. `terminal`: `out` can be drawn over. `stop`: ends a watch.
///
/// # Errors
/// The server cannot be reached; the slot is missing, lost, or not one that a relay on this database can read.
pub fn status(
    request: &StatusRequest,
    out: &mut dyn Write,
    terminal: bool,
    stop: &dyn Fn() -> bool,
) -> Result<(), CommandError> {
    match request.watch {
        Some(pause) => {
            Watch { request, terminal, connection: None, last: None, last_records: None }.run(pause, out, stop)
        }
        None if request.all => all::status(request, out),
        None => once(request, out),
    }
}

/// Asks the relay on this machine whether it is ready; says its answer. No connection to Postgres.
///
/// # Errors
/// It is not, or does not answer.
pub fn ready(http: &str, out: &mut dyn Write) -> Result<(), CommandError> {
    let answer = relay::get(http, "/readyz").map_err(|source| CommandError::no_relay(http, source))?;
    let reason = answer.body.trim();
    if answer.status != 200 {
        return Err(CommandError::not_ready(reason));
    }
    writeln!(out, "{reason}")?;
    Ok(())
}

fn once(request: &StatusRequest, out: &mut dyn Write) -> Result<(), CommandError> {
    let seen =
        Connection::open(&request.source, Purpose::Control).and_then(|mut connection| look(&mut connection, request));
    // If Postgres does not answer, what the relay has to say may be why somebody asks.
    let (report, outcome) = with_relay(request, seen);
    if request.json {
        writeln!(out, "{}", report.json_pretty())?;
    } else {
        write!(out, "{}", report.table())?;
    }
    outcome.map_err(Into::into)
}

/// A report, and whether a relay could read the slot.
type Look = (StatusReport, Result<(), RunError>);

/// Asks the database. Reads only.
fn look(connection: &mut Connection, request: &StatusRequest) -> Result<Look, pg::Error> {
    let slot = server::slot(connection, &request.slot)?;
    let publication = server::publication(connection, &request.publication)?.is_some();
    let mark = catalog::publication_mark(connection, &request.publication)?;
    let comment = mark.comment.as_deref();
    let tables = server::published_tables(connection, &request.publication)?;
    let pid = slot.as_ref().and_then(|slot| slot.row.active_pid);
    let reader = catalog::session(connection, pid)?;
    let sighting = slot_sighting::sight(connection, &request.slot)?;
    let outcome = match &slot {
        _ if marker::is_creating(comment, &request.slot) => {
            Err(RunError::setup_unfinished(&request.slot, &request.publication))
        }
        None => Err(RunError::no_slot(&request.slot, marker::is_set(comment, &request.slot))),
        Some(slot) => check_slot(&request.slot, &request.source.dbname, slot).and_then(|_| {
            let now = sighting.as_ref();
            now.map_or(Ok(()), |now| agrees(&request.publication, &request.slot, comment, now))
        }),
    };
    let mut report = StatusReport::unknown(request);
    report.publication_exists = Some(publication);
    report.tables = tables.iter().map(|table| TableName::of(&table.relation).to_string()).collect();
    report.slot_row = slot.as_ref().map(|slot| SlotReport::new(slot, reader.as_ref()));
    Ok((report, outcome))
}

/// Adds the relay's own status, and the error if the database was not read or no relay could read the slot.
fn with_relay(request: &StatusRequest, seen: Result<Look, pg::Error>) -> Look {
    let (mut report, outcome) = seen.unwrap_or_else(|error| (StatusReport::unknown(request), Err(error.into())));
    report.relay = request.http.as_deref().and_then(|address| of_relay(address, &request.slot));
    report.failed(&outcome);
    (report, outcome)
}

/// A watch: keeps its connection, and opens another when that broke.
struct Watch<'a> {
    request: &'a StatusRequest,
    terminal: bool,
    connection: Option<Connection>,
    /// The last position, and when it was read.
    last: Option<(u64, Instant)>,
    /// The relay's last count of records, and when it was read.
    last_records: Option<(u64, Instant)>,
}

impl Watch<'_> {
    fn run(mut self, pause: Duration, out: &mut dyn Write, stop: &dyn Fn() -> bool) -> Result<(), CommandError> {
        if self.draws() {
            write!(out, "{CLEAR}")?;
        }
        loop {
            let report = self.sample()?;
            self.show(&report, out)?;
            out.flush()?;
            if !signals::pause(pause, stop) {
                return Ok(());
            }
        }
    }

    fn draws(&self) -> bool {
        self.terminal && !self.request.json
    }

    /// One look. An outage is shown and waited out; what an operator must fix is shown, too, unless it is the connection.
    fn sample(&mut self) -> Result<StatusReport, CommandError> {
        let seen = match self.look() {
            Err(error) if error.recovery() == Recovery::Stop => return Err(error.into()),
            seen => seen,
        };
        // The rate ends at the moment of the position: the relay may take seconds to answer.
        let rate = seen.as_ref().ok().and_then(|(report, _)| self.rate(report));
        let (mut report, _) = with_relay(self.request, seen);
        report.rate = rate;
        report.records_rate = self.records_rate(&report);
        Ok(report)
    }

    fn look(&mut self) -> Result<Look, pg::Error> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => Connection::open(&self.request.source, Purpose::Control)?,
        };
        let seen = look(&mut connection, self.request)?;
        self.connection = Some(connection);
        Ok(seen)
    }

    fn rate(&mut self, report: &StatusReport) -> Option<u64> {
        let now = Instant::now();
        let position = report.slot_row.as_ref()?.confirmed?.bytes();
        let (before, then) = self.last.replace((position, now))?;
        Some(per_second(position.saturating_sub(before), now - then))
    }

    /// `None` as well for a relay that was started since: its count starts over.
    fn records_rate(&mut self, report: &StatusReport) -> Option<u64> {
        let now = Instant::now();
        let records = report.relay.as_ref()?.events_total;
        let (before, then) = self.last_records.replace((records, now))?;
        Some(per_second(records.checked_sub(before)?, now - then))
    }

    fn show(&self, report: &StatusReport, out: &mut dyn Write) -> Result<(), CommandError> {
        if self.request.json {
            writeln!(out, "{}", report.json_line())?;
        } else if self.draws() {
            let table = report.table().replace('\n', &format!("{CLEAR_LINE}\n"));
            write!(out, "{HOME}{table}{CLEAR_BELOW}")?;
        } else {
            writeln!(out, "{}", report.line())?;
        }
        Ok(())
    }
}
