//! Sends spans to a collector, on a thread of its own.
//!
//! ```text
//!  queue ─► batch ─► POST /v1/traces ─┬─ 2xx                        exported, but for those that the answer refuses
//!              ▲                      ├─ 429, 502, 503, 504, none    the same batch again, after 0.2 s to 5 s
//!              └──────────────────────┴─ anything else              dropped
//! ```
//!
//! In: spans from the queue. Out: requests, and how many spans were exported or dropped. Records never wait for it.
//!
//! Invariants: one request at a time; a failure is logged once until a request succeeds; at the end of the run nothing waits longer than
//! [`Exporter::finish`] is given.
//! Specification: OpenTelemetry Protocol 1.x, "OTLP/HTTP", binary Protobuf.

use super::encode::{self, Common, Resource};
use super::pending::Span;
use super::queue::Queue;
use super::traced::Traced;
use crate::metrics::{Metrics, SpanOutcome};
use crate::relay::Clock;
use crate::secret::Secret;
use crate::sink::Sink;
use crate::sink::fetch::{Answer, Request, Url};
use secrecy::{ExposeSecret as _, SecretString};
use std::convert::Infallible;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

/// Where a collector takes traces, below its address.
const PATH: &str = "/v1/traces";

/// The first pause after a failure that may pass.
const RETRIED_FIRST: Duration = Duration::from_millis(200);

/// The longest one.
const RETRIED_LAST: Duration = Duration::from_secs(5);

/// Of a collector's words, so many characters are shown.
const LONGEST_WORDS: usize = 200;

/// Where spans go.
#[derive(Debug, Clone)]
pub struct Settings {
    /// With [`PATH`] at its end.
    url: String,
    /// Headers of each request, such as an API key; read at each one.
    headers: Vec<(String, Secret)>,
    /// Certificate authorities in a PEM file; `None`: the system's.
    ca: Option<PathBuf>,
    /// What the spans are of.
    resource: Resource,
}

impl Settings {
    /// A collector's address, to which `/v1/traces` is added unless it ends so; `None`: it is none of http or https, or has a user in it.
    pub fn new(address: &str, headers: Vec<(String, Secret)>, ca: Option<PathBuf>, resource: Resource) -> Option<Self> {
        let address = address.trim().trim_end_matches('/');
        Url::of(address)?;
        let base = address.strip_suffix(PATH).unwrap_or(address);
        Some(Self { url: format!("{base}{PATH}"), headers, ca, resource })
    }
}

/// The thread that exports, and what reaches it.
#[derive(Debug)]
pub struct Exporter {
    queue: Arc<Queue>,
    metrics: Arc<Metrics>,
    /// Nothing comes: the thread's end closes it.
    ended: Receiver<Infallible>,
}

impl Exporter {
    /// Begins its thread. `system`: the destination, as OpenTelemetry calls it; `client`: this relay, as the destination knows it.
    ///
    /// # Errors
    /// The operating system gives none.
    pub fn start(
        settings: &Settings,
        system: &'static str,
        client: String,
        metrics: &Arc<Metrics>,
    ) -> io::Result<Self> {
        metrics.expect_spans();
        let settings = settings.clone();
        let common = Common { resource: settings.resource.clone(), system, client };
        let (until, ended) = mpsc::channel();
        let queue = Arc::new(Queue::default());
        let mut worker = Worker {
            settings,
            common,
            queue: Arc::clone(&queue),
            metrics: Arc::clone(metrics),
            is_failing: false,
            dropped: 0,
        };
        let work = move || {
            worker.run();
            drop(until);
        };
        thread::Builder::new().name("otlp".to_owned()).spawn(work)?;
        Ok(Self { queue, metrics: Arc::clone(metrics), ended })
    }

    /// A sink in front of `sink` whose transactions become spans.
    pub fn trace<S: Sink, C: Clock>(&self, sink: S, clock: C) -> Traced<S, C> {
        Traced::new(sink, clock, Arc::clone(&self.queue), Arc::clone(&self.metrics))
    }

    /// Sends what is left, and waits for that, for `within` at most.
    pub fn finish(self, within: Duration) {
        self.queue.close();
        if self.ended.recv_timeout(within) == Err(RecvTimeoutError::Timeout) {
            let spans = self.queue.unfinished();
            tracing::warn!(spans, "stopped before all spans were exported; no record is affected");
        }
    }
}

/// The thread's side.
struct Worker {
    settings: Settings,
    common: Common,
    queue: Arc<Queue>,
    metrics: Arc<Metrics>,
    /// That has been logged.
    is_failing: bool,
    /// Since then.
    dropped: u64,
}

/// Why a batch was not exported.
#[derive(Debug, PartialEq, Eq)]
enum Failure {
    /// It may be taken later.
    Passing(String),
    /// It never will.
    Lasting(String),
}

impl Worker {
    fn run(&mut self) {
        while let Some(spans) = self.queue.next() {
            match ids(spans.len()) {
                Some(ids) => self.deliver(&spans, &encode::request(&self.common, &spans, &ids)),
                None => self.lost(&spans, "the system has no random numbers"),
            }
        }
    }

    fn deliver(&mut self, spans: &[Span], body: &[u8]) {
        let mut pause = RETRIED_FIRST;
        loop {
            match self.post(body) {
                Ok(refused) => return self.delivered(spans, refused),
                Err(Failure::Lasting(reason)) => return self.lost(spans, &reason),
                Err(Failure::Passing(reason)) => {
                    if !std::mem::replace(&mut self.is_failing, true) {
                        tracing::warn!(reason, "span export failed; retrying, no record is affected");
                    }
                    if self.queue.is_closed() {
                        return self.drop_spans(spans.len() as u64);
                    }
                    self.queue.pause(pause);
                    pause = (pause * 2).min(RETRIED_LAST);
                }
            }
        }
    }

    fn delivered(&mut self, spans: &[Span], refused: Option<(u64, String)>) {
        let (rejected, words) = refused.unwrap_or_default();
        let rejected = rejected.min(spans.len() as u64);
        self.metrics.spans(SpanOutcome::Exported, spans.len() as u64 - rejected);
        if rejected > 0 {
            self.drop_spans(rejected);
            if !std::mem::replace(&mut self.is_failing, true) {
                tracing::warn!(reason = shown(&words), rejected, "the collector rejected spans; no record is affected");
            }
        } else if std::mem::replace(&mut self.is_failing, false) {
            tracing::info!(dropped = std::mem::take(&mut self.dropped), "span export recovered");
        }
    }

    fn lost(&mut self, spans: &[Span], reason: &str) {
        self.drop_spans(spans.len() as u64);
        if !std::mem::replace(&mut self.is_failing, true) {
            tracing::warn!(reason, "span export refused; spans are dropped, no record is affected");
        }
    }

    fn drop_spans(&mut self, count: u64) {
        self.dropped += count;
        self.metrics.spans(SpanOutcome::Dropped, count);
    }

    /// Sends one request. What the collector refuses of it, and why.
    fn post(&self, body: &[u8]) -> Result<Option<(u64, String)>, Failure> {
        let Settings { url, headers: given, ca, .. } = &self.settings;
        let read: Result<Vec<(&str, SecretString)>, _> =
            given.iter().map(|(name, secret)| Ok((name.as_str(), secret.read()?))).collect();
        let read = read.map_err(|error: crate::secret::SecretError| Failure::Passing(error.to_string()))?;
        let mut headers = vec![("Content-Type", "application/x-protobuf")];
        headers.extend(read.iter().map(|(name, value)| (*name, value.expose_secret())));
        let request = Request { method: "POST", url, headers: &headers, body };
        let answer = request.exchange(ca.as_deref()).map_err(|error| Failure::Passing(format!("{url}: {error}")))?;
        judge(url, &answer)
    }
}

fn judge(url: &str, answer: &Answer<Vec<u8>>) -> Result<Option<(u64, String)>, Failure> {
    let reason = || format!("{url}: status {}: {}", answer.status, shown(&String::from_utf8_lossy(&answer.body)));
    match answer.status {
        200..=299 => Ok(encode::refused(&answer.body)),
        429 | 502..=504 => Err(Failure::Passing(reason())),
        _ => Err(Failure::Lasting(reason())),
    }
}

/// The beginning of a collector's words, which may be Protobuf.
fn shown(words: &str) -> String {
    let printed = words.chars().filter(|c| !c.is_control() && *c != char::REPLACEMENT_CHARACTER);
    printed.take(LONGEST_WORDS).collect::<String>().trim().to_owned()
}

/// Eight random bytes for each span.
fn ids(spans: usize) -> Option<Vec<u8>> {
    let mut ids = vec![0; 8 * spans];
    rustls::crypto::ring::default_provider().secure_random.fill(&mut ids).ok()?;
    Some(ids)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(status: u16, body: &[u8]) -> Result<Option<(u64, String)>, Failure> {
        judge("http://collector/v1/traces", &Answer { status, body: body.to_vec() })
    }

    #[test]
    fn an_address_gets_the_path_of_traces_once() {
        for (address, url) in [
            ("http://collector:4318", "http://collector:4318/v1/traces"),
            ("http://collector:4318/", "http://collector:4318/v1/traces"),
            (" https://otlp.example/v1/traces ", "https://otlp.example/v1/traces"),
            ("https://otlp.example/otlp", "https://otlp.example/otlp/v1/traces"),
        ] {
            assert_eq!(Settings::new(address, Vec::new(), None, Resource::new()).unwrap().url, url, "{address}");
        }
        for address in ["collector:4318", "grpc://collector:4317", "http://user:pass@collector:4318", ""] {
            assert!(Settings::new(address, Vec::new(), None, Resource::new()).is_none(), "{address}");
        }
    }

    #[test]
    fn a_status_says_whether_a_batch_is_sent_again() {
        assert_eq!(judged(200, b""), Ok(None));
        assert_eq!(judged(202, b"{}"), Ok(None));
        for status in [429, 502, 503, 504] {
            assert!(matches!(judged(status, b""), Err(Failure::Passing(_))), "{status}");
        }
        for status in [301, 400, 401, 404, 413, 500] {
            assert!(matches!(judged(status, b""), Err(Failure::Lasting(_))), "{status}");
        }
        let Err(Failure::Lasting(reason)) = judged(400, b"\x08\x03\x12\x07bad\xffspan\n") else { panic!() };
        assert_eq!(reason, "http://collector/v1/traces: status 400: badspan");
    }

    #[test]
    fn ids_are_random() {
        let (one, other) = (ids(2).unwrap(), ids(2).unwrap());
        assert!(one.len() == 16 && one != other && one[..8] != one[8..]);
    }
}
