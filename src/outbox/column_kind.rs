//! [`ColumnKind`]: what records need to know about a column's type.
//!
//! In: `pg_type.oid`, and the domains that the catalog and the stream describe. Out: a [`ColumnKind`], and the type's name for people.
//! A domain counts as the type below it, since Postgres writes its values as that type's, in text and in binary form.
//! Specification: PostgreSQL's `pg_type.dat` (the numbers of built-in types never change).

use crate::pgoutput::DataType;
use crate::sink::Content;
use std::collections::HashMap;

/// The smallest oid of a type that is not built in, such as a domain, an enum, or an extension's type.
const FIRST_CUSTOM: u32 = 16_384;

/// Whether the type is not built in.
pub(super) const fn is_custom(type_id: u32) -> bool {
    type_id >= FIRST_CUSTOM
}

/// The type of `char(n)`. Postgres pads its values with spaces.
pub(super) const BPCHAR: u32 = 1042;

/// The type below each domain. It never changes.
#[derive(Debug, Clone, Default)]
pub(super) struct Domains(HashMap<u32, u32>);

impl Domains {
    /// Adds the domains of the catalog, each with its base type, which is no domain.
    pub(super) fn add_from_catalog(&mut self, domains: &[(u32, u32)]) {
        self.0.extend(domains.iter().copied());
    }

    /// Adds a type that the stream announces, if it is a domain. The stream names a domain by the type below it.
    pub(super) fn add_from_stream(&mut self, DataType { id, namespace, name }: DataType<'_>) {
        let below = BUILT_IN.iter().find(|built_in| namespace.is_empty() && built_in.typname == name);
        self.0.extend(below.map(|below| (id, below.oid)));
    }

    /// The type below a domain. For another type, or a domain that is not known, the type itself.
    pub(super) fn below(&self, type_id: u32) -> u32 {
        self.0.get(&type_id).copied().unwrap_or(type_id)
    }
}

/// A type that has a [`ColumnKind`] of its own.
struct BuiltIn {
    /// `pg_type.oid`.
    oid: u32,
    /// `pg_type.typname`.
    typname: &'static str,
    /// Its name in SQL.
    sql: &'static str,
    kind: ColumnKind,
}

const fn built_in(oid: u32, typname: &'static str, sql: &'static str, kind: ColumnKind) -> BuiltIn {
    BuiltIn { oid, typname, sql, kind }
}

const BUILT_IN: [BuiltIn; 19] = [
    built_in(16, "bool", "boolean", ColumnKind::Bool),
    built_in(17, "bytea", "bytea", ColumnKind::Bytea),
    built_in(18, "char", "\"char\"", ColumnKind::Text),
    built_in(19, "name", "name", ColumnKind::Text),
    built_in(20, "int8", "bigint", ColumnKind::Int8),
    built_in(21, "int2", "smallint", ColumnKind::Int2),
    built_in(23, "int4", "integer", ColumnKind::Int4),
    built_in(25, "text", "text", ColumnKind::Text),
    built_in(26, "oid", "oid", ColumnKind::Number),
    built_in(114, "json", "json", ColumnKind::Json),
    built_in(700, "float4", "real", ColumnKind::Number),
    built_in(701, "float8", "double precision", ColumnKind::Number),
    built_in(BPCHAR, "bpchar", "character", ColumnKind::Text),
    built_in(1043, "varchar", "character varying", ColumnKind::Text),
    built_in(1114, "timestamp", "timestamp", ColumnKind::Timestamp),
    built_in(1184, "timestamptz", "timestamp with time zone", ColumnKind::Timestamptz),
    built_in(1700, "numeric", "numeric", ColumnKind::Number),
    built_in(2950, "uuid", "uuid", ColumnKind::Uuid),
    built_in(3802, "jsonb", "jsonb", ColumnKind::Jsonb),
];

/// The kind of a type: the uses that its values allow, and the form of its binary values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ColumnKind {
    Bool,
    Bytea,
    Int2,
    Int4,
    Int8,
    /// text, varchar, char(n), name and the like. Their binary form is the text.
    Text,
    Uuid,
    Json,
    Jsonb,
    Timestamp,
    Timestamptz,
    /// numeric, real, double precision, oid. Their text is a number.
    Number,
    /// A type that is not built in, or a domain over one: an enum, an extension's type, an array of domains. A domain may also be here
    /// because the catalog was not queried for it.
    Custom,
    Other,
}

impl ColumnKind {
    /// The content that a column of this kind has.
    pub(super) const fn content(self) -> Content {
        match self {
            Self::Json | Self::Jsonb => Content::Json,
            Self::Bytea => Content::Bytes,
            Self::Custom | Self::Other => Content::Unknown,
            Self::Bool
            | Self::Int2
            | Self::Int4
            | Self::Int8
            | Self::Text
            | Self::Uuid
            | Self::Timestamp
            | Self::Timestamptz
            | Self::Number => Content::Text,
        }
    }

    pub(super) fn of(type_id: u32) -> Self {
        let other = if is_custom(type_id) { Self::Custom } else { Self::Other };
        BUILT_IN.iter().find(|built_in| built_in.oid == type_id).map_or(other, |built_in| built_in.kind)
    }

    /// The media type of a value in its text form. For a bytea, it is that of its bytes.
    pub(super) const fn media_type(self) -> &'static str {
        match self.content() {
            Content::Json => "application/json",
            Content::Bytes => "application/octet-stream",
            Content::Text | Content::Unknown => "text/plain; charset=UTF-8",
        }
    }

    /// Whether a value may be a JSON object.
    pub(super) const fn may_hold_json(self) -> bool {
        matches!(self, Self::Json | Self::Jsonb | Self::Text | Self::Custom)
    }

    /// Whether a value may be a point in time, or the milliseconds of one.
    pub(super) const fn may_hold_time(self) -> bool {
        matches!(self, Self::Timestamp | Self::Timestamptz | Self::Int8 | Self::Custom)
    }

    pub(super) const fn may_hold_integer(self) -> bool {
        matches!(self, Self::Int2 | Self::Int4 | Self::Int8 | Self::Custom)
    }
}

/// Whether walrelay understands the type's binary form, so that a connection may ask for it.
pub(super) const fn binary_safe(type_id: u32) -> bool {
    matches!(type_id, 16 | 17 | 20 | 21 | 23 | 25 | 114 | 1043 | 2950 | 3802)
}

/// The type's name in SQL, or its oid.
pub(super) fn type_name(type_id: u32) -> String {
    const OTHERS: [(u32, &str); 3] = [(1082, "date"), (1083, "time"), (1186, "interval")];
    let mut known = BUILT_IN.iter().map(|built_in| (built_in.oid, built_in.sql)).chain(OTHERS);
    let name = known.find(|(oid, _)| *oid == type_id).map(|(_, name)| name.to_owned());
    name.unwrap_or_else(|| format!("of the type with oid {type_id}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_domain_is_the_type_that_the_catalogue_or_the_stream_has_below_it() {
        let mut domains = Domains::default();
        domains.add_from_catalog(&[(20_001, 17), (20_002, 20_009)]);
        domains.add_from_stream(DataType { id: 20_003, namespace: "", name: "jsonb" });
        domains.add_from_stream(DataType { id: 20_004, namespace: "shop", name: "jsonb" });
        domains.add_from_stream(DataType { id: 20_005, namespace: "", name: "date" });
        let below = [17, 20_001, 20_002, 20_003, 20_004, 20_005].map(|type_id| domains.below(type_id));
        assert_eq!(below, [17, 17, 20_009, 3802, 20_004, 20_005]);
        assert_eq!(ColumnKind::of(domains.below(20_001)), ColumnKind::Bytea);
        for built_in in BUILT_IN {
            let type_id = built_in.oid;
            assert!(!matches!(ColumnKind::of(type_id), ColumnKind::Custom | ColumnKind::Other), "{type_id}");
        }
    }

    #[test]
    fn a_columns_type_says_what_it_holds() {
        let expected = [
            (114, Content::Json),
            (3802, Content::Json),
            (17, Content::Bytes),
            (25, Content::Text),
            (1700, Content::Text),
            (FIRST_CUSTOM, Content::Unknown),
        ];
        for (type_id, content) in expected {
            assert_eq!(ColumnKind::of(type_id).content(), content, "{type_id}");
        }
    }
}
