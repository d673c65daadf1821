//! The versions of each server that the tests can run on.
//!
//! In: `WALRELAY_TEST_POSTGRES`, `_KAFKA`, `_REDIS`, `_NATS`, `_RABBITMQ`, `_SQS` and `_MOTO`. Out: the version that each names, else the usual one.
//! `make versions` runs each version of [`KNOWN`], and CI one old and one new of each kind.
//!
//! Invariant: a name that is not listed is an error that lists the known ones; nothing falls back to the usual version in silence.

use anyhow::{Result, anyhow};

/// The Kafka that is run unless another one is chosen.
pub const KAFKA_VERSION: &str = "4.3.1";

/// A kind of server and its versions.
#[derive(Debug, Clone, Copy)]
pub struct Known {
    /// The name of its destination, as `--to` of the commands here takes it; `postgres` for the source.
    pub kind: &'static str,
    /// The variable that chooses one of the versions.
    pub variable: &'static str,
    /// The version that is run if nobody chooses one.
    pub usual: &'static str,
    /// All that can be brought, from the oldest to the newest. Names of servers that share a protocol have the program in front.
    pub versions: &'static [&'static str],
}

/// Versions that no commit draws, by kind: what they are brought from may change or be gone from one day to the next.
const MOVING: [(&str, &str); 1] = [("postgres", "19")];

/// All kinds. The first and the last version of each are the oldest and the newest that the registries have.
pub const KNOWN: [Known; 7] = [
    Known {
        kind: "postgres",
        variable: "WALRELAY_TEST_POSTGRES",
        usual: "17",
        versions: &["14", "15", "16", "17", "18", "19"],
    },
    Known {
        kind: "kafka",
        variable: "WALRELAY_TEST_KAFKA",
        usual: KAFKA_VERSION,
        versions: &["3.3.2", "3.6.2", "3.9.1", "4.0.2", "4.1.2", "4.3.1", "4.4.0"],
    },
    Known {
        kind: "redis",
        variable: "WALRELAY_TEST_REDIS",
        usual: "valkey-9.1.2",
        versions: &["redis-6.2", "redis-7.0", "redis-8.0", "valkey-8.1", "valkey-9.0.0", "valkey-9.1.2"],
    },
    Known {
        kind: "nats",
        variable: "WALRELAY_TEST_NATS",
        usual: "2.15.2",
        versions: &["2.10.29", "2.11.12", "2.12.4", "2.15.2"],
    },
    Known { kind: "rabbitmq", variable: "WALRELAY_TEST_RABBITMQ", usual: "4.0", versions: &["3.10", "4.0"] },
    Known { kind: "sqs", variable: "WALRELAY_TEST_SQS", usual: "1.7.1", versions: &["1.5.7", "1.6.12", "1.7.1"] },
    // A second server of SQS and SNS, for a smoke test of its own.
    Known { kind: "moto", variable: "WALRELAY_TEST_MOTO", usual: "5.2.5", versions: &["5.2.5"] },
];

/// The version of this kind that is to run: the one that its variable names, else the usual one.
///
/// # Errors
/// The variable names none of the known versions, or there is no such kind.
pub fn chosen(kind: &str) -> Result<&'static str> {
    let known = of(kind)?;
    let named = std::env::var(known.variable).ok().filter(|text| !text.is_empty());
    named.map_or(Ok(known.usual), |named| known.named(&named))
}

/// What is known of a kind.
///
/// # Errors
/// There is no such kind; the message lists those there are.
pub fn of(kind: &str) -> Result<&'static Known> {
    KNOWN.iter().find(|known| known.kind == kind).ok_or_else(|| {
        let kinds: Vec<&str> = KNOWN.iter().map(|known| known.kind).collect();
        anyhow!("no server {kind}: {}", kinds.join(", "))
    })
}

impl Known {
    /// The version of this name.
    ///
    /// # Errors
    /// It is not listed.
    pub fn named(&self, name: &str) -> Result<&'static str> {
        self.versions
            .iter()
            .find(|version| **version == name)
            .copied()
            .ok_or_else(|| anyhow!("{}={name}: only {} can be brought", self.variable, self.versions.join(", ")))
    }

    /// One of the older and one of the newer versions, chosen by `number`; of two, the other one alone. Not the usual one, which every test
    /// runs on.
    pub fn drawn(&self, number: usize) -> Vec<&'static str> {
        let others = self.versions.iter().copied().filter(|version| *version != self.usual);
        let others: Vec<&str> = others.filter(|version| !MOVING.contains(&(self.kind, version))).collect();
        let (old, new) = others.split_at(others.len().div_ceil(2));
        let one = |half: &[&'static str]| half.get(number % half.len().max(1)).copied();
        [one(old), one(new)].into_iter().flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_version_of_each_kind_is_known_and_others_are_refused_with_the_list() {
        for known in KNOWN {
            assert_eq!(known.named(known.usual).unwrap(), known.usual);
            let refused = known.named("0.1").unwrap_err().to_string();
            assert!(refused.contains(known.variable) && refused.contains(known.usual), "{refused}");
        }
    }

    #[test]
    fn every_version_is_drawn_by_some_commit_but_the_usual_one_and_those_that_move() {
        for known in KNOWN {
            let drawn: Vec<&str> = (0..known.versions.len()).flat_map(|number| known.drawn(number)).collect();
            for version in known.versions {
                let is_left_out = *version == known.usual || MOVING.contains(&(known.kind, version));
                assert_eq!(drawn.contains(version), !is_left_out, "{} {version}: {drawn:?}", known.kind);
            }
        }
    }
}
