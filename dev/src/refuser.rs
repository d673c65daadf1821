//! A proxy before a broker that answers Produce requests itself, with an error.
//!
//! In: a broker's address, a topic, an error code, a delay, how many requests. Out: a port. Requests with records for that topic are
//! not forwarded as long as there are refusals left: each is answered with the code after the delay, and until then nothing behind
//! it on its connection is looked at, as a broker does. All else passes unchanged.
//!
//! It knows only what that takes of Kafka's protocol: the frame, the header of a request, and of a Produce request its topic and
//! partition, the first of each, since librdkafka sends no more. Versions 3 to 12, of which those from 9 on are the flexible ones.
//! Specification: Kafka's protocol guide, "Produce API (Key: 0)" and `ProduceRequest.json`.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use parking_lot::Mutex;

use crate::listener::Listener;

const PRODUCE: i16 = 0;

/// The versions of Produce whose topics have names and whose layout is known here.
const VERSIONS: std::ops::RangeInclusive<i16> = 3..=12;

/// The first version with compact strings and tagged fields.
const FLEXIBLE: i16 = 9;

/// No request is larger, in bytes.
const LARGEST: usize = 128 << 20;

/// Requests that are refused.
#[derive(Debug, Clone)]
pub struct Refusal {
    /// Records for this topic.
    pub topic: String,
    /// The code of Kafka's error table in the answer.
    pub code: i16,
    /// The time from the request to the answer.
    pub delay: Duration,
    /// How many requests are refused.
    pub count: usize,
}

/// The proxy; it ends when dropped, with its connections.
#[derive(Debug)]
pub struct Refuser {
    shared: Arc<Shared>,
    listener: Listener,
}

#[derive(Debug)]
struct Shared {
    target: String,
    /// Each with the number of requests that it has refused.
    refusals: Vec<(Refusal, AtomicUsize)>,
    /// All requests with records are refused with this code.
    code: Mutex<Option<i16>>,
    /// How many were refused so.
    refused: AtomicUsize,
    connections: Mutex<Vec<TcpStream>>,
}

impl Refuser {
    /// Forwards a free loopback port to `target` (`host:port`), except what is to be refused.
    ///
    /// # Errors
    /// No port can be opened.
    pub fn start(target: impl Into<String>, refusals: Vec<Refusal>) -> Result<Self> {
        let shared = Arc::new(Shared {
            target: target.into(),
            refusals: refusals.into_iter().map(|refusal| (refusal, AtomicUsize::new(0))).collect(),
            code: Mutex::default(),
            refused: AtomicUsize::default(),
            connections: Mutex::default(),
        });
        let its = Arc::clone(&shared);
        // A client that cannot be served sees its connection closed.
        let listener = Listener::start(move |client| drop(serve(&client, &its)))?;
        Ok(Self { shared, listener })
    }

    /// The address to connect to.
    pub fn address(&self) -> String {
        self.listener.address()
    }

    /// From now on all requests with records are refused with this code; `None` ends that.
    pub fn refuse(&self, code: Option<i16>) {
        *self.shared.code.lock() = code;
    }

    /// How many requests were refused so until now.
    pub fn refused(&self) -> usize {
        self.shared.refused.load(Ordering::SeqCst)
    }

    /// How many requests with records for this topic were refused until now.
    pub fn refused_of(&self, topic: &str) -> usize {
        let its = self.shared.refusals.iter().filter(|(refusal, _)| refusal.topic == topic);
        its.map(|(_, refused)| refused.load(Ordering::SeqCst)).sum()
    }
}

impl Drop for Refuser {
    fn drop(&mut self) {
        self.listener.close();
        for connection in self.shared.connections.lock().drain(..) {
            drop(connection.shutdown(Shutdown::Both));
        }
    }
}

fn serve(client: &TcpStream, shared: &Arc<Shared>) -> Result<()> {
    let server = TcpStream::connect(&shared.target)?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let kept = [client.try_clone()?, server.try_clone()?];
    shared.connections.lock().extend(kept);
    // Answers of the broker's and of ours go over the same connection, each in one piece.
    let answers = Arc::new(Mutex::new(client.try_clone()?));
    let (requests, its_server, its_shared) = (client.try_clone()?, server.try_clone()?, Arc::clone(shared));
    let ours = Arc::clone(&answers);
    thread::spawn(move || {
        drop(forward_requests(&requests, &its_server, &ours, &its_shared));
        drop(its_server.shutdown(Shutdown::Both));
    });
    thread::spawn(move || {
        drop(forward_answers(&server, &answers));
        drop(answers.lock().shutdown(Shutdown::Both));
    });
    Ok(())
}

fn forward_answers(mut server: &TcpStream, answers: &Mutex<TcpStream>) -> Result<()> {
    loop {
        let frame = read_frame(&mut server)?;
        write_frame(&mut *answers.lock(), &frame)?;
    }
}

fn forward_requests(
    mut client: &TcpStream,
    mut server: &TcpStream,
    answers: &Mutex<TcpStream>,
    shared: &Shared,
) -> Result<()> {
    loop {
        let frame = read_frame(&mut client)?;
        match shared.answer(&frame)? {
            None => write_frame(&mut server, &frame)?,
            Some((answer, delay)) => {
                thread::sleep(delay);
                write_frame(&mut *answers.lock(), &answer)?;
            }
        }
    }
}

impl Shared {
    /// What a request is refused with, and after which delay; `None`: it is the broker's.
    fn answer(&self, request: &[u8]) -> Result<Option<(Vec<u8>, Duration)>> {
        let Some(produce) = Produce::read(request)? else { return Ok(None) };
        let code = *self.code.lock();
        if let Some(code) = code {
            self.refused.fetch_add(1, Ordering::SeqCst);
            return Ok(Some((produce.refused_with(code), Duration::ZERO)));
        }
        let its = self.refusals.iter().filter(|(refusal, _)| refusal.topic == produce.topic);
        for (refusal, refused) in its {
            let left = |refused: usize| (refused < refusal.count).then_some(refused + 1);
            if refused.fetch_update(Ordering::SeqCst, Ordering::SeqCst, left).is_ok() {
                return Ok(Some((produce.refused_with(refusal.code), refusal.delay)));
            }
        }
        Ok(None)
    }
}

/// Without its length.
fn read_frame(from: &mut impl Read) -> Result<Vec<u8>> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let length = usize::try_from(i32::from_be_bytes(length))?;
    anyhow::ensure!(length <= LARGEST, "a frame of {length} bytes");
    let mut frame = vec![0; length];
    from.read_exact(&mut frame)?;
    Ok(frame)
}

fn write_frame(to: &mut impl Write, frame: &[u8]) -> Result<()> {
    let length = i32::try_from(frame.len())?.to_be_bytes();
    Ok(to.write_all(&[length.as_slice(), frame].concat())?)
}

/// The fields of a Produce request that its answer repeats.
#[derive(Debug, PartialEq, Eq)]
struct Produce {
    version: i16,
    correlation_id: i32,
    topic: String,
    partition: i32,
}

impl Produce {
    /// `None`: it is another request.
    fn read(frame: &[u8]) -> Result<Option<Self>> {
        let mut fields = Fields(frame);
        let (key, version, correlation_id) = (fields.i16()?, fields.i16()?, fields.i32()?);
        if key != PRODUCE {
            return Ok(None);
        }
        if !VERSIONS.contains(&version) {
            bail!("Produce of version {version} is not known here");
        }
        // The header's client id has the old form in every version.
        fields.string(false)?;
        let flexible = version >= FLEXIBLE;
        if flexible {
            fields.no_tags()?;
        }
        // transactional.id, acks, timeout, and how many topics and partitions.
        fields.string(flexible)?;
        fields.bytes(2 + 4)?;
        fields.length(flexible)?;
        let topic = fields.string(flexible)?;
        fields.length(flexible)?;
        let partition = fields.i32()?;
        Ok(Some(Self { version, correlation_id, topic, partition }))
    }

    fn refused_with(&self, code: i16) -> Vec<u8> {
        let flexible = self.version >= FLEXIBLE;
        let name = self.topic.as_bytes();
        let mut answer = self.correlation_id.to_be_bytes().to_vec();
        let tags: &[u8] = if flexible { &[0] } else { &[] };
        let one: &[u8] = if flexible { &[2] } else { &[0, 0, 0, 1] };
        answer.extend_from_slice(tags);
        answer.extend_from_slice(one);
        if flexible {
            answer.push(u8::try_from(name.len() + 1).unwrap_or(u8::MAX));
        } else {
            answer.extend_from_slice(&u16::try_from(name.len()).unwrap_or(u16::MAX).to_be_bytes());
        }
        answer.extend_from_slice(name);
        answer.extend_from_slice(one);
        answer.extend_from_slice(&self.partition.to_be_bytes());
        answer.extend_from_slice(&code.to_be_bytes());
        // Base offset and append time, then, by version, the log's start, single records' errors and a message.
        answer.extend_from_slice(&[0xff; 16]);
        if self.version >= 5 {
            answer.extend_from_slice(&[0xff; 8]);
        }
        match (self.version >= 8, flexible) {
            (false, _) => {}
            (true, true) => answer.extend_from_slice(&[1, 0]),
            (true, false) => answer.extend_from_slice(&[0, 0, 0, 0, 0xff, 0xff]),
        }
        // Of the partition, and of the topic.
        answer.extend_from_slice(tags);
        answer.extend_from_slice(tags);
        answer.extend_from_slice(&0_i32.to_be_bytes());
        answer.extend_from_slice(tags);
        answer
    }
}

/// The bytes of a request that are not read yet.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn bytes(&mut self, count: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count).context("the request ends too early")?;
        self.0 = rest;
        Ok(taken)
    }

    fn i16(&mut self) -> Result<i16> {
        Ok(i16::from_be_bytes(self.bytes(2)?.try_into()?))
    }

    fn i32(&mut self) -> Result<i32> {
        Ok(i32::from_be_bytes(self.bytes(4)?.try_into()?))
    }

    fn varint(&mut self) -> Result<usize> {
        let mut value = 0;
        for shift in [0, 7, 14, 21, 28] {
            let byte = self.bytes(1)?.first().copied().unwrap_or_default();
            value |= usize::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        bail!("a number that does not end")
    }

    /// Of an array; null has none.
    fn length(&mut self, compact: bool) -> Result<usize> {
        if compact { Ok(self.varint()?.saturating_sub(1)) } else { Ok(usize::try_from(self.i32()?).unwrap_or(0)) }
    }

    /// Null is empty.
    fn string(&mut self, compact: bool) -> Result<String> {
        let length = if compact { self.varint()?.saturating_sub(1) } else { usize::try_from(self.i16()?).unwrap_or(0) };
        Ok(String::from_utf8_lossy(self.bytes(length)?).into_owned())
    }

    fn no_tags(&mut self) -> Result<()> {
        anyhow::ensure!(self.varint()? == 0, "a request with tagged fields");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read_in_its_old_and_in_its_flexible_form() {
        let old = [
            &[0, 0, 0, 7, 0, 0, 0, 5, 0, 1][..],
            b"c",
            &[0xff, 0xff, 0xff, 0xff, 0, 0, 0, 9],
            &[0, 0, 0, 1, 0, 2],
            b"ab",
            &[0, 0, 0, 1, 0, 0, 0, 3],
        ];
        let flexible = [
            &[0, 0, 0, 10, 0, 0, 0, 5, 0, 1][..],
            b"c",
            &[0, 0, 0xff, 0xff, 0, 0, 0, 9],
            &[2, 3],
            b"ab",
            &[2, 0, 0, 0, 3],
        ];
        for (version, frame) in [(7, old.concat()), (10, flexible.concat())] {
            let expected = Produce { version, correlation_id: 5, topic: "ab".to_owned(), partition: 3 };
            assert_eq!(Produce::read(&frame).unwrap(), Some(expected));
            assert!(Produce::read(&frame[..frame.len() - 1]).is_err());
        }
        assert_eq!(Produce::read(&[0, 3, 0, 9, 0, 0, 0, 1]).unwrap(), None);
        assert!(Produce::read(&[0, 0, 0, 13, 0, 0, 0, 1]).is_err());
    }
}
