//! Writes numbers as Java does.
//!
//! In: floats, doubles, and decimals in Postgres' text form. Out: the texts of `Double.toString`, `Float.toString` and `BigDecimal`.
//! Specification: `java.lang.Double.toString` (since JDK 19: the shortest text that reads back as the same number, of two digits at
//! least), `java.math.BigDecimal.toString`.

use bigdecimal::num_bigint::Sign;
use bigdecimal::{BigDecimal, RoundingMode};
use std::fmt::{Display, LowerExp};
use std::str::FromStr;

/// The text of `Double.toString` or `Float.toString`.
pub(super) fn float<F>(value: F) -> String
where
    F: Display + LowerExp + FromStr + PartialEq + Copy + Into<f64>,
{
    let wide: f64 = value.into();
    if wide.is_nan() {
        return "NaN".to_owned();
    }
    if wide.is_infinite() {
        return if wide > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    let shortest = format!("{value:e}");
    let two = format!("{value:.1e}");
    // If one digit is enough, Java uses the nearest text of two digits.
    let one_digit = !shortest.contains('.');
    let text = if one_digit && two.parse().is_ok_and(|read: F| read == value) { two } else { shortest };
    scientific(&text)
}

/// Turns a text such as `-1.5e10` into Java's form, which has no exponent from 10^-3 up to below 10^7.
fn scientific(text: &str) -> String {
    let (sign, text) = text.strip_prefix('-').map_or(("", text), |text| ("-", text));
    let (mantissa, exponent) = text.split_once('e').unwrap_or((text, "0"));
    let exponent = exponent.parse::<i32>().unwrap_or(0);
    let digits = mantissa.replace('.', "");
    if digits.bytes().all(|digit| digit == b'0') {
        return format!("{sign}0.0");
    }
    let digits = digits.trim_end_matches('0');
    if (-3..=6).contains(&exponent) {
        return format!("{sign}{}", plain(digits, exponent));
    }
    let (first, rest) = digits.split_at_checked(1).unwrap_or((digits, ""));
    format!("{sign}{first}.{}E{exponent}", if rest.is_empty() { "0" } else { rest })
}

/// The digits with a point after the first `exponent + 1`, and at least one digit on each side of it.
fn plain(digits: &str, exponent: i32) -> String {
    let Ok(before) = usize::try_from(exponent + 1) else {
        return format!("0.{}{digits}", zeros(exponent + 1));
    };
    if before == 0 {
        return format!("0.{digits}");
    }
    let padded = format!("{digits:0<before$}");
    let (whole, fraction) = padded.split_at_checked(before).unwrap_or((&padded, ""));
    format!("{whole}.{}", if fraction.is_empty() { "0" } else { fraction })
}

fn zeros(count: i32) -> String {
    "0".repeat(count.unsigned_abs() as usize)
}

/// A decimal with its scale, in Java's text forms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Decimal(BigDecimal);

impl Decimal {
    /// Parses Postgres' text. `None`: `NaN` or an infinity.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_prefix('-').unwrap_or(text);
        let is_number = digits.bytes().any(|byte| byte.is_ascii_digit())
            && digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        text.parse().ok().filter(|_| is_number).map(Self)
    }

    pub(super) fn scale(&self) -> i64 {
        self.0.fractional_digit_count()
    }

    /// The number with at least this many digits after the point.
    pub(super) fn of_scale(self, scale: i32) -> Self {
        let scale = self.scale().max(scale.into());
        Self(self.0.with_scale(scale))
    }

    /// The number rounded to so many digits after the point, at least 0. Halves are rounded away from zero.
    pub(super) fn rounded(self, scale: i32) -> Self {
        Self(self.0.with_scale_round(scale.into(), RoundingMode::HalfUp))
    }

    /// The number without zeros at the end of its fraction.
    pub(super) fn stripped(self) -> Self {
        let normal = self.0.normalized();
        Self(if normal.fractional_digit_count() < 0 { normal.with_scale(0) } else { normal })
    }

    /// The sign, and the digits without a point.
    fn digits(&self) -> (&'static str, String) {
        let (unscaled, _) = self.0.as_bigint_and_scale();
        let digits = unscaled.magnitude().to_string();
        (if self.0.sign() == Sign::Minus { "-" } else { "" }, digits)
    }

    /// The text of `BigDecimal.toPlainString`: never with an exponent.
    pub(super) fn plain_text(&self) -> String {
        let (sign, digits) = self.digits();
        let Ok(scale @ 1..) = usize::try_from(self.scale()) else { return format!("{sign}{digits}") };
        let padded = format!("{digits:0>width$}", width = scale + 1);
        let (whole, fraction) = padded.split_at_checked(padded.len() - scale).unwrap_or((&padded, ""));
        format!("{sign}{whole}.{fraction}")
    }

    /// The text of `BigDecimal.toString`: with an exponent if there are more than six zeros after the point.
    pub(super) fn text(&self) -> String {
        let (sign, digits) = self.digits();
        let exponent = i64::try_from(digits.len()).unwrap_or(i64::MAX) - 1 - self.scale();
        if self.scale() != 0 && exponent < -6 {
            let (first, rest) = digits.split_at_checked(1).unwrap_or((&digits, ""));
            let point = if rest.is_empty() { "" } else { "." };
            return format!("{sign}{first}{point}{rest}E{exponent}");
        }
        self.plain_text()
    }

    /// The bytes of `BigInteger.toByteArray` for the unscaled number: two's complement, highest byte first, as few bytes as possible.
    pub(super) fn unscaled_bytes(&self) -> Vec<u8> {
        self.0.as_bigint_and_scale().0.to_signed_bytes_be()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[track_caller]
    fn double(value: f64, expected: &str) {
        assert_eq!(float(value), expected);
    }

    #[test]
    fn doubles_are_javas() {
        double(0.0, "0.0");
        double(-0.0, "-0.0");
        double(1.0, "1.0");
        double(1.5, "1.5");
        double(100.0, "100.0");
        double(0.001, "0.001");
        double(0.0015, "0.0015");
        double(0.00099, "9.9E-4");
        double(9_999_999.0, "9999999.0");
        double(9_999_999.5, "9999999.5");
        double(1e7, "1.0E7");
        double(12_345_678.9, "1.23456789E7");
        double(-2.5e-10, "-2.5E-10");
        double(1e23, "1.0E23");
        double(4.9e-324, "4.9E-324");
        double(1.797_693_134_862_315_7e308, "1.7976931348623157E308");
        double(f64::NAN, "NaN");
        double(f64::NEG_INFINITY, "-Infinity");
        double(0.1 + 0.2, "0.30000000000000004");
    }

    #[test]
    fn floats_are_javas() {
        assert_eq!(float(0.1_f32), "0.1");
        assert_eq!(float(16_777_216_f32), "1.6777216E7");
        assert_eq!(float(3.402_823_5e38_f32), "3.4028235E38");
        assert_eq!(float(1.4e-45_f32), "1.4E-45");
    }

    #[track_caller]
    fn decimal(text: &str, expected: &str, bytes: &[u8]) {
        let decimal = Decimal::parse(text).unwrap();
        assert_eq!((decimal.text().as_str(), decimal.unscaled_bytes().as_slice()), (expected, bytes), "{text}");
    }

    #[test]
    fn decimals_keep_their_scale() {
        decimal("0", "0", &[0]);
        decimal("1.50", "1.50", &[0x00, 0x96]);
        decimal("-1.50", "-1.50", &[0xFF, 0x6A]);
        decimal("127", "127", &[0x7F]);
        decimal("128", "128", &[0, 0x80]);
        decimal("-128", "-128", &[0x80]);
        decimal("-129", "-129", &[0xFF, 0x7F]);
        decimal("255", "255", &[0, 0xFF]);
        decimal("256", "256", &[1, 0]);
        decimal("-256", "-256", &[0xFF, 0]);
        decimal("-1", "-1", &[0xFF]);
        decimal("0.000001", "0.000001", &[1]);
        decimal("0.0000001", "1E-7", &[1]);
        decimal("0.00000012", "1.2E-7", &[12]);
        decimal("0.00", "0.00", &[0]);
        decimal("12345678901234567890", "12345678901234567890", &[0, 0xAB, 0x54, 0xA9, 0x8C, 0xEB, 0x1F, 0x0A, 0xD2]);
    }

    #[test]
    fn decimals_of_any_scale_lose_zeros_at_the_end() {
        let stripped = |text: &str| {
            let decimal = Decimal::parse(text).unwrap().stripped();
            (decimal.text(), decimal.scale())
        };
        assert_eq!(stripped("1.500"), ("1.5".to_owned(), 1));
        assert_eq!(stripped("100"), ("100".to_owned(), 0));
        assert_eq!(stripped("0.00"), ("0".to_owned(), 0));
        assert_eq!(stripped("2.00"), ("2".to_owned(), 0));
    }

    #[test]
    fn what_is_no_decimal_is_none() {
        for text in ["NaN", "Infinity", "", "-", ".", "1e5"] {
            assert_eq!(Decimal::parse(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_doubles_text_reads_back_as_the_same(value: f64) {
            if value.is_finite() {
                prop_assert_eq!(float(value).parse::<f64>().unwrap().to_bits(), value.to_bits());
            }
        }

        #[test]
        fn unscaled_bytes_are_the_number(value: i64) {
            let bytes = Decimal::parse(&value.to_string()).unwrap().unscaled_bytes();
            let sign = if value < 0 { 0xFF } else { 0 };
            let mut wide = [sign; 8];
            for (to, from) in wide.iter_mut().rev().zip(bytes.iter().rev()) {
                *to = *from;
            }
            prop_assert_eq!(i64::from_be_bytes(wide), value);
            prop_assert!(bytes.len() <= 8);
        }
    }
}
