//! A fault every few minutes: one of the programs is killed, stopped or frozen, and is there again some seconds later.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use rand::Rng as _;
use rand::rngs::StdRng;

use super::{Ground, PATIENCE, about};

/// How long what was killed stays away.
const AWAY: Duration = Duration::from_secs(3);

/// The kinds of faults. The relay is killed as often as all other faults come, since a kill is what repeats rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    RelayKilled,
    RelayStopped,
    PostgresKilled,
    BrokerKilled,
    BrokerFrozen,
}

impl Fault {
    /// Each kind with its name in tables.
    pub(super) const ALL: [(Self, &str); 5] = [
        (Self::RelayKilled, "relay killed"),
        (Self::RelayStopped, "relay stopped"),
        (Self::PostgresKilled, "Postgres killed"),
        (Self::BrokerKilled, "broker killed"),
        (Self::BrokerFrozen, "broker frozen"),
    ];

    fn draw(rng: &mut StdRng) -> Self {
        match rng.random_range(0..8) {
            0..4 => Self::RelayKilled,
            4 => Self::RelayStopped,
            5 => Self::PostgresKilled,
            6 => Self::BrokerKilled,
            _ => Self::BrokerFrozen,
        }
    }

    fn begin(self, ground: &mut Ground) -> Result<()> {
        match self {
            Self::RelayKilled => ground.relay.kill9(),
            Self::RelayStopped => {
                let code = ground.relay.terminate(PATIENCE)?.code;
                ensure!(code == 0, "the relay stopped with {code}");
                Ok(())
            }
            Self::PostgresKilled => ground.postgres.kill(),
            Self::BrokerKilled => ground.kafka.kill(),
            Self::BrokerFrozen => ground.kafka.suspend(),
        }
    }

    fn end(self, ground: &mut Ground) -> Result<()> {
        match self {
            Self::RelayKilled | Self::RelayStopped => ground.relay.start_again(),
            Self::PostgresKilled => ground.postgres.start_again(),
            Self::BrokerKilled => ground.kafka.start_again(),
            Self::BrokerFrozen => ground.kafka.resume(),
        }
    }
}

/// The faults of a run, one after the other.
pub(super) struct Faults {
    rng: StdRng,
    every: Duration,
    next: Instant,
    under_way: Option<Fault>,
}

impl Faults {
    /// The first fault comes after about this time.
    pub(super) fn new(mut rng: StdRng, every: Duration) -> Self {
        let next = Instant::now() + about(&mut rng, every);
        Self { rng, every, next, under_way: None }
    }

    /// Begins or ends a fault if it is due. Returns the fault that has begun.
    pub(super) fn turn(&mut self, ground: &mut Ground) -> Result<Option<Fault>> {
        if Instant::now() < self.next {
            return Ok(None);
        }
        if self.under_way.is_some() {
            self.end(ground)?;
            return Ok(None);
        }
        let fault = Fault::draw(&mut self.rng);
        fault.begin(ground)?;
        self.under_way = Some(fault);
        self.next = Instant::now() + about(&mut self.rng, AWAY);
        Ok(Some(fault))
    }

    /// Ends the fault that is under way.
    pub(super) fn end(&mut self, ground: &mut Ground) -> Result<()> {
        if let Some(fault) = self.under_way.take() {
            fault.end(ground)?;
            self.next = Instant::now() + about(&mut self.rng, self.every);
        }
        Ok(())
    }
}
