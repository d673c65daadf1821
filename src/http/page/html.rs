//! Writes figures and texts for people, as HTML.

pub(super) use crate::setting_text::units::number;
use std::fmt::{self, Write as _};

/// A text in HTML, between tags or in an attribute.
pub(super) struct EscapedText<'a>(pub(super) &'a str);

impl fmt::Display for EscapedText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|character| escape(character, f))
    }
}

fn escape(character: char, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match character {
        '&' => f.write_str("&amp;"),
        '<' => f.write_str("&lt;"),
        '>' => f.write_str("&gt;"),
        '"' => f.write_str("&quot;"),
        '\'' => f.write_str("&#39;"),
        other => f.write_char(other),
    }
}

/// A name in HTML that may break after a dot or a similar character, and before a capital: many topics are wider than a phone.
pub(super) struct BreakableName<'a>(pub(super) &'a str);

impl fmt::Display for BreakableName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut before = None;
        for character in self.0.chars() {
            let begins_a_part = match before {
                Some('.' | '-' | '_' | ':' | '/') => true,
                Some(before) => before.is_lowercase() && character.is_uppercase(),
                None => false,
            };
            if begins_a_part {
                f.write_str("<wbr>")?;
            }
            escape(character, f)?;
            before = Some(character);
        }
        Ok(())
    }
}

/// Seconds, in a unit that people would choose.
pub(super) struct ShownSeconds(pub(super) f64);

impl fmt::Display for ShownSeconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            seconds if seconds < 0.0005 => f.write_str("0 s"),
            seconds if seconds < 0.00995 => write!(f, "{:.1} ms", seconds * 1000.0),
            seconds if seconds < 0.9995 => write!(f, "{:.0} ms", seconds * 1000.0),
            seconds if seconds < 10.0 => write!(f, "{seconds:.1} s"),
            seconds if seconds < 120.0 => write!(f, "{seconds:.0} s"),
            seconds if seconds < 7_200.0 => write!(f, "{:.0} min", seconds / 60.0),
            seconds if seconds < 172_800.0 => write!(f, "{:.0} h", seconds / 3_600.0),
            seconds => write!(f, "{:.0} days", seconds / 86_400.0),
        }
    }
}

/// Bytes, in a unit that people would choose.
pub(super) struct Size(pub(super) u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
        match UNITS.iter().find(|(bytes, _)| self.0 >= *bytes) {
            // Tenths are computed in whole numbers, which is exact for any size.
            Some((bytes, unit)) => write!(f, "{}.{} {unit}", self.0 / bytes, self.0 % bytes * 10 / bytes),
            None => write!(f, "{} bytes", self.0),
        }
    }
}

/// A rate in a second, with one decimal if it is small.
pub(super) struct PerSecond(pub(super) f64);

impl fmt::Display for PerSecond {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "rates are small and not negative")]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            rate if rate < 0.05 => f.write_str("0 /s"),
            rate if rate < 99.95 => write!(f, "{rate:.1} /s"),
            rate => write!(f, "{} /s", number(rate.round() as u64)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_breaks_between_its_parts_only() {
        let shown =
            ["outbox.event.order-paid", "OrderPlacedV2", "a<b>é", ".", ""].map(|name| BreakableName(name).to_string());
        assert_eq!(
            shown,
            ["outbox.<wbr>event.<wbr>order-<wbr>paid", "Order<wbr>Placed<wbr>V2", "a&lt;b&gt;é", ".", ""]
        );
    }

    #[test]
    fn figures_are_shown_in_units_that_people_read() {
        let sizes = [0, 1023, 1024, 1536, 5 << 20, u64::MAX].map(|bytes| Size(bytes).to_string());
        assert_eq!(sizes, ["0 bytes", "1023 bytes", "1.0 KiB", "1.5 KiB", "5.0 MiB", "17179869183.9 GiB"]);
        let ages = [0.0, 0.0042, 0.04, 9.96, 119.0, 600.0, 7_200.0, 864_000.0]
            .map(|seconds| ShownSeconds(seconds).to_string());
        assert_eq!(ages, ["0 s", "4.2 ms", "40 ms", "10.0 s", "119 s", "10 min", "2 h", "10 days"]);
        let counts = [0, 999, 1_000, 1_234_567].map(number);
        assert_eq!(counts, ["0", "999", "1,000", "1,234,567"]);
        let rates = [0.0, 0.1, 12.34, 99.96, 123_456.7].map(|rate| PerSecond(rate).to_string());
        assert_eq!(rates, ["0 /s", "0.1 /s", "12.3 /s", "100 /s", "123,457 /s"]);
    }
}
