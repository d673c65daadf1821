//! ECDSA on the curve P-521: signatures of servers and their certificates, and those of a client's key.
//!
//! In: a key, a message. Out: whether a signature is right, or a signature. The crate `p521` computes.
//! Specification: FIPS 186-5, section 6; RFC 8446, section 4.2.3.

use ::p521::FieldBytes;
use ::p521::ecdsa::signature::Signer as _;
use ::p521::ecdsa::signature::hazmat::PrehashVerifier as _;
use ::p521::ecdsa::{DerSignature, Signature, SigningKey, VerifyingKey};
use ::p521::{SecretKey, pkcs8::DecodePrivateKey as _};
use rustls::crypto::KeyProvider;
use rustls::pki_types::{AlgorithmIdentifier, InvalidSignature, PrivateKeyDer, SignatureVerificationAlgorithm, alg_id};
use rustls::sign;
use rustls::{Error, SignatureAlgorithm, SignatureScheme};
use sha2::{Digest as _, Sha256, Sha384, Sha512};
use std::fmt;
use std::sync::Arc;

/// A signature on a certificate, or in a handshake, by the hash function that comes before it.
#[derive(Debug)]
struct WithHash {
    hash: fn(&[u8]) -> Vec<u8>,
    signature: AlgorithmIdentifier,
}

static SHA512: WithHash = WithHash { hash: |bytes| Sha512::digest(bytes).to_vec(), signature: alg_id::ECDSA_SHA512 };
static SHA384: WithHash = WithHash { hash: |bytes| Sha384::digest(bytes).to_vec(), signature: alg_id::ECDSA_SHA384 };
/// The hash that `openssl req -x509` takes by default, whatever the curve.
static SHA256: WithHash = WithHash { hash: |bytes| Sha256::digest(bytes).to_vec(), signature: alg_id::ECDSA_SHA256 };

/// All signatures by a key on this curve.
pub(super) static ALGORITHMS: [&dyn SignatureVerificationAlgorithm; 3] = [&SHA512, &SHA384, &SHA256];

/// The scheme of handshakes. TLS 1.3 knows it with SHA-512 only.
pub(super) static MAPPING: (SignatureScheme, &[&dyn SignatureVerificationAlgorithm]) =
    (SignatureScheme::ECDSA_NISTP521_SHA512, &[&SHA512]);

impl SignatureVerificationAlgorithm for WithHash {
    fn verify_signature(&self, public_key: &[u8], message: &[u8], signature: &[u8]) -> Result<(), InvalidSignature> {
        let key = VerifyingKey::from_sec1_bytes(public_key).map_err(|_| InvalidSignature)?;
        let signature = Signature::from_der(signature).map_err(|_| InvalidSignature)?;
        // A hash is a number with zeros before it. The crate refuses one of less than half of the curve's bits without them.
        let mut number = FieldBytes::default();
        let hash = (self.hash)(message);
        let zeros = number.len().saturating_sub(hash.len());
        number.get_mut(zeros..).ok_or(InvalidSignature)?.copy_from_slice(&hash);
        key.verify_prehash(&number, &signature).map_err(|_| InvalidSignature)
    }

    fn public_key_alg_id(&self) -> AlgorithmIdentifier {
        alg_id::ECDSA_P521
    }

    fn signature_alg_id(&self) -> AlgorithmIdentifier {
        self.signature
    }
}

/// Reads a client's key: those that ring knows, and those on this curve.
#[derive(Debug)]
pub(super) struct Keys;

impl KeyProvider for Keys {
    fn load_private_key(&self, key: PrivateKeyDer<'static>) -> Result<Arc<dyn sign::SigningKey>, Error> {
        let of_ring = rustls::crypto::ring::sign::any_supported_type(&key);
        let own = || {
            Some(match &key {
                PrivateKeyDer::Pkcs8(der) => SecretKey::from_pkcs8_der(der.secret_pkcs8_der()).ok()?,
                PrivateKeyDer::Sec1(der) => SecretKey::from_sec1_der(der.secret_sec1_der()).ok()?,
                PrivateKeyDer::Pkcs1(_) | _ => return None,
            })
        };
        of_ring.or_else(|error| {
            let secret = own().ok_or(error)?;
            let key = SigningKey::from_bytes(&secret.to_bytes()).map_err(|error| Error::General(error.to_string()))?;
            Ok(Arc::new(ClientKey(Arc::new(key))) as Arc<dyn sign::SigningKey>)
        })
    }
}

/// A client's key.
#[derive(Clone)]
struct ClientKey(Arc<SigningKey>);

impl fmt::Debug for ClientKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClientKey")
    }
}

impl sign::SigningKey for ClientKey {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn sign::Signer>> {
        offered.contains(&MAPPING.0).then(|| Box::new(self.clone()) as Box<dyn sign::Signer>)
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        SignatureAlgorithm::ECDSA
    }
}

impl sign::Signer for ClientKey {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        let signature: Signature = self.0.try_sign(message).map_err(|error| Error::General(error.to_string()))?;
        let signature: DerSignature = signature.to_der();
        Ok(signature.as_bytes().to_vec())
    }

    fn scheme(&self) -> SignatureScheme {
        MAPPING.0
    }
}
