//! Names of slots, and what names and addresses look like, for messages.
//!
//! In: texts. Out: whether Postgres takes them. Whether anything has these names is not known here.

use crate::outbox::table_name::{MAX_NAME_BYTES, is_name};

/// The form of a slot's name, for messages.
pub(super) const SLOT: &str = "1 to 63 lower-case letters, digits and underscores";

/// The form of a name, for messages.
pub(super) const NAME: &str = "a name of 1 to 63 bytes";

/// The form of a table's name, for messages.
pub(super) const TABLE: &str =
    "SCHEMA.TABLE or TABLE, with parts in double quotes to keep their case: public.\"Outbox\"";

/// The form of an address, for messages.
pub(super) const HTTP: &str = "HOST:PORT, :PORT for every address, or off";

/// Whether Postgres takes it as a slot's name.
pub(super) fn is_slot(text: &str) -> bool {
    is_name(text) && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
}

/// The slot's name that was probably meant.
pub(super) fn nearest_slot(text: &str) -> Option<String> {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' };
    let name = text.trim().chars().map(plain).take(MAX_NAME_BYTES).collect::<String>();
    name.bytes().any(|byte| byte != b'_').then_some(name)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_slots_name_is_lower_case_letters_digits_and_underscores() {
        for name in ["walrelay", "a_1", &"x".repeat(63)] {
            assert!(is_slot(name), "{name}");
        }
        for name in ["", "Walrelay", "wal-relay", "wal relay", "é", &"x".repeat(64)] {
            assert!(!is_slot(name), "{name}");
        }
        assert_eq!(nearest_slot("Wal-Relay").as_deref(), Some("wal_relay"));
        assert_eq!(nearest_slot("--"), None);
    }

    proptest! {
        #[test]
        fn no_text_panics(text in any::<String>()) {
            let _read = nearest_slot(&text);
        }
    }
}
