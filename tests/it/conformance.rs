//! The cases of `tests/conformance`, on Postgres 15 and the newest one.
//!
//! `WALRELAY_TEST_CONFORMANCE_POSTGRES` names other majors, `WALRELAY_TEST_CONFORMANCE_ONLY` groups by a part of their names.

use walrelay_dev::conformance::data;
use walrelay_dev::conformance::suite::{self, Options};

use crate::lane::binary;

fn majors() -> Vec<u32> {
    let named = std::env::var("WALRELAY_TEST_CONFORMANCE_POSTGRES").unwrap_or_else(|_| "15,18".to_owned());
    named.split(',').map(|major| major.trim().parse().unwrap()).collect()
}

/// How many cases there were, and how they differ.
#[track_caller]
fn assert_alike(majors: Vec<u32>, only: Option<String>) -> usize {
    let options = Options { binary: binary(), majors, only, write: false };
    let report = suite::run(&options).unwrap();
    assert!(report.failures.is_empty(), "{} differences:\n{}", report.failures.len(), report.failures.join("\n"));
    report.run
}

#[test]
#[ignore = "slow"]
fn every_case_gives_the_records_that_postgres_and_debezium_say() {
    let only = std::env::var("WALRELAY_TEST_CONFORMANCE_ONLY").ok();
    let run = assert_alike(majors(), only.clone());
    assert!(only.is_some() || run > 200, "{run}");
}

#[test]
fn types_and_envelopes_have_the_records_that_postgres_and_debezium_say() {
    for (group, least) in [("types in their text form", 50), ("Debezium: JSON with schemas", 37)] {
        let run = assert_alike(vec![18], Some(group.to_owned()));
        assert!(run >= least, "{group}: {run}");
    }
}

#[test]
fn there_are_more_than_two_hundred_cases_and_each_names_its_oracle() {
    let files = data::load(&data::folder()).unwrap();
    let mut count = 0;
    for (path, file) in &files {
        for group in &file.groups {
            for case in group.cases.iter().filter(|_| !group.is_unwritten()) {
                count += 1;
                // Debezium wrote these; a run that is refused has no records; the others ask Postgres, but for records of
                // two shapes, which one query does not give.
                let by_hand = case.records.iter().any(|record| record.headers.len() != case.records[0].headers.len());
                let known = case.oracle.is_some() || group.is_debezium() || group.exit.is_some() || by_hand;
                assert!(known, "{}: {}: {} has no oracle", path.display(), group.name, case.name);
            }
        }
    }
    assert!(count > 200, "there are {count}");
}
