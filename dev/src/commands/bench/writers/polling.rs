//! The relay that most teams write first: a worker that looks every 100 ms for rows not yet published, takes 100 of them under
//! locks, publishes them, and marks them.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ::postgres::Client;
use anyhow::Result;
use rdkafka::ClientConfig;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use walrelay_dev::background::Background;

/// What its table has besides, as such tables do.
pub(super) const COLUMNS: &str = "
ALTER TABLE outbox ADD COLUMN seq bigserial, ADD COLUMN published_at timestamptz;
CREATE INDEX outbox_unpublished ON outbox (seq) WHERE published_at IS NULL;
";

const EVERY: Duration = Duration::from_millis(100);

const TAKE: &str = "SELECT seq, id::text, aggregate_id, event_type, payload::text FROM outbox
                    WHERE published_at IS NULL ORDER BY seq LIMIT 100 FOR UPDATE SKIP LOCKED";

const MARK: &str = "UPDATE outbox SET published_at = now() WHERE seq = ANY($1)";

/// Starts the worker, in a thread of its own.
pub(super) fn start(mut client: Client, config: &ClientConfig, topic: &str) -> Result<Background<()>> {
    let mut config = config.clone();
    config.set("acks", "all").set("enable.idempotence", "true").set("linger.ms", "1");
    let (producer, topic) = (config.create::<BaseProducer>()?, topic.to_owned());
    Ok(Background::start(move |stop| {
        while !stop.load(Ordering::Relaxed) {
            let due = Instant::now() + EVERY;
            look(&mut client, &producer, &topic)?;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        }
        Ok(())
    }))
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
