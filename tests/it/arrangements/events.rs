//! The events: what people, programs and crashes do to an outbox, its slot and its relay.
//!
//! A further one is a line of [`EVENTS`]. `goes` names the shapes with which no row is less known after it than before.

use walrelay_dev::kafka::shared_kafka;
use walrelay_dev::postgres::{Mode, Postgres};
use walrelay_dev::process::wait_until;

use super::Shape::{self, AllTables, Partitioned, Plain, Schema, Shards};
use super::scene::Scene;
use crate::lane::{LONG, fresh, wait_log};

/// What is done between `setup` and `prune`. Rows are inserted before and after it.
pub(super) struct Event {
    pub(super) name: &'static str,
    act: Act,
    /// The shapes that it fits.
    pub(super) on: &'static [Shape],
    /// The first version that has it.
    pub(super) from: u32,
    /// The shapes with which all that was known is still known, and the first version on which it is.
    pub(super) goes: (&'static [Shape], u32),
    /// Whether it stops the server.
    pub(super) stops: bool,
    /// Whether `prune` may keep rows that `backfill` has published afterwards, since the slot may be another one.
    pub(super) is_doubtful: bool,
}

enum Act {
    Sql(&'static str),
    Do(fn(&mut Scene, &mut Postgres)),
}

impl Event {
    pub(super) fn happen(&self, scene: &mut Scene, postgres: &mut Postgres) {
        match self.act {
            Act::Sql(statements) => scene.sql(statements),
            Act::Do(act) => act(scene, postgres),
        }
    }

    const fn on(self, on: &'static [Shape]) -> Self {
        Self { on, ..self }
    }

    const fn from(self, from: u32) -> Self {
        Self { from, ..self }
    }

    const fn goes(self, with: &'static [Shape]) -> Self {
        Self { goes: (with, self.from), ..self }
    }

    const fn goes_from(self, from: u32) -> Self {
        Self { goes: (ANY, from), ..self }
    }

    const fn doubtful(self) -> Self {
        Self { is_doubtful: true, ..self }
    }

    const fn stops(self) -> Self {
        Self { stops: true, ..self }
    }
}

const fn by(name: &'static str, act: Act) -> Event {
    Event { name, act, on: ANY, from: 14, goes: (&[], 14), stops: false, is_doubtful: false }
}

const fn sql(name: &'static str, statements: &'static str) -> Event {
    by(name, Act::Sql(statements))
}

const fn event(name: &'static str, act: fn(&mut Scene, &mut Postgres)) -> Event {
    by(name, Act::Do(act))
}

/// All shapes.
pub(super) const ANY: &[Shape] = &[Plain, Partitioned, AllTables, Schema, Shards];

/// One table with the rows.
const WHOLE: &[Shape] = &[Plain, AllTables, Schema, Shards];

/// One slot.
const ONE: &[Shape] = &[Plain, Partitioned, AllTables, Schema];

/// One slot, and one table with the rows.
const SIMPLE: &[Shape] = &[Plain, AllTables, Schema];

/// The publication names the table that has the rows: no rewrite makes that another one.
const NAMED: &[Shape] = &[Plain, Shards];

pub(super) const EVENTS: &[Event] = &[
    sql("nothing", "").goes(ANY),
    // Rewrites, updates and new columns.
    sql("column_type", "ALTER TABLE outbox ALTER payload TYPE jsonb USING payload::jsonb").goes(NAMED),
    sql("volatile_default", "ALTER TABLE outbox ADD more uuid DEFAULT gen_random_uuid()").goes(NAMED),
    sql("vacuum_full", "VACUUM FULL outbox").goes(ANY),
    sql("vacuum_freeze", "VACUUM (FREEZE) outbox").goes(ANY),
    sql("cluster", "CLUSTER outbox USING outbox_pkey").on(WHOLE).goes(ANY),
    sql("repack", "REPACK outbox").from(19).on(WHOLE).goes(ANY),
    sql("repack_concurrently", "REPACK (CONCURRENTLY) outbox").from(19).on(WHOLE).goes(ANY),
    sql("updated", "UPDATE outbox SET payload = '[]'; SELECT pg_stat_reset()").goes(ANY),
    sql(
        "time_column",
        "ALTER TABLE outbox ADD occurred_at timestamptz DEFAULT now() - interval '1 day';
         UPDATE outbox SET occurred_at = now() - interval '2 days'",
    )
    .goes(ANY),
    sql(
        "trigger_on_time",
        "ALTER TABLE outbox ADD IF NOT EXISTS created_at timestamptz DEFAULT now() - interval '1 day';
         CREATE FUNCTION aged() RETURNS trigger LANGUAGE plpgsql AS
           $$ BEGIN NEW.created_at := now() - interval '2 days'; RETURN NEW; END $$;
         CREATE TRIGGER aged BEFORE INSERT OR UPDATE ON outbox FOR EACH ROW EXECUTE FUNCTION aged();
         UPDATE outbox SET payload = '[]'",
    )
    .goes(ANY),
    sql("truncated", "TRUNCATE outbox").goes(ANY),
    // Transactions.
    event("savepoint_rolled_back", |s, _| {
        let (gone, kept) = (s.row("outbox"), s.row("outbox"));
        s.sql(&format!("BEGIN; SAVEPOINT a; {gone}; ROLLBACK TO a; SAVEPOINT b; {kept}; RELEASE b; COMMIT"));
    })
    .goes(ANY),
    event("prepared", |s, _| {
        let (row, name) = (s.row("outbox"), fresh("prepared"));
        s.sql(&format!("BEGIN; {row}; PREPARE TRANSACTION '{name}'"));
        s.sql(&format!("COMMIT PREPARED '{name}'"));
    })
    .goes(ANY),
    event("as_replica", |s, _| {
        let row = s.row("outbox");
        s.sql(&format!("SET session_replication_role = replica; {row}"));
    })
    .goes(ANY),
    event("deleted_at_once", |s, _| {
        s.stop();
        let row = s.row("outbox");
        s.sql(&format!("BEGIN; {row}; DELETE FROM outbox WHERE id = {}; COMMIT", s.last()));
        s.sent.insert(s.last());
    })
    .goes(ANY),
    event("open_at_setup", |s, _| {
        s.sql("TRUNCATE outbox");
        let row = s.row("outbox");
        s.set_up_beside(&format!("BEGIN; {row}"), "COMMIT");
    })
    .on(SIMPLE),
    event("prepared_at_setup", |s, _| {
        s.sql("TRUNCATE outbox");
        let (row, name) = (s.row("outbox"), fresh("prepared"));
        s.set_up_beside(&format!("BEGIN; {row}; PREPARE TRANSACTION '{name}'"), &format!("COMMIT PREPARED '{name}'"));
    })
    .on(SIMPLE),
    event("open_at_add_table", |s, _| {
        s.alter_publications("DROP TABLE outbox");
        let mut writer = s.lane.connect();
        writer.batch_execute(&format!("BEGIN; {}", s.row("outbox"))).unwrap();
        s.alter_publications("ADD TABLE outbox");
        s.start();
        let mut filling = s.filling();
        wait_log(&filling, "waiting until the transactions that were open");
        writer.batch_execute("COMMIT").unwrap();
        assert_eq!(filling.wait_exit(LONG).unwrap(), 0, "{}", filling.log());
    })
    .on(&[Plain, Partitioned]),
    // The table leaves what is published, and comes back.
    event("publish_changed", |s, _| {
        s.alter_publications("SET (publish = 'update')");
        s.insert("outbox");
        s.alter_publications("SET (publish = 'insert')");
    }),
    event("dropped_and_added", |s, _| {
        s.alter_publications("DROP TABLE outbox");
        s.insert("outbox");
        s.alter_publications("ADD TABLE outbox");
    })
    .on(&[Plain, Partitioned]),
    event("filtered", |s, _| {
        s.alter_publications("SET TABLE outbox WHERE (aggregateid <> 'a'), other");
        s.insert("outbox");
        s.alter_publications("SET TABLE outbox, other");
    })
    .from(15)
    .on(&[Plain]),
    // As a dump and its restoration do it. No row comes between: a slot cannot pass a row from a time without its publication.
    event("publication_made_again", |s, _| {
        s.stop();
        let name = s.lane.name.clone();
        let comment = "SELECT obj_description(oid, 'pg_publication') FROM pg_publication WHERE pubname = $1";
        let comment: String = s.lane.connect().query_one(comment, &[&name]).unwrap().get(0);
        s.sql(&format!("ALTER PUBLICATION {name} RENAME TO {name}_old"));
        s.publish();
        s.sql(&format!("COMMENT ON PUBLICATION {name} IS '{comment}'; DROP PUBLICATION {name}_old"));
    })
    .on(ONE),
    event("unlogged_and_logged", |s, _| {
        let table = if s.shape == Partitioned { "outbox_a" } else { "outbox" };
        s.sql(&format!("ALTER TABLE {table} SET UNLOGGED"));
        s.insert("outbox");
        s.sql(&format!("ALTER TABLE {table} SET LOGGED"));
    })
    .on(&[Partitioned, AllTables, Schema]),
    event("moved_out_and_back", |s, _| {
        s.sql("CREATE SCHEMA elsewhere; ALTER TABLE outbox SET SCHEMA elsewhere");
        s.insert("elsewhere.outbox");
        s.sql("ALTER TABLE elsewhere.outbox SET SCHEMA app");
    }),
    event("renamed_and_back", |s, _| {
        s.stop();
        s.sql("ALTER TABLE outbox RENAME TO renamed");
        s.insert("renamed");
        s.sql("ALTER TABLE renamed RENAME TO outbox");
    }),
    event("replaced", |s, _| {
        s.sql("CREATE TABLE replaced (LIKE outbox INCLUDING ALL); INSERT INTO replaced SELECT * FROM outbox");
        s.insert("replaced");
        s.sql("BEGIN; DROP TABLE outbox; ALTER TABLE replaced RENAME TO outbox; COMMIT");
        if s.shape == Plain {
            s.alter_publications("ADD TABLE outbox");
        }
    })
    .on(SIMPLE),
    // Partitions.
    event("partition_created", |s, _| {
        s.sql("CREATE TABLE outbox_e PARTITION OF outbox FOR VALUES IN ('e')");
        s.keys = 5;
    })
    .on(&[Partitioned])
    .goes(ANY),
    // As pg_partman does it, days before the first row. A walsender before 15 may not notice it.
    event("partition_attached_empty", |s, _| {
        s.start();
        s.sql("CREATE TABLE outbox_e (LIKE outbox INCLUDING ALL)");
        s.sql("ALTER TABLE outbox ATTACH PARTITION outbox_e FOR VALUES IN ('e')");
        let noted = "SELECT EXISTS (SELECT FROM pg_description WHERE description LIKE 'walrelay tables: %' || 'outbox_e'::regclass::oid || '%')";
        let mut client = s.lane.connect();
        if s.postgres >= 15 {
            wait_until(LONG, "the relay's look", || Ok(client.query_one(noted, &[])?.get(0))).unwrap();
        }
        s.keys = 5;
    })
    .on(&[Partitioned])
    .goes_from(15),
    event("partition_attached_filled", |s, _| {
        s.sql("CREATE TABLE outbox_e (LIKE outbox INCLUDING ALL)");
        s.rows("outbox_e", "'e'");
        s.sql("ALTER TABLE outbox ATTACH PARTITION outbox_e FOR VALUES IN ('e')");
        s.keys = 5;
    })
    .on(&[Partitioned]),
    event("partition_detached_and_attached", |s, _| {
        s.sql("ALTER TABLE outbox DETACH PARTITION outbox_a");
        s.rows("outbox_a", "'a'");
        s.sql("ALTER TABLE outbox ATTACH PARTITION outbox_a FOR VALUES IN ('a')");
    })
    .on(&[Partitioned]),
    event("partition_replaced", |s, _| {
        s.sql("CREATE TABLE replaced (LIKE outbox INCLUDING ALL)");
        s.rows("replaced", "'a'");
        s.sql(
            "BEGIN; ALTER TABLE outbox DETACH PARTITION outbox_a; DROP TABLE outbox_a; ALTER TABLE replaced RENAME TO outbox_a;
             ALTER TABLE outbox ATTACH PARTITION outbox_a FOR VALUES IN ('a'); COMMIT",
        );
    })
    .on(&[Partitioned]),
    sql("row_moved", "UPDATE outbox SET aggregateid = 'c' WHERE aggregateid = 'a'").on(&[Partitioned]).goes(ANY),
    // The relay.
    event("relay_killed", |s, _| {
        s.start();
        s.relays.drain(..).for_each(|mut relay| relay.kill9().unwrap());
        s.insert("outbox");
    }),
    event("narrower_relay", |s, _| {
        s.stop();
        s.start_with(&["--table", "app.other"]);
        s.insert("outbox");
        s.settle();
        s.stop();
    }),
    event("only_local_rows", |s, _| {
        s.stop();
        s.more = vec!["--origin=local".to_owned()];
        s.start();
        let (name, row) = (fresh("origin"), s.row("outbox"));
        s.sql(&format!("SELECT pg_replication_origin_create('{name}')"));
        s.sql(&format!("SELECT pg_replication_origin_session_setup('{name}'); {row}"));
        s.settle();
        s.stop();
        s.more.clear();
    })
    .from(16),
    event("skipped", |s, _| bad_row(s, "skip", "'no topic'", "'{}'")),
    event("dead_letter", |s, _| bad_row(s, "dead-letter", "'no topic'", "'{}'")),
    // Its payload is larger than a record may be.
    event("dead_letter_without_payload", |s, _| {
        bad_row(s, "dead-letter", "'order'", "(SELECT string_agg(md5(n::text), '') FROM generate_series(1, 60000) AS n)");
    }),
    event("to_shards", |s, _| s.reshard(2)).from(15).on(&[Plain]).goes(ANY),
    event("to_more_shards", |s, _| s.reshard(3)).on(&[Shards]).goes(ANY),
    // The slot and the server.
    event("peeked", |s, _| {
        s.stop();
        s.insert("outbox");
        s.each_slot(&read_slot("peek"));
    })
    .goes(ANY),
    // `prune` does not notice these two: see "Rows that stay" in docs/operations/prune.md.
    event("read_by_hand", |s, _| pass_rows(s, &read_slot("get"))).goes(ANY),
    event("slot_advanced", |s, _| {
        pass_rows(s, "SELECT pg_replication_slot_advance('{slot}', pg_current_wal_lsn())");
    })
    .goes(ANY),
    event("slot_made_again", |s, _| drop(make_slots_again(s))),
    // A relay that begins with such a slot does not notice it: see "Which slot it is" in docs/guarantees.md.
    event("slot_made_again_and_read", |s, _| {
        let rows = make_slots_again(s);
        s.passed.extend(rows);
        s.insert("outbox");
        s.each_slot(&read_slot("peek"));
    })
    .doubtful(),
    event("restarted", |_, postgres| postgres.restart(Mode::Fast).unwrap()).goes(ANY).stops(),
    event("stopped_at_once", |_, postgres| postgres.restart(Mode::Immediate).unwrap()).goes(ANY).stops(),
    event("crashed", |s, postgres| {
        s.insert("outbox");
        postgres.kill().unwrap();
        postgres.start_again().unwrap();
    })
    .goes(ANY)
    .stops(),
    event("copied_database", |s, postgres| {
        s.stop();
        let (name, copy) = (s.lane.name.clone(), fresh("copy"));
        postgres.connect(None).unwrap().batch_execute(&format!("CREATE DATABASE {copy} TEMPLATE {name}")).unwrap();
        s.each_slot("SELECT pg_drop_replication_slot('{slot}')");
        s.lane.source = postgres.url(&copy);
        s.sql(&format!("ALTER DATABASE {copy} SET search_path = app"));
        s.insert("outbox");
        s.each_slot("SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')");
    })
    .on(ONE),
    event("standby_promoted", |s, postgres| {
        s.stop();
        s.insert("outbox");
        let standby = postgres.standby(&[]).unwrap();
        standby.promote().unwrap();
        s.lane.source = standby.url(&s.lane.name);
        s.standby = Some(standby);
        s.each_slot("SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')");
    })
    .doubtful()
    .stops(),
];

/// As SQL, reads a slot as no relay does. `how`: peek or get.
fn read_slot(how: &str) -> String {
    let options = "'proto_version', '1', 'publication_names', '{slot}'";
    format!("SELECT pg_logical_slot_{how}_binary_changes('{{slot}}', NULL, NULL, {options})")
}

/// Has the slots pass rows that no relay has read.
fn pass_rows(scene: &mut Scene, sql: &str) {
    scene.stop();
    let rows = scene.insert("outbox");
    scene.each_slot(sql);
    scene.passed.extend(rows);
}

/// Drops the slots, and makes others under their names once there are rows between: those.
fn make_slots_again(scene: &mut Scene) -> Vec<String> {
    scene.stop();
    scene.each_slot("SELECT pg_drop_replication_slot('{slot}')");
    let rows = scene.insert("outbox");
    scene.each_slot("SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')");
    rows
}

/// Has a row, of which no record can be made, for relays with this `--on-bad-row`.
fn bad_row(scene: &mut Scene, action: &str, topic: &str, payload: &str) {
    scene.stop();
    scene.more = vec![format!("--on-bad-row={action}")];
    drop(shared_kafka().unwrap().create_topic(&scene.lane.topic("dead-letter"), 1, &[]));
    let row = scene.row("outbox").replace("'order'", topic).replace("'{}'", payload);
    scene.sql(&row);
    scene.skipped.insert(scene.last());
}
