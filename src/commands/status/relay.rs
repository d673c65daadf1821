//! Asks a relay on this machine over HTTP.
//!
//! In: `host:port` and a path. Out: status and body, or what `/status` says. A relay that does not answer, or reads another slot, has
//! nothing to say here.

use crate::commands::output::{counted, number};
use crate::sink::fetch::{self, Answer};
use serde::{Deserialize, Serialize};
use std::io;

/// A relay's answer to `/status`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::commands) struct RelayReport {
    #[serde(skip_serializing)]
    slot: String,
    pub(in crate::commands) state: String,
    #[serde(default)]
    in_flight_records: u64,
    #[serde(default)]
    pub(super) events_total: u64,
    /// With the hint in it.
    pub(in crate::commands) last_error: Option<String>,
    /// The remedy; a relay of before 0.2.0 does not say it.
    #[serde(default, skip_serializing)]
    pub(in crate::commands) hint: Option<String>,
    #[serde(default)]
    version: String,
}

impl RelayReport {
    /// For people.
    pub(super) fn rows(&self) -> Vec<(&'static str, String)> {
        let state = format!(
            "{}, {} published, {} in flight (walrelay {})",
            self.state,
            counted(self.events_total, "record"),
            number(self.in_flight_records),
            self.version
        );
        let mut rows = vec![("relay", state)];
        rows.extend(self.last_error.as_ref().map(|error| ("last error", error.clone())));
        rows
    }
}

/// Returns the answer of the relay at `address`, if it reads `slot`.
pub(in crate::commands) fn status(address: &str, slot: &str) -> Option<RelayReport> {
    let answer = get(address, "/status").ok()?;
    serde_json::from_str::<RelayReport>(&answer.body).ok().filter(|report| report.slot == slot)
}

/// GETs `path`.
///
/// # Errors
/// Nobody answers there in time, or not in HTTP.
pub(super) fn get(address: &str, path: &str) -> io::Result<Answer> {
    fetch::get(&format!("http://{address}{path}"), &[], None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;

    /// Answers one request with `text`.
    fn server(text: &'static str) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 1024];
            let length = stream.read(&mut request).unwrap();
            assert!(request[..length].starts_with(b"GET /"));
            stream.write_all(text.as_bytes()).unwrap();
        });
        address
    }

    #[test]
    fn an_answer_is_its_status_and_its_body() {
        let address = server("HTTP/1.1 503 Service Unavailable\r\ncontent-length: 9\r\n\r\nblocked\r\n");
        let answer = get(&address, "/readyz").unwrap();
        assert_eq!((answer.status, answer.body.as_str()), (503, "blocked\r\n"));
    }

    #[test]
    fn what_is_not_http_is_an_error_and_no_panic() {
        for text in ["", "\r\n\r\n", "HTTP/1.1\r\n\r\n", "SSH-2.0-x\r\n\r\n", "HTTP/1.1 x\r\n\r\n"] {
            assert!(get(&server(text), "/").is_err(), "{text:?}");
        }
    }

    #[test]
    fn one_record_is_one_record_and_many_are_grouped() {
        let shown = |events: u64| {
            let json = serde_json::json!({"slot": "s", "state": "streaming", "events_total": events, "version": "1"});
            serde_json::from_value::<RelayReport>(json).unwrap().rows()[0].1.clone()
        };
        assert!(shown(1).starts_with("streaming, 1 record published, 0 in flight"));
        assert!(shown(1_234_567).starts_with("streaming, 1,234,567 records published"));
    }

    #[test]
    fn a_relay_of_another_slot_has_nothing_to_say() {
        const STATUS: &str = "HTTP/1.1 200 OK\r\n\r\n{\"slot\":\"orders\",\"state\":\"streaming\",\"in_flight_records\":2,\"events_total\":9,\"last_error\":null,\"version\":\"1.0.0\"}";
        assert_eq!(status(&server(STATUS), "returns"), None);
        let report = status(&server(STATUS), "orders").unwrap();
        assert_eq!(
            report.rows(),
            [("relay", "streaming, 9 records published, 2 in flight (walrelay 1.0.0)".to_owned())]
        );
    }
}
