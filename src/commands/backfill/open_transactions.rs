//! Waits until every transaction that is open now has ended.
//!
//! In: a connection. Out: nothing, once it is so. Invariant: a row that such a transaction has inserted is then visible, or will never be. Its
//! change may have been decoded before its table was published, so that it is in no slot.

use crate::commands::error::CommandError;
use crate::commands::output::session;
use crate::pg::{Connection, catalog};
use std::time::{Duration, Instant};

/// How often the transactions are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// How long a wait may take before it is reported.
const FIRST_WORD: Duration = Duration::from_secs(2);

/// How often it is reported again.
const WORD_EVERY: Duration = Duration::from_secs(10);

/// Waits.
///
/// # Errors
/// It was asked to stop, or the connection broke.
pub(super) fn wait(connection: &mut Connection, stop: &dyn Fn() -> bool) -> Result<(), CommandError> {
    let next = catalog::next_transaction(connection)?;
    let (started, mut word_after) = (Instant::now(), FIRST_WORD);
    while catalog::oldest_running(connection)? < next {
        if stop() {
            return Err(CommandError::interrupted());
        }
        if started.elapsed() >= word_after {
            word_after = started.elapsed() + WORD_EVERY;
            let writers = catalog::writers_older_than(connection, Duration::ZERO)?;
            let prepared = catalog::prepared(connection)?;
            let prepared =
                prepared.iter().map(|one| format!("prepared transaction {} of database {}", one.gid, one.database));
            let open: Vec<String> = writers.iter().map(session).chain(prepared).collect();
            tracing::warn!(
                open = open.join("; "),
                "waiting until the transactions that were open at the beginning have ended: rows of theirs may be in no slot"
            );
        }
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(())
}
