//! Whether the brokers take our credentials, and for how long they have not.
//!
//! In: refusals and successes, with the time. Out: what is refused, and when waiting is over. Reads no clock.
//!
//! Invariant: credentials that were taken once are waited for, for [`CREDENTIALS_WITHIN`] from their first refusal; those that never were
//! are not.

use crate::secret::CREDENTIALS_WITHIN;
use std::time::{Duration, Instant};

/// How long credentials may be refused that were never taken: those of a cluster that was unavailable at the start, which is asked then
/// for the first time. A broker that has just begun may not know its users yet.
const NEW_WITHIN: Duration = Duration::from_secs(10);

/// librdkafka repeats an error that stays the same only so often, 30 s. A refusal older than this is no longer what we wait for.
const REPEATED_WITHIN: Duration = Duration::from_secs(75);

/// What is known of it.
#[derive(Debug, Default)]
pub(super) struct Refused {
    /// They were taken once.
    were_taken: bool,
    now: Option<Refusal>,
}

#[derive(Debug)]
struct Refusal {
    text: String,
    since: Instant,
    last: Instant,
}

impl Refused {
    /// They are refused, in these words. Whether that is new, of credentials that were taken before.
    pub(super) fn refused(&mut self, text: &str, now: Instant) -> bool {
        let is_new = self.now.is_none();
        let refusal = self.now.get_or_insert_with(|| Refusal { text: String::new(), since: now, last: now });
        text.clone_into(&mut refusal.text);
        refusal.last = now;
        is_new && self.were_taken
    }

    /// They are taken.
    pub(super) fn accepted(&mut self) {
        self.were_taken = true;
        self.now = None;
    }

    /// Why they are refused.
    pub(super) fn reason(&self) -> Option<&str> {
        self.now.as_ref().map(|refusal| refusal.text.as_str())
    }

    /// Why they are refused, once that is not waited for any longer.
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
        let (mut it, first) = (Refused::default(), Instant::now());
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
        let (mut it, first) = (Refused::default(), Instant::now());
        assert!(!it.refused("no", first), "the end of the run says it");
        assert_eq!(it.given_up(first), None);
        assert_eq!(it.given_up(first + NEW_WITHIN), Some("no"));
    }

    #[test]
    fn an_outage_after_a_refusal_is_an_outage() {
        let (mut it, first) = (Refused::default(), Instant::now());
        it.accepted();
        it.refused("no", first);
        assert_eq!(it.given_up(first + CREDENTIALS_WITHIN), None);
        it.refused("no", first + CREDENTIALS_WITHIN);
        assert_eq!(it.given_up(first + CREDENTIALS_WITHIN), Some("no"), "its broker is back");
    }
}
