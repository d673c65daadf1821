//! Rows with tiny payloads and 10 kB of headers, written while the brokers are frozen. The relay counts the headers of the records that wait,
//! so its memory stays below a bound. Afterwards all rows arrive.

use std::time::{Duration, Instant};

use anyhow::Result;
use walrelay_dev::relay::Relay;
use walrelay_dev::servers::Servers;

use super::super::world::{PATIENCE, World};

/// How many rows are written, and how many in each transaction. Their headers are 300 MB.
const ROWS: i64 = 30_000;
const BATCH: i64 = 100;

/// The limit of waiting records, and the bound of the relay's memory in KiB. librdkafka's requests hold the records once more.
const MAX_IN_FLIGHT: &str = "--max-in-flight=16MiB";
const BOUND_KIB: u64 = 160 << 10;

/// Memory that has not grown for so long counts as steady.
const STEADY: Duration = Duration::from_secs(5);
const LONGEST: Duration = Duration::from_mins(1);

pub(in super::super) fn play(world: &mut World) -> Result<Vec<String>> {
    let stage = super::aside(world, 4)?;
    let mut client = stage.connect()?;
    client.batch_execute("ALTER TABLE outbox ADD COLUMN headers jsonb")?;
    let mut relay = super::streaming(&stage, &["--shutdown-timeout=30s", MAX_IN_FLIGHT])?;
    super::every_broker(world, Servers::suspend)?;
    let sql = "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload, headers)
               SELECT gen_random_uuid(), 'order', 'key-' || n % 50, 'Numbered', jsonb_build_object('number', n),
                      jsonb_build_object('trace', repeat('x', 10000))
               FROM generate_series($1::bigint, $2::bigint) AS n";
    for first in (1..=ROWS).step_by(usize::try_from(BATCH)?) {
        client.execute(sql, &[&first, &(first + BATCH - 1)])?;
    }
    let peak = peak_kib(&relay)?;
    super::every_broker(world, Servers::resume)?;
    let mut broken: Vec<String> = super::unconfirmed(&stage, &mut relay, PATIENCE)?.into_iter().collect();
    let peak = relay.usage().map_or(peak, |usage| usage.memory.peak.max(peak));
    if peak > BOUND_KIB {
        broken.push(format!("the relay held {} MB at {MAX_IN_FLIGHT}", peak / 1024));
    }
    let topic = stage.topics().into_iter().next().unwrap_or_default();
    broken.extend(super::look_at(&stage, &topic)?.broken(ROWS));
    drop(client);
    super::strike_down(world, &stage, relay)?;
    Ok(broken)
}

/// The most it held, once it grows no more.
fn peak_kib(relay: &Relay) -> Result<u64> {
    let (mut peak, mut since, started) = (0, Instant::now(), Instant::now());
    while since.elapsed() < STEADY && started.elapsed() < LONGEST {
        let now = relay.usage()?.memory.peak;
        if now > peak + 1024 {
            (peak, since) = (now, Instant::now());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(peak)
}
