//! A Postgres of one's own.
//!
//! In: version, settings, `pg_hba.conf` rules, TLS files. Out: a running server on a free loopback port and a Unix
//! socket, that can be stopped, killed, stopped in its tracks and started again on the same data and port. A server
//! that the user has (`WALRELAY_TEST_SOURCE`) can stand in where nothing of that is needed.
//!
//! It does not choose settings for speed: `fsync` stays on unless asked otherwise.

mod standby;

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use ::postgres::{Client, NoTls};
use anyhow::{Context as _, Result, anyhow};
use rustix::process::Signal;

use crate::process::{self, LastWill};
use crate::provision::{self, PostgresTools};
use crate::service::Service;
use crate::{account, run_dir};

/// Names a Postgres of the user's own for tests and demo: a connection URI.
pub const SOURCE_VARIABLE: &str = "WALRELAY_TEST_SOURCE";

/// Names the major version of servers of our own that none is said for, so that the same tests run on each.
pub const MAJOR_VARIABLE: &str = "WALRELAY_TEST_POSTGRES";

/// What logical replication needs, and room for as many tests at once as a large machine has cores: each has a slot or two, a
/// walsender for each relay, and a handful of sessions.
const SETTINGS: [(&str, &str); 6] = [
    ("wal_level", "logical"),
    ("max_wal_senders", "200"),
    ("max_replication_slots", "200"),
    ("max_connections", "500"),
    ("listen_addresses", "127.0.0.1"),
    ("log_line_prefix", "%m [%p] %a "),
];

/// Rules when none are given: everybody from this machine, without a password.
const TRUSTING: [&str; 4] = [
    "local all all trust",
    "local replication all trust",
    "host all all 127.0.0.1/32 trust",
    "host replication all 127.0.0.1/32 trust",
];

/// How long a server may take to start (crash recovery included) or to stop.
const PATIENCE: Duration = Duration::from_mins(1);

/// What the server is to be.
#[derive(Debug, Clone)]
pub struct Options {
    /// Major version, 14 to 18, or 19 (a release candidate).
    pub major: u32,
    /// More lines of `postgresql.conf`; they win over ours.
    pub settings: Vec<(String, String)>,
    /// Lines of `pg_hba.conf`; none: trust everybody from this machine. User `postgres` on the Unix socket is trusted
    /// in any case, because it creates databases and asks for readiness.
    pub hba: Vec<String>,
    /// Turns TLS on.
    pub tls: Option<TlsFiles>,
    /// A new cluster, with a system identifier of its own: the others are copies of one.
    pub another_cluster: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { major: default_major(), settings: Vec::new(), hba: Vec::new(), tls: None, another_cluster: false }
    }
}

/// PEM files, which are copied next to the data.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    /// The server's certificate, with its chain.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// Who signs clients' certificates; `None`: they need none.
    pub client_authority: Option<PathBuf>,
}

/// How a server is stopped, as `pg_ctl -m` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Lets in nobody, waits for the end of all sessions, then as `Fast`.
    Smart,
    /// Ends sessions, waits until every walsender has sent what there is, writes a checkpoint.
    Fast,
    /// Ends at once; the next start recovers from the WAL.
    Immediate,
}

impl Mode {
    fn signal(self) -> Signal {
        match self {
            Self::Smart => Signal::TERM,
            Self::Fast => Signal::INT,
            Self::Immediate => Signal::QUIT,
        }
    }
}

/// The version of `WALRELAY_TEST_POSTGRES` if that is set, else the usual one. What is no number is 0, which no server has.
pub fn default_major() -> u32 {
    let named = std::env::var(MAJOR_VARIABLE).ok().filter(|text| !text.is_empty());
    named.map_or(provision::DEFAULT_POSTGRES, |text| text.parse().unwrap_or_default())
}

/// A server: our own, or one that the user has.
#[derive(Debug)]
pub struct Postgres {
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Own(Box<Server>),
    External { url: String },
}

/// Our own server; `process` is `None` while it is down.
#[derive(Debug)]
struct Server {
    tools: PostgresTools,
    sockets: PathBuf,
    port: u16,
    service: Service,
}

impl Postgres {
    /// Starts a server of our own with a data directory of its own.
    ///
    /// # Errors
    /// It cannot be brought, or does not start; the message carries the end of its log.
    pub fn start(options: &Options) -> Result<Self> {
        let tools = provision::postgres(options.major)?;
        let mut server = Server::prepare(tools, options)?;
        server.launch()?;
        Ok(Self { kind: Kind::Own(Box::new(server)) })
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
        match std::env::var(SOURCE_VARIABLE) {
            Ok(url) if !url.is_empty() => {
                let given = Self { kind: Kind::External { url } };
                given.connect(None).with_context(|| format!("the Postgres of {SOURCE_VARIABLE} does not answer"))?;
                Ok(given)
            }
            _ => Self::start(&Options::default()),
        }
    }

    /// Whether the server is the user's, so that it cannot be stopped.
    pub fn is_external(&self) -> bool {
        matches!(self.kind, Kind::External { .. })
    }

    /// The connection URI of a database, over TCP, as superuser.
    pub fn url(&self, database: &str) -> String {
        match &self.kind {
            Kind::Own(server) => format!("postgres://postgres@127.0.0.1:{}/{database}", server.port),
            Kind::External { url } => with_database(url, database),
        }
    }

    /// The connection URI of a database, over the Unix socket, as superuser.
    ///
    /// # Errors
    /// The server is the user's.
    pub fn socket_url(&self, database: &str) -> Result<String> {
        let server = self.own("use the Unix socket of")?;
        let sockets = server.sockets.display().to_string().replace('/', "%2F");
        Ok(format!("postgres://postgres@{sockets}:{}/{database}", server.port))
    }

    /// Its TCP port on 127.0.0.1.
    ///
    /// # Errors
    /// The server is the user's.
    pub fn port(&self) -> Result<u16> {
        Ok(self.own("ask for the port of")?.port)
    }

    /// Its log.
    ///
    /// # Errors
    /// The server is the user's.
    pub fn log(&self) -> Result<PathBuf> {
        Ok(self.own("read the log of")?.service.log())
    }

    /// The postmaster's process id; `None` while it is down.
    ///
    /// # Errors
    /// The server is the user's.
    pub fn pid(&self) -> Result<Option<u32>> {
        Ok(self.own("ask for the process of")?.service.pid())
    }

    /// Its programs.
    ///
    /// # Errors
    /// The server is the user's.
    pub fn tools(&self) -> Result<&PostgresTools> {
        Ok(&self.own("use the programs of")?.tools)
    }

    /// Connects as superuser; `None`: to the database that is always there.
    ///
    /// # Errors
    /// It is down, or there is no such database.
    pub fn connect(&self, database: Option<&str>) -> Result<Client> {
        match (&self.kind, database) {
            (Kind::Own(server), _) => server.connect(database.unwrap_or("postgres")),
            (Kind::External { url }, None) => Ok(Client::connect(url, NoTls)?),
            (Kind::External { .. }, Some(name)) => Ok(Client::connect(&self.url(name), NoTls)?),
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
        self.own_mut("stop")?.service.stop(mode.signal(), limit)?;
        Ok(started.elapsed())
    }

    /// SIGKILL for the postmaster and each of its processes: a crash.
    ///
    /// # Errors
    /// The server is the user's.
    pub fn kill(&mut self) -> Result<()> {
        self.own_mut("kill")?.service.kill().map(drop)
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
        self.own_mut("start")?.launch()
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
        let service = &mut self.own_mut(verb)?.service;
        service.signal(signal)?;
        for child in service.pid().map(process::children_of).unwrap_or_default() {
            process::signal_stranger(child, signal);
        }
        Ok(())
    }

    fn own(&self, verb: &str) -> Result<&Server> {
        match &self.kind {
            Kind::Own(server) => Ok(server),
            Kind::External { .. } => Err(external(verb)),
        }
    }

    fn own_mut(&mut self, verb: &str) -> Result<&mut Server> {
        match &mut self.kind {
            Kind::Own(server) => Ok(server),
            Kind::External { .. } => Err(external(verb)),
        }
    }
}

impl Server {
    fn prepare(tools: PostgresTools, options: &Options) -> Result<Self> {
        let folder = run_dir::make(&tools.run, "postgres")?;
        // A socket's path may have 107 bytes only: not below the repository.
        let sockets = run_dir::make(&std::env::temp_dir(), "walrelay-sockets")?;
        account::give(&sockets, tools.account)?;
        let server = Self { tools, sockets, port: run_dir::free_port()?, service: Service::new("postgres", folder) };
        if options.another_cluster {
            provision::initialize(&server.tools.bin, &server.data(), server.tools.account)?;
        } else {
            run_dir::copy(&server.tools.template, &server.data())?;
        }
        server.write_settings(options)?;
        server.write_rules(&options.hba)?;
        Ok(server)
    }

    fn data(&self) -> PathBuf {
        self.service.folder().join("data")
    }

    fn write_settings(&self, options: &Options) -> Result<()> {
        let mut file = File::options().append(true).open(self.data().join("postgresql.conf"))?;
        let mut set = |name: &str, value: &str| writeln!(file, "{name} = '{}'", value.replace('\'', "''"));
        for (name, value) in SETTINGS {
            set(name, value)?;
        }
        set("port", &self.port.to_string())?;
        set("unix_socket_directories", &self.sockets.display().to_string())?;
        if let Some(tls) = &options.tls {
            for (name, value) in self.place_tls(tls)? {
                set(name, value)?;
            }
        }
        for (name, value) in &options.settings {
            set(name, value)?;
        }
        Ok(())
    }

    /// Later lines win.
    fn append_settings<'a>(&self, settings: impl IntoIterator<Item = &'a (&'a str, &'a str)>) -> Result<()> {
        let mut file = File::options().append(true).open(self.data().join("postgresql.conf"))?;
        for (name, value) in settings {
            writeln!(file, "{name} = '{}'", value.replace('\'', "''"))?;
        }
        Ok(())
    }

    fn place_tls(&self, tls: &TlsFiles) -> Result<Vec<(&'static str, &'static str)>> {
        let mut settings = vec![("ssl", "on"), ("ssl_cert_file", "tls.crt"), ("ssl_key_file", "tls.key")];
        self.place_private(&tls.certificate, "tls.crt")?;
        self.place_private(&tls.key, "tls.key")?;
        if let Some(authority) = &tls.client_authority {
            self.place_private(authority, "tls.ca")?;
            settings.push(("ssl_ca_file", "tls.ca"));
        }
        Ok(settings)
    }

    fn place_private(&self, from: &Path, name: &str) -> Result<()> {
        let to = self.data().join(name);
        fs::copy(from, &to).with_context(|| format!("cannot copy {}", from.display()))?;
        // Postgres refuses a key that others may read.
        fs::set_permissions(&to, fs::Permissions::from_mode(0o600))?;
        account::give(&to, self.tools.account)
    }

    fn write_rules(&self, rules: &[String]) -> Result<()> {
        let mut lines = vec!["local all postgres trust"];
        if rules.is_empty() {
            lines.extend(TRUSTING);
        } else {
            lines.extend(rules.iter().map(String::as_str));
        }
        fs::write(self.data().join("pg_hba.conf"), lines.join("\n") + "\n")?;
        Ok(())
    }

    fn launch(&mut self) -> Result<()> {
        if self.service.pid().is_none() {
            self.remove_locks();
        }
        let mut command = Command::new(self.tools.bin.join("postgres"));
        command.arg("-D").arg(self.data()).current_dir("/");
        account::switch(&mut command, self.tools.account);
        let will = LastWill { ask_first: Some(Signal::QUIT), remove: vec![self.sockets.clone()] };
        self.service.launch(&mut command, will)?;
        let client = self.client("postgres");
        self.service.wait_until(PATIENCE, || client.connect(NoTls).is_ok())
    }

    /// Our last server is dead and reaped, so its lock files are stale; but its number may be in use again.
    fn remove_locks(&self) {
        drop(fs::remove_file(self.data().join("postmaster.pid")));
        drop(fs::remove_file(self.sockets.join(format!(".s.PGSQL.{}.lock", self.port))));
    }

    fn connect(&self, database: &str) -> Result<Client> {
        self.client(database).connect(NoTls).with_context(|| format!("cannot connect to database {database}"))
    }

    fn client(&self, database: &str) -> ::postgres::Config {
        let mut config = Client::configure();
        config.user("postgres").dbname(database).host_path(&self.sockets).port(self.port);
        config.application_name("walrelay-dev").connect_timeout(Duration::from_secs(10));
        config
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A hanging server takes no other signal than these two.
        drop(self.service.signal(Signal::CONT));
        drop(self.service.stop(Signal::QUIT, Duration::from_secs(5)));
        drop(fs::remove_dir_all(&self.sockets));
    }
}

/// One server for all tests of a process that need none of their own; ask for a database each. It ends with the
/// process, however that ends.
///
/// # Errors
/// As [`Postgres::given_or_own`]; the same error for everybody who asks.
pub fn shared_postgres() -> Result<&'static Postgres> {
    static SHARED: OnceLock<Result<Postgres, String>> = OnceLock::new();
    let shared = SHARED.get_or_init(|| Postgres::given_or_own().map_err(|error| format!("{error:#}")));
    shared.as_ref().map_err(|error| anyhow!("{error}"))
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

fn external(verb: &str) -> anyhow::Error {
    anyhow!("cannot {verb} the Postgres that {SOURCE_VARIABLE} names: it is yours; unset the variable")
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
        let mut given = Postgres { kind: Kind::External { url: "postgres://h/a".to_owned() } };
        for error in [given.stop(Mode::Fast).unwrap_err(), given.kill().unwrap_err(), given.pid().unwrap_err()] {
            assert!(error.to_string().contains(SOURCE_VARIABLE), "{error}");
        }
        assert_eq!(given.url("b"), "postgres://h/b");
    }
}
