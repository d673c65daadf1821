//! Writers that write at a rate until they are stopped, [`BATCH`] rows a transaction.
//!
//! In: where, how fast. Out: rows whose payload begins with their number within their key. The table `soak_keys` holds the last number
//! of each key, changed by the statement that inserts the rows: it is the truth, whatever became of an answer.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ::postgres::types::Type;
use ::postgres::{Client, NoTls};
use anyhow::Result;
use walrelay_dev::background::Background;
use walrelay_dev::shop;

/// Connections that share the rate.
const CONNECTIONS: u64 = 4;

/// Keys of each connection.
const KEYS: u64 = 64;

/// Rows to a transaction.
pub(super) const BATCH: u64 = 10;

/// How long until a lost connection is made again.
const REST: Duration = Duration::from_millis(200);

/// A writer never catches up with more than this, so that an outage does not end in a flood.
const MOST_BEHIND: Duration = Duration::from_secs(1);

const TABLES: &str = "
CREATE TABLE outbox (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    aggregatetype text NOT NULL,
    aggregateid text NOT NULL,
    type text NOT NULL,
    payload text,
    created_at timestamptz NOT NULL DEFAULT now()
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000);
CREATE TABLE soak_keys (key text PRIMARY KEY, seq bigint NOT NULL)
    WITH (fillfactor = 10, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0);";

const WRITE: &str = "
WITH taken AS (UPDATE soak_keys SET seq = seq + $2 WHERE key = $1 RETURNING seq)
INSERT INTO outbox (aggregatetype, aggregateid, type, payload)
SELECT 'soak', $1, 'Written', rpad((taken.seq - $2 + n)::text || ' ', $3, 'payload ')
  FROM taken, generate_series(1, $2) AS n ORDER BY n";

/// Writers that run.
pub(super) struct Writers(Vec<Background<u64>>);

/// The outbox and the truth.
pub(super) fn create_tables(client: &mut Client) -> Result<()> {
    client.batch_execute(TABLES)?;
    let keys: Vec<String> = (0..CONNECTIONS * KEYS).map(name).collect();
    client.execute("INSERT INTO soak_keys SELECT unnest($1::text[]), 0", &[&keys])?;
    Ok(())
}

fn name(key: u64) -> String {
    format!("key-{key}")
}

impl Writers {
    /// Starts them.
    pub(super) fn start(source: &str, rate: u64, payload: i32) -> Self {
        let pause =
            Duration::from_secs(CONNECTIONS * BATCH).div_f64(f64::from(u32::try_from(rate.max(1)).unwrap_or(u32::MAX)));
        let write = |connection: u64| {
            let source = source.to_owned();
            Background::start(move |stop| write(&source, connection, pause, payload, stop))
        };
        Self((0..CONNECTIONS).map(write).collect())
    }

    /// Stops them. Returns how many transactions were acknowledged.
    pub(super) fn stop(self) -> Result<u64> {
        self.0.into_iter().map(Background::stop).sum()
    }
}

/// A transaction after each pause, until it is stopped; a lost connection is made again.
fn write(source: &str, connection: u64, pause: Duration, payload: i32, stop: &AtomicBool) -> Result<u64> {
    let mut written = 0;
    while !stop.load(Ordering::Relaxed) {
        match write_connected(source, connection, pause, payload, stop, &mut written) {
            Err(error) if !shop::is_lost(&error) => return Err(error.into()),
            Err(_) => std::thread::sleep(REST),
            Ok(()) => {}
        }
    }
    Ok(written)
}

fn write_connected(
    source: &str,
    connection: u64,
    pause: Duration,
    payload: i32,
    stop: &AtomicBool,
    written: &mut u64,
) -> Result<(), ::postgres::Error> {
    let mut client = Client::connect(source, NoTls)?;
    let statement = client.prepare_typed(WRITE, &[Type::TEXT, Type::INT8, Type::INT4])?;
    let batch = i64::try_from(BATCH).unwrap_or(1);
    let mut due = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        due = (due + pause).max(Instant::now().checked_sub(MOST_BEHIND).unwrap_or(due));
        // Each connection has its own keys, in turn.
        let key = name(connection * KEYS + *written % KEYS);
        client.execute(&statement, &[&key, &batch, &payload])?;
        *written += 1;
    }
    Ok(())
}
