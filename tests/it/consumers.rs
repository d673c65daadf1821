//! The manual's consumers, run as they stand: what they did is in their database after they were killed, and nothing is done twice.

use std::fs::{self, File};
use std::process::Stdio;

use rustix::process::Signal;
use serde_json::json;
use tempfile::TempDir;
use walrelay_dev::brokers::{Kind, shared};
use walrelay_dev::process::{Guarded, LastWill, wait_until};
use walrelay_dev::relay::Relay;
use walrelay_dev::{repository, sdk};

use crate::elsewhere;
use crate::lane::{LONG, Lane, OUTBOX};

/// The consumers' table of the page on Kafka.
const PROCESSED_EVENTS: &str = include_str!("../../sql/processed_events.sql");

/// A page's consumer with a lane's addresses.
struct Consumer<'a> {
    lane: &'a Lane,
    script: String,
    environment: Vec<(&'static str, String)>,
    folder: TempDir,
}

impl<'a> Consumer<'a> {
    /// `changes`: what the page says, and what it is called here.
    fn of(page: &str, lane: &'a Lane, changes: &[(&str, &str)]) -> Self {
        let text = fs::read_to_string(repository().join(page)).unwrap();
        let (_, block) = text.split_once("```python\n").unwrap_or_else(|| panic!("{page} has no consumer"));
        let mut script = block.split("```").next().unwrap().to_owned();
        for (said, here) in [("dbname=billing", lane.source.as_str())].iter().chain(changes) {
            assert!(script.contains(said), "{page} does not say {said}: {script}");
            script = script.replace(said, here);
        }
        Self { lane, script, environment: Vec::new(), folder: tempfile::tempdir().unwrap() }
    }

    fn start(&self, run: u8) -> Guarded {
        let mut command = sdk::consumer(&self.script).unwrap();
        let file = |name: &str| File::create(self.folder.path().join(format!("{run}-{name}"))).unwrap();
        command.envs(self.environment.iter().map(|(name, value)| (name, value))).stdin(Stdio::null());
        command.stdout(file("printed")).stderr(file("errors"));
        Guarded::spawn("a consumer", &mut command, &LastWill::default()).unwrap()
    }

    fn read(&self, run: u8, name: &str) -> String {
        fs::read_to_string(self.folder.path().join(format!("{run}-{name}"))).unwrap()
    }

    /// Runs it until `ids` are in `table` for everybody, ends it by `signal`, and looks again.
    #[track_caller]
    fn run(&self, run: u8, table: &str, ids: &[&str], signal: Signal) {
        let mut process = self.start(run);
        let mut database = self.lane.connect();
        let mut stored = || -> anyhow::Result<Vec<String>> {
            let there: bool = database.query_one("SELECT to_regclass($1) IS NOT NULL", &[&table])?.get(0);
            let column = if table == "seen" { "id" } else { "event_id" };
            let sql = format!("SELECT {column}::text FROM {table} ORDER BY 1");
            if !there {
                return Ok(Vec::new());
            }
            Ok(database.query(&sql, &[])?.iter().map(|row| row.get::<_, String>(0)).collect())
        };
        // Ids of NATS carry the subject.
        let are_there =
            |stored: &[String]| stored.len() == ids.len() && stored.iter().zip(ids).all(|(a, b)| a.ends_with(b));
        let done = wait_until(LONG, "the work to be committed", || {
            anyhow::ensure!(process.exited()?.is_none(), "the consumer has ended");
            Ok(are_there(&stored()?))
        });
        let said = || format!("{}{}", self.read(run, "printed"), self.read(run, "errors"));
        done.unwrap_or_else(|error| panic!("{error}: {}", said()));
        process.signal(signal).unwrap();
        process.wait(LONG).unwrap();
        assert!(are_there(&stored().unwrap()), "{:?}: {}", stored().unwrap(), said());
    }
}

/// Two events, the consumer's end, a third event.
#[track_caller]
fn follow(consumer: &Consumer<'_>, _relay: &Relay, table: &str) {
    let insert = |id: &str, kind: &str| {
        consumer.lane.sql(&format!("INSERT INTO outbox VALUES ('{id}', 'order', 'k', '{kind}', '{{}}')"));
    };
    insert("a1", "First");
    insert("a2", "Second");
    consumer.lane.wait_confirmed();
    consumer.run(1, table, &["a1", "a2"], Signal::TERM);
    insert("a3", "Third");
    consumer.run(2, table, &["a1", "a2", "a3"], Signal::KILL);
    let types =
        |run| consumer.read(run, "printed").lines().map(|line| line.split(' ').next().unwrap().to_owned()).collect();
    let (first, second): (Vec<String>, Vec<String>) = (types(1), types(2));
    assert_eq!((first, second), (vec!["First".to_owned(), "Second".to_owned()], vec!["Third".to_owned()]));
}

#[test]
fn kafkas_commits_its_work() {
    let lane = Lane::with(OUTBOX, "outbox");
    lane.sql(PROCESSED_EVENTS);
    let relay = lane.streaming(&[]);
    let topic = lane.topic("order");
    // A consumer that was killed keeps its partition until then: 45 s.
    let soon = "\"group.id\": \"billing\", \"session.timeout.ms\": 6000";
    let group = "\"group.id\": \"billing\"";
    let changes = [("localhost:9092", lane.brokers.as_str()), ("outbox.event.order", &topic), (group, soon)];
    follow(&Consumer::of("docs/consumers.md", &lane, &changes), &relay, "processed_events");
}

#[test]
fn the_one_of_nats_commits_its_work() {
    let (lane, broker) = (elsewhere::lane(), shared(Kind::Nats).unwrap());
    let subjects = format!("{}.>", lane.name);
    broker.jetstream(&json!(null)).unwrap().create_stream(&lane.name, &[&subjects], &json!({})).unwrap();
    let relay = elsewhere::start(&lane, &broker.url(), &[]);
    let changes = [("nats://localhost:4222", broker.url()), ("outbox.order", lane.topic("order"))];
    let changes = changes.each_ref().map(|(said, here)| (*said, here.as_str()));
    follow(&Consumer::of("docs/destinations/nats.md", &lane, &changes), &relay, "seen");
}

#[test]
fn the_one_of_redis_commits_its_work() {
    let (lane, broker) = (elsewhere::lane(), shared(Kind::Valkey).unwrap());
    let relay = elsewhere::start(&lane, &broker.url(), &[]);
    let client = format!("redis.Redis.from_url(\"{}\", decode_responses=True)", broker.url());
    let changes = [("redis.Redis(decode_responses=True)", client), ("outbox.order", lane.topic("order"))];
    let changes = changes.each_ref().map(|(said, here)| (*said, here.as_str()));
    follow(&Consumer::of("docs/destinations/redis.md", &lane, &changes), &relay, "seen");
}

#[test]
fn the_one_of_rabbitmq_commits_its_work() {
    let (lane, broker) = (elsewhere::lane(), shared(Kind::RabbitMq).unwrap());
    let mut client = broker.amqp().unwrap();
    client.exchange(&lane.name, "topic").unwrap();
    client.queue(&lane.name, &[("x-queue-type", "quorum")]).unwrap();
    client.bind(&lane.name, &lane.name, "#").unwrap();
    let relay = elsewhere::start(&lane, &broker.url(), &["-X", &format!("exchange={}", lane.name)]);
    let (queue, url) = (format!("\"{}\"", lane.name), broker.url());
    let changes = [("amqp://billing@rabbit.internal/%2f", url.as_str()), ("\"orders\"", &queue)];
    follow(&Consumer::of("docs/destinations/rabbitmq.md", &lane, &changes), &relay, "seen");
}

#[test]
fn the_one_of_sqs_commits_its_work() {
    let (lane, broker) = (elsewhere::lane(), shared(Kind::ElasticMq).unwrap());
    let queue = format!("{}-order.fifo", lane.name);
    broker.queues().create(&queue, &[("VisibilityTimeout", "2")]).unwrap();
    let relay = elsewhere::start(&lane, &broker.url(), &["--topic", &format!("{}-{{route}}.fifo", lane.name)]);
    let mut consumer = Consumer::of("docs/destinations/sqs.md", &lane, &[("outbox-order.fifo", &queue)]);
    let endpoint = broker.url().rsplit_once('@').unwrap().1.split('/').next().unwrap().to_owned();
    consumer.environment = vec![
        ("AWS_ENDPOINT_URL_SQS", format!("http://{endpoint}")),
        ("AWS_ACCESS_KEY_ID", "x".to_owned()),
        ("AWS_SECRET_ACCESS_KEY", "x".to_owned()),
        ("AWS_DEFAULT_REGION", "elasticmq".to_owned()),
    ];
    follow(&consumer, &relay, "seen");
}
