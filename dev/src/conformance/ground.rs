//! Where cases run: one Postgres, one Kafka, and for each group a database, a slot and one run of the tool.
//!
//! In: a group. Out: its records, the oracle's answers, how the tool ended. It judges nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use postgres::{Client, NoTls};

use super::data::{Case, Group, Record, Statement};
use super::doors::{self, Broker};
use super::oracle;
use crate::debezium::{Debezium, Running, State, Worker};
use crate::kafka::Kafka;
use crate::postgres::{Postgres, unique_name};
use crate::relay::Relay;
use crate::{consume, postgres as server, process, provision, run_dir};

/// The tables of the database, but for partitions and those of extensions. `None`: there are none.
const TABLES: &str = "SELECT string_agg(format('%I.%I', n.nspname, c.relname), ', ' ORDER BY c.oid)
    FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
   WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND NOT c.relispartition AND c.oid >= 16384
     AND NOT EXISTS (SELECT FROM pg_depend AS d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e')";

/// A deadline that only a failure reaches.
pub const LONG: Duration = Duration::from_mins(3);

/// Bytes of the largest record.
const LARGEST: &str = "20000000";

/// The publication's name in every database.
pub const PUBLICATION: &str = "conformance";

/// The servers.
#[derive(Debug)]
pub struct Ground {
    /// Postgres' major version.
    pub major: u32,
    postgres: Postgres,
    broker: Broker,
    folder: PathBuf,
}

/// The result of a group.
#[derive(Debug)]
pub struct Run {
    /// In the topics that the group names.
    pub records: Vec<consume::Record>,
    /// The code, and the last words.
    pub ended: (i32, String),
    /// From before its first transaction until after its last record, in milliseconds.
    pub period: RangeInclusive<i64>,
    /// By each case's oracle, where it has one.
    pub oracles: Vec<Option<Vec<Record>>>,
}

/// A group's database with everything in it.
#[derive(Debug)]
pub struct Site<'g> {
    /// Of the database.
    pub name: String,
    /// Connection URI of the database, as superuser.
    pub source: String,
    group: &'g Group,
}

impl Ground {
    /// Starts both.
    ///
    /// # Errors
    /// One of them does not start.
    pub fn start(major: u32) -> Result<Self> {
        Self::beside(major, Broker::open()?)
    }

    /// The same; if the broker is guarded, so is Postgres, beside its open door.
    ///
    /// # Errors
    /// Postgres does not start.
    pub fn beside(major: u32, broker: Broker) -> Result<Self> {
        let settings = crate::settings(&[
            ("max_prepared_transactions", "10"),
            ("max_replication_slots", "400"),
            ("max_wal_senders", "100"),
            ("max_connections", "200"),
            // No crash is tried here.
            ("fsync", "off"),
        ]);
        let folder = run_dir::make(&provision::dev_dir().join("run"), "conformance")?;
        let is_guarded = matches!(broker, Broker::Guarded(_));
        let tls = is_guarded.then(|| doors::certificates_of_postgres(&folder)).transpose()?;
        let postgres = Postgres::start(&server::Options { major, settings, tls, ..server::Options::default() })?;
        Ok(Self { major, postgres, broker, folder })
    }

    /// Its Postgres.
    pub fn postgres(&self) -> &Postgres {
        &self.postgres
    }

    /// Its Kafka.
    pub fn kafka(&self) -> &Kafka {
        self.broker.kafka()
    }

    /// The group with the addresses and files of the doors to this Postgres, and to `broker` or else to its own.
    ///
    /// # Errors
    /// A file of theirs cannot be read.
    pub fn filled(&self, group: &Group, broker: Option<&Broker>) -> Result<Group> {
        doors::filled(group, broker.unwrap_or(&self.broker), &self.folder)
    }

    /// A folder of its own.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Whether the server has what the group wants.
    ///
    /// # Errors
    /// The server does not answer.
    pub fn has(&self, group: &Group) -> Result<bool> {
        if group.since.is_some_and(|since| self.major < since) {
            return Ok(false);
        }
        let Some(extension) = &group.extension else { return Ok(true) };
        let sql = "SELECT count(*) > 0 FROM pg_available_extensions WHERE name = $1";
        Ok(self.postgres.connect(None)?.query_one(sql, &[extension])?.get(0))
    }

    /// Runs a group with the tool.
    ///
    /// # Errors
    /// The group cannot be judged.
    pub fn run(&self, group: &Group, binary: &Path) -> Result<Run> {
        if group.exit.as_ref().is_some_and(|exit| exit.code == 64) {
            return self.refused(group, binary);
        }
        let site = self.furnish(group)?;
        site.make_slot(&site.name)?;
        self.make_topics(group)?;
        let arguments = self.arguments(&site, group)?;
        let mut relay = Relay::start(binary, &arguments, &group.variables())?;
        let begun = site.now()?;
        if group.exit.is_none() || group.cases.iter().any(|case| !case.statements.is_empty()) {
            relay.wait_streaming(LONG)?;
            site.write(&mut || Ok(self.read(group)?.len()))?;
        }
        let code = match group.exit {
            Some(_) => relay.wait_exit(LONG).with_context(|| relay.log())?,
            None => match site.wait_confirmed(&site.name, || relay.exited()).with_context(|| relay.log())? {
                Some(code) => code,
                None => relay.terminate(LONG)?.code,
            },
        };
        let period = begun..=site.now()?;
        let oracles = site.oracles()?;
        Ok(Run { records: self.read(group)?, ended: (code, relay.log()), period, oracles })
    }

    /// Nobody is contacted: there is nobody at these addresses.
    fn refused(&self, group: &Group, binary: &Path) -> Result<Run> {
        let site =
            Site { name: unique_name("nobody"), source: "postgres://postgres@127.0.0.1:1/nobody".to_owned(), group };
        let mut relay = Relay::start(binary, &self.arguments(&site, group)?, &group.variables())?;
        let code = relay.wait_exit(LONG).with_context(|| relay.log())?;
        let ended = (code, relay.log());
        Ok(Run { records: Vec::new(), ended, period: 0..=0, oracles: Vec::new() })
    }

    /// Database, tables and publication.
    ///
    /// # Errors
    /// The group's SQL fails.
    pub fn furnish<'g>(&self, group: &'g Group) -> Result<Site<'g>> {
        let name = self.postgres.create_unique_database("conformance")?;
        let site = Site { source: self.postgres.url(&name), name, group };
        let mut client = site.connect()?;
        for sql in &group.database {
            let sql = sql.replace("{database}", &site.name);
            client.batch_execute(&sql).with_context(|| format!("group {:?}: {sql}", group.name))?;
        }
        for (number, case) in group.cases.iter().enumerate() {
            let schema = schema(number);
            client.batch_execute(&format!("CREATE SCHEMA {schema}; SET search_path = {schema}, public"))?;
            for sql in &case.table {
                client.batch_execute(sql).with_context(|| format!("case {:?}: {sql}", case.name))?;
            }
        }
        client.batch_execute("RESET search_path")?;
        let what = group.publication.as_deref().unwrap_or("FOR TABLE {tables} WITH (publish = 'insert')");
        let tables: Option<String> = client.query_one(TABLES, &[])?.get(0);
        let what = match tables {
            Some(tables) => what.replace("{tables}", &tables),
            None => what.replace("FOR TABLE {tables}", ""),
        };
        client.batch_execute(&format!("CREATE PUBLICATION {PUBLICATION} {what}"))?;
        Ok(site)
    }

    /// Drops the group's slots and its database: their WAL and files would stay.
    ///
    /// # Errors
    /// The server refuses.
    pub fn clear(&self, site: &Site<'_>) -> Result<()> {
        let mut client = self.postgres.connect(None)?;
        let held = "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE database = $1 AND active";
        process::wait_until(LONG, "nobody to read the slots", || {
            let released = client.query(held, &[&site.name])?.is_empty();
            Ok(released && server::drop_database(&mut client, &site.name).is_ok())
        })
    }

    /// Makes the topics that the group's records are in.
    ///
    /// # Errors
    /// Kafka refuses.
    pub fn make_topics(&self, group: &Group) -> Result<()> {
        make_topics(self.kafka(), &group.topics())
    }

    /// Everything in the group's topics.
    ///
    /// # Errors
    /// Kafka does not answer.
    pub fn read(&self, group: &Group) -> Result<Vec<consume::Record>> {
        let topics: Vec<&str> = group.topics().into_keys().collect();
        consume::read_to_end(&self.kafka().client_config(), &topics)
    }

    fn arguments(&self, site: &Site<'_>, group: &Group) -> Result<Vec<String>> {
        // A busy Kafka makes a thousand topics in more than the default. The relay would come back and repeat records.
        let mut arguments = vec!["run".to_owned(), "--disconnect-after=10min".to_owned()];
        if group.is_debezium() {
            let files = site.files(&self.folder, &site.name, &self.kafka().brokers())?;
            arguments.extend(files.into_iter().map(|file| format!("--from-debezium={}", file.display())));
        } else {
            let login = group.login.as_deref().unwrap_or("postgres");
            let source = site.source.replace("postgres@", &format!("{login}@"));
            let place = [("source", source), ("publication", PUBLICATION.to_owned()), ("slot", site.name.clone())];
            arguments.extend(place.map(|(flag, value)| format!("--{flag}={value}")));
            arguments.push(format!("--brokers={}", self.kafka().brokers()));
        }
        arguments.extend(group.settings.iter().cloned());
        Ok(arguments)
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.folder));
    }
}

impl Site<'_> {
    /// The same database with another configuration.
    pub fn with<'g>(&self, group: &'g Group) -> Site<'g> {
        Site { name: self.name.clone(), source: self.source.clone(), group }
    }

    /// A new connection, as superuser.
    ///
    /// # Errors
    /// The server does not answer.
    pub fn connect(&self) -> Result<Client> {
        Client::connect(&self.source, NoTls).context("cannot connect to the case's database")
    }

    /// Makes a slot, as the group says it.
    ///
    /// # Errors
    /// The server refuses.
    pub fn make_slot(&self, name: &str) -> Result<()> {
        let plain = "SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')";
        let sql = self.group.slot.as_deref().unwrap_or(plain).replace("{slot}", name);
        self.connect()?.batch_execute(&sql).with_context(|| format!("cannot create the slot: {sql}"))
    }

    /// Runs the statements of all cases. `come`: how many records have come.
    ///
    /// # Errors
    /// One of them fails, or the records do not come that it waits for.
    pub fn write(&self, come: &mut dyn FnMut() -> Result<usize>) -> Result<()> {
        self.group.cases.iter().enumerate().try_for_each(|(number, case)| self.write_case(&schema(number), case, come))
    }

    fn write_case(&self, schema: &str, case: &Case, come: &mut dyn FnMut() -> Result<usize>) -> Result<()> {
        let mut sessions = BTreeMap::new();
        for statement in &case.statements {
            let (name, sql) = match statement {
                Statement::Own(sql) => ("", sql),
                Statement::Other { session, sql } => (session.as_str(), sql),
                Statement::Await { records } => {
                    process::wait_until(LONG, &format!("{records} records"), || Ok(come()? >= *records))?;
                    continue;
                }
            };
            if !sessions.contains_key(name) {
                sessions.insert(name, self.session(schema)?);
            }
            let Some(session) = sessions.get_mut(name) else { continue };
            session.batch_execute(sql).with_context(|| format!("case {:?}: {sql}", case.name))?;
        }
        Ok(())
    }

    fn session(&self, schema: &str) -> Result<Client> {
        let mut client = self.connect()?;
        client.batch_execute(&format!(
            "SET standard_conforming_strings = on; SET DateStyle = 'ISO, MDY'; SET TimeZone = 'UTC'; SET IntervalStyle = 'postgres'; SET search_path = {schema}, public"
        ))?;
        Ok(client)
    }

    /// Waits until everything that is committed now is confirmed, or `ended` gives an exit code.
    ///
    /// # Errors
    /// Neither is so in time.
    pub fn wait_confirmed(&self, slot: &str, mut ended: impl FnMut() -> Result<Option<i32>>) -> Result<Option<i32>> {
        let mut client = self.connect()?;
        let end: String = client.query_one("SELECT pg_current_wal_insert_lsn()::text", &[])?.get(0);
        let sql = "SELECT confirmed_flush_lsn >= $1::text::pg_lsn FROM pg_replication_slots WHERE slot_name = $2";
        let mut code = None;
        process::wait_until(LONG, &format!("{end} to be confirmed"), || {
            std::thread::sleep(Duration::from_millis(10));
            code = ended()?;
            let confirmed = client.query_one(sql, &[&end, &slot])?.get::<_, Option<bool>>(0);
            Ok(code.is_some() || confirmed == Some(true))
        })?;
        Ok(code)
    }

    /// The server's clock, in milliseconds.
    ///
    /// # Errors
    /// The server does not answer.
    pub fn now(&self) -> Result<i64> {
        let sql = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint";
        Ok(self.connect()?.query_one(sql, &[])?.get(0))
    }

    fn oracles(&self) -> Result<Vec<Option<Vec<Record>>>> {
        let ask = |(number, case): (usize, &Case)| {
            let Some(query) = &case.oracle else { return Ok(None) };
            oracle::records(&mut self.connect()?, &schema(number), query).map(Some)
        };
        self.group.cases.iter().enumerate().map(ask).collect()
    }

    /// Starts the tool by the group's files and settings, without waiting for it.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start_relay(&self, ground: &Ground, binary: &Path) -> Result<Relay> {
        Relay::start(binary, &ground.arguments(self, self.group)?, &self.group.variables())
    }

    /// Starts Debezium by the group's files, on that slot and those brokers: a connector in the worker, or a Server of its own.
    ///
    /// # Errors
    /// It does not start, or a group of Kafka Connect's has no worker.
    pub fn start_debezium<'w>(
        &self,
        ground: &Ground,
        slot: &str,
        brokers: &str,
        worker: Option<&'w Worker>,
    ) -> Result<Running<'w>> {
        if self.group.connect.is_some() {
            let worker = worker.context("no Kafka Connect worker")?;
            worker.add(slot, &self.connector(slot)?)?;
            return Ok(Running::Connector { worker, name: slot.to_owned() });
        }
        let files = self.files(ground.folder(), slot, brokers)?;
        let properties = fs::read_to_string(files.first().context("no properties")?)?;
        let Group { files, variables, .. } = self.group;
        Ok(Running::Server(Box::new(Debezium::start(ground.folder(), &properties, files, variables)?)))
    }

    /// Waits until Debezium reads the slot.
    ///
    /// # Errors
    /// It ends before, or time is up.
    pub fn wait_streaming(&self, slot: &str, debezium: &mut Running<'_>) -> Result<()> {
        let mut client = self.connect()?;
        let active = process::wait_until(LONG, "Debezium to stream", || {
            std::thread::sleep(Duration::from_millis(50));
            if let Ok(State::Failed(why)) = debezium.state() {
                bail!("Debezium does not start: {why}");
            }
            is_read(&mut client, slot)
        });
        active.with_context(|| debezium.tail())
    }

    /// Waits until nobody reads the slot.
    ///
    /// # Errors
    /// Time is up.
    pub fn wait_released(&self, slot: &str) -> Result<()> {
        let mut client = self.connect()?;
        process::wait_until(LONG, "nobody to read the slot", || {
            std::thread::sleep(Duration::from_millis(50));
            Ok(!is_read(&mut client, slot)?)
        })
    }

    /// The configuration of the group's connector, with its addresses and this slot. Its worker's converters are among them,
    /// where the connector names none of its own: one worker runs the connectors of many.
    fn connector(&self, slot: &str) -> Result<BTreeMap<String, String>> {
        let connect = self.group.connect.as_ref().context("a group of Kafka Connect's")?;
        let mut config = connect.config.clone();
        for part in ["key.converter", "value.converter", "header.converter"] {
            if connect.config.contains_key(part) {
                continue;
            }
            // Kafka Connect looks at a converter's options where its class is named, and nowhere else.
            config.retain(|key, _| !key.starts_with(part));
            let worker = connect.worker.iter().filter_map(|line| line.split_once('='));
            let of_part = worker.filter(|(key, _)| key.starts_with(part));
            config.extend(of_part.map(|(key, value)| (key.to_owned(), value.to_owned())));
        }
        // A worker's connectors share its producer's settings; here each brings its own.
        let producer = connect.worker.iter().filter_map(|line| line.strip_prefix("producer.")?.split_once('='));
        for (key, value) in producer {
            config.entry(format!("producer.override.{key}")).or_insert_with(|| value.to_owned());
        }
        config.extend(self.place(slot)?);
        Ok(config)
    }

    fn place(&self, slot: &str) -> Result<BTreeMap<String, String>> {
        let config: ::postgres::Config = self.source.parse()?;
        let port = config.get_ports().first().copied().unwrap_or(5432).to_string();
        let place = [
            ("database.hostname", "127.0.0.1"),
            ("database.port", &port),
            ("database.user", "postgres"),
            ("database.password", "none"),
            ("database.dbname", &self.name),
            ("slot.name", slot),
            ("publication.name", PUBLICATION),
        ];
        Ok(place.map(|(key, value)| (key.to_owned(), value.to_owned())).into())
    }

    /// Writes the files of the group's Debezium into `folder`.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn files(&self, folder: &Path, slot: &str, brokers: &str) -> Result<Vec<PathBuf>> {
        let place = self.place(slot)?;
        let Some(connect) = &self.group.connect else {
            let mut lines: Vec<String> =
                place.iter().map(|(key, value)| format!("debezium.source.{key}={value}")).collect();
            lines.push(format!("debezium.sink.kafka.producer.bootstrap.servers={brokers}"));
            lines.extend(self.group.debezium.iter().cloned());
            let root = folder.join(slot);
            for (path, text) in &self.group.files {
                put(&root.join(path), text)?;
            }
            return Ok(vec![put(&root.join("config/application.properties"), &lines.join("\n"))?]);
        };
        let mut config = connect.config.clone();
        config.extend(place);
        let connector = serde_json::json!({ "name": slot, "config": config }).to_string();
        let worker = [vec![format!("bootstrap.servers={brokers}")], connect.worker.clone()].concat().join("\n");
        Ok(vec![
            put(&folder.join(format!("{slot}.json")), &connector)?,
            put(&folder.join(format!("{slot}-worker.properties")), &worker)?,
        ])
    }
}

fn put(path: &Path, text: &str) -> Result<PathBuf> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(path, format!("{text}\n")).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path.to_owned())
}

fn is_read(client: &mut Client, slot: &str) -> Result<bool> {
    Ok(client.query_one("SELECT active FROM pg_replication_slots WHERE slot_name = $1", &[&slot])?.get(0))
}

/// The schema of a group's case.
fn schema(number: usize) -> String {
    format!("c{}", number + 1)
}

/// Makes topics with so many partitions each, all at once.
///
/// # Errors
/// Kafka refuses.
pub fn make_topics(kafka: &Kafka, topics: &BTreeMap<&str, u32>) -> Result<()> {
    let counts: BTreeSet<u32> = topics.values().copied().collect();
    counts.into_iter().try_for_each(|count| {
        let names: Vec<&str> = topics.iter().filter(|(_, its)| **its == count).map(|(name, _)| *name).collect();
        kafka.create_topics(&names, count, &[("max.message.bytes", LARGEST)])
    })
}
