//! What was found, and how it is shown.
//!
//! In: findings. Out: text for people, or JSON with stable keys. Pure. A mend stands on a line of its own, so that it can be
//! copied.

use serde::Serialize;

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// As it should be; what stands beside it is advice.
    Ok,
    /// It runs, and something bites later.
    Warn,
    /// `run` would not work, or not for all rows.
    Fail,
}

/// What a finding is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// The server, the publication, the slot.
    Postgres,
    /// One of the outbox tables.
    Table,
    /// The brokers, the topics.
    Kafka,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What it is about.
    pub side: Side,
    /// The table, as `schema.table`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub table: Option<String>,
    /// A stable name.
    pub check: &'static str,
    /// How bad it is.
    pub level: Level,
    /// What was found.
    pub finding: String,
    /// Why it matters.
    pub why: Option<String>,
    /// The SQL or the command that mends it.
    pub mend: Option<String>,
}

impl Finding {
    fn new(side: Side, check: &'static str, level: Level, finding: impl Into<String>) -> Self {
        Self { side, table: None, check, level, finding: finding.into(), why: None, mend: None }
    }

    pub(super) fn ok(side: Side, check: &'static str, finding: impl Into<String>) -> Self {
        Self::new(side, check, Level::Ok, finding)
    }

    pub(super) fn warn(side: Side, check: &'static str, finding: impl Into<String>) -> Self {
        Self::new(side, check, Level::Warn, finding)
    }

    pub(super) fn fail(side: Side, check: &'static str, finding: impl Into<String>) -> Self {
        Self::new(side, check, Level::Fail, finding)
    }

    pub(super) fn why(mut self, why: impl Into<String>) -> Self {
        self.why = Some(why.into());
        self
    }

    pub(super) fn mend(mut self, mend: impl Into<String>) -> Self {
        self.mend = Some(mend.into());
        self
    }

    pub(super) fn of(mut self, table: &str) -> Self {
        self.table = Some(table.to_owned());
        self
    }
}

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
#[derive(Debug, Clone, Default, Serialize)]
pub struct Report {
    /// Where Postgres was looked for.
    pub postgres: String,
    /// Where Kafka was looked for.
    pub kafka: String,
    /// What was found.
    pub findings: Vec<Finding>,
    /// The outbox tables.
    pub tables: Vec<TableReport>,
}

impl Report {
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
        #[derive(Serialize)]
        struct Json<'a> {
            verdict: Level,
            #[serde(flatten)]
            report: &'a Report,
        }
        // Strings and lists: there is nothing in it that JSON cannot say.
        serde_json::to_string_pretty(&Json { verdict: self.verdict(), report: self }).unwrap_or_default()
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
        text.extend([format!("\nKafka at {}\n", self.kafka)]);
        self.section(Side::Kafka, None, &mut text);
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
            text.extend([format!("  {level:<6}{:<16}{}\n", finding.check, finding.finding)]);
            for (name, more) in [("why", &finding.why), ("mend", &finding.mend)] {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let bad = Finding::fail(Side::Postgres, "wal_level", "it is replica").why("no rows").mend("ALTER SYSTEM …;");
        let fine = Finding::ok(Side::Table, "columns", "all there").of("public.outbox");
        let roles = vec![("id".to_owned(), "event_id".to_owned())];
        let sample_topic = Some("outbox.event.order".to_owned());
        let table = TableReport { table: "public.outbox".to_owned(), roles, sample_topic };
        let (postgres, kafka) = ("h:5432".to_owned(), "k:9092".to_owned());
        Report { postgres, kafka, findings: vec![bad, fine], tables: vec![table] }
    }

    #[test]
    fn each_finding_stands_in_its_section_with_its_mend_on_a_line_of_its_own() {
        assert_eq!(
            report().text(),
            "Postgres at h:5432\n\
             \x20 fail  wal_level       it is replica\n\
             \x20       why             no rows\n\
             \x20       mend            ALTER SYSTEM …;\n\
             \nTable public.outbox\n\
             \x20 id                    event_id\n\
             \x20 sample topic          outbox.event.order\n\
             \x20 ok    columns         all there\n\
             \nKafka at k:9092\n\
             \n1 fail, 0 warn, 1 ok\n"
        );
    }

    #[test]
    fn the_verdict_is_the_worst_level_and_the_keys_are_stable() {
        let json: serde_json::Value = serde_json::from_str(&report().json()).unwrap();
        assert_eq!(json["verdict"], "fail");
        assert_eq!(json["findings"][0]["mend"], "ALTER SYSTEM …;");
        assert_eq!(json["tables"][0]["roles"][0], serde_json::json!(["id", "event_id"]));
        assert_eq!(Report::default().verdict(), Level::Ok);
    }
}
