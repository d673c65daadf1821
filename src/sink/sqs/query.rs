//! A batch of messages in SNS' protocol, and what the answer says of each.
//!
//! In: records, an answer. Out: a form, results. It does no I/O and decides nothing. Of XML it knows elements without attributes, which
//! is all that is read of SNS' answers.
//!
//! Specification: Amazon SNS API Reference, "PublishBatch", "PublishBatchResultEntry", "BatchResultErrorEntry"; Smithy, "AWS query
//! protocol".

use super::message::{Form, Value, deduplication_id, group};
use super::protocol::Said;
use crate::given::percent_encoded;
use crate::sink::aws::element;
use crate::sink::{Origin, Record};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

/// What every request says of the protocol's version.
const VERSION: &str = "2010-03-31";

/// Adds a record as the batch's next entry. `is_fifo`: of the topic.
pub(super) fn entry(out: &mut Vec<u8>, number: usize, record: &Record<'_>, origin: Origin, form: &Form, is_fifo: bool) {
    let place = format!("PublishBatchRequestEntries.member.{}.", number + 1);
    field(out, &[&place, "Id"], &number.to_string());
    field(out, &[&place, "Message"], &form.body(record));
    let mut count = 0;
    form.each_attribute(record, |name, value| {
        count += 1;
        let attribute = format!("{place}MessageAttributes.entry.{count}.");
        field(out, &[&attribute, "Name"], name);
        match value {
            Value::Text(value) => {
                field(out, &[&attribute, "Value.DataType"], "String");
                field(out, &[&attribute, "Value.StringValue"], value);
            }
            Value::Bytes(value) => {
                field(out, &[&attribute, "Value.DataType"], "Binary");
                field(out, &[&attribute, "Value.BinaryValue"], &BASE64_STANDARD.encode(value));
            }
        }
    });
    if is_fifo {
        field(out, &[&place, "MessageGroupId"], &group(record.key));
        field(out, &[&place, "MessageDeduplicationId"], &deduplication_id(record, origin));
    }
}

fn field(out: &mut Vec<u8>, name: &[&str], value: &str) {
    out.push(b'&');
    for part in name {
        out.extend_from_slice(part.as_bytes());
    }
    out.push(b'=');
    out.extend_from_slice(percent_encoded(value).as_bytes());
}

/// A request's body: the action, what it is about, and entries that were written.
pub(super) fn request(action: &str, fields: &[(&str, &str)], entries: &[u8]) -> Vec<u8> {
    let mut out = format!("Action={action}&Version={VERSION}").into_bytes();
    for (name, value) in fields {
        field(&mut out, &[name], value);
    }
    out.extend_from_slice(entries);
    out
}

/// What the body of an answer with the status 200 says of each of `messages`, in their order; `None`: it is no such answer.
pub(super) fn results(body: &[u8], messages: usize) -> Option<Vec<Said>> {
    let xml = std::str::from_utf8(body).ok()?;
    element(xml, "PublishBatchResult")?;
    let mut said = vec![Said::Nothing; messages];
    let place = |member: &str| element(member, "Id")?.trim().parse::<usize>().ok();
    for member in members(element(xml, "Successful").unwrap_or_default()) {
        *said.get_mut(place(member)?)? = Said::Kept;
    }
    for member in members(element(xml, "Failed").unwrap_or_default()) {
        let code = element(member, "Code").unwrap_or_default().to_owned();
        let by_sender = element(member, "SenderFault").is_some_and(|fault| fault.trim() == "true");
        let text = unescaped(element(member, "Message").unwrap_or_default());
        *said.get_mut(place(member)?)? = Said::Failed { code, by_sender, text };
    }
    Some(said)
}

fn members(list: &str) -> impl Iterator<Item = &str> {
    list.split("<member>").skip(1)
}

/// Code and message of an answer that is no success.
pub(super) fn error(body: &[u8]) -> Option<(String, String)> {
    let xml = std::str::from_utf8(body).ok()?;
    let code = element(xml, "Code")?.to_owned();
    Some((code, unescaped(element(xml, "Message").unwrap_or_default())))
}

/// The keys and values of a list of attributes.
pub(super) fn attributes(body: &[u8]) -> Vec<(String, String)> {
    let xml = std::str::from_utf8(body).unwrap_or_default();
    let entries = xml.split("<entry>").skip(1);
    entries.filter_map(|entry| Some((element(entry, "key")?.to_owned(), unescaped(element(entry, "value")?)))).collect()
}

fn unescaped(text: &str) -> String {
    let pairs = [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&apos;", "'"), ("&#39;", "'"), ("&amp;", "&")];
    pairs.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::{Content, Header};

    const RECORD: Record<'_> = Record {
        topic: "arn:aws:sns:r:1:orders.fifo",
        key: Some(b"k"),
        value: Some("{\"a\": \"ä&=+\"}".as_bytes()),
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
        let request = String::from_utf8(request("PublishBatch", &[("TopicArn", "arn:x")], &out)).unwrap();
        let first = "PublishBatchRequestEntries.member.1.";
        let expected = [
            "Action=PublishBatch&Version=2010-03-31&TopicArn=arn%3Ax".to_owned(),
            format!("{first}Id=0&{first}Message=%7B%22a%22%3A%20%22%C3%A4%26%3D%2B%22%7D"),
            format!("{first}MessageAttributes.entry.1.Name=id&{first}MessageAttributes.entry.1.Value.DataType=String"),
            format!("{first}MessageAttributes.entry.1.Value.StringValue=7&{first}MessageAttributes.entry.2.Name=key"),
            format!(
                "{first}MessageAttributes.entry.2.Value.DataType=String&{first}MessageAttributes.entry.2.Value.StringValue=k"
            ),
            format!("{first}MessageAttributes.entry.3.Name=x&{first}MessageAttributes.entry.3.Value.DataType=Binary"),
            format!("{first}MessageAttributes.entry.3.Value.BinaryValue=%2Fw%3D%3D"),
            format!("{first}MessageGroupId=k&{first}MessageDeduplicationId=7"),
            "PublishBatchRequestEntries.member.2.Id=1&PublishBatchRequestEntries.member.2.Message=b".to_owned(),
        ];
        assert_eq!(request, expected.join("&"));
    }

    #[test]
    fn each_message_has_its_own_result_and_none_is_made_up() {
        let body = "<PublishBatchResponse><PublishBatchResult><Failed><member><Message>a &lt; b</Message><Id>2</Id>\
                    <Code>InternalError</Code><SenderFault>false</SenderFault></member></Failed><Successful><member>\
                    <MessageId>m</MessageId><Id>0</Id></member></Successful></PublishBatchResult></PublishBatchResponse>";
        let failed = Said::Failed { code: "InternalError".to_owned(), by_sender: false, text: "a < b".to_owned() };
        assert_eq!(results(body.as_bytes(), 3), Some(vec![Said::Kept, Said::Nothing, failed]));
        assert_eq!(results(body.as_bytes(), 1), None, "it names a message that was not sent");
        for body in
            ["", "<html>", "<PublishBatchResult><Successful><member></member></Successful></PublishBatchResult>"]
        {
            assert_eq!(results(body.as_bytes(), 2), None, "{body}");
        }
    }

    #[test]
    fn errors_and_attributes_are_read() {
        let refused = "<ErrorResponse><Error><Type>Sender</Type><Code>NotFound</Code><Message>no</Message></Error></ErrorResponse>";
        assert_eq!(error(refused.as_bytes()), Some(("NotFound".to_owned(), "no".to_owned())));
        assert_eq!(error(b"<html>"), None);
        let body = b"<Attributes><entry><key>FifoTopic</key><value>true</value></entry><entry><key>a</key><value>b</value></entry></Attributes>";
        assert_eq!(attributes(body).len(), 2);
    }
}
