//! The client of a schema registry: asks on a thread of its own, and keeps the answers.
//!
//! In: subjects. Out: the number of the subject's latest schema, or the reason why it is not known yet. The thread starts with the first
//! question, asks for one subject at a time, and ends with the client.
//!
//! The client's reaction to an answer:
//!
//! | answer | reaction |
//! |---|---|
//! | a number | it counts at once, and the client asks again every [`REFRESHED`]; a failure then changes nothing |
//! | the subject is unknown, or the registry refuses otherwise | a failure of the topic, in the registry's words; the client asks again every [`RETRIED_LAST`] |
//! | no answer, an error of the server's, credentials refused | a failure of the environment; the client asks again after [`RETRIED_FIRST`] to [`RETRIED_LAST`] |
//!
//! Invariants: [`Client::ask`] waits only for a lock that nobody has for long; no password shows in `Debug` or in a failure.

use super::Subjects;
use crate::secret::Secret;
use crate::setting_text::percent_encoded;
use crate::sink::fetch::{self, Answer};
use crate::sink::{Failure, FailureClass};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use secrecy::ExposeSecret as _;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How often the client asks again for a known number. A new version of a schema counts after this time at the latest.
const REFRESHED: Duration = Duration::from_mins(1);

/// The first pause after a failure.
const RETRIED_FIRST: Duration = Duration::from_millis(200);

/// The longest pause after a failure.
const RETRIED_LAST: Duration = Duration::from_secs(5);

/// The most characters of the registry's words in a message.
const LONGEST_WORDS: usize = 300;

/// The registry's address, and the names of subjects.
#[derive(Debug, Clone)]
pub struct Registry {
    /// `http://HOST:PORT/PATH` or `https://…`, without a slash at its end.
    pub url: String,
    /// Basic authentication; `None`: none.
    pub credentials: Option<Credentials>,
    /// Certificate authorities in a PEM file; `None`: the system's.
    pub ca: Option<PathBuf>,
    /// The template for subjects.
    pub subjects: Subjects,
}

/// The user and the password for the registry.
#[derive(Debug, Clone)]
pub struct Credentials {
    /// The user; of Confluent Cloud the API key.
    pub user: String,
    /// The password, which is read at each question.
    pub password: Secret,
}

impl Registry {
    /// The subject of a topic's values. `None`: it depends on the type.
    pub fn subject(&self, topic: &str) -> Option<String> {
        let mut subject = String::new();
        self.subjects.fill(topic, None, &mut subject).then_some(subject)
    }

    /// Whether a text is an address of a registry: http or https, without user and password.
    pub fn is_address(text: &str) -> bool {
        fetch::is_address(text)
    }

    /// Asks for the number of a subject's latest schema, and waits for the answer, at most 5 s.
    ///
    /// # Errors
    /// The registry does not answer, or knows no such subject.
    pub fn number(&self, subject: &str) -> Result<u32, Failure> {
        let unavailable = |reason: &dyn std::fmt::Display| self.unavailable(reason);
        let credentials = match &self.credentials {
            Some(of) => {
                let password = of.password.read().map_err(|error| unavailable(&error))?;
                let pair = format!("{}:{}", of.user, password.expose_secret());
                Some(format!("Basic {}", STANDARD.encode(pair)))
            }
            None => None,
        };
        let mut headers = vec![("Accept", "application/vnd.schemaregistry.v1+json, application/json")];
        headers.extend(credentials.as_deref().map(|value| ("Authorization", value)));
        let url = format!("{}/subjects/{}/versions/latest", self.url, percent_encoded(subject));
        let answer = fetch::get(&url, &headers, self.ca.as_deref()).map_err(|error| unavailable(&error))?;
        self.number_in(subject, &answer)
    }

    fn number_in(&self, subject: &str, answer: &Answer) -> Result<u32, Failure> {
        #[derive(Deserialize)]
        struct Version {
            id: i32,
        }
        #[derive(Deserialize)]
        struct Refusal {
            error_code: Option<i64>,
            message: Option<String>,
        }
        let refusal = serde_json::from_str::<Refusal>(&answer.body);
        // An answer without a code comes from a proxy, not from the registry.
        let is_registrys = refusal.as_ref().is_ok_and(|refusal| refusal.error_code.is_some());
        let words = match refusal {
            Ok(Refusal { error_code, message: Some(message) }) => {
                let code = error_code.map_or_else(String::new, |code| format!(" ({code})"));
                format!("{}{code}", shortened(&message))
            }
            Ok(_) | Err(_) => format!("status {}", answer.status),
        };
        match answer.status {
            200 => serde_json::from_str::<Version>(&answer.body)
                .ok()
                .and_then(|version| u32::try_from(version.id).ok())
                .ok_or_else(|| self.unavailable(&"its answer has no id")),
            401 | 403 => Err(self.unavailable(&format!("it refuses our credentials: {words}"))),
            408 | 429 => Err(self.unavailable(&words)),
            400..=499 if is_registrys => {
                let text = format!("schema registry, subject \"{subject}\": {words}");
                Err(Failure::new(FailureClass::Topic, super::UNKNOWN_SUBJECT, text))
            }
            _ => Err(self.unavailable(&words)),
        }
    }

    fn unavailable(&self, reason: &dyn std::fmt::Display) -> Failure {
        let text = format!("schema registry {}: {reason}", self.url);
        Failure::new(FailureClass::Environment, super::SCHEMA_REGISTRY, text)
    }
}

fn shortened(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(LONGEST_WORDS).collect()
}

/// The state that the thread and the sink share.
#[derive(Debug, Default)]
struct SharedNumbers {
    /// The number of each subject's latest schema, or the reason why it is not known.
    known: Mutex<BTreeMap<String, Result<u32, Failure>>>,
    /// Rises with each number that has changed.
    state: AtomicU64,
}

impl SharedNumbers {
    fn known(&self) -> MutexGuard<'_, BTreeMap<String, Result<u32, Failure>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores an answer. Once a number is known, only another number replaces it.
    fn learn(&self, subject: &str, answer: &Result<u32, Failure>) {
        let mut known = self.known();
        let before = known.get(subject).and_then(|known| known.as_ref().ok().copied());
        match (before, answer) {
            (Some(_), Err(_)) => return,
            (Some(before), Ok(number)) if before != *number => {
                self.state.fetch_add(1, Ordering::Release);
            }
            (_, _) => {}
        }
        known.insert(subject.to_owned(), answer.clone());
    }
}

/// The sink's side of the client.
pub(super) struct Client {
    registry: Registry,
    shared: Arc<SharedNumbers>,
    /// `None`: the thread has not begun.
    questions: Option<Sender<String>>,
}

impl Client {
    pub(super) fn new(registry: &Registry) -> Self {
        Self { registry: registry.clone(), shared: Arc::default(), questions: None }
    }

    /// A counter that rises when a known number has changed.
    #[inline]
    pub(super) fn state(&self) -> u64 {
        self.shared.state.load(Ordering::Acquire)
    }

    /// The subject's number, or why it is not known. The first call for a subject makes the thread ask.
    pub(super) fn ask(&mut self, subject: &str) -> Result<u32, Failure> {
        if let Some(known) = self.shared.known().get(subject) {
            return known.clone();
        }
        let sent = self.questions().and_then(|questions| {
            questions.send(subject.to_owned()).map_err(|_| std::io::Error::other("its thread has ended"))
        });
        sent.map_err(|error| self.registry.unavailable(&error))?;
        let asked = self.registry.unavailable(&format!("asking for subject \"{subject}\""));
        self.shared.known().entry(subject.to_owned()).or_insert(Err(asked)).clone()
    }

    fn questions(&mut self) -> std::io::Result<&Sender<String>> {
        if self.questions.is_none() {
            let (sender, questions) = mpsc::channel::<String>();
            let (registry, shared) = (self.registry.clone(), Arc::clone(&self.shared));
            let work = move || RegistryWorker { registry, shared, waiting: Vec::new() }.run(&questions);
            thread::Builder::new().name("schema-registry".to_owned()).spawn(work)?;
            self.questions = Some(sender);
        }
        self.questions.as_ref().ok_or_else(|| std::io::Error::other("it has no thread"))
    }
}

/// A subject that the thread asks for at a time.
struct Waiting {
    subject: String,
    due: Instant,
    /// The pause after the next failure.
    pause: Duration,
}

/// The thread's side of the client.
struct RegistryWorker {
    registry: Registry,
    shared: Arc<SharedNumbers>,
    waiting: Vec<Waiting>,
}

impl RegistryWorker {
    /// Asks until the sink is dropped.
    fn run(mut self, questions: &mpsc::Receiver<String>) {
        loop {
            let next = self.waiting.iter().map(|waiting| waiting.due).min();
            let patience = next.map_or(REFRESHED, |due| due.saturating_duration_since(Instant::now()));
            match questions.recv_timeout(patience) {
                Ok(subject) => {
                    self.waiting.push(Waiting { subject, due: Instant::now(), pause: RETRIED_FIRST });
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            let now = Instant::now();
            let Some(waiting) = self.waiting.iter_mut().filter(|waiting| waiting.due <= now).min_by_key(|at| at.due)
            else {
                continue;
            };
            let answer = self.registry.number(&waiting.subject);
            waiting.answered(&answer, Instant::now());
            tell(&waiting.subject, &answer, &self.shared);
            self.shared.learn(&waiting.subject, &answer);
        }
    }
}

impl Waiting {
    fn answered(&mut self, answer: &Result<u32, Failure>, now: Instant) {
        let pause = match answer {
            Ok(_) => {
                self.pause = RETRIED_FIRST;
                REFRESHED
            }
            Err(failure) if failure.class == FailureClass::Topic => RETRIED_LAST,
            Err(_) => {
                let pause = self.pause;
                self.pause = (pause * 2).min(RETRIED_LAST);
                pause
            }
        };
        self.due = now + pause;
    }
}

/// Logs an answer that is new.
fn tell(subject: &str, answer: &Result<u32, Failure>, shared: &SharedNumbers) {
    let before = shared.known().get(subject).cloned();
    match (answer, before) {
        (Ok(number), Some(Ok(before))) if *number == before => {}
        (Ok(number), _) => tracing::info!(subject, id = number, "schema looked up"),
        (Err(failure), Some(Err(before))) if before.text == failure.text => {}
        (Err(failure), Some(Ok(id))) => {
            tracing::debug!(subject, id, reason = %failure, "schema lookup failed; keeping its last id");
        }
        (Err(failure), _) => tracing::warn!(subject, reason = %failure, "schema lookup failed; retrying, rows wait"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registry() -> Registry {
        Registry { url: "http://registry:8081".to_owned(), credentials: None, ca: None, subjects: Subjects::default() }
    }

    fn answered(status: u16, body: &str) -> Result<u32, (FailureClass, String)> {
        let answer = Answer { status, body: body.to_owned() };
        registry().number_in("orders-value", &answer).map_err(|failure| (failure.class, failure.text))
    }

    #[test]
    fn an_answer_is_a_number_or_a_failure_in_the_registrys_words() {
        assert_eq!(answered(200, r#"{"subject":"orders-value","version":3,"id":41,"schema":"{}"}"#), Ok(41));
        let unknown = r#"{"error_code":40401,"message":"Subject 'orders-value' not found."}"#;
        let text = "schema registry, subject \"orders-value\": Subject 'orders-value' not found. (40401)";
        assert_eq!(answered(404, unknown), Err((FailureClass::Topic, text.to_owned())));
        assert_eq!(answered(422, r#"{"error_code":42201,"message":"no"}"#).unwrap_err().0, FailureClass::Topic);
        // An answer that is not the registry's says nothing about a subject: a proxy gave it, or the registry limits requests.
        let limited = r#"{"error_code":429,"message":"Too many requests"}"#;
        for (status, body) in [
            (401, ""),
            (403, ""),
            (404, "default backend - 404"),
            (408, ""),
            (429, limited),
            (500, "{"),
            (503, ""),
            (200, "{}"),
            (200, r#"{"id":-1}"#),
            (302, ""),
        ] {
            let (class, text) = answered(status, body).unwrap_err();
            assert_eq!(class, FailureClass::Environment, "{status}");
            assert!(text.starts_with("schema registry http://registry:8081: "), "{text}");
        }
    }

    #[test]
    fn a_number_stays_while_the_registry_cannot_be_asked_and_another_one_counts() {
        let shared = SharedNumbers::default();
        let failure = || Err(registry().unavailable(&"gone"));
        shared.learn("s", &failure());
        assert!(matches!(shared.known().get("s"), Some(Err(_))));
        shared.learn("s", &Ok(7));
        shared.learn("s", &failure());
        assert!(matches!(shared.known().get("s"), Some(Ok(7))));
        assert_eq!(shared.state.load(Ordering::Acquire), 0, "nobody has another one");
        shared.learn("s", &Ok(8));
        assert_eq!(shared.state.load(Ordering::Acquire), 1);
    }

    #[test]
    fn pauses_grow_to_a_bound_and_begin_again_after_an_answer() {
        let now = Instant::now();
        let mut waiting = Waiting { subject: "s".to_owned(), due: now, pause: RETRIED_FIRST };
        let failure = Err(registry().unavailable(&"gone"));
        let mut pauses = Vec::new();
        for _ in 0..7 {
            waiting.answered(&failure, now);
            pauses.push(waiting.due.duration_since(now).as_millis());
        }
        assert_eq!(pauses, [200, 400, 800, 1600, 3200, 5000, 5000]);
        waiting.answered(&Ok(1), now);
        assert_eq!((waiting.due - now, waiting.pause), (REFRESHED, RETRIED_FIRST));
    }

    #[test]
    fn a_subject_is_one_segment_of_the_path() {
        assert_eq!(percent_encoded("orders-value"), "orders-value");
        assert_eq!(percent_encoded("a/b c?é"), "a%2Fb%20c%3F%C3%A9");
    }
}
