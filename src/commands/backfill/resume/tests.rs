//! What is left to read after runs before.

use super::*;
use crate::commands::backfill::parts::{Key, KeyColumn, Paging};
use crate::lsn::Lsn;
use crate::pg::backfill_progress::PartProgress;
use crate::pgoutput::Relation;
use std::collections::BTreeMap;

fn part(table: usize, oid: u32, name: &str) -> Part {
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
        oid,
        name: TableName::parse(name).unwrap(),
        partitioned: false,
        filter: None,
        paging: Paging::Keys(vec![id]),
        begin: Start::First,
        until: None,
    }
}

fn part_progress(done: bool, last: Option<&str>) -> PartProgress {
    let key = |text: &str| vec![Some(text.to_owned())];
    PartProgress { columns: vec!["id bigint".to_owned()], last: last.map(key), until: Some(key("9")), done }
}

/// All rows of the first of the partitions 1, 2 and 3 are handled, and five of the second.
fn table(done: bool) -> TableProgress {
    let parts =
        [(1, part_progress(true, Some("9"))), (2, part_progress(done, Some("5"))), (3, part_progress(done, None))];
    TableProgress { rows: 5, done, at: Lsn::new(1000), parts: parts.into(), ..TableProgress::default() }
}

struct Case<'a> {
    found: TableProgress,
    condition: Option<&'a str>,
    again: bool,
    /// The token that the progress has.
    before: &'a str,
    token: &'a str,
    /// That of the slot.
    restart_lsn: u64,
}

/// The parts that are left of `parts`, each with where it begins and up to where it is read.
fn left_of(case: Case<'_>, parts: Vec<Part>) -> Result<Vec<Part>, CommandError> {
    let asked = AskedRows { condition: case.condition, order: None, again: case.again };
    let before = BackfillProgress {
        token: case.before.to_owned(),
        rows: 9,
        tables: [("public.a".to_owned(), case.found)].into_iter().collect(),
    };
    let before = of_slot(&before, case.token, Lsn::new(case.restart_lsn));
    let tables = [TableName::parse("public.a").unwrap()];
    let (progress, left) = resume(&asked, before, case.token, &tables, parts)?;
    assert_eq!((progress.token.as_str(), progress.tables["public.a"].done), (case.token, left.is_empty()));
    Ok(left)
}

/// As [`left_of`] the partitions `a_1`, `a_2` and `a_3`: their oids.
fn left(case: Case<'_>) -> Result<Vec<u32>, CommandError> {
    let parts = vec![part(0, 1, "a_1"), part(0, 2, "a_2"), part(0, 3, "a_3")];
    Ok(left_of(case, parts)?.into_iter().map(|part| part.oid).collect())
}

const CASE: Case<'_> = Case {
    found: TableProgress {
        condition: None,
        order: None,
        rows: 0,
        done: false,
        at: Lsn::ZERO,
        parts: BTreeMap::new(),
        leaves: BTreeMap::new(),
    },
    condition: None,
    again: false,
    before: "1:1:",
    token: "1:1:",
    restart_lsn: 2000,
};

#[test]
fn it_resumes_behind_the_last_row_in_the_part_where_that_stands() {
    let parts = vec![part(0, 1, "a_1"), part(0, 2, "a_2"), part(0, 3, "a_3"), part(0, 4, "a_4")];
    let found = left_of(Case { found: table(false), ..CASE }, parts).unwrap();
    let key = |text: &str| -> Key { vec![Some(text.to_owned())].into() };
    let found: Vec<_> = found.into_iter().map(|part| (part.oid, part.begin, part.until)).collect();
    assert_eq!(
        found,
        [(2, Start::After(key("5")), Some(key("9"))), (3, Start::First, Some(key("9"))), (4, Start::First, None)]
    );
}

#[test]
fn parts_are_known_by_their_oids_whatever_their_names_and_their_order_are_now() {
    let parts = vec![part(0, 3, "a_0"), part(0, 2, "a_1"), part(0, 1, "a_9")];
    let found = left_of(Case { found: table(false), ..CASE }, parts).unwrap();
    assert_eq!(found.iter().map(|part| part.oid).collect::<Vec<_>>(), [3, 2]);
    assert!(matches!((&found[0].begin, &found[1].begin), (Start::First, Start::After(_))), "{found:?}");
}

#[test]
fn a_partition_that_was_dropped_since_is_passed_over() {
    let parts = vec![part(0, 1, "a_1"), part(0, 3, "a_3")];
    let found = left_of(Case { found: table(false), ..CASE }, parts).unwrap();
    assert_eq!((found.len(), found[0].oid, &found[0].begin), (1, 3, &Start::First));
    assert_eq!(left_of(Case { found: table(false), ..CASE }, vec![part(0, 1, "a_1")]).unwrap(), []);
}

#[test]
fn a_table_that_is_read_by_another_key_than_before_begins_anew() {
    let mut found = table(false);
    found.parts.insert(3, PartProgress { columns: vec!["id text".to_owned()], ..part_progress(false, None) });
    assert_eq!(left(Case { found, ..CASE }).unwrap(), [1, 2, 3]);
    let mut done = table(true);
    done.parts.insert(3, PartProgress { columns: Vec::new(), ..part_progress(true, None) });
    assert_eq!(left(Case { found: done, ..CASE }).unwrap(), [0; 0], "its rows are published");
}

#[test]
fn what_is_done_is_not_read_unless_again_or_for_another_slot() {
    assert_eq!(left(Case { found: table(true), ..CASE }).unwrap(), [0; 0]);
    assert_eq!(left(Case { found: table(true), again: true, ..CASE }).unwrap(), [1, 2, 3]);
    assert_eq!(left(Case { found: table(true), token: "2:2:", ..CASE }).unwrap(), [1, 2, 3]);
}

#[test]
fn without_a_token_nothing_is_done_and_what_is_not_done_goes_on_for_a_slot_that_is_older() {
    let left =
        |done, restart_lsn| left(Case { found: table(done), before: "", token: "", restart_lsn, ..CASE }).unwrap();
    assert_eq!(left(true, 999), [1, 2, 3]);
    assert_eq!(left(false, 999), [2, 3]);
    assert_eq!(left(false, 1000), [1, 2, 3], "a slot that was created since");
    assert_eq!(left(false, 0), [1, 2, 3], "a slot that reserves nothing");
}

#[test]
fn other_rows_of_the_table_are_no_continuation() {
    let other = left(Case { found: table(false), condition: Some("x"), ..CASE });
    let error = other.unwrap_err().to_string();
    assert!(error.contains("without --where and --order-by has published 5 of its rows"), "{error}");
    assert!(left(Case { found: table(false), condition: Some("x"), again: true, ..CASE }).is_ok());
}
