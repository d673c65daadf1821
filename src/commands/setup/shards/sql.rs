//! Writes the SQL that sets shards up.
//!
//! In: a plan. Out: the statements of each step, and all steps as a script for `psql`. Pure.

use super::Shards;
use super::plan::Plan;
use crate::commands::output::{Told, setup_shards};
use crate::commands::setup::SetupRequest;
use crate::commands::setup::plan::{Marked, STOP_ON_ERROR, comment_lines, mark_now_sql};
use crate::commands::shards::Member;
use crate::pg::marker::{self, MoveState};
use crate::pg::shard::Shard;
use crate::pg::{identifier, literal};
use crate::remedy::Command;
use std::collections::BTreeSet;

/// Creates a shard's publication without tables, and marks it: its relay must wait. Postgres uses the row filter of a partitioned table only
/// if the publication has `publish_via_partition_root`.
pub(super) fn publication(shard: Shard, member: &Member) -> [String; 2] {
    let name = identifier(&member.publication);
    let comment = marker::new_shard(shard, &member.slot);
    [
        format!("CREATE PUBLICATION {name} WITH (publish = 'insert', publish_via_partition_root = true)"),
        format!("COMMENT ON PUBLICATION {name} IS {}", literal(&comment)),
    ]
}

/// Records a publication's stage in the move.
pub(super) fn comment(member: &Member, moving: MoveState) -> String {
    let text = marker::moving_to(member.comment.as_deref(), Some(moving)).unwrap_or_default();
    format!("COMMENT ON PUBLICATION {} IS {}", identifier(&member.publication), literal(&text))
}

/// Locks the tables against writers. Partitions are locked with their table.
pub(super) fn lock(plan: &Plan) -> String {
    let tables: Vec<String> = plan.tables.iter().map(|of| of.name.sql()).collect();
    format!("LOCK TABLE {} IN SHARE ROW EXCLUSIVE MODE", tables.join(", "))
}

/// Makes the cut: from then on rows pass the filters of the new set, and no old one. The new slots are marked, with the tables that have no row
/// now, while nobody can write, and the tables of `carried`, whose rows are published by the old set. Their relays still wait.
pub(super) fn cut(plan: &Plan, carried: &BTreeSet<u32>) -> Vec<String> {
    let with = |filter: &dyn Fn(&super::plan::Table) -> String| -> String {
        let tables = plan.tables.iter().map(|of| format!("{} WHERE ({})", of.name.sql(), filter(of)));
        tables.collect::<Vec<_>>().join(", ")
    };
    let none = with(&|_| "false".to_owned());
    let old = plan.old().iter().flat_map(|member| {
        let set = format!("ALTER PUBLICATION {} SET TABLE {none}", identifier(&member.publication));
        [set, comment(member, MoveState::Drains)]
    });
    let new = plan.target.shards().flat_map(|(shard, Member { publication, slot, .. })| {
        let name = identifier(publication);
        let add = format!("ALTER PUBLICATION {name} ADD TABLE {}", with(&|of| shard.filter(&of.hashed)));
        let marked = Marked { publication, slot, version: plan.version, made: true, carried };
        [add, mark_now_sql(&marked, &marker::new_shard(shard, slot))]
    });
    old.chain(new).collect()
}

/// Drops an old slot.
pub(super) fn drop_slot(name: &str) -> String {
    format!("SELECT pg_catalog.pg_drop_replication_slot({})", literal(name))
}

/// Drops the old publications, and says that the new slots were created: their relays need no longer wait. The comment is read when the
/// statement runs, since the cut has written it.
pub(super) fn open(plan: &Plan) -> Vec<String> {
    let gone = plan.old().iter().map(|member| format!("DROP PUBLICATION {}", identifier(&member.publication)));
    let opened = plan.target.shards().map(|(_, Member { publication, slot, .. })| {
        let body = format!(
            "BEGIN EXECUTE (SELECT pg_catalog.format('COMMENT ON PUBLICATION %I IS %L', pubname,
                pg_catalog.regexp_replace(pg_catalog.obj_description(oid, 'pg_publication'), {}, '') || {})
              FROM pg_catalog.pg_publication WHERE pubname = {}); END",
            literal(&format!("\n?{}[a-z]+", marker::MOVE)),
            literal(&format!("\n{}", marker::set(None, slot))),
            literal(publication)
        );
        format!("DO {}", literal(&body))
    });
    gone.chain(opened).collect()
}

/// Returns the command that runs the relay of a shard.
pub(super) fn run_command(request: &SetupRequest, shard: Shard) -> Command {
    request.told().add_to(Command::new("run").set("--shard", shard))
}

/// Returns all steps as a script for `psql`. Waiting cannot be written in SQL, so comments say where to wait.
pub(super) fn script(request: &SetupRequest, shards: &Shards, plan: &Plan) -> String {
    let verb = if shards.moves { "--reshard" } else { "--shards" };
    let apply = Told { tables: &request.tables, ..request.told() }.add_to(setup_shards(verb, shards.count));
    if plan.target.is_done() {
        return comment_lines(&format!("nothing to do: {} are there", plan.target.shown()));
    }
    let in_transaction = |statements: Vec<String>| {
        if statements.is_empty() {
            statements
        } else {
            [vec!["BEGIN".to_owned()], statements, vec!["COMMIT".to_owned()]].concat()
        }
    };
    let head = format!(
        "{} in database \"{}\". {apply} does all of it, and waits where that is needed.",
        plan.target.shown(),
        plan.database
    );
    let publications = plan.missing_publications().flat_map(|(shard, member)| publication(shard, member)).collect();
    let mut parts = vec![(head.as_str(), in_transaction(publications))];
    if !plan.is_cut {
        let slots = plan.target.members.iter().map(|member| plan.slot_step(request, &member.slot).1.sql).collect();
        parts.push(("Slots, unless they are there. They have no rows yet.", slots));
        let cut = in_transaction([vec![lock(plan)], cut(plan, &BTreeSet::new())].concat());
        parts.push(("The cut. Transactions that write to the tables end before it, or begin to write after it.", cut));
    }
    parts.push((
        "Only once the old slots have confirmed a position after the cut (SELECT slot_name, confirmed_flush_lsn FROM pg_replication_slots),\nand their relays are stopped.",
        plan.old().iter().map(|member| drop_slot(&member.slot)).collect(),
    ));
    parts.push(("From here on the relays of the new set read.", in_transaction(open(plan))));
    let mut text = STOP_ON_ERROR.to_owned();
    for (comment, statements) in parts.into_iter().filter(|(_, statements)| !statements.is_empty()) {
        text.extend(["\n", &comment_lines(comment)]);
        text.extend(statements.iter().flat_map(|statement| [statement.as_str(), ";\n"]));
    }
    text.extend(
        plan.target.shards().map(|(shard, _)| comment_lines(&format!("next: {}", run_command(request, shard)))),
    );
    text
}
