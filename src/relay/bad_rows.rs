//! The settings' actions for rows that cannot be published. Other modules decide which rows are bad.

use crate::positions::Position;

/// The action for one row that cannot be published.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BadRowAction {
    /// The relay stops, with nothing after it confirmed.
    #[default]
    Stop,
    /// It goes to the dead-letter topic.
    DeadLetter,
    /// It is counted and skipped.
    Skip,
}

/// The actions for all bad rows.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BadRows {
    /// Unless something else is said of the row.
    pub action: BadRowAction,
    /// Said of single rows.
    pub at: Vec<(Position, BadRowAction)>,
    /// Where dead letters go: a name that Kafka allows.
    pub dead_letter_topic: String,
    /// `walrelay dead-letters` can read them there.
    pub readable: bool,
}

impl BadRows {
    /// The action of the row at `position`, if it is bad.
    pub fn action(&self, position: Position) -> BadRowAction {
        self.at.iter().rev().find(|(at, _)| *at == position).map_or(self.action, |(_, action)| *action)
    }
}
