//! Servers that tests may stop, freeze and break: one of each, used in turn.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use walrelay_dev::kafka::{self, Kafka};
use walrelay_dev::postgres::{self, Postgres};
use walrelay_dev::run_dir;

/// A Postgres to break, up and running.
pub(crate) fn postgres() -> MutexGuard<'static, Postgres> {
    static OWN: OnceLock<Mutex<Postgres>> = OnceLock::new();
    let own = OWN.get_or_init(|| Mutex::new(Postgres::start(&postgres::Options::default()).unwrap()));
    // Who had it before may have failed in the middle of breaking it.
    let mut server = own.lock().unwrap_or_else(PoisonError::into_inner);
    server.resume().unwrap();
    server.start_again().unwrap();
    server
}

/// A Kafka to break, up and running.
pub(crate) fn kafka() -> MutexGuard<'static, Kafka> {
    static OWN: OnceLock<Mutex<Kafka>> = OnceLock::new();
    let own = OWN.get_or_init(|| Mutex::new(Kafka::start(&kafka::Options::soon_back()).unwrap()));
    let mut broker = own.lock().unwrap_or_else(PoisonError::into_inner);
    broker.resume().unwrap();
    broker.start_again().unwrap();
    broker
}

/// A Kafka that makes no topic by itself, and the port that its second listener advertises, where nobody listens.
pub(crate) fn strict_kafka() -> &'static (Kafka, u16) {
    static STRICT: OnceLock<(Kafka, u16)> = OnceLock::new();
    STRICT.get_or_init(|| {
        let nobody = run_dir::free_port().unwrap();
        let options =
            kafka::Options { auto_create_topics: false, advertise_through: Some(nobody), ..kafka::Options::default() };
        let kafka = Kafka::start(&options).unwrap();
        // `check` waits for ten seconds only.
        kafka.prepare_transactions().unwrap();
        (kafka, nobody)
    })
}
