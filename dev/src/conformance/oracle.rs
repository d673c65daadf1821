//! Postgres' own answer to what a record holds.
//!
//! In: a case's query. Out: one record for each of its rows, with the text that Postgres writes for each column, as psql
//! shows it. The session's settings are the ones that the text forms are defined with; nothing of walrelay is asked.
//!
//! Columns: `topic`, `partition`, `timestamp` (milliseconds), `key`, `value`; any other one is a header of that name. A
//! name that ends with `:hex` holds hex of the bytes that are meant.

use anyhow::{Context as _, Result, bail};
use data_encoding::HEXLOWER;
use postgres::{Client, SimpleQueryMessage, SimpleQueryRow};

use super::Bytes;
use super::bytes::md5;
use super::data::{Record, Sum};

/// What text forms depend on.
const SETTINGS: &str = "SET client_encoding = 'UTF8'; SET DateStyle = 'ISO'; SET IntervalStyle = 'postgres';
    SET TimeZone = 'UTC'; SET extra_float_digits = 3; SET bytea_output = 'hex'";

/// Asks for the records. `schema`: the case's own.
///
/// # Errors
/// The query fails, or a column is not what its name says.
pub(super) fn records(client: &mut Client, schema: &str, query: &str) -> Result<Vec<Record>> {
    client.batch_execute(&format!("{SETTINGS}; SET search_path = {schema}, public"))?;
    let rows = client.simple_query(query).with_context(|| format!("the oracle fails: {query}"))?;
    let rows = rows.iter().filter_map(|message| {
        let SimpleQueryMessage::Row(row) = message else { return None };
        Some(record(row))
    });
    rows.collect::<Result<_>>().with_context(|| format!("of the oracle {query}"))
}

fn record(row: &SimpleQueryRow) -> Result<Record> {
    let mut record =
        Record { topic: String::new(), partition: None, timestamp: None, key: None, value: None, headers: Vec::new() };
    for (index, column) in row.columns().iter().enumerate() {
        let text = row.try_get(index)?;
        let (name, bytes) = match column.name().strip_suffix(":hex") {
            Some(name) => (name, text.map(|text| HEXLOWER.decode(text.as_bytes())).transpose()?),
            None => (column.name(), text.map(|text| text.as_bytes().to_vec())),
        };
        let number = || text.map(str::parse::<i64>).transpose().with_context(|| format!("{name} is no number"));
        let bytes = bytes.as_deref().map(Bytes::of);
        match name {
            "topic" => text.context("a null topic")?.clone_into(&mut record.topic),
            "partition" => record.partition = number()?.map(i32::try_from).transpose()?,
            "timestamp" => record.timestamp = number()?,
            "key" => record.key = bytes,
            "value" => record.value = bytes,
            name => record.headers.push((name.to_owned(), bytes)),
        }
    }
    if record.topic.is_empty() {
        bail!("it has no column topic");
    }
    Ok(record)
}

/// The sum over records that are all there.
///
/// # Errors
/// A value is itself only a sum.
pub(super) fn sum(records: &[Record]) -> Result<Sum> {
    let shown = |bytes: &Option<Bytes>| -> Result<String> {
        let Some(bytes) = bytes else { return Ok("-".to_owned()) };
        bytes.whole().map(|bytes| HEXLOWER.encode(bytes)).context("a sum over sums")
    };
    let lines = records.iter().map(|record| {
        Ok(format!("{} {} {}\n", HEXLOWER.encode(record.topic.as_bytes()), shown(&record.key)?, shown(&record.value)?))
    });
    let lines = lines.collect::<Result<String>>()?;
    Ok(Sum { count: records.len(), md5: md5(lines.as_bytes()) })
}
