//! One file for each command.

pub(crate) mod chaos;
pub(crate) mod demo;
pub(crate) mod drain;
pub(crate) mod latency;
pub(crate) mod outage;
