//! The faults of a relay that has a standby: how each begins and ends. All choices follow from the seed.

use std::time::Duration;

use anyhow::Result;
use clap::ValueEnum as _;
use rand::Rng as _;
use rustix::process::Signal;
use walrelay_dev::tap::Tap;

use super::super::plan::{dice, in_turn, name_of};
use super::Pair;

/// A kind of fault. Each makes the active relay lose the slot while records of it are under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(crate) enum Fault {
    /// Nothing passes between the active relay and the brokers
    BrokerCut,
    /// Nothing passes between the active relay and Postgres
    PostgresCut,
    /// Both
    BothCut,
    /// SIGSTOP of the active relay, and SIGCONT once the standby has published everything
    Freeze,
    /// The same while nothing passes to the brokers
    FreezeCut,
    /// `pg_terminate_backend`, and no new connection to Postgres for a while
    Terminate,
    /// The same while nothing passes to the brokers
    TerminateCut,
    /// SIGKILL while nothing passes to the brokers: what does the kernel still send?
    KillCut,
}

/// One round.
#[derive(Debug, Clone, Copy)]
pub(super) struct Round {
    /// From 1.
    pub(super) number: usize,
    pub(super) fault: Fault,
    /// How long rows are written before.
    pub(super) calm: Duration,
    /// How long they are written after the standby has taken over.
    pub(super) more: Duration,
}

/// The rounds: each kind once, in an order that the seed tells, then each once more in another.
pub(super) fn plan(seed: u64, rounds: usize, only: &[Fault]) -> Vec<Round> {
    let kinds = if only.is_empty() { Fault::value_variants() } else { only };
    let round = |number: usize| {
        let mut rng = dice(seed, number);
        Round {
            number,
            fault: in_turn(kinds, seed, number).unwrap_or(Fault::BrokerCut),
            calm: Duration::from_millis(rng.random_range(500..1500)),
            more: Duration::from_millis(rng.random_range(200..1500)),
        }
    };
    (1..=rounds).map(round).collect()
}

impl Fault {
    /// As `--standby` takes it.
    pub(super) fn name(self) -> String {
        name_of(&self)
    }

    fn cuts_brokers(self) -> bool {
        matches!(self, Self::BrokerCut | Self::BothCut | Self::FreezeCut | Self::TerminateCut | Self::KillCut)
    }

    fn cuts_postgres(self) -> bool {
        matches!(self, Self::PostgresCut | Self::BothCut)
    }

    /// Whether the relay is frozen. Then it cannot prevent late records: librdkafka sends them before the relay's thread runs again.
    pub(super) fn freezes(self) -> bool {
        matches!(self, Self::Freeze | Self::FreezeCut)
    }

    fn terminates(self) -> bool {
        matches!(self, Self::Terminate | Self::TerminateCut)
    }

    /// Begins it.
    pub(super) fn begin(self, pair: &mut Pair<'_>) -> Result<()> {
        if self.cuts_brokers() {
            pair.servers.taps().iter().for_each(Tap::stall_both);
            // So that records pile up, as they do until an outage is noticed.
            std::thread::sleep(Duration::from_millis(500));
        }
        if self.cuts_postgres() {
            pair.postgres_tap.stall_both();
        }
        if self.freezes() {
            pair.active.signal(Signal::STOP)?;
        }
        if self.terminates() {
            pair.postgres_tap.refuse(true);
            pair.stage.terminate_walsender()?;
        }
        if self == Self::KillCut {
            pair.active.kill9()?;
        }
        Ok(())
    }

    /// Ends it, once the standby has published everything.
    pub(super) fn end(self, pair: &mut Pair<'_>) -> Result<()> {
        pair.postgres_tap.flow();
        pair.servers.taps().iter().for_each(Tap::flow);
        if self.freezes() {
            pair.active.signal(Signal::CONT)?;
        }
        if self == Self::KillCut {
            pair.active.start_again()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_its_rounds_and_every_kind_comes() {
        let kinds = Fault::value_variants().len();
        let plan_of = |rounds| plan(7, rounds, &[]).iter().map(|round| (round.fault, round.calm)).collect::<Vec<_>>();
        assert_eq!(plan_of(kinds), plan_of(3 * kinds)[..kinds]);
        let mut faults: Vec<Fault> = plan_of(kinds).into_iter().map(|(fault, _)| fault).collect();
        faults.sort_unstable();
        assert_eq!(faults, Fault::value_variants());
    }
}
