//! [`HttpAddress`]: the address of the HTTP server, as the user gives it.
//!
//! In: a text. Out: a host and a port. The host is not resolved here.

use std::fmt;

/// The address of the HTTP server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpAddress {
    /// A name or an IP address, without brackets. `None`: all addresses of the machine.
    pub host: Option<String>,
    /// The port. 0: any free port.
    pub port: u16,
}

impl HttpAddress {
    /// Parses `host:port`, `:port`, `[v6]:port`. `None`: the text is no address.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (host, port) = text.trim().rsplit_once(':')?;
        let port = port.parse().ok().filter(|_| port.bytes().all(|byte| byte.is_ascii_digit()))?;
        let host = match host.strip_prefix('[') {
            Some(v6) => v6.strip_suffix(']').filter(|v6| v6.parse::<std::net::Ipv6Addr>().is_ok())?,
            None if host.contains(|c: char| c.is_whitespace() || "/:[]@".contains(c)) => return None,
            None => host,
        };
        Some(Self { host: (!host.is_empty()).then(|| host.to_owned()), port })
    }

    /// The address for a client on the same machine. For all addresses, that is loopback.
    pub fn local(&self) -> (&str, u16) {
        match self.host.as_deref() {
            None | Some("0.0.0.0" | "*") => ("127.0.0.1", self.port),
            Some("::") => ("::1", self.port),
            Some(host) => (host, self.port),
        }
    }

    /// The address for a client on this machine, as `host:port`.
    pub(crate) fn of_this_machine(&self) -> String {
        let (host, port) = self.local();
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }
}

impl fmt::Display for HttpAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.as_deref().unwrap_or("") {
            v6 if v6.contains(':') => write!(f, "[{v6}]:{}", self.port),
            host => write!(f, "{host}:{}", self.port),
        }
    }
}

/// The address that was probably meant by a port alone, or by a URL.
pub(crate) fn nearest_http(text: &str) -> Option<String> {
    let text = text.trim().to_ascii_lowercase();
    if text.parse::<u16>().is_ok() {
        return Some(format!("127.0.0.1:{text}"));
    }
    if ["none", "no", "false", "disable", "disabled", "0", ""].contains(&text.as_str()) {
        return Some("off".to_owned());
    }
    let bare = text.trim_start_matches("http://").trim_start_matches("https://");
    let bare = bare.split('/').next().unwrap_or(bare);
    let with_port = if bare.contains(':') { bare.to_owned() } else { format!("{bare}:9464") };
    HttpAddress::parse(&with_port).map(|address| address.to_string())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn http_addresses_have_a_port_and_maybe_a_host() {
        for (text, host, port) in [
            ("127.0.0.1:9464", Some("127.0.0.1"), 9464),
            (":9464", None, 9464),
            ("[::1]:9464", Some("::1"), 9464),
            ("localhost:0", Some("localhost"), 0),
        ] {
            let address = HttpAddress::parse(text).unwrap();
            assert_eq!((address.host.as_deref(), address.port), (host, port), "{text}");
            assert_eq!(address.to_string(), text);
        }
    }

    #[test]
    fn what_is_no_http_address_gets_a_suggestion_where_one_can_be_guessed() {
        for (text, nearest) in [
            ("9464", Some("127.0.0.1:9464")),
            ("localhost", Some("localhost:9464")),
            ("http://localhost:9464/metrics", Some("localhost:9464")),
            ("false", Some("off")),
            ("a:b", None),
            ("::1", None),
            ("a:+1", None),
        ] {
            assert_eq!(HttpAddress::parse(text), None, "{text}");
            assert_eq!(nearest_http(text).as_deref(), nearest, "{text}");
        }
    }

    #[test]
    fn every_address_is_asked_at_loopback() {
        assert_eq!(HttpAddress::parse(":1").unwrap().local(), ("127.0.0.1", 1));
        assert_eq!(HttpAddress::parse("[::]:1").unwrap().local(), ("::1", 1));
        assert_eq!(HttpAddress::parse("db:1").unwrap().local(), ("db", 1));
    }

    proptest! {
        #[test]
        fn no_text_panics(text in any::<String>()) {
            let _read = (HttpAddress::parse(&text), nearest_http(&text));
        }
    }
}
