//! A page of the manual, as somebody follows it: its blocks one after the other, each command with what it prints.
//!
//! `walrelay` is the binary, `kafka-console-consumer.sh` Kafka's own tool, `psql` and `curl` are clients of ours, and `docker compose` stands for
//! the same services without containers. Where the page names the usual addresses, those of the test's servers are used. A Postgres for each
//! page, since slots have the names of the page.

use super::blocks::{Block, Step, blocks};
use super::compare::{is_all, is_among};
use super::shell::words;
use crate::lane::{LONG, binary};
use postgres::{Client, NoTls, SimpleQueryMessage};
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use walrelay_dev::kafka::{Kafka, shared_kafka};
use walrelay_dev::postgres::{Options, Postgres};
use walrelay_dev::process::wait_until;
use walrelay_dev::{http, run_dir};

/// The database of the examples.
const DATABASE: &str = "shop";

/// The ports of the examples: of Postgres and of Kafka.
const POSTGRES: [&str; 2] = ["localhost:5432", "127.0.0.1:25432"];
const KAFKA: [&str; 3] = ["localhost:9092", "kafka:9092", "kafka:19092"];

/// The usual port of a relay's HTTP.
const HTTP: u16 = 9464;

pub(crate) struct Page {
    path: &'static str,
    blocks: VecDeque<Block>,
    postgres: Postgres,
    kafka: &'static Kafka,
    environment: BTreeMap<String, String>,
    /// Ports that the page names, and the free ones in their place.
    ports: BTreeMap<u16, u16>,
    /// What runs until it is stopped.
    running: Vec<Running>,
    folder: tempfile::TempDir,
}

/// A command that does not end by itself.
struct Running {
    child: Child,
    output: PathBuf,
}

impl Page {
    /// The blocks of a page that somebody can run here, on a server with the database of the examples.
    pub(crate) fn open(path: &'static str) -> Self {
        Self::with(path, &[])
    }

    /// As [`Page::open`], with settings of Postgres.
    pub(crate) fn with(path: &'static str, settings: &[(&str, &str)]) -> Self {
        let text = fs::read_to_string(walrelay_dev::repository().join(path)).unwrap();
        let run = blocks(&text).into_iter().filter(|block| block.not_run.is_none());
        let mut page = Self {
            path,
            blocks: run.collect(),
            postgres: server(settings),
            kafka: shared_kafka().unwrap(),
            environment: BTreeMap::new(),
            ports: BTreeMap::new(),
            running: Vec::new(),
            folder: tempfile::tempdir().unwrap(),
        };
        page.prepare();
        page
    }

    /// A reader who begins again, elsewhere.
    pub(crate) fn start_over(&mut self) {
        self.stop();
        self.postgres = server(&[]);
        self.prepare();
    }

    fn prepare(&mut self) {
        let http = self.port(HTTP);
        let settings = [
            ("DATABASE_URL", self.postgres.url(DATABASE)),
            ("WALRELAY_BROKERS", self.kafka.brokers()),
            ("WALRELAY_HTTP", format!("127.0.0.1:{http}")),
            ("WALRELAY_LOG_FORMAT", "text".to_owned()),
        ];
        self.environment = settings.map(|(name, value)| (name.to_owned(), value)).into();
    }

    /// What the reader has done before, in the database.
    pub(crate) fn sql(&self, statements: &str) {
        self.client().batch_execute(statements).unwrap();
    }

    /// One after the other, as psql sends them.
    fn statements(&self, sql: &str) {
        let bare: Vec<&str> = sql.lines().map(|line| line.split("--").next().unwrap()).collect();
        let mut client = self.client();
        for statement in bare.join("\n").split(';').filter(|statement| !statement.trim().is_empty()) {
            client.batch_execute(statement).unwrap_or_else(|error| panic!("{}: {statement}: {error}", self.path));
        }
    }

    fn client(&self) -> Client {
        Client::connect(&self.environment["DATABASE_URL"], NoTls).unwrap()
    }

    /// What the reader has done before, at the command line.
    pub(crate) fn before(&mut self, command: &str) {
        self.step(&Step { command: command.to_owned(), input: None, expected: vec!["…".to_owned()] });
    }

    /// Sets a variable for the commands that follow.
    pub(crate) fn set(&mut self, variable: &str, value: &str) {
        self.environment.insert(variable.to_owned(), value.to_owned());
    }

    /// A command that cannot do here what the page says.
    pub(crate) fn refused(&self, command: &str) {
        let words = words(command, &|_| String::new());
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let (code, said) = self.output(&words);
        assert_eq!(code, Some(2), "{}: {command}: {said}", self.path);
    }

    /// Runs the next block.
    #[track_caller]
    pub(crate) fn block(&mut self) {
        let block = self.blocks.pop_front().unwrap_or_else(|| panic!("{} has no further block", self.path));
        for step in block.steps() {
            self.step(&step);
        }
    }

    /// Runs the blocks that are left.
    #[track_caller]
    pub(crate) fn finish(mut self) {
        while !self.blocks.is_empty() {
            self.block();
        }
    }

    /// Waits until the slot has confirmed everything that is committed.
    pub(crate) fn wait_confirmed(&self, slot: &str) {
        let mut client = self.client();
        let end: String = client.query_one("SELECT pg_current_wal_lsn()::text", &[]).unwrap().get(0);
        let sql = "SELECT confirmed_flush_lsn >= $1::text::pg_lsn FROM pg_replication_slots WHERE slot_name = $2";
        let confirmed = || Ok(client.query_opt(sql, &[&end, &slot])?.is_some_and(|row| row.get(0)));
        wait_until(LONG, "the slot to confirm everything", confirmed).unwrap();
    }

    /// Ctrl-C, wherever something runs.
    pub(crate) fn stop(&mut self) {
        for Running { mut child, output } in self.running.drain(..) {
            let pid = rustix::process::Pid::from_child(&child);
            rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
            let ended = wait_until(LONG, "the end after Ctrl-C", || Ok(child.try_wait()?.is_some()));
            ended.unwrap_or_else(|error| panic!("{error}: {}", fs::read_to_string(&output).unwrap()));
        }
    }

    fn step(&mut self, step: &Step) {
        let command = self.with_our_addresses(&step.command);
        let words = words(&command, &|name| self.environment.get(name).cloned().unwrap_or_default());
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        self.command(&words, step);
    }

    fn with_our_addresses(&mut self, command: &str) -> String {
        let url = self.postgres.url("");
        let (_, address) = url.trim_end_matches('/').rsplit_once('@').unwrap();
        let command = POSTGRES.iter().fold(command.to_owned(), |command, known| command.replace(known, address));
        let brokers = self.kafka.brokers();
        let command = KAFKA.iter().fold(command, |command, known| command.replace(known, &brokers));
        let mut ours = String::new();
        for (place, piece) in command.split("--http :").enumerate() {
            if place > 0 {
                let digits: String = piece.chars().take_while(char::is_ascii_digit).collect();
                let port = self.port(digits.parse().unwrap());
                write!(ours, "--http 127.0.0.1:{port}{}", &piece[digits.len()..]).unwrap();
            } else {
                ours.push_str(piece);
            }
        }
        ours
    }

    /// A free port for one that the page names.
    fn port(&mut self, named: u16) -> u16 {
        *self.ports.entry(named).or_insert_with(|| run_dir::free_port().unwrap())
    }

    fn command(&mut self, words: &[&str], step: &Step) {
        match words {
            ["export", setting] => {
                let (name, value) = setting.split_once('=').unwrap();
                if let Some((_, database)) = value.rsplit_once('/').filter(|_| name == "DATABASE_URL")
                    && database != DATABASE
                {
                    self.postgres.create_database(database).unwrap();
                }
                self.set(name, value);
            }
            ["sql"] => self.statements(step.input.as_deref().unwrap()),
            ["psql", ..] => self.said(step, &self.psql(words, step.input.as_deref())),
            ["docker", "compose", "-f", file, "up", ..] => self.compose(file),
            ["docker", "compose", "-f", _, "exec", _, inside @ ..] => self.command(inside, step),
            ["walrelay", "run", ..] => self.relay(words, step),
            ["walrelay", ..] if words.contains(&"--every") => self.endless(words, step),
            ["walrelay", "status", ..] => self.looked(words, step),
            ["walrelay", ..] => {
                let said = self.ended(words);
                self.said(step, &said);
            }
            [tool, arguments @ ..] if tool.ends_with("kafka-console-consumer.sh") => self.consume(arguments, step),
            ["curl", .., address] => self.curl(address, step),
            _ => panic!("{}: nobody knows how to run {words:?}", self.path),
        }
    }

    #[track_caller]
    fn said(&self, step: &Step, said: &str) {
        let lines: Vec<&str> = said.lines().filter(|line| !line.is_empty()).collect();
        let Step { command, expected, .. } = step;
        assert!(
            expected.is_empty() || is_all(expected, &lines),
            "{}: {command}\n--- shows\n{}\n--- prints\n{said}",
            self.path,
            expected.join("\n")
        );
    }

    /// Ctrl-C ends it also where the tests run in the background, so that they were started with SIGINT ignored.
    fn new_command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("env");
        command.arg("--default-signal=INT").arg(binary());
        command.args(&words[1..]).envs(&self.environment).stdin(Stdio::null());
        command
    }

    /// Runs it to its end, which is a good one: what it printed, in the order in which it did.
    fn ended(&self, words: &[&str]) -> String {
        let (code, said) = self.output(words);
        assert_eq!(code, Some(0), "{}: {words:?}: {said}", self.path);
        said
    }

    fn output(&self, words: &[&str]) -> (Option<i32>, String) {
        let output = self.folder.path().join("output");
        let file = File::create(&output).unwrap();
        let status = self.new_command(words).stdout(file.try_clone().unwrap()).stderr(file).status().unwrap();
        (status.code(), fs::read_to_string(output).unwrap())
    }

    /// Looks until it is as the page shows it: what runs beside it may need a moment.
    fn looked(&self, words: &[&str], step: &Step) {
        let mut said = String::new();
        let shown = wait_until(LONG, "what the page shows", || {
            let code;
            (code, said) = self.output(words);
            let fails = step.expected.iter().any(|line| line.starts_with("error: "));
            assert_eq!(code == Some(0), !fails, "{}: {words:?}: {said}", self.path);
            let lines: Vec<&str> = said.lines().filter(|line| !line.is_empty()).collect();
            Ok(step.expected.is_empty() || is_all(&step.expected, &lines))
        });
        shown.unwrap_or_else(|error| {
            panic!("{}: {error}\n--- shows\n{}\n--- prints\n{said}", self.path, step.expected.join("\n"))
        });
    }

    /// Starts what does not end by itself, and waits until it has printed what is expected.
    fn start(&mut self, command: &mut Command, step: &Step) {
        let output = self.folder.path().join(format!("running-{}", self.running.len()));
        let file = File::create(&output).unwrap();
        let child = command.stdout(file.try_clone().unwrap()).stderr(file).spawn().unwrap();
        self.running.push(Running { child, output: output.clone() });
        let shown = wait_until(LONG, "what the page shows", || {
            let said = fs::read_to_string(&output)?;
            Ok(is_among(&step.expected, &said.lines().collect::<Vec<_>>()))
        });
        shown.unwrap_or_else(|error| {
            let said = fs::read_to_string(&output).unwrap();
            panic!(
                "{}: {}: {error}\n--- shows\n{}\n--- prints\n{said}",
                self.path,
                step.command,
                step.expected.join("\n")
            )
        });
    }

    fn endless(&mut self, words: &[&str], step: &Step) {
        let mut command = self.new_command(words);
        self.start(&mut command, step);
    }

    /// A relay, which streams when the next command comes.
    fn relay(&mut self, words: &[&str], step: &Step) {
        self.endless(words, step);
        let own = words.iter().skip_while(|word| **word != "--http").nth(1);
        let address = own.copied().unwrap_or_else(|| self.environment["WALRELAY_HTTP"].as_str());
        let port = address.rsplit_once(':').unwrap().1.parse().unwrap();
        let output = self.running.last().unwrap().output.clone();
        let ready = wait_until(LONG, "the relay to be ready", || {
            Ok(http::get(port, "/readyz").is_ok_and(|answer| answer.status == 200))
        });
        ready.unwrap_or_else(|error| panic!("{}: {error}: {}", self.path, fs::read_to_string(&output).unwrap()));
    }

    /// What `docker/compose.yaml` starts: the table, and the relay with the words and the variables of its service.
    fn compose(&mut self, file: &str) {
        let text = fs::read_to_string(walrelay_dev::repository().join(file)).unwrap();
        assert!(text.contains("- ../sql/outbox.sql:/docker-entrypoint-initdb.d/outbox.sql:ro"), "{text}");
        self.sql(&fs::read_to_string(walrelay_dev::repository().join("sql/outbox.sql")).unwrap());
        let command =
            text.lines().find_map(|line| line.trim().strip_prefix("command: ")?.strip_prefix("[\"run\"")).unwrap();
        let arguments: Vec<String> = serde_json::from_str(&format!("[\"run\"{command}")).unwrap();
        let words: Vec<&str> = ["walrelay"].into_iter().chain(arguments.iter().map(String::as_str)).collect();
        let url = self.postgres.url("");
        for line in text.lines().filter(|line| line.trim().starts_with("WALRELAY_")) {
            let (name, value) = line.trim().split_once(": ").unwrap();
            let value =
                value.replace("postgres://postgres@postgres/", &url).replace("kafka:19092", &self.kafka.brokers());
            self.set(name, &value);
        }
        let step = Step { command: words.join(" "), input: None, expected: Vec::new() };
        self.relay(&words, &step);
    }

    /// Kafka's own consumer, until it has shown what the page shows of this page's rows.
    fn consume(&mut self, arguments: &[&str], step: &Step) {
        let mut command = self.kafka.tool("org.apache.kafka.tools.consumer.ConsoleConsumer");
        command.args(arguments).stdin(Stdio::null());
        if arguments.contains(&"--max-messages") {
            let output = command.output().unwrap();
            assert!(output.status.success(), "{}: {}", self.path, String::from_utf8_lossy(&output.stderr));
            return self.said(step, &String::from_utf8_lossy(&output.stdout));
        }
        // Others write to topics of that name, too: the id is the row's.
        let id: String = self.client().query_one("SELECT max(id::text) FROM outbox", &[]).unwrap().get(0);
        let uuid = regex::Regex::new("[0-9a-f]{8}-[0-9a-f-]{27}").unwrap();
        let expected: Vec<String> =
            step.expected.iter().map(|line| uuid.replace_all(line, id.as_str()).into_owned()).collect();
        let output = self.folder.path().join("consumed");
        let file = File::create(&output).unwrap();
        let mut child = command.stdout(file).stderr(Stdio::null()).spawn().unwrap();
        let shown = wait_until(LONG, "the record", || {
            let said = fs::read_to_string(&output)?;
            Ok(expected.iter().all(|line| said.lines().any(|other| other == line)))
        });
        child.kill().unwrap();
        child.wait().unwrap();
        shown.unwrap_or_else(|error| {
            panic!(
                "{}: {error}\n--- shows\n{}\n--- prints\n{}",
                self.path,
                expected.join("\n"),
                fs::read_to_string(&output).unwrap()
            )
        });
    }

    /// `-w '%{http_code}\n'` is what the page asks for.
    fn curl(&self, address: &str, step: &Step) {
        let (port, path) = address.strip_prefix("localhost:").unwrap().split_once('/').unwrap();
        let port = self.ports[&port.parse::<u16>().unwrap()];
        let mut said = String::new();
        let shown = wait_until(LONG, "the answer", || {
            let answer = http::get(port, &format!("/{path}"))?;
            said = format!("{}\n{}\n", answer.body.trim_end(), answer.status);
            Ok(is_all(&step.expected, &said.lines().collect::<Vec<_>>()))
        });
        shown.unwrap_or_else(|error| panic!("{}: {error}: {said}", self.path));
    }

    /// What psql prints of statements that give no rows: their tags.
    fn psql(&self, words: &[&str], input: Option<&str>) -> String {
        let option = |name: &str| words.iter().skip_while(|word| **word != name).nth(1).copied();
        let file = option("-f").map(|file| fs::read_to_string(walrelay_dev::repository().join(file)).unwrap());
        let sql = option("-c").map(str::to_owned).or(file).or_else(|| input.map(str::to_owned)).unwrap();
        let mut said = String::new();
        let mut client = self.client();
        for statement in sql.split(';').map(str::trim).filter(|statement| !statement.is_empty()) {
            let messages = client.simple_query(statement).unwrap();
            let rows = messages.iter().find_map(|message| {
                if let SimpleQueryMessage::CommandComplete(rows) = message { Some(*rows) } else { None }
            });
            let rows = rows.unwrap_or_default();
            let verb = statement.split_whitespace().next().unwrap();
            match verb {
                "INSERT" => writeln!(said, "INSERT 0 {rows}"),
                "UPDATE" | "DELETE" => writeln!(said, "{verb} {rows}"),
                verb => writeln!(said, "{verb}"),
            }
            .unwrap();
        }
        said
    }
}

fn server(settings: &[(&str, &str)]) -> Postgres {
    let settings = settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let postgres = Postgres::start(&Options { settings, ..Options::default() }).unwrap();
    postgres.create_database(DATABASE).unwrap();
    postgres
}

impl Drop for Page {
    fn drop(&mut self) {
        for Running { child, .. } in &mut self.running {
            drop(child.kill());
            drop(child.wait());
        }
    }
}
