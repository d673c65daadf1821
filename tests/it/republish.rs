//! The statement that publishes rows again, as `check` prints it: the same ids, the same values, in order, and all of them or none.

use crate::check::{Checked, checked};
use crate::lane::Lane;

/// Its numbers are in another order as text, and one column is computed.
const TABLE: &str = "CREATE TABLE outbox (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, aggregatetype text, aggregateid text, \
                     type text, payload text, \"At\" int, shown text GENERATED ALWAYS AS (upper(type)) STORED)";

const ROWS: &str = "INSERT INTO outbox (aggregatetype, aggregateid, type, payload, \"At\")
                    SELECT 'order', 'k', 't', 'p' || n, n FROM generate_series(1, 30) AS n";

/// Rows that are older than the slot, and known to be.
fn with_old_rows() -> Lane {
    let lane = Lane::empty();
    lane.sql(&format!("{TABLE}; {ROWS}"));
    let arguments = ["setup", "--apply", "--table", "outbox", "--source", &lane.source];
    let place = ["--publication", &lane.name, "--slot", &lane.name];
    let output = std::process::Command::new(crate::lane::binary()).args(arguments).args(place).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    lane
}

fn check(lane: &Lane) -> Checked {
    let mut arguments = lane.arguments(&[]);
    "check".clone_into(&mut arguments[0]);
    arguments.push("--json".to_owned());
    checked(&arguments)
}

/// What publishes the rows from before the slot.
#[track_caller]
fn statement(lane: &Lane) -> String {
    check(lane).level("before_slot", "warn", &["30 rows are older than the slot"])
}

fn rows(lane: &Lane) -> Vec<(i64, String, i32, String)> {
    let rows = lane.connect().query("SELECT id, payload, \"At\", shown FROM outbox ORDER BY id", &[]).unwrap();
    rows.iter().map(|row| (row.get(0), row.get(1), row.get(2), row.get(3))).collect()
}

#[test]
fn rows_from_before_the_slot_arrive_with_their_ids_and_values_in_order() {
    let lane = with_old_rows();
    let before = rows(&lane);
    lane.sql(&statement(&lane));
    let _relay = lane.streaming(&[]);
    assert_eq!(lane.ids("order"), (1..=30).map(|n| n.to_string()).collect::<Vec<_>>());
    assert_eq!(rows(&lane), before);
    check(&lane).level("before_slot", "ok", &["no row is older"]);
    lane.sql(ROWS);
    assert_eq!(lane.ids("order").len(), 60, "the sequence goes on");
}

#[test]
fn if_a_row_does_not_come_back_none_is_moved() {
    let lane = with_old_rows();
    let (statement, before) = (statement(&lane), rows(&lane));
    lane.sql(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
           $$ BEGIN IF NEW.id = 4 THEN RETURN NULL; END IF; RETURN NEW; END $$;
         CREATE TRIGGER guard BEFORE INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION refuse()",
    );
    let error = lane.connect().batch_execute(&statement).unwrap_err();
    assert_eq!(error.code(), Some(&postgres::error::SqlState::DIVISION_BY_ZERO), "{error}");
    assert_eq!(rows(&lane), before);
}

#[test]
fn where_more_would_happen_the_page_is_named_and_no_statement() {
    for more in [
        "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$;
         CREATE TRIGGER audit AFTER DELETE ON outbox FOR EACH ROW EXECUTE FUNCTION f()",
        "CREATE TABLE deliveries (id bigint REFERENCES outbox ON DELETE CASCADE)",
        "CREATE RULE kept AS ON DELETE TO outbox WHERE OLD.id = 4 DO INSTEAD NOTHING",
    ] {
        let lane = with_old_rows();
        lane.sql(more);
        let fix = statement(&lane);
        assert!(fix.contains("docs/operations/republish.md") && !fix.contains("DELETE FROM"), "{more}: {fix}");
    }
}
