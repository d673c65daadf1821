//! What is left to read after runs before.

use super::*;
use crate::commands::backfill::parts::{KeyColumn, Paging};
use crate::lsn::Lsn;
use crate::pgoutput::Relation;
use std::collections::BTreeMap;

fn part(table: usize, name: &str) -> Part {
    let relation = Relation {
        id: 1,
        namespace: "public".to_owned(),
        name: name.to_owned(),
        replica_identity: b'd',
        columns: Vec::new(),
    };
    let id = KeyColumn { name: "id".to_owned(), type_name: "bigint".to_owned(), not_null: true };
    Part {
        table,
        relation,
        oid: 1,
        name: TableName::parse(name).unwrap(),
        partitioned: false,
        filter: None,
        paging: Paging::Keys(vec![id]),
        begin: Start::First,
        until: None,
    }
}

fn table(part: &str, done: bool) -> TableProgress {
    TableProgress {
        rows: 5,
        part: Some(("public".to_owned(), part.to_owned())),
        key: vec![Some("5".to_owned())],
        done,
        ..TableProgress::default()
    }
}

struct Case<'a> {
    found: TableProgress,
    condition: Option<&'a str>,
    again: bool,
    /// The token that the progress has.
    before: &'a str,
    token: &'a str,
}

/// The parts that are left of `a_1`, `a_2`, `a_3`, each with where it begins.
fn left(case: Case<'_>) -> Result<Vec<(String, Start)>, CommandError> {
    let asked = AskedRows { condition: case.condition, order: None, again: case.again };
    let before = BackfillProgress {
        token: case.before.to_owned(),
        rows: 9,
        tables: [("public.a".to_owned(), case.found)].into_iter().collect(),
    };
    let parts = ["a_1", "a_2", "a_3"].map(|name| part(0, name)).to_vec();
    let tables = [TableName::parse("public.a").unwrap()];
    let (_, left) = resume(&asked, Some(before), case.token, &tables, parts)?;
    Ok(left.into_iter().map(|part| (part.name.name, part.begin)).collect())
}

fn names(found: &[(String, Start)]) -> Vec<&str> {
    found.iter().map(|(name, _)| name.as_str()).collect()
}

const CASE: Case<'_> = Case {
    found: TableProgress {
        condition: None,
        order: None,
        rows: 0,
        part: None,
        key: Vec::new(),
        done: false,
        at: Lsn::ZERO,
        until: BTreeMap::new(),
        leaves: BTreeMap::new(),
    },
    condition: None,
    again: false,
    before: "1:1:",
    token: "1:1:",
};

#[test]
fn it_resumes_behind_the_last_row_in_the_part_where_that_stands() {
    let found = left(Case { found: table("a_2", false), ..CASE }).unwrap();
    assert_eq!(names(&found), ["a_2", "a_3"]);
    assert_eq!(found[0].1, Start::After(vec![Some("5".to_owned())].into()));
    assert_eq!(found[1].1, Start::First);
}

#[test]
fn a_partition_that_was_dropped_since_is_passed_over() {
    let found = left(Case { found: table("a_15", false), ..CASE }).unwrap();
    assert_eq!(names(&found), ["a_2", "a_3"]);
    assert!(found.iter().all(|(_, begin)| *begin == Start::First));
}

#[test]
fn what_is_done_is_not_read_unless_again_or_for_another_slot() {
    assert_eq!(left(Case { found: table("a_3", true), ..CASE }).unwrap(), []);
    assert_eq!(left(Case { found: table("a_3", true), again: true, ..CASE }).unwrap().len(), 3);
    assert_eq!(left(Case { found: table("a_3", true), token: "2:2:", ..CASE }).unwrap().len(), 3);
}

#[test]
fn without_a_token_nothing_is_done_and_what_is_not_done_goes_on() {
    let case = Case { before: "", token: "", ..CASE };
    assert_eq!(left(Case { found: table("a_3", true), ..case }).unwrap().len(), 3);
    let case = Case { before: "", token: "", ..CASE };
    assert_eq!(names(&left(Case { found: table("a_2", false), ..case }).unwrap()), ["a_2", "a_3"]);
}

#[test]
fn other_rows_of_the_table_are_no_continuation() {
    let other = left(Case { found: table("a_2", false), condition: Some("x"), ..CASE });
    let error = other.unwrap_err().to_string();
    assert!(error.contains("without --where and --order-by has published 5 of its rows"), "{error}");
    assert!(left(Case { found: table("a_2", false), condition: Some("x"), again: true, ..CASE }).is_ok());
}
