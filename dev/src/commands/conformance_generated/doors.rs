//! The ways in of a drawn configuration: the connector's `database.ssl*`, and its producer's `security.protocol`, `sasl.*` and `ssl.*`.
//!
//! In: a draw. Out: keys with legal values, in the connector's configuration or in its worker's. `walrelay_dev::conformance::doors` fills
//! the placeholders in braces.

use std::collections::BTreeMap;

use walrelay_dev::conformance::doors::{STORE_PASSWORD, USER};

use super::draw::Draw;

/// Keys of the producer, and what they say.
type Keys = Vec<(&'static str, String)>;

/// Values that a worker's file would have to escape.
const OF_CONNECTOR: [&str; 4] =
    ["sasl.jaas.config", "ssl.truststore.certificates", "ssl.keystore.key", "ssl.keystore.certificate.chain"];

/// Adds the keys of both ways in.
pub(super) fn add(draw: &mut Draw, config: &mut BTreeMap<String, String>, worker: &mut Vec<String>) {
    for (key, value) in to_postgres(draw) {
        config.insert(format!("database.{key}"), value);
    }
    // 0: all in the connector's configuration, 1: all in its worker's, 2: some in each.
    let of_worker = draw.number(0..3);
    for (key, value) in to_kafka(draw) {
        if of_worker > 0 && !OF_CONNECTOR.contains(&key) && (of_worker == 1 || draw.is(2)) {
            worker.push(format!("producer.{key}={value}"));
        } else {
            config.insert(format!("producer.override.{key}"), value);
        }
    }
}

fn to_postgres(draw: &mut Draw) -> Keys {
    let modes = [
        "",
        "",
        "disable",
        "allow",
        "prefer",
        "Prefer",
        "require",
        "REQUIRE",
        "verify-ca",
        "verify-full",
        "Verify-Full",
    ];
    let mode = draw.one(&modes);
    let mut keys = Keys::new();
    if mode.is_empty() {
        return keys;
    }
    keys.push(("sslmode", mode.to_owned()));
    if mode.to_ascii_lowercase().starts_with("verify") || draw.is(4) {
        keys.push(("sslrootcert", "{postgres}/right.pem".to_owned()));
    }
    if draw.is(3) {
        keys.push(("sslcert", "{postgres}/client.crt".to_owned()));
        keys.push(("sslkey", "{postgres}/client.key".to_owned()));
    }
    if draw.is(10) {
        keys.push(("sslfactory", "org.postgresql.ssl.LibPQFactory".to_owned()));
    }
    keys
}

fn to_kafka(draw: &mut Draw) -> Keys {
    let mut keys = match draw.number(0..4) {
        0 => by_password(draw),
        1 => by_certificate(draw),
        _ => return Keys::new(),
    };
    keys.extend(trusted(draw));
    let seldom: [(&str, &[&str]); 4] = [
        ("ssl.endpoint.identification.algorithm", &["https", "HTTPS", ""]),
        ("ssl.protocol", &["TLSv1.3", "TLSv1.2"]),
        ("ssl.enabled.protocols", &["TLSv1.2,TLSv1.3", "TLSv1.3"]),
        ("ssl.cipher.suites", &["TLS_AES_256_GCM_SHA384,TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"]),
    ];
    for (key, values) in seldom {
        if draw.is(5) {
            keys.push((key, draw.one(values).to_owned()));
        }
    }
    keys
}

fn by_password(draw: &mut Draw) -> Keys {
    let (user, password) = USER;
    let hidden = password.replace('\\', r"\\");
    let module = "org.apache.kafka.common.security.scram.ScramLoginModule";
    let config = match draw.number(0..3) {
        0 => format!("{module} required username=\"{user}\" password=\"{hidden}\";"),
        1 => format!("{module} required\n  username={user}\n  password=\"{hidden}\" ;"),
        _ => format!("  {module}   required password=\"{hidden}\"  username=\"{user}\";  "),
    };
    vec![
        ("bootstrap.servers", "{sasl_ssl}".to_owned()),
        ("security.protocol", draw.one(&["SASL_SSL", "SASL_SSL", "sasl_ssl"]).to_owned()),
        ("sasl.mechanism", draw.one(&["SCRAM-SHA-256", "SCRAM-SHA-512"]).to_owned()),
        ("sasl.jaas.config", config),
    ]
}

fn by_certificate(draw: &mut Draw) -> Keys {
    let mut keys = vec![
        ("bootstrap.servers", "{ssl}".to_owned()),
        ("security.protocol", draw.one(&["SSL", "SSL", "ssl"]).to_owned()),
    ];
    match draw.number(0..3) {
        0 => {
            keys.push(("ssl.keystore.type", "PEM".to_owned()));
            keys.push(("ssl.keystore.location", "{kafka}/client.pem".to_owned()));
        }
        1 => {
            keys.push(("ssl.keystore.type", "PEM".to_owned()));
            keys.push(("ssl.keystore.key", "{text:client.key}".to_owned()));
            keys.push(("ssl.keystore.certificate.chain", "{text:client.crt}".to_owned()));
        }
        _ => {
            keys.push(("ssl.keystore.location", "{kafka}/client.p12".to_owned()));
            keys.push(("ssl.keystore.password", STORE_PASSWORD.to_owned()));
            // Java opens either format under either name.
            if draw.is(2) {
                keys.push(("ssl.keystore.type", draw.one(&["PKCS12", "JKS"]).to_owned()));
            }
            if draw.is(2) {
                keys.push(("ssl.key.password", STORE_PASSWORD.to_owned()));
            }
        }
    }
    keys
}

fn trusted(draw: &mut Draw) -> Keys {
    match draw.number(0..7) {
        // librdkafka does not read these: `check` has to say so.
        0 => {
            let location = ("ssl.truststore.location", "{kafka}/right.jks".to_owned());
            vec![location, ("ssl.truststore.password", STORE_PASSWORD.to_owned())]
        }
        1 | 2 => vec![
            ("ssl.truststore.type", "PEM".to_owned()),
            ("ssl.truststore.certificates", "{text:right.pem}".to_owned()),
        ],
        _ => {
            vec![("ssl.truststore.type", "PEM".to_owned()), ("ssl.truststore.location", "{kafka}/right.pem".to_owned())]
        }
    }
}
