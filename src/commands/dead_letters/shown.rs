//! A dead-letter record as a line, as a whole, and as JSON.
//!
//! In: a record and what it says. Out: text. The names of the fields of [`DeadLetterEntry`] are the keys of the JSON, and part of the interface;
//! a key is always there: what is not known is null.

use crate::commands::output::number;
use crate::outbox::push_rfc3339;
use crate::setting_text::shown;
use crate::sink::Record;
use crate::sink::dead_letter::DeadLetterHeaders;
use crate::sink::destination::KeptRecord;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::Serialize;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::io::{self, Write};

/// One record.
#[derive(Debug, Serialize)]
pub(super) struct DeadLetterEntry<'a> {
    /// Where it stands at its address.
    at: String,
    /// The row's time, as its record has it.
    time: String,
    pub(super) id: Option<Cow<'a, str>>,
    table: &'a str,
    position: &'a str,
    /// Where it was meant for.
    pub(super) topic: Option<&'a str>,
    partition: Option<i32>,
    /// Why it was no record.
    error: &'a str,
    /// Bytes of its payload, where that was left out.
    pub(super) left_out_bytes: Option<u64>,
    replayed: bool,
    /// The number of its form, if this version does not know that.
    #[serde(skip)]
    unknown_form: Option<Cow<'a, str>>,
}

/// One record with everything in it.
#[derive(Serialize)]
struct Whole<'a> {
    #[serde(flatten)]
    entry: &'a DeadLetterEntry<'a>,
    key: Option<Box<RawValue>>,
    headers: Vec<(String, Option<Box<RawValue>>)>,
    payload: Option<Box<RawValue>>,
    /// The names of the fields that are no UTF-8 and so are written as base64: `key`, `payload`, `headers.NAME`.
    base64: Vec<String>,
}

/// One record that could not be published.
#[derive(Serialize)]
struct Failed<'a> {
    #[serde(flatten)]
    entry: &'a DeadLetterEntry<'a>,
    failure: &'a str,
}

impl<'a> DeadLetterEntry<'a> {
    /// The heading above the lines.
    pub(super) const HEAD: &'static str = "AT           TIME                      ID                                    POSITION          TABLE               MEANT FOR                     ERROR";

    pub(super) fn new(kept: &KeptRecord, record: &Record<'a>, said: DeadLetterHeaders<'a>) -> Self {
        Self {
            at: kept.id.to_string(),
            time: time(record.timestamp_millis),
            id: said.id.map(String::from_utf8_lossy),
            table: said.table,
            position: said.position,
            topic: said.topic,
            partition: said.partition,
            error: said.error,
            left_out_bytes: said.left_out_bytes,
            replayed: kept.replayed,
            unknown_form: said.unknown_form.map(String::from_utf8_lossy),
        }
    }

    /// A line, or with `whole` everything.
    pub(super) fn write(&self, out: &mut dyn Write, json: bool, whole: Option<&Record<'_>>) -> io::Result<()> {
        match (json, whole) {
            (true, None) => write_json(out, self),
            (true, Some(record)) => write_json(out, &self.whole(record)),
            (false, None) => writeln!(out, "{}", self.line()),
            (false, Some(record)) => self.write_whole(out, record),
        }
    }

    /// The number of its form as a text that can be printed, if this version does not know that form.
    pub(super) fn unknown_form(&self) -> Option<String> {
        self.unknown_form.as_ref().map(|form| shown(form.as_bytes()))
    }

    /// It could not be published.
    pub(super) fn write_failed(&self, out: &mut dyn Write, json: bool, failure: &str) -> io::Result<()> {
        if json {
            return write_json(out, &Failed { entry: self, failure });
        }
        let id =
            self.id.as_deref().map_or_else(|| "without id".to_owned(), |id| format!("id {}", shown(id.as_bytes())));
        let (at, table) = (&self.at, shown(self.table.as_bytes()));
        writeln!(out, "{at}: {id} of {table} cannot be published: {}", printable(failure))
    }

    fn line(&self) -> String {
        let id = self.id.as_deref().map_or_else(|| "-".to_owned(), |id| shown(id.as_bytes()));
        let topic = self.topic.map_or_else(|| "-".to_owned(), |topic| shown(topic.as_bytes()));
        let (table, error) = (shown(self.table.as_bytes()), printable(self.error));
        let Self { at, time, position, .. } = self;
        format!("{at:<12} {time:<25} {id:<37} {position:<17} {table:<19} {topic:<29} {error}")
    }

    fn whole(&self, record: &Record<'_>) -> Whole<'_> {
        let mut base64 = Vec::new();
        let mut text = |name: &str, value: Option<&[u8]>| {
            let (text, is_text) = quoted(value?);
            if !is_text {
                base64.push(name.to_owned());
            }
            RawValue::from_string(text).ok()
        };
        let (key, payload) = (text("key", record.key), text("payload", record.value));
        let headers: Vec<(String, Option<Box<RawValue>>)> = record
            .headers
            .iter()
            .map(|header| (header.name.to_owned(), text(&format!("headers.{}", header.name), header.value)))
            .collect();
        Whole { entry: self, key, headers, payload, base64 }
    }

    fn write_whole(&self, out: &mut dyn Write, record: &Record<'_>) -> io::Result<()> {
        writeln!(out, "{}", self.at)?;
        let facts = [
            ("time", Some(self.time.clone())),
            ("id", self.id.as_deref().map(printable)),
            ("table", Some(printable(self.table))),
            ("position", Some(self.position.to_owned())),
            ("meant for", self.topic.map(printable)),
            ("partition", self.partition.map(|partition| partition.to_string())),
            ("error", Some(printable(self.error))),
            ("replayed", self.replayed.then(|| "yes".to_owned())),
            ("key", record.key.map(readable)),
        ];
        for (name, value) in facts {
            if let Some(value) = value {
                writeln!(out, "  {name:<10} {value}")?;
            }
        }
        for header in record.headers {
            let value = header.value.map_or_else(|| "null".to_owned(), readable);
            writeln!(out, "  {:<10} {}: {value}", "header", printable(header.name))?;
        }
        match (record.value, self.left_out_bytes) {
            (Some(value), _) => {
                writeln!(out, "  {:<10} {} bytes\n{}", "payload", number(value.len() as u64), readable(value))
            }
            (None, Some(bytes)) => writeln!(out, "  {:<10} left out: {} bytes", "payload", number(bytes)),
            (None, None) => writeln!(out, "  {:<10} null", "payload"),
        }
    }
}

fn time(unix_millis: i64) -> String {
    let mut text = Vec::new();
    push_rfc3339(&mut text, unix_millis);
    String::from_utf8_lossy(&text).into_owned()
}

/// One line of JSON.
pub(super) fn write_json(out: &mut dyn Write, value: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *out, value)?;
    out.write_all(b"\n")
}

/// As a JSON string, and whether it is the text itself; else it is base64.
fn quoted(bytes: &[u8]) -> (String, bool) {
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Ok(quoted) = serde_json::to_string(text)
    {
        return (quoted, true);
    }
    (format!("\"{}\"", BASE64_STANDARD.encode(bytes)), false)
}

/// For a terminal: text, or base64 in quotes where it is none.
fn readable(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => printable(text),
        Err(_) => format!("base64 {}", quoted(bytes).0),
    }
}

/// Without what would command a terminal.
fn printable(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_control() && !['\n', '\t'].contains(&character) {
            safe.extend(character.escape_default());
        } else {
            safe.push(character);
        }
    }
    safe
}
