//! A queue of RabbitMQ, or a stream, which is read again from where a killed broker may have forgotten some of it.

use std::collections::VecDeque;
use std::time::Duration;

use anyhow::Result;

use super::{LOG, Source, header, record};
use crate::brokers::{AmqpConnection, AmqpMessage};
use crate::consume::Record;

/// Messages that are acknowledged together while more are there.
const TOGETHER: usize = 200;

/// Messages at the end of a stream that are looked at again on a new connection: more than a killed broker forgets of it.
const AGAIN: usize = 5000;

/// A queue or a stream of RabbitMQ.
pub(super) struct Queue {
    port: u16,
    name: &'static str,
    /// Of a stream, what has come.
    read: Option<Tail>,
    /// How many have come.
    count: i64,
    connection: Option<AmqpConnection>,
    /// Come, and not acknowledged on this connection.
    open: usize,
}

impl Queue {
    /// Only a stream can be read from its beginning.
    pub(super) fn new(port: u16, name: &'static str) -> Self {
        Self { port, name, read: (name == LOG).then(Tail::default), count: 0, connection: None, open: 0 }
    }
}

impl Source for Queue {
    fn read(&mut self, limit: Duration) -> Result<Vec<Record>> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => {
                let mut connection = AmqpConnection::open(self.port)?;
                connection.consume(self.name, self.read.as_ref().map(Tail::first))?;
                self.open = 0;
                none.insert(connection)
            }
        };
        let Some(message) = connection.delivered(limit)? else { return Ok(Vec::new()) };
        self.open += 1;
        if self.open.is_multiple_of(TOGETHER) || connection.is_drained() {
            connection.acknowledge(&message)?;
        }
        let offset = message.stream_offset();
        if let (Some(offset), Some(read)) = (offset, self.read.as_mut())
            && !read.is_new(offset, &message.name())
        {
            return Ok(Vec::new());
        }
        let offset = offset.unwrap_or(self.count);
        self.count += 1;
        Ok(vec![of_rabbitmq(message, offset)])
    }

    fn disconnect(&mut self) {
        self.connection = None;
    }
}

/// The end of a stream as it was read: offsets that follow one another, and what was there.
///
/// A stream writes its file without waiting for the disk, and a broker that was killed cuts off what is incomplete. What is published
/// next has offsets that other messages had before, so that an offset alone does not say what has been read.
#[derive(Debug, Default)]
struct Tail {
    first: i64,
    names: VecDeque<String>,
}

impl Tail {
    /// Where to begin on a new connection.
    fn first(&self) -> i64 {
        self.first
    }

    /// Whether this was not read before. A stream begins with the chunk that holds what was asked for, and so with what comes before.
    fn is_new(&mut self, offset: i64, name: &str) -> bool {
        let Ok(place) = usize::try_from(offset - self.first) else { return false };
        if self.names.get(place).is_some_and(|read| read == name) {
            return false;
        }
        // What was read from here on is there no more.
        self.names.truncate(place);
        if self.names.is_empty() {
            self.first = offset;
        }
        self.names.push_back(name.to_owned());
        if self.names.len() > AGAIN {
            self.names.pop_front();
            self.first += 1;
        }
        true
    }
}

/// A mark has its number in its body, and went through no exchange.
fn of_rabbitmq(message: AmqpMessage, offset: i64) -> Record {
    if message.exchange.is_empty() {
        return record("", message.text().parse().unwrap_or_default());
    }
    let mut record = record(&message.key, offset);
    for (name, property) in [("id", "message_id"), ("eventType", "type")] {
        if let Some(value) = message.properties.get(property) {
            record.headers.push(header(name, value.as_bytes()));
        }
    }
    for (name, value) in message.headers {
        match name.as_str() {
            "key" => record.key = value.map(String::into_bytes),
            _ => record.headers.push((name, value.map(String::into_bytes))),
        }
    }
    record.value = Some(message.body);
    record
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(tail: &mut Tail, messages: &[(i64, &str)]) -> Vec<String> {
        let new = messages.iter().filter(|(offset, name)| tail.is_new(*offset, name));
        new.map(|(_, name)| (*name).to_owned()).collect()
    }

    #[test]
    fn a_stream_is_read_on_after_a_lost_connection() {
        let mut tail = Tail::default();
        assert_eq!(read(&mut tail, &[(0, "a"), (1, "b")]), ["a", "b"]);
        assert_eq!(tail.first(), 0);
        assert_eq!(read(&mut tail, &[(0, "a"), (1, "b"), (2, "c")]), ["c"]);
    }

    #[test]
    fn what_takes_the_offsets_of_lost_messages_is_new() {
        let mut tail = Tail::default();
        assert_eq!(read(&mut tail, &[(0, "a"), (1, "b"), (2, "c")]), ["a", "b", "c"]);
        assert_eq!(read(&mut tail, &[(0, "a"), (1, "d"), (2, "b"), (3, "c")]), ["d", "b", "c"]);
    }

    #[test]
    fn no_more_than_the_end_of_a_stream_is_read_again() {
        let mut tail = Tail::default();
        let all = i64::try_from(AGAIN).unwrap_or(i64::MAX) + 10;
        assert!((0..all).all(|offset| tail.is_new(offset, &offset.to_string())));
        assert_eq!(tail.first(), 10);
        assert!(!tail.is_new(9, "9"));
        assert!(!tail.is_new(10, "10"));
        assert!(tail.is_new(all, "next"));
    }
}
