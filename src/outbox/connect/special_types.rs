//! Reads types whose text is not enough: money, bits, points, hstore.
//!
//! In: Postgres' text. Out: Debezium's values. `None` if the text ends Debezium's task.
//! Specification: Debezium's `PostgresMoney` and `PostgresValueConverter`, the hstore parser of Java's driver, `java.util.HashMap`.

use super::array::unescaped;
use super::number::Decimal;

/// Reads an amount of money: a sign or parentheses, one currency character, and digits with commas.
pub(super) fn money(text: &str) -> Option<Decimal> {
    let negative = text.starts_with(['-', '(']);
    let inside = text.strip_prefix(['-', '(']).unwrap_or(text);
    let inside = if text.starts_with('(') { inside.strip_suffix(')').unwrap_or(inside) } else { inside };
    let first = inside.chars().next()?;
    let amount = if first.is_ascii_digit() || first == '.' { inside } else { inside.get(first.len_utf8()..)? };
    let sign = if negative { "-" } else { "" };
    Decimal::parse(&format!("{sign}{}", amount.replace(',', "")))
}

/// Packs bits into bytes: the last bit is the lowest of the first byte. Zero bytes at the end are left out.
pub(super) fn bits(text: &str) -> Option<Vec<u8>> {
    let mut bytes = vec![0_u8; text.len().div_ceil(8)];
    for (at, bit) in text.bytes().rev().enumerate() {
        match bit {
            b'0' => {}
            b'1' => *bytes.get_mut(at / 8)? |= 1 << (at % 8),
            _ => return None,
        }
    }
    while bytes.last() == Some(&0) {
        bytes.pop();
    }
    Some(bytes)
}

/// Reads the two numbers of a point.
pub(super) fn point(text: &str) -> Option<(f64, f64)> {
    let (x, y) = text.strip_prefix('(')?.strip_suffix(')')?.split_once(',')?;
    Some((x.parse().ok()?, y.parse().ok()?))
}

/// Writes a point in "well-known binary" form: lowest byte first, type 1.
pub(super) fn well_known_binary(x: f64, y: f64) -> Vec<u8> {
    [[1, 1, 0, 0, 0].as_slice(), &x.to_le_bytes(), &y.to_le_bytes()].concat()
}

/// Reads the members of an hstore, in the order of Java's `HashMap`.
pub(super) fn hstore(text: &str) -> Option<Vec<(String, Option<String>)>> {
    let mut members = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (key, after) = quoted(rest)?;
        let after = after.strip_prefix("=>")?;
        let (value, after) = match after.strip_prefix("NULL") {
            Some(after) => (None, after),
            None => quoted(after).map(|(value, after)| (Some(value), after))?,
        };
        members.push((key, value));
        rest = after.strip_prefix(", ").unwrap_or(after);
    }
    let buckets = buckets(members.len());
    members.sort_by_key(|(key, _)| spread(hash(key)) & (buckets - 1));
    Some(members)
}

fn quoted(text: &str) -> Option<(String, &str)> {
    unescaped(text.strip_prefix('"')?)
}

/// `String.hashCode`.
fn hash(text: &str) -> u32 {
    text.encode_utf16().fold(0, |hash, unit| hash.wrapping_mul(31).wrapping_add(u32::from(unit)))
}

/// Mixes the high bits of a hash into the low ones, as `HashMap` does.
const fn spread(hash: u32) -> u32 {
    hash ^ (hash >> 16)
}

/// The number of buckets: 16, doubled each time that three quarters are full.
fn buckets(members: usize) -> u32 {
    let mut buckets = 16_u32;
    while members > buckets as usize / 4 * 3 && buckets < 1 << 30 {
        buckets *= 2;
    }
    buckets
}

#[cfg(test)]
mod tests {
    use super::super::value::members_json;
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn money_is_an_amount() {
        let amount = |text| money(text).map(|decimal| decimal.plain_text());
        assert_eq!(amount("$12.34").as_deref(), Some("12.34"));
        assert_eq!(amount("-$1,234,567.89").as_deref(), Some("-1234567.89"));
        assert_eq!(amount("($0.01)").as_deref(), Some("-0.01"));
        assert_eq!(amount("0.00").as_deref(), Some("0.00"));
        assert_eq!(amount("€5").as_deref(), Some("5"));
        assert_eq!(amount("12,34 €"), None);
        assert_eq!(amount(""), None);
    }

    #[test]
    fn bits_are_bytes_the_last_bit_first() {
        assert_eq!(bits("10110000"), Some(vec![0xB0]));
        assert_eq!(bits("101100001111"), Some(vec![0x0F, 0x0B]));
        assert_eq!(bits("000000000001"), Some(vec![1]));
        assert_eq!(bits("0000"), Some(vec![]));
        assert_eq!(bits(""), Some(vec![]));
        assert_eq!(bits("12"), None);
    }

    #[test]
    fn points_have_two_numbers() {
        assert_eq!(point("(1.5,-2e+10)"), Some((1.5, -2e10)));
        assert_eq!(point("1,2"), None);
        assert_eq!(well_known_binary(1.0, 2.0), b"\x01\x01\0\0\0\0\0\0\0\0\0\xf0\x3f\0\0\0\0\0\0\0\x40");
    }

    #[track_caller]
    fn check(text: &str, expected: &str) {
        let members = hstore(text).expect(text);
        assert_eq!(String::from_utf8(members_json(&members)).unwrap(), expected, "{text}");
    }

    #[test]
    fn hstores_members_come_in_javas_order() {
        check("", "{}");
        check(r#""a"=>"1", "b"=>NULL"#, r#"{"a":"1","b":null}"#);
        check(r#""q\"x"=>"y, z", "ä"=>"=>""#, r#"{"ä":"=>","q\"x":"y, z"}"#);
        check(r#""NULL"=>"NULL", ""=>"""#, r#"{"":"","NULL":"NULL"}"#);
        assert_eq!(hstore("a=>1"), None);
    }

    #[test]
    fn javas_hashes_and_buckets() {
        assert_eq!((hash("order"), hash("Aa"), hash("BB")), (106_006_350, 2112, 2112));
        assert_eq!([0, 12, 13, 24, 25].map(buckets), [16, 16, 32, 32, 64]);
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "[a\"\\\\=>,NUL ()$0-9.-]{0,20}") {
            let _read = (money(&text), bits(&text), point(&text), hstore(&text));
        }
    }
}
