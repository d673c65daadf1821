//! `prune` deletes what is delivered, and nothing else, whatever the relay, the writers and the WAL are doing.

use std::process::{Child, Command, Stdio};

use postgres::{Client, NoTls};
use walrelay_dev::kafka::shared_kafka;
use walrelay_dev::postgres::{self as server, Postgres};
use walrelay_dev::process::wait_until;

use crate::lane::{LONG, Lane, binary, ended, hint};
use crate::prune_partitions::in_partitions;

/// With a column that says how old a row is.
pub(crate) const AGED: &str = "CREATE TABLE outbox (id text PRIMARY KEY, aggregatetype text NOT NULL, aggregateid text, payload text, \
                    created_at timestamptz NOT NULL DEFAULT now() - interval '1 day')";

/// Rows that are a day old.
pub(crate) fn old(ids: &[&str]) -> String {
    let rows: Vec<String> = ids.iter().map(|id| format!("('{id}', 'order', 'k', 'p')")).collect();
    format!("INSERT INTO outbox (id, aggregatetype, aggregateid, payload) VALUES {}", rows.join(", "))
}

/// Lets `setup` mark the slot, and a relay note what it reads.
#[track_caller]
pub(crate) fn proven(lane: Lane) -> Lane {
    set_up(&lane, &[]);
    noted(&lane, &[]);
    lane
}

/// Runs a relay for a moment, so that it notes what it reads.
#[track_caller]
pub(crate) fn noted(lane: &Lane, more: &[&str]) {
    let mut relay = lane.streaming(more);
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
}

/// States that all rows of a table are published.
#[track_caller]
pub(crate) fn state_published(lane: &Lane, table: &str) -> String {
    let place = ["--source", &lane.source, "--publication", &lane.name, "--slot", &lane.name];
    let what = ["setup", "--apply", "--published", "--yes", "--table", table];
    let output = Command::new(binary()).args(what).args(place).output().unwrap();
    let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert!(output.status.success(), "{text}");
    text
}

#[track_caller]
pub(crate) fn set_up(lane: &Lane, more: &[&str]) {
    let place = ["--source", &lane.source, "--publication", &lane.name, "--slot", &lane.name];
    let output = Command::new(binary()).args(["setup", "--apply"]).args(place).args(more).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

pub(crate) fn command(lane: &Lane, more: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command.args(["prune", "--source", &lane.source, "--publication", &lane.name, "--slot", &lane.name]);
    command.args(more);
    command
}

/// Runs it to its end: exit code, what it said.
#[track_caller]
pub(crate) fn pruned(lane: &Lane, more: &[&str]) -> (i32, String) {
    let output = command(lane, more).output().unwrap();
    let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    (output.status.code().unwrap(), text)
}

#[track_caller]
pub(crate) fn left(lane: &Lane) -> Vec<String> {
    let rows = lane.connect().query("SELECT id FROM outbox ORDER BY id", &[]).unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

/// Begins one, and returns once it waits for the slot: what is old is listed, and its message is committed.
#[track_caller]
pub(crate) fn waiting(lane: &Lane, more: &[&str]) -> Child {
    let mut client = lane.connect();
    let messages = format!(
        "SELECT count(*) FROM pg_logical_slot_peek_binary_changes('{}', NULL, NULL, 'proto_version', '1', 'publication_names', '{}', 'messages', 'true')
          WHERE get_byte(data, 0) = ascii('M')",
        lane.name, lane.name
    );
    // The walsender of a relay that was killed keeps the slot for a moment.
    let is_free = format!("SELECT NOT active FROM pg_replication_slots WHERE slot_name = '{}'", lane.name);
    wait_until(LONG, "the slot to be free", || Ok(client.query_one(&is_free, &[])?.get(0))).unwrap();
    let before: i64 = client.query_one(&messages, &[]).unwrap().get(0);
    let child = command(lane, more).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_until(LONG, "prune to wait", || Ok(client.query_one(&messages, &[])?.get::<_, i64>(0) > before)).unwrap();
    child
}

#[track_caller]
pub(crate) fn finished(child: Child) -> String {
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert!(output.status.success(), "{text}");
    text
}

#[test]
fn old_rows_go_once_the_relay_has_delivered_them_and_young_ones_stay() {
    let lane = proven(Lane::with(AGED, "outbox"));
    lane.sql(&old(&["1", "2", "3"]));
    lane.sql("INSERT INTO outbox VALUES ('young', 'order', 'k', 'p', now())");
    let child = waiting(&lane, &["--older-than", "1h", "--chunk", "2"]);
    // The relay is down: nothing is delivered, nothing may go.
    assert_eq!(left(&lane), ["1", "2", "3", "young"]);
    let _relay = lane.streaming(&[]);
    let text = finished(child);
    assert!(text.contains("public.outbox: 3 rows deleted"), "{text}");
    assert_eq!(left(&lane), ["young"]);
    assert_eq!(lane.ids("order"), ["1", "2", "3", "young"]);
    let (code, text) = pruned(&lane, &["--older-than", "1h"]);
    assert!(code == 0 && text.contains("0 rows deleted"), "{text}");
}

#[test]
fn asynchronous_commits_that_are_visible_and_not_yet_in_the_log_stay() {
    let settings = vec![("wal_writer_delay".to_owned(), "10s".to_owned())];
    let server = Postgres::start(&server::Options { settings, ..server::Options::default() }).unwrap();
    let lane = proven(Lane::on(&server, shared_kafka().unwrap()).furnish(AGED, "outbox"));
    let mut relay = lane.streaming(&[]);
    lane.wait_confirmed();
    relay.kill9().unwrap();
    let mut writer = lane.connect();
    writer.batch_execute("SET synchronous_commit = off").unwrap();
    writer.batch_execute(&old(&["1"])).unwrap();
    // What a simpler prune would take for delivered: the slot has confirmed all that the WAL is said to hold.
    let trap = format!(
        "SELECT confirmed_flush_lsn >= pg_current_wal_lsn(), EXISTS (SELECT FROM outbox)
           FROM pg_replication_slots WHERE slot_name = '{}'",
        lane.name
    );
    let row = writer.query_one(&trap, &[]).unwrap();
    assert_eq!((row.get::<_, bool>(0), row.get::<_, bool>(1)), (true, true));
    let child = waiting(&lane, &["--older-than", "1h"]);
    assert_eq!(left(&lane), ["1"]);
    relay.start_again().unwrap();
    finished(child);
    assert_eq!((left(&lane).len(), lane.ids("order")), (0, vec!["1".to_owned()]));
}

#[test]
fn rows_of_savepoints_whose_transaction_still_runs_stay() {
    let lane = proven(Lane::with(AGED, "outbox"));
    let mut writer = lane.connect();
    writer.batch_execute(&format!("BEGIN; SAVEPOINT s; {}; RELEASE s", old(&["open"]))).unwrap();
    lane.sql(&old(&["1"]));
    let snapshot: String = lane.connect().query_one("SELECT pg_current_snapshot()::text", &[]).unwrap().get(0);
    let child = waiting(&lane, &["--older-than", "1h"]);
    writer.batch_execute("COMMIT").unwrap();
    // What a simpler prune would ask: it says that the row was visible then, which it was not.
    let trap = "SELECT pg_visible_in_snapshot(xmin::text::xid8, $1::text::pg_snapshot) FROM outbox WHERE id = 'open'";
    assert!(writer.query_one(trap, &[&snapshot]).unwrap().get::<_, bool>(0));
    let relay = lane.streaming(&[]);
    finished(child);
    assert_eq!(left(&lane), ["open"]);
    assert_eq!(lane.ids("order"), ["1", "open"]);
    drop(relay);
}

#[test]
fn a_row_that_took_the_place_of_a_listed_one_stays() {
    let lane = proven(Lane::with(AGED, "outbox"));
    lane.sql("ALTER TABLE outbox SET (autovacuum_enabled = off)");
    lane.sql(&old(&["1", "2"]));
    let child = waiting(&lane, &["--older-than", "1h"]);
    lane.sql("DELETE FROM outbox");
    // The slot is of a time when the rows were there, but holds no row of a user's table back. Slots that others create meanwhile do, until
    // their snapshots are there.
    let mut client = lane.connect();
    wait_until(LONG, "the rows' places to be free", || {
        client.batch_execute("VACUUM outbox")?;
        Ok(client.query_one("SELECT pg_relation_size('outbox')", &[])?.get::<_, i64>(0) == 0)
    })
    .unwrap();
    lane.sql(&old(&["1", "3"]));
    let places = lane.connect().query("SELECT ctid::text FROM outbox ORDER BY 1", &[]).unwrap();
    let places: Vec<String> = places.iter().map(|row| row.get(0)).collect();
    assert_eq!(places, ["(0,1)", "(0,2)"], "the places were not used again");
    let _relay = lane.streaming(&[]);
    let text = finished(child);
    assert!(text.contains("0 rows deleted, 2 were locked or had changed"), "{text}");
    assert_eq!(left(&lane), ["1", "3"]);
}

#[test]
fn a_locked_row_is_passed_over_and_goes_the_next_time() {
    let lane = proven(Lane::with(AGED, "outbox"));
    lane.sql(&old(&["1", "2"]));
    let _relay = lane.streaming(&[]);
    let mut holder = lane.connect();
    holder.batch_execute("BEGIN; SELECT FROM outbox WHERE id = '1' FOR UPDATE").unwrap();
    let (code, text) = pruned(&lane, &["--older-than", "1h"]);
    assert!(code == 0 && text.contains("1 rows deleted, 1 were locked"), "{text}");
    holder.batch_execute("COMMIT").unwrap();
    pruned(&lane, &["--older-than", "1h"]);
    assert_eq!(left(&lane).len(), 0);
}

#[test]
fn what_cannot_be_proven_or_distinguished_is_refused() {
    let lane = proven(Lane::with(AGED, "outbox"));
    lane.sql(&old(&["1"]));
    for (more, code, words) in [
        (&["--older-than", "59s"][..], 64, "below a minute"),
        (&[], 64, "prune needs --older-than"),
        (&["--older-than", "1h", "--slot", "nowhere"], 2, "does not exist"),
        (&["--older-than", "1h", "--publication", "nowhere"], 2, "does not exist"),
        (&["--older-than", "1h", "--table", "nowhere"], 2, "does not exist"),
        (&["--older-than", "1h", "--age-column", "payload"], 64, "names no time"),
        (&["--older-than", "1h", "--archive-to", "nowhere"], 2, "does not exist"),
        (&["--older-than", "1h", "--partitions"], 64, "cannot be pruned by partitions"),
        (&["--older-than", "1h", "--chunk", "0"], 64, "1 to 100000"),
    ] {
        let (found, text) = pruned(&lane, more);
        assert!(found == code && text.contains(words), "{more:?}: exit {found}, {text}");
    }
    lane.sql("ALTER TABLE outbox RENAME created_at TO born");
    let (code, text) = pruned(&lane, &["--older-than", "1h"]);
    assert!(code == 64 && text.contains("--age-column") && text.contains("track_commit_timestamp"), "{text}");
    assert_eq!(left(&lane), ["1"]);
}

#[test]
fn rows_from_before_the_slot_stay_until_somebody_says_that_they_are_published() {
    let lane = Lane::empty();
    lane.sql(&format!("{AGED}; {}", old(&["before"])));
    set_up(&lane, &["--table", "outbox"]);
    lane.sql(&old(&["after"]));
    let _relay = lane.streaming(&[]);
    lane.wait_confirmed();
    let (code, text) = pruned(&lane, &["--older-than", "1h"]);
    assert!(code == 2 && text.contains("public.outbox: nothing says that all of its rows are published"), "{text}");
    let fix = hint(&text);
    assert!(
        fix.contains("walrelay setup --apply --table outbox --published")
            || fix.contains("--table public.outbox --published"),
        "{text}"
    );
    assert!(fix.contains("before that: WITH r AS (DELETE FROM ONLY"), "{text}");
    assert_eq!(left(&lane), ["after", "before"]);
    let text = state_published(&lane, "outbox");
    assert!(text.contains("public.outbox: 2 rows of which it is not known that they are published"), "{text}");
    let (code, text) = pruned(&lane, &["--older-than", "1h"]);
    assert!(code == 0 && text.contains("2 rows deleted"), "{text}");
    assert_eq!(left(&lane).len(), 0);
}

/// Each of them gives the row another transaction, or another time.
#[test]
fn a_row_from_before_the_slot_stays_whatever_becomes_of_it() {
    for change in [
        "UPDATE outbox SET payload = 'tried'",
        "ALTER TABLE outbox ALTER payload TYPE varchar(99)",
        "ALTER TABLE outbox ADD seen float DEFAULT random()",
        "ALTER TABLE outbox DROP created_at; ALTER TABLE outbox ADD created_at timestamptz; UPDATE outbox SET created_at = now() - interval '2 days'",
        "UPDATE outbox SET payload = 'tried'; SELECT pg_stat_reset()",
        "VACUUM FULL outbox",
    ] {
        let lane = Lane::empty();
        lane.sql(&format!("{AGED}; {}", old(&["before"])));
        set_up(&lane, &["--table", "outbox"]);
        for statement in change.split("; ") {
            lane.sql(statement);
        }
        let _relay = lane.streaming(&["--on-update=skip"]);
        lane.wait_confirmed();
        let (code, text) = pruned(&lane, &["--older-than", "1h"]);
        assert!(code == 2 && text.contains("nothing says that all of its rows are published"), "{change}: {text}");
        assert_eq!(left(&lane), ["before"], "{change}");
    }
}

/// They do not show that a row was not published.
#[test]
fn changes_of_a_table_that_was_empty_are_not_asked_about() {
    let lane = proven(Lane::with(AGED, "outbox"));
    lane.sql(&old(&["1"]));
    let _relay = lane.streaming(&["--on-update=skip"]);
    for change in [
        "UPDATE outbox SET payload = 'tried'",
        "ALTER TABLE outbox ALTER payload TYPE varchar(99)",
        "VACUUM FULL outbox",
    ] {
        lane.sql(change);
    }
    let (code, text) = pruned(&lane, &["--older-than", "1h"]);
    assert!(code == 0 && text.contains("1 rows deleted"), "{text}");
}

#[test]
fn rows_of_a_table_that_joined_later_stay() {
    let lane = proven(Lane::with(AGED, "outbox"));
    let other = AGED.replace("TABLE outbox", "TABLE other");
    lane.sql(&format!("{other}; {}", old(&["before"]).replace("INTO outbox", "INTO other")));
    lane.sql(&format!("ALTER PUBLICATION {} ADD TABLE other", lane.name));
    let _relay = lane.streaming(&[]);
    lane.sql(&old(&["1"]));
    for _ in 0..2 {
        let (code, text) = pruned(&lane, &["--older-than", "1h"]);
        assert!(code == 2 && text.contains("public.other: nothing says"), "{text}");
        set_up(&lane, &[]);
    }
    let (code, text) = pruned(&lane, &["--older-than", "1h", "--table", "outbox"]);
    assert!(code == 0 && text.contains("public.outbox: 1 rows deleted"), "{text}");
    let left = lane.connect().query("SELECT id FROM other", &[]).unwrap();
    assert_eq!(left.len(), 1);
}

/// They are confirmed, and in no topic.
#[test]
fn rows_that_the_relay_did_not_read_for_a_while_stay() {
    let other = AGED.replace("TABLE outbox", "TABLE other");
    let lane = Lane::with(&format!("{AGED}; {other}"), "outbox, other");
    set_up(&lane, &[]);
    noted(&lane, &["--table", "outbox", "--table", "other"]);
    let mut one = lane.streaming(&["--table", "outbox"]);
    lane.sql(&old(&["lost"]).replace("INTO outbox", "INTO other"));
    lane.wait_confirmed();
    let (code, text) = pruned(&lane, &["--older-than", "1h", "--table", "other"]);
    assert!(code == 2 && text.contains("public.other: its relay does not read it"), "{text}");
    let (code, text) = pruned(&lane, &["--older-than", "1h"]);
    assert!(code == 0 && text.contains("public.outbox: 0 rows deleted") && !text.contains("other"), "{text}");
    assert_eq!(one.terminate(LONG).unwrap().code, 0);
    let _both = lane.streaming(&["--table", "outbox", "--table", "other"]);
    lane.wait_confirmed();
    let (code, text) = pruned(&lane, &["--older-than", "1h"]);
    assert!(code == 2 && text.contains("public.other: its relay has not read it all the time"), "{text}");
    let rows: i64 = lane.connect().query_one("SELECT count(*) FROM other", &[]).unwrap().get(0);
    assert_eq!(rows, 1);
    state_published(&lane, "other");
    let (code, text) = pruned(&lane, &["--older-than", "1h"]);
    assert!(code == 0 && text.contains("public.other: 1 rows deleted"), "{text}");
}

/// By it rows are found that the relay has skipped.
#[test]
fn the_id_column_is_the_relays_and_rows_from_before_another_one_stay() {
    let table = AGED.replace("id text PRIMARY KEY", "id text PRIMARY KEY, ref text DEFAULT 'ref'");
    let lane = Lane::with(&table, "outbox");
    set_up(&lane, &[]);
    noted(&lane, &["--id-column", "ref"]);
    let mut relay = lane.streaming(&["--id-column", "ref", "--on-bad-row=skip"]);
    lane.sql(&old(&["skipped"]).replace("'order'", "'no topic'"));
    lane.wait_confirmed();
    let (code, text) = pruned(&lane, &["--older-than", "1h"]);
    assert!(code == 0 && text.contains("1 rows that the relay skipped stay"), "{text}");
    assert_eq!(left(&lane), ["skipped"]);
    assert_eq!(relay.terminate(LONG).unwrap().code, 0);
    let _relay = lane.streaming(&[]);
    let (code, text) = pruned(&lane, &["--older-than", "1h"]);
    assert!(code == 2 && text.contains("or with another id column"), "{text}");
    assert_eq!(left(&lane), ["skipped"]);
}

/// Any role may write one.
#[test]
fn a_note_of_a_role_that_neither_owns_the_publication_nor_replicates_does_not_count() {
    let lane = Lane::empty();
    lane.sql(&format!("{AGED}; {}", old(&["before"])));
    set_up(&lane, &["--table", "outbox"]);
    let _relay = lane.streaming(&[]);
    let role = format!("{}_anyone", lane.name);
    lane.sql(&format!("CREATE ROLE {role} LOGIN"));
    let token = format!(
        "SELECT split_part(substring(obj_description(oid) FROM 'walrelay empty: \\S+ (.*)'), ' ', 1) FROM pg_publication WHERE pubname = '{}'",
        lane.name
    );
    let token: String = lane.connect().query_one(&token, &[]).unwrap().get(0);
    let oid: u32 = lane.connect().query_one("SELECT 'outbox'::regclass::oid", &[]).unwrap().get(0);
    let known =
        lane.connect().query_one("SELECT obj_description(oid) FROM pg_publication WHERE pubname = $1", &[&lane.name]);
    assert!(known.unwrap().get::<_, String>(0).ends_with(&format!(" {oid}")), "it is listed as one with rows");
    // The fingerprint as a trusted role would write it.
    state_published(&lane, "outbox");
    let stated = format!(
        "SELECT substring(obj_description(oid) FROM '{oid}:([0-9a-f]+)') FROM pg_publication WHERE pubname = '{}'",
        lane.name
    );
    let fingerprint: String = lane.connect().query_one(&stated, &[]).unwrap().get(0);
    lane.sql(&format!(
        "DO $$ BEGIN EXECUTE (SELECT format('COMMENT ON PUBLICATION %I IS %L', pubname, regexp_replace(obj_description(oid), '\nwalrelay published: .*', ''))
           FROM pg_publication WHERE pubname = '{}'); END $$",
        lane.name
    ));
    let note = format!(
        "walrelay tables: {} {{\"token\":\"{token}\",\"tables\":{{\"{oid}\":[\"{fingerprint}\",\"FF/0\"]}}}}",
        lane.name
    );
    let write =
        format!("DO $$ BEGIN EXECUTE format('COMMENT ON LARGE OBJECT %s IS %L', lo_create(0), '{note}'); END $$");
    let mut anyone = Client::connect(&lane.source.replace("postgres@", &format!("{role}@")), NoTls).unwrap();
    anyone.batch_execute(&write).unwrap();
    let (code, text) = pruned(&lane, &["--older-than", "1h"]);
    assert!(code == 2 && text.contains("nothing says that all of its rows are published"), "{text}");
    lane.sql(&write);
    let (code, text) = pruned(&lane, &["--older-than", "1h"]);
    assert!(code == 0 && text.contains("1 rows deleted"), "{text}");
    lane.sql(&format!("DROP OWNED BY {role}; DROP ROLE {role}"));
}

#[test]
fn rows_that_take_others_with_them_and_archives_that_may_lose_some_are_refused() {
    let lane = proven(Lane::with(AGED, "outbox"));
    lane.sql(&old(&["1"]));
    let _relay = lane.streaming(&[]);
    lane.sql("CREATE UNLOGGED TABLE kept (LIKE outbox); CREATE TABLE narrow (LIKE outbox); ALTER TABLE narrow ALTER payload TYPE varchar(9)");
    for (archive, words) in [("kept", "is UNLOGGED"), ("narrow", "does not take every value")] {
        let (code, text) = pruned(&lane, &["--older-than", "1h", "--archive-to", archive]);
        assert!(code == 64 && text.contains(words), "{text}");
    }
    lane.sql("CREATE TABLE line (id text REFERENCES outbox ON DELETE CASCADE)");
    let (code, text) = pruned(&lane, &["--older-than", "1h"]);
    assert!(code == 2 && text.contains("line_id_fkey of line (ON DELETE CASCADE)"), "{text}");
    assert_eq!(left(&lane), ["1"]);
}

#[test]
fn a_slot_that_nobody_marked_and_a_relay_that_has_noted_nothing_prove_nothing() {
    let lane = Lane::with(AGED, "outbox");
    lane.sql(&old(&["1"]));
    let mut relay = lane.streaming(&[]);
    let (code, text) = pruned(&lane, &["--older-than", "1h"]);
    assert!(
        code == 2 && text.contains("does not say which tables were empty") && text.contains("walrelay setup --apply"),
        "{text}"
    );
    relay.kill9().unwrap();
    set_up(&lane, &[]);
    let (code, text) = pruned(&lane, &["--older-than", "1h"]);
    assert!(code == 2 && text.contains("has not recorded which tables it reads"), "{text}");
    assert_eq!(left(&lane), ["1"]);
}

/// Everything that goes by the marker: `run`, `check`, `status`, `prune`, `setup`.
#[test]
#[ignore = "slow"]
fn a_marker_of_an_earlier_slot_of_that_name_proves_nothing_and_its_loss_has_to_be_accepted() {
    let lane = proven(Lane::with(AGED, "outbox"));
    lane.sql(&old(&["delivered"]));
    let mut relay = lane.streaming(&[]);
    lane.wait_confirmed();
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
    lane.drop_slot(&lane.name);
    lane.sql(&old(&["lost"]));
    lane.make_slot();
    let (code, log) = ended(&mut lane.relay(&[]));
    assert!(code == 2 && log.contains("is not the one that publication"), "{log}");
    let at = lane.confirmed();
    assert!(
        hint(&log).contains("walrelay setup --apply") && hint(&log).contains(&format!("--accept-slot-at {at}")),
        "{log}"
    );
    let place = ["--source", &lane.source, "--publication", &lane.name, "--slot", &lane.name];
    for command in ["status", "check"] {
        let output = Command::new(binary()).arg(command).args(place).args(["--http", "off"]).output().unwrap();
        let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(
            output.status.code() == Some(2) && text.contains("is not the one that publication"),
            "{command}: {text}"
        );
    }
    let (code, text) = pruned(&lane, &["--older-than", "1h", "--timeout", "10s"]);
    assert!(code == 2 && text.contains("slot of that name"), "{text}");
    assert_eq!(left(&lane), ["delivered", "lost"]);
    let setup = |more: &[&str]| {
        let output = Command::new(binary()).args(["setup", "--apply"]).args(place).args(more).output().unwrap();
        (output.status.code().unwrap(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
    };
    let (code, text) = setup(&[]);
    assert!(
        code == 2 && text.contains("is not the one that publication") && hint(&text).contains("--after-loss"),
        "{text}"
    );
    let (code, text) = setup(&["--after-loss"]);
    assert!(code == 0 && text.contains("marked publication") && text.contains("was lost"), "{text}");
    lane.sql(&old(&["new"]));
    let _relay = lane.streaming(&[]);
    lane.wait_confirmed();
    let (code, text) = pruned(&lane, &["--older-than", "1h"]);
    assert!(code == 2 && text.contains("nothing says that all of its rows are published"), "{text}");
    assert_eq!(left(&lane), ["delivered", "lost", "new"]);
}

/// As a new primary's operator does, or who pipes `setup` into `psql`: the marker is written where no slot is.
#[test]
fn a_script_ends_where_the_slot_cannot_be_created_and_its_marker_needs_the_slot() {
    let lane = Lane::empty();
    lane.sql(AGED);
    let place = ["--source", &lane.source, "--publication", &lane.name, "--slot", &lane.name, "--table", "outbox"];
    let output = Command::new(binary()).arg("setup").args(place).output().unwrap();
    let script = String::from_utf8(output.stdout).unwrap();
    assert!(script.starts_with("\\set ON_ERROR_STOP on\n"), "{script}");
    let marker = script.split(";\n").find(|part| part.contains("\nDO ")).unwrap();
    let marker = &marker[marker.find("\nDO ").unwrap()..];
    let error = lane.connect().batch_execute(marker).unwrap_err();
    assert!(error.as_db_error().unwrap().message().starts_with("there is no slot"), "{error:?}");
}

/// The table holds the only copy.
#[test]
fn rows_that_were_skipped_or_whose_payload_is_in_no_topic_stay() {
    let lane = proven(Lane::with(AGED, "outbox"));
    let role = format!("{}_relay", lane.name);
    lane.sql(&format!("CREATE ROLE {role} LOGIN REPLICATION"));
    let source = lane.source.replace("postgres@", &format!("{role}@"));
    let mut relay = lane.streaming(&["--on-bad-row=skip", "--source", &source]);
    lane.sql(&old(&["1", "skipped", "2"]).replace("'skipped', 'order'", "'skipped', 'no topic'"));
    lane.wait_confirmed();
    relay.kill9().unwrap();
    let arguments = ["--on-bad-row=dead-letter", "--source", &source, "-Xmessage.max.bytes=20000"];
    let relay = lane.streaming(&arguments);
    let mut client = lane.connect();
    for (id, route, bytes) in [("whole", "no topic", 10), ("bare", "order", 30_000)] {
        let sql = "INSERT INTO outbox (id, aggregatetype, aggregateid, payload) VALUES ($1, $2, 'k', repeat('x', $3))";
        client.execute(sql, &[&id, &route, &bytes]).unwrap();
    }
    lane.wait_confirmed();
    let (code, text) = pruned(&lane, &["--older-than", "1h"]);
    assert!(code == 0 && text.contains("3 rows deleted") && text.contains("2 rows that the relay skipped"), "{text}");
    assert_eq!(left(&lane), ["bare", "skipped"]);
    // More than are named, say.
    lane.sql(&format!(
        "DO $$ BEGIN EXECUTE format('COMMENT ON LARGE OBJECT %s IS %L', (SELECT objoid FROM pg_description WHERE description LIKE 'walrelay passed over: %'),
                                    'walrelay passed over: {} {{\"ids\":[],\"others\":true}}'); END $$",
        lane.name
    ));
    let (code, text) = pruned(&lane, &["--older-than", "1h"]);
    assert!(code == 2 && text.contains("cannot be identified") && text.contains("lo_unlink("), "{text}");
    drop(relay);
    lane.sql("SELECT lo_unlink(objoid) FROM pg_description WHERE description LIKE 'walrelay passed over: %'");
    let (code, text) = pruned(&lane, &["--older-than", "1h", "--timeout", "1ms"]);
    assert!(code == 1 && text.contains("has not confirmed"), "{text}");
    lane.sql(&format!("DROP OWNED BY {role}; DROP ROLE {role}"));
}

/// The slot's position does, which the server writes down by itself.
#[test]
fn what_is_recorded_of_a_skipped_row_survives_a_crash_of_the_server() {
    let settings = [("wal_writer_delay", "10s"), ("synchronous_commit", "off")];
    let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
    let mut server = Postgres::start(&server::Options { settings, ..server::Options::default() }).unwrap();
    let lane = Lane::on(&server, shared_kafka().unwrap()).furnish(AGED, "outbox");
    let mut relay = lane.streaming(&["--on-bad-row=skip"]);
    let skipped = old(&["skipped"]).replace("'order'", "'no topic'");
    lane.sql(&format!("SET synchronous_commit = on; {skipped}"));
    // The position waits for the note, so from here on the row does not come again.
    lane.wait_confirmed();
    relay.kill9().unwrap();
    server.kill().unwrap();
    server.start_again().unwrap();
    let notes = lane.connect().query("SELECT FROM pg_largeobject_metadata", &[]).unwrap();
    assert_eq!(notes.len(), 1);
}

/// A cast to text would take them off, and the slot does not.
#[test]
fn a_row_that_was_skipped_stays_though_its_id_ends_with_blanks() {
    let lane = proven(Lane::with(&AGED.replace("id text", "id char(9)"), "outbox"));
    let _relay = lane.streaming(&["--on-bad-row=skip"]);
    lane.sql(&old(&["1", "skipped"]).replace("'skipped', 'order'", "'skipped', 'no topic'"));
    lane.wait_confirmed();
    let (code, text) = pruned(&lane, &["--older-than", "1h"]);
    assert!(code == 0 && text.contains("1 rows that the relay skipped"), "{text}");
    assert_eq!(left(&lane), ["skipped  "]);
}

#[test]
fn without_a_table_only_what_the_relay_reads_is_pruned() {
    let customers = "CREATE TABLE customers (id text PRIMARY KEY, name text, created_at timestamptz DEFAULT now() - interval '1 day')";
    let lane = Lane::with(&format!("{AGED}; {customers}"), "outbox, customers");
    set_up(&lane, &[]);
    lane.sql("INSERT INTO customers VALUES ('a', 'Ann')");
    let _relay = lane.streaming(&["--table", "outbox"]);
    lane.sql(&old(&["1"]));
    let (code, text) = pruned(&lane, &["--older-than", "1h", "--table", "customers"]);
    assert!(code == 2 && text.contains("public.customers: its relay does not read it"), "{text}");
    let (code, text) = pruned(&lane, &["--older-than", "1h"]);
    assert!(code == 0 && text.contains("public.outbox: 1 rows deleted") && !text.contains("customers"), "{text}");
    let kept = lane.connect().query("SELECT FROM customers", &[]).unwrap();
    assert_eq!(kept.len(), 1);
}

/// They were listed before the relay came to them.
#[test]
fn rows_that_the_relay_skips_while_they_are_waited_for_stay_and_so_does_their_partition() {
    let rows = old(&["1", "skipped"]).replace("'skipped', 'order'", "'skipped', 'no topic'");
    for (lane, more, stay, said) in [
        (Lane::with(AGED, "outbox"), None, &["skipped"][..], "1 rows that the relay skipped stay"),
        (in_partitions(), Some("--partitions"), &["1", "skipped"], "stay in partition public.outbox_old"),
    ] {
        let lane = proven(lane);
        lane.sql(&rows);
        let child = waiting(&lane, &["--older-than", "1h"].into_iter().chain(more).collect::<Vec<_>>());
        let _relay = lane.streaming(&["--table", "outbox", "--on-bad-row=skip"]);
        let text = finished(child);
        assert!(left(&lane) == stay && text.contains(said), "{text}");
    }
}

#[test]
fn a_relay_that_is_stopped_is_waited_for_no_longer_than_the_timeout() {
    let lane = proven(Lane::with(AGED, "outbox"));
    lane.sql(&old(&["1"]));
    let (code, text) = pruned(&lane, &["--older-than", "1h", "--timeout", "1s"]);
    assert!(code == 1 && text.contains("has not confirmed") && text.contains("walrelay run"), "{text}");
    assert_eq!(left(&lane), ["1"]);
}

#[test]
fn an_archive_that_would_be_published_is_refused() {
    let lane = proven(Lane::with(&format!("{AGED}; CREATE TABLE kept (LIKE outbox)"), "outbox, kept"));
    lane.sql(&old(&["1"]));
    let _relay = lane.streaming(&[]);
    for archive in ["kept", "outbox"] {
        let (code, text) = pruned(&lane, &["--older-than", "1h", "--table", "outbox", "--archive-to", archive]);
        assert!(code == 64 && text.contains("would be published again"), "{text}");
    }
    assert_eq!(left(&lane), ["1"]);
}

#[test]
fn a_role_without_rights_on_the_table_learns_which() {
    let lane = proven(Lane::with(AGED, "outbox"));
    lane.sql(&old(&["1"]));
    let role = format!("{}_pruner", lane.name);
    lane.sql(&format!("CREATE ROLE {role} LOGIN; GRANT SELECT ON outbox TO {role}; GRANT pg_monitor TO {role}"));
    let source = lane.source.replace("postgres@", &format!("{role}@"));
    let _relay = lane.streaming(&[]);
    let output = command(&lane, &["--older-than", "1h", "--source", &source]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("GRANT SELECT, UPDATE, DELETE ON"), "{text}");
    lane.sql(&format!("CREATE TABLE \"Kept\" (LIKE outbox); GRANT SELECT, UPDATE, DELETE ON outbox TO {role}"));
    let more = ["--older-than", "1h", "--archive-to", "\"Kept\"", "--source", &source];
    let output = command(&lane, &more).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("GRANT INSERT ON \"public\".\"Kept\""), "{text}");
    lane.sql(&format!("DROP OWNED BY {role}; DROP ROLE {role}"));
}

#[test]
fn a_dry_run_counts_and_an_archive_keeps_every_value() {
    let lane = proven(Lane::with(AGED, "outbox"));
    lane.sql(&old(&["1", "2"]));
    let _relay = lane.streaming(&[]);
    let (code, text) = pruned(&lane, &["--older-than", "1h", "--dry-run"]);
    assert!(code == 0 && text.contains("2 rows are older than 1 h 0 min by created_at"), "{text}");
    assert!(text.ends_with("nothing was deleted\n") && left(&lane).len() == 2, "{text}");
    let (code, text) = pruned(&lane, &["--older-than", "1h", "--dry-run", "--json"]);
    assert_eq!((code, text.as_str()), (0, "{\"old\":2,\"table\":\"public.outbox\"}\n"));
    lane.sql("CREATE TABLE short (id text); CREATE TABLE kept (LIKE outbox); ALTER TABLE kept ADD at timestamptz DEFAULT now()");
    let (code, text) = pruned(&lane, &["--older-than", "1h", "--archive-to", "short"]);
    assert!(code == 64 && text.contains("has no column") && left(&lane).len() == 2, "{text}");
    let (code, text) = pruned(&lane, &["--older-than", "1h", "--archive-to", "kept", "--chunk", "1", "--json"]);
    assert_eq!((code, text.as_str()), (0, "{\"deleted\":2,\"left\":0,\"table\":\"public.outbox\"}\n"));
    let kept =
        lane.connect().query_one("SELECT count(*) FROM kept WHERE payload = 'p' AND at IS NOT NULL", &[]).unwrap();
    assert_eq!((kept.get::<_, i64>(0), left(&lane).len()), (2, 0));
}

#[test]
fn age_is_taken_from_milliseconds_or_from_the_commit_where_the_server_tracks_it() {
    let settings = vec![("track_commit_timestamp".to_owned(), "on".to_owned())];
    let server = Postgres::start(&server::Options { settings, ..server::Options::default() }).unwrap();
    let table = "CREATE TABLE outbox (id text PRIMARY KEY, aggregatetype text, payload text, ts bigint)";
    let lane = proven(Lane::on(&server, shared_kafka().unwrap()).furnish(table, "outbox"));
    let _relay = lane.streaming(&[]);
    lane.sql(
        "INSERT INTO outbox VALUES ('old', 'order', 'p', 1000), ('new', 'order', 'p', extract(epoch FROM now()) * 1000)",
    );
    pruned(&lane, &["--older-than", "1h", "--age-column", "ts"]);
    assert_eq!(left(&lane), ["new"]);
    let (code, text) = pruned(&lane, &["--older-than", "1h"]);
    assert!(code == 0 && text.contains("0 rows deleted"), "{text}");
    // A row that was updated looks as young as its update, and stays.
    lane.sql("UPDATE outbox SET payload = 'q'");
    let (code, text) = pruned(&lane, &["--older-than", "1min"]);
    assert!(code == 0 && text.contains("0 rows deleted"), "{text}");
}

/// Functions that fit better than the server's own, in a schema where others may create some.
#[test]
fn functions_of_other_roles_are_not_called_by_a_name_of_the_servers_own() {
    let lane = Lane::empty();
    let aged = AGED.replace("text PRIMARY KEY", "text").replace("interval '1 day'", "interval '3 days'");
    lane.sql(&format!("{aged} PARTITION BY RANGE (created_at)"));
    lane.sql("CREATE TABLE outbox_old PARTITION OF outbox FOR VALUES FROM ('2020-01-01') TO ('2020-01-02')");
    for (signature, result) in [
        ("format(text, text, text)", "text"),
        ("format(text, name, name)", "text"),
        ("to_char(date, text)", "text"),
        ("unnest(oid[])", "SETOF oid"),
    ] {
        let body = "BEGIN RAISE EXCEPTION 'called by another role'; END";
        lane.sql(&format!(
            "CREATE FUNCTION public.{signature} RETURNS {result} LANGUAGE plpgsql AS '{}'",
            body.replace('\'', "\'\'")
        ));
    }
    set_up(&lane, &["--table", "outbox"]);
    let _relay = lane.streaming(&["--table", "outbox"]);
    let (code, text) = pruned(&lane, &["--older-than", "1h", "--partitions"]);
    assert!(code == 0 && text.contains("dropped partition public.outbox_old"), "{text}");
}

#[test]
#[ignore = "slow"]
fn every_comes_back_to_a_table_that_somebody_has_locked() {
    let lane = proven(Lane::with(AGED, "outbox"));
    lane.sql(&old(&["1"]));
    let _relay = lane.streaming(&[]);
    let mut holder = lane.connect();
    holder.batch_execute("BEGIN; LOCK TABLE outbox IN SHARE MODE").unwrap();
    let mut child = command(&lane, &["--older-than", "1h", "--every", "200ms"]).stdout(Stdio::null()).spawn().unwrap();
    // It gives up waiting for the lock, and comes back.
    let waits = "SELECT count(DISTINCT pid) FROM pg_locks WHERE NOT granted AND relation = 'outbox'::regclass";
    let mut looker = lane.connect();
    let mut asking = || looker.query_one(waits, &[]).unwrap().get::<_, i64>(0);
    for waiting in [1, 0, 1] {
        wait_until(LONG, "the lock to be asked for, given up, and asked for again", || Ok(asking() == waiting))
            .unwrap();
    }
    holder.batch_execute("COMMIT").unwrap();
    wait_until(LONG, "the row to go", || Ok(left(&lane).is_empty())).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn every_goes_on_with_rows_that_come_later() {
    let lane = proven(Lane::with(AGED, "outbox"));
    let _relay = lane.streaming(&[]);
    let mut child = command(&lane, &["--older-than", "1h", "--every", "200ms"]).stdout(Stdio::null()).spawn().unwrap();
    for id in ["1", "2"] {
        lane.sql(&old(&[id]));
        wait_until(LONG, "the row to go", || Ok(left(&lane).is_empty())).unwrap();
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(lane.ids("order"), ["1", "2"]);
}
