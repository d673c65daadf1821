//! SCRAM-SHA-256, the client's side: proves that it knows the password, and checks that the server does.
//!
//! ```text
//!  Scram::begin ──► first message      challenge ──► Scram::answer ──► last message, ServerProof      server's last ──► ServerProof::check
//! ```
//!
//! In: a password, the server's messages. Out: the client's messages. It sends nothing. The number of iterations is the server's to choose:
//! `scram_iterations`, of which OWASP advises 600,000. A server that is not the right one could ask for any number, so the computation has
//! a limit of time.
//! Specification: RFC 5802, RFC 7677; RFC 5929 for the channel binding; PostgreSQL manual, section 54.3.1.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::rand::{SecureRandom as _, SystemRandom};
use ring::{digest, hmac};
use std::time::Instant;
use thiserror::Error;

/// The mechanism.
pub(super) const SCRAM_SHA_256: &str = "SCRAM-SHA-256";

/// The mechanism with channel binding.
pub(super) const SCRAM_SHA_256_PLUS: &str = "SCRAM-SHA-256-PLUS";

/// The random bytes of a nonce.
const NONCE_BYTES: usize = 18;

/// So many iterations are computed however long that takes, also on a machine that has much else to do. Fuzzing computes fewer, since it begins
/// many exchanges.
const ITERATIONS_IN_ANY_CASE: u32 = if cfg!(fuzzing) { ITERATIONS_AT_ONCE } else { 1_000_000 };

/// So many iterations are computed between two looks at the clock: some milliseconds.
const ITERATIONS_AT_ONCE: u32 = 4096;

/// The client's statement about the channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Binding {
    /// The client cannot bind it.
    Unsupported,
    /// The client could, and takes it that the server cannot.
    Unrequested,
    /// The hash of the server's certificate.
    EndPoint(Vec<u8>),
}

impl Binding {
    const fn header(&self) -> &'static str {
        match self {
            Self::Unsupported => "n,,",
            Self::Unrequested => "y,,",
            Self::EndPoint(_) => "p=tls-server-end-point,,",
        }
    }

    /// The header and the data, as the last message has them.
    fn encoded(&self) -> String {
        let data = if let Self::EndPoint(hash) = self { hash.as_slice() } else { &[] };
        STANDARD.encode([self.header().as_bytes(), data].concat())
    }
}

/// Why an exchange fails.
#[derive(Debug, PartialEq, Eq, Error)]
pub(super) enum ScramError {
    /// A message of the server is none of SCRAM.
    #[error("the server's message is not SCRAM's: {0}")]
    Malformed(&'static str),
    /// There is no random number.
    #[error("the operating system gives no random numbers")]
    NoRandom,
    /// The computation takes too long.
    #[error("the server asks for {asked} iterations of SCRAM, of which {computed} were computed in time")]
    TooSlow {
        /// The server's number.
        asked: u32,
        /// As many were computed.
        computed: u32,
    },
    /// The server has refused the client's proof.
    #[error("the server ends SCRAM: {0}")]
    Refused(String),
    /// The server does not know the password.
    #[error("the server has not proved that it knows the password")]
    WrongProof,
}

/// An exchange whose first message is sent.
pub(super) struct Scram {
    binding: Binding,
    password: Vec<u8>,
    nonce: String,
    /// The first message without its header.
    bare: String,
}

/// The proof that the server owes.
pub(super) struct ServerProof {
    server_key: hmac::Tag,
    messages: String,
}

impl Scram {
    /// Begins an exchange.
    ///
    /// # Errors
    /// There is no random number.
    pub(super) fn begin(password: &str, binding: Binding) -> Result<Self, ScramError> {
        let mut random = [0; NONCE_BYTES];
        SystemRandom::new().fill(&mut random).map_err(|_| ScramError::NoRandom)?;
        // Postgres takes the user's name from the start-up packet.
        Ok(Self::with_nonce(password, binding, "", STANDARD.encode(random)))
    }

    fn with_nonce(password: &str, binding: Binding, user: &str, nonce: String) -> Self {
        // As in Postgres, a password that SASLprep forbids is taken as it is.
        let password = stringprep::saslprep(password).unwrap_or_else(|_| password.into());
        Self { binding, password: password.as_bytes().to_vec(), bare: format!("n={user},r={nonce}"), nonce }
    }

    /// The first message.
    pub(super) fn first_message(&self) -> String {
        format!("{}{}", self.binding.header(), self.bare)
    }

    /// The last message, after the server's challenge. Computes no longer than until `until`, and [`ITERATIONS_IN_ANY_CASE`].
    ///
    /// # Errors
    /// The challenge is malformed, or asks for too much.
    pub(super) fn answer(&self, challenge: &[u8], until: Instant) -> Result<(String, ServerProof), ScramError> {
        let challenge = std::str::from_utf8(challenge).map_err(|_| ScramError::Malformed("no UTF-8"))?;
        let mut parts = challenge.split(',');
        let mut part = |name: &str| parts.next().and_then(|part| part.strip_prefix(name));
        let nonce = part("r=").ok_or(ScramError::Malformed("no nonce"))?;
        let salt = part("s=").and_then(|salt| STANDARD.decode(salt).ok()).ok_or(ScramError::Malformed("no salt"))?;
        let iterations = part("i=").and_then(|number| number.parse::<u32>().ok()).filter(|number| *number > 0);
        let iterations = iterations.ok_or(ScramError::Malformed("no number of iterations"))?;
        if !nonce.starts_with(&self.nonce) || nonce.len() == self.nonce.len() {
            return Err(ScramError::Malformed("another nonce"));
        }
        let salted = hmac::Key::new(hmac::HMAC_SHA256, &salted(&self.password, &salt, iterations, until)?);
        let unproved = format!("c={},r={nonce}", self.binding.encoded());
        let messages = format!("{},{challenge},{unproved}", self.bare);
        let client_key = hmac::sign(&salted, b"Client Key");
        let stored_key = digest::digest(&digest::SHA256, client_key.as_ref());
        let signature = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, stored_key.as_ref()), messages.as_bytes());
        let proof: Vec<u8> = client_key.as_ref().iter().zip(signature.as_ref()).map(|(key, mask)| key ^ mask).collect();
        let server_key = hmac::sign(&salted, b"Server Key");
        Ok((format!("{unproved},p={}", STANDARD.encode(proof)), ServerProof { server_key, messages }))
    }
}

impl ServerProof {
    /// Checks the server's last message.
    ///
    /// # Errors
    /// It has no proof, or a wrong one.
    pub(super) fn check(&self, message: &[u8]) -> Result<(), ScramError> {
        let text = std::str::from_utf8(message).map_err(|_| ScramError::Malformed("no UTF-8"))?;
        let first = text.split(',').next().unwrap_or_default();
        if let Some(error) = first.strip_prefix("e=") {
            return Err(ScramError::Refused(error.to_owned()));
        }
        let proof = first.strip_prefix("v=").and_then(|proof| STANDARD.decode(proof).ok());
        let proof = proof.ok_or(ScramError::Malformed("no proof"))?;
        let key = hmac::Key::new(hmac::HMAC_SHA256, self.server_key.as_ref());
        hmac::verify(&key, self.messages.as_bytes(), &proof).map_err(|_| ScramError::WrongProof)
    }
}

/// The salted password: PBKDF2 with HMAC-SHA-256, one block (RFC 5802's `Hi`).
fn salted(password: &[u8], salt: &[u8], iterations: u32, until: Instant) -> Result<[u8; 32], ScramError> {
    let key = hmac::Key::new(hmac::HMAC_SHA256, password);
    let mut last = hmac::sign(&key, &[salt, &[0, 0, 0, 1]].concat());
    let mut sum = [0; 32];
    sum.copy_from_slice(last.as_ref());
    for computed in 1..iterations {
        let may_end = computed >= ITERATIONS_IN_ANY_CASE && computed % ITERATIONS_AT_ONCE == 0;
        if may_end && Instant::now() >= until {
            return Err(ScramError::TooSlow { asked: iterations, computed });
        }
        last = hmac::sign(&key, last.as_ref());
        for (sum, byte) in sum.iter_mut().zip(last.as_ref()) {
            *sum ^= byte;
        }
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const CHALLENGE: &str = "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";

    fn pencil() -> Scram {
        Scram::with_nonce("pencil", Binding::Unsupported, "user", "rOprNGfwEbeRWgbNEkqO".to_owned())
    }

    fn later() -> Instant {
        Instant::now() + Duration::from_hours(1)
    }

    #[test]
    fn the_example_of_rfc_7677_comes_out() {
        let scram = pencil();
        assert_eq!(scram.first_message(), "n,,n=user,r=rOprNGfwEbeRWgbNEkqO");
        let (last, proof) = scram.answer(CHALLENGE.as_bytes(), later()).unwrap();
        let nonce = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0";
        assert_eq!(last, format!("c=biws,r={nonce},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="));
        assert_eq!(proof.check(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="), Ok(()));
        assert_eq!(proof.check(b"v=7rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="), Err(ScramError::WrongProof));
        assert_eq!(proof.check(b"e=invalid-proof"), Err(ScramError::Refused("invalid-proof".to_owned())));
        for malformed in ["", "v=%", "x=1", "v"] {
            assert!(matches!(proof.check(malformed.as_bytes()), Err(ScramError::Malformed(_))), "{malformed}");
        }
    }

    #[test]
    fn a_challenge_that_is_none_is_refused() {
        for malformed in [
            "",
            "m=x,r=rOprNGfwEbeRWgbNEkqOmore,s=QQ==,i=1",
            "r=rOprNGfwEbeRWgbNEkqOmore,s=QQ==",
            "r=rOprNGfwEbeRWgbNEkqOmore,s=%,i=1",
            "r=rOprNGfwEbeRWgbNEkqOmore,s=QQ==,i=0",
            "r=rOprNGfwEbeRWgbNEkqOmore,s=QQ==,i=99999999999",
            "r=rOprNGfwEbeRWgbNEkqO,s=QQ==,i=1",
            "r=another,s=QQ==,i=1",
        ] {
            let answer = pencil().answer(malformed.as_bytes(), later()).map(|(last, _)| last);
            assert!(matches!(answer, Err(ScramError::Malformed(_))), "{malformed}: {answer:?}");
        }
    }

    #[test]
    fn as_many_iterations_as_owasp_advises_are_computed_and_no_number_for_ever() {
        let challenge = |iterations: u32| format!("r=rOprNGfwEbeRWgbNEkqOmore,s=QQ==,i={iterations}");
        assert!(pencil().answer(challenge(600_000).as_bytes(), later()).is_ok());
        let until = Instant::now();
        let endless = pencil().answer(challenge(u32::MAX).as_bytes(), until).map(|(last, _)| last);
        // The first multiple that is large enough.
        let computed = ITERATIONS_IN_ANY_CASE.next_multiple_of(ITERATIONS_AT_ONCE);
        assert_eq!(endless, Err(ScramError::TooSlow { asked: u32::MAX, computed }));
    }

    #[test]
    fn the_channel_is_bound_by_what_the_header_says() {
        assert_eq!(Binding::Unrequested.encoded(), STANDARD.encode("y,,"));
        let bound = Binding::EndPoint(vec![1, 2]);
        assert_eq!(bound.encoded(), STANDARD.encode(b"p=tls-server-end-point,,\x01\x02"));
    }

    #[test]
    fn no_two_exchanges_have_one_nonce() {
        let nonces = [(); 2].map(|()| Scram::begin("p", Binding::Unsupported).unwrap().nonce);
        assert_ne!(nonces[0], nonces[1]);
        assert!(!nonces[0].contains(','));
    }
}
