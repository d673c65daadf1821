//! When a token that is used as the password expires.
//!
//! In: what we logged in with. Out: the end that it says of itself, where it is a JSON Web Token. Its signature is the broker's to judge.
//! Specification: RFC 7519, `exp`; RabbitMQ, "OAuth 2.0 Authentication Backend".

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde::Deserialize;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How far the broker's clock may be ahead of ours.
const CLOCKS_DIFFER: Duration = Duration::from_mins(1);

/// The end of a token; `None`: it is none, or does not say.
pub(super) fn end(secret: &str) -> Option<SystemTime> {
    #[derive(Deserialize)]
    struct Claims {
        exp: f64,
    }
    let mut parts = secret.split('.');
    let (Some(_), Some(claims), Some(_), None) = (parts.next(), parts.next(), parts.next(), parts.next()) else {
        return None;
    };
    let claims = BASE64_URL_SAFE_NO_PAD.decode(claims.trim_end_matches('=')).ok()?;
    let Claims { exp } = serde_json::from_slice(&claims).ok()?;
    UNIX_EPOCH.checked_add(Duration::try_from_secs_f64(exp).ok()?)
}

/// Whether a token that ends then may be over for the broker.
pub(super) fn may_be_over(end: SystemTime, now: SystemTime) -> bool {
    end <= now + CLOCKS_DIFFER
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_says_when_it_ends_and_a_password_does_not() {
        let token = |claims: &str| format!("e30.{}.c2ln", BASE64_URL_SAFE_NO_PAD.encode(claims));
        let at = |seconds| Some(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(end(&token(r#"{"sub":"relay","exp":1800000060}"#)), at(1_800_000_060));
        assert_eq!(end(&token(r#"{"exp":1.8e9}"#)), at(1_800_000_000));
        for none in ["", "hush", "a.b.c", "a.b", &token(r#"{"sub":"relay"}"#), &token(r#"{"exp":-1}"#), &token("[]")] {
            assert_eq!(end(none), None, "{none}");
        }
        let now = UNIX_EPOCH + Duration::from_hours(500_000);
        assert!(may_be_over(now - CLOCKS_DIFFER, now) && may_be_over(now + CLOCKS_DIFFER, now));
        assert!(!may_be_over(now + 2 * CLOCKS_DIFFER, now));
    }
}
