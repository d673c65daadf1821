//! [`PagedDeadLetters`]: reads a dead-letter address page by page, and removes records that were published again.
//!
//! In: pages of records, from a server that is asked anew for each. Out: the records, one by one. If the server is unavailable, the command
//! waits, and asks again. A pause blocks the thread.

use crate::sink::destination::{DeadLetterId, DeadLetters, KeptRecord, NextKept};
use crate::sink::{Failure, FailureClass, OwnedRecord};
use std::collections::VecDeque;
use std::thread;
use std::time::{Duration, Instant};

/// How long the server may be unavailable. After that the command fails: nothing is lost, and it can be run again.
const AT_MOST: Duration = Duration::from_mins(1);

/// The pause before the server is asked again.
const PAUSE: Duration = Duration::from_millis(100);

/// A dead-letter address whose server gives its records in pages, and keeps no note of those that were published again.
pub trait DeadLetterPages {
    /// Reads the next records, up to the last one at the beginning. Empty: there are no more.
    ///
    /// # Errors
    /// The server does not answer, or refuses. The same page is read again then.
    fn page(&mut self) -> Result<VecDeque<KeptRecord>, Failure>;

    /// Removes records. Some may have been removed before.
    ///
    /// # Errors
    /// The server does not answer, or refuses.
    fn remove(&mut self, places: &[DeadLetterId]) -> Result<(), Failure>;
}

/// The reading of a dead-letter address.
pub struct PagedDeadLetters<P> {
    pages: P,
    count: u64,
    read: VecDeque<KeptRecord>,
    /// The last page has been read.
    ended: bool,
    outage: Outage,
}

impl<P: DeadLetterPages> PagedDeadLetters<P> {
    /// Begins to read. `count`: how many records there may be.
    pub fn new(pages: P, count: u64) -> Self {
        Self { pages, count, read: VecDeque::new(), ended: false, outage: Outage::default() }
    }
}

impl<P: DeadLetterPages> DeadLetters for PagedDeadLetters<P> {
    fn next(&mut self) -> Result<NextKept, Failure> {
        if let Some(kept) = self.read.pop_front() {
            return Ok(NextKept::Kept(kept));
        }
        if self.ended {
            return Ok(NextKept::End);
        }
        match self.pages.page() {
            Ok(read) => {
                self.outage = Outage::default();
                self.ended = read.is_empty();
                self.read = read;
            }
            Err(failure) => self.outage.wait(failure)?,
        }
        Ok(NextKept::Waiting)
    }

    fn count(&self) -> u64 {
        self.count
    }

    fn mark_replayed(&mut self, places: &[DeadLetterId]) -> Result<Vec<OwnedRecord>, Failure> {
        while let Err(failure) = self.pages.remove(places) {
            self.outage.wait(failure)?;
        }
        self.outage = Outage::default();
        Ok(Vec::new())
    }
}

/// A server that may be unavailable, and since when it is.
#[derive(Debug, Default)]
struct Outage(Option<Instant>);

impl Outage {
    /// Waits a moment, or returns the failure if waiting has no use.
    fn wait(&mut self, failure: Failure) -> Result<(), Failure> {
        let since = *self.0.get_or_insert_with(Instant::now);
        if failure.class != FailureClass::Environment || since.elapsed() >= AT_MOST {
            return Err(failure);
        }
        thread::sleep(PAUSE);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::Record;

    /// Pages that are taken from the end. An error is a page that cannot be read.
    struct Pages(Vec<Result<usize, FailureClass>>);

    impl DeadLetterPages for Pages {
        fn page(&mut self) -> Result<VecDeque<KeptRecord>, Failure> {
            let kept = || {
                let record = Record {
                    topic: "dead",
                    key: None,
                    value: None,
                    headers: &[],
                    timestamp_millis: 0,
                    partition: None,
                    content: crate::sink::Content::Unknown,
                };
                let place = DeadLetterId { major: 0, between: None, minor: 7 };
                KeptRecord { id: place, replayed: false, record: OwnedRecord::of(&record) }
            };
            let page = self.0.pop().unwrap_or(Ok(0)).map_err(|class| Failure::new(class, "x", "no"))?;
            Ok((0..page).map(|_| kept()).collect())
        }

        fn remove(&mut self, _places: &[DeadLetterId]) -> Result<(), Failure> {
            self.page().map(drop)
        }
    }

    fn shown(reading: &mut PagedDeadLetters<Pages>) -> String {
        match reading.next() {
            Ok(NextKept::Kept(_)) => "record".to_owned(),
            Ok(NextKept::Waiting) => "waits".to_owned(),
            Ok(NextKept::End) => "end".to_owned(),
            Err(failure) => format!("{:?}", failure.class),
        }
    }

    #[test]
    fn records_come_page_by_page_and_an_unavailable_server_is_asked_again_for_a_minute() {
        let unavailable = Err(FailureClass::Environment);
        let mut reading = PagedDeadLetters::new(Pages(vec![Ok(0), Ok(1), unavailable, Ok(2)]), 3);
        let found: Vec<String> = (0..9).map(|_| shown(&mut reading)).collect();
        assert_eq!(found, ["waits", "record", "record", "waits", "waits", "record", "waits", "end", "end"]);
        assert_eq!(reading.count(), 3);
        let mut reading = PagedDeadLetters::new(Pages(vec![unavailable, unavailable]), 1);
        assert_eq!(shown(&mut reading), "waits");
        reading.outage = Outage(Instant::now().checked_sub(AT_MOST));
        assert_eq!(shown(&mut reading), "Environment");
    }

    #[test]
    fn what_an_operator_has_to_fix_is_not_waited_for() {
        let mut reading = PagedDeadLetters::new(Pages(vec![Err(FailureClass::Topic)]), 1);
        assert_eq!(shown(&mut reading), "Topic");
        reading.pages.0 = vec![Err(FailureClass::Topic), Err(FailureClass::Environment)];
        assert_eq!(reading.mark_replayed(&[]).unwrap_err().class, FailureClass::Topic, "after it was asked again");
    }
}
