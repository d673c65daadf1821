//! `screenshots`: the status page of a relay that streams, on a light and a dark screen and on a phone, by a headless Chromium.
//!
//! In: how long rows are written before. Out: `page-streaming.png`, `page-streaming-dark.png` and `page-streaming-phone.png`, as
//! `docs/pictures` has them. Everything on them is a real relay's, between a Postgres and a Kafka.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use postgres::{Client, NoTls};
use walrelay_dev::arrivals::Arrivals;
use walrelay_dev::background::Background;
use walrelay_dev::kafka::{self, Kafka};
use walrelay_dev::postgres::{Options, Postgres};
use walrelay_dev::relay;
use walrelay_dev::stage::Stage;
use walrelay_dev::{provision, run_dir};

use crate::binary::Binary;
use crate::screen;

/// A deadline that only a failure reaches.
const LONG: Duration = Duration::from_mins(2);

/// The names of the browser. A Chromium with windows opens none that is as narrow as a phone.
const BROWSERS: [&str; 2] = ["chromium-headless-shell", "chrome-headless-shell"];

/// The end of the picture's name, width and height of the screen in CSS pixels, and a further flag of the browser.
const SCREENS: [(&str, u32, u32, &str); 3] = [
    ("", 1000, 1120, "--blink-settings=preferredColorScheme=1"),
    ("-dark", 1000, 1120, "--blink-settings=preferredColorScheme=0"),
    ("-phone", 360, 1900, "--blink-settings=preferredColorScheme=1"),
];

/// A row of which no record can be made: its topic would have a blank.
const BAD: &str =
    "INSERT INTO outbox (aggregatetype, aggregateid, type, payload) VALUES ('gift card', 'gift-7', 'Sold', '{}')";

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    binary: Binary,
    /// The folder for the pictures
    #[arg(long, default_value = "target/screenshots")]
    into: PathBuf,
    /// Write rows for so many minutes before: the charts have room for 15
    #[arg(long, default_value_t = 4)]
    minutes: u64,
}

/// Takes the pictures.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let runs = |browser: &&&str| Command::new(browser).arg("--version").output().is_ok_and(|out| out.status.success());
    let browser =
        BROWSERS.iter().find(runs).context("no headless Chromium (Debian: apt install chromium-headless-shell)")?;
    let postgres = Postgres::start(&Options::default())?;
    let kafka = Kafka::start(&kafka::Options::default())?;
    let (to, arrivals) = (format!("kafka://{}", kafka.brokers()), Arrivals::Kafka(Box::new(kafka.client_config())));
    let mut stage = Stage::empty(&postgres, &to, arrivals, &arguments.binary.path()?, "outbox.event")?;
    // The page shows the name of the slot.
    "walrelay".clone_into(&mut stage.name);
    let setup = stage.arguments("setup", &["--apply", "--create-table", "--table", "public.outbox"]);
    relay::run_well(&stage.binary, &setup)?;
    let mut relay = stage.relay(&["--on-bad-row", "dead-letter"])?;
    relay.wait_streaming(LONG)?;
    let source = stage.source.clone();
    let writer = Background::start(move |stop| write(&source, stop));
    stage.connect()?.batch_execute(BAD)?;
    thread::sleep(Duration::from_secs(arguments.minutes * 60));
    fs::create_dir_all(&arguments.into)?;
    let profile = run_dir::make(&provision::dev_dir().join("run"), "chromium")?;
    for (end, width, height, setting) in SCREENS {
        let file = arguments.into.join(format!("page-streaming{end}.png"));
        let mut command = Command::new(browser);
        // There is no sandbox for root, and the page is our own.
        command.args(["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run", setting]);
        command.arg(format!("--user-data-dir={}", profile.display()));
        command.arg(format!("--window-size={width},{height}"));
        command.arg(format!("--screenshot={}", file.display()));
        let output = command.arg(format!("http://127.0.0.1:{}/", relay.http_port())).output()?;
        let taken = fs::metadata(&file).with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())?;
        screen::line(&format!("{}: {} kB", file.display(), taken.len() / 1000));
    }
    fs::remove_dir_all(&profile)?;
    writer.stop()?;
    relay.terminate(LONG).map(drop)
}

/// Orders, payments and customers, more and fewer by turns, until the flag is set.
fn write(source: &str, stop: &AtomicBool) -> Result<()> {
    let mut client = Client::connect(source, NoTls)?;
    let started = Instant::now();
    while !stop.load(Ordering::SeqCst) {
        let wave = (started.elapsed().as_secs_f64() / 40.0).sin() + 1.3;
        let rows = wave * 12.0 * rand::random_range(0.7..1.3);
        client.execute(
            "INSERT INTO outbox (aggregatetype, aggregateid, type, payload)
             SELECT kind, kind || '-' || n % 97, 'Changed', jsonb_build_object('number', n)
             FROM (SELECT n, (ARRAY['order', 'order', 'order', 'payment', 'payment', 'customer'])[1 + n % 6] AS kind
                   FROM generate_series(1, $1::float8::int) AS n) AS drawn",
            &[&rows],
        )?;
        thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}
