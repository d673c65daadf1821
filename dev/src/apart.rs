//! A network namespace beside this one, with one way between the two that can be cut.
//!
//! In: nothing. Out: an address of this side, programs that run on the other side, packets that are dropped on both sides. A proxy
//! cannot stand in for it: it has acknowledged the bytes that it holds back, and so hides what the kernel sends by itself once the way is
//! whole again. Unix sockets work across; so a program on the other side reaches Postgres by its socket.
//!
//! Needs root, `ip` (iproute2) and `nft` (nftables).

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context as _, Result, bail};

use crate::process;

/// What the rules are in.
const TABLE: &str = "walrelay_apart";

/// The other side of a way.
#[derive(Debug)]
pub struct Apart {
    name: String,
    /// The first three numbers of both addresses.
    net: String,
}

impl Apart {
    /// Makes namespace and way.
    ///
    /// # Errors
    /// No namespace can be made: the message says what is missing.
    pub fn make() -> Result<Self> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        if !rustix::process::geteuid().is_root() {
            bail!("network namespaces can be made by root only: run this test as root");
        }
        let number = std::process::id().wrapping_mul(7) + MADE.fetch_add(1, Ordering::Relaxed);
        let net = format!("10.{}.{}", 200 + number / 250 % 50, number % 250);
        let made = Self { name: format!("walrelay{number}"), net };
        made.furnish().context("no network namespace with a veth pair: iproute2, nftables and root are needed")?;
        Ok(made)
    }

    fn furnish(&self) -> Result<()> {
        let Self { name, net } = self;
        let (ours, theirs) = (self.ours(), self.theirs());
        ip(&["netns", "add", name])?;
        ip(&["link", "add", &ours, "type", "veth", "peer", "name", &theirs])?;
        ip(&["link", "set", &theirs, "netns", name])?;
        ip(&["addr", "add", &format!("{net}.1/24"), "dev", &ours])?;
        ip(&["link", "set", &ours, "up"])?;
        ip(&["-n", name, "addr", "add", &format!("{net}.2/24"), "dev", &theirs])?;
        ip(&["-n", name, "link", "set", &theirs, "up"])?;
        ip(&["-n", name, "link", "set", "lo", "up"])?;
        // The table is made now, so that a missing `nft` shows at the beginning.
        self.both(&format!("add table inet {}", self.table()))
    }

    fn ours(&self) -> String {
        format!("{}a", self.name)
    }

    fn theirs(&self) -> String {
        format!("{}b", self.name)
    }

    fn table(&self) -> String {
        format!("{TABLE}_{}", self.name)
    }

    /// This side's address.
    pub fn address(&self) -> String {
        format!("{}.1", self.net)
    }

    /// A program on the other side: what to start, and its first arguments.
    pub fn inside(&self, program: &Path) -> (PathBuf, Vec<OsString>) {
        let words = ["netns", "exec", &self.name].map(OsString::from);
        (PathBuf::from("ip"), words.into_iter().chain([program.into()]).collect())
    }

    /// Drops every packet between the two sides as it arrives, on both.
    ///
    /// # Errors
    /// The rules cannot be set.
    pub fn cut(&self) -> Result<()> {
        let table = self.table();
        let rules = |interface: &str| {
            format!(
                "add chain inet {table} cut {{ type filter hook input priority -300; }}\n\
                 add rule inet {table} cut iifname \"{interface}\" drop"
            )
        };
        self.nft(false, &rules(&self.ours()))?;
        self.nft(true, &rules(&self.theirs()))
    }

    /// Lets the packets through again.
    ///
    /// # Errors
    /// The rules cannot be taken away.
    pub fn heal(&self) -> Result<()> {
        let table = self.table();
        self.both(&format!("delete table inet {table}\nadd table inet {table}"))
    }

    fn both(&self, rules: &str) -> Result<()> {
        self.nft(false, rules)?;
        self.nft(true, rules)
    }

    fn nft(&self, inside: bool, rules: &str) -> Result<()> {
        let mut command = if inside {
            let mut command = Command::new("ip");
            command.args(["netns", "exec", &self.name, "nft"]);
            command
        } else {
            Command::new("nft")
        };
        process::finish(command.arg(rules)).map(drop)
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        // With the namespace, both ends of the veth pair go.
        drop(self.nft(false, &format!("delete table inet {}", self.table())));
        drop(ip(&["netns", "del", &self.name]));
        drop(ip(&["link", "del", &self.ours()]));
    }
}

fn ip(arguments: &[&str]) -> Result<()> {
    process::finish(Command::new("ip").args(arguments)).with_context(|| format!("ip {arguments:?}")).map(drop)
}
