//! The binary as it is typed: exit codes, messages, and that wrong settings contact nobody. No services.
//!
//! The last tests stand a small server in Postgres' place, which says what it should not.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that cannot go on fails")]

mod stderr;

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread;

use assert_cmd::Command;

const SECRET: &str = "hunter2";

/// The binary with these arguments and variables, and nothing of this process's environment.
fn walrelay(arguments: &[&str], variables: &[(&str, &str)]) -> Command {
    let mut command = Command::cargo_bin("walrelay").unwrap();
    command.env_clear().env("HOME", "/nonexistent").args(arguments).envs(variables.iter().copied());
    command.timeout(std::time::Duration::from_mins(1));
    command
}

/// What a run said: exit code, stdout, stderr. No secret is among it.
#[track_caller]
fn said(arguments: &[&str], variables: &[(&str, &str)]) -> (i32, String, String) {
    let output = walrelay(arguments, variables).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let (stdout, stderr) = (text(output.stdout), text(output.stderr));
    for text in [&stdout, &stderr] {
        assert!(!text.contains(SECRET), "{arguments:?} shows a secret: {text}");
    }
    (output.status.code().unwrap(), stdout, stderr)
}

/// Wrong settings: exit 64, an `error:` line with all of `words`, a `hint:` line where there are words for it.
#[track_caller]
fn wrong(arguments: &[&str], variables: &[(&str, &str)], words: &[&str], hint: &[&str]) {
    let (code, stdout, stderr) = said(arguments, variables);
    assert_eq!((code, stdout.as_str()), (64, ""), "{arguments:?}: {stderr}");
    let error = stderr.strip_prefix("error: ").unwrap_or_else(|| panic!("{arguments:?}: {stderr}"));
    for word in words {
        assert!(error.contains(word), "{arguments:?}: {word:?} is not in {error}");
    }
    let line = stderr.lines().find_map(|line| line.strip_prefix("hint: ")).unwrap_or_default();
    for word in hint {
        assert!(line.contains(word), "{arguments:?}: {word:?} is not in the hint {line:?}");
    }
}

#[test]
fn help_and_version_go_to_stdout_with_exit_0() {
    let variables = [("WALRELAY_SOURCE", "postgres://u:hunter2@h/d"), ("WALRELAY_KAFKA_SASL_PASSWORD", SECRET)];
    for arguments in
        [&["--help"][..], &["run", "--help"], &["setup", "--help"], &["status", "-h"], &["teardown", "--help"]]
    {
        let (code, stdout, stderr) = said(arguments, &variables);
        assert_eq!((code, stderr.as_str()), (0, ""), "{arguments:?}");
        assert!(stdout.contains("Usage: walrelay"), "{stdout}");
    }
    let version = format!("walrelay {}\n", env!("CARGO_PKG_VERSION"));
    for flag in ["-V", "--version"] {
        assert_eq!(said(&[flag], &[]), (0, version.clone(), String::new()));
    }
}

#[test]
fn a_variable_that_is_no_text_ends_no_run() {
    use std::os::unix::ffi::OsStrExt as _;
    let mut command = walrelay(&["run", "--to", "sqs://", "--topic", "orders"], &[]);
    let output = command.env("OTHER", std::ffi::OsStr::from_bytes(b"\xff")).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(64), "{stderr}");
    assert!(stderr.contains("names no region"), "{stderr}");
}

#[test]
fn the_help_of_run_names_every_flag_with_its_default() {
    let (_, help, _) = said(&["run", "--help"], &[]);
    // Wherever its lines are wrapped.
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    for (flag, default) in [
        ("--source", "DATABASE_URL"),
        ("--source-password-file", "[default: none]"),
        ("--source-password-command", "10 s"),
        ("--publication", "[default: walrelay]"),
        ("--slot", "[default: walrelay]"),
        ("--setup", "false"),
        ("--table", "every table"),
        ("--dry-run", "false"),
        ("--brokers", "localhost:9092"),
        ("--topic", "outbox.event.{route}"),
        ("--id-column", "event_id"),
        ("--key-column", "aggregateid"),
        ("--payload-column", "event_data"),
        ("--type-column", "event_type"),
        ("--route-column", "aggregatetype"),
        ("--headers-column", "headers"),
        ("--header", "NAME=COLUMN"),
        ("--http", "127.0.0.1:9464"),
        ("--shutdown-timeout", "8s"),
        ("--disconnect-after", "30s"),
        ("--unready-after", "30s"),
        ("--coalesce", "200us"),
        ("--max-in-flight", "16MiB"),
        ("--max-row", "256MiB"),
        ("--log-format", "text"),
        ("--log-level", "info"),
        ("--config", "TOML"),
        ("-X", "librdkafka"),
        ("Exit codes", "64"),
    ] {
        let (_, behind) = help.split_once(flag).unwrap_or_else(|| panic!("{flag} is not in the help"));
        assert!(behind.contains(default), "{flag}: {default:?} does not follow");
    }
}

#[test]
fn what_is_unknown_names_the_nearest() {
    wrong(&["rum"], &[], &["rum"], &["run"]);
    wrong(&[], &[], &["no command"], &["run, setup, check, status, teardown, dead-letters, backfill, verify, prune"]);
    wrong(&["run", "--sourc=x"], &[], &["--sourc"], &["--source"]);
    wrong(&["run", "--playload-column=x"], &[], &["--playload-column"], &["--payload-column"]);
    wrong(&["run", "--apply"], &[], &["--apply"], &["walrelay setup"]);
    wrong(&["run"], &[("WALRELAY_SLOTT", "x")], &["WALRELAY_SLOTT"], &["WALRELAY_SLOT"]);
    wrong(&["run", "--source=host=h usr=x"], &[], &["usr"], &["user"]);
    wrong(&["run", "--source=postgres://h/d?sslmod=require"], &[], &["sslmod"], &["sslmode"]);
    wrong(&["run", "--source=postgres://h/d?sslmode=verify_full"], &[], &["verify_full"], &["verify-full"]);
}

#[test]
fn a_file_is_read_and_its_mistakes_are_named_with_their_line() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("walrelay.toml");
    let path = file.to_str().unwrap();
    wrong(&["run", "-c", "/nonexistent.toml"], &[], &["--config", "/nonexistent.toml", "No such file"], &[]);
    for (text, words, hint) in [
        ("slot = \"a\"\ntabel = [\"outbox\"]\n", &["line 2", "tabel"][..], "table"),
        ("slot = \n", &["line 1"], ""),
        ("shutdown-timeout = \"5\"\n", &["shutdown-timeout", "line 1", "\"5\""], "5s"),
        ("slot = [\"a\", \"b\"]\n", &["slot", "line 1", "not a list"], ""),
        ("\n[kafka]\nacks = \"1\"\n", &["acks=1 is refused", "line 3"], ""),
        ("source = \"postgres://u:hunter2@h:x/d\"\n", &["source", "port"], ""),
    ] {
        fs::write(&file, text).unwrap();
        wrong(&["run", "-c", path], &[], words, &[hint]);
    }
}

#[test]
fn durations_sizes_names_and_addresses_say_what_is_valid() {
    for (argument, words, hint) in [
        ("--shutdown-timeout=5", "\"5\" is not valid", "5s"),
        ("--shutdown-timeout=1.5s", "whole number", ""),
        ("--disconnect-after=5m", "\"5m\"", "5min"),
        ("--coalesce=1h", "100ms", ""),
        ("--max-in-flight=16MiBs", "KiB", ""),
        ("--max-in-flight=1", "64KiB", ""),
        ("--max-row=2GiB", "1GiB", ""),
        ("--slot=My-Slot", "My-Slot", "my_slot"),
        ("--publication=", "1 to 63 bytes", ""),
        ("--table=a.b.c", "SCHEMA.TABLE", ""),
        ("--http=9464", "HOST:PORT", ""),
        ("--brokers=http://kafka/", "HOST:PORT", ""),
        ("--topic={route", "'{' has no '}'", ""),
        ("--topic={route|upper}", "upper", ""),
        ("--header=x", "NAME=COLUMN", ""),
        ("--on-update=ignore", "warn", ""),
        ("--log-format=xml", "json", ""),
    ] {
        let flag = argument.split('=').next().unwrap();
        wrong(&["run", argument], &[], &[flag, words], &[hint]);
    }
}

#[test]
fn properties_that_would_break_a_guarantee_are_refused_each_with_its_reason() {
    for (property, reason) in [
        ("acks=1", "in-sync replicas"),
        ("request.required.acks=0", "in-sync replicas"),
        ("enable.idempotence=false", "enable.idempotence=false is refused"),
        ("max.in.flight=6", "keep the order"),
        ("max.in.flight.requests.per.connection=100", "keep the order"),
        ("message.timeout.ms=1000", "waited out"),
        ("delivery.timeout.ms=1000", "waited out"),
        ("retries=3", "waited out"),
        ("message.send.max.retries=3", "waited out"),
        ("partitioner=random", "equal keys"),
        ("transactional.id=x", "transactions"),
        ("delivery.report.only.error=true", "reported"),
        ("enable.gapless.guarantee=false", "refused batch"),
        ("bootstrap.servers=b:1", "flag of their own"),
    ] {
        let name = property.split('=').next().unwrap();
        wrong(&["run", "-X", property], &[], &[&format!("-X {name}"), "is refused", reason], &[]);
        let (name, value) = property.split_once('=').unwrap();
        let variable = format!("WALRELAY_KAFKA_{}", name.to_uppercase().replace('.', "_"));
        wrong(&["run"], &[(&variable, value)], &[&variable, "is refused"], &[]);
    }
}

#[test]
fn a_connection_string_of_another_library_is_refused_by_its_scheme() {
    let right = "postgres://user@host:5432/dbname";
    for (given, words) in [
        ("jdbc:postgresql://app:hunter2@db:5433/shop", "\"jdbc\""),
        ("jdbc:postgresql://db/shop?user=app&password=hunter2&ssl=true", "\"jdbc\""),
        ("postgresql+psycopg2://app:hunter2@db/shop", "\"postgresql+psycopg2\""),
        ("mysql://app:hunter2@db/shop", "postgres://"),
        ("", "empty"),
    ] {
        wrong(&["run", "--source", given], &[], &["--source", words], &[right]);
        // An empty variable counts as none.
        if !given.is_empty() {
            wrong(&["run"], &[("WALRELAY_SOURCE", given)], &["WALRELAY_SOURCE", words], &[right]);
        }
    }
    wrong(&["status", "-d", "jdbc:postgresql://db/shop"], &[], &["\"jdbc\""], &[right]);
}

#[test]
fn no_message_shows_a_secret() {
    for arguments in [
        &["run", "postgres://u:hunter2@h/d"][..],
        &["run", "sasl.password=hunter2"],
        &["run", "--source=postgres://u:hunter2@h:port/d"],
        &["run", "--source=postgres://u:hunt@er2:hunter2@h/d"],
        &["run", "--source=host=h password='hunter2 sslmode=bad"],
        &["run", "--source=host=h password=hunter2 sslmode=bad"],
        &["run", "--source=host=h password=x hunter2"],
        &["run", "--brokers=user:hunter2@b:1"],
        &["run", "-X", "hunter2"],
        &["run", "-X", "sasl.passwrd=hunter2"],
        &["run", "-X", "security.protocol=sasl_ssl", "-X", "sasl.password=hunter2", "-X", "sasl.mechanism=NONSENSE"],
        &["run", "-X", "security.protocol=ssl", "-X", "ssl.key.pem=hunter2", "--source=postgres://u@h/d"],
        &["run", "-X", "sasl.jaas.config=hunter2", "--source=postgres://u@h/d"],
    ] {
        let (code, _, stderr) = said(arguments, &[]);
        assert_eq!(code, 64, "{arguments:?}: {stderr}");
    }
    let variables = [("WALRELAY_KAFKA_SASL_PASSWORDD", SECRET), ("PGPASSWORD", SECRET)];
    let (code, _, stderr) = said(&["run", "--source=postgres://u@h/d"], &variables);
    assert_eq!(code, 64, "{stderr}");
}

#[test]
fn wrong_settings_contact_nobody() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (source, brokers) = (format!("--source=postgres://u@{address}/d"), format!("--brokers={address}"));
    for argument in [
        "--slot=A",
        "--shutdown-timeout=5",
        "--topic={",
        "--topic=no spaces",
        "-Xacks=1",
        "-Xno.such.property=1",
        "-Xlinger.ms=no",
        "--table=a.b.c",
        "--unknown",
        "--http=x",
        "--http=no.such.host.invalid:1",
        "--header=x",
        "--topic-replacement=x",
        "--config=/nonexistent",
    ] {
        let (code, _, stderr) = said(&["run", &source, &brokers, argument], &[]);
        assert_eq!(code, 64, "{argument}: {stderr}");
        assert!(stderr.contains("error: "), "{argument}: {stderr}");
    }
    let contacted = listener.accept().err().map(|error| error.kind());
    assert_eq!(contacted, Some(std::io::ErrorKind::WouldBlock), "nobody was contacted");
}

#[test]
fn completions_are_printed_for_each_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let (code, stdout, stderr) = said(&["completions", shell], &[]);
        assert!(code == 0 && stdout.contains("walrelay"), "{shell}: {stderr}");
    }
}

/// A frame: tag, length, body.
fn frame(tag: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len() + 4).unwrap().to_be_bytes();
    [&[tag], &length[..], body].concat()
}

/// A row of text columns.
fn data_row(columns: &[&str]) -> Vec<u8> {
    let mut body = u16::try_from(columns.len()).unwrap().to_be_bytes().to_vec();
    for column in columns {
        body.extend(u32::try_from(column.len()).unwrap().to_be_bytes());
        body.extend(column.as_bytes());
    }
    frame(b'D', &body)
}

/// Where the server begins to talk nonsense.
#[derive(Clone, Copy)]
enum Nonsense {
    /// In place of the authentication request.
    AtTheDoor(&'static [u8]),
    /// In answer to `IDENTIFY_SYSTEM`.
    AsAnswer(&'static [u8]),
    /// In the stream: the content of a CopyData.
    InTheStream(&'static [u8]),
}

/// Just as much of a server as a relay needs to begin to stream.
fn serve(mut client: TcpStream, nonsense: Nonsense) -> std::io::Result<()> {
    loop {
        let mut length = [0; 4];
        client.read_exact(&mut length)?;
        let mut body = vec![0; usize::try_from(u32::from_be_bytes(length)).unwrap() - 4];
        client.read_exact(&mut body)?;
        if body[..2] == [0x04, 0xD2] {
            // SSLRequest
            client.write_all(b"N")?;
        } else {
            break;
        }
    }
    if let Nonsense::AtTheDoor(bytes) = nonsense {
        client.write_all(bytes)?;
    }
    client.write_all(&frame(b'R', &[0; 4]))?;
    client.write_all(&frame(b'Z', b"I"))?;
    loop {
        let mut head = [0; 5];
        client.read_exact(&mut head)?;
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]);
        let mut body = vec![0; usize::try_from(length).unwrap() - 4];
        client.read_exact(&mut body)?;
        if head[0] == b'Q' {
            client.write_all(&answer(&String::from_utf8_lossy(&body), nonsense))?;
        }
    }
}

fn answer(query: &str, nonsense: Nonsense) -> Vec<u8> {
    let slot = r#"{"plugin":"pgoutput","database":"d","confirmed_flush_lsn":"0/10","restart_lsn":"0/10","wal_status":"reserved"}"#;
    let column = |name: &'static str| data_row(&["7", "public", "outbox", name, "25", "-1"]);
    let rows = match query {
        _ if query.starts_with("IDENTIFY_SYSTEM") => match nonsense {
            Nonsense::AsAnswer(bytes) => bytes.to_vec(),
            Nonsense::AtTheDoor(_) | Nonsense::InTheStream(_) => data_row(&["4711", "1", "0/10", "d"]),
        },
        // What each session begins with.
        _ if query.starts_with("SET statement_timeout") => Vec::new(),
        _ if query.starts_with("SELECT pg_catalog.pg_is_in_recovery()") => data_row(&["f"]),
        _ if query.contains("pg_postmaster_start_time") => data_row(&["2026-01-02 03:04:05.678901+00"]),
        _ if query.contains("pg_stat_bgwriter") => data_row(&["0/10", "4711", "1", "0"]),
        _ if query.contains("pg_stat_replication_slots") => data_row(&["0/8", "0/10", "1", "0", "", "f"]),
        _ if query.contains("'wal_level'") => data_row(&["170000", "17.0", "logical", "d", "u"]),
        _ if query.contains("wal_sender_timeout") => data_row(&["60000"]),
        _ if query.contains("tcp_user_timeout") || query.contains("idle_replication_slot_timeout") => data_row(&["0"]),
        // The tree of the table, and no schema that the publication has.
        _ if query.starts_with("SET LOCAL jit") => {
            data_row(&["7", "public", "outbox", "r", "f", "f", "", "t", "", "heap"])
        }
        _ if query.contains("'pg_catalog.pg_namespace'::regclass LIMIT 1") => Vec::new(),
        _ if query.contains("pg_publication_tables") => ["id", "type", "payload"].map(column).concat(),
        _ if query.contains("pg_publication") => {
            data_row(&[r#"{"puballtables":false,"pubinsert":true,"pubupdate":false}"#])
        }
        _ if query.contains("pg_replication_slots") => data_row(&[slot, "0", "0"]),
        _ if query.starts_with("START_REPLICATION") => {
            let Nonsense::InTheStream(bytes) = nonsense else { panic!("too far") };
            return [frame(b'W', &[0, 0, 0]), frame(b'd', bytes)].concat();
        }
        other => panic!("unexpected query: {other}"),
    };
    [frame(b'T', &[0, 0]), rows, frame(b'C', b"SELECT\0"), frame(b'Z', b"I")].concat()
}

/// A run against a server that talks nonsense: a typed error with its words, exit 1, no panic.
#[track_caller]
fn check_nonsense(nonsense: Nonsense, words: &[&str]) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let source = format!("--source=postgres://u@{}/d", listener.local_addr().unwrap());
    thread::spawn(move || {
        for client in listener.incoming() {
            let client = client.unwrap();
            // The relay closes the connection when it has had enough.
            thread::spawn(move || drop(serve(client, nonsense)));
        }
    });
    let (code, _, stderr) = said(&["run", &source, "--brokers=127.0.0.1:1", "--http=off"], &[]);
    assert_eq!(code, 1, "{stderr}");
    let error = stderr.lines().find(|line| line.starts_with("error: ")).unwrap_or_else(|| panic!("{stderr}"));
    for word in words {
        assert!(error.contains(word), "{word:?} is not in {error}");
    }
    assert!(!stderr.contains("panicked"), "{stderr}");
}

/// A server that asks for the password in clear text, and then refuses it.
fn ask_for_password(mut client: TcpStream) -> std::io::Result<()> {
    loop {
        let mut head = [0; 8];
        client.read_exact(&mut head)?;
        let length = u32::from_be_bytes([head[0], head[1], head[2], head[3]]);
        let mut rest = vec![0; usize::try_from(length).unwrap() - 8];
        client.read_exact(&mut rest)?;
        if head[4..] != [4, 210, 22, 47] {
            break;
        }
        client.write_all(b"N")?;
    }
    client.write_all(&frame(b'R', &[0, 0, 0, 3]))?;
    client.read_exact(&mut [0; 5])?;
    client.write_all(&frame(b'E', b"SFATAL\0C28P01\0Mno\0\0"))
}

#[test]
fn a_program_that_prints_a_password_gets_no_secret_of_the_relay() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let source = format!("--source=postgres://u@{}/d", listener.local_addr().unwrap());
    thread::spawn(move || listener.incoming().for_each(|client| drop(ask_for_password(client.unwrap()))));
    let file = tempfile::NamedTempFile::new().unwrap();
    let program = format!("--source-password-command=sh -c 'env >{}; echo x'", file.path().display());
    let own = ["WALRELAY_KAFKA_SASL_PASSWORD", "WALRELAY_KAFKA_SSL_KEY_PASSWORD", "PGPASSWORD", "DATABASE_URL"];
    let mut variables = own.map(|name| (name, SECRET)).to_vec();
    let path = std::env::var("PATH").unwrap();
    variables.extend([("AWS_SECRET_ACCESS_KEY", "its own"), ("PATH", &path)]);
    let (code, _, stderr) = said(&["status", &source, &program], &variables);
    assert_eq!(code, 2, "{stderr}");
    let environment = fs::read_to_string(file.path()).unwrap();
    assert!(environment.contains("AWS_SECRET_ACCESS_KEY=its own"), "{environment}");
    assert!(!environment.contains(SECRET) && !environment.contains("WALRELAY_"), "{environment}");
}

#[test]
fn nonsense_at_the_door_is_a_typed_error() {
    check_nonsense(
        Nonsense::AtTheDoor(b"R\x00\x00\x00\x06\x00\x01"),
        &["AuthenticationRequest", "4 bytes wanted, 2 left", "offset 0", "0001"],
    );
    check_nonsense(Nonsense::AtTheDoor(b"R\x00\x00\x00\x01"), &["malformed frame", "'R'", "length of 1"]);
    check_nonsense(Nonsense::AtTheDoor(b"R\x7f\xff\xff\xff"), &["length of 2147483647", "malformed frame"]);
    check_nonsense(Nonsense::AtTheDoor(b"R\xff\xff\xff\xff"), &["malformed frame", "-1"]);
    check_nonsense(Nonsense::AtTheDoor(b"HTTP/1.1 400 Bad Request\r\n\r\n"), &["malformed frame", "'H'"]);
}

#[test]
fn nonsense_as_an_answer_is_a_typed_error() {
    let row = b"D\x00\x00\x00\x0a\x00\x04\x7f\xff\xff\xff";
    check_nonsense(
        Nonsense::AsAnswer(row),
        &["DataRow", "2147483647 bytes wanted, 0 left", "offset 6", "00047fffffff"],
    );
    check_nonsense(Nonsense::AsAnswer(b"!\x00\x00\x00\x04"), &["unexpected message '!'"]);
}

#[test]
fn nonsense_in_the_stream_is_a_typed_error() {
    const HEAD: usize = 25;
    const BEGIN: [u8; HEAD + 4] = {
        let mut bytes = [0; HEAD + 4];
        (bytes[0], bytes[HEAD], bytes[HEAD + 3]) = (b'w', b'B', 0x2A);
        bytes
    };
    const UNKNOWN: [u8; HEAD + 1] = {
        let mut bytes = [0; HEAD + 1];
        (bytes[0], bytes[HEAD]) = (b'w', b'?');
        bytes
    };
    const INSERT: [u8; HEAD + 8] = {
        let mut bytes = [0; HEAD + 8];
        (bytes[0], bytes[HEAD], bytes[HEAD + 4], bytes[HEAD + 5]) = (b'w', b'I', 7, b'N');
        bytes
    };
    check_nonsense(Nonsense::InTheStream(&BEGIN), &["malformed Begin", "offset", "4200002a"]);
    check_nonsense(Nonsense::InTheStream(&UNKNOWN), &["unknown", "'?'", "3f"]);
    check_nonsense(Nonsense::InTheStream(&INSERT), &["not as documented", "Insert outside any transaction"]);
    check_nonsense(Nonsense::InTheStream(b"k\x00\x00"), &["offset 1", "6b0000"]);
    check_nonsense(Nonsense::InTheStream(b""), &["1 bytes wanted, 0 left", "offset 0"]);
}
