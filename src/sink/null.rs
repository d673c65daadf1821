//! A sink that acknowledges every record at once and keeps none. Measurements use it for the rate without a broker. The sink of standard
//! output counts the records in it that are written and not flushed.
//!
//! In: records. Out: their reports, at the next poll.

use super::{Delivered, Enqueue, Failure, InFlight, Record, Report, Sink, Tag};

/// The sink that keeps nothing.
#[derive(Debug, Default)]
pub struct NullSink {
    /// The records since the last poll.
    runs: Vec<Delivered>,
    in_flight: InFlight,
}

impl Sink for NullSink {
    fn try_enqueue(&mut self, record: &Record<'_>, Tag { token, .. }: Tag) -> Enqueue {
        let bytes = record.bytes() as u64;
        match self.runs.last_mut() {
            Some(run) if run.token == token => {
                run.records += 1;
                run.bytes += bytes;
            }
            Some(_) | None => self.runs.push(Delivered { token, records: 1, bytes }),
        }
        self.in_flight.records += 1;
        self.in_flight.bytes += record.held_bytes() as u64;
        Enqueue::Taken
    }

    fn poll(&mut self, each: &mut dyn FnMut(Report)) {
        self.in_flight = InFlight::default();
        self.runs.drain(..).map(Report::Delivered).for_each(each);
    }

    fn in_flight(&self) -> InFlight {
        self.in_flight
    }

    fn restart(&mut self) -> Result<(), Failure> {
        self.runs.clear();
        self.in_flight = InFlight::default();
        Ok(())
    }

    fn problem(&self) -> Option<String> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::{Content, Origin, Token};

    #[test]
    fn each_record_is_reported_once_in_runs_of_equal_tokens() {
        let record = Record {
            topic: "t",
            key: Some(b"k"),
            value: Some(b"vv"),
            headers: &[],
            timestamp_millis: 0,
            partition: None,
            content: Content::Unknown,
        };
        let token = |transaction| Token { transaction, tick: 0, topic: 0 };
        let mut sink = NullSink::default();
        for transaction in [1, 1, 2] {
            let tag = Tag { token: token(transaction), origin: Origin::default() };
            assert!(matches!(sink.try_enqueue(&record, tag), Enqueue::Taken));
        }
        assert_eq!(sink.in_flight(), InFlight { records: 3, bytes: 9, ..InFlight::default() });
        let mut reports = Vec::new();
        sink.poll(&mut |report| match report {
            Report::Delivered(run) => reports.push((run.token, run.records, run.bytes)),
            other @ (Report::Refused(_) | Report::Failed(_)) => panic!("{other:?}"),
        });
        assert_eq!(reports, [(token(1), 2, 6), (token(2), 1, 3)]);
        assert_eq!(sink.in_flight(), InFlight::default());
        sink.poll(&mut |run| panic!("reported twice: {run:?}"));
    }
}
