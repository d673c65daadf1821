//! Watches the slots that carry the rows of an outbox: one slot, or one for each shard.
//!
//! In: the common names of publication and slot. Out: whether all slots have confirmed a position, and whether they still carry the rows
//! that they carried. Reads only.
//!
//! Invariant: a proof about a publication that was made before rows were listed is still true once its slot has confirmed. A move to another
//! set of shards changes the publications in one transaction, and from then on their slots carry no new row ([`crate::commands::setup`]).
//! So if the publications are unchanged, another slot carries none of the listed rows.

use super::evidence::Evidence;
use crate::commands::carrier::{self, Carrier};
use crate::commands::error::CommandError;
use crate::lsn::Lsn;
use crate::pg::slot_sighting::{self, Sighting, Witness};
use crate::pg::{self, Connection, catalog, literal};
use crate::supervise::RunError;

/// A publication with its slot.
#[derive(Debug)]
struct OutboxSlot {
    carrier: Carrier,
    /// The slot at the last sighting.
    slot: Sighting,
    /// The tables of its publication, as a hash ([`catalog::membership`]).
    members: Option<String>,
}

/// The slots that carry the rows of an outbox.
#[derive(Debug)]
pub(super) struct OutboxSlots {
    /// The common names of publication and slot.
    whole: Carrier,
    of: Vec<OutboxSlot>,
}

impl OutboxSlots {
    /// Finds the slots, and sights each of them.
    pub(super) fn look(connection: &mut Connection, whole: &Carrier) -> Result<Self, CommandError> {
        let carriers = whole.each_slot(connection)?;
        let look = |carrier: &Carrier| OutboxSlot::look(connection, carrier.clone());
        let of = carriers.iter().map(look).collect::<Result<Vec<_>, _>>();
        // A move that began between the two looks is seen by the second one.
        let slots = |carriers: &[Carrier]| carriers.iter().map(|carrier| carrier.slot.clone()).collect::<Vec<_>>();
        if slots(&whole.each_slot(connection)?) != slots(&carriers) {
            return Err(CommandError::publication_changed(&whole.publication));
        }
        Ok(Self { whole: whole.clone(), of: of? })
    }

    /// The slot, or the first shard's.
    pub(super) fn first(&self) -> &Carrier {
        self.of.first().map_or(&self.whole, |outbox_slot| &outbox_slot.carrier)
    }

    /// The publications with their slots.
    pub(super) fn carriers(&self) -> impl Iterator<Item = &Carrier> {
        self.of.iter().map(|outbox_slot| &outbox_slot.carrier)
    }

    /// Returns what is known of the tables of each slot.
    pub(super) fn evidence(&self, connection: &mut Connection) -> Result<Vec<Evidence>, CommandError> {
        self.of.iter().map(|outbox_slot| Evidence::find(connection, &outbox_slot.carrier, &outbox_slot.slot)).collect()
    }

    /// As SQL, whether a row is one of a shard's; `None`: there are no shards.
    pub(super) fn shared(&self, connection: &mut Connection, table: u32) -> Result<Option<String>, CommandError> {
        let mut filters = Vec::new();
        for OutboxSlot { carrier, .. } in self.of.iter().filter(|outbox_slot| outbox_slot.carrier.shard.is_some()) {
            let filter = filter(connection, &carrier.publication, table)?;
            let why = "it has the table without a row filter, or not at all";
            filters.push(
                filter.ok_or_else(|| CommandError::no_proof(&carrier.slot, &carrier.publication, (true, true), why))?,
            );
        }
        Ok((!filters.is_empty()).then(|| filters.join(" OR ")))
    }

    /// A slot that has not confirmed `position`. `None`: all slots have.
    pub(super) fn behind(
        &mut self,
        connection: &mut Connection,
        position: Lsn,
    ) -> Result<Option<&Carrier>, CommandError> {
        for outbox_slot in &mut self.of {
            match outbox_slot.confirmed(connection) {
                Ok(confirmed) if confirmed > position => {}
                Ok(_) => return Ok(Some(&outbox_slot.carrier)),
                // A move drops its slots, after it has changed the publications.
                Err(error) => return Err(outbox_slot.has_members(connection).err().unwrap_or(error)),
            }
        }
        Ok(None)
    }

    /// Takes the tables that the publications have now, in the transaction of `connection`: it has dropped one of them.
    pub(super) fn look_at_members(&mut self, connection: &mut Connection) -> Result<(), CommandError> {
        for outbox_slot in &mut self.of {
            outbox_slot.members = catalog::membership(connection, &outbox_slot.carrier.publication)?;
        }
        Ok(())
    }

    /// Checks that the slots still carry the rows that they carried at the first look.
    pub(super) fn are_unchanged(&self, connection: &mut Connection) -> Result<(), CommandError> {
        self.of.iter().try_for_each(|outbox_slot| outbox_slot.has_members(connection))
    }
}

impl OutboxSlot {
    fn look(connection: &mut Connection, carrier: Carrier) -> Result<Self, CommandError> {
        carrier::confirmed(connection, &carrier)?;
        let slot = sight(connection, &carrier)?;
        let members = catalog::membership(connection, &carrier.publication)?;
        Ok(Self { carrier, slot, members })
    }

    /// Checks that the publication has the same tables as before.
    fn has_members(&self, connection: &mut Connection) -> Result<(), CommandError> {
        let publication = &self.carrier.publication;
        if catalog::membership(connection, publication)? == self.members {
            return Ok(());
        }
        Err(CommandError::publication_changed(publication))
    }

    /// The slot's position, if it is proven to be the same slot as before. A slot that was created meanwhile has confirmed rows that it never
    /// carried.
    fn confirmed(&mut self, connection: &mut Connection) -> Result<Lsn, CommandError> {
        let carrier = &self.carrier;
        carrier::confirmed(connection, carrier)?;
        let now = sight(connection, carrier)?;
        if self.slot.proves(&now, Witness { watching: true, ..Witness::default() }).is_none() {
            let why = "a slot of that name may have been created while it was waited for";
            return Err(CommandError::no_proof(
                &carrier.slot,
                &carrier.publication,
                (carrier.shard.is_some(), true),
                why,
            ));
        }
        self.slot = now;
        Ok(self.slot.confirmed.unwrap_or_default())
    }
}

/// Sights the slot.
fn sight(connection: &mut Connection, carrier: &Carrier) -> Result<Sighting, CommandError> {
    let lost = || RunError::no_slot(&carrier.slot, true);
    Ok(slot_sighting::sight(connection, &carrier.slot)?.ok_or_else(lost)?)
}

/// The row filter that a publication has on a table. `None`: it has no filter, or does not have the table.
fn filter(connection: &mut Connection, publication: &str, table: u32) -> Result<Option<String>, pg::Error> {
    let rows = connection.query(&format!(
        "SELECT pg_catalog.pg_get_expr(m.prqual, m.prrelid) FROM pg_catalog.pg_publication_rel AS m
           JOIN pg_catalog.pg_publication AS p ON p.oid = m.prpubid WHERE p.pubname = {} AND m.prrelid = {table}",
        literal(publication)
    ))?;
    Ok(rows.first().and_then(|row| row.text(0)).map(|filter| format!("({filter})")))
}
