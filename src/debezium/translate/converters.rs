//! Translates the configuration of converters, which turn columns into bytes.
//!
//! Specification: Kafka Connect's converters, Debezium Server's `debezium.format.*`.

use super::{NO_EFFECT, Translator, class_name};
use crate::debezium::keys::{Keys, says};
use crate::debezium::{Note, Severity};
use crate::outbox::connect::{Converter, Json};
use crate::setting_text::Given;

/// A part of the record that a converter makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RecordPart {
    Key,
    Value,
    Header,
}

impl RecordPart {
    const fn name(self) -> &'static str {
        match self {
            Self::Key => "key",
            Self::Value => "value",
            Self::Header => "header",
        }
    }
}

/// Debezium Server's formats, each with its converter.
const FORMATS: [(&str, &str); 5] =
    [("json", JSON), ("jsonbytearray", JSON), ("simplestring", TEXT), ("binary", BINARY), ("clientprovided", "")];

const TEXT: &str = "org.apache.kafka.connect.storage.StringConverter";
const JSON: &str = "org.apache.kafka.connect.json.JsonConverter";
const SIMPLE: &str = "org.apache.kafka.connect.storage.SimpleHeaderConverter";
const BINARY: &str = "io.debezium.converters.BinaryDataConverter";
/// Converters that take only bytes.
const BYTES: [&str; 3] =
    [BINARY, "org.apache.kafka.connect.converters.ByteArrayConverter", "io.debezium.converters.ByteBufferConverter"];

impl Translator {
    pub(super) fn converters(&mut self) {
        for part in [RecordPart::Key, RecordPart::Value, RecordPart::Header] {
            let converter = if self.is_server() { self.server_converter(part) } else { self.connect_converter(part) };
            let Some(converter) = converter else { continue };
            match part {
                RecordPart::Key => self.out.connect.key = converter,
                RecordPart::Value => self.out.connect.value = converter,
                RecordPart::Header => self.out.connect.header = converter,
            }
        }
        self.out.connect.skip_null_headers = self.is_server();
        self.expanded_value();
        self.envelope_names();
        self.server_headers();
    }

    /// The converter of Debezium's format, or a class that is named beside it.
    fn server_converter(&mut self, part: RecordPart) -> Option<Converter> {
        let name = part.name();
        let mut options = self.configuration.connector.take_below(&format!("{name}.converter."));
        let class = options.take_filled("class");
        let format = self.configuration.connector.take_filled(&format!("format.{name}"));
        let Some(format) = format else {
            let class = class.map_or_else(|| JSON.to_owned(), |class| class.text);
            return self.converter(part, &class, None, options);
        };
        let known = FORMATS.iter().find(|(known, _)| *known == format.text.trim());
        let headers_take = !matches!((part, known), (RecordPart::Header, Some(("simplestring" | "binary", _))));
        let Some((_, default)) = known.filter(|_| headers_take) else {
            self.refuse(&format, format!("records in the format {:?} cannot be written here", format.text.trim()));
            return None;
        };
        let class = class.map_or_else(|| (*default).to_owned(), |class| class.text);
        if class.is_empty() {
            self.refuse(&format, format!("clientprovided needs debezium.format.{name}.class"));
            return None;
        }
        self.converter(part, &class, Some(&format), options)
    }

    /// The connector's converter, or else the worker's. Options count only in the file that names the class.
    fn connect_converter(&mut self, part: RecordPart) -> Option<Converter> {
        let key = format!("{}.converter", part.name());
        let (own, options) = (
            self.configuration.connector.take_filled(&key),
            self.configuration.connector.take_below(&format!("{key}.")),
        );
        let (theirs, defaults) =
            (self.configuration.worker.take_filled(&key), self.configuration.worker.take_below(&format!("{key}.")));
        if let Some(class) = own {
            return self.converter(part, &class.text, Some(&class), options);
        }
        for (_, option) in options.iter() {
            self.warn(
                option,
                format!("Kafka Connect looks at it only together with {key}, which the connector does not name"),
            );
        }
        if let Some(class) = theirs {
            return self.converter(part, &class.text, Some(&class), defaults);
        }
        if part == RecordPart::Header {
            return Some(Converter::Simple);
        }
        let text = if self.configuration.has_worker {
            "neither the connector nor the worker names it, so that the bytes of records cannot be known"
        } else {
            "the connector does not name it, so that the worker's counts: give the worker's properties with another --from-debezium"
        };
        self.refuse_missing(&key, text);
        None
    }

    fn converter(
        &mut self,
        part: RecordPart,
        class: &str,
        named_by: Option<&Given>,
        mut options: Keys,
    ) -> Option<Converter> {
        let class = self.whole_class(class.trim());
        let converter = match class {
            TEXT => self.text(&mut options),
            JSON => Some(Converter::Json(self.json(&mut options))),
            SIMPLE if part == RecordPart::Header => Some(Converter::Simple),
            class if BYTES.contains(&class) => {
                let other = self.delegate(part, &mut options);
                Some(Converter::Bytes { other: other.map(Box::new) })
            }
            _ => {
                let text = format!("what {class} writes cannot be written here");
                match named_by {
                    Some(value) => self.refuse(value, text),
                    None => self.refuse_missing(&format!("debezium.format.{}.class", part.name()), &text),
                }
                None
            }
        };
        for (key, option) in options.iter().filter(|_| converter.is_some()) {
            if ["schemas.cache.size", "converter.type", "plugin.version"].contains(&key) {
                self.not_needed(option, "it changes no record");
            } else {
                self.warn(option, format!("{class} knows no such option"));
            }
        }
        converter
    }

    /// The class with its package. Kafka Connect also takes the class without it. A class of the same name in another package is
    /// another class.
    fn whole_class<'c>(&self, class: &'c str) -> &'c str {
        let fits = |whole: &&&'static str| {
            let last = class_name(whole);
            let short = last.strip_suffix("HeaderConverter").or_else(|| last.strip_suffix("Converter"));
            last == class || short == Some(class)
        };
        let known = [TEXT, JSON, SIMPLE].iter().chain(&BYTES).find(fits).filter(|_| !self.is_server());
        known.copied().unwrap_or(class)
    }

    fn text(&mut self, options: &mut Keys) -> Option<Converter> {
        for key in ["encoding", "converter.encoding"] {
            let encoding = options.take(key);
            let utf8 = |value: &Given| ["utf-8", "utf8"].contains(&value.text.trim().to_ascii_lowercase().as_str());
            if let Some(encoding) = encoding.filter(|value| !utf8(value)) {
                self.refuse(&encoding, "texts are written in UTF-8");
                return None;
            }
        }
        // An option that all three converters share may be beside it.
        options.take("schemas.enable");
        options.take("decimal.format");
        Some(Converter::Text)
    }

    fn json(&mut self, options: &mut Keys) -> Json {
        let schemas = options.take("schemas.enable");
        let schemas = schemas.is_none() || self.is_on(schemas);
        match options.take("replace.null.with.default") {
            Some(value) if says(&value, "false") => {
                self.differs(
                    &value,
                    "a column's default stands in the place of a null here, and with this it does not",
                );
            }
            value => self.not_needed(&value, NO_EFFECT),
        }
        let content = options.take_filled("schema.content");
        self.differs(&content, "records would hold this schema instead of their own: it is not written");
        let words = [("base64", false), ("numeric", true)];
        let decimals = options.take("decimal.format");
        Json { schemas, numeric_decimals: decimals.and_then(|value| self.one_of(&value, &words)).unwrap_or(false) }
    }

    fn delegate(&mut self, part: RecordPart, options: &mut Keys) -> Option<Converter> {
        options.take("schemas.enable");
        let class = options.take_filled("delegate.converter.type");
        let inner = options.take_below("delegate.converter.type.");
        class.and_then(|class| self.converter(part, &class.text, Some(&class), inner))
    }

    /// Checks an expanded payload. It is a Java structure, for which only JSON has a form that walrelay can write.
    fn expanded_value(&mut self) {
        if self.out.connect.expand.is_none() {
            return;
        }
        let text = match &self.out.connect.value {
            Converter::Json(Json { schemas: false, .. }) => return,
            Converter::Json(_) => {
                "an expanded payload's schema is made up from each payload, which is not done here; schemas.enable=false has none"
            }
            Converter::Text | Converter::Simple | Converter::Bytes { .. } => {
                "an expanded payload needs value.converter=JsonConverter: others write Java's Struct{…}"
            }
        };
        self.refuse_missing("table.expand.json.payload", text);
    }

    /// Notes that the names of envelopes may differ: after the migration, another row is the first one.
    fn envelope_names(&mut self) {
        let mut converter = &self.out.connect.value;
        while let Converter::Bytes { other: Some(other) } = converter {
            converter = other;
        }
        let writes_schema = matches!(converter, Converter::Json(Json { schemas: true, .. }));
        let Some(envelope) = self.out.settings.get("envelope").filter(|_| writes_schema) else { return };
        let origin = envelope.origin.clone();
        let text = "an envelope's schema is named after the table and the route of the first row of its version since the start, here as in \
                    Debezium: where there are several, the name in records changes with each start, and so with the switch";
        self.note(Severity::Warning, &origin, text);
    }

    fn server_headers(&mut self) {
        let text = "Debezium adds headers __debezium.context.* to each record; they are left out";
        self.out.notes.push(Note::new(Severity::Warning, "headers".to_owned(), text));
    }
}
