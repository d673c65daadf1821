//! The schemas of envelopes, whose names hold the route of the first row that had them.
//!
//! In: a table's schema, a row's version and route. Out: `{"schema":…,"payload":`. Debezium's router makes an envelope's
//! schema from the first row that it sees after its start, keeps it by the version (without one, by the payload's schema),
//! and writes it with all rows that follow, whatever their route and whether their table's columns may be null. So it is here.
//! Specification: Debezium's `EventRouterDelegate.getValueSchema`.

use super::schema;

/// A table's envelope's schema but for its name, which holds the route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EnvelopeSchema {
    /// Up to and with the quote before the name, and the name up to the route.
    pub(super) before_route: String,
    /// The payload's own.
    pub(super) payload: String,
    /// The fields as if each could be null: with others a row does not fit the schema.
    pub(super) fields: String,
    /// The column of the route.
    pub(super) route: usize,
    /// The column of the version.
    pub(super) version: Option<usize>,
}

/// Schemas that rows have had.
#[derive(Debug, Default)]
pub(in crate::outbox) struct EnvelopeSchemas {
    known: Vec<Known>,
}

#[derive(Debug)]
struct Known {
    /// The version, or the payload's schema.
    by: Vec<u8>,
    is_version: bool,
    fields: String,
    text: Vec<u8>,
}

impl EnvelopeSchemas {
    /// More are not kept: rows of further versions have schemas of their own.
    const MANY: usize = 1000;

    /// Sees to it that the schema of such a row is known.
    pub(super) fn note(&mut self, schema: &EnvelopeSchema, version: Option<&[u8]>, route: &str) {
        if self.known.len() < Self::MANY && self.find(schema, version).is_none() {
            let is_version = schema.version.is_some();
            let by = if is_version { version.unwrap_or_default() } else { schema.payload.as_bytes() }.to_vec();
            let mut text = Vec::new();
            push(schema, version, route, &mut text);
            self.known.push(Known { by, is_version, fields: schema.fields.clone(), text });
        }
    }

    /// The schema of such a row: the one that is known by its version, else its own.
    pub(super) fn push(&self, schema: &EnvelopeSchema, version: Option<&[u8]>, route: &str, out: &mut Vec<u8>) {
        // Debezium ends at a row that does not fit the schema that it knows.
        match self.find(schema, version).filter(|known| known.fields == schema.fields) {
            Some(known) => out.extend(&known.text),
            None => push(schema, version, route, out),
        }
    }

    fn find(&self, schema: &EnvelopeSchema, version: Option<&[u8]>) -> Option<&Known> {
        let is_version = schema.version.is_some();
        let by = if is_version { version.unwrap_or_default() } else { schema.payload.as_bytes() };
        self.known.iter().find(|known| known.is_version == is_version && known.by == by)
    }
}

/// From `{"schema":` up to and with `"payload":`.
fn push(schema: &EnvelopeSchema, version: Option<&[u8]>, route: &str, out: &mut Vec<u8>) {
    let route = schema::quoted(route);
    out.extend(schema.before_route.as_bytes());
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

    fn table(name: &str, payload: &str, versioned: bool) -> EnvelopeSchema {
        EnvelopeSchema {
            before_route: format!("{{\"schema\":{{\"name\":\"app.{name}."),
            payload: payload.to_owned(),
            fields: "a,b".to_owned(),
            route: 0,
            version: versioned.then_some(1),
        }
    }

    fn written(schemas: &mut EnvelopeSchemas, schema: &EnvelopeSchema, version: Option<&[u8]>, route: &str) -> String {
        schemas.note(schema, version, route);
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
    fn a_row_that_does_not_fit_has_its_own_schema() {
        let mut schemas = EnvelopeSchemas::default();
        written(&mut schemas, &table("a", "string", false), None, "order");
        let other = EnvelopeSchema { fields: "a,c".to_owned(), ..table("b", "string", false) };
        assert!(written(&mut schemas, &other, None, "user").contains("app.b.user.Value"));
    }

    #[test]
    fn no_more_are_kept_than_fit() {
        let mut schemas = EnvelopeSchemas::default();
        for version in 0..=EnvelopeSchemas::MANY {
            schemas.note(&table("a", "string", true), Some(version.to_string().as_bytes()), "order");
        }
        assert_eq!(schemas.known.len(), EnvelopeSchemas::MANY);
    }
}
