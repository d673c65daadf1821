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
}
