//! Where spans go, and whose they are.
//!
//! In: the layers; OpenTelemetry's own variables `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES`. Out: the collector, the
//! headers of requests to it, the resource. Contacts nobody.
//! Specification: OpenTelemetry, "Resource SDK", "Specifying resource information via an environment variable".

use super::error::ConfigError;
use super::read::Reader;
use crate::given::{Given, Origin, percent_decoded};
use crate::pg::source::Environment;
use crate::secret::Secret;
use crate::spans::{self, Resource};

/// The attribute that names a service.
const SERVICE: &str = "service.name";

/// The variable with more of them.
const ATTRIBUTES: &str = "OTEL_RESOURCE_ATTRIBUTES";

/// Headers that the exporter writes itself, in lower case.
const OWN_HEADERS: [&str; 5] = ["connection", "content-length", "content-type", "host", "transfer-encoding"];

impl Reader<'_> {
    /// Reads them; what belongs to a collector is refused without one.
    pub(super) fn otlp(&mut self) -> Result<Option<spans::Settings>, ConfigError> {
        let endpoint = self.layers.one("otlp-endpoint")?;
        let headers = self.layers.many("otlp-header");
        let ca = self.layers.one("otlp-ca")?;
        let Some(endpoint) = endpoint else {
            return match headers.into_iter().chain(ca).next() {
                Some(given) => Err(given.needs("--otlp-endpoint").into()),
                None => Ok(None),
            };
        };
        let headers = headers.into_iter().map(|given| self.otlp_header(given)).collect::<Result<_, _>>()?;
        let ca = ca.map(|given| given.text.into());
        let (resource, warning) = resource(self.layers.environment);
        self.warnings.extend(warning);
        let settings = spans::Settings::new(&endpoint.text, headers, ca, resource);
        let expected = "http://HOST:4318 or https://HOST/PATH of OTLP over HTTP; keys go to --otlp-header";
        let invalid = || hidden(endpoint.origin).invalid(expected, None).into();
        settings.ok_or_else(invalid).map(Some)
    }

    fn otlp_header(&mut self, given: Given) -> Result<(String, Secret), ConfigError> {
        let is_token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
        let pair = given.text.split_once('=').map(|(name, value)| (name.trim(), value));
        let named = pair.filter(|(name, _)| !name.is_empty() && name.chars().all(is_token));
        let named = named.filter(|(name, _)| !OWN_HEADERS.contains(&name.to_ascii_lowercase().as_str()));
        let Some((name, value)) = named else {
            let expected = "NAME=VALUE or NAME=@FILE, not one of the request's own headers";
            return Err(hidden(given.origin).invalid(expected, None).into());
        };
        if matches!(given.origin, Origin::Flag(_)) && !value.starts_with('@') {
            let warning = "it shows in ps: use NAME=@FILE or the variable WALRELAY_OTLP_HEADER";
            self.warnings.push(format!("{} {name}: {warning}", given.origin));
        }
        Ok((name.to_owned(), Secret::of_value(value)))
    }
}

/// What may be a secret does not show.
fn hidden(origin: Origin) -> Given {
    Given { text: "…".to_owned(), origin }
}

/// What the spans are of, and a warning.
fn resource(environment: &Environment) -> (Resource, Option<String>) {
    let own = [(SERVICE, env!("CARGO_PKG_NAME")), ("service.version", env!("CARGO_PKG_VERSION"))];
    let mut resource: Resource = own.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let mut warning = None;
    if let Some(text) = environment.variable(ATTRIBUTES) {
        let given: Option<Vec<_>> = text.split(',').filter(|pair| !pair.trim().is_empty()).map(attribute).collect();
        // As the specification says: all or none.
        if given.is_none() {
            warning = Some(format!("{ATTRIBUTES} is not used: it is not a list of key=value"));
        }
        resource.extend(given.into_iter().flatten());
    }
    if let Some(name) = environment.variable("OTEL_SERVICE_NAME") {
        resource.insert(SERVICE.to_owned(), name.to_owned());
    }
    (resource, warning)
}

/// `key=value`, with a value that may be percent-encoded.
fn attribute(pair: &str) -> Option<(String, String)> {
    let (key, value) = pair.split_once('=').map(|(key, value)| (key.trim(), value.trim()))?;
    let value = percent_decoded(value).filter(|_| !key.is_empty())?;
    Some((key.to_owned(), value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resource_of(variables: &[(&str, &str)]) -> (Vec<String>, bool) {
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let (resource, warning) = resource(&Environment { variables, ..Environment::default() });
        let named = resource.into_iter().filter(|(name, _)| name != "service.version");
        (named.map(|(name, value)| format!("{name}={value}")).collect(), warning.is_some())
    }

    #[test]
    fn a_resource_is_named_by_opentelemetrys_own_variables() {
        let check = |variables: &[(&str, &str)], expected: &[&str], warns: bool| {
            let (named, warned) = resource_of(variables);
            assert_eq!(
                (named, warned),
                (expected.iter().map(|text| (*text).to_owned()).collect(), warns),
                "{variables:?}"
            );
        };
        check(&[], &["service.name=walrelay"], false);
        check(&[("OTEL_SERVICE_NAME", "shop")], &["service.name=shop"], false);
        let given = "deployment.environment.name=a%2Cb%C3%A9, service.name=other,";
        check(&[(ATTRIBUTES, given)], &["deployment.environment.name=a,bé", "service.name=other"], false);
        let both = [(ATTRIBUTES, "service.name=other"), ("OTEL_SERVICE_NAME", "shop")];
        check(&both, &["service.name=shop"], false);
        for malformed in ["a=1,b", "a=1,=2", "a=%2", "a=%zz", "a=%ff"] {
            check(&[(ATTRIBUTES, malformed)], &["service.name=walrelay"], true);
        }
    }
}
