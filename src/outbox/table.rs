//! `--table`: a table by schema and name.
//!
//! In: `schema.table`, or a table alone, which is in `public`; either part may stand in double quotes, as SQL has it.
//! Out: a filter over relations. Names are taken as they are typed: nothing is folded to lower case.

use crate::pgoutput::{PublishedTable, Relation};
use std::fmt;
use std::str::FromStr;

/// A table by name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TableFilter {
    /// Case as in the catalogue.
    pub schema: String,
    /// Case as in the catalogue.
    pub name: String,
}

impl TableFilter {
    /// Whether `relation` is this table.
    pub fn names(&self, relation: &Relation) -> bool {
        self.schema == relation.namespace && self.name == relation.name
    }

    /// Whether `table` is this table or a partition of it.
    pub fn covers(&self, table: &PublishedTable) -> bool {
        self.names(&table.relation)
            || table.ancestors.iter().any(|(schema, name)| *schema == self.schema && *name == self.name)
    }
}

impl fmt::Display for TableFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.schema, self.name)
    }
}

/// The text names no table.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is no table: expected schema.table, with parts that hold a dot in double quotes")]
pub struct ParseTableError(String);

impl FromStr for TableFilter {
    type Err = ParseTableError;

    fn from_str(text: &str) -> Result<Self, ParseTableError> {
        parse(text).ok_or_else(|| ParseTableError(text.to_owned()))
    }
}

fn parse(text: &str) -> Option<TableFilter> {
    let (first, rest) = identifier(text.trim())?;
    match rest.strip_prefix('.') {
        None if rest.is_empty() => Some(TableFilter { schema: "public".to_owned(), name: first }),
        None => None,
        Some(rest) => match identifier(rest)? {
            (name, "") => Some(TableFilter { schema: first, name }),
            _ => None,
        },
    }
}

/// The identifier that `text` begins with, and what follows it.
fn identifier(text: &str) -> Option<(String, &str)> {
    let (name, rest) = if let Some(inside) = text.strip_prefix('"') {
        quoted(inside)?
    } else {
        let (name, rest) = text.split_at(text.find(['.', '"']).unwrap_or(text.len()));
        (name.to_owned(), rest)
    };
    (!name.is_empty()).then_some((name, rest))
}

/// Up to the closing quote; two of them write one.
fn quoted(inside: &str) -> Option<(String, &str)> {
    let mut name = String::new();
    let mut rest = inside;
    loop {
        let (part, behind) = rest.split_once('"')?;
        name.push_str(part);
        match behind.strip_prefix('"') {
            Some(more) => {
                name.push('"');
                rest = more;
            }
            None => return Some((name, behind)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, schema: &str, name: &str) {
        assert_eq!(text.parse(), Ok(TableFilter { schema: schema.to_owned(), name: name.to_owned() }));
    }

    #[test]
    fn a_table_is_named_with_or_without_its_schema() {
        check("shop.outbox", "shop", "outbox");
        check("outbox", "public", "outbox");
        check("Shop.OutBox", "Shop", "OutBox");
        check(r#""my.shop"."Out ""box""""#, "my.shop", r#"Out "box""#);
        check(r#"shop."a.b""#, "shop", "a.b");
    }

    #[test]
    fn what_names_no_table_is_refused() {
        for text in ["", ".", "a.", ".a", "a.b.c", "\"a", "\"a\"b", "a\"b\"", "\"\"", "a..b"] {
            assert!(text.parse::<TableFilter>().is_err(), "{text}");
        }
    }
}
