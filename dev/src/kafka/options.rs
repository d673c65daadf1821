//! What a broker is to be.

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
    /// A port that a [`crate::tap::Tap`] listens on: one more listener is opened ([`super::Kafka::tap_target`]) that tells
    /// its clients to come back through that port.
    pub advertise_through: Option<u16>,
    /// The same for a second way to the broker ([`super::Kafka::second_tap_target`]).
    pub advertise_second: Option<u16>,
    /// More arguments for formatting the storage, such as `--add-scram`.
    pub format_arguments: Vec<String>,
    /// What a client needs to get in, as librdkafka properties; none: plain text.
    pub client: Vec<(String, String)>,
    /// More arguments of the Java machine.
    pub java_arguments: Vec<String>,
    /// For measuring: all of the compiler and 1 GiB of heap (512 MiB for one of several nodes); tests want a quick start instead.
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
            advertise_second: None,
            format_arguments: Vec::new(),
            client: Vec::new(),
            java_arguments: Vec::new(),
            for_benchmarks: false,
            member: None,
        }
    }
}

impl Options {
    /// A broker that is killed is fenced until its old session has expired: 2.5 s with these options, 9 s by default.
    pub fn soon_back() -> Self {
        let properties =
            crate::settings(&[("broker.session.timeout.ms", "2500"), ("broker.heartbeat.interval.ms", "500")]);
        Self { properties, ..Self::default() }
    }
}
