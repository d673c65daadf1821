//! A Postgres of one's own.
//!
//! In: version, settings, `pg_hba.conf` rules, TLS files. Out: a running server on a free loopback port and a Unix
//! socket, that can be stopped, killed, stopped in its tracks and started again on the same data and port.
//!
//! It does not choose settings for speed: `fsync` stays on unless asked otherwise.

mod options;
mod server;
mod standby;

use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use ::postgres::{Client, NoTls};
use anyhow::{Context as _, Result};
use rustix::process::Signal;

use crate::{process, service};
pub use options::{MAJOR_VARIABLE, Mode, Options, TlsFiles, default_major};
use server::PATIENCE;
pub use server::Postgres;

impl Postgres {
    /// Starts a server of our own with a data directory of its own.
    ///
    /// # Errors
    /// It cannot be brought, or does not start; the message carries the end of its log.
    pub fn start(options: &Options) -> Result<Self> {
        let mut server = Self::prepare(options)?;
        server.start_again()?;
        Ok(server)
    }

    /// Starts a server of our own of this version, with these settings.
    ///
    /// # Errors
    /// As [`Postgres::start`].
    pub fn with(major: u32, settings: &[(&str, &str)]) -> Result<Self> {
        Self::start(&Options { major, settings: crate::settings(settings), ..Options::default() })
    }

    /// The connection URI of a database, over TCP, as superuser.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }

    /// The connection URI of a database, over the Unix socket, as superuser.
    pub fn socket_url(&self, database: &str) -> String {
        let sockets = self.sockets.display().to_string().replace('/', "%2F");
        format!("postgres://postgres@{sockets}:{}/{database}", self.port)
    }

    /// Its TCP port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its log.
    pub fn log(&self) -> PathBuf {
        self.service.log()
    }

    /// The postmaster's process id; `None` while it is down.
    pub fn pid(&self) -> Option<u32> {
        self.service.pid()
    }

    /// Connects as superuser; `None`: to the database that is always there.
    ///
    /// # Errors
    /// It is down, or there is no such database.
    pub fn connect(&self, database: Option<&str>) -> Result<Client> {
        let database = database.unwrap_or("postgres");
        self.client(database).connect(NoTls).with_context(|| format!("cannot connect to database {database}"))
    }

    /// Creates an empty database.
    ///
    /// # Errors
    /// There is one of that name.
    pub fn create_database(&self, name: &str) -> Result<()> {
        let mut client = self.connect(None)?;
        let statement = format!("CREATE DATABASE {}", quote_identifier(name));
        client.batch_execute(&statement).with_context(|| format!("cannot create database {name}"))
    }

    /// Creates an empty database whose name begins with `prefix` and is new, so that many tests share one server.
    ///
    /// # Errors
    /// As [`Postgres::create_database`].
    pub fn create_unique_database(&self, prefix: &str) -> Result<String> {
        let name = unique_name(prefix);
        self.create_database(&name)?;
        Ok(name)
    }

    /// Stops it and says how long that took; waits for at most 60 s.
    ///
    /// # Errors
    /// It does not end in time.
    pub fn stop(&mut self, mode: Mode) -> Result<Duration> {
        self.stop_within(mode, PATIENCE)
    }

    /// Stops it and says how long that took. When `limit` passes it is still up, with the shutdown under way.
    ///
    /// # Errors
    /// It does not end in time.
    pub fn stop_within(&mut self, mode: Mode, limit: Duration) -> Result<Duration> {
        let started = Instant::now();
        self.service.stop(mode.signal(), limit)?;
        Ok(started.elapsed())
    }

    /// SIGKILL for the postmaster and each of its processes: a crash.
    ///
    /// # Errors
    /// One of them cannot be ended.
    pub fn kill(&mut self) -> Result<()> {
        self.service.kill().map(drop)
    }

    /// SIGSTOP for the postmaster and each of its processes: it hangs, connections stay open.
    ///
    /// # Errors
    /// The signal may not be sent.
    pub fn suspend(&mut self) -> Result<()> {
        self.signal_all(Signal::STOP)
    }

    /// Ends what [`Postgres::suspend`] began.
    ///
    /// # Errors
    /// The signal may not be sent.
    pub fn resume(&mut self) -> Result<()> {
        self.signal_all(Signal::CONT)
    }

    /// Stops and starts it.
    ///
    /// # Errors
    /// As [`Postgres::stop`] and [`Postgres::start_again`].
    pub fn restart(&mut self, mode: Mode) -> Result<()> {
        self.stop(mode)?;
        self.start_again()
    }

    fn signal_all(&mut self, signal: Signal) -> Result<()> {
        self.service.signal(signal)?;
        for child in self.service.pid().map(process::children_of).unwrap_or_default() {
            process::signal_stranger(child, signal);
        }
        Ok(())
    }
}

/// One server for all tests of a process that need none of their own; ask for a database each. It ends with the
/// process, however that ends.
///
/// # Errors
/// As [`Postgres::start`]; the same error for everybody who asks.
pub fn shared_postgres() -> Result<&'static Postgres> {
    static SHARED: OnceLock<Result<Postgres, String>> = OnceLock::new();
    service::shared(&SHARED, || Postgres::start(&Options::default()))
}

/// A name for a database, slot or topic that no other test has: `prefix_PID_N` in lower case.
pub fn unique_name(prefix: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("{prefix}_{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Removes a database with its slots, which nobody reads.
///
/// # Errors
/// The server refuses.
pub fn drop_database(client: &mut Client, name: &str) -> Result<()> {
    let slots = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = $1";
    client.execute(slots, &[&name])?;
    Ok(client.batch_execute(&format!("DROP DATABASE {} WITH (FORCE)", quote_identifier(name)))?)
}

/// `name` as SQL takes it literally.
pub fn quote_identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}
