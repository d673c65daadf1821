//! `republish` sends rows through the slot again: the same ids, the same values, in order.

use std::process::Command;

use crate::lane::{Lane, OUTBOX, binary, values};

#[track_caller]
fn republished(lane: &Lane, more: &[&str]) -> (i32, String) {
    let place = ["--source", &lane.source, "--publication", &lane.name, "--slot", &lane.name];
    let output = Command::new(binary()).arg("republish").args(place).args(more).output().unwrap();
    let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    (output.status.code().unwrap(), text)
}

/// Rows that are older than the slot.
fn with_old_rows(table: &str, rows: &str) -> Lane {
    let lane = Lane::empty();
    lane.sql(&format!("{table}; {rows}"));
    lane.publish("outbox");
    lane.make_slot();
    lane
}

#[test]
fn rows_older_than_the_slot_arrive_with_their_ids_in_the_order_asked_for() {
    let lane = with_old_rows(
        &OUTBOX.replace("payload jsonb", "payload jsonb, at int, shown text GENERATED ALWAYS AS (upper(id)) STORED"),
        "INSERT INTO outbox SELECT n::text, 'order', 'k', 't', jsonb_build_object('n', n), 100 - n FROM generate_series(1, 50) AS n",
    );
    let _relay = lane.streaming(&[]);
    let (code, text) = republished(&lane, &["--table", "outbox", "--order-by", "at", "--where", "at >= 55"]);
    assert_eq!(code, 0, "{text}");
    for part in ["45 rows of public.outbox would be", "\"id\":\"45\"", "\"id\":\"1\"", "nothing was changed", "--apply"]
    {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
    assert_eq!(lane.ids("order").len(), 0);
    let more = ["--table", "outbox", "--order-by", "at", "--where", "at >= 55", "--chunk", "7", "--apply"];
    let (code, text) = republished(&lane, &more);
    assert!(code == 0 && text.contains("45 rows moved") && text.contains("next: walrelay status"), "{text}");
    let expected: Vec<String> = (1..=45).rev().map(|n| n.to_string()).collect();
    assert_eq!(lane.ids("order"), expected);
    let rows = lane.connect().query("SELECT id, shown, at FROM outbox", &[]).unwrap();
    assert_eq!(rows.len(), 50);
    assert!(rows.iter().all(|row| row.get::<_, i32>(2) == 100 - row.get::<_, String>(0).parse::<i32>().unwrap()));
}

/// As text, 10 comes before 2.
#[test]
fn numbers_come_in_their_own_order_by_default_and_by_any_order_that_names_the_id() {
    for (order, backwards) in [(None, false), (Some("length(type), id DESC"), true)] {
        let lane = with_old_rows(
            &OUTBOX.replace("(id text", "(id bigint"),
            "INSERT INTO outbox SELECT n, 'order', 'k', 't', '{}' FROM generate_series(1, 30) AS n",
        );
        let _relay = lane.streaming(&[]);
        let order = order.map(|order| ["--order-by", order]).into_iter().flatten();
        let more: Vec<&str> = ["--table", "outbox", "--chunk", "7", "--apply"].into_iter().chain(order).collect();
        let (code, text) = republished(&lane, &more);
        assert_eq!(code, 0, "{text}");
        let mut expected: Vec<String> = (1..=30).map(|n| n.to_string()).collect();
        if backwards {
            expected.reverse();
        }
        assert_eq!(lane.ids("order"), expected, "{more:?}");
    }
}

#[test]
fn identity_columns_keep_their_values_and_a_condition_that_still_holds_ends() {
    let lane = with_old_rows(
        "CREATE TABLE outbox (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, aggregatetype text, payload text, \
         status text)",
        "INSERT INTO outbox (aggregatetype, payload, status) SELECT 'order', n::text, 'PENDING' FROM generate_series(1, 9) n",
    );
    let _relay = lane.streaming(&["--key-column="]);
    let (code, text) =
        republished(&lane, &["--table", "outbox", "--where", "status = 'PENDING'", "--chunk", "2", "--apply"]);
    assert!(code == 0 && text.contains("9 rows moved"), "{text}");
    let mut ids: Vec<u32> = lane.ids("order").iter().map(|id| id.parse().unwrap()).collect();
    ids.sort_unstable();
    assert_eq!(ids, (1..=9).collect::<Vec<_>>());
    assert_eq!(values(&lane.records_now("order")).len(), 9);
}

#[test]
fn triggers_foreign_keys_and_partitions_need_force_and_are_named_before() {
    let lane = with_old_rows(OUTBOX, "INSERT INTO outbox VALUES ('1', 'order', 'k', 't', '{}')");
    lane.sql(
        "CREATE TABLE fired (id text); CREATE FUNCTION fire() RETURNS trigger LANGUAGE plpgsql AS
           $$ BEGIN INSERT INTO fired VALUES (NEW.id); RETURN NEW; END $$;
         CREATE TRIGGER audit BEFORE INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION fire();
         CREATE TABLE deliveries (id text REFERENCES outbox ON DELETE CASCADE)",
    );
    let _relay = lane.streaming(&[]);
    let (code, text) = republished(&lane, &["--table", "outbox"]);
    assert!(code == 0 && text.contains("audit on outbox") && text.contains("ON DELETE CASCADE"), "{text}");
    assert!(text.contains("--apply --force"), "{text}");
    let (code, text) = republished(&lane, &["--table", "outbox", "--apply"]);
    assert!(code == 2 && text.contains("triggers would fire: audit") && text.contains("--force"), "{text}");
    assert_eq!(lane.ids("order").len(), 0);
    let (code, text) = republished(&lane, &["--table", "outbox", "--apply", "--force"]);
    assert!(code == 0 && text.contains("1 row moved"), "{text}");
    assert_eq!(lane.ids("order"), ["1"]);
    assert_eq!(lane.connect().query("SELECT FROM fired", &[]).unwrap().len(), 1);
}

/// Moved, it would be gone.
#[test]
fn a_row_that_a_trigger_does_not_let_in_again_stays_with_its_chunk() {
    let lane = with_old_rows(
        OUTBOX,
        "INSERT INTO outbox SELECT n::text, 'order', 'k', 't', '{}' FROM generate_series(1, 6) AS n",
    );
    lane.sql(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
           $$ BEGIN IF NEW.id = '4' THEN RETURN NULL; END IF; RETURN NEW; END $$;
         CREATE TRIGGER guard BEFORE INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION refuse()",
    );
    let _relay = lane.streaming(&[]);
    let (code, text) = republished(&lane, &["--table", "outbox", "--chunk", "2", "--apply", "--force"]);
    assert_eq!(lane.connect().query("SELECT FROM outbox", &[]).unwrap().len(), 6, "{text}");
    assert!(code == 2 && text.contains("1 of 2 rows") && text.contains("guard on outbox"), "{text}");
    assert_eq!(lane.ids("order"), ["1", "2"]);
}

#[test]
fn without_a_slot_or_a_publication_that_carries_them_no_row_is_touched() {
    let lane = with_old_rows(OUTBOX, "INSERT INTO outbox VALUES ('1', 'order', 'k', 't', '{}')");
    lane.sql("CREATE TABLE other (LIKE outbox)");
    for (more, code, words) in [
        (&["--table", "outbox", "--slot", "nowhere", "--apply"][..], 2, "does not exist"),
        (&["--table", "other", "--apply"], 2, "is not in publication"),
        (&["--apply"], 64, "needs the one table"),
        (&["--table", "outbox", "--where", "nonsense", "--apply"], 2, "nonsense"),
        (&["--table", "outbox", "--id-column", "nonsense", "--apply"], 64, "nonsense"),
    ] {
        let (found, text) = republished(&lane, more);
        assert!(found == code && text.contains(words), "{more:?}: exit {found}, {text}");
    }
}
