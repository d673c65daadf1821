//! Connection strings with what surrounds them: service files, password files, variables.
//!
//! The input's first text says what the others are. `any`: a connection string, a service file, a password file, variables as
//! `NAME=value`. What is read from them and written out again, as a URI and as keywords, is read as the same; a message is one
//! short line; the libpq form of another library's string is one that libpq could read. `password`: a password file and whom
//! to log in as; the password found is libpq's. Any other word: pieces around a secret, which must not be shown.

#![no_main]

use std::fmt::Write as _;
use std::net::IpAddr;
use std::path::Path;

use libfuzzer_sys::fuzz_target;
use secrecy::ExposeSecret;
use walrelay::pg::source::{Environment, Host, RootCert, Source, SourceError};
use walrelay_fuzz::{BETWEEN, SECRET, Scratch, assert_short, bare, names_devices};

thread_local! {
    static SERVICES: Scratch = Scratch::new("services");
    static PASSWORDS: Scratch = Scratch::new("passwords");
}

fuzz_target!(|input: &str| {
    if names_devices(input) || input.contains(SECRET) {
        return;
    }
    let mut texts = input.split(BETWEEN);
    let (kind, mut next) = (texts.next().unwrap_or_default(), || texts.next().unwrap_or_default());
    match kind {
        "any" => any(next(), next(), next(), next()),
        "password" => password(next(), [next(), next(), next(), next()]),
        "uri" => secret_in_uri(next(), next(), next(), next()),
        "keywords" => secret_in_keywords(next(), next(), next()),
        "service" => secret_in_service(next(), next(), next(), next()),
        "file" => secret_in_password_file(next(), next(), next()),
        _ => {}
    }
});

/// The files are named by their variables where they are not empty.
fn environment(services: &str, passwords: &str, variables: &str) -> Environment {
    let mut environment = bare();
    let named = variables.lines().filter_map(|line| line.split_once('='));
    // That would be another file.
    let named = named.filter(|(name, value)| name.starts_with("PG") && !value.starts_with("@/"));
    environment.variables = named.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    for (variable, file, text) in [("PGSERVICEFILE", &SERVICES, services), ("PGPASSFILE", &PASSWORDS, passwords)] {
        if !text.is_empty() {
            let path = file.with(|file| {
                file.write(text.as_bytes());
                file.path().display().to_string()
            });
            environment.variables.insert(variable.to_owned(), path);
        }
    }
    environment
}

fn any(text: &str, services: &str, passwords: &str, variables: &str) {
    let environment = environment(services, passwords, variables);
    let given = text.len() + services.len() + variables.len();
    match Source::resolve((!text.is_empty()).then_some(text), &environment) {
        Ok(resolved) => {
            resolved.warnings.iter().for_each(|warning| assert_short(warning, given));
            for written in [as_uri(&resolved.source), as_keywords(&resolved.source)] {
                let again = Source::resolve(Some(&written), &bare());
                let again = again.unwrap_or_else(|error| panic!("{written:?}: {error}"));
                assert_eq!(all(&again.source), all(&resolved.source), "{written:?}");
            }
        }
        Err(error) => judge(&error, given),
    }
}

/// All of a source, and the password that is the same for all hosts.
fn all(source: &Source) -> String {
    let tls = (source.sslmode, &source.sslrootcert, &source.client_certificate, source.channel_binding);
    let session = (source.target_session_attrs, &source.options, &source.application_name);
    let times = (source.connect_timeout, source.keepalives, source.tcp_user_timeout);
    let place = (&source.hosts, &source.user, &source.dbname, password_of_all(source));
    format!("{place:?} {tls:?} {session:?} {times:?}")
}

/// Whatever they quote is cut.
fn judge(error: &SourceError, given: usize) {
    assert_short(&error.to_string(), 0);
    assert_short(&error.part.to_string(), 0);
    // Percent-encoded, a character takes twelve.
    assert_short(&error.problem.hint.clone().unwrap_or_default(), 12 * given);
}

/// Keywords and values that give a source; the password where it is the same for all hosts.
fn pairs(source: &Source) -> Vec<(&'static str, String)> {
    let list = |item: &dyn Fn(&Host) -> String| source.hosts.iter().map(item).collect::<Vec<_>>().join(",");
    let mut pairs = vec![
        ("host", list(&|host| name(host))),
        ("port", list(&|host| port(host).to_string())),
        ("user", source.user.clone()),
        ("dbname", source.dbname.clone()),
        ("sslmode", source.sslmode.name().to_owned()),
        ("channel_binding", format!("{:?}", source.channel_binding).to_lowercase()),
        ("target_session_attrs", kebab(&format!("{:?}", source.target_session_attrs))),
        ("keepalives", u8::from(source.keepalives.enabled).to_string()),
    ];
    let mut add = |keyword, value: Option<String>| pairs.extend(value.map(|value| (keyword, value)));
    let addresses = list(&|host| address(host).map(|address| address.to_string()).unwrap_or_default());
    add("hostaddr", Some(addresses).filter(|list| list.contains(|c| c != ',')));
    add("password", password_of_all(source));
    add("options", source.options.clone());
    add("application_name", source.application_name.clone());
    let roots = match &source.sslrootcert {
        RootCert::None => None,
        RootCert::File(file) => Some(file.display().to_string()),
        RootCert::System => Some("system".to_owned()),
    };
    add("sslrootcert", roots);
    let certificate = source.client_certificate.as_ref();
    add("sslcert", certificate.map(|files| files.certificate.display().to_string()));
    add("sslkey", certificate.map(|files| files.key.display().to_string()));
    add("connect_timeout", source.connect_timeout.map(|time| time.as_secs().to_string()));
    add("keepalives_idle", source.keepalives.idle.map(|time| time.as_secs().to_string()));
    add("keepalives_interval", source.keepalives.interval.map(|time| time.as_secs().to_string()));
    add("keepalives_count", source.keepalives.count.map(|count| count.to_string()));
    add("tcp_user_timeout", source.tcp_user_timeout.map(|time| time.as_millis().to_string()));
    pairs
}

fn name(host: &Host) -> String {
    match host {
        Host::Tcp { name, .. } => name.clone(),
        Host::Unix { dir, .. } => dir.display().to_string(),
    }
}

fn port(host: &Host) -> u16 {
    match host {
        Host::Tcp { port, .. } | Host::Unix { port, .. } => *port,
    }
}

fn address(host: &Host) -> Option<IpAddr> {
    match host {
        Host::Tcp { address, .. } => *address,
        Host::Unix { .. } => None,
    }
}

/// `ReadWrite` is `read-write`.
fn kebab(name: &str) -> String {
    let mut words = String::new();
    for character in name.chars() {
        if character.is_uppercase() && !words.is_empty() {
            words.push('-');
        }
        words.extend(character.to_lowercase());
    }
    words
}

fn password_of_all(source: &Source) -> Option<String> {
    let of = |host| source.password_for(host).map(|password| password.expose_secret().to_owned());
    let first = source.hosts.first().and_then(of);
    first.filter(|first| source.hosts.iter().all(|host| of(host).as_ref() == Some(first)))
}

fn as_keywords(source: &Source) -> String {
    let quoted = |value: &str| value.replace('\\', r"\\").replace('\'', r"\'");
    pairs(source).iter().map(|(keyword, value)| format!("{keyword} = '{}' ", quoted(value))).collect()
}

fn as_uri(source: &Source) -> String {
    let pairs = pairs(source);
    let value = |name: &str| pairs.iter().find(|(keyword, _)| *keyword == name).map(|(_, value)| encoded(value));
    let mut uri = format!("postgres://{}", value("user").unwrap_or_default());
    uri.extend(value("password").map(|password| format!(":{password}")));
    let hosts = source.hosts.iter().map(|host| format!("{}:{}", encoded(&name(host)), port(host)));
    let _infallible = write!(uri, "@{}/{}?", hosts.collect::<Vec<_>>().join(","), value("dbname").unwrap_or_default());
    let in_place = ["host", "port", "user", "dbname", "password"];
    for (keyword, value) in pairs.iter().filter(|(keyword, _)| !in_place.contains(keyword)) {
        let _infallible = write!(uri, "{keyword}={}&", encoded(value));
    }
    uri
}

fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02x}")).collect()
}

/// Where builds of libpq have the server's sockets; a host there is `localhost` in the file.
const DEFAULT_SOCKET_DIRS: [&str; 3] = ["/var/run/postgresql", "/run/postgresql", "/tmp"];

/// The first line that matches, as `passwordFromFile` and `pwdfMatchesString` of libpq's `fe-connect.c` find it.
fn password(file: &str, [host, port, dbname, user]: [&str; 4]) {
    let quoted = |value: &str| value.replace('\\', r"\\").replace('\'', r"\'");
    let text =
        format!("host='{}' port='{}' dbname='{}' user='{}'", quoted(host), quoted(port), quoted(dbname), quoted(user));
    // C's texts end there.
    let Ok(resolved) = Source::resolve(Some(&text), &environment("", file, "")) else { return };
    let source = resolved.source;
    for host in source.hosts.iter().filter(|_| !file.contains('\0') && !file.is_empty()) {
        let name = match host {
            Host::Unix { dir, .. } if DEFAULT_SOCKET_DIRS.iter().any(|known| dir == Path::new(known)) => {
                "localhost".into()
            }
            host => name(host),
        };
        let wanted = [name.as_str(), &self::port(host).to_string(), &source.dbname, &source.user];
        let expected = libpqs(file, wanted).filter(|password| !password.is_empty());
        let found = source.password_for(host).map(|password| password.expose_secret().to_owned());
        assert_eq!(found, expected, "for {wanted:?} in {file:?}");
    }
}

fn libpqs(file: &str, wanted: [&str; 4]) -> Option<String> {
    let lines = file.split('\n').map(|line| line.trim_end_matches(['\r', '\n']));
    let mut found = lines
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .filter_map(|line| wanted.iter().try_fold(line.as_bytes(), |rest, wanted| behind(rest, wanted.as_bytes())));
    let mut rest = found.next()?.iter();
    let mut password = Vec::new();
    while let Some(byte) = rest.next().filter(|byte| **byte != b':') {
        password.push(if *byte == b'\\' { *rest.next().unwrap_or(byte) } else { *byte });
    }
    String::from_utf8(password).ok()
}

/// What stands behind a field that matches.
fn behind<'f>(mut field: &'f [u8], mut wanted: &[u8]) -> Option<&'f [u8]> {
    if let Some(rest) = field.strip_prefix(b"*:") {
        return Some(rest);
    }
    loop {
        match (field, wanted) {
            ([b':', rest @ ..], []) => return Some(rest),
            ([b'\\', byte, rest @ ..] | [byte, rest @ ..], [first, others @ ..]) if byte == first => {
                (field, wanted) = (rest, others);
            }
            _ => return None,
        }
    }
}

/// Keywords of free text: what a URI says of them is what its user means to show.
const FREE_TEXT: [&str; 4] = ["user=", "password=", "options=", "application_name="];

/// For any characters of the password, also those that should be percent-encoded, and for the schemes of other libraries.
fn secret_in_uri(scheme: &str, before: &str, after: &str, rest: &str) {
    if FREE_TEXT.iter().any(|keyword| before.contains(keyword) || after.contains(keyword)) {
        return;
    }
    let schemes = ["postgres", "postgresql", "jdbc:postgresql", "postgresql+psycopg2", "mysql"];
    for scheme in schemes.iter().filter(|known| scheme.is_empty() || scheme == **known) {
        assert_hidden(&format!("{scheme}://app:{before}{SECRET}{after}@{rest}"), &bare());
    }
}

/// With quotes, without, and with one that is never closed.
fn secret_in_keywords(before: &str, after: &str, rest: &str) {
    if before.contains('=') {
        return;
    }
    for [open, close] in [["'", "'"], ["", ""], ["'", ""], ["", "'"]] {
        assert_hidden(&format!("user=app password={open}{before}{SECRET}{after}{close} {rest}"), &bare());
    }
}

fn secret_in_service(lines: &str, before: &str, after: &str, rest: &str) {
    if before.contains('\n') {
        return;
    }
    let services = format!("[s]\n{lines}\npassword={before}{SECRET}{after}\n{rest}");
    assert_hidden("service=s", &environment(&services, "", ""));
}

fn secret_in_password_file(lines: &str, before: &str, after: &str) {
    let passwords = format!("{lines}\n*:*:*:*:{before}{SECRET}{after}");
    assert_hidden("host=db", &environment("", &passwords, ""));
}

/// In nothing that a source, or its error, could ever show.
fn assert_hidden(text: &str, environment: &Environment) {
    let shown = match Source::resolve(Some(text), environment) {
        Ok(resolved) => format!("{resolved:?} {} {} {:?}", resolved.source, resolved.source.without_user(), resolved.warnings),
        Err(error) => format!("{error:?} {error} {}", error.part),
    };
    assert!(!shown.contains(SECRET), "{text:?} shows {shown:?}");
}
