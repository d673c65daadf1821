//! What Debezium reads of a column's `DEFAULT`: it stands in schemas, and in the place of a null.
//!
//! In: an expression as `pg_get_expr` writes it, the column's type. Out: a value in the type's text form. Expressions are not
//! evaluated: a literal is itself, a call of a function is the type's zero.
//! Specification: Debezium's `PostgresDefaultValueConverter` as of 3.6, by what it was seen to do.

/// What its column's type is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Column {
    pub(super) type_id: u32,
    pub(super) is_enum: bool,
    /// A numeric's declared one.
    pub(super) scale: Option<i32>,
    /// A numeric without one has defaults, too.
    pub(super) any_scale: bool,
}

/// The value's text; `None`: Debezium takes the column to have no default.
pub(super) fn text(expression: &str, column: Column) -> Option<String> {
    let Column { type_id, is_enum, scale, any_scale } = column;
    if type_id == NUMERIC && scale.is_none() && any_scale {
        return unscaled(expression);
    }
    let zero = zero(type_id, is_enum, scale)?;
    if is_call(expression) {
        return zero.call;
    }
    let Some(literal) = literal(expression) else {
        return raw(expression, type_id, scale).or(zero.other);
    };
    Some(if type_id == NUMERIC { scaled(&literal, scale)? } else { literal })
}

/// Whether the default is one that Debezium reads as another time than values: infinities, but for texts, and the end of a day.
pub(super) fn is_another_time(type_id: u32, text: &str) -> bool {
    (matches!(type_id, 1082 | 1114 | 1184) && matches!(text, "infinity" | "-infinity"))
        || (type_id == 1083 && text.starts_with("24:"))
}

/// A number as it stands there.
fn unscaled(expression: &str) -> Option<String> {
    if is_call(expression) {
        return Some("0".to_owned());
    }
    let number = literal(expression).unwrap_or_else(|| expression.to_owned());
    let digits = number.strip_prefix('-').unwrap_or(&number);
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    is_number.then_some(number)
}

const NUMERIC: u32 = 1700;

/// What stands for an expression that is no literal.
struct Zero {
    /// A function's call.
    call: Option<String>,
    /// Anything else.
    other: Option<String>,
}

/// `None`: a type of which no default is read.
fn zero(type_id: u32, is_enum: bool, scale: Option<i32>) -> Option<Zero> {
    let call = |text: &str| Some(Zero { call: Some(text.to_owned()), other: None });
    let always = |text: &str| Some(Zero { call: Some(text.to_owned()), other: Some(text.to_owned()) });
    match type_id {
        16 => always("f"),
        20 | 21 | 23 | 700 | 701 => call("0"),
        25 | 1042 | 1043 | 142 => call(""),
        114 | 3802 => call("{}"),
        2950 => call("00000000-0000-0000-0000-000000000000"),
        NUMERIC => scale.and_then(|_| Some(Zero { call: Some(scaled("0", scale)?), other: None })),
        1082 => always("1970-01-01"),
        1083 | 1186 => always("00:00:00"),
        1560 | 1562 => Some(Zero { call: None, other: None }),
        1114 => always("1970-01-01 00:00:00"),
        1184 => always("1970-01-01 00:00:00+00"),
        _ if is_enum => Some(Zero { call: None, other: None }),
        _ => None,
    }
}

/// A name with an opening parenthesis behind it, perhaps within one.
fn is_call(expression: &str) -> bool {
    let inside = expression.strip_prefix('(').unwrap_or(expression);
    let name = inside.find(|c: char| !c.is_ascii_alphanumeric() && !"_.".contains(c)).unwrap_or(0);
    name > 0 && inside.get(name..).is_some_and(|rest| rest.starts_with('('))
}

/// What stands in the first quotes; a doubled one is one.
fn literal(expression: &str) -> Option<String> {
    let (_, mut rest) = expression.split_once('\'')?;
    let mut text = String::new();
    loop {
        let (part, after) = rest.split_once('\'')?;
        text.push_str(part);
        match after.strip_prefix('\'') {
            Some(after) => rest = after,
            None => return Some(text),
        }
        text.push('\'');
    }
}

/// An expression without quotes, as its type's parser reads it.
fn raw(expression: &str, type_id: u32, scale: Option<i32>) -> Option<String> {
    let text = || Some(expression.to_owned());
    match type_id {
        16 => Some(if expression.eq_ignore_ascii_case("true") { "t" } else { "f" }.to_owned()),
        20 | 21 | 23 => expression.parse::<i64>().ok().and_then(|_| text()),
        700 | 701 => expression.parse::<f64>().ok().and_then(|_| text()),
        25 | 1042 | 1043 | 114 | 3802 | 142 => text(),
        NUMERIC => scaled(expression, scale),
        _ => None,
    }
}

/// With as many digits behind the point as the column has. `None`: no number, or none of a scale is declared.
fn scaled(number: &str, scale: Option<i32>) -> Option<String> {
    let scale = usize::try_from(scale?).ok()?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = whole.trim_start_matches('-');
    let is_number = !digits.is_empty() && digits.bytes().chain(fraction.bytes()).all(|byte| byte.is_ascii_digit());
    (is_number && fraction.len() <= scale).then(|| match scale {
        0 => whole.to_owned(),
        _ => format!("{whole}.{fraction:0<scale$}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const fn of(type_id: u32) -> Column {
        Column { type_id, is_enum: false, scale: Some(2), any_scale: false }
    }

    #[track_caller]
    fn check(expression: &str, type_id: u32, expected: Option<&str>) {
        assert_eq!(text(expression, of(type_id)).as_deref(), expected, "{expression} of {type_id}");
    }

    #[test]
    fn a_numeric_without_a_scale_has_a_default_as_double_and_text_alone() {
        let any = |any_scale| Column { scale: None, any_scale, ..of(1700) };
        assert_eq!(text("1.50", any(true)).as_deref(), Some("1.50"));
        assert_eq!(text("'-1.5'::numeric", any(true)).as_deref(), Some("-1.5"));
        assert_eq!(text("round(1.5)", any(true)).as_deref(), Some("0"));
        assert_eq!((text("(1 + 2)", any(true)), text("1.50", any(false))), (None, None));
    }

    #[test]
    fn infinities_and_the_end_of_a_day_are_other_times() {
        assert!(is_another_time(1083, "24:00:00") && is_another_time(1114, "infinity"));
        assert!(!is_another_time(1083, "23:59:59") && !is_another_time(25, "24:00:00"));
    }

    #[test]
    fn bits_are_literals() {
        check("'101'::\"bit\"", 1560, Some("101"));
        check("f()", 1560, None);
    }

    #[test]
    fn a_literal_is_itself() {
        check("'it''s'::text", 25, Some("it's"));
        check("''::text", 25, Some(""));
        check("'now()'::text", 25, Some("now()"));
        check("'-5'::integer", 20, Some("-5"));
        check("3", 23, Some("3"));
        check("2", 700, Some("2"));
        check("true", 16, Some("t"));
        check("1.5", 1700, Some("1.50"));
        check("'{}'::jsonb", 3802, Some("{}"));
        check("'10:11:12'::time without time zone", 1083, Some("10:11:12"));
        check("'2020-01-02 03:04:05+00'::timestamp with time zone", 1184, Some("2020-01-02 03:04:05+00"));
        check("'1 day'::interval", 1186, Some("1 day"));
        check("('a'::text || 'b'::text)", 25, Some("a"));
        assert_eq!(text("'sad'::mood", Column { is_enum: true, ..of(20_000) }).as_deref(), Some("sad"));
    }

    #[test]
    fn a_call_is_the_types_zero() {
        check("gen_random_uuid()", 2950, Some("00000000-0000-0000-0000-000000000000"));
        check("nextval('s'::regclass)", 20, Some("0"));
        check("upper('x'::text)", 1043, Some(""));
        check("(gen_random_uuid())::text", 25, Some(""));
        check("now()", 1184, Some("1970-01-01 00:00:00+00"));
        check("(now() AT TIME ZONE 'utc'::text)", 1114, Some("1970-01-01 00:00:00"));
        check("jsonb_build_object()", 3802, Some("{}"));
        check("pg_catalog.round(1.5)", 1700, Some("0.00"));
        check("random()", 701, Some("0"));
        assert_eq!(text("f()", Column { is_enum: true, ..of(20_000) }), None);
    }

    #[test]
    fn times_that_are_no_literal_are_zero_and_words_are_texts() {
        check("CURRENT_TIMESTAMP", 1184, Some("1970-01-01 00:00:00+00"));
        check("LOCALTIMESTAMP", 1114, Some("1970-01-01 00:00:00"));
        check("CURRENT_DATE", 1082, Some("1970-01-01"));
        check("CURRENT_USER", 25, Some("CURRENT_USER"));
        check("(1 = 1)", 16, Some("f"));
    }

    #[test]
    fn other_expressions_and_types_have_none() {
        check("(1 + 2)", 23, None);
        check("((EXTRACT(epoch FROM now()) * (1000)::numeric))::bigint", 20, None);
        for type_id in [1266, 26, 869, 1009, 17, 20_000] {
            check("'x'::any", type_id, None);
        }
    }

    proptest! {
        #[test]
        fn no_expression_panics(expression in "[a-z'().: 0-9-]{0,30}", type_id in proptest::sample::select(vec![16, 20, 25, 1700, 1184])) {
            let _text = text(&expression, of(type_id));
        }
    }
}
