//! The Redis protocol, version 2, as far as tests need it: one call, one reply. A client of its own, so that what the relay's
//! library wrote is read by another.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

/// How long a connection, and each reply, may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// A reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// A simple string, such as `OK`.
    Text(String),
    /// An error, such as `WRONGTYPE …`.
    Error(String),
    /// A number.
    Integer(i64),
    /// A string of bytes.
    Bytes(Vec<u8>),
    /// None of those.
    Null,
    /// Several.
    Array(Vec<Self>),
}

impl Reply {
    /// The replies in it; none unless it is an array.
    pub fn items(&self) -> &[Self] {
        if let Self::Array(items) = self { items } else { &[] }
    }

    /// Its bytes as text; empty when it has none.
    pub fn text(&self) -> String {
        match self {
            Self::Text(text) | Self::Error(text) => text.clone(),
            Self::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            Self::Integer(number) => number.to_string(),
            Self::Null | Self::Array(_) => String::new(),
        }
    }

    /// Its number; `None` when it is none.
    pub fn integer(&self) -> Option<i64> {
        if let Self::Integer(number) = self { Some(*number) } else { None }
    }
}

/// A connection to a server on 127.0.0.1.
#[derive(Debug)]
pub struct Connection {
    stream: BufReader<TcpStream>,
}

impl Connection {
    /// Connects.
    ///
    /// # Errors
    /// Nobody listens.
    pub fn open(port: u16) -> Result<Self> {
        let stream = TcpStream::connect_timeout(&SocketAddr::from(([127, 0, 0, 1], port)), PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream: BufReader::new(stream) })
    }

    /// Sends a command and waits for its reply; an error that the server replies with is a reply.
    ///
    /// # Errors
    /// The connection is lost, or it is another protocol.
    pub fn call<A: AsRef<[u8]>>(&mut self, words: &[A]) -> Result<Reply> {
        let mut command = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            command.extend_from_slice(format!("${}\r\n", word.as_ref().len()).as_bytes());
            command.extend_from_slice(word.as_ref());
            command.extend_from_slice(b"\r\n");
        }
        self.stream.get_mut().write_all(&command)?;
        self.reply()
    }

    fn reply(&mut self) -> Result<Reply> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        let line = line.strip_suffix("\r\n").context("the connection was lost")?;
        let (kind, rest) = line.split_at_checked(1).context("an empty reply")?;
        Ok(match kind {
            "+" => Reply::Text(rest.to_owned()),
            "-" => Reply::Error(rest.to_owned()),
            ":" => Reply::Integer(rest.parse()?),
            "$" | "*" if rest == "-1" => Reply::Null,
            "$" => Reply::Bytes(self.bytes(rest.parse()?)?),
            "*" => Reply::Array((0..rest.parse::<usize>()?).map(|_| self.reply()).collect::<Result<_>>()?),
            other => bail!("not the Redis protocol: {other:?}"),
        })
    }

    fn bytes(&mut self, length: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; length + 2];
        self.stream.read_exact(&mut bytes)?;
        bytes.truncate(length);
        Ok(bytes)
    }
}
