//! The slot of a key: which node of a cluster holds it.
//!
//! In: a key. Out: a number, or a text with the same slot. Pure.
//! Specification: Redis, "Redis cluster specification", sections "Key distribution model" and "Hash tags".

use std::sync::OnceLock;

/// How many slots a cluster has.
pub(super) const SLOTS: usize = 1 << 14;

/// The slot of a key.
pub(super) fn of(key: &str) -> u16 {
    slot(hash_tag(key).as_bytes())
}

/// A text without braces that stands between braces in keys which have the slot of `key`. For nearly every key: what decides its slot.
pub(super) fn tag(key: &str) -> &str {
    let tag = hash_tag(key);
    // Between braces, it would end at the first that closes.
    if tag.contains('}') { substitute(slot(tag.as_bytes())) } else { tag }
}

/// What of a key decides its slot: what stands between the first `{` and the next `}`, unless that is nothing; else all of it.
fn hash_tag(key: &str) -> &str {
    let inner = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    inner.filter(|tag| !tag.is_empty()).unwrap_or(key)
}

fn slot(bytes: &[u8]) -> u16 {
    crc16(bytes) % (1 << 14)
}

/// Digits of this slot.
fn substitute(slot: u16) -> &'static str {
    static DIGITS: OnceLock<Vec<String>> = OnceLock::new();
    let all = DIGITS.get_or_init(|| {
        let (mut all, mut left) = (vec![String::new(); SLOTS], SLOTS);
        // Each slot is hit by one of the first 200,000 numbers or so.
        for number in 0_u32.. {
            let digits = number.to_string();
            let place = all.get_mut(usize::from(self::slot(digits.as_bytes())));
            if let Some(place) = place.filter(|place| place.is_empty()) {
                *place = digits;
                left -= 1;
            }
            if left == 0 {
                break;
            }
        }
        all
    });
    all.get(usize::from(slot)).map_or("", String::as_str)
}

/// CRC16 as XMODEM has it.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        let index = usize::from((crc >> 8) ^ u16::from(*byte));
        (crc << 8) ^ TABLE.get(index).copied().unwrap_or_default()
    })
}

const TABLE: [u16; 256] = table();

#[allow(clippy::indexing_slicing, clippy::cast_possible_truncation, reason = "evaluated when it is compiled")]
const fn table() -> [u16; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_tag_that_decides_the_slot_is_what_the_specification_says() {
        for (key, tag) in [("a", "a"), ("{a}b", "a"), ("x{}y", "x{}y"), ("x{{a}}", "{a"), ("x}{a", "x}{a")] {
            assert_eq!(hash_tag(key), tag, "{key}");
        }
    }

    /// As CLUSTER KEYSLOT says them.
    #[test]
    fn slots_are_those_of_the_server() {
        assert_eq!(crc16(b"123456789"), 0x31C3);
        for (key, slot) in [("foo", 12_182), ("hello", 866), ("{foo}bar", 12_182), ("somekey", 11_058)] {
            assert_eq!(of(key), slot, "{key}");
        }
    }

    proptest! {
        #[test]
        fn between_braces_a_keys_tag_leads_to_its_slot(key in "[a{}]{1,6}|.{1,12}") {
            let marker = format!("seen:{{{}}}:{key}:1", tag(&key));
            prop_assert_eq!(of(&marker), of(&key));
        }
    }
}
