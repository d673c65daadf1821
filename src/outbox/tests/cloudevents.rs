//! Tests rows as CloudEvents.

use super::*;

fn events(binary: Option<EventBinding>) -> Mapping {
    let source = "/shop/größe %".to_owned();
    let events = match binary {
        Some(binding) => CloudEvents::binary(source, binding),
        None => CloudEvents::structured(source),
    };
    Mapping { cloudevents: Some(events), content_type_header: true, ..defaults() }
}

#[test]
fn a_cloud_events_attributes_are_headers_as_the_destinations_binding_has_them() {
    let given = || debezium().with("aggregateid", Some("")).with("type", Some("a b\"%é"));
    let header = |kept: &OwnedRecord, name: &str| {
        let found = kept.headers.iter().find(|(known, _)| known == name).and_then(|(_, value)| value.clone());
        found.map(|value| String::from_utf8(value).unwrap())
    };
    let plain = given().kept(events(Some(EventBinding { prefix: "ce_", percent_encoded: false })));
    assert_eq!(header(&plain, "ce_type").as_deref(), Some("a b\"%é"));
    assert_eq!(header(&plain, "ce_source").as_deref(), Some("/shop/größe %"));
    let encoded = given().kept(events(Some(EventBinding { prefix: "ce-", percent_encoded: true })));
    assert_eq!(header(&encoded, "ce-type").as_deref(), Some("a%20b%22%25%C3%A9"));
    assert_eq!(header(&encoded, "ce-source").as_deref(), Some("/shop/gr%C3%B6%C3%9Fe%20%25"));
    assert_eq!(header(&encoded, "ce-id").as_deref(), Some("0192"));
    for kept in [&plain, &encoded] {
        assert_eq!(kept.headers.iter().filter(|(name, _)| name == "content-type").count(), 1);
        assert!(kept.headers.iter().all(|(name, _)| !name.ends_with("subject")), "an empty key is no subject");
        assert_eq!(kept.value_text(), Some("{\"total\": 1.50}"));
    }
}

#[test]
fn a_cloud_event_as_one_object_has_the_payload_as_it_is() {
    let kept = debezium().with("type", Some("a\"b")).kept(events(None));
    let time = "\"time\":\"";
    let text = kept.value_text().unwrap();
    let (start, rest) = text.split_once(time).unwrap();
    assert_eq!(start, "{\"specversion\":\"1.0\",\"source\":\"/shop/größe %\",\"id\":\"0192\",\"type\":\"a\\\"b\",");
    // The commit's, whenever the record is sent.
    let (at, rest) = rest.split_once("Z\",").unwrap();
    assert_eq!((at, kept.timestamp_millis), ("2025-11-21T09:08:07.654", SENT_MILLIS));
    let expected = "\"subject\":\"order-17\",\"datacontenttype\":\"application/json\",\"data\":{\"total\": 1.50}}";
    assert_eq!(rest, expected);
    assert!(kept.headers_text().contains("content-type=application/cloudevents+json; charset=UTF-8"));
}
