//! Names the key of a server's certificate, if walrelay cannot check its signatures.
//!
//! In: a certificate. Out: nothing, or the key's algorithm. Without this, a handshake with such a server fails as one with a wrong signature.
//! Specification: RFC 5280, section 4.1.2.7; RFC 3279; RFC 4055; RFC 5480; RFC 8410.

use rustls::SignatureScheme;
use thiserror::Error;
use x509_cert::Certificate;
use x509_cert::der::asn1::{ObjectIdentifier, UintRef};
use x509_cert::der::{Decode as _, Reader as _, SliceReader};

/// A server whose key walrelay does not support.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "the server's certificate has a key that is not supported: {0}; give the server one of RSA with 2,048 to 8,192 bits, of ECDSA on P-256, P-384 or P-521, or of Ed25519"
)]
pub struct UnsupportedKey(String);

/// The sizes of RSA keys that ring takes, in bits.
const RSA_BITS: std::ops::RangeInclusive<usize> = 2048..=8192;

/// The schemes of keys that are not supported. They are offered last, so that a server with such a key shows its certificate, which names
/// it. A server that is not offered its scheme ends the handshake without a word.
pub(super) const NAMED: [SignatureScheme; 4] = [
    SignatureScheme::ED448,
    // rsa_pss_pss_sha256, rsa_pss_pss_sha384, rsa_pss_pss_sha512.
    SignatureScheme::Unknown(0x0809),
    SignatureScheme::Unknown(0x080A),
    SignatureScheme::Unknown(0x080B),
];

/// Checks that signatures of the certificate's key can be checked. A certificate that cannot be read is refused elsewhere.
///
/// # Errors
/// They cannot.
pub(super) fn check(certificate: &[u8]) -> Result<(), UnsupportedKey> {
    let Ok(certificate) = Certificate::from_der(certificate) else { return Ok(()) };
    let key = &certificate.tbs_certificate.subject_public_key_info;
    let unsupported = |name: String| Err(UnsupportedKey(name));
    match key.algorithm.oid.to_string().as_str() {
        "1.2.840.113549.1.1.1" => match rsa_bits(key.subject_public_key.raw_bytes()) {
            Some(bits) if !RSA_BITS.contains(&bits) => unsupported(format!("RSA with {bits} bits")),
            Some(_) | None => Ok(()),
        },
        "1.2.840.10045.2.1" => {
            let parameters = key.algorithm.parameters.as_ref();
            let curve = parameters.and_then(|any| any.decode_as::<ObjectIdentifier>().ok());
            match curve.map(|oid| oid.to_string()).as_deref() {
                Some("1.2.840.10045.3.1.7" | "1.3.132.0.34" | "1.3.132.0.35") => Ok(()),
                Some("1.3.132.0.10") => unsupported("ECDSA on secp256k1".to_owned()),
                Some(oid) => unsupported(format!("ECDSA on the curve {oid}")),
                None => unsupported("ECDSA on a curve without a name".to_owned()),
            }
        }
        "1.3.101.112" => Ok(()),
        "1.3.101.113" => unsupported("Ed448".to_owned()),
        "1.2.840.113549.1.1.10" => unsupported("RSA that is for PSS alone (RSASSA-PSS)".to_owned()),
        oid => unsupported(format!("the algorithm {oid}")),
    }
}

/// The bits of an RSA key's modulus.
fn rsa_bits(public_key: &[u8]) -> Option<usize> {
    let mut reader = SliceReader::new(public_key).ok()?;
    let modulus = reader.sequence(|reader| {
        let modulus = UintRef::decode(reader)?;
        UintRef::decode(reader)?;
        Ok(modulus)
    });
    let bytes = modulus.ok()?.as_bytes();
    let first = bytes.first()?;
    Some(bytes.len() * 8 - usize::try_from(first.leading_zeros()).ok()?)
}
