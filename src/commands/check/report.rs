//! The findings, and their forms.
//!
//! In: findings. Out: text for people, or JSON with stable keys. Pure. A fix stands on a line of its own, so that it can be
//! copied.

use crate::check_finding::{Finding, Level, Side};
use serde::Serialize;
use serde_json::{Map, Value};

/// A table that was looked at: what plays which role, and where its rows go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TableReport {
    /// `schema.table`.
    pub table: String,
    /// Role and column, in the order of the README's table; empty when the table cannot be read as an outbox.
    pub roles: Vec<(String, String)>,
    /// The topic of its latest row, or of a row that is made up.
    pub sample_topic: Option<String>,
}

/// All of it.
#[derive(Debug, Clone, Default)]
pub struct CheckReport {
    /// Where Postgres was looked for.
    pub postgres: String,
    /// The destination's kind by its name, which is the address's key in JSON, and by its title.
    pub kind: (&'static str, &'static str),
    /// Where the destination was looked for.
    pub destination: String,
    /// The findings of a check.
    pub findings: Vec<Finding>,
    /// The outbox tables.
    pub tables: Vec<TableReport>,
}

impl CheckReport {
    /// How many findings are of this level.
    pub fn count(&self, level: Level) -> usize {
        self.findings.iter().filter(|finding| finding.level == level).count()
    }

    /// The worst level.
    pub fn verdict(&self) -> Level {
        self.findings.iter().map(|finding| finding.level).max().unwrap_or(Level::Ok)
    }

    /// For programs.
    pub fn json(&self) -> String {
        let members = [
            ("verdict", json(&self.verdict())),
            ("postgres", self.postgres.as_str().into()),
            (self.kind.0, self.destination.as_str().into()),
            ("findings", json(&self.findings)),
            ("tables", json(&self.tables)),
        ];
        let report: Map<String, Value> = members.map(|(key, value)| (key.to_owned(), value)).into_iter().collect();
        serde_json::to_string_pretty(&report).unwrap_or_default()
    }

    /// For people.
    pub fn text(&self) -> String {
        let mut text = format!("Postgres at {}\n", self.postgres);
        self.section(Side::Postgres, None, &mut text);
        for table in &self.tables {
            text.extend(["\nTable ", &table.table, "\n"]);
            for (role, column) in &table.roles {
                text.extend([format!("  {role:<22}{column}\n")]);
            }
            if let Some(topic) = &table.sample_topic {
                text.extend([format!("  {:<22}{topic}\n", "sample topic")]);
            }
            self.section(Side::Table, Some(&table.table), &mut text);
        }
        text.extend([format!("\n{} at {}\n", capitalised(self.kind.1), self.destination)]);
        self.section(Side::Destination(self.kind.0), None, &mut text);
        text.extend([format!("\n{}\n", self.summary())]);
        text
    }

    fn section(&self, side: Side, table: Option<&str>, text: &mut String) {
        let of = |finding: &&Finding| finding.side == side && finding.table.as_deref() == table;
        for finding in self.findings.iter().filter(of) {
            let level = match finding.level {
                Level::Ok => "ok",
                Level::Warn => "warn",
                Level::Fail => "fail",
            };
            text.extend([format!("  {level:<6}{:<15} {}\n", finding.check, finding.finding)]);
            let fix = finding.fix.as_ref().map(ToString::to_string);
            for (name, more) in [("why", &finding.why), ("fix", &fix)] {
                if let Some(more) = more {
                    text.extend([format!("        {name:<16}{more}\n")]);
                }
            }
        }
    }

    /// `2 fail, 1 warn, 20 ok`.
    pub fn summary(&self) -> String {
        let count = |level| self.count(level);
        format!("{} fail, {} warn, {} ok", count(Level::Fail), count(Level::Warn), count(Level::Ok))
    }
}

/// Strings and lists: there is nothing in it that JSON cannot say.
fn json(value: &impl Serialize) -> Value {
    serde_json::to_value(value).unwrap_or_default()
}

fn capitalised(title: &str) -> String {
    let mut rest = title.chars();
    rest.next().map(|first| first.to_uppercase().chain(rest).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> CheckReport {
        let bad = Side::Postgres.fail("wal_level", "it is replica").why("no rows").bounded("ALTER SYSTEM …;");
        let fine = Side::Table.ok("columns", "all there").of("public.outbox");
        let roles = vec![("id".to_owned(), "event_id".to_owned())];
        let sample_topic = Some("outbox.event.order".to_owned());
        let table = TableReport { table: "public.outbox".to_owned(), roles, sample_topic };
        let (postgres, destination) = ("h:5432".to_owned(), "k:9092".to_owned());
        let kind = ("kafka", "Kafka");
        CheckReport { postgres, kind, destination, findings: vec![bad, fine], tables: vec![table] }
    }

    #[test]
    fn each_finding_stands_in_its_section_with_its_fix_on_a_line_of_its_own() {
        assert_eq!(
            report().text(),
            "Postgres at h:5432\n\
             \x20 fail  wal_level       it is replica\n\
             \x20       why             no rows\n\
             \x20       fix             ALTER SYSTEM …;\n\
             \nTable public.outbox\n\
             \x20 id                    event_id\n\
             \x20 sample topic          outbox.event.order\n\
             \x20 ok    columns         all there\n\
             \nKafka at k:9092\n\
             \n1 fail, 0 warn, 1 ok\n"
        );
    }

    #[test]
    fn a_long_name_stands_apart_from_what_was_found() {
        let findings = vec![Side::Postgres.ok("transactional_id", "allowed")];
        let text = CheckReport { findings, ..CheckReport::default() }.text();
        assert!(text.contains("ok    transactional_id allowed\n"), "{text}");
    }

    #[test]
    fn the_verdict_is_the_worst_level_and_the_keys_are_stable() {
        let json: serde_json::Value = serde_json::from_str(&report().json()).unwrap();
        let keys: Vec<&String> = json.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["verdict", "postgres", "kafka", "findings", "tables"]);
        assert_eq!((&json["verdict"], &json["kafka"]), (&"fail".into(), &"k:9092".into()));
        assert_eq!(json["findings"][0]["fix"], "ALTER SYSTEM …;");
        assert_eq!(json["tables"][0]["roles"][0], serde_json::json!(["id", "event_id"]));
        assert_eq!(CheckReport::default().verdict(), Level::Ok);
    }
}
