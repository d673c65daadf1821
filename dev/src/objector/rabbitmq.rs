//! AMQP 0-9-1: frames, each of a channel.
//!
//! Where a code closes a channel, the proxy closes it towards both ends, and neither hears of the other's frames for it until it has
//! agreed to the end. Where it closes a connection, the server sees that lost.
//!
//! Specification: AMQP 0-9-1, section 2.3.5 (frames); `channel.close`, `connection.close`, `basic.publish`.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::thread;

use anyhow::Result;
use parking_lot::Mutex;

use super::Shared;

/// The length of the header with which a client begins.
const HEADER: usize = 8;

/// A frame's type, channel and size; behind its payload is one more byte.
const BEFORE: usize = 7;
const END: u8 = 0xce;

/// The type of frames with a method, whose payload begins with these numbers.
const METHOD: u8 = 1;
const PUBLISH: [u8; 4] = [0, 60, 0, 40];
const CLOSE_CHANNEL: [u8; 4] = [0, 20, 0, 40];
const CLOSED_CHANNEL: [u8; 4] = [0, 20, 0, 41];
const CLOSE_CONNECTION: [u8; 4] = [0, 10, 0, 50];

struct Frame {
    channel: [u8; 2],
    method: Option<[u8; 4]>,
    bytes: Vec<u8>,
}

impl Frame {
    fn read(mut from: &TcpStream) -> Result<Self> {
        let mut bytes = vec![0; BEFORE];
        from.read_exact(&mut bytes)?;
        let &[kind, a, b, ref size @ ..] = bytes.as_slice() else { anyhow::bail!("no frame") };
        let size = usize::try_from(u32::from_be_bytes(size.try_into()?))?;
        bytes.resize(BEFORE + size + 1, 0);
        from.read_exact(bytes.get_mut(BEFORE..).unwrap_or_default())?;
        let method = bytes.get(BEFORE..BEFORE + 4).filter(|_| kind == METHOD);
        Ok(Self { channel: [a, b], method: method.map(TryInto::try_into).transpose()?, bytes })
    }

    /// `channel.close` or `connection.close` with this code.
    fn close(method: [u8; 4], channel: [u8; 2], code: u16) -> Vec<u8> {
        let text = format!("refusal {code} of the proxy");
        let length = u8::try_from(text.len()).unwrap_or_default();
        let payload = [&method[..], &code.to_be_bytes(), &[length], text.as_bytes(), &[0, 0, 0, 0]].concat();
        let size = u32::try_from(payload.len()).unwrap_or_default().to_be_bytes();
        [&[METHOD], &channel[..], &size, &payload, &[END]].concat()
    }
}

pub(super) fn serve(client: &TcpStream, server: &TcpStream, whole: bool, shared: &Shared) -> Result<()> {
    let mut header = [0; HEADER];
    let mut from_client = client;
    from_client.read_exact(&mut header)?;
    (&*server).write_all(&header)?;
    // Frames of the server's and of ours go over the same connection, each in one piece.
    let to_client = Arc::new(Mutex::new(client.try_clone()?));
    // Channels whose end the server has not agreed to.
    let closing = Arc::new(Mutex::new(BTreeSet::new()));
    let (from_server, its, its_closing) = (server.try_clone()?, Arc::clone(&to_client), Arc::clone(&closing));
    let answers = thread::spawn(move || {
        while let Ok(frame) = Frame::read(&from_server) {
            let mut closing = its_closing.lock();
            if closing.contains(&frame.channel) {
                if frame.method == Some(CLOSED_CHANNEL) {
                    closing.remove(&frame.channel);
                }
                continue;
            }
            drop(closing);
            if its.lock().write_all(&frame.bytes).is_err() {
                break;
            }
        }
    });
    // Channels whose end the client has not agreed to.
    let mut closed = BTreeSet::new();
    loop {
        let frame = match Frame::read(client) {
            Ok(frame) => frame,
            Err(error) => {
                drop(server.shutdown(Shutdown::Both));
                drop(answers.join());
                return Err(error);
            }
        };
        if closed.contains(&frame.channel) {
            if frame.method == Some(CLOSED_CHANNEL) {
                closed.remove(&frame.channel);
            }
            continue;
        }
        let code = if frame.method == Some(PUBLISH) { shared.code() } else { None };
        match code {
            None => (&*server).write_all(&frame.bytes)?,
            Some(code) if whole => {
                shared.count();
                drop(server.shutdown(Shutdown::Both));
                to_client.lock().write_all(&Frame::close(CLOSE_CONNECTION, [0, 0], code))?;
                // Its last frames are read: else the kernel would take back what was written.
                while Frame::read(client).is_ok() {}
                return Ok(());
            }
            Some(code) => {
                shared.count();
                closing.lock().insert(frame.channel);
                closed.insert(frame.channel);
                (&*server).write_all(&Frame::close(CLOSE_CHANNEL, frame.channel, 200))?;
                to_client.lock().write_all(&Frame::close(CLOSE_CHANNEL, frame.channel, code))?;
            }
        }
    }
}
