//! [`TableName`]: a table's name.
//!
//! In: a text. Out: the name as Postgres stores it. The table need not exist.

use crate::pg;
use crate::pgoutput::{PublishedTable, Relation};
use std::fmt;

/// Postgres truncates longer names (NAMEDATALEN - 1).
pub const MAX_NAME_BYTES: usize = 63;

/// The word before a table whose children by `INHERITS` are left out.
const ONLY: &str = "ONLY";

/// A table's name, as Postgres stores it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableName {
    /// The schema. `public` if the text has none.
    pub schema: String,
    /// The table.
    pub name: String,
}

impl TableName {
    /// The name of a relation.
    pub fn of(relation: &Relation) -> Self {
        Self { schema: relation.namespace.clone(), name: relation.name.clone() }
    }

    /// The name of the table itself, or of the root of a partition.
    pub fn of_whole(table: &PublishedTable) -> Self {
        let whole = table.ancestors.last().cloned();
        whole.map_or_else(|| Self::of(&table.relation), |(schema, name)| Self { schema, name })
    }

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

impl fmt::Display for TableName {
    /// Writes `public.outbox`, without quotes, for people.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.schema, self.name)
    }
}

impl TableName {
    /// The name in SQL.
    pub(crate) fn sql(&self) -> String {
        format!("{}.{}", pg::identifier(&self.schema), pg::identifier(&self.name))
    }

    /// The name as `--table` takes it.
    pub(crate) fn as_typed(&self) -> String {
        let plain = |name: &str| name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
        let part = |name: &str| if plain(name) { name.to_owned() } else { pg::identifier(name) };
        format!("{}.{}", part(&self.schema), part(&self.name))
    }

    /// The name as `--table` takes it. `only`: its children by `INHERITS` are left out.
    pub(crate) fn as_typed_only(&self, only: bool) -> String {
        if only { format!("{ONLY} {}", self.as_typed()) } else { self.as_typed() }
    }

    /// Parses a value of `--table`: a name, or `ONLY` and a name, as in SQL. Returns the name, and whether `ONLY` is before it.
    pub(crate) fn parse_only(text: &str) -> Option<(Self, bool)> {
        let after = text.trim().split_once(char::is_whitespace).filter(|(word, _)| word.eq_ignore_ascii_case(ONLY));
        match after {
            Some((_, name)) => Some((Self::parse(name)?, true)),
            None => Some((Self::parse(text)?, false)),
        }
    }

    /// Parses the name as SQL does: what is not in double quotes is folded to lower case. `None`: the text is not a table's name.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (first, rest) = identifier(text.trim())?;
        match rest.strip_prefix('.') {
            None if rest.is_empty() => Some(Self { schema: "public".to_owned(), name: first }),
            None => None,
            Some(rest) => match identifier(rest)? {
                (name, "") => Some(Self { schema: first, name }),
                _ => None,
            },
        }
    }
}

/// Parses one identifier. Returns it, and the text after it.
fn identifier(text: &str) -> Option<(String, &str)> {
    let (name, rest) = match text.strip_prefix('"') {
        Some(quoted) => up_to_quote(quoted, '"')?,
        None => plain_identifier(text)?,
    };
    is_name(&name).then_some((name, rest))
}

/// Parses up to a dot or a quote. Folds to lower case as Postgres does: only ASCII letters.
fn plain_identifier(text: &str) -> Option<(String, &str)> {
    let (name, rest) = text.split_at_checked(text.find(['.', '"']).unwrap_or(text.len()))?;
    Some((name.to_ascii_lowercase(), rest))
}

/// Parses up to the closing quote. A doubled quote stands for one. Returns the text before it, and the text after it.
pub(super) fn up_to_quote(text: &str, quote: char) -> Option<(String, &str)> {
    let mut inside = String::new();
    let mut rest = text;
    loop {
        let (part, after) = rest.split_once(quote)?;
        inside.push_str(part);
        match after.strip_prefix(quote) {
            Some(after) => (inside.push(quote), rest = after),
            None => return Some((inside, after)),
        };
    }
}

/// Whether Postgres takes the text as a name, in double quotes.
pub(crate) fn is_name(text: &str) -> bool {
    (1..=MAX_NAME_BYTES).contains(&text.len()) && !text.contains('\0')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn table(text: &str, schema: &str, name: &str) {
        assert_eq!(TableName::parse(text), Some(TableName { schema: schema.into(), name: name.into() }), "{text}");
    }

    #[test]
    fn tables_are_folded_unless_quoted() {
        table("outbox", "public", "outbox");
        table("Shop.Outbox", "shop", "outbox");
        table("shop.\"Out.Box\"", "shop", "Out.Box");
        table("\"My \"\"Schema\"\"\".outbox", "My \"Schema\"", "outbox");
    }

    #[test]
    fn only_is_read_before_a_name_and_is_no_part_of_it() {
        let parsed = |text| TableName::parse_only(text).map(|(table, only)| (table.as_typed_only(only), only));
        let is = |typed: &str, only| Some((typed.to_owned(), only));
        assert_eq!(parsed("outbox"), is("public.outbox", false));
        assert_eq!(parsed("ONLY shop.Outbox"), is("ONLY shop.outbox", true));
        assert_eq!(parsed(" only  \"Out box\""), is("ONLY public.\"Out box\"", true));
        assert_eq!(parsed("\"ONLY x\""), is("public.\"ONLY x\"", false));
        assert_eq!((parsed("only"), parsed("ONLY ")), (is("public.only", false), is("public.only", false)));
        assert_eq!(parsed("ONLY a.b.c"), None);
    }

    #[test]
    fn what_is_no_table_is_refused() {
        for text in ["", ".", "a.", ".a", "a.b.c", "\"a", "\"\"", "a\"b\"", "\"a\"b", &"x".repeat(64)] {
            assert_eq!(TableName::parse(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in any::<String>()) {
            let _read = TableName::parse(&text);
        }

        #[test]
        fn a_name_as_it_is_typed_comes_back(schema in "[^\0]{1,10}", name in "[^\0]{1,10}") {
            let table = TableName { schema, name };
            prop_assert_eq!(TableName::parse(&table.as_typed()), Some(table));
        }

        #[test]
        fn a_quoted_name_comes_back_as_it_was(schema in "[^\0]{1,10}", name in "[^\0]{1,10}") {
            let text = format!("\"{}\".\"{}\"", schema.replace('"', "\"\""), name.replace('"', "\"\""));
            prop_assert_eq!(TableName::parse(&text), Some(TableName { schema, name }));
        }
    }
}
