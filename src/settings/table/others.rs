//! The flags of the commands beside `run`, a module for each. The doc comment of a row is its help text. A row made of one of `run`
//! has the command's own words for it.

#![allow(clippy::wildcard_imports, reason = "the modules here use the same names")]

use super::form::{ANY_DURATION, Number, Words, any, name, rate, size, table};
use super::run::{self, FILE, LOGGING, SLOTS, SOURCES};
use super::{Setting, SettingGroup, flag, many, one, settings};
use crate::http::HttpAddress;
use crate::outbox::TableName;
use crate::setting_text::Given;
use std::num::NonZeroU32;
use std::time::Duration;

// The destination of commands that publish something else than a run's rows.
settings! { DESTINATION "Destination":
    /// Where records go, as for run
    TO: Given = run::TO;

    /// Kafka's bootstrap servers, HOST:PORT with commas between them
    BROKERS: Given = run::BROKERS;

    /// A property of the destination, as for run; repeatable
    PROPERTY: Given = run::PROPERTY;
}

settings! { IN_FLIGHT "Operation":
    /// Bytes in flight to the destination, as for run
    MAX_IN_FLIGHT: usize = run::MAX_IN_FLIGHT;
}

pub(crate) mod check {
    use super::*;

    settings! { FLAGS "":
        /// Print JSON: `verdict`, `findings` (side, check, level, finding, why, fix), `tables`
        JSON: bool = flag("json");
    }
}

pub(crate) mod setup {
    use super::*;
    use crate::pg::shard::MOST;

    pub(crate) const ALL: &[SettingGroup] = &[FLAGS, SHARED, SOURCES, SLOTS, TABLES, FILE, LOGGING];

    const SHARD_COUNT: Number<u8> = Number(1, MOST, "a number of shards from 1 to 16");

    settings! { FLAGS "":
        /// Run the SQL instead of printing it
        APPLY: bool = flag("apply");

        /// Create the slot so that it survives a failover (Postgres 17 and later)
        FAILOVER: bool = flag("failover");

        /// Also create a role with this name that has the rights to run the relay and no others
        ROLE: String = one("role", "NAME", &name);

        /// Also create the table named by the first --table, if it does not exist
        CREATE_TABLE: bool = flag("create-table");

        /// With --apply, go on although the slot was lost: create it again, or mark the one that is there. No table is known then
        AFTER_LOSS: bool = flag("after-loss");

        /// With --apply, only record that all rows of the tables that --table names are published, so that prune may delete them
        PUBLISHED: bool = flag("published").excludes(&["shards", "reshard", "backfill", "after-loss"]).requires(&["apply"]);

        /// With --published or --backfill, do not ask
        YES: bool = flag("yes");

        /// After --apply, publish the rows that are there already, by the settings of `run` in the environment and the file; with flags
        /// of `run`, use walrelay backfill --setup
        BACKFILL: bool = flag("backfill").requires(&["apply"]);

        /// Print JSON: with --apply a line for each step, else one object with `steps` (do, sql, about), `notes`, `next`, or the
        /// `script` of shards
        JSON: bool = flag("json").excludes(&["backfill"]);
    }

    settings! { SHARED "Shards":
        /// Publications, slots and marks for N relays that share the rows by a hash of the key, 1 to 16 (Postgres 15 and later)
        SHARDS: u8 = one("shards", "N", &SHARD_COUNT).excludes(&["reshard", "backfill", "create-table", "role"]);

        /// Move the rows of the shards that are there, or of the one slot, over to N shards: the old relays publish what was committed
        /// before, then the new ones begin. The old slots and publications are dropped
        RESHARD: u8 = one("reshard", "N", &SHARD_COUNT).excludes(&["backfill", "create-table", "role"]);

        /// With --reshard, a slot that may be read with an old publication as well; repeatable
        ALSO_READ_BY: Given = many("also-read-by", "SLOT").requires(&["reshard"]);

        /// Column of the key that is hashed, as for run; empty for records without keys
        KEY_COLUMN: String = run::KEY_COLUMN.or("aggregateid, aggregate_id");

        /// Column of the id that is hashed where the key is null, as for run
        ID_COLUMN: String = run::ID_COLUMN;
    }

    settings! { TABLES "Postgres":
        /// An outbox table, SCHEMA.TABLE or a TABLE of schema public; needed to create the publication; repeatable
        TABLE: Given = run::TABLE.or("");
    }
}

pub(crate) mod status {
    use super::*;

    pub(crate) const ALL: &[SettingGroup] = &[FLAGS, SOURCES, SLOTS, OPERATION, FILE, LOGGING];

    settings! { FLAGS "":
        /// Print JSON
        JSON: bool = flag("json");

        /// Print again every two seconds
        WATCH: bool = flag("watch");

        /// Show every shard, and the slot without shards if it is there
        EVERY_SHARD: bool = flag("all").excludes(&["watch"]);

        /// Ask only whether the relay on this machine is ready (/readyz): exit 0 or 1
        READY: bool = flag("ready").excludes(&["json", "watch", "all"]);
    }

    settings! { OPERATION "Operation":
        /// Where the relay on this machine serves HTTP
        HTTP: Option<HttpAddress> = run::HTTP;
    }
}

pub(crate) mod teardown {
    use super::*;

    pub(crate) const ALL: &[SettingGroup] = &[FLAGS, SOURCES, SLOTS, FILE, LOGGING];

    settings! { FLAGS "":
        /// Also drop the publication
        PUBLICATION_TOO: bool = flag("publication-too");

        /// Drop the slots and publications of the N shards
        SHARDS: u8 = one("shards", "N", setup::SHARDS.form);

        /// Also drop a slot that no setup marker of the database names: another program may read it
        UNMARKED: bool = flag("unmarked");

        /// With --publication-too, a slot that may be read with the publication as well; repeatable
        ALSO_READ_BY: Given = many("also-read-by", "SLOT");

        /// Do not ask
        YES: bool = flag("yes");
    }
}

pub(crate) mod bench {
    use super::*;
    use crate::commands::bench::PayloadType;

    pub(crate) const ALL: &[SettingGroup] = &[
        FLAGS,
        OWN_SOURCE,
        &[&run::SOURCE_PASSWORD_FILE, &run::SOURCE_PASSWORD_COMMAND],
        DESTINATION,
        PAUSE,
        IN_FLIGHT,
        FILE,
        LOGGING,
    ];

    settings! { FLAGS "":
        /// Rows in the backlog
        ROWS: u64 = one("rows", "N", &Number(1, 1_000_000_000, "a whole number, 1 to 1000000000")).or("200000");

        /// Size of a payload as text
        PAYLOAD_BYTES: usize = one("payload-bytes", "SIZE", &size(1, 100 << 20, ", at most 100MiB")).or("300");

        /// Type of the payload's column: jsonb, json, text or bytea
        PAYLOAD_TYPE: PayloadType = one("payload-type", "TYPE", &Words(&[
            ("jsonb", PayloadType::Jsonb), ("json", PayloadType::Json),
            ("text", PayloadType::Text), ("bytea", PayloadType::Bytea),
        ])).or("jsonb");

        /// Rows to a transaction
        ROWS_PER_TRANSACTION: u64 = one("rows-per-transaction", "N", ROWS.form).or("10");

        /// Partitions of the topic
        PARTITIONS: i32 = one("partitions", "N", &Number(1, 10_000, "a whole number, 1 to 10000")).or("12");

        /// Where records end: kafka for the destination, or null to discard them
        SINK: bool = one("sink", "WHERE", &Words(&[("kafka", true), ("null", false)])).or("kafka");

        /// Single-row transactions a second in the steady phase
        RATE: u32 = one("rate", "N", &Number(1, 1_000_000, "a whole number, 1 to 1000000")).or("200");

        /// How many seconds the steady phase takes; 0 for none
        SECONDS: u32 = one("seconds", "N", &Number(0, 86_400, "a whole number, at most 86400")).or("10");

        /// Print JSON
        JSON: bool = flag("json");
    }

    settings! { OWN_SOURCE "Postgres":
        /// Connection URI or keyword string, as for run
        SOURCE: Given = run::SOURCE.or("");
    }

    settings! { PAUSE "Operation":
        /// Pause after a short read before the next, as for run
        COALESCE: Duration = run::COALESCE;
    }
}

pub(crate) mod dead_letters {
    use super::*;

    pub(crate) const ALL: &[SettingGroup] = &[FLAGS, DESTINATION, IN_FLIGHT, FILE, LOGGING];

    settings! { FLAGS "":
        /// Publish them again, each to the topic that it was meant for
        REPLAY: bool = flag("replay").excludes(&["show"]);

        /// Show each record whole: key, headers and payload, too
        SHOW: bool = flag("show");

        /// Only records with this id; repeatable
        ID: Given = many("id", "ID").or("all");

        /// Also those that were published again before
        AGAIN: bool = flag("again");

        /// Topic for records whose own topic is unknown or no valid name, with --replay
        DEFAULT_TOPIC: Given = one("default-topic", "TOPIC", &any).or("they stay").requires(&["replay"]);

        /// Print JSON lines: at, time, id, table, position, topic, partition, error, left_out_bytes, replayed; with --show also key,
        /// headers, payload, base64; with --replay those that fail, with failure, and at the end replayed, failed
        JSON: bool = flag("json");

        /// The dead-letter topic, as for run
        DEAD_LETTER_TOPIC: Given = run::DEAD_LETTER_TOPIC.aliases(&["topic"]);

        /// The relay's slot, after which the dead-letter topic is named
        SLOT: String = run::SLOT;
    }
}

pub(crate) mod backfill {
    use super::*;

    settings! { FLAGS "":
        /// Which rows, as SQL: "status = 'PENDING'"
        WHERE: Given = one("where", "SQL", &any).or("all");

        /// Column that rows are ordered by before their key; an index that begins with it spares sorting
        ORDER_BY: String = one("order-by", "COLUMN", &name).or("the key");

        /// Rows a second at most: 500 or 500/s
        RATE: NonZeroU32 = one("rate", "N/s", &rate).or("no limit");

        /// Rows read by one statement
        CHUNK: u32 = prune::CHUNK;

        /// Begin with the first row, whatever was published before
        AGAIN: bool = flag("again");

        /// Do not ask whether rows may come a second time
        YES: bool = flag("yes");

        /// Run the relay once all rows are published, so that existing rows of a key come before new ones
        THEN_RUN: bool = flag("then-run");
    }
}

pub(crate) mod prune {
    use super::*;

    pub(crate) const ALL: &[SettingGroup] = &[FLAGS, SOURCES, SLOTS, TABLES, FILE, LOGGING];

    settings! { FLAGS "":
        /// How old a row has to be, at least a minute: 7d, 12h (units us, ms, s, min, h, d)
        OLDER_THAN: Duration = one("older-than", "DURATION", &ANY_DURATION);

        /// Only say how many rows would be deleted
        DRY_RUN: bool = flag("dry-run");

        /// Keep running, with this pause between two rounds
        EVERY: Duration = one("every", "DURATION", &ANY_DURATION);

        /// Column that says how old a row is
        AGE_COLUMN: String = one("age-column", "COLUMN", &name)
            .or("created_at, createdat, timestamp, occurred_at, else the commit's time if the server tracks it");

        // With more, the statement that lists them becomes too long.
        /// Rows deleted in one transaction
        CHUNK: u32 = one("chunk", "ROWS", &Number(1, 100_000, "a number of rows from 1 to 100000")).or("2000");

        /// Put rows into this table before they are deleted; it has all columns of the outbox table
        ARCHIVE_TO: TableName = one("archive-to", "TABLE", &table).excludes(&["partitions"]);

        /// How long to wait for the slot to confirm, while its relay is stopped
        TIMEOUT: Duration = one("timeout", "DURATION", &ANY_DURATION).or("indefinitely");

        /// Detach and drop partitions that are old as a whole, once they are delivered
        PARTITIONS: bool = flag("partitions");

        /// Print JSON lines: for each table its rows that were `deleted` and those that were `left`, or are `old`; rows that the relay
        /// `skipped`; for each partition the `result`
        JSON: bool = flag("json");
    }

    settings! { TABLES "Postgres":
        /// Only this table, SCHEMA.TABLE or a TABLE of schema public; repeatable
        TABLE: Given = run::TABLE.or("every table that the relay reads");
    }
}
