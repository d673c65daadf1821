//! Checks whether the other shards of a set exist, and whether relays read them.
//!
//! In: the settings of a run that is a shard. Out: findings. Findings about the shard's own publication and slot get the remedy that sets
//! all shards up. Reads only.

use crate::check_finding::{Finding, Fix, Level, Side};
use crate::commands::output::setup_shards;
use crate::commands::run;
use crate::commands::shards::{Member, Set, sets, unfinished};
use crate::pg::shard::Shard;
use crate::pg::{self, Connection, Purpose};
use crate::remedy::{Command, Remedy};

/// The stable name of the finding.
const CHECK: &str = "shards";

/// Adds to what was found of Postgres.
pub(super) fn add(config: &run::RunRequest, findings: &mut Vec<Finding>) {
    let Some(shard) = config.shard else { return };
    let set_up = setup_shards("--shards", shard.count()).set("--table", "SCHEMA.TABLE");
    for finding in findings.iter_mut() {
        if finding.level == Level::Fail && ["publication", "slot"].contains(&finding.check) {
            finding.fix = Some(Fix::bounded(set_up.clone()));
        }
    }
    findings.push(look(config, shard).map_or_else(
        |error| Side::Postgres.warn(CHECK, format!("the other shards cannot be checked: {error}")),
        |sets| judge(shard, &sets, set_up),
    ));
}

fn look(config: &run::RunRequest, shard: Shard) -> Result<Vec<Set>, pg::Error> {
    let mut connection = Connection::open(&config.source, Purpose::Control)?;
    let whole = |name| shard.whole(name).unwrap_or(name);
    sets(&mut connection, (whole(&config.publication), whole(&config.slot)))
}

fn judge(shard: Shard, sets: &[Set], set_up: Command) -> Finding {
    let count = shard.count();
    let Some(set) = sets.iter().find(|set| set.count == Some(count)) else {
        let finding = Side::Postgres.fail(CHECK, format!("there are no {count} shards"));
        return finding.why("rows of a shard that does not exist are published by nobody").bounded(set_up);
    };
    if let Some((new, resume)) = unfinished(sets) {
        let finding = Side::Postgres.warn(CHECK, format!("the setup of {} is not finished", new.shown()));
        return finding.why("until then their relays wait, and rows stay in their slots").bounded(resume);
    }
    if let Err(error) = set.is_whole() {
        let finding = Side::Postgres.fail(CHECK, error.to_string()).why("its rows are published by nobody");
        return Finding { fix: error.remedy.map(Fix::bounded), ..finding };
    }
    let is_unread = |member: &&Member| member.found.as_ref().is_some_and(|slot| !slot.row.active);
    let others = set.members.iter().filter(|member| member.shard != Some(shard));
    let unread: Vec<&Member> = others.filter(is_unread).collect();
    if unread.is_empty() {
        return Side::Postgres.ok(CHECK, format!("all {count} exist, and the others are read"));
    }
    let slots: Vec<String> = unread.iter().map(|member| format!("\"{}\"", member.slot)).collect();
    let finding = Side::Postgres.warn(CHECK, format!("no relay reads slot {}", slots.join(", ")));
    let commands = unread.iter().map(|member| Remedy::from(member.command()));
    let fix = commands.reduce(|first, next| first.and("; ").and(next)).map(Fix::bounded);
    Finding { fix, ..finding.why("their rows wait in their slots, which keep WAL") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pg::marker;
    use crate::pg::server::Slot;
    use serde_json::json;

    fn set(slots: [Option<bool>; 2], comment: Option<&str>) -> Set {
        let member = |(shard, active): (Shard, Option<bool>)| Member {
            shard: Some(shard),
            publication: shard.name("p"),
            slot: shard.name("s"),
            exists: true,
            comment: comment.map(str::to_owned),
            owned: true,
            found: active.map(|active| Slot {
                row: serde_json::from_value(json!({"active": active})).unwrap(),
                confirmed_flush_lsn: None,
                restart_lsn: None,
                lag_bytes: None,
                retained_wal_bytes: None,
            }),
        };
        Set { count: Some(2), members: Shard::all(2).zip(slots).map(member).collect() }
    }

    fn found(sets: &[Set]) -> (Level, String) {
        let finding = judge(Shard::new(0, 2).unwrap(), sets, Command::new("setup"));
        (finding.level, finding.finding)
    }

    #[test]
    fn a_shard_that_nobody_reads_and_one_that_is_gone_are_reported() {
        let all = set([Some(false), Some(true)], None);
        assert_eq!(found(&[all]).0, Level::Ok, "its own relay need not run when it is checked");
        let unread = set([Some(true), Some(false)], None);
        assert_eq!(found(&[unread]), (Level::Warn, "no relay reads slot \"s_1_of_2\"".to_owned()));
        let gone = "shard 1/2 is incomplete: replication slot \"s_1_of_2\" does not exist".to_owned();
        assert_eq!(found(&[set([Some(true), None], None)]), (Level::Fail, gone));
        assert_eq!(found(&[]).0, Level::Fail);
        let comment = marker::new_shard(Shard::new(0, 2).unwrap(), "s_0_of_2");
        let mut new = set([Some(false), Some(false)], Some(&comment));
        assert_eq!(
            found(std::slice::from_ref(&new)),
            (Level::Warn, "the setup of 2 shards is not finished".to_owned())
        );
        new.count = Some(3);
        let old = set([Some(true), Some(true)], Some("walrelay move: drains"));
        assert_eq!(found(&[old, new]), (Level::Warn, "the setup of 3 shards is not finished".to_owned()));
    }
}
