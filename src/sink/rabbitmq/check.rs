//! Checks the broker, its alarms, the exchange and the queue.
//!
//! In: facts, gathered without changing anything: what is declared is declared passively, and the message that is published goes to
//! a queue that does not exist and comes back. Out: findings. Judging is pure.

use super::client::{Probe, RabbitmqConnection};
use super::errors::{self, Closing};
use super::{KIND, RabbitSettings};
use crate::check_finding::{Finding, Level, Side};
use crate::sink::destination::Wanted;
use crate::sink::ordered_queue::block_on;
use crate::sink::{Failure, FailureClass};
use std::time::Duration;

/// The side of these findings.
const SIDE: Side = Side::Destination(KIND.name);

/// How long a broker may take to return a message, or to say that it is blocked.
const ANSWERED_WITHIN: Duration = Duration::from_secs(5);

/// Brokers from 4.0 on take messages of 16 MiB unless they are told otherwise, earlier ones of 128 MiB. They do not say what they are told.
const LARGEST_MESSAGE: usize = 16 << 20;

/// The fix if no broker answers.
const ELSEWHERE: &str = "--to amqp://USER@HOST:PORT/VHOST with the broker's address; amqps:// where it wants TLS";

/// The broker's answers.
#[derive(Debug)]
struct RabbitmqFacts {
    vhost: String,
    frame_bytes: usize,
    heartbeat: Duration,
    /// `None`: it is the default exchange.
    exchange: Option<Result<(), Closing>>,
    /// `None`: none is named.
    queue: Option<Result<(), Closing>>,
    probe: Probe,
}

/// Looks at the broker, and judges it.
pub(super) fn check(settings: &RabbitSettings, wanted: &Wanted<'_>) -> Vec<Finding> {
    // What would be declared at the start is looked at, not declared.
    let looking = RabbitSettings { declare: false, ..settings.clone() };
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

async fn gather(settings: &RabbitSettings, host: usize) -> Result<RabbitmqFacts, Failure> {
    let mut connection = RabbitmqConnection::open(settings, host).await?;
    let RabbitSettings { exchange, queue, .. } = settings;
    let exchange = if exchange.is_empty() { None } else { Some(connection.exchange_declare(exchange, true).await?) };
    let queue = match queue {
        None => None,
        Some(queue) => Some(connection.queue_declare(queue, true).await?),
    };
    let probe = match tokio::time::timeout(ANSWERED_WITHIN, connection.probe()).await {
        Ok(probe) => probe?,
        Err(_late) => Probe::Nothing,
    };
    let facts = RabbitmqFacts {
        vhost: settings.vhost.clone(),
        frame_bytes: connection.frame_bytes(),
        heartbeat: connection.heartbeat(),
        exchange,
        queue,
        probe,
    };
    connection.leave().await;
    Ok(facts)
}

/// The finding about a host that does not answer, or refuses the credentials. `alone`: no other host answers.
fn not_reached(failure: &Failure, alone: bool) -> Finding {
    let found = KIND.unreachable(failure, "broker", ELSEWHERE);
    if alone {
        return found;
    }
    let found = Finding { level: Level::Warn, ..found };
    if failure.class == FailureClass::LogIn {
        return found;
    }
    found.why("another host of --to answers").words("start it, or remove it from --to")
}

fn findings(settings: &RabbitSettings, facts: &RabbitmqFacts, largest_bytes: usize) -> Vec<Finding> {
    let RabbitmqFacts { vhost, frame_bytes, heartbeat, .. } = facts;
    let mut found = vec![
        SIDE.ok("connection", format!("RabbitMQ answers, vhost {vhost}")),
        SIDE.ok("frame_max", format!("frame_max is {frame_bytes} bytes, heartbeat {} s", heartbeat.as_secs())),
    ];
    found.push(of_size(largest_bytes));
    found.extend(facts.exchange.as_ref().map(|exchange| of_exchange(settings, exchange)));
    found.push(of_queue(settings, facts.queue.as_ref()));
    found.push(of_probe(&facts.probe));
    if !settings.mandatory {
        found.push(
            SIDE.warn("mandatory", "mandatory is false: RabbitMQ drops a message that no queue takes, and confirms it")
                .why("the row of such a message counts as published, and is lost")
                .words("-X mandatory=true, unless the exchange keeps what it returns, as one of the type x-delayed-message does"),
        );
    }
    found
}

fn of_size(largest_bytes: usize) -> Finding {
    let text = format!(
        "the largest record has {largest_bytes} bytes; max_message_size is {LARGEST_MESSAGE} by default from RabbitMQ 4.0 on"
    );
    if largest_bytes <= LARGEST_MESSAGE {
        return SIDE.ok("max_message_size", text).why("brokers do not say what theirs is");
    }
    let found =
        SIDE.warn("max_message_size", text).why("a broker refuses larger messages, and does not say what its limit is");
    found.bounded(format!("max_message_size = {} in rabbitmq.conf", largest_bytes.next_power_of_two()))
}

fn of_exchange(settings: &RabbitSettings, found: &Result<(), Closing>) -> Finding {
    let name = &settings.exchange;
    match found {
        Ok(()) => SIDE.ok("exchange", format!("exchange {name} is there")),
        Err(refusal) if refusal.is_missing() && settings.declare => {
            SIDE.ok("exchange", format!("exchange {name} is declared at the start"))
        }
        Err(refusal) => {
            let found = SIDE.fail("exchange", format!("exchange {name}: {}", refusal.shown()));
            if refusal.is_missing() {
                return found
                    .why("messages for it are refused; with -X declare=true walrelay declares it")
                    .safe(errors::declare_exchange(settings, name));
            }
            found
                .why("messages for it are refused; the command replaces the user's rights in the vhost")
                .bounded(errors::permit(settings, name))
        }
    }
}

fn of_queue(settings: &RabbitSettings, found: Option<&Result<(), Closing>>) -> Finding {
    let exchange = settings.exchange_shown();
    let unknown =
        "brokers do not tell clients which queues are bound; a message that no queue takes holds its key until one is";
    match (found, &settings.queue) {
        (Some(Ok(())), Some(queue)) => SIDE.ok("queue", format!("queue {queue} is there")).why(unknown),
        (Some(Err(refusal)), Some(queue)) if refusal.is_missing() && settings.declare => {
            SIDE.ok("queue", format!("queue {queue} is declared at the start and bound to {exchange} by #"))
        }
        (Some(Err(refusal)), Some(queue)) => {
            let found = SIDE.warn("queue", format!("queue {queue}: {}", refusal.shown()));
            found
                .why("messages are refused unless another queue takes them")
                .safe(errors::declare_queue(settings, queue))
        }
        (_, _) => SIDE.ok("queue", "which queues take the messages was not checked").why(unknown),
    }
}

fn of_probe(probe: &Probe) -> Finding {
    match probe {
        Probe::Returned => SIDE.ok("confirms", "messages are confirmed and returned, and no alarm blocks publishers"),
        Probe::Blocked(reason) => SIDE.fail("alarm", format!("the broker blocks publishers: {reason}"))
            .why("nothing is published until the alarm is over; no data is lost")
            .words("free memory or disk, or raise vm_memory_high_watermark or lower disk_free_limit: rabbitmq-diagnostics alarms"),
        Probe::Refused(refusal) => {
            SIDE.ok("confirms", format!("whether an alarm blocks publishers was not checked: {}", refusal.shown()))
        }
        Probe::Nothing => SIDE.fail("confirms", "the broker neither returns nor confirms a message")
            .why("messages count only when they are confirmed")
            .words("--to a broker with publisher confirms, such as RabbitMQ"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::tests::read_in_test;

    fn settings(properties: &[(&str, &str)]) -> RabbitSettings {
        read_in_test("amqp", "h", properties, |asked| RabbitSettings::read(asked)).unwrap()
    }

    fn refusal(code: u16) -> Closing {
        Closing { code, text: "why".to_owned() }
    }

    fn facts() -> RabbitmqFacts {
        RabbitmqFacts {
            vhost: "/".to_owned(),
            frame_bytes: 131_072,
            heartbeat: Duration::from_secs(10),
            exchange: Some(Ok(())),
            queue: None,
            probe: Probe::Returned,
        }
    }

    fn level(properties: &[(&str, &str)], facts: &RabbitmqFacts, largest_bytes: usize, check: &str) -> Level {
        let found = findings(&settings(properties), facts, largest_bytes);
        found.iter().find(|found| found.check == check).unwrap_or_else(|| panic!("{check}: {found:?}")).level
    }

    #[test]
    fn a_broker_that_takes_everything_is_fine() {
        let found = findings(&settings(&[]), &facts(), 100);
        assert!(found.iter().all(|found| found.level == Level::Ok), "{found:?}");
        assert_eq!(found[0].finding, "RabbitMQ answers, vhost /");
    }

    #[test]
    fn messages_that_may_be_dropped_are_warned_of() {
        assert_eq!(level(&[("mandatory", "false")], &facts(), 0, "mandatory"), Level::Warn);
        assert!(findings(&settings(&[]), &facts(), 0).iter().all(|found| found.check != "mandatory"));
    }

    #[test]
    fn what_is_missing_or_too_large_is_distinguished() {
        let declare = [("declare", "true"), ("queue", "q")];
        let missing = RabbitmqFacts { exchange: Some(Err(refusal(404))), queue: Some(Err(refusal(404))), ..facts() };
        assert_eq!(level(&[("queue", "q")], &missing, 0, "exchange"), Level::Fail);
        assert_eq!(level(&[("queue", "q")], &missing, 0, "queue"), Level::Warn);
        assert_eq!(level(&declare, &missing, 0, "exchange"), Level::Ok);
        assert_eq!(level(&declare, &missing, 0, "queue"), Level::Ok);
        let forbidden = RabbitmqFacts { exchange: Some(Err(refusal(403))), ..facts() };
        assert_eq!(level(&declare, &forbidden, 0, "exchange"), Level::Fail);
        assert_eq!(level(&[], &facts(), (16 << 20) + 1, "max_message_size"), Level::Warn);
    }

    #[test]
    fn an_alarm_and_a_broker_without_confirms_fail() {
        let with = |probe: Probe| RabbitmqFacts { probe, ..facts() };
        assert_eq!(level(&[], &with(Probe::Blocked("low on memory".to_owned())), 0, "alarm"), Level::Fail);
        assert_eq!(level(&[], &with(Probe::Nothing), 0, "confirms"), Level::Fail);
        assert_eq!(level(&[], &with(Probe::Refused(refusal(403))), 0, "confirms"), Level::Ok);
    }
}
