//! How far a service is, as it is typed and shown.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// How long a byte is on its way, one way, typed as `2500us`, `2.5ms` or `0`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Distance(pub(crate) Duration);

impl Distance {
    /// Nobody is told to go through a tap.
    pub(crate) const fn is_none(self) -> bool {
        self.0.is_zero()
    }
}

impl FromStr for Distance {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (digits, seconds) = match (text.strip_suffix("us"), text.strip_suffix("ms")) {
            (Some(digits), _) => (digits, 1e-6),
            (None, Some(digits)) => (digits, 1e-3),
            (None, None) if text == "0" => (text, 0.0),
            (None, None) => (text.strip_suffix('s').unwrap_or_default(), 1.0),
        };
        let time = digits.parse::<f64>().ok().and_then(|number| Duration::try_from_secs_f64(number * seconds).ok());
        time.map(Self).ok_or_else(|| "a time such as 500us, 2.5ms or 0".to_owned())
    }
}

/// As the round trip that it makes.
impl fmt::Display for Distance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RTT {} ms", self.0.as_secs_f64() * 2000.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distance_is_typed_one_way_and_told_as_a_round_trip() {
        for (text, told) in [("2500us", "RTT 5 ms"), ("2.5ms", "RTT 5 ms"), ("0", "RTT 0 ms"), ("1s", "RTT 2000 ms")] {
            assert_eq!(text.parse::<Distance>().unwrap().to_string(), told);
        }
        for text in ["", "5", "ms", "-1ms", "1h"] {
            assert!(text.parse::<Distance>().is_err(), "{text}");
        }
    }
}
