//! The relay's progress, as the destination stores it beside the records for exactly once.
//!
//! ```text
//!  key    <system identifier>/<slot>
//!  value  {"timeline": 1, "end_lsn": "0/16B3748", "source": "db.example.com:5432/shop"}
//! ```
//!
//! In: who the server is, what is kept under the slot's name. Out: the position before which everything is published, or why
//! that cannot be said. Slot names are not unique across clusters, so the key has the system identifier as well; the source tells a
//! cluster that has taken another's place from one that only has a slot of the same name. Pure.

use crate::lsn::Lsn;
use crate::sink::{Committed, Owner};
use serde::{Deserialize, Serialize};

/// The identity of the server and the slot.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Identity {
    /// The system identifier that initdb gave the cluster.
    pub system_identifier: String,
    /// The slot.
    pub slot: String,
    /// The server's timeline.
    pub timeline: u32,
    /// Earlier timelines, and where each was left.
    pub history: Vec<(u32, Lsn)>,
    /// The end of the server's WAL when the slot was ours.
    pub flushed: Lsn,
    /// The server is a standby. Its timeline changes with its promotion, in the middle of a stream that goes on, and nothing in the
    /// stream shows where.
    pub is_standby: bool,
    /// Hosts and database.
    pub source: String,
    /// Some relay has read the slot before.
    pub was_read: bool,
}

/// The reason for which the relay cannot resume from the stored progress.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProgressMismatch {
    /// On a standby a position's timeline is not known.
    Standby,
    /// Another cluster was read at this address.
    OtherCluster {
        /// Its system identifier.
        before: String,
    },
    /// The WAL ends before what has been published.
    OlderCopy {
        /// Published up to here.
        seen: Lsn,
        /// Where it ends.
        flushed: Lsn,
    },
    /// The server is on an earlier timeline than one that was read.
    EarlierTimeline {
        /// Read before.
        before: u32,
        /// The server's.
        found: u32,
    },
    /// It is not what a relay writes.
    Unreadable {
        /// The key.
        key: String,
        /// The value.
        value: String,
    },
}

#[derive(Serialize, Deserialize)]
struct StoredProgress {
    timeline: u32,
    end_lsn: String,
    source: String,
}

/// Returns the name of a relay's transactions. Slot names alone are not unique across clusters.
pub fn transactional_id(system_identifier: &str, slot: &str) -> String {
    format!("walrelay-{system_identifier}-{slot}")
}

impl Identity {
    /// Returns the name of the relay's transactions, and the keys whose progress it needs.
    pub fn owner(&self, committed: Committed) -> Owner {
        let name = transactional_id(&self.system_identifier, &self.slot);
        Owner { name, keys_ending: format!("/{}", self.slot), committed }
    }

    /// The key of this relay's progress.
    pub fn key(&self) -> String {
        format!("{}/{}", self.system_identifier, self.slot)
    }

    /// The value to store once everything that commits before `end_lsn` is published.
    pub fn value(&self, end_lsn: Lsn) -> String {
        let kept =
            StoredProgress { timeline: self.timeline, end_lsn: end_lsn.to_string(), source: self.source.clone() };
        // Strings and a number: nothing that JSON cannot say.
        serde_json::to_string(&kept).unwrap_or_default()
    }

    /// Returns the position to resume from, by the progress stored under keys that end in the slot's name; `None`: nothing was
    /// published before.
    ///
    /// # Errors
    /// It belongs to another server than this one.
    pub fn start(&self, kept: &[(String, String)]) -> Result<Option<Lsn>, ProgressMismatch> {
        let key = self.key();
        let Some((_, value)) = kept.iter().find(|(found, _)| *found == key) else {
            return self.check_other_clusters(kept).map(|()| None);
        };
        let unreadable = || ProgressMismatch::Unreadable { key: key.clone(), value: value.clone() };
        let found: StoredProgress = serde_json::from_str(value).map_err(|_| unreadable())?;
        let end_lsn: Lsn = found.end_lsn.parse().map_err(|_| unreadable())?;
        if found.timeline == self.timeline {
            return if end_lsn > self.flushed {
                Err(ProgressMismatch::OlderCopy { seen: end_lsn, flushed: self.flushed })
            } else {
                Ok(Some(end_lsn))
            };
        }
        if found.timeline > self.timeline {
            return Err(ProgressMismatch::EarlierTimeline { before: found.timeline, found: self.timeline });
        }
        // Positions beyond the point where that timeline was left belong to other transactions now.
        let left = self.history.iter().find(|(timeline, _)| *timeline == found.timeline);
        Ok(left.map(|(_, switch_point)| end_lsn.min(*switch_point)))
    }

    fn check_other_clusters(&self, kept: &[(String, String)]) -> Result<(), ProgressMismatch> {
        for (key, value) in kept {
            let system = key.split('/').next().unwrap_or_default();
            let theirs: Option<StoredProgress> = serde_json::from_str(value).ok();
            if key.ends_with(&format!("/{}", self.slot)) && theirs.is_some_and(|kept| kept.source == self.source) {
                return Err(ProgressMismatch::OtherCluster { before: system.to_owned() });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity() -> Identity {
        Identity {
            system_identifier: "7".into(),
            slot: "shop".into(),
            timeline: 2,
            history: vec![(1, Lsn::new(100))],
            flushed: Lsn::new(1000),
            is_standby: false,
            source: "db:5432/shop".into(),
            was_read: false,
        }
    }

    fn kept(identity: &Identity, end_lsn: u64) -> Vec<(String, String)> {
        vec![(identity.key(), identity.value(Lsn::new(end_lsn)))]
    }

    #[test]
    fn what_was_kept_is_where_it_goes_on() {
        let identity = identity();
        assert_eq!(identity.key(), "7/shop");
        assert_eq!(identity.owner(Committed::Nothing).name, "walrelay-7-shop");
        assert_eq!(identity.value(Lsn::new(500)), r#"{"timeline":2,"end_lsn":"0/1F4","source":"db:5432/shop"}"#);
        assert_eq!(identity.start(&kept(&identity, 500)), Ok(Some(Lsn::new(500))));
        assert_eq!(identity.start(&[]), Ok(None));
    }

    #[test]
    fn on_a_later_timeline_it_counts_up_to_where_its_own_was_left() {
        let before = Identity { timeline: 1, history: vec![], ..identity() };
        assert_eq!(identity().start(&kept(&before, 90)), Ok(Some(Lsn::new(90))));
        assert_eq!(identity().start(&kept(&before, 500)), Ok(Some(Lsn::new(100))));
        let third = Identity { timeline: 3, ..identity() };
        assert_eq!(third.start(&kept(&identity(), 90)), Ok(None), "a branch that never met this one");
    }

    #[test]
    fn an_old_primary_in_the_place_of_the_promoted_one_is_refused() {
        let promoted = Identity { timeline: 3, ..identity() };
        let refused = ProgressMismatch::EarlierTimeline { before: 3, found: 2 };
        assert_eq!(identity().start(&kept(&promoted, 90)), Err(refused));
    }

    #[test]
    fn another_cluster_with_the_same_slot_elsewhere_is_a_neighbour_and_in_the_same_place_a_stranger() {
        let neighbour = Identity { system_identifier: "8".into(), source: "other:5432/shop".into(), ..identity() };
        assert_eq!(identity().start(&kept(&neighbour, 500)), Ok(None));
        let before = Identity { system_identifier: "8".into(), ..identity() };
        let refused = ProgressMismatch::OtherCluster { before: "8".into() };
        assert_eq!(identity().start(&kept(&before, 500)), Err(refused));
        let both = [kept(&before, 500), kept(&identity(), 600)].concat();
        assert_eq!(identity().start(&both), Ok(Some(Lsn::new(600))), "who has worked here before goes on");
    }

    #[test]
    fn a_log_that_ends_before_what_was_published_is_an_older_copy() {
        let refused = ProgressMismatch::OlderCopy { seen: Lsn::new(1001), flushed: Lsn::new(1000) };
        assert_eq!(identity().start(&kept(&identity(), 1001)), Err(refused));
        let odd = vec![(identity().key(), "x".to_owned())];
        assert!(matches!(identity().start(&odd), Err(ProgressMismatch::Unreadable { .. })));
    }
}
