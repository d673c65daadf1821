//! A network namespace beside this one, with one way between the two that can be cut.
//!
//! In: nothing. Out: an address of this side, programs that run on the other side, packets that are dropped on both sides. A proxy
//! cannot stand in for it: it has acknowledged the bytes that it holds back, and so hides what the kernel sends by itself once the way is
//! whole again. Unix sockets work across; so a program on the other side reaches Postgres by its socket.
//!
//! Needs root and `ip` (iproute2).

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context as _, Result, bail};

use crate::process;

/// A hardware address that no interface has.
const NOBODY: &str = "02:00:00:00:00:01";

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
        made.furnish().context("no network namespace with a veth pair: iproute2 and root are needed")?;
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
        ip(&["-n", name, "link", "set", "lo", "up"])
    }

    fn ours(&self) -> String {
        format!("{}a", self.name)
    }

    fn theirs(&self) -> String {
        format!("{}b", self.name)
    }

    /// This side's address.
    pub fn address(&self) -> String {
        format!("{}.1", self.net)
    }

    /// The other side's address.
    pub fn far_address(&self) -> String {
        format!("{}.2", self.net)
    }

    /// A program on the other side: what to start, and its first arguments.
    pub fn inside(&self, program: &Path) -> (PathBuf, Vec<OsString>) {
        let words = ["netns", "exec", &self.name].map(OsString::from);
        (PathBuf::from("ip"), words.into_iter().chain([program.into()]).collect())
    }

    /// Drops every packet between the two sides as it arrives, on both: each sends to a hardware address that the other has not.
    ///
    /// # Errors
    /// The neighbour's address cannot be set.
    pub fn cut(&self) -> Result<()> {
        self.both(&["neigh", "replace"], &["lladdr", NOBODY, "nud", "permanent"])
    }

    /// Lets the packets through again.
    ///
    /// # Errors
    /// The neighbour's address cannot be taken away.
    pub fn heal(&self) -> Result<()> {
        self.both(&["neigh", "del"], &[])
    }

    /// What is done with each side's entry for the other.
    fn both(&self, action: &[&str], more: &[&str]) -> Result<()> {
        let Self { name, net } = self;
        ip(&[action, &[&format!("{net}.2"), "dev", &self.ours()], more].concat())?;
        ip(&[&["-n", name], action, &[&format!("{net}.1"), "dev", &self.theirs()], more].concat())
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        // With the namespace, both ends of the veth pair go.
        drop(ip(&["netns", "del", &self.name]));
        drop(ip(&["link", "del", &self.ours()]));
    }
}

fn ip(arguments: &[&str]) -> Result<()> {
    process::finish(Command::new("ip").args(arguments)).with_context(|| format!("ip {arguments:?}")).map(drop)
}
