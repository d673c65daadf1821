//! Which rows are proven to have come through the slot at all.
//!
//! In: the mark that `setup --apply` left, and what the publication has now. Out: a condition in SQL.
//!
//! Rows that the relay has skipped were in the slot and are in no topic: these stay as well ([`kept`]).
//!
//! Invariant: a row that this lets through was inserted while the slot was there and the publication had its table. Two things have to
//! say so, of the slot that is there now ([`Anchor`](crate::pg::slot_sighting::Anchor)). Its transaction must be younger than the mark: but an update, and a rewrite of the table, give a row from before a new one.
//! And its age must be: but applications may write any time into a column. A publication that was changed since proves nothing.

use super::age::Age;
use super::table::Table;
use crate::commands::error::CommandError;
use crate::commands::outbox_place::{OutboxPlace, objection};
use crate::pg::slot_sighting::Sighting;
use crate::pg::{Connection, catalog, identifier, literal, marker, server, skipped_rows};

/// Since when everything has come through.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Proof {
    /// In seconds since 1970.
    seconds: u64,
    /// The transaction that was the next one; `None`: so long ago that rows cannot be compared with it any more.
    pub(super) xid: Option<u64>,
    /// Ids of rows that the relay has skipped.
    kept: Vec<String>,
    /// The large objects where these stand.
    places: Vec<u32>,
}

impl Proof {
    /// Reads the mark; `slot`: the one that is there now.
    pub(super) fn find(
        connection: &mut Connection,
        place: &OutboxPlace,
        slot: &Sighting,
    ) -> Result<Self, CommandError> {
        let mark = catalog::publication_mark(connection, &place.publication)?;
        let missing = |why: &str| missing(place, why);
        let whole = marker::complete_since(mark.comment.as_deref(), &place.slot)
            .ok_or_else(|| missing("it was not written down"))?;
        if catalog::membership(connection, &place.publication)?.as_ref() != Some(&whole.members) {
            return Err(missing("the publication was changed after it was written down"));
        }
        let is_of_all = server::publication(connection, &place.publication)?.is_some_and(|found| found.puballtables);
        if is_of_all && catalog::server(connection)?.may_have_left_out() {
            return Err(missing(
                "a publication of all tables may have left a table out for a while (EXCEPT), and Postgres keeps no trace of that",
            ));
        }
        if let Some(why) = objection(mark.comment.as_deref(), &place.slot, Some(slot)) {
            return Err(missing(why));
        }
        let next = catalog::next_transaction(connection)?.unwrap_or(u64::MAX);
        let xid = Some(whole.xid).filter(|xid| catalog::is_comparable(*xid, next));
        let (kept, places) = kept(connection, place)?;
        Ok(Self { seconds: whole.seconds, xid, kept, places })
    }

    /// Reads again what was skipped of these slots, which are all that it is of.
    pub(super) fn look_again<'a>(
        &mut self,
        connection: &mut Connection,
        places: impl Iterator<Item = &'a OutboxPlace>,
    ) -> Result<(), CommandError> {
        self.kept.clear();
        self.places.clear();
        for place in places {
            let (kept, places) = kept(connection, place)?;
            self.kept.extend(kept);
            self.places.extend(places);
        }
        Ok(())
    }

    /// Joins the proofs of two shards' slots: a row may be in either.
    pub(super) fn and(mut self, mut other: Self) -> Self {
        self.kept.append(&mut other.kept);
        self.places.append(&mut other.places);
        Self { seconds: self.seconds.max(other.seconds), xid: self.xid.max(other.xid), ..self }
    }

    /// As SQL, whether the relay has skipped a row; `None`: it has skipped none. `row`: what the row is called there, and a dot, or
    /// nothing.
    pub(super) fn passed_over(&self, table: &Table, row: &str) -> Option<String> {
        const BYTEA: u32 = 17;
        let column = format!("{row}{}", identifier(&table.id));
        let is_bytea = table.shape.columns.iter().any(|column| column.name == table.id && column.type_id == BYTEA);
        if is_bytea {
            let each: Vec<String> = self.kept.iter().map(|id| begins_with(&column, id)).collect();
            return (!each.is_empty()).then(|| format!("({})", each.join(" OR ")));
        }
        // As the slot has it: a cast to text would take the blanks off a char(n).
        let text = format!("pg_catalog.concat({column})");
        let ids: Vec<String> = self.kept.iter().map(|id| literal(id)).collect();
        (!ids.is_empty())
            .then(|| format!("pg_catalog.left({text}, {}) IN ({})", skipped_rows::COMPARED, ids.join(", ")))
    }

    /// As SQL, what forgets the rows that were skipped.
    pub(super) fn forget(&self) -> String {
        forget(&self.places)
    }

    /// As SQL, whether a row is to stay.
    pub(super) fn keeps(&self, table: &Table) -> String {
        let lacks = self.lacks(&table.age);
        self.passed_over(table, "").map_or_else(|| lacks.clone(), |passed| format!("({lacks} OR {passed})"))
    }

    /// As SQL, whether that is not proven of a row.
    pub(super) fn lacks(&self, age: &Age) -> String {
        let before = age.before(&format!("pg_catalog.to_timestamp({})", self.seconds));
        match self.xid {
            Some(xid) => format!("({before} OR {})", catalog::older_than(xid)),
            None => before,
        }
    }
}

/// The ids of the rows of a slot that the relay has skipped, and the large objects where they stand.
fn kept(connection: &mut Connection, place: &OutboxPlace) -> Result<(Vec<String>, Vec<u32>), CommandError> {
    let (kept, places) = skipped_rows::read(connection, &place.slot)?;
    if kept.others {
        return Err(CommandError::rows_skipped(&place.slot, &forget(&places)));
    }
    Ok((kept.ids, places))
}

/// As SQL, whether a column of bytes is this text; of a longer one, whether it begins with it.
fn begins_with(column: &str, text: &str) -> String {
    let bytes = text.bytes().fold("'\\x".to_owned(), |bytes, byte| format!("{bytes}{byte:02x}"));
    if text.chars().count() < skipped_rows::COMPARED {
        return format!("{column} = {bytes}'::bytea");
    }
    format!("pg_catalog.substr({column}, 1, {}) = {bytes}'::bytea", text.len())
}

/// As SQL, what forgets the rows that were skipped.
fn forget(places: &[u32]) -> String {
    places.iter().map(|place| format!("SELECT lo_unlink({place});")).collect::<Vec<_>>().join(" ")
}

/// That nothing is proven.
pub(super) fn missing(place: &OutboxPlace, why: &str) -> CommandError {
    CommandError::no_proof(&place.slot, &place.publication, place.shard.is_some(), why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_of_bytes_is_compared_as_the_bytes_of_its_text() {
        assert_eq!(begins_with("id", "aä"), "id = '\\x61c3a4'::bytea");
        let long = "ä".repeat(skipped_rows::COMPARED);
        assert_eq!(
            begins_with("id", &long),
            format!("pg_catalog.substr(id, 1, 128) = '\\x{}'::bytea", "c3a4".repeat(64))
        );
    }

    #[test]
    fn a_row_is_to_be_younger_by_its_age_and_by_its_transaction() {
        let age = Age::Column("at".to_owned(), 1184);
        let proof = Proof { seconds: 1000, xid: Some(4_294_967_300), kept: Vec::new(), places: Vec::new() };
        assert_eq!(
            proof.lacks(&age),
            "(\"at\" < pg_catalog.to_timestamp(1000) OR (age(xmin) > age('4'::xid) OR age(xmin) < 0))"
        );
        let never = Proof { xid: None, ..proof.clone() };
        assert_eq!(never.lacks(&age), "\"at\" < pg_catalog.to_timestamp(1000)");
        let later = Proof { seconds: 2000, xid: Some(7), kept: vec!["a".to_owned()], places: vec![5] };
        let both = proof.clone().and(later).and(never);
        assert_eq!((both.seconds, both.xid, both.kept, both.places), (2000, proof.xid, vec!["a".to_owned()], vec![5]));
    }
}
