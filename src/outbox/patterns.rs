//! Selects tables and columns by regular expressions, as Debezium's `table.include.list` and similar settings do.
//!
//! In: expressions in Java's syntax, with commas between them. Out: whether a table or a column is captured. An expression must match
//! the whole of `schema.table`, without regard to case. For a partition, only its own name counts, as in Debezium.
//! Specification: Debezium's PostgreSQL connector properties.

use regex::Regex;

use crate::pgoutput::Relation;
use crate::route::{self, TopicProblem};

/// The tables that are captured. The default captures every table.
#[derive(Debug, Clone, Default)]
pub struct TablePatterns {
    parts: Vec<PatternPart>,
}

#[derive(Debug, Clone)]
struct PatternPart {
    list: List,
    expressions: Vec<(String, Regex)>,
}

/// The effect of a list of expressions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum List {
    /// `schema.include.list`.
    IncludeSchemas,
    /// `schema.exclude.list`.
    ExcludeSchemas,
    /// `table.include.list`.
    IncludeTables,
    /// `table.exclude.list`.
    ExcludeTables,
    /// `column.include.list`: `schema.table.column`.
    IncludeColumns,
    /// `column.exclude.list`.
    ExcludeColumns,
}

impl List {
    const fn excludes(self) -> bool {
        matches!(self, Self::ExcludeSchemas | Self::ExcludeTables | Self::ExcludeColumns)
    }

    const fn is_of_columns(self) -> bool {
        matches!(self, Self::IncludeColumns | Self::ExcludeColumns)
    }

    const fn is_of_schemas(self) -> bool {
        matches!(self, Self::IncludeSchemas | Self::ExcludeSchemas)
    }
}

impl PatternPart {
    fn captures(&self, name: &str) -> bool {
        self.expressions.iter().any(|(_, regex)| regex.is_match(name)) != self.list.excludes()
    }
}

impl TablePatterns {
    /// Adds a list.
    ///
    /// # Errors
    /// An expression is not well-formed. The error has the expression, and what is wrong with it.
    pub fn add(&mut self, list: List, text: &str) -> Result<(), (String, TopicProblem)> {
        let compiled = |expression: String| match route::whole_match(&expression) {
            Ok(regex) => Ok((expression, regex)),
            Err(problem) => Err((expression, problem)),
        };
        let expressions = split(text).into_iter().map(compiled).collect::<Result<Vec<_>, _>>()?;
        if !expressions.is_empty() {
            self.parts.push(PatternPart { list, expressions });
        }
        Ok(())
    }

    /// Whether every table is captured.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Whether a table is captured.
    pub fn capture(&self, relation: &Relation) -> bool {
        self.capture_name(&relation.namespace, &relation.name)
    }

    /// Whether a table of this name is captured.
    pub fn capture_name(&self, schema: &str, name: &str) -> bool {
        let table = format!("{schema}.{name}");
        let mut parts = self.parts.iter().filter(|part| !part.list.is_of_columns());
        parts.all(|part| part.captures(if part.list.is_of_schemas() { schema } else { &table }))
    }

    /// Whether a list says which tables or schemas are captured, and not only which are left out.
    pub fn include_some(&self) -> bool {
        self.parts.iter().any(|part| matches!(part.list, List::IncludeTables | List::IncludeSchemas))
    }

    /// Whether a column of `table` (`schema.table`) is captured.
    pub fn capture_column(&self, table: &str, column: &str) -> bool {
        let name = format!("{table}.{column}");
        self.parts.iter().filter(|part| part.list.is_of_columns()).all(|part| part.captures(&name))
    }
}

impl std::fmt::Display for TablePatterns {
    /// Writes the expressions, with `!` before those that exclude.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shown = self.parts.iter().flat_map(|part| {
            let sign = if part.list.excludes() { "!" } else { "" };
            part.expressions.iter().map(move |(text, _)| format!("{sign}{text}"))
        });
        f.write_str(&shown.collect::<Vec<_>>().join(", "))
    }
}

/// Splits at commas. A comma after a backslash is part of the expression.
fn split(text: &str) -> Vec<String> {
    let mut items = vec![String::new()];
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        let escapes_comma = character == '\\' && characters.peek() == Some(&',');
        match (items.last_mut(), character) {
            (_, ',') => items.push(String::new()),
            (Some(item), '\\') if escapes_comma => item.extend(characters.next()),
            (Some(item), '\\') => item.extend(std::iter::once('\\').chain(characters.next())),
            (Some(item), other) => item.push(other),
            (None, _) => {}
        }
    }
    items.into_iter().map(|item| item.trim().to_owned()).filter(|item| !item.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn captures(lists: &[(List, &str)], schema: &str, table: &str) -> bool {
        let mut patterns = TablePatterns::default();
        for (list, text) in lists {
            patterns.add(*list, text).unwrap();
        }
        patterns.capture(&Relation {
            id: 1,
            namespace: schema.to_owned(),
            name: table.to_owned(),
            replica_identity: b'd',
            columns: Vec::new(),
        })
    }

    #[track_caller]
    fn included(text: &str, table: &str, expected: bool) {
        let (schema, table) = table.split_once('.').unwrap();
        assert_eq!(captures(&[(List::IncludeTables, text)], schema, table), expected, "{text} of {schema}.{table}");
    }

    #[test]
    fn an_expression_matches_the_whole_name_in_any_case() {
        included("public.outbox", "public.outbox", true);
        included("public.outbox", "public.outbox_2", false);
        included("public.outbox", "xpublic.outbox", false);
        included("PUBLIC.Outbox", "public.outbox", true);
        included("public.outbox", "public.OUTBOX", true);
        included(r"public\.outbox", "public.outbox", true);
        included("public.outbox", "publicxoutbox.a", false);
    }

    #[test]
    fn expressions_are_javas_and_stand_between_commas() {
        included(r"(a|b)\.outbox_\d+, shop.events ", "b.outbox_12", true);
        included(r"(a|b)\.outbox_\d+, shop.events ", "shop.events", true);
        included(r".*\.outbox", "any.outbox", true);
        included(r"a\.x{1\,2}", "a.xx", true);
        included(r"\Qa.b\E", "a.b", true);
        included(",", "a.b", true);
    }

    #[test]
    fn lists_work_together() {
        let lists = [(List::IncludeSchemas, "shop"), (List::ExcludeTables, ".*_old")];
        assert!(captures(&lists, "shop", "outbox"));
        assert!(!captures(&lists, "shop", "outbox_old"));
        assert!(!captures(&lists, "other", "outbox"));
        assert!(!captures(&[(List::ExcludeSchemas, "shop")], "shop", "outbox"));
        assert!(captures(&[], "any", "thing"));
    }

    #[test]
    fn what_is_no_expression_is_named() {
        let error = TablePatterns::default().add(List::IncludeTables, "a.b, (c").unwrap_err();
        assert_eq!(error.0, "(c");
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "[a-c.,*+()\\[\\]{}\\\\d| ]{0,30}") {
            let _added = TablePatterns::default().add(List::IncludeTables, &text).is_ok();
        }
    }
}
