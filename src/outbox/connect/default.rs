//! Reads a column's `DEFAULT` as Debezium does. Schemas have this value, and it replaces a null.
//!
//! In: an expression of `pg_get_expr`, and the column's type. Out: a text. If the type's reader refuses it, the column has no default.
//! Expressions are not evaluated: a literal with any casts is the literal, a function call is the type's zero, and `NULL::type` is no
//! default.
//! Specification: Debezium 3.6.3's `PostgresDefaultValueConverter`.

use crate::outbox::table_name::up_to_quote;

/// The facts about a column that its default needs.
#[derive(Debug, Clone, Copy)]
pub(super) struct DefaultColumn<'a> {
    pub(super) type_id: u32,
    /// The type's name, if it is an enum and not a domain over one.
    pub(super) enum_name: Option<&'a str>,
    /// The declared scale of a numeric.
    pub(super) scale: Option<i32>,
    /// Whether a numeric without a declared scale has a default, too.
    pub(super) any_scale: bool,
}

/// The default's text. `None`: for Debezium, the column has no default.
pub(super) fn text(expression: &str, column: DefaultColumn<'_>) -> Option<String> {
    if let Some(name) = column.enum_name {
        return of_enum(expression, name);
    }
    let trimmed = expression.trim();
    match column.type_id {
        16 => {
            let word = extracted(trimmed, "false")?;
            Some(if word.eq_ignore_ascii_case("true") { "t" } else { "f" }.to_owned())
        }
        21 => extracted(trimmed, "0").filter(|number| number.parse::<i16>().is_ok()),
        23 => extracted(trimmed, "0").filter(|number| number.parse::<i32>().is_ok()),
        20 | 700 | 701 | 1562 => extracted(trimmed, "0"),
        1700 => decimal(&extracted(trimmed, "0")?, column),
        25 | 142 | 1042 | 1043 => extracted(expression, ""),
        114 | 3802 => extracted(expression, "{}"),
        2950 => extracted(trimmed, "00000000-0000-0000-0000-000000000000").filter(|uuid| is_uuid(uuid)),
        1082 => extracted(trimmed, "1970-01-01"),
        1083 => extracted(trimmed, "00:00:00"),
        1114 => extracted(trimmed, "1970-01-01 00:00:00"),
        1184 => extracted(trimmed, "1970-01-01 00:00:00+00"),
        // For an empty interval, Java's driver returns one of length zero.
        1186 => extracted(trimmed, "00:00:00").or_else(|| Some("00:00:00".to_owned())),
        1560 => extracted(trimmed, "00"),
        _ => None,
    }
}

/// Whether Debezium reads the default as another time than the same text in a value. So it is with infinities, except in texts, and
/// with the end of a day.
pub(super) fn is_another_time(type_id: u32, text: &str) -> bool {
    (matches!(type_id, 1082 | 1114 | 1184) && matches!(text, "infinity" | "-infinity"))
        || (type_id == 1083 && text.starts_with("24:"))
}

/// The text in the first quotes. If there are none, the whole expression. `zero` for a function call or the present time.
fn extracted(expression: &str, zero: &str) -> Option<String> {
    const NOW: [&str; 5] = ["current_timestamp", "current_time", "current_date", "localtime", "localtimestamp"];
    if is_call(expression) || NOW.contains(&expression.to_ascii_lowercase().as_str()) {
        return Some(zero.to_owned());
    }
    if expression.contains('\'') {
        return literal(expression);
    }
    (!expression.starts_with("NULL::")).then(|| expression.to_owned())
}

/// Whether the expression is a name with parentheses after it, on one line, perhaps within other parentheses.
fn is_call(expression: &str) -> bool {
    let inside = expression.strip_prefix('(').unwrap_or(expression);
    let name = inside.find(|c: char| !c.is_ascii_alphanumeric() && !"_.".contains(c)).unwrap_or(0);
    let rest = inside.get(name..).and_then(|rest| rest.strip_prefix('('));
    name > 0 && rest.is_some_and(|rest| rest.lines().next().is_some_and(|line| line.contains(')')))
}

/// The text in the first quotes. A doubled quote stands for one.
fn literal(expression: &str) -> Option<String> {
    let (_, inside) = expression.split_once('\'')?;
    up_to_quote(inside, '\'').map(|(text, _)| text)
}

/// The label between quotes, with a cast to the enum after it.
fn of_enum(expression: &str, name: &str) -> Option<String> {
    let (label, cast) = expression.rsplit_once("::")?;
    let quoted = format!("\"{}\"", name.replace('"', "\"\""));
    let is_its = |cast: &str| cast == name || cast == quoted;
    let in_schema =
        || [name, quoted.as_str()].iter().any(|name| cast.strip_suffix(name).is_some_and(|rest| rest.ends_with('.')));
    let label = label.strip_prefix('\'')?.strip_suffix('\'')?;
    (is_its(cast) || in_schema()).then(|| label.to_owned())
}

fn is_uuid(text: &str) -> bool {
    let lengths = text.split('-').map(str::len).collect::<Vec<_>>();
    lengths == [8, 4, 4, 4, 12] && text.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit())
}

/// The number with as many digits after the point as the column has. `None`: it is no number, it does not fit, or the column has no
/// declared scale.
fn decimal(number: &str, column: DefaultColumn<'_>) -> Option<String> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = whole.strip_prefix('-').unwrap_or(whole);
    let is_number = !digits.is_empty() && digits.bytes().chain(fraction.bytes()).all(|byte| byte.is_ascii_digit());
    let Some(scale) = column.scale else { return (is_number && column.any_scale).then(|| number.to_owned()) };
    let scale = usize::try_from(scale).ok()?;
    let fraction = fraction.trim_end_matches('0');
    (is_number && fraction.len() <= scale).then(|| match scale {
        0 => whole.to_owned(),
        _ => format!("{whole}.{fraction:0<scale$}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const fn of(type_id: u32) -> DefaultColumn<'static> {
        DefaultColumn { type_id, enum_name: None, scale: Some(2), any_scale: false }
    }

    #[track_caller]
    fn check(expression: &str, type_id: u32, expected: Option<&str>) {
        assert_eq!(text(expression, of(type_id)).as_deref(), expected, "{expression} of {type_id}");
    }

    #[test]
    fn a_numeric_without_a_scale_has_a_default_as_double_and_text_alone() {
        let any = |any_scale| DefaultColumn { scale: None, any_scale, ..of(1700) };
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
    fn a_literal_is_itself() {
        check("'it''s'::text", 25, Some("it's"));
        check("''::text", 25, Some(""));
        check("'now()'::text", 25, Some("now()"));
        check("'-5'::integer", 20, Some("-5"));
        check("3", 23, Some("3"));
        check("2", 700, Some("2"));
        check("true", 16, Some("t"));
        check("1.5", 1700, Some("1.50"));
        check("1.500", 1700, Some("1.50"));
        check("1.555", 1700, None);
        check("'{}'::jsonb", 3802, Some("{}"));
        check("'10:11:12'::time without time zone", 1083, Some("10:11:12"));
        check("'2020-01-02 03:04:05+00'::timestamp with time zone", 1184, Some("2020-01-02 03:04:05+00"));
        check("'1 day'::interval", 1186, Some("1 day"));
        check("'101'::\"bit\"", 1560, Some("101"));
        check("('a'::text || 'b'::text)", 25, Some("a"));
        check("('a'::character varying)::character varying(3)", 1043, Some("a"));
    }

    #[test]
    fn a_null_under_a_cast_is_none_but_for_intervals() {
        for type_id in
            [16, 20, 21, 23, 25, 114, 142, 700, 701, 1042, 1043, 1082, 1083, 1114, 1184, 1560, 1562, 1700, 2950, 3802]
        {
            check("NULL::character varying", type_id, None);
        }
        check("NULL::interval", 1186, Some("00:00:00"));
        check("(NULL::text)::character varying(3)", 1043, Some("(NULL::text)::character varying(3)"));
    }

    #[test]
    fn an_enums_default_is_the_label_before_the_cast_to_it() {
        let of = |expression| text(expression, DefaultColumn { enum_name: Some("My mood"), ..of(20_000) });
        assert_eq!(of("'sad'::\"My mood\"").as_deref(), Some("sad"));
        assert_eq!(of("'it''s'::app.\"My mood\"").as_deref(), Some("it''s"));
        assert_eq!((of("NULL::\"My mood\""), of("f()"), of("'sad'::text")), (None, None, None));
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
        check("f()", 1560, Some("00"));
    }

    #[test]
    fn the_present_time_is_zero_and_other_words_are_texts() {
        check("CURRENT_TIMESTAMP", 1184, Some("1970-01-01 00:00:00+00"));
        check("LOCALTIMESTAMP", 1114, Some("1970-01-01 00:00:00"));
        check("CURRENT_DATE", 1082, Some("1970-01-01"));
        check("CURRENT_USER", 25, Some("CURRENT_USER"));
        check("(1 = 1)", 16, Some("f"));
    }

    #[test]
    fn other_expressions_and_types_have_none() {
        check("99999", 21, None);
        check("x", 2950, None);
        check("(1 + 2)", 23, None);
        for type_id in [1266, 26, 869, 1009, 17, 20_000] {
            check("'x'::any", type_id, None);
        }
    }

    proptest! {
        #[test]
        fn no_expression_panics(expression in "[a-z'().: 0-9-]{0,30}", type_id in proptest::sample::select(vec![16, 20, 25, 1700, 1184])) {
            let _text = text(&expression, of(type_id));
            let _enum = text(&expression, DefaultColumn { enum_name: Some("a"), ..of(type_id) });
        }
    }
}
