//! NATS' client protocol and JetStream's API, as far as tests need them: one question, one answer, and what a stream holds. A client
//! of its own, so that what the relay wrote is read by another.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

/// How long a connection, and each answer, may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// Messages that are asked for at once.
const AT_ONCE: u64 = 100;

/// A message that a stream holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// Its place in the stream, from 1.
    pub sequence: u64,
    /// When it was stored, in milliseconds since the epoch.
    pub millis: i64,
    /// Where it was sent to.
    pub subject: String,
    /// Names and values, in their order, less those that the server adds when it is read.
    pub headers: Vec<(String, String)>,
    /// What it holds.
    pub data: Vec<u8>,
}

impl Stored {
    /// The first header of this name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// A connection to a server on 127.0.0.1.
#[derive(Debug)]
pub struct Connection {
    stream: BufReader<TcpStream>,
    inbox: String,
    questions: u64,
}

/// A message for us: its subject, the status that stands in place of an answer, its headers, its data.
struct Message {
    subject: String,
    status: Option<u16>,
    headers: Vec<(String, String)>,
    data: Vec<u8>,
}

impl Connection {
    /// Connects. `login`: what CONNECT says of the user, such as `{"user": …, "pass": …}`.
    ///
    /// # Errors
    /// Nobody listens, or the login is refused.
    pub fn open(port: u16, login: &Value) -> Result<Self> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let stream = TcpStream::connect_timeout(&SocketAddr::from(([127, 0, 0, 1], port)), PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        let inbox = format!("_INBOX.dev{}x{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let mut connection = Self { stream: BufReader::new(stream), inbox, questions: 0 };
        let hello = with(json!({ "verbose": false, "headers": true, "no_responders": true }), login);
        let inbox = &connection.inbox;
        let hello = format!("CONNECT {hello}\r\nSUB {inbox}.* 1\r\nPING\r\n");
        connection.stream.get_mut().write_all(hello.as_bytes())?;
        while connection.line()? != "PONG" {}
        Ok(connection)
    }

    /// A line that is no message's; errors of the server are errors.
    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        let line = line.strip_suffix("\r\n").context("the connection was lost")?;
        if line.starts_with("-ERR") {
            bail!("NATS: {line}");
        }
        if line == "PING" {
            self.stream.get_mut().write_all(b"PONG\r\n")?;
        }
        Ok(line.to_owned())
    }

    fn message(&mut self) -> Result<Message> {
        loop {
            let line = self.line()?;
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            let (subject, headers, total) = match words.as_slice() {
                ["MSG", subject, .., total] => (*subject, 0, total.parse::<usize>()?),
                ["HMSG", subject, .., headers, total] => (*subject, headers.parse()?, total.parse()?),
                _ => continue,
            };
            let mut bytes = vec![0; total + 2];
            self.stream.read_exact(&mut bytes)?;
            bytes.truncate(total);
            let data = bytes.split_off(headers);
            let head = String::from_utf8(bytes)?;
            let mut lines = head.lines();
            let status = lines.next().and_then(|line| line.split_ascii_whitespace().nth(1)?.parse().ok());
            let pair =
                |line: &str| line.split_once(':').map(|(name, value)| (name.to_owned(), value.trim().to_owned()));
            return Ok(Message {
                subject: subject.to_owned(),
                status,
                headers: lines.filter_map(pair).collect(),
                data,
            });
        }
    }

    /// Sends a question; its answers come to the subject that is returned.
    fn send(&mut self, subject: &str, data: &[u8]) -> Result<String> {
        self.questions += 1;
        let reply = format!("{}.{}", self.inbox, self.questions);
        let mut out = format!("PUB {subject} {reply} {}\r\n", data.len()).into_bytes();
        out.extend_from_slice(data);
        out.extend_from_slice(b"\r\n");
        self.stream.get_mut().write_all(&out)?;
        Ok(reply)
    }

    fn answer(&mut self, reply: &str) -> Result<Message> {
        loop {
            let message = self.message()?;
            if message.subject == reply {
                return Ok(message);
            }
        }
    }

    /// Asks JetStream's API: `request` as `STREAM.INFO.NAME`.
    ///
    /// # Errors
    /// The connection is lost, or JetStream refuses.
    pub fn api(&mut self, request: &str, body: &Value) -> Result<Value> {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let reply = self.send(&format!("$JS.API.{request}"), body.as_bytes())?;
        let message = self.answer(&reply)?;
        let answer: Value = serde_json::from_slice(&message.data).with_context(|| format!("{:?}", message.status))?;
        match answer.get("error") {
            Some(error) => bail!("{request}: {error}"),
            None => Ok(answer),
        }
    }

    /// Makes a stream with file storage; `more`: further members of its configuration.
    ///
    /// # Errors
    /// As [`Connection::api`].
    pub fn create_stream(&mut self, name: &str, subjects: &[&str], more: &Value) -> Result<()> {
        let config = with(json!({ "name": name, "subjects": subjects, "storage": "file", "allow_direct": true }), more);
        self.api(&format!("STREAM.CREATE.{name}"), &config).map(drop)
    }

    /// Changes members of a stream's configuration.
    ///
    /// # Errors
    /// As [`Connection::api`].
    pub fn update_stream(&mut self, name: &str, changes: &Value) -> Result<()> {
        let info = self.api(&format!("STREAM.INFO.{name}"), &Value::Null)?;
        let config = with(info.get("config").context("no configuration")?.clone(), changes);
        self.api(&format!("STREAM.UPDATE.{name}"), &config).map(drop)
    }

    /// How many messages a stream holds.
    ///
    /// # Errors
    /// As [`Connection::api`].
    pub fn count(&mut self, stream: &str) -> Result<u64> {
        let info = self.api(&format!("STREAM.INFO.{stream}"), &Value::Null)?;
        info.pointer("/state/messages").and_then(Value::as_u64).context("no state")
    }

    /// All messages of a stream, in their order.
    ///
    /// # Errors
    /// As [`Connection::api`].
    pub fn messages(&mut self, stream: &str) -> Result<Vec<Stored>> {
        let mut stored: Vec<Stored> = Vec::new();
        loop {
            let next = stored.last().map_or(1, |message| message.sequence + 1);
            let more = self.messages_from(stream, next, AT_ONCE)?;
            if more.is_empty() {
                return Ok(stored);
            }
            stored.extend(more);
        }
    }

    /// Up to `most` messages of a stream from this place on, in their order; none: there are none yet.
    ///
    /// # Errors
    /// As [`Connection::api`].
    pub fn messages_from(&mut self, stream: &str, place: u64, most: u64) -> Result<Vec<Stored>> {
        // A question for each: servers before 2.11 know no batches.
        let questions = (place..place + most).map(|from| json!({ "seq": from, "next_by_subj": ">" }));
        let asked = questions.map(|question| self.ask_for(stream, &question)).collect::<Result<Vec<_>>>()?;
        let mut answers = HashMap::new();
        while answers.len() < asked.len() {
            let message = self.message()?;
            if asked.contains(&message.subject) {
                answers.insert(message.subject.clone(), stored_in(message)?);
            }
        }
        // Behind the first that was not there yet, others may have come meanwhile.
        let found = asked.iter().map_while(|reply| answers.remove(reply).flatten());
        // Where a message is missing, both questions are answered with the one behind it.
        let mut stored: Vec<Stored> = Vec::new();
        for message in found {
            if stored.last().is_none_or(|last| last.sequence < message.sequence) {
                stored.push(message);
            }
        }
        Ok(stored)
    }

    /// The place of a subject's last message, from 1; 0: it has none.
    ///
    /// # Errors
    /// As [`Connection::api`].
    pub fn last_place(&mut self, stream: &str, subject: &str) -> Result<u64> {
        let reply = self.ask_for(stream, &json!({ "last_by_subj": subject }))?;
        Ok(stored_in(self.answer(&reply)?)?.map_or(0, |message| message.sequence))
    }

    fn ask_for(&mut self, stream: &str, question: &Value) -> Result<String> {
        self.send(&format!("$JS.API.DIRECT.GET.{stream}"), question.to_string().as_bytes())
    }
}

/// An object with other members, or others in their place.
fn with(mut object: Value, members: &Value) -> Value {
    if let (Some(object), Some(members)) = (object.as_object_mut(), members.as_object()) {
        object.extend(members.clone());
    }
    object
}

/// What a question for a message was answered with; `None`: there is nothing from there on.
fn stored_in(message: Message) -> Result<Option<Stored>> {
    match message.status {
        None => of_stream(message).map(Some),
        Some(404) => Ok(None),
        Some(other) => bail!("JetStream: {other} {:?}", message.headers),
    }
}

fn of_stream(message: Message) -> Result<Stored> {
    let (servers, headers): (Vec<_>, Vec<_>) = message.headers.into_iter().partition(|(name, _)| {
        let added = [
            "Nats-Stream",
            "Nats-Subject",
            "Nats-Sequence",
            "Nats-Time-Stamp",
            "Nats-Num-Pending",
            "Nats-Last-Sequence",
        ];
        added.contains(&name.as_str())
    });
    let server = |name: &str| {
        let found = servers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.clone()).with_context(|| format!("no {name}"))
    };
    Ok(Stored {
        sequence: server("Nats-Sequence")?.parse()?,
        millis: millis_of(&server("Nats-Time-Stamp")?).context("a time that is none")?,
        subject: server("Nats-Subject")?,
        headers,
        data: message.data,
    })
}

/// Milliseconds since the epoch of a time in UTC such as `2026-01-02T03:04:05.678901234Z`.
fn millis_of(text: &str) -> Option<i64> {
    let number = |range: std::ops::Range<usize>| text.get(range)?.parse::<i64>().ok();
    let (year, month, day) = (number(0..4)?, number(5..7)?, number(8..10)?);
    // Years begin in March, so that the day that may be missing is the last.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = year * 365 + year / 4 - year / 100 + year / 400 + (month * 153 + 2) / 5 + day - 719_469;
    let seconds = ((days * 24 + number(11..13)?) * 60 + number(14..16)?) * 60 + number(17..19)?;
    let fraction: String =
        text.get(20..)?.chars().take_while(char::is_ascii_digit).chain("000".chars()).take(3).collect();
    Some(seconds * 1000 + fraction.parse::<i64>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_counted_from_the_epoch() {
        assert_eq!(millis_of("1970-01-01T00:00:00.0Z"), Some(0));
        assert_eq!(millis_of("2024-02-29T12:34:56.7891Z"), Some(1_709_210_096_789));
        assert_eq!(millis_of("2026-03-01T00:00:00.000000001Z"), Some(1_772_323_200_000));
        assert_eq!(millis_of("soon"), None);
    }
}
