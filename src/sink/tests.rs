//! What the tests of several destinations have in common.

use super::dead_letter::{DeadLetter, DeadLetterHeaders, said, with_original};
use super::destination::GivenSettings;
use super::{Content, Header, HeaderRoom, OwnedRecord, Record};
use crate::setting_text::{Given, Origin};
use crate::tests::golden;

/// The record of the row that the dead letters below `tests/golden/state` are of.
pub(super) const ROW: Record<'_> = Record {
    topic: "orders",
    key: Some(b"order-7"),
    value: Some(b"{\"n\":1}"),
    headers: &[
        Header { name: "id", value: Some(b"7") },
        Header { name: "eventType", value: Some(b"Placed") },
        Header { name: "trace", value: Some(b"t") },
    ],
    timestamp_millis: 7_000,
    partition: Some(3),
    content: Content::Json,
};

const DEAD_LETTER: DeadLetter<'_> = DeadLetter {
    topic: "shop.dead-letter",
    error: "too large",
    table: "public.outbox",
    position: "0/10:1",
    id: "7/shop/1/0/10:1",
    intended: Some("orders"),
    without_payload: false,
    sent_millis: 40_000,
    keeps_time: true,
};

/// Between the two dead letters of a file: the first has its payload, the second does not.
const BETWEEN: &str = "---\n";

/// The dead letters as a destination stores them, which `show` makes texts of.
pub(super) fn dead_letters_by(show: impl Fn(&Record<'_>) -> String) -> String {
    let letter = |without_payload| DeadLetter { without_payload, ..DEAD_LETTER }.with_record(&ROW, &show);
    [letter(false), letter(true)].join(BETWEEN)
}

/// Reads the dead letters of each version that has written some, and compares them with their row.
#[track_caller]
pub(super) fn assert_dead_letters_are_read(name: &str, read: impl Fn(&str) -> OwnedRecord) {
    for stored in golden(name) {
        let letters: Vec<&str> = stored.text.split(BETWEEN).collect();
        assert_eq!(letters.len(), 2, "{name} of {}", stored.version);
        for (text, without_payload) in letters.into_iter().zip([false, true]) {
            read(text).with_record(&mut HeaderRoom::default(), |record| {
                assert_is_of_row(record, without_payload, &stored.version);
            });
        }
    }
}

fn assert_is_of_row(record: &Record<'_>, without_payload: bool, version: &str) {
    let length = ROW.value.unwrap_or_default().len();
    let expected = DeadLetterHeaders {
        error: DEAD_LETTER.error,
        table: DEAD_LETTER.table,
        position: DEAD_LETTER.position,
        topic: DEAD_LETTER.intended,
        partition: ROW.partition,
        left_out_bytes: without_payload.then_some(length as u64),
        timestamp_millis: Some(ROW.timestamp_millis),
        id: Some(b"7"),
        unknown_form: None,
    };
    let Some(said) = said(record) else { panic!("no dead letter of version {version}: {record:?}") };
    assert_eq!(said, expected, "of version {version}");
    with_original(record, &said, ROW.topic, 50_000, |meant| {
        // Where there is no null, a payload that was left out is an empty one.
        let value = ROW.value.filter(|_| !without_payload).unwrap_or_default();
        assert_eq!((meant.topic, meant.key, meant.value.unwrap_or_default()), (ROW.topic, ROW.key, value));
        assert_eq!((meant.headers, meant.partition), (ROW.headers, ROW.partition), "of version {version}");
        assert_eq!(meant.timestamp_millis, ROW.timestamp_millis);
    });
}

/// Reads what tests say of a destination. `max_in_flight` is 1 MiB.
pub(super) fn read_in_test<T>(
    scheme: &str,
    address: &str,
    properties: &[(&str, &str)],
    read: impl FnOnce(&mut GivenSettings<'_>) -> T,
) -> T {
    let given = |text: &str| Given { text: text.to_owned(), origin: Origin::Flag("--to".to_owned()) };
    let properties = properties.iter().map(|(name, text)| ((*name).to_owned(), given(text))).collect();
    let (addresses, warnings) = (vec![given(address)], &mut Vec::new());
    read(&mut GivenSettings { scheme, addresses, properties, max_in_flight: 1 << 20, warnings })
}
