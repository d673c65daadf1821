//! Signs tokens for Amazon MSK's access by IAM. A token is a request to connect to a cluster, signed with AWS' access keys.
//!
//! In: the region, access keys. Out: a token that is valid for 15 minutes at most. walrelay signs it itself.
//! Specification: the `aws-msk-iam-sasl-signer` libraries of AWS. These tokens equal theirs, except for the name of the program.

use super::token::Token;
use crate::setting_text::{Given, percent_encoded};
use crate::sink::aws;
use aws_credential_types::Credentials;
use aws_credential_types::provider::ProvideCredentials as _;
use aws_sigv4::http_request::{SignableBody, SignableRequest, SignatureLocation, SigningSettings, sign};
use aws_sigv4::sign::v4;
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

/// How long MSK accepts a token.
const LIFE: Duration = Duration::from_mins(15);

/// A signer of tokens.
#[derive(Debug, Clone)]
pub(super) struct Msk {
    /// The region. `None`: that of the environment.
    region: Option<String>,
}

impl Msk {
    /// Signs for the given region, or else for the one in the brokers' names.
    pub(super) fn new(given: Option<String>, brokers: &[Given]) -> Self {
        let of_name = || brokers.iter().find_map(|broker| region_of(&broker.text)).map(str::to_owned);
        Self { region: given.or_else(of_name) }
    }

    /// Signs a token. Waits for keys from AWS' chain of credentials.
    ///
    /// # Errors
    /// There is no region, or there are no keys.
    pub(super) fn token(&self, now: SystemTime) -> Result<Token, String> {
        let region = self.region.clone().or_else(aws::region);
        let region = region.ok_or("the region is missing: -X aws-region=REGION or AWS_REGION")?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        let keys = runtime.block_on(async {
            let keys = aws::credentials(&region).await?.provide_credentials().await;
            keys.map_err(|error| aws::chain_of(&error))
        })?;
        signed(&region, keys, now)
    }
}

fn signed(region: &str, keys: Credentials, now: SystemTime) -> Result<Token, String> {
    let end = now + LIFE;
    let expires_at = keys.expiry().map_or(end, |keys| keys.min(end));
    let mut settings = SigningSettings::default();
    (settings.signature_location, settings.expires_in) = (SignatureLocation::QueryParams, Some(LIFE));
    let identity = keys.into();
    let params = v4::SigningParams::builder()
        .identity(&identity)
        .region(region)
        .name("kafka-cluster")
        .time(now)
        .settings(settings)
        .build()
        .map_err(|error| error.to_string())?;
    let mut url = format!("https://kafka.{region}.amazonaws.com/?Action=kafka-cluster%3AConnect");
    let request = SignableRequest::new("GET", url.clone(), std::iter::empty(), SignableBody::Bytes(&[]));
    let request = request.map_err(|error| error.to_string())?;
    let (signature, _) = sign(request, &params.into()).map_err(|error| error.to_string())?.into_parts();
    for (name, value) in signature.params() {
        url.extend(["&", name, "=", &percent_encoded(value)]);
    }
    url.extend(["&User-Agent=walrelay%2F", env!("CARGO_PKG_VERSION")]);
    Ok(Token {
        value: BASE64_URL_SAFE_NO_PAD.encode(url).into(),
        expires_at,
        principal: "walrelay".to_owned(),
        extensions: BTreeMap::new(),
    })
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
    use crate::setting_text::Origin;
    use secrecy::ExposeSecret as _;
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

    /// AWS' own signer wrote the signature.
    #[test]
    fn a_token_is_the_signed_url_and_ends_with_the_keys_at_the_latest() {
        let now = UNIX_EPOCH + Duration::from_secs(1_795_372_205);
        let keys = |end| Credentials::new("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", None, end, "test");
        let token = signed("eu-central-1", keys(None), now).unwrap();
        let url = String::from_utf8(BASE64_URL_SAFE_NO_PAD.decode(token.value.expose_secret()).unwrap()).unwrap();
        let signature = "X-Amz-Signature=ea52f01fb2798378540c353a5c46df203f225eb7a0a18680aa3b7ad9c7672d67";
        assert!(url.starts_with("https://kafka.eu-central-1.amazonaws.com/?Action=kafka-cluster%3AConnect&"), "{url}");
        assert!(url.contains(signature) && url.contains("&User-Agent=walrelay%2F"), "{url}");
        assert_eq!(token.expires_at_millis(), 1_795_373_105_000);
        let soon = now + Duration::from_mins(1);
        assert_eq!(signed("eu-central-1", keys(Some(soon)), now).unwrap().expires_at, soon);
    }
}
