//! Copies of records in memory that is reused. The relay's thread fills a [`Chunk`], the client's thread reads it.
//!
//! In: records. Out: the same records, each by its number in the chunk. A chunk comes back to the relay's side when all its records are
//! settled. Its memory stays allocated.

use std::ops::Range;

use crate::sink::{Content, HEADER_OVERHEAD_BYTES, Header, Origin, Record, Tag, dead_letter};

/// Copies of records, one after the other.
#[derive(Debug, Default)]
pub struct Chunk {
    bytes: Vec<u8>,
    headers: Vec<StoredHeader>,
    entries: Vec<ChunkEntry>,
}

#[derive(Debug)]
struct ChunkEntry {
    tag: Tag,
    topic: Range<usize>,
    key: Option<Range<usize>>,
    value: Option<Range<usize>>,
    headers: Range<usize>,
    timestamp_millis: i64,
    content: Content,
}

#[derive(Debug)]
struct StoredHeader {
    name: Range<usize>,
    value: Option<Range<usize>>,
}

/// A record in a chunk.
#[derive(Debug, Clone, Copy)]
pub struct Stored<'a> {
    chunk: &'a Chunk,
    entry: &'a ChunkEntry,
}

/// The headers that walrelay's records begin with: some destinations have fields of their own for them.
#[derive(Debug, Clone, Copy)]
pub struct Parts<'a> {
    /// The value of `id`, the row's id.
    pub id: Option<&'a [u8]>,
    /// The value of `eventType`.
    pub kind: Option<&'a [u8]>,
    /// How many of the two headers the record has.
    pub headers: usize,
}

impl Chunk {
    /// Copies a record to the end.
    pub fn push(&mut self, record: &Record<'_>, tag: Tag) {
        let topic = self.copy(record.topic.as_bytes());
        let key = record.key.map(|key| self.copy(key));
        let value = record.value.map(|value| self.copy(value));
        let first = self.headers.len();
        for header in record.headers {
            let name = self.copy(header.name.as_bytes());
            let value = header.value.map(|value| self.copy(value));
            self.headers.push(StoredHeader { name, value });
        }
        let headers = first..self.headers.len();
        let Record { timestamp_millis, content, .. } = *record;
        self.entries.push(ChunkEntry { tag, topic, key, value, headers, timestamp_millis, content });
    }

    /// Sets the origin of all its records.
    pub(super) fn set_origin(&mut self, origin: Origin) {
        self.entries.iter_mut().for_each(|entry| entry.tag.origin = origin);
    }

    /// The record with that number, from 0.
    pub fn get(&self, number: usize) -> Option<Stored<'_>> {
        self.entries.get(number).map(|entry| Stored { chunk: self, entry })
    }

    /// How many records it holds.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The bytes of memory that its records take.
    pub fn bytes(&self) -> usize {
        self.bytes.len() + self.headers.len() * size_of::<StoredHeader>() + self.entries.len() * size_of::<ChunkEntry>()
    }

    /// Empties the chunk. Frees its memory above `most` bytes, so that one large record does not cost memory from then on.
    pub fn clear(&mut self, most: usize) {
        self.bytes.clear();
        self.headers.clear();
        self.entries.clear();
        if self.bytes.capacity() > most {
            self.bytes.shrink_to(most);
        }
    }

    fn copy(&mut self, bytes: &[u8]) -> Range<usize> {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        start..self.bytes.len()
    }

    fn slice(&self, range: &Range<usize>) -> &[u8] {
        self.bytes.get(range.clone()).unwrap_or_default()
    }
}

impl<'a> Stored<'a> {
    /// The record's first headers, if they are `id` and `eventType`.
    pub fn parts(self) -> Parts<'a> {
        let mut headers = self.headers().peekable();
        let id = headers.next_if(|header| header.name == "id");
        let kind = headers.next_if(|header| header.name == "eventType");
        Parts {
            id: id.and_then(|header| header.value),
            kind: kind.and_then(|header| header.value),
            headers: usize::from(id.is_some()) + usize::from(kind.is_some()),
        }
    }

    /// The id by which a destination drops repeats: a dead letter's own, or else the row's.
    pub fn repeat_id(self) -> Option<&'a [u8]> {
        self.dead_letter_id().or_else(|| self.parts().id)
    }

    /// The own id of a dead letter.
    pub fn dead_letter_id(self) -> Option<&'a [u8]> {
        self.headers().filter(|header| header.name == dead_letter::ID).last().and_then(|header| header.value)
    }

    /// The tag that its report carries.
    pub fn tag(self) -> Tag {
        self.entry.tag
    }

    /// Its address.
    pub fn topic(self) -> &'a str {
        // These bytes were a `str` when they were copied.
        std::str::from_utf8(self.chunk.slice(&self.entry.topic)).unwrap_or_default()
    }

    /// Its key.
    pub fn key(self) -> Option<&'a [u8]> {
        self.entry.key.as_ref().map(|range| self.chunk.slice(range))
    }

    /// Its value.
    pub fn value(self) -> Option<&'a [u8]> {
        self.entry.value.as_ref().map(|range| self.chunk.slice(range))
    }

    /// Milliseconds since 1970-01-01 UTC.
    pub fn timestamp_millis(self) -> i64 {
        self.entry.timestamp_millis
    }

    /// The kind of its value.
    pub fn content(self) -> Content {
        self.entry.content
    }

    /// Its headers, in their order.
    pub fn headers(self) -> impl Iterator<Item = Header<'a>> {
        let stored = self.chunk.headers.get(self.entry.headers.clone()).unwrap_or_default();
        stored.iter().map(move |header| Header {
            name: std::str::from_utf8(self.chunk.slice(&header.name)).unwrap_or_default(),
            value: header.value.as_ref().map(|range| self.chunk.slice(range)),
        })
    }

    /// The bytes of key and value.
    pub fn bytes(self) -> usize {
        self.key().map_or(0, <[u8]>::len) + self.value().map_or(0, <[u8]>::len)
    }

    /// Calls `take` with the record. Allocates for its headers.
    pub fn with_record<T>(self, take: impl FnOnce(&Record<'_>) -> T) -> T {
        let headers: Vec<Header<'_>> = self.headers().collect();
        take(&Record {
            topic: self.topic(),
            key: self.key(),
            value: self.value(),
            headers: &headers,
            timestamp_millis: self.timestamp_millis(),
            partition: None,
            content: self.content(),
        })
    }

    /// As [`Record::held_bytes`].
    pub fn held_bytes(self) -> usize {
        let header =
            |header: Header<'_>| header.name.len() + header.value.map_or(0, <[u8]>::len) + HEADER_OVERHEAD_BYTES;
        self.bytes() + self.headers().map(header).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::{OwnedRecord, Token};

    fn tag(number: u64) -> Tag {
        Tag { token: Token::unpack(number), origin: Origin::default() }
    }

    #[test]
    fn records_come_out_as_they_went_in_and_the_room_is_reused() {
        let mut chunk = Chunk::default();
        let headers = [Header { name: "id", value: Some(b"1") }, Header { name: "x", value: None }];
        let record = Record {
            topic: "orders",
            key: Some(b"k"),
            value: None,
            headers: &headers,
            timestamp_millis: 7,
            partition: None,
            content: Content::Unknown,
        };
        let bare = Record { topic: "", key: None, value: Some(b""), headers: &[], ..record };
        chunk.push(&record, tag(1));
        chunk.push(&bare, tag(2));
        let (first, second) = (chunk.get(0).unwrap(), chunk.get(1).unwrap());
        assert_eq!((first.topic(), first.key(), first.value()), ("orders", Some(&b"k"[..]), None));
        assert_eq!(first.headers().collect::<Vec<_>>(), headers);
        assert_eq!((first.tag(), first.timestamp_millis(), first.bytes()), (tag(1), 7, 1));
        assert_eq!(first.held_bytes(), record.held_bytes());
        assert_eq!(first.with_record(OwnedRecord::of), OwnedRecord::of(&record));
        assert_eq!((second.topic(), second.key(), second.value()), ("", None, Some(&b""[..])));
        assert_eq!((second.headers().count(), chunk.len()), (0, 2));
        assert!(chunk.get(2).is_none() && chunk.bytes() > 12);
        chunk.clear(1 << 20);
        assert!(chunk.is_empty() && chunk.bytes() == 0 && chunk.bytes.capacity() > 0);
        chunk.push(&Record { value: Some(&[0; 1000]), ..record }, tag(3));
        chunk.clear(100);
        assert!(chunk.bytes.capacity() < 1000);
    }
}
