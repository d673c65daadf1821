//! The meaning of RabbitMQ's reply codes, for a record, its exchange, or the broker.
//!
//! In: the library's errors, with the broker's reply codes. Out: failures. This file does no I/O. Control flow follows codes. The only text
//! that decides is the one of a full broker, whose code is ambiguous.
//! Specification: AMQP 0-9-1, section 1.2 (reply codes).

use super::{KIND, RabbitSettings};
use crate::setting_text::shell_quoted;
use crate::sink::destination::CONNECTION;
use crate::sink::ordered_queue::LOG_IN_LABEL;
use crate::sink::{Failure, FailureClass, UNLISTED};
use lapin::ErrorKind;
use lapin::message::BasicReturnMessage;
use std::time::Duration;

/// Labels of failures, for metrics.
const ALARM: &str = "alarm";
const NOT_TAKEN: &str = "not_taken";
pub(super) const UNROUTABLE: &str = "unroutable";
pub(super) const NO_EXCHANGE: &str = "no_exchange";
pub(super) const NOT_PERMITTED: &str = "not_permitted";
const REFUSED: &str = "refused";
const ROUTING_KEY: &str = "routing_key";
const HEADERS: &str = "headers";
const EXCHANGE: &str = "exchange";

/// The name of the default exchange, whose own name is empty, in messages and in commands that give rights.
const DEFAULT_EXCHANGE: &str = "(default)";
const DEFAULT_EXCHANGE_IN_RIGHTS: &str = "amq.default";

/// The fix if the broker refuses the credentials.
const CREDENTIALS: &str = "check the user, the vhost (%2f is /) and its permissions in --to, and the password (WALRELAY_RABBITMQ_PASSWORD, -X password=@FILE)";

/// The fix of a missing exchange.
const DECLARE: &str = "declare the exchange (rabbitmqadmin, or -X declare=true), or give another -X exchange";

/// The fix of a missing right.
const PERMIT: &str = "give the user the right to write to the exchange: the error has the command, which replaces the user's rights in the vhost \
    (rabbitmqctl list_permissions); where topic permissions are used, rabbitmqctl set_topic_permissions as well";

/// The labels for which RabbitMQ may refuse a record.
pub(super) const REFUSALS: [&str; 7] =
    [UNROUTABLE, NO_EXCHANGE, NOT_PERMITTED, REFUSED, ROUTING_KEY, HEADERS, EXCHANGE];

/// The labels of failed deliveries.
pub(super) const REASONS: [&str; 9] =
    [CONNECTION, LOG_IN_LABEL, ALARM, NOT_TAKEN, UNROUTABLE, NO_EXCHANGE, NOT_PERMITTED, REFUSED, UNLISTED];

/// The library does not say the code.
const NO_CODE: u16 = 0;
const CONTENT_TOO_LARGE: u16 = 311;
pub(super) const ACCESS_REFUSED: u16 = 403;
const NOT_FOUND: u16 = 404;
const PRECONDITION_FAILED: u16 = 406;
const CONNECTION_FORCED: u16 = 320;
const COMMAND_INVALID: u16 = 503;
const RESOURCE_ERROR: u16 = 506;
const NOT_ALLOWED: u16 = 530;

/// The broker's reason for closing a channel or the connection, or for returning a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Closing {
    pub(super) code: u16,
    pub(super) text: String,
}

impl Closing {
    /// The reason in an error. `None`: the broker closed nothing.
    pub(super) fn of(error: &lapin::Error) -> Option<Self> {
        let ErrorKind::ProtocolError(error) = error.kind() else { return None };
        Some(Self { code: error.get_id(), text: error.get_message().as_str().to_owned() })
    }

    /// The reason in an error about a channel. `None`: the broker did not close just a channel.
    pub(super) fn of_channel(error: &lapin::Error) -> Option<Self> {
        // The library keeps a reason only if AMQP has its code.
        if let ErrorKind::InvalidChannelState(..) = error.kind() {
            return Some(Self {
                code: NO_CODE,
                text: "the channel was closed with a code that AMQP does not have".to_owned(),
            });
        }
        Self::of(error).filter(|_| error.is_amqp_soft_error())
    }

    /// Whether the exchange or the queue that was asked for does not exist.
    pub(super) fn is_missing(&self) -> bool {
        self.code == NOT_FOUND
    }

    /// Its text and its code, for people.
    pub(super) fn shown(&self) -> String {
        if self.code == NO_CODE { self.text.clone() } else { format!("{} ({})", self.text, self.code) }
    }
}

/// The cause of a closed channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RabbitmqFault {
    /// The broker refuses a record on the channel, and would do so again.
    Record,
    /// The user lacks the right to write to a record's exchange.
    NotPermitted,
    /// The exchange of all records is missing.
    Exchange,
    /// The exchange that a record's row names is missing. Those of other rows may exist.
    OwnExchange,
    /// The broker's own state.
    Broker,
    /// The code is in no list.
    Unlisted,
}

impl RabbitmqFault {
    /// Whether one record on the channel is the cause.
    pub(super) fn is_of_record(self) -> bool {
        match self {
            Self::Record | Self::NotPermitted | Self::OwnExchange => true,
            Self::Exchange | Self::Broker | Self::Unlisted => false,
        }
    }
}

/// The meaning of a reply code, by closed lists. `own`: whether rows name their exchanges.
pub(super) fn fault(code: u16, own: bool) -> RabbitmqFault {
    match code {
        NOT_FOUND if own => RabbitmqFault::OwnExchange,
        NOT_FOUND => RabbitmqFault::Exchange,
        ACCESS_REFUSED => RabbitmqFault::NotPermitted,
        CONTENT_TOO_LARGE | PRECONDITION_FAILED => RabbitmqFault::Record,
        CONNECTION_FORCED | RESOURCE_ERROR => RabbitmqFault::Broker,
        _ => RabbitmqFault::Unlisted,
    }
}

/// The failure in an error of the library about a connection.
pub(super) fn of_error(server: &str, heartbeat: Duration, error: &lapin::Error) -> Failure {
    if let Some(closing) = Closing::of(error) {
        return closed(server, &closing);
    }
    if let ErrorKind::MissingHeartbeatError = error.kind() {
        return KIND.broken(server, &format!("no heartbeat for {} s", (heartbeat * 2).as_secs()));
    }
    if let ErrorKind::IOError(error) = error.kind() {
        return KIND.broken(server, &error.to_string());
    }
    // The library keeps a reason only if AMQP has its code.
    if let ErrorKind::InvalidConnectionState(_) = error.kind() {
        return KIND.broken(server, "it closed the connection");
    }
    if let ErrorKind::ParsingError(_) | ErrorKind::InvalidProtocolVersion(_) = error.kind() {
        return KIND.broken(server, "it does not speak AMQP 0-9-1");
    }
    KIND.broken(server, &error.to_string())
}

/// The failure of a connection that the server closes.
pub(super) fn closed(server: &str, closing: &Closing) -> Failure {
    let text = format!("RabbitMQ at {server} closes the connection: {}", closing.shown());
    match closing.code {
        NOT_ALLOWED if is_full(&closing.text) => Failure::new(FailureClass::Environment, CONNECTION, text),
        // COMMAND_INVALID: the server does not offer the mechanism.
        ACCESS_REFUSED | NOT_ALLOWED | COMMAND_INVALID => log_in_fails(text),
        _ => Failure::new(FailureClass::Environment, CONNECTION, text),
    }
}

/// Whether the broker, the vhost or the user has its most connections. The code is that of a forbidden vhost, so the text decides.
fn is_full(text: &str) -> bool {
    text.contains("connection limit (") && text.ends_with("is reached")
}

/// The failure of a connection whose token has ended. The broker keeps the connection, and refuses requests.
pub(super) fn expired(server: &str, closing: &Closing) -> Failure {
    let text = format!("RabbitMQ at {server} does not accept the token any more: {}", closing.shown());
    Failure::new(FailureClass::Environment, LOG_IN_LABEL, text)
}

/// The failure of credentials that cannot be read.
pub(super) fn no_login(server: &str, reason: &str) -> Failure {
    log_in_fails(format!("cannot authenticate to RabbitMQ at {server}: {reason}"))
}

fn log_in_fails(text: String) -> Failure {
    Failure::new(FailureClass::LogIn, LOG_IN_LABEL, text).with_remedy(CREDENTIALS)
}

/// The failure of a refused declaration.
pub(super) fn not_declared(settings: &RabbitSettings, server: &str, what: &str, closing: &Closing) -> Failure {
    let text = format!("RabbitMQ at {server} does not declare {what}: {}", closing.shown());
    let failure = of_fault(settings, &settings.exchange, fault(closing.code, false), text);
    Failure { class: FailureClass::Environment, ..failure }
}

/// The failure of a channel that the broker closed, if no record is the cause.
pub(super) fn channel_closed(server: &str, closing: &Closing) -> Failure {
    let text = format!("RabbitMQ at {server} closes a channel: {}", closing.shown());
    Failure::new(FailureClass::Environment, CONNECTION, text)
}

/// The failure of an alarm, during which the server blocks publishers.
pub(super) fn alarm(server: &str, reason: &str) -> Failure {
    let text = format!("RabbitMQ at {server} blocks publishers: {reason}");
    Failure::new(FailureClass::Environment, ALARM, text)
}

/// The failure of a message that a queue did not take (`basic.nack`).
pub(super) fn not_taken(exchange: &str, key: &str) -> Failure {
    let exchange = exchange_shown(exchange);
    let text = format!("a queue of exchange {exchange} does not take messages with routing key {key} (nack)");
    Failure::new(FailureClass::Environment, NOT_TAKEN, text)
}

/// The failure of a message that no queue takes.
pub(super) fn unroutable(settings: &RabbitSettings, message: &BasicReturnMessage) -> Failure {
    let (exchange, key) = (message.exchange.as_str(), message.routing_key.as_str());
    let queue = declare_queue(settings, key);
    let fix = if exchange.is_empty() {
        queue
    } else {
        let word = |name, value: &str| shell_quoted(&format!("{name}={value}"));
        let (source, destination, routing) =
            (word("source", exchange), word("destination", key), word("routing_key", key));
        format!("{queue} && {} declare binding {source} {destination} {routing}", admin(settings))
    };
    let why = Closing { code: message.reply_code, text: message.reply_text.as_str().to_owned() };
    let text = format!(
        "no queue takes messages of exchange {} with routing key {key}: {}; for a queue of that name: {fix}",
        exchange_shown(exchange),
        why.shown()
    );
    Failure::new(FailureClass::Topic, UNROUTABLE, text)
}

/// The fix if an exchange keeps what it returns.
const KEEPS_RETURNED: &str = "bind a queue; or, if the exchange keeps what it returns, as one of the type x-delayed-message does, each attempt adds a message: set -X mandatory=false";

/// The failure of a message that the broker has returned and confirmed more than once: it may have kept each. The text ends with a command, so
/// this is its remedy.
pub(super) fn kept_perhaps(failure: Failure) -> Failure {
    failure.with_remedy(KEEPS_RETURNED)
}

/// The name of an exchange, for people.
pub(super) fn exchange_shown(exchange: &str) -> &str {
    if exchange.is_empty() { DEFAULT_EXCHANGE } else { exchange }
}

/// The command `rabbitmqadmin`, for the vhost.
fn admin(settings: &RabbitSettings) -> String {
    match settings.vhost.as_str() {
        "/" => "rabbitmqadmin".to_owned(),
        vhost => format!("rabbitmqadmin {}", shell_quoted(&format!("--vhost={vhost}"))),
    }
}

/// The command that declares a queue.
pub(super) fn declare_queue(settings: &RabbitSettings, name: &str) -> String {
    let name = shell_quoted(&format!("name={name}"));
    format!("{} declare queue {name} durable=true arguments='{{\"x-queue-type\":\"quorum\"}}'", admin(settings))
}

/// The command that declares an exchange.
pub(super) fn declare_exchange(settings: &RabbitSettings, exchange: &str) -> String {
    let name = shell_quoted(&format!("name={exchange}"));
    format!("{} declare exchange {name} type=topic durable=true", admin(settings))
}

/// The command that lets the user write to the exchange and to the one in the settings, and declare, if the settings ask for it. It replaces
/// all rights of the user in the vhost, so it has every right that walrelay needs.
pub(super) fn permit(settings: &RabbitSettings, exchange: &str) -> String {
    let pattern = |names: &[&str]| match names {
        [] => String::new(),
        names => format!("^({})$", names.iter().map(|name| regex::escape(name)).collect::<Vec<_>>().join("|")),
    };
    let usual = settings.exchange.as_str();
    let declared = [Some(usual).filter(|usual| !usual.is_empty()), settings.queue.as_deref()];
    let declared: Vec<&str> = declared.into_iter().flatten().filter(|_| settings.declare).collect();
    let mut written = declared.clone();
    for name in [usual, exchange, DEFAULT_EXCHANGE_IN_RIGHTS] {
        if !name.is_empty() && !written.contains(&name) {
            written.push(name);
        }
    }
    let read: Vec<&str> = declared.iter().copied().filter(|name| *name == usual).collect();
    let words = [&settings.vhost, settings.user(), &pattern(&declared), &pattern(&written), &pattern(&read)];
    format!("rabbitmqctl set_permissions -p {}", words.map(shell_quoted).join(" "))
}

/// The failure of the record over which the broker closed the channel.
pub(super) fn refused(
    settings: &RabbitSettings,
    (exchange, key): (&str, &str),
    fault: RabbitmqFault,
    closing: &Closing,
) -> Failure {
    let text = format!("RabbitMQ refuses a message with routing key {key}: {}", closing.shown());
    of_fault(settings, exchange, fault, text)
}

/// The failure of a request that concerns an exchange. Its text also has the command that fixes the fault.
fn of_fault(settings: &RabbitSettings, exchange: &str, fault: RabbitmqFault, text: String) -> Failure {
    match fault {
        RabbitmqFault::Record => Failure::new(FailureClass::Row, REFUSED, text),
        RabbitmqFault::NotPermitted => {
            let text = format!("{text}; to permit it: {}", permit(settings, exchange));
            Failure::new(FailureClass::Topic, NOT_PERMITTED, text).with_remedy(PERMIT)
        }
        RabbitmqFault::Exchange | RabbitmqFault::OwnExchange => {
            let text = format!("{text}; to declare it: {}", declare_exchange(settings, exchange));
            Failure::new(FailureClass::Topic, NO_EXCHANGE, text).with_remedy(DECLARE)
        }
        RabbitmqFault::Broker => Failure::new(FailureClass::Environment, REFUSED, text),
        RabbitmqFault::Unlisted => Failure::new(FailureClass::Unlisted, UNLISTED, text),
    }
}

/// The failure of a routing key that is too long, or empty.
pub(super) fn bad_key(bytes: usize) -> Failure {
    let text = format!("a routing key has 1 to 255 bytes, this one {bytes}");
    Failure::new(FailureClass::Row, ROUTING_KEY, text)
}

/// The failure of a row's exchange whose name is not valid.
pub(super) fn bad_exchange(bytes: usize) -> Failure {
    let text = format!("an exchange's name is UTF-8 of at most 255 bytes, this one has {bytes}");
    Failure::new(FailureClass::Row, EXCHANGE, text)
}

/// The failure of headers that cannot be written.
pub(super) fn bad_headers(text: String) -> Failure {
    Failure::new(FailureClass::Row, HEADERS, text)
}

/// An example of each failure with a remedy, for the review of hints.
#[cfg(test)]
pub(in crate::sink) fn remedied() -> Vec<Failure> {
    let settings = crate::sink::tests::read_in_test("amqp", "h", &[], |asked| RabbitSettings::read(asked)).unwrap();
    let of = |fault| of_fault(&settings, "outbox", fault, String::new());
    let returned = kept_perhaps(Failure::new(FailureClass::Topic, UNROUTABLE, "no"));
    vec![no_login("h:1", "no"), of(RabbitmqFault::Exchange), of(RabbitmqFault::NotPermitted), returned]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::tests::read_in_test;

    fn closing(code: u16) -> Closing {
        Closing { code, text: "why".to_owned() }
    }

    #[test]
    fn codes_say_whose_fault_it_is() {
        let of = |code| fault(code, false);
        assert_eq!((of(404), fault(404, true)), (RabbitmqFault::Exchange, RabbitmqFault::OwnExchange));
        assert_eq!((of(403), of(506)), (RabbitmqFault::NotPermitted, RabbitmqFault::Broker));
        assert_eq!((of(406), of(311)), (RabbitmqFault::Record, RabbitmqFault::Record));
        assert!([313, 405, 541, 999].iter().all(|code| of(*code) == RabbitmqFault::Unlisted));
        let dropped = ErrorKind::InvalidChannelState(lapin::ChannelState::Closing, "channel.close-ok sent").into();
        let dropped = Closing::of_channel(&dropped).unwrap();
        assert_eq!(of(dropped.code), RabbitmqFault::Unlisted);
        assert!(dropped.shown().ends_with("AMQP does not have"), "{}", dropped.shown());
        assert_eq!(closed("h:1", &closing(530)).class, FailureClass::LogIn);
        // As RabbitMQ 4.0 writes them; the code is that of a vhost that does not exist.
        for text in [
            "NOT_ALLOWED - access to vhost '/' refused for user 'relay': connection limit (1) is reached",
            "NOT_ALLOWED - connection refused for user 'relay': user connection limit (1) is reached",
            "NOT_ALLOWED - connection refused: node connection limit (1) is reached",
        ] {
            let full = closed("h:1", &Closing { code: 530, text: text.to_owned() });
            assert_eq!((full.class, full.reason), (FailureClass::Environment, CONNECTION), "{text}");
        }
        assert_eq!(closed("h:1", &closing(320)).reason, CONNECTION);
        assert_eq!(closed("h:1", &closing(320)).text, "RabbitMQ at h:1 closes the connection: why (320)");
    }

    fn settings(vhost: &str, properties: &[(&str, &str)]) -> RabbitSettings {
        read_in_test("amqp", &format!("app@h/{vhost}"), properties, |asked| RabbitSettings::read(asked)).unwrap()
    }

    #[test]
    fn what_an_operator_can_fix_has_a_command() {
        let settings = settings("", &[]);
        let refused = |code| refused(&settings, ("own", "k"), fault(code, true), &closing(code));
        // An exchange that a row names is the one to be declared.
        assert_eq!(
            refused(404).text,
            "RabbitMQ refuses a message with routing key k: why (404); to declare it: \
             rabbitmqadmin declare exchange name=own type=topic durable=true"
        );
        assert_eq!(
            refused(403).text,
            "RabbitMQ refuses a message with routing key k: why (403); to permit it: \
             rabbitmqctl set_permissions -p / app '' '^(outbox|own|amq\\.default)$' ''"
        );
    }

    #[test]
    fn rights_are_those_that_the_settings_need() {
        let command = |vhost: &str, properties: &[(&str, &str)], exchange: &str| {
            permit(&settings(vhost, properties), exchange).replace("rabbitmqctl set_permissions -p ", "")
        };
        assert_eq!(command("sh op", &[("exchange", "a.b")], "a.b"), "'sh op' app '' '^(a\\.b|amq\\.default)$' ''");
        assert_eq!(command("v", &[("exchange", "")], ""), "v app '' '^(amq\\.default)$' ''");
        let declare = [("declare", "true"), ("queue", "q")];
        assert_eq!(command("v", &declare, "outbox"), "v app '^(outbox|q)$' '^(outbox|q|amq\\.default)$' '^(outbox)$'");
    }
}
