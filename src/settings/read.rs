//! Reads the settings of each command: turns their texts into values.
//!
//! In: the switches of one command, and the [`Layers`] of all other settings, whose first layer is the command's other flags. Out: that
//! command's request. One function checks all values of a kind. An error names the setting, and where it was given.

use std::num::NonZeroU32;
use std::time::Duration;

use tracing_subscriber::EnvFilter;

use super::cli::{BackfillArgs, PruneArgs, SetupArgs, StatusArgs, TeardownArgs};
use super::layers::Layers;
use super::names;
use super::review::Review;
use super::{LogConfig, LogFormat, Task};
use crate::commands::run::{Limits, OnStop};
use crate::commands::{OutboxPlace, backfill, check, prune, run, setup, status, teardown};
use crate::http::{HttpAddress, nearest_http};
use crate::lsn::Lsn;
use crate::outbox::table_name::is_name;
use crate::outbox::{TableName, TablePatterns};
use crate::pg::source::{PasswordSetting, Source, SourceError, SourcePart};
use crate::secret::{Secret, SecretCommand};
use crate::setting_text::{Given, Origin, SettingError, nearest, shown_source, units};
use crate::sink::destination::Delivery;

/// The name of slot and publication where none is given.
const DEFAULT_NAME: &str = "walrelay";

/// The time between two reports of `status --watch`.
const WATCH_EVERY: Duration = Duration::from_secs(2);

const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

const DELIVERIES: [(&str, Delivery); 2] =
    [("at-least-once", Delivery::AtLeastOnce), ("exactly-once", Delivery::ExactlyOnce { one_replica: false })];

const ORIGINS: [(&str, bool); 2] = [("any", false), ("local", true)];

const ON_STOP: [(&str, OnStop); 2] = [("exit", OnStop::Exit), ("hold", OnStop::Hold)];

/// The largest limit of librdkafka's queue, which takes KiB in 31 bits.
const LARGEST_IN_FLIGHT: usize = 0x7FFF_FFFF << 10;

/// Reads one command's settings.
pub(super) struct SettingsReader<'a> {
    pub(super) layers: Layers<'a>,
    pub(super) warnings: Vec<String>,
}

/// The settings that every command but `completions` needs.
pub(super) struct SlotSettings {
    source: Source,
    pub(super) publication: String,
    pub(super) slot: String,
}

/// Names the setting that an error about the source is in. `text`: where the connection string was given.
fn wrong_source(error: SourceError, text: Option<&Origin>) -> SettingError {
    let origin = match (&error.part, text) {
        (SourcePart::Text, Some(origin)) => origin.to_string(),
        (place, _) => place.to_string(),
    };
    SettingError::new(origin).with_hint(error.problem.hint.clone()).caused_by(error)
}

impl SettingsReader<'_> {
    pub(super) fn log(&self) -> Result<LogConfig, SettingError> {
        let formats = [("text", LogFormat::Text), ("json", LogFormat::Json)];
        Ok(LogConfig { format: self.one_of("log-format", &formats)?.unwrap_or_default(), filter: self.filter()? })
    }

    pub(super) fn run(&mut self) -> Result<run::RunRequest, SettingError> {
        self.debezium_configuration()?;
        let place = self.place()?;
        let shard = self.shard(&place)?;
        let SlotSettings { source, publication, slot } = place;
        let limits = self.limits()?;
        let NamedTables { tables, without_children } = self.tables()?;
        let destination = self.destination(limits.max_in_flight)?;
        let bad_rows = self.bad_rows(&slot, destination.kind())?;
        let delivery = self.delivery()?;
        self.asks_what_it_can(destination.kind(), delivery)?;
        let registry = self.registry()?;
        // Dead-letter records of all shards have one place, so bad rows were read with the common name.
        let name = |whole: String| shard.map(|shard| shard.name(&whole)).unwrap_or(whole);
        Ok(run::RunRequest {
            source,
            publication: name(publication),
            slot: name(slot),
            shard,
            setup: self.layers.is_on("setup")?,
            table_patterns: self.table_patterns(&tables),
            tables,
            without_children,
            only_local: self.one_of("origin", &ORIGINS)?.unwrap_or_default(),
            accept_slot_at: self.lsn("accept-slot-at")?,
            dry_run: self.layers.is_on("dry-run")?,
            mapping: self.mapping(destination.as_ref())?,
            registry,
            destination,
            bad_rows,
            delivery,
            on_stop: self.one_of("on-stop", &ON_STOP)?.unwrap_or_default(),
            http: self.http()?,
            limits,
        })
    }

    fn delivery(&self) -> Result<Delivery, SettingError> {
        let one_replica = self.layers.is_on("accept-one-replica")?;
        Ok(match self.one_of("delivery", &DELIVERIES)?.unwrap_or_default() {
            Delivery::AtLeastOnce => Delivery::AtLeastOnce,
            Delivery::ExactlyOnce { .. } => Delivery::ExactlyOnce { one_replica },
        })
    }

    /// Checks that walrelay can run the files of `--from-debezium`.
    fn debezium_configuration(&mut self) -> Result<(), SettingError> {
        let accept = self.layers.is_on("accept-differences")?;
        let Some(translation) = self.layers.translation() else { return Ok(()) };
        translation.verdict(accept)?;
        self.warnings.extend(translation.warnings());
        Ok(())
    }

    /// The settings of `run`, which `check` checks. With `--from-debezium`: the report about its files, and whether `run` would accept them.
    pub(super) fn check(&mut self, json: bool) -> Result<Task, SettingError> {
        let Some(translation) = self.layers.translation() else {
            return Ok(Task::Check(Box::new(check::CheckRequest { config: self.run()?, json })));
        };
        let accept = self.layers.is_on("accept-differences")?;
        let report = translation.report(&self.layers.debezium_files(), accept);
        let told = self.warnings.len();
        let verdict = self.run().map(drop);
        // The report has the warnings about the files.
        self.warnings.truncate(told);
        Ok(Task::CheckDebezium(Box::new(Review { report, verdict })))
    }

    /// The expressions of Debezium's settings that choose tables. Tables that are named one by one replace them.
    fn table_patterns(&self, tables: &[TableName]) -> TablePatterns {
        let patterns = self.layers.translation().filter(|_| tables.is_empty()).map(|old| old.tables().clone());
        patterns.unwrap_or_default()
    }

    pub(super) fn setup(&mut self, args: &SetupArgs) -> Result<Task, SettingError> {
        let place = self.place()?;
        let shards = self.shards(&place)?;
        let SlotSettings { source, publication, slot } = place;
        let backfill = args.backfill.then(|| self.backfill_after_setup(args.yes)).transpose()?;
        let NamedTables { tables, without_children } = self.tables()?;
        let request = setup::SetupRequest {
            source,
            publication,
            slot,
            tables,
            without_children,
            apply: args.apply,
            failover: args.failover,
            role: self.name("role")?,
            create_table: args.create_table,
            shards,
            after_loss: args.after_loss,
            published: args.published,
            yes: args.yes,
            json: args.json,
            also_read_by: self.layers.flags.all("also-read-by").to_vec(),
            typed_source: self.typed_source(),
        };
        Ok(Task::Setup(request.into(), backfill.map(Box::new)))
    }

    /// The backfill of `setup --backfill`. It reads the settings of `run`, except for the columns of shards.
    fn backfill_after_setup(&mut self, yes: bool) -> Result<backfill::BackfillRequest, SettingError> {
        for flag in ["key-column", "id-column"] {
            self.layers.flags.forget(flag);
        }
        let request = self.backfill(&BackfillArgs::after_setup(yes))?;
        // Each setting is read twice, and so is each warning.
        self.warnings.dedup();
        Ok(request)
    }

    pub(super) fn backfill(&mut self, args: &BackfillArgs) -> Result<backfill::BackfillRequest, SettingError> {
        self.no_shard()?;
        Ok(backfill::BackfillRequest {
            run: self.run()?,
            condition: self.layers.flags.last("where").map(str::to_owned),
            order: self.name("order-by")?,
            rate: self.layers.one("rate")?.map(|given| rate(&given)).transpose()?,
            chunk: self.chunk()?,
            again: args.again,
            yes: args.yes,
            then_run: args.then_run,
        })
    }

    pub(super) fn status(&mut self, args: &StatusArgs) -> Result<status::StatusRequest, SettingError> {
        let SlotSettings { source, publication, slot } = self.place()?;
        let http = self.http()?.as_ref().map(HttpAddress::of_this_machine);
        Ok(status::StatusRequest {
            source,
            publication,
            slot,
            json: args.json,
            all: args.all,
            watch: args.watch.then_some(WATCH_EVERY),
            http,
        })
    }

    /// The HTTP address at which the relay says whether it is ready. No source is needed.
    pub(super) fn ready(&self) -> Result<String, SettingError> {
        let address = self.http()?;
        address.as_ref().map(HttpAddress::of_this_machine).ok_or_else(|| {
            SettingError::usage("--ready asks the relay's HTTP address, and that is off", "--http 127.0.0.1:9464")
        })
    }

    pub(super) fn teardown(&mut self, args: &TeardownArgs) -> Result<teardown::TeardownRequest, SettingError> {
        let SlotSettings { source, publication, slot } = self.place()?;
        let TeardownArgs { publication_too, yes, unmarked, .. } = *args;
        Ok(teardown::TeardownRequest {
            source,
            publication,
            slot,
            publication_too,
            shards: self.count("shards")?,
            yes,
            unmarked,
            also_read_by: self.layers.flags.all("also-read-by").to_vec(),
            typed_source: self.typed_source(),
        })
    }

    pub(super) fn prune(&mut self, args: &PruneArgs) -> Result<prune::PruneRequest, SettingError> {
        let SlotSettings { source, publication, slot } = self.place()?;
        let place = OutboxPlace { source, publication, slot, shard: None };
        let Some(older_than) = self.span("older-than")? else {
            return Err(SettingError::usage("prune needs --older-than", "walrelay prune --older-than 7d"));
        };
        if older_than < prune::LEAST_AGE {
            return Err(SettingError::usage(
                "--older-than is below a minute: such rows may not be published yet",
                "walrelay prune --older-than 1h",
            ));
        }
        Ok(prune::PruneRequest {
            place,
            tables: self.tables()?.tables,
            older_than,
            age_column: self.name("age-column")?,
            chunk: self.chunk()?,
            archive_to: self.layers.one("archive-to")?.as_ref().map(table).transpose()?,
            every: self.span("every")?,
            timeout: self.span("timeout")?,
            partitions: args.partitions,
            dry_run: args.dry_run,
            json: args.json,
        })
    }

    fn place(&mut self) -> Result<SlotSettings, SettingError> {
        Ok(SlotSettings {
            publication: self.name("publication")?.unwrap_or_else(|| DEFAULT_NAME.to_owned()),
            slot: self.slot()?,
            source: self.source()?,
        })
    }

    /// The connection string that was typed, without secrets. Hints repeat it in commands.
    fn typed_source(&self) -> Option<String> {
        self.layers.flags.last("source").map(shown_source)
    }

    /// The source. A text that begins with `@` names a file with the connection string.
    pub(super) fn source(&mut self) -> Result<Source, SettingError> {
        let database_url = || {
            let text = self.layers.environment.variable("DATABASE_URL")?.to_owned();
            Some(Given { text, origin: Origin::Variable("DATABASE_URL".to_owned()) })
        };
        let given = self.layers.one("source")?.or_else(database_url);
        let text = given.as_ref().map(|given| Secret::of_value(&given.text));
        let resolved = Source::resolve_from(text, self.source_password()?, self.layers.environment)
            .map_err(|error| wrong_source(error, given.as_ref().map(|given| &given.origin)))?;
        if resolved.password_in_text && matches!(given, Some(Given { origin: Origin::Flag(_), .. })) {
            self.warnings.push(VISIBLE_PASSWORD.to_owned());
        }
        self.warnings.extend(resolved.warnings);
        Ok(resolved.source)
    }

    fn source_password(&self) -> Result<Option<PasswordSetting>, SettingError> {
        match (self.layers.one("source-password-file")?, self.layers.one("source-password-command")?) {
            (None, None) => Ok(None),
            (Some(given), None) => {
                Ok(Some(PasswordSetting { name: "--source-password-file", secret: Secret::File(given.text.into()) }))
            }
            (None, Some(given)) => {
                let command = SecretCommand::parse(&given.text).map_err(|error| {
                    SettingError::usage(
                        format!("{}: {error}", given.origin),
                        "--source-password-command \"aws rds generate-db-auth-token --hostname …\"",
                    )
                })?;
                Ok(Some(PasswordSetting { name: "--source-password-command", secret: Secret::Command(command) }))
            }
            (Some(file), Some(command)) => Err(file.excludes(&command)),
        }
    }

    pub(super) fn slot(&self) -> Result<String, SettingError> {
        match self.layers.one("slot")? {
            None => Ok(DEFAULT_NAME.to_owned()),
            Some(given) if names::is_slot(&given.text) => Ok(given.text),
            Some(given) => Err(given.invalid(names::SLOT, names::nearest_slot(&given.text))),
        }
    }

    /// The name of a column, a publication or a role, as it was typed.
    pub(super) fn name(&self, setting: &str) -> Result<Option<String>, SettingError> {
        self.layers.one(setting)?.map(name).transpose()
    }

    fn tables(&mut self) -> Result<NamedTables, SettingError> {
        let mut named = NamedTables::default();
        for given in self.layers.many("table") {
            let (table, only) = TableName::parse_only(&given.text).ok_or_else(|| given.invalid(names::TABLE, None))?;
            self.warnings.extend(folded(&given, &table, only));
            if only && !named.without_children.contains(&table) {
                named.without_children.push(table.clone());
            }
            if !named.tables.contains(&table) {
                named.tables.push(table);
            }
        }
        Ok(named)
    }

    fn http(&self) -> Result<Option<HttpAddress>, SettingError> {
        match self.layers.one("http")? {
            None => Ok(Some(HttpAddress::default())),
            Some(given) if given.text.trim().eq_ignore_ascii_case("off") => Ok(None),
            Some(given) => match HttpAddress::parse(&given.text) {
                Some(address) => Ok(Some(address)),
                None => Err(given.invalid(names::HTTP, nearest_http(&given.text))),
            },
        }
    }

    pub(super) fn limits(&self) -> Result<Limits, SettingError> {
        let default = Limits::default();
        let (millis, seconds) = (Duration::from_millis, Duration::from_secs);
        let stopping = bounds(default.shutdown_timeout, Duration::ZERO, Duration::MAX, "");
        let silent = bounds(default.disconnect_after, millis(100), Duration::MAX, ", at least 100ms");
        let unready = bounds(default.unready_after, seconds(1), Duration::MAX, ", at least 1s");
        let coalesce = bounds(default.coalesce, Duration::ZERO, millis(100), ", at most 100ms");
        let in_flight = bounds(default.max_in_flight, 64 << 10, LARGEST_IN_FLIGHT, ", at least 64KiB");
        let row = bounds(default.max_row, 1 << 10, 1 << 30, ", from 1KiB to 1GiB, Postgres' own limit");
        Ok(Limits {
            shutdown_timeout: self.duration("shutdown-timeout", &stopping)?,
            disconnect_after: self.duration("disconnect-after", &silent)?,
            unready_after: self.duration("unready-after", &unready)?,
            coalesce: self.duration("coalesce", &coalesce)?,
            max_in_flight: self.size("max-in-flight", &in_flight)?,
            max_row: self.size("max-row", &row)?,
        })
    }

    fn duration(&self, setting: &str, bounds: &Bounds<Duration>) -> Result<Duration, SettingError> {
        let Some(given) = self.layers.one(setting)? else { return Ok(bounds.default) };
        let expected = format!("{}{}", units::DURATION, bounds.range);
        let duration = parsed_duration(&given, &expected)?;
        if bounds.hold(&duration) { Ok(duration) } else { Err(given.invalid(expected, None)) }
    }

    fn lsn(&self, setting: &str) -> Result<Option<Lsn>, SettingError> {
        let Some(given) = self.layers.one(setting)? else { return Ok(None) };
        given.text.parse().map(Some).map_err(|_| given.invalid("a WAL position such as 16/B374D848", None))
    }

    pub(super) fn size(&self, setting: &str, bounds: &Bounds<usize>) -> Result<usize, SettingError> {
        let Some(given) = self.layers.one(setting)? else { return Ok(bounds.default) };
        match units::size(&given.text) {
            Ok(size) if bounds.hold(&size) => Ok(size),
            _ => Err(given.invalid(format!("{}{}", units::SIZE, bounds.range), None)),
        }
    }

    pub(super) fn one_of<T: Copy>(&self, setting: &str, values: &[(&str, T)]) -> Result<Option<T>, SettingError> {
        let Some(given) = self.layers.one(setting)? else { return Ok(None) };
        let text = given.text.trim().to_ascii_lowercase();
        if let Some((_, value)) = values.iter().find(|(name, _)| *name == text) {
            return Ok(Some(*value));
        }
        let names = values.iter().map(|(name, _)| *name).collect::<Vec<_>>();
        // If there is only one valid value, it is the nearest.
        let only = if let [only] = names.as_slice() { Some(*only) } else { None };
        let nearest = nearest(&text, names.iter().copied()).or(only);
        Err(given.invalid(names.join(", "), nearest.map(str::to_owned)))
    }

    /// The log filter. A misspelt level is refused: `tracing` would take it for the name of a target, and log nothing.
    fn filter(&self) -> Result<String, SettingError> {
        let Some(given) = self.layers.one("log-level")? else { return Ok(LogConfig::default().filter) };
        let expected = "error, warn, info, debug, trace, off, or a filter such as info,walrelay::relay=debug";
        let parsed = EnvFilter::builder().parse(&given.text);
        let misspelt = given.text.split(',').map(str::trim).find_map(misspelt_level);
        if parsed.is_err() || misspelt.is_some() || given.text.trim().is_empty() {
            let nearest = misspelt.or_else(|| nearest(&given.text, LEVELS)).map(str::to_owned);
            return Err(given.invalid(expected, nearest));
        }
        Ok(given.text)
    }

    fn chunk(&self) -> Result<u32, SettingError> {
        let Some(given) = self.layers.one("chunk")? else { return Ok(DEFAULT_CHUNK) };
        let rows = given.text.parse().ok().filter(|rows| (1..=LARGEST_CHUNK).contains(rows));
        rows.ok_or_else(|| given.invalid("a number of rows from 1 to 100000", None))
    }

    /// A duration without a default or bounds.
    pub(super) fn span(&self, flag: &str) -> Result<Option<Duration>, SettingError> {
        self.layers.one(flag)?.map(|given| parsed_duration(&given, units::DURATION)).transpose()
    }
}

fn parsed_duration(given: &Given, expected: &str) -> Result<Duration, SettingError> {
    units::duration(&given.text).map_err(|error| given.invalid(expected, error.suggestion))
}

const VISIBLE_PASSWORD: &str =
    "--source: its password shows in ps: use PGPASSWORD, ~/.pgpass or the variable WALRELAY_SOURCE";

/// A setting's default and range, with both ends. `range` is the end of the sentence that says what is expected.
pub(super) struct Bounds<T> {
    pub(super) default: T,
    least: T,
    most: T,
    pub(super) range: &'static str,
}

pub(super) const fn bounds<T>(default: T, least: T, most: T, range: &'static str) -> Bounds<T> {
    Bounds { default, least, most, range }
}

impl<T: Ord> Bounds<T> {
    pub(super) fn hold(&self, value: &T) -> bool {
        (&self.least..=&self.most).contains(&value)
    }
}

/// The default number of rows in a transaction.
const DEFAULT_CHUNK: u32 = 2000;

/// The largest number of rows in a transaction. With more, the statement that lists them becomes too long.
const LARGEST_CHUNK: u32 = 100_000;

fn rate(given: &Given) -> Result<NonZeroU32, SettingError> {
    let text = given.text.as_str();
    let rows = text.trim().strip_suffix("/s").unwrap_or(text).trim().parse().ok();
    rows.ok_or_else(|| given.invalid("a number of rows a second, at least 1: 500 or 500/s", None))
}

fn table(given: &Given) -> Result<TableName, SettingError> {
    TableName::parse(&given.text).ok_or_else(|| given.invalid(names::TABLE, None))
}

/// A name, as it was typed.
pub(super) fn name(given: Given) -> Result<String, SettingError> {
    if is_name(&given.text) { Ok(given.text) } else { Err(given.invalid(names::NAME, None)) }
}

/// The values of `--table`.
#[derive(Default)]
struct NamedTables {
    /// Each table, once.
    tables: Vec<TableName>,
    /// Those of them that were given as `ONLY table`.
    without_children: Vec<TableName>,
}

/// Warns of capitals without quotes, which the user may mean exactly. `only`: the word `ONLY` comes before the name.
fn folded(given: &Given, table: &TableName, only: bool) -> Option<String> {
    let name = given
        .text
        .trim()
        .split_once(char::is_whitespace)
        .filter(|_| only)
        .map_or(given.text.as_str(), |(_, name)| name);
    let has_capitals = !name.contains('"') && name.bytes().any(|byte| byte.is_ascii_uppercase());
    has_capitals
        .then(|| format!("{}: {} is read as {table}, as in SQL; double quotes keep capitals", given.origin, given.text))
}

/// The level that the user probably meant by a word that is none.
fn misspelt_level(directive: &str) -> Option<&'static str> {
    let is_word = !directive.is_empty() && directive.bytes().all(|byte| byte.is_ascii_alphabetic());
    let known = LEVELS.iter().any(|level| level.eq_ignore_ascii_case(directive));
    if is_word && !known { nearest(directive, LEVELS) } else { None }
}
