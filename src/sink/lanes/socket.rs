//! One connection of a client on the lanes: reached, encrypted where asked for, read and written at once.
//!
//! In: where, and whom to trust. Out: bytes that have come, and room for bytes to be sent. It speaks no protocol, does not reconnect
//! and sends nothing a second time.

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadHalf, WriteHalf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// Room that one read is given, in bytes.
const READ_BYTES: usize = 16 << 10;

/// Room for bytes to be written that stays when they are: only one large message can have needed more.
const KEPT_BYTES: usize = 4 << 20;

/// So many bytes that are written are worth moving those that are not.
const MOVED_BYTES: usize = 64 << 10;

/// How long one of a name's addresses may take to be reached where there is another.
const ADDRESS_WITHIN: Duration = Duration::from_secs(3);

/// Where a connection goes.
#[derive(Debug, Clone, Copy)]
pub struct Peer<'a> {
    /// Name or address.
    pub host: &'a str,
    /// Its port.
    pub port: u16,
    /// How it is encrypted; `None`: not at all.
    pub tls: Option<&'a Tls>,
    /// How long a peer may leave what was sent unread before its connection counts as broken; `None`: its protocol has a rule of its
    /// own.
    pub unread_at_most: Option<Duration>,
}

/// How a connection is encrypted. Files are read at each connection, so that they can change.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tls {
    /// Whom to trust; `None`: whom the machine trusts.
    pub authorities: Option<PathBuf>,
    /// The client's certificate and its key.
    pub client: Option<(PathBuf, PathBuf)>,
}

impl Tls {
    /// Reads the files that it names.
    ///
    /// # Errors
    /// A file cannot be read, or there is no certificate to trust.
    pub fn check(&self) -> Result<(), String> {
        client_config(self).map(drop)
    }
}

/// What bytes go over.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// A connection.
pub struct Socket {
    reader: ReadHalf<Box<dyn Stream>>,
    writer: WriteHalf<Box<dyn Stream>>,
    /// Read and not looked at.
    input: Vec<u8>,
    /// To be written: from `written` on.
    pub output: Vec<u8>,
    written: usize,
    /// Written and perhaps held back.
    unflushed: bool,
}

impl Socket {
    /// Reaches the peer. May take as long as the network does.
    ///
    /// # Errors
    /// The peer cannot be reached, or is not whom its certificate should name; a file cannot be read.
    pub async fn connect(peer: Peer<'_>) -> io::Result<Self> {
        Ok(Self::over(connect(peer).await?))
    }

    fn over(stream: Box<dyn Stream>) -> Self {
        let (reader, writer) = tokio::io::split(stream);
        Self { reader, writer, input: Vec::new(), output: Vec::new(), written: 0, unflushed: false }
    }

    /// Encrypts the connection from here on, where nothing is to be written and nothing more comes unasked: for protocols that begin
    /// without.
    ///
    /// # Errors
    /// The peer is not whom its certificate should name; a file cannot be read.
    pub async fn encrypt(self, host: &str, tls: &Tls) -> io::Result<Self> {
        Ok(Self::over(encrypt(self.reader.unsplit(self.writer), host, tls).await?))
    }

    /// Writes some of what is to be written, or reads some of what has come, whichever is possible first. Nothing is lost when it
    /// is dropped half-way. Whether something was read.
    ///
    /// # Errors
    /// The connection is lost.
    pub async fn turn(&mut self) -> io::Result<bool> {
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
                _some => Ok(true),
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
                forget_written(output, written);
                Ok(false)
            }
        }
    }

    /// Whether everything that was to be written is.
    pub fn is_written(&self) -> bool {
        self.output.is_empty() && !self.unflushed
    }

    /// What has come.
    pub fn input(&self) -> &[u8] {
        &self.input
    }

    /// The first `length` bytes of that have been looked at.
    pub fn consume(&mut self, length: usize) {
        self.input.drain(..length.min(self.input.len()));
    }

    /// What has come, to be looked at beside other work on the connection; [`Socket::give_back`] returns it.
    pub fn take_input(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.input)
    }

    /// Returns what was taken, of which the first `length` bytes have been looked at.
    pub fn give_back(&mut self, input: Vec<u8>, length: usize) {
        self.input = input;
        self.consume(length);
    }
}

/// Reaches the peer, for a library that reads and writes by itself. May take as long as the network does.
///
/// # Errors
/// As [`Socket::connect`].
pub async fn connect(peer: Peer<'_>) -> io::Result<Box<dyn Stream>> {
    let addresses = tokio::net::lookup_host((peer.host, peer.port)).await?.collect::<Vec<_>>();
    let socket = reach(&addresses).await?;
    keep_alive(&socket, peer.unread_at_most)?;
    match peer.tls {
        None => Ok(Box::new(socket)),
        Some(tls) => encrypt(Box::new(socket), peer.host, tls).await,
    }
}

async fn encrypt(stream: Box<dyn Stream>, host: &str, tls: &Tls) -> io::Result<Box<dyn Stream>> {
    let config = client_config(tls).map_err(io::Error::other)?;
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    Ok(Box::new(TlsConnector::from(Arc::new(config)).connect(name, stream).await?))
}

/// What is written takes no room, though there is always more to be written. Costs less than the writing did.
fn forget_written(output: &mut Vec<u8>, written: &mut usize) {
    if *written == output.len() {
        output.clear();
        output.shrink_to(KEPT_BYTES);
        *written = 0;
    } else if *written >= MOVED_BYTES && *written * 2 >= output.len() {
        output.drain(..*written);
        *written = 0;
    }
}

/// The first of a name's addresses that can be reached. One that does not answer is not waited for as long as the network would, while
/// there is another.
async fn reach(addresses: &[SocketAddr]) -> io::Result<TcpStream> {
    let Some((last, others)) = addresses.split_last() else {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
    };
    for address in others {
        if let Ok(Ok(socket)) = tokio::time::timeout(ADDRESS_WITHIN, TcpStream::connect(*address)).await {
            return Ok(socket);
        }
    }
    TcpStream::connect(*last).await
}

/// A peer that is gone without a word is noticed; one that hangs is not given up for it. What the peer has not acknowledged when the
/// connection is closed, or the process is killed, never leaves: another relay may have sent the same and more by then.
fn keep_alive(socket: &TcpStream, unread_at_most: Option<Duration>) -> io::Result<()> {
    use rustix::net::sockopt;
    socket.set_nodelay(true)?;
    sockopt::set_socket_linger(socket, Some(Duration::ZERO))?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, Duration::from_secs(10))?;
    sockopt::set_tcp_keepintvl(socket, Duration::from_secs(5))?;
    sockopt::set_tcp_keepcnt(socket, 4)?;
    if let Some(time) = unread_at_most {
        sockopt::set_tcp_user_timeout(socket, u32::try_from(time.as_millis()).unwrap_or(u32::MAX))?;
    }
    Ok(())
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
    if roots.is_empty() {
        let file = tls.authorities.as_ref().map(|file| file.display().to_string());
        return Err(format!("{} has no certificate of an authority", file.as_deref().unwrap_or("this machine")));
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

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::{TcpListener, TcpSocket};
    use tokio::time::timeout;

    fn run(test: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test);
    }

    #[test]
    fn what_was_written_takes_no_memory_though_there_is_always_more_to_write() {
        run(async {
            const WAITING: usize = 64 << 10;
            let (ours, mut theirs) = tokio::io::duplex(4 << 10);
            let (mut socket, mut room) = (Socket::over(Box::new(ours)), vec![0; 4 << 10]);
            let (mut sent, mut read) = (0_usize, 0_usize);
            while read < 16 << 20 {
                while sent < read + WAITING {
                    socket.output.push(u8::try_from(sent % 251).unwrap());
                    sent += 1;
                }
                socket.turn().await.unwrap();
                let more = theirs.read(&mut room).await.unwrap();
                assert!(room[..more].iter().zip(read..).all(|(byte, at)| usize::from(*byte) == at % 251));
                read += more;
            }
            assert!(socket.output.capacity() < 1 << 20, "{} bytes", socket.output.capacity());
        });
    }

    #[test]
    fn one_large_message_costs_no_memory_once_it_is_written() {
        run(async {
            let (ours, mut theirs) = tokio::io::duplex(1 << 20);
            let (mut socket, mut room) = (Socket::over(Box::new(ours)), vec![0; 1 << 20]);
            socket.output.resize(64 << 20, 7);
            let reading = async { while theirs.read(&mut room).await.unwrap() > 0 {} };
            let writing = async {
                while !socket.is_written() {
                    socket.turn().await.unwrap();
                }
            };
            tokio::select! {
                () = writing => {}
                () = reading => panic!("nobody writes"),
            }
            assert!(socket.output.capacity() <= KEPT_BYTES, "{} bytes", socket.output.capacity());
        });
    }

    #[test]
    fn an_address_that_does_not_answer_is_not_all_that_is_tried() {
        run(async {
            let live = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
            // Its queue is full: it answers as a machine that is gone does, not at all.
            let silent = TcpSocket::new_v4().unwrap();
            silent.bind("127.0.0.2:0".parse().unwrap()).unwrap();
            let silent = silent.listen(1).unwrap();
            let silent_at = silent.local_addr().unwrap();
            let mut waiting = Vec::new();
            while let Ok(connected) = timeout(Duration::from_millis(300), TcpStream::connect(silent_at)).await {
                waiting.push(connected.unwrap());
            }
            let addresses = [silent_at, live.local_addr().unwrap()];
            let reached =
                timeout(ADDRESS_WITHIN * 3, reach(&addresses)).await.expect("the second address is tried").unwrap();
            assert_eq!(reached.peer_addr().unwrap(), live.local_addr().unwrap());
        });
    }
}
