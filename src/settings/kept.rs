//! `dead-letters`: which records, and what is done with them.
//!
//! In: the flags, which stand on the command line alone, and the settings of `run` that it shares: the destination, the slot, the
//! dead-letter topic. Out: a [`Request`].

use super::cli::{DeadLettersArgs, DestinationArgs, OperationArgs};
use super::error::ConfigError;
use super::read::{Reader, flag};
use crate::commands::dead_letters::{Action, Request};

impl Reader<'_> {
    pub(super) fn dead_letters(&mut self, args: &DeadLettersArgs) -> Result<Request, ConfigError> {
        let slot = self.slot(args.slot.as_deref())?;
        let operation = OperationArgs { max_in_flight: args.max_in_flight.clone(), ..OperationArgs::default() };
        let (to, brokers, property) = (args.to.clone(), args.brokers.clone(), args.property.clone());
        let wanted = DestinationArgs { to, brokers, property, ..DestinationArgs::default() };
        let destination = self.destination(&wanted, self.limits(&operation)?.max_in_flight)?;
        let addresses = destination.kind().topics;
        let default_topic = args.default_topic.as_ref().map(|text| flag("--default-topic", text));
        if let Some(given) = default_topic.as_ref().filter(|given| addresses.check(&given.text).is_err()) {
            return Err(given.invalid(addresses.expected, None).into());
        }
        Ok(Request {
            topic: self.dead_letter_topic(args.dead_letter_topic.as_deref(), &slot, addresses)?,
            destination,
            slot,
            ids: args.id.clone(),
            again: args.again,
            default_topic: default_topic.map(|given| given.text),
            action: match (args.replay, args.show) {
                (true, _) => Action::Replay,
                (false, true) => Action::Show,
                (false, false) => Action::List,
            },
            json: args.json,
        })
    }
}
