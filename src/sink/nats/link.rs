//! One connection to a server: reached, encrypted where asked for or required, logged in, and listening for answers.
//!
//! In: where, as whom. Out: a connection that messages can be written to and answers read from. It does not reconnect and sends
//! nothing a second time.

use super::answer::{CONNECTION, NOT_PERMITTED};
use super::proto::{Frame, Message, SUBSCRIPTION, frame};
use super::settings::{LogIn, Settings};
use super::signing::{Credentials, Key};
use crate::secret::Secret;
use crate::sink::destination::Destination as _;
use crate::sink::lanes::LOG_IN_LABEL;
use crate::sink::lanes::address::Server;
use crate::sink::lanes::socket::{Peer, Socket};
use crate::sink::{Failure, FailureClass};
use ring::rand::{SecureRandom as _, SystemRandom};
use secrecy::ExposeSecret as _;
use serde::Deserialize;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::time::Duration;

/// How long reaching a server and logging in may take.
const REACHED_WITHIN: Duration = Duration::from_secs(10);

/// How long a peer may leave what was sent unread before its connection counts as broken.
const DEAD_AFTER: Duration = Duration::from_secs(30);

/// How long an answer to a question may take.
const ANSWERED_WITHIN: Duration = Duration::from_secs(5);

/// A connection.
pub(super) struct Link {
    pub(super) socket: Socket,
    /// What the server said of itself last.
    pub(super) info: Info,
    /// What the subjects of answers begin with.
    pub(super) inbox: String,
    /// `host:port`, for people.
    pub(super) address: String,
    questions: u64,
}

/// What a server says of itself.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
#[allow(clippy::struct_excessive_bools, reason = "the server's own words")]
pub(super) struct Info {
    pub(super) version: String,
    /// What is to be signed.
    pub(super) nonce: Option<String>,
    pub(super) tls_required: bool,
    pub(super) tls_available: bool,
    pub(super) headers: bool,
    /// Bytes of headers and data together.
    pub(super) max_payload: usize,
    /// It is about to leave.
    pub(super) ldm: bool,
    /// The cluster it is in.
    pub(super) cluster: Option<String>,
}

/// What became of a question.
pub(super) enum Answered {
    /// The answer's headers and data.
    With(Vec<u8>, Vec<u8>),
    /// The user may not ask.
    Forbidden,
}

impl Link {
    /// Reaches one of the servers, the `first`-th before the others, and logs in.
    ///
    /// # Errors
    /// None will have us: why the last did not, or one that refuses the login.
    pub(super) async fn open(settings: &Settings, first: usize) -> Result<Self, Failure> {
        let servers = settings.servers.iter().cycle().skip(first % settings.servers.len().max(1));
        let mut refused = broken(&settings.address(), "there is no server");
        for server in servers.take(settings.servers.len()) {
            let opening = Self::open_one(settings, server);
            let failure = match tokio::time::timeout(REACHED_WITHIN, opening).await {
                Ok(Ok(link)) => return Ok(link),
                Ok(Err(failure)) => failure,
                Err(_late) => broken(&server.address(), &format!("no answer within {} s", REACHED_WITHIN.as_secs())),
            };
            if refused.class != FailureClass::LogIn {
                refused = failure;
            }
        }
        Err(refused)
    }

    async fn open_one(settings: &Settings, server: &Server) -> Result<Self, Failure> {
        let address = server.address();
        let (socket, info) = reach(settings, server, &address).await?;
        let inbox = format!("{}.{}.", settings.inbox, random(&address)?);
        let mut link = Self { socket, info, inbox, address, questions: 0 };
        link.log_in(settings).await?;
        Ok(link)
    }

    async fn log_in(&mut self, settings: &Settings) -> Result<(), Failure> {
        if !self.info.headers {
            return Err(broken(&self.address, "it is older than NATS 2.2 or has headers turned off"));
        }
        let hello = self.hello(settings)?;
        let inbox = self.inbox.clone();
        let out = &mut self.socket.output;
        out.extend_from_slice(b"CONNECT ");
        out.extend_from_slice(hello.to_string().as_bytes());
        out.extend_from_slice(format!("\r\nSUB {inbox}* {SUBSCRIPTION}\r\nPING\r\n").as_bytes());
        loop {
            match self.next().await? {
                Said::Pong => return Ok(()),
                Said::Error(text) => return Err(refusal(&self.address, &text)),
                Said::Nothing | Said::Message(..) => {}
            }
        }
    }

    fn hello(&self, settings: &Settings) -> Result<Value, Failure> {
        let mut hello = json!({
            "verbose": false, "pedantic": false, "echo": false, "headers": true, "no_responders": true,
            "tls_required": settings.tls_wanted, "protocol": 1,
            "name": settings.client, "lang": "walrelay", "version": env!("CARGO_PKG_VERSION"),
        });
        let identity = self.identity(&settings.login)?.into_iter();
        let identity = identity.map(|(name, value)| (name.to_owned(), Value::String(value)));
        if let Some(hello) = hello.as_object_mut() {
            hello.extend(identity);
        }
        Ok(hello)
    }

    /// What CONNECT says of who we are.
    fn identity(&self, login: &LogIn) -> Result<Vec<(&'static str, String)>, Failure> {
        let wrong = |what: &str| log_in_fails(&self.address, what);
        let read = |secret: &Secret| secret.read().map_err(|error| wrong(&error.to_string()));
        let nonce = self.info.nonce.as_deref().unwrap_or_default();
        Ok(match login {
            LogIn::None => Vec::new(),
            LogIn::Password(user, password) => {
                vec![("user", user.clone()), ("pass", read(password)?.expose_secret().to_owned())]
            }
            LogIn::Token(token) => vec![("auth_token", read(token)?.expose_secret().to_owned())],
            LogIn::Nkey(seed) => {
                let seed = read(seed)?;
                let key =
                    Key::of_seed(seed.expose_secret()).ok_or_else(|| wrong("the file of nkey holds no user's seed"))?;
                vec![("nkey", key.public()), ("sig", key.sign(nonce))]
            }
            LogIn::Credentials(file) => {
                let text = read(file)?;
                let found = Credentials::of(text.expose_secret());
                let found = found.and_then(|found| Some((found.token.to_owned(), Key::of_seed(found.seed)?)));
                let (token, key) =
                    found.ok_or_else(|| wrong("the credentials file holds no JWT with a user's seed"))?;
                vec![("jwt", token), ("sig", key.sign(nonce))]
            }
        })
    }

    /// Waits for one frame, and answers a PING.
    async fn next(&mut self) -> Result<Said, Failure> {
        loop {
            let found = frame(self.socket.input()).map_err(|_| not_nats(&self.address))?;
            let Some((frame, length)) = found else {
                self.socket.turn().await.map_err(|error| broken(&self.address, &error.to_string()))?;
                continue;
            };
            let said = match frame {
                Frame::Pong => Said::Pong,
                Frame::Error(text) => Said::Error(String::from_utf8_lossy(text).into_owned()),
                Frame::Message(Message { headers, data, .. }) => Said::Message(headers.to_owned(), data.to_owned()),
                Frame::Info(text) => {
                    self.info = read_info(&self.address, text)?;
                    Said::Nothing
                }
                Frame::Ping => {
                    self.socket.output.extend_from_slice(b"PONG\r\n");
                    Said::Nothing
                }
                Frame::Ok => Said::Nothing,
            };
            self.socket.consume(length);
            return Ok(said);
        }
    }

    /// Asks something, while nothing else is under way.
    ///
    /// # Errors
    /// The connection is lost, or no answer comes.
    pub(super) async fn ask(&mut self, subject: &str, data: &str) -> Result<Answered, Failure> {
        self.questions += 1;
        let (inbox, number, length) = (&self.inbox, self.questions, data.len());
        let question = format!("PUB {subject} {inbox}q{number} {length}\r\n{data}\r\n");
        self.socket.output.extend_from_slice(question.as_bytes());
        let waiting = async {
            loop {
                match self.next().await? {
                    Said::Message(headers, data) => return Ok(Answered::With(headers, data)),
                    Said::Error(text) if is_forbidden(&text) => return Ok(Answered::Forbidden),
                    Said::Error(text) => return Err(refusal(&self.address, &text)),
                    Said::Pong | Said::Nothing => {}
                }
            }
        };
        match tokio::time::timeout(ANSWERED_WITHIN, waiting).await {
            Ok(answered) => answered,
            Err(_late) => Err(broken(&self.address, &format!("no answer within {} s", ANSWERED_WITHIN.as_secs()))),
        }
    }
}

/// A frame that has been looked at.
enum Said {
    Pong,
    Error(String),
    Message(Vec<u8>, Vec<u8>),
    Nothing,
}

/// The server speaks first, unless encryption comes before that; it says whether it requires encryption.
async fn reach(settings: &Settings, server: &Server, address: &str) -> Result<(Socket, Info), Failure> {
    let failed = |reason: std::io::Error| broken(address, &reason.to_string());
    let tls = settings.tls_first.then_some(&settings.tls);
    let peer = Peer { host: &server.host, port: server.port, tls, unread_at_most: Some(DEAD_AFTER) };
    let mut socket = Socket::connect(peer).await.map_err(failed)?;
    let info = loop {
        if let Some((info, length)) = first_info(address, socket.input())? {
            socket.consume(length);
            break info;
        }
        socket.turn().await.map_err(failed)?;
    };
    if settings.tls_first || !(settings.tls_wanted || info.tls_required) {
        return Ok((socket, info));
    }
    if !info.tls_required && !info.tls_available {
        return Err(broken(address, "it offers no encryption, and tls:// asks for it"));
    }
    Ok((socket.encrypt(&server.host, &settings.tls).await.map_err(failed)?, info))
}

/// The server says nothing behind it before it was answered.
fn first_info(address: &str, read: &[u8]) -> Result<Option<(Info, usize)>, Failure> {
    match frame(read) {
        Ok(None) => Ok(None),
        Ok(Some((Frame::Info(text), length))) => Ok(Some((read_info(address, text)?, length))),
        Ok(Some((Frame::Error(text), _))) => Err(refusal(address, &String::from_utf8_lossy(text))),
        Ok(Some((Frame::Message(_) | Frame::Ping | Frame::Pong | Frame::Ok, _))) | Err(_) => Err(not_nats(address)),
    }
}

/// What the server says of itself.
///
/// # Errors
/// It is no JSON object.
pub(super) fn read_info(address: &str, text: &[u8]) -> Result<Info, Failure> {
    serde_json::from_slice(text).map_err(|_| not_nats(address))
}

fn random(address: &str) -> Result<String, Failure> {
    let mut bytes = [0; 8];
    SystemRandom::new().fill(&mut bytes).map_err(|_| broken(address, "there are no random numbers"))?;
    let mut text = String::new();
    for byte in bytes {
        // Writing to a text does not fail.
        let _always = write!(text, "{byte:02x}");
    }
    Ok(text)
}

/// The connection cannot be had, or is lost.
pub(super) fn broken(address: &str, reason: &str) -> Failure {
    let text = format!("NATS at {address} cannot be reached: {reason}");
    Failure { class: FailureClass::Environment, reason: CONNECTION, text }
}

/// It speaks something else.
pub(super) fn not_nats(address: &str) -> Failure {
    broken(address, "it does not speak NATS' protocol")
}

fn log_in_fails(address: &str, reason: &str) -> Failure {
    let text = format!("NATS at {address}: {reason}");
    Failure { class: FailureClass::LogIn, reason: LOG_IN_LABEL, text }
}

/// What an error of the server's says of the connection. NATS has no codes for them: the texts are the protocol's.
pub(super) fn refusal(address: &str, text: &str) -> Failure {
    let (class, reason) = if is_log_in(text) {
        (FailureClass::LogIn, LOG_IN_LABEL)
    } else if is_forbidden(text) {
        (FailureClass::Environment, NOT_PERMITTED)
    } else {
        (FailureClass::Environment, CONNECTION)
    };
    Failure { class, reason, text: format!("NATS at {address}: {text}") }
}

fn is_log_in(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    // Then what was said was not looked at.
    if text.ends_with(" timeout") {
        return false;
    }
    ["authorization ", "authentication ", "user authentication ", "account authentication "]
        .iter()
        .any(|start| text.starts_with(start))
}

fn is_forbidden(text: &str) -> bool {
    text.to_ascii_lowercase().starts_with("permissions violation")
}

/// The subject that a message may not be published to, where that is what the error says.
pub(super) fn forbidden_subject(text: &str) -> Option<String> {
    let (said, rest) = text.split_once('"')?;
    if !is_forbidden(text) || !said.to_ascii_lowercase().contains("publish") {
        return None;
    }
    unquoted(rest.rsplit_once('"')?.0)
}

/// A text as it was before Go quoted it: it writes `\"`, `\\`, and `\u200d` or `\U000e0001` for characters that do not show. A subject has no
/// control characters, which have escapes of their own.
fn unquoted(text: &str) -> Option<String> {
    let (mut unquoted, mut rest) = (String::new(), text.chars());
    while let Some(character) = rest.next() {
        let escaped = if character == '\\' { Some(rest.next()?) } else { None };
        let digits = match escaped {
            Some('u') => 4,
            Some('U') => 8,
            itself => {
                unquoted.push(itself.unwrap_or(character));
                continue;
            }
        };
        let number = rest.as_str().get(..digits).and_then(|digits| u32::from_str_radix(digits, 16).ok())?;
        unquoted.push(char::from_u32(number)?);
        rest = rest.as_str().get(digits..)?.chars();
    }
    Some(unquoted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_protocol_say_what_they_concern() {
        for text in ["Authorization Violation", "User Authentication Expired", "Account Authentication Expired"] {
            assert_eq!(refusal("h:1", text).class, FailureClass::LogIn, "{text}");
        }
        // It was not heard in time: a server or a network that is slow.
        assert_eq!(refusal("h:1", "Authentication Timeout").class, FailureClass::Environment);
        assert_eq!(refusal("h:1", "Stale Connection").reason, CONNECTION);
        let publish = "Permissions Violation for Publish to \"a.\\\"b\"";
        assert_eq!(refusal("h:1", publish).reason, NOT_PERMITTED);
        assert_eq!(forbidden_subject(publish).as_deref(), Some("a.\"b"));
        // As NATS 2.15 writes characters that do not show.
        let unseen = r#"Permissions Violation for Publish to "a.\u200db\\\U000e0001\\u00ad""#;
        assert_eq!(forbidden_subject(unseen).as_deref(), Some("a.\u{200d}b\\\u{e0001}\\u00ad"));
        assert_eq!(forbidden_subject(r#"Permissions Violation for Publish to "a.\u20""#), None);
        assert_eq!(forbidden_subject("Permissions Violation for Subscription to \"a\""), None);
        assert_eq!(forbidden_subject("Stale Connection"), None);
    }
}
