//! AMQP 0-9-1 as far as tests need it: one question, one answer. A client of its own, so that what the relay published is read by
//! another.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

/// How long a connection, and each answer, may take.
const PATIENCE: Duration = Duration::from_mins(1);

/// Declarations last.
const DURABLE: u8 = 2;

/// Messages that a consumer is given before it acknowledges any.
const PREFETCH: u16 = 1000;

/// What a stream says of a message: its place, from 0.
const STREAM_OFFSET: &str = "x-stream-offset";

/// A message of a queue.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Message {
    /// The exchange it was published to.
    pub exchange: String,
    /// Its routing key.
    pub key: String,
    /// The properties that it has, by their names: `message_id`, `type`, …
    pub properties: BTreeMap<&'static str, String>,
    /// Its headers that are texts, numbers or nothing.
    pub headers: BTreeMap<String, Option<String>>,
    /// Its body.
    pub body: Vec<u8>,
    /// What [`Connection::acknowledge`] takes; 0: nothing is to be acknowledged.
    pub tag: u64,
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

    /// Its place in a stream, from 0; `None`: it does not come out of one.
    pub fn stream_offset(&self) -> Option<i64> {
        self.headers.get(STREAM_OFFSET)?.as_deref()?.parse().ok()
    }
}

/// A connection to a broker on 127.0.0.1, as `guest` in the vhost `/`, with one channel.
#[derive(Debug)]
pub struct Connection {
    stream: BufReader<TcpStream>,
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
                // A text, or bytes that are one here.
                83 | 120 => Some(entries.text(4)?),
                // As the server writes whole numbers.
                108 => Some(entries.number(8)?.to_string()),
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
        let mut connection = Self { stream: BufReader::new(stream) };
        connection.stream.get_mut().write_all(b"AMQP\x00\x00\x09\x01")?;
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

    /// How many messages of a queue wait for a consumer.
    ///
    /// # Errors
    /// There is no such queue.
    pub fn length(&mut self, name: &str) -> Result<u64> {
        const PASSIVE: u8 = 1;
        self.send(1, (50, 10), &[&[0, 0][..], &short(name), &[PASSIVE], &table(&[])].concat())?;
        let (_, payload) = self.answer(&[(50, 11)])?;
        let mut rest = Rest(&payload);
        rest.text(1)?;
        rest.number(4)
    }

    /// Removes the messages of a queue.
    ///
    /// # Errors
    /// There is no such queue.
    pub fn purge(&mut self, name: &str) -> Result<()> {
        self.call((50, 30), &[&[0, 0][..], &short(name), &[0]].concat(), (50, 31))
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
        let message = Message { exchange: rest.text(1)?, key: rest.text(1)?, ..Message::default() };
        self.content(message).map(Some)
    }

    /// What follows the method that announces a message: its properties and its body.
    fn content(&mut self, mut message: Message) -> Result<Message> {
        let (_, header) = self.frame()?;
        let mut rest = Rest(&header);
        rest.bytes(4)?;
        let size = usize::try_from(rest.number(8)?)?;
        properties(&mut rest, &mut message)?;
        while message.body.len() < size {
            message.body.extend(self.frame()?.1);
        }
        Ok(message)
    }

    /// Begins to take the messages of a queue, which go on to come: see [`Connection::delivered`]. `from`: of a stream, the first
    /// that is wanted.
    ///
    /// # Errors
    /// It is refused.
    pub fn consume(&mut self, queue: &str, from: Option<i64>) -> Result<()> {
        self.call((60, 10), &[&[0, 0, 0, 0][..], &PREFETCH.to_be_bytes(), &[0]].concat(), (60, 11))?;
        let from = from.map(|from| from.to_string());
        let arguments: Vec<(&str, &str)> = from.iter().map(|from| (STREAM_OFFSET, from.as_str())).collect();
        let arguments = [&[0, 0][..], &short(queue), &short("dev"), &[0], &table(&arguments)].concat();
        self.call((60, 20), &arguments, (60, 21))
    }

    /// The next message of what is consumed; `None` when none comes within `limit`.
    ///
    /// # Errors
    /// The connection is lost, or the queue is gone.
    pub fn delivered(&mut self, limit: Duration) -> Result<Option<Message>> {
        if self.stream.buffer().is_empty() && !self.comes(limit)? {
            return Ok(None);
        }
        let (_, payload) = self.answer(&[(60, 60)])?;
        let mut rest = Rest(&payload);
        rest.text(1)?;
        let tag = rest.number(8)?;
        rest.bytes(1)?;
        let message = Message { exchange: rest.text(1)?, key: rest.text(1)?, tag, ..Message::default() };
        self.content(message).map(Some)
    }

    /// Whether all that has been read was looked at.
    pub fn is_drained(&self) -> bool {
        self.stream.buffer().is_empty()
    }

    /// Whether anything is there to be read within `limit`.
    fn comes(&mut self, limit: Duration) -> Result<bool> {
        self.stream.get_ref().set_read_timeout(Some(limit.max(Duration::from_millis(1))))?;
        let came = match self.stream.fill_buf() {
            Ok([]) => bail!("the connection was closed"),
            Ok(_) => true,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => false,
            Err(error) => return Err(error.into()),
        };
        self.stream.get_ref().set_read_timeout(Some(PATIENCE))?;
        Ok(came)
    }

    /// All messages up to this one have been dealt with.
    ///
    /// # Errors
    /// The connection is lost.
    pub fn acknowledge(&mut self, message: &Message) -> Result<()> {
        self.send(1, (60, 80), &[&message.tag.to_be_bytes()[..], &[1]].concat())
    }

    /// Publishes to a queue, by the exchange that every queue is bound to. Whether it arrives shows there.
    ///
    /// # Errors
    /// The connection is lost.
    pub fn publish(&mut self, queue: &str, body: &[u8]) -> Result<()> {
        self.send(1, (60, 40), &[&[0, 0][..], &short(""), &short(queue), &[0]].concat())?;
        let size = u64::try_from(body.len())?.to_be_bytes();
        // Of basic, without properties.
        self.write_frame(2, 1, &[&[0, 60, 0, 0][..], &size, &[0, 0]].concat())?;
        self.write_frame(3, 1, body)
    }

    /// Leaves, so that what was sent is dealt with.
    ///
    /// # Errors
    /// The connection is lost.
    pub fn leave(mut self) -> Result<()> {
        self.send(0, (10, 50), &[&[0, 200][..], &short(""), &[0, 0, 0, 0]].concat())?;
        self.answer(&[(10, 51)]).map(drop)
    }

    fn call(&mut self, method: (u16, u16), arguments: &[u8], answer: (u16, u16)) -> Result<()> {
        self.send(1, method, arguments)?;
        self.answer(&[answer]).map(drop)
    }

    fn send(&mut self, channel: u16, (class, method): (u16, u16), arguments: &[u8]) -> Result<()> {
        self.write_frame(1, channel, &[&class.to_be_bytes()[..], &method.to_be_bytes(), arguments].concat())
    }

    fn write_frame(&mut self, sort: u8, channel: u16, payload: &[u8]) -> Result<()> {
        let mut frame = vec![sort];
        frame.extend(channel.to_be_bytes());
        frame.extend(u32::try_from(payload.len())?.to_be_bytes());
        frame.extend(payload);
        frame.push(0xCE);
        Ok(self.stream.get_mut().write_all(&frame)?)
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
