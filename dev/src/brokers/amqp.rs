//! AMQP 0-9-1 as far as tests need it: one question, one answer. A client of its own, so that what the relay published is read by
//! another.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

/// How long a connection, and each answer, may take.
const PATIENCE: Duration = Duration::from_mins(1);

/// Declarations last.
const DURABLE: u8 = 2;

/// A message of a queue.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Message {
    /// The exchange it was published to.
    pub exchange: String,
    /// Its routing key.
    pub key: String,
    /// The properties that it has, by their names: `message_id`, `type`, …
    pub properties: BTreeMap<&'static str, String>,
    /// Its headers that are texts or nothing.
    pub headers: BTreeMap<String, Option<String>>,
    /// Its body.
    pub body: Vec<u8>,
}

impl Message {
    /// A property; empty where there is none.
    pub fn property(&self, name: &str) -> &str {
        self.properties.get(name).map_or("", String::as_str)
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// A connection to a broker on 127.0.0.1, as `guest` in the vhost `/`, with one channel.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
}

/// The bytes of a frame that are not looked at yet.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn bytes(&mut self, count: usize) -> Result<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(count).context("a frame ends early")?;
        self.0 = rest;
        Ok(bytes)
    }

    fn number(&mut self, bytes: usize) -> Result<u64> {
        Ok(self.bytes(bytes)?.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn text(&mut self, length_bytes: usize) -> Result<String> {
        let length = usize::try_from(self.number(length_bytes)?)?;
        Ok(String::from_utf8_lossy(self.bytes(length)?).into_owned())
    }

    fn table(&mut self) -> Result<BTreeMap<String, Option<String>>> {
        let length = usize::try_from(self.number(4)?)?;
        let (mut entries, mut found) = (Rest(self.bytes(length)?), BTreeMap::new());
        while !entries.0.is_empty() {
            let name = entries.text(1)?;
            let value = match entries.number(1)? {
                86 => None,
                83 => Some(entries.text(4)?),
                116 => Some((entries.number(1)? != 0).to_string()),
                other => bail!("header {name} is of another kind: {other}"),
            };
            found.insert(name, value);
        }
        Ok(found)
    }
}

fn short(text: &str) -> Vec<u8> {
    let length = u8::try_from(text.len()).unwrap_or(u8::MAX);
    [&[length], text.as_bytes()].concat()
}

fn table(entries: &[(&str, &str)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, value) in entries {
        bytes.extend(short(name));
        // A whole number, or a text.
        if let Ok(number) = value.parse::<i64>() {
            bytes.push(b'l');
            bytes.extend(number.to_be_bytes());
        } else {
            bytes.push(b'S');
            bytes.extend(u32::try_from(value.len()).unwrap_or(u32::MAX).to_be_bytes());
            bytes.extend(value.as_bytes());
        }
    }
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    [&length.to_be_bytes()[..], &bytes].concat()
}

impl Connection {
    /// Connects.
    ///
    /// # Errors
    /// Nobody listens, or it is refused.
    pub fn open(port: u16) -> Result<Self> {
        let stream = TcpStream::connect_timeout(&SocketAddr::from(([127, 0, 0, 1], port)), PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        let mut connection = Self { stream };
        connection.stream.write_all(b"AMQP\x00\x00\x09\x01")?;
        connection.answer(&[(10, 10)])?;
        let plain = [&table(&[])[..], &short("PLAIN"), b"\x00\x00\x00\x0c\x00guest\x00guest", &short("en_US")].concat();
        connection.send(0, (10, 11), &plain)?;
        connection.answer(&[(10, 30)])?;
        connection.send(0, (10, 31), &[0, 2, 0, 2, 0, 0, 0, 0])?;
        connection.send(0, (10, 40), &[&short("/")[..], &short(""), &[0]].concat())?;
        connection.answer(&[(10, 41)])?;
        connection.send(1, (20, 10), &short(""))?;
        connection.answer(&[(20, 11)])?;
        Ok(connection)
    }

    /// Declares a durable exchange, such as of type `topic`.
    ///
    /// # Errors
    /// It is refused.
    pub fn exchange(&mut self, name: &str, kind: &str) -> Result<()> {
        let arguments = [&[0, 0][..], &short(name), &short(kind), &[DURABLE], &table(&[])].concat();
        self.call((40, 10), &arguments, (40, 11))
    }

    /// Deletes an exchange.
    ///
    /// # Errors
    /// It is refused.
    pub fn delete_exchange(&mut self, name: &str) -> Result<()> {
        self.call((40, 20), &[&[0, 0][..], &short(name), &[0]].concat(), (40, 21))
    }

    /// Declares a durable queue with these arguments.
    ///
    /// # Errors
    /// It is refused.
    pub fn queue(&mut self, name: &str, arguments: &[(&str, &str)]) -> Result<()> {
        let arguments = [&[0, 0][..], &short(name), &[DURABLE], &table(arguments)].concat();
        self.call((50, 10), &arguments, (50, 11))
    }

    /// Binds a queue.
    ///
    /// # Errors
    /// It is refused.
    pub fn bind(&mut self, queue: &str, exchange: &str, key: &str) -> Result<()> {
        let arguments = [&[0, 0][..], &short(queue), &short(exchange), &short(key), &[0], &table(&[])].concat();
        self.call((50, 20), &arguments, (50, 21))
    }

    /// Ends a binding.
    ///
    /// # Errors
    /// It is refused.
    pub fn unbind(&mut self, queue: &str, exchange: &str, key: &str) -> Result<()> {
        let arguments = [&[0, 0][..], &short(queue), &short(exchange), &short(key), &table(&[])].concat();
        self.call((50, 50), &arguments, (50, 51))
    }

    /// Takes all messages out of a queue, in its order.
    ///
    /// # Errors
    /// There is no such queue.
    pub fn drain(&mut self, queue: &str) -> Result<Vec<Message>> {
        let mut messages = Vec::new();
        while let Some(message) = self.get(queue)? {
            messages.push(message);
        }
        Ok(messages)
    }

    /// Takes the first message out of a queue; `None`: it is empty.
    ///
    /// # Errors
    /// There is no such queue.
    pub fn get(&mut self, queue: &str) -> Result<Option<Message>> {
        self.send(1, (60, 70), &[&[0, 0][..], &short(queue), &[1]].concat())?;
        let (method, payload) = self.answer(&[(60, 71), (60, 72)])?;
        if method == (60, 72) {
            return Ok(None);
        }
        let mut rest = Rest(&payload);
        rest.bytes(9)?;
        let mut message = Message { exchange: rest.text(1)?, key: rest.text(1)?, ..Message::default() };
        let (_, header) = self.frame()?;
        let mut rest = Rest(&header);
        rest.bytes(4)?;
        let size = usize::try_from(rest.number(8)?)?;
        properties(&mut rest, &mut message)?;
        while message.body.len() < size {
            message.body.extend(self.frame()?.1);
        }
        Ok(Some(message))
    }

    fn call(&mut self, method: (u16, u16), arguments: &[u8], answer: (u16, u16)) -> Result<()> {
        self.send(1, method, arguments)?;
        self.answer(&[answer]).map(drop)
    }

    fn send(&mut self, channel: u16, (class, method): (u16, u16), arguments: &[u8]) -> Result<()> {
        let size = u32::try_from(arguments.len() + 4)?;
        let mut frame = vec![1];
        frame.extend(channel.to_be_bytes());
        frame.extend(size.to_be_bytes());
        frame.extend(class.to_be_bytes());
        frame.extend(method.to_be_bytes());
        frame.extend(arguments);
        frame.push(0xCE);
        Ok(self.stream.write_all(&frame)?)
    }

    /// One of these methods, and what stands behind its number.
    fn answer(&mut self, wanted: &[(u16, u16)]) -> Result<((u16, u16), Vec<u8>)> {
        let (sort, payload) = self.frame()?;
        let mut rest = Rest(&payload);
        let method = (u16::try_from(rest.number(2)?)?, u16::try_from(rest.number(2)?)?);
        if sort == 1 && wanted.contains(&method) {
            return Ok((method, rest.0.to_vec()));
        }
        bail!("{method:?} instead of {wanted:?}: {}", String::from_utf8_lossy(rest.0))
    }

    /// The next frame but for heartbeats: its type and its payload.
    fn frame(&mut self) -> Result<(u8, Vec<u8>)> {
        loop {
            let mut head = [0; 7];
            self.stream.read_exact(&mut head)?;
            let [sort, _, _, size @ ..] = head;
            let mut payload = vec![0; usize::try_from(u32::from_be_bytes(size))? + 1];
            self.stream.read_exact(&mut payload)?;
            payload.pop();
            if sort != 8 {
                return Ok((sort, payload));
            }
        }
    }
}

fn properties(rest: &mut Rest<'_>, message: &mut Message) -> Result<()> {
    let flags = rest.number(2)?;
    let names = [
        ("content_type", 15),
        ("content_encoding", 14),
        ("headers", 13),
        ("delivery_mode", 12),
        ("priority", 11),
        ("correlation_id", 10),
        ("reply_to", 9),
        ("expiration", 8),
        ("message_id", 7),
        ("timestamp", 6),
        ("type", 5),
        ("user_id", 4),
        ("app_id", 3),
    ];
    for (name, _) in names.into_iter().filter(|(_, bit)| flags >> bit & 1 == 1) {
        let value = match name {
            "headers" => {
                message.headers = rest.table()?;
                continue;
            }
            "delivery_mode" | "priority" => rest.number(1)?.to_string(),
            "timestamp" => rest.number(8)?.to_string(),
            _ => rest.text(1)?,
        };
        message.properties.insert(name, value);
    }
    Ok(())
}
