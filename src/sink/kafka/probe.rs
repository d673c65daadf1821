//! Whether the brokers can be reached at the addresses that they advertise.
//!
//! A client is sent from the bootstrap address to the advertised ones; behind NAT or in containers these are often names that
//! mean nothing to it, and all it sees is silence.

use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

/// How long one address is tried.
const PATIENCE: Duration = Duration::from_secs(1);

/// A warning for each of `advertised` (`host:port`) that cannot be reached.
pub(super) fn unreachable(bootstrap: &str, advertised: &[String]) -> Vec<String> {
    advertised
        .iter()
        .filter(|address| !bootstrap.split(',').any(|known| known.trim() == address.as_str()))
        .filter_map(|address| Some((address, connect(address).err()?)))
        .map(|(address, error)| {
            format!(
                "Kafka at {bootstrap} answers, but a broker advertises {address}, which cannot be reached from here ({error}): set advertised.listeners on the broker"
            )
        })
        .collect()
}

fn connect(address: &str) -> std::io::Result<()> {
    let mut failure = std::io::Error::new(std::io::ErrorKind::NotFound, "the name has no address");
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(_) => return Ok(()),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn an_advertised_address_that_nobody_listens_at_is_named_with_the_one_that_answered() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let open = listener.local_addr().unwrap().to_string();
        let gone = { TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string() };
        let warnings = unreachable("kafka:9092", &[open, gone.clone()]);
        assert_eq!(warnings.len(), 1);
        assert!(warnings[0].contains("kafka:9092") && warnings[0].contains(&gone), "{warnings:?}");
    }

    #[test]
    fn the_bootstrap_address_itself_is_not_tried_again() {
        assert_eq!(unreachable("127.0.0.1:1, 127.0.0.1:2", &["127.0.0.1:2".to_owned()]), Vec::<String>::new());
    }
}
