//! Reads the settings of each command into its request.
//!
//! In: the [`Layers`] of all settings, whose first layer is the command's flags. Out: that command's request. What a single setting's text
//! means is its [`form`](super::table::form)'s; here is what several of them mean together. An error names the setting, and where it was
//! given.

use std::time::Duration;

use super::layers::Layers;
use super::names;
use super::review::Review;
use super::table::Setting;
use super::table::others as flags;
use super::table::run as of_run;
use super::{LogConfig, Task};
use crate::commands::run::Limits;
use crate::commands::{Carrier, backfill, check, prune, run, setup, status, teardown};
use crate::http::HttpAddress;
use crate::outbox::{TableName, TablePatterns};
use crate::pg::source::{PasswordSetting, Source, SourceError, SourcePart};
use crate::secret::{Secret, SecretCommand};
use crate::setting_text::{Given, Origin, SettingError, shown_source};
use crate::sink::destination::Delivery;

/// The time between two reports of `status --watch`.
const WATCH_EVERY: Duration = Duration::from_secs(2);

/// Reads one command's settings.
pub(super) struct SettingsReader<'a> {
    pub(super) layers: Layers<'a>,
    pub(super) warnings: Vec<String>,
}

/// The settings of commands that look at a slot.
pub(super) struct SlotSettings {
    source: Source,
    pub(super) publication: String,
    pub(super) slot: String,
}

/// Names the setting that an error about the source is in. `text`: where the connection string was given.
fn wrong_source(error: SourceError, text: Option<&Origin>) -> SettingError {
    let origin = match (&error.part, text) {
        (SourcePart::Text, Some(origin)) => origin.to_string(),
        (part, _) => part.to_string(),
    };
    SettingError::new(origin).with_hint(error.problem.hint.clone()).caused_by(error)
}

impl SettingsReader<'_> {
    /// The value of a setting: the default's, where it is not given. Its default is a value.
    pub(super) fn get<T>(&self, setting: &Setting<T>) -> Result<T, SettingError> {
        let default =
            || Given { text: setting.default.to_owned(), origin: Origin::Flag(format!("--{}", setting.name)) };
        setting.parse(&self.layers.one(setting)?.unwrap_or_else(default))
    }

    /// The value of a setting, if it is given.
    pub(super) fn given<T>(&self, setting: &Setting<T>) -> Result<Option<T>, SettingError> {
        self.layers.one(setting)?.map(|given| setting.parse(&given)).transpose()
    }

    pub(super) fn log(&self) -> Result<LogConfig, SettingError> {
        Ok(LogConfig {
            format: self.given(&of_run::LOG_FORMAT)?.unwrap_or_default(),
            filter: self.get(&of_run::LOG_LEVEL)?,
        })
    }

    pub(super) fn run(&mut self) -> Result<run::RunRequest, SettingError> {
        self.debezium_configuration()?;
        let settings = self.slot_settings()?;
        let shard = self.shard(&settings)?;
        let SlotSettings { source, publication, slot } = settings;
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
            setup: self.get(&of_run::SETUP)?,
            table_patterns: self.table_patterns(&tables),
            tables,
            without_children,
            only_local: self.get(&of_run::ORIGIN)?,
            accept_slot_at: self.given(&of_run::ACCEPT_SLOT_AT)?,
            dry_run: self.get(&of_run::DRY_RUN)?,
            mapping: self.mapping(destination.as_ref())?,
            registry,
            destination,
            bad_rows,
            delivery,
            on_stop: self.get(&of_run::ON_STOP)?,
            http: self.get(&of_run::HTTP)?,
            limits,
        })
    }

    fn delivery(&self) -> Result<Delivery, SettingError> {
        let one_replica = self.get(&of_run::ACCEPT_ONE_REPLICA)?;
        Ok(match self.get(&of_run::DELIVERY)? {
            Delivery::AtLeastOnce => Delivery::AtLeastOnce,
            Delivery::ExactlyOnce { .. } => Delivery::ExactlyOnce { one_replica },
        })
    }

    /// Checks that walrelay can run the files of `--from-debezium`.
    fn debezium_configuration(&mut self) -> Result<(), SettingError> {
        let accept = self.get(&of_run::ACCEPT_DIFFERENCES)?;
        let Some(translation) = self.layers.translation() else { return Ok(()) };
        translation.verdict(accept)?;
        self.warnings.extend(translation.warnings());
        Ok(())
    }

    /// The settings of `run`, which `check` checks. With `--from-debezium`: the report about its files, and whether `run` would accept them.
    pub(super) fn check(&mut self) -> Result<Task, SettingError> {
        let Some(translation) = self.layers.translation() else {
            let json = self.get(&flags::check::JSON)?;
            return Ok(Task::Check(Box::new(check::CheckRequest { config: self.run()?, json })));
        };
        let accept = self.get(&of_run::ACCEPT_DIFFERENCES)?;
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

    pub(super) fn setup(&mut self) -> Result<Task, SettingError> {
        let settings = self.slot_settings()?;
        let shards = self.shards(&settings)?;
        let SlotSettings { source, publication, slot } = settings;
        let backfill = self.get(&flags::setup::BACKFILL)?.then(|| self.backfill_after_setup()).transpose()?;
        let NamedTables { tables, without_children } = self.tables()?;
        let request = setup::SetupRequest {
            source,
            publication,
            slot,
            tables,
            without_children,
            apply: self.get(&flags::setup::APPLY)?,
            failover: self.get(&flags::setup::FAILOVER)?,
            role: self.given(&flags::setup::ROLE)?,
            create_table: self.get(&flags::setup::CREATE_TABLE)?,
            shards,
            after_loss: self.get(&flags::setup::AFTER_LOSS)?,
            published: self.get(&flags::setup::PUBLISHED)?,
            yes: self.get(&flags::setup::YES)?,
            json: self.get(&flags::setup::JSON)?,
            also_read_by: self.layers.flags.all(flags::setup::ALSO_READ_BY.name).to_vec(),
            typed_source: self.typed_source(),
        };
        Ok(Task::Setup(request.into(), backfill.map(Box::new)))
    }

    /// The backfill of `setup --backfill`. It reads the settings of `run`, except for the columns of shards.
    fn backfill_after_setup(&mut self) -> Result<backfill::BackfillRequest, SettingError> {
        for flag in [of_run::KEY_COLUMN.name, of_run::ID_COLUMN.name] {
            self.layers.flags.forget(flag);
        }
        self.backfill()
    }

    pub(super) fn backfill(&mut self) -> Result<backfill::BackfillRequest, SettingError> {
        self.no_shard()?;
        Ok(backfill::BackfillRequest {
            run: self.run()?,
            condition: self.layers.flags.last(flags::backfill::WHERE.name).map(str::to_owned),
            order: self.given(&flags::backfill::ORDER_BY)?,
            rate: self.given(&flags::backfill::RATE)?,
            chunk: self.get(&flags::backfill::CHUNK)?,
            again: self.get(&flags::backfill::AGAIN)?,
            yes: self.get(&flags::backfill::YES)?,
            then_run: self.get(&flags::backfill::THEN_RUN)?,
        })
    }

    pub(super) fn status(&mut self) -> Result<Task, SettingError> {
        if self.get(&flags::status::READY)? {
            return self.ready().map(Task::Ready);
        }
        let SlotSettings { source, publication, slot } = self.slot_settings()?;
        let http = self.get(&of_run::HTTP)?.as_ref().map(HttpAddress::of_this_machine);
        let request = status::StatusRequest {
            source,
            publication,
            slot,
            json: self.get(&flags::status::JSON)?,
            all: self.get(&flags::status::EVERY_SHARD)?,
            watch: self.get(&flags::status::WATCH)?.then_some(WATCH_EVERY),
            http,
        };
        Ok(Task::Status(request.into()))
    }

    /// The HTTP address at which the relay says whether it is ready. No source is needed.
    fn ready(&self) -> Result<String, SettingError> {
        let address = self.get(&of_run::HTTP)?;
        address.as_ref().map(HttpAddress::of_this_machine).ok_or_else(|| {
            SettingError::usage("--ready asks the relay's HTTP address, and that is off", "--http 127.0.0.1:9464")
        })
    }

    pub(super) fn teardown(&mut self) -> Result<teardown::TeardownRequest, SettingError> {
        let SlotSettings { source, publication, slot } = self.slot_settings()?;
        Ok(teardown::TeardownRequest {
            source,
            publication,
            slot,
            publication_too: self.get(&flags::teardown::PUBLICATION_TOO)?,
            shards: self.given(&flags::teardown::SHARDS)?,
            yes: self.get(&flags::teardown::YES)?,
            unmarked: self.get(&flags::teardown::UNMARKED)?,
            also_read_by: self.layers.flags.all(flags::teardown::ALSO_READ_BY.name).to_vec(),
            typed_source: self.typed_source(),
        })
    }

    pub(super) fn prune(&mut self) -> Result<prune::PruneRequest, SettingError> {
        let SlotSettings { source, publication, slot } = self.slot_settings()?;
        let carrier = Carrier { source, publication, slot, shard: None };
        let Some(older_than) = self.given(&flags::prune::OLDER_THAN)? else {
            return Err(SettingError::usage("prune needs --older-than", "walrelay prune --older-than 7d"));
        };
        if older_than < prune::LEAST_AGE {
            return Err(SettingError::usage(
                "--older-than is below a minute: such rows may not be published yet",
                "walrelay prune --older-than 1h",
            ));
        }
        Ok(prune::PruneRequest {
            carrier,
            tables: self.tables()?.tables,
            older_than,
            age_column: self.given(&flags::prune::AGE_COLUMN)?,
            chunk: self.get(&flags::prune::CHUNK)?,
            archive_to: self.given(&flags::prune::ARCHIVE_TO)?,
            every: self.given(&flags::prune::EVERY)?,
            timeout: self.given(&flags::prune::TIMEOUT)?,
            partitions: self.get(&flags::prune::PARTITIONS)?,
            dry_run: self.get(&flags::prune::DRY_RUN)?,
            json: self.get(&flags::prune::JSON)?,
        })
    }

    fn slot_settings(&mut self) -> Result<SlotSettings, SettingError> {
        Ok(SlotSettings {
            publication: self.get(&of_run::PUBLICATION)?,
            slot: self.get(&of_run::SLOT)?,
            source: self.source()?,
        })
    }

    /// The connection string that was typed, without secrets. Hints repeat it in commands.
    fn typed_source(&self) -> Option<String> {
        self.layers.flags.last(of_run::SOURCE.name).map(shown_source)
    }

    /// The source. A text that begins with `@` names a file with the connection string.
    pub(super) fn source(&mut self) -> Result<Source, SettingError> {
        let database_url = || {
            let text = self.layers.environment.variable("DATABASE_URL")?.to_owned();
            Some(Given { text, origin: Origin::Variable("DATABASE_URL".to_owned()) })
        };
        let given = self.layers.one(&of_run::SOURCE)?.or_else(database_url);
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
        match (self.layers.one(&of_run::SOURCE_PASSWORD_FILE)?, self.layers.one(&of_run::SOURCE_PASSWORD_COMMAND)?) {
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

    fn tables(&mut self) -> Result<NamedTables, SettingError> {
        let mut named = NamedTables::default();
        for given in self.layers.many(&of_run::TABLE) {
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

    pub(super) fn limits(&self) -> Result<Limits, SettingError> {
        Ok(Limits {
            shutdown_timeout: self.get(&of_run::SHUTDOWN_TIMEOUT)?,
            disconnect_after: self.get(&of_run::DISCONNECT_AFTER)?,
            unready_after: self.get(&of_run::UNREADY_AFTER)?,
            coalesce: self.get(&of_run::COALESCE)?,
            max_in_flight: self.get(&of_run::MAX_IN_FLIGHT)?,
            max_row: self.get(&of_run::MAX_ROW)?,
        })
    }
}

const VISIBLE_PASSWORD: &str =
    "--source: its password shows in ps: use PGPASSWORD, ~/.pgpass or the variable WALRELAY_SOURCE";

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
