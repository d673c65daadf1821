//! Tests the producer's properties, and the sink.

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
fn numbers_that_only_java_takes_become_the_nearest() {
    let lines = [
        ("batch.size", "0", "batch.size", "1"),
        ("send.buffer.bytes", "-1", "socket.send.buffer.bytes", "0"),
        ("receive.buffer.bytes", "-1", "socket.receive.buffer.bytes", "0"),
        ("connections.max.idle.ms", "-1", "connections.max.idle.ms", "0"),
        ("request.timeout.ms", "2147483647", "request.timeout.ms", "900000"),
        ("max.request.size", "2147483647", "message.max.bytes", "1000000000"),
        ("metadata.max.age.ms", "86400000", "topic.metadata.refresh.interval.ms", "3600000"),
        ("linger.ms", "1000000", "linger.ms", "900000"),
    ];
    for (java, value, ours, near) in lines {
        let key = format!("debezium.sink.kafka.producer.{java}");
        let translation = server(&format!("{key}={value}"));
        assert_eq!(property(&translation, ours).as_deref(), Some(near), "{java}");
        noted(&translation, &key, Severity::Warning, near);
    }
    // Java refuses this value, too.
    let below = server("debezium.sink.kafka.producer.linger.ms=-5");
    assert_eq!(property(&below, "linger.ms").as_deref(), Some("-5"));
    let empty = server("debezium.sink.kafka.producer.linger.ms=");
    assert_eq!(property(&empty, "linger.ms"), None);
    noted(&empty, "debezium.sink.kafka.producer.linger.ms", Severity::NotNeeded, "empty");
}

#[test]
fn a_level_counts_for_the_codec_that_it_names() {
    let of = |codec: &str| {
        let prefix = "debezium.sink.kafka.producer.compression";
        server(&format!("{prefix}.type={codec}\n{prefix}.gzip.level=9\n{prefix}.lz4.level=17\n{prefix}.zstd.level=3"))
    };
    for (codec, level) in [("gzip", Some("9")), ("lz4", Some("12")), ("zstd", Some("3")), ("none", None)] {
        assert_eq!(property(&of(codec), "compression.level").as_deref(), level, "{codec}");
    }
    noted(&of("gzip"), "debezium.sink.kafka.producer.compression.lz4.level", Severity::NotNeeded, "not lz4");
}

#[test]
fn pauses_between_connections_are_bounded_as_java_does_it() {
    let of = |lines: &str| {
        let lines = lines.lines().map(|line| format!("debezium.sink.kafka.producer.reconnect.backoff.{line}"));
        let translation = server(&lines.collect::<Vec<_>>().join("\n"));
        ["reconnect.backoff.ms", "reconnect.backoff.max.ms"]
            .map(|name| property(&translation, name).unwrap_or_default())
    };
    assert_eq!(of("ms=5000"), ["5000", "5000"]);
    assert_eq!(of("ms=5000\nmax.ms=1000"), ["1000", "1000"]);
    assert_eq!(of("ms=500\nmax.ms=1000"), ["500", "1000"]);
    assert_eq!(of("max.ms=700"), ["", "700"]);
}

#[test]
fn a_mechanism_that_is_not_built_in_is_refused_where_sasl_is_asked_for() {
    let key = "debezium.sink.kafka.producer.sasl.mechanism";
    let of = |mechanism: &str, protocol: &str| {
        let module = "sasl.jaas.config=a.ScramLoginModule required username=u password=p;";
        let lines = [&format!("sasl.mechanism={mechanism}"), &format!("security.protocol={protocol}"), module];
        server(&lines.map(|line| format!("debezium.sink.kafka.producer.{line}")).join("\n"))
    };
    for mechanism in ["scram-sha-256", "GSSAPI", "AWS_MSK_IAM"] {
        noted(&of(mechanism, "sasl_ssl"), key, Severity::Refused, "not built in");
        noted(&of(mechanism, "SSL"), key, Severity::NotNeeded, "no SASL");
    }
    of("SCRAM-SHA-256", "SASL_SSL").verdict(false).unwrap();
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
fn nothing_of_a_log_in_is_shown_but_names_that_are_known() {
    let modules = [
        "password=\"hunter2\" username=\"u\";",
        "hunter2 required username=\"u\";",
        "a.ScramLoginModule required username=\"u\" password=\"a\" hunter2=\"b\";",
    ];
    for module in modules {
        let translation = jaas(module, "PLAIN");
        let shown = format!("{} {:?}", translation.report(&[], false), translation.warnings());
        assert!(!shown.contains("hunter2"), "{shown}");
    }
    let known = jaas("a.ScramLoginModule required username=u password=p tokenauth=true;", "SCRAM-SHA-256");
    noted(&known, "debezium.sink.kafka.producer.sasl.jaas.config", Severity::Warning, "tokenauth");
}

#[test]
fn the_level_of_the_compression_that_is_used_counts() {
    let levels = "debezium.sink.kafka.producer.compression.gzip.level=9\n\
                  debezium.sink.kafka.producer.compression.zstd.level=3";
    let level = |codec: &str| {
        let translation = server(&format!("{levels}\ndebezium.sink.kafka.producer.compression.type={codec}"));
        for other in ["gzip", "zstd"].iter().filter(|other| **other != codec) {
            let key = format!("debezium.sink.kafka.producer.compression.{other}.level");
            noted(&translation, &key, Severity::NotNeeded, "compression.type");
        }
        property(&translation, "compression.level")
    };
    assert_eq!(["gzip", "zstd", "lz4", "none"].map(level), [Some("9".to_owned()), Some("3".to_owned()), None, None]);
}

#[test]
fn of_two_keys_for_one_property_the_one_that_does_not_count_is_noted() {
    let translation = server(
        "debezium.sink.kafka.producer.sasl.jaas.config=a.OAuthBearerLoginModule required clientId=\"of jaas\";\n\
         debezium.sink.kafka.producer.sasl.oauthbearer.client.credentials.client.id=own",
    );
    assert_eq!(property(&translation, "sasl.oauthbearer.client.id").as_deref(), Some("own"));
    let key = "debezium.sink.kafka.producer.sasl.jaas.config";
    noted(&translation, key, Severity::NotNeeded, "sasl.oauthbearer.client.id");
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
