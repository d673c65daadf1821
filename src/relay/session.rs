//! The state of one connection: the open transaction, the reasons to wait, and the feedback that is due.
//!
//! In: what `turn` sees. Out: the same, for the loop, for metrics and for people. It does no I/O.

use super::flush_timing::FlushTiming;
use super::obstacle::Obstacle;
use super::pause::LastRead;
use super::{BadRowAt, ProtocolError, StreamEnd};
use crate::lsn::{Lsn, Position};
use crate::outbox::{PlanError, RowContext};
use crate::pg;
use crate::pgoutput::{PgTime, RelationId};
use crate::positions::Feedback;
use crate::sink::{Failure, FailureClass};
use std::time::{Duration, Instant};

/// The hint for a standby that Postgres waits for.
const STANDBY_HINT: &str =
    "start the standby; or, if it is gone for good, take its slot out of synchronized_standby_slots and reload";

/// A table that the server has announced.
#[derive(Debug, Clone, Copy)]
pub(super) struct Announced {
    pub(super) table: RelationId,
    /// The row that was to come next then.
    pub(super) next: Option<Position>,
    /// The server has announced no other table on this connection.
    pub(super) is_only: bool,
}

/// The state of one connection.
pub(super) struct Session {
    pub(super) feedback: Feedback,
    /// How long the server may be silent.
    pub(super) patience: Option<Duration>,
    /// The wall clock at the beginning of the turn: the time at which the turn's records are sent.
    pub(super) sent_at: PgTime,
    /// The transaction whose messages are coming.
    pub(super) open: Option<Open>,
    /// The confirmed position when the connection began.
    pub(super) began: Lsn,
    /// The highest position that the server has sent.
    pub(super) received: Lsn,
    /// The table that the server announced last.
    pub(super) announced: Option<Announced>,
    /// The reason for which the sink does not take the next record.
    pub(super) blocked: Option<Obstacle>,
    /// The row or table that ends the stream once everything before it is delivered.
    pub(super) ending: Option<Ending>,
    /// The bytes and messages of the last read.
    pub(super) last_read: LastRead,
    /// Records enqueued since the sink was last asked to send them.
    pub(super) flush_timing: FlushTiming,
    /// The takeover of the destination, while it lasts.
    pub(super) taking_over: Option<TakingOver>,
    /// The reason why the server sends nothing, and the position that it had reached.
    pub(super) withheld: Option<(String, Lsn)>,
    /// A call may have waited for somebody since the turn looked at the clock last.
    pub(super) may_have_waited: bool,
    /// The table at the front of the buffer has types that the catalog does not show yet: how often it was asked, and when last.
    pub(super) catalog_questions: Option<(u32, Instant)>,
}

/// A takeover of the destination that is not finished.
pub(super) struct TakingOver {
    /// When the sink was first asked for it on this connection, or answered last.
    since: Instant,
    /// The sink's reason to wait, if it is known.
    reason: Option<String>,
}

/// The event that ends the stream once everything before it is delivered.
pub(super) enum Ending {
    /// A row that cannot be published, and whose action is to stop.
    BadRow(Box<BadRowAt>),
    /// A table that cannot be mapped.
    Unmappable(Box<PlanError>),
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
    /// No frame has come whole.
    ForBytes,
    /// The sink is full, or the frame at the front waits for something else that takes a moment.
    ForRoom,
    /// The turn has taken frames for long enough. The rest of the buffer is the next turn's.
    TurnOver,
    /// The sink does not take the topic.
    Blocked(Failure),
    /// The stream ends once everything before is delivered.
    ForEnd,
}

pub(super) type Turn<T> = Result<T, Box<StreamEnd>>;

impl Session {
    pub(super) fn new(now: Instant, patience: Option<Duration>, began: Lsn) -> Self {
        Self {
            feedback: Feedback::new(now, patience),
            patience,
            sent_at: PgTime(0),
            open: None,
            began,
            received: Lsn::ZERO,
            announced: None,
            blocked: None,
            ending: None,
            last_read: LastRead::default(),
            flush_timing: FlushTiming::default(),
            taking_over: None,
            withheld: None,
            may_have_waited: false,
            catalog_questions: None,
        }
    }

    /// The reason for which the stream waits, once it has lasted long enough to be reported.
    pub(super) fn reason_to_wait(&self) -> Option<&str> {
        let blocked = self.blocked.as_ref().and_then(Obstacle::logged);
        let taking_over = || self.taking_over.as_ref()?.reason.as_deref();
        blocked.or_else(taking_over).or_else(|| Some(self.withheld.as_ref()?.0.as_str()))
    }

    /// The server sends nothing while it waits for a standby. It says so once a second, and the relay logs it once.
    pub(super) fn withhold(&mut self, notice: &pg::ServerError) {
        let reason = format!("Postgres sends nothing: {}", notice.message);
        if self.withheld.as_ref().is_none_or(|(before, _)| *before != reason) {
            tracing::warn!(%notice, hint = STANDBY_HINT, "Postgres waits for a standby and sends no rows; no data lost");
        }
        self.withheld = Some((reason, self.received));
    }

    /// The server has sent something: it does not wait for a standby any more.
    #[inline]
    pub(super) fn sends_again(&mut self) {
        if self.withheld.is_some() {
            self.withheld = None;
            tracing::info!("Postgres sends again");
        }
    }

    /// The sink has not taken the destination over yet, and waits for `reason`. It is not silent as long as it answers.
    pub(super) fn waits_for_takeover(&mut self, reason: Option<String>, answered: bool, now: Instant) {
        let since = self.taking_over.take().filter(|_| !answered).map_or(now, |before| before.since);
        self.taking_over = Some(TakingOver { since, reason });
    }

    /// Since when no record can be enqueued: the sink does not take the next record's topic, or has not taken the destination over.
    pub(super) fn held_up_since(&self) -> Option<Instant> {
        let blocked = self.blocked.as_ref().map(Obstacle::since);
        blocked.into_iter().chain(self.taking_over.as_ref().map(|taking_over| taking_over.since)).min()
    }

    /// Since when the sink takes nothing because of a failure of this class.
    pub(super) fn blocked_since(&self, class: FailureClass) -> Option<Instant> {
        self.blocked.as_ref().filter(|blocked| blocked.class() == class).map(Obstacle::since)
    }

    /// The end of the stream, with the reason if the server has heard nothing for longer than it waits. It closes the connection without
    /// a word.
    #[allow(clippy::unnecessary_box_returns, reason = "an outcome is always passed on boxed: it is large, and rare")]
    pub(super) fn explained(&self, ended: Box<StreamEnd>, now: Instant) -> Box<StreamEnd> {
        let silent = self.feedback.unheard_for(now);
        match (&*ended, self.patience) {
            (StreamEnd::Disconnected(pg::Error::Io { .. }), Some(limit)) if silent >= limit => {
                let (silent_s, limit_s) = (silent.as_secs(), limit.as_secs());
                Box::new(StreamEnd::Disconnected(pg::Error::Unheard { silent_s, limit_s }))
            }
            (_, _) => ended,
        }
    }

    /// The context of a row that has to be published; `None` if it was already received.
    pub(super) fn row_context(&self, message: &'static str) -> Turn<Option<RowContext>> {
        match self.open {
            Some(Open::Taken { context, skip }) => {
                Ok((context.position.ordinal >= skip).then_some(RowContext { sent_at: self.sent_at, ..context }))
            }
            Some(Open::AlreadyReceived) => Ok(None),
            None => Err(self.out_of_order(message, "outside any transaction")),
        }
    }

    /// The end of the stream by a message that must not come there.
    #[allow(clippy::unnecessary_box_returns, reason = "an outcome is always passed on boxed: it is large, and rare")]
    pub(super) fn out_of_order(&self, message: &'static str, when: &'static str) -> Box<StreamEnd> {
        Box::new(StreamEnd::Protocol(ProtocolError::OutOfOrder { message, when, at: self.received }))
    }

    /// The stream ends here, once everything before is delivered.
    pub(super) fn end(&mut self, ending: Ending) -> FrameStep {
        self.ending = Some(ending);
        FrameStep::Wait(WaitCause::ForEnd)
    }

    /// The row is finished, or was already received.
    pub(super) fn next_row(&mut self) {
        if let Some(Open::Taken { context, .. }) = &mut self.open {
            context.position.ordinal += 1;
        }
    }

    /// The position of the next row of the open transaction; `None` if its rows are not taken.
    pub(super) fn position(&self) -> Option<Position> {
        match self.open {
            Some(Open::Taken { context, .. }) => Some(context.position),
            Some(Open::AlreadyReceived) | None => None,
        }
    }
}

/// The end of the stream by an error of its connection.
#[allow(clippy::unnecessary_box_returns, reason = "an outcome is always passed on boxed: it is large, and rare")]
pub(super) fn disconnected(error: pg::Error) -> Box<StreamEnd> {
    Box::new(StreamEnd::Disconnected(error))
}
