//! RabbitMQ on an Erlang of its own: everything it writes is below one folder, everything listens on 127.0.0.1.
//!
//! Erlang needs epmd, and starts it as a daemon, which would outlive it. So epmd is started first, as a child of the server.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result};

use super::{Program, text};
use crate::run_dir;

/// RabbitMQ by its folders.
#[derive(Debug)]
pub(super) struct RabbitMq {
    erlang: PathBuf,
    sbin: PathBuf,
}

/// The file with the ports of Erlang's distribution and of epmd.
const PORTS: &str = "erlang-ports";

impl RabbitMq {
    /// The one that is unpacked in `home`.
    pub(super) fn new(home: &Path) -> Result<Self> {
        let packages = home.join("root/usr/lib");
        let mut releases = fs::read_dir(packages.join("rabbitmq/lib"))?.flatten().map(|entry| entry.path());
        let release = releases.next().context("no RabbitMQ in its folder")?;
        Ok(Self { erlang: packages.join("erlang"), sbin: release.join("sbin") })
    }

    /// A program of RabbitMQ's or Erlang's with everything that it looks for in its environment.
    fn prepared(&self, program: &Path, folder: &Path) -> Command {
        let ports = fs::read_to_string(folder.join(PORTS)).unwrap_or_default();
        let (distribution, epmd) = ports.split_once(' ').unwrap_or_default();
        let mut path = self.erlang.join("bin").into_os_string();
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_default());
        let mut command = Command::new(program);
        command.env("ERL_ROOTDIR", &self.erlang).env("PATH", path).env("HOME", folder).env("LANG", "C.UTF-8");
        command.env("ERL_EPMD_PORT", epmd).env("ERL_EPMD_ADDRESS", "127.0.0.1");
        // The node's name has no port in it, so that its data are its own after a restart.
        command.env("RABBITMQ_NODENAME", "rabbit@localhost").env("RABBITMQ_DIST_PORT", distribution);
        let files = [
            ("PID_FILE", "rabbit.pid"),
            ("MNESIA_BASE", "mnesia"),
            ("LOG_BASE", "log-files"),
            ("SCHEMA_DIR", "schema"),
            ("GENERATED_CONFIG_DIR", "generated"),
            ("FEATURE_FLAGS_FILE", "feature_flags"),
            ("CONF_ENV_FILE", "no-such-file"),
            ("CONFIG_FILE", "rabbitmq.conf"),
            ("ADVANCED_CONFIG_FILE", "advanced.config"),
            ("ENABLED_PLUGINS_FILE", "enabled_plugins"),
        ];
        for (name, file) in files {
            command.env(format!("RABBITMQ_{name}"), folder.join(file));
        }
        command.env("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", "+S 2:2 -kernel inet_dist_use_interface {127,0,0,1}");
        command.env("RABBITMQ_CTL_ERL_ARGS", "+S 1:1");
        command
    }
}

impl Program for RabbitMq {
    fn configure(&self, folder: &Path, port: u16, more: &[String]) -> Result<()> {
        let lines = [
            format!("listeners.tcp.1 = 127.0.0.1:{port}"),
            "vm_memory_high_watermark.absolute = 1GB".to_owned(),
            "disk_free_limit.absolute = 50MB".to_owned(),
            "log.console = true".to_owned(),
            "log.file = false".to_owned(),
        ];
        fs::write(folder.join("rabbitmq.conf"), text(&lines, more))?;
        fs::write(folder.join("enabled_plugins"), "[].\n")?;
        fs::create_dir_all(folder.join("schema"))?;
        let ports = folder.join(PORTS);
        if !ports.exists() {
            fs::write(ports, format!("{} {}", run_dir::free_port()?, run_dir::free_port()?))?;
        }
        Ok(())
    }

    fn command(&self, folder: &Path, port: u16) -> Command {
        let mut command = self.prepared(Path::new("sh"), folder);
        command.args(["-c", "epmd >/dev/null 2>&1 & exec \"$0\""]).arg(self.sbin.join("rabbitmq-server"));
        command.env("RABBITMQ_NODE_IP_ADDRESS", "127.0.0.1").env("RABBITMQ_NODE_PORT", port.to_string());
        command
    }

    /// It listens last of all, and greets a client that speaks its protocol with a frame of type 1.
    fn answers(&self, _folder: &Path, port: u16) -> bool {
        let greeted = || -> io::Result<bool> {
            let mut stream = TcpStream::connect(("127.0.0.1", port))?;
            stream.set_read_timeout(Some(Duration::from_secs(5)))?;
            stream.write_all(b"AMQP\x00\x00\x09\x01")?;
            let mut frame = [0];
            stream.read_exact(&mut frame).map(|()| frame == [1])
        };
        greeted().unwrap_or(false)
    }

    fn control(&self, folder: &Path) -> Option<Command> {
        Some(self.prepared(&self.sbin.join("rabbitmqctl"), folder))
    }

    /// The shell that starts Erlang stays in front of it.
    fn server(&self, folder: &Path) -> Option<i32> {
        fs::read_to_string(folder.join("rabbit.pid")).ok()?.trim().parse().ok()
    }

    fn stopped(&self, folder: &Path) {
        let mut epmd = self.prepared(&self.erlang.join("bin/epmd"), folder);
        drop(epmd.arg("-kill").stdout(Stdio::null()).stderr(Stdio::null()).status());
    }
}
