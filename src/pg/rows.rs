//! [`Rows`]: reads the rows of a query whose result is too large for memory.
//!
//! In: one query at a time. Out: one row after the other, borrowed from the read buffer. While the caller does not ask for the next
//! row, the connection's flow control makes the server wait. This file does not know what a row means.
//! Specification: PostgreSQL manual, section 54.2.3 "Simple Query", 54.7 "DataRow".

use super::connection::{Connection, broke, broke_after, server_error, shortened};
use super::error::{Error, ServerError};
use crate::wire::{DecodeError, Reader};
use std::time::{Duration, Instant};

/// Reads rows over its own connection.
#[derive(Debug)]
pub struct Rows {
    connection: Connection,
    /// The running query, for messages. `None`: no query runs.
    running: Option<String>,
    refusal: Option<ServerError>,
}

/// The next part of a query's answer.
#[derive(Debug, PartialEq, Eq)]
pub enum NextRow<T> {
    /// A row.
    Row(T),
    /// Nothing has come within the time.
    Nothing,
    /// The query has ended, and another one may begin.
    End,
}

/// The values of a row in text form, in order. `None`: SQL null.
#[derive(Debug, Clone)]
pub struct Values<'a> {
    reader: Reader<'a>,
    left: u16,
}

impl<'a> Values<'a> {
    fn new(body: &'a [u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new("DataRow", body);
        let left = reader.u16()?;
        Ok(Self { reader, left })
    }

    /// The next value.
    ///
    /// # Errors
    /// The row has no more values, or is malformed.
    pub fn value(&mut self) -> Result<Option<&'a [u8]>, DecodeError> {
        if self.left == 0 {
            // A missing value is the same error as missing bytes.
            return self.reader.take(usize::MAX).map(Some);
        }
        self.left -= 1;
        match self.reader.i32()? {
            -1 => Ok(None),
            length => self.reader.take(usize::try_from(length).unwrap_or(usize::MAX)).map(Some),
        }
    }
}

impl Rows {
    /// Uses this connection. A row of more than `largest` bytes is an error.
    pub fn new(mut connection: Connection, largest: usize) -> Self {
        connection.buffer.set_limit(largest);
        Self { connection, running: None, refusal: None }
    }

    /// Sends a query.
    ///
    /// # Errors
    /// The connection broke.
    pub fn begin(&mut self, sql: &str) -> Result<(), Error> {
        self.running = Some(shortened(sql));
        self.connection.send_query(sql)
    }

    /// Whether a query is running.
    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Calls `take` with the next row, if one comes within `patience`.
    ///
    /// # Errors
    /// The server refuses the query, or the connection broke.
    pub fn next<T>(
        &mut self,
        patience: Duration,
        take: impl FnOnce(&mut Values<'_>) -> Result<T, DecodeError>,
    ) -> Result<NextRow<T>, Error> {
        let mut patience = patience;
        loop {
            let Some(frame) = self.connection.buffer.frame()? else {
                let read = self.connection.stream.read(&mut self.connection.buffer, patience);
                match read.map_err(broke("reading rows")) {
                    Ok(0) => return Ok(NextRow::Nothing),
                    Ok(_) => {}
                    Err(error) => return Err(broke_after(self.refusal.take(), error)),
                }
                // If a part of a row was received, its rest comes at once.
                patience = patience.min(Duration::from_millis(1));
                continue;
            };
            let length = frame.len();
            match frame.tag {
                b'D' => {
                    let taken = take(&mut Values::new(frame.body)?)?;
                    self.connection.buffer.consume(length);
                    return Ok(NextRow::Row(taken));
                }
                b'Z' => {
                    self.connection.buffer.consume(length);
                    let doing = self.running.take().unwrap_or_default();
                    return match self.refusal.take() {
                        Some(error) => Err(Error::Server { doing, error: Box::new(error) }),
                        None => Ok(NextRow::End),
                    };
                }
                b'E' => self.refusal = Some(server_error(frame.body)?),
                // RowDescription, CommandComplete, EmptyQueryResponse, ParameterStatus, NoticeResponse, NotificationResponse
                b'T' | b'C' | b'I' | b'S' | b'N' | b'A' => {}
                tag => return Err(Error::Unexpected { tag, doing: "reading rows" }),
            }
            self.connection.buffer.consume(length);
        }
    }

    /// Skips the remaining rows. Waits at most `patience` for all of them.
    ///
    /// # Errors
    /// As [`Rows::next`]. Or nothing came within `patience`.
    pub fn finish(&mut self, patience: Duration) -> Result<(), Error> {
        let deadline = Instant::now() + patience;
        while self.is_running() {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.next(left, |_| Ok(()))? {
                NextRow::Row(()) if !left.is_zero() => {}
                NextRow::Row(()) | NextRow::Nothing => {
                    return Err(broke("reading rows")(std::io::ErrorKind::TimedOut.into()));
                }
                NextRow::End => return Ok(()),
            }
        }
        Ok(())
    }
}
