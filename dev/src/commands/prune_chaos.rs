//! Chaos for `walrelay prune`: it deletes all the time, whatever the age, while writers with savepoints and asynchronous commits
//! write, and the relay is killed, stopped in its tracks and held away at random.
//!
//! Each deletion is written down with its time by a trigger; each record carries the broker's time of arrival. A row that was deleted
//! before its record had first arrived was deleted undelivered. (The records themselves prove nothing: the log keeps a row that is gone.)

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use rustix::process::Signal;
use walrelay_dev::kafka::{self, Kafka};
use walrelay_dev::postgres::Postgres;
use walrelay_dev::process;
use walrelay_dev::process::{Guarded, LastWill};
use walrelay_dev::relay::Relay;
use walrelay_dev::shop::{self, Shop};
use walrelay_dev::stage::Stage;

use crate::binary::Binary;
use crate::screen::{line, thousands};

/// How long the relay may take to stream again, and to deliver what is left in the end.
const PATIENCE: Duration = Duration::from_mins(2);

/// What the shop's table needs to be pruned, and how each deletion is written down.
const WATCHED: &str = "
ALTER TABLE outbox ADD created_at timestamptz NOT NULL DEFAULT clock_timestamp();
CREATE TABLE deleted (id text NOT NULL, at timestamptz NOT NULL);
CREATE FUNCTION write_down() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO deleted SELECT id::text, clock_timestamp() FROM gone;
    RETURN NULL;
END $$;
CREATE TRIGGER write_down AFTER DELETE ON outbox REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION write_down();
";

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    binary: Binary,
    /// How often the relay is killed or slowed
    #[arg(long, default_value_t = 50)]
    rounds: usize,
    /// Repeats moments and the shop's choices [default: random, printed]
    #[arg(long)]
    seed: Option<u64>,
    /// Connections that write
    #[arg(long, default_value_t = 4)]
    connections: u32,
    /// Postgres' major version
    #[arg(long, default_value_t = 17)]
    postgres: u32,
    /// Numbers of shards, one after the other, each for as many rounds; none: one slot
    #[arg(long, value_delimiter = ',')]
    shards: Vec<u8>,
}

/// Whether no row was deleted before it was delivered, and many were.
pub(crate) fn run(arguments: &Arguments) -> Result<bool> {
    let seed = arguments.seed.unwrap_or_else(|| rand::random_range(1..1_000_000));
    line(&format!("prune-chaos: {} rounds, seed {seed}", arguments.rounds));
    let binary = arguments.binary.path()?;
    let postgres = Postgres::with(arguments.postgres, &[("autovacuum_naptime", "1s")])?;
    let kafka = Kafka::start(&kafka::Options::default())?;
    let options = shop::Options {
        connections: arguments.connections,
        seed,
        keys: 100,
        pause: Duration::from_millis(5),
        ..shop::Options::default()
    };
    let append_time = [("message.timestamp.type", "LogAppendTime")];
    let stage = Stage::build_with(&postgres, &kafka, &binary, "outbox.event", &options, 4, &append_time)?;
    stage.connect()?.batch_execute(WATCHED)?;
    stage.connect()?.batch_execute(&format!("ALTER DATABASE {} SET synchronous_commit = off", stage.name))?;
    let first = arguments.shards.first().copied();
    set_up(&stage, first, "--shards")?;
    let mut relays = relays(&stage, first)?;
    let mut prune = prune_all_the_time(&stage)?;
    let shop = Shop::open(&stage.source, &options)?;
    let rounds = arguments.rounds / arguments.shards.len().max(1);
    let mut rng = StdRng::seed_from_u64(seed);
    disturb(rounds, &mut rng, &mut relays)?;
    for count in arguments.shards.iter().skip(1) {
        set_up(&stage, Some(*count), "--reshard")?;
        relays = self::relays(&stage, Some(*count))?;
        line(&format!("  moved to {count} shards"));
        disturb(rounds, &mut rng, &mut relays)?;
    }
    ensure!(prune.exited()?.is_none(), "prune ended under way: see its log");
    let tally = shop.close()?;
    wait_until_empty(&stage)?;
    prune.signal(Signal::TERM)?;
    let verdict = compare(&stage)?;
    for relay in &mut relays {
        relay.terminate(PATIENCE)?;
    }
    line(&format!(
        "load          {} transactions, {} rows committed, {} rolled back",
        thousands(tally.transactions),
        thousands(tally.committed),
        thousands(tally.rolled_back)
    ));
    line(&format!(
        "deleted       {} rows, of these before their record had arrived: {}",
        thousands(verdict.deleted),
        verdict.undelivered
    ));
    let report = stage.compare()?;
    line(&format!("truth         {report}"));
    let passed = verdict.undelivered == 0 && verdict.deleted == tally.committed && report.missing == 0;
    line(if passed { "PASS" } else { "FAIL" });
    Ok(passed)
}

/// One slot, or so many shards, made or moved to.
fn set_up(stage: &Stage, count: Option<u8>, verb: &str) -> Result<()> {
    let Some(count) = count else { return stage.setup().map(drop) };
    let count = count.to_string();
    let place = ["--source", &stage.source, "--publication", &stage.name, "--slot", &stage.name];
    let setup = ["setup", verb, &count, "--apply", "--table", "public.outbox"];
    walrelay_dev::relay::run_well(&stage.binary, &[&setup[..], &place].concat()).map(drop)
}

/// The relay, or one for each shard, once they stream.
fn relays(stage: &Stage, count: Option<u8>) -> Result<Vec<Relay>> {
    let mut relays = match count {
        None => vec![stage.relay(&[])?],
        Some(count) => {
            (0..count).map(|index| stage.relay(&["--shard", &format!("{index}/{count}")])).collect::<Result<_>>()?
        }
    };
    relays.iter_mut().try_for_each(|relay| relay.wait_streaming(PATIENCE).map(drop))?;
    Ok(relays)
}

/// Whatever the age of a row, again and again.
fn prune_all_the_time(stage: &Stage) -> Result<Guarded> {
    let mut command = std::process::Command::new(&stage.binary);
    command.args(["prune", "--source", &stage.source, "--publication", &stage.name, "--slot", &stage.name]);
    command.args(["--table", "outbox", "--older-than", "0", "--force", "--every", "50ms", "--chunk", "300"]);
    command.stdout(std::process::Stdio::null());
    Guarded::spawn("prune", &mut command, &LastWill::default())
}

fn disturb(rounds: usize, rng: &mut StdRng, relays: &mut [Relay]) -> Result<()> {
    for number in 1..=rounds {
        let at = rng.random_range(0..relays.len());
        let Some(relay) = relays.get_mut(at) else { continue };
        std::thread::sleep(Duration::from_millis(rng.random_range(0..600)));
        let away = Duration::from_millis(rng.random_range(0..800));
        let killed = rng.random_bool(0.5);
        if killed {
            relay.kill9()?;
            std::thread::sleep(away);
            relay.start_again()?;
            relay.wait_streaming(PATIENCE)?;
        } else {
            relay.signal(Signal::STOP)?;
            std::thread::sleep(away);
            relay.signal(Signal::CONT)?;
        }
        let how = if killed { "kill -9, away" } else { "stopped    " };
        line(&format!("  round {number:>3}  {how} for {:>4} ms", away.as_millis()));
    }
    Ok(())
}

fn wait_until_empty(stage: &Stage) -> Result<()> {
    let mut client = stage.connect()?;
    process::wait_until(PATIENCE, "prune to delete what is left", || {
        std::thread::sleep(Duration::from_millis(50));
        Ok(client.query_one("SELECT NOT EXISTS (SELECT FROM outbox)", &[])?.get(0))
    })
}

struct Verdict {
    deleted: u64,
    undelivered: u64,
}

fn compare(stage: &Stage) -> Result<Verdict> {
    let mut arrived: HashMap<String, i64> = HashMap::new();
    stage.arrivals.read(&stage.topics(), |record| {
        let (Some(id), Some(at)) = (record.header("id"), record.timestamp) else { return };
        let first = arrived.entry(id.to_owned()).or_insert(at);
        *first = at.min(*first);
    })?;
    let started = Instant::now();
    let sql = "SELECT id, ceil(extract(epoch FROM at) * 1000)::bigint FROM deleted";
    let (mut deleted, mut undelivered) = (0, 0);
    for row in stage.connect()?.query(sql, &[])? {
        let (id, at): (String, i64) = (row.get(0), row.get(1));
        deleted += 1;
        if arrived.get(&id).is_none_or(|first| *first > at) {
            undelivered += 1;
            line(&format!("  deleted undelivered: {id}"));
        }
    }
    line(&format!("compared in {:.1?}", started.elapsed()));
    Ok(Verdict { deleted, undelivered })
}
