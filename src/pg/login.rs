//! Logs in: answers the server's authentication requests.
//!
//! In: a connection that has sent its start-up packet. Out: a connection that is logged in, or the reason why not. This file does not
//! support Kerberos, GSSAPI and SSPI, or OAuth's flows: a token comes from the same settings as a password.
//!
//! Invariants: after SCRAM has begun, only the server's proof that it knows the password ends it. If the server accepts the login
//! before that, asks for the password in another way, or starts over, walrelay refuses it, since an attacker may be between walrelay
//! and the server (libpq's `FE_SCRAM_FINISHED`). walrelay sends a token only over TLS or a Unix socket, and only if the text can be a
//! token. It sends a password in clear text only over TLS, a Unix socket or loopback, unless `sslmode` is `disable`.
//! Specification: PostgreSQL manual, section 54.3 "SASL Authentication"; RFC 5802; OAUTHBEARER: RFC 7628, RFC 6750 section 2.1.

use super::connection::{Connection, broke};
use super::error::Error;
use super::scram::{Binding, SCRAM_SHA_256, SCRAM_SHA_256_PLUS, Scram, ScramError, ServerProof};
use super::source::{ChannelBinding, Host, Source, SslMode};
use crate::wire::Reader;
use bytes::BytesMut;
use postgres_protocol::authentication::md5_hash;
use postgres_protocol::message::frontend;
use secrecy::ExposeSecret;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Whether the process has warned of MD5. Each connection would repeat the warning.
static WARNED_OF_MD5: AtomicBool = AtomicBool::new(false);

/// The time for the computation that SCRAM asks for. Fuzzing asks for many of them.
const SCRAM_WITHIN: Duration = if cfg!(fuzzing) { Duration::from_millis(1) } else { Duration::from_secs(10) };

/// The SASL mechanism for bearer tokens, since Postgres 18.
const OAUTHBEARER: &str = "OAUTHBEARER";

/// The client's answer to the server's reason for refusing a token (RFC 7628, section 3.2.3). The server then ends the login with an
/// error.
const TOKEN_GIVEN_UP: &[u8] = b"\x01";

/// The steps of the authentication.
enum Exchange {
    /// The server has asked for nothing yet.
    Unasked,
    /// The password was sent, in clear text or hashed.
    PasswordSent,
    /// The token was sent.
    TokenSent,
    /// The server has refused the token.
    TokenRefused,
    /// SCRAM has begun.
    Scram(Box<Scram>),
    /// The client has sent its proof, and the server has not sent its own.
    Answered(Box<ServerProof>),
    /// The server has sent a proof that it knows the password.
    ServerProved,
}

impl Connection {
    /// Answers the server's authentication requests until it accepts the login. Returns `deadline`, later by the time of SCRAM's
    /// computation, in which the server did not keep anybody waiting.
    ///
    /// # Errors
    /// The server refuses the login, walrelay refuses the server, or the connection broke.
    pub(super) fn authenticate(
        &mut self,
        source: &Source,
        host: &Host,
        mut deadline: Instant,
    ) -> Result<Instant, Error> {
        let mut exchange = Exchange::Unasked;
        loop {
            let message = self.message(deadline, "authenticating")?;
            match message.tag {
                b'R' => {}
                b'E' => return Err(self.refusal(&exchange, &message.body)?),
                tag => return Err(Error::Unexpected { tag, doing: "authenticating" }),
            }
            let mut reader = Reader::new("AuthenticationRequest", &message.body);
            exchange = match (reader.u32()?, exchange) {
                (0, exchange) => return self.check_accepted(source, &exchange).map(|()| deadline),
                (request @ (3 | 5), Exchange::Unasked) => {
                    self.prove_by_password(source, host, request, &mut reader)?;
                    Exchange::PasswordSent
                }
                (10, Exchange::Unasked) => self.begin_sasl(source, host, &mut reader)?,
                (11, Exchange::TokenSent) => {
                    self.send(|out| frontend::sasl_response(TOKEN_GIVEN_UP, out))?;
                    Exchange::TokenRefused
                }
                (11, Exchange::Scram(scram)) => {
                    let begun = Instant::now();
                    let answered = scram.answer(reader.rest(), begun + SCRAM_WITHIN);
                    deadline += begun.elapsed();
                    let (last, proof) = answered.map_err(|error| self.scram_fails(&error))?;
                    self.send(|out| frontend::sasl_response(last.as_bytes(), out))?;
                    Exchange::Answered(Box::new(proof))
                }
                (12, Exchange::Answered(proof)) => {
                    proof.check(reader.rest()).map_err(|error| self.scram_fails(&error))?;
                    Exchange::ServerProved
                }
                (3 | 5 | 10 | 11 | 12, _) => {
                    return Err(self.unable("the server's requests do not follow one another as they should"));
                }
                (2 | 7 | 8 | 9, _) => {
                    return Err(self.unable("the server wants Kerberos, GSSAPI or SSPI, which walrelay does not have"));
                }
                (other, _) => return Err(self.unable(&format!("the server wants unknown method {other}"))),
            }
        }
    }

    /// Checks that the server may accept the login at this step.
    fn check_accepted(&self, source: &Source, exchange: &Exchange) -> Result<(), Error> {
        match exchange {
            Exchange::Scram(_) | Exchange::Answered(_) => {
                Err(self.unable("the server let us in without its own proof that it knows the password"))
            }
            Exchange::TokenRefused => Err(self.unable("the server refused the token, and let us in")),
            Exchange::Unasked | Exchange::PasswordSent | Exchange::TokenSent
                if source.channel_binding == ChannelBinding::Require =>
            {
                Err(self.unable("channel_binding=require, but the server let us in without it"))
            }
            Exchange::Unasked | Exchange::PasswordSent | Exchange::TokenSent | Exchange::ServerProved => Ok(()),
        }
    }

    /// The reason why the server ended the authentication. If the server has seen a token and then refuses the credentials, the token
    /// is wrong. Another line of `pg_hba.conf`, such as one for connections without TLS, would not help.
    fn refusal(&self, exchange: &Exchange, body: &[u8]) -> Result<Error, Error> {
        let refused = self.refused(body)?;
        Ok(match (exchange, &refused) {
            (Exchange::TokenSent | Exchange::TokenRefused, Error::LoginRefused { error, .. })
                if refused.is_of_credentials() =>
            {
                self.unable(&format!("the server refuses the token: {}", error.message))
            }
            (_, _) => refused,
        })
    }

    /// Sends the password, in clear text (3) or hashed with MD5 (5).
    fn prove_by_password(
        &mut self,
        source: &Source,
        host: &Host,
        request: u32,
        reader: &mut Reader<'_>,
    ) -> Result<(), Error> {
        if source.channel_binding == ChannelBinding::Require {
            return Err(self.unable("channel_binding=require, but the server asks for a password that cannot be bound"));
        }
        let password = self.password(source, host)?;
        let exposed = self.stream.is_exposed();
        if request == 3 {
            if is_refused_in_clear(exposed, source.sslmode) {
                return Err(Error::ClearText { host: self.host.clone() });
            }
            return self.send(|out| frontend::password_message(password.as_bytes(), out));
        }
        if exposed && !WARNED_OF_MD5.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                host = self.host,
                hint = "password_encryption = 'scram-sha-256' on the server, then set the role's password again; and sslmode=require in --source",
                "the server asks for the password hashed with MD5, over a connection without TLS: who reads it there can log in with it"
            );
        }
        let salt = reader.take(4)?.first_chunk().copied().unwrap_or_default();
        let hash = md5_hash(source.user.as_bytes(), password.as_bytes(), salt);
        self.send(|out| frontend::password_message(hash.as_bytes(), out))
    }

    fn begin_sasl(&mut self, source: &Source, host: &Host, reader: &mut Reader<'_>) -> Result<Exchange, Error> {
        let mut offered = Vec::new();
        loop {
            match reader.string()? {
                "" => break,
                mechanism => offered.push(mechanism),
            }
        }
        if offered == [OAUTHBEARER] {
            self.send_token(source, host)?;
            return Ok(Exchange::TokenSent);
        }
        let (mechanism, binding) = self.choose_mechanism(source, &offered)?;
        let scram = Scram::begin(self.password(source, host)?, binding).map_err(|error| self.scram_fails(&error))?;
        let first = scram.first_message();
        self.send(|out| frontend::sasl_initial_response(mechanism, first.as_bytes(), out))?;
        Ok(Exchange::Scram(Box::new(scram)))
    }

    fn send_token(&mut self, source: &Source, host: &Host) -> Result<(), Error> {
        if source.channel_binding == ChannelBinding::Require {
            return Err(self.unable("channel_binding=require, but the server asks for a token that cannot be bound"));
        }
        if !self.stream.is_private() {
            return Err(self.unable(
                "the server asks for an OAuth token, which is sent over TLS or a Unix socket only (sslmode=verify-full)",
            ));
        }
        let token = self.password(source, host)?;
        if !is_token(token) {
            return Err(self.unable("the server asks for an OAuth token, and the password that is set is none"));
        }
        let message = format!("n,,\x01auth=Bearer {token}\x01\x01");
        self.send(|out| frontend::sasl_initial_response(OAUTHBEARER, message.as_bytes(), out))
    }

    fn choose_mechanism(&self, source: &Source, offered: &[&str]) -> Result<(&'static str, Binding), Error> {
        let end_point =
            if source.channel_binding == ChannelBinding::Disable { None } else { self.stream.channel_binding() };
        let plus = offered.contains(&SCRAM_SHA_256_PLUS);
        match end_point {
            Some(hash) if plus => Ok((SCRAM_SHA_256_PLUS, Binding::EndPoint(hash))),
            _ if source.channel_binding == ChannelBinding::Require => {
                Err(self
                    .unable("channel_binding=require, but this connection cannot be bound (it needs TLS and SCRAM)"))
            }
            _ if !offered.contains(&SCRAM_SHA_256) => {
                Err(self.unable(&format!("the server offers only {}", offered.join(", "))))
            }
            Some(_) => Ok((SCRAM_SHA_256, Binding::Unrequested)),
            None => Ok((SCRAM_SHA_256, Binding::Unsupported)),
        }
    }

    fn scram_fails(&self, error: &ScramError) -> Error {
        match *error {
            ScramError::TooSlow { asked, computed } => {
                Error::SlowScram { host: self.host.clone(), asked, computed, seconds: SCRAM_WITHIN.as_secs() }
            }
            ScramError::Malformed(_) | ScramError::NoRandom | ScramError::Refused(_) | ScramError::WrongProof => {
                self.unable(&error.to_string())
            }
        }
    }

    /// Sends the message that `encode` appends.
    fn send(&mut self, encode: impl FnOnce(&mut BytesMut) -> io::Result<()>) -> Result<(), Error> {
        let mut message = BytesMut::new();
        encode(&mut message).and_then(|()| self.stream.write_all(&message)).map_err(broke("authenticating"))
    }

    fn password<'a>(&self, source: &'a Source, host: &Host) -> Result<&'a str, Error> {
        source.password_for(host).map(ExposeSecret::expose_secret).ok_or_else(|| {
            self.unable("the server asks for a password or a token, and none is set (PGPASSWORD, ~/.pgpass, --source-password-file, --source-password-command, WALRELAY_SOURCE)")
        })
    }

    fn unable(&self, reason: &str) -> Error {
        Error::Authentication { host: self.host.clone(), reason: reason.to_owned() }
    }
}

/// Whether walrelay does not send the password in clear text. `exposed`: others on the network could read it. With `sslmode=prefer`,
/// libpq sends it, and so to anybody who suppresses TLS.
fn is_refused_in_clear(exposed: bool, sslmode: SslMode) -> bool {
    exposed && sslmode != SslMode::Disable
}

/// Whether the text is a `b64token` (RFC 6750, section 2.1). No other text is sent as a token.
fn is_token(text: &str) -> bool {
    let body = text.trim_end_matches('=');
    !body.is_empty() && body.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~+/".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::super::connection::Purpose;
    use super::super::source::Environment;
    use super::*;

    /// A server that does not know the password. `answers` are its messages, one after the other.
    struct Pretender {
        answers: &'static [Answer],
        tls: bool,
        /// Whether it asks for a token.
        token: bool,
    }

    #[derive(Debug, Clone, Copy)]
    enum Answer {
        /// A well-formed AuthenticationSASLContinue.
        Challenge,
        /// AuthenticationOk, and the messages after it.
        LetIn,
        /// AuthenticationCleartextPassword.
        AskForPassword,
        /// Another AuthenticationSASL.
        Begin,
        /// AuthenticationSASLContinue with the reason why a token is refused.
        RefuseToken,
        /// ErrorResponse with this SQLSTATE.
        Fail(&'static str),
    }

    impl Pretender {
        /// Serves one client. Returns all bytes that the client sent after the start-up packet.
        fn serve(&self, mut stream: impl io::Read + io::Write) -> Vec<u8> {
            let mut heard = Vec::new();
            io::Read::read(&mut stream, &mut [0; 1024]).unwrap();
            let mechanism: &[u8] = match (self.token, self.tls) {
                (true, _) => b"OAUTHBEARER\0\0",
                (false, true) => b"SCRAM-SHA-256-PLUS\0\0",
                (false, false) => b"SCRAM-SHA-256\0\0",
            };
            let begin = [&10_u32.to_be_bytes(), mechanism].concat();
            Self::say(&mut stream, b'R', &begin);
            for answer in self.answers {
                let mut room = [0; 1024];
                let Ok(length @ 1..) = io::Read::read(&mut stream, &mut room) else { break };
                heard.extend_from_slice(&room[..length]);
                match answer {
                    Answer::Challenge => {
                        let said = String::from_utf8_lossy(&heard).into_owned();
                        let nonce = said.split("r=").nth(1).unwrap();
                        let challenge = format!("r={nonce}more,s=c2FsdHNhbHRzYWx0c2FsdA==,i=4096");
                        Self::say(&mut stream, b'R', &[&11_u32.to_be_bytes(), challenge.as_bytes()].concat());
                    }
                    Answer::LetIn => {
                        Self::say(&mut stream, b'R', &0_u32.to_be_bytes());
                        Self::say(&mut stream, b'Z', b"I");
                    }
                    Answer::AskForPassword => Self::say(&mut stream, b'R', &3_u32.to_be_bytes()),
                    Answer::Begin => Self::say(&mut stream, b'R', &begin),
                    Answer::Fail(code) => Self::say(&mut stream, b'E', format!("C{code}\0Mno\0\0").as_bytes()),
                    Answer::RefuseToken => {
                        let why = br#"{"status":"invalid_token"}"#;
                        Self::say(&mut stream, b'R', &[&11_u32.to_be_bytes()[..], why].concat());
                    }
                }
            }
            let mut rest = Vec::new();
            drop(io::Read::read_to_end(&mut stream, &mut rest));
            heard.extend(rest);
            heard
        }

        fn say(stream: &mut impl io::Write, tag: u8, body: &[u8]) {
            let length = u32::try_from(body.len() + 4).unwrap().to_be_bytes();
            // The client may have closed the connection already.
            drop(stream.write_all(&[&[tag], &length[..], body].concat()).and_then(|()| stream.flush()));
        }

        fn accept(&self, listener: &std::net::TcpListener) -> Vec<u8> {
            let (mut socket, _) = listener.accept().unwrap();
            if !self.tls {
                return self.serve(socket);
            }
            io::Read::read_exact(&mut socket, &mut [0; 8]).unwrap();
            io::Write::write_all(&mut socket, b"S").unwrap();
            self.serve(rustls::StreamOwned::new(rustls::ServerConnection::new(tls_server()).unwrap(), socket))
        }
    }

    fn tls_server() -> std::sync::Arc<rustls::ServerConfig> {
        let issued = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let certificate = issued.cert.der().clone();
        let key = rustls::pki_types::PrivateKeyDer::try_from(issued.signing_key.serialize_der()).unwrap();
        let provider = crate::tls::provider();
        let config = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = config.unwrap().with_no_client_auth().with_single_cert(vec![certificate], key);
        std::sync::Arc::new(config.unwrap())
    }

    /// The messages that a pretender received, which accepts no login.
    #[track_caller]
    fn heard_by(pretender: Pretender, parameters: &str) -> String {
        let answers = pretender.answers;
        let (opened, heard) = open(pretender, parameters);
        let refused = matches!(&opened, Err(Error::Authentication { .. }));
        assert!(refused, "{answers:?} {parameters}: {opened:?}");
        heard
    }

    /// Returns the outcome of a connection to the pretender, and the messages that it received.
    fn open(pretender: Pretender, parameters: &str) -> (Result<(), Error>, String) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = std::thread::spawn(move || pretender.accept(&listener));
        let text = format!("postgres://u:hunter2@127.0.0.1:{port}/d?{parameters}");
        let source = Source::resolve(Some(&text), &Environment::default()).unwrap().source;
        // The connection is closed at once, so that the server ends.
        let opened = Connection::open(&source, Purpose::Control).map(drop);
        let heard = server.join().unwrap();
        (opened, String::from_utf8_lossy(&heard).into_owned())
    }

    /// Checks that no login succeeds, and that the pretender does not get the password.
    #[track_caller]
    fn check_pretender(answers: &'static [Answer], parameters: &str, tls: bool) {
        let heard = heard_by(Pretender { answers, tls, token: false }, parameters);
        assert!(!heard.contains("hunter2"), "{answers:?} {parameters}: {heard:?}");
    }

    #[test]
    fn a_token_goes_out_once_and_encrypted() {
        use Answer::{AskForPassword, LetIn, RefuseToken};
        for answers in [&[RefuseToken, LetIn][..], &[RefuseToken, RefuseToken], &[AskForPassword]] {
            let heard = heard_by(Pretender { answers, tls: true, token: true }, "sslmode=require");
            assert_eq!(heard.matches("\x01auth=Bearer hunter2\x01\x01").count(), 1, "{answers:?}: {heard:?}");
        }
        for (tls, parameters) in [(false, "sslmode=disable"), (true, "sslmode=require&channel_binding=require")] {
            let heard = heard_by(Pretender { answers: &[LetIn], tls, token: true }, parameters);
            assert!(!heard.contains("hunter2"), "{parameters}: {heard:?}");
        }
    }

    #[test]
    fn a_token_counts_as_refused_only_where_credentials_are() {
        let ended = |answers| open(Pretender { answers, tls: true, token: true }, "sslmode=require").0.unwrap_err();
        for answers in [&[Answer::Fail("28000")][..], &[Answer::RefuseToken, Answer::Fail("28000")]] {
            assert!(matches!(ended(answers), Error::Authentication { .. }), "{answers:?}");
        }
        assert_eq!(ended(&[Answer::Fail("57P01")]).code(), Some("57P01"));
    }

    #[test]
    fn a_password_goes_out_in_clear_text_to_loopback_or_where_tls_was_turned_off() {
        for (exposed, sslmode, refused) in [
            (true, SslMode::Prefer, true),
            (true, SslMode::Disable, false),
            (false, SslMode::Prefer, false),
            (false, SslMode::VerifyFull, false),
        ] {
            assert_eq!(is_refused_in_clear(exposed, sslmode), refused, "{exposed} {sslmode:?}");
        }
    }

    #[test]
    fn only_what_can_be_a_token_is_one() {
        for token in ["a", "eyJhbGciOi.J9-._~+/0", "a=="] {
            assert!(is_token(token), "{token}");
        }
        for text in ["", "=", "a=b", "pass: w'ord", "a\x01b", "ü", "a b"] {
            assert!(!is_token(text), "{text:?}");
        }
    }

    #[test]
    fn a_server_that_ends_scram_without_its_own_proof_is_refused() {
        use Answer::{AskForPassword, Begin, Challenge, LetIn};
        for answers in [
            &[LetIn][..],
            &[Challenge, LetIn],
            &[AskForPassword, LetIn],
            &[Challenge, AskForPassword, LetIn],
            &[Begin, LetIn],
            &[Challenge, Begin, LetIn],
        ] {
            check_pretender(answers, "sslmode=disable", false);
            check_pretender(answers, "sslmode=require", true);
            check_pretender(answers, "sslmode=require&channel_binding=require", true);
        }
    }
}
