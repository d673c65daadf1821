//! Tests the server as clients see it: over a socket, byte for byte.

use super::*;
use crate::metrics::State;
use std::io::{Read, Write};
use std::net::TcpStream as Client;
use std::thread::{self, JoinHandle};
use std::time::Instant;
use tokio::sync::oneshot;

/// A limit that no test reaches.
const LONG: Duration = Duration::from_mins(1);

/// A server on its own thread, as in the program. It stops when it is dropped.
struct Running {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    fn start(metrics: Metrics, limits: HttpLimits) -> Self {
        let (stop, stopped) = oneshot::channel();
        let (tell, told) = std::sync::mpsc::channel();
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
                let server = HttpServer::bind(&Address::These(vec![loopback]), limits).unwrap();
                tell.send(server.addresses()[0]).unwrap();
                server.serve(Arc::new(metrics), async { stopped.await.unwrap_or_default() }).await;
            });
        });
        Self { address: told.recv().unwrap(), stop: Some(stop), thread: Some(thread) }
    }

    /// A server for a relay that streams.
    fn healthy() -> Self {
        let now = Instant::now();
        let metrics = Metrics::new("orders", "outbox_pub", now);
        metrics.set_state(State::Streaming);
        metrics.turned(now);
        metrics.status_sent(now);
        Self::start(metrics, HttpLimits::default())
    }

    fn connect(&self) -> Client {
        let client = Client::connect(self.address).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        client
    }

    /// Sends `request`, and reads until the server closes the connection.
    fn raw(&self, request: &str) -> String {
        let mut client = self.connect();
        client.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        answer
    }

    fn get(&self, path: &str) -> String {
        self.raw(&format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

#[track_caller]
fn check(answer: &str, status: &str, parts: &[&str]) {
    assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{answer}");
    for part in parts {
        assert!(answer.contains(part), "no {part:?} in {answer}");
    }
}

#[test]
fn every_route_answers() {
    let server = Running::healthy();
    check(&server.get("/"), "200", &["content-type: text/html", "<h1 class=\"good\">Streaming.</h1>"]);
    check(&server.get("/metrics"), "200", &["version=0.0.4", "# TYPE walrelay_events_total counter"]);
    check(&server.get("/livez"), "200", &["live"]);
    check(&server.get("/healthz?verbose"), "200", &["live"]);
    check(&server.get("/readyz"), "200", &["ready"]);
    check(&server.get("/status"), "200", &["content-type: application/json", "\"slot\": \"orders\""]);
    check(&server.get("/nothing"), "404", &["/metrics"]);
}

#[test]
fn a_relay_that_does_not_stream_is_live_and_not_ready_and_says_why() {
    let metrics = Metrics::new("orders", "outbox_pub", Instant::now());
    metrics.set_last_error(Some("connection refused".to_owned()));
    let server = Running::start(metrics, HttpLimits::default());
    check(&server.get("/livez"), "200", &[]);
    check(&server.get("/readyz"), "503", &["connecting: connection refused\n"]);
}

#[test]
fn openmetrics_is_given_to_those_who_ask() {
    let server = Running::healthy();
    let answer = server
        .raw("GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: application/openmetrics-text; version=1.0.0\r\n\r\n");
    check(
        &answer,
        "200",
        &["application/openmetrics-text; version=1.0.0", "# TYPE walrelay_events counter", "# EOF\n"],
    );
}

#[test]
fn head_has_the_head_of_get_and_no_body() {
    let server = Running::healthy();
    let answer = server.raw("HEAD /livez HTTP/1.1\r\nHost: localhost\r\n\r\n");
    check(&answer, "200", &["content-length: 5\r\n"]);
    assert!(answer.ends_with("\r\n\r\n"), "{answer}");
}

#[test]
fn other_methods_are_refused_with_those_that_are_allowed() {
    let server = Running::healthy();
    for method in ["POST", "DELETE", "OPTIONS"] {
        let answer = server.raw(&format!("{method} /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"));
        check(&answer, "405", &["allow: GET, HEAD"]);
    }
}

#[test]
fn a_connection_ends_after_its_answer() {
    check(&Running::healthy().get("/livez"), "200", &["connection: close"]);
}

#[test]
fn an_oversized_head_is_refused() {
    let server = Running::healthy();
    let mut client = server.connect();
    let request = format!("GET /livez HTTP/1.1\r\nHost: localhost\r\nX-Long: {}\r\n\r\n", "a".repeat(1 << 20));
    // The server closes the connection without reading the rest, so the write may fail, too.
    let sent = client.write_all(request.as_bytes());
    let mut answer = Vec::new();
    let read = client.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
    assert!(sent.is_err() || read.is_err() || answer.starts_with(b"HTTP/1.1 431"), "{answer:?}");
    check(&server.get("/livez"), "200", &[]);
}

#[test]
fn what_is_not_http_is_refused() {
    check(&Running::healthy().raw("SSH-2.0-OpenSSH_9.2\r\n\r\n"), "400", &[]);
}

#[test]
fn slow_clients_do_not_block_others() {
    let server = Running::healthy();
    let stalled: Vec<Client> = (0..20).map(|_| server.connect()).collect();
    let (senders, readers) = stalled.split_at(10);
    for mut client in senders {
        client.write_all(b"GET /metrics HT").unwrap();
    }
    for mut client in readers {
        client.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    }
    check(&server.get("/livez"), "200", &[]);
    drop(stalled);
}

#[test]
fn a_client_that_stalls_is_cut_and_gives_its_place_back() {
    let metrics = Metrics::new("orders", "outbox_pub", Instant::now());
    let server = Running::start(metrics, HttpLimits { connections: 2, head: LONG, life: Duration::from_millis(300) });
    let mut silent = server.connect();
    let mut half = server.connect();
    half.write_all(b"GET /livez HTTP/1.1\r\nHost:").unwrap();
    // Both places are in use, so this request is answered only if the server ends another connection.
    check(&server.get("/livez"), "200", &[]);
    is_cut(&mut silent);
    is_cut(&mut half);
}

#[track_caller]
fn is_cut(client: &mut Client) {
    // The end or a reset: the server has closed the connection. A timeout would mean that it has not.
    match client.read(&mut [0; 1]) {
        Ok(0) => {}
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_request_whose_head_takes_too_long_is_cut() {
    let metrics = Metrics::new("orders", "outbox_pub", Instant::now());
    let server = Running::start(metrics, HttpLimits { connections: 2, head: Duration::from_millis(300), life: LONG });
    let (mut silent, mut half) = (server.connect(), server.connect());
    half.write_all(b"GET /livez HTTP/1.1\r\nHost:").unwrap();
    is_cut(&mut silent);
    is_cut(&mut half);
}

#[test]
fn the_oldest_connection_without_a_head_goes_when_there_is_no_place() {
    let metrics = Metrics::new("orders", "outbox_pub", Instant::now());
    let server = Running::start(metrics, HttpLimits { connections: 3, head: LONG, life: LONG });
    let mut halves: Vec<Client> = (0..3).map(|_| server.connect()).collect();
    for half in &mut halves {
        half.write_all(b"GET /livez HTTP/1.1\r\n").unwrap();
    }
    // Each connection takes a place, and frees it.
    for _ in 0..5 {
        check(&server.get("/livez"), "200", &[]);
    }
    is_cut(&mut halves[0]);
    for half in &mut halves[1..] {
        half.write_all(b"\r\n").unwrap();
        let mut answer = String::new();
        half.read_to_string(&mut answer).unwrap();
        check(&answer, "200", &[]);
    }
}

#[test]
fn half_sent_requests_that_are_opened_again_and_again_keep_no_probe_out() {
    let server = Running::healthy();
    let address = server.address;
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let flood = thread::spawn(move || {
        let half_sent = || -> io::Result<Client> {
            let mut client = Client::connect(address)?;
            client.write_all(b"GET /livez HTTP/1.1\r\nHost: local")?;
            client.set_nonblocking(true)?;
            Ok(client)
        };
        let mut clients: Vec<Client> = Vec::new();
        while matches!(stopped.try_recv(), Err(std::sync::mpsc::TryRecvError::Empty)) {
            // A client whose connection was ended connects again.
            clients.retain_mut(
                |client| matches!(client.read(&mut [0; 1]), Err(e) if e.kind() == io::ErrorKind::WouldBlock),
            );
            clients.extend((clients.len()..300).map_while(|_| half_sent().ok()));
        }
    });
    for _ in 0..20 {
        let started = Instant::now();
        check(&server.get("/livez"), "200", &[]);
        assert!(started.elapsed() < Duration::from_secs(3), "a probe waits for 3 s: {:?}", started.elapsed());
    }
    drop(stop);
    flood.join().unwrap();
}

#[test]
fn a_website_whose_name_points_here_is_refused_on_loopback() {
    let server = Running::healthy();
    for path in ["/", "/metrics", "/livez", "/readyz", "/status", "/nothing"] {
        let answer = server.raw(&format!("GET {path} HTTP/1.1\r\nHost: evil.example\r\n\r\n"));
        check(&answer, "421", &["use localhost or an IP address"]);
        assert!(!answer.contains("orders"), "{answer}");
    }
    check(&server.raw(&format!("GET /livez HTTP/1.1\r\nHost: {}\r\n\r\n", server.address)), "200", &[]);
    let without = server.raw("GET /livez HTTP/1.0\r\n\r\n");
    assert!(without.starts_with("HTTP/1.0 200 "), "{without}");
}

#[test]
fn a_taken_port_is_named_with_the_flag_that_fixes_it() {
    let server = Running::healthy();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _inside = runtime.enter();
    for address in [Address::These(vec![server.address]), Address::Every(server.address.port())] {
        let error = HttpServer::bind(&address, HttpLimits::default()).unwrap_err();
        let text = error.to_string();
        assert!(text.contains(&format!(":{}", server.address.port())), "{text}");
        assert!(text.contains("--http :PORT") && text.contains("--http off"), "{text}");
        assert_eq!(error.source.kind(), io::ErrorKind::AddrInUse);
    }
}

#[test]
fn an_address_of_another_machine_is_left_out_if_one_is_left() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _inside = runtime.enter();
    let here = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let elsewhere = SocketAddr::from(([192, 0, 2, 1], 0));
    let server = HttpServer::bind(&Address::These(vec![elsewhere, here]), HttpLimits::default()).unwrap();
    assert_eq!(server.addresses().len(), 1);
    let error = HttpServer::bind(&Address::These(vec![elsewhere]), HttpLimits::default()).unwrap_err();
    assert_eq!(error.address, elsewhere);
}

#[test]
fn every_address_includes_loopback() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _inside = runtime.enter();
    let server = HttpServer::bind(&Address::Every(0), HttpLimits::default()).unwrap();
    let port = server.addresses()[0].port();
    assert!(Client::connect((Ipv4Addr::LOCALHOST, port)).is_ok());
}
