//! Checks whether the other shards of a set exist, and whether relays read them.
//!
//! In: the settings of a run that is a shard. Out: findings. Findings about the shard's own publication and slot get the remedy that sets
//! all shards up. Reads only.

use crate::check_finding::{Finding, Level, Side};
use crate::commands::output::{setup_shards, teardown_shards};
use crate::commands::run;
use crate::commands::shards::{Member, Set, sets};
use crate::pg::marker::MoveState;
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
            finding.fix = Some(set_up.clone().into());
        }
    }
    let found = look(config, shard);
    findings.extend(found.map_or_else(
        |error| vec![Side::Postgres.warn(CHECK, format!("the other shards cannot be checked: {error}"))],
        |set| judge(shard, set.as_ref(), &set_up),
    ));
}

fn look(config: &run::RunRequest, shard: Shard) -> Result<Option<Set>, pg::Error> {
    let mut connection = Connection::open(&config.source, Purpose::Control)?;
    let whole = |name| shard.whole(name).unwrap_or(name);
    let sets = sets(&mut connection, (whole(&config.publication), whole(&config.slot)))?;
    Ok(sets.into_iter().find(|set| set.count == Some(shard.count())))
}

fn judge(shard: Shard, set: Option<&Set>, set_up: &Command) -> Vec<Finding> {
    let count = shard.count();
    let Some(set) = set else {
        let finding = Side::Postgres.fail(CHECK, format!("there are no {count} shards"));
        return vec![finding.why("rows of a shard that is not there are published by nobody").fix(set_up.clone())];
    };
    if set.is(MoveState::Waits) {
        let finding = Side::Postgres.warn(CHECK, format!("the setup of {count} shards is not finished"));
        let fix = Remedy::from(setup_shards("--reshard", count))
            .and(format!(", or --shards {count} where rows were moved from nowhere"));
        return vec![finding.why("until then their relays wait, and rows stay in their slots").fix(fix)];
    }
    let named = |is_one: &dyn Fn(&Member) -> bool| -> Vec<String> {
        set.shards().filter(|(_, member)| is_one(member)).map(|(shard, _)| shard.to_string()).collect()
    };
    let missing = named(&|member| !member.exists || member.found.is_none());
    if !missing.is_empty() {
        let finding = Side::Postgres.fail(CHECK, format!("publication or slot is missing of {}", missing.join(", ")));
        return vec![
            finding
                .why("their rows are published by nobody, and those committed since are in no slot; before you drop the others, let their relays publish what waits there, and stop them")
                .fix(
                    Remedy::from(teardown_shards(count))
                        .and(" && ")
                        .and(set_up.clone())
                        .and("; then compare the table with the topics"),
                ),
        ];
    }
    let is_read = |member: &Member| member.found.as_ref().is_some_and(|slot| slot.row.active);
    let unread = named(&|member| member.shard != Some(shard) && !is_read(member));
    if unread.is_empty() {
        return vec![Side::Postgres.ok(CHECK, format!("all {count} are there, and the others are read"))];
    }
    let finding = Side::Postgres.warn(CHECK, format!("no relay reads {}", unread.join(", ")));
    let run = unread.iter().map(|shard| Remedy::from(Command::new("run").set("--shard", shard)));
    let run = run.reduce(|first, next| first.and("; ").and(next));
    vec![Finding { fix: run, ..finding.why("their rows wait in their slots, which keep WAL") }]
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

    fn found(set: Option<&Set>) -> (Level, String) {
        let mut found = judge(Shard::new(0, 2).unwrap(), set, &Command::new("setup"));
        assert_eq!(found.len(), 1);
        let finding = found.remove(0);
        (finding.level, finding.finding)
    }

    #[test]
    fn a_shard_that_nobody_reads_and_one_that_is_gone_are_reported() {
        let all = set([Some(false), Some(true)], None);
        assert_eq!(found(Some(&all)).0, Level::Ok, "its own relay need not run when it is checked");
        assert_eq!(found(Some(&set([Some(true), Some(false)], None))), (Level::Warn, "no relay reads 1/2".to_owned()));
        let gone = "publication or slot is missing of 1/2".to_owned();
        assert_eq!(found(Some(&set([Some(true), None], None))), (Level::Fail, gone));
        assert_eq!(found(None).0, Level::Fail);
        let comment = marker::new_shard(Shard::new(0, 2).unwrap(), "s_0_of_2");
        assert_eq!(found(Some(&set([Some(false), Some(false)], Some(&comment)))).0, Level::Warn);
    }
}
