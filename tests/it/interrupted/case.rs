//! One database of the tests, the commands that run on it, and what is asked of it afterwards.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use postgres::Client;
use rustix::process::{Pid, Signal};
use serde_json::Value;
use walrelay_dev::postgres::{Options, Postgres, drop_database, quote_identifier, unique_name};
use walrelay_dev::process::{code, wait_until};
use walrelay_dev::relay::Relay;
use walrelay_dev::tap::statements::{Action, StatementTap, Stop};

use crate::lane::{LONG, binary};

/// How many cases run at once: most of the time they wait.
const AT_ONCE: usize = 4;

/// How long a relay runs that nothing stops: its first look at the slot comes after a second.
const STREAMING: Duration = Duration::from_secs(3);

/// The database that each case's is a copy of.
const TEMPLATE: &str = "interrupted_template";

/// Three outbox tables: with rows, without, and in partitions with and without. Their rows are a day old, and nobody has published them.
const TABLES: &str = "
    CREATE TABLE outbox (id text PRIMARY KEY, aggregatetype text NOT NULL DEFAULT 'order', aggregateid text DEFAULT 'k', payload text DEFAULT 'p',
                         created_at timestamptz NOT NULL DEFAULT now() - interval '1 day');
    CREATE TABLE calm (LIKE outbox INCLUDING ALL);
    CREATE TABLE parts (LIKE outbox INCLUDING ALL) PARTITION BY LIST (id);
    CREATE TABLE parts_full PARTITION OF parts FOR VALUES IN ('old-parts');
    CREATE TABLE parts_bare PARTITION OF parts DEFAULT;
    INSERT INTO outbox (id) VALUES ('old-1'), ('old-2');
    INSERT INTO parts (id) VALUES ('old-parts')";

/// The ids of those rows.
const OLD: [&str; 3] = ["old-1", "old-2", "old-parts"];

/// All three tables.
pub(crate) const ALL: &[&str] = &["outbox", "calm", "parts"];

/// Those without partitions, which need nothing more for shards.
pub(crate) const PLAIN: &[&str] = &["outbox", "calm"];

/// A command with tables.
pub(crate) fn with(command: &[&'static str], tables: &[&'static str]) -> Vec<&'static str> {
    command.iter().copied().chain(tables.iter().flat_map(|table| ["--table", *table])).collect()
}

/// One server for all cases. Nothing else runs on it, so that no other transaction holds up a slot.
fn server() -> &'static Postgres {
    static SERVER: OnceLock<Postgres> = OnceLock::new();
    SERVER.get_or_init(|| {
        let settings = walrelay_dev::settings(&[("fsync", "off"), ("autovacuum", "off")]);
        let server = Postgres::start(&Options { settings, ..Options::default() }).unwrap();
        server.create_database(TEMPLATE).unwrap();
        server.connect(Some(TEMPLATE)).unwrap().batch_execute(TABLES).unwrap();
        server
    })
}

/// A command that runs.
pub(crate) struct Process {
    child: Child,
    stdout: File,
    stderr: File,
}

impl Process {
    pub(crate) fn spawn(arguments: &[String]) -> Self {
        let (stdout, stderr) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        let child = Command::new(binary())
            .args(arguments)
            // `setup --backfill` takes the settings of `run` from here.
            .env("WALRELAY_TO", "stdout://")
            .stdin(Stdio::null())
            .stdout(stdout.try_clone().unwrap())
            .stderr(stderr.try_clone().unwrap())
            .spawn()
            .unwrap();
        Self { child, stdout, stderr }
    }

    pub(crate) fn exited(&mut self) -> Option<i32> {
        self.child.try_wait().unwrap().map(code)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    pub(crate) fn kill(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }

    pub(crate) fn stdout(&self) -> String {
        content(&self.stdout)
    }

    pub(crate) fn stderr(&self) -> String {
        content(&self.stderr)
    }

    #[track_caller]
    pub(crate) fn wait(&mut self) -> i32 {
        let mut code = None;
        let ended = wait_until(LONG, "the command to end", || {
            code = self.exited();
            Ok(code.is_some())
        });
        ended.unwrap_or_else(|error| panic!("{error}: {}", self.stderr()));
        code.unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// What was written, without moving the place where the process writes.
fn content(file: &File) -> String {
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(file));
    let (mut file, mut text) = (File::open(path).unwrap(), Vec::new());
    file.read_to_end(&mut text).unwrap();
    String::from_utf8_lossy(&text).into_owned()
}

/// The ids of the records in an output.
fn ids(output: &str) -> BTreeSet<String> {
    let records = output.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let id = |record: Value| {
        let headers = record.get("headers")?.as_array()?.clone();
        headers.iter().find(|header| header[0] == "id").and_then(|header| Some(header[1].as_str()?.to_owned()))
    };
    records.filter_map(id).collect()
}

/// How a command ended that was cut, or not.
#[derive(Debug)]
pub(crate) struct Ended {
    /// `None`: it was killed.
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    /// Whether the place to stop at was reached.
    pub(crate) stopped: bool,
    pub(crate) statements: Vec<String>,
}

/// What a command does once its connections are cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Nature {
    /// It ends.
    Ends,
    /// It tries again until Postgres is back, and is killed.
    Retries,
    /// So does one that runs until it is killed: here, once it has streamed for a while.
    Runs,
}

/// The records about the database that are in it.
#[derive(Debug, Default)]
pub(crate) struct Written {
    pub(crate) slots: BTreeSet<String>,
    /// Each line of walrelay in the comment of a publication.
    pub(crate) lines: Vec<String>,
    /// Each note of a slot.
    pub(crate) notes: Vec<String>,
    pub(crate) publications: BTreeSet<String>,
}

impl Written {
    /// The words of lines that begin with `kind`.
    pub(crate) fn of<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a str> {
        self.lines.iter().filter_map(move |line| line.strip_prefix(kind)?.strip_prefix(": "))
    }

    pub(crate) fn is_marked(&self, slot: &str) -> bool {
        self.of("walrelay slot").any(|marked| marked == slot)
    }

    /// Whether a line says that the slot is to be created, or is a shard's that has not begun.
    fn is_intended(&self, slot: &str) -> bool {
        self.of("walrelay creating").any(|intended| intended == slot)
            || self.of("walrelay shard").any(|shard| shard.split(' ').nth(1) == Some(slot))
    }

    /// The slot is there and marked, with one line of each kind, and nothing says that something is still to be done.
    #[track_caller]
    fn is_whole(&self, slot: &str) {
        assert!(self.slots.contains(slot) && self.is_marked(slot), "{self:#?}");
        for kind in ["walrelay slot", "walrelay since", "walrelay slot at", "walrelay empty"] {
            let of_slot = self.of(kind).filter(|words| words.split(' ').next() == Some(slot)).count();
            assert_eq!(of_slot, 1, "{kind}: {self:#?}");
        }
        assert_eq!(self.of("walrelay creating").count() + self.of("walrelay move").count(), 0, "{self:#?}");
    }

    pub(crate) fn token(&self, slot: &str) -> Option<&str> {
        self.of("walrelay empty").find_map(|words| words.strip_prefix(slot)?.trim_start().split(' ').next())
    }
}

/// A database with its publication and slot, all of one name.
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) client: Client,
    /// The ids in records until now.
    pub(crate) delivered: BTreeSet<String>,
    /// The tokens of markers whose slot was there.
    tokens: BTreeSet<String>,
    /// A person has said that all rows are published.
    pub(crate) stated: bool,
    /// Those that are published.
    pub(crate) tables: &'static [&'static str],
    /// Further flags of each relay.
    pub(crate) flags: Vec<&'static str>,
    /// Relays that run meanwhile.
    pub(crate) relays: Vec<Relay>,
}

impl Case {
    pub(crate) fn new(tables: &'static [&'static str]) -> Self {
        let (server, name) = (server(), unique_name("cut"));
        let create = format!("CREATE DATABASE {} TEMPLATE {TEMPLATE}", quote_identifier(&name));
        server.connect(None).unwrap().batch_execute(&create).unwrap();
        let client = server.connect(Some(&name)).unwrap();
        Self {
            name,
            client,
            delivered: BTreeSet::new(),
            tokens: BTreeSet::new(),
            stated: false,
            tables,
            flags: Vec::new(),
            relays: Vec::new(),
        }
    }

    /// After `setup --apply`.
    pub(crate) fn set_up(tables: &'static [&'static str]) -> Self {
        let mut case = Self::new(tables);
        case.done(&with(&["setup", "--apply"], tables));
        case.lines_are_true();
        case
    }

    /// With a relay that has noted what it reads.
    pub(crate) fn noted(tables: &'static [&'static str]) -> Self {
        let mut case = Self::set_up(tables);
        case.start_relay(&[]);
        case.end_relays();
        case
    }

    /// The ids of the rows that nobody has published at the beginning.
    pub(crate) fn old(&self) -> Vec<&'static str> {
        let is_published = |id: &&str| self.tables.contains(&"parts") || *id != "old-parts";
        OLD.into_iter().filter(is_published).collect()
    }

    /// The arguments of a command, over this address.
    fn arguments(&self, address: &str, command: &[&str]) -> Vec<String> {
        let source = format!("postgres://postgres@{address}/{}?sslmode=disable&application_name=cut", self.name);
        let place = ["--source", &source, "--publication", &self.name, "--slot", &self.name];
        let to: &[&str] = if matches!(command[0], "run" | "backfill") { &["--to", "stdout://"] } else { &[] };
        let http: &[&str] = if command[0] == "run" { &["--http", "off"] } else { &[] };
        command[..1]
            .iter()
            .chain(&place)
            .chain(to)
            .chain(http)
            .chain(&command[1..])
            .map(|&word| word.to_owned())
            .collect()
    }

    /// Starts a command.
    pub(crate) fn spawn(&self, command: &[&str]) -> Process {
        Process::spawn(&self.arguments(&address(), command))
    }

    /// Starts a command behind a tap.
    pub(crate) fn spawn_behind(&self, tap: &StatementTap, command: &[&str]) -> Process {
        Process::spawn(&self.arguments(&tap.address(), command))
    }

    /// Runs a command to its end.
    pub(crate) fn output(&mut self, command: &[&str]) -> Ended {
        let mut process = self.spawn(command);
        let code = process.wait();
        self.ended(&process, Some(code), None)
    }

    /// Runs a command to its good end.
    #[track_caller]
    pub(crate) fn done(&mut self, command: &[&str]) -> String {
        let ended = self.output(command);
        assert_eq!(ended.code, Some(0), "{command:?} {ended:#?}");
        ended.stdout + &ended.stderr
    }

    /// Takes note of what has come out.
    pub(crate) fn ended(&mut self, process: &Process, code: Option<i32>, tap: Option<&StatementTap>) -> Ended {
        let (stdout, stderr) = (process.stdout(), process.stderr());
        self.delivered.extend(ids(&stdout));
        Ended {
            code,
            stdout,
            stderr,
            stopped: tap.is_some_and(StatementTap::is_stopped),
            statements: tap.map(StatementTap::statements).unwrap_or_default(),
        }
    }

    /// Runs a command that is stopped somewhere.
    #[track_caller]
    pub(crate) fn stopped(&mut self, command: &[&str], nature: Nature, stop: Option<Stop>) -> Ended {
        let tap = StatementTap::start(&address(), |_| true, stop).unwrap();
        let mut process = self.spawn_behind(&tap, command);
        let (mut code, mut streams_since) = (None, None);
        let waited = wait_until(LONG, "the command to end", || {
            code = process.exited();
            if streams_since.is_none() && tap.statements().iter().any(|sql| sql.starts_with("START_REPLICATION")) {
                streams_since = Some(Instant::now());
            }
            let has_run = || streams_since.is_some_and(|since| since.elapsed() > STREAMING);
            let is_over = match nature {
                Nature::Ends => false,
                Nature::Retries => is_final(stop) && tap.is_stopped(),
                Nature::Runs => is_final(stop) && tap.is_stopped() || has_run(),
            };
            Ok(code.is_some() || is_over)
        });
        waited.unwrap_or_else(|error| panic!("{error}: {}", process.stderr()));
        process.kill();
        self.quiet();
        self.ended(&process, code, Some(&tap))
    }

    /// Waits until the server has seen the end of the commands' sessions.
    #[track_caller]
    pub(crate) fn quiet(&mut self) {
        let sql =
            "SELECT count(*) = 0 FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'cut'";
        wait_until(LONG, "the sessions to end", || Ok(self.client.query_one(sql, &[])?.get(0))).unwrap();
    }

    pub(crate) fn texts(&mut self, sql: &str) -> Vec<String> {
        self.client.query(sql, &[]).unwrap().iter().map(|row| row.get(0)).collect()
    }

    pub(crate) fn written(&mut self) -> Written {
        let slots =
            "SELECT slot_name::text FROM pg_replication_slots WHERE database = current_database() AND NOT temporary";
        let lines = "SELECT l FROM pg_publication AS p, regexp_split_to_table(obj_description(p.oid, 'pg_publication'), '\n') AS l
                      WHERE starts_with(l, 'walrelay ')";
        let notes = "SELECT description FROM pg_description
                      WHERE classoid = 'pg_largeobject'::regclass AND starts_with(description, 'walrelay ')";
        Written {
            slots: self.texts(slots).into_iter().collect(),
            lines: self.texts(lines),
            notes: self.texts(notes),
            publications: self.texts("SELECT pubname::text FROM pg_publication").into_iter().collect(),
        }
    }

    /// What walrelay has written is true: each slot has a line, each marker is of a slot that was there, and no table that is said to have been
    /// empty, or to be published, has a row that is nowhere else.
    #[track_caller]
    pub(crate) fn lines_are_true(&mut self) -> Written {
        let written = self.written();
        for slot in &written.slots {
            assert!(written.is_marked(slot) || written.is_intended(slot), "slot {slot} has no line: {written:#?}");
            self.tokens.extend(written.token(slot).map(str::to_owned));
        }
        let marked: Vec<String> = written.of("walrelay slot").map(str::to_owned).collect();
        for slot in marked {
            assert!(!written.of("walrelay creating").any(|intended| intended == slot), "both: {written:#?}");
            let token = written.token(&slot);
            assert!(token.is_some(), "{slot} has a marker without a token: {written:#?}");
            let was_there = written.slots.contains(&slot) || token.is_some_and(|token| self.tokens.contains(token));
            assert!(was_there, "the slot {slot} never was: {written:#?}");
        }
        if !self.stated {
            self.known_tables_have_no_lost_row(&written);
        }
        written
    }

    #[track_caller]
    fn known_tables_have_no_lost_row(&mut self, written: &Written) {
        let lists = ["walrelay empty", "walrelay published"].iter().flat_map(|kind| written.of(kind));
        let listed = lists.filter_map(|words| words.rsplit(' ').next()).flat_map(|list| list.split(','));
        let listed = listed.filter_map(|word| word.split_once(':')).map(|(oid, _)| oid.to_owned());
        let noted = written.notes.iter().filter(|note| note.starts_with("walrelay tables: ")).flat_map(|note| {
            let json: Value = serde_json::from_str(&note[note.find('{').unwrap()..]).unwrap();
            json["tables"].as_object().unwrap().keys().cloned().collect::<Vec<_>>()
        });
        let oids: BTreeSet<String> = listed.chain(noted).collect();
        for oid in oids {
            let sql = format!("SELECT oid::regclass::text FROM pg_class WHERE oid = {oid} AND relkind = 'r'");
            for table in self.texts(&sql) {
                let rows = self.texts(&format!("SELECT id FROM ONLY {table}"));
                let lost: Vec<_> =
                    rows.iter().filter(|id| OLD.contains(&id.as_str()) && !self.delivered.contains(*id)).collect();
                assert!(lost.is_empty(), "{table} is known, and has {lost:?}: {written:#?}");
            }
        }
    }

    /// Publication, slot and marker are there, and nothing says that something is still to be done.
    #[track_caller]
    pub(crate) fn is_set_up(&mut self) -> Written {
        let (name, written) = (self.name.clone(), self.lines_are_true());
        written.is_whole(&name);
        written
    }

    /// So it is with all shards of a set, and there is no other slot.
    #[track_caller]
    pub(crate) fn has_shards(&mut self, count: u32) -> Written {
        let written = self.lines_are_true();
        let names: BTreeSet<String> = (0..count).map(|index| format!("{}_{index}_of_{count}", self.name)).collect();
        for name in &names {
            written.is_whole(name);
        }
        assert!(written.slots == names && written.publications.is_superset(&names), "{written:#?}");
        written
    }

    /// Inserts a row into each table.
    pub(crate) fn insert(&mut self, tables: &[&str], id: &str) {
        for table in tables {
            self.client.batch_execute(&format!("INSERT INTO {table} (id) VALUES ('{id}-{table}')")).unwrap();
        }
    }

    /// All ids in all tables that are published.
    pub(crate) fn rows(&mut self) -> BTreeSet<String> {
        let each: Vec<String> = self.tables.iter().map(|table| format!("SELECT id FROM {table}")).collect();
        self.texts(&each.join(" UNION ALL ")).into_iter().collect()
    }

    /// The slot has a row, and its publication sends it.
    #[track_caller]
    pub(crate) fn slot_has(&mut self, id: &str) {
        let sql = "SELECT count(*) FROM pg_logical_slot_peek_binary_changes($1, NULL, NULL, 'proto_version', '1', 'publication_names', $2)
                    WHERE get_byte(data, 0) = ascii('I') AND position(convert_to($3, 'UTF8') IN data) > 0";
        let found: i64 = self.client.query_one(sql, &[&self.name, &quote_identifier(&self.name), &id]).unwrap().get(0);
        assert_eq!(found, 1, "{id} is not in the slot");
    }

    /// Starts a relay, and waits until it streams.
    #[track_caller]
    pub(crate) fn start_relay(&mut self, more: &[&str]) {
        let words = [&["run", "--shutdown-timeout=50s"], &self.flags[..], more].concat();
        let mut arguments = self.arguments(&address(), &words);
        // The harness gives it an address of its own for HTTP. Its sessions are not waited for.
        let off = arguments.iter().position(|word| word == "off").unwrap();
        arguments.drain(off - 1..=off);
        let arguments: Vec<String> = arguments.iter().map(|word| word.replace("&application_name=cut", "")).collect();
        let mut relay = Relay::start(&binary(), &arguments, &[] as &[(&str, &str)]).unwrap();
        relay.wait_streaming(LONG).unwrap();
        self.relays.push(relay);
    }

    /// Takes note of the records that relays have written.
    fn gather(&mut self) {
        self.delivered.extend(self.relays.iter().flat_map(|relay| ids(&relay.stdout())));
    }

    /// Waits until records of these rows have come.
    #[track_caller]
    pub(crate) fn wait_delivered(&mut self, wanted: &[&str]) {
        let came = wait_until(LONG, "records", || {
            self.gather();
            Ok(wanted.iter().all(|id| self.delivered.contains(*id)))
        });
        came.unwrap_or_else(|error| {
            let logs: Vec<String> = self.relays.iter().map(Relay::log).collect();
            panic!("{error} {wanted:?}: {:?} {logs:?}", self.delivered)
        });
    }

    /// Ends the relays, of which some may have ended since they are no longer needed.
    #[track_caller]
    pub(crate) fn end_relays(&mut self) {
        for relay in &mut self.relays {
            if relay.exited().unwrap().is_none() {
                let code = relay.terminate(LONG).unwrap().code;
                assert!(matches!(code, 0 | 2), "{code}: {}", relay.log());
            }
        }
        self.gather();
        self.relays.clear();
    }

    /// Runs `prune`, and checks that it deletes only rows of which there is a record. Returns its exit code and its words.
    #[track_caller]
    pub(crate) fn pruned(&mut self, more: &[&str]) -> (i32, String) {
        let before = self.rows();
        let ended = self.output(&[&["prune", "--older-than", "1h", "--timeout", "60s"], more].concat());
        self.nothing_lost(&before);
        (ended.code.unwrap(), ended.stdout + &ended.stderr)
    }

    /// Each of these rows is there, or there is a record of it, or a person has said so.
    #[track_caller]
    pub(crate) fn nothing_lost(&mut self, before: &BTreeSet<String>) {
        let left = self.rows();
        self.gather();
        let is_known = |id: &&String| {
            left.contains(*id) || self.delivered.contains(*id) || self.stated && OLD.contains(&id.as_str())
        };
        let lost: Vec<_> = before.iter().filter(|id| !is_known(id)).collect();
        assert!(lost.is_empty(), "deleted, and in no record: {lost:?}");
    }

    /// A relay carries new rows, and these; `prune` deletes rows of the table that was empty, if that is known; `backfill` publishes all rows, and
    /// then `prune` deletes them.
    #[track_caller]
    pub(crate) fn works(&mut self, also: &[&str], calm_is_known: bool) {
        self.insert(self.tables, "last");
        self.start_relay(&[]);
        let last: Vec<String> = self.tables.iter().map(|table| format!("last-{table}")).collect();
        self.wait_delivered(&last.iter().map(String::as_str).chain(also.iter().copied()).collect::<Vec<_>>());
        if calm_is_known {
            let (code, text) = self.pruned(&["--table", "calm"]);
            assert!(code == 0 && !self.rows().contains("last-calm"), "{text} {:#?}", self.written());
        }
        self.pruned(&["--table", "outbox"]);
        let text = self.done(&["backfill", "--yes"]);
        assert!(self.stated || self.old().iter().all(|id| self.delivered.contains(*id)), "{:?} {text}", self.delivered);
        let (code, said) = self.pruned(&[]);
        assert!(code == 0 && self.rows().is_empty(), "{code} {said} {text} {:#?}", self.written());
        self.end_relays();
        self.lines_are_true();
    }

    /// The relays of shards carry new rows.
    #[track_caller]
    pub(crate) fn shards_work(&mut self, count: u32) {
        self.insert(self.tables, "last");
        for index in 0..count {
            self.start_relay(&["--shard", &format!("{index}/{count}")]);
        }
        self.wait_delivered(&["last-outbox", "last-calm"]);
        self.pruned(&["--table", "calm"]);
        self.pruned(&[]);
        self.end_relays();
        self.lines_are_true();
    }
}

impl Drop for Case {
    fn drop(&mut self) {
        self.relays.clear();
        let Ok(mut client) = server().connect(None) else { return };
        drop(wait_until(Duration::from_secs(10), "the database to go", || {
            Ok(drop_database(&mut client, &self.name).is_ok())
        }));
    }
}

pub(crate) fn address() -> String {
    format!("127.0.0.1:{}", server().port())
}

/// Whether nothing of the command goes on behind it.
fn is_final(stop: Option<Stop>) -> bool {
    stop.is_some_and(|stop| stop.action == Action::CutAll)
}

/// Runs jobs side by side, and reports every one that fails.
#[track_caller]
pub(crate) fn all_hold<T: Sync>(jobs: &[T], show: impl Fn(&T) -> String + Sync, run: impl Fn(&T) + Sync) {
    let (next, failures) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| run(job))) {
                        let text = panic.downcast_ref::<String>().cloned();
                        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
                        failures.lock().unwrap().push(format!("{}: {}", show(job), text.unwrap_or_default()));
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{} of {} fail:\n{}", failures.len(), jobs.len(), failures.join("\n\n"));
}
