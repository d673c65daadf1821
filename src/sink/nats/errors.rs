//! The meaning of NATS' errors and of JetStream's answers, for a message or for the client.
//!
//! In: the library's errors, the server's texts, answers' data. Out: outcomes and failures, each with its class. Control flow follows the
//! server's codes. Errors of the protocol have none, so there the texts decide. This file does no I/O and reads no clock.
//! The codes are closed lists: any other answer is of the class `Unlisted`, and says nothing about a record.
//! Specification: NATS, JetStream API (`PubAck`, `ApiError`, `STREAM.NAMES`), the server's errors.json, "Client Protocol" (`-ERR`).

use super::{KIND, LogIn};
use crate::setting_text::shell_quoted;
use crate::sink::destination::CONNECTION;
use crate::sink::ordered_queue::{LOG_IN_LABEL, RecordOutcome};
use crate::sink::{DUPLICATE, Failure, FailureClass, UNLISTED};
use async_nats::{ConnectError, ConnectErrorKind, Event, ServerError, rustls};
use bytes::Bytes;
use serde::Deserialize;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::error::Error;
use std::time::Duration;
use tokio::time::Instant;

/// Labels of failures, for metrics.
pub(super) const NO_STREAM: &str = "no_stream";
pub(super) const OTHER_STREAM: &str = "other_stream";
pub(super) const NOT_PERMITTED: &str = "not_permitted";
pub(super) const HEADERS: &str = "headers";
const TOO_LARGE: &str = "too_large";
const SEALED: &str = "sealed";
const FULL: &str = "full";
const UNAVAILABLE: &str = "unavailable";
const NO_ACK: &str = "no_ack";

/// The labels for which JetStream may refuse a record, or drop it as a repeat.
pub(super) const REFUSALS: [&str; 7] = [NO_STREAM, OTHER_STREAM, NOT_PERMITTED, HEADERS, TOO_LARGE, SEALED, DUPLICATE];

/// The labels of failed deliveries.
pub(super) const REASONS: [&str; 13] = [
    CONNECTION,
    LOG_IN_LABEL,
    NO_ACK,
    FULL,
    UNAVAILABLE,
    NO_STREAM,
    OTHER_STREAM,
    NOT_PERMITTED,
    TOO_LARGE,
    SEALED,
    HEADERS,
    UNLISTED,
    DUPLICATE,
];

/// The fix if the server refuses the credentials.
const CREDENTIALS: &str =
    "check the user in --to, and the password (WALRELAY_NATS_PASSWORD, -X password=@FILE), -X nkey or -X credentials";

/// The fix if another stream takes the subject.
const STREAMS: &str =
    "another stream takes the subject than -X stream names: nats stream ls shows the subjects of each";

/// The fix if the user lacks the right to publish.
const RIGHTS: &str = "let the user publish to the subject and subscribe to _INBOX.> (permissions in the server's file, or nsc edit user)";

/// The answer to a question.
#[derive(Debug)]
pub(super) enum Answered {
    /// The answer's data, without an error.
    With(Bytes),
    /// An error, for people, and its `err_code` if JetStream says one.
    Refused(String, Option<u16>),
    /// The user may not ask.
    Forbidden,
}

impl Answered {
    /// The answer with this data.
    pub(super) fn of(data: Bytes) -> Self {
        #[derive(Deserialize)]
        struct ApiAnswer<'a> {
            #[serde(borrow, default)]
            error: Option<ApiError<'a>>,
        }
        let refused = match serde_json::from_slice::<ApiAnswer<'_>>(&data) {
            Ok(ApiAnswer { error }) => error.map(|ApiError { code, err_code, description }| {
                Self::Refused(format!("{description} ({err_code}, {code})"), Some(err_code))
            }),
            Err(error) => Some(Self::Refused(format!("its answer is not JetStream's: {error}"), None)),
        };
        refused.unwrap_or(Self::With(data))
    }

    /// The bytes of its data.
    pub(super) const fn bytes(&self) -> usize {
        if let Self::With(data) = self { data.len() } else { 0 }
    }

    /// The answer of the server if nobody listens on the subject.
    pub(super) fn no_responders() -> Self {
        Self::Refused("JetStream does not answer (503)".to_owned(), None)
    }
}

/// The streams that take a subject.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Names {
    pub(super) streams: Option<Vec<String>>,
    /// How many there are, of which an answer has a part.
    pub(super) total: usize,
}

/// JetStream's acknowledgement of a message.
#[derive(Debug, Deserialize)]
struct PubAck<'a> {
    /// The stream that has stored the message.
    #[serde(borrow, default)]
    stream: Cow<'a, str>,
    /// The message's sequence number in the stream, from 1.
    #[serde(default)]
    seq: u64,
    /// How many messages the batch has, if this is the answer to its last one. Otherwise 0.
    #[serde(default)]
    count: usize,
    /// The stream has a message with this id in its window, and dropped this one.
    #[serde(default)]
    duplicate: bool,
    #[serde(borrow, default)]
    error: Option<ApiError<'a>>,
}

/// An error of JetStream's API.
#[derive(Debug, Deserialize)]
struct ApiError<'a> {
    /// The code, as in HTTP.
    #[serde(default)]
    code: u16,
    #[serde(default)]
    err_code: u16,
    #[serde(borrow, default)]
    description: Cow<'a, str>,
}

/// The outcome of the message to `subject`, or of its batch of `records`, by an answer. `None`: the answer is not JetStream's.
pub fn classify(subject: &str, records: usize, answer: &[u8]) -> Option<RecordOutcome> {
    // A list would be read as the fields in their order, but is another program's answer.
    let is_object = answer.trim_ascii_start().starts_with(b"{");
    let ack: PubAck<'_> = is_object.then(|| serde_json::from_slice(answer).ok()).flatten()?;
    match ack.error {
        // Every error of JetStream has such a code. This answer is another program's.
        Some(error) if error.err_code == 0 => None,
        Some(error) => Some(of_error(subject, &error)),
        // The server did not take the messages for one batch: the answer does not say what became of the others.
        None if records > 1 && ack.count != records => Some(RecordOutcome::Unknown),
        None if ack.stream.is_empty() || ack.seq == 0 => None,
        None => Some(if ack.duplicate { RecordOutcome::Duplicate } else { RecordOutcome::Delivered }),
    }
}

fn of_error(subject: &str, error: &ApiError<'_>) -> RecordOutcome {
    let ApiError { err_code, description, .. } = error;
    let text = format!("NATS refuses a message to {subject}: {description} ({err_code})");
    let failure = |class, reason| Failure::new(class, reason, text.clone());
    let refused = |class, reason| RecordOutcome::Refused(failure(class, reason));
    let later = |reason| RecordOutcome::Later(failure(FailureClass::Environment, reason));
    match err_code {
        // The message or its headers are larger than the stream or the server takes.
        10054 | 10097 => refused(FailureClass::Row, TOO_LARGE),
        // A header of the row asks for a time to live or a schedule that is not valid.
        10165 | 10189..=10192 | 10203 | 10212 | 10223 => refused(FailureClass::Row, HEADERS),
        // A stream that discards new messages is full (bytes, messages, or messages of the subject), or its account is, or the account has
        // no limit that applies.
        10077 | 10002 | 10120 => later(FULL),
        10059 => RecordOutcome::Refused(no_stream(subject, None)),
        10060 => RecordOutcome::Refused(failure(FailureClass::Topic, OTHER_STREAM).with_remedy(STREAMS)),
        10109 => refused(FailureClass::Topic, SEALED),
        // A cluster or a stream without a leader, a lack of resources, or too many requests. 10158: an earlier attempt of this message is on its
        // way into the stream, and nobody knows yet whether the stream will store it.
        10004
        | 10006..=10009
        | 10023
        | 10028
        | 10035
        | 10039
        | 10047
        | 10076
        | 10118
        | 10158
        | 10163
        | 10167
        | 10194
        | 10210
        | 10211 => later(UNAVAILABLE),
        _ => refused(FailureClass::Unlisted, UNLISTED),
    }
}

/// The failure of a message over whose size the server would close the connection.
pub(super) fn too_large(subject: &str, bytes: usize, most: usize) -> Failure {
    let text =
        format!("a message to {subject} has {bytes} bytes with its headers; the server takes {most} (max_payload)");
    Failure::new(FailureClass::Row, TOO_LARGE, text)
}

/// The failure if no stream takes the subject. `stream`: the one that should.
pub(super) fn no_stream(subject: &str, stream: Option<&str>) -> Failure {
    let text = format!("no stream of NATS takes subject {subject}; to create one: {}", create(subject, stream));
    Failure::new(FailureClass::Topic, NO_STREAM, text)
}

/// The command that creates a stream that takes the subject. A stream's name has no dots.
pub(super) fn create(subject: &str, stream: Option<&str>) -> String {
    let name = stream.map_or_else(|| subject.replace(['.', '/', '\\'], "_"), str::to_owned);
    format!("nats stream add {} --subjects {} --storage file --defaults", shell_quoted(&name), shell_quoted(subject))
}

/// The failure if a stream may take the subject, but none does now.
pub(super) fn no_leader(subject: &str) -> Failure {
    let text = format!("no stream of NATS answers for subject {subject} now; it may be without a leader");
    Failure::new(FailureClass::Environment, UNAVAILABLE, text)
}

/// The failure if the user may not publish to the subject.
pub(super) fn not_permitted(subject: &str) -> Failure {
    let text = format!("NATS does not let this user publish to {subject}");
    Failure::new(FailureClass::Topic, NOT_PERMITTED, text).with_remedy(RIGHTS)
}

/// The failure if JetStream did not acknowledge a message in time.
pub(super) fn no_ack(subject: &str, seconds: u64) -> Failure {
    let text = format!("JetStream has not acknowledged a message to {subject} within {seconds} s");
    Failure::new(FailureClass::Environment, NO_ACK, text)
}

/// The failure of an attempt to connect.
pub(super) fn of_connect(address: &str, login: &LogIn, error: &ConnectError) -> Failure {
    let mut cause: &(dyn Error + 'static) = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    if let Some(said) = cause.downcast_ref::<ServerError>() {
        return refusal(address, &said_text(said));
    }
    match (error.kind(), login) {
        (ConnectErrorKind::Authentication, LogIn::Nkey(_)) => {
            log_in_fails(address, "the file of nkey holds no user's seed")
        }
        (ConnectErrorKind::Authentication, _) => log_in_fails(address, &cause.to_string()),
        (_, _) if speaks_no_tls(cause) => KIND.broken(address, "it offers no encryption, and tls:// asks for it"),
        (_, _) => KIND.broken(address, &cause.to_string()),
    }
}

/// Whether the other end does not speak TLS.
fn speaks_no_tls(error: &(dyn Error + 'static)) -> bool {
    let error = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
    matches!(error.and_then(|error| error.downcast_ref()), Some(rustls::Error::InvalidMessage(_)))
}

/// The text of a server's error.
fn said_text(error: &ServerError) -> Cow<'_, str> {
    match error {
        ServerError::AuthorizationViolation => "Authorization Violation".into(),
        ServerError::Other(text) => text.as_str().into(),
        ServerError::SlowConsumer(_) => error.to_string().into(),
    }
}

/// The failure of a connection that has ended. The library does not say why.
pub(super) fn ended(address: &str, timeout: Duration) -> Failure {
    KIND.broken(address, &format!("the connection was lost, or there was no answer for {} s", timeout.as_secs()))
}

/// The failure if the server refuses the credentials, or if they cannot be used.
pub(super) fn log_in_fails(address: &str, reason: &str) -> Failure {
    Failure::new(FailureClass::LogIn, LOG_IN_LABEL, format!("NATS at {address}: {reason}")).with_remedy(CREDENTIALS)
}

/// The failure of a connection that the server closes with this error. NATS has no codes for errors: the protocol defines their texts.
pub(super) fn refusal(address: &str, text: &str) -> Failure {
    if is_log_in(text) {
        return log_in_fails(address, text);
    }
    let failure = |reason| Failure::new(FailureClass::Environment, reason, format!("NATS at {address}: {text}"));
    if is_forbidden(text) { failure(NOT_PERMITTED).with_remedy(RIGHTS) } else { failure(CONNECTION) }
}

fn is_log_in(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    // At a timeout the server has not checked the credentials.
    if text.ends_with(" timeout") {
        return false;
    }
    ["authorization ", "authentication ", "user authentication ", "account authentication "]
        .iter()
        .any(|start| text.starts_with(start))
}

/// Whether the user lacks a right.
pub(super) fn is_forbidden(text: &str) -> bool {
    text.to_ascii_lowercase().starts_with("permissions violation")
}

/// The subject to which the user may not publish, if this error says so.
pub(super) fn forbidden_subject(text: &str) -> Option<String> {
    let (said, rest) = text.split_once('"')?;
    if !is_forbidden(text) || !said.to_ascii_lowercase().contains("publish") {
        return None;
    }
    unquoted(rest.rsplit_once('"')?.0)
}

/// Undoes Go's quoting of a text: `\"`, `\\`, and `\u200d` or `\U000e0001` for invisible characters. A subject has no control characters,
/// for which Go has further escapes.
fn unquoted(text: &str) -> Option<String> {
    let (mut unquoted, mut rest) = (String::new(), text.chars());
    while let Some(character) = rest.next() {
        let escaped = if character == '\\' { Some(rest.next()?) } else { None };
        let digits = match escaped {
            Some('u') => 4,
            Some('U') => 8,
            itself => {
                unquoted.push(itself.unwrap_or(character));
                continue;
            }
        };
        let number = rest.as_str().get(..digits).and_then(|digits| u32::from_str_radix(digits, 16).ok())?;
        unquoted.push(char::from_u32(number)?);
        rest = rest.as_str().get(digits..)?.chars();
    }
    Some(unquoted)
}

/// The meaning of a connection's event.
pub(super) enum EventMeaning {
    /// The user may not publish to this subject.
    Forbidden(String),
    /// The server is about to shut down.
    Leaves,
    /// The server ends the connection, for this reason.
    Closes(Failure),
    /// The connection has ended.
    Ended,
    Nothing,
}

impl EventMeaning {
    /// The meaning of an event. `None`: the client has ended.
    pub(super) fn of(address: &str, event: Option<Event>) -> Self {
        match event {
            Some(Event::ServerError(error)) => {
                let text = said_text(&error);
                forbidden_subject(&text).map_or_else(|| Self::Closes(refusal(address, &text)), Self::Forbidden)
            }
            Some(Event::Disconnected | Event::Closed) | None => Self::Ended,
            Some(Event::LameDuckMode) => Self::Leaves,
            Some(Event::Connected | Event::Draining | Event::SlowConsumer(_) | Event::ClientError(_)) => Self::Nothing,
        }
    }
}

/// The question to JetStream for the streams of a subject. The user may lack the right to ask.
pub(super) const QUESTION: &str = "$JS.API.STREAM.NAMES";

/// How long an answer counts, and how long the client waits for one.
const KNOWN_FOR: Duration = Duration::from_secs(5);

/// The most subjects that are remembered.
const MOST_SUBJECTS: usize = 1000;

/// Finds out, for subjects without responders (503), whether no stream takes them or their stream is not available now. A stream without a
/// leader is not subscribed to its subjects, so that the server gives the same answer for both.
///
/// Invariant: a message is refused only if JetStream has said that no stream takes its subject, or if the user may not ask.
#[derive(Debug, Default)]
pub(super) struct NoResponders {
    subjects: BTreeMap<Box<str>, KnownSubject>,
    /// How many questions were sent.
    questions: u64,
    /// Whether the user lacks the right to ask.
    is_forbidden: bool,
    /// The stream that should take every message.
    stream: Option<String>,
}

#[derive(Debug)]
struct KnownSubject {
    /// The number of the last question.
    number: u64,
    asked: Instant,
    /// Whether no stream takes the subject, by the last answer. `None`: there was no answer.
    is_free: Option<bool>,
    /// Whether the last question was answered.
    is_answered: bool,
}

impl NoResponders {
    /// `stream`: the stream that should take every message.
    pub(super) fn of(stream: Option<String>) -> Self {
        Self { stream, ..Self::default() }
    }

    /// The outcome of a message to this subject. If the last answer is too old, also the number of a question that the client has to send.
    pub(super) fn classify(&mut self, subject: &str, now: Instant) -> (RecordOutcome, Option<u64>) {
        if self.is_forbidden {
            return (RecordOutcome::Refused(no_stream(subject, self.stream.as_deref())), None);
        }
        if self.subjects.len() >= MOST_SUBJECTS {
            self.subjects.clear();
        }
        let number = self.questions;
        let mut is_due = false;
        let known = self.subjects.entry(subject.into()).or_insert_with(|| {
            is_due = true;
            KnownSubject { number, asked: now, is_free: None, is_answered: false }
        });
        is_due |= now.duration_since(known.asked) >= KNOWN_FOR;
        if is_due {
            if !known.is_answered {
                known.is_free = None;
            }
            (known.number, known.asked, known.is_answered) = (number, now, false);
            self.questions += 1;
        }
        let outcome = match known.is_free {
            Some(true) => RecordOutcome::Refused(no_stream(subject, self.stream.as_deref())),
            Some(false) | None => RecordOutcome::Later(no_leader(subject)),
        };
        (outcome, is_due.then_some(number))
    }

    /// Notes the answer to a question.
    pub(super) fn heed(&mut self, question: u64, answer: &Answered) {
        if let Some(known) = self.subjects.values_mut().find(|known| known.number == question) {
            known.is_answered = true;
            let names: Option<Names> =
                if let Answered::With(data) = answer { serde_json::from_slice(data).ok() } else { None };
            known.is_free = names.map(|names| names.streams.unwrap_or_default().is_empty());
        }
    }

    /// Notes that the user may not ask. Then nothing distinguishes the two cases.
    pub(super) fn forbid(&mut self) {
        self.is_forbidden = true;
    }
}

/// An example of each failure with a remedy, for the review of hints.
#[cfg(test)]
pub(in crate::sink) fn remedied() -> Vec<Failure> {
    let RecordOutcome::Refused(other) =
        of_error("a.b", &ApiError { code: 400, err_code: 10060, description: "".into() })
    else {
        unreachable!()
    };
    vec![log_in_fails("h:1", "no"), other, not_permitted("a.b")]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn classified(data: &str) -> String {
        classified_of(1, data)
    }

    #[track_caller]
    fn classified_of(records: usize, data: &str) -> String {
        match classify("a.b", records, data.as_bytes()) {
            None => "none".to_owned(),
            Some(RecordOutcome::Delivered) => "stored".to_owned(),
            Some(RecordOutcome::Refused(failure)) => format!("refused {:?} {}", failure.class, failure.reason),
            Some(RecordOutcome::Later(failure)) => format!("later {:?} {}", failure.class, failure.reason),
            Some(RecordOutcome::Unknown | RecordOutcome::Unanswered | RecordOutcome::RefusedPerhapsStored(_)) => {
                "unknown".to_owned()
            }
            Some(RecordOutcome::Duplicate) => "duplicate".to_owned(),
            Some(RecordOutcome::NotStored) => "not stored".to_owned(),
        }
    }

    #[test]
    fn only_an_acknowledgement_with_stream_and_place_counts() {
        assert_eq!(classified(r#"{"stream":"S","seq":7}"#), "stored");
        assert_eq!(classified(r#"{"stream":"S","seq":7,"duplicate":true,"domain":"d"}"#), "duplicate");
        for data in [
            "",
            "{}",
            "ok",
            r#"{"error":"no"}"#,
            r#"{"error":{"code":400,"description":"of a program"}}"#,
            r#"{"stream":"S"}"#,
            r#"{"stream":"","seq":7}"#,
            r#"{"stream":"S","seq":0}"#,
            r#"["S",7]"#,
        ] {
            assert_eq!(classified(data), "none", "{data}");
        }
    }

    #[test]
    fn a_batch_counts_only_as_a_whole() {
        assert_eq!(classified_of(3, r#"{"stream":"S","seq":7,"batch":"b","count":3}"#), "stored");
        assert_eq!(classified_of(3, r#"{"stream":"S","seq":7,"batch":"b","count":2}"#), "unknown");
        assert_eq!(classified_of(3, r#"{"stream":"S","seq":7}"#), "unknown");
    }

    #[test]
    fn errors_are_distinguished_by_their_codes() {
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
            (400, 10165, "refused Row headers"),
            // A stream that counts (`allow_msg_counter`), and codes that no server has.
            (400, 10169, "refused Unlisted unlisted"),
            (400, 10071, "refused Unlisted unlisted"),
            (503, 19999, "refused Unlisted unlisted"),
            (400, 1, "refused Unlisted unlisted"),
        ] {
            let data = format!(
                r#"{{"error":{{"code":{code},"err_code":{err_code},"description":"d \u0041"}},"stream":"S","seq":0}}"#
            );
            assert_eq!(classified(&data), expected);
        }
    }

    #[test]
    fn errors_of_the_protocol_say_what_they_concern() {
        for text in ["Authorization Violation", "User Authentication Expired", "Account Authentication Expired"] {
            assert_eq!(refusal("h:1", text).class, FailureClass::LogIn, "{text}");
        }
        // It was not heard in time: a server or a network that is slow.
        assert_eq!(refusal("h:1", "Authentication Timeout").class, FailureClass::Environment);
        assert_eq!(refusal("h:1", "Stale Connection").reason, CONNECTION);
        let publish = "Permissions Violation for Publish to \"a.\\\"b\"";
        assert_eq!(refusal("h:1", publish).reason, NOT_PERMITTED);
        assert_eq!(forbidden_subject(publish).as_deref(), Some("a.\"b"));
        // As NATS 2.15 writes characters that do not show.
        let unseen = r#"Permissions Violation for Publish to "a.\u200db\\\U000e0001\\u00ad""#;
        assert_eq!(forbidden_subject(unseen).as_deref(), Some("a.\u{200d}b\\\u{e0001}\\u00ad"));
        assert_eq!(forbidden_subject(r#"Permissions Violation for Publish to "a.\u20""#), None);
        assert_eq!(forbidden_subject("Permissions Violation for Subscription to \"a\""), None);
        assert_eq!(forbidden_subject("Stale Connection"), None);
    }

    fn class(outcome: &RecordOutcome) -> FailureClass {
        match outcome {
            RecordOutcome::Refused(failure) | RecordOutcome::Later(failure) => failure.class,
            RecordOutcome::Delivered
            | RecordOutcome::Duplicate
            | RecordOutcome::RefusedPerhapsStored(_)
            | RecordOutcome::Unanswered
            | RecordOutcome::Unknown
            | RecordOutcome::NotStored => panic!("{outcome:?}"),
        }
    }

    fn answer(data: &'static [u8]) -> Answered {
        Answered::of(data.into())
    }

    #[test]
    fn a_subject_is_free_only_once_jetstream_has_said_so() {
        let (mut none, start) = (NoResponders::default(), Instant::now());
        let classify = |none: &mut NoResponders, seconds| {
            let (outcome, asks) = none.classify("a.b", start + Duration::from_secs(seconds));
            (class(&outcome), asks)
        };
        assert_eq!(classify(&mut none, 0), (FailureClass::Environment, Some(0)));
        none.heed(0, &answer(br#"{"total":0,"streams":null}"#));
        assert_eq!(classify(&mut none, 1), (FailureClass::Topic, None));
        assert_eq!(classify(&mut none, 5), (FailureClass::Topic, Some(1)), "until something else is known");
        none.heed(1, &answer(br#"{"total":1,"streams":["S"]}"#));
        assert_eq!(classify(&mut none, 6), (FailureClass::Environment, None));
    }

    #[test]
    fn where_jetstream_does_not_say_it_the_subject_is_not_at_fault() {
        let (mut none, start) = (NoResponders::default(), Instant::now());
        let classify =
            |none: &mut NoResponders, seconds| class(&none.classify("a.b", start + Duration::from_secs(seconds)).0);
        assert_eq!(classify(&mut none, 0), FailureClass::Environment);
        none.heed(0, &answer(br#"{"total":0}"#));
        assert_eq!(classify(&mut none, 9), FailureClass::Topic, "it is asked again");
        assert_eq!(classify(&mut none, 15), FailureClass::Environment, "which nobody has answered");
        let unavailable = br#"{"error":{"code":503,"err_code":10008,"description":"not available"}}"#;
        for said in [Answered::no_responders(), answer(unavailable), answer(b"garbled")] {
            let mut none = NoResponders::default();
            classify(&mut none, 0);
            none.heed(0, &said);
            assert_eq!(classify(&mut none, 1), FailureClass::Environment);
        }
    }

    #[test]
    fn who_may_not_ask_takes_the_servers_word() {
        let mut none = NoResponders::default();
        none.forbid();
        let (outcome, asks) = none.classify("a.b", Instant::now());
        assert_eq!((class(&outcome), asks), (FailureClass::Topic, None));
    }
}
