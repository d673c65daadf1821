//! AWS' credentials, region and HTTP client, which SQS, SNS and Kafka on MSK share.
//!
//! In: the process' environment, AWS' files of profiles, metadata services. Out: a provider of credentials, the region, an HTTP client.
//! The AWS SDK finds the credentials. SSO is not built in, since it needs a browser: `credential_process` runs the AWS CLI for it.
//!
//! Invariants: no key shows in an error; a bad certificate file is an error (the SDK's client panics on one).
//! Specification: AWS SDKs and Tools Reference Guide, "Standardized credential providers".

use super::ordered_queue::socket::Tls;
use aws_config::default_provider::credentials::DefaultCredentialsChain;
use aws_config::environment::EnvironmentVariableRegionProvider;
use aws_config::meta::region::RegionProviderChain;
use aws_config::profile::ProfileFileRegionProvider;
use aws_config::provider_config::ProviderConfig;
use aws_credential_types::provider::SharedCredentialsProvider;
use aws_credential_types::provider::error::CredentialsError;
use aws_smithy_http_client::tls::rustls_provider::CryptoMode;
use aws_smithy_http_client::tls::{Provider, TlsContext, TrustStore};
use aws_smithy_runtime_api::client::http::SharedHttpClient;
use aws_smithy_runtime_api::client::result::ConnectorError;
use aws_types::region::Region;
use std::error::Error;

/// The region that the environment or the profile names. A metadata service is not asked.
pub(crate) fn region() -> Option<String> {
    let chain = RegionProviderChain::first_try(EnvironmentVariableRegionProvider::new())
        .or_else(ProfileFileRegionProvider::new());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    runtime.block_on(chain.region()).map(|region| region.to_string())
}

/// AWS' own chain: environment, profile, web identity, container, instance. Metadata services are reached without a proxy.
///
/// # Errors
/// The machine has no usable certificates.
pub(crate) async fn credentials(region: &str) -> Result<SharedCredentialsProvider, String> {
    let config = ProviderConfig::without_region().with_http_client(http_client(&Tls::default())?);
    let chain =
        DefaultCredentialsChain::builder().configure(config).region(Region::new(region.to_owned())).build().await;
    Ok(SharedCredentialsProvider::new(chain))
}

/// A client over rustls with ring, which uses no proxy.
///
/// # Errors
/// A file has no certificate, or one that cannot be read.
pub(crate) fn http_client(tls: &Tls) -> Result<SharedHttpClient, String> {
    // The SDK's client panics where this fails.
    tls.check()?;
    let mut trust = TrustStore::default();
    if let Some(file) = &tls.authorities {
        let pem = std::fs::read(file).map_err(|error| format!("{}: {error}", file.display()))?;
        trust = TrustStore::empty().with_pem_certificate(pem);
    }
    let context = TlsContext::builder().with_trust_store(trust).build().map_err(|error| error.to_string())?;
    let client = aws_smithy_http_client::Builder::new().tls_provider(Provider::Rustls(CryptoMode::Ring));
    Ok(client.tls_context(context).build_https())
}

/// An error and what caused it, without what a service repeats of the request.
pub(crate) fn chain_of(error: &(dyn Error + 'static)) -> String {
    let mut texts: Vec<String> = Vec::new();
    // A connector's own text is the kind of its error.
    for error in causes(error).filter(|error| !error.is::<ConnectorError>()) {
        let text = words(&error.to_string()).to_owned();
        if texts.last() != Some(&text) {
            texts.push(text);
        }
    }
    texts.join(": ")
}

/// The first line of a service's message. If a signature is wrong, the lines behind it repeat the request, with the session's token.
pub(crate) fn words(message: &str) -> &str {
    message.lines().next().unwrap_or_default()
}

/// The failure to load credentials, if this error is one; and whether it passes by itself.
pub(crate) fn of_credentials(error: &(dyn Error + 'static)) -> Option<bool> {
    let found = causes(error).find_map(<dyn Error>::downcast_ref::<CredentialsError>)?;
    let is_unreached = |error: &(dyn Error + 'static)| error.is::<ConnectorError>();
    Some(matches!(found, CredentialsError::ProviderTimedOut(_)) || causes(found).any(is_unreached))
}

fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    let mut next = Some(error);
    std::iter::from_fn(move || {
        let error = next?;
        next = error.source();
        Some(error)
    })
}
