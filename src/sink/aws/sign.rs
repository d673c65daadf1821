//! Requests that carry their signature in their query or in their headers (AWS Signature Version 4).
//!
//! In: a GET or a POST, access keys, the time. Out: its URL with the signature, or the headers that have it. Pure.
//!
//! Specification: AWS Identity and Access Management User Guide, "Create a signed AWS API request"; Amazon S3 API Reference,
//! "Authenticating Requests: Using Query Parameters".

use super::time;
use crate::given::percent_encoded;
use ring::{digest, hmac};
use secrecy::{ExposeSecret as _, SecretString};
use std::time::SystemTime;

const ALGORITHM: &str = "AWS4-HMAC-SHA256";

/// Access keys.
#[derive(Debug, Clone)]
pub(crate) struct Keys {
    pub(crate) id: String,
    pub(crate) secret: SecretString,
    /// Of temporary ones.
    pub(crate) token: Option<SecretString>,
    /// `None`: never.
    pub(crate) expires_at: Option<SystemTime>,
}

#[cfg(feature = "sqs")]
impl Keys {
    /// Whether they end, and have not: those without an end are replaced by whoever keeps them.
    pub(crate) fn are_good_still(&self, now: SystemTime) -> bool {
        self.expires_at.is_some_and(|end| now < end)
    }
}

/// A GET of `/` that is to be signed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Presigned<'a> {
    pub(crate) host: &'a str,
    pub(crate) region: &'a str,
    pub(crate) service: &'a str,
    /// Without what the signature adds.
    pub(crate) query: &'a [(&'a str, &'a str)],
    /// How long the signature is good.
    pub(crate) expires_seconds: u32,
}

impl Presigned<'_> {
    /// The URL.
    pub(crate) fn url(&self, keys: &Keys, now: SystemTime) -> SecretString {
        let date = time::basic(now);
        let day = date.get(..8).unwrap_or_default();
        let scope = format!("{day}/{}/{}/aws4_request", self.region, self.service);
        let (credential, expires) = (format!("{}/{scope}", keys.id), self.expires_seconds.to_string());
        let mut query: Vec<(&str, &str)> = self.query.to_vec();
        query.extend([
            ("X-Amz-Algorithm", ALGORITHM),
            ("X-Amz-Credential", &credential),
            ("X-Amz-Date", &date),
            ("X-Amz-Expires", &expires),
            ("X-Amz-SignedHeaders", "host"),
        ]);
        query.extend(keys.token.as_ref().map(|token| ("X-Amz-Security-Token", token.expose_secret())));
        let written = joined(&query);
        query.sort_unstable();
        let no_body = hashed(b"");
        let canonical = format!("GET\n/\n{}\nhost:{}\n\nhost\n{no_body}", joined(&query), self.host);
        let text = format!("{ALGORITHM}\n{date}\n{scope}\n{}", hashed(canonical.as_bytes()));
        let signature = signature(keys, [day, self.region, self.service, "aws4_request", &text]);
        format!("https://{}/?{written}&X-Amz-Signature={signature}", self.host).into()
    }
}

/// A POST to `/` that is to be signed.
#[cfg(feature = "sqs")]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Signed<'a> {
    /// As the header `Host` has it.
    pub(crate) host: &'a str,
    pub(crate) region: &'a str,
    pub(crate) service: &'a str,
    /// The header of that name.
    pub(crate) content_type: &'a str,
    /// The header `X-Amz-Target`, where there is one.
    pub(crate) target: Option<&'a str>,
    pub(crate) body: &'a [u8],
}

#[cfg(feature = "sqs")]
impl Signed<'_> {
    /// All headers that the signature covers, and the one that has it, as lines that end as HTTP's do.
    pub(crate) fn headers(&self, keys: &Keys, now: SystemTime) -> SecretString {
        let date = time::basic(now);
        let day = date.get(..8).unwrap_or_default();
        let scope = format!("{day}/{}/{}/aws4_request", self.region, self.service);
        // In the order of their names, in which they are signed.
        let headers = [
            ("content-type", Some(self.content_type)),
            ("host", Some(self.host)),
            ("x-amz-date", Some(date.as_str())),
            ("x-amz-security-token", keys.token.as_ref().map(secrecy::ExposeSecret::expose_secret)),
            ("x-amz-target", self.target),
        ];
        let headers = || headers.iter().filter_map(|(name, value)| Some((*name, (*value)?)));
        let names = headers().map(|(name, _)| name).collect::<Vec<_>>().join(";");
        let lines = |end: &str| headers().fold(String::new(), |all, (name, value)| all + name + ":" + value + end);
        let canonical = format!("POST\n/\n\n{}\n{names}\n{}", lines("\n"), hashed(self.body));
        let text = format!("{ALGORITHM}\n{date}\n{scope}\n{}", hashed(canonical.as_bytes()));
        let signature = signature(keys, [day, self.region, self.service, "aws4_request", &text]);
        let credential = format!("{ALGORITHM} Credential={}/{scope}", keys.id);
        let proof = format!("authorization:{credential}, SignedHeaders={names}, Signature={signature}\r\n");
        (lines("\r\n") + &proof).into()
    }
}

fn signature(keys: &Keys, parts: [&str; 5]) -> String {
    let first = format!("AWS4{}", keys.secret.expose_secret()).into_bytes();
    hex(&parts.iter().fold(first, |key, part| {
        hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &key), part.as_bytes()).as_ref().to_vec()
    }))
}

fn hashed(bytes: &[u8]) -> String {
    hex(digest::digest(&digest::SHA256, bytes).as_ref())
}

/// `name=value&name=value`, encoded.
pub(super) fn joined(query: &[(&str, &str)]) -> String {
    query
        .iter()
        .map(|(name, value)| format!("{}={}", percent_encoded(name), percent_encoded(value)))
        .collect::<Vec<_>>()
        .join("&")
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().copied().flat_map(digits).collect()
}

/// The two digits of a byte, in lower case.
fn digits(byte: u8) -> impl Iterator<Item = char> {
    [byte >> 4, byte & 15].into_iter().filter_map(|digit| char::from_digit(u32::from(digit), 16))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, UNIX_EPOCH};

    /// 2026-11-22T18:30:05Z.
    fn now() -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(1_795_372_205)
    }

    #[track_caller]
    fn check(presigned: Presigned<'_>, token: Option<&str>, expected: &str) {
        let keys = Keys {
            id: "AKIDEXAMPLE".to_owned(),
            secret: "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY".into(),
            token: token.map(Into::into),
            expires_at: None,
        };
        assert_eq!(presigned.url(&keys, now()).expose_secret(), expected);
        assert!(!format!("{keys:?}").contains("wJalr"));
    }

    /// Recorded from aws-msk-iam-sasl-signer-python 1.0.2 with botocore 1.44.5, its clock held at [`now`].
    #[test]
    fn a_token_for_msk_is_signed_as_awss_own_signer_does() {
        let query = [("Action", "kafka-cluster:Connect")];
        let presigned =
            |host, region| Presigned { host, region, service: "kafka-cluster", query: &query, expires_seconds: 900 };
        check(
            presigned("kafka.eu-central-1.amazonaws.com", "eu-central-1"),
            None,
            "https://kafka.eu-central-1.amazonaws.com/?Action=kafka-cluster%3AConnect&X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIDEXAMPLE%2F20261122%2Feu-central-1%2Fkafka-cluster%2Faws4_request&X-Amz-Date=20261122T183005Z&X-Amz-Expires=900&X-Amz-SignedHeaders=host&X-Amz-Signature=ea52f01fb2798378540c353a5c46df203f225eb7a0a18680aa3b7ad9c7672d67",
        );
        check(
            presigned("kafka.us-east-1.amazonaws.com", "us-east-1"),
            Some("IQoJb3JpZ2luX2VjEJr//////////wEaCXVzLWVhc3QtMSJHMEUCIQD+a/b=c d~e"),
            "https://kafka.us-east-1.amazonaws.com/?Action=kafka-cluster%3AConnect&X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIDEXAMPLE%2F20261122%2Fus-east-1%2Fkafka-cluster%2Faws4_request&X-Amz-Date=20261122T183005Z&X-Amz-Expires=900&X-Amz-SignedHeaders=host&X-Amz-Security-Token=IQoJb3JpZ2luX2VjEJr%2F%2F%2F%2F%2F%2F%2F%2F%2F%2FwEaCXVzLWVhc3QtMSJHMEUCIQD%2Ba%2Fb%3Dc%20d~e&X-Amz-Signature=d9853de229ae671e8e240d98dd32d5df68f6c8485f7d21ec5759e1c66245691c",
        );
    }

    /// Recorded from botocore 1.43.11's `SigV4Auth`, its clock held at [`now`].
    #[cfg(feature = "sqs")]
    #[test]
    fn a_post_is_signed_in_its_headers_as_botocore_does() {
        let keys = |token: Option<&str>| Keys {
            id: "AKIDEXAMPLE".to_owned(),
            secret: "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY".into(),
            token: token.map(Into::into),
            expires_at: None,
        };
        let signed = Signed {
            host: "sqs.eu-central-1.amazonaws.com",
            region: "eu-central-1",
            service: "sqs",
            content_type: "application/x-amz-json-1.0",
            target: Some("AmazonSQS.SendMessageBatch"),
            body: br#"{"QueueUrl":"q","Entries":[]}"#,
        };
        assert_eq!(
            signed.headers(&keys(None), now()).expose_secret(),
            "content-type:application/x-amz-json-1.0\r\nhost:sqs.eu-central-1.amazonaws.com\r\nx-amz-date:20261122T183005Z\r\n\
             x-amz-target:AmazonSQS.SendMessageBatch\r\nauthorization:AWS4-HMAC-SHA256 \
             Credential=AKIDEXAMPLE/20261122/eu-central-1/sqs/aws4_request, \
             SignedHeaders=content-type;host;x-amz-date;x-amz-target, \
             Signature=0088b3c7006f29903944748b856f693f9dd0c6271fba35b4157ccb7cc3520af1\r\n"
        );
        let signed = Signed {
            host: "sns.eu-central-1.amazonaws.com",
            service: "sns",
            content_type: "application/x-www-form-urlencoded; charset=utf-8",
            target: None,
            body: b"Action=ListTopics&Version=2010-03-31",
            ..signed
        };
        let headers = signed.headers(&keys(Some("tok/en=")), now());
        assert!(headers.expose_secret().contains("x-amz-security-token:tok/en=\r\n"));
        let proof = "SignedHeaders=content-type;host;x-amz-date;x-amz-security-token, \
                     Signature=3b8a6c4a1a6e991b9f03998ba70dde0851ada9b7f02eecebca8f226b6805bd7f\r\n";
        assert!(headers.expose_secret().ends_with(proof));
    }

    /// Recorded from botocore 1.44.5's `SigV4QueryAuth`, its clock held at [`now`].
    #[test]
    fn a_request_for_a_role_is_signed_as_botocore_does() {
        let query = [
            ("Action", "AssumeRole"),
            ("Version", "2011-06-15"),
            ("RoleArn", "arn:aws:iam::123456789012:role/orders relay"),
            ("RoleSessionName", "walrelay"),
        ];
        let (host, region) = ("sts.eu-central-1.amazonaws.com", "eu-central-1");
        check(
            Presigned { host, region, service: "sts", query: &query, expires_seconds: 60 },
            None,
            "https://sts.eu-central-1.amazonaws.com/?Action=AssumeRole&Version=2011-06-15&RoleArn=arn%3Aaws%3Aiam%3A%3A123456789012%3Arole%2Forders%20relay&RoleSessionName=walrelay&X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIDEXAMPLE%2F20261122%2Feu-central-1%2Fsts%2Faws4_request&X-Amz-Date=20261122T183005Z&X-Amz-Expires=60&X-Amz-SignedHeaders=host&X-Amz-Signature=21b5df7d285d7408a659e6644ee5237c296dd960aeffa8aaf8e7ae62f8eb628b",
        );
    }
}
