//! Where a node of a cluster sends a command to: the errors MOVED and ASK.
//!
//! In: an error. Out: the slot and the node that it names. Pure.
//! Specification: Redis, "Redis cluster specification", section "Redirection and resharding".

use super::resp::code;
use crate::sink::lanes::address::Server;

/// What MOVED or ASK says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Redirect {
    /// It is to be asked once, behind ASKING: the slot is on its way there. Else it has the slot.
    pub(super) ask: bool,
    pub(super) slot: u16,
    /// Empty: the same as of the node that says so. `?`: that node does not know it.
    pub(super) host: String,
    pub(super) port: u16,
}

impl Redirect {
    /// Takes it apart; `None`: it is another error.
    pub(super) fn of(error: &[u8]) -> Option<Self> {
        let ask = match code(error) {
            b"MOVED" => false,
            b"ASK" => true,
            _ => return None,
        };
        let mut words = std::str::from_utf8(error).ok()?.split(' ').skip(1);
        let slot = words.next()?.parse().ok()?;
        // An address of IPv6 has no brackets here.
        let (host, port) = words.next()?.rsplit_once(':')?;
        Some(Self { ask, slot, host: host.to_owned(), port: port.parse().ok()? })
    }

    /// The node, as the one of this host says it; `None`: it does not know.
    pub(super) fn server(&self, said_by: &str) -> Option<Server> {
        server(&self.host, self.port, said_by)
    }
}

/// The node that goes by this host in what the node of host `said_by` says; `None`: it does not know.
pub(super) fn server(host: &str, port: u16, said_by: &str) -> Option<Server> {
    let host = match host {
        "?" => return None,
        "" => said_by,
        host => host,
    };
    Some(Server { host: host.to_owned(), port })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redirect_names_the_slot_and_the_node() {
        let at = |error: &str| {
            let redirect = Redirect::of(error.as_bytes())?;
            Some((redirect.ask, redirect.slot, redirect.server("seed").map(|server| server.address())))
        };
        assert_eq!(at("MOVED 3999 10.0.0.1:6381"), Some((false, 3999, Some("10.0.0.1:6381".to_owned()))));
        assert_eq!(at("ASK 7 node-2.cache:6379"), Some((true, 7, Some("node-2.cache:6379".to_owned()))));
        assert_eq!(at("MOVED 1 ::1:6379"), Some((false, 1, Some("::1:6379".to_owned()))));
        assert_eq!(at("MOVED 1 :6380"), Some((false, 1, Some("seed:6380".to_owned()))));
        assert_eq!(at("MOVED 1 ?:6380"), Some((false, 1, None)));
        for error in ["TRYAGAIN Multiple keys", "MOVED", "MOVED x h:1", "MOVED 1 h", "ASK 1 h:x"] {
            assert_eq!(at(error), None, "{error}");
        }
    }
}
