//! From texts to values, setting by setting.
//!
//! In: what was typed for one command, and the other [`Layers`]. Out: that command's configuration. Each value is judged
//! by the one function that knows its kind, and an error names the setting where it was given.

use std::num::NonZeroU32;
use std::time::Duration;

use tracing_subscriber::EnvFilter;

use super::cli::{
    BackfillArgs, CheckArgs, CommonArgs, OperationArgs, PasswordArgs, PruneArgs, RepublishArgs, RunArgs, SetupArgs,
    SourceArgs, StatusArgs, TeardownArgs,
};
use super::error::ConfigError;
use super::layers::Layers;
use super::names;
use super::{LogConfig, LogFormat, Task, shards};
use crate::commands::run::{Limits, OnStop};
use crate::commands::{OutboxPlace, backfill, check, prune, republish, run, setup, shown_source, status, teardown};
use crate::debezium::Review;
use crate::given::{Given, Origin, SettingError, nearest, units};
use crate::http::{HttpAddress, nearest_http};
use crate::lsn::Lsn;
use crate::outbox::table_name::is_name;
use crate::outbox::{TableName, TablePatterns};
use crate::pg::source::{Environment, PasswordSetting, Source};
use crate::secret::{Secret, SecretCommand};
use crate::sink::destination::Delivery;

/// The name of slot and publication where none is given.
const DEFAULT_NAME: &str = "walrelay";

/// Pause between two looks of `status --watch`.
const WATCH_EVERY: Duration = Duration::from_secs(2);

const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

const DELIVERIES: [(&str, Delivery); 2] =
    [("at-least-once", Delivery::AtLeastOnce), ("exactly-once", Delivery::ExactlyOnce)];

/// librdkafka's queue is bounded in KiB, in 31 bits.
const LARGEST_IN_FLIGHT: usize = 0x7FFF_FFFF << 10;

/// Reads one command's settings.
pub(super) struct Reader<'a> {
    pub(super) layers: &'a Layers<'a>,
    pub(super) environment: &'a Environment,
    pub(super) warnings: Vec<String>,
}

/// What every command but `completions` needs.
pub(super) struct Place {
    source: Source,
    pub(super) publication: String,
    pub(super) slot: String,
}

impl Reader<'_> {
    pub(super) fn log(&self, args: &CommonArgs) -> Result<LogConfig, ConfigError> {
        let formats = [("text", LogFormat::Text), ("json", LogFormat::Json)];
        Ok(LogConfig {
            format: self.one_of("log-format", args.log_format.as_deref(), &formats)?.unwrap_or_default(),
            filter: self.filter(args.log_level.as_deref())?,
        })
    }

    pub(super) fn run(&mut self, args: &RunArgs) -> Result<run::Request, ConfigError> {
        self.old_set_up(args.debezium.accept_differences.as_deref())?;
        let place = self.place(&args.source)?;
        let shard = self.shard(args, &place)?;
        let Place { source, publication, slot } = place;
        let limits = self.limits(&args.operation)?;
        let tables = self.tables(&args.table)?;
        let destination = self.destination(&args.destination, limits.max_in_flight)?;
        let addresses = destination.kind().topics;
        let bad_rows = self.bad_rows(&args.bad_rows, &slot, addresses)?;
        let delivery = self.one_of("delivery", args.destination.delivery.as_deref(), &DELIVERIES)?.unwrap_or_default();
        self.asks_what_it_can(destination.kind(), args, delivery)?;
        let registry = self.registry(&args.registry)?;
        #[cfg(feature = "otlp")]
        let spans = self.otlp(&args.otlp)?;
        // Dead-letter records have one place, whatever the number of shards.
        let name = |whole: String| shard.map(|shard| shard.name(&whole)).unwrap_or(whole);
        Ok(run::Request {
            source,
            publication: name(publication),
            slot: name(slot),
            shard,
            setup: self.layers.is_on("setup", args.setup.as_deref())?,
            table_patterns: self.table_patterns(&tables),
            tables,
            accept_slot_at: self.lsn("accept-slot-at", args.accept_slot_at.as_deref())?,
            dry_run: self.layers.is_on("dry-run", args.dry_run.as_deref())?,
            mapping: self.mapping(args, destination.as_ref())?,
            registry,
            destination,
            bad_rows,
            delivery,
            on_stop: self
                .one_of(
                    "on-stop",
                    args.operation.on_stop.as_deref(),
                    &[("exit", OnStop::Exit), ("hold", OnStop::Hold)],
                )?
                .unwrap_or_default(),
            http: self.http(args.operation.http.as_deref())?,
            limits,
            #[cfg(feature = "otlp")]
            spans,
        })
    }

    /// Sees that the files of `--from-debezium` may be run as they are.
    fn old_set_up(&mut self, accept: Option<&str>) -> Result<(), ConfigError> {
        let accept = self.layers.is_on("accept-differences", accept)?;
        let Some(translation) = self.layers.translation() else { return Ok(()) };
        translation.verdict(accept)?;
        self.warnings.extend(translation.warnings());
        Ok(())
    }

    /// What `walrelay check --from-debezium` is to print, and whether `run` would take it; else what `run` would need.
    pub(super) fn check(&mut self, args: &CheckArgs) -> Result<Task, ConfigError> {
        let debezium = &args.run.debezium;
        let Some(translation) = self.layers.translation() else {
            return Ok(Task::Check(Box::new(check::Request { config: self.run(&args.run)?, json: args.json })));
        };
        let accept = self.layers.is_on("accept-differences", debezium.accept_differences.as_deref())?;
        let files = self.layers.debezium_files(&debezium.from_debezium);
        let report = translation.report(&files, accept);
        let told = self.warnings.len();
        let verdict = self.run(&args.run).map(drop);
        // The report has them.
        self.warnings.truncate(told);
        Ok(Task::CheckDebezium(Box::new(Review { report, verdict })))
    }

    /// Tables that are named one by one count instead.
    fn table_patterns(&self, tables: &[TableName]) -> TablePatterns {
        let patterns = self.layers.translation().filter(|_| tables.is_empty()).map(|old| old.tables.clone());
        patterns.unwrap_or_default()
    }

    pub(super) fn setup(&mut self, args: &SetupArgs) -> Result<setup::Request, ConfigError> {
        let place = self.place(&args.source)?;
        let shards = self.shards(&args.shards, &place)?;
        let Place { source, publication, slot } = place;
        let role = args.role.as_ref().map(|text| flag("--role", text));
        let backfill = args.backfill.then(|| self.backfill_after_setup(args)).transpose()?;
        Ok(setup::Request {
            source,
            publication,
            slot,
            tables: self.tables(&args.table)?,
            apply: args.apply,
            failover: args.failover,
            role: role.map(name).transpose()?,
            create_table: args.create_table,
            backfill: backfill.map(Box::new),
            shards,
            typed_source: args.source.source.as_deref().map(shown_source),
        })
    }

    /// With what is said of a run elsewhere than on the command line.
    fn backfill_after_setup(&mut self, args: &SetupArgs) -> Result<backfill::Request, ConfigError> {
        let (source, table, common) = (args.source.clone(), args.table.clone(), args.common.clone());
        let run = Box::new(RunArgs { source, table, common, ..RunArgs::default() });
        let request = self.backfill(&BackfillArgs { run, ..BackfillArgs::default() })?;
        // What was warned of is read twice.
        self.warnings.dedup();
        Ok(request)
    }

    pub(super) fn backfill(&mut self, args: &BackfillArgs) -> Result<backfill::Request, ConfigError> {
        self.no_shard(&args.run)?;
        Ok(backfill::Request {
            run: self.run(&args.run)?,
            condition: args.condition.clone(),
            order: args.order_by.as_ref().map(|text| name(flag("--order-by", text))).transpose()?,
            rate: args.rate.as_deref().map(rate).transpose()?,
            chunk: chunk(args.chunk.as_deref())?,
            again: args.again,
            leaves_updated: args.leave_updated,
            then_run: args.then_run,
        })
    }

    pub(super) fn status(&mut self, args: &StatusArgs) -> Result<status::Request, ConfigError> {
        let Place { source, publication, slot } = self.place(&args.source)?;
        let http = self.http(args.http.as_deref())?.as_ref().map(HttpAddress::of_this_machine);
        Ok(status::Request {
            source,
            publication,
            slot,
            json: args.json,
            all: args.all,
            watch: args.watch.then_some(WATCH_EVERY),
            http,
        })
    }

    /// Where to ask whether the relay is ready; needs no source.
    pub(super) fn ready(&self, args: &StatusArgs) -> Result<String, ConfigError> {
        let address = self.http(args.http.as_deref())?;
        address.as_ref().map(HttpAddress::of_this_machine).ok_or_else(|| {
            SettingError::Usage {
                message: "--ready asks the relay's HTTP address, and that is off".to_owned(),
                hint: "--http 127.0.0.1:9464".to_owned(),
            }
            .into()
        })
    }

    pub(super) fn teardown(&mut self, args: &TeardownArgs) -> Result<teardown::Request, ConfigError> {
        let Place { source, publication, slot } = self.place(&args.source)?;
        let typed_source = args.source.source.as_deref().map(shown_source);
        let TeardownArgs { publication_too, yes, .. } = *args;
        let shards = args.shards.as_ref().map(|text| shards::count(&flag("--shards", text))).transpose()?;
        Ok(teardown::Request { source, publication, slot, publication_too, shards, yes, typed_source })
    }

    pub(super) fn republish(&mut self, args: &RepublishArgs) -> Result<republish::Request, ConfigError> {
        let place = self.outbox_place(&args.source, args.id_column.as_deref())?;
        let mut tables = self.tables(&args.table)?;
        let (Some(table), true) = (tables.pop(), tables.is_empty()) else {
            return Err(SettingError::Usage {
                message: "republish needs the one table whose rows are to be published again".to_owned(),
                hint: "walrelay republish --table public.outbox".to_owned(),
            }
            .into());
        };
        Ok(republish::Request {
            place,
            table,
            condition: args.condition.clone(),
            order: args.order_by.clone(),
            chunk: chunk(args.chunk.as_deref())?,
            apply: args.apply,
            force: args.force,
        })
    }

    pub(super) fn prune(&mut self, args: &PruneArgs) -> Result<prune::Request, ConfigError> {
        let place = self.outbox_place(&args.source, args.id_column.as_deref())?;
        let Some(older_than) = span("--older-than", args.older_than.as_deref())? else {
            return Err(SettingError::Usage {
                message: "prune needs --older-than".to_owned(),
                hint: "walrelay prune --older-than 7d".to_owned(),
            }
            .into());
        };
        if older_than < prune::LEAST_AGE && !args.force {
            return Err(SettingError::Usage {
                message: "--older-than is below a minute: such rows may not be published yet".to_owned(),
                hint: "walrelay prune --older-than 1h, or --force".to_owned(),
            }
            .into());
        }
        let archive_to = args.archive_to.as_ref().map(|text| flag("--archive-to", text));
        let table = |given: Given| TableName::parse(&given.text).ok_or_else(|| given.invalid(names::TABLE, None));
        let age_column = args.age_column.as_ref().map(|text| flag("--age-column", text));
        Ok(prune::Request {
            place,
            tables: self.tables(&args.table)?,
            older_than,
            age_column: age_column.map(name).transpose()?,
            chunk: chunk(args.chunk.as_deref())?,
            archive_to: archive_to.map(table).transpose()?,
            every: span("--every", args.every.as_deref())?,
            timeout: span("--timeout", args.timeout.as_deref())?,
            partitions: args.partitions,
            dry_run: args.dry_run,
            force: args.force,
        })
    }

    fn outbox_place(&mut self, args: &SourceArgs, id_column: Option<&str>) -> Result<OutboxPlace, ConfigError> {
        let Place { source, publication, slot } = self.place(args)?;
        Ok(OutboxPlace { source, publication, slot, shard: None, id_column: self.name("id-column", id_column)? })
    }

    fn place(&mut self, args: &SourceArgs) -> Result<Place, ConfigError> {
        Ok(Place {
            publication: self
                .name("publication", args.publication.as_deref())?
                .unwrap_or_else(|| DEFAULT_NAME.to_owned()),
            slot: self.slot(args.slot.as_deref())?,
            source: self.source(args.source.as_deref(), &args.password)?,
        })
    }

    /// A connection string never begins with an `@`: that is a file which holds one.
    pub(super) fn source(&mut self, typed: Option<&str>, password: &PasswordArgs) -> Result<Source, ConfigError> {
        let database_url = || {
            let text = self.environment.variable("DATABASE_URL")?.to_owned();
            Some(Given { text, origin: Origin::Variable("DATABASE_URL".to_owned()) })
        };
        let given = self.layers.one("source", typed)?.or_else(database_url);
        let text = given.as_ref().map(|given| Secret::of_value(&given.text));
        let resolved = Source::resolve_from(text, self.source_password(password)?, self.environment)
            .map_err(|error| ConfigError::source(error, given.as_ref().map(|given| &given.origin)))?;
        if resolved.password_in_text && matches!(given, Some(Given { origin: Origin::Flag(_), .. })) {
            self.warnings.push(VISIBLE_PASSWORD.to_owned());
        }
        self.warnings.extend(resolved.warnings);
        Ok(resolved.source)
    }

    fn source_password(&self, args: &PasswordArgs) -> Result<Option<PasswordSetting>, ConfigError> {
        const FILE: &str = "source-password-file";
        const COMMAND: &str = "source-password-command";
        let file = self.layers.one(FILE, args.source_password_file.as_deref())?;
        let command = self.layers.one(COMMAND, args.source_password_command.as_deref())?;
        match (file, command) {
            (None, None) => Ok(None),
            (Some(given), None) => {
                Ok(Some(PasswordSetting { name: "--source-password-file", secret: Secret::File(given.text.into()) }))
            }
            (None, Some(given)) => {
                let command = SecretCommand::parse(&given.text).map_err(|error| SettingError::Usage {
                    message: format!("{}: {error}", given.origin),
                    hint: "--source-password-command \"aws rds generate-db-auth-token --hostname …\"".to_owned(),
                })?;
                Ok(Some(PasswordSetting { name: "--source-password-command", secret: Secret::Command(command) }))
            }
            (Some(file), Some(command)) => {
                Err(SettingError::Exclusive { first: file.origin, second: command.origin }.into())
            }
        }
    }

    pub(super) fn slot(&self, typed: Option<&str>) -> Result<String, ConfigError> {
        match self.layers.one("slot", typed)? {
            None => Ok(DEFAULT_NAME.to_owned()),
            Some(given) if names::is_slot(&given.text) => Ok(given.text),
            Some(given) => Err(given.invalid(names::SLOT, names::nearest_slot(&given.text)).into()),
        }
    }

    /// The name of a column or a publication, taken exactly.
    pub(super) fn name(&self, setting: &str, typed: Option<&str>) -> Result<Option<String>, ConfigError> {
        Ok(self.layers.one(setting, typed)?.map(name).transpose()?)
    }

    fn tables(&mut self, typed: &[String]) -> Result<Vec<TableName>, ConfigError> {
        let mut tables = Vec::new();
        for given in self.layers.many("table", typed) {
            let table = TableName::parse(&given.text).ok_or_else(|| given.invalid(names::TABLE, None))?;
            self.warnings.extend(folded(&given, &table));
            if !tables.contains(&table) {
                tables.push(table);
            }
        }
        Ok(tables)
    }

    fn http(&self, typed: Option<&str>) -> Result<Option<HttpAddress>, ConfigError> {
        match self.layers.one("http", typed)? {
            None => Ok(Some(HttpAddress::default())),
            Some(given) if given.text.trim().eq_ignore_ascii_case("off") => Ok(None),
            Some(given) => match HttpAddress::parse(&given.text) {
                Some(address) => Ok(Some(address)),
                None => Err(given.invalid(names::HTTP, nearest_http(&given.text)).into()),
            },
        }
    }

    pub(super) fn limits(&self, args: &OperationArgs) -> Result<Limits, ConfigError> {
        let default = Limits::default();
        Ok(Limits {
            shutdown_timeout: self.duration(
                "shutdown-timeout",
                args.shutdown_timeout.as_deref(),
                &Bounds { default: default.shutdown_timeout, least: Duration::ZERO, most: Duration::MAX, range: "" },
            )?,
            disconnect_after: self.duration(
                "disconnect-after",
                args.disconnect_after.as_deref(),
                &Bounds {
                    default: default.disconnect_after,
                    least: Duration::from_millis(100),
                    most: Duration::MAX,
                    range: ", at least 100ms",
                },
            )?,
            unready_after: self.duration(
                "unready-after",
                args.unready_after.as_deref(),
                &Bounds {
                    default: default.unready_after,
                    least: Duration::from_secs(1),
                    most: Duration::MAX,
                    range: ", at least 1s",
                },
            )?,
            coalesce: self.duration(
                "coalesce",
                args.coalesce.as_deref(),
                &Bounds {
                    default: default.coalesce,
                    least: Duration::ZERO,
                    most: Duration::from_millis(100),
                    range: ", at most 100ms",
                },
            )?,
            max_in_flight: self.size(
                "max-in-flight",
                args.max_in_flight.as_deref(),
                &Bounds {
                    default: default.max_in_flight,
                    least: 64 << 10,
                    most: LARGEST_IN_FLIGHT,
                    range: ", at least 64KiB",
                },
            )?,
            max_row: self.size(
                "max-row",
                args.max_row.as_deref(),
                &Bounds {
                    default: default.max_row,
                    least: 1 << 10,
                    most: 1 << 30,
                    range: ", from 1KiB to 1GiB, Postgres' own limit",
                },
            )?,
        })
    }

    fn duration(&self, setting: &str, typed: Option<&str>, bounds: &Bounds<Duration>) -> Result<Duration, ConfigError> {
        let Some(given) = self.layers.one(setting, typed)? else { return Ok(bounds.default) };
        let expected = format!("{}{}", units::DURATION, bounds.range);
        match units::duration(&given.text) {
            Ok(duration) if bounds.hold(&duration) => Ok(duration),
            Ok(_) => Err(given.invalid(expected, None).into()),
            Err(error) => Err(given.invalid(expected, error.suggestion).into()),
        }
    }

    fn lsn(&self, setting: &str, typed: Option<&str>) -> Result<Option<Lsn>, ConfigError> {
        let Some(given) = self.layers.one(setting, typed)? else { return Ok(None) };
        given.text.parse().map(Some).map_err(|_| given.invalid("a WAL position such as 16/B374D848", None).into())
    }

    fn size(&self, setting: &str, typed: Option<&str>, bounds: &Bounds<usize>) -> Result<usize, ConfigError> {
        let Some(given) = self.layers.one(setting, typed)? else { return Ok(bounds.default) };
        match units::size(&given.text) {
            Ok(size) if bounds.hold(&size) => Ok(size),
            _ => Err(given.invalid(format!("{}{}", units::SIZE, bounds.range), None).into()),
        }
    }

    pub(super) fn one_of<T: Copy>(
        &self,
        setting: &str,
        typed: Option<&str>,
        values: &[(&str, T)],
    ) -> Result<Option<T>, ConfigError> {
        let Some(given) = self.layers.one(setting, typed)? else { return Ok(None) };
        let text = given.text.trim().to_ascii_lowercase();
        if let Some((_, value)) = values.iter().find(|(name, _)| *name == text) {
            return Ok(Some(*value));
        }
        let names = values.iter().map(|(name, _)| *name).collect::<Vec<_>>();
        // With one valid value, that is the nearest.
        let only = if let [only] = names.as_slice() { Some(*only) } else { None };
        let nearest = nearest(&text, names.iter().copied()).or(only);
        Err(given.invalid(names.join(", "), nearest.map(str::to_owned)).into())
    }

    /// A misspelt level is a target's name to `tracing`, and would silence everything.
    fn filter(&self, typed: Option<&str>) -> Result<String, ConfigError> {
        let Some(given) = self.layers.one("log-level", typed)? else { return Ok(LogConfig::default().filter) };
        let expected = "error, warn, info, debug, trace, off, or a filter such as info,walrelay::relay=debug";
        let parsed = EnvFilter::builder().parse(&given.text);
        let misspelt = given.text.split(',').map(str::trim).find_map(misspelt_level);
        if parsed.is_err() || misspelt.is_some() || given.text.trim().is_empty() {
            let nearest = misspelt.or_else(|| nearest(&given.text, LEVELS)).map(str::to_owned);
            return Err(given.invalid(expected, nearest).into());
        }
        Ok(given.text)
    }
}

const VISIBLE_PASSWORD: &str =
    "--source: its password shows in ps: use PGPASSWORD, ~/.pgpass or the variable WALRELAY_SOURCE";

/// A setting's default and range, both ends included; `range` says it after what is expected.
pub(super) struct Bounds<T> {
    pub(super) default: T,
    pub(super) least: T,
    pub(super) most: T,
    pub(super) range: &'static str,
}

impl<T: Ord> Bounds<T> {
    pub(super) fn hold(&self, value: &T) -> bool {
        (&self.least..=&self.most).contains(&value)
    }
}

/// How many rows a transaction takes where nothing is said.
const DEFAULT_CHUNK: u32 = 2000;

/// More places than this make one statement too long.
const LARGEST_CHUNK: u32 = 100_000;

fn chunk(typed: Option<&str>) -> Result<u32, SettingError> {
    let Some(text) = typed else { return Ok(DEFAULT_CHUNK) };
    let rows = text.parse().ok().filter(|rows| (1..=LARGEST_CHUNK).contains(rows));
    rows.ok_or_else(|| flag("--chunk", text).invalid("a number of rows from 1 to 100000", None))
}

fn rate(text: &str) -> Result<NonZeroU32, SettingError> {
    let rows = text.trim().strip_suffix("/s").unwrap_or(text).trim().parse().ok();
    rows.ok_or_else(|| flag("--rate", text).invalid("a number of rows a second, at least 1: 500 or 500/s", None))
}

/// A duration that stands on the command line alone.
fn span(name: &str, typed: Option<&str>) -> Result<Option<Duration>, SettingError> {
    let read =
        |text: &str| units::duration(text).map_err(|error| flag(name, text).invalid(units::DURATION, error.suggestion));
    typed.map(read).transpose()
}

pub(super) fn flag(name: &str, text: &str) -> Given {
    Given { text: text.to_owned(), origin: Origin::Flag(name.to_owned()) }
}

/// The name of a column, a publication or a role, taken exactly.
pub(super) fn name(given: Given) -> Result<String, SettingError> {
    if is_name(&given.text) { Ok(given.text) } else { Err(given.invalid(names::NAME, None)) }
}

/// Who types capitals without quotes may mean them.
fn folded(given: &Given, table: &TableName) -> Option<String> {
    let has_capitals = !given.text.contains('"') && given.text.bytes().any(|byte| byte.is_ascii_uppercase());
    has_capitals
        .then(|| format!("{}: {} is read as {table}, as in SQL; double quotes keep capitals", given.origin, given.text))
}

/// The level that a lone word was probably meant as.
fn misspelt_level(directive: &str) -> Option<&'static str> {
    let is_word = !directive.is_empty() && directive.bytes().all(|byte| byte.is_ascii_alphabetic());
    let known = LEVELS.iter().any(|level| level.eq_ignore_ascii_case(directive));
    if is_word && !known { nearest(directive, LEVELS) } else { None }
}
