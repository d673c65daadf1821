//! How rows become records, from flags and the other layers.
//!
//! In: flags and the other layers. Out: a [`Mapping`]. Names of columns are taken exactly, and whether a
//! table has them is for the outbox to say. The syntax of templates and regular expressions is the router's.

use super::error::ConfigError;
use super::read::{self, Reader};
use crate::cli::{RecordArgs, RoutingArgs, RowArgs, RunArgs};
use crate::given::{Given, Origin, SettingError};
use crate::outbox::table_name::is_name;
use crate::outbox::{Mapping, OnUpdate, Timestamp};
use crate::route::{Rule, TopicSetting};

const ON_UPDATE: [(&str, OnUpdate); 3] = [("warn", OnUpdate::Warn), ("skip", OnUpdate::Skip), ("stop", OnUpdate::Stop)];

/// A name, and the column whose value it gets.
type Pair = (String, String);

impl Reader<'_> {
    /// Reads them; `addresses`: the destination's rule.
    pub(super) fn mapping(&self, args: &RunArgs, addresses: &'static Rule) -> Result<Mapping, ConfigError> {
        let RunArgs { rows, records, routing, .. } = args;
        self.columns(
            rows,
            Mapping {
                topic: self.topic(routing)?,
                addresses,
                headers: self.pairs("header", &records.header)?.into_iter().map(|(pair, _)| pair).collect(),
                envelope: self.envelope(records)?,
                timestamp: self.timestamp(records)?,
                tombstone_on_empty_payload: self
                    .layers
                    .is_on("tombstone-on-empty-payload", records.tombstone_on_empty_payload.as_deref())?,
                position_header: self.layers.is_on("position-header", records.position_header.as_deref())?,
                on_update: self.one_of("on-update", rows.on_update.as_deref(), &ON_UPDATE)?.unwrap_or_default(),
                message_prefixes: self.message_prefixes(rows)?,
                connect: self.layers.translation().map(|translation| Box::new(translation.connect.clone())),
                ..Mapping::default()
            },
        )
    }

    fn columns(&self, args: &RowArgs, mapping: Mapping) -> Result<Mapping, ConfigError> {
        Ok(Mapping {
            id_column: self.name("id-column", args.id_column.as_deref())?,
            key_column: self.optional_name("key-column", args.key_column.as_deref())?,
            payload_column: self.name("payload-column", args.payload_column.as_deref())?,
            type_column: self.optional_name("type-column", args.type_column.as_deref())?,
            route_column: self.name("route-column", args.route_column.as_deref())?,
            headers_column: self.optional_name("headers-column", args.headers_column.as_deref())?,
            partition_column: self.name("partition-column", args.partition_column.as_deref())?,
            ..mapping
        })
    }

    /// A column's name, or an empty text: there is to be no such column, whatever the table has.
    fn optional_name(&self, setting: &str, typed: Option<&str>) -> Result<Option<String>, ConfigError> {
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

    /// `NAME=COLUMN` for each, with where it was given.
    fn pairs(&self, setting: &str, typed: &[String]) -> Result<Vec<(Pair, Given)>, ConfigError> {
        // Debezium's aliases may hold one, its columns may not.
        let split = |given: &Given| {
            match given.origin {
                Origin::Translated(_) => given.text.rsplit_once('='),
                Origin::Flag(_) | Origin::FlagFile(_) | Origin::Variable(_) | Origin::Key(_) => {
                    given.text.split_once('=')
                }
            }
            .map(|(name, column)| (name.to_owned(), column.to_owned()))
        };
        let pair = |given: Given| match split(&given) {
            Some((name, column)) if !name.is_empty() && is_name(&column) => Ok(((name, column), given)),
            _ => {
                let bare = is_name(&given.text) && !given.text.contains('=');
                Err(given.invalid("NAME=COLUMN", bare.then(|| format!("{0}={0}", given.text))).into())
            }
        };
        self.layers.many(setting, typed).into_iter().map(pair).collect()
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

/// What an old set-up says of topics counts as a whole, and only where nothing else says anything of them.
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
