//! Defaults of drawn columns, in the forms that people write: literals, bare and under casts, nulls under casts, calls, expressions.
//!
//! In: a draw, a type with its values. Out: what follows `DEFAULT`.

use super::draw::{Draw, quoted};

/// Expressions by the types whose columns take them.
const EXPRESSIONS: [(&str, &[&str]); 15] = [
    ("text", &["upper('x')", "'a' || 'b'", "CURRENT_USER", "CURRENT_DATE::text", "('x'::varchar)::text", "E'a\\\\b'"]),
    ("varchar", &["lower('X')", "NULL", "(NULL::text)::varchar", "'it''s'::text", "md5('x')"]),
    ("varchar(20)", &["NULL", "'abc'::varchar(3)", "repeat('x', 3)", "NULL::varchar(20)"]),
    ("int4", &["1 + 2", "abs(-3)", "-7", "'5'::int8"]),
    ("int8", &["-7", "(extract(epoch FROM now()) * 1000)::bigint", "length('abc')"]),
    ("float8", &["random()", "-1", "1.5"]),
    ("numeric(10,2)", &["round(1.5)", "NULL", "1.500", "-1"]),
    ("uuid", &["gen_random_uuid()", "md5('x')::uuid"]),
    ("date", &["CURRENT_DATE", "CURRENT_DATE + 1", "now()::date"]),
    ("time(3)", &["LOCALTIME", "NULL", "now()::time"]),
    ("timestamp(3)", &["LOCALTIMESTAMP", "NULL", "now() AT TIME ZONE 'utc'"]),
    ("timestamptz(3)", &["now()", "NULL", "CURRENT_TIMESTAMP", "now() + '1 day'"]),
    ("interval(3)", &["make_interval(days => 1)", "NULL", "'1 day'::interval * 2"]),
    ("jsonb", &["jsonb_build_object()", "'{}'::json::jsonb"]),
    ("bool", &["(1 = 1)", "NOT false", "'t'"]),
];

/// Draws a default.
pub(super) fn draw(draw: &mut Draw, kind: &str, values: &[&str]) -> String {
    let expressions = EXPRESSIONS.iter().find(|(name, _)| *name == kind).map(|(_, expressions)| *expressions);
    match (draw.number(0..6), expressions) {
        (0 | 1, Some(expressions)) => draw.one(expressions).to_owned(),
        (2, _) => format!("NULL::{kind}"),
        (3, _) => format!("{}::{kind}", quoted(draw.one(values))),
        _ => quoted(draw.one(values)),
    }
}
