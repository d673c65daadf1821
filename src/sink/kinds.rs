//! The kinds of destinations that this build has.
//!
//! A new kind is a folder beside this file, a feature in `Cargo.toml`, and a line here.

use super::destination::Kind;
use super::stdout;

/// All kinds. If the settings name none, records go to the first, provided that it is Kafka.
pub const KINDS: &[&Kind] = &[
    #[cfg(feature = "kafka")]
    &super::kafka::KIND,
    #[cfg(feature = "nats")]
    &super::nats::KIND,
    #[cfg(feature = "rabbitmq")]
    &super::rabbitmq::KIND,
    #[cfg(feature = "redis")]
    &super::redis::KIND,
    #[cfg(feature = "aws")]
    &super::sqs::KIND,
    #[cfg(feature = "aws")]
    &super::sqs::TOPICS_KIND,
    &stdout::KIND,
];

/// Directives for the log: walrelay reports the errors of destinations' libraries itself, and `async_nats::connection` and `ureq_proto::util` log
/// passwords.
pub const SILENT: &str = "async_nats=off,async_nats::connection=off,lapin=off,ureq_proto::util=off";

/// The kind with this scheme.
pub fn of_scheme(scheme: &str) -> Option<&'static Kind> {
    KINDS.iter().copied().find(|kind| kind.schemes.contains(&scheme))
}

/// An example of each failure of a kind that has a remedy.
#[cfg(test)]
type Remedied = fn() -> Vec<super::Failure>;

/// For each kind by its title, its failures that have a remedy.
#[cfg(test)]
pub(crate) const REMEDIED: &[(&str, Remedied)] = &[
    #[cfg(feature = "kafka")]
    (super::kafka::KIND.title, super::kafka::remedied),
    #[cfg(feature = "nats")]
    (super::nats::KIND.title, super::nats::remedied),
    #[cfg(feature = "rabbitmq")]
    (super::rabbitmq::KIND.title, super::rabbitmq::remedied),
    #[cfg(feature = "redis")]
    (super::redis::KIND.title, super::redis::remedied),
    #[cfg(feature = "aws")]
    (super::sqs::KIND.title, super::sqs::remedied),
    #[cfg(feature = "aws")]
    (super::sqs::TOPICS_KIND.title, super::sqs::remedied_of_topics),
];

/// The schemes that `--to` may have.
pub fn schemes() -> impl Iterator<Item = &'static str> {
    KINDS.iter().flat_map(|kind| kind.schemes.iter().copied())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_and_schemes_are_distinct_and_written_small() {
        let mut seen = BTreeSet::new();
        for scheme in schemes() {
            assert!(seen.insert(scheme), "{scheme} twice");
        }
        let names: BTreeSet<&str> = KINDS.iter().map(|kind| kind.name).collect();
        assert_eq!(names.len(), KINDS.len());
        assert!(names.iter().all(|name| name.bytes().all(|byte| byte.is_ascii_lowercase())));
    }
}
