//! Reads a table's columns, triggers, rules and foreign keys, for commands that delete or insert its rows.
//!
//! In: an open [`Connection`] and a table's name. Out: plain values. This file only reads.
//! Specification: PostgreSQL manual, chapter 53 "System Catalogs".

use super::connection::{Connection, Row};
use super::error::Error;
use super::quoting::{identifier, literal};

/// The columns and properties of a table.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Shape {
    /// `pg_class.oid`.
    pub oid: u32,
    /// Whether it has `PARTITION BY`.
    pub partitioned: bool,
    /// Whether its rows survive a crash of the server: it is neither `UNLOGGED` nor temporary.
    pub logged: bool,
    /// The columns, in order.
    pub columns: Vec<ShapeColumn>,
    /// The triggers that fire when its rows are inserted or deleted.
    pub triggers: Vec<String>,
    /// The foreign keys of other tables that refer to it. So a delete may cascade, or fail.
    pub referenced_by: Vec<String>,
    /// Its rewrite rules for inserts and deletes.
    pub rules: Vec<String>,
    /// Whether row security hides rows from the connection's role.
    pub row_security: bool,
}

impl Shape {
    /// The statement that deletes the rows of this condition and inserts them again with the same values, in the order of those columns
    /// of `order` that the table has. If a row is not inserted again, the statement fails as a whole. `table`: as SQL names it. `None`:
    /// triggers, rules, row security or foreign keys of other tables would do more.
    pub fn publishing_again(&self, table: &str, condition: &str, order: &[&str]) -> Option<String> {
        let names = [&self.triggers, &self.referenced_by, &self.rules];
        if self.row_security || names.iter().any(|names| !names.is_empty()) {
            return None;
        }
        let list = |names: &mut dyn Iterator<Item = &str>| names.map(identifier).collect::<Vec<_>>().join(", ");
        let has = |name: &&str| self.columns.iter().any(|column| column.name == *name);
        let order = list(&mut order.iter().copied().filter(has));
        let order = if order.is_empty() { order } else { format!(" ORDER BY {order}") };
        let own = self.columns.iter().filter(|column| !column.generated);
        let columns = list(&mut own.map(|column| column.name.as_str()));
        // A table that inherits from it without being a partition has rows of its own.
        let only = if self.partitioned { "" } else { "ONLY " };
        Some(format!(
            "WITH r AS (DELETE FROM {only}{table} WHERE {condition} RETURNING *), i AS (INSERT INTO {table} ({columns}) OVERRIDING SYSTEM VALUE SELECT {columns} FROM r{order} RETURNING 1) SELECT 1 / ((SELECT count(*) FROM r) = (SELECT count(*) FROM i))::int"
        ))
    }
}

/// A column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShapeColumn {
    /// Its name.
    pub name: String,
    /// `pg_type.oid`.
    pub type_id: u32,
    /// `pg_attribute.atttypmod`, such as the length of a `varchar`; -1 for none.
    pub type_modifier: i32,
    /// Whether it is computed from other columns.
    pub generated: bool,
}

impl ShapeColumn {
    /// Whether it takes every value of the column `other` as it is.
    pub fn takes(&self, other: &Self) -> bool {
        const TEXT: u32 = 25;
        const VARCHAR: u32 = 1043;
        let is_same = self.type_id == other.type_id && [other.type_modifier, -1].contains(&self.type_modifier);
        is_same || (self.type_id == TEXT && other.type_id == VARCHAR)
    }
}

/// Looks a table up. `None`: there is no such table.
///
/// # Errors
/// The connection broke.
pub fn shape(connection: &mut Connection, schema: &str, name: &str) -> Result<Option<Shape>, Error> {
    let rows = connection.query(&format!(
        "SELECT c.oid, c.relkind = 'p', pg_catalog.row_security_active(c.oid), c.relpersistence = 'p'
           FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
          WHERE n.nspname = {} AND c.relname = {} AND c.relkind IN ('r', 'p')",
        literal(schema),
        literal(name)
    ))?;
    let Some(row) = rows.first() else { return Ok(None) };
    let oid = row.parse(0).unwrap_or_default();
    let mut names = |sql: String| connection.texts(&sql);
    // In tgtype, 4 is INSERT and 8 is DELETE.
    let triggers = names(format!(
        "SELECT tgname || ' on ' || tgrelid::regclass FROM pg_catalog.pg_trigger
          WHERE NOT tgisinternal AND tgenabled IN ('O', 'A') AND tgtype & 12 <> 0
            AND (tgrelid = {oid} OR tgrelid IN (SELECT relid FROM pg_catalog.pg_partition_tree({oid})))
          ORDER BY 1"
    ))?;
    let referenced_by = names(format!(
        "SELECT conname || ' of ' || conrelid::regclass || CASE confdeltype WHEN 'c' THEN ' (ON DELETE CASCADE)'
                WHEN 'n' THEN ' (ON DELETE SET NULL)' WHEN 'd' THEN ' (ON DELETE SET DEFAULT)' ELSE '' END
           FROM pg_catalog.pg_constraint WHERE contype = 'f' AND conparentid = 0
            AND confrelid IN (SELECT {oid} UNION SELECT relid FROM pg_catalog.pg_partition_tree({oid}))
            AND (conrelid <> {oid} OR confdeltype IN ('c', 'n', 'd')) ORDER BY 1"
    ))?;
    let rules = names(format!(
        "SELECT rulename FROM pg_catalog.pg_rewrite WHERE ev_class = {oid} AND ev_type IN ('3', '4') ORDER BY 1"
    ))?;
    let (partitioned, row_security, logged) = (row.is_true(1), row.is_true(2), row.is_true(3));
    let columns = columns(connection, oid)?;
    Ok(Some(Shape { oid, partitioned, logged, columns, triggers, referenced_by, rules, row_security }))
}

fn columns(connection: &mut Connection, oid: u32) -> Result<Vec<ShapeColumn>, Error> {
    let rows = connection.query(&format!(
        "SELECT attname, atttypid, attgenerated <> '', atttypmod FROM pg_catalog.pg_attribute
          WHERE attrelid = {oid} AND attnum > 0 AND NOT attisdropped ORDER BY attnum"
    ))?;
    let column = |row: &Row| {
        Some(ShapeColumn {
            name: row.text(0)?.to_owned(),
            type_id: row.parse(1)?,
            type_modifier: row.parse(3).unwrap_or(-1),
            generated: row.is_true(2),
        })
    };
    Ok(rows.iter().filter_map(column).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(columns: &[(&str, bool)]) -> Shape {
        let column = |(name, generated): &(&str, bool)| ShapeColumn {
            name: (*name).to_owned(),
            type_id: 25,
            type_modifier: -1,
            generated: *generated,
        };
        Shape { columns: columns.iter().map(column).collect(), ..Shape::default() }
    }

    #[test]
    fn the_statement_leaves_generated_columns_out_and_orders_by_what_is_there() {
        let shape = shape(&[("id", false), ("At", false), ("shown", true)]);
        let expected = "WITH r AS (DELETE FROM ONLY public.outbox WHERE id = 7 RETURNING *), i AS (INSERT INTO public.outbox (\"id\", \"At\") \
                        OVERRIDING SYSTEM VALUE SELECT \"id\", \"At\" FROM r ORDER BY \"At\", \"id\" RETURNING 1) \
                        SELECT 1 / ((SELECT count(*) FROM r) = (SELECT count(*) FROM i))::int";
        assert_eq!(shape.publishing_again("public.outbox", "id = 7", &["created_at", "At", "id"]).unwrap(), expected);
        let partitioned = Shape { partitioned: true, ..shape };
        assert!(partitioned.publishing_again("o", "true", &[]).unwrap().contains("DELETE FROM o WHERE true RETURNING"));
    }

    #[test]
    fn a_column_takes_what_is_of_its_type_and_no_longer() {
        let column =
            |type_id, type_modifier| ShapeColumn { name: "c".to_owned(), type_id, type_modifier, generated: false };
        assert!(column(1043, -1).takes(&column(1043, 14)) && column(25, -1).takes(&column(1043, 14)));
        assert!(!column(1043, 9).takes(&column(1043, 14)) && !column(1043, 9).takes(&column(25, -1)));
        assert!(!column(25, -1).takes(&column(1042, 14)) && !column(23, -1).takes(&column(20, -1)));
    }

    #[test]
    fn there_is_none_where_more_would_happen() {
        let plain = || shape(&[("id", false)]);
        let one = || vec!["x".to_owned()];
        for shape in [
            Shape { triggers: one(), ..plain() },
            Shape { rules: one(), ..plain() },
            Shape { referenced_by: one(), ..plain() },
            Shape { row_security: true, ..plain() },
        ] {
            assert_eq!(shape.publishing_again("o", "true", &["id"]), None);
        }
    }
}
