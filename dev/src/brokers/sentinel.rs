//! A Sentinel: Valkey's program, which watches a primary, and makes a replica the primary in its stead.
//!
//! In: the port of a primary on 127.0.0.1. Out: a Sentinel that decides alone. It writes the configurations of those it watches.

use std::fs;
use std::time::Duration;

use anyhow::Result;
use rustix::process::Signal;

use super::{Kind, RespConnection, text};
use crate::process::LastWill;
use crate::service::Service;
use crate::{provision, run_dir};

/// How long it may take to start, on a machine that has more to do.
const START: Duration = Duration::from_mins(1);

/// A Sentinel of our own; it ends when dropped.
#[derive(Debug)]
pub struct Sentinel {
    name: String,
    port: u16,
    _service: Service,
}

impl Sentinel {
    /// Starts one that calls the primary on this port `name`; `more` lines of configuration.
    ///
    /// # Errors
    /// It cannot be brought, or does not start; the message carries the end of its log.
    pub fn start(name: &str, primary: u16, more: &[&str]) -> Result<Self> {
        let program = Kind::Valkey.provision()?;
        let folder = run_dir::make(&provision::dev_dir().join("run"), "sentinel")?;
        let port = run_dir::free_port()?;
        let lines = [
            "bind 127.0.0.1".to_owned(),
            format!("port {port}"),
            format!("dir {}", folder.display()),
            format!("sentinel monitor {name} 127.0.0.1 {primary} 1"),
            format!("sentinel down-after-milliseconds {name} 2000"),
            format!("sentinel failover-timeout {name} 10000"),
        ];
        let more: Vec<String> = more.iter().map(|line| (*line).to_owned()).collect();
        let file = folder.join("sentinel.conf");
        fs::write(&file, text(&lines, &more))?;
        let mut service = Service::new("sentinel", folder);
        let mut command = std::process::Command::new(program);
        command.arg(&file).arg("--sentinel").current_dir(service.folder());
        service.launch(&mut command, LastWill { ask_first: Some(Signal::TERM), ..LastWill::default() })?;
        let answers = || RespConnection::open(port).is_ok_and(|mut connection| connection.call(&["PING"]).is_ok());
        service.wait_until(START, answers)?;
        Ok(Self { name: name.to_owned(), port, _service: service })
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// A connection to it.
    ///
    /// # Errors
    /// It does not answer.
    pub fn resp(&self) -> Result<RespConnection> {
        RespConnection::open(self.port)
    }

    /// The port of the primary, as it says; `None`: it does not know.
    ///
    /// # Errors
    /// It does not answer.
    pub fn primary(&self) -> Result<Option<u16>> {
        let reply = self.resp()?.call(&["SENTINEL", "get-master-addr-by-name", &self.name])?;
        Ok(reply.items().get(1).and_then(|port| port.text().parse().ok()))
    }

    /// How many replicas of the primary it knows and sees.
    ///
    /// # Errors
    /// It does not answer.
    pub fn replicas(&self) -> Result<usize> {
        let reply = self.resp()?.call(&["SENTINEL", "REPLICAS", &self.name])?;
        let is_up = |flags: &str| flags.split(',').all(|flag| flag == "slave");
        let flags = reply.items().iter().filter_map(|replica| {
            let mut words = replica.items().chunks_exact(2);
            words.find_map(|pair| (pair.first()?.text() == "flags").then(|| pair.last().map(super::Reply::text))?)
        });
        Ok(flags.filter(|flags| is_up(flags)).count())
    }
}
