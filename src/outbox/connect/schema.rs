//! Writes schemas as `JsonConverter` puts them into each record.
//!
//! In: a column's [`Schema`]. Out: its JSON.
//! Specification: Kafka Connect's `JsonConverter.asJsonSchema`.

use super::types::{POINT, Schema};
use super::value::push_string;

/// Debezium's structures: a name, the fields, and a description.
const STRUCTURES: [(&str, &str, &str); 2] = [
    (
        "io.debezium.data.VariableScaleDecimal",
        r#"{"type":"int32","optional":false,"field":"scale"},{"type":"bytes","optional":false,"field":"value"}"#,
        "Variable scaled decimal",
    ),
    (
        POINT,
        r#"{"type":"double","optional":false,"field":"x"},{"type":"double","optional":false,"field":"y"},{"type":"bytes","optional":true,"field":"wkb"},{"type":"int32","optional":true,"field":"srid"}"#,
        "Geometry (POINT)",
    ),
];

/// A map's keys are never null, its values may be.
const MAP: &str = r#""keys":{"type":"string","optional":false},"values":{"type":"string","optional":true}"#;

/// A column's schema. `default`: its default in JSON. `field`: its name in a structure.
pub(super) fn json(schema: &Schema, optional: bool, default: Option<&str>, field: Option<&str>) -> String {
    let mut members = vec![format!("\"type\":\"{}\"", schema.kind)];
    let structure = STRUCTURES.iter().find(|(name, ..)| schema.kind == "struct" && schema.name == Some(*name));
    members.extend(structure.map(|(_, fields, _)| format!("\"fields\":[{fields}]")));
    members.extend((schema.kind == "map").then(|| MAP.to_owned()));
    members.extend(
        schema.items.as_ref().map(|items| format!("\"items\":{}", json(items, !schema.items_required, None, None))),
    );
    members.push(format!("\"optional\":{optional}"));
    members.extend(schema.name.map(|name| format!("\"name\":\"{name}\",\"version\":1")));
    members.extend(structure.map(|(.., doc)| format!("\"doc\":\"{doc}\"")));
    if !schema.parameters.is_empty() {
        let each = |(name, value): &(&str, String)| format!("{}:{}", quoted(name), quoted(value));
        let parameters = schema.parameters.iter().map(each).collect::<Vec<_>>().join(",");
        members.push(format!("\"parameters\":{{{parameters}}}"));
    }
    members.extend(default.map(|default| format!("\"default\":{default}")));
    members.extend(field.map(|field| format!("\"field\":{}", quoted(field))));
    format!("{{{}}}", members.join(","))
}

/// Quotes a text as a JSON string.
pub(super) fn quoted(text: &str) -> String {
    let mut out = Vec::new();
    push_string(&mut out, text);
    String::from_utf8(out).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema(kind: &'static str, name: Option<&'static str>) -> Schema {
        Schema { kind, name, ..Schema::default() }
    }

    #[test]
    fn a_schema_says_type_optional_name_version_parameters_field() {
        assert_eq!(json(&schema("string", None), true, None, None), r#"{"type":"string","optional":true}"#);
        let uuid = schema("string", Some("io.debezium.data.Uuid"));
        let expected = r#"{"type":"string","optional":false,"name":"io.debezium.data.Uuid","version":1,"default":"0","field":"a\"b"}"#;
        assert_eq!(json(&uuid, false, Some("\"0\""), Some("a\"b")), expected);
        let parameters = vec![("scale", "2".to_owned()), ("x", "y".to_owned())];
        let decimal = Schema { parameters, ..schema("bytes", Some("D")) };
        let expected = r#"{"type":"bytes","optional":true,"name":"D","version":1,"parameters":{"scale":"2","x":"y"}}"#;
        assert_eq!(json(&decimal, true, None, None), expected);
    }

    #[test]
    fn a_list_has_items() {
        let list = Schema { items: Some(Box::new(schema("int32", None))), ..schema("array", None) };
        let expected = r#"{"type":"array","items":{"type":"int32","optional":true},"optional":false}"#;
        assert_eq!(json(&list, false, None, None), expected);
        let required = Schema { items_required: true, ..list };
        assert!(
            json(&required, false, None, None)
                .starts_with(r#"{"type":"array","items":{"type":"int32","optional":false}"#)
        );
    }

    #[test]
    fn a_decimal_of_any_scale_is_a_structure() {
        let expected = r#"{"type":"struct","fields":[{"type":"int32","optional":false,"field":"scale"},{"type":"bytes","optional":false,"field":"value"}],"optional":true,"name":"io.debezium.data.VariableScaleDecimal","version":1,"doc":"Variable scaled decimal"}"#;
        assert_eq!(json(&schema("struct", Some("io.debezium.data.VariableScaleDecimal")), true, None, None), expected);
    }
}
