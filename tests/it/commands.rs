//! `setup`, `status` and `teardown` against a real server.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;
use walrelay::commands::{CommandCause, CommandError, Dialogue, setup, status, teardown};
use walrelay::outbox::TableName;
use walrelay::pg::source::{Environment, Source};
use walrelay::pg::{Connection, Purpose, catalog};
use walrelay::supervise::RunCause;
use walrelay_dev::postgres::{shared_postgres, unique_name};
use walrelay_dev::process::wait_until;

const PATIENCE: Duration = Duration::from_mins(2);

/// A database of its own with `public.outbox`, and names that no other test has.
struct Place {
    url: String,
    slot: String,
    publication: String,
}

impl Place {
    fn new() -> Self {
        let server = shared_postgres().unwrap();
        let url = server.url(&server.create_unique_database("commands").unwrap());
        let place = Self { url, slot: unique_name("slot"), publication: "walrelay".to_owned() };
        place.run("CREATE TABLE public.outbox (id bigint PRIMARY KEY, aggregatetype text, payload json)");
        place
    }

    fn source(&self) -> Source {
        Source::resolve(Some(&self.url), &Environment::default()).unwrap().source
    }

    fn source_as(&self, role: &str) -> Source {
        let url = self.url.replacen("postgres@", &format!("{role}@"), 1);
        Source::resolve(Some(&url), &Environment::default()).unwrap().source
    }

    fn connection(&self) -> Connection {
        Connection::open(&self.source(), Purpose::Control).unwrap()
    }

    #[track_caller]
    fn run(&self, sql: &str) {
        self.connection().query(sql).unwrap();
    }

    #[track_caller]
    fn value(&self, sql: &str) -> Option<String> {
        self.connection().query(sql).unwrap().first().and_then(|row| row.text(0)).map(str::to_owned)
    }

    fn slots(&self) -> String {
        self.value(&format!("SELECT count(*) FROM pg_replication_slots WHERE slot_name = '{}'", self.slot)).unwrap()
    }

    fn setup(&self) -> setup::SetupRequest {
        setup::SetupRequest {
            source: self.source(),
            publication: self.publication.clone(),
            slot: self.slot.clone(),
            tables: vec![outbox()],
            without_children: Vec::new(),
            apply: true,
            failover: false,
            role: None,
            create_table: false,
            shards: None,
            after_loss: false,
            published: false,
            yes: false,
            json: false,
            also_read_by: Vec::new(),
            typed_source: None,
        }
    }

    fn once(&self) -> Result<(), CommandError> {
        setup::once(&self.setup(), &|| false).map(drop)
    }

    fn status(&self, json: bool) -> (String, Result<(), CommandError>) {
        let (source, publication, slot) = (self.source(), self.publication.clone(), self.slot.clone());
        let request = status::StatusRequest { source, publication, slot, json, all: false, watch: None, http: None };
        let mut out = Vec::new();
        let outcome = status::status(&request, &mut out, false, &|| false);
        (String::from_utf8(out).unwrap(), outcome)
    }

    fn teardown_request(&self, publication_too: bool) -> teardown::TeardownRequest {
        teardown::TeardownRequest {
            source: self.source(),
            publication: self.publication.clone(),
            slot: self.slot.clone(),
            publication_too,
            shards: None,
            yes: true,
            unmarked: false,
            also_read_by: Vec::new(),
            typed_source: None,
        }
    }

    fn teardown(&self, publication_too: bool) -> (String, Result<(), CommandError>) {
        let request = self.teardown_request(publication_too);
        let mut out = Vec::new();
        let outcome = teardown::teardown(&request, &mut out, None);
        (String::from_utf8(out).unwrap(), outcome)
    }
}

/// Slots are few, and outlive their tests' databases.
impl Drop for Place {
    fn drop(&mut self) {
        self.run(&format!(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = '{}' AND NOT active",
            self.slot
        ));
    }
}

fn outbox() -> TableName {
    TableName { schema: "public".to_owned(), name: "outbox".to_owned() }
}

fn set_up(request: &setup::SetupRequest) -> (String, Result<(), CommandError>) {
    let mut out = Vec::new();
    let dialogue = Dialogue { out: &mut out, notes: &mut Vec::new(), terminal: None };
    let outcome = setup::setup(request, dialogue, &|| false);
    (String::from_utf8(out).unwrap(), outcome.map(drop))
}

#[track_caller]
fn done(request: &setup::SetupRequest) -> String {
    let (out, outcome) = set_up(request);
    outcome.unwrap();
    out
}

#[test]
fn the_printed_sql_is_all_that_a_database_needs() {
    let place = Place::new();
    place.run("DROP TABLE public.outbox");
    let role = unique_name("relay");
    let request = setup::SetupRequest { apply: false, create_table: true, role: Some(role), ..place.setup() };
    let script = done(&request);
    let script = script.strip_prefix("\\set ON_ERROR_STOP on\n").unwrap();
    let sql: String = script.lines().filter(|line| !line.starts_with("--")).flat_map(|line| [line, "\n"]).collect();
    for statement in sql.split(";\n").filter(|statement| !statement.trim().is_empty()) {
        place.run(statement);
    }
    let again = done(&request);
    assert!(again.starts_with("-- nothing to do"), "{again}");
    place.run(&format!("DROP OWNED BY {0}; DROP ROLE {0}", request.role.unwrap()));
}

#[test]
fn setup_does_it_once_and_says_so() {
    let place = Place::new();
    place.run("INSERT INTO public.outbox SELECT n FROM generate_series(1, 12) AS n");
    let request = place.setup();
    let out = done(&request);
    assert!(out.contains("created publication \"walrelay\" for public.outbox\n"), "{out}");
    assert!(out.contains("public.outbox holds 12 rows already"), "{out}");
    assert!(out.ends_with(&format!("next: walrelay run --slot {} --table public.outbox\n", place.slot)), "{out}");
    let again = done(&request);
    assert!(again.starts_with("nothing to do"), "{again}");
}

#[test]
fn rows_that_may_not_be_read_are_not_counted_and_that_is_said() {
    let place = Place::new();
    let role = unique_name("maker");
    place.run(&format!(
        "CREATE ROLE {role} LOGIN REPLICATION; GRANT CREATE ON DATABASE {} TO {role};
         CREATE PUBLICATION walrelay FOR TABLE public.outbox; ALTER PUBLICATION walrelay OWNER TO {role}",
        place.source().dbname
    ));
    let out = done(&setup::SetupRequest { source: place.source_as(&role), ..place.setup() });
    assert!(out.contains("could not be counted (permission denied for table outbox"), "{out}");
    place.run(&format!("DROP OWNED BY {role}; DROP ROLE {role}"));
}

#[test]
fn a_missing_right_is_named_and_nothing_is_changed() {
    let place = Place::new();
    let role = unique_name("weak");
    place.run(&format!("CREATE ROLE {role} LOGIN REPLICATION"));
    let request = setup::SetupRequest { source: place.source_as(&role), ..place.setup() };
    let error = set_up(&request).1.unwrap_err();
    assert_eq!((error.kind.exit_code(), error.to_string().starts_with("cannot create publication")), (2, true));
    assert!(
        error
            .remedy
            .as_ref()
            .unwrap()
            .to_string()
            .contains(&format!("GRANT CREATE ON DATABASE \"{}\"", place.source().dbname))
    );
    place.run(&format!(
        "ALTER ROLE {role} NOREPLICATION; GRANT CREATE ON DATABASE {} TO {role}; ALTER TABLE public.outbox OWNER TO {role}",
        place.source().dbname
    ));
    let error = set_up(&request).1.unwrap_err();
    assert_eq!(error.kind.exit_code(), 2);
    assert!(error.remedy.as_ref().unwrap().to_string().contains("REPLICATION"), "{error}");
    assert_eq!(place.value("SELECT count(*) FROM pg_publication").unwrap(), "0");
    assert_eq!(place.slots(), "0");
    place.run(&format!("DROP OWNED BY {role}; DROP ROLE {role}"));
}

#[test]
fn a_slot_from_before_its_publication_is_warned_of_in_words() {
    let place = Place::new();
    place.run(&format!("SELECT pg_create_logical_replication_slot('{}', 'pgoutput')", place.slot));
    place.run("INSERT INTO public.outbox VALUES (1)");
    let out = done(&place.setup());
    let warning = out.lines().find(|line| line.contains("is older than publication \"walrelay\"")).unwrap();
    let words = "drop this one, if nobody reads it, and run setup once more, with --after-loss;";
    assert!(warning.contains(words), "{out}");
    // A statement that moves the slot would lose rows.
    assert!(!warning.contains("SELECT"), "{out}");
    // The words, followed to the letter.
    place.run(&format!("SELECT pg_drop_replication_slot('{}')", place.slot));
    let out = done(&setup::SetupRequest { after_loss: true, ..place.setup() });
    assert!(out.contains("created slot") && !out.contains("is older than"), "{out}");
}

/// Runs `setup --apply` while a transaction holds the slot up, until `tell` sees a word about it and says to go on.
fn while_held_up(
    place: &Place,
    release: impl FnOnce(&mut Connection, &AtomicBool) + Send,
) -> (String, Result<(), CommandError>) {
    let mut holder = place.connection();
    holder.query("BEGIN").unwrap();
    holder.query("INSERT INTO public.outbox VALUES (1)").unwrap();
    let pid = holder.backend_pid().to_string();
    let (notes, stop) = (Mutex::new(Vec::new()), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let running = scope.spawn(|| {
            let mut out = Vec::new();
            let mut notes = Notes(&notes);
            let dialogue = Dialogue { out: &mut out, notes: &mut notes, terminal: None };
            let outcome = setup::setup(&place.setup(), dialogue, &|| stop.load(Ordering::Relaxed));
            (String::from_utf8(out).unwrap(), outcome.map(drop))
        });
        let noted = || String::from_utf8_lossy(&notes.lock().unwrap()).into_owned();
        let named = wait_until(PATIENCE, "the holder", || Ok(noted().contains(&format!("process {pid} "))));
        named.unwrap_or_else(|error| panic!("{error}: {}", noted()));
        release(&mut holder, &stop);
        running.join().unwrap()
    })
}

struct Notes<'a>(&'a Mutex<Vec<u8>>);

impl std::io::Write for Notes<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_transaction_that_holds_the_slot_up_is_named_and_once_it_ends_the_slot_is_made() {
    let place = Place::new();
    let (out, outcome) = while_held_up(&place, |holder, _| drop(holder.query("COMMIT").unwrap()));
    outcome.unwrap();
    assert!(out.contains("created slot"), "{out}");
    assert_eq!(place.slots(), "1");
}

#[test]
fn a_stop_while_the_slot_is_held_up_leaves_no_half_made_slot() {
    let place = Place::new();
    let (_, outcome) = while_held_up(&place, |_, stop| stop.store(true, Ordering::Relaxed));
    assert!(matches!(outcome, Err(CommandError { cause: CommandCause::Interrupted, .. })), "{outcome:?}");
    assert_eq!(place.slots(), "0");
    // And the way is free for another attempt.
    assert!(done(&place.setup()).contains("created slot"));
}

#[test]
fn a_run_that_waits_for_its_slot_asks_over_and_over_whether_to_stop() {
    let place = Place::new();
    let mut holder = place.connection();
    holder.query("BEGIN").unwrap();
    holder.query("INSERT INTO public.outbox VALUES (1)").unwrap();
    let (asked, stop) = (AtomicU32::new(0), AtomicBool::new(false));
    let ask = || {
        asked.fetch_add(1, Ordering::Relaxed);
        stop.load(Ordering::Relaxed)
    };
    let (often, outcome) = std::thread::scope(|scope| {
        let running = scope.spawn(|| setup::once(&place.setup(), &ask));
        let often = wait_until(PATIENCE, "it to ask ten times", || {
            Ok(asked.load(Ordering::Relaxed) >= 10 || running.is_finished())
        });
        stop.store(true, Ordering::Relaxed);
        (often, running.join().unwrap())
    });
    often.unwrap();
    assert!(asked.load(Ordering::Relaxed) >= 10, "each is a sign of life");
    assert!(matches!(outcome, Err(CommandError { cause: CommandCause::Interrupted, .. })), "{outcome:?}");
}

#[test]
fn a_run_sets_up_once_and_a_slot_lost_since_is_not_made_again() {
    let place = Place::new();
    place.once().unwrap();
    place.once().unwrap();
    assert_eq!(place.slots(), "1");
    place.run(&format!("SELECT pg_drop_replication_slot('{}')", place.slot));
    let error = place.once().unwrap_err();
    assert!(matches!(error.as_run(), Some(RunCause::NoSlot { was_there: true, .. })), "{error}");
    assert_eq!((error.kind.exit_code(), place.slots().as_str()), (2, "0"));
    // By `setup`, too: a job that runs it at each upgrade does not pass the loss over.
    let error = set_up(&place.setup()).1.unwrap_err();
    assert_eq!((error.kind.exit_code(), place.slots().as_str()), (2, "0"));
    let out = done(&setup::SetupRequest { after_loss: true, ..place.setup() });
    assert!(out.contains("was lost"), "{out}");
    place.once().unwrap();
}

/// A reader that is gone, as `head` is.
struct Closed;

impl std::io::Write for Closed {
    fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
        Err(std::io::ErrorKind::BrokenPipe.into())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn setup_and_teardown_finish_their_work_though_nobody_reads_what_they_say() {
    let place = Place::new();
    let dialogue = Dialogue { out: &mut Closed, notes: &mut Vec::new(), terminal: None };
    let error = setup::setup(&place.setup(), dialogue, &|| false).unwrap_err();
    assert_eq!((error.kind.exit_code(), place.slots().as_str()), (1, "1"));
    let again = done(&place.setup());
    assert!(again.starts_with("nothing to do"), "it is marked: {again}");
    // A question that nobody reads is no yes, whoever answers.
    let request = teardown::TeardownRequest { yes: false, ..place.teardown_request(true) };
    let error = teardown::teardown(&request, &mut Closed, Some(&mut "y\n".as_bytes())).unwrap_err();
    assert_eq!((error.kind.exit_code(), place.slots().as_str()), (1, "1"));
    let error = teardown::teardown(&place.teardown_request(true), &mut Closed, None).unwrap_err();
    assert_eq!((error.kind.exit_code(), place.slots().as_str()), (1, "0"));
    assert_eq!(place.value("SELECT count(*) FROM pg_publication").unwrap(), "0");
}

#[test]
fn setup_says_what_is_to_do_and_what_was_done_for_programs() {
    let place = Place::new();
    let json = |apply| {
        let text = done(&setup::SetupRequest { apply, json: true, ..place.setup() });
        let values = serde_json::Deserializer::from_str(&text).into_iter::<serde_json::Value>();
        values.collect::<Result<Vec<_>, _>>().unwrap_or_else(|error| panic!("{error}: {text}"))
    };
    let [planned] = &json(false)[..] else { panic!("one object") };
    let steps: Vec<&str> =
        planned["steps"].as_array().unwrap().iter().map(|step| step["do"].as_str().unwrap()).collect();
    assert!(steps.contains(&format!("create slot \"{}\"", place.slot).as_str()), "{steps:?}");
    for step in planned["steps"].as_array().unwrap() {
        place.run(step["sql"].as_str().unwrap());
    }
    let said = json(true);
    assert!(said[0]["said"].as_str().unwrap().starts_with("nothing to do"), "the SQL was all of it: {said:?}");
    let last = said.last().unwrap();
    assert!(last["next"].as_str().unwrap().starts_with("walrelay run"), "{last}");
}

/// The command was killed between the slot and its marker, or lost its connection there.
#[test]
fn a_setup_that_was_ended_goes_on_and_nobody_reads_the_slot_before() {
    let place = Place::new();
    place.run(&format!(
        "CREATE PUBLICATION walrelay FOR TABLE public.outbox; COMMENT ON PUBLICATION walrelay IS 'walrelay creating: {}'",
        place.slot
    ));
    let error = |place: &Place| {
        let mut check = std::process::Command::new(crate::lane::binary());
        let name = ["--publication", "walrelay", "--slot", &place.slot, "--to", "stdout://", "--http", "off"];
        let output = check.args(["run", "--source", &place.url]).args(name).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    place.run(&format!("SELECT pg_create_logical_replication_slot('{}', 'pgoutput')", place.slot));
    let (code, text) = error(&place);
    assert!(code == Some(2) && text.contains("has begun and not ended"), "{text}");
    let (text, outcome) = place.status(false);
    assert!(text.contains("has begun and not ended") && outcome.unwrap_err().kind.exit_code() == 2, "{text}");
    let out = done(&place.setup());
    assert!(out.contains("marked publication") && !out.contains("created slot"), "{out}");
    assert_eq!(place.slots(), "1");
    assert!(done(&place.setup()).starts_with("nothing to do"));
}

#[test]
fn teardown_wants_to_be_told_of_a_slot_that_is_not_walrelays_and_of_other_readers() {
    let place = Place::new();
    let other = unique_name("debezium");
    done(&place.setup());
    place.run(&format!("SELECT pg_create_logical_replication_slot('{other}', 'pgoutput')"));
    let error = place.teardown(true).1.unwrap_err();
    assert!(error.to_string().contains(&format!("slot \"{other}\" may be read with publication")), "{error}");
    let mut request = teardown::TeardownRequest { slot: other.clone(), ..place.teardown_request(false) };
    let error = teardown::teardown(&request, &mut Vec::new(), None).unwrap_err();
    assert!(error.to_string().contains("is not one that walrelay has set up"), "{error}");
    let options =
        walrelay::pg::PluginOptions { publication: "walrelay", binary: false, messages: false, only_local: false };
    let reader = Connection::open(&place.source(), Purpose::Replication).unwrap();
    let stream = reader.start_replication(&other, walrelay::lsn::Lsn::ZERO, &options, 1 << 20).unwrap();
    let error = place.teardown(true).1.unwrap_err();
    assert!(error.to_string().contains(&format!("slot \"{other}\" is read with publication")), "{error}");
    drop(stream);
    request.unmarked = true;
    wait_until(PATIENCE, "the reader to end", || match teardown::teardown(&request, &mut Vec::new(), None) {
        Err(error) if error.to_string().contains("is in use by") => Ok(false),
        outcome => Ok(outcome.map(|()| true)?),
    })
    .unwrap();
    place.teardown(true).1.unwrap();
    assert_eq!(place.slots(), "0");
}

#[test]
fn two_relays_that_set_up_at_the_same_time_make_one_slot() {
    let place = Place::new();
    std::thread::scope(|scope| {
        let runs: Vec<_> = (0..4).map(|_| scope.spawn(|| place.once())).collect();
        for run in runs {
            run.join().unwrap().unwrap();
        }
    });
    assert_eq!(place.slots(), "1");
}

#[test]
fn a_run_does_not_make_a_slot_that_it_could_not_mark() {
    let place = Place::new();
    let role = unique_name("reader");
    place.run(&format!("CREATE ROLE {role} LOGIN REPLICATION; CREATE PUBLICATION walrelay FOR TABLE public.outbox"));
    let request = setup::SetupRequest { source: place.source_as(&role), tables: Vec::new(), ..place.setup() };
    let error = setup::once(&request, &|| false).unwrap_err();
    assert!(error.to_string().contains("cannot be marked"), "{error}");
    assert_eq!((error.kind.exit_code(), place.slots().as_str()), (2, "0"));
    place.run(&format!("DROP ROLE {role}"));
}

#[test]
fn status_shows_a_slot_and_says_what_is_wrong_when_there_is_none() {
    let place = Place::new();
    let (out, outcome) = place.status(true);
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(outcome.unwrap_err().kind.exit_code(), 2);
    assert!(json["hint"].as_str().unwrap().contains("walrelay setup --apply") && json["confirmed_lsn"].is_null());
    done(&place.setup());
    let (out, outcome) = place.status(true);
    outcome.unwrap();
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&json["active"], &json["plugin"]), (&false.into(), &"pgoutput".into()));
    assert!(json["lag_bytes"].is_u64() && json["retained_wal_bytes"].is_u64());
    let (out, _) = place.status(false);
    assert!(out.contains("publication  walrelay: public.outbox\n"), "{out}");
}

#[test]
fn a_slot_of_another_database_is_left_alone_by_all() {
    let (place, other) = (Place::new(), Place::new());
    done(&other.setup());
    let place = Place { slot: other.slot.clone(), url: place.url.clone(), publication: "walrelay".to_owned() };
    for outcome in [set_up(&place.setup()).1, place.once(), place.status(false).1, place.teardown(true).1] {
        let error = outcome.unwrap_err();
        assert!(error.to_string().contains("belongs to database"), "{error}");
    }
    std::mem::forget(place);
    assert_eq!(other.slots(), "1");
}

#[test]
fn teardown_drops_the_slot_and_its_mark_so_that_all_can_start_over() {
    let place = Place::new();
    place.once().unwrap();
    let (out, outcome) = place.teardown(false);
    outcome.unwrap();
    assert!(out.contains("rows committed since and not yet published will not be published"), "{out}");
    assert_eq!(place.slots(), "0");
    assert!(place.teardown(false).0.starts_with("nothing to do"));
    place.once().unwrap();
    place.teardown(true).1.unwrap();
    assert_eq!(place.value("SELECT count(*) FROM pg_publication").unwrap(), "0");
    assert!(place.teardown(true).0.starts_with("nothing to do"));
}

#[test]
fn teardown_does_not_touch_a_slot_that_is_read_and_names_the_reader() {
    let place = Place::new();
    done(&place.setup());
    let options =
        walrelay::pg::PluginOptions { publication: "walrelay", binary: false, messages: false, only_local: false };
    let reader = Connection::open(&place.source(), Purpose::Replication).unwrap();
    let stream = reader.start_replication(&place.slot, walrelay::lsn::Lsn::ZERO, &options, 1 << 20).unwrap();
    let error = place.teardown(true).1.unwrap_err();
    assert!(error.to_string().contains(&format!("in use by process {}", stream.backend_pid())), "{error}");
    assert_eq!((error.kind.exit_code(), place.slots().as_str()), (2, "1"));
    let (out, outcome) = place.status(false);
    outcome.unwrap();
    assert!(out.contains(&format!("active: process {}", stream.backend_pid())), "{out}");
    drop(stream);
    wait_until(PATIENCE, "the reader to end", || match place.teardown(true).1 {
        Err(error) if error.to_string().contains("is in use by") => Ok(false),
        outcome => Ok(outcome.map(|()| true)?),
    })
    .unwrap();
    assert_eq!(place.slots(), "0");
}

#[test]
fn nobody_to_ask_is_no_yes() {
    let place = Place::new();
    done(&place.setup());
    let request = teardown::TeardownRequest {
        source: place.source(),
        publication: place.publication.clone(),
        slot: place.slot.clone(),
        publication_too: false,
        shards: None,
        yes: false,
        unmarked: false,
        also_read_by: Vec::new(),
        typed_source: None,
    };
    let error = teardown::teardown(&request, &mut Vec::new(), None).unwrap_err();
    assert_eq!(error.kind.exit_code(), 64);
    let mut out = Vec::new();
    teardown::teardown(&request, &mut out, Some(&mut "n\n".as_bytes())).unwrap();
    assert!(String::from_utf8(out).unwrap().ends_with("nothing was dropped\n"));
    assert_eq!(place.slots(), "1");
    teardown::teardown(&request, &mut Vec::new(), Some(&mut "y\n".as_bytes())).unwrap();
    assert_eq!(place.slots(), "0");
}

/// The server compares 32 bits of each; here the numbers have passed that bound.
#[test]
fn rows_of_transactions_up_to_two_billion_back_are_distinguished() {
    let place = Place::new();
    let mut connection = place.connection();
    let next = catalog::next_transaction(&mut connection).unwrap().unwrap() + (1 << 33);
    let mut looks_older = |row: u64, xid: u64| {
        let rows = format!("(VALUES ('{}'::xid)) AS rows (xmin)", row & 0xFFFF_FFFF);
        catalog::count_older(&mut connection, &rows, xid, 9).unwrap() == Some(1)
    };
    for xid in [0, 1, 1000, 1_999_999_999].map(|distance| next - distance) {
        let frozen = [next - 4_000_000_000, next - (1 << 31), next - 2_000_000_000];
        let rows = frozen.into_iter().chain([xid - 1, xid, (xid + 1).min(next - 1), next - 1]);
        // Numbers below 3 mean something else.
        for row in rows.filter(|row| row & 0xFFFF_FFFF > 2) {
            assert_eq!(looks_older(row, xid), row < xid, "row {row}, xid {xid}, next {next}");
        }
    }
    assert!(looks_older(next - 1, next - (1 << 31) - 1), "further back a new row looks old: that is not asked");
}
