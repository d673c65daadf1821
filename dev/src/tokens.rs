//! An issuer of tokens on loopback, whose signatures Kafka verifies: OAuth 2.0's client credentials, and the keys as a JWKS.
//!
//! In: how long tokens live, their audience, whether it answers. Out: `/token` issues one to whoever asks, `/jwks` has the present key.
//! Tokens are signed with ES256; a rotated key is gone from `/jwks` at once.
//!
//! Specification: RFC 6749, section 4.4; RFC 7517; RFC 7518, section 3.4; RFC 7519.

use std::io::{BufReader, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, anyhow};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
use serde_json::json;

use crate::http::Request;
use crate::listener::Listener;

/// How long a client may take to send its request.
const PATIENCE: Duration = Duration::from_secs(10);

/// The audience that [`Issuer`] writes unless it is told otherwise.
pub const AUDIENCE: &str = "kafka";

/// The issuer that it writes.
pub const ISSUER: &str = "https://issuer.example";

/// Issues tokens; it ends when dropped.
#[derive(Debug)]
pub struct Issuer {
    listener: Listener,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    key: Mutex<Key>,
    audience: Mutex<String>,
    life_seconds: AtomicU64,
    unavailable: AtomicBool,
    issued: AtomicU64,
}

#[derive(Debug)]
struct Key {
    name: String,
    pair: EcdsaKeyPair,
}

impl Issuer {
    /// Begins to listen; its tokens live for `life_seconds`.
    ///
    /// # Errors
    /// No port, no key.
    pub fn start(life_seconds: u64) -> Result<Self> {
        let shared = Arc::new(Shared {
            key: Mutex::new(Key::generate(1)?),
            audience: Mutex::new(AUDIENCE.to_owned()),
            life_seconds: AtomicU64::new(life_seconds),
            unavailable: AtomicBool::new(false),
            issued: AtomicU64::new(0),
        });
        let theirs = Arc::clone(&shared);
        let listener = Listener::start(move |stream| {
            let shared = Arc::clone(&theirs);
            // An error of the connection is the client's to notice.
            thread::spawn(move || drop(shared.answer(&stream)));
        })?;
        Ok(Self { listener, shared })
    }

    /// Where its keys are.
    pub fn jwks(&self) -> String {
        format!("http://{}/jwks", self.listener.address())
    }

    /// Where it issues tokens.
    pub fn endpoint(&self) -> String {
        format!("http://{}/token", self.listener.address())
    }

    /// How many tokens it has issued.
    pub fn issued(&self) -> u64 {
        self.shared.issued.load(Ordering::SeqCst)
    }

    /// Whether it answers with an error from now on.
    pub fn set_unavailable(&self, unavailable: bool) {
        self.shared.unavailable.store(unavailable, Ordering::SeqCst);
    }

    /// Sets the audience of its tokens from now on.
    pub fn set_audience(&self, audience: &str) {
        audience.clone_into(&mut lock(&self.shared.audience));
    }

    /// Signs with another key from now on, and forgets the one before.
    ///
    /// # Errors
    /// No key.
    pub fn rotate_key(&self) -> Result<()> {
        let mut key = lock(&self.shared.key);
        let number: u64 = key.name.trim_start_matches("key-").parse()?;
        *key = Key::generate(number + 1)?;
        Ok(())
    }

    /// A token, as `/token` would issue it.
    ///
    /// # Errors
    /// It cannot be signed.
    pub fn token(&self) -> Result<String> {
        self.shared.token()
    }
}

impl Key {
    fn generate(number: u64) -> Result<Self> {
        let (random, kind) = (SystemRandom::new(), &ECDSA_P256_SHA256_FIXED_SIGNING);
        let failed = |_| anyhow!("no key can be generated");
        let document = EcdsaKeyPair::generate_pkcs8(kind, &random).map_err(failed)?;
        let pair = EcdsaKeyPair::from_pkcs8(kind, document.as_ref(), &random)?;
        Ok(Self { name: format!("key-{number}"), pair })
    }

    fn sign(&self, claims: &serde_json::Value) -> Result<String> {
        let head = json!({"alg": "ES256", "typ": "JWT", "kid": self.name});
        let encoded = |value: &serde_json::Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
        let signed = format!("{}.{}", encoded(&head), encoded(claims));
        let signature = self.pair.sign(&SystemRandom::new(), signed.as_bytes());
        let signature = signature.map_err(|_| anyhow!("the token cannot be signed"))?;
        Ok(format!("{signed}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature)))
    }

    /// A JSON Web Key Set of this key alone.
    fn set(&self) -> Result<String> {
        // Uncompressed: 4, x, y.
        let point = self.pair.public_key().as_ref();
        let (x, y) = (point.get(1..33).context("no x")?, point.get(33..65).context("no y")?);
        let [x, y] = [x, y].map(|number| BASE64_URL_SAFE_NO_PAD.encode(number));
        let key = json!({"kty": "EC", "crv": "P-256", "use": "sig", "alg": "ES256", "kid": self.name, "x": x, "y": y});
        Ok(json!({"keys": [key]}).to_string())
    }
}

impl Shared {
    fn token(&self) -> Result<String> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
        let life = self.life_seconds.load(Ordering::SeqCst);
        let audience = lock(&self.audience).clone();
        let claims = json!({
            "iss": ISSUER, "aud": audience, "sub": "relay", "scope": "produce", "iat": now, "exp": now + life
        });
        let token = lock(&self.key).sign(&claims)?;
        self.issued.fetch_add(1, Ordering::SeqCst);
        Ok(token)
    }

    fn answer(&self, stream: &TcpStream) -> Result<()> {
        stream.set_read_timeout(Some(PATIENCE))?;
        let Some(request) = Request::read(&mut BufReader::new(stream))? else { return Ok(()) };
        let (status, body) = if self.unavailable.load(Ordering::SeqCst) {
            ("503 Service Unavailable", json!({"error": "temporarily_unavailable"}).to_string())
        } else {
            match request.path.as_str() {
                "/jwks" => ("200 OK", lock(&self.key).set()?),
                "/token" => {
                    let life = self.life_seconds.load(Ordering::SeqCst);
                    let token = self.token()?;
                    ("200 OK", json!({"access_token": token, "token_type": "Bearer", "expires_in": life}).to_string())
                }
                _ => ("404 Not Found", "{}".to_owned()),
            }
        };
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            body.len()
        );
        let mut stream = stream;
        stream.write_all(head.as_bytes())?;
        Ok(stream.write_all(body.as_bytes())?)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ring::signature::{ECDSA_P256_SHA256_FIXED, UnparsedPublicKey};

    #[test]
    fn a_token_is_signed_by_the_key_of_the_set_until_that_is_rotated() {
        let issuer = Issuer::start(60).unwrap();
        let verify = |token: &str| {
            let set = crate::http::get(issuer.listener.port(), "/jwks").unwrap().body;
            let set: serde_json::Value = serde_json::from_str(&set).unwrap();
            let number = |name: &str| BASE64_URL_SAFE_NO_PAD.decode(set["keys"][0][name].as_str().unwrap()).unwrap();
            let point = [vec![4], number("x"), number("y")].concat();
            let (signed, signature) = token.rsplit_once('.').unwrap();
            let signature = BASE64_URL_SAFE_NO_PAD.decode(signature).unwrap();
            UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point).verify(signed.as_bytes(), &signature).is_ok()
        };
        let token = issuer.token().unwrap();
        assert!(verify(&token));
        issuer.rotate_key().unwrap();
        assert!(!verify(&token) && verify(&issuer.token().unwrap()));
        issuer.set_unavailable(true);
        assert_eq!(crate::http::get(issuer.listener.port(), "/token").unwrap().status, 503);
        assert_eq!(issuer.issued(), 2);
    }
}
