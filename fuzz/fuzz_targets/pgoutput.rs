//! Any bytes as a replication message, as a pgoutput message and, where they are a row or a logical message, as an outbox record.
//!
//! The input is a sequence of messages, each behind its length in two bytes, so that a Relation may be followed by rows
//! of it. Must never panic, a row offered twice must give the same outcome, and a record must be one that Kafka can take.

#![no_main]

use libfuzzer_sys::fuzz_target;
use walrelay::lsn::{Lsn, Position};
use walrelay::outbox::{Mapping, Timestamp};
use walrelay::outbox::{Outbox, RowContext, RowError, RowOutcome};
use walrelay::pg::replication::ReplicationMessage;
use walrelay::pgoutput::{Message, PgTime, Tuple};
use walrelay::sink::Record;

const CONTEXT: RowContext = RowContext { commit_time: PgTime(0), sent_at: PgTime(0), position: Position { final_lsn: Lsn::ZERO, ordinal: 0 } };

fuzz_target!(|bytes: &[u8]| {
    let mut outboxes = [Mapping::default(), everything()].map(|mapping| Outbox::new(mapping, Vec::new()).unwrap());
    let mut rest = bytes;
    while let Some((message, behind)) = split(rest) {
        outboxes.iter_mut().for_each(|outbox| feed(outbox, message));
        rest = behind;
    }
});

/// The first message and what follows it.
fn split(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<2>()?;
    Some(rest.split_at(usize::from(u16::from_be_bytes(*length)).min(rest.len())))
}

/// As the server sends it, or the plugin's bytes alone, which is easier to find.
fn feed(outbox: &mut Outbox, bytes: &[u8]) {
    let data = match ReplicationMessage::decode(bytes) {
        Ok(ReplicationMessage::XLogData(data)) => data.data,
        Ok(ReplicationMessage::PrimaryKeepalive(_)) | Err(_) => bytes,
    };
    match Message::decode(data) {
        Ok(Message::Relation(relation)) => drop(outbox.relation(&relation)),
        Ok(Message::Insert { relation, new }) => {
            assert_eq!(offer(outbox, relation, &new), offer(outbox, relation, &new))
        }
        Ok(Message::LogicalMessage(message)) => {
            drop(outbox.message(&message, &CONTEXT, digest));
            drop(outbox.shown_message_id(&message));
        }
        Ok(Message::Update { new, .. }) => new.columns().for_each(drop),
        Ok(_) | Err(_) => {}
    }
}

fn offer(outbox: &mut Outbox, relation: u32, new: &Tuple<'_>) -> Result<RowOutcome<(usize, usize, i64)>, RowError> {
    outbox.row(relation, new, &CONTEXT, digest)
}

fn digest(record: &Record<'_>) -> (usize, usize, i64) {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    assert!((1..=249).contains(&record.topic.len()) && record.topic.bytes().all(allowed), "topic {:?}", record.topic);
    assert!(record.timestamp_millis >= 0 && record.partition.is_none_or(|partition| partition >= 0));
    (record.bytes(), record.headers.len(), record.timestamp_millis)
}

/// Each role, by a short name that is easy to find.
fn everything() -> Mapping {
    let column = |name: &str| Some(name.to_owned());
    let pair = |name: &str| vec![(name.to_owned(), name.to_owned())];
    Mapping {
        id_column: column("i"),
        key_column: column("k"),
        payload_column: column("p"),
        type_column: column("t"),
        route_column: column("r"),
        headers_column: column("h"),
        headers: pair("x"),
        envelope: pair("e"),
        partition_column: column("n"),
        timestamp: Timestamp::Column("s".to_owned()),
        tombstone_on_empty_payload: true,
        position_header: true,
        message_prefixes: vec![String::new(), "m".to_owned()],
        ..Mapping::default()
    }
}
