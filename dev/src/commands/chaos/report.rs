//! The results of the rounds: a table by kinds of faults, the comparison of rows and records, and whether each promise held.

use std::time::Duration;

use clap::ValueEnum as _;
use walrelay_dev::brokers;

use super::beside;
use super::plan::{Kind, Round};
use super::world::{Repeats, Settings, Verdict};
use crate::screen::{line, thousands};

/// The longest time without a record or a confirmation while everything is up.
const LONGEST_STANDSTILL: Duration = Duration::from_secs(15);

/// The same for brokers that may lose a message, or its answer, without an error: it is sent again only after that time.
const LONGEST_SILENCE: Duration = Duration::from_secs(45);

/// The most memory a relay may ever hold, in KiB: what its container is given.
const MOST_MEMORY_KIB: u64 = 256 << 10;

/// The result of one round.
#[derive(Debug, Clone)]
pub(super) struct Outcome {
    pub(super) round: Round,
    /// The records in flight just before the fault, by `/status`.
    pub(super) in_flight: u64,
    /// The second fault, if it met something that was up.
    pub(super) second: Option<Kind>,
    pub(super) killed: bool,
    /// The connection to the broker was lost with what was under way.
    pub(super) lost: bool,
    /// How often the relay has said that it gives up what is in flight, since another relay may have had the slot.
    pub(super) given_up: usize,
    /// The exit code of a graceful shutdown.
    pub(super) code: Option<i32>,
    /// From the end of the faults until all that was committed by then was confirmed.
    pub(super) recovery: Duration,
    /// The longest part of the recovery in which nothing moved.
    pub(super) standstill: Duration,
    /// Records that came again, and the first of them.
    pub(super) repeats: (usize, String),
    /// Rows below the confirmed position that had not arrived.
    pub(super) absent: Vec<String>,
    pub(super) moved_back: bool,
}

impl Outcome {
    /// The round in one line.
    pub(super) fn describe(&self, rounds: usize) -> String {
        let second = self.second.map(|kind| format!(" + {}", kind.name())).unwrap_or_default();
        let code = self.code.filter(|code| *code != 0).map(|code| format!("  EXIT {code}")).unwrap_or_default();
        let absent = if self.absent.is_empty() { String::new() } else { format!("  ABSENT {}", self.absent.len()) };
        let back = if self.moved_back { "  MOVED BACK" } else { "" };
        format!(
            "{:>5}/{rounds}  {:<38} {:>6} in flight  {:>5} repeats  recovered in {:>5.1} s{code}{absent}{back}",
            self.round.number,
            format!("{}{second}", self.round.first.kind.name()),
            self.in_flight,
            self.repeats.0,
            self.recovery.as_secs_f64()
        )
    }

    /// Whether one of its faults is such a one.
    fn had(&self, is_such: impl Fn(Kind) -> bool) -> bool {
        self.second.into_iter().chain([self.round.first.kind]).any(is_such)
    }

    /// The promises that the round broke.
    fn broken(&self, settings: &Settings) -> Vec<String> {
        let mut broken = Vec::new();
        let mut add = |what: String| broken.push(format!("round {}: {what}", self.round.number));
        if let Some(first) = self.absent.first().filter(|_| settings.follows_what_counts()) {
            add(format!("{} rows below the confirmed position have not arrived, such as {first}", self.absent.len()));
        }
        let silent = matches!(settings.to.kind(), Some(brokers::Kind::RabbitMq | brokers::Kind::ElasticMq));
        if self.standstill > if silent { LONGEST_SILENCE } else { LONGEST_STANDSTILL } {
            add(format!("nothing moved for {:.1} s although all was up", self.standstill.as_secs_f64()));
        }
        if self.moved_back {
            add("the slot's confirmed position moved back".to_owned());
        }
        if let Some(code) = self.code.filter(|code| *code != 0) {
            add(format!("the graceful shutdown ended with {code}"));
        }
        // While the relay was frozen, another one may have held the slot, as far as it can know. A refused record ends the producer, and what
        // was in flight comes again from the slot.
        let is_anew = self.killed || self.had(|kind| kind == Kind::RelayFreeze);
        let gave_up = self.given_up > 0 && self.had(Kind::releases_slot);
        let may_repeat = match settings.repeats() {
            Repeats::None => false,
            Repeats::AfterLosses => is_anew || self.lost || gave_up,
            Repeats::AfterRefusals => is_anew || self.lost || gave_up || settings.dead_letter(),
            Repeats::AfterLostSlots => is_anew || self.lost || self.had(Kind::releases_slot),
        };
        if self.repeats.0 > 0 && !may_repeat {
            add(format!("{} records came again without need, the first is {}", self.repeats.0, self.repeats.1));
        }
        broken
    }
}

/// All rounds and what was found after them.
#[derive(Debug, Default)]
pub(super) struct Report {
    pub(super) outcomes: Vec<Outcome>,
    pub(super) verdicts: Vec<Verdict>,
    /// The most memory that a relay ever held, in KiB.
    pub(super) peak_kib: u64,
}

impl Report {
    /// The promises that were broken. If there are none, the run has passed.
    pub(super) fn broken(&self, settings: &Settings) -> Vec<String> {
        let mut broken: Vec<String> = self.outcomes.iter().flat_map(|outcome| outcome.broken(settings)).collect();
        if self.peak_kib > MOST_MEMORY_KIB {
            broken.push(format!("the relay held {} MB", self.peak_kib / 1024));
        }
        for verdict in &self.verdicts {
            broken.extend(verdict.undelivered.iter().map(|why| format!("not everything was confirmed: {why}")));
            if verdict.exit != 0 {
                broken.push(format!("the last stop ended with {}", verdict.exit));
            }
            if !verdict.truth.is_clean() || settings.repeats() == Repeats::None && verdict.truth.repeated > 0 {
                broken.push(format!("the books do not agree: {}", verdict.truth));
                broken.extend(verdict.truth.offenders.iter().map(|offender| format!("  {offender}")));
            }
            broken.extend(
                verdict.compared.iter().flat_map(|compared| compared.wrong.clone()).map(|why| format!("verify: {why}")),
            );
            broken.extend(
                verdict
                    .dead_letters
                    .iter()
                    .filter(|dead_letters| !dead_letters.is_exact())
                    .map(|dead_letters| format!("the dead letters are others: {dead_letters}")),
            );
        }
        broken
    }

    /// Prints the table and the books.
    pub(super) fn print(&self, settings: &Settings) {
        line("");
        line("fault                rounds  in flight  on top  repeats  recovery p50    max");
        for kind in Kind::value_variants() {
            self.print_kind(*kind);
        }
        line("");
        self.print_totals(settings);
    }

    fn print_kind(&self, kind: Kind) {
        let of_kind: Vec<&Outcome> = self.outcomes.iter().filter(|outcome| outcome.round.first.kind == kind).collect();
        let on_top = self.outcomes.iter().filter(|outcome| outcome.second == Some(kind)).count();
        if of_kind.is_empty() && on_top == 0 {
            return;
        }
        let mut recovery: Vec<f64> = of_kind.iter().map(|outcome| outcome.recovery.as_secs_f64()).collect();
        recovery.sort_by(f64::total_cmp);
        line(&format!(
            "{:<20} {:>6}  {:>9}  {on_top:>6}  {:>7}  {:>10.1} s  {:>5.1} s",
            kind.name(),
            of_kind.len(),
            of_kind.iter().filter(|outcome| outcome.in_flight > 0).count(),
            of_kind.iter().map(|outcome| outcome.repeats.0).sum::<usize>(),
            crate::screen::percentile(&recovery, 50.0),
            recovery.last().copied().unwrap_or_default()
        ));
    }

    fn print_totals(&self, settings: &Settings) {
        let count = |wanted: &dyn Fn(&Outcome) -> bool| self.outcomes.iter().filter(|outcome| wanted(outcome)).count();
        let sum = |part: &dyn Fn(&Verdict) -> u64| thousands(self.verdicts.iter().map(part).sum());
        let repeats = |killed: bool| {
            let these = self.outcomes.iter().filter(|outcome| outcome.killed == killed);
            these.map(|outcome| outcome.repeats.0).sum::<usize>()
        };
        line(&format!(
            "rounds        {}, {} with records in flight, {} on three brokers",
            self.outcomes.len(),
            count(&|outcome| outcome.in_flight > 0),
            count(&|outcome| outcome.round.brokers == 3)
        ));
        line(&format!(
            "load          {} transactions, {} rows committed, {} rolled back",
            sum(&|verdict| verdict.tally.transactions),
            sum(&|verdict| verdict.truth.committed as u64),
            sum(&|verdict| verdict.tally.rolled_back)
        ));
        let killed = self.outcomes.iter().filter(|outcome| outcome.killed);
        line(&format!(
            "kills         {}, {} with records in flight, {} repeats beside {} in flight; {} repeats in other rounds",
            count(&|outcome| outcome.killed),
            count(&|outcome| outcome.killed && outcome.in_flight > 0),
            repeats(true),
            killed.map(|outcome| outcome.in_flight).sum::<u64>(),
            repeats(false)
        ));
        line(&format!(
            "standstill    {:.1} s at most while all was up",
            self.outcomes.iter().map(|outcome| outcome.standstill).max().unwrap_or_default().as_secs_f64()
        ));
        line(&format!(
            "confirmed     {} rounds after which a row below the confirmed position had not arrived{}",
            count(&|outcome| !outcome.absent.is_empty()),
            if settings.follows_what_counts() { "" } else { " in the stream beside the queue" }
        ));
        for verdict in &self.verdicts {
            line(&format!("truth         {}", verdict.truth));
            if let Some(compared) = &verdict.compared {
                let count = |name: &str| thousands(beside::count(&compared.last, name));
                let (rows, right, repeated) = (count("rows"), count("right"), count("repeated"));
                line(&format!(
                    "verify        {} windows; the last: {rows} rows, {right} right, {repeated} repeated",
                    compared.windows
                ));
            }
            verdict.dead_letters.iter().for_each(|dead_letters| line(&format!("dead letters  {dead_letters}")));
        }
        if settings.exactly_once() {
            let aborted: u64 = self.verdicts.iter().filter_map(|verdict| verdict.aborted).sum();
            let between = count(&|outcome| outcome.killed && outcome.in_flight > 0);
            line(&format!(
                "transactions  {aborted} aborted (each counted in every partition that it had records in); \
                 {between} kills between enqueue and commit"
            ));
        }
        line(&format!("memory        {} MB at most", self.peak_kib / 1024));
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::{Brokers, Wishes, plan};
    use super::super::world::Delivery;
    use super::*;
    use crate::to::To;

    fn settings(exactly_once: bool) -> Settings {
        Settings {
            to: To::Kafka,
            seed: 1,
            delivery: if exactly_once { Delivery::ExactlyOnce } else { Delivery::AtLeastOnce },
            on_bad_row: None,
            connections: 1,
            pause: 0,
            broker_distance: None,
            partitions: 1,
            postgres: 17,
            verify: false,
            relay: Vec::new(),
        }
    }

    fn outcome(killed: bool, repeats: usize) -> Outcome {
        let only = vec![if killed { Kind::RelayKill } else { Kind::BrokerKill }];
        let round = plan(&Wishes { rounds: 1, only, brokers: Brokers::One }, 1, true).remove(0);
        Outcome {
            round,
            in_flight: 1,
            second: None,
            killed,
            lost: false,
            given_up: 0,
            code: None,
            recovery: Duration::ZERO,
            standstill: Duration::ZERO,
            repeats: (repeats, "a record".to_owned()),
            absent: Vec::new(),
            moved_back: false,
        }
    }

    #[test]
    fn only_a_kill_may_repeat_and_exactly_once_not_even_that() {
        assert!(outcome(true, 3).broken(&settings(false)).is_empty());
        assert_eq!(outcome(false, 3).broken(&settings(false)).len(), 1);
        assert_eq!(outcome(true, 3).broken(&settings(true)).len(), 1);
        assert!(outcome(false, 0).broken(&settings(true)).is_empty());
    }

    #[test]
    fn a_relay_that_was_frozen_may_repeat_but_not_exactly_once() {
        let frozen = Outcome { second: Some(Kind::RelayFreeze), ..outcome(false, 3) };
        assert!(frozen.broken(&settings(false)).is_empty());
        assert_eq!(frozen.broken(&settings(true)).len(), 1);
    }

    #[test]
    fn a_lost_slot_may_repeat_only_where_the_broker_takes_long_to_confirm_or_the_relay_says_so() {
        let mut lost = outcome(false, 3);
        lost.round.first.kind = Kind::PostgresKill;
        let to = |to| Settings { to, ..settings(false) };
        assert!(lost.broken(&to(To::Rabbitmq)).is_empty());
        assert_eq!([lost.broken(&to(To::Redis)).len(), lost.broken(&settings(false)).len()], [1, 1]);
        lost.given_up = 1;
        assert_eq!([lost.broken(&to(To::Redis)).len(), lost.broken(&settings(false)).len()], [0, 0]);
        assert_eq!([lost.broken(&to(To::Nats)).len(), lost.broken(&settings(true)).len()], [1, 1]);
        lost.round.first.kind = Kind::BrokerKill;
        assert_eq!(lost.broken(&settings(false)).len(), 1, "nobody else can have had the slot");
    }

    #[test]
    fn a_lost_connection_may_repeat_but_where_the_broker_drops_repeats() {
        let lost = Outcome { lost: true, ..outcome(false, 3) };
        let to = |to, relay: &[&str]| Settings {
            to,
            relay: relay.iter().map(|&argument| argument.to_owned()).collect(),
            ..settings(false)
        };
        assert!(lost.broken(&settings(false)).is_empty());
        assert_eq!(lost.broken(&settings(true)).len(), 1);
        assert!(lost.broken(&to(To::Rabbitmq, &[])).is_empty());
        assert_eq!(outcome(false, 3).broken(&to(To::Rabbitmq, &[])).len(), 1);
        assert!(lost.broken(&to(To::Redis, &[])).is_empty());
        assert_eq!(lost.broken(&to(To::Redis, &["-X", "dedupe=7d"])).len(), 1);
        assert_eq!([outcome(true, 3), lost].map(|outcome| outcome.broken(&to(To::Nats, &[])).len()), [1, 1]);
        let heartbeat = Duration::from_secs(3);
        assert!(to(To::Rabbitmq, &[]).may_be_left_after(heartbeat));
        assert!(!to(To::Rabbitmq, &[]).may_be_left_after(heartbeat / 2));
        assert!(!to(To::Sqs, &[]).may_be_left_after(10 * heartbeat));
    }

    #[test]
    fn a_row_below_the_confirmed_position_that_is_absent_is_named() {
        let lost = Outcome { absent: vec!["row-1".to_owned()], ..outcome(true, 0) };
        let report = Report { outcomes: vec![lost], ..Report::default() };
        assert!(report.broken(&settings(false)).concat().contains("row-1"));
    }

    #[test]
    fn a_long_standstill_and_too_much_memory_break_a_promise() {
        let still = Outcome { standstill: Duration::from_secs(16), ..outcome(true, 0) };
        assert_eq!(still.broken(&settings(false)).len(), 1);
        assert_eq!(Report { peak_kib: 300 << 10, ..Report::default() }.broken(&settings(false)).len(), 1);
    }

    #[test]
    fn a_clean_stop_has_to_end_with_0() {
        let ended = Outcome { code: Some(1), ..outcome(false, 0) };
        assert_eq!(ended.broken(&settings(false)).len(), 1);
        assert!(Outcome { code: Some(0), ..ended }.broken(&settings(false)).is_empty());
    }
}
