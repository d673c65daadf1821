//! A batch of messages in SQS's protocol, and what the answer says of each.
//!
//! In: records, an answer. Out: JSON, results. It does no I/O and decides nothing.
//!
//! An answer with the status 200 says of each message by itself whether the queue has it.
//! Specification: Amazon SQS API Reference, "SendMessageBatch", "SendMessageBatchResultEntry", "BatchResultErrorEntry".

use super::message::{Form, Value, deduplication_id, group};
use super::protocol::Said;
use crate::sink::{Origin, Record};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;
use std::io::Write as _;

/// Adds a record as the batch's next entry. `is_fifo`: of the queue.
pub(super) fn entry(out: &mut Vec<u8>, number: usize, record: &Record<'_>, origin: Origin, form: &Form, is_fifo: bool) {
    out.extend_from_slice(if number == 0 { b"" } else { b"," });
    // A vector takes everything.
    drop(write!(out, "{{\"Id\":\"{number}\",\"MessageBody\":"));
    text(out, &form.body(record));
    let mut begin: &[u8] = b",\"MessageAttributes\":{";
    form.each_attribute(record, |name, value| {
        out.extend_from_slice(std::mem::replace(&mut begin, b","));
        text(out, name);
        match value {
            Value::Text(value) => {
                out.extend_from_slice(b":{\"DataType\":\"String\",\"StringValue\":");
                text(out, value);
            }
            Value::Bytes(value) => {
                out.extend_from_slice(b":{\"DataType\":\"Binary\",\"BinaryValue\":");
                text(out, &BASE64_STANDARD.encode(value));
            }
        }
        out.push(b'}');
    });
    if begin == b"," {
        out.push(b'}');
    }
    if is_fifo {
        out.extend_from_slice(b",\"MessageGroupId\":");
        text(out, &group(record.key));
        out.extend_from_slice(b",\"MessageDeduplicationId\":");
        text(out, &deduplication_id(record, origin));
    }
    out.push(b'}');
}

/// The request's body.
pub(super) fn request(queue_url: &str, entries: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(entries.len() + queue_url.len() + 32);
    out.extend_from_slice(b"{\"QueueUrl\":");
    text(&mut out, queue_url);
    out.extend_from_slice(b",\"Entries\":[");
    out.extend_from_slice(entries);
    out.extend_from_slice(b"]}");
    out
}

/// A JSON string.
pub(super) fn text(out: &mut Vec<u8>, text: &str) {
    // A vector takes everything, and a string is always written.
    drop(serde_json::to_writer(out, text));
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Written {
    successful: Option<Vec<Successful>>,
    failed: Option<Vec<Failed>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Successful {
    id: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Failed {
    id: String,
    code: Option<String>,
    #[serde(default)]
    sender_fault: bool,
    message: Option<String>,
}

/// What the body of an answer with the status 200 says of each of `messages`, in their order; `None`: it is no such answer.
pub(super) fn results(body: &[u8], messages: usize) -> Option<Vec<Said>> {
    let written: Written = serde_json::from_slice(body).ok()?;
    let mut said = vec![Said::Nothing; messages];
    let place = |id: &str| id.parse::<usize>().ok();
    for Successful { id } in written.successful.unwrap_or_default() {
        *said.get_mut(place(&id)?)? = Said::Kept;
    }
    for Failed { id, code, sender_fault, message } in written.failed.unwrap_or_default() {
        let (code, text) = (code.unwrap_or_default(), message.unwrap_or_default());
        *said.get_mut(place(&id)?)? = Said::Failed { code, by_sender: sender_fault, text };
    }
    Some(said)
}

/// Code and message of an answer that is no success.
pub(super) fn error(body: &[u8]) -> Option<(String, String)> {
    #[derive(Deserialize)]
    struct Written {
        #[serde(rename = "__type")]
        code: String,
        #[serde(alias = "Message")]
        message: Option<String>,
    }
    let Written { code, message } = serde_json::from_slice(body).ok()?;
    Some((code, message.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::{Content, Header};

    const RECORD: Record<'_> = Record {
        topic: "orders",
        key: Some(b"k"),
        value: Some(b"{\"a\":\"\\n\"}"),
        headers: &[Header { name: "id", value: Some(b"7") }, Header { name: "x", value: Some(b"\xff") }],
        timestamp_millis: 0,
        partition: None,
        content: Content::Unknown,
    };

    #[test]
    fn a_batch_is_written_as_the_service_takes_it() {
        let mut out = Vec::new();
        entry(&mut out, 0, &RECORD, Origin::default(), &Form::default(), true);
        let bare = Record { key: None, value: Some(b"b"), headers: &[], ..RECORD };
        entry(&mut out, 1, &bare, Origin::default(), &Form::default(), false);
        let request: serde_json::Value = serde_json::from_slice(&request("http://q/", &out)).unwrap();
        let attribute = |kind: &str, name: &str, value: &str| serde_json::json!({"DataType": kind, name: value});
        let whole = serde_json::json!({
            "Id": "0",
            "MessageBody": "{\"a\":\"\\n\"}",
            "MessageAttributes": {
                "id": attribute("String", "StringValue", "7"),
                "key": attribute("String", "StringValue", "k"),
                "x": attribute("Binary", "BinaryValue", "/w=="),
            },
            "MessageGroupId": "k",
            "MessageDeduplicationId": "7",
        });
        let bare = serde_json::json!({"Id": "1", "MessageBody": "b"});
        assert_eq!(request, serde_json::json!({"QueueUrl": "http://q/", "Entries": [whole, bare]}));
    }

    #[test]
    fn each_message_has_its_own_result_and_none_is_made_up() {
        let failed = r#"{"Id":"2","Code":"InternalError","SenderFault":false,"Message":"again"}"#;
        let body = format!(r#"{{"Successful":[{{"Id":"0","MessageId":"m"}}],"Failed":[{failed}]}}"#);
        let of_failed = Said::Failed { code: "InternalError".to_owned(), by_sender: false, text: "again".to_owned() };
        assert_eq!(results(body.as_bytes(), 3), Some(vec![Said::Kept, Said::Nothing, of_failed]));
        assert_eq!(results(b"{}", 1), Some(vec![Said::Nothing]));
        assert_eq!(results(br#"{"Successful":null,"Failed":[{"Id":"0"}]}"#, 1).unwrap().len(), 1);
        for body in ["", "[]x", r#"{"Successful":[{"Id":"7"}]}"#, r#"{"Successful":[{"Id":"x"}]}"#] {
            assert_eq!(results(body.as_bytes(), 2), None, "{body}");
        }
    }

    #[test]
    fn an_error_has_a_code_and_mostly_a_message() {
        let code = "com.amazonaws.sqs#QueueDoesNotExist";
        for member in ["message", "Message"] {
            let body = format!(r#"{{"__type":"{code}","{member}":"no"}}"#);
            assert_eq!(error(body.as_bytes()), Some((code.to_owned(), "no".to_owned())));
        }
        assert_eq!(error(br#"{"__type":"X"}"#), Some(("X".to_owned(), String::new())));
        assert_eq!(error(b"<html>"), None);
    }
}
