//! Counts the statements that clients of Postgres send through a tap, and stops at one of them.
//!
//! In: which statements count, and where to stop. Out: their texts; the connection, or all of them, cut before the server has the statement
//! or before the client has its answer; or held there until it is released. So a command can be ended, or can be overtaken by another one,
//! between any two of its statements.
//!
//! A statement is a Query, an Execute or a FunctionCall. Its answer ends with ReadyForQuery, or with CopyBothResponse where a stream begins.
//! There is no TLS: clients connect with `sslmode=disable`.
//! Specification: PostgreSQL manual, sections 54.2 "Message Flow" and 54.7 "Message Formats".

use std::collections::HashMap;
use std::sync::Arc;

use anyhow::Result;
use parking_lot::{Condvar, Mutex};

use super::{Direction, Tap, Verdict, Watcher};

/// A place between two statements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// The server has not got the statement.
    Before,
    /// The server has answered, and the client has not got a byte of it.
    After,
}

/// What happens there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Its connection is closed.
    Cut,
    /// Every connection is closed, and new ones are refused: nothing of the client reaches the server any more.
    CutAll,
    /// Its connection waits until [`StatementTap::release`]. Others go on.
    Hold,
}

/// Where to stop.
#[derive(Debug, Clone, Copy)]
pub struct Stop {
    /// The number of the statement, from 1, among those that count, of all connections.
    pub number: usize,
    /// Before or after it.
    pub moment: Moment,
    /// What is done.
    pub action: Action,
}

/// A tap before a server.
#[derive(Debug)]
pub struct StatementTap {
    tap: Tap,
    counter: Arc<Counter>,
}

impl StatementTap {
    /// Forwards a loopback port to `target` (`host:port`), and stops once. `counts`: which statements count, by their text.
    ///
    /// # Errors
    /// No port can be opened.
    pub fn start(target: &str, counts: fn(&str) -> bool, stop: Option<Stop>) -> Result<Self> {
        let counter = Arc::new(Counter { counts, stop, state: Mutex::default(), changed: Condvar::new() });
        let tap = Tap::listen()?;
        tap.watched_by(Arc::clone(&counter) as Arc<dyn Watcher>);
        tap.set_target(target);
        Ok(Self { tap, counter })
    }

    /// The address to connect to.
    pub fn address(&self) -> String {
        self.tap.address()
    }

    /// The statements so far that count.
    pub fn statements(&self) -> Vec<String> {
        self.counter.state.lock().statements.clone()
    }

    /// Whether the place to stop at was reached.
    pub fn is_stopped(&self) -> bool {
        self.counter.state.lock().stopped
    }

    /// Lets go on what is held, or would be later.
    pub fn release(&self) {
        self.counter.state.lock().released = true;
        self.counter.changed.notify_all();
    }
}

impl Drop for StatementTap {
    fn drop(&mut self) {
        self.release();
    }
}

#[derive(Debug)]
struct Counter {
    counts: fn(&str) -> bool,
    stop: Option<Stop>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    clients: HashMap<usize, Client>,
    statements: Vec<String>,
    stopped: bool,
    released: bool,
}

/// One connection.
#[derive(Debug, Default)]
struct Client {
    to_server: Frames,
    to_program: Frames,
    /// The server has got the statement to stop after, and has not answered to its end.
    withheld: bool,
}

impl Watcher for Counter {
    fn see(&self, connection: usize, direction: Direction, piece: &[u8]) -> Verdict {
        let mut state = self.state.lock();
        match direction {
            Direction::ToServer => {
                let client = state.clients.entry(connection).or_default();
                if !client.to_server.is_begun {
                    // The start-up packet has no tag, and comes in one piece.
                    client.to_server.is_begun = true;
                    return Verdict::Pass;
                }
                let texts = client.to_server.statements(piece);
                for text in texts.into_iter().filter(|text| (self.counts)(text)) {
                    state.statements.push(text);
                    let number = state.statements.len();
                    let Some(stop) = self.stop.filter(|stop| stop.number == number) else { continue };
                    match stop.moment {
                        Moment::Before => return self.reached(&mut state, stop.action),
                        Moment::After => state.clients.entry(connection).or_default().withheld = true,
                    }
                }
                Verdict::Pass
            }
            Direction::ToClient => {
                let client = state.clients.entry(connection).or_default();
                let is_answered = client.to_program.end_an_answer(piece);
                let Some(stop) = self.stop.filter(|_| client.withheld) else { return Verdict::Pass };
                // What is only held has to arrive, and it waits with its end.
                let is_held = stop.action == Action::Hold;
                if !is_answered {
                    return if is_held { Verdict::Pass } else { Verdict::Swallow };
                }
                client.withheld = false;
                self.reached(&mut state, stop.action)
            }
        }
    }
}

impl Counter {
    fn reached(&self, state: &mut parking_lot::MutexGuard<'_, State>, action: Action) -> Verdict {
        state.stopped = true;
        match action {
            Action::Cut => Verdict::Cut,
            Action::CutAll => Verdict::CutAll,
            Action::Hold => {
                self.changed.wait_while(state, |state| !state.released);
                Verdict::Pass
            }
        }
    }
}

/// The messages of one direction, of which the last one may be incomplete.
#[derive(Debug, Default)]
struct Frames {
    /// The start-up packet has passed.
    is_begun: bool,
    rest: Vec<u8>,
}

impl Frames {
    /// The complete messages: tag and body.
    fn messages(&mut self, piece: &[u8]) -> Vec<(u8, Vec<u8>)> {
        self.rest.extend_from_slice(piece);
        let mut found = Vec::new();
        while let Some((&tag, length)) = self.rest.first().zip(self.rest.get(1..5)) {
            let length = length.iter().fold(0_usize, |sum, &byte| (sum << 8) | usize::from(byte));
            let Some(body) = self.rest.get(5..=length) else { break };
            found.push((tag, body.to_vec()));
            self.rest.drain(..=length);
        }
        found
    }

    fn statements(&mut self, piece: &[u8]) -> Vec<String> {
        let is_statement = |(tag, _): &(u8, Vec<u8>)| matches!(tag, b'Q' | b'E' | b'F');
        let text = |(_, body): (u8, Vec<u8>)| String::from_utf8_lossy(&body).trim_end_matches('\0').to_owned();
        self.messages(piece).into_iter().filter(is_statement).map(text).collect()
    }

    fn end_an_answer(&mut self, piece: &[u8]) -> bool {
        self.messages(piece).iter().any(|(tag, _)| matches!(tag, b'Z' | b'W'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(text: &str) -> Vec<u8> {
        let length = u32::try_from(text.len() + 5).unwrap().to_be_bytes();
        [&[b'Q'][..], &length, text.as_bytes(), &[0]].concat()
    }

    const READY: [u8; 6] = [b'Z', 0, 0, 0, 5, b'I'];

    fn counter(moment: Moment, action: Action) -> Counter {
        let stop = Some(Stop { number: 2, moment, action });
        let counter = Counter { counts: |text| text != "no", stop, state: Mutex::default(), changed: Condvar::new() };
        assert_eq!(counter.see(1, Direction::ToServer, b"startup"), Verdict::Pass);
        assert_eq!(counter.see(1, Direction::ToClient, &READY), Verdict::Pass);
        for text in ["one", "no"] {
            assert_eq!(counter.see(1, Direction::ToServer, &query(text)), Verdict::Pass);
            assert_eq!(counter.see(1, Direction::ToClient, &READY), Verdict::Pass);
        }
        counter
    }

    #[test]
    fn a_cut_before_a_statement_comes_once_it_is_whole() {
        let counter = counter(Moment::Before, Action::CutAll);
        let two = query("two");
        assert_eq!(counter.see(1, Direction::ToServer, &two[..7]), Verdict::Pass);
        assert!(!counter.state.lock().stopped);
        assert_eq!(counter.see(1, Direction::ToServer, &two[7..]), Verdict::CutAll);
        assert_eq!(counter.state.lock().statements, ["one", "two"]);
    }

    #[test]
    fn a_cut_after_a_statement_comes_with_the_end_of_its_answer_of_which_no_byte_passes() {
        let counter = counter(Moment::After, Action::Cut);
        assert_eq!(counter.see(2, Direction::ToServer, b"startup"), Verdict::Pass);
        assert_eq!(counter.see(1, Direction::ToServer, &query("two")), Verdict::Pass);
        assert_eq!(counter.see(2, Direction::ToClient, &READY), Verdict::Pass, "another connection");
        assert_eq!(counter.see(1, Direction::ToClient, &[b'C', 0, 0, 0, 5, 0]), Verdict::Swallow);
        assert!(!counter.state.lock().stopped);
        assert_eq!(counter.see(1, Direction::ToClient, &READY), Verdict::Cut);
        assert!(counter.state.lock().stopped);
    }
}
