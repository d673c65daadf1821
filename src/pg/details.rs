//! Reads facts about types and columns that the catalog has and a Relation message lacks.
//!
//! In: an open [`Connection`], a publication. Out: [`Details`], by oid and by name. This file does not interpret them.

use super::connection::{Connection, Row};
use super::error::Error;
use super::locked;
use super::quoting::literal;
use serde::Deserialize;
use std::collections::HashMap;

/// The facts about the published tables.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Details {
    /// Types that are not built in, by oid.
    pub types: HashMap<u32, TypeDetail>,
    /// Columns by schema, table and name.
    pub columns: HashMap<(String, String, String), ColumnDetail>,
}

/// The facts about a column.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ColumnDetail {
    /// Whether the column or its domain is `NOT NULL`, as Java's driver reports it.
    pub not_null: bool,
    /// Its `DEFAULT`, as `pg_get_expr` writes it.
    pub default: Option<String>,
}

/// The facts about a type that is not built in.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct TypeDetail {
    /// `pg_type.oid`.
    pub type_id: u32,
    /// `pg_type.typname`.
    pub name: String,
    /// The type below a domain. 0: the type is no domain.
    pub base: u32,
    /// The modifier that a domain gives the type below it. -1: none.
    pub base_modifier: i32,
    /// The type of an array's elements. 0: the type is no array.
    pub element: u32,
    /// An enum's labels, in order. `None`: the type is no enum.
    pub labels: Option<Vec<String>>,
}

/// Reads the types that are not built in and that a column may have (domains, enums, composite types, ranges, types of extensions, and
/// arrays of these), and the columns of the publication's tables.
///
/// # Errors
/// As [`published_tables`](super::server::published_tables).
pub fn read(connection: &mut Connection, publication: &str) -> Result<Details, Error> {
    let rows = connection.query(
        "SELECT pg_catalog.jsonb_build_object('type_id', t.oid::bigint, 'name', t.typname, 'base', t.typbasetype::bigint,
                'base_modifier', t.typtypmod, 'element', t.typelem::bigint, 'labels',
                (SELECT pg_catalog.jsonb_agg(e.enumlabel ORDER BY e.enumsortorder)
                   FROM pg_catalog.pg_enum AS e WHERE e.enumtypid = t.oid))
           FROM pg_catalog.pg_type AS t
          WHERE t.oid >= 16384 AND t.typtype <> 'p'",
    )?;
    let types = rows.iter().filter_map(|row| serde_json::from_str::<TypeDetail>(row.text(0)?).ok());
    let types = types.map(|found| (found.type_id, found)).collect();
    let sql = format!(
        "SELECT p.schemaname, p.tablename, a.attname, a.attnotnull OR (t.typtype = 'd' AND t.typnotnull),
                pg_catalog.pg_get_expr(d.adbin, d.adrelid)
           FROM pg_catalog.pg_publication_tables AS p
           JOIN pg_catalog.pg_namespace AS n ON n.nspname = p.schemaname
           JOIN pg_catalog.pg_class AS c ON c.relnamespace = n.oid AND c.relname = p.tablename
           JOIN pg_catalog.pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
           JOIN pg_catalog.pg_type AS t ON t.oid = a.atttypid
           LEFT JOIN pg_catalog.pg_attrdef AS d ON d.adrelid = c.oid AND d.adnum = a.attnum AND a.attgenerated = ''
          WHERE p.pubname = {}",
        literal(publication)
    );
    let rows = locked::query(connection, publication, &sql)?;
    let column = |row: &Row| {
        let name = (row.parse(0)?, row.parse(1)?, row.parse(2)?);
        Some((name, ColumnDetail { not_null: row.is_true(3), default: row.parse(4) }))
    };
    Ok(Details { types, columns: rows.iter().filter_map(column).collect() })
}
