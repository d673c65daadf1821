//! Transactions of the scripted broker: what is appended in one is there once it is committed, or never.
//!
//! ```text
//!  append ──► open ──► commit: progress, asked ──► committed: all of it, and the progress
//!                 └──► another producer of the name takes over: aborted; or committed, where that was asked for
//! ```
//!
//! A commit may fail without a word on what became of it: then whoever takes over finds out.

use crate::broker::{Broker, Partition, append, client_failure};
use crate::dice::Dice;
use crate::truth::Truth;
use crate::wal::Wal;
use std::time::Duration;
use walrelay::sink::{Failure, Initialized};

/// Of one producer.
#[derive(Debug, Default)]
pub(crate) struct Transaction {
    /// What was appended, in that order: rows and dead letters.
    open: Vec<(Partition, (usize, bool))>,
    /// Its commit was asked for, with this progress.
    asked: Option<(String, String)>,
    /// The name is ours.
    owned: bool,
    /// It is another's.
    fenced: bool,
}

impl Transaction {
    pub(crate) fn put(&mut self, partition: &Partition, record: (usize, bool)) {
        if !self.fenced && self.owned {
            self.open.push((partition.clone(), record));
        }
    }
}

impl Broker {
    /// A producer takes the name over; a step.
    pub(crate) fn init_transactions(
        &mut self,
        producer: usize,
        now: Duration,
        (wal, truth): (&Wal, &mut Truth),
        dice: &mut Dice,
    ) -> Initialized {
        if now < self.down_until || dice.one_in(3) {
            return Initialized::Pending { reason: None, answered: false };
        }
        for other in 0..self.producers.len() {
            let is_owner = self.producers[other].transaction.as_ref().is_some_and(|it| it.owned && !it.fenced);
            if other != producer && is_owner {
                let commits = dice.one_in(2);
                self.end(other, commits, (wal, truth));
                let Self { producers, rules, .. } = self;
                producers[other].transaction.iter_mut().for_each(|it| it.fenced = true);
                producers[other].fence(rules, now, (wal, truth), dice);
            }
        }
        self.producers[producer].transaction.iter_mut().for_each(|it| it.owned = true);
        Initialized::Ready(self.progress.iter().map(|(key, value)| (key.clone(), value.clone())).collect())
    }

    /// What is open ends: committed, where that was asked for and `commits`; else aborted.
    fn end(&mut self, producer: usize, commits: bool, (wal, truth): (&Wal, &mut Truth)) {
        let Some(transaction) = &mut self.producers[producer].transaction else { return };
        let open = std::mem::take(&mut transaction.open);
        let Some((key, value)) = transaction.asked.take().filter(|_| commits) else { return };
        // It arrives as a whole: between its partitions there is no order.
        let (dead_letters, rows): (Vec<_>, Vec<_>) = open.into_iter().partition(|(_, (_, dead_letter))| *dead_letter);
        truth.dead_letters.extend(dead_letters.iter().map(|(_, (number, _))| *number));
        for (partition, record) in rows.into_iter().chain(dead_letters) {
            append(truth, &partition, record, wal);
        }
        let (_, end_lsn) = value.split_once(r#""end_lsn":""#).expect("a progress");
        truth.progress(end_lsn.split('"').next().and_then(|lsn| lsn.parse().ok()).expect("a position"), wal);
        self.progress.insert(key, value);
    }

    /// A producer commits; a step. `fails`: without a word on what became of it.
    pub(crate) fn commit(
        &mut self,
        producer: usize,
        progress: (&str, &str),
        fails: bool,
        (wal, truth): (&Wal, &mut Truth),
        dice: &mut Dice,
    ) -> Result<bool, Failure> {
        let Some(transaction) = &mut self.producers[producer].transaction else { return Ok(true) };
        if transaction.fenced {
            return Err(client_failure());
        }
        assert!(transaction.owned, "a transaction is committed that is not ours");
        transaction.asked = Some((progress.0.to_owned(), progress.1.to_owned()));
        if fails {
            if dice.one_in(3) {
                self.end(producer, true, (wal, truth));
            }
            return Err(client_failure());
        }
        if dice.one_in(3) {
            return Ok(false);
        }
        self.end(producer, true, (wal, truth));
        Ok(true)
    }

    /// The last word of a process that ends in good order: what is open is aborted, with the progress that is in it; but not once its
    /// commit has left.
    pub(crate) fn abandon(&mut self, producer: usize, dice: &mut Dice) {
        let Some(transaction) = &mut self.producers[producer].transaction else { return };
        if transaction.asked.is_none() || dice.one_in(2) {
            transaction.open.clear();
            transaction.asked = None;
        }
    }

    /// Whether it may take records.
    pub(crate) fn is_owner(&self, producer: usize) -> bool {
        self.producers[producer].transaction.as_ref().is_none_or(|it| it.owned)
    }
}
