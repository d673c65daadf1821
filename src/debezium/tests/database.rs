//! Tests the settings for database, slot, tables and columns.

use super::*;

#[test]
fn the_names_that_debezium_has_by_default_are_taken() {
    let bare = CONNECTOR.replace(r#""slot.name": "dbz","#, "");
    let translation = translated(&[&format!("{{{bare}}}")]);
    assert_eq!(setting(&translation, "slot").as_deref(), Some("debezium"));
    assert_eq!(setting(&translation, "publication").as_deref(), Some("dbz_publication"));
}

#[test]
fn the_database_becomes_one_connection_string() {
    let lines = "debezium.source.database.port=5433\ndebezium.source.database.user=app\n\
                 debezium.source.database.password=it's \\\\ secret\ndebezium.source.database.dbname=shop\n\
                 debezium.source.database.sslmode=verify-full\ndebezium.source.database.sslrootcert=/ca.pem\n\
                 debezium.source.database.sslcert=/c.pem\ndebezium.source.database.sslkey=/k.pem";
    let translation = server(lines);
    let expected = r"host=db port=5433 dbname=shop user=app password='it\'s \\ secret' sslmode=verify-full sslrootcert=/ca.pem sslcert=/c.pem sslkey=/k.pem";
    assert_eq!(setting(&translation, "source").as_deref(), Some(expected));
    let shown = translation.settings["source"].shown.clone().unwrap().join("");
    assert!(!shown.contains("secret") && shown.contains("user=app"), "{shown}");
}

#[test]
fn what_java_wants_for_tls_to_postgres_and_we_cannot_have_is_refused() {
    of_key("database.sslkey", "/k.pk8", Severity::Refused, "PEM is wanted");
    of_key("database.sslpassword", "x", Severity::Refused, "encrypted keys");
    of_key("database.sslfactory", "x", Severity::Warning, "Java class");
}

#[test]
fn the_slot_must_be_one_of_pgoutput() {
    let without = SERVER.replace("debezium.source.plugin.name=pgoutput\n", "");
    let translation = translated(&[&without]);
    noted(&translation, "plugin.name", Severity::Refused, "decoderbufs");
    let other = SERVER.replace("plugin.name=pgoutput", "plugin.name=decoderbufs");
    noted(&translated(&[&other]), "debezium.source.plugin.name", Severity::Refused, "pgoutput");
    of_key("slot.drop.on.stop", "true", Severity::Refused, "drops the slot");
    of_key("slot.drop.on.stop", "false", Severity::NotNeeded, "asks for nothing");
}

#[test]
fn another_database_is_refused() {
    let mysql = SERVER.replace("postgresql.PostgresConnector", "mysql.MySqlConnector");
    noted(&translated(&[&mysql]), "debezium.source.connector.class", Severity::Refused, "not a PostgreSQL connector");
}

#[test]
fn columns_that_are_not_captured_are_not_there() {
    let translation = server("debezium.source.column.exclude.list=public.outbox.sec.*");
    let captured = translation.connect.captured();
    assert!(captured.capture_column("public.outbox", "payload") && captured.capture_column("public.outbox2", "secret"));
    assert!(!captured.capture_column("public.outbox", "secret"));
    assert!(translation.tables.is_empty());
    let only = server("debezium.source.column.include.list=public.outbox.(id|payload)").connect.captured();
    assert!(only.capture_column("public.outbox", "id") && !only.capture_column("public.outbox", "secret"));
    of_key("column.exclude.list", "a(b", Severity::Refused, "not a regular expression");
}

#[test]
fn tables_are_expressions() {
    let translation = server("debezium.source.table.include.list=public.outbox,shop\\\\.ev.*");
    let captures = |schema: &str, name: &str| {
        let (namespace, name) = (schema.to_owned(), name.to_owned());
        let relation =
            crate::pgoutput::Relation { id: 1, namespace, name, replica_identity: b'd', columns: Vec::new() };
        translation.tables.capture(&relation)
    };
    assert!(captures("public", "outbox") && captures("shop", "events") && !captures("public", "outbox2"));
    assert!(server("").tables.is_empty());
    of_key("table.include.list", "a(b", Severity::Refused, "not a regular expression");
    of_key("table.include.list", "public.outbox", Severity::NotNeeded, "--table public.outbox");
}
