//! Tests which files are a configuration, and what their keys and expressions mean.

use proptest::prelude::*;

use super::*;

#[test]
fn a_plain_set_up_of_debezium_server_is_carried_over_whole() {
    let translation = server("debezium.source.publication.name=dbz_pub");
    let names =
        ["slot", "publication", "brokers", "topic", "id-column", "key-column", "payload-column", "route-column"];
    let values = names.map(|name| setting(&translation, name).unwrap_or_default());
    let expected =
        ["dbz", "dbz_pub", "k:9092", "outbox.event.{route}", "id", "aggregateid", "payload", "aggregatetype"];
    assert_eq!(values, expected);
    assert_eq!(setting(&translation, "type-column").as_deref(), Some(""));
    assert_eq!(setting(&translation, "headers-column").as_deref(), Some(""));
    assert_eq!(translation.connect, Connect { skip_null_headers: true, ..Connect::default() });
    assert_eq!(translation.platform, Platform::Server);
    translation.verdict(false).unwrap();
}

#[test]
fn a_connector_may_be_wrapped_in_name_and_config_or_bare() {
    for text in [format!("{{{CONNECTOR}}}"), format!("{{\"name\": \"x\", \"config\": {{{CONNECTOR}}}}}")] {
        let translation = translated(&[&text]);
        assert_eq!(setting(&translation, "slot").as_deref(), Some("dbz"));
        assert_eq!(translation.platform, Platform::Connect);
        translation.verdict(false).unwrap();
    }
}

#[test]
fn a_connector_of_a_standalone_worker_is_properties() {
    let text = "name=x\nconnector.class=io.debezium.connector.postgresql.PostgresConnector\nslot.name=s\n";
    assert_eq!(setting(&translated(&[text]), "slot").as_deref(), Some("s"));
}

#[test]
fn numbers_and_booleans_of_json_are_texts() {
    let translation =
        connect(r#""database.hostname": "h", "database.port": 5433, "tombstones.on.delete": false, "x": null"#);
    assert_eq!(setting(&translation, "source").as_deref(), Some("host=h port=5433"));
}

#[test]
fn expressions_are_resolved_and_what_cannot_be_is_refused() {
    let file = format!(
        "{SERVER}debezium.source.database.password=${{DB_PASS}}\ndebezium.source.database.user=${{DB_USER:app}}\n"
    );
    let translation = read_all(&[&file], &[("DB_PASS", "hunter2")]).unwrap();
    assert_eq!(setting(&translation, "source").as_deref(), Some("host=db user=app password=hunter2"));
    let unset = translated(&[&file]);
    noted(&unset, "debezium.source.database.password", Severity::Refused, "DB_PASS is neither");
    assert!(unset.verdict(true).is_err());
    let vault = connect(r#""database.password": "${vault:a:b}""#);
    noted(&vault, "database.password", Severity::Refused, "config provider \"vault\"");
}

#[test]
fn the_engine_of_debezium_server_asks_config_providers_where_quarkus_leaves_the_expression() {
    let lines = r"debezium.source.slot.name=\\${env:SLOT}";
    let providers = "debezium.source.config.providers=env\n\
                     debezium.source.config.providers.env.class=org.apache.kafka.common.config.provider.EnvVarConfigProvider";
    let slot = |text: &str| {
        let translation = read_all(&[&format!("{SERVER}{text}\n")], &[("SLOT", "of_variable")]).unwrap();
        setting(&translation, "slot")
    };
    assert_eq!(slot(&format!("{lines}\n{providers}")).as_deref(), Some("of_variable"));
    assert_eq!(slot(lines).as_deref(), Some("${env:SLOT}"));
}

#[test]
fn expressions_that_multiply_are_refused() {
    let level = |at: usize| format!("k{at}={}\n", format!("${{k{}}}", at + 1).repeat(3));
    let levels = (0..12).map(level).collect::<String>() + "k12=\n";
    let many = server(&format!("{levels}debezium.source.slot.name=${{k0}}"));
    noted(&many, "debezium.source.slot.name", Severity::Refused, "too many");
    let long = format!("k0={}\ndebezium.source.slot.name={}", "x".repeat(1000), "${k0}".repeat(2000));
    noted(&server(&long), "debezium.source.slot.name", Severity::Refused, "too much");
}

#[test]
fn a_worker_names_its_config_providers() {
    let worker = "bootstrap.servers=a:1\nconfig.providers=secrets\n\
                  config.providers.secrets.class=org.apache.kafka.common.config.provider.EnvVarConfigProvider\n";
    let connector = format!(r#"{{{CONNECTOR}, "database.user": "${{secrets:DB_USER}}"}}"#);
    let translation = read_all(&[&connector, worker], &[("DB_USER", "app")]).unwrap();
    assert_eq!(setting(&translation, "source").as_deref(), Some("user=app"));
}

#[test]
fn a_later_file_beats_an_earlier_one() {
    let later = "debezium.source.slot.name=later\n";
    assert_eq!(setting(&translated(&[SERVER, later]), "slot").as_deref(), Some("later"));
}

#[test]
fn files_that_are_no_set_up_are_errors() {
    let message = |files: &[&str]| read_all(files, &[]).err().expect("must fail").to_string();
    assert!(message(&["a=b"]).contains("no file holds a connector"));
    assert!(message(&["{\"a\": "]).contains("line 1: this is not JSON"));
    assert!(message(&["[1]"]).contains("a JSON object is wanted"));
    assert!(message(&["{\"a\": {\"b\": 1}, \"connector.class\": \"x\"}"]).contains("\"a\" is to be a text"));
    assert!(message(&["a=\\u12"]).contains("line 1: "));
    let connector = format!("{{{CONNECTOR}}}");
    assert!(message(&[SERVER, &connector]).contains("one file is Debezium Server's"));
    let error = read(&["/no/such/file".into()], &environment(&[])).err().unwrap();
    assert_eq!(error.to_string(), "--from-debezium: cannot read /no/such/file");
}

proptest! {
    #[test]
    fn no_file_panics(text in any::<String>()) {
        let _read = read_all(&[&text], &[]).is_ok();
    }

    #[test]
    fn no_value_panics(
        key in proptest::sample::select(SERVER.lines().map(|line| line.split('=').next().unwrap()).collect::<Vec<_>>()),
        option in "(table|route)\\.[a-z.]{1,30}",
        value in "[-a-z${}:,.*()\\\\=\" ]{0,20}",
    ) {
        let text = format!("{SERVER}{key}={value}\ndebezium.transforms.outbox.{option}={value}\n");
        if let Ok(translation) = read_all(&[&text], &[]) {
            let _shown = translation.report(&["f".into()], true);
        }
    }
}
