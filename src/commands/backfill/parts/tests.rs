//! What pages look like.

use super::*;
use crate::pgoutput::RelationColumn;

fn column(name: &str, type_name: &str, not_null: bool) -> KeyColumn {
    KeyColumn { name: name.to_owned(), type_name: type_name.to_owned(), not_null }
}

fn part(paging: Paging) -> Part {
    let columns =
        ["id", "Pay load"].map(|name| RelationColumn { name: name.to_owned(), type_id: 25, type_modifier: -1 });
    let relation = Relation {
        id: 7,
        namespace: "public".to_owned(),
        name: "outbox".to_owned(),
        replica_identity: b'd',
        columns: columns.to_vec(),
    };
    Part {
        table: 0,
        relation,
        oid: 7,
        name: TableName::parse("outbox").unwrap(),
        partitioned: false,
        filter: None,
        paging,
        begin: Start::First,
        until: None,
    }
}

fn asked(condition: Option<&str>) -> PageSettings {
    PageSettings { condition: condition.map(str::to_owned), chunk: 100, commit_times: false }
}

fn key(texts: &[Option<&str>]) -> Key {
    texts.iter().map(|text| text.map(str::to_owned)).collect()
}

fn text(start: &Start, paging: Paging) -> String {
    part(paging).page(&asked(None), start).map(|page| page.sql).unwrap_or_default()
}

#[test]
fn pages_follow_each_other_by_the_whole_key() {
    let keys = || Paging::Keys(vec![column("at", "timestamp with time zone", true), column("id", "uuid", true)]);
    assert_eq!(
        text(&Start::First, keys()),
        format!(
            "SELECT \"id\", \"Pay load\", NULL, \"at\"::text, \"id\"::text FROM ONLY \"public\".\"outbox\" \
             WHERE pg_catalog.to_regclass('\"public\".\"outbox\"') = 7::oid AND true ORDER BY \"public\".\"outbox\".\"at\", \"public\".\"outbox\".\"id\" LIMIT 100"
        )
    );
    let after = Start::After(key(&[Some("2026-01-01 00:00:00+00"), Some("it's")]));
    assert!(text(&after, keys()).contains(
        " AND (\"at\", \"id\") > ('2026-01-01 00:00:00+00'::timestamp with time zone, 'it''s'::uuid) ORDER BY"
    ));
}

#[test]
fn rows_that_come_later_with_a_greater_key_are_not_read() {
    let mut part = part(Paging::Keys(vec![column("at", "date", true), column("id", "bigint", true)]));
    assert_eq!(
        part.greatest().unwrap(),
        "SELECT \"at\"::text, \"id\"::text FROM ONLY \"public\".\"outbox\" \
         WHERE pg_catalog.to_regclass('\"public\".\"outbox\"') = 7::oid \
         ORDER BY \"public\".\"outbox\".\"at\" DESC, \"public\".\"outbox\".\"id\" DESC LIMIT 1"
    );
    part.until = Some(key(&[Some("2026-01-01"), Some("5")]));
    let sql = part.page(&asked(None), &Start::First).unwrap().sql;
    assert!(sql.contains(" AND (\"at\", \"id\") <= ('2026-01-01'::date, '5'::bigint) ORDER BY"), "{sql}");
}

#[test]
fn rows_without_a_value_to_order_by_come_last_and_are_not_lost() {
    let keys = || Paging::Keys(vec![column("at", "date", false), column("id", "bigint", true)]);
    let after = Start::After(key(&[Some("2026-01-01"), Some("5")]));
    let found = text(&after, keys());
    // By this alone an index finds them.
    assert!(found.contains("AND (\"at\", \"id\") > ('2026-01-01'::date, '5'::bigint) ORDER"), "{found}");
    assert_eq!(part(keys()).rest(&after), Some(Start::Nulls));
    let found = text(&Start::Nulls, keys());
    assert!(found.contains("AND \"at\" IS NULL ORDER"), "{found}");
    let last = Start::After(key(&[None, Some("5")]));
    let found = text(&last, keys());
    assert!(found.contains("AND (\"at\" IS NULL AND (\"id\") > ('5'::bigint)) ORDER"), "{found}");
    let count = part(keys()).count(&asked(None), &after);
    let both = "AND (true AND (\"at\", \"id\") > ('2026-01-01'::date, '5'::bigint) OR true AND \"at\" IS NULL)";
    assert!(count.ends_with(both), "{count}");
    assert_eq!([Start::First, Start::Nulls, last].map(|start| part(keys()).rest(&start)), [None, None, None]);
    let whole = Paging::Keys(vec![column("id", "bigint", true)]);
    assert_eq!(part(whole).rest(&Start::After(key(&[Some("5")]))), None);
}

#[test]
fn without_a_key_a_page_is_a_range_of_blocks() {
    let ctids = || Paging::Ctids { file: 1, blocks: 1500 };
    let page = |start: Start| part(ctids()).page(&asked(None), &start);
    let first = page(Start::First).unwrap();
    let order = "ORDER BY \"public\".\"outbox\".ctid";
    assert!(first.sql.ends_with(&format!(" AND true AND ctid < '(1024,0)'::tid {order}")), "{}", first.sql);
    assert_eq!(first.next, Some(Start::Block(1024)));
    let second = page(Start::Block(1024)).unwrap();
    let ends = |sql: &str, text: &str| assert!(sql.ends_with(&format!("{text} {order}")), "{sql}");
    ends(&second.sql, "AND ctid >= '(1024,0)'::tid AND ctid < '(2048,0)'::tid");
    let resumed = page(Start::After(key(&[Some("(3,7)")]))).unwrap();
    ends(&resumed.sql, "AND ctid > '(3,7)'::tid AND ctid < '(1027,0)'::tid");
    assert_eq!(resumed.next, Some(Start::Block(1027)));
    assert_eq!(page(Start::Block(2048)), None);
}

#[test]
fn conditions_stand_on_lines_of_their_own() {
    let mut part = part(Paging::Keys(vec![column("id", "text", true)]));
    part.filter = Some("(region = 'eu')".to_owned());
    let sql = part.count(&asked(Some("a = 1 -- old ones")), &Start::First);
    assert!(sql.ends_with(" AND (\na = 1 -- old ones\n) AND (\n(region = 'eu')\n)"), "{sql}");
}

#[test]
fn an_order_needs_its_column_and_a_key_behind_it() {
    let facts = |key: &[KeyColumn], order: Option<KeyColumn>| PartFacts {
        oid: 7,
        name: TableName { schema: String::new(), name: String::new() },
        partitioned: false,
        row_security: false,
        file: 3,
        blocks: 9,
        key: key.to_vec(),
        order,
    };
    let (id, at) = (column("id", "bigint", true), column("at", "date", false));
    assert_eq!(facts(&[], None).paging(None), Some(Paging::Ctids { file: 3, blocks: 9 }));
    assert_eq!(facts(&[], Some(at.clone())).paging(Some("at")), None);
    assert_eq!(facts(std::slice::from_ref(&id), None).paging(Some("at")), None);
    let both = facts(&[id.clone(), at.clone()], Some(at.clone())).paging(Some("at"));
    assert_eq!(both, Some(Paging::Keys(vec![at, id])));
}
