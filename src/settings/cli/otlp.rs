//! What may be typed about spans. The doc comment of a field is its help text.

use clap::Args;

/// Where spans go.
#[derive(Args, Clone, Default)]
#[command(next_help_heading = "Operation")]
pub(crate) struct OtlpArgs {
    /// Export one span for each published transaction whose rows have a sampled traceparent, by OTLP over HTTP with Protobuf, to this
    /// collector; /v1/traces is added: http://HOST:4318 or https://HOST/PATH [default: none]
    #[arg(long, value_name = "URL")]
    otlp_endpoint: Option<String>,

    /// With --otlp-endpoint: a header of each request, such as an API key; NAME=@FILE reads the value from a file, again at each
    /// request; repeatable [default: none]
    #[arg(long, value_name = "NAME=VALUE")]
    otlp_header: Vec<String>,

    /// With --otlp-endpoint: a PEM file with certificate authorities [default: the system's]
    #[arg(long, value_name = "FILE")]
    otlp_ca: Option<String>,
}
