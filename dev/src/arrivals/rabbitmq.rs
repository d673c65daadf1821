//! A queue or a stream of RabbitMQ.
//!
//! Of a broker that has just started, a stream may lack messages that were confirmed: it listens, and its quorum queues take messages,
//! a third of a second before its streams do, and it confirms what the queues alone have. So a stream shows early what has come, and a
//! quorum queue what has not.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use anyhow::Result;

use super::{Ends, LOG, STREAM, Source, header, record};
use crate::brokers::{AmqpConnection, AmqpMessage};
use crate::consume::Record;

/// Messages that are acknowledged together while more are there.
const TOGETHER: usize = 200;

/// A queue or a stream of RabbitMQ.
pub(super) struct Queue {
    port: u16,
    name: &'static str,
    /// Of a stream, the next one.
    next: Option<i64>,
    /// How many have come.
    count: i64,
    connection: Option<AmqpConnection>,
    /// Come, and not acknowledged on this connection.
    open: usize,
}

impl Queue {
    /// Only a stream can be read from its beginning.
    pub(super) fn new(port: u16, name: &'static str) -> Self {
        Self { port, name, next: (name == LOG).then_some(0), count: 0, connection: None, open: 0 }
    }
}

impl Source for Queue {
    fn read(&mut self, limit: Duration) -> Result<Vec<Record>> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => {
                let mut connection = AmqpConnection::open(self.port)?;
                connection.consume(self.name, self.next)?;
                self.open = 0;
                none.insert(connection)
            }
        };
        let Some(message) = connection.delivered(limit)? else { return Ok(Vec::new()) };
        self.open += 1;
        if self.open.is_multiple_of(TOGETHER) || connection.is_drained() {
            connection.acknowledge(&message)?;
        }
        // A stream begins with the chunk that holds what was asked for.
        let offset = message.stream_offset();
        if let (Some(offset), Some(next)) = (offset, self.next.as_mut()) {
            if offset < *next {
                return Ok(Vec::new());
            }
            *next = offset + 1;
        }
        let offset = offset.unwrap_or(self.count);
        self.count += 1;
        Ok(vec![of_rabbitmq(message, offset)])
    }

    /// How long a queue is is known only from time to time. What is published now comes behind all that is there.
    fn ends(&mut self) -> Result<Ends> {
        static MARKS: AtomicI64 = AtomicI64::new(0);
        let mark = MARKS.fetch_add(1, Ordering::SeqCst);
        let mut connection = AmqpConnection::open(self.port)?;
        connection.publish(self.name, mark.to_string().as_bytes())?;
        connection.leave()?;
        Ok(Ends::from([((String::new(), 0), mark + 1)]))
    }

    /// Of the queue that users have.
    fn count(&mut self) -> Result<u64> {
        AmqpConnection::open(self.port)?.length(STREAM)
    }

    fn disconnect(&mut self) {
        self.connection = None;
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
