//! Bytes in a file of text: as text if they are UTF-8, else in hex; if they are many, their number and MD5.

use data_encoding::HEXLOWER;
use md5::{Digest as _, Md5};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Value, json};

/// A value of a record that is not null.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Bytes {
    /// All of them.
    Whole(Vec<u8>),
    /// Too many for a file.
    Sum {
        /// Their number.
        length: usize,
        /// In lower-case hex.
        md5: String,
    },
}

impl Bytes {
    /// Values of this length and longer are written as a sum.
    const MANY: usize = 100_000;

    /// The form in which a value is written into a file.
    pub fn of(bytes: &[u8]) -> Self {
        if bytes.len() < Self::MANY {
            return Self::Whole(bytes.to_vec());
        }
        Self::Sum { length: bytes.len(), md5: md5(bytes) }
    }

    /// Whether the value is these bytes.
    pub fn are(&self, bytes: &[u8]) -> bool {
        match self {
            Self::Whole(own) => own == bytes,
            Self::Sum { length, md5: sum } => *length == bytes.len() && *sum == md5(bytes),
        }
    }

    /// The bytes; `None` if there is only their sum.
    pub fn whole(&self) -> Option<&[u8]> {
        match self {
            Self::Whole(own) => Some(own),
            Self::Sum { .. } => None,
        }
    }
}

/// In lower-case hex.
pub(super) fn md5(bytes: &[u8]) -> String {
    HEXLOWER.encode(&Md5::digest(bytes))
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let value = match self {
            Self::Whole(bytes) => match std::str::from_utf8(bytes) {
                Ok(text) => json!(text),
                Err(_) => json!({ "hex": HEXLOWER.encode(bytes) }),
            },
            Self::Sum { length, md5 } => json!({ "length": length, "md5": md5 }),
        };
        value.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let wrong =
            || D::Error::custom(format!("{value} is no text, no {{\"hex\": …}}, no {{\"length\": …, \"md5\": …}}"));
        if let Some(text) = value.as_str() {
            return Ok(Self::Whole(text.as_bytes().to_vec()));
        }
        if let Some(hex) = value.get("hex") {
            return hex
                .as_str()
                .and_then(|hex| HEXLOWER.decode(hex.as_bytes()).ok())
                .map(Self::Whole)
                .ok_or_else(wrong);
        }
        let length = value.get("length").and_then(Value::as_u64).and_then(|length| usize::try_from(length).ok());
        let md5 = value.get("md5").and_then(Value::as_str);
        let (length, md5) = length.zip(md5).ok_or_else(wrong)?;
        Ok(Self::Sum { length, md5: md5.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(bytes: &[u8], text: &str) {
        let written = serde_json::to_string(&Bytes::of(bytes)).unwrap();
        assert_eq!(written, text);
        let read: Bytes = serde_json::from_str(text).unwrap();
        assert!(read.are(bytes) && !read.are(b"other"));
    }

    #[test]
    fn bytes_are_text_hex_or_a_sum() {
        check("ä \u{0}".as_bytes(), "\"ä \\u0000\"");
        check(&[0xFF, 0x00], r#"{"hex":"ff00"}"#);
        check(&vec![b'x'; 200_000], r#"{"length":200000,"md5":"4b98146705d4b0b98b758a78ff6fb73f"}"#);
    }
}
