//! Keys of NATS: a seed signs what the server asks for, and says which user it is.
//!
//! In: the text of a seed (`SU…`), or a credentials file, which holds a token (JWT) and a seed. Out: what CONNECT carries. It reads
//! no file.
//! Specification: NATS, ADR-1 (JWT) and the nkeys repository: base32 of two bytes that say the kind, the seed, and its CRC-16.

use ring::signature::{Ed25519KeyPair, KeyPair as _};

/// First five bits of a seed, and of a user's public key.
const SEED: u8 = 18 << 3;
const USER: u8 = 20 << 3;

/// A user's key.
pub(super) struct Key(Ed25519KeyPair);

/// What stands in a credentials file.
pub(super) struct Credentials<'a> {
    pub(super) token: &'a str,
    pub(super) seed: &'a str,
}

impl<'a> Credentials<'a> {
    /// `None`: one of both is missing.
    pub(super) fn of(text: &'a str) -> Option<Self> {
        Some(Self { token: section(text, "USER JWT")?, seed: section(text, "USER NKEY SEED")? })
    }
}

/// The line behind the one that begins what is called `name`.
fn section<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = text.lines().map(str::trim);
    lines.find(|line| line.starts_with("-----BEGIN") && line.contains(name))?;
    lines.find(|line| !line.is_empty()).filter(|line| !line.starts_with('-'))
}

impl Key {
    /// `None`: the text is no seed of a user.
    pub(super) fn of_seed(seed: &str) -> Option<Self> {
        let bytes = decode_base32(seed.trim())?;
        let (bytes, sum) = bytes.split_last_chunk::<2>()?;
        let ([first, second], key) = bytes.split_first_chunk()?;
        let kind = (first & 7) << 5 | second >> 3;
        let sound = crc16(bytes) == u16::from_le_bytes(*sum) && first & 0xF8 == SEED && kind == USER;
        sound.then(|| Ed25519KeyPair::from_seed_unchecked(key).ok().map(Self)).flatten()
    }

    /// As servers see it: `U…`.
    pub(super) fn public(&self) -> String {
        let mut bytes = vec![USER];
        bytes.extend_from_slice(self.0.public_key().as_ref());
        let sum = crc16(&bytes).to_le_bytes();
        bytes.extend_from_slice(&sum);
        encode(&bytes, 5, b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567")
    }

    /// The signature of what the server asks for, in base64 as URLs have it, without padding.
    pub(super) fn sign(&self, nonce: &str) -> String {
        let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        encode(self.0.sign(nonce.as_bytes()).as_ref(), 6, alphabet)
    }
}

/// So many bits a character, without padding.
fn encode(bytes: &[u8], bits: u32, alphabet: &[u8]) -> String {
    let mut text = String::new();
    let (mut held, mut count) = (0_u32, 0);
    let mut put = |held: u32| {
        let at = held & ((1 << bits) - 1);
        text.push(alphabet.get(at as usize).copied().unwrap_or_default().into());
    };
    for byte in bytes {
        held = held << 8 | u32::from(*byte);
        count += 8;
        while count >= bits {
            count -= bits;
            put(held >> count);
        }
        held &= (1 << count) - 1;
    }
    if count > 0 {
        put(held << (bits - count));
    }
    text
}

fn decode_base32(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let (mut held, mut count) = (0_u32, 0);
    for character in text.bytes() {
        let value = match character {
            b'A'..=b'Z' => character - b'A',
            b'2'..=b'7' => character - b'2' + 26,
            _ => return None,
        };
        held = held << 5 | u32::from(value);
        count += 5;
        if count >= 8 {
            count -= 8;
            bytes.push(u8::try_from(held >> count).ok()?);
            held &= (1 << count) - 1;
        }
    }
    Some(bytes)
}

/// CRC-16/XMODEM.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |sum, byte| {
        (0..8).fold(sum ^ u16::from(*byte) << 8, |sum, _| if sum & 0x8000 == 0 { sum << 1 } else { sum << 1 ^ 0x1021 })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ring::signature::{ED25519, UnparsedPublicKey};

    /// A seed and its public key, as the nkeys tool made them.
    const PAIR: (&str, &str) = (
        "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY",
        "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4",
    );

    #[test]
    fn a_seed_says_which_user_it_is_and_signs() {
        let key = Key::of_seed(PAIR.0).unwrap();
        assert_eq!(key.public(), PAIR.1);
        let signed = key.0.sign(b"nonce");
        UnparsedPublicKey::new(&ED25519, key.0.public_key()).verify(b"nonce", signed.as_ref()).unwrap();
        let text = key.sign("nonce");
        assert!(text.len() == 86 && !text.contains(['=', '+', '/']), "{text}");
    }

    #[test]
    fn what_is_no_users_seed_is_reported() {
        assert!(Key::of_seed(&format!("{}\n", PAIR.0)).is_some());
        let other = PAIR.0.replace('3', "4");
        for seed in ["", "SU", &other, &PAIR.0.to_lowercase(), PAIR.1] {
            assert!(Key::of_seed(seed).is_none(), "{seed}");
        }
    }

    #[test]
    fn a_credentials_file_holds_a_token_and_a_seed() {
        let text = "-----BEGIN NATS USER JWT-----\neyJ0.x.y\n------END NATS USER JWT------\n\n*** IMPORTANT ***\n\n\
                    -----BEGIN USER NKEY SEED-----\r\nSUA\r\n------END USER NKEY SEED------\r\n";
        let found = Credentials::of(text).unwrap();
        assert_eq!((found.token, found.seed), ("eyJ0.x.y", "SUA"));
        assert!(Credentials::of(&text.replace("USER NKEY", "OTHER")).is_none());
        assert!(Credentials::of("").is_none());
    }

    #[test]
    fn texts_of_bits_are_as_their_standards_have_them() {
        let base32 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
        assert_eq!(encode(b"foobar", 5, base32), "MZXW6YTBOI");
        assert_eq!(decode_base32("MZXW6YTBOI").unwrap(), b"foobar");
        assert_eq!(crc16(b"123456789"), 0x31C3);
    }
}
