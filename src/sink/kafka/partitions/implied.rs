//! Checks records that librdkafka takes for delivered because a later one of the partition was.
//!
//! librdkafka has no answer for such a record, or one to send it again (`rd_kafka_dr_implicit_ack`). It relies on the broker, which stores no
//! batch behind a missing one. A topic that was deleted and created again has a broker that knows no producer, and stores any batch: it
//! refuses the first request while the topic is not there, and stores the second one, which came a moment later.
//!
//! Offsets tell. Where the earlier records are in the log, the later one is behind them: its offset is above that of the last record
//! delivered before, by more than their number. Otherwise the relay has to start over from the confirmed position, since records behind
//! them are in the log.
//!
//! In: reports with and without an offset. Out: the records that were delivered, or a failure. Invariant: a record without an offset is
//! reported as delivered only once an offset has shown that the log has room for it.

use super::Partitions;
use super::entries::Ticket;
use super::partition::IMPLIED_FOR;
use crate::sink::{Delivered, Failure, FailureClass, Report};
use std::time::Instant;

impl Partitions {
    /// librdkafka takes a record for delivered. The report of the later one follows.
    #[cold]
    pub fn implied(&mut self, ticket: Ticket, now: Instant) {
        let at = self.partition_of(ticket);
        if let Some(partition) = self.list.get_mut(at as usize) {
            partition.implied.push((ticket, now));
            self.list_it(at);
        }
    }

    /// A record was stored at this offset. Calls `each` with the earlier records that are delivered by that, and then with this one.
    #[inline]
    pub fn stored(&mut self, ticket: Ticket, offset: i64, now: Instant, mut each: impl FnMut(Delivered)) {
        let entry = self.entries.take(ticket);
        let at = entry.at;
        if let Some(partition) = self.list.get_mut(at as usize) {
            let before = std::mem::replace(&mut partition.offset, offset);
            if !partition.implied.is_empty() {
                self.take_implied(at, offset - before).into_iter().for_each(|it| each(self.delivered(it, now)));
            }
        }
        each(self.ended(entry, now));
    }

    #[cold]
    fn take_implied(&mut self, at: u32, distance: i64) -> Vec<Ticket> {
        let Some(partition) = self.list.get_mut(at as usize) else { return Vec::new() };
        let implied = std::mem::take(&mut partition.implied);
        if i64::try_from(implied.len()).is_ok_and(|records| records < distance) {
            return implied.into_iter().map(|(ticket, _)| ticket).collect();
        }
        self.are_lost(implied.len());
        Vec::new()
    }

    /// Gives up records that librdkafka takes for delivered, and behind which no offset was reported.
    pub(super) fn expire_implied(&mut self, at: u32, now: Instant) {
        let Some(partition) = self.list.get_mut(at as usize) else { return };
        let Some((_, since)) = partition.implied.first() else { return };
        if now.saturating_duration_since(*since) >= IMPLIED_FOR {
            let records = std::mem::take(&mut partition.implied).len();
            self.are_lost(records);
        }
    }

    fn are_lost(&mut self, records: usize) {
        let text =
            format!("Kafka has stored later records and not {records} before them: was the topic created again?");
        self.reports.push(Report::Failed(Failure::new(FailureClass::Client, "client", text)));
    }
}
