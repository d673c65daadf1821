use super::*;
use crate::lsn::Lsn;
use crate::pg::slot_sighting::tests::slot;
use crate::pg::source::{Environment, Source};
use crate::supervise::ExitKind;
use serde_json::{Value, json};

/// The comment where everything was done.
const MARKED: &str = "walrelay slot: walrelay\nwalrelay slot at: walrelay 1 1 0/3E8 1700000000\nwalrelay empty: walrelay t.1.5 0/3E8 16385:a1b2";

const EXISTING: TableRow = TableRow { partitioned: false, member: false };

fn request(tables: &[&str]) -> SetupRequest {
    let source = Source::resolve(Some("postgres://app@localhost/shop"), &Environment::default()).unwrap().source;
    SetupRequest {
        source,
        publication: "walrelay".to_owned(),
        slot: "walrelay".to_owned(),
        tables: tables.iter().map(|table| TableName::parse(table).unwrap()).collect(),
        without_children: Vec::new(),
        apply: false,
        failover: false,
        role: None,
        create_table: false,
        shards: None,
        after_loss: false,
        published: false,
        yes: false,
        json: false,
        also_read_by: Vec::new(),
        typed_source: None,
    }
}

/// A server with the tables of `request`, and nothing else.
fn facts(request: &SetupRequest) -> SetupFacts {
    let table = |filter: &TableName| TableFacts { filter: filter.clone(), row: Some(EXISTING), covered: false };
    SetupFacts {
        server: ServerRow {
            version: 170_011,
            version_text: "17.11".to_owned(),
            wal_level: "logical".to_owned(),
            database: "shop".to_owned(),
            user: "app".to_owned(),
        },
        publication: None,
        tables: request.tables.iter().map(table).collect(),
        slot: None,
        sighting: None,
        role: None,
        grants_by_role: false,
    }
}

fn publication(comment: Option<&str>, owned: bool) -> PublicationFacts {
    let row =
        Publication { puballtables: false, pubinsert: true, pubupdate: false, pubdelete: false, pubviaroot: false };
    let mark = PublicationMark { comment: comment.map(str::to_owned), owned };
    PublicationFacts { row, mark, has_token: true, left_out: Vec::new() }
}

fn slot_of(row: Value) -> Slot {
    Slot {
        row: serde_json::from_value(row).unwrap(),
        confirmed_flush_lsn: Some(Lsn::new(0x20)),
        restart_lsn: None,
        lag_bytes: Some(0),
        retained_wal_bytes: None,
    }
}

fn good_slot() -> Slot {
    slot_of(json!({"plugin": "pgoutput", "database": "shop"}))
}

/// A server on which everything was done for `request`.
fn complete(request: &SetupRequest) -> SetupFacts {
    let mut facts = facts(request);
    facts.publication = Some(publication(Some(MARKED), true));
    facts.slot = Some(good_slot());
    facts.sighting = Some(slot(500, 2000));
    facts.tables.iter_mut().for_each(|table| table.covered = true);
    facts
}

fn statements(request: &SetupRequest, facts: &SetupFacts) -> Vec<String> {
    plan(request, facts).unwrap().steps.into_iter().map(|step| step.sql).collect()
}

#[test]
fn a_bare_database_gets_publication_and_intent_then_slot_then_mark() {
    let request = request(&["outbox", r#""Shop"."Out""box""#]);
    let statements = statements(&request, &facts(&request));
    assert_eq!(
        statements[..3],
        [
            r#"CREATE PUBLICATION "walrelay" FOR TABLE "public"."outbox", "Shop"."Out""box" WITH (publish = 'insert')"#,
            r#"COMMENT ON PUBLICATION "walrelay" IS 'walrelay creating: walrelay'"#,
            "SELECT lsn FROM pg_catalog.pg_create_logical_replication_slot('walrelay', 'pgoutput')",
        ]
    );
    let mark = &statements[3];
    assert!(mark.contains("COMMENT ON PUBLICATION") && mark.contains("walrelay slot: walrelay"), "{mark}");
    assert!(
        mark.contains("walrelay since: walrelay %1$s") && mark.contains("walrelay empty: walrelay %6$s %5$s %7$s"),
        "{mark}"
    );
}

#[track_caller]
fn kinds(request: &SetupRequest, facts: &SetupFacts) -> Vec<StepKind> {
    plan(request, facts).unwrap().steps.iter().map(|step| step.kind).collect()
}

#[test]
fn a_marker_stays_as_it_is_while_its_slot_is_there_and_one_without_a_token_is_written_anew() {
    let request = request(&["outbox", "other"]);
    let mut facts = complete(&request);
    facts.tables[1].covered = false;
    assert_eq!(kinds(&request, &facts), [StepKind::Member], "a table is added");
    let mut facts = complete(&request);
    let old = "walrelay slot: walrelay\nwalrelay since: walrelay 781\nwalrelay slot at: walrelay 1 1 0/3E8 1700000000\nwalrelay whole since: walrelay 790 1700000000 a1b2";
    facts.publication = Some(publication(Some(old), true));
    let mark = plan(&request, &facts).unwrap().steps.remove(0).sql;
    assert!(!mark.contains("781") && !mark.contains("0/3E8") && !mark.contains("whole since"), "{mark}");
    facts.publication = Some(publication(Some(old), false));
    assert_eq!(kinds(&request, &facts), [], "it is another role's");
}

#[test]
fn a_slot_that_is_not_the_marked_one_is_an_error_until_its_loss_is_accepted() {
    let mut request = request(&["outbox"]);
    let mut facts = complete(&request);
    assert_eq!(kinds(&request, &facts), []);
    facts.sighting = Some(Sighting { transactions: Some(0), ..slot(1040, 1080) });
    let error = plan(&request, &facts).unwrap_err();
    assert!(error.to_string().contains("is not the one that"), "{error}");
    assert!(error.remedy.unwrap().to_string().contains("setup --apply --slot walrelay --after-loss"));
    request.after_loss = true;
    let found = plan(&request, &facts).unwrap();
    assert_eq!(found.steps.iter().map(|step| step.kind).collect::<Vec<_>>(), [StepKind::Mark]);
    let sql = &found.steps[0].sql;
    assert!(sql.contains("slot at: walrelay %3$s") && sql.contains("since: walrelay %1$s"), "{sql}");
    assert!(!sql.contains("0/3E8") && !sql.contains("t.1.5"), "{sql}");
    assert!(found.warnings[0].contains("was lost"), "{:?}", found.warnings);
}

#[test]
fn a_marker_of_another_cluster_or_timeline_is_left_as_it_is_and_said() {
    for (has_token, elsewhere) in [
        (false, Sighting { system_identifier: "2".to_owned(), ..slot(500, 2000) }),
        (true, Sighting { timeline: Some(2), ..slot(500, 2000) }),
    ] {
        let mut request = request(&["outbox"]);
        let mut facts = complete(&request);
        facts.publication.as_mut().unwrap().has_token = has_token;
        facts.sighting = Some(elsewhere);
        let found = plan(&request, &facts).unwrap();
        assert!(
            found.steps.is_empty() && found.warnings[0].contains("walrelay setup --apply --after-loss"),
            "{found:?}"
        );
        request.after_loss = true;
        assert_eq!(kinds(&request, &facts), [StepKind::Mark]);
    }
}

#[test]
fn a_setup_that_was_ended_goes_on_where_it_was_and_drops_nothing() {
    let request = request(&["outbox"]);
    let mut facts = complete(&request);
    facts.publication = Some(publication(Some("walrelay creating: walrelay"), true));
    assert_eq!(kinds(&request, &facts), [StepKind::Mark]);
    facts.slot = None;
    assert_eq!(kinds(&request, &facts), [StepKind::Slot, StepKind::Mark]);
}

#[test]
fn a_complete_database_needs_nothing() {
    for tables in [&["outbox"][..], &[]] {
        let request = request(tables);
        let plan = plan(&request, &complete(&request)).unwrap();
        assert_eq!(plan, Plan { steps: Vec::new(), warnings: Vec::new() });
    }
}

#[test]
fn a_publication_cannot_be_made_without_a_table() {
    let request = SetupRequest { slot: "orders".to_owned(), ..request(&[]) };
    let error = plan(&request, &facts(&request)).unwrap_err();
    assert_eq!(error.kind, ExitKind::Settings);
    assert!(error.to_string().starts_with("--table is needed"), "{error}");
    assert_eq!(error.remedy.unwrap().to_string(), "walrelay setup --slot orders --table public.outbox");
}

#[test]
fn a_table_that_the_publication_lacks_is_added() {
    let request = request(&["outbox", "other"]);
    let mut facts = complete(&request);
    facts.tables[1].covered = false;
    assert_eq!(statements(&request, &facts)[0], r#"ALTER PUBLICATION "walrelay" ADD TABLE "public"."other""#);
    facts.publication.as_mut().unwrap().row.puballtables = true;
    assert!(statements(&request, &facts).is_empty());
}

#[test]
fn a_missing_table_is_an_error_unless_it_is_the_first_and_to_be_made() {
    let mut request = request(&["shop.outbox", "other"]);
    let mut facts = facts(&request);
    facts.tables[0].row = None;
    assert!(plan(&request, &facts).unwrap_err().to_string().starts_with("table shop.outbox does not exist"));
    request.create_table = true;
    let statements = statements(&request, &facts);
    assert!(statements[0].starts_with("CREATE TABLE IF NOT EXISTS \"shop\".\"outbox\" (\n"), "{}", statements[0]);
    assert!(statements[0].ends_with(')') && !statements[0].contains("public."));
    facts.tables[1].row = None;
    assert!(plan(&request, &facts).unwrap_err().to_string().starts_with("table public.other does not exist"));
}

#[test]
fn a_partitioned_table_comes_with_advice() {
    let request = request(&["outbox"]);
    let mut facts = facts(&request);
    facts.tables[0].row = Some(TableRow { partitioned: true, member: false });
    let plan = plan(&request, &facts).unwrap();
    assert!(script(&request, &facts, &plan, &[]).contains("SET (publish_via_partition_root = true)"));
}

#[test]
fn a_new_role_gets_what_a_run_needs_and_an_old_one_what_it_lacks() {
    let request = SetupRequest { role: Some("relay".to_owned()), ..request(&["outbox"]) };
    let mut facts = complete(&request);
    assert_eq!(
        statements(&request, &facts),
        [
            "CREATE ROLE \"relay\";\nALTER ROLE \"relay\" LOGIN REPLICATION;\nGRANT CONNECT ON DATABASE \"shop\" TO \"relay\";\nGRANT pg_read_all_stats TO \"relay\""
        ]
    );
    facts.role = Some(RoleRow { login: true, replicates: false, connects: true, reads_stats: true });
    assert_eq!(statements(&request, &facts), ["ALTER ROLE \"relay\" REPLICATION"]);
    facts.grants_by_role = true;
    assert_eq!(statements(&request, &facts), ["GRANT rds_replication TO \"relay\""]);
    facts.role = Some(RoleRow { login: true, replicates: true, connects: true, reads_stats: true });
    assert!(statements(&request, &facts).is_empty());
}

#[test]
fn failover_is_asked_of_the_slot_from_17_on_and_refused_before() {
    let request = SetupRequest { failover: true, ..request(&["outbox"]) };
    let mut facts = facts(&request);
    assert!(statements(&request, &facts)[2].ends_with("('walrelay', 'pgoutput', failover => true)"));
    (facts.server.version, facts.server.version_text) = (160_004, "16.4".to_owned());
    let error = plan(&request, &facts).unwrap_err();
    assert_eq!((error.kind, error.to_string().contains("this is 16.4")), (ExitKind::Settings, true));
}

#[test]
fn a_slot_without_failover_is_left_and_the_way_to_change_it_said() {
    let request = SetupRequest { failover: true, ..request(&["outbox"]) };
    let plan = plan(&request, &complete(&request)).unwrap();
    assert!(plan.steps.is_empty() && plan.warnings[0].contains("ALTER_REPLICATION_SLOT"));
}

#[test]
fn a_slot_that_cannot_be_read_is_an_error() {
    let request = request(&["outbox"]);
    let mut facts = complete(&request);
    for row in [
        json!({"plugin": "wal2json", "database": "shop"}),
        json!({"plugin": "pgoutput", "database": "other"}),
        json!({"plugin": null}),
        json!({"plugin": "pgoutput", "database": "shop", "wal_status": "lost"}),
    ] {
        facts.slot = Some(slot_of(row.clone()));
        assert_eq!(plan(&request, &facts).unwrap_err().kind, ExitKind::Operator, "{row}");
    }
}

#[test]
fn a_slot_from_before_the_publication_is_a_warning_with_its_fix() {
    let request = request(&["outbox"]);
    let mut facts = facts(&request);
    facts.slot = Some(good_slot());
    let old = plan(&request, &facts).unwrap();
    assert!(old.step(StepKind::Slot).is_none() && old.step(StepKind::Publication).is_some());
    assert!(
        old.warnings[0].contains("ends the stream")
            && old.warnings[0].contains("run setup once more, with --after-loss;"),
        "{:?}",
        old.warnings
    );
    assert!(!old.warnings[0].contains("SELECT"), "what skips rows is not there to be pasted: {:?}", old.warnings);
    facts.server.version = 180_006;
    assert!(plan(&request, &facts).unwrap().warnings[0].contains("skipped"));
}

#[test]
fn a_slot_that_was_lost_is_created_again_only_where_that_is_accepted() {
    let mut request = request(&["outbox"]);
    let mut facts = complete(&request);
    facts.slot = None;
    let error = plan(&request, &facts).unwrap_err();
    assert!(error.kind == ExitKind::Operator && error.remedy.unwrap().to_string().contains("--after-loss"));
    request.after_loss = true;
    assert_eq!(kinds(&request, &facts), [StepKind::Intent, StepKind::Slot, StepKind::Mark]);
    assert!(plan(&request, &facts).unwrap().warnings[0].contains("was lost"));
}

#[test]
fn no_slot_is_created_that_the_role_could_not_mark() {
    let request = request(&["outbox"]);
    let mut facts = complete(&request);
    facts.slot = None;
    facts.publication = Some(publication(None, false));
    let error = plan(&request, &facts).unwrap_err();
    assert!(error.kind == ExitKind::Operator && error.to_string().contains("nothing was changed"), "{error}");
    assert!(error.remedy.unwrap().to_string().contains("ALTER PUBLICATION \"walrelay\" OWNER TO \"app\";"));
    // What `--after-loss` records, it could not record either.
    let mut request = request;
    facts.slot = complete(&request).slot;
    assert!(plan(&request, &facts).unwrap().steps.is_empty());
    request.after_loss = true;
    assert!(plan(&request, &facts).unwrap_err().to_string().contains("nothing was changed"));
}

#[test]
fn another_roles_publication_is_not_marked_and_the_hint_is_for_its_owner() {
    let request = request(&["outbox"]);
    let mut facts = complete(&request);
    facts.publication = Some(publication(Some("ours"), false));
    let plan = plan(&request, &facts).unwrap();
    assert!(plan.steps.is_empty());
    assert!(
        plan.warnings[0].contains(r#"COMMENT ON PUBLICATION "walrelay" IS E'ours\nwalrelay slot: walrelay'"#)
            || plan.warnings[0].contains("COMMENT ON PUBLICATION \"walrelay\" IS 'ours\nwalrelay slot: walrelay'")
    );
}

#[test]
fn a_publication_without_inserts_is_an_error() {
    let request = request(&["outbox"]);
    let mut facts = complete(&request);
    facts.publication.as_mut().unwrap().row.pubinsert = false;
    let error = plan(&request, &facts).unwrap_err();
    assert!(error.to_string().ends_with("does not publish inserts"), "{error}");
}

#[test]
fn a_script_is_sql_and_comments_and_says_what_comes_next() {
    let mut request = SetupRequest { role: Some("relay".to_owned()), ..request(&["outbox"]) };
    request.slot = "orders".to_owned();
    let mut facts = facts(&request);
    facts.server.wal_level = "replica".to_owned();
    let plan = plan(&request, &facts).unwrap();
    let text = script(&request, &facts, &plan, &["public.outbox holds\n2 rows".to_owned()]);
    assert!(text.starts_with(
        "\\set ON_ERROR_STOP on\n-- What database \"shop\" still needs. walrelay setup --apply --slot orders --table public.outbox --role relay does it.\n"
    ));
    assert!(text.contains("\nALTER SYSTEM SET wal_level = logical;\n"));
    assert!(
        text.ends_with(
            "-- public.outbox holds\n-- 2 rows\n-- role \"relay\" has no password yet: in psql, \\password \"relay\"\n-- next: walrelay run \
             --slot orders --table public.outbox, where the connection string, or PGUSER, names the role relay\n"
        ),
        "{text}"
    );
    request.typed_source = Some("postgres://admin@db/shop".to_owned());
    let text = script(&request, &facts, &plan, &[]);
    assert!(
        text.ends_with("-- next: walrelay run --source postgres://relay@db/shop --slot orders --table public.outbox\n")
    );
    let sql: String = text.lines().filter(|line| !line.starts_with("--") && !line.starts_with('\\')).collect();
    assert!(sql.starts_with("ALTER SYSTEM") && sql.contains("walrelay slot: orders"));
}

/// `psql` ends a comment at either, and runs what follows: SQL, and commands of its own.
#[test]
fn a_name_with_a_carriage_return_does_not_leave_its_comment() {
    let request = request(&["\"out\r\\! echo box\""]);
    let facts = complete(&request);
    let plan = plan(&request, &facts).unwrap();
    let text = script(&request, &facts, &plan, &["public.a\r\nDROP TABLE b; holds 2 rows\r\r\n".to_owned()]);
    assert!(text.split(['\r', '\n']).all(|line| line.is_empty() || line.starts_with("--")), "{text:?}");
}

#[test]
fn an_empty_plan_is_a_script_of_comments() {
    let request = request(&[]);
    let facts = complete(&request);
    let text = script(&request, &facts, &plan(&request, &facts).unwrap(), &[]);
    assert_eq!(
        text,
        "-- nothing to do: publication \"walrelay\" and slot \"walrelay\" are there (confirmed 0/20, 0 B behind)\n-- next: walrelay run\n"
    );
}
