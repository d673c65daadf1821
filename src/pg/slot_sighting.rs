//! Decides whether a slot is the same one that was seen under its name before.
//!
//! In: two sightings of a slot, or one sighting and the setup marker. Out: a proof that it is the same slot, or that there is none.
//! Without a proof, the slot may be another one.
//!
//! # Why
//!
//! A slot has a name and no identity: `pg_replication_slots` has no column that tells one slot from a later one of the same name. If a
//! slot was dropped and created again, it does not have the rows that were committed between. Its `confirmed_flush_lsn` is ahead of the
//! position that was read. If another relay has read the slot, its `confirmed_flush_lsn` is ahead, too. So both cases look alike, but
//! the first one has lost rows.
//!
//! # What proves that a slot is the one that was seen
//!
//! Let `W` be the end of the flushed WAL when the slot was seen. [`Sighting::proves`] tries, in this order:
//!
//! | proof | reasoning |
//! |---|---|
//! | it has not moved | `CREATE` starts a slot at the insert position, so a new slot's `confirmed_flush_lsn` is beyond every position that was read |
//! | `restart_lsn < W` | `CREATE` sets `restart_lsn` to the insert position, which is never below `W`, and it never moves back |
//! | the same walsender holds it | a slot that is in use cannot be dropped |
//! | it was copied by slot synchronization | after a promotion: a slot that is created there is not `synced` |
//! | its transactions were counted further | `pg_stat_replication_slots.total_txns` begins at 0 in a new slot. It counts the transactions that were decoded, and has not gone back |
//! | another walsender holds it | another relay has taken over |
//!
//! `W` is a flushed position, not an inserted one, since the WAL may end earlier after a crash. On a standby it is the replayed position.
//! If the counter has gone back although the server has kept its statistics, the last two proofs do not count.
//!
//! # What proves nothing
//!
//! A relay loses its connection. Another relay then reads the slot, moves `restart_lsn` (every 15 s under load), and ends. When the
//! first relay connects again, it has only the counter as a proof. If the server has crashed, the counter was reset, and there is no
//! proof.
//!
//! # Limits
//!
//! * `pg_copy_logical_replication_slot` gives a new slot the positions of its origin. If a slot is dropped and replaced by such a copy,
//!   the copy counts as the same slot.
//! * The counter does not prove who has read the slot. If a user drops and creates the slot, and then reads at least as many
//!   transactions as were counted before, that user counts as a relay. So does a relay that begins with the new slot: the relays before it
//!   must see that the slot is new.
//! * No transaction was ever decoded from a slot, and a waiting relay watches it. If the slot is dropped and created again between the
//!   end of its reader and the next query of the waiting relay, it counts as the same slot.
//! * A new process has no sighting. It has the setup marker ([`Anchor`]), if there is one.
//!
//! Specification: PostgreSQL manual, sections 54.20 "pg_replication_slots", 28.2.5 "pg_stat_replication_slots";
//! `ReplicationSlotReserveWal`.

use super::connection::{Connection, Row};
use super::error::Error;
use super::quoting::literal;
use crate::lsn::Lsn;

/// A slot at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sighting {
    /// The end of the WAL that survives a crash. It is read before the slot.
    pub written: Lsn,
    /// The position where decoding would begin. `0/0`: there is none yet.
    pub restart_lsn: Lsn,
    /// `confirmed_flush_lsn`; `None`: the slot is being created.
    pub confirmed: Option<Lsn>,
    /// The walsender that holds the slot.
    pub reader: Option<u32>,
    /// Whether slot synchronization copied it from a primary.
    pub synced: bool,
    /// The number of transactions that were decoded from it. `None`: the number cannot be compared.
    pub transactions: Option<u64>,
    /// When somebody reset that counter.
    pub counter_reset: Option<String>,
    /// When the server began its statistics, in seconds since 1970.
    pub counted_since: Option<u64>,
    /// The cluster's system identifier.
    pub system_identifier: String,
    /// The timeline; `None` on a standby.
    pub timeline: Option<u32>,
    /// Whether a standby has been promoted since.
    pub promoted: bool,
}

/// The proof that a slot is the one that was seen before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotProof {
    /// Its position is the same, or lower.
    NotMoved,
    /// Its `restart_lsn` is older than the sighting.
    Older,
    /// One walsender held it at both sightings.
    HeldThroughout,
    /// Slot synchronization copied it before a promotion.
    Synced,
    /// The server's count of its transactions has not gone back.
    Counted,
    /// Another walsender holds it now.
    TakenOver,
}

/// The relay's own knowledge of the slot's past.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Witness {
    /// Every record of a transaction that commits before this is delivered.
    pub read: Lsn,
    /// The furthest position that the server has sent while the relay held the slot.
    pub seen: Lsn,
    /// Whether the relay has looked at the slot all the time, over one connection.
    pub watching: bool,
}

impl Sighting {
    /// Returns the proof that the slot `now` is the same as the slot `self`. `None`: there is none.
    pub fn proves(&self, now: &Self, witness: Witness) -> Option<SlotProof> {
        let confirmed = now.confirmed?;
        if confirmed <= witness.read.max(self.confirmed.unwrap_or_default()) {
            return Some(SlotProof::NotMoved);
        }
        if now.restart_lsn < self.written.max(witness.seen) {
            return Some(SlotProof::Older);
        }
        if now.reader.is_some() && now.reader == self.reader {
            return Some(SlotProof::HeldThroughout);
        }
        if self.promoted && now.synced {
            return Some(SlotProof::Synced);
        }
        if self.is_counted_on(now, witness) {
            return Some(SlotProof::Counted);
        }
        now.reader.filter(|_| !self.is_refuted(now)).map(|_| SlotProof::TakenOver)
    }

    /// Whether a relay has read the slot. If no marker says where the slot was created, the server's count of its transactions decides.
    pub fn was_read(&self, marker: Option<&Anchor>) -> bool {
        match marker.filter(|marker| marker.system_identifier == self.system_identifier) {
            Some(marker) => self.confirmed > Some(marker.written),
            None => self.transactions != Some(0),
        }
    }

    fn is_counted_on(&self, now: &Self, witness: Witness) -> bool {
        let (Some(before), Some(count)) = (self.transactions, now.transactions) else { return false };
        let was_handed_over = witness.watching && self.reader.is_some();
        let least = if was_handed_over { before } else { before.max(1) };
        self.counter_reset == now.counter_reset && count >= least
    }

    /// Whether the counter has gone back although nobody has reset it. Then the slot is new.
    fn is_refuted(&self, now: &Self) -> bool {
        self.counted_since == now.counted_since
            && self.counter_reset == now.counter_reset
            && now.transactions < self.transactions
    }

    /// The sighting after the server has left the timeline at `switch_point`. Positions behind it belong to other transactions now, and
    /// another server has counters of its own.
    #[must_use]
    pub fn after_switch(self, switch_point: Lsn) -> Self {
        Self {
            written: self.written.min(switch_point),
            confirmed: self.confirmed.map(|lsn| lsn.min(switch_point)),
            reader: None,
            transactions: None,
            promoted: true,
            ..self
        }
    }

    /// Removes the reader from the sighting if it is `own`.
    #[must_use]
    pub fn without_reader(self, own: Option<u32>) -> Self {
        Self { reader: self.reader.filter(|reader| Some(*reader) != own), ..self }
    }
}

/// Reads a slot. `None`: there is no slot of that name.
///
/// # Errors
/// The connection broke.
pub fn sight(connection: &mut Connection, slot: &str) -> Result<Option<Sighting>, Error> {
    // The queries run one after the other, so the slot may be newer than the position, but never older.
    let server = connection.query(&format!(
        "SELECT CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn()
                     ELSE pg_catalog.pg_current_wal_flush_lsn() END,
                (SELECT system_identifier FROM pg_catalog.pg_control_system()), {TIMELINE},
                (SELECT floor(extract(epoch FROM stats_reset))::bigint FROM pg_catalog.pg_stat_bgwriter)"
    ))?;
    let slots = connection.query(&format!(
        "SELECT s.restart_lsn, s.confirmed_flush_lsn, w.pid, t.total_txns, t.stats_reset::text,
                COALESCE(pg_catalog.to_jsonb(s) ->> 'synced' = 'true', false)
           FROM pg_catalog.pg_replication_slots AS s
           LEFT JOIN pg_catalog.pg_stat_replication AS w ON w.pid = s.active_pid
           LEFT JOIN pg_catalog.pg_stat_replication_slots AS t ON t.slot_name = s.slot_name
          WHERE s.slot_name = {}",
        literal(slot)
    ))?;
    Ok(server.first().zip(slots.first()).map(|(server, slot)| parse(server, slot)))
}

/// The timeline, as SQL. Null on a standby.
pub(crate) const TIMELINE: &str = "CASE WHEN NOT pg_catalog.pg_is_in_recovery() THEN
    ('x' || left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()), 8))::bit(32)::int END";

fn parse(server: &Row, slot: &Row) -> Sighting {
    Sighting {
        written: server.parse(0).unwrap_or_default(),
        restart_lsn: slot.parse(0).unwrap_or_default(),
        confirmed: slot.parse(1),
        reader: slot.parse(2),
        synced: slot.is_true(5),
        transactions: slot.parse(3),
        counter_reset: slot.text(4).map(str::to_owned),
        counted_since: server.parse(3),
        system_identifier: server.text(1).unwrap_or_default().to_owned(),
        timeline: server.parse(2),
        promoted: false,
    }
}

/// The setup marker's facts about its slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Anchor {
    /// The cluster's system identifier.
    pub system_identifier: String,
    /// The timeline.
    pub timeline: u32,
    /// The end of the inserted WAL when the marker was written. The marker's own transaction commits behind it.
    pub written: Lsn,
    /// When the marker was written, in seconds since 1970.
    pub seconds: u64,
}

/// Whether a slot fits its setup marker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Agreement {
    /// Nothing contradicts it.
    Fits,
    /// The slot is not the marked one, or somebody has advanced it: it is behind the marker's transaction, which was never decoded from
    /// it.
    Refuted,
    /// The marker was written in another cluster.
    OtherCluster,
    /// The marker was written before a promotion, and the server did not copy the slot.
    OtherTimeline,
}

impl Agreement {
    /// The text of the contradiction. `None`: there is none.
    pub const fn objection(self) -> Option<&'static str> {
        match self {
            Self::Fits => None,
            Self::Refuted => Some("it was written down for an earlier slot of that name, which was dropped"),
            Self::OtherCluster => Some("it was written down for a slot of that name in another cluster"),
            Self::OtherTimeline => Some(
                "it was written down for a slot of that name before a promotion, which the server did not bring here",
            ),
        }
    }
}

impl Anchor {
    /// Whether the slot fits the marker.
    ///
    /// A relay that reads the slot from the marker on decodes at least one transaction: that of the marker. If the slot was created
    /// later, its counter is 0 until a relay reads it. If the server has lost its statistics in a crash, the counter proves nothing.
    pub fn agrees(&self, slot: &Sighting) -> Agreement {
        if slot.system_identifier != self.system_identifier {
            return Agreement::OtherCluster;
        }
        if slot.timeline.is_some_and(|timeline| timeline != self.timeline) {
            return if slot.synced { Agreement::Fits } else { Agreement::OtherTimeline };
        }
        let counted = slot.counter_reset.is_none() && slot.counted_since.is_some_and(|since| since <= self.seconds);
        let never_read = counted && slot.transactions == Some(0);
        if never_read && slot.restart_lsn >= self.written { Agreement::Refuted } else { Agreement::Fits }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const READ: Witness = Witness { read: Lsn::new(900), seen: Lsn::ZERO, watching: false };

    /// A slot at `confirmed`, when the server has written up to 1000.
    pub(crate) fn slot(restart_lsn: u64, confirmed: u64) -> Sighting {
        Sighting {
            written: Lsn::new(1000),
            restart_lsn: Lsn::new(restart_lsn),
            confirmed: Some(Lsn::new(confirmed)),
            reader: None,
            synced: false,
            transactions: Some(5),
            counter_reset: None,
            counted_since: Some(7),
            system_identifier: "1".to_owned(),
            timeline: Some(1),
            promoted: false,
        }
    }

    /// A slot that was created behind 1000 and never read.
    fn created_again() -> Sighting {
        Sighting { transactions: Some(0), ..slot(1040, 1080) }
    }

    #[track_caller]
    fn check(before: &Sighting, now: &Sighting, expected: Option<SlotProof>) {
        assert_eq!(before.proves(now, READ), expected);
    }

    #[test]
    fn a_slot_was_read_when_it_is_past_its_marker_and_without_one_when_transactions_were_counted() {
        let marker =
            |written| Anchor { system_identifier: "1".to_owned(), timeline: 1, written: Lsn::new(written), seconds: 9 };
        let read = slot(500, 900);
        assert!(!read.was_read(Some(&marker(900))) && read.was_read(Some(&marker(899))));
        assert!(read.was_read(None) && !created_again().was_read(None));
        let elsewhere = Anchor { system_identifier: "2".to_owned(), ..marker(900) };
        assert!(read.was_read(Some(&elsewhere)));
    }

    #[test]
    fn a_slot_that_is_created_again_is_never_taken_for_the_one_before() {
        check(&slot(500, 900), &created_again(), None);
        let peeked = Sighting { transactions: Some(4), ..created_again() };
        check(&slot(500, 900), &peeked, None);
        let in_creation = Sighting { confirmed: None, reader: Some(9), ..created_again() };
        check(&slot(500, 900), &in_creation, None);
        let unread = Sighting { transactions: Some(0), ..slot(500, 900) };
        check(&unread, &created_again(), None);
        let at_the_end = Sighting { restart_lsn: Lsn::new(1000), ..created_again() };
        check(&slot(500, 900), &at_the_end, None);
    }

    #[test]
    fn what_does_not_move_or_begins_before_the_sighting_is_the_same_slot() {
        check(&slot(500, 900), &slot(500, 900), Some(SlotProof::NotMoved));
        check(&slot(500, 800), &slot(500, 900), Some(SlotProof::NotMoved));
        check(&slot(500, 900), &Sighting { transactions: None, ..slot(999, 2000) }, Some(SlotProof::Older));
        let shown = slot(500, 900).proves(&created_again(), Witness { seen: Lsn::new(1041), ..READ });
        assert_eq!(shown, Some(SlotProof::Older), "the server showed 1041 while the slot was held");
    }

    #[test]
    fn another_relay_is_known_by_what_it_decoded_or_by_holding_the_slot() {
        check(&slot(500, 900), &slot(1040, 2000), Some(SlotProof::Counted));
        let unread = Sighting { transactions: Some(0), ..slot(500, 900) };
        check(&unread, &Sighting { transactions: Some(1), ..slot(1040, 2000) }, Some(SlotProof::Counted));
        let crashed = Sighting { transactions: Some(0), counted_since: Some(8), reader: Some(9), ..slot(1040, 2000) };
        check(&slot(500, 900), &crashed, Some(SlotProof::TakenOver));
        check(&slot(500, 900), &crashed.clone().without_reader(Some(9)), None);
        let held = Sighting { reader: Some(9), ..crashed };
        check(&Sighting { reader: Some(9), ..slot(500, 900) }, &held, Some(SlotProof::HeldThroughout));
    }

    #[test]
    fn a_reader_of_a_slot_whose_counter_has_gone_back_proves_nothing() {
        check(&slot(500, 900), &Sighting { reader: Some(9), ..created_again() }, None);
    }

    #[test]
    fn a_slot_without_transactions_is_handed_over_only_while_it_is_watched() {
        let held = Sighting { reader: Some(9), transactions: Some(0), ..slot(500, 900) };
        check(&held, &created_again(), None);
        assert_eq!(held.proves(&created_again(), Witness { watching: true, ..READ }), Some(SlotProof::Counted));
        let read = Sighting { transactions: Some(1), ..held };
        assert_eq!(read.proves(&created_again(), Witness { watching: true, ..READ }), None);
    }

    #[test]
    fn after_a_promotion_positions_beyond_the_switch_point_prove_nothing() {
        let before = slot(500, 900).after_switch(Lsn::new(700));
        let there = slot(720, 800);
        let there_read = Witness { read: Lsn::new(700), ..READ };
        assert_eq!(before.proves(&there, there_read), None);
        assert_eq!(before.proves(&slot(500, 800), there_read), Some(SlotProof::Older));
        let synced = Sighting { synced: true, ..there };
        assert_eq!(before.proves(&synced, there_read), Some(SlotProof::Synced));
    }

    #[test]
    fn a_marker_is_refuted_by_a_slot_that_is_past_it_and_was_never_read() {
        let anchor = Anchor { system_identifier: "1".to_owned(), timeline: 1, written: Lsn::new(1000), seconds: 10 };
        let new = created_again();
        assert_eq!(anchor.agrees(&new), Agreement::Refuted);
        assert_eq!(anchor.agrees(&slot(1040, 1080)), Agreement::Fits, "its transactions were decoded");
        assert_eq!(anchor.agrees(&Sighting { transactions: Some(0), ..slot(999, 1080) }), Agreement::Fits);
        assert_eq!(anchor.agrees(&Sighting { counted_since: Some(11), ..new.clone() }), Agreement::Fits, "a crash");
        assert_eq!(anchor.agrees(&Sighting { counter_reset: Some("x".to_owned()), ..new.clone() }), Agreement::Fits);
        assert_eq!(
            anchor.agrees(&Sighting { system_identifier: "2".to_owned(), ..new.clone() }),
            Agreement::OtherCluster
        );
        assert_eq!(anchor.agrees(&Sighting { timeline: Some(2), ..new.clone() }), Agreement::OtherTimeline);
        assert_eq!(anchor.agrees(&Sighting { timeline: Some(2), synced: true, ..new }), Agreement::Fits);
    }
}
