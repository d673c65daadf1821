//! What is left to read after runs before.

use super::*;
use crate::commands::backfill::parts::KeyColumn;
use crate::pgoutput::Relation;

fn part(table: usize, name: &str, file: Option<u32>) -> Part {
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
        paging: file.map_or_else(|| Paging::Keys(vec![id]), |file| Paging::Places { file, blocks: 9 }),
        begin: Start::First,
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
    snapshot: &'a str,
}

/// The parts that are left of `a_1`, `a_2`, `a_3`, each with where it begins.
fn left(case: Case<'_>) -> Result<Vec<(String, Start)>, CommandError> {
    let asked = AskedRows { condition: case.condition, order: None, again: case.again };
    let before = BackfillProgress {
        snapshot: "1:1:".to_owned(),
        rows: 9,
        tables: [("public.a".to_owned(), case.found)].into_iter().collect(),
    };
    let parts = ["a_1", "a_2", "a_3"].map(|name| part(0, name, None)).to_vec();
    let tables = [TableName::parse("public.a").unwrap()];
    let (_, left) = resume(&asked, Some(before), case.snapshot, &tables, parts)?;
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
        file: None,
        key: Vec::new(),
        done: false,
    },
    condition: None,
    again: false,
    snapshot: "1:1:",
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
    assert_eq!(left(Case { found: table("a_3", true), snapshot: "2:2:", ..CASE }).unwrap().len(), 3);
}

#[test]
fn other_rows_of_the_table_are_no_continuation() {
    let other = left(Case { found: table("a_2", false), condition: Some("x"), ..CASE });
    let error = other.unwrap_err().to_string();
    assert!(error.contains("without --where and --order-by has published 5 of its rows"), "{error}");
    assert!(left(Case { found: table("a_2", false), condition: Some("x"), again: true, ..CASE }).is_ok());
}

#[test]
fn rows_found_by_place_are_not_looked_for_in_another_file() {
    let found = TableProgress { file: Some(3), ..table("a_2", false) };
    assert!(of_table(vec![part(0, "a_2", Some(3))], 0, &found, "a").is_ok());
    let other = of_table(vec![part(0, "a_2", Some(4))], 0, &found, "a");
    assert!(other.unwrap_err().to_string().contains("was rewritten"));
}
