//! What a server's codes say: about a record, its exchange, or the broker.
//!
//! In: reply codes. Out: failures. It does no I/O. Control flow follows codes, never texts.
//! Specification: AMQP 0-9-1, section 1.2 (reply codes).

use super::method::Closing;
use super::settings::Settings;
use crate::given::shell_quoted;
use crate::sink::lanes::LOG_IN_LABEL;
use crate::sink::{Failure, FailureClass};
use std::borrow::Cow;

/// Labels of failures, for metrics.
pub(super) const CONNECTION: &str = "connection";
const ALARM: &str = "alarm";
const NOT_TAKEN: &str = "not_taken";
pub(super) const UNROUTABLE: &str = "unroutable";
pub(super) const NO_EXCHANGE: &str = "no_exchange";
pub(super) const NOT_PERMITTED: &str = "not_permitted";
const REFUSED: &str = "refused";
const ROUTING_KEY: &str = "routing_key";
const HEADERS: &str = "headers";
const EXCHANGE: &str = "exchange";

/// The exchange without a name, in which a routing key is a queue's name.
pub(super) const DEFAULT_EXCHANGE: &str = "(default)";

/// A row's own exchange is missing: another row's may be there.
pub(super) const NO_OWN_EXCHANGE: Fault = Fault::Record(FailureClass::Topic, NO_EXCHANGE);

/// What a record may be refused for.
pub(super) const REFUSALS: [&str; 7] =
    [UNROUTABLE, NO_EXCHANGE, NOT_PERMITTED, REFUSED, ROUTING_KEY, HEADERS, EXCHANGE];

/// What a failed delivery may say.
pub(super) const REASONS: [&str; 8] =
    [CONNECTION, LOG_IN_LABEL, ALARM, NOT_TAKEN, UNROUTABLE, NO_EXCHANGE, NOT_PERMITTED, REFUSED];

const CONTENT_TOO_LARGE: u16 = 311;
pub(super) const ACCESS_REFUSED: u16 = 403;
const NOT_FOUND: u16 = 404;
const PRECONDITION_FAILED: u16 = 406;
const NOT_ALLOWED: u16 = 530;

/// What closed a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// One of the records on it.
    Record(FailureClass, &'static str),
    /// What all records have in common.
    Exchange,
    /// Nothing that a record has to do with.
    Broker,
}

pub(super) fn fault(code: u16) -> Fault {
    match code {
        NOT_FOUND => Fault::Exchange,
        ACCESS_REFUSED => Fault::Record(FailureClass::Topic, NOT_PERMITTED),
        CONTENT_TOO_LARGE | PRECONDITION_FAILED => Fault::Record(FailureClass::Row, REFUSED),
        _ => Fault::Broker,
    }
}

fn shown(closing: Closing<'_>) -> String {
    format!("{} ({})", String::from_utf8_lossy(closing.text), closing.code)
}

/// A connection cannot be had, or is lost.
pub(super) fn broken(server: &str, reason: &str) -> Failure {
    let text = format!("RabbitMQ at {server} cannot be reached: {reason}");
    Failure { class: FailureClass::Environment, reason: CONNECTION, text }
}

/// The server closes the connection.
pub(super) fn closed(server: &str, closing: Closing<'_>) -> Failure {
    let (class, reason) = match closing.code {
        NOT_ALLOWED if is_full(closing.text) => (FailureClass::Environment, CONNECTION),
        ACCESS_REFUSED | NOT_ALLOWED => (FailureClass::LogIn, LOG_IN_LABEL),
        _ => (FailureClass::Environment, CONNECTION),
    };
    let text = format!("RabbitMQ at {server} closes the connection: {}", shown(closing));
    Failure { class, reason, text }
}

/// A broker, a vhost or a user that has connections enough: the code is the one of a vhost that we may not use, the words are not.
fn is_full(text: &[u8]) -> bool {
    let text = String::from_utf8_lossy(text);
    text.contains("connection limit (") && text.ends_with("is reached")
}

/// The broker refuses us since our token is over, and keeps the connection.
pub(super) fn expired(server: &str, closing: Closing<'_>) -> Failure {
    let text = format!("RabbitMQ at {server} does not accept the token any more: {}", shown(closing));
    Failure { class: FailureClass::Environment, reason: LOG_IN_LABEL, text }
}

/// Who we are cannot be proved.
pub(super) fn no_login(server: &str, reason: &str) -> Failure {
    let text = format!("cannot authenticate to RabbitMQ at {server}: {reason}");
    Failure { class: FailureClass::LogIn, reason: LOG_IN_LABEL, text }
}

/// What is declared is refused.
pub(super) fn not_declared(server: &str, what: &str, closing: Closing<'_>) -> Failure {
    let reason = match fault(closing.code) {
        Fault::Record(_, NOT_PERMITTED) => NOT_PERMITTED,
        Fault::Exchange => NO_EXCHANGE,
        Fault::Record(..) | Fault::Broker => REFUSED,
    };
    let text = format!("RabbitMQ at {server} does not declare {what}: {}", shown(closing));
    Failure { class: FailureClass::Environment, reason, text }
}

/// A channel was closed for a reason that no record has to do with.
pub(super) fn channel_closed(server: &str, closing: Closing<'_>) -> Failure {
    let text = format!("RabbitMQ at {server} closes a channel: {}", shown(closing));
    Failure { class: FailureClass::Environment, reason: CONNECTION, text }
}

/// The server takes nothing for now.
pub(super) fn alarm(server: &str, reason: &[u8]) -> Failure {
    let text = format!("RabbitMQ at {server} blocks publishers: {}", String::from_utf8_lossy(reason));
    Failure { class: FailureClass::Environment, reason: ALARM, text }
}

/// A queue did not take a message.
pub(super) fn not_taken(settings: &Settings, key: &str) -> Failure {
    let exchange = settings.exchange_shown();
    let text = format!("a queue of exchange {exchange} does not take messages with routing key {key} (nack)");
    Failure { class: FailureClass::Environment, reason: NOT_TAKEN, text }
}

/// No queue takes a message.
pub(super) fn unroutable(settings: &Settings, exchange: &[u8], key: &[u8], closing: Closing<'_>) -> Failure {
    let key = String::from_utf8_lossy(key);
    let queue = declare_queue(settings, &key);
    let (exchange, fix) = if exchange.is_empty() {
        (Cow::Borrowed(DEFAULT_EXCHANGE), queue)
    } else {
        let exchange = String::from_utf8_lossy(exchange);
        let word = |name, value: &str| shell_quoted(&format!("{name}={value}"));
        let (source, destination, routing) =
            (word("source", &exchange), word("destination", &key), word("routing_key", &key));
        let bind = format!("{} declare binding {source} {destination} {routing}", admin(settings));
        (exchange, format!("{queue} && {bind}"))
    };
    let text = format!(
        "no queue takes messages of exchange {exchange} with routing key {key}: {}; for a queue of that name: {fix}",
        shown(closing)
    );
    Failure { class: FailureClass::Topic, reason: UNROUTABLE, text }
}

/// The tool, for the vhost.
fn admin(settings: &Settings) -> String {
    match settings.vhost.as_str() {
        "/" => "rabbitmqadmin".to_owned(),
        vhost => format!("rabbitmqadmin {}", shell_quoted(&format!("--vhost={vhost}"))),
    }
}

/// The command that declares a queue.
pub(super) fn declare_queue(settings: &Settings, name: &str) -> String {
    let name = shell_quoted(&format!("name={name}"));
    format!("{} declare queue {name} durable=true arguments='{{\"x-queue-type\":\"quorum\"}}'", admin(settings))
}

/// The command that declares the exchange.
pub(super) fn declare_exchange(settings: &Settings) -> String {
    let name = shell_quoted(&format!("name={}", settings.exchange));
    format!("{} declare exchange {name} type=topic durable=true", admin(settings))
}

/// The exchange is missing.
pub(super) fn no_exchange(settings: &Settings, closing: Closing<'_>) -> Failure {
    let text = format!("RabbitMQ refuses messages: {}; to declare it: {}", shown(closing), declare_exchange(settings));
    Failure { class: FailureClass::Topic, reason: NO_EXCHANGE, text }
}

/// The channel was closed over this record.
pub(super) fn refused(key: &str, class: FailureClass, reason: &'static str, closing: Closing<'_>) -> Failure {
    let text = format!("RabbitMQ refuses a message with routing key {key}: {}", shown(closing));
    Failure { class, reason, text }
}

/// A record that can be no message.
pub(super) fn bad(reason: &'static str, text: String) -> Failure {
    Failure { class: FailureClass::Row, reason, text }
}

/// A routing key that is too long, or none.
pub(super) fn bad_key(bytes: usize) -> Failure {
    bad(ROUTING_KEY, format!("a routing key has 1 to 255 bytes, this one {bytes}"))
}

/// A row's own exchange that can be none.
pub(super) fn bad_exchange(bytes: usize) -> Failure {
    bad(EXCHANGE, format!("an exchange's name is UTF-8 of at most 255 bytes, this one has {bytes}"))
}

/// Headers that cannot be written.
pub(super) fn bad_headers(text: String) -> Failure {
    bad(HEADERS, text)
}

/// What fixes a failure for which an operator must act.
pub(super) fn hint(failure: &Failure) -> Option<String> {
    let hint = match failure.reason {
        _ if failure.class == FailureClass::LogIn => {
            "check the user, the vhost (%2f is /) and its permissions in --to, and the password (WALRELAY_RABBITMQ_PASSWORD, -X password=@FILE)"
        }
        NO_EXCHANGE => "declare the exchange (rabbitmqadmin, or -X declare=true), or give another -X exchange",
        NOT_PERMITTED => {
            "give the user the right to write to the exchange (rabbitmqctl set_permissions; set_topic_permissions where they are used): walrelay \
             check has the command"
        }
        _ => return None,
    };
    Some(hint.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn closing(code: u16) -> Closing<'static> {
        Closing { code, text: b"why" }
    }

    #[test]
    fn codes_say_whose_fault_it_is() {
        assert_eq!(fault(404), Fault::Exchange);
        assert_eq!(fault(403), Fault::Record(FailureClass::Topic, NOT_PERMITTED));
        assert_eq!(fault(406), Fault::Record(FailureClass::Row, REFUSED));
        assert_eq!(fault(311), Fault::Record(FailureClass::Row, REFUSED));
        assert_eq!(fault(506), Fault::Broker);
        assert_eq!(closed("h:1", closing(530)).class, FailureClass::LogIn);
        // As RabbitMQ 4.0 writes them; the code is that of a vhost that does not exist.
        for text in [
            "NOT_ALLOWED - access to vhost '/' refused for user 'relay': connection limit (1) is reached",
            "NOT_ALLOWED - connection refused for user 'relay': user connection limit (1) is reached",
            "NOT_ALLOWED - connection refused: node connection limit (1) is reached",
        ] {
            let full = closed("h:1", Closing { code: 530, text: text.as_bytes() });
            assert_eq!((full.class, full.reason), (FailureClass::Environment, CONNECTION), "{text}");
        }
        assert_eq!(closed("h:1", closing(320)).reason, CONNECTION);
        assert_eq!(closed("h:1", closing(320)).text, "RabbitMQ at h:1 closes the connection: why (320)");
    }

    #[test]
    fn what_an_operator_can_fix_has_a_command() {
        for failure in
            [not_declared("h:1", "it", closing(404)), refused("k", FailureClass::Topic, NOT_PERMITTED, closing(403))]
        {
            assert!(hint(&failure).is_some_and(|hint| hint.contains("rabbitmq")), "{failure:?}");
        }
        assert_eq!(hint(&alarm("h:1", b"low on memory")), None);
    }
}
