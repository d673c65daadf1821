//! Whole days at once: partitions are made ahead, and old ones are dropped once they are delivered.
//!
//! In: a table that is partitioned by range of its age column. Out: what was made and dropped. Old partitions are looked up, and the
//! oldest transaction that runs then is noted; once the slot has confirmed what stands behind that, a partition is locked, and detached
//! and dropped if no transaction from that one on has left a row in it: what is older had ended before, so it is delivered.

use super::{Round, Table};
use crate::commands::error::CommandError;
use crate::commands::listed;
use crate::commands::output::duration;
use crate::pg::{self, catalog, identifier, literal, sqlstate};
use std::io::Write;

/// The first version that publishes whole schemas.
const SCHEMAS: u32 = 150_000;

/// How many days ahead partitions are made, today not counted.
const DAYS_AHEAD: u32 = 7;

/// `duplicate_table`: somebody has made that day's just now, or a table of that name is something else.
const NAME_IS_TAKEN: &str = "42P07";

/// `invalid_object_definition` (it would overlap): that day has its place.
const OVERLAPS: &str = "42P17";

/// The most bytes of a name.
const LONGEST_NAME: usize = 63;

/// The bounds of a partition `c` as times, as SQL; null where it has none.
const FROM: &str =
    "substring(pg_catalog.pg_get_expr(c.relpartbound, c.oid) FROM 'FROM \\(''([^'']+)''\\)')::timestamptz";
const UPTO: &str = "substring(pg_catalog.pg_get_expr(c.relpartbound, c.oid) FROM 'TO \\(''([^'']+)''\\)')::timestamptz";

/// Makes, detaches, drops.
pub(super) fn prune(round: &mut Round<'_>, table: &Table, out: &mut dyn Write) -> Result<(), CommandError> {
    let key = key(round, table)?;
    will_be_published(round, table)?;
    let age = duration(round.request.older_than);
    let old = old(round, table)?;
    round.nothing_joined(table)?;
    if round.request.dry_run {
        for name in &old {
            writeln!(out, "{}: partition {name} is older than {age} by {key}", table.target.name)?;
        }
        return Ok(());
    }
    make(round, table, out)?;
    if old.is_empty() {
        writeln!(out, "{}: no partition is older than {age} by {key}", table.target.name)?;
        return Ok(());
    }
    let oldest = catalog::oldest_running(&mut round.connection)?.unwrap_or_default();
    round.confirmed()?;
    let passed_over = round.passed_over(table, "");
    for name in old {
        if has_rows(round, &name, passed_over.as_deref())? {
            writeln!(out, "{}: rows that the relay skipped stay in partition {name}", table.target.name)?;
            continue;
        }
        let outcome = drop_partition(round, table, &name, oldest)?;
        writeln!(out, "{}: {outcome} partition {name}", table.target.name)?;
    }
    Ok(())
}

/// The one column that it is partitioned by; it has to be the age's.
fn key(round: &mut Round<'_>, table: &Table) -> Result<String, CommandError> {
    let refused = |why: String| CommandError::NoPartitions { table: table.target.name.to_string(), why };
    let rows = round.connection.query(&format!(
        "SELECT a.attname, a.atttypid::regtype::text FROM pg_catalog.pg_partitioned_table AS p
           JOIN pg_catalog.pg_attribute AS a ON a.attrelid = p.partrelid AND a.attnum = p.partattrs[0]
          WHERE p.partrelid = {} AND p.partstrat = 'r' AND p.partnatts = 1
            AND a.atttypid::regtype::text IN ('timestamp with time zone', 'timestamp without time zone', 'date')",
        table.target.shape.oid
    ))?;
    let key = rows.first().and_then(|row| row.text(0)).map(str::to_owned);
    let key = key.ok_or_else(|| refused("it is not partitioned by range of one column with a time".to_owned()))?;
    if table.age.name() == key {
        return Ok(key);
    }
    Err(refused(format!("it is partitioned by {key}, and age is taken from {}", table.age.name())))
}

/// Sees that the publication has each partition that comes: all tables, the table or one that it is a part of, or a schema of these.
fn will_be_published(round: &mut Round<'_>, table: &Table) -> Result<(), CommandError> {
    let (publication, oid) = (&round.carriers.first().publication, table.target.shape.oid);
    let in_schema = if catalog::server(&mut round.connection)?.version >= SCHEMAS {
        "EXISTS (SELECT FROM pg_catalog.pg_publication_namespace AS m WHERE m.pnpubid = p.oid AND m.pnnspid = c.relnamespace)"
    } else {
        "false"
    };
    let found = round.connection.query(&format!(
        "SELECT FROM pg_catalog.pg_publication AS p, pg_catalog.pg_class AS c
          WHERE p.pubname = {} AND c.oid IN (SELECT {oid} UNION SELECT relid FROM pg_catalog.pg_partition_ancestors({oid}) AS up (relid))
            AND (p.puballtables OR {in_schema}
                 OR EXISTS (SELECT FROM pg_catalog.pg_publication_rel AS m WHERE m.prpubid = p.oid AND m.prrelid = c.oid)) LIMIT 1",
        literal(publication)
    ))?;
    if !found.is_empty() {
        return Ok(());
    }
    let why = format!(
        "publication \"{publication}\" has partitions of it, and not the table itself: rows of a partition that is created now would not be published"
    );
    Err(CommandError::NoPartitions { table: table.target.name.to_string(), why })
}

/// Makes the days that have no place yet, today and ahead. Each takes a lock that writers wait for, so those that have are not tried.
fn make(round: &mut Round<'_>, table: &Table, out: &mut dyn Write) -> Result<(), CommandError> {
    let mut taken = Vec::new();
    for day in days(round, table)? {
        let schema = identifier(&table.target.name.schema);
        let name = format!("{schema}.{}", identifier(&name_of(table, &day.name)));
        let made = round.connection.query(&format!(
            "CREATE TABLE {name} PARTITION OF {} FOR VALUES FROM ('{}') TO ('{}')",
            table.target.sql_name(),
            day.from,
            day.upto
        ));
        match made {
            Ok(_) => writeln!(out, "{}: created partition {name}", table.target.name)?,
            Err(error) if error.code() == Some(NAME_IS_TAKEN) => taken.push((day.name, name)),
            Err(error) if error.code() == Some(OVERLAPS) => {}
            Err(error) => return Err(error.into()),
        }
    }
    if taken.is_empty() {
        return Ok(());
    }
    let lacking = days(round, table)?;
    match taken.into_iter().find(|(day, _)| lacking.iter().any(|lacks| lacks.name == *day)) {
        Some((_, name)) => Err(CommandError::NoPartitions {
            table: table.target.name.to_string(),
            why: format!("{name} is there, and is not its partition for that day: rename it"),
        }),
        None => Ok(()),
    }
}

/// A day that has no place yet, or has none for all of it.
struct Day {
    /// `YYYYMMDD`.
    name: String,
    from: String,
    upto: String,
}

/// Those of today and ahead.
fn days(round: &mut Round<'_>, table: &Table) -> Result<Vec<Day>, CommandError> {
    // A day that partitions of other bounds cover in part begins where they end.
    let days = round.connection.query(&format!(
        "SELECT pg_catalog.to_char(day, 'YYYYMMDD'), greatest(day::timestamptz, max(upto) FILTER (WHERE upto < day + 1))::text, (day + 1)::text
           FROM (SELECT current_date + n FROM generate_series(0, {DAYS_AHEAD}) AS n) AS days (day)
           LEFT JOIN (SELECT {FROM}, {UPTO} FROM pg_catalog.pg_inherits AS i
                        JOIN pg_catalog.pg_class AS c ON c.oid = i.inhrelid
                       WHERE i.inhparent = {} AND NOT i.inhdetachpending) AS there (since, upto)
             ON COALESCE(since < day + 1, true) AND upto > day
          GROUP BY day HAVING NOT COALESCE(bool_or(upto >= day + 1), false) ORDER BY day",
        table.target.shape.oid
    ))?;
    let text = |row: &pg::Row, at| row.text(at).map(str::to_owned);
    let day = |row| Some(Day { name: text(row, 0)?, from: text(row, 1)?, upto: text(row, 2)? });
    Ok(days.iter().filter_map(day).collect())
}

/// The name of a day's partition. That of a table with a long name has its number, so that it is another one than another table's.
fn name_of(table: &Table, day: &str) -> String {
    fitting(&table.target.name.name, table.target.shape.oid, day)
}

fn fitting(table: &str, oid: u32, day: &str) -> String {
    let name = format!("{table}_p{day}");
    if name.len() <= LONGEST_NAME {
        return name;
    }
    let end = format!("_{oid}_p{day}");
    let begin = table.get(..table.floor_char_boundary(LONGEST_NAME - end.len())).unwrap_or_default();
    format!("{begin}{end}")
}

/// Partitions whose last moment is old enough, without those with rows that may be from before the slot. Rows that the role does not see
/// could be such rows.
fn old(round: &mut Round<'_>, table: &Table) -> Result<Vec<String>, CommandError> {
    let rows = round.connection.query(&format!(
        "SELECT pg_catalog.format('%I.%I', n.nspname, c.relname), pg_catalog.row_security_active(c.oid)
           FROM pg_catalog.pg_inherits AS i JOIN pg_catalog.pg_class AS c ON c.oid = i.inhrelid
           JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
          WHERE i.inhparent = {} AND c.relkind = 'r' AND NOT i.inhdetachpending
            AND {UPTO}
                < pg_catalog.now() - interval '{} ms'
          ORDER BY c.relname",
        table.target.shape.oid,
        round.request.older_than.as_millis()
    ))?;
    if let Some(hidden) = rows.iter().find(|row| row.is_true(1)).and_then(|row| row.text(0)) {
        let why = format!("row security hides rows of partition {hidden} from this role");
        return Err(CommandError::NoPartitions { table: table.target.name.to_string(), why });
    }
    let (keeps, mut proven) = (round.keeps(table), Vec::new());
    for name in rows.iter().filter_map(|row| row.text(0)) {
        if !has_rows(round, name, keeps.as_deref())? {
            proven.push(name.to_owned());
        }
    }
    Ok(proven)
}

/// Whether a partition has rows that are to stay, by this condition.
fn has_rows(round: &mut Round<'_>, name: &str, stays: Option<&str>) -> Result<bool, pg::Error> {
    let Some(stays) = stays else { return Ok(false) };
    let one = format!("SELECT FROM {name} WHERE {stays} LIMIT 1");
    Ok(!round.connection.query_within(&one, listed::PATIENCE)?.is_empty())
}

/// What became of it. Nobody can add a row between the look and the end.
fn drop_partition(round: &mut Round<'_>, table: &Table, name: &str, oldest: u64) -> Result<&'static str, pg::Error> {
    let parent = table.target.sql_name();
    let newer = format!("SELECT FROM {name} WHERE NOT ({}) LIMIT 1", catalog::older_than(oldest));
    let connection = &mut round.connection;
    let looked = connection
        .query(&format!("BEGIN; LOCK TABLE {name} IN ACCESS EXCLUSIVE MODE"))
        .and_then(|_| connection.query_within(&newer, listed::PATIENCE));
    let outcome = match looked {
        Ok(rows) if rows.is_empty() => connection
            .query(&format!("ALTER TABLE {parent} DETACH PARTITION {name}; DROP TABLE {name}; COMMIT"))
            .map(|_| "dropped"),
        Ok(_) => Ok("rows still come into"),
        Err(error) => Err(error),
    };
    match outcome {
        Ok("dropped") => Ok("dropped"),
        Err(error) if error.code() == Some(sqlstate::LOCK_NOT_AVAILABLE) => {
            connection.query("ROLLBACK").map(|_| "somebody uses")
        }
        Err(error) => Err(error),
        Ok(other) => connection.query("ROLLBACK").map(|_| other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partitions_name_has_its_day_whole_however_long_the_tables_is() {
        assert_eq!(fitting("outbox", 16400, "20261125"), "outbox_p20261125");
        let longest = "o".repeat(53);
        assert_eq!(fitting(&longest, 16400, "20261125"), format!("{longest}_p20261125"));
        let longer = "ö".repeat(31);
        let name = fitting(&longer, 16400, "20261125");
        assert_eq!(name, format!("{}_16400_p20261125", "ö".repeat(23)));
    }
}
