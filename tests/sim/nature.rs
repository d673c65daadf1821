//! What goes on in a world and what goes wrong, as numbers: drawn by a seed, or none at all.

use crate::broker::Client;
use crate::dice::Dice;
use crate::lanes::Mutant;
use crate::postgres::Manner;
use std::time::Duration;
use walrelay::relay::BadRowAction;
use walrelay::relay::Limits;

/// What goes on and what goes wrong: each once in so many steps, 0 for never.
#[derive(Debug, Clone, Default)]
pub(crate) struct Nature {
    pub(crate) commit: u64,
    /// Transactions that commit in all.
    pub(crate) transactions: u64,
    /// Rows of a transaction at most, and bytes of a row.
    pub(crate) rows: u64,
    pub(crate) bytes: u64,
    pub(crate) migrate: u64,
    pub(crate) manner: Manner,
    pub(crate) checkpoint: u64,
    pub(crate) inbox: u64,
    pub(crate) delay: u64,
    pub(crate) cut: u64,
    pub(crate) freeze: u64,
    pub(crate) terminate: u64,
    pub(crate) shutdown: u64,
    pub(crate) server_crash: u64,
    pub(crate) promotion: u64,
    /// Steps of the broker for each step.
    pub(crate) batches: u64,
    pub(crate) later: u64,
    pub(crate) environment: u64,
    pub(crate) fatal: u64,
    pub(crate) outage: u64,
    pub(crate) block: u64,
    /// Once in so many rows: one that the broker refuses.
    pub(crate) bad_row: u64,
    /// Once in so many rows: one that no record can be made of.
    pub(crate) bad_route: u64,
    /// Once in so many attempts to note a skipped row: it fails.
    pub(crate) no_note: u64,
    /// What becomes of them.
    pub(crate) bad_rows: BadRowAction,
    /// A topic is missing; a right to write is.
    pub(crate) missing: u64,
    pub(crate) forbidden: u64,
    pub(crate) crash: u64,
    pub(crate) stop: u64,
    /// Once in so many restarts of the sink.
    pub(crate) no_restart: u64,
    /// A second machine has a relay on the same slot.
    pub(crate) standby: bool,
    /// One machine's way to the brokers is cut for a while, or its way to new connections of the server.
    pub(crate) cut_off: u64,
    pub(crate) no_server: u64,
    /// Once in so many waits: the machine stands still.
    pub(crate) pause: u64,
    /// Once in so many calls of the sink that wait for somebody: one takes long.
    pub(crate) long_call: u64,
    /// Once in so many acquisitions: the connection fails before the stream is handed over.
    pub(crate) no_control: u64,
    pub(crate) client: Option<Client>,
    /// How many lanes the Kafka sink has; 0: another sink, with one client.
    pub(crate) lanes: u64,
    /// What is wrong with that sink.
    pub(crate) mutant: Option<Mutant>,
    /// A broker restarts, or leaders move.
    pub(crate) broker_restart: u64,
    /// Records go in transactions: exactly once.
    pub(crate) exactly_once: bool,
    /// Once in so many commits: it fails, and nobody knows what became of it.
    pub(crate) no_commit: u64,
    /// Steps after which nothing goes wrong any more.
    pub(crate) steps: u64,
}

/// How long the relay waits for this and that.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) limits: Limits,
    pub(crate) wal_sender_timeout: Option<Duration>,
}

impl Bounds {
    pub(crate) fn new() -> Self {
        Self {
            limits: Limits {
                coalesce: Duration::ZERO,
                shutdown_timeout: Duration::from_secs(8),
                disconnect_after: Duration::from_secs(10),
            },
            wal_sender_timeout: Some(Duration::from_secs(10)),
        }
    }

    pub(crate) fn random(dice: &mut Dice) -> Self {
        Self {
            limits: Limits {
                coalesce: Duration::from_micros(dice.pick(&[0, 200])),
                shutdown_timeout: Duration::from_millis(dice.between(500, 10_000)),
                disconnect_after: Duration::from_millis(dice.between(2000, 20_000)),
            },
            wal_sender_timeout: Some(Duration::from_millis(dice.between(5000, 20_000))),
        }
    }
}

impl Nature {
    /// Nothing goes wrong; the caller says what happens.
    pub(crate) fn peaceful() -> Self {
        Self {
            rows: 20,
            bytes: 100,
            manner: Manner { keepalive: 0, asking: 0, loose_message: 0, pipe: 1 << 16 },
            inbox: 2,
            batches: 1,
            client: Some(Client { batch: 1 << 20, room: 1 << 20, record: 1 << 20, report: 5, later: 0 }),
            ..Self::default()
        }
    }

    /// Any of everything, or none of it.
    pub(crate) fn random(dice: &mut Dice) -> Self {
        let sometimes = |most_often: u64, dice: &mut Dice| match dice.below(2) {
            0 => 0,
            _ => most_often * dice.between(1, 8),
        };
        let bad_rows = dice.pick(&[BadRowAction::Stop, BadRowAction::DeadLetter, BadRowAction::Skip]);
        // A good row may be skipped when its topic is gone for long: only dead letters say which.
        let topics = u64::from(bad_rows != BadRowAction::Skip);
        let exactly_once = dice.one_in(3);
        Self {
            commit: dice.between(1, 12),
            transactions: dice.between(5, 60),
            rows: dice.pick(&[1, 3, 20]),
            bytes: dice.pick(&[20, 200, 2000]),
            migrate: sometimes(4, dice),
            manner: Manner {
                keepalive: dice.pick(&[0, 3, 30]),
                asking: dice.pick(&[0, 2, 10]),
                loose_message: sometimes(3, dice),
                pipe: dice.pick(&[64, 1000, 20_000]),
            },
            checkpoint: dice.between(1, 200),
            inbox: dice.between(1, 20),
            delay: sometimes(50, dice),
            cut: sometimes(30, dice),
            freeze: sometimes(200, dice),
            terminate: sometimes(100, dice),
            shutdown: sometimes(200, dice),
            server_crash: sometimes(100, dice),
            promotion: sometimes(200, dice),
            batches: dice.between(1, 3),
            later: sometimes(5, dice),
            environment: sometimes(100, dice),
            fatal: sometimes(60, dice),
            outage: sometimes(200, dice),
            block: sometimes(100, dice),
            bad_row: sometimes(40, dice),
            bad_route: sometimes(40, dice),
            no_note: 0,
            bad_rows,
            missing: topics * sometimes(100, dice),
            forbidden: topics * sometimes(100, dice),
            crash: sometimes(100, dice),
            stop: sometimes(100, dice),
            no_restart: sometimes(5, dice),
            standby: dice.one_in(2),
            cut_off: sometimes(100, dice),
            no_server: sometimes(100, dice),
            pause: sometimes(500, dice),
            long_call: sometimes(20, dice),
            no_control: sometimes(3, dice),
            client: Some(Client {
                batch: dice.pick(&[500, 10_000, 1_000_000]),
                room: dice.pick(&[300, 3000, 1_000_000]),
                // Above the largest row, or below some.
                record: dice.pick(&[1_000_000, 1_000_000, 1200]),
                report: dice.pick(&[0, 5, 50]),
                later: dice.pick(&[0, 10, 50]),
            }),
            exactly_once,
            lanes: if exactly_once || dice.one_in(3) { 0 } else { dice.between(1, 4) },
            mutant: None,
            broker_restart: sometimes(50, dice),
            no_commit: sometimes(5, dice),
            steps: dice.between(100, 800),
        }
    }
}
