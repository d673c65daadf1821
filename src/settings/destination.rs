//! Where records go: `--to`, its short form `--brokers`, and the properties of what stands there.
//!
//! In: the layers, `WALRELAY_<NAME>_*`, the file's table `[<name>]`. Out: a [`Destination`], which its [`Kind`] understood. What a
//! kind cannot do is refused here. Invariant: no message shows an address or a property that may contain a secret.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use super::layers::Layers;
use super::read::SettingsReader;
use super::table::Definition;
use super::table::run::{BROKERS, DELIVERY, FROM_DEBEZIUM, PARTITION_COLUMN, PROPERTY, TO, TOMBSTONE_ON_EMPTY_PAYLOAD};
use crate::setting_text::{FlagFile, Given, Origin, SettingError, is_secret, names_a_file, nearest};
use crate::sink::destination::{Delivery, Destination, GivenSettings, Kind};
use crate::sink::kinds::{self, KINDS};

/// The separator between a scheme and an address.
const BEHIND_SCHEME: &str = "://";

/// The kind whose servers `--brokers` names, and that is meant where nothing is said.
const DEFAULT: &str = "kafka";

/// Where records go, as it was given.
struct To {
    kind: &'static Kind,
    scheme: String,
    addresses: Vec<Given>,
}

impl SettingsReader<'_> {
    /// Reads the destination. `max_in_flight` in bytes.
    pub(super) fn destination(&mut self, max_in_flight: usize) -> Result<Arc<dyn Destination>, SettingError> {
        let to = self.to()?;
        let properties = self.properties(to.kind)?;
        let (scheme, addresses, warnings) = (to.scheme.as_str(), to.addresses, &mut self.warnings);
        let mut asked = GivenSettings { scheme, addresses, properties, max_in_flight, warnings };
        (to.kind.read)(&mut asked)
    }

    fn to(&mut self) -> Result<To, SettingError> {
        let brokers = self.layers.many(&BROKERS);
        let Some(url) = self.layers.one(&TO)? else {
            let known =
                kinds::of_scheme(DEFAULT).map(|kind| To { kind, scheme: DEFAULT.to_owned(), addresses: brokers });
            return known.ok_or_else(without_default);
        };
        // A Debezium configuration's servers count only where nothing else is said.
        let here = brokers.into_iter().find(|given| !matches!(given.origin, Origin::Translated(_)));
        if let Some(brokers) = here {
            return Err(url.excludes(&brokers));
        }
        let to = split(&url)?;
        self.warnings.extend(visible_password(to.kind, &url));
        Ok(to)
    }

    /// The kind's properties, as it names them.
    fn properties(&mut self, kind: &'static Kind) -> Result<Vec<(String, Given)>, SettingError> {
        let mut given = self.layers.properties(kind);
        for flag in self.layers.flags.all(PROPERTY.name) {
            let property = typed(flag)?;
            self.warnings.extend(visible_secret(kind, &property));
            given.push(property);
        }
        let known = |(property, value): (String, Given)| {
            let property = known(kind, property, &value.origin)?;
            let value = resolved(&property, value)?;
            Ok((property, value))
        };
        given.into_iter().map(known).collect()
    }

    /// Checks that the kind of destination can do what the other settings ask of it.
    pub(super) fn asks_what_it_can(&self, kind: &'static Kind, delivery: Delivery) -> Result<(), SettingError> {
        let tombstones = self.get(&TOMBSTONE_ON_EMPTY_PAYLOAD)?;
        let exactly_once = delivery != Delivery::AtLeastOnce;
        // An empty text asks for no such column.
        let partitions = self.given(&PARTITION_COLUMN)?.is_some_and(|column| !column.is_empty());
        let asked: [(bool, &Definition, &str); 4] = [
            (!kind.can.exactly_once && exactly_once, &DELIVERY, "it has no transactions of records"),
            (!kind.can.partitions && partitions, &PARTITION_COLUMN, "it has no partitions"),
            (!kind.can.null_values && tombstones, &TOMBSTONE_ON_EMPTY_PAYLOAD, "it has no records without a value"),
            (!kind.can.debezium, &FROM_DEBEZIUM, "Debezium's records are Kafka's"),
        ];
        for (refused, setting, reason) in asked {
            if let Some(given) = self.layers.many_or_one(setting).filter(|_| refused) {
                let setting = format!("--{} with {}", setting.name, kind.title);
                return Err(SettingError::refused(&given.origin, &setting, reason));
            }
        }
        Ok(())
    }
}

/// `scheme://address`.
fn split(url: &Given) -> Result<To, SettingError> {
    let examples = KINDS.iter().map(|kind| kind.example).collect::<Vec<_>>().join(", ");
    let refused = |shown: &str, nearest: Option<String>| {
        Given { text: shown.to_owned(), origin: url.origin.clone() }.invalid(examples, nearest)
    };
    let Some((scheme, address)) = url.text.trim().split_once(BEHIND_SCHEME) else {
        // A kind's name alone is one without an address.
        let nearest = nearest(&url.text, kinds::schemes()).map(|scheme| format!("{scheme}{BEHIND_SCHEME}"));
        return Err(refused("***", nearest));
    };
    let lower = scheme.to_ascii_lowercase();
    let Some(kind) = kinds::of_scheme(&lower) else {
        let nearest = nearest(&lower, kinds::schemes()).map(|scheme| format!("{scheme}{BEHIND_SCHEME}…"));
        return Err(refused(&format!("{scheme}{BEHIND_SCHEME}…"), nearest));
    };
    let address = Given { text: address.to_owned(), origin: url.origin.clone() };
    let addresses = if address.text.is_empty() { Vec::new() } else { vec![address] };
    Ok(To { kind, scheme: lower, addresses })
}

fn without_default() -> SettingError {
    SettingError::usage(
        "--to is missing: this build has no Kafka",
        KINDS.iter().map(|kind| format!("--to {}", kind.example)).collect::<Vec<_>>().join(", "),
    )
}

/// A property's name as its kind writes it.
fn known(kind: &'static Kind, property: String, origin: &Origin) -> Result<String, SettingError> {
    let plain = |name: &str| name.to_ascii_lowercase().replace(['-', '.'], "_");
    if let Some(name) = kind.properties.iter().find(|name| plain(name) == plain(&property)) {
        return Ok((*name).to_owned());
    }
    if kind.passes_others {
        return Ok(property);
    }
    let hint = match nearest(&property, kind.properties.iter().copied()) {
        Some(nearest) => format!("the nearest property is {nearest}"),
        None if kind.properties.is_empty() => format!("{} has no properties", kind.title),
        None => format!("its properties are {}", kind.properties.join(", ")),
    };
    Err(SettingError::unknown_property(origin, kind.title, &property, hint))
}

/// `KEY=VALUE`.
fn typed(flag: &str) -> Result<(String, Given), SettingError> {
    let malformed =
        || SettingError::usage("-X: expected KEY=VALUE", "-X compression.type=lz4, or -X sasl.password=@FILE");
    let (property, value) = flag.split_once('=').ok_or_else(malformed)?;
    let property = property.trim();
    if property.is_empty() {
        return Err(malformed());
    }
    let origin = Origin::Flag(format!("-X {property}"));
    Ok((property.to_owned(), Given { text: value.to_owned(), origin }))
}

/// A value that may stand in a file, as `@FILE`: with `-X` any, elsewhere secrets. `@@` begins a text with an `@`.
fn resolved(property: &str, given: Given) -> Result<Given, SettingError> {
    let may_be_a_file = matches!(given.origin, Origin::Flag(_)) || is_secret(property);
    let Given { text, origin } = given;
    Ok(match text.strip_prefix('@').filter(|_| may_be_a_file) {
        None => Given { text, origin },
        Some(literal) if literal.starts_with('@') => Given { text: literal.to_owned(), origin },
        Some(file) => {
            let origin = Origin::FlagFile(Box::new(FlagFile { flag: origin.to_string(), file: file.into() }));
            Given { text: read_value(file, &origin)?, origin }
        }
    })
}

/// A file's text without the newline at its end.
fn read_value(file: &str, origin: &Origin) -> Result<String, SettingError> {
    let text = fs::read_to_string(file).map_err(|error| SettingError::unreadable(origin, Path::new(file), error))?;
    let line = text.strip_suffix('\n').unwrap_or(&text);
    Ok(line.strip_suffix('\r').unwrap_or(line).to_owned())
}

fn visible_secret(kind: &Kind, (property, value): &(String, Given)) -> Option<String> {
    // A command that prints one is none.
    (is_secret(property) && !property.ends_with("-command") && !names_a_file(&value.text)).then(|| {
        let variable = format!("{}{}", Layers::prefix(kind), property.to_ascii_uppercase().replace(['.', '-'], "_"));
        format!("{}: its value shows in ps: use -X {property}=@FILE or the variable {variable}", value.origin)
    })
}

fn visible_password(kind: &Kind, url: &Given) -> Option<String> {
    let authority = url.text.split_once(BEHIND_SCHEME)?.1.split(['/', '?']).next()?;
    let has_password = authority.rsplit_once('@').is_some_and(|(user, _)| user.contains(':'));
    (has_password && matches!(url.origin, Origin::Flag(_))).then(|| {
        let property = kind.properties.iter().find(|name| ["password", "secret-access-key"].contains(name));
        let property = property.map_or_else(String::new, |name| format!(", or -X {name}=@FILE"));
        format!("--to: its password shows in ps: use the variable WALRELAY_TO{property}")
    })
}

// Most of them are of the default destination.
#[cfg(test)]
#[cfg(feature = "kafka")]
mod tests {
    use super::super::cli::FlagValues;
    use super::*;
    use crate::pg::source::Environment;

    type Read = (Result<Arc<dyn Destination>, SettingError>, Vec<String>);

    fn read(to: Option<&str>, flags: &[&str], variables: &[(&str, &str)]) -> Read {
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let environment = Environment { variables, ..Environment::default() };
        let flags = to.map(|to| ("to", to)).into_iter().chain(flags.iter().map(|flag| ("property", *flag)));
        let flags = flags.fold(FlagValues::default(), |flags, (name, value)| flags.with(name, value));
        let layers = Layers::open(flags, &environment).unwrap();
        let mut reader = SettingsReader { layers, warnings: Vec::new() };
        (reader.destination(16 << 20), reader.warnings)
    }

    #[track_caller]
    fn shown(to: Option<&str>, flags: &[&str], variables: &[(&str, &str)]) -> String {
        format!("{:?}", read(to, flags, variables).0.unwrap())
    }

    #[track_caller]
    fn refused(to: Option<&str>, flags: &[&str]) -> (String, Option<String>) {
        let error = read(to, flags, &[]).0.unwrap_err();
        (error.to_string(), error.hint)
    }

    #[test]
    fn a_url_names_the_kind_and_its_address() {
        let (destination, warnings) = read(Some("kafka://a:1,b:2"), &[], &[]);
        assert_eq!((destination.unwrap().address().as_str(), warnings.len()), ("a:1,b:2", 0));
        assert_eq!(read(Some("stdout://"), &[], &[]).0.unwrap().kind().name, "stdout");
        assert_eq!(read(None, &[], &[("WALRELAY_TO", "KAFKA://k:7")]).0.unwrap().address(), "k:7");
        assert_eq!(read(None, &[], &[("WALRELAY_BROKERS", "k:7")]).0.unwrap().address(), "k:7");
    }

    #[test]
    fn what_is_no_url_of_a_known_kind_is_refused_without_what_may_be_secret_in_it() {
        let (error, hint) = refused(Some("kafak://u:hunter2@h"), &[]);
        assert!(error.starts_with("--to: \"kafak://…\" is not valid: expected kafka://HOST:PORT"), "{error}");
        assert_eq!(hint.as_deref(), Some("the nearest valid value is kafka://…"));
        let (error, _) = refused(Some("u:hunter2@h"), &[]);
        assert!(!error.contains("hunter2"), "{error}");
    }

    #[test]
    fn two_ways_to_say_where_exclude_each_other() {
        let (read, _) = read(Some("kafka://a:1"), &[], &[("WALRELAY_BROKERS", "b:1")]);
        assert_eq!(read.unwrap_err().to_string(), "--to and WALRELAY_BROKERS exclude each other");
    }

    #[test]
    fn a_password_in_a_url_on_the_command_line_is_a_warning_without_it() {
        let (_, warnings) = read(Some("kafka://u:hunter2@h:1"), &[], &[]);
        assert!(warnings[0].contains("WALRELAY_TO") && !warnings[0].contains("hunter2"), "{warnings:?}");
        assert_eq!(read(None, &[], &[("WALRELAY_TO", "kafka://u:hunter2@h:1")]).1, [""; 0]);
    }

    #[test]
    fn a_property_that_the_kind_does_not_have_is_named_with_what_there_is() {
        let (error, hint) = refused(Some("stdout://"), &["linger.ms=5"]);
        assert_eq!(error, "-X linger.ms: standard output has no property \"linger.ms\"");
        assert_eq!(hint.as_deref(), Some("standard output has no properties"));
    }

    #[test]
    fn variables_count_below_flags() {
        let variables = [("WALRELAY_KAFKA_LINGER_MS", "7"), ("WALRELAY_KAFKA_BATCH_SIZE", "9")];
        let shown = shown(None, &["linger.ms=5"], &variables);
        assert!(shown.contains(r#"("batch.size", "9"), ("linger.ms", "5")"#), "{shown}");
        let (read, _) = read(None, &[], &[("WALRELAY_KAFKA_ACKS", "1")]);
        let error = read.unwrap_err().to_string();
        assert!(error.starts_with("WALRELAY_KAFKA_ACKS: acks=1 is refused"), "{error}");
    }

    #[test]
    fn a_value_can_come_from_a_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "relay \r\n").unwrap();
        let flag = format!("sasl.username=@{}", file.path().display());
        assert!(shown(None, &[&flag], &[]).contains(r#"("sasl.username", "relay ")"#));
        assert!(shown(None, &["sasl.username=@@home"], &[]).contains(r#"("sasl.username", "@home")"#));
        let (error, _) = refused(None, &["sasl.password=@/no/such/file"]);
        assert_eq!(error, "-X sasl.password: cannot read /no/such/file");
    }

    #[test]
    fn a_secret_on_the_command_line_is_a_warning_without_it() {
        let (read, warnings) = read(None, &["sasl.password=hunter2"], &[]);
        assert!(warnings[0].contains("WALRELAY_KAFKA_SASL_PASSWORD") && !warnings[0].contains("hunter2"));
        assert!(!format!("{:?}", read.unwrap()).contains("hunter2"));
    }

    #[test]
    fn a_secret_that_only_looks_like_a_file_is_a_warning_too() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let warnings = |value: &str| read(None, &[&format!("sasl.password={value}")], &[]).1.len();
        assert_eq!(warnings("a=@hunter2"), 1);
        assert_eq!(warnings("@@hunter2"), 1);
        assert_eq!(warnings(&format!("@{}", file.path().display())), 0);
    }

    #[test]
    fn a_secret_in_a_variable_can_come_from_a_file_and_nothing_else_there() {
        let variable = |name, value: &str| read(None, &[], &[(name, value)]).0;
        let error = variable("WALRELAY_KAFKA_SASL_PASSWORD", "@/no/such/file").unwrap_err();
        assert_eq!(error.to_string(), "WALRELAY_KAFKA_SASL_PASSWORD: cannot read /no/such/file");
        variable("WALRELAY_KAFKA_SASL_PASSWORD", "@@/no/such/file").unwrap();
        let shown = shown(None, &[], &[("WALRELAY_KAFKA_SASL_USERNAME", "@home")]);
        assert!(shown.contains(r#"("sasl.username", "@home")"#), "{shown}");
    }

    #[test]
    fn a_command_that_prints_a_secret_may_show() {
        let (read, warnings) = read(None, &["sasl.username=u", "password-command=print-it"], &[]);
        read.unwrap();
        assert_eq!(warnings, [""; 0]);
    }

    #[test]
    fn what_is_no_property_is_not_quoted() {
        for flag in ["hunter2", "=hunter2"] {
            assert_eq!(refused(None, &[flag]).0, "-X: expected KEY=VALUE");
        }
    }
}
