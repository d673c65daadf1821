//! The sink on servers whose replies a test chooses: what real ones do only in a moment that cannot be met, or where a network is cut.

use super::RedisSettings;
use super::cluster::slots;
use super::reader::EntryReader;
use crate::sink::destination::{Destination as _, Wanted};
use crate::sink::reading::RecordReader as _;
use crate::sink::tests::read_in_test;
use crate::sink::{Content, Enqueue, Origin, Record, Report, Rows, Sink, Tag, Token as ReportToken};
use redis::{Parser, Value};
use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// A deadline that only a failure reaches.
const LONG: Duration = Duration::from_secs(30);

/// The slot of the stream `foo` is 12182, that of `hello` 866.
const ALL: (u16, u16) = (0, 16_383);

const OK: &str = "+OK\r\n";
const ADDED: &str = "$3\r\n1-0\r\n";

/// What a server says to a command; the words of the command, of which the first is its name.
trait Answers: Fn(&[&str]) -> Option<String> + Send + Sync + 'static {}

impl<T: Fn(&[&str]) -> Option<String> + Send + Sync + 'static> Answers for T {}

/// A port that nobody else has. What listens there ends with the process.
struct Fake(TcpListener);

impl Fake {
    fn new() -> Self {
        Self(TcpListener::bind(("127.0.0.1", 0)).unwrap())
    }

    fn address(&self) -> String {
        self.0.local_addr().unwrap().to_string()
    }

    /// Serves. `answers`: what it says where it is not what every server says.
    fn serve(self, answers: impl Answers) {
        let answers = Arc::new(answers);
        std::thread::spawn(move || {
            for stream in self.0.incoming().flatten() {
                let answers = Arc::clone(&answers);
                std::thread::spawn(move || converse(stream, answers.as_ref()));
            }
        });
    }
}

fn converse(mut stream: TcpStream, answers: &impl Answers) {
    let mut parser = Parser::new();
    while let Ok(Value::Array(words)) = parser.parse_value(&mut stream) {
        let words: Vec<&str> = words.iter().map(text).collect();
        let answer = answers(&words).unwrap_or_else(|| usual(&words).to_owned());
        // Upon what servers cannot take they close the connection.
        if stream.write_all(answer.as_bytes()).is_err() || answer.starts_with("-ERR Protocol error") {
            return;
        }
    }
}

fn text(word: &Value) -> &str {
    let Value::BulkString(bytes) = word else { panic!("{word:?}") };
    std::str::from_utf8(bytes).unwrap()
}

fn usual(words: &[&str]) -> &'static str {
    match words {
        ["INFO", ..] => "$38\r\nredis_version:7.2.4\r\ncluster_enabled:1\r\n",
        ["CLUSTER", "INFO"] => "$16\r\ncluster_state:ok\r\n",
        ["XADD", ..] => ADDED,
        _ => OK,
    }
}

#[test]
fn a_reader_does_not_pass_over_replies_that_are_not_understood() {
    let server = Fake::new();
    let address = server.address();
    server.serve(|words| (words[0] == "INFO").then(|| "$19\r\nredis_version:7.2\r\n\r\n".to_owned()));
    let settings = read_in_test("redis", &address, &[], |asked| RedisSettings::read(asked)).unwrap();
    let mut reader = EntryReader::new(settings).unwrap();
    let topics = BTreeSet::from(["foo".to_owned()]);
    reader.follow("foo", &[Some(0)]);
    let said = [
        reader.mark("", &topics).unwrap_err(),
        reader.ends(None, &topics).unwrap_err(),
        reader.read(Duration::ZERO, &mut |read| panic!("{read:?}")).unwrap_err(),
    ];
    for (failure, command) in said.iter().zip(["TIME", "EXISTS", "XREAD"]) {
        assert!(failure.text.ends_with(&format!(": the reply to {command} is not understood")), "{failure:?}");
    }
}

/// Where the node says that all slots are: at the first, of which the others are replicas.
fn all_at(nodes: &[&str]) -> String {
    slots(&[(ALL.0, ALL.1, &nodes.join(" "))])
}

/// The sink, and how much of what was handed over it has delivered.
struct Driven {
    sink: Box<dyn Sink + Send>,
    delivered: u32,
}

impl Driven {
    fn on(address: &str, properties: &[(&str, &str)]) -> Self {
        let settings = read_in_test("redis", address, properties, |asked| RedisSettings::read(asked)).unwrap();
        Self { sink: super::open(settings).unwrap(), delivered: 0 }
    }

    /// Hands over a record of each of these streams.
    fn push(&mut self, streams: &[&str]) {
        self.push_with(streams, b"{}");
    }

    /// The same, with this value.
    fn push_with(&mut self, streams: &[&str], value: &[u8]) {
        for stream in streams {
            let record = Record {
                topic: stream,
                key: Some(b"k"),
                value: Some(value),
                headers: &[],
                timestamp_millis: 0,
                partition: None,
                content: Content::Unknown,
            };
            let tag = Tag { token: ReportToken::unpack(1), origin: Origin::default() };
            assert!(matches!(self.sink.try_enqueue(&record, tag), Enqueue::Taken));
        }
        self.sink.on_idle(Rows::Live);
    }

    /// Waits until it is so.
    #[track_caller]
    fn until(&mut self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + LONG;
        while !is_so(self) {
            assert!(Instant::now() < deadline, "{what}: {} delivered, {:?}", self.delivered, self.sink.blocked());
            let delivered = &mut self.delivered;
            self.sink.poll(&mut |report| match report {
                Report::Delivered(run) => *delivered += run.records,
                other @ (Report::Refused(_) | Report::Failed(_)) => panic!("{other:?}"),
            });
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[track_caller]
    fn until_delivered(&mut self, records: u32) {
        self.until("delivered", |driven| driven.delivered == records);
    }

    #[track_caller]
    fn until_free(&mut self) {
        self.until("nothing is waited for", |driven| driven.sink.blocked().is_none());
    }
}

#[test]
fn once_replicas_that_were_missing_have_everything_nothing_is_waited_for() {
    let server = Fake::new();
    let mut driven = Driven::on(&server.address(), &[("wait", "1,10")]);
    let are_back = Arc::new(AtomicBool::new(false));
    let replicas = Arc::clone(&are_back);
    server.serve(move |words| match words {
        ["INFO"] => Some("$19\r\nredis_version:7.2.4\r\n".to_owned()),
        ["WAIT", ..] => {
            std::thread::sleep(Duration::from_millis(10));
            Some(format!(":{}\r\n", u32::from(replicas.load(Ordering::SeqCst))))
        }
        _ => None,
    });
    driven.push(&["foo"]);
    driven.until("the replica is waited for", |driven| driven.sink.blocked().is_some());
    are_back.store(true, Ordering::SeqCst);
    driven.until_delivered(1);
    driven.until_free();
}

#[test]
fn a_node_whose_slots_went_elsewhere_holds_up_nothing_whatever_it_said_last() {
    let (full, other) = (Fake::new(), Fake::new());
    let (at_full, at_other) = (full.address(), other.address());
    let mut driven = Driven::on(&format!("{at_full},{at_other}"), &[]);
    let asked = AtomicUsize::new(0);
    // The one that is full keeps others.
    let before = all_at(&[&at_full, &at_other]);
    let after = slots(&[(0, 9999, &at_full), (10_000, 16_383, &at_other)]);
    full.serve(move |words| match words {
        ["CLUSTER", "SLOTS"] => Some(before.clone()),
        ["XADD", ..] if asked.fetch_add(1, Ordering::SeqCst) < 2 => Some("-OOM no\r\n".to_owned()),
        ["XADD", ..] => Some(format!("-MOVED 12182 {at_other}\r\n")),
        _ => None,
    });
    other.serve(move |words| (words == ["CLUSTER", "SLOTS"]).then(|| after.clone()));
    driven.push(&["foo"]);
    driven.until("room is waited for", |driven| driven.sink.blocked().is_some());
    driven.until_delivered(1);
    driven.until_free();
}

#[test]
fn a_primary_without_replicas_is_left_once_another_has_its_slots() {
    // It is cut off from the others, and we are not.
    let (alone, other) = (Fake::new(), Fake::new());
    let (at_alone, at_other) = (alone.address(), other.address());
    let mut driven = Driven::on(&at_alone, &[("wait", "1,10")]);
    let added = AtomicUsize::new(0);
    let (before, after) = (all_at(&[&at_alone, &at_other]), all_at(&[&at_other]));
    alone.serve(move |words| {
        let is_cut_off = added.load(Ordering::SeqCst) > 0;
        match words {
            ["CLUSTER", "INFO"] if is_cut_off => Some("$18\r\ncluster_state:fail\r\n".to_owned()),
            ["CLUSTER", "SLOTS"] => Some(before.clone()),
            ["XADD", ..] => {
                added.fetch_add(1, Ordering::SeqCst);
                None
            }
            ["WAIT", ..] => Some(":0\r\n".to_owned()),
            _ => None,
        }
    });
    other.serve(move |words| match words {
        ["CLUSTER", "SLOTS"] => Some(after.clone()),
        ["WAIT", ..] => Some(":1\r\n".to_owned()),
        _ => None,
    });
    driven.push(&["foo"]);
    driven.until_delivered(1);
    driven.until_free();
}

#[test]
fn a_stream_that_moved_does_not_wait_for_replicas_of_the_node_that_it_left() {
    let (left, other) = (Fake::new(), Fake::new());
    let (at_left, at_other) = (left.address(), other.address());
    let mut driven = Driven::on(&at_left, &[("wait", "1,10")]);
    let before = all_at(&[&at_left]);
    let after = slots(&[(0, 9999, &at_left), (10_000, 16_383, &at_other)]);
    let views = AtomicUsize::new(0);
    left.serve(move |words| match words {
        // From then on it knows.
        ["CLUSTER", "SLOTS"] if views.fetch_add(1, Ordering::SeqCst) > 0 => Some(after.clone()),
        ["CLUSTER", "SLOTS"] => Some(before.clone()),
        ["XADD", "foo", ..] => Some(format!("-MOVED 12182 {at_other}\r\n")),
        ["WAIT", ..] => Some(":0\r\n".to_owned()),
        _ => None,
    });
    other.serve(|words| (words[0] == "WAIT").then(|| ":1\r\n".to_owned()));
    driven.push(&["foo", "hello"]);
    driven.until_delivered(1);
}

#[test]
fn a_primary_that_takes_nothing_for_a_reason_of_its_own_is_left_once_another_has_its_slots() {
    let (ill, other) = (Fake::new(), Fake::new());
    let (at_ill, at_other) = (ill.address(), other.address());
    let mut driven = Driven::on(&at_ill, &[]);
    let views = AtomicUsize::new(0);
    let (before, after) = (all_at(&[&at_ill, &at_other]), all_at(&[&at_other]));
    ill.serve(move |words| match words {
        ["CLUSTER", "INFO"] if views.load(Ordering::SeqCst) > 0 => Some("$18\r\ncluster_state:fail\r\n".to_owned()),
        ["CLUSTER", "SLOTS"] => {
            views.fetch_add(1, Ordering::SeqCst);
            Some(before.clone())
        }
        ["XADD", ..] => Some("-BUSY a script runs\r\n".to_owned()),
        _ => None,
    });
    other.serve(move |words| (words == ["CLUSTER", "SLOTS"]).then(|| after.clone()));
    driven.push(&["foo"]);
    driven.until_delivered(1);
    driven.until_free();
}

#[test]
fn a_node_that_does_not_know_the_user_hides_no_other_node() {
    let (strange, other) = (Fake::new(), Fake::new());
    let (at_strange, at_other) = (strange.address(), other.address());
    let mut driven = Driven::on(&format!("{at_strange},{at_other}"), &[("username", "app"), ("password", "p")]);
    strange.serve(|words| (words[0] == "AUTH").then(|| "-WRONGPASS no\r\n".to_owned()));
    let view = all_at(&[&at_other]);
    other.serve(move |words| (words == ["CLUSTER", "SLOTS"]).then(|| view.clone()));
    driven.push(&["foo"]);
    driven.until_delivered(1);
    driven.until_free();
}

#[test]
fn check_names_the_rights_that_are_missing_and_replicas_that_could_not_take_over() {
    let (primary, replica) = (Fake::new(), Fake::new());
    let (at_primary, at_replica) = (primary.address(), replica.address());
    let found = |address: &str| {
        let login = [("username", "app"), ("password", "p")];
        let settings = read_in_test("redis", address, &login, |asked| RedisSettings::read(asked)).unwrap();
        format!("{:?}", settings.check(&Wanted::nothing()))
    };
    let silent = Fake::new();
    let at_silent = silent.address();
    silent.serve(|words| (words[0] == "CLUSTER").then(|| "-NOPERM no\r\n".to_owned()));
    for address in [at_silent.clone(), format!("{at_silent},{at_silent}")] {
        let found = found(&address);
        assert!(found.contains("ACL SETUSER app +info +cluster|slots +cluster|info, on each node"), "{found}");
    }
    let view = all_at(&[&at_primary, &at_replica]);
    primary.serve(move |words| match words {
        ["CLUSTER", "SLOTS"] => Some(view.clone()),
        ["ASKING"] => Some("-NOPERM no asking\r\n".to_owned()),
        _ => None,
    });
    replica.serve(|words| (words[0] == "AUTH").then(|| "-WRONGPASS no\r\n".to_owned()));
    let found = found(&at_primary);
    for text in ["NOPERM no asking", "ACL SETUSER app +asking", &format!("Redis at {at_replica}: WRONGPASS no")] {
        assert!(found.contains(text), "{text}: {found}");
    }
}

#[test]
fn a_cluster_that_is_far_away_is_found() {
    let nodes = [Fake::new(), Fake::new()];
    let addresses = nodes.each_ref().map(Fake::address);
    let mut driven = Driven::on(&addresses.join(","), &[]);
    let view = all_at(&[&addresses[0]]);
    for node in nodes {
        let view = view.clone();
        node.serve(move |words| {
            std::thread::sleep(Duration::from_millis(750));
            (words == ["CLUSTER", "SLOTS"]).then(|| view.clone())
        });
    }
    driven.push(&["foo"]);
    driven.until_delivered(1);
}

#[test]
fn a_user_without_the_right_to_transactions_adds_nothing() {
    // Without MULTI, servers add at once what follows it.
    for cluster in ["0", "1"] {
        let server = Fake::new();
        let at = server.address();
        let mut driven = Driven::on(&at, &[]);
        let (info, view) = (format!("cluster_enabled:{cluster}\r\n"), all_at(&[&at]));
        let added = Arc::new(AtomicUsize::new(0));
        let seen = Arc::clone(&added);
        server.serve(move |words| match words {
            ["INFO"] => Some(format!("${}\r\n{info}\r\n", info.len())),
            ["CLUSTER", "SLOTS"] => Some(view.clone()),
            ["MULTI"] => Some("-NOPERM no multi\r\n".to_owned()),
            ["EXEC"] => Some("-ERR EXEC without MULTI\r\n".to_owned()),
            ["XADD", ..] => {
                seen.fetch_add(1, Ordering::SeqCst);
                None
            }
            _ => None,
        });
        driven.push(&["foo", "foo"]);
        driven.until("the right is waited for", |driven| {
            driven.sink.blocked().is_some_and(|failure| failure.text.contains("NOPERM no multi"))
        });
        assert_eq!((added.load(Ordering::SeqCst), driven.delivered), (0, 0));
    }
}

#[test]
fn a_sentinel_that_is_cut_off_from_the_others_is_not_the_only_one_asked() {
    let [gone, replica, primary] = [Fake::new(), Fake::new(), Fake::new()];
    let sentinels = [&gone, &replica, &primary].map(|named| {
        let (port, sentinel) = (named.0.local_addr().unwrap().port().to_string(), Fake::new());
        let at = sentinel.address();
        let answer = format!("*2\r\n$9\r\n127.0.0.1\r\n${}\r\n{port}\r\n", port.len());
        sentinel.serve(move |words| (words[0] == "SENTINEL").then(|| answer.clone()));
        at
    });
    drop(gone);
    let info = |role: &str| Some(format!("${}\r\nrole:{role}\r\n", "role:".len() + role.len()));
    replica.serve(move |words| match words {
        ["INFO"] => info("slave"),
        ["XADD", ..] => Some("-READONLY no\r\n".to_owned()),
        _ => None,
    });
    primary.serve(move |words| if words == ["INFO"] { info("master") } else { None });
    let mut driven = Driven::on(&sentinels.join(","), &[("sentinel", "main")]);
    driven.push(&["foo"]);
    driven.until_delivered(1);
    driven.until_free();
}

#[test]
fn check_adds_nothing_where_it_may_not_begin_a_transaction() {
    let server = Fake::new();
    let settings = read_in_test("redis", &server.address(), &[], |asked| RedisSettings::read(asked)).unwrap();
    let added = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&added);
    server.serve(move |words| match words {
        ["INFO"] => Some("$0\r\n\r\n".to_owned()),
        ["MULTI"] => Some("-NOPERM no multi\r\n".to_owned()),
        ["XADD", ..] => {
            seen.store(true, Ordering::SeqCst);
            None
        }
        _ => None,
    });
    let topics = std::collections::BTreeSet::from(["foo".to_owned()]);
    let found = format!("{:?}", settings.check(&Wanted { topics: &topics, ..Wanted::nothing() }));
    assert!(found.contains("NOPERM no multi"), "{found}");
    assert!(!added.load(Ordering::SeqCst), "check changes nothing");
}

const LONE: &str = "$38\r\nredis_version:7.2.4\r\ncluster_enabled:0\r\n";

#[test]
fn the_room_for_a_large_record_goes_with_its_connection_and_nothing_is_blocked() {
    let server = Fake::new();
    let mut driven = Driven::on(&server.address(), &[]);
    let connections = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&connections);
    server.serve(move |words| match words {
        ["INFO"] => Some(LONE.to_owned()),
        ["CLIENT", ..] => {
            seen.fetch_add(1, Ordering::SeqCst);
            None
        }
        _ => None,
    });
    driven.push_with(&["foo"], &vec![b'x'; 9 << 20]);
    driven.until_delivered(1);
    driven.push(&["foo"]);
    driven.until_delivered(2);
    driven.until_free();
    assert_eq!(connections.load(Ordering::SeqCst), 2);
}

#[test]
fn a_reply_that_does_not_end_is_given_up_and_the_record_sent_again() {
    let server = Fake::new();
    let mut driven = Driven::on(&server.address(), &[]);
    let added = AtomicUsize::new(0);
    server.serve(move |words| match words {
        ["INFO"] => Some(LONE.to_owned()),
        ["XADD", ..] if added.fetch_add(1, Ordering::SeqCst) == 0 => {
            Some(format!("${}\r\n{}", 512 << 20, "x".repeat(17 << 20)))
        }
        _ => None,
    });
    driven.push(&["foo"]);
    driven.until("the reply is given up", |driven| {
        driven.sink.blocked().is_some_and(|failure| failure.text.contains("its reply is longer than 16777216 bytes"))
    });
    driven.until_delivered(1);
    driven.until_free();
}

#[test]
fn a_record_over_which_the_server_closes_the_connection_is_refused() {
    let server = Fake::new();
    let mut driven = Driven::on(&server.address(), &[("wait", "1,10")]);
    server.serve(move |words| match words {
        ["INFO"] => Some(LONE.to_owned()),
        ["XADD", ..] => Some("-ERR Protocol error: invalid bulk length\r\n".to_owned()),
        _ => None,
    });
    driven.push(&["foo"]);
    let (mut refused, deadline) = (None, Instant::now() + LONG);
    while refused.is_none() {
        assert!(Instant::now() < deadline, "{:?}", driven.sink.blocked());
        driven.sink.poll(&mut |report| {
            if let Report::Refused(report) = report {
                refused = Some(report.failure.text);
            }
        });
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(refused.unwrap(), "Redis refuses a record for stream foo: ERR Protocol error: invalid bulk length");
}

/// A single server that answers so to each XADD while the flag is set.
fn refusing(answer: &'static str) -> (Driven, Arc<AtomicBool>) {
    let server = Fake::new();
    let driven = Driven::on(&server.address(), &[]);
    let refuses = Arc::new(AtomicBool::new(true));
    let still = Arc::clone(&refuses);
    // How many commands are queued in a transaction, which no refused one may be in.
    let (in_transaction, queued, aborted) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicBool::new(false));
    server.serve(move |words| match words {
        ["INFO"] => Some(LONE.to_owned()),
        ["MULTI"] => {
            in_transaction.store(true, Ordering::SeqCst);
            None
        }
        ["XADD", ..] if still.load(Ordering::SeqCst) => {
            aborted.store(in_transaction.load(Ordering::SeqCst), Ordering::SeqCst);
            Some(answer.to_owned())
        }
        ["XADD", ..] if in_transaction.load(Ordering::SeqCst) => {
            queued.fetch_add(1, Ordering::SeqCst);
            Some("+QUEUED\r\n".to_owned())
        }
        ["EXEC"] => {
            in_transaction.store(false, Ordering::SeqCst);
            let queued = queued.swap(0, Ordering::SeqCst);
            let is_aborted = aborted.swap(false, Ordering::SeqCst);
            let done = || format!("*{queued}\r\n{}", ADDED.repeat(queued));
            Some(if is_aborted { "-EXECABORT Transaction discarded\r\n".to_owned() } else { done() })
        }
        _ => None,
    });
    (driven, refuses)
}

#[test]
fn an_answer_that_no_list_has_costs_no_row_and_names_the_one_that_is_tried() {
    let (mut driven, refuses) = refusing("-ERR max requests limit exceeded\r\n");
    driven.push(&["pair", "pair", "foo"]);
    driven.until("the record is named", |driven| driven.sink.tried_alone().is_some());
    let tried = driven.sink.tried_alone().unwrap();
    assert_eq!((tried.topic.as_str(), tried.attempts, tried.others_arrive), ("pair", 1, false));
    assert!(tried.answer.text.ends_with("stream pair: ERR max requests limit exceeded"), "{}", tried.answer.text);
    refuses.store(false, Ordering::SeqCst);
    driven.until_delivered(3);
    driven.until_free();
    assert_eq!(driven.sink.tried_alone(), None);
}

#[test]
fn what_a_mode_needs_is_tried_before_the_first_record_and_adds_nothing() {
    for (refused, properties) in [("EVAL", ("dedupe", "1d")), ("WAIT", ("wait", "1,10")), ("MULTI", ("maxlen", "9"))] {
        let server = Fake::new();
        let at = server.address();
        let mut driven = Driven::on(&at, &[properties]);
        let added = Arc::new(AtomicUsize::new(0));
        let seen = Arc::clone(&added);
        server.serve(move |words| match words {
            ["INFO"] => Some(LONE.to_owned()),
            ["XADD", ..] | ["EVAL", _, "1" | "2", ..] => {
                seen.fetch_add(1, Ordering::SeqCst);
                None
            }
            [name, ..] if *name == refused => Some(format!("-ERR unknown command `{refused}`, with args\r\n")),
            _ => None,
        });
        driven.push(&["foo"]);
        driven.until(refused, |driven| {
            driven.sink.blocked().is_some_and(|failure| failure.text.contains(&format!("needs {refused}: ")))
        });
        assert_eq!((added.load(Ordering::SeqCst), driven.delivered), (0, 0), "{refused}");
        let settings = read_in_test("redis", &at, &[properties], |asked| RedisSettings::read(asked)).unwrap();
        let found = format!("{:?}", settings.check(&Wanted::nothing()));
        assert!(found.contains(&format!("needs {refused}: ")), "check: {found}");
    }
}

#[test]
fn a_record_over_which_the_server_closes_the_connection_with_an_unknown_error_is_tried_alone() {
    let server = Fake::new();
    let mut driven = Driven::on(&server.address(), &[]);
    server.serve(move |words| match words {
        ["INFO"] => Some(LONE.to_owned()),
        ["XADD", "foo", ..] => Some("-ERR Protocol error: too big bulk count string\r\n".to_owned()),
        _ => None,
    });
    driven.push(&["foo"]);
    driven.until("it is named", |driven| driven.sink.tried_alone().is_some_and(|tried| tried.topic == "foo"));
    assert_eq!(driven.delivered, 0);
}

#[test]
fn without_a_hold_the_connection_is_closed_though_a_reply_is_due() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let mut driven = Driven::on(&listener.local_addr().unwrap().to_string(), &[]);
    let (mut stream, _) = listener.accept().unwrap();
    let mut room = [0; 64];
    assert!(stream.read(&mut room).unwrap() > 0, "it asks");
    driven.sink.hold_until(Some(Duration::ZERO));
    stream.set_read_timeout(Some(LONG)).unwrap();
    let ended = match stream.read(&mut room) {
        Ok(read) => read == 0,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    };
    assert!(ended, "it is closed");
}

#[test]
fn who_speaks_another_protocol_is_told_apart() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let mut driven = Driven::on(&listener.local_addr().unwrap().to_string(), &[]);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            drop(stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n"));
        }
    });
    driven.until("it is said", |driven| {
        driven.sink.blocked().is_some_and(|failure| failure.text.ends_with("it does not speak Redis' protocol"))
    });
}
