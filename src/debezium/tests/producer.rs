//! The producer's properties, and the sink.

use super::*;

#[test]
fn the_producers_properties_get_librdkafkas_names() {
    let lines = [
        ("linger.ms", "5", "linger.ms"),
        ("batch.size", "100000", "batch.size"),
        ("compression.type", "lz4", "compression.type"),
        ("max.request.size", "2000000", "message.max.bytes"),
        ("client.id", "me", "client.id"),
        ("security.protocol", "SASL_SSL", "security.protocol"),
        ("request.timeout.ms", "1000", "request.timeout.ms"),
        ("send.buffer.bytes", "1000", "socket.send.buffer.bytes"),
    ];
    for (java, value, ours) in lines {
        let translation = server(&format!("debezium.sink.kafka.producer.{java}={value}"));
        assert_eq!(property(&translation, ours).as_deref(), Some(value), "{java}");
        let translation = connect(&format!(r#""producer.override.{java}": "{value}""#));
        assert_eq!(property(&translation, ours).as_deref(), Some(value), "{java}");
    }
}

#[test]
fn what_walrelay_fixes_itself_is_not_needed() {
    for (key, value) in
        [("acks", "1"), ("enable.idempotence", "false"), ("retries", "3"), ("delivery.timeout.ms", "5000")]
    {
        let translation = server(&format!("debezium.sink.kafka.producer.{key}={value}"));
        noted(&translation, &format!("debezium.sink.kafka.producer.{key}"), Severity::NotNeeded, "fixed here");
        assert!(translation.properties.is_empty());
        translation.verdict(false).unwrap();
    }
}

#[test]
fn the_producer_of_kafka_connect_has_the_workers_properties_below_its_own() {
    let worker = "bootstrap.servers=a:1\nproducer.linger.ms=7\nproducer.batch.size=8\nsecurity.protocol=SSL\n";
    let connector = format!(r#"{{{CONNECTOR}, "producer.override.linger.ms": "9"}}"#);
    let translation = translated(&[worker, &connector]);
    assert_eq!(property(&translation, "linger.ms").as_deref(), Some("9"));
    assert_eq!(property(&translation, "batch.size").as_deref(), Some("8"));
    assert_eq!(property(&translation, "security.protocol"), None);
    noted(&translation, "security.protocol", Severity::Warning, "producer.*");
}

#[track_caller]
fn jaas(config: &str, mechanism: &str) -> Translation {
    let lines = format!("debezium.sink.kafka.producer.sasl.jaas.config={config}");
    let mechanism = if mechanism.is_empty() {
        String::new()
    } else {
        format!("\ndebezium.sink.kafka.producer.sasl.mechanism={mechanism}")
    };
    server(&format!("{lines}{mechanism}"))
}

#[test]
fn a_log_in_with_a_password_is_translated() {
    let module =
        "org.apache.kafka.common.security.scram.ScramLoginModule required username=\"u\" password=\"hunter2\";";
    let translation = jaas(module, "SCRAM-SHA-512");
    let properties =
        ["sasl.username", "sasl.password", "sasl.mechanism"].map(|name| property(&translation, name).unwrap());
    assert_eq!(properties, ["u", "hunter2", "SCRAM-SHA-512"]);
    let plain = jaas("a.PlainLoginModule required username=u password=p;", "");
    assert_eq!(property(&plain, "sasl.mechanism").as_deref(), Some("PLAIN"));
    let scram = jaas("a.ScramLoginModule required username=u password=p;", "");
    noted(&scram, "debezium.sink.kafka.producer.sasl.jaas.config", Severity::Refused, "sasl.mechanism is missing");
}

#[test]
fn other_log_ins_name_librdkafkas_properties() {
    let key = "debezium.sink.kafka.producer.sasl.jaas.config";
    noted(
        &jaas("software.amazon.msk.auth.iam.IAMLoginModule required;", "AWS_MSK_IAM"),
        key,
        Severity::Refused,
        "sasl.username",
    );
    noted(
        &jaas("com.sun.security.auth.module.Krb5LoginModule required;", "GSSAPI"),
        key,
        Severity::Refused,
        "sasl.mechanism",
    );
    noted(&jaas("nonsense", "PLAIN"), key, Severity::Refused, "not a JAAS");
    let oauth = server(
        "debezium.sink.kafka.producer.sasl.jaas.config=a.OAuthBearerLoginModule required clientId=\"i\" clientSecret=\"s\" scope=\"x\";\n\
         debezium.sink.kafka.producer.sasl.login.callback.handler.class=org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler\n\
         debezium.sink.kafka.producer.sasl.oauthbearer.token.endpoint.url=https://t",
    );
    assert_eq!(property(&oauth, "sasl.oauthbearer.client.secret").as_deref(), Some("s"));
    assert_eq!(property(&oauth, "sasl.oauthbearer.method").as_deref(), Some("oidc"));
    oauth.verdict(false).unwrap();
}

#[test]
fn stores_of_certificates_are_taken_where_librdkafka_reads_them() {
    let of = |lines: &str| {
        let lines = lines.lines().map(|line| format!("debezium.sink.kafka.producer.ssl.{line}")).collect::<Vec<_>>();
        server(&lines.join("\n"))
    };
    let pem = of(
        "truststore.location=/ca.pem\ntruststore.type=PEM\nkeystore.location=/me.pem\nkeystore.type=PEM\nkey.password=k",
    );
    let names = ["ssl.ca.location", "ssl.certificate.location", "ssl.key.location", "ssl.key.password"];
    assert_eq!(names.map(|name| property(&pem, name).unwrap()), ["/ca.pem", "/me.pem", "/me.pem", "k"]);
    let p12 = of("keystore.location=/me.p12\nkeystore.password=x");
    assert_eq!(property(&p12, "ssl.keystore.location").as_deref(), Some("/me.p12"));
    assert_eq!(property(&p12, "ssl.keystore.password").as_deref(), Some("x"));
    let key = "debezium.sink.kafka.producer.ssl.truststore.location";
    noted(&of("truststore.location=/t.jks\ntruststore.password=x"), key, Severity::Refused, "ssl.ca.location");
    noted(&of("truststore.location=/t.p12"), key, Severity::Refused, "ssl.ca.location");
    let key = "debezium.sink.kafka.producer.ssl.keystore.location";
    noted(&of("keystore.location=/k.jks"), key, Severity::Refused, "ssl.keystore.location");
    let inline = of("truststore.type=PEM\ntruststore.certificates=-----BEGIN");
    assert_eq!(property(&inline, "ssl.ca.pem").as_deref(), Some("-----BEGIN"));
    let names = of("endpoint.identification.algorithm=");
    assert_eq!(property(&names, "ssl.endpoint.identification.algorithm").as_deref(), Some("none"));
}

#[test]
fn what_would_send_records_elsewhere_is_a_difference() {
    for (key, value) in [
        ("partitioner.class", "org.apache.kafka.clients.producer.RoundRobinPartitioner"),
        ("partitioner.ignore.keys", "true"),
        ("interceptor.classes", "x.Y"),
        ("value.serializer", "io.confluent.kafka.serializers.KafkaAvroSerializer"),
    ] {
        let translation = server(&format!("debezium.sink.kafka.producer.{key}={value}"));
        assert!(translation.verdict(false).is_err(), "{key}");
        translation.verdict(true).unwrap();
    }
}

#[test]
fn another_sink_is_refused() {
    let text = SERVER.replace("sink.type=kafka", "sink.type=kinesis");
    noted(&translated(&[&text]), "debezium.sink.type", Severity::Refused, "Kafka alone");
}
