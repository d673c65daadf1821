//! [`AuthState`]: whether the brokers accept walrelay's credentials, and since when they refuse them.
//!
//! In: refusals and successes, with the time. Out: the reason of a refusal, and whether the relay has waited for long enough. Reads no
//! clock.
//!
//! Invariant: if the brokers have accepted the credentials once, the relay waits for [`CREDENTIALS_WITHIN`] from the first refusal;
//! otherwise for [`NEW_WITHIN`].

use crate::secret::CREDENTIALS_WITHIN;
use std::time::{Duration, Instant};

/// How long brokers may refuse credentials that they have never accepted. That happens if the cluster was unavailable at the start. A
/// broker that has just started may not know its users yet.
const NEW_WITHIN: Duration = Duration::from_secs(10);

/// librdkafka repeats an error that stays the same every 30 s. A refusal that is older than this is over.
const REPEATED_WITHIN: Duration = Duration::from_secs(75);

/// The brokers' last word on the credentials.
#[derive(Debug, Default)]
pub(super) struct AuthState {
    /// The brokers have accepted the credentials once.
    were_taken: bool,
    now: Option<AuthRefusal>,
}

#[derive(Debug)]
struct AuthRefusal {
    text: String,
    since: Instant,
    last: Instant,
}

impl AuthState {
    /// A broker has refused the credentials, in these words. Returns whether that is news: the brokers have accepted them before, and this
    /// is the first refusal since.
    pub(super) fn refused(&mut self, text: &str, now: Instant) -> bool {
        let is_new = self.now.is_none();
        let refusal = self.now.get_or_insert_with(|| AuthRefusal { text: String::new(), since: now, last: now });
        text.clone_into(&mut refusal.text);
        refusal.last = now;
        is_new && self.were_taken
    }

    /// A broker has accepted the credentials.
    pub(super) fn accepted(&mut self) {
        self.were_taken = true;
        self.now = None;
    }

    /// The brokers' reason, if they refuse the credentials.
    pub(super) fn reason(&self) -> Option<&str> {
        self.now.as_ref().map(|refusal| refusal.text.as_str())
    }

    /// The brokers' reason, once the relay has waited for long enough.
    pub(super) fn given_up(&self, now: Instant) -> Option<&str> {
        let within = if self.were_taken { CREDENTIALS_WITHIN } else { NEW_WITHIN };
        let refusal = self.now.as_ref()?;
        let is_over = now.saturating_duration_since(refusal.since) >= within;
        let is_so_still = now.saturating_duration_since(refusal.last) < REPEATED_WITHIN;
        (is_over && is_so_still).then_some(refusal.text.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_that_were_taken_are_waited_for_from_their_first_refusal_on() {
        let (mut it, first) = (AuthState::default(), Instant::now());
        it.accepted();
        assert!(it.refused("no", first), "that is news");
        assert!(!it.refused("still no", first + Duration::from_secs(30)), "and that is not");
        assert_eq!((it.reason(), it.given_up(first + CREDENTIALS_WITHIN / 2)), (Some("still no"), None));
        it.refused("no", first + CREDENTIALS_WITHIN * 14 / 15);
        assert_eq!(it.given_up(first + CREDENTIALS_WITHIN), Some("no"));
        it.accepted();
        assert_eq!((it.reason(), it.given_up(first + CREDENTIALS_WITHIN)), (None, None));
    }

    #[test]
    fn credentials_that_were_never_taken_are_not_waited_for() {
        let (mut it, first) = (AuthState::default(), Instant::now());
        assert!(!it.refused("no", first), "the end of the run says it");
        assert_eq!(it.given_up(first), None);
        assert_eq!(it.given_up(first + NEW_WITHIN), Some("no"));
    }

    #[test]
    fn an_outage_after_a_refusal_is_an_outage() {
        let (mut it, first) = (AuthState::default(), Instant::now());
        it.accepted();
        it.refused("no", first);
        assert_eq!(it.given_up(first + CREDENTIALS_WITHIN), None);
        it.refused("no", first + CREDENTIALS_WITHIN);
        assert_eq!(it.given_up(first + CREDENTIALS_WITHIN), Some("no"), "its broker is back");
    }
}
