//! [`Details`]: facts about types and columns that the catalog has and a Relation message lacks.
//!
//! In: the answers of two queries. Out: the same facts, by oid and by name. This file does not interpret them.

use std::collections::HashMap;

/// The facts about a column.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ColumnDetail {
    /// `NOT NULL`.
    pub not_null: bool,
    /// Its `DEFAULT`, as `pg_get_expr` writes it.
    pub default: Option<String>,
}

/// The facts about the published tables.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Details {
    /// Types that are not built in, by oid.
    pub types: HashMap<u32, TypeDetail>,
    /// Columns by schema, table and name.
    pub columns: HashMap<(String, String, String), ColumnDetail>,
}

/// The facts about a type that is not built in.
#[derive(Debug, Clone, PartialEq, Eq)]
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

/// Types that are not built in, by oid.
#[cfg(feature = "debezium")]
pub(super) type TypeDetails = HashMap<u32, TypeDetail>;
