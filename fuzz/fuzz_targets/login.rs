//! Any messages of a server while a connection logs in, with SCRAM in all of its steps.
//!
//! The input's first text is `channel_binding`, the others are the server's messages: a tag and a body, in which `{nonce}` stands for the
//! client's nonce and `{proof}` for SCRAM's proof that the server knows the password. Behind the last one, the server closes the connection.
//! The login ends. It succeeds after SCRAM only if the server has proved that it knows the password, and never without the channel binding
//! that is required. The password goes out once at most, and not beside SCRAM. An error does not show it, and is as long as what it quotes.

#![no_main]

use std::error::Error as _;
use std::fs;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::num::NonZeroU32;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::thread;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use libfuzzer_sys::fuzz_target;
use ring::hmac::{HMAC_SHA256, Key, sign};
use ring::pbkdf2::{PBKDF2_HMAC_SHA256, derive};
use walrelay::pg::source::Source;
use walrelay::pg::{Connection, Error, Purpose};
use walrelay_fuzz::{SECRET, assert_bounded, bare, replaced, texts};

/// The server computes no more iterations for its proof.
const MOST_ITERATIONS: u32 = 4096;

thread_local! {
    static SOCKET: Socket = Socket::new();
}

fuzz_target!(|input: &[u8]| {
    if replaced(input, SECRET, b"").len() != input.len() {
        return;
    }
    let mut messages = texts(input);
    let binding = match messages.next() {
        Some(b"require") => "require",
        Some(b"disable") => "disable",
        _ => "prefer",
    };
    SOCKET.with(|socket| log_in(socket, binding, &messages.collect::<Vec<_>>()));
});

fn log_in(socket: &Socket, binding: &str, messages: &[&[u8]]) {
    let folder = socket.folder.display();
    let text = format!("host={folder} user=me dbname=d password={SECRET} channel_binding={binding}");
    let source = Source::resolve(Some(&text), &bare()).unwrap().source;
    let (opened, server) = thread::scope(|scope| {
        let server = scope.spawn(|| Server::accept(&socket.listener).serve(messages));
        // The client closes the connection, so that the server ends.
        let opened = Connection::open(&source, Purpose::Control).map(drop);
        (opened, server.join().unwrap())
    });
    let heard = server.heard.concat();
    let is_scram = contains(&heard, b"SCRAM-SHA-256");
    let passwords = heard.windows(SECRET.len()).filter(|window| *window == SECRET.as_bytes()).count();
    assert!(passwords <= usize::from(!is_scram && binding != "require"), "the password went out {passwords} times");
    match opened {
        Ok(()) => assert!(if is_scram { server.has_proved } else { binding != "require" }, "the login succeeded"),
        Err(error) => judge(&error, server.said),
    }
    assert!(binding != "require" || !is_scram, "a Unix socket cannot be bound");
}

/// The server has said so many bytes.
fn judge(error: &Error, said: usize) {
    let mut texts = vec![error.to_string()];
    let mut cause = error.source();
    while let Some(error) = cause {
        texts.push(error.to_string());
        cause = error.source();
    }
    for text in texts {
        assert!(!text.contains(SECRET), "{text:?}");
        assert_bounded(&text, said);
    }
    assert!(!format!("{error:?}").contains(SECRET), "{error:?}");
}

fn contains(bytes: &[u8], wanted: &[u8]) -> bool {
    bytes.windows(wanted.len()).any(|window| window == wanted)
}

/// A socket where a server listens. Its folder goes when the thread ends.
struct Socket {
    folder: PathBuf,
    listener: UnixListener,
}

impl Socket {
    fn new() -> Self {
        let folder = std::env::temp_dir().join(format!("walrelay-fuzz-{}-login", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let listener = UnixListener::bind(folder.join(".s.PGSQL.5432")).unwrap();
        Self { folder, listener }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.folder));
    }
}

/// A server that knows the password.
struct Server {
    stream: UnixStream,
    /// The bodies of the client's messages behind the start-up packet.
    heard: Vec<Vec<u8>>,
    /// SCRAM's last challenge.
    challenge: String,
    /// Whether it has sent its proof.
    has_proved: bool,
    /// The bytes that it has sent.
    said: usize,
}

impl Server {
    fn accept(listener: &UnixListener) -> Self {
        let (stream, _) = listener.accept().unwrap();
        let mut server = Self { stream, heard: Vec::new(), challenge: String::new(), has_proved: false, said: 0 };
        server.hear();
        server.heard.clear();
        server
    }

    /// Says all messages, and then hears the client until it goes.
    fn serve(mut self, messages: &[&[u8]]) -> Self {
        for message in messages {
            let Some((tag, body)) = message.split_first() else { continue };
            self.say(*tag, body);
        }
        drop(self.stream.shutdown(Shutdown::Write));
        while self.hear() {}
        self
    }

    fn say(&mut self, tag: u8, body: &[u8]) {
        let heard = |body: Option<&Vec<u8>>| String::from_utf8_lossy(body.map_or(&[], Vec::as_slice)).into_owned();
        let nonce = self
            .heard
            .iter()
            .rev()
            .map(|body| heard(Some(body)))
            .find_map(|body| Some(body.split_once("r=")?.1.split(',').next()?.to_owned()));
        let mut body = replaced(body, "{nonce}", nonce.unwrap_or_default().as_bytes());
        if contains(&body, b"{proof}") {
            let (first, last) = (heard(self.heard.first()), heard(self.heard.last()));
            let proof = proof(&first, &self.challenge, &last);
            self.has_proved |= proof.is_some();
            body = replaced(&body, "{proof}", proof.unwrap_or_default().as_bytes());
        }
        let request = body.first_chunk::<4>().map(|number| u32::from_be_bytes(*number)).filter(|_| tag == b'R');
        if request == Some(11) {
            self.challenge = String::from_utf8_lossy(&body[4..]).into_owned();
        }
        self.said += body.len();
        let length = u32::try_from(body.len() + 4).unwrap().to_be_bytes();
        // The client may have gone.
        drop(self.stream.write_all(&[&[tag], &length[..], &body].concat()));
        // The client answers these, or goes.
        if matches!(request, Some(3 | 5 | 10 | 11)) {
            self.hear();
        }
    }

    /// Whether the client has sent a message.
    fn hear(&mut self) -> bool {
        let mut room = [0; 4096];
        let read = self.stream.read(&mut room).unwrap_or_default();
        self.heard.push(room[read.min(5)..read].to_vec());
        read > 0
    }
}

/// The proof that a server owes which knows the password (RFC 5802, section 3). `None`: it was not asked for any.
fn proof(first: &str, challenge: &str, last: &str) -> Option<String> {
    let (_, bare) = first.split_once("n,,")?;
    let (unproved, _) = last.rsplit_once(",p=")?;
    let part = |name| challenge.split(',').find_map(|part| part.strip_prefix(name));
    let salt = STANDARD.decode(part("s=")?).ok()?;
    let iterations = part("i=")?.parse::<NonZeroU32>().ok().filter(|number| number.get() <= MOST_ITERATIONS)?;
    let mut salted = [0; 32];
    derive(PBKDF2_HMAC_SHA256, iterations, &salt, SECRET.as_bytes(), &mut salted);
    let server_key = sign(&Key::new(HMAC_SHA256, &salted), b"Server Key");
    let messages = format!("{bare},{challenge},{unproved}");
    Some(STANDARD.encode(sign(&Key::new(HMAC_SHA256, server_key.as_ref()), messages.as_bytes())))
}
