//! TLS to every peer, by rustls: which algorithms there are, which certificates are trusted, and which keys a server may have.
//!
//! In: the certificates that a user trusts, and a certificate of the client. Out: a [`ClientConfig`]. It opens no connection.
//!
//! The provider is ring's, with P-521 added by the crate `p521`, which ring lacks: OpenSSL and libpq take such keys by default.
//! Specification: RFC 8446; RFC 5280.

mod certificate;
mod p521;
mod server_key;
mod verifier;

pub use server_key::UnsupportedKey;
pub use verifier::{NameRule, Roots, Verifier};

use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, Error};
use std::sync::{Arc, OnceLock};

/// The certificate of a client, with those above it, and its key.
pub type ClientIdentity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// The algorithms of this program.
pub fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    let build = || {
        let ring = rustls::crypto::ring::default_provider();
        let of_ring = ring.signature_verification_algorithms;
        // rustls wants them for the life of the program. They are made once.
        let all = [of_ring.all, p521::ALGORITHMS.as_slice()].concat().leak();
        let mapping = [of_ring.mapping, [p521::MAPPING].as_slice()].concat().leak();
        let signature_verification_algorithms = WebPkiSupportedAlgorithms { all, mapping };
        Arc::new(CryptoProvider { signature_verification_algorithms, key_provider: &p521::Keys, ..ring })
    };
    Arc::clone(PROVIDER.get_or_init(build))
}

/// The configuration of a client that trusts by `verifier`. `identity`: what the client shows if the server asks for it.
///
/// # Errors
/// The client's key has no form that is supported, or does not fit its certificate.
pub fn client_config(verifier: Verifier, identity: Option<ClientIdentity>) -> Result<ClientConfig, Error> {
    let config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    match identity {
        Some((chain, key)) => config.with_client_auth_cert(chain, key),
        None => Ok(config.with_no_client_auth()),
    }
}

#[cfg(test)]
mod tests;
