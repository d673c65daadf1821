//! The search for a refused record, with one request of the search producer at a time.
//!
//! In: a partition without records under way, and its failed records. Out: requests to [`Clients`], and the record that is refused alone,
//! which is held (`resolving`). The search sends halves of a refused batch, so that N suspects cost about log2 N requests. If the answer is in no
//! list, it sends sixteenths, and the record that is refused alone is sent again after pauses that grow (`trials`).

use super::partition::{CALM, PartitionState, Search, UNLISTED_PARTS, WINDOW_HOLDS};
use super::{Clients, Event, NotTaken, Partitions};
use crate::sink::FailureClass;
use std::time::Instant;

impl Partitions {
    /// Decides on the next state after a failure, once no record is under way.
    pub(super) fn drained(&mut self, at: u32, now: Instant) {
        let Some(partition) = self.list.get_mut(at as usize) else { return };
        let bytes =
            partition.returned.iter().filter(|returned| returned.refused).map(|returned| returned.queued.bytes).sum();
        let records = partition.returned.len();
        let suspects = partition.take_back();
        let Some(failure) = partition.cause.take() else {
            partition.state = PartitionState::Unproven;
            return;
        };
        match failure.class {
            FailureClass::Row => {
                partition.search = Search::of(suspects, bytes, now);
                if suspects == 1 {
                    self.hold(at, failure);
                } else {
                    partition.state = PartitionState::Searching;
                    partition.is_announced = true;
                    self.events.push((partition.target, Event::Searching { records }));
                }
            }
            FailureClass::Topic => {
                partition.search = Search::of(0, 0, now);
                self.hold(at, failure);
            }
            FailureClass::Environment | FailureClass::LogIn => {
                partition.search = Search::of(0, 0, now);
                partition.rest(now, failure);
            }
            FailureClass::Unlisted => {
                partition.search = Search { parts: UNLISTED_PARTS, ..Search::of(suspects, 0, now) };
                if suspects == 1 {
                    self.try_alone(at, failure, now);
                } else {
                    partition.obstacle = Some(failure);
                    partition.state = PartitionState::Searching;
                    partition.is_announced = true;
                    self.events.push((partition.target, Event::Searching { records }));
                }
            }
            FailureClass::Client => partition.state = PartitionState::Unproven,
        }
    }

    /// Sends the next request of the search. The request before has been answered.
    pub(super) fn continue_search(&mut self, at: u32, now: Instant, clients: &mut impl Clients) {
        if !self.attempted(at, now) {
            return;
        }
        let Self { list, pool, room, flushes, events, .. } = self;
        let Some(partition) = list.get_mut(at as usize) else { return };
        let Search { suspects, since, .. } = partition.search;
        if suspects == 0 && now.saturating_duration_since(since) >= CALM {
            partition.state = PartitionState::Unproven;
            if std::mem::take(&mut partition.is_announced) {
                events.push((partition.target, Event::SearchEnded));
            }
            return self.pump(at, now, clients);
        }
        let most = clients.request_bytes().min(partition.window.map_or(u64::MAX, |(bytes, _)| bytes));
        let next = partition.search.next(partition.queue.len());
        let (target, mut attempt) = (partition.target, 0);
        while attempt < next
            && let Some(front) = partition.queue.front()
            && (attempt == 0 || partition.under_way_bytes + front.bytes <= most)
        {
            let (bytes, ticket) = (front.bytes, front.ticket);
            match front.record.with_record(room, |record| clients.collect(target, record, ticket)) {
                Ok(()) => {
                    partition.sent(bytes, u64::MAX, now, *flushes);
                    partition.queue.pop_front().into_iter().for_each(|queued| pool.keep(queued.record));
                    attempt += 1;
                }
                Err(NotTaken::Later) => break,
                Err(NotTaken::Refused(failure)) => {
                    if attempt == 0 {
                        return self.hold(at, failure);
                    }
                    break;
                }
            }
        }
        partition.search.attempt = attempt;
        partition.search.attempt_bytes = partition.under_way_bytes;
        if attempt > 0 {
            clients.send_collected();
        }
    }

    /// Draws the conclusion from the last request of a search. Returns whether another may be sent.
    fn attempted(&mut self, at: u32, now: Instant) -> bool {
        let Some(partition) = self.list.get_mut(at as usize) else { return false };
        let attempt = std::mem::take(&mut partition.search.attempt);
        if attempt == 0 {
            return true;
        }
        let returned = partition.returned.len();
        let suspects = partition.take_back();
        let outdated = std::mem::take(&mut partition.search.outdated);
        let Some(failure) = partition.cause.take() else {
            let search = &mut partition.search;
            search.proven |= !outdated;
            search.suspects = search.suspects.saturating_sub(attempt);
            if search.suspects == 0 && !search.found && search.refused_bytes > 0 {
                let bytes = (std::mem::take(&mut search.refused_bytes) / 2).max(1);
                partition.window = Some((bytes, now + WINDOW_HOLDS));
                self.events.push((partition.target, Event::SmallerBatches { bytes }));
            }
            return true;
        };
        partition.search.proven = false;
        match failure.class {
            FailureClass::Row => {
                partition.search.refused(suspects, partition.search.attempt_bytes, now);
                if returned == 1 {
                    partition.search.found = true;
                    self.hold(at, failure);
                    return false;
                }
                true
            }
            FailureClass::Topic => {
                self.hold(at, failure);
                false
            }
            FailureClass::Environment | FailureClass::LogIn => {
                partition.rest(now, failure);
                false
            }
            FailureClass::Unlisted => {
                (partition.search.suspects, partition.search.since) = (suspects, now);
                partition.search.parts = UNLISTED_PARTS;
                if returned == 1 {
                    self.try_alone(at, failure, now);
                    return false;
                }
                partition.obstacle = Some(failure);
                true
            }
            FailureClass::Client => true,
        }
    }
}
