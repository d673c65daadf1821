//! [`TlsConnector`]: TLS for the library `ureq`, by this program's rules for certificates and keys.
//!
//! In: a configuration of rustls, an open connection. Out: the same connection, encrypted if the address is HTTPS. The library's own connector
//! takes no verifier: it refuses a certificate that signed itself as an authority, which the other destinations trust if a user names it.

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use std::fmt;
use std::io::{self, Read as _, Write as _};
use std::sync::Arc;
use ureq::Error;
use ureq::unversioned::transport::time::{Duration, Instant};
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, Either, LazyBuffers, NextTimeout, Transport, TransportAdapter,
};

/// The shortest time that a socket takes as a limit.
const SHORTEST: std::time::Duration = std::time::Duration::from_millis(1);

/// Encrypts connections to HTTPS addresses.
#[derive(Debug)]
pub(super) struct TlsConnector(pub(super) Arc<ClientConfig>);

impl<In: Transport> Connector<In> for TlsConnector {
    type Out = Either<In, TlsTransport>;

    fn connect(&self, details: &ConnectionDetails<'_>, chained: Option<In>) -> Result<Option<Self::Out>, Error> {
        let Some(transport) = chained else { return Ok(None) };
        if !details.needs_tls() {
            return Ok(Some(Either::A(transport)));
        }
        let host = details.uri.host().unwrap_or_default().trim_matches(['[', ']']);
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        let mut conn = ClientConnection::new(Arc::clone(&self.0), name).map_err(io::Error::other)?;
        let mut sock = TransportAdapter::new(transport.boxed(), details.current_time.clone());
        sock.set_timeout(left(details));
        conn.complete_io(&mut sock)?;
        let buffers = LazyBuffers::new(details.config.input_buffer_size(), details.config.output_buffer_size());
        Ok(Some(Either::B(TlsTransport { buffers, stream: StreamOwned { conn, sock } })))
    }
}

/// The rest of the time for the connection, which runs since before it was opened.
fn left(details: &ConnectionDetails<'_>) -> NextTimeout {
    let (Duration::Exact(all), Instant::Exact(began), Instant::Exact(now)) =
        (details.timeout.after, details.now, (details.current_time)())
    else {
        return details.timeout;
    };
    let left = all.saturating_sub(now.saturating_duration_since(began)).max(SHORTEST);
    NextTimeout { after: Duration::Exact(left), ..details.timeout }
}

/// An encrypted connection.
pub(super) struct TlsTransport {
    buffers: LazyBuffers,
    stream: StreamOwned<ClientConnection, TransportAdapter>,
}

impl fmt::Debug for TlsTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsTransport").finish_non_exhaustive()
    }
}

impl Transport for TlsTransport {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        self.stream.get_mut().set_timeout(timeout);
        let output = self.buffers.output().get(..amount).unwrap_or_default();
        Ok(self.stream.write_all(output)?)
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, Error> {
        self.stream.get_mut().set_timeout(timeout);
        let amount = self.stream.read(self.buffers.input_append_buf())?;
        self.buffers.input_appended(amount);
        Ok(amount > 0)
    }

    fn is_open(&mut self) -> bool {
        self.stream.get_mut().get_mut().is_open()
    }

    fn is_tls(&self) -> bool {
        true
    }
}
