//! Decides whether a request on a loopback listener was meant for this machine.
//!
//! In: a request. Out: whether to answer it, and the answer that refuses it. After its page was loaded, a website can change its name's
//! address to 127.0.0.1 (DNS rebinding). The browser then lets the page read the answers of this listener. But such a request has the
//! website's name in `Host`.
//! Specification: RFC 9110, 7.2 and 15.5.20.

use super::{Reply, plain};
use hyper::header::HOST;
use hyper::{Request, StatusCode};
use std::net::{Ipv4Addr, Ipv6Addr};

/// Whether `Host` is `localhost` or an IP literal, and also the request's own address if it has one. A request of HTTP/1.0 may have no
/// `Host`. No browser sends such a request.
pub(super) fn is_of_this_machine<B>(request: &Request<B>) -> bool {
    let mut hosts = request.headers().get_all(HOST).iter();
    let are_hosts = hosts.all(|value| value.to_str().is_ok_and(|text| is_local(without_port(text))));
    are_hosts && request.uri().host().is_none_or(is_local)
}

/// The answer to all other requests.
pub(super) fn refusal() -> Reply {
    plain(StatusCode::MISDIRECTED_REQUEST, "this listener is on loopback: use localhost or an IP address in the URL\n")
}

fn without_port(authority: &str) -> &str {
    match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => authority,
    }
}

fn is_local(host: &str) -> bool {
    let v6 = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    host.eq_ignore_ascii_case("localhost")
        || host.parse::<Ipv4Addr>().is_ok()
        || v6.is_some_and(|address| address.parse::<Ipv6Addr>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(host: Option<&str>, address: &str) -> Request<()> {
        let builder = Request::builder().uri(address);
        host.map_or_else(Request::builder, |host| builder.header(HOST, host)).uri(address).body(()).unwrap()
    }

    #[test]
    fn localhost_and_ip_literals_are_this_machine_and_other_names_are_not() {
        for host in ["localhost", "LocalHost:9464", "127.0.0.1", "127.0.0.1:9464", "10.1.2.3:80", "[::1]", "[::1]:9464"]
        {
            assert!(is_of_this_machine(&request(Some(host), "/")), "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:9464",
            "localhost.evil.example",
            "127.0.0.1.evil.example:9464",
            "",
            "::1",
            "[::1",
            "[evil.example]",
            "localhost:9464:80",
            "[::1]evil.example",
        ] {
            assert!(!is_of_this_machine(&request(Some(host), "/")), "{host}");
        }
        assert!(is_of_this_machine(&request(None, "/")));
        assert!(!is_of_this_machine(&request(Some("localhost"), "http://evil.example/")));
        assert!(is_of_this_machine(&request(Some("localhost"), "http://localhost:9464/")));
    }

    #[test]
    fn each_of_several_hosts_counts() {
        let mut request = request(Some("localhost"), "/");
        request.headers_mut().append(HOST, "evil.example".parse().unwrap());
        assert!(!is_of_this_machine(&request));
    }
}
