//! A client with the relay's windows and nothing before it: what a broker takes from one connection.
//!
//! In: where to, how many rows. Out: their messages, published as the relay publishes them: the same parts, the same batches, as many under
//! way. There are no lanes: it does not wait for a key's last message before it sends the next. It stops at the first refusal.
//!
//! | broker | under way |
//! |---|---|
//! | Redis | 8 transactions of 500 XADDs |
//! | NATS | 1,024 messages, each acknowledged by JetStream |
//! | RabbitMQ | 8 channels of 128 messages each, each confirmed |

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

const REDIS_BATCH: u64 = 500;
const REDIS_WINDOW: u64 = 8;
const NATS_WINDOW: u64 = 1024;
const RABBITMQ_CHANNELS: u16 = 8;
const RABBITMQ_WINDOW: u64 = 128;

/// What one read may bring, in bytes.
const READ_BYTES: usize = 64 << 10;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_mins(1);

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// As the relay's --to, on this machine: redis://…, nats://… or amqp://…
    #[arg(long)]
    to: String,
    /// Stream, subject or routing key
    #[arg(long)]
    topic: String,
    #[arg(long)]
    rows: u64,
    /// Distinct keys
    #[arg(long, default_value_t = 1000)]
    keys: u64,
    /// Bytes of each payload
    #[arg(long, default_value_t = 300)]
    payload: usize,
}

/// One message's parts.
struct Row {
    id: String,
    key: String,
}

/// What a protocol needs.
trait Protocol {
    /// Under way at a time.
    fn window(&self) -> u64;

    /// Appends the messages of these rows; they come in steps of [`Protocol::step`].
    fn write(&mut self, out: &mut Vec<u8>, rows: std::ops::Range<u64>);

    /// Rows that are written together.
    fn step(&self) -> u64 {
        1
    }

    /// How many more rows the beginning of `input` acknowledges, and how many bytes that takes.
    fn acknowledged(&mut self, input: &[u8]) -> Result<(u64, usize)>;
}

/// Publishes them all.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let (scheme, rest) = arguments.to.split_once("://").context("--to is no address")?;
    let host = rest.rsplit('@').next().and_then(|rest| rest.split('/').next()).context("--to is no address")?;
    let mut stream = TcpStream::connect(host)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let messages = Messages {
        topic: arguments.topic.clone(),
        payload: vec![b'x'; arguments.payload],
        keys: arguments.keys.max(1),
    };
    let mut protocol: Box<dyn Protocol> = match scheme {
        "redis" => Box::new(Redis(messages)),
        "nats" => Box::new(Nats::begin(&mut stream, messages)?),
        "amqp" => Box::new(RabbitMq::begin(&mut stream, messages)?),
        other => bail!("no bare client for {other}"),
    };
    publish(&mut stream, protocol.as_mut(), arguments.rows)
}

fn publish(stream: &mut TcpStream, protocol: &mut dyn Protocol, rows: u64) -> Result<()> {
    let (mut sent, mut done) = (0, 0);
    let (mut out, mut input, mut piece) = (Vec::new(), Vec::new(), vec![0; READ_BYTES]);
    while done < rows {
        while sent < rows && sent - done < protocol.window() {
            let next = rows.min(sent + protocol.step());
            protocol.write(&mut out, sent..next);
            sent = next;
        }
        stream.write_all(&out)?;
        out.clear();
        let read = stream.read(&mut piece)?;
        anyhow::ensure!(read > 0, "the connection was closed");
        input.extend_from_slice(piece.get(..read).unwrap_or_default());
        let (more, bytes) = protocol.acknowledged(&input)?;
        input.drain(..bytes);
        done += more;
    }
    Ok(())
}

struct Messages {
    topic: String,
    payload: Vec<u8>,
    keys: u64,
}

impl Messages {
    fn row(&self, row: u64) -> Row {
        Row {
            id: format!("00000000-0000-0000-{:04x}-{:012x}", row >> 48, row & 0xffff_ffff_ffff),
            key: format!("order-{}", row % self.keys),
        }
    }
}

struct Redis(Messages);

impl Protocol for Redis {
    fn window(&self) -> u64 {
        REDIS_WINDOW * REDIS_BATCH
    }

    fn step(&self) -> u64 {
        REDIS_BATCH
    }

    fn write(&mut self, out: &mut Vec<u8>, rows: std::ops::Range<u64>) {
        words(out, &[b"MULTI"]);
        for row in rows {
            let Row { id, key } = self.0.row(row);
            let (topic, payload) = (self.0.topic.as_bytes(), self.0.payload.as_slice());
            words(
                out,
                &[
                    b"XADD",
                    topic,
                    b"*",
                    b"id",
                    id.as_bytes(),
                    b"type",
                    b"OrderPlaced",
                    b"key",
                    key.as_bytes(),
                    b"payload",
                    payload,
                ],
            );
        }
        words(out, &[b"EXEC"]);
    }

    /// `+OK`, `+QUEUED` for each, then an array of ids.
    fn acknowledged(&mut self, input: &[u8]) -> Result<(u64, usize)> {
        let (mut done, mut at, mut end) = (0, 0, 0);
        let mut left = 0_u64;
        while let Some(length) = input.get(at..).and_then(|rest| rest.windows(2).position(|two| two == b"\r\n")) {
            let line = input.get(at..at + length).unwrap_or_default();
            let text = std::str::from_utf8(line)?;
            match text.split_at_checked(1) {
                Some(("-", error)) => bail!("Redis: {error}"),
                Some(("*", count)) => left = count.parse()?,
                Some(("$", bytes)) => {
                    let bytes: usize = bytes.parse()?;
                    if input.len() < at + length + 2 + bytes + 2 {
                        break;
                    }
                    at += bytes + 2;
                    left -= 1;
                    if left == 0 {
                        // Whole transactions only: half a one is looked at again.
                        end = at + length + 2;
                        done += 1;
                    }
                }
                _ => {}
            }
            at += length + 2;
        }
        Ok((done * REDIS_BATCH, end))
    }
}

fn words(out: &mut Vec<u8>, words: &[&[u8]]) {
    out.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
    for word in words {
        out.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
}

struct Nats(Messages);

impl Nats {
    fn begin(stream: &mut TcpStream, messages: Messages) -> Result<Self> {
        stream.write_all(
            b"CONNECT {\"verbose\":false,\"headers\":true,\"no_responders\":true}\r\nSUB _INBOX.bare.* 1\r\n",
        )?;
        Ok(Self(messages))
    }
}

impl Protocol for Nats {
    fn window(&self) -> u64 {
        NATS_WINDOW
    }

    fn write(&mut self, out: &mut Vec<u8>, rows: std::ops::Range<u64>) {
        for row in rows {
            let Row { id, key } = self.0.row(row);
            let topic = &self.0.topic;
            let headers = format!(
                "NATS/1.0\r\nNats-Msg-Id: {topic}:{id}\r\nid: {id}\r\nkey: {key}\r\neventType: OrderPlaced\r\n\r\n"
            );
            let total = headers.len() + self.0.payload.len();
            let line = format!("HPUB {topic} _INBOX.bare.{row} {} {total}\r\n{headers}", headers.len());
            out.extend_from_slice(line.as_bytes());
            out.extend_from_slice(&self.0.payload);
            out.extend_from_slice(b"\r\n");
        }
    }

    fn acknowledged(&mut self, input: &[u8]) -> Result<(u64, usize)> {
        let (mut done, mut at) = (0, 0);
        while let Some(length) = input.get(at..).and_then(|rest| rest.iter().position(|byte| *byte == b'\n')) {
            let line = std::str::from_utf8(input.get(at..at + length).unwrap_or_default())?.trim_end();
            let begin = at + length + 1;
            let Some(size) = line.strip_prefix("MSG ").and_then(|line| line.rsplit(' ').next()) else {
                anyhow::ensure!(!line.starts_with("-ERR"), "NATS: {line}");
                at = begin;
                continue;
            };
            let end = begin + size.parse::<usize>()?;
            if input.len() < end + 2 {
                break;
            }
            let answer = String::from_utf8_lossy(input.get(begin..end).unwrap_or_default());
            anyhow::ensure!(answer.contains("\"seq\":"), "NATS: {answer}");
            (done, at) = (done + 1, end + 2);
        }
        Ok((done, at))
    }
}

struct RabbitMq {
    messages: Messages,
    /// The last tag that was confirmed with all before it, of each channel; and those behind it that are confirmed.
    channels: Vec<(u64, std::collections::BTreeSet<u64>)>,
}

impl RabbitMq {
    fn begin(stream: &mut TcpStream, messages: Messages) -> Result<Self> {
        let mut out = b"AMQP\x00\x00\x09\x01".to_vec();
        method(
            &mut out,
            0,
            (10, 11),
            &[&[0; 4], b"\x05PLAIN\x00\x00\x00\x0c\x00guest\x00guest\x05en_US".as_slice()].concat(),
        );
        // Sixteen channels, 128 KiB a frame, no heartbeats.
        method(&mut out, 0, (10, 31), &[0, 16, 0, 2, 0, 0, 0, 0]);
        method(&mut out, 0, (10, 40), b"\x01/\x00\x00");
        stream.write_all(&out)?;
        // Whatever it says before it has opened is what it always says.
        wait_for(stream, 0, (10, 41))?;
        for channel in 1..=RABBITMQ_CHANNELS {
            let mut out = Vec::new();
            method(&mut out, channel, (20, 10), b"\x00");
            method(&mut out, channel, (85, 10), b"\x00");
            stream.write_all(&out)?;
            wait_for(stream, channel, (85, 11))?;
        }
        Ok(Self { messages, channels: vec![Default::default(); RABBITMQ_CHANNELS.into()] })
    }
}

impl Protocol for RabbitMq {
    fn window(&self) -> u64 {
        u64::from(RABBITMQ_CHANNELS) * RABBITMQ_WINDOW
    }

    fn write(&mut self, out: &mut Vec<u8>, rows: std::ops::Range<u64>) {
        for row in rows {
            let channel = u16::try_from(row % u64::from(RABBITMQ_CHANNELS)).unwrap_or_default() + 1;
            let Row { id, key } = self.messages.row(row);
            let topic = self.messages.topic.as_bytes();
            // The exchange `outbox`, mandatory.
            method(out, channel, (60, 40), &[&[0, 0], b"\x06outbox".as_slice(), &short(topic), &[1]].concat());
            let table = [b"\x03keyS".as_slice(), &long(key.len()), key.as_bytes()].concat();
            let size = (self.messages.payload.len() as u64).to_be_bytes();
            let properties = [
                &[0, 60, 0, 0],
                size.as_slice(),
                // content_type, headers, delivery_mode, message_id, timestamp, type, app_id.
                &0b1011_0000_1110_1000_u16.to_be_bytes(),
                &short(b"application/json"),
                &long(table.len()),
                &table,
                &[2],
                &short(id.as_bytes()),
                &[0; 8],
                &short(b"OrderPlaced"),
                &short(b"bare"),
            ];
            frame(out, 2, channel, &properties.concat());
            frame(out, 3, channel, &self.messages.payload);
        }
    }

    fn acknowledged(&mut self, input: &[u8]) -> Result<(u64, usize)> {
        let (mut done, mut at) = (0, 0);
        while let Some((sort, channel, payload, length)) = whole(input.get(at..).unwrap_or_default()) {
            at += length;
            if sort == 8 {
                continue;
            }
            let ([0, 60, 0, 80, tag @ ..], Some((last, behind))) =
                (payload, self.channels.get_mut(usize::from(channel).wrapping_sub(1)))
            else {
                bail!("RabbitMQ: {}", String::from_utf8_lossy(payload));
            };
            let (tag, multiple) = tag.split_first_chunk().context("a short acknowledgement")?;
            let tag = u64::from_be_bytes(*tag);
            let before = *last + behind.len() as u64;
            if multiple.first().is_some_and(|bits| bits & 1 == 1) {
                *last = tag.max(*last);
                *behind = behind.split_off(&(*last + 1));
            } else {
                behind.insert(tag);
            }
            while behind.remove(&(*last + 1)) {
                *last += 1;
            }
            done += *last + behind.len() as u64 - before;
        }
        Ok((done, at))
    }
}

fn short(text: &[u8]) -> Vec<u8> {
    [&[u8::try_from(text.len()).unwrap_or(u8::MAX)], text].concat()
}

fn long(length: usize) -> [u8; 4] {
    u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes()
}

fn method(out: &mut Vec<u8>, channel: u16, (class, method): (u16, u16), arguments: &[u8]) {
    frame(out, 1, channel, &[&class.to_be_bytes()[..], &method.to_be_bytes(), arguments].concat());
}

fn frame(out: &mut Vec<u8>, sort: u8, channel: u16, payload: &[u8]) {
    out.push(sort);
    out.extend_from_slice(&channel.to_be_bytes());
    out.extend_from_slice(&long(payload.len()));
    out.extend_from_slice(payload);
    out.push(0xCE);
}

/// The first frame of what has come: its sort, channel, payload and length.
fn whole(input: &[u8]) -> Option<(u8, u16, &[u8], usize)> {
    let ([sort, high, low, size @ ..], rest) = input.split_first_chunk::<7>()?;
    let size = usize::try_from(u32::from_be_bytes(*size)).ok()?;
    let payload = rest.get(..size)?;
    rest.get(size)?;
    Some((*sort, u16::from_be_bytes([*high, *low]), payload, size + 8))
}

fn wait_for(stream: &mut TcpStream, channel: u16, (class, method): (u16, u16)) -> Result<()> {
    let mut input = Vec::new();
    let wanted = [class.to_be_bytes(), method.to_be_bytes()].concat();
    loop {
        let mut piece = [0; 4096];
        let read = stream.read(&mut piece)?;
        anyhow::ensure!(read > 0, "RabbitMQ closed the connection");
        input.extend_from_slice(piece.get(..read).unwrap_or_default());
        let mut at = 0;
        while let Some((_, its, payload, length)) = whole(input.get(at..).unwrap_or_default()) {
            if its == channel && payload.starts_with(&wanted) {
                return Ok(());
            }
            at += length;
        }
    }
}
