//! The files of `tests/conformance`: what they may hold, reading and writing.
//!
//! Specification: the README in that folder. An unknown key is an error.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};

use super::{Bytes, printer};

/// One file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    /// What all its cases are about.
    pub about: String,
    /// In their order.
    pub groups: Vec<Group>,
}

/// Cases that share a database, a slot and one run of the tool.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// Unique among all files.
    pub name: String,
    /// Flags of `walrelay run`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub settings: Vec<String>,
    /// Lines of Debezium Server's `application.properties`, without the addresses; the tool runs by them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub debezium: Vec<String>,
    /// Environment variables of Debezium Server and of the tool.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub variables: BTreeMap<String, String>,
    /// Further files in Debezium Server's working directory, by their paths there: `.env`, `config/application-prod.properties`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub files: BTreeMap<String, String>,
    /// A Kafka Connect connector's `config` and its worker's properties, without the addresses; the tool runs by them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connect: Option<Connect>,
    /// SQL on the group's database before anything else; `{database}` is its name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub database: Vec<String>,
    /// The role that the tool logs in as; nothing: the superuser.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub login: Option<String>,
    /// The text behind `CREATE PUBLICATION name`; nothing: inserts of all tables that are there. `{tables}` stands for these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub publication: Option<String>,
    /// SQL that makes the slot `{slot}`; nothing: a slot of pgoutput.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<String>,
    /// Partitions of topics; others have one.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub partitions: BTreeMap<String, u32>,
    /// An extension. The group is skipped if the server does not have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extension: Option<String>,
    /// The oldest major version of Postgres that the group runs on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<u32>,
    /// How the run ends by itself; nothing: it goes on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<Exit>,
    /// What differs from Debezium on purpose: the reason, and the records as the tool writes them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub differs: Option<String>,
    /// In their order; each has a schema of its own, `c1`, `c2`…
    pub cases: Vec<Case>,
}

/// A connector of Kafka Connect.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Connect {
    /// The JSON's members.
    pub config: BTreeMap<String, String>,
    /// The worker's lines.
    pub worker: Vec<String>,
}

/// How a run ends by itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exit {
    /// 2 or 64.
    pub code: i32,
    /// Texts that its last words contain.
    pub words: Vec<String>,
}

/// A table, the statements on it, and the records that come of them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// A sentence, unique in its group.
    pub name: String,
    /// SQL before publication and slot.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub table: Vec<String>,
    /// SQL while the tool runs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub statements: Vec<Statement>,
    /// A query that gives the records from the tables, one row each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oracle: Option<String>,
    /// In the order of each topic; none when there is a sum of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub records: Vec<Record>,
    /// The sum of the records, if they are too many for a file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sum: Option<Sum>,
    /// Why the records differ from Debezium's; nothing: they do not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub differs: Option<String>,
    /// Debezium's records, where they differ on purpose.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub debezium: Vec<Record>,
}

/// SQL, on the case's own session or on another one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Statement {
    /// On the case's own session.
    Own(String),
    /// On the session of that name.
    Other {
        /// Its name.
        session: String,
        /// What runs there.
        sql: String,
    },
    /// Waits until the tool and Debezium have each written this many of the group's records.
    Await {
        /// Their number.
        records: usize,
    },
}

/// The sum of many records.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sum {
    /// Their number.
    pub count: usize,
    /// Over a line for each record, in the oracle's order: its topic, key and value in hex, with blanks between; null is `-`.
    pub md5: String,
}

/// A record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// Its topic.
    pub topic: String,
    /// Its partition, where it matters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<i32>,
    /// Milliseconds since the epoch; nothing: its transaction's commit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<i64>,
    /// `None`: null.
    pub key: Option<Bytes>,
    /// `None`: null.
    pub value: Option<Bytes>,
    /// In their order; `None`: null.
    pub headers: Vec<(String, Option<Bytes>)>,
}

impl Group {
    /// Whether Debezium can run it as well.
    pub fn is_debezium(&self) -> bool {
        !self.debezium.is_empty() || self.connect.is_some()
    }

    /// Whether its records are still to be taken down from Debezium (`conformance-debezium --write`).
    pub fn is_unwritten(&self) -> bool {
        self.is_debezium() && self.exit.is_none() && self.cases.iter().all(|case| case.records.is_empty())
    }

    /// Environment variables.
    pub fn variables(&self) -> Vec<(&String, &String)> {
        self.variables.iter().collect()
    }

    /// The topics of all its records, with the partitions of each.
    pub fn topics(&self) -> BTreeMap<&str, u32> {
        let records = self.cases.iter().flat_map(|case| case.records.iter().chain(&case.debezium));
        let named = records.map(|record| (record.topic.as_str(), 1));
        named.chain(self.partitions.iter().map(|(topic, count)| (topic.as_str(), *count))).collect()
    }
}

/// The folder of the files.
pub fn folder() -> PathBuf {
    crate::repository().join("tests/conformance")
}

/// Reads every file of a folder, by name.
///
/// # Errors
/// A file cannot be read or understood, or what is to be unique is not.
pub fn load(folder: &Path) -> Result<Vec<(PathBuf, File)>> {
    let entries = fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut paths: Vec<PathBuf> = entries.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    paths.sort();
    let files = paths.into_iter().map(|path| {
        let text = fs::read_to_string(&path)?;
        let file: File = serde_json::from_str(&text).with_context(|| format!("cannot read {}", path.display()))?;
        Ok((path, file))
    });
    let files = files.collect::<Result<Vec<_>>>()?;
    unique(files.iter().flat_map(|(_, file)| &file.groups))?;
    Ok(files)
}

/// Groups run side by side on one Kafka: each has topics of its own.
fn unique<'a>(groups: impl Iterator<Item = &'a Group>) -> Result<()> {
    let (mut names, mut topics) = (BTreeSet::new(), BTreeMap::new());
    for group in groups {
        if !names.insert(group.name.as_str()) {
            bail!("two groups are called {:?}", group.name);
        }
        let mut cases = BTreeSet::new();
        if let Some(case) = group.cases.iter().find(|case| !cases.insert(case.name.as_str())) {
            bail!("two cases of group {:?} are called {:?}", group.name, case.name);
        }
        for topic in group.topics().into_keys() {
            if let Some(other) = topics.insert(topic.to_owned(), &group.name) {
                bail!("groups {other:?} and {:?} both write to topic {topic}", group.name);
            }
        }
    }
    Ok(())
}

/// Writes a file as it is read.
///
/// # Errors
/// It cannot be written.
pub fn save(path: &Path, file: &File) -> Result<()> {
    let text = printer::print(&serde_json::to_value(file)?);
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}
