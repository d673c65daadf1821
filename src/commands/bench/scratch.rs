//! The objects that a measurement makes and removes: a schema with an outbox table, a publication, a topic. And a temporary slot, which ends
//! with its connection: however the measurement ends, no slot stays and keeps WAL.
//!
//! All have one name, with a part that nobody else has. Nothing that is there already is taken over: making fails then.
//! Only what was made here is removed.

use crate::commands::error::CommandError;
use crate::commands::setup;
use crate::lsn::Lsn;
use crate::pg::source::Source;
use crate::pg::{Connection, Error, Purpose, identifier};
use crate::sink::destination::{self, Destination, ScratchError};
use std::time::Duration;

/// The name's first part.
pub const PREFIX: &str = "walrelay_bench";

/// The objects that exist because of us.
pub(super) struct Scratch {
    name: String,
    source: Source,
    schema: bool,
    publication: bool,
    topic: Option<Box<dyn destination::Scratch>>,
}

impl Scratch {
    /// Nothing yet. `unique` tells this measurement from others.
    pub(super) fn new(source: &Source, unique: &str) -> Self {
        let name = format!("{PREFIX}_{unique}");
        Self { name, source: source.clone(), schema: false, publication: false, topic: None }
    }

    /// Of schema, publication and slot, and of the topic but for the dots there.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The topic.
    pub(super) fn topic_name(&self) -> String {
        format!("{}.events", self.name.replace('_', "-"))
    }

    /// Makes what Postgres needs. `payload`: the column's type. Returns the connection with the slot, and the position from which it reads. A
    /// slot is made once the transactions that run have ended: `stop` ends the wait.
    pub(super) fn make(&mut self, payload: &str, stop: &dyn Fn() -> bool) -> Result<(Connection, Lsn), CommandError> {
        let mut connection = Connection::open(&self.source, Purpose::Control)?;
        let name = identifier(&self.name);
        let fix = "run it as a role that may create a schema in this database and has REPLICATION";
        let refused = |step: &str| {
            let step = step.to_owned();
            move |source: Error| CommandError::refused(step, Some(fix.into()), source)
        };
        connection.query(&format!("CREATE SCHEMA {name}")).map_err(refused("create a schema"))?;
        self.schema = true;
        let table = format!(
            "CREATE TABLE {name}.outbox (id uuid NOT NULL, aggregatetype text NOT NULL, aggregateid text NOT NULL, \
             type text NOT NULL, payload {payload} NOT NULL)"
        );
        connection.query(&table).map_err(refused("create a table"))?;
        let publication = format!("CREATE PUBLICATION {name} FOR TABLE {name}.outbox WITH (publish = 'insert')");
        connection.query(&publication).map_err(refused("create a publication"))?;
        self.publication = true;
        let reader = Connection::open(&self.source, Purpose::Replication).map_err(CommandError::from);
        let mut wait = |line: &str| tracing::warn!("{line}");
        let made = reader.and_then(|reader| setup::make_temporary(reader, &self.source, &self.name, &mut wait, stop));
        made.map_err(|error| error.with_fix("create a slot".to_owned(), fix))
    }

    /// Makes the topic.
    pub(super) fn make_topic(&mut self, destination: &dyn Destination, partitions: i32) -> Result<(), ScratchError> {
        let client = format!("walrelay/{}", self.name);
        self.topic = Some(destination.scratch(&client, &self.topic_name(), partitions)?);
        Ok(())
    }

    /// To the destination and back; `None`: there is none, or it does not tell.
    pub(super) fn round_trip(&self) -> Option<Duration> {
        self.topic.as_ref()?.round_trip()
    }

    /// Removes everything. What could not be removed, as what to do by hand.
    pub(super) fn remove(mut self) -> Vec<String> {
        let mut left = Vec::new();
        if let Some(Err(error)) = self.topic.take().map(destination::Scratch::remove) {
            left.push(error.to_string());
        }
        let statements = self.statements();
        if statements.is_empty() {
            return left;
        }
        match Connection::open(&self.source, Purpose::Control) {
            Err(_) => left.extend(statements),
            Ok(mut connection) => {
                left.extend(statements.into_iter().filter(|statement| connection.query(statement).is_err()));
            }
        }
        left
    }

    fn statements(&self) -> Vec<String> {
        let name = identifier(&self.name);
        let all = [
            (self.publication, format!("DROP PUBLICATION {name}")),
            (self.schema, format!("DROP SCHEMA {name} CASCADE")),
        ];
        all.into_iter().filter(|(made, _)| *made).map(|(_, statement)| statement).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pg::source::Environment;

    #[test]
    fn only_what_was_made_is_removed() {
        let source = Source::resolve(Some("postgres://u@127.0.0.1:1/d"), &Environment::default()).unwrap().source;
        let mut scratch = Scratch::new(&source, "ab");
        assert!(scratch.statements().is_empty());
        scratch.schema = true;
        assert_eq!(scratch.statements(), ["DROP SCHEMA \"walrelay_bench_ab\" CASCADE"]);
        scratch.publication = true;
        assert_eq!(scratch.statements().len(), 2);
        assert_eq!(scratch.topic_name(), "walrelay-bench-ab.events");
    }
}
