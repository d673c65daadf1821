//! Translates the producer's `ssl.*`.
//!
//! Java has certificates in stores with formats of its own. librdkafka reads PEM, and for the client's key also PKCS#12.
//! Specification: Kafka's "Producer Configs", librdkafka's CONFIGURATION.md.

use super::Translator;
use crate::setting_text::Given;

/// The format of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Pem,
    Pkcs12,
    Jks,
}

/// The format by its declared type, or else by its name. As `JKS`, Java opens both of its formats.
fn format(kind: Option<&Given>, file: &str) -> Format {
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
        let engine = self.configuration.producer.take_filled("ssl.engine.factory.class");
        self.refuse(&engine, "a Java class that makes TLS connections: librdkafka has ssl.ca.location, ssl.certificate.location and ssl.key.location");
    }

    fn trust_store(&mut self) {
        let producer = &mut self.configuration.producer;
        let kind = producer.take_filled("ssl.truststore.type");
        let location = producer.take_filled("ssl.truststore.location");
        let inline = producer.take_filled("ssl.truststore.certificates");
        let password = producer.take_filled("ssl.truststore.password");
        self.not_needed(&kind, FORMAT);
        self.property_if_set("ssl.ca.pem", inline);
        if let Some(location) = location {
            match format(kind.as_ref(), &location.text) {
                Format::Pem => self.property("ssl.ca.location", location.text.trim(), &location.origin),
                Format::Jks | Format::Pkcs12 => self.refuse(&location, NO_STORE),
            }
        }
        self.not_needed(&password, "certificates in PEM have no password");
    }

    fn key_store(&mut self) {
        let producer = &mut self.configuration.producer;
        let kind = producer.take_filled("ssl.keystore.type");
        let location = producer.take_filled("ssl.keystore.location");
        let password = producer.take_filled("ssl.keystore.password");
        let key_password = producer.take_filled("ssl.key.password");
        self.not_needed(&kind, FORMAT);
        for (key, property) in
            [("ssl.keystore.key", "ssl.key.pem"), ("ssl.keystore.certificate.chain", "ssl.certificate.pem")]
        {
            let pem = self.configuration.producer.take_filled(key);
            self.property_if_set(property, pem);
        }
        match location {
            Some(location) => self.key_store_file(kind.as_ref(), &location, password),
            None => self.not_needed(&password, "no key store is named"),
        }
        self.property_if_set("ssl.key.password", key_password);
    }

    fn key_store_file(&mut self, kind: Option<&Given>, location: &Given, password: Option<Given>) {
        let file = location.text.trim();
        match format(kind, file) {
            Format::Pem => {
                // In Java, one file has the key and its chain. OpenSSL finds both in it.
                self.property("ssl.certificate.location", file, &location.origin);
                self.property("ssl.key.location", file, &location.origin);
            }
            Format::Pkcs12 => {
                self.property("ssl.keystore.location", file, &location.origin);
                self.property_if_set("ssl.keystore.password", password);
            }
            Format::Jks => self.refuse(location, NO_KEY_STORE),
        }
    }
}

const FORMAT: &str = "it says how the file is read";

const NO_STORE: &str = "librdkafka reads no Java trust store: write its certificates as PEM (keytool -exportcert -rfc) and give -X ssl.ca.location=FILE";

const NO_KEY_STORE: &str = "librdkafka reads no Java key store: make it PKCS#12 (keytool -importkeystore -deststoretype PKCS12) and give -X ssl.keystore.location=FILE";
