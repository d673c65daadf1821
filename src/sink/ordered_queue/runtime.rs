//! [`ClientRuntime`]: a tokio runtime for one client of a library that has tasks of its own. When the runtime is dropped, the client ends.
//!
//! In: the client's futures. Out: their results. A library's client may live on after it is dropped, reconnect by itself and send what
//! waits in its queue. Dropping the runtime ends the client's tasks, and drops its queue and its socket.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

/// How long the runtime's end may take. Its thread waits for nothing.
const ENDED_WITHIN: Duration = Duration::from_secs(1);

/// A runtime with a thread of its own. Dropping it ends all its tasks at once.
pub struct ClientRuntime {
    runtime: Option<Runtime>,
    /// Disconnected once [`Alive`] is dropped.
    ended: Receiver<()>,
}

/// A mark that the library's task keeps beside its socket, so that both are dropped together. The runtime's end waits for that.
pub struct Alive {
    _dropped: Sender<()>,
}

impl ClientRuntime {
    /// Starts a runtime whose thread has this name.
    ///
    /// # Errors
    /// The operating system gives no thread.
    pub fn new(name: &str) -> io::Result<(Self, Alive)> {
        let runtime = Builder::new_multi_thread().worker_threads(1).thread_name(name).enable_all().build()?;
        let (alive, ended) = channel();
        Ok((Self { runtime: Some(runtime), ended }, Alive { _dropped: alive }))
    }

    /// Runs a future on this runtime, and waits for its result.
    ///
    /// # Errors
    /// The future panicked, or the runtime has ended.
    pub async fn run<T: Send + 'static>(&self, future: impl Future<Output = T> + Send + 'static) -> io::Result<T> {
        match &self.runtime {
            Some(runtime) => runtime.spawn(future).await.map_err(io::Error::other),
            None => Err(io::ErrorKind::NotConnected.into()),
        }
    }
}

impl Drop for ClientRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
            let _disconnected = self.ended.recv_timeout(ENDED_WITHIN);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::Failure;
    use crate::sink::ordered_queue::block_on;
    use std::io::Read as _;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn a_client_that_would_live_on_loses_its_socket_with_its_runtime() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        ours.set_nonblocking(true).unwrap();
        let (mut theirs, _) = listener.accept().unwrap();
        block_on(async {
            let (runtime, alive) = ClientRuntime::new("t").unwrap();
            let client = async {
                let socket = tokio::net::TcpStream::from_std(ours).unwrap();
                tokio::spawn(async move {
                    std::future::pending::<()>().await;
                    drop((socket, alive));
                });
            };
            runtime.run(client).await.unwrap();
            drop(runtime);
            // The socket is closed already, so this read returns at once.
            theirs.set_nonblocking(true).unwrap();
            assert_eq!(theirs.read(&mut [0]).unwrap(), 0);
            Ok::<(), Failure>(())
        })
        .unwrap();
    }
}
