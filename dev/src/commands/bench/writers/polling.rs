//! The relay that most teams write first: a worker that looks every 100 ms for rows not yet published, takes 100 of them under
//! locks, publishes them, and marks them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ::postgres::Client;
use anyhow::{Result, anyhow};
use rdkafka::ClientConfig;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};

/// What its table has besides, as such tables do.
pub(super) const COLUMNS: &str = "
ALTER TABLE outbox ADD COLUMN seq bigserial, ADD COLUMN published_at timestamptz;
CREATE INDEX outbox_unpublished ON outbox (seq) WHERE published_at IS NULL;
";

const EVERY: Duration = Duration::from_millis(100);

const TAKE: &str = "SELECT seq, id::text, aggregate_id, event_type, payload::text FROM outbox
                    WHERE published_at IS NULL ORDER BY seq LIMIT 100 FOR UPDATE SKIP LOCKED";

const MARK: &str = "UPDATE outbox SET published_at = now() WHERE seq = ANY($1)";

/// The worker, in a thread of its own.
pub(super) struct Polling {
    thread: Option<JoinHandle<Result<()>>>,
    stop: Arc<AtomicBool>,
}

impl Polling {
    pub(super) fn start(mut client: Client, config: &ClientConfig, topic: &str) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut config = config.clone();
        config.set("acks", "all").set("enable.idempotence", "true").set("linger.ms", "1");
        let (producer, topic, asked) = (config.create::<BaseProducer>()?, topic.to_owned(), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            while !asked.load(Ordering::Relaxed) {
                let due = Instant::now() + EVERY;
                look(&mut client, &producer, &topic)?;
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
            }
            Ok(())
        });
        Ok(Self { thread: Some(thread), stop })
    }

    pub(super) fn end(&mut self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().map_or(Ok(()), |thread| thread.join().map_err(|_| anyhow!("the polling worker panicked"))?)
    }
}

impl Drop for Polling {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn look(client: &mut Client, producer: &BaseProducer, topic: &str) -> Result<()> {
    let mut transaction = client.transaction()?;
    let rows = transaction.query(TAKE, &[])?;
    for row in &rows {
        let (id, key, kind, payload): (&str, &str, &str, &str) = (row.get(1), row.get(2), row.get(3), row.get(4));
        let headers = OwnedHeaders::new_with_capacity(2)
            .insert(Header { key: "id", value: Some(id) })
            .insert(Header { key: "eventType", value: Some(kind) });
        producer.send(BaseRecord::to(topic).key(key).payload(payload).headers(headers)).map_err(|(error, _)| error)?;
    }
    producer.flush(Duration::from_secs(30))?;
    let published: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
    if !published.is_empty() {
        transaction.execute(MARK, &[&published])?;
    }
    Ok(transaction.commit()?)
}
