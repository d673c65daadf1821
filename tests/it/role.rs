//! The role of `sql/role.sql` is enough, and may do nothing else.

use std::fs;

use walrelay_dev::relay::run;

use crate::lane::{LONG, Lane, binary};

/// A lane, and the source of a role of its own with the rights of `sql/role.sql`.
fn lane_and_role() -> (Lane, String, String) {
    let lane = Lane::debezium();
    let role = format!("{}_reader", lane.name);
    let path = walrelay_dev::repository().join("sql/role.sql");
    // The name to change stands where a name can stand, also behind a keyword in a literal.
    let script = fs::read_to_string(path).unwrap();
    let script: Vec<String> = script
        .lines()
        .filter(|line| !line.starts_with("--"))
        .map(|line| {
            line.replace("TO walrelay", &format!("TO {role}"))
                .replace("ROLE walrelay", &format!("ROLE {role}"))
                .replace("'walrelay'", &format!("'{role}'"))
        })
        .collect();
    lane.sql(&script.join("\n"));
    // Nobody has more than that from being everybody.
    lane.sql(&format!("REVOKE ALL ON DATABASE {0} FROM PUBLIC; GRANT CONNECT ON DATABASE {0} TO {role}", lane.name));
    lane.sql("REVOKE ALL ON SCHEMA public FROM PUBLIC; REVOKE ALL ON outbox FROM PUBLIC");
    let source = lane.source.replace("postgres@", &format!("{role}@"));
    (lane, role, source)
}

#[test]
fn the_least_privileged_role_runs_and_shows_the_status() {
    let (lane, role, source) = lane_and_role();
    let mut relay = lane.streaming(&["--source", &source]);
    lane.sql("INSERT INTO outbox VALUES ('1', 'order', 'k', 't', '1')");
    assert_eq!(lane.ids("order"), ["1"]);
    let place = ["--source", &source, "--publication", &lane.name, "--slot", &lane.name];
    let output = run(&binary(), &[&["status"], &place[..]].concat()).unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "{said} {}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains(&format!("user {role}")) && said.contains("public.outbox"), "{said}");
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
}

#[test]
fn the_least_privileged_role_reads_and_writes_no_table() {
    let (_lane, _role, source) = lane_and_role();
    let mut client = postgres::Client::connect(&source, postgres::NoTls).unwrap();
    for sql in [
        "SELECT FROM public.outbox",
        "INSERT INTO public.outbox VALUES ('1', 'o', 'k', 't', '1')",
        "CREATE TABLE public.mine ()",
    ] {
        let code = client.batch_execute(sql).unwrap_err().code().map(|code| code.code().to_owned());
        assert_eq!(code.as_deref(), Some("42501"), "{sql}");
    }
}
