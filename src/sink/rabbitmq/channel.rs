//! One channel: whether it is open, the messages under way on it, and the message that is being returned.
//!
//! In: frames of the channel. Out: which message came back. It does no I/O and settles nothing.

use super::message::{self, Print};
use super::method;
use super::window::{Misfit, Window};
use super::wire::{Frame, Sort};
use crate::sink::Failure;
use crate::sink::lanes::{Place, Taken};

/// A channel.
#[derive(Debug)]
pub(super) struct Channel {
    pub(super) number: u16,
    /// Messages may be published, and are confirmed.
    pub(super) is_open: bool,
    pub(super) window: Window<Taken<Place>, Failure>,
    returning: Option<Returning>,
}

/// A message that is being returned.
#[derive(Debug)]
enum Returning {
    /// Its header is next.
    Header { key: Vec<u8>, failure: Failure },
    /// So many bytes of its body are to come.
    Body { print: Print, left: u64, failure: Failure },
}

impl Channel {
    pub(super) fn new(number: u16) -> Self {
        Self { number, is_open: false, window: Window::default(), returning: None }
    }

    /// Asks for it to be opened.
    pub(super) fn open(&mut self, out: &mut Vec<u8>) {
        method::channel_open(out, self.number);
        method::confirm_select(out, self.number);
    }

    /// How many more messages may be under way, where so many may.
    pub(super) fn room(&self, window: usize) -> usize {
        if self.is_open { window.saturating_sub(self.window.len()) } else { 0 }
    }

    /// The server closed it: it is opened again. What was under way, with each whether it came back.
    pub(super) fn closed(&mut self, out: &mut Vec<u8>) -> impl Iterator<Item = (Taken<Place>, Option<Failure>)> {
        self.is_open = false;
        self.returning = None;
        method::channel_close_ok(out, self.number);
        self.open(out);
        self.window.closed()
    }

    /// A message with this routing key is being returned.
    pub(super) fn returned(&mut self, key: &[u8], failure: Failure) {
        self.returning = Some(Returning::Header { key: key.to_owned(), failure });
    }

    /// A part of the message that is being returned.
    pub(super) fn content(&mut self, frame: Frame<'_>) -> Result<(), Misfit> {
        let (print, left, failure) = match (self.returning.take(), frame.sort) {
            (Some(Returning::Header { key, failure }), Sort::Header) => {
                let (print, left) = message::returned(&key, frame.payload).map_err(|_| Misfit)?;
                (print, left, failure)
            }
            (Some(Returning::Body { print, left, failure }), Sort::Body) => {
                (print, left.checked_sub(frame.payload.len() as u64).ok_or(Misfit)?, failure)
            }
            (_, Sort::Header | Sort::Body | Sort::Method | Sort::Heartbeat) => return Err(Misfit),
        };
        if left == 0 {
            return self.window.returned(print, failure);
        }
        self.returning = Some(Returning::Body { print, left, failure });
        Ok(())
    }
}
