//! A scripted Postgres: a log, a slot, and a walsender that does what the real one does.
//!
//! ```text
//!  wal ──► walsender ──► pipe ──► relay        the pipe may be slow, freeze, or be cut at any byte
//!  slot ◄── inbox ◄── status updates           what is in the inbox when the pipe is cut may be read or not
//! ```
//!
//! The slot is written to disk at checkpoints only: a crash brings back an older confirmation. A promoted standby may lack the
//! log's tail. The rule by which a transaction is sent again is the server's: its commit record starts at or after the larger of
//! what is confirmed and what is asked for.

use crate::bytes::{self, Bytes};
use crate::dice::Dice;
use crate::machines::MACHINES;
use crate::wal::{Told, Transaction, Wal};
use std::collections::VecDeque;
use std::time::Duration;
use walrelay::lsn::Lsn;
use walrelay::pg::frame::ReadBuffer;
use walrelay::pg::replication::STATUS_UPDATE_BYTES;

/// Where the WAL begins.
pub(crate) const BEGIN: Lsn = Lsn::new(0x100_0000);

#[derive(Debug)]
pub(crate) struct Postgres {
    pub(crate) wal: Wal,
    pub(crate) slot: Slot,
    /// Who holds the slot, or held it last.
    pub(crate) sender: Option<Walsender>,
    /// What another machine has not read of the connection that it lost, when the slot was taken from it.
    left_behind: Option<Walsender>,
    /// A relay that is silent for so long is left.
    pub(crate) wal_sender_timeout: Option<Duration>,
    /// Who reads the slot, and when it was released last.
    held_by: Option<usize>,
    pub(crate) released: Option<Duration>,
    /// Refuses connections until then.
    pub(crate) down_until: Duration,
    /// Where each timeline but the present one was left; the first is number 1.
    pub(crate) left: Vec<Lsn>,
}

#[derive(Debug)]
pub(crate) struct Slot {
    /// `confirmed_flush_lsn`.
    pub(crate) confirmed: Lsn,
    /// The same as of the last checkpoint.
    saved: Lsn,
}

/// One connection.
#[allow(clippy::struct_excessive_bools, reason = "what may be wrong with it, each by itself")]
#[derive(Debug)]
pub(crate) struct Walsender {
    /// Whose it is.
    pub(crate) machine: usize,
    /// The place of the next transaction.
    next: usize,
    /// What is left to be sent of the one before.
    frames: VecDeque<Bytes>,
    end_lsn: Option<Lsn>,
    /// Everything that commits before this has been sent.
    sent: Lsn,
    told: Told,
    pipe: VecDeque<u8>,
    /// Status updates that the server has not read.
    inbox: VecDeque<Bytes>,
    /// Nothing comes through before.
    pub(crate) quiet_until: Duration,
    /// Nothing comes through any more, and nobody says so.
    pub(crate) frozen: bool,
    /// The server wants to stop: it waits until everything has been sent and confirmed, then ends the copy.
    pub(crate) shutting_down: bool,
    /// What is in the pipe is the last.
    pub(crate) cut: bool,
    /// Whoever waits for the connection knows that it is broken.
    woke: bool,
    /// When the last status update came.
    pub(crate) heard: Duration,
    keepalive_due: Duration,
}

/// How talkative the server is: once in so many messages.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Manner {
    pub(crate) keepalive: u64,
    pub(crate) asking: u64,
    pub(crate) loose_message: u64,
    /// Bytes that the sockets between hold.
    pub(crate) pipe: usize,
}

impl Postgres {
    pub(crate) fn new() -> Self {
        Self {
            wal: Wal::new(BEGIN),
            slot: Slot { confirmed: BEGIN, saved: BEGIN },
            sender: None,
            left_behind: None,
            wal_sender_timeout: None,
            held_by: None,
            released: None,
            down_until: Duration::ZERO,
            left: Vec::new(),
        }
    }

    pub(crate) fn timeline(&self) -> usize {
        self.left.len() + 1
    }

    /// Whether a machine's connection reads the slot, as far as the server knows.
    pub(crate) fn is_held_by(&self, machine: usize) -> bool {
        self.sender.as_ref().is_some_and(|sender| sender.machine == machine && !sender.cut)
    }

    /// The machines whose connections are broken since this was asked last.
    pub(crate) fn broken(&mut self) -> impl Iterator<Item = usize> {
        let senders = self.sender.iter_mut().chain(&mut self.left_behind);
        senders.filter_map(|it| (it.cut && !std::mem::replace(&mut it.woke, true)).then_some(it.machine))
    }

    /// As `inactive_since` says it: told before any time passes.
    pub(crate) fn look_at_holder(&mut self, now: Duration) {
        let holder = (0..MACHINES).find(|machine| self.is_held_by(*machine));
        if self.held_by.is_some() && self.held_by != holder {
            self.released = Some(now);
        }
        self.held_by = holder;
    }

    /// What a machine's connection still brings.
    pub(crate) fn sender_of(&self, machine: usize) -> Option<&Walsender> {
        self.sender.iter().chain(&self.left_behind).find(|sender| sender.machine == machine)
    }

    /// What the next keepalive names, if a machine has read everything that was sent to it.
    pub(crate) fn all_read(&self, machine: usize) -> Option<Lsn> {
        let sender = self.sender.as_ref().filter(|sender| sender.machine == machine && sender.is_alive())?;
        (sender.frames.is_empty() && sender.pipe.is_empty()).then_some(sender.sent)
    }

    /// START_REPLICATION. Where the stream begins.
    pub(crate) fn start(&mut self, machine: usize, asked: Lsn, now: Duration) -> Lsn {
        let begin = asked.max(self.slot.confirmed);
        self.look_at_holder(now);
        self.left_behind = self.sender.take().filter(|sender| sender.machine != machine);
        self.sender = Some(Walsender {
            machine,
            next: self.wal.from(begin),
            frames: VecDeque::new(),
            end_lsn: None,
            sent: begin.min(self.wal.end),
            told: Told::default(),
            pipe: VecDeque::new(),
            inbox: VecDeque::new(),
            quiet_until: now,
            frozen: false,
            shutting_down: false,
            cut: false,
            woke: false,
            heard: now,
            keepalive_due: now,
        });
        self.look_at_holder(now);
        begin
    }

    /// The slot is written to disk.
    pub(crate) fn checkpoint(&mut self) {
        self.slot.saved = self.slot.confirmed;
    }

    /// The connection breaks: any part of what is on its way gets through.
    pub(crate) fn cut(&mut self, dice: &mut Dice) {
        let Some(sender) = &mut self.sender else { return };
        sender.cut = true;
        if sender.frozen {
            sender.pipe.clear();
            sender.inbox.clear();
            return;
        }
        sender.pipe.truncate(dice.index(sender.pipe.len() + 1));
        sender.inbox.truncate(dice.index(sender.inbox.len() + 1));
    }

    /// The server ends the connection, and says so.
    pub(crate) fn terminate(&mut self, dice: &mut Dice) {
        let Some(sender) = self.sender.as_mut().filter(|sender| sender.is_alive()) else { return };
        sender.pipe.extend(bytes::terminated());
        sender.cut = true;
        sender.inbox.truncate(dice.index(sender.inbox.len() + 1));
    }

    /// The server dies, and starts again with the slot as the disk has it.
    pub(crate) fn crash(&mut self, dice: &mut Dice, until: Duration) {
        self.cut(dice);
        if let Some(sender) = &mut self.sender {
            sender.inbox.clear();
        }
        self.slot.confirmed = self.slot.saved;
        self.down_until = until;
    }

    /// A standby that has the WAL up to `at`, and the slot as it was copied last, takes over.
    pub(crate) fn promote(&mut self, at: Lsn, dice: &mut Dice) {
        let began = self.left.last().copied().unwrap_or(BEGIN);
        assert!(at >= began, "a timeline is left after it began");
        self.crash(dice, self.down_until);
        (self.sender, self.left_behind) = (None, None);
        self.wal.cut(at);
        self.slot.confirmed = self.slot.confirmed.min(at);
        self.slot.saved = self.slot.confirmed;
        self.left.push(at);
    }

    /// A status update arrives at the server's end.
    pub(crate) fn arrived(&mut self, update: &[u8]) {
        if let Some(sender) = self.sender.as_mut().filter(|sender| !sender.cut) {
            sender.inbox.push_back(update.to_vec());
        }
    }

    /// The walsender reads what has arrived.
    pub(crate) fn read_inbox(&mut self, now: Duration) {
        let Some(sender) = self.sender.as_mut().filter(|sender| !sender.frozen) else { return };
        while let Some(update) = sender.inbox.pop_front() {
            let (flush_lsn, asking) = read_status(&update);
            assert!(flush_lsn >= self.slot.confirmed, "the slot went back from {} to {flush_lsn}", self.slot.confirmed);
            self.slot.confirmed = flush_lsn;
            sender.heard = now;
            if asking {
                sender.pipe.extend(bytes::keepalive(sender.sent, false));
            }
        }
    }

    /// A machine's client is gone.
    pub(crate) fn disconnected(&mut self, machine: usize, dice: &mut Dice, now: Duration) {
        self.left_behind.take_if(|sender| sender.machine == machine);
        if self.sender.as_ref().is_none_or(|sender| sender.machine != machine) {
            return;
        }
        self.cut(dice);
        self.read_inbox(now);
        self.sender = None;
    }

    /// A relay that has said nothing for long loses the slot.
    pub(crate) fn leave_silent(&mut self, now: Duration) {
        let Some(timeout) = self.wal_sender_timeout else { return };
        let Some(sender) = self.sender.as_mut().filter(|sender| !sender.cut) else { return };
        if now.saturating_sub(sender.heard) >= timeout {
            sender.cut = true;
            sender.inbox.clear();
        }
    }

    /// Fills the pipe. The positions that keepalives tell go to `tell`.
    pub(crate) fn work(&mut self, manner: &Manner, now: Duration, dice: &mut Dice, tell: &mut impl FnMut(Lsn)) {
        let Self { wal, slot, sender: Some(sender), .. } = self else { return };
        if sender.cut || sender.frozen {
            return;
        }
        while sender.pipe.len() < manner.pipe {
            if dice.one_in(manner.keepalive) {
                sender.keepalive(wal, dice.one_in(manner.asking), dice, now, tell);
            }
            if let Some(frame) = sender.frames.pop_front() {
                sender.pipe.extend(frame);
                if sender.frames.is_empty() {
                    sender.sent = sender.end_lsn.take().unwrap();
                }
            } else if let Some(transaction) = wal.transactions.get(sender.next) {
                sender.begin(wal, transaction, manner, dice);
            } else {
                if sender.shutting_down && sender.sent == wal.end && slot.confirmed == sender.sent {
                    sender.pipe.extend(bytes::copy_done());
                    sender.cut = true;
                    slot.saved = slot.confirmed;
                } else if now >= sender.keepalive_due {
                    sender.keepalive(wal, dice.one_in(manner.asking), dice, now, tell);
                }
                return;
            }
        }
    }

    /// Any number of bytes out of the pipe.
    pub(crate) fn deliver(
        &mut self,
        machine: usize,
        buffer: &mut ReadBuffer,
        now: Duration,
        dice: &mut Dice,
    ) -> Delivery {
        let mut senders = self.sender.iter_mut().chain(&mut self.left_behind);
        let Some(sender) = senders.find(|sender| sender.machine == machine) else { return Delivery::Broken };
        if sender.frozen && !sender.cut || now < sender.quiet_until {
            return Delivery::Bytes(0);
        }
        if sender.pipe.is_empty() {
            return if sender.cut { Delivery::Broken } else { Delivery::Bytes(0) };
        }
        let room = buffer.space();
        let most = sender.pipe.len().min(room.len());
        let length = if dice.one_in(3) { most } else { dice.index(most) + 1 };
        for (place, byte) in room.iter_mut().zip(sender.pipe.drain(..length)) {
            *place = byte;
        }
        buffer.filled(length);
        Delivery::Bytes(length)
    }

    /// Whether everything has been sent and the last of it confirmed.
    pub(crate) fn is_done(&self) -> bool {
        self.slot.confirmed == self.wal.end
    }
}

/// What a read brings.
pub(crate) enum Delivery {
    Bytes(usize),
    Broken,
}

impl Walsender {
    /// Whether what arrives is read, sooner or later.
    pub(crate) fn is_alive(&self) -> bool {
        !self.cut && !self.frozen
    }

    fn begin(&mut self, wal: &Wal, transaction: &Transaction, manner: &Manner, dice: &mut Dice) {
        if dice.one_in(manner.loose_message) {
            // Outside any transaction: sent when the WAL is read, whether or not anything commits.
            let message = bytes::logical_message(false, self.sent, crate::wal::PREFIX, "{\"id\": 1}");
            self.pipe.extend(bytes::xlog_data(self.sent, self.sent, &message));
        }
        self.frames = wal.messages(transaction, &mut self.told, dice).into();
        self.end_lsn = Some(transaction.end_lsn);
        self.next += 1;
    }

    /// An honest one: nothing that commits before `wal_end` is still to be sent.
    fn keepalive(&mut self, wal: &Wal, asking: bool, dice: &mut Dice, now: Duration, tell: &mut impl FnMut(Lsn)) {
        let next = if self.frames.is_empty() { self.next } else { self.next - 1 };
        let most = wal.transactions.get(next).map_or(wal.end, |transaction| transaction.final_lsn).max(self.sent);
        let caught_up = next == wal.transactions.len();
        let wal_end =
            if caught_up || dice.one_in(2) { most } else { Lsn::new(dice.between(self.sent.bytes(), most.bytes())) };
        self.sent = wal_end;
        self.keepalive_due = now + Duration::from_millis(500);
        tell(wal_end);
        self.pipe.extend(bytes::keepalive(wal_end, asking));
    }
}

/// The position and whether an answer is wanted.
///
/// # Panics
/// When it is not a status update, or its three positions differ.
pub(crate) fn read_status(update: &[u8]) -> (Lsn, bool) {
    assert_eq!(update.len(), STATUS_UPDATE_BYTES);
    assert_eq!(update[..6], *b"d\0\0\0\x26r");
    let lsn = |at: usize| Lsn::new(u64::from_be_bytes(update[at..at + 8].try_into().unwrap()));
    assert!(lsn(6) == lsn(14) && lsn(14) == lsn(22), "written, flushed and applied are one position");
    (lsn(14), update[38] == 1)
}
