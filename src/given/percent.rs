//! Percent-encoded texts, as addresses and lists of attributes have them.

/// The text itself; `None`: a `%` has no two hexadecimal digits behind it, or its bytes are not UTF-8.
pub fn percent_decoded(text: &str) -> Option<String> {
    let mut parts = text.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at_checked(2)?;
        let is_number = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        bytes.push(u8::from_str_radix(digits, 16).ok().filter(|_| is_number)?);
        bytes.extend_from_slice(rest.as_bytes());
    }
    String::from_utf8(bytes).ok()
}

/// All but unreserved characters as `%XX` (RFC 3986, 2.3).
pub fn percent_encoded(text: &str) -> String {
    let digit = |half: u8| char::from_digit(half.into(), 16).unwrap_or_default().to_ascii_uppercase();
    text.bytes().fold(String::with_capacity(text.len()), |mut encoded, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.extend(['%', digit(byte >> 4), digit(byte & 0xF)]);
        }
        encoded
    })
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
