//! A physical standby of one of our servers.
//!
//! In: a server, settings. Out: a second one that follows it, on a port of its own. The first is stopped for the copy and
//! comes back: a copy of a server at rest needs no backup mode and no program that is not among its own.

use std::fs;

use anyhow::{Context as _, Result};

use super::{Mode, Postgres};
use crate::service::Service;
use crate::{account, run_dir};

impl Postgres {
    /// Makes a standby of it, with more lines of `postgresql.conf`. Slots are not copied; it streams without one unless a
    /// setting names one (`primary_slot_name`), which may be made afterwards.
    ///
    /// # Errors
    /// One of both does not stop or start.
    pub fn standby(&mut self, settings: &[(&str, &str)]) -> Result<Self> {
        self.stop(Mode::Fast)?;
        let standby = self.copied(settings);
        self.start_again()?;
        let mut standby = standby?;
        standby.start_again()?;
        Ok(standby)
    }

    /// Has it come back as a standby that follows nobody.
    ///
    /// # Errors
    /// It does not stop and start.
    pub fn demote(&mut self) -> Result<()> {
        self.stop(Mode::Fast)?;
        self.wait_for_promotion()?;
        self.start_again()
    }

    /// Promotes a standby, and waits until it takes writes.
    ///
    /// # Errors
    /// It is no standby.
    pub fn promote(&self) -> Result<()> {
        self.connect(None)?.execute("SELECT pg_promote()", &[])?;
        Ok(())
    }
    /// Its next start is that of a standby.
    fn wait_for_promotion(&self) -> Result<()> {
        let signal = self.data().join("standby.signal");
        fs::write(&signal, "")?;
        account::give(&signal, self.tools.account)
    }

    fn copied(&self, settings: &[(&str, &str)]) -> Result<Self> {
        let copy = Self {
            tools: self.tools.clone(),
            service: Service::new("postgres", run_dir::make(&self.tools.run, "postgres")?),
            sockets: run_dir::make(&std::env::temp_dir(), "walrelay-sockets")?,
            port: run_dir::free_port()?,
        };
        account::give(&copy.sockets, copy.tools.account)?;
        run_dir::copy(&self.data(), &copy.data())?;
        for slot in fs::read_dir(copy.data().join("pg_replslot")).context("no folder of slots")? {
            fs::remove_dir_all(slot?.path())?;
        }
        copy.wait_for_promotion()?;
        let primary =
            format!("host=127.0.0.1 port={} user=postgres dbname=postgres application_name=standby", self.port);
        let (port, sockets) = (copy.port.to_string(), copy.sockets.display().to_string());
        let own = [("primary_conninfo", primary.as_str()), ("port", &port), ("unix_socket_directories", &sockets)];
        copy.append_settings(own.iter().chain(settings))?;
        Ok(copy)
    }
}
