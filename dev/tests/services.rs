//! Real Postgres and Kafka: start, crash, hang, come back, and leave nothing behind.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use walrelay_dev::kafka::{self, Kafka};
use walrelay_dev::postgres::{self, Mode, Postgres};
use walrelay_dev::{process, provision};

fn count(server: &Postgres) -> i64 {
    server.connect(None).unwrap().query_one("SELECT count(*) FROM kept", &[]).unwrap().get(0)
}

#[test]
fn postgres_keeps_committed_rows_through_a_crash_and_comes_back_on_the_same_port() {
    let mut server = Postgres::start(&postgres::Options::default()).unwrap();
    let port = server.port();
    server.connect(None).unwrap().batch_execute("CREATE TABLE kept AS SELECT generate_series(1, 10)").unwrap();
    server.kill().unwrap();
    assert!(server.connect(None).is_err());
    server.start_again().unwrap();
    assert_eq!((server.port(), count(&server)), (port, 10));
    server.restart(Mode::Immediate).unwrap();
    server.restart(Mode::Fast).unwrap();
    assert_eq!(count(&server), 10);
}

#[test]
fn postgres_takes_settings_and_rules_and_every_process_is_gone_after_drop() {
    let options = postgres::Options {
        settings: vec![("application_name".to_owned(), "it's mine".to_owned())],
        hba: vec!["host all all 127.0.0.1/32 scram-sha-256".to_owned()],
        ..postgres::Options::default()
    };
    let server = Postgres::start(&options).unwrap();
    let mut client = server.connect(None).unwrap();
    let wal_level: String = client.query_one("SHOW wal_level", &[]).unwrap().get(0);
    assert_eq!(wal_level, "logical");
    client.batch_execute("CREATE ROLE app LOGIN SUPERUSER PASSWORD 'secret'").unwrap();
    let url = server.url("postgres");
    assert!(::postgres::Client::connect(&url, ::postgres::NoTls).is_err());
    let with_password = url.replace("postgres@", "app:secret@");
    drop(::postgres::Client::connect(&with_password, ::postgres::NoTls).unwrap());
    drop(::postgres::Client::connect(&server.socket_url("postgres"), ::postgres::NoTls).unwrap());
    let pid = server.pid().unwrap();
    let folder = server.log();
    let all: Vec<u32> = process::children_of(pid).into_iter().chain([pid]).collect();
    drop(server);
    process::wait_until(Duration::from_secs(5), "all processes to end", || {
        Ok(all.iter().all(|pid| !process::is_alive(*pid)))
    })
    .unwrap();
    assert!(!folder.exists());
}

#[test]
fn tests_share_one_server_with_a_database_each() {
    let server = postgres::shared_postgres().unwrap();
    let (one, other) = (server.create_unique_database("it").unwrap(), server.create_unique_database("it").unwrap());
    server.connect(Some(&one)).unwrap().batch_execute("CREATE TABLE t ()").unwrap();
    server.connect(Some(&other)).unwrap().batch_execute("CREATE TABLE t ()").unwrap();
}

#[test]
fn every_supported_postgres_starts_and_decodes_with_pgoutput() {
    // One is enough where each costs a download; all of them with WALRELAY_TEST_ALL_POSTGRES=1.
    let all = std::env::var_os("WALRELAY_TEST_ALL_POSTGRES").is_some();
    for major in provision::postgres_majors().filter(|major| all || *major == provision::DEFAULT_POSTGRES) {
        let server = Postgres::start(&postgres::Options { major, ..postgres::Options::default() }).unwrap();
        let mut client = server.connect(None).unwrap();
        let version: String = client.query_one("SHOW server_version_num", &[]).unwrap().get(0);
        assert!(version.starts_with(&major.to_string()), "{version}");
        client.batch_execute("SELECT pg_create_logical_replication_slot('s', 'pgoutput')").unwrap();
    }
}

#[test]
fn kafka_answers_creates_topics_and_comes_back_after_a_crash() {
    let mut kafka = Kafka::start(&kafka::Options { partitions: 5, ..kafka::Options::default() }).unwrap();
    kafka.create_topic("made", 2, &[("max.message.bytes", "20000")]).unwrap();
    assert!(kafka.create_topic("made", 2, &[]).is_err());
    let brokers = kafka.brokers();
    kafka.kill().unwrap();
    kafka.start_again().unwrap();
    assert_eq!((kafka.brokers(), kafka.topics().unwrap()), (brokers, vec!["made".to_owned()]));
    let client: BaseConsumer = kafka.client_config().set("allow.auto.create.topics", "true").create().unwrap();
    process::wait_until(Duration::from_secs(10), "a topic to be made", || {
        let metadata = client.fetch_metadata(Some("asked-for"), Duration::from_secs(5))?;
        Ok(metadata.topics().iter().any(|topic| topic.partitions().len() == 5))
    })
    .unwrap();
    kafka.delete_topics(&["made"]).unwrap();
    kafka.restart().unwrap();
}

#[test]
fn nothing_outlives_a_process_that_is_killed() {
    let mut victim = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "hold_services_until_killed", "--ignored", "--nocapture"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(victim.stdout.take().unwrap()));
    let pids = lines.find_map(|line| line.unwrap().strip_prefix("holding ").map(str::to_owned)).unwrap();
    let pids: Vec<u32> = pids.split(' ').map(|pid| pid.parse().unwrap()).collect();
    let (children, servers) = pids.split_at(pids.len() - 2);
    // One of the children may have been a worker that has done its work.
    assert!(servers.iter().all(|pid| process::is_alive(*pid)), "{pids:?}");
    assert!(children.iter().filter(|pid| process::is_alive(**pid)).count() > 1, "{pids:?}");
    victim.kill().unwrap();
    victim.wait().unwrap();
    process::wait_until(Duration::from_secs(15), "the services to end", || {
        Ok(pids.iter().all(|pid| !process::is_alive(*pid)))
    })
    .unwrap();
}

#[test]
#[ignore = "run by nothing_outlives_a_process_that_is_killed, which kills it"]
fn hold_services_until_killed() {
    let server = postgres::shared_postgres().unwrap();
    let kafka = kafka::shared_kafka().unwrap();
    let pid = server.pid().unwrap();
    let all = process::children_of(pid).into_iter().chain([pid, kafka.pid().unwrap()]);
    // Postgres' children, then the two servers.
    println!("holding {}", all.map(|pid| pid.to_string()).collect::<Vec<_>>().join(" "));
    std::thread::sleep(Duration::from_mins(1));
}

#[test]
fn what_is_there_already_is_found_at_once() {
    provision::postgres(provision::DEFAULT_POSTGRES).unwrap();
    provision::kafka().unwrap();
    let started = Instant::now();
    provision::postgres(provision::DEFAULT_POSTGRES).unwrap();
    provision::kafka().unwrap();
    println!("found after {:?}", started.elapsed());
}
