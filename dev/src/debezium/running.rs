//! Debezium by one configuration: a Server of its own, or a connector in a Kafka Connect worker.

use anyhow::Result;

use super::{Debezium, State, Worker};

/// Debezium, running or stopped.
#[derive(Debug)]
pub enum Running<'w> {
    /// A Debezium Server.
    Server(Box<Debezium>),
    /// A connector.
    Connector {
        /// What it runs in.
        worker: &'w Worker,
        /// Its name there.
        name: String,
    },
}

impl Running<'_> {
    /// How it is.
    ///
    /// # Errors
    /// It cannot be asked.
    pub fn state(&mut self) -> Result<State> {
        match self {
            Self::Server(debezium) => {
                let ended = debezium.exited()?;
                Ok(ended
                    .map_or(State::Running, |code| State::Failed(format!("it ended with {code}: {}", debezium.tail()))))
            }
            Self::Connector { worker, name } => worker.state(name),
        }
    }

    /// Stops it, so that it can start again.
    ///
    /// # Errors
    /// It does not end.
    pub fn stop(&mut self) -> Result<()> {
        match self {
            Self::Server(debezium) => debezium.stop(),
            Self::Connector { worker, name } => worker.stop(name),
        }
    }

    /// Starts it from the slot's position, not from its own.
    ///
    /// # Errors
    /// It does not start.
    pub fn start_again(&mut self) -> Result<()> {
        match self {
            Self::Server(debezium) => {
                debezium.forget()?;
                debezium.start_again()
            }
            Self::Connector { worker, name } => {
                worker.forget(name)?;
                worker.resume(name)
            }
        }
    }

    /// Ends it for good.
    ///
    /// # Errors
    /// It does not end.
    pub fn remove(mut self) -> Result<()> {
        match &mut self {
            Self::Server(debezium) => debezium.stop(),
            Self::Connector { worker, name } => worker.remove(name),
        }
    }

    /// The end of what it has said.
    pub fn tail(&self) -> String {
        match self {
            Self::Server(debezium) => debezium.tail(),
            Self::Connector { worker, .. } => worker.tail(),
        }
    }
}
