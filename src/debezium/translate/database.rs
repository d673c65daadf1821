//! Translates where rows come from: `database.*`, slot, publication, tables.

use super::{NO_EFFECT, Translator, class_name};
use crate::debezium::Setting;
use crate::debezium::keys::says;
use crate::outbox::{List, TablePatterns};
use crate::setting_text::{Foreign, Given, Origin};

/// Debezium's keys with libpq's keywords for them, and whether the value may be shown.
const PARTS: [(&str, &str); 9] = [
    ("database.hostname", "host"),
    ("database.port", "port"),
    ("database.dbname", "dbname"),
    ("database.user", "user"),
    ("database.password", "password"),
    ("database.sslmode", "sslmode"),
    ("database.sslrootcert", "sslrootcert"),
    ("database.sslcert", "sslcert"),
    ("database.sslkey", "sslkey"),
];

impl Translator {
    /// Makes one connection string. As always, the environment fills in what it leaves out.
    pub(super) fn database(&mut self) {
        let mut parts = Vec::new();
        for (key, keyword) in PARTS {
            if let Some(value) = self.configuration.connector.take_filled(key) {
                parts.push((keyword, value));
            }
        }
        match self.configuration.connector.take("database.tcpKeepAlive") {
            Some(off) if says(&off, "false") => {
                parts.push(("keepalives", Given { text: "0".to_owned(), origin: off.origin }));
            }
            on => self.not_needed(&on, NO_EFFECT),
        }
        self.check_tls(&parts);
        self.check_values(&mut parts);
        let Some(origin) = parts.first().map(|(_, value)| of_all(&value.origin)) else { return };
        let pairs = |shown: bool| {
            let pairs = parts.iter().filter(|(keyword, _)| !shown || *keyword != "password");
            pairs.map(|(keyword, value)| format!("{keyword}={}", quoted(&value.text))).collect::<Vec<_>>().join(" ")
        };
        let (values, shown) = (vec![pairs(false)], Some(vec![pairs(true)]));
        self.out.settings.insert("source", Setting { values, is_list: false, shown, origin });
        let password = parts.iter().find(|(keyword, _)| *keyword == "password").map(|(_, value)| value);
        let text = "the password is taken from the file and not shown; without the file: PGPASSWORD or ~/.pgpass";
        self.not_needed(password, text);
    }

    /// Refuses values that libpq would refuse without naming the key.
    fn check_values(&mut self, parts: &mut [(&str, Given)]) {
        for (keyword, value) in parts {
            let text = value.text.trim().to_ascii_lowercase();
            match *keyword {
                // Debezium takes these values in any case.
                "sslmode" if SSL_MODES.contains(&text.as_str()) => value.text = text,
                "sslmode" => self.refuse(&*value, format!("\"{text}\" is none of {}", SSL_MODES.join(", "))),
                "port" if text.parse::<u16>().is_ok_and(|port| port > 0) => value.text = text,
                "port" => self.refuse(&*value, format!("\"{text}\" is not a port: 1 to 65535")),
                _ => {}
            }
        }
    }

    fn check_tls(&mut self, parts: &[(&str, Given)]) {
        let key = parts.iter().find(|(keyword, value)| *keyword == "sslkey" && is_der(&value.text));
        self.refuse(
            key.map(|(_, key)| key),
            "Java's drivers read keys in DER, here PEM is wanted: openssl pkcs8 -inform DER -nocrypt",
        );
        let password = self.configuration.connector.take_filled("database.sslpassword");
        self.refuse(&password, "encrypted keys cannot be read: give an unencrypted one that only this user may read");
        let factory = self.configuration.connector.take_filled("database.sslfactory");
        self.warn(&factory, "a Java class that makes TLS connections; TLS is made as sslmode says");
    }

    pub(super) fn slot(&mut self) {
        let connector = &mut self.configuration.connector;
        let class = connector.take("connector.class");
        let plugin = connector.take_filled("plugin.name");
        let slot = connector.take_filled("slot.name");
        let publication = connector.take_filled("publication.name");
        let drop = connector.take("slot.drop.on.stop");
        match class {
            // Kafka Connect also takes short names of its plugins' classes.
            Some(class) if ["PostgresConnector", "Postgres"].contains(&class_name(&class.text)) => {
                self.not_needed(&class, "the same job");
            }
            class => {
                let text = "this is not a PostgreSQL connector (io.debezium.connector.postgresql.PostgresConnector)";
                self.refuse(&class, text);
            }
        }
        match plugin {
            Some(plugin) if plugin.text.trim() == "pgoutput" => {
                self.not_needed(&plugin, "the same plugin is read");
            }
            Some(plugin) => self.refuse(&plugin, NO_PGOUTPUT),
            None => self
                .refuse_missing("plugin.name", &format!("it is missing, so Debezium used decoderbufs: {NO_PGOUTPUT}")),
        }
        self.named("slot", slot, "debezium");
        self.named("publication", publication, "dbz_publication");
        match drop {
            Some(drop) if says(&drop, "true") => self.refuse(&drop, DROPS_SLOT),
            keep => self.not_needed(&keep, NO_EFFECT),
        }
    }

    /// Sets a name: the given one, or Debezium's default.
    fn named(&mut self, setting: &'static str, given: Option<Given>, default: &str) {
        match given {
            Some(value) => self.set(setting, value.text.trim().to_owned(), &value.origin),
            None => self.set(setting, default, &Origin::foreign(format!("Debezium's default {setting}"))),
        }
    }

    /// If every entry is one plain name, they become `--table`. Else the list of expressions stays.
    pub(super) fn tables(&mut self) {
        let lists = [
            ("schema.include.list", List::IncludeSchemas),
            ("schema.exclude.list", List::ExcludeSchemas),
            ("table.include.list", List::IncludeTables),
            ("table.exclude.list", List::ExcludeTables),
            ("column.include.list", List::IncludeColumns),
            ("column.exclude.list", List::ExcludeColumns),
        ];
        for (key, list) in lists {
            let Some(value) = self.configuration.connector.take_filled(key) else { continue };
            let is_of_columns = matches!(list, List::IncludeColumns | List::ExcludeColumns);
            let mut of_columns = TablePatterns::default();
            let patterns = if is_of_columns { &mut of_columns } else { &mut self.out.tables };
            if let Err((expression, problem)) = patterns.add(list, &value.text) {
                let problem = problem.to_string();
                let last = problem.lines().last().unwrap_or_default();
                self.refuse(&value, format!("{expression:?} is not a regular expression: {last}"));
            } else if is_of_columns {
                self.out.connect.columns.push((list, value.text.clone()));
                self.not_needed(
                    &value,
                    "honoured: a column that is not captured is as if the table had none of that name",
                );
            }
            if let Some(tables) = plain_names(&value.text).filter(|_| list == List::IncludeTables) {
                let text = format!(
                    "as expressions over the publication's tables; close to --table {}",
                    tables.join(" --table ")
                );
                self.not_needed(&value, text);
            }
        }
    }
}

const DROPS_SLOT: &str = "Debezium drops the slot when it stops, and with it the place to resume from; set it to false and restart Debezium before it is stopped for good";

const NO_PGOUTPUT: &str = "the slot must be one of the plugin pgoutput: set plugin.name=pgoutput in Debezium, with a new slot, and let it run until the old slot is read";

const SSL_MODES: [&str; 6] = ["disable", "allow", "prefer", "require", "verify-ca", "verify-full"];

/// The origin of a setting that comes from several keys.
fn of_all(first: &Origin) -> Origin {
    match first {
        Origin::Translated(key) => {
            let prefix = key.name.rsplit_once("database.").map_or("", |(prefix, _)| prefix);
            Origin::Translated(Box::new(Foreign { name: format!("{prefix}database.*"), ..Foreign::clone(key) }))
        }
        Origin::Flag(_) | Origin::FlagFile(_) | Origin::Variable(_) | Origin::Key(_) => first.clone(),
    }
}

fn is_der(file: &str) -> bool {
    let file = file.to_ascii_lowercase();
    [".pk8", ".der"].iter().any(|ending| file.ends_with(ending))
}

/// Quotes a text as libpq's keyword strings need it.
fn quoted(text: &str) -> String {
    let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._/:".contains(&byte));
    if plain { text.to_owned() } else { format!("'{}'", text.replace('\\', r"\\").replace('\'', r"\'")) }
}

/// The names of a list that has no sign of an expression but the dot. `None`: it has other signs.
fn plain_names(list: &str) -> Option<Vec<String>> {
    let names = list.split(',').map(|name| name.trim().replace(r"\.", "."));
    let plain = |name: &String| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.".contains(&byte));
    names.map(|name| plain(&name).then_some(name)).collect()
}
