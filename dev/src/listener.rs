//! A loopback port of our own, and what is done with each connection to it.
//!
//! In: a function. Out: a port. The function is called on one thread, for one connection after the other: what takes long needs a thread
//! of its own.

use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context as _, Result};

/// A port that takes connections until the value is dropped.
#[derive(Debug)]
pub(crate) struct Listener {
    port: u16,
    closed: Arc<AtomicBool>,
}

impl Listener {
    /// Opens a free port on 127.0.0.1.
    pub(crate) fn start(mut serve: impl FnMut(TcpStream) + Send + 'static) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).context("cannot listen on 127.0.0.1")?;
        let (port, closed) = (listener.local_addr()?.port(), Arc::new(AtomicBool::new(false)));
        let ends = Arc::clone(&closed);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if ends.load(Ordering::SeqCst) {
                    return;
                }
                serve(client);
            }
        });
        Ok(Self { port, closed })
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Takes no further connection.
    pub(crate) fn close(&self) {
        if !self.closed.swap(true, Ordering::SeqCst) {
            // Wakes the accepting thread.
            drop(TcpStream::connect(("127.0.0.1", self.port)));
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.close();
    }
}
