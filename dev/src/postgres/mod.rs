//! A Postgres of one's own.
//!
//! In: version, settings, `pg_hba.conf` rules, TLS files. Out: a running server on a free loopback port and a Unix
//! socket, that can be stopped, killed, stopped in its tracks and started again on the same data and port. A server
//! that the user has (`WALRELAY_TEST_SOURCE`) can stand in where nothing of that is needed.
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

use crate::given::{self, Given, Replaceable};
use crate::process;
use crate::provision::{self, PostgresTools};
pub use options::{MAJOR_VARIABLE, Mode, Options, TlsFiles, default_major};
use server::{PATIENCE, Server};

/// Names a Postgres of the user's own for tests and demo: a connection URI.
pub const SOURCE_VARIABLE: &str = "WALRELAY_TEST_SOURCE";

/// A server: our own, or one that the user has, by its connection URI.
#[derive(Debug)]
pub struct Postgres(Given<Server>);

impl Replaceable for Server {
    const NAME: &'static str = "Postgres";
    const VARIABLE: &'static str = SOURCE_VARIABLE;
}

impl Postgres {
    /// Starts a server of our own with a data directory of its own.
    ///
    /// # Errors
    /// It cannot be brought, or does not start; the message carries the end of its log.
    pub fn start(options: &Options) -> Result<Self> {
        let tools = provision::postgres(options.major)?;
        Self::launched(Server::prepare(tools, options)?)
    }

    fn launched(mut server: Server) -> Result<Self> {
        server.launch()?;
        Ok(Self(Given::Own(Box::new(server))))
    }

    /// Starts a server of our own of this version, with these settings.
    ///
    /// # Errors
    /// As [`Postgres::start`].
    pub fn with(major: u32, settings: &[(&str, &str)]) -> Result<Self> {
        Self::start(&Options { major, settings: crate::settings(settings), ..Options::default() })
    }

    /// The server of `WALRELAY_TEST_SOURCE` if that is set, else one of our own with default options.
    ///
    /// # Errors
    /// As [`Postgres::start`]; or the named server cannot be reached.
    pub fn given_or_own() -> Result<Self> {
        let Some(given) = Given::named().map(Self) else { return Self::start(&Options::default()) };
        given.connect(None).with_context(|| format!("the Postgres of {SOURCE_VARIABLE} does not answer"))?;
        Ok(given)
    }

    /// Whether the server is the user's, so that it cannot be stopped.
    pub fn is_external(&self) -> bool {
        self.0.is_external()
    }

    /// The connection URI of a database, over TCP, as superuser.
    pub fn url(&self, database: &str) -> String {
        match &self.0 {
            Given::Own(server) => format!("postgres://postgres@127.0.0.1:{}/{database}", server.port),
            Given::External(url) => with_database(url, database),
        }
    }

    /// The connection URI of a database, over the Unix socket, as superuser.
    ///
    /// # Errors
    /// The server is the user's.
    pub fn socket_url(&self, database: &str) -> Result<String> {
        let server = self.0.own("use the Unix socket of")?;
        let sockets = server.sockets.display().to_string().replace('/', "%2F");
        Ok(format!("postgres://postgres@{sockets}:{}/{database}", server.port))
    }

    /// Its TCP port on 127.0.0.1.
    ///
    /// # Errors
    /// The server is the user's.
    pub fn port(&self) -> Result<u16> {
        Ok(self.0.own("ask for the port of")?.port)
    }

    /// Its log.
    ///
    /// # Errors
    /// The server is the user's.
    pub fn log(&self) -> Result<PathBuf> {
        Ok(self.0.own("read the log of")?.service.log())
    }

    /// The postmaster's process id; `None` while it is down.
    ///
    /// # Errors
    /// The server is the user's.
    pub fn pid(&self) -> Result<Option<u32>> {
        Ok(self.0.own("ask for the process of")?.service.pid())
    }

    /// Its programs.
    ///
    /// # Errors
    /// The server is the user's.
    pub fn tools(&self) -> Result<&PostgresTools> {
        Ok(&self.0.own("use the programs of")?.tools)
    }

    /// Connects as superuser; `None`: to the database that is always there.
    ///
    /// # Errors
    /// It is down, or there is no such database.
    pub fn connect(&self, database: Option<&str>) -> Result<Client> {
        match (&self.0, database) {
            (Given::Own(server), _) => server.connect(database.unwrap_or("postgres")),
            (Given::External(url), None) => Ok(Client::connect(url, NoTls)?),
            (Given::External(_), Some(name)) => Ok(Client::connect(&self.url(name), NoTls)?),
        }
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
    /// The server is the user's, or does not end in time.
    pub fn stop(&mut self, mode: Mode) -> Result<Duration> {
        self.stop_within(mode, PATIENCE)
    }

    /// Stops it and says how long that took. When `limit` passes it is still up, with the shutdown under way.
    ///
    /// # Errors
    /// The server is the user's, or does not end in time.
    pub fn stop_within(&mut self, mode: Mode, limit: Duration) -> Result<Duration> {
        let started = Instant::now();
        self.0.own_mut("stop")?.service.stop(mode.signal(), limit)?;
        Ok(started.elapsed())
    }

    /// SIGKILL for the postmaster and each of its processes: a crash.
    ///
    /// # Errors
    /// The server is the user's.
    pub fn kill(&mut self) -> Result<()> {
        self.0.own_mut("kill")?.service.kill().map(drop)
    }

    /// SIGSTOP for the postmaster and each of its processes: it hangs, connections stay open.
    ///
    /// # Errors
    /// The server is the user's.
    pub fn suspend(&mut self) -> Result<()> {
        self.signal_all("suspend", Signal::STOP)
    }

    /// Ends what [`Postgres::suspend`] began.
    ///
    /// # Errors
    /// The server is the user's.
    pub fn resume(&mut self) -> Result<()> {
        self.signal_all("resume", Signal::CONT)
    }

    /// Starts it on the same data and the same port after a stop or a kill; nothing happens when it is up.
    ///
    /// # Errors
    /// The server is the user's, or does not start.
    pub fn start_again(&mut self) -> Result<()> {
        self.0.own_mut("start")?.launch()
    }

    /// Stops and starts it.
    ///
    /// # Errors
    /// As [`Postgres::stop`] and [`Postgres::start_again`].
    pub fn restart(&mut self, mode: Mode) -> Result<()> {
        self.stop(mode)?;
        self.start_again()
    }

    fn signal_all(&mut self, verb: &str, signal: Signal) -> Result<()> {
        let service = &mut self.0.own_mut(verb)?.service;
        service.signal(signal)?;
        for child in service.pid().map(process::children_of).unwrap_or_default() {
            process::signal_stranger(child, signal);
        }
        Ok(())
    }
}

/// One server for all tests of a process that need none of their own; ask for a database each. It ends with the
/// process, however that ends.
///
/// # Errors
/// As [`Postgres::given_or_own`]; the same error for everybody who asks.
pub fn shared_postgres() -> Result<&'static Postgres> {
    static SHARED: OnceLock<Result<Postgres, String>> = OnceLock::new();
    given::shared(&SHARED, Postgres::given_or_own)
}

/// A name for a database, slot or topic that no other test has: `prefix_PID_N` in lower case.
pub fn unique_name(prefix: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("{prefix}_{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// `name` as SQL takes it literally.
pub fn quote_identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Puts another database into a connection URI or keyword string.
fn with_database(source: &str, database: &str) -> String {
    let Some((scheme, rest)) = source.split_once("://") else {
        return format!("{source} dbname={database}");
    };
    let (address, parameters) = rest.split_once('?').map_or((rest, None), |(before, after)| (before, Some(after)));
    let host = address.split('/').next().unwrap_or_default();
    let parameters = parameters.map(|text| format!("?{text}")).unwrap_or_default();
    format!("{scheme}://{host}/{database}{parameters}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_database_keeps_everything_else_of_the_source() {
        let cases = [
            ("postgres://u:p@h:1/a?sslmode=require", "postgres://u:p@h:1/new?sslmode=require"),
            ("postgresql://h", "postgresql://h/new"),
            ("postgres://h?host=/tmp", "postgres://h/new?host=/tmp"),
            ("host=h dbname=a", "host=h dbname=a dbname=new"),
        ];
        for (source, wanted) in cases {
            assert_eq!(with_database(source, "new"), wanted);
        }
    }

    #[test]
    fn a_server_of_the_users_is_not_stopped() {
        let mut given = Postgres(Given::External("postgres://h/a".to_owned()));
        for error in [given.stop(Mode::Fast).unwrap_err(), given.kill().unwrap_err(), given.pid().unwrap_err()] {
            assert!(error.to_string().contains(SOURCE_VARIABLE), "{error}");
        }
        assert_eq!(given.url("b"), "postgres://h/b");
    }
}
