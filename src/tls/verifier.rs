//! [`Verifier`]: decides on a server's certificate.
//!
//! In: the certificates that a user trusts, and those that a server shows. Out: whether the server is who it should be. webpki checks chains
//! and names. Beyond that, a certificate that signed itself is accepted if the user trusts that very certificate, as OpenSSL does: the one
//! that `openssl req -x509` makes says of itself that it is an authority, for which webpki refuses it as a server's.
//!
//! Invariant: the server has always proved that it has the certificate's key.

use super::certificate;
use super::server_key;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, Error, OtherError, RootCertStore, SignatureScheme};
use std::sync::Arc;

/// The trusted certificates.
#[derive(Debug)]
pub struct Roots {
    authorities: RootCertStore,
    /// The certificates that the user named. The server may show one of these itself.
    named: Vec<CertificateDer<'static>>,
}

impl Roots {
    /// These certificates, and no others.
    ///
    /// # Errors
    /// One of them cannot be trusted: its form is not that of an authority's certificate.
    pub fn of(named: Vec<CertificateDer<'static>>) -> Result<Self, Error> {
        let mut authorities = RootCertStore::empty();
        named.iter().cloned().try_for_each(|certificate| authorities.add(certificate))?;
        Ok(Self { authorities, named })
    }

    /// The certificates that the machine trusts. There may be none.
    pub fn of_machine() -> Self {
        let mut authorities = RootCertStore::empty();
        authorities.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        Self { authorities, named: Vec::new() }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.authorities.is_empty()
    }

    /// Whether the server's certificate is, byte for byte, one that the user trusts, and signed itself.
    fn name_themselves(&self, end_entity: &CertificateDer<'_>) -> bool {
        self.named.iter().any(|named| named == end_entity) && certificate::is_its_own_authority(end_entity)
    }
}

/// Whether the host's name has to be in the certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameRule {
    /// It does not.
    Unchecked,
    /// Among the alternative names.
    AlternativeNames,
    /// Among the alternative names or, if there are none, in the subject, as libpq has it.
    OrSubject,
}

/// Checks a server's certificate.
#[derive(Debug)]
pub struct Verifier {
    /// The trusted certificates. `None`: the chain is not checked.
    roots: Option<Roots>,
    name: NameRule,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Verifier {
    /// Trusts `roots`. `None`: any certificate.
    pub fn new(roots: Option<Roots>, name: NameRule) -> Self {
        Self { roots, name, algorithms: super::provider().signature_verification_algorithms }
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        server_key::check(end_entity).map_err(|unsupported| Error::Other(OtherError(Arc::new(unsupported))))?;
        let Some(roots) = &self.roots else { return Ok(ServerCertVerified::assertion()) };
        let parsed = rustls::server::ParsedCertificate::try_from(end_entity)?;
        if roots.name_themselves(end_entity) {
            certificate::in_force(end_entity, now)?;
        } else {
            rustls::client::verify_server_cert_signed_by_trust_anchor(
                &parsed,
                &roots.authorities,
                intermediates,
                now,
                self.algorithms.all,
            )?;
        }
        match self.name {
            NameRule::Unchecked => {}
            NameRule::OrSubject if certificate::common_name_covers(end_entity, server_name) => {}
            NameRule::AlternativeNames | NameRule::OrSubject => {
                rustls::client::verify_server_name(&parsed, server_name)?;
            }
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let mut schemes = self.algorithms.supported_schemes();
        schemes.extend(server_key::NAMED);
        schemes
    }
}
