//! The stream of NATS.

use std::time::Duration;

use anyhow::Result;
use serde_json::Value;

use super::{STREAM, Source, header, record};
use crate::brokers::{JetStream, Stored};
use crate::consume::Record;

/// Messages that are read at once where there are some.
const MANY: u64 = 100;

/// The stream of NATS.
pub(super) struct Subjects {
    port: u16,
    next: u64,
    /// Some were there when it was asked last.
    some: bool,
    connection: Option<JetStream>,
}

impl Subjects {
    pub(super) fn new(port: u16) -> Self {
        Self { port, next: 1, some: false, connection: None }
    }
}

impl Source for Subjects {
    fn read(&mut self, _limit: Duration) -> Result<Vec<Record>> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => none.insert(JetStream::open(self.port, &Value::Null)?),
        };
        let stored = connection.messages_from(STREAM, self.next, if self.some { MANY } else { 1 })?;
        self.some = !stored.is_empty();
        self.next = stored.last().map_or(self.next, |last| last.sequence + 1);
        Ok(stored.into_iter().map(of_nats).collect())
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
