//! Tests handshakes between a client of this program and servers with keys of all kinds.

use super::*;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    ClientConnection, DigitallySignedStruct, DistinguishedName, ServerConfig, ServerConnection, SignatureScheme,
    SupportedProtocolVersion,
};

/// A certificate that signed itself, with SHA-256, and its key: see `test_data/README.md`.
const BY_OPENSSL: (&str, &str) = (include_str!("test_data/p521.crt"), include_str!("test_data/p521.key"));

/// Certificates whose keys are not supported, and the keys' names.
const NAMED: [(&str, &str); 4] = [
    (include_str!("test_data/rsa1024.crt"), "RSA with 1024 bits"),
    (include_str!("test_data/ed448.crt"), "Ed448"),
    (include_str!("test_data/rsa-pss.crt"), "RSA that is for PSS alone (RSASSA-PSS)"),
    (include_str!("test_data/secp256k1.crt"), "ECDSA on secp256k1"),
];

fn certificate(pem: &str) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()
}

fn key(pem: &str) -> PrivateKeyDer<'static> {
    PrivateKeyDer::from_pem_slice(pem.as_bytes()).unwrap()
}

/// Lets both ends exchange what they have to say; the client's error, if it has one.
fn shake_hands(client: ClientConfig, server: ServerConfig) -> Result<(), Error> {
    let name = ServerName::try_from("localhost").unwrap();
    let mut client = ClientConnection::new(Arc::new(client), name).unwrap();
    let mut server = ServerConnection::new(Arc::new(server)).unwrap();
    while client.is_handshaking() || server.is_handshaking() {
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).unwrap();
        server.read_tls(&mut bytes.as_slice()).unwrap();
        server.process_new_packets()?;
        let mut bytes = Vec::new();
        server.write_tls(&mut bytes).unwrap();
        client.read_tls(&mut bytes.as_slice()).unwrap();
        client.process_new_packets()?;
    }
    Ok(())
}

fn server_of(
    versions: &[&'static SupportedProtocolVersion],
) -> rustls::ConfigBuilder<ServerConfig, rustls::WantsVerifier> {
    ServerConfig::builder_with_provider(provider()).with_protocol_versions(versions).unwrap()
}

fn trusting(certificates: Vec<CertificateDer<'static>>) -> Verifier {
    Verifier::new(Some(Roots::of(certificates).unwrap()), NameRule::AlternativeNames)
}

const VERSIONS: [&SupportedProtocolVersion; 2] = [&rustls::version::TLS12, &rustls::version::TLS13];

#[test]
fn a_server_with_a_key_on_p521_shakes_hands() {
    let (own, own_key) = (certificate(BY_OPENSSL.0), BY_OPENSSL.1);
    for version in VERSIONS {
        let server =
            server_of(&[version]).with_no_client_auth().with_single_cert(vec![own.clone()], key(own_key)).unwrap();
        let client = client_config(trusting(vec![own.clone()]), None).unwrap();
        assert_eq!(shake_hands(client, server), Ok(()), "{version:?}");
    }
}

/// Takes any certificate of a client, and checks that the client has its key.
#[derive(Debug)]
struct AnyClient;

impl ClientCertVerifier for AnyClient {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &provider().signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &provider().signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider().signature_verification_algorithms.supported_schemes()
    }
}

#[test]
fn a_client_proves_its_key_on_p521() {
    let own = certificate(BY_OPENSSL.0);
    for version in VERSIONS {
        let server = server_of(&[version]).with_client_cert_verifier(Arc::new(AnyClient));
        let server = server.with_single_cert(vec![own.clone()], key(BY_OPENSSL.1)).unwrap();
        let identity = (vec![own.clone()], key(BY_OPENSSL.1));
        let client = client_config(trusting(vec![own.clone()]), Some(identity)).unwrap();
        assert_eq!(shake_hands(client, server), Ok(()), "{version:?}");
    }
}

fn authority() -> CertificateDer<'static> {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap().der().clone()
}

#[test]
fn a_certificate_that_says_it_is_an_authority_is_a_servers_only_where_the_user_names_it() {
    let own = certificate(BY_OPENSSL.0);
    let server = || {
        let server = server_of(&VERSIONS).with_no_client_auth();
        server.with_single_cert(vec![own.clone()], key(BY_OPENSSL.1)).unwrap()
    };
    let shakes = |named| shake_hands(client_config(trusting(named), None).unwrap(), server());
    assert_eq!(shakes(vec![own.clone()]), Ok(()));
    assert!(matches!(shakes(vec![authority()]), Err(Error::InvalidCertificate(_))));
}

#[test]
fn a_key_that_is_not_supported_is_named() {
    for (pem, named) in NAMED {
        let unsupported = server_key::check(&certificate(pem)).unwrap_err().to_string();
        assert!(unsupported.contains(&format!("not supported: {named};")), "{unsupported}");
    }
    assert_eq!(server_key::check(&certificate(BY_OPENSSL.0)), Ok(()));
    assert_eq!(server_key::check(b"no certificate"), Ok(()));
}

#[test]
fn a_signature_on_p521_counts_by_each_hash_and_no_other_does() {
    use ::p521::ecdsa::signature::hazmat::PrehashSigner as _;
    use sha2::Digest as _;
    let signing = ::p521::ecdsa::SigningKey::from_slice(&[1; 66]).unwrap();
    let public = ::p521::ecdsa::VerifyingKey::from(&signing).to_encoded_point(false);
    let hash = |at: usize, message: &[u8]| match at {
        0 => sha2::Sha512::digest(message).to_vec(),
        1 => sha2::Sha384::digest(message).to_vec(),
        _ => sha2::Sha256::digest(message).to_vec(),
    };
    for (at, algorithm) in p521::ALGORITHMS.iter().enumerate() {
        let mut number = [0; 66];
        let digest = hash(at, b"message");
        number[66 - digest.len()..].copy_from_slice(&digest);
        let signature: ::p521::ecdsa::Signature = signing.sign_prehash(&number).unwrap();
        let der = signature.to_der();
        let verify = |message: &[u8], der: &[u8]| algorithm.verify_signature(public.as_bytes(), message, der).is_ok();
        assert!(verify(b"message", der.as_bytes()), "{algorithm:?}");
        assert!(!verify(b"another", der.as_bytes()), "{algorithm:?}");
        assert!(!verify(b"message", &der.as_bytes()[1..]), "{algorithm:?}");
        assert!(algorithm.verify_signature(b"no key", b"message", der.as_bytes()).is_err());
    }
}
