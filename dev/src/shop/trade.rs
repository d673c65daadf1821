//! What one connection of the shop does: transactions of every shape.
//!
//! | shape | rows that must arrive |
//! |---|---|
//! | plain: 1 to 20 rows with savepoints, nested, some rolled back; a tenth rolled back as a whole | those kept |
//! | one row; hundreds or thousands at once | all |
//! | hundreds, rolled back | none |
//! | inserted and deleted at once | all |
//! | open for up to a second between its rows | all, at its commit |
//! | other tables only | none |
//! | a logical message | one |
//! | a row, a bad row, a row | the first and the last; the bad one in the dead-letter topic |
//!
//! Plain ones wait for each other by their keys. Those that are large or open for long have a key that no other
//! connection writes.

use std::thread;
use std::time::Duration;

use ::postgres::{Client, Error, GenericClient, Statement, Transaction};
use rand::Rng as _;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;

use super::options::{KINDS, MESSAGE_PREFIX, OVERSIZE, Options, Shapes, new_id};

/// Takes the locks of a transaction's keys, always in the same order, so that no two wait for each other.
const LOCK_KEYS: &str = "SELECT key FROM shop_keys WHERE key = ANY($1) ORDER BY key FOR UPDATE";

/// One row of everything. `$1` id, `$2` key, `$3` kind, `$4` total in cents, `$5` customer, `$6` wishes.
const PLACE: &str = "
WITH next AS (
    UPDATE shop_keys SET seq = seq + 1 WHERE key = $2 RETURNING seq
), placed AS (
    INSERT INTO orders SELECT $1::text::uuid, $5::text, $4::bigint / 100.0
), sent AS (
    INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload)
    SELECT $1::text::uuid, $3::text, $2, initcap($3) || 'Placed',
        jsonb_build_object('seq', seq, 'total', ($4::bigint / 100.0)::numeric(10, 2)::text, 'customer', $5::text,
            'wishes_of_customer', $6::text)
    FROM next
    RETURNING payload
)
INSERT INTO truth SELECT $1::text, $2, next.seq, md5(sent.payload::text) FROM next, sent";

/// Many rows of one key, in the order of their numbers. `$1` key, `$2` how many, `$3` kind, `$4` length of the payload
/// in 32 bytes.
const BULK: &str = "
WITH next AS (
    UPDATE shop_keys SET seq = seq + $2 WHERE key = $1 RETURNING seq - $2 AS before
), sent AS (
    INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload)
    SELECT gen_random_uuid(), $3::text, $1, 'Bulk', jsonb_build_object('seq', before + n, 'text', repeat(md5(n::text), $4::int))
    FROM next, generate_series(1, $2::bigint) AS n ORDER BY n
    RETURNING id, payload
)
INSERT INTO truth SELECT id::text, $1, (payload->>'seq')::bigint, md5(payload::text) FROM sent";

/// A logical message in a row's place: `$1` id, `$2` key, `$3` kind, `$4` prefix.
const SAY: &str = "
WITH next AS (
    UPDATE shop_keys SET seq = seq + 1 WHERE key = $2 RETURNING seq
), said AS (
    SELECT seq, 'said ' || seq AS payload, pg_logical_emit_message(true, $4::text, json_build_object(
        'id', $1::text, 'aggregatetype', $3::text, 'aggregateid', $2::text, 'type', 'Said', 'payload', 'said ' || seq
    )::text) AS lsn FROM next
)
INSERT INTO truth SELECT $1, $2, seq, md5(payload) FROM said WHERE lsn IS NOT NULL";

/// A row that cannot be published: `$1` id, `$2` route, `$3` key, `$4` length of the payload in 32 bytes.
const SPOIL: &str = "
WITH sent AS (
    INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload)
    SELECT $1::text::uuid, $2::text, $3::text, 'Bad', jsonb_build_object('bad', repeat(md5($1), $4::int))
    RETURNING payload
)
INSERT INTO truth_bad SELECT $1, $3, md5(payload::text) FROM sent";

/// A route of which no topic can be made.
const NO_TOPIC: &str = "no topic!";

/// Names that go wrong when text is re-encoded on its way.
const CUSTOMERS: [&str; 6] = ["Ada", "Zoë", "O'Brien", "李雷", "back\\slash \"quoted\"", "🦀 & <sons>"];

/// Rows that a transaction, or a part of it, wrote.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Written {
    pub(super) kept: u64,
    pub(super) undone: u64,
}

impl Written {
    const fn kept(kept: u64) -> Self {
        Self { kept, undone: 0 }
    }
}

/// What one transaction is to look like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    Plain,
    Single,
    Many { rows: i64 },
    Undone,
    Deleted,
    Long,
    Noise,
    Message,
    Misrouted,
    Oversized,
}

/// One connection's statements.
pub(super) struct Trader<'a> {
    options: &'a Options,
    own_key: String,
    lock: Statement,
    place: Statement,
    bulk: Statement,
    spoil: Statement,
    say: Statement,
}

impl<'a> Trader<'a> {
    pub(super) fn prepare(client: &mut Client, options: &'a Options, number: u64) -> Result<Self, Error> {
        Ok(Self {
            options,
            own_key: format!("{}-own-{number}", KINDS.first().copied().unwrap_or_default()),
            lock: client.prepare(LOCK_KEYS)?,
            place: client.prepare(PLACE)?,
            bulk: client.prepare(BULK)?,
            spoil: client.prepare(SPOIL)?,
            say: client.prepare(SAY)?,
        })
    }

    /// One transaction.
    pub(super) fn trade(&self, client: &mut Client, rng: &mut StdRng) -> Result<Written, Error> {
        let shape = choose_shape(self.options.shapes, rng);
        let mut transaction = client.transaction()?;
        let written = match shape {
            Shape::Plain => return self.plain(transaction, rng),
            Shape::Single => self.single(&mut transaction, rng)?,
            Shape::Many { rows } => self.many(&mut transaction, rows)?,
            Shape::Undone => {
                let written = self.many(&mut transaction, 200)?;
                transaction.rollback()?;
                return Ok(Written { kept: 0, undone: written.kept });
            }
            Shape::Deleted => self.deleted(&mut transaction, rng)?,
            Shape::Long => self.long(&mut transaction, rng)?,
            Shape::Noise => noise(&mut transaction)?,
            Shape::Message => self.message(&mut transaction, rng)?,
            Shape::Misrouted => self.bad(&mut transaction, NO_TOPIC, 1, rng)?,
            Shape::Oversized => self.bad(&mut transaction, "", i32::try_from(OVERSIZE / 32 + 1).unwrap_or(0), rng)?,
        };
        transaction.commit()?;
        Ok(written)
    }

    fn plain(&self, mut transaction: Transaction<'_>, rng: &mut StdRng) -> Result<Written, Error> {
        let keys = choose_keys(rng, self.options.keys);
        let mut rows = rng.random_range(1..=20);
        transaction.query(&self.lock, &[&keys])?;
        let mut written = Written::default();
        while rows > 0 {
            let part = write_part(&mut transaction, &self.place, &keys, &mut rows, 0, rng)?;
            written.kept += part.kept;
            written.undone += part.undone;
        }
        if rng.random_bool(0.1) {
            transaction.rollback()?;
            return Ok(Written { kept: 0, undone: written.kept + written.undone });
        }
        transaction.commit()?;
        Ok(written)
    }

    fn single(&self, transaction: &mut Transaction<'_>, rng: &mut StdRng) -> Result<Written, Error> {
        let keys = [choose_key(rng, self.options.keys)];
        write_row(transaction, &self.place, &keys, rng)?;
        Ok(Written::kept(1))
    }

    fn many(&self, transaction: &mut Transaction<'_>, rows: i64) -> Result<Written, Error> {
        let kind = kind_of(&self.own_key);
        transaction.execute(&self.bulk, &[&self.own_key, &rows, &kind, &4])?;
        Ok(Written::kept(rows.unsigned_abs()))
    }

    fn deleted(&self, transaction: &mut Transaction<'_>, rng: &mut StdRng) -> Result<Written, Error> {
        let keys = [choose_key(rng, self.options.keys)];
        let id = write_row(transaction, &self.place, &keys, rng)?;
        transaction.execute("DELETE FROM outbox WHERE id = $1::text::uuid", &[&id])?;
        Ok(Written::kept(1))
    }

    fn long(&self, transaction: &mut Transaction<'_>, rng: &mut StdRng) -> Result<Written, Error> {
        let parts = rng.random_range(2..=3);
        for _ in 0..parts {
            self.many(transaction, 5)?;
            thread::sleep(Duration::from_millis(rng.random_range(50..400)));
        }
        Ok(Written::kept(5 * parts))
    }

    fn message(&self, transaction: &mut Transaction<'_>, rng: &mut StdRng) -> Result<Written, Error> {
        let key = choose_key(rng, self.options.keys);
        transaction.execute(&self.say, &[&new_id(rng), &key, &kind_of(&key), &MESSAGE_PREFIX])?;
        Ok(Written::kept(1))
    }

    /// Between two good rows of the same key; an empty route stands for the key's own.
    fn bad(
        &self,
        transaction: &mut Transaction<'_>,
        route: &str,
        length: i32,
        rng: &mut StdRng,
    ) -> Result<Written, Error> {
        let key = choose_key(rng, self.options.keys);
        let keys = [key.clone()];
        let route = if route.is_empty() { kind_of(&key) } else { route };
        write_row(transaction, &self.place, &keys, rng)?;
        transaction.execute(&self.spoil, &[&new_id(rng), &route, &key, &length])?;
        write_row(transaction, &self.place, &keys, rng)?;
        Ok(Written::kept(2))
    }
}

/// One row of the key that belongs to nobody's connection, before or after DDL in the same transaction.
///
/// # Errors
/// The database refuses.
pub(super) fn place_for(client: &mut impl GenericClient, number: u64, rng: &mut StdRng) -> Result<(), Error> {
    let key = format!("{}-own-{number}", KINDS.first().copied().unwrap_or_default());
    let place = client.prepare(PLACE)?;
    let (cents, customer, wishes) = (100_i64, "Ada", "");
    client.execute(&place, &[&new_id(rng), &key, &kind_of(&key), &cents, &customer, &wishes])?;
    Ok(())
}

fn choose_shape(shapes: Shapes, rng: &mut StdRng) -> Shape {
    let Shapes::Every { messages, thousands, misrouted, oversized } = shapes else { return Shape::Plain };
    let bad = rng.random::<f64>();
    if bad < misrouted {
        return Shape::Misrouted;
    }
    if bad < misrouted + oversized {
        return Shape::Oversized;
    }
    match rng.random_range(0..1000) {
        0..400 => Shape::Plain,
        400..650 => Shape::Single,
        650..700 => Shape::Many { rows: rng.random_range(50..300) },
        // After a refusal the relay sends one record at a time for a while: thousands would take minutes.
        700..705 if thousands && oversized == 0.0 => Shape::Many { rows: rng.random_range(1000..4000) },
        700..755 => Shape::Undone,
        755..835 => Shape::Deleted,
        835..850 => Shape::Long,
        850..910 => Shape::Noise,
        _ if messages => Shape::Message,
        _ => Shape::Single,
    }
}

fn kind_of(key: &str) -> &str {
    key.split('-').next().unwrap_or_default()
}

fn noise(transaction: &mut Transaction<'_>) -> Result<Written, Error> {
    let sql = "INSERT INTO orders SELECT gen_random_uuid(), repeat('noise ', 20), n FROM generate_series(1, 30) AS n";
    transaction.execute(sql, &[])?;
    Ok(Written::default())
}

/// Writes a row, or a savepoint with some rows (or savepoints) inside, which is rolled back now and then.
fn write_part(
    transaction: &mut Transaction<'_>,
    place: &Statement,
    keys: &[String],
    rows: &mut u32,
    depth: u32,
    rng: &mut StdRng,
) -> Result<Written, Error> {
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

/// One row of one of the keys; its id.
fn write_row(
    transaction: &mut Transaction<'_>,
    place: &Statement,
    keys: &[String],
    rng: &mut StdRng,
) -> Result<String, Error> {
    let key = keys.choose(rng).map(String::as_str).unwrap_or_default();
    let (id, kind) = (new_id(rng), kind_of(key));
    let cents: i64 = rng.random_range(100..10_000);
    let customer = CUSTOMERS.choose(rng).copied().unwrap_or_default();
    let wishes = "gift-wrapped, ".repeat(rng.random_range(0..20));
    transaction.execute(place, &[&id, &key, &kind, &cents, &customer, &wishes])?;
    Ok(id)
}

fn choose_keys(rng: &mut StdRng, keys: u32) -> Vec<String> {
    (0..3).map(|_| choose_key(rng, keys)).collect()
}

fn choose_key(rng: &mut StdRng, keys: u32) -> String {
    let kind = KINDS.choose(rng).copied().unwrap_or_default();
    format!("{kind}-{}", rng.random_range(0..keys.max(1)))
}
#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng as _;

    #[test]
    fn a_seed_repeats_its_choices() {
        let choices = |seed| choose_keys(&mut StdRng::seed_from_u64(seed), 20);
        assert_eq!(choices(7), choices(7));
        assert_ne!(choices(7), choices(8));
    }

    #[test]
    fn every_shape_comes_and_bad_rows_only_when_asked_for() {
        let shapes = |misrouted, oversized| {
            let mut rng = StdRng::seed_from_u64(1);
            let every = Shapes::Every { messages: true, thousands: true, misrouted, oversized };
            let chosen: Vec<Shape> = (0..3000).map(|_| choose_shape(every, &mut rng)).collect();
            chosen
        };
        let all = shapes(0.1, 0.1);
        for shape in [Shape::Plain, Shape::Undone, Shape::Deleted, Shape::Long, Shape::Noise, Shape::Message] {
            assert!(all.contains(&shape), "{shape:?}");
        }
        assert!(all.contains(&Shape::Misrouted) && all.contains(&Shape::Oversized));
        let good = shapes(0.0, 0.0);
        assert!(!good.contains(&Shape::Misrouted) && !good.contains(&Shape::Oversized));
    }
}
