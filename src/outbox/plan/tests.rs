use super::*;
use crate::outbox::Constant;
use crate::route::TopicSetting;

const TEXT: u32 = 25;
const JSONB: u32 = 3802;

fn relation(columns: &[(&str, u32)]) -> Relation {
    let column = |(name, type_id): &(&str, u32)| RelationColumn {
        name: (*name).to_owned(),
        type_id: *type_id,
        type_modifier: -1,
    };
    Relation {
        id: 1,
        namespace: "shop".into(),
        name: "outbox".into(),
        replica_identity: b'd',
        columns: columns.iter().map(column).collect(),
    }
}

fn texts(names: &str) -> Relation {
    relation(&names.split(' ').filter(|name| !name.is_empty()).map(|name| (name, TEXT)).collect::<Vec<_>>())
}

fn planned(relation: &Relation, mapping: &Mapping) -> Result<TablePlan, PlanError> {
    TablePlan::new(relation, mapping, &TopicRule::new(&mapping.topic, mapping.addresses).unwrap(), &Domains::default())
}

fn with_topic(template: &str) -> Mapping {
    Mapping { topic: TopicSetting::Template(template.to_owned()), ..Mapping::default() }
}

/// Checks the columns of id, route, key, type, payload and headers. `-`: none.
#[track_caller]
fn check(names: &str, mapping: &Mapping, expected: &str) {
    let plan = planned(&texts(names), mapping).unwrap();
    let name = |index: Option<usize>| index.map_or("-", |index| plan.column_name(index));
    let roles =
        [Some(plan.id), plan.topic.first().copied(), plan.key, plan.event_type, Some(plan.payload), plan.headers];
    assert_eq!(roles.map(name).join(" "), expected, "{names}");
}

#[track_caller]
fn refused(relation: &Relation, mapping: &Mapping, error: &str, hint: &str) {
    let refused = planned(relation, mapping).unwrap_err();
    assert_eq!((refused.to_string().as_str(), refused.hint().to_string().as_str()), (error, hint));
}

#[test]
fn the_tables_of_the_common_tutorials_need_no_flag() {
    let defaults = Mapping::default();
    check("id aggregatetype aggregateid type payload", &defaults, "id aggregatetype aggregateid type payload -");
    check(
        "id aggregate_id aggregate_type event_type event_data event_version",
        &defaults,
        "id aggregate_type aggregate_id event_type event_data -",
    );
    check(
        "id aggregate_type aggregate_id event_type payload headers status",
        &defaults,
        "id aggregate_type aggregate_id event_type payload headers",
    );
    check("id event_type payload aggregate_id status", &defaults, "id event_type aggregate_id event_type payload -");
    check("id task_type payload seq", &defaults, "id task_type - task_type payload -");
    check("id type payload", &defaults, "id type - type payload -");
    check("event_id type data", &defaults, "event_id type - type data -");
}

#[test]
fn of_several_names_the_first_tried_wins_in_any_order_of_columns() {
    let all = "data event_data payload event_id id aggregate_type aggregatetype aggregate_id aggregateid \
               task_type event_type type";
    check(all, &Mapping::default(), "id aggregatetype aggregateid type payload -");
}

#[test]
fn a_flag_beats_the_names() {
    let mapping = Mapping {
        id_column: Some("uid".into()),
        key_column: Some("Customer Id".into()),
        payload_column: Some("body".into()),
        type_column: Some("kind".into()),
        route_column: Some("area".into()),
        headers_column: Some("meta".into()),
        ..Mapping::default()
    };
    let mut columns: Vec<_> = "id aggregatetype aggregateid type payload headers uid body kind area meta"
        .split(' ')
        .map(|name| (name, TEXT))
        .collect();
    columns.push(("Customer Id", TEXT));
    let plan = planned(&relation(&columns), &mapping).unwrap();
    let indexes = (plan.id, plan.key, plan.payload, plan.event_type, plan.topic, plan.headers);
    assert_eq!(indexes, (6, Some(11), 7, Some(8), vec![9], Some(10)));
}

#[test]
fn names_are_compared_with_their_case() {
    let mapping = Mapping { route_column: Some("AggregateType".into()), ..Mapping::default() };
    check("id AggregateType type payload", &mapping, "id AggregateType - type payload -");
    refused(
        &texts("Id type payload"),
        &Mapping::default(),
        "table shop.outbox has no column for the id: tried id, event_id; it has Id, type, payload",
        "walrelay run --id-column Id",
    );
}

#[test]
fn an_empty_name_turns_an_optional_role_off() {
    let mapping = Mapping {
        key_column: Some(String::new()),
        headers_column: Some(String::new()),
        type_column: Some(String::new()),
        ..Mapping::default()
    };
    check("id aggregatetype aggregateid type payload headers", &mapping, "id aggregatetype - - payload -");
}

#[test]
fn the_route_falls_back_to_the_type_that_a_flag_names() {
    let mapping = Mapping { type_column: Some("kind".into()), ..Mapping::default() };
    check("id kind type payload", &mapping, "id kind - kind payload -");
}

#[test]
fn no_route_is_needed_without_one_in_the_topic() {
    let plan = planned(&texts("id payload"), &with_topic("events")).unwrap();
    assert!(plan.topic.is_empty());
}

#[test]
fn names_in_the_topic_are_columns_before_they_are_roles() {
    let topic = |template: &str, names: &str| planned(&texts(names), &with_topic(template)).map(|plan| plan.topic);
    assert_eq!(topic("{region}.{type}", "id region event_type payload"), Ok(vec![1, 2]));
    assert_eq!(topic("{route}", "id aggregatetype route payload"), Ok(vec![2]));
    assert_eq!(topic("{key}.{id}", "event_id aggregate_id payload"), Ok(vec![1, 0]));
    assert!(topic("{key}", "id type payload").is_err());
}

#[test]
fn a_regex_uses_the_role_even_beside_a_column_called_route() {
    let topic = TopicSetting::Regex { regex: "(.*)".into(), replacement: "$1".into() };
    let mapping = Mapping { topic, ..Mapping::default() };
    assert_eq!(planned(&texts("id route aggregatetype payload"), &mapping).unwrap().topic, [2]);
}

#[test]
fn a_missing_column_is_named_with_what_was_tried_what_is_there_and_the_flag() {
    let defaults = Mapping::default();
    refused(
        &texts("id type paylod"),
        &defaults,
        "table shop.outbox has no column for the payload: tried payload, event_data, data; it has id, type, paylod",
        "walrelay run --payload-column paylod",
    );
    refused(
        &texts("id payload"),
        &defaults,
        "table shop.outbox has no column for the route: tried aggregatetype, aggregate_type, type, event_type, \
         task_type; it has id, payload",
        "walrelay run --topic outbox.event.outbox",
    );
}

#[test]
fn all_columns_that_are_missing_are_named_at_once() {
    let columns = relation(&[("uuid", 2950), ("body", JSONB), ("customer_id", TEXT)]);
    refused(
        &columns,
        &Mapping { key_column: Some("customerid".into()), ..Mapping::default() },
        "table shop.outbox has no column for the id: tried id, event_id, none \"customerid\", which --key-column names, \
         none for the payload: tried payload, event_data, data, none for the route: tried aggregatetype, aggregate_type, \
         type, event_type, task_type; it has uuid, body, customer_id",
        "walrelay run --id-column uuid --key-column customer_id --payload-column body --topic outbox.event.outbox",
    );
}

#[test]
fn a_column_that_could_be_one_of_several_is_left_to_the_user() {
    let hint =
        |columns: &[(&str, u32)]| planned(&relation(columns), &Mapping::default()).unwrap_err().hint().to_string();
    let two = hint(&[("id", TEXT), ("type", TEXT), ("body", JSONB), ("context", JSONB)]);
    assert!(two.starts_with("walrelay run --payload-column COLUMN, where COLUMN is one of: id, type, body"), "{two}");
    // A column that has a role is not proposed for another one.
    let headers = hint(&[("id", TEXT), ("type", TEXT), ("headers", JSONB), ("body", JSONB)]);
    assert_eq!(headers, "walrelay run --payload-column body");
    let none = hint(&[]);
    assert!(none.contains("one of: no column that is published"), "{none}");
}

#[test]
fn a_column_that_only_the_publication_hides_is_brought_in_by_sql() {
    let list = HiddenColumns::ColumnList { widen: "ALTER x;".to_owned(), slot: "s".to_owned() };
    let error = planned(&texts("id type"), &Mapping::default()).unwrap_err().because(list);
    assert!(error.to_string().starts_with("the publication's column list hides what is needed: table shop.outbox"));
    let hint = error.hint().to_string();
    assert!(hint.starts_with("ALTER x; -- rows committed before that are still sent with the old columns: "), "{hint}");
    assert!(hint.contains("walrelay teardown --slot s --yes && walrelay setup --apply --slot s; "), "{hint}");
}

#[test]
fn rows_from_before_the_present_columns_need_a_new_slot_unless_another_column_had_the_value() {
    let of_the_past = |names: &str, renamed| {
        let slot = "s".to_owned();
        planned(&texts(names), &Mapping::default()).unwrap_err().because(HiddenColumns::Past { slot, renamed })
    };
    let error = of_the_past("id type", true);
    assert!(error.to_string().starts_with("a row was committed when its table was published with other columns"));
    let hint = error.hint().to_string();
    assert!(hint.contains("walrelay teardown --slot s --yes && walrelay setup --apply --slot s; "), "{hint}");
    assert!(hint.contains("republish.md publishes them from shop.outbox"), "{hint}");
    assert_eq!(of_the_past("id type payloads", true).hint().to_string(), "walrelay run --payload-column payloads");
    assert_eq!(of_the_past("id type payloads", false).hint().to_string(), hint, "what looks alike is another column");
}

#[test]
fn a_setting_of_several_parts_is_repeated_with_the_column_that_was_meant() {
    let names = "id aggregatetype aggregateid type payload";
    let hint = |mapping: &Mapping| planned(&texts(names), mapping).unwrap_err().hint().to_string();
    assert_eq!(
        hint(&with_topic("a.{agregatetype|kebab}.{agregatetype}")),
        "walrelay run --topic 'a.{aggregatetype|kebab}.{aggregatetype}'"
    );
    assert_eq!(hint(&with_topic("{typ}.{agregatetype}")), "walrelay run --topic '{type}.{aggregatetype}'");
    let pairs = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
        pairs.iter().map(|(name, column)| ((*name).to_owned(), (*column).to_owned())).collect()
    };
    let headers = pairs(&[("x", "typ")]);
    assert_eq!(hint(&Mapping { headers, ..Mapping::default() }), "walrelay run --header x=type");
    // A flag replaces the whole list of a file, so the hint keeps the right values of the list, and their order.
    let constants = vec![Constant { behind: 1, name: "c".to_owned(), value: "fixed".to_owned() }];
    let headers = pairs(&[("a", "id"), ("x", "typ"), ("y", "agregateid")]);
    assert_eq!(
        hint(&Mapping { headers, constants, ..Mapping::default() }),
        "walrelay run --header a=id --header c==fixed --header x=type --header y=aggregateid"
    );
}

#[test]
fn a_setting_of_several_parts_keeps_them_where_only_the_user_knows_the_column() {
    let hint = |mapping: &Mapping| planned(&texts("id type payload"), mapping).unwrap_err().hint().to_string();
    let begins = |mapping: &Mapping, with: &str| {
        let hint = hint(mapping);
        assert!(hint.starts_with(&format!("{with}, where COLUMN is one of: id, type, payload")), "{hint}");
    };
    begins(&with_topic("a.{zzz|kebab}"), "walrelay run --topic 'a.{COLUMN|kebab}'");
    let pairs = || vec![("x".to_owned(), "zzz".to_owned())];
    begins(&Mapping { headers: pairs(), ..Mapping::default() }, "walrelay run --header x=COLUMN");
    begins(&Mapping { envelope: pairs(), ..Mapping::default() }, "walrelay run --envelope x=COLUMN");
    begins(
        &Mapping { timestamp: Timestamp::Column("zzz".into()), ..Mapping::default() },
        "walrelay run --timestamp COLUMN",
    );
}

#[test]
fn a_setting_that_names_no_column_is_refused_with_the_nearest() {
    let names = "id aggregatetype aggregateid type payload";
    let key = Mapping { key_column: Some("agregateid".into()), ..Mapping::default() };
    refused(
        &texts(names),
        &key,
        "table shop.outbox has no column \"agregateid\", which --key-column names; it has id, aggregatetype, \
         aggregateid, type, payload",
        "walrelay run --key-column aggregateid",
    );
    let flag = |mapping: Mapping| match planned(&texts(names), &mapping) {
        Err(PlanError::Lacks { lacks, .. }) => match &lacks[..] {
            [MissingColumn::Named { flag, .. }] => *flag,
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    };
    let pair = || vec![("a".to_owned(), "zzz".to_owned())];
    assert_eq!(flag(Mapping { headers: pair(), ..Mapping::default() }), "--header");
    assert_eq!(flag(Mapping { envelope: pair(), ..Mapping::default() }), "--envelope");
    assert_eq!(flag(Mapping { headers_column: Some("zzz".into()), ..Mapping::default() }), "--headers-column");
    assert_eq!(flag(Mapping { partition_column: Some("zzz".into()), ..Mapping::default() }), "--partition-column");
    let timestamp = Timestamp::Column("zzz".into());
    assert_eq!(flag(Mapping { timestamp, ..Mapping::default() }), "--timestamp");
    assert_eq!(flag(with_topic("{zzz}")), "--topic");
}

#[test]
fn a_column_of_a_type_that_cannot_serve_is_refused() {
    let columns = [("id", TEXT), ("type", TEXT), ("payload", JSONB), ("flag", 16), ("at", 1082), ("blob", 17)];
    let kind = |mapping: Mapping| planned(&relation(&columns), &mapping).unwrap_err();
    let error = kind(Mapping { partition_column: Some("id".into()), ..Mapping::default() });
    let text = "column \"id\" of table shop.outbox, which --partition-column names, is text: \
                smallint, integer or bigint is wanted";
    assert_eq!(error.to_string(), text);
    let timestamp = Timestamp::Column("at".into());
    let error = kind(Mapping { timestamp, ..Mapping::default() });
    assert!(matches!(error, PlanError::WrongType { flag: "--timestamp", .. }), "{error}");
    let error = kind(Mapping { headers_column: Some("blob".into()), ..Mapping::default() });
    assert!(matches!(error, PlanError::WrongType { flag: "--headers-column", .. }), "{error}");
}

#[test]
fn a_column_called_headers_that_can_hold_no_json_is_left_alone() {
    let headers = |type_id| {
        let columns = [("id", TEXT), ("type", TEXT), ("payload", TEXT), ("headers", type_id)];
        planned(&relation(&columns), &Mapping::default()).unwrap().headers
    };
    assert_eq!([JSONB, 114, TEXT, 1043, 99_999].map(headers), [Some(3); 5]);
    assert_eq!([17, 23, 1009].map(headers), [None; 3]);
}

#[test]
fn types_that_serve_are_accepted() {
    let serves = |type_id, mapping: fn() -> Mapping| {
        let columns = [("id", TEXT), ("type", TEXT), ("payload", TEXT), ("x", type_id)];
        planned(&relation(&columns), &mapping()).is_ok()
    };
    for type_id in [21, 23, 20] {
        assert!(serves(type_id, || Mapping { partition_column: Some("x".into()), ..Mapping::default() }));
    }
    for type_id in [1114, 1184, 20] {
        assert!(serves(type_id, || Mapping { timestamp: Timestamp::Column("x".into()), ..Mapping::default() }));
    }
}

#[test]
fn binary_is_safe_when_every_used_column_has_a_form_that_is_understood() {
    let safe = |mapping: &Mapping, extra: u32| {
        let columns =
            [("id", 2950), ("aggregatetype", 1043), ("aggregateid", 20), ("type", TEXT), ("payload", 17), ("x", extra)];
        planned(&relation(&columns), mapping).unwrap().binary_safe()
    };
    let defaults = Mapping::default();
    let used = Mapping { headers: vec![("x".into(), "x".into())], ..Mapping::default() };
    for type_id in [16, 17, 20, 21, 23, 25, 114, 1043, 2950, 3802] {
        assert!(safe(&used, type_id), "{type_id}");
    }
    for type_id in [1700, 1114, 1184, 1009, 700, 1042, 20_000] {
        assert!(!safe(&used, type_id), "{type_id}");
        assert!(safe(&defaults, type_id), "an unused column does not count");
    }
    for mapping in [
        Mapping { envelope: vec![("x".into(), "x".into())], ..Mapping::default() },
        Mapping { timestamp: Timestamp::Column("x".into()), ..Mapping::default() },
        with_topic("{x}"),
        Mapping { key_column: Some("x".into()), ..Mapping::default() },
    ] {
        assert!(!safe(&mapping, 1184));
    }
}
