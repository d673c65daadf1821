//! Translates the options of the outbox `EventRouter`.
//!
//! Specification: Debezium's "Outbox Event Router", `EventRouterConfigDefinition`, `EventRouterDelegate`.

use super::{NO_EFFECT, Translator};
use crate::debezium::keys::{Keys, says};
use crate::outbox::connect::Expand;
use crate::route;
use crate::setting_text::{Given, Origin, nearest};

const ROUTER: &str = "io.debezium.transforms.outbox.EventRouter";

/// The short name of the router's class, which Kafka Connect accepts as well.
const SHORT: &str = "EventRouter";

const DEFAULT_REGEX: &str = "(?<routedByValue>.*)";
const DEFAULT_REPLACEMENT: &str = "outbox.event.${routedByValue}";

/// The router's options that name a column, with their defaults and settings.
const COLUMNS: [(&str, &str, &str); 4] = [
    ("table.field.event.id", "id", "id-column"),
    ("table.field.event.key", "aggregateid", "key-column"),
    ("table.field.event.payload", "payload", "payload-column"),
    ("route.by.field", "aggregatetype", "route-column"),
];

/// All known options, to find the one that a misspelt option was meant to be.
const OPTIONS: [&str; 15] = [
    "table.field.event.id",
    "table.field.event.key",
    "table.field.event.type",
    "table.field.event.payload",
    "table.field.event.timestamp",
    "table.field.event.schema.version",
    "table.fields.additional.placement",
    "table.field.additional.missing",
    "table.expand.json.payload",
    "table.json.payload.null.behavior",
    "table.op.invalid.behavior",
    "route.by.field",
    "route.topic.regex",
    "route.topic.replacement",
    "route.tombstone.on.empty.payload",
];

/// The part of the record that an additional column goes to.
#[derive(Clone, Copy)]
enum Placement {
    Header,
    Envelope,
    Partition,
}

impl Translator {
    pub(super) fn router(&mut self) {
        let names = self.configuration.connector.take_filled("transforms");
        let Some(names) = names else {
            let text = format!(
                "there is no transform of type {ROUTER}, so that records are change events, which walrelay does not write"
            );
            return self.refuse_missing("transforms", &text);
        };
        let mut router = None;
        for name in names.text.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            let options = self.configuration.connector.take_below(&format!("transforms.{name}."));
            match options.get("type").map(|kind| kind.text.trim()) {
                Some(ROUTER) if router.is_none() => router = Some(options),
                Some(SHORT) if router.is_none() && !self.is_server() => router = Some(options),
                _ => self.other_transform(name, &names, options),
            }
        }
        self.unused_transforms();
        match router {
            Some(options) => self.options(options),
            None => self.refuse(&names, format!("none of them is of type {ROUTER}")),
        }
    }

    fn other_transform(&mut self, name: &str, names: &Given, mut options: Keys) {
        let whose = if let Some(kind) = options.take("type") {
            let class = kind.text.trim().to_owned();
            self.differs(
                &kind,
                format!("the transform {class} may change, drop or reroute records; it is not applied"),
            );
            format!("an option of {class}")
        } else {
            self.refuse(names, format!("\"{name}\" has no transforms.{name}.type"));
            "an option of a transform that has no type".to_owned()
        };
        for (_, option) in options.iter() {
            self.not_needed(option, whose.as_str());
        }
    }

    fn unused_transforms(&mut self) {
        for (_, option) in self.configuration.connector.take_below("transforms.").iter() {
            self.not_needed(option, "an option of a transform that transforms does not name");
        }
        for (_, option) in self.configuration.connector.take_below("predicates.").iter() {
            self.not_needed(option, "a predicate's option: see the transform that names it");
        }
        let names = self.configuration.connector.take("predicates");
        self.not_needed(&names, "predicates do nothing by themselves: see the transforms that name one");
    }

    fn options(&mut self, mut options: Keys) {
        options.take("type");
        self.columns(&mut options);
        self.route(&mut options);
        self.timestamp(&mut options);
        self.placements(&mut options);
        self.payload(&mut options);
        self.updates(&mut options);
        self.applied_to_some(&mut options);
        for (key, option) in options.iter() {
            if key.starts_with("tracing.") {
                self.warn(
                    option,
                    "tracing adds headers to records where OpenTelemetry's agent runs with Debezium; none are added",
                );
            } else {
                let meant = nearest(key, OPTIONS).map(|meant| format!("; {meant} is")).unwrap_or_default();
                self.warn(
                    option,
                    format!(
                        "Debezium's router of 3.6 knows no such option{meant}: Debezium ignores it, and so does walrelay"
                    ),
                );
            }
        }
    }

    /// Translates columns. Each is named, since walrelay tries other names than Debezium.
    fn columns(&mut self, options: &mut Keys) {
        let default = Origin::foreign("the router's default");
        for (key, column, setting) in COLUMNS {
            match options.take_filled(key) {
                Some(value) => self.set(setting, value.text.trim().to_owned(), &value.origin),
                None => self.set(setting, column, &default),
            }
        }
        self.set("type-column", "", &default);
        self.set("headers-column", "", &default);
        self.not_needed(
            &options.take("table.field.event.type"),
            "the router makes nothing of it: a header eventType comes from table.fields.additional.placement",
        );
        if let Some(version) = options.take_filled("table.field.event.schema.version") {
            self.out.connect.schemas.version_column = Some(version.text.trim().to_owned());
            self.not_needed(
                &version,
                "the version of an envelope's schema: it shows only where a JsonConverter writes schemas",
            );
        }
    }

    /// Translates the route. The usual expressions become a template, which is easier to read. Others stay as they are.
    fn route(&mut self, options: &mut Keys) {
        let regex = options.take("route.topic.regex");
        if let Some(empty) = regex.as_ref().filter(|value| value.text.is_empty()) {
            // The expression matches no route, so each route is its own topic.
            let origin = empty.origin.clone();
            self.not_needed(&options.take("route.topic.replacement"), "an empty route.topic.regex counts more");
            return self.set("topic", "{route}", &origin);
        }
        let replacement = options.take("route.topic.replacement");
        let Some(origin) = replacement.as_ref().or(regex.as_ref()).map(|value| value.origin.clone()) else {
            return self.set("topic", "outbox.event.{route}", &Origin::foreign("the router's default"));
        };
        let regex_text = regex.as_ref().map_or(DEFAULT_REGEX, |value| &value.text).to_owned();
        let replacement_text = replacement.map_or_else(|| DEFAULT_REPLACEMENT.to_owned(), |value| value.text);
        if let Some(template) = template(&regex_text, &replacement_text) {
            return self.set("topic", template, &origin);
        }
        let setting =
            crate::route::TopicSetting::Regex { regex: regex_text.clone(), replacement: replacement_text.clone() };
        if let Err(error) = route::TopicRule::new(&setting, &route::TOPICS) {
            let origin = regex.filter(|_| error.flag == "--topic-regex").map_or(origin, |regex| regex.origin);
            let text = error.problem.to_string();
            return self.note(
                crate::debezium::Severity::Refused,
                &origin,
                format!("{:?}: {}", error.text, text.lines().last().unwrap_or_default()),
            );
        }
        self.set("topic-regex", regex_text, &regex.map_or_else(|| origin.clone(), |regex| regex.origin));
        self.set("topic-replacement", replacement_text, &origin);
    }

    fn timestamp(&mut self, options: &mut Keys) {
        let Some(column) = options.take_filled("table.field.event.timestamp") else { return };
        let name = column.text.trim().to_owned();
        if self.is_server() {
            return self.warn(&column, format!("Debezium Server's Kafka sink drops the router's timestamp; records carry the time at which they are sent, as there, and --timestamp {name} gives them the column's"));
        }
        self.set("timestamp", name, &column.origin);
        let text = "a row of 1970-01-01 00:00:00.000 itself is a bad row: Kafka's client takes it for no time at all";
        self.warn(&column, text);
    }

    fn placements(&mut self, options: &mut Keys) {
        self.missing_columns(options);
        let Some(list) = options.take_filled("table.fields.additional.placement") else { return };
        let (mut headers, mut envelope) = (Vec::new(), Vec::new());
        // Java's split leaves out empty parts at the end.
        for item in list.text.trim_end_matches(',').split(',').map(str::trim) {
            let Some((placement, column, alias)) = self.placement(&list, item) else { continue };
            let pair = format!("{alias}={column}");
            match placement {
                Placement::Header => headers.push(pair),
                Placement::Envelope => envelope.push(pair),
                Placement::Partition => self.partition(&list, column),
            }
        }
        if !envelope.is_empty() && self.out.connect.skip_missing {
            self.out.connect.alike_envelopes = true;
            let text = "of tables of which some lack an envelope's column the router writes what the first row's table has, in all of them: \
                        where there are such tables, walrelay ends before the first record (--accept-differences: each table has its own)";
            self.warn(&list, text);
        }
        self.set_list("header", headers, &list.origin);
        self.set_list("envelope", envelope, &list.origin);
    }

    /// Parses `COLUMN:PLACEMENT` or `COLUMN:PLACEMENT:ALIAS`.
    fn placement<'i>(&mut self, list: &Given, item: &'i str) -> Option<(Placement, &'i str, &'i str)> {
        let parts = item.split(':').map(str::trim).collect::<Vec<_>>();
        let (column, placement, alias) = match parts.as_slice() {
            [column, placement] | [column, placement, ""] => (*column, *placement, *column),
            [column, placement, alias] => (*column, *placement, *alias),
            _ => ("", "", ""),
        };
        if column.is_empty() || column.contains('=') {
            self.refuse(list, format!("\"{item}\" is not COLUMN:PLACEMENT or COLUMN:PLACEMENT:ALIAS"));
            return None;
        }
        let words =
            [("header", Placement::Header), ("envelope", Placement::Envelope), ("partition", Placement::Partition)];
        let found = words.iter().find(|(word, _)| word.eq_ignore_ascii_case(placement));
        if found.is_none() {
            let text = format!(
                "\"{placement}\" is not a placement: header, envelope and partition are (Debezium ends with an error at the first event)"
            );
            self.refuse(list, text);
        }
        found.map(|(_, placement)| (*placement, column, alias))
    }

    fn partition(&mut self, list: &Given, column: &str) {
        if self.is_server() {
            return self.warn(list, format!("Debezium Server's Kafka sink drops the router's partition, so that records went by their keys; they still do, and --partition-column {column} obeys the column"));
        }
        self.set("partition-column", column, &list.origin);
    }

    fn missing_columns(&mut self, options: &mut Keys) {
        if let Some(value) = options.take("table.field.additional.missing") {
            let skips = self.one_of(&value, &[("error", false), ("ignore", true)]);
            self.out.connect.skip_missing = skips.unwrap_or(false);
            self.not_needed(Some(&value).filter(|_| skips == Some(false)), NO_EFFECT);
        }
    }

    fn payload(&mut self, options: &mut Keys) {
        let tombstone = options.take("route.tombstone.on.empty.payload");
        if let Some(origin) = tombstone.as_ref().map(|value| value.origin.clone()) {
            let on = self.is_on(tombstone);
            self.set("tombstone-on-empty-payload", on.to_string(), &origin);
        }
        let nulls = options.take("table.json.payload.null.behavior");
        let keep_nulls =
            nulls.as_ref().and_then(|value| self.one_of(value, &[("ignore", false), ("optional_bytes", true)]));
        let expand = options.take("table.expand.json.payload");
        let is_off = expand.as_ref().is_none_or(|value| says(value, "false"));
        if is_off {
            self.not_needed(&expand, NO_EFFECT);
            return self.not_needed(&nulls, "it counts only with table.expand.json.payload");
        }
        self.not_needed(nulls.as_ref().filter(|_| keep_nulls == Some(false)), NO_EFFECT);
        if let Some(value) = expand.filter(|value| self.is_on(Some(value.clone()))) {
            self.out.connect.expand = Some(Expand { keep_nulls: keep_nulls.unwrap_or(false) });
            self.differs(&value, EXPANDED);
        }
    }

    fn updates(&mut self, options: &mut Keys) {
        let Some(value) = options.take("table.op.invalid.behavior") else { return };
        let Some(what) = self.one_of(&value, &[("warn", "warn"), ("error", "warn"), ("fatal", "stop")]) else { return };
        if self.skips("u") {
            self.not_needed(&value, "skipped.operations keeps updates from the router");
            return self.set("on-update", "skip", &value.origin);
        }
        self.set("on-update", what, &value.origin);
    }

    fn applied_to_some(&mut self, options: &mut Keys) {
        let text = "the router takes only records that the predicate lets through, and others stay change events; here it takes every row of the tables";
        self.differs(&options.take("predicate"), text);
        self.not_needed(&options.take("negate"), "it belongs to the predicate");
    }
}

const EXPANDED: &str = "a payload is expanded as Java 19 and later does it, from 1.50 to 1.5; what depends on each payload cannot be \
                        known at the start: an older Java writes some doubles in another way, and the members of unlike objects in \
                        one array may come in another order";

/// `prefix.{route}.suffix`. `None`: the expressions do more than that.
fn template(regex: &str, replacement: &str) -> Option<String> {
    if ![DEFAULT_REGEX, "(.*)"].contains(&regex) {
        return None;
    }
    let group = if regex == DEFAULT_REGEX && replacement.contains("${") { "${routedByValue}" } else { "$1" };
    let (prefix, suffix) = replacement.split_once(group)?;
    let literal = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
    // A digit after `$1` may be a part of the group's number.
    let ambiguous = group == "$1" && suffix.starts_with(|c: char| c.is_ascii_digit());
    (literal(prefix) && literal(suffix) && !ambiguous).then(|| format!("{prefix}{{route}}{suffix}"))
}
