//! Records to a cluster of Valkey, by the binary: streams on all nodes, slots that move under load, a primary that is replaced.
//!
//! What is stored is read with a client of the test's own, from whichever node has it.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use postgres::Client;
use walrelay_dev::brokers::{Cluster, Reply};
use walrelay_dev::process::wait_until;
use walrelay_dev::relay;
use walrelay_dev::secure::Authority;

use crate::elsewhere::{self, lane};
use crate::lane::{LONG, Lane, binary, wait_log};
use crate::redis_access::{TlsFront, rules_of_the_manual};

/// Three primaries for all tests that stop none of them; streams of their own names.
fn shared() -> &'static Cluster {
    static SHARED: OnceLock<Cluster> = OnceLock::new();
    SHARED.get_or_init(|| Cluster::start(3, 0, &[]).unwrap())
}

/// From then on several rows may have one id.
const SAME_IDS: &str = "ALTER TABLE outbox DROP CONSTRAINT outbox_pkey";

/// Rows `first` to `last` of seven keys, ten a transaction, for one route.
fn insert(client: &mut Client, route: &str, first: u32, last: u32) {
    for start in (first..=last).step_by(10) {
        let end = last.min(start + 9);
        let sql = format!(
            "INSERT INTO outbox SELECT n::text, '{route}', 'k' || n % 7, 'Placed', '{{}}' FROM generate_series({start}, {end}) AS n"
        );
        client.batch_execute(&sql).unwrap();
    }
}

fn ids(cluster: &Cluster, stream: &str) -> Vec<String> {
    let entries = cluster.of_key(stream, &["XRANGE", stream, "-", "+"]).unwrap();
    // Each begins with the field `id`.
    entries.items().iter().map(|entry| entry.items()[1].items()[1].text()).collect()
}

/// A route of the lane whose stream is on this node.
fn route_on(cluster: &Cluster, lane: &Lane, node: usize) -> String {
    let on_node = |route: &String| {
        let slot = cluster.slot(&lane.topic(route)).unwrap();
        cluster.owner(slot).unwrap() == node
    };
    (0..1000).map(|number| format!("order{number}")).find(on_node).unwrap()
}

#[test]
fn streams_on_all_nodes_get_their_rows_in_order_and_one_node_suffices_to_find_the_others() {
    let (lane, cluster) = (lane(), shared());
    let _relay = elsewhere::start(&lane, &cluster.nodes[2].url(), &["-X", "wait=0,1000"]);
    // Some names decide their slot by a part, or hold braces that do not.
    let routes = "CASE n % 12 WHEN 0 THEN 'a{x}b' WHEN 1 THEN 'b{x}' WHEN 2 THEN '}c{' WHEN 3 THEN 'd{}e' ELSE 's' || n % 12 END";
    for start in (1..=2400).step_by(100) {
        lane.sql(&format!(
            "INSERT INTO outbox SELECT n::text, {routes}, 'k' || n % 7, 't', '{{}}' FROM generate_series({start}, {start} + 99) AS n"
        ));
    }
    lane.wait_confirmed();
    let mut nodes = BTreeMap::new();
    let mut all = 0;
    for number in 0..12 {
        let route = match number {
            0 => "a{x}b".to_owned(),
            1 => "b{x}".to_owned(),
            2 => "}c{".to_owned(),
            3 => "d{}e".to_owned(),
            other => format!("s{other}"),
        };
        let stream = lane.topic(&route);
        let stored: Vec<u32> = ids(cluster, &stream).iter().map(|id| id.parse().unwrap()).collect();
        for key in 0..7 {
            let of_key: Vec<u32> = stored.iter().copied().filter(|id| id % 7 == key).collect();
            let expected: Vec<u32> = (1..=2400).filter(|id| id % 12 == number && id % 7 == key).collect();
            assert_eq!(of_key, expected, "{stream}, key {key}");
        }
        all += stored.len();
        *nodes.entry(cluster.owner(cluster.slot(&stream).unwrap()).unwrap()).or_insert(0) += 1;
    }
    assert!(all == 2400 && nodes.len() == 3, "{nodes:?}");
}

/// Waits until so many entries are there.
fn wait_for(cluster: &Cluster, node: usize, stream: &str, entries: i64) {
    let there = || Ok(cluster.call(node, &["XLEN", stream])?.integer() >= Some(entries));
    wait_until(LONG, "entries", there).unwrap();
}

#[test]
fn slots_that_move_under_load_lose_swap_and_repeat_nothing() {
    let cluster = shared();
    let (plain, dropping) = (lane(), lane());
    // A user with the rights of the manual, and no others.
    let rules = rules_of_the_manual(&plain);
    for node in 0..3 {
        let words =
            [&["ACL", "SETUSER", "walrelay"], &rules.iter().map(String::as_str).collect::<Vec<_>>()[..]].concat();
        assert_eq!(cluster.call(node, &words).unwrap(), Reply::Text("OK".to_owned()), "{words:?}");
    }
    let to = cluster.nodes[0].url().replace("://", "://walrelay:SECRET@");
    let _plain = elsewhere::start(&plain, &to, &[]);
    let _dropping = elsewhere::start(&dropping, &cluster.url(), &["-X", "dedupe=1h"]);
    plain.sql(SAME_IDS);
    let (mut one, mut other) = (plain.connect(), dropping.connect());
    let streams = [plain.topic("order"), dropping.topic("order")];
    let slots = streams.each_ref().map(|stream| cluster.slot(stream).unwrap());
    let fresh = cluster.slot(&plain.topic("fresh")).unwrap();
    let fresh_to = (cluster.owner(fresh).unwrap() + 1) % 3;
    cluster.begin_move(fresh, fresh_to).unwrap();
    for round in 0..4 {
        let last = 400 * round;
        let mut both = |first: u32, last: u32| {
            insert(&mut one, "order", first, last);
            insert(&mut other, "order", first, last);
        };
        both(last + 1, last + 100);
        let to = slots.map(|slot| (cluster.owner(slot).unwrap() + 1) % 3);
        for (slot, to) in slots.into_iter().zip(to) {
            cluster.begin_move(slot, to).unwrap();
        }
        both(last + 101, last + 200);
        for (slot, to) in slots.into_iter().zip(to) {
            while cluster.move_keys(slot, to, 100).unwrap() {}
        }
        both(last + 201, last + 300);
        if round == 1 {
            // Streams that are elsewhere already, or not there yet, take entries while their slots move.
            plain.sql(
                "INSERT INTO outbox SELECT n::text, 'fresh', 'k' || n % 7, 't', '{}' FROM generate_series(1, 300) AS n",
            );
            plain.wait_confirmed();
            assert_eq!(
                cluster.call(fresh_to, &["CLUSTER", "COUNTKEYSINSLOT", &fresh.to_string()]).unwrap().integer(),
                Some(1)
            );
        }
        for (slot, to) in slots.into_iter().zip(to) {
            cluster.end_move(slot, to).unwrap();
        }
        both(last + 301, last + 400);
    }
    cluster.end_move(fresh, fresh_to).unwrap();
    for slot in slots {
        cluster.move_at_once(slot, (cluster.owner(slot).unwrap() + 1) % 3).unwrap();
    }
    insert(&mut one, "order", 1601, 1700);
    insert(&mut other, "order", 1601, 1700);
    plain.wait_confirmed();
    dropping.wait_confirmed();
    for stream in &streams {
        assert_eq!(elsewhere::assert_complete(&ids(cluster, stream), 1700), 0, "{stream}");
    }
    assert_eq!(elsewhere::assert_complete(&ids(cluster, &plain.topic("fresh")), 300), 0);
}

#[test]
#[ignore = "slow"]
fn a_primary_that_is_killed_or_hangs_gives_way_to_its_replica_and_nothing_is_lost_swapped_or_repeated() {
    let mut cluster = Cluster::start(3, 1, &[]).unwrap();
    let lane = lane();
    let route = route_on(&cluster, &lane, 0);
    let stream = lane.topic(&route);
    let _relay = elsewhere::start(&lane, &cluster.url(), &["-X", "wait=1,1000", "-X", "dedupe=1h"]);
    let mut writer = lane.connect();
    insert(&mut writer, &route, 1, 300);
    wait_for(&cluster, 0, &stream, 1);
    cluster.nodes[0].kill().unwrap();
    insert(&mut writer, &route, 301, 600);
    cluster.wait_until_primary(3).unwrap();
    // Nothing counts before a replica has it.
    cluster.nodes[0].start_again().unwrap();
    lane.wait_confirmed();
    assert_eq!(elsewhere::assert_complete(&ids(&cluster, &stream), 600), 0);
    cluster.wait_for_replica(3).unwrap();
    cluster.wait_until_ok().unwrap();
    insert(&mut writer, &route, 601, 700);
    wait_for(&cluster, 3, &stream, 601);
    cluster.nodes[3].suspend().unwrap();
    insert(&mut writer, &route, 701, 900);
    cluster.wait_until_primary(0).unwrap();
    // The one that hangs says nothing, and is left all the same.
    wait_for(&cluster, 0, &stream, 701);
    cluster.nodes[3].resume().unwrap();
    lane.wait_confirmed();
    assert_eq!(elsewhere::assert_complete(&ids(&cluster, &stream), 900), 0);
}

#[test]
fn check_looks_at_every_primary_and_dead_letters_are_found_wherever_they_are() {
    let (lane, cluster) = (lane(), shared());
    lane.sql("INSERT INTO outbox VALUES ('1', 'order', 'k', 't', '{}')");
    let to = cluster.nodes[1].url();
    let found = elsewhere::check(&lane, &to, &["-X", "wait=1,1000"]);
    let all = cluster.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect::<Vec<_>>().join(", ");
    for text in ["a cluster of 3 primaries", "0 replicas are connected", "order is created by its first record", &all] {
        assert!(found.contains(text), "{text}: {found}");
    }
    let apart = walrelay_dev::brokers::shared(walrelay_dev::brokers::Kind::Valkey).unwrap().url();
    let two = format!("{apart},127.0.0.1:1");
    let found = elsewhere::check(&lane, &two, &[]);
    assert!(found.contains("cluster support disabled"), "{found}");

    lane.sql("INSERT INTO outbox SELECT n::text, NULL, 'k' || n, 't', '{}' FROM generate_series(2, 150) AS n");
    let mut relay = elsewhere::start(&lane, &to, &["--on-bad-row", "dead-letter"]);
    lane.wait_confirmed();
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
    let order = lane.topic("order");
    let flags = ["dead-letters", "--slot", &lane.name, "--to", &to, "--replay", "--default-topic", &order];
    let output = relay::run(&binary(), &flags).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(ids(cluster, &order).len(), 150);
    let dead = lane.topic("dead-letter");
    assert_eq!(cluster.of_key(&dead, &["XLEN", &dead]).unwrap().integer(), Some(0));
}

#[test]
#[ignore = "slow"]
fn nodes_that_are_down_and_slots_that_nobody_has_are_waited_for() {
    let lane = lane();
    lane.sql(SAME_IDS);
    let mut cluster = Cluster::start(3, 0, &["cluster-require-full-coverage no"]).unwrap();
    let (first, second) = (route_on(&cluster, &lane, 0), route_on(&cluster, &lane, 1));
    let relay = elsewhere::start(&lane, &cluster.url(), &[]);
    let mut writer = lane.connect();
    insert(&mut writer, &first, 1, 20);
    insert(&mut writer, &second, 1, 20);
    lane.wait_confirmed();
    cluster.nodes[1].kill().unwrap();
    insert(&mut writer, &second, 21, 40);
    insert(&mut writer, &first, 21, 40);
    let told = |text: &str| Ok(relay.status()?["last_error"].as_str().is_some_and(|error| error.contains(text)));
    let down = format!("127.0.0.1:{} cannot be reached", cluster.nodes[1].port());
    wait_until(LONG, &down, || told(&down)).unwrap();
    // The others go on.
    wait_for(&cluster, 0, &lane.topic(&first), 40);
    cluster.nodes[1].start_again().unwrap();
    lane.wait_confirmed();
    let slot = cluster.slot(&lane.topic(&first)).unwrap().to_string();
    for node in 0..3 {
        cluster.call(node, &["CLUSTER", "DELSLOTS", &slot]).unwrap();
    }
    insert(&mut writer, &first, 41, 60);
    let nobody = format!("no node of the cluster has slot {slot}");
    wait_until(LONG, &nobody, || told(&nobody)).unwrap();
    cluster.call(0, &["CLUSTER", "ADDSLOTS", &slot]).unwrap();
    lane.wait_confirmed();
    for (route, last) in [(&first, 60), (&second, 40)] {
        elsewhere::assert_complete(&ids(&cluster, &lane.topic(route)), last);
    }
}

/// The node announces itself so, and all nodes know it.
fn announce(cluster: &Cluster, node: usize, host: &str, port: u16) {
    for (name, value) in [("cluster-announce-hostname", host), ("cluster-announce-port", &port.to_string())] {
        let set = cluster.call(node, &["CONFIG", "SET", name, value]).unwrap();
        assert_eq!(set, Reply::Text("OK".to_owned()), "{name}");
    }
    let is_named = |range: &Reply| {
        let primary = range.items()[2].items();
        primary[0].text() == host && primary[1].integer() == Some(port.into())
    };
    let all_know =
        || Ok((0..3).all(|other| cluster.call(other, &["CLUSTER", "SLOTS"]).unwrap().items().iter().any(is_named)));
    wait_until(LONG, &format!("all to know {host}:{port}"), all_know).unwrap();
}

#[test]
#[ignore = "slow"]
fn with_tls_the_certificate_of_each_node_is_for_the_host_that_it_announces() {
    let (lane, cluster) = (lane(), Cluster::start(3, 0, &["cluster-preferred-endpoint-type hostname"]).unwrap());
    lane.sql(SAME_IDS);
    let routes = [0, 1, 2].map(|node| route_on(&cluster, &lane, node));
    let (authority, folder) = (Authority::new("right").unwrap(), tempfile::tempdir().unwrap());
    let file = |name: &str| folder.path().join(name).display().to_string();
    std::fs::write(file("ca.pem"), authority.pem()).unwrap();
    authority.issue("walrelay", &[]).unwrap().write(folder.path(), "client").unwrap();
    let hosts = ["localhost", "127.0.0.2", "127.0.0.3"];
    let front = |node: usize, host: &str| {
        let own = authority.issue("node", &[hosts[node]]).unwrap();
        let address = if host == "localhost" { "127.0.0.1" } else { host };
        TlsFront::before(cluster.nodes[node].port(), address, &authority, &own)
    };
    let fronts = [0, 1, 2].map(|node| front(node, hosts[node]));
    for node in 0..3 {
        announce(&cluster, node, hosts[node], fronts[node].port);
    }
    let to = format!("rediss://localhost:{}", fronts[0].port);
    let files = [("ca", "ca.pem"), ("certificate", "client.crt"), ("key", "client.key")];
    let properties = files.map(|(name, of)| format!("tls.{name}={}", file(of)));
    let more: Vec<&str> = properties.iter().flat_map(|property| ["-X", property]).collect();
    let mut writer = lane.connect();
    let mut relay = elsewhere::start(&lane, &to, &more);
    for route in &routes {
        insert(&mut writer, route, 1, 20);
    }
    lane.wait_confirmed();
    assert_eq!(relay.terminate(LONG).unwrap().code, 0, "{}", relay.log());
    let found = elsewhere::check(&lane, &to, &more);
    assert!(found.contains("a cluster of 3 primaries"), "{found}");

    // Another node's name.
    let stray = front(2, hosts[1]);
    announce(&cluster, 2, hosts[1], stray.port);
    let relay = elsewhere::start(&lane, &to, &more);
    for route in routes.iter().rev() {
        insert(&mut writer, route, 21, 40);
    }
    wait_log(&relay, "not valid for name");
    wait_for(&cluster, 0, &lane.topic(&routes[0]), 40);
    wait_for(&cluster, 1, &lane.topic(&routes[1]), 40);
    assert_eq!(ids(&cluster, &lane.topic(&routes[2])).len(), 20);
    let found = elsewhere::check(&lane, &to, &more);
    assert!(found.contains("not valid for name") && found.contains("cluster-announce-ip"), "{found}");
    announce(&cluster, 2, hosts[2], fronts[2].port);
    lane.wait_confirmed();
    for route in &routes {
        assert_eq!(elsewhere::assert_complete(&ids(&cluster, &lane.topic(route)), 40), 0, "{route}");
    }
}
