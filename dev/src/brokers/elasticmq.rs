//! ElasticMQ, the part of SQS that fits on one machine: queues and messages survive a restart.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use super::{Program, text};
use crate::{http, provision};

/// ElasticMQ by its jars.
#[derive(Debug)]
pub(super) struct ElasticMq {
    pub(super) libs: PathBuf,
    /// The JVM's argument for classes that are loaded already.
    pub(super) classes: Option<String>,
}

impl Program for ElasticMq {
    fn configure(&self, folder: &Path, port: u16, more: &[String]) -> Result<()> {
        let address = format!("host = \"127.0.0.1\", port = {port}, context-path = \"\"");
        let bind = format!("bind-port = {port}, bind-hostname = \"127.0.0.1\"");
        // Without a delay: else what was acknowledged in the last half second dies with the process.
        let store = folder.join("messages");
        let lines = [
            "include classpath(\"application.conf\")".to_owned(),
            format!("node-address {{ protocol = http, {address} }}"),
            format!("rest-sqs {{ enabled = true, {bind}, sqs-limits = strict }}"),
            "rest-stats { enabled = false }".to_owned(),
            // Else the database is closed at SIGTERM while ElasticMQ still acknowledges messages.
            format!(
                "messages-storage {{ enabled = true, uri = \"jdbc:h2:{};WRITE_DELAY=0;DB_CLOSE_ON_EXIT=FALSE\" }}",
                store.display()
            ),
        ];
        Ok(fs::write(folder.join("elasticmq.conf"), text(&lines, more))?)
    }

    fn command(&self, folder: &Path, _port: u16) -> Command {
        let mut command = Command::new(provision::java());
        command.args(["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]).args(&self.classes);
        command.arg(format!("-Dconfig.file={}", folder.join("elasticmq.conf").display()));
        command.arg("-cp").arg(self.libs.join("*")).arg("org.elasticmq.server.Main");
        command
    }

    fn answers(&self, _folder: &Path, port: u16) -> bool {
        http::get(port, "/?Action=ListQueues").is_ok_and(|answer| answer.status == 200)
    }
}
