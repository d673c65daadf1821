//! What goes to the dead-letter topic: the record, or what there is of it, with headers that say why and whence.
//!
//! In: a record, and what is wrong with its row. Out: the same key, payload and headers under the dead-letter topic, then
//! `walrelay-error`, `walrelay-table`, `walrelay-position`, `walrelay-topic`; and `walrelay-payload-bytes` instead of a payload that
//! is too large. The partition is left to the key.

use super::{Header, Record};

/// The header that carries a row's place; a record may have it already.
const POSITION: &str = "walrelay-position";

/// What is said of one row.
#[derive(Debug)]
pub struct DeadLetter<'a> {
    /// Where it goes.
    pub topic: &'a str,
    /// Why it is no record.
    pub error: &'a str,
    /// `schema.table`, or `message "prefix"`.
    pub table: &'a str,
    /// The row's place.
    pub position: &'a str,
    /// Where it should have gone; `None`: that is not known.
    pub intended: Option<&'a str>,
    /// The payload is too large.
    pub without_payload: bool,
}

impl DeadLetter<'_> {
    /// Lends it to `take`.
    pub fn lend<T>(&self, record: &Record<'_>, take: impl FnOnce(&Record<'_>) -> T) -> T {
        let bytes = record.value.filter(|_| self.without_payload).map(|value| value.len().to_string());
        let place = record.headers.iter().all(|header| header.name != POSITION).then_some(self.position);
        let said = [
            Some(("walrelay-error", Some(self.error))),
            Some(("walrelay-table", Some(self.table))),
            place.map(|place| (POSITION, Some(place))),
            Some(("walrelay-topic", self.intended)),
            bytes.as_deref().map(|bytes| ("walrelay-payload-bytes", Some(bytes))),
        ];
        let said = said.into_iter().flatten().map(|(name, value)| Header { name, value: value.map(str::as_bytes) });
        let headers: Vec<Header<'_>> = record.headers.iter().copied().chain(said).collect();
        let value = record.value.filter(|_| !self.without_payload);
        take(&Record { topic: self.topic, value, headers: &headers, partition: None, ..*record })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LETTER: DeadLetter<'_> = DeadLetter {
        topic: "dead",
        error: "too large",
        table: "public.outbox",
        position: "0/10:1",
        intended: Some("orders"),
        without_payload: false,
    };

    fn shown(letter: &DeadLetter<'_>, record: &Record<'_>) -> (String, Option<usize>, String) {
        letter.lend(record, |record| {
            let text = |bytes: Option<&[u8]>| String::from_utf8_lossy(bytes.unwrap_or(b"null")).into_owned();
            let header = |header: &Header<'_>| format!("{}={}", header.name, text(header.value));
            let headers = record.headers.iter().map(header).collect::<Vec<_>>().join(" ");
            assert_eq!((record.partition, record.timestamp_millis), (None, 7));
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
        };
        let said =
            "id=a walrelay-error=too large walrelay-table=public.outbox walrelay-position=0/10:1 walrelay-topic=orders";
        assert_eq!(shown(&LETTER, &record), ("dead k".to_owned(), Some(5), said.to_owned()));
        let bare = DeadLetter { without_payload: true, ..LETTER };
        assert_eq!(shown(&bare, &record), ("dead k".to_owned(), None, format!("{said} walrelay-payload-bytes=5")));
    }

    #[test]
    fn a_position_that_the_record_has_is_not_said_twice_and_an_unknown_topic_is_null() {
        let headers = [Header { name: POSITION, value: Some(b"0/10:1") }];
        let record =
            Record { topic: "", key: None, value: None, headers: &headers, timestamp_millis: 7, partition: None };
        let letter = DeadLetter { intended: None, ..LETTER };
        let said = "walrelay-position=0/10:1 walrelay-error=too large walrelay-table=public.outbox walrelay-topic=null";
        assert_eq!(shown(&letter, &record), ("dead null".to_owned(), None, said.to_owned()));
    }
}
