//! Finds out whether the brokers can be reached at the addresses that they advertise.
//!
//! The bootstrap servers send a client to the advertised addresses. Behind NAT or in containers, these are often names that the client
//! cannot resolve, and it gets no answer.

use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

/// How long one connection may take.
const PATIENCE: Duration = Duration::from_secs(1);

/// A word of the warning, which no other message has.
pub(in crate::sink::kafka) const ADVERTISES: &str = "advertises";

/// A warning for each of `advertised` (`host:port`) that cannot be reached.
pub(in crate::sink::kafka) fn unreachable(bootstrap: &str, advertised: &[String]) -> Vec<String> {
    advertised
        .iter()
        .filter(|address| !is_known(bootstrap, address))
        .filter_map(|address| Some((address, connect(address).err()?)))
        .map(|(address, error)| warning(bootstrap, address, &error))
        .collect()
}

/// The warning, with both addresses.
pub(in crate::sink::kafka) fn warning(bootstrap: &str, address: &str, error: &dyn std::fmt::Display) -> String {
    format!(
        "a broker of Kafka at {bootstrap} {ADVERTISES} {address}, which cannot be reached from here ({error}): \
         set advertised.listeners on the broker if that address is wrong"
    )
}

/// The address and the error in librdkafka's text about a broker that the cluster advertised: `host:port/1: …`. The text about a bootstrap
/// server has `bootstrap` instead of the number.
pub(in crate::sink::kafka) fn advertised(error: &str) -> Option<(&str, &str)> {
    let (name, error) = error.split_once(": ")?;
    let (address, id) = name.rsplit_once('/')?;
    id.bytes().all(|byte| byte.is_ascii_digit()).then_some((address, error))
}

/// `host:port` of a bootstrap server. The setting may have a protocol before it, and may lack the port.
pub(in crate::sink::kafka) fn address(broker: &str) -> String {
    let address = broker.trim().rsplit('/').next().unwrap_or_default();
    let has_port = address.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
    if has_port && !address.ends_with(']') { address.to_owned() } else { format!("{address}:9092") }
}

/// Whether the settings name this address.
pub(in crate::sink::kafka) fn is_known(bootstrap: &str, address: &str) -> bool {
    bootstrap.split(',').any(|known| known.trim().rsplit('/').next() == Some(address))
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
    fn an_error_about_an_advertised_address_is_distinguished_from_one_about_a_bootstrap_address() {
        let refused = "b.internal:9092/17: Connect to ipv4#10.0.0.1:9092 failed: Connection refused";
        assert_eq!(
            advertised(refused),
            Some(("b.internal:9092", "Connect to ipv4#10.0.0.1:9092 failed: Connection refused"))
        );
        assert_eq!(advertised("b:9092/bootstrap: Connect to ipv4#10.0.0.1:9092 failed: Connection refused"), None);
        assert_eq!(advertised("1/1 brokers are down"), None);
        assert!(is_known("SSL://a:1, b:2", "a:1") && is_known("a:1, b:2", "b:2") && !is_known("a:1", "a:11"));
    }

    #[test]
    fn the_bootstrap_address_itself_is_not_tried_again() {
        assert_eq!(unreachable("127.0.0.1:1, 127.0.0.1:2", &["127.0.0.1:2".to_owned()]), Vec::<String>::new());
    }
}
