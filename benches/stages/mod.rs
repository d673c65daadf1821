//! The stages that a row passes before the Kafka client has it, each fed by itself.
//!
//! Rows are those of `sql/outbox.sql` with a payload of so many bytes, as a walsender sends them.

use std::time::Instant;
use walrelay::lsn::{Lsn, Position};
use walrelay::outbox::Mapping;
use walrelay::outbox::{Outbox, RowContext, RowOutcome};
use walrelay::pg::frame::ReadBuffer;
use walrelay::pg::replication::ReplicationMessage;
use walrelay::pgoutput::{Begin, Message, PgTime, Relation, RelationColumn, Tuple};
use walrelay::positions::{BeginVerdict, Ledger};
use walrelay::route::TopicSetting;

const RELATION: u32 = 16_384;

/// Names and types of `sql/outbox.sql`.
const COLUMNS: [(&str, u32); 5] =
    [("id", 2950), ("aggregatetype", 25), ("aggregateid", 25), ("type", 25), ("payload", 3802)];

/// An Insert message.
pub(crate) fn insert(payload: usize) -> Vec<u8> {
    let note = "x".repeat(payload.saturating_sub(12));
    let payload = format!("{{\"note\": \"{note}\"}}");
    let values = ["7c9446fc-c879-4f44-9977-55ef9a843807", "order", "order-17", "OrderPlaced", payload.as_str()];
    let mut message = vec![b'I'];
    message.extend(RELATION.to_be_bytes());
    message.push(b'N');
    message.extend((COLUMNS.len() as u16).to_be_bytes());
    for value in values {
        message.push(b't');
        message.extend((value.len() as u32).to_be_bytes());
        message.extend(value.as_bytes());
    }
    message
}

/// The same inside XLogData inside CopyData.
pub(crate) fn frame(payload: usize) -> Vec<u8> {
    let mut body = vec![b'w'];
    body.extend([0; 24]);
    body.extend(insert(payload));
    let mut frame = vec![b'd'];
    frame.extend((body.len() as u32 + 4).to_be_bytes());
    frame.extend(body);
    frame
}

/// Copies one frame into the buffer and takes it out again.
pub(crate) fn frames(buffer: &mut ReadBuffer, frame: &[u8]) -> usize {
    let mut rest = frame;
    while !rest.is_empty() {
        let room = buffer.space();
        let length = rest.len().min(room.len());
        room[..length].copy_from_slice(&rest[..length]);
        buffer.filled(length);
        rest = &rest[length..];
    }
    let length = buffer.frame().expect("a frame").expect("whole").len();
    buffer.consume(length);
    length
}

/// Decodes one CopyData's body and walks the row's columns.
pub(crate) fn decode(body: &[u8]) -> usize {
    let Ok(ReplicationMessage::XLogData(data)) = ReplicationMessage::decode(body) else { panic!("no XLogData") };
    let Ok(Message::Insert { new, .. }) = Message::decode(data.data) else { panic!("no Insert") };
    new.columns().map(|column| column.map_or(0, |_| 1)).sum()
}

/// An outbox that knows the table.
pub(crate) fn outbox() -> Outbox {
    let mapping = Mapping { topic: TopicSetting::Template("outbox.event.{route}".to_owned()), ..Mapping::default() };
    let mut outbox = Outbox::new(mapping, Vec::new()).expect("a topic");
    let column = |&(name, type_id): &(&str, u32)| RelationColumn { name: name.to_owned(), type_id, type_modifier: -1 };
    outbox
        .relation(&Relation {
            id: RELATION,
            namespace: "public".to_owned(),
            name: "outbox".to_owned(),
            replica_identity: b'd',
            columns: COLUMNS.iter().map(column).collect(),
        })
        .expect("an outbox table");
    outbox
}

/// The tuple of an Insert.
pub(crate) fn tuple(message: &[u8]) -> Tuple<'_> {
    let Ok(Message::Insert { new, .. }) = Message::decode(message) else { panic!("no Insert") };
    new
}

/// Makes the record of one row.
pub(crate) fn map(outbox: &mut Outbox, tuple: &Tuple<'_>) -> usize {
    let context = RowContext {
        commit_time: PgTime(0),
        sent_at: PgTime(0),
        position: Position { final_lsn: Lsn::new(1), ordinal: 0 },
    };
    let taken = outbox.row(RELATION, tuple, &context, |record| record.bytes() + record.headers.len());
    let Ok(RowOutcome::Record(bytes)) = taken else { panic!("no record") };
    bytes
}

/// One transaction from its beginning to its last report.
pub(crate) fn track(ledger: &mut Ledger, lsn: &mut u64, rows: u32, now: Instant) {
    *lsn += 100;
    let begun = ledger.begin(&Begin { final_lsn: Lsn::new(*lsn), commit_time: PgTime(0), xid: 1 });
    assert_eq!(begun, Ok(BeginVerdict::Take));
    ledger.tick(now, Position { final_lsn: Lsn::new(*lsn), ordinal: 0 });
    let token = ledger.token(0);
    for _ in 0..rows {
        ledger.enqueued();
    }
    ledger.commit(Lsn::new(*lsn + 50));
    for _ in 0..rows {
        ledger.delivered(token, 1);
    }
    ledger.settle(|_| {});
}
