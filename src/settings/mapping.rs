//! How rows become records.
//!
//! In: the layers. Out: a [`Mapping`]. Names of columns are taken exactly, and whether a
//! table has them is for the outbox to say. The syntax of templates and regular expressions is the router's.

use super::read::SettingsReader;
use super::table::Definition;
use super::table::form::name;
use super::table::run as of_run;
use crate::outbox::connect::Connect;
use crate::outbox::table_name::is_name;
use crate::outbox::{CloudEvents, Constant, Mapping, SchemaId, Timestamp};
use crate::route::TopicSetting;
use crate::setting_text::{Given, Origin, SettingError};
use crate::sink::destination::Destination;

/// A name, and the column whose value it gets.
type Pair = (String, String);

impl SettingsReader<'_> {
    /// Reads them; the destination has a rule for addresses, and may have no room for what is asked.
    pub(super) fn mapping(&self, destination: &dyn Destination) -> Result<Mapping, SettingError> {
        let (mut headers, constants) = self.headers()?;
        let own = destination.header_column();
        headers.extend(own.map(|(name, column)| (name.to_owned(), column.to_owned())));
        Ok(Mapping {
            topic: self.topic()?,
            addresses: destination.kind().topics,
            headers,
            constants,
            schema_id: self.schema_id()?,
            cloudevents: self.cloudevents(destination)?,
            content_type_header: self.get(&of_run::CONTENT_TYPE_HEADER)?,
            envelope: self.envelope()?,
            timestamp: self.timestamp()?,
            tombstone_on_empty_payload: self.get(&of_run::TOMBSTONE_ON_EMPTY_PAYLOAD)?,
            position_header: self.get(&of_run::POSITION_HEADER)?,
            on_update: self.get(&of_run::ON_UPDATE)?,
            message_prefixes: self.message_prefixes()?,
            connect: self.connect()?,
            id_column: self.given(&of_run::ID_COLUMN)?,
            key_column: self.given(&of_run::KEY_COLUMN)?,
            payload_column: self.given(&of_run::PAYLOAD_COLUMN)?,
            type_column: self.given(&of_run::TYPE_COLUMN)?,
            route_column: self.given(&of_run::ROUTE_COLUMN)?,
            headers_column: self.given(&of_run::HEADERS_COLUMN)?,
            partition_column: self.given(&of_run::PARTITION_COLUMN)?,
        })
    }

    fn connect(&self) -> Result<Option<Box<Connect>>, SettingError> {
        let accept = self.get(&of_run::ACCEPT_DIFFERENCES)?;
        Ok(self.layers.translation().map(|translation| Box::new(translation.connect(accept))))
    }

    /// A template, or a regular expression with its replacement, but not both.
    fn topic(&self) -> Result<TopicSetting, SettingError> {
        let template = self.given(&of_run::TOPIC)?;
        let regex = self.given(&of_run::TOPIC_REGEX)?;
        let replacement = self.given(&of_run::TOPIC_REPLACEMENT)?;
        let (template, regex, replacement) = given_here(template, regex, replacement);
        match (template, regex, replacement) {
            (None, None, None) => Ok(TopicSetting::default()),
            (Some(template), None, None) => Ok(TopicSetting::Template(template.text)),
            (None, Some(regex), Some(replacement)) => {
                Ok(TopicSetting::Regex { regex: regex.text, replacement: replacement.text })
            }
            (Some(first), Some(second), _) | (Some(first), None, Some(second)) => Err(first.excludes(&second)),
            (None, Some(regex), None) => Err(regex.needs("--topic-replacement")),
            (None, None, Some(text)) => Err(text.needs("--topic-regex")),
        }
    }

    /// A number, or a column; with nothing else that shapes the value.
    fn schema_id(&self) -> Result<Option<SchemaId>, SettingError> {
        if let Some(given) = self.layers.one(&of_run::SCHEMA_REGISTRY)? {
            self.alone(&given, &[&of_run::SCHEMA_ID, &of_run::CLOUDEVENTS])?;
            return Ok(Some(SchemaId::Registry));
        }
        let Some(given) = self.layers.one(&of_run::SCHEMA_ID)? else { return Ok(None) };
        self.alone(&given, &[&of_run::CLOUDEVENTS])?;
        if given.text.bytes().all(|byte| byte.is_ascii_digit()) {
            let number = given.text.parse::<i32>().ok().and_then(|number| u32::try_from(number).ok());
            let number = number.ok_or_else(|| given.invalid("a column, or a number from 0 to 2147483647", None))?;
            return Ok(Some(SchemaId::Number(number)));
        }
        Ok(Some(SchemaId::Column(name(&given)?)))
    }

    /// Checks that only one setting decides the shape of the value.
    fn alone(&self, given: &Given, others: &[&Definition]) -> Result<(), SettingError> {
        let envelope = self.layers.many_or_one(&of_run::ENVELOPE);
        let others = others.iter().filter_map(|setting| self.layers.many_or_one(setting));
        match envelope.into_iter().chain(self.old_files()).chain(others).next() {
            Some(other) => Err(given.excludes(&other)),
            None => Ok(()),
        }
    }

    /// Only where the destination's binding says how, and with nothing else that shapes the value.
    fn cloudevents(&self, to: &dyn Destination) -> Result<Option<CloudEvents>, SettingError> {
        let source = self.layers.one(&of_run::CLOUDEVENTS_SOURCE)?;
        let mode = self.layers.one(&of_run::CLOUDEVENTS)?;
        let (given, source) = match (mode, source) {
            (None, None) => return Ok(None),
            (None, Some(source)) => return Err(source.needs("--cloudevents")),
            (Some(mode), None) => return Err(mode.needs("--cloudevents-source")),
            (Some(mode), Some(source)) => (mode, source),
        };
        let is_binary = self.given(&of_run::CLOUDEVENTS)?.unwrap_or_default();
        if source.text.is_empty() || source.text.chars().any(|c| c.is_control() || c == ' ') {
            return Err(source.invalid("a URI or a path without spaces, such as /shop/orders", None));
        }
        self.alone(&given, &[])?;
        let Some(binding) = to.event_binding() else {
            let setting = format!("--cloudevents with {}", to.kind().title);
            let reason = "CloudEvents have no binding for it that walrelay knows";
            return Err(SettingError::refused(&given.origin, &setting, reason));
        };
        let events =
            if is_binary { CloudEvents::binary(source.text, binding) } else { CloudEvents::structured(source.text) };
        Ok(Some(events))
    }

    /// The first file of `--from-debezium`.
    fn old_files(&self) -> Option<Given> {
        self.layers.translation()?;
        self.layers
            .many_or_one(&of_run::FROM_DEBEZIUM)
            .or_else(|| Some(Given { text: String::new(), origin: Origin::Flag("--from-debezium".to_owned()) }))
    }

    /// Headers from columns, and among them those with a value of their own.
    fn headers(&self) -> Result<(Vec<Pair>, Vec<Constant>), SettingError> {
        let (mut headers, mut constants) = (Vec::new(), Vec::new());
        for given in self.layers.many(&of_run::HEADER) {
            match constant(&given, headers.len())? {
                Some(constant) => constants.push(constant),
                None => headers.push(pair("NAME=COLUMN, or NAME==VALUE", given)?.0),
            }
        }
        Ok((headers, constants))
    }

    /// Members of one JSON object: distinct, and none of them the payload.
    fn envelope(&self) -> Result<Vec<Pair>, SettingError> {
        let mut members = Vec::<Pair>::new();
        for given in self.layers.many(&of_run::ENVELOPE) {
            let ((name, column), given) = pair("NAME=COLUMN", given)?;
            if name == "payload" || members.iter().any(|(earlier, _)| *earlier == name) {
                return Err(given.invalid("a NAME that the envelope does not have yet", None));
            }
            members.push((name, column));
        }
        Ok(members)
    }

    fn timestamp(&self) -> Result<Timestamp, SettingError> {
        let text = self.get(&of_run::TIMESTAMP)?;
        Ok(match text.as_str() {
            "send" => Timestamp::Send,
            "commit" => Timestamp::Commit,
            _ => Timestamp::Column(text),
        })
    }

    fn message_prefixes(&self) -> Result<Vec<String>, SettingError> {
        let prefix = |given: Given| {
            let valid = !given.text.is_empty() && !given.text.contains('\0');
            if valid { Ok(given.text) } else { Err(given.invalid("a text that is not empty", None)) }
        };
        self.layers.many(&of_run::MESSAGE_PREFIX).into_iter().map(prefix).collect()
    }
}

/// `NAME=COLUMN`, with where it was given.
fn pair(expected: &str, given: Given) -> Result<(Pair, Given), SettingError> {
    // Debezium's aliases may contain one, its columns may not.
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

/// A Debezium configuration's settings of topics count as a whole, and only where no other setting names topics.
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
