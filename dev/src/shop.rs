//! Load that knows its own truth.
//!
//! In: a database and how busy to be. Out: transactions from several connections at once, each of 1 to 20 rows of
//! `orders` and `outbox`, with savepoints, nested savepoints, partial and whole rollbacks; and, written in the same
//! transactions, a table `truth` with what a consumer must see.
//!
//! Invariant: per key, the sequence numbers of committed rows are 1, 2, 3, … in commit order. A number is taken under
//! the lock of the key's row in `shop_keys`, which is held until after the commit record is written, and goes back
//! with a rollback.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ::postgres::{Client, NoTls, Statement, Transaction};
use anyhow::{Context as _, Result, anyhow};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, SeedableRng as _};

/// The tables: Debezium's outbox, what a shop has beside it, and the truth.
const TABLES: &str = "
CREATE TABLE IF NOT EXISTS outbox (
    id uuid PRIMARY KEY,
    aggregatetype text NOT NULL,
    aggregateid text NOT NULL,
    type text NOT NULL,
    payload jsonb
);
CREATE TABLE IF NOT EXISTS orders (id uuid PRIMARY KEY, customer text NOT NULL, total numeric NOT NULL);
CREATE TABLE IF NOT EXISTS shop_keys (key text PRIMARY KEY, seq bigint NOT NULL)
    WITH (fillfactor = 10, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0);
CREATE TABLE IF NOT EXISTS truth (id text PRIMARY KEY, key text NOT NULL, seq bigint NOT NULL, md5 text NOT NULL);
";

/// Takes the locks of a transaction's keys, always in the same order, so that no two wait for each other.
const LOCK_KEYS: &str = "SELECT key FROM shop_keys WHERE key = ANY($1) ORDER BY key FOR UPDATE";

/// One row of everything. `$1` id, `$2` key, `$3` kind, `$4` total in cents, `$5` customer, `$6` wishes.
const PLACE: &str = "
WITH next AS (
    UPDATE shop_keys SET seq = seq + 1 WHERE key = $2 RETURNING seq
), placed AS (
    INSERT INTO orders SELECT $1::text::uuid, $5::text, $4::bigint / 100.0
), sent AS (
    INSERT INTO outbox
    SELECT $1::text::uuid, $3::text, $2, initcap($3) || 'Placed',
        jsonb_build_object('seq', seq, 'total', ($4::bigint / 100.0)::numeric(10, 2)::text, 'customer', $5::text,
            'wishes_of_customer', $6::text)
    FROM next
    RETURNING payload
)
INSERT INTO truth SELECT $1::text, $2, next.seq, md5(sent.payload::text) FROM next, sent";

/// What the aggregates are, and so which topics there are.
pub const KINDS: [&str; 2] = ["order", "invoice"];

/// Names that go wrong when text is re-encoded on its way.
const CUSTOMERS: [&str; 6] = ["Ada", "Zoë", "O'Brien", "李雷", "back\\slash \"quoted\"", "🦀 & <sons>"];

/// How busy the shop is.
#[derive(Debug, Clone)]
pub struct Options {
    /// Connections that write at once.
    pub connections: u32,
    /// Keys of each kind; few keys make connections wait for each other.
    pub keys: u32,
    /// Repeats the same choices; what the connections do to each other differs from run to run.
    pub seed: u64,
    /// Ends after about that many committed rows; `None`: when stopped.
    pub rows: Option<u64>,
    /// Between two transactions of one connection.
    pub pause: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { connections: 4, keys: 20, seed: 1, rows: None, pause: Duration::ZERO }
    }
}

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

/// A shop at work; it ends when dropped.
#[derive(Debug)]
pub struct Shop {
    counters: Arc<Counters>,
    workers: Vec<JoinHandle<Result<()>>>,
}

#[derive(Debug, Default)]
struct Counters {
    stop: AtomicBool,
    committed: AtomicU64,
    rolled_back: AtomicU64,
    transactions: AtomicU64,
}

/// Makes the shop's tables and keys.
///
/// # Errors
/// The database refuses.
pub fn create_tables(client: &mut Client, options: &Options) -> Result<()> {
    client.batch_execute(TABLES).context("cannot create the shop's tables")?;
    for kind in KINDS {
        let keys: Vec<String> = (0..options.keys).map(|number| format!("{kind}-{number}")).collect();
        client.execute("INSERT INTO shop_keys SELECT unnest($1::text[]), 0 ON CONFLICT DO NOTHING", &[&keys])?;
    }
    Ok(())
}

/// The topics that the relay's default template gives the shop's rows.
pub fn topics() -> [String; KINDS.len()] {
    KINDS.map(|kind| format!("outbox.event.{kind}"))
}

impl Shop {
    /// Opens for business; the tables must be there.
    ///
    /// # Errors
    /// A first connection cannot be made. Later ones are tried again until the shop is stopped.
    pub fn open(url: &str, options: &Options) -> Result<Self> {
        drop(Client::connect(url, NoTls).context("the shop cannot reach its database")?);
        let counters = Arc::new(Counters::default());
        let workers = (0..options.connections).map(|number| {
            let (url, options, counters) = (url.to_owned(), options.clone(), Arc::clone(&counters));
            std::thread::spawn(move || work(&url, &options, &counters, u64::from(number)))
        });
        let workers = workers.collect();
        Ok(Self { counters, workers })
    }

    /// What has been done so far.
    pub fn tally(&self) -> Tally {
        self.counters.tally()
    }

    /// Whether it has reached its number of rows.
    pub fn is_done(&self) -> bool {
        self.workers.iter().all(JoinHandle::is_finished)
    }

    /// Lets every connection finish its transaction, and tells what was done.
    ///
    /// # Errors
    /// A transaction failed for another reason than a lost connection.
    pub fn close(mut self) -> Result<Tally> {
        self.counters.stop.store(true, Ordering::SeqCst);
        self.join()
    }

    /// Waits until the number of rows is reached.
    ///
    /// # Errors
    /// As [`Shop::close`].
    pub fn finish(mut self) -> Result<Tally> {
        self.join()
    }

    fn join(&mut self) -> Result<Tally> {
        for worker in self.workers.drain(..) {
            worker.join().map_err(|_| anyhow!("a shop's thread panicked"))??;
        }
        Ok(self.tally())
    }
}

impl Drop for Shop {
    fn drop(&mut self) {
        self.counters.stop.store(true, Ordering::SeqCst);
        drop(self.join());
    }
}

impl Counters {
    fn tally(&self) -> Tally {
        Tally {
            committed: self.committed.load(Ordering::SeqCst),
            rolled_back: self.rolled_back.load(Ordering::SeqCst),
            transactions: self.transactions.load(Ordering::SeqCst),
        }
    }

    fn go_on(&self, options: &Options) -> bool {
        let wanted = options.rows.unwrap_or(u64::MAX);
        !self.stop.load(Ordering::SeqCst) && self.committed.load(Ordering::SeqCst) < wanted
    }
}

/// One connection's day; a lost connection is made again.
fn work(url: &str, options: &Options, counters: &Counters, number: u64) -> Result<()> {
    let mut rng = StdRng::seed_from_u64(options.seed.wrapping_mul(1_000_003).wrapping_add(number));
    while counters.go_on(options) {
        match work_connected(url, options, counters, &mut rng) {
            Err(error) if !is_lost(&error) => return Err(error.into()),
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
            Ok(()) => {}
        }
    }
    Ok(())
}

fn work_connected(
    url: &str,
    options: &Options,
    counters: &Counters,
    rng: &mut StdRng,
) -> Result<(), ::postgres::Error> {
    let mut client = Client::connect(url, NoTls)?;
    let statements = Statements { lock: client.prepare(LOCK_KEYS)?, place: client.prepare(PLACE)? };
    while counters.go_on(options) {
        trade(&mut client, &statements, options, counters, rng)?;
        std::thread::sleep(options.pause);
    }
    Ok(())
}

/// Whether the connection broke, or the server is on its way down or up.
fn is_lost(error: &::postgres::Error) -> bool {
    let Some(code) = error.code().map(|code| code.code().to_owned()) else { return true };
    code.starts_with("57P") || code.starts_with("08")
}

struct Statements {
    lock: Statement,
    place: Statement,
}

/// Rows that a part of a transaction wrote.
#[derive(Debug, Clone, Copy, Default)]
struct Written {
    kept: u64,
    undone: u64,
}

/// One transaction.
fn trade(
    client: &mut Client,
    statements: &Statements,
    options: &Options,
    counters: &Counters,
    rng: &mut StdRng,
) -> Result<(), ::postgres::Error> {
    let keys = choose_keys(rng, options.keys);
    let mut rows = rng.random_range(1..=20);
    let mut transaction = client.transaction()?;
    transaction.query(&statements.lock, &[&keys])?;
    let mut written = Written::default();
    while rows > 0 {
        let part = write_part(&mut transaction, &statements.place, &keys, &mut rows, 0, rng)?;
        written.kept += part.kept;
        written.undone += part.undone;
    }
    if rng.random_bool(0.1) {
        transaction.rollback()?;
        counters.rolled_back.fetch_add(written.kept + written.undone, Ordering::SeqCst);
        return Ok(());
    }
    transaction.commit()?;
    counters.committed.fetch_add(written.kept, Ordering::SeqCst);
    counters.rolled_back.fetch_add(written.undone, Ordering::SeqCst);
    counters.transactions.fetch_add(u64::from(written.kept > 0), Ordering::SeqCst);
    Ok(())
}

/// Writes a row, or a savepoint with some rows (or savepoints) inside, which is rolled back now and then.
fn write_part(
    transaction: &mut Transaction<'_>,
    place: &Statement,
    keys: &[String],
    rows: &mut u32,
    depth: u32,
    rng: &mut StdRng,
) -> Result<Written, ::postgres::Error> {
    if depth == 3 || rng.random_bool(0.85) {
        write_row(transaction, place, keys, rng)?;
        *rows -= 1;
        return Ok(Written { kept: 1, undone: 0 });
    }
    let mut savepoint = transaction.transaction()?;
    let mut written = Written::default();
    for _ in 0..rng.random_range(1..=4) {
        if *rows > 0 {
            let part = write_part(&mut savepoint, place, keys, rows, depth + 1, rng)?;
            written.kept += part.kept;
            written.undone += part.undone;
        }
    }
    if rng.random_bool(0.4) {
        savepoint.rollback()?;
        return Ok(Written { kept: 0, undone: written.kept + written.undone });
    }
    savepoint.commit()?;
    Ok(written)
}

fn write_row(
    transaction: &mut Transaction<'_>,
    place: &Statement,
    keys: &[String],
    rng: &mut StdRng,
) -> Result<(), ::postgres::Error> {
    let Some(key) = keys.choose(rng) else { return Ok(()) };
    let kind = key.split('-').next().unwrap_or_default();
    let cents: i64 = rng.random_range(100..10_000);
    let customer = CUSTOMERS.choose(rng).copied().unwrap_or_default();
    let wishes = "gift-wrapped, ".repeat(rng.random_range(0..20));
    transaction.execute(place, &[&new_id(rng), key, &kind, &cents, &customer, &wishes])?;
    Ok(())
}

fn choose_keys(rng: &mut StdRng, keys: u32) -> Vec<String> {
    let mut choose = || {
        let kind = KINDS.choose(rng).copied().unwrap_or_default();
        format!("{kind}-{}", rng.random_range(0..keys.max(1)))
    };
    (0..3).map(|_| choose()).collect()
}

/// A UUID of version 7: it begins with the time, as new tables' keys do.
pub fn new_id(rng: &mut StdRng) -> String {
    let milliseconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
    let random: u128 = rng.random();
    let bits = (milliseconds << 80) | (0x7 << 76) | (random >> 52 & 0xfff) << 64 | (0b10 << 62) | (random >> 66);
    let hex = format!("{bits:032x}");
    let part = |range: std::ops::Range<usize>| hex.get(range).unwrap_or_default().to_owned();
    [part(0..8), part(8..12), part(12..16), part(16..20), part(20..32)].join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_of_version_7_and_differ() {
        let mut rng = StdRng::seed_from_u64(1);
        let ids: std::collections::BTreeSet<String> = (0..1000).map(|_| new_id(&mut rng)).collect();
        assert_eq!(ids.len(), 1000);
        for id in ids {
            assert_eq!((id.len(), id.get(14..15)), (36, Some("7")), "{id}");
            assert!(matches!(id.get(19..20), Some("8" | "9" | "a" | "b")), "{id}");
        }
    }

    #[test]
    fn a_seed_repeats_its_choices() {
        let choices = |seed| choose_keys(&mut StdRng::seed_from_u64(seed), 20);
        assert_eq!(choices(7), choices(7));
        assert_ne!(choices(7), choices(8));
    }
}
