//! A PgBouncer in front of a Postgres, out of the machine's own Debian packages; nothing is installed.
//!
//! In: the server's port, users with their passwords, a certificate. Out: a running PgBouncer on a free loopback port. Debian 12 has 1.18,
//! which refuses replication connections; 1.23 and later pass them.

use std::fmt::Write as _;
use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::account::{self, Account};
use crate::process::LastWill;
use crate::provision::{fill, lock, reachable_root, run, say};
use crate::run_dir;
use crate::service::Service;

/// Unpacks it with the libraries that it needs into the first argument.
const BRING: &str = r#"
set -eu
cd "$1"
libraries=$(apt-cache depends --important pgbouncer | sed -n 's/.*Depends: \(lib[a-z0-9.+-]*\)$/\1/p')
apt-get download -qq pgbouncer $libraries
for package in *.deb; do dpkg-deb --extract "$package" .; done
rm -f *.deb
"#;

/// A deadline that only a failure reaches.
const START: Duration = Duration::from_secs(30);

/// The server that it connects to.
#[derive(Debug, Clone, Copy)]
pub struct Front<'a> {
    /// The server's port on 127.0.0.1.
    pub target: u16,
    /// Names and passwords: it asks clients for them, and shows them to the server.
    pub users: &'a [(&'a str, &'a str)],
    /// Its certificate and key, PEM files: clients may use TLS.
    pub tls: [&'a Path; 2],
}

/// A running PgBouncer; it ends when dropped.
#[derive(Debug)]
pub struct PgBouncer {
    port: u16,
    _service: Service,
}

impl PgBouncer {
    /// Starts it.
    ///
    /// # Errors
    /// It cannot be brought, or does not start; the message carries the end of its log.
    pub fn start(front: &Front<'_>) -> Result<Self> {
        // It refuses to run as root, as Postgres does.
        let account = Account::for_postgres()?;
        let root = reachable_root(account)?;
        let home = bring(&root)?;
        let folder = run_dir::make(&root.join("run"), "pgbouncer")?;
        let port = run_dir::free_port()?;
        place(&folder, account, port, front)?;
        let mut command = Command::new(home.join("usr/sbin/pgbouncer"));
        command.arg(folder.join("pgbouncer.ini")).env("LD_LIBRARY_PATH", libraries(&home)?).current_dir(&folder);
        let mut service = Service::new("PgBouncer", folder);
        service.launch(account::switch(&mut command, account), LastWill::default())?;
        service.wait_until(START, || TcpStream::connect(("127.0.0.1", port)).is_ok())?;
        Ok(Self { port, _service: service })
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }
}

fn bring(root: &Path) -> Result<PathBuf> {
    let home = root.join("tools/pgbouncer");
    if !home.exists() {
        let _lock = lock(root)?;
        fill(&home, |part| {
            say("PgBouncer: out of Debian's packages");
            let mut script = Command::new("sh");
            run(script.args(["-c", BRING, "sh"]).arg(part), "apt-get", "apt of Debian or Ubuntu, after apt-get update")
        })?;
    }
    Ok(home)
}

/// The folder of its libraries, which is named after the machine.
fn libraries(home: &Path) -> Result<PathBuf> {
    let mut folders = fs::read_dir(home.join("usr/lib"))?.flatten().map(|entry| entry.path());
    folders.find(|folder| folder.to_string_lossy().ends_with("-linux-gnu")).context("no libraries beside PgBouncer")
}

fn place(folder: &Path, account: Option<Account>, port: u16, front: &Front<'_>) -> Result<()> {
    let mut users = String::new();
    for (name, password) in front.users {
        writeln!(users, "\"{}\" \"{}\"", name.replace('"', "\"\""), password.replace('"', "\"\""))?;
    }
    let [certificate, key] = front.tls;
    let at = folder.display();
    let settings = format!(
        "[databases]\n* = host=127.0.0.1 port={}\n\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n\
         auth_type = scram-sha-256\nauth_file = {at}/users\nclient_tls_sslmode = allow\nclient_tls_cert_file = {at}/tls.crt\n\
         client_tls_key_file = {at}/tls.key\n",
        front.target
    );
    let files = [
        ("users", users.into_bytes()),
        ("tls.crt", fs::read(certificate)?),
        ("tls.key", fs::read(key)?),
        ("pgbouncer.ini", settings.into_bytes()),
    ];
    for (name, text) in files {
        let file = folder.join(name);
        fs::write(&file, text)?;
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600))?;
        account::give(&file, account)?;
    }
    Ok(())
}
