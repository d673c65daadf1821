//! Connection strings of other libraries, recognized to write out the right form.
//!
//! In: what was given. Out: whose language it is, and the same as a libpq URI with `***` in the password's place.
//! Invariant: the right form holds no password: it is built from parsed pairs, or is a bare template.

use std::fmt::Write as _;
use std::net::Ipv6Addr;

use super::error::Problem;
use super::keywords::{self, Pair};
use super::uri;
use crate::given::percent_encoded;

/// What is written when the string cannot be taken apart.
const TEMPLATE: &str = "postgres://USER@HOST:5432/DBNAME";

/// The error for a string with this scheme (what stands before the first `:`), when it is another library's.
pub(super) fn recognize(scheme: &str, after_scheme: &str) -> Option<Problem> {
    let foreign = |dialect, rest: &str| Some(Problem::Foreign { dialect, right: right_form(rest) });
    if scheme == "jdbc" {
        return foreign("a JDBC URL", after_scheme.split_once(':').map_or("", |(_, rest)| rest));
    }
    match scheme.split_once('+') {
        Some(("postgres" | "postgresql", _)) => foreign("a SQLAlchemy URL, with a driver's name in it", after_scheme),
        _ => None,
    }
}

/// The libpq form of what follows the scheme: `//host/db?…`, or a database alone as JDBC has it.
fn right_form(rest: &str) -> String {
    let parsed = match rest.strip_prefix("//") {
        Some(rest) => uri::parse(rest),
        None => uri::parse(&format!("/{}", rest.trim_start_matches('/'))),
    };
    let written = parsed.ok().filter(|pairs| !pairs.is_empty()).and_then(|pairs| write(&pairs));
    written.unwrap_or_else(|| TEMPLATE.to_owned())
}

/// `None`: a parameter gives a port that is none, or not one for each host; or a value holds NUL, which no value of libpq's may.
fn write(pairs: &[Pair]) -> Option<String> {
    if pairs.iter().any(|pair| pair.value.contains('\0')) {
        return None;
    }
    let of = |name: &str| pairs.iter().rev().find(|pair| pair.keyword == name).map(|pair| pair.value.as_str());
    let mut text = String::from("postgres://");
    if let Some(user) = of("user") {
        text.push_str(&percent_encoded(user));
        text.push_str(if of("password").is_some() { ":***@" } else { "@" });
    }
    text.push_str(&authority(of("host").unwrap_or(""), of("port").unwrap_or(""))?);
    if let Some(dbname) = of("dbname") {
        let _infallible = write!(text, "/{}", percent_encoded(dbname));
    }
    text.push_str(&query(pairs));
    Some(text)
}

/// One port is that of all hosts.
fn authority(hosts: &str, ports: &str) -> Option<String> {
    let (hosts, ports) = (hosts.split(',').collect::<Vec<_>>(), ports.split(',').collect::<Vec<_>>());
    let port = |at: usize| match ports.as_slice() {
        [one] => Some(*one),
        each if each.len() == hosts.len() => each.get(at).copied(),
        _ => None,
    };
    let item = |(at, host): (usize, &&str)| {
        let host = if host.parse::<Ipv6Addr>().is_ok() { format!("[{host}]") } else { percent_encoded(host) };
        match port(at)? {
            "" => Some(host),
            port => port.parse::<u16>().ok().map(|port| format!("{host}:{port}")),
        }
    };
    Some(hosts.iter().enumerate().map(item).collect::<Option<Vec<_>>>()?.join(","))
}

/// Parameters that libpq knows, other libraries' names of them translated; the rest is left out.
fn query(pairs: &[Pair]) -> String {
    let parameters = pairs
        .iter()
        .map(|pair| match pair.keyword.as_str() {
            "ssl" => ("sslmode", pair.value.as_str()),
            "ApplicationName" => ("application_name", pair.value.as_str()),
            keyword => (keyword, pair.value.as_str()),
        })
        .filter(|(name, _)| keywords::is_public(name) && !["user", "host", "port", "dbname"].contains(name))
        .map(|(name, value)| format!("{name}={}", percent_encoded(value)))
        .collect::<Vec<_>>();
    if parameters.is_empty() { String::new() } else { format!("?{}", parameters.join("&")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(given: &str, expected: &str) {
        let (scheme, rest) = given.split_once(':').unwrap();
        match recognize(scheme, rest) {
            Some(Problem::Foreign { right, .. }) => assert_eq!(right, expected, "{given}"),
            other => panic!("{given}: {other:?}"),
        }
    }

    #[test]
    fn jdbc_urls_are_written_as_libpq_has_them() {
        check("jdbc:postgresql://db:5433/shop", "postgres://db:5433/shop");
        check(
            "jdbc:postgresql://db/shop?user=app&password=hunter2&ssl=true&currentSchema=x&ApplicationName=a%20b",
            "postgres://app:***@db/shop?sslmode=require&application_name=a%20b",
        );
        check("jdbc:postgresql://a:1,[::1]:2/shop", "postgres://a:1,[::1]:2/shop");
        check("jdbc:postgresql://a,b/shop?port=1", "postgres://a:1,b:1/shop");
        check("jdbc:postgresql:shop", "postgres:///shop");
        check("jdbc:mysql", TEMPLATE);
    }

    #[test]
    fn sqlalchemy_urls_are_written_as_libpq_has_them() {
        check("postgresql+psycopg2://app:hunter2@db:5432/shop", "postgres://app:***@db:5432/shop");
        check("postgres+asyncpg://app:hunter2@db/shop?ssl=require", "postgres://app:***@db/shop?sslmode=require");
    }

    #[test]
    fn a_host_that_is_no_address_is_encoded_whatever_it_holds() {
        check("jdbc:postgresql://a%3Ab%5D%0A/shop", "postgres://a%3Ab%5D%0A/shop");
    }

    #[test]
    fn what_cannot_be_taken_apart_becomes_a_template() {
        check("postgresql+psycopg2://app:hun@ter2@db/shop", TEMPLATE);
        check("jdbc:postgresql://db/shop?port=54%2F32", TEMPLATE);
        check("jdbc:postgresql://a,b/shop?port=1,2,3", TEMPLATE);
        check("postgresql+psycopg2://app:x@db/sho\0?ssl=require", TEMPLATE);
    }

    #[test]
    fn libpqs_own_schemes_are_not_foreign() {
        assert!(recognize("postgres", "//h").is_none());
        assert!(recognize("mysql", "//h").is_none());
    }
}
