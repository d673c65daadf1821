//! Makes a dead-letter record of a bad row's record, and the original record of a dead-letter record.
//!
//! In: a record, and what is wrong with its row. Out: the same key, payload and headers under the dead-letter topic, then
//! `walrelay-error`, `walrelay-table`, `walrelay-position`, `walrelay-topic`; `walrelay-partition` if the row asked for one; `walrelay-timestamp` if
//! records have the rows' own times; `walrelay-payload-bytes` instead of a payload that is too large; and `walrelay-id`, the dead letter's own
//! id. The key decides the partition. Its time is that of its sending. By its own id, a destination that drops repeats tells it from the dead
//! letter of another row with the same id, and from that of the same row once it is bad again.
//! The other way: in, a record that was read from a dead-letter topic; out, its row's error and origin, and the original record.

use super::{Header, Record};

/// The prefix of walrelay's own headers.
pub const OURS: &str = "walrelay-";

/// The header with the row's error. Every dead-letter record has it.
pub const ERROR: &str = "walrelay-error";

/// The header with the row's position. A record may have it already.
const POSITION: &str = "walrelay-position";

const TABLE: &str = "walrelay-table";
const TOPIC: &str = "walrelay-topic";
const PARTITION: &str = "walrelay-partition";
const PAYLOAD_BYTES: &str = "walrelay-payload-bytes";

/// The header with the dead letter's own id.
pub const ID: &str = "walrelay-id";
/// The header with the time that the row's record would have, in milliseconds since 1970-01-01 UTC. Without it, the record has the time
/// at which it is sent.
const TIMESTAMP: &str = "walrelay-timestamp";

/// The header with the number of a form that earlier versions would misread. What this version writes has none.
const FORM: &str = "walrelay-form";

/// The additions that make a dead-letter record of a bad row's record.
#[derive(Debug)]
pub struct DeadLetter<'a> {
    /// The dead-letter topic.
    pub topic: &'a str,
    /// The reason why the row was not published.
    pub error: &'a str,
    /// `schema.table`, or `message "prefix"`.
    pub table: &'a str,
    /// The row's position.
    pub position: &'a str,
    /// The dead letter's own id: no other dead letter has it, whatever slot, cluster or timeline its row is of.
    pub id: &'a str,
    /// The topic that the row was meant for. `None`: it is not known.
    pub intended: Option<&'a str>,
    /// Whether to leave out the payload, which is too large.
    pub without_payload: bool,
    /// When it is sent, in milliseconds since 1970-01-01 UTC. Kafka deletes by this time.
    pub sent_millis: i64,
    /// Whether the record's time is the row's own, so that a replay has to restore it.
    pub keeps_time: bool,
}

impl DeadLetter<'_> {
    /// Calls `take` with the dead-letter record.
    pub fn with_record<T>(&self, record: &Record<'_>, take: impl FnOnce(&Record<'_>) -> T) -> T {
        let bytes = record.value.filter(|_| self.without_payload).map(|value| value.len().to_string());
        let place = record.headers.iter().all(|header| header.name != POSITION).then_some(self.position);
        let partition = record.partition.map(|partition| partition.to_string());
        let time = self.keeps_time.then(|| record.timestamp_millis.to_string());
        let said = [
            Some((ERROR, Some(self.error))),
            Some((TABLE, Some(self.table))),
            place.map(|place| (POSITION, Some(place))),
            Some((TOPIC, self.intended)),
            partition.as_deref().map(|partition| (PARTITION, Some(partition))),
            time.as_deref().map(|time| (TIMESTAMP, Some(time))),
            bytes.as_deref().map(|bytes| (PAYLOAD_BYTES, Some(bytes))),
            Some((ID, Some(self.id))),
        ];
        let said = said.into_iter().flatten().map(|(name, value)| Header { name, value: value.map(str::as_bytes) });
        let headers: Vec<Header<'_>> = record.headers.iter().copied().chain(said).collect();
        let value = record.value.filter(|_| !self.without_payload);
        let timestamp_millis = self.sent_millis;
        take(&Record { topic: self.topic, value, headers: &headers, partition: None, timestamp_millis, ..*record })
    }
}

/// The headers of a dead-letter record about its row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeadLetterHeaders<'a> {
    /// The reason why the row was not published.
    pub error: &'a str,
    /// `schema.table`, or `message "prefix"`. Empty: the record has no such header.
    pub table: &'a str,
    /// The row's position. Empty: the record has no such header.
    pub position: &'a str,
    /// The topic that the row was meant for. `None`: it was not known.
    pub topic: Option<&'a str>,
    /// The partition that the row asked for. `None`: the key decides.
    pub partition: Option<i32>,
    /// The bytes of the payload, if it was left out.
    pub left_out_bytes: Option<u64>,
    /// The time that the row's record would have, in milliseconds since 1970-01-01 UTC. `None`: that of its sending.
    pub timestamp_millis: Option<i64>,
    /// The value of the header `id`, if there is one.
    pub id: Option<&'a [u8]>,
    /// The number of the record's form, which a newer version has written. `None`: its form is known.
    pub unknown_form: Option<&'a [u8]>,
}

/// Reads walrelay's headers of a record from a dead-letter topic. `None`: it is no dead-letter record.
pub fn said<'a>(record: &Record<'a>) -> Option<DeadLetterHeaders<'a>> {
    // walrelay's own headers come last, behind those of the row.
    let last = |name| record.headers.iter().rev().find(|header| header.name == name).and_then(|header| header.value);
    let text = |name| last(name).and_then(|value| std::str::from_utf8(value).ok());
    Some(DeadLetterHeaders {
        error: text(ERROR)?,
        table: text(TABLE).unwrap_or_default(),
        position: text(POSITION).unwrap_or_default(),
        topic: text(TOPIC),
        partition: text(PARTITION).and_then(|number| number.parse().ok()),
        left_out_bytes: text(PAYLOAD_BYTES).and_then(|number| number.parse().ok()),
        timestamp_millis: text(TIMESTAMP).and_then(|number| number.parse().ok()),
        id: record.headers.iter().find(|header| header.name == "id").and_then(|header| header.value),
        unknown_form: unknown_form(record),
    })
}

/// The number of the form of a record from a dead-letter topic, if this version does not know that form.
pub fn unknown_form<'a>(record: &Record<'a>) -> Option<&'a [u8]> {
    record.headers.iter().rev().find(|header| header.name == FORM).map(|header| header.value.unwrap_or_default())
}

/// Calls `take` with the original record under `topic`: its key, payload and partition, and its headers without walrelay's. Its time is the
/// row's or, if records have the time of their sending, `sent_millis`.
pub fn with_original<T>(
    record: &Record<'_>,
    said: &DeadLetterHeaders<'_>,
    topic: &str,
    sent_millis: i64,
    take: impl FnOnce(&Record<'_>) -> T,
) -> T {
    let timestamp_millis = said.timestamp_millis.unwrap_or(sent_millis);
    let own = record.headers.iter().filter(|header| !header.name.starts_with(OURS));
    let headers: Vec<Header<'_>> = own.copied().collect();
    take(&Record { topic, headers: &headers, partition: said.partition, timestamp_millis, ..*record })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::tests::{ROW, assert_dead_letters_are_read, dead_letters_by};
    use crate::sink::{Content, HeaderRoom, OwnedRecord};
    use crate::tests::assert_written;
    use proptest::prelude::*;

    /// Kafka has a record as it is: its key, its value and its headers in their order.
    fn in_kafka(record: &Record<'_>) -> String {
        let line = |name: &str, value: Option<&[u8]>| {
            value.map(|value| format!("{name}\t{}\n", std::str::from_utf8(value).unwrap())).unwrap_or_default()
        };
        let headers: String = record.headers.iter().map(|header| line(header.name, header.value)).collect();
        line("(key)", record.key) + &line("(value)", record.value) + &headers
    }

    #[test]
    fn the_dead_letters_that_each_version_has_written_to_kafka_are_read() {
        const NAME: &str = "dead-letters/kafka.txt";
        assert_written(NAME, &dead_letters_by(in_kafka));
        assert_dead_letters_are_read(NAME, |text| {
            let mut record = Record { key: None, value: None, partition: None, ..ROW };
            let mut headers = Vec::new();
            for (name, value) in text.lines().map(|line| line.split_once('\t').unwrap()) {
                let value = Some(value.as_bytes());
                match name {
                    "(key)" => record.key = value,
                    "(value)" => record.value = value,
                    name => headers.push(Header { name, value }),
                }
            }
            OwnedRecord::of(&Record { headers: &headers, ..record })
        });
    }

    #[test]
    fn the_number_of_a_form_that_is_not_known_is_told() {
        let headers =
            [(ERROR, "too large"), (FORM, "2")].map(|(name, value)| Header { name, value: Some(value.as_bytes()) });
        assert_eq!(said(&Record { headers: &headers, ..ROW }).unwrap().unknown_form, Some(&b"2"[..]));
        assert_eq!(said(&Record { headers: &headers[..1], ..ROW }).unwrap().unknown_form, None);
    }

    proptest! {
        #[test]
        fn what_is_read_back_is_the_record_that_was_meant(
            key in any::<Option<Vec<u8>>>(),
            value in any::<Option<Vec<u8>>>(),
            headers in prop::collection::vec(("[a-z]{1,3}|walrelay-topic|walrelay-error", any::<Option<Vec<u8>>>()), 0..5),
            partition in any::<Option<u16>>(),
            without_payload in any::<bool>(),
            keeps_time in any::<bool>(),
        ) {
            let headers: Vec<Header<'_>> =
                headers.iter().map(|(name, value)| Header { name, value: value.as_deref() }).collect();
            let partition = partition.map(i32::from);
            let (key, value) = (key.as_deref(), value.as_deref());
            let record = Record { topic: "orders", key, value, headers: &headers, timestamp_millis: 7, partition, content: Content::Unknown };
            let dead_letter = DeadLetter { without_payload, keeps_time, ..DEAD_LETTER };
            // Its partition in the dead-letter topic says nothing.
            let stored = dead_letter.with_record(&record, |record| OwnedRecord::of(&Record { partition: Some(9), ..*record }));
            stored.with_record(&mut HeaderRoom::default(), |stored| {
                prop_assert_eq!(stored.timestamp_millis, 40);
                let said = said(stored).unwrap();
                prop_assert_eq!((said.error, said.table, said.topic), ("too large", "public.outbox", Some("orders")));
                prop_assert_eq!((said.position, said.partition), ("0/10:1", partition));
                prop_assert_eq!(said.left_out_bytes, value.filter(|_| without_payload).map(|value| value.len() as u64));
                with_original(stored, &said, "orders", 50, |meant| {
                    let own: Vec<Header<'_>> =
                        headers.iter().filter(|header| !header.name.starts_with("walrelay-")).copied().collect();
                    prop_assert_eq!((meant.topic, meant.key, meant.headers), ("orders", key, own.as_slice()));
                    prop_assert_eq!(meant.value, value.filter(|_| !without_payload));
                    let time = if keeps_time { 7 } else { 50 };
                    prop_assert_eq!((meant.timestamp_millis, meant.partition), (time, partition));
                    Ok(())
                })
            })?;
        }
    }

    #[test]
    fn a_record_of_somebody_else_is_no_dead_letter_record() {
        let headers = [Header { name: "walrelay-topic", value: Some(b"orders") }];
        let record = Record {
            topic: "dead",
            key: None,
            value: None,
            headers: &headers,
            timestamp_millis: 7,
            partition: None,
            content: Content::Unknown,
        };
        assert_eq!(said(&record), None);
    }

    const DEAD_LETTER: DeadLetter<'_> = DeadLetter {
        topic: "dead",
        error: "too large",
        table: "public.outbox",
        position: "0/10:1",
        id: "7/slot/1/0/10:1",
        intended: Some("orders"),
        without_payload: false,
        sent_millis: 40,
        keeps_time: false,
    };

    fn shown(dead_letter: &DeadLetter<'_>, record: &Record<'_>) -> (String, Option<usize>, String) {
        dead_letter.with_record(record, |record| {
            let text = |bytes: Option<&[u8]>| String::from_utf8_lossy(bytes.unwrap_or(b"null")).into_owned();
            let header = |header: &Header<'_>| format!("{}={}", header.name, text(header.value));
            let headers = record.headers.iter().map(header).collect::<Vec<_>>().join(" ");
            assert_eq!((record.partition, record.timestamp_millis), (None, 40));
            (format!("{} {}", record.topic, text(record.key)), record.value.map(<[u8]>::len), headers)
        })
    }

    #[test]
    fn it_is_the_record_with_what_is_wrong_with_it() {
        let headers = [Header { name: "id", value: Some(b"a") }];
        let record = Record {
            topic: "orders",
            key: Some(b"k"),
            value: Some(b"value"),
            headers: &headers,
            timestamp_millis: 7,
            partition: Some(3),
            content: Content::Unknown,
        };
        let said = "id=a walrelay-error=too large walrelay-table=public.outbox walrelay-position=0/10:1 \
                    walrelay-topic=orders walrelay-partition=3";
        let id = "walrelay-id=7/slot/1/0/10:1";
        assert_eq!(shown(&DEAD_LETTER, &record), ("dead k".to_owned(), Some(5), format!("{said} {id}")));
        let bare = DeadLetter { without_payload: true, ..DEAD_LETTER };
        let said = format!("{said} walrelay-payload-bytes=5 {id}");
        assert_eq!(shown(&bare, &record), ("dead k".to_owned(), None, said));
        let of_row = DeadLetter { keeps_time: true, ..bare };
        let said = "id=a walrelay-error=too large walrelay-table=public.outbox walrelay-position=0/10:1 \
                    walrelay-topic=orders walrelay-partition=3";
        let said = format!("{said} walrelay-timestamp=7 walrelay-payload-bytes=5 {id}");
        assert_eq!(shown(&of_row, &record), ("dead k".to_owned(), None, said));
    }

    #[test]
    fn a_position_that_the_record_has_is_not_said_twice_and_an_unknown_topic_is_null() {
        let headers = [Header { name: POSITION, value: Some(b"0/10:1") }];
        let record = Record {
            topic: "",
            key: None,
            value: None,
            headers: &headers,
            timestamp_millis: 7,
            partition: None,
            content: Content::Unknown,
        };
        let dead_letter = DeadLetter { intended: None, ..DEAD_LETTER };
        let said = "walrelay-position=0/10:1 walrelay-error=too large walrelay-table=public.outbox walrelay-topic=null \
                    walrelay-id=7/slot/1/0/10:1";
        assert_eq!(shown(&dead_letter, &record), ("dead null".to_owned(), None, said.to_owned()));
    }
}
