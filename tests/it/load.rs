//! A lane under load that knows its own truth.

use postgres::Client;
use walrelay_dev::consume;
use walrelay_dev::kafka::{Kafka, shared_kafka};
use walrelay_dev::postgres::{Postgres, shared_postgres};
use walrelay_dev::relay::Relay;
use walrelay_dev::shop::{self, Shop};
use walrelay_dev::truth::{Checker, Report};

use crate::lane::Lane;

/// Writes rows of the outbox and of the truth at once: `$1` how many, `$2` the key, `$3` the number before the first.
const BULK: &str = "
    WITH sent AS (
        INSERT INTO outbox SELECT gen_random_uuid(), 'order', $2::text, 'Bulk', jsonb_build_object('seq', $3::bigint + n)
        FROM generate_series(1, $1::bigint) AS n RETURNING id, payload)
    INSERT INTO truth SELECT id::text, $2::text, (payload->>'seq')::bigint, md5(payload::text) FROM sent";

/// The relay's log line once another relay may have taken the slot, as far as it knows.
pub(crate) const UNPROVEN: &str = "what is in flight is not sent any more";

/// The relay's log line once nothing proves that no other relay has its slot: what it sends again may have been stored.
pub(crate) const PARKED: &str = "sending stops until Postgres answers";

/// Nothing was sent twice, unless the relay has said that nothing proved its hold on the slot: Kafka or Postgres took longer than half a
/// second to answer, as they may on a busy machine.
#[track_caller]
pub(crate) fn assert_not_repeated(report: &Report, relay: &Relay) {
    let log = relay.log();
    let may_repeat = log.contains(UNPROVEN) || log.contains(PARKED);
    assert!(report.repeated == 0 || may_repeat, "{report:#?}\n{log}");
}

/// A lane with the shop's tables and topics.
pub(crate) struct Load {
    pub(crate) lane: Lane,
    options: shop::Options,
}

impl Load {
    /// On the shared servers.
    pub(crate) fn shared() -> Self {
        Self::on(shared_postgres().unwrap(), shared_kafka().unwrap())
    }

    /// On these servers.
    pub(crate) fn on(postgres: &Postgres, kafka: &Kafka) -> Self {
        // Paced, so that a test's relay in debug mode keeps up and the machine is not all load.
        let pause = std::time::Duration::from_millis(5);
        let options = shop::Options { pause, ..shop::Options::default() };
        let lane = Lane::on(postgres, kafka);
        shop::create_tables(&mut lane.connect(), &options).unwrap();
        lane.publish("outbox");
        lane.make_slot();
        for kind in shop::KINDS {
            kafka.create_topic(&lane.topic(kind), 4, &[]).unwrap();
        }
        Self { lane, options }
    }

    /// Starts to write, until the shop is closed.
    pub(crate) fn shop(&self) -> Shop {
        Shop::open(&self.lane.source, &self.options).unwrap()
    }

    /// Writes rows of one key in the client's transaction.
    pub(crate) fn bulk(client: &mut impl postgres::GenericClient, key: &str, rows: std::ops::Range<i64>) {
        client.execute(BULK, &[&(rows.end - rows.start), &key, &rows.start]).unwrap();
    }

    /// A new connection.
    pub(crate) fn connect(&self) -> Client {
        self.lane.connect()
    }

    /// Compares what is committed with what the topics hold, once everything is confirmed.
    #[track_caller]
    pub(crate) fn verdict(&self) -> Report {
        self.lane.wait_confirmed();
        let mut checker = Checker::load(&mut self.lane.connect()).unwrap();
        for kind in shop::KINDS {
            consume::read_topic(&self.lane.client, &self.lane.topic(kind), |record| checker.see(&record)).unwrap();
        }
        checker.finish()
    }

    /// Everything is there, in order, and once.
    #[track_caller]
    pub(crate) fn assert_exact(&self, relay: &Relay) {
        let report = self.verdict();
        assert!(report.is_clean(), "{report:#?}\n{}", relay.log());
        assert_not_repeated(&report, relay);
        assert!(report.committed > 0, "nothing was written");
    }

    /// Everything is there and in order; what was in flight may be there twice.
    #[track_caller]
    pub(crate) fn assert_complete(&self, relay: &Relay) -> Report {
        let report = self.verdict();
        assert!(report.is_clean(), "{report:#?}\n{}", relay.log());
        report
    }
}
