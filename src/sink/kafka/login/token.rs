//! Parses a token from a program's output.
//!
//! In: the output, and the time. Out: the token with its end, its principal and its extensions. It reads no clock, contacts nobody, and
//! verifies nothing: the broker does.
//!
//! Invariant: a token's value shows in no `Debug`.
//! Specification: RFC 7519 for `exp`, `iat` and `sub` of a JWT; RFC 7628, section 3.1, for extensions.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use secrecy::SecretString;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How long a token without an end is valid.
const LIFE: Duration = Duration::from_mins(5);

/// Larger numbers are milliseconds since 1970, the others are seconds.
const LARGEST_SECONDS: f64 = 100_000_000_000.0;

/// The longest validity of a token, in seconds.
const LONGEST_LIFE_SECONDS: f64 = 10_000_000_000.0;

/// The principal for librdkafka if the output has none. Brokers read it from the token.
const PRINCIPAL: &str = "walrelay";

/// A token, with its end, its principal and its extensions.
#[derive(Debug, Clone)]
pub(super) struct Token {
    pub(super) value: SecretString,
    /// The end of its validity, by this machine's clock.
    pub(super) expires_at: SystemTime,
    pub(super) principal: String,
    pub(super) extensions: BTreeMap<String, String>,
}

/// A program's output in JSON.
#[derive(Deserialize)]
struct Printed {
    token: String,
    expires_at: Option<f64>,
    principal: Option<String>,
    #[serde(default)]
    extensions: BTreeMap<String, String>,
}

/// The claims of a JWT.
#[derive(Deserialize, Default)]
struct Claims {
    exp: Option<f64>,
    iat: Option<f64>,
    sub: Option<String>,
}

impl Token {
    /// Parses a program's output. `None`: it is no token.
    pub(super) fn read(output: &str, now: SystemTime) -> Option<Self> {
        let text = output.trim();
        let printed = if text.starts_with('{') {
            serde_json::from_str::<Printed>(text).ok()?
        } else {
            let token = text.lines().next()?.trim().to_owned();
            Printed { token, expires_at: None, principal: None, extensions: BTreeMap::new() }
        };
        let Printed { token, expires_at, principal, extensions } = printed;
        if token.is_empty() || token.contains(char::is_whitespace) {
            return None;
        }
        let claims = claims(&token).unwrap_or_default();
        let life = life(expires_at.or(claims.exp), claims.iat, now);
        let principal = principal.or(claims.sub).unwrap_or_else(|| PRINCIPAL.to_owned());
        Some(Self { value: token.into(), expires_at: now + life, principal, extensions })
    }

    /// How long the token is still valid.
    pub(super) fn left(&self, now: SystemTime) -> Duration {
        self.expires_at.duration_since(now).unwrap_or_default()
    }

    /// Whether the token has expired.
    pub(super) fn has_expired(&self, now: SystemTime) -> bool {
        self.left(now).is_zero()
    }

    /// When the next token should be fetched: with a quarter of the validity left.
    pub(super) fn renew_at(&self, now: SystemTime) -> SystemTime {
        now + self.left(now) * 3 / 4
    }

    /// The end of its validity in milliseconds since 1970.
    pub(super) fn expires_at_millis(&self) -> i64 {
        let since = self.expires_at.duration_since(UNIX_EPOCH).unwrap_or_default();
        i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
    }
}

/// How long a token is valid from now on by this machine's clock, which may differ from the issuer's. The time is never longer than from
/// issue to end. If the token seems to have expired, it is exactly that, since the token was issued a moment ago.
fn life(expires_at: Option<f64>, issued_at: Option<f64>, now: SystemTime) -> Duration {
    let Some(expires_at) = expires_at.map(seconds) else { return LIFE };
    let now = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let in_all = issued_at.map(|issued_at| expires_at - seconds(issued_at)).filter(|life| *life > 0.0);
    let left = match (expires_at - now, in_all) {
        (left, Some(in_all)) if left > 0.0 => left.min(in_all),
        (_, Some(in_all)) => in_all,
        (left, None) => left,
    };
    Duration::from_secs_f64(left.clamp(0.0, LONGEST_LIFE_SECONDS))
}

fn seconds(number: f64) -> f64 {
    if number > LARGEST_SECONDS { number / 1000.0 } else { number }
}

/// The claims of a JWT. `None`: the token is no JWT.
fn claims(token: &str) -> Option<Claims> {
    let mut parts = token.split('.');
    let (_, claims, _) = (parts.next()?, parts.next()?, parts.next()?);
    serde_json::from_slice(&BASE64_URL_SAFE_NO_PAD.decode(claims.trim_end_matches('=')).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use secrecy::ExposeSecret as _;

    const NOW: u64 = 1_800_000_000;

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[track_caller]
    fn read(output: &str) -> Token {
        Token::read(output, at(NOW)).unwrap_or_else(|| panic!("{output} is none"))
    }

    fn jwt(claims: &str) -> String {
        format!("e30.{}.", BASE64_URL_SAFE_NO_PAD.encode(claims))
    }

    #[test]
    fn a_token_alone_says_itself_how_long_it_is_good_and_whose_it_is() {
        let token = read(&format!("{}\nmore\n", jwt(r#"{"sub":"relay","exp":1800000060}"#)));
        assert_eq!((token.left(at(NOW)), token.principal.as_str()), (Duration::from_mins(1), "relay"));
        assert_eq!(token.value.expose_secret().lines().count(), 1);
        assert_eq!(token.renew_at(at(NOW)), at(NOW + 45));
        let opaque = read("opaque-token");
        assert_eq!((opaque.left(at(NOW)), opaque.principal.as_str()), (LIFE, "walrelay"));
    }

    #[test]
    fn json_says_the_rest() {
        let token =
            read(r#"{"token":"t","expires_at":1800000010,"principal":"p","extensions":{"logicalCluster":"lkc-1"}}"#);
        assert_eq!((token.left(at(NOW)), token.principal.as_str()), (Duration::from_secs(10), "p"));
        assert_eq!(token.extensions["logicalCluster"], "lkc-1");
        let in_millis = read(r#"{"token":"t","expires_at":1800000010000}"#);
        assert_eq!(in_millis.expires_at_millis(), 1_800_000_010_000);
    }

    #[test]
    fn a_clock_that_differs_from_the_issuers_neither_ends_a_token_nor_lengthens_it() {
        for issued in [NOW - 3600, NOW, NOW + 3600] {
            let token = read(&jwt(&format!(r#"{{"iat":{issued},"exp":{}}}"#, issued + 300)));
            assert_eq!(token.left(at(NOW)), Duration::from_mins(5), "issued at {issued}");
        }
        let older = read(&jwt(&format!(r#"{{"iat":{},"exp":{}}}"#, NOW - 200, NOW + 100)));
        assert_eq!(older.left(at(NOW)), Duration::from_secs(100));
    }

    #[test]
    fn what_is_no_token_is_refused() {
        for output in ["", "\n", "two words", "{}", "{\"token\":\"\"}", "{\"token\":1}", "{broken"] {
            assert!(Token::read(output, at(NOW)).is_none(), "{output:?}");
        }
        let shown = format!("{:?}", read("hunter2"));
        assert!(!shown.contains("hunter2"), "{shown}");
        assert!(read(r#"{"token":"t","expires_at":-5}"#).has_expired(at(NOW)));
        assert!(!read(r#"{"token":"t","expires_at":1e300}"#).has_expired(at(NOW)));
    }
}
