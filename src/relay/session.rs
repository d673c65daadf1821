//! The state of one connection: the open transaction, the reasons to wait, and the feedback that is due.
//!
//! In: what `turn` sees. Out: the same, for the loop, for metrics and for people. It does no I/O.

use super::flush_timing::FlushTiming;
use super::pause::Brought;
use super::{BadRowAt, ProtocolError, StreamEnd};
use crate::lsn::Lsn;
use crate::outbox::{PlanError, RowContext};
use crate::pg;
use crate::positions::{Feedback, Position};
use crate::sink::{Failure, FailureClass};
use std::time::{Duration, Instant};

/// The hint for a standby that Postgres waits for.
const STANDBY_HINT: &str =
    "start the standby; or, if it is gone for good, take its slot out of synchronized_standby_slots and reload";

/// The state of one connection.
pub(super) struct Session {
    pub(super) feedback: Feedback,
    /// How long the server may be silent.
    pub(super) patience: Option<Duration>,
    /// The transaction whose messages are coming.
    pub(super) open: Option<Open>,
    /// The confirmed position when the connection began.
    began: Lsn,
    /// The highest position that the server has sent.
    pub(super) received: Lsn,
    /// The reason for which the sink does not take the next record, and since when.
    pub(super) blocked: Option<Blocked>,
    /// A row that ends the stream once everything before it is delivered.
    pub(super) bad_row: Option<Box<BadRowAt>>,
    /// A table that ends the stream likewise.
    pub(super) unmappable: Option<Box<PlanError>>,
    /// By the last read.
    pub(super) brought: Brought,
    /// Records enqueued since the sink was last asked to send them.
    pub(super) flush_timing: FlushTiming,
    /// The takeover of the destination, while it lasts.
    pub(super) taking_over: Option<TakingOver>,
    /// The reason why the server sends nothing, and the position that it had reached.
    pub(super) withheld: Option<(String, Lsn)>,
}

/// A takeover of the destination that is not finished.
pub(super) struct TakingOver {
    /// When the sink was first asked for it on this connection, or answered last.
    since: Instant,
    /// The sink's reason to wait, if it is known.
    reason: Option<String>,
}

/// A topic that the sink does not take.
pub(super) struct Blocked {
    pub(super) failure: Failure,
    pub(super) since: Instant,
    /// It has lasted long enough to be reported.
    pub(super) told: bool,
}

/// The treatment of the messages of the open transaction.
#[derive(Debug, Clone, Copy)]
pub(super) enum Open {
    /// The transaction was already received whole.
    AlreadyReceived,
    /// The transaction's rows from `skip` on are new.
    Taken { context: RowContext, skip: u64 },
}

/// The result of taking a frame.
pub(super) enum FrameStep {
    /// The frame is handled.
    Done,
    /// The frame stays in the buffer until the sink has room, takes the topic, or the stream ends.
    Wait(WaitCause),
}

/// Why no frame is taken now.
pub(super) enum WaitCause {
    /// There is none.
    ForBytes,
    /// The sink is full.
    ForRoom,
    /// The sink does not take the topic.
    Blocked(Failure),
    /// The stream is about to end.
    ForEnd,
}

pub(super) type Turn<T> = Result<T, Box<StreamEnd>>;

impl Session {
    pub(super) fn new(now: Instant, patience: Option<Duration>, began: Lsn) -> Self {
        Self {
            feedback: Feedback::new(now, patience),
            patience,
            open: None,
            began,
            received: Lsn::ZERO,
            blocked: None,
            bad_row: None,
            unmappable: None,
            brought: Brought::default(),
            flush_timing: FlushTiming::default(),
            taking_over: None,
            withheld: None,
        }
    }

    pub(super) fn received(&self) -> Lsn {
        self.received
    }

    /// The confirmed position when the connection began.
    pub(super) fn began(&self) -> Lsn {
        self.began
    }

    /// The position that the last status update confirmed.
    pub(super) fn told(&self) -> Option<Lsn> {
        self.feedback.confirmed()
    }

    /// The obstacle, once it has lasted long enough to be reported.
    pub(super) fn obstacle(&self) -> Option<&str> {
        let blocked = self.blocked.as_ref().filter(|blocked| blocked.told).map(|blocked| blocked.failure.text.as_str());
        let taking_over = || self.taking_over.as_ref()?.reason.as_deref();
        blocked.or_else(taking_over).or_else(|| Some(self.withheld.as_ref()?.0.as_str()))
    }

    /// A walsender says this once a second while it waits for a standby: once is enough.
    pub(super) fn withheld(&mut self, notice: &pg::ServerError) {
        let reason = format!("Postgres sends nothing: {}", notice.message);
        if self.withheld.as_ref().is_none_or(|(before, _)| *before != reason) {
            tracing::warn!(%notice, hint = STANDBY_HINT, "Postgres waits for a standby and sends no rows; no data lost");
        }
        self.withheld = Some((reason, self.received));
    }

    /// Called for each row: nearly always nothing was withheld.
    #[inline]
    pub(super) fn sends_again(&mut self) {
        if self.withheld.is_some() {
            self.withheld = None;
            tracing::info!("Postgres sends again");
        }
    }

    /// The sink is taking the destination over, and waits for `reason`. It is not silent as long as it answers.
    pub(super) fn takes_over(&mut self, reason: Option<String>, answered: bool, now: Instant) {
        let since = self.taking_over.take().filter(|_| !answered).map_or(now, |before| before.since);
        self.taking_over = Some(TakingOver { since, reason });
    }

    /// Since when no record can be enqueued: the sink does not take the next record's topic, or has not taken the destination over.
    pub(super) fn held_up_since(&self) -> Option<Instant> {
        let blocked = self.blocked.as_ref().map(|blocked| blocked.since);
        blocked.into_iter().chain(self.taking_over.as_ref().map(|taking_over| taking_over.since)).min()
    }

    /// Since when the sink takes nothing, for this kind of reason.
    pub(super) fn blocked_since(&self, class: FailureClass) -> Option<Instant> {
        self.blocked.as_ref().filter(|blocked| blocked.failure.class == class).map(|blocked| blocked.since)
    }

    /// The context of a row that has to be published; `None` if it was already received.
    pub(super) fn row_context(&self, message: &'static str) -> Turn<Option<RowContext>> {
        match self.open {
            Some(Open::Taken { context, skip }) => Ok((context.ordinal >= skip).then_some(context)),
            Some(Open::AlreadyReceived) => Ok(None),
            None => Err(self.out_of_place(message, "outside any transaction")),
        }
    }

    #[allow(clippy::unnecessary_box_returns, reason = "an outcome is always passed on boxed: it is large, and rare")]
    pub(super) fn out_of_place(&self, message: &'static str, place: &'static str) -> Box<StreamEnd> {
        Box::new(StreamEnd::Protocol(ProtocolError::OutOfPlace { message, place, at: self.received }))
    }

    /// Whether a row or table came that ends the stream.
    pub(super) fn is_at_its_end(&self) -> bool {
        self.bad_row.is_some() || self.unmappable.is_some()
    }

    /// The row has been dealt with.
    pub(super) fn next_row(&mut self) {
        if let Some(Open::Taken { context, .. }) = &mut self.open {
            context.ordinal += 1;
        }
    }

    pub(super) fn position(&self) -> Option<Position> {
        match self.open {
            Some(Open::Taken { context, .. }) => Some(position(&context)),
            Some(Open::AlreadyReceived) | None => None,
        }
    }
}

pub(super) fn position(context: &RowContext) -> Position {
    Position { final_lsn: context.final_lsn, ordinal: context.ordinal }
}

#[allow(clippy::unnecessary_box_returns, reason = "an outcome is always passed on boxed: it is large, and rare")]
pub(super) fn disconnected(error: pg::Error) -> Box<StreamEnd> {
    Box::new(StreamEnd::Disconnected(error))
}
