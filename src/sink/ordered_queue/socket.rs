//! Opens a connection for a library's client, with TLS where settings ask for it.
//!
//! In: a host and a port, and whom to trust. Out: a stream. Once the stream is closed, none of its bytes leave any more. It does not
//! reconnect.

use crate::pg::lookup::Lookup;
use crate::tls::{self, NameRule, Roots, Verifier};
use rustls::ClientConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// How long one IP address of a name may take to answer if there is another.
const ADDRESS_WITHIN: Duration = Duration::from_secs(3);

/// The peer of a connection.
#[derive(Debug, Clone, Copy)]
pub struct Peer<'a> {
    /// A name or an IP address.
    pub host: &'a str,
    /// The TCP port.
    pub port: u16,
    /// The settings of TLS. `None`: no encryption.
    pub tls: Option<&'a Tls>,
    /// How long sent bytes may stay unread by the peer before the connection counts as broken. `None`: the protocol has a rule of its
    /// own.
    pub unread_at_most: Option<Duration>,
}

/// The settings of TLS. Files are read at each connection, so that they can change.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tls {
    /// A file with the authorities to trust. `None`: those that the machine trusts.
    pub authorities: Option<PathBuf>,
    /// The files of the client's certificate and its key.
    pub client: Option<(PathBuf, PathBuf)>,
}

impl Tls {
    /// Reads the files, and says whether they can be used.
    ///
    /// # Errors
    /// A file cannot be read, or there is no certificate to trust.
    pub fn check(&self) -> Result<(), String> {
        client_config(self).map(drop)
    }
}

/// A connection's two directions.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// Connects to the peer. May take as long as the network does.
///
/// # Errors
/// The peer cannot be reached, its certificate is not valid for its host, or a file cannot be read.
pub async fn connect(peer: Peer<'_>) -> io::Result<Box<dyn Stream>> {
    let lookup = Lookup::begin(peer.host);
    let addresses = tokio::net::lookup_host((peer.host, peer.port)).await?.collect::<Vec<_>>();
    drop(lookup);
    let socket = reach(&addresses).await?;
    keep_alive(&socket, peer.unread_at_most)?;
    let Some(tls) = peer.tls else { return Ok(Box::new(socket)) };
    let config = client_config(tls).map_err(io::Error::other)?;
    let name = ServerName::try_from(peer.host.to_owned()).map_err(io::Error::other)?;
    Ok(Box::new(TlsConnector::from(Arc::new(config)).connect(name, socket).await?))
}

/// Connects to the first IP address that answers. Waits for each but the last for [`ADDRESS_WITHIN`] only.
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

/// Sets the socket's options. With keepalive, the kernel notices a peer that is gone; it does not give up one that hangs. With a linger
/// of 0, bytes that the peer has not acknowledged never leave once the connection is closed or the process is killed: by then another
/// relay may have sent the same records and more.
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

/// The configuration of rustls. It always checks the server's certificate and name.
///
/// # Errors
/// A file cannot be read, or there is no certificate to trust.
pub fn client_config(tls: &Tls) -> Result<ClientConfig, String> {
    let roots = match &tls.authorities {
        Some(file) => Roots::of(certificates(file)?).map_err(|error| format!("{}: {error}", file.display()))?,
        None => Roots::of_machine(),
    };
    if roots.is_empty() {
        let file = tls.authorities.as_ref().map(|file| file.display().to_string());
        return Err(format!("{} has no certificate of an authority", file.as_deref().unwrap_or("this machine")));
    }
    let identity = match &tls.client {
        Some((certificate, key)) => {
            let key_of = PrivateKeyDer::from_pem_file(key).map_err(|error| format!("{}: {error}", key.display()))?;
            Some((certificates(certificate)?, key_of))
        }
        None => None,
    };
    let verifier = Verifier::new(Some(roots), NameRule::AlternativeNames);
    tls::client_config(verifier, identity).map_err(|error| error.to_string())
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
    fn an_address_that_does_not_answer_is_not_all_that_is_tried() {
        run(async {
            let live = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
            // A listener whose queue is full does not answer, as a machine that is gone.
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
