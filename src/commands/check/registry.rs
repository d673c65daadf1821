//! Whether the registry of schemas answers, and knows the subjects of the topics that are known.
//!
//! In: the settings of a run, topics of the latest rows. Out: findings, which stand with the destination's. Asks the registry, changes nothing.

use crate::check_finding::{Finding, Side};
use crate::commands::run;
use crate::sink::registry::Registry;
use crate::sink::{Failure, FailureClass};

/// The stable name of the finding.
const CHECK: &str = "schema_registry";

/// Subjects beyond this are not asked for.
const MOST: usize = 20;

/// Asks for the subjects of `topics`; where these are not known, or subjects have the type in them, for one that need not be there.
pub(super) fn findings<'a>(config: &run::RunRequest, topics: impl Iterator<Item = &'a str>) -> Vec<Finding> {
    let Some(registry) = &config.registry else { return Vec::new() };
    let side = Side::Destination(config.destination.kind().name);
    let subjects: Vec<String> = topics.filter_map(|topic| registry.subject(topic)).take(MOST).collect();
    if subjects.is_empty() {
        return vec![any(side, registry)];
    }
    let judge = |subject: &String| match registry.number(subject) {
        Ok(id) => side.ok(CHECK, format!("the latest schema of subject {subject} has id {id}")),
        Err(failure) => refused(side, &failure),
    };
    subjects.iter().map(judge).collect()
}

fn any(side: Side, registry: &Registry) -> Finding {
    match registry.number("walrelay-check") {
        Err(failure) if failure.class != FailureClass::Topic => refused(side, &failure),
        Ok(_) | Err(_) => side.ok(CHECK, "the registry answers; no subject is known yet"),
    }
}

fn refused(side: Side, failure: &Failure) -> Finding {
    let finding = side.fail(CHECK, failure.text.clone());
    if failure.class == FailureClass::Topic {
        return finding
            .why("rows of this subject wait, and those after them")
            .words("register its schema, or name another subject with --schema-subject");
    }
    finding.why("rows wait until it answers").words("--schema-registry with its address; --schema-registry-user, --schema-registry-password @FILE, --schema-registry-ca FILE")
}
