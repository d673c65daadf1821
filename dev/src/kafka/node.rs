//! One broker's process: its folder, its properties, its storage, its start.
//!
//! In: options. Out: a node that is formatted, launched and waited for. It is ready when it names itself in its own
//! metadata, not when its port is open.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};
use data_encoding::BASE64URL_NOPAD;
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};

use super::options::{Member, Options};
use crate::process::{self, LastWill};
use crate::provision::{self, KafkaTools};
use crate::run_dir;
use crate::service::Service;

/// How long a broker may take to start or to stop, on a machine that has more to do.
pub(super) const PATIENCE: Duration = Duration::from_mins(3);

/// Listener names, with the protocol of each.
const PROTOCOLS: &str = "PLAINTEXT:PLAINTEXT,TAPPED:PLAINTEXT,SECOND:PLAINTEXT,CONTROLLER:PLAINTEXT,\
                         SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL";

/// Logs warnings only, to standard output; the broker's own file is not part of its jars.
const LOGGING: &str = r#"<Configuration status="warn">
  <Appenders><Console name="out"><PatternLayout pattern="%d %p %c{1}: %m%n"/></Console></Appenders>
  <Loggers><Root level="warn"><AppenderRef ref="out"/></Root></Loggers>
</Configuration>
"#;

/// The same for Kafka 3, which reads this alone.
const OLDER_LOGGING: &str = "log4j.rootLogger=WARN,out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%d %p %c{1}: %m%n
";

/// A broker that is a controller, too.
#[derive(Debug)]
pub struct Kafka {
    pub(super) tools: KafkaTools,
    pub(super) port: u16,
    pub(super) member: Member,
    pub(super) tap_port: u16,
    pub(super) second_tap_port: u16,
    pub(super) client: Vec<(String, String)>,
    pub(super) for_benchmarks: bool,
    pub(super) java_arguments: Vec<String>,
    pub(super) service: Service,
}

impl Kafka {
    /// Formats the storage of a broker that does not run yet: [`Kafka::launch`] and [`Kafka::wait_until_ready`].
    ///
    /// # Errors
    /// It cannot be brought, or not be formatted.
    pub fn prepare(options: &Options) -> Result<Self> {
        let tools = provision::kafka()?;
        let service = Service::new("kafka", run_dir::make(&tools.run, "kafka")?);
        let alone = || Ok(Member { id: 1, controllers: vec![run_dir::free_port()?], cluster: cluster_id() });
        let node = Self {
            tools,
            port: options.port.map_or_else(run_dir::free_port, Ok)?,
            member: options.member.clone().map_or_else(alone, Ok::<_, anyhow::Error>)?,
            tap_port: run_dir::free_port()?,
            second_tap_port: run_dir::free_port()?,
            client: options.client.clone(),
            for_benchmarks: options.for_benchmarks,
            java_arguments: options.java_arguments.clone(),
            service,
        };
        fs::write(node.logging(), LOGGING)?;
        fs::write(node.older_logging(), OLDER_LOGGING)?;
        fs::write(node.settings(), node.properties(options))?;
        node.format(&options.format_arguments)?;
        Ok(node)
    }

    fn settings(&self) -> PathBuf {
        self.service.folder().join("server.properties")
    }

    fn logging(&self) -> PathBuf {
        self.service.folder().join("log4j2.xml")
    }

    fn older_logging(&self) -> PathBuf {
        self.service.folder().join("log4j.properties")
    }

    pub(super) fn data(&self) -> PathBuf {
        self.service.folder().join("data")
    }

    fn properties(&self, options: &Options) -> String {
        let ours = self.own_properties(options);
        let overridden = |key: &str| options.properties.iter().any(|(theirs, _)| theirs == key);
        let ours = ours.into_iter().filter(|(key, _)| !overridden(key)).map(|(key, value)| (key.to_owned(), value));
        let lines = ours.chain(options.properties.iter().cloned()).map(|(key, value)| format!("{key}={value}\n"));
        let text: String = lines.collect();
        text.replace("{port}", &self.port.to_string()).replace("{controller_port}", &self.controller_port().to_string())
    }

    fn controller_port(&self) -> u16 {
        self.member.controllers.get(usize::from(self.member.id) - 1).copied().unwrap_or_default()
    }

    fn own_properties(&self, options: &Options) -> Vec<(&'static str, String)> {
        let fixed = |text: &str| text.to_owned();
        let mut listeners =
            vec![fixed("PLAINTEXT://127.0.0.1:{port}"), fixed("CONTROLLER://127.0.0.1:{controller_port}")];
        let mut advertised = vec![fixed("PLAINTEXT://127.0.0.1:{port}")];
        let taps = [
            ("TAPPED", self.tap_port, options.advertise_through),
            ("SECOND", self.second_tap_port, options.advertise_second),
        ];
        for (name, own, advertised_port) in taps {
            if let Some(port) = advertised_port {
                listeners.push(format!("{name}://127.0.0.1:{own}"));
                advertised.push(format!("{name}://127.0.0.1:{port}"));
            }
        }
        let voters = (1..).zip(&self.member.controllers).map(|(id, port)| format!("{id}@127.0.0.1:{port}"));
        let replicas = self.member.controllers.len();
        let in_sync = replicas.div_ceil(2).to_string();
        vec![
            ("process.roles", fixed("broker,controller")),
            ("node.id", self.member.id.to_string()),
            ("controller.quorum.voters", voters.collect::<Vec<_>>().join(",")),
            ("default.replication.factor", replicas.to_string()),
            ("min.insync.replicas", in_sync.clone()),
            ("controller.listener.names", fixed("CONTROLLER")),
            ("listeners", listeners.join(",")),
            ("advertised.listeners", advertised.join(",")),
            ("listener.security.protocol.map", fixed(PROTOCOLS)),
            ("log.dirs", self.data().display().to_string()),
            ("auto.create.topics.enable", options.auto_create_topics.to_string()),
            ("num.partitions", options.partitions.to_string()),
            ("offsets.topic.replication.factor", replicas.to_string()),
            ("offsets.topic.num.partitions", fixed("1")),
            ("transaction.state.log.replication.factor", replicas.to_string()),
            ("transaction.state.log.min.isr", in_sync.clone()),
            ("transaction.state.log.num.partitions", fixed("1")),
            ("share.coordinator.state.topic.replication.factor", replicas.to_string()),
            ("share.coordinator.state.topic.min.isr", in_sync),
            ("group.initial.rebalance.delay.ms", fixed("0")),
            // Records' timestamps may be a column's, of decades ago: by default such a record goes within five minutes.
            ("log.retention.ms", fixed("-1")),
            // 128 MiB by default, on the heap.
            ("log.cleaner.dedupe.buffer.size", fixed("2097152")),
        ]
    }

    fn format(&self, arguments: &[String]) -> Result<()> {
        let mut command = self.tool("kafka.tools.StorageTool");
        command.args(["format", "-t", &self.member.cluster, "-c"]).arg(self.settings()).args(arguments);
        process::finish(&mut command).context("cannot format Kafka's storage").map(drop)
    }

    /// A Java tool of Kafka's by its class, such as `org.apache.kafka.tools.TopicCommand`.
    pub fn tool(&self, class: &str) -> Command {
        let mut command = Command::new(&self.tools.java);
        let logging = [
            format!("-Dlog4j2.configurationFile={}", self.logging().display()),
            format!("-Dlog4j.configuration=file:{}", self.older_logging().display()),
        ];
        let heap = match (self.for_benchmarks, self.member.controllers.len()) {
            (true, 1) => ["-Xmx1g", "-XX:+UseG1GC"],
            (true, _) => ["-Xmx512m", "-XX:+UseG1GC"],
            (false, 1) => ["-Xmx512m", "-XX:+UseSerialGC"],
            (false, _) => ["-Xmx256m", "-XX:+UseSerialGC"],
        };
        command.args(heap);
        if !self.for_benchmarks {
            command.arg("-XX:TieredStopAtLevel=1").args(provision::shared_classes(&self.tools.libs));
        }
        command.args(&self.java_arguments);
        command.args(logging).arg("-cp").arg(self.tools.libs.join("*")).arg(class);
        command
    }

    /// Starts its process and does not wait.
    ///
    /// # Errors
    /// There is no Java.
    pub fn launch(&mut self) -> Result<()> {
        let mut command = self.tool("kafka.Kafka");
        command.arg(self.settings()).current_dir(self.service.folder());
        self.service.launch(&mut command, LastWill::default())
    }

    /// Waits until the broker itself names itself among those that serve.
    ///
    /// # Errors
    /// It does not start.
    pub fn wait_until_ready(&mut self) -> Result<()> {
        let mut config = self.client_config();
        config.set("reconnect.backoff.ms", "20").set("reconnect.backoff.max.ms", "100");
        let (client, id): (BaseConsumer, _) = (config.create()?, i32::from(self.member.id));
        self.service.wait_until(PATIENCE, || {
            let answer = client.fetch_metadata(None, Duration::from_secs(1));
            answer.is_ok_and(|metadata| metadata.brokers().iter().any(|broker| broker.id() == id))
        })
    }

    /// A client configuration that reaches it.
    pub fn client_config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", self.brokers()).set("client.id", "walrelay-dev");
        for (key, value) in &self.client {
            config.set(key, value);
        }
        config
    }
}

/// 16 random bytes as Kafka writes them. A name that begins with a dash would be an option of its tools.
pub(crate) fn cluster_id() -> String {
    BASE64URL_NOPAD.encode(&rand::random::<[u8; 16]>()).replace('-', "A")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value_of<'a>(properties: &'a str, key: &str) -> Option<&'a str> {
        properties.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='))
    }

    fn node() -> Kafka {
        Kafka {
            tools: KafkaTools { libs: PathBuf::new(), run: PathBuf::new(), java: PathBuf::new() },
            port: 1,
            member: Member { id: 1, controllers: vec![2], cluster: cluster_id() },
            tap_port: 3,
            second_tap_port: 4,
            client: Vec::new(),
            for_benchmarks: false,
            java_arguments: Vec::new(),
            service: Service::new("kafka", PathBuf::from("/nowhere")),
        }
    }

    #[test]
    fn given_properties_win_and_ports_are_filled_in() {
        let options = Options {
            properties: vec![("listeners".to_owned(), "SSL://127.0.0.1:{port}".to_owned())],
            ..Options::default()
        };
        let text = node().properties(&options);
        assert_eq!(text.matches("\nlisteners=").count(), 1);
        assert_eq!(value_of(&text, "listeners"), Some("SSL://127.0.0.1:1"));
        assert_eq!(value_of(&text, "controller.quorum.voters"), Some("1@127.0.0.1:2"));
    }

    #[test]
    fn a_member_knows_the_others_and_two_of_three_have_to_be_in_sync() {
        let mut node = node();
        node.member = Member { id: 2, controllers: vec![21, 22, 23], cluster: cluster_id() };
        let text = node.properties(&Options::default());
        assert_eq!(value_of(&text, "node.id"), Some("2"));
        assert!(value_of(&text, "listeners").unwrap().ends_with("CONTROLLER://127.0.0.1:22"));
        assert_eq!(value_of(&text, "controller.quorum.voters"), Some("1@127.0.0.1:21,2@127.0.0.1:22,3@127.0.0.1:23"));
        assert_eq!(value_of(&text, "transaction.state.log.replication.factor"), Some("3"));
        assert_eq!(value_of(&text, "min.insync.replicas"), Some("2"));
    }

    #[test]
    fn a_tap_is_advertised_and_not_listened_on() {
        let text = node().properties(&Options { advertise_through: Some(9), ..Options::default() });
        assert!(value_of(&text, "listeners").unwrap().ends_with("TAPPED://127.0.0.1:3"));
        assert!(value_of(&text, "advertised.listeners").unwrap().ends_with("TAPPED://127.0.0.1:9"));
    }
}
