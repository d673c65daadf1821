//! Load that knows its own truth.
//!
//! In: a database and how busy to be. Out: transactions from several connections at once, in every shape or in
//! the plain ones only; and, written in the same transactions, tables `truth` and `truth_bad` with what consumers must see.
//!
//! Invariant: per key, the sequence numbers of committed rows are 1, 2, 3, … in commit order. A number is taken under
//! the lock of the key's row in `shop_keys`, which is held until after the commit record is written, and goes back
//! with a rollback.

pub mod ddl;
mod options;
mod trade;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ::postgres::{Client, NoTls};
use anyhow::{Context as _, Result};
use parking_lot::Mutex;
use rand::SeedableRng as _;
use rand::rngs::StdRng;

use crate::background::Background;
pub use options::{KINDS, MESSAGE_PREFIX, OVERSIZE, Options, Shapes, new_id};
use trade::Trader;

/// Debezium's outbox.
const OUTBOX: &str = "
CREATE TABLE IF NOT EXISTS outbox (
    id uuid PRIMARY KEY,
    aggregatetype text NOT NULL,
    aggregateid text NOT NULL,
    type text NOT NULL,
    payload jsonb
);";

/// The same in partitions, one for each era; new eras can be made at any time.
const OUTBOX_OF_ERAS: &str = "
CREATE TABLE IF NOT EXISTS outbox (
    id uuid NOT NULL,
    aggregatetype text NOT NULL,
    aggregateid text NOT NULL,
    type text NOT NULL,
    payload jsonb,
    era integer NOT NULL DEFAULT 0,
    PRIMARY KEY (id, era)
) PARTITION BY LIST (era);
CREATE TABLE IF NOT EXISTS outbox_of_era_0 PARTITION OF outbox FOR VALUES IN (0);";

/// What a shop has beside its outbox, and the truth.
const TABLES: &str = "
CREATE TABLE IF NOT EXISTS orders (id uuid PRIMARY KEY, customer text NOT NULL, total numeric NOT NULL);
CREATE TABLE IF NOT EXISTS shop_keys (key text PRIMARY KEY, seq bigint NOT NULL)
    WITH (fillfactor = 10, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0);
CREATE TABLE IF NOT EXISTS truth (id text PRIMARY KEY, key text NOT NULL, seq bigint NOT NULL, md5 text NOT NULL);
CREATE TABLE IF NOT EXISTS truth_bad (id text PRIMARY KEY, key text NOT NULL, md5 text NOT NULL);
";

/// `$1` to `$2` are the rows' numbers, `$3` is how many keys.
const BULK: &str = "
WITH sent AS (
    INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload)
    SELECT gen_random_uuid(), 'order', 'order-bulk-' || (n - 1) % $3::bigint, 'Bulk',
        jsonb_build_object('seq', (n - 1) / $3::bigint + 1, 'text', repeat(md5(n::text), 8))
    FROM generate_series($1::bigint, $2::bigint) AS n
    RETURNING id, aggregateid, payload
)
INSERT INTO truth SELECT id::text, aggregateid, (payload->>'seq')::bigint, md5(payload::text) FROM sent";

/// What has been done so far. After a lost connection the table `truth` alone knows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Outbox rows committed.
    pub committed: u64,
    /// Outbox rows written and rolled back, with their savepoint or their transaction.
    pub rolled_back: u64,
    /// Transactions committed with at least one row.
    pub transactions: u64,
}

/// A shop at work; it ends soon after it is dropped.
#[derive(Debug)]
pub struct Shop {
    tally: Arc<Mutex<Tally>>,
    workers: Vec<Background<()>>,
}

/// Makes the shop's tables and keys.
///
/// # Errors
/// The database refuses.
pub fn create_tables(client: &mut Client, options: &Options) -> Result<()> {
    let outbox = if options.shapes == Shapes::Plain { OUTBOX } else { OUTBOX_OF_ERAS };
    client.batch_execute(&format!("{outbox}{TABLES}")).context("cannot create the shop's tables")?;
    for kind in KINDS {
        let keys = (0..options.keys).map(|number| format!("{kind}-{number}"));
        let own = (0..=options.connections).map(|number| format!("{kind}-own-{number}"));
        let keys: Vec<String> = keys.chain(own).collect();
        client.execute("INSERT INTO shop_keys SELECT unnest($1::text[]), 0 ON CONFLICT DO NOTHING", &[&keys])?;
    }
    Ok(())
}

/// Rows that were numbered before, in one transaction: each number is a row, dealt out among `keys` keys in turn. One
/// connection writes the ranges in their order.
///
/// # Errors
/// The database refuses.
pub fn bulk(client: &mut Client, numbers: std::ops::RangeInclusive<i64>, keys: i64) -> Result<()> {
    client.execute(BULK, &[numbers.start(), numbers.end(), &keys])?;
    Ok(())
}

/// The topics that the relay's default template gives the shop's rows.
pub fn topics() -> [String; KINDS.len()] {
    KINDS.map(|kind| format!("outbox.event.{kind}"))
}

impl Shop {
    /// Starts the writers; the tables must be there.
    ///
    /// # Errors
    /// A first connection cannot be made. Later ones are tried again until the shop is stopped.
    pub fn open(url: &str, options: &Options) -> Result<Self> {
        drop(Client::connect(url, NoTls).context("the shop cannot reach its database")?);
        let tally = Arc::new(Mutex::new(Tally::default()));
        let start = |number: u32| {
            let (url, options, tally) = (url.to_owned(), options.clone(), Arc::clone(&tally));
            Background::start(move |stop| work(&url, &options, &tally, u64::from(number), stop))
        };
        let workers = (0..options.connections).map(start).collect();
        Ok(Self { tally, workers })
    }

    /// What has been done so far.
    pub fn tally(&self) -> Tally {
        *self.tally.lock()
    }

    /// Whether it has reached its number of rows.
    pub fn is_done(&self) -> bool {
        self.workers.iter().all(Background::is_finished)
    }

    /// Lets every connection finish its transaction, and tells what was done.
    ///
    /// # Errors
    /// A transaction failed for another reason than a lost connection.
    pub fn close(self) -> Result<Tally> {
        self.workers.into_iter().try_for_each(Background::stop)?;
        Ok(*self.tally.lock())
    }

    /// Waits until the number of rows is reached.
    ///
    /// # Errors
    /// As [`Shop::close`].
    pub fn finish(self) -> Result<Tally> {
        self.workers.into_iter().try_for_each(Background::finish)?;
        Ok(*self.tally.lock())
    }
}

impl Tally {
    fn add(&mut self, written: trade::Written) {
        self.committed += written.kept;
        self.rolled_back += written.undone;
        self.transactions += u64::from(written.kept > 0);
    }
}

/// Writes transactions over one connection, which is made again if it is lost.
fn work(url: &str, options: &Options, tally: &Mutex<Tally>, number: u64, stop: &AtomicBool) -> Result<()> {
    let mut rng = StdRng::seed_from_u64(options.seed.wrapping_mul(1_000_003).wrapping_add(number));
    let goes_on = || !stop.load(Ordering::SeqCst) && tally.lock().committed < options.rows.unwrap_or(u64::MAX);
    let mut work_connected = || -> Result<(), ::postgres::Error> {
        let mut client = Client::connect(url, NoTls)?;
        let trader = Trader::prepare(&mut client, options, number)?;
        while goes_on() {
            let written = trader.trade(&mut client, &mut rng)?;
            tally.lock().add(written);
            std::thread::sleep(options.pause);
        }
        Ok(())
    };
    while goes_on() {
        match work_connected() {
            Err(error) if !is_lost(&error) => return Err(error.into()),
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
            Ok(()) => {}
        }
    }
    Ok(())
}

/// Whether the connection broke, the server is on its way down or up, or a deadlock chose us: the transaction is undone.
pub fn is_lost(error: &::postgres::Error) -> bool {
    let Some(code) = error.code().map(|code| code.code().to_owned()) else { return true };
    code.starts_with("57P") || code.starts_with("08") || code.starts_with("40")
}
