//! The demo: a shop writes, the relay publishes, a consumer reads, the relay is killed half-way, and in the end the
//! books are compared.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use walrelay_dev::arrivals::Follow;
use walrelay_dev::consume::Record;
use walrelay_dev::postgres::{self, Postgres};
use walrelay_dev::relay::{self, Relay};
use walrelay_dev::servers::Servers;
use walrelay_dev::shop::{self, Shop, Tally};
use walrelay_dev::stage::Stage;
use walrelay_dev::{brokers, kafka, process, provision, truth, versions};

use crate::binary::Binary;
use crate::screen::{self, Step, more, shorten, thousands};
use crate::to::To;

const STEPS: u32 = 5;

/// Partitions of each of Kafka's topics.
const PARTITIONS: u32 = 4;

/// What all addresses begin with.
const PREFIX: &str = "outbox.event";

/// How long the relay may take to stream, and to deliver what is left in the end.
const PATIENCE: Duration = Duration::from_mins(1);

/// How many records are shown.
const SHOWN: u64 = 6;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    binary: Binary,
    /// Where to
    #[arg(long, value_enum, default_value_t = To::Kafka)]
    to: To,
    /// Outbox rows to commit
    #[arg(long, default_value_t = 5000)]
    rows: u64,
    /// Repeats the shop's choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How long the build took, in seconds, when it was done just before
    #[arg(long)]
    built_in: Option<u32>,
}

/// Whether every row arrived, once or again, in order.
pub(crate) fn run(arguments: &Arguments) -> Result<bool> {
    let step = Step::begin(1, STEPS, "build", "walrelay");
    let binary = arguments.binary.path()?;
    let version = relay::run_well(&binary, &["--version"])?;
    step.done_after(version.trim(), arguments.built_in.map_or(0.0, f64::from));

    let to = arguments.to.kind();
    bring(to)?;
    let (postgres, servers) = start(to)?;
    let options = shop::Options { rows: Some(arguments.rows), seed: arguments.seed, ..shop::Options::default() };
    let stage = servers.stage(&postgres, &binary, PREFIX, &options, PARTITIONS, &[])?;
    let step = Step::begin(4, STEPS, "run", "walrelay setup --apply; walrelay run");
    let (tally, killed_after, mut relay, comparison) = show(&stage, &options, to.is_none(), step)?;

    let step = Step::begin(5, STEPS, "truth", "comparing");
    let delivered = stage.wait_confirmed(PATIENCE);
    let compared = comparison.map(compared).transpose()?;
    let exit = relay.terminate(PATIENCE)?;
    let report = stage.compare()?;
    let clean = delivered.is_ok() && exit.code == 0 && report.is_clean();
    step.open(&verdict(&report, tally, killed_after, clean));
    if !clean {
        explain(&report, delivered.err(), exit.code, &relay);
    }
    let Some((agrees, line)) = compared else { return Ok(clean) };
    more(&line);
    Ok(clean && agrees)
}

/// Ends `walrelay verify`, which ran all the time: whether each row was right, and what it says of them.
fn compared(mut comparison: Relay) -> Result<(bool, String)> {
    let code = comparison.terminate(PATIENCE)?.code;
    let report: serde_json::Value = serde_json::from_str(&comparison.stdout()).unwrap_or_default();
    let count = |name: &str| thousands(report.get(name).and_then(serde_json::Value::as_u64).unwrap_or_default());
    let line = format!(
        "walrelay verify, beside it: {} rows, {} right, {} missing, {} altered, {} repeated   {}",
        count("rows"),
        count("right"),
        count("missing"),
        count("altered"),
        count("repeated"),
        if code == 0 { "PASS" } else { "FAIL" }
    );
    Ok((code == 0, if code == 0 { line } else { format!("{line}\n{}", comparison.log()) }))
}

fn bring(to: Option<brokers::Kind>) -> Result<()> {
    let step = Step::begin(2, STEPS, "tools", &format!("Postgres and {}", title(to)));
    let postgres = provision::postgres(provision::DEFAULT_POSTGRES)?.version;
    let server = if let Some(kind) = to {
        kind.provision()?;
        title(to).to_owned()
    } else {
        provision::kafka()?;
        format!("Kafka {}", versions::KAFKA_VERSION)
    };
    step.done(&format!("Postgres {postgres} in {folder}, {server} in {folder}", folder = folder_name()));
    Ok(())
}

fn title(to: Option<brokers::Kind>) -> &'static str {
    match to {
        None => "Kafka",
        Some(brokers::Kind::Valkey) => "Valkey",
        Some(brokers::Kind::Nats) => "NATS",
        Some(brokers::Kind::RabbitMq) => "RabbitMQ",
        Some(brokers::Kind::ElasticMq) => "ElasticMQ",
    }
}

fn folder_name() -> String {
    let folder = provision::dev_dir();
    let here = std::env::current_dir().unwrap_or_default();
    folder.strip_prefix(&here).unwrap_or(&folder).display().to_string()
}

fn start(to: Option<brokers::Kind>) -> Result<(Postgres, Servers)> {
    let step = Step::begin(3, STEPS, "start", &format!("Postgres and {}", title(to)));
    let servers = std::thread::spawn(move || Servers::start(to, 1, &kafka::Options::default(), PREFIX));
    let postgres = Postgres::start(&postgres::Options::default())?;
    let servers = servers.join().map_err(|_| anyhow::anyhow!("starting {} panicked", title(to)))??;
    step.done(&format!("Postgres 127.0.0.1:{}, {}", postgres.port(), servers.plain_to()));
    Ok((postgres, servers))
}

/// Runs everything and shows some of it; gives what was written, and after how many records the relay was killed. `compares`: `walrelay verify`
/// runs beside it.
fn show(
    stage: &Stage,
    options: &shop::Options,
    compares: bool,
    step: Step,
) -> Result<(Tally, u64, Relay, Option<Relay>)> {
    stage.setup()?;
    let mut relay = stage.relay(&[])?;
    relay.wait_streaming(PATIENCE)?;
    step.open(&format!("{} shops write, a consumer reads:", options.connections));
    let comparison = compares.then(|| stage.publisher("verify", &["--json", "--follow=0"])).transpose()?;
    if let Some(comparison) = &comparison {
        let begun = || Ok(comparison.log().contains("comparing rows with records"));
        process::wait_until(PATIENCE, "walrelay verify to begin", begun)?;
    }
    let topics = stage.topics();
    let mut consumer = stage.arrivals.follow(&topics)?;
    let shop = Shop::open(&stage.source, options)?;

    let wanted = options.rows.unwrap_or_default();
    let mut received = watch(consumer.as_mut(), &shop, 0, wanted * 2 / 5, wanted)?;
    let killed_after = received;
    relay.kill9()?;
    relay.start_again()?;
    let again = relay.wait_streaming(PATIENCE).context("after kill -9")?;
    more(&format!(
        "kill -9 relay after {} records; started again, streaming after {:.1} s",
        thousands(received),
        again.as_secs_f64()
    ));
    received = watch(consumer.as_mut(), &shop, received, wanted, wanted)?;
    let tally = shop.finish()?;
    while consumer.next(Duration::from_millis(300))?.is_some() {
        received += 1;
    }
    more(&format!("{} records read live", thousands(received)));
    Ok((tally, killed_after, relay, comparison))
}

/// Reads until `until` records have come in all, and shows [`SHOWN`] of them.
fn watch(consumer: &mut dyn Follow, shop: &Shop, mut received: u64, until: u64, wanted: u64) -> Result<u64> {
    let every = (wanted / SHOWN).max(1);
    let mut last_news = Instant::now();
    while received < until && last_news.elapsed() < PATIENCE {
        let Some(record) = consumer.next(Duration::from_millis(100))? else {
            if shop.is_done() && last_news.elapsed() > PATIENCE / 4 {
                break;
            }
            continue;
        };
        if received.is_multiple_of(every) {
            more(&describe(&record));
        }
        received += 1;
        last_news = Instant::now();
    }
    Ok(received)
}

fn describe(record: &Record) -> String {
    format!(
        "{} p{} key={} id={}… eventType={} {}",
        record.topic,
        record.partition,
        record.key_text(),
        record.header("id").and_then(|id| id.get(..8)).unwrap_or_default(),
        record.header("eventType").unwrap_or("-"),
        shorten(&record.value_text(), 56)
    )
}

fn verdict(report: &truth::Report, tally: Tally, killed_after: u64, clean: bool) -> String {
    let truth::Report { committed, received, repeated, missing, out_of_order, torn, without_row, corrupted, .. } =
        report;
    let by = if *repeated > 0 && killed_after > 0 { " (by the kill)" } else { "" };
    let others = if torn + corrupted > 0 { format!("  torn {torn}  corrupted {corrupted}") } else { String::new() };
    format!(
        "committed {committed}  rolled back {}  received {received}  repeated {repeated}{by}  missing {missing}  \
         out of order {out_of_order}  without row {without_row}{others}   {}",
        tally.rolled_back,
        if clean { "PASS" } else { "FAIL" }
    )
}

fn explain(report: &truth::Report, undelivered: Option<anyhow::Error>, code: i32, relay: &Relay) {
    if let Some(error) = undelivered {
        more(&format!("{error:#}"));
    }
    if code != 0 {
        more(&format!("the relay ended with {code} on SIGTERM, not with 0"));
    }
    for offender in &report.offenders {
        more(offender);
    }
    screen::line(&format!("the relay's last words:\n{}", process::tail(&relay.log_path(), 20)));
}
