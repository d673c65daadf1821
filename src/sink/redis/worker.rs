//! The client's thread: finds the server, sends it what may be under way, reconnects. A cluster is served by [`cluster`].
//!
//! In: records behind the hand-over's lanes. Out: their outcomes. Nothing is sent a second time by itself: what was under way when a
//! connection was lost goes back to its lanes.

use super::cluster;
use super::conversation::{Conversation, Next, Route, Waiting};
use super::lookup::{Found, find};
use super::redirect::Redirect;
use super::settings::Settings;
use crate::sink::Failure;
use crate::sink::lanes::{End, Event, Outcome, Receiver, Reconnect};
use std::time::Duration;
use tokio::time::Instant;

/// How often it is looked round where nothing is due.
const IDLE: Duration = Duration::from_mins(1);

/// Runs until the relay wants nothing more.
pub(super) async fn run(settings: &Settings, receiver: &mut Receiver) {
    let mut server = Server::default();
    loop {
        let reaching = reach(settings, server.is_node);
        let Some(found) = receiver.while_listening(reaching).await else { return };
        let end = match found {
            Err(failure) => End::Lost(failure),
            Ok(Found::Cluster(view)) => return cluster::serve(settings, view, receiver).await,
            Ok(Found::Server(link, info)) => match Waiting::of(settings, link.address(), &info) {
                Err(failure) => End::Lost(failure),
                Ok(waiting) => {
                    let conversation = Conversation::new(settings, link, waiting, server.alone);
                    server.converse(conversation, receiver).await
                }
            },
        };
        let End::Lost(failure) = end else { return };
        if server.reconnect.wait(receiver, failure).await.is_none() {
            return;
        }
    }
}

/// Where streams are, and there, where it is one server, whether batches may be sent.
async fn reach(settings: &Settings, is_node: bool) -> Result<Found, Failure> {
    let mut found = find(settings, is_node).await?;
    if let Found::Server(link, _) = &mut found {
        link.may_batch(settings).await?;
    }
    Ok(found)
}

/// What is known of the one server from one connection to the next.
#[derive(Debug, Default)]
struct Server {
    reconnect: Reconnect,
    /// So many records are to be sent one by one.
    alone: usize,
    /// It has said what only a node of a cluster says.
    is_node: bool,
    /// In these words, on the present connection.
    said: Option<Failure>,
}

impl Server {
    async fn converse(&mut self, mut conversation: Conversation<'_>, receiver: &mut Receiver) -> End {
        let end = self.serve(&mut conversation, receiver).await;
        conversation.give_back(receiver);
        self.alone = conversation.alone();
        if conversation.has_answered() {
            self.reconnect = Reconnect::default();
        }
        end
    }

    async fn serve(&mut self, conversation: &mut Conversation<'_>, receiver: &mut Receiver) -> End {
        loop {
            conversation.fill(receiver);
            if conversation.has_news() {
                receiver.set_blocked(conversation.blocked().cloned());
            }
            // With nothing due it need not wake up; it does once in a while.
            let wake = conversation.wake().unwrap_or_else(|| Instant::now() + IDLE);
            tokio::select! {
                event = receiver.next() => match event {
                    Event::Work => {}
                    Event::Closed => return End::Closed,
                },
                turned = conversation.turn() => {
                    if let Err(error) = turned {
                        return End::Lost(conversation.lost(receiver, &error));
                    }
                    let read = conversation.read(receiver, self);
                    if let Some(failure) = read.err().or_else(|| self.said.take()) {
                        return End::Lost(failure);
                    }
                }
                () = tokio::time::sleep_until(wake) => {
                    if let Some(failure) = conversation.overdue() {
                        return End::Lost(failure);
                    }
                }
            }
        }
    }
}

/// With a user who may not ask for INFO it becomes known only now that the server is one of several.
impl Route for Server {
    fn redirected(&mut self, _stream: &str, _redirect: &Redirect, failure: Failure) -> Next {
        self.is_node = true;
        Next::Elsewhere(failure)
    }

    fn judged(&mut self, _stream: &str, outcomes: &[Outcome]) {
        // A batch of several slots, or a slot that cannot be written now.
        if let Some(Outcome::Later(failure)) = outcomes.first() {
            self.is_node = true;
            self.said = Some(failure.clone());
        }
    }
}
