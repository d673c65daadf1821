//! One signed request to a service, and the keys that it is signed with.
//!
//! In: an action, its body. Out: the answer, or why there is none. Connections are the caller's, so that it decides how many there
//! are. Keys are asked for when the first request needs them, again before they expire, and after the service refused them.
//!
//! Specification: AWS, "Signature Version 4 for API requests"; Smithy, "AWS JSON 1.0 protocol".

use super::http::{Answer, Link};
use super::judge::{CONNECTION, Fault, Refusal, broken, passing};
use super::settings::{GivenKeys, Service, Settings};
use crate::sink::Failure;
use crate::sink::aws::{Keys, Signed, Surroundings};
use crate::sink::lanes::LOG_IN_LABEL;
use crate::sink::lanes::socket::Peer;
use secrecy::ExposeSecret as _;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::sync::Mutex;

/// Keys that end so soon are asked for again.
const RENEWED_BEFORE: Duration = Duration::from_mins(5);

/// Keys without an end are asked for again after this: files and secrets change.
const KEPT: Duration = Duration::from_mins(5);

/// Keys are asked for so often at most, however soon they end.
const ASKED_AT_MOST: Duration = Duration::from_secs(10);

/// Who calls: where, and as whom.
pub(super) struct Caller {
    pub(super) settings: Settings,
    keys: Mutex<Option<Held>>,
}

#[derive(Clone)]
struct Held {
    keys: Arc<Keys>,
    until: SystemTime,
}

/// Why a request has no answer.
#[derive(Debug)]
pub(super) enum Unserved {
    /// The service refuses it.
    Refused(Refusal),
    /// It was not sent, or whether it was served is not known.
    Failed {
        /// Why.
        failure: Failure,
        /// It was the first problem on a connection that had worked: services close those that are idle.
        is_stale: bool,
    },
}

impl Unserved {
    /// For people.
    pub(super) fn into_text(self) -> String {
        match self {
            Self::Refused(refusal) => refusal.text,
            Self::Failed { failure, .. } => failure.text,
        }
    }
}

impl Caller {
    pub(super) fn new(settings: Settings) -> Self {
        Self { settings, keys: Mutex::new(None) }
    }

    /// Asks for `action`, whose `body` is in the service's protocol, on `link` where that is still open.
    ///
    /// # Errors
    /// The service refuses, or is not reached. The link is gone where it broke.
    pub(super) async fn call(&self, link: &mut Option<Link>, action: &str, body: &[u8]) -> Result<Vec<u8>, Unserved> {
        let keys = self.keys().await.map_err(|failure| Unserved::Failed { failure, is_stale: false })?;
        let request = self.request(&keys, action, body);
        let mut is_stale = false;
        let asking = async {
            let mut idle = link.take();
            if let Some(link) = &mut idle
                && !link.is_open().await
            {
                idle = None;
            }
            let mut used = match idle {
                Some(idle) => idle,
                None => Link::open(self.peer()).await?,
            };
            is_stale = used.is_used;
            let answer = used.ask(&request).await?;
            *link = Some(used);
            Ok(answer)
        };
        let timeout = self.settings.timeout;
        let answered = match tokio::time::timeout(timeout, asking).await {
            Ok(answered) => answered.map_err(|error: std::io::Error| broken(&self.settings, &error.to_string())),
            Err(_late) => Err(broken(&self.settings, &format!("no answer within {} s", timeout.as_secs()))),
        };
        match answered {
            Err(failure) => Err(Unserved::Failed { failure, is_stale }),
            Ok(Answer { status: 200, body, .. }) => Ok(body),
            Ok(Answer { status, body, .. }) => {
                let refusal = self.settings.service.refusal(status, &body);
                if refusal.fault().0 == Fault::LogIn {
                    *self.keys.lock().await = None;
                }
                Err(Unserved::Refused(refusal))
            }
        }
    }

    fn peer(&self) -> Peer<'_> {
        let Settings { endpoint, timeout, .. } = &self.settings;
        Peer { host: &endpoint.host, port: endpoint.port, tls: endpoint.tls.as_ref(), unread_at_most: Some(*timeout) }
    }

    fn request(&self, keys: &Keys, action: &str, body: &[u8]) -> Vec<u8> {
        let Settings { service, region, endpoint, .. } = &self.settings;
        let (host, target) = (endpoint.authority(), format!("AmazonSQS.{action}"));
        let (content_type, target) = match service {
            Service::Sqs => ("application/x-amz-json-1.0", Some(target.as_str())),
            Service::Sns => ("application/x-www-form-urlencoded; charset=utf-8", None),
        };
        let signed = Signed { host: &host, region, service: service.name(), content_type, target, body };
        let headers = signed.headers(keys, SystemTime::now());
        let agent = concat!("walrelay/", env!("CARGO_PKG_VERSION"));
        let length = body.len();
        let head = format!(
            "POST / HTTP/1.1\r\n{}user-agent:{agent}\r\ncontent-length:{length}\r\n\r\n",
            headers.expose_secret()
        );
        [head.as_bytes(), body].concat()
    }

    /// Keys that are good now.
    async fn keys(&self) -> Result<Arc<Keys>, Failure> {
        let (now, given) = (SystemTime::now(), self.settings.keys.clone());
        self.keys_at(now, move || given.map_or_else(|| of_chain(now), |given| of_settings(&given))).await
    }

    /// The same; `ask` says which they are. Those who ask meanwhile wait for the same answer.
    async fn keys_at(
        &self,
        now: SystemTime,
        ask: impl FnOnce() -> Result<Keys, (Fault, String)> + Send + 'static,
    ) -> Result<Arc<Keys>, Failure> {
        let mut held = self.keys.lock().await;
        if let Some(Held { keys, until }) = &*held
            && now < *until
        {
            return Ok(Arc::clone(keys));
        }
        let asked = tokio::task::spawn_blocking(ask).await;
        let keys = match asked.unwrap_or_else(|ended| Err((Fault::Later, ended.to_string()))) {
            Ok(keys) => Arc::new(keys),
            Err((fault, text)) => {
                // They were asked for before the ones at hand end, which nobody has refused.
                let good = held.as_mut().filter(|held| held.keys.are_good_still(now));
                let Some(good) = good else { return Err(self.no_keys(fault, &text)) };
                good.until = now + ASKED_AT_MOST;
                return Ok(Arc::clone(&good.keys));
            }
        };
        let end = keys.expires_at.and_then(|end| end.checked_sub(RENEWED_BEFORE)).unwrap_or(now + KEPT);
        *held = Some(Held { keys: Arc::clone(&keys), until: end.max(now + ASKED_AT_MOST) });
        Ok(keys)
    }

    fn no_keys(&self, fault: Fault, text: &str) -> Failure {
        let reason = if fault == Fault::LogIn { LOG_IN_LABEL } else { CONNECTION };
        passing(&self.settings, (fault, reason), text)
    }
}

/// A service for keys that does not answer may do so later; all else waits for somebody.
fn of_chain(now: SystemTime) -> Result<Keys, (Fault, String)> {
    Surroundings::of_process().keys(now).map_err(|error| {
        let fault = if error.passes() { Fault::Later } else { Fault::LogIn };
        (fault, error.to_string())
    })
}

fn of_settings(given: &GivenKeys) -> Result<Keys, (Fault, String)> {
    let secret = given.secret.read().map_err(|error| (Fault::LogIn, error.to_string()))?;
    Ok(Keys { id: given.id.clone(), secret, token: None, expires_at: None })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::lanes::block_on;
    use crate::sink::tests::read_in_test;

    const MINUTE: Duration = Duration::from_mins(1);

    #[test]
    fn keys_that_are_good_still_are_used_while_nobody_gives_new_ones() {
        let caller = Caller::new(read_in_test("sqs", "r-1", &[], |asked| Settings::read(asked)).unwrap());
        let start = SystemTime::now();
        let keys = move |id: &str| Keys {
            id: id.to_owned(),
            secret: "s".into(),
            token: None,
            expires_at: Some(start + 10 * MINUTE),
        };
        let asked = |at: SystemTime, said: Result<Keys, Fault>| {
            let said = said.map_err(|fault| (fault, "no".to_owned()));
            let keys = block_on(caller.keys_at(at, move || said));
            keys.map(|keys| keys.id.clone()).map_err(|failure| failure.reason)
        };
        assert_eq!(asked(start, Ok(keys("first"))), Ok("first".to_owned()));
        assert_eq!(asked(start + 4 * MINUTE, Ok(keys("second"))), Ok("first".to_owned()));
        assert_eq!(asked(start + 6 * MINUTE, Err(Fault::Later)), Ok("first".to_owned()), "they have four minutes left");
        assert_eq!(asked(start + 6 * MINUTE, Ok(keys("second"))), Ok("first".to_owned()), "it was asked a moment ago");
        assert_eq!(asked(start + 7 * MINUTE, Err(Fault::LogIn)), Ok("first".to_owned()));
        assert_eq!(asked(start + 8 * MINUTE, Ok(keys("third"))), Ok("third".to_owned()));
        assert_eq!(asked(start + 11 * MINUTE, Err(Fault::Later)), Err(CONNECTION));
        assert_eq!(asked(start + 11 * MINUTE, Err(Fault::LogIn)), Err(LOG_IN_LABEL));
    }
}
