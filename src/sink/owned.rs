//! [`OwnedRecord`]: a copy of a record, in memory that is used again.
//!
//! In: a [`Record`], copied into one buffer. Out: the same record, any number of times. A destination keeps waiting records in these, and
//! returns a refused record in one.
//!
//! ```text
//!  bytes:  key │ value │ (name length, value length or -1, name, value) for each header
//! ```

use super::{Content, Header, Record};

/// A record with its bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OwnedRecord {
    topic: String,
    bytes: Vec<u8>,
    /// The key's length. `None`: the key is null.
    key: Option<usize>,
    value: Option<usize>,
    headers: usize,
    /// Milliseconds since 1970-01-01 UTC.
    timestamp_millis: i64,
    partition: Option<i32>,
    content: Content,
}

/// Memory for the headers that a record borrows, used again.
#[derive(Debug, Default)]
pub struct HeaderRoom(Vec<Header<'static>>);

/// The length that stands for null.
const NULL: u32 = u32::MAX;

/// The bytes of a header's two lengths.
const LENGTHS: usize = 8;

impl OwnedRecord {
    /// Copies a record.
    pub fn of(record: &Record<'_>) -> Self {
        let mut owned = Self::default();
        owned.set(record);
        owned
    }

    /// Turns this record into a copy of `record`, in the memory that it has.
    pub fn set(&mut self, record: &Record<'_>) {
        record.topic.clone_into(&mut self.topic);
        self.bytes.clear();
        self.bytes.extend_from_slice(record.key.unwrap_or_default());
        self.bytes.extend_from_slice(record.value.unwrap_or_default());
        for header in record.headers {
            let value = header.value.map_or(NULL, length);
            self.bytes.extend_from_slice(&length(header.name.as_bytes()).to_le_bytes());
            self.bytes.extend_from_slice(&value.to_le_bytes());
            self.bytes.extend_from_slice(header.name.as_bytes());
            self.bytes.extend_from_slice(header.value.unwrap_or_default());
        }
        self.key = record.key.map(<[u8]>::len);
        self.value = record.value.map(<[u8]>::len);
        self.headers = record.headers.len();
        self.timestamp_millis = record.timestamp_millis;
        self.partition = record.partition;
        self.content = record.content;
    }

    /// The topic.
    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// The partition that the record asks for.
    pub fn partition(&self) -> Option<i32> {
        self.partition
    }

    /// Sets the time and the partition.
    pub fn restore(&mut self, timestamp_millis: i64, partition: Option<i32>) {
        (self.timestamp_millis, self.partition) = (timestamp_millis, partition);
    }

    /// The memory that a copy of `record` needs, in bytes.
    pub fn needed_bytes(record: &Record<'_>) -> usize {
        let header = |header: &Header<'_>| LENGTHS + header.name.len() + header.value.map_or(0, <[u8]>::len);
        record.bytes() + record.topic.len() + record.headers.iter().map(header).sum::<usize>()
    }

    /// The memory that this record has, in bytes.
    pub fn room_bytes(&self) -> usize {
        self.bytes.capacity() + self.topic.capacity()
    }

    /// Calls `take` with the record.
    pub fn with_record<T>(&self, room: &mut HeaderRoom, take: impl FnOnce(&Record<'_>) -> T) -> T {
        let mut rest = self.bytes.as_slice();
        let key = self.key.map(|length| cut(&mut rest, length));
        let value = self.value.map(|length| cut(&mut rest, length));
        let mut headers: Vec<Header<'_>> = std::mem::take(&mut room.0);
        headers.extend((0..self.headers).filter_map(|_| header(&mut rest)));
        let Self { topic, timestamp_millis, partition, content, .. } = self;
        let taken = take(&Record {
            topic,
            key,
            value,
            headers: &headers,
            timestamp_millis: *timestamp_millis,
            partition: *partition,
            content: *content,
        });
        room.0 = emptied(headers);
        taken
    }
}

/// An emptied vector for values of another lifetime, in the same room: the standard library collects in place.
pub(crate) fn emptied<A, B>(mut vector: Vec<A>) -> Vec<B> {
    vector.clear();
    vector.into_iter().filter_map(|_| None).collect()
}

fn length(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).unwrap_or(NULL - 1)
}

/// Takes so many bytes from the front; as many as there are, if that is less.
fn cut<'a>(rest: &mut &'a [u8], length: usize) -> &'a [u8] {
    let (front, behind) = rest.split_at(length.min(rest.len()));
    *rest = behind;
    front
}

fn header<'a>(rest: &mut &'a [u8]) -> Option<Header<'a>> {
    let lengths = cut(rest, LENGTHS);
    let (name, value) = lengths.split_first_chunk().and_then(|(name, rest)| Some((*name, *rest.first_chunk()?)))?;
    let (name, value) = (u32::from_le_bytes(name), u32::from_le_bytes(value));
    // What was set was text.
    let name = std::str::from_utf8(cut(rest, name as usize)).ok()?;
    let value = (value != NULL).then(|| cut(rest, value as usize));
    Some(Header { name, value })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Bytes = Option<Vec<u8>>;

    proptest! {
        #[test]
        fn it_gives_back_what_it_was_set_to_whatever_it_was_before(
            records in prop::collection::vec((any::<Bytes>(), any::<Bytes>(), prop::collection::vec((".{0,5}", any::<Bytes>()), 0..4)), 1..4),
        ) {
            let (mut owned, mut room) = (OwnedRecord::default(), HeaderRoom::default());
            for (key, value, headers) in &records {
                let headers: Vec<Header<'_>> =
                    headers.iter().map(|(name, value)| Header { name, value: value.as_deref() }).collect();
                let (key, value) = (key.as_deref(), value.as_deref());
                let record = Record { topic: "orders", key, value, headers: &headers, timestamp_millis: 7, partition: Some(3), content: Content::Unknown };
                owned.set(&record);
                prop_assert_eq!(&OwnedRecord::of(&record), &owned);
                owned.with_record(&mut room, |found| {
                    prop_assert_eq!((found.topic, found.key, found.value), ("orders", key, value));
                    prop_assert_eq!((found.headers, found.timestamp_millis, found.partition), (headers.as_slice(), 7, Some(3)));
                    Ok(())
                })?;
            }
        }
    }

    #[test]
    fn its_room_is_used_again() {
        let header = Header { name: "n", value: Some(b"v") };
        let record = Record {
            topic: "orders",
            key: Some(b"key"),
            value: Some(b"value"),
            headers: &[header],
            timestamp_millis: 0,
            partition: None,
            content: Content::Unknown,
        };
        let (mut owned, mut room) = (OwnedRecord::of(&record), HeaderRoom::default());
        owned.with_record(&mut room, |_| ());
        assert_eq!(OwnedRecord::needed_bytes(&record), owned.bytes.len() + owned.topic.len());
        let before = (owned.bytes.as_ptr(), owned.room_bytes(), room.0.as_ptr());
        owned.set(&Record { headers: &[], ..record });
        owned.set(&record);
        owned.with_record(&mut room, |_| ());
        assert_eq!((owned.bytes.as_ptr(), owned.room_bytes(), room.0.as_ptr()), before);
    }
}
