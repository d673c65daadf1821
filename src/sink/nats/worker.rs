//! The client's thread: takes what may be under way, sends it, settles it by JetStream's acknowledgements, reconnects.
//!
//! In: records behind the hand-over's lanes. Out: their outcomes. Many messages are under way on one connection, at most one of a
//! lane: JetStream takes what follows a refused message. Nothing is sent a second time by itself: what was under way when a
//! connection was lost, or was not acknowledged in time, goes back to its lane, and the stream drops it by its id where it is a
//! repeat.

use super::answer::{judge, no_ack, not_permitted, too_large};
use super::link::{Link, broken, forbidden_subject, not_nats, read_info, refusal};
use super::message::{Sending, headers, publish};
use super::proto::{Frame, Message, frame};
use super::settings::Settings;
use crate::sink::Failure;
use crate::sink::lanes::{Event, Fit, Outcome, Place, Receiver, Taken};
use std::collections::VecDeque;
use std::time::Duration;
use tokio::time::Instant;

/// Messages under way at a time: as many as hide the way to the server and its disk.
const WINDOW: usize = 1024;

/// Nothing more is written while so many bytes wait to leave.
const OUTPUT_BYTES: usize = 1 << 20;

/// How long no message at all may be acknowledged before those that were sent before that are sent again: a stream without a leader
/// drops messages without a word.
const ACKNOWLEDGED_WITHIN: Duration = Duration::from_secs(10);

/// How long one message may go without, while others are acknowledged.
const ACKNOWLEDGED_AT_LAST: Duration = Duration::from_mins(1);

/// After how long a silence the server is asked whether it is there, and after how long another one is looked for.
const SILENT: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(20));

/// How often it is looked whether any of these times has run out.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Pauses between attempts to connect: the first, doubled up to the last.
const RECONNECT: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// Why a connection is given up.
enum End {
    /// The relay wants nothing more.
    Closed,
    /// Another is to be made.
    Lost(Failure),
}

/// A message whose acknowledgement is due.
#[derive(Clone, Copy)]
struct Flight {
    taken: Taken<Place>,
    sent: Instant,
}

/// Messages under way by their numbers, which count from 0 on each connection.
#[derive(Default)]
struct Flights {
    /// `None`: what became of it is known, or of no interest any more.
    numbered: VecDeque<Option<Flight>>,
    /// The number of the first.
    first: u64,
    under_way: usize,
}

/// Runs until the relay wants nothing more.
pub(super) async fn run(settings: Settings, mut receiver: Receiver) {
    let (mut pause, mut server) = (RECONNECT.0, 0);
    loop {
        let Some(opened) = while_listening(&mut receiver, Link::open(&settings, server)).await else { return };
        let failure = match opened {
            Err(failure) => failure,
            Ok(link) => {
                let mut worker = Worker::new(&settings, link);
                let end = worker.serve(&mut receiver).await;
                worker.give_back(&mut receiver);
                if worker.answered {
                    pause = RECONNECT.0;
                }
                match end {
                    End::Closed => return,
                    End::Lost(failure) => failure,
                }
            }
        };
        server += 1;
        receiver.set_blocked(Some(failure));
        if while_listening(&mut receiver, tokio::time::sleep(pause)).await.is_none() {
            return;
        }
        pause = (pause * 2).min(RECONNECT.1);
    }
}

/// Waits for something while records are taken over. `None`: the relay wants nothing more.
async fn while_listening<T>(receiver: &mut Receiver, something: impl Future<Output = T>) -> Option<T> {
    let mut something = std::pin::pin!(something);
    loop {
        tokio::select! {
            done = &mut something => return Some(done),
            event = receiver.next() => if event == Event::Closed {
                return None;
            },
        }
    }
}

/// One connection's work.
struct Worker<'a> {
    settings: &'a Settings,
    link: Link,
    flights: Flights,
    /// Emptied, to be used again.
    taken: Vec<Taken<Place>>,
    headers: Vec<u8>,
    /// When something was last read, or began to be due.
    heard: Instant,
    /// It was asked since whether it is there.
    asked: bool,
    /// When a message was last acknowledged, or began to be due.
    acknowledged: Instant,
    /// When it is looked next whether something is missing.
    look_at: Instant,
    /// What is said to be blocked is that nothing was acknowledged.
    unanswered: bool,
    /// JetStream has taken something.
    answered: bool,
}

impl<'a> Worker<'a> {
    fn new(settings: &'a Settings, link: Link) -> Self {
        let now = Instant::now();
        Self {
            settings,
            link,
            flights: Flights::default(),
            taken: Vec::new(),
            headers: Vec::new(),
            heard: now,
            asked: false,
            acknowledged: now,
            look_at: now + LOOK_EVERY,
            unanswered: false,
            answered: false,
        }
    }

    async fn serve(&mut self, receiver: &mut Receiver) -> End {
        receiver.set_blocked(None);
        loop {
            if self.link.info.ldm && self.flights.under_way == 0 {
                return End::Lost(broken(&self.link.address, "it is about to leave"));
            }
            self.fill(receiver);
            tokio::select! {
                event = receiver.next() => match event {
                    Event::Work => {}
                    Event::Restarted => self.forget(receiver),
                    Event::Closed => return End::Closed,
                },
                turned = self.link.socket.turn() => {
                    if let Err(failure) = self.turned(turned, receiver) {
                        return End::Lost(failure);
                    }
                }
                () = tokio::time::sleep_until(self.look_at), if self.flights.under_way > 0 => {
                    self.look_at = Instant::now() + LOOK_EVERY;
                    if let Err(failure) = self.look(receiver) {
                        return End::Lost(failure);
                    }
                }
            }
        }
    }

    /// Sends what may be under way.
    fn fill(&mut self, receiver: &mut Receiver) {
        while !self.link.info.ldm && receiver.has_ready() {
            let waiting = self.link.socket.output.len();
            let (mut room, mut bytes) = (WINDOW.saturating_sub(self.flights.under_way), waiting);
            let mut taken = std::mem::take(&mut self.taken);
            receiver.take(&mut taken, 1, |record| {
                if room == 0 || bytes > OUTPUT_BYTES {
                    return Fit::Full;
                }
                (room, bytes) = (room - 1, bytes + record.held_bytes());
                Fit::Takes
            });
            let any = !taken.is_empty();
            let now = Instant::now();
            // What goes out again for want of an answer does not begin anew.
            if any && self.flights.under_way == 0 && !self.unanswered {
                (self.heard, self.acknowledged, self.asked) = (now, now, false);
            }
            for taken in taken.drain(..) {
                self.send(taken, now, receiver);
            }
            self.taken = taken;
            if !any {
                break;
            }
        }
    }

    fn send(&mut self, taken: Taken<Place>, now: Instant, receiver: &mut Receiver) {
        let Some(record) = receiver.record(taken.item) else { return };
        let sending =
            Sending { inbox: &self.link.inbox, stream: self.settings.stream.as_deref(), id: self.settings.id };
        self.headers.clear();
        headers(&mut self.headers, sending, record);
        let bytes = self.headers.len() + record.value().map_or(0, <[u8]>::len);
        let most = self.link.info.max_payload;
        if most > 0 && bytes > most {
            let refused = Outcome::Refused(too_large(record.topic(), bytes, most));
            receiver.settle(taken, &refused);
            receiver.publish();
            return;
        }
        let number = self.flights.push(Flight { taken, sent: now });
        publish(&mut self.link.socket.output, sending, number, record, &self.headers);
    }

    /// A restart: what is under way is of no interest any more.
    fn forget(&mut self, receiver: &Receiver) {
        self.flights.forget();
        self.unanswered = false;
        receiver.set_blocked(None);
    }

    fn turned(&mut self, turned: std::io::Result<bool>, receiver: &mut Receiver) -> Result<(), Failure> {
        // What the server said last says why it closes the connection.
        let read = self.read(receiver);
        receiver.publish();
        read?;
        turned.map(drop).map_err(|error| broken(&self.link.address, &error.to_string()))
    }

    /// Deals with all frames that are whole.
    fn read(&mut self, receiver: &mut Receiver) -> Result<(), Failure> {
        let input = self.link.socket.take_input();
        let mut at = 0;
        let done = loop {
            match frame(input.get(at..).unwrap_or_default()) {
                Err(_) => break Err(not_nats(&self.link.address)),
                Ok(None) => break Ok(()),
                Ok(Some((frame, length))) => {
                    at += length;
                    if let Err(failure) = self.heed(frame, receiver) {
                        break Err(failure);
                    }
                }
            }
        };
        if at > 0 {
            (self.heard, self.asked) = (Instant::now(), false);
        }
        self.link.socket.give_back(input, at);
        done
    }

    fn heed(&mut self, frame: Frame<'_>, receiver: &mut Receiver) -> Result<(), Failure> {
        let Self { link, flights, .. } = self;
        match frame {
            Frame::Message(message) => {
                let stored = answered(flights, &link.inbox, message, receiver);
                if stored {
                    self.acknowledged = Instant::now();
                    self.answered = true;
                    if std::mem::take(&mut self.unanswered) {
                        receiver.set_blocked(None);
                    }
                }
            }
            Frame::Info(text) => link.info = read_info(&link.address, text)?,
            Frame::Ping => link.socket.output.extend_from_slice(b"PONG\r\n"),
            Frame::Error(text) => {
                let text = String::from_utf8_lossy(text);
                let subject = forbidden_subject(&text);
                let found = subject.as_deref().and_then(|subject| flights.take_first_to(subject, receiver));
                let (Some(flight), Some(subject)) = (found, subject) else {
                    return Err(refusal(&link.address, &text));
                };
                receiver.settle(flight.taken, &Outcome::Refused(not_permitted(&subject)));
            }
            Frame::Pong | Frame::Ok => {}
        }
        Ok(())
    }

    /// Looks whether an acknowledgement, or the server, has been missing for too long.
    fn look(&mut self, receiver: &mut Receiver) -> Result<(), Failure> {
        let now = Instant::now();
        let silence = now.duration_since(self.heard);
        if silence >= SILENT.1 {
            return Err(broken(&self.link.address, &format!("no answer for {} s", SILENT.1.as_secs())));
        }
        if silence >= SILENT.0 && !self.asked {
            self.asked = true;
            self.link.socket.output.extend_from_slice(b"PING\r\n");
        }
        let none = now.duration_since(self.acknowledged) >= ACKNOWLEDGED_WITHIN;
        let patience = if none { ACKNOWLEDGED_WITHIN } else { ACKNOWLEDGED_AT_LAST };
        let mut missing = None;
        while let Some(flight) = self.flights.take_older(now, patience) {
            if missing.is_none() {
                let subject = receiver.record(flight.taken.item).map_or("", |record| record.topic());
                missing = Some(no_ack(subject, patience.as_secs()));
            }
            receiver.settle(flight.taken, &Outcome::Unknown);
        }
        if missing.is_some() {
            self.unanswered = true;
            receiver.set_blocked(missing);
            receiver.publish();
        }
        Ok(())
    }

    /// What is under way goes back to its lanes: what became of it is not known.
    fn give_back(&mut self, receiver: &mut Receiver) {
        while let Some(flight) = self.flights.take_last() {
            receiver.settle(flight.taken, &Outcome::Unknown);
        }
        receiver.publish();
    }
}

/// Settles the message that the answer is for. Whether it was stored.
fn answered(flights: &mut Flights, inbox: &str, answer: Message<'_>, receiver: &mut Receiver) -> bool {
    let number = answer.subject.strip_prefix(inbox.as_bytes()).and_then(|number| std::str::from_utf8(number).ok());
    let Some(number) = number.and_then(|number| number.parse().ok()) else { return false };
    let Some(flight) = flights.get(number) else { return false };
    let subject = receiver.record(flight.taken.item).map_or("", |record| record.topic());
    // Another than JetStream may answer too; its acknowledgement is waited for.
    let Some(outcome) = judge(subject, answer) else { return false };
    flights.take(number);
    receiver.settle(flight.taken, &outcome);
    matches!(outcome, Outcome::Delivered)
}

impl Flights {
    /// Its number.
    fn push(&mut self, flight: Flight) -> u64 {
        self.numbered.push_back(Some(flight));
        self.under_way += 1;
        self.first + self.numbered.len() as u64 - 1
    }

    fn place(&mut self, number: u64) -> Option<&mut Option<Flight>> {
        let at = usize::try_from(number.checked_sub(self.first)?).ok()?;
        self.numbered.get_mut(at)
    }

    fn get(&mut self, number: u64) -> Option<Flight> {
        *self.place(number)?
    }

    fn take(&mut self, number: u64) -> Option<Flight> {
        let flight = self.place(number)?.take()?;
        self.under_way -= 1;
        while self.numbered.pop_front_if(|flight| flight.is_none()).is_some() {
            self.first += 1;
        }
        Some(flight)
    }

    /// The first of those to a subject: of a forbidden subject the server refuses each, in order.
    fn take_first_to(&mut self, subject: &str, receiver: &Receiver) -> Option<Flight> {
        let is_to = |flight: &Option<Flight>| {
            flight.and_then(|flight| receiver.record(flight.taken.item)).is_some_and(|record| record.topic() == subject)
        };
        let at = self.numbered.iter().position(is_to)?;
        self.take(self.first + at as u64)
    }

    /// The first, if it has been under way for so long.
    fn take_older(&mut self, now: Instant, than: Duration) -> Option<Flight> {
        let (at, flight) = self.numbered.iter().enumerate().find_map(|(at, flight)| Some((at, (*flight)?)))?;
        (now.duration_since(flight.sent) >= than).then(|| self.take(self.first + at as u64)).flatten()
    }

    fn take_last(&mut self) -> Option<Flight> {
        let at = self.numbered.iter().rposition(Option::is_some)?;
        self.take(self.first + at as u64)
    }

    /// Numbers go on: late answers are to none.
    fn forget(&mut self) {
        self.first += self.numbered.len() as u64;
        self.numbered.clear();
        self.under_way = 0;
    }
}
