//! The statements that set shards up.
//!
//! In: a plan. Out: SQL, and the whole as a script for `psql`. Pure.

use super::Shards;
use super::plan::Plan;
use crate::commands::output::{Told, setup_shards};
use crate::commands::setup::SetupRequest;
use crate::commands::setup::plan::{STOP_ON_ERROR, comment_lines, mark_now_sql};
use crate::commands::shards::Set;
use crate::outbox::TableName;
use crate::pg::marker::{self, MoveState};
use crate::pg::shard::Shard;
use crate::pg::{identifier, literal};
use crate::remedy::Command;

/// Makes a shard's publication, without tables, and says that its relay must wait. Row filters of partitioned tables count only where their
/// rows come as their own.
pub(super) fn publication(request: &SetupRequest, shard: Shard) -> [String; 2] {
    let name = identifier(&shard.name(&request.publication));
    let comment = marker::new_shard(shard, &shard.name(&request.slot));
    [
        format!("CREATE PUBLICATION {name} WITH (publish = 'insert', publish_via_partition_root = true)"),
        format!("COMMENT ON PUBLICATION {name} IS {}", literal(&comment)),
    ]
}

/// Says how far a publication is.
pub(super) fn comment(publication: &str, comment: Option<&str>, moving: MoveState) -> String {
    let text = marker::moving_to(comment, Some(moving)).unwrap_or_default();
    format!("COMMENT ON PUBLICATION {} IS {}", identifier(publication), literal(&text))
}

/// Locks the tables against writers. Partitions are locked with their table.
pub(super) fn lock(plan: &Plan) -> String {
    let tables: Vec<String> = plan.tables.iter().map(|of| of.name.sql()).collect();
    format!("LOCK TABLE {} IN SHARE ROW EXCLUSIVE MODE", tables.join(", "))
}

/// Takes the rows away from the old set and gives them to the new one.
pub(super) fn cut(request: &SetupRequest, plan: &Plan) -> Vec<String> {
    let with = |filter: &dyn Fn(&super::plan::Table) -> String| -> String {
        let tables = plan.tables.iter().map(|of| format!("{} WHERE ({})", of.name.sql(), filter(of)));
        tables.collect::<Vec<_>>().join(", ")
    };
    let none = with(&|_| "false".to_owned());
    let old = plan.source.iter().flat_map(|source: &Set| &source.members).flat_map(|member| {
        let set = format!("ALTER PUBLICATION {} SET TABLE {none}", identifier(&member.publication));
        [set, comment(&member.publication, member.comment.as_deref(), MoveState::Drains)]
    });
    let new = Shard::all(plan.count).map(|shard| {
        let name = identifier(&shard.name(&request.publication));
        format!("ALTER PUBLICATION {name} ADD TABLE {}", with(&|of| shard.filter(&of.hashed)))
    });
    old.chain(new).collect()
}

/// Marks a shard's slot; its relay need no longer wait.
pub(super) fn opened(request: &SetupRequest, shard: Shard) -> String {
    let (publication, slot) = (shard.name(&request.publication), shard.name(&request.slot));
    let line = marker::moving_to(Some(&marker::new_shard(shard, &slot)), None);
    mark_now_sql(&publication, &slot, &marker::set(line.as_deref(), &slot), &marker::since_format(&slot, true))
}

/// Returns the command that runs the relay of a shard.
pub(super) fn run_command(request: &SetupRequest, shard: Shard) -> Command {
    request.told().add_to(Command::new("run").set("--shard", shard))
}

/// The whole for `psql`. What a move waits for cannot be written in SQL: it says where to wait.
pub(super) fn script(request: &SetupRequest, shards: &Shards, plan: &Plan) -> String {
    let verb = if shards.moves { "--reshard" } else { "--shards" };
    let tables: &[TableName] = if shards.moves { &[] } else { &request.tables };
    let apply = Told { tables, ..request.told() }.add_to(setup_shards(verb, plan.count));
    if plan.is_done() {
        return comment_lines(&format!("nothing to do: {} are there", plan.shown()));
    }
    let mut text = STOP_ON_ERROR.to_owned();
    let mut part = |comment: &str, statements: Vec<String>, in_transaction: bool| {
        if statements.is_empty() {
            return;
        }
        text.push('\n');
        text.push_str(&comment_lines(comment));
        let (begin, end) = if in_transaction { ("BEGIN;\n", "COMMIT;\n") } else { ("", "") };
        text.push_str(begin);
        text.extend(statements.iter().flat_map(|statement| [statement.as_str(), ";\n"]));
        text.push_str(end);
    };
    part(
        &format!(
            "{} in database \"{}\". {apply} does all of it, and waits where that is needed.",
            plan.shown(),
            plan.database
        ),
        plan.missing_publications().flat_map(|shard| publication(request, shard)).collect(),
        true,
    );
    let failover = if plan.failover { ", failover => true" } else { "" };
    let slot = |shard: Shard| {
        let name = literal(&shard.name(&request.slot));
        format!("SELECT lsn FROM pg_catalog.pg_create_logical_replication_slot({name}, 'pgoutput'{failover})")
    };
    if !plan.is_cut {
        part("Slots, unless they are there. They have no rows yet.", Shard::all(plan.count).map(slot).collect(), false);
        let cut = [lock(plan)].into_iter().chain(cut(request, plan)).collect();
        part("The cut. Transactions that write to the tables end before it, or begin to write after it.", cut, true);
    }
    let old: Vec<_> = plan.source.iter().flat_map(|source| &source.members).collect();
    let drop_slot = |name: &str| format!("SELECT pg_catalog.pg_drop_replication_slot({})", literal(name));
    part(
        "Only once the old slots have confirmed a position after the cut (SELECT slot_name, confirmed_flush_lsn FROM pg_replication_slots),\nand their relays are stopped.",
        old.iter().map(|member| drop_slot(&member.slot)).collect(),
        false,
    );
    let gone = old.iter().map(|member| format!("DROP PUBLICATION {}", identifier(&member.publication)));
    let open = gone.chain(Shard::all(plan.count).map(|shard| opened(request, shard))).collect();
    part("From here on the relays of the new set read.", open, true);
    text.extend(Shard::all(plan.count).map(|shard| comment_lines(&format!("next: {}", run_command(request, shard)))));
    text
}
