//! Messages to a service manager: that the relay is up, what it does, that its loop turns, that it stops.
//!
//! In: the environment that systemd gives a service of `Type=notify`, the figures. Out: datagrams to `NOTIFY_SOCKET`; without
//! one, nothing.
//! Invariant: the watchdog is fed by the same sign of life as `/livez`: a loop that hangs starves it, also when this thread
//! is well.
//! "Ready" is the process, not the stream: a relay that waits for Postgres, for Kafka or for the slot is as it should be, and
//! a start that waited for them would be ended by `TimeoutStartSec`.
//! Specification: sd_notify(3), sd_watchdog_enabled(3).

use crate::metrics::Metrics;
use std::ffi::OsString;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

/// How often the manager is told what the relay does, when no watchdog asks for more.
const STATUS_EVERY: Duration = Duration::from_secs(5);

/// The way to the service manager, if there is one.
#[derive(Debug)]
pub(super) struct Notifier {
    way: Option<(UnixDatagram, SocketAddr)>,
    /// Within this a sign of life is due.
    watchdog: Option<Duration>,
}

impl Notifier {
    /// As systemd's variables say.
    pub(super) fn of_process() -> Self {
        Self::new(&|name| std::env::var_os(name), std::process::id())
    }

    fn new(variable: &dyn Fn(&str) -> Option<OsString>, pid: u32) -> Self {
        let way = variable("NOTIFY_SOCKET").filter(|name| !name.is_empty()).and_then(|name| match reach(&name) {
            Ok(way) => Some(way),
            Err(error) => {
                tracing::warn!(socket = ?name, %error, "cannot notify the service manager through NOTIFY_SOCKET");
                None
            }
        });
        let number = |name| variable(name)?.to_str()?.parse::<u64>().ok();
        let ours = number("WATCHDOG_PID").is_none_or(|of| of == u64::from(pid));
        let watchdog = number("WATCHDOG_USEC").filter(|&micros| micros > 0 && ours).map(Duration::from_micros);
        Self { way, watchdog }
    }

    /// The service is up.
    pub(super) fn ready(&self) {
        self.send("READY=1");
    }

    /// It has been asked to stop, and has this long to do so.
    pub(super) fn stopping(&self, within: Duration) {
        self.send(&format!("STOPPING=1\nEXTEND_TIMEOUT_USEC={}", within.as_micros()));
    }

    /// Reports what the relay does, and feeds the watchdog, until the process ends.
    pub(super) async fn tend(&self, metrics: &Metrics) {
        if self.way.is_none() {
            return std::future::pending().await;
        }
        // Two signs may get lost before the third is missed.
        let every = self.watchdog.map_or(STATUS_EVERY, |within| STATUS_EVERY.min(within / 3));
        loop {
            self.send(&self.sign(metrics, Instant::now()));
            tokio::time::sleep(every).await;
        }
    }

    /// One message: the state, and the watchdog's food while the loop turns.
    fn sign(&self, metrics: &Metrics, now: Instant) -> String {
        let words = metrics.state().sentence();
        let reason = metrics.ready(now).err().map(|reason| format!(" {}", reason.replace('\n', " ")));
        let status = format!("STATUS={words}{}", reason.unwrap_or_default());
        match (self.watchdog, metrics.live(now)) {
            (Some(_), Ok(())) => format!("{status}\nWATCHDOG=1"),
            (None, _) | (_, Err(_)) => status,
        }
    }

    fn send(&self, message: &str) {
        let Some((socket, to)) = &self.way else { return };
        if let Err(error) = socket.send_to_addr(message.as_bytes(), to) {
            tracing::debug!(%error, "the service manager does not listen");
        }
    }
}

/// A socket, and the address: a path, or an abstract name behind an `@`.
fn reach(name: &OsString) -> std::io::Result<(UnixDatagram, SocketAddr)> {
    let address = match name.as_bytes().strip_prefix(b"@") {
        Some(abstract_name) => SocketAddr::from_abstract_name(abstract_name)?,
        None => SocketAddr::from_pathname(name)?,
    };
    let socket = UnixDatagram::unbound()?;
    // A manager that does not read must not delay anything.
    socket.set_nonblocking(true)?;
    Ok((socket, address))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::State;

    fn told(listener: &UnixDatagram) -> String {
        let mut buffer = [0; 1024];
        let length = listener.recv(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    }

    fn notifier(socket: &str, more: &[(&str, &str)]) -> Notifier {
        let find = |name: &str| {
            let pair = more.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value));
            pair.or_else(|| (name == "NOTIFY_SOCKET").then(|| socket.into()))
        };
        Notifier::new(&find, 7)
    }

    #[test]
    fn the_manager_hears_of_start_and_stop_by_path_and_by_abstract_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let name = format!("walrelay-test-{}", std::process::id());
        let by_path = UnixDatagram::bind(&path).unwrap();
        let by_name = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        for (listener, socket) in [(by_path, path.to_str().unwrap().to_owned()), (by_name, format!("@{name}"))] {
            let notifier = notifier(&socket, &[]);
            notifier.ready();
            assert_eq!(told(&listener), "READY=1");
            notifier.stopping(Duration::from_secs(9));
            assert_eq!(told(&listener), "STOPPING=1\nEXTEND_TIMEOUT_USEC=9000000");
        }
    }

    #[test]
    fn a_loop_that_hangs_starves_the_watchdog() {
        let start = Instant::now();
        let metrics = Metrics::new("orders", "p", start);
        metrics.set_state(State::Streaming);
        metrics.turned(start);
        metrics.status_sent(start);
        let fed = notifier("@x", &[("WATCHDOG_USEC", "30000000"), ("WATCHDOG_PID", "7")]);
        assert_eq!(fed.sign(&metrics, start), "STATUS=Streaming.\nWATCHDOG=1");
        let hung = fed.sign(&metrics, start + Duration::from_secs(11));
        assert!(
            hung.starts_with("STATUS=Streaming. the last status update was sent") && !hung.contains("WATCHDOG"),
            "{hung}"
        );
        for none in [&[][..], &[("WATCHDOG_USEC", "30000000"), ("WATCHDOG_PID", "8")], &[("WATCHDOG_USEC", "x")]] {
            assert_eq!(notifier("@x", none).sign(&metrics, start), "STATUS=Streaming.", "{none:?}");
        }
    }

    #[test]
    fn without_a_manager_nothing_is_reported() {
        let notifier = Notifier::new(&|_| None, 7);
        assert!(notifier.way.is_none());
        notifier.ready();
    }
}
