//! What is done to the services in which round: everything follows from the seed.
//!
//! Each round has dice of its own, so that one round alone (`--at`) does what it does among all of them.

use std::time::Duration;

use clap::ValueEnum;
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom as _, SliceRandom as _};
use rand::{Rng as _, SeedableRng as _};

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, clap::ValueEnum)]
pub(crate) enum Kind {
    /// SIGKILL
    RelayKill,
    /// SIGTERM: must repeat nothing and exit with 0
    RelayTerm,
    /// SIGSTOP, later SIGCONT
    RelayFreeze,
    /// SIGKILL of the postmaster and all its processes; crash recovery
    PostgresKill,
    /// Restart, `-m immediate`
    PostgresImmediate,
    /// Restart, `-m fast`
    PostgresFast,
    /// SIGSTOP of the postmaster and all its processes, later SIGCONT
    PostgresFreeze,
    /// `pg_terminate_backend`
    WalsenderTerminate,
    /// SIGSTOP of the walsender alone, later SIGCONT
    WalsenderFreeze,
    /// Connections closed
    PostgresCut,
    /// Connections lost in both directions without a FIN
    PostgresLost,
    /// The server sees the connections closed, the relay does not
    PostgresHalfOpen,
    /// Nothing arrives for a while
    PostgresStall,
    /// Delay and bandwidth limit
    PostgresSlow,
    /// SIGKILL of a broker, of two at times if there are three
    BrokerKill,
    /// Clean restart of a broker
    BrokerRestart,
    /// SIGSTOP of a broker, later SIGCONT
    BrokerFreeze,
    /// Connections to the brokers closed
    BrokerCut,
    /// Connections to the brokers lost in both directions without a FIN
    BrokerLost,
    /// Nothing arrives at or from the brokers for a while
    BrokerStall,
    /// Delay and bandwidth limit before the brokers
    BrokerSlow,
    /// Columns added, dropped, renamed, partitions added, truncations
    Ddl,
    /// The leaders of all partitions moved to other brokers, if there are three
    LeadersMoved,
    /// The broker's memory, disk or stream is full for a while; not Kafka's
    BrokerFull,
    /// Takes minutes: a broker killed when half of a large transaction is sent, Postgres restarted before it is back
    HalfTransaction,
    /// Takes minutes: a broker killed under load and back after a minute or two, two if there are three
    BrokerGone,
    /// Takes minutes: the relay stopped while many rows are written
    Backlog,
}

impl Kind {
    /// As `--only` takes it.
    pub(super) fn name(self) -> String {
        name_of(&self)
    }

    /// Whether it comes only when it is asked for: it takes minutes.
    fn takes_minutes(self) -> bool {
        self >= Self::HalfTransaction
    }

    /// Whether it is a fault that the servers of this destination can have.
    fn fits(self, kafka: bool) -> bool {
        !self.takes_minutes() && if kafka { self != Self::BrokerFull } else { self != Self::LeadersMoved }
    }

    /// Whether what is under way to the broker is lost on the way there or back, so that the relay cannot know what has arrived.
    pub(super) fn loses_answers(self) -> bool {
        let ends = matches!(self, Self::BrokerKill | Self::BrokerRestart | Self::BrokerGone | Self::HalfTransaction);
        ends || matches!(self, Self::BrokerCut | Self::BrokerLost)
    }

    /// Whether Postgres releases the slot of a relay that is connected.
    pub(super) fn releases_slot(self) -> bool {
        let ends = matches!(self, Self::PostgresKill | Self::PostgresImmediate | Self::PostgresFast);
        ends || matches!(
            self,
            Self::WalsenderTerminate | Self::PostgresCut | Self::PostgresLost | Self::PostgresHalfOpen
        )
    }

    /// For how long it may hold, in milliseconds; 0: it is over at once.
    fn holds(self) -> std::ops::RangeInclusive<u64> {
        match self {
            Self::RelayKill | Self::BrokerRestart => 0..=300,
            Self::PostgresKill | Self::PostgresImmediate | Self::PostgresFast | Self::BrokerKill => 0..=1000,
            Self::RelayFreeze
            | Self::PostgresFreeze
            | Self::WalsenderFreeze
            | Self::PostgresStall
            | Self::BrokerFreeze
            | Self::BrokerStall
            | Self::BrokerFull => 200..=2500,
            Self::PostgresSlow | Self::BrokerSlow => 500..=2000,
            Self::Ddl => 200..=1000,
            Self::RelayTerm
            | Self::WalsenderTerminate
            | Self::PostgresCut
            | Self::PostgresLost
            | Self::PostgresHalfOpen
            | Self::BrokerCut
            | Self::BrokerLost
            | Self::LeadersMoved
            | Self::Backlog => 0..=0,
            Self::HalfTransaction => 20_000..=40_000,
            Self::BrokerGone => 60_000..=120_000,
        }
    }
}

/// The faults that may come on top of another one: what they strike may be down already.
const SECONDS: [Kind; 5] = [Kind::RelayKill, Kind::RelayFreeze, Kind::BrokerCut, Kind::PostgresCut, Kind::BrokerStall];

/// How often a second fault comes on top.
const SECOND: f64 = 0.25;

/// One fault of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Strike {
    pub(crate) kind: Kind,
    /// How long it holds.
    pub(crate) hold: Duration,
    /// A random number for what else there is to choose, such as the broker or a limit.
    pub(crate) dice: u64,
}

/// One round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Round {
    /// From 1.
    pub(crate) number: usize,
    /// How many brokers the cluster has.
    pub(crate) brokers: u16,
    /// How long nothing is done before the fault.
    pub(crate) calm: Duration,
    /// The fault that the round is about.
    pub(crate) first: Strike,
    /// One that begins while the first one holds, that much later.
    pub(crate) second: Option<(Duration, Strike)>,
}

/// How a plan is made.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Wishes {
    /// How many rounds, each with one fault or two
    #[arg(long, default_value_t = 50)]
    pub(crate) rounds: usize,
    /// Only these kinds of faults, and none on top [default: all that take no minutes]
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(crate) only: Vec<Kind>,
    /// How many brokers of Kafka; exactly once has three unless one is asked for; elsewhere there is one
    #[arg(long, value_enum, default_value_t = Brokers::Both)]
    pub(crate) brokers: Brokers,
}

/// On how many brokers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Brokers {
    /// One
    #[value(name = "1")]
    One,
    /// Three, of which two have to be in sync
    #[value(name = "3")]
    Three,
    /// One for the first two thirds of the rounds, then three
    Both,
}

/// The rounds, in their order. `kafka`: the destination is Kafka; others have one broker.
pub(crate) fn plan(wishes: &Wishes, seed: u64, kafka: bool) -> Vec<Round> {
    let faults = Kind::value_variants().iter().filter(|kind| kind.fits(kafka)).copied();
    let kinds = if wishes.only.is_empty() { faults.collect() } else { wishes.only.clone() };
    let alone = match wishes.brokers {
        _ if !kafka => wishes.rounds,
        Brokers::One => wishes.rounds,
        Brokers::Three => 0,
        Brokers::Both => wishes.rounds.div_ceil(3) * 2,
    };
    let round = |number: usize| {
        let mut rng = dice(seed, number);
        let kind = in_turn(&kinds, seed, number).unwrap_or(Kind::RelayKill);
        let second = wishes.only.is_empty() && rng.random_bool(SECOND);
        let calm = Duration::from_millis(rng.random_range(100..=900));
        let first = strike(kind, &mut rng);
        let second = second.then(|| {
            let kind = SECONDS.choose(&mut rng).copied().unwrap_or(Kind::RelayKill);
            let after = first.hold.mul_f64(rng.random::<f64>());
            (after, strike(kind, &mut rng))
        });
        Round { number, brokers: if number <= alone { 1 } else { 3 }, calm, first, second }
    };
    (1..=wishes.rounds).map(round).collect()
}

fn strike(kind: Kind, rng: &mut StdRng) -> Strike {
    Strike { kind, hold: Duration::from_millis(rng.random_range(kind.holds())), dice: rng.random() }
}

/// A value as it is typed.
pub(super) fn name_of(value: &impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// The random numbers of a round, which no other round changes.
pub(super) fn dice(seed: u64, number: usize) -> StdRng {
    StdRng::seed_from_u64(seed.wrapping_mul(1_000_003).wrapping_add(number as u64))
}

/// The kind of a round: each once, in an order that the seed tells, then each once more in another. `None`: there are no kinds.
pub(super) fn in_turn<K: Copy>(kinds: &[K], seed: u64, number: usize) -> Option<K> {
    let count = kinds.len().max(1);
    let lap = (number - 1) / count;
    let mut order = kinds.to_vec();
    order.shuffle(&mut StdRng::seed_from_u64(seed.wrapping_add(lap as u64 * 7919)));
    order.get((number - 1) % count).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn wishes(rounds: usize, only: Vec<Kind>) -> Wishes {
        Wishes { rounds, only, brokers: Brokers::Both }
    }

    #[test]
    fn a_seed_repeats_its_rounds_also_when_there_are_more_of_them() {
        let (few, many) = (plan(&wishes(30, Vec::new()), 7, true), plan(&wishes(300, Vec::new()), 7, true));
        for (few, many) in few.iter().zip(&many) {
            assert_eq!((few.calm, few.first, few.second), (many.calm, many.first, many.second));
        }
        assert_ne!(plan(&wishes(30, Vec::new()), 8, true), few);
    }

    #[test]
    fn every_kind_comes_equally_often_on_one_broker_and_on_three() {
        let rounds = plan(&wishes(300, Vec::new()), 7, true);
        let mut counts: HashMap<Kind, usize> = HashMap::new();
        for round in &rounds {
            *counts.entry(round.first.kind).or_default() += 1;
        }
        assert_eq!(counts.len(), Kind::value_variants().iter().filter(|kind| kind.fits(true)).count());
        assert!(counts.values().all(|count| *count >= 13), "{counts:?}");
        assert_eq!(rounds.iter().filter(|round| round.brokers == 3).count(), 100);
        assert!(rounds.iter().filter(|round| round.second.is_some()).count() > 50);
    }

    #[test]
    fn what_is_not_kafka_has_one_broker_that_fills_up_and_no_leaders_to_move() {
        let rounds = plan(&wishes(60, Vec::new()), 7, false);
        assert!(rounds.iter().all(|round| round.brokers == 1 && round.first.kind != Kind::LeadersMoved));
        assert!(rounds.iter().any(|round| round.first.kind == Kind::BrokerFull));
    }

    #[test]
    fn only_the_kinds_asked_for_come_and_nothing_on_top() {
        let rounds = plan(&wishes(10, vec![Kind::Ddl, Kind::RelayKill]), 7, true);
        assert_eq!(rounds.iter().filter(|round| round.first.kind == Kind::Ddl).count(), 5);
        assert!(rounds.iter().all(|round| round.second.is_none()));
    }
}
