//! Logging in: the server's requests for proof of who we are, answered until it is satisfied.
//!
//! In: a connection that has sent its start-up packet. Out: one that the server has let in, or why not. Kerberos, GSSAPI and SSPI are
//! not here, nor are OAuth's flows: the token comes from where a password would.
//!
//! Invariant: once SCRAM has begun, nothing but the server's own proof that it knows the password ends it. A server that lets us in
//! before that, asks for the password in another way, or starts over, is refused: it may be somebody between us and the server
//! (libpq's `FE_SCRAM_FINISHED`).
//! A token goes out over TLS or a Unix socket only, and only what can be one does.
//! A password goes out as it is over TLS, a Unix socket or loopback only, unless `sslmode=disable` was typed.
//! Specification: PostgreSQL manual, section 54.3 "SASL Authentication"; RFC 5802; OAUTHBEARER: RFC 7628, RFC 6750 section 2.1.

use super::connection::{Connection, broke};
use super::error::Error;
use super::source::{ChannelBinding, Host, Source, SslMode};
use crate::wire::Reader;
use bytes::BytesMut;
use postgres_protocol::authentication::{md5_hash, sasl};
use postgres_protocol::message::frontend;
use secrecy::ExposeSecret;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// The warning of MD5 is out: one in a process is enough, since each connection would repeat it.
static WARNED_OF_MD5: AtomicBool = AtomicBool::new(false);

/// The mechanism by which a bearer token is sent, from Postgres 18 on.
const OAUTHBEARER: &str = "OAUTHBEARER";

/// The answer to a server that says why it refuses a token (RFC 7628, section 3.2.3): it then fails as others do.
const TOKEN_GIVEN_UP: &[u8] = b"\x01";

/// The steps of the authentication.
enum Exchange {
    /// The server has asked for nothing.
    Unasked,
    /// The password is out, as it is or hashed.
    PasswordSent,
    /// The bearer token is out.
    TokenSent,
    /// The server does not take the token.
    TokenRefused,
    /// SCRAM has begun: the server's proof is awaited.
    Scram(Box<sasl::ScramSha256>),
    /// The server has proved that it knows the password.
    ServerProved,
}

impl Connection {
    /// Answers the server's authentication requests until it lets us in.
    ///
    /// # Errors
    /// The server refuses us, we refuse the server, or the connection broke.
    pub(super) fn authenticate(&mut self, source: &Source, host: &Host, deadline: Instant) -> Result<(), Error> {
        let mut exchange = Exchange::Unasked;
        loop {
            let message = self.message(deadline, "authenticating")?;
            match message.tag {
                b'R' => {}
                b'E' => return Err(self.not_let_in(&exchange, &message.body)?),
                tag => return Err(Error::Unexpected { tag, doing: "authenticating" }),
            }
            let mut reader = Reader::new("AuthenticationRequest", &message.body);
            exchange = match (reader.u32()?, exchange) {
                (0, exchange) => return self.let_in(source, &exchange),
                (request @ (3 | 5), Exchange::Unasked) => {
                    self.prove_by_password(source, host, request, &mut reader)?;
                    Exchange::PasswordSent
                }
                (10, Exchange::Unasked) => self.begin_sasl(source, host, &mut reader)?,
                (11, Exchange::TokenSent) => {
                    self.send_sasl(TOKEN_GIVEN_UP)?;
                    Exchange::TokenRefused
                }
                (11, Exchange::Scram(mut scram)) => {
                    self.continue_scram(&mut scram, reader.rest())?;
                    Exchange::Scram(scram)
                }
                (12, Exchange::Scram(mut scram)) => {
                    scram.finish(reader.rest()).map_err(|error| self.unable(&error.to_string()))?;
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

    fn let_in(&self, source: &Source, exchange: &Exchange) -> Result<(), Error> {
        match exchange {
            Exchange::Scram(_) => {
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

    /// Why the server ended the authentication. Credentials that it refuses after it has seen the token are the token: another rule of
    /// `pg_hba.conf`, as one for connections without TLS, would not help.
    fn not_let_in(&self, exchange: &Exchange, body: &[u8]) -> Result<Error, Error> {
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

    /// As it is (3), or hashed with MD5 (5).
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
            return self.send_password(password.as_bytes());
        }
        if exposed && !WARNED_OF_MD5.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                host = self.host,
                hint = "password_encryption = 'scram-sha-256' on the server, then set the role's password again; and sslmode=require in --source",
                "the server asks for the password hashed with MD5, over a connection without TLS: who reads it there can log in with it"
            );
        }
        let salt = reader.take(4)?.first_chunk().copied().unwrap_or_default();
        self.send_password(md5_hash(source.user.as_bytes(), password.as_bytes(), salt).as_bytes())
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
        let scram = sasl::ScramSha256::new(self.password(source, host)?.as_bytes(), binding);
        self.send_initial(mechanism, scram.message())?;
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
        self.send_initial(OAUTHBEARER, message.as_bytes())
    }

    fn choose_mechanism(
        &self,
        source: &Source,
        offered: &[&str],
    ) -> Result<(&'static str, sasl::ChannelBinding), Error> {
        let end_point =
            if source.channel_binding == ChannelBinding::Disable { None } else { self.stream.channel_binding() };
        let plus = offered.contains(&sasl::SCRAM_SHA_256_PLUS);
        match end_point {
            Some(hash) if plus => Ok((sasl::SCRAM_SHA_256_PLUS, sasl::ChannelBinding::tls_server_end_point(hash))),
            _ if source.channel_binding == ChannelBinding::Require => {
                Err(self
                    .unable("channel_binding=require, but this connection cannot be bound (it needs TLS and SCRAM)"))
            }
            _ if !offered.contains(&sasl::SCRAM_SHA_256) => {
                Err(self.unable(&format!("the server offers only {}", offered.join(", "))))
            }
            Some(_) => Ok((sasl::SCRAM_SHA_256, sasl::ChannelBinding::unrequested())),
            None => Ok((sasl::SCRAM_SHA_256, sasl::ChannelBinding::unsupported())),
        }
    }

    fn continue_scram(&mut self, scram: &mut sasl::ScramSha256, challenge: &[u8]) -> Result<(), Error> {
        scram.update(challenge).map_err(|error| self.unable(&error.to_string()))?;
        self.send_sasl(scram.message())
    }

    fn send_initial(&mut self, mechanism: &str, data: &[u8]) -> Result<(), Error> {
        let mut message = BytesMut::new();
        frontend::sasl_initial_response(mechanism, data, &mut message).map_err(broke("authenticating"))?;
        self.stream.write_all(&message).map_err(broke("authenticating"))
    }

    fn send_sasl(&mut self, data: &[u8]) -> Result<(), Error> {
        let mut message = BytesMut::new();
        frontend::sasl_response(data, &mut message).map_err(broke("authenticating"))?;
        self.stream.write_all(&message).map_err(broke("authenticating"))
    }

    fn send_password(&mut self, password: &[u8]) -> Result<(), Error> {
        let mut message = BytesMut::new();
        frontend::password_message(password, &mut message).map_err(broke("authenticating"))?;
        self.stream.write_all(&message).map_err(broke("authenticating"))
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

/// Whether the password as it is stays here: `exposed`: others on the network could read it. libpq sends it under `sslmode=prefer`, and so to
/// whoever takes TLS away between us and the server.
fn is_refused_in_clear(exposed: bool, sslmode: SslMode) -> bool {
    exposed && sslmode != SslMode::Disable
}

/// Whether it is a `b64token` (RFC 6750, section 2.1): no other text goes out as a token.
fn is_token(text: &str) -> bool {
    let body = text.trim_end_matches('=');
    !body.is_empty() && body.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~+/".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::super::connection::Purpose;
    use super::super::source::Environment;
    use super::*;
    use std::io;

    /// A server that pretends to know the password: the messages that it sends, one by one.
    struct Pretender {
        answers: &'static [Answer],
        tls: bool,
        /// It asks for a token.
        token: bool,
    }

    #[derive(Debug, Clone, Copy)]
    enum Answer {
        /// AuthenticationSASLContinue, well-formed.
        Challenge,
        /// AuthenticationOk, and what follows it.
        LetIn,
        /// AuthenticationCleartextPassword.
        AskForPassword,
        /// AuthenticationSASL, once more.
        Begin,
        /// AuthenticationSASLContinue: why a token is refused.
        RefuseToken,
        /// ErrorResponse with this SQLSTATE.
        Fail(&'static str),
    }

    impl Pretender {
        /// Serves one client to its end: everything it said after the start-up packet.
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
            // A client that has heard enough may have closed the connection.
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
        let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = config.unwrap().with_no_client_auth().with_single_cert(vec![certificate], key);
        std::sync::Arc::new(config.unwrap())
    }

    /// Returns the messages that a pretender received which lets nobody in.
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
        // Closed at once, so that the server comes to its end.
        let opened = Connection::open(&source, Purpose::Control).map(drop);
        let heard = server.join().unwrap();
        (opened, String::from_utf8_lossy(&heard).into_owned())
    }

    /// A pretender lets nobody in, and does not get the password.
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
