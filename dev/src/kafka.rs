//! A Kafka of one's own: one KRaft node, or a member of a [cluster](crate::cluster).
//!
//! In: broker properties, memory. Out: a broker that answers, on a free loopback port, that can be stopped, killed,
//! suspended and started again on the same data and port. A cluster that the user has (`WALRELAY_TEST_BROKERS`) can
//! stand in where nothing of that is needed.
//!
//! Ready means that a metadata request names the broker: the port is open well before that, and a broker that was
//! killed is fenced until its old session has expired (about 6 s).

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, AlterConfig, NewTopic, ResourceSpecifier, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rustix::process::Signal;

use crate::process::{self, Guarded, LastWill};
use crate::provision::{self, KafkaTools};
use crate::{run_dir, wait::block_on};

/// Names a Kafka of the user's own for tests and demo: bootstrap servers.
pub const BROKERS_VARIABLE: &str = "WALRELAY_TEST_BROKERS";

/// How long a broker may take to start or to stop.
const PATIENCE: Duration = Duration::from_mins(1);

/// How long one request may take.
const REQUEST: Duration = Duration::from_secs(10);

/// Listener names, with the protocol of each.
const PROTOCOLS: &str = "PLAINTEXT:PLAINTEXT,TAPPED:PLAINTEXT,CONTROLLER:PLAINTEXT,\
                         SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL";

/// Logs warnings only, to standard output; the broker's own file is not part of its jars.
const LOGGING: &str = r#"<Configuration status="warn">
  <Appenders><Console name="out"><PatternLayout pattern="%d %p %c{1}: %m%n"/></Console></Appenders>
  <Loggers><Root level="warn"><AppenderRef ref="out"/></Root></Loggers>
</Configuration>
"#;

/// What the broker is to be.
#[derive(Debug, Clone)]
pub struct Options {
    /// More lines of `server.properties`; they win over ours. `{port}` and `{controller_port}` are filled in.
    pub properties: Vec<(String, String)>,
    /// Whether a record for an unknown topic makes it.
    pub auto_create_topics: bool,
    /// The number of partitions of a topic that is made without saying.
    pub partitions: u32,
    /// The port to listen on; `None`: any free one.
    pub port: Option<u16>,
    /// A port that a [`crate::tap::Tap`] listens on: one more listener is opened ([`Kafka::tap_target`]) that tells
    /// its clients to come back through that port.
    pub advertise_through: Option<u16>,
    /// More arguments for formatting the storage, such as `--add-scram`.
    pub format_arguments: Vec<String>,
    /// What a client needs to get in, as librdkafka properties; none: plain text.
    pub client: Vec<(String, String)>,
    /// For measuring: all of the compiler and 1 GiB of heap; tests want a quick start instead.
    pub for_benchmarks: bool,
    /// Its place among several nodes; `None`: it is alone.
    pub member: Option<Member>,
}

/// One node's place in a cluster, each of whose nodes is broker and controller.
#[derive(Debug, Clone)]
pub struct Member {
    /// Its `node.id`, from 1: its place in `controllers`.
    pub id: u16,
    /// Every node's controller port, in the order of their ids.
    pub controllers: Vec<u16>,
    /// What all of them are formatted with.
    pub cluster: String,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            properties: Vec::new(),
            auto_create_topics: true,
            partitions: 3,
            port: None,
            advertise_through: None,
            format_arguments: Vec::new(),
            client: Vec::new(),
            for_benchmarks: false,
            member: None,
        }
    }
}

/// A Kafka: our own, or one that the user has.
#[derive(Debug)]
pub struct Kafka {
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Own(Box<Node>),
    External { brokers: String },
}

/// A broker that is a controller, too; `process` is `None` while it is down.
#[derive(Debug)]
struct Node {
    tools: KafkaTools,
    folder: PathBuf,
    port: u16,
    member: Member,
    tap_port: u16,
    client: Vec<(String, String)>,
    for_benchmarks: bool,
    process: Option<Guarded>,
}

impl Kafka {
    /// Starts a broker of our own on empty storage.
    ///
    /// # Errors
    /// It cannot be brought, or does not start; the message carries the end of its log.
    pub fn start(options: &Options) -> Result<Self> {
        let mut kafka = Self::prepare(options)?;
        kafka.start_again()?;
        Ok(kafka)
    }

    /// Formats the storage of a broker that does not run yet: [`Kafka::launch`] and [`Kafka::wait_until_ready`].
    ///
    /// # Errors
    /// It cannot be brought, or not be formatted.
    pub fn prepare(options: &Options) -> Result<Self> {
        Ok(Self { kind: Kind::Own(Box::new(Node::prepare(provision::kafka()?, options)?)) })
    }

    /// The cluster of `WALRELAY_TEST_BROKERS` if that is set, else one of our own with default options.
    ///
    /// # Errors
    /// As [`Kafka::start`]; or the named cluster cannot be reached.
    pub fn given_or_own() -> Result<Self> {
        match std::env::var(BROKERS_VARIABLE) {
            Ok(brokers) if !brokers.is_empty() => {
                let given = Self { kind: Kind::External { brokers } };
                given.topics().with_context(|| format!("the Kafka of {BROKERS_VARIABLE} does not answer"))?;
                Ok(given)
            }
            _ => Self::start(&Options::default()),
        }
    }

    /// Whether the cluster is the user's, so that it cannot be stopped.
    pub fn is_external(&self) -> bool {
        matches!(self.kind, Kind::External { .. })
    }

    /// Its bootstrap servers.
    pub fn brokers(&self) -> String {
        match &self.kind {
            Kind::Own(node) => format!("127.0.0.1:{}", node.port),
            Kind::External { brokers } => brokers.clone(),
        }
    }

    /// A client configuration that gets in.
    pub fn client_config(&self) -> ClientConfig {
        match &self.kind {
            Kind::Own(node) => node.client_config(),
            Kind::External { brokers } => base_config(brokers),
        }
    }

    /// Its port on 127.0.0.1.
    ///
    /// # Errors
    /// The cluster is the user's.
    pub fn port(&self) -> Result<u16> {
        Ok(self.own("ask for the port of")?.port)
    }

    /// Where a tap forwards to; see [`Options::advertise_through`].
    ///
    /// # Errors
    /// The cluster is the user's.
    pub fn tap_target(&self) -> Result<String> {
        Ok(format!("127.0.0.1:{}", self.own("put a tap in front of")?.tap_port))
    }

    /// The broker's process id; `None` while it is down.
    ///
    /// # Errors
    /// The cluster is the user's.
    pub fn pid(&self) -> Result<Option<u32>> {
        Ok(self.own("ask for the process of")?.process.as_ref().map(Guarded::pid))
    }

    /// Its log.
    ///
    /// # Errors
    /// The cluster is the user's.
    pub fn log(&self) -> Result<PathBuf> {
        Ok(self.own("read the log of")?.log())
    }

    /// A Java tool of Kafka's by its class, such as `org.apache.kafka.tools.TopicCommand`.
    ///
    /// # Errors
    /// The cluster is the user's.
    pub fn tool(&self, class: &str) -> Result<Command> {
        Ok(self.own("use the tools of")?.java(class))
    }

    /// The topics there are, without Kafka's own.
    ///
    /// # Errors
    /// It does not answer.
    pub fn topics(&self) -> Result<Vec<String>> {
        let client: BaseConsumer = self.client_config().create()?;
        let metadata = client.fetch_metadata(None, REQUEST)?;
        let names = metadata.topics().iter().map(|topic| topic.name().to_owned());
        Ok(names.filter(|name| !name.starts_with("__")).collect())
    }

    /// Creates a topic with topic settings such as `max.message.bytes`, and a replica on each broker of ours.
    ///
    /// # Errors
    /// There is one of that name, or it is refused.
    pub fn create_topic(&self, name: &str, partitions: u32, settings: &[(&str, &str)]) -> Result<()> {
        let partitions = i32::try_from(partitions).context("too many partitions")?;
        let topic = NewTopic::new(name, partitions, TopicReplication::Fixed(self.replicas()));
        let topic = settings.iter().fold(topic, |topic, (key, value)| topic.set(key, value));
        let results = block_on(self.admin()?.create_topics([&topic], &admin_options()))?;
        refused(name, results)
    }

    /// Gives a topic these settings, and the defaults for all others.
    ///
    /// # Errors
    /// There is no such topic, or it is refused.
    pub fn alter_topic(&self, name: &str, settings: &[(&str, &str)]) -> Result<()> {
        let change = AlterConfig::new(ResourceSpecifier::Topic(name));
        let change = settings.iter().fold(change, |change, (key, value)| change.set(key, value));
        for result in block_on(self.admin()?.alter_configs([&change], &admin_options()))? {
            result.map_err(|(_, code)| anyhow!("Kafka refuses that for topic {name}: {code}"))?;
        }
        Ok(())
    }

    /// Deletes a topic with its records.
    ///
    /// # Errors
    /// There is none, or it is refused.
    pub fn delete_topic(&self, name: &str) -> Result<()> {
        let results = block_on(self.admin()?.delete_topics(&[name], &admin_options()))?;
        refused(name, results)
    }

    /// Stops it cleanly; waits for at most 60 s.
    ///
    /// # Errors
    /// The cluster is the user's, or it does not end in time.
    pub fn stop(&mut self) -> Result<()> {
        if let Some(mut process) = self.own_mut("stop")?.process.take() {
            process.signal(Signal::TERM)?;
            process.wait(PATIENCE)?;
        }
        Ok(())
    }

    /// SIGKILL: a crash.
    ///
    /// # Errors
    /// The cluster is the user's.
    pub fn kill(&mut self) -> Result<()> {
        if let Some(mut process) = self.own_mut("kill")?.process.take() {
            process.kill_tree()?;
        }
        Ok(())
    }

    /// SIGSTOP: it hangs, connections stay open.
    ///
    /// # Errors
    /// The cluster is the user's.
    pub fn suspend(&mut self) -> Result<()> {
        self.own_mut("suspend")?.process.as_mut().map_or(Ok(()), |process| process.signal(Signal::STOP))
    }

    /// Ends what [`Kafka::suspend`] began.
    ///
    /// # Errors
    /// The cluster is the user's.
    pub fn resume(&mut self) -> Result<()> {
        self.own_mut("resume")?.process.as_mut().map_or(Ok(()), |process| process.signal(Signal::CONT))
    }

    /// Starts it on the same data and the same port after a stop or a kill; nothing happens when it is up.
    ///
    /// # Errors
    /// The cluster is the user's, or does not start.
    pub fn start_again(&mut self) -> Result<()> {
        if self.own("start")?.process.is_some() {
            return Ok(());
        }
        self.launch()?;
        self.wait_until_ready()
    }

    /// Starts its process and does not wait.
    ///
    /// # Errors
    /// The cluster is the user's, or there is no Java.
    pub fn launch(&mut self) -> Result<()> {
        self.own_mut("start")?.launch()
    }

    /// Waits until the broker itself names itself among those that serve.
    ///
    /// # Errors
    /// The cluster is the user's, or it does not start.
    pub fn wait_until_ready(&mut self) -> Result<()> {
        self.own_mut("wait for")?.wait_until_ready()
    }

    /// Stops and starts it.
    ///
    /// # Errors
    /// As [`Kafka::stop`] and [`Kafka::start_again`].
    pub fn restart(&mut self) -> Result<()> {
        self.stop()?;
        self.start_again()
    }

    fn admin(&self) -> Result<AdminClient<DefaultClientContext>> {
        Ok(self.client_config().create()?)
    }

    fn replicas(&self) -> i32 {
        match &self.kind {
            Kind::Own(node) => i32::try_from(node.member.controllers.len()).unwrap_or(1),
            Kind::External { .. } => 1,
        }
    }

    fn own(&self, verb: &str) -> Result<&Node> {
        match &self.kind {
            Kind::Own(node) => Ok(node),
            Kind::External { .. } => Err(external(verb)),
        }
    }

    fn own_mut(&mut self, verb: &str) -> Result<&mut Node> {
        match &mut self.kind {
            Kind::Own(node) => Ok(node),
            Kind::External { .. } => Err(external(verb)),
        }
    }
}

impl Node {
    fn prepare(tools: KafkaTools, options: &Options) -> Result<Self> {
        let folder = run_dir::make(&tools.run, "kafka")?;
        let alone = || Ok(Member { id: 1, controllers: vec![run_dir::free_port()?], cluster: cluster_id() });
        let node = Self {
            tools,
            folder,
            port: options.port.map_or_else(run_dir::free_port, Ok)?,
            member: options.member.clone().map_or_else(alone, Ok::<_, anyhow::Error>)?,
            tap_port: run_dir::free_port()?,
            client: options.client.clone(),
            for_benchmarks: options.for_benchmarks,
            process: None,
        };
        fs::write(node.logging(), LOGGING)?;
        fs::write(node.settings(), node.properties(options))?;
        node.format(&options.format_arguments)?;
        Ok(node)
    }

    fn settings(&self) -> PathBuf {
        self.folder.join("server.properties")
    }

    fn logging(&self) -> PathBuf {
        self.folder.join("log4j2.xml")
    }

    fn log(&self) -> PathBuf {
        self.folder.join("log")
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
        if let Some(port) = options.advertise_through {
            listeners.push(format!("TAPPED://127.0.0.1:{}", self.tap_port));
            advertised.push(format!("TAPPED://127.0.0.1:{port}"));
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
            ("log.dirs", self.folder.join("data").display().to_string()),
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
            // 128 MiB by default, on the heap.
            ("log.cleaner.dedupe.buffer.size", fixed("2097152")),
        ]
    }

    fn format(&self, arguments: &[String]) -> Result<()> {
        let mut command = self.java("kafka.tools.StorageTool");
        command.args(["format", "-t", &self.member.cluster, "-c"]).arg(self.settings()).args(arguments);
        let output = command.output().map_err(|error| no_java(&error))?;
        if !output.status.success() {
            let text = [output.stdout, output.stderr].concat();
            bail!("cannot format Kafka's storage: {}", String::from_utf8_lossy(&text).trim());
        }
        Ok(())
    }

    /// Java with Kafka's jars, about to run `class`.
    fn java(&self, class: &str) -> Command {
        let mut command = Command::new(&self.tools.java);
        let logging = format!("-Dlog4j2.configurationFile={}", self.logging().display());
        let heap = match (self.for_benchmarks, self.member.controllers.len()) {
            (true, _) => ["-Xmx1g", "-XX:+UseG1GC"],
            (false, 1) => ["-Xmx512m", "-XX:+UseSerialGC"],
            (false, _) => ["-Xmx256m", "-XX:+UseSerialGC"],
        };
        command.args(heap);
        if !self.for_benchmarks {
            command.args(["-XX:TieredStopAtLevel=1", "-Xshare:auto"]);
        }
        command.arg(logging).arg("-cp").arg(self.tools.libs.join("*")).arg(class);
        command
    }

    fn launch(&mut self) -> Result<()> {
        let log = File::options().create(true).append(true).open(self.log())?;
        let mut command = self.java("kafka.Kafka");
        command.arg(self.settings()).current_dir(&self.folder).stdout(log.try_clone()?).stderr(log);
        let will = LastWill { ask_first: None, remove: vec![self.folder.clone()] };
        self.process = Some(Guarded::spawn("kafka", &mut command, &will)?);
        Ok(())
    }

    fn wait_until_ready(&mut self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        let mut config = self.client_config();
        config.set("reconnect.backoff.ms", "20").set("reconnect.backoff.max.ms", "100");
        let client: BaseConsumer = config.create()?;
        loop {
            let answer = client.fetch_metadata(None, Duration::from_secs(1));
            let id = i32::from(self.member.id);
            if answer.is_ok_and(|metadata| metadata.brokers().iter().any(|broker| broker.id() == id)) {
                return Ok(());
            }
            let exited = self.process.as_mut().map(Guarded::exited).transpose()?.flatten();
            if exited.is_some() || Instant::now() >= deadline {
                self.process = None;
                bail!("Kafka does not start:\n{}", process::tail(&self.log(), 15));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn client_config(&self) -> ClientConfig {
        let mut config = base_config(&format!("127.0.0.1:{}", self.port));
        for (key, value) in &self.client {
            config.set(key, value);
        }
        config
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // Its data goes with it, so there is nothing to stop cleanly for.
        self.process = None;
        drop(fs::remove_dir_all(&self.folder));
    }
}

/// One broker for all tests of a process that need none of their own; use topics with names of your own
/// ([`crate::postgres::unique_name`]). It ends with the process, however that ends.
///
/// # Errors
/// As [`Kafka::given_or_own`]; the same error for everybody who asks.
pub fn shared_kafka() -> Result<&'static Kafka> {
    static SHARED: OnceLock<Result<Kafka, String>> = OnceLock::new();
    let shared = SHARED.get_or_init(|| Kafka::given_or_own().map_err(|error| format!("{error:#}")));
    shared.as_ref().map_err(|error| anyhow!("{error}"))
}

fn base_config(brokers: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", brokers).set("client.id", "walrelay-dev");
    config
}

fn admin_options() -> AdminOptions {
    AdminOptions::new().request_timeout(Some(REQUEST)).operation_timeout(Some(REQUEST))
}

fn refused(name: &str, results: Vec<rdkafka::admin::TopicResult>) -> Result<()> {
    for result in results {
        result.map_err(|(_, code)| anyhow!("Kafka refuses that for topic {name}: {code}"))?;
    }
    Ok(())
}

/// 16 random bytes as Kafka writes them: base64url without padding, 22 characters, not starting with a dash.
pub(crate) fn cluster_id() -> String {
    const ALPHABET: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    let letter = || ALPHABET.get(rand::random_range(0..ALPHABET.len())).copied().map_or('A', char::from);
    // The last character carries two bits only.
    (0..21).map(|_| letter()).chain(['A']).collect()
}

fn no_java(error: &std::io::Error) -> anyhow::Error {
    provision::java_version().err().unwrap_or_else(|| anyhow!("cannot run java: {error}"))
}

fn external(verb: &str) -> anyhow::Error {
    anyhow!("cannot {verb} the Kafka that {BROKERS_VARIABLE} names: it is yours; unset the variable")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value_of<'a>(properties: &'a str, key: &str) -> Option<&'a str> {
        properties.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='))
    }

    fn node() -> Node {
        Node {
            tools: KafkaTools { libs: PathBuf::new(), run: PathBuf::new(), java: PathBuf::new() },
            folder: PathBuf::from("/nowhere"),
            port: 1,
            member: Member { id: 1, controllers: vec![2], cluster: cluster_id() },
            tap_port: 3,
            client: Vec::new(),
            for_benchmarks: false,
            process: None,
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

    #[test]
    fn a_cluster_of_the_users_is_not_stopped() {
        let mut given = Kafka { kind: Kind::External { brokers: "h:9092".to_owned() } };
        for error in [given.stop().unwrap_err(), given.kill().unwrap_err(), given.suspend().unwrap_err()] {
            assert!(error.to_string().contains(BROKERS_VARIABLE), "{error}");
        }
        assert_eq!(given.brokers(), "h:9092");
    }
}
