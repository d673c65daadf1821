//! The HTTP server: metrics, health and a small page about a running relay.
//!
//! In: addresses, the figures. Out: `/`, `/metrics`, `/livez` (also `/healthz`), `/readyz`, `/status`. The server changes nothing, and
//! reads no request body.
//! Invariant: the cost of a client is limited. A connection has one request, whose head is limited in bytes and time, and the
//! connection ends after [`HttpLimits::life`]. Clients that are slow on purpose cannot keep others out: `connections.rs` decides which
//! connection is ended. A listener on loopback answers only requests for this machine, so that no website can read it through a
//! browser: `host.rs`. The server runs on the control thread, so the relay thread never waits for it.
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
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// The most connections that wait in the kernel.
const BACKLOG: u32 = 128;

/// The largest head of a request, in bytes.
const MAX_HEAD_BYTES: usize = 16 * 1024;

/// The pause after an accept that failed because there were no descriptors or no memory. Without it, the attempts would use the CPU.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How long open requests may take after the server was asked to stop.
const STOP_GRACE: Duration = Duration::from_millis(200);

/// The addresses to listen at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// These addresses. If a port is 0, the kernel chooses one.
    These(Vec<SocketAddr>),
    /// This port of all addresses of the machine, IPv4 and IPv6.
    Every(u16),
}

/// Limits on clients.
#[derive(Debug, Clone, Copy)]
pub struct HttpLimits {
    /// The most connections at a time.
    pub connections: usize,
    /// The time from accepting a connection to the end of the request's head.
    pub head: Duration,
    /// The time from accepting a connection to its end.
    pub life: Duration,
}

impl Default for HttpLimits {
    fn default() -> Self {
        Self { connections: 64, head: Duration::from_secs(2), life: Duration::from_secs(10) }
    }
}

/// The server cannot listen at an address.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen for HTTP at {address}: choose another port with --http :PORT, or turn it off with --http off")]
pub struct BindError {
    /// The address.
    pub address: SocketAddr,
    /// The system's reason.
    pub source: io::Error,
}

/// A server that has bound its ports, and does not serve yet. So a port that is in use is reported before anything else begins.
#[derive(Debug)]
pub struct HttpServer {
    listeners: Vec<TcpListener>,
    addresses: Vec<SocketAddr>,
    limits: HttpLimits,
}

impl HttpServer {
    /// Binds to `address`. If it has several addresses, those that this machine does not have are left out, but at least one must be
    /// left. (`localhost` has an IPv6 address even on machines without IPv6.)
    ///
    /// # Errors
    /// An address is in use or not allowed, or this machine has none of them.
    pub fn bind(address: &Address, limits: HttpLimits) -> Result<Self, BindError> {
        let listeners = match address {
            Address::These(addresses) => listen_at_these(addresses)?,
            Address::Every(port) => vec![listen_everywhere(*port)?],
        };
        let addresses = listeners.iter().filter_map(|listener| listener.local_addr().ok()).collect();
        Ok(Self { listeners, addresses, limits })
    }

    /// The addresses, with the ports that the kernel chose.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Answers requests until `stop` ends.
    pub async fn serve(self, metrics: Arc<Metrics>, stop: impl Future<Output = ()>) {
        let site = Arc::new(AnswerData::new(metrics));
        let connections = Arc::new(Connections::new(self.limits));
        let mut acceptors = JoinSet::new();
        for listener in self.listeners {
            acceptors.spawn(accept_all(listener, Arc::clone(&site), Arc::clone(&connections)));
        }
        acceptors.spawn(watch(site));
        stop.await;
        // To drop the acceptors drops their requests, too. So open requests get a moment to end.
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

/// One socket for IPv4 and IPv6, or one for IPv4 if the kernel has no IPv6.
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

/// Whether this machine does not have the address, or its family.
fn not_here(error: &io::Error) -> bool {
    let no_family = rustix::io::Errno::AFNOSUPPORT.raw_os_error();
    error.kind() == io::ErrorKind::AddrNotAvailable || error.raw_os_error() == Some(no_family)
}

async fn accept_all(listener: TcpListener, site: Arc<AnswerData>, connections: Arc<Connections>) {
    let is_loopback = listener.local_addr().is_ok_and(|address| address.ip().is_loopback());
    let mut tasks = JoinSet::new();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                connections.add(stream, answering(Arc::clone(&site), is_loopback), &mut tasks).await;
            }
            Err(error) => {
                tracing::warn!(%error, "HTTP connection not accepted");
                sleep(ACCEPT_PAUSE).await;
            }
        }
        while tasks.try_join_next().is_some() {}
    }
}

/// Serves one client, whose requests come from `stream`, as a listener does. `is_loopback`: as one on loopback.
pub async fn serve_stream<S>(metrics: Arc<Metrics>, stream: S, is_loopback: bool)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let answer = answering(Arc::new(AnswerData::new(metrics)), is_loopback);
    let mut tasks = JoinSet::new();
    Arc::new(Connections::new(HttpLimits::default())).add(stream, answer, &mut tasks).await;
    tasks.join_all().await;
}

fn answering(site: Arc<AnswerData>, is_loopback: bool) -> impl Fn(&Request<Incoming>) -> Reply + Send + Sync + 'static {
    move |request| {
        if is_loopback && !host::is_of_this_machine(request) { host::refusal() } else { site.answer(request) }
    }
}

async fn watch(site: Arc<AnswerData>) {
    loop {
        site.read(Moment::now());
        sleep(history::READ_EVERY).await;
    }
}

type Reply = Response<Full<Bytes>>;

/// The values that answers are made from.
#[derive(Debug)]
struct AnswerData {
    metrics: Arc<Metrics>,
    history: Mutex<History>,
    /// The page's `Content-Security-Policy`.
    policy: Option<HeaderValue>,
}

impl AnswerData {
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

    /// All figures are from one reading, so the present ones fit the chart.
    fn page(&self, now: Moment) -> Reply {
        self.read(now);
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

    fn read(&self, now: Moment) {
        self.history().read(&self.metrics, now);
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
