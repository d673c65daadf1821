//! Hands librdkafka's reports to the relay, and replaces producers that have ended.
//!
//! In: the events of all producers, by polls on this thread. Out: reports for the relay, in runs; new producers for those that ended.

use super::super::metadata::MOST_EVENTS;
use super::super::partitions::{Event, PartitionTarget, Ticket};
use super::super::producers::Client;
use super::super::progress::TOPIC;
use super::super::retire::retire;
use super::super::transactions::PROGRESS;
use super::super::{KafkaSink, errors};
use super::{Reported, events, take_reports};
use crate::sink::{Delivered, Failure, FailureClass, OwnedRecord, RefusalId, Refused, Report};
use rdkafka::producer::{Producer, PurgeConfig};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long the sink waits for the reports of an ended producer. After that it purges the producer's records and sends them again.
const ANSWERED_WITHIN: Duration = Duration::from_secs(10);

/// Delivered records with equal tokens, one after the other.
#[derive(Default)]
struct Run(Option<Delivered>);

impl Run {
    #[inline]
    fn add(&mut self, one: Delivered, each: &mut dyn FnMut(Report)) {
        match &mut self.0 {
            Some(run) if run.token == one.token => {
                run.records += 1;
                run.bytes += one.bytes;
            }
            Some(_) | None => {
                self.end(each);
                self.0 = Some(one);
            }
        }
    }

    fn end(&mut self, each: &mut dyn FnMut(Report)) {
        self.0.take().into_iter().for_each(|run| each(Report::Delivered(run)));
    }
}

impl KafkaSink {
    /// Serves the events of all producers, until there are none. Returns whether there were reports.
    pub(in crate::sink::kafka) fn serve(&mut self, each: &mut dyn FnMut(Report)) -> bool {
        let mut reports = std::mem::take(&mut self.reports);
        let (mut reported, mut served) = (false, 0);
        loop {
            // One poll brings one batch of reports, or one event.
            let before = events();
            self.clients().for_each(|client| client.producer().poll(Duration::ZERO));
            take_reports(&mut reports);
            if reports.is_empty() {
                if events() > before && served < MOST_EVENTS {
                    served += 1;
                    continue;
                }
                break;
            }
            reported = true;
            self.take(&mut reports, each);
        }
        self.reports = reports;
        reported
    }

    fn take(&mut self, reports: &mut Vec<Reported>, each: &mut dyn FnMut(Report)) {
        let (mut run, mut delivered) = (Run::default(), false);
        let (mut refused, mut last, mut bytes) = (Vec::new(), None, 0);
        self.partitions.prepare(reports.iter().filter_map(|report| match report {
            Reported::Delivered(PROGRESS, _) | Reported::Failed(..) => None,
            Reported::Delivered(opaque, _) => Some(Ticket::unpack(*opaque)),
        }));
        for report in reports.drain(..) {
            match report {
                // The commit needs the outcome of a progress record.
                Reported::Delivered(PROGRESS, _) => self.transactions.progress_reported(Ok(())),
                Reported::Failed(PROGRESS, failed) => {
                    let mut failure = failed.1;
                    self.say_why((0, TOPIC), &mut failure);
                    self.transactions.progress_reported(Err(failure));
                }
                Reported::Delivered(opaque, i64::MIN..=-1) => self.partitions.implied(Ticket::unpack(opaque), self.now),
                Reported::Delivered(opaque, offset) => {
                    delivered = true;
                    self.partitions.stored(Ticket::unpack(opaque), offset, self.now, |one| run.add(one, each));
                }
                Reported::Failed(opaque, failed) => {
                    let (record, mut failure) = *failed;
                    let ticket = Ticket::unpack(opaque);
                    let target = self.partitions.target(self.partitions.partition_of(ticket));
                    self.say_why((target.map_or(0, |target| target.producer), record.topic()), &mut failure);
                    if failure.reason == errors::INVALID_TIMESTAMP && !self.times_are_rows {
                        failure = errors::of_time(record.topic());
                        self.partitions.set_time(ticket, present_millis());
                    }
                    if !self.transactions.are_used() {
                        self.partitions.failed(ticket, record, failure);
                        continue;
                    }
                    run.end(each);
                    bytes += self.partitions.bytes_of(ticket);
                    match failure.class {
                        FailureClass::Row | FailureClass::Unlisted => {
                            refused.push(ticket);
                            last = Some((record, failure));
                        }
                        FailureClass::Topic => each(self.refused_in_transaction(ticket, record, failure)),
                        FailureClass::Environment | FailureClass::LogIn | FailureClass::Client => {
                            each(Report::Failed(failure));
                        }
                    }
                }
            }
        }
        run.end(each);
        if let Some(last) = last {
            each(self.batch_refused(&refused, last, bytes));
        }
        if delivered {
            self.health.delivered();
            self.producers.first().context().recovered();
        }
    }

    /// A batch of a transaction was refused, which had so many bytes. The records with these tickets may be the cause; the last one of them
    /// is `record`. If there is only one, it is the cause. If there are several, the search goes on in the next transaction.
    fn batch_refused(&mut self, tickets: &[Ticket], (record, failure): (OwnedRecord, Failure), bytes: u64) -> Report {
        self.partitions.refused_in_transaction(tickets, bytes, self.now);
        if let ([ticket], FailureClass::Unlisted) = (tickets, failure.class) {
            self.partitions.try_alone_in_transaction(*ticket, record.topic(), &failure, self.now);
            return Report::Failed(failure);
        }
        if let [ticket] = tickets {
            return self.refused_in_transaction(*ticket, record, failure);
        }
        tracing::warn!(
            topic = record.topic(),
            records = tickets.len(),
            "broker rejected a batch of a transaction; its records are sent again in smaller batches to find the record"
        );
        Report::Failed(failure)
    }

    /// A transaction fails for the sake of this record. It is not resolved: the sink is restarted.
    fn refused_in_transaction(&self, ticket: Ticket, record: OwnedRecord, failure: Failure) -> Report {
        Report::Refused(Box::new(Refused { id: RefusalId(0), tag: self.partitions.tag(ticket), record, failure }))
    }

    /// Replaces producers that have ended with new ones. Ends an old one once it has nothing in flight.
    pub(in crate::sink::kafka) fn renew(&mut self, each: &mut dyn FnMut(Report)) {
        for producer in self.producers.ended(self.now) {
            if let Err(failure) = self.renew_producer(producer) {
                return each(Report::Failed(failure));
            }
        }
        let now = self.now;
        if let Some(ended) = self.producers.take_search_producer(Client::has_ended) {
            self.renew_search_producer(Some(ended));
        }
        while let Some((target, is_search_producer)) = self.partitions.forgotten(now) {
            tracing::warn!(
                topic = self.topics.name(target.topic),
                partition = target.partition,
                "Kafka has not answered for hours; a new producer sends again what is in flight, so records may repeat; no data lost"
            );
            if is_search_producer {
                let silent = self.producers.take_search_producer(|_| true);
                self.renew_search_producer(silent);
            } else if let Err(failure) = self.renew_producer(target.producer) {
                return each(Report::Failed(failure));
            }
        }
        let mut given_up = false;
        for (client, since) in &mut self.retired {
            if now.saturating_duration_since(*since) >= ANSWERED_WITHIN {
                client.producer().purge(PurgeConfig::default().queue().inflight().non_blocking());
                *since = now;
                given_up = true;
            }
        }
        if given_up {
            // Records that are sent again must not arrive before bytes of the old connections. The other producers send their requests again
            // over new connections, and the brokers know the repeats.
            self.sockets.reset();
        }
        while let Some(at) = self.retired.iter().position(|(client, _)| client.producer().in_flight_count() == 0) {
            retire(self.retired.swap_remove(at).0);
        }
    }

    fn renew_producer(&mut self, producer: u8) -> Result<(), Failure> {
        if self.producers.is_fruitless(producer, self.now) {
            // A new producer would end in the same way. The relay starts over from the confirmed position, after a pause.
            let fatal = self.producers.fatal(producer);
            return Err(fatal.unwrap_or_else(|| errors::client("the Kafka producer has ended")));
        }
        self.put_new_producer(producer)
    }

    /// Replaces all producers, which were purged, with new ones. Each partition has to be proven again. The old ones stay until their last
    /// reports have come.
    pub(in crate::sink::kafka) fn replace_purged(&mut self) -> Result<(), Failure> {
        self.now = Instant::now();
        for producer in 0..self.producers.count() {
            self.put_new_producer(producer)?;
        }
        let search_producer = self.producers.take_search_producer(|_| true);
        self.renew_search_producer(search_producer);
        Ok(())
    }

    fn put_new_producer(&mut self, producer: u8) -> Result<(), Failure> {
        let fresh = self.settings.producer().map_err(errors::client)?;
        let old = self.producers.replace(producer, fresh).map_err(errors::client)?;
        self.retire_later(old);
        self.partitions.producer_renewed(producer, self.now);
        Ok(())
    }

    fn renew_search_producer(&mut self, old: Option<Client>) {
        if let Some(client) = old {
            self.retire_later(client);
        }
        self.partitions.search_producer_renewed(self.now);
    }

    /// Keeps an ended producer until its reports have come. Purges the records that it has not sent, for which no report would ever come.
    fn retire_later(&mut self, ended: Client) {
        ended.producer().purge(PurgeConfig::default().queue().non_blocking());
        self.retired.push((ended, self.now));
    }

    /// Logs the events of partitions.
    pub(in crate::sink::kafka) fn log_events(&mut self) {
        for (PartitionTarget { topic, partition, .. }, event) in self.partitions.take_events() {
            let topic = self.topics.name(topic);
            match event {
                Event::Searching { records } => {
                    tracing::warn!(
                        topic,
                        partition,
                        records,
                        "broker rejected a batch; searching for the record, only its partition waits"
                    );
                }
                Event::SmallerBatches { bytes } => {
                    tracing::warn!(
                        topic,
                        partition,
                        bytes,
                        "broker rejected a batch but no single record; reducing batch size"
                    );
                }
                Event::SearchEnded => tracing::info!(topic, partition, "partition accepts batches again"),
            }
        }
    }
}

/// The present time in milliseconds since 1970.
fn present_millis() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
