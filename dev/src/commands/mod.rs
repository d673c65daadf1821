//! One file for each command.

pub(crate) mod backfill;
pub(crate) mod bench;
pub(crate) mod chaos;
pub(crate) mod conformance;
pub(crate) mod conformance_connect;
pub(crate) mod conformance_debezium;
pub(crate) mod conformance_generated;
pub(crate) mod demo;
pub(crate) mod migrations;
pub(crate) mod screenshots;
pub(crate) mod soak;
