//! The message brokers other than Kafka, each as one server of one's own.
//!
//! In: more lines of its configuration. Out: a server that answers on a free loopback port, and that can be stopped, killed,
//! suspended and started again on the same data and port. Nothing runs as another user, nothing needs root.
//!
//! Each is durable as an operator would configure it: what it acknowledged survives SIGKILL.

mod amqp;
pub(crate) mod bring;
mod cluster;
mod elasticmq;
mod jetstream;
mod moto;
mod nats;
mod queues;
mod rabbitmq;
mod resp;
mod sentinel;
mod valkey;

use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use rustix::process::{Pid, Signal, kill_process};

use crate::process::{self, LastWill};
use crate::service::Service;
use crate::{provision, run_dir, service};

pub use amqp::{Connection as AmqpConnection, Message as AmqpMessage};
pub use cluster::Cluster;
pub use jetstream::{Connection as JetStream, Stored};
pub use moto::Moto;
pub use queues::{Queues, SqsMessage};
pub(crate) use queues::{Received, field, post};
pub use resp::{Connection as RespConnection, Reply};
pub use sentinel::Sentinel;

/// How long a server may take to start or to stop, on a machine that has more to do.
const PATIENCE: Duration = Duration::from_mins(3);

/// Which broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Valkey, which speaks Redis' protocol.
    Valkey,
    /// NATS with JetStream.
    Nats,
    /// RabbitMQ.
    RabbitMq,
    /// ElasticMQ, which speaks SQS' protocol.
    ElasticMq,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Valkey, Self::Nats, Self::RabbitMq, Self::ElasticMq];

    /// The broker that a destination's name asks for, such as `redis`.
    ///
    /// # Errors
    /// There is none; the message lists those there are.
    pub fn of(name: &str) -> Result<Self> {
        let known = Self::ALL.into_iter().find(|kind| kind.name() == name);
        known.ok_or_else(|| anyhow!("no broker {name}: {}", Self::ALL.map(Self::name).join(", ")))
    }

    /// What its destination is called.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Valkey => "redis",
            Self::Nats => "nats",
            Self::RabbitMq => "rabbitmq",
            Self::ElasticMq => "sqs",
        }
    }

    /// Brings its program unless it is there already, and says where it is.
    ///
    /// # Errors
    /// A prerequisite is missing, or it cannot be had.
    pub fn provision(self) -> Result<PathBuf> {
        match self {
            Self::Valkey => bring::redis()?.pop().context("no program"),
            Self::Nats => bring::nats(),
            Self::RabbitMq => bring::rabbitmq(),
            Self::ElasticMq => bring::elasticmq(),
        }
    }

    /// Makes its next starts quicker, where it is Java's; starts one for that, and stops it.
    ///
    /// # Errors
    /// It does not start, or Java writes no archive.
    pub fn archive_classes(self) -> Result<()> {
        if self != Self::ElasticMq {
            return Ok(());
        }
        let libs = self.provision()?;
        provision::archive_classes(&libs.clone(), |argument| {
            Broker::of(self, Box::new(elasticmq::ElasticMq { libs, classes: Some(argument) }), &[])?.stop()
        })
    }

    fn program(self) -> Result<Box<dyn Program>> {
        if self == Self::Valkey {
            return Ok(Box::new(valkey::Valkey { command: bring::redis()? }));
        }
        let home = self.provision()?;
        Ok(match self {
            Self::Valkey => Box::new(valkey::Valkey { command: vec![home] }),
            Self::Nats => Box::new(nats::Nats { program: home }),
            Self::RabbitMq => Box::new(rabbitmq::RabbitMq::new(&home)?),
            Self::ElasticMq => Box::new(elasticmq::ElasticMq { classes: provision::shared_classes(&home), libs: home }),
        })
    }
}

/// The parts that differ from one broker to the other.
trait Program: Debug + Send + Sync {
    /// Writes its configuration into `folder`, with `more` lines that win over ours.
    fn configure(&self, folder: &Path, port: u16, more: &[String]) -> Result<()>;

    /// The command that starts it in the foreground.
    fn command(&self, folder: &Path, port: u16) -> Command;

    /// Whether it serves requests.
    fn answers(&self, folder: &Path, port: u16) -> bool;

    /// The program that controls it while it runs, if there is one.
    fn control(&self, _folder: &Path) -> Option<Command> {
        None
    }

    /// The process that serves, where that is not the one that was started.
    fn server(&self, _folder: &Path) -> Option<i32> {
        None
    }

    /// Ends what it leaves running when it was stopped.
    fn stopped(&self, _folder: &Path) {}
}

/// A configuration file's text: where two lines set the same, the last counts.
fn text(lines: &[String], more: &[String]) -> String {
    lines.iter().chain(more).flat_map(|line| [line.as_str(), "\n"]).collect()
}

/// A broker of our own; it ends when dropped, and its data with it.
#[derive(Debug)]
pub struct Broker {
    kind: Kind,
    program: Box<dyn Program>,
    port: u16,
    service: Service,
}

impl Broker {
    /// Starts one on empty storage, with `more` lines of configuration.
    ///
    /// # Errors
    /// It cannot be brought, or does not start; the message carries the end of its log.
    pub fn start(kind: Kind, more: &[&str]) -> Result<Self> {
        Self::of(kind, kind.program()?, more)
    }

    fn of(kind: Kind, program: Box<dyn Program>, more: &[&str]) -> Result<Self> {
        let run = provision::dev_dir().join("run");
        let folder = run_dir::make(&run, kind.name())?;
        let service = Service::new(kind.name(), folder);
        let mut broker = Self { kind, program, port: run_dir::free_port()?, service };
        broker.configure(more)?;
        broker.start_again()?;
        Ok(broker)
    }

    /// Gives it other lines of configuration, from its next start on.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn configure(&self, more: &[&str]) -> Result<()> {
        let more: Vec<String> = more.iter().map(|line| (*line).to_owned()).collect();
        self.program.configure(self.folder(), self.port, &more)
    }

    /// Which broker it is.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Where it keeps its configuration, its log and its data.
    pub fn folder(&self) -> &Path {
        self.service.folder()
    }

    /// What `--to` takes for it.
    pub fn url(&self) -> String {
        self.url_through(self.port)
    }

    /// The same through another port on 127.0.0.1, such as a tap's.
    pub fn url_through(&self, port: u16) -> String {
        match self.kind {
            Kind::Valkey => format!("redis://127.0.0.1:{port}"),
            Kind::Nats => format!("nats://127.0.0.1:{port}"),
            Kind::RabbitMq => format!("amqp://guest:guest@127.0.0.1:{port}/%2f"),
            Kind::ElasticMq => format!("sqs+http://test:test@127.0.0.1:{port}/elasticmq"),
        }
    }

    /// Its process id; `None` while it is down.
    pub fn pid(&self) -> Option<u32> {
        self.service.pid()
    }

    /// The process that serves; `None` while it is down.
    pub fn server_pid(&self) -> Option<u32> {
        let started = self.pid()?;
        self.program.server(self.folder()).and_then(|pid| u32::try_from(pid).ok()).or(Some(started))
    }

    /// Stops it cleanly.
    ///
    /// # Errors
    /// It does not end in time.
    pub fn stop(&mut self) -> Result<()> {
        if self.service.stop(Signal::TERM, PATIENCE)? {
            self.program.stopped(self.folder());
        }
        Ok(())
    }

    /// SIGKILL: a crash.
    ///
    /// # Errors
    /// It cannot be ended.
    pub fn kill(&mut self) -> Result<()> {
        self.service.kill().map(drop)
    }

    /// SIGSTOP: it hangs, connections stay open.
    ///
    /// # Errors
    /// The signal may not be sent.
    pub fn suspend(&mut self) -> Result<()> {
        self.signal(Signal::STOP)
    }

    /// Ends what [`Broker::suspend`] began.
    ///
    /// # Errors
    /// The signal may not be sent.
    pub fn resume(&mut self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    fn signal(&mut self, signal: Signal) -> Result<()> {
        match self.program.server(self.folder()).and_then(Pid::from_raw) {
            Some(server) if self.pid().is_some() => Ok(kill_process(server, signal)?),
            Some(_) | None => self.service.signal(signal),
        }
    }

    /// Runs the program that controls it, with these arguments.
    ///
    /// # Errors
    /// It has none, or that fails; the message carries what it says.
    pub fn control(&self, arguments: &[&str]) -> Result<String> {
        let mut command = self.program.control(self.folder()).context("nothing controls it")?;
        process::finish(command.args(arguments)).with_context(|| format!("{arguments:?}"))
    }

    /// Starts it on the same data and the same port; nothing happens when it is up.
    ///
    /// # Errors
    /// It does not start; the message carries the end of its log.
    pub fn start_again(&mut self) -> Result<()> {
        let folder = self.folder().to_owned();
        let mut command = self.program.command(&folder, self.port);
        command.current_dir(&folder);
        self.service.launch(&mut command, LastWill { ask_first: Some(Signal::TERM), ..LastWill::default() })?;
        self.service.wait_until(PATIENCE, || self.program.answers(&folder, self.port))
    }

    /// Its log.
    pub fn log(&self) -> PathBuf {
        self.service.log()
    }

    /// A connection to Valkey.
    ///
    /// # Errors
    /// It does not answer.
    pub fn resp(&self) -> Result<RespConnection> {
        RespConnection::open(self.port).with_context(|| format!("cannot reach {}", self.url()))
    }

    /// A connection to NATS. `login`: what CONNECT says of the user; null: nothing.
    ///
    /// # Errors
    /// It does not answer.
    pub fn jetstream(&self, login: &serde_json::Value) -> Result<JetStream> {
        JetStream::open(self.port, login).with_context(|| format!("cannot reach {}", self.url()))
    }

    /// The queues of ElasticMQ.
    pub fn queues(&self) -> Queues {
        Queues::on(self.port)
    }

    /// A connection to RabbitMQ.
    ///
    /// # Errors
    /// It does not answer.
    pub fn amqp(&self) -> Result<AmqpConnection> {
        AmqpConnection::open(self.port).with_context(|| format!("cannot reach {}", self.url()))
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        // Its data goes with it, so there is nothing to stop cleanly for.
        drop(self.service.kill());
    }
}

/// One server of a kind for all tests of a process that need none of their own; use addresses with names of your own
/// ([`crate::postgres::unique_name`]). It ends with the process.
///
/// # Errors
/// As [`Broker::start`]; the same error for everybody who asks.
pub fn shared(kind: Kind) -> Result<&'static Broker> {
    static SHARED: [OnceLock<Result<Broker, String>>; 4] = [const { OnceLock::new() }; 4];
    let place = Kind::ALL.iter().position(|known| *known == kind).and_then(|place| SHARED.get(place));
    let place = place.context("a kind that is not listed")?;
    service::shared(place, || Broker::start(kind, &[]))
}
