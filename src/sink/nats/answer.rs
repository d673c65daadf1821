//! What JetStream answers to a message.
//!
//! In: the answer's headers and data. Out: whether the message is stored, refused, or to be sent later. It does no I/O.
//! Control flow follows the server's codes, never its descriptions.
//! Specification: NATS, JetStream API (`PubAck`, `ApiError`), the server's errors.json.

use super::proto::{Message, status};
use crate::sink::lanes::Outcome;
use crate::sink::{Failure, FailureClass};
use serde::Deserialize;
use std::borrow::Cow;

/// Labels of failures, for metrics.
pub(super) const CONNECTION: &str = "connection";
pub(super) const NO_STREAM: &str = "no_stream";
pub(super) const OTHER_STREAM: &str = "other_stream";
pub(super) const NOT_PERMITTED: &str = "not_permitted";
pub(super) const HEADERS: &str = "headers";
const TOO_LARGE: &str = "too_large";
const SEALED: &str = "sealed";
const FULL: &str = "full";
const UNAVAILABLE: &str = "unavailable";
const REFUSED: &str = "refused";
const NO_ACK: &str = "no_ack";

/// What a record may be refused for.
pub(super) const REFUSALS: [&str; 7] = [NO_STREAM, OTHER_STREAM, NOT_PERMITTED, HEADERS, TOO_LARGE, SEALED, REFUSED];

/// What a failed delivery may say.
pub(super) const REASONS: [&str; 11] = [
    CONNECTION,
    crate::sink::lanes::LOG_IN_LABEL,
    NO_ACK,
    FULL,
    UNAVAILABLE,
    NO_STREAM,
    OTHER_STREAM,
    NOT_PERMITTED,
    TOO_LARGE,
    SEALED,
    REFUSED,
];

/// Nobody listens to the subject.
const NO_RESPONDERS: u16 = 503;

/// An answer of the API, as far as all of them have it.
#[derive(Debug, Deserialize)]
struct PubAck<'a> {
    /// The stream that has it.
    #[serde(borrow, default)]
    stream: Cow<'a, str>,
    /// Its place there, from 1.
    #[serde(default)]
    seq: u64,
    /// How many were stored with it, where it is the last of a batch; else 0.
    #[serde(default)]
    count: usize,
    #[serde(borrow, default)]
    error: Option<ApiError<'a>>,
}

/// What the API refuses something for.
#[derive(Debug, Deserialize)]
pub(super) struct ApiError<'a> {
    /// As in HTTP.
    #[serde(default)]
    pub(super) code: u16,
    #[serde(default)]
    pub(super) err_code: u16,
    #[serde(borrow, default)]
    pub(super) description: Cow<'a, str>,
}

/// Whether it is the server's own, where nobody listens.
pub(super) fn is_from_nobody(answer: Message<'_>) -> bool {
    status(answer.headers) == Some(NO_RESPONDERS)
}

/// What JetStream's answer says of the message to `subject`, or of the `records` of its batch; `None`: it is none.
pub(super) fn judge(subject: &str, records: usize, answer: Message<'_>) -> Option<Outcome> {
    let ack: PubAck<'_> = serde_json::from_slice(answer.data).ok()?;
    match ack.error {
        Some(error) => Some(of_error(subject, &error)),
        // It is not one batch to this server: what became of the others is not said.
        None if records > 1 && ack.count != records => Some(Outcome::Unknown),
        None => (!ack.stream.is_empty() && ack.seq > 0).then_some(Outcome::Delivered),
    }
}

fn of_error(subject: &str, error: &ApiError<'_>) -> Outcome {
    let ApiError { code, err_code, description } = error;
    let text = format!("NATS refuses a message to {subject}: {description} ({err_code})");
    let refused = |class, reason| Outcome::Refused(Failure { class, reason, text: text.clone() });
    let later = |reason| Outcome::Later(Failure { class: FailureClass::Environment, reason, text: text.clone() });
    match (err_code, code) {
        // The message, or its headers, are larger than the stream or the server takes.
        (10054 | 10097, _) => refused(FailureClass::Row, TOO_LARGE),
        // A stream that discards new messages has no room (bytes, messages, or messages of the subject), or its account has none, or no
        // limit that applies.
        (10077 | 10002 | 10120, _) => later(FULL),
        // The same message, sent before, is on its way into the stream, or was: it is not known yet whether that will have it.
        (10158, _) => later(UNAVAILABLE),
        (10059, _) => refused(FailureClass::Topic, NO_STREAM),
        (10060, _) => refused(FailureClass::Topic, OTHER_STREAM),
        (10109, _) => refused(FailureClass::Topic, SEALED),
        (_, 403) => refused(FailureClass::Topic, NOT_PERMITTED),
        // Resources, leaders, too many requests: they pass.
        (_, 408 | 429 | 500..) => later(UNAVAILABLE),
        (_, _) => refused(FailureClass::Row, REFUSED),
    }
}

/// The server would close the connection over a message of this size.
pub(super) fn too_large(subject: &str, bytes: usize, most: usize) -> Failure {
    let text =
        format!("a message to {subject} has {bytes} bytes with its headers; the server takes {most} (max_payload)");
    Failure { class: FailureClass::Row, reason: TOO_LARGE, text }
}

/// No stream takes the subject.
pub(super) fn no_stream(subject: &str) -> Failure {
    let text = format!("no stream of NATS takes subject {subject}");
    Failure { class: FailureClass::Topic, reason: NO_STREAM, text }
}

/// A stream may take the subject, and none does now.
pub(super) fn no_leader(subject: &str) -> Failure {
    let text = format!("no stream of NATS answers for subject {subject} now; it may be without a leader");
    Failure { class: FailureClass::Environment, reason: UNAVAILABLE, text }
}

/// The user may not publish to the subject.
pub(super) fn not_permitted(subject: &str) -> Failure {
    let text = format!("NATS does not let this user publish to {subject}");
    Failure { class: FailureClass::Topic, reason: NOT_PERMITTED, text }
}

/// JetStream did not answer.
pub(super) fn no_ack(subject: &str, seconds: u64) -> Failure {
    let text = format!("JetStream has not acknowledged a message to {subject} within {seconds} s");
    Failure { class: FailureClass::Environment, reason: NO_ACK, text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn judged(headers: &[u8], data: &str) -> String {
        judged_of(1, headers, data)
    }

    #[track_caller]
    fn judged_of(records: usize, headers: &[u8], data: &str) -> String {
        match judge("a.b", records, Message { subject: b"", headers, data: data.as_bytes() }) {
            None => "none".to_owned(),
            Some(Outcome::Delivered) => "stored".to_owned(),
            Some(Outcome::Refused(failure)) => format!("refused {:?} {}", failure.class, failure.reason),
            Some(Outcome::Later(failure)) => format!("later {:?} {}", failure.class, failure.reason),
            Some(Outcome::Unknown) => "unknown".to_owned(),
        }
    }

    #[test]
    fn only_an_acknowledgement_with_stream_and_place_counts() {
        assert_eq!(judged(b"", r#"{"stream":"S","seq":7}"#), "stored");
        assert_eq!(judged(b"", r#"{"stream":"S","seq":7,"duplicate":true,"domain":"d"}"#), "stored");
        for data in ["", "{}", "ok", r#"{"stream":"S"}"#, r#"{"stream":"","seq":7}"#, r#"{"stream":"S","seq":0}"#] {
            assert_eq!(judged(b"", data), "none", "{data}");
        }
    }

    #[test]
    fn a_batch_counts_only_as_a_whole() {
        assert_eq!(judged_of(3, b"", r#"{"stream":"S","seq":7,"batch":"b","count":3}"#), "stored");
        assert_eq!(judged_of(3, b"", r#"{"stream":"S","seq":7,"batch":"b","count":2}"#), "unknown");
        assert_eq!(judged_of(3, b"", r#"{"stream":"S","seq":7}"#), "unknown");
    }

    #[test]
    fn errors_are_distinguished_by_their_codes() {
        let nobody = Message { subject: b"", headers: b"NATS/1.0 503\r\n\r\n", data: b"" };
        assert!(is_from_nobody(nobody) && !is_from_nobody(Message { headers: b"", ..nobody }));
        assert_eq!(judged(nobody.headers, ""), "none");
        for (code, err_code, expected) in [
            (400, 10054, "refused Row too_large"),
            (400, 10097, "refused Row too_large"),
            (503, 10077, "later Environment full"),
            (400, 10002, "later Environment full"),
            (400, 10120, "later Environment full"),
            (409, 10158, "later Environment unavailable"),
            (404, 10059, "refused Topic no_stream"),
            (400, 10060, "refused Topic other_stream"),
            (400, 10109, "refused Topic sealed"),
            (503, 10023, "later Environment unavailable"),
            (429, 10167, "later Environment unavailable"),
            (400, 10071, "refused Row refused"),
        ] {
            let data = format!(
                r#"{{"error":{{"code":{code},"err_code":{err_code},"description":"d \u0041"}},"stream":"S","seq":0}}"#
            );
            assert_eq!(judged(b"", &data), expected);
        }
    }
}
