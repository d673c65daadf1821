//! [`ReplicationStream`]: reads a slot over a connection in copy-both mode. Changes come in, and status updates go out.
//!
//! In: an open connection, and bytes for the server. Out: frames. This file does not decode them.
//! Specification: PostgreSQL manual, sections 54.2.7 "COPY Operations", 54.4 "Streaming Replication Protocol".

use super::connection::{Connection, QUERY_TIMEOUT, broke, server_error};
use super::error::Error;
use super::frame::{Frame, FrameError, ReadBuffer};
use super::quoting::identifier;
use super::stream::ServerStream;
use crate::lsn::Lsn;
use bytes::BytesMut;
use postgres_protocol::message::frontend;
use std::time::{Duration, Instant};

/// The options for the output plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PluginOptions<'a> {
    /// The publication.
    pub publication: &'a str,
    /// Whether values come in binary form.
    pub binary: bool,
    /// Whether logical messages come as well.
    pub messages: bool,
    /// Whether rows are left out that a subscription applied (since 16).
    pub only_local: bool,
}

impl PluginOptions<'_> {
    pub(super) fn command(&self, slot: &str, start: Lsn) -> String {
        // Replication commands have no escapes, so a backslash is a plain character.
        let names = identifier(self.publication).replace('\'', "''");
        let mut options = format!("proto_version '1', publication_names '{names}'");
        if self.binary {
            options.push_str(", binary 'true'");
        }
        if self.messages {
            options.push_str(", messages 'true'");
        }
        if self.only_local {
            options.push_str(", origin 'none'");
        }
        format!("START_REPLICATION SLOT {} LOGICAL {start} ({options})", identifier(slot))
    }
}

/// A source of frames from a slot, which also takes bytes for the server. The relay's loop uses this trait, so that a script can
/// replace the server in tests.
pub trait Upstream {
    /// The bytes that were received and not yet consumed.
    fn buffer(&self) -> &ReadBuffer;

    /// The buffer itself. The loop removes handled frames from it.
    fn buffer_mut(&mut self) -> &mut ReadBuffer;

    /// The frame at the front. `None`: it was not received whole yet.
    ///
    /// # Errors
    /// The frame cannot be read, and neither can any after it.
    fn frame(&self) -> Result<Option<Frame<'_>>, FrameError> {
        self.buffer().frame()
    }

    /// Waits at most `patience` for more bytes. Returns their number. 0: none came.
    ///
    /// # Errors
    /// The connection broke.
    fn read(&mut self, patience: Duration) -> Result<usize, Error>;

    /// The most bytes that can come until the next read, if that is few. `None`: there is no such limit.
    fn window(&self) -> Option<usize> {
        None
    }

    /// Sends one encoded message.
    ///
    /// # Errors
    /// The connection broke.
    fn send(&mut self, message: &[u8]) -> Result<(), Error>;
}

impl Connection {
    /// Starts to read `slot` from `start`. `0/0`: from its confirmed position.
    ///
    /// # Errors
    /// The server refuses. The connection is returned, so that the relay can try again if the slot is active.
    pub fn start_replication(
        mut self,
        slot: &str,
        start: Lsn,
        options: &PluginOptions<'_>,
        max_row: usize,
    ) -> Result<ReplicationStream, (Box<Self>, Error)> {
        match self.begin_copy(&options.command(slot, start)) {
            Ok(()) => {
                let backend_pid = self.backend_pid();
                self.buffer.set_limit(max_row);
                Ok(ReplicationStream { stream: self.stream, buffer: self.buffer, backend_pid })
            }
            Err(error) => Err((Box::new(self), error)),
        }
    }

    fn begin_copy(&mut self, command: &str) -> Result<(), Error> {
        self.send_query(command)?;
        let deadline = Instant::now() + QUERY_TIMEOUT;
        let mut refusal = None;
        loop {
            let message = self.message(deadline, "starting replication")?;
            match message.tag {
                b'W' => return Ok(()),
                b'E' => refusal = Some(server_error(&message.body)?),
                b'Z' => break,
                b'C' | b'T' | b'D' => {}
                tag => return Err(Error::Unexpected { tag, doing: "starting replication" }),
            }
        }
        let error = Box::new(refusal.unwrap_or_default());
        Err(Error::Server { doing: "START_REPLICATION".to_owned(), error })
    }
}

/// If more bytes of a row are missing, the next read follows at once.
const LONG_ROW_BYTES: usize = 16 * 1024;

/// After so many bytes of one row, the loop does its other work.
const LONG_ROW_AT_ONCE: usize = 1 << 20;

/// The longest wait for the next piece of a row. It comes at once, unless the walsender itself waits.
const LONG_ROW_PATIENCE: Duration = Duration::from_micros(200);

/// A connection in copy-both mode.
#[derive(Debug)]
pub struct ReplicationStream {
    pub(super) stream: ServerStream,
    pub(super) buffer: ReadBuffer,
    pub(super) backend_pid: u32,
}

impl ReplicationStream {
    /// The walsender's process id.
    pub fn backend_pid(&self) -> u32 {
        self.backend_pid
    }

    /// Ends the copy, and waits until the server confirms that. The server has then read every status update.
    ///
    /// # Errors
    /// The connection broke, or the server did not answer within `patience`.
    pub fn finish(&mut self, patience: Duration) -> Result<(), Error> {
        let deadline = Instant::now() + patience;
        let mut message = BytesMut::new();
        frontend::copy_done(&mut message);
        self.send(&message)?;
        // The server sends changes until it reads that the copy has ended. These are skipped, and come again in the next run.
        loop {
            while let Some(frame) = self.buffer.frame()? {
                let (tag, length) = (frame.tag, frame.len());
                if tag == b'E' {
                    let error = Box::new(server_error(frame.body)?);
                    return Err(Error::Server { doing: "ending the stream".to_owned(), error });
                }
                self.buffer.consume(length);
                if tag == b'Z' {
                    return Ok(());
                }
            }
            self.stream.read_some(&mut self.buffer, deadline).map_err(broke("ending the stream"))?;
        }
    }
}

impl Upstream for ReplicationStream {
    fn buffer(&self) -> &ReadBuffer {
        &self.buffer
    }

    fn buffer_mut(&mut self) -> &mut ReadBuffer {
        &mut self.buffer
    }

    /// Reads more bytes. The pieces of a long row are at most as large as the receive window. A pause between them would gain nothing,
    /// so this reads on at once.
    fn read(&mut self, patience: Duration) -> Result<usize, Error> {
        let mut length = self.stream.read(&mut self.buffer, patience).map_err(broke("streaming"))?;
        while (1..LONG_ROW_AT_ONCE).contains(&length) && self.buffer.missing() >= LONG_ROW_BYTES {
            match self.stream.read(&mut self.buffer, LONG_ROW_PATIENCE).map_err(broke("streaming"))? {
                0 => break,
                more => length += more,
            }
        }
        Ok(length)
    }

    fn window(&self) -> Option<usize> {
        self.stream.window()
    }

    fn send(&mut self, message: &[u8]) -> Result<(), Error> {
        self.stream.write_all(message).map_err(broke("sending a status update"))
    }
}
