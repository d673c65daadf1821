//! Sends one small HTTP request at a time, to a schema registry or to a relay on this machine.
//!
//! In: an address, headers. Out: the status and the body. The library `ureq` follows no redirect here, so that no credentials go to
//! another host. It keeps no connection, and takes no proxy from the environment.
//!
//! Invariant: a request is over within [`WITHIN`], and no answer's body is larger than [`LARGEST`].

use super::fetch_tls::TlsConnector;
use crate::tls::{self, NameRule, Roots, Verifier};
use rustls::ClientConfig;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::{self, PemObject as _};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use ureq::http::Uri;
use ureq::unversioned::resolver::DefaultResolver;
use ureq::unversioned::transport::{Connector as _, TcpConnector};

/// How long a whole request may take.
const WITHIN: Duration = Duration::from_secs(5);

/// The most bytes of an answer's body.
const LARGEST: u64 = 1 << 20;

/// The answer to an HTTP request.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: String,
}

/// Whether a text is an HTTP or HTTPS address without a user.
pub(crate) fn is_address(text: &str) -> bool {
    let Ok(uri) = text.parse::<Uri>() else { return false };
    let port = uri.authority().and_then(|authority| authority.as_str().strip_prefix(authority.host()));
    let is_http = matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some_and(|host| !host.is_empty());
    is_http && port.is_some_and(|port| port.is_empty() || uri.port_u16().is_some())
}

/// Requests `url`, and waits for the answer. `ca`: a PEM file with the authorities to trust instead of the system's.
///
/// # Errors
/// Nobody answers in time, or the answer is no HTTP.
pub(crate) fn get(url: &str, headers: &[(&str, &str)], ca: Option<&Path>) -> io::Result<Answer> {
    let config = ureq::Agent::config_builder()
        .proxy(None)
        .max_redirects(0)
        .max_idle_connections(0)
        .http_status_as_error(false)
        .timeout_global(Some(WITHIN))
        .user_agent("walrelay")
        .build();
    let agent = if url.starts_with("https:") {
        let connector = TcpConnector::default().chain(TlsConnector(Arc::new(trusting(ca)?)));
        ureq::Agent::with_parts(config, connector, DefaultResolver::default())
    } else {
        config.new_agent()
    };
    let mut request = agent.get(url);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let answer = request.call().and_then(|mut answer| {
        let body = answer.body_mut().with_config().limit(LARGEST).read_to_string()?;
        Ok(Answer { status: answer.status().as_u16(), body })
    });
    let timed_out = |error: &ureq::Error| matches!(error, ureq::Error::Timeout(_));
    answer.map_err(|error| if timed_out(&error) { io::ErrorKind::TimedOut.into() } else { error.into_io() })
}

fn trusting(ca: Option<&Path>) -> io::Result<ClientConfig> {
    let roots = match ca {
        Some(path) => Roots::of(authorities(path)?).map_err(|error| unusable(path, &error))?,
        None => Roots::of_machine(),
    };
    let verifier = Verifier::new(Some(roots), NameRule::AlternativeNames);
    tls::client_config(verifier, None).map_err(io::Error::other)
}

fn authorities(path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let unusable = |error: pem::Error| unusable(path, &error);
    CertificateDer::pem_file_iter(path).map_err(unusable)?.map(|found| found.map_err(unusable)).collect()
}

fn unusable(path: &Path, error: &dyn std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::pki_types::PrivateKeyDer;
    use rustls::{ServerConfig, ServerConnection, StreamOwned};
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};
    use std::thread;
    use std::time::Instant;

    #[test]
    fn an_address_is_of_http_and_has_no_user() {
        for text in
            ["http://[fd00:ec2::23]:81/v1/credentials?a=b", "https://sts.eu-west-1.amazonaws.com", "http://h?a=b"]
        {
            assert!(is_address(text), "{text}");
        }
        for text in [
            "",
            "/a",
            "ftp://a/",
            "http://",
            "http://u@a/",
            "http://a:x/",
            "http://a:/",
            "http://a:65536/",
            "http://a/b c",
            "http://a/\r\nX: y",
        ] {
            assert!(!is_address(text), "{text}");
        }
    }

    /// The result of a request to a server that reads the request's head and then does `said`, and that head.
    fn ask(said: impl FnOnce(TcpStream) + Send + 'static) -> (io::Result<Answer>, String) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/a?b=c", listener.local_addr().unwrap());
        let server = thread::spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                client.read_exact(&mut byte).unwrap();
                head.push(byte[0]);
            }
            said(client);
            String::from_utf8(head).unwrap()
        });
        let answer = get(&url, &[("Accept", "application/json")], None);
        (answer, server.join().unwrap())
    }

    /// What comes of a server that says this and closes.
    fn answered(text: &str) -> io::Result<Answer> {
        let text = text.to_owned();
        ask(move |mut client| client.write_all(text.as_bytes()).unwrap()).0
    }

    #[test]
    fn an_answer_is_read_with_a_length_in_chunks_or_to_its_end() {
        for text in [
            "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x=y\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",
            "HTTP/1.0 200 OK\r\n\r\nhello",
        ] {
            let answer = answered(text).unwrap();
            assert_eq!((answer.status, answer.body.as_str()), (200, "hello"), "{text}");
        }
        for text in [
            "",
            "SSH-2.0\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhello",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffff\r\nhe",
        ] {
            let answer = answered(text);
            assert!(answer.is_err(), "{text}: {answer:?}");
        }
    }

    #[test]
    fn an_endless_answer_is_an_error_in_its_head_and_in_its_body() {
        for begin in ["HTTP/1.1 200 OK\r\nX: ", "HTTP/1.1 200 OK\r\n\r\n"] {
            // It ends when the client has closed.
            let (answer, _) = ask(move |mut client| {
                let mut sent = client.write_all(begin.as_bytes());
                while sent.is_ok() {
                    sent = client.write_all(&[b'x'; 4096]);
                }
            });
            let error = answer.unwrap_err();
            assert_ne!(error.kind(), io::ErrorKind::TimedOut, "{begin:?}: {error}");
        }
        let size = usize::try_from(LARGEST).unwrap();
        let whole = answered(&format!("HTTP/1.1 200 OK\r\ncontent-length: {size}\r\n\r\n{}", "x".repeat(size)));
        assert_eq!(whole.unwrap().body.len(), size);
    }

    #[test]
    fn an_answer_that_comes_slowly_is_given_up_as_a_whole() {
        let begun = Instant::now();
        // Each byte comes long before the request's end.
        let (answer, _) = ask(|mut client| {
            let mut sent = client.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 999\r\n\r\n");
            while sent.is_ok() {
                thread::sleep(Duration::from_millis(50));
                sent = client.write_all(b"x");
            }
        });
        assert_eq!(answer.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(begun.elapsed() >= WITHIN);
    }

    #[test]
    fn over_tls_the_authority_of_a_file_is_trusted_and_no_other() {
        let own = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        check_trust(&own.cert.pem(), &own.signing_key.serialize_pem());
    }

    /// As `openssl req -x509` makes it: it says of itself that it is an authority.
    #[test]
    fn over_tls_a_certificate_that_signed_itself_is_trusted_if_the_file_has_it_and_a_key_on_p521_is_taken() {
        check_trust(include_str!("../tls/test_data/p521.crt"), include_str!("../tls/test_data/p521.key"));
    }

    /// A server that shows this certificate is trusted if a file has it, and not otherwise.
    fn check_trust(certificate: &str, key: &str) {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), certificate).unwrap();
        let certificate = CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap();
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
        let config = ServerConfig::builder_with_provider(tls::provider()).with_safe_default_protocol_versions();
        let config = config.unwrap().with_no_client_auth().with_single_cert(vec![certificate], key).unwrap();
        let config = Arc::new(config);
        for ca in [Some(file.path()), None] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let url = format!("https://localhost:{}/", listener.local_addr().unwrap().port());
            let session = ServerConnection::new(Arc::clone(&config)).unwrap();
            let server = thread::spawn(move || {
                let mut stream = StreamOwned::new(session, listener.accept().unwrap().0);
                stream.read_exact(&mut [0; 16])?;
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
            });
            let answer = get(&url, &[], ca);
            assert_eq!(answer.is_ok_and(|answer| answer.body == "ok"), ca.is_some(), "{ca:?}");
            assert_eq!(server.join().unwrap().is_ok(), ca.is_some(), "{ca:?}");
        }
    }

    #[test]
    fn a_request_says_what_it_takes_once_and_a_redirect_is_an_answer() {
        let moved = "HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n";
        let (answer, sent) = ask(|mut client| client.write_all(moved.as_bytes()).unwrap());
        assert_eq!(answer.unwrap().status, 302);
        assert!(sent.starts_with("GET /a?b=c HTTP/1.1\r\n"), "{sent}");
        let sent = sent.to_ascii_lowercase();
        for line in ["accept: application/json\r\n", "user-agent: walrelay\r\n"] {
            assert!(sent.contains(line) && sent.matches("accept:").count() == 1, "{sent}");
        }
        let lines = get("http://127.0.0.1:1/", &[("X-Token", "two\r\nlines")], None);
        assert_ne!(lines.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    }
}
