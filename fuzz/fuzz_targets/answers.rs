//! What brokers answer and give back: acknowledgements of NATS, and dead letters as each destination reads them.
//!
//! The input's first text says what the others are. `ack`: the number of records that the answer is about, the answer. They count as delivered
//! only if it is JetStream's answer for so many, from a stream, without an error; a failure is as long as what it quotes. `dead`: the key, the
//! payload, headers as `NAME=value`. What is published again has none of walrelay's headers and all others, and the dead letter of that says
//! the same of its row.

#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use walrelay::sink::dead_letter::{DeadLetter, DeadLetterHeaders, ERROR, OURS, said, with_original};
use walrelay::sink::nats::classify;
use walrelay::sink::ordered_queue::RecordOutcome;
use walrelay::sink::{Content, Header, Record};
use walrelay_fuzz::{assert_bounded, texts};

fuzz_target!(|input: &[u8]| {
    let mut texts = texts(input);
    let (kind, mut next) = (texts.next().unwrap_or_default(), || texts.next().unwrap_or_default());
    match kind {
        b"ack" => acknowledgement(next(), next()),
        b"dead" => {
            let (key, payload) = (next(), next());
            dead_letter(key, payload, texts);
        }
        _ => {}
    }
});

fn acknowledgement(records: &[u8], answer: &[u8]) {
    let records = std::str::from_utf8(records).ok().and_then(|records| records.parse().ok()).unwrap_or(1);
    match classify("a.b", records, answer) {
        Some(RecordOutcome::Delivered | RecordOutcome::Duplicate) => {
            // A field that nobody reads may have any bytes.
            let shown = String::from_utf8_lossy(answer);
            let said: Value = match serde_json::from_str(&shown) {
                Ok(said) => said,
                // It may have any number, too.
                Err(error) if error.to_string().starts_with("number out of range") => return,
                Err(error) => panic!("{error}: {shown}"),
            };
            assert!(said["stream"].as_str().is_some_and(|stream| !stream.is_empty()), "{shown}");
            assert!(said["seq"].as_u64() > Some(0) && said["error"].is_null(), "{shown}");
            assert!(records <= 1 || said["count"].as_u64() == u64::try_from(records).ok(), "{shown} for {records}");
        }
        Some(
            RecordOutcome::Refused(failure)
            | RecordOutcome::RefusedPerhapsStored(failure)
            | RecordOutcome::Later(failure),
        ) => assert_bounded(&failure.to_string(), answer.len()),
        Some(RecordOutcome::Unanswered | RecordOutcome::Unknown | RecordOutcome::NotStored) | None => {}
    }
}

fn dead_letter<'t>(key: &[u8], payload: &[u8], headers: impl Iterator<Item = &'t [u8]>) {
    let header = |text: &'t [u8]| {
        let end = text.iter().position(|byte| *byte == b'=');
        let name = std::str::from_utf8(&text[..end.unwrap_or(text.len())]).ok()?;
        Some(Header { name, value: end.map(|end| &text[end + 1..]) })
    };
    let headers: Vec<Header<'_>> = headers.filter_map(header).collect();
    let (key, value) = (Some(key), Some(payload));
    let content = Content::Unknown;
    let record =
        Record { topic: "dead", key, value, headers: &headers, timestamp_millis: 40, partition: Some(9), content };
    let Some(found) = said(&record) else {
        let error = headers.iter().rev().find(|header| header.name == ERROR).and_then(|header| header.value);
        assert!(error.is_none_or(|error| std::str::from_utf8(error).is_err()), "{error:?}");
        return;
    };
    with_original(&record, &found, "orders", 50, |original| {
        let own = headers.iter().filter(|header| !header.name.starts_with(OURS));
        assert!(original.headers.iter().eq(own), "{original:?}");
        assert_eq!((original.topic, original.key, original.value), ("orders", key, value));
        let dead_letter = DeadLetter {
            topic: "dead",
            error: found.error,
            table: found.table,
            position: found.position,
            id: "7",
            intended: found.topic,
            without_payload: false,
            sent_millis: 60,
            keeps_time: found.timestamp_millis.is_some(),
        };
        dead_letter.with_record(original, |again| {
            let expected = DeadLetterHeaders { left_out_bytes: None, unknown_form: None, ..found };
            assert_eq!(said(again), Some(expected), "{again:?}");
        });
    });
}
