//! One server's process: its data directory, its settings and rules, its start.
//!
//! In: options. Out: a server on a free port and a Unix socket, which is ready when it lets somebody in.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use ::postgres::{Client, NoTls};
use anyhow::{Context as _, Result};
use rustix::process::Signal;

use super::options::{Options, TlsFiles};
use crate::process::LastWill;
use crate::provision::{self, PostgresTools};
use crate::service::Service;
use crate::{account, run_dir};

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
pub(super) const PATIENCE: Duration = Duration::from_mins(1);

/// A server.
#[derive(Debug)]
pub struct Postgres {
    pub(super) tools: PostgresTools,
    pub(super) sockets: PathBuf,
    pub(super) port: u16,
    pub(super) service: Service,
}

impl Postgres {
    pub(super) fn prepare(options: &Options) -> Result<Self> {
        let tools = provision::postgres(options.major)?;
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

    pub(super) fn data(&self) -> PathBuf {
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
    pub(super) fn append_settings<'a>(&self, settings: impl IntoIterator<Item = &'a (&'a str, &'a str)>) -> Result<()> {
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

    /// Starts it on the same data and the same port after a stop or a kill; nothing happens when it is up.
    ///
    /// # Errors
    /// It does not start; the message carries the end of its log.
    pub fn start_again(&mut self) -> Result<()> {
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

    pub(super) fn client(&self, database: &str) -> ::postgres::Config {
        let mut config = Client::configure();
        config.user("postgres").dbname(database).host_path(&self.sockets).port(self.port);
        config.application_name("walrelay-dev").connect_timeout(Duration::from_secs(10));
        config
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // A hanging server takes no other signal than these two.
        drop(self.service.signal(Signal::CONT));
        drop(self.service.stop(Signal::QUIT, Duration::from_secs(5)));
        drop(fs::remove_dir_all(&self.sockets));
    }
}
