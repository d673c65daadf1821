//! One small HTTP request at a time: metadata services beside us; AWS's token service and registries of schemas over TLS.
//!
//! In: an address, headers, a body. Out: the status and the body. It follows no redirect, keeps no connection, and takes no proxy.
//!
//! Invariant: a request is over within [`WITHIN`], and no answer is larger than [`LARGEST`].
//! Specification: RFC 9112.

use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a request may take in all.
const WITHIN: Duration = Duration::from_secs(5);

/// Addresses of metadata services answer at once, or there is nobody: a machine elsewhere.
const REACHED_WITHIN: Duration = Duration::from_secs(2);

/// Bytes of an answer.
const LARGEST: u64 = 1 << 20;

/// A request.
pub(crate) struct Request<'a> {
    pub(crate) method: &'static str,
    /// `http://host:port/path?query` or `https://…`.
    pub(crate) url: &'a str,
    pub(crate) headers: &'a [(&'a str, &'a str)],
    pub(crate) body: &'a [u8],
}

/// An answer, whose body is text or bytes.
pub(crate) struct Answer<B = String> {
    pub(crate) status: u16,
    pub(crate) body: B,
}

/// What a URL is made of.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Url<'a> {
    pub(crate) is_https: bool,
    /// Without brackets.
    pub(crate) host: &'a str,
    port: u16,
    /// As the header `Host` has it.
    authority: &'a str,
    path: &'a str,
}

impl<'a> Url<'a> {
    /// Takes it apart; `None`: it is none.
    pub(crate) fn of(text: &'a str) -> Option<Self> {
        let (scheme, rest) = text.split_once("://")?;
        let is_https = match scheme {
            "https" => true,
            "http" => false,
            _ => return None,
        };
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at_checked(end)?;
        let (host, port) = match authority.strip_prefix('[').and_then(|v6| v6.split_once(']')) {
            Some((host, port)) => (host, port.strip_prefix(':')),
            None => authority.split_once(':').map_or((authority, None), |(host, port)| (host, Some(port))),
        };
        let port = port.map_or(Some(if is_https { 443 } else { 80 }), |port| port.parse().ok())?;
        let is_plain = |c: char| c.is_ascii_graphic() && c != '@';
        let is_whole = !host.is_empty() && text.chars().all(is_plain);
        is_whole.then_some(Self { is_https, host, port, authority, path })
    }
}

impl Request<'_> {
    /// Sends it, and waits for the answer. `ca`: a PEM file with the authorities that are trusted instead of the system's.
    pub(crate) fn send_trusting(&self, ca: Option<&Path>) -> io::Result<Answer> {
        let Answer { status, body } = self.exchange(ca)?;
        let body = String::from_utf8(body).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        Ok(Answer { status, body })
    }

    /// The same, with an answer of bytes.
    pub(crate) fn exchange(&self, ca: Option<&Path>) -> io::Result<Answer<Vec<u8>>> {
        let invalid = |text: &str| io::Error::new(io::ErrorKind::InvalidInput, text.to_owned());
        let url = Url::of(self.url).ok_or_else(|| invalid("it is not an http or https URL"))?;
        let deadline = Instant::now() + WITHIN;
        let socket = Limited { socket: reach(&url)?, deadline };
        let mut text = Vec::new();
        if url.is_https {
            let name = ServerName::try_from(url.host.to_owned()).map_err(|error| invalid(&error.to_string()))?;
            let session = ClientConnection::new(Arc::new(client_config(ca)?), name).map_err(io::Error::other)?;
            self.ask(&url, StreamOwned::new(session, socket), &mut text)?;
        } else {
            self.ask(&url, socket, &mut text)?;
        }
        Answer::read(&text).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the answer is not HTTP"))
    }

    fn ask(&self, url: &Url<'_>, mut stream: impl Read + Write, answer: &mut Vec<u8>) -> io::Result<()> {
        let slash = if url.path.starts_with('/') { "" } else { "/" };
        let mut head = format!("{} {slash}{} HTTP/1.1\r\nHost: {}\r\n", self.method, url.path, url.authority);
        for (name, value) in self.headers {
            // A token from a file may end with a newline; in the middle there is none.
            let value = value.trim();
            if value.contains(['\r', '\n']) {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{name} has several lines")));
            }
            head.extend([*name, ": ", value, "\r\n"]);
        }
        let length = self.body.len().to_string();
        head.extend(["User-Agent: walrelay\r\nContent-Length: ", &length, "\r\nConnection: close\r\n\r\n"]);
        stream.write_all(head.as_bytes())?;
        stream.write_all(self.body)?;
        stream.flush()?;
        match stream.take(LARGEST).read_to_end(answer) {
            // Servers often close without the end of the session; the length says whether all is there.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(()),
            read => read.map(drop),
        }
    }
}

impl Answer<Vec<u8>> {
    fn read(bytes: &[u8]) -> Option<Self> {
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
        let (head, body) = bytes.split_at_checked(end)?;
        let (head, mut body) = (std::str::from_utf8(head).ok()?, body.get(4..)?);
        let mut lines = head.split("\r\n");
        let status = lines.next()?.strip_prefix("HTTP/1.")?.split(' ').nth(1)?.parse().ok()?;
        let header = |wanted: &str| {
            let named = |line: &&str| line.split_once(':').is_some_and(|(name, _)| name.eq_ignore_ascii_case(wanted));
            head.split("\r\n").find(named).and_then(|line| line.split_once(':')).map(|(_, value)| value.trim())
        };
        let body = if header("transfer-encoding").is_some_and(|how| how.eq_ignore_ascii_case("chunked")) {
            unchunked(body)?
        } else {
            if let Some(length) = header("content-length") {
                body = body.get(..length.parse().ok()?)?;
            }
            body.to_vec()
        };
        Some(Self { status, body })
    }
}

fn unchunked(mut rest: &[u8]) -> Option<Vec<u8>> {
    let mut all = Vec::new();
    loop {
        let end = rest.windows(2).position(|two| two == b"\r\n")?;
        let size = std::str::from_utf8(rest.get(..end)?).ok()?.split(';').next()?;
        let size = usize::from_str_radix(size.trim(), 16).ok()?;
        let begin = end + 2;
        if size == 0 {
            return Some(all);
        }
        all.extend_from_slice(rest.get(begin..begin.checked_add(size)?)?);
        rest = rest.get(begin + size + 2..)?;
    }
}

fn reach(url: &Url<'_>) -> io::Result<TcpStream> {
    let mut failure = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in (url.host, url.port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, REACHED_WITHIN) {
            Ok(socket) => return Ok(socket),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

fn client_config(ca: Option<&Path>) -> io::Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(match ca {
        Some(path) => authorities(path)?,
        None => rustls_native_certs::load_native_certs().certs,
    });
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    Ok(config.map_err(io::Error::other)?.with_root_certificates(roots).with_no_client_auth())
}

fn authorities(path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let unusable =
        |error: pem::Error| io::Error::new(io::ErrorKind::InvalidData, format!("{}: {error}", path.display()));
    CertificateDer::pem_file_iter(path).map_err(unusable)?.map(|found| found.map_err(unusable)).collect()
}

/// A socket that waits for nothing beyond the deadline.
struct Limited {
    socket: TcpStream,
    deadline: Instant,
}

impl Limited {
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
    }
}

impl Read for Limited {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        self.socket.set_read_timeout(self.left()?)?;
        self.socket.read(room)
    }
}

impl Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.set_write_timeout(self.left()?)?;
        self.socket.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_taken_apart() {
        let url = Url::of("http://[fd00:ec2::23]:81/v1/credentials?a=b").unwrap();
        assert_eq!(
            (url.host, url.port, url.authority, url.path),
            ("fd00:ec2::23", 81, "[fd00:ec2::23]:81", "/v1/credentials?a=b")
        );
        let url = Url::of("https://sts.eu-west-1.amazonaws.com").unwrap();
        assert_eq!((url.is_https, url.port, url.path), (true, 443, ""));
        for text in ["", "ftp://a/", "http://", "http://u@a/", "http://a:x/", "http://a/b c", "http://a/\r\nX: y"] {
            assert_eq!(Url::of(text), None, "{text}");
        }
    }

    #[test]
    fn an_answer_is_read_with_a_length_in_chunks_or_to_its_end() {
        for text in [
            "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhellomore",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x=y\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",
            "HTTP/1.0 200 OK\r\n\r\nhello",
        ] {
            let answer = Answer::read(text.as_bytes()).unwrap();
            assert_eq!((answer.status, answer.body.as_slice()), (200, b"hello".as_slice()), "{text}");
        }
        for text in [
            "",
            "SSH-2.0\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhello",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffff\r\nhe",
        ] {
            assert!(Answer::read(text.as_bytes()).is_none(), "{text}");
        }
    }
}
