//! The schemas of envelopes. A schema's name has the route of the first row that had the schema.
//!
//! In: a table's schema, and a row's version and route. Out: `{"schema":…,"payload":`, and the members to write. Debezium's router
//! creates an envelope's schema from the first row after its start, and stores it by the row's version, or without a version by the
//! payload's schema. It writes this schema for all later rows, whatever their route, even if their columns may be null, or their table
//! no longer has a column. This file does the same.
//! Specification: Debezium's `EventRouterDelegate.getValueSchema`.

use super::schema;

/// The schema of a table's envelope, without its name, which has the route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EnvelopeSchema {
    /// The text up to the quote before the name, and the name up to the route. `None`: schemas are not written.
    pub(super) before_route: Option<String>,
    /// The schema of the payload.
    pub(super) payload: String,
    /// The members. The payload comes first.
    pub(super) fields: Vec<EnvelopeField>,
    /// The column of the route.
    pub(super) route: usize,
    /// The column of the version.
    pub(super) version: Option<usize>,
}

/// A member of an envelope.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EnvelopeField {
    /// The name in JSON, and a colon.
    pub(super) name: String,
    /// The text for a member without a value.
    pub(super) null: String,
    /// The member's schema if it may be null. A row whose member has another schema does not fit.
    pub(super) nullable: String,
}

/// The schemas of earlier rows.
#[derive(Debug, Default)]
pub(in crate::outbox) struct EnvelopeSchemas {
    known: Vec<KnownSchema>,
}

#[derive(Debug)]
struct KnownSchema {
    /// The version, or the payload's schema.
    by: Vec<u8>,
    is_version: bool,
    fields: Vec<EnvelopeField>,
    text: Vec<u8>,
}

impl EnvelopeSchemas {
    /// The most schemas that are stored. Rows with other versions get schemas of their own.
    const MANY: usize = 1000;

    /// Writes the schema of a row: the stored one for its version, or else its own. Returns the members.
    pub(super) fn push<'a>(
        &'a mut self,
        schema: &'a EnvelopeSchema,
        version: Option<&[u8]>,
        route: &str,
        out: &mut Vec<u8>,
    ) -> &'a [EnvelopeField] {
        let is_version = schema.version.is_some();
        let by = if is_version { version.unwrap_or_default() } else { schema.payload.as_bytes() };
        let found = self.known.iter().position(|known| known.is_version == is_version && known.by == by);
        if found.is_none() && self.known.len() < Self::MANY {
            let mut text = Vec::new();
            push(schema, version, route, &mut text);
            self.known.push(KnownSchema { by: by.to_vec(), is_version, fields: schema.fields.clone(), text });
        }
        let last = self.known.len().saturating_sub(1);
        let known = self.known.get(found.unwrap_or(last)).filter(|known| known.by == by);
        // Debezium's task ends at a row that does not fit the stored schema.
        let fits =
            |known: &&KnownSchema| schema.fields.iter().all(|own| known.fields.iter().any(|field| field.is_of(own)));
        if let Some(known) = known.filter(fits) {
            out.extend(&known.text);
            return &known.fields;
        }
        push(schema, version, route, out);
        &schema.fields
    }
}

impl EnvelopeField {
    fn is_of(&self, own: &Self) -> bool {
        self.name == own.name && self.nullable == own.nullable
    }
}

/// Writes from `{"schema":` up to and with `"payload":`.
fn push(schema: &EnvelopeSchema, version: Option<&[u8]>, route: &str, out: &mut Vec<u8>) {
    let Some(before_route) = &schema.before_route else { return };
    let route = schema::quoted(route);
    out.extend(before_route.as_bytes());
    out.extend(route.get(1..route.len() - 1).unwrap_or_default().as_bytes());
    out.extend(b".Value\"");
    if let Some(version) = version {
        out.extend(b",\"version\":");
        out.extend(version);
    }
    out.extend(b"},\"payload\":");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(name: &str) -> EnvelopeField {
        EnvelopeField { name: format!("\"{name}\":"), null: "null".to_owned(), nullable: "{}".to_owned() }
    }

    fn table(name: &str, payload: &str, versioned: bool) -> EnvelopeSchema {
        EnvelopeSchema {
            before_route: Some(format!("{{\"schema\":{{\"name\":\"app.{name}.")),
            payload: payload.to_owned(),
            fields: vec![field("a"), field("b")],
            route: 0,
            version: versioned.then_some(1),
        }
    }

    fn written(schemas: &mut EnvelopeSchemas, schema: &EnvelopeSchema, version: Option<&[u8]>, route: &str) -> String {
        let mut out = Vec::new();
        schemas.push(schema, version, route, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_first_row_of_a_version_names_the_schema_of_all() {
        let mut schemas = EnvelopeSchemas::default();
        let (a, b) = (table("a", "string", true), table("b", "bytes", true));
        let order = written(&mut schemas, &a, Some(b"1"), "Or\"der");
        assert_eq!(order, r#"{"schema":{"name":"app.a.Or\"der.Value","version":1},"payload":"#);
        assert_eq!(written(&mut schemas, &a, Some(b"1"), "user"), order);
        assert_eq!(written(&mut schemas, &b, Some(b"1"), "user"), order);
        let second = written(&mut schemas, &b, Some(b"2"), "user");
        assert_eq!(second, r#"{"schema":{"name":"app.b.user.Value","version":2},"payload":"#);
        assert_eq!(written(&mut schemas, &b, None, "x"), r#"{"schema":{"name":"app.b.x.Value"},"payload":"#);
    }

    #[test]
    fn without_versions_the_payloads_schema_tells() {
        let mut schemas = EnvelopeSchemas::default();
        let first = written(&mut schemas, &table("a", "string", false), None, "order");
        assert_eq!(written(&mut schemas, &table("b", "string", false), None, "user"), first);
        let other = written(&mut schemas, &table("b", "bytes", false), None, "user");
        assert_eq!(other, r#"{"schema":{"name":"app.b.user.Value"},"payload":"#);
    }

    #[test]
    fn a_row_that_has_lost_a_column_keeps_it_and_one_that_does_not_fit_has_its_own_schema() {
        let mut schemas = EnvelopeSchemas::default();
        let first = written(&mut schemas, &table("a", "string", false), None, "order");
        let lost = EnvelopeSchema { fields: vec![field("a")], ..table("a", "string", false) };
        assert_eq!(written(&mut schemas, &lost, None, "user"), first);
        assert_eq!(schemas.push(&lost, None, "user", &mut Vec::new()), [field("a"), field("b")]);
        let other = EnvelopeSchema { fields: vec![field("a"), field("c")], ..table("b", "string", false) };
        assert!(written(&mut schemas, &other, None, "user").contains("app.b.user.Value"));
    }

    #[test]
    fn no_more_are_kept_than_fit() {
        let mut schemas = EnvelopeSchemas::default();
        for version in 0..=EnvelopeSchemas::MANY {
            let text =
                written(&mut schemas, &table("a", "string", true), Some(version.to_string().as_bytes()), "order");
            assert!(text.contains(&format!("\"version\":{version}}}")));
        }
        assert_eq!(schemas.known.len(), EnvelopeSchemas::MANY);
    }
}
