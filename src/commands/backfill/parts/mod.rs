//! How the rows of a table are reached: page by page, in an order that can be taken up again behind any row.
//!
//! ```text
//!  a key (primary key, or unique on NOT NULL columns)   WHERE (key) > (the last one's) ORDER BY key LIMIT n
//!  none                                                 WHERE ctid > the last one's AND ctid < a block further on ORDER BY ctid
//! ```
//!
//! In: what the catalogue says of a table. Out: SQL. A page of a table whose name another one has by then is empty. Each page is a statement of
//! its own, so that no transaction is kept open, unless all are read under the snapshot of a new slot. The second way is for that snapshot
//! alone: it finds rows by their ctid. The
//! order of the key is the one that its type and collation have.

use crate::outbox::TableName;
use crate::pg::{self, Connection, Row, identifier, literal};
use crate::pgoutput::Relation;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Blocks of a file that are read by one statement: 8 MiB.
const BLOCKS: u64 = 1024;

/// The texts of a row's key columns, or its ctid.
pub(super) type Key = Arc<[Option<String>]>;

/// A table, or a partition, whose rows are read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Part {
    /// Which of the tables that are asked for it belongs to.
    pub(super) table: usize,
    /// As which its rows are published: itself, or the table that it is a part of.
    pub(super) relation: Relation,
    /// `pg_class.oid`.
    pub(super) oid: u32,
    pub(super) name: TableName,
    /// `PARTITION BY`: its rows are those of its partitions.
    pub(super) partitioned: bool,
    /// The publication's row filter, as SQL.
    pub(super) filter: Option<String>,
    /// How pages are made.
    pub(super) paging: Paging,
    /// Where reading begins.
    pub(super) begin: Start,
    /// The greatest key that is read. `None`: there is no limit.
    pub(super) until: Option<Key>,
}

/// How pages are made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Paging {
    /// By these columns, which are unique together.
    Keys(Vec<KeyColumn>),
    /// By ctid.
    Ctids {
        /// `pg_relation_filenode`.
        file: u32,
        /// Blocks of the file.
        blocks: u64,
    },
}

/// A column of a key.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct KeyColumn {
    pub(super) name: String,
    /// As SQL writes it.
    pub(super) type_name: String,
    /// It has no nulls.
    pub(super) not_null: bool,
}

/// Where a page begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Start {
    /// At the first row.
    First,
    /// Behind the row with this key.
    After(Key),
    /// At the first row without a value in the first column of the key.
    Nulls,
    /// At this block.
    Block(u64),
}

/// The position up to which rows are read, or published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PartCursor {
    /// The part; beyond the last one: all of them.
    pub(super) part: usize,
    pub(super) start: Start,
}

/// A page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Page {
    /// The query.
    pub(super) sql: String,
    /// Where the next one begins; `None`: behind the last row of this one, if it is full.
    pub(super) next: Option<Start>,
}

/// The settings that all pages have in common.
#[derive(Debug, Clone)]
pub(super) struct PageSettings {
    /// `--where`.
    pub(super) condition: Option<String>,
    /// Rows of a page.
    pub(super) chunk: u32,
    /// The server keeps the time of commits.
    pub(super) commit_times: bool,
}

impl Part {
    /// The columns of its key, each with its type. Empty: its rows are read by their place.
    pub(super) fn columns(&self) -> Vec<String> {
        let Paging::Keys(keys) = &self.paging else { return Vec::new() };
        keys.iter().map(|key| format!("{} {}", key.name, key.type_name)).collect()
    }

    /// As SQL names its rows.
    pub(super) fn from(&self) -> String {
        let name = self.name.sql();
        if self.partitioned { name } else { format!("ONLY {name}") }
    }

    /// As SQL, that its name is still its own: another table may have it since.
    pub(super) fn is_named(&self) -> String {
        format!("pg_catalog.to_regclass({}) = {}::oid", literal(&self.name.sql()), self.oid)
    }

    /// As SQL, which rows are wanted: those that `--where` and the publication's filter let pass, up to the greatest key.
    fn wanted(&self, asked: &PageSettings) -> String {
        let mut rows = match (&self.paging, &self.until) {
            (Paging::Keys(keys), Some(until)) => compared(keys, "<=", until),
            (Paging::Keys(_) | Paging::Ctids { .. }, _) => "true".to_owned(),
        };
        for condition in asked.condition.iter().chain(&self.filter) {
            // On lines of its own: it may end with a comment.
            rows.extend([" AND (\n", condition, "\n)"]);
        }
        rows
    }

    /// Counts the rows that are wanted from `start` on.
    pub(super) fn count(&self, asked: &PageSettings, start: &Start) -> String {
        let mut behind = self.behind(start, None);
        if let Some(rest) = self.rest(start) {
            let rest = self.behind(&rest, None);
            behind = format!(" AND (true{behind} OR true{rest})");
        }
        let wanted = self.wanted(asked);
        format!("SELECT count(*) FROM {} WHERE {wanted}{behind}", self.from())
    }

    /// The query for the age of the oldest row in seconds. `time`: a row's, as SQL.
    pub(super) fn oldest(&self, asked: &PageSettings, time: &str) -> String {
        let wanted = self.wanted(asked);
        let age = format!("extract(epoch FROM pg_catalog.clock_timestamp() - pg_catalog.min({time}))");
        format!("SELECT floor({age})::bigint FROM {} WHERE {wanted}", self.from())
    }

    /// The query for the planner's estimate.
    pub(super) fn explain(&self, asked: &PageSettings) -> String {
        let wanted = self.wanted(asked);
        format!("EXPLAIN (FORMAT JSON) SELECT FROM {} WHERE {wanted}", self.from())
    }

    /// The query for the greatest key now. `None`: there is no key.
    pub(super) fn greatest(&self) -> Option<String> {
        let Paging::Keys(keys) = &self.paging else { return None };
        let texts: Vec<String> = keys.iter().map(|key| format!("{}::text", identifier(&key.name))).collect();
        let table = self.name.sql();
        let order: Vec<String> = keys.iter().map(|key| format!("{table}.{} DESC", identifier(&key.name))).collect();
        Some(format!(
            "SELECT {} FROM {} WHERE {} ORDER BY {} LIMIT 1",
            texts.join(", "),
            self.from(),
            self.is_named(),
            order.join(", ")
        ))
    }

    /// The page that begins at `start`: the published columns, the time of commit, the key. `None`: there is none.
    pub(super) fn page(&self, asked: &PageSettings, start: &Start) -> Option<Page> {
        let time = if asked.commit_times {
            "(extract(epoch FROM pg_catalog.pg_xact_commit_timestamp(xmin)) * 1000000)::bigint"
        } else {
            "NULL"
        };
        let columns = self.relation.columns.iter().map(|column| identifier(&column.name)).chain([time.to_owned()]);
        let (key, order, next) = match &self.paging {
            Paging::Keys(keys) => {
                let names: Vec<String> = keys.iter().map(|key| identifier(&key.name)).collect();
                let texts: Vec<String> = names.iter().map(|name| format!("{name}::text")).collect();
                // With the table's name: by itself a name in ORDER BY is that of a column of the result, which are texts.
                let order: Vec<String> = names.iter().map(|name| format!("{}.{name}", self.name.sql())).collect();
                (texts, format!(" ORDER BY {} LIMIT {}", order.join(", "), asked.chunk), None)
            }
            Paging::Ctids { blocks, .. } => {
                let from = first_block(start);
                if from >= *blocks {
                    return None;
                }
                // With the table's name, as above. An index, or a bitmap of one, gives them in another order, and is behind none.
                let order = format!(" ORDER BY {}.ctid", self.name.sql());
                (vec!["ctid::text".to_owned()], order, Some(Start::Block(from + BLOCKS)))
            }
        };
        let columns: Vec<String> = columns.chain(key).collect();
        let end = if let Some(Start::Block(end)) = &next { Some(*end) } else { None };
        let sql = format!(
            "SELECT {} FROM {} WHERE {} AND {}{}{order}",
            columns.join(", "),
            self.from(),
            self.is_named(),
            self.wanted(asked),
            self.behind(start, end)
        );
        Some(Page { sql, next })
    }

    /// Where reading continues after the last page from `start` on. Rows without a value have pages of their own: no index finds both them and
    /// those behind a value.
    pub(super) fn rest(&self, start: &Start) -> Option<Start> {
        let (Paging::Keys(keys), Start::After(key)) = (&self.paging, start) else { return None };
        let may_lack = keys.first().is_some_and(|first| !first.not_null);
        (may_lack && key.first().is_some_and(Option::is_some)).then_some(Start::Nulls)
    }

    /// As SQL, that a row is at `start` or behind it, and before the block `end`.
    fn behind(&self, start: &Start, end: Option<u64>) -> String {
        match (&self.paging, start) {
            (Paging::Keys(keys), Start::After(key)) => format!(" AND {}", behind_key(keys, key)),
            (Paging::Keys(keys), Start::Nulls) => {
                keys.first().map_or_else(String::new, |first| format!(" AND {} IS NULL", identifier(&first.name)))
            }
            (Paging::Keys(_), Start::First | Start::Block(_)) => String::new(),
            (Paging::Ctids { .. }, start) => {
                let from = match start {
                    Start::After(key) => {
                        let ctid = key.first().and_then(Option::as_deref).unwrap_or("(0,0)");
                        format!(" AND ctid > {}::tid", literal(ctid))
                    }
                    Start::First | Start::Nulls => String::new(),
                    Start::Block(block) => format!(" AND ctid >= '({block},0)'::tid"),
                };
                let end = end.map_or_else(String::new, |end| format!(" AND ctid < '({end},0)'::tid"));
                from + &end
            }
        }
    }
}

/// Behind a value, without rows that have none: these come last, as in an index. Only the first column may lack some, since the others are a
/// key's.
fn behind_key(keys: &[KeyColumn], last: &[Option<String>]) -> String {
    let list = |keys: &[KeyColumn], last: &[Option<String>]| compared(keys, ">", last);
    let (Some((first, others)), Some((text, rest))) = (keys.split_first(), last.split_first()) else {
        return "false".to_owned();
    };
    let name = identifier(&first.name);
    match text {
        None => format!("({name} IS NULL AND {})", list(others, rest)),
        Some(_) => list(keys, last),
    }
}

/// As SQL, that a key is greater than a value, or not.
fn compared(keys: &[KeyColumn], how: &str, with: &[Option<String>]) -> String {
    let names: Vec<String> = keys.iter().map(|key| identifier(&key.name)).collect();
    let value = |(key, text): (&KeyColumn, &Option<String>)| {
        format!("{}::{}", literal(text.as_deref().unwrap_or_default()), key.type_name)
    };
    let values: Vec<String> = keys.iter().zip(with).map(value).collect();
    format!("({}) {how} ({})", names.join(", "), values.join(", "))
}

/// The block that a page begins in.
fn first_block(start: &Start) -> u64 {
    match start {
        Start::First | Start::Nulls => 0,
        Start::Block(block) => *block,
        Start::After(key) => {
            let ctid = key.first().and_then(Option::as_deref).unwrap_or_default();
            let block = ctid.strip_prefix('(').and_then(|numbers| numbers.split(',').next());
            block.and_then(|block| block.parse().ok()).unwrap_or_default()
        }
    }
}

/// The catalogue's facts about one table or partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PartFacts {
    pub(super) oid: u32,
    pub(super) name: TableName,
    pub(super) partitioned: bool,
    pub(super) row_security: bool,
    file: u32,
    blocks: u64,
    /// Empty: it has none.
    key: Vec<KeyColumn>,
    /// The column that is to come first.
    order: Option<KeyColumn>,
}

impl PartFacts {
    /// How pages are made; `None`: the column that is to come first is not there, or there is no key behind it.
    pub(super) fn paging(&self, order: Option<&str>) -> Option<Paging> {
        match (order, &self.order) {
            (None, _) if self.key.is_empty() => Some(Paging::Ctids { file: self.file, blocks: self.blocks }),
            (None, _) => Some(Paging::Keys(self.key.clone())),
            (Some(_), Some(first)) if !self.key.is_empty() => {
                let others = self.key.iter().filter(|key| key.name != first.name).cloned();
                Some(Paging::Keys([first.clone()].into_iter().chain(others).collect()))
            }
            (Some(_), _) => None,
        }
    }

    /// Whether it has a key.
    pub(super) fn has_key(&self) -> bool {
        !self.key.is_empty()
    }
}

/// As SQL, a [`KeyColumn`] of the attribute `a`.
const COLUMN: &str = "pg_catalog.jsonb_build_object('name', a.attname, 'type_name',
    pg_catalog.format_type(a.atttypid, a.atttypmod), 'not_null', a.attnotnull)";

/// Looks tables up, in the order of their names. `order`: a column that is to come first.
pub(super) fn facts(
    connection: &mut Connection,
    tables: &[u32],
    order: Option<&str>,
) -> Result<Vec<PartFacts>, pg::Error> {
    let oids: Vec<String> = tables.iter().map(u32::to_string).collect();
    let rows = connection.query(&format!(
        "SELECT c.oid, n.nspname, c.relname, c.relkind = 'p', pg_catalog.row_security_active(c.oid),
                COALESCE(pg_catalog.pg_relation_filenode(c.oid), 0),
                CASE WHEN c.relkind = 'p' THEN 0
                     ELSE pg_catalog.pg_relation_size(c.oid) / current_setting('block_size')::bigint END,
                (SELECT pg_catalog.jsonb_agg({COLUMN} ORDER BY k.number)
                   FROM (SELECT i.indkey::int2[] AS columns, i.indnkeyatts FROM pg_catalog.pg_index AS i
                          WHERE i.indrelid = c.oid AND i.indisunique AND i.indisvalid AND i.indimmediate
                            AND i.indpred IS NULL AND i.indexprs IS NULL
                            AND NOT EXISTS (SELECT FROM pg_catalog.pg_attribute AS a
                                             WHERE a.attrelid = c.oid AND NOT a.attnotnull
                                               AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1]))
                          ORDER BY i.indisprimary DESC, i.indnkeyatts, i.indexrelid LIMIT 1) AS best,
                        LATERAL pg_catalog.unnest(best.columns[0:best.indnkeyatts - 1]) WITH ORDINALITY AS k (attnum, number)
                   JOIN pg_catalog.pg_attribute AS a ON a.attrelid = c.oid AND a.attnum = k.attnum),
                (SELECT {COLUMN} FROM pg_catalog.pg_attribute AS a
                  WHERE a.attrelid = c.oid AND a.attname = {} AND a.attnum > 0 AND NOT a.attisdropped)
           FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
          WHERE c.oid = ANY ('{{{}}}'::oid[]) ORDER BY n.nspname, c.relname",
        order.map_or_else(|| "NULL".to_owned(), literal),
        oids.join(",")
    ))?;
    Ok(rows.iter().filter_map(parse).collect())
}

fn parse(row: &Row) -> Option<PartFacts> {
    let text = |at| row.text(at).map(str::to_owned);
    Some(PartFacts {
        oid: row.parse(0)?,
        name: TableName { schema: text(1)?, name: text(2)? },
        partitioned: row.is_true(3),
        row_security: row.is_true(4),
        file: row.parse(5).unwrap_or_default(),
        blocks: row.parse(6).unwrap_or_default(),
        key: row.text(7).and_then(|json| serde_json::from_str(json).ok()).unwrap_or_default(),
        order: row.text(8).and_then(|json| serde_json::from_str(json).ok()),
    })
}

/// The partitions of a table that have rows.
pub(super) fn leaves(connection: &mut Connection, table: u32) -> Result<Vec<u32>, pg::Error> {
    let rows =
        connection.query(&format!("SELECT relid::oid FROM pg_catalog.pg_partition_tree({table}) WHERE isleaf"))?;
    Ok(rows.iter().filter_map(|row| row.parse(0)).collect())
}

/// The row filters of a publication, by table.
pub(super) fn filters(
    connection: &mut Connection,
    publication: &str,
) -> Result<BTreeMap<(String, String), String>, pg::Error> {
    let rows = connection.query(&format!(
        "SELECT schemaname, tablename, pg_catalog.to_jsonb(p) ->> 'rowfilter' FROM pg_catalog.pg_publication_tables AS p
          WHERE pubname = {}",
        literal(publication)
    ))?;
    let text = |row: &Row, at| row.text(at).map(str::to_owned);
    Ok(rows.iter().filter_map(|row| Some(((text(row, 0)?, text(row, 1)?), text(row, 2)?))).collect())
}

#[cfg(test)]
mod tests;
