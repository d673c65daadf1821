//! A proxy before a server that answers messages itself, with an error of the test's choosing, as a quota proxy or a plugin does.
//!
//! In: a server's port, its protocol, a code. Out: a port. As long as there is a code, no message gets through: each is answered with the
//! code, or, where the protocol has no answer to a message, the code closes its channel or its connection. All else passes unchanged. Kafka
//! has [`crate::refuser`], and SQS [`crate::gate`].

mod nats;
mod rabbitmq;
mod redis;

use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::Result;
use parking_lot::Mutex;

use crate::listener::Listener;

/// What the server speaks.
#[derive(Debug, Clone)]
pub enum Protocol {
    /// Redis' protocol. Of the codes, every second one is an error of the code `ERR`, and the others are of a code of their own.
    Redis,
    /// NATS' protocol, with messages to subjects that begin with this.
    Nats(String),
    /// AMQP 0-9-1, where a code closes a channel.
    Channels,
    /// AMQP 0-9-1, where a code closes a connection.
    Connections,
}

/// The proxy; it ends when dropped, with its connections.
#[derive(Debug)]
pub struct Objector {
    shared: Arc<Shared>,
    listener: Listener,
}

#[derive(Debug)]
struct Shared {
    target: u16,
    protocol: Protocol,
    code: Mutex<Option<u16>>,
    refused: AtomicUsize,
    connections: Mutex<Vec<TcpStream>>,
}

impl Objector {
    /// Forwards a free loopback port to the server on that port.
    ///
    /// # Errors
    /// No port can be opened.
    pub fn start(target: u16, protocol: Protocol) -> Result<Self> {
        let shared = Arc::new(Shared {
            target,
            protocol,
            code: Mutex::default(),
            refused: AtomicUsize::default(),
            connections: Mutex::default(),
        });
        let its = Arc::clone(&shared);
        // A client that cannot be served sees its connection closed.
        let listener = Listener::start(move |client| drop(serve(client, &its)))?;
        Ok(Self { shared, listener })
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.listener.port()
    }

    /// From now on messages are refused with this code; `None` ends that.
    pub fn refuse(&self, code: Option<u16>) {
        *self.shared.code.lock() = code;
    }

    /// How many answers with a code there were until now.
    pub fn refused(&self) -> usize {
        self.shared.refused.load(Ordering::SeqCst)
    }
}

impl Drop for Objector {
    fn drop(&mut self) {
        self.listener.close();
        for connection in self.shared.connections.lock().drain(..) {
            drop(connection.shutdown(Shutdown::Both));
        }
    }
}

fn serve(client: TcpStream, shared: &Arc<Shared>) -> Result<()> {
    let server = TcpStream::connect(("127.0.0.1", shared.target))?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    shared.connections.lock().extend([client.try_clone()?, server.try_clone()?]);
    let its = Arc::clone(shared);
    thread::spawn(move || {
        let served = match &its.protocol {
            Protocol::Redis => redis::serve(&client, &server, &its),
            Protocol::Nats(subjects) => nats::serve(&client, &server, subjects, &its),
            Protocol::Channels => rabbitmq::serve(&client, &server, false, &its),
            Protocol::Connections => rabbitmq::serve(&client, &server, true, &its),
        };
        // A connection that breaks is the client's to notice.
        drop(served);
        drop((client.shutdown(Shutdown::Both), server.shutdown(Shutdown::Both)));
    });
    Ok(())
}

impl Shared {
    /// The code of the message that came now, if it is refused.
    fn code(&self) -> Option<u16> {
        *self.code.lock()
    }

    fn count(&self) {
        self.refused.fetch_add(1, Ordering::SeqCst);
    }
}
