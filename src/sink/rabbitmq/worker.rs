//! The client's thread: takes what may be under way, publishes it, settles it, reconnects.
//!
//! In: records behind the hand-over's lanes. Out: their outcomes. Several channels of one connection carry messages at a time, at most one
//! of each lane, so that no later one can get in before an earlier one. Nothing is sent a second time by itself: what was under way when
//! a connection or a channel was lost goes back to its lanes.
//!
//! ```text
//!   lanes ──▶ publish on a channel ──▶ ack                delivered
//!     ▲                            ├─▶ return, then ack    refused: unroutable
//!     │                            ├─▶ nack                the same message again, after a pause
//!     └──────── unknown ◀──────────┴─▶ channel closed      refused, where it was alone there; else each goes alone
//! ```

#![allow(clippy::wildcard_enum_match_arm, reason = "what a peer says beyond what is asked is not heeded")]

use super::channel::Channel;
use super::judge::{self, Fault};
use super::message::{self, TooManyHeaders};
use super::method::{self, Closing, Method};
use super::session::Session;
use super::settings::Settings;
use super::window::{Confirmed, Misfit};
use super::wire::{self, Frame, Sort};
use crate::sink::Failure;
use crate::sink::lanes::{End, Event, Fit, Outcome, Place, Receiver, Reconnect, Taken};
use std::time::Duration;
use tokio::time::Instant;

/// Channels of a connection; each is a process of the server's.
const CHANNELS: u16 = 4;

/// Messages under way on a channel at a time.
const WINDOW: usize = 256;

/// Messages that are taken for a channel at a time.
const BATCH: usize = 64;

/// Bytes that are to be written at a time, beyond which no more are taken.
const OUTPUT_BYTES: usize = 256 << 10;

/// How long everything waits where the exchange is missing, or a channel was closed for no message's sake.
const LATER: Duration = Duration::from_millis(500);

/// How long a message may be unconfirmed before its connection is given up: the first time, doubled up to the last. A queue that is not
/// ready yet after its broker's crash may lose a message without a word.
const CONFIRMED_WITHIN: (Duration, Duration) = (Duration::from_secs(30), Duration::from_mins(5));

/// Runs until the relay wants nothing more.
pub(super) async fn run(settings: &Settings, receiver: &mut Receiver) {
    let (mut reconnect, mut alone, mut host, mut patience) = (Reconnect::default(), 0, 0, CONFIRMED_WITHIN.0);
    loop {
        let Some(opened) = receiver.while_listening(Session::open(settings, host)).await else { return };
        let failure = match opened {
            Err(failure) => failure,
            Ok(session) => {
                let mut worker = Worker::new(settings, session, alone, patience);
                let end = worker.serve(receiver).await;
                worker.give_back(receiver);
                alone = worker.alone;
                patience = if worker.stalled { (patience * 2).min(CONFIRMED_WITHIN.1) } else { CONFIRMED_WITHIN.0 };
                if worker.answered {
                    reconnect = Reconnect::default();
                }
                match end {
                    End::Closed => return worker.session.leave().await,
                    End::Lost(failure) => failure,
                }
            }
        };
        host = (host + 1) % settings.servers.len().max(1);
        if reconnect.wait(receiver, failure).await.is_none() {
            return;
        }
    }
}

/// One connection's work.
struct Worker<'a> {
    settings: &'a Settings,
    session: Session,
    /// Their numbers are their places, from 1.
    channels: Vec<Channel>,
    /// Which channel is looked at first for the next message.
    next: usize,
    batch: Vec<Taken<Place>>,
    /// When something was last read.
    heard: Instant,
    /// Since when messages could have been confirmed.
    able: Instant,
    /// How long a message may be unconfirmed.
    patience: Duration,
    /// One was for longer.
    stalled: bool,
    /// When we say next that we are there.
    beat: Instant,
    /// Nothing is published before that.
    later: Option<Instant>,
    /// So many messages are published one by one: which of them is refused is to be found out.
    alone: usize,
    /// The server takes nothing for now, and says so.
    alarm: Option<Failure>,
    /// What it refuses for now.
    obstacle: Option<Failure>,
    /// The server has taken something.
    answered: bool,
    /// Something was settled that the relay has not been shown.
    settled: bool,
}

impl<'a> Worker<'a> {
    fn new(settings: &'a Settings, session: Session, alone: usize, patience: Duration) -> Self {
        let now = Instant::now();
        let channels = (1..=CHANNELS.min(session.channels)).map(Channel::new).collect();
        let beat = now + session.heartbeat / 2;
        Self {
            settings,
            session,
            channels,
            next: 0,
            batch: Vec::new(),
            heard: now,
            able: now,
            patience,
            stalled: false,
            beat,
            later: None,
            alone,
            alarm: None,
            obstacle: None,
            answered: false,
            settled: false,
        }
    }

    async fn serve(&mut self, receiver: &mut Receiver) -> End {
        for channel in &mut self.channels {
            channel.open(&mut self.session.socket.output);
        }
        self.show(receiver);
        loop {
            self.fill(receiver);
            if std::mem::take(&mut self.settled) {
                receiver.publish();
            }
            let wake = self.wake();
            tokio::select! {
                biased;
                event = receiver.next() => match event {
                    Event::Work => {}
                    Event::Closed => return End::Closed,
                },
                turned = self.session.socket.turn() => {
                    let read = match turned {
                        Err(error) => Err(judge::broken(&self.session.server, &error.to_string())),
                        Ok(false) => Ok(()),
                        Ok(true) => self.read(receiver),
                    };
                    if let Err(failure) = read {
                        return End::Lost(failure);
                    }
                }
                () = tokio::time::sleep_until(wake) => if let Err(failure) = self.keep_alive() {
                    return End::Lost(failure);
                },
            }
        }
    }

    /// What everything waits for, or else some.
    fn show(&self, receiver: &Receiver) {
        receiver.set_blocked(self.alarm.as_ref().or(self.obstacle.as_ref()).cloned());
    }

    /// When there is something to do though nothing comes.
    fn wake(&self) -> Instant {
        // What is due already waits for something else.
        let due = self.later.into_iter().filter(|due| *due > Instant::now());
        let ends = [Some(self.beat), Some(self.heard + self.session.heartbeat * 2), self.stalls()];
        due.chain(ends.into_iter().flatten()).fold(self.beat, Instant::min)
    }

    /// When the oldest message will have been unconfirmed for too long.
    fn stalls(&self) -> Option<Instant> {
        let oldest = self.channels.iter().filter_map(|channel| channel.window.oldest()).min();
        oldest.filter(|_| self.alarm.is_none()).map(|oldest| oldest.max(self.able) + self.patience)
    }

    /// Says that we are there, and sees whether the other end is.
    fn keep_alive(&mut self) -> Result<(), Failure> {
        let (now, heartbeat) = (Instant::now(), self.session.heartbeat);
        if now >= self.heard + heartbeat * 2 {
            let reason = format!("no heartbeat for {} s", (heartbeat * 2).as_secs());
            return Err(judge::broken(&self.session.server, &reason));
        }
        if self.stalls().is_some_and(|stalls| now >= stalls) {
            self.stalled = true;
            let reason = format!("a message was not confirmed for {} s", self.patience.as_secs());
            return Err(judge::broken(&self.session.server, &reason));
        }
        if now >= self.beat {
            self.beat = now + heartbeat / 2;
            // What is on its way says it as well.
            if self.session.socket.is_written() {
                method::heartbeat(&mut self.session.socket.output);
            }
        }
        Ok(())
    }

    /// Publishes what may be under way.
    fn fill(&mut self, receiver: &mut Receiver) {
        let now = Instant::now();
        if self.alarm.is_some() || self.later.is_some_and(|later| now < later) {
            return;
        }
        self.later = None;
        while receiver.has_ready()
            && self.session.socket.output.len() < OUTPUT_BYTES
            && let Some((at, room)) = self.roomy()
        {
            let mut batch = std::mem::take(&mut self.batch);
            let (mut messages, mut bytes) = (0, 0);
            receiver.take(&mut batch, 1, |record| {
                if messages == room || messages > 0 && bytes > OUTPUT_BYTES {
                    return Fit::Full;
                }
                messages += 1;
                bytes += record.held_bytes();
                Fit::Takes
            });
            self.alone = self.alone.saturating_sub(batch.len());
            let none = batch.is_empty();
            for taken in batch.drain(..) {
                self.publish(at, taken, now, receiver);
            }
            self.batch = batch;
            if none {
                break;
            }
        }
    }

    /// The next channel that takes messages, and how many.
    fn roomy(&mut self) -> Option<(usize, usize)> {
        let window = if self.alone > 0 { 1 } else { WINDOW };
        let count = self.channels.len();
        let places = (0..count).map(|step| (self.next + step) % count);
        let room = |at: usize| self.channels.get(at).map_or(0, |channel| channel.room(window));
        let found = places.map(|at| (at, room(at))).find(|(_, room)| *room > 0);
        let (at, room) = found?;
        self.next = at + 1;
        Some((at, room.min(BATCH)))
    }

    fn publish(&mut self, at: usize, taken: Taken<Place>, now: Instant, receiver: &mut Receiver) {
        let Self { settings, session, channels, .. } = self;
        let (Some(channel), Some(record)) = (channels.get_mut(at), receiver.record(taken.item)) else { return };
        let output = &mut session.socket.output;
        let usual = settings.exchange.as_str();
        let exchange = if settings.exchange_column.is_some() { message::exchange_of(usual, record) } else { usual };
        match message::publish(output, channel.number, exchange, record, session.frame_bytes) {
            Ok(print) => channel.window.publish(print, now, taken),
            Err(TooManyHeaders { bytes }) => {
                let text = format!("properties of {bytes} bytes; the broker's frame_max is {}", session.frame_bytes);
                self.settle(taken, &Outcome::Refused(judge::bad_headers(text)), receiver);
            }
        }
    }

    fn settle(&mut self, taken: Taken<Place>, outcome: &Outcome, receiver: &mut Receiver) {
        self.settled = true;
        receiver.settle(taken, outcome);
    }

    /// Deals with all frames that are whole.
    fn read(&mut self, receiver: &mut Receiver) -> Result<(), Failure> {
        self.heard = Instant::now();
        let input = self.session.socket.take_input();
        let mut at = 0;
        let read = loop {
            match wire::frame(input.get(at..).unwrap_or_default(), self.session.frame_bytes) {
                Ok(None) => break Ok(()),
                Ok(Some((frame, length))) => {
                    at += length;
                    if let Err(failure) = self.heed(frame, receiver) {
                        break Err(failure);
                    }
                }
                Err(garbled) => break Err(self.session.garbled(garbled)),
            }
        };
        self.session.socket.give_back(input, at);
        read
    }

    fn heed(&mut self, frame: Frame<'_>, receiver: &mut Receiver) -> Result<(), Failure> {
        match (frame.sort, frame.channel.checked_sub(1)) {
            (Sort::Heartbeat, _) => Ok(()),
            (Sort::Method, None) => {
                let said = Method::of(frame.payload).map_err(|garbled| self.session.garbled(garbled))?;
                self.heed_connection(said, receiver)
            }
            (Sort::Method, Some(at)) => {
                let said = Method::of(frame.payload).map_err(|garbled| self.session.garbled(garbled))?;
                self.heed_channel(at.into(), said, receiver)
            }
            (Sort::Header | Sort::Body, at) => {
                let channel = at.and_then(|at| self.channels.get_mut(usize::from(at)));
                let content = channel.ok_or(Misfit).and_then(|channel| channel.content(frame));
                content.map_err(|misfit| self.misfit(misfit))
            }
        }
    }

    fn misfit(&self, _misfit: Misfit) -> Failure {
        judge::broken(&self.session.server, "what it confirms or returns was not published")
    }

    fn heed_connection(&mut self, said: Method<'_>, receiver: &Receiver) -> Result<(), Failure> {
        match said {
            Method::Close(closing) => return Err(judge::closed(&self.session.server, closing)),
            Method::Blocked { reason } => self.alarm = Some(judge::alarm(&self.session.server, reason)),
            Method::Unblocked => {
                self.alarm = None;
                self.able = Instant::now();
            }
            _ => return Ok(()),
        }
        self.show(receiver);
        Ok(())
    }

    fn heed_channel(&mut self, at: usize, said: Method<'_>, receiver: &mut Receiver) -> Result<(), Failure> {
        let Some(channel) = self.channels.get_mut(at) else { return Err(self.misfit(Misfit)) };
        match said {
            Method::Ack { tag, multiple } => self.confirmed(at, tag, multiple, true, receiver),
            Method::Nack { tag, multiple } => self.confirmed(at, tag, multiple, false, receiver),
            Method::Return { closing, exchange, key } => {
                channel.returned(key, judge::unroutable(self.settings, exchange, key, closing));
                Ok(())
            }
            Method::Selected => {
                channel.is_open = true;
                Ok(())
            }
            Method::ChannelClose(closing) => self.channel_closed(at, closing, receiver),
            _ => Ok(()),
        }
    }

    fn confirmed(
        &mut self,
        at: usize,
        tag: u64,
        multiple: bool,
        kept: bool,
        receiver: &mut Receiver,
    ) -> Result<(), Failure> {
        let Self { settings, channels, .. } = self;
        let Some(channel) = channels.get_mut(at) else { return Ok(()) };
        let mut any_kept = false;
        let fits = channel.window.confirmed(tag, multiple, kept, |taken, what| {
            let outcome = match what {
                Confirmed::Kept => {
                    any_kept = true;
                    Outcome::Delivered
                }
                Confirmed::Returned(failure) => Outcome::Refused(failure),
                Confirmed::Refused => {
                    let key = receiver.record(taken.item).map_or("", |record| record.topic());
                    Outcome::Later(judge::not_taken(settings, key))
                }
            };
            receiver.settle(taken, &outcome);
        });
        fits.map_err(|misfit| self.misfit(misfit))?;
        self.settled = true;
        self.answered |= any_kept;
        if any_kept && self.obstacle.take().is_some() {
            self.show(receiver);
        }
        Ok(())
    }

    /// The server closed a channel, mostly over one of the messages on it; which one is not said. What was published behind that one was
    /// dropped; what went before may be in.
    fn channel_closed(&mut self, at: usize, closing: Closing<'_>, receiver: &mut Receiver) -> Result<(), Failure> {
        if closing.code == judge::ACCESS_REFUSED && self.session.has_expired() {
            return Err(judge::expired(&self.session.server, closing));
        }
        let output = &mut self.session.socket.output;
        let Some(channel) = self.channels.get_mut(at) else { return Ok(()) };
        let suspects = channel.window.suspects();
        let left: Vec<_> = channel.closed(output).collect();
        let fault = match judge::fault(closing.code) {
            // Another row's may be there.
            Fault::Exchange if self.settings.exchange_column.is_some() => judge::NO_OWN_EXCHANGE,
            fault => fault,
        };
        let mut blamed = false;
        for (taken, returned) in left {
            let key = receiver.record(taken.item).map_or("", |record| record.topic());
            let outcome = match (returned, fault) {
                (Some(failure), _) => Outcome::Refused(failure),
                (None, Fault::Record(class, reason)) if suspects == 1 => {
                    Outcome::Refused(judge::refused(key, class, reason, closing))
                }
                // It is missing for all of them: one is enough to ask again with.
                (None, Fault::Exchange) if !blamed && !self.settings.declare => {
                    blamed = true;
                    Outcome::Refused(judge::no_exchange(self.settings, closing))
                }
                (None, _) => Outcome::Unknown,
            };
            self.settle(taken, &outcome, receiver);
        }
        match fault {
            Fault::Record(..) if suspects > 1 => self.alone = self.alone.max(suspects),
            Fault::Record(..) => {}
            // The next connection declares it.
            Fault::Exchange if self.settings.declare => {
                return Err(judge::channel_closed(&self.session.server, closing));
            }
            Fault::Exchange => {
                self.later = Some(Instant::now() + LATER);
                self.alone = self.alone.max(1);
            }
            Fault::Broker => {
                self.later = Some(Instant::now() + LATER);
                self.obstacle = Some(judge::channel_closed(&self.session.server, closing));
                self.show(receiver);
            }
        }
        Ok(())
    }

    /// What is under way goes back to its lanes: what became of it is not known.
    fn give_back(&mut self, receiver: &mut Receiver) {
        for channel in &mut self.channels {
            for (taken, _) in channel.window.closed() {
                receiver.settle(taken, &Outcome::Unknown);
            }
        }
        receiver.publish();
    }
}
