//! The stream of NATS.

use std::time::Duration;

use anyhow::Result;
use serde_json::Value;

use super::{Ends, STREAM, Source, header, record};
use crate::brokers::{JetStream, Stored};
use crate::consume::Record;

/// Messages that are read at once where there are some.
const MANY: u64 = 100;

/// The stream of NATS.
pub(super) struct Subjects {
    port: u16,
    topics: Vec<String>,
    next: u64,
    /// Some were there when it was asked last.
    some: bool,
    connection: Option<JetStream>,
}

impl Subjects {
    pub(super) fn new(port: u16, topics: &[String]) -> Self {
        Self { port, topics: topics.to_owned(), next: 1, some: false, connection: None }
    }
}

/// The connection, made unless it is there.
fn connected(connection: &mut Option<JetStream>, port: u16) -> Result<&mut JetStream> {
    match connection {
        Some(connection) => Ok(connection),
        none => Ok(none.insert(JetStream::open(port, &Value::Null)?)),
    }
}

impl Source for Subjects {
    fn read(&mut self, _limit: Duration) -> Result<Vec<Record>> {
        let connection = connected(&mut self.connection, self.port)?;
        let stored = connection.messages_from(STREAM, self.next, if self.some { MANY } else { 1 })?;
        self.some = !stored.is_empty();
        self.next = stored.last().map_or(self.next, |last| last.sequence + 1);
        Ok(stored.into_iter().map(of_nats).collect())
    }

    fn ends(&mut self) -> Result<Ends> {
        let connection = connected(&mut self.connection, self.port)?;
        let end = |topic: &String| {
            let last = connection.last_place(STREAM, topic)?;
            Ok(((topic.clone(), 0), if last == 0 { 0 } else { i64::try_from(last)? + 1 }))
        };
        self.topics.iter().map(end).collect()
    }

    fn count(&mut self) -> Result<u64> {
        connected(&mut self.connection, self.port)?.count(STREAM)
    }

    fn disconnect(&mut self) {
        self.connection = None;
    }
}

fn of_nats(stored: Stored) -> Record {
    let mut record = record(&stored.subject, i64::try_from(stored.sequence).unwrap_or(i64::MAX));
    record.timestamp = Some(stored.millis);
    record.key = stored.header("key").map(|key| key.as_bytes().to_vec());
    record.headers = stored.headers.iter().map(|(name, value)| header(name, value.as_bytes())).collect();
    record.value = Some(stored.data);
    record
}
