//! Encodes a message as pgoutput would write it.
//!
//! In: positions, a table's shape, values in text form. Out: bytes that [`Message::decode`](super::Message::decode) reads. So rows that
//! come from a query instead of a slot go through the same loop. This file has only the messages that such rows need. Pure.
//! Specification: PostgreSQL manual, section 54.9 "Logical Replication Message Formats".

use super::{PgTime, Relation, RelationId};
use crate::lsn::Lsn;

/// Appends a Begin.
pub fn begin(out: &mut Vec<u8>, final_lsn: Lsn, commit_time: PgTime) {
    out.push(b'B');
    out.extend(final_lsn.bytes().to_be_bytes());
    out.extend(commit_time.0.to_be_bytes());
    out.extend(0_u32.to_be_bytes());
}

/// Appends a Commit.
pub fn commit(out: &mut Vec<u8>, commit_lsn: Lsn, end_lsn: Lsn, commit_time: PgTime) {
    out.extend(b"C\0");
    out.extend(commit_lsn.bytes().to_be_bytes());
    out.extend(end_lsn.bytes().to_be_bytes());
    out.extend(commit_time.0.to_be_bytes());
}

/// Appends a Relation.
pub fn relation(out: &mut Vec<u8>, relation: &Relation) {
    out.push(b'R');
    out.extend(relation.id.to_be_bytes());
    for name in [&relation.namespace, &relation.name] {
        string(out, name);
    }
    out.push(relation.replica_identity);
    out.extend(count(relation.columns.len()).to_be_bytes());
    for column in &relation.columns {
        out.push(0);
        string(out, &column.name);
        out.extend(column.type_id.to_be_bytes());
        out.extend(column.type_modifier.to_be_bytes());
    }
}

/// Appends the beginning of an Insert whose row has `columns` columns. [`value`] then appends one column after the other.
pub fn insert(out: &mut Vec<u8>, relation: RelationId, columns: usize) {
    out.push(b'I');
    out.extend(relation.to_be_bytes());
    out.push(b'N');
    out.extend(count(columns).to_be_bytes());
}

/// Appends a value in text form. `None`: SQL null.
pub fn value(out: &mut Vec<u8>, text: Option<&[u8]>) {
    let Some(text) = text else { return out.push(b'n') };
    out.push(b't');
    out.extend(u32::try_from(text.len()).unwrap_or(u32::MAX).to_be_bytes());
    out.extend_from_slice(text);
}

/// A table has at most 1600 columns.
fn count(columns: usize) -> u16 {
    u16::try_from(columns).unwrap_or(u16::MAX)
}

fn string(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(text.as_bytes());
    out.push(0);
}

#[cfg(test)]
mod tests {
    use super::super::{Begin, Commit, Message, RelationColumn, TupleValue};
    use super::*;

    fn written(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut out = Vec::new();
        write(&mut out);
        out
    }

    #[test]
    fn what_is_written_is_read_back() {
        let (lsn, end, time) = (Lsn::new(7), Lsn::new(8), PgTime(-5));
        assert_eq!(
            Message::decode(&written(|out| begin(out, lsn, time))),
            Ok(Message::Begin(Begin { final_lsn: lsn, commit_time: time, xid: 0 }))
        );
        assert_eq!(
            Message::decode(&written(|out| commit(out, lsn, end, time))),
            Ok(Message::Commit(Commit { commit_lsn: lsn, end_lsn: end, commit_time: time }))
        );
        let column = |name: &str| RelationColumn { name: name.to_owned(), type_id: 25, type_modifier: -1 };
        let table = Relation {
            id: 16_400,
            namespace: "public".to_owned(),
            name: "Out box".to_owned(),
            replica_identity: b'd',
            columns: vec![column("id"), column("p")],
        };
        assert_eq!(Message::decode(&written(|out| relation(out, &table))), Ok(Message::Relation(table)));
        let row = written(|out| {
            insert(out, 16_400, 3);
            for text in [Some(&b"a"[..]), None, Some(&b""[..])] {
                value(out, text);
            }
        });
        let Ok(Message::Insert { relation: 16_400, new }) = Message::decode(&row) else { panic!("{row:?}") };
        let columns: Vec<TupleValue<'_>> = new.columns().map(Result::unwrap).collect();
        assert_eq!(columns, [TupleValue::Text(b"a"), TupleValue::Null, TupleValue::Text(b"")]);
    }
}
