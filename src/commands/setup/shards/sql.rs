//! Writes the SQL that sets shards up.
//!
//! In: a plan. Out: the statements of each step, and all steps as a script for `psql`. Pure.

use super::Shards;
use super::plan::Plan;
use crate::commands::output::{Told, setup_shards};
use crate::commands::setup::SetupRequest;
use crate::commands::setup::plan::{STOP_ON_ERROR, comment_lines, mark_now_sql};
use crate::commands::shards::Member;
use crate::pg::marker::{self, MoveState};
use crate::pg::shard::Shard;
use crate::pg::{identifier, literal};
use crate::remedy::Command;

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

/// Makes the cut: from then on rows pass the filters of the new set, and no old one.
pub(super) fn cut(plan: &Plan) -> Vec<String> {
    let with = |filter: &dyn Fn(&super::plan::Table) -> String| -> String {
        let tables = plan.tables.iter().map(|of| format!("{} WHERE ({})", of.name.sql(), filter(of)));
        tables.collect::<Vec<_>>().join(", ")
    };
    let none = with(&|_| "false".to_owned());
    let old = plan.old().iter().flat_map(|member| {
        let set = format!("ALTER PUBLICATION {} SET TABLE {none}", identifier(&member.publication));
        [set, comment(member, MoveState::Drains)]
    });
    let new = plan.target.shards().map(|(shard, member)| {
        let name = identifier(&member.publication);
        format!("ALTER PUBLICATION {name} ADD TABLE {}", with(&|of| shard.filter(&of.hashed)))
    });
    old.chain(new).collect()
}

/// Drops an old slot.
pub(super) fn drop_slot(name: &str) -> String {
    format!("SELECT pg_catalog.pg_drop_replication_slot({})", literal(name))
}

/// Drops the old publications, and marks the new slots: their relays need no longer wait.
pub(super) fn open(plan: &Plan) -> Vec<String> {
    let gone = plan.old().iter().map(|member| format!("DROP PUBLICATION {}", identifier(&member.publication)));
    let opened = plan.target.shards().map(|(shard, Member { publication, slot, .. })| {
        let line = marker::moving_to(Some(&marker::new_shard(shard, slot)), None);
        mark_now_sql(publication, slot, &marker::set(line.as_deref(), slot), &marker::since_format(slot, true))
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
        let cut = in_transaction([vec![lock(plan)], cut(plan)].concat());
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
