//! Shards: relays that share the rows of a publication's tables, each with a publication and a slot of its own.
//!
//! In: the common names of publication and slot, the number of shards, and a table's key and id columns. Out: the names of each shard,
//! and its row filter as SQL. Pure.
//!
//! # Which shard has a row
//!
//! The number of a row's shard is the first byte of the SHA-256 of the record's key, modulo the number of shards. The hash must be
//! immutable, since a row filter takes no other function. It must be the same in each version of Postgres, since an upgrade must not
//! move a key while rows are in flight. SHA-256 is defined by a standard. Postgres' own `hashtext` may change between major versions,
//! and `md5` is refused by servers in FIPS mode. One byte is enough for [`MOST`] shards: the largest shard has at most 6 % more keys
//! than the mean.
//!
//! The hash is that of the key's bytes in the record, which are its text form. So if two tables have keys of different types, equal
//! keys of one topic are still in one shard. For a row without a key, the id is hashed, since such rows have no order among them. A row
//! without a key and an id counts like one with an empty key.
//!
//! Invariants: each row passes the filter of exactly one of the N shards; for no row is a filter null or an error, since an error in it
//! ends the walsender.
//! Specification: PostgreSQL manual, section 29.4 "Row Filters"; FIPS 180-4.

use super::quoting::identifier;
use std::fmt;

/// The most shards. Each walsender reads the whole WAL, so more shards only cost more.
pub const MOST: u8 = 16;

/// The length in bytes of the longest suffix of a shard's name: `_15_of_16`.
pub const SUFFIX_BYTES: usize = 9;

/// The first version with row filters.
pub const SINCE: u32 = 150_000;

/// A shard: one relay of N.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Shard {
    count: u8,
    index: u8,
}

impl Shard {
    /// Shard `index` of `count`. `None`: there is no such shard, or more than [`MOST`].
    pub const fn new(index: u8, count: u8) -> Option<Self> {
        if index < count && count <= MOST { Some(Self { count, index }) } else { None }
    }

    /// All shards of `count`.
    pub fn all(count: u8) -> impl Iterator<Item = Self> {
        (0..count.min(MOST)).map(move |index| Self { count, index })
    }

    /// Parses `I/N`. A name with a `-` may come before it, as in the names of a StatefulSet's pods or a service's instances:
    /// `walrelay-2/3`. `None`: the text names no shard.
    pub fn parse(text: &str) -> Option<Self> {
        let (index, count) = text.trim().rsplit_once('/')?;
        let index = index.rsplit_once('-').map_or(index, |(_, index)| index);
        Self::new(index.parse().ok()?, count.parse().ok()?)
    }

    /// The shard's number, from 0.
    pub const fn index(self) -> u8 {
        self.index
    }

    /// The number of shards.
    pub const fn count(self) -> u8 {
        self.count
    }

    /// The name of the shard's publication or slot. `whole`: the common name. The name has the number of shards. So while rows move
    /// from three shards to five, both sets can exist.
    pub fn name(self, whole: &str) -> String {
        format!("{whole}_{}_of_{}", self.index, self.count)
    }

    /// The common name, from the name of the shard's publication or slot. `None`: `name` is no name of this shard.
    pub fn whole(self, name: &str) -> Option<&str> {
        name.strip_suffix(&self.name(""))
    }

    /// As SQL, whether a row is in this shard.
    pub fn filter(self, hashed: &Hashed) -> String {
        format!("pg_catalog.get_byte(pg_catalog.sha256({}), 0) % {} = {}", hashed.bytes, self.count, self.index)
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.index, self.count)
    }
}

/// The value of a table's row that is hashed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hashed {
    /// The value as SQL, of type bytea. It is never null.
    bytes: String,
}

/// A column, and `pg_type.oid` of its type.
pub type ShardColumn<'a> = (&'a str, u32);

impl Hashed {
    /// The key or, if that is null, the id. `None`: a row filter cannot convert a key of this type to bytes. If the id has such a type,
    /// it is not used, and rows without a key are all in one shard.
    pub fn new(key: Option<ShardColumn<'_>>, id: Option<ShardColumn<'_>>) -> Option<Self> {
        let key = match key {
            Some(column) => Some(bytes(column)?),
            None => None,
        };
        let terms = key.into_iter().chain(id.and_then(bytes)).chain([r"'\x'::pg_catalog.bytea".to_owned()]);
        Some(Self { bytes: format!("COALESCE({})", terms.collect::<Vec<_>>().join(", ")) })
    }
}

/// As SQL, the bytes of a column's text form, or of a bytea itself. A row filter takes neither a cast to text nor `convert_to`, so this
/// calls the type's output function. `decode` takes a backslash for the beginning of an escape, so backslashes in texts are doubled
/// first.
fn bytes((name, type_id): ShardColumn<'_>) -> Option<String> {
    const BYTEA: u32 = 17;
    const TEXT: u32 = 25;
    const VARCHAR: u32 = 1043;
    const PLAIN: [(u32, &str); 5] =
        [(20, "int8out"), (21, "int2out"), (23, "int4out"), (1700, "numeric_out"), (2950, "uuid_out")];
    const BPCHAR: u32 = 1042;
    let column = identifier(name);
    let escaped = |text: &str| {
        let doubled = format!(r#"pg_catalog.replace({text} COLLATE pg_catalog."C", E'\\', E'\\\\')"#);
        format!("pg_catalog.decode({doubled}, 'escape')")
    };
    Some(match type_id {
        BYTEA => column,
        TEXT => escaped(&column),
        VARCHAR => escaped(&format!("{column}::pg_catalog.text")),
        BPCHAR => escaped(&format!("pg_catalog.textin(pg_catalog.bpcharout({column}))")),
        other => {
            let (_, function) = PLAIN.iter().find(|(type_id, _)| *type_id == other)?;
            format!("pg_catalog.decode(pg_catalog.textin(pg_catalog.{function}({column})), 'escape')")
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_is_read_from_an_ordinal_with_or_without_the_pods_name() {
        for (text, shard) in
            [("0/3", (0, 3)), ("walrelay-2/3", (2, 3)), (" orders-eu-15/16 ", (15, 16)), ("0/1", (0, 1))]
        {
            assert_eq!(Shard::parse(text), Some(Shard::new(shard.0, shard.1).unwrap()), "{text}");
        }
        for text in ["", "3/3", "0/0", "0/17", "3", "a/3", "1/b", "-1/3/", "1/3/x", "walrelay2/3", "300/3"] {
            assert_eq!(Shard::parse(text), None, "{text}");
        }
        assert_eq!(Shard::new(1, 3).unwrap().to_string(), "1/3");
    }

    #[test]
    fn no_two_shards_have_one_name_and_the_longest_suffix_is_known() {
        let names: Vec<String> = (1..=MOST).flat_map(Shard::all).map(|shard| shard.name("w")).collect();
        let distinct: std::collections::BTreeSet<&String> = names.iter().collect();
        assert_eq!(distinct.len(), names.len());
        assert_eq!(names.iter().map(|name| name.len() - 1).max(), Some(SUFFIX_BYTES));
        let first = Shard::new(0, 3).unwrap();
        assert_eq!(first.name("walrelay"), "walrelay_0_of_3");
        assert_eq!((first.whole("walrelay_0_of_3"), first.whole("walrelay_1_of_3")), (Some("walrelay"), None));
    }

    #[test]
    fn the_key_is_hashed_as_the_record_has_it_and_a_row_without_one_by_its_id() {
        let hashed = Hashed::new(Some(("Key", 25)), Some(("id", 2950))).unwrap();
        assert_eq!(
            Shard::new(1, 3).unwrap().filter(&hashed),
            r#"pg_catalog.get_byte(pg_catalog.sha256(COALESCE(pg_catalog.decode(pg_catalog.replace("Key" COLLATE pg_catalog."C", E'\\', E'\\\\'), 'escape'), pg_catalog.decode(pg_catalog.textin(pg_catalog.uuid_out("id")), 'escape'), '\x'::pg_catalog.bytea)), 0) % 3 = 1"#
        );
    }

    #[test]
    fn a_key_of_a_type_that_no_filter_takes_is_refused_and_an_id_left_out() {
        const JSONB: u32 = 3802;
        assert_eq!(Hashed::new(Some(("key", JSONB)), Some(("id", 25))), None);
        let hashed = Hashed::new(None, Some(("id", JSONB))).unwrap();
        assert_eq!(hashed.bytes, r"COALESCE('\x'::pg_catalog.bytea)");
    }
}
