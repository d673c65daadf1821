//! HTTP: metrics, health and a small page, for people and machines that look at a running relay.
//!
//! In: addresses, the figures. Out: `/`, `/metrics`, `/livez` (also `/healthz`), `/readyz`, `/status`. It changes nothing
//! and reads no request body.
//! Invariant: a client costs little and not for long. A connection carries one request, whose head is bounded in bytes and time, and it ends
//! after [`HttpLimits::life`]. Clients that are slow on purpose cannot keep others out: `connections.rs` says which connection ends when all
//! places are taken.
//! A listener on loopback answers only requests for this machine, so that no website can read it through a browser: `host.rs`.
//! It runs on the control thread's runtime, so the relay thread never waits for it.
//! Specification: RFC 9110, RFC 9112.

mod accept;
mod address;
mod connections;
mod history;
mod host;
mod page;

use crate::metrics::{Metrics, Moment};
pub use address::HttpAddress;
pub(crate) use address::nearest_http;
use connections::Connections;
use history::History;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{
    ACCEPT, ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, X_CONTENT_TYPE_OPTIONS,
};
use hyper::http::HeaderValue;
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// Connections that the kernel keeps waiting.
const BACKLOG: u32 = 128;

/// Largest request head, in bytes.
const MAX_HEAD_BYTES: usize = 16 * 1024;

/// Pause after an accept that failed for want of descriptors or memory: trying at once would only burn the CPU.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How long requests under way may take once the server is asked to stop.
const STOP_GRACE: Duration = Duration::from_millis(200);

/// Where to listen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// At each of these; a port of 0 is chosen by the kernel.
    These(Vec<SocketAddr>),
    /// At this port of every address of the machine, IPv4 and IPv6.
    Every(u16),
}

/// Limits on the connections and time that clients may take.
#[derive(Debug, Clone, Copy)]
pub struct HttpLimits {
    /// Connections served at a time.
    pub connections: usize,
    /// From accepting a connection to the end of the request's head.
    pub head: Duration,
    /// From accepting a connection to its end.
    pub life: Duration,
}

impl Default for HttpLimits {
    fn default() -> Self {
        Self { connections: 64, head: Duration::from_secs(2), life: Duration::from_secs(10) }
    }
}

/// The address cannot be listened at.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen for HTTP at {address}: choose another port with --http :PORT, or turn it off with --http off")]
pub struct BindError {
    /// The address that was refused.
    pub address: SocketAddr,
    /// The system's reason.
    pub source: io::Error,
}

/// A server whose ports are bound and that does not serve yet, so that a taken port shows before anything else begins.
#[derive(Debug)]
pub struct Server {
    listeners: Vec<TcpListener>,
    addresses: Vec<SocketAddr>,
    limits: HttpLimits,
}

impl Server {
    /// Binds to `address`. Of several, those that this machine does not have are left out (`localhost` names an IPv6
    /// address also where there is none), as long as one is left.
    ///
    /// # Errors
    /// An address is taken or not allowed, or none exists here.
    pub fn bind(address: &Address, limits: HttpLimits) -> Result<Self, BindError> {
        let listeners = match address {
            Address::These(addresses) => listen_at_these(addresses)?,
            Address::Every(port) => vec![listen_everywhere(*port)?],
        };
        let addresses = listeners.iter().filter_map(|listener| listener.local_addr().ok()).collect();
        Ok(Self { listeners, addresses, limits })
    }

    /// Where it listens, with the ports that the kernel chose.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Answers requests until `stop` is done.
    pub async fn serve(self, metrics: Arc<Metrics>, stop: impl Future<Output = ()>) {
        let site = Arc::new(Site::new(metrics));
        let connections = Arc::new(Connections::new(self.limits));
        let mut acceptors = JoinSet::new();
        for listener in self.listeners {
            acceptors.spawn(accept_all(listener, Arc::clone(&site), Arc::clone(&connections)));
        }
        acceptors.spawn(watch(site));
        stop.await;
        // Dropping the acceptors drops the requests with them: those under way get a moment to end.
        let _whether_all_ended = timeout(STOP_GRACE, connections.all_ended()).await;
    }
}

fn listen_at_these(addresses: &[SocketAddr]) -> Result<Vec<TcpListener>, BindError> {
    let mut listeners = Vec::with_capacity(addresses.len());
    let mut absent = None;
    for &address in addresses {
        match listen(address) {
            Ok(listener) => listeners.push(listener),
            Err(source) if not_here(&source) => absent = Some(BindError { address, source }),
            Err(source) => return Err(BindError { address, source }),
        }
    }
    match absent {
        Some(error) if listeners.is_empty() => Err(error),
        _ => Ok(listeners),
    }
}

/// One socket for both families, or one for IPv4 where the kernel has no IPv6.
fn listen_everywhere(port: u16) -> Result<TcpListener, BindError> {
    listen(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port))).or_else(|reason| {
        let address = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
        let again = if not_here(&reason) { listen(address) } else { Err(reason) };
        again.map_err(|source| BindError { address, source })
    })
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv6() { TcpSocket::new_v6()? } else { TcpSocket::new_v4()? };
    socket.set_reuseaddr(true)?;
    if address.ip() == Ipv6Addr::UNSPECIFIED {
        rustix::net::sockopt::set_ipv6_v6only(&socket, false)?;
    }
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Whether this machine lacks the address, or its whole family.
fn not_here(error: &io::Error) -> bool {
    let no_family = rustix::io::Errno::AFNOSUPPORT.raw_os_error();
    error.kind() == io::ErrorKind::AddrNotAvailable || error.raw_os_error() == Some(no_family)
}

async fn accept_all(listener: TcpListener, site: Arc<Site>, connections: Arc<Connections>) {
    let is_loopback = listener.local_addr().is_ok_and(|address| address.ip().is_loopback());
    let mut tasks = JoinSet::new();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let site = Arc::clone(&site);
                let answer = move |request: &Request<Incoming>| {
                    if is_loopback && !host::is_of_this_machine(request) {
                        host::refusal()
                    } else {
                        site.answer(request)
                    }
                };
                connections.add(stream, answer, &mut tasks).await;
            }
            Err(error) => {
                tracing::warn!(%error, "HTTP connection not accepted");
                sleep(ACCEPT_PAUSE).await;
            }
        }
        while tasks.try_join_next().is_some() {}
    }
}

async fn watch(site: Arc<Site>) {
    loop {
        site.look(Moment::now());
        sleep(history::LOOK_EVERY).await;
    }
}

type Reply = Response<Full<Bytes>>;

/// The data that answers are made from.
#[derive(Debug)]
struct Site {
    metrics: Arc<Metrics>,
    history: Mutex<History>,
    /// The page's `Content-Security-Policy`.
    policy: Option<HeaderValue>,
}

impl Site {
    fn new(metrics: Arc<Metrics>) -> Self {
        Self { metrics, history: Mutex::default(), policy: HeaderValue::try_from(page::policy()).ok() }
    }

    fn answer(&self, request: &Request<Incoming>) -> Reply {
        let (method, path, headers) = (request.method(), request.uri().path(), request.headers());
        let known = ["/", "/metrics", "/livez", "/healthz", "/readyz", "/status"].contains(&path);
        if known && method != Method::GET && method != Method::HEAD {
            return with(plain(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n"), ALLOW, "GET, HEAD");
        }
        let now = Moment::now();
        match path {
            "/" => self.page(now),
            "/metrics" => self.metrics(headers, now),
            "/livez" | "/healthz" => health(self.metrics.live(now.instant), "live\n"),
            "/readyz" => health(self.metrics.ready(now.instant), "ready\n"),
            "/status" => response(StatusCode::OK, "application/json", self.metrics.status_json(now.instant)),
            _ => plain(StatusCode::NOT_FOUND, "there are /, /metrics, /livez, /readyz and /status\n"),
        }
    }

    /// All of its figures are of one look, so that none exceeds its own chart.
    fn page(&self, now: Moment) -> Reply {
        self.look(now);
        let text = page::render(&self.metrics, &self.history(), now);
        let mut page = response(StatusCode::OK, "text/html; charset=utf-8", text);
        if let Some(policy) = &self.policy {
            page.headers_mut().insert(CONTENT_SECURITY_POLICY, policy.clone());
        }
        page
    }

    fn metrics(&self, headers: &HeaderMap, now: Moment) -> Reply {
        let format = accept::format(headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok()));
        response(StatusCode::OK, format.content_type(), self.metrics.render(format, now))
    }

    fn look(&self, now: Moment) {
        self.history().look(&self.metrics, now);
    }

    fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn health(outcome: Result<(), String>, well: &str) -> Reply {
    match outcome {
        Ok(()) => plain(StatusCode::OK, well),
        Err(reason) => plain(StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
    }
}

fn plain(status: StatusCode, text: impl Into<String>) -> Reply {
    response(status, "text/plain; charset=utf-8", text.into())
}

fn response(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Reply {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let typed = with(response, CONTENT_TYPE, content_type);
    with(with(typed, CACHE_CONTROL, "no-store"), X_CONTENT_TYPE_OPTIONS, "nosniff")
}

fn with(mut response: Reply, name: HeaderName, value: &'static str) -> Reply {
    response.headers_mut().insert(name, HeaderValue::from_static(value));
    response
}

#[cfg(test)]
mod tests;
