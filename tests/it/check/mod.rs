//! `check` against configurations that are broken in one way each: it finds what is wrong and names the fix, and once the fix as it
//! was printed is applied, that finding is gone.

mod kafka;
mod server;

use serde_json::Value;
use walrelay_dev::kafka::shared_kafka;
use walrelay_dev::postgres::default_major;
use walrelay_dev::process::wait_until;

use crate::hints::first_commands;
use crate::lane::{LONG, Lane, binary, fresh, quoted, wait_log};

/// Debezium's outbox table, as it should be.
const GOOD: &str = "CREATE TABLE outbox (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregatetype text NOT NULL, \
                    aggregateid text NOT NULL, type text NOT NULL, payload json, created_at timestamptz DEFAULT now())";

/// One row of it.
const ROW: &str = "INSERT INTO outbox (aggregatetype, aggregateid, type, payload) VALUES ('order', 'k', 't', '{}')";

/// What a check came to.
pub(crate) struct Checked {
    pub(crate) code: i32,
    pub(crate) report: Value,
    stderr: String,
}

impl Checked {
    fn of(&self, check: &str) -> Vec<&Value> {
        let all = self.report["findings"].as_array().unwrap();
        all.iter().filter(|finding| finding["check"] == check).collect()
    }

    /// The worst finding of that check.
    #[track_caller]
    fn finding(&self, check: &str) -> &Value {
        let found = self.of(check);
        let worst = ["fail", "warn", "ok"].iter().find_map(|level| found.iter().find(|f| f["level"] == *level));
        worst.unwrap_or_else(|| panic!("no finding {check} in {:#}", self.report))
    }

    #[track_caller]
    pub(crate) fn level(&self, check: &str, level: &str, words: &[&str]) -> String {
        let finding = self.finding(check);
        assert_eq!(finding["level"], level, "{finding:#}");
        let text = finding.to_string();
        for word in words {
            assert!(text.contains(word), "{word:?} is not in {finding:#}");
        }
        finding["fix"].as_str().unwrap_or_default().to_owned()
    }
}

/// Runs `walrelay check --json` on a lane; `more` are further flags of `run`.
#[track_caller]
pub(crate) fn check(lane: &Lane, more: &[&str]) -> Checked {
    let mut arguments = lane.arguments(more);
    "check".clone_into(&mut arguments[0]);
    arguments.push("--json".to_owned());
    checked(&arguments)
}

#[track_caller]
pub(crate) fn checked(arguments: &[String]) -> Checked {
    checked_as(arguments, &[])
}

/// Runs `walrelay` with these arguments, of which `check` and `--json` are two, in this environment.
#[track_caller]
pub(crate) fn checked_as(arguments: &[String], environment: &[(&str, &str)]) -> Checked {
    let output =
        std::process::Command::new(binary()).args(arguments).envs(environment.iter().copied()).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    let report = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {stderr}"));
    Checked { code: output.status.code().unwrap(), report, stderr }
}

/// Finds `check` at this level with these words, applies the fix as SQL, and sees that it is fine then.
#[track_caller]
fn fixed_by_sql(lane: &Lane, more: &[&str], name: &str, level: &str, words: &[&str]) {
    let fix = check(lane, more).level(name, level, words);
    for statement in fix.split("; ").map(|part| part.split(" -- ").next().unwrap()) {
        lane.connect().batch_execute(statement).unwrap_or_else(|error| panic!("{statement}: {error}"));
    }
    let after = check(lane, more);
    assert!(after.of(name).iter().all(|finding| finding["level"] == "ok"), "{fix}: {:#}", after.report);
}

/// Runs a command of ours that a fix names.
#[track_caller]
fn run_ours(command: &str) {
    let script = command.replacen("walrelay", &binary().display().to_string(), 1);
    let output = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
}

fn good() -> Lane {
    Lane::with(GOOD, "outbox")
}

/// Debezium's outbox table by days. Its last partition ends two hours into tomorrow.
fn by_days() -> Lane {
    let lane = Lane::empty();
    lane.sql(&format!("{} PARTITION BY RANGE (created_at)", GOOD.replace("PRIMARY KEY ", "")));
    lane.sql(
        "DO $$ BEGIN EXECUTE format('CREATE TABLE outbox_now PARTITION OF outbox FOR VALUES FROM (%L) TO (%L)',
                                    current_date, current_date + 1 + interval '2 hours'); END $$",
    );
    lane.publish("outbox");
    lane.make_slot();
    lane
}

#[test]
fn a_tomorrow_that_no_partition_takes_is_warned_of_and_the_fix_creates_its_partition() {
    for via_root in ["true", "false"] {
        let lane = by_days();
        lane.sql(&format!("ALTER PUBLICATION {} SET (publish_via_partition_root = {via_root})", lane.name));
        let found = check(&lane, &[]);
        assert_eq!((found.code, found.of("next_partition").len()), (0, 1), "{:#}", found.report);
        fixed_by_sql(&lane, &[], "next_partition", "warn", &["tomorrow", "public.outbox", "fails"]);
        assert!(check(&lane, &[]).of("next_partition").is_empty());
        lane.sql(
            "INSERT INTO outbox (aggregatetype, aggregateid, type, created_at)
             SELECT 'order', 'k', 't', current_date + n * interval '1 hour' FROM generate_series(0, 47) AS n",
        );
    }
}

#[test]
fn a_default_partition_or_one_without_an_end_takes_tomorrows_rows() {
    for partition in
        ["DEFAULT", "FOR VALUES FROM (date_trunc('day', now() + interval '1 day') + interval '2 hours') TO (MAXVALUE)"]
    {
        let lane = by_days();
        assert_eq!(check(&lane, &[]).of("next_partition").len(), 1);
        lane.sql(&format!("CREATE TABLE outbox_rest PARTITION OF outbox {partition}"));
        let found = check(&lane, &[]);
        assert!(found.of("next_partition").is_empty(), "{partition}: {:#}", found.report);
    }
}

#[test]
fn a_good_set_up_passes_and_shows_roles_and_a_sample_topic() {
    let lane = good();
    lane.sql(ROW);
    let found = check(&lane, &["--header", "at=created_at"]);
    assert_eq!(found.code, 0, "{:#} {}", found.report, found.stderr);
    let table = &found.report["tables"][0];
    assert_eq!(table["table"], "public.outbox");
    assert_eq!(table["sample_topic"], lane.topic("order"));
    for role in [["id", "id"], ["key", "aggregateid"], ["topic", "aggregatetype"], ["header at", "created_at"]] {
        let has = table["roles"].as_array().unwrap().iter().any(|found| found[0] == role[0] && found[1] == role[1]);
        assert!(has, "{role:?} is not in {table:#}");
    }
    // It changes nothing: the topic that the row goes to is still not there.
    assert!(!shared_kafka().unwrap().topics().unwrap().contains(&lane.topic("order")));
    let text = std::process::Command::new(binary()).args(check_arguments(&lane)).output().unwrap();
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("\nTable public.outbox\n") && text.ends_with(" ok\n"), "{text}");
}

fn check_arguments(lane: &Lane) -> Vec<String> {
    let mut arguments = lane.arguments(&[]);
    "check".clone_into(&mut arguments[0]);
    arguments
}

#[test]
fn no_publication_and_no_slot_are_made_by_the_setup_that_it_names() {
    let lane = Lane::empty();
    lane.sql(GOOD);
    let found = check(&lane, &[]);
    assert_eq!(found.code, 2);
    let fix = found.level("publication", "fail", &["does not exist", &lane.name]);
    let command = fix.split(", or:").next().unwrap().replace("SCHEMA.TABLE", "outbox");
    assert!(command.contains(&format!("--source {}", lane.source)), "{command}");
    run_ours(&command);
    let after = check(&lane, &[]);
    after.level("publication", "ok", &["public.outbox"]);
    after.level("slot", "ok", &[&lane.name]);
    assert_eq!(after.code, 0, "{:#}", after.report);
}

#[test]
fn a_missing_slot_and_a_lost_one_are_distinguished_by_the_mark() {
    let lane = Lane::empty();
    lane.sql(GOOD);
    lane.publish("outbox");
    let fix = check(&lane, &[]).level("slot", "fail", &["does not exist", "never created"]);
    assert!(fix.contains("walrelay setup --apply"), "{fix}");
    lane.make_slot();
    check(&lane, &[]).level("slot", "ok", &[]);
}

#[test]
#[ignore = "slow"]
fn a_publication_without_inserts_or_tables_or_that_table_is_fixed_by_its_sql() {
    let lane = Lane::empty();
    lane.sql(GOOD);
    lane.sql(&format!("CREATE PUBLICATION {} FOR TABLE outbox WITH (publish = 'delete')", lane.name));
    lane.make_slot();
    fixed_by_sql(&lane, &[], "publication", "fail", &["does not publish inserts"]);
    lane.sql(&format!("ALTER PUBLICATION {} DROP TABLE outbox", lane.name));
    fixed_by_sql(&lane, &[], "publication", "fail", &["has no table"]);
    lane.sql("CREATE TABLE \"Out Box\" (LIKE outbox)");
    fixed_by_sql(&lane, &["--table", "\"Out Box\""], "publication", "fail", &["Out Box", "is not in publication"]);
}

#[test]
fn a_row_filter_is_taken_off_and_a_column_list_that_hides_the_payload_is_widened() {
    if default_major() < 15 {
        // It knows neither.
        return;
    }
    let lane = Lane::empty();
    lane.sql(GOOD);
    lane.sql(&format!(
        "CREATE PUBLICATION {} FOR TABLE outbox (id, aggregatetype, aggregateid, type) WHERE (type <> 'x') WITH (publish = 'insert')",
        lane.name
    ));
    lane.make_slot();
    fixed_by_sql(&lane, &[], "columns", "fail", &["column list hides", "payload"]);
    fixed_by_sql(&lane, &[], "row_filter", "warn", &["type <> 'x'"]);
}

#[test]
fn a_table_without_replica_identity_that_publishes_updates_is_reported() {
    let lane = Lane::empty();
    lane.sql("CREATE TABLE outbox (id text NOT NULL, aggregatetype text NOT NULL, aggregateid text, payload json)");
    lane.sql(&format!("CREATE PUBLICATION {} FOR TABLE outbox", lane.name));
    lane.make_slot();
    fixed_by_sql(&lane, &[], "identity", "warn", &["no replica identity", "prune"]);
    fixed_by_sql(&lane, &["--on-update", "stop"], "updates", "warn", &["carries no updates"]);
}

#[test]
fn a_column_list_that_hides_the_key_is_widened() {
    if default_major() < 15 {
        return assert!(check(&good(), &[]).of("key").is_empty());
    }
    let lane = good();
    let table = "ALTER PUBLICATION NAME SET TABLE outbox (id, aggregatetype, type, payload)";
    lane.sql(&table.replace("NAME", &lane.name));
    fixed_by_sql(&lane, &[], "key", "warn", &["column list hides aggregateid"]);
}

#[test]
#[ignore = "slow"]
fn rows_from_before_any_slot_are_reported_with_what_creates_it_and_then_with_what_publishes_them() {
    let lane = good();
    lane.sql(ROW);
    lane.drop_slot(&lane.name);
    let fix = check(&lane, &[]).level("before_slot", "warn", &["1 row is there already"]);
    run_ours(&format!("{fix} --source '{}'", lane.source));
    let fix = check(&lane, &[]).level("before_slot", "warn", &["1 row is older than the slot"]);
    lane.sql(&fix);
    check(&lane, &[]).level("before_slot", "ok", &[]);
}

#[test]
fn a_column_that_is_missing_is_named_with_the_flag() {
    let lane = Lane::with(&GOOD.replace("payload", "body"), "outbox");
    let fix = check(&lane, &[]).level("columns", "fail", &["no column for the payload", "body"]);
    assert!(fix.contains("--payload-column"), "{fix}");
    check(&lane, &["--payload-column", "body"]).level("columns", "ok", &[]);
}

#[test]
#[ignore = "slow"]
fn columns_without_a_key_that_may_be_null_or_put_rows_off_are_warned_of() {
    let lane = Lane::with(
        "CREATE TABLE outbox (id text PRIMARY KEY, type text, payload jsonb, entity text, execute_at timestamptz)",
        "outbox",
    );
    // Nothing looks like a key here.
    fixed_by_sql(&lane, &[], "key", "warn", &["no column for the key"]);
    lane.sql("ALTER TABLE outbox DROP COLUMN aggregateid; ALTER TABLE outbox ADD COLUMN customer_id text");
    let fix = check(&lane, &[]).level("key", "warn", &["no column for the key"]);
    let command = first_commands(&fix).remove(0);
    let flags: Vec<&str> = command[1..].iter().map(String::as_str).collect();
    check(&lane, &flags).level("columns", "ok", &[]);
    assert!(check(&lane, &flags).of("key").is_empty(), "{fix}");
    let found = check(&lane, &[]);
    for (name, level, words, fix) in [
        ("nulls", "warn", "may be null: type", "have the application always write a value"),
        ("payload_type", "ok", "1.5 times", "nothing has to be done"),
        ("schedule", "warn", "published at once", "insert such rows when they are due"),
    ] {
        let said = found.level(name, level, &[words]);
        assert!(said.starts_with(fix) && !said.contains("ALTER") && !said.contains(lane.name.as_str()), "{said}");
    }
    lane.sql("ALTER TABLE outbox ALTER type SET NOT NULL, ALTER payload TYPE json");
    let found = check(&lane, &[]);
    assert!(found.of("nulls").is_empty() && found.of("payload_type").is_empty(), "{:#}", found.report);
}

#[test]
fn rows_whose_topic_is_none_are_found_before_they_stop_the_relay() {
    let lane = good();
    lane.sql("INSERT INTO outbox (aggregatetype, aggregateid, type, payload) VALUES ('Big Order', 'k', 't', '{}')");
    let fix = check(&lane, &[]).level("rows", "fail", &["Big Order", "is not a topic name"]);
    check(&lane, &["--on-bad-row", "skip"]).level("rows", "warn", &["published nowhere"]);
    let topic = fix.split_once("--topic ").unwrap().1.split(" --").next().unwrap().trim_matches('\'').to_owned();
    let after = check(&lane, &["--topic", &topic]);
    assert!(after.of("rows").is_empty(), "{:#}", after.report);
    assert_eq!(after.report["tables"][0]["sample_topic"], lane.topic("big-order"));
}

#[test]
fn rows_from_before_the_slot_are_counted_with_the_line_that_publishes_them() {
    let lane = Lane::empty();
    lane.sql(&format!("{GOOD}; {ROW}; {ROW}"));
    let place = format!("--source {} --publication {1} --slot {1}", lane.source, lane.name);
    run_ours(&format!("walrelay setup --apply --table outbox {place}"));
    lane.sql(ROW);
    let fix = check(&lane, &[]).level("before_slot", "warn", &["2 rows are older than the slot"]);
    // Nothing says that they are published, and what changes the publication would take that record away.
    lane.sql(&format!("ALTER PUBLICATION {} SET (publish = 'insert, update')", lane.name));
    let change = format!("ALTER PUBLICATION \"{}\" SET (publish = 'insert');", lane.name);
    let later = check(&lane, &[]).level("updates", "ok", &[]);
    assert_eq!(first_commands(&later)[0][0], "backfill", "{later}");
    assert!(later.starts_with("after ") && later.ends_with(&format!(": {change}")), "{later}");
    assert!(fix.starts_with("WITH r AS (DELETE FROM ONLY \"public\".\"outbox\" WHERE (age(xmin) > "), "{fix}");
    lane.sql(&fix);
    check(&lane, &[]).level("before_slot", "ok", &["no row is older"]);
    assert_eq!(check(&lane, &[]).level("updates", "ok", &[]), change);
}

#[test]
fn the_rows_that_came_last_are_looked_at_and_not_those_that_stand_last() {
    let lane = good();
    // As a table that is pruned all the time: what comes now stands where room became free.
    lane.sql("INSERT INTO outbox (aggregatetype, aggregateid, type, payload) SELECT 'old', 'k', 't', to_json(repeat('x', 700)) FROM generate_series(1, 3000)");
    lane.sql("DELETE FROM outbox WHERE ctid < '(200,0)'");
    lane.sql("VACUUM outbox");
    lane.sql(&ROW.replace("'order'", "'new'"));
    let sample = || check(&lane, &[]).report["tables"][0]["sample_topic"].clone();
    assert_eq!(sample(), lane.topic("new"), "by their transactions");
    lane.sql("CREATE INDEX ON outbox (created_at)");
    assert_eq!(sample(), lane.topic("new"), "by the index");
}

#[test]
#[ignore = "slow"]
fn a_relay_that_is_held_at_a_bad_row_fails_the_check_with_its_own_hint() {
    let lane = good();
    lane.sql("INSERT INTO outbox (aggregatetype, aggregateid, type, payload) VALUES ('Big Order', 'k', 't', '{}')");
    let relay = lane.relay(&["--on-stop", "hold"]);
    wait_log(&relay, "stopped: operator action required");
    // Whatever the table has in it now.
    lane.sql("DELETE FROM outbox");
    let http = format!("127.0.0.1:{}", relay.http_port());
    let found = check(&lane, &["--http", &http]);
    assert_eq!(found.code, 2);
    let fix = found.level("relay", "fail", &["is stopped", "Big Order"]);
    let commands = first_commands(&fix);
    assert!(commands[0].iter().any(|word| word.ends_with("=dead-letter")), "{fix}");
    assert!(commands[0].contains(&lane.topic("{route}")), "the flags that it was started with: {fix}");
    // The address may stand wherever a setting may.
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), format!("http = \"{http}\"\n")).unwrap();
    check(&lane, &["--config", file.path().to_str().unwrap()]).level("relay", "fail", &["is stopped"]);
    let mut arguments = check_arguments(&lane);
    arguments.push("--json".to_owned());
    checked_as(&arguments, &[("WALRELAY_HTTP", &http)]).level("relay", "fail", &["is stopped"]);
    drop(relay);
    assert!(check(&lane, &["--http", &http]).of("relay").is_empty());
    let flags: Vec<&str> = commands[0][1..].iter().map(String::as_str).collect();
    let relay = lane.streaming(&flags);
    let http = format!("127.0.0.1:{}", relay.http_port());
    check(&lane, &["--http", &http]).level("relay", "ok", &["streaming"]);
    check(&lane, &["--http", "127.0.0.1:1"]).level("relay", "ok", &["no relay of slot", "127.0.0.1:1", "--http"]);
}

#[test]
fn a_slot_of_another_kind_or_database_is_refused_with_the_words_of_run() {
    let (lane, other) = (good(), good());
    let slot = ["--slot", other.name.as_str()];
    check(&lane, &slot).level("slot", "fail", &["belongs to database", &other.name]);
    let physical = fresh("physical");
    lane.sql(&format!("SELECT pg_create_physical_replication_slot('{physical}')"));
    check(&lane, &["--slot", &physical]).level("slot", "fail", &["a physical slot", "setup --apply --slot"]);
    lane.sql(&format!("SELECT pg_drop_replication_slot('{physical}')"));
    check(&lane, &[]).level("slot", "ok", &[]);
}

#[test]
#[ignore = "slow"]
fn a_role_without_rights_gets_the_one_it_needs_and_the_rest_is_still_looked_at() {
    let lane = good();
    let role = fresh("weak");
    lane.sql(&format!("CREATE ROLE {role} LOGIN; {ROW}"));
    let source = lane.source.replace("postgres@", &format!("{role}@"));
    let more = ["--source", source.as_str()];
    let found = check(&lane, &more);
    assert_eq!(found.code, 2);
    assert_eq!(found.level("replication", "fail", &["42501"]), format!("ALTER ROLE \"{role}\" REPLICATION;"));
    fixed_by_superuser(&lane, &more, "replication");
    let grant = check(&lane, &more).level("rows_seen", "ok", &["permission denied", "not checked"]);
    lane.sql(&grant);
    assert!(check(&lane, &more).of("rows_seen").is_empty());
    lane.sql(&format!("DROP OWNED BY {role}; DROP ROLE {role}"));
}

#[track_caller]
fn fixed_by_superuser(lane: &Lane, more: &[&str], name: &str) {
    let fix = check(lane, more).finding(name)["fix"].as_str().unwrap().to_owned();
    lane.sql(&fix);
    check(lane, more).level(name, "ok", &[]);
}

#[test]
fn asynchronous_commits_are_found_wherever_they_are_turned_on() {
    let lane = good();
    lane.sql(&format!("ALTER DATABASE {} SET synchronous_commit = off", lane.name));
    fixed_by_sql(&lane, &[], "sync_commit", "warn", &["off for database", "wal_writer_delay"]);
    let role = fresh("writer");
    lane.sql(&format!("CREATE ROLE {role}; ALTER ROLE {role} IN DATABASE {} SET synchronous_commit = off", lane.name));
    fixed_by_sql(&lane, &[], "sync_commit", "warn", &["off for role", &role]);
    lane.sql(&format!("DROP ROLE {role}"));
}

#[test]
fn a_table_that_is_pruned_without_an_index_gets_one() {
    let lane = good();
    lane.sql(
        "INSERT INTO outbox (aggregatetype, aggregateid, type) SELECT 'a', 'k', 't' FROM generate_series(1, 12000)",
    );
    lane.sql("DELETE FROM outbox WHERE ctid = '(0,1)'; ANALYZE outbox");
    let seen = || Ok(!check(&lane, &[]).of("age_index").is_empty());
    wait_until(LONG, "the statistics of the delete", seen).unwrap();
    fixed_by_sql(&lane, &[], "age_index", "warn", &["created_at has no index"]);
}

#[test]
fn partitions_pass_in_both_ways_of_publishing() {
    let lane = Lane::empty();
    lane.sql(&format!(
        "{} PARTITION BY RANGE (created_at); CREATE TABLE outbox_all PARTITION OF outbox DEFAULT",
        GOOD.replace("uuid PRIMARY KEY", "uuid")
    ));
    lane.publish("outbox");
    lane.make_slot();
    check(&lane, &[]).level("partitions", "ok", &["a partition of public.outbox"]);
    fixed_by_sql(&lane, &[], "partitions", "ok", &["publish_via_partition_root"]);
    check(&lane, &["--table", "outbox"]).level("partitions", "ok", &["come as its own"]);
}

#[test]
#[ignore = "slow"]
fn one_side_away_leaves_the_other() {
    let mut lane = good();
    let found = check(&lane, &["--source", "postgres://postgres@127.0.0.1:1/shop"]);
    found.level("connection", "fail", &["postgres", "127.0.0.1:1"]);
    assert!(found.report["findings"].as_array().unwrap().iter().any(|f| f["side"] == "kafka" && f["level"] == "ok"));
    let there = std::mem::replace(&mut lane.brokers, "127.0.0.1:1".to_owned());
    let found = check(&lane, &[]);
    assert_eq!(found.code, 2);
    found.level("connection", "fail", &["127.0.0.1:1", "kafka", "security.protocol"]);
    found.level("slot", "ok", &[]);
    lane.brokers = there;
    check(&lane, &[]).level("connection", "ok", &[]);
}

#[test]
fn names_that_need_quotes_are_quoted_in_every_fix() {
    let lane = Lane::empty();
    let publication = fresh("My \"Pub\"");
    lane.sql("CREATE TABLE \"Out Box\" (\"Id\" text, aggregatetype text NOT NULL, payload json)");
    lane.sql(&format!("CREATE PUBLICATION {} FOR TABLE \"Out Box\"", quoted(&publication)));
    lane.make_slot();
    let more = ["--publication", publication.as_str(), "--id-column", "Id"];
    fixed_by_sql(&lane, &more, "identity", "warn", &[]);
    check(&lane, &more).level("nulls", "warn", &["Id"]);
    fixed_by_sql(&lane, &more, "key", "warn", &["no column for the key"]);
}
