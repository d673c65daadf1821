//! Ends clients that are not needed any more, on threads of their own.
//!
//! The end of a librdkafka client waits for its threads. One of them may be in `getaddrinfo`, which nothing interrupts: if name servers do
//! not answer, for half a minute and longer. The thread that enqueues must not wait for that.
//!
//! In: a client. Out: nothing. [`purge_all`] empties producers, and waits for that for [`PURGED_WITHIN`] at most. A thread of librdkafka
//! that is looking a name up until then sends nothing, and purges before it sends anything.

use rdkafka::producer::{BaseProducer, NoCustomPartitioner, Producer as _, ProducerContext, PurgeConfig};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::Builder;
use std::time::Duration;

/// How long the caller waits for the purge.
const PURGED_WITHIN: Duration = Duration::from_secs(1);

/// A client that ends on a thread of its own when it is dropped. It has nothing to purge.
pub(super) struct Retirable<T: Send + 'static>(Option<T>);

impl<T: Send + 'static> Retirable<T> {
    pub(super) fn new(client: T) -> Self {
        Self(Some(client))
    }
}

impl<T: Send + 'static> Deref for Retirable<T> {
    type Target = T;

    fn deref(&self) -> &T {
        let Some(client) = &self.0 else { panic!("a client is used after its end") };
        client
    }
}

impl<T: Send + 'static> Drop for Retirable<T> {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(retire);
    }
}

/// Ends a client on a thread of its own. A producer's end purges what it has. The caller has purged it before, if nothing may leave any more.
pub(super) fn retire<T: Send + 'static>(client: T) {
    on_a_thread("end", move || drop(client));
}

/// Purges all producers at once: the records in their queues, and those that were sent and have no report. Waits for a second at most: a
/// thread that does not answer by then is looking up a name, and has no connection.
pub(super) fn purge_all<C: ProducerContext<NoCustomPartitioner> + 'static>(
    producers: impl Iterator<Item = Arc<BaseProducer<C>>>,
) {
    // If the caller has dropped its pointer, a producer ends with its purge.
    wait_for(producers.map(|producer| move || producer.purge(PurgeConfig::default().queue().inflight())));
}

/// Does each of the purges on a thread of its own, and waits for all of them for [`PURGED_WITHIN`] at most.
fn wait_for(purges: impl Iterator<Item = impl FnOnce() + Send + 'static>) {
    let (sender, done) = mpsc::channel::<()>();
    for purge in purges {
        let sender = sender.clone();
        on_a_thread("purge", move || {
            purge();
            drop(sender);
        });
    }
    drop(sender);
    // The channel is disconnected once all purges are done.
    if done.recv_timeout(PURGED_WITHIN) == Err(RecvTimeoutError::Timeout) {
        tracing::debug!("a Kafka client's threads do not answer: it is purged later");
    }
}

/// Does the end or the purge of a client on a thread of its own. Without a thread, `work` is dropped here, and with it the client that it owns.
fn on_a_thread(what: &str, work: impl FnOnce() + Send + 'static) {
    if let Err(error) = Builder::new().name(format!("kafka-{what}")).spawn(work) {
        tracing::debug!(%error, "no thread for the {what} of a Kafka client");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::iter::once;
    use std::sync::mpsc::{Receiver, Sender};
    use std::time::Instant;

    /// Ends only when it may.
    struct Stuck {
        may_end: Receiver<()>,
        ended: Sender<()>,
    }

    impl Drop for Stuck {
        fn drop(&mut self) {
            self.may_end.recv().ok();
            self.ended.send(()).ok();
        }
    }

    fn stuck() -> (Stuck, Sender<()>, Receiver<()>) {
        let (let_end, may_end) = mpsc::channel();
        let (ended, end) = mpsc::channel();
        (Stuck { may_end, ended }, let_end, end)
    }

    #[test]
    fn a_client_whose_threads_do_not_end_keeps_nobody_waiting() {
        let (client, let_end, end) = stuck();
        // On this thread it would wait for what comes only below.
        retire(client);
        assert!(end.try_recv().is_err(), "it has not ended yet");
        let_end.send(()).unwrap();
        end.recv_timeout(Duration::from_mins(1)).unwrap();
    }

    #[test]
    fn the_purge_is_over_before_anything_else_is_done_unless_it_takes_for_ever() {
        let (purged, was_purged) = mpsc::channel();
        wait_for(once(move || purged.send(()).unwrap()));
        was_purged.try_recv().expect("it was waited for");
        let (let_purge, may_purge) = mpsc::channel::<()>();
        let began = Instant::now();
        wait_for(once(move || assert!(may_purge.recv().is_err(), "nobody says so")));
        assert!(began.elapsed() < Duration::from_secs(30), "it is not waited for without end");
        drop(let_purge);
    }
}
