//! What `walrelay check` looks at: the broker, its alarms, the exchange, the queue.
//!
//! In: facts, gathered without changing anything: what is declared is declared passively, and the message that is published goes to
//! a queue that does not exist and comes back. Out: findings. Judging is pure.

#![allow(clippy::wildcard_enum_match_arm, reason = "what a peer says beyond what is asked is not heeded")]

use super::destination::KIND;
use super::judge::{self, Fault};
use super::method::{self, Method};
use super::session::{ASKING, Refusal, Session};
use super::settings::{Login, Settings};
use super::wire::{Sort, Writing};
use crate::finding::{Finding, Side};
use crate::given::shell_quoted;
use crate::sink::destination::Wanted;
use crate::sink::lanes::block_on;
use crate::sink::{Failure, FailureClass};
use std::time::Duration;

/// What the findings here are about.
const SIDE: Side = Side::Destination(KIND.name);

/// How long a broker may take to return a message, or to say that it is blocked.
const ANSWERED_WITHIN: Duration = Duration::from_secs(5);

/// Brokers from 4.0 on take messages of 16 MiB unless they are told otherwise, earlier ones of 128 MiB. They do not say what they are told.
const LARGEST_MESSAGE: (usize, usize) = (16 << 20, 128 << 20);

/// What the broker says.
#[derive(Debug)]
struct Facts {
    product: String,
    version: String,
    vhost: String,
    frame_bytes: usize,
    heartbeat: Duration,
    /// `None`: it is the default exchange.
    exchange: Option<Result<(), Refusal>>,
    /// `None`: none is named.
    queue: Option<Result<(), Refusal>>,
    probe: Probe,
}

/// What became of the message to a queue that does not exist.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Probe {
    /// It came back, and was confirmed.
    Returned,
    /// Publishers are blocked, for this reason.
    Blocked(String),
    /// It may not be published.
    Refused(Refusal),
    /// Nothing.
    Nothing,
}

/// Looks at the broker, and judges it.
pub(super) fn check(settings: &Settings, wanted: &Wanted<'_>) -> Vec<Finding> {
    // What would be declared at the start is looked at, not declared.
    let looking = Settings { declare: false, ..settings.clone() };
    let (mut unreachable, mut reached) = (Vec::new(), None);
    for host in 0..settings.servers.len() {
        match block_on(gather(&looking, host)) {
            Ok(facts) => reached = reached.or(Some(facts)),
            Err(failure) => unreachable.push(failure),
        }
    }
    let is_lost = reached.is_none();
    let lost = unreachable.iter().map(|failure| not_reached(failure, is_lost));
    lost.chain(reached.iter().flat_map(|facts| findings(settings, facts, wanted.largest_bytes))).collect()
}

async fn gather(settings: &Settings, host: usize) -> Result<Facts, Failure> {
    let mut session = Session::open(settings, host).await?;
    let Settings { exchange, queue, .. } = settings;
    let exchange = if exchange.is_empty() {
        None
    } else {
        Some(session.ask(|out| method::exchange_declare(out, ASKING, exchange, true)).await?)
    };
    let queue = match queue {
        None => None,
        Some(queue) => Some(session.ask(|out| method::queue_declare(out, ASKING, queue, true)).await?),
    };
    let probe = match tokio::time::timeout(ANSWERED_WITHIN, probe(&mut session)).await {
        Ok(probe) => probe?,
        Err(_late) => Probe::Nothing,
    };
    let facts = Facts {
        product: session.product.clone(),
        version: session.version.clone(),
        vhost: settings.vhost.clone(),
        frame_bytes: session.frame_bytes,
        heartbeat: session.heartbeat,
        exchange,
        queue,
        probe,
    };
    session.leave().await;
    Ok(facts)
}

/// A message without a body to a queue that does not exist, by the default exchange: it changes nothing. A broker says only to
/// those who publish that it is blocked.
async fn probe(session: &mut Session) -> Result<Probe, Failure> {
    let key = format!("walrelay-check-{}", std::process::id());
    let out = &mut session.socket.output;
    method::channel_open(out, ASKING);
    method::confirm_select(out, ASKING);
    method::publish(out, ASKING, "", &key);
    Writing::begin(out, Sort::Header, ASKING).u16(60).u16(0).u64(0).u16(0).end();
    let mut returned = false;
    let waiting = session.wait(|_, said| match said {
        Method::Blocked { reason } => Some(Probe::Blocked(String::from_utf8_lossy(reason).into_owned())),
        Method::ChannelClose(closing) => Some(Probe::Refused(Refusal::of(closing))),
        Method::Return { .. } => {
            returned = true;
            None
        }
        Method::Ack { .. } => Some(if returned { Probe::Returned } else { Probe::Nothing }),
        _ => None,
    });
    waiting.await
}

/// A host does not answer, or not us. `alone`: no other does.
fn not_reached(failure: &Failure, alone: bool) -> Finding {
    let found = if alone {
        SIDE.fail("connection", failure.text.clone())
    } else {
        SIDE.warn("connection", failure.text.clone())
    };
    match ((KIND.hint)(failure), failure.class) {
        (Some(hint), FailureClass::LogIn) => found.why("the broker refuses the authentication").fix(hint),
        (_, _) if alone => found
            .why("nothing else could be checked here")
            .fix("--to amqp://USER@HOST:PORT/VHOST with the broker's address; amqps:// where it wants TLS"),
        (_, _) => found.why("another host of --to answers").fix("start it, or remove it from --to"),
    }
}

fn findings(settings: &Settings, facts: &Facts, largest_bytes: usize) -> Vec<Finding> {
    let Facts { product, version, vhost, frame_bytes, heartbeat, .. } = facts;
    let mut found = vec![
        SIDE.ok("connection", format!("{product} {version} answers, vhost {vhost}")),
        SIDE.ok("frame_max", format!("frame_max is {frame_bytes} bytes, heartbeat {} s", heartbeat.as_secs())),
    ];
    found.push(of_size(version, largest_bytes));
    found.extend(facts.exchange.as_ref().map(|exchange| of_exchange(settings, exchange)));
    found.push(of_queue(settings, facts.queue.as_ref()));
    found.push(of_probe(&facts.probe));
    found
}

fn of_size(version: &str, largest_bytes: usize) -> Finding {
    let major: u32 = version.split('.').next().and_then(|major| major.parse().ok()).unwrap_or_default();
    let limit = if major >= 4 { LARGEST_MESSAGE.0 } else { LARGEST_MESSAGE.1 };
    let text = format!("the largest record has {largest_bytes} bytes; max_message_size is {limit} by default");
    if largest_bytes <= limit {
        return SIDE.ok("max_message_size", text).why("brokers do not say what theirs is");
    }
    let found =
        SIDE.warn("max_message_size", text).why("a broker refuses larger messages, and does not say what its limit is");
    found.fix(format!("max_message_size = {} in rabbitmq.conf", largest_bytes.next_power_of_two()))
}

fn of_exchange(settings: &Settings, found: &Result<(), Refusal>) -> Finding {
    let name = &settings.exchange;
    match found {
        Ok(()) => SIDE.ok("exchange", format!("exchange {name} is there")),
        Err(refusal) if judge::fault(refusal.code) == Fault::Exchange && settings.declare => {
            SIDE.ok("exchange", format!("exchange {name} is declared at the start"))
        }
        Err(refusal) => {
            let found = SIDE.fail("exchange", format!("exchange {name}: {} ({})", refusal.text, refusal.code));
            let user = match &settings.login {
                Login::Plain { user, .. } => user.as_str(),
                Login::External => "USER",
            };
            match judge::fault(refusal.code) {
                Fault::Exchange => found
                    .why("messages for it are refused; with -X declare=true walrelay declares it")
                    .fix(judge::declare_exchange(settings)),
                Fault::Record(..) | Fault::Broker => found.why("messages for it are refused").fix(format!(
                    "rabbitmqctl set_permissions -p {} {} '' {} ''",
                    shell_quoted(&settings.vhost),
                    shell_quoted(user),
                    shell_quoted(&format!("^{}$", settings.exchange))
                )),
            }
        }
    }
}

fn of_queue(settings: &Settings, found: Option<&Result<(), Refusal>>) -> Finding {
    let exchange = settings.exchange_shown();
    let unknown =
        "brokers do not tell clients which queues are bound; a message that no queue takes holds its key until one is";
    match (found, &settings.queue) {
        (Some(Ok(())), Some(queue)) => SIDE.ok("queue", format!("queue {queue} is there")).why(unknown),
        (Some(Err(refusal)), Some(queue)) if judge::fault(refusal.code) == Fault::Exchange && settings.declare => {
            SIDE.ok("queue", format!("queue {queue} is declared at the start and bound to {exchange} by #"))
        }
        (Some(Err(refusal)), Some(queue)) => {
            let found = SIDE.warn("queue", format!("queue {queue}: {} ({})", refusal.text, refusal.code));
            found.why("messages are refused unless another queue takes them").fix(judge::declare_queue(settings, queue))
        }
        (_, _) => SIDE.ok("queue", "which queues take the messages was not checked").why(unknown),
    }
}

fn of_probe(probe: &Probe) -> Finding {
    match probe {
        Probe::Returned => SIDE.ok("confirms", "messages are confirmed and returned, and no alarm blocks publishers"),
        Probe::Blocked(reason) => SIDE.fail("alarm", format!("the broker blocks publishers: {reason}"))
            .why("nothing is published until the alarm is over; no data is lost")
            .fix("free memory or disk, or raise vm_memory_high_watermark or lower disk_free_limit: rabbitmq-diagnostics alarms"),
        Probe::Refused(refusal) => {
            SIDE.ok("confirms", format!("whether an alarm blocks publishers was not checked: {} ({})", refusal.text, refusal.code))
        }
        Probe::Nothing => SIDE.fail("confirms", "the broker neither returns nor confirms a message")
            .why("messages count only when they are confirmed")
            .fix("--to a broker with publisher confirms, such as RabbitMQ"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Level;
    use crate::sink::tests::read_in_test;

    fn settings(properties: &[(&str, &str)]) -> Settings {
        read_in_test("amqp", "h", properties, |asked| Settings::read(asked)).unwrap()
    }

    fn refusal(code: u16) -> Refusal {
        Refusal { code, text: "why".to_owned() }
    }

    fn facts() -> Facts {
        Facts {
            product: "RabbitMQ".to_owned(),
            version: "4.0.5".to_owned(),
            vhost: "/".to_owned(),
            frame_bytes: 131_072,
            heartbeat: Duration::from_secs(10),
            exchange: Some(Ok(())),
            queue: None,
            probe: Probe::Returned,
        }
    }

    fn level(properties: &[(&str, &str)], facts: &Facts, largest_bytes: usize, check: &str) -> Level {
        let found = findings(&settings(properties), facts, largest_bytes);
        found.iter().find(|found| found.check == check).unwrap_or_else(|| panic!("{check}: {found:?}")).level
    }

    #[test]
    fn a_broker_that_takes_everything_is_fine() {
        let found = findings(&settings(&[]), &facts(), 100);
        assert!(found.iter().all(|found| found.level == Level::Ok), "{found:?}");
        assert_eq!(found[0].finding, "RabbitMQ 4.0.5 answers, vhost /");
    }

    #[test]
    fn what_is_missing_or_too_large_is_distinguished() {
        let declare = [("declare", "true"), ("queue", "q")];
        let missing = Facts { exchange: Some(Err(refusal(404))), queue: Some(Err(refusal(404))), ..facts() };
        assert_eq!(level(&[("queue", "q")], &missing, 0, "exchange"), Level::Fail);
        assert_eq!(level(&[("queue", "q")], &missing, 0, "queue"), Level::Warn);
        assert_eq!(level(&declare, &missing, 0, "exchange"), Level::Ok);
        assert_eq!(level(&declare, &missing, 0, "queue"), Level::Ok);
        let forbidden = Facts { exchange: Some(Err(refusal(403))), ..facts() };
        assert_eq!(level(&declare, &forbidden, 0, "exchange"), Level::Fail);
        assert_eq!(level(&[], &facts(), (16 << 20) + 1, "max_message_size"), Level::Warn);
        let older = Facts { version: "3.13.7".to_owned(), ..facts() };
        assert_eq!(level(&[], &older, (16 << 20) + 1, "max_message_size"), Level::Ok);
    }

    #[test]
    fn an_alarm_and_a_broker_without_confirms_fail() {
        let with = |probe: Probe| Facts { probe, ..facts() };
        assert_eq!(level(&[], &with(Probe::Blocked("low on memory".to_owned())), 0, "alarm"), Level::Fail);
        assert_eq!(level(&[], &with(Probe::Nothing), 0, "confirms"), Level::Fail);
        assert_eq!(level(&[], &with(Probe::Refused(refusal(403))), 0, "confirms"), Level::Ok);
    }
}
