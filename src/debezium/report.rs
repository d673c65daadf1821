//! Writes a translation for people.
//!
//! In: a [`Translation`] and the files that it was read from. Out: a text without secrets. It has the settings as flags and as TOML,
//! and each key that was not carried over, with its effect.

use std::fmt::Write as _;
use std::path::PathBuf;

use super::{Platform, Setting, Severity, Translation};
use crate::outbox::connect::{Connect, Converter};
use crate::setting_text::shell_quoted;

impl Translation {
    /// The whole report. `accept`: `--accept-differences` is set.
    pub fn report(&self, files: &[PathBuf], accept: bool) -> String {
        let platform = match self.platform {
            Platform::Server => "Debezium Server",
            Platform::Connect => "Kafka Connect",
        };
        let names = files.iter().map(|file| file.display().to_string()).collect::<Vec<_>>();
        let mut out = format!("{platform}: {}\n", names.join(", "));
        out.push_str("\nAs flags:\n\n");
        out.push_str(&self.flags(&names));
        out.push_str("\nAs TOML:\n\n");
        out.push_str(&self.toml(&names));
        out.push_str("\nOnly --from-debezium itself brings:\n\n");
        out.push_str(&self.without_flags());
        out.push_str(&self.notes_text(accept));
        out
    }

    fn flags(&self, files: &[String]) -> String {
        let mut lines = vec!["walrelay run".to_owned()];
        lines.extend(files.iter().map(|file| format!("  --from-debezium {}", shell_quoted(file))));
        for (name, setting) in &self.settings {
            lines.extend(shown(setting).iter().map(|value| flag(name, value)));
        }
        for (name, setting) in &self.properties {
            let value = shown(setting).first().map_or("@FILE", |value| value);
            lines.push(format!("  -X {}", shell_quoted(&format!("{name}={value}"))));
        }
        format!("  {}\n", lines.join(" \\\n  "))
    }

    fn toml(&self, files: &[String]) -> String {
        let list = |values: &[String]| {
            let quoted = values.iter().map(|value| for_toml(value)).collect::<Vec<_>>().join(", ");
            format!("[{quoted}]")
        };
        let mut lines = vec![(format!("from-debezium = {}", list(files)), String::new())];
        for (name, setting) in &self.settings {
            let values = shown(setting);
            let text = match values {
                [one] if !setting.is_list => for_toml(one),
                several => list(several),
            };
            lines.push((format!("{name} = {text}"), setting.origin.to_string()));
        }
        if !self.properties.is_empty() {
            lines.extend([(String::new(), String::new()), ("[kafka]".to_owned(), String::new())]);
        }
        for (name, setting) in &self.properties {
            let line = match shown(setting).first() {
                Some(value) => format!("\"{name}\" = {}", for_toml(value)),
                None => format!("# \"{name}\" = …, not shown"),
            };
            lines.push((line, setting.origin.to_string()));
        }
        aligned(&lines)
    }

    fn without_flags(&self) -> String {
        let Connect { key, value, header, .. } = &self.connect;
        let mut lines = vec![
            ("version".to_owned(), "3.6.3: of a few columns, Debezium 3.7 writes something else".to_owned()),
            ("keys".to_owned(), described(key)),
            ("values".to_owned(), described(value)),
            ("headers".to_owned(), described(header)),
            ("zone".to_owned(), "UTC, in which times in arrays are read: Debezium takes its Java's".to_owned()),
        ];
        if !self.tables.is_empty() {
            lines.push(("tables".to_owned(), self.tables.to_string()));
        }
        lines.iter().fold(String::new(), |mut out, (what, text)| {
            let _infallible = writeln!(out, "  {what:<8} {text}");
            out
        })
    }

    fn notes_text(&self, accept: bool) -> String {
        let titles = [
            (Severity::Refused, "ERRORS: it cannot run so"),
            (
                Severity::Differs,
                if accept {
                    "Accepted: records differ"
                } else {
                    "ERRORS: records would differ (--accept-differences runs all the same)"
                },
            ),
            (Severity::Warning, "Warnings: to be known, but nothing that stops it"),
            (Severity::NotNeeded, "Ignored: nothing is lost"),
        ];
        let mut out = String::new();
        for (severity, title) in titles {
            let notes = self.notes.iter().filter(|note| note.severity == severity).collect::<Vec<_>>();
            if notes.is_empty() {
                continue;
            }
            let _infallible = writeln!(out, "\n{title}:\n");
            for note in notes {
                let _infallible = writeln!(out, "  {note}");
            }
        }
        out
    }
}

/// A flag and its value. A value that begins with a hyphen needs an equals sign before it.
fn flag(name: &str, value: &str) -> String {
    let between = if value.starts_with('-') { '=' } else { ' ' };
    format!("  --{name}{between}{}", shell_quoted(value))
}

fn shown(setting: &Setting) -> &[String] {
    setting.shown.as_deref().unwrap_or_default()
}

/// Aligns lines: each has its text, and in a common column a `#` and its origin.
fn aligned(lines: &[(String, String)]) -> String {
    const WIDEST: usize = 60;
    let width = lines.iter().map(|(line, _)| line.chars().count()).filter(|width| *width <= WIDEST).max().unwrap_or(0);
    lines.iter().fold(String::new(), |mut out, (line, origin)| {
        let _infallible = match origin.as_str() {
            "" => writeln!(out, "  {line}"),
            origin => writeln!(out, "  {line:<width$}  # {origin}"),
        };
        out
    })
}

fn for_toml(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

fn described(converter: &Converter) -> String {
    match converter {
        Converter::Text => "as Java's texts (StringConverter)".to_owned(),
        Converter::Simple => "as texts (SimpleHeaderConverter)".to_owned(),
        Converter::Json(json) if json.schemas => "as JSON with schemas (JsonConverter)".to_owned(),
        Converter::Json(_) => "as JSON (JsonConverter)".to_owned(),
        Converter::Bytes { other: None } => "as bytes, of bytea alone".to_owned(),
        Converter::Bytes { other: Some(other) } => format!("as bytes, what is no bytea {}", described(other)),
    }
}
