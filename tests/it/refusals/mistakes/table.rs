//! The mistakes: how each is made, and where its hint asks for more than a command, in which words and what a person then does.

use postgres::NoTls;

use super::place::Place;
use crate::secure;

/// What a mistake is about. Two about the same thing cannot both be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Password,
    User,
    Login,
    Database,
    Port,
    Tls,
    Publication,
    PublicationName,
    Slot,
    SlotName,
    Columns,
    Table,
    Header,
    Topic,
    KafkaPassword,
    KafkaUser,
    Mechanism,
    Authority,
    Door,
}

/// A hint's words, or several in place of one another, with `|` between them; and what they ask a person for.
type ByHand = (&'static str, fn(&mut Place));

pub(super) struct Mistake {
    pub(super) name: &'static str,
    pub(super) part: Part,
    /// Where it is made; `None`: where everything else is as it should be.
    pub(super) place: Option<fn() -> Place>,
    pub(super) make: fn(&mut Place),
    /// `None`: its hint is SQL or a command, and all that it needs.
    pub(super) by_hand: Option<ByHand>,
}

const fn by_command(name: &'static str, part: Part, make: fn(&mut Place)) -> Mistake {
    Mistake { name, part, place: None, make, by_hand: None }
}

const fn by_hand(
    name: &'static str,
    part: Part,
    make: fn(&mut Place),
    words: &'static str,
    hand: fn(&mut Place),
) -> Mistake {
    Mistake { name, part, place: None, make, by_hand: Some((words, hand)) }
}

/// Nothing listens there.
const NOBODY: &str = "1";

pub(super) const ALL: [Mistake; 39] = [
    // Who comes in.
    by_hand(
        "wrong-password",
        Part::Password,
        |place| {
            place.environment.insert("PGPASSWORD", "hunter2".to_owned());
        },
        "PGPASSWORD",
        Place::right_password,
    ),
    by_hand(
        "no-password",
        Part::Password,
        |place| {
            place.environment.remove("PGPASSWORD");
        },
        "PGPASSWORD",
        Place::right_password,
    ),
    by_hand(
        "wrong-user",
        Part::User,
        |place| place.in_source("_role@", "_rule@"),
        "the role does not exist",
        |place| {
            place.in_source("_rule@", "_role@");
        },
    ),
    by_hand(
        "role-without-login",
        Part::Login,
        |place| place.sql(&format!("ALTER ROLE {} NOLOGIN", place.role)),
        "may not log in",
        |place| {
            place.sql(&format!("ALTER ROLE {} LOGIN", place.role));
        },
    ),
    by_command("role-without-replication", Part::User, |place| {
        place.sql(&format!("ALTER ROLE {} NOREPLICATION", place.role));
    }),
    // Where to.
    by_hand(
        "wrong-database",
        Part::Database,
        |place| {
            let name = place.lane().name.clone();
            place.in_source(&format!("/{name}?"), &format!("/{name}x?"));
        },
        "postgres://user@host/DATABASE",
        |place| {
            let name = place.lane().name.clone();
            place.in_source(&format!("/{name}x?"), &format!("/{name}?"));
        },
    ),
    by_hand(
        "no-database",
        Part::Database,
        |place| {
            let name = place.lane().name.clone();
            place.in_source(&format!("/{name}?"), "?");
        },
        "postgres://user@host/DATABASE",
        |place| {
            let name = place.lane().name.clone();
            place.in_source("?", &format!("/{name}?"));
        },
    ),
    by_hand(
        "other-database",
        Part::Database,
        |place| {
            let name = place.lane().name.clone();
            place.in_source(&format!("/{name}?"), "/postgres?");
        },
        "connect to that database|and the database in --source",
        |place| {
            let name = place.lane().name.clone();
            place.in_source("/postgres?", &format!("/{name}?"));
        },
    ),
    by_hand(
        "wrong-port",
        Part::Port,
        |place| {
            let port = place.port();
            place.in_source(&format!(":{port}"), &format!(":{NOBODY}"));
        },
        "is the address right?",
        |place| {
            let port = place.port();
            place.in_source(&format!(":{NOBODY}"), &format!(":{port}"));
        },
    ),
    by_hand(
        "pooler-in-between",
        Part::Port,
        |place| {
            let (port, pooler) = (place.port(), place.pool());
            place.in_source(&format!(":{port}"), &format!(":{pooler}"));
        },
        "use the direct port",
        |place| {
            let (port, pooler) = (place.port(), place.pooler());
            place.in_source(&format!(":{pooler}"), &format!(":{port}"));
        },
    ),
    by_hand(
        "authority-of-postgres-unknown",
        Part::Tls,
        |place| place.in_source("sslmode=require", "sslmode=verify-full"),
        "sslrootcert=",
        |place| {
            let file = place.authority_of_postgres();
            place.in_source("sslmode=verify-full", &format!("sslmode=verify-full&sslrootcert={file}"));
        },
    ),
    by_hand(
        "no-tls-where-the-server-wants-it",
        Part::Tls,
        |place| {
            place.in_source("sslmode=require", "sslmode=disable");
            place.sql(&format!("GRANT encrypted TO {0}; REVOKE rotating FROM {0}", place.role));
        },
        "sslmode=require",
        |place| place.in_source("sslmode=disable", "sslmode=require"),
    ),
    by_hand(
        "unknown-keyword",
        Part::Tls,
        |place| place.in_source("sslmode=", "sslmod="),
        "sslmode",
        |place| {
            place.in_source("sslmod=", "sslmode=");
        },
    ),
    // What is read.
    Mistake {
        place: Some(Place::without_logical_decoding),
        ..by_hand("wal-level-is-replica", Part::Slot, |_| {}, "then restart Postgres", Place::restart_postgres)
    },
    by_command("no-publication", Part::Publication, |place| {
        place.sql(&format!("DROP PUBLICATION {}", place.lane().name));
    }),
    by_command("publication-without-tables", Part::Publication, |place| {
        place.sql(&format!("ALTER PUBLICATION {} DROP TABLE outbox", place.lane().name));
    }),
    by_command("publication-without-inserts", Part::Publication, |place| {
        place.sql(&format!("ALTER PUBLICATION {} SET (publish = 'delete')", place.lane().name));
    }),
    by_command("publication-of-another-table", Part::Publication, |place| {
        place.sql(&format!(
            "CREATE TABLE returns (LIKE outbox); ALTER PUBLICATION {} SET TABLE returns",
            place.lane().name
        ));
    }),
    by_command("publication-of-all-tables", Part::Publication, |place| {
        place.sql(&format!(
            "DROP PUBLICATION {name}; CREATE PUBLICATION {name} FOR ALL TABLES WITH (publish = 'insert')",
            name = place.lane().name
        ));
    }),
    by_command("column-list-hides-the-payload", Part::Publication, |place| {
        list_columns(place, "id, aggregatetype, aggregateid, type");
    }),
    by_command("column-list-hides-the-key", Part::Publication, |place| {
        list_columns(place, "id, aggregatetype, type, payload");
    }),
    by_command("publication-misspelt", Part::PublicationName, |place| {
        let wrong = format!("{}s", place.lane().name);
        place.flag("--publication", &wrong);
    }),
    by_command("no-slot", Part::Slot, |place| place.lane().drop_slot(&place.lane().name)),
    by_command("slot-of-another-kind", Part::Slot, |place| {
        let name = place.lane().name.clone();
        place.lane().drop_slot(&name);
        place.sql(&format!("SELECT pg_create_physical_replication_slot('{name}')"));
    }),
    by_command("slot-of-another-database", Part::Slot, |place| {
        let name = place.lane().name.clone();
        place.lane().drop_slot(&name);
        let elsewhere = place.lane().source.replace(&name, "postgres");
        let mut client = postgres::Client::connect(&elsewhere, NoTls).unwrap();
        client.batch_execute(&format!("SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')")).unwrap();
    }),
    by_command("slot-misspelt", Part::SlotName, |place| {
        let wrong = format!("{}s", place.lane().name);
        place.flag("--slot", &wrong);
    }),
    by_command("table-misspelt", Part::Table, |place| place.flag("--table", "outbx")),
    by_command("key-column-misspelt", Part::Columns, |place| place.flag("--key-column", "agregateid")),
    by_command("header-column-misspelt", Part::Header, |place| place.flag("--header", "kind=typ")),
    by_command("topic-of-no-column", Part::Topic, |place| {
        let wrong = place.lane().topic("{aggregattype}");
        place.flag("--topic", &wrong);
    }),
    by_hand(
        "topic-not-closed",
        Part::Topic,
        |place| {
            let wrong = place.lane().topic("{route");
            place.flag("--topic", &wrong);
        },
        "{route}",
        |place| {
            let right = place.lane().topic("{route}");
            place.flag("--topic", &right);
        },
    ),
    // Where it goes.
    by_hand(
        "wrong-kafka-password",
        Part::KafkaPassword,
        |place| {
            place.environment.insert("WALRELAY_KAFKA_SASL_PASSWORD", "hunter2".to_owned());
        },
        "WALRELAY_KAFKA_SASL_PASSWORD",
        |place| {
            place.environment.insert("WALRELAY_KAFKA_SASL_PASSWORD", secure::PASSWORD.to_owned());
        },
    ),
    by_command("user-without-rights", Part::KafkaUser, |place| place.property("sasl.username", "nobody")),
    by_command("topic-missing", Part::KafkaUser, |place| place.property("sasl.username", "creates_nothing")),
    by_hand(
        "mechanism-not-offered",
        Part::Mechanism,
        |place| place.property("sasl.mechanism", "PLAIN"),
        "sasl.mechanism",
        right_mechanism,
    ),
    by_hand(
        "mechanism-missing",
        Part::Mechanism,
        |place| place.without_property("sasl.mechanism"),
        "-X sasl.mechanism=",
        right_mechanism,
    ),
    by_hand(
        "authority-of-kafka-unknown",
        Part::Authority,
        |place| place.without_property("ssl.ca.location"),
        "ssl.ca.location=",
        |place| {
            place.property("ssl.ca.location", &secure::kafka().file("right.pem"));
        },
    ),
    by_command("login-to-a-plain-listener", Part::Door, |place| {
        place.flag("--brokers", &secure::kafka().kafka.brokers());
    }),
    by_command("plain-to-a-listener-with-login", Part::Door, |place| place.property("security.protocol", "PLAINTEXT")),
];

fn right_mechanism(place: &mut Place) {
    place.property("sasl.mechanism", "SCRAM-SHA-256");
}

fn list_columns(place: &Place, columns: &str) {
    place.sql(&format!("ALTER PUBLICATION {} SET TABLE outbox ({columns})", place.lane().name));
}
