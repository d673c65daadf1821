//! Translates the producer's `ssl.*`.
//!
//! Java has certificates in stores with formats of its own. librdkafka reads PEM, and for the client's key also PKCS#12.
//! Specification: Kafka's "Producer Configs", librdkafka's CONFIGURATION.md.

use super::Translator;
use crate::debezium::keys::KeyValue;

/// The format of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Pem,
    Pkcs12,
    Jks,
}

/// The format by its declared type, or else by its name. As `JKS`, Java opens both of its formats.
fn format(kind: Option<&KeyValue>, file: &str) -> Format {
    let file = file.to_ascii_lowercase();
    let ends = |endings: &[&str]| endings.iter().any(|ending| file.ends_with(ending));
    match kind.map(|kind| kind.text.trim().to_ascii_uppercase()).as_deref() {
        Some("PEM") => Format::Pem,
        Some("PKCS12") => Format::Pkcs12,
        _ if ends(&[".p12", ".pfx"]) => Format::Pkcs12,
        _ if ends(&[".pem", ".crt", ".cer"]) => Format::Pem,
        _ => Format::Jks,
    }
}

impl Translator {
    pub(super) fn tls(&mut self) {
        self.trust_store();
        self.key_store();
        let producer = &mut self.configuration.producer;
        if let Some(algorithm) = producer.take("ssl.endpoint.identification.algorithm") {
            let name = if algorithm.text.trim().is_empty() { "none" } else { "https" };
            self.property("ssl.endpoint.identification.algorithm", name, &algorithm.origin);
        }
        if let Some(engine) = self.configuration.producer.take_filled("ssl.engine.factory.class") {
            self.refuse(&engine, "a Java class that makes TLS connections: librdkafka has ssl.ca.location, ssl.certificate.location and ssl.key.location");
        }
    }

    fn trust_store(&mut self) {
        let producer = &mut self.configuration.producer;
        let kind = producer.take_filled("ssl.truststore.type");
        let location = producer.take_filled("ssl.truststore.location");
        let inline = producer.take_filled("ssl.truststore.certificates");
        let password = producer.take_filled("ssl.truststore.password");
        if let Some(kind) = &kind {
            self.not_needed(kind, FORMAT);
        }
        if let Some(pem) = inline {
            self.property("ssl.ca.pem", pem.text, &pem.origin);
        }
        if let Some(location) = location {
            match format(kind.as_ref(), &location.text) {
                Format::Pem => self.property("ssl.ca.location", location.text.trim(), &location.origin),
                Format::Jks | Format::Pkcs12 => self.refuse(&location, NO_STORE),
            }
        }
        if let Some(password) = password {
            self.not_needed(&password, "certificates in PEM have no password");
        }
    }

    fn key_store(&mut self) {
        let producer = &mut self.configuration.producer;
        let kind = producer.take_filled("ssl.keystore.type");
        let location = producer.take_filled("ssl.keystore.location");
        let password = producer.take_filled("ssl.keystore.password");
        let key_password = producer.take_filled("ssl.key.password");
        if let Some(kind) = &kind {
            self.not_needed(kind, FORMAT);
        }
        for (key, property) in
            [("ssl.keystore.key", "ssl.key.pem"), ("ssl.keystore.certificate.chain", "ssl.certificate.pem")]
        {
            if let Some(pem) = self.configuration.producer.take_filled(key) {
                self.property(property, pem.text, &pem.origin);
            }
        }
        match (location, password) {
            (Some(location), password) => self.key_store_file(kind.as_ref(), &location, password),
            (None, Some(password)) => self.not_needed(&password, "no key store is named"),
            (None, None) => {}
        }
        if let Some(password) = key_password {
            self.property("ssl.key.password", password.text, &password.origin);
        }
    }

    fn key_store_file(&mut self, kind: Option<&KeyValue>, location: &KeyValue, password: Option<KeyValue>) {
        let file = location.text.trim();
        match format(kind, file) {
            Format::Pem => {
                // In Java, one file has the key and its chain. OpenSSL finds both in it.
                self.property("ssl.certificate.location", file, &location.origin);
                self.property("ssl.key.location", file, &location.origin);
            }
            Format::Pkcs12 => {
                self.property("ssl.keystore.location", file, &location.origin);
                if let Some(password) = password {
                    self.property("ssl.keystore.password", password.text, &password.origin);
                }
            }
            Format::Jks => self.refuse(location, NO_KEY_STORE),
        }
    }
}

const FORMAT: &str = "it says how the file is read";

const NO_STORE: &str = "librdkafka reads no Java trust store: write its certificates as PEM (keytool -exportcert -rfc) and give -X ssl.ca.location=FILE";

const NO_KEY_STORE: &str = "librdkafka reads no Java key store: make it PKCS#12 (keytool -importkeystore -deststoretype PKCS12) and give -X ssl.keystore.location=FILE";
