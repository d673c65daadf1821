//! Exactly once, gathers whole transactions of Postgres in one transaction of the destination. Their records count as delivered
//! once that is committed.
//!
//! ```text
//!  init_transactions ──► rows … commit │ rows … commit │ (100 ms or 10,000 records) ──► all reported ──► commit ──► delivered
//! ```
//!
//! In: reports, the time, where transactions of Postgres end. Out: when the destination's transaction is committed, with the progress that
//! `progress` makes of the position.
//!
//! A progress that is ahead of the slot counts once the server has sent its last transaction again. Otherwise it is of another history of the
//! cluster, such as a copy's, and nothing passes the slot's position.
//!
//! The first progress is committed before the first row, and moves no position. Without it, a relay that was killed before its first commit
//! could not be told from one whose progress is gone: then the slot's position counts only if the operator says so.
//!
//! Invariants: until the commit, no report counts in the ledger, so no position passes a record that may yet be aborted. A transaction is
//! committed only while no note of a skipped row is open, so the progress passes none either. A transaction of
//! Postgres is never split. Without transactions, each function reads one field and returns.

use super::progress::{Identity, LastTransaction, ProgressMismatch, Resumption};
use super::session::{Session, Turn};
use super::{Clock, Relay, StreamEnd, Why};
use crate::lsn::Lsn;
use crate::pgoutput::Begin;
use crate::sink::{Committed, Initialized, Rows, Sink, Token};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// The relay commits the destination's transaction at the next end of a transaction of Postgres once it is so old, or has so many
/// records.
const MOST_AGE: Duration = Duration::from_millis(100);
const MOST_RECORDS: u64 = 10_000;

/// The time without any report of a record in flight, or without a stream, that counts as an outage (at most half of a
/// transaction's time). An outage explains a transaction's age.
const OUTAGE: Duration = Duration::from_secs(10);

/// The transactions of the destination.
#[derive(Debug, Default)]
pub(super) struct SinkTransaction {
    /// The longest time that a transaction may be open; `None`: the destination has no transactions.
    timeout: Option<Duration>,
    /// The identity of the server and the slot.
    pub(super) identity: Identity,
    /// The knowledge of what was committed, as of the moment when the slot was taken last, or taken over by another relay.
    pub(super) committed: Committed,
    /// The destination accepts this relay's transactions, and no other relay's.
    is_initialized: bool,
    /// The destination is this relay's, and its first progress is not committed yet.
    writes_first: bool,
    open: Option<OpenTransaction>,
    /// `final_lsn` of a transaction of Postgres that gets a transaction of the destination for itself: everything before it is
    /// committed first.
    separate: Option<Lsn>,
    /// `final_lsn` of the transaction of Postgres in whose middle the time ran out last, without an outage.
    timed_out: Option<Lsn>,
    /// Since when there is no stream.
    without_stream_since: Option<Instant>,
    /// The stored progress, until the server has sent its last transaction again. Until then it does not count, and no position passes it.
    unproven: Option<UnprovenProgress>,
    /// The stored progress is of another history, and the operator has said that the slot's position counts.
    gives_progress_up: bool,
    /// The last transaction of Postgres whose Begin was taken, and the last one that was taken whole.
    begun: Option<LastTransaction>,
    last: Option<LastTransaction>,
}

/// A stored progress that is ahead of the slot.
#[derive(Debug, Clone, Copy)]
struct UnprovenProgress {
    end_lsn: Lsn,
    last: LastTransaction,
}

/// A transaction of the destination that is not committed.
#[derive(Debug)]
struct OpenTransaction {
    since: Instant,
    /// The number of records in it.
    records: u64,
    /// The reports in it that do not count yet: records and bytes by transaction of Postgres and topic. Their tokens have no tick.
    uncounted: HashMap<Token, (u32, u64)>,
    /// No further transaction of Postgres is taken before this one is committed.
    is_closing: bool,
    /// When the relay first asked the sink to commit. Nothing is in flight then.
    committing_since: Option<Instant>,
    /// There was an outage since it was opened.
    had_outage: bool,
}

impl OpenTransaction {
    fn new(since: Instant) -> Self {
        let uncounted = HashMap::new();
        Self { since, records: 0, uncounted, is_closing: false, committing_since: None, had_outage: false }
    }
}

impl SinkTransaction {
    pub(super) fn of(timeout: Option<Duration>) -> Self {
        Self { timeout, ..Self::default() }
    }

    /// Whether the destination takes records in transactions.
    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.timeout.is_some()
    }

    /// Whether a transaction has records that are not committed.
    #[inline]
    pub(super) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// A record was enqueued.
    #[inline]
    pub(super) fn enqueued(&mut self, now: impl FnOnce() -> Instant) {
        if self.is_on() {
            self.open.get_or_insert_with(|| OpenTransaction::new(now())).records += 1;
        }
    }

    /// Keeps the reports of records, which count once the transaction is committed.
    ///
    /// # Panics
    /// No transaction is open.
    pub(super) fn reported(&mut self, token: Token, records: u32, bytes: u64) {
        let Some(open) = &mut self.open else { panic!("a report outside any transaction of the destination") };
        let (count, sum) = open.uncounted.entry(Token { tick: 0, ..token }).or_default();
        (*count, *sum) = (*count + records, *sum + bytes);
    }

    /// When the relay first asked the sink to commit.
    pub(super) fn committing_since(&self) -> Option<Instant> {
        self.open.as_ref()?.committing_since
    }

    /// Forgets everything uncommitted, which is lost with the sink. The new sink has to take the destination over again.
    pub(super) fn forget(&mut self) {
        (self.is_initialized, self.writes_first, self.open, self.unproven) = (false, false, None, None);
    }

    /// The slot was taken at `confirmed`; everything that we have committed commits before `ours`.
    pub(super) fn slot_taken(&mut self, confirmed: Lsn, ours: Lsn) {
        let is_first = ours == Lsn::ZERO;
        let by_others = if is_first { self.identity.was_read } else { confirmed > ours };
        self.committed = match self.committed {
            Committed::Nothing | Committed::Confirmed | Committed::More if by_others => Committed::Unknown,
            Committed::Confirmed | Committed::More if confirmed == ours => Committed::Confirmed,
            Committed::Confirmed | Committed::More => Committed::More,
            before @ (Committed::Nothing | Committed::Unknown) => before,
        };
    }

    /// What the slot's position may not show. If the operator has accepted that position, nothing.
    fn may_have_committed(&self) -> Committed {
        match self.committed {
            Committed::Unknown if self.identity.accepts_slot => Committed::Nothing,
            committed @ (Committed::Nothing | Committed::Confirmed | Committed::More | Committed::Unknown) => committed,
        }
    }

    /// The progress to store once everything that commits before `end_lsn` is published.
    fn value(&self, end_lsn: Lsn) -> String {
        self.identity.value(end_lsn, self.last)
    }

    /// A new transaction of Postgres is taken.
    #[inline]
    pub(super) fn began(&mut self, begin: &Begin) {
        self.begun = Some(begin.into());
    }

    /// The transaction of Postgres was taken whole.
    #[inline]
    pub(super) fn ended(&mut self) {
        self.last = self.begun;
    }

    /// Whether the server has not sent the last published transaction again yet.
    pub(super) fn is_unproven(&self) -> bool {
        self.unproven.is_some()
    }

    /// The slot is at `confirmed`. If another relay has moved it past the last published transaction, that one does not come again, and was
    /// this server's: returns the position of the progress.
    pub(super) fn slot_is_at(&mut self, confirmed: Lsn) -> Option<Lsn> {
        self.unproven.take_if(|unproven| unproven.last.final_lsn < confirmed).map(|unproven| unproven.end_lsn)
    }

    /// A stream begins.
    pub(super) fn stream_began(&mut self, now: Instant) {
        if let Some(ended) = self.without_stream_since.take() {
            self.note_outage(ended, now);
        }
    }

    /// The stream has ended.
    pub(super) fn stream_ended(&mut self, now: Instant) {
        self.without_stream_since = Some(now);
    }

    /// If the time from `since` on is long enough for an outage, that explains the age of the open transaction.
    pub(super) fn note_outage(&mut self, since: Instant, now: Instant) {
        let outage = self.timeout.map_or(OUTAGE, |timeout| OUTAGE.min(timeout / 2));
        if let Some(open) = &mut self.open {
            open.had_outage |= now.saturating_duration_since(since) >= outage;
        }
    }
}

impl<S: Sink, C: Clock> Relay<S, C> {
    /// Sets the identity under which the slot is read.
    pub fn identified(&mut self, identity: Identity) {
        self.transaction.identity = identity;
    }

    /// Whether the destination stores the relay's progress beside the records.
    pub fn is_exactly_once(&self) -> bool {
        self.transaction.is_on()
    }

    /// Whether the sink may take records. With transactions, it first has to take the destination over, and this function takes one step of
    /// that. The relay holds the slot by now, so a standby never ends another relay's transactions.
    pub(super) fn init_transactions(&mut self, session: &mut Session) -> Turn<bool> {
        if !self.transaction.is_on() {
            return Ok(true);
        }
        if self.transaction.identity.is_standby {
            return Err(Box::new(StreamEnd::ProgressMismatch(ProgressMismatch::Standby)));
        }
        if self.transaction.is_initialized {
            return Ok(true);
        }
        if self.transaction.writes_first {
            return self.write_first_progress(session);
        }
        let owner = self.transaction.identity.owner(self.transaction.may_have_committed());
        let initialized =
            self.sink.init_transactions(&owner).map_err(|failure| Box::new(StreamEnd::SinkFailed(failure)))?;
        match initialized {
            Initialized::Missing => Err(self.no_progress()),
            Initialized::Pending { reason, answered } => {
                session.waits_for_takeover(reason, answered, self.clock.now());
                Ok(false)
            }
            Initialized::Ready(stored) => {
                if self.resume_from(&stored)? {
                    return Ok(self.initialized(session));
                }
                self.transaction.writes_first = true;
                self.write_first_progress(session)
            }
        }
    }

    /// Commits the first progress, before the first row. A relay that is killed from now on has one.
    fn write_first_progress(&mut self, session: &mut Session) -> Turn<bool> {
        let (key, value) = (self.transaction.identity.key(), self.transaction.identity.first_value());
        if self.sink.commit(&key, &value).map_err(|failure| Box::new(StreamEnd::SinkFailed(failure)))? {
            (self.transaction.writes_first, self.transaction.gives_progress_up) = (false, false);
            return Ok(self.initialized(session));
        }
        session.waits_for_takeover(Some("committing the first progress".to_owned()), false, self.clock.now());
        Ok(false)
    }

    fn initialized(&mut self, session: &mut Session) -> bool {
        session.taking_over = None;
        (self.transaction.is_initialized, self.transaction.committed) = (true, Committed::More);
        true
    }

    /// Resumes from the stored progress, and returns whether there is one. If the slot is behind its last transaction, the server sends that
    /// one again, which proves that it is this server's.
    fn resume_from(&mut self, stored: &[(String, String)]) -> Turn<bool> {
        let Self { transaction, ledger, .. } = self;
        let start = transaction.identity.start(stored).map_err(|found| Box::new(StreamEnd::ProgressMismatch(found)))?;
        match start.filter(|_| !transaction.gives_progress_up) {
            // The server sends each transaction whose commit record begins at the slot's position or behind it.
            Some(Resumption { end_lsn, last: Some(last) }) if last.final_lsn >= ledger.flush_lsn() => {
                tracing::info!(published = %end_lsn, "exactly once: resuming once the last transaction has come again");
                transaction.unproven = Some(UnprovenProgress { end_lsn, last });
            }
            Some(Resumption { end_lsn, .. }) => {
                ledger.raise(end_lsn);
                tracing::info!(published = %ledger.flush_lsn(), "exactly once: resuming after the last commit");
            }
            None if transaction.may_have_committed() == Committed::Unknown => return Err(self.no_progress()),
            None => {
                tracing::info!(from = %ledger.flush_lsn(), "exactly once: beginning at the slot's position");
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Nothing is stored, and something may have been committed that the slot's position does not show.
    #[cold]
    #[allow(clippy::unnecessary_box_returns, reason = "an outcome is always passed on boxed: it is large, and rare")]
    fn no_progress(&self) -> Box<StreamEnd> {
        Box::new(StreamEnd::ProgressMismatch(ProgressMismatch::Missing { confirmed: self.ledger.flush_lsn() }))
    }

    /// Whether the transaction that begins was published before, as far as that is to be proven. It may be the one that proves it.
    pub(super) fn was_published(&mut self, begin: &Begin) -> Turn<bool> {
        let Some(UnprovenProgress { end_lsn, last }) = self.transaction.unproven else { return Ok(false) };
        if begin.final_lsn < last.final_lsn {
            return Ok(true);
        }
        if LastTransaction::from(begin) != last {
            return Err(self.other_history(last));
        }
        self.transaction.unproven = None;
        self.ledger.raise(end_lsn);
        tracing::info!(published = %self.flush_lsn(), "exactly once: the last transaction has come again");
        Ok(true)
    }

    /// The server has sent all transactions that commit before `wal_end`. Returns whether the position may follow: it may not before the
    /// stored progress is proven.
    pub(super) fn may_follow(&mut self, wal_end: Lsn) -> Turn<bool> {
        match self.transaction.unproven {
            Some(UnprovenProgress { last, .. }) if wal_end > last.final_lsn => Err(self.other_history(last)),
            unproven => Ok(unproven.is_none()),
        }
    }

    /// The last transaction that was published is not in the server's history.
    #[cold]
    #[allow(clippy::unnecessary_box_returns, reason = "an outcome is always passed on boxed: it is large, and rare")]
    fn other_history(&mut self, published: LastTransaction) -> Box<StreamEnd> {
        if self.transaction.identity.accepts_slot {
            self.transaction.gives_progress_up = true;
            return Box::new(StreamEnd::StartOver(Why::ProgressGivenUp));
        }
        let confirmed = self.ledger.flush_lsn();
        Box::new(StreamEnd::ProgressMismatch(ProgressMismatch::OtherHistory { published, confirmed }))
    }

    /// Whether the relay has to commit the destination's transaction before it takes the transaction of Postgres that commits at
    /// `next`. A transaction that was interrupted with its connection has to come again and end first, together with the received
    /// ones before it.
    #[inline]
    pub(super) fn must_commit_first(&mut self, next: Lsn) -> bool {
        let Some(open) = &mut self.transaction.open else { return false };
        open.is_closing |= self.transaction.separate == Some(next);
        open.is_closing && !self.ledger.is_open()
    }

    /// The stream is about to end in the middle of a transaction, and the destination's transaction would be aborted. If it contains
    /// whole transactions as well, the relay starts over, and commits those before it takes the interrupted one.
    pub(super) fn commit_whole_transactions_first(&mut self) -> Turn<()> {
        // Each whole transaction that is not committed is in the ledger, with at least one record.
        let open =
            self.ledger.open_transaction().filter(|_| self.transaction.is_open() && self.ledger.transactions() > 1);
        if open.is_none() {
            return Ok(());
        }
        self.transaction.separate = open;
        Err(Box::new(StreamEnd::StartOver(Why::WholeFirst)))
    }

    /// Commits the transaction, if that is due. `ending`: nothing more will come.
    pub(super) fn commit(&mut self, ending: bool) -> Turn<()> {
        if !self.transaction.is_open() {
            return Ok(());
        }
        let now = self.clock.now();
        let silent_since = self.ledger.oldest_in_flight().map(|at| self.last_report.map_or(at, |last| last.max(at)));
        for since in silent_since.into_iter().chain(self.ledger.oldest_note()) {
            self.transaction.note_outage(since, now);
        }
        self.end_if_out_of_time(now)?;
        let Some(open) = &mut self.transaction.open else { return Ok(()) };
        let age = now.saturating_duration_since(open.since);
        open.is_closing |= ending || age >= MOST_AGE || open.records >= MOST_RECORDS;
        if !open.is_closing || self.ledger.is_open() {
            return Ok(());
        }
        if self.sink.in_flight().records > 0 {
            self.sink.on_idle(Rows::Live);
            return Ok(());
        }
        // The progress would pass a skipped row before its note.
        if self.notes.are_open() {
            return Ok(());
        }
        open.committing_since.get_or_insert(now);
        let (key, value) = (self.transaction.identity.key(), self.transaction.value(self.ledger.received_lsn()));
        if self.sink.commit(&key, &value).map_err(|failure| Box::new(StreamEnd::SinkFailed(failure)))? {
            self.count_committed(now);
        }
        Ok(())
    }

    /// The transaction is committed: its reports count now.
    fn count_committed(&mut self, now: Instant) {
        let uncounted = self.transaction.open.take().map(|open| open.uncounted).unwrap_or_default();
        self.transaction.gives_progress_up = false;
        for (token, (records, bytes)) in uncounted {
            self.ledger.counted(token, records);
            self.acknowledged += u64::from(records);
            self.metrics.acknowledged(token.topic, records.into(), bytes, now);
        }
        self.settle();
    }

    /// Starts over shortly before the transaction's timeout: the brokers would abort it, and refuse this sink from then on. The
    /// next try may end in time. If one transaction of Postgres runs out of time twice in a row, without an outage, and alone the
    /// second time, the stream ends with an error.
    fn end_if_out_of_time(&mut self, now: Instant) -> Turn<()> {
        let timeout = self.transaction.timeout.unwrap_or(Duration::MAX);
        let Some(transaction) = &self.transaction.open else { return Ok(()) };
        let age = now.saturating_duration_since(transaction.since);
        if age < timeout / 10 * 9 {
            return Ok(());
        }
        let had_outage = transaction.had_outage || self.transaction.without_stream_since.is_some();
        let open = self.ledger.open_transaction().filter(|_| !had_outage);
        if open.is_some() && self.transaction.timed_out == open {
            return Err(Box::new(StreamEnd::TransactionTooLong { records: transaction.records, timeout }));
        }
        self.transaction.timed_out = open;
        self.transaction.separate = open.or(self.transaction.separate);
        Err(Box::new(StreamEnd::StartOver(Why::OutOfTime(age))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns what counts as committed when the slot is taken at `confirmed`. Everything that we committed commits before `ours`.
    fn taken(transaction: &mut SinkTransaction, confirmed: u64, ours: u64) -> Committed {
        transaction.slot_taken(Lsn::new(confirmed), Lsn::new(ours));
        transaction.committed
    }

    #[test]
    fn nothing_is_committed_from_a_slot_that_was_never_read_until_the_destination_is_ours() {
        let mut transaction = SinkTransaction::default();
        assert_eq!([taken(&mut transaction, 100, 0), taken(&mut transaction, 100, 100)], [Committed::Nothing; 2]);
        assert_eq!(taken(&mut transaction, 101, 100), Committed::Unknown, "another relay was there");
        transaction.identity.was_read = true;
        assert_eq!(
            taken(&mut SinkTransaction { identity: transaction.identity, ..SinkTransaction::default() }, 100, 0),
            Committed::Unknown
        );
    }

    #[test]
    fn what_we_committed_is_all_that_is_unless_another_relay_may_have_been_there() {
        let mut transaction = SinkTransaction { committed: Committed::More, ..SinkTransaction::default() };
        assert_eq!(
            [taken(&mut transaction, 90, 100), taken(&mut transaction, 100, 100)],
            [Committed::More, Committed::Confirmed]
        );
        assert_eq!([taken(&mut transaction, 110, 100), taken(&mut transaction, 110, 110)], [Committed::Unknown; 2]);
        transaction.forget();
        assert_eq!(transaction.committed, Committed::Unknown);
    }
}
