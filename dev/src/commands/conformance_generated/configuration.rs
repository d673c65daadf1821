//! Configurations drawn from a seed: keys that are mapped with legal values, tables with columns of many types, odd rows.
//!
//! In: a seed and a number. Out: a [`Group`] as the files of `tests/conformance` have them, without records. The same seed and
//! number always give the same. Left out is what no two runs of Debezium write alike, and what `check` says it refuses.

use std::collections::BTreeMap;

use walrelay_dev::conformance::data::{Connect, Group};

use super::connector::{EXPAND, ROUTER};
use super::draw::Draw;
use super::table::{PARTITIONS, Trait};
use super::types::DATABASE;
use super::{changes, doors, tuning};

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
