//! The methods of AMQP 0-9-1 that are spoken here, and no others.
//!
//! In: a method frame's payload. Out: what it says, borrowed. Back: methods appended to what is to be sent. It keeps no state.
//! Specification: AMQP 0-9-1, "Class Grammar"; RabbitMQ's extensions `confirm`, `basic.nack`, `connection.blocked`.

use super::wire::{Garbled, Sort, Values, Writing};

/// Class and method.
type Number = (u16, u16);

const START_OK: Number = (10, 11);
const TUNE_OK: Number = (10, 31);
const OPEN: Number = (10, 40);
const CLOSE: Number = (10, 50);
const CHANNEL_OPEN: Number = (20, 10);
const CHANNEL_CLOSE: Number = (20, 40);
const CHANNEL_CLOSE_OK: Number = (20, 41);
const EXCHANGE_DECLARE: Number = (40, 10);
const QUEUE_DECLARE: Number = (50, 10);
const QUEUE_BIND: Number = (50, 20);
const QUEUE_DELETE: Number = (50, 40);
const PUBLISH: Number = (60, 40);
const CONFIRM_SELECT: Number = (85, 10);

/// What a server or one of its channels says when it closes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Closing<'a> {
    pub(super) code: u16,
    pub(super) text: &'a [u8],
}

/// What a server says.
#[derive(Debug, Clone, Copy)]
pub(super) enum Method<'a> {
    /// Its properties are a table.
    Start {
        properties: Values<'a>,
        mechanisms: &'a [u8],
    },
    Tune {
        channels: u16,
        frame_bytes: u32,
        heartbeat_seconds: u16,
    },
    OpenOk,
    Close(Closing<'a>),
    CloseOk,
    Blocked {
        reason: &'a [u8],
    },
    Unblocked,
    ChannelOpenOk,
    ChannelClose(Closing<'a>),
    ChannelCloseOk,
    /// What was asked for on the channel is done: declared, bound, deleted.
    Done,
    /// Publisher confirms are on.
    Selected,
    /// A message that no queue takes; it follows.
    Return {
        closing: Closing<'a>,
        exchange: &'a [u8],
        key: &'a [u8],
    },
    Ack {
        tag: u64,
        multiple: bool,
    },
    Nack {
        tag: u64,
        multiple: bool,
    },
    /// Something that is not asked for here.
    Other,
}

impl<'a> Method<'a> {
    pub(super) fn of(payload: &'a [u8]) -> Result<Self, Garbled> {
        let mut values = Values::of(payload);
        Ok(match (values.u16()?, values.u16()?) {
            (10, 10) => {
                values.u16()?;
                let properties = values;
                values.table(&mut |_, _| {})?;
                Self::Start { properties, mechanisms: values.long()? }
            }
            (10, 30) => {
                Self::Tune { channels: values.u16()?, frame_bytes: values.u32()?, heartbeat_seconds: values.u16()? }
            }
            (10, 41) => Self::OpenOk,
            (10, 50) => Self::Close(Closing { code: values.u16()?, text: values.short()? }),
            (10, 51) => Self::CloseOk,
            (10, 60) => Self::Blocked { reason: values.short()? },
            (10, 61) => Self::Unblocked,
            (20, 11) => Self::ChannelOpenOk,
            (20, 40) => Self::ChannelClose(Closing { code: values.u16()?, text: values.short()? }),
            (20, 41) => Self::ChannelCloseOk,
            (40, 11 | 21) | (50, 11 | 21 | 41) => Self::Done,
            (85, 11) => Self::Selected,
            (60, 50) => {
                let closing = Closing { code: values.u16()?, text: values.short()? };
                Self::Return { closing, exchange: values.short()?, key: values.short()? }
            }
            (60, 80) => Self::Ack { tag: values.u64()?, multiple: values.u8()? & 1 == 1 },
            (60, 120) => Self::Nack { tag: values.u64()?, multiple: values.u8()? & 1 == 1 },
            _ => Self::Other,
        })
    }
}

/// Says who we are, and proves it.
pub(super) fn start_ok(out: &mut Vec<u8>, client: &str, mechanism: &str, response: &[u8]) {
    let written = Writing::method(out, 0, START_OK).table(|table| {
        table
            .entry(b"product", Some(b"walrelay"))
            .entry(b"version", Some(env!("CARGO_PKG_VERSION").as_bytes()))
            .entry(b"platform", Some(b"Rust"))
            .entry(b"connection_name", Some(client.as_bytes()))
            .within(b"capabilities", |table| {
                table
                    .yes(b"publisher_confirms")
                    .yes(b"basic.nack")
                    .yes(b"connection.blocked")
                    .yes(b"authentication_failure_close")
            })
    });
    let written = written.short(mechanism.as_bytes()).long(response);
    written.short(b"en_US").end();
}

pub(super) fn tune_ok(out: &mut Vec<u8>, channels: u16, frame_bytes: u32, heartbeat_seconds: u16) {
    Writing::method(out, 0, TUNE_OK).u16(channels).u32(frame_bytes).u16(heartbeat_seconds).end();
}

pub(super) fn open(out: &mut Vec<u8>, vhost: &str) {
    Writing::method(out, 0, OPEN).short(vhost.as_bytes()).short(b"").u8(0).end();
}

/// The connection is wanted no more.
pub(super) fn close(out: &mut Vec<u8>) {
    Writing::method(out, 0, CLOSE).u16(200).short(b"bye").u16(0).u16(0).end();
}

pub(super) fn heartbeat(out: &mut Vec<u8>) {
    Writing::begin(out, Sort::Heartbeat, 0).end();
}

pub(super) fn channel_open(out: &mut Vec<u8>, channel: u16) {
    Writing::method(out, channel, CHANNEL_OPEN).short(b"").end();
}

pub(super) fn channel_close(out: &mut Vec<u8>, channel: u16) {
    Writing::method(out, channel, CHANNEL_CLOSE).u16(200).short(b"bye").u16(0).u16(0).end();
}

pub(super) fn channel_close_ok(out: &mut Vec<u8>, channel: u16) {
    Writing::method(out, channel, CHANNEL_CLOSE_OK).end();
}

pub(super) fn confirm_select(out: &mut Vec<u8>, channel: u16) {
    Writing::method(out, channel, CONFIRM_SELECT).u8(0).end();
}

/// A durable topic exchange; `passive`: only whether there is an exchange of that name.
pub(super) fn exchange_declare(out: &mut Vec<u8>, channel: u16, exchange: &str, passive: bool) {
    let bits = if passive { 1 } else { 2 };
    let written = Writing::method(out, channel, EXCHANGE_DECLARE).u16(0).short(exchange.as_bytes()).short(b"topic");
    written.u8(bits).table(|table| table).end();
}

/// A quorum queue; `passive`: only whether there is a queue of that name.
pub(super) fn queue_declare(out: &mut Vec<u8>, channel: u16, queue: &str, passive: bool) {
    let bits = if passive { 1 } else { 2 };
    let written = Writing::method(out, channel, QUEUE_DECLARE).u16(0).short(queue.as_bytes()).u8(bits);
    written.table(|table| if passive { table } else { table.entry(b"x-queue-type", Some(b"quorum")) }).end();
}

pub(super) fn queue_bind(out: &mut Vec<u8>, channel: u16, queue: &str, exchange: &str, key: &str) {
    let written = Writing::method(out, channel, QUEUE_BIND).u16(0).short(queue.as_bytes()).short(exchange.as_bytes());
    written.short(key.as_bytes()).u8(0).table(|table| table).end();
}

pub(super) fn queue_delete(out: &mut Vec<u8>, channel: u16, queue: &str) {
    Writing::method(out, channel, QUEUE_DELETE).u16(0).short(queue.as_bytes()).u8(0).end();
}

/// The message's header and body are to follow. It is returned where no queue takes it.
pub(super) fn publish(out: &mut Vec<u8>, channel: u16, exchange: &str, key: &str) {
    let written = Writing::method(out, channel, PUBLISH).u16(0).short(exchange.as_bytes()).short(key.as_bytes());
    written.u8(1).end();
}
