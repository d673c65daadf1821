//! Questions beside the stream that reach another server than the stream does.

use walrelay_dev::kafka::shared_kafka;
use walrelay_dev::postgres::{self, Postgres};
use walrelay_dev::tap::Tap;

use crate::lane::{Lane, OUTBOX};

/// Two servers behind one address, as during a change of DNS or of a virtual one: the stream is the first one's, and the second one's
/// slot of the same name is far ahead.
#[test]
fn what_another_server_says_of_the_slot_is_not_believed() {
    let servers = [(); 2].map(|()| Postgres::start(&postgres::Options::default()).unwrap());
    let address = |server: &Postgres| format!("127.0.0.1:{}", server.port());
    let lane = Lane::on(&servers[0], shared_kafka().unwrap()).furnish(OUTBOX, "outbox");
    let name = &lane.name;
    servers[1].create_database(name).unwrap();
    let mut other = servers[1].connect(Some(name)).unwrap();
    other.batch_execute(OUTBOX).unwrap();
    other
        .batch_execute(&format!(
            "CREATE PUBLICATION {name} FOR TABLE outbox WITH (publish = 'insert');
             CREATE TABLE filler AS SELECT repeat(md5(n::text), 100) FROM generate_series(1, 20000) AS n"
        ))
        .unwrap();
    other.batch_execute(&format!("SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')")).unwrap();
    lane.sql("INSERT INTO outbox SELECT n || '', 'order', 'k', 't', '1' FROM generate_series(1, 20) AS n");

    let tap = Tap::start(address(&servers[0])).unwrap();
    // First the stream's connection, then those for questions: the slot is asked for before it is taken, and once it is.
    for connection in [2, 5] {
        tap.divert(connection, address(&servers[1]));
    }
    let source = format!("postgres://postgres@{}/{name}?sslmode=disable", tap.address());
    let relay = lane.relay(&["--source", &source]);
    let all: Vec<String> = (1..=20).map(|n| n.to_string()).collect();
    assert_eq!(lane.ids("order"), all, "{}", relay.log());
    assert_eq!(relay.log().matches("another server").count(), 2, "{}", relay.log());
}
