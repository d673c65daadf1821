//! Serves connections. If there are too many, ends one of them.
//!
//! In: accepted connections, an answer for a request. Out: one answer for each connection.
//! Invariants: at most [`HttpLimits::connections`] are open. A client has [`HttpLimits::head`] to send the head of its request, and
//! [`HttpLimits::life`] until it has read the answer. If the limit is reached, a new connection ends the oldest one that has not sent
//! its head, or if all have sent it, the oldest of all. So clients that send nothing, or half a request, cannot keep an orchestrator's
//! probe out. This file does not know paths.

use super::{HttpLimits, MAX_HEAD_BYTES, Reply};
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};

/// The order in which connections are ended: first those whose head has not come, then by the connection's number.
type ConnectionRank = (bool, u64);

/// The connections of all listeners.
#[derive(Debug)]
pub(super) struct Connections {
    limits: HttpLimits,
    free: Arc<Semaphore>,
    open: Mutex<OpenConnections>,
}

#[derive(Debug, Default)]
struct OpenConnections {
    /// The number of connections accepted so far.
    accepted: u64,
    tasks: BTreeMap<ConnectionRank, AbortHandle>,
}

impl Connections {
    pub(super) fn new(limits: HttpLimits) -> Self {
        Self { limits, free: Arc::new(Semaphore::new(limits.connections)), open: Mutex::default() }
    }

    /// Serves `stream` in a task of `tasks`, once a connection may be added.
    pub(super) async fn add<S, A>(self: &Arc<Self>, stream: S, answer: A, tasks: &mut JoinSet<()>)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        A: Fn(&Request<Incoming>) -> Reply + Send + Sync + 'static,
    {
        if self.free.available_permits() == 0 {
            self.end_one();
        }
        let Ok(permit) = Arc::clone(&self.free).acquire_owned().await else { return };
        let mut open = self.open();
        open.accepted += 1;
        let number = open.accepted;
        let connection = ServedConnection { of: Arc::clone(self), number, _permit: permit };
        let task = tasks.spawn(connection.converse(stream, answer));
        open.tasks.insert((false, number), task);
    }

    /// Waits until no connection is open.
    pub(super) async fn all_ended(&self) {
        let all = u32::try_from(self.limits.connections).unwrap_or(u32::MAX);
        drop(self.free.acquire_many(all).await);
    }

    fn end_one(&self) {
        let first = self.open().tasks.pop_first();
        if let Some((_, task)) = first {
            task.abort();
        }
    }

    fn head_is_there(&self, number: u64) {
        let mut open = self.open();
        if let Some(task) = open.tasks.remove(&(false, number)) {
            open.tasks.insert((true, number), task);
        }
    }

    fn is_without_head(&self, number: u64) -> bool {
        self.open().tasks.contains_key(&(false, number))
    }

    fn open(&self) -> MutexGuard<'_, OpenConnections> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One connection. It counts until it is dropped.
struct ServedConnection {
    of: Arc<Connections>,
    number: u64,
    _permit: OwnedSemaphorePermit,
}

impl ServedConnection {
    /// Reads one request, and sends one answer.
    async fn converse<S, A>(self, stream: S, answer: A)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        A: Fn(&Request<Incoming>) -> Reply + Send + Sync + 'static,
    {
        let HttpLimits { head, life, .. } = self.of.limits;
        let service = service_fn(|request: Request<Incoming>| {
            self.of.head_is_there(self.number);
            let reply = answer(&request);
            async move { Ok::<_, Infallible>(reply) }
        });
        let serve = http1::Builder::new()
            .keep_alive(false)
            .max_buf_size(MAX_HEAD_BYTES)
            .serve_connection(TokioIo::new(stream), service);
        let no_head = async {
            sleep(head).await;
            if !self.of.is_without_head(self.number) {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            _whole_or_broken = timeout(life, serve) => {}
            () = no_head => {}
        }
    }
}

impl Drop for ServedConnection {
    fn drop(&mut self) {
        let mut open = self.of.open();
        drop((open.tasks.remove(&(false, self.number)), open.tasks.remove(&(true, self.number))));
    }
}
