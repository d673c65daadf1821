//! AWS: who we are there, and what proves it.
//!
//! ```text
//!  environment, files, metadata services ─► chain ─► Keys ─► sign ─► a URL, or headers, that prove it
//! ```
//!
//! In: the process's environment. Out: access keys, and requests that are signed with them. Only what a login needs: no client of any
//! service. A signature is 60 lines, and AWS's own crates for signature and chain would be 90 more to build.
//!
//! Invariant: no key shows in `Debug` or in an error.
//! Specification: AWS, "Signature Version 4 for API requests" and "Standardized credential providers" (SDKs and Tools Reference Guide).

mod chain;
mod profile;
mod sign;

use super::time;

#[cfg(feature = "kafka")]
pub(crate) use chain::AwsError;
pub(crate) use chain::Surroundings;
#[cfg(feature = "sqs")]
pub(crate) use chain::element;
#[cfg(feature = "kafka")]
pub(crate) use sign::Presigned;
#[cfg(feature = "sqs")]
pub(crate) use sign::{Keys, Signed, hex};

/// What a service says of a refusal. Where a signature is wrong, the lines behind it repeat the request, with the session's token.
pub(crate) fn words(message: &str) -> &str {
    message.lines().next().unwrap_or_default()
}
