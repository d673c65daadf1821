//! Compares how long topics keep records with how long the slot was not read, where records have the rows' own times.
//!
//! In: the settings of the topics of the latest rows or, for topics that are not there yet, the brokers' defaults. Out: findings. Kafka
//! deletes a segment once its latest timestamp is older than `retention.ms`: records that were older when they were written go before a
//! consumer reads them. `message.timestamp.type=LogAppendTime` counts from the write, and a topic that only compacts deletes nothing by time.

use super::super::admin::SettingsSeen;
use super::examine::setting;
use super::{CLEANUP_POLICY, Check, RecordTimes, SIDE, alter};
use crate::check_finding::Finding;
use crate::remedy::Command;
use std::time::Duration;

/// A topic's limit.
const RETENTION: &str = "retention.ms";

/// The brokers' limits, the first of which counts that is set, with the milliseconds of their units.
const DEFAULT_RETENTIONS: [(&str, u64); 3] =
    [("log.retention.ms", 1), ("log.retention.minutes", 60_000), ("log.retention.hours", 3_600_000)];

impl Check<'_> {
    /// The findings about topics that keep records for a limited time.
    pub(super) fn retention(&self) -> Vec<Finding> {
        let waited = match self.wanted.times {
            RecordTimes::Sent => return Vec::new(),
            RecordTimes::OfRows { unread_for } => {
                unread_for.map(|age| (age, format!("rows may have waited for {}", words(age))))
            }
            RecordTimes::OfOldRows(age) => Some((age, format!("the oldest row is {} old", words(age)))),
        };
        let of_topic = |name: &String| {
            let settings = self.cluster.topics.get(name).map(|topic| &topic.settings);
            let kept = settings.map_or_else(|| default_retention(&self.cluster.settings), retention)?;
            Some(self.kept_for(name, kept, waited.as_ref(), settings.is_some()))
        };
        self.wanted.topics.iter().filter_map(of_topic).collect()
    }

    /// `waited`: how old rows may be, and why.
    fn kept_for(&self, name: &str, kept: Duration, waited: Option<&(Duration, String)>, exists: bool) -> Finding {
        let text = format!("{name} keeps records for {} from the rows' own times (--timestamp)", words(kept));
        let Some((age, why)) = waited.filter(|(age, _)| *age >= kept) else {
            let why = "a row that waits for longer is deleted there before a consumer reads it";
            return SIDE.ok("retention", text).why(why);
        };
        let found = SIDE
            .warn("retention", format!("{text}, and {why}"))
            .why("Kafka may delete the records of rows that are older before a consumer reads them");
        let send = Command::new("run").set("--timestamp", "send");
        if exists {
            let millis = (*age * 2).as_millis();
            found.bounded(format!("{send}; or: {}", alter(self.settings, name, RETENTION, millis)))
        } else {
            found.bounded(send)
        }
    }
}

/// How long a topic keeps a record from its time. `None`: not limited by that time, or not to be seen.
fn retention(seen: &SettingsSeen) -> Option<Duration> {
    let millis = setting(seen, RETENTION)?.parse::<u64>().ok()?;
    deletes(setting(seen, CLEANUP_POLICY), setting(seen, "message.timestamp.type"))
        .then_some(Duration::from_millis(millis))
}

/// As [`retention`], of a topic that the brokers create.
fn default_retention(seen: &SettingsSeen) -> Option<Duration> {
    let limit = |(name, unit): (&str, u64)| Some((setting(seen, name).filter(|text| !text.is_empty())?, unit));
    let (text, unit) = DEFAULT_RETENTIONS.into_iter().find_map(limit)?;
    let millis = text.parse::<u64>().ok()?.saturating_mul(unit);
    deletes(setting(seen, "log.cleanup.policy"), setting(seen, "log.message.timestamp.type"))
        .then_some(Duration::from_millis(millis))
}

fn deletes(policy: Option<&str>, timestamp_type: Option<&str>) -> bool {
    policy.is_none_or(|policy| policy.contains("delete")) && timestamp_type != Some("LogAppendTime")
}

/// A time in its largest whole unit.
fn words(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7_200 => format!("{} min", seconds / 60),
        seconds @ 7_200..172_800 => format!("{} h", seconds / 3_600),
        seconds => format!("{} d", seconds / 86_400),
    }
}
