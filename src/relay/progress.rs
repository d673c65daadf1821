//! The relay's progress, as the destination stores it beside the records for exactly once.
//!
//! ```text
//!  key    <system identifier>/<slot>
//!  value  {"timeline": 1, "end_lsn": "0/16B3748", "source": "db.example.com:5432/shop",
//!          "last": {"final_lsn": "0/16B36F0", "xid": 742, "commit_time": 812345678901234}}
//! ```
//!
//! `last` is the last transaction before `end_lsn`. If the slot is behind it, the server sends it again, and a relay that resumes compares it:
//! a copy of the cluster has the same system identifier, slot and timeline, and other transactions at the same positions.
//!
//! Before the first row, the progress is stored with `end_lsn` `0/0`. So a slot that was read and has no progress is one whose progress is gone.
//!
//! In: who the server is, what is kept under the slot's name. Out: the position before which everything is published, or why
//! that cannot be said. Slot names are not unique across clusters, so the key has the system identifier as well; the source tells a
//! cluster that has replaced another from one that only has a slot of the same name. A value with a member that is not in this picture
//! is a newer version's: it is refused, since what it says may differ from what is read of it. Pure.

use crate::lsn::Lsn;
use crate::pgoutput::{Begin, PgTime};
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
    /// The operator has said that the slot's present position counts, whatever the destination has stored.
    pub accepts_slot: bool,
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
    /// Nothing is stored, and the slot has been read.
    Missing {
        /// The slot's confirmed position.
        confirmed: Lsn,
    },
    /// The server's history has not the last transaction that was published.
    OtherHistory {
        /// That transaction.
        published: LastTransaction,
        /// The slot's confirmed position.
        confirmed: Lsn,
    },
    /// It is not what this version of a relay, or an earlier one, writes.
    Unreadable {
        /// The key.
        key: String,
        /// The value.
        value: String,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredProgress {
    timeline: u32,
    end_lsn: String,
    source: String,
    /// `None`: a version before 0.2 has written it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    last: Option<StoredTransaction>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredTransaction {
    final_lsn: String,
    xid: u32,
    commit_time: i64,
}

/// The part of another cluster's progress that is read, whatever version has written it.
#[derive(Deserialize)]
struct OtherProgress {
    source: String,
}

/// A transaction of Postgres, as far as it tells one history of a cluster from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LastTransaction {
    /// Where its commit record begins.
    pub final_lsn: Lsn,
    /// Its id.
    pub xid: u32,
    /// When it was committed.
    pub commit_time: PgTime,
}

impl From<&Begin> for LastTransaction {
    fn from(Begin { final_lsn, commit_time, xid }: &Begin) -> Self {
        Self { final_lsn: *final_lsn, xid: *xid, commit_time: *commit_time }
    }
}

/// Where to resume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resumption {
    /// Everything that commits before this is published.
    pub end_lsn: Lsn,
    /// The last transaction before it, in the server's timeline. `None`: nothing is known of it.
    pub last: Option<LastTransaction>,
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

    /// The value to store before anything is published: nothing commits before `0/0`, so it moves no position.
    pub fn first_value(&self) -> String {
        self.value(Lsn::ZERO, None)
    }

    /// The value to store once everything that commits before `end_lsn` is published, `last` as the last one.
    pub fn value(&self, end_lsn: Lsn, last: Option<LastTransaction>) -> String {
        let last = last.map(|LastTransaction { final_lsn, xid, commit_time }| StoredTransaction {
            final_lsn: final_lsn.to_string(),
            xid,
            commit_time: commit_time.0,
        });
        let (timeline, end_lsn, source) = (self.timeline, end_lsn.to_string(), self.source.clone());
        let kept = StoredProgress { timeline, end_lsn, source, last };
        // Strings and a number: nothing that JSON cannot say.
        serde_json::to_string(&kept).unwrap_or_default()
    }

    /// Returns the position to resume from, by the progress stored under keys that end in the slot's name; `None`: nothing was
    /// published before.
    ///
    /// # Errors
    /// It belongs to another server than this one.
    pub fn start(&self, kept: &[(String, String)]) -> Result<Option<Resumption>, ProgressMismatch> {
        let key = self.key();
        let Some((_, value)) = kept.iter().find(|(found, _)| *found == key) else {
            return self.check_other_clusters(kept).map(|()| None);
        };
        let unreadable = || ProgressMismatch::Unreadable { key: key.clone(), value: value.clone() };
        let found: StoredProgress = serde_json::from_str(value).map_err(|_| unreadable())?;
        let end_lsn: Lsn = found.end_lsn.parse().map_err(|_| unreadable())?;
        let last = found.last.map(|StoredTransaction { final_lsn, xid, commit_time }| {
            let final_lsn = final_lsn.parse().map_err(|_| unreadable())?;
            Ok(LastTransaction { final_lsn, xid, commit_time: PgTime(commit_time) })
        });
        let last = last.transpose()?;
        if found.timeline == self.timeline {
            return if end_lsn > self.flushed {
                Err(ProgressMismatch::OlderCopy { seen: end_lsn, flushed: self.flushed })
            } else {
                Ok(Some(Resumption { end_lsn, last }))
            };
        }
        if found.timeline > self.timeline {
            return Err(ProgressMismatch::EarlierTimeline { before: found.timeline, found: self.timeline });
        }
        // Positions beyond the point where that timeline was left belong to other transactions now.
        let left = self.history.iter().find(|(timeline, _)| *timeline == found.timeline);
        Ok(left.map(|(_, switch_point)| Resumption {
            end_lsn: end_lsn.min(*switch_point),
            last: last.filter(|last| last.final_lsn < *switch_point),
        }))
    }

    fn check_other_clusters(&self, kept: &[(String, String)]) -> Result<(), ProgressMismatch> {
        for (key, value) in kept.iter().filter(|(key, _)| key.ends_with(&format!("/{}", self.slot))) {
            let theirs: OtherProgress = serde_json::from_str(value)
                .map_err(|_| ProgressMismatch::Unreadable { key: key.clone(), value: value.clone() })?;
            if theirs.source == self.source {
                let system = key.split('/').next().unwrap_or_default();
                return Err(ProgressMismatch::OtherCluster { before: system.to_owned() });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{assert_written, golden};

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
            accepts_slot: false,
        }
    }

    fn kept(identity: &Identity, end_lsn: u64) -> Vec<(String, String)> {
        vec![(identity.key(), identity.value(Lsn::new(end_lsn), None))]
    }

    fn at(end_lsn: u64) -> Resumption {
        Resumption { end_lsn: Lsn::new(end_lsn), last: None }
    }

    #[test]
    fn what_was_kept_is_where_it_goes_on() {
        let identity = identity();
        assert_eq!(identity.key(), "7/shop");
        assert_eq!(identity.owner(Committed::Nothing).name, "walrelay-7-shop");
        let value = identity.value(Lsn::new(500), Some(LAST));
        let resumed = Resumption { end_lsn: Lsn::new(500), last: Some(LAST) };
        assert_eq!(identity.start(&[(identity.key(), value.clone())]), Ok(Some(resumed)));
        let later = Identity { timeline: 3, history: vec![(2, Lsn::new(495))], ..identity.clone() };
        let resumed = Resumption { end_lsn: Lsn::new(495), ..resumed };
        assert_eq!(later.start(&[(identity.key(), value.clone())]), Ok(Some(resumed)), "it commits before the switch");
        let later = Identity { history: vec![(2, Lsn::new(490))], ..later };
        assert_eq!(later.start(&[(identity.key(), value)]), Ok(Some(at(490))), "the new timeline has not the last one");
        assert_eq!(identity.start(&[]), Ok(None));
    }

    const LAST: LastTransaction = LastTransaction { final_lsn: Lsn::new(490), xid: 7, commit_time: PgTime(8) };

    #[test]
    fn the_progress_that_each_version_has_stored_is_where_it_goes_on() {
        let identity = identity();
        assert_written("progress.tsv", &format!("{}\t{}\n", identity.key(), identity.value(Lsn::new(500), Some(LAST))));
        for stored in golden("progress.tsv") {
            let (key, value) = stored.text.trim_end().split_once('\t').unwrap();
            let last = (stored.version != "0.1").then_some(LAST);
            let resumed = Resumption { end_lsn: Lsn::new(500), last };
            assert_eq!(identity.start(&[(key.to_owned(), value.to_owned())]), Ok(Some(resumed)), "{}", stored.version);
        }
    }

    #[test]
    fn progress_in_a_form_that_is_not_known_is_refused() {
        let identity = identity();
        let written = identity.value(Lsn::new(500), Some(LAST));
        let more = |part: &str, more: &str| written.replacen(part, &format!("{part}{more}"), 1);
        for value in [more("{", r#""form":2,"#), more(r#""last":{"#, r#""subxid":9,"#), "[]".to_owned()] {
            let refused = ProgressMismatch::Unreadable { key: identity.key(), value: value.clone() };
            assert_eq!(identity.start(&[(identity.key(), value)]), Err(refused));
        }
        let neighbour =
            Identity { system_identifier: "8".into(), source: "other:5432/shop".into(), ..identity.clone() };
        let theirs = neighbour.value(Lsn::new(500), None).replacen('{', r#"{"form":2,"#, 1);
        assert_eq!(identity.start(&[(neighbour.key(), theirs)]), Ok(None), "whose it is can be read");
        let refused = ProgressMismatch::Unreadable { key: neighbour.key(), value: "x".into() };
        assert_eq!(identity.start(&[(neighbour.key(), "x".into())]), Err(refused), "whose it is cannot be read");
        assert_eq!(identity.start(&[("8/other".into(), "x".into())]), Ok(None), "another slot's");
    }

    #[test]
    fn on_a_later_timeline_it_counts_up_to_where_its_own_was_left() {
        let before = Identity { timeline: 1, history: vec![], ..identity() };
        assert_eq!(identity().start(&kept(&before, 90)), Ok(Some(at(90))));
        assert_eq!(identity().start(&kept(&before, 500)), Ok(Some(at(100))));
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
        assert_eq!(identity().start(&both), Ok(Some(at(600))), "who has worked here before goes on");
    }

    #[test]
    fn a_log_that_ends_before_what_was_published_is_an_older_copy() {
        let refused = ProgressMismatch::OlderCopy { seen: Lsn::new(1001), flushed: Lsn::new(1000) };
        assert_eq!(identity().start(&kept(&identity(), 1001)), Err(refused));
        let odd = vec![(identity().key(), "x".to_owned())];
        assert!(matches!(identity().start(&odd), Err(ProgressMismatch::Unreadable { .. })));
    }
}
