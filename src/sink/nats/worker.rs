//! The client's thread: takes what may be under way, sends it, settles it by JetStream's acknowledgements, reconnects.
//!
//! In: records behind the hand-over's lanes. Out: their outcomes. Many messages are under way on one connection, at most one of a
//! lane: JetStream takes what follows a refused message. Nothing is sent a second time by itself: what was under way when a
//! connection was lost, or was not acknowledged in time, goes back to its lane, and the stream drops it by its id where it is a
//! repeat.
//!
//! With `atomic`, what waits of one lane goes as one batch that the stream stores as a whole or not at all. A batch that it does not
//! store says of no record why: its records go one by one.

use super::answer::{is_from_nobody, judge, no_ack, not_permitted, too_large};
use super::check::allows_atomic;
use super::link::{Link, broken, forbidden_subject, not_nats, read_info, refusal};
use super::message::{InBatch, Sending, headers, publish};
use super::nobody::{Nobody, QUESTION};
use super::proto::{Frame, Message, frame};
use super::settings::Settings;
use crate::sink::Failure;
use crate::sink::lanes::{End, Event, Fit, Outcome, Place, Receiver, Reconnect, Taken};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use tokio::time::Instant;

/// Messages under way at a time: as many as hide the way to the server and its disk.
const WINDOW: usize = 1024;

/// The most messages in a batch, and the most batches under way: servers take 1,000 and 50.
const BATCH: u32 = 200;
const BATCHES: usize = 16;

/// Numbers from the first that is not answered to the last, beyond which the first stands beside them: others that are answered meanwhile
/// take no memory for its sake.
const NUMBERS: usize = 4 * WINDOW;

/// Nothing more is written while so many bytes wait to leave.
const OUTPUT_BYTES: usize = 1 << 20;

/// How long no message at all may be acknowledged before those that were sent before that are sent again: a stream without a leader
/// drops messages without a word.
const ACKNOWLEDGED_WITHIN: Duration = Duration::from_secs(10);

/// How long one message may go without, while others are acknowledged.
const ACKNOWLEDGED_AT_LAST: Duration = Duration::from_mins(1);

/// The part of the longest silence after which the server is asked whether it is there.
const ASKED_AFTER: u32 = 4;

/// How often it is looked whether any of these times has run out.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A message whose acknowledgement is due, or a batch of one lane's.
struct Flight {
    taken: Taken<Place>,
    /// How many messages there are.
    records: usize,
    sent: Instant,
}

/// Messages under way by their numbers, which count from 0 on each connection.
#[derive(Default)]
struct Flights {
    /// `None`: what became of it is known, or of no interest any more.
    numbered: VecDeque<Option<Flight>>,
    /// The number of the first of those.
    first: u64,
    /// Those with numbers below.
    late: BTreeMap<u64, Flight>,
    /// Messages.
    under_way: usize,
    /// How many of them are batches.
    batches: usize,
}

/// Runs until the relay wants nothing more.
pub(super) async fn run(settings: &Settings, receiver: &mut Receiver) {
    let (mut reconnect, mut server, mut alone) = (Reconnect::default(), 0, 0);
    loop {
        let Some(opened) = receiver.while_listening(Link::open(settings, server)).await else { return };
        let failure = match opened {
            Err(failure) => failure,
            Ok(link) => {
                let mut worker = Worker::new(settings, link, alone);
                let end = worker.serve(receiver).await;
                worker.give_back(receiver);
                alone = worker.alone;
                if worker.answered {
                    reconnect = Reconnect::default();
                }
                match end {
                    End::Closed => return,
                    End::Lost(failure) => failure,
                }
            }
        };
        server += 1;
        if reconnect.wait(receiver, failure).await.is_none() {
            return;
        }
    }
}

/// One connection's work.
struct Worker<'a> {
    settings: &'a Settings,
    link: Link,
    flights: Flights,
    /// So many messages of a lane go together: more than one where the stream stores batches as a whole or not at all.
    most_of_a_lane: u32,
    /// So many messages go one by one: a batch that held them was not stored, or is not known to be.
    alone: usize,
    /// Batches that were sent.
    sent_batches: u64,
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
    /// Subjects that nobody answers for.
    nobody: Nobody,
}

impl<'a> Worker<'a> {
    fn new(settings: &'a Settings, link: Link, alone: usize) -> Self {
        let now = Instant::now();
        Self {
            settings,
            link,
            flights: Flights::default(),
            most_of_a_lane: 1,
            alone,
            sent_batches: 0,
            taken: Vec::new(),
            headers: Vec::new(),
            heard: now,
            asked: false,
            acknowledged: now,
            look_at: now + LOOK_EVERY,
            unanswered: false,
            answered: false,
            nobody: Nobody::default(),
        }
    }

    async fn serve(&mut self, receiver: &mut Receiver) -> End {
        if let Some(stream) = self.settings.stream.as_deref().filter(|_| self.settings.atomic) {
            match allows_atomic(&mut self.link, stream).await {
                Ok(atomic) => self.most_of_a_lane = if atomic { BATCH } else { 1 },
                Err(failure) => return End::Lost(failure),
            }
        }
        receiver.set_blocked(None);
        loop {
            if self.link.info.ldm && self.flights.under_way == 0 {
                return End::Lost(broken(&self.link.address, "it is about to leave"));
            }
            self.fill(receiver);
            tokio::select! {
                event = receiver.next() => match event {
                    Event::Work => {}
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
            let together = self.alone == 0 && self.flights.batches < BATCHES;
            receiver.take(&mut taken, if together { self.most_of_a_lane } else { 1 }, |record| {
                if room == 0 || bytes > OUTPUT_BYTES {
                    return Fit::Full;
                }
                (room, bytes) = (room - 1, bytes + record.held_bytes());
                Fit::Takes
            });
            let any = !taken.is_empty();
            let now = Instant::now();
            // What goes out again for want of an answer does not start over.
            if any && self.flights.under_way == 0 && !self.unanswered {
                (self.heard, self.acknowledged, self.asked) = (now, now, false);
            }
            self.alone = self.alone.saturating_sub(taken.len());
            if together && self.most_of_a_lane > 1 {
                taken.sort_unstable_by_key(|taken| (taken.lane, taken.number));
            }
            for run in taken.chunk_by(|a, b| a.lane == b.lane) {
                self.send(run, now, receiver);
            }
            taken.clear();
            self.taken = taken;
            if !any {
                break;
            }
        }
    }

    /// Sends records of one lane: one, or several as a batch.
    fn send(&mut self, run: &[Taken<Place>], now: Instant, receiver: &mut Receiver) {
        let Some((&first, rest)) = run.split_first() else { return };
        let records = run.len();
        let begin = self.link.socket.output.len();
        let number = self.flights.next();
        let mut refused = None;
        for (place, taken) in run.iter().enumerate() {
            let Some(record) = receiver.record(taken.item) else { continue };
            let sending =
                Sending { inbox: &self.link.inbox, stream: self.settings.stream.as_deref(), id: self.settings.id };
            let last = place + 1 == records;
            let batch = InBatch { batch: self.sent_batches, place: place as u64 + 1, last };
            self.headers.clear();
            headers(&mut self.headers, sending, (!rest.is_empty()).then_some(batch), record);
            let bytes = self.headers.len() + record.value().map_or(0, <[u8]>::len);
            let most = self.link.info.max_payload;
            if most > 0 && bytes > most {
                refused = Some(too_large(record.topic(), bytes, most));
                break;
            }
            publish(&mut self.link.socket.output, sending, last.then_some(number), record, &self.headers);
        }
        match refused {
            None => {
                self.sent_batches += u64::from(!rest.is_empty());
                self.flights.push(Flight { taken: first, records, sent: now });
            }
            Some(failure) if rest.is_empty() => {
                receiver.settle(first, &Outcome::Refused(failure));
                receiver.publish();
            }
            Some(_of_one) => {
                // None of the batch was sent.
                self.link.socket.output.truncate(begin);
                self.alone += records;
                receiver.settle(first, &Outcome::Unknown);
            }
        }
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
        let Self { link, flights, alone, nobody, .. } = self;
        match frame {
            Frame::Message(message) => {
                let Some(to) = message.subject.strip_prefix(link.inbox.as_bytes()) else { return Ok(()) };
                if nobody.heed(to, message.headers, message.data) {
                    return Ok(());
                }
                let stored = answered(flights, alone, link, nobody, message, receiver);
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
                if subject.as_deref() == Some(QUESTION) {
                    nobody.forbid();
                    return Ok(());
                }
                // Which of a batch it is for is not said.
                if flights.batches > 0 {
                    *alone = flights.under_way;
                    return Err(refusal(&link.address, &text));
                }
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
        let most = self.settings.timeout;
        if silence >= most {
            return Err(broken(&self.link.address, &format!("no answer for {} s", most.as_secs())));
        }
        if silence >= most / ASKED_AFTER && !self.asked {
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
            self.alone += flight.alone();
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
            self.alone += flight.alone();
        }
        receiver.publish();
    }
}

/// Settles the message, or the batch, that the answer is for. Whether it was stored.
fn answered(
    flights: &mut Flights,
    alone: &mut usize,
    link: &mut Link,
    nobody: &mut Nobody,
    answer: Message<'_>,
    receiver: &mut Receiver,
) -> bool {
    let number = answer.subject.strip_prefix(link.inbox.as_bytes()).and_then(|number| std::str::from_utf8(number).ok());
    let Some(number) = number.and_then(|number| number.parse().ok()) else { return false };
    let Some(&mut Flight { taken, records, .. }) = flights.get(number) else { return false };
    let subject = receiver.record(taken.item).map_or("", |record| record.topic());
    let outcome = if is_from_nobody(answer) {
        nobody.judge(subject, &link.inbox, Instant::now(), &mut link.socket.output)
    } else {
        // Another than JetStream may answer too; its acknowledgement is waited for.
        let Some(outcome) = judge(subject, records, answer) else { return false };
        outcome
    };
    flights.take(number);
    match outcome {
        Outcome::Delivered => {
            receiver.delivered(taken.lane, records);
            true
        }
        // Why a batch was not stored is for one of them to say.
        Outcome::Refused(_) | Outcome::Unknown | Outcome::Later(_) if records > 1 => {
            *alone += records;
            receiver.settle(taken, &Outcome::Unknown);
            false
        }
        Outcome::Refused(_) | Outcome::Unknown | Outcome::Later(_) => {
            receiver.settle(taken, &outcome);
            false
        }
    }
}

impl Flight {
    /// How many are to go one by one where nothing is known of it: the stream refuses a batch with a message that it has.
    fn alone(&self) -> usize {
        if self.records > 1 { self.records } else { 0 }
    }
}

impl Flights {
    /// The number of the next.
    fn next(&self) -> u64 {
        self.first + self.numbered.len() as u64
    }

    fn push(&mut self, flight: Flight) {
        self.under_way += flight.records;
        self.batches += usize::from(flight.records > 1);
        self.numbered.push_back(Some(flight));
        if self.numbered.len() > NUMBERS
            && let Some(Some(late)) = self.numbered.pop_front()
        {
            self.late.insert(self.first, late);
            self.first += 1;
            self.begin_with_one();
        }
    }

    fn get(&mut self, number: u64) -> Option<&mut Flight> {
        let Some(at) = number.checked_sub(self.first) else { return self.late.get_mut(&number) };
        self.numbered.get_mut(usize::try_from(at).ok()?)?.as_mut()
    }

    fn take(&mut self, number: u64) -> Option<Flight> {
        let flight = match number.checked_sub(self.first) {
            None => self.late.remove(&number)?,
            Some(at) => self.numbered.get_mut(usize::try_from(at).ok()?)?.take()?,
        };
        self.under_way -= flight.records;
        self.batches -= usize::from(flight.records > 1);
        self.begin_with_one();
        Some(flight)
    }

    /// The first number is one that is not answered, where there is any.
    fn begin_with_one(&mut self) {
        while self.numbered.pop_front_if(|flight| flight.is_none()).is_some() {
            self.first += 1;
        }
    }

    /// All that are not answered, in the order of their numbers.
    fn iter(&self) -> impl Iterator<Item = (u64, &Flight)> {
        let numbered = (self.first..).zip(&self.numbered);
        let late = self.late.iter().map(|(number, flight)| (*number, flight));
        late.chain(numbered.filter_map(|(number, flight)| Some((number, flight.as_ref()?))))
    }

    /// The first of those to a subject: of a forbidden subject the server refuses each, in order.
    fn take_first_to(&mut self, subject: &str, receiver: &Receiver) -> Option<Flight> {
        let is_to =
            |flight: &Flight| receiver.record(flight.taken.item).is_some_and(|record| record.topic() == subject);
        let number = self.iter().find(|(_, flight)| is_to(flight))?.0;
        self.take(number)
    }

    /// The first, if it has been under way for so long.
    fn take_older(&mut self, now: Instant, than: Duration) -> Option<Flight> {
        let (number, flight) = self.iter().next()?;
        let is_old = now.duration_since(flight.sent) >= than;
        is_old.then(|| self.take(number)).flatten()
    }

    fn take_last(&mut self) -> Option<Flight> {
        let last = self.numbered.iter().rposition(Option::is_some);
        let number = last.map_or_else(|| self.late.keys().next_back().copied(), |at| Some(self.first + at as u64));
        self.take(number?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flight(number: u64) -> Flight {
        Flight { taken: Taken::numbered(number), records: 1, sent: Instant::now() }
    }

    #[test]
    fn one_that_is_not_answered_takes_no_memory_for_those_that_are() {
        let mut flights = Flights::default();
        flights.push(flight(0));
        flights.push(flight(1));
        for number in 2..100_000 {
            assert_eq!(flights.next(), number);
            flights.push(flight(number));
            assert_eq!(flights.take(number).unwrap().taken.number, number);
        }
        assert!(flights.numbered.capacity() <= 2 * NUMBERS, "{}", flights.numbered.capacity());
        assert_eq!((flights.under_way, flights.get(1).unwrap().taken.number), (2, 1));
        assert!(flights.take(5).is_none() && flights.take_older(Instant::now(), Duration::from_mins(1)).is_none());
        assert_eq!(flights.take_older(Instant::now(), Duration::ZERO).unwrap().taken.number, 0);
        flights.push(flight(100_000));
        assert_eq!(flights.take_last().unwrap().taken.number, 100_000);
        assert_eq!(flights.take_last().unwrap().taken.number, 1);
        assert!(flights.take_last().is_none() && flights.under_way == 0);
    }
}
