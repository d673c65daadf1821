//! One connection to a server: reached, encrypted where asked for, logged in.
//!
//! In: where, as whom. Out: a connection that commands can be written to and replies read from. It does not reconnect and sends
//! nothing a second time.

use super::judge::{CONNECTION, environment};
use super::resp::{Token, Tokens, code, length, words};
use super::settings::{Settings, Tls};
use crate::sink::lanes::LOG_IN;
use crate::sink::{Failure, FailureClass};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadHalf, WriteHalf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// How long reaching the server and logging in may take.
const REACHED_WITHIN: Duration = Duration::from_secs(10);

/// How long a peer may stay silent before its connection counts as broken, where the network says nothing.
const DEAD_AFTER: Duration = Duration::from_secs(30);

/// Room that one read is given, in bytes.
const READ_BYTES: usize = 16 << 10;

/// What bytes go over.
pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// A connection.
pub(super) struct Link {
    reader: ReadHalf<Box<dyn Stream>>,
    writer: WriteHalf<Box<dyn Stream>>,
    /// Read and not looked at.
    input: Vec<u8>,
    /// To be written: from `written` on.
    pub(super) output: Vec<u8>,
    written: usize,
    /// Written and perhaps held back.
    unflushed: bool,
}

impl Link {
    /// Reaches the server and logs in.
    pub(super) async fn open(settings: &Settings) -> Result<Self, Failure> {
        let opening = async {
            let mut link = Self::reach(settings).await?;
            link.log_in(settings).await?;
            Ok(link)
        };
        match tokio::time::timeout(REACHED_WITHIN, opening).await {
            Ok(opened) => opened,
            Err(_late) => Err(broken(settings, &format!("no answer within {} s", REACHED_WITHIN.as_secs()))),
        }
    }

    async fn reach(settings: &Settings) -> Result<Self, Failure> {
        let failed = |error: io::Error| broken(settings, &error.to_string());
        let socket = TcpStream::connect((settings.host.as_str(), settings.port)).await.map_err(failed)?;
        keep_alive(&socket).map_err(failed)?;
        let stream: Box<dyn Stream> = match &settings.tls {
            None => Box::new(socket),
            Some(tls) => {
                let config = client_config(tls).map_err(|reason| broken(settings, &reason))?;
                let name = ServerName::try_from(settings.host.clone())
                    .map_err(|error| broken(settings, &error.to_string()))?;
                Box::new(TlsConnector::from(Arc::new(config)).connect(name, socket).await.map_err(failed)?)
            }
        };
        let (reader, writer) = tokio::io::split(stream);
        Ok(Self { reader, writer, input: Vec::new(), output: Vec::new(), written: 0, unflushed: false })
    }

    async fn log_in(&mut self, settings: &Settings) -> Result<(), Failure> {
        let user = settings.user.as_deref();
        let auth: Option<Vec<&[u8]>> = match (user, &settings.password) {
            (Some(user), Some(password)) => Some(vec![b"AUTH", user.as_bytes(), password.as_bytes()]),
            (None, Some(password)) => Some(vec![b"AUTH", password.as_bytes()]),
            (_, None) => None,
        };
        if let Some(auth) = auth {
            self.expect_ok(settings, &auth).await?;
        }
        let database = settings.database.to_string();
        if settings.database != 0 {
            self.expect_ok(settings, &[b"SELECT", database.as_bytes()]).await?;
        }
        // Names cannot hold spaces, and who may not set one does without.
        let name = settings.client.replace(' ', "-");
        let named = self.call(settings, &[b"CLIENT", b"SETNAME", name.as_bytes()]).await?;
        match Tokens::of(&named).next() {
            Some(Token::Error(error)) if code(error) == b"NOAUTH" => Err(environment(&settings.address(), error)),
            Some(_) | None => Ok(()),
        }
    }

    async fn expect_ok(&mut self, settings: &Settings, command: &[&[u8]]) -> Result<(), Failure> {
        let reply = self.call(settings, command).await?;
        match Tokens::of(&reply).next() {
            Some(Token::Error(error)) => Err(Failure { reason: LOG_IN, ..environment(&settings.address(), error) }),
            Some(_) | None => Ok(()),
        }
    }

    /// Sends a command and waits for its reply, while nothing else is under way.
    ///
    /// # Errors
    /// The connection is lost. An error of the server's is a reply.
    pub(super) async fn call(&mut self, settings: &Settings, command: &[&[u8]]) -> Result<Vec<u8>, Failure> {
        self.call_for(settings, command, 1).await
    }

    /// The same for a command behind others that were written: waits for so many replies.
    ///
    /// # Errors
    /// The connection is lost.
    pub(super) async fn call_for(
        &mut self,
        settings: &Settings,
        command: &[&[u8]],
        replies: usize,
    ) -> Result<Vec<u8>, Failure> {
        words(&mut self.output, command);
        loop {
            match length(&self.input, replies) {
                Err(_) => return Err(broken(settings, "it does not speak Redis' protocol")),
                Ok(Some(length)) => {
                    let reply = self.input.get(..length).unwrap_or_default().to_owned();
                    self.consume(length);
                    return Ok(reply);
                }
                Ok(None) => {}
            }
            self.turn().await.map_err(|error| broken(settings, &error.to_string()))?;
        }
    }

    /// Writes some of what is to be written, or reads some of what has come, whichever is possible first. Nothing is lost when it
    /// is dropped half-way.
    ///
    /// # Errors
    /// The connection is lost.
    pub(super) async fn turn(&mut self) -> io::Result<()> {
        let Self { reader, writer, input, output, written, unflushed } = self;
        input.reserve(READ_BYTES);
        let rest = output.get(*written..).unwrap_or_default();
        let writes = !rest.is_empty() || *unflushed;
        // TLS holds back what it has encrypted until it is flushed.
        let write = async {
            if rest.is_empty() { writer.flush().await.map(|()| None) } else { writer.write(rest).await.map(Some) }
        };
        tokio::select! {
            read = reader.read_buf(input) => match read? {
                0 => Err(io::ErrorKind::UnexpectedEof.into()),
                _some => Ok(()),
            },
            wrote = write, if writes => {
                match wrote? {
                    None => *unflushed = false,
                    Some(0) => return Err(io::ErrorKind::WriteZero.into()),
                    Some(bytes) => {
                        *written += bytes;
                        *unflushed = true;
                    }
                }
                if *written == output.len() {
                    output.clear();
                    *written = 0;
                }
                Ok(())
            }
        }
    }

    /// What has come.
    pub(super) fn input(&self) -> &[u8] {
        &self.input
    }

    /// The first `length` bytes of that have been looked at.
    pub(super) fn consume(&mut self, length: usize) {
        self.input.drain(..length.min(self.input.len()));
    }
}

/// The connection cannot be had, or is lost.
pub(super) fn broken(settings: &Settings, reason: &str) -> Failure {
    let text = format!("Redis at {} cannot be reached: {reason}", settings.address());
    Failure { class: FailureClass::Environment, reason: CONNECTION, text }
}

/// A peer that is gone without a word is noticed; one that hangs is not given up for it.
fn keep_alive(socket: &TcpStream) -> io::Result<()> {
    use rustix::net::sockopt;
    socket.set_nodelay(true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, Duration::from_secs(10))?;
    sockopt::set_tcp_keepintvl(socket, Duration::from_secs(5))?;
    sockopt::set_tcp_keepcnt(socket, 4)?;
    let millis = u32::try_from(DEAD_AFTER.as_millis()).unwrap_or(u32::MAX);
    Ok(sockopt::set_tcp_user_timeout(socket, millis)?)
}

/// The server's certificate and name are always checked.
fn client_config(tls: &Tls) -> Result<ClientConfig, String> {
    let mut roots = RootCertStore::empty();
    match &tls.authorities {
        Some(file) => {
            for certificate in certificates(file)? {
                roots.add(certificate).map_err(|error| format!("{}: {error}", file.display()))?;
            }
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots);
    let Some((certificate, key)) = &tls.client else { return Ok(config.with_no_client_auth()) };
    let key_of = PrivateKeyDer::from_pem_file(key).map_err(|error| format!("{}: {error}", key.display()))?;
    config.with_client_auth_cert(certificates(certificate)?, key_of).map_err(|error| error.to_string())
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let read = CertificateDer::pem_file_iter(file).and_then(Iterator::collect);
    read.map_err(|error| format!("{}: {error}", file.display()))
}
