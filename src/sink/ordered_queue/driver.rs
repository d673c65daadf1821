//! [`drive`]: what all clients behind the ordered queue do alike. It connects, lets the client send, waits for records and for the server, publishes
//! what has come of it, and connects again after a pause. A destination has a [`Session`] of its own.
//!
//! ```text
//!   ┌──▶ open ──▶ fill ──▶ wait ─┬─▶ records ───────────┬──▶ fill
//!   │      │                     └─▶ event ──▶ heed ────┘      │
//!   │      └── fails ──▶ pause                   └── fails ────┴──▶ drain ──▶ records under way go back into the queue
//!   └──────────────────────┴────────────────────────────────────────────────────┘
//! ```
//!
//! In: a session's events; records, from the relay's side. Out: reports, and the failure that all records wait for.
//!
//! Invariants: a session is dropped, with its connections, before the pause, so that there is one at a time. Once a session has ended, none of its
//! records is under way. What is settled is published before the driver waits. Pauses grow until a record was stored.

use super::{Receiver, Reconnect};
use crate::sink::Failure;

/// A connection to a destination, with the records that are under way on it.
///
/// Invariants: it sends only what [`Receiver::take`] handed out, and sends nothing a second time by itself. Once it is dropped, no byte leaves any
/// more. It settles each record by the server's answer; the driver puts those without an answer back when the session has ended.
pub trait Session: Sized {
    /// The settings, with what a client remembers from one session to the next.
    type Settings: Copy;
    /// An event on the connection, or a time that has come.
    type Event;

    /// Connects. `attempt`: how many attempts there were before. A client with several servers begins with another one each time.
    ///
    /// # Errors
    /// No server is reached, or it refuses the user.
    fn open(settings: Self::Settings, attempt: usize) -> impl Future<Output = Result<Self, Failure>>;

    /// Takes as many records as may be under way, and sends them.
    ///
    /// # Errors
    /// The connection is of no more use.
    fn fill(&mut self, receiver: &mut Receiver) -> Result<(), Failure>;

    /// Waits for an event. If records come first, the driver drops the future: no event may be lost with it.
    fn event(&mut self) -> impl Future<Output = Self::Event>;

    /// Settles the records that the event decides on.
    ///
    /// # Errors
    /// The connection is of no more use.
    fn heed(&mut self, event: Self::Event, receiver: &mut Receiver) -> Result<(), Failure>;

    /// The failure that all records wait for, and that passes by itself.
    fn blocked(&self) -> Option<&Failure>;

    /// The session has ended: settles the records whose answers have come before.
    fn drain(&mut self, _receiver: &mut Receiver) {}

    /// Whether the session has no record under way and makes room for another, which is opened at once.
    fn renews(&self) -> bool {
        false
    }

    /// The relay has dropped the sink: says so to the server.
    fn leave(&self) -> impl Future<Output = ()> {
        std::future::ready(())
    }
}

/// The end of a session.
enum SessionEnd {
    /// The relay has dropped the sink.
    Closed,
    /// The next one is opened at once.
    Renewed,
    Lost(Failure),
}

/// Runs one session after the other, until the relay has dropped the sink.
pub async fn drive<S: Session>(settings: S::Settings, receiver: &mut Receiver) {
    let mut reconnect = Reconnect::default();
    for attempt in 0.. {
        let opening = Box::pin(S::open(settings, attempt));
        let Some(opened) = receiver.while_listening(opening).await else { return };
        let end = match opened {
            Ok(session) => serve(session, receiver).await,
            Err(failure) => SessionEnd::Lost(failure),
        };
        if receiver.take_stored() {
            reconnect = Reconnect::default();
        }
        match end {
            SessionEnd::Closed => return,
            SessionEnd::Renewed => {}
            SessionEnd::Lost(failure) => {
                receiver.set_blocked(Some(failure));
                let pause = tokio::time::sleep(reconnect.pause());
                if receiver.while_listening(pause).await.is_none() {
                    return;
                }
            }
        }
    }
}

/// Serves a session until its end, and gives back what is under way then.
async fn serve<S: Session>(mut session: S, receiver: &mut Receiver) -> SessionEnd {
    match converse(&mut session, receiver).await {
        Ok(end) => end,
        Err(failure) => {
            session.drain(receiver);
            receiver.connection_lost(&receiver.taken(), &failure, false);
            receiver.publish();
            SessionEnd::Lost(failure)
        }
    }
}

/// Serves a session until nothing is under way on it any more, or the relay has dropped the sink.
///
/// # Errors
/// The connection is of no more use.
async fn converse<S: Session>(session: &mut S, receiver: &mut Receiver) -> Result<SessionEnd, Failure> {
    let mut shown = None;
    receiver.set_blocked(None);
    loop {
        if session.renews() {
            return Ok(SessionEnd::Renewed);
        }
        session.fill(receiver)?;
        show(session, &mut shown, receiver);
        tokio::select! {
            work = receiver.next() => if work.is_none() {
                session.leave().await;
                return Ok(SessionEnd::Closed);
            },
            event = session.event() => {
                session.heed(event, receiver)?;
                show(session, &mut shown, receiver);
            }
        }
    }
}

/// Makes the session's state visible to the relay's side. `shown`: the failure that all records wait for, as the relay's side sees it.
fn show<S: Session>(session: &S, shown: &mut Option<Failure>, receiver: &mut Receiver) {
    if session.blocked() != shown.as_ref() {
        *shown = session.blocked().cloned();
        receiver.set_blocked(shown.clone());
    }
    receiver.publish();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::destination::CONNECTION;
    use crate::sink::ordered_queue::sender::Sender;
    use crate::sink::ordered_queue::{Fit, RecordIndex, RecordOutcome, TakenRecord};
    use crate::sink::{Content, FailureClass, Origin, Record, Report, Tag, Token};
    use std::cell::{Cell, RefCell};
    use std::pin::pin;
    use std::time::Duration;

    /// What becomes of a session's event.
    type Heeds = fn(&mut Scripted<'_>, &mut Receiver) -> Result<(), Failure>;

    /// A destination.
    struct Script {
        sender: RefCell<Sender>,
        /// What its sessions did, and what all records waited for by then.
        did: RefCell<Vec<(String, Option<String>)>>,
        open: Cell<u32>,
        heeds: Heeds,
        /// How many records a session has under way at most.
        most: usize,
    }

    struct Scripted<'a> {
        script: &'a Script,
        attempt: usize,
        taken: Vec<TakenRecord<RecordIndex>>,
        blocked: Option<Failure>,
        renews: bool,
    }

    impl Script {
        fn note(&self, did: String) {
            let blocked = self.sender.borrow().blocked().map(|failure| failure.text);
            self.did.borrow_mut().push((did, blocked));
        }
    }

    impl Drop for Scripted<'_> {
        fn drop(&mut self) {
            self.script.open.set(self.script.open.get() - 1);
        }
    }

    impl Scripted<'_> {
        fn settle_first(&mut self, receiver: &mut Receiver) {
            receiver.settle(self.taken.remove(0), &RecordOutcome::Delivered);
        }
    }

    impl<'a> Session for Scripted<'a> {
        type Settings = &'a Script;
        type Event = ();

        async fn open(script: &'a Script, attempt: usize) -> Result<Self, Failure> {
            script.note(format!("open {attempt}"));
            if attempt == 0 {
                return Err(failure("away"));
            }
            assert_eq!(script.open.replace(1), 0, "one at a time");
            Ok(Self { script, attempt, taken: Vec::new(), blocked: None, renews: false })
        }

        fn fill(&mut self, receiver: &mut Receiver) -> Result<(), Failure> {
            let mut room = self.script.most - self.taken.len();
            receiver.take(&mut self.taken, 1, |_| {
                let fit = if room > 0 { Fit::Takes } else { Fit::Full };
                room = room.saturating_sub(1);
                fit
            });
            Ok(())
        }

        async fn event(&mut self) {
            if self.taken.is_empty() {
                std::future::pending::<()>().await;
            }
            self.script.note(format!("has {}", self.taken.len()));
        }

        fn heed(&mut self, _event: (), receiver: &mut Receiver) -> Result<(), Failure> {
            (self.script.heeds)(self, receiver)
        }

        fn blocked(&self) -> Option<&Failure> {
            self.blocked.as_ref()
        }

        fn drain(&mut self, receiver: &mut Receiver) {
            self.settle_first(receiver);
        }

        fn renews(&self) -> bool {
            self.renews
        }

        async fn leave(&self) {
            self.script.note("leave".to_owned());
        }
    }

    fn failure(text: &str) -> Failure {
        Failure::new(FailureClass::Environment, CONNECTION, text)
    }

    /// What sessions that heed events like this do with a record of each of these topics, until all are delivered and the relay drops the sink.
    async fn run(heeds: Heeds, most: usize, topics: &[&str]) -> Vec<(String, Option<String>)> {
        let (mut sender, mut receiver) = Sender::with_receiver(1 << 20);
        for topic in topics {
            let record = Record {
                topic,
                key: None,
                value: None,
                headers: &[],
                timestamp_millis: 0,
                partition: None,
                content: Content::Unknown,
            };
            sender.push(&record, Tag { token: Token::unpack(1), origin: Origin::default() });
        }
        sender.flush();
        let sender = RefCell::new(sender);
        let script = Script { sender, did: RefCell::default(), open: Cell::default(), heeds, most };
        let all_are_delivered = async {
            let mut left = topics.len();
            while left > 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
                script.sender.borrow_mut().poll(&mut |report| match report {
                    Report::Delivered(run) => left -= run.records as usize,
                    other @ (Report::Refused(_) | Report::Failed(_)) => panic!("{other:?}"),
                });
            }
        };
        let mut driving = pin!(drive::<Scripted<'_>>(&script, &mut receiver));
        tokio::select! {
            () = &mut driving => panic!("the relay has not dropped the sink"),
            () = all_are_delivered => {}
        }
        drop(script.sender.replace(Sender::with_receiver(1).0));
        driving.await;
        script.did.take()
    }

    fn did(texts: &[(&str, Option<&str>)]) -> Vec<(String, Option<String>)> {
        texts.iter().map(|(did, blocked)| ((*did).to_owned(), blocked.map(str::to_owned))).collect()
    }

    #[tokio::test]
    async fn what_a_session_has_not_settled_at_its_end_is_sent_by_the_next_one() {
        let heeds = |session: &mut Scripted<'_>, receiver: &mut Receiver| {
            session.settle_first(receiver);
            if session.attempt == 1 { Err(failure("lost")) } else { Ok(()) }
        };
        // The event settles one, and the end another.
        let expected = [
            ("open 0", None),
            ("open 1", Some("away")),
            ("has 3", None),
            ("open 2", Some("lost")),
            ("has 1", None),
            ("leave", None),
        ];
        assert_eq!(run(heeds, 9, &["a", "b", "c"]).await, did(&expected));
    }

    #[tokio::test]
    async fn what_all_records_wait_for_is_shown_until_it_has_passed() {
        let heeds = |session: &mut Scripted<'_>, receiver: &mut Receiver| {
            if session.blocked.take().is_some() {
                session.settle_first(receiver);
            } else {
                session.blocked = Some(failure("full"));
            }
            Ok(())
        };
        let full = Some("full");
        let expected = [
            ("open 0", None),
            ("open 1", Some("away")),
            ("has 2", None),
            ("has 2", full),
            ("has 1", None),
            ("has 1", full),
            ("leave", None),
        ];
        assert_eq!(run(heeds, 9, &["a", "b"]).await, did(&expected));
    }

    #[tokio::test]
    async fn a_session_that_makes_room_for_another_is_followed_by_it_and_nothing_waits() {
        let heeds = |session: &mut Scripted<'_>, receiver: &mut Receiver| {
            session.settle_first(receiver);
            session.renews = session.attempt == 1;
            Ok(())
        };
        let expected = [
            ("open 0", None),
            ("open 1", Some("away")),
            ("has 1", None),
            ("open 2", None),
            ("has 1", None),
            ("leave", None),
        ];
        assert_eq!(run(heeds, 1, &["a", "b"]).await, did(&expected));
    }
}
