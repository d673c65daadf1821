//! Tests with the messages that real servers of the versions 14 to 18 sent: decoded whole, cut at every byte, and split into frames
//! anywhere. `captured/capture.sql` has the statements that gave these messages.

use super::{Message, TupleValue};
use crate::pg::frame::ReadBuffer;
use crate::pg::replication::ReplicationMessage;

const SERVERS: [(&str, &str); 5] = [
    ("14", include_str!("postgres-14.hex")),
    ("15", include_str!("postgres-15.hex")),
    ("16", include_str!("postgres-16.hex")),
    ("17", include_str!("postgres-17.hex")),
    ("18", include_str!("postgres-18.hex")),
];

fn messages(hex: &str) -> Vec<Vec<u8>> {
    let byte = |digits: &[u8]| u8::from_str_radix(std::str::from_utf8(digits).unwrap(), 16).unwrap();
    hex.lines().map(|line| line.as_bytes().chunks(2).map(byte).collect()).collect()
}

/// One line for each message, with the parts that the relay uses.
fn line(message: &Message<'_>) -> String {
    match message {
        Message::Begin(_) => "begin".to_owned(),
        Message::Commit(commit) => {
            assert!(commit.end_lsn > commit.commit_lsn);
            "commit".to_owned()
        }
        Message::Relation(relation) => {
            let columns: Vec<_> = relation.columns.iter().map(|column| column.name.as_str()).collect();
            format!("relation {}.{} ({})", relation.namespace, relation.name, columns.join(", "))
        }
        Message::Insert { new, .. } => format!("insert {}", row(new)),
        Message::Update { new, .. } => format!("update {}", row(new)),
        Message::Delete { .. } => "delete".to_owned(),
        Message::LogicalMessage(message) => {
            let content = String::from_utf8_lossy(message.content);
            format!("message {} {} {content}", message.transactional, message.prefix)
        }
        Message::Origin => "origin".to_owned(),
        Message::Type(_) => "type".to_owned(),
        Message::Truncate => "truncate".to_owned(),
        Message::StrayStreamAbort => "stream abort".to_owned(),
    }
}

fn row(tuple: &super::Tuple<'_>) -> String {
    let value = |column| match column {
        TupleValue::Null => "null".to_owned(),
        TupleValue::Unchanged => "unchanged".to_owned(),
        TupleValue::Text(text) if text.len() > 100 => format!("{} bytes", text.len()),
        TupleValue::Text(text) => String::from_utf8(text.to_vec()).unwrap(),
        TupleValue::Binary(_) => panic!("nobody asked for binary"),
    };
    tuple.columns().map(|column| value(column.unwrap())).collect::<Vec<_>>().join(" | ")
}

#[test]
fn what_real_servers_send_is_understood() {
    let expected = [
        "begin",
        "type",
        "relation public.outbox (id, aggregatetype, aggregateid, type, payload, big)",
        "insert 1 | order | o-1 | calm | {\"name\": \"Zoë\", \"total\": 1.50} | 3000 bytes",
        "insert 2 | null |  | wild | null | null",
        "relation public.Other \"Table\" (id, note)",
        "insert 1 | note",
        "relation public.computed (id, last)",
        "insert 1 | last",
        "update 1 | order | o-2 | calm | {\"name\": \"Zoë\", \"total\": 1.50} | unchanged",
        "update 2 | note",
        "delete",
        "message true outbox {\"id\": 9}",
        "commit",
        "message false aside not in a transaction",
        "begin",
        "type",
        "relation public.outbox (id, aggregatetype, aggregateid, type, payload, big)",
        "relation public.Other \"Table\" (id, note)",
        "truncate",
        "commit",
        "begin",
        "origin",
        "type",
        "relation public.outbox (id, aggregatetype, aggregateid, type, payload, big)",
        "insert 4 | far | f | calm | [] | null",
        "commit",
        "begin",
        "type",
        "relation public.outbox (id, aggregatetype, aggregateid, type, payload, big, extra)",
        "insert 5 | null | null | null | null | null | 50",
        "commit",
    ];
    for (major, hex) in SERVERS {
        let messages = messages(hex);
        let mut lines: Vec<_> = messages.iter().map(|bytes| line(&Message::decode(bytes).unwrap())).collect();
        if major == "14" {
            // Version 14 also sends empty transactions.
            assert_eq!(lines.drain(..2).collect::<Vec<_>>(), ["begin", "commit"]);
        }
        assert_eq!(lines, expected, "Postgres {major}");
    }
}

#[test]
fn a_captured_message_cut_at_any_byte_is_an_error_or_a_row_whose_columns_end_early() {
    for (major, hex) in SERVERS {
        for bytes in messages(hex) {
            for cut in (0..bytes.len()).take(400) {
                let ends_early = match Message::decode(&bytes[..cut]) {
                    Err(_) | Ok(Message::Delete { .. } | Message::Origin | Message::Type(_) | Message::Truncate) => {
                        true
                    }
                    Ok(Message::Insert { new, .. } | Message::Update { new, .. }) => {
                        new.columns().any(|column| column.is_err())
                    }
                    Ok(_) => false,
                };
                assert!(ends_early, "Postgres {major}: {bytes:02x?} cut at {cut}");
            }
        }
    }
}

#[test]
fn captured_messages_come_out_of_the_read_buffer_whole_wherever_the_stream_is_split() {
    for (major, hex) in SERVERS {
        let mut messages = messages(hex);
        for bytes in &mut messages {
            bytes.truncate(300);
        }
        let stream: Vec<u8> = messages.iter().flat_map(|bytes| copy_data(bytes)).collect();
        for split in 0..stream.len() {
            let mut buffer = ReadBuffer::new(1 << 20);
            let mut seen = Vec::new();
            for piece in [&stream[..split], &stream[split..]] {
                buffer.space()[..piece.len()].copy_from_slice(piece);
                buffer.filled(piece.len());
                drain(&mut buffer, &mut seen);
            }
            assert!(seen == messages, "Postgres {major}, split at {split}");
        }
    }
}

fn copy_data(data: &[u8]) -> Vec<u8> {
    let length = u32::try_from(4 + 25 + data.len()).unwrap();
    [&b"d"[..], &length.to_be_bytes(), b"w", &[0; 24], data].concat()
}

fn drain(buffer: &mut ReadBuffer, seen: &mut Vec<Vec<u8>>) {
    while let Some(frame) = buffer.frame().unwrap() {
        let length = frame.len();
        match ReplicationMessage::decode(frame.body).unwrap() {
            ReplicationMessage::XLogData(data) => seen.push(data.data.to_vec()),
            ReplicationMessage::PrimaryKeepalive(_) => panic!("there is none"),
        }
        buffer.consume(length);
    }
}
