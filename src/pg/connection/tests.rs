//! Tests connections to servers that send a single answer.

use super::super::copy_both::PluginOptions;
use super::super::source::Environment;
use super::*;
use crate::lsn::Lsn;

#[test]
fn the_replication_command_names_slot_publication_and_protocol() {
    let options = PluginOptions { publication: "My pub", binary: false, messages: true, only_local: false };
    assert_eq!(
        options.command("walrelay", Lsn::new(0x1_0000_0010)),
        "START_REPLICATION SLOT \"walrelay\" LOGICAL 1/10 (proto_version '1', publication_names '\"My pub\"', messages 'true')"
    );
    let odd = PluginOptions { publication: r"it's \", binary: false, messages: false, only_local: true };
    assert_eq!(
        odd.command("walrelay", Lsn::ZERO),
        r#"START_REPLICATION SLOT "walrelay" LOGICAL 0/0 (proto_version '1', publication_names '"it''s \"', origin 'none')"#
    );
}

#[test]
fn an_error_response_is_read_by_its_fields() {
    let body = b"SFEHLER\0VERROR\0C55006\0Mslot is active\0Dmore\0Hdo\0Fslot.c\0\0";
    let error = server_error(body).unwrap();
    assert_eq!((error.code.as_str(), error.severity.as_str(), error.hint.as_str()), ("55006", "ERROR", "do"));
    assert_eq!(error.to_string(), "slot is active (more) [SQLSTATE 55006]");
    for cut in 0..body.len() {
        assert!(server_error(&body[..cut]).is_err(), "cut at {cut}");
    }
}

#[test]
fn a_host_that_refuses_the_password_is_not_hidden_by_the_next_ones_silence() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        io::Read::read(&mut stream, &mut [0; 1024]).unwrap();
        let body = b"SFATAL\0VFATAL\0C28P01\0Mno\0\0";
        let length = u32::try_from(body.len() + 4).unwrap().to_be_bytes();
        io::Write::write_all(&mut stream, &[&b"E"[..], &length, body].concat()).unwrap();
    });
    let text = format!("postgres://u:p@127.0.0.1:{port},127.0.0.1:1/d?sslmode=disable");
    let source = Source::resolve(Some(&text), &Environment::default()).unwrap().source;
    let error = Connection::open(&source, Purpose::Control).unwrap_err();
    assert_eq!(error.code(), Some("28P01"), "{error}");
    server.join().unwrap();
}

#[test]
fn a_server_without_room_for_a_connection_is_waited_for() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        io::Read::read(&mut stream, &mut [0; 1024]).unwrap();
        // A postmaster that cannot fork sends this.
        io::Write::write_all(&mut stream, b"Ecould not fork new process for connection\n\0").unwrap();
    });
    let text = format!("postgres://u:p@127.0.0.1:{port}/d");
    let source = Source::resolve(Some(&text), &Environment::default()).unwrap().source;
    let error = Connection::open(&source, Purpose::Control).unwrap_err();
    assert_eq!(error.recovery(), Recovery::Reconnect, "{error}");
    server.join().unwrap();
}

/// A server that ends the first sessions at their first query, as Postgres does with `exit_on_error` and a short `statement_timeout`.
fn canceller(ended: usize) -> (Source, std::thread::JoinHandle<()>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let message =
        |tag: u8, body: &[u8]| [&[tag], &u32::try_from(body.len() + 4).unwrap().to_be_bytes()[..], body].concat();
    let server = std::thread::spawn(move || {
        for session in 0..=ended {
            let (mut stream, _) = listener.accept().unwrap();
            io::Read::read(&mut stream, &mut [0; 1024]).unwrap();
            let welcome = [message(b'R', &[0; 4]), message(b'Z', b"I")].concat();
            io::Write::write_all(&mut stream, &welcome).unwrap();
            io::Read::read(&mut stream, &mut [0; 4096]).unwrap();
            let fatal = message(b'E', b"SFATAL\0VFATAL\0C57014\0Mcanceling statement due to statement timeout\0\0");
            let answer = if session < ended { fatal } else { message(b'Z', b"I") };
            io::Write::write_all(&mut stream, &answer).unwrap();
        }
    });
    let text = format!("postgres://u:p@127.0.0.1:{port}/d?sslmode=disable&connect_timeout=2");
    (Source::resolve(Some(&text), &Environment::default()).unwrap().source, server)
}

#[test]
fn a_session_that_ends_while_its_time_outs_are_lifted_is_opened_again() {
    let (source, server) = canceller(3);
    Connection::open(&source, Purpose::Control).unwrap();
    server.join().unwrap();
}

#[test]
fn a_session_that_always_ends_is_given_up_with_the_servers_words() {
    let (source, _server) = canceller(usize::MAX - 1);
    let error = Connection::open(&source, Purpose::Control).unwrap_err();
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert_eq!(cause, "canceling statement due to statement timeout [SQLSTATE 57014]");
    assert_eq!(error.recovery(), Recovery::Reconnect);
}

/// A server that accepts every login. It answers each query with this message again and again, as long as the client reads, but not
/// longer than a test may take.
fn chatterbox(tag: u8, body: &'static [u8]) -> (Source, std::thread::JoinHandle<()>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let message =
        |tag: u8, body: &[u8]| [&[tag], &u32::try_from(body.len() + 4).unwrap().to_be_bytes()[..], body].concat();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        io::Read::read(&mut stream, &mut [0; 1024]).unwrap();
        let welcome = [message(b'R', &[0; 4]), message(b'Z', b"I")].concat();
        io::Write::write_all(&mut stream, &welcome).unwrap();
        // The settings of the session are taken.
        io::Read::read(&mut stream, &mut [0; 4096]).unwrap();
        io::Write::write_all(&mut stream, &message(b'Z', b"I")).unwrap();
        io::Read::read(&mut stream, &mut [0; 1024]).unwrap();
        let (again, until) = (message(tag, body).repeat(1000), Instant::now() + Duration::from_mins(1));
        while Instant::now() < until && io::Write::write_all(&mut stream, &again).is_ok() {}
    });
    let text = format!("postgres://u:p@127.0.0.1:{port}/d?sslmode=disable");
    (Source::resolve(Some(&text), &Environment::default()).unwrap().source, server)
}

#[test]
fn rows_without_end_are_refused() {
    for small in [true, false] {
        let (source, server) = chatterbox(b'D', b"\0\x01\0\0\0\x04four");
        let mut connection = Connection::open(&source, Purpose::Control).unwrap();
        let answer = if small { connection.query_small("SELECT 1") } else { connection.query("SELECT 1") };
        assert!(matches!(answer, Err(Error::Oversized { .. })), "{:?}", answer.map(|rows| rows.len()));
        drop(connection);
        server.join().unwrap();
    }
}

#[test]
fn what_comes_does_not_lengthen_the_time_for_an_answer() {
    let (source, server) = chatterbox(b'N', b"SNOTICE\0Mwait\0\0");
    let mut connection = Connection::open(&source, Purpose::Control).unwrap();
    let answer = connection.query_within("SELECT 1", Duration::from_millis(300));
    let timed_out = matches!(&answer, Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::TimedOut);
    assert!(timed_out, "{:?}", answer.map(|rows| rows.len()));
    drop(connection);
    server.join().unwrap();
}

#[test]
fn a_long_statement_is_shortened_in_messages() {
    assert_eq!(shortened("SELECT\n  1"), "SELECT 1");
    assert_eq!(shortened(&"é".repeat(100)).chars().count(), 81);
}

#[test]
fn a_setting_that_a_version_lacks_is_not_set_there() {
    for (version, expected) in [(0, false), (16, false), (17, true), (19, true)] {
        let sql = pinning(version, false);
        assert_eq!(sql.starts_with("SET transaction_timeout = '0'; SET statement_timeout = '0'; "), expected, "{sql}");
        assert_eq!(sql.contains("transaction_timeout"), expected, "{sql}");
    }
    assert!(pinning(17, false).ends_with("hex'"));
    assert!(pinning(17, true).ends_with("SET client_encoding = 'SQL_ASCII'"));
}

#[test]
fn the_servers_version_begins_with_its_major_number() {
    for (said, expected) in [
        ("17.11", 17),
        ("16.4 (Ubuntu 16.4-1)", 16),
        ("19rc1", 19),
        ("18devel", 18),
        ("", 0),
        ("x", 0),
        ("99999999999", u32::MAX),
    ] {
        assert_eq!(major_version(said.as_bytes()), expected, "{said}");
    }
}
