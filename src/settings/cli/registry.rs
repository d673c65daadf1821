//! What may be typed about a registry of schemas. The doc comment of a field is its help text.

use clap::Args;

/// Which registry knows the schemas of values.
#[derive(Args, Clone, Default)]
#[command(next_help_heading = "Records")]
pub(crate) struct RegistryArgs {
    /// Begin the value as --schema-id does, with the id of its subject's latest schema, which this registry knows (Confluent's
    /// API): http://HOST:PORT or https://HOST/PATH [default: none]
    #[arg(long, value_name = "URL")]
    schema_registry: Option<String>,

    /// With --schema-registry: the subject, of {topic} and {type} [default: {topic}-value]
    #[arg(long, value_name = "TEMPLATE")]
    schema_subject: Option<String>,

    /// With --schema-registry: the user, or the API key [default: none]
    #[arg(long, value_name = "USER")]
    schema_registry_user: Option<String>,

    /// With --schema-registry-user: the password; @FILE reads it from a file, again at each request [default: empty]
    #[arg(long, value_name = "PASSWORD")]
    schema_registry_password: Option<String>,

    /// With --schema-registry: a PEM file with certificate authorities [default: the system's]
    #[arg(long, value_name = "FILE")]
    schema_registry_ca: Option<String>,
}
