//! Records as JSON lines: `--to stdout://`, and for looking `run --dry-run`.
//!
//! In: records. Out: one JSON object a line; texts as strings, other bytes as `{"hex": "…"}`. A record counts as delivered
//! once the writer has been flushed. Nothing is retried: a writer that fails ends the run.

use super::destination::{Can, Delivery, Destination, GivenSettings, Kind, Scratch, ScratchError, Wanted};
use super::null::NullSink;
use super::{Enqueue, Failure, FailureClass, InFlight, Record, Report, Sink, Tag};
use crate::check_finding::{Finding, Side};
use crate::route::TOPICS;
use crate::setting_text::SettingError;
use crate::wire::Hex;
use serde_json::{Value, json};
use std::io::{self, BufWriter, Write};
use std::sync::Arc;

/// The kind `stdout`: JSON lines on standard output.
pub const KIND: Kind = Kind {
    name: "stdout",
    title: "standard output",
    schemes: &["stdout"],
    example: "stdout://",
    topics: &TOPICS,
    can: Can { exactly_once: false, partitions: true, null_values: true, debezium: false, dead_letters: false },
    properties: &[],
    passes_others: false,
    record_overhead_bytes: 0,
    read,
    refusals: Vec::new,
    reasons: || vec![REASON],
};

/// The label of a failure to write.
const REASON: &str = "output";

/// Standard output as a destination.
#[derive(Debug)]
struct Stdout;

fn read(asked: &mut GivenSettings<'_>) -> Result<Arc<dyn Destination>, SettingError> {
    match asked.addresses.first() {
        None => Ok(Arc::new(Stdout)),
        Some(given) => Err(given.invalid("stdout:// and nothing after it", Some("stdout://".to_owned()))),
    }
}

impl Destination for Stdout {
    fn kind(&self) -> &'static Kind {
        &KIND
    }

    fn address(&self) -> String {
        "stdout://".to_owned()
    }

    fn open(&self, _client: &str, _how: Delivery) -> Result<Box<dyn Sink + Send>, SettingError> {
        Ok(Box::new(StdoutSink::new(io::stdout())))
    }

    fn check(&self, _wanted: &Wanted<'_>) -> Vec<Finding> {
        vec![Side::Destination(KIND.name).ok("connection", "a record counts as delivered once it is written")]
    }

    fn scratch(&self, _client: &str, topic: &str, _partitions: i32) -> Result<Box<dyn Scratch>, ScratchError> {
        let reason = "measurements write their results there; --sink null throws records away".to_owned();
        Err(ScratchError { what: "create topic", topic: topic.to_owned(), reason })
    }
}

/// The sink of a dry run, and of `--to stdout://`.
#[derive(Debug)]
pub struct StdoutSink<W: Write> {
    writer: BufWriter<W>,
    /// The records that are written and not flushed.
    pending: NullSink,
    broken: Option<io::ErrorKind>,
}

impl<W: Write> StdoutSink<W> {
    /// Writes to `writer`.
    pub fn new(writer: W) -> Self {
        Self { writer: BufWriter::new(writer), pending: NullSink::default(), broken: None }
    }

    fn failure(&self) -> Option<Failure> {
        self.broken.map(|kind| {
            Failure::new(FailureClass::Client, REASON, format!("standard output cannot be written: {kind}"))
        })
    }

    fn write(&mut self, record: &Record<'_>) -> io::Result<()> {
        serde_json::to_writer(&mut self.writer, &line(record))?;
        self.writer.write_all(b"\n")
    }
}

fn line(record: &Record<'_>) -> Value {
    let headers: Vec<Value> = record.headers.iter().map(|header| json!([header.name, text(header.value)])).collect();
    let mut line = json!({
        "topic": record.topic,
        "key": text(record.key),
        "value": text(record.value),
        "headers": headers,
        "timestamp": record.timestamp_millis,
    });
    if let (Some(partition), Value::Object(members)) = (record.partition, &mut line) {
        members.insert("partition".to_owned(), partition.into());
    }
    line
}

fn text(bytes: Option<&[u8]>) -> Value {
    match bytes.map(|bytes| (std::str::from_utf8(bytes), bytes)) {
        None => Value::Null,
        Some((Ok(text), _)) => text.into(),
        Some((Err(_), bytes)) => json!({ "hex": Hex(bytes).to_string() }),
    }
}

impl<W: Write> Sink for StdoutSink<W> {
    fn try_enqueue(&mut self, record: &Record<'_>, tag: Tag) -> Enqueue {
        if let Err(error) = self.write(record) {
            self.broken = Some(error.kind());
        }
        if let Some(failure) = self.failure() {
            return Enqueue::Blocked(failure);
        }
        self.pending.try_enqueue(record, tag)
    }

    fn poll(&mut self, each: &mut dyn FnMut(Report)) {
        if self.in_flight().records == 0 {
            return;
        }
        if let Err(error) = self.writer.flush() {
            self.broken = Some(error.kind());
        }
        if let Some(failure) = self.failure() {
            self.pending = NullSink::default();
            return each(Report::Failed(failure));
        }
        self.pending.poll(each);
    }

    fn in_flight(&self) -> InFlight {
        self.pending.in_flight()
    }

    fn restart(&mut self) -> Result<(), Failure> {
        self.pending = NullSink::default();
        self.failure().map_or(Ok(()), Err)
    }

    fn problem(&self) -> Option<String> {
        self.failure().map(|failure| failure.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::{Content, Header, Origin, Token};

    #[test]
    fn a_record_is_one_line_of_json() {
        let record = Record {
            topic: "orders",
            key: Some(b"17"),
            value: Some(b"{\"total\": 1.50}"),
            headers: &[Header { name: "id", value: Some(b"a") }, Header { name: "x", value: None }],
            timestamp_millis: 1000,
            partition: None,
            content: Content::Unknown,
        };
        assert_eq!(
            line(&record).to_string(),
            r#"{"topic":"orders","key":"17","value":"{\"total\": 1.50}","headers":[["id","a"],["x",null]],"timestamp":1000}"#
        );
        let binary = Record { value: Some(&[0xFF, 0]), key: None, headers: &[], partition: Some(3), ..record };
        assert_eq!(
            line(&binary).to_string(),
            r#"{"topic":"orders","key":null,"value":{"hex":"ff00"},"headers":[],"timestamp":1000,"partition":3}"#
        );
    }

    #[test]
    fn each_record_is_reported_once_after_the_flush() {
        let mut sink = StdoutSink::new(Vec::new());
        let record = Record {
            topic: "t",
            key: None,
            value: None,
            headers: &[],
            timestamp_millis: 0,
            partition: None,
            content: Content::Unknown,
        };
        let tag = Tag { token: Token { transaction: 1, tick: 2, topic: 3 }, origin: Origin::default() };
        assert!(matches!(sink.try_enqueue(&record, tag), Enqueue::Taken));
        assert!(matches!(sink.try_enqueue(&record, tag), Enqueue::Taken));
        let mut reported = 0;
        let mut each = |report| match report {
            Report::Delivered(run) => reported += run.records,
            other @ (Report::Refused(_) | Report::Failed(_)) => panic!("{other:?}"),
        };
        sink.poll(&mut each);
        sink.poll(&mut each);
        assert_eq!((reported, sink.in_flight().records), (2, 0));
    }

    #[test]
    fn an_output_that_is_gone_ends_the_run() {
        struct Closed;
        impl Write for Closed {
            fn write(&mut self, _bytes: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut sink = StdoutSink::new(Closed);
        let record = Record {
            topic: "t",
            key: None,
            value: None,
            headers: &[],
            timestamp_millis: 0,
            partition: None,
            content: Content::Unknown,
        };
        sink.try_enqueue(&record, Tag { token: Token::unpack(0), origin: Origin::default() });
        let mut failed = false;
        sink.poll(&mut |report| failed |= matches!(report, Report::Failed(_)));
        assert!(failed && sink.restart().is_err());
    }
}
