//! TLS to the server, by the rules of libpq's `sslmode`, with rustls.
//!
//! | `sslmode` | encrypted | certificate's chain checked | host name checked |
//! |---|---|---|---|
//! | `disable` | no | | |
//! | `prefer` | if the server can | no | no |
//! | `require` | yes | if there is a root certificate file | no |
//! | `verify-ca` | yes | yes | no |
//! | `verify-full` | yes | yes | yes |
//!
//! As libpq does, it accepts a certificate that signed itself, and one whose host name is only in its subject: see [`crate::tls`].
//!
//! Specification: PostgreSQL manual, section 33.19 "SSL Support"; RFC 5929, section 4, for the channel binding.

use super::error::Error;
use super::socket::{Socket, wait_readable};
use super::source::{ClientCertificate, RootCert, Source, Verification};
use crate::tls::{self, NameRule, Roots, UnsupportedKey, Verifier};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, OtherError};
use sha2::{Digest, Sha256, Sha384, Sha512};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use x509_cert::der::Decode;

/// The bytes that one read of cipher text takes.
const BUFFER_BYTES: usize = 256 * 1024;

/// An encrypted connection.
#[derive(Debug)]
pub(super) struct Tls {
    session: ClientConnection,
    incoming: BufReader<Socket>,
}

impl Tls {
    /// Performs the TLS handshake over `socket`.
    ///
    /// # Errors
    /// A certificate file cannot be used, the server's certificate is refused, or the connection broke.
    pub(super) fn connect(
        socket: Socket,
        source: &Source,
        host_name: &str,
        host: &str,
        deadline: Instant,
    ) -> Result<Self, Error> {
        let refused = |reason: String| Error::Tls { host: host.to_owned(), reason };
        let name = ServerName::try_from(host_name.to_owned()).map_err(|error| refused(error.to_string()))?;
        let session = ClientConnection::new(Arc::new(client_config(source)?), name)
            .map_err(|error| refused(error.to_string()))?;
        let mut tls = Self { session, incoming: BufReader::with_capacity(BUFFER_BYTES, socket) };
        tls.shake_hands(deadline).map_err(|error| {
            match error.get_ref().and_then(|e| e.downcast_ref::<rustls::Error>()) {
                Some(rustls::Error::Other(OtherError(cause))) if cause.is::<UnsupportedKey>() => {
                    Error::UnsupportedKey { host: host.to_owned(), reason: cause.to_string() }
                }
                Some(error) => refused(error.to_string()),
                None => Error::Io { doing: "setting up TLS", source: error },
            }
        })?;
        Ok(tls)
    }

    fn shake_hands(&mut self, deadline: Instant) -> io::Result<()> {
        while self.session.is_handshaking() {
            if Instant::now() >= deadline {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.send()?;
            match self.receive() {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => wait_readable(self.socket(), deadline)?,
                Err(error) => return Err(error),
            }
        }
        self.send()
    }

    /// The hash of the server's certificate, for channel binding (`tls-server-end-point`).
    pub(super) fn channel_binding(&self) -> Option<Vec<u8>> {
        let der = self.session.peer_certificates()?.first()?;
        let certificate = x509_cert::Certificate::from_der(der).ok()?;
        end_point_hash(&certificate.signature_algorithm.oid.to_string(), der)
    }

    /// Copies the decrypted bytes that were received into `room`. `WouldBlock`: there are none.
    pub(super) fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        loop {
            match self.session.reader().read(room.get_mut(filled..).unwrap_or_default()) {
                Ok(0) => return Ok(filled),
                Ok(length) => filled += length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            if filled == room.len() || (filled > 0 && self.incoming.buffer().is_empty()) {
                return Ok(filled);
            }
            match self.receive() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && filled > 0 => return Ok(filled),
                received => received?,
            }
        }
    }

    /// Writes all of `bytes`. The session takes 64 KiB of plain text at a time, and sends them before it takes more.
    pub(super) fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let taken = self.session.writer().write(rest)?;
            self.send()?;
            if taken == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            rest = rest.get(taken..).unwrap_or_default();
        }
        Ok(())
    }

    /// Sends `last` and the end of the TLS session, as far as that is possible without a wait. Without this end, Postgres takes the
    /// closed connection for a broken one, and logs it.
    pub(super) fn end(&mut self, last: &[u8]) -> io::Result<()> {
        self.session.writer().write_all(last)?;
        self.session.send_close_notify();
        while self.session.wants_write() {
            self.session.write_tls(&mut self.incoming.get_mut().without_waiting())?;
        }
        Ok(())
    }

    pub(super) fn socket(&self) -> &Socket {
        self.incoming.get_ref()
    }

    fn receive(&mut self) -> io::Result<()> {
        if self.incoming.fill_buf()?.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.session.read_tls(&mut self.incoming)?;
        let processed = self.session.process_new_packets();
        // The alert with the reason of the refusal should still reach the server.
        self.send()?;
        processed.map(drop).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }

    fn send(&mut self) -> io::Result<()> {
        while self.session.wants_write() {
            self.session.write_tls(self.incoming.get_mut())?;
        }
        Ok(())
    }
}

/// The TLS alert by which the peer refused the client certificate, or its absence. `None`: the error has another cause.
pub(super) fn refusal(error: &io::Error) -> Option<String> {
    use rustls::AlertDescription as Alert;
    let error = error.get_ref()?.downcast_ref::<rustls::Error>()?;
    let is_of_certificates = matches!(
        error,
        rustls::Error::AlertReceived(
            Alert::BadCertificate
                | Alert::UnsupportedCertificate
                | Alert::CertificateRevoked
                | Alert::CertificateExpired
                | Alert::CertificateUnknown
                | Alert::UnknownCA
                | Alert::AccessDenied
                | Alert::DecryptError
                | Alert::CertificateRequired
        )
    );
    is_of_certificates.then(|| error.to_string())
}

/// The hash of the certificate by RFC 5929: the hash function of its signature, with SHA-256 instead of MD5 and SHA-1. `None`:
/// there is no rule for the signature.
fn end_point_hash(signature_oid: &str, der: &[u8]) -> Option<Vec<u8>> {
    Some(match signature_oid {
        // These are MD5, SHA-1 and SHA-256 with RSA, and SHA-1 and SHA-256 with ECDSA.
        "1.2.840.113549.1.1.4"
        | "1.2.840.113549.1.1.5"
        | "1.2.840.113549.1.1.11"
        | "1.2.840.10045.4.1"
        | "1.2.840.10045.4.3.2" => Sha256::digest(der).to_vec(),
        // These are SHA-384 with RSA and ECDSA.
        "1.2.840.113549.1.1.12" | "1.2.840.10045.4.3.3" => Sha384::digest(der).to_vec(),
        // These are SHA-512 with RSA and ECDSA.
        "1.2.840.113549.1.1.13" | "1.2.840.10045.4.3.4" => Sha512::digest(der).to_vec(),
        _ => return None,
    })
}

fn client_config(source: &Source) -> Result<ClientConfig, Error> {
    let verification = source.verification();
    let roots = if verification == Verification::None { None } else { Some(roots(&source.sslrootcert)?) };
    let name = if verification == Verification::ChainAndName { NameRule::OrSubject } else { NameRule::Unchecked };
    let identity = match &source.client_certificate {
        Some(ClientCertificate { certificate, key }) => {
            Some((certificates(certificate, "client certificate")?, private_key(key)?))
        }
        None => None,
    };
    tls::client_config(Verifier::new(roots, name), identity)
        .map_err(|error| Error::Tls { host: "the client's side".to_owned(), reason: error.to_string() })
}

fn roots(root: &RootCert) -> Result<Roots, Error> {
    match root {
        RootCert::File(path) => {
            let named = certificates(path, "root certificate")?;
            Roots::of(named).map_err(|error| unusable("root certificate", path, &error))
        }
        RootCert::System | RootCert::None => Ok(Roots::of_machine()),
    }
}

fn certificates(path: &Path, what: &'static str) -> Result<Vec<CertificateDer<'static>>, Error> {
    let certificates = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| unusable(what, path, &error))?;
    if certificates.is_empty() {
        return Err(unusable(what, path, &"it holds no certificate in PEM form"));
    }
    Ok(certificates)
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, Error> {
    PrivateKeyDer::from_pem_file(path).map_err(|error| unusable("client key", path, &error))
}

fn unusable(what: &'static str, path: &Path, reason: &dyn std::fmt::Display) -> Error {
    Error::File { what, path: path.display().to_string(), reason: reason.to_string() }
}
