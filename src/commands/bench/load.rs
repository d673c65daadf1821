//! Rows for a measurement.
//!
//! Row `n` has the id `n` in hexadecimal, so that its acknowledgement is known by it. The note is cut out of a text that does
//! not compress.

use super::BenchRequest;
use crate::pg::{Connection, Error, identifier};
use std::time::Duration;

/// Distinct keys.
const KEYS: u64 = 1000;

/// Bytes of a payload without its note.
const FRAME_BYTES: usize = 36;

/// Rows written by one statement, at most: the progress between two is seen.
const ROWS_AT_ONCE: u64 = 20_000;

/// How long one statement may take.
const PATIENCE: Duration = Duration::from_mins(10);

/// Writes the backlog, transaction by transaction; `progress` is told how many rows are there, and says whether to go on.
pub(super) fn fill(
    connection: &mut Connection,
    schema: &str,
    request: &BenchRequest,
    progress: &mut dyn FnMut(u64) -> bool,
) -> Result<(), Error> {
    let batch = request.rows_per_transaction.min(request.rows).max(1);
    let at_once = (ROWS_AT_ONCE / batch).max(1);
    let transactions = request.rows / batch;
    let mut done = 0;
    while done < transactions && progress(done * batch) {
        let until = transactions.min(done + at_once);
        connection.query_within(&statement(schema, request, batch, done, until), PATIENCE)?;
        done = until;
    }
    progress(done * batch);
    Ok(())
}

/// Transactions `from` up to `until`.
fn statement(schema: &str, request: &BenchRequest, batch: u64, from: u64, until: u64) -> String {
    let note = note_bytes(request);
    format!(
        "DO $$ DECLARE pool text := (SELECT string_agg(md5(i::text), '') FROM generate_series(1, {}) AS i); \
         BEGIN FOR n IN {from} .. {} LOOP \
         INSERT INTO {}.outbox (id, aggregatetype, aggregateid, type, payload) \
         SELECT lpad(to_hex(x), 32, '0')::uuid, 'bench', 'key-' || x % {KEYS}, 'Measured', {} \
         FROM generate_series(n * {batch}::bigint, n * {batch}::bigint + {batch} - 1) AS x; COMMIT; END LOOP; END $$",
        (note + 1000) / 32 + 1,
        until - 1,
        identifier(schema),
        payload(request, &format!("substr(pool, (x % 1000)::int + 1, {note})")),
    )
}

/// One row of its own transaction.
pub(super) fn single(schema: &str, request: &BenchRequest, row: u64) -> String {
    let note = format!("repeat(md5('{row}'), {})", note_bytes(request) / 32 + 1);
    format!(
        "INSERT INTO {}.outbox (id, aggregatetype, aggregateid, type, payload) \
         SELECT lpad(to_hex(x), 32, '0')::uuid, 'bench', 'key-' || x % {KEYS}, 'Measured', {} FROM (SELECT {row}::bigint) AS r (x)",
        identifier(schema),
        payload(request, &note),
    )
}

fn note_bytes(request: &BenchRequest) -> usize {
    request.payload_bytes.saturating_sub(FRAME_BYTES).max(1)
}

fn payload(request: &BenchRequest, note: &str) -> String {
    let text = format!("'{{\"note\": \"' || {note} || '\", \"number\": ' || x || '}}'");
    match request.payload_type.column() {
        "bytea" => format!("convert_to({text}, 'UTF8')"),
        column => format!("({text})::{column}"),
    }
}

/// The row of a record, by its id.
pub(super) fn row_of(id: &[u8]) -> Option<u64> {
    id.iter().filter(|digit| **digit != b'-').try_fold(0u64, |row, digit| {
        let digit = char::from(*digit).to_digit(16)?;
        row.checked_mul(16)?.checked_add(digit.into())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_row_is_read_back_from_its_id() {
        assert_eq!(row_of(b"00000000-0000-0000-0000-0000000f4240"), Some(1_000_000));
        assert_eq!(row_of(b"ffffffff-0000-0000-0000-000000000000"), None);
        assert_eq!(row_of(b"x"), None);
    }
}
