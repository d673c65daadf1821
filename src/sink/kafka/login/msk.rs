//! Tokens for Amazon MSK's access by IAM: a request to connect to a cluster, signed with AWS's access keys.
//!
//! In: the region, access keys. Out: a token that is good for 15 minutes at most. Nobody issues it: it is signed here.
//! Specification: the `aws-msk-iam-sasl-signer` libraries of AWS, whose tokens these are byte for byte but for the name of the program.

use super::token::Token;
use crate::given::Given;
use crate::sink::aws::{AwsError, Presigned, Surroundings};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use secrecy::ExposeSecret as _;
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

/// How long MSK takes a token, in seconds.
const LIFE_SECONDS: u32 = 900;

/// Signs tokens.
#[derive(Debug, Clone)]
pub(super) struct Msk {
    /// `None`: that of the environment.
    region: Option<String>,
}

impl Msk {
    /// For the region that is given, else that which the brokers' names have in them.
    pub(super) fn new(given: Option<String>, brokers: &[Given]) -> Self {
        let of_name = || brokers.iter().find_map(|broker| region_of(&broker.text)).map(str::to_owned);
        Self { region: given.or_else(of_name) }
    }

    /// A token, signed now.
    pub(super) fn token(&self, surroundings: &Surroundings, now: SystemTime) -> Result<Token, AwsError> {
        let region = self.region.clone().or_else(|| surroundings.region()).ok_or_else(|| AwsError::Missing {
            place: "the region".to_owned(),
            missing: "-X aws-region=REGION or AWS_REGION".to_owned(),
        })?;
        let keys = surroundings.keys(now)?;
        let (host, query) = (format!("kafka.{region}.amazonaws.com"), [("Action", "kafka-cluster:Connect")]);
        let presigned = Presigned {
            host: &host,
            region: &region,
            service: "kafka-cluster",
            query: &query,
            expires_seconds: LIFE_SECONDS,
        };
        let url = presigned.url(&keys, now);
        let signed = format!("{}&User-Agent=walrelay%2F{}", url.expose_secret(), env!("CARGO_PKG_VERSION"));
        let end = now + Duration::from_secs(u64::from(LIFE_SECONDS));
        Ok(Token {
            value: BASE64_URL_SAFE_NO_PAD.encode(signed).into(),
            expires_at: keys.expires_at.map_or(end, |keys| keys.min(end)),
            principal: "walrelay".to_owned(),
            extensions: BTreeMap::new(),
        })
    }
}

/// `b-1.orders.abc.c2.kafka.eu-central-1.amazonaws.com:9098`, `boot-abc.c1.kafka-serverless.eu-central-1.amazonaws.com:9098`.
fn region_of(brokers: &str) -> Option<&str> {
    brokers.split(',').find_map(|broker| {
        let mut labels = broker.split(':').next()?.split('.');
        labels.find(|label| ["kafka", "kafka-serverless"].contains(label))?;
        let region = labels.next()?;
        (labels.next()? == "amazonaws").then_some(region)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::given::Origin;
    use std::time::UNIX_EPOCH;

    fn msk(region: Option<&str>, broker: &str) -> Msk {
        let given = Given { text: broker.to_owned(), origin: Origin::Flag("--brokers".to_owned()) };
        Msk::new(region.map(str::to_owned), &[given])
    }

    #[test]
    fn the_region_is_the_brokers_unless_it_is_given() {
        let region = |broker: &str| msk(None, broker).region;
        let provisioned = "b-1.orders.abc.c2.kafka.eu-central-1.amazonaws.com:9098,b-2.x:9098";
        assert_eq!(region(provisioned).as_deref(), Some("eu-central-1"));
        let serverless = "boot-abc.c1.kafka-serverless.cn-north-1.amazonaws.com.cn:9098";
        assert_eq!(region(serverless).as_deref(), Some("cn-north-1"));
        assert_eq!(region("kafka.eu.example.com:9098"), None);
        assert_eq!(msk(Some("us-east-1"), provisioned).region.as_deref(), Some("us-east-1"));
    }

    /// The signature is the one that AWS's own signer wrote: see `aws::sign`.
    #[test]
    fn a_token_is_the_signed_url_and_ends_with_the_keys_at_the_latest() {
        let now = UNIX_EPOCH + Duration::from_secs(1_795_372_205);
        let variables = [
            ("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE"),
            ("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"),
        ];
        let token = msk(Some("eu-central-1"), "a:1").token(&Surroundings::of(&variables), now).unwrap();
        let url = String::from_utf8(BASE64_URL_SAFE_NO_PAD.decode(token.value.expose_secret()).unwrap()).unwrap();
        let signature = "X-Amz-Signature=ea52f01fb2798378540c353a5c46df203f225eb7a0a18680aa3b7ad9c7672d67";
        assert!(url.starts_with("https://kafka.eu-central-1.amazonaws.com/?Action=kafka-cluster%3AConnect&"), "{url}");
        assert!(url.contains(signature) && url.contains("&User-Agent=walrelay%2F"), "{url}");
        assert_eq!(token.expires_at_millis(), 1_795_373_105_000);
        let error = msk(None, "a:1").token(&Surroundings::of(&variables), now).unwrap_err();
        assert!(error.to_string().contains("-X aws-region"), "{error}");
    }
}
