//! A server that is up, and refuses the log-in of a relay that it let in before: for five minutes that is an outage, since somebody
//! may be about to change it back. At the first start it ends the relay, with what lets it in.

use walrelay_dev::postgres::{default_major, shared_postgres};
use walrelay_dev::process::wait_until;
use walrelay_dev::relay::Relay;

use crate::lane::{LONG, Lane, ended, hint, quoted};

/// Login triggers came with this version.
const LOGIN_TRIGGERS: u32 = 17;

/// A lane with a role of its own that may replicate, and its connection string.
fn lane_with_role() -> (Lane, String, String) {
    let lane = Lane::debezium();
    let role = format!("{}_role", lane.name);
    lane.sql(&format!("CREATE ROLE {role} LOGIN REPLICATION"));
    let source = lane.source.replace("postgres@", &format!("{role}@"));
    (lane, role, source)
}

fn server(sql: &str) {
    shared_postgres().unwrap().connect(None).unwrap().batch_execute(sql).unwrap();
}

/// Ends the sessions of the lane's database, so that the relay has to log in again.
fn disconnect(lane: &Lane) {
    server(&format!(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{}' AND pid <> pg_backend_pid()",
        lane.name
    ));
}

#[track_caller]
fn wait_refused(relay: &mut Relay, words: &str) {
    let named = || Ok(relay.get("/readyz").is_ok_and(|answer| answer.status == 503 && answer.body.contains(words)));
    wait_until(LONG, "/readyz to have the server's words", named).unwrap_or_else(|e| panic!("{e}: {}", relay.log()));
    assert_eq!(relay.exited().unwrap(), None, "{}", relay.log());
}

#[track_caller]
fn assert_flows(lane: &Lane, relay: &mut Relay, id: &str) {
    relay.wait_streaming(LONG).unwrap();
    lane.sql(&format!("INSERT INTO outbox VALUES ('{id}', 'order', 'k', 't', '1')"));
    assert_eq!(lane.ids("order").last().map(String::as_str), Some(id), "{}", relay.log());
}

/// A first start is refused; its hint.
#[track_caller]
fn first_start(lane: &Lane, more: &[&str], words: &str) -> String {
    let mut relay = lane.relay(more);
    let (code, log) = ended(&mut relay);
    assert!(code == 2 && log.contains(words), "{code} {log}");
    hint(&log)
}

#[test]
fn a_database_that_is_closed_for_a_while_is_waited_for() {
    let lane = Lane::debezium();
    let mut relay = lane.streaming(&[]);
    server(&format!("ALTER DATABASE {} ALLOW_CONNECTIONS false", lane.name));
    disconnect(&lane);
    wait_refused(&mut relay, "SQLSTATE 55000");
    let fix = first_start(&lane, &[], "SQLSTATE 55000");
    server(&fix);
    assert_flows(&lane, &mut relay, "1");
}

#[test]
#[ignore = "slow"]
fn a_right_to_connect_that_is_revoked_for_a_while_is_waited_for() {
    let (lane, role, source) = lane_with_role();
    let more = ["--source", source.as_str()];
    let mut relay = lane.streaming(&more);
    lane.sql(&format!("REVOKE CONNECT ON DATABASE {} FROM PUBLIC", lane.name));
    disconnect(&lane);
    wait_refused(&mut relay, "SQLSTATE 42501");
    let fix = first_start(&lane, &more, "SQLSTATE 42501");
    assert!(fix.contains(&quoted(&role)), "{fix}");
    lane.sql(fix.split_inclusive(';').next().unwrap());
    assert_flows(&lane, &mut relay, "1");
    // The other right of a log-in with the same SQLSTATE.
    lane.sql(&format!("ALTER ROLE {role} NOREPLICATION"));
    disconnect(&lane);
    wait_refused(&mut relay, "SQLSTATE 42501");
    let fix = first_start(&lane, &more, "SQLSTATE 42501");
    lane.sql(fix.split_inclusive(';').next().unwrap());
    assert_flows(&lane, &mut relay, "2");
}

#[test]
#[ignore = "slow"]
fn a_database_that_is_renamed_for_a_while_is_waited_for() {
    let lane = Lane::debezium();
    let mut relay = lane.streaming(&[]);
    let rename = |from: &str, to: &str| {
        let renamed = || {
            disconnect(&lane);
            Ok(shared_postgres()?
                .connect(None)?
                .batch_execute(&format!("ALTER DATABASE {from} RENAME TO {to}"))
                .is_ok())
        };
        wait_until(LONG, "the database to be renamed", renamed).unwrap();
    };
    let other = format!("{}_other", lane.name);
    rename(&lane.name, &other);
    disconnect(&lane);
    wait_refused(&mut relay, "SQLSTATE 3D000");
    rename(&other, &lane.name);
    assert_flows(&lane, &mut relay, "1");
}

#[test]
#[ignore = "slow"]
fn a_login_trigger_that_raises_for_a_while_is_waited_for() {
    if default_major() < LOGIN_TRIGGERS {
        return;
    }
    let (lane, role, source) = lane_with_role();
    let more = ["--source", source.as_str()];
    lane.sql(&format!(
        "CREATE TABLE refusal (code text); GRANT SELECT ON refusal TO PUBLIC;
         CREATE FUNCTION refuse() RETURNS event_trigger LANGUAGE plpgsql AS $$
         DECLARE found text := (SELECT code FROM public.refusal);
         BEGIN IF session_user = '{role}' AND found IS NOT NULL THEN RAISE 'not now' USING ERRCODE = found; END IF; END $$;
         CREATE EVENT TRIGGER refuse ON login EXECUTE FUNCTION refuse()"
    ));
    let mut relay = lane.streaming(&more);
    for (id, code) in ["P0001", "22023", "23505", "42501", "54000", "55P03", "0A000", "55000"].iter().enumerate() {
        lane.sql(&format!("TRUNCATE refusal; INSERT INTO refusal VALUES ('{code}')"));
        disconnect(&lane);
        wait_refused(&mut relay, &format!("not now [SQLSTATE {code}]"));
        if *code == "P0001" {
            let fix = first_start(&lane, &more, "not now");
            assert!(fix.contains("login trigger"), "{fix}");
        }
        lane.sql("TRUNCATE refusal");
        assert_flows(&lane, &mut relay, &id.to_string());
    }
}
