//! How rows become records, from flags and the other layers.
//!
//! In: flags and the other layers. Out: a [`Mapping`]. Names of columns are taken exactly, and whether a
//! table has them is for the outbox to say. The syntax of templates and regular expressions is the router's.

use super::cli::{RecordArgs, RoutingArgs, RowArgs, RunArgs};
use super::error::ConfigError;
use super::read::{self, Reader};
use crate::given::{Given, Origin, SettingError};
use crate::outbox::connect::Connect;
use crate::outbox::table_name::is_name;
use crate::outbox::{CloudEvents, Constant, Mapping, OnUpdate, SchemaId, Timestamp};
use crate::route::TopicSetting;
use crate::sink::destination::Destination;

const ON_UPDATE: [(&str, OnUpdate); 3] = [("warn", OnUpdate::Warn), ("skip", OnUpdate::Skip), ("stop", OnUpdate::Stop)];

/// A name, and the column whose value it gets.
type Pair = (String, String);

impl Reader<'_> {
    /// Reads them; the destination has a rule for addresses, and may have no place for what is asked.
    pub(super) fn mapping(&self, args: &RunArgs, destination: &dyn Destination) -> Result<Mapping, ConfigError> {
        let RunArgs { rows, records, routing, .. } = args;
        let (mut headers, constants) = self.headers(records)?;
        let own = destination.header_column();
        headers.extend(own.map(|(name, column)| (name.to_owned(), column.to_owned())));
        self.columns(
            rows,
            Mapping {
                topic: self.topic(routing)?,
                addresses: destination.kind().topics,
                headers,
                constants,
                schema_id: self.schema_id(args)?,
                cloudevents: self.cloudevents(records, destination)?,
                content_type_header: self
                    .layers
                    .is_on("content-type-header", records.content_type_header.as_deref())?,
                envelope: self.envelope(records)?,
                timestamp: self.timestamp(records)?,
                tombstone_on_empty_payload: self
                    .layers
                    .is_on("tombstone-on-empty-payload", records.tombstone_on_empty_payload.as_deref())?,
                position_header: self.layers.is_on("position-header", records.position_header.as_deref())?,
                on_update: self.one_of("on-update", rows.on_update.as_deref(), &ON_UPDATE)?.unwrap_or_default(),
                message_prefixes: self.message_prefixes(rows)?,
                connect: self.connect(args)?,
                ..Mapping::default()
            },
        )
    }

    fn connect(&self, args: &RunArgs) -> Result<Option<Box<Connect>>, ConfigError> {
        let accept = self.layers.is_on("accept-differences", args.debezium.accept_differences.as_deref())?;
        Ok(self.layers.translation().map(|translation| {
            let connect = translation.connect.clone();
            Box::new(Connect { alike_envelopes: connect.alike_envelopes && !accept, ..connect })
        }))
    }

    fn columns(&self, args: &RowArgs, mapping: Mapping) -> Result<Mapping, ConfigError> {
        Ok(Mapping {
            id_column: self.name("id-column", args.id_column.as_deref())?,
            key_column: self.optional_name("key-column", args.key_column.as_deref())?,
            payload_column: self.name("payload-column", args.payload_column.as_deref())?,
            type_column: self.optional_name("type-column", args.type_column.as_deref())?,
            route_column: self.name("route-column", args.route_column.as_deref())?,
            headers_column: self.optional_name("headers-column", args.headers_column.as_deref())?,
            partition_column: self.optional_name("partition-column", args.partition_column.as_deref())?,
            ..mapping
        })
    }

    /// A column's name, or an empty text: there is to be no such column, whatever the table has.
    pub(super) fn optional_name(&self, setting: &str, typed: Option<&str>) -> Result<Option<String>, ConfigError> {
        match self.layers.one(setting, typed)? {
            Some(given) if given.text.is_empty() => Ok(Some(given.text)),
            given => Ok(given.map(read::name).transpose()?),
        }
    }

    /// A template, or a regular expression with its replacement, but not both.
    fn topic(&self, args: &RoutingArgs) -> Result<TopicSetting, ConfigError> {
        let template = self.non_empty("topic", args.topic.as_deref())?;
        let regex = self.non_empty("topic-regex", args.topic_regex.as_deref())?;
        let replacement = self.non_empty("topic-replacement", args.topic_replacement.as_deref())?;
        let (template, regex, replacement) = given_here(template, regex, replacement);
        match (template, regex, replacement) {
            (None, None, None) => Ok(TopicSetting::default()),
            (Some(template), None, None) => Ok(TopicSetting::Template(template.text)),
            (None, Some(regex), Some(replacement)) => {
                Ok(TopicSetting::Regex { regex: regex.text, replacement: replacement.text })
            }
            (Some(first), Some(second), _) | (Some(first), None, Some(second)) => {
                Err(SettingError::Exclusive { first: first.origin, second: second.origin }.into())
            }
            (None, Some(regex), None) => {
                Err(SettingError::Needs { origin: regex.origin, other: "--topic-replacement" }.into())
            }
            (None, None, Some(text)) => Err(SettingError::Needs { origin: text.origin, other: "--topic-regex" }.into()),
        }
    }

    fn non_empty(&self, setting: &str, typed: Option<&str>) -> Result<Option<Given>, ConfigError> {
        match self.layers.one(setting, typed)? {
            Some(given) if given.text.trim().is_empty() => Err(given.invalid("a text that is not empty", None).into()),
            given => Ok(given),
        }
    }

    /// A number, or a column; with nothing else that shapes the value.
    fn schema_id(&self, args: &RunArgs) -> Result<Option<SchemaId>, ConfigError> {
        let RunArgs { records: args, registry, .. } = args;
        if let Some(given) = self.layers.one("schema-registry", registry.schema_registry.as_deref())? {
            let others = [("schema-id", args.schema_id.as_deref()), ("cloudevents", args.cloudevents.as_deref())];
            self.alone(&given, args, &others)?;
            return Ok(Some(SchemaId::Registry));
        }
        let Some(given) = self.layers.one("schema-id", args.schema_id.as_deref())? else { return Ok(None) };
        self.alone(&given, args, &[("cloudevents", args.cloudevents.as_deref())])?;
        if given.text.bytes().all(|byte| byte.is_ascii_digit()) {
            let number = given.text.parse::<i32>().ok().and_then(|number| u32::try_from(number).ok());
            let number = number.ok_or_else(|| given.invalid("a column, or a number from 0 to 2147483647", None))?;
            return Ok(Some(SchemaId::Number(number)));
        }
        Ok(Some(SchemaId::Column(read::name(given)?)))
    }

    /// What shapes the value has no other such setting beside it.
    fn alone(&self, given: &Given, args: &RecordArgs, others: &[(&str, Option<&str>)]) -> Result<(), ConfigError> {
        let envelope = self.layers.many_or_one("envelope", args.envelope.first().map(String::as_str));
        let others = others.iter().filter_map(|(name, flag)| self.layers.many_or_one(name, *flag));
        match envelope.into_iter().chain(self.old_files()).chain(others).next() {
            Some(other) => Err(SettingError::Exclusive { first: given.origin.clone(), second: other.origin }.into()),
            None => Ok(()),
        }
    }

    /// Only where the destination's binding says how, and with nothing else that shapes the value.
    fn cloudevents(&self, args: &RecordArgs, to: &dyn Destination) -> Result<Option<CloudEvents>, ConfigError> {
        let modes = [("binary", true), ("structured", false)];
        let source = self.layers.one("cloudevents-source", args.cloudevents_source.as_deref())?;
        let mode = self.layers.one("cloudevents", args.cloudevents.as_deref())?;
        let (given, source) = match (mode, source) {
            (None, None) => return Ok(None),
            (None, Some(source)) => {
                return Err(SettingError::Needs { origin: source.origin, other: "--cloudevents" }.into());
            }
            (Some(mode), None) => {
                return Err(SettingError::Needs { origin: mode.origin, other: "--cloudevents-source" }.into());
            }
            (Some(mode), Some(source)) => (mode, source),
        };
        let is_binary = self.one_of("cloudevents", args.cloudevents.as_deref(), &modes)?.unwrap_or_default();
        if source.text.is_empty() || source.text.chars().any(|c| c.is_control() || c == ' ') {
            return Err(source.invalid("a URI or a path without spaces, such as /shop/orders", None).into());
        }
        self.alone(&given, args, &[])?;
        let Some(binding) = to.event_binding() else {
            let setting = format!("--cloudevents with {}", to.kind().title);
            let reason = "CloudEvents have no binding for it that walrelay knows";
            return Err(SettingError::Refused { origin: given.origin, setting, reason, hint: None }.into());
        };
        let events =
            if is_binary { CloudEvents::binary(source.text, binding) } else { CloudEvents::structured(source.text) };
        Ok(Some(events))
    }

    /// The first file of `--from-debezium`.
    fn old_files(&self) -> Option<Given> {
        self.layers.translation()?;
        self.layers
            .many_or_one("from-debezium", None)
            .or_else(|| Some(Given { text: String::new(), origin: Origin::Flag("--from-debezium".to_owned()) }))
    }

    /// Headers from columns, and among them those with a value of their own.
    fn headers(&self, args: &RecordArgs) -> Result<(Vec<Pair>, Vec<Constant>), ConfigError> {
        let (mut headers, mut constants) = (Vec::new(), Vec::new());
        for given in self.layers.many("header", &args.header) {
            match constant(&given, headers.len())? {
                Some(constant) => constants.push(constant),
                None => headers.push(pair("NAME=COLUMN, or NAME==VALUE", given)?.0),
            }
        }
        Ok((headers, constants))
    }

    /// `NAME=COLUMN` for each, with where it was given.
    fn pairs(&self, setting: &str, typed: &[String]) -> Result<Vec<(Pair, Given)>, ConfigError> {
        let many = self.layers.many(setting, typed).into_iter();
        Ok(many.map(|given| pair("NAME=COLUMN", given)).collect::<Result<_, _>>()?)
    }

    /// Members of one JSON object: distinct, and none of them the payload.
    fn envelope(&self, args: &RecordArgs) -> Result<Vec<Pair>, ConfigError> {
        let mut members = Vec::<Pair>::new();
        for ((name, column), given) in self.pairs("envelope", &args.envelope)? {
            if name == "payload" || members.iter().any(|(earlier, _)| *earlier == name) {
                return Err(given.invalid("a NAME that the envelope does not have yet", None).into());
            }
            members.push((name, column));
        }
        Ok(members)
    }

    fn timestamp(&self, args: &RecordArgs) -> Result<Timestamp, ConfigError> {
        Ok(match self.name("timestamp", args.timestamp.as_deref())? {
            Some(column) if column != "commit" => Timestamp::Column(column),
            _ => Timestamp::Commit,
        })
    }

    fn message_prefixes(&self, args: &RowArgs) -> Result<Vec<String>, ConfigError> {
        let prefix = |given: Given| {
            let valid = !given.text.is_empty() && !given.text.contains('\0');
            if valid { Ok(given.text) } else { Err(given.invalid("a text that is not empty", None).into()) }
        };
        self.layers.many("message-prefix", &args.message_prefix).into_iter().map(prefix).collect()
    }
}

/// `NAME=COLUMN`, with where it was given.
fn pair(expected: &str, given: Given) -> Result<(Pair, Given), SettingError> {
    // Debezium's aliases may hold one, its columns may not.
    let split = match given.origin {
        Origin::Translated(_) => given.text.rsplit_once('='),
        Origin::Flag(_) | Origin::FlagFile(_) | Origin::Variable(_) | Origin::Key(_) => given.text.split_once('='),
    };
    match split {
        Some((name, column)) if !name.is_empty() && is_name(column) => {
            Ok(((name.to_owned(), column.to_owned()), given))
        }
        _ => {
            let bare = is_name(&given.text) && !given.text.contains('=');
            Err(given.invalid(expected, bare.then(|| format!("{0}={0}", given.text))))
        }
    }
}

/// `NAME==VALUE`; `None`: a column is meant. What would end a line of headers elsewhere is not taken, nor a name of ours.
fn constant(given: &Given, behind: usize) -> Result<Option<Constant>, SettingError> {
    if matches!(given.origin, Origin::Translated(_)) {
        return Ok(None);
    }
    let Some((name, value)) = given.text.split_once('=').and_then(|(name, rest)| Some((name, rest.strip_prefix('=')?)))
    else {
        return Ok(None);
    };
    let ours = name.to_ascii_lowercase().starts_with("walrelay-");
    if name.trim().is_empty() || ours || given.text.chars().any(char::is_control) {
        let expected = "NAME==VALUE without control characters, and a NAME that does not begin with walrelay-";
        return Err(given.invalid(expected, None));
    }
    Ok(Some(Constant { behind, name: name.to_owned(), value: value.to_owned() }))
}

/// What a Debezium configuration says of topics counts as a whole, and only where nothing else says anything of them.
fn given_here(
    template: Option<Given>,
    regex: Option<Given>,
    replacement: Option<Given>,
) -> (Option<Given>, Option<Given>, Option<Given>) {
    let is_old = |given: &Given| matches!(given.origin, Origin::Translated(_));
    if [&template, &regex, &replacement].into_iter().flatten().all(is_old) {
        return (template, regex, replacement);
    }
    let here = |given: Option<Given>| given.filter(|given| !is_old(given));
    (here(template), here(regex), here(replacement))
}
