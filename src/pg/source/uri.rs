//! Parses a connection URI into keywords and values.
//!
//! In: the text after `postgres://`: `user:password@host:port,host:port/dbname?keyword=value&…`. Out: pairs in libpq's keywords,
//! percent-decoded. Neither keywords nor values are checked.
//!
//! Invariant: no error quotes a part of the URI, and no pair that messages or logs may show has a part of a password. So if a password
//! has an unescaped `@` or `/`, the URI is refused. libpq would take the parts for a host or a database.
//! Specification: PostgreSQL manual, section 32.1.1.2 "Connection URIs".

use super::error::SourceProblem;
use super::keywords::Pair;
use crate::setting_text::percent_decoded;

/// Keywords whose values are free texts, and so may have an unescaped `@`.
const FREE_TEXT: [&str; 4] = ["user", "password", "options", "application_name"];

const BAD_PORT: &str = "what follows a host's colon is not a port number";
const BAD_IPV6: &str = "an IPv6 address must be in brackets, as in [::1]:5432";

/// The syntax of the URI is wrong.
fn malformed(what: &str) -> SourceProblem {
    SourceProblem::no_source(format!("the connection URI is malformed: {what}"))
}

/// The user's name or the password has a character that ends it early.
fn unescaped_at() -> SourceProblem {
    SourceProblem::with_hint(
        "the connection URI has an @ that does not end the user's name and password",
        "in user name and password write @ as %40, / as %2F, : as %3A, ? as %3F and % as %25, or give the password in PGPASSWORD or ~/.pgpass",
    )
}

/// Parses the URI.
pub(super) fn parse(after_scheme: &str) -> Result<Vec<Pair>, SourceProblem> {
    let (user_info, rest) = split_user_info(after_scheme);
    let (location, query) = rest.split_once('?').unwrap_or((rest, ""));
    if location.contains('@') {
        return Err(unescaped_at());
    }
    let (authority, dbname) = location.split_once('/').unwrap_or((location, ""));
    let mut pairs = user_and_password(user_info)?;
    pairs.extend(hosts_and_ports(authority)?);
    pairs.extend(pair("dbname", dbname)?);
    for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
        pairs.push(self::parameter(parameter)?);
    }
    Ok(pairs)
}

/// Splits at the `@` after user name and password, if no slash comes before it.
fn split_user_info(after_scheme: &str) -> (&str, &str) {
    match after_scheme.split_once('@') {
        Some((user_info, rest)) if !user_info.contains('/') => (user_info, rest),
        _ => ("", after_scheme),
    }
}

fn user_and_password(user_info: &str) -> Result<Vec<Pair>, SourceProblem> {
    let (user, password) = user_info.split_once(':').unwrap_or((user_info, ""));
    Ok([pair("user", user)?, pair("password", password)?].into_iter().flatten().collect())
}

/// Several hosts become lists with commas, as in libpq's keywords.
fn hosts_and_ports(authority: &str) -> Result<Vec<Pair>, SourceProblem> {
    let items = authority.split(',').map(host_and_port).collect::<Result<Vec<_>, _>>()?;
    let hosts = items.iter().map(|(host, _)| *host).collect::<Vec<_>>().join(",");
    let ports = items.iter().map(|(_, port)| *port).collect::<Vec<_>>().join(",");
    Ok([pair("host", &hosts)?, pair("port", &ports)?].into_iter().flatten().collect())
}

fn host_and_port(item: &str) -> Result<(&str, &str), SourceProblem> {
    let (host, port) = match item.strip_prefix('[') {
        Some(bracketed) => {
            let (host, after) =
                bracketed.split_once(']').filter(|(host, _)| !host.is_empty()).ok_or_else(|| malformed(BAD_IPV6))?;
            let port = if after.is_empty() { Some("") } else { after.strip_prefix(':') };
            (host, port.ok_or_else(|| malformed(BAD_IPV6))?)
        }
        None => item.split_once(':').unwrap_or((item, "")),
    };
    // The port is checked here, and not with the other values, whose errors quote them: without a host, this text is the password.
    if !port.is_empty() && port.parse::<u16>().is_err() {
        return Err(malformed(BAD_PORT));
    }
    Ok((host, port))
}

fn parameter(parameter: &str) -> Result<Pair, SourceProblem> {
    let refused = || {
        if parameter.contains('@') { unescaped_at() } else { malformed("a parameter after the ? has no =") }
    };
    let (keyword, value) = parameter.split_once('=').ok_or_else(refused)?;
    if keyword.contains('@') || (value.contains('@') && !FREE_TEXT.contains(&keyword)) {
        return Err(unescaped_at());
    }
    if value.contains('=') && !FREE_TEXT.contains(&keyword) {
        return Err(malformed("a parameter after the ? has more than one ="));
    }
    let (keyword, value) = (percent_decode(keyword)?, percent_decode(value)?);
    // JDBC writes `ssl=true`, and libpq accepts it.
    if keyword == "ssl" && value == "true" {
        return Ok(Pair::new("sslmode", "require"));
    }
    Ok(Pair::new(&keyword, &value))
}

fn pair(keyword: &str, encoded: &str) -> Result<Option<Pair>, SourceProblem> {
    let value = percent_decode(encoded)?;
    Ok((!value.is_empty()).then(|| Pair::new(keyword, &value)))
}

fn percent_decode(encoded: &str) -> Result<String, SourceProblem> {
    percent_decoded(encoded).ok_or_else(|| {
        malformed("a % is not followed by two hexadecimal digits, or they are not UTF-8 (write % itself as %25)")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(uri: &str, expected: &[(&str, &str)]) {
        let pairs = parse(uri).unwrap();
        let pairs = pairs.iter().map(|pair| (pair.keyword.as_str(), pair.value.as_str())).collect::<Vec<_>>();
        assert_eq!(pairs, expected, "{uri}");
    }

    #[test]
    fn the_manuals_examples_are_taken_apart() {
        check("", &[]);
        check("localhost", &[("host", "localhost")]);
        check("localhost:5433", &[("host", "localhost"), ("port", "5433")]);
        check("localhost/mydb", &[("host", "localhost"), ("dbname", "mydb")]);
        check("user@localhost", &[("user", "user"), ("host", "localhost")]);
        check(
            "other@localhost/otherdb?connect_timeout=10&application_name=myapp",
            &[
                ("user", "other"),
                ("host", "localhost"),
                ("dbname", "otherdb"),
                ("connect_timeout", "10"),
                ("application_name", "myapp"),
            ],
        );
        check(
            "host1:123,host2:456/somedb?target_session_attrs=any",
            &[("host", "host1,host2"), ("port", "123,456"), ("dbname", "somedb"), ("target_session_attrs", "any")],
        );
        check("/mydb?host=localhost&port=5433", &[("dbname", "mydb"), ("host", "localhost"), ("port", "5433")]);
        check("[2001:db8::1234]/database", &[("host", "2001:db8::1234"), ("dbname", "database")]);
        check("%2Fvar%2Flib%2Fpostgresql/dbname", &[("host", "/var/lib/postgresql"), ("dbname", "dbname")]);
    }

    #[test]
    fn hosts_without_ports_leave_their_places_empty() {
        check("a,b:1", &[("host", "a,b"), ("port", ",1")]);
        check("a,b", &[("host", "a,b"), ("port", ",")]);
    }

    #[test]
    fn a_password_may_hold_colons_question_marks_and_encoded_characters() {
        check("u:a:b?c%40%2F%25@h", &[("user", "u"), ("password", "a:b?c@/%"), ("host", "h")]);
        check("u:@h", &[("user", "u"), ("host", "h")]);
    }

    #[test]
    fn ssl_true_is_sslmode_require() {
        check("h?ssl=true", &[("host", "h"), ("sslmode", "require")]);
    }

    #[test]
    fn an_unescaped_at_is_refused_where_it_could_show_a_password() {
        for uri in ["u:p@ss@h/db", "u:p/ss@h/db", "u:1/ss@h/db", "h/a@b", "u:1/p?x@h/db", "u:1/p?a=x@h/db"] {
            assert_eq!(parse(uri).err(), Some(unescaped_at()), "{uri}");
        }
        check("h/db?user=me@corp", &[("host", "h"), ("dbname", "db"), ("user", "me@corp")]);
    }

    #[test]
    fn a_password_without_its_host_is_not_quoted_as_a_port() {
        assert_eq!(parse("u:hunter2/db").err(), Some(malformed(BAD_PORT)));
    }

    #[test]
    fn malformed_uris_are_refused() {
        for uri in ["h?x", "[::1", "[]", "[::1]x", "h%4", "h%zz", "h%ff", "h:x", "h:65536", "h?a=b=c"] {
            let problem = parse(uri).err().unwrap();
            assert!(problem.text.starts_with("the connection URI is malformed"), "{uri}");
        }
    }
}
