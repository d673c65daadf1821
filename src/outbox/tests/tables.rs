//! Tests which tables are published while partitions come and go.

use super::*;

#[test]
fn only_tables_that_are_listed_are_published() {
    let tables = vec![TableName { schema: "shop".into(), name: "events".into() }];
    let mut outbox = Outbox::new(Mapping { on_update: OnUpdate::Stop, ..defaults() }, tables).unwrap();
    let no_outbox = given(&[("anything", TEXT, None)]);
    assert_eq!(outbox.relation(&no_outbox.relation()), Ok(()));
    assert_eq!(offer(&mut outbox, &no_outbox.insert()), Err(RowError::NewTable("shop.outbox".into())));
    let published = |given: &TestTable, ancestors: &[(String, String)]| {
        [PublishedTable { relation: given.relation(), ancestors: ancestors.to_vec(), domains: Vec::new() }]
    };
    assert_eq!(outbox.published(&published(&no_outbox, &[])), Ok(false));
    assert_eq!(outbox.relation(&no_outbox.relation()), Ok(()));
    assert_eq!(offer(&mut outbox, &no_outbox.insert()), Ok(RowOutcome::NotPublished));
    assert_eq!(outbox.update(RELATION, AT), Ok(None));
    let parent = [("shop".to_owned(), "events".to_owned())];
    assert!(outbox.published(&published(&no_outbox, &parent)).is_err());
    assert_eq!(outbox.published(&published(&debezium(), &parent)), Ok(false));
    assert_eq!(outbox.relation(&debezium().relation()), Ok(()));
    assert!(matches!(offer(&mut outbox, &debezium().insert()), Ok(RowOutcome::Record(_))));
    assert_eq!(outbox.update(RELATION, AT), Ok(Some(OnUpdate::Stop)));
}

#[test]
fn a_table_is_listed_by_schema_and_name_with_their_case() {
    let listing = |schema: &str, name: &str| {
        let other = TableName { schema: "a".into(), name: "b".into() };
        let tables = vec![other, TableName { schema: schema.into(), name: name.into() }];
        let mut outbox = Outbox::new(defaults(), tables).unwrap();
        outbox.relation(&debezium().relation()).unwrap();
        offer(&mut outbox, &debezium().insert()).map(drop)
    };
    let new = Err(RowError::NewTable("shop.outbox".into()));
    assert_eq!(listing("shop", "outbox"), Ok(()));
    assert_eq!(listing("Shop", "outbox"), new);
    assert_eq!(listing("shop", "Outbox"), new);
}

#[test]
fn rows_from_before_a_rename_are_those_of_the_table_that_has_the_name_now() {
    let mut outbox = of_events();
    let earlier = debezium();
    let named = Relation { name: "events".into(), ..earlier.relation() };
    outbox.set_read_position(Lsn::new(AT.bytes() + 1));
    outbox.published(&[PublishedTable { relation: named, ancestors: Vec::new(), domains: Vec::new() }]).unwrap();
    outbox.relation(&earlier.relation()).unwrap();
    assert!(matches!(offer(&mut outbox, &earlier.insert()), Ok(RowOutcome::Record(_))));
    // The table was renamed after the publication was read. Only another read shows its new name.
    outbox.set_read_position(AT);
    outbox.relation(&earlier.relation()).unwrap();
    assert_eq!(offer(&mut outbox, &earlier.insert()), Err(RowError::NewTable("shop.outbox".into())));
    // Another table had the name before.
    outbox.set_read_position(Lsn::new(AT.bytes() + 1));
    outbox.relation(&Relation { id: RELATION + 1, ..earlier.relation() }).unwrap();
    assert!(outbox.plan(RELATION + 1).is_none());
}

#[test]
fn rows_from_before_a_rename_are_captured_by_the_name_that_the_table_has_now() {
    let mut patterns = TablePatterns::default();
    patterns.add(List::IncludeTables, "shop\\.events").unwrap();
    let mut outbox = Outbox::new(defaults(), Vec::new()).unwrap().with_patterns(patterns);
    let earlier = debezium();
    let named = Relation { name: "events".into(), ..earlier.relation() };
    outbox.set_read_position(Lsn::new(AT.bytes() + 1));
    outbox.published(&[PublishedTable { relation: named, ancestors: Vec::new(), domains: Vec::new() }]).unwrap();
    outbox.relation(&earlier.relation()).unwrap();
    assert!(matches!(offer(&mut outbox, &earlier.insert()), Ok(RowOutcome::Record(_))));
}

/// An outbox that publishes `shop.events`, which has no rows of its own.
fn of_events() -> Outbox {
    let tables = vec![TableName { schema: "shop".into(), name: "events".into() }];
    Outbox::new(defaults(), tables).unwrap()
}

/// What the publication has: `shop.outbox`, as a table of its own or as a partition of `shop.events`.
fn found(given: &TestTable, is_partition: bool) -> [PublishedTable; 1] {
    let ancestors = if is_partition { vec![("shop".to_owned(), "events".to_owned())] } else { Vec::new() };
    [PublishedTable { relation: given.relation(), ancestors, domains: Vec::new() }]
}

/// Reads the publication again, after a row has asked for it.
fn look_again(outbox: &mut Outbox, found: &[PublishedTable]) {
    outbox.set_read_position(Lsn::new(AT.bytes() + 1));
    outbox.published(found).unwrap();
}

#[test]
fn a_table_that_is_not_found_when_the_publication_is_read_again_is_reported_once_and_not_published() {
    let (mut outbox, passing) = (of_events(), given(&[("nothing", INT4, Some("1"))]));
    outbox.relation(&passing.relation()).unwrap();
    assert_eq!(offer(&mut outbox, &passing.insert()), Err(RowError::NewTable("shop.outbox".into())));
    look_again(&mut outbox, &[]);
    assert_eq!((outbox.take_not_found(), outbox.take_not_found()), (vec!["shop.outbox".to_owned()], Vec::new()));
    outbox.relation(&passing.relation()).unwrap();
    assert_eq!(offer(&mut outbox, &passing.insert()), Ok(RowOutcome::NotPublished));
}

#[test]
fn rows_of_a_table_that_was_removed_are_bad_rows_if_it_had_an_outboxs_shape() {
    let (mut outbox, given) = (of_events(), debezium());
    outbox.relation(&given.relation()).unwrap();
    assert_eq!(offer(&mut outbox, &given.insert()), Err(RowError::NewTable("shop.outbox".into())));
    look_again(&mut outbox, &[]);
    assert_eq!(outbox.take_not_found(), Vec::<String>::new(), "its rows will tell");
    outbox.relation(&given.relation()).unwrap();
    let Err(RowError::Bad(bad)) = offer(&mut outbox, &given.insert()) else { panic!("a bad row") };
    assert_eq!(
        (bad.table.as_str(), bad.id.as_deref(), bad.reason),
        ("shop.outbox", Some("0192"), BadReason::GoneTable)
    );
    let remains = outbox.partial_record(RELATION, &tuple(&given.insert()), &context(), OwnedRecord::of);
    let Ok(RowOutcome::Record(remains)) = remains else { panic!("what a dead letter is made of") };
    assert_eq!((remains.key.as_deref(), remains.value_text()), (Some(&b"order-17"[..]), Some("{\"total\": 1.50}")));
    assert_eq!(outbox.update(RELATION, AT), Ok(Some(OnUpdate::Warn)));
}

#[test]
fn rows_of_a_table_that_lost_its_parent_are_bad_rows_up_to_the_first_read_and_its_own_affair_from_then_on() {
    let (mut outbox, given) = (of_events(), debezium());
    let read_at = Lsn::new(AT.bytes() + 1);
    outbox.set_read_position(read_at);
    outbox.lost_parents([RELATION]);
    outbox.published(&found(&given, false)).unwrap();
    outbox.relation(&given.relation()).unwrap();
    let Err(RowError::Bad(bad)) = offer(&mut outbox, &given.insert()) else { panic!("a bad row") };
    assert_eq!(
        (bad.table.as_str(), bad.id.as_deref(), bad.reason),
        ("shop.outbox", Some("0192"), BadReason::GoneTable)
    );
    assert_eq!(outbox.update(RELATION, AT), Ok(None));
    // The later reads of the same process change nothing: it has read the rows in between as those of another table.
    outbox.set_read_position(Lsn::new(AT.bytes() + 100));
    outbox.published(&found(&given, false)).unwrap();
    outbox.relation(&given.relation()).unwrap();
    let later = RowContext { position: Position { final_lsn: read_at, ordinal: 0 }, ..context() };
    let insert = given.insert();
    assert_eq!(outbox.row(RELATION, &tuple(&insert), &later, |_| ()), Ok(RowOutcome::NotPublished));
}

#[test]
fn a_table_is_announced_with_its_first_row_or_with_the_read_that_finds_it_and_not_at_the_start() {
    let given = debezium();
    let mut outbox = Outbox::new(Mapping::default(), Vec::new()).unwrap();
    outbox.published(&found(&given, false)).unwrap();
    outbox.relation(&given.relation()).unwrap();
    offer(&mut outbox, &given.insert()).unwrap();
    assert_eq!(outbox.take_new_tables(), Vec::<String>::new());
    let new = Relation { id: RELATION + 1, name: "new".to_owned(), ..given.relation() };
    outbox.relation(&new).unwrap();
    assert_eq!(outbox.take_new_tables(), Vec::<String>::new(), "a partition that is published as its root has no row");
    let insert = given.insert();
    for _ in 0..2 {
        outbox.row(new.id, &tuple(&insert), &context(), |_| ()).unwrap();
        outbox.relation(&new).unwrap();
    }
    assert_eq!(outbox.take_new_tables(), ["shop.new"]);
    let attached = Relation { id: RELATION + 2, name: "attached".to_owned(), ..given.relation() };
    let attached = PublishedTable { relation: attached, ancestors: Vec::new(), domains: Vec::new() };
    outbox.published(&[found(&given, false).as_slice(), &[attached]].concat()).unwrap();
    assert_eq!(outbox.take_new_tables(), ["shop.attached"]);
}

#[test]
fn a_partition_stays_covered_when_it_is_detached_or_dropped() {
    for later in [&found(&debezium(), false)[..], &[]] {
        let (mut outbox, given) = (of_events(), debezium());
        outbox.published(&found(&given, true)).unwrap();
        look_again(&mut outbox, later);
        outbox.relation(&given.relation()).unwrap();
        assert!(matches!(offer(&mut outbox, &given.insert()), Ok(RowOutcome::Record(_))), "{later:?}");
        // Another table has the same name.
        let other = Relation { id: RELATION + 1, ..given.relation() };
        outbox.relation(&other).unwrap();
        assert!(outbox.plan(RELATION + 1).is_none());
    }
}

#[test]
fn a_table_may_have_been_attached_since_the_last_look_and_each_time_it_is_announced_it_is_asked_for_once() {
    let (mut outbox, given) = (of_events(), debezium());
    let new = Err(RowError::NewTable("shop.outbox".into()));
    outbox.set_read_position(AT);
    outbox.published(&found(&given, false)).unwrap();
    outbox.relation(&given.relation()).unwrap();
    assert_eq!(offer(&mut outbox, &given.insert()), new, "attached after the look, or before the row: who knows");
    look_again(&mut outbox, &found(&given, false));
    outbox.relation(&given.relation()).unwrap();
    assert_eq!(offer(&mut outbox, &given.insert()), Ok(RowOutcome::NotPublished));
    let later = Lsn::new(AT.bytes() + 10);
    assert_eq!(outbox.update(RELATION, later), Ok(None), "it was not announced again");
    outbox.relation(&given.relation()).unwrap();
    assert_eq!(outbox.update(RELATION, later), Err(RowError::NewTable("shop.outbox".into())));
    outbox.set_read_position(Lsn::new(AT.bytes() + 11));
    outbox.published(&found(&given, true)).unwrap();
    outbox.relation(&given.relation()).unwrap();
    assert!(matches!(offer(&mut outbox, &given.insert()), Ok(RowOutcome::Record(_))));
}

#[test]
fn a_partition_of_another_table_may_be_one_of_the_named_table_once_that_is_replaced() {
    let (mut outbox, given) = (of_events(), debezium());
    let named = Relation { id: 1, name: "events".into(), ..given.relation() };
    let part_of = |name: &str| PublishedTable {
        relation: given.relation(),
        ancestors: vec![("shop".to_owned(), name.to_owned())],
        domains: Vec::new(),
    };
    outbox.set_read_position(AT);
    outbox
        .published(&[
            part_of("events_new"),
            PublishedTable { relation: named.clone(), ancestors: Vec::new(), domains: Vec::new() },
        ])
        .unwrap();
    outbox.relation(&given.relation()).unwrap();
    let before = Lsn::new(AT.bytes() - 1);
    assert_eq!(outbox.update(RELATION, before), Ok(None), "the look knew of it");
    outbox.relation(&given.relation()).unwrap();
    assert_eq!(offer(&mut outbox, &given.insert()), Err(RowError::NewTable("shop.outbox".into())));
    let old = Relation { name: "events_old".into(), ..named };
    look_again(
        &mut outbox,
        &[part_of("events"), PublishedTable { relation: old, ancestors: Vec::new(), domains: Vec::new() }],
    );
    outbox.relation(&given.relation()).unwrap();
    assert!(matches!(offer(&mut outbox, &given.insert()), Ok(RowOutcome::Record(_))));
}

#[test]
fn a_table_that_cannot_be_attached_is_not_asked_for() {
    let passing = given(&[("nothing", INT4, Some("1"))]);
    let mut outbox = of_events();
    outbox.published(&found(&passing, false)).unwrap();
    outbox.relation(&passing.relation()).unwrap();
    assert_eq!(offer(&mut outbox, &passing.insert()), Ok(RowOutcome::NotPublished), "it lacks columns");
    let (mut outbox, named) = (of_events(), Relation { id: 1, name: "events".into(), ..debezium().relation() });
    let [beside] = found(&debezium(), false);
    outbox
        .published(&[beside, PublishedTable { relation: named, ancestors: Vec::new(), domains: Vec::new() }])
        .unwrap();
    outbox.relation(&debezium().relation()).unwrap();
    assert_eq!(
        offer(&mut outbox, &debezium().insert()),
        Ok(RowOutcome::NotPublished),
        "what is named is no partitioned table"
    );
}

/// Rows may be in flight whose ids come from the other column.
#[test]
fn an_id_is_that_of_the_noted_column_if_no_other_one_has_had_its_role() {
    let (first, mut later) = (debezium(), debezium());
    later.columns.first_mut().unwrap().0 = "event_id".into();
    for (noted, other) in [(&first, &later), (&later, &first)] {
        let mut outbox = Outbox::new(defaults(), Vec::new()).unwrap();
        outbox.published(&found(noted, false)).unwrap();
        outbox.relation(&noted.relation()).unwrap();
        assert!(outbox.has_noted_id(RELATION) && outbox.has_noted_id(RELATION + 1));
        outbox.relation(&other.relation()).unwrap();
        assert!(!outbox.has_noted_id(RELATION));
        outbox.relation(&noted.relation()).unwrap();
        outbox.published(&found(noted, false)).unwrap();
        assert!(!outbox.has_noted_id(RELATION) && outbox.has_noted_id(RELATION + 1));
        let mut outbox = Outbox::new(defaults(), Vec::new()).unwrap();
        outbox.published(&found(noted, false)).unwrap();
        outbox.published(&found(other, false)).unwrap();
        assert!(!outbox.has_noted_id(RELATION) && outbox.has_noted_id(RELATION + 1));
    }
}

#[test]
fn while_a_table_cannot_be_mapped_no_id_is_that_of_the_noted_column() {
    let mut outbox = Outbox::new(Mapping { payload_column: Some("payload".into()), ..defaults() }, Vec::new()).unwrap();
    let (good, mut bad) = (debezium(), debezium());
    bad.columns.retain(|(name, ..)| name != "payload");
    outbox.published(&found(&good, false)).unwrap();
    assert!(outbox.has_noted_id(RELATION));
    let error = outbox.published(&found(&bad, false)).unwrap_err();
    outbox.unmappable_from(AT, error);
    assert!(!outbox.has_noted_id(RELATION));
}

#[test]
fn a_table_that_cannot_be_mapped_now_ends_the_stream_once_everything_from_before_has_come() {
    let mut outbox = Outbox::new(Mapping { payload_column: Some("payload".into()), ..defaults() }, Vec::new()).unwrap();
    let mut renamed = debezium();
    renamed.columns.last_mut().unwrap().0 = "body".into();
    let error = outbox.published(&found(&renamed, false)).unwrap_err();
    outbox.unmappable_from(AT, error.clone());
    assert_eq!(outbox.unmappable_at(Lsn::new(AT.bytes() - 1)), None);
    assert_eq!(outbox.unmappable_at(AT), Some(&error));
    outbox.relation(&debezium().relation()).unwrap();
    assert!(matches!(offer(&mut outbox, &debezium().insert()), Ok(RowOutcome::Record(_))), "its shape of then");
    assert_eq!(outbox.relation(&renamed.relation()), Err(error));
    assert_eq!(outbox.published(&found(&debezium(), false)), Ok(false));
    assert_eq!(outbox.unmappable_at(AT), None, "fixed");
}
