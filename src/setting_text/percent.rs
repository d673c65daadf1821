//! Percent-encoded texts, as addresses and lists of attributes have them.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use std::borrow::Cow;

/// The characters that RFC 3986, 2.3, does not call unreserved.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// The text itself; `None`: a `%` has no two hexadecimal digits behind it, or its bytes are not UTF-8.
pub fn percent_decoded(text: &str) -> Option<String> {
    // The library leaves a lone `%` as it is.
    let begins_with_number = |part: &str| part.bytes().take(2).filter(u8::is_ascii_hexdigit).count() == 2;
    let is_whole = text.split('%').skip(1).all(begins_with_number);
    percent_decode_str(text).decode_utf8().ok().filter(|_| is_whole).map(Cow::into_owned)
}

/// All but unreserved characters as `%XX`.
pub fn percent_encoded(text: &str) -> String {
    utf8_percent_encode(text, RESERVED).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_decoded_and_what_is_malformed_is_none() {
        assert_eq!(percent_decoded("a%2Cb%c3%A9%25").as_deref(), Some("a,b\u{e9}%"));
        assert_eq!(percent_decoded("").as_deref(), Some(""));
        for text in ["%", "%2", "a%zz", "%+1", "%ff", "%\u{e9}"] {
            assert_eq!(percent_decoded(text), None, "{text}");
        }
    }

    #[test]
    fn what_is_encoded_is_the_same_once_decoded() {
        assert_eq!(percent_encoded("a%2F b-c._~"), "a%252F%20b-c._~");
        let all: String = (0..=0xFF_u8).map(char::from).collect();
        assert_eq!(percent_decoded(&percent_encoded(&all)), Some(all));
    }
}
