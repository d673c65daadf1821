//! Configurations drawn from a seed: keys that are mapped with legal values, tables with columns of many types, odd rows.
//!
//! In: a seed and a number. Out: a [`Group`] as the files of `tests/conformance` have them, without records. The same seed and
//! number always give the same. Left out is what no two runs of Debezium write alike, and what `check` says it refuses.

use std::collections::BTreeMap;
use std::ops::Range;

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use walrelay_dev::conformance::data::{Connect, Group};

use super::table::Trait;
use super::types::DATABASE;
use super::{changes, doors, tuning};

/// Partitions of the topic that has several.
pub(super) const PARTITIONS: u32 = 6;

pub(super) const ROUTER: &str = "transforms.outbox.";
pub(super) const EXPAND: &str = "table.expand.json.payload";
const ACCEPT: &str = "--accept-differences";

/// What the names of all topics of a seed begin with.
pub(super) fn prefix_of_all(seed: u64) -> String {
    format!("g{seed}-")
}

/// What the names of a configuration's topics begin with.
pub(super) fn prefix(seed: u64, number: usize) -> String {
    format!("{}{number}.", prefix_of_all(seed))
}

/// The configuration of that number.
pub(super) fn group(seed: u64, number: usize) -> Group {
    let mut draw = Draw::new(seed, number);
    let prefix = prefix(seed, number);
    let table = draw.table();
    let mut config = draw.config(&prefix, &table);
    let mut worker = draw.converters(&table, &mut config);
    doors::add(&mut draw, &mut config, &mut worker);
    let mut partitions = BTreeMap::new();
    if table.has(Trait::Partitioned) {
        partitions.insert(format!("{prefix}order"), PARTITIONS);
    }
    let mut case = draw.case(&prefix, &table);
    tuning::add(&mut draw, &mut config);
    let [id, ..] = table.names();
    let publication = changes::add(&mut draw, id, &mut case);
    let settings = if is_accepted(&config) { vec![ACCEPT.to_owned()] } else { Vec::new() };
    Group {
        name: format!("generated {prefix}"),
        settings,
        connect: Some(Connect { config, worker }),
        database: DATABASE.map(str::to_owned).into(),
        publication,
        partitions,
        cases: vec![case],
        ..Group::default()
    }
}

/// Whether `check` wants a word of consent, although nothing differs.
fn is_accepted(config: &BTreeMap<String, String>) -> bool {
    config.contains_key(&format!("{ROUTER}{EXPAND}"))
}

pub(super) struct Draw {
    random: StdRng,
}

impl Draw {
    /// The same seed and number always draw the same.
    pub(super) fn new(seed: u64, number: usize) -> Self {
        Self { random: StdRng::seed_from_u64(seed ^ (number as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15)) }
    }

    /// Once in so many times.
    pub(super) fn is(&mut self, times: u32) -> bool {
        self.random.random_ratio(1, times)
    }

    pub(super) fn number(&mut self, range: Range<usize>) -> usize {
        self.random.random_range(range)
    }

    pub(super) fn one<'a>(&mut self, of: &[&'a str]) -> &'a str {
        let at = self.number(0..of.len().max(1));
        of.get(at).copied().unwrap_or_default()
    }
}

pub(super) fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}
