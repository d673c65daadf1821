//! An issuer of tokens on loopback, whose signatures Kafka verifies: OAuth 2.0's client credentials, and the keys as a JWKS.
//!
//! In: how long tokens live, their audience, whether it answers. Out: `/token` issues one to whoever asks, `/jwks` has the present key.
//! Tokens are signed with ES256; a rotated key is gone from `/jwks` at once.
//!
//! Specification: RFC 6749, section 4.4; RFC 7517; RFC 7518, section 3.4; RFC 7519.

use std::io::BufReader;
use std::net::TcpStream;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, anyhow};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use parking_lot::Mutex;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
use serde_json::json;

use crate::http::{self, Request};
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
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    key: Key,
    audience: String,
    life_seconds: u64,
    unavailable: bool,
    issued: u64,
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
        let (key, audience) = (Key::generate(1)?, AUDIENCE.to_owned());
        let state = Arc::new(Mutex::new(State { key, audience, life_seconds, unavailable: false, issued: 0 }));
        let theirs = Arc::clone(&state);
        let listener = Listener::start(move |stream| {
            let state = Arc::clone(&theirs);
            // An error of the connection is the client's to notice.
            thread::spawn(move || drop(answer(&stream, &state)));
        })?;
        Ok(Self { listener, state })
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
        self.state.lock().issued
    }

    /// Whether it answers with an error from now on.
    pub fn set_unavailable(&self, unavailable: bool) {
        self.state.lock().unavailable = unavailable;
    }

    /// Sets the audience of its tokens from now on.
    pub fn set_audience(&self, audience: &str) {
        audience.clone_into(&mut self.state.lock().audience);
    }

    /// Signs with another key from now on, and forgets the one before.
    ///
    /// # Errors
    /// No key.
    pub fn rotate_key(&self) -> Result<()> {
        let mut state = self.state.lock();
        let number: u64 = state.key.name.trim_start_matches("key-").parse()?;
        state.key = Key::generate(number + 1)?;
        Ok(())
    }

    /// A token, as `/token` would issue it.
    ///
    /// # Errors
    /// It cannot be signed.
    pub fn token(&self) -> Result<String> {
        self.state.lock().token()
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

impl State {
    fn token(&mut self) -> Result<String> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
        let (audience, end) = (&self.audience, now + self.life_seconds);
        let claims =
            json!({"iss": ISSUER, "aud": audience, "sub": "relay", "scope": "produce", "iat": now, "exp": end});
        let token = self.key.sign(&claims)?;
        self.issued += 1;
        Ok(token)
    }

    /// The answer's status and body.
    fn page(&mut self, path: &str) -> Result<(u16, String)> {
        Ok(match path {
            _ if self.unavailable => (503, json!({"error": "temporarily_unavailable"}).to_string()),
            "/jwks" => (200, self.key.set()?),
            "/token" => {
                let (token, life) = (self.token()?, self.life_seconds);
                (200, json!({"access_token": token, "token_type": "Bearer", "expires_in": life}).to_string())
            }
            _ => (404, "{}".to_owned()),
        })
    }
}

fn answer(stream: &TcpStream, state: &Mutex<State>) -> Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let Some(request) = Request::read(&mut BufReader::new(stream))? else { return Ok(()) };
    let (status, body) = state.lock().page(&request.path)?;
    http::answer(stream, status, "Content-Type: application/json\r\nConnection: close\r\n", body.as_bytes())
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
