//! A server that comes back as a standby, and is promoted later: a failover seen from one address.

use walrelay_dev::kafka::shared_kafka;
use walrelay_dev::postgres::{Options, Postgres};
use walrelay_dev::process::wait_until;

use crate::lane::{LONG, Lane, OUTBOX, wait_log};

#[test]
fn a_standby_that_is_not_promoted_yet_is_waited_for() {
    // Logical decoding on a standby came with 16.
    let mut postgres = Postgres::start(&Options { major: 15, ..Options::default() }).unwrap();
    let lane = Lane::on(&postgres, shared_kafka().unwrap()).furnish(OUTBOX, "outbox");
    let mut relay = lane.streaming(&[]);
    lane.sql("INSERT INTO outbox VALUES ('before', 'order', 'k', 't', '1')");
    lane.wait_confirmed();

    postgres.demote().unwrap();
    wait_log(&relay, "is a standby");
    assert_eq!(relay.exited().unwrap(), None, "{}", relay.log());

    lane.sql("SELECT pg_promote()");
    wait_until(LONG, "the relay to stream again", || Ok(relay.get("/readyz")?.status == 200)).unwrap();
    lane.sql("INSERT INTO outbox VALUES ('after', 'order', 'k', 't', '1')");
    assert_eq!(lane.ids("order"), ["before", "after"]);
}
