//! `screenshots`: the status page in each state that lasts, on a light and a dark screen and on a phone, by a headless Chromium.
//!
//! In: how long rows are written before. Out: PNG files, `STATE-light.png`, `STATE-dark.png`, `STATE-phone.png`. Everything on them is a
//! real relay's, between a Postgres and a Kafka.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use postgres::{Client, NoTls};
use rustix::process::Signal;
use walrelay_dev::background::Background;
use walrelay_dev::kafka::{self, Kafka};
use walrelay_dev::postgres::{Options, Postgres};
use walrelay_dev::process::wait_until;
use walrelay_dev::relay::{self, Relay};
use walrelay_dev::{provision, run_dir};

use crate::binary::Binary;
use crate::screen;

/// A deadline that only a failure reaches.
const LONG: Duration = Duration::from_mins(2);

/// What the browser is called. A Chromium with windows makes none that is as narrow as a phone.
const BROWSERS: [&str; 2] = ["chromium-headless-shell", "chrome-headless-shell"];

/// Screens: the name, width and height in CSS pixels, and further flags of the browser.
const SCREENS: [(&str, u32, u32, &str); 3] = [
    ("light", 1000, 1120, "--blink-settings=preferredColorScheme=1"),
    ("dark", 1000, 1120, "--blink-settings=preferredColorScheme=0"),
    ("phone", 360, 1900, "--blink-settings=preferredColorScheme=1"),
];

/// A row that becomes no record: its topic would have a blank.
const BAD: &str =
    "INSERT INTO outbox (aggregatetype, aggregateid, type, payload) VALUES ('gift card', 'gift-7', 'Sold', '{}')";

/// What may be said.
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

/// Takes them all.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let camera = Camera::new(&arguments.into)?;
    let mut place = Place::start(arguments.binary.path()?)?;
    connecting(&place, &camera)?;
    place.setup()?;
    streaming(&mut place, &camera, Duration::from_secs(arguments.minutes * 60))?;
    stopped(&place, &camera)
}

fn connecting(place: &Place, camera: &Camera) -> Result<()> {
    let nobody = ["--source", "postgres://postgres@127.0.0.1:1/shop"];
    let mut relay = place.relay(&nobody)?;
    wait_for(&relay, "connecting")?;
    camera.take("connecting", &relay)?;
    relay.terminate(LONG).map(drop)
}

/// Under load with a standby beside it, then with a Kafka that does not answer, until it stops.
fn streaming(place: &mut Place, camera: &Camera, span: Duration) -> Result<()> {
    let mut relay = place.relay(&["--on-bad-row", "dead-letter", "--shutdown-timeout", "60s"])?;
    relay.wait_streaming(LONG)?;
    let source = place.source.clone();
    let writer = Background::start(move |stop| write(&source, stop));
    place.sql(BAD)?;
    let mut standby = place.relay(&[])?;
    wait_for(&standby, "waiting-for-slot")?;
    camera.take("waiting", &standby)?;
    standby.terminate(LONG)?;
    thread::sleep(span);
    camera.take("streaming", &relay)?;
    place.kafka.suspend()?;
    wait_for(&relay, "blocked")?;
    camera.take("blocked", &relay)?;
    writer.stop()?;
    relay.signal(Signal::TERM)?;
    wait_for(&relay, "stopping")?;
    camera.take("stopping", &relay)?;
    place.kafka.resume()?;
    relay.wait_exit(LONG).map(drop)
}

fn stopped(place: &Place, camera: &Camera) -> Result<()> {
    let mut relay = place.relay(&["--on-stop", "hold"])?;
    relay.wait_streaming(LONG)?;
    place.sql(BAD)?;
    wait_for(&relay, "stopped")?;
    camera.take("stopped", &relay)?;
    relay.terminate(LONG).map(drop)
}

fn wait_for(relay: &Relay, state: &str) -> Result<()> {
    let waited = wait_until(LONG, &format!("state {state}"), || {
        thread::sleep(Duration::from_millis(50));
        Ok(relay.status().is_ok_and(|status| status.get("state").is_some_and(|found| found == state)))
    });
    waited.with_context(|| relay.log())
}

/// Takes pictures.
struct Camera {
    browser: &'static str,
    into: PathBuf,
    profile: PathBuf,
}

impl Camera {
    fn new(into: &Path) -> Result<Self> {
        let runs =
            |browser: &&&str| Command::new(browser).arg("--version").output().is_ok_and(|out| out.status.success());
        let browser =
            BROWSERS.iter().find(runs).context("no headless Chromium (Debian: apt install chromium-headless-shell)")?;
        fs::create_dir_all(into)?;
        Ok(Self {
            browser,
            into: into.to_owned(),
            profile: run_dir::make(&provision::dev_dir().join("run"), "chromium")?,
        })
    }

    fn take(&self, state: &str, relay: &Relay) -> Result<()> {
        for (screen, width, height, setting) in SCREENS {
            let file = self.into.join(format!("{state}-{screen}.png"));
            let mut command = Command::new(self.browser);
            // There is no sandbox for root, and the page is our own.
            command.args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--hide-scrollbars",
                "--no-first-run",
                setting,
            ]);
            command.arg(format!("--user-data-dir={}", self.profile.display()));
            command.arg(format!("--window-size={width},{height}"));
            command.arg(format!("--screenshot={}", file.display()));
            let output = command.arg(format!("http://127.0.0.1:{}/", relay.http_port())).output()?;
            let taken = fs::metadata(&file).with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())?;
            screen::line(&format!("{}: {} kB", file.display(), taken.len() / 1000));
        }
        Ok(())
    }
}

impl Drop for Camera {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.profile));
    }
}

struct Place {
    _postgres: Postgres,
    kafka: Kafka,
    source: String,
    binary: PathBuf,
}

impl Place {
    fn start(binary: PathBuf) -> Result<Self> {
        let postgres = Postgres::start(&Options::default())?;
        postgres.create_database("shop")?;
        let source = postgres.url("shop");
        let kafka = Kafka::start(&kafka::Options::default())?;
        Ok(Self { _postgres: postgres, kafka, source, binary })
    }

    fn setup(&self) -> Result<()> {
        let arguments = ["setup", "--apply", "--create-table", "--table", "public.outbox", "--source", &self.source];
        relay::run_well(&self.binary, &arguments).map(drop)
    }

    fn relay(&self, more: &[&str]) -> Result<Relay> {
        let brokers = self.kafka.brokers();
        let mut arguments = vec!["run", "--brokers", &brokers];
        if !more.contains(&"--source") {
            arguments.extend(["--source", &self.source]);
        }
        arguments.extend(more);
        Relay::start(&self.binary, &arguments, &[] as &[(&str, &str)])
    }

    fn sql(&self, statement: &str) -> Result<()> {
        Ok(Client::connect(&self.source, NoTls)?.batch_execute(statement)?)
    }
}

/// Orders, payments and customers, more and fewer by turns, until it is stopped.
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
