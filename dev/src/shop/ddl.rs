//! Changes of the outbox table while it is written to: columns come, go and are renamed, partitions come, everything is
//! truncated; each in a transaction that also writes a row before and a row after the change.
//!
//! In: a connection to a shop whose outbox is partitioned. Out: what was done, in words.

use std::time::Duration;

use ::postgres::{Client, Error};
use anyhow::{Context as _, Result};
use rand::Rng as _;
use rand::rngs::StdRng;

use super::{Options, is_lost, trade};

/// How often a change is tried that has to wait for too long for its lock.
const TRIES: usize = 10;

/// What has been made so far.
#[derive(Debug, Default)]
pub struct Builder {
    columns: Vec<String>,
    made: u32,
}

impl Builder {
    /// One change, chosen at random.
    ///
    /// # Errors
    /// The database refuses it, or it never gets its lock.
    pub fn change(&mut self, client: &mut Client, options: &Options, rng: &mut StdRng) -> Result<String> {
        self.made += 1;
        let statement = self.choose(rng);
        for _ in 0..TRIES {
            match in_transaction(client, &statement, options, rng) {
                Ok(()) => return Ok(statement),
                // Somebody's long transaction holds the table, or a deadlock chose us.
                Err(error) if error.code().is_some_and(|code| code.code() == "55P03") || is_lost(&error) => {
                    std::thread::sleep(Duration::from_millis(100));
                    if client.is_closed() {
                        break;
                    }
                }
                Err(error) => return Err(error).context(statement),
            }
        }
        self.columns.clear();
        anyhow::bail!("no chance for {statement}")
    }

    fn choose(&mut self, rng: &mut StdRng) -> String {
        let number = self.made;
        match (rng.random_range(0..6), self.columns.pop()) {
            (0, Some(column)) => format!("ALTER TABLE outbox DROP COLUMN {column}"),
            (1, Some(column)) => {
                self.columns.push(format!("renamed_{number}"));
                format!("ALTER TABLE outbox RENAME COLUMN {column} TO renamed_{number}")
            }
            (2, column) => {
                self.columns.extend(column);
                "TRUNCATE outbox".to_owned()
            }
            (3, column) => {
                self.columns.extend(column);
                format!(
                    "CREATE TABLE outbox_of_era_{number} PARTITION OF outbox FOR VALUES IN ({number}); \
                     ALTER TABLE outbox ALTER COLUMN era SET DEFAULT {number}"
                )
            }
            (_, column) => {
                self.columns.extend(column);
                self.columns.push(format!("more_{number}"));
                format!("ALTER TABLE outbox ADD COLUMN more_{number} text DEFAULT 'as ever'")
            }
        }
    }
}

fn in_transaction(client: &mut Client, statement: &str, options: &Options, rng: &mut StdRng) -> Result<(), Error> {
    let number = u64::from(options.connections);
    let mut transaction = client.transaction()?;
    transaction.batch_execute("SET LOCAL lock_timeout = '2s'")?;
    trade::place_for(&mut transaction, number, rng)?;
    transaction.batch_execute(statement)?;
    trade::place_for(&mut transaction, number, rng)?;
    transaction.commit()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng as _;

    #[test]
    fn only_columns_that_are_there_are_dropped_or_renamed() {
        let (mut builder, mut rng) = (Builder::default(), StdRng::seed_from_u64(3));
        let mut there: Vec<String> = Vec::new();
        let mut kinds = std::collections::BTreeSet::new();
        for _ in 0..300 {
            builder.made += 1;
            let statement = builder.choose(&mut rng);
            let words: Vec<&str> = statement.split(' ').collect();
            kinds.insert((words[0].to_owned(), words.get(3).copied().unwrap_or_default().to_owned()));
            match words[..] {
                [_, _, _, "ADD", _, column, ..] => there.push(column.to_owned()),
                [_, _, _, "DROP", _, column] => assert_eq!(there.pop().as_deref(), Some(column)),
                [_, _, _, "RENAME", _, from, _, to] => {
                    assert_eq!(there.pop().as_deref(), Some(from));
                    there.push(to.to_owned());
                }
                _ => {}
            }
        }
        assert_eq!(kinds.len(), 5, "{kinds:?}");
    }
}
