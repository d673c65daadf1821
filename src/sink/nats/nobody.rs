//! Subjects that nobody answers for: whether no stream takes them, or one that is not available now.
//!
//! In: subjects of messages that came back with "no responders", answers of JetStream's API. Out: questions to it, and what becomes of the
//! messages. A stream without a leader is not subscribed to its subjects, so that the server says of them what it says of subjects that
//! no stream has. It does no I/O and reads no clock.
//!
//! Invariant: a message is refused only where JetStream has said that no stream takes its subject, or may not be asked.
//! Specification: NATS, JetStream API (`STREAM.NAMES`).

use super::answer::{no_leader, no_stream};
use super::check::{Names, api_error};
use crate::sink::lanes::Outcome;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// What is asked, and what it may be forbidden to ask.
pub(super) const QUESTION: &str = "$JS.API.STREAM.NAMES";

/// The part before the number in the subject of an answer.
const PREFIX: &str = "s";

/// How long an answer counts, and how long one is waited for.
const KNOWN_FOR: Duration = Duration::from_secs(5);

/// So many subjects are remembered at most.
const MOST_SUBJECTS: usize = 1000;

/// What is known of such subjects on a connection.
#[derive(Debug, Default)]
pub(super) struct Nobody {
    subjects: BTreeMap<Box<str>, Known>,
    /// Questions that were sent.
    questions: u64,
    /// The user may not ask.
    is_forbidden: bool,
}

#[derive(Debug)]
struct Known {
    /// Of the last question.
    number: u64,
    asked: Instant,
    /// No stream takes it, as the last answer says; `None`: nothing was said.
    is_free: Option<bool>,
    /// The last question is answered.
    is_answered: bool,
}

impl Nobody {
    /// What becomes of a message that nobody answers for. Asks, by what is appended to `out`, where what is known is too old; answers go to
    /// `inbox` and what stands behind it there.
    pub(super) fn judge(&mut self, subject: &str, inbox: &str, now: Instant, out: &mut Vec<u8>) -> Outcome {
        if self.is_forbidden {
            return Outcome::Refused(no_stream(subject));
        }
        if self.subjects.len() >= MOST_SUBJECTS {
            self.subjects.clear();
        }
        let number = self.questions;
        let mut is_new = false;
        let known = self.subjects.entry(subject.into()).or_insert_with(|| {
            is_new = true;
            Known { number, asked: now, is_free: None, is_answered: false }
        });
        let is_old = now.duration_since(known.asked) >= KNOWN_FOR;
        if is_new || is_old {
            if !known.is_answered {
                known.is_free = None;
            }
            (known.number, known.asked, known.is_answered) = (number, now, false);
            self.questions += 1;
            let question = serde_json::json!({ "subject": subject }).to_string();
            let head = format!("PUB {QUESTION} {inbox}{PREFIX}{number} {}\r\n{question}\r\n", question.len());
            out.extend_from_slice(head.as_bytes());
        }
        match known.is_free {
            Some(true) => Outcome::Refused(no_stream(subject)),
            Some(false) | None => Outcome::Later(no_leader(subject)),
        }
    }

    /// An answer: `to` is what stands behind the inbox. Whether it is to one of the questions.
    pub(super) fn heed(&mut self, to: &[u8], headers: &[u8], data: &[u8]) -> bool {
        let number = to.strip_prefix(PREFIX.as_bytes()).and_then(|number| std::str::from_utf8(number).ok());
        let Some(number) = number.and_then(|number| number.parse::<u64>().ok()) else { return false };
        if let Some(known) = self.subjects.values_mut().find(|known| known.number == number) {
            known.is_answered = true;
            let names = api_error(headers, data).map_or_else(|| serde_json::from_slice::<Names>(data).ok(), |_| None);
            known.is_free = names.map(|names| names.streams.unwrap_or_default().is_empty());
        }
        true
    }

    /// The user may not ask: nobody tells the two apart.
    pub(super) fn forbid(&mut self) {
        self.is_forbidden = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::FailureClass;

    fn class(outcome: &Outcome) -> FailureClass {
        match outcome {
            Outcome::Refused(failure) | Outcome::Later(failure) => failure.class,
            Outcome::Delivered | Outcome::Unknown => panic!("{outcome:?}"),
        }
    }

    #[test]
    fn a_subject_is_free_only_once_jetstream_has_said_so() {
        let (mut nobody, mut out, start) = (Nobody::default(), Vec::new(), Instant::now());
        let judge = |nobody: &mut Nobody, seconds, out: &mut Vec<u8>| {
            class(&nobody.judge("a.b", "_INBOX.x.", start + Duration::from_secs(seconds), out))
        };
        assert_eq!(judge(&mut nobody, 0, &mut out), FailureClass::Environment);
        let asked = String::from_utf8(std::mem::take(&mut out)).unwrap();
        assert_eq!(asked, "PUB $JS.API.STREAM.NAMES _INBOX.x.s0 17\r\n{\"subject\":\"a.b\"}\r\n");
        assert!(!nobody.heed(b"0", b"", b"{}") && nobody.heed(b"s0", b"", br#"{"total":0,"streams":null}"#));
        assert_eq!(judge(&mut nobody, 1, &mut out), FailureClass::Topic);
        assert!(out.is_empty(), "that is known");
        assert_eq!(judge(&mut nobody, 5, &mut out), FailureClass::Topic, "until something else is");
        assert!(!out.is_empty());
        assert!(nobody.heed(b"s1", b"", br#"{"total":1,"streams":["S"]}"#));
        assert_eq!(judge(&mut nobody, 6, &mut out), FailureClass::Environment);
    }

    #[test]
    fn where_jetstream_does_not_say_it_the_subject_is_not_at_fault() {
        let (mut nobody, mut out, start) = (Nobody::default(), Vec::new(), Instant::now());
        let mut judge = |nobody: &mut Nobody, seconds| {
            class(&nobody.judge("a.b", "_INBOX.x.", start + Duration::from_secs(seconds), &mut out))
        };
        assert_eq!(judge(&mut nobody, 0), FailureClass::Environment);
        assert!(nobody.heed(b"s0", b"", br#"{"total":0}"#));
        assert_eq!(judge(&mut nobody, 9), FailureClass::Topic, "it is asked again");
        assert_eq!(judge(&mut nobody, 15), FailureClass::Environment, "which nobody has answered");
        for (headers, data) in [
            (&b"NATS/1.0 503\r\n\r\n"[..], &b""[..]),
            (b"", br#"{"error":{"code":503,"err_code":10008,"description":"not available"}}"#),
            (b"", b"garbled"),
        ] {
            let mut nobody = Nobody::default();
            judge(&mut nobody, 0);
            assert!(nobody.heed(b"s0", headers, data));
            assert_eq!(judge(&mut nobody, 1), FailureClass::Environment);
        }
    }

    #[test]
    fn who_may_not_ask_takes_the_servers_word() {
        let (mut nobody, mut out) = (Nobody::default(), Vec::new());
        nobody.forbid();
        assert_eq!(class(&nobody.judge("a.b", "_INBOX.x.", Instant::now(), &mut out)), FailureClass::Topic);
        assert!(out.is_empty());
    }
}
