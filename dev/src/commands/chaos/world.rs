//! The services, the load and those who watch, for some rounds of one run.
//!
//! ```text
//!  shop ──▶ Postgres ──▶ tap ──▶ relay ──▶ taps ──▶ one server or three ──▶ reader
//!               └──▶ witness: what was committed below the slot's confirmed position?
//! ```
//!
//! Shop, witness and reader go around the taps: they are not what is tested.

use std::path::Path;
use std::time::{Duration, Instant};

use ::postgres::Client;
use anyhow::{Result, anyhow};
use walrelay_dev::postgres::Postgres;
use walrelay_dev::relay::Relay;
use walrelay_dev::servers::Servers;
use walrelay_dev::shop::ddl::Builder;
use walrelay_dev::shop::{self, MESSAGE_PREFIX, Shapes, Shop, Tally};
use walrelay_dev::stage::Stage;
use walrelay_dev::tap::Tap;
use walrelay_dev::truth::{self, DeadLetters};
use walrelay_dev::witness::{self, Witness};
use walrelay_dev::{brokers, kafka};

use super::aborted;
use super::beside::{Compared, Comparison};
use super::reader::Reader;
use crate::distance::Distance;
use crate::to::To;

/// How long anything may take that has to happen.
pub(super) const PATIENCE: Duration = Duration::from_mins(3);

/// Keys of the load: enough that its connections seldom wait for each other, few enough that each has many records.
const KEYS: u32 = 100;

/// Postgres notices a lost connection this soon, and so does the relay, which reads the setting of the server.
const WAL_SENDER_TIMEOUT: &str = "4s";

/// Connections to Kafka notice it as soon.
const SOCKET_TIMEOUT: &str = "socket.timeout.ms=4000";

/// Other destinations have settings of their own: the relay leaves a server that does not answer for so many seconds.
const SILENCES: [(brokers::Kind, &str, u64); 3] = [
    (brokers::Kind::RabbitMq, "heartbeat", 3),
    (brokers::Kind::Nats, "timeout", 5),
    (brokers::Kind::Valkey, "timeout", 5),
];

/// What a relay logs when it closes a sink with records in flight, because another relay may have had the slot meanwhile. On a busy machine
/// the destination may take longer for them than the last proof of the slot lasts.
const GIVEN_UP: &str = "what is in flight is not sent any more";

/// The beginning of the property that makes a destination drop repeats.
const DEDUPE: &str = "dedupe=";

/// The default distance of the brokers. With it, records are in flight when a fault strikes.
const DISTANCE: Duration = Duration::from_millis(4);

/// Keys among which bulk rows are dealt out.
const BULK_KEYS: i64 = 50;

/// The default distance if records are refused: then the relay has one record in flight for a while, and the load is a tenth.
const DISTANCE_OF_REFUSALS: Duration = Duration::from_millis(1);

/// What all addresses begin with.
const PREFIX: &str = "outbox.event";

/// So small that transactions of thousands of rows are often interrupted half-way.
const MAX_IN_FLIGHT: &str = "--max-in-flight=1MiB";

/// Below the topic's limit: else the broker would refuse whole batches again and again, which another test shows.
const BATCH_SIZE: &str = "batch.size=40000";

/// The limit of a topic in bytes, where rows above it are written.
const TOPIC_LIMIT: &str = "50000";

/// The settings of one run.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct Settings {
    /// Where to
    #[arg(long, value_enum, default_value_t = To::Kafka)]
    pub(super) to: To,
    /// Repeats faults, moments and the shop's choices [default: random, printed]
    #[arg(long, default_value_t = rand::random_range(1..1_000_000), hide_default_value = true)]
    pub(super) seed: u64,
    /// What the relay promises
    #[arg(long, value_enum, default_value_t = Delivery::AtLeastOnce)]
    pub(super) delivery: Delivery,
    /// Mix in rows that cannot be published; dead-letter: each must be found in the dead-letter topic
    #[arg(long, value_enum)]
    pub(super) on_bad_row: Option<OnBadRow>,
    /// Connections that write
    #[arg(long, default_value_t = 8)]
    pub(super) connections: u32,
    /// How long each rests between two transactions, in milliseconds
    #[arg(long, default_value_t = 40)]
    pub(super) pause: u64,
    /// How far the brokers are, one way, such as 2500us [default: 4ms; elsewhere, or with bad rows, 1ms]
    #[arg(long)]
    pub(super) broker_distance: Option<Distance>,
    /// Partitions of each topic
    #[arg(long, default_value_t = 4)]
    pub(super) partitions: u32,
    /// Postgres' major version
    #[arg(long, default_value_t = 17)]
    pub(super) postgres: u32,
    /// Run walrelay verify beside the rounds, and compare what it says with the books; with Kafka, NATS or Redis
    #[arg(long)]
    pub(super) verify: bool,
    /// Further arguments of the relay
    #[arg(last = true)]
    pub(super) relay: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Delivery {
    AtLeastOnce,
    ExactlyOnce,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum OnBadRow {
    DeadLetter,
}

/// Which rows may arrive a second time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Repeats {
    /// Nothing.
    None,
    /// Rows that were in flight when the relay was killed, or when the connection to the broker was lost: the broker cannot know a repeat.
    /// Kafka knows none of an earlier epoch of the producer, and librdkafka may begin a new one.
    AfterLosses,
    /// Also rows that were in flight when a record was refused: another producer sends them.
    AfterRefusals,
    /// Also rows that were in flight when the slot was lost: the broker may take longer to confirm them than the relay waits.
    AfterLostSlots,
}

impl Settings {
    /// # Errors
    /// The destination cannot do what they ask for.
    pub(super) fn ensure_possible(&self) -> Result<()> {
        let is_for_kafka = self.exactly_once() || self.dead_letter();
        anyhow::ensure!(self.to == To::Kafka || !is_for_kafka, "exactly once, and bad rows, only with Kafka");
        Ok(())
    }

    pub(super) fn exactly_once(&self) -> bool {
        self.delivery == Delivery::ExactlyOnce
    }

    pub(super) fn dead_letter(&self) -> bool {
        self.on_bad_row == Some(OnBadRow::DeadLetter)
    }

    pub(super) fn repeats(&self) -> Repeats {
        match self.to.kind() {
            None if self.exactly_once() => Repeats::None,
            None => Repeats::AfterRefusals,
            Some(brokers::Kind::Nats) => Repeats::None,
            Some(_) if self.relay.iter().any(|argument| argument.starts_with(DEDUPE)) => Repeats::None,
            Some(brokers::Kind::RabbitMq) => Repeats::AfterLostSlots,
            Some(_) => Repeats::AfterLosses,
        }
    }

    /// Whether a server that is kept silent for so long may be left, with what is under way to it.
    pub(super) fn may_be_left_after(&self, silent: Duration) -> bool {
        self.silence().is_some_and(|(_, seconds)| silent >= Duration::from_secs(seconds))
    }

    fn silence(&self) -> Option<(&'static str, u64)> {
        SILENCES.iter().find(|(kind, ..)| Some(*kind) == self.to.kind()).map(|&(_, name, seconds)| (name, seconds))
    }

    /// Whether the reader has at once what is compared in the end. RabbitMQ's stream may lack rows that its queue has
    /// ([`walrelay_dev::arrivals`]). A queue of SQS hides messages for a while if their reader lost the answer. A row below the confirmed
    /// position is not sent again, so the truth tells whether it is missing.
    pub(super) fn follows_what_counts(&self) -> bool {
        !matches!(self.to.kind(), Some(brokers::Kind::RabbitMq | brokers::Kind::ElasticMq))
    }

    /// Whether many records of a key are under way together.
    fn takes_keys_at_once(&self) -> bool {
        matches!(self.to.kind(), None | Some(brokers::Kind::Valkey))
    }

    fn distance(&self) -> Duration {
        let short = self.dead_letter() || self.to.kind().is_some();
        self.broker_distance.map_or(if short { DISTANCE_OF_REFUSALS } else { DISTANCE }, |distance| distance.0)
    }

    fn shop(&self, brokers: u16) -> shop::Options {
        let (misrouted, oversized) = if self.dead_letter() { (0.02, 0.005) } else { (0.0, 0.0) };
        shop::Options {
            connections: self.connections,
            keys: KEYS,
            seed: self.seed.wrapping_add(u64::from(brokers)),
            rows: None,
            pause: Duration::from_millis(self.pause) * self.rest(),
            shapes: Shapes::Every { messages: true, thousands: self.takes_keys_at_once(), misrouted, oversized },
        }
    }

    /// How many times as long a connection rests between transactions. What ElasticMQ does for a message grows with those of the last
    /// five minutes.
    fn rest(&self) -> u32 {
        match self.to.kind() {
            _ if self.dead_letter() => 10,
            None => 1,
            Some(brokers::Kind::ElasticMq) => 60,
            Some(_) => 3,
        }
    }

    fn relay(&self, brokers: u16, dead_letters: &str) -> Vec<String> {
        let mut arguments = vec!["--shutdown-timeout=30s".to_owned(), format!("--message-prefix={MESSAGE_PREFIX}")];
        let silence = match self.to.kind() {
            None => Some(SOCKET_TIMEOUT.to_owned()),
            Some(_) => self.silence().map(|(name, seconds)| format!("{name}={seconds}s")),
        };
        arguments.push(MAX_IN_FLIGHT.to_owned());
        arguments.extend(silence.map(|silence| format!("-X{silence}")));
        if self.exactly_once() {
            arguments.push("--delivery=exactly-once".to_owned());
            arguments.extend((brokers == 1).then(|| "--accept-one-replica".to_owned()));
        }
        if self.dead_letter() {
            arguments.extend(["--on-bad-row=dead-letter", "-X", BATCH_SIZE].map(str::to_owned));
            arguments.push(format!("--dead-letter-topic={dead_letters}"));
        }
        arguments.extend(self.relay.iter().cloned());
        arguments
    }
}

/// The services, the load and the relay of a run.
pub(super) struct World {
    pub(super) postgres: Postgres,
    pub(super) postgres_tap: Tap,
    pub(super) servers: Servers,
    pub(super) stage: Stage,
    pub(super) relay: Relay,
    pub(super) reader: Reader,
    pub(super) builder: Builder,
    pub(super) shop_options: shop::Options,
    settings: Settings,
    shop: Shop,
    witness: Witness,
    comparison: Option<Comparison>,
    dead_letters: String,
    confirmed: u64,
    /// The last number of [`shop::bulk`].
    bulk: i64,
}

/// The comparison after the last round.
#[derive(Debug)]
pub(super) struct Verdict {
    pub(super) tally: Tally,
    pub(super) truth: truth::Report,
    pub(super) dead_letters: Option<DeadLetters>,
    /// Aborted transactions of Kafka, each counted once in each partition that it had records in; `None` without transactions.
    pub(super) aborted: Option<u64>,
    pub(super) exit: i32,
    /// What `walrelay verify` said.
    pub(super) compared: Option<Compared>,
    /// Why not everything committed was confirmed in the end.
    pub(super) undelivered: Option<String>,
}

impl World {
    pub(super) fn start(settings: &Settings, brokers: u16, binary: &Path) -> Result<Self> {
        let (to, its) = (settings.to.kind(), settings.clone());
        let servers = std::thread::spawn(move || Servers::start(to, brokers, &kafka_options(), PREFIX));
        let postgres = start_postgres(settings.postgres)?;
        let servers = servers.join().map_err(|_| anyhow!("starting the brokers panicked"))??;
        servers.taps().iter().for_each(|tap| tap.set_distance(its.distance()));
        let postgres_tap = Tap::start(format!("127.0.0.1:{}", postgres.port()))?;

        let shop_options = settings.shop(brokers);
        let limit: &[_] = if settings.dead_letter() { &[("max.message.bytes", TOPIC_LIMIT)] } else { &[] };
        let stage = servers.stage(&postgres, binary, PREFIX, &shop_options, settings.partitions, limit)?;
        let stage = stage.behind(&postgres_tap);
        let dead_letters = format!("{}.dead-letter", stage.name);
        if settings.dead_letter() {
            servers.first_kafka()?.create_topic(&dead_letters, 2, &[])?;
        }
        let mut topics = stage.topics();
        topics.extend(settings.dead_letter().then(|| dead_letters.clone()));
        stage.setup()?;
        let mut client = stage.connect()?;
        // Deletes and truncations are to reach the relay, which is to leave them alone.
        client.batch_execute(&format!(
            "ALTER PUBLICATION \"{}\" SET (publish = 'insert, delete, truncate')",
            stage.name
        ))?;
        let witness = Witness::create(&mut client, &stage.name)?;
        let arguments = settings.relay(brokers, &dead_letters);
        let mut relay = stage.relay(&arguments.iter().map(String::as_str).collect::<Vec<_>>())?;
        relay.wait_streaming(PATIENCE)?;
        let reader = Reader::start(&stage.arrivals, &topics)?;
        let comparison =
            settings.verify.then(|| Comparison::start(&stage, &servers.plain_to(), &arguments)).transpose()?;
        let shop = Shop::open(&stage.source, &shop_options)?;
        Ok(Self {
            postgres,
            postgres_tap,
            servers,
            stage,
            relay,
            reader,
            builder: Builder::default(),
            shop_options,
            settings: settings.clone(),
            shop,
            witness,
            comparison,
            dead_letters,
            confirmed: 0,
            bulk: 0,
        })
    }

    /// As [`Relay::in_flight`], as soon as there is one; when there is none within `limit`, 0.
    pub(super) fn caught_in_flight(&self, limit: Duration) -> u64 {
        let until = Instant::now() + limit;
        loop {
            let count = self.relay.in_flight();
            if count > 0 || Instant::now() >= until {
                return count;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits until all that is committed now has been confirmed, and says how long that took, and for how long at a stretch neither a
    /// record came nor the slot moved.
    pub(super) fn recover(&mut self) -> Result<(Duration, Duration)> {
        if let Some(code) = self.relay.exited()? {
            anyhow::bail!("the relay has ended with {code}");
        }
        let mut client = self.stage.connect()?;
        let target: String = client.query_one("SELECT pg_current_wal_lsn()::text", &[])?.get(0);
        let sql = "SELECT confirmed_flush_lsn >= $1::text::pg_lsn, confirmed_flush_lsn::text FROM pg_replication_slots
                   WHERE slot_name = $2";
        let started = Instant::now();
        let (mut progress, mut since, mut longest) = ((0, String::new()), started, Duration::ZERO);
        loop {
            let row = client.query_one(sql, &[&target, &self.stage.name])?;
            let now = (self.reader.seen(), row.get::<_, String>(1));
            longest = longest.max(since.elapsed());
            if now != progress {
                (progress, since) = (now, Instant::now());
            }
            if row.get(0) {
                return Ok((started.elapsed(), longest));
            }
            anyhow::ensure!(
                started.elapsed() < PATIENCE,
                "the slot is not confirmed up to {target} after {PATIENCE:?}: it is at {}",
                progress.1
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Commits so many rows in transactions of `batch`, of keys that nobody else writes.
    pub(super) fn write_bulk(&mut self, rows: i64, batch: i64) -> Result<()> {
        let mut client = self.stage.connect()?;
        let end = self.bulk + rows;
        while self.bulk < end {
            let next = end.min(self.bulk + batch);
            shop::bulk(&mut client, self.bulk + 1..=next, BULK_KEYS)?;
            self.bulk = next;
        }
        Ok(())
    }

    /// Rows that were committed below the slot's confirmed position and have not come.
    ///
    /// While the relay is down `exact` compares with all that is in the topics; otherwise what is missing gets some
    /// time to come.
    pub(super) fn absent_below_confirmed(&mut self, exact: bool) -> Result<Vec<String>> {
        let mut client = self.stage.connect()?;
        let rows = self.witness.committed_up_to(&mut client, &self.stage.confirmed()?)?;
        if exact {
            self.reader.catch_up()?;
            return Ok(self.reader.absent(&rows));
        }
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            let absent = self.reader.absent(&rows);
            if absent.is_empty() || Instant::now() >= until {
                return Ok(absent);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Whether the slot's position is behind one that it had, and there was no crash since.
    pub(super) fn moved_back(&mut self, crashed: bool) -> Result<bool> {
        let now = witness::parse_lsn(&self.stage.confirmed()?)?;
        let back = !crashed && now < self.confirmed;
        self.confirmed = now;
        Ok(back)
    }

    /// Without transactions: waits until the reader has read what is there, so that repeats are the round's.
    pub(super) fn settle(&mut self) -> Result<()> {
        if !self.settings.exactly_once() {
            self.reader.catch_up()?;
        }
        if self.settings.postgres >= 16 {
            // Lets slots restart from here: a new walsender decodes again what lies behind.
            self.stage.connect()?.execute("SELECT pg_log_standby_snapshot()", &[])?;
        }
        Ok(())
    }

    /// How often the relay has said that it gives up what is in flight.
    pub(super) fn given_up(&self) -> usize {
        self.relay.log().matches(GIVEN_UP).count()
    }

    /// Begins another window of `walrelay verify`, if the last one has ended.
    pub(super) fn look_at_comparison(&mut self) -> Result<()> {
        self.comparison.as_mut().map_or(Ok(()), Comparison::look)
    }

    /// A connection around the tap.
    pub(super) fn connect(&self) -> Result<Client> {
        self.stage.connect()
    }

    /// The logs of Postgres, of the brokers and of the relay, and what the relay says of itself now: copied into `folder`.
    pub(super) fn keep_logs(&self, folder: &Path) -> Result<()> {
        std::fs::create_dir_all(folder)?;
        std::fs::copy(self.relay.log_path(), folder.join("relay.log"))?;
        for page in ["status", "readyz", "metrics"] {
            let answer = self.relay.get(&format!("/{page}"));
            let text = answer.map_or_else(|error| format!("{error:#}"), |answer| answer.body);
            std::fs::write(folder.join(page), text)?;
        }
        std::fs::copy(self.postgres.log(), folder.join("postgres.log"))?;
        for (name, log) in self.servers.logs() {
            std::fs::copy(log, folder.join(name))?;
        }
        Ok(())
    }

    /// Ends the load, waits until everything is confirmed, stops the relay, compares.
    pub(super) fn end(&mut self) -> Result<Verdict> {
        let idle = shop::Options { connections: 0, ..self.shop_options.clone() };
        let shop = std::mem::replace(&mut self.shop, Shop::open(&self.stage.source, &idle)?);
        let tally = shop.close()?;
        let undelivered = self.stage.wait_confirmed(PATIENCE).err().map(|error| format!("{error:#}"));
        let truth = self.stage.compare()?;
        // While the relay runs: it has to confirm what is open.
        let counts_all = !self.settings.dead_letter();
        let compared = self.comparison.take().map(|comparison| comparison.end(&truth, counts_all)).transpose()?;
        let exit = self.relay.terminate(PATIENCE)?.code;
        let dead_letters = self.settings.dead_letter().then(|| self.compare_dead_letters()).transpose()?;
        let aborted = self.settings.exactly_once().then(|| aborted::count(self.servers.kafka()?)).transpose()?;
        Ok(Verdict { tally, truth, dead_letters, aborted, exit, compared, undelivered })
    }

    /// Ends everything, also in the middle of a round: the reader reads until nothing more comes, so nothing may write any more. The load is
    /// not waited for, since a database that is frozen never answers it.
    pub(super) fn close(mut self) -> Result<()> {
        drop(self.shop);
        self.relay.kill9()?;
        self.reader.stop()
    }

    fn compare_dead_letters(&self) -> Result<DeadLetters> {
        let mut dead_letters = DeadLetters::load(&mut self.stage.connect()?)?;
        self.stage.arrivals.read(std::slice::from_ref(&self.dead_letters), |record| dead_letters.see(&record))?;
        Ok(dead_letters)
    }
}

/// A topic that was deleted is not to come back by itself.
pub(super) fn kafka_options() -> kafka::Options {
    kafka::Options { auto_create_topics: false, ..kafka::Options::soon_back() }
}

fn start_postgres(major: u32) -> Result<Postgres> {
    let settings = [
        // The keys' rows are updated all the time: without a vacuum each second the load would fade.
        ("autovacuum_naptime", "1s"),
        ("wal_sender_timeout", WAL_SENDER_TIMEOUT),
        ("max_wal_size", "4GB"),
    ];
    Postgres::with(major, &settings)
}
