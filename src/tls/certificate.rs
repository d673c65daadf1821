//! Accepts server certificates that libpq accepts and webpki refuses: a certificate that signed itself, and one whose host name is only
//! in its subject. The shortest recipe of Postgres' manual (`openssl req -new -x509 … -subj "/CN=…"`) creates such a certificate.
//!
//! In: a certificate's DER, the time, the host's name. Out: whether to accept it, and if not, why. This file checks no signature: the
//! certificate must be, byte for byte, one that the user trusts.
//! Specification: PostgreSQL manual, sections 19.9.5 "Creating Certificates" and 33.19.1; RFC 5280; RFC 6125, section 6.4.

use rustls::pki_types::{ServerName, UnixTime};
use rustls::{CertificateError, Error};
use x509_cert::der::{Decode, Tag, Tagged};
use x509_cert::{Certificate, name::RdnSequence};

/// `id-at-commonName`.
const COMMON_NAME: &str = "2.5.4.3";

/// `id-ce-subjectAltName`.
const SUBJECT_ALT_NAME: &str = "2.5.29.17";

/// Whether the certificate says that it signed itself.
pub(super) fn is_its_own_authority(der: &[u8]) -> bool {
    Certificate::from_der(der).is_ok_and(|found| found.tbs_certificate.issuer == found.tbs_certificate.subject)
}

/// Checks that `now` is within the certificate's time.
///
/// # Errors
/// It is not, or the certificate cannot be read.
pub(super) fn in_force(der: &[u8], now: UnixTime) -> Result<(), Error> {
    let certificate = Certificate::from_der(der).map_err(|_| CertificateError::BadEncoding)?;
    let validity = certificate.tbs_certificate.validity;
    if now.as_secs() < validity.not_before.to_unix_duration().as_secs() {
        return Err(CertificateError::NotValidYet.into());
    }
    if now.as_secs() > validity.not_after.to_unix_duration().as_secs() {
        return Err(CertificateError::Expired.into());
    }
    Ok(())
}

/// Whether the certificate names a host only in its subject, and that host is `host`.
pub(super) fn common_name_covers(der: &[u8], host: &ServerName<'_>) -> bool {
    let Ok(certificate) = Certificate::from_der(der) else { return false };
    let extensions = certificate.tbs_certificate.extensions.unwrap_or_default();
    if extensions.iter().any(|extension| extension.extn_id.to_string() == SUBJECT_ALT_NAME) {
        return false;
    }
    common_name(&certificate.tbs_certificate.subject).is_some_and(|name| covers(&name, host))
}

/// The first common name, which is the one that libpq uses.
fn common_name(subject: &RdnSequence) -> Option<String> {
    let attributes = subject.0.iter().flat_map(|names| names.0.iter());
    let value = &attributes.into_iter().find(|attribute| attribute.oid.to_string() == COMMON_NAME)?.value;
    let as_text = matches!(value.tag(), Tag::Utf8String | Tag::PrintableString | Tag::Ia5String | Tag::TeletexString);
    if as_text { std::str::from_utf8(value.value()).ok().map(str::to_owned) } else { None }
}

/// Whether the name covers the host. Upper and lower case are the same. `*.` stands for one label, and only before others.
fn covers(name: &str, host: &ServerName<'_>) -> bool {
    match host {
        ServerName::DnsName(host) => {
            let host = host.as_ref().trim_end_matches('.');
            let below = |domain: &str| {
                domain.contains('.')
                    && host.split_once('.').is_some_and(|(_, parent)| parent.eq_ignore_ascii_case(domain))
            };
            name.strip_prefix("*.").map_or_else(|| name.eq_ignore_ascii_case(host), below)
        }
        ServerName::IpAddress(host) => {
            name.parse::<std::net::IpAddr>().is_ok_and(|named| named == std::net::IpAddr::from(*host))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, IsCa, KeyPair};
    use std::time::Duration;

    fn params(common_name: &str, hosts: &[&str]) -> CertificateParams {
        let hosts: Vec<String> = hosts.iter().map(|&host| host.to_owned()).collect();
        let mut params = CertificateParams::new(hosts).unwrap();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, common_name);
        params
    }

    /// A certificate that is signed with its own key.
    fn by_itself(common_name: &str, hosts: &[&str]) -> Vec<u8> {
        params(common_name, hosts).self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
    }

    fn host(name: &str) -> ServerName<'_> {
        ServerName::try_from(name).unwrap()
    }

    #[track_caller]
    fn check(common_name: &str, hosts: &[&str], asked: &str, expected: bool) {
        let der = by_itself(common_name, hosts);
        assert_eq!(common_name_covers(&der, &host(asked)), expected, "{common_name} {hosts:?} for {asked}");
    }

    #[test]
    fn the_subjects_name_counts_where_it_is_the_only_one() {
        check("db.internal", &[], "db.internal", true);
        check("DB.internal", &[], "db.Internal", true);
        check("127.0.0.1", &[], "127.0.0.1", true);
        check("db.internal", &[], "other.internal", false);
        check("127.0.0.1", &[], "127.0.0.2", false);
        check("db.internal", &["other.internal"], "db.internal", false);
        check("db.internal", &["db.internal"], "db.internal", false);
    }

    #[test]
    fn a_star_is_one_label_below_a_domain() {
        check("*.db.internal", &[], "one.db.internal", true);
        check("*.db.internal", &[], "db.internal", false);
        check("*.db.internal", &[], "two.one.db.internal", false);
        check("*.internal", &[], "db.internal", false);
        check("*", &[], "db.internal", false);
        check("d*.internal", &[], "db.internal", false);
        check("*.0.0.1", &[], "127.0.0.1", false);
    }

    #[test]
    fn who_signed_itself_says_so() {
        let mut named = params("authority", &[]);
        named.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(named, KeyPair::generate().unwrap()).unwrap();
        let issued = params("db", &[]).signed_by(&KeyPair::generate().unwrap(), &authority).unwrap();
        assert!(is_its_own_authority(authority.der()));
        assert!(is_its_own_authority(&by_itself("db", &[])));
        assert!(!is_its_own_authority(issued.der()));
        assert!(!is_its_own_authority(b"nonsense"));
    }

    #[test]
    fn a_certificate_has_its_time() {
        // rcgen's default is from 1975 to 4096.
        let der = by_itself("db", &[]);
        let at = |years: u64| UnixTime::since_unix_epoch(Duration::from_secs(years * 365 * 86_400));
        assert_eq!(in_force(&der, at(50)), Ok(()));
        assert_eq!(in_force(&der, at(1)), Err(CertificateError::NotValidYet.into()));
        assert_eq!(in_force(&der, at(3000)), Err(CertificateError::Expired.into()));
    }

    #[test]
    fn no_bytes_panic() {
        let whole = by_itself("db", &[]);
        for end in 0..whole.len() {
            let cut = &whole[..end];
            assert!(!is_its_own_authority(cut) && !common_name_covers(cut, &host("db")));
            assert!(in_force(cut, UnixTime::now()).is_err());
        }
    }
}
